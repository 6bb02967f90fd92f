"""What every store must do: a class of tests that any dialect runs by giving it a `store`.

::

    class TestSqlite(StoreContract):
        @pytest.fixture
        def store(self, clock): ...
"""

from __future__ import annotations

from array import array
from collections import Counter
from typing import Any

import pytest
from clocks import ManualClock

from vqkit import lifecycle
from vqkit.codec import content_hash, dumps
from vqkit.errors import LifecycleError, StoreError, UnknownName
from vqkit.job import STATUSES, Account, Attempt, Event, Job, JobSpec, Output, content_key
from vqkit.lifecycle import VERBS
from vqkit.outcome import Effect
from vqkit.policy import Decision
from vqkit.store.base import Claim, JobFilter, Runner, Store, Transition

ALL = JobFilter()
# What each verb carries; `None` times are "now".
CHANGES: dict[str, dict[str, Any]] = {
    "stage": {"stage": "rendering", "progress": 0.5},
    "log": {"message": "hello"},
    "step": {"name": "submit"},
    "complete": {"result_json": '"done"'},
    "retry": {"not_before_ms": None, "error_json": '{"type":"E"}'},
    "fail": {"error_json": '{"type":"E"}', "reason": "spent"},
    "snooze": {"not_before_ms": None},
}
OUTCOMES = {
    "complete": "completed",
    "retry": "error",
    "fail": "error",
    "snooze": "snoozed",
    "release": "released",
    "doubt": "crashed",
    "acknowledge_cancel": "cancelled",
}


def a_job(name: str | int, payload: dict[str, Any] | None = None, **more: Any) -> Job:
    payload = {"prompt": f"fox {name}"} if payload is None else payload
    return Job(0, f"id-{name}", dumps(payload), content_hash(payload), **more)


def in_sheet(name: str | int, payload: dict[str, Any] | None = None, **more: Any) -> Job:
    """A job of a row of the sheet "s", put as the batch "b"."""
    return a_job(name, payload, **{"source": "s", "batch": "b", "row": 2, **more})


def a_claim(owner: str = "me", limit: int = 500) -> Claim:
    return Claim(owner, lambda account: None, limit)


def claim(store: Store, owner: str = "me", limit: int = 500) -> list[Job]:
    return list(store.turn(claim=a_claim(owner, limit)).claimed)


def settle(store: Store, job: Job, verb: str = "complete", **change: Any) -> Transition:
    """A transition by the attempt that holds the job; applied, and returned for a second try."""
    change = {**CHANGES.get(verb, {}), **change}
    done = Transition(job.number, verb, job.fence, change, OUTCOMES.get(verb))
    store.turn([done])
    return done


def bring(store: Store, status: str, name: str = "x") -> Job:
    """A job that came to that status the regular way. Needs a free slot."""
    store.put([a_job(name, key=f"key-{name}", batch="b")])
    number = store.jobs(ALL)[-1].number
    if status == "cancelled":
        store.transition(JobFilter(numbers=(number,)), "cancel")
    elif status != "queued":
        (job,) = [job for job in claim(store) if job.number == number]
        roads = {"in_doubt": "doubt", "completed": "complete", "failed": "fail"}
        if status in roads:
            settle(store, job, roads[status])
    return store.job(number)


def everything(store: Store) -> dict[str, Any]:
    """All there is, to see that nothing has changed."""
    return {
        "jobs": store.jobs(ALL),
        "attempts": store.attempts(),
        "events": store.events(limit=10**6),
        "outputs": store.outputs(),
        "counts": store.counts(),
        "accounts": store.accounts(),
        "runners": store.runners(),
    }


