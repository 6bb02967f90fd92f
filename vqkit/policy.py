"""Every decision of the engine, as pure functions of what the database says.

Which account takes which job, what an attempt's outcome means for its job, when to wake
next, what to do with the jobs of an owner that died. Nothing here reads a clock, draws a
random number or touches a file, so all of it is property-tested.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any, NamedTuple

from . import codec
from .errors import ProviderError
from .job import Account, Job, lane_of
from .outcome import Bill, Effect, Outcome
from .retry import Retry

__all__ = [
    "Candidate",
    "Decision",
    "Grant",
    "Slots",
    "affected",
    "amount",
    "assign",
    "bill",
    "but_money",
    "capacity_now",
    "comes_back_ms",
    "decide",
    "free_slots",
    "lanes_of",
    "left_slots",
    "may_collect",
    "model_pots",
    "models_at_rest",
    "named_only",
    "next_wakeup_s",
    "pots_of",
    "provider_outcome",
    "reclaim_bill",
    "reclaim_decision",
    "rescoped",
    "settled",
    "shares_of",
    "told_wait",
    "used_up_text",
    "why_not",
]


DAY_MS = 86_400_000
FOR_EVER_MS = 253_402_300_799_000  # the last second of the year 9999
RATE_S = 30.0  # how long "too many requests" rests an account when nobody says
FULL_S = 5.0  # how long a job waits when the provider had no slot left
NOT_SENT_S = 5.0  # how long an account rests that cannot be reached
REST_MAX_S = 86_400.0  # an account that is told to rest for longer asks again after a day
APART_MAX_S = 300.0  # its jobs are free for other accounts, and for its user's unpark, by then
POLL_MAX_S = 3600.0  # a render is asked after, and a job with no slot there tried, once an hour
MODERATED_MAX = 5  # refusals in a row that park an account
LEARNED_RISE_MS = 60_000


class Candidate(NamedTuple):
    """A queued job in claim order: an open render first, then priority, then first come.

    `model` is what its payload names, "" for none; None where nobody asked.
    """

    not_open: int
    minus_priority: int
    number: int
    model: str | None = None


class Grant(NamedTuple):
    """This job goes to this account."""

    number: int
    account: str


@dataclass(frozen=True, slots=True)
class Slots:
    """What an account may take now: `free` jobs, out of these lanes.

    `costs` are what each job takes out of which pot: a group's slots, the requests of a
    minute, the money of a budget. Pots may be shared. Where each model has slots of its own,
    `models` names the pots that a job of that model takes one of, and `free` is their sum; a
    job of a model that is not among them waits.
    """

    account: str
    provider: str
    free: int
    costs: tuple[tuple[str, int], ...] = ()
    takes_any: bool = True
    models: Mapping[str | None, tuple[str, ...]] | None = None

    @property
    def lanes(self) -> tuple[str, ...]:
        """Where its jobs wait: those that name it, those that name its provider, the rest."""
        return lanes_of(self.account, self.provider, takes_any=self.takes_any)


def lanes_of(account: str, provider: str, *, takes_any: bool = True) -> tuple[str, ...]:
    """The lanes an account draws from, the narrowest first."""
    named = lane_of(None, account), lane_of(provider, None)
    return (*named, "") if takes_any else named


def named_only(
    accounts: Iterable[Account], handlers: Collection[str], stand_ins: Collection[str]
) -> frozenset[str]:
    """The providers that do only jobs that name them or their accounts.

    `handlers` do so anyhow. `stand_ins` draw something at no cost, so they do so wherever the
    queue has an account of somebody else: there they would put toys among real results.
    """
    has_others = any(account.provider not in stand_ins for account in accounts)
    return frozenset(handlers) | (frozenset(stand_ins) if has_others else frozenset())


def free_slots(capacity: int, live: int) -> int:
    """How many more jobs the account may run. Never below zero, even over its capacity."""
    return max(0, capacity - live)


def assign(
    slots: Iterable[Slots],
    waiting: Mapping[str, Sequence[Candidate]],
    pots: Mapping[str, int] | None = None,
) -> list[Grant]:
    """Deals the waiting jobs out to the free slots, one at a time, account by account.

    `waiting` holds each lane's candidates in claim order. Accounts take turns in the order
    of their names, each taking the best job it may have, so none starves another. The
    jobs of a lane no account serves stay where they are and hold up nobody. A job with an
    open render is counted as live already: it takes no free slot and nothing out of any
    pot, and is dealt out even where none is free. Where models have slots of their own, a
    job whose model has none left holds up nobody behind it.
    """
    left = dict(pots or {})
    queues = {lane: deque(found) for lane, found in waiting.items()}
    turn = deque(
        (s.account, s.free, s.lanes, s.costs, s.models)
        for s in sorted(slots, key=lambda s: s.account)
    )
    grants = []
    while turn:
        account, free, lanes, costs, models = turn.popleft()
        if models is None:
            heads = [(queues[lane][0], lane) for lane in lanes if queues.get(lane)]
        else:
            firsts = ((_first(queues.get(lane, ()), models, left), lane) for lane in lanes)
            heads = [(first, lane) for first, lane in firsts if first is not None]
        if not heads:
            continue
        best, lane = min(heads)
        if best.not_open:
            if free < 1 or any(left.get(pot, 0) < cost for pot, cost in costs):
                continue
            for pot, cost in costs:
                left[pot] -= cost
            for pot in models[best.model] if models is not None else ():
                left[pot] -= 1
        queues[lane].remove(best)  # the first of its lane, but for models that must wait
        grants.append(Grant(best.number, account))
        turn.append((account, free - best.not_open, lanes, costs, models))
    return grants


def _first(
    queue: Iterable[Candidate],
    models: Mapping[str | None, tuple[str, ...]],
    left: Mapping[str, int],
) -> Candidate | None:
    """The first job of a lane whose model has a slot left, or whose render is open."""
    for candidate in queue:
        pots = models.get(candidate.model)
        if not candidate.not_open or (pots and all(left.get(pot, 0) > 0 for pot in pots)):
            return candidate
    return None


def why_not(
    account: Account, providers: Collection[str], credential_error: str | None, now_ms: int
) -> str | None:
    """Why this account gets no work now, in a sentence; None when it may."""
    if not account.is_enabled:
        return "paused by you; accounts.enable() lets it work again"
    if account.parked_until_ms is not None and account.parked_until_ms > now_ms:
        return account.parked_reason or "parked"
    if account.provider not in providers:
        known = ", ".join(sorted(providers)) or "none"
        return f"no provider named {account.provider!r} is registered here; known: {known}"
    return credential_error


def may_collect(
    account: Account, providers: Collection[str], credential_error: str | None, now_ms: int
) -> bool:
    """True where an account that gets no new work can still be asked for what is paid for.

    One that is paused by its user, or parked for a while, can. One that is parked for good
    waits for somebody: its key may be refused, and each question would be refused too.
    """
    is_for_good = now_ms < (account.parked_until_ms or 0) >= FOR_EVER_MS
    return account.provider in providers and credential_error is None and not is_for_good


class Decision(NamedTuple):
    """A lifecycle verb and what it is to carry."""

    verb: str
    change: dict[str, Any]


def decide(outcome: Outcome, job: Job, retry: Retry, now_ms: int, u: float) -> Decision:
    """What an attempt's outcome means for its job.

    `u` in [0, 1) chooses the jitter. A job's own `max_attempts` goes before the run's.
    """
    match outcome.kind:
        case "completed":
            return Decision("complete", {"result_json": outcome.result_json})
        case "cancelled":
            return Decision("acknowledge_cancel", {"reason": outcome.reason})
        case "released":
            change: dict[str, Any] = {"reason": outcome.reason}
            if outcome.delay_s:
                change["not_before_ms"] = now_ms + round(outcome.delay_s * 1000)
            return Decision("release", change)
        case "snoozed":
            until_ms = now_ms + round(outcome.delay_s * 1000)
            return Decision("snooze", {"not_before_ms": until_ms, "reason": outcome.reason})
        case "doubt":
            return Decision("doubt", {"error_json": outcome.error_json, "reason": outcome.reason})
        case "gave_up":
            change = {"error_json": outcome.error_json, "reason": outcome.reason}
            if outcome.is_fresh:
                change["fresh"] = True
            return Decision("fail", change)
        case "crashed":
            crashes = job.crashes + 1
            is_last, delay_s = crashes >= retry.max_crashes, retry.delay_s(crashes, u)
            reason = f"crashed {crashes} times, the ceiling" if is_last else "its worker died"
        case _:
            allowed = job.max_attempts or retry.max_attempts
            is_last, delay_s = job.attempt >= allowed, retry.delay_s(job.attempt, u)
            reason = f"attempt {job.attempt} of {allowed} failed"
    change = {"error_json": outcome.error_json, "reason": reason}
    if outcome.kind == "crashed":
        change["crashed"] = True
    if outcome.is_fresh:
        change["fresh"] = True
    if is_last:
        return Decision("fail", change)
    change["not_before_ms"] = now_ms + round(delay_s * 1000)
    return Decision("retry", change)


def provider_outcome(
    error: ProviderError, error_json: str, now_ms: int, u: float, model: str | None = None
) -> Outcome:
    """What a provider's word means for the job and its account: the table of error kinds.

    `u` in [0, 1) spreads the waits: jobs that were refused together come back apart. `model`
    is the job's, where each has limits of its own: then only that one rests.
    """
    told, is_billed = str(error), error.is_billed
    cost = amount(error.facts.get("cost_microusd"))
    match error.kind:
        case "invalid":
            return Outcome("gave_up", error_json=error_json, reason=told, is_billed=False)
        case "moderated":
            effect = Effect(is_moderated=True, reason=told)
            end = Outcome("gave_up", error_json=error_json, reason=told, effect=effect)
            return end._replace(is_billed=is_billed, cost_microusd=cost, is_fresh=True)
        case "auth":
            why = f"its key is not accepted ({told}); give it another, then accounts.unpark(name)"
            return _rested(told, Effect(FOR_EVER_MS, why))
        case "no_funds":
            why = f"its balance is used up ({told}); top it up, then accounts.unpark(name)"
            return _rested(told, Effect(FOR_EVER_MS, why))
        case "quota":
            midnight_ms = (now_ms // DAY_MS + 1) * DAY_MS
            effect = Effect(midnight_ms, f"its allowance is used up ({told})", model=model)
            return _rested(told, effect)
        case "provider_gone":
            why = f"the provider is gone ({told}); use another, then accounts.unpark(name)"
            return _rested(told, Effect(FOR_EVER_MS, why, is_for_provider=True))
        case "rate":
            wait_s, note = told_wait(error.retry_after_s, RATE_S, REST_MAX_S)
            until_ms = now_ms + math.ceil(wait_s * 1000)
            effect = Effect(until_ms, f"too many requests ({told}{note})", model=model)
            apart_s = min(wait_s, APART_MAX_S)
            return _rested(told + note, effect, apart_s + u * max(2.0, apart_s / 4))
        case "concurrency":
            wait_s, note = told_wait(error.retry_after_s, FULL_S, POLL_MAX_S)
            return _rested(told + note, Effect(is_full=True, model=model), wait_s * (1 + u))
        case "not_sent":
            wait_s = NOT_SENT_S * (1 + u)
            until_ms = now_ms + round(NOT_SENT_S * 1000)
            return _rested(told, Effect(until_ms, f"it could not be reached ({told})"), wait_s)
        case "unknown" | "key_reused":
            return Outcome("error", error_json=error_json)
        case "result_gone":
            return Outcome("snoozed", delay_s=RATE_S, reason=told)
    failed = Outcome("error", error_json=error_json, is_fresh=True)
    return failed._replace(is_billed=is_billed, cost_microusd=cost)


def told_wait(told: Any, otherwise_s: float, longest_s: float) -> tuple[float, str]:
    """Seconds to wait where a provider told `told`, and a note where that was not kept to.

    A header may hold a reset time in another unit, an object may tell anything: what is no
    number counts as `otherwise_s`, what is below 0 as 0, what is beyond `longest_s` as that.
    """
    if told is None:
        return otherwise_s, ""
    is_number = isinstance(told, int | float) and not isinstance(told, bool)
    try:
        told_s = float(told) if is_number else math.nan
    except OverflowError:
        told_s = math.inf
    if math.isnan(told_s):
        shown = "NaN" if is_number else f"{told!r:.40}"
        return otherwise_s, f"; it asked to wait {shown}, which is no time"
    if told_s > longest_s:
        return longest_s, f"; it asked to wait {told_s:.6g} s, of which {longest_s:,.0f} s are kept"
    return max(0.0, told_s), ""


def _rested(reason: str, effect: Effect, delay_s: float = 0.0) -> Outcome:
    """The job goes back, nothing spent; the account rests."""
    return Outcome("released", reason=reason, delay_s=delay_s, effect=effect)


def affected(account: Account, effect: Effect, live: int, now_ms: int) -> Account:
    """The account after an attempt's end had this effect on it.

    `live` counts the jobs at work on it, of the effect's model where it is about one, with
    the one that has just ended.
    """
    limits = account.limits
    if effect.model is not None:
        known = limits.setdefault("models", {}).setdefault(effect.model, {})
        if effect.is_full:
            known |= {"learned": max(1, live - 1), "learned_ms": now_ms}
        if (effect.until_ms or 0) > known.get("until_ms", 0):
            known |= {"until_ms": effect.until_ms, "why": effect.reason or "parked"}
        return replace(account, limits_json=codec.encode(limits))
    until_ms, reason = effect.until_ms, effect.reason
    if effect.is_full:
        limits |= {"learned": max(1, live - 1), "learned_ms": now_ms}
    if effect.is_moderated:
        limits["moderated"] = limits.get("moderated", 0) + 1
        if limits["moderated"] >= MODERATED_MAX:
            until_ms = FOR_EVER_MS
            reason = (
                f"{limits['moderated']} prompts in a row were refused ({effect.reason}); providers"
                " suspend accounts for that. Look at the prompts, then accounts.unpark(name)"
            )
    account = replace(account, limits_json=codec.encode(limits))
    if until_ms is None or until_ms <= (account.parked_until_ms or 0):
        return account
    return replace(account, parked_until_ms=until_ms, parked_reason=reason)


def pots_of(account: Account, budgets: Collection[str]) -> tuple[tuple[str, int], ...]:
    """What one job takes out of which pots, for this account. `budgets` are those that are set."""
    limits = account.limits
    costs = []
    if "group" in limits and not account.is_by_model:
        costs.append((f"group:{limits['group']}", 1))
    if "per_minute" in limits:
        costs.append((f"minute:{account.name}", 1))
    price = limits.get("price", 0)
    if price:
        money = [f"budget:{account.name}", "budget", "budget:day"]
        costs += [(pot, price) for pot in money if pot in budgets]
    return tuple(costs)


def but_money(costs: Sequence[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Of what a job takes out of pots, what is no money."""
    return tuple((pot, cost) for pot, cost in costs if not pot.startswith("budget"))


