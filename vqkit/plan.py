"""What a source would put into a queue: shown before it costs anything, and put as shown.

A plan reads its source once, and keeps counts, a few examples and eight bytes a row. `put`
reads it again and refuses a row that is not the one the plan saw.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
import weakref
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from itertools import count as numbers_from
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from . import codec, html, intake
from .clock import local_text
from .errors import SheetError
from .estimate import Estimate, Lane, estimate
from .intake.settings import SETTINGS
from .intake.table import Row, Table
from .job import Added, Job, JobSpec, RowProblem
from .notebook.counting import counted
from .recolumned import Recolumned, compared
from .snapshot import duration_text
from .store.base import JobFilter, SheetJobs
from .store.rows import (
    Holder,
    called,
    differs,
    holder_of,
    holders,
    is_cancelled_for_its_row,
    is_untouched,
    judged,
    taken,
)
from .words import clean, count, shorten

if TYPE_CHECKING:
    from .queue.looking import Looking
    from .queue.putting import Putting

__all__ = ["Column", "Plan", "known_source", "load", "make"]

CHUNK = 500
PROBLEMS_KEPT = 20  # of each kind
PROBLEMS_SHOWN = 10
ROWS_SHOWN = 8
ROWS_LOOKED_AT = 200  # for what became of their columns
ROWS_COMPARED = 1000  # of a file that may be a renamed one, and of rows that others have
SPOOL_BYTES = 8 << 20
# The setting {source: [path as seen from the queue, sheet, columns= of the last put]}; what an
# older version kept has no columns.
SOURCES = "sources"
UNMET, MET = 1, 2
DIGITS = 10**15
CELL_MAX = 32_767  # the most characters Excel keeps in a cell

Item: TypeAlias = "JobSpec | RowProblem"
Place: TypeAlias = "list[Any]"  # path, sheet


@dataclass(slots=True)
class Column:
    """A column and what it is taken for: payload, or a setting of the job.

    `kinds` counts its cells by what they hold; blank cells are not counted.
    """

    name: str
    kinds: Counter[str] = field(default_factory=Counter)
    example: str | None = None
    spaced: list[int] = field(default_factory=list)
    n_spaced: int = 0
    long_numbers: int = 0
    full: int = 0

    @property
    def role(self) -> str:
        """What the column is taken for."""
        return "sets the job" if self.name in SETTINGS else "payload"

    @property
    def holds(self) -> str:
        """What stands in its cells, the commonest first."""
        parts = [f"{kind} ({n:,})" for kind, n in self.kinds.most_common()]
        return ", ".join(parts) or "blank"

    def see(self, value: Any, row: int) -> None:
        """Counts one cell."""
        kind = type(value)
        if kind is str:
            self.kinds["date" if _is_date(value) else "text"] += 1
            if value[0].isspace() or value[-1].isspace():
                self.n_spaced += 1
                if len(self.spaced) < ROWS_SHOWN:
                    self.spaced.append(row)
            if len(value) == CELL_MAX:
                self.full += 1
        elif kind is bool:
            self.kinds["true or false"] += 1
        elif kind is int or kind is float:
            self.kinds["number"] += 1
            if kind is int and not -DIGITS < value < DIGITS:
                self.long_numbers += 1
        else:
            self.kinds["JSON"] += 1
        if self.example is None:
            self.example = shorten(value, 40)

    def notes(self, *, is_workbook: bool) -> Iterator[str]:
        """What a careful reader would mention."""
        name = repr(self.name)
        if self.n_spaced:
            cells = count(self.n_spaced, "cell")
            where = _rows(self.spaced, self.n_spaced)
            yield f"{cells} of {name} with spaces around the text, kept ({where})."
        if is_workbook and self.long_numbers:
            yield (
                f"{count(self.long_numbers, 'number')} of 16 digits and more in {name}: a number"
                " cell keeps 15. If they are ids, look whether they end in zeros."
            )
        if is_workbook and self.full:
            yield (
                f"{count(self.full, 'cell')} of {name} with {CELL_MAX:,} characters, the most a"
                " sheet keeps: the text may have been cut."
            )


class Plan:
    """What a source would put, in counts, and `put` to do exactly that.

    `new` and `changed` are jobs that `put` adds or changes, `again` those that it queues again,
    cancelled when their rows were gone. `same` are there already, `gone`
    were put from this source and their rows are no longer in it: they are kept. Not gone, but
    `gone_elsewhere`, are those that were put from another sheet or by hand too. `rows` is
    how many rows run, `skipped` how many do not by kind of reason, `problems` the first of
    each kind. `recolumned` says what became of the columns where most of what is there would be
    put again only for that. `columns` say what each column is taken for, `estimate` what it costs
    and how long it takes.
    """

    def __init__(self, queue: Putting, table: Table, defaults: dict[str, Any]) -> None:
        self.source = table.source
        self.batch: str | None = defaults["batch"]
        self.rows = self.new = self.changed = self.same = self.gone = 0
        self.in_place = 0
        self.beside = self.again = 0
        self.gone_waiting = self.beside_waiting = self.beside_shared = 0
        self.others: tuple[str, ...] = ()  # who else has jobs that this sheet lets go
        self.gone_elsewhere = 0
        self.repeated = 0
        self.same_by_status: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.problems: tuple[RowProblem, ...] = ()
        self.recolumned: Recolumned | None = None  # for that alone much would be put again
        self.columns: tuple[Column, ...] = ()
        self.notes: tuple[str, ...] = ()
        self.new_rows: list[int] = []
        self.changed_rows: list[int] = []
        self.estimate = Estimate()
        self.ends: str | None = None
        self.money_left: float | None = None
        self.waiting = 0
        self._queue, self._table, self._defaults = queue, table, defaults
        self._digests: array[int] = array("q")
        self._earlier: dict[tuple[int, int], int] = {}
        self._gone: array[int] = array("q")
        self._replaced: list[int] = []  # jobs of a row's key, begun with another text
        self._fingerprint: str | None = None
        self._spool: Any = None
        self._renamed: str | None = None
        self._said: tuple[str, ...] = ()  # of the notes, those that `put` repeats

    @property
    def jobs(self) -> int:
        """How many jobs `put` adds, changes or queues again."""
        return self.new + self.changed + self.again

    def put(self, *, cancel_gone: bool = False) -> Added:
        """Puts what the plan shows, and says what that did. Again, it adds nothing.

        With `cancel_gone` the jobs whose rows are gone, and those that a changed row had
        before, are cancelled where they are not finished and nobody else put them too. Raises
        SheetError where the source is not what the plan saw; then nothing is put.
        """
        queue, table = self._queue, self._table
        if table.path is not None and _fingerprint(table.path) != self._fingerprint:
            raise SheetError(
                f"{self.source} has changed since this plan was made, and nothing was put; look"
                f" at a new one: q.plan({str(table.path)!r})",
                source=self.source,
            )
        if table.path is None and self._spool is None:
            for _ in self._checked():
                pass  # rows in memory are compared to the last one before the first is put
        _claim(queue, table, self.source, renamed=self._renamed)
        absent = _absent(queue, self.source)
        rows = counted(self._checked(), f"{self.source} put", len(self._digests))
        added = queue._put_specs(
            rows, self.batch, has_ids=False, earlier=self._earlier, absent=absent
        )
        gone, batch = self._gone.tolist(), self.batch
        if batch is not None:
            queue._write(lambda store: store.leave_rows(gone, batch, self.source))
        if cancel_gone:
            olds = (*gone, *self._earlier.values(), *self._replaced)
            queue._write(lambda store: store.cancel_left(olds, absent))
        return replace(added, gone=self.gone, notes=self._said)

    def _items(self) -> Iterable[Item]:
        if self._spool is None:
            return intake.specs(self._table, **self._defaults)
        return _unspooled(self._spool)

    def _checked(self) -> Iterator[Item]:
        """The rows again, each held against the one the plan saw."""
        seen = 0
        for item in self._items():
            if seen >= len(self._digests) or _digest(item) != self._digests[seen]:
                self._refuse(item.row)
            seen += 1
            yield item
        if seen < len(self._digests):
            self._refuse(None)

    def _refuse(self, row: int | None) -> None:
        where = "it has fewer rows" if row is None else f"row {row} is another"
        raise SheetError(
            f"{self.source} is not what this plan saw ({where}); look at a new plan",
            source=self.source,
        )

    # -- showing it --------------------------------------------------------------------------

    @property
    def headline(self) -> str:
        """What `put` would do, in a line."""
        if self.jobs:
            parts = [("new", self.new), ("changed", self.changed), ("again", self.again)]
            kinds = [f"{n:,} {word}" for word, n in parts if n]
            how = f"all {kinds[0].split()[-1]}" if len(kinds) == 1 else " and ".join(kinds)
            head = f"{count(self.jobs, 'job')} to put, {how}"
            if self.same:
                head = f"{count(self.jobs, 'job')} to put ({' and '.join(kinds)}), "
                head += f"{self.same:,} the same"
        elif self.same:
            head = f"nothing to put: {count(self.same, 'job')} {_is(self.same)} there already"
        else:
            head = "nothing to put: no row can run"
        gone = f", {self.gone:,} gone" if self.gone else ""
        return f"{self.source}: {head}{gone}"

    def facts(self) -> list[tuple[str, str]]:
        """The plan in words: what, and how it stands with that."""
        told = [("rows", self._rows_text())]
        if self.new and (self.same or self.changed or self.gone):
            told.append(("new", f"{self.new:,} ({_rows(self.new_rows, self.new)})"))
        if self.changed:
            how = []
            if self.in_place:
                how.append(f"{self.in_place:,} not begun yet, changed in their place")
            if n := self.beside - self.beside_shared:
                how.append(f"{n:,} begun or done: a new job each, and the earlier one stays")
            if self.beside_shared:
                how.append(
                    f"{self.beside_shared:,} {self._elsewhere} too: a new job each, and the earlier"
                    " one stays theirs"
                )
            if self.beside_waiting:
                how.append(
                    f"{self.beside_waiting:,} of those {_is(self.beside_waiting)} not finished"
                    " and go on with the old text: put(cancel_gone=True) cancels them"
                )
            rows = _rows(self.changed_rows, self.changed)
            told.append(("changed", f"{self.changed:,} ({rows}): {'; '.join(how)}"))
        if self.again:
            told.append(
                (
                    "again",
                    f"{self.again:,} cancelled when their rows were gone: the rows are back, and so"
                    " the jobs wait again",
                )
            )
        if self.same:
            by = ", ".join(f"{n:,} {s.replace('_', ' ')}" for s, n in self.same_by_status.items())
            again = ""
            if self.same_by_status["failed"] or self.same_by_status["cancelled"]:
                again = "; q.requeue(…) gives the failed and cancelled another chance"
            told.append(("same", f"{self.same:,}, not put again ({by}){again}"))
        if self.gone:
            text = f"{self.gone:,} put earlier, their rows no longer there; they are kept"
            if self.gone_waiting:
                text += (
                    f", and {self.gone_waiting:,} not finished would still run:"
                    " put(cancel_gone=True) cancels them"
                )
            told.append(("gone", text))
        if n := self.gone_elsewhere:
            text = f"{n:,} no longer here, but {self._elsewhere} too; kept for that"
            told.append(("shared", text))
        told += [("cost", self._cost_text()), ("time", self._time_text())]
        return told

    @property
    def _elsewhere(self) -> str:
        names = ["put by hand" if name == "" else f"in {name}" for name in self.others]
        return " or ".join([*names[:3], *(["elsewhere"] if len(names) > 3 or not names else [])])

    def _rows_text(self) -> str:
        text = f"{self.rows:,} {'runs' if self.rows == 1 else 'run'}"
        if self.jobs + self.same > self.rows:
            text += f", as {count(self.jobs + self.same, 'job')}"
        if n := self.skipped.total():
            kinds = ", ".join(f"{n:,} {kind}" for kind, n in self.skipped.most_common())
            text += f"; {n:,} {'does' if n == 1 else 'do'} not: {kinds}"
        if self.repeated:
            text += f"; {self.repeated:,} repeat an earlier row, a job of its own each"
        return text

    def _cost_text(self) -> str:
        e = self.estimate
        if e.low is None or e.high is None:
            return f"unknown: {e.why_no_cost}"
        text = f"${e.low:,.2f}" + (f" to ${e.high:,.2f}" if e.high > e.low else "")
        if self.money_left is not None and e.high > self.money_left:
            text += f"; the budget leaves ${self.money_left:,.2f} and would pause the queue"
        return text

    def _time_text(self) -> str:
        e = self.estimate
        if e.seconds is None:
            return f"unknown: {e.why_no_time}"
        if not self.jobs:
            return "none"
        each = f"{duration_text(e.seconds_each)} a job" if e.seconds_each else ""
        behind = f", behind {count(self.waiting, 'job')} that wait" if self.waiting else ""
        until = f": until {self.ends} if begun now" if self.ends else ""
        return f"about {duration_text(e.seconds)}{until} ({each}{behind})"

    @property
    def forecast(self) -> str:
        """Cost and time in a line, as far as they are known; '' where neither is."""
        e = self.estimate
        if not self.jobs:
            return ""
        cost = self._cost_text() if e.high else ""
        time = self._time_text() if e.seconds is not None else ""
        return "; ".join(filter(None, (time, cost)))

    def text(self, does_it: str = "plan.put() does this; nothing has been put yet") -> str:
        """The whole plan as text, with how to go on from it as its last line."""
        lines = [self.headline]
        lines += [f"  {what:<8} {clean(text)}" for what, text in self.facts()]
        lines += [f"  {clean(note)}" for note in self.notes]
        width = max((len(shorten(c.name, 24)) for c in self.columns), default=0)
        if self.columns:
            lines.append("  columns")
        lines += [
            f"    {shorten(c.name, 24):<{width}}  {c.role}: {c.holds}"
            + (f", such as {c.example}" if c.example else "")
            for c in self.columns
        ]
        if self.problems:
            lines.append("  rows that do not run")
        shown = self.problems[:PROBLEMS_SHOWN]
        lines += [f"    row {p.row}: {clean(p.reason)}" for p in shown]
        rest = self.skipped.total() - self.skipped["blank"] - len(shown)
        if rest > 0:
            lines.append(f"    and {rest:,} more")
        if self.jobs or self.gone:
            lines.append(f"  {does_it}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        parts = [
            html.element("div", html.element("b", self.headline), style=html.TEXT),
            html.table(("", ""), self.facts()),
            *(html.element("div", note, style=html.MUTED) for note in self.notes),
        ]
        if self.columns:
            rows = [(c.name, c.role, c.holds, c.example) for c in self.columns]
            parts.append(html.table(("column", "taken for", "holds", "such as"), rows, "columns"))
        if self.problems:
            shown = [(p.row, p.kind, p.reason) for p in self.problems[:PROBLEMS_SHOWN]]
            n = self.skipped.total() - self.skipped["blank"]
            caption = "rows that do not run"
            caption += f", {len(shown)} of {n:,}" if n > len(shown) else ""
            parts.append(html.table(("row", "reason", ""), shown, caption))
        if self.jobs or self.gone:
            does_it = (html.element("code", "plan.put()"), " does this; nothing has been put yet")
            parts.append(html.element("div", *does_it, style=html.MUTED))
        return html.output(*parts)


def make(
    queue: Putting, table: Table, defaults: dict[str, Any], *, seconds_each: float | None = None
) -> Plan:
    """Reads the source and compares it with the queue. Puts nothing, spends nothing."""
    was_named = table.source
    renamed = _renamed_from(queue, table, defaults)
    defaults = _named(queue, table, defaults, renamed)
    plan = Plan(queue, table, defaults)
    plan._renamed = renamed
    comparison = _Comparison(plan, queue)
    watched = _Watched(table)
    stands = None if table.path is None else _stamp(table.path)
    if table.path is not None:
        plan._fingerprint = _fingerprint(table.path)
    spool = tempfile.SpooledTemporaryFile(SPOOL_BYTES) if table.is_once else None  # noqa: SIM115
    jobs: list[Job] = []
    kept: Counter[str] = Counter()
    problems: list[RowProblem] = []

    def skip(problem: RowProblem) -> None:
        plan.skipped[problem.kind] += 1
        if kept[problem.kind] < PROBLEMS_KEPT:
            kept[problem.kind] += 1
            problems.append(problem)

    comparison.skip = skip
    for item in counted(intake.specs(watched, **defaults), f"{table.source} read"):
        plan._digests.append(_digest(item))
        if spool is not None:
            pickle.dump(item, spool, pickle.HIGHEST_PROTOCOL)
        if isinstance(item, RowProblem):
            skip(item)
            continue
        made = queue._expand(item)
        if isinstance(made, RowProblem):
            skip(made)
            continue
        jobs += made
        plan.rows += 1
        plan.repeated += "#" in (item.key or "") and (item.key or "").startswith("content:")
        if len(jobs) >= CHUNK:
            comparison.see(jobs)
            jobs = []
    comparison.see(jobs)
    comparison.end()
    if table.path is not None and _stamp(table.path) != stands:
        raise SheetError(
            f"{table.source} was written while it was read; plan it again once it is saved",
            source=table.source,
        )
    if spool is not None:
        plan._spool = spool
        weakref.finalize(plan, spool.close)
    if watched.blank:
        plan.skipped["blank"] = watched.blank
    plan.problems = tuple(sorted(problems, key=lambda p: p.row))
    plan.columns = tuple(watched.seen.values())
    is_workbook = table.sheet is not None
    notes = [note for column in plan.columns for note in column.notes(is_workbook=is_workbook)]
    if renamed is not None:
        plan._said = (
            f"{was_named} is {renamed} under another name: that file is not there any more, and"
            f" its rows are in this one. Its jobs and their batch are still called {renamed}.",
        )
    elif table.path is not None and table.path.name not in table.source:
        notes.append(f"{table.path.name} was {table.source}, and its jobs are still called that.")
    if spool is not None:
        notes.append(
            "The rows came from a generator: they were read now, once, and wait in a temporary"
            " file for put()."
        )
    _estimate(plan, queue, comparison, seconds_each)
    if plan.recolumned is not None:
        plan._said += (_recolumned_text(plan, queue, plan.recolumned),)
    plan.notes = (*table.notes, *notes, *plan._said)
    return plan


def load(queue: Putting, table: Table, defaults: dict[str, Any]) -> Added:
    """A plan and its `put` in one; a source that is put for the first time is read once.

    Raises SheetError, and puts nothing, where most of what was begun or done would be put again
    only because the columns are others.
    """
    if table.path is not None:
        if _renamed_from(queue, table, defaults) is not None:
            return make(queue, table, defaults).put()
        table.source = _claim(queue, table, is_put=False)
    defaults = _named(queue, table, defaults)
    absent = _absent(queue, table.source)
    scope = _scope(queue, defaults["batch"], table.source, absent)
    if (scope is not None and len(scope.rows)) or table.has_results:
        plan = make(queue, table, defaults)
        if plan.recolumned is not None:
            raise SheetError(
                f"nothing was put, for it would be paid again. {plan._said[-1]}", source=plan.source
            )
        return plan.put()
    _claim(queue, table, table.source)
    rows = intake.specs(table, **defaults)
    # Of a million rows the ids would take 100 MB.
    return queue._put_specs(rows, defaults["batch"], has_ids=False, earlier={}, absent=absent)


class _Watched:
    """A table that counts what passes: its columns' cells, and blank rows between others."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.source, self.columns = table.source, table.columns
        self.seen = {name: Column(name) for name in table.columns}
        self.blank = 0

    def __iter__(self) -> Iterator[Row | RowProblem]:
        last: int | None = None
        for item in self._table:
            number = item.number if isinstance(item, Row) else item.row
            if last is not None and number > last + 1:
                self.blank += number - last - 1
            last = number
            if isinstance(item, Row):
                for name, value in item.values.items():
                    column = self.seen.get(name)
                    if column is None:  # an object's own, first met here
                        column = self.seen[name] = Column(name)
                    column.see(value, number)
            yield item