class StoreContract:
    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def store(self, clock: ManualClock) -> Any:
        raise NotImplementedError("give an empty store that uses this clock")

    @pytest.fixture
    def accounts(self, store: Store) -> None:
        store.save_account(Account("a", "p", 2))
        store.save_account(Account("b", "p", 3))
        store.save_account(Account("c", "q", 1))

    @pytest.fixture(autouse=True)
    def counters_stay_true(self, store: Store) -> Any:
        yield
        assert store.verify_counts(repair=False) == {}

    # -- every verb in every status -----------------------------------------------------------

    @pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "claim"])
    def test_a_verb_writes_what_the_lifecycle_says(self, store, accounts, clock, verb) -> None:
        rule = VERBS[verb]
        for status in STATUSES:
            before = bring(store, status, f"{verb} {status}")
            seen = store.events(job=before.number)[-1].id
            clock.time_ms += 1000
            change = CHANGES.get(verb, {})
            expected, event = before, None
            if status in rule.sources:
                expected, event = lifecycle.apply(
                    before, verb, clock.time_ms, before.fence, **change
                )
            if rule.is_fenced:
                settle(store, before, verb)
            else:
                changed = store.transition(JobFilter(numbers=(before.number,)), verb, **change)
                asks = verb == "cancel" and status == "running"
                assert changed == ((before.number,) if status in rule.sources or asks else ())
                if asks:
                    expected, event = lifecycle.apply(before, "request_cancel", clock.time_ms)
            assert store.job(before.number) == expected, (verb, status)
            mine = [e._replace(id=0) for e in store.events(after=seen, job=before.number)]
            assert [e for e in mine if e.type != "job.late_result"] == ([event] if event else [])
            assert store.verify_counts(repair=False) == {}
            if expected.is_live:  # make room for the next
                settle(store, expected, "release")
            store.transition(JobFilter(numbers=(before.number,)), "cancel")

    def test_a_job_round_trips_with_every_field(self, store, clock) -> None:
        job = a_job(
            *("x", {"prompt": "狐 🦊\x00", "n": [1, 2.5, None]}),
            **{"batch": "b", "key": "k", "provider": "p", "pinned_account": "a", "priority": -3},
            **{"seed": 2**31 - 1, "sample": 2, "source": "rows.xlsx", "row": 7},
            **{"timeout_ms": 1500, "max_attempts": 9, "not_before_ms": 5, "expires_ms": 2**53},
        )
        added = store.put([job])
        now_ms = clock.time_ms
        assert (added.new, added.ids) == (1, ("id-x",))
        stored = job._replace(number=1, created_ms=now_ms, updated_ms=now_ms)
        assert store.job(1) == store.job("id-x") == stored

    # -- put ----------------------------------------------------------------------------------

    def test_the_same_key_and_payload_again_adds_nothing(self, store) -> None:
        store.put([a_job(1, {"n": 1}, key="k")])
        added = store.put([a_job(2, {"n": 1}, key="k"), a_job(3, {"n": 1}, key="k")])
        assert (added.new, added.existing, added.ids) == (0, 2, ("id-1", "id-1"))
        assert len(store.jobs(ALL)) == 1

    def test_a_changed_payload_reaches_a_job_that_never_started(self, store) -> None:
        store.put([a_job(1, {"n": 1}, key="k")])
        added = store.put([a_job(2, {"n": 2}, key="k", seed=5, source="s", row=4)])
        assert (added.new, added.changed, added.conflicts) == (0, 1, 0)
        job = store.job("id-1")
        assert (job.payload, job.seed, job.source, job.row) == ({"n": 2}, 5, "s", 4)
        assert [e.type for e in store.events()] == ["job.queued", "job.changed"]

    def test_of_two_changes_in_one_put_the_last_stays(self, store) -> None:
        store.put([a_job(1, {"n": 1}, key="k")])
        store.put([a_job(2, {"n": 2}, key="k"), a_job(3, {"n": 1}, key="k")])
        assert store.job("id-1").payload == {"n": 1}

    @pytest.mark.parametrize("status", [s for s in STATUSES if s not in ("queued", "cancelled")])
    def test_a_changed_payload_comes_too_late_once_started(self, store, accounts, status) -> None:
        before = bring(store, status)
        added = store.put([a_job("y", {"n": 2}, key=before.key)])
        assert (added.changed, added.conflicts) == (0, 1)
        assert store.job(before.number) == before

    def test_a_job_that_waits_for_its_second_try_keeps_its_payload(self, store, accounts) -> None:
        settle(store, bring(store, "running"), "retry")
        added = store.put([a_job("y", {"n": 2}, key="key-x")])
        assert (added.changed, added.conflicts) == (0, 1)
        assert store.job("id-x").payload == {"prompt": "fox x"}

    def test_a_put_may_be_repeated_after_an_unknown_commit(self, store) -> None:
        jobs = [a_job(1), a_job(2, key="k"), a_job(1)]
        assert (store.put(jobs).new, store.put(jobs).new) == (2, 0)
        assert [job.id for job in store.jobs(ALL)] == ["id-1", "id-2"]
        assert len(store.events()) == 2

    def test_equal_rows_of_a_sheet_are_jobs_of_their_own(self, store) -> None:
        keys = [content_key(JobSpec({"n": 1}), occurrence) for occurrence in range(3)]
        rows = [a_job(f"{i}", {"n": 1}, key=key) for i, key in enumerate(keys)]
        assert store.put(rows).new == 3
        assert store.put(rows).new == 0

    def test_a_put_of_thousands_keeps_their_order_and_counts_them(self, store) -> None:
        added = store.put([a_job(n, batch=f"b{n % 2}") for n in range(2100)])
        assert (added.new, len(added.ids)) == (2100, 2100)
        assert [job.id for job in store.jobs(ALL)] == [f"id-{n}" for n in range(2100)]
        assert store.counts() == {"queued": 2100}
        assert store.counts("b1") == {"queued": 1050}

    # -- who is claimed -----------------------------------------------------------------------

    # -- the rows of a sheet ----------------------------------------------------------------

    def test_a_changed_row_takes_the_job_that_nobody_has_begun(self, store) -> None:
        store.put([in_sheet(1, key="old", priority=1)])
        new = in_sheet(2, {"prompt": "owl"}, key="new", priority=7, provider="p", row=5)
        added = store.put_rows([new], {(5, 0): 1})
        assert (added.new, added.changed, added.beside) == (0, 1, 0)
        (job,) = store.jobs(ALL)
        assert (job.key, job.payload, job.priority, job.row) == ("new", {"prompt": "owl"}, 7, 5)
        assert job.lane == "provider:p"
        assert store.events()[-1].type == "job.changed"

    @pytest.mark.parametrize("status", ["running", "in_doubt", "completed", "failed", "cancelled"])
    def test_beside_a_job_that_was_begun_a_changed_row_is_a_job_of_its_own(
        self, store, accounts, status
    ) -> None:
        before = bring(store, status)
        store.put_rows([in_sheet(1, key=before.key, row=3)], {})  # a stranger's key: nothing
        added = store.put_rows([in_sheet(2, {"prompt": "owl"}, key="new", row=3)], {(3, 0): 1})
        assert (added.new, added.beside, added.changed) == (1, 1, 0)
        old, new = store.jobs(ALL)
        assert (old.status, old.payload_json, old.row) == (status, before.payload_json, None)
        assert (new.status, new.row) == ("queued", 3)
        event = next(e for e in store.events() if e.type == "job.superseded")
        assert (event.job, event.data["by"]) == (1, 2)
        assert store.verify_counts() == {}

    def test_a_key_begun_with_another_text_gets_a_version_that_is_put_once(
        self, store, accounts
    ) -> None:
        store.put_rows([in_sheet(1, key="k", row=3)], {})
        (job,) = claim(store)
        settle(store, job)
        for name in (2, 3):
            added = store.put_rows([in_sheet(name, {"prompt": "owl"}, key="k", row=3)], {})
            assert added.new == (name == 2)
        assert [j.row for j in store.jobs(ALL)] == [None, 3]
        assert str(store.job(2).key).startswith("k@")

    def test_a_job_learns_where_its_row_has_moved_and_that_it_is_gone(self, store) -> None:
        store.put_rows([in_sheet(1, key="k", row=3)], {})
        assert store.put_rows([in_sheet(2, {"prompt": "fox 1"}, key="k", row=9)], {}).existing == 1
        assert store.job(1).row == 9
        assert list(store.sheet_jobs("b", "s")) == [array("q", [n]) for n in (9, 1, 0)]
        store.leave_rows([1], "b", "s")
        store.leave_rows([1], "b", "s")
        assert store.job(1).row is None
        assert [e.type for e in store.events()] == ["job.queued", "job.row_gone"]
        assert not store.sheet_jobs("b", "s").rows

    def test_a_job_of_another_source_is_not_changed_by_a_row_of_its_key(self, store) -> None:
        store.put([a_job(1, key="k", source="other", row=3, batch="b")])
        added = store.put_rows([in_sheet(2, {"prompt": "owl"}, key="k", row=4)], {})
        assert (added.skipped, added.new, added.changed, added.conflicts) == (1, 0, 0, 0)
        assert added.problems[0].reason == (
            "its key 'k' is that of job 1 (other), which holds something else; give it another"
        )
        assert (store.job(1).payload, store.job(1).row) == ({"prompt": "fox 1"}, 3)

    def test_what_others_want_too_is_neither_changed_nor_cancelled(self, store) -> None:
        store.put_rows([in_sheet(1, key="k", row=3)], {})
        other = in_sheet(2, {"prompt": "fox 1"}, key="k", row=8)._replace(source="t", batch="c")
        assert store.put_rows([other], {}).existing == 1
        assert store.shares({1, 2}) == {1: {("t", "c"): 8}}
        assert store.rows_shared_by({"t"}) == {1: 8}
        assert list(store.sheet_jobs("b", "s")) == [array("q", [n]) for n in (3, 1, 3)]
        assert list(store.sheet_jobs("c", "t")) == [array("q", [n]) for n in (8, 1, 3)]
        added = store.put_rows([in_sheet(3, {"prompt": "owl"}, key="new", row=3)], {(3, 0): 1})
        assert (added.new, added.beside, added.changed) == (1, 1, 0)
        assert store.cancel_left([1]) == 0
        assert list(store.sheet_jobs("c", "t")) == [array("q", [n]) for n in (8, 1, 0)]
        store.leave_rows([1], "c", "t")
        assert (store.shares({1}), store.cancel_left([1, 2])) == ({}, 1)
        assert [job.status for job in store.jobs(ALL)] == ["cancelled", "queued"]
        store.prune_these([1])
        assert store.verify_counts() == {}

    @pytest.mark.parametrize("is_edited", [False, True])
    def test_a_job_belongs_to_the_sheet_that_remains(self, store, is_edited) -> None:
        store.put_rows([in_sheet(1, key="k", row=3)], {})
        other = in_sheet(2, {"prompt": "fox 1"}, key="k", row=8)._replace(source="t", batch="c")
        store.put_rows([other], {})
        if is_edited:
            store.put_rows([in_sheet(3, {"prompt": "owl"}, key="new", row=3)], {(3, 0): 1})
        else:
            store.leave_rows([1], "b", "s")
        job = store.job(1)
        assert (job.source, job.batch, job.row, store.shares({1})) == ("t", "c", 8, {})
        assert store.counts("c") == {"queued": 1}
        assert {"b", "c"} <= set(store.batches())
        assert store.verify_counts() == {}
        (event,) = [e for e in store.events() if e.type == "job.handed_over"]
        assert (event.job, event.data) == (1, {"source": "t", "row": 8, "was": "s"})
        new = other._replace(id="later", payload_json='{"n":1}', payload_hash="x")
        assert store.put_rows([new], {}).changed == 1
        assert store.job(1).payload == {"n": 1}

    def test_a_sheet_that_is_not_there_any_more_has_no_rows(self, store) -> None:
        store.put_rows([in_sheet(1, key="k", row=3)], {})
        other = in_sheet(2, {"prompt": "fox 1"}, key="k", row=8)._replace(source="t", batch="c")
        store.put_rows([other], {}, {"s"})
        assert store.sheet_jobs("c", "t").states.tolist() == [3]
        assert store.sheet_jobs("c", "t", {"s"}).states.tolist() == [0]
        new = other._replace(id="later", payload_json='{"n":1}', payload_hash="x")
        assert store.put_rows([new], {}, {"s"}).changed == 1
        job = store.job(1)
        assert (job.payload, job.source, job.batch, job.row) == ({"n": 1}, "t", "c", 8)
        assert store.shares({1}) == {}
        assert store.verify_counts() == {}

    @pytest.mark.parametrize("is_by_hand", [False, True])
    def test_a_job_cancelled_for_its_row_is_queued_again_by_it(self, store, is_by_hand) -> None:
        store.put_rows([in_sheet(1, key="k", row=3)], {})
        store.leave_rows([1], "b", "s")
        assert store.cancel_left([1]) == 1
        if is_by_hand:
            added = store.put([a_job(2, {"prompt": "fox 1"}, key="k")])
        else:
            added = store.put_rows([in_sheet(2, {"prompt": "fox 1"}, key="k", row=5)], {})
        assert (added.again, added.new, added.existing) == (1, 0, 0)
        job = store.job(1)
        assert (job.status, job.row, job.reason) == ("queued", None if is_by_hand else 5, None)
        assert store.verify_counts() == {}
        store.transition(ALL, "cancel", reason="by you")
        assert store.put_rows([in_sheet(3, {"prompt": "fox 1"}, key="k", row=5)], {}).again == 0

    def test_a_hand_does_not_change_what_a_sheet_has(self, store) -> None:
        store.put_rows([in_sheet(1, key="k", row=3)], {})
        added = store.put([a_job(2, {"prompt": "owl"}, key="k")])
        assert (added.skipped, added.changed, added.conflicts) == (1, 0, 0)
        assert store.job(1).payload == {"prompt": "fox 1"}

    def test_a_key_edited_twice_beside_what_others_have_is_one_job_more(self, store) -> None:
        store.put_rows([in_sheet(1, key="k", row=3)], {})
        mine = in_sheet(2, {"prompt": "fox 1"}, key="k", row=8)._replace(source="t", batch="c")
        store.put_rows([mine], {})
        for n in (1, 2, 2, 1):
            new = mine._replace(id=f"n{n}", payload_json=f'{{"n":{n}}}', payload_hash=f"hash {n}")
            store.put_rows([new], {})
        assert [job.payload for job in store.jobs(ALL)] == [{"prompt": "fox 1"}, {"n": 1}]
        assert store.sheet_jobs("c", "t").numbers.tolist() == [2]

    def test_a_pruned_job_is_wanted_by_nobody(self, store) -> None:
        store.put([a_job(1, key="k")])
        store.put_rows([in_sheet(2, {"prompt": "fox 1"}, key="k", row=3)], {})
        store.transition(ALL, "cancel")
        store.prune_these([1])
        assert store.rows_shared_by({"s"}) == {}

    def test_a_setting_is_changed_from_what_it_is(self, store) -> None:
        for total in (1, 3):
            assert store.change_setting("n", lambda n, more=total: (n or 0) + more) in (1, 4)
        assert store.setting("n") == 4

    def test_rows_put_again_after_an_unknown_commit_change_nothing(self, store) -> None:
        store.put_rows([in_sheet(1, key="old", row=3)], {})
        rows = [in_sheet(2, {"prompt": "owl"}, key="new", row=3), in_sheet(3, key="more", row=4)]
        store.put_rows(rows, {(3, 0): 1})
        before = everything(store)
        store.put_rows(rows, {(3, 0): 1})
        assert everything(store) == before

    def test_the_pace_is_that_of_completed_jobs(self, store, accounts, clock) -> None:
        store.put([a_job(n) for n in range(3)])
        for n, job in enumerate(claim(store)):
            clock.time_ms += 2000
            settle(store, job, "fail" if n == 2 else "complete")
        paced = store.pace().values()
        assert sum(n for n, _ in paced) == 2
        assert sum(n * seconds for n, seconds in paced) == 2 + 4

    def test_a_claim_marks_the_job_the_attempt_and_the_event(self, store, accounts, clock) -> None:
        store.put([a_job(1)])
        clock.time_ms += 5
        (job,) = claim(store)
        assert (job.status, job.stage, job.attempt, job.fence) == ("running", "assigned", 1, 1)
        assert (job.owner, job.account, job.started_ms) == ("me", "a", clock.time_ms)
        assert store.job(1) == job
        assert store.attempts() == [Attempt(1, 1, 1, "a", "me", clock.time_ms)]
        assert store.events()[-1].data == {"account": "a", "attempt": 1}
        assert (store.live_counts(), store.owners()) == ({"a": 1}, {"me"})

    def test_jobs_are_claimed_by_priority_then_first_come(self, store) -> None:
        store.save_account(Account("a", "p", 1))
        store.put([a_job(n, priority=p) for n, p in enumerate([0, 5, -1, 5, 0])])
        order = []
        while jobs := claim(store):
            order.append(jobs[0].id)
            settle(store, jobs[0])
        assert order == ["id-1", "id-3", "id-0", "id-4", "id-2"]

    def test_an_open_render_is_claimed_first_by_its_account_and_needs_no_slot(self, store) -> None:
        store.save_account(Account("a", "p", 1))
        store.put([a_job("open"), a_job("urgent", priority=99)])
        (urgent,) = claim(store)
        settle(store, urgent, "release")
        store.transition(JobFilter(ids=("id-urgent",)), "cancel")
        (opened,) = claim(store)
        settle(store, opened, "doubt")
        store.transition(JobFilter(ids=("id-open",)), "resolve", handle_json='"render-9"')
        store.transition(JobFilter(ids=("id-urgent",)), "requeue")
        store.save_account(Account("b", "p", 1))
        assert store.live_counts() == {"a": 1}
        claimed = {job.id: job.account for job in claim(store)}
        assert claimed == {"id-open": "a", "id-urgent": "b"}
        assert store.live_counts() == {"a": 1, "b": 1}

    def test_an_open_render_keeps_its_slot_while_it_waits(self, store, clock) -> None:
        store.save_account(Account("a", "p", 1))
        store.put([a_job("open")])
        (job,) = claim(store)
        settle(store, job, "doubt")
        store.transition(ALL, "resolve", handle_json='"render-9"')
        (job,) = claim(store)
        settle(store, job, "snooze", not_before_ms=clock.time_ms + 1000)
        store.put([a_job("next")])
        assert claim(store) == []
        clock.time_ms += 1000
        assert [job.id for job in claim(store)] == ["id-open"]

    def test_a_job_goes_only_where_it_may(self, store, accounts) -> None:
        store.put(
            [
                a_job("nobody", provider="runwy", priority=99),
                a_job("gone", pinned_account="z", priority=99),
                a_job("q", provider="q"),
                a_job("b", pinned_account="b"),
                a_job("any"),
            ]
        )
        assert store.waiting_lanes() == [
            "",
            "account:b",
            "account:z",
            "provider:q",
            "provider:runwy",
        ]
        assert store.has_work_for(["provider:q"])
        assert not store.has_work_for(["provider:x", "account:a"])
        assert {job.id: job.account for job in claim(store)} == {
            "id-q": "c",
            "id-b": "b",
            "id-any": "a",
        }
        assert store.counts() == {"queued": 2, "running": 3}

    def test_a_job_waits_until_its_time(self, store, accounts, clock) -> None:
        due_ms = clock.time_ms + 60_000
        store.put([a_job("later", not_before_ms=due_ms, priority=9), a_job("now")])
        turn = store.turn(claim=a_claim())
        assert ([job.id for job in turn.claimed], turn.next_ms) == (["id-now"], due_ms)
        assert store.has_work_for([""])
        clock.time_ms = due_ms - 1
        assert claim(store) == []
        clock.time_ms = due_ms
        assert [job.id for job in claim(store)] == ["id-later"]

    def test_a_job_past_its_time_is_cancelled_and_never_run(self, store, clock) -> None:
        store.save_account(Account("a", "p", 900))
        expires_ms = clock.time_ms + 1000
        store.put([a_job(n, expires_ms=expires_ms) for n in range(700)])
        assert store.turn(claim=a_claim(limit=1)).next_ms == expires_ms
        clock.time_ms = expires_ms
        left = None
        while left is None or left.next_ms:
            left = store.turn(claim=a_claim(limit=900))
            assert left.claimed == ()
        assert store.counts() == {"running": 1, "cancelled": 699}
        assert store.job(700).reason == "expired"
        assert store.events(job=700)[-1].type == "job.expired"

    def test_a_paused_queue_settles_and_hands_out_nothing(self, store, accounts) -> None:
        store.put([a_job(1), a_job(2), a_job(3, expires_ms=1)])
        job = claim(store, limit=1)[0]
        store.set_setting("paused", True, event="queue.paused")
        turn = store.turn([Transition(job.number, "complete", 1, {}, "completed")], a_claim())
        assert (turn.is_paused, turn.claimed) == (True, ())
        assert store.counts() == {"completed": 1, "queued": 1, "cancelled": 1}
        store.set_setting("paused", False)
        assert len(claim(store)) == 1

    def test_no_account_ever_has_more_than_its_capacity(self, store, accounts) -> None:
        store.put([a_job(n) for n in range(20)])
        claimed = claim(store, "me") + claim(store, "other")
        assert Counter(job.account for job in claimed) == {"a": 2, "b": 3, "c": 1}
        assert store.live_counts() == {"a": 2, "b": 3, "c": 1}
        store.save_account(Account("b", "p", 1))  # lowered below what runs
        for job in [job for job in claimed if job.account == "b"][:2]:
            settle(store, job)
        assert claim(store) == []

    # -- limits of each model ------------------------------------------------------------------

    def claim_by_model(self, store: Store, limit: int = 500) -> dict[str, Counter[str]]:
        """What a claim gives out, by account and model, where the provider p limits models."""
        wish = Claim("me", lambda account: None, limit, by_model={"p"})
        found: dict[str, Counter[str]] = {}
        for job in store.turn(claim=wish).claimed:
            found.setdefault(job.account or "", Counter())[job.model] += 1
        return found

    def test_each_model_has_slots_of_its_own_and_a_full_one_holds_up_nobody(self, store) -> None:
        store.save_account(
            Account("a", "p", 2, limits_json=dumps({"model_capacity": {"gen4": 3, "gen1": 1}}))
        )
        many = [a_job(f"4-{n}", {"n": n, "model": "gen4"}, priority=5) for n in range(50)]
        store.put(many)
        store.put([a_job(f"3-{n}", {"n": n, "model": "gen3"}) for n in range(4)])
        store.put([a_job(f"0-{n}", {"n": n, "model": None}) for n in range(4)])
        store.put([a_job(f"1-{n}", {"n": n, "model": "gen1"}, provider="p") for n in range(4)])
        assert self.claim_by_model(store) == {"a": {"gen4": 3, "gen3": 2, "": 2, "gen1": 1}}
        assert self.claim_by_model(store) == {}
        for job in store.jobs(JobFilter(status=("running",))):
            if job.model in ("gen3", "gen1"):
                settle(store, job)
        assert self.claim_by_model(store) == {"a": {"gen3": 2, "gen1": 1}}
        assert store.live_by_model() == {
            ("a", "gen4"): 3,
            ("a", "gen3"): 2,
            ("a", ""): 2,
            ("a", "gen1"): 1,
        }

    def test_a_provider_that_limits_models_is_noted_with_its_accounts(self, store) -> None:
        store.save_account(Account("a", "p", 1))
        store.save_account(Account("c", "q", 1))
        self.claim_by_model(store)
        assert [a.is_by_model for a in store.accounts()] == [True, False]
        store.turn(claim=Claim("me", lambda a: "not here" if a.name == "a" else None))
        assert store.accounts()[0].is_by_model  # who does not know the provider says nothing
        claim(store)
        assert not store.accounts()[0].is_by_model

    def test_jobs_of_a_lane_go_to_accounts_with_and_without_limits_of_models(self, store) -> None:
        store.save_account(Account("a", "p", 1))
        store.save_account(Account("c", "q", 2))
        store.put([a_job(n, {"n": n, "model": "x" if n < 6 else "y"}) for n in range(8)])
        assert self.claim_by_model(store) == {"a": {"x": 1, "y": 1}, "c": {"x": 2}}

    def test_models_get_no_more_than_a_claim_may_take_in_all(self, store) -> None:
        store.save_account(Account("a", "p", 9))
        store.put([a_job(n, {"n": n, "model": f"m{n % 4}"}) for n in range(40)])
        taken = [sum(self.claim_by_model(store, 5)["a"].values()) for _ in range(8)]
        assert taken == [5, 5, 5, 5, 5, 5, 5, 1]

    def test_accounts_of_a_group_share_the_limit_of_each_model(self, store) -> None:
        group = {"group": "g", "model_capacity": {"x": 2}}
        store.save_account(Account("a", "p", 3, limits_json=dumps(group)))
        store.save_account(Account("b", "p", 3, limits_json=dumps({"group": "g"})))
        store.put([a_job(n, {"n": n, "model": "xy"[n % 2]}) for n in range(20)])
        found = self.claim_by_model(store)
        assert sum(found.values(), Counter()) == {"x": 2, "y": 3}
        assert self.claim_by_model(store) == {}

    def test_a_model_that_was_refused_rests_and_the_others_do_not(self, store, clock) -> None:
        store.save_account(Account("a", "p", 2))
        store.put([a_job(n, {"n": n, "model": "xy"[n % 2]}) for n in range(20)])
        self.claim_by_model(store)
        until_ms = clock.time_ms + 60_000
        for job in store.jobs(JobFilter(status=("running",))):
            effect = Effect(until_ms, "too many requests", model="x") if job.model == "x" else None
            verb = "complete" if effect is None else "release"
            store.turn([Transition(job.number, verb, job.fence, {}, "released", effect=effect)])
        result = store.turn(claim=Claim("me", lambda a: None, by_model={"p"}))
        assert [job.model for job in result.claimed] == ["y", "y"]
        assert result.next_ms == until_ms
        assert ["too many requests" in why for why in result.why.values()] == [True]
        assert store.accounts()[0].parked_until_ms is None
        parked = [e for e in store.events() if e.type == "account.parked"]
        assert [e.data for e in parked] == [
            {"name": "a", "model": "x", "reason": "too many requests"}
        ]
        clock.time_ms = until_ms
        assert self.claim_by_model(store) == {"a": {"x": 2}}

    def test_a_limit_is_learned_for_the_model_that_was_full(self, store, clock) -> None:
        store.save_account(Account("a", "p", 4))
        store.put([a_job(n, {"n": n, "model": "xy"[n % 2]}) for n in range(40)])
        assert self.claim_by_model(store) == {"a": {"x": 4, "y": 4}}
        full = next(j for j in store.jobs(JobFilter(status=("running",))) if j.model == "x")
        effect = Effect(is_full=True, model="x")
        store.turn([Transition(full.number, "release", full.fence, {}, "released", effect=effect)])
        assert self.claim_by_model(store) == {}
        for job in store.jobs(JobFilter(status=("running",))):
            settle(store, job)
        assert self.claim_by_model(store) == {"a": {"x": 3, "y": 4}}
        clock.time_ms += 60_000
        assert self.claim_by_model(store) == {"a": {"x": 1}}

    def test_open_renders_of_a_full_model_are_collected_and_keep_their_slots(self, store) -> None:
        store.save_account(Account("a", "p", 1))
        store.put([a_job(n, {"n": n, "model": "x"}) for n in range(3)])
        self.claim_by_model(store)
        (job,) = store.jobs(JobFilter(status=("running",)))
        settle(store, job, "step", name="render", handle_json='{"id":1}')
        settle(store, job, "release")
        assert store.live_by_model() == {("a", "x"): 1}
        assert self.claim_by_model(store) == {"a": {"x": 1}}
        assert store.job(job.number).status == "running"

    @pytest.mark.parametrize("may_collect", [True, False])
    def test_a_parked_account_gets_nothing_new_and_collects_what_is_paid_for(
        self, store, may_collect: bool
    ) -> None:
        store.save_account(Account("a", "p", 1))
        store.put([a_job(n) for n in range(3)])
        (job,) = store.turn(claim=a_claim()).claimed
        settle(store, job, "step", name="render", handle_json='{"id":1}')
        settle(store, job, "release")
        parked = Claim("me", lambda _: "too fast", may_collect=lambda _: may_collect)
        turn = store.turn(claim=parked)
        assert [j.number for j in turn.claimed] == ([job.number] if may_collect else [])
        assert turn.why == {"a": "too fast"}

    def test_a_budget_that_is_used_up_keeps_no_paid_render_from_being_collected(
        self, store
    ) -> None:
        limits = {"price": 600_000, "budget": 1_000_000}
        store.save_account(Account("a", "p", 2, limits_json=dumps(limits)))
        store.put([a_job(n) for n in range(3)])
        (job,) = store.turn(claim=a_claim()).claimed
        settle(store, job, "step", name="render", handle_json='{"id":1}')
        settle(store, job, "release")
        turn = store.turn(claim=a_claim())
        assert "has $0.40 left" in turn.why["a"]
        assert [j.number for j in turn.claimed] == [job.number]

    def test_a_changed_payload_changes_the_model_it_waits_for(self, store) -> None:
        store.save_account(Account("a", "p", 1))
        store.put([a_job(1, {"model": "x"}, key="k")])
        store.put([a_job(2, {"model": "y"}, key="k")])
        assert self.claim_by_model(store) == {"a": {"y": 1}}
        assert store.live_by_model() == {("a", "y"): 1}

    def test_accounts_take_turns_within_the_limit_of_a_claim(self, store, accounts) -> None:
        store.put([a_job(n) for n in range(20)])
        turn = store.turn(claim=a_claim(limit=4))
        assert [job.account for job in turn.claimed] == ["a", "b", "c", "a"]
        assert turn.is_limited
        rest = store.turn(claim=a_claim())
        assert ([job.account for job in rest.claimed], rest.is_limited) == (["b", "b"], False)

    def test_an_account_that_may_not_work_says_why(self, store, accounts, clock) -> None:
        back_ms = clock.time_ms + 9000
        store.save_account(Account("a", "p", 2, parked_until_ms=back_ms))
        store.put([a_job(n) for n in range(9)])
        why = {"a": "no funds", "c": "no key"}
        turn = store.turn(claim=Claim("me", lambda account: why.get(account.name)))
        assert {job.account for job in turn.claimed} == {"b"}
        assert (turn.why, turn.next_ms) == (why, back_ms)
        assert [account.name for account in turn.accounts] == ["a", "b", "c"]

    # -- who may settle -----------------------------------------------------------------------

    def test_a_stale_attempt_changes_nothing_and_its_result_is_kept(self, store, accounts) -> None:
        job = bring(store, "running")
        store.reclaim("me", lambda job: (Decision("reclaim", {"to": "queued"}), ()))
        (again,) = claim(store, "other")
        assert again.fence == job.fence + 1
        output = Output(job.number, job.fence, "late.mp4", 5, "ab")
        change = {"result_json": '"late"'}
        late = Transition(job.number, "complete", job.fence, change, "completed", (output,))
        turn = store.turn([late, Transition(job.number, "stage", job.fence, {"stage": "x"})])
        assert turn.stale == (late,)
        assert store.job(job.number) == again
        first, second = store.attempts(job.number)
        assert (first.outcome, first.late_result_json) == ("reclaimed", '"late"')
        assert (second.outcome, second.late_result_json) == (None, None)
        assert store.outputs() == [output]
        assert store.events()[-1].type == "job.late_result"
        settle(store, again)
        assert store.job(job.number).result == "done"

    def test_a_result_that_comes_after_its_attempt_was_given_up_is_kept(
        self, store, accounts
    ) -> None:
        job = bring(store, "running")
        settle(store, job, "retry")
        before = store.job(job.number)
        late = Transition(job.number, "complete", job.fence, CHANGES["complete"], "late")
        assert store.turn([late]).stale == (late,)
        assert store.job(job.number) == before
        (attempt,) = store.attempts()
        assert (attempt.outcome, attempt.late_result_json) == ("error", '"done"')

    @pytest.mark.parametrize("verb", OUTCOMES)
    def test_a_transition_repeated_after_an_unknown_commit_is_recognised(
        self, store, accounts, verb
    ) -> None:
        done = settle(store, bring(store, "running"), verb)
        before = everything(store)
        turn = store.turn([done])
        assert (turn.repeated, turn.stale) == ((done,), ())
        assert everything(store) == before

    def test_a_transition_of_a_job_that_was_pruned_changes_nothing(self, store, accounts) -> None:
        late = Transition(99, "complete", 1, CHANGES["complete"], "completed")
        assert store.turn([late]).stale == (late,)
        assert store.events(after=3) == []

    def test_a_turn_takes_many_steps_of_one_job(self, store, accounts) -> None:
        job = bring(store, "running")
        steps = [
            Transition(job.number, "stage", job.fence, {"stage": "rendering"}),
            Transition(job.number, "log", job.fence, {"message": "half", "level": "warning"}),
            Transition(job.number, "complete", job.fence, CHANGES["complete"], "completed"),
            Transition(job.number, "log", job.fence, {"message": "too late"}),
        ]
        store.turn(steps)
        tail = store.events(job=job.number, newest=True, limit=3)
        assert [e.type for e in tail] == ["job.stage_changed", "job.logged", "job.completed"]
        assert (tail[1].level, tail[1].data) == ("warning", {"message": "half"})
        assert store.job(job.number).stage is None

    def test_a_clock_that_stands_at_zero_is_a_clock_like_any_other(
        self, store, accounts, clock
    ) -> None:
        clock.time_ms = 0
        job = bring(store, "running")
        settle(store, job, "log")
        settle(store, job, "log")
        settle(store, job)
        assert store.job(job.number).finished_ms == 0

    def test_a_settled_attempt_is_closed_with_its_outcome_and_error(self, store, accounts) -> None:
        settle(store, bring(store, "running", "1"), "fail")
        settle(store, bring(store, "running", "2"), "complete")
        ends = [(a.outcome, a.error_json, a.finished_ms is None) for a in store.attempts()]
        assert ends == [("error", '{"type":"E"}', False), ("completed", None, False)]
        assert store.account_counts() == {"a": {"failed": 1, "completed": 1}}

    def test_a_cancel_beats_a_retry_in_the_same_turn(self, store, accounts) -> None:
        job = bring(store, "running")
        assert store.transition(ALL, "cancel", reason="by you") == (job.number,)
        assert store.turn(claim=a_claim()).cancels == ((job.number, job.fence),)
        assert store.turn(claim=a_claim("other")).cancels == ()
        settle(store, job, "retry")
        after = store.job(job.number)
        assert (after.status, after.reason) == ("cancelled", "by you")
        assert store.attempts()[-1].outcome == "cancelled"
        assert claim(store) == []

    def test_asking_twice_to_cancel_is_asking_once(self, store, accounts) -> None:
        bring(store, "running")
        assert len(store.transition(ALL, "cancel")) == 1
        assert store.transition(ALL, "cancel") == ()

    def test_a_verb_reaches_all_chosen_jobs_however_many(self, store, accounts) -> None:
        store.put([a_job(n, batch=f"b{n % 2}") for n in range(2300)])
        assert len(store.transition(JobFilter(batch="b1"), "cancel")) == 1150
        assert len(store.transition(JobFilter(batch="b0", limit=1050), "cancel")) == 1050
        assert store.counts() == {"cancelled": 2200, "queued": 100}
        assert len(store.transition(JobFilter(status=("cancelled",)), "requeue")) == 2200
        assert store.counts() == {"queued": 2300}

    # -- dead owners ----------------------------------------------------------------------------

    def test_a_dead_owners_jobs_are_taken_over_and_no_others(self, store, accounts) -> None:
        store.put([a_job(n) for n in range(6)])
        mine = claim(store, "dead", limit=4)
        theirs = claim(store, "alive")
        store.transition(JobFilter(numbers=(mine[3].number,)), "cancel")
        store.save_runner(Runner("dead", 1, "h", "boot", 1, 1))
        output = Output(mine[0].number, mine[0].fence, "x.mp4", 3, "ab")
        ends = {
            mine[0].number: ({"to": "completed", "result_json": "1"}, (output,)),
            mine[1].number: ({"to": "failed", "error_json": '{"type":"Crashed"}'}, ()),
        }

        def decide(job: Job) -> Any:
            change, made = ends.get(job.number, ({"to": "queued"}, ()))
            return Decision("reclaim", change), made

        counts = store.reclaim("dead", decide)
        assert counts == {"completed": 1, "failed": 1, "queued": 1, "cancelled": 1}
        after = [store.job(job.number) for job in mine]
        assert [job.status for job in after] == ["completed", "failed", "queued", "cancelled"]
        assert (after[2].attempt, after[2].deaths) == (0, 1)
        assert [a.outcome for a in store.attempts() if a.runner == "dead"] == [
            *("completed", "reclaimed", "reclaimed", "reclaimed")
        ]
        assert store.outputs() == [output]
        assert (store.runners(), store.owners()) == ([], {"alive"})
        assert [store.job(job.number) for job in theirs] == theirs

    # -- all or nothing ---------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "step", ["_insert_events", "_count", "_insert_attempts", "_update_jobs"]
    )
    def test_a_failure_in_the_middle_leaves_nothing(
        self, store, accounts, monkeypatch, step
    ) -> None:
        job = bring(store, "running")
        store.put([a_job("next")])
        before = everything(store)
        real = getattr(store, step)

        def fail(*args: Any) -> None:
            real(*args)
            raise RuntimeError("pulled the plug")

        with monkeypatch.context() as patch:
            patch.setattr(store, step, fail)
            done = Transition(job.number, "complete", job.fence, {}, "completed")
            with pytest.raises(RuntimeError, match="plug"):
                store.turn([done], a_claim(), Runner("me", 1, "h", "b", 1, 1))
        assert everything(store) == before
        assert store.turn([done]).stale == ()

    def test_a_row_changed_by_somebody_else_stops_the_turn(
        self, store, accounts, monkeypatch
    ) -> None:
        job = bring(store, "running")
        stale_read = {job.number: job._replace(fence=job.fence + 1)}
        monkeypatch.setattr(store, "_jobs_by_number", lambda numbers: stale_read)
        with pytest.raises(StoreError, match="something else than vqkit"):
            store.turn([Transition(job.number, "complete", job.fence + 1, {}, "completed")])
        monkeypatch.undo()
        assert store.job(job.number) == job

    def test_a_verb_nobody_knows_stops_the_turn(self, store, accounts) -> None:
        job = bring(store, "running")
        with pytest.raises(LifecycleError, match="no verb 'finish'"):
            store.turn([Transition(job.number, "finish", job.fence)])

    # -- counters, pruning, the rest -------------------------------------------------------

    def test_counters_that_were_tampered_with_are_found_and_put_right(self, store) -> None:
        store.put([a_job(1, batch="b")])
        with store.transaction():
            store._count({("batch", "b", "queued"): 4, ("batch", "ghost", "failed"): 2})
        wrong = {("batch", "b", "queued"): (5, 1), ("batch", "ghost", "failed"): (2, 0)}
        assert store.verify_counts(repair=False) == wrong
        assert store.verify_counts() == wrong
        assert store.verify_counts() == {}
        assert store.counts() == {"queued": 1}

    def test_pruning_takes_all_that_belongs_to_a_job_and_no_more(
        self, store, accounts, clock
    ) -> None:
        gone = bring(store, "completed", "old")
        kept = [bring(store, status, f"{status}2") for status in ("failed", "queued")]
        with store.transaction():
            store._insert_outputs([Output(j.number, 1, "x.mp4", 1, "ab") for j in (gone, kept[0])])
        clock.time_ms += 1000
        assert store.prune(clock.time_ms - 1000, ("completed", "failed")) == 0
        assert store.prune(clock.time_ms, ("completed", "cancelled")) == 1
        with pytest.raises(UnknownName, match=f"no job {gone.number} in this queue"):
            store.job(gone.number)
        assert store.attempts(gone.number) == store.events(job=gone.number) == []
        assert store.outputs(gone.number) == []
        assert store.jobs(ALL) == kept
        assert len(store.outputs()) == len(store.attempts(kept[0].number)) == 1
        assert store.counts() == {"failed": 1, "queued": 1}

    def test_pruning_takes_no_more_than_it_is_told(self, store, clock) -> None:
        store.put([a_job(n) for n in range(1200)])
        store.transition(ALL, "cancel")
        clock.time_ms += 1
        assert store.prune(clock.time_ms, ("cancelled",), at_most=7) == 7
        assert store.jobs(JobFilter(limit=1))[0].id == "id-7"
        assert store.prune(clock.time_ms, ("cancelled",)) == 1193

    def test_a_number_is_never_given_twice(self, store, clock) -> None:
        store.put([a_job(1)])
        store.transition(ALL, "cancel")
        store.prune(clock.time_ms + 1, ("cancelled",))
        store.put([a_job(2)])
        assert [job.number for job in store.jobs(ALL)] == [2]

    def test_jobs_are_chosen_by_every_part_of_a_filter(self, store, accounts) -> None:
        store.put([a_job(n, batch="b" if n < 3 else "c") for n in range(8)])
        claimed = claim(store, limit=2)

        def chosen(**by: Any) -> list[str]:
            return [job.id.removeprefix("id-") for job in store.jobs(JobFilter(**by))]

        assert chosen(status=("running",)) == ["0", "1"]
        assert chosen(status=("running", "queued"), batch="b") == ["0", "1", "2"]
        assert chosen(account="b", owner="me") == ["1"]
        assert chosen(numbers=(3, 1), ids=("id-0", "id-2")) == ["0", "2"]
        assert chosen(after=2, limit=2) == ["2", "3"]
        assert chosen(newest=True, limit=2) == ["7", "6"]
        assert chosen(numbers=()) == chosen(status=("no'body",)) == []
        assert [len(page) for page in store.iter_jobs(JobFilter(status=("queued",)))] == [6]
        assert claimed == store.jobs(JobFilter(owner="me"))

    def test_jobs_stand_in_the_order_of_their_sheets_rows(self, store) -> None:
        sheet = {"source": "foxes.xlsx[Shots]", "batch": "b"}
        jobs = [
            a_job(0),
            a_job(1, row=2, **sheet),
            a_job(2, row=4, **sheet),
            a_job(3, row=1, source="dataframe"),
            a_job(4, row=4, sample=1, **sheet),
            a_job(5, row=3, **sheet),
            a_job(6, row=1, source="dataframe"),
            a_job(7, row=1, source="foxes.xlsx[Shots]", batch="another"),
            a_job(8, **sheet),
        ]
        store.put(jobs)
        assert store.numbers_by_source() == [1, 2, 6, 3, 5, 9, 4, 7, 8]

    def test_events_are_followed_by_id(self, store) -> None:
        for n in range(5):
            store.log(Event("note", data_json=dumps({"n": n})))
        events = store.events(limit=2)
        assert [e.data["n"] for e in events] == [0, 1]
        assert [e.data["n"] for e in store.events(after=events[-1].id)] == [2, 3, 4]
        assert [e.data["n"] for e in store.events(newest=True, limit=2)] == [3, 4]

    def test_settings_keep_json_and_a_missing_one_its_default(self, store) -> None:
        assert store.setting("paused") is None
        assert store.setting("retention_s", 60) == 60
        store.set_setting("budget", {"day": 5.5}, event="budget.set")
        store.set_setting("budget", {"day": 6.5})
        assert store.setting("budget") == {"day": 6.5}
        assert [e.type for e in store.events()] == ["budget.set"]

    def test_accounts_are_kept_whole_and_replaced_by_name(self, store) -> None:
        account = Account("b", "p", 3, "env:KEY", False, 9, "no funds", '{"per_minute":5}')
        for each in (Account("z", "q"), Account("b", "q"), account):
            store.save_account(each)
        assert store.accounts() == [account, Account("z", "q")]
        with pytest.raises(StoreError):
            store.save_account(Account("b", "p", 0))
        assert store.accounts()[0] == account

    def test_runners_are_kept_renewed_and_forgotten(self, store, clock) -> None:
        old, new = Runner("r2", 1, "h", "boot", 5, 10), Runner("r1", 2, "h", "boot", 6, 20)
        store.save_runner(new)
        store.save_runner(old, event=Event("run.started"))
        store.turn(runner=new._replace(state="failed", error="x", health_json='{"why":{}}'))
        assert [(r.id, r.state, r.updated_ms) for r in store.runners()] == [
            ("r2", "starting", clock.time_ms),
            ("r1", "failed", clock.time_ms),
        ]
        store.forget_runner("r2")
        assert [r.id for r in store.runners()] == ["r1"]
        assert store.events()[-1].type == "run.started"

    def test_an_unknown_job_is_named(self, store) -> None:
        for name in (5, "id-5"):
            with pytest.raises(UnknownName, match=f"no job {name!r} in this queue"):
                store.job(name)

    def test_jobs_are_chosen_up_to_a_number_and_by_when_they_ended(self, store, clock) -> None:
        store.save_account(Account("a", "p", 5))
        assert store.last_number() == 0
        bring(store, "failed", "early")
        by_ms = clock.now_ms()
        clock.time_ms += 1
        bring(store, "failed", "late")
        numbers = [job.number for job in store.jobs(ALL)]
        assert store.last_number() == numbers[-1]
        for chosen in (JobFilter(upto=numbers[0]), JobFilter(ended_by_ms=by_ms)):
            assert [job.number for job in store.jobs(chosen)] == numbers[:1]
        store.transition(JobFilter(status=("failed",), ended_by_ms=by_ms), "requeue")
        assert [job.status for job in store.jobs(ALL)] == ["queued", "failed"]
        store.prune_these(numbers[1:])
        assert store.last_number() == numbers[-1]

    def test_an_example_is_what_the_newest_step_of_that_name_gave(self, store) -> None:
        store.save_account(Account("a", "p", 5))
        assert store.example_value("submit") is None
        store.put([a_job(n) for n in range(3)])
        for job in claim(store):
            step, _ = store.begin_step(
                job.number, job.fence, "submit", is_paid=True, request_json=None
            )
            if job.number < 3:
                store.end_step(step, job.fence, dumps({"id": job.number}))
        assert store.example_value("submit") == dumps({"id": 2})
        assert store.example_value("wait") is None
        assert store.example_value("submit", accounts=["a"], but=2) == dumps({"id": 1})
        assert store.example_value("submit", accounts=["b"]) is None

    def test_what_a_word_has_ended_is_found_while_its_job_waits_or_has_failed(self, store) -> None:
        store.save_account(Account("a", "p", 5))
        store.put([a_job(n) for n in range(3)])
        for job in claim(store):
            store.begin_step(job.number, job.fence, "submit", is_paid=True, request_json=None)
            settle(store, job, "doubt", reason="lost")
            if job.number < 3:
                store.resolve(job.number, step="submit", value_json="1", reason="by you")
        assert store.said_steps({1, 2, 3, 9}, "by you") == [(1, "submit"), (2, "submit")]
        assert store.said_steps({2}, "by you") == [(2, "submit")]
        assert store.said_steps({1, 2}, "by another") == []
