"""The headless proof: a queue, a provider and a disk of its own, and everything that can go wrong.

::

    from vqkit.selftest import selftest
    selftest()                      # in a cell, under a minute; shows what it did
    selftest("proof", quick=False)  # the whole matrix, with a report in the folder proof/

All work is done by child processes in a throw-away folder, against a `MockProvider` whose
ledger says what was really billed. To crash, a child is armed with a named point: it wraps
the function there and kills itself with SIGKILL; another child starts afresh on what is
left. Nothing of this is in the product: a point is set by wrapping, in that child only.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import errno
import inspect
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import urllib.parse
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

from . import __version__, html, policy, renders, run, strays
from .errors import GiveUp, ProviderError, StoreFull, VqkitError
from .job import Account, Attempt, Job, Output
from .mock import MockAdapter, MockProvider
from .outputs import OutputFolder
from .providers import download
from .providers.contract import Capabilities, Idempotency
from .queue import Queue
from .receipts import Receipts
from .retry import Retry
from .store.base import Claim, JobFilter, Transition
from .store.sqlite import SqliteStore

__all__ = ["KINDS", "POINTS", "Check", "Report", "main_report", "selftest"]

KINDS: tuple[Idempotency, ...] = get_args(Idempotency)
POINTS = (
    *("before the intent", "after the intent", "after sending"),
    *("before the receipt", "after the receipt", "while polling", "half a download"),
    *("before the rename", "after the rename", "before the commit"),
)
# After these nobody here can know whether the request arrived.
UNKNOWABLE = ("after the intent", "after sending", "before the receipt")
# The restart dies too, in the middle of finding out.
TWICE = (("after sending", "before the resolve"), ("before the receipt", "before the receipt"))

CHILD_S = 90  # a child that has not ended by then is killed
GRACE_S = 0.2
SIGKILLED = -signal.SIGKILL
PROGRAM = (sys.executable, "-m", "vqkit.selftest")


@dataclass
class Check:
    """One scenario: its figures, and what was wrong."""

    name: str
    figures: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def expect(self, is_so: bool, otherwise: str) -> None:
        """Notes what is wrong, unless it is so."""
        if not is_so:
            self.wrong.append(otherwise)

    def count(self, **figures: int) -> None:
        """Adds to the figures."""
        for name, n in figures.items():
            self.figures[name] = self.figures.get(name, 0) + n


@dataclass
class Report:
    """What a self-test found. `check` raises where anything was wrong."""

    checks: list[Check]
    seed: int
    is_quick: bool
    seconds: float
    version: str = __version__

    @property
    def is_good(self) -> bool:
        """True if nothing was wrong."""
        return not any(check.wrong for check in self.checks)

    @property
    def replay(self) -> str:
        """The command that does the same again."""
        return f"vqkit selftest {'--quick' if self.is_quick else '--full'} --seed {self.seed}"

    def check(self) -> Report:
        """Itself, if all is well. Raises VqkitError with what was wrong."""
        if not self.is_good:
            raise VqkitError(str(self))
        return self

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return {"is_good": self.is_good, "replay": self.replay, **asdict(self)}

    def _rows(self) -> list[tuple[str, str, str, str]]:
        return [
            (
                check.name,
                f"{len(check.wrong)} wrong" if check.wrong else "good",
                ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in check.figures.items()),
                f"{check.seconds:.1f} s",
            )
            for check in self.checks
        ]

    def __str__(self) -> str:
        word = "passed" if self.is_good else "FAILED"
        lines = [f"self-test of vqkit {self.version}: {word} in {self.seconds:.0f} s"]
        lines += [f"  {word:8} {name}: {figures}" for name, word, figures, _ in self._rows()]
        lines += [f"    {check.name}: {what}" for check in self.checks for what in check.wrong]
        return "\n".join([*lines, f"again: {self.replay}"])

    def _repr_html_(self) -> str:
        caption = str(self).partition("\n")[0]
        wrong = [("", "", what, "") for check in self.checks for what in check.wrong]
        header = ("scenario", "", "figures", "took")
        return html.output(html.table(header, [*self._rows(), *wrong], caption))

    def to_markdown(self) -> str:
        """The report as a page."""
        lines = [f"# {str(self).partition(chr(10))[0]}", "", f"Again: `{self.replay}`", ""]
        lines += ["| scenario | | figures | took |", "|---|---|---|---|"]
        lines += [f"| {' | '.join(row)} |" for row in self._rows()]
        lines += ["", *(f"- **{c.name}**: {what}" for c in self.checks for what in c.wrong)]
        return "\n".join(lines).rstrip() + "\n"

    def save(self, folder: Path) -> None:
        """Writes ``selftest.md`` and ``selftest.json`` there."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "selftest.md").write_text(self.to_markdown(), encoding="utf-8")
        (folder / "selftest.json").write_text(json.dumps(self.to_dict(), indent=1), "utf-8")