class _Comparison:
    """Holds the rows against the jobs of the same sheet that are there.

    An edited row has a new key. Which job it had is told by its place: rows between two
    rows that stayed are paired, in order, with the jobs between the same two. So a row
    inserted at the top changes nothing below it.
    """

    def __init__(self, plan: Plan, queue: Putting) -> None:
        self.skip: Callable[[RowProblem], None] = lambda _: None
        self.lanes: Counter[Lane] = Counter()
        self._plan, self._queue = plan, queue
        self._now_ms = queue._clock.now_ms()
        self._absent = _absent(queue, plan.source)
        self._scope = _scope(queue, plan.batch, plan.source, self._absent)
        numbers = () if self._scope is None else self._scope.numbers
        self._is_met = bytearray(max(numbers, default=0) + 1)
        for number in numbers:
            self._is_met[number] = UNMET
        self._anchor = self._last_row = 0
        self._is_in_order = True
        # Of rows without a job of their key: row, sample, and the job of the row before them.
        self._rows, self._samples, self._anchors = array("q"), array("q"), array("q")
        self._refused: list[tuple[int, int]] = []  # row, and the job of the row before it
        self._names: set[str] = set()
        # Of some rows that would be put: what they hold, and what they had where that is known.
        self._looked_at: dict[int, Mapping[str, Any]] = {}
        self._pairs: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []
        self._lane_numbers: dict[Lane, int] = {}
        self._lanes_of: array[int] = array("q")

    def see(self, jobs: list[Job]) -> None:
        """Compares some jobs, in the order of their rows."""
        if not jobs:
            return
        known = self._known([job.key or "" for job in jobs])
        differing = [
            job.key or ""
            for job in jobs
            if job.key in known and known[job.key].payload_hash != job.payload_hash
        ]
        versions = self._queue._read(lambda s: s.versions(differing)) if differing else {}
        found = {job.number for beside in versions.values() for job in beside}
        found.update(job.number for job in known.values())
        shares = self._queue._read(lambda s: s.shares(found))
        for job in jobs:
            own = known.get(job.key or "")
            verdict = own and judged(job, own, versions, shares, self._absent)
            old = verdict and verdict.found
            if verdict is None or old is None:
                self._see_new(job)
                continue
            has = holders(old, shares.get(old.number, {}), self._absent) - {holder_of(job)}
            if verdict.what == "refuse":
                self._refused.append((job.row or 0, self._anchor))
                self.skip(taken(job, old))
            elif verdict.what == "beside":
                self._meet(old)
                self._put_beside(job, old, has)
            elif verdict.what == "change" or (
                not has and is_untouched(old) and differs(old, job, self._now_ms)
            ):
                self._meet(old)
                self._changed(job)
                self._plan.in_place += 1
            elif is_cancelled_for_its_row(old):
                self._meet(old)
                self._plan.again += 1
                self._count((job.provider, job.pinned_account))
            else:
                self._same(old)

    def _known(self, keys: list[str]) -> dict[str, Job]:
        if not keys:
            return {}
        found = self._queue._read(lambda s: s.by_keys(keys))
        return {job.key or "": job for job in found}

    def _same(self, found: Job) -> None:
        self._plan.same += 1
        self._plan.same_by_status[found.status] += 1
        self._meet(found)

    def _meet(self, found: Job) -> None:
        if found.number < len(self._is_met) and self._is_met[found.number]:
            self._is_met[found.number] = MET
            self._anchor = found.number
            row = found.row or 0
            if holder_of(found) == (self._plan.source, self._plan.batch):
                self._is_in_order &= row >= self._last_row
                self._last_row = row

    def _put_beside(self, job: Job, found: Job, others: Set[Holder]) -> None:
        self._changed(job)
        self._plan.beside += 1
        if others:
            self._plan.beside_shared += 1
            self._names.update(called(holder, holder_of(job)) for holder in others)
        else:
            self._plan.beside_waiting += not found.is_terminal
        self._plan._replaced.append(found.number)
        if len(self._pairs) < ROWS_LOOKED_AT:
            self._pairs.append((job.payload, found.payload))

    def _changed(self, job: Job) -> None:
        self._plan.changed += 1
        _note(self._plan.changed_rows, job.row)
        self._count((job.provider, job.pinned_account))

    def _see_new(self, job: Job) -> None:
        lane = (job.provider, job.pinned_account)
        if self._scope is None or not len(self._scope.rows):
            if self._plan._table.has_results and len(self._looked_at) < ROWS_LOOKED_AT:
                self._looked_at.setdefault(job.row or 0, job.payload)
            self._plan.new += 1
            _note(self._plan.new_rows, job.row)
            self._count(lane)
            return
        if len(self._looked_at) < ROWS_LOOKED_AT:
            self._looked_at.setdefault(job.row or 0, job.payload)
        self._rows.append(job.row or 0)
        self._samples.append(job.sample)
        self._anchors.append(self._anchor)
        self._lanes_of.append(self._lane_numbers.setdefault(lane, len(self._lane_numbers)))

    def _count(self, lane: Lane) -> None:
        self.lanes[lane] += 1

    def end(self) -> None:
        """Pairs what is left on both sides, and counts it."""
        plan, scope = self._plan, self._scope
        if plan._table.has_results and not (scope and len(scope.rows)) and not plan.same:
            plan.recolumned = self._results_of_another()
        if scope is None:
            return
        news: list[_Place] = []
        for at, (row, anchor) in enumerate(zip(self._rows, self._anchors, strict=True)):
            if not news or (news[-1].row, news[-1].anchor) != (row, anchor):
                news.append(_Place(row, anchor))
            news[-1].jobs[self._samples[at]] = at
        if self._refused:
            news += [_Place(row, anchor, is_refused=True) for row, anchor in self._refused]
            news.sort(key=lambda place: place.row)
        olds: list[_Place] = []
        anchor = 0
        for at, (row, number) in enumerate(zip(scope.rows, scope.numbers, strict=True)):
            if self._is_met[number] == MET:
                anchor = number
                continue
            if not olds or (olds[-1].row, olds[-1].anchor) != (row, anchor):
                olds.append(_Place(row, anchor))
            olds[-1].jobs[scope.states[at] >> 2] = at
        # A source none of whose rows is there is taken for another one, not for an edited one,
        # unless only its columns are others.
        pairs = _paired(olds, news, is_in_order=self._is_in_order)
        is_known = MET in self._is_met
        recolumned = self._recolumned(
            [(old, new) for old, new in pairs if is_known or old.row == new.row], scope
        )
        if not (is_known or recolumned):
            pairs = []
        earlier = {
            new.jobs[sample]: old.jobs[sample]
            for old, new in pairs
            for sample in new.jobs.keys() & old.jobs.keys()
        }
        for old, new in pairs:
            if new.is_refused:  # its row is there, though what it says now does not run
                for at in old.jobs.values():
                    self._is_met[scope.numbers[at]] = MET
        theirs: list[int] = []
        lanes = {number: lane for lane, number in self._lane_numbers.items()}
        for at, row in enumerate(self._rows):
            self._count(lanes[self._lanes_of[at]])
            if at not in earlier:
                plan.new += 1
                _note(plan.new_rows, row)
                continue
            number, state = scope.numbers[earlier[at]], scope.states[earlier[at]] & 3
            self._is_met[number] = MET
            plan._earlier[row, self._samples[at]] = number
            plan.changed += 1
            _note(plan.changed_rows, row)
            plan.in_place += state == 0
            plan.beside += state > 0
            plan.beside_waiting += state == 1
            plan.beside_shared += state == 3
            if state == 3:
                theirs.append(number)
        if plan.beside > plan.beside_shared:
            plan.recolumned = recolumned
        for number, state in zip(scope.numbers, scope.states, strict=True):
            if self._is_met[number] == UNMET:
                is_shared = state & 3 == 3
                plan.gone_elsewhere += is_shared
                if is_shared:
                    theirs.append(number)
                plan.gone += not is_shared
                plan.gone_waiting += state & 3 < 2
                plan._gone.append(number)
        me = (plan.source, plan.batch or "")
        some = theirs[:ROWS_COMPARED]  # enough to know whose they are
        names = self._queue._read(lambda s: s.names_of_holders(some, me, self._absent))
        plan.others = tuple(sorted(self._names | names))

    def _results_of_another(self) -> Recolumned | None:
        """What became of the columns, if these are the results of a sheet the queue knows.

        A workbook with results is known by its rows only where it is read as its sheet was.
        """
        known = self._queue._read(lambda s: s.setting(SOURCES, {}))
        for name in reversed(known):
            scope = _scope(self._queue, name, name, self._absent)
            assert scope is not None
            places = [
                (_Place(row, 0, {0: at}), _Place(row, 0))
                for at, row in enumerate(scope.rows)
                if row in self._looked_at and scope.states[at] in (1, 2)
            ]
            if 2 * len(places) >= len(self._looked_at):
                found = self._recolumned(places, scope)
                if found is not None:
                    return found
        return None

    def _recolumned(
        self, places: list[tuple[_Place, _Place]], scope: SheetJobs
    ) -> Recolumned | None:
        """What became of the columns, if the rows that would be put differ by that alone."""
        numbers = {
            new.row: scope.numbers[next(iter(old.jobs.values()))]
            for old, new in places
            if new.row in self._looked_at
        }
        if not (numbers or self._pairs):
            return None
        asked = (*numbers.values(), *scope.numbers[:ROWS_LOOKED_AT])
        known = self._queue._read(lambda s: s.jobs(JobFilter(numbers=asked)))
        payloads = {job.number: job.payload for job in known}
        pairs = [
            (self._looked_at[row], payloads[number])
            for row, number in numbers.items()
            if number in payloads
        ]
        before = {name for payload in payloads.values() for name in payload}
        before.update(name for _, old in self._pairs for name in old)
        return compared([*pairs, *self._pairs], before)