def left_slots(slots: Sequence[Slots], grants: Iterable[Grant]) -> list[Slots]:
    """The slots that are left when these jobs have been dealt out."""
    taken = Counter(grant.account for grant in grants)
    return [replace(s, free=s.free - taken[s.account]) if taken[s.account] else s for s in slots]


def shares_of(account: Account, model: str) -> tuple[str, ...]:
    """The pots that a job of this model takes one slot of, where models have their own."""
    group = account.limits.get("group")
    mine = f"model:{account.name}:{model}"
    return (mine,) if group is None else (mine, f"group:{group}:{model}")


def model_pots(
    accounts: Sequence[Account],
    wanted: Mapping[str, Collection[str]],
    live: Mapping[tuple[str, str], int],
    now_ms: int,
) -> dict[str, int]:
    """What is left of the slots of models: {pot: slots}, see `shares_of`.

    `wanted` names the models that wait for each account, by its name; `live` counts the jobs
    at work by account and model. A model that is parked has nothing left.
    """
    pots: dict[str, int] = {}
    for a in accounts:
        limits = a.limits
        for model in wanted.get(a.name, ()):
            mine, *group = shares_of(a, model)
            until_ms = limits.get("models", {}).get(model, {}).get("until_ms", 0)
            capacity = 0 if until_ms > now_ms else capacity_now(a, now_ms, model)
            pots[mine] = free_slots(capacity, live.get((a.name, model), 0))
            for pot in group:
                members = [b for b in accounts if b.limits.get("group") == limits["group"]]
                taken = sum(live.get((b.name, model), 0) for b in members)
                pots[pot] = free_slots(min(_capacity_of(b, model) for b in members), taken)
    return pots


