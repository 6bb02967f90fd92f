"""What may happen to a job: the one table of verbs, and the one function that applies it.

========================  ===================================  =====  ====================
verb                      from → to                            fence  event
========================  ===================================  =====  ====================
claim                     queued → running                     new    job.started
stage, log, begin, step   running → running                    yes    job.stage_changed, …
renew                     running → running, next generation   yes    job.renewed
complete                  running → completed                  yes    job.completed
retry                     running → queued, later              yes    job.retry_scheduled
fail                      running → failed                     yes    job.failed
snooze, release           running → queued, attempt back       yes    job.snoozed, …
doubt                     running → in_doubt                   yes*   job.in_doubt
resolve                   in_doubt → queued or failed; in_doubt       job.resolved
                          again where another step is too             job.doubt_noted
reclaim                   running, dead owner → queued, …             job.reclaimed
cancel                    queued, in_doubt → cancelled                job.cancelled
request_cancel            running → running, flag set                 job.cancel_requested
acknowledge_cancel        running → cancelled                  yes    job.cancelled
requeue                   terminal → queued, attempts 0               job.requeued
expire                    queued, past its time → cancelled           job.expired
========================  ===================================  =====  ====================

A store opens a transaction, reads the rows, calls `apply` for each and writes what comes
back. It holds no rules of its own, so two stores cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from . import codec
from .errors import LifecycleError, StaleFence
from .job import JOB_FIELDS, TERMINAL, Event, Job

__all__ = ["VERBS", "apply"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Where a verb may start, whether it needs the newest fence, what event it writes."""

    sources: frozenset[str]
    is_fenced: bool
    event: str


def _rule(sources: str, event: str, *, fenced: bool = False) -> Rule:
    return Rule(frozenset(sources.split()), fenced, event)


VERBS: dict[str, Rule] = {
    "claim": _rule("queued", "job.started"),
    "stage": _rule("running", "job.stage_changed", fenced=True),
    "log": _rule("running", "job.logged", fenced=True),
    "begin": _rule("running", "job.step_begun", fenced=True),
    "step": _rule("running", "job.step_done", fenced=True),
    "renew": _rule("running", "job.renewed", fenced=True),
    "complete": _rule("running", "job.completed", fenced=True),
    "retry": _rule("running", "job.retry_scheduled", fenced=True),
    "fail": _rule("running", "job.failed", fenced=True),
    "snooze": _rule("running", "job.snoozed", fenced=True),
    "release": _rule("running", "job.released", fenced=True),
    "doubt": _rule("running", "job.in_doubt", fenced=True),
    "resolve": _rule("in_doubt", "job.resolved"),
    "reclaim": _rule("running", "job.reclaimed"),
    "cancel": _rule("queued in_doubt", "job.cancelled"),
    "request_cancel": _rule("running", "job.cancel_requested"),
    "acknowledge_cancel": _rule("running", "job.cancelled", fenced=True),
    "requeue": _rule(" ".join(TERMINAL), "job.requeued"),
    "expire": _rule("queued", "job.expired"),
}

# Roads back to `queued` on which a cancel that was asked for wins.
_RETURNING = frozenset({"retry", "snooze", "release", "reclaim", "resolve"})
# Where the two verbs with a choice may lead; the first is what they do when nothing is said.
_CHOICES = {
    "reclaim": ("queued", "failed", "completed", "in_doubt"),
    "resolve": ("queued", "failed", "in_doubt"),
}

_OFF_WORK: dict[str, Any] = {"owner": None, "progress": None, "stage": None}


