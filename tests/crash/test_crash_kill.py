"""SIGKILL at moments nobody chose; the handlers' ledger tells what really ran."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from crash_kit import (
    Child,
    Ledger,
    ask,
    check_invariants,
    inodes,
    is_drained,
    most_at_once,
    started_by,
    until,
)

from vqkit import Queue

Start = Callable[..., Child]


def two_accounts(db: Path, provider: str, capacities: tuple[int, int] = (3, 2)) -> None:
    with Queue(db) as q:
        for name, capacity in zip(("a", "b"), capacities, strict=True):
            q.accounts.add(name, provider=provider, capacity=capacity)


def completed(db: Path) -> set[int]:
    return {r[0] for r in ask(db, "SELECT number FROM jobs WHERE status = 'completed'")}


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_killed_at_ten_random_moments_every_job_ends_once_and_keeps_its_file(
    executor: str, db: Path, outputs: Path, ledger: Ledger, start: Start
) -> None:
    rng = random.Random(f"kill {executor}")
    kills, jobs = (10, 60) if executor == "thread" else (4, 24)
    two_accounts(db, "clip")
    with Queue(db) as q:
        q.put_many([{"prompt": f"fox {i}", "nap_s": rng.uniform(0.002, 0.02)} for i in range(jobs)])
    args = {"db": db, "ledger": ledger.path, "handler": "clip", "executor": executor}
    # A job may be at work at each of the kills: the ceiling is tested elsewhere.
    args["retry"] = {"base_s": 0.01, "max_s": 0.05, "max_deaths": kills + 1}
    done: set[int] = set()
    files: dict[str, tuple[int, int]] = {}
    for _ in range(kills):
        begun = len(ledger.lines("begin"))
        child = start("drain", **args)
        until(
            lambda n=begun: len(ledger.lines("begin")) > n or is_drained(db),  # type: ignore[misc]
            "something to kill",
        )
        time.sleep(rng.uniform(0, 0.12))  # the moment is what is random
        child.kill()
        until(lambda c=child: not started_by(c), "its worker processes to end", 5)  # type: ignore[misc]
        later = {line.job for line in ledger.lines("begin")[begun:]}
        assert not later & done, "a completed job ran again"
        assert files.items() <= inodes(outputs).items(), "a finished file was made again"
        done, files = completed(db), inodes(outputs)
    begun = len(ledger.lines("begin"))
    start("drain", check=True, **args).finish()
    assert not {line.job for line in ledger.lines("begin")[begun:]} & done
    assert files.items() <= inodes(outputs).items()
    found = check_invariants(db, outputs=outputs)
    assert len(found) == jobs == len(inodes(outputs))
    assert all(job["attempt"] == 1 for job in found), "a crash spent an attempt"
    deaths = sum(job["deaths"] for job in found)
    assert {job["crashes"] for job in found} == {0}
    reclaimed = ask(db, "SELECT count(*) FROM attempts WHERE outcome = 'reclaimed'")[0][0]
    assert deaths == reclaimed > 0
    # What began and was not cut short by a kill began once.
    assert sum(ledger.count("begin").values()) <= jobs + reclaimed


def test_four_processes_run_every_job_once_and_never_more_than_the_accounts_allow(
    db: Path, ledger: Ledger, start: Start
) -> None:
    """Half of the jobs in crumbs, so that all four fight for them; then 1,000 at once."""
    capacities = {"a": 3, "b": 5}
    two_accounts(db, "noop", (3, 5))
    args = {"db": db, "ledger": ledger.path, "handler": "noop", "poll_s": 0.005, "stay": True}
    children = [start("drain", **args) for _ in range(4)]
    with Queue(db) as q:
        for i in range(50):
            q.put_many([{"prompt": f"crumb {i} {j}"} for j in range(20)])
            until(lambda: q.stats()["queued"] == 0, "a crumb to be taken")
        q.put_many([{"prompt": str(i)} for i in range(1000)])
        until(lambda: is_drained(db), "the end")
    for child in children:
        child.send(signal.SIGTERM)
        child.finish()
    jobs = check_invariants(db)
    assert len(jobs) == 2000
    assert {job["attempt"] for job in jobs} == {1}
    assert ledger.count("begin") == ledger.count("end") == dict.fromkeys(range(1, 2001), 1)
    workers = {line.pid for line in ledger.lines()}
    assert workers == {child.pid for child in children}, "not all of them got work"
    for account, capacity in capacities.items():
        sql = "SELECT started_ms, finished_ms FROM attempts WHERE account = ?"
        spans = [(row[0], row[1]) for row in ask(db, sql, account)]
        assert spans
        assert most_at_once(spans) <= capacity
    # What the handlers saw agrees: never more at work than both accounts together.
    now = most = 0
    for line in ledger.lines():
        now += 1 if line.what == "begin" else -1
        most = max(most, now)
    assert 1 < most <= sum(capacities.values())


def test_a_job_put_by_another_process_is_noticed_whatever_the_moment(
    db: Path, ledger: Ledger, start: Start
) -> None:
    """Just after the pump's own commit, say, and before it goes to sleep."""
    rng = random.Random("noticed")
    with Queue(db) as q:
        q.accounts.add("a", provider="noop", capacity=1)
        args = {"db": db, "ledger": ledger.path, "handler": "noop", "poll_s": 0.01, "stay": True}
        child = start("drain", **args)
        for n in range(1, 61):
            q.put({"prompt": str(n)})
            until(lambda n=n: len(ledger.lines("end")) == n, f"job {n}", 10)  # type: ignore[misc]
            time.sleep(rng.uniform(0, 0.004))  # the moment is what is random
    child.send(signal.SIGTERM)
    child.finish()
    check_invariants(db)


