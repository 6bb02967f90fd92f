"""What the crash tests share: children, a ledger beside the queue, and what must hold after.

Nothing here believes the queue: what ran is read from a ledger that the handlers write
themselves, one line an `os.write`, and what is in the database is read by plain SQL.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
DEADLINE_S = 60.0


def until(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """The first true value of `condition`, looked at again and again."""
    end = time.monotonic() + deadline_s
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline_s:g} s for: {what}")
        time.sleep(0.01)
    return value


# -- the ledger ------------------------------------------------------------------------------


class Line(NamedTuple):
    what: str  # "begin", "end", or what a handler has to tell
    job: int
    pid: int
    attempt: int
    fence: int
    at_ms: int


class Ledger:
    """One line for each beginning and ending of an execution, on the disk before it goes on."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, what: str, job: Any) -> None:
        fence = job._job.fence
        now_ms = time.time_ns() // 1_000_000
        line = f"{what} {job.number} {os.getpid()} {job.attempt} {fence} {now_ms}\n"
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(fd, line.encode())
        finally:
            os.close(fd)

    def lines(self, what: str | None = None) -> list[Line]:
        if not self.path.exists():
            return []
        found = []
        for text in self.path.read_text().splitlines():
            word, *numbers = text.split()
            found.append(Line(word, *map(int, numbers)))
        return [line for line in found if what in (None, line.what)]

    def count(self, what: str) -> Counter[int]:
        return Counter(line.job for line in self.lines(what))


# -- children --------------------------------------------------------------------------------


class Child:
    """A process that runs a task of `crash_tasks`, in a session of its own.

    Its output is in a file, for the failure.
    """

    def __init__(self, task: str, pid: int, log: Path) -> None:
        self.task, self.pid, self.log = task, pid, log

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")[-5000:] if self.log.exists() else ""

    @property
    def code(self) -> int | None:
        """How it ended, negative for the signal that ended it; None while it runs."""
        told = self.log.with_suffix(".code")
        return int(told.read_text()) if told.exists() else None

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, deadline_s: float = DEADLINE_S) -> int:
        end = time.monotonic() + deadline_s
        while (code := self.code) is None:
            if time.monotonic() > end:
                raise AssertionError(f"{self.task} runs after {deadline_s} s:\n{self.said}")
            time.sleep(0.002)
        return code

    def finish(self, deadline_s: float = DEADLINE_S) -> str:
        """Waits for a good end; what it said."""
        code = self.wait(deadline_s)
        assert code == 0, f"{self.task} ended with {code}:\n{self.said}"
        return self.said

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.send(signal.SIGKILL)
        self.wait()

    def end(self) -> None:
        """Whatever state it is in: it is gone after this, and so is what it left behind."""
        for number in (signal.SIGCONT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)
        self.wait()


