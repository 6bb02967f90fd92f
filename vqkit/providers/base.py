"""What a provider is to the pump: a name, a handler, and where the handler runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

__all__ = ["ExecutorKind", "Provider"]

ExecutorKind = Literal["async", "thread", "process"]


class Provider(Protocol):
    """Does the work of one job at a time, many side by side."""

    @property
    def name(self) -> str:
        """What accounts call it."""

    @property
    def executor(self) -> ExecutorKind:
        """Where the handler runs: on the pump's loop, on a thread, in a worker process."""

    @property
    def is_by_steps(self) -> bool:
        """True if money is spent in paid steps only: a try that began none has cost nothing."""

    @property
    def handler(self) -> Callable[..., Any]:
        """Called with one argument, the active job; a coroutine function for ``async``."""
