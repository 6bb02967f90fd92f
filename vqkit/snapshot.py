"""The read model: how a queue stands, read in one transaction, for every screen to show.

Its cost does not grow with the number of jobs: counts come from the counters, rates from
the newest events, lists are short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from . import codec, html
from .clock import iso, local_text
from .job import LOCAL, STATUSES, Account, Event, Job, Step, prompt_of
from .policy import FOR_EVER_MS, capacity_now, models_at_rest
from .steps import ATTACHED
from .store.base import JobFilter, Runner
from .store.sqlite import SqliteStore

__all__ = ["AccountView", "ModelView", "RunnerView", "Snapshot", "take"]

RATE_EVENTS = 2000
RATE_WINDOW_MS = 10 * 60 * 1000
LIST_LENGTH = 10
TABLE_LENGTH = 50
DOUBTS_SHOWN = 10
LOG_BYTES_WARNING = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ModelView:
    """A model that has slots of its own on an account; `name` is "" for jobs that name none."""

    name: str
    capacity: int
    live: int
    why_not: str | None = None

    def __str__(self) -> str:
        rest = f" ({self.why_not})" if self.why_not else ""
        return f"{self.name or 'no model named'}: {self.live} of {self.capacity}{rest}"


@dataclass(frozen=True, slots=True)
class AccountView:
    """An account as a screen shows it: slots, what it brought to an end, why it rests.

    `spent` (what is set aside included) and `budget` are dollars; None where it has no price.
    Where its provider limits each model by itself, `capacity` is that of a model that is not
    among `models`, which holds those that are at work or have a limit of their own.
    `parked_until_ms` is None where no park holds it, or it had ended by then.
    """

    name: str
    provider: str
    capacity: int
    live: int
    completed: int
    failed: int
    why_not: str | None = None
    spent: float | None = None
    budget: float | None = None
    models: tuple[ModelView, ...] = ()
    is_by_model: bool = False
    is_enabled: bool = True
    parked_until_ms: int | None = None

    @property
    def slots_text(self) -> str:
        """How many of its slots are taken: "2 of 3", or that of each model."""
        if not self.is_by_model:
            return f"{self.live} of {self.capacity}"
        return ", ".join(map(str, self.models)) or f"0 of {self.capacity} of each model"


@dataclass(frozen=True, slots=True)
class RunnerView:
    """A process that works on the queue, and how its pump fares."""

    id: str
    pid: int
    host: str
    state: str
    trouble: str | None
    is_alive: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How a queue stood at `at_ms`. `eta_s` is None while nobody can tell.

    At most 50 jobs are in each of `running` (the longest first), `failed` (the newest
    first) and `recent` (those to which something happened last, the last first). `spent`,
    `set_aside` and `budget` are dollars, of all accounts. `evidence` is
    what is known of each of the `doubts`: the paid steps that have no answer; `examples` what
    a step of that name gave another job. `said` are those of the `failed` and `recent` to which
    a person has attached a value, (job, step), so that another may be said instead.
    `last_number` is the highest number of a job.
    """

    path: str
    at_ms: int
    counts: dict[str, int]
    accounts: tuple[AccountView, ...] = ()
    runners: tuple[RunnerView, ...] = ()
    running: tuple[Job, ...] = ()
    failed: tuple[Job, ...] = ()
    recent: tuple[Job, ...] = ()
    doubts: tuple[Job, ...] = ()
    evidence: Mapping[int, tuple[Step, ...]] = field(default_factory=dict)
    examples: Mapping[str, Any] = field(default_factory=dict)
    said: tuple[tuple[Job, str], ...] = ()
    last_number: int = 0
    events: tuple[Event, ...] = ()
    waiting: tuple[str, ...] = ()
    is_paused: bool = False
    per_minute: float | None = None
    eta_s: float | None = None
    notes: tuple[str, ...] = field(default=())
    spent: float = 0.0
    set_aside: float = 0.0
    budget: float | None = None

    @property
    def total(self) -> int:
        """All jobs."""
        return sum(self.counts.values())

    @property
    def name(self) -> str:
        """The database's file name."""
        return self.path.rpartition("/")[2]

    @property
    def headline(self) -> str:
        """The state in words, as one would tell a colleague."""
        if not self.total:
            return "no jobs yet"
        words = [f"{self.counts['completed']:,} of {self.total:,} done"]
        words += [
            f"{self.counts[status]:,} {status.replace('_', ' ')}"
            for status in ("failed", "in_doubt", "cancelled")
            if self.counts[status]
        ]
        is_worked_on = any(r.is_alive for r in self.runners)
        if n := self.counts["running"]:
            words.append(f"{n:,} {'running' if is_worked_on else 'interrupted'}")
        if self.is_paused:
            words.append("paused")
        elif self.eta_s is not None:
            words.append(f"about {duration_text(self.eta_s)} left")
        elif self.counts["queued"] and self.accounts and all(a.why_not for a in self.accounts):
            goes_on = "it goes on by itself" if is_worked_on else self.goes_on
            words.append(f"every account rests, see why below; when that is mended {goes_on}")
        elif (self.counts["queued"] or self.counts["running"]) and not is_worked_on:
            waits = "; some wait for what is not there, see below" if self.waiting else ""
            words.append(f"nobody is working on it: {self.goes_on}{waits}")
        return ", ".join(words)

    @property
    def money(self) -> str | None:
        """What all accounts have spent, in words; None where nothing has a price."""
        if not (self.spent or self.set_aside or any(a.spent is not None for a in self.accounts)):
            return None
        words = [f"${self.spent:,.2f} spent in all"]
        words += [f"${self.set_aside:,.2f} set aside"] if self.set_aside else []
        words += [f"budget ${self.budget:,.2f}"] if self.budget is not None else []
        return ", ".join(words)

    @property
    def others(self) -> tuple[str, ...]:
        """The providers of its accounts that are the user's own: all but the built-in `local`."""
        return tuple(sorted({a.provider for a in self.accounts if a.provider != LOCAL}))

    @property
    def goes_on(self) -> str:
        """What takes up what is left, in words: vqkit run does only where all is `local`'s."""
        if self.others:
            return f"q.run(…), where {' and '.join(self.others)} is defined, goes on"
        return "q.run() or vqkit run goes on" if self.accounts else "q.run(…) goes on"

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return {
            "path": self.path,
            "at": iso(self.at_ms),
            "counts": self.counts,
            "total": self.total,
            "paused": self.is_paused,
            "per_minute": self.per_minute,
            "eta_s": self.eta_s,
            "spent": self.spent,
            "set_aside": self.set_aside,
            "budget": self.budget,
            "accounts": [asdict(a) for a in self.accounts],
            "runners": [
                {name: getattr(r, name) for name in RunnerView.__slots__} for r in self.runners
            ],
            "waiting": list(self.waiting),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        lines = [self.headline]
        for a in self.accounts:
            rest = f" — {a.why_not}" if a.why_not else ""
            if a.spent is not None:
                rest = f", {_spent(a)} spent{rest}"
            lines.append(
                f"  {a.name} ({a.provider}): {a.slots_text} slots busy,"
                f" {a.completed} done, {a.failed} failed{rest}"
            )
        told = filter(None, (self.money, *self.waiting, *self.notes))
        return "\n".join([*lines, *(f"  {note}" for note in told)])

    def __repr__(self) -> str:
        return f"<Snapshot: {self.headline}>"

    def _repr_html_(self) -> str:
        bold = html.element("b", self.headline)
        parts = [html.element("div", bold, style=html.TEXT), html.bar(self.counts)]
        notes = filter(None, (self.money, *self.waiting, *self.notes))
        parts += [html.element("div", note, style=html.MUTED) for note in notes]
        if self.accounts:
            # Columns that say nothing only make the others narrow.
            has_money = any(a.spent is not None for a in self.accounts)
            is_resting = any(a.why_not for a in self.accounts)
            head = ["account", "slots busy", "done", "failed"]
            head += ["spent, set aside"] * has_money + ["rests because"] * is_resting
            rows = [
                (
                    a.name if a.name == a.provider else f"{a.name} ({a.provider})",
                    *(a.slots_text, a.completed, a.failed),
                    *([_spent(a)] * has_money),
                    *([a.why_not] * is_resting),
                )
                for a in self.accounts
            ]
            parts.append(html.table(head, rows, "accounts"))
        if self.failed:
            rows_failed = [
                (job.number, _short(job), _error(job), (job.error or {}).get("line"))
                for job in self.failed[:LIST_LENGTH]
            ]
            more = self.counts["failed"] - len(rows_failed)
            caption = "newest failed jobs" + (f", and {more:,} more" if more > 0 else "")
            parts.append(html.table(("job", "prompt", "error", "at"), rows_failed, caption))
        return html.output(*parts)


def take(store: SqliteStore, now_ms: int, is_alive: Callable[[Runner], bool]) -> Snapshot:
    """Reads the queue in one transaction. `is_alive` tells of a runner whether it lives."""
    with store.reading():
        kept = store.counts()
        counts: dict[str, int] = {status: kept.get(status, 0) for status in STATUSES}
        live, ends = store.live_counts(), store.account_counts()
        runners = store.runners()
        accounts = store.accounts()
        of_models = store.live_by_model() if any(a.is_by_model for a in accounts) else {}
        used_up, money = store.used_up(accounts, now_ms), store.money(now_ms)
        events = store.events(limit=LIST_LENGTH, newest=True)
        alive = [r for r in runners if is_alive(r)]
        since_ms = min((r.started_ms for r in alive), default=0)
        since_ms = max(since_ms, now_ms - RATE_WINDOW_MS)
        rate = store.rate(store.last_event() - RATE_EVENTS, since_ms)
        running = store.longest_running(TABLE_LENGTH)
        failed = store.jobs(JobFilter(status=("failed",), limit=TABLE_LENGTH, newest=True))
        doubts = store.jobs(JobFilter(status=("in_doubt",), limit=DOUBTS_SHOWN))
        evidence = {job.number: _open_steps(store, job) for job in doubts}
        examples = _examples(store, evidence)
        last_number = store.last_number()
        recent = store.recent_jobs(TABLE_LENGTH)
        said = _said(store, (*failed, *recent))
        lanes = store.waiting_lanes()
        paused = bool(store.setting("paused"))
        has_budget = any(
            store.setting(name) is not None for name in ("budget_microusd", "budget_day_microusd")
        )
        budget = store.setting("budget_microusd")
        log_bytes = store.log_bytes()
    living = {r.id for r in alive}
    views = tuple(
        RunnerView(r.id, r.pid, r.host, r.state, r.error, r.id in living) for r in runners
    )
    why = _why(runners, views, accounts, now_ms) | used_up | _rests(accounts, now_ms)
    account_views = tuple(
        AccountView(
            a.name,
            a.provider,
            a.capacity,
            live.get(a.name, 0),
            ends.get(a.name, {}).get("completed", 0),
            ends.get(a.name, {}).get("failed", 0),
            why.get(a.name),
            sum(money[a.name][:2]) / 1e6 if "price" in a.limits else None,
            a.limits["budget"] / 1e6 if "budget" in a.limits else None,
            _models(a, of_models, now_ms) if a.is_by_model else (),
            a.is_by_model,
            a.is_enabled,
            a.parked_until_ms if _is_parked(a, now_ms) else None,
        )
        for a in accounts
    )
    per_minute = _per_minute(*rate, now_ms)
    left = counts["queued"] + counts["running"]
    is_moving = (
        per_minute
        and left
        and not paused
        and any(v.is_alive and v.state != "stopping" for v in views)
        and not all(a.why_not for a in account_views)
    )
    notes = [f"process {v.pid}: {v.trouble}" for v in views if v.trouble]
    uncounted = [a.name for a in accounts if has_budget and "price" not in a.limits]
    if uncounted:
        notes.append(
            f"the budget does not count what runs on {', '.join(uncounted)}: without a price;"
            " give it one, 0 where it costs nothing"
        )
    if log_bytes > LOG_BYTES_WARNING:
        notes.append(
            f"the log file has grown to {log_bytes // 2**20} MB: another program keeps a read"
            " open on the database; close it"
        )
    return Snapshot(
        path=str(store.path),
        at_ms=now_ms,
        counts=counts,
        accounts=account_views,
        runners=views,
        running=tuple(running),
        failed=tuple(failed),
        recent=tuple(recent),
        doubts=tuple(doubts),
        evidence=evidence,
        examples=examples,
        said=said,
        last_number=last_number,
        events=tuple(events),
        waiting=tuple(_unserved(lanes, accounts)),
        is_paused=paused,
        per_minute=per_minute,
        eta_s=left / per_minute * 60 if per_minute and is_moving else None,
        notes=tuple(notes),
        spent=sum(spent for spent, *_ in money.values()) / 1e6,
        set_aside=sum(aside for _, aside, _ in money.values()) / 1e6,
        budget=None if budget is None else int(budget) / 1e6,
    )


def _why(
    runners: list[Runner],
    views: tuple[RunnerView, ...],
    accounts: list[Account],
    now_ms: int,
) -> dict[str, str]:
    """Why accounts get no work, as the living pumps said, where it is still so."""
    why: dict[str, str] = {}
    for runner, view in zip(runners, views, strict=True):
        if view.is_alive:
            why.update(codec.loads(runner.health_json).get("why", {}))
    for a in accounts:  # a pump that has nothing to do says it late
        said = why.get(a.name, "")
        is_park = said == (a.parked_reason or "parked") and not _is_parked(a, now_ms)
        if is_park or (a.is_enabled and said.startswith("paused by you")):
            del why[a.name]
    return why


def _is_parked(account: Account, now_ms: int) -> bool:
    return (account.parked_until_ms or 0) > now_ms


def _rests(accounts: list[Account], now_ms: int) -> dict[str, str]:
    """Why accounts rest that are paused or parked, and until when."""
    why = {}
    for a in accounts:
        until_ms = a.parked_until_ms or 0
        if not a.is_enabled:
            why[a.name] = "paused by you"
        elif _is_parked(a, now_ms):
            ends = f", until {local_text(until_ms, now_ms)}" if until_ms < FOR_EVER_MS else ""
            why[a.name] = f"parked{ends}: {a.parked_reason}"
    return why


def _models(
    account: Account, live: Mapping[tuple[str, str], int], now_ms: int
) -> tuple[ModelView, ...]:
    """The models of an account that are at work, or of which something is known."""
    limits, rests = account.limits, models_at_rest(account, now_ms)
    names = {model for name, model in live if name == account.name}
    names |= limits.get("model_capacity", {}).keys() | limits.get("models", {}).keys()
    why = {
        model: f"parked, until {local_text(until_ms, now_ms)}: {reason}"
        for model, (until_ms, reason) in rests.items()
    }
    return tuple(
        ModelView(
            model,
            capacity_now(account, now_ms, model),
            live.get((account.name, model), 0),
            why.get(model),
        )
        for model in sorted(names)
    )


def _unserved(lanes: list[str], accounts: list[Account]) -> list[str]:
    """Sentences about jobs that no account there is can take."""
    told = []
    for lane in lanes:
        kind, _, name = lane.partition(":")
        if not lane and not accounts:
            told.append("jobs wait and there is no account: q.accounts.add(…), or q.run(handler)")
        elif kind == "account" and name not in {a.name for a in accounts}:
            told.append(
                f"jobs that name the account {name!r} wait: there is none of that name;"
                f" q.accounts.add({name!r}, …) adds it, q.cancel(…) takes them back"
            )
        elif kind == "provider" and name not in {a.provider for a in accounts}:
            told.append(
                f"jobs that name the provider {name!r} wait: no account has it;"
                f" q.accounts.add(…, provider={name!r}) adds one, q.cancel(…) takes them back"
            )
    return told


def _per_minute(n: int, first_ms: int, last_ms: int, now_ms: int) -> float | None:
    """Jobs brought to an end per minute: `n` of them, between `first_ms` and `last_ms`."""
    if n < 3 or last_ms <= first_ms:
        return None
    return (n - 1) / ((max(last_ms, now_ms) - first_ms) / 60000)


def _open_steps(store: SqliteStore, job: Job) -> tuple[Step, ...]:
    """The steps that were begun and never answered."""
    return tuple(step for step in store.steps(job.number) if step.state == "intent")


def _said(store: SqliteStore, jobs: Iterable[Job]) -> tuple[tuple[Job, str], ...]:
    """What a person has attached to these jobs and may say again, as it was wrong perhaps."""
    known = {job.number: job for job in jobs if job.status in ("queued", "failed") and job.is_paid}
    found = store.said_steps(known.keys(), ATTACHED) if known else []
    return tuple((known[number], name) for number, name in found)


def _examples(store: SqliteStore, evidence: Mapping[int, tuple[Step, ...]]) -> dict[str, Any]:
    """What steps like those in doubt gave other jobs; by name, where there is one."""
    names = {step.name for steps in evidence.values() for step in steps}
    found = {name: store.example_value(name) for name in names}
    return {name: codec.loads(value) for name, value in found.items() if value is not None}


def duration_text(seconds: float) -> str:
    """Seconds as a person says them: "40 s", "12 min", "3 h 20 min"."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def _short(job: Job) -> str:
    text = prompt_of(job.payload) or codec.readable(job.payload_json)
    return text if len(text) <= 80 else text[:77] + "…"


def _error(job: Job) -> str | None:
    error = job.error or {}
    return ": ".join(filter(None, (error.get("type"), error.get("message")))) or job.reason


def _spent(account: AccountView) -> str:
    if account.spent is None:
        return ""
    of = f" of ${account.budget:,.2f}" if account.budget is not None else ""
    return f"${account.spent:,.2f}{of}"
