"""The values everything else passes around: jobs, attempts, events, accounts.

All are frozen; a change is a new value (see `lifecycle.apply`). Times are integer UTC
milliseconds, JSON is kept as text and decoded when asked for. What every claim makes by
the hundred is a NamedTuple: it is read from a row, and copied with changes, in a tenth of
the time a frozen dataclass takes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, NamedTuple

from . import codec

__all__ = [
    "LOCAL",
    "PAYLOAD_BYTES_MAX",
    "STATUSES",
    "TERMINAL",
    "Account",
    "Added",
    "Attempt",
    "Event",
    "Job",
    "JobSpec",
    "Output",
    "RowProblem",
    "Status",
    "Step",
    "content_key",
    "lane_of",
    "model_of",
    "prompt_of",
]

Status = Literal["queued", "running", "in_doubt", "completed", "failed", "cancelled"]
STATUSES: tuple[Status, ...] = (
    "queued",
    "running",
    "in_doubt",
    "completed",
    "failed",
    "cancelled",
)
TERMINAL: frozenset[str] = frozenset({"completed", "failed", "cancelled"})

LOCAL = "local"  # the built-in provider, which draws toy clips offline
MODEL_CHARS = 200
_MODEL = re.compile(r'"\s*model\s*"', re.IGNORECASE)
PAYLOAD_BYTES_MAX = 1024 * 1024


class Job(NamedTuple):
    """One row of work, as the database holds it.

    `number` counts up in the order jobs were put; `id` is made by whoever put the job.
    `attempt` counts tries that were spent, `crashes` those in which its worker died, `deaths`
    those in which the whole process did, its neighbours with it; `fence` counts
    every claim ever made: whoever does not hold the newest fence can change nothing.
    `generation` counts the renders asked for; `handle_json` is the provider's name of the
    one that is open, `reserved_microusd` what it may cost until somebody knows. `is_paid` is
    true from when a paid step of this generation was begun, unless it was not accepted: the
    next try goes on with the same call, and its money is set aside and counted once. Then
    `is_short` says that the try before wanted one more paid call than its budget covers.
    """

    number: int
    id: str
    payload_json: str
    payload_hash: str = ""
    batch: str | None = None
    key: str | None = None
    provider: str | None = None
    pinned_account: str | None = None
    priority: int = 0
    seed: int = 0
    sample: int = 0
    source: str | None = None
    row: int | None = None
    timeout_ms: int | None = None
    max_attempts: int | None = None
    not_before_ms: int | None = None
    expires_ms: int | None = None
    status: Status = "queued"
    stage: str | None = None
    progress: float | None = None
    attempt: int = 0
    crashes: int = 0
    deaths: int = 0
    fence: int = 0
    owner: str | None = None
    account: str | None = None
    generation: int = 0
    handle_json: str | None = None
    reserved_microusd: int = 0
    result_json: str | None = None
    error_json: str | None = None
    reason: str | None = None
    created_ms: int = 0
    updated_ms: int = 0
    started_ms: int | None = None
    finished_ms: int | None = None
    cancel_requested: bool = False
    is_paid: bool = False
    is_short: bool = False

    @property
    def payload(self) -> dict[str, Any]:
        """What was put, decoded anew at each call."""
        payload: dict[str, Any] = codec.loads(self.payload_json)
        return payload

    @property
    def result(self) -> Any:
        """What the handler returned; None until the job is completed."""
        return codec.loads(self.result_json)

    @property
    def error(self) -> dict[str, Any] | None:
        """The newest error: `type`, `message`, `line` of the user's own code, `traceback`."""
        error: dict[str, Any] | None = codec.loads(self.error_json)
        return error

    @property
    def is_terminal(self) -> bool:
        """Completed, failed or cancelled: nothing happens to it by itself any more."""
        return self.status in TERMINAL

    @property
    def is_live(self) -> bool:
        """Takes one of its account's slots: it runs, or the provider holds a render of it.

        A doubt takes none: what is open there is over, or the provider does not know it.
        """
        return self.status == "running" or (self.is_open and self.status != "in_doubt")

    @property
    def is_open(self) -> bool:
        """A provider holds a render of it that has not been collected."""
        return self.handle_json is not None

    @property
    def lane(self) -> str:
        """Which accounts may take it: one account, one provider's, or any ('')."""
        if self.handle_json is not None and self.account is not None:
            return lane_of(None, self.account)
        return lane_of(self.provider, self.pinned_account)

    @property
    def model(self) -> str:
        """The model its payload names, which some providers limit by itself; "" for none."""
        return model_of(self.payload) if _MODEL.search(self.payload_json) else ""

    def label(self, now_ms: int) -> str:
        """The status as a person sees it; `scheduled`, `retrying`, `cancelling` are derived."""
        if self.status == "running":
            return "cancelling" if self.cancel_requested else (self.stage or "running")
        if self.status == "queued" and (self.not_before_ms or 0) > now_ms:
            return "retrying" if self.attempt or self.crashes or self.deaths else "scheduled"
        return self.status

    def __dir__(self) -> list[str]:
        """What a user needs, for tab completion; the fields as stored are not shown."""
        hidden = ("_json", "_hash", "_microusd")
        names = (*Job._fields, *(n for n, v in vars(Job).items() if isinstance(v, property)))
        return sorted({*(n for n in names if not n.endswith(hidden)), "label"})

    def __repr__(self) -> str:
        text = codec.readable(self.payload_json)
        return f"<Job {self.number}: {self.status}, {text if len(text) <= 80 else text[:79] + '…'}>"

    def _repr_html_(self) -> str:
        from .html import job_html

        return job_html(self)


