"""The command line: run a sheet to its end, look at a queue, change one's mind.

Only `run`, `cancel` and `requeue` write to a queue, and only `run` sends work. What a script
asks for with ``--json`` goes to stdout, and nothing else does; words for people go to stderr
then. What people read is one plain line a fact.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import asdict
from heapq import nlargest
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from . import __version__, doctor, html, intake, secrets
from .accounts import CAPACITY_MAX, check_capacity
from .clock import SystemClock, iso, local_text
from .errors import NotAQueue, PumpError, UsageError, VqkitError
from .handles import typed_value
from .job import LOCAL, STATUSES, Added, Event, Job
from .liveness import is_alive
from .notebook.terminal import headline, picture
from .plan import Plan
from .queue import Queue
from .run import Run, Summary
from .snapshot import Snapshot, duration_text, take
from .store.base import JobFilter
from .store.sqlite import SqliteStore
from .words import (
    clean,
    comes_back,
    count,
    event_words,
    failure_of,
    failure_text,
    near,
    shorten,
    what,
)

__all__ = ["main"]

T = TypeVar("T")

PROVIDERS = (LOCAL,)
ACCOUNTS, CAPACITY, ACCOUNTS_MAX = 2, 2, 1000
GRACE_S = 30.0  # how long work in flight may go on after the first Ctrl-C
LOOK_S = 0.2
LINE_S = 2.0  # at most one line of progress in this time where there is no terminal
FOLLOW_S = 0.3
PROBLEMS_SHOWN, FAILURES_SHOWN, FILES_SHOWN = 10, 10, 20
EVENTS_SHOWN = JOBS_SHOWN = 50
PAGE = 1000


class _Failed(click.ClickException):
    """One red line instead of a traceback."""

    def show(self, file: Any = None) -> None:
        click.secho(f"error: {self.message}", fg="red", err=True)


class _Misused(_Failed):
    exit_code = 2


class _Main(click.Group):
    """Turns vqkit's errors into one line, and an interrupt into exit status 130."""

    def invoke(self, ctx: click.Context) -> Any:
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError):  # whatever stands in for them in a test
                stream.reconfigure(errors="replace")  # type: ignore[union-attr]
        try:
            return super().invoke(ctx)
        except VqkitError as error:
            if isinstance(error, PumpError) and not isinstance(error.__cause__, VqkitError):
                raise  # a fault of vqkit's own: its traceback is what helps
            kind = _Misused if isinstance(error, UsageError) else _Failed
            raise kind(clean(error)) from error
        except KeyboardInterrupt:
            click.echo("\nstopped", err=True)
            ctx.exit(130)


@click.group(cls=_Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="vqkit")
def main() -> None:
    """A sheet of prompts becomes finished files, each made once, whatever happens meanwhile.

    \b
    vqkit run prompts.xlsx     makes them; run it again after a stop or a crash
    vqkit status               says how it stands

    Commands that take a DB use the one in runs/ if you leave it out. A sheet's name works
    too: it stands for the queue that "vqkit run" made of it.
    """


_db = click.argument("db", required=False, type=click.Path(path_type=Path))
_as_json = click.option("--json", "as_json", is_flag=True, help="For scripts: JSON on stdout.")


# -- run -------------------------------------------------------------------------------------


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--db", type=click.Path(path_type=Path), help="The queue; else runs/NAME.db")
@click.option("--out", type=click.Path(path_type=Path), help="For the files; else beside the queue")
@click.option("--accounts", type=int, help=f"How many accounts share the work; {ACCOUNTS} at first")
@click.option("--capacity", type=int, help=f"Jobs at once on each account; {CAPACITY} at first")
@click.option(
    "--provider",
    help="Who does the work: local, which draws small clips offline. In a queue of your own"
    " function or provider it does so only if it is named here",
)
@click.option("--sheet", help="The sheet of a workbook; else its first")
@click.option("--hidden", is_flag=True, help="Rows that are hidden or filtered out too")
@_as_json
def run(
    file: Path,
    db: Path | None,
    out: Path | None,
    accounts: int | None,
    capacity: int | None,
    provider: str | None,
    sheet: str | None,
    hidden: bool,
    as_json: bool,
) -> None:
    """Make what a sheet asks for, one job a row. FILE: .xlsx, .ods, .csv, .tsv, .jsonl, .txt.

    Running the same file again adds nothing: it finishes what is left. Ctrl-C stops
    politely, a second one at once. The exit status is 0 only if every job is completed.

    A queue that works with a function or provider of yours goes on where that is: q.run(…)
    in its notebook or script. Here it is left alone, unless you say --provider local.
    """
    _check_run(accounts, capacity, provider)
    if file.suffix.lower() == ".db":
        raise UsageError(
            f"{file} is a queue; run the sheet it was made from. A queue of a notebook goes on"
            " where its cell or script is run again."
        )
    table = intake.read(file, sheet=sheet, hidden=hidden)
    db = db or _queue_of(file)
    _check_out(db, out)
    screen = _Screen(to_stderr=as_json)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the same is said below, without a line of source
        q = Queue(db, outputs=out)
    with q:
        if q.warning:
            screen.say(f"warning: {q.warning}", "yellow")
        earlier = [job.batch for job in q.jobs(newest=1)]
        if earlier and earlier[0] not in (None, table.source):
            screen.say(
                f"{near(db.resolve())} was made from {earlier[0]}; {table.source} goes into it"
                " too (for another queue: --db)",
                "yellow",
            )
        if provider is None:
            _refuse_theirs(q)
        else:
            from .providers.local import local

            q.provider(provider, local)  # it was named, so it takes what names nobody
        _settle_accounts(q, provider or LOCAL, accounts, capacity)
        plan = q.plan(file, sheet=sheet, hidden=hidden)
        added = plan.put()
        _tell_added(screen, plan, added, q)
        for note in q.snapshot().waiting:
            screen.say(note, "yellow")
        if q.snapshot().is_paused:
            screen.say("The queue was paused; this run resumes it.", "yellow")
            q.resume()
        summary, stopped_by = _work(q, screen)
        if as_json:
            click.echo(json.dumps(_result(q, added, summary)))
        else:
            _tell_end(screen, q, file, summary, is_stopped=stopped_by is not None)
    if stopped_by is not None:
        sys.exit(128 + stopped_by)
    sys.exit(0 if summary.is_complete and summary.counts else 1)


