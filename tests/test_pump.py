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
from executor_contract import RAISERS, RETURNERS, as_async, dies, misbehave, surprise

from vqkit import codec
from vqkit import pump as pump_module
from vqkit.errors import (
    GiveUp,
    JobCancelled,
    PumpError,
    Snooze,
    StoreBusy,
    StoreError,
    StoreFull,
)
from vqkit.job import Account, Job
from vqkit.liveness import RunnerLock
from vqkit.outputs import OutputFolder
from vqkit.policy import Decision
from vqkit.providers.function import function_provider
from vqkit.pump import Pump
from vqkit.retry import Retry
from vqkit.run import Run, Summary
from vqkit.snapshot import take
from vqkit.store.base import Claim, JobFilter, TurnResult
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
    async def pumping(self, *, dies: bool = False, **settings: Any) -> AsyncIterator[Pump]:
        settings = {"retry": STEADY, "notes_s": 0.0, **settings}
        pump = Pump(
            settings.pop("store", self.store),
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
            pump.stop(0.0)
            await until(lambda: task.done() or self.clock.advance(1.0))
            if dies:
                assert task.exception() is pump.error
            else:
                task.result()

    async def asleep(self) -> None:
        """The pump has done all there is to do, and waits for time to pass."""
        await asyncio.sleep(0)  # a poke comes as a callback of the loop
        await asyncio.sleep(0)
        await until(lambda: self.clock.sleepers)

    async def at_rest(self, pump: Pump, patience_s: float = 20.0) -> None:
        rested = pump.when_at_rest()
        await until(lambda: rested.done() or pump.error, patience_s)
        if pump.error is not None:
            raise AssertionError("the pump has died") from pump.error

    async def asleep_or_stopping(self) -> None:
        """What was asked of the pump has reached it."""
        for _ in range(5):
            await asyncio.sleep(0)
        await self.store.acall(lambda _: None)
        await self.store.acall(lambda _: None)

    async def first_line(self) -> str:
        """What job 1 logged first."""
        while True:
            for event in await self.store.acall(lambda s: s.events(job=1)):
                if event.type == "job.logged":
                    return str(event.data["message"])
            for pump in self.pumps:
                pump.poke()
            await asyncio.sleep(0.005)

    async def until_event(self, kind: str) -> None:
        async with asyncio.timeout(20):
            while kind not in await self.events():  # noqa: ASYNC110 - it is in the database
                await asyncio.sleep(0.005)

    @asynccontextmanager
    async def another(self) -> AsyncIterator[StoreThread[TryingStore]]:
        """A second connection, as another process has one."""
        other = await asyncio.to_thread(
            lambda: StoreThread(lambda: TryingStore(self.path, clock=self.clock), "another")
        )
        try:
            yield other
        finally:
            await asyncio.to_thread(other.close)

    async def claimed_by(self, owner: str, **settings: Any) -> int:
        """A job is put and claimed in one breath by somebody else. Its number."""
        job = new_job({}, **settings)
        theirs = settings.get("pinned_account")

        def not_theirs(account: Account) -> str | None:
            return None if theirs in (None, account.name) else "not theirs"

        def claim(store: TryingStore) -> int:
            store.put([job])
            store.turn((), Claim(owner, not_theirs))
            return store.job(job.id).number

        async with self.another() as other:
            return await other.acall(claim)

    async def leave_to_the_dead(self) -> None:
        await self.claimed_by("dead")

    def start(self) -> Run:
        """A run on this database, as `Queue.start` makes it, on the system's clock."""

        def make(on_worker_start: Callable[[], None]) -> Pump:
            return Pump(
                self.store,
                providers=self.providers,
                outputs=self.outputs,
                runners=self.runners,
                on_worker_start=on_worker_start,
            )

        return Run(make, lambda run: Summary(self.store.call(lambda s: s.counts()), 0.0), print)


async def until(condition: Callable[[], Any], patience_s: float = 20.0) -> Any:
    async with asyncio.timeout(patience_s):
        while not (found := condition()):  # noqa: ASYNC110 - conditions of all kinds
            await asyncio.sleep(0.002)
        return found


def new_job(payload: dict[str, Any], **settings: Any) -> Job:
    return Job(0, uuid.uuid4().hex, codec.dumps(payload), codec.content_hash(payload), **settings)


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.store.close()


# -- handing out and settling -------------------------------------------------------------


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
        await rig.until_event("retry_scheduled")
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


async def test_one_turn_settles_and_claims_for_many_jobs(rig: Rig) -> None:
    """Group commit: sixty endings of one moment are one transaction."""
    gate = asyncio.Event()

    async def work(job: Any) -> None:
        rig.ran.append(job.number)
        await gate.wait()

    rig.provide(work)
    await rig.account(capacity=60)
    await rig.put(*({"n": n} for n in range(60)))
    async with rig.pumping() as pump:
        await until(lambda: len(rig.ran) == 60)
        await rig.asleep()
        rig.store.store.turns.clear()
        gate.set()
        await rig.at_rest(pump)
        assert max(rig.store.store.turns) == 60
        assert len(rig.store.store.turns) <= 3
    assert await rig.counts() == {"completed": 60}


async def test_an_idle_pump_writes_nothing(rig: Rig) -> None:
    rig.provide(lambda job: None)
    await rig.account()
    async with rig.pumping() as pump:
        await rig.at_rest(pump)
        await rig.asleep()
        rig.store.store.turns.clear()
        for _ in range(20):
            rig.clock.advance(0.2)
            await rig.asleep()
        assert rig.store.store.turns == []


# -- who gets what ------------------------------------------------------------------------


async def test_higher_priority_goes_first_then_first_come(rig: Rig) -> None:
    async def work(job: Any) -> None:
        rig.ran.append(job.payload["n"])

    rig.provide(work)
    await rig.account(capacity=1)
    await rig.put({"n": "a"}, {"n": "b"})
    await rig.put({"n": "urgent"}, priority=5)
    await rig.put({"n": "last"}, priority=-1)
    async with rig.pumping() as pump:
        await rig.at_rest(pump)
    assert rig.ran == ["urgent", "a", "b", "last"]


async def test_no_account_runs_more_than_its_capacity(rig: Rig) -> None:
    live: Counter[str] = Counter()
    most: Counter[str] = Counter()

    async def work(job: Any) -> None:
        live[job.account] += 1
        most[job.account] = max(most[job.account], live[job.account])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        live[job.account] -= 1

    rig.provide(work)
    await rig.account("three", capacity=3)
    await rig.account("five", capacity=5)
    await rig.put(*({"n": n} for n in range(80)))
    async with rig.pumping() as pump:
        await rig.at_rest(pump)
    assert most == {"three": 3, "five": 5}
    assert await rig.counts() == {"completed": 80}


async def test_a_capacity_changed_while_running_is_obeyed(rig: Rig) -> None:
    gates: list[asyncio.Event] = []

    async def work(job: Any) -> None:
        gates.append(gate := asyncio.Event())
        await gate.wait()
        gates.remove(gate)

    rig.provide(work)
    await rig.account(capacity=2)
    await rig.put(*({"n": n} for n in range(9)))
    async with rig.pumping() as pump:
        await until(lambda: len(gates) == 2)
        await rig.account(capacity=4)
        pump.poke()
        await until(lambda: len(gates) == 4)
        await rig.account(capacity=1)
        for left in (3, 2, 1):
            gates[0].set()
            await until(lambda left=left: len(gates) == left)
            await rig.asleep()
            assert pump.following == left
        gates[0].set()
        await rig.asleep()
        await until(lambda: len(gates) == 1)
        while (await rig.counts()).get("completed", 0) < 9:
            for gate in gates:
                gate.set()
            await asyncio.sleep(0.002)


async def test_a_job_that_names_an_account_or_provider_waits_for_it_alone(rig: Rig) -> None:
    async def work(job: Any) -> None:
        rig.ran.append((job.payload["n"], job.account))

    rig.provide(work)
    await rig.account("busy", capacity=1)
    await rig.put({"n": "elsewhere"}, provider="other", priority=9)
    await rig.put({"n": "nobody"}, pinned_account="nobody", priority=9)
    await rig.put({"n": "mine"}, pinned_account="busy")
    await rig.put({"n": "any"})
    async with rig.pumping() as pump:
        await rig.at_rest(pump)
        assert rig.ran == [("mine", "busy"), ("any", "busy")]
        rig.provide(work, "other")
        await rig.account("second", "other")
        pump.poke()
        await rig.at_rest(pump)
        assert rig.ran[2:] == [("elsewhere", "second")]
        assert (await rig.job(2)).status == "queued"


async def test_a_busy_account_starves_no_other(rig: Rig) -> None:
    gate = asyncio.Event()

    async def slow(job: Any) -> None:
        await gate.wait()

    async def fast(job: Any) -> None:
        rig.ran.append(job.number)

    rig.provide(slow, "slow")
    rig.provide(fast, "fast")
    await rig.account("a", "slow", capacity=1)
    await rig.account("b", "fast", capacity=1)
    await rig.put(*({"n": n} for n in range(30)), provider="slow", priority=9)
    await rig.put(*({"n": n} for n in range(30)), provider="fast")
    async with rig.pumping():
        await until(lambda: len(rig.ran) == 30)
        gate.set()


async def test_accounts_that_get_no_work_say_why(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VQKIT_NO_SUCH_KEY", raising=False)

    async def work(job: Any) -> None:
        rig.ran.append(job.account)

    def broken(reference: str) -> str:
        if reference == "env:BROKEN":
            raise OSError("the keyring is on fire: sk-secret")
        return real(reference)

    real = pump_module.secrets.resolve
    monkeypatch.setattr(pump_module.secrets, "resolve", broken)
    rig.provide(work)
    await rig.put({"n": 1}, pinned_account="well")
    await rig.account("alien", "runwy")
    await rig.account("keyless", credential="env:VQKIT_NO_SUCH_KEY")
    await rig.account("broken", credential="env:BROKEN")
    await rig.account("off", is_enabled=False)
    await rig.account(
        "parked", parked_until_ms=rig.clock.now_ms() + 60_000, parked_reason="no funds"
    )
    async with rig.pumping() as pump:
        await until(lambda: pump.health.why)
        await rig.asleep()
        why = dict(pump.health.why)
        # Though no job began or ended: it is in the database for every screen.
        shown = await rig.store.acall(lambda s: take(s, rig.clock.now_ms(), lambda _: True))
        await rig.account("well")
        pump.poke()
        await until(lambda: rig.ran == ["well"])
        assert pump.health.why == why
    assert "no provider named 'runwy' is registered here; known: work" in why["alien"]
    assert "VQKIT_NO_SUCH_KEY is not set" in why["keyless"]
    assert "OSError" in why["broken"]
    assert "sk-secret" not in str(why)
    assert "paused by you" in why["off"]
    assert why["parked"] == "no funds"
    told = {account.name: account.why_not for account in shown.accounts}
    parked = told.pop("parked")
    assert parked is not None
    assert parked.startswith("parked, until ")
    assert parked.endswith(": no funds")
    del why["parked"]
    assert told == {**why, "off": "paused by you"}


async def test_a_parked_account_comes_back_by_itself(rig: Rig) -> None:
    async def work(job: Any) -> None:
        rig.ran.append(job.account)

    rig.provide(work)
    await rig.account(parked_until_ms=rig.clock.now_ms() + 60_000)
    await rig.put({"n": 1})
    async with rig.pumping() as pump:
        await rig.asleep()
        rig.clock.advance(59.9)
        await rig.asleep()
        assert rig.ran == []
        rig.clock.advance(0.1)
        await rig.at_rest(pump)
    assert rig.ran == ["a"]


async def test_not_before_and_expiry_are_kept_to_the_millisecond(rig: Rig) -> None:
    async def work(job: Any) -> None:
        rig.ran.append((job.payload["n"], rig.clock.now_ms()))

    now_ms = rig.clock.now_ms()
    rig.provide(work)
    await rig.put({"n": "later"}, not_before_ms=now_ms + 7_300)
    await rig.put({"n": "too late"}, expires_ms=now_ms + 5_000)
    async with rig.pumping() as pump:
        await rig.asleep()
        for _ in range(50):
            rig.clock.advance(0.1)
            await rig.asleep()
        expired = await rig.job(2)
        assert (expired.status, expired.reason) == ("cancelled", "expired")
        await rig.account()
        pump.poke()
        rig.clock.advance(2.299)
        await rig.asleep()
        assert rig.ran == []
        rig.clock.advance(0.001)
        await rig.at_rest(pump)
    assert rig.ran == [("later", now_ms + 7_300)]


async def test_paused_hands_out_nothing_and_what_runs_goes_on(rig: Rig) -> None:
    gate = asyncio.Event()

    async def work(job: Any) -> None:
        rig.ran.append(job.number)
        await gate.wait()

    rig.provide(work)
    await rig.account(capacity=1)
    await rig.put({"n": 1}, {"n": 2})
    async with rig.pumping() as pump:
        await until(lambda: rig.ran == [1])
        await rig.store.acall(lambda s: s.set_setting("paused", True))
        pump.poke()
        gate.set()
        await rig.asleep()
        await until(lambda: not pump.following)
        await rig.asleep()
        assert rig.ran == [1]
        assert pump.health.state == "paused"
        assert (await rig.job(1)).status == "completed"
        await rig.store.acall(lambda s: s.set_setting("paused", False))
        pump.poke()
        await rig.at_rest(pump)
    assert rig.ran == [1, 2]


async def test_what_another_connection_puts_is_noticed_within_the_poll(rig: Rig) -> None:
    async def work(job: Any) -> None:
        rig.ran.append(job.number)

    rig.provide(work)
    await rig.account()
    async with rig.pumping() as pump, rig.another() as other:
        await rig.at_rest(pump)
        await rig.asleep()
        await other.acall(lambda s: s.put([new_job({"n": 1})]))
        await rig.asleep()
        assert rig.ran == []
        rig.clock.advance(pump_module.POLL_S)
        await until(lambda: rig.ran == [1])


async def test_what_is_put_between_the_turn_and_the_rest_is_noticed_too(rig: Rig) -> None:
    async def work(job: Any) -> None:
        rig.ran.append(job.number)

    rig.provide(work)
    await rig.account()
    async with rig.another() as other:
        # In the very moment after a turn, before the pump goes to rest.
        job = new_job({"n": 1})
        async with rig.pumping() as pump:
            await rig.at_rest(pump)
            await rig.asleep()
            rig.store.store.after_turn = lambda: other.call(lambda s: s.put([job])) and None
            pump.poke()
            await until(lambda: rig.store.store.after_turn is None)
            await rig.asleep()
            rig.clock.advance(pump_module.POLL_S)
            await until(lambda: rig.ran == [1])


async def test_two_pumps_on_one_file_share_out_the_work(rig: Rig) -> None:
    live = most = 0

    async def work(job: Any) -> None:
        nonlocal live, most
        live += 1
        most = max(most, live)
        rig.ran.append(job.number)
        await asyncio.sleep(0.001)
        live -= 1

    rig.provide(work)
    await rig.account(capacity=3)
    await rig.put(*({"n": n} for n in range(40)))
    async with rig.another() as other, rig.pumping() as first, rig.pumping(store=other) as second:
        await until(lambda: len(rig.ran) == 40 or rig.clock.advance(0.1))
        rested = [first.when_at_rest(), second.when_at_rest()]
        await until(lambda: all(r.done() for r in rested) or rig.clock.advance(0.1))
    assert sorted(rig.ran) == list(range(1, 41))
    assert most <= 3


# -- changing one's mind ------------------------------------------------------------------


async def test_a_queued_job_is_cancelled_at_once(rig: Rig) -> None:
    await rig.put()
    async with rig.pumping():
        await rig.asleep()
        await rig.transition("cancel", 1)
        assert (await rig.job()).status == "cancelled"
        assert await rig.events() == ["queued", "cancelled"]


async def test_a_running_coroutine_is_cancelled_and_may_clean_up(rig: Rig) -> None:
    began = asyncio.Event()

    async def work(job: Any) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            job.log("cleaning up")
            rig.ran.append("cleaned")

    rig.provide(work)
    await rig.account()
    await rig.put()
    async with rig.pumping() as pump:
        await began.wait()
        await rig.transition("cancel", 1)
        await rig.at_rest(pump)
    job = await rig.job()
    assert (job.status, job.reason) == ("cancelled", "cancelled by you")
    assert rig.ran == ["cleaned"]
    assert await rig.events() == ["queued", "started", "cancel_requested", "logged", "cancelled"]


async def test_a_coroutine_that_finishes_in_spite_of_a_cancel_keeps_its_result(rig: Rig) -> None:
    began = asyncio.Event()

    async def work(job: Any) -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "it was paid for"
        raise AssertionError

    rig.provide(work)
    await rig.account()
    await rig.put()
    async with rig.pumping() as pump:
        await began.wait()
        await rig.transition("cancel", 1)
        await rig.at_rest(pump)
    job = await rig.job()
    assert (job.status, job.result) == ("completed", "it was paid for")


async def test_a_thread_that_looks_is_cancelled_and_one_that_does_not_keeps_its_result(
    rig: Rig,
) -> None:
    began, go_on = threading.Semaphore(0), threading.Event()

    def work(job: Any) -> str:
        began.release()
        go_on.wait(20)
        if job.payload["looks"]:
            while True:
                job.check_cancelled()
        return "it was paid for"

    rig.provide(work)
    await rig.account()
    await rig.put({"looks": True}, {"looks": False})
    async with rig.pumping() as pump:
        await until(lambda: began.acquire(blocking=False))
        await until(lambda: began.acquire(blocking=False))
        await rig.transition("cancel", 1, 2)
        await rig.asleep()
        assert (await rig.job(1)).label(0) == "cancelling"
        go_on.set()
        await rig.at_rest(pump)
    assert (await rig.job(1)).status == "cancelled"
    assert ((await rig.job(2)).status, (await rig.job(2)).result) == (
        "completed",
        "it was paid for",
    )


async def test_cancelling_ends_the_worker_process(rig: Rig) -> None:
    def work(job: Any) -> None:
        job.log(str(os.getpid()))
        threading.Event().wait()

    rig.provide(work, executor="process")
    await rig.account()
    await rig.put()
    async with rig.pumping() as pump:
        pid = int(await rig.first_line())
        await rig.transition("cancel", 1)
        await rig.at_rest(pump)
        assert (await rig.job()).status == "cancelled"
        await until(lambda: not _is_there(pid))


async def test_a_cancel_wins_over_a_retry(rig: Rig) -> None:
    began, go_on = threading.Event(), threading.Event()

    def work(job: Any) -> None:
        began.set()
        go_on.wait(20)
        raise ValueError("failed while you cancelled")

    rig.provide(work)
    await rig.account()
    await rig.put()
    async with rig.pumping() as pump:
        await until(began.is_set)
        await rig.transition("cancel", 1)
        await rig.asleep()
        go_on.set()
        await rig.at_rest(pump)
    assert (await rig.job()).status == "cancelled"


@pytest.mark.parametrize("how", ["cancel", "stop"])
async def test_once_the_handler_has_returned_its_file_is_kept(rig: Rig, how: str) -> None:
    """A cancel, or a stop, that comes while files are synced must not throw them away."""
    syncing, go_on = threading.Event(), threading.Event()
    finish = rig.outputs.finish

    def slow_finish(*args: Any) -> Any:
        syncing.set()
        go_on.wait(20)
        return finish(*args)

    rig.outputs.finish = slow_finish  # type: ignore[method-assign]

    rig.provide(as_async(RETURNERS["part_path"]))
    await rig.account()
    await rig.put({"prompt": "a fox"})
    async with rig.pumping() as pump:
        await until(syncing.is_set)
        if how == "cancel":
            await rig.transition("cancel", 1)
        else:
            pump.stop(0.0)
        await rig.asleep_or_stopping()
        go_on.set()
        await until(lambda: not pump.following)
        if how == "cancel":
            await rig.at_rest(pump)
    assert (await rig.job()).status == "completed"
    outputs = await rig.store.acall(lambda s: s.outputs(1))
    assert [Path(o.path).name for o in outputs] == [(await rig.job()).result]


async def test_a_result_that_comes_after_its_job_was_taken_over_is_kept_aside(rig: Rig) -> None:
    began, go_on = threading.Event(), threading.Event()

    def work(job: Any) -> str:
        if job.attempt == 1 and not began.is_set():
            began.set()
            go_on.wait(20)
            return "the late one"
        return "the new one"

    rig.provide(work)
    await rig.account()
    await rig.put()
    async with rig.pumping() as pump:
        await until(began.is_set)
        decision = Decision("reclaim", {"to": "queued", "reason": "somebody thought us dead"})
        await rig.store.acall(lambda s: s.reclaim(pump.id, lambda job: (decision, ())))
        pump.poke()
        await until(lambda: pump.following == 1 and rig.clock.sleepers)
        go_on.set()
        await rig.at_rest(pump)
    job = await rig.job()
    assert (job.status, job.result) == ("completed", "the new one")
    assert "late_result" in await rig.events()
    attempts = await rig.store.acall(lambda s: s.attempts(1))
    assert [a.late_result_json for a in attempts] == ['"the late one"', None]


# -- time-outs ------------------------------------------------------------------------------------


async def test_a_coroutine_over_its_time_is_ended_and_tried_again(rig: Rig) -> None:
    async def work(job: Any) -> str:
        rig.ran.append(job.attempt)
        if job.attempt == 1:
            await asyncio.Event().wait()
        return "second"

    rig.provide(work)
    await rig.account()
    await rig.put(timeout_ms=30)
    async with rig.pumping() as pump:
        rested = pump.when_at_rest()
        await until(lambda: rested.done() or (not pump.following and rig.clock.advance(1.0)))
    assert rig.ran == [1, 2]
    first, second = await rig.store.acall(lambda s: s.attempts(1))
    assert (first.outcome, second.outcome) == ("timed_out", "completed")
    assert "took longer than its timeout_s of 0.03" in (first.error_json or "")


async def overdue(rig: Rig) -> None:
    """Waits until the pump has said that an attempt is over its time."""
    while "logged" not in await rig.events():
        rig.clock.advance(0.5)
        await rig.asleep()


@pytest.mark.parametrize("ends", ["returns", "gives in", "raises"])
async def test_a_coroutine_that_will_not_end_holds_its_slot_and_says_why(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr(pump_module, "STOP_S", 0.01)
    gate = asyncio.Event()

    async def work(job: Any) -> str:
        rig.ran.append(job.attempt)
        while not gate.is_set() and job.attempt == 1:
            try:
                await gate.wait()
            except asyncio.CancelledError:
                rig.ran.append("ignored")
        if ends == "gives in" and job.attempt == 1:
            raise asyncio.CancelledError
        if ends == "raises" and job.attempt == 1:
            raise ValueError("too late")
        return "done"

    rig.provide(work)
    await rig.account(capacity=1)
    await rig.put({}, timeout_ms=20)
    async with rig.pumping(retry=Retry(base_s=0.0, max_s=0.0)) as pump:
        assert "its coroutine goes on although it was cancelled" in await rig.first_line()
        assert (await rig.job()).status == "running"
        assert rig.ran == [1, "ignored"]
        gate.set()
        await rig.at_rest(pump)
        assert (await rig.job()).result == "done"
        assert rig.ran == ([1, "ignored"] if ends == "returns" else [1, "ignored", 2])
        outcomes = [a.outcome for a in await rig.store.acall(lambda s: s.attempts(1))]
        assert outcomes[0] == ("completed" if ends == "returns" else "timed_out")


async def test_a_coroutine_that_ignores_the_users_cancel_says_why_it_goes_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump_module, "STOP_S", 0.01)
    gate = asyncio.Event()

    async def work(job: Any) -> None:
        rig.ran.append(job.number)
        while not gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await gate.wait()

    rig.provide(work)
    await rig.account()
    await rig.put()
    async with rig.pumping() as pump:
        await until(lambda: rig.ran)
        await rig.transition("cancel", 1)
        assert "cancelled by you; its coroutine goes on" in await rig.first_line()
        gate.set()
        await rig.at_rest(pump)
        told = [kind for kind in await rig.events() if kind == "logged"]
        assert len(told) == 1


async def test_a_thread_over_its_time_holds_its_slot_and_its_result_counts(rig: Rig) -> None:
    go_on = threading.Event()
    flags: list[bool] = []

    def work(job: Any) -> str:
        go_on.wait(20)
        try:
            job.check_cancelled()
        except JobCancelled:
            flags.append(True)
        return "late, and paid for"

    rig.provide(work)
    await rig.account()
    await rig.put(timeout_ms=30)
    async with rig.pumping() as pump:
        await overdue(rig)
        assert (await rig.job()).status == "running"
        go_on.set()
        await rig.at_rest(pump)
    assert flags == [True]
    assert (await rig.job()).result == "late, and paid for"
    assert len(await rig.store.acall(lambda s: s.attempts(1))) == 1


async def test_a_thread_that_ends_badly_over_its_time_is_tried_again(rig: Rig) -> None:
    go_on = threading.Event()

    def work(job: Any) -> int:
        go_on.wait(20)
        job.check_cancelled()
        return int(job.attempt)

    rig.provide(work)
    await rig.account()
    await rig.put(timeout_ms=30, max_attempts=2)
    async with rig.pumping(retry=Retry(base_s=0)) as pump:
        await overdue(rig)
        go_on.set()
        await rig.at_rest(pump)
    attempts = await rig.store.acall(lambda s: s.attempts(1))
    assert [a.outcome for a in attempts] == ["timed_out", "completed"]


async def test_a_process_over_its_time_is_ended(rig: Rig) -> None:
    def work(job: Any) -> None:
        job.log(str(os.getpid()))
        threading.Event().wait()

    rig.provide(work, executor="process")
    await rig.account()
    await rig.put(timeout_ms=4000, max_attempts=1)
    async with rig.pumping() as pump:
        pid = int(await rig.first_line())
        await rig.at_rest(pump)
        job = await rig.job()
        assert (job.status, (job.error or {})["type"]) == ("failed", "TimeoutError")
        await until(lambda: not _is_there(pid))


async def test_a_timeout_of_the_handlers_own_is_an_error_like_any_other(rig: Rig) -> None:
    async def work(job: Any) -> None:
        raise TimeoutError("my server did not answer")

    rig.provide(work)
    await rig.account()
    await rig.put(timeout_ms=60_000, max_attempts=1)
    async with rig.pumping() as pump:
        await rig.at_rest(pump)
    assert ((await rig.job()).error or {})["message"] == "my server did not answer"


# -- one bad handler never stops the others -----------------------------------------------


@pytest.mark.parametrize("executor", ["async", "thread", "process"])
async def test_whatever_a_handler_raises_fails_its_own_job_and_no_other(
    rig: Rig, executor: str
) -> None:
    names = [*RAISERS, "stops"]
    if executor == "process":
        names.insert(3, "dies")
    rig.provide(as_async(misbehave) if executor == "async" else misbehave, executor=executor)
    await rig.account(capacity=2)
    await rig.put(*({"n": name} for name in names), provider="work", max_attempts=1)
    rig.provide(as_async(RETURNERS["nothing"]), "good")
    await rig.account("good", "good")
    await rig.put({"n": "good"}, provider="good")
    retry = Retry(max_crashes=1)
    async with rig.pumping(retry=retry) as pump:
        await rig.at_rest(pump, patience_s=60)
        assert pump.error is None
        assert pump.health.trouble is None
    jobs = {j.payload["n"]: j for j in await rig.store.acall(lambda s: s.jobs(JobFilter()))}
    assert jobs.pop("good").status == "completed"
    assert {name: job.status for name, job in jobs.items()} == dict.fromkeys(jobs, "failed")
    kinds = {name: (job.error or {})["type"] for name, job in jobs.items()}
    assert kinds.pop("stops") in ("RuntimeError", "StopIteration")
    assert kinds.pop("dies", "WorkerDied") == "WorkerDied"
    assert kinds == {name: kind for name, (_, kind) in RAISERS.items()}
    assert jobs["give_up_error"].reason == "an object"
    assert jobs["broken_str"].error is not None


@pytest.mark.parametrize("executor", ["async", "thread", "process"])
async def test_whatever_a_handler_returns_is_kept_in_some_form(
    rig: Rig, executor: str, tmp_path: Path
) -> None:
    rig.provide(as_async(surprise) if executor == "async" else surprise, executor=executor)
    await rig.account(capacity=2)
    await rig.put(
        *({"n": name, "folder": str(tmp_path), "prompt": name} for name in RETURNERS),
        max_attempts=1,
    )
    async with rig.pumping() as pump:
        await rig.at_rest(pump, patience_s=60)
        assert pump.error is None
    jobs = {j.payload["n"]: j for j in await rig.store.acall(lambda s: s.jobs(JobFilter()))}
    assert {n: (j.status, j.error) for n, j in jobs.items()} == dict.fromkeys(
        jobs, ("completed", None)
    )
    files = await rig.store.acall(lambda s: s.outputs())
    kept: dict[str, list[str]] = {name: [] for name in jobs}
    for output in files:
        kept[next(n for n, j in jobs.items() if j.number == output.job)].append(output.path)
    assert jobs["nothing"].result is None
    assert [jobs["bytes"].result] == kept["bytes"]
    for name in ("nan", "set", "big_integer", "half_character", "own_list"):
        assert "repr" in jobs[name].result, name
    assert jobs["odd_keys"].result == {"1": "one"}
    assert jobs["surrogate_repr"].result == {"repr": "half ?"}
    assert "BrokenRepr" in jobs["broken_repr"].result["repr"]
    assert jobs["own_file"].result == {"file": str(tmp_path / "mine.txt")}
    assert kept["own_file"] == [str(tmp_path / "mine.txt")]
    assert [jobs["part_path"].result] == kept["part_path"]
    assert jobs["part_text"].result == [kept["part_text"][0], "other"]
    assert [jobs["huge"].result["file"]] == kept["huge"]
    assert kept["undecodable_file"] == []
    logged = await rig.events(jobs["nan"].number)
    assert logged == ["queued", "started", "logged", "completed"]


async def test_a_plain_function_that_returns_a_coroutine_gives_up(rig: Rig) -> None:
    async def inner() -> None: ...

    rig.provide(lambda job: inner())
    await rig.account()
    await rig.put()
    async with rig.pumping() as pump:
        await rig.at_rest(pump)
    job = await rig.job()
    assert (job.status, job.attempt) == ("failed", 1)
    assert "make it 'async def'" in (job.error or {})["message"]


async def test_a_lone_error_in_a_task_group_means_what_it_means_outside(rig: Rig) -> None:
    async def refuse() -> None:
        raise GiveUp("refused")

    async def work(job: Any) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(refuse())

    rig.provide(work)
    await rig.account()
    await rig.put()
    async with rig.pumping() as pump:
        await rig.at_rest(pump)
    job = await rig.job()
    assert (job.status, job.attempt, job.reason) == ("failed", 1, "refused")
    assert 'raise GiveUp("refused")' in (job.error or {})["line"]


async def test_odd_stages_and_lines_stop_nobody(rig: Rig) -> None:
    class NoWords:
        def __str__(self) -> str:
            return "half \ud800"

    async def work(job: Any) -> None:
        job.stage("half \ud800", float("nan"))
        job.stage("x" * 10_000, 7.5)
        job.stage(None, -1)
        job.log(NoWords())
        job.log("y" * 100_000, "error")
        job.log(b"bytes")
        for n in range(500):
            job.log(n)

    rig.provide(work)
    await rig.account()
    await rig.put()
    async with rig.pumping() as pump:
        await rig.at_rest(pump)
    assert (await rig.job()).status == "completed"
    lines = [e for e in await rig.store.acall(lambda s: s.events(job=1)) if e.type == "job.logged"]
    assert len(lines) == 201
    assert "the rest is not kept" in lines[-1].data["message"]
    assert max(len(e.data_json) for e in lines) < 3000


async def test_no_line_of_many_threads_is_lost(rig: Rig) -> None:
    def work(job: Any) -> None:
        for n in range(190):
            job.log(n)

    rig.provide(work)
    await rig.account(capacity=8)
    numbers = await rig.put(*({"n": n} for n in range(8)))
    async with rig.pumping() as pump:
        rested = pump.when_at_rest()
        await until(lambda: rested.done() or pump.poke())
    for number in numbers:
        found = await rig.store.acall(lambda s, n=number: s.events(job=n))
        said = [e.data["message"] for e in found if e.type == "job.logged"]
        assert said == [str(n) for n in range(190)]


async def test_a_line_logged_while_the_pump_collects_is_not_lost(rig: Rig) -> None:
    gate = asyncio.Event()

    class Racing(deque[Any]):
        """Another thread logs in the middle of every look, as happens once in a thousand."""

        log: Callable[[], None] | None = None

        def _race(self) -> None:
            if self.log is not None:
                log, self.log = self.log, None
                log()

        def clear(self) -> None:
            self._race()
            super().clear()

        def __len__(self) -> int:
            found = super().__len__()
            self._race()
            return found

    async def work(job: Any) -> None:
        for n in range(5):
            job.log(n)
            noted.log = lambda n=n: job.log(f"{n} and a half")
            pump.poke()
            await until(lambda: noted.log is None)
        gate.set()

    rig.provide(work)
    await rig.account()
    await rig.put()
    async with rig.pumping() as pump:
        noted = pump._noted = Racing()
        await gate.wait()
        await rig.at_rest(pump)
    found = await rig.store.acall(lambda s: s.events(job=1))
    said = [e.data["message"] for e in found if e.type == "job.logged"]
    assert said == [text for n in range(5) for text in (str(n), f"{n} and a half")]


async def test_a_crash_of_the_worker_spends_a_crash_and_no_attempt(rig: Rig) -> None:
    rig.provide(dies, executor="process")
    await rig.account()
    await rig.put(max_attempts=1)
    async with rig.pumping(retry=Retry(max_attempts=1, max_crashes=2, base_s=5.0)) as pump:
        rested = pump.when_at_rest()
        await until(lambda: rested.done() or (not pump.following and rig.clock.advance(1.0)))
    job = await rig.job()
    assert (job.status, job.attempt, job.crashes) == ("failed", 0, 2)
    assert job.reason == "crashed 2 times, the ceiling"


# -- the database in trouble --------------------------------------------------------------


@pytest.mark.parametrize("kind", [StoreBusy, StoreFull, StoreError])
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_nothing_is_lost_or_run_twice_while_the_database_is_in_trouble(
    rig: Rig, kind: type[StoreError], moment: str
) -> None:
    """`after`: the commit was made, and its answer lost on the way back."""
    store = rig.store.store
    coming = store.fail_before if moment == "before" else store.fail_after
    fault = kind("in trouble", is_unknown=moment == "after")

    async def work(job: Any) -> int:
        rig.ran.append(job.number)
        job.log("at work")
        if job.number in (2, 3, 5):
            coming.append(fault)  # the turn that would settle this one
        return job.number

    rig.provide(work)
    await rig.account(capacity=3)
    await rig.put(*({"n": n} for n in range(9)))
    coming.extend([fault, fault])
    async with rig.pumping() as pump:
        rested = pump.when_at_rest()
        seen: set[str | None] = set()

        def look() -> bool:
            seen.add(pump.health.trouble)
            return rested.done() or rig.clock.advance(0.25) or False

        await until(look)
        assert "in trouble" in seen
        await rig.asleep()
        assert pump.health.trouble is None
        assert pump.error is None
    assert sorted(rig.ran) == list(range(1, 10))
    jobs = await rig.store.acall(lambda s: s.jobs(JobFilter()))
    assert [(j.status, j.result, j.attempt) for j in jobs] == [
        ("completed", n, 1) for n in range(1, 10)
    ]
    for number in range(1, 10):
        assert await rig.events(number) == ["queued", "started", "logged", "completed"]
    off = await rig.store.acall(lambda s: s.verify_counts(repair=False))
    assert off == {}


async def test_reads_that_fail_while_the_pump_rests_are_tried_again(rig: Rig) -> None:
    rig.provide(as_async(RETURNERS["nothing"]))
    await rig.account()
    store = rig.store.store
    real = store.changes_elsewhere
    faults = [StoreBusy("held"), StoreBusy("held")]

    def changes_elsewhere() -> int:
        if faults and rig.ran:
            raise faults.pop()
        return real()

    store.changes_elsewhere = changes_elsewhere  # type: ignore[method-assign]
    async with rig.pumping() as pump:
        await rig.at_rest(pump)
        rig.ran.append("rested")
        await until(lambda: not faults or rig.clock.advance(0.1))
        await rig.put()
        await until(lambda: rig.clock.advance(0.1) or not pump.health.trouble)
        await rig.at_rest(pump)
        assert pump.error is None
    assert (await rig.job()).status == "completed"


async def test_a_full_disk_takes_on_no_new_work_and_says_so(rig: Rig) -> None:
    rig.provide(as_async(RETURNERS["nothing"]))
    await rig.account()
    await rig.put()
    room = False
    rig.store.store.has_room = lambda: room  # type: ignore[method-assign]
    async with rig.pumping() as pump:
        await rig.asleep()
        assert "the disk is nearly full" in (pump.health.trouble or "")
        assert (await rig.job()).status == "queued"
        room = True
        rested = pump.when_at_rest()
        await until(lambda: rested.done() or rig.clock.advance(0.5))
        assert pump.health.trouble is None
    assert (await rig.job()).status == "completed"


async def test_files_that_find_no_room_wait_for_it(rig: Rig) -> None:
    finish, faults = rig.outputs.finish, [OSError(28, "No space left on device")] * 3

    def full(*args: Any) -> Any:
        if faults:
            raise faults.pop()
        return finish(*args)

    rig.outputs.finish = full  # type: ignore[method-assign]
    rig.provide(RETURNERS["part_path"])
    await rig.account()
    await rig.put({"prompt": "a fox"})
    async with rig.pumping() as pump:
        await until(lambda: pump.health.trouble)
        assert "finished files wait for room" in (pump.health.trouble or "")
        rested = pump.when_at_rest()
        await until(lambda: rested.done() or rig.clock.advance(0.5))
    assert len(await rig.store.acall(lambda s: s.outputs(1))) == 1


# -- the pump's own faults ----------------------------------------------------------------


async def dead(rig: Rig, run: Run) -> None:
    """The fault is told wherever one waits, and in the runner's row."""
    for wait in (lambda: run.wait(5), lambda: asyncio.run(_await(run))):
        begun_s = time.monotonic()
        with pytest.raises(PumpError, match="the pump has stopped: ZeroDivisionError") as raised:
            await asyncio.to_thread(wait)
        assert isinstance(raised.value.__cause__, ZeroDivisionError)
        assert time.monotonic() - begun_s < 2.0
    assert isinstance(run.error, ZeroDivisionError)
    assert not run.is_running
    assert "failed" in repr(run)
    row = (await rig.store.acall(lambda s: s.runners()))[0]
    assert row.state == "failed"
    assert "ZeroDivisionError" in (row.error or "")


async def _await(run: Run) -> Summary:
    return await run


FAULTS = {
    "in a turn": (Pump, "_launch"),
    "in an ending": (pump_module.policy, "decide"),
    "at rest": (Pump, "_rest"),
    "in the beginning": (Pump, "_recover"),
}


@pytest.mark.parametrize("where", FAULTS)
async def test_a_fault_of_the_pump_is_told_where_one_waits(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def fault(*_: Any) -> Any:
        return 1 / 0

    monkeypatch.setattr(*FAULTS[where], fault)
    rig.provide(as_async(RETURNERS["nothing"]))
    await rig.account()
    await rig.put()
    run = await asyncio.to_thread(rig.start)
    await dead(rig, run)
    # Once it is mended, a new run takes over what the dead one held, in the same process.
    monkeypatch.undo()
    again = await asyncio.to_thread(rig.start)
    summary = await asyncio.to_thread(again.wait, 20)
    assert summary.is_complete
    assert (await rig.job()).status == "completed"
    assert await asyncio.to_thread(again.stop) == 0


async def test_a_runners_folder_that_cannot_be_made_is_told_too(rig: Rig) -> None:
    await asyncio.to_thread(rig.runners.write_text, "in the way")
    run = await asyncio.to_thread(rig.start)
    with pytest.raises(PumpError, match=r"FileExistsError|NotADirectoryError"):
        await asyncio.to_thread(run.wait, 20)


# -- stopping, and the dead ---------------------------------------------------------------


async def test_stopping_gives_back_what_can_be_ended_and_spends_no_attempt(rig: Rig) -> None:
    began = asyncio.Event()

    async def work(job: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    rig.provide(work)
    await rig.account(capacity=1)
    await rig.put({"n": 1}, {"n": 2})
    async with rig.pumping() as pump:
        await began.wait()
        pump.stop(0.0)
        await until(lambda: pump.health.state == "stopped")
    assert await rig.events(1) == ["queued", "started", "released"]
    assert [
        (j.status, j.attempt) for j in await rig.store.acall(lambda s: s.jobs(JobFilter()))
    ] == [
        ("queued", 0),
        ("queued", 0),
    ]
    assert await rig.store.acall(lambda s: s.runners()) == []
    assert await asyncio.to_thread(lambda: list(rig.runners.iterdir())) == []


async def test_stopping_without_a_limit_follows_what_runs_to_its_end(rig: Rig) -> None:
    began, gate = asyncio.Event(), asyncio.Event()

    async def work(job: Any) -> str:
        began.set()
        await gate.wait()
        return "to the end"

    rig.provide(work)
    await rig.account(capacity=1)
    await rig.put({"n": 1}, {"n": 2})
    async with rig.pumping() as pump:
        await began.wait()
        pump.stop(None)
        await rig.asleep()
        assert pump.following == 1
        gate.set()
        await until(lambda: pump.health.state == "stopped")
    assert (await rig.job(1)).result == "to the end"
    assert (await rig.job(2)).status == "queued"


async def test_the_jobs_of_a_dead_runner_are_taken_over_within_seconds(rig: Rig) -> None:
    rig.provide(as_async(RETURNERS["nothing"]))
    await rig.account()
    async with rig.pumping() as pump:
        await rig.at_rest(pump)
        await rig.leave_to_the_dead()
        begun_ms = rig.clock.now_ms()
        while "completed" not in await rig.events():
            rig.clock.advance(0.5)
            await rig.asleep()
        assert rig.clock.now_ms() - begun_ms < 2 * pump_module.REAP_S * 1000
    assert (await rig.job()).deaths == 1
    assert await rig.events() == ["queued", "started", "reclaimed", "started", "completed"]


async def test_a_pump_that_never_rests_takes_over_the_jobs_of_the_dead_too(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump_module, "REAP_S", 0.05)

    async def restless(job: Any) -> None:
        raise Snooze(0)

    rig.provide(restless)
    await rig.account()
    await rig.account("theirs", "elsewhere")
    await rig.put(provider="work")
    async with rig.pumping():
        number = await rig.claimed_by("dead", pinned_account="theirs")
        async with asyncio.timeout(20):
            while "reclaimed" not in await rig.events(number):  # noqa: ASYNC110
                await asyncio.sleep(0.005)


async def test_a_living_runners_jobs_are_left_alone(rig: Rig) -> None:
    rig.provide(as_async(RETURNERS["nothing"]))
    await rig.account()
    async with rig.pumping() as pump:
        await rig.at_rest(pump)
        lock = await rig.store.acall(lambda _: RunnerLock(rig.runners, "living"))
        await rig.claimed_by("living")
        for _ in range(40):
            rig.clock.advance(0.5)
            await rig.asleep()
        assert (await rig.job()).owner == "living"
        await rig.store.acall(lambda _: lock.release())


async def test_a_store_that_is_lost_ends_the_pump_with_a_word(rig: Rig) -> None:
    rig.provide(as_async(RETURNERS["nothing"]))
    await rig.account()
    async with rig.pumping(dies=True) as pump:
        await rig.at_rest(pump)
        await asyncio.to_thread(rig.path.unlink)
        pump.poke()
        await until(lambda: pump.error)
        assert "moved or deleted" in (pump.health.trouble or "")
        assert pump.health.state == "failed"


async def test_retention_prunes_while_the_pump_rests(rig: Rig) -> None:
    rig.provide(as_async(RETURNERS["nothing"]))
    await rig.account()
    await rig.put({"n": 1})
    await rig.store.acall(lambda s: s.set_setting("retention_s", 60.0))
    async with rig.pumping() as pump:
        await rig.at_rest(pump)
        rig.clock.advance(61.0)
        seconds = 0.0
        while await rig.counts():
            await rig.asleep()
            rig.clock.advance(0.5)
            seconds += 0.5
            assert seconds < 30
