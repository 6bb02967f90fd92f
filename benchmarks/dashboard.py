"""What a dashboard costs beside a million jobs: CPU, the kernel's loop, messages, memory.

    python benchmarks/dashboard.py [--jobs 1000000] [--per-second 10] [--seconds 300] [--times 1]

A kernel is started, as a front end would; pandas is loaded into it, as usual. In it a queue with
so many jobs settles ten a second, for a while without and then with a live dashboard. Told are:

* the CPU time of the dashboard's threads as a share of a core;
* the longest gaps of the kernel's loop both ways, and whose doing they are. `the dashboard's` had
  more than 20 ms of computing by its threads in them: its own, or a garbage collection that
  happened to begin there. Of those `a collection's` are the ones that last no 20 ms without it.
  The others are the pump, and other programs on this machine: where there are more of them than
  cores, whoever holds the interpreter is made to wait with it. Compare with `without`;
* garbage collections. A full one stops the whole kernel, 0.3 to 0.8 us for each object there is,
  and comes when a quarter as many objects as there are have `outlived` the partial ones. That is
  rarely in a run of minutes, so it is told how often one is due. Each phase begins after one;
* the same of the first 20 seconds, which are in no other number: matplotlib is loaded in them;
* the messages and bytes a front end gets;
* how memory grows in an hour at this rate: pages (RSS), and what Python has in use (`blocks`, of
  some 100 bytes each, garbage not among them), which no allocator's habits blur. Pages are told
  by the second half of a run. Both need 600 s: a few hundred kB, which fragments take once, are
  many MB an hour in 60 s.

With ``--times 10`` everything is refreshed ten times as often: an hour of the dashboard's memory
in six minutes, the pump's at its own pace (so what is told of an hour is a tenth of that).
"""

# ruff: noqa: T201 - printing is what a benchmark is for
from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sqlite3
import sys
import tempfile
import threading
import time
from array import array
from bisect import bisect_left
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any

BEAT_S = 0.005
BIN_MS, BINS = 0.1, 5000
LATE_MS = 20.0
WARM_S = 20.0


def make(path: Path, jobs: int) -> None:
    """A queue of so many jobs, half of them completed: copies of one that really ran."""
    from vqkit import Queue

    with Queue(path) as q:
        q.accounts.add("studio", provider="studio", capacity=10)
        q.provider("studio", lambda job: 1)
        q.put({"prompt": "a fox in the snow, 35 mm, warm light", "n": 1})
        q.run()
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA synchronous = OFF")
    names = [row[1] for row in db.execute("PRAGMA table_info(jobs)")]
    done = {"number": "n", "id": "'j' || n", "key": "NULL"}
    waits = done | {
        **{"status": "'queued'", "stage": "NULL", "attempt": "0", "fence": "0", "account": "NULL"},
        **{"result": "NULL", "started_ms": "NULL", "finished_ms": "NULL"},
    }
    half = jobs // 2
    for values, first, last in ((done, 2, half), (waits, half + 1, jobs)):
        columns = ", ".join(values.get(name, f"j.{name}") for name in names)
        db.execute("BEGIN")
        for start in range(first, last + 1, 50_000):
            rows = [(n,) for n in range(start, min(last, start + 49_999) + 1)]
            db.execute("CREATE TEMP TABLE IF NOT EXISTS numbers (n INTEGER PRIMARY KEY)")
            db.execute("DELETE FROM numbers")
            db.executemany("INSERT INTO numbers VALUES (?)", rows)
            db.execute(
                f"INSERT INTO jobs ({', '.join(names)}) SELECT {columns}"
                " FROM numbers, (SELECT * FROM jobs WHERE number = 1) AS j"
            )
        db.execute("COMMIT")
    events = "type, job, at_ms, level, fence, data"
    db.execute(
        f"INSERT INTO events ({events}) SELECT e.type, j.number, e.at_ms, e.level, e.fence, e.data"
        f" FROM jobs j, events e WHERE e.job = 1 AND j.number BETWEEN 2 AND {half}"
    )
    for status, n in (("completed", half), ("queued", jobs - half)):
        db.execute("INSERT OR REPLACE INTO counts VALUES ('batch', '', ?, ?)", (status, n))
    db.execute("UPDATE counts SET n = ? WHERE kind = 'account' AND status = 'completed'", (half,))
    db.close()


def threads_cpu_s() -> dict[str, float]:
    """CPU seconds of the threads a dashboard works on, each since it began."""
    names = ("vqkit-dashboard", "vqkit-reader", "vqkit-wishes")
    return {
        t.name: time.clock_gettime(time.pthread_getcpuclockid(t.ident))
        for t in threading.enumerate()
        if t.name in names and t.ident
    }