def rescoped(account: Account, *, is_by_model: bool) -> Account:
    """The account, noting whether its provider says that it limits each model by itself."""
    if ('"is_by_model":' in account.limits_json) == is_by_model:
        return account
    limits = account.limits
    if is_by_model:
        limits["is_by_model"] = True
    else:
        del limits["is_by_model"]
    return replace(account, limits_json=codec.encode(limits))


def models_at_rest(account: Account, now_ms: int) -> dict[str, tuple[int, str]]:
    """The models of an account that are parked: until when, and why."""
    known = account.limits.get("models", {}).items()
    return {
        model: (said["until_ms"], said["why"])
        for model, said in known
        if said.get("until_ms", 0) > now_ms
    }


def comes_back_ms(accounts: Iterable[Account], now_ms: int) -> list[int]:
    """When accounts, and models of theirs, that are parked may work again."""
    found = []
    for a in accounts:
        found.append(a.parked_until_ms or 0)
        if a.is_by_model:
            found += [until_ms for until_ms, _ in models_at_rest(a, now_ms).values()]
    return [until_ms for until_ms in found if until_ms > now_ms]


def bill(outcome: Outcome, job: Job, *, is_by_steps: bool = False) -> Bill | None:
    """What an attempt's end says about money; None where that stays open.

    What nobody can tell is counted as spent: a budget is never overshot. `is_by_steps` where
    its handler spends in paid steps only.
    """
    known = outcome.cost_microusd
    match outcome.kind:
        case "completed":
            return Bill("billed", known)
        case "doubt":
            return None
        case "released" | "snoozed":
            return None if job.is_open else Bill("not billed", 0, is_assumed=True)
    if outcome.is_billed is False:
        is_assumed = known is None and not outcome.is_fresh
        return Bill("not billed", 0, is_assumed=is_assumed)
    if outcome.is_billed:
        return Bill("billed", known)
    return Bill("unknown", is_by_steps=is_by_steps)


