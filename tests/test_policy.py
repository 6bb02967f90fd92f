"""Who gets which job, and what an ending means: properties of the pure decisions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vqkit import policy
from vqkit.errors import ProviderError
from vqkit.job import Account, Job, lane_of
from vqkit.outcome import Outcome
from vqkit.policy import (
    Candidate,
    Slots,
    assign,
    decide,
    free_slots,
    lanes_of,
    next_wakeup_s,
    reclaim_decision,
    why_not,
)
from vqkit.retry import Retry

NOW = 1_000_000
ACCOUNTS = [("a", "p"), ("b", "p"), ("c", "q"), ("d", "r")]
LANES = sorted({lane for account in ACCOUNTS for lane in lanes_of(*account)} | {"provider:nobody"})


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Slots], dict[str, list[Candidate]]]:
    """Some accounts with free slots, and jobs that wait in lanes, in claim order."""
    chosen = draw(st.lists(st.sampled_from(ACCOUNTS), unique=True))
    slots = [Slots(name, provider, draw(st.integers(0, 4))) for name, provider in chosen]
    waiting: dict[str, list[Candidate]] = {}
    for number in range(draw(st.integers(0, 25))):
        lane = draw(st.sampled_from(LANES))
        can_be_open = lane.startswith("account:")
        not_open = draw(st.integers(0, 1)) if can_be_open else 1
        candidate = Candidate(not_open, -draw(st.integers(-1, 1)), number + 1)
        waiting.setdefault(lane, []).append(candidate)
    return slots, {lane: sorted(found) for lane, found in waiting.items()}


@given(situations())
@settings(deadline=None)
def test_slots_are_never_oversold_and_jobs_never_given_twice(situation: Any) -> None:
    slots, waiting = situation
    grants = assign(slots, waiting)
    places = {c.number: (lane, c) for lane, found in waiting.items() for c in found}
    assert len({g.number for g in grants}) == len(grants)
    for s in slots:
        mine = [places[g.number] for g in grants if g.account == s.account]
        assert sum(c.not_open for _, c in mine) <= s.free  # an open render has its slot already
        assert {lane for lane, _ in mine} <= set(s.lanes)
    assert {g.account for g in grants} <= {s.account for s in slots}


@given(situations())
@settings(deadline=None)
def test_a_lane_is_served_in_claim_order(situation: Any) -> None:
    slots, waiting = situation
    granted = [g.number for g in assign(slots, waiting)]
    for found in waiting.values():
        mine = [c.number for c in found if c.number in granted]
        assert mine == [c.number for c in found][: len(mine)]
        assert mine == [n for n in granted if n in mine]


@given(situations())
@settings(deadline=None)
def test_no_account_is_left_idle_while_it_has_work(situation: Any) -> None:
    slots, waiting = situation
    grants = assign(slots, waiting)
    taken = {g.number for g in grants}
    places = {c.number: c for found in waiting.values() for c in found}
    for s in slots:
        left = [c for lane in s.lanes for c in waiting.get(lane, []) if c.number not in taken]
        used = sum(places[g.number].not_open for g in grants if g.account == s.account)
        assert not left or used == s.free
        assert all(c.not_open for c in left)  # open renders are collected even with no slot free


@given(st.lists(st.integers(0, 6), min_size=2, max_size=4), st.integers(0, 30))
def test_accounts_that_share_a_lane_take_turns(free: list[int], jobs: int) -> None:
    slots = [Slots(name, "p", n) for name, n in zip("abcd", free, strict=False)]
    grants = assign(slots, {"provider:p": [Candidate(1, 0, n + 1) for n in range(jobs)]})
    counts = {s.account: sum(g.account == s.account for g in grants) for s in slots}
    for s in slots:
        others = [n for name, n in counts.items() if name != s.account]
        assert counts[s.account] == s.free or all(n <= counts[s.account] + 1 for n in others)


@given(situations())
def test_a_lane_nobody_serves_changes_nothing_for_the_others(situation: Any) -> None:
    slots, waiting = situation
    urgent = [Candidate(1, -99, 1000 + n) for n in range(50)]
    blocked = {**waiting, "provider:nobody": urgent, "account:gone": urgent}
    without = {lane: found for lane, found in waiting.items() if lane != "provider:nobody"}
    assert assign(slots, blocked) == assign(slots, without)


@given(situations(), st.randoms(use_true_random=False))
def test_the_order_in_which_accounts_are_given_does_not_matter(situation: Any, rng: Any) -> None:
    slots, waiting = situation
    shuffled = list(slots)
    rng.shuffle(shuffled)
    assert assign(shuffled, waiting) == assign(slots, waiting)


@st.composite
def situations_by_model(draw: st.DrawFn) -> tuple[list[Slots], dict[str, Any], dict[str, int]]:
    """Accounts some of which have slots for each model; all of a model or a group share a pot."""
    pots: dict[str, int] = {}
    slots = []
    for name, provider in draw(st.lists(st.sampled_from(ACCOUNTS), unique=True)):
        if draw(st.booleans()):
            slots.append(Slots(name, provider, draw(st.integers(0, 4))))
            continue
        models: dict[str | None, tuple[str, ...]] = {}
        for model in draw(st.sets(st.sampled_from(["", "x", "y"]))):
            models[model] = (f"model:{name}:{model}",)
            if draw(st.booleans()):
                models[model] += (f"group:{model}",)
            pots |= {pot: draw(st.integers(0, 3)) for pot in models[model] if pot not in pots}
        free = sum(min(pots[pot] for pot in of) for of in models.values())
        slots.append(Slots(name, provider, free, models=models))
    waiting: dict[str, list[Candidate]] = {}
    for number in range(draw(st.integers(0, 25))):
        lane = draw(st.sampled_from(LANES))
        not_open = draw(st.integers(0, 1)) if lane.startswith("account:") else 1
        model = draw(st.sampled_from(["", "x", "y", "z", None]))
        candidate = Candidate(not_open, -draw(st.integers(-1, 1)), number + 1, model)
        waiting.setdefault(lane, []).append(candidate)
    return slots, {lane: sorted(found) for lane, found in waiting.items()}, pots


@given(situations_by_model())
@settings(deadline=None)
def test_a_models_slots_are_never_oversold_and_none_is_left_idle(situation: Any) -> None:
    slots, waiting, pots = situation
    grants = assign(slots, waiting, pots)
    found = {c.number: c for lane in waiting.values() for c in lane}
    assert len({g.number for g in grants}) == len(grants)
    left = dict(pots)
    for s in slots:
        mine = [found[g.number] for g in grants if g.account == s.account]
        assert {c.number for c in mine} <= {c.number for at in s.lanes for c in waiting.get(at, ())}
        for c in mine:
            for pot in (s.models or {}).get(c.model, ()) if c.not_open else ():
                left[pot] -= 1
        assert s.models is None or all(c.model in s.models for c in mine if c.not_open)
        assert sum(c.not_open for c in mine) <= s.free
    assert all(n >= 0 for n in left.values())
    taken = {g.number for g in grants}
    for s in slots:
        over = [c for at in s.lanes for c in waiting.get(at, ()) if c.number not in taken]
        used = sum(found[g.number].not_open for g in grants if g.account == s.account)
        assert all(c.not_open for c in over)  # open renders are collected whatever is full
        if s.models is None:
            assert not over or used == s.free
        else:
            free = [of for c in over if (of := s.models.get(c.model))]
            assert not any(all(left[pot] > 0 for pot in of) for of in free)


@given(situations_by_model())
@settings(deadline=None)
def test_jobs_of_one_model_are_served_in_claim_order(situation: Any) -> None:
    slots, waiting, pots = situation
    granted = [g.number for g in assign(slots, waiting, pots)]
    for found in waiting.values():
        for model in {c.model for c in found}:
            line = [c.number for c in found if c.model == model]
            mine = [number for number in granted if number in line]
            if all(s.models is not None for s in slots):
                assert mine == line[: len(mine)]
            assert mine == sorted(mine, key=line.index)


def test_a_full_model_holds_up_no_other_model_behind_it() -> None:
    line = [Candidate(1, 0, n, "gen4") for n in range(1, 9)] + [Candidate(1, 0, 9, "gen3")]
    models: dict[str | None, tuple[str, ...]] = {m: (f"model:a:{m}",) for m in ("gen3", "gen4")}
    slots = [Slots("a", "p", 3, models=models)]
    grants = assign(slots, {"provider:p": line}, {"model:a:gen4": 2, "model:a:gen3": 1})
    assert [g.number for g in grants] == [1, 2, 9]


def test_priority_goes_before_first_come_across_lanes() -> None:
    waiting = {
        "account:a": [Candidate(1, 0, 1)],
        "provider:p": [Candidate(1, -5, 9)],
        "": [Candidate(1, -5, 4), Candidate(1, 0, 2)],
    }
    assert [g.number for g in assign([Slots("a", "p", 9)], waiting)] == [4, 9, 1, 2]


def test_an_account_draws_from_three_lanes() -> None:
    assert lanes_of("studio", "runway") == ("account:studio", "provider:runway", "")
    assert lane_of("runway", "studio") == "account:studio"


@given(st.integers(1, 1000), st.integers(0, 2000))
def test_free_slots_are_what_is_left_and_never_negative(capacity: int, live: int) -> None:
    assert free_slots(capacity, live) == max(capacity - live, 0)


@pytest.mark.parametrize(
    ("account", "error", "says"),
    [
        (Account("a", "p"), None, None),
        (Account("a", "p", is_enabled=False), "no key", "paused by you"),
        (Account("a", "p", parked_until_ms=NOW + 1, parked_reason="no funds"), None, "no funds"),
        (Account("a", "p", parked_until_ms=NOW), None, None),
        (Account("a", "runwy"), "no key", "no provider named 'runwy' is registered here; known: p"),
        (Account("a", "p"), "NAME is not set", "NAME is not set"),
    ],
)
def test_an_account_that_gets_no_work_says_why(
    account: Account, error: str | None, says: str | None
) -> None:
    why = why_not(account, ["p"], error, NOW)
    assert why is None if says is None else (why or "").startswith(says)


def running(**more: Any) -> Job:
    base = {"status": "running", "attempt": 1, "fence": 1, "owner": "me", "account": "a"}
    return Job(1, "id1", "{}", **{**base, **more})


ERROR = '{"type":"ValueError"}'


@pytest.mark.parametrize(
    ("outcome", "job", "verb", "change"),
    [
        (Outcome("completed", result_json="1"), {}, "complete", {"result_json": "1"}),
        (Outcome("cancelled", reason="by you"), {}, "acknowledge_cancel", {"reason": "by you"}),
        (Outcome("released", reason="stop"), {}, "release", {"reason": "stop"}),
        (Outcome("snoozed", delay_s=1.5), {}, "snooze", {"not_before_ms": NOW + 1500}),
        (Outcome("gave_up", error_json=ERROR, reason="nsfw"), {}, "fail", {"reason": "nsfw"}),
        (Outcome("error", error_json=ERROR), {}, "retry", {"not_before_ms": NOW + 500}),
        (
            Outcome("error", error_json=ERROR),
            {"attempt": 2},
            "retry",
            {"not_before_ms": NOW + 1000},
        ),
        (Outcome("error", error_json=ERROR), {"attempt": 3}, "fail", {"error_json": ERROR}),
        (Outcome("timed_out"), {"attempt": 3}, "fail", {"reason": "attempt 3 of 3 failed"}),
        (Outcome("error"), {"max_attempts": 1}, "fail", {"reason": "attempt 1 of 1 failed"}),
        (Outcome("error"), {"attempt": 3, "max_attempts": 9}, "retry", {}),
        (Outcome("crashed"), {"attempt": 3}, "retry", {"crashed": True}),
        (Outcome("crashed"), {"crashes": 1}, "retry", {"not_before_ms": NOW + 1000}),
        (Outcome("crashed"), {"crashes": 2}, "fail", {"crashed": True}),
    ],
)
def test_what_an_ending_means_for_its_job(
    outcome: Outcome, job: dict[str, Any], verb: str, change: dict[str, Any]
) -> None:
    decision = decide(outcome, running(**job), Retry(max_attempts=3, max_crashes=3), NOW, 0.5)
    assert decision.verb == verb
    assert {name: decision.change.get(name) for name in change} == change
    assert ("not_before_ms" in decision.change) == (verb in ("retry", "snooze"))


@given(
    st.sampled_from(["error", "timed_out", "crashed"]),
    st.integers(1, 20),
    st.integers(0, 20),
    st.floats(0, 1, exclude_max=True),
)
def test_retries_are_bounded_and_wait_no_longer_than_they_may(
    kind: Any, attempt: int, crashes: int, u: float
) -> None:
    retry = Retry(max_attempts=4, max_crashes=2, max_s=30)
    job = running(attempt=attempt, crashes=crashes)
    decision = decide(Outcome(kind), job, retry, NOW, u)
    is_last = crashes + 1 >= 2 if kind == "crashed" else attempt >= 4
    assert decision.verb == ("fail" if is_last else "retry")
    if not is_last:
        assert NOW <= decision.change["not_before_ms"] <= NOW + 30_000


@pytest.mark.parametrize(
    ("job", "finished", "to"),
    [
        ({}, None, "queued"),
        ({}, '"kept"', "completed"),
        ({"crashes": 2}, None, "queued"),
        ({"deaths": 2}, None, "failed"),
        ({"deaths": 2}, '"kept"', "completed"),
        ({"deaths": 2, "cancel_requested": True}, None, "queued"),  # where the cancel wins
        ({"deaths": 2, "handle_json": '{"id":1}'}, None, "queued"),  # it is paid for
    ],
)
def test_what_becomes_of_a_dead_owners_job(
    job: dict[str, Any], finished: str | None, to: str
) -> None:
    decision = reclaim_decision(running(**job), finished, max_deaths=3)
    assert decision.verb == "reclaim"
    assert decision.change["to"] == to
    assert decision.change.get("result_json") == finished


@given(st.lists(st.none() | st.integers(0, 2 * NOW)), st.floats(0, 100))
def test_the_next_wakeup_is_neither_late_nor_in_the_past(
    times_ms: list[int | None], longest_s: float
) -> None:
    wait_s = next_wakeup_s(NOW, times_ms, longest_s)
    due_s = [(at - NOW) / 1000 for at in times_ms if at is not None]
    assert 0 <= wait_s <= longest_s
    assert all(wait_s <= max(0.0, due) for due in due_s)
    assert wait_s == longest_s or any(wait_s == max(0.0, due) for due in due_s)


@pytest.mark.parametrize(
    ("account", "may"),
    [
        (Account("a", "p", is_enabled=False), True),
        (Account("a", "p", parked_until_ms=2_000), True),
        (Account("a", "p", parked_until_ms=policy.FOR_EVER_MS), False),
        (Account("a", "elsewhere"), False),
    ],
)
def test_who_gets_nothing_new_may_still_collect_what_is_paid_for(account: Account, may: bool):
    assert policy.may_collect(account, {"p"}, None, 1_000) is may
    assert not policy.may_collect(account, {"p"}, "its key is not set", 1_000)


ABSURD = [1e300, float("inf"), 10**400, 99999999999999999999, 1.79e15]


@pytest.mark.parametrize(
    "told",
    [*ABSURD, float("nan"), -5.0, float("-inf"), "30", True, [1]],
    ids=lambda told: str(told)[:9],
)
@pytest.mark.parametrize("kind", ["rate", "concurrency"])
def test_no_number_that_a_provider_tells_is_waited_for_beyond_reason(kind: Any, told: Any) -> None:
    error = ProviderError("slow down", kind, retry_after_s=told)
    outcome = policy.provider_outcome(error, ERROR, NOW, 0.5)
    assert outcome.kind == "released"
    assert 0 <= outcome.delay_s <= 2 * 3600
    until_ms = outcome.effect.until_ms if outcome.effect else None
    assert (until_ms or NOW) <= NOW + policy.DAY_MS
    decision = decide(outcome, running(), Retry(), NOW, 0.5)
    assert decision.change.get("not_before_ms", NOW) < 2**53
    bill = policy.bill(outcome, running(reserved_microusd=250_000))
    assert bill is not None
    assert bill.money == "not billed"
    is_kept = told in (-5.0, float("-inf"))
    assert ("it asked to wait" in (outcome.reason or "")) is not is_kept
    if told in ABSURD:
        assert "s are kept" in (outcome.reason or "")


def test_a_wait_within_reason_is_waited_for_as_told():
    assert policy.told_wait(None, 30.0, 60.0) == (30.0, "")
    assert policy.told_wait(45, 30.0, 60.0) == (45.0, "")
    effect = policy.provider_outcome(
        ProviderError("slow", "rate", retry_after_s=7200), ERROR, NOW, 0.0
    ).effect
    assert effect is not None
    assert effect.until_ms == NOW + 7_200_000
