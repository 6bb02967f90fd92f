"""Renders that nobody is at: requests in doubt, and renders of jobs that are over.

A pump looks after them between its turns: it ends a doubt where the provider can tell
(`reconcile`), tells the provider of a cancelled job, and collects what was paid for all the
same. Nothing here sends anything that could be paid for twice.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

from . import codec, policy, secrets
from .attempt import ActiveJob, describe_error, plain_result
from .clock import Clock
from .errors import PayloadError, ProviderError, StoreError, VqkitError
from .executors.base import Notes
from .executors.local import in_thread
from .job import Account, Event, Job, Step
from .outcome import Bill
from .outputs import OutputFolder
from .providers.base import Provider
from .providers.contract import Status
from .reconcile import Verdict, reconcile
from .renders import Caller, RenderHandler
from .steps import RENDER, handle_of
from .store.base import JobFilter, Store, Transition
from .store.thread import StoreThread

__all__ = ["Strays"]

log = secrets.logger("vqkit.strays")

AGAIN_S = (1.0, 60.0)  # first and longest wait before a provider is asked again
AT_ONCE = 50


class _Stray(NamedTuple):
    """A job, what of it is open, and who can tell."""

    job: Job
    step: Step | None
    handler: RenderHandler
    account: Account


class Strays:
    """Looks after the renders nobody is at, a few at a time, on the pump's loop."""

    def __init__(
        self,
        store: StoreThread[Any],
        providers: Mapping[str, Provider],
        outputs: OutputFolder,
        clock: Clock,
    ) -> None:
        self._store, self._providers = store, providers
        self._outputs, self._clock = outputs, clock
        self._again_ms: dict[int, tuple[int, float]] = {}
        self._told: dict[int, str] = {}
        self._missing: set[str] = set()
        self._at: set[int] = set()
        self._looking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.held: set[int] = set()

    @property
    def is_busy(self) -> bool:
        """True while a provider is being asked, or will be again."""
        return bool(self._at or self._again_ms)

    def next_ms(self) -> int | None:
        """When the next one wants to be asked about."""
        return min((at_ms for at_ms, _ in self._again_ms.values()), default=None)

    def find(self, store: Store) -> list[_Stray]:
        """What there is to look after now. Repairs what a receipt explains on the way."""
        accounts = {account.name: account for account in store.accounts()}
        # Those that rest must not keep the others from being seen.
        limit = AT_ONCE + len(self.held) + len(self._at) + len(self._again_ms)
        doubts = store.jobs(JobFilter(status=("in_doubt",), limit=limit))
        looked_at = [*doubts, *store.stray_renders()]
        numbers = {job.number for job in looked_at}
        self.held &= numbers
        for number in self._again_ms.keys() - numbers - self._at:  # ended by somebody else
            del self._again_ms[number]
        found = []
        for job in looked_at:
            if job.is_terminal and not any(_opens(s, job) for s in store.steps(job.number)):
                # A function's step was taken for a provider's by an earlier version.
                store.close_render(job.number, "what its own function's step gave names no render")
                continue
            account = accounts.get(job.account or "")
            handler = self._providers.get(account.provider) if account is not None else None
            if account is None or handler is None or self._rests(job):
                continue
            step = None
            if job.status == "in_doubt":
                open_steps = [s for s in store.steps(job.number) if _is_open(s, job)]
                if not open_steps:
                    self.held.add(job.number)  # its doubt is of another kind: a person decides
                    continue
                kept = self._outputs.receipts.find({s.key for s in open_steps})
                for told in (s for s in open_steps if s.key in kept):
                    self._settle_from_receipt(store, told, kept[told.key])
                step = next((s for s in open_steps if s.key not in kept), None)
                if step is None:
                    continue
            if not isinstance(handler, RenderHandler):
                self.held.add(job.number)  # nobody can be asked
                continue
            found.append(_Stray(job, step, handler, account))
        self._at |= {stray.job.number for stray in found}
        return found

    def _rests(self, job: Job) -> bool:
        if job.number in self._at or job.number in self.held:
            return True
        again = self._again_ms.get(job.number)
        return again is not None and again[0] > self._clock.now_ms()

    def _settle_from_receipt(self, store: Store, step: Step, value_json: str) -> None:
        handle = handle_of(step.name, codec.loads(value_json))
        handle_json = None if handle is None else codec.dumps(handle, "handle")
        reason = "its receipt was found"
        store.resolve(
            step.job,
            step=step.name,
            value_json=value_json,
            handle_json=handle_json,
            reason=reason,
        )

    async def see_to(self, found: list[_Stray], wake: Callable[[], None]) -> None:
        """Looks after these; `wake` is called when one may be claimed."""
        await asyncio.gather(*(self._see_to_one(stray) for stray in found))
        wake()

    async def _see_to_one(self, stray: _Stray) -> None:
        number = stray.job.number
        try:
            if stray.step is not None:
                is_over = await self._end_doubt(stray, stray.step)
            else:
                is_over = await self._close(stray)
        except (VqkitError, OSError) as error:
            await self._tell(stray.job, f"asking about it failed, trying again: {error}")
            is_over = False
        except Exception as error:
            log.exception("job %s: its provider's code failed", number)
            await self._tell(stray.job, f"its provider's code failed: {error!r}")
            is_over = False
        self._at.discard(number)
        if is_over or number in self.held:
            self._again_ms.pop(number, None)
        else:
            first_s, longest_s = AGAIN_S
            _, waited_s = self._again_ms.get(number, (0, first_s / 2))
            wait_s = min(longest_s, 2 * waited_s)
            self._again_ms[number] = (self._clock.now_ms() + round(wait_s * 1000), wait_s)

    def _active(self, stray: _Stray) -> ActiveJob:
        notes = Notes(stray.job, lambda job, verb, change: None)
        credential = stray.account.credential
        return ActiveJob(stray.job, notes, self._outputs, credential, is_async=True)

    async def _end_doubt(self, stray: _Stray, step: Step) -> bool:
        """Asks the provider and writes down what it says. True if the doubt is over."""
        is_alike = stray.handler.provider.capabilities.idempotency in ("list", "reject")
        # One at a time, or two equal requests would both be told the same render.
        async with self._looking[stray.account.name] if is_alike else nullcontext():
            return await self._end_doubt_alone(stray, step)

    async def _end_doubt_alone(self, stray: _Stray, step: Step) -> bool:
        job, handler, active = stray.job, stray.handler, self._active(stray)
        values, steps = await self._store.acall(
            lambda s: (s.paid_values(stray.account.name), s.steps(job.number))
        )
        owned = {
            codec.canonical(handle)
            for _, value in values
            if (handle := handle_of(step.name, codec.loads(value))) is not None
        }
        ask = await handler.caller_of(active)
        parts = iter(range(1, 100))
        try:
            verdict = await reconcile(
                step,
                handler.provider,
                ask.account,
                owned=owned,
                now_ms=self._clock.now_ms(),
                doubt_ms=job.updated_ms,
                was_missing=step.key in self._missing,
                was_refused=any(
                    s.generation < step.generation and s.state == "intent" for s in steps
                ),
                sink=lambda suffix: active.kept_part(suffix, next(parts)),
            )
        except PayloadError as error:  # a handle that cannot be kept: asking again is no help
            verdict = Verdict(f"{error}; you decide")
        if verdict.is_missing:
            self._missing.add(step.key)
        else:
            self._missing.discard(step.key)
        await self._tell(job, verdict.note)
        if not verdict.is_settled:
            if verdict.note.endswith("you decide"):
                self.held.add(job.number)
            return False
        await self._write_down(job, step, verdict)
        return True

    async def _write_down(self, job: Job, step: Step, verdict: Verdict) -> None:
        if verdict.refusal is not None:
            await self._fail(job, verdict.note, verdict.refusal)
            return
        value_json = handle_json = None
        if verdict.value is not None:
            value_json = codec.dumps(dict(verdict.value), "answer")
            handle = verdict.value.get("handle")
            handle_json = None if handle is None else codec.dumps(handle, "handle")
            keep = self._outputs.receipts.append
            await in_thread(lambda: keep(step, value_json), "vqkit-receipt")
        await self._store.acall(
            lambda s: s.resolve(
                job.number,
                step=step.name,
                value_json=value_json,
                handle_json=handle_json,
                reason=verdict.note,
                is_looked_up=True,
            )
        )

    async def _fail(self, job: Job, note: str, error: ProviderError) -> None:
        """The provider will not render it, and may have billed the refusal."""
        cost = policy.amount(error.facts.get("cost_microusd")) if error.is_billed else None
        if error.is_billed is False:
            cost = 0
        error_json = codec.dumps(describe_error(error), "error")
        await self._store.acall(
            lambda s: s.resolve(
                job.number,
                to="failed",
                is_fresh=True,
                cost_microusd=cost,
                error_json=error_json,
                reason=note,
            )
        )

    async def _close(self, stray: _Stray) -> bool:
        """Tells the provider that the job is over, and collects what it made all the same."""
        job, handler, active = stray.job, stray.handler, self._active(stray)
        ask = await handler.caller_of(active)
        handle = active.handle or {}
        answer = await ask.about(handler.provider.cancel, handle)
        note = f"the provider's answer to cancelling: {answer.replace('_', ' ')}"
        # Asked in any case: its state says what is to be paid.
        status = await ask.about(handler.provider.poll, handle)
        if answer != "cancelled" and status.state in ("queued", "throttled", "running"):
            await self._tell(job, note)
            return False
        if status.state == "succeeded" and status.links:
            await self._collect(stray, active, handle, status, ask)
            note = "it was done and paid for: the result is kept"
        bill = _bill_of(status, job, handler.provider.capabilities.billed_on)
        await self._store.acall(lambda s: s.close_render(job.number, note, bill))
        return True

    async def _collect(
        self,
        stray: _Stray,
        active: ActiveJob,
        handle: Mapping[str, Any],
        status: Status,
        ask: Caller,
    ) -> None:
        """Fetches the result of a job that is over, and keeps it with its last attempt."""
        job = stray.job
        files = await stray.handler.fetch_all(active, handle, status, ask)
        value, made, _ = plain_result({"files": files}, active.made)
        told_json = codec.encode(value)
        result_json, outputs = await in_thread(
            lambda: self._outputs.finish(job, made, told_json), "vqkit-files"
        )
        late = Transition(
            job.number, "complete", job.fence, {"result_json": result_json}, "late", outputs
        )
        await self._store.acall(lambda s: s.turn([late]))
        self._outputs.forget(job.id, job.fence)

    async def _tell(self, job: Job, note: str) -> None:
        """Puts what was found into the job's history, once."""
        note = secrets.redact(note)
        if self._told.get(job.number) == note:
            return
        self._told[job.number] = note
        data = codec.dumps({"note": codec.clean_text(note)})
        event = Event("job.doubt_noted", job.number, 0, "warning", job.fence, data)
        try:
            await self._store.acall(lambda s: s.log(event))
        except StoreError as error:
            log.warning("a note on job %s could not be written: %s", job.number, error)


def _bill_of(status: Status, job: Job, billed_on: str) -> Bill:
    """What a render cost that nobody waits for any more."""
    is_billed = status.is_billed
    if is_billed is None and status.state == "succeeded":
        is_billed = True
    if is_billed is None and status.state in ("failed", "cancelled") and billed_on == "success":
        is_billed = False
    if is_billed is False:
        return Bill("not billed", 0)
    told = policy.amount(status.cost_microusd)
    cost = job.reserved_microusd if told is None else told
    return Bill("billed" if is_billed else "unknown", cost)


def _opens(step: Step, job: Job) -> bool:
    return step.name == RENDER and step.generation == job.generation


def _is_open(step: Step, job: Job) -> bool:
    return bool(step.is_paid) and step.state == "intent" and step.generation == job.generation
