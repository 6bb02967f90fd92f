"""The pump on a manual clock, on a loop where any blocking call fails the test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from vqkit import codec
from vqkit import pump as pump_module
from vqkit.errors import GiveUp, PumpError, Snooze, StoreBusy, StoreError, StoreFull
from vqkit.job import Account, Job
from vqkit.liveness import this_process
from vqkit.outputs import OutputFolder
from vqkit.policy import Decision
from vqkit.providers.function import function_provider
from vqkit.pump import Pump
from vqkit.queue import Queue
from vqkit.retry import Retry
from vqkit.run import Run, Summary
from vqkit.store.base import Claim, JobFilter, Runner, Transition, TurnResult
from vqkit.store.sqlite import SqliteStore
from vqkit.store.thread import StoreThread
from vqkit.testing import ManualClock

STEADY = Retry(max_attempts=3, base_s=10.0, jitter="none")


class TryingStore(SqliteStore):
    """A store that counts its turns and fails them as told, before or after the commit."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.turns: list[int] = []
        self.fail_before: deque[StoreError] = deque()
        self.fail_after: deque[StoreError] = deque()
        self.after_turn: Callable[[], None] | None = None

    def turn(self, transitions: Any = (), claim: Any = None, runner: Any = None) -> TurnResult:
        if self.fail_before:
            raise self.fail_before.popleft()
        result = super().turn(transitions, claim, runner)
        self.turns.append(sum(t.outcome is not None for t in transitions))
        if self.after_turn is not None:
            hook, self.after_turn = self.after_turn, None
            hook()
        if self.fail_after and (result.claimed or transitions):
            raise self.fail_after.popleft()
        return result


