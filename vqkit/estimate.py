"""What jobs will cost and how long they will take, as far as anybody can tell.

Prices and capacities are the accounts', seconds a job those of the newest jobs or the user's
word. Where something is not known the estimate says what; it never guesses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .job import Account

__all__ = ["Estimate", "estimate"]

Lane = tuple[str | None, str | None]
"""The provider and the account that jobs name."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Cost in dollars, from `low` to `high`, and seconds from now until all is done.

    None where nobody can tell: `why_no_cost` and `why_no_time` say why. The seconds count
    the jobs that wait already too.
    """

    low: float | None = None
    high: float | None = None
    why_no_cost: str | None = None
    seconds: float | None = None
    seconds_each: float | None = None
    why_no_time: str | None = None


def estimate(
    lanes: Mapping[Lane, int],
    accounts: Sequence[Account],
    pace: Mapping[str, tuple[int, float]],
    *,
    waiting: int = 0,
    seconds_each: float | None = None,
) -> Estimate:
    """The estimate for so many jobs of each lane, behind `waiting` others.

    `pace` is {account: (jobs, mean seconds)} of jobs already done; `seconds_each` is the
    user's word, and wins.
    """
    able = {lane: _able(lane, accounts) for lane in lanes}
    if not sum(lanes.values()):
        return Estimate(0.0, 0.0, seconds=0.0, seconds_each=seconds_each)
    nobody = next((lane for lane, found in able.items() if not found), None)
    if nobody is not None:
        why = _nobody(nobody)
        return Estimate(why_no_cost=why, why_no_time=why)
    low, high, why_no_cost = _cost(lanes, able)
    seconds, each, why_no_time = _time(lanes, able, pace, waiting, seconds_each)
    return Estimate(low, high, why_no_cost, seconds, each, why_no_time)


def _able(lane: Lane, accounts: Sequence[Account]) -> list[Account]:
    provider, name = lane
    return [
        a
        for a in accounts
        if a.is_enabled
        and (name is None or a.name == name)
        and (provider is None or a.provider == provider)
    ]


def _nobody(lane: Lane) -> str:
    provider, name = lane
    if name is not None:
        return f"there is no account {name!r} at work"
    if provider is not None:
        return f"no account has the provider {provider!r}"
    return "there is no account yet"


def _cost(
    lanes: Mapping[Lane, int], able: Mapping[Lane, list[Account]]
) -> tuple[float | None, float | None, str | None]:
    low = high = 0
    for lane, n in lanes.items():
        prices = [a.limits.get("price") for a in able[lane]]
        if None in prices:
            nameless = next(a.name for a in able[lane] if "price" not in a.limits)
            why = f"the account {nameless!r} has no price: q.accounts.add(…, price=…)"
            return None, None, why
        known = [int(price) for price in prices if price is not None]
        low += n * min(known)
        high += n * max(known)
    return low / 1e6, high / 1e6, None


def _time(
    lanes: Mapping[Lane, int],
    able: Mapping[Lane, list[Account]],
    pace: Mapping[str, tuple[int, float]],
    waiting: int,
    seconds_each: float | None,
) -> tuple[float | None, float | None, str | None]:
    each = seconds_each
    if each is None:
        names = {a.name for found in able.values() for a in found}
        # Before any of these has done a job, what others took is no evidence.
        done = sum(pace[name][0] for name in names if name in pace)
        if not done:
            why = "no job has been done yet that would show how long one takes"
            return None, None, f"{why}: q.plan(…, seconds_each=…)"
        each = sum(n * mean for name, (n, mean) in pace.items() if name in names) / done

    def rate(account: Account) -> float:
        mine = each if seconds_each is not None or account.name not in pace else None
        seconds = mine if mine is not None else pace[account.name][1]
        slots = account.capacity / max(seconds, 1e-3)
        per_minute = account.limits.get("per_minute")
        return slots if per_minute is None else min(slots, per_minute / 60)

    longest = max(n / sum(map(rate, able[lane])) for lane, n in lanes.items())
    all_able = {a.name: a for found in able.values() for a in found}
    together = (sum(lanes.values()) + waiting) / sum(map(rate, all_able.values()))
    # A job is not made of pieces: the last ones take as long as one takes.
    return max(longest, together, each), each, None
