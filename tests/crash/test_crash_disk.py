"""A disk that is full, and a file that cannot grow, in the middle of the work."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crash_kit import Child, Ledger, ask, check_invariants, inodes, is_drained, until

from vqkit import Queue

Start = Callable[..., Child]
DISK_MB = 100


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=10)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no small disk can be mounted here: {error}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True, timeout=10)


def fill(folder: Path) -> Path:
    """Writes until nothing fits any more."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"\0" * size)
    with pytest.raises(OSError, match="No space left"):
        (folder / "probe").write_bytes(b"\0" * 8192)
    (folder / "probe").unlink()
    return filler


def test_results_in_memory_outlive_a_full_disk(
    disk: Path, tmp_path: Path, ledger: Ledger, start: Start
) -> None:
    """More of them than the ballast has room for: they wait until there is some."""
    db = disk / "q.db"
    with Queue(db) as q:
        q.accounts.add("a", provider="returns_much", capacity=120)
        q.put_many([{"prompt": str(i)} for i in range(120)])
    args = {"db": db, "ledger": ledger.path, "gate": tmp_path / "gate"}
    child = start("drain", handler="returns_much", say_trouble=True, **args)
    until(lambda: len(ledger.lines("begin")) == 120, "all to be at work")
    filler = fill(disk)
    (tmp_path / "gate").touch()
    until(lambda: len(ledger.lines("end")) == 120, "all to have their results")
    until(lambda: "full" in child.said, "the user to be told", 20)
    ballast = disk / "q.db-vqkit" / "ballast"
    until(lambda: not ballast.exists(), "the ballast to be given up", 20)
    last = child.said.splitlines()[-1]
    assert "(0 followed)" not in last, "a queue closed now would throw results away"
    filler.unlink()
    until(lambda: is_drained(db), "the results to be stored", 20)
    child.finish()
    jobs = check_invariants(db)
    assert ledger.count("begin") == dict.fromkeys(range(1, 121), 1)
    assert {(job["attempt"], job["deaths"]) for job in jobs} == {(1, 0)}


def test_files_that_were_made_outlive_a_full_disk(
    disk: Path, tmp_path: Path, ledger: Ledger, start: Start
) -> None:
    db, outputs = disk / "q.db", disk / "q"
    with Queue(db) as q:
        q.accounts.add("a", provider="file_then_gate", capacity=4)
        q.put_many([{"prompt": str(i)} for i in range(6)])
    args = {"db": db, "ledger": ledger.path, "gate": tmp_path / "gate", "full_s": 0.3}
    child = start("drain", handler="file_then_gate", say_trouble=True, **args)
    until(lambda: len(ledger.lines("begin")) == 4, "the first to be at work")
    made = {p.stat().st_ino for p in (outputs / ".part").iterdir()}
    filler = fill(disk)
    (tmp_path / "gate").touch()
    until(lambda: "full" in child.said, "the user to be told", 20)
    assert child.code is None, child.said
    filler.unlink()
    until(lambda: is_drained(db), "the end", 40)
    child.finish()
    jobs = check_invariants(db, outputs=outputs)
    assert ledger.count("begin") == dict.fromkeys(range(1, 7), 1)
    assert {(job["attempt"], job["deaths"]) for job in jobs} == {(1, 0)}
    assert made <= {inode for inode, _ in inodes(outputs).values()}


def test_a_log_that_cannot_grow_holds_results_up_and_loses_none(
    db: Path, tmp_path: Path, ledger: Ledger, start: Start
) -> None:
    """RLIMIT_FSIZE: every write beyond it is an I/O error."""
    with Queue(db) as q:
        q.accounts.add("a", provider="returns_much", capacity=10)
        q.put_many([{"prompt": str(i)} for i in range(20)])
    args = {"db": db, "ledger": ledger.path, "gate": tmp_path / "gate"}
    word = tmp_path / "limit"
    child = start("drain", handler="returns_much", limit=word, say_trouble=True, **args)
    until(lambda: len(ledger.lines("begin")) == 10, "the first to be at work")
    until(lambda: ask(db, "SELECT count(*) FROM runners WHERE state = 'running'")[0][0], "a row")
    Path(f"{word}.on").touch()
    until(Path(f"{word}.set").exists, "the limit")
    (tmp_path / "gate").touch()
    until(lambda: "q.db" in child.said, "the user to be told", 20)
    assert child.code is None, child.said
    Path(f"{word}.off").touch()
    until(lambda: is_drained(db), "the end", 40)
    child.finish()
    jobs = check_invariants(db)
    assert ledger.count("begin") == dict.fromkeys(range(1, 21), 1)
    assert {(job["attempt"], job["deaths"]) for job in jobs} == {(1, 0)}
