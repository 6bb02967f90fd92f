"""The verbs that put jobs: one by one, and as the rows of a sheet that is read again and again.

`RowVerbs` is the part of a store's verbs that `store.base.Store` builds on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

from .. import codec, lifecycle
from ..job import Added, Event, Job, RowProblem
from .paid import PaidVerbs
from .primitives import JobFilter

__all__ = [
    "ROW_GONE",
    "Holder",
    "RowVerbs",
    "Verdict",
    "Versions",
    "called",
    "differs",
    "holder_of",
    "holders",
    "is_cancelled_for_its_row",
    "is_untouched",
    "judged",
    "taken",
    "versioned",
]

PUT_CHUNK = 1000
ROW_GONE = "its row is gone, or was edited"  # why `cancel_left` cancels

# A source and a batch, '' where there is none: a sheet, or a hand.
Holder: TypeAlias = tuple[str, str]
What: TypeAlias = Literal["new", "same", "change", "beside", "refuse"]
# {key: the jobs that were put beside the job of that key, with other payloads}
Versions: TypeAlias = Mapping[str, Sequence[Job]]


class Verdict(NamedTuple):
    """What comes of a row, told by its key: `job` as it is to be put, its key made its own.

    "new": no job has its key. "same": `found` holds what it says. "change": `found` takes it,
    for nothing was done for it yet and nobody else has it. "beside": `found`, which this sheet
    has so far, keeps what it holds, and a new job is put. "refuse": the key is `found`'s, which
    is none of this sheet's.
    """

    what: What
    job: Job
    found: Job | None = None


class RowVerbs(PaidVerbs):
    """What a store does about rows; a key that is there is never put twice.

    A job belongs to every sheet that has its row now: `jobs` names one of them, `shared_rows`
    the others, and who put it by hand too. The sheets named `absent` are files that are not
    there any more, and have no rows.
    """

    def put(self, jobs: Sequence[Job]) -> Added:
        """Puts queued jobs; one whose key is there already is not put again.

        `number` is given by the database. A queued job that never started takes a changed
        payload, unless a sheet has its row: that is a problem. One that has started keeps its
        own and is counted under `conflicts`; one that was cancelled because its row was gone is
        queued again. Putting a job whose id is there is harmless, so an unknown commit may be
        repeated.
        """
        starts = range(0, len(jobs), PUT_CHUNK)
        return Added.of([self._put_chunk(jobs[at : at + PUT_CHUNK]) for at in starts])

    def put_rows(
        self,
        jobs: Sequence[Job],
        earlier: Mapping[tuple[int, int], int],
        absent: Set[str] = frozenset(),
    ) -> Added:
        """Puts the jobs of a sheet's rows, some of which may have been put before.

        `earlier` is {(row, sample): number} of the jobs that changed rows had. One that was
        never begun takes what its row says now; beside one that has begun, or that others have
        too, a new job is put, and the earlier job keeps its payload and loses its row here. The
        same holds for a job of this sheet that has the same key. A job that is there as it is
        learns its new row; a key that a job of another source has is a problem where it holds
        something else, and else both have that job. One that was cancelled because its row was
        gone is queued again.
        """
        starts = range(0, len(jobs), PUT_CHUNK)
        return Added.of(
            [self._put_chunk(jobs[at : at + PUT_CHUNK], earlier, absent) for at in starts]
        )

    def leave_rows(self, numbers: Sequence[int], batch: str, source: str) -> None:
        """Notes that the rows of these jobs are no longer in this sheet. The jobs stay."""
        for start in range(0, len(numbers), PUT_CHUNK):
            with self.transaction():
                found = self._jobs_by_number(set(numbers[start : start + PUT_CHUNK]))
                now_ms = self.clock.now_ms()
                gone = self._let_go(found.values(), (source, batch), now_ms)
                self._record(
                    [Event("job.row_gone", j.number, now_ms, data_json=_origin(j)) for j in gone]
                )

    def names_of_holders(self, numbers: Sequence[int], but: Holder, absent: Set[str]) -> set[str]:
        """Who has some of these jobs, but one, as a person calls them; '' for a hand."""
        found: set[str] = set()
        for start in range(0, len(numbers), PUT_CHUNK):
            jobs = self._jobs_by_number(set(numbers[start : start + PUT_CHUNK]))
            shares = self.shares(jobs.keys())
            for number, job in jobs.items():
                has = holders(job, shares.get(number, {}), absent)
                found.update(called(holder, but) for holder in has - {but})
        return found

    def _let_go(self, jobs: Iterable[Job], holder: Holder, now_ms: int) -> list[Job]:
        """A sheet has these jobs no longer; they belong to those that remain.

        Returns those of its own that no other sheet has: they lose their row.
        """
        jobs = list(jobs)
        self._unshare([job.number for job in jobs], *holder)
        mine = [job for job in jobs if job.row is not None and holder_of(job) == holder]
        shares = self.shares({job.number for job in mine})
        lost, heirs = [], []
        for job in mine:
            rows = shares.get(job.number, {})
            heir = min((other for other, row in rows.items() if row is not None), default=None)
            if heir is None:
                lost.append(job)
            else:
                heirs.append(_owned_by(job, heir, rows[heir]))
        self._write_rows([(job.number, None) for job in lost])
        self._hand_over(heirs)
        self._record(
            [
                Event("job.handed_over", job.number, now_ms, data_json=_handed(job, holder))
                for job in heirs
            ]
        )
        return lost

    def _hand_over(self, jobs: Sequence[Job]) -> None:
        """Writes whom these jobs belong to now; they are no longer noted as shared by it."""
        if not jobs:
            return
        was = self._jobs_by_number({job.number for job in jobs})
        self._write_owners([(j.number, j.source, j.batch, j.row) for j in jobs])
        self._move_counts([(was[job.number], job) for job in jobs])
        for holder in {holder_of(job) for job in jobs}:
            self._unshare([job.number for job in jobs if holder_of(job) == holder], *holder)

    def _move_counts(self, pairs: Iterable[tuple[Job, Job]]) -> None:
        delta: Counter[tuple[str, str, str]] = Counter()
        for before, after in pairs:
            if before.batch != after.batch:
                delta["batch", before.batch or "", before.status] -= 1
                delta["batch", after.batch or "", before.status] += 1
        if delta:
            self._count(delta)

    def _put_chunk(
        self,
        jobs: Sequence[Job],
        earlier: Mapping[tuple[int, int], int] | None = None,
        absent: Set[str] = frozenset(),
    ) -> Added:
        with self.transaction():
            now_ms = self.clock.now_ms()
            known = {
                job.key or "": job for job in self._jobs_by_key([j.key for j in jobs if j.key])
            }
            known_ids = {job.id for job in self.jobs(JobFilter(ids=tuple(j.id for j in jobs)))}
            versions, by_number = {}, {}
            if earlier is not None:
                differing = [j.key or "" for j in jobs if _is_other(known.get(j.key or ""), j)]
                versions = self.versions(differing) if differing else {}
                numbers = {earlier.get((job.row or 0, job.sample)) for job in jobs}
                by_number = self._jobs_by_number({n for n in numbers if n})
            others = {job.number for found in versions.values() for job in found}
            shares = self.shares({*by_number, *others, *(job.number for job in known.values())})
            fresh, changed, ids, moved, left, held = [], [], [], [], [], []
            owned, again, problems = [], [], []
            existing = conflicts = beside = beside_shared = 0
            for job in jobs:
                found = known.get(job.key or "") if job.key else None
                if found is None and job.id in known_ids:
                    ids.append(job.id)
                    existing += 1
                    continue
                me = holder_of(job)
                what: What = "new"
                if found is not None and not found.number:  # put a moment ago, in this chunk
                    what = "same"
                elif found is not None and earlier is not None:
                    what, job, found = judged(job, found, versions, shares, absent)
                elif found is not None:
                    what = _judged_by_hand(job, found, shares)
                ids.append(found.id if found is not None and what != "beside" else job.id)
                if what in ("new", "beside"):
                    old = found or by_number.get((earlier or {}).get((job.row or 0, job.sample), 0))
                    if old is not None and what == "new" and _is_free(old, me, shares, absent):
                        ids[-1] = old.id
                        new = _with_row_of(old, job, now_ms)
                        changed.append((old, new))
                        known[new.key or ""] = new
                        continue
                    fresh.append(job)
                    known_ids.add(job.id)
                    if job.key:
                        known[job.key] = job
                    if old is not None:
                        beside += 1
                        beside_shared += is_untouched(old)
                        left.append((old, job))
                elif found is None or not found.number:
                    existing += 1
                elif what == "change":
                    by = _with_payload_of if earlier is None else _with_row_of
                    new = by(found, job, now_ms)
                    changed.append((found, new))
                    known[new.key or ""] = new  # the next row with this key meets this one
                elif what == "refuse":
                    if earlier is None and not _is_of_a_sheet(found, me, shares):
                        conflicts += 1
                    else:
                        problems.append(taken(job, found))
                elif is_cancelled_for_its_row(found):
                    again.append(found)
                    owned.append(_owned_by(found, me, job.row))
                else:
                    has = holders(found, shares.get(found.number, {}), absent)
                    is_mine = earlier is not None and has <= {me}
                    if is_mine and is_untouched(found) and differs(found, job, now_ms):
                        new = _with_row_of(found, job, now_ms)
                        changed.append((found, new))
                        known[new.key or ""] = new
                        continue
                    existing += 1
                    if holder_of(found) == me:
                        has_moved = earlier is not None or found.row is None
                        if job.row is not None and found.row != job.row and has_moved:
                            moved.append((found.number, job.row))
                    elif holders(found, shares.get(found.number, {}), frozenset()):
                        held.append((found.number, *me, job.row))
                    else:
                        owned.append(_owned_by(found, me, job.row))
            inserted = self._insert_jobs(fresh, now_ms)
            numbers_of = {job.id: job.number for job in inserted}
            events = [
                Event("job.queued", job.number, now_ms, data_json=_origin(job)) for job in inserted
            ]
            events += [Event("job.changed", new.number, now_ms) for _, new in changed]
            events += [
                Event(
                    "job.superseded",
                    old.number,
                    now_ms,
                    data_json=codec.dumps({"by": numbers_of[job.id], "row": job.row}),
                )
                for old, job in left
            ]
            self._write_payloads([new for _, new in changed])
            self._move_counts(changed)
            for old, new in changed:
                if holder_of(old) != holder_of(new):
                    self._unshare([old.number], *holder_of(new))
            self._write_rows(moved)
            self._share(held)
            self._hand_over(owned)
            for holder in {holder_of(job) for _, job in left}:
                self._let_go([old for old, j in left if holder_of(j) == holder], holder, now_ms)
            self._record(events)
            self._count(Counter(("batch", job.batch or "", "queued") for job in inserted))
            if again:
                back = [*self._jobs_by_number({job.number for job in again}).values()]
                ends = [lifecycle.apply(job, "requeue", now_ms) for job in back]
                self._write([(job, after) for job, (after, _) in zip(back, ends, strict=True)])
                self._record([event for _, event in ends])
        return Added(
            len(fresh),
            existing,
            len(changed),
            conflicts,
            problems=tuple(problems),
            skipped=len(problems),
            ids=tuple(ids),
            beside=beside,
            again=len(again),
            beside_shared=beside_shared,
        )


def holder_of(job: Job) -> Holder:
    """The sheet or the hand that a job belongs to first."""
    return job.source or "", job.batch or ""


def called(holder: Holder, me: Holder) -> str:
    """What a person calls a sheet: its source, or its batch where the source is `me` too."""
    source, batch = holder
    return f"the batch {batch}" if source and source == me[0] else source


def holders(job: Job, shares: Mapping[Holder, int | None], absent: Set[str]) -> set[Holder]:
    """Whose job this is now. Empty: no sheet has its row any more, and no hand put it.

    `shares` are those noted beside its first one, {holder: row}.
    """
    found = {holder for holder in shares if holder[0] not in absent}
    if job.source is None or (job.row is not None and job.source not in absent):
        found.add(holder_of(job))
    return found


def is_untouched(job: Job) -> bool:
    """Whether nothing was ever done for a job, so that it may still be changed."""
    return job.status == "queued" and job.fence == 0


def is_cancelled_for_its_row(job: Job) -> bool:
    """Whether a job was cancelled because no sheet had its row, so that the row brings it back."""
    return job.status == "cancelled" and job.reason == ROW_GONE


def judged(
    job: Job,
    found: Job,
    versions: Versions,
    shares: Mapping[int, Mapping[Holder, int | None]],
    absent: Set[str],
) -> Verdict:
    """What comes of a sheet's row; `found` is the job that has its key."""
    if not _is_other(found, job):
        return Verdict("same", job, found)
    own = job._replace(key=versioned(job))
    beside = versions.get(job.key or "", ())
    for version in beside:
        if version.key == own.key:
            return Verdict("same", own, version)
    me = holder_of(job)
    for old in (found, *beside):
        if me in holders(old, shares.get(old.number, {}), absent):
            if _is_free(old, me, shares, absent):
                return Verdict("change", job if old is found else own, old)
            return Verdict("beside", own, old)
    if holders(found, shares.get(found.number, {}), absent):
        return Verdict("refuse", job, found)
    return Verdict("new", own)


