"""Who is alive: every runner holds a lock on a file of its own, and the system lets go of it.

The lock is free a millisecond after ``kill -9`` and held through SIGSTOP, sleep and any
change of the clock, so no clock is asked. Process id, start time and boot id stand beside
it for messages, and for the case that somebody deletes the lock files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .store.base import Runner

__all__ = ["RunnerLock", "dead_owner", "is_alive", "this_process"]

_held: weakref.WeakSet[RunnerLock] = weakref.WeakSet()


class RunnerLock:
    """This runner's life sign: held until `release`, or until the process is gone."""

    def __init__(self, folder: Path, runner_id: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{runner_id}.lock"
        while True:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            if self.path.exists() and self.path.stat().st_ino == os.fstat(self._fd).st_ino:
                break
            os.close(self._fd)  # a reaper came between, and took it for a dead runner's
        _held.add(self)

    def release(self, *, is_clean: bool = True) -> None:
        """Ends the life sign. Where the runner may still own jobs (not clean) the file stays.

        A free lock on it says "dead" at once; without it, the living process would count.
        """
        if self._fd >= 0:
            if is_clean:
                self.path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1

    def drop_in_child(self) -> None:
        """After a fork, in the child: closes the copy, or the lock would outlive the parent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _after_fork_in_child() -> None:
    for lock in tuple(_held):
        lock.drop_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)


@contextmanager
def dead_owner(folder: Path, runner_id: str, known: Runner | None) -> Iterator[bool]:
    """True if that runner is dead; its lock is then held, and its file removed at the end."""
    path = folder / f"{runner_id}.lock"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield known is None or not _seems_alive(known)
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
        path.unlink(missing_ok=True)
    finally:
        os.close(fd)


def is_alive(folder: Path, runner: Runner) -> bool:
    """Does that runner still live? Looks only; nothing is taken over."""
    try:
        fd = os.open(folder / f"{runner.id}.lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return _seems_alive(runner)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _seems_alive(runner: Runner) -> bool:
    """Without a lock file: is that very process still there?"""
    if runner.boot_id != boot_id():
        return False
    if runner.start_ticks:
        return start_ticks(runner.pid) == runner.start_ticks
    with contextlib.suppress(ProcessLookupError):
        os.kill(runner.pid, 0)
        return True
    return False


def start_ticks(pid: int) -> int:
    """When the process started, in clock ticks since boot; 0 where there is none, or no /proc.

    Field 22 of /proc/PID/stat: unlike a start time, it does not move with the clock.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[19])


def boot_id() -> str:
    """A name of the time since this machine was started; "" where the system gives none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def this_process(runner_id: str, now_ms: int) -> Runner:
    """The row of a runner in this process."""
    pid = os.getpid()
    return Runner(runner_id, pid, socket.gethostname(), boot_id(), start_ticks(pid), now_ms)
