"""Processes that are stopped and continued; who holds the pen while it sleeps."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

from crash_kit import Child, Ledger, ask, check_invariants, is_stopped, until

from vqkit import Queue
from vqkit.store.files import WriteMutex, companion

Start = Callable[..., Child]
REAP_S = 0.4


def held(db: Path, *, pid: int) -> list[int]:
    sql = "SELECT number FROM jobs WHERE owner IN (SELECT id FROM runners WHERE pid = ?)"
    return [row[0] for row in ask(db, sql + " ORDER BY number", pid)]


def two_at_work(db: Path, ledger: Ledger, tmp_path: Path, start: Start) -> tuple[Child, Child]:
    """The first holds jobs 1-3 of account a, the second then does those of account b."""
    with Queue(db) as q:
        q.accounts.add("a", provider="gated", capacity=3)
        q.accounts.add("b", provider="noop", capacity=3)
        q.put_many([{"prompt": f"a {i}"} for i in range(3)], account="a")
    args = {"db": db, "ledger": ledger.path, "gate": tmp_path / "gate", "stay": True}
    first = start("drain", handler="gated", **args)
    until(lambda: len(ledger.lines("begin")) == 3, "the first to hold its jobs")
    args |= {"reap_s": REAP_S, "reaps": True, "also": ["gated"]}
    return first, start("drain", handler="noop", **args)


def stop_between_writes(child: Child, db: Path) -> None:
    """Stops it while it holds no lock that all others would have to wait for."""
    mutex = WriteMutex(companion(db) / "write.lock")
    mutex.acquire()
    child.send(signal.SIGSTOP)
    until(lambda: is_stopped(child.pid), "it to be stopped")
    mutex.release()
    mutex.close()


def test_the_jobs_of_a_stopped_process_are_left_to_it(
    db: Path, tmp_path: Path, ledger: Ledger, start: Start
) -> None:
    first, second = two_at_work(db, ledger, tmp_path, start)
    stop_between_writes(first, db)
    with Queue(db) as q:
        q.put_many([{"prompt": f"b {i}"} for i in range(20)], account="b")
    until(lambda: len(ledger.lines("end")) == 20, "the other to do the rest")
    until(lambda: len(ledger.lines("reap")) >= 3, "the other to have looked for the dead")
    assert held(db, pid=first.pid) == [1, 2, 3]
    (tmp_path / "gate").touch()
    first.send(signal.SIGCONT)
    until(lambda: len(ledger.lines("end")) == 23, "the first to end its own")
    for child in (first, second):
        child.send(signal.SIGTERM)
        child.finish()
    jobs = check_invariants(db)
    assert {(job["attempt"], job["deaths"]) for job in jobs} == {(1, 0)}
    assert {line.pid for line in ledger.lines("end") if line.job <= 3} == {first.pid}


def test_the_jobs_of_a_stopped_process_that_is_then_killed_are_taken_over_soon(
    db: Path, tmp_path: Path, ledger: Ledger, start: Start
) -> None:
    first, second = two_at_work(db, ledger, tmp_path, start)
    until(lambda: ledger.lines("reap"), "the other to be there")
    first.send(signal.SIGSTOP)
    first.kill()
    killed_ms = time.time_ns() // 1_000_000
    until(lambda: held(db, pid=second.pid) == [1, 2, 3], "the other to take over")
    taken = ask(db, "SELECT at_ms FROM events WHERE type = 'job.reclaimed'")
    assert len(taken) == 3
    assert taken[0][0] - killed_ms < REAP_S * 1000 + 1000
    (tmp_path / "gate").touch()
    until(lambda: len(ledger.lines("end")) == 3, "the end")
    second.send(signal.SIGTERM)
    second.finish()
    jobs = check_invariants(db)
    assert {(job["attempt"], job["crashes"], job["deaths"]) for job in jobs} == {(1, 0, 1)}


def test_a_writer_stopped_in_a_transaction_is_named_to_whoever_waits(
    db: Path, tmp_path: Path, start: Start
) -> None:
    with Queue(db) as q:
        q.put({"prompt": "early"})
    told = tmp_path / "told"
    waiting = start("put_one", db=db, timeout_s=0.5, told=told)
    until(Path(f"{told}.open").exists, "the queue to be open")
    holder = start("hold_mutex", db=db, ready=tmp_path / "ready")
    until(lambda: is_stopped(holder.pid), "the holder to be stopped")
    Path(f"{told}.go").touch()
    until(told.exists, "the writer's word", deadline_s=10)
    answer = json.loads(told.read_text())
    assert answer["what"].startswith("StoreBusy"), answer
    assert f"process {holder.pid} (stopped" in answer["what"], answer
    assert 0.4 < answer["seconds"] < 3, answer
    holder.send(signal.SIGCONT)
    holder.finish()
    waiting.finish()
    with Queue(db) as q:
        q.put({"prompt": "late"})
        assert q.stats()["queued"] == 2, "the put that was refused was made, or is not repeatable"


def test_a_pump_waits_for_a_stopped_writer_says_who_it_is_and_goes_on(
    db: Path, tmp_path: Path, ledger: Ledger, start: Start
) -> None:
    with Queue(db) as q:
        q.accounts.add("a", provider="gated", capacity=2)
        q.put_many([{"prompt": str(i)} for i in range(6)])
    args = {"db": db, "ledger": ledger.path, "handler": "gated", "gate": tmp_path / "gate"}
    child = start("drain", say_trouble=True, check=True, **args)
    until(lambda: len(ledger.lines("begin")) == 2, "the pump to be at work")
    holder = start("hold_mutex", db=db, ready=tmp_path / "ready")
    until(lambda: is_stopped(holder.pid), "the holder to be stopped")
    (tmp_path / "gate").touch()
    until(lambda: f"process {holder.pid} (stopped" in child.said, "the pump to name it", 15)
    holder.send(signal.SIGCONT)
    holder.finish()
    child.finish()
    jobs = check_invariants(db)
    assert ledger.count("begin") == dict.fromkeys(range(1, 7), 1)
    assert {job["attempt"] for job in jobs} == {1}
