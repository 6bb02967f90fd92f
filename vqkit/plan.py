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
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from . import codec, html, intake
from .clock import local_text
from .comparison import ROWS_LOOKED_AT, ROWS_SHOWN, Comparison, scope_of
from .errors import SheetError
from .estimate import Estimate, estimate
from .intake.settings import SETTINGS
from .intake.table import Row, Table
from .job import Added, Job, JobSpec, RowProblem
from .notebook.counting import counted
from .recolumned import Recolumned
from .snapshot import duration_text
from .sources import SOURCES, absent_sources, claim, named, renamed_from
from .words import clean, count, shorten

if TYPE_CHECKING:
    from .queue.looking import Looking
    from .queue.putting import Putting

__all__ = ["Column", "Plan", "load", "make"]

CHUNK = 500
PROBLEMS_KEPT = 20  # of each kind
PROBLEMS_SHOWN = 10
SPOOL_BYTES = 8 << 20
DIGITS = 10**15
CELL_MAX = 32_767  # the most characters Excel keeps in a cell

Item: TypeAlias = "JobSpec | RowProblem"


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
        claim(queue, table, self.source, renamed=self._renamed)
        absent = absent_sources(queue, self.source)
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
    renamed = renamed_from(queue, table, defaults)
    defaults = named(queue, table, defaults, renamed)
    plan = Plan(queue, table, defaults)
    plan._renamed = renamed
    comparison = Comparison(plan, queue)
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
    if table.has_results:  # a column that is not read must be known to whoever pays for the rows
        plan._said = (*table.notes, *plan._said)
    return plan


def load(queue: Putting, table: Table, defaults: dict[str, Any]) -> Added:
    """A plan and its `put` in one; a source that is put for the first time is read once.

    Raises SheetError, and puts nothing, where most of what was begun or done would be put again
    only because the columns are others.
    """
    if table.path is not None:
        if renamed_from(queue, table, defaults) is not None:
            return make(queue, table, defaults).put()
        table.source = claim(queue, table, is_put=False)
    defaults = named(queue, table, defaults)
    absent = absent_sources(queue, table.source)
    scope = scope_of(queue, defaults["batch"], table.source, absent)
    if (scope is not None and len(scope.rows)) or table.has_results:
        plan = make(queue, table, defaults)
        if plan.recolumned is not None:
            raise SheetError(
                f"nothing was put, for it would be paid again. {plan._said[-1]}", source=plan.source
            )
        return plan.put()
    claim(queue, table, table.source)
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
    columns = "" if asked is None else f", columns={asked!r}"
    return f"{text}{cost}: q.plan({source}{columns}).put()"


def _estimate(
    plan: Plan, queue: Putting, comparison: Comparison, seconds_each: float | None
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


def _rows(rows: list[int], n: int) -> str:
    word = "row" if n == 1 else "rows"
    return f"{word} {', '.join(map(str, rows))}" + (", …" if n > len(rows) else "")


def _is(n: int) -> str:
    return "is" if n == 1 else "are"
