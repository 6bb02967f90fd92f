"""How a queue stands, and its results out: jobs, events, tries, files, money, frames."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

from .. import codec, secrets
from ..job import STATUSES, Attempt, Event, Job, Output, Step
from ..liveness import is_alive
from ..notebook.gallery import ShownJob
from ..snapshot import Snapshot, take
from ..steps import handle_of
from ..store.base import JobFilter
from ..store.files import beside
from .asked import Which, pandas, statuses, utc
from .held import Held

if TYPE_CHECKING:
    import pandas as pd

    from ..export import Saved
    from ..notebook.clips import Clip
    from ..notebook.gallery import Details

__all__ = ["Looking"]

PAGE = 500


class Looking(Held):
    """The part of a queue that is asked how it stands."""

    def snapshot(self) -> Snapshot:
        """How the queue stands now: counts, accounts, rates, who works on it."""
        folder = beside(self.path) / "runners"
        now_ms = self._clock.now_ms()
        seen = self._read(lambda s: take(s, now_ms, lambda runner: is_alive(folder, runner)))
        run = self._shared.run
        trouble = run.health.trouble if run is not None else None
        if trouble is None or any(trouble in note for note in seen.notes):
            return seen
        return replace(seen, notes=(*seen.notes, trouble))  # what cannot be written down yet

    def stats(self) -> dict[str, int]:
        """Jobs by status, and their total."""
        counts = self._read(lambda s: s.counts())
        by_status: dict[str, int] = {status: counts.get(status, 0) for status in STATUSES}
        return {**by_status, "total": sum(by_status.values())}

    def job(self, which: Which) -> Job:
        """One job, by number, id, or an older view of it. Raises UnknownName."""
        wanted = which.number if isinstance(which, Job) else which
        if isinstance(wanted, SupportsIndex):  # a frame's index holds whole numbers of numpy's own
            wanted = operator.index(wanted)
        return ShownJob.of(self._read(lambda s: s.job(wanted)), self._tell)

    def jobs(
        self,
        *,
        status: str | Iterable[str] | None = None,
        batch: str | None = None,
        account: str | None = None,
        newest: int | None = None,
    ) -> list[Job]:
        """The jobs that match, in the order they were put; with `newest` only so many last ones."""
        chosen = JobFilter(
            status=statuses(status),
            batch=batch,
            account=account,
            limit=newest,
            newest=newest is not None,
        )
        found = self._read(lambda s: s.jobs(chosen))
        shown = [ShownJob.of(job, self._tell) for job in found]
        return shown if newest is None else shown[::-1]

    def iter_jobs(self) -> Iterator[Job]:
        """All jobs, read a page at a time, so that a million need no memory."""
        chosen = JobFilter(limit=PAGE)
        while page := self._page(chosen):
            yield from page
            chosen = replace(chosen, after=page[-1].number)

    def _page(self, chosen: JobFilter) -> list[Job]:
        return self._read(lambda s: s.jobs(chosen))

    def events(
        self, after: int = 0, job: Which | None = None, *, limit: int = 10_000
    ) -> list[Event]:
        """What happened, oldest first: events with an id above `after`, of one job or all."""
        number = None if job is None else self.job(job).number
        return self._read(lambda s: s.events(after, number, limit))

    def attempts(self, job: Which | None = None) -> list[Attempt]:
        """Every try: on which account, from when to when, with what outcome."""
        number = None if job is None else self.job(job).number
        return self._read(lambda s: s.attempts(number))

    def outputs(self, job: Which | None = None) -> list[Path]:
        """The finished files, of one job or all, in the order of the jobs."""
        return [self._files.resolve(output.path) for output in self._current_outputs(job)]

    def _current_outputs(self, job: Which | None = None) -> list[Output]:
        """Of each job the files of its newest finished attempt."""
        number = None if job is None else self.job(job).number
        found: list[Output] = self._read(lambda s: s.outputs(number))
        newest = {output.job: output.fence for output in found}
        return [output for output in found if output.fence == newest[output.job]]

    def to_frame(self) -> pd.DataFrame:
        """All jobs as a pandas DataFrame, its index their numbers: `records`, as columns.

        Whole numbers stay whole, also in a column with holes.
        """
        pandas("to_frame()")
        from ..export.frame import frame_of

        return frame_of(list(self.records()))

    def records(self) -> Iterator[dict[str, Any]]:
        """All jobs as flat dicts, in the order of their source's rows.

        The payload's columns come first, then how the job stands; `cost` is in dollars. A
        payload column that has the name of one of vqkit's own, or begins with ``payload.``,
        has ``payload.`` put before it. Jobs put later for a row of the same sheet stand with
        it, those whose row is not there any more at the sheet's end.
        """
        self._learn_keys()
        for job, files, cost in self._standings():
            error = job.error or {}
            stands = {
                "status": job.status,
                "stage": job.stage,
                "attempts": job.attempt,
                "account": job.account,
                "output": "\n".join(map(str, files)) or None,
                "cost": cost,
                "created": utc(job.created_ms),
                "started": utc(job.started_ms),
                "finished": utc(job.finished_ms),
                "error": error.get("message"),
                "error_line": error.get("line"),
                "result": job.result,
                "seed": job.seed,
                "source": job.source,
                "row": job.row,
                "batch": job.batch,
                "key": job.key,
            }
            taken = {"job", *stands}
            payload = {
                (f"payload.{name}" if name in taken or name.startswith("payload.") else name): value
                for name, value in job.payload.items()
            }
            yield {"job": job.number, **secrets.redacted_own({**payload, **stands})}

    def _standings(self) -> Iterator[tuple[Job, list[Path], float | None]]:
        """All jobs in the order of their source's rows, their finished files, and their cost."""
        files: dict[int, list[Path]] = {}
        for output in self._current_outputs():
            files.setdefault(output.job, []).append(self._files.resolve(output.path))
        costs = self._read(lambda s: s.job_costs())
        numbers = self._read(lambda s: s.numbers_by_source())
        for start in range(0, len(numbers), PAGE):
            chosen = JobFilter(numbers=tuple(numbers[start : start + PAGE]))
            page = {job.number: job for job in self._page(chosen)}
            for number in chosen.numbers or ():
                if number in page:  # it may have been pruned since
                    cost = costs.get(number)
                    yield page[number], files.get(number, []), None if cost is None else cost / 1e6

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Saved:
        """Saves all jobs as .xlsx, .csv, .jsonl or .parquet, a row each: `records` as a file.

        A file that is there is replaced if this queue saved it and nobody changed it since;
        any other only with `overwrite`. Returns where it is, and which cells the file holds
        in another form: texts too long for a cell, numbers too long for a workbook.
        """
        from .. import export

        return export.save(self, path, overwrite=overwrite)

    def save_into(
        self,
        source: str | os.PathLike[str],
        path: str | os.PathLike[str],
        *,
        sheet: str | None = None,
        columns: list[str] | dict[str, str | None] | None = None,
        overwrite: bool = False,
    ) -> Saved:
        """Saves a copy of the workbook `source` with status, file, cost and error of each row.

        They are added to the right; everything else in the workbook stays as it is. `sheet` as
        it was given to `load`; `columns` are those of the last load, unless you say others. A
        row that was edited since its job was put gets nothing, and is told; if no row has a job,
        UsageError is raised and nothing saved. Several jobs of a row (`samples`) share its cells
        and have a column each for their files. Replaces files as `save` does.
        """
        from ..export.beside import save_into

        return save_into(self, source, path, sheet=sheet, columns=columns, overwrite=overwrite)

    @property
    def _thumbs(self) -> Path:
        return self.outputs_folder / ".thumbs"

    def _clips(self, numbers: Sequence[int]) -> list[Clip]:
        """Jobs with their current files, in this order."""
        from ..notebook.clips import Clip

        jobs = {j.number: j for j in self._read(lambda s: s.jobs(JobFilter(numbers=(*numbers,))))}
        files = {n: self._current_outputs(n) for n in numbers if n in jobs}
        return [
            Clip(jobs[n], tuple((self._files.resolve(o.path), o) for o in files[n]))
            for n in numbers
            if n in jobs
        ]

    def _tell(self, number: int) -> Details | None:
        """What a notebook shows of a job; None once the queue is closed or the job pruned."""
        from ..notebook.gallery import Details

        if self._is_closed or not (clips := self._clips([number])):
            return None
        attempts = self._read(lambda s: s.attempts(number))
        events = self._read(lambda s: s.events(0, number, limit=10_000))
        return Details(clips[0], attempts, events, self._thumbs)

    def costs(self) -> pd.DataFrame:
        """Every attempt and its money, as a pandas DataFrame; amounts in dollars.

        `money` is "estimated" while it is set aside, then "billed", "not billed" or
        "unknown" (counted as spent); "handed on" where the next try went on with the same
        render. `key` and `handle` are the provider's names of it.
        """
        frame: pd.DataFrame = pandas("costs()").DataFrame(list(self.cost_records()))
        return frame.set_index("job") if len(frame) else frame

    def cost_records(self) -> Iterator[dict[str, Any]]:
        """The rows of `costs`, as dicts."""
        steps, attempts, aside = self._read(lambda s: (s.steps(), s.attempts(), s.set_aside()))
        paid: dict[int, list[Step]] = {}
        for step in steps:
            if step.is_paid:
                paid.setdefault(step.job, []).append(step)
        last = {(a.job, a.generation): a.fence for a in attempts}
        for attempt in attempts:
            # Of its own render, and of those that `job.fresh()` found useless in this try.
            sent = [
                step
                for step in paid.get(attempt.job, ())
                if attempt.generation == step.generation or attempt.fence == step.fence
            ]
            handles = [handle_of(step.name, step.value) for step in sent]
            render, money = (attempt.job, attempt.generation), attempt.money
            if money is None and attempt.reserved_microusd:
                if last[render] != attempt.fence:
                    money = "handed on"
                elif render in aside:  # else another attempt has settled it
                    money = "estimated"
            cost = attempt.cost_microusd
            yield {
                "job": attempt.job,
                "attempt": attempt.attempt,
                "fence": attempt.fence,
                "account": attempt.account,
                "outcome": attempt.outcome,
                "money": money,
                "estimate": attempt.reserved_microusd / 1e6 or None,
                "cost": None if cost is None else cost / 1e6,
                "generation": attempt.generation,
                "key": "\n".join(step.key for step in sent) or None,
                "handle": "\n".join(codec.dumps(h) for h in handles if h is not None) or None,
                "began": utc(attempt.started_ms),
                "ended": utc(attempt.finished_ms),
            }

    def steps(self, which: Which) -> list[Step]:
        """A job's durable steps: what was sent, with which key, and what came of it."""
        number = self.job(which).number
        return self._read(lambda s: s.steps(number))

    def __len__(self) -> int:
        return self.stats()["total"]

    def __bool__(self) -> bool:
        return True
