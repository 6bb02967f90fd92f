"""Work in: one job, many rows, a sheet; what a sheet would put is `vqkit.plan`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from .. import intake
from ..errors import PayloadError, StoreError, UsageError
from ..expand import expanded
from ..job import Added, Job, JobSpec, RowProblem
from ..store.rows import PUT_CHUNK
from ..store.sqlite import SqliteStore
from .asked import moment, text, whole
from .changing import Changing

if TYPE_CHECKING:
    from ..plan import Plan

__all__ = ["Putting"]

PROBLEMS_KEPT = 1000


class Putting(Changing):
    """The part of a queue that takes work in."""

    def put(
        self,
        payload: Mapping[str, Any],
        *,
        key: str | None = None,
        priority: int = 0,
        not_before: datetime | str | float | None = None,
        expires: datetime | str | float | None = None,
        max_attempts: int | None = None,
        timeout_s: float | None = None,
        provider: str | None = None,
        account: str | None = None,
        batch: str | None = None,
        samples: int = 1,
        seed: int | None = None,
    ) -> Job:
        """Puts one job and returns it; the first of them where `samples` is more than one.

        A job that is there already is returned and not put again. What makes it the same is
        its `key`, or without one its content: payload, provider, account and seed. So a
        cell may run again. For another render of the same prompt ask for more `samples`.

        A job that waits takes another payload that is put with its `key`, unless a sheet has the
        job: that raises UsageError. Higher `priority` goes first. `not_before` and `expires` are
        datetimes, ISO text or Unix seconds. Raises PayloadError for a payload that JSON cannot
        carry.
        """
        if not isinstance(payload, Mapping):
            raise UsageError(
                f"put() takes one payload, a dict; this is a {type(payload).__name__}."
                " For many rows use q.put_many(…), for a file q.load(…)."
            )
        base = self._defaults(
            priority, not_before, expires, max_attempts, timeout_s, provider, account, batch
        )
        spec = JobSpec(
            payload,
            key=text("key", key),
            samples=whole("samples", samples, 1, 1000),
            seed=None if seed is None else whole("seed", seed, 0, 2**62),
            **base,
        )
        self._learn_keys()
        added = self._put(expanded(spec))
        if added.problems:
            raise UsageError(
                f"nothing was put: {added.problems[0].reason}, or edit the row in its sheet"
            )
        return self.job(added.ids[0])

    def put_many(
        self,
        rows: Any,
        *,
        columns: list[str] | dict[str, str | None] | None = None,
        priority: int = 0,
        not_before: datetime | str | float | None = None,
        expires: datetime | str | float | None = None,
        max_attempts: int | None = None,
        timeout_s: float | None = None,
        provider: str | None = None,
        account: str | None = None,
        batch: str | None = None,
        samples: int = 1,
    ) -> Added:
        """Puts a job for each row: dicts, or a pandas, polars or pyarrow frame.

        Putting the same rows again adds nothing; a row that stands twice in one call is two
        jobs. Columns named priority, samples, provider, account, max_attempts, not_before,
        expires, timeout_s, key and seed set the job; all others are its payload. Rows that
        cannot run are skipped and listed in `Added.problems`.
        """
        table = intake.read(rows, columns=columns)
        base = self._defaults(
            priority, not_before, expires, max_attempts, timeout_s, provider, account, batch
        )
        return self._put_specs(intake.specs(table, samples=samples, **base), batch)

    def plan(
        self,
        source: Any,
        *,
        sheet: str | None = None,
        columns: list[str] | dict[str, str | None] | None = None,
        hidden: bool = False,
        engine: Literal["calamine"] | None = None,
        seconds_each: float | None = None,
        priority: int = 0,
        not_before: datetime | str | float | None = None,
        expires: datetime | str | float | None = None,
        max_attempts: int | None = None,
        timeout_s: float | None = None,
        provider: str | None = None,
        account: str | None = None,
        batch: str | None = None,
        samples: int = 1,
    ) -> Plan:
        """What a source would put, what would not run and why, what it costs; puts nothing.

        `source` is a file, a folder of .txt, a frame, dicts or a generator. Look at what
        comes back, and `put()` it. `hidden` reads rows that are hidden or filtered out too,
        `seconds_each` is how long a job takes, where the queue has not seen it yet. Rows in
        memory are compared with what is there row by row; with a `batch` also as a whole,
        so that edited rows are told from new ones. Raises SheetError as `load` does.
        """
        from .. import plan

        table = intake.read(source, sheet=sheet, columns=columns, hidden=hidden, engine=engine)
        base = self._defaults(
            priority, not_before, expires, max_attempts, timeout_s, provider, account, batch
        )
        return plan.make(self, table, {**base, "samples": samples}, seconds_each=seconds_each)

    def load(
        self,
        path: Any,
        *,
        sheet: str | None = None,
        columns: list[str] | dict[str, str | None] | None = None,
        hidden: bool = False,
        priority: int = 0,
        not_before: datetime | str | float | None = None,
        expires: datetime | str | float | None = None,
        max_attempts: int | None = None,
        timeout_s: float | None = None,
        provider: str | None = None,
        account: str | None = None,
        batch: str | None = None,
        samples: int = 1,
    ) -> Added:
        """Plans a source and puts it: .xlsx, .ods, .csv, .tsv, .jsonl, .json, .txt, a folder.

        Again, it puts what is new or changed since; see `plan`. The batch is named after the
        file unless told otherwise; ``q.jobs(batch=…)`` has the jobs, `Added.ids` is left empty.
        Raises SheetError for a source that cannot be read as rows, before anything is put; also
        where most of what would be put was begun or done already and differs only by its columns:
        `plan` shows that, and its `put` does it all the same.
        """
        from .. import plan

        table = intake.read(path, sheet=sheet, columns=columns, hidden=hidden)
        base = self._defaults(
            priority, not_before, expires, max_attempts, timeout_s, provider, account, batch
        )
        return plan.load(self, table, {**base, "samples": samples})

    def _defaults(
        self,
        priority: int,
        not_before: datetime | str | float | None,
        expires: datetime | str | float | None,
        max_attempts: int | None,
        timeout_s: float | None,
        provider: str | None,
        account: str | None,
        batch: str | None,
    ) -> dict[str, Any]:
        is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
        if timeout_s is not None and not (is_number and 0 < timeout_s < 10**7):
            raise UsageError(f"timeout_s {timeout_s!r}: expected seconds above 0")
        return {
            "priority": whole("priority", priority, -(2**31), 2**31),
            "not_before_ms": moment("not_before", not_before),
            "expires_ms": moment("expires", expires),
            "max_attempts": None
            if max_attempts is None
            else whole("max_attempts", max_attempts, 1, 1000),
            "timeout_ms": None if timeout_s is None else max(1, round(timeout_s * 1000)),
            "provider": text("provider", provider),
            "account": text("account", account),
            "batch": text("batch", batch),
        }

    def _put_specs(
        self,
        specs: Iterable[JobSpec | RowProblem],
        batch: str | None,
        *,
        has_ids: bool = True,
        earlier: Mapping[tuple[int, int], int] | None = None,
        absent: Set[str] = frozenset(),
    ) -> Added:
        """Puts them by the thousand: while one thousand is stored, the next is made ready.

        With `earlier` they are the rows of a sheet, as `Store.put_rows` takes them, `absent` too.
        """
        self._learn_keys()
        parts: list[Added] = []
        problems: list[RowProblem] = []
        jobs: list[Job] = []
        stored: Callable[[], Added] | None = None
        skipped = 0

        def store() -> None:
            nonlocal stored, jobs, skipped
            if stored is not None:
                part = stored()
                problems.extend(part.problems[: PROBLEMS_KEPT - len(problems)])
                skipped += part.skipped
                parts.append(part if has_ids else replace(part, ids=()))
            stored, jobs = self._begin_put(jobs, earlier, absent) if jobs else None, []

        for spec in specs:
            made = spec if isinstance(spec, RowProblem) else self._expand(spec)
            if isinstance(made, list):
                jobs += made
            else:
                skipped += 1
                if len(problems) < PROBLEMS_KEPT:
                    problems.append(made)
            if len(jobs) >= PUT_CHUNK:
                store()
        store()
        store()
        return replace(Added.of(parts), problems=tuple(problems), batch=batch, skipped=skipped)

    def _expand(self, spec: JobSpec) -> list[Job] | RowProblem:
        """The jobs of a row, or why it has none."""
        try:
            return expanded(spec)
        except PayloadError as error:
            kind = error.facts.get("kind", "cannot be read")
            return RowProblem(spec.row or 0, str(error), spec.source, kind)

    def _put(self, jobs: list[Job]) -> Added:
        return self._begin_put(jobs)()

    def _begin_put(
        self,
        jobs: list[Job],
        earlier: Mapping[tuple[int, int], int] | None = None,
        absent: Set[str] = frozenset(),
    ) -> Callable[[], Added]:
        def put(store: SqliteStore) -> Added:
            return store.put(jobs) if earlier is None else store.put_rows(jobs, earlier, absent)

        first = self._begin_write(put)

        def stored() -> Added:
            try:
                return first()
            except StoreError as error:
                if not error.facts.get("is_unknown"):
                    raise
                # The commit may have been made: the jobs carry their ids, so putting them
                # again adds what is missing and nothing else.
                return self._write(put)

        return stored
