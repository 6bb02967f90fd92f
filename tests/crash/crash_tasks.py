"""What the children of the crash tests do, forked off by `serve`: handlers and tasks."""

# ruff: noqa: T201, ASYNC110, ASYNC240 - children speak by print, and wait for files on purpose

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import random
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import anyio._backends._asyncio  # noqa: F401 - loaded once, before anything forks
import httpx  # noqa: F401 - the same
from crash_kit import Ledger, until

import vqkit.pump
import vqkit.queue.held
import vqkit.run
import vqkit.store.migrations
from vqkit import GiveUp, Queue, Retry, policy, renders, strays
from vqkit.errors import PumpError, StoreError
from vqkit.mock import MockAdapter
from vqkit.outputs import OutputFolder
from vqkit.providers import local as _local  # noqa: F401 - loaded once, before anything forks
from vqkit.providers.contract import Capabilities
from vqkit.store.files import WriteMutex
from vqkit.store.sqlite import SqliteStore

QUICK = {"base_s": 0.01, "max_s": 0.05}
LEDGER = Ledger(Path(os.devnull))
GATE = Path(os.devnull)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# -- handlers --------------------------------------------------------------------------------


def mixed(job: Any) -> Any:
    """A job of every kind, by its payload: what one batch can come to."""
    LEDGER.write("begin", job)
    kind = job.payload["kind"]
    if kind == "gives-up":
        raise GiveUp("no use")
    if kind == "fails" or (kind == "retries" and job.attempt == 1):
        raise ValueError("not this time")
    if kind in ("file", "file-retries"):
        job.stage("rendering", 0.5)
        with job.output(".bin") as path:
            path.write_bytes(os.urandom(3000))
            if kind == "file-retries" and job.attempt == 1:
                raise ValueError("in the middle of the file")
    if kind == "two-files":
        for name in (".a", ".b"):
            with job.output(name) as path:
                path.write_bytes(os.urandom(500))
    LEDGER.write("end", job)
    return {"kind": kind}


def clip(job: Any) -> Any:
    """A short render with a file: other bytes each time, so that a second one shows."""
    LEDGER.write("begin", job)
    with job.output(".bin") as path:
        for _ in range(3):
            time.sleep(job.payload.get("nap_s", 0.005))
            with path.open("ab") as file:
                file.write(os.urandom(2000))
    LEDGER.write("end", job)
    return str(path)


async def noop(job: Any) -> int:
    LEDGER.write("begin", job)
    await asyncio.sleep(0)
    LEDGER.write("end", job)
    return int(job.number)


async def gated(job: Any) -> int:
    """Is at work until the gate is opened."""
    LEDGER.write("begin", job)
    while not GATE.exists():
        await asyncio.sleep(0.01)
    LEDGER.write("end", job)
    return int(job.number)


def gated_thread(job: Any) -> int:
    LEDGER.write("begin", job)
    while not GATE.exists():
        time.sleep(0.01)
    LEDGER.write("end", job)
    return int(job.number)


async def returns_much(job: Any) -> str:
    """Past the gate it returns a text: a result that is only in memory."""
    LEDGER.write("begin", job)
    while not GATE.exists():
        await asyncio.sleep(0.01)
    LEDGER.write("end", job)
    return "x" * 50_000


def file_then_gate(job: Any) -> str:
    """Has made its file before the gate; past it there is only the finishing to do."""
    with job.output(".bin") as path:
        path.write_bytes(os.urandom(50_000))
    LEDGER.write("begin", job)
    while not GATE.exists():
        time.sleep(0.01)
    LEDGER.write("end", job)
    return str(path)


async def async_file(job: Any) -> str:
    LEDGER.write("begin", job)
    with job.output(".bin") as path:
        path.write_bytes(os.urandom(3000))
    LEDGER.write("end", job)
    return str(path)


def dies_once(job: Any) -> str:
    """Takes its worker process with it, the first time."""
    LEDGER.write("begin", job)
    marker = Path(f"{LEDGER.path}.died-{job.number}")
    if job.payload.get("poison") == "once" and not marker.exists():
        marker.touch()
        die()
    if job.payload.get("poison") == "always":
        die()
    LEDGER.write("end", job)
    return "alive"