@dataclass(slots=True)
class _Place:
    """A row that has no counterpart: behind which job, and where each of its samples is."""

    row: int
    anchor: int
    jobs: dict[int, int] = field(default_factory=dict)
    is_refused: bool = False

    def may_be(self, old: _Place) -> bool:
        """Whether this row can be what an earlier one has become."""
        return self.is_refused or bool(self.jobs.keys() & old.jobs.keys())


def _paired(
    olds: list[_Place], news: list[_Place], *, is_in_order: bool
) -> list[tuple[_Place, _Place]]:
    """Rows as they were and as they are, by their gap.

    In a sheet that was sorted too gaps say little: there as many as are left on either
    side are paired in order.
    """
    gaps: dict[int, list[_Place]] = {}
    for old in reversed(olds):
        gaps.setdefault(old.anchor, []).append(old)
    pairs: list[tuple[_Place, _Place]] = []
    left: list[_Place] = []
    for new in news:
        gap = gaps.get(new.anchor)
        if gap and new.may_be(gap[-1]):
            pairs.append((gap.pop(), new))
        else:
            left.append(new)
    rest = sorted((old for gap in gaps.values() for old in gap), key=lambda old: old.row)
    if not is_in_order and len(rest) == len(left):
        pairs += zip(rest, left, strict=True)
    return pairs


