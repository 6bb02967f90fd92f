"""What lies beside a database file: the folder of vqkit's own files, the write mutex, the ballast.

``foxes.db`` has a companion folder ``foxes.db-vqkit/`` with ``write.lock`` (who writes now),
``runners/`` (one lock file a living process), ``finished/`` (results waiting for their
commit) and ``ballast`` (room given up when the disk is full).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
from pathlib import Path

from ..errors import StoreReadOnly

__all__ = [
    "Ballast",
    "WriteMutex",
    "beside",
    "companion",
    "free_bytes",
    "process_note",
    "unsafe_place",
]

TRY_AGAIN_S = 0.01
BALLAST_BYTES = 4 * 1024 * 1024

UNSAFE_FILESYSTEMS = {
    "nfs": "NFS",
    "nfs4": "NFS",
    "cifs": "a Windows share",
    "smb3": "a Windows share",
    "smbfs": "a Windows share",
    "9p": "a 9p mount (a Windows drive under WSL2)",
    "drvfs": "a Windows drive under WSL",
    "afs": "AFS",
    "ceph": "CephFS",
    "glusterfs": "GlusterFS",
    "lustre": "Lustre",
}
SYNCED_FOLDERS = ("dropbox", "onedrive", "google drive", "googledrive", "icloud", "nextcloud")


def beside(database: Path) -> Path:
    """Where the folder of vqkit's own files is, or would be."""
    return database.with_name(database.name + "-vqkit")


def companion(database: Path) -> Path:
    """The folder of vqkit's own files beside a database; made when missing."""
    folder = beside(database)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreReadOnly(
            f"{folder} cannot be made: {error.strerror}. vqkit needs to write beside the"
            " database; put it into a folder of your own.",
            path=str(folder),
        ) from error
    return folder


def free_bytes(folder: Path) -> int:
    """Bytes a user may still write there."""
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


def unsafe_place(path: Path) -> str | None:
    """Why a database should not live there, in a sentence; None where it may.

    SQLite's write-ahead log needs one machine and real file locks (sqlite.org/wal.html);
    folders that are synced to a cloud are copied while they change.
    """
    for part in path.parts:
        if any(name in part.lower() for name in SYNCED_FOLDERS):
            return (
                f"{path} is in a folder that is synced ({part}): a copy taken in the middle of a"
                " write is damaged. Keep the database elsewhere and sync what q.backup() makes."
            )
    kind = _filesystem(path)
    name = UNSAFE_FILESYSTEMS.get(kind) or ("a FUSE drive" if kind.startswith("fuse.") else None)
    if name is None:
        return None
    return (
        f"{path} is on {name} ({kind}), where SQLite's locks cannot be relied on: the database"
        " can be damaged. Keep it on a local disk and copy what q.backup() makes."
    )


def _filesystem(path: Path) -> str:
    """The type of the mount that holds the path; "" where the system does not tell."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    best, kind = "", ""
    where = os.fspath(path)
    for line in mounts.splitlines():
        fields = line.split(" ")
        point = fields[1].replace("\\040", " ")
        inside = where == point or where.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def process_note(pid: int) -> str:
    """A process as a person finds it: its pid, and whether it is stopped or gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        if sys.platform != "linux":
            return f"process {pid}"
        return f"process {pid} (gone)"
    state = stat.rpartition(")")[2].split()[0]
    return f"process {pid} (stopped: continue it or end it)" if state in "Tt" else f"process {pid}"


class WriteMutex:
    """One writer at a time, by an flock'd file beside the database.

    SQLite's own lock lets a busy writer starve the others; waiting for this one is fair.
    The holder's pid stands in the file, for the error of whoever waits too long.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = self._open()

    def _open(self) -> int:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreReadOnly(
                f"{self.path} cannot be opened: {error.strerror}. vqkit needs write permission on"
                " the database and its folder; copy it into a folder of your own.",
                path=str(self.path),
            ) from error

    def acquire(self, timeout_s: float | None = None) -> bool:
        """Waits for its turn, however long, or at most so long: False if it did not come."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if end_s is None:
                fcntl.flock(self._fd, fcntl.LOCK_EX)
            elif not self._try_until(end_s):
                return False
            try:
                if os.stat(self.path).st_ino == os.fstat(self._fd).st_ino:
                    break
            except FileNotFoundError:
                pass
            # Somebody deleted the file: a lock on it would keep nobody out.
            os.close(self._fd)
            self._fd = self._open()
        # A full disk must not keep anybody from writing the pid of four digits.
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, b"%-10d\n" % os.getpid(), 0)
        return True

    def _try_until(self, end_s: float) -> bool:
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= end_s:
                    return False
                time.sleep(TRY_AGAIN_S)  # flock has no time-out of its own
            else:
                return True

    def release(self) -> None:
        """Lets the next one in."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def holder(self) -> int | None:
        """The pid that took it last."""
        try:
            return int(self.path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        """Gives up the file; in a forked child this leaves the parent's lock alone.

        Twice is harmless: by then the number may be somebody else's file.
        """
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class Ballast:
    """A few MB kept on the disk, to be given up when it is full, so that results still fit."""

    def __init__(self, path: Path, size: int = BALLAST_BYTES) -> None:
        self.path, self.size = path, size

    def take(self) -> None:
        """Makes sure it is there; where there is no room for it, later."""
        try:
            if self.path.exists() and self.path.stat().st_size == self.size:
                return
            if free_bytes(self.path.parent) < 4 * self.size:
                return
            with self.path.open("wb") as file:
                for _ in range(self.size // 65536):
                    file.write(b"\0" * 65536)
        except OSError:
            self.give_up()

    def give_up(self) -> bool:
        """Deletes it. True if that made room."""
        try:
            self.path.unlink()
        except OSError:
            return False
        return True
