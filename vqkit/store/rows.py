"""The verbs that put jobs: one by one, and as the rows of a sheet that is read again and again.

`RowVerbs` is the part of a store's verbs that `store.base.Store` builds on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from functools import lru_cache

from .. import codec
from ..job import Added, Event, Job
from .paid import PaidVerbs
from .primitives import JobFilter

__all__ = [
    "RowVerbs",
    "differs",
    "is_begun_otherwise",
    "is_stranger",
    "is_untouched",
    "versioned",
]

PUT_CHUNK = 1000


class RowVerbs(PaidVerbs):
    """What a store does about rows; a key that is there is never put twice."""

    def put(self, jobs: Sequence[Job]) -> Added:
        """Puts queued jobs; one whose key is there already is not put again.

        `number` is given by the database. A queued job that never started takes a changed
        payload; one that has started keeps its own and is counted under `conflicts`.
        Putting a job whose id is there is harmless, so an unknown commit may be repeated.
        """
        starts = range(0, len(jobs), PUT_CHUNK)
        return Added.of([self._put_chunk(jobs[at : at + PUT_CHUNK]) for at in starts])

    def put_rows(self, jobs: Sequence[Job], earlier: Mapping[tuple[int, int], int]) -> Added:
        """Puts the jobs of a sheet's rows, some of which may have been put before.

        `earlier` is {(row, sample): number} of the jobs that changed rows had. One that was
        never begun takes what its row says now; beside one that has begun a new job is put,
        and the earlier job keeps its payload and loses its row. The same holds for a job of
        this sheet that has the same key. A job that is there as it is learns its new row;
        a key that a job of another source has is a conflict where it holds something else,
        and otherwise noted, so that the job is neither changed nor cancelled while both have it.
        """
        starts = range(0, len(jobs), PUT_CHUNK)
        return Added.of([self._put_chunk(jobs[at : at + PUT_CHUNK], earlier) for at in starts])

    def leave_rows(self, numbers: Sequence[int], batch: str, source: str) -> None:
        """Notes that the rows of these jobs are no longer in this sheet. The jobs stay."""
        for start in range(0, len(numbers), PUT_CHUNK):
            with self.transaction():
                found = self._jobs_by_number(set(numbers[start : start + PUT_CHUNK]))
                self._unshare(list(found), source, batch)
                here = [
                    job
                    for job in found.values()
                    if job.row is not None and (job.source, job.batch) == (source, batch)
                ]
                self._write_rows([(job.number, None) for job in here])
                now_ms = self.clock.now_ms()
                self._record(
                    [Event("job.row_gone", j.number, now_ms, data_json=_origin(j)) for j in here]
                )

    def _put_chunk(
        self, jobs: Sequence[Job], earlier: Mapping[tuple[int, int], int] | None = None
    ) -> Added:
        with self.transaction():
            now_ms = self.clock.now_ms()
            known = {job.key: job for job in self._jobs_by_key([j.key for j in jobs if j.key])}
            known_ids = {job.id for job in self.jobs(JobFilter(ids=tuple(j.id for j in jobs)))}
            olds: dict[str, Job] = {}
            shared: set[int] = set()
            if earlier is not None:
                jobs, olds, shared = self._beside(jobs, known, earlier)
            fresh, changed, ids, moved, left, held = [], [], [], [], [], []
            existing = conflicts = beside = 0
            for job in jobs:
                found = known.get(job.key) if job.key else None
                old = olds.get(job.id) if found is None and job.id not in known_ids else None
                if old is not None and old.number not in shared and is_untouched(old):
                    new = _with_row_of(old, job, now_ms)
                    changed.append((old, new))
                    ids.append(old.id)
                    known[new.key or ""] = new
                    continue
                if found is None and job.id not in known_ids:
                    fresh.append(job)
                    ids.append(job.id)
                    known_ids.add(job.id)
                    if job.key:
                        known[job.key] = job
                    if old is not None:
                        beside += 1
                        left.append((old, job))
                    continue
                ids.append(found.id if found else job.id)
                if found is not None and found.number and _is_wanted_too(found, job):
                    held.append((found.number, job.source or "", job.batch or "", job.row))
                if found is None or not found.number:
                    existing += 1
                elif earlier is not None:
                    if is_stranger(found, job):
                        conflicts += found.payload_hash != job.payload_hash
                        existing += found.payload_hash == job.payload_hash
                    elif is_untouched(found) and differs(found, job, now_ms):
                        new = _with_row_of(found, job, now_ms)
                        changed.append((found, new))
                        known[new.key or ""] = new
                    else:
                        existing += 1
                        if found.row != job.row and job.row is not None:
                            moved.append((found.number, job.row))
                elif found.payload_hash == job.payload_hash:
                    existing += 1
                elif is_untouched(found):
                    new = _with_payload_of(found, job, now_ms)
                    changed.append((found, new))
                    known[new.key or ""] = new  # the next row with this key meets this one
                else:
                    conflicts += 1
            inserted = self._insert_jobs(fresh, now_ms)
            numbers = {job.id: job.number for job in inserted}
            events = [
                Event("job.queued", job.number, now_ms, data_json=_origin(job)) for job in inserted
            ]
            events += [Event("job.changed", new.number, now_ms) for _, new in changed]
            events += [
                Event(
                    "job.superseded",
                    old.number,
                    now_ms,
                    data_json=codec.dumps({"by": numbers[job.id], "row": old.row}),
                )
                for old, job in left
            ]
            self._write_payloads([new for _, new in changed])
            mine = [old.number for old, job in left if not is_stranger(old, job)]
            self._write_rows([*moved, *((number, None) for number in mine)])
            for old, job in left:
                if is_stranger(old, job):
                    self._unshare([old.number], job.source or "", job.batch or "")
            self._share(held)
            self._record(events)
            self._count(Counter(("batch", job.batch or "", "queued") for job in inserted))
        return Added(len(fresh), existing, len(changed), conflicts, ids=tuple(ids), beside=beside)

    def _beside(
        self,
        jobs: Sequence[Job],
        known: dict[str | None, Job],
        earlier: Mapping[tuple[int, int], int],
    ) -> tuple[list[Job], dict[str, Job], set[int]]:
        """The jobs, with a key of their own where the job of that key has begun otherwise.

        And, by their ids, the jobs that stand for the same rows so far, and which of all these
        others want too. `known` learns the jobs that have those keys.
        """
        mine = {job.id: earlier.get((job.row or 0, job.sample)) for job in jobs}
        by_number = self._jobs_by_number({number for number in mine.values() if number})
        olds = {id_: by_number[n] for id_, n in mine.items() if n in by_number}
        shared = self.shared({*by_number, *(job.number for job in known.values())})
        shared.update(o.number for j in jobs if (o := olds.get(j.id)) and is_stranger(o, j))
        renamed = []
        for job in jobs:
            found = known.get(job.key)
            if found is not None and is_begun_otherwise(found, job, shared):
                job = job._replace(key=versioned(job))
                olds[job.id] = found
            renamed.append(job)
        news = [job.key for job in renamed if job.key and job.key not in known]
        if olds:
            known.update((job.key, job) for job in self._jobs_by_key(news))
        return renamed, olds, shared


def is_untouched(job: Job) -> bool:
    """Whether nothing was ever done for a job, so that it may still be changed."""
    return job.status == "queued" and job.fence == 0


def is_stranger(found: Job, job: Job) -> bool:
    """Whether the job that has this key came from another source or batch."""
    return (found.source, found.batch) != (job.source, job.batch)


def is_begun_otherwise(found: Job, job: Job, shared: Set[int]) -> bool:
    """Whether a job of the same sheet and key was begun with another payload.

    One that is `shared`, wanted by others too, may as little be changed as one that was begun.
    """
    return (
        found.payload_hash != job.payload_hash
        and (found.number in shared or not is_untouched(found))
        and not is_stranger(found, job)
    )


def _is_wanted_too(found: Job, job: Job) -> bool:
    return is_stranger(found, job) and found.payload_hash == job.payload_hash


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
        provider=job.provider,
        pinned_account=job.pinned_account,
        priority=job.priority,
        timeout_ms=job.timeout_ms,
        max_attempts=job.max_attempts,
        not_before_ms=job.not_before_ms,
        expires_ms=job.expires_ms,
    )


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