def _judged_by_hand(
    job: Job, found: Job, shares: Mapping[int, Mapping[Holder, int | None]]
) -> What:
    if not _is_other(found, job):
        return "same"
    is_theirs = _is_of_a_sheet(found, holder_of(job), shares)
    return "change" if is_untouched(found) and not is_theirs else "refuse"


def _is_of_a_sheet(job: Job, me: Holder, shares: Mapping[int, Mapping[Holder, int | None]]) -> bool:
    """Whether a source that is read again and again, which is not `me`, has this job."""
    has = holders(job, shares.get(job.number, {}), frozenset())
    return any(all(holder) for holder in has - {me})


def _is_free(
    job: Job, me: Holder, shares: Mapping[int, Mapping[Holder, int | None]], absent: Set[str]
) -> bool:
    """Whether this sheet may change the job: nothing was done for it, and no other has it."""
    return is_untouched(job) and holders(job, shares.get(job.number, {}), absent) <= {me}


def _is_other(found: Job | None, job: Job) -> bool:
    return found is not None and found.payload_hash != job.payload_hash


def taken(job: Job, found: Job) -> RowProblem:
    """Why a row is refused whose key another job has."""
    reason = (
        f"its key {job.key!r} is that of job {found.number} ({found.source or 'put by hand'}),"
        " which holds something else; give it another"
    )
    return RowProblem(job.row or 0, reason, job.source, "duplicate key")


