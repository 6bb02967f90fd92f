"""What rows are to the jobs of their sheet that are there: the same, changed, new or gone."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .estimate import Lane
from .job import Job, RowProblem
from .recolumned import Recolumned, compared
from .sources import SOURCES, absent_sources
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

if TYPE_CHECKING:
    from .plan import Plan
    from .queue.putting import Putting

__all__ = ["ROWS_LOOKED_AT", "ROWS_SHOWN", "Comparison", "note", "scope_of"]

ROWS_SHOWN = 8  # as examples
ROWS_LOOKED_AT = 200  # for what became of their columns
ROWS_COMPARED = 1000  # of those that others have
UNMET, MET = 1, 2


class Comparison:
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
        self._absent = absent_sources(queue, plan.source)
        self._scope = scope_of(queue, plan.batch, plan.source, self._absent)
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
        if len(self._pairs) < ROWS_LOOKED_AT and self._has_come_to_something(found):
            self._pairs.append((job.payload, found.payload))

    def _changed(self, job: Job) -> None:
        self._plan.changed += 1
        note(self._plan.changed_rows, job.row)
        self._count((job.provider, job.pinned_account))

    def _see_new(self, job: Job) -> None:
        lane = (job.provider, job.pinned_account)
        if self._scope is None or not len(self._scope.rows):
            if self._plan._table.has_results and len(self._looked_at) < ROWS_LOOKED_AT:
                self._looked_at.setdefault(job.row or 0, job.payload)
            self._plan.new += 1
            note(self._plan.new_rows, job.row)
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
                note(plan.new_rows, row)
                continue
            number, state = scope.numbers[earlier[at]], scope.states[earlier[at]] & 3
            self._is_met[number] = MET
            plan._earlier[row, self._samples[at]] = number
            plan.changed += 1
            note(plan.changed_rows, row)
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
            scope = scope_of(self._queue, name, name, self._absent)
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
        spent = {job.number for job in known if self._has_come_to_something(job)}
        pairs = [
            (self._looked_at[row], payloads[number])
            for row, number in numbers.items()
            if number in spent
        ]
        before = {name for payload in payloads.values() for name in payload}
        before.update(name for _, old in self._pairs for name in old)
        return compared([*pairs, *self._pairs], before)

    def _has_come_to_something(self, job: Job) -> bool:
        """False for a job that failed or was cancelled and paid nothing: it may be put anew."""
        if job.status not in ("failed", "cancelled"):
            return True
        steps = self._queue._read(lambda s: s.steps(job.number))  # an account may have no price
        tries = self._queue._read(lambda s: s.attempts(job.number))
        return any(step.is_paid for step in steps) or any(one.cost_microusd for one in tries)


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


def scope_of(queue: Putting, batch: str | None, source: str, absent: Set[str]) -> SheetJobs | None:
    """The jobs this source was put as before; None for rows in memory without a batch."""
    if batch is None:
        return None
    return queue._read(lambda store: store.sheet_jobs(batch, source, absent))


def note(rows: list[int], row: int | None) -> None:
    """Keeps a few of the rows, as examples."""
    if row is not None and len(rows) < ROWS_SHOWN and row not in rows:
        rows.append(row)