def apply(
    job: Job, verb: str, now_ms: int, fence: int | None = None, **change: Any
) -> tuple[Job, Event | None]:
    """The job after `verb`, and the event that tells of it.

    There is no event where only the progress within a stage moved.

    `fence` is the claim's, for the verbs that need one. `change` carries what the verb is
    about: `owner`, `account`, `reserve` (claim); `stage`, `progress` (stage); `message`,
    `level` (log); `reserve` (begin); `handle_json`, `reserve` (step, resolve), `is_paid`
    (resolve: the call was made and goes on); `result_json` (complete);
    `not_before_ms`, `error_json`, `reason`, `crashed` (retry, fail);
    `to` (reclaim, resolve). `crashed=True` spends a crash instead of an attempt, and so does
    a reclaim, whose crashes are counted apart as `deaths`.

    Raises LifecycleError when the status does not allow the verb, StaleFence when the job
    has been claimed by somebody else since. A job never changes in place.
    """
    rule = VERBS.get(verb)
    if rule is None:
        raise LifecycleError(f"no verb {verb!r}; known: {', '.join(VERBS)}", verb=verb)
    if rule.is_fenced and (job.status != "running" or job.fence != fence):
        raise StaleFence(
            f"job {job.number}: attempt with fence {fence} may not {verb} it; it is {job.status}"
            f" with fence {job.fence}. Another attempt holds it; this one's result is kept aside.",
            job_id=job.id,
            status=job.status,
            verb=verb,
        )
    if job.status not in rule.sources:
        raise LifecycleError(
            f"job {job.number} is {job.status}; {verb} needs {' or '.join(sorted(rule.sources))}.",
            job_id=job.id,
            status=job.status,
            verb=verb,
        )
    to = change.get("to", "queued")
    if verb in _CHOICES and to not in _CHOICES[verb]:
        raise LifecycleError(
            f"{verb} leads to {' or '.join(_CHOICES[verb])}, not to {to!r}.",
            job_id=job.id,
            status=job.status,
            verb=verb,
        )
    for name in ("reason", "stage"):
        if isinstance(text := change.get(name), str) and not text.isascii():
            # Half a character cannot be stored, and one job's text must not stop the others.
            change[name] = text.encode("utf-8", "replace").decode("utf-8")
    if verb in _RETURNING and job.cancel_requested and to == "queued":
        return _cancelled(job, now_ms, change)
    return _APPLY[verb](job, now_ms, change, rule.event)


_INDEX = {name: i for i, name in enumerate(JOB_FIELDS)}
_new = tuple.__new__


def changed(job: Job, **fields: Any) -> Job:
    """The job with these fields changed: `_replace`, in half the time for as many fields."""
    values: list[Any] = list(job)
    for name, value in fields.items():
        values[_INDEX[name]] = value
    return _new(Job, values)


def _event(kind: str, job: Job, now_ms: int, level: str = "info", /, **data: Any) -> Event:
    kept = {name: value for name, value in data.items() if value is not None}
    data_json = codec.encode(kept) if kept else "{}"
    return Event(kind, job.number, now_ms, level, job.fence, data_json)


@lru_cache(256)
def _quoted(account: str) -> str:
    """A JSON string, made once an account: the two events every job has are its hot path."""
    return codec.encode(account)


def _kept_account(job: Job) -> str | None:
    """A job whose render is open at a provider stays with that account; any other is free.

    One that has begun a paid call names the account whose money is set aside for it.
    """
    is_kept = job.handle_json is not None or job.is_paid
    return job.account if is_kept else None


def _kept_reserve(job: Job) -> int:
    """What is set aside for an open render, or a paid call, stays so until it is settled."""
    is_kept = job.handle_json is not None or job.is_paid
    return job.reserved_microusd if is_kept else 0


def _spent(job: Job, change: dict[str, Any]) -> dict[str, Any]:
    """What the try cost: an attempt (counted at the claim), a crash instead, or nothing.

    ``fresh=True`` closes the render that is open: the next try asks for another one.
    """
    spent: dict[str, Any] = {}
    if change.get("crashed"):
        spent = {"attempt": job.attempt - 1, "crashes": job.crashes + 1}
    if change.get("died"):
        spent = {"attempt": job.attempt - 1, "deaths": job.deaths + 1}
    if change.get("fresh"):
        spent |= {"generation": job.generation + 1, "handle_json": None, "is_paid": False}
    return spent


def _why(change: dict[str, Any]) -> dict[str, Any]:
    """The short form of an error, for the event; the whole of it stays on the job."""
    error = codec.loads(change.get("error_json")) or {}
    return {
        "reason": change.get("reason"),
        "error": error.get("type"),
        "message": error.get("message"),
        "line": error.get("line"),
    }


def _claim(job: Job, now_ms: int, change: dict[str, Any], kind: str) -> tuple[Job, Event]:
    after = changed(
        job,
        status="running",
        stage="assigned",
        progress=None,
        attempt=job.attempt + 1,
        fence=job.fence + 1,
        owner=change["owner"],
        account=change["account"],
        reserved_microusd=change.get("reserve", job.reserved_microusd),
        not_before_ms=None,
        started_ms=now_ms,
        updated_ms=now_ms,
        reason=None,
        is_short=False,
    )
    account = _quoted(change["account"])
    data_json = f'{{"account":{account},"attempt":{after.attempt}}}'
    return after, Event(kind, after.number, now_ms, "info", after.fence, data_json)


def _stage(job: Job, now_ms: int, change: dict[str, Any], kind: str) -> tuple[Job, Event | None]:
    stage = change["stage"] if change.get("stage") is not None else job.stage
    progress = change.get("progress")
    is_new = stage != job.stage
    after = changed(job, stage=stage, progress=progress, updated_ms=now_ms)
    return after, _event(kind, after, now_ms, stage=stage, progress=progress) if is_new else None