def _scope(queue: Putting, batch: str | None, source: str, absent: Set[str]) -> SheetJobs | None:
    """The jobs this source was put as before; None for rows in memory without a batch."""
    if batch is None:
        return None
    return queue._read(lambda store: store.sheet_jobs(batch, source, absent))


def _absent(queue: Looking, source: str) -> frozenset[str]:
    """The sources, but for this one, whose files are not there any more: they have no rows."""
    known = queue._read(lambda store: store.setting(SOURCES, {}))
    others = {name: place for name, place in known.items() if name != source}
    return frozenset(name for name, place in others.items() if not _is_there(queue, place))


def _is_there(queue: Looking, place: Place) -> bool:
    return os.path.lexists(queue.path.parent / place[0])


def _named(
    queue: Putting, table: Table, defaults: dict[str, Any], renamed: str | None = None
) -> dict[str, Any]:
    """Names the source so that another file of the same name is not taken for it.

    And the batch after it, unless the user has. Nothing is kept of that until it is put.
    """
    if table.path is not None:
        known = queue._read(lambda store: store.setting(SOURCES, {}))
        mine = _place(queue, table.path, table.sheet)
        table.source = renamed or _name_of(table, mine, known)
        return {**defaults, "batch": defaults["batch"] or table.source}
    return defaults


