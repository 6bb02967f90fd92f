"""Time as an argument: the system's clock, and the shape of any other.

Wall-clock times are integer UTC milliseconds, because they are stored and compared
between processes; waiting uses the event loop's monotonic clock.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol

__all__ = ["END_S", "Clock", "SystemClock", "as_ms", "iso", "local_text"]

FIRST_S, END_S = -62_135_510_400, 253_402_300_800  # the years 1 to 9999, in Unix seconds


class Clock(Protocol):
    """Where the engine gets the time, and how it waits."""

    def now_ms(self) -> int:
        """The time now, UTC milliseconds since 1970."""

    async def wait(self, event: asyncio.Event, timeout_s: float | None) -> bool:
        """Waits until `event` is set (True) or `timeout_s` has passed (False)."""


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def wait(self, event: asyncio.Event, timeout_s: float | None) -> bool:
        if event.is_set():
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return event.is_set()
        return True


def as_ms(when: int | float | str | datetime | None) -> int | None:
    """UTC milliseconds of a moment given as a datetime, ISO text, or Unix seconds.

    A moment without a time zone is taken in the machine's local time, as a person
    means it. None stays None. Raises ValueError for text that is no ISO date, and for what
    lies beyond the years 1 to 9999.
    """
    if when is None:
        return None
    if isinstance(when, bool):
        raise ValueError("a moment in time, not True or False")
    if isinstance(when, int | float):
        if not FIRST_S <= when < END_S:
            raise ValueError("a moment between the years 1 and 9999")
        return round(when * 1000)
    moment = datetime.fromisoformat(when.strip()) if isinstance(when, str) else when
    return round(moment.timestamp() * 1000)


def iso(ms: int | None) -> str | None:
    """A stored time as ISO text in UTC, to the millisecond."""
    if ms is None:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def local_text(ms: int | None, now_ms: int) -> str:
    """A stored time as a person reads it: the hour today, else day and hour, local time."""
    if ms is None:
        return ""
    moment = datetime.fromtimestamp(min(ms / 1000, END_S - 86400))  # no zone leaves its year
    today = datetime.fromtimestamp(now_ms / 1000).date()
    if moment.date() == today:
        return moment.strftime("%H:%M:%S")
    return moment.strftime("%d %b %H:%M" if moment.year == today.year else "%d %b %Y %H:%M")
