"""What a store can do, and everything about it that is not SQL.

`Store` holds the verbs: it opens a transaction, reads the rows it needs, lets
`lifecycle.apply` and `policy.assign` decide, writes rows, attempts, events and counters
together and commits. A dialect (`store.sqlite`) supplies the primitives below the line.
Every verb works on batches; one call of `turn` is one transaction.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple

from .. import codec, lifecycle, policy, secrets
from ..clock import Clock
from ..errors import LifecycleError, StaleFence, UnknownName
from ..job import Account, Added, Attempt, Event, Job, Output, Step
from ..outcome import Bill, Effect
from ..secrets import redact, redact_json

__all__ = ["Claim", "JobFilter", "Runner", "Store", "Transition", "TurnResult"]

MINUTE_MS = 60_000
PUT_CHUNK = 1000
EXPIRE_CHUNK = 500
DELETE_CHUNK = 500


class Transition(NamedTuple):
    """A verb to apply to a running job, by the attempt that holds it.

    `outcome` ends the attempt's row with that word; verbs that do not end it leave it None.
    """

    job: int
    verb: str
    fence: int
    change: Mapping[str, Any] = MappingProxyType({})
    outcome: str | None = None
    outputs: tuple[Output, ...] = ()
    effect: Effect | None = None
    bill: Bill | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """A wish for work: who claims, which accounts may work here, at most how many jobs.

    `why_not` says in a sentence why an account gets nothing now, or None.
    """

    owner: str
    why_not: Callable[[Account], str | None]
    limit: int = 500


@dataclass(frozen=True, slots=True)
class TurnResult:
    """What one turn did and saw.

    `stale` transitions came from attempts that no longer hold their job. `repeated` ones
    had been committed before, by a commit whose answer was lost. `cancels` are the
    owner's running jobs, as (number, fence), that the user wants stopped. `next_ms` is
    when a waiting job falls due or a parked account comes back.
    """

    claimed: tuple[Job, ...] = ()
    stale: tuple[Transition, ...] = ()
    repeated: tuple[Transition, ...] = ()
    cancels: tuple[tuple[int, int], ...] = ()
    why: Mapping[str, str] = field(default_factory=dict)
    accounts: tuple[Account, ...] = ()
    is_paused: bool = False
    next_ms: int | None = None
    is_limited: bool = False


class Runner(NamedTuple):
    """A process that owns claims, and how its pump fares. `state` is plain text."""

    id: str
    pid: int
    host: str
    boot_id: str
    start_ticks: int
    started_ms: int
    state: str = "starting"
    error: str | None = None
    health_json: str = "{}"
    updated_ms: int = 0


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs: all that match every part that is given. `newest` turns the order round."""

    status: tuple[str, ...] = ()
    batch: str | None = None
    account: str | None = None
    owner: str | None = None
    numbers: tuple[int, ...] | None = None
    ids: tuple[str, ...] | None = None
    after: int = 0
    limit: int | None = None
    newest: bool = False