def selftest(
    report: str | os.PathLike[str] | None = None, quick: bool = True, seed: int = 0
) -> Report:
    """Proves on this machine that no job is lost and none is paid for twice; deletes all it made.

    `quick` takes a part of the crashes, well under a minute. With `report` a page and its
    figures are written to that folder. Safe beside any queue at work: it touches none.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="vqkit-selftest-") as folder:
        bench = Bench(Path(folder), seed)
        with ThreadPoolExecutor(2) as pool:
            checks = list(pool.map(lambda scenario: scenario(bench), scenarios(quick)))
        bench.close()
        done = Report(checks, seed, quick, 0.0)
        if report is not None:
            done.save(Path(folder) / "report")  # looked through for keys like all the rest
        done.checks.append(keys_nowhere(bench))
    done.seconds = time.monotonic() - began
    if report is not None:
        done.save(Path(report).expanduser())
    return done


def main_report(
    report: str | None = None,
    quick: bool = True,
    seed: int = 0,
    echo: Callable[[str], Any] = sys.stdout.write,
) -> int:
    """The self-test for a command line: says how it went, and gives the exit status."""
    done = selftest(report, quick, seed)
    echo(f"{done}\n")
    return 0 if done.is_good else 1


def scenarios(quick: bool) -> list[Callable[[Bench], Check]]:
    """What is done, the longest first."""
    found: list[Callable[[Bench], Check]] = [rate_limit_storm]
    for kind in KINDS:
        cells: list[tuple[str, ...]] = [(point,) for point in POINTS]
        if quick and kind not in ("replay", "none"):
            cells = [("after sending",), ("half a download",)]
        if not quick or kind == "replay":
            cells += TWICE
        found.append(_crashes_of(kind, cells))
    return [*found, side_by_side, contention, ends, cancelled, disk_full, durable]


# -- the bench: children, providers, folders -------------------------------------------------


class End:
    """How a child ended: its exit code, negative for a signal, and what it told."""

    def __init__(self, code: int, told: Any) -> None:
        self.code, self.told = code, told


class Children:
    """A process that has imported vqkit and opened nothing, and forks a child for each task."""

    def __init__(self, log: Path) -> None:
        root = str(Path(__file__).parent.parent)
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [*PROGRAM, "--child", json.dumps({"task": "serve"})],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                text=True,
                env={**os.environ, "PYTHONPATH": path},
            )

    def run(self, task: str, **args: Any) -> End:
        """Does it in a process of its own, and waits for its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"task": task, **args}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise VqkitError("the self-test's children did not start")
        return End(*json.loads(answer))

    def close(self) -> None:
        """Ends it."""
        self._process.communicate()


