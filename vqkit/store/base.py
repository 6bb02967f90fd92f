"""What a store can do, and everything about it that is not SQL.

`Store` holds the verbs: it opens a transaction, reads the rows it needs, lets
`lifecycle.apply` and `policy.assign` decide, writes rows, attempts, events and counters
together and commits. Those of paid work are in `store.paid`, those that put the rows of sheets
in `store.rows`; a dialect (`store.sqlite`) supplies the `store.primitives`. Every verb works
on batches; one call of `turn` is one transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from .. import codec, lifecycle, policy
from ..clock import local_text
from ..errors import LifecycleError, StaleFence
from ..job import Account, Attempt, Event, Job, Output
from ..outcome import Bill, Effect
from ..secrets import redact, redact_json
from .paid import next_minutes
from .primitives import Claim, JobFilter, Runner, SheetJobs, Transition, TurnResult, tally
from .rows import PUT_CHUNK, ROW_GONE, RowVerbs, holders

__all__ = [
    "Claim",
    "JobFilter",
    "Runner",
    "SheetJobs",
    "Store",
    "Transition",
    "TurnResult",
]

EXPIRE_CHUNK = 500
DELETE_CHUNK = 500


class Store(RowVerbs):
    """The verbs of a queue's database, on one connection, used by one thread."""

    def cancel_left(self, numbers: Sequence[int], absent: Set[str] = frozenset()) -> int:
        """Cancels those of these that no row of any sheet has any more. Returns how many.

        One that was put by hand is left alone: it never had a row. Sheets named `absent` are
        not there any more, and have no rows.
        """
        done = 0
        for start in range(0, len(numbers), PUT_CHUNK):
            with self.transaction():
                found = self._jobs_by_number(set(numbers[start : start + PUT_CHUNK]))
                shares = self.shares(found.keys())
                left = [
                    job
                    for job in found.values()
                    if not holders(job, shares.get(job.number, {}), absent)
                ]
                change = {"reason": ROW_GONE}
                done += len(self._apply_all(left, "cancel", self.clock.now_ms(), change))
        return done

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
            named_only = policy.named_only(accounts, claim.named_only, claim.stand_ins)
            claim = replace(claim, named_only=named_only)
            why = {a.name: reason for a in accounts if (reason := claim.why_not(a))}
            accounts = self._note_scopes(accounts, why, claim.by_model)
            able = [a for a in accounts if a.name not in why]
            used_up = self.used_up(able, now_ms)
            why |= used_up
            able = [a for a in able if a.name not in why]
            collecting = [
                a for a in accounts if a.name in used_up or (a.name in why and claim.may_collect(a))
            ]
            broke = [a for a in accounts if a.name in used_up]
            claimed: list[Job] = []
            is_limited = False
            if (able or collecting) and not is_paused:
                claimed, is_limited = self._claim(claim, able, broke, collecting, now_ms)
            parked = policy.comes_back_ms(accounts, now_ms)
            why |= _resting_models(able, now_ms)
            return TurnResult(
                claimed=tuple(claimed),
                stale=tuple(stale),
                repeated=tuple(repeated),
                cancels=tuple(self._wanted_cancels(claim.owner)),
                why=why,
                accounts=tuple(accounts),
                is_paused=is_paused,
                next_ms=min(
                    (t for t in (*parked, *next_minutes(accounts), self._next_due_ms()) if t),
                    default=None,
                ),
                is_limited=is_limited,
                stop_ms=self.setting("stop_ms", 0),
                out_of_budget=frozenset(a.name for a in broke),
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
                # What is open is not spent yet: whoever collects or closes it says what it was.
                bill = self._settled(t.bill, job, after)
                ends.append(_ended(job, t.fence, now_ms, word, error_json, bill))
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

    def _keep_late(self, t: Transition, now_ms: int) -> Event:
        """A result that came too late to count is kept with its attempt, files and all."""
        result_json = t.change.get("result_json")
        if result_json is not None:
            result_json = redact_json(result_json)
        self._late_result(t.job, t.fence, now_ms, t.outcome or "late", result_json)
        self._insert_outputs(t.outputs)
        data = codec.dumps({"outcome": t.outcome, "files": len(t.outputs)})
        return Event("job.late_result", t.job, now_ms, "warning", t.fence, data)

    def _claim(
        self,
        claim: Claim,
        able: Sequence[Account],
        broke: Sequence[Account],
        collecting: Sequence[Account],
        now_ms: int,
    ) -> tuple[list[Job], bool]:
        live = self.live_counts()
        pots = self._pots(live, now_ms)
        models, of_models = self._model_shares((*able, *broke), claim, now_ms)
        pots |= of_models
        slots = [
            policy.Slots(
                a.name,
                a.provider,
                policy.free_slots(policy.capacity_now(a, now_ms), live.get(a.name, 0))
                if a.name not in models
                else sum(min(pots[pot] for pot in shares) for shares in models[a.name].values()),
                policy.pots_of(a, pots.keys()),
                a.provider not in claim.named_only,
                models.get(a.name),
            )
            for a in (*able, *broke)
        ]
        prices = {a.name: int(a.limits.get("price", 0)) for a in (*able, *collecting)}
        first = self._claim_paid(slots, pots, claim.limit) if any(prices.values()) else []
        slots = policy.left_slots(slots[: len(able)], first)
        slots += [policy.Slots(a.name, a.provider, 0, takes_any=False) for a in collecting]
        wanted: Counter[str] = Counter()
        for s in slots:
            wanted.update(dict.fromkeys(s.lanes, s.free))
            wanted[s.lanes[0]] += live.get(s.account, 0)  # its open renders, which need no slot
        waiting = {
            # One more than may be taken shows that the limit, not the work, was the end of it.
            lane: self._waiting(lane, min(n, claim.limit + 1) + len(first))
            for lane, n in wanted.items()
            if n > 0
        }
        for s in slots:
            for lane in s.lanes if s.models else ():
                self._add_models(waiting, lane, s.models, pots, min(wanted[lane], claim.limit + 1))
        dealt = {grant.number for grant in first}
        if dealt:
            waiting = {
                lane: [c for c in found if c.number not in dealt] for lane, found in waiting.items()
            }
        grants = first + policy.assign(slots, waiting, pots)
        is_limited = len(grants) > claim.limit
        grants = grants[: claim.limit]
        found = self._jobs_by_number({g.number for g in grants})
        pairs, events, attempts = [], [], []
        for grant in grants:
            before = found[grant.number]
            if before.expires_ms is not None and before.expires_ms <= now_ms:
                continue  # more fell due than one turn puts away; the next one does
            change: dict[str, Any] = {"owner": claim.owner, "account": grant.account}
            if prices[grant.account] and not (before.is_open or before.is_paid):
                change["reserve"] = prices[grant.account]
            if before.reserved_microusd and before.account != grant.account:
                # Its call was made on another account, which has paid for it.
                self._settle_doubt(before, now_ms, Bill("unknown", before.reserved_microusd))
                change["reserve"] = 0
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
        self._use_minutes((*able, *broke), [(b, a) for b, a in pairs if not b.is_open], now_ms)
        self._record(events)
        return [after for _, after in pairs], is_limited

    def _claim_paid(
        self, slots: Sequence[policy.Slots], pots: dict[str, int], limit: int
    ) -> list[policy.Grant]:
        """Deals out the jobs that go on with a paid call: they need a slot, and no money.

        What they take of other pots is taken from `pots`.
        """
        slots = [replace(s, costs=policy.but_money(s.costs)) for s in slots]
        lanes = {lane for s in slots if s.free for lane in s.lanes}
        waiting = {lane: self._waiting_paid(lane, limit + 1) for lane in lanes}
        for s in slots:
            for lane in s.lanes if s.models and s.free else ():
                if waiting[lane]:  # else there is no need to look model by model
                    self._add_models(waiting, lane, s.models, pots, limit + 1, is_paid=True)
        models = {c.number: c.model for found in waiting.values() for c in found}
        grants = policy.assign(slots, waiting, pots)
        by_name = {s.account: s for s in slots}
        for grant in grants:
            taker = by_name[grant.account]
            for pot, cost in taker.costs:
                pots[pot] -= cost
            for pot in taker.models[models[grant.number]] if taker.models is not None else ():
                pots[pot] -= 1
        return grants

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
        for before, after in pairs:
            is_aside = before.status == "in_doubt" or before.reserved_microusd
            if is_aside and after.status == "cancelled" and not after.is_open:
                self._settle_doubt(before, now_ms, Bill("unknown", before.reserved_microusd))
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
                is_unspent = bool(decision.change.get("is_unspent"))
                bill = policy.reclaim_bill(job, after, is_unspent=is_unspent)
                bill = self._settled(bill, job, after)
                ends.append(_ended(job, job.fence, now_ms, word, error_json, bill))
            self._write(pairs)
            self._end(ends, now_ms)
            self._insert_outputs(outputs)
            self._record(events)
            self._delete_runner(owner)
        return Counter(after.status for _, after in pairs)

    def prune_these(self, numbers: Sequence[int]) -> int:
        """Deletes those of these that are finished and have no open render. Returns how many."""
        with self.transaction():
            found = self._jobs_by_number(set(numbers)).values()
            gone = [job for job in found if job.is_terminal and not job.is_open]
            self._forget(gone)
        return len(gone)

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
                self._forget(found)
            gone += len(found)
            if len(found) < chunk:
                break
        return gone

    def _forget(self, jobs: Sequence[Job]) -> None:
        self._delete_jobs([job.number for job in jobs])
        self._count(Counter({k: -n for k, n in tally(jobs).items()}))

    def remove_account(self, name: str) -> bool:
        """Removes an account that no attempt and no money counts for; False for any other."""
        with self.transaction():
            if self._has_worked(name):
                return False
            self._delete_account(name)
            data = codec.dumps({"name": name})
            self._record(
                [Event("account.removed", at_ms=self.clock.now_ms(), data_json=data)],
            )
        return True

    def save_account(self, account: Account) -> None:
        """Adds the account, or replaces what is known of it."""
        self.change_account(account.name, lambda _: account)

    def change_account(self, name: str, change: Callable[[Account | None], Account]) -> Account:
        """Adds or changes an account; `change` is given what is known of it, None if nothing."""
        with self.transaction():
            before = next((a for a in self.accounts() if a.name == name), None)
            account = change(before)
            if account.parked_reason is not None:
                account = replace(account, parked_reason=redact(account.parked_reason))
            self._write_account(account)
            data = codec.dumps({"name": account.name, "capacity": account.capacity})
            self._record([Event("account.saved", at_ms=self.clock.now_ms(), data_json=data)])
        return account

    def change_setting(self, name: str, change: Callable[[Any], Any]) -> Any:
        """Puts `change` of the setting's value in its place, unseen by others in between.

        It is given None where there is none yet. Returns the new value.
        """
        with self.transaction():
            before = self.setting(name)
            after = change(before)
            if after != before:
                self._write_setting(name, after)
        return after

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


def _ended(
    job: Job, fence: int, now_ms: int, word: str, error_json: str | None, bill: Bill | None
) -> Attempt:
    money, cost = (None, None) if bill is None else bill[:2]
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


def _resting_models(able: Sequence[Account], now_ms: int) -> dict[str, str]:
    """Why models of accounts get no work, while the accounts do."""
    return {
        f"{a.name}, model {model or 'unnamed'}": f"{reason}, until {local_text(until_ms, now_ms)}"
        for a in able
        if a.is_by_model
        for model, (until_ms, reason) in policy.models_at_rest(a, now_ms).items()
    }


def _is_spending(name: tuple[str, str, str]) -> bool:
    """What was spent stays counted when the attempts it was spent on are pruned."""
    return name[0] == "money" and name[2] != "reserved"


def _redacted_runner(runner: Runner, now_ms: int) -> Runner:
    return runner._replace(
        error=None if runner.error is None else redact(runner.error),
        health_json=redact_json(runner.health_json),
        updated_ms=now_ms,
    )
