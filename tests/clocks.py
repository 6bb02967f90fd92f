"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio

NEW_YEAR_MS = 1_767_225_600_000  # 2026-01-01 in UTC


class ManualClock:
    """`time_ms` may be set, forwards or backwards; nobody can wait on it."""

    def __init__(self, time_ms: int = NEW_YEAR_MS) -> None:
        self.time_ms = time_ms

    def now_ms(self) -> int:
        return self.time_ms

    async def wait(self, event: asyncio.Event, timeout_s: float | None) -> bool:
        raise NotImplementedError("this clock has no event loop; see vqkit.testing.ManualClock")