class Bench:
    """A throw-away folder, and who works in it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.secrets: set[str] = set()
        self.log = folder / "children.log"
        self._count = itertools.count()
        self._free: list[Children] = []

    @contextmanager
    def children(self) -> Iterator[Children]:
        """Somebody to run tasks, nobody else's meanwhile."""
        mine = self._free.pop() if self._free else Children(self.log)
        yield mine
        self._free.append(mine)

    def close(self) -> None:
        """Ends all children."""
        while self._free:
            self._free.pop().close()

    def queue(self) -> Path:
        """A new place for a queue."""
        folder = self.folder / f"q{next(self._count)}"
        folder.mkdir()
        return folder / "q.db"

    def mock(self, **knobs: Any) -> MockProvider:
        """A provider of its own, its ledger in a folder of the bench."""
        folder = self.folder / f"mock{next(self._count)}"
        folder.mkdir()
        return MockProvider(ledger=folder / "ledger.jsonl", seed=self.seed, **knobs)

    def setting(self, mock: MockProvider, accounts: Mapping[str, int], **limits: Any) -> Any:
        """What a child is told of a provider and its accounts, by their capacities."""
        can = replace(mock.capabilities(), not_found_grace_s=GRACE_S)
        keys = {name: str(mock.account(name).key) for name in accounts}
        self.secrets.update(keys.values())
        known = [
            {"name": name, "capacity": capacity, "key": keys[name], **limits}
            for name, capacity in accounts.items()
        ]
        return {"url": mock.url, "can": asdict(can), "accounts": known}


@dataclass
class State:
    """What stands in a queue's database when nobody works on it."""

    jobs: list[Job]
    attempts: list[Attempt]
    outputs: list[Output]

    @classmethod
    def of(cls, db: Path) -> State:
        """Read without opening the queue."""
        with closing(SqliteStore(db, readonly=True)) as store:
            return cls(store.jobs(JobFilter()), store.attempts(), store.outputs())

    @property
    def statuses(self) -> dict[str, int]:
        """How many jobs of each status."""
        return dict(Counter(job.status for job in self.jobs))

    def most_at_once(self, account: str) -> int:
        """The most attempts of an account that were at work at the same time."""
        mine = [a for a in self.attempts if a.account == account]
        steps = [(a.started_ms, 1) for a in mine] + [(a.finished_ms or 0, -1) for a in mine]
        return max(itertools.accumulate(change for _, change in sorted(steps)))


def _scenario(function: Callable[[Bench, Check], None]) -> Callable[[Bench], Check]:
    def timed(bench: Bench) -> Check:
        check = Check(function.__name__.replace("_", " "))
        began = time.monotonic()
        try:
            function(bench, check)
        except Exception as error:  # noqa: BLE001 - one scenario must not hide the others
            check.wrong.append("".join(traceback.format_exception(error))[-1500:])
        check.seconds = round(time.monotonic() - began, 2)
        return check

    timed.__name__ = function.__name__
    return timed


# -- crashes ---------------------------------------------------------------------------------


def _crashes_of(kind: Idempotency, cells: Sequence[tuple[str, ...]]) -> Callable[[Bench], Check]:
    def crashes(bench: Bench, check: Check) -> None:
        check.name = f"crashes, {kind}"
        with provider_of(bench, kind) as mock, bench.children() as children:
            for points in cells:
                crash(bench, check, children, mock, kind, points)

    return _scenario(crashes)


def provider_of(bench: Bench, kind: Idempotency) -> MockProvider:
    """A provider for crashes: its renders are polled and come in pieces, at prices of their own."""
    knobs = {"render_polls": 2, "poll_after_s": 0.01, "slow_s": 0.03, "cost_spread": 0.3}
    return bench.mock(idempotency=kind, **knobs)


