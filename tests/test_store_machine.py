"""Anything in any order: the store against a model of a page, with clocks and crashes."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clocks import ManualClock
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from store_contract import ALL, CHANGES, OUTCOMES, a_claim, a_job

from vqkit.job import Account
from vqkit.policy import reclaim_decision
from vqkit.store.base import JobFilter, Transition
from vqkit.store.sqlite import SqliteStore

CAPACITY = {"a": 2, "b": 1}
PROVIDER = {"a": "p", "b": "q"}
ENDS = {
    "complete": "completed",
    "fail": "failed",
    "retry": "queued",
    "snooze": "queued",
    "release": "queued",
    "doubt": "in_doubt",
    "acknowledge_cancel": "cancelled",
}
MAX_CRASHES = 2


@dataclass
class Model:
    """What a job is known to be, said in the fewest words."""

    status: str = "queued"
    due_ms: int = 0
    expires_ms: int | None = None
    lane: str | None = None
    priority: int = 0
    is_cancelling: bool = False
    crashes: int = 0
    attempts: list[str | None] = field(default_factory=list)  # by fence: None while it runs
    owner: str | None = None


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="vqkit-machine-"))
        self.clock = ManualClock(1_000_000)
        self.store = SqliteStore(self.folder / "q.db", clock=self.clock)
        self.jobs: dict[int, Model] = {}

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    @initialize()
    def open_accounts(self) -> None:
        for name, capacity in CAPACITY.items():
            self.store.save_account(Account(name, PROVIDER[name], capacity))

    def pick(self, which: float) -> int:
        return sorted(self.jobs)[int(which * len(self.jobs))]

    WHICH = st.floats(0, 1, exclude_max=True)

    @rule(
        n=st.integers(1, 4),
        priority=st.integers(0, 1),
        lane=st.sampled_from([None, None, "p", "q", "nobody"]),
        wait_ms=st.sampled_from([0, 0, 500]),
        life_ms=st.sampled_from([None, None, 900]),
    )
    def put(
        self, n: int, priority: int, lane: str | None, wait_ms: int, life_ms: int | None
    ) -> None:
        now_ms = self.clock.time_ms
        expires_ms = None if life_ms is None else now_ms + life_ms
        jobs = [
            a_job(
                len(self.jobs) + k,
                provider=lane,
                priority=priority,
                not_before_ms=now_ms + wait_ms if wait_ms else None,
                expires_ms=expires_ms,
            )
            for k in range(n)
        ]
        assert self.store.put(jobs).new == n
        for _ in jobs:
            self.jobs[len(self.jobs) + 1] = Model(
                due_ms=wait_ms and now_ms + wait_ms,
                expires_ms=expires_ms,
                lane=lane,
                priority=priority,
            )

    @rule(owner=st.sampled_from(["one", "two"]), limit=st.integers(1, 5))
    def claim(self, owner: str, limit: int) -> None:
        now_ms = self.clock.time_ms
        for model in self.jobs.values():  # what is past its time goes first
            if model.status == "queued" and (model.expires_ms or now_ms + 1) <= now_ms:
                model.status = "cancelled"
            if model.due_ms <= now_ms:  # what has once been due stays due
                model.due_ms = 0
        waiting = [
            (-m.priority, number)
            for number, m in self.jobs.items()
            if m.status == "queued" and m.due_ms <= now_ms
        ]
        free = {name: n - self.live()[name] for name, n in CAPACITY.items()}
        turn = self.store.turn(claim=a_claim(owner, limit))
        for job in turn.claimed:
            model = self.jobs[job.number]
            assert (-model.priority, job.number) in waiting
            assert model.lane in (None, PROVIDER[job.account or ""])
            assert (job.fence, job.owner) == (len(model.attempts) + 1, owner)
            free[job.account or ""] -= 1
            waiting.remove((-model.priority, job.number))
            better = [w for w in waiting if w < (-model.priority, job.number)]
            assert not [w for w in better if self.jobs[w[1]].lane == model.lane]
            model.status, model.owner = "running", owner
            model.attempts.append(None)
        if not turn.is_limited:
            for name, left in free.items():  # nothing that could run is left lying
                mine = [w for w in waiting if self.jobs[w[1]].lane in (None, PROVIDER[name])]
                assert not mine or left == 0
        asked = {
            (number, len(m.attempts))
            for number, m in self.jobs.items()
            if m.status == "running" and m.owner == owner and m.is_cancelling
        }
        assert set(turn.cancels) == asked

    @precondition(lambda self: any(m.attempts for m in self.jobs.values()))
    @rule(which=WHICH, back=st.integers(0, 2), verb=st.sampled_from(sorted(ENDS)))
    def settle(self, which: float, back: int, verb: str) -> None:
        """By any attempt there ever was: its own job's newest, or a stale one."""
        begun = [number for number, m in sorted(self.jobs.items()) if m.attempts]
        number = begun[int(which * len(begun))]
        model = self.jobs[number]
        fence = max(1, len(model.attempts) - back)
        done = Transition(number, verb, fence, CHANGES.get(verb, {}), OUTCOMES[verb])
        before = self.store.job(number)
        turn = self.store.turn([done])
        if model.attempts[fence - 1] is not None:
            reclaimed = model.attempts[fence - 1] == "reclaimed"
            seen = (turn.stale, turn.repeated)
            assert seen == (((done,), ()) if reclaimed else ((), (done,)))
            assert self.store.job(number) == before
            return
        assert turn.stale == turn.repeated == ()
        status = ENDS[verb]
        if status == "queued" and model.is_cancelling:
            status = "cancelled"
        model.attempts[fence - 1] = "cancelled" if status == "cancelled" else OUTCOMES[verb]
        model.status, model.owner, model.due_ms = status, None, 0
        model.is_cancelling = model.is_cancelling and status not in ("queued", "cancelled")

    @precondition(lambda self: self.jobs)
    @rule(which=WHICH)
    def cancel(self, which: float) -> None:
        number = self.pick(which)
        model = self.jobs[number]
        changed = self.store.transition(JobFilter(numbers=(number,)), "cancel")
        asks = model.status == "running" and not model.is_cancelling
        assert bool(changed) == (asks or model.status in ("queued", "in_doubt"))
        if asks:
            model.is_cancelling = True
        elif changed:
            model.status, model.is_cancelling = "cancelled", False

    @precondition(lambda self: self.jobs)
    @rule(which=WHICH)
    def requeue(self, which: float) -> None:
        number = self.pick(which)
        model = self.jobs[number]
        changed = self.store.transition(JobFilter(numbers=(number,)), "requeue")
        assert bool(changed) == (model.status in ("completed", "failed", "cancelled"))
        if changed:
            # It keeps its time, and its end where that is still to come.
            model.status, model.is_cancelling, model.crashes = "queued", False, 0
            if (model.expires_ms or 0) <= self.clock.time_ms:
                model.expires_ms = None

    @precondition(lambda self: any(m.status == "in_doubt" for m in self.jobs.values()))
    @rule(to=st.sampled_from(["queued", "failed"]))
    def resolve(self, to: str) -> None:
        for number in self.store.transition(JobFilter(status=("in_doubt",)), "resolve", to=to):
            model = self.jobs[number]
            wins = model.is_cancelling and to == "queued"
            model.status, model.due_ms = "cancelled" if wins else to, 0
            model.is_cancelling = model.is_cancelling and to == "failed"
        assert all(m.status != "in_doubt" for m in self.jobs.values())

    @rule(owner=st.sampled_from(["one", "two"]))
    def the_owner_dies(self, owner: str) -> None:
        counts = self.store.reclaim(
            owner, lambda job: (reclaim_decision(job, None, MAX_CRASHES), ())
        )
        expected: Counter[str] = Counter()
        for model in self.jobs.values():
            if model.status == "running" and model.owner == owner:
                is_last = model.crashes + 1 >= MAX_CRASHES
                model.status = "failed" if is_last else "queued"
                if model.is_cancelling:
                    model.status = "cancelled"
                else:
                    model.crashes += 1
                model.is_cancelling, model.owner, model.due_ms = False, None, 0
                model.attempts[-1] = "reclaimed"
                expected[model.status] += 1
        assert counts == expected

    @rule(by_ms=st.sampled_from([1, 499, 500, 1000, -300]))
    def the_clock_moves(self, by_ms: int) -> None:
        self.clock.time_ms += by_ms

    @rule()
    def the_process_ends_and_another_opens(self) -> None:
        self.store.close()
        self.store = SqliteStore(self.folder / "q.db", clock=self.clock)

    def live(self) -> Counter[str]:
        return Counter(self.store.live_counts())

    @invariant()
    def no_account_has_more_than_its_capacity(self) -> None:
        assert all(n <= CAPACITY[name] for name, n in self.live().items())
        assert self.live().total() == sum(m.status == "running" for m in self.jobs.values())

    @invariant()
    def every_job_is_what_the_model_says(self) -> None:
        found = {job.number: job for job in self.store.jobs(ALL)}
        assert {n: job.status for n, job in found.items()} == {
            n: model.status for n, model in self.jobs.items()
        }
        for number, model in self.jobs.items():
            assert found[number].fence == len(model.attempts)
            assert found[number].cancel_requested == model.is_cancelling

    @invariant()
    def every_attempt_was_ended_once(self) -> None:
        kept = {(a.job, a.fence): a.outcome for a in self.store.attempts()}
        model = {(n, i + 1): end for n, m in self.jobs.items() for i, end in enumerate(m.attempts)}
        assert kept == model
        ends = Counter(
            (e.job, e.fence)
            for e in self.store.events(limit=10**6)
            if e.type in ("job.completed", "job.failed", "job.retry_scheduled", "job.released")
            and e.fence
        )
        assert all(
            n == 1 for (number, fence), n in ends.items() if kept[number, fence] != "crashed"
        )

    @invariant()
    def the_counters_are_right(self) -> None:
        assert self.store.verify_counts(repair=False) == {}
        assert self.store.counts() == Counter(m.status for m in self.jobs.values())


StoreMachine.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=35,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestStoreMachine: Any = StoreMachine.TestCase