def test_the_jobs_of_a_killed_process_are_taken_over_by_one_that_never_rests(
    db: Path, tmp_path: Path, ledger: Ledger, start: Start
) -> None:
    with Queue(db) as q:
        q.accounts.add("a", provider="gated", capacity=2)
        q.accounts.add("b", provider="clip", capacity=2)
        q.put_many([{"prompt": f"held {i}"} for i in range(2)], provider="gated")
        q.put_many([{"prompt": str(i), "nap_s": 0.004} for i in range(250)], provider="clip")
    args = {"db": db, "ledger": ledger.path, "gate": tmp_path / "gate"}
    victim = start("drain", handler="gated", stay=True, **args)
    until(lambda: len(ledger.lines("begin")) == 2, "its jobs")
    child = start("drain", handler="clip", also=["gated"], reap_s=0.5, check=True, **args)
    until(lambda: len(ledger.lines("begin")) > 10, "the other to be busy")
    victim.kill()
    killed_ms = time.time_ns() // 1_000_000
    (tmp_path / "gate").touch()
    child.finish()
    check_invariants(db)
    taken = ask(db, "SELECT job, at_ms FROM events WHERE type = 'job.reclaimed'")
    assert [r["job"] for r in taken] == [1, 2]
    assert taken[0]["at_ms"] - killed_ms < 1500, "the dead were noticed late"
    assert ledger.lines("begin")[-1].at_ms > taken[0]["at_ms"], "it was not busy any more"
    assert [tuple(r) for r in ask(db, "SELECT attempt, deaths FROM jobs WHERE number < 3")] == [
        (1, 1),
        (1, 1),
    ]


def test_a_pump_that_starts_beside_another_leaves_its_files_alone(
    db: Path, outputs: Path, ledger: Ledger, start: Start
) -> None:
    """Starting sweeps up after the dead: not what the living have just begun to write."""
    two_accounts(db, "clip")
    with Queue(db) as q:
        q.put_many([{"prompt": str(i), "nap_s": 0.002} for i in range(150)])
    args = {"db": db, "ledger": ledger.path, "handler": "clip", "check": True}
    children = [start("drain", **args)]
    until(ledger.lines, "the first job")
    while not is_drained(db):
        children.append(start("drain", **args))
        children[-1].finish()
    for child in children:
        child.finish()
    jobs = check_invariants(db, outputs=outputs)
    assert {job["attempt"] for job in jobs} == {1}, "an attempt lost its file"
    assert ledger.count("begin") == dict.fromkeys(range(1, 151), 1)


def test_a_killed_process_leaves_no_worker_behind(db: Path, ledger: Ledger, start: Start) -> None:
    with Queue(db) as q:
        q.accounts.add("a", provider="napping", capacity=2)
        q.put_many([{"nap_s": 60}, {"nap_s": 61}])
    child = start("drain", db=db, ledger=ledger.path, handler="napping", executor="process")
    until(lambda: len(ledger.lines("begin")) == 2, "both workers at work")
    workers = {line.pid for line in ledger.lines("begin")}
    assert workers <= set(started_by(child))
    child.kill()
    until(lambda: not started_by(child), "the workers to be gone", 5)