def crash(
    bench: Bench,
    check: Check,
    children: Children,
    mock: MockProvider,
    kind: Idempotency,
    points: tuple[str, ...],
) -> None:
    """Two jobs, one after the other; a child dies at each of the points, the next one goes on."""
    if kind == "none":  # nobody can be asked there, so it dies with the other job's result
        points = (points[0], *("before the commit" for _ in points[1:]))
    db, cell = bench.queue(), f"{kind}, {' and '.join(points)}"
    account = f"studio {db.parent.name}"
    prompts = [f"{cell}, {n}" for n in (1, 2)]
    work = {"db": str(db), "prompts": prompts, "ledger": str(mock._path)}
    work["setting"] = bench.setting(mock, {account: 1}, price=0.25)
    for point in points:
        code = children.run("work", **work, point=point).code
        check.expect(code == SIGKILLED, f"{cell}: the child did not die {point}: {code}")
    code = children.run("work", **work).code
    check.expect(code == 0, f"{cell}: the restart ended with {code}")

    state = State.of(db)
    doubts = {1} if kind == "none" and points[0] in UNKNOWABLE else set()
    billed, whole = defaultdict(list), {}
    for render in mock.ledger():
        if render.account == account:
            billed[render.request["prompt"]].append(render.billed_microusd)
            whole[render.request["prompt"]] = mock.content(render.request)
    for job in state.jobs:
        wanted = "in_doubt" if job.number in doubts else "completed"
        text = f"{cell}: job {job.number}"
        check.expect(job.status == wanted, f"{text} is {job.status}, not {wanted}")
        times = len(billed[job.payload["prompt"]])
        was_sent = points[0] != "after the intent" or job.number not in doubts
        check.expect(times == was_sent, f"{text} was billed {times} times")
    check.expect(len(state.jobs) == 2, f"{cell}: of 2 jobs {len(state.jobs)} are left")
    files = len(state.outputs)
    check.expect(files == 2 - len(doubts), f"{cell}: {files} finished files")
    for output in state.outputs:
        path = db.with_suffix("") / output.path
        is_whole = path.exists() and path.read_bytes() == whole.get(prompts[output.job - 1])
        check.expect(is_whole, f"{cell}: the file of job {output.job} is not what was rendered")
    # What is in doubt is not settled yet; all else agrees to the micro-dollar.
    owed = sum(sum(billed[p]) for n, p in enumerate(prompts, 1) if n not in doubts)
    settled = sum(a.cost_microusd or 0 for a in state.attempts)
    check.expect(settled == owed, f"{cell}: the queue counts {settled}, the ledger {owed}")
    lost = sum(job.status in ("queued", "running") for job in state.jobs) + 2 - len(state.jobs)
    twice = sum(len(times) > 1 for times in billed.values())
    check.count(cells=1, kills=len(points), lost=lost, billed_twice=twice, in_doubt=len(doubts))


# -- the other scenarios ---------------------------------------------------------------------


@_scenario
def side_by_side(bench: Bench, check: Check) -> None:
    """Every account works to its limit, and none beyond it."""
    limits = {"a": 3, "b": 2, "c": 1}
    db = bench.queue()
    prompts = [f"side by side {n}" for n in range(18)]
    with bench.mock(render_s=0.3, poll_after_s=0.01, concurrency=limits) as mock:
        setting = bench.setting(mock, limits)
        with bench.children() as children:
            code = children.run("work", db=str(db), setting=setting, prompts=prompts).code
        state, refused = State.of(db), [r for r in mock.requests() if r.status == 429]
        check.expect(code == 0 and state.statuses == {"completed": 18}, f"{code} {state.statuses}")
        check.expect(not refused, f"{len(refused)} requests went beyond the provider's limit")
        check.expect(all(r.has_key for r in mock.requests() if r.what != "file"), "without a key")
        for name, limit in limits.items():
            most = mock.most_at_once(name)
            check.figures[f"most_at_once_{name}"] = f"{most} of {limit}"
            check.expect(most <= limit, f"{name}: {most} renders at once, its limit is {limit}")
            check.expect(most == limit or most > 1, f"{name}: only {most} of {limit} at once")
            tried = state.most_at_once(name)
            check.expect(tried <= limit, f"{name}: {tried} attempts at once, its limit is {limit}")


@_scenario
def contention(bench: Bench, check: Check) -> None:
    """Two processes claim from one queue; then one that was given up tries to settle."""
    db, log, jobs = bench.queue(), bench.folder / "contention.log", 80
    arguments = {"db": str(db), "log": str(log), "jobs": jobs}
    with bench.children() as one, bench.children() as two, ThreadPoolExecutor(2) as pool:
        both = [pool.submit(c.run, "contend", **arguments) for c in (one, two)]
        codes = [end.result().code for end in both]
        told = one.run("stale", db=str(bench.queue())).told
    ran = Counter(line.split()[0] for line in log.read_text().splitlines() if "job" in line)
    state = State.of(db)
    check.expect(codes == [0, 0], f"the processes ended with {codes}")
    check.expect(state.statuses == {"completed": jobs}, str(state.statuses))
    twice = [job for job, times in ran.items() if times > 1]
    check.expect(not twice and len(ran) == jobs, f"ran twice: {twice}; ran at all: {len(ran)}")
    most = state.most_at_once("contend")
    check.expect(most <= 4, f"{most} at once, the account allows 4")
    wanted = {"stale": 1, "status": "running", "result": "of the holder"}
    check.expect(told == wanted, f"an attempt that no longer holds its job settled it: {told}")
    check.count(jobs=jobs, claimed_twice=len(twice), stale_writes_refused=(told or {})["stale"])
    check.figures["processes_that_ran_some"] = len({a.runner for a in state.attempts})


