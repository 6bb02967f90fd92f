"""What could harm a queue on this machine, point by point: what was found, and what to do.

It looks, and changes nothing in the queue; to try the disk it makes a small database of its
own in a folder that it removes again.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from . import secrets
from .errors import CredentialError, StoreError
from .liveness import is_alive
from .providers.local import _ffmpeg, _has_webp
from .receipts import Receipts
from .snapshot import LOG_BYTES_WARNING
from .store.base import JobFilter
from .store.files import free_bytes, process_note, unsafe_place
from .store.sqlite import RESERVE_BYTES, SqliteStore

__all__ = ["Check", "examine"]

Level = Literal["ok", "warning", "problem"]

ROOM_WARNING = 1024 * 1024 * 1024
COMMIT_WARNING_S = 0.1
LOCK_WAIT_S = 2.0
FILES_LOOKED_AT = 5000


@dataclass(frozen=True, slots=True)
class Check:
    """One point: its name, how it stands, what was found, and what to do about it."""

    name: str
    level: Level
    found: str
    advice: str = ""


def examine(path: Path | None = None) -> list[Check]:
    """Every point, for the queue at `path`; without one, for the current folder."""
    folder = (Path.cwd() if path is None else path.absolute().parent).resolve()
    checks = [_sqlite(), _copies(), _notebook(), _ffmpeg_check(), _place(folder), _room(folder)]
    checks.append(_disk(folder))
    if path is None:
        return checks
    lock = _write_lock(path)
    checks.append(lock)
    try:
        store = SqliteStore(path, readonly=True)
    except StoreError as error:
        return [*checks, Check("queue", "problem", str(error))]
    try:
        checks += _queue(store)
    except (StoreError, sqlite3.Error) as error:
        advice = f"Keep the file; try: sqlite3 {path.name} .recover"
        checks.append(Check("queue", "problem", f"{path} is damaged or no queue: {error}", advice))
    finally:
        store.close()
    return checks


# -- the machine -----------------------------------------------------------------------------


def _has_wal_bug(version: tuple[int, ...]) -> bool:
    """SQLite's WAL-reset bug: 3.7.0 to 3.51.2, mended too in 3.44.6 and 3.50.7."""
    mended = (
        version[:2] in ((3, 44), (3, 50))
        and version >= {44: (3, 44, 6), 50: (3, 50, 7)}[version[1]]
    )
    return (3, 7, 0) <= version < (3, 51, 3) and not mended


def _sqlite() -> Check:
    found = f"version {sqlite3.sqlite_version}, in Python {sys.version.split()[0]}"
    if not _has_wal_bug(sqlite3.sqlite_version_info):
        return Check("SQLite", "ok", found)
    return Check(
        "SQLite",
        "ok",
        f"{found}; it can damage a database when one program tidies its log file while another"
        " writes (mended in 3.51.3). vqkit never does that by itself",
        "It matters only if another program writes to the queue's file too: do not let it, or"
        " use a Python with a newer SQLite.",
    )


def _copies() -> Check:
    names = [name for name in ("pysqlite3", "apsw") if find_spec(name) is not None]
    if not names:
        return Check("second SQLite", "ok", "none installed")
    return Check(
        "second SQLite",
        "warning",
        f"{' and '.join(names)} is installed beside Python's own",
        "Do not open a queue's file with it in a notebook that has the queue open: that cancels"
        " the locks that keep the file safe.",
    )


