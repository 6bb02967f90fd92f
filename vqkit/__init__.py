"""A crash-proof job queue for Jupyter: a sheet of prompts becomes finished renders, each once.

    from vqkit import Queue
    q = Queue("runs/foxes.db")
    q.load("prompts.xlsx")
    q.run(render)

Start reading at `vqkit.job`, then `lifecycle`, `policy`, `store.base`, `attempt`, `pump`,
`queue`.
"""

from .errors import GiveUp, JobCancelled, Snooze, VqkitError
from .nesting import allow_nested
from .queue import Queue
from .retry import Retry

__all__ = [
    "GiveUp",
    "JobCancelled",
    "Queue",
    "Retry",
    "Snooze",
    "VqkitError",
    "__version__",
    "allow_nested",
]

__version__ = "0.1.0"
