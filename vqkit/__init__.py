"""A crash-proof job queue for Jupyter: a sheet of prompts becomes finished renders, each once.

    from vqkit import Queue
    q = Queue("runs/foxes.db")
    q.load("prompts.xlsx")
    q.run(render)

Start reading at `vqkit.job`, then `lifecycle`, `policy`, `store.base`, `attempt`, `pump`,
`queue`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import GiveUp, JobCancelled, Snooze, VqkitError
from .retry import Retry

if TYPE_CHECKING:
    from .nesting import allow_nested
    from .queue import Queue
    from .selftest import selftest

__all__ = [
    "GiveUp",
    "JobCancelled",
    "Queue",
    "Retry",
    "Snooze",
    "VqkitError",
    "__version__",
    "allow_nested",
    "selftest",
]

__version__ = "0.1.0"

# Loaded when first asked for, so that a module that only raises GiveUp stays light.
_LATER = {"Queue": "queue", "allow_nested": "nesting", "selftest": "selftest"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'vqkit' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_LATER[name]}", __name__), name)


def load_ipython_extension(ipython: Any) -> None:
    """``%load_ext vqkit``: the magics ``%vq`` and ``%%vq_handler``."""
    from .notebook.magics import VqMagics
    from .queue import Queue

    ipython.register_magics(VqMagics(ipython, Queue))


def __dir__() -> list[str]:
    return sorted(__all__)