def _renamed_from(queue: Putting, table: Table, defaults: dict[str, Any]) -> str | None:
    """The file that this one was before it was renamed or moved; None where it was none.

    That is one the queue knows, that is not there any more, and that has half and more of the
    first rows of this one. The queue does not know this one itself.
    """
    if table.path is None:
        return None
    known = queue._read(lambda store: store.setting(SOURCES, {}))
    mine = _place(queue, table.path, table.sheet)
    if any(place[:2] == mine for place in known.values()):
        return None
    lost = {n for n, place in known.items() if place[1] == mine[1] and not _is_there(queue, place)}
    if not lost:
        return None
    items = islice(intake.specs(table, **defaults), ROWS_COMPARED)
    made = [queue._expand(item) for item in items if not isinstance(item, RowProblem)]
    jobs = {jobs[0].key or "": jobs[0] for jobs in made if isinstance(jobs, list)}
    met: Counter[str] = Counter()
    for found in queue._read(lambda store: store.by_keys(list(jobs))):
        is_same = found.payload_hash == jobs[found.key or ""].payload_hash
        if found.source is not None and found.row is not None and is_same:
            met[found.source] += found.source in lost
    (name, n), *_ = met.most_common(1) or [("", 0)]
    return name if n and 2 * n >= len(made) else None


