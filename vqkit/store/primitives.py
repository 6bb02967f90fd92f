"""What a dialect supplies: reads and writes of rows, and nothing of what they mean.

`Primitives` is the line between SQL and everything else; `store.base.Store` builds the
verbs on it. A few helpers that every verb goes through stand at its end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from .. import policy, secrets
from ..clock import Clock
from ..errors import UnknownName
from ..job import JOB_FIELDS, Account, Attempt, Event, Job, Output, Step
from ..outcome import Bill, Effect
from ..secrets import redact, redact_json

__all__ = [
    "Claim",
    "JobFilter",
    "Primitives",
    "Runner",
    "SheetJobs",
    "Transition",
    "TurnResult",
    "tally",
]


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

    `why_not` says in a sentence why an account gets nothing now, or None. Providers in
    `named_only` do only the jobs that name them or their accounts, and so do `stand_ins` where
    the queue has accounts of others. Those in `by_model` limit each model of an account by
    itself. An account that gets nothing new has its open renders collected if it
    `may_collect`: they are paid for.
    """

    owner: str
    why_not: Callable[[Account], str | None]
    limit: int = 500
    named_only: Set[str] = frozenset()
    stand_ins: Set[str] = frozenset()
    by_model: Set[str] = frozenset()
    may_collect: Callable[[Account], bool] = lambda _: False