def ends_everything(job: Any) -> str:
    """Takes the whole process with it, each time."""
    LEDGER.write("begin", job)
    if job.payload.get("poison"):
        os._exit(9)
    LEDGER.write("end", job)
    return "alive"


def flaky(job: Any) -> str:
    LEDGER.write("begin", job)
    kind = job.payload["kind"]
    if kind == "gives-up":
        raise GiveUp("no use")
    if kind == "never" or job.attempt < 3:
        raise ValueError(f"try {job.attempt}")
    LEDGER.write("end", job)
    return "at last"


def napping(job: Any) -> str:
    LEDGER.write("begin", job)
    time.sleep(job.payload["nap_s"])
    LEDGER.write("end", job)
    return "woke"


async def napping_async(job: Any) -> str:
    LEDGER.write("begin", job)
    await asyncio.sleep(job.payload["nap_s"])
    LEDGER.write("end", job)
    return "woke"


HANDLERS: dict[str, Callable[..., Any]] = {
    handler.__name__: handler
    for handler in (
        *(mixed, clip, noop, gated, gated_thread, returns_much, file_then_gate),
        *(dies_once, ends_everything, flaky, napping, napping_async),
    )
}


def _bind(ledger: str | None, gate: str | None = None) -> None:
    global LEDGER, GATE
    if ledger is not None:
        LEDGER = Ledger(Path(ledger))
    if gate is not None:
        GATE = Path(gate)


# -- tasks -----------------------------------------------------------------------------------


def drain(
    db: str,
    ledger: str,
    handler: str,
    *,
    executor: str = "auto",
    retry: dict[str, Any] | None = None,
    gate: str | None = None,
    reap_s: float | None = None,
    poll_s: float | None = None,
    also: tuple[str, ...] = (),
    reaps: bool = False,
    stay: bool = False,
    check: bool = False,
    say_trouble: bool = False,
    lose_answers: int = 0,
    full_s: float | None = None,
    limit: str | None = None,
) -> None:
    """Runs the queue to its end, or (`stay`) until it is told to stop by SIGTERM."""
    _bind(ledger, gate)
    if reap_s is not None:
        vqkit.pump.REAP_S = reap_s
    if poll_s is not None:
        vqkit.pump.POLL_S = poll_s
    if reaps:
        _tell_of_reaps()
    if full_s is not None:
        vqkit.pump.FULL_S = full_s
    if limit is not None:
        threading.Thread(target=_limit_files, args=(db, limit), daemon=True).start()
    if lose_answers:
        _lose_answers(lose_answers)
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    q = Queue(db)
    for name in also:
        q.provider(name, HANDLERS[name])
    chosen: Any = executor
    run = q.start(HANDLERS[handler], executor=chosen, retry=Retry(**(retry or QUICK)))
    if stay:
        while not told.wait(0.05) and run.is_running:
            pass
    elif say_trouble:
        while run.is_running and (run.following or q.stats()["queued"]):
            print(run.health.trouble or "well", f"({run.following} followed)")
            run.wait(0.05)
    else:
        summary = run.wait()
        print(summary)
        if check:
            summary.check()
    run.stop(grace_s=None)
    q.close()


def _tell_of_reaps() -> None:
    plain = vqkit.pump.Pump._reap

    def told(self: Any, store: Any) -> bool:
        result = plain(self, store)
        with LEDGER.path.open("a") as file:
            file.write(f"reap 0 {os.getpid()} 0 0 {time.time_ns() // 1_000_000}\n")
        return result

    vqkit.pump.Pump._reap = told  # type: ignore[method-assign]


def _lose_answers(every: int) -> None:
    """Says of each n-th commit that it failed. Of these every other one was made all the same."""
    plain = SqliteStore._commit
    count = 0

    def commit(self: Any) -> None:
        nonlocal count
        count += 1
        if count % (2 * every) == 0:
            self._conn.execute("ROLLBACK")
        else:
            plain(self)
        if count % every == 0:
            raise StoreError("the answer was lost", is_unknown=True)

    SqliteStore._commit = commit  # type: ignore[method-assign]