def reclaim_bill(before: Job, after: Job, *, is_unspent: bool = False) -> Bill | None:
    """The same for an attempt whose process died.

    `is_unspent` where money is spent in paid steps only.
    """
    if after.status == "completed":
        result = codec.loads(after.result_json)
        told = amount(result.get("cost_microusd")) if isinstance(result, dict) else None
        return Bill("billed", told)
    if after.status == "in_doubt" or after.is_open:
        return None
    return Bill("unknown", is_by_steps=is_unspent)


def settled(
    bill: Bill | None, before: Job, after: Job, *, counted: int = 0, is_by_steps: bool = False
) -> Bill | None:
    """What is written down of a bill, seen what the job was and became.

    None where the money stays set aside, for a render that goes on or for a paid call whose
    answer the next try has. `counted` is what earlier tries of this generation were counted
    for already: it is not counted again. `is_by_steps` where the job itself shows that it is
    paid for in steps: what no step of this generation was begun with is not spent.
    """
    if after.is_open or (after.reserved_microusd and not after.is_terminal):
        return None
    aside, is_begun = before.reserved_microusd, before.is_paid or before.is_open
    if bill is None:
        if not aside:
            return None
        # Set aside by this very try, when it asked for another render.
        bill = Bill("billed" if after.status == "completed" else "unknown")
    if bill.is_assumed and before.is_paid and not before.is_open:
        bill = Bill("unknown")
    if bill.cost_microusd is None:
        if (is_by_steps or bill.is_by_steps) and not is_begun:
            return Bill("not billed", 0)
        return bill._replace(cost_microusd=aside)
    if before.is_paid and not aside:
        return bill._replace(cost_microusd=max(0, bill.cost_microusd - counted))
    return bill


