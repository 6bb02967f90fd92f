"""Changing one's mind: cancel, requeue, resolve, budgets, pruning, a backup."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from .. import codec
from ..accounts import microusd
from ..errors import LifecycleError, UnknownName, UsageError
from ..handles import said_handle
from ..job import TERMINAL, Job
from ..steps import ATTACHED, RENDER, handle_of
from ..store.base import JobFilter, Store
from ..words import Changed, Requeued, comes_back, count
from .asked import Which, age_ms, moment, statuses
from .looking import Looking

__all__ = ["Changing"]


class Changing(Looking):
    """The part of a queue that is told otherwise."""

    def cancel(
        self,
        *which: Which,
        status: str | Iterable[str] | None = None,
        batch: str | None = None,
        account: str | None = None,
        upto: int | None = None,
    ) -> Changed:
        """Cancels what waits, asks what runs to stop. Returns how many jobs that touched.

        Jobs are named by number or id, or chosen by status, batch, account; all jobs there
        are: ``status=("queued", "running")``. With `upto` none that has a higher number, so
        none that is put meanwhile. Finished jobs stay as they are, and so do those in doubt,
        which may be paid for, unless they are named or ``status`` says so.
        """
        if not which and status is None and batch is None and account is None:
            raise UsageError(
                "cancel() wants to know which: q.cancel(17), q.cancel(batch='foxes.xlsx'), or"
                " q.cancel(status=('queued', 'running')) for all"
            )
        is_wide = not which and status is None
        wanted = ("queued", "running") if is_wide else status
        chosen = replace(self._chosen(which, wanted, batch, account), upto=upto)
        n = len(self._write(lambda s: s.transition(chosen, "cancel", reason="by you")))
        words = "cancelled"
        running = replace(chosen, status=("running",))
        if asked := [job for job in self._found(running) if job.cancel_requested]:
            words += f", of which {len(asked)} at work: as soon as they have stopped"
        if is_wide and (doubts := self._found(replace(chosen, status=("in_doubt",)))):
            words += f"; {count(len(doubts), 'job')} in doubt left alone: see q.resolve"
        return Changed(n, words)

    def _found(self, chosen: JobFilter) -> list[Job]:
        return self._read(lambda s: s.jobs(chosen))

    def requeue(
        self,
        *which: Which,
        status: str | Iterable[str] | None = None,
        batch: str | None = None,
        account: str | None = None,
        ended_by: datetime | str | float | None = None,
    ) -> Requeued:
        """Gives finished jobs a second chance, all their attempts anew. Returns how many.

        Without arguments: the failed ones. A completed job is rendered again only when it
        is named, or with ``status="completed"``. With `ended_by` (a datetime, ISO text, or
        Unix seconds) none that ended later. Jobs whose row no sheet has any more, as it was
        put, are left alone unless they are named; what comes back says how many.
        """
        if not which and status is None:
            status = "failed"
        chosen = self._chosen(which, status, batch, account)
        chosen = replace(chosen, ended_by_ms=moment("ended_by", ended_by))
        if which:
            return Requeued.of(len(self._write(lambda s: s.transition(chosen, "requeue"))))
        ended = tuple(set(chosen.status) & TERMINAL)
        others = replace(chosen, status=ended, is_gone=True)
        chosen = replace(chosen, is_gone=False)
        left = self._read(lambda s: s.jobs(others)) if ended else []
        sheets = sorted({job.source for job in left if job.source})
        done = self._write(lambda s: s.transition(chosen, "requeue"))
        return Requeued.of(len(done), len(left), sheets)

    def _check_batch(self, name: str) -> None:
        """Raises UnknownName for a batch nothing was ever put as; says which there are."""
        known = self._read(lambda s: s.batches())
        if name not in known:
            alike = [one for one in known if one.startswith(name)] or get_close_matches(name, known)
            told = ", ".join(map(repr, alike or known[-5:])) or "none yet"
            raise UnknownName(
                f"no batch {name!r} in this queue; {'did you mean' if alike else 'it has'} {told}",
                name=name,
            )

    def _chosen(
        self,
        which: tuple[Which, ...],
        status: str | Iterable[str] | None,
        batch: str | None,
        account: str | None,
    ) -> JobFilter:
        if batch is not None:
            self._check_batch(batch)
        numbers = tuple(self.job(one).number for one in which) if which else None
        return JobFilter(statuses(status), batch, account, numbers=numbers)

    @property
    def budget(self) -> float | None:
        """What the whole queue may spend, in dollars; None: no limit. Reaching it pauses."""
        return self._dollars("budget_microusd")

    @budget.setter
    def budget(self, dollars: float | None) -> None:
        amount = microusd("budget", dollars)
        self._write(lambda s: s.set_setting("budget_microusd", amount))

    @property
    def budget_per_day(self) -> float | None:
        """What the queue may spend in a day (UTC), in dollars; None: no limit."""
        return self._dollars("budget_day_microusd")

    @budget_per_day.setter
    def budget_per_day(self, dollars: float | None) -> None:
        amount = microusd("budget_per_day", dollars)
        self._write(lambda s: s.set_setting("budget_day_microusd", amount))

    def _dollars(self, setting: str) -> float | None:
        amount = self._read(lambda s: s.setting(setting))
        return None if amount is None else amount / 1e6

    def resolve(
        self,
        which: Which,
        how: Literal["attach", "not_sent", "pay_again", "give_up"],
        *,
        value: Any = None,
        step: str | None = None,
        cost: float | None = None,
    ) -> Job:
        """Ends the doubt about a paid call, by your word.

        ``"attach"``: it was made, and `value` is what it gave; for a render at a provider its
        id there, ``"task-123"``, or its whole handle as the provider's others look. One that
        another job has is refused with a UsageError that names that job. ``"not_sent"``: it
        never arrived, and is made as if for the first time. Where several paid steps of the job
        are in doubt these two speak of one `step`, and the job goes on when each has its
        answer; without a name they are refused with a UsageError that names the steps.

        ``"pay_again"``: make another one, whatever became of it; every step of the job is done
        again. ``"give_up"``: the job fails. With these two `cost` is what the one in doubt has
        cost, in dollars, as the provider's bill says; without it, what was set aside counts as
        spent. `q.job(n).reason`, `q.steps(n)` and `q.events(job=n)` hold the evidence.

        What was attached wrongly is put right by another ``"attach"`` while the job waits, or
        once it has failed: that queues it again.
        """
        job = self.job(which)
        note = f"by you: {how.replace('_', ' ')}"
        if cost is not None and how not in ("pay_again", "give_up"):
            raise UsageError(f"resolve(…, {how!r}) takes no cost; 'pay_again' and 'give_up' do")
        known: dict[str, Any] = {"cost_microusd": microusd("cost", cost), "reason": note}
        if how == "attach":
            return self._attach(job, value, step)
        if value is not None:
            raise UsageError(f"resolve(…, {how!r}) takes no value; only 'attach' does")
        if step is not None and how in ("pay_again", "give_up"):
            raise UsageError(
                f"resolve(…, {how!r}) is about the whole job and takes no step; 'attach' and"
                " 'not_sent' do"
            )
        match how:
            case "not_sent":
                return self._write(lambda s: s.resolve(job.number, step=step, reason=note))
            case "pay_again":
                return self._write(lambda s: s.resolve(job.number, is_fresh=True, **known))
            case "give_up":
                return self._write(lambda s: s.resolve(job.number, to="failed", **known))
        raise UsageError(
            f"resolve(…, {how!r}): expected 'attach', 'not_sent', 'pay_again' or 'give_up'"
        )

    def _attach(self, job: Job, value: Any, step: str | None) -> Job:
        if value is None:
            raise UsageError(
                "resolve(…, 'attach') needs value=…: what the call gave, or the render's handle"
            )
        if job.status not in ("in_doubt", "queued", "failed"):
            raise LifecycleError(
                f"job {job.number} is {job.status}; resolve needs in_doubt",
                job_id=job.id,
                status=job.status,
                verb="resolve",
            )
        paid = {s.name: s for s in self.steps(job) if s.is_paid and s.generation == job.generation}
        open_steps = [s.name for s in paid.values() if s.state == "intent"]
        if step is None and len(open_steps) == 1:
            step = open_steps[0]
        elif step is None and not open_steps and RENDER in paid:
            step = RENDER
        elif step is not None and step not in paid:
            has = " and ".join(map(repr, paid)) or "none"
            raise UsageError(f"job {job.number} has no paid step {step!r}; it has {has}")
        if step is None and not open_steps and job.status == "in_doubt":
            raise UsageError(
                f"job {job.number} is in doubt, and no paid step of it lacks an answer: there is"
                " nothing to attach to. 'not_sent' runs its function again"
            )
        number, handle_json, is_another = job.number, None, False
        if step == RENDER:
            handle = said_handle(value, self._example(job), codec.loads(paid[step].request_json))
            handle_json, value = codec.dumps(handle, "value"), {"handle": handle}
            is_another = handle_of(RENDER, paid[step].value) not in (None, handle)
        value_json = codec.dumps(value, "value")
        is_said = job.status != "in_doubt" or (step not in (None, RENDER, *open_steps))

        def write(store: Store) -> Job:
            if is_said:
                after = store.attach_anew(
                    number, value_json, ATTACHED, step=step, handle_json=handle_json
                )
            else:
                after = store.resolve(
                    number,
                    step=step,
                    value_json=value_json,
                    handle_json=handle_json,
                    reason=ATTACHED,
                    is_looked_up=True,
                )
            if is_another:
                self._files.discard_kept(after)
            return after

        return self._write(write)

    def _example(self, job: Job) -> Any:
        """A handle that this job's provider gave another job, or None."""

        def read(store: Store) -> str | None:
            accounts = store.accounts()
            provider = next((a.provider for a in accounts if a.name == job.account), None)
            mine = [a.name for a in accounts if a.provider == provider]
            return store.example_value(RENDER, accounts=mine, but=job.number)

        return handle_of(RENDER, codec.loads(self._read(read)))

    def prune(
        self,
        *which: Which,
        older_than: timedelta | float | None = None,
        status: str | Iterable[str] | None = None,
        gone: bool = False,
    ) -> Changed:
        """Deletes finished jobs: those named, or all older than that (a timedelta, or seconds).

        Or with `gone` the failed and cancelled ones whose row no sheet has any more, as it was
        put. With their attempts and events; files stay. Returns how many. A pruned job's key is
        free again: putting the same row once more makes a new job, and so does the next load
        of its sheet, if the row is still there.
        """
        if bool(which) + (older_than is not None) + gone != 1:
            raise UsageError(
                "prune() wants to know which: q.prune(17), q.prune(gone=True), or"
                " q.prune(older_than=timedelta(days=30))"
            )
        if gone:
            wanted = statuses(("failed", "cancelled") if status is None else status)
            if not set(wanted) <= TERMINAL:
                raise UsageError(f"prune(status={status!r}): only finished jobs can be pruned")
            found = self._read(lambda s: s.jobs(JobFilter(wanted, is_gone=True)))
            n = self._write(lambda s: s.prune_these([job.number for job in found]))
            return Changed(n, "forgotten")
        if older_than is None:
            jobs = [self.job(one) for one in which]
            numbers = [job.number for job in jobs]
            n = self._write(lambda s: s.prune_these(numbers))
            return Changed(n, f"forgotten{comes_back(jobs) and f'; {comes_back(jobs)}'}")
        kept_ms = age_ms("older_than", older_than)
        wanted = statuses(tuple(TERMINAL) if status is None else status)
        if not set(wanted) <= TERMINAL:
            raise UsageError(f"prune(status={status!r}): only finished jobs can be pruned")
        before_ms = self._clock.now_ms() - kept_ms
        return Changed(self._write(lambda s: s.prune(before_ms, wanted)), "forgotten")

    @property
    def retention(self) -> timedelta | None:
        """How long completed and cancelled jobs are kept; None: for ever. Failed ones stay."""
        seconds = self._read(lambda s: s.setting("retention_s"))
        return None if seconds is None else timedelta(seconds=seconds)

    @retention.setter
    def retention(self, keep: timedelta | None) -> None:
        given: Any = keep
        if given is not None and not (isinstance(given, timedelta) and given > timedelta(0)):
            raise UsageError(f"retention {keep!r}: expected a timedelta above 0, or None")
        seconds = None if keep is None else keep.total_seconds()
        self._write(lambda s: s.set_setting("retention_s", seconds))

    def backup(self, path: str | os.PathLike[str]) -> Path:
        """Copies the database, while it is in use, to a new file. Raises if that exists.

        The only safe way: a copied file of a database at work is damaged.
        """
        target = Path(path).expanduser().absolute()
        if target.exists():
            raise UsageError(f"{target} exists; give the copy another name")
        self._read(lambda s: s.backup(str(target)))
        return target