@main.command(name="plan")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--db", type=click.Path(path_type=Path), help="The queue; else runs/NAME.db")
@click.option("--sheet", help="The sheet of a workbook; else its first")
@click.option("--hidden", is_flag=True, help="Rows that are hidden or filtered out too")
def plan_(file: Path, db: Path | None, sheet: str | None, hidden: bool) -> None:
    """Show what "vqkit run FILE" would do: rows, problems, cost and time. Puts nothing."""
    db = db or _queue_of(file)
    does_it = f"vqkit run {file} does this; nothing has been put yet"
    if db.is_file():
        with Queue(db) as q:
            click.echo(q.plan(file, sheet=sheet, hidden=hidden).text(does_it))
            if _is_theirs(q.snapshot()):
                click.echo("But vqkit run leaves this queue alone, without --provider local.")
        return
    with tempfile.TemporaryDirectory() as folder, Queue(Path(folder, "plan.db")) as q:
        _settle_accounts(q, PROVIDERS[0], None, None)  # those that run would make
        click.echo(q.plan(file, sheet=sheet, hidden=hidden).text(does_it))


def _is_theirs(s: Snapshot) -> bool:
    """True for a queue whose work a function or provider of the user's does, or is to do."""
    return bool(s.others) or (s.total > 0 and not s.accounts)


def _refuse_theirs(q: Queue) -> None:
    """Raises UsageError where toy clips would come among the results of the user's own work."""
    s = q.snapshot()
    if not _is_theirs(s):
        return
    waiting = s.counts["queued"] + s.counts["running"]
    whose = f"of your own {' and '.join(s.others)}" if s.others else "filled from Python"
    wait = f", and {count(waiting, 'job')} {'waits' if waiting == 1 else 'wait'} for it"
    raise UsageError(
        f"{near(q.path)} is a queue {whose}{wait if waiting else ''}: {s.goes_on}. Here is only"
        f" {LOCAL}, which draws toy clips, so nothing was put or made; to have it all the same:"
        f" --provider {LOCAL}, or in a queue of its own: --db"
    )


def _check_run(accounts: int | None, capacity: int | None, provider: str | None) -> None:
    """Raises UsageError before anything is made."""
    if provider is not None and provider not in PROVIDERS:
        known = ", ".join(PROVIDERS)
        raise UsageError(
            f"no provider named {provider!r}; known here: {known}. Providers of your own are"
            " Python functions: see q.provider(…) in the README."
        )
    if accounts is not None and not 1 <= accounts <= ACCOUNTS_MAX:
        raise UsageError(f"--accounts {accounts}: expected 1 to {ACCOUNTS_MAX:,}")
    if capacity is not None and not 1 <= capacity <= CAPACITY_MAX:
        raise UsageError(
            f"--capacity {capacity}: expected 1 to {CAPACITY_MAX:,}, the jobs each account runs"
            " at once"
        )


def _check_out(db: Path, out: Path | None) -> None:
    """Raises UsageError where the queue keeps its files elsewhere already."""
    if out is None or not db.is_file() or not db.stat().st_size:
        return
    with _looking(db) as store:
        kept = store.setting("outputs")
        is_used = bool(store.outputs())
    if kept is not None and is_used and (db.resolve().parent / kept) != out.expanduser().resolve():
        raise UsageError(
            f"{db} keeps its finished files in {near(db.resolve().parent / kept)}; leave out"
            " --out, or begin another queue with --db"
        )