AMOUNT_MAX = 10**15
"""A billion dollars: no bill, and sums of them stay within 64 bits."""


def amount(told: Any) -> int | None:
    """Micro-dollars, where that is what was told; an answer may hold anything."""
    if isinstance(told, bool) or not hasattr(type(told), "__index__"):  # numpy's integers have it
        return None
    n = index(told)
    return n if 0 <= n <= AMOUNT_MAX else None


def used_up_text(pot: str, left_microusd: int, price: int) -> str:
    """Why a budget rests an account, and what to do."""
    which, how = {
        "budget": ("the queue's budget", "q.budget = …"),
        "budget:day": ("the budget of the day", "q.budget_per_day = …"),
    }.get(pot, ("its budget", f"q.accounts.add({pot.partition(':')[2]!r}, budget=…)"))
    return (
        f"{which} has {dollars(max(0, left_microusd))} left and a job may cost {dollars(price)};"
        f" raise it to go on: {how}"
    )


def dollars(microusd: int) -> str:
    """An amount as a person reads it."""
    return f"${microusd / 1_000_000:,.2f}"


def capacity_now(account: Account, now_ms: int, model: str | None = None) -> int:
    """How many jobs the account may run at once now: its capacity, or what was learned.

    A provider that had no slot left lowers it; it rises again by one a minute. With `model`,
    how many jobs of that model, where each has slots of its own.
    """
    learned, capacity = account.limits, account.capacity
    if model is not None:
        capacity = _capacity_of(account, model)
        learned = learned.get("models", {}).get(model, {})
    if "learned" not in learned:
        return capacity
    risen = max(0, now_ms - learned["learned_ms"]) // LEARNED_RISE_MS
    return min(capacity, int(learned["learned"] + risen))