JOB_FIELDS: tuple[str, ...] = Job._fields


def lane_of(provider: str | None, account: str | None) -> str:
    """The lane of jobs that name this account, this provider, or (both None) neither."""
    if account is not None:
        return f"account:{account}"
    return "" if provider is None else f"provider:{provider}"


def prompt_of(payload: Mapping[str, Any], settings: Collection[str] = ()) -> str | None:
    """The prompt as text: what the payload has under that name, in small letters or large.

    Without one it is the only text there is, those under the names in `settings` aside; None
    where there is no text, or several that might be meant.
    """
    for name in ("prompt", *payload):
        value = payload.get(name)
        is_one = isinstance(value, str | int | float) and not isinstance(value, bool)
        if is_one and name.strip().lower() == "prompt":
            return str(value)
    texts = [v for name, v in payload.items() if isinstance(v, str) and name not in settings]
    return texts[0] if len(texts) == 1 else None


def model_of(payload: Mapping[str, Any]) -> str:
    """The model a payload names, its first 200 characters; "" where it names none.

    What stands under ``model``, or else under that name in large letters, as sheets have it.
    """
    for name in ("model", *payload):
        model = payload.get(name)
        if isinstance(model, str) and name.strip().lower() == "model":
            return model[:MODEL_CHARS]
    return ""


class JobSpec(NamedTuple):
    """A job to be put: what a row, a dict or a call of `put` asks for.

    A `key` names the job: putting the same key again adds nothing. Without one, see
    `content_key`. `samples` jobs are made, each with a seed of its own. `encoded` is the
    payload as JSON where it has been made already: then the payload is plain.
    """

    payload: Mapping[str, Any]
    key: str | None = None
    priority: int = 0
    not_before_ms: int | None = None
    expires_ms: int | None = None
    max_attempts: int | None = None
    timeout_ms: int | None = None
    provider: str | None = None
    account: str | None = None
    batch: str | None = None
    samples: int = 1
    seed: int | None = None
    source: str | None = None
    row: int | None = None
    encoded: codec.Encoded | None = None


def content_key(spec: JobSpec, occurrence: int = 0) -> str:
    """The key of a job that was given none: the same for the same content.

    Made from payload, provider, account and seed, whatever the order of the columns and
    whatever read them. `occurrence` counts equal rows of one source from 0, so that a row
    that stands twice in a sheet is two jobs, and the sheet put twice is not four.
    """
    payload = codec.canonical(spec.payload) if spec.encoded is None else spec.encoded.canonical
    rest = "null,null,null"
    if spec.provider is not None or spec.account is not None or spec.seed is not None:
        rest = codec.dumps([spec.provider, spec.account, spec.seed])[1:-1]
    name = codec.hash_of_json("[", payload, ",", rest, "]")
    return f"content:{name}" + (f"#{occurrence + 1}" if occurrence else "")