def _settle_accounts(q: Queue, provider: str, accounts: int | None, capacity: int | None) -> None:
    """Accounts ``local-1 … local-N`` as asked for; those there are, where nothing was asked."""
    there = {account.name: account for account in q.accounts if account.provider == provider}
    if there and accounts is None and capacity is None:
        return
    numbered = [f"{provider}-{i}" for i in range(1, ACCOUNTS_MAX + 1)]
    mine = [name for name in numbered if name in there and there[name].is_enabled]
    wanted = numbered[:accounts] if accounts is not None else mine or numbered[:ACCOUNTS]
    for name in wanted:
        old = there.get(name)
        slots = check_capacity(capacity or (old.capacity if old else CAPACITY))
        if old is None:
            q.accounts.add_in_passing(name, slots, provider)
            continue
        if not old.is_enabled:
            q.accounts.enable(name)
        if old.capacity != slots:
            q.accounts.set_capacity(name, slots)
    for name in set(mine) - set(wanted):
        q.accounts.disable(name)


def _newest(files: list[Path], n: int) -> list[Path]:
    """All of these files, or the n that were written last, newest first."""
    if len(files) <= n:
        return files
    return nlargest(n, files, key=lambda path: path.stat().st_mtime_ns if path.exists() else 0)


def _tell_added(screen: _Screen, plan: Plan, added: Added, q: Queue) -> None:
    jobs = added.new + added.again + added.existing + added.changed + added.conflicts
    screen.say(f"Read {clean(plan.source)}: {count(jobs, 'job')}, {_added_text(added)}.")
    for note in plan.notes:
        screen.say(f"  {clean(note)}")
    if plan.forecast:
        screen.say(f"Expected: {plan.forecast}.")
    if added.beside:
        rows = count(added.beside, "row")
        why = "of another sheet too, or " if plan.beside_shared else ""
        screen.say(f"{rows} changed, {why}begun before: a new job each, the old one stays.")
    if added.gone:
        on = ", and worked on" if plan.gone_waiting else ""
        screen.say(f"{count(added.gone, 'job')} whose row is gone: kept{on}.", "yellow")
    if added.skipped:
        screen.say(f"Skipped, for it cannot run: {count(added.skipped, 'row')}", "yellow")
        for problem in added.problems[:PROBLEMS_SHOWN]:
            screen.say(f"  row {problem.row}: {clean(problem.reason)}", "yellow")
        if (more := added.skipped - PROBLEMS_SHOWN) > 0:
            screen.say(f"  and {more} more", "yellow")
    if added.conflicts:
        had = count(added.conflicts, "row")
        screen.say(f"{had} changed after the work had begun: what was read first counts.", "yellow")
    waiting = q.stats()["queued"] + q.stats()["running"]
    mine = plan.jobs + plan.same_by_status["queued"] + plan.same_by_status["running"]
    if (others := waiting - mine) > 0:
        screen.say(f"The queue holds {count(others, 'other job')} too, worked on as well.")


def _added_text(added: Added) -> str:
    counts = {"new": added.new, "put again, for their rows are back": added.again}
    counts |= {"there already": added.existing, "changed": added.changed}
    counts["left as they began"] = added.conflicts
    parts = {what: n for what, n in counts.items() if n}
    if len(parts) == 1:
        return f"all {next(iter(parts))}"
    return ", ".join(f"{n} {what}" for what, n in parts.items()) or "nothing to do"


def _work(q: Queue, screen: _Screen) -> tuple[Summary, int | None]:
    """Runs the queue until it rests or the user stops it: how it stands, and the signal."""
    with _Stop(screen) as stop, screen:
        began = q.start()
        ending = _in_background(began.wait)
        is_begun, stopping_since_s = False, 0.0
        while not ending.done():
            if not is_begun and began.health.state != "starting":
                is_begun = True
                if began.recovered:
                    screen.say(f"Recovered from the last run: {began.recovered}.", "yellow")
            if stop.signal is not None:
                stopping_since_s = _stop_politely(began, screen, stopping_since_s)
            if is_begun:
                screen.show(q.snapshot(), _due_text(q, began))
            wait([ending], LOOK_S)
        summary = ending.result()
        began.stop(grace_s=None)
    return summary, stop.signal


def _stop_politely(began: Run, screen: _Screen, since_s: float) -> float:
    """What there is to do, look after look, from the first Ctrl-C on; gives its time."""
    if not since_s:
        n = began.release()
        what = (
            f"finishing {count(n, 'job')} at work, at most {GRACE_S:.0f} s" if n else "one moment"
        )
        screen.say(f"Stopping: {what}. Press Ctrl-C again to stop at once.", "yellow")
        return time.monotonic()
    if time.monotonic() > since_s + GRACE_S and began.is_running:
        left = count(began.following, "job")
        screen.say(f"{GRACE_S:.0f} s are over: {left} at work stopped and put back.", "yellow")
        began.stop(grace_s=0.0)
    return since_s


