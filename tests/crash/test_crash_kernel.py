"""What happens to a kernel: interrupts, forks in a cell, the end of the interpreter."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from crash_kit import Child, Ledger, ask, check_invariants, started_by, stat_fields, until

from vqkit import Queue

Start = Callable[..., Child]


def is_gone(pid: int) -> bool:
    return stat_fields(pid)[:1] in ([], ["Z"])


@pytest.mark.parametrize("seed", [1, 2])
def test_interrupts_at_random_moments_lose_nothing_and_are_heard_at_once(
    seed: int, db: Path, tmp_path: Path, ledger: Ledger, start: Start
) -> None:
    told = tmp_path / "told"
    start("interrupts", db=db, ledger=ledger.path, seed=seed, told=told).finish()
    answer = json.loads(told.read_text())
    assert answer["count"] > 30
    assert answer["longest_s"] < 0.5
    jobs = check_invariants(db)
    assert len(jobs) == 65 * 5
    assert {job["deaths"] for job in jobs} == {0}
    again = ask(db, "SELECT count(*) FROM attempts WHERE outcome = 'released'")[0][0]
    assert sum(ledger.count("end").values()) == len(jobs)
    assert sum(ledger.count("begin").values()) <= len(jobs) + again


def test_work_that_an_interrupted_run_follows_is_not_cut_off_by_closing(
    db: Path, tmp_path: Path, ledger: Ledger, start: Start
) -> None:
    with Queue(db) as q:
        q.accounts.add("a", provider="gated_thread", capacity=2)
        q.put_many([{"prompt": str(i)} for i in range(2)])
    args = {"db": db, "ledger": ledger.path, "gate": tmp_path / "gate"}
    said = start("interrupted_then_closed", **args).finish()
    assert "2 at work are followed" in said
    jobs = check_invariants(db)
    assert {(job["attempt"], job["deaths"]) for job in jobs} == {(1, 0)}


@pytest.mark.parametrize("what", ["stop", "cancel"])
def test_a_file_that_is_being_finished_is_finished_whatever_is_asked(
    what: str, db: Path, outputs: Path, tmp_path: Path, ledger: Ledger, start: Start
) -> None:
    """The handler has returned: giving the job back would render it twice, and lose the file."""
    with Queue(db) as q:
        q.accounts.add("a", provider="async_file", capacity=1)
        q.put({"prompt": "fox"})
    args = {"db": db, "ledger": ledger.path, "gate": tmp_path / "gate"}
    start("asked_while_finishing", what=what, **args).finish(20)
    jobs = check_invariants(db, outputs=outputs)
    assert [(job["attempt"], job["deaths"]) for job in jobs] == [(1, 0)]
    assert ledger.count("begin") == {1: 1}


def test_a_fork_in_a_cell_leaves_the_queue_to_the_parent(
    db: Path, tmp_path: Path, ledger: Ledger, start: Start
) -> None:
    with Queue(db) as q:
        q.accounts.add("a", provider="gated", capacity=2)
        q.put_many([{"prompt": str(i)} for i in range(5)])
    told, gate = tmp_path / "told", tmp_path / "gate"
    child = start("forked", db=db, ledger=ledger.path, gate=gate, told=told)
    until(lambda: len(ledger.lines("begin")) == 2, "the jobs to be at work")
    gate.touch()
    child.finish()
    answer = json.loads(told.read_text())
    for name in ("put", "stats", "run"):
        assert "StoreLost" in answer[name], answer
        assert "forked" in answer[name], answer
        assert answer[f"{name}_s"] < 1
    jobs = check_invariants(db)
    assert {(job["attempt"], job["deaths"]) for job in jobs} == {(1, 0)}
    assert ledger.count("begin") == dict.fromkeys(range(1, 6), 1)


def test_a_forked_child_does_not_open_the_file_anew_without_locks(
    db: Path, tmp_path: Path, ledger: Ledger, start: Start
) -> None:
    """SQLite's picture of its locks is copied by the fork, the locks themselves are not."""
    with Queue(db) as q:
        q.accounts.add("a", provider="gated", capacity=2)
        q.put_many([{"prompt": str(i)} for i in range(2)])
    told, gate = tmp_path / "told", tmp_path / "gate"
    child = start("forked", db=db, ledger=ledger.path, gate=gate, told=told, opens=True)
    until(lambda: len(ledger.lines("begin")) == 2, "the jobs to be at work")
    gate.touch()
    child.finish()
    answer = json.loads(told.read_text())
    assert "StoreLost" in answer["open"], answer
    assert "fork" in answer["open"], answer


def test_a_forked_child_that_lives_on_does_not_keep_its_dead_parent_alive(
    db: Path, tmp_path: Path, ledger: Ledger, start: Start
) -> None:
    with Queue(db) as q:
        q.accounts.add("a", provider="gated", capacity=2)
        q.put_many([{"prompt": str(i)} for i in range(3)])
    told, gate = tmp_path / "told", tmp_path / "gate"
    parent = start("forked", db=db, ledger=ledger.path, gate=gate, told=told)
    parent.finish()  # it leaves at once, with jobs at work
    child_pid = json.loads(told.read_text())["pid"]
    assert not is_gone(child_pid)
    gate.touch()
    start("drain", db=db, ledger=ledger.path, handler="gated", gate=gate, check=True).finish(10)
    jobs = check_invariants(db)
    assert [job["deaths"] for job in jobs] == [1, 1, 0]
    assert not is_gone(child_pid)


@pytest.mark.parametrize(
    ("handler", "executor", "deaths"),
    [("gated", "async", 0), ("gated_thread", "thread", 1), ("gated_thread", "process", 0)],
)
def test_a_script_that_ends_with_jobs_at_work_ends_soon_and_they_run_later(
    handler: str,
    executor: str,
    deaths: int,
    db: Path,
    tmp_path: Path,
    ledger: Ledger,
    start: Start,
) -> None:
    """A plain function on a thread cannot be given back: its end counts as a death."""
    with Queue(db) as q:
        q.accounts.add("a", provider=handler, capacity=2)
        q.put_many([{"prompt": str(i)} for i in range(4)])
    leaving, gate = tmp_path / "leaving", tmp_path / "gate"
    args = {"db": db, "ledger": ledger.path, "handler": handler, "executor": executor}
    child = start("leave", gate=gate, leaving=leaving, **args)
    assert child.wait(20) == 0, child.said
    took_s = time.time() - float(leaving.read_text())
    assert took_s < 3.5, f"it took {took_s:.1f} s to end"
    assert "Traceback" not in child.said, child.said
    until(lambda: not started_by(child), "the workers to end", 5)
    gate.touch()
    start("drain", gate=gate, check=True, **args).finish()
    jobs = check_invariants(db)
    assert [(job["attempt"], job["deaths"]) for job in jobs[:2]] == [(1, deaths)] * 2
    assert ledger.count("begin") == {1: 2, 2: 2, 3: 1, 4: 1}
    assert ledger.count("end") == dict.fromkeys(range(1, 5), 1)
