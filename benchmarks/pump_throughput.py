"""How many jobs a second the pump hands out and settles, and whether a kernel feels it.

    python benchmarks/pump_throughput.py [--jobs 10000] [--accounts 4] [--capacity 64]

No-op coroutines, synchronous=FULL, a pump on its own thread; beside it a loop such as a
kernel's, whose longest gap is the longest time a user would have to wait for it. The same
rows are then written by a bare sqlite3 loop, in transactions of as many jobs: compare the
ratio, not the numbers, with those of another machine.
"""

# ruff: noqa: T201 - printing is what a benchmark is for
from __future__ import annotations

import argparse
import asyncio
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Any

from vqkit import Queue

BEAT_S = 0.01
IDLE_S = 2.0


async def noop(job: Any) -> None:
    """Does nothing: all that is measured is ours."""


async def heartbeat(gaps: list[float]) -> None:
    """Notes how much later than asked this loop came to its turn."""
    before = time.perf_counter()
    while True:
        await asyncio.sleep(BEAT_S)
        now = time.perf_counter()
        gaps.append(now - before - BEAT_S)
        before = now


async def pumped(q: Queue) -> tuple[float, list[float], list[float]]:
    """Seconds until the queue is at rest, and the gaps of this loop before and meanwhile."""
    idle: list[float] = []
    beating = asyncio.create_task(heartbeat(idle))
    await asyncio.sleep(IDLE_S)
    beating.cancel()
    gaps: list[float] = []
    beating = asyncio.create_task(heartbeat(gaps))
    run = q.start()
    await run
    beating.cancel()
    run.stop()
    # `await run` looks every 0.05 s; when the first job began and the last ended is on record.
    jobs = q.jobs()
    first_ms = min(job.started_ms or 0 for job in jobs)
    return (max(job.finished_ms or 0 for job in jobs) - first_ms) / 1000, idle, gaps


def bare(path: Path, jobs: int, at_once: int) -> float:
    """Seconds of a plain loop that claims and settles as many rows, and keeps no rule at all."""
    conn = sqlite3.connect(path, isolation_level=None)
    conn.execute("PRAGMA journal_mode = WAL")
    conn.execute("PRAGMA synchronous = FULL")
    conn.execute("CREATE TABLE jobs (number INTEGER PRIMARY KEY, payload, status, account, fence)")
    conn.execute("CREATE INDEX waiting ON jobs (number) WHERE status = 'queued'")
    conn.execute("CREATE TABLE attempts (job, fence, outcome, PRIMARY KEY (job, fence))")
    conn.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, type, job, at_ms, data)")
    conn.execute("BEGIN")
    rows = [(n, '{"n":0}', "queued") for n in range(jobs)]
    conn.executemany("INSERT INTO jobs (number, payload, status) VALUES (?, ?, ?)", rows)
    conn.execute("COMMIT")
    begun = time.perf_counter()
    running: list[tuple[int]] = []
    while True:
        conn.execute("BEGIN IMMEDIATE")
        event = "INSERT INTO events (type, job, at_ms, data) VALUES (?, ?, ?, '{}')"
        for (number,) in running:
            conn.execute("UPDATE jobs SET status = 'completed' WHERE number = ?", (number,))
            conn.execute("UPDATE attempts SET outcome = 'completed' WHERE job = ?", (number,))
            conn.execute(event, ("job.completed", number, 0))
        sql = "SELECT number FROM jobs WHERE status = 'queued' ORDER BY number LIMIT ?"
        running = conn.execute(sql, (at_once,)).fetchall()
        for (number,) in running:
            sql = "UPDATE jobs SET status = 'running', account = 'a', fence = 1 WHERE number = ?"
            conn.execute(sql, (number,))
            conn.execute("INSERT INTO attempts (job, fence) VALUES (?, 1)", (number,))
            conn.execute(event, ("job.started", number, 0))
        conn.execute("COMMIT")
        if not running:
            break
    seconds = time.perf_counter() - begun
    conn.close()
    return seconds


def main() -> None:
    """Prints what was measured; asserts nothing about time."""
    options = argparse.ArgumentParser()
    options.add_argument("--jobs", type=int, default=10_000)
    options.add_argument("--accounts", type=int, default=4)
    options.add_argument("--capacity", type=int, default=64)
    options.add_argument("--folder", help="where the database is made; default: a temporary one")
    given = options.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=given.folder) as folder,
        Queue(Path(folder) / "q.db") as q,
    ):
        q.provider("noop", noop)
        for n in range(given.accounts):
            q.accounts.add(f"account-{n}", provider="noop", capacity=given.capacity)
        q.put_many([{"n": n} for n in range(given.jobs)])
        cpu = time.process_time()
        seconds, idle, gaps = asyncio.run(pumped(q))
        cpu = time.process_time() - cpu
        assert q.stats()["completed"] == given.jobs
        plain_cpu = time.process_time()
        plain = bare(Path(folder) / "bare.db", given.jobs, given.accounts * given.capacity)
        plain_cpu = time.process_time() - plain_cpu
    print(f"pump: {given.jobs / seconds:,.0f} jobs/s ({given.jobs:,} in {seconds:.2f} s)")
    print(f"bare sqlite3 loop, same rows: {given.jobs / plain:,.0f} jobs/s ({plain:.2f} s)")
    print(
        f"ratio: the pump takes {seconds / plain:.1f} times as long, and"
        f" {cpu / plain_cpu:.1f} times the processor's time ({cpu:.2f} s, {plain_cpu:.2f} s)"
    )
    print(
        f"largest gap of the kernel's loop: {max(gaps) * 1000:.1f} ms"
        f" (with nothing at work: {max(idle) * 1000:.1f} ms)"
    )


if __name__ == "__main__":
    main()
