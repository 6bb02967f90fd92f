"""The queue as a user holds it: put work in, run it, see how it stands, take results out.

Each part of it stands in a module of its own, and on the one before: `held` (the open file),
`looking`, `changing`, `putting`, `running`, `pictures`.
"""

from __future__ import annotations

from .pictures import Pictures

__all__ = ["Queue"]


class Queue(Pictures):
    """A crash-proof job queue on one SQLite file, made when it is not there.

    Opening spends nothing and sends nothing: only `run` and `start` hand out work. Every
    Queue on the same file in one kernel shares its run. `outputs` is the folder for
    finished files: by default one beside the database, named like it.
    """