class Store(ABC):
    """The verbs of a queue's database, on one connection, used by one thread."""

    clock: Clock
    before_write: Callable[[], None] = staticmethod(lambda: None)
    """Called when the database is ours and nothing is written yet; may raise to stop it."""

    # -- verbs -------------------------------------------------------------------------

    def put(self, jobs: Sequence[Job]) -> Added:
        """Puts queued jobs; one whose key is there already is not put again.

        `number` is given by the database. A queued job that never started takes a changed
        payload; one that has started keeps its own and is counted under `conflicts`.
        Putting a job whose id is there is harmless, so an unknown commit may be repeated.
        """
        added = Added()
        for start in range(0, len(jobs), PUT_CHUNK):
            added += self._put_chunk(jobs[start : start + PUT_CHUNK])
        return added

    def _put_chunk(self, jobs: Sequence[Job]) -> Added:
        with self.transaction():
            now_ms = self.clock.now_ms()
            known = {job.key: job for job in self._jobs_by_key([j.key for j in jobs if j.key])}
            known_ids = {job.id for job in self.jobs(JobFilter(ids=tuple(j.id for j in jobs)))}
            fresh, changed, ids = [], [], []
            existing = conflicts = 0
            for job in jobs:
                found = known.get(job.key) if job.key else None
                if found is None and job.id not in known_ids:
                    fresh.append(job._replace(created_ms=now_ms, updated_ms=now_ms))
                    ids.append(job.id)
                    known_ids.add(job.id)
                    if job.key:
                        known[job.key] = job
                    continue
                ids.append(found.id if found else job.id)
                if found is None or found.payload_hash == job.payload_hash or not found.number:
                    existing += 1
                elif found.status == "queued" and found.fence == 0:
                    new = _with_payload_of(found, job, now_ms)
                    changed.append((found, new))
                    known[new.key or ""] = new  # the next row with this key meets this one
                else:
                    conflicts += 1
            inserted = self._insert_jobs(fresh)
            events = [
                Event("job.queued", job.number, now_ms, data_json=_origin(job)) for job in inserted
            ]
            events += [Event("job.changed", new.number, now_ms) for _, new in changed]
            self._write_payloads([new for _, new in changed])
            self._record(events)
            self._count(Counter(("batch", job.batch or "", "queued") for job in inserted))
        return Added(len(fresh), existing, len(changed), conflicts, ids=tuple(ids))

    def turn(
        self,
        transitions: Sequence[Transition] = (),
        claim: Claim | None = None,
        runner: Runner | None = None,
    ) -> TurnResult:
        """Settles what has ended and claims what is free, in one transaction.

        A transition whose attempt no longer holds its job changes nothing but is kept: its
        result goes to its attempt's row. Nothing is claimed while the queue is paused.
        `runner` renews a runner's row on the way.
        """
        with self.transaction():
            now_ms = self.clock.now_ms()
            stale, repeated = self._settle(transitions, now_ms)
            if runner is not None:
                self._write_runner(_redacted_runner(runner, now_ms))
            if claim is None:
                return TurnResult(stale=tuple(stale), repeated=tuple(repeated))
            self._promote_due(now_ms)
            self._expire_due(now_ms)
            is_paused = bool(self.setting("paused"))
            accounts = self.accounts()
            why = {a.name: reason for a in accounts if (reason := claim.why_not(a))}
            able = [a for a in accounts if a.name not in why]
            why |= self.used_up(able, now_ms)
            able = [a for a in able if a.name not in why]
            claimed: list[Job] = []
            is_limited = False
            if able and not is_paused:
                claimed, is_limited = self._claim(claim, able, now_ms)
            parked = [a.parked_until_ms for a in accounts if (a.parked_until_ms or 0) > now_ms]
            return TurnResult(
                claimed=tuple(claimed),
                stale=tuple(stale),
                repeated=tuple(repeated),
                cancels=tuple(self._wanted_cancels(claim.owner)),
                why=why,
                accounts=tuple(accounts),
                is_paused=is_paused,
                next_ms=min(
                    (t for t in (*parked, *_next_minutes(accounts), self._next_due_ms()) if t),
                    default=None,
                ),
                is_limited=is_limited,
            )

    def _settle(
        self, transitions: Sequence[Transition], now_ms: int
    ) -> tuple[list[Transition], list[Transition]]:
        found = self._jobs_by_number({t.job for t in transitions})
        pairs: dict[int, tuple[Job, Job]] = {}
        events: list[Event | None] = []
        ends: list[Attempt] = []
        outputs: list[Output] = []
        stale: list[Transition] = []
        repeated: list[Transition] = []
        effects: list[tuple[str, Effect]] = []
        good: set[str] = set()
        for t in transitions:
            before, job = pairs.get(t.job) or (found[t.job],) * 2 if t.job in found else (None,) * 2
            if job is None or before is None:  # pruned meanwhile
                stale.append(t)
                continue
            try:
                after, event = lifecycle.apply(job, t.verb, now_ms, t.fence, **t.change)
            except StaleFence:
                if t.outcome is None:
                    continue
                if t.outcome != "late" and self._has_ended(t.job, t.fence):
                    repeated.append(t)
                else:
                    stale.append(t)
                    events.append(self._keep_late(t, now_ms))
                continue
            pairs[t.job] = (before, after)
            events.append(event)
            outputs.extend(t.outputs)
            if t.outcome is not None:
                word = "cancelled" if after.status == "cancelled" else t.outcome
                error_json = t.change.get("error_json")
                ends.append(_ended(job, t.fence, now_ms, word, error_json, t.bill))
            if t.effect is not None and job.account is not None:
                effects.append((job.account, t.effect))
            elif t.verb == "complete" and job.account is not None:
                good.add(job.account)
        self._write(list(pairs.values()))
        self._end(ends, now_ms)
        self._insert_outputs(outputs)
        events += self._affect(effects, good, now_ms)
        self._record(events)
        return stale, repeated

    def used_up(self, able: Sequence[Account], now_ms: int) -> dict[str, str]:
        """Why accounts rest whose budget does not allow one more job; it pauses, nothing fails."""
        if not any("price" in a.limits for a in able):
            return {}
        pots = self._pots({}, now_ms)
        why = {}
        for a in able:
            for pot, price in policy.pots_of(a, pots.keys()):
                if pot.startswith("budget") and pots[pot] < price:
                    why[a.name] = policy.used_up_text(pot, pots[pot], price)
        return why

    def _end(self, ends: Sequence[Attempt], now_ms: int) -> None:
        """Ends attempts, and counts what they cost."""
        self._end_attempts(ends)
        spent: Counter[tuple[str, str, str]] = Counter()
        for end in ends:
            if end.cost_microusd:
                spent["money", end.account, "spent"] += end.cost_microusd
                spent["money", end.account, day_of(now_ms)] += end.cost_microusd
        self._count(spent)

    def _affect(
        self, effects: Sequence[tuple[str, Effect]], good: Set[str], now_ms: int
    ) -> list[Event]:
        """What attempts' ends mean for their accounts; a good one ends a row of refusals."""
        before = {account.name: account for account in self.accounts()}
        after = dict(before)
        live = self.live_counts() if effects else {}
        for name in good & before.keys():
            limits = codec.loads(after[name].limits_json)
            if limits.pop("moderated", 0):
                after[name] = replace(after[name], limits_json=codec.encode(limits))
        for name, effect in effects:
            for account in list(after.values()):
                is_meant = account.name == name or (
                    effect.is_for_provider and account.provider == before[name].provider
                )
                if is_meant:
                    taken = live.get(account.name, 0) + 1  # the refused one has just been let go
                    after[account.name] = policy.affected(account, effect, taken, now_ms)
        changed = [a for name, a in after.items() if a != before[name]]
        for account in changed:
            self._write_account(account)
        return [
            Event(
                "account.parked",
                at_ms=now_ms,
                level="warning",
                data_json=codec.dumps({"name": a.name, "reason": redact(a.parked_reason or "")}),
            )
            for a in changed
            if a.parked_until_ms != before[a.name].parked_until_ms
        ]

    def _keep_late(self, t: Transition, now_ms: int) -> Event:
        """A result that came too late to count is kept with its attempt, files and all."""
        result_json = t.change.get("result_json")
        if result_json is not None:
            result_json = redact_json(result_json)
        self._late_result(t.job, t.fence, now_ms, t.outcome or "late", result_json)
        self._insert_outputs(t.outputs)
        data = codec.dumps({"outcome": t.outcome, "files": len(t.outputs)})
        return Event("job.late_result", t.job, now_ms, "warning", t.fence, data)

    def _claim(self, claim: Claim, able: Sequence[Account], now_ms: int) -> tuple[list[Job], bool]:
        live = self.live_counts()
        pots = self._pots(live, now_ms)
        slots = [
            policy.Slots(
                a.name,
                a.provider,
                policy.free_slots(policy.capacity_now(a, now_ms), live.get(a.name, 0)),
                policy.pots_of(a, pots.keys()),
            )
            for a in able
        ]
        wanted: Counter[str] = Counter()
        for s in slots:
            wanted.update(dict.fromkeys(s.lanes, s.free))
            wanted[s.lanes[0]] += live.get(s.account, 0)  # its open renders, which need no slot
        waiting = {
            # One more than may be taken shows that the limit, not the work, was the end of it.
            lane: self._waiting(lane, min(n, claim.limit + 1))
            for lane, n in wanted.items()
            if n > 0
        }
        grants = policy.assign(slots, waiting, pots)
        is_limited = len(grants) > claim.limit
        grants = grants[: claim.limit]
        found = self._jobs_by_number({g.number for g in grants})
        pairs, events, attempts = [], [], []
        prices = {a.name: int(a.limits.get("price", 0)) for a in able}
        for grant in grants:
            before = found[grant.number]
            if before.expires_ms is not None and before.expires_ms <= now_ms:
                continue  # more fell due than one turn puts away; the next one does
            change: dict[str, Any] = {"owner": claim.owner, "account": grant.account}
            if prices[grant.account] and not before.is_open:
                change["reserve"] = prices[grant.account]
            after, event = lifecycle.apply(before, "claim", now_ms, **change)
            pairs.append((before, after))
            events.append(event)
            attempts.append(
                Attempt(
                    *(after.number, after.fence, after.attempt, grant.account, claim.owner),
                    now_ms,
                    generation=after.generation,
                    reserved_microusd=after.reserved_microusd,
                )
            )
        self._write(pairs)
        self._insert_attempts(attempts)
        self._use_minutes(able, [(b, a) for b, a in pairs if not b.is_open], now_ms)
        self._record(events)
        return [after for _, after in pairs], is_limited

    def _pots(self, live: Mapping[str, int], now_ms: int) -> dict[str, int]:
        """What is left now of everything that accounts share or use up."""
        accounts = self.accounts()
        pots: dict[str, int] = {}
        money = self.money(now_ms)
        for a in accounts:
            limits = a.limits
            if "group" in limits:
                group = f"group:{limits['group']}"
                members = [b for b in accounts if b.limits.get("group") == limits["group"]]
                taken = sum(live.get(b.name, 0) for b in members)
                pots[group] = min(b.capacity for b in members) - taken
            if "per_minute" in limits:
                is_new = now_ms - limits.get("minute_ms", 0) >= MINUTE_MS
                used = 0 if is_new else limits.get("used", 0)
                pots[f"minute:{a.name}"] = limits["per_minute"] - used
            if "budget" in limits:
                pots[f"budget:{a.name}"] = limits["budget"] - sum(money[a.name][:2])
        if (budget := self.setting("budget_microusd")) is not None:
            pots["budget"] = budget - sum(sum(m[:2]) for m in money.values())
        if (budget := self.setting("budget_day_microusd")) is not None:
            pots["budget:day"] = budget - sum(m[1] + m[2] for m in money.values())
        return pots

    def money(self, now_ms: int) -> dict[str, tuple[int, int, int]]:
        """{account: (spent ever, reserved now, spent today)}, in micro-dollars."""
        kept, today = self._kept_counts(), day_of(now_ms)
        return {
            a.name: (
                kept.get(("money", a.name, "spent"), 0),
                kept.get(("money", a.name, "reserved"), 0),
                kept.get(("money", a.name, today), 0),
            )
            for a in self.accounts()
        }

    def _use_minutes(
        self, able: Sequence[Account], claimed: Sequence[tuple[Job, Job]], now_ms: int
    ) -> None:
        """Counts what accounts with a limit of requests per minute have used of this one."""
        used = Counter(after.account for _, after in claimed)
        for a in able:
            limits = a.limits
            if "per_minute" not in limits or not used[a.name]:
                continue
            if now_ms - limits.get("minute_ms", 0) >= MINUTE_MS:
                limits |= {"minute_ms": now_ms, "used": 0}
            limits["used"] += used[a.name]
            self._write_account(replace(a, limits_json=codec.encode(limits)))

    def _expire_due(self, now_ms: int) -> None:
        due = self._expired(now_ms, EXPIRE_CHUNK)
        if due:
            self._apply_all(due, "expire", now_ms, {})

    def transition(self, chosen: JobFilter, verb: str, **change: Any) -> tuple[int, ...]:
        """Applies a verb that needs no fence to all chosen jobs it fits, in transactions.

        ``cancel`` means cancel at once where the job waits, ask where it runs. Jobs whose
        status does not allow the verb are left alone. Returns the numbers of those changed.
        """
        done: list[int] = []
        after, left = chosen.after, chosen.limit
        while left is None or left > 0:
            limit = PUT_CHUNK if left is None else min(PUT_CHUNK, left)
            with self.transaction():
                found = self.jobs(replace(chosen, after=after, limit=limit, newest=False))
                done += self._apply_all(found, verb, self.clock.now_ms(), change)
            if len(found) < limit:
                break
            after = found[-1].number
            left = None if left is None else left - len(found)
        return tuple(done)

    def _apply_all(
        self, jobs: Sequence[Job], verb: str, now_ms: int, change: Mapping[str, Any]
    ) -> list[int]:
        pairs, events = [], []
        for job in jobs:
            fitting = "request_cancel" if verb == "cancel" and job.status == "running" else verb
            if fitting == "request_cancel" and job.cancel_requested:
                continue
            try:
                after, event = lifecycle.apply(job, fitting, now_ms, **change)
            except LifecycleError:
                continue
            pairs.append((job, after))
            events.append(event)
        self._write(pairs)
        self._record(events)
        return [after.number for _, after in pairs]

    def reclaim(
        self, owner: str, decide: Callable[[Job], tuple[policy.Decision, tuple[Output, ...]]]
    ) -> Counter[str]:
        """Takes over every job a dead owner was running, in one transaction.

        `decide` says for each what becomes of it. Counts the jobs by their new status.
        The caller holds the dead owner's lock.
        """
        with self.transaction():
            now_ms = self.clock.now_ms()
            pairs, events, ends = [], [], []
            outputs: list[Output] = []
            for job in self.jobs(JobFilter(status=("running",), owner=owner)):
                decision, made = decide(job)
                after, event = lifecycle.apply(job, decision.verb, now_ms, **decision.change)
                pairs.append((job, after))
                events.append(event)
                outputs.extend(made)
                word = "completed" if after.status == "completed" else "reclaimed"
                error_json = decision.change.get("error_json")
                bill = policy.reclaim_bill(job, after)
                ends.append(_ended(job, job.fence, now_ms, word, error_json, bill))
            self._write(pairs)
            self._end(ends, now_ms)
            self._insert_outputs(outputs)
            self._record(events)
            self._delete_runner(owner)
        return Counter(after.status for _, after in pairs)

    def begin_step(
        self, number: int, fence: int, name: str, *, is_paid: bool, request_json: str | None
    ) -> tuple[Step, bool]:
        """Begins a step, or gives the one that is there, and whether an earlier attempt began it.

        A paid step is on record as an intent, with its key, before it is done. One that is
        there already as an intent was begun by an attempt that never told its end. Raises
        StaleFence for whoever no longer holds the job.
        """
        with self.transaction():
            now_ms = self.clock.now_ms()
            job = self.job(number)
            after, event = lifecycle.apply(job, "begin", now_ms, fence, name=name)
            for step in self.steps(number):
                if (step.generation, step.name) == (job.generation, name):
                    return step, step.fence != fence
            key = step_key(job, name)
            fields = (number, name, job.generation, "intent", is_paid, key, fence, job.account)
            step = Step(*fields, request_json, None, now_ms)
            if is_paid:
                self._write([(job, after)])
                self._write_step(step)
                self._record([event])
        return step, False

    def end_step(
        self, step: Step, fence: int, value_json: str, handle_json: str | None = None
    ) -> None:
        """Keeps what a step gave. With `handle_json` it opened a render at its account."""
        with self.transaction():
            now_ms = self.clock.now_ms()
            job = self.job(step.job)
            change = {"name": step.name}
            if handle_json is not None:
                change["handle_json"] = handle_json
            after, event = lifecycle.apply(job, "step", now_ms, fence, **change)
            self._write([(job, after)])
            self._write_step(_done(step, value_json, now_ms))
            self._record([event])

    def repair_step(self, step: Step, value_json: str, handle_json: str | None) -> None:
        """Keeps what a receipt says a step gave, for an attempt that did not live to say it.

        The caller holds the dead owner's lock, or the job is in doubt.
        """
        with self.transaction():
            now_ms = self.clock.now_ms()
            job = self.job(step.job)
            if handle_json is not None:
                after = job._replace(handle_json=handle_json, updated_ms=now_ms)
                self._write([(job, after)])
            self._write_step(_done(step, value_json, now_ms))
            data = codec.dumps({"name": step.name, "from": "receipt"})
            self._record([Event("job.step_done", job.number, now_ms, data_json=data)])

    def drop_step(self, step: Step, fence: int) -> None:
        """Takes an intent back: it certainly was not done."""
        with self.transaction():
            lifecycle.apply(self.job(step.job), "begin", self.clock.now_ms(), fence)
            self._delete_step(step)

    def resolve(
        self,
        number: int,
        *,
        to: str = "queued",
        value_json: str | None = None,
        handle_json: str | None = None,
        is_fresh: bool = False,
        reason: str | None = None,
    ) -> Job:
        """Ends a job's doubt, by the user's or the provider's word, and returns the job.

        With `value_json` the step in doubt is done and gave that; with `handle_json` its
        render is open. Without either it was not sent, or with `is_fresh` another one is
        to be made; `to="failed"` gives up.
        """
        with self.transaction():
            now_ms = self.clock.now_ms()
            job = self.job(number)
            change: dict[str, Any] = {"to": to, "reason": reason, "fresh": is_fresh}
            if handle_json is not None:
                change["handle_json"] = handle_json
            after, event = lifecycle.apply(job, "resolve", now_ms, **change)
            for step in self.steps(number):
                if step.state == "intent" and step.generation == job.generation:
                    if value_json is not None:
                        self._write_step(_done(step, value_json, now_ms))
                    elif not is_fresh and to == "queued":
                        self._delete_step(step)
            self._write([(job, after)])
            self._record([event])
            if handle_json is None and value_json is None:
                was_not_sent = to == "queued" and not is_fresh
                spent = Bill("unknown", job.reserved_microusd)
                self._settle_doubt(job, now_ms, Bill("not billed", 0) if was_not_sent else spent)
        return after

    def _settle_doubt(self, job: Job, now_ms: int, bill: Bill) -> None:
        """Writes down what the doubtful attempts of this render cost."""
        doubtful = [
            a
            for a in self.attempts(job.number)
            if a.generation == job.generation and a.money is None and a.finished_ms is not None
        ]
        for i, a in enumerate(doubtful):
            cost = bill.cost_microusd if i == len(doubtful) - 1 else 0
            self._end([a._replace(money=bill.money, cost_microusd=cost)], now_ms)

    def close_render(self, number: int, note: str) -> None:
        """Forgets the open render of a finished job: its provider has been told, or is done."""
        with self.transaction():
            job = self.job(number)
            if job.is_terminal and job.is_open:
                closed = job._replace(handle_json=None, updated_ms=self.clock.now_ms())
                self._write([(job, closed)])
                data = codec.dumps({"note": note})
                self._record(
                    [Event("job.render_closed", number, self.clock.now_ms(), data_json=data)]
                )

    def prune(
        self, finished_before_ms: int, statuses: Sequence[str], *, at_most: int | None = None
    ) -> int:
        """Deletes finished jobs and all that belongs to them, a batch at a time. Returns how many.

        Files stay where they are.
        """
        gone = 0
        while at_most is None or gone < at_most:
            with self.transaction():
                chunk = DELETE_CHUNK if at_most is None else min(DELETE_CHUNK, at_most - gone)
                found = self._finished_before(finished_before_ms, statuses, chunk)
                self._delete_jobs([job.number for job in found])
                self._count(Counter({k: -n for k, n in _tally(found).items()}))
            gone += len(found)
            if len(found) < chunk:
                break
        return gone

    def save_account(self, account: Account) -> None:
        """Adds the account, or replaces what is known of it."""
        with self.transaction():
            if account.parked_reason is not None:
                account = replace(account, parked_reason=redact(account.parked_reason))
            self._write_account(account)
            self._record(
                [
                    Event(
                        "account.saved",
                        at_ms=self.clock.now_ms(),
                        data_json=codec.dumps({"name": account.name, "capacity": account.capacity}),
                    )
                ]
            )

    def set_setting(self, name: str, value: Any, *, event: str | None = None) -> None:
        """Keeps a JSON value under a name, with an event of that type if one is given."""
        with self.transaction():
            self._write_setting(name, value)
            if event:
                self._record([Event(event, at_ms=self.clock.now_ms())])

    def save_runner(self, runner: Runner, *, event: Event | None = None) -> None:
        """Adds the runner or renews its row."""
        with self.transaction():
            self._write_runner(_redacted_runner(runner, self.clock.now_ms()))
            if event:
                self._record([event._replace(at_ms=self.clock.now_ms())])

    def forget_runner(self, runner_id: str) -> None:
        """Drops a runner that owns nothing any more."""
        with self.transaction():
            self._delete_runner(runner_id)

    def log(self, event: Event) -> None:
        """Writes one event."""
        with self.transaction():
            self._record([event._replace(at_ms=self.clock.now_ms())])

    def verify_counts(self, *, repair: bool = True) -> dict[tuple[str, str, str], tuple[int, int]]:
        """Holds the counters against the rows: {counter: (kept, true)} where they differ.

        With `repair` they are put right. A difference means that something other than
        vqkit wrote to the database.
        """
        with self.transaction():
            kept, true = self._kept_counts(), self._true_counts()
            off = {
                name: (kept.get(name, 0), true.get(name, 0))
                for name in kept.keys() | true.keys()
                if kept.get(name, 0) != true.get(name, 0) and not _is_spending(name)
            }
            if repair and off:
                self._count(Counter({name: true_n - n for name, (n, true_n) in off.items()}))
        return off

    def counts(self, batch: str | None = None) -> dict[str, int]:
        """Jobs by status, of one batch or all."""
        tally: Counter[str] = Counter()
        for (kind, name, status), n in self._kept_counts().items():
            if kind == "batch" and batch in (None, name):
                tally[status] += n
        return dict(tally)

    def account_counts(self) -> dict[str, dict[str, int]]:
        """{account: {"completed": n, "failed": n}}: what each account has brought to an end."""
        tally: dict[str, dict[str, int]] = {}
        for (kind, name, status), n in self._kept_counts().items():
            if kind == "account":
                tally.setdefault(name, {})[status] = n
        return tally

    def job(self, number_or_id: int | str) -> Job:
        """One job, by number or id. Raises UnknownName."""
        by_number = isinstance(number_or_id, int)
        wanted = (
            JobFilter(numbers=(int(number_or_id),))
            if by_number
            else JobFilter(ids=(str(number_or_id),))
        )
        found = self.jobs(wanted)
        if not found:
            raise UnknownName(
                f"no job {number_or_id!r} in this queue; q.jobs() lists them", name=number_or_id
            )
        return found[0]

    def _write(self, pairs: Sequence[tuple[Job, Job]]) -> None:
        if not pairs:
            return
        if secrets.is_any_known():
            pairs = [(before, _redacted(after)) for before, after in pairs]
        self._update_jobs(pairs)
        delta = _tally([after for _, after in pairs])
        delta.subtract(_tally([before for before, _ in pairs]))
        self._count(Counter({name: n for name, n in delta.items() if n}))

    def _record(self, found: Sequence[Event | None]) -> None:
        events = [event for event in found if event is not None]
        if secrets.is_any_known():
            events = [_redacted_event(event) for event in events]
        self._insert_events(events)

    # -- primitives, one set a dialect ---------------------------------------------------

    @abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """A write transaction; one that ends in an error leaves no trace."""

    @abstractmethod
    def close(self) -> None:
        """Ends the connection."""

    @abstractmethod
    def abandon(self) -> object:
        """After a fork, in the child: lets go of every lock without touching the connection.

        Returns the connection, which must then be kept from ever being closed.
        """

    @abstractmethod
    def changes_elsewhere(self) -> int:
        """A number that changes whenever somebody else has committed."""

    def translated(self, error: BaseException) -> BaseException:
        """A driver's error as one of ours, and any other as it is."""
        return error

    def holder_note(self) -> str:
        """Who keeps us from writing, as a person finds it."""
        return "another process"

    def has_room(self) -> bool:
        """False while the disk is too full to take on more work."""
        return True

    def make_room(self) -> bool:
        """Gives up what room was kept for this, so that results find some. False if none was."""
        return False

    @abstractmethod
    def jobs(self, chosen: JobFilter) -> list[Job]:
        """The chosen jobs in the order they were put, or newest first where that is asked."""

    @abstractmethod
    def iter_jobs(self, chosen: JobFilter) -> Iterator[list[Job]]:
        """The same in pages, so that any number fits in memory."""

    @abstractmethod
    def events(
        self, after: int = 0, job: int | None = None, limit: int = 1000, *, newest: bool = False
    ) -> list[Event]:
        """Events with an id above `after`, oldest first; with `newest` the last `limit`."""

    @abstractmethod
    def attempts(self, job: int | None = None) -> list[Attempt]:
        """All attempts, or one job's, in the order they were claimed."""

    @abstractmethod
    def outputs(self, job: int | None = None) -> list[Output]:
        """Finished files, of one job or all."""

    @abstractmethod
    def steps(self, job: int) -> list[Step]:
        """A job's steps, in the order they were begun."""

    @abstractmethod
    def paid_values(self, account: str) -> list[str]:
        """What the paid steps of this account's jobs gave, as JSON."""

    @abstractmethod
    def stray_renders(self) -> list[Job]:
        """Jobs that are over and whose render is still open at its provider."""

    @abstractmethod
    def accounts(self) -> list[Account]:
        """All accounts, by name."""

    @abstractmethod
    def owners(self) -> set[str]:
        """The runners that hold running jobs."""

    @abstractmethod
    def has_work_for(self, lanes: Sequence[str]) -> bool:
        """True while a queued job stands in one of these lanes, due now or later."""

    @abstractmethod
    def waiting_lanes(self) -> list[str]:
        """The lanes in which jobs wait that may run now."""

    @abstractmethod
    def runners(self) -> list[Runner]:
        """All runners, oldest first."""

    @abstractmethod
    def setting(self, name: str, default: Any = None) -> Any:
        """A setting's value."""

    @abstractmethod
    def live_counts(self) -> dict[str, int]:
        """How many slots of each account are taken."""

    @abstractmethod
    def backup(self, path: str) -> None:
        """Copies the whole database, while it is in use, to a new file."""

    @abstractmethod
    def _jobs_by_key(self, keys: Sequence[str]) -> list[Job]: ...
    @abstractmethod
    def _jobs_by_number(self, numbers: set[int]) -> dict[int, Job]: ...
    @abstractmethod
    def _insert_jobs(self, jobs: Sequence[Job]) -> list[Job]: ...
    @abstractmethod
    def _update_jobs(self, pairs: Sequence[tuple[Job, Job]]) -> None: ...
    @abstractmethod
    def _write_payloads(self, jobs: Sequence[Job]) -> None: ...
    @abstractmethod
    def _delete_jobs(self, numbers: Sequence[int]) -> None: ...
    @abstractmethod
    def _finished_before(self, at_ms: int, statuses: Sequence[str], limit: int) -> list[Job]: ...
    @abstractmethod
    def _waiting(self, lane: str, limit: int) -> list[policy.Candidate]: ...
    @abstractmethod
    def _promote_due(self, now_ms: int) -> None: ...
    @abstractmethod
    def _expired(self, now_ms: int, limit: int) -> list[Job]: ...
    @abstractmethod
    def _next_due_ms(self) -> int | None: ...
    @abstractmethod
    def _wanted_cancels(self, owner: str) -> list[tuple[int, int]]: ...
    @abstractmethod
    def _insert_attempts(self, attempts: Sequence[Attempt]) -> None: ...
    @abstractmethod
    def _end_attempts(self, attempts: Sequence[Attempt]) -> None: ...
    @abstractmethod
    def _has_ended(self, job: int, fence: int) -> bool: ...
    @abstractmethod
    def _late_result(
        self, job: int, fence: int, now_ms: int, outcome: str, result_json: str | None
    ) -> None: ...
    @abstractmethod
    def _insert_events(self, events: Sequence[Event]) -> None: ...
    @abstractmethod
    def _insert_outputs(self, outputs: Sequence[Output]) -> None: ...
    @abstractmethod
    def _write_step(self, step: Step) -> None: ...
    @abstractmethod
    def _delete_step(self, step: Step) -> None: ...
    @abstractmethod
    def _count(self, delta: Mapping[tuple[str, str, str], int]) -> None: ...
    @abstractmethod
    def _kept_counts(self) -> dict[tuple[str, str, str], int]: ...
    @abstractmethod
    def _true_counts(self) -> dict[tuple[str, str, str], int]: ...
    @abstractmethod
    def _write_account(self, account: Account) -> None: ...
    @abstractmethod
    def _write_setting(self, name: str, value: Any) -> None: ...
    @abstractmethod
    def _write_runner(self, runner: Runner) -> None: ...
    @abstractmethod
    def _delete_runner(self, runner_id: str) -> None: ...