def _limit_files(db: str, word: str) -> None:
    """Lets no file grow, from the first word until the second."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    until(Path(word + ".on").exists, "the limit to be wanted")
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.stat(db + "-wal").st_size, most))
    Path(word + ".set").touch()
    until(Path(word + ".off").exists, "the limit to be lifted")
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def leave(db: str, ledger: str, handler: str, executor: str, gate: str, leaving: str) -> None:
    """The script ends while its jobs are at work."""
    _bind(ledger, gate)
    q = Queue(db)
    chosen: Any = executor
    q.start(HANDLERS[handler], executor=chosen)
    until(lambda: len(LEDGER.lines("begin")) >= 2, "the jobs to be at work")
    Path(leaving).write_text(str(time.time()))


class Interrupts:
    """SIGINT at a random moment of a call, at most one a call."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.is_armed = False
        self.sent_s = 0.0
        self.longest_s = 0.0
        self.count = 0
        self._wanted: SimpleQueue[float] = SimpleQueue()
        signal.signal(signal.SIGINT, self._raise)
        threading.Thread(target=self._send, daemon=True).start()

    def _raise(self, *_: object) -> None:
        if self.is_armed:
            self.is_armed = False
            raise KeyboardInterrupt

    def _send(self) -> None:
        while True:
            time.sleep(self._wanted.get())
            self.sent_s = time.monotonic()
            os.kill(os.getpid(), signal.SIGINT)

    def during(self, function: Callable[[], object], within_s: float) -> bool:
        """Calls it. True if it came to its end uninterrupted."""
        self._wanted.put(self.rng.uniform(0, within_s))
        try:
            self.is_armed = True
            function()
            self.is_armed = False
            return True
        except KeyboardInterrupt:
            self.count += 1
            self.longest_s = max(self.longest_s, time.monotonic() - self.sent_s)
            return False


def interrupts(db: str, ledger: str, seed: int, told: str) -> None:
    """Every way to put work in and to wait for it, interrupted at random moments."""
    _bind(ledger)
    with Queue(db) as q:
        at = Interrupts(seed)
        for i in range(40):
            rows = [{"prompt": f"{i} {j}"} for j in range(5)]
            while not at.during(lambda rows=rows: q.put_many(rows), 0.004):  # type: ignore[misc]
                pass
        q.accounts.add("a", provider="noop", capacity=3)
        for _ in range(25):
            at.during(lambda: q.run(noop), 0.03)
        for i in range(25):
            q.put_many([{"prompt": f"more {i} {j}"} for j in range(5)])
            run = q.start(noop)
            at.during(run.wait, 0.03)
            at.during(lambda run=run: run.stop(0.5), 0.01)  # type: ignore[misc]
        at.is_armed = False
        until(lambda: sum(t.name == "vqkit-pump" for t in threading.enumerate()) <= 1, "pumps", 5)
        q.run(noop).check()
        Path(told).write_text(json.dumps({"count": at.count, "longest_s": at.longest_s}))


def asked_while_finishing(db: str, ledger: str, gate: str, what: str) -> None:
    """Is told to stop, or to cancel, between a handler's return and its files' last rename."""
    _bind(ledger, gate)
    plain = OutputFolder.finish
    at_it = threading.Event()

    def slow(*args: Any) -> Any:
        at_it.set()
        until(GATE.exists, "the gate")
        return plain(*args)

    OutputFolder.finish = slow  # type: ignore[method-assign]
    with Queue(db) as q:
        run = q.start(async_file)
        at_it.wait()
        if what == "stop":
            run.stop(grace_s=0.0)
        else:
            q.cancel(1)
            until(lambda: q.events(job=1)[-1].type == "job.cancel_requested", "the wish")
            until(lambda: next(iter(run._pump._flights.values())).is_cancelled, "to be heard")
        GATE.touch()
        run.stop(grace_s=None)


