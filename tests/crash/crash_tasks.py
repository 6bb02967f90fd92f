"""What the children of the crash tests do, forked off by `serve`: handlers and tasks."""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crash_kit import Ledger, until

import vqkit.pump
import vqkit.queue
import vqkit.run
import vqkit.store.migrations
from vqkit import GiveUp, Queue, Retry
from vqkit.providers import local as _local  # noqa: F401 - loaded once, before anything forks
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


def gated_big(job: Any) -> str:
    """Past the gate it makes a file and returns a text, both of some size."""
    LEDGER.write("begin", job)
    while not GATE.exists():
        time.sleep(0.01)
    with job.output(".bin") as path:
        path.write_bytes(os.urandom(job.payload.get("bytes", 1000)))
    LEDGER.write("end", job)
    return "x" * 20_000


async def returns_much(job: Any) -> str:
    """Past the gate it returns a text: a result that is only in memory."""
    LEDGER.write("begin", job)
    while not GATE.exists():
        await asyncio.sleep(0.01)
    LEDGER.write("end", job)
    return "x" * 50_000


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
        *(mixed, clip, noop, gated, gated_thread, gated_big, returns_much, dies_once),
        *(ends_everything, flaky, napping, napping_async),
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
) -> None:
    """Runs the queue to its end, or (`stay`) until it is told to stop by SIGTERM."""
    _bind(ledger, gate)
    if reap_s is not None:
        vqkit.pump.REAP_S = reap_s
    if poll_s is not None:
        vqkit.pump.POLL_S = poll_s
    if reaps:
        _tell_of_reaps()
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
    vqkit.queue.WRITE_TIMEOUT_S = timeout_s
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
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)


TASKS: dict[str, Callable[..., None]] = {
    task.__name__: task for task in (drain, batch, hold_mutex, put_one)
}

if __name__ == "__main__":
    serve()