def _capacity_of(account: Account, model: str) -> int:
    """What the user says of this model; the account's own where nothing is said."""
    return int(account.limits.get("model_capacity", {}).get(model, account.capacity))


def reclaim_decision(
    job: Job, finished_result_json: str | None, max_deaths: int, doubtful: Sequence[str] = ()
) -> Decision:
    """What becomes of a job whose owner died.

    `finished_result_json` is what its handler had returned, where its finished files prove
    that it had (promise P5); then nothing runs again. `doubtful` names the paid steps that were
    begun and have no receipt: nobody here can know whether they were done. Otherwise the job is
    queued again and a crash is counted, up to the ceiling; a render that is open is
    collected whatever the ceiling, for it is paid.
    """
    if finished_result_json is not None:
        return Decision("reclaim", {"to": "completed", "result_json": finished_result_json})
    if doubtful:
        names, is_one = " and ".join(map(repr, doubtful)), len(doubtful) == 1
        reason = f"the process died while {names} {'was' if is_one else 'were'} being sent;"
        reason += f" nobody knows if {'it' if is_one else 'they'} arrived"
        return Decision("reclaim", {"to": "in_doubt", "reason": reason})
    if job.is_open and not job.cancel_requested:
        return Decision("reclaim", {"to": "queued", "reason": "its process died"})
    if job.deaths + 1 >= max_deaths and not job.cancel_requested:
        error = {
            "type": "Crashed",
            "message": f"the process that ran it died, {job.deaths + 1} times now",
        }
        reason = f"its process died {job.deaths + 1} times, the ceiling"
        change = {"to": "failed", "reason": reason, "error_json": codec.dumps(error, "error")}
        return Decision("reclaim", change)
    return Decision("reclaim", {"to": "queued", "reason": "its process died"})


def next_wakeup_s(now_ms: int, times_ms: Iterable[int | None], longest_s: float) -> float:
    """Seconds until the earliest of these moments, at most `longest_s`, at least zero."""
    due_ms = [at for at in times_ms if at is not None]
    if not due_ms:
        return longest_s
    return min(longest_s, max(0.0, (min(due_ms) - now_ms) / 1000))