@_scenario
def ends(bench: Bench, check: Check) -> None:
    """Retries have a ceiling, and errors that cannot pass are not retried."""
    db = bench.queue()
    with bench.children() as children:
        code = children.run("ends", db=str(db)).code
    found = {j.payload["kind"]: (str(j.status), j.attempt) for j in State.of(db).jobs}
    check.expect(code == 0 and found == ENDS, f"{code}: {found}, not {ENDS}")
    check.count(jobs=len(found), attempts=sum(attempt for _, attempt in found.values()))


@_scenario
def cancelled(bench: Bench, check: Check) -> None:
    """What runs is cancelled at the provider too, and costs nothing where that is so."""
    db, prompts = bench.queue(), [f"cancelled {n}" for n in range(5)]
    with bench.mock(render_s=600, poll_after_s=0.01) as mock, bench.children() as children:
        setting = bench.setting(mock, {"a": 3})
        code = children.run("cancel", db=str(db), setting=setting, prompts=prompts).code
        states = Counter(render.state for render in mock.ledger())
        billed = mock.billed_microusd()
    statuses = State.of(db).statuses
    check.expect(code == 0 and statuses == {"cancelled": 5}, f"{code}: {statuses}")
    check.expect(states == {"CANCELLED": 3}, f"at the provider: {dict(states)}")
    check.expect(billed == 0, f"{billed} were billed for them")
    check.count(jobs=5, cancelled_at_the_provider=states["CANCELLED"])


@_scenario
def rate_limit_storm(bench: Bench, check: Check) -> None:
    """All are refused at the same instant: none is back too early, nor all of them at once."""
    db, prompts = bench.queue(), [f"storm {n}" for n in range(20)]
    with bench.mock(rate={"first": 1}, retry_after_s=1, poll_after_s=0.01) as mock:
        setting = bench.setting(mock, {"a": 20})
        with bench.children() as children:
            code = children.run("work", db=str(db), setting=setting, prompts=prompts).code
        sent = [r for r in mock.requests() if r.what == "submit"]
    tries = defaultdict(list)
    for request in sent:
        tries[dict(request.rolls)["rate"]].append((request.status, request.at_ms))
    back = [times[-1][1] for times in tries.values()]
    good = [len(two) == 2 and two[1][1] - two[0][1] >= 1000 for two in tries.values()]
    early = good.count(False)
    spread_s = (max(back) - min(back)) / 1000
    state = State.of(db)
    check.expect(code == 0 and state.statuses == {"completed": 20}, f"{code} {state.statuses}")
    check.expect(not early, f"{early} came before Retry-After, or more than once: {dict(tries)}")
    check.expect(spread_s >= 1, f"all came back within {spread_s} s")
    spent = sum(job.attempt - 1 for job in state.jobs)
    check.expect(not spent, f"{spent} attempts were spent on it")
    check.count(jobs=20, too_early=early, attempts_spent=spent)
    check.figures["spread_s"] = spread_s


@_scenario
def disk_full(bench: Bench, check: Check) -> None:
    """The disk is full right after a render was accepted: its handle is not lost."""
    with provider_of(bench, "none") as mock, bench.children() as children:
        for what in ("commit", "receipt"):
            db, account = bench.queue(), f"full {what}"
            work = {"db": str(db), "prompts": [f"{what} 1", f"{what} 2"]}
            work["setting"] = bench.setting(mock, {account: 1})
            code = children.run("work", **work, full=what).code
            check.expect(code == SIGKILLED, f"{what}: the child ended with {code}")
            code = children.run("work", **work).code
            statuses = State.of(db).statuses
            check.expect(statuses == {"completed": 2}, f"{what}: {code}, {statuses}")
            times = sum(render.account == account for render in mock.ledger())
            check.expect(times == 2, f"{what}: 2 jobs were billed {times} times")
            check.count(jobs=2, handles_lost=statuses.get("in_doubt", 0))