def _with_payload_of(found: Job, job: Job, now_ms: int) -> Job:
    return found._replace(
        payload_json=job.payload_json,
        payload_hash=job.payload_hash,
        seed=job.seed,
        source=job.source,
        row=job.row,
        updated_ms=now_ms,
    )


def step_key(job: Job, name: str) -> str:
    """The idempotency key of a step: the same at every try, new with each generation."""
    return f"vqkit-{codec.content_hash(job.id, job.generation, name)}"


def _done(step: Step, value_json: str, now_ms: int) -> Step:
    return step._replace(state="done", value_json=redact(value_json), ended_ms=now_ms)


def _origin(job: Job) -> str:
    origin = {"source": job.source, "row": job.row, "batch": job.batch}
    return codec.dumps({name: value for name, value in origin.items() if value is not None})


def _ended(
    job: Job, fence: int, now_ms: int, word: str, error_json: str | None, bill: Bill | None
) -> Attempt:
    money, cost = (None, None) if bill is None else bill
    return Attempt(
        job.number,
        fence,
        job.attempt,
        job.account or "",
        job.owner or "",
        job.started_ms or now_ms,
        now_ms,
        word,
        None if error_json is None else redact_json(error_json),
        cost_microusd=cost,
        money=money,
    )


def _tally(jobs: Sequence[Job]) -> Counter[tuple[str, str, str]]:
    """What these jobs add to the counters: one by batch and status, one by account and end."""
    tally: Counter[tuple[str, str, str]] = Counter(
        [("batch", job.batch or "", job.status) for job in jobs]
    )
    tally.update(
        ("account", job.account, job.status)
        for job in jobs
        if job.status in ("completed", "failed") and job.account is not None
    )
    for job in jobs:
        if job.reserved_microusd and job.account is not None:
            tally["money", job.account, "reserved"] += job.reserved_microusd
    return tally