def _name_of(table: Table, mine: Place, known: Mapping[str, Any]) -> str:
    """What this file and sheet are known by, or the first name that is free."""
    assert table.path is not None
    name = table.source
    names = chain(
        (name, f"{table.path.absolute().parent.name}/{name}"),
        (f"{name} ({n})" for n in numbers_from(2)),
    )
    old = next((name for name, place in known.items() if place[:2] == mine), None)
    return old or next(name for name in names if name not in known)


def _claim(
    queue: Putting,
    table: Table,
    planned: str | None = None,
    *,
    renamed: str | None = None,
    is_put: bool = True,
) -> str:
    """Names the source for good, with the columns it `is_put` with; returns its name.

    In one transaction: of two files of one name, put at once, only one gets it; a file that was
    `renamed` keeps its name. Raises SheetError if the name is not the `planned` one any more.
    """
    if table.path is None:
        return table.source
    mine = _place(queue, table.path, table.sheet)
    name = ""

    def claim(known: dict[str, Any] | None) -> dict[str, Any]:
        nonlocal name
        name = _name_of(table, mine, known or {})
        place = (known or {}).get(renamed or "")
        if place is not None and not _is_there(queue, place):
            assert renamed is not None
            name = renamed
        if planned not in (None, name):
            raise SheetError(
                f"{planned} is now the name of another file, which was put since this plan was"
                f" made, and nothing was put; look at a new one: q.plan({str(table.path)!r})",
                source=planned,
            )
        old = (known or {}).get(name, mine)
        return {**(known or {}), name: [*mine, *([table.asked] if is_put else old[2:])]}

    queue._write(lambda store: store.change_setting(SOURCES, claim))
    return name


