"""What a failed try, and what a death under a job, come to: through the Queue, on real time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from crash_kit import Child, Ledger, ask, check_invariants, until

from vqkit import Queue

Start = Callable[..., Child]


def delays(db: Path, job: int) -> list[float]:
    sql = "SELECT data ->> 'delay_s' FROM events WHERE type = 'job.retry_scheduled' AND job = ?"
    return [float(row[0]) for row in ask(db, sql + " ORDER BY id", job)]


def test_two_failures_then_success_with_waits_that_grow_and_differ(
    db: Path, ledger: Ledger, start: Start
) -> None:
    with Queue(db) as q:
        q.accounts.add("a", provider="flaky", capacity=20)
        q.put_many([{"kind": "third", "prompt": str(i)} for i in range(12)])
    retry = {"base_s": 0.2, "jitter": "equal"}
    start("drain", db=db, ledger=ledger.path, handler="flaky", retry=retry, check=True).finish()
    jobs = check_invariants(db)
    assert {job["attempt"] for job in jobs} == {3}
    assert {job["crashes"] for job in jobs} == {0}
    assert ledger.count("begin") == dict.fromkeys(range(1, 13), 3)
    waits = [delays(db, job["number"]) for job in jobs]
    # What is on record is less than what was drawn by the time the commit took.
    assert all(pair[0] <= 0.2 and pair[1] <= 0.4 for pair in waits), waits
    assert sum(pair[0] for pair in waits) < sum(pair[1] for pair in waits), "they do not grow"
    assert len({pair[0] for pair in waits}) > 6, "the waits do not differ"
    for job, (first, second) in zip(jobs, waits, strict=True):
        at = [line.at_ms for line in ledger.lines("begin") if line.job == job["number"]]
        assert at[1] - at[0] >= first * 1000 - 2
        assert at[2] - at[1] >= second * 1000 - 2


def test_one_that_always_raises_fails_at_three_and_giving_up_fails_at_one(
    db: Path, ledger: Ledger, start: Start
) -> None:
    with Queue(db) as q:
        q.accounts.add("a", provider="flaky", capacity=3)
        q.put_many([{"kind": kind} for kind in ("never", "gives-up", "third")])
    start("drain", db=db, ledger=ledger.path, handler="flaky").finish()
    jobs = check_invariants(db, expected={1: "failed", 2: "failed", 3: "completed"})
    assert [job["attempt"] for job in jobs] == [3, 1, 3]
    assert ledger.count("begin") == {1: 3, 2: 1, 3: 3}


def test_a_worker_process_killed_once_spends_no_attempt(
    db: Path, ledger: Ledger, start: Start
) -> None:
    with Queue(db) as q:
        q.accounts.add("a", provider="dies_once", capacity=2)
        q.put_many([{"prompt": "a", "poison": "once"}, {"prompt": "b", "poison": "no"}])
    args = {"db": db, "ledger": ledger.path, "handler": "dies_once", "executor": "process"}
    start("drain", check=True, **args).finish()
    jobs = check_invariants(db)
    assert [(job["attempt"], job["crashes"]) for job in jobs] == [(1, 1), (1, 0)]
    assert ledger.count("begin") == {1: 2, 2: 1}


def test_a_job_that_kills_its_worker_every_time_fails_at_the_ceiling_and_harms_no_other(
    db: Path, ledger: Ledger, start: Start
) -> None:
    with Queue(db) as q:
        q.accounts.add("a", provider="dies_once", capacity=3)
        q.put_many(
            [{"prompt": "poison", "poison": "always"}] + [{"prompt": str(i)} for i in range(8)]
        )
    args = {"db": db, "ledger": ledger.path, "handler": "dies_once", "executor": "process"}
    start("drain", **args).finish()
    jobs = check_invariants(db, expected={1: "failed"} | dict.fromkeys(range(2, 10), "completed"))
    assert [job["crashes"] for job in jobs] == [3] + [0] * 8
    assert {job["attempt"] for job in jobs[1:]} == {1}
    assert ledger.count("begin") == {1: 3} | dict.fromkeys(range(2, 10), 1)


def test_a_job_that_takes_the_whole_process_with_it_fails_at_the_ceiling_over_restarts(
    db: Path, ledger: Ledger, start: Start
) -> None:
    with Queue(db) as q:
        q.accounts.add("a", provider="ends_everything", capacity=1)
        q.put_many(
            [{"prompt": "before"}, {"prompt": "poison", "poison": True}, {"prompt": "after"}]
        )
    args = {"db": db, "ledger": ledger.path, "handler": "ends_everything"}
    args["retry"] = {"max_deaths": 3}
    codes = []
    while not codes or codes[-1]:
        codes.append(start("drain", **args).wait())
        assert len(codes) < 10
    assert codes == [9, 9, 9, 0]
    jobs = check_invariants(db, expected={1: "completed", 2: "failed", 3: "completed"})
    assert [(job["crashes"], job["deaths"]) for job in jobs] == [(0, 0), (0, 3), (0, 0)]
    assert ledger.count("begin") == {1: 1, 2: 3, 3: 1}


def test_the_pump_that_failed_is_followed_by_one_that_takes_over_its_jobs(
    db: Path, tmp_path: Path, ledger: Ledger, start: Start
) -> None:
    """In the same process: it still lives, and its jobs are nobody's all the same."""
    with Queue(db) as q:
        q.accounts.add("a", provider="gated", capacity=2)
        q.put_many([{"prompt": str(i)} for i in range(3)])
    args = {"db": db, "ledger": ledger.path, "gate": tmp_path / "gate"}
    child = start("pump_fails", **args)
    until(lambda: "failed:" in child.said or child.code is not None, "the first pump's end")
    (tmp_path / "gate").touch()
    child.finish(20)
    jobs = check_invariants(db)
    assert [job["deaths"] for job in jobs] == [1, 1, 0]


def test_a_commit_whose_answer_was_lost_starts_nothing_twice(
    db: Path, ledger: Ledger, start: Start
) -> None:
    """Every third commit is said to have failed, made or not: the truth is in the database."""
    with Queue(db) as q:
        q.accounts.add("a", provider="napping_async", capacity=4)
        q.put_many([{"prompt": str(i), "nap_s": 0.01} for i in range(40)])
    args = {"db": db, "ledger": ledger.path, "handler": "napping_async"}
    start("drain", lose_answers=3, check=True, **args).finish()
    jobs = check_invariants(db)
    assert {(job["attempt"], job["crashes"]) for job in jobs} == {(1, 0)}
    assert ledger.count("begin") == dict.fromkeys(range(1, 41), 1)
