"""How often a failed job is tried again, and how long it waits in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .errors import UsageError

__all__ = ["Retry"]


@dataclass(frozen=True, slots=True)
class Retry:
    """Bounded, spread-out retries: exponential backoff with jitter.

    `max_attempts` counts tries, the first included. A job waits up to
    ``base_s * factor ** (attempt - 1)`` seconds, never above `max_s`. With ``jitter="full"``
    the wait is drawn evenly from zero to that bound, with ``"equal"`` from its upper half,
    with ``"none"`` it is the bound (the names are those of the AWS Architecture Blog,
    "Exponential Backoff And Jitter"). `max_crashes` bounds how often a job may take its
    worker process down with it, however many attempts it has left; `max_deaths` how often
    the whole process may die while the job is at work, which is rarely the job's fault.
    """

    max_attempts: int = 3
    base_s: float = 1.0
    max_s: float = 300.0
    factor: float = 2.0
    jitter: Literal["full", "equal", "none"] = "full"
    max_crashes: int = 3
    max_deaths: int = 25

    def __post_init__(self) -> None:
        if isinstance(self.max_attempts, bool) or self.max_attempts < 1:
            raise UsageError(f"Retry(max_attempts={self.max_attempts!r}): expected 1 or more")
        if isinstance(self.max_crashes, bool) or self.max_crashes < 1:
            raise UsageError(f"Retry(max_crashes={self.max_crashes!r}): expected 1 or more")
        if isinstance(self.max_deaths, bool) or self.max_deaths < 1:
            raise UsageError(f"Retry(max_deaths={self.max_deaths!r}): expected 1 or more")
        if not 0 <= self.base_s <= self.max_s < float("inf"):
            raise UsageError(
                f"Retry(base_s={self.base_s!r}, max_s={self.max_s!r}): expected"
                " 0 <= base_s <= max_s, in seconds"
            )
        if not 1 <= self.factor < float("inf"):
            raise UsageError(f"Retry(factor={self.factor!r}): expected 1 or more")
        if self.jitter not in ("full", "equal", "none"):
            raise UsageError(f"Retry(jitter={self.jitter!r}): expected 'full', 'equal' or 'none'")

    def ceiling_s(self, attempt: int) -> float:
        """The longest wait after try `attempt`, in seconds. Never above `max_s`."""
        if attempt < 1:
            raise UsageError(f"attempt {attempt}: attempts count from 1")
        try:
            return min(self.max_s, self.base_s * self.factor ** (attempt - 1))
        except OverflowError:
            return self.max_s

    def delay_s(self, attempt: int, u: float) -> float:
        """Seconds to wait before try ``attempt + 1``.

        `attempt` counts from 1. `u` in [0, 1) chooses the jitter, so equal inputs give
        equal delays. Never above `max_s`.
        """
        ceiling = self.ceiling_s(attempt)
        if self.jitter == "none":
            return ceiling
        if self.jitter == "equal":
            return ceiling / 2 + u * ceiling / 2
        return u * ceiling