def _due_text(q: Queue, began: Run) -> str:
    """Why nothing moves, where nothing does."""
    if began.following or not (waiting := q.jobs(status="queued", newest=PAGE)):
        return ""
    now_ms = SystemClock().now_ms()
    due = [job.not_before_ms for job in waiting if (job.not_before_ms or 0) > now_ms]
    if len(due) < len(waiting):
        return ""
    return f"the next job is due at {local_text(min(d for d in due if d), now_ms)}"


def _tell_end(screen: _Screen, q: Queue, file: Path, summary: Summary, *, is_stopped: bool) -> None:
    total, done = sum(summary.counts.values()), summary.counts.get("completed", 0)
    rest = [f"{n} {s.replace('_', ' ')}" for s, n in summary.counts.items() if s != "completed"]
    words = ", ".join([f"{done} of {total} completed", *rest])
    if not total:
        head, style, words = "Nothing to run", "yellow", "no row became a job"
    elif summary.is_complete:
        head, style = "Done", "green"
    else:
        head, style = ("Stopped" if is_stopped else "Not all is done"), "yellow"
    screen.say(f"{head}: {words}, in {duration_text(summary.seconds)}.", style)
    failed = summary.counts.get("failed", 0) - summary.gone.get("failed", 0)
    for number, *_ in summary.failures[:FAILURES_SHOWN]:
        screen.say(f"  {failure_text(q.job(number))}", "red")
    if failed > FAILURES_SHOWN:
        more = f"vqkit jobs {near(q.path)} --status failed"
        screen.say(f"  and {failed - FAILURES_SHOWN} more: {more}", "red")
    if summary.counts.get("queued") and not is_stopped:
        for name, reason in summary.why.items():
            screen.say(f"  {clean(name)}{': ' + clean(reason) if reason else ''}", "yellow")
    files = q.outputs()
    if files:
        screen.say(f"{count(len(files), 'finished file')} in {near(q.outputs_folder)}{os.sep}:")
    for path in _newest(files, FILES_SHOWN):
        screen.say(f"  {near(path)}")
    if len(files) > FILES_SHOWN:
        screen.say(f"  and {len(files) - FILES_SHOWN} older")
    if is_stopped and summary.counts.get("queued"):
        screen.say(f"To go on: vqkit run {file}")
    elif failed:
        screen.say(f"To try the failed again: vqkit requeue {near(q.path)}")
        screen.say(f"                   then: vqkit run {file}")
    if summary.gone:
        screen.say(f"{summary.gone_text}.", "yellow")
        screen.say(f"To forget them:        vqkit prune {near(q.path)} --gone")


def _result(q: Queue, added: Added, summary: Summary) -> dict[str, Any]:
    recovered = summary.recovered
    return {
        "queue": str(q.path),
        "folder": str(q.outputs_folder),
        "complete": summary.is_complete,
        "counts": summary.counts,
        "gone": summary.gone,
        "seconds": round(summary.seconds, 3),
        "added": {name: getattr(added, name) for name in ("new", "existing", "changed")},
        "skipped": [{"row": p.row, "reason": p.reason} for p in added.problems],
        "recovered": {"finished": recovered.finished, "requeued": recovered.requeued},
        "failures": [_job_dict(job, []) for job in q.jobs(status="failed", newest=PAGE)],
        "files": [str(path) for path in q.outputs()],
    }


class _Stop:
    """Takes the user's wishes to stop. The first is kept for whoever looks; the second ends us.

    What is at work then is taken up again by the next run, as after any crash.
    """

    def __init__(self, screen: _Screen) -> None:
        self.signal: int | None = None
        self._screen = screen
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Stop:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) != signal.SIG_IGN:  # nohup, or a job of a script
                    self._before[number] = signal.signal(number, self._asked)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _asked(self, number: int, _: object) -> None:
        if self.signal is None:
            self.signal = number
            return
        # Nothing here may wait: not for a lock, not for a full pipe of somebody asleep.
        text = b"Stopped at once: the next run takes up again what was at work.\n"
        with suppress(OSError):
            os.set_blocking(2, False)
            os.write(2, (b"\r\x1b[?25h\x1b[J" if self._screen.is_live else b"") + text)
        os._exit(128 + number)