def known_source(
    queue: Looking, path: Path, sheet: str | None
) -> tuple[str | None, list[str] | dict[str, str | None] | None]:
    """What the jobs of this file and sheet name as their source, and the columns they took.

    (None, None) if it was never put.
    """
    known = queue._read(lambda store: store.setting(SOURCES, {}))
    mine = _place(queue, path, sheet)
    found = ((name, place) for name, place in known.items() if place[:2] == mine)
    name, place = next(found, (None, mine))
    return name, place[2] if len(place) > 2 else None


def _place(queue: Looking, path: Path, sheet: str | None) -> Place:
    path = path.absolute()
    with suppress(ValueError):  # on another drive
        path = Path(os.path.relpath(path, queue.path.parent))
    return [path.as_posix(), sheet]


def _recolumned_text(plan: Plan, queue: Looking, changed: Recolumned) -> str:
    """What became of the columns, and the ways out of putting all of it again."""
    asked, before = plan._table.asked, None
    known = queue._read(lambda store: store.setting(SOURCES, {}))
    place = known.get(plan.source, ())
    if plan._table.path is not None and len(place) > 2:
        before = place[2]
        if before == asked:
            before = changed.columns(asked)
        elif before is None:
            before = "as the last time"
    else:
        before = changed.columns(asked)
    n = "most" if changed.alike >= ROWS_LOOKED_AT else f"{changed.alike:,}"
    are = "is" if changed.alike == 1 else "are"
    text = f"{n} of the rows to put {are} there already with other columns: {changed}. "
    if isinstance(before, str):
        text += f"Leave out columns= {before}, or put all that is to put"
    elif before is not None:
        text += f"Say columns={before!r} to have them as they are, or put all that is to put"
    else:
        text += "To put all that is to put"
    cost = f" ({plan._cost_text()})" if plan.estimate.high else ""
    source = "…" if plan._table.path is None else repr(str(plan._table.path))
    return f"{text}{cost}: q.plan({source}).put()"