@dataclass(frozen=True, slots=True)
class RowProblem:
    """A row that cannot run, and why. `row` is the number a person sees in the sheet.

    `kind` is the reason in a word or two, for counting: "hidden", "error cell", …
    """

    row: int
    reason: str
    source: str | None = None
    kind: str = "cannot be read"


@dataclass(frozen=True, slots=True)
class Added:
    """What a put did. `new`, `existing`, `changed` and `conflicts` count jobs.

    `changed` jobs were queued and took the new payload. `conflicts` had already started:
    they keep the payload they ran with. `problems` are rows that were skipped, the first
    thousand of `skipped`. Of the new jobs `beside` stand for a changed row whose earlier job
    had begun, or (`beside_shared`) is another sheet's too, and stays as it is. `gone` jobs are
    kept, and their rows are no longer there. `again` jobs were cancelled because their rows were
    gone; these are back, and so the jobs are queued again. `notes` are sentences on what else to
    know.
    """

    new: int = 0
    existing: int = 0
    changed: int = 0
    conflicts: int = 0
    problems: tuple[RowProblem, ...] = ()
    ids: tuple[str, ...] = field(default=(), repr=False)
    batch: str | None = None
    beside: int = 0
    gone: int = 0
    skipped: int = 0
    again: int = 0
    notes: tuple[str, ...] = ()
    beside_shared: int = 0

    def __repr__(self) -> str:
        return f"<Added: {self}>"

    def __str__(self) -> str:
        parts = [f"{self.new} new"]
        if self.beside:
            why = "are other sheets' too, or had begun," if self.beside_shared else "had begun"
            parts[0] += f" ({self.beside} for changed rows, whose earlier jobs {why} and stay)"
        if self.again:
            parts.append(f"{self.again} put again (cancelled when their rows were gone)")
        if self.existing:
            parts.append(f"{self.existing} already there")
        if self.changed:
            parts.append(f"{self.changed} changed")
        if self.conflicts:
            parts.append(f"{self.conflicts} changed too late (already started, left alone)")
        if self.gone:
            parts.append(f"{self.gone} whose row is gone (kept)")
        if n := max(self.skipped, len(self.problems)):
            some = "; ".join(f"row {p.row}: {p.reason}" for p in self.problems[:3])
            more = "; …" if n > 3 else ""
            parts.append(f"{n} {'row' if n == 1 else 'rows'} skipped ({some}{more})")
        return "\n".join([", ".join(parts), *self.notes])

    @classmethod
    def of(cls, parts: Sequence[Added]) -> Added:
        """What several puts did together."""
        return cls(
            new=sum(part.new for part in parts),
            existing=sum(part.existing for part in parts),
            changed=sum(part.changed for part in parts),
            conflicts=sum(part.conflicts for part in parts),
            problems=tuple(chain.from_iterable(part.problems for part in parts)),
            ids=tuple(chain.from_iterable(part.ids for part in parts)),
            batch=next((part.batch for part in parts if part.batch is not None), None),
            beside=sum(part.beside for part in parts),
            gone=sum(part.gone for part in parts),
            skipped=sum(part.skipped for part in parts),
            again=sum(part.again for part in parts),
            beside_shared=sum(part.beside_shared for part in parts),
        )


class Attempt(NamedTuple):
    """One claim of a job: who tried it, on which account, when, and what came of it.

    `job` is the job's number. `outcome` is an `Outcome.kind`, or "reclaimed" where the
    owner died; None while it runs. `money` is "billed", "not billed" or "unknown", and
    `cost_microusd` what is counted for it; `reserved_microusd` was set aside, at the claim and
    for further paid calls.
    """

    job: int
    fence: int
    attempt: int
    account: str
    runner: str
    started_ms: int
    finished_ms: int | None = None
    outcome: str | None = None
    error_json: str | None = None
    late_result_json: str | None = None
    generation: int = 0
    reserved_microusd: int = 0
    cost_microusd: int | None = None
    money: str | None = None

    @property
    def error(self) -> dict[str, Any] | None:
        """What went wrong, as in `Job.error`."""
        error: dict[str, Any] | None = codec.loads(self.error_json)
        return error


