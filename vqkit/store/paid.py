"""The verbs of paid work: steps that are done once, doubts, money and the limits of accounts.

`PaidVerbs` is the part of a store's verbs that `store.base.Store` builds on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from .. import codec, lifecycle, policy
from ..errors import InDoubt, LifecycleError, Snooze, UsageError
from ..job import Account, Attempt, Event, Job, Step
from ..outcome import Bill, Effect
from ..secrets import redact, redact_json
from .primitives import Claim, Primitives

__all__ = ["PaidVerbs"]

MINUTE_MS = 60_000
NOT_COVERED = (
    "another paid call is not covered by what is left of the budget; raise it to go on:"
    " q.budget = …, or the account's, q.accounts.add('NAME', budget=…)"
)


class PaidVerbs(Primitives):
    """What a store does about steps and money; everything here is called by its other verbs."""

    def begin_step(
        self, number: int, fence: int, name: str, *, is_paid: bool, request_json: str | None
    ) -> tuple[Step, bool]:
        """Begins a step, or gives the one that is there, and whether an earlier attempt began it.

        A paid step is on record as an intent, with its key, before it is done, and so is the
        money for it: the first of a generation has what the claim has set aside, any other
        sets the account's price aside. Where no budget covers that it is not begun: Snooze is
        raised, at every try to begin it, and the job waits until one does. A step that is
        there already as an intent was begun by an attempt that never told its end. Raises
        StaleFence for whoever no longer holds the job.
        """
        begun = None
        with self.transaction():
            now_ms = self.clock.now_ms()
            job = self.job(number)
            lifecycle.apply(job, "begin", now_ms, fence)  # is it still ours?
            for step in self.steps(number):
                if (step.generation, step.name) == (job.generation, name):
                    return step, step.fence != fence
            cost = self._set_aside(job, now_ms) if is_paid else 0
            if cost is None:
                self._hold(job, name, now_ms)
            else:
                key = step_key(job, name)
                request_json = None if request_json is None else redact_json(request_json)
                fields = (number, name, job.generation, "intent", is_paid, key, fence, job.account)
                begun = Step(*fields, request_json, None, now_ms, cost_microusd=cost)
                if is_paid:
                    reserve = cost + (job.reserved_microusd if job.is_paid else 0)
                    change = {"name": name, "reserve": reserve}
                    after, event = lifecycle.apply(job, "begin", now_ms, fence, **change)
                    self._write([(job, after)])
                    self._write_step(begun)
                    self._record([event])
        if begun is None:
            raise Snooze(0, NOT_COVERED)
        return begun, False

    def _set_aside(self, job: Job, now_ms: int) -> int | None:
        """What a paid call that is begun now may cost; None where no budget covers it."""
        if job.reserved_microusd and not job.is_paid:
            return job.reserved_microusd  # by the claim, or by `renew`; nobody has begun with it
        account = next((a for a in self.accounts() if a.name == job.account), None)
        price = 0 if account is None else int(account.limits.get("price", 0))
        if account is not None and price:
            pots = self._pots({}, now_ms)
            costs = policy.pots_of(account, pots.keys())
            if any(pot.startswith("budget") and pots[pot] < cost for pot, cost in costs):
                return None
            self._reserve_more(job.number, job.fence, price)
        return price

    def _hold(self, job: Job, name: str, now_ms: int) -> None:
        """Notes, once a try, that a paid call was not begun: the job is to wait for money."""
        if job.is_paid and not job.is_short:
            self._write([(job, job._replace(is_short=True))])
        data = {"message": f"{name!r} was not called: {NOT_COVERED}", "level": "warning"}
        _, event = lifecycle.apply(job, "log", now_ms, job.fence, **data)
        told = self.events(job=job.number, limit=1, newest=True)
        if event is not None and not (told and told[0].data_json == event.data_json):
            self._record([event])

    def end_step(
        self, step: Step, fence: int, value_json: str, handle_json: str | None = None
    ) -> None:
        """Keeps what a step gave. With `handle_json` it opened a render at its account."""
        with self.transaction():
            now_ms = self.clock.now_ms()
            job = self.job(step.job)
            opened, step = _opened(job, step, value_json, handle_json)
            after, event = lifecycle.apply(job, "step", now_ms, fence, name=step.name, **opened)
            self._write([(job, after)])
            self._record([event, *self._keep_value(step, value_json, now_ms)])

    def _keep_value(self, step: Step, value_json: str, now_ms: int) -> list[Event]:
        """Writes what a step gave. Where a key stood in it, that is told: it is not kept."""
        kept = redact_json(value_json)
        self._write_step(step._replace(state="done", value_json=kept, ended_ms=now_ms))
        if kept == value_json:
            return []
        data = {
            "message": f"what {step.name!r} gave holds the key of an account; it is kept with"
            " [key] in its place",
        }
        return [Event("job.logged", step.job, now_ms, "warning", step.fence, codec.encode(data))]

    def renew(self, number: int, fence: int) -> str | None:
        """Opens a new generation of the job's steps: what it paid for is of no use.

        What it paid for is counted as spent, and another call is set aside; where no budget
        allows that, says why not, and nothing is set aside. Without a paid step that is done
        there is nothing to renew, so that to repeat it is harmless. Raises StaleFence, and
        InDoubt while a paid step of this generation has no answer.
        """
        with self.transaction():
            now_ms = self.clock.now_ms()
            job = self.job(number)
            lifecycle.apply(job, "renew", now_ms, fence)  # is it still ours?
            paid = self._paid_steps(job)
            for step in paid:
                if step.state == "intent":
                    raise InDoubt(
                        f"job.fresh() while the paid step {step.name!r} has no answer: it may be"
                        " paid for, so no other one is opened until somebody knows",
                        step=step.name,
                    )
            if paid:
                # Nothing is aside where an earlier try was counted as having paid for this one.
                spent = job.reserved_microusd
                mine = next(a for a in self.attempts(number) if a.fence == fence)
                self._count_steps(job, fence, spent)
                renewed, event = lifecycle.apply(job, "renew", now_ms, fence, reserve=0)
                self._write([(job, renewed)])
                self._record([event])
                self._renew_attempt(mine, renewed.generation, spent)
                self._count_spent(mine.account, spent, now_ms)
                job = renewed
            cost = self._set_aside(job, now_ms)
            if cost and not job.reserved_microusd:
                self._write([(job, job._replace(reserved_microusd=cost))])
        return NOT_COVERED if cost is None else None

    def repair_step(self, step: Step, value_json: str, handle_json: str | None) -> None:
        """Keeps what a receipt says a step gave, for an attempt that did not live to say it.

        The caller holds the dead owner's lock, or the job is in doubt.
        """
        with self.transaction():
            now_ms = self.clock.now_ms()
            job = self.job(step.job)
            opened, step = _opened(job, step, value_json, handle_json)
            if opened:
                reserve = opened.pop("reserve", job.reserved_microusd)
                after = job._replace(reserved_microusd=reserve, updated_ms=now_ms, **opened)
                self._write([(job, after)])
            data = codec.dumps({"name": step.name, "from": "receipt"})
            done = Event("job.step_done", job.number, now_ms, data_json=data)
            self._record([done, *self._keep_value(step, value_json, now_ms)])

    def drop_step(self, step: Step, fence: int) -> None:
        """Takes an intent back: it certainly was not done.

        What was set aside for it is left to the try, or goes back where other steps have theirs.
        """
        with self.transaction():
            job = self.job(step.job)
            lifecycle.apply(job, "begin", self.clock.now_ms(), fence)  # is it still ours?
            self._delete_step(step)
            is_paid = bool(self._paid_steps(job))
            reserve = job.reserved_microusd - (step.cost_microusd if is_paid else 0)
            self._write([(job, job._replace(is_paid=is_paid, reserved_microusd=max(0, reserve)))])

    def _paid_steps(self, job: Job) -> list[Step]:
        """The paid steps of the job's generation, begun or done."""
        return [s for s in self.steps(job.number) if s.is_paid and s.generation == job.generation]

    def _settled(self, bill: Bill | None, job: Job, after: Job) -> Bill | None:
        """What is written down of a bill for the attempt that ends, see `policy.settled`."""
        counted, is_by_steps = 0, False
        told = None if bill is None else bill.cost_microusd
        if told is not None and job.is_paid and not job.reserved_microusd:
            counted = self._counted(job)
            if counted > told and job.is_open and not after.is_open:  # by its provider's own word
                for step in self._paid_steps(job):
                    self._correct(step, told, self.clock.now_ms())
        elif job.generation and job.reserved_microusd and not job.is_paid:
            is_by_steps = any(
                step.is_paid and (step.fence == job.fence or after.status != "completed")
                for step in self.steps(job.number)
            )
        bill = policy.settled(bill, job, after, counted=counted, is_by_steps=is_by_steps)
        # One that goes on from here is not to be counted again.
        if bill is not None and job.is_paid and after.status in ("failed", "cancelled"):
            self._count_steps(job, job.fence, bill.cost_microusd or 0)
        return bill

    def _counted(self, job: Job) -> int:
        """What earlier tries have been counted for, of calls that are paid and settled."""
        tries = {a.fence: a for a in self.attempts(job.number) if a.generation == job.generation}
        renewed = [s for s in self.steps(job.number) if s.generation < job.generation]
        of_others = sum(s.cost_microusd for s in renewed if s.counted_by in tries)
        return sum(a.cost_microusd or 0 for a in tries.values()) - of_others

    def _count_steps(self, job: Job, fence: int, cost_microusd: int) -> None:
        """Notes that paid steps of the job's generation are counted in the attempt of `fence`.

        `cost_microusd` is what they have cost together; the last one has what the others leave.
        """
        left = cost_microusd
        steps = [s for s in self._paid_steps(job) if s.counted_by is None]
        for step in steps:
            cost = left if step is steps[-1] else min(left, step.cost_microusd)
            left -= cost
            self._write_step(step._replace(cost_microusd=cost, counted_by=fence))

    def resolve(
        self,
        number: int,
        *,
        step: str | None = None,
        to: str = "queued",
        value_json: str | None = None,
        handle_json: str | None = None,
        is_fresh: bool = False,
        cost_microusd: int | None = None,
        error_json: str | None = None,
        reason: str | None = None,
        is_looked_up: bool = False,
    ) -> Job:
        """Ends a job's doubt, by the user's or the provider's word, and returns the job.

        With `value_json` the step in doubt is done and gave that; with `handle_json` its
        render is open. Without either it was not sent, or with `is_fresh` another one is
        to be made; `to="failed"` gives up. These two are about the whole job, the others about
        one `step`, which may be left out where only one is in doubt; the job stays in doubt
        until the last one has its answer. Raises UsageError where it is not clear which.
        `cost_microusd` is what the one in doubt cost, where somebody knows. A value that
        somebody has looked up, and that names a render which another job has, is refused with
        a UsageError that names that job.
        """
        with self.transaction():
            now_ms = self.clock.now_ms()
            job = self.job(number)
            if is_looked_up and value_json is not None:
                self._refuse_taken(job, value_json)
            change: dict[str, Any] = {"to": to, "reason": reason, "fresh": is_fresh}
            paid = self._paid_steps(job)
            doubtful = [s for s in paid if s.state == "intent"]
            told_of = doubtful
            if job.status == "in_doubt" and to == "queued" and not is_fresh:
                if not doubtful and handle_json is not None:  # another handle for a known render
                    told_of = [s for s in paid if s.name == step]
                else:
                    told_of = _meant(job, doubtful, step)
            if left := [s.name for s in doubtful if s not in told_of]:
                change |= {"to": "in_doubt", "doubt": f"nobody knows of {_names(left)} yet"}
            others = [s for s in paid if s.state == "done"]
            was_not_sent = to == "queued" and not is_fresh and value_json is None
            change |= self._word_on_money(
                job,
                told_of or others[-1:],
                value_json=value_json,
                handle_json=handle_json,
                cost_microusd=0 if was_not_sent and doubtful else cost_microusd,
            )
            # Without a value it was not sent: what an earlier call has cost stays set aside.
            change["is_paid"] = value_json is not None or (bool(others) and not is_fresh)
            if error_json is not None:
                change["error_json"] = error_json
            after, event = lifecycle.apply(job, "resolve", now_ms, **change)
            told: list[Event] = []
            by_name = {mine.name: mine for mine in self._paid_steps(job)}  # as they are by now
            for mine in (by_name[mine.name] for mine in told_of):
                if value_json is not None:
                    told += self._keep_value(mine, value_json, now_ms)
                elif not is_fresh and to == "queued":
                    self._delete_step(mine)
            self._write([(job, after)])
            self._record([event, *told])
            if left:
                return after
            if not after.is_open and not (after.is_paid and after.status == "queued"):
                spent, is_told = change["reserve"], cost_microusd is not None
                if was_not_sent and not others:
                    spent, is_told = 0, True
                word: Any = ("billed" if spent else "not billed") if is_told else "unknown"
                self._settle_doubt(job, now_ms, Bill(word, spent))
        return after

    def _word_on_money(
        self,
        job: Job,
        steps: Sequence[Step],
        *,
        value_json: str | None,
        handle_json: str | None,
        cost_microusd: int | None,
    ) -> dict[str, Any]:
        """What a word about these steps means for the job's money: what is set aside from then on.

        What they were counted for, when their job was given up or cancelled, is put right.
        """
        now_ms, reserve = self.clock.now_ms(), job.reserved_microusd
        opened: dict[str, Any] = {}
        for i, step in enumerate(steps):
            told = cost_microusd
            if i == 0 and handle_json is not None:
                opened, after = _opened(job, step, value_json, handle_json)
                told = after.cost_microusd if "reserve" in opened else None
            elif told is not None and i:
                told = 0  # it was told of all of them together
            if told is None:
                continue
            if step.counted_by is None:
                reserve += told - step.cost_microusd
                self._write_step(step._replace(cost_microusd=told))
            else:
                self._correct(step, told, now_ms)
        if handle_json is not None:
            opened["handle_json"] = handle_json
        return opened | {"reserve": max(0, reserve)}

    def _refuse_taken(self, job: Job, value_json: str) -> None:
        """Raises UsageError where another job of this provider has what the value names."""
        name = _name_of(codec.loads(redact_json(value_json)))
        if name is None:
            return
        accounts = self.accounts()
        provider = next((a.provider for a in accounts if a.name == job.account), None)
        for account in (a.name for a in accounts if a.provider == provider):
            for number, other in self.paid_values(account):
                if number != job.number and _name_of(codec.loads(other)) == name:
                    owner = self.job(number)
                    raise UsageError(
                        f"{name} belongs to job {number} ({owner.status}), so it cannot be what"
                        f" job {job.number} was sent for. Look for that one at the provider;"
                        " q.costs() shows which job has which.",
                        job=number,
                        status=owner.status,
                    )

    def _settle_doubt(self, job: Job, now_ms: int, bill: Bill) -> None:
        """Writes down what the attempts of this render cost of which nobody knew."""
        tries = [
            a
            for a in self.attempts(job.number)
            if a.generation == job.generation and a.finished_ms is not None
        ]
        # The last one, where all are settled: it opened this generation, and paid another one.
        doubtful = [a for a in tries if a.money is None] or tries[-1:]
        for i, a in enumerate(doubtful):
            cost = bill.cost_microusd if i == len(doubtful) - 1 else 0
            self._end([a._replace(money=bill.money, cost_microusd=cost)], now_ms)
        if doubtful and job.is_paid:
            self._count_steps(job, doubtful[-1].fence, bill.cost_microusd or 0)

    def _correct(self, step: Step, cost_microusd: int, now_ms: int) -> None:
        """Puts right what a paid step was counted for, where somebody knows better now."""
        tries = self.attempts(step.job)
        counted = next((a for a in tries if a.fence == step.counted_by), None)
        change = cost_microusd - step.cost_microusd
        if counted is None or not change:
            return
        self._write_step(step._replace(cost_microusd=cost_microusd))
        total = (counted.cost_microusd or 0) + change
        self._correct_attempt(counted, total, "billed" if total else "not billed")
        # What was counted on another day must not open the budget of this one.
        day = day_of(now_ms if change > 0 else counted.finished_ms or now_ms)
        self._count({("money", counted.account, kind): change for kind in ("spent", day)})

    def attach_anew(
        self,
        number: int,
        value_json: str,
        reason: str,
        *,
        step: str | None = None,
        handle_json: str | None = None,
    ) -> Job:
        """Puts another value in place of the one that a person had attached to a step.

        For a job that waits, is in doubt about another step, or has failed: then it is queued
        again. `reason` is that of the earlier word, `handle_json` the handle where it was that
        of a render. Steps that were done with the earlier value, and cost nothing, are done
        again. Raises LifecycleError for any other job, UsageError where another paid step
        has been begun since, or several were attached and no `step` is named.
        """
        with self.transaction():
            now_ms = self.clock.now_ms()
            job = self.job(number)
            mine = [step for step in self.steps(number) if step.generation == job.generation]
            said = [
                s
                for s in mine
                if s.is_paid and step in (None, s.name) and self._was_said(s, reason)
            ]
            is_open = job.handle_json is not None and handle_json is None
            if job.status not in ("queued", "failed", "in_doubt") or is_open or not said:
                raise LifecycleError(
                    f"job {number} is {job.status}, and no value that was attached to a step of"
                    " it can be replaced; resolve needs in_doubt",
                    job_id=job.id,
                    status=job.status,
                    verb="resolve",
                )
            self._refuse_taken(job, value_json)
            if len(said) > 1:
                raise UsageError(
                    f"job {number}: {_names([s.name for s in said])} were attached; say which one"
                    f" is meant: step={said[0].name!r}"
                )
            was = said[0]
            later = [s for s in mine if s != was and s.begun_ms >= (was.ended_ms or 0)]
            if paid := [s.name for s in later if s.is_paid]:
                raise UsageError(
                    f"job {number}: its paid step {paid[0]!r} was begun with what was attached to"
                    f" {was.name!r}; that cannot be taken back"
                )
            for after in later:
                self._delete_step(after)
            told = self._keep_value(was, value_json, now_ms)
            data = codec.dumps({"reason": reason})
            self._record([*told, Event("job.resolved", number, now_ms, data_json=data)])
            before = job
            if job.status == "failed":
                job, event = lifecycle.apply(job, "requeue", now_ms, reason=reason)
                self._record([event])
            if handle_json is not None:
                job = job._replace(handle_json=handle_json, account=was.account, is_paid=True)
            self._write([(before, job)])
        return job

    def _was_said(self, step: Step, reason: str) -> bool:
        """True where a word with this reason is what ended the step: they share their moment."""
        return any(
            event.type in ("job.resolved", "job.doubt_noted")
            and event.at_ms == step.ended_ms
            and event.data.get("reason") == reason
            for event in self.events(job=step.job)
        )

    def close_render(self, number: int, note: str, bill: Bill | None = None) -> None:
        """Forgets the open render of a finished job: its provider has been told, or is done.

        `bill` is what it cost; without one nobody knows, and what was set aside counts as spent.
        """
        with self.transaction():
            job = self.job(number)
            if job.is_terminal and job.is_open:
                now_ms = self.clock.now_ms()
                closed = job._replace(handle_json=None, reserved_microusd=0, updated_ms=now_ms)
                self._write([(job, closed)])
                spent = bill or Bill("unknown", job.reserved_microusd)
                self._settle_doubt(job, now_ms, spent)
                data = codec.dumps({"note": note})
                self._record(
                    [Event("job.render_closed", number, self.clock.now_ms(), data_json=data)]
                )

    def _end(self, ends: Sequence[Attempt], now_ms: int) -> None:
        """Ends attempts, and counts what they cost."""
        self._end_attempts(ends)
        spent: Counter[str] = Counter()
        for end in ends:
            spent[end.account] += end.cost_microusd or 0
        for account, cost in spent.items():
            self._count_spent(account, cost, now_ms)

    def _count_spent(self, account: str, cost_microusd: int, now_ms: int) -> None:
        if cost_microusd:
            kinds = ("spent", day_of(now_ms))
            self._count({("money", account, kind): cost_microusd for kind in kinds})

    def _affect(
        self, effects: Sequence[tuple[str, Effect]], good: Set[str], now_ms: int
    ) -> list[Event]:
        """What attempts' ends mean for their accounts; a good one ends a row of refusals."""
        before = {account.name: account for account in self.accounts()}
        after = dict(before)
        live = self.live_counts() if effects else {}
        of_models = self.live_by_model() if any(e.model is not None for _, e in effects) else {}
        for name in good & before.keys():
            limits = codec.loads(after[name].limits_json)
            if limits.pop("moderated", 0):
                after[name] = replace(after[name], limits_json=codec.encode(limits))
        for name, effect in effects:
            if effect.reason is not None:
                effect = effect._replace(reason=redact(effect.reason))
            for account in list(after.values()):
                is_meant = account.name == name or (
                    effect.is_for_provider and account.provider == before[name].provider
                )
                if is_meant:
                    taken = live.get(account.name, 0)
                    if effect.model is not None:
                        taken = of_models.get((account.name, effect.model), 0)
                    # One more: the refused one has just been let go.
                    after[account.name] = policy.affected(account, effect, taken + 1, now_ms)
        changed = [a for name, a in after.items() if a != before[name]]
        told = []
        for account in changed:
            self._write_account(account)
            was = before[account.name]
            if account.parked_until_ms != was.parked_until_ms:
                told.append({"name": account.name, "reason": account.parked_reason or ""})
            rested = policy.models_at_rest(was, now_ms)
            for model, (until_ms, why) in policy.models_at_rest(account, now_ms).items():
                if rested.get(model, (0, ""))[0] != until_ms:
                    told.append({"name": account.name, "model": model, "reason": why})
        return [
            Event("account.parked", None, now_ms, "warning", data_json=codec.dumps(parked))
            for parked in told
        ]

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
        """{account: (spent ever, reserved now, spent today)}, in micro-dollars.

        Also of accounts that are gone: what they have spent stays spent.
        """
        kept, today = self._kept_counts(), day_of(now_ms)
        gone = {name for kind, name, _ in kept if kind == "money"}
        return {
            name: (
                kept.get(("money", name, "spent"), 0),
                kept.get(("money", name, "reserved"), 0),
                kept.get(("money", name, today), 0),
            )
            for name in sorted(gone | {a.name for a in self.accounts()})
        }

    def _note_scopes(
        self, accounts: Sequence[Account], why: Mapping[str, str], by_model: Set[str]
    ) -> list[Account]:
        """The accounts, each of those that may work noting if its provider limits each model."""
        noted = [
            a if a.name in why else policy.rescoped(a, is_by_model=a.provider in by_model)
            for a in accounts
        ]
        for before, after in zip(accounts, noted, strict=True):
            if before is not after:
                self._write_account(after)
        return noted

    def _model_shares(
        self, able: Sequence[Account], claim: Claim, now_ms: int
    ) -> tuple[dict[str, dict[str | None, tuple[str, ...]]], dict[str, int]]:
        """For accounts whose models have slots of their own: the pots of each model that waits."""
        mine = [a for a in able if a.is_by_model]
        if not mine:
            return {}, {}
        lanes = {
            a.name: policy.lanes_of(
                a.name, a.provider, takes_any=a.provider not in claim.named_only
            )
            for a in mine
        }
        found = {lane: self._waiting_models(lane) for lane in set().union(*lanes.values())}
        wanted = {name: {m for lane in of for m in found[lane]} for name, of in lanes.items()}
        pots = policy.model_pots(self.accounts(), wanted, self.live_by_model(), now_ms)
        shares: dict[str, dict[str | None, tuple[str, ...]]] = {
            a.name: {model: policy.shares_of(a, model) for model in wanted[a.name]} for a in mine
        }
        return shares, pots

    def _add_models(
        self,
        waiting: dict[str, list[policy.Candidate]],
        lane: str,
        models: Mapping[str | None, tuple[str, ...]] | None,
        pots: Mapping[str, int],
        limit: int,
        *,
        is_paid: bool = False,
    ) -> None:
        """Adds the first jobs of each model that has a slot left to what was read of a lane.

        Read along the index: thousands of a model that is full are never looked at. With
        `is_paid` only those that go on with a paid call.
        """
        read = self._waiting_paid if is_paid else self._waiting
        known = {c.number: c for c in waiting.get(lane, ())}
        for model, shares in (models or {}).items():
            if limit > 0 and all(pots[pot] > 0 for pot in shares):
                known |= {c.number: c for c in read(lane, limit, model)}
        waiting[lane] = sorted(known.values())

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