def _notebook() -> Check:
    found = {}
    for name in ("ipykernel", "nest-asyncio", "nest-asyncio2"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    words = ", ".join(f"{name} {version}" for name, version in found.items()) or "no ipykernel"
    major = found.get("ipykernel", "0").split(".")[0]
    if int(major) < 7 and sys.version_info < (3, 14):
        return Check("notebook", "ok", words)
    if "nest-asyncio" in found:
        return Check(
            "notebook",
            "ok" if "nest-asyncio2" in found else "warning",
            words,
            "Do not call nest_asyncio.apply(): with this ipykernel the cells after it are lost."
            + (" vqkit.allow_nested() is safe." if "nest-asyncio2" in found else ""),
        )
    return Check("notebook", "ok", words)


def _ffmpeg_check() -> Check:
    where = _ffmpeg()
    if where is not None:
        return Check("ffmpeg", "ok", f"found: {where}")
    kind = "animated WebP" if _has_webp() else "GIF"
    return Check(
        "ffmpeg",
        "warning",
        f"not found: the clips of the provider 'local' are {kind} instead of MP4",
        "pip install imageio-ffmpeg",
    )


def _place(folder: Path) -> Check:
    wrong = unsafe_place(folder)
    if wrong is None:
        return Check("folder", "ok", f"{folder} is on a local disk")
    return Check("folder", "problem", wrong)


def _room(folder: Path, name: str = "free room") -> Check:
    while not folder.exists():
        folder = folder.parent
    free = free_bytes(folder)
    found = f"{_size(free)} free for {folder}"
    if free < RESERVE_BYTES:
        advice = f"Make room: below {_size(RESERVE_BYTES)} no new work is begun."
        return Check(name, "problem", found, advice)
    if free < ROOM_WARNING:
        return Check(name, "warning", found, "Make room before a large run.")
    return Check(name, "ok", found)


def _disk(folder: Path) -> Check:
    """Makes a throw-away queue there: does it lock, does it keep a safe log, how fast?"""
    try:
        with tempfile.TemporaryDirectory(prefix=".vqkit-doctor-", dir=folder) as trial:
            store = SqliteStore(Path(trial) / "trial.db")
            try:
                mode = str(store.query("PRAGMA journal_mode")[0][0])
                level = int(store.query("PRAGMA synchronous")[0][0])
                start_s = time.perf_counter()
                for number in range(5):
                    store.set_setting("trial", number)
                each_s = (time.perf_counter() - start_s) / 5
                store.mutex.acquire()
                is_locking = not _can_lock(store.mutex.path)
                store.mutex.release()
            finally:
                store.close()
    except (OSError, StoreError) as error:
        why = getattr(error, "strerror", None) or error
        advice = "Keep the queue in a folder you may write to."
        return Check("disk", "problem", f"no queue can be kept in {folder}: {why}", advice)
    if mode != "wal" or level != 2 or not is_locking:
        found = f"write-ahead log: {mode}, synchronous: {level}, locks work: {is_locking}"
        return Check("disk", "problem", found, "Keep the queue on a local disk.")
    found = f"locks work, every change is on the disk before it counts ({each_s * 1000:.1f} ms)"
    if each_s > COMMIT_WARNING_S:
        return Check("disk", "warning", found, "That is slow; a local SSD takes a few ms.")
    return Check("disk", "ok", found)


def _can_lock(path: Path) -> bool:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


# -- the queue -------------------------------------------------------------------------------


def _write_lock(path: Path) -> Check:
    """Whether somebody keeps the queue from being written to."""
    lock = path.with_name(path.name + "-vqkit") / "write.lock"
    end_s = time.monotonic() + LOCK_WAIT_S
    while lock.exists() and not _can_lock(lock):
        if time.monotonic() > end_s:
            pid = lock.read_text(encoding="ascii", errors="replace").strip()
            who = process_note(int(pid)) if pid.isdigit() else "another process"
            advice = "Continue it (kill -CONT) or end it; nothing is lost by either."
            return Check("writing", "problem", f"{who} keeps all others from writing", advice)
        time.sleep(0.02)
    return Check("writing", "ok", "nobody keeps others from writing")


def _queue(store: SqliteStore) -> Iterator[Check]:
    for look in (_integrity, _log_file, _counters, _runners, _keys, _receipts, _files):
        yield look(store)


def _integrity(store: SqliteStore) -> Check:
    mode = store.query("PRAGMA journal_mode")[0][0]
    said = [row[0] for row in store.query("PRAGMA quick_check(5)")]
    if said != ["ok"]:
        advice = f"Keep the file; get the rows back with: sqlite3 {store.path.name} .recover"
        return Check("database", "problem", f"it is damaged: {'; '.join(said)}", advice)
    if mode != "wal":
        advice = "Another program changed this; the next run sets it right."
        return Check(
            "database", "warning", f"whole, but without a write-ahead log ({mode})", advice
        )
    return Check("database", "ok", "whole, with a write-ahead log")


def _log_file(store: SqliteStore) -> Check:
    size = store.log_bytes()
    if size > LOG_BYTES_WARNING:
        advice = "Another program keeps a read open on the database; close it."
        return Check("log file", "warning", f"it has grown to {_size(size)}", advice)
    return Check("log file", "ok", _size(size))


def _counters(store: SqliteStore) -> Check:
    with store.reading():
        kept, true = store._kept_counts(), store._true_counts()
    off = [name for name in kept.keys() | true.keys() if kept.get(name, 0) != true.get(name, 0)]
    if off:
        found = f"{len(off)} numbers of jobs do not match the rows"
        advice = "Something other than vqkit wrote to the file; the next run puts them right."
        return Check("counters", "warning", found, advice)
    return Check("counters", "ok", f"right: {sum(store.counts().values()):,} in all")


def _runners(store: SqliteStore) -> Check:
    locks = store.path.with_name(store.path.name + "-vqkit") / "runners"
    rows = {runner.id: runner for runner in store.runners()}
    alive = {name for name, runner in rows.items() if is_alive(locks, runner)}
    left = [job for job in store.jobs(JobFilter(status=("running",))) if job.owner not in alive]
    pids = ", ".join(process_note(rows[name].pid) for name in sorted(alive)) or "nobody"
    if left:
        found = f"{len(left)} jobs were at work in a process that is gone; at work now: {pids}"
        return Check("at work", "warning", found, "The next run takes them up again.")
    return Check("at work", "ok", pids)


def _keys(store: SqliteStore) -> Check:
    wrong, right = [], []
    for account in store.accounts():
        if account.credential is None:
            continue
        try:
            secrets.resolve(account.credential)
            right.append(account.name)
        except CredentialError as error:
            wrong.append(f"{account.name}: {error}")
    if wrong:
        advice = "These accounts get no work until their key is found."
        return Check("keys", "problem", "; ".join(wrong), advice)
    found = f"found for {', '.join(right)} (not shown)" if right else "no account needs one"
    return Check("keys", "ok", found)


def _receipts(store: SqliteStore) -> Check:
    """Whether a receipt that is needed still, for its step has no answer, cannot be read."""
    receipts = Receipts(store.path.with_name(store.path.name + "-vqkit") / "receipts.jsonl")
    try:
        damaged = receipts.damaged()
    except OSError as error:
        return Check("receipts", "problem", f"they cannot be read: {error}", "Make them readable.")
    if not damaged:
        return Check("receipts", "ok", "every one can be read")
    wanted = {step.key: step.job for step in store.steps() if step.state == "intent"}
    bad = [line for line in damaged if line.key in wanted]
    if not bad:
        return Check("receipts", "ok", f"{len(damaged)} torn by a crash, of calls that are over")
    where = "; ".join(f"line {line.line}, of job {wanted[line.key or '']}" for line in bad[:5])
    found = f"{len(bad)} cannot be read, and nothing else tells what came of the call: {where}"
    advice = "Look at the provider's pages, then q.resolve(job, 'attach', value=…)."
    return Check("receipts", "problem", found, advice)


def _files(store: SqliteStore) -> Check:
    root = store.path.parent / str(store.setting("outputs") or store.path.stem)
    outputs = store.outputs()
    gone = [o.path for o in outputs[-FILES_LOOKED_AT:] if not (root / o.path).is_file()]
    room = _room(root)
    if gone:
        found = f"{len(gone)} of {len(outputs)} finished files are not in {root}: {gone[0]} …"
        return Check("files", "warning", found, "Put them back, or render those jobs again.")
    return Check("files", room.level, f"{len(outputs)} in {root}; {room.found}", room.advice)


def _size(n: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if n < 1024:
            return f"{n:.0f} {unit}"
        n /= 1024
    return f"{n:,.1f} TB"