@_scenario
def durable(bench: Bench, check: Check) -> None:
    """What must be on the disk is synced, and in that order."""
    db = bench.queue()
    with bench.mock(poll_after_s=0.01) as mock, bench.children() as children:
        setting = bench.setting(mock, {"a": 1})
        end = children.run("durable", db=str(db), setting=setting, prompts=["durable"])
    told = end.told or {"synchronous": [], "order": []}
    full = told["synchronous"]
    check.expect(bool(full) and set(full) == {2}, f"synchronous is {full}, not 2 (FULL)")
    order = ["intent", "sent", "receipt synced", "kept"]
    check.expect(told["order"] == order, f"{told['order']}, not {order}")
    check.count(connections_that_write=len(full))


def keys_nowhere(bench: Bench) -> Check:
    """No key stands in any file: database, log, companion folder, results, ledger, report."""
    check = Check("keys nowhere on the disk")
    forms = {key: _forms(key) for key in bench.secrets}
    for path in bench.folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            found = [f for key in forms for f in forms[key] if f in content]
            check.expect(not found, f"a key stands in {path.relative_to(bench.folder)}")
            check.count(files=1, bytes=len(content))
    check.expect(bool(forms), "no key was used at all")
    check.count(keys=len(forms))
    return check


def _forms(key: str) -> set[bytes]:
    """The key as it is, and as it looks when it is encoded."""
    raw = key.encode()
    forms = {raw, urllib.parse.quote(key, safe="").encode(), raw.hex().encode(), raw[::-1]}
    for before in range(3):  # wherever in the encoded text it begins
        inner = base64.b64encode(bytes(before) + raw)[4:-4]
        forms |= {inner, inner.translate(bytes.maketrans(b"+/", b"-_"))}
    return forms


# -- what the children do --------------------------------------------------------------------


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # on another thread it may take a moment


# Where each point is: whose function, and whether before it, after it or in the middle.
_PLACES: dict[str, tuple[Any, str, str]] = {
    "before the intent": (SqliteStore, "begin_step", "before"),
    "after the intent": (SqliteStore, "begin_step", "after"),
    "after sending": (MockAdapter, "submit", "while it waits"),
    "before the receipt": (Receipts, "append", "before"),
    "after the receipt": (Receipts, "append", "after"),
    "while polling": (MockAdapter, "poll", "after"),
    "half a download": (download, "_put", "after"),
    "before the rename": (OutputFolder, "_move", "before"),
    "after the rename": (OutputFolder, "_move", "after"),
    "before the commit": (SqliteStore, "_insert_outputs", "after"),
    "before the resolve": (SqliteStore, "resolve", "before"),
}


def _arm(point: str, ledger: Path) -> None:
    """From now on this process dies at that point."""
    owner, name, when = _PLACES[point]
    plain = getattr(owner, name)
    download.BLOCK = 256

    async def sends(*args: Any, **kwargs: Any) -> Any:
        going = asyncio.ensure_future(plain(*args, **kwargs))
        while kwargs["key"] not in ledger.read_text():  # noqa: ASYNC110, ASYNC240 - it dies here
            await asyncio.sleep(0.001)
        _die()
        return await going

    async def asks(*args: Any, **kwargs: Any) -> Any:
        await plain(*args, **kwargs)
        _die()

    def acts(*args: Any, **kwargs: Any) -> Any:
        if when == "before":
            _die()
        result = plain(*args, **kwargs)
        if name != "_insert_outputs" or args[1]:  # every turn passes there, with or without files
            _die()
        return result

    is_async = inspect.iscoroutinefunction(plain)
    setattr(owner, name, sends if when == "while it waits" else asks if is_async else acts)