def _meant(job: Job, doubtful: Sequence[Step], name: str | None) -> list[Step]:
    """The one step in doubt that is meant. Raises UsageError where that is not clear."""
    names = [step.name for step in doubtful]
    if name is not None:
        if name not in names:
            those = f"{_names(names)} {'is' if len(names) == 1 else 'are'}" if names else "none is"
            raise UsageError(
                f"job {job.number}: its step {name!r} is not in doubt; {those}", steps=names
            )
        return [step for step in doubtful if step.name == name]
    if len(names) > 1:
        raise UsageError(
            f"job {job.number} has {len(names)} paid steps in doubt, {_names(names)}: say which"
            f" one is meant, such as step={names[0]!r} (--step on the command line)",
            steps=names,
        )
    return list(doubtful)


def _names(names: Sequence[str]) -> str:
    return " and ".join(map(repr, names))


def step_key(job: Job, name: str) -> str:
    """The idempotency key of a step: the same at every try, new with each generation."""
    return f"vqkit-{codec.content_hash(job.id, job.generation, name)}"


def _name_of(value: Any) -> str | None:
    """What a paid answer names at its provider; None where many answers may say the same.

    A handle, or an answer's "id", names a render; so do texts with a digit in
    them, and whatever holds such a text. `"ok"` names nothing.
    """
    if isinstance(value, dict):
        value = value.get("handle") or value
    if isinstance(value, dict) and value.get("id") is not None:
        value = value["id"]
        is_name = True
    else:
        is_name = any(re.search(r"\d", text) for text in _texts(value))
    if not is_name or isinstance(value, bool):
        return None
    return str(value) if isinstance(value, str | int) else codec.canonical(value)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _texts(part)


def _opened(
    job: Job, step: Step, value_json: str | None, handle_json: str | None
) -> tuple[dict[str, Any], Step]:
    """What a step that opened a render means for its job: its handle, and what is set aside.

    What the provider says that it will cost is better than our own estimate; the step that is
    returned has it too. One that is counted already sets nothing aside: its end says the rest.
    """
    if handle_json is None:
        return {}, step
    told = policy.amount((codec.loads(value_json) or {}).get("cost_microusd"))
    if told is None or step.counted_by is not None:
        return {"handle_json": handle_json}, step
    reserve = job.reserved_microusd - step.cost_microusd + told
    change = {"handle_json": handle_json, "reserve": max(0, reserve)}
    return change, step._replace(cost_microusd=told)


def next_minutes(accounts: Sequence[Account]) -> list[int]:
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