def interrupted_then_closed(db: str, ledger: str, gate: str) -> None:
    """q.run() is interrupted with a job at work, called again, and the queue closed after it."""
    _bind(ledger, gate)
    q = Queue(db)
    at = Interrupts(1)

    def interrupt_at_work() -> None:
        until(lambda: len(LEDGER.lines("begin")) == 2, "the jobs to be at work")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt_at_work).start()
    try:
        at.is_armed = True
        q.run(gated_thread)
    except KeyboardInterrupt as interrupt:
        print(interrupt)
    threading.Timer(0.3, GATE.touch).start()
    q.start(gated_thread)
    q.close()


def _too_long(*_: object) -> None:
    raise RuntimeError("it hangs")


def forked(db: str, ledger: str, gate: str, told: str, opens: bool = False) -> None:
    """A cell that forks while a run is at work; the child tries the queue it has inherited."""
    _bind(ledger, gate)
    q = Queue(db)
    run = q.start(gated)
    until(lambda: len(LEDGER.lines("begin")) >= 2, "the jobs to be at work")
    pid = os.fork()
    if pid == 0:
        said: dict[str, Any] = {}
        tries: dict[str, Callable[[], object]] = {
            "put": lambda: q.put({"prompt": "child"}),
            "stats": q.stats,
            "run": lambda: q.run(gated),
        }
        if opens:
            tries["open"] = lambda: Queue(db)
            signal.signal(signal.SIGALRM, _too_long)
            signal.alarm(3)
        for name, function in tries.items():
            began = time.monotonic()
            try:
                said[name] = repr(function())
            except Exception as error:  # noqa: BLE001 - told to the test
                said[name] = f"{type(error).__name__}: {error}"
            said[f"{name}_s"] = time.monotonic() - began
        Path(told).write_text(json.dumps({"pid": os.getpid(), **said}))
        time.sleep(60)  # it lives on
        os._exit(0)
    until(Path(told).exists, "the child's word")
    if GATE.exists():
        run.wait().check()
        q.close()
    os._exit(0)


def pump_fails(db: str, ledger: str, gate: str) -> None:
    """A pump dies of a fault in the middle of its work; the next one in this process goes on."""
    _bind(ledger, gate)
    q = Queue(db)
    plain = vqkit.pump.Pump._rest

    async def broken(self: Any, next_ms: int | None) -> None:
        if len(LEDGER.lines("begin")) == 2:
            raise RuntimeError("a fault")
        await asyncio.sleep(0.01)

    vqkit.pump.Pump._rest = broken  # type: ignore[method-assign]
    try:
        q.run(gated)
    except PumpError as error:
        print("failed:", error)
    vqkit.pump.Pump._rest = plain  # type: ignore[method-assign]
    q.run(gated).check()
    q.close()


BATCH = ("file", "retries", "gives-up", "two-files", "fails", "file-retries", "plain")


def batch(db: str, ledger: str, die_at: int | None = None, count: str | None = None) -> None:
    """From nothing to the end, with a death at the n-th write; `count` is told how many."""
    _bind(ledger)
    vqkit.run.LOOK_S = 0.002  # hundreds of these follow each other
    seen = _die_at(die_at)
    with Queue(db) as q:
        q.accounts.add("a", provider="mixed", capacity=2)
        q.accounts.add("b", provider="mixed", capacity=1)
        q.put_many([{"kind": kind} for kind in BATCH], max_attempts=2)
        q.run(mixed, retry=Retry(max_attempts=2, **QUICK))
    if count is not None:
        Path(count).write_text(json.dumps(seen))
    os._exit(0)  # the queue is closed; what the interpreter does then takes most of the time


def load(db: str, sheet: str) -> None:
    """Loads a sheet and leaves; meant to be killed on the way."""
    with Queue(db) as q:
        print(q.load(sheet))


