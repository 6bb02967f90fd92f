"""The queue as a user holds it: put work in, run it, see how it stands, take results out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from . import codec, html, intake
from .accounts import Accounts, check_capacity, microusd
from .clock import Clock, SystemClock, as_ms
from .errors import PayloadError, StoreError, StoreLost, UsageError
from .expand import expanded
from .job import (
    STATUSES,
    TERMINAL,
    Added,
    Attempt,
    Event,
    Job,
    JobSpec,
    Output,
    RowProblem,
    Step,
)
from .liveness import is_alive
from .notebook.gallery import ShownJob
from .outputs import OutputFolder
from .providers.base import Provider
from .providers.function import function_provider
from .pump import Pump
from .recovery import Recovered, recover
from .renders import RenderHandler, is_render_provider
from .retry import Retry
from .run import Run, Summary
from .snapshot import Snapshot, take
from .steps import RENDER, handle_of
from .store.base import JobFilter
from .store.files import companion, unsafe_place
from .store.sqlite import SqliteStore
from .store.sums import Ends, Pace, costs, newest_completed, timeline, tries, with_prompts
from .store.thread import StoreThread
from .words import what as what_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from .export import Saved
    from .notebook.clips import Clip
    from .notebook.dashboard import Dashboard
    from .notebook.gallery import Comparison, Details, Gallery
    from .notebook.progress import Notify, Progress
    from .plan import Plan

__all__ = ["Queue"]

T = TypeVar("T")
Executor = Literal["auto", "async", "thread", "process"]
Which = int | str | Job

DEFAULT_CONCURRENCY = 4
PUT_CHUNK = 500
FAILURES_SHOWN = 5
PROBLEMS_KEPT = 1000
WRITE_TIMEOUT_S = 60.0


class _Shared:
    """What all Queue objects of one kernel on one file share: threads, providers, the run."""

    def __init__(self, path: Path) -> None:
        self.path, self.pid = path, os.getpid()
        self.writer = StoreThread(lambda: SqliteStore(path), "vqkit-store")
        self.reader = StoreThread(lambda: SqliteStore(path, readonly=True), "vqkit-reader")
        self.providers: dict[str, Provider] = {}
        self.handlers: set[str] = set()  # given to run or start
        self.run: Run | None = None
        self.named_only: set[str] = set()  # handlers of earlier runs: they take no unnamed job
        self.earlier: list[Run] = []  # told to stop, perhaps still following their work
        self.holders = 0

    def is_current(self) -> bool:
        """False after a fork, or when the file is not the one that was opened."""
        return self.pid == os.getpid() and self.writer.store.is_same_file()

    def close(self) -> None:
        self.reader.close()
        self.writer.close()


_open: dict[Path, _Shared] = {}


class Queue:
    """A crash-proof job queue on one SQLite file, made when it is not there.

    Opening spends nothing and sends nothing: only `run` and `start` hand out work. Every
    Queue on the same file in one kernel shares its run. `outputs` is the folder for
    finished files: by default one beside the database, named like it.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, outputs: str | os.PathLike[str] | None = None
    ) -> None:
        if str(path).startswith(("postgresql:", "postgres:")):
            raise UsageError("this version keeps queues in SQLite files; give a path such as q.db")
        self.path = Path(path).expanduser().resolve()
        self.warning = unsafe_place(self.path)
        if self.warning:
            import warnings

            warnings.warn(self.warning, stacklevel=2)
        self._clock: Clock = SystemClock()
        self._shared = self._join()
        self._is_closed = False
        self._dashboard: Dashboard | None = None  # lives as long as somebody holds the queue
        self.outputs_folder = self._settle_folder(outputs)
        self._files = OutputFolder(self.outputs_folder, companion(self.path) / "finished")
        self.accounts = Accounts(
            lambda: self._read(lambda s: s.accounts()),
            lambda name, change: self._write(lambda s: s.change_account(name, change)),
            lambda name: self._write(lambda s: s.remove_account(name)),
        )

    def _join(self) -> _Shared:
        shared = _open.get(self.path)
        if shared is not None and not shared.is_current():
            if shared.pid != os.getpid():
                raise StoreLost(
                    f"this process was forked from the one that has {self.path} open. SQLite's"
                    " locks do not survive a fork: work on the queue in a process of its own"
                    " (subprocess, or multiprocessing.get_context('spawn')).",
                    path=str(self.path),
                )
            shared.close()
            shared = None
        if shared is None:
            shared = _open[self.path] = _Shared(self.path)
            shared.providers.update(_builtin_providers())
        shared.holders += 1
        return shared

    def _settle_folder(self, outputs: str | os.PathLike[str] | None) -> Path:
        """The folder for finished files: given now, or kept since an earlier opening."""
        kept = self._read(lambda s: s.setting("outputs"))
        if outputs is None and kept is not None:
            return self.path.parent / str(kept)
        default = self.path.with_suffix("")
        if default == self.path:
            default = self.path.with_name(self.path.name + "-files")
        folder = default if outputs is None else Path(outputs).expanduser().resolve()
        elsewhere = None if kept is None else self.path.parent / str(kept)
        if elsewhere not in (None, folder) and self._read(lambda s: s.outputs()):
            raise UsageError(
                f"{self.path.name} keeps its finished files in {elsewhere};"
                " leave out outputs=, or begin another queue"
            )
        near = folder.is_relative_to(self.path.parent)
        stored = str(folder.relative_to(self.path.parent) if near else folder)
        self._write(lambda s: s.set_setting("outputs", stored))
        return folder

    # -- the database, on its threads ------------------------------------------------------

    def _write(self, function: Callable[[SqliteStore], T]) -> T:
        """Runs it on the writing thread, and tells the pump."""
        return self._begin_write(function)()

    def _begin_write(self, function: Callable[[SqliteStore], T]) -> Callable[[], T]:
        """Begins the same; what is returned waits for it."""
        shared = self._shared

        def write(store: SqliteStore) -> T:
            try:
                return function(store)
            finally:
                # From here, where no interrupt of the caller can keep it from the pump.
                if shared.run is not None:
                    shared.run.poke()

        return partial(shared.writer.begin(write), WRITE_TIMEOUT_S)

    def _read(self, function: Callable[[SqliteStore], T]) -> T:
        return self._shared.reader.call(function)

    # -- putting work in ---------------------------------------------------------------------

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

        Higher `priority` goes first. `not_before` and `expires` are datetimes, ISO text or
        Unix seconds. Raises PayloadError for a payload that JSON cannot carry.
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
            key=_text("key", key),
            samples=_whole("samples", samples, 1, 1000),
            seed=None if seed is None else _whole("seed", seed, 0, 2**62),
            **base,
        )
        added = self._put(expanded(spec))
        return self.job(added.ids[0])

    def put_many(
        self,
        rows: Any,
        *,
        columns: list[str] | dict[str, str] | None = None,
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
        columns: list[str] | dict[str, str] | None = None,
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
        from . import plan

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
        columns: list[str] | dict[str, str] | None = None,
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
        Raises SheetError for a source that cannot be read as rows, before anything is put.
        """
        from . import plan

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
            "priority": _whole("priority", priority, -(2**31), 2**31),
            "not_before_ms": _moment("not_before", not_before),
            "expires_ms": _moment("expires", expires),
            "max_attempts": None
            if max_attempts is None
            else _whole("max_attempts", max_attempts, 1, 1000),
            "timeout_ms": None if timeout_s is None else max(1, round(timeout_s * 1000)),
            "provider": _text("provider", provider),
            "account": _text("account", account),
            "batch": _text("batch", batch),
        }

    def _put_specs(
        self,
        specs: Iterable[JobSpec | RowProblem],
        batch: str | None,
        *,
        has_ids: bool = True,
        earlier: Mapping[tuple[int, int], int] | None = None,
    ) -> Added:
        """Puts them by the thousand: while one thousand is stored, the next is made ready.

        With `earlier` they are the rows of a sheet, as `Store.put_rows` takes them.
        """
        parts: list[Added] = []
        problems: list[RowProblem] = []
        jobs: list[Job] = []
        stored: Callable[[], Added] | None = None
        skipped = 0

        def store() -> None:
            nonlocal stored, jobs
            if stored is not None:
                part = stored()
                parts.append(part if has_ids else replace(part, ids=()))
            stored, jobs = self._begin_put(jobs, earlier) if jobs else None, []

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
        self, jobs: list[Job], earlier: Mapping[tuple[int, int], int] | None = None
    ) -> Callable[[], Added]:
        def put(store: SqliteStore) -> Added:
            return store.put(jobs) if earlier is None else store.put_rows(jobs, earlier)

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

    # -- running it --------------------------------------------------------------------------

    @overload
    def provider(self, name: str) -> Callable[[T], T]: ...
    @overload
    def provider(self, name: str, function: T) -> T: ...
    def provider(self, name: str, function: Any = None) -> Any:
        """Registers who does the work of the accounts that name this provider.

        As a decorator, ``@q.provider("runway")``, or with the function given, or an object
        that submits, polls and fetches renders (`providers.contract.RenderProvider`).
        Registering a name again replaces it from the next claim on.
        """
        if function is None:
            return lambda decorated: self.provider(name, decorated)
        if is_render_provider(function):
            made: Provider = RenderHandler(name, function, self._clock)
        else:
            made = function_provider(function, name)
        self._shared.providers[name] = made
        self._shared.handlers.discard(name)
        self._shared.named_only.discard(name)
        if self._shared.run is not None:
            self._shared.run.poke()
        return function

    def start(
        self,
        handler: Callable[..., Any] | None = None,
        *,
        concurrency: int | None = None,
        executor: Executor = "auto",
        retry: Retry | None = None,
    ) -> Run:
        """Hands out work in the background; returns the run at once.

        It goes on until it is stopped, also with what is put meanwhile, or until somebody has
        waited for it: ``await run`` and ``run.wait()`` return, and end it, when nothing is
        left to do.

        A `handler` is a function of one argument, the job; it is the provider of its own
        name. Where no account has that provider, one of that name is made that runs
        `concurrency` jobs at once (4 unless told). Without a handler the registered
        providers do the work. Called again it gives the same run, with the new handler;
        handlers of earlier calls go on only with jobs that name them.
        """
        if retry is not None and not isinstance(retry, Retry):
            raise UsageError(f"retry {retry!r}: expected such as Retry(max_attempts=3)")
        shared = self._shared
        if handler is not None:
            provider = function_provider(handler, executor=executor)
            self._ensure_account(provider.name, concurrency)
            shared.named_only |= shared.handlers - {provider.name}
            shared.named_only.discard(provider.name)
            shared.handlers.add(provider.name)
            shared.providers[provider.name] = provider
        elif concurrency is not None:
            raise UsageError("concurrency goes with a handler; accounts have their own capacity")

        def make(on_worker_start: Callable[[], None]) -> Pump:
            return Pump(
                shared.writer,
                providers=shared.providers,
                named_only=shared.named_only,
                outputs=self._files,
                runners=companion(self.path) / "runners",
                retry=retry,
                on_worker_start=on_worker_start,
            )

        def begin(_: SqliteStore) -> Run:
            # On the store's thread, where no interrupt lands: else a pump could be started
            # and forgotten, and two threads could start two.
            run = shared.run
            if run is not None and run.is_running and not run.is_stopping:
                run.rebind(retry)
                return run
            shared.earlier = [r for r in (*shared.earlier, run) if r is not None and r.is_running]
            shared.run = Run(make, self._summary, self._set_paused)
            return shared.run

        return shared.writer.call(begin)

    def run(
        self,
        handler: Callable[..., Any] | None = None,
        *,
        concurrency: int | None = None,
        executor: Executor = "auto",
        retry: Retry | None = None,
    ) -> Summary:
        """Hands out work and waits until nothing is left to do; returns how it ended.

        As `start`. It also returns, and says why, where the rest cannot go on by itself: the
        queue is paused, a budget is reached, accounts rest for good. An interrupt stops
        handing out new work and returns at once; what is at work is followed to its end in
        the background.
        """
        shared = self._shared
        before = shared.run
        run: Run | None = None
        try:
            run = self.start(handler, concurrency=concurrency, executor=executor, retry=retry)
            run.rest()
            summary = self._summary(run)
            if run is not before:
                run.stop(grace_s=None)
        except KeyboardInterrupt:
            # Without a run to hold, one may be starting: behind it in the line, without waiting.
            following = 0 if run is None else run.release()
            shared.writer.later(lambda _: shared.run and shared.run.release())
            raise KeyboardInterrupt(
                "no new work is handed out; "
                + (f"{following} at work are followed to their end. " if following else "")
                + "q.run() goes on where it stopped."
            ) from None
        return summary

    def _ensure_account(self, name: str, concurrency: int | None) -> None:
        mine = [account for account in self.accounts if account.provider == name]
        if not mine:
            if taken := [account for account in self.accounts if account.name == name]:
                raise UsageError(
                    f"there is an account {name!r}, of the provider {taken[0].provider!r}; give the"
                    f" handler another name, or an account of its own: accounts.add('…',"
                    f" provider={name!r})"
                )
            capacity = DEFAULT_CONCURRENCY if concurrency is None else concurrency
            if self.budget is not None or self.budget_per_day is not None:
                others = sorted({a.provider for a in self.accounts})
                raise UsageError(
                    f"this queue has a budget, and no account has the provider {name!r}: one made"
                    " now would have no price, and its jobs would pass the budget by. Add it"
                    f" yourself, q.accounts.add({name!r}, provider={name!r}, capacity={capacity},"
                    " price=…) (0 where it costs nothing)"
                    + (f", or let it serve {', '.join(others)}: q.provider(…)" if others else "")
                )
            self.accounts.add(name, provider=name, capacity=capacity)
        elif concurrency is not None:
            if [account.name for account in mine] != [name]:
                names = ", ".join(account.name for account in mine)
                raise UsageError(
                    f"concurrency={concurrency}: the accounts of {name} ({names}) have capacities"
                    " of their own; change them with accounts.set_capacity(name, n)"
                )
            if mine[0].capacity != check_capacity(concurrency):
                self.accounts.set_capacity(name, concurrency)

    def _set_paused(self, paused: bool) -> None:
        event = "queue.paused" if paused else "queue.resumed"
        self._write(lambda s: s.set_setting("paused", paused, event=event))

    def pause(self) -> None:
        """Hands out no more work, in any process; what runs goes on. `resume` undoes it."""
        self._set_paused(True)

    def resume(self) -> None:
        """Hands out work again."""
        self._set_paused(False)

    def stop(self) -> None:
        """Asks every run on this queue, in any process, to finish what it has begun and end.

        Returns at once. `start` begins again; `pause` leaves the runs where they are.
        """
        now_ms = self._clock.now_ms()
        self._write(lambda s: s.set_setting("stop_ms", now_ms, event="queue.stopped"))

    def recover(self) -> Recovered:
        """Takes over the jobs of processes that died; spends nothing. `start` does it too."""
        runners = companion(self.path) / "runners"
        ceiling = Retry().max_deaths
        known = self._shared.providers.items()
        by_steps = {name for name, p in known if isinstance(p, RenderHandler)}
        return self._write(lambda s: recover(s, "", runners, self._files, ceiling, by_steps))

    def _summary(self, run: Run) -> Summary:
        trouble = {"the queue": run.health.trouble} if run.health.trouble else {}
        why = {**trouble, **run.health.why}
        return self._summed_up(time.monotonic() - run.started_s, why, run.recovered)

    def _summed_up(self, seconds: float, why: Mapping[str, str], recovered: Recovered) -> Summary:
        snapshot = self.snapshot()
        if snapshot.is_paused:
            why = {"the queue": "paused by you: q.resume() lets it go on", **why}
        failures = self.jobs(status="failed", newest=FAILURES_SHOWN)
        return Summary(
            counts={status: n for status, n in snapshot.counts.items() if n},
            seconds=seconds,
            failures=tuple(_failure(job) for job in failures),
            why={**why, **dict.fromkeys(snapshot.waiting, "")},
            recovered=recovered,
            doubts=self._doubts(snapshot.counts),
        )

    def _doubts(self, counts: Mapping[str, int]) -> tuple[tuple[int, str], ...]:
        if not counts.get("in_doubt"):
            return ()
        found = self.jobs(status="in_doubt", newest=FAILURES_SHOWN)
        return tuple((job.number, job.reason or "nobody knows what became of it") for job in found)

    # -- seeing how it stands ------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """How the queue stands now: counts, accounts, rates, who works on it."""
        folder = companion(self.path) / "runners"
        now_ms = self._clock.now_ms()
        seen = self._read(lambda s: take(s, now_ms, lambda runner: is_alive(folder, runner)))
        run = self._shared.run
        trouble = run.health.trouble if run is not None else None
        if trouble is None or any(trouble in note for note in seen.notes):
            return seen
        return replace(seen, notes=(*seen.notes, trouble))  # what cannot be written down yet

    def dashboard(
        self, handler: Callable[..., Any] | None = None, *, live: bool | None = None
    ) -> Dashboard:
        """Shows the queue in this cell, live, with buttons; running the cell again replaces it.

        What it shows is in the database: it is right after a reload, in a second notebook,
        and while another process does the work. Its Start button starts `handler`, or what
        `start` and `provider` were given. Nothing is started by showing it. A copy of it
        without buttons stays in the saved notebook. `live` overrides what is found out
        about the front end: with False only that copy is made.
        """
        from .notebook.dashboard import show

        self._dashboard = show(
            self, partial(self.start, handler), has_handler=handler is not None, live=live
        )
        return self._dashboard

    def signs(self) -> tuple[int, frozenset[str], str | None]:
        """What changes when the queue does, and costs next to nothing to look at.

        A number that changes with every commit, who of those that work on it lives, and
        what troubles the run of this kernel.
        """
        folder = companion(self.path) / "runners"
        version, runners = self._read(lambda s: (s.changes_elsewhere(), s.runners()))
        living = frozenset(runner.id for runner in runners if is_alive(folder, runner))
        run = self._shared.run
        return version, living, None if run is None else run.health.trouble

    def pace(self, before: Pace | None = None) -> Pace:
        """How the work has gone, brought up to date; pass what an earlier call gave.

        The first call looks at the newest events only; where there are many, each call reads
        some of them (see `Pace.is_behind`).
        """
        pace = before or Pace()
        self._read(pace.follow)
        return pace

    def newest_events(self, limit: int, after: int = 0, job: int | None = None) -> list[Event]:
        """The last `limit` events with an id above `after`, oldest first."""
        return self._read(lambda s: s.events(after, job, limit, newest=True))

    @property
    def providers(self) -> frozenset[str]:
        """The providers known in this kernel: those that `start` can put to work."""
        return frozenset(self._shared.providers)

    def stats(self) -> dict[str, int]:
        """Jobs by status, and their total."""
        counts = self._read(lambda s: s.counts())
        by_status: dict[str, int] = {status: counts.get(status, 0) for status in STATUSES}
        return {**by_status, "total": sum(by_status.values())}

    def job(self, which: Which) -> Job:
        """One job, by number, id, or an older view of it. Raises UnknownName."""
        wanted = which.number if isinstance(which, Job) else which
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
            status=_statuses(status),
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
        chosen = JobFilter(limit=PUT_CHUNK)
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
        _pandas("to_frame()")
        from .export.frame import frame_of

        return frame_of(list(self.records()))

    def records(self) -> Iterator[dict[str, Any]]:
        """All jobs as flat dicts, in the order of their source's rows.

        The payload's columns come first, then how the job stands; `cost` is in dollars. A
        payload column that has the name of one of vqkit's own, or begins with ``payload.``,
        has ``payload.`` put before it. Jobs put later for a row of the same sheet stand with
        it, those whose row is not there any more at the sheet's end.
        """
        for job, files, cost in self._standings():
            error = job.error or {}
            stands = {
                "status": job.status,
                "stage": job.stage,
                "attempts": job.attempt,
                "account": job.account,
                "output": "\n".join(map(str, files)) or None,
                "cost": cost,
                "created": _utc(job.created_ms),
                "started": _utc(job.started_ms),
                "finished": _utc(job.finished_ms),
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
            yield {"job": job.number, **payload, **stands}

    def _standings(self) -> Iterator[tuple[Job, list[Path], float | None]]:
        """All jobs in the order of their source's rows, their finished files, and their cost."""
        files: dict[int, list[Path]] = {}
        for output in self._current_outputs():
            files.setdefault(output.job, []).append(self._files.resolve(output.path))
        costs = self._read(lambda s: s.job_costs())
        numbers = self._read(lambda s: s.numbers_by_source())
        for start in range(0, len(numbers), PUT_CHUNK):
            chosen = JobFilter(numbers=tuple(numbers[start : start + PUT_CHUNK]))
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
        from . import export

        return export.save(self, path, overwrite=overwrite)

    def save_into(
        self,
        source: str | os.PathLike[str],
        path: str | os.PathLike[str],
        *,
        sheet: str | None = None,
        columns: list[str] | dict[str, str] | None = None,
        overwrite: bool = False,
    ) -> Saved:
        """Saves a copy of the workbook `source` with status, file, cost and error of each row.

        They are added to the right; everything else in the workbook stays as it is. `sheet`
        and `columns` as they were given to `load`. A row that was edited since its job was
        put gets nothing, and is told. Several jobs of one row (`samples`) share its cells,
        and have a column each for their files. Replaces files as `save` does.
        """
        from . import export

        return export.save_into(
            self, source, path, sheet=sheet, columns=columns, overwrite=overwrite
        )

    def check(self) -> Summary:
        """How the queue stands, if all is well: raises PumpError for a pump that died.

        And JobsFailed if any job is not completed. A notebook's last cell, so that work
        that failed in the background fails it too.
        """
        run = self._shared.run
        if run is not None and run.error is not None:
            run.wait(0)
        counts = {status: n for status, n in self.stats().items() if n and status != "total"}
        failures = self.jobs(status="failed", newest=FAILURES_SHOWN)
        failed = tuple(_failure(job) for job in failures)
        return Summary(counts, 0.0, failed, doubts=self._doubts(counts)).check()

    # -- pictures of it ------------------------------------------------------------------------

    def plot_throughput(
        self,
        *,
        since: datetime | str | float | None = None,
        ax: Axes | None = None,
        tz: tzinfo | None = None,
    ) -> Axes:
        """Draws how many jobs ended per minute, by how they ended; returns the Axes.

        All `plot_…` methods draw into `ax`, or make a figure that the notebook shows where
        the Axes are a cell's last value; ``ax.figure.savefig("plot.pdf")`` keeps it. `since`
        leaves out what was before. Times are local ones, or those of `tz`.
        """
        from .notebook import plots

        ends = Ends(_moment("since", since) or 0)
        while self._read(ends.follow):
            pass
        now = self.snapshot()
        is_working = now.counts["running"] > 0 and any(r.is_alive for r in now.runners)
        return plots.throughput(ends, now.at_ms if is_working else None, ax, tz)

    def plot_attempts(self, *, ax: Axes | None = None) -> Axes:
        """Draws how many tries ended jobs took, crashes included; returns the Axes."""
        from .notebook import plots

        return plots.attempts(self._read(tries), ax)

    def plot_timeline(
        self,
        *,
        since: datetime | str | float | None = None,
        ax: Axes | None = None,
        tz: tzinfo | None = None,
    ) -> Axes:
        """Draws who ran what when, in a lane per account slot, and waits between tries.

        Bars carry job numbers ("17·2" is the second try of job 17) where there is room. Of
        more than 2,000 attempts it draws how many slots were at work. Returns the Axes.
        """
        from .notebook import plots

        now, since_ms = self.snapshot(), _moment("since", since) or 0
        seen = self._read(lambda s: timeline(s, now.at_ms, since_ms))
        return plots.timeline(seen, now, ax, tz)

    def plot_costs(self, *, ax: Axes | None = None, tz: tzinfo | None = None) -> Axes:
        """Draws what each account has spent over time, with the budgets; returns the Axes."""
        from .notebook import plots

        now = self.snapshot()
        return plots.costs(self._read(lambda s: costs(s, now.at_ms)), now, self.budget, ax, tz)

    def gallery(self, *, batch: str | None = None, page: int = 1, embed: bool = False) -> Gallery:
        """The finished clips with their prompts, playing in the notebook, newest first.

        A page holds 48. Files are played from where they are; the notebook keeps a small
        picture of each, and the whole of small ones. `embed` keeps whole files up to 48 MB
        in all, for a notebook that travels alone.
        """
        from .notebook.gallery import PAGE, Gallery

        def read(page: int) -> tuple[list[Clip], int]:
            offset = (page - 1) * PAGE
            numbers, total = self._read(lambda s: newest_completed(s, batch, PAGE, offset))
            return self._clips(numbers), total

        return Gallery(read, self._thumbs, page=_whole("page", page, 1, 2**31), embed=embed)

    def compare(self, what: str | Sequence[str | Which], *, batch: str | None = None) -> Comparison:
        """Clips side by side: a column for each prompt (or job number), a row for each sample.

        With one prompt its samples stand beside each other. Jobs that are not completed say
        how they stand. Raises UsageError for a prompt that no job has.
        """
        from .notebook.gallery import Comparison

        wanted = [what] if isinstance(what, str) else list(what)
        prompts = [one for one in wanted if isinstance(one, str)]
        found = self._read(lambda s: with_prompts(s, prompts, batch))
        if lost := [prompt for prompt, numbers in found.items() if not numbers]:
            raise UsageError(f"no job has the prompt {lost[0]!r}; q.to_frame() lists them")
        if len(wanted) == 1 and prompts:
            columns = [(f"sample {c.job.sample + 1}", [c]) for c in self._clips(found[prompts[0]])]
            return Comparison(columns, self._thumbs)
        columns = []
        for one in wanted:
            numbers = found[one] if isinstance(one, str) else [self.job(one).number]
            clips = self._clips(numbers[:PUT_CHUNK])
            columns.append((one if isinstance(one, str) else what_of(clips[0].job), clips))
        return Comparison(columns, self._thumbs)

    @property
    def _thumbs(self) -> Path:
        return self.outputs_folder / ".thumbs"

    def _clips(self, numbers: Sequence[int]) -> list[Clip]:
        """Jobs with their current files, in this order."""
        from .notebook.clips import Clip

        jobs = {j.number: j for j in self._read(lambda s: s.jobs(JobFilter(numbers=(*numbers,))))}
        files = {n: self._current_outputs(n) for n in numbers if n in jobs}
        return [
            Clip(jobs[n], tuple((self._files.resolve(o.path), o) for o in files[n]))
            for n in numbers
            if n in jobs
        ]

    def _tell(self, number: int) -> Details | None:
        """What a notebook shows of a job; None once the queue is closed or the job pruned."""
        from .notebook.gallery import Details

        if self._is_closed or not (clips := self._clips([number])):
            return None
        attempts = self._read(lambda s: s.attempts(number))
        events = self._read(lambda s: s.events(0, number, limit=10_000))
        return Details(clips[0], attempts, events, self._thumbs)

    def progress(self, *, wait: bool | None = None, notify: Notify = False) -> Progress:
        """One line that follows the queue until nothing is left to do.

        In a notebook it returns at once and follows in the background; elsewhere it waits,
        and an interrupt ends the line, not the work. `wait` overrides that. With `notify`
        True the browser tells when it is over, if the user allows it and the page is on
        https or localhost; a terminal rings. A function is called with the last snapshot.
        """
        from .notebook.progress import follow

        return follow(self.snapshot, wait=wait, notify=notify)

    # -- changing one's mind -------------------------------------------------------------------

    def cancel(
        self,
        *which: Which,
        status: str | Iterable[str] | None = None,
        batch: str | None = None,
        account: str | None = None,
    ) -> int:
        """Cancels what waits, asks what runs to stop. Returns how many jobs that touched.

        Jobs are named by number or id, or chosen by status, batch, account; all jobs there
        are: ``status=("queued", "running")``. Finished jobs stay as they are.
        """
        if not which and status is None and batch is None and account is None:
            raise UsageError(
                "cancel() wants to know which: q.cancel(17), q.cancel(batch='foxes.xlsx'), or"
                " q.cancel(status=('queued', 'running')) for all"
            )
        chosen = self._chosen(which, status, batch, account)
        return len(self._write(lambda s: s.transition(chosen, "cancel", reason="by you")))

    def requeue(
        self,
        *which: Which,
        status: str | Iterable[str] | None = None,
        batch: str | None = None,
        account: str | None = None,
    ) -> int:
        """Gives finished jobs a second chance, all their attempts anew. Returns how many.

        Without arguments: the failed ones. A completed job is rendered again only when it
        is named, or with ``status="completed"``.
        """
        if not which and status is None:
            status = "failed"
        chosen = self._chosen(which, status, batch, account)
        return len(self._write(lambda s: s.transition(chosen, "requeue")))

    def _chosen(
        self,
        which: tuple[Which, ...],
        status: str | Iterable[str] | None,
        batch: str | None,
        account: str | None,
    ) -> JobFilter:
        numbers = tuple(self.job(one).number for one in which) if which else None
        return JobFilter(_statuses(status), batch, account, numbers=numbers)

    def costs(self) -> pd.DataFrame:
        """Every attempt and its money, as a pandas DataFrame; amounts in dollars.

        `money` is "estimated" while it is set aside, then "billed", "not billed" or
        "unknown" (counted as spent); "handed on" where the next try went on with the same
        render. `key` and `handle` are the provider's names of it.
        """
        frame: pd.DataFrame = _pandas("costs()").DataFrame(list(self.cost_records()))
        return frame.set_index("job") if len(frame) else frame

    def cost_records(self) -> Iterator[dict[str, Any]]:
        """The rows of `costs`, as dicts."""
        paid: dict[int, list[Step]] = {}
        for step in self._read(lambda s: s.steps()):
            if step.is_paid:
                paid.setdefault(step.job, []).append(step)
        attempts = self.attempts()
        last = {(a.job, a.generation): a.fence for a in attempts}
        aside = {(j.number, j.generation) for j in self.iter_jobs() if j.reserved_microusd}
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
                "began": _utc(attempt.started_ms),
                "ended": _utc(attempt.finished_ms),
            }

    @property
    def budget(self) -> float | None:
        """What the whole queue may spend, in dollars; None: no limit. Reaching it pauses."""
        return self._dollars("budget_microusd")

    @budget.setter
    def budget(self, dollars: float | None) -> None:
        amount = microusd("budget", dollars)
        self._write(lambda s: s.set_setting("budget_microusd", amount))

    @property
    def budget_per_day(self) -> float | None:
        """What the queue may spend in a day (UTC), in dollars; None: no limit."""
        return self._dollars("budget_day_microusd")

    @budget_per_day.setter
    def budget_per_day(self, dollars: float | None) -> None:
        amount = microusd("budget_per_day", dollars)
        self._write(lambda s: s.set_setting("budget_day_microusd", amount))

    def _dollars(self, setting: str) -> float | None:
        amount = self._read(lambda s: s.setting(setting))
        return None if amount is None else amount / 1e6

    def resolve(
        self,
        which: Which,
        how: Literal["attach", "not_sent", "pay_again", "give_up"],
        *,
        value: Any = None,
        cost: float | None = None,
    ) -> Job:
        """Ends the doubt about a paid call, by your word.

        ``"attach"``: it was made, and `value` is what it gave (for a render at a provider its
        handle, such as ``{"id": "task-123"}``). ``"not_sent"``: it never arrived, and is made
        as if for the first time. ``"pay_again"``: make another one, whatever became of it.
        ``"give_up"``: the job fails. With these two `cost` is what the one in doubt has cost,
        in dollars, as the provider's bill says; without it, what was set aside counts as
        spent. `q.job(n).reason` and `q.events(job=n)` hold the evidence.
        """
        job = self.job(which)
        note = f"by you: {how.replace('_', ' ')}"
        if cost is not None and how not in ("pay_again", "give_up"):
            raise UsageError(f"resolve(…, {how!r}) takes no cost; 'pay_again' and 'give_up' do")
        known: dict[str, Any] = {"cost_microusd": microusd("cost", cost), "reason": note}
        if how == "attach":
            return self._attach(job, value, note)
        if value is not None:
            raise UsageError(f"resolve(…, {how!r}) takes no value; only 'attach' does")
        match how:
            case "not_sent":
                return self._write(lambda s: s.resolve(job.number, reason=note))
            case "pay_again":
                return self._write(lambda s: s.resolve(job.number, is_fresh=True, **known))
            case "give_up":
                return self._write(lambda s: s.resolve(job.number, to="failed", **known))
        raise UsageError(
            f"resolve(…, {how!r}): expected 'attach', 'not_sent', 'pay_again' or 'give_up'"
        )

    def _attach(self, job: Job, value: Any, note: str) -> Job:
        if value is None:
            raise UsageError(
                "resolve(…, 'attach') needs value=…: what the call gave, or the render's handle"
            )
        open_steps = [s for s in self.steps(job) if s.state == "intent"]
        is_render = any(step.name == RENDER for step in open_steps) or not open_steps
        if not is_render:
            value_json = codec.dumps(value, "value")
            return self._write(lambda s: s.resolve(job.number, value_json=value_json, reason=note))
        handle = {"id": value} if isinstance(value, str) else value
        handle_json = codec.dumps(handle, "handle")
        value_json = codec.dumps({"handle": handle}, "value")
        return self._write(
            lambda s: s.resolve(
                job.number, value_json=value_json, handle_json=handle_json, reason=note
            )
        )

    def steps(self, which: Which) -> list[Step]:
        """A job's durable steps: what was sent, with which key, and what came of it."""
        number = self.job(which).number
        return self._read(lambda s: s.steps(number))

    def prune(
        self, *, older_than: timedelta | float, status: str | Iterable[str] = tuple(TERMINAL)
    ) -> int:
        """Deletes jobs that finished longer ago than that (a timedelta, or seconds).

        With their attempts and events; files stay. Returns how many. A pruned job's key is
        free again: putting the same row once more makes a new job.
        """
        seconds = older_than.total_seconds() if isinstance(older_than, timedelta) else older_than
        wanted = _statuses(status)
        if not set(wanted) <= TERMINAL:
            raise UsageError(f"prune(status={status!r}): only finished jobs can be pruned")
        before_ms = self._clock.now_ms() - round(seconds * 1000)
        return self._write(lambda s: s.prune(before_ms, wanted))

    @property
    def retention(self) -> timedelta | None:
        """How long completed and cancelled jobs are kept; None: for ever. Failed ones stay."""
        seconds = self._read(lambda s: s.setting("retention_s"))
        return None if seconds is None else timedelta(seconds=seconds)

    @retention.setter
    def retention(self, keep: timedelta | None) -> None:
        given: Any = keep
        if given is not None and not (isinstance(given, timedelta) and given > timedelta(0)):
            raise UsageError(f"retention {keep!r}: expected a timedelta above 0, or None")
        seconds = None if keep is None else keep.total_seconds()
        self._write(lambda s: s.set_setting("retention_s", seconds))

    # -- the file --------------------------------------------------------------------------------

    def backup(self, path: str | os.PathLike[str]) -> Path:
        """Copies the database, while it is in use, to a new file. Raises if that exists.

        The only safe way: a copied file of a database at work is damaged.
        """
        target = Path(path).expanduser().absolute()
        if target.exists():
            raise UsageError(f"{target} exists; give the copy another name")
        self._read(lambda s: s.backup(str(target)))
        return target

    def close(self) -> None:
        """Stops what runs (10 s for it to end) and lets go of the file. Twice is harmless."""
        if self._is_closed:
            return
        self._is_closed = True
        shared = self._shared
        shared.holders -= 1
        if shared.holders > 0 or shared.pid != os.getpid():
            return
        runs = [run for run in (*shared.earlier, shared.run) if run is not None and run.is_running]
        if sum([run.stop() for run in runs]):
            return  # something is followed to its end and still needs the database
        if _open.get(self.path) is shared:
            del _open[self.path]
        shared.close()

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.stats()["total"]

    def __bool__(self) -> bool:
        return True

    @property
    def is_closed(self) -> bool:
        """True once `close` was called."""
        return self._is_closed

    def __dir__(self) -> list[str]:
        """What a user needs, and nothing else, for tab completion."""
        names = {name for name in (*vars(Queue), *vars(self)) if not name.startswith("_")}
        return sorted(names - {"newest_events", "pace", "signs"})  # what screens are made of

    def __rich__(self) -> Any:
        from .notebook.terminal import picture

        return repr(self) if self._is_closed else picture(self.snapshot(), 80)

    def __repr__(self) -> str:
        if self._is_closed:
            return f"<Queue {self.path.name}: closed>"
        return f"<Queue {self.path.name}: {self.snapshot().headline}>"

    def _repr_html_(self) -> str:
        if self._is_closed:
            return f"<div>{html.escape(self.path.name)}: closed</div>"
        return self.snapshot()._repr_html_()