class _Screen:
    """What `run` says: a picture kept up to date on a terminal, else a line at a change.

    When nobody reads any more (``| head -1``), the work goes on in silence.
    """

    def __init__(self, *, to_stderr: bool) -> None:
        self._to_stderr = to_stderr
        self._console = _console(to_stderr=to_stderr)
        self._live: Live | None = None
        self._is_gone = False
        self._said: tuple[str, float] = "", 0.0

    @property
    def is_live(self) -> bool:
        """True while the picture is on a terminal."""
        return self._live is not None

    def __enter__(self) -> _Screen:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        live, self._live = self._live, None
        if live is not None:
            self._out(live.stop)

    def say(self, text: str, style: str = "") -> None:
        """A line of its own, above the picture."""
        if self._live is not None:
            self._out(lambda: self._console.print(Text(text, style), soft_wrap=True))
        else:
            self._out(lambda: click.secho(text, fg=style or None, err=self._to_stderr))

    def show(self, snapshot: Snapshot, note: str) -> None:
        """How it stands now."""
        live = self._live
        if live is not None:
            drawn = picture(snapshot, self._console.width, note)
            self._out(lambda: live.update(drawn, refresh=True))
            return
        words = ", ".join(filter(None, (headline(snapshot), note, *snapshot.notes)))
        # Of what changes without news, the time left, nothing is said.
        facts = str((snapshot.counts, note, snapshot.notes))
        last, at_s = self._said
        if facts != last and time.monotonic() > at_s + LINE_S:
            self._said = facts, time.monotonic()
            self.say(f"{time.strftime('%H:%M:%S')}  {words}")

    def _out(self, write: Callable[[], object]) -> None:
        if self._is_gone:
            return
        try:
            write()
        except OSError:
            self._is_gone = True
            self._console.quiet = True
            # What is still in Python's buffer must find somewhere to go at the end.
            stream = sys.stderr if self._to_stderr else sys.stdout
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


# -- looking ---------------------------------------------------------------------------------


@main.command()
@_db
@_as_json
def status(db: Path | None, as_json: bool) -> None:
    """How a queue stands: counts, accounts, what runs, what failed."""
    with _looking(_existing(db)) as store:
        snapshot = _snapshot(store)
    if as_json:
        click.echo(json.dumps(snapshot.to_dict()))
        return
    console = _console()
    console.print(picture(snapshot, console.width, ""))
    for runner in snapshot.runners:
        state = f"is at work ({runner.state})" if runner.is_alive else "is gone"
        console.print(Text(f"process {runner.pid} {state}"))
    if snapshot.running and not any(r.is_alive for r in snapshot.runners):
        next_run = "q.run(…)" if _is_theirs(snapshot) else "vqkit run"
        console.print(Text(f"what it had at work is taken up by the next {next_run}", "yellow"))
    if snapshot.failed:
        console.print(Text("newest failed:", "red"))
        for job in snapshot.failed[:FAILURES_SHOWN]:
            console.print(Text(f"  {failure_text(job)}"), soft_wrap=True)


@main.command()
@_db
@click.option("--status", "wanted", type=click.Choice(STATUSES), help="Only these")
@click.option("--batch", help="Only those of this sheet")
@click.option("--limit", type=click.IntRange(0), help=f"The newest so many; {JOBS_SHOWN}; 0: all")
@_as_json
def jobs(
    db: Path | None, wanted: str | None, batch: str | None, limit: int | None, as_json: bool
) -> None:
    """List the jobs, the newest last. With --json all of them, unless limited."""
    limit = (0 if as_json else JOBS_SHOWN) if limit is None else limit
    chosen = JobFilter(
        (wanted,) if wanted else (), batch, limit=limit + 1 if limit else None, newest=bool(limit)
    )
    with _looking(path := _existing(db)) as store:
        found = sorted(store.jobs(chosen), key=lambda job: job.number)
        shown = found[-limit:] if limit else found
        files = _files(store, path, {job.number for job in shown})
    if as_json:
        click.echo(json.dumps([_job_dict(job, files.get(job.number, [])) for job in shown]))
        return
    if len(found) > len(shown):
        click.echo(f"the newest {limit} (all: --limit 0)", err=True)
    if not shown:
        click.echo("no jobs" + (f" are {wanted.replace('_', ' ')}" if wanted else ""))
        return
    now_ms = SystemClock().now_ms()
    console, table = _console(), Table(box=None)
    for name in ("job", "status", "try", "account", "row", "what", "result"):
        table.add_column(name, no_wrap=True)
    room = (console.width - 46) // 2
    for job in shown:
        made = ", ".join(file.name for file in files.get(job.number, []))
        came = failure_of(job) if job.error else made or job.reason
        label = job.label(now_ms).replace("_", " ")
        cells = (job.number, label, job.attempt, job.account, job.row, what(job), came)
        texts = [Text(clean(cell or "")) for cell in cells]
        for text in texts[-2:]:
            text.truncate(max(20, room), overflow="ellipsis")
        table.add_row(*texts, style=html.STATUS[job.status][0])
    console.print(table)


