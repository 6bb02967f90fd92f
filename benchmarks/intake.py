"""How long a sheet takes to become jobs, beside reading it and doing nothing, and what it holds.

    python benchmarks/intake.py [--xlsx-rows 100000] [--csv-rows 1000000] [--words 12]

The same rows are iterated with openpyxl's read-only mode and with ``csv.reader``, in the same
run: compare the ratios, not the seconds. Beside them stands the least that SQLite needs to
store such rows, with every index and event a job has: no way of loading can be faster than
that. Memory is the peak of the process after `load`, less that of one with an empty queue.
"""

# ruff: noqa: T201 - printing is what a benchmark is for
from __future__ import annotations

import argparse
import csv
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import openpyxl

from vqkit import Queue
from vqkit.store.sqlite import SqliteStore

HEADER = ["id", "prompt", "style", "seconds", "note"]
WORDS = ["a", "red", "fox", "trots", "through", "fresh", "snow", "while", "lighthouse", "city"]


def rows(n: int, words: int) -> Iterator[list[str | int]]:
    """Rows such as people have: an id, a prompt of so many words, two short columns, a note."""
    draw = random.Random(1)
    for i in range(n):
        prompt = " ".join(draw.choices(WORDS, k=words))
        yield [i, f"{prompt} {i}", draw.choice(["oil", "photo", "anime"]), 4, "take " + str(i % 7)]


def timed(function: Callable[[], object]) -> tuple[float, float]:
    """Seconds on the clock, and of the processor."""
    clock, cpu = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - clock, time.process_time() - cpu


def read_xlsx(path: Path) -> None:
    """Iterates the sheet as openpyxl does when it is asked for values only."""
    book = openpyxl.load_workbook(path, read_only=True)
    for _ in book.worksheets[0].iter_rows(values_only=True):
        pass
    book.close()


def read_csv(path: Path) -> None:
    """Iterates the file as ``csv.reader`` does."""
    with path.open(newline="", encoding="utf-8") as file:
        for _ in csv.reader(file):
            pass


def load(path: Path, db: Path) -> None:
    """The whole way: read, checked, hashed, stored."""
    with Queue(db) as q:
        q.load(path)


def store_only(db: Path, source: Path) -> float:
    """Seconds that SQLite alone needs for the rows of a queue: jobs, indexes, events."""
    store = SqliteStore(source, readonly=True)
    jobs = store.query("SELECT * FROM jobs")
    names = [row[1] for row in store.query("PRAGMA table_info(jobs)")]
    events = store.query("SELECT * FROM events")
    store.close()
    told = [i for i in range(len(names)) if any(row[i] not in (None, 0, "") for row in jobs[:1000])]
    fresh = SqliteStore(db)
    began = time.perf_counter()
    for start in range(0, len(jobs), 1000):
        with fresh.transaction():
            head = f"INSERT INTO jobs ({', '.join(names[i] for i in told)}) "
            fresh._bulk(head, [[row[i] for i in told] for row in jobs[start : start + 1000]])
            fresh._bulk("INSERT INTO events ", events[start : start + 1000])
    seconds = time.perf_counter() - began
    fresh.close()
    return seconds


def peak_mb(*command: str) -> float:
    """The peak memory of a child that runs this script with `command`, in MB."""
    subprocess.run([sys.executable, __file__, *command], check=True)
    return float(Path(command[-1]).read_text())


def main() -> None:
    """Prints what was measured; asserts nothing about time."""
    options = argparse.ArgumentParser()
    options.add_argument("--xlsx-rows", type=int, default=100_000)
    options.add_argument("--csv-rows", type=int, default=1_000_000)
    options.add_argument("--words", type=int, default=12, help="in a prompt")
    options.add_argument("--peak-of", nargs=3, metavar=("FILE", "DB", "OUT"))
    given = options.parse_args()
    if given.peak_of is not None:
        file, db, out = map(Path, given.peak_of)
        with Queue(db) as q:
            if file.exists():
                q.load(file)
        # Not getrusage: there a child begins with the peak of the process that started it.
        told = Path("/proc/self/status").read_text()
        out.write_text(str(int(told.partition("VmHWM:")[2].split()[0]) / 1024))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if given.xlsx_rows:
            path = folder / "rows.xlsx"
            book = openpyxl.Workbook(write_only=True)
            sheet = book.create_sheet()
            sheet.append(HEADER)
            for row in rows(given.xlsx_rows, given.words):
                sheet.append(row)
            book.save(path)
            measure("xlsx", path, given.xlsx_rows, lambda: read_xlsx(path), folder)
        if given.csv_rows:
            path = folder / "rows.csv"
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(HEADER)
                writer.writerows(rows(given.csv_rows, given.words))
            measure("csv", path, given.csv_rows, lambda: read_csv(path), folder)


def measure(kind: str, path: Path, n: int, read: Callable[[], None], folder: Path) -> None:
    """Prints one kind of file: reading alone, loading, SQLite alone, memory."""
    db = folder / f"{kind}.db"
    before, _ = timed(read)
    seconds, cpu = timed(lambda: load(path, db))
    after, _ = timed(read)
    alone = min(before, after)
    least = store_only(folder / f"{kind}-bare.db", db)
    empty = peak_mb("--peak-of", "none", str(folder / f"{kind}-empty.db"), str(folder / "out"))
    full = peak_mb("--peak-of", str(path), str(folder / f"{kind}2.db"), str(folder / "out"))
    each = 1e6 / n
    print(f"{kind}: {n:,} rows, {path.stat().st_size / n:.0f} bytes each on the disk")
    print(f"  reading alone        {alone:6.2f} s  {alone * each:6.1f} µs a row")
    print(
        f"  load                 {seconds:6.2f} s  {seconds * each:6.1f} µs a row,"
        f" {seconds / alone:.1f} times as long ({cpu:.2f} s of the processor)"
    )
    print(
        f"  SQLite alone         {least:6.2f} s  {least * each:6.1f} µs a row,"
        f" {least / alone:.1f} times as long"
    )
    print(f"  memory over an empty queue: {full - empty:+.0f} MB (peak {full:.0f} MB)")


if __name__ == "__main__":
    main()
