"""The table of DESIGN section 4, written down a second time, and what always holds."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vqkit import lifecycle
from vqkit.errors import LifecycleError, StaleFence
from vqkit.job import STATUSES, TERMINAL, Job
from vqkit.lifecycle import VERBS, apply

NOW = 1_000_000
# verb: (may start from, may lead to, needs the newest fence, event)
TABLE: dict[str, tuple[set[str], set[str], bool, str]] = {
    "claim": ({"queued"}, {"running"}, False, "job.started"),
    "stage": ({"running"}, {"running"}, True, "job.stage_changed"),
    "log": ({"running"}, {"running"}, True, "job.logged"),
    "begin": ({"running"}, {"running"}, True, "job.step_begun"),
    "step": ({"running"}, {"running"}, True, "job.step_done"),
    "renew": ({"running"}, {"running"}, True, "job.renewed"),
    "complete": ({"running"}, {"completed"}, True, "job.completed"),
    "retry": ({"running"}, {"queued"}, True, "job.retry_scheduled"),
    "fail": ({"running"}, {"failed"}, True, "job.failed"),
    "snooze": ({"running"}, {"queued"}, True, "job.snoozed"),
    "release": ({"running"}, {"queued"}, True, "job.released"),
    "doubt": ({"running"}, {"in_doubt"}, True, "job.in_doubt"),
    "resolve": ({"in_doubt"}, {"queued", "failed"}, False, "job.resolved"),
    "reclaim": ({"running"}, {"queued", "failed", "completed", "in_doubt"}, False, "job.reclaimed"),
    "cancel": ({"queued", "in_doubt"}, {"cancelled"}, False, "job.cancelled"),
    "request_cancel": ({"running"}, {"running"}, False, "job.cancel_requested"),
    "acknowledge_cancel": ({"running"}, {"cancelled"}, True, "job.cancelled"),
    "requeue": ({"failed", "cancelled", "completed"}, {"queued"}, False, "job.requeued"),
    "expire": ({"queued"}, {"cancelled"}, False, "job.expired"),
}
CHANGES: dict[str, dict[str, Any]] = {
    "claim": {"owner": "runner-1", "account": "studio-a"},
    "stage": {"stage": "rendering", "progress": 0.5},
    "log": {"message": "hello"},
    "step": {"name": "submit"},
    "complete": {"result_json": '"done"'},
    "retry": {"not_before_ms": NOW + 5000},
}


def job_in(status: str, **more: Any) -> Job:
    """A job that came to that status the regular way."""
    roads = {
        "queued": [],
        "running": ["claim"],
        "in_doubt": ["claim", "doubt"],
        "completed": ["claim", "complete"],
        "failed": ["claim", "fail"],
        "cancelled": ["cancel"],
    }
    job = Job(7, "id7", '{"prompt":"a fox"}', **more)
    for verb in roads[status]:
        job, _ = apply(job, verb, NOW, job.fence, **CHANGES.get(verb, {}))
    assert job.status == status
    return job


def check_invariants(job: Job) -> None:
    """What the CHECK constraints of the database say again."""
    assert (job.status in TERMINAL) == (job.finished_ms is not None)
    assert (job.status == "running") == (job.owner is not None)
    assert job.status != "running" or (job.account is not None and job.fence > 0)
    assert job.attempt >= 0
    assert job.crashes >= 0
    assert job.attempt + job.crashes + job.deaths <= job.fence
    assert not (job.status == "queued" and job.cancel_requested)
    assert not (job.is_open and job.account is None)
    assert job.status == "running" or job.stage is None


def test_the_verbs_are_those_of_the_design() -> None:
    known = {v: (set(r.sources), r.is_fenced, r.event) for v, r in VERBS.items()}
    assert known == {
        v: (sources, fenced, event) for v, (sources, _, fenced, event) in TABLE.items()
    }


def test_the_table_at_the_top_of_the_module_lists_the_same() -> None:
    rows = re.findall(r"^([a-z_, ]+?)  +(.*→.*?)  +(.*)$", lifecycle.__doc__ or "", re.MULTILINE)
    listed = {
        verb: (ends, "yes" in rest, rest.split()[-1])
        for verbs, ends, rest in rows
        for verb in verbs.split(", ")
        if verb != "verb"
    }
    assert listed.keys() == TABLE.keys()
    for verb, (ends, fenced, event) in listed.items():
        sources, _, is_fenced, known_event = TABLE[verb]
        before = ends.partition("→")[0]
        named = TERMINAL if "terminal" in before else {s for s in STATUSES if s in before}
        assert (verb, named, fenced) == (verb, sources, is_fenced)
        assert event in (known_event, "…")


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("verb", TABLE)
def test_a_verb_does_what_the_table_says_and_nothing_else(verb: str, status: str) -> None:
    sources, targets, is_fenced, event_type = TABLE[verb]
    before = job_in(status)
    change = dict(CHANGES.get(verb, {}))
    if status in sources:
        after, event = apply(before, verb, NOW + 1, before.fence, **change)
        assert after.status in targets
        assert event is not None
        assert (event.type, event.job, event.at_ms) == (event_type, 7, NOW + 1)
        assert event.fence == after.fence
        assert after.fence == before.fence + (verb == "claim")
        assert after.updated_ms == NOW + 1
        check_invariants(after)
    else:
        with pytest.raises(StaleFence if is_fenced else LifecycleError) as caught:
            apply(before, verb, NOW + 1, before.fence, **change)
        assert caught.value.facts == {"job_id": "id7", "status": status, "verb": verb}
    assert before == job_in(status)
    assert change == CHANGES.get(verb, {})


@pytest.mark.parametrize("verb", [verb for verb, row in TABLE.items() if row[2]])
@pytest.mark.parametrize("off_by", [-1, 1, None])
def test_a_stale_fence_is_refused(verb: str, off_by: int | None) -> None:
    job = job_in("running")
    fence = None if off_by is None else job.fence + off_by
    with pytest.raises(StaleFence):
        apply(job, verb, NOW, fence, **CHANGES.get(verb, {}))


@pytest.mark.parametrize("verb", ["retry", "snooze", "release", "reclaim"])
def test_a_cancel_that_was_asked_for_wins_over_the_road_back(verb: str) -> None:
    job, _ = apply(job_in("running"), "request_cancel", NOW, reason="no longer needed")
    after, event = apply(job, verb, NOW + 1, job.fence, **CHANGES.get(verb, {}))
    assert (after.status, after.reason, after.cancel_requested) == (
        "cancelled",
        "no longer needed",
        False,
    )
    assert event is not None
    assert event.type == "job.cancelled"


def test_a_cancel_that_was_asked_for_outlives_a_doubt() -> None:
    job, _ = apply(job_in("running"), "request_cancel", NOW)
    doubted, _ = apply(job, "doubt", NOW, job.fence)
    after, _ = apply(doubted, "resolve", NOW, handle_json='"render-9"')
    assert after.status == "cancelled"
    assert (after.account, after.handle_json) == ("studio-a", '"render-9"')  # to ask the provider


def test_a_paid_result_is_kept_although_a_cancel_was_asked_for() -> None:
    job, _ = apply(job_in("running"), "request_cancel", NOW)
    after, _ = apply(job, "complete", NOW, job.fence, result_json="1")
    assert (after.status, after.result) == ("completed", 1)
    owned, _ = apply(job, "reclaim", NOW, to="completed", result_json="2")
    assert (owned.status, owned.result) == ("completed", 2)


@pytest.mark.parametrize(
    ("verb", "change", "attempt", "crashes_and_deaths"),
    [
        ("retry", {"not_before_ms": None}, 1, (0, 0)),
        ("retry", {"not_before_ms": None, "crashed": True}, 0, (1, 0)),
        ("fail", {}, 1, (0, 0)),
        ("fail", {"crashed": True}, 0, (1, 0)),
        ("snooze", {"not_before_ms": NOW}, 0, (0, 0)),
        ("release", {}, 0, (0, 0)),
        ("doubt", {}, 0, (0, 0)),
        ("reclaim", {}, 0, (0, 1)),
        ("reclaim", {"to": "failed"}, 0, (0, 1)),
        ("reclaim", {"to": "in_doubt"}, 0, (0, 1)),
        ("complete", {"result_json": "1"}, 1, (0, 0)),
    ],
)
def test_what_a_try_costs(
    verb: str, change: dict[str, Any], attempt: int, crashes_and_deaths: tuple[int, int]
) -> None:
    job = job_in("running")
    after, _ = apply(job, verb, NOW, job.fence, **change)
    assert (after.attempt, (after.crashes, after.deaths)) == (attempt, crashes_and_deaths)


def test_a_requeue_is_a_second_chance_with_a_clean_sheet() -> None:
    job = job_in("failed", expires_ms=NOW - 1)._replace(crashes=3, reason="spent")
    after, event = apply(job, "requeue", NOW)
    assert (after.attempt, after.crashes, after.expires_ms, after.account) == (0, 0, None, None)
    assert after.fence == job.fence
    assert event is not None
    assert event.data == {"was": "failed"}


@pytest.mark.parametrize("verb", ["retry", "snooze", "release", "reclaim"])
def test_a_job_with_an_open_render_stays_with_its_account(verb: str) -> None:
    opened = job_in("running")._replace(handle_json='"render-9"')
    after, _ = apply(opened, verb, NOW, opened.fence, **CHANGES.get(verb, {}))
    assert (after.account, after.lane, after.is_live) == ("studio-a", "account:studio-a", True)
    free, _ = apply(job_in("running"), verb, NOW, 1, **CHANGES.get(verb, {}))
    assert (free.account, free.lane, free.is_live) == (None, "", False)


def test_a_cancelled_job_with_an_open_render_is_requeued_to_its_account() -> None:
    opened, _ = apply(job_in("in_doubt")._replace(handle_json='"render-9"'), "cancel", NOW)
    after, _ = apply(opened, "requeue", NOW)
    assert (after.account, after.is_open) == ("studio-a", True)


@pytest.mark.parametrize("verb", ["resolve", "reclaim"])
def test_a_choice_the_table_does_not_know_is_refused(verb: str) -> None:
    with pytest.raises(LifecycleError, match="not to 'cancelled'"):
        apply(job_in("in_doubt" if verb == "resolve" else "running"), verb, NOW, to="cancelled")


def test_an_unknown_verb_is_refused_and_the_known_are_named() -> None:
    with pytest.raises(LifecycleError, match=r"no verb 'finish'; known: claim, .*expire"):
        apply(job_in("running"), "finish", NOW)


def test_progress_within_a_stage_makes_no_event() -> None:
    job, event = apply(job_in("running"), "stage", NOW, 1, stage="rendering", progress=0.1)
    assert event is not None
    after, none = apply(job, "stage", NOW, 1, stage="rendering", progress=0.2)
    assert (after.progress, none) == (0.2, None)


def test_half_a_character_in_a_reason_does_not_reach_the_store() -> None:
    for verb, change in (("stage", {"stage": "cut \ud83e"}), ("fail", {"reason": "cut \ud83e"})):
        after, _ = apply(job_in("running"), verb, NOW, 1, **change)
        assert (after.stage or after.reason) == "cut ?"


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_the_invariants_hold_after_any_sequence_of_legal_verbs(data: st.DataObject) -> None:
    job = job_in("queued", expires_ms=data.draw(st.none() | st.just(NOW)))
    now_ms = NOW
    for _ in range(data.draw(st.integers(1, 25))):
        verb = data.draw(st.sampled_from([v for v, row in TABLE.items() if job.status in row[0]]))
        change = dict(CHANGES.get(verb, {}))
        if verb in ("retry", "fail"):
            change["crashed"] = data.draw(st.booleans())
        if verb in ("resolve", "reclaim"):
            change["to"] = data.draw(st.sampled_from(sorted(TABLE[verb][1])))
        if verb == "resolve":
            change["handle_json"] = data.draw(st.sampled_from([None, '"render-9"']))
        now_ms += data.draw(st.integers(-5, 1000))  # clocks are set back, too
        before, copy = job, tuple(job)
        job, event = apply(before, verb, now_ms, before.fence, **change)
        assert tuple(before) == copy
        assert job.fence == before.fence + (verb == "claim")
        wins = {"cancelled"} if before.cancel_requested else set()
        assert job.status in TABLE[verb][1] | wins
        assert event is None or event.data is not None
        check_invariants(job)
