"""What an attempt came to, before anybody decides what that means for the job."""

from __future__ import annotations

from typing import Literal, NamedTuple

from .job import Output

__all__ = ["Bill", "Effect", "Outcome"]


class Effect(NamedTuple):
    """What an attempt's end means for its account, or for all accounts of its provider.

    `until_ms` parks it, for the `reason` given, in a sentence that says what to do.
    `is_full` says the provider had no slot left: fewer at once from now on. `is_moderated`
    counts towards the row of refusals that parks an account. With `model` it is about that
    model's share of the account and leaves the others alone.
    """

    until_ms: int | None = None
    reason: str | None = None
    is_for_provider: bool = False
    is_full: bool = False
    is_moderated: bool = False
    model: str | None = None


class Bill(NamedTuple):
    """What is known of an attempt's money, in a word, and what is counted for it.

    Without a `cost_microusd` that is all that is set aside. `is_assumed` where nobody said that
    it was not billed: no try of that kind has paid, unless it had begun a paid call.
    `is_by_steps` where its handler spends in paid steps only.
    """

    money: Literal["billed", "not billed", "unknown"]
    cost_microusd: int | None = None
    is_assumed: bool = False
    is_by_steps: bool = False


class Outcome(NamedTuple):
    """How one attempt ended.

    ============  =====================================================================
    completed     the handler returned; `result_json` and `outputs` are what it made
    error         it raised; `error_json` tells what and where
    gave_up       it raised GiveUp: retrying cannot help
    snoozed       it raised Snooze: come back in `delay_s`
    timed_out     it took longer than the job's `timeout_s`
    crashed       its worker process died under it
    cancelled     it stopped because the user asked
    doubt         a paid call's answer was lost; it is not made again until somebody knows
    released      the pump stopped; the work was ended and goes back untouched
    ============  =====================================================================

    `is_fresh`: the render itself failed, so the next try asks for another one. `effect` is
    what it means for the account; `cost_microusd` and `is_billed` are None where nobody
    said.
    """

    kind: Literal[
        "completed",
        "error",
        "gave_up",
        "snoozed",
        "timed_out",
        "crashed",
        "cancelled",
        "doubt",
        "released",
    ]
    result_json: str | None = None
    outputs: tuple[Output, ...] = ()
    error_json: str | None = None
    delay_s: float = 0.0
    reason: str | None = None
    is_fresh: bool = False
    effect: Effect | None = None
    cost_microusd: int | None = None
    is_billed: bool | None = None