@main.command()
@_db
@click.option("--follow", "-f", is_flag=True, help="Go on with what happens, until Ctrl-C")
@click.option("--after", type=click.IntRange(0), help="All events after this number; 0: all")
@click.option("--job", "number", type=int, help="Only those of this job")
@_as_json
def events(
    db: Path | None, follow: bool, after: int | None, number: int | None, as_json: bool
) -> None:
    """What happened, a line each, the newest last."""
    path = _existing(db)
    with _looking(path) as store:
        if number is not None:
            store.job(number)
        is_cut = after is None and number is None
        found = store.events(0, number, EVENTS_SHOWN + 1, newest=True) if is_cut else []
        if is_cut and len(found) > EVENTS_SHOWN:
            click.echo(f"the newest {EVENTS_SHOWN} (all: --after 0)", err=True)
            found = found[-EVENTS_SHOWN:]
        after = after or 0
        try:
            while True:
                for event in found:
                    click.echo(_event_json(event) if as_json else _event_line(event))
                after = found[-1].id if found else after
                found = store.events(after, number, PAGE) if not is_cut or follow else []
                if found:
                    continue
                if not follow:
                    return
                time.sleep(FOLLOW_S)
                if not path.exists():
                    raise NotAQueue(f"{path} is gone: it was moved or deleted")
        except KeyboardInterrupt:
            return


@main.command(name="export")
@click.argument("which", nargs=-1, metavar="[DB] FILE", type=click.Path(path_type=Path))
@click.option(
    "--into",
    metavar="WORKBOOK",
    type=click.Path(path_type=Path),
    help="Save a copy of this workbook, with the results beside its rows",
)
@click.option("--sheet", help="The sheet of that workbook")
@click.option("--overwrite", is_flag=True, help="Replace a file vqkit did not save so itself")
def export_(which: tuple[Path, ...], into: Path | None, sheet: str | None, overwrite: bool) -> None:
    """Save all jobs as .xlsx, .csv, .jsonl or .parquet, or beside the rows of a workbook."""
    if not 1 <= len(which) <= 2 or which[-1].suffix.lower() == ".db":
        raise UsageError("name the file to save, such as vqkit export results.xlsx")
    file = which[-1]
    with Queue(_existing(which[0] if len(which) == 2 else None)) as q:
        if into is not None:
            click.echo(q.save_into(into, file, sheet=sheet, overwrite=overwrite))
        elif sheet is not None:
            raise click.UsageError("--sheet goes with --into")
        else:
            click.echo(q.save(file, overwrite=overwrite))


@main.command(name="doctor")
@_db
@_as_json
def doctor_(db: Path | None, as_json: bool) -> None:
    """Look for what could do harm. The exit status is 0 if there is no problem."""
    path = _existing(db) if db or len(_queues()) == 1 else None
    checks = doctor.examine(path)
    if as_json:
        click.echo(json.dumps([asdict(check) for check in checks]))
    colors = {"ok": "green", "warning": "yellow", "problem": "red"}
    table = Table.grid(padding=(0, 1))
    for check in checks:
        table.add_row(Text(check.level, colors[check.level]), f"{check.name}:", Text(check.found))
        if check.advice:
            table.add_row("", "", Text(f"→ {check.advice}"))
    if not as_json:
        _console().print(table)
    if path is None and not as_json:
        click.echo("Only the machine was looked at; name a queue to look at it too.")
    sys.exit(1 if any(check.level == "problem" for check in checks) else 0)


# -- changing one's mind ---------------------------------------------------------------------


@main.command()
@click.argument("which", nargs=-1, metavar="[DB] [JOB]...")
@click.option("--all", "everything", is_flag=True, help="All that wait or are at work")
@click.option("--batch", help="Those of this sheet")
@_as_json
def cancel(which: tuple[str, ...], everything: bool, batch: str | None, as_json: bool) -> None:
    """Cancel jobs, by number. What waits is cancelled at once, what is at work when it stops.

    With --all and --batch those in doubt are left as they are: see vqkit resolve.
    """
    db, numbers = _db_and_jobs(which)
    if (bool(numbers) + everything + (batch is not None)) != 1:
        raise UsageError("say which: numbers of jobs (vqkit cancel 3 4), or --all, or --batch NAME")
    with Queue(_existing(db)) as q:
        q.recover()  # what a process that is gone had at work waits again, and is cancelled at once
        chosen = ("queued", "running") if everything else None
        n = q.cancel(*numbers, status=chosen, batch=batch)
        asked = [job.number for job in q.jobs(status="running", batch=batch)
                 if job.cancel_requested and (not numbers or job.number in numbers)]  # fmt: skip
        if as_json:
            click.echo(json.dumps({"changed": n, "stopping": asked}))
            return
        click.echo(f"{count(n, 'job')} cancelled" if n else "nothing to cancel")
        if asked:
            click.echo(f"of these {len(asked)} at work: cancelled as soon as they have stopped")
        doubts = [] if numbers else q.jobs(status="in_doubt", batch=batch)
        if doubts:
            left = "vqkit resolve ends that, or cancel them by number"
            click.echo(f"{count(len(doubts), 'job')} in doubt left alone: {left}")
        for job in map(q.job, numbers):
            if job.status in ("completed", "failed"):
                click.echo(f"job {job.number} is {job.status} already")


