"""Waits between tries: bounded, growing, and spread out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vqkit.errors import UsageError
from vqkit.retry import Retry

U = st.floats(0, 1, exclude_max=True)


@st.composite
def retries(draw: st.DrawFn, **fixed: Any) -> Retry:
    max_s = draw(st.floats(0, 1e7))
    return Retry(
        base_s=draw(st.floats(0, max_s)),
        max_s=max_s,
        factor=draw(st.floats(1, 1e6)),
        jitter=fixed.get("jitter") or draw(st.sampled_from(["full", "equal", "none"])),
    )


@given(retries(), st.integers(1, 10_000), U)
@settings(deadline=None)
def test_a_wait_is_never_negative_and_never_above_the_longest(
    retry: Retry, attempt: int, u: float
) -> None:
    assert 0 <= retry.delay_s(attempt, u) <= retry.ceiling_s(attempt) <= retry.max_s
    assert retry.delay_s(attempt, u) == retry.delay_s(attempt, u)


@given(retries(), st.integers(1, 2000), U)
@settings(deadline=None)
def test_with_the_same_luck_a_later_try_waits_no_shorter(
    retry: Retry, attempt: int, u: float
) -> None:
    assert retry.delay_s(attempt + 1, u) >= retry.delay_s(attempt, u)


@given(retries(), st.integers(1, 100), U, U)
@settings(deadline=None)
def test_jitter_spreads_over_the_range_it_names(
    retry: Retry, attempt: int, one: float, other: float
) -> None:
    ceiling_s = retry.ceiling_s(attempt)
    lowest_s = {"full": 0.0, "equal": ceiling_s / 2, "none": ceiling_s}[retry.jitter]
    assert retry.delay_s(attempt, 0.0) == lowest_s
    if one < other:
        assert retry.delay_s(attempt, one) <= retry.delay_s(attempt, other)


def test_two_jobs_that_fail_together_do_not_come_back_together() -> None:
    waits = {Retry().delay_s(3, u / 100) for u in range(100)}
    assert len(waits) == 100


def test_the_ceiling_doubles_until_the_longest_wait() -> None:
    retry = Retry(base_s=1, max_s=10)
    assert [retry.ceiling_s(n) for n in (1, 2, 3, 4, 5, 5000)] == [1, 2, 4, 8, 10, 10]


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0},
        {"max_attempts": True},
        {"max_crashes": 0},
        {"max_deaths": 0},
        {"base_s": -1},
        {"base_s": 10, "max_s": 5},
        {"max_s": float("inf")},
        {"base_s": float("nan")},
        {"factor": 0.5},
        {"factor": float("nan")},
        {"jitter": "some"},
    ],
)
def test_a_retry_that_makes_no_sense_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Retry(**wrong)


def test_there_is_no_try_before_the_first() -> None:
    with pytest.raises(UsageError, match="count from 1"):
        Retry().delay_s(0, 0.5)