def rss_mb() -> float:
    """Memory in use now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Collections:
    """What the garbage collector does, from when it is made until `close`; holds few objects."""

    def __init__(self) -> None:
        self.began_s, self.took_ms = array("d"), {0: array("f"), 1: array("f"), 2: array("f")}
        self.outlived = 0  # objects that partial collections have handed to the full ones
        self.threads: list[str] = []  # on which there was a full one
        self._ended_s = array("d")
        gc.callbacks.append(self._hear)

    def _hear(self, phase: str, about: dict[str, int]) -> None:
        now_s, generation = time.perf_counter(), about["generation"]
        if phase == "start":
            self.began_s.append(now_s)
            if generation == 1:
                self.outlived += sum(len(gc.get_objects(generation=n)) for n in (0, 1))
            return
        self._ended_s.append(now_s)
        self.took_ms[generation].append((now_s - self.began_s[-1]) * 1000)
        if generation == 1:
            self.outlived -= about["collected"]
        elif generation == 2:
            self.threads.append(threading.current_thread().name)

    def within_ms(self, since_s: float, until_s: float) -> float:
        """How much of this time was taken by collections of any generation."""
        took_s = 0.0
        for i in reversed(range(len(self.began_s))):
            # The last one may have ended on another thread that has not come to say so.
            ended_s = self._ended_s[i] if i < len(self._ended_s) else until_s
            if ended_s < since_s:
                break
            took_s += max(0.0, min(ended_s, until_s) - max(self.began_s[i], since_s))
        return took_s * 1000

    def close(self) -> None:
        """Hears of no more."""
        gc.callbacks.remove(self._hear)

    def told(self, seconds: float) -> dict[str, Any]:
        """The numbers of so many seconds, and how many objects there are now."""
        full, partial = self.took_ms[2], self.took_ms[0] + self.took_ms[1]
        objects = len(gc.get_objects())
        return {
            "full": len(full),
            "longest full one, ms": round(max(full, default=0), 1),
            "on threads": sorted(self.threads),
            "partial": len(partial),
            "longest partial one, ms": round(max(partial, default=0), 1),
            "outlived, objects a minute": round(60 * self.outlived / seconds),
            "objects": objects,
            "so a full one every so many minutes": (
                round(objects / 4 / self.outlived * seconds / 60, 1) if self.outlived else None
            ),
        }


class Gaps:
    """How much later than asked the kernel's loop came to its turn, in ms.

    In a room that does not grow, for memory is measured too: 9 MB an hour were once its own.
    `over` holds the few that matter: how late; how much of that the dashboard's threads were
    computing, the most they can have held the loop up; how much a garbage collection took.
    """

    def __init__(self) -> None:
        self.bins = array("L", [0]) * BINS
        self.over: list[tuple[float, float, float]] = []
        self.longest = self.longest_ours = 0.0

    async def beat(self, collections: Collections) -> None:
        """Takes a turn every few ms, until it is cancelled."""
        before_s, before_cpu = time.perf_counter(), sum(threads_cpu_s().values())
        while True:
            await asyncio.sleep(BEAT_S)
            now_s, cpu = time.perf_counter(), sum(threads_cpu_s().values())
            late = (now_s - before_s - BEAT_S) * 1000
            ours = max(0.0, min(late, (cpu - before_cpu) * 1000))
            self.bins[min(BINS - 1, int(late / BIN_MS))] += 1
            self.longest, self.longest_ours = max(self.longest, late), max(self.longest_ours, ours)
            if late > LATE_MS:
                self.over.append((late, ours, collections.within_ms(before_s, now_s)))
            before_s, before_cpu = now_s, cpu

    def told(self) -> dict[str, Any]:
        """The numbers."""
        ours = [(mine, collected) for _, mine, collected in self.over if mine > LATE_MS]
        upto = list(accumulate(self.bins))
        return {
            "longest": round(self.longest, 1),
            "99.9 %": round(BIN_MS * (1 + bisect_left(upto, upto[-1] * 0.999)), 1),
            "over 20": len(self.over),
            "of": upto[-1],
            "a collection's": sum(late - ms <= LATE_MS for late, _, ms in self.over),
            "longest of the dashboard": round(self.longest_ours, 1),
            "the dashboard's": len(ours),
            "of those a collection's": sum(mine - ms <= LATE_MS for mine, ms in ours),
        }


def hurry(times: float) -> None:
    """Lets a dashboard do everything so many times as often."""
    from vqkit.notebook import board
    from vqkit.notebook import dashboard as module

    module.TICK_S /= times
    module.STILL_S /= times
    module.COPY_S /= times
    module.PLOTS_SHARE /= times
    module.PLOTS_S = (module.PLOTS_S[0] / times, module.PLOTS_S[0] / times)
    board.PACE_S = {name: (low / times, low / times) for name, (low, _) in board.PACE_S.items()}


async def measure(path: str, per_second: int, seconds: float, times: float) -> dict[str, Any]:
    """In the kernel: as many jobs a second, first without and then with a dashboard."""
    from vqkit import Queue

    async def render(job: Any) -> int:
        await asyncio.sleep(1.6)
        return 1

    hurry(times)
    import_module("pandas")  # half of what a kernel holds, and its collector goes through
    q = Queue(path)
    q.accounts.add("studio", provider="studio", capacity=2 * per_second)
    q.provider("studio", render)
    q.start()
    found: dict[str, Any] = {}
    for name in ("without", "with"):
        if name == "with":
            began = time.perf_counter()
            q.dashboard(live=True)
            found["first look, ms"] = round((time.perf_counter() - began) * 1000)
        starting, started = Gaps(), Collections()
        beating = asyncio.create_task(starting.beat(started))
        await asyncio.sleep(WARM_S)
        beating.cancel()
        started.close()
        gc.collect()  # or garbage that waits for a full one would be taken for growth
        blocks = sys.getallocatedblocks()
        gaps, collections = Gaps(), Collections()
        memory: list[tuple[float, float]] = []
        cpu, at_s, done = threads_cpu_s(), time.perf_counter(), q.stats()["completed"]
        beating = asyncio.create_task(gaps.beat(collections))
        while (passed_s := time.perf_counter() - at_s) < seconds:
            await asyncio.sleep(2)
            memory.append((passed_s, rss_mb()))
        beating.cancel()
        collections.close()
        used = {
            k: round(100 * (v - cpu.get(k, 0)) / passed_s, 2) for k, v in threads_cpu_s().items()
        }
        gc.collect()
        blocks = sys.getallocatedblocks() - blocks
        an_hour = 3600 / times
        settled = memory[len(memory) // 2 :]
        found[name] = {
            f"the first {WARM_S:.0f} s": {**starting.told(), "full collections": started.threads},
            "settled a second": round((q.stats()["completed"] - done) / passed_s, 1),
            "CPU, % of a core": used,
            "loop's gaps, ms": gaps.told(),
            "garbage collections": collections.told(passed_s),
            "memory, MB": [round(memory[0][1], 1), round(memory[-1][1], 1)],
            "memory, MB an hour, second half": round(an_hour * _slope(settled), 1),
            "blocks an hour": round(an_hour * blocks / passed_s),
        }
    q.close()
    return found


def _slope(points: list[tuple[float, float]]) -> float:
    """Least squares: MB a second."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread


def watch(path: Path, per_second: int, seconds: float, times: float) -> None:
    """Starts the kernel, has it measure, and counts what a front end would get."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(cwd=str(Path(__file__).parent))
    messages = size = 0
    code = (
        "import dashboard, json\n"
        f"found = await dashboard.measure({str(path)!r}, {per_second}, {seconds}, {times})\n"
        "print('FOUND', json.dumps(found))"
    )
    try:
        asked = client.execute(code)
        while True:
            message = client.get_iopub_msg(timeout=120 + 3 * seconds)
            content = message["content"]
            if message["msg_type"] in ("comm_msg", "update_display_data"):
                messages += 1
                size += len(json.dumps(content))
            if message["msg_type"] == "error":
                sys.exit("\n".join(content["traceback"]))
            if message["msg_type"] == "stream" and content["text"].startswith("FOUND "):
                print(json.dumps(json.loads(content["text"][6:]), indent=2))
            if (
                message["msg_type"] == "status"
                and content["execution_state"] == "idle"
                and message["parent_header"].get("msg_id") == asked
            ):
                break
        shown_s = WARM_S + seconds
        print(f"{messages / shown_s:.2f} messages and {size / shown_s / 1024:.1f} KiB a second")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def main() -> None:
    """Makes the queue, unless a file is given that is there, and measures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--per-second", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--times", type=float, default=1, help="refresh so many times as often")
    parser.add_argument("--db", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vqkit-bench-") as folder:
        path = given.db or Path(folder) / "million.db"
        if not path.exists():
            began = time.perf_counter()
            make(path, given.jobs)
            print(f"{given.jobs:,} jobs made in {time.perf_counter() - began:.0f} s")
        watch(path.absolute(), given.per_second, given.seconds, given.times)


if __name__ == "__main__":
    main()