@main.command()
@click.argument("which", nargs=-1, metavar="[DB] [JOB]...")
@click.option("--status", "wanted", type=click.Choice(("failed", "cancelled", "completed")))
@click.option("--batch", help="Only those of this sheet")
@_as_json
def requeue(which: tuple[str, ...], wanted: str | None, batch: str | None, as_json: bool) -> None:
    """Give jobs a second chance. Without numbers: all that failed."""
    db, numbers = _db_and_jobs(which)
    with Queue(_existing(db)) as q:
        n = q.requeue(*numbers, status=wanted, batch=batch)
        if as_json:
            click.echo(json.dumps({"changed": n, **({"left": n.left} if n.left else {})}))
        elif n == 0 and n.left:
            click.echo("nothing to put back but jobs that no sheet has any more")
        elif n == 0:
            doubts = [job for job in map(q.job, numbers) if job.status == "in_doubt"]
            for job in doubts:
                click.echo(f"job {job.number} is in doubt ({job.reason}): see vqkit resolve --help")
            if not doubts:
                cancelled = 0 if numbers or wanted else len(q.jobs(status="cancelled", batch=batch))
                also = f"; {count(cancelled, 'job')} cancelled: --status cancelled"
                what = "no such job has come to an end" if numbers or wanted else "none has failed"
                click.echo(f"nothing to put back: {what}{also if cancelled else ''}")
        else:
            s = q.snapshot()
            if any(runner.is_alive for runner in s.runners):
                then = "they are begun soon"
            elif not _is_theirs(s):
                then = "the next vqkit run makes them"
            else:
                whose = " and ".join(s.others) or "your own function"
                then = f"q.run(…) in your notebook or script, where {whose} is, makes them"
            click.echo(f"{count(n, 'job')} put back: {then}")
        if n.left and not as_json:
            click.echo(
                f"{n.why_left}. vqkit requeue {near(q.path)} NUMBER takes one all the same,"
                f" vqkit prune {near(q.path)} --gone forgets them"
            )


@main.command()
@click.argument("which", nargs=-1, metavar="[DB] [JOB]...")
@click.option("--gone", is_flag=True, help="Failed and cancelled ones whose row is gone or edited")
@click.option("--yes", is_flag=True, help="Also those whose row is still there: it is made again")
def prune(which: tuple[str, ...], gone: bool, yes: bool) -> None:
    """Forget finished jobs, by number, or those whose rows are gone."""
    db, numbers = _db_and_jobs(which)
    if bool(numbers) == gone:
        raise UsageError(
            "say which: numbers of jobs, as vqkit jobs lists them (vqkit prune 3 4), or --gone"
        )
    with Queue(_existing(db)) as q:
        if not yes and (why := comes_back(map(q.job, numbers))):
            raise UsageError(f"{why}; nothing was forgotten. To do so all the same: --yes")
        n = q.prune(*numbers, gone=gone)
        click.echo(f"{count(n, 'job')} forgotten" if n else "nothing to forget: none has ended")


@main.command()
@click.argument("which", nargs=-1, metavar="[DB] JOB HOW")
@click.option("--value", help="For attach: the render's id at the provider, or JSON")
@click.option("--step", help="For attach, not-sent: which paid step, where several are in doubt")
@click.option("--cost", type=float, help="For pay-again, give-up: what it cost, in dollars")
@_as_json
def resolve(
    which: tuple[str, ...], value: str | None, step: str | None, cost: float | None, as_json: bool
) -> None:
    """End a doubt about a paid call, by your word.

    HOW is attach (it was made, as --value), not-sent (it never arrived; make it), pay-again
    (make another, whatever became of it) or give-up (the job fails).
    """
    if len(which) < 2:
        raise UsageError("which job, and how? For example: vqkit resolve 17 not-sent")
    db, numbers = _db_and_jobs(which[:-1])
    if len(numbers) != 1:
        raise UsageError("one job at a time, please: each doubt is a decision of its own")
    how: Any = which[-1].replace("-", "_")
    given = None if value is None else typed_value(value)
    with Queue(_existing(db)) as q:
        job = q.resolve(numbers[0], how, value=given, step=step, cost=cost)
        told = {"job": job.number, "status": job.status}
        left = f" in doubt: {job.reason}" if job.status == "in_doubt" else f" {job.status} now"
        click.echo(json.dumps(told) if as_json else f"job {job.number} is{left}")


@main.command(name="selftest")
@click.option("--report", type=click.Path(path_type=Path), help="A folder for the report")
@click.option("--quick/--full", default=True, help="Under a minute, or every case")
@click.option("--seed", type=int, default=0, show_default=True)
def selftest_(report: Path | None, quick: bool, seed: int) -> None:
    """Prove on this machine that nothing is lost and nothing paid twice.

    Works in a throw-away folder with a provider of its own, and deletes all it made.
    """
    from .selftest import main_report

    sys.exit(main_report(None if report is None else str(report), quick, seed, click.echo))