def versioned(job: Job) -> str:
    """The key of a job beside an earlier one of the same key: the same for the same payload."""
    return f"{job.key}@{job.payload_hash[:12]}"


def differs(found: Job, job: Job, now_ms: int) -> bool:
    """Whether a row says something else than the job that was put for it.

    A time that has come is erased from a job, and is no difference.
    """
    names = ("payload_hash", "priority", "timeout_ms", "max_attempts", "expires_ms")
    if any(getattr(found, name) != getattr(job, name) for name in names):
        return True
    due_ms = job.not_before_ms if (job.not_before_ms or 0) > now_ms else None
    return found.not_before_ms != due_ms


def _with_payload_of(found: Job, job: Job, now_ms: int) -> Job:
    return found._replace(
        payload_json=job.payload_json,
        payload_hash=job.payload_hash,
        seed=job.seed,
        source=job.source,
        row=job.row,
        updated_ms=now_ms,
    )


def _with_row_of(found: Job, job: Job, now_ms: int) -> Job:
    return _with_payload_of(found, job, now_ms)._replace(
        key=job.key,
        batch=job.batch,
        provider=job.provider,
        pinned_account=job.pinned_account,
        priority=job.priority,
        timeout_ms=job.timeout_ms,
        max_attempts=job.max_attempts,
        not_before_ms=job.not_before_ms,
        expires_ms=job.expires_ms,
    )


def _owned_by(job: Job, holder: Holder, row: int | None) -> Job:
    source, batch = holder
    return job._replace(source=source or None, batch=batch or None, row=row)


def _handed(job: Job, was: Holder) -> str:
    return codec.dumps({"source": job.source, "row": job.row, "was": was[0]})


def _origin(job: Job) -> str:
    if job.row is None:
        return _origin_json(job.source, job.batch)
    # One text a sheet, not one a row.
    rest = _origin_json(job.source, job.batch)[1:]
    return f'{{"row":{job.row}{"," if len(rest) > 1 else ""}{rest}'


@lru_cache(64)
def _origin_json(source: str | None, batch: str | None) -> str:
    origin = {"source": source, "batch": batch}
    return codec.encode({name: value for name, value in origin.items() if value is not None})