def _fill_disk(what: str) -> None:
    """From now on the disk is full for the answer of a paid call; soon after, the process dies."""
    plain, tries = SqliteStore.end_step, itertools.count()

    def end_step(*args: Any, **kwargs: Any) -> None:
        if what == "commit":
            if next(tries) == 1:
                _die()
            raise StoreFull("no room")
        plain(*args, **kwargs)
        _die()

    def append(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no room")

    places: list[tuple[Any, str, Any]] = [(SqliteStore, "end_step", end_step)]
    places += [(Receipts, "append", append)] if what == "receipt" else []
    for place in places:
        setattr(*place)


@contextmanager
def _opened(db: str, setting: Any, prompts: list[str]) -> Iterator[Queue]:
    """The queue, its accounts and jobs; what is there already is not made again."""
    run.LOOK_S, renders.LOOK_S, renders.POLL_S = 0.005, 0.02, (0.02, 0.2)
    strays.AGAIN_S, policy.FULL_S, policy.NOT_SENT_S = (0.05, 1.0), 0.2, 0.2
    with Queue(db) as q:
        for account in setting["accounts"]:
            variable = f"VQKIT_SELFTEST_{account['name'].replace(' ', '_')}"
            os.environ[variable] = account["key"]
            options = {name: value for name, value in account.items() if name != "key"}
            q.accounts.add(**options, provider="mock", credential=f"env:{variable}")
        q.provider("mock", MockAdapter(setting["url"], Capabilities(**setting["can"])))
        q.put_many([{"prompt": prompt} for prompt in prompts])
        yield q


def _work(
    db: str,
    setting: Any,
    prompts: list[str],
    point: str | None = None,
    ledger: str = "",
    full: str | None = None,
    die_after_s: float | None = None,
) -> None:
    if die_after_s is not None:
        threading.Timer(die_after_s, _die).start()
    if point is not None:
        _arm(point, Path(ledger))
    if full is not None:
        _fill_disk(full)
    with _opened(db, setting, prompts) as q:
        q.run(retry=Retry(base_s=0.01, max_s=0.05))


def _cancel(db: str, setting: Any, prompts: list[str]) -> None:
    with _opened(db, setting, prompts) as q:
        going = q.start()
        while sum(job.is_open for job in q.jobs()) < 3:
            time.sleep(0.01)
        q.cancel(status=("queued", "running"))
        going.wait()


def _durable(db: str, setting: Any, prompts: list[str]) -> Any:
    synchronous: list[int] = []
    order: list[str] = []
    synced: set[int] = set()
    connect, sync, append = SqliteStore._connect, os.fsync, Receipts.append

    def connects(store: SqliteStore) -> Any:
        conn = connect(store)
        if not store.is_readonly:
            synchronous.append(conn.execute("PRAGMA synchronous").fetchone()[0])
        return conn

    def syncs(fd: int) -> None:
        synced.add(os.fstat(fd).st_ino)
        sync(fd)

    def appends(kept: Receipts, *args: Any) -> None:
        append(kept, *args)
        is_synced = kept.path.exists() and kept.path.stat().st_ino in synced
        order.append("receipt synced" if is_synced else "receipt not synced")

    def tells(owner: Any, name: str, word: str) -> None:
        plain = getattr(owner, name)

        def told(*args: Any, **kwargs: Any) -> Any:
            order.append(word)
            return plain(*args, **kwargs)

        setattr(owner, name, told)

    def begins(store: SqliteStore, **kwargs: Any) -> Any:
        begun = begin(store, **kwargs)
        states = [step.state for step in store.steps(kwargs["number"])]
        order.append("intent" if states == ["intent"] else "no intent")
        return begun

    begin = SqliteStore.begin_step
    places: list[tuple[Any, str, Any]] = [(SqliteStore, "_connect", connects), (os, "fsync", syncs)]
    places += [(Receipts, "append", appends), (SqliteStore, "begin_step", begins)]
    for place in places:
        setattr(*place)
    tells(MockAdapter, "submit", "sent")
    tells(SqliteStore, "end_step", "kept")
    with _opened(db, setting, prompts) as q:
        q.run()
    return {"synchronous": synchronous, "order": order}


def _contend(db: str, log: str, jobs: int) -> None:
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def contend(job: Any) -> None:
        os.write(fd, f"{job.number} job\n".encode())
        await asyncio.sleep(0.004)

    with Queue(db) as q:
        q.put_many([{"prompt": f"contention {n}"} for n in range(jobs)])
        os.write(fd, b"ready\n")
        while Path(log).read_text().count("ready") < 2:
            time.sleep(0.001)
        q.run(contend, concurrency=4)


def _stale(db: str) -> Any:
    """A job is taken from its owner; then the owner, who was only slow, comes with its result."""

    def comes(fence: int, result: str) -> int:
        change = {"result_json": json.dumps(result)}
        return len(store.turn([Transition(1, "complete", fence, change, "completed")]).stale)

    with closing(SqliteStore(db)) as store:
        store.save_account(Account("a", "x"))
        store.put([Job(0, "the job", "{}")])
        first = store.turn(claim=Claim("slow", lambda account: None)).claimed[0]
        store.reclaim("slow", lambda job: (policy.reclaim_decision(job, None, 25), ()))
        second = store.turn(claim=Claim("holder", lambda account: None)).claimed[0]
        told = {"stale": comes(first.fence, "of another"), "status": store.job(1).status}
        comes(second.fence, "of the holder")
        return {**told, "result": store.job(1).result}


ENDS = {
    "good": ("completed", 1),
    "good at last": ("completed", 2),
    "fails": ("failed", 3),
    "gives up": ("failed", 1),
    "invalid": ("failed", 1),
    "moderated": ("failed", 1),
}


def _ends(db: str) -> None:
    async def render(job: Any) -> str:
        match job.payload["kind"], job.attempt:
            case ("fails", _) | ("good at last", 1):
                raise ValueError("not this time")
            case "gives up", _:
                raise GiveUp("no use")
            case ("invalid" | "moderated") as kind, _:
                raise ProviderError("the provider will not", kind)
        return "done"

    with Queue(db) as q:
        q.put_many([{"kind": kind} for kind in ENDS])
        q.run(render, retry=Retry(max_attempts=3, base_s=0.01, max_s=0.02))


def _serve() -> None:
    """Forks for each line, a task and its arguments; answers with its exit code and word."""
    for name in ("httpx", "anyio._backends._asyncio", "vqkit.store.migrations"):
        import_module(name)  # what a child would load anew each time
    while line := sys.stdin.readline():
        arguments = json.loads(line)
        told, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(told)
                signal.alarm(CHILD_S)
                word = TASKS[arguments.pop("task")](**arguments)
                os.write(tell, json.dumps(word).encode())
                code = 0
            except BaseException:  # noqa: BLE001 - told in the log, and by the exit code
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.close(tell)
        with open(told, encoding="utf-8") as pipe:  # noqa: PTH123 - a descriptor
            text = pipe.read()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        sys.stdout.write(json.dumps([code, json.loads(text or "null")]) + "\n")
        sys.stdout.flush()


TASKS: dict[str, Callable[..., Any]] = {
    "serve": _serve,
    "work": _work,
    "cancel": _cancel,
    "durable": _durable,
    "contend": _contend,
    "stale": _stale,
    "ends": _ends,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m vqkit.selftest``: as ``vqkit selftest``; with ``--child`` it is a child."""
    parser = argparse.ArgumentParser(prog="vqkit.selftest", description="Proves vqkit, here")
    parser.add_argument("--report", help="a folder for the report")
    parser.add_argument("--full", action="store_true", help="all crashes, in a few minutes")
    parser.add_argument("--quick", action="store_true", help="a part of them; so without a word")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        task = json.loads(options.child)
        TASKS[task.pop("task")](**task)
        return 0
    return main_report(options.report, not options.full, options.seed)


class _CallableModule(types.ModuleType):
    """``vqkit.selftest`` is this module once anybody imports it, and is called all the same."""

    def __call__(self, *args: Any, **settings: Any) -> Report:
        return selftest(*args, **settings)


sys.modules[__name__].__class__ = _CallableModule


if __name__ == "__main__":
    sys.exit(main())