@dataclass(frozen=True, slots=True)
class TurnResult:
    """What one turn did and saw.

    `stale` transitions came from attempts that no longer hold their job. `repeated` ones
    had been committed before, by a commit whose answer was lost. `cancels` are the
    owner's running jobs, as (number, fence), that the user wants stopped. `next_ms` is
    when a waiting job falls due or a parked account comes back. Pumps that began before
    `stop_ms` are asked to stop. Accounts `out_of_budget` still go on with calls that are paid.
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
    stop_ms: int = 0
    out_of_budget: frozenset[str] = frozenset()


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
    """Which jobs: all that match every part that is given. `newest` turns the order round.

    Numbers are above `after` and at most `upto`; `ended_by_ms` is for finished jobs only. A job
    `is_gone` if it came from a sheet and no sheet has its row any more, nor did a hand put it.
    """

    status: tuple[str, ...] = ()
    batch: str | None = None
    account: str | None = None
    owner: str | None = None
    numbers: tuple[int, ...] | None = None
    ids: tuple[str, ...] | None = None
    after: int = 0
    upto: int | None = None
    ended_by_ms: int | None = None
    is_gone: bool | None = None
    limit: int | None = None
    newest: bool = False


class SheetJobs(NamedTuple):
    """The jobs of one sheet by row and sample, as columns, so that a million fit in memory.

    `states` holds ``sample * 4`` and 0 for a job that was never begun, 1 for one that was
    and is not finished, 2 for a finished one, 3 for one that others want too, so that it may
    neither be changed nor be taken for gone.
    """

    rows: array[int]
    numbers: array[int]
    states: array[int]


class Primitives(ABC):
    """One connection to a queue's database, used by one thread."""

    clock: Clock
    before_write: Callable[[], None] = staticmethod(lambda: None)
    """Called when the database is ours and nothing is written yet; may raise to stop it."""

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
    def job_costs(self) -> dict[int, int]:
        """What the attempts of each job cost, in micro-dollars; only jobs where that is known."""

    @abstractmethod
    def numbers_by_source(self) -> list[int]:
        """All jobs' numbers in the order of their sources' rows.

        A file (of one batch) stands where its first job was put, at its end the jobs whose
        rows are not in it any more. Jobs of frames and lists, which have no name that tells
        one from another, stand where they were put.
        """

    @abstractmethod
    def outputs(self, job: int | None = None) -> list[Output]:
        """Finished files, of one job or all."""

    @abstractmethod
    def steps(self, job: int | None = None) -> list[Step]:
        """All steps, or one job's, in the order they were begun."""

    @abstractmethod
    def last_number(self) -> int:
        """The highest number a job was ever given; 0 where there is none."""

    @abstractmethod
    def example_value(
        self, name: str, *, accounts: Collection[str] | None = None, but: int | None = None
    ) -> str | None:
        """What a step of this name gave, as JSON: the newest among the newest steps.

        With `accounts` on one of these; never of the job `but`.
        """

    @abstractmethod
    def said_steps(self, numbers: Collection[int], reason: str) -> list[tuple[int, str]]:
        """Paid steps of these jobs, where they wait or have failed, that a word has ended.

        (job, name) of each of the job's generation; `reason` is that of the word.
        """

    @abstractmethod
    def paid_values(self, account: str) -> list[tuple[int, str]]:
        """What the paid steps of this account's jobs gave: (job, JSON)."""

    @abstractmethod
    def set_aside(self) -> set[tuple[int, int]]:
        """The renders for which money is set aside, as (job, generation)."""

    @abstractmethod
    def stray_renders(self) -> list[Job]:
        """Jobs that are over and whose render is still open at its provider."""

    @abstractmethod
    def accounts(self) -> list[Account]:
        """All accounts, by name."""

    @abstractmethod
    def batches(self) -> list[str]:
        """The names jobs were put under, oldest first."""

    @abstractmethod
    def owners(self) -> set[str]:
        """The runners that hold running jobs."""

    @abstractmethod
    def has_work_for(self, lanes: Sequence[str], *, is_paid: bool = False) -> bool:
        """True while a queued job stands in one of these lanes, due now or later.

        With `is_paid`, one that goes on with a paid call and needs no more money.
        """

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
    def live_by_model(self) -> dict[tuple[str, str], int]:
        """The same by account and model."""

    @abstractmethod
    def sheet_jobs(self, batch: str, source: str, absent: Set[str] = frozenset()) -> SheetJobs:
        """The jobs whose rows were in a sheet when it was last put, also those others put first.

        Sheets named `absent` are not there any more, and have no rows.
        """

    @abstractmethod
    def shares(self, numbers: Set[int]) -> dict[int, dict[tuple[str, str], int | None]]:
        """{job: {(source, batch): row}} of those that have these jobs too, beside the first."""

    @abstractmethod
    def versions(self, keys: Sequence[str]) -> dict[str, list[Job]]:
        """{key: jobs that were put beside that key's, with other payloads}, the newest first."""

    @abstractmethod
    def gone_counts(self) -> dict[str, int]:
        """How many failed and cancelled jobs there are that no sheet has any more, by status."""

    @abstractmethod
    def rows_shared_by(self, sources: Set[str]) -> dict[int, int | None]:
        """{job: row} of jobs that stand in these sheets too, and belong to another source."""

    @abstractmethod
    def pace(self) -> dict[str, tuple[int, float]]:
        """{account: (attempts, mean seconds)} of the newest attempts that completed a job."""

    @abstractmethod
    def backup(self, path: str) -> None:
        """Copies the whole database, while it is in use, to a new file."""

    @abstractmethod
    def _jobs_by_key(self, keys: Sequence[str]) -> list[Job]: ...

    @abstractmethod
    def _jobs_by_number(self, numbers: set[int]) -> dict[int, Job]: ...

    @abstractmethod
    def _insert_jobs(self, jobs: Sequence[Job], now_ms: int) -> list[Job]: ...

    @abstractmethod
    def _update_jobs(self, pairs: Sequence[tuple[Job, Job]]) -> None: ...

    @abstractmethod
    def _write_payloads(self, jobs: Sequence[Job]) -> None: ...

    @abstractmethod
    def _write_rows(self, rows: Sequence[tuple[int, int | None]]) -> None: ...

    @abstractmethod
    def _share(self, rows: Sequence[tuple[int, str, str, int | None]]) -> None: ...

    @abstractmethod
    def _write_owners(
        self, rows: Sequence[tuple[int, str | None, str | None, int | None]]
    ) -> None: ...

    @abstractmethod
    def _unshare(self, numbers: Sequence[int], source: str, batch: str) -> None: ...

    @abstractmethod
    def _delete_jobs(self, numbers: Sequence[int]) -> None: ...

    @abstractmethod
    def _finished_before(self, at_ms: int, statuses: Sequence[str], limit: int) -> list[Job]: ...

    @abstractmethod
    def _waiting(
        self, lane: str, limit: int, model: str | None = None
    ) -> list[policy.Candidate]: ...

    @abstractmethod
    def _waiting_paid(
        self, lane: str, limit: int, model: str | None = None
    ) -> list[policy.Candidate]: ...

    @abstractmethod
    def _waiting_models(self, lane: str) -> list[str]: ...

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
    def _renew_attempt(self, attempt: Attempt, generation: int, spent_microusd: int) -> None: ...

    @abstractmethod
    def _reserve_more(self, job: int, fence: int, microusd: int) -> None: ...

    @abstractmethod
    def _correct_attempt(self, attempt: Attempt, cost_microusd: int, money: str) -> None: ...

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
    def _has_worked(self, account: str) -> bool: ...

    @abstractmethod
    def _delete_account(self, account: str) -> None: ...

    @abstractmethod
    def _write_setting(self, name: str, value: Any) -> None: ...

    @abstractmethod
    def _write_runner(self, runner: Runner) -> None: ...

    @abstractmethod
    def _delete_runner(self, runner_id: str) -> None: ...

    def by_keys(self, keys: Sequence[str]) -> list[Job]:
        """The jobs that have these keys, in the order they were put."""
        return self._jobs_by_key(keys)

    # -- what every verb goes through -----------------------------------------------------

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
        delta = tally([after for _, after in pairs])
        delta.subtract(tally([before for before, _ in pairs]))
        self._count(Counter({name: n for name, n in delta.items() if n}))

    def _record(self, found: Sequence[Event | None]) -> None:
        events = [event for event in found if event is not None]
        if secrets.is_any_known():
            events = [_redacted_event(event) for event in events]
        self._insert_events(events)


_TALLIED = itemgetter(*map(JOB_FIELDS.index, ("batch", "account", "status")))


def tally(jobs: Sequence[Job]) -> Counter[tuple[str, str, str]]:
    """What these jobs add to the counters: one by batch and status, one by account and end."""
    tally: Counter[tuple[str, str, str]] = Counter()
    for (batch, account, status), n in Counter(map(_TALLIED, jobs)).items():
        tally["batch", batch or "", status] += n
        if status in ("completed", "failed") and account is not None:
            tally["account", account, status] += n
    for job in jobs:
        if job.reserved_microusd and job.account is not None:
            tally["money", job.account, "reserved"] += job.reserved_microusd
    return tally


def _redacted_event(event: Event) -> Event:
    return event._replace(data_json=redact_json(event.data_json))


def _redacted(job: Job) -> Job:
    cleaned: dict[str, Any] = {
        name: (redact_json if name.endswith("_json") else redact)(text)
        for name in ("handle_json", "result_json", "error_json", "reason", "stage")
        if (text := getattr(job, name)) is not None
    }
    return job._replace(**cleaned) if cleaned else job