def _die_at(n: int | None) -> list[str]:
    """Counts every write to the disk, before it and after it, and ends the process at the n-th."""
    seen: list[str] = []
    lock = threading.Lock()

    def point(name: str) -> None:
        with lock:
            seen.append(name)
            if len(seen) == n:
                die()

    def around(owner: Any, name: str) -> None:
        plain = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            point(f"before {name}")
            result = plain(*args, **kwargs)
            point(f"after {name}")
            return result

        setattr(owner, name, wrapped)

    for owner, name in (
        *((SqliteStore, "_commit"), (SqliteStore, "_prepare"), (SqliteStore, "_checkpoint")),
        *((WriteMutex, "_open"), (os, "replace"), (os, "unlink"), (os, "fsync")),
    ):
        around(owner, name)
    return seen


def storm(
    db: str,
    url: str,
    can: Any,
    capacity: dict[str, int],
    keys: dict[str, list[str]],
    generations: str,
    prompts: list[dict[str, Any]],
) -> None:
    """Renders at a provider until nothing is left that can be done without a person.

    `generations` is a file that says which of an account's `keys` is the one to use now.
    """
    vqkit.run.LOOK_S, vqkit.pump.POLL_S = 0.005, 0.1
    renders.LOOK_S, renders.POLL_S, renders.REST_S = 0.02, (0.02, 0.2), 0.3
    strays.AGAIN_S, policy.LEARNED_RISE_MS = (0.05, 0.5), 500
    policy.FULL_S, policy.NOT_SENT_S, policy.RATE_S = 0.2, 0.2, 0.4

    def look() -> None:
        for name, generation in json.loads(Path(generations).read_text()).items():
            os.environ[f"STORM_{name}"] = keys[name][generation - 1]

    def keep_looking() -> None:
        while True:
            time.sleep(0.02)
            look()

    look()
    threading.Thread(target=keep_looking, daemon=True).start()
    with Queue(db) as q:
        for name, most in capacity.items():
            q.accounts.add(
                name, provider="mock", capacity=most, credential=f"env:STORM_{name}", price=0.25
            )
        q.provider("mock", MockAdapter(url, Capabilities(**can), timeout_s=5.0))
        q.put_many(prompts)
        q.run(retry=Retry(max_attempts=4, **QUICK))
    os._exit(0)


def hold_mutex(db: str, ready: str) -> None:
    """Stops itself inside a write transaction; when continued, commits and ends."""
    store = SqliteStore(db)
    with store.transaction():
        store._write_setting("held", True)
        Path(ready).touch()
        os.kill(os.getpid(), signal.SIGSTOP)
    store.close()


def put_one(db: str, timeout_s: float, told: str) -> None:
    """Puts a job, and writes down what became of that."""
    vqkit.queue.held.WRITE_TIMEOUT_S = timeout_s
    began = time.monotonic()
    try:
        q = Queue(db)
        Path(told + ".open").touch()
        until(lambda: Path(told + ".go").exists(), "the word to go")
        began = time.monotonic()
        q.put({"prompt": "late"})
        what = "put"
    except Exception as error:  # noqa: BLE001 - told to the test
        what = f"{type(error).__name__}: {error}"
    Path(told).write_text(json.dumps({"what": what, "seconds": time.monotonic() - began}))


def serve() -> None:
    """Forks for each line ``[task, log, arguments]``, and writes down how the forks ended."""
    logs: dict[int, str] = {}
    while True:
        ready, _, _ = select.select([sys.stdin], [], [], 0.002 if logs else None)
        while logs and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            told = Path(logs.pop(pid)).with_suffix(".code")
            told.with_suffix(".new").write_text(str(os.waitstatus_to_exitcode(status)))
            told.with_suffix(".new").replace(told)
        if not ready:
            continue
        line = sys.stdin.readline()
        if not line:
            return
        task, log, args = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become(log)
            TASKS[task](**args)
            return  # a plain end, with all that the interpreter does then
        logs[pid] = log
        print(pid, flush=True)


def _become(log: str) -> None:
    os.setsid()
    os.environ["CRASH_TEST_CHILD"] = log  # what it starts is known by this
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)


TASKS: dict[str, Callable[..., None]] = {
    task.__name__: task
    for task in (
        *(drain, batch, load, storm, hold_mutex, put_one, pump_fails, leave, interrupts),
        *(interrupted_then_closed, forked, asked_while_finishing),
    )
}

if __name__ == "__main__":
    serve()