def _note(job: Job, now_ms: int, change: dict[str, Any], kind: str) -> tuple[Job, Event]:
    data = dict(change)
    level = data.pop("level", "info")
    return changed(job, updated_ms=now_ms), _event(kind, job, now_ms, level, **data)


def _step(job: Job, now_ms: int, change: dict[str, Any], kind: str) -> tuple[Job, Event]:
    """A step is done; where it opened a render, the job now belongs to that account."""
    handle_json = change.get("handle_json", job.handle_json)
    reserve = change.get("reserve", job.reserved_microusd)
    after = changed(job, handle_json=handle_json, reserved_microusd=reserve, updated_ms=now_ms)
    return after, _event(kind, after, now_ms, name=change.get("name"))


def _begin(job: Job, now_ms: int, change: dict[str, Any], kind: str) -> tuple[Job, Event]:
    """A paid step is about to be done: from here on there is money in it."""
    reserve = change.get("reserve", job.reserved_microusd)
    after = changed(job, is_paid=True, reserved_microusd=reserve, updated_ms=now_ms)
    return after, _event(kind, after, now_ms, name=change.get("name"))


def _renew(job: Job, now_ms: int, change: dict[str, Any], kind: str) -> tuple[Job, Event]:
    """The handler found the render useless: its steps are done again, under other keys."""
    after = changed(
        job,
        generation=job.generation + 1,
        handle_json=None,
        is_paid=False,
        reserved_microusd=change.get("reserve", job.reserved_microusd),
        updated_ms=now_ms,
    )
    return after, _event(kind, after, now_ms, generation=after.generation)


def _complete(job: Job, now_ms: int, change: dict[str, Any], kind: str) -> tuple[Job, Event]:
    after = changed(
        job,
        status="completed",
        result_json=change.get("result_json"),
        error_json=None,
        handle_json=None,
        reserved_microusd=0,
        finished_ms=now_ms,
        updated_ms=now_ms,
        reason=None,
        **_OFF_WORK,
    )
    seconds = (now_ms - (job.started_ms or now_ms)) / 1000
    data_json = f'{{"seconds":{seconds:.3f},"account":{_quoted(job.account or "")}}}'
    return after, Event(kind, after.number, now_ms, "info", after.fence, data_json)


def _retry(job: Job, now_ms: int, change: dict[str, Any], kind: str) -> tuple[Job, Event]:
    not_before_ms = change["not_before_ms"]
    after = changed(
        job,
        status="queued",
        not_before_ms=not_before_ms,
        error_json=change.get("error_json", job.error_json),
        account=None if change.get("fresh") else _kept_account(job),
        reserved_microusd=0 if change.get("fresh") else _kept_reserve(job),
        updated_ms=now_ms,
        reason=change.get("reason"),
        **_spent(job, change),
        **_OFF_WORK,
    )
    delay_s = max(0, (not_before_ms or now_ms) - now_ms) / 1000
    return after, _event(
        kind, after, now_ms, "warning", delay_s=delay_s, attempt=after.attempt, **_why(change)
    )


def _fail(job: Job, now_ms: int, change: dict[str, Any], kind: str) -> tuple[Job, Event]:
    after = changed(
        job,
        status="failed",
        error_json=change.get("error_json", job.error_json),
        finished_ms=now_ms,
        updated_ms=now_ms,
        reason=change.get("reason"),
        reserved_microusd=0,
        **{"handle_json": None, **_spent(job, change)},
        **_OFF_WORK,
    )
    return after, _event(kind, after, now_ms, "error", attempt=after.attempt, **_why(change))


def _give_back(job: Job, now_ms: int, change: dict[str, Any], kind: str) -> tuple[Job, Event]:
    not_before_ms = change.get("not_before_ms")
    after = changed(
        job,
        status="queued",
        attempt=job.attempt - 1,
        not_before_ms=not_before_ms,
        account=_kept_account(job),
        reserved_microusd=_kept_reserve(job),
        updated_ms=now_ms,
        reason=change.get("reason"),
        **_OFF_WORK,
    )
    delay_s = None if not_before_ms is None else max(0, not_before_ms - now_ms) / 1000
    return after, _event(kind, after, now_ms, delay_s=delay_s, reason=change.get("reason"))


def _doubt(job: Job, now_ms: int, change: dict[str, Any], kind: str) -> tuple[Job, Event]:
    # The try is not judged: its attempt is given back, and spent by whoever settles the doubt.
    after = changed(
        job,
        status="in_doubt",
        attempt=job.attempt - 1,
        deaths=job.deaths + bool(change.get("died")),
        error_json=change.get("error_json", job.error_json),
        reason=change.get("reason"),
        updated_ms=now_ms,
        **_OFF_WORK,
    )
    return after, _event(kind, after, now_ms, "warning", reason=after.reason, account=job.account)