def _estimate(
    plan: Plan, queue: Putting, comparison: _Comparison, seconds_each: float | None
) -> None:
    """What it costs and when it ends, by accounts, prices and the pace so far."""
    now_ms = queue._clock.now_ms()
    accounts = queue._read(lambda s: s.accounts())
    pace = queue._read(lambda s: s.pace())
    counts = queue.stats()
    plan.waiting = max(0, counts["queued"] + counts["running"] - plan.in_place)
    plan.estimate = estimate(
        comparison.lanes, accounts, pace, waiting=plan.waiting, seconds_each=seconds_each
    )
    if plan.estimate.seconds is not None:
        plan.ends = local_text(now_ms + round(plan.estimate.seconds * 1000), now_ms)
    if queue.budget is not None:
        money = queue._read(lambda s: s.money(now_ms))
        used = sum(spent + reserved for spent, reserved, _ in money.values()) / 1e6
        plan.money_left = max(0.0, queue.budget - used)


def _fingerprint(path: Path) -> str:
    """A hash of all that is read of a file, or of a folder of texts."""
    from .intake.text import texts_in

    whole = hashlib.sha256()
    try:
        for file in texts_in(path) if path.is_dir() else [path]:
            with file.open("rb") as opened:
                whole.update(hashlib.file_digest(opened, "sha256").digest())
            whole.update(os.fsencode(file.name) + b"\0")
    except OSError as error:
        raise SheetError(f"{path} cannot be read: {error.strerror or error}") from error
    return whole.hexdigest()


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise SheetError(f"{path} cannot be read: {error.strerror or error}") from error
    return found.st_ino, found.st_size, found.st_mtime_ns


def _digest(item: Item) -> int:
    """64 bits of a row, the same for the same row in one process."""
    if isinstance(item, RowProblem):
        return hash((item.row, item.reason))
    is_content = (item.key or "").startswith("content:")  # then the key is a hash of it already
    payload = None if is_content else codec.content_hash(item.payload)
    return hash(
        (
            *(item.key, payload, item.row, item.priority, item.samples),
            *(item.seed, item.provider, item.account, item.max_attempts, item.timeout_ms),
            *(item.not_before_ms, item.expires_ms),
        )
    )


def _unspooled(spool: Any) -> Iterator[Item]:
    spool.seek(0)
    with suppress(EOFError):
        while True:
            item: Item = pickle.load(spool)
            yield item


def _is_date(text: str) -> bool:
    return 10 <= len(text) <= 32 and text[4] == "-" == text[7] and text[:4].isdecimal()


def _note(rows: list[int], row: int | None) -> None:
    if row is not None and len(rows) < ROWS_SHOWN and row not in rows:
        rows.append(row)


def _rows(rows: list[int], n: int) -> str:
    word = "row" if n == 1 else "rows"
    return f"{word} {', '.join(map(str, rows))}" + (", …" if n > len(rows) else "")


def _is(n: int) -> str:
    return "is" if n == 1 else "are"