class Rig:
    """A database, a manual clock, and a pump between them."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "q.db"
        self.clock = ManualClock()
        self.store = StoreThread(lambda: TryingStore(self.path, clock=self.clock))
        self.outputs = OutputFolder(folder / "out", folder / "finished")
        self.runners = folder / "runners"
        self.providers: dict[str, Any] = {}
        self.ran: list[Any] = []
        self.pumps: list[Pump] = []

    def provide(self, handler: Callable[..., Any], name: str = "work", **options: Any) -> None:
        self.providers[name] = function_provider(handler, name, **options)

    async def account(self, name: str = "a", provider: str = "work", **settings: Any) -> None:
        account = Account(name, provider, **{"capacity": 4, **settings})
        await self.store.acall(lambda s: s.save_account(account))

    async def put(self, *payloads: dict[str, Any], **settings: Any) -> list[int]:
        jobs = [new_job(payload, **settings) for payload in payloads or ({},)]
        await self.store.acall(lambda s: s.put(jobs))
        for pump in self.pumps:
            pump.poke()
        ids = tuple(job.id for job in jobs)
        found = await self.store.acall(lambda s: s.jobs(JobFilter(ids=ids)))
        numbers = {job.id: job.number for job in found}
        return [numbers[job.id] for job in jobs]

    async def job(self, number: int = 1) -> Job:
        return await self.store.acall(lambda s: s.job(number))

    async def counts(self) -> dict[str, int]:
        return await self.store.acall(lambda s: {k: n for k, n in s.counts().items() if n})

    async def events(self, number: int = 1) -> list[str]:
        found = await self.store.acall(lambda s: s.events(job=number))
        return [event.type.removeprefix("job.") for event in found]

    async def transition(self, verb: str, *numbers: int, **change: Any) -> None:
        chosen = JobFilter(numbers=numbers)
        await self.store.acall(lambda s: s.transition(chosen, verb, **change))
        for pump in self.pumps:
            pump.poke()

    @asynccontextmanager
    async def pumping(self, **settings: Any) -> AsyncIterator[Pump]:
        settings = {"retry": STEADY, "notes_s": 0.0, **settings}
        pump = Pump(
            self.store,
            providers=self.providers,
            outputs=self.outputs,
            runners=self.runners,
            clock=self.clock,
            draw=lambda: 0.5,
            **settings,
        )
        task = asyncio.create_task(pump.run())
        self.pumps.append(pump)
        try:
            yield pump
        finally:
            if not task.done():
                pump.stop(0.0)
                await until(lambda: task.done() or self.clock.advance(1.0))
            with contextlib.suppress(BaseException):
                task.result()

    async def asleep(self) -> None:
        """The pump has done all there is to do, and waits for time to pass."""
        await asyncio.sleep(0)  # a poke comes as a callback of the loop
        await asyncio.sleep(0)
        await until(lambda: self.clock.sleepers)

    async def at_rest(self, pump: Pump) -> None:
        rested = pump.when_at_rest()
        await until(rested.done)


async def until(condition: Callable[[], Any], patience_s: float = 20.0) -> Any:
    async with asyncio.timeout(patience_s):
        while not (found := condition()):
            await asyncio.sleep(0.002)
        return found


def new_job(payload: dict[str, Any], **settings: Any) -> Job:
    return Job(0, uuid.uuid4().hex, codec.dumps(payload), codec.content_hash(payload), **settings)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.store.close()


# -- handing out and settling ---------------------------------------------------------------


async def test_a_job_that_returns_is_completed_with_its_result(rig: Rig) -> None:
    async def work(job: Any) -> Any:
        return {"said": job.payload["prompt"], "on": job.account}

    rig.provide(work)
    await rig.account()
    await rig.put({"prompt": "a fox"})
    async with rig.pumping() as pump:
        await rig.at_rest(pump)
    job = await rig.job()
    assert job.status == "completed"
    assert job.result == {"said": "a fox", "on": "a"}
    assert await rig.events() == ["queued", "started", "completed"]


async def test_retries_wait_longer_each_time_and_only_the_clock_brings_them(rig: Rig) -> None:
    async def work(job: Any) -> str:
        rig.ran.append(rig.clock.now_ms())
        if job.attempt < 3:
            raise ValueError(f"try {job.attempt}")
        return "third"

    rig.provide(work)
    await rig.account()
    await rig.put()
    async with rig.pumping(retry=Retry(max_attempts=3, base_s=10.0, jitter="none")) as pump:
        await until(lambda: rig.ran)
        await rig.asleep()
        assert (await rig.job()).label(rig.clock.now_ms()) == "retrying"
        for _ in range(9):
            rig.clock.advance(1.0)
            await rig.asleep()
        rig.clock.advance(0.999)
        await rig.asleep()
        assert len(rig.ran) == 1
        rig.clock.advance(0.001)
        await until(lambda: len(rig.ran) == 2)
        await rig.asleep()
        rig.clock.advance(19.9)
        await rig.asleep()
        assert len(rig.ran) == 2
        rig.clock.advance(0.1)
        await rig.at_rest(pump)
    assert [b - a for a, b in zip(rig.ran, rig.ran[1:], strict=False)] == [10_000, 20_000]
    assert (await rig.job()).status == "completed"


async def test_full_jitter_draws_the_delay(rig: Rig) -> None:
    async def work(job: Any) -> None:
        raise ValueError

    rig.provide(work)
    await rig.account()
    await rig.put()
    async with rig.pumping(retry=Retry(base_s=10.0)):
        await rig.asleep()
        await until(lambda: rig.clock.sleepers)
        job = await rig.job()
    assert job.not_before_ms == rig.clock.now_ms() + 5_000  # half of ten, for a draw of 0.5


async def test_a_job_fails_when_its_attempts_are_spent(rig: Rig) -> None:
    async def work(job: Any) -> None:
        rig.ran.append(job.attempt)
        raise ValueError("never")

    rig.provide(work)
    await rig.account()
    await rig.put(max_attempts=2)
    async with rig.pumping() as pump:
        rested = pump.when_at_rest()
        await until(lambda: rested.done() or rig.clock.advance(1.0))
    job = await rig.job()
    assert (job.status, rig.ran, job.attempt) == ("failed", [1, 2], 2)
    assert job.reason == "attempt 2 of 2 failed"
    assert job.error is not None
    assert job.error["type"] == "ValueError"
    assert "raise ValueError" in job.error["line"]
    assert "test_pump.py" in job.error["line"]


async def test_give_up_fails_at_once(rig: Rig) -> None:
    async def work(job: Any) -> None:
        raise GiveUp("the prompt was refused")

    rig.provide(work)
    await rig.account()
    await rig.put()
    async with rig.pumping() as pump:
        await rig.at_rest(pump)
    job = await rig.job()
    assert (job.status, job.attempt, job.reason) == ("failed", 1, "the prompt was refused")


async def test_snooze_brings_the_job_back_later_and_spends_no_attempt(rig: Rig) -> None:
    async def work(job: Any) -> None:
        rig.ran.append(job.attempt)
        if len(rig.ran) < 4:
            raise Snooze(60)

    rig.provide(work)
    await rig.account()
    await rig.put()
    async with rig.pumping() as pump:
        for n in range(1, 4):
            await until(lambda n=n: len(rig.ran) == n)
            await rig.asleep()
            rig.clock.advance(59.9)
            await rig.asleep()
            assert len(rig.ran) == n
            rig.clock.advance(0.1)
        await rig.at_rest(pump)
    assert rig.ran == [1, 1, 1, 1]
    assert (await rig.job()).status == "completed"