def _resolve(job: Job, now_ms: int, change: dict[str, Any], kind: str) -> tuple[Job, Event]:
    to = change.get("to", "queued")
    if to == "failed":
        return _fail(job, now_ms, change, kind)
    if to == "in_doubt":
        reserve = change.get("reserve", job.reserved_microusd)
        after = changed(job, reason=change["doubt"], reserved_microusd=reserve, updated_ms=now_ms)
        note = f"{change.get('reason') or 'settled'}: {change['doubt']}"
        return after, _event(
            "job.doubt_noted", after, now_ms, "warning", note=note, reason=change.get("reason")
        )
    handle_json = change.get("handle_json")
    is_paid = bool(change.get("is_paid", handle_json is not None))
    reserve = change.get("reserve", job.reserved_microusd)
    after = changed(
        job,
        status="queued",
        handle_json=handle_json,
        is_paid=is_paid,
        account=job.account if is_paid else None,
        reserved_microusd=reserve if is_paid else 0,
        generation=job.generation + bool(change.get("fresh")),
        not_before_ms=None,
        reason=change.get("reason"),
        updated_ms=now_ms,
    )
    return after, _event(kind, after, now_ms, reason=after.reason)


def _reclaim(job: Job, now_ms: int, change: dict[str, Any], kind: str) -> tuple[Job, Event]:
    to = change.get("to", "queued")
    if to == "completed":
        return _complete(job, now_ms, change, kind)
    spent = {**change, "died": True}
    if to == "failed":
        return _fail(job, now_ms, spent, kind)
    if to == "in_doubt":
        return _doubt(job, now_ms, spent, "job.in_doubt")
    after, event = _retry(job, now_ms, {"not_before_ms": None, **spent}, kind)
    return after, event


def _cancelled(
    job: Job, now_ms: int, change: dict[str, Any], kind: str = "job.cancelled"
) -> tuple[Job, Event]:
    handle_json = change.get("handle_json", job.handle_json)
    reserve = change.get("reserve", job.reserved_microusd)
    after = changed(
        job,
        status="cancelled",
        cancel_requested=False,
        handle_json=handle_json,
        reserved_microusd=reserve if handle_json is not None else 0,
        error_json=change.get("error_json", job.error_json),
        finished_ms=now_ms,
        updated_ms=now_ms,
        reason=change.get("reason") or job.reason,
        **_OFF_WORK,
    )
    return after, _event(kind, after, now_ms, reason=after.reason)


def _cancel(job: Job, now_ms: int, change: dict[str, Any], kind: str) -> tuple[Job, Event]:
    return _cancelled(job, now_ms, change, kind)


def _request_cancel(job: Job, now_ms: int, change: dict[str, Any], kind: str) -> tuple[Job, Event]:
    after = changed(
        job, cancel_requested=True, reason=change.get("reason") or job.reason, updated_ms=now_ms
    )
    return after, _event(kind, after, now_ms, reason=change.get("reason"))


def _requeue(job: Job, now_ms: int, change: dict[str, Any], kind: str) -> tuple[Job, Event]:
    is_fresh = bool(change.get("fresh", job.status == "completed"))
    after = changed(
        job,
        status="queued",
        attempt=0,
        crashes=0,
        deaths=0,
        cancel_requested=False,
        account=_kept_account(job),
        generation=job.generation + is_fresh,
        is_paid=job.is_paid and not is_fresh,
        not_before_ms=change.get("not_before_ms", job.not_before_ms),
        expires_ms=job.expires_ms if (job.expires_ms or 0) > now_ms else None,
        result_json=None,
        finished_ms=None,
        started_ms=None,
        reason=change.get("reason"),
        updated_ms=now_ms,
        **_OFF_WORK,
    )
    return after, _event(kind, after, now_ms, was=job.status, reason=change.get("reason"))


def _expire(job: Job, now_ms: int, change: dict[str, Any], kind: str) -> tuple[Job, Event]:
    return _cancelled(job, now_ms, {**change, "reason": "expired"}, kind)


_APPLY: dict[str, Callable[[Job, int, dict[str, Any], str], tuple[Job, Event | None]]] = {
    "claim": _claim,
    "stage": _stage,
    "log": _note,
    "begin": _begin,
    "step": _step,
    "renew": _renew,
    "complete": _complete,
    "retry": _retry,
    "fail": _fail,
    "snooze": _give_back,
    "release": _give_back,
    "doubt": _doubt,
    "resolve": _resolve,
    "reclaim": _reclaim,
    "cancel": _cancel,
    "request_cancel": _request_cancel,
    "acknowledge_cancel": _cancel,
    "requeue": _requeue,
    "expire": _expire,
}