def _pandas(what: str) -> Any:
    try:
        import pandas as pd
    except ImportError as error:
        raise UsageError(f"{what} needs pandas: pip install pandas") from error
    return pd


def _builtin_providers() -> dict[str, Provider]:
    from .providers.local import local

    return {"local": function_provider(local, "local")}


def _failure(job: Job) -> tuple[int, str, str | None]:
    error = job.error or {}
    what = ": ".join(filter(None, (error.get("type"), error.get("message")))) or job.reason
    return job.number, (what or "failed")[:300], error.get("line")


def _statuses(status: str | Iterable[str] | None) -> tuple[str, ...]:
    if status is None:
        return ()
    wanted = (status,) if isinstance(status, str) else tuple(status)
    if unknown := [one for one in wanted if one not in STATUSES]:
        raise UsageError(f"no status {unknown[0]!r}; known: {', '.join(STATUSES)}")
    return wanted


def _whole(name: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UsageError(f"{name} {value!r}: expected a whole number from {low:,} to {high:,}")
    return int(value)


def _text(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{name} {value!r}: expected some text, or None")
    return str(codec.plain(value, name))


def _moment(name: str, when: datetime | str | float | None) -> int | None:
    try:
        return as_ms(when)
    except (ValueError, OverflowError, TypeError) as error:
        raise UsageError(
            f"{name} {when!r}: expected a datetime, ISO text such as 2026-12-01T08:00, or Unix"
            " seconds"
        ) from error


def _utc(ms: int | None) -> datetime | None:
    from datetime import UTC

    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)