def _is_spending(name: tuple[str, str, str]) -> bool:
    """What was spent stays counted when the attempts it was spent on are pruned."""
    return name[0] == "money" and name[2] != "reserved"


def _next_minutes(accounts: Sequence[Account]) -> list[int]:
    """When accounts that have used up their minute may go on."""
    found = [a.limits for a in accounts if "per_minute" in a.limits]
    return [
        limits["minute_ms"] + MINUTE_MS
        for limits in found
        if limits.get("used", 0) >= limits["per_minute"]
    ]


def day_of(ms: int) -> str:
    """The day of a moment, UTC, as the counters name it."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("day:%Y-%m-%d")


def _redacted_event(event: Event) -> Event:
    return event._replace(data_json=redact_json(event.data_json))


def _redacted_runner(runner: Runner, now_ms: int) -> Runner:
    return runner._replace(
        error=None if runner.error is None else redact(runner.error),
        health_json=redact_json(runner.health_json),
        updated_ms=now_ms,
    )


def _redacted(job: Job) -> Job:
    cleaned: dict[str, Any] = {
        name: (redact_json if name.endswith("_json") else redact)(text)
        for name in ("result_json", "error_json", "reason", "stage")
        if (text := getattr(job, name)) is not None and secrets.holds_secret(text)
    }
    return job._replace(**cleaned) if cleaned else job