def _db_and_jobs(which: tuple[str, ...]) -> tuple[Path | None, list[int]]:
    """``[DB] [JOB]…`` told apart: a job is a number."""
    db = Path(which[0]) if which and not which[0].isdecimal() else None
    rest = which if db is None else which[1:]
    if wrong := [word for word in rest if not word.isdecimal()]:
        raise UsageError(f"{wrong[0]!r} is no job; jobs are numbers, as vqkit jobs lists them")
    return db, [int(word) for word in rest]


# -- finding and opening ---------------------------------------------------------------------


def _queue_of(sheet: Path) -> Path:
    return Path("runs", f"{sheet.stem}.db")


def _queues() -> list[Path]:
    return sorted(Path("runs").glob("*.db"))


def _existing(db: Path | None) -> Path:
    """The queue's file. Raises UsageError, and makes none, where there is none."""
    found = _queues()
    names = ", ".join(map(str, found[:10]))
    if db is None:
        if not found:
            raise UsageError(
                "there is no queue in runs/ here; name one, or make one: vqkit run FILE"
            )
        if len(found) > 1:
            raise UsageError(f"there are several queues here; name one of them: {names}")
        click.echo(f"queue: {found[0]}", err=True)
        return found[0]
    if db.suffix.lower() in intake.KNOWN:
        if not _queue_of(db).is_file():
            raise UsageError(f"{db} has no queue yet; make one: vqkit run {db}")
        db = _queue_of(db)
    if not db.is_file():
        hint = f"; there is: {names}" if names else "; vqkit run FILE makes one"
        raise UsageError(f"there is no queue {db}{hint}")
    return db


@contextmanager
def _looking(path: Path) -> Iterator[SqliteStore]:
    """A queue's rows, read only: nothing is made, moved or waited for."""
    store = SqliteStore(path, readonly=True)
    try:
        secrets.learn(account.credential for account in store.accounts())
        yield store
    finally:
        store.close()


def _snapshot(store: SqliteStore) -> Snapshot:
    locks = store.path.with_name(store.path.name + "-vqkit") / "runners"
    return take(store, SystemClock().now_ms(), lambda runner: is_alive(locks, runner))


def _files(store: SqliteStore, path: Path, numbers: set[int]) -> dict[int, list[Path]]:
    """The finished files of these jobs: of each those of its newest finished attempt."""
    root = path.resolve().parent / str(store.setting("outputs") or path.stem)
    few = len(numbers) <= 2 * JOBS_SHOWN
    lists = [store.outputs(n) for n in sorted(numbers)] if few else [store.outputs()]
    found = [output for outputs in lists for output in outputs if output.job in numbers]
    newest = {output.job: output.fence for output in found}
    files: dict[int, list[Path]] = {}
    for output in found:
        if output.fence == newest[output.job]:
            files.setdefault(output.job, []).append(root / output.path)
    return files


def _in_background(function: Callable[[], T]) -> Future[T]:
    """Its result, later. The thread keeps nothing waiting at the interpreter's end."""
    future: Future[T] = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=call, name="vqkit-wait", daemon=True).start()
    return future


# -- words -----------------------------------------------------------------------------------


def _job_dict(job: Job, files: Iterable[Path]) -> dict[str, Any]:
    hidden = ("_json", "_hash", "_ms")
    plain = {name: v for name, v in job._asdict().items() if not name.endswith(hidden)}
    times = {name: iso(getattr(job, f"{name}_ms")) for name in ("created", "started", "finished")}
    found = {"payload": job.payload, "result": job.result, "error": job.error, **times}
    plain["cancel_requested"] = bool(job.cancel_requested)
    told = {**plain, **found, "files": [str(path) for path in files]}
    return dict(secrets.redacted_own(told))


def _console(*, to_stderr: bool = False) -> Console:
    console = Console(stderr=to_stderr, highlight=False)
    if not console.is_terminal:
        console.width = 400  # whatever reads it cuts it as it likes
    return console


def _event_json(e: Event) -> str:
    values = {"id": e.id, "at": iso(e.at_ms), "type": e.type, "job": e.job, "level": e.level}
    return json.dumps({**values, "fence": e.fence, "data": e.data})


def _event_line(event: Event) -> str:
    when = local_text(event.at_ms, SystemClock().now_ms())
    who = "queue" if event.job is None else f"job {event.job}"
    text = f"{when}  {who:<9} {shorten(event_words(event.type, event.data), 300)}"
    return click.style(text, fg={"warning": "yellow", "error": "red"}.get(event.level))


if __name__ == "__main__":
    main(prog_name="vqkit")
