"""What a dashboard needs of a queue: a few looks, and the wishes its buttons write down."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from ..job import Account, Event, Job
from ..snapshot import Snapshot

__all__ = ["AccountControls", "Controls", "Pace"]


class Pace(Protocol):
    """What ended when, after how many tries; `is_behind` while there is more to read."""

    tries: Any
    is_behind: bool

    def bins(self, now_ms: int | None = None) -> tuple[list[int], dict[str, list[int]]]: ...


class AccountControls(Protocol):
    """The accounts of a queue, and what their buttons do."""

    def __getitem__(self, name: str) -> Account: ...
    def disable(self, name: str) -> object: ...
    def enable(self, name: str) -> object: ...
    def unpark(self, name: str) -> object: ...
    def set_capacity(self, name: str, capacity: int) -> object: ...


class Controls(Protocol):
    """A queue as a dashboard holds it; each method may be called from any thread."""

    path: Path

    @property
    def is_closed(self) -> bool: ...
    @property
    def accounts(self) -> AccountControls: ...
    @property
    def providers(self) -> frozenset[str]: ...

    def signs(self) -> tuple[object, ...]:
        """Something that is the same as long as nothing has changed; cheap."""

    def snapshot(self) -> Snapshot: ...
    def pace(self, before: Any = None) -> Pace: ...
    def newest_events(self, limit: int, after: int = 0, job: int | None = None) -> list[Event]: ...

    def job(self, which: int) -> Job: ...

    def pause(self) -> object: ...
    def resume(self) -> object: ...
    def stop(self) -> object: ...
    def cancel(self, *, status: Sequence[str], upto: int) -> int: ...
    def requeue(self, *, ended_by: float) -> int: ...
    def resolve(
        self,
        which: int,
        how: Literal["attach", "not_sent", "pay_again", "give_up"],
        *,
        value: Any = None,
        step: str | None = None,
    ) -> object: ...