class Forks:
    """A process that has imported vqkit and opened nothing, and forks for each task it is sent.

    A child so costs milliseconds and not the second that Python takes to import everything.
    """

    def __init__(self, folder: Path) -> None:
        self.log = folder / "forks.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-u", str(HERE / "crash_tasks.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                text=True,
                env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
            )

    def start(self, task: str, folder: Path, **args: Any) -> Child:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        log = folder / f"{task}-{time.monotonic_ns()}.log"
        plain = {k: str(v) if isinstance(v, Path) else v for k, v in args.items()}
        self.process.stdin.write(json.dumps([task, str(log), plain]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, self.log.read_text()
        return Child(task, int(answer), log)

    def run(self, task: str, folder: Path, **args: Any) -> int:
        """Exit code of the task, negative for the signal that ended it."""
        return self.start(task, folder, **args).wait()

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


def stat_fields(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return []


def is_stopped(pid: int) -> bool:
    return stat_fields(pid)[:1] in (["T"], ["t"])


def started_by(child: Child) -> list[int]:
    """Processes that live and were started, not forked, by the child."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                known = (folder / "environ").read_bytes().split(b"\0")
                is_dead = stat_fields(int(folder.name))[:1] in ([], ["Z"])
                if f"CRASH_TEST_CHILD={child.log}".encode() in known and not is_dead:
                    found.append(int(folder.name))
    return found


# -- what is in the database, read plainly ---------------------------------------------------


@contextlib.contextmanager
def rows(db: Path) -> Iterator[sqlite3.Connection]:
    conn = sqlite3.connect(f"file:{db}?mode=ro", uri=True)
    conn.row_factory = sqlite3.Row
    try:
        yield conn
    finally:
        conn.close()


def ask(db: Path, sql: str, *params: Any) -> list[Any]:
    with rows(db) as conn:
        return conn.execute(sql, params).fetchall()


def statuses(db: Path) -> dict[str, int]:
    try:
        return {r[0]: r[1] for r in ask(db, "SELECT status, count(*) FROM jobs GROUP BY 1")}
    except sqlite3.OperationalError:
        return {}


def is_drained(db: Path) -> bool:
    found = statuses(db)
    return bool(found) and not found.keys() & {"queued", "running"}


TERMINAL_EVENTS = {
    "completed": "job.completed",
    "failed": "job.failed",
    "cancelled": "job.cancelled",
}


def check_invariants(
    db: Path,
    *,
    expected: dict[int, str] | None = None,
    outputs: Path | None = None,
    is_closed: bool = True,
) -> list[Any]:
    """What must hold of a drained queue, whatever happened on the way. Returns its jobs.

    `expected` are the statuses by number (None: all completed). `outputs` is the folder of
    its files. `is_closed` says that every runner has ended as it should.
    """
    with rows(db) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        jobs = conn.execute("SELECT * FROM jobs ORDER BY number").fetchall()
        attempts = conn.execute("SELECT * FROM attempts ORDER BY job, fence").fetchall()
        events = conn.execute("SELECT * FROM events WHERE job IS NOT NULL ORDER BY id").fetchall()
        files = conn.execute("SELECT * FROM outputs").fetchall()
        kept = {tuple(r)[:3]: r["n"] for r in conn.execute("SELECT * FROM counts WHERE n <> 0")}
        runners = conn.execute("SELECT * FROM runners").fetchall()
    wanted = expected or {job["number"]: "completed" for job in jobs}
    assert {job["number"]: job["status"] for job in jobs} == wanted

    tries = defaultdict(list)
    for attempt in attempts:
        tries[attempt["job"]].append(attempt)
    told = defaultdict(list)
    for event in events:
        told[event["job"]].append(event)
    for job in jobs:
        number, mine = job["number"], tries[job["number"]]
        assert [a["fence"] for a in mine] == list(range(1, job["fence"] + 1)), number
        assert all(a["outcome"] for a in mine), f"job {number} has an attempt without an end"
        completed = [a for a in mine if a["outcome"] == "completed"]
        assert len(completed) == (job["status"] == "completed"), f"job {number}: {completed}"
        kinds = Counter(event["type"] for event in told[number])
        by_recovery = [
            e
            for e in told[number]
            if e["type"] == "job.reclaimed" and "seconds" in json.loads(e["data"])
        ]
        ends = kinds[TERMINAL_EVENTS[job["status"]]] + len(by_recovery)
        crashed_out = kinds["job.reclaimed"] if job["status"] == "failed" else 0
        assert ends == 1 or (ends == 0 and crashed_out), (number, kinds)
        assert kinds["job.queued"] == 1, (number, kinds)
        assert kinds["job.started"] == len(mine), (number, kinds)
        for before, after in itertools.pairwise(mine):
            assert before["finished_ms"] <= after["started_ms"], f"job {number} ran beside itself"

    true = Counter(("batch", job["batch"] or "", job["status"]) for job in jobs)
    true.update(
        ("account", job["account"], job["status"])
        for job in jobs
        if job["account"] and job["status"] in ("completed", "failed")
    )
    assert kept == dict(true), "the counters do not match the rows"

    if is_closed:
        assert not runners, [tuple(r) for r in runners]
        companion = db.with_name(db.name + "-vqkit")
        assert not list((companion / "runners").glob("*")), "a runner's lock file was left"
    if outputs is not None:
        check_files(db, outputs, files)
    return jobs


def check_files(db: Path, outputs: Path, files: list[Any]) -> None:
    """Every file is what it was; nothing lies about that no job knows."""
    known = {row["path"] for row in files}
    assert len(known) == len(files)
    for row in files:
        content = (outputs / row["path"]).read_bytes()
        assert len(content) == row["size"], row["path"]
        assert hashlib.sha256(content).hexdigest() == row["sha256"], row["path"]
    there = {p.name for p in outputs.glob("*") if p.is_file()} if outputs.exists() else set()
    assert there == known, f"files no job knows of, or the other way round: {there ^ known}"
    assert not list((outputs / ".part").glob("*")), "unfinished files were left"
    manifests = db.with_name(db.name + "-vqkit") / "finished"
    assert not list(manifests.glob("*")), "manifests were left"


def inodes(outputs: Path) -> dict[str, tuple[int, int]]:
    """{name: (inode, mtime)} of the finished files."""
    found = [p for p in outputs.glob("*") if p.is_file()] if outputs.exists() else []
    return {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in found}


def most_at_once(spans: list[tuple[int, int]]) -> int:
    """How many of these half-open spans overlap at most."""
    steps = sorted([(at, 1) for at, _ in spans] + [(at, -1) for _, at in spans])
    most = now = 0
    for _, step in steps:
        now += step
        most = max(most, now)
    return most
