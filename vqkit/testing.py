"""For tests of your own handlers: a clock that stands still, and a queue run to rest on it.

::

    from vqkit import Queue
    from vqkit.testing import drain

    def test_a_flaky_render_succeeds_at_the_third_attempt(tmp_path):
        with Queue(tmp_path / "q.db") as q:
            q.put({"prompt": "a fox"})
            summary = drain(q, render)        # an hour of backoff takes a millisecond
            assert summary.is_complete
            assert q.job(1).attempt == 3
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .clock import Clock, SystemClock
from .errors import UsageError
from .mock import MockProvider
from .policy import FOR_EVER_MS, comes_back_ms
from .provider_contract import provider_contract
from .providers.function import function_provider
from .pump import Pump
from .queue import Queue
from .retry import Retry
from .run import Summary
from .store.files import companion
from .store.paid import next_minutes
from .store.sqlite import SqliteStore
from .store.thread import StoreThread

__all__ = ["ManualClock", "MockProvider", "drain", "drained", "provider_contract"]

NEW_YEAR_MS = 1_767_225_600_000  # 2026-01-01 in UTC


class ManualClock:
    """A clock that stands still until `advance` moves it. Starts at 2026 unless told.

    Whoever waits on it sleeps until its time has come or its event is set. `advance` may be
    called from any thread; those it wakes run when their loop gets its turn.
    """

    def __init__(self, start_ms: int = NEW_YEAR_MS) -> None:
        self._now_ms = float(start_ms)
        self._waiters: dict[asyncio.Future[None], tuple[float, asyncio.Event]] = {}

    def now_ms(self) -> int:
        return int(self._now_ms)

    @property
    def sleepers(self) -> int:
        """How many wait for nothing but time: their events are not set."""
        return sum(not event.is_set() for _, event in tuple(self._waiters.values()))

    def advance(self, seconds: float) -> None:
        """Moves the time on and wakes those whose time has come."""
        if seconds < 0:
            raise UsageError(f"advance({seconds!r}): time goes forward, expected 0 or more seconds")
        self._now_ms = round(self._now_ms + seconds * 1000, 3)
        for gate, (due_ms, _) in tuple(self._waiters.items()):
            if due_ms <= self._now_ms:
                self._waiters.pop(gate, None)
                gate.get_loop().call_soon_threadsafe(_open, gate)

    async def wait(self, event: asyncio.Event, timeout_s: float | None) -> bool:
        if event.is_set():
            return True
        if timeout_s is not None and timeout_s <= 0:
            await asyncio.sleep(0)
            return event.is_set()
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        due_ms = float("inf") if timeout_s is None else self._now_ms + timeout_s * 1000
        self._waiters[gate] = round(due_ms, 3), event
        rung = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait((gate, rung), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiters.pop(gate, None)
            gate.cancel()
            rung.cancel()
        return event.is_set()


def _open(gate: asyncio.Future[None]) -> None:
    if not gate.done():
        gate.set_result(None)


class _LeapingClock:
    """A manual clock that leaps over each wait, unless attempts are at work meanwhile."""

    def __init__(self, clock: ManualClock, store: StoreThread[SqliteStore]) -> None:
        self._clock, self._store = clock, store
        self.is_busy: Callable[[], bool] = lambda: False

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def wait(self, event: asyncio.Event, timeout_s: float | None) -> bool:
        await asyncio.sleep(0)
        due_ms = None if self.is_busy() else await self._store.acall(_next_due_ms)
        if event.is_set():
            return True
        if due_ms is None:  # real work, or another process's: only that can bring news
            return await SystemClock().wait(event, timeout_s)
        self._clock.advance(max(timeout_s or 0.0, (due_ms - self.now_ms()) / 1000))
        return False


def _next_due_ms(store: SqliteStore) -> int | None:
    """When a job falls due, or an account comes back that rests for a while."""
    accounts, now_ms = store.accounts(), store.clock.now_ms()
    resting = [*comes_back_ms(accounts, now_ms), *next_minutes(accounts)]
    times = [store._next_due_ms(), *(at for at in resting if now_ms < at < FOR_EVER_MS)]
    return min((at for at in times if at is not None), default=None)


def drain(
    queue: Queue,
    *handlers: Callable[..., Any],
    clock: ManualClock | None = None,
    retry: Retry | None = None,
) -> Summary:
    """Runs the queue's jobs to rest in this thread, and returns how they ended.

    `handlers` serve the accounts named like them, as in ``q.run(handler)``; without any the
    registered providers do the work. Delays of retries, snoozes and ``not_before`` pass at
    once, on `clock`, which starts now unless one is given; what handlers do takes the time
    it takes. What stops the pump is raised. In a coroutine use ``await drained(…)``.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(drained(queue, *handlers, clock=clock, retry=retry))
    raise UsageError("a loop is running here; write: summary = await drained(queue, handler)")


async def drained(
    queue: Queue,
    *handlers: Callable[..., Any],
    clock: ManualClock | None = None,
    retry: Retry | None = None,
) -> Summary:
    """As `drain`, on the loop that runs."""
    shared = queue._shared
    if shared.run is not None and shared.run.is_running:
        raise UsageError("this queue is being run already; stop that run first: run.stop()")
    for handler in handlers:
        provider = function_provider(handler)
        shared.providers[provider.name] = provider
        queue._ensure_account(provider.name, None)
    clock = clock or ManualClock(SystemClock().now_ms())
    leaping = _LeapingClock(clock, shared.writer)
    pump = Pump(
        shared.writer,
        providers=shared.providers,
        outputs=queue._files,
        runners=companion(queue.path) / "runners",
        retry=retry,
        clock=leaping,
    )
    leaping.is_busy = lambda: pump.following > 0
    begun_ms = clock.now_ms()
    with _clock_of(queue, leaping):
        rested = pump.when_at_rest()
        pumping = asyncio.create_task(pump.run())
        rested.add_done_callback(lambda _: pump.stop(None))
        await pumping
        seconds = (clock.now_ms() - begun_ms) / 1000
        return queue._summed_up(seconds, pump.health.why, pump.recovered)


@contextmanager
def _clock_of(queue: Queue, clock: Clock) -> Iterator[None]:
    """The queue and its database go by that clock meanwhile."""
    store, mine = queue._shared.writer.store, queue._clock
    before, store.clock, queue._clock = store.clock, clock, clock
    try:
        yield
    finally:
        store.clock, queue._clock = before, mine