class Event(NamedTuple):
    """One line of a job's history. `id` only grows, so `after=` follows a queue.

    `job` is the job's number; None where the event is about the whole queue.
    """

    type: str
    job: int | None = None
    at_ms: int = 0
    level: str = "info"
    fence: int | None = None
    data_json: str = "{}"
    id: int = 0

    @property
    def data(self) -> dict[str, Any]:
        """What happened, beyond the type."""
        data: dict[str, Any] = codec.loads(self.data_json)
        return data


@dataclass(frozen=True, slots=True)
class Account:
    """A provider account: how many jobs it may run at once, and where its key is kept.

    `credential` is a reference such as ``env:RUNWAY_KEY``, never the key itself.
    `limits_json` holds its other limits: `per_minute`, `group`, `price` and `budget` (in
    micro-dollars), `model_capacity`, and what was learned about them. Where the provider
    limits each model by itself, `capacity` is that of a model that `model_capacity` does
    not name.
    """

    name: str
    provider: str
    capacity: int = 1
    credential: str | None = None
    is_enabled: bool = True
    parked_until_ms: int | None = None
    parked_reason: str | None = None
    limits_json: str = "{}"

    @property
    def limits(self) -> dict[str, Any]:
        """Its other limits, decoded anew at each call."""
        limits: dict[str, Any] = codec.loads(self.limits_json)
        return limits

    @property
    def is_by_model(self) -> bool:
        """True where each model has slots of its own: its provider or its user says so."""
        # A look at the text, for this is asked of every account at every turn.
        return '"is_by_model":' in self.limits_json or '"model_capacity":' in self.limits_json

    @property
    def said(self) -> list[str]:
        """What is to be known of it beyond name, provider, capacity and key, in words."""
        limits = self.limits
        of_models = limits.get("model_capacity", {}).items()
        words = [f"capacity {n} for {model}" for model, n in of_models]
        if "per_minute" in limits:
            words.append(f"{limits['per_minute']} a minute")
        if "group" in limits:
            words.append(f"group {limits['group']}")
        if "price" in limits:
            words.append(f"${limits['price'] / 1e6:,.2f} a job")
        if "budget" in limits:
            words.append(f"budget ${limits['budget'] / 1e6:,.2f}")
        if not self.is_enabled:
            words.append("paused")
        return words

    def __repr__(self) -> str:
        return f"<account {self}>"

    def __str__(self) -> str:
        key = f"key {self.credential}" if self.credential else "no key"
        return ", ".join(
            [f"{self.name}: provider {self.provider}", f"capacity {self.capacity}", key, *self.said]
        )


class Step(NamedTuple):
    """A durable checkpoint of a job: what it was to do, and what came of it.

    `state` is "intent" from before a paid call until its answer is kept, then "done".
    `key` is the idempotency key, the same at every try of one generation. `job` is the
    job's number, `fence` the attempt that began it. `cost_microusd` is what is set aside for a
    paid one, or what has been counted for it in the attempt with the fence `counted_by`.
    """

    job: int
    name: str
    generation: int
    state: str
    is_paid: bool
    key: str
    fence: int
    account: str | None
    request_json: str | None
    value_json: str | None
    begun_ms: int
    ended_ms: int | None = None
    cost_microusd: int = 0
    counted_by: int | None = None

    @property
    def value(self) -> Any:
        """What the step gave, once it is done."""
        return codec.loads(self.value_json)


class Output(NamedTuple):
    """A finished file of a job. `path` is as it was stored: relative to the output folder."""

    job: int
    fence: int
    path: str
    size: int
    sha256: str
    media_type: str = "application/octet-stream"
