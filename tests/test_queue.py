"""The queue as its user holds it: everything of the public surface, and what a mistake is told."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import math
import pickle
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import vqkit
from vqkit import GiveUp, Queue, Retry, Snooze
from vqkit.errors import (
    HandlerError,
    JobsFailed,
    NotAQueue,
    PayloadError,
    ProviderError,
    PumpError,
    SheetError,
    StoreError,
    StoreLost,
    UnknownName,
    UsageError,
)
from vqkit.job import STATUSES
from vqkit.pump import Pump
from vqkit.run import Summary
from vqkit.testing import ManualClock, drain, drained

NASTY = "<img src=x onerror=alert(1)>&\"'"


@pytest.fixture
def q(tmp_path: Path) -> Iterator[Queue]:
    with Queue(tmp_path / "q.db") as q:
        yield q


def echo(job: Any) -> Any:
    return job.payload


def paint(job: Any) -> Any:
    with job.output(".txt") as path:
        path.write_text(job.payload["prompt"])
    return path


# -- putting ------------------------------------------------------------------------------


def test_running_a_cell_twice_puts_nothing_twice(q: Queue) -> None:
    first = q.put({"prompt": "a fox", "size": 3})
    again = q.put({"size": 3, "prompt": "a fox"})
    assert again.id == first.id
    assert len(q) == 1
    rows = [{"prompt": "an owl"}, {"prompt": "an owl"}, {"prompt": "a hare"}]
    assert str(q.put_many(rows)) == "3 new"
    assert str(q.put_many(rows)) == "0 new, 3 already there"
    assert q.stats()["total"] == 4


def test_a_key_names_a_job_and_a_changed_payload_is_taken_while_it_waits(q: Queue) -> None:
    q.put({"prompt": "a fox"}, key="row-1")
    job = q.put({"prompt": "a red fox"}, key="row-1")
    assert (job.number, job.payload) == (1, {"prompt": "a red fox"})
    assert [e.type for e in q.events()] == ["job.queued", "job.changed"]
    drain(q, echo)
    assert q.put({"prompt": "too late"}, key="row-1").payload == {"prompt": "a red fox"}
    assert q.put_many([{"prompt": "too late", "key": "row-1"}]).conflicts == 1


@pytest.mark.parametrize("key", [5, "", "  ", True, b"x"])
def test_a_key_is_text(q: Queue, key: Any) -> None:
    with pytest.raises(UsageError, match="expected some text, or None"):
        q.put({"prompt": "a fox"}, key=key)


def test_samples_are_jobs_of_their_own_with_seeds_that_stay(q: Queue, tmp_path: Path) -> None:
    q.put({"prompt": "a fox"}, samples=3)
    jobs = q.jobs()
    assert len({job.seed for job in jobs}) == 3
    assert [job.sample for job in jobs] == [0, 1, 2]
    q.put({"prompt": "a fox"}, samples=5)
    assert len(q) == 5
    with Queue(tmp_path / "other.db") as other:
        other.put({"prompt": "a fox"}, samples=3)
        assert [job.seed for job in other.jobs()] == [job.seed for job in jobs]
    q.put({"prompt": "chosen"}, samples=2, seed=7)
    assert [job.seed for job in q.jobs(newest=2)] == [7, 8]


def test_a_seed_makes_a_job_of_its_own(q: Queue) -> None:
    for seed in (None, 1, 2, 1):
        q.put({"prompt": "a fox"}, seed=seed)
    assert len(q) == 3


def test_batches_are_listed_cancelled_and_counted_alone(q: Queue, tmp_path: Path) -> None:
    sheet = tmp_path / "foxes.csv"
    sheet.write_text("prompt\na fox\nan owl\n")
    added = q.load(sheet)
    assert (added.new, added.batch) == (2, "foxes.csv")
    assert q.load(sheet).existing == 2
    q.put({"prompt": "alone"})
    assert [job.row for job in q.jobs(batch="foxes.csv")] == [2, 3]
    assert q.cancel(batch="foxes.csv") == 2
    assert q.stats()["cancelled"] == 2


def test_a_frame_is_put_and_comes_back_as_a_frame(q: Queue) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"prompt": ["a fox", "an owl"], "priority": [0, 5], "status": ["x", "y"]})
    assert q.put_many(frame, batch="mine").new == 2
    ran: list[str] = []

    def render(job: Any) -> Any:
        ran.append(job.payload["prompt"])
        return paint(job)

    drain(q, render)
    back = q.to_frame()
    assert list(back.index) == [1, 2]
    assert list(back["prompt"]) == ["a fox", "an owl"]
    assert list(back["status"]) == ["completed"] * 2
    assert list(back["payload.status"]) == ["x", "y"]
    assert [Path(path).read_text() for path in back["output"]] == ["a fox", "an owl"]
    assert back["finished"].iloc[0].tzinfo is not None
    assert list(back["batch"]) == ["mine"] * 2


def test_an_empty_queue_has_an_empty_frame_and_no_records(q: Queue) -> None:
    assert q.to_frame().empty
    assert list(q.records()) == []
    assert q.outputs() == []
    assert not q.jobs()
    assert len(q) == 0
    assert q  # a queue without jobs is still a queue


def test_moments_are_taken_as_a_person_gives_them(q: Queue) -> None:
    soon = datetime(2027, 5, 1, 12, tzinfo=UTC)
    for n, when in enumerate((soon, soon.isoformat(), soon.timestamp())):
        assert q.put({"n": n}, not_before=when).not_before_ms == round(soon.timestamp() * 1000)


# -- what a mistake is told ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "sentence"),
    [
        ({"x": math.nan}, "payload['x'] is nan"),
        ({"x": [1, math.inf]}, "payload['x'][1] is inf"),
        ({"x": b"bytes"}, "is a bytes, which JSON cannot carry"),
        ({"x": "half \ud800"}, "half a character"),
        ({"x": 2**63}, "integer"),
        ({1: "x"}, "has the key 1, a int; keys are text"),
        ({"x": {1, 2}}, "is a set"),
        ({"x": "y" * 2_000_000}, "at most 1,048,576 fit"),
    ],
)
def test_a_payload_json_cannot_carry_is_refused_and_nothing_is_put(
    q: Queue, payload: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(PayloadError) as refused:
        q.put(payload)
    assert sentence in str(refused.value)
    assert len(q) == 0


@pytest.mark.parametrize("payload", ["a fox", ["a fox"], None, 3])
def test_put_takes_a_dict(q: Queue, payload: Any) -> None:
    with pytest.raises(UsageError, match=r"put\(\) takes one payload, a dict"):
        q.put(payload)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"samples": 0}, "samples 0: expected a whole number from 1"),
        ({"samples": True}, "samples True"),
        ({"priority": 1.5}, "priority 1.5: expected a whole number"),
        ({"max_attempts": 0}, "max_attempts 0"),
        ({"timeout_s": 0}, "timeout_s 0: expected seconds above 0"),
        ({"timeout_s": math.nan}, "timeout_s nan"),
        ({"timeout_s": "5"}, "timeout_s '5'"),
        ({"seed": -1}, "seed -1"),
        ({"not_before": "soon"}, "not_before 'soon': expected a datetime, ISO text"),
        ({"expires": math.inf}, "expires inf"),
        ({"provider": echo}, "provider"),
        ({"account": 7}, "account 7"),
        ({"batch": Path("x")}, "batch"),
    ],
)
def test_a_wrong_option_is_told_by_name(q: Queue, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        q.put({"prompt": "a fox"}, **options)
    assert sentence in str(refused.value)
    assert len(q) == 0


@pytest.mark.parametrize("capacity", [0, -1, 10_001, 1.5, "3", True, None])
def test_a_capacity_is_a_whole_number_from_one(q: Queue, capacity: Any) -> None:
    with pytest.raises(UsageError, match=r"capacity .*expected"):
        q.accounts.add("studio", capacity=capacity)
    assert len(q.accounts) == 0


def test_a_bare_key_is_refused_and_never_repeated(q: Queue) -> None:
    with pytest.raises(UsageError, match="never the key") as refused:
        q.accounts.add("studio", credential="sk-live-abcdef123456")
    assert "abcdef" not in str(refused.value)
    assert len(q.accounts) == 0


def test_unknown_names_are_told_with_the_known_ones(q: Queue) -> None:
    q.accounts.add("studio")
    with pytest.raises(UnknownName, match="no account named 'studoi'; known: studio"):
        q.accounts.disable("studoi")
    with pytest.raises(UsageError, match="no status 'done'; known: queued, running"):
        q.jobs(status="done")
    with pytest.raises(UsageError, match="no status 'finished'"):
        q.cancel(status=("queued", "finished"))
    for lookup in (q.job, q.cancel, q.requeue, lambda n: q.events(job=n)):
        with pytest.raises(UnknownName, match="no job 99"):
            lookup(99)
    with pytest.raises(UnknownName, match="no job 'nobody'"):
        q.job("nobody")


def test_a_number_from_a_frames_index_names_a_job(q: Queue) -> None:
    q.put_many([{"n": 1}, {"n": 2}])
    number = q.to_frame().index[-1]
    assert not isinstance(number, int)
    assert q.job(number).payload == {"n": 2}
    assert [event.type for event in q.events(job=number)] == ["job.queued"]
    assert q.cancel(number) == 1


def no_argument() -> None: ...


def two_arguments(job: Any, other: Any) -> None: ...


async def coroutine(job: Any) -> None: ...


@pytest.mark.parametrize(
    ("handler", "options", "sentence"),
    [
        (no_argument, {}, "cannot be called with one argument, the job (too many"),
        (two_arguments, {}, "write it as: def two_arguments(job)"),
        ("render", {}, "a handler is a function called with the job; this is a str"),
        (coroutine, {"executor": "thread"}, "coroutine is an async def function"),
        (echo, {"executor": "async"}, "its executor is 'thread' or 'process', not 'async'"),
        (echo, {"executor": "gpu"}, "executor 'gpu': expected auto, async, thread or process"),
        (echo, {"concurrency": 0}, "capacity 0"),
        (None, {"concurrency": 3}, "concurrency goes with a handler"),
    ],
)
def test_a_handler_that_cannot_work_is_refused_before_anything_runs(
    q: Queue, handler: Any, options: dict[str, Any], sentence: str
) -> None:
    q.put({"prompt": "a fox"})
    for start in (q.run, q.start):
        with pytest.raises(UsageError) as refused:
            start(handler, **options)
        assert sentence in str(refused.value)
    assert q.stats()["queued"] == 1
    assert q._shared.run is None


def test_a_wrong_handler_is_a_handler_error(q: Queue) -> None:
    with pytest.raises(HandlerError):
        q.provider("mine", no_argument)


def test_a_handler_named_like_an_account_of_another_provider_leaves_it_alone(q: Queue) -> None:
    q.accounts.add("echo", provider="runway", capacity=7, credential="env:RUNWAY_KEY")
    with pytest.raises(UsageError, match="echo"):
        q.start(echo)
    account = q.accounts["echo"]
    assert (account.provider, account.capacity, account.credential) == (
        "runway",
        7,
        "env:RUNWAY_KEY",
    )


def test_two_processes_that_make_the_same_account_at_once_do_not_trip_over_each_other(
    q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = type(q.accounts)
    plain = accounts.__iter__

    def seen_too_early(mine: Any) -> Any:
        seen = list(plain(mine))
        if not seen:
            mine.add("render", provider="render", capacity=4)  # the other process
        return iter(seen)

    monkeypatch.setattr(accounts, "__iter__", seen_too_early)

    def render(job: Any) -> str:
        return "done"

    q.put({"n": 1})
    q.run(render).check()
    assert len(q.accounts) == 1


def test_a_function_of_another_name_does_not_pass_the_users_accounts_by(q: Queue) -> None:
    async def make_clip(job: Any) -> Any:
        return job.account, job.attempt

    q.accounts.add("studio-a", provider="render", capacity=1, price=0.70)
    q.put_many([{"n": n} for n in range(3)])
    ways_out = r"have 'render': q.run\(make_clip, provider=…\).*provider='make_clip'\)"
    with pytest.raises(UsageError, match=ways_out):
        q.run(make_clip)
    assert [a.name for a in q.accounts] == ["studio-a"]
    assert q.stats()["queued"] == 3
    q.run(make_clip, provider="render").check()
    assert {job.account for job in q.jobs()} == {"studio-a"}
    q.accounts.add("studio-a", provider=make_clip)
    q.put({"n": 3})
    q.run(make_clip).check()
    assert q.job(4).account == "studio-a"
    assert str(q.accounts) == ("studio-a: provider make_clip, capacity 1, no key, $0.70 a job")
    with pytest.raises(UsageError, match="provider goes with a handler"):
        q.run(provider="render")


def test_an_account_made_in_passing_is_in_no_other_functions_way(q: Queue) -> None:
    q.put({"n": 1})
    q.run(echo).check()
    q.put({"n": 2})
    q.run(lambda job: 1).check()
    q.accounts.add("echo", price=0.1)  # now it is the user's own
    q.put({"n": 3})
    with pytest.raises(UsageError, match="they have 'echo'"):
        q.run(paint)


def test_an_account_of_an_older_version_that_was_made_in_passing_is_in_nobodys_way(
    tmp_path: Path,
) -> None:
    path = tmp_path / "old.db"
    with Queue(path) as q:
        q.accounts.add("local-1", capacity=2)
        q.accounts.add("render", provider="render", capacity=4)
        q.accounts.add("studio", provider="studio", capacity=4, price=1)
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM _sqlite_migrations WHERE name = 'm008_accounts_in_passing'")
    with Queue(path) as q:
        q.put({"prompt": "a fox"})
        with pytest.raises(UsageError, match="they have 'studio'"):
            q.run(paint)
        q.accounts.add("studio", price=None)
        q.accounts.remove("studio")
        q.run(paint).check()


def test_what_is_not_said_of_an_account_stays_as_it_was(q: Queue) -> None:
    money = {"price": 0.7, "budget": 9}
    key = "env:STUDIO_KEY"
    q.accounts.add("studio-a", provider="render", capacity=3, credential=key, per_minute=6, **money)
    before = q.accounts["studio-a"]
    q.accounts.disable("studio-a")
    changed = q.accounts.add("studio-a", capacity=5)
    assert str(changed) == (
        "studio-a: provider render, capacity 5, key env:STUDIO_KEY,"
        " 6 a minute, $0.70 a job, budget $9.00, paused"
    )
    assert changed.limits == before.limits
    with pytest.raises(UsageError, match="a budget needs a price"):
        q.accounts.add("studio-a", price=None)
    q.accounts.add("studio-a", price=None, budget=None, credential=None)
    assert (q.accounts["studio-a"].credential, q.accounts["studio-a"].limits) == (
        None,
        {"per_minute": 6},
    )


def test_concurrency_and_accounts_of_the_users_own_do_not_mix(q: Queue) -> None:
    q.accounts.add("a", provider="echo", capacity=2)
    with pytest.raises(UsageError, match=r"accounts of echo \(a\) have capacities of their own"):
        q.start(echo, concurrency=3)


def test_cancel_wants_to_know_which(q: Queue) -> None:
    with pytest.raises(UsageError, match="wants to know which"):
        q.cancel()


def test_only_finished_jobs_can_be_pruned(q: Queue) -> None:
    with pytest.raises(UsageError, match="only finished jobs can be pruned"):
        q.prune(older_than=0, status="queued")


@pytest.mark.parametrize("keep", [timedelta(0), timedelta(seconds=-1), "a week"])
def test_a_retention_is_more_than_nothing(q: Queue, keep: Any) -> None:
    with pytest.raises(UsageError, match="retention"):
        q.retention = keep


def test_a_file_that_is_no_queue_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes, longer than a header of SQLite would be" * 40)
    before = path.read_bytes()
    with pytest.raises(NotAQueue):
        Queue(path)
    assert path.read_bytes() == before
    with pytest.raises(NotAQueue, match="is a folder"):
        Queue(tmp_path)
    with pytest.raises(UsageError, match="SQLite files"):
        Queue("postgresql://localhost/q")


# -- running ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_run_does_all_there_is_and_leaves_nothing_running(q: Queue, kind: str) -> None:
    async def render(job: Any) -> Any:
        return job.payload

    q.put_many([{"n": n} for n in range(20)])
    summary = q.run(render if kind == "async" else echo)
    assert summary.is_complete
    assert summary.counts == {"completed": 20}
    assert str(summary).startswith("20 of 20 completed, in ")
    assert [job.result for job in q.jobs()] == [{"n": n} for n in range(20)]
    assert q._shared.run is not None
    assert not q._shared.run.is_running
    assert q.snapshot().runners == ()
    assert q.check() is not None
    assert [t for t in threading.enumerate() if t.name == "vqkit-pump"] == []


def test_run_tells_what_failed_and_where(q: Queue) -> None:
    def render(job: Any) -> None:
        raise ValueError(f"no {job.payload['prompt']}")

    q.put({"prompt": "fox"}, max_attempts=1)
    summary = q.run(render)
    assert not summary.is_complete
    (failure,) = summary.failures
    assert failure[:2] == (1, "ValueError: no fox")
    assert "test_queue.py" in str(failure[2])
    assert "raise ValueError" in str(summary)
    with pytest.raises(JobsFailed, match="job 1 failed: ValueError: no fox") as failed:
        summary.check()
    assert failed.value.failed == [1]
    with pytest.raises(JobsFailed):
        q.check()


def test_run_waits_for_nothing_that_nobody_here_can_do(q: Queue) -> None:
    q.put({"prompt": "a fox"}, account="elsewhere")
    summary = q.run(echo)
    assert summary.counts == {"queued": 1}
    assert str(summary).splitlines()[1:] == [
        "  jobs that name the account 'elsewhere' wait: there is none of that name;"
        " q.accounts.add('elsewhere', …) adds it, q.cancel(…) takes them back"
    ]


def test_registered_providers_do_the_work_of_their_accounts(q: Queue) -> None:
    @q.provider("upper")
    def shout(job: Any) -> str:
        return str(job.payload["prompt"]).upper()

    q.provider("lower", lambda job: job.payload["prompt"].lower())
    q.accounts.add("a", provider="upper")
    q.accounts.add("b", provider="lower")
    q.put({"prompt": "Fox"}, provider="upper")
    q.put({"prompt": "Fox"}, provider="lower")
    assert q.run().is_complete
    assert [job.result for job in q.jobs()] == ["FOX", "fox"]


def test_start_twice_is_the_same_run_and_a_new_cell_the_new_handler(
    q: Queue, tmp_path: Path, until: Callable[..., Any]
) -> None:
    def render(job: Any) -> str:
        return "old"

    run = q.start(render, concurrency=2)
    q.put({"n": 1})
    until(lambda: q.stats()["completed"] == 1)

    def render(job: Any) -> str:  # type: ignore[no-redef]  # the cell, run again
        return "new"

    assert q.start(render) is run
    with Queue(tmp_path / "q.db") as same:
        assert same.start(render) is run
        same.put({"n": 2})
        assert run.rest(20)
    assert run.is_running  # the other queue is still open
    assert [job.result for job in q.jobs()] == ["old", "new"]
    assert q.accounts["render"].capacity == 2
    assert run.stop() == 0
    assert not run.is_running
    assert q.start(render) is not run


def test_a_run_can_be_awaited(q: Queue) -> None:
    async def cell() -> vqkit.run.Summary:  # type: ignore[name-defined]
        run = q.start(echo)
        q.put({"n": 1})
        return await run

    assert asyncio.run(cell()).is_complete


def test_an_await_that_is_cancelled_leaves_the_work_alone(
    q: Queue, until: Callable[..., Any]
) -> None:
    gate = threading.Event()

    def render(job: Any) -> str:
        gate.wait(20)
        return "whole"

    async def cell(run: Any) -> None:
        waiting = asyncio.ensure_future(run._awaited())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    q.put({"n": 1})
    run = q.start(render)
    until(lambda: run.following == 1)
    asyncio.run(cell(run))
    assert run.is_running
    gate.set()
    assert run.wait(20).is_complete


def test_a_run_takes_the_slots_that_an_interrupted_one_leaves_at_once(
    q: Queue, until: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vqkit.pump.REAP_S", 1e6)  # nobody looks by himself
    gate = threading.Event()

    def render(job: Any) -> bool:
        return gate.wait(20)

    q.put_many([{"n": n} for n in range(3)])
    first = q.start(render, concurrency=1)
    until(lambda: first.following == 1)
    first.release()  # as an interrupt does
    second = q.start(render)
    assert second is not first
    until(lambda: second.health.state == "running")
    gate.set()
    assert second.wait(20).is_complete


def test_wait_with_a_limit_returns_how_it_stands(q: Queue) -> None:
    gate = threading.Event()
    q.put({"n": 1})
    run = q.start(lambda job: gate.wait(20))
    summary = run.wait(0.05)
    assert not summary.is_complete
    gate.set()
    assert run.wait(20).is_complete


def test_pause_and_resume_from_any_handle(q: Queue, until: Callable[..., Any]) -> None:
    run = q.start(echo)
    run.pause()
    q.put({"n": 1})
    until(lambda: run.health.state == "paused")
    assert q.snapshot().is_paused
    assert "paused" in repr(q)
    assert q.stats()["queued"] == 1
    q.resume()
    assert run.wait(20).is_complete
    assert {"queue.paused", "queue.resumed"} <= {e.type for e in q.events()}


def test_stop_follows_plain_functions_and_says_how_many(q: Queue) -> None:
    began, gate = threading.Event(), threading.Event()

    def render(job: Any) -> str:
        began.set()
        gate.wait(20)
        return "to the end"

    q.put_many([{"n": 1}, {"n": 2}])
    run = q.start(render, concurrency=1)
    assert began.wait(20)
    assert run.stop(grace_s=0.0) == 1
    assert run.is_stopping
    gate.set()
    assert run.stop(grace_s=None) == 0
    assert q.stats() == {**dict.fromkeys(STATUSES, 0), "completed": 1, "queued": 1, "total": 2}


def test_cancel_reaches_what_runs(q: Queue, until: Callable[..., Any]) -> None:
    began = threading.Event()

    async def render(job: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    q.put_many([{"n": n} for n in range(3)])
    run = q.start(render, concurrency=1)
    assert began.wait(20)
    assert q.cancel(status=("queued", "running")) == 3
    assert run.wait(20).counts == {"cancelled": 3}
    assert q.cancel(1, 2, 3) == 0


def test_a_dead_pump_is_told_by_wait_run_and_check(
    q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: Any, next_ms: Any) -> None:
        raise ZeroDivisionError("a fault of ours")

    end, is_let_go = Pump._end, []

    async def slow_end(self: Any, lock: Any) -> None:
        await asyncio.sleep(0.3)  # until it has let go, a new run would find its jobs taken
        await end(self, lock)
        is_let_go.append(True)

    monkeypatch.setattr("vqkit.pump.Pump._rest", broken)
    monkeypatch.setattr("vqkit.pump.Pump._end", slow_end)
    q.put({"n": 1})
    with pytest.raises(PumpError, match="ZeroDivisionError: a fault of ours"):
        q.run(echo)
    assert is_let_go
    with pytest.raises(PumpError):
        q.check()
    (runner,) = q.snapshot().runners
    assert (runner.state, runner.is_alive) == ("failed", False)
    assert "a fault of ours" in str(runner.trouble)
    monkeypatch.undo()
    assert q.run(echo).is_complete


# -- afterwards ---------------------------------------------------------------------------


def test_failed_jobs_are_listed_requeued_and_done(q: Queue) -> None:
    bad = {2, 3}

    def render(job: Any) -> int:
        if job.payload["n"] in bad:
            raise GiveUp("no")
        return int(job.payload["n"])

    q.put_many([{"n": n} for n in range(1, 5)])
    drain(q, render)
    assert [job.number for job in q.jobs(status="failed")] == [2, 3]
    bad.clear()
    assert q.requeue() == 2
    assert [job.attempt for job in q.jobs(status="queued")] == [0, 0]
    assert drain(q, render).is_complete
    assert q.requeue() == 0
    assert q.requeue(1) == 1
    with pytest.raises(UnknownName, match="no batch 'none' in this queue; it has none yet"):
        q.requeue(status="completed", batch="none")


def test_a_render_asked_for_again_keeps_the_first_file_and_names_the_second(q: Queue) -> None:
    q.put({"prompt": "a fox"})
    drain(q, paint)
    (first,) = q.outputs()
    assert q.job(1).result == first.name
    q.requeue(1)
    drain(q, paint)
    (second,) = q.outputs(1)
    assert first.exists()
    assert second != first
    assert q.job(1).result == second.name
    (record,) = q.records()
    assert record["output"] == str(second)


def test_events_are_followed_by_their_ids(q: Queue) -> None:
    q.put({"n": 1})
    seen = q.events()[-1].id
    q.put({"n": 2})
    drain(q, echo)
    assert [e.type for e in q.events(after=seen, job=2)] == [
        "job.queued",
        "job.started",
        "job.completed",
    ]
    assert [e.type for e in q.events(limit=1)] == ["job.queued"]
    assert q.events(after=10**9) == []
    assert [a.outcome for a in q.attempts(1)] == ["completed"]
    assert len(q.attempts()) == 2


def test_prune_and_retention_drop_what_is_old(q: Queue) -> None:
    q.put_many([{"n": n} for n in range(3)])
    clock = ManualClock(round((time.time() - 3600) * 1000))
    drain(q, paint_or_fail, clock=clock)
    assert q.stats()["failed"] == 1
    assert q.prune(older_than=timedelta(days=1)) == 0
    assert q.prune(older_than=60, status="completed") == 2
    assert [job.number for job in q.jobs()] == [2]
    assert q.put({"n": 0}).number == 4
    assert q.retention is None
    q.retention = timedelta(days=30)
    assert q.retention == timedelta(days=30)
    q.retention = None
    assert q.retention is None


def paint_or_fail(job: Any) -> int:
    if job.payload["n"] == 1:
        raise GiveUp("no")
    return 1


def test_many_jobs_are_read_a_page_at_a_time(q: Queue) -> None:
    q.put_many([{"n": n} for n in range(1203)])
    assert [job.payload["n"] for job in q.iter_jobs()] == list(range(1203))
    assert len(q.jobs()) == 1203
    assert [job.number for job in q.jobs(newest=2)] == [1202, 1203]


def test_a_backup_is_a_queue_and_never_overwrites(q: Queue, tmp_path: Path) -> None:
    q.put_many([{"n": n} for n in range(5)])
    copy = q.backup(tmp_path / "copy.db")
    q.put({"n": "later"})
    with Queue(copy) as other:
        assert len(other) == 5
    with pytest.raises(UsageError, match="exists; give the copy another name"):
        q.backup(copy)


# -- the file -----------------------------------------------------------------------------


def test_a_closed_queue_says_so_and_opens_again(tmp_path: Path) -> None:
    q = Queue(tmp_path / "q.db")
    q.put({"n": 1})
    q.close()
    q.close()
    assert repr(q) == "<Queue q.db: closed>"
    assert "closed" in q._repr_html_()
    for use in (lambda: q.put({"n": 2}), q.stats, lambda: q.start(echo), q.snapshot):
        with pytest.raises(StoreLost, match="this queue is closed; open it again"):
            use()
    with Queue(tmp_path / "q.db") as again:
        assert len(again) == 1
        assert again.run(echo).is_complete


def test_looking_at_a_closed_queue_does_not_bring_back_its_folder(tmp_path: Path) -> None:
    """A dashboard looks once more after the cell that closed the queue and deleted its folder."""
    folder = tmp_path / "run"
    q = Queue(folder / "q.db")
    q.close()
    shutil.rmtree(folder)
    for look in (q.snapshot, q.signs):
        with pytest.raises(StoreLost):
            look()
        assert not folder.exists()


def test_the_outputs_folder_is_remembered(tmp_path: Path) -> None:
    with Queue(tmp_path / "q.db", outputs=tmp_path / "clips") as q:
        assert q.outputs_folder == tmp_path / "clips"
    with Queue(tmp_path / "q.db") as q:
        assert q.outputs_folder == tmp_path / "clips"
    with Queue(tmp_path / "other.db") as q:
        assert q.outputs_folder == tmp_path / "other"
    with Queue(tmp_path / "plain") as q:
        assert q.outputs_folder == tmp_path / "plain-files"


def test_a_database_deleted_while_open_is_told_and_a_new_one_opens(tmp_path: Path) -> None:
    q = Queue(tmp_path / "q.db")
    q.put({"n": 1})
    (tmp_path / "q.db").unlink()
    with pytest.raises(StoreLost, match="was moved or deleted while the queue was open"):
        q.put({"n": 2})
    with Queue(tmp_path / "q.db") as fresh:
        assert len(fresh) == 0
        assert fresh.run(echo).counts == {}
        with pytest.raises(StoreLost):
            q.put({"n": 3})
    q.close()


def test_a_database_replaced_while_open_is_told_to_the_run_too(
    tmp_path: Path, until: Callable[..., Any]
) -> None:
    with Queue(tmp_path / "other.db") as other:
        other.put({"n": "other"})
    q = Queue(tmp_path / "q.db")
    run = q.start(echo)
    (tmp_path / "other.db").replace(tmp_path / "q.db")
    with pytest.raises(StoreLost, match="was replaced while the queue was open"):
        q.put({"n": 1})
    run.poke()
    until(lambda: run.error is not None)
    with pytest.raises(PumpError, match="was replaced"):
        run.wait(5)
    q.close()


# -- shown --------------------------------------------------------------------------------


def test_nothing_a_user_wrote_becomes_html(q: Queue) -> None:
    def render(job: Any) -> Any:
        job.stage(NASTY)
        if job.payload["prompt"] == "fails " + NASTY:
            raise GiveUp(NASTY)
        return NASTY

    q.provider(NASTY, render)
    q.accounts.add("a " + NASTY, provider=NASTY)
    q.accounts.add("b " + NASTY, provider="unknown " + NASTY)
    q.put({"prompt": "works " + NASTY}, batch=NASTY, key=NASTY)
    q.put({"prompt": "fails " + NASTY})
    q.put({"prompt": "waits " + NASTY}, account="nobody " + NASTY)
    drain(q)
    shown = [q._repr_html_(), q.accounts._repr_html_(), q.snapshot()._repr_html_()]
    shown += [job._repr_html_() for job in q.jobs()]
    for page in shown:
        assert "<img" not in page
        assert "onerror=alert(1)>" not in page
    everything = "".join(shown)
    assert "&lt;img src=x onerror=alert(1)&gt;&amp;" in everything
    assert "works " in everything
    assert "fails " in everything
    assert "nobody " in everything
    assert "&lt;img" in q.accounts._repr_html_()


def test_what_is_shown_is_short_and_true(q: Queue) -> None:
    assert repr(q) == "<Queue q.db: no jobs yet>"
    q.put_many([{"n": n} for n in range(4)])
    assert "4" in q._repr_html_()
    drain(q, echo)
    assert repr(q) == "<Queue q.db: 4 of 4 done>"
    assert 'aria-valuenow="4"' in q._repr_html_()
    assert repr(q.accounts) == "echo: provider echo, capacity 4, no key"
    assert str(q.snapshot()).splitlines() == [
        "4 of 4 done",
        "  echo (echo): 0 of 4 slots busy, 4 done, 0 failed",
    ]
    assert q.snapshot().to_dict()["counts"]["completed"] == 4


# -- testing one's handlers ---------------------------------------------------------------


def test_drain_lets_a_year_pass_at_once(q: Queue) -> None:
    tries: list[int] = []

    def render(job: Any) -> str:
        tries.append(job.attempt)
        if len(tries) == 1:
            raise Snooze(86400 * 30)
        if job.attempt < 3:
            raise ValueError("flaky")
        return "third"

    q.put({"prompt": "a fox"}, not_before=time.time() + 86400 * 365)
    begun_s = time.monotonic()
    summary = drain(q, render, retry=Retry(base_s=3600, max_s=7200, jitter="none"))
    assert time.monotonic() - begun_s < 10
    assert summary.is_complete
    assert tries == [1, 1, 2, 3]
    assert summary.seconds == pytest.approx(86400 * 395 + 3 * 3600, abs=5)
    later = q.put({"prompt": "after"})  # the system's clock is back
    assert abs(later.created_ms - time.time() * 1000) < 60_000
    assert q.snapshot().at_ms < time.time() * 1000 + 60_000


def test_a_manual_clock_wakes_each_sleeper_when_its_time_has_come() -> None:
    async def test() -> None:
        clock, woken = ManualClock(1_000), list[tuple[str, int, bool]]()
        event = asyncio.Event()

        async def sleep(name: str, seconds: float | None) -> None:
            woken.append((name, clock.now_ms(), await clock.wait(event, seconds)))

        async with asyncio.TaskGroup() as group:
            group.create_task(sleep("at once", 0))
            group.create_task(sleep("short", 0.5))
            group.create_task(sleep("long", 2))
            group.create_task(sleep("for ever", None))
            await asyncio.sleep(0)
            assert clock.sleepers == 3
            clock.advance(0.499)
            await _turns()
            assert [name for name, *_ in woken] == ["at once"]
            clock.advance(0.001)
            assert clock.sleepers == 2
            await _turns()
            assert [name for name, *_ in woken] == ["at once", "short"]
            clock.advance(1)
            event.set()
            assert clock.sleepers == 0
            await _turns()
            assert not any(told for *_, told in woken[:2])
            assert {name for name, *_, told in woken if told} == {"long", "for ever"}
        assert await clock.wait(event, 5)
        assert clock.now_ms() == 2_500

    asyncio.run(test())


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_drain_on_a_clock_of_ones_own_and_in_a_coroutine(q: Queue) -> None:
    clock = ManualClock()

    async def render(job: Any) -> int:
        if job.attempt == 1:
            raise ValueError
        return clock.now_ms()

    async def test() -> None:
        q.put({"n": 1})
        summary = await drained(q, render, clock=clock, retry=Retry(base_s=60, jitter="none"))
        assert summary.is_complete
        with pytest.raises(UsageError, match="await drained"):
            drain(q, render)

    asyncio.run(test())
    assert q.job(1).result == 1_767_225_600_000 + 60_000
    with pytest.raises(UsageError, match="time goes forward"):
        clock.advance(-1)


def test_drain_refuses_a_queue_that_is_being_run(q: Queue) -> None:
    q.start(echo)
    with pytest.raises(UsageError, match="being run already"):
        drain(q, echo)


def test_drain_tells_what_could_not_run(q: Queue) -> None:
    q.put({"n": 1}, provider="nobody")
    assert "no account has it" in str(drain(q, echo))


def test_a_new_handler_does_all_jobs_that_name_nobody(tmp_path: Path) -> None:
    def first(job: Any) -> str:
        return "first"

    def second(job: Any) -> str:
        return "second"

    with Queue(tmp_path / "q.db") as q:
        q.put_many([{"n": n} for n in range(3)])
        q.run(first)
        q.put_many([{"n": n} for n in range(3, 9)])
        q.put({"n": "named"}, provider="first")
        q.run(second)
        assert [job.result for job in q.jobs()] == ["first"] * 3 + ["second"] * 6 + ["first"]
        q.requeue(status="completed")
        q.run(first)
        assert {job.result for job in q.jobs()} == {"first"}


def test_a_call_that_was_never_awaited_is_no_result(tmp_path: Path) -> None:
    async def call() -> int:
        return 1

    async def forgot(job: Any) -> Any:
        return {"video": call()}

    with Queue(tmp_path / "q.db") as q:
        q.put({"n": 1})
        q.run(forgot)
        assert "an 'await' is missing" in q.job(1).error["message"]


def test_one_value_json_cannot_carry_does_not_cost_the_others(tmp_path: Path) -> None:
    def work(job: Any) -> Any:
        return {"clip": b"\0\0\0\x18ftypmp42", "seconds": 2, "when": {1, 2}}

    with Queue(tmp_path / "q.db") as q:
        q.put({"n": 1})
        q.run(work)
        result = q.job(1).result
        assert result["seconds"] == 2
        assert result["when"] == "{1, 2}"
        assert q.outputs(1)[0].name == result["clip"]
        assert q.outputs(1)[0].suffix == ".mp4"


def test_a_second_chance_keeps_the_time_a_job_was_put_for(tmp_path: Path) -> None:
    with Queue(tmp_path / "q.db") as q:
        q.put({"n": 1}, not_before="2130-01-01")
        q.cancel(1)
        assert q.requeue(1, status="cancelled") == 1
        assert q.job(1).not_before_ms is not None


def test_retry_wants_a_retry(tmp_path: Path) -> None:
    with Queue(tmp_path / "q.db") as q, pytest.raises(UsageError, match="expected such as Retry"):
        q.start(lambda job: None, retry=3)  # type: ignore[arg-type]


def test_a_doubt_is_told_with_what_to_do(tmp_path: Path) -> None:
    def send(key: str) -> None:
        raise ConnectionError("lost")

    def work(job: Any) -> Any:
        return job.once("submit", send, paid=True)

    with Queue(tmp_path / "q.db") as q:
        q.put({"n": 1})
        told = str(q.run(work))
        assert "1 in doubt" in told
        assert 'q.resolve(1, "attach" |' in told
        with pytest.raises(JobsFailed, match=r"q\.resolve\(1"):
            q.check()
        q.resolve(1, "give_up")
        assert q.job(1).status == "failed"


def test_a_run_that_is_paused_returns_and_says_so(q: Queue) -> None:
    begun, more = threading.Event(), threading.Event()

    def render(job: Any) -> None:
        begun.set()
        assert more.wait(20)

    def pause() -> None:
        assert begun.wait(20)
        q.pause()
        more.set()

    q.put_many([{"n": n} for n in range(3)])
    pausing = threading.Thread(target=pause)
    pausing.start()
    summary = q.run(render, concurrency=1)
    pausing.join()
    assert (summary.counts["completed"], summary.counts["queued"]) == (1, 2)
    assert summary.why["the queue"] == "paused by you: q.resume() lets it go on"
    assert "paused by you" in str(summary)
    assert "paused" in str(q.run(render))  # and does not wait now either
    q.resume()
    assert q.run(render).is_complete


def test_awaiting_a_run_ends_with_a_pause_and_the_run_goes_on_when_resumed(q: Queue) -> None:
    async def render(job: Any) -> None:
        """Does nothing."""

    async def awaited() -> Summary:
        return await run

    q.pause()
    q.put({})
    run = q.start(render)
    assert "paused by you" in str(asyncio.run(awaited()))
    q.resume()
    assert asyncio.run(awaited()).is_complete
    run.stop()


# -- a run that was waited for is over -----------------------------------------------------------


def test_what_is_put_after_a_run_was_waited_for_waits_for_the_next(q: Queue) -> None:
    async def old(job: Any) -> str:
        return "old"

    async def new(job: Any) -> str:
        return "new"

    q.put({"n": 1})
    run = q.start(old)
    assert run.wait().is_complete
    assert not run.is_running
    q.put({"n": 2})
    assert q.run(new).is_complete
    assert [job.result for job in q.jobs()] == ["old", "new"]


def test_awaiting_a_run_ends_it_too(q: Queue) -> None:
    async def render(job: Any) -> None: ...

    async def cell() -> Any:
        run = q.start(render)
        await run
        return run

    q.put({"n": 1})
    assert not asyncio.run(cell()).is_running


def test_a_paused_queue_keeps_its_run(q: Queue) -> None:
    async def render(job: Any) -> None: ...

    q.put({"n": 1})
    q.pause()
    run = q.start(render)
    assert run.wait().counts["queued"] == 1
    assert run.is_running
    q.resume()
    assert run.wait().is_complete


def test_a_run_is_not_ended_by_a_wait_that_was_too_short(q: Queue) -> None:
    release = threading.Event()

    def slow(job: Any) -> None:
        release.wait(30)

    q.put({"n": 1})
    run = q.start(slow)
    assert "completed" not in run.wait(timeout_s=0.01).counts
    assert run.is_running
    release.set()
    assert run.wait().is_complete


def test_a_summary_may_be_awaited(q: Queue) -> None:
    async def render(job: Any) -> None: ...

    async def cell() -> Any:
        return await q.run(render)

    q.put({"n": 1})
    assert asyncio.run(cell()).is_complete


# -- what tired users meet first ------------------------------------------------------------------


def test_a_column_that_is_not_there_is_told_with_those_that_are(q: Queue) -> None:
    async def render(job: Any) -> str:
        return str(job.payload["prompt"])

    q.put({"Prompt": "a fox", "w": 1})
    q.put({"w": 2})
    q.run(render, retry=Retry(max_attempts=1))
    renamed, blank = (job.error["message"] for job in q.jobs())
    assert renamed == (
        "no 'prompt' in this row, which has 'Prompt', 'w';"
        " q.load(…, columns={'Prompt': 'prompt'}) renames it and keeps the others"
    )
    assert "job.payload.get('prompt') allows for it" in blank
    assert q.jobs()[0].error["type"] == "MissingCell"


def test_an_account_added_by_mistake_can_be_taken_away(q: Queue) -> None:
    async def render(job: Any) -> None: ...

    q.put({"n": 1})
    q.run(render)
    q.accounts.add("typo", provider="zz")
    q.accounts.remove("typo")
    assert [a.name for a in q.accounts] == ["render"]
    with pytest.raises(UsageError, match=r"disable\('render'\)"):
        q.accounts.remove("render")
    with pytest.raises(UnknownName):
        q.accounts.remove("typo")


def test_a_job_reads_in_its_own_letters(q: Queue) -> None:
    assert "狐" in repr(q.put({"text": "狐", "n": 1}))


def test_a_batch_nobody_put_is_told_with_those_there_are(q: Queue) -> None:
    q.put({"n": 1}, batch="shots.xlsx[shots]")
    for ask in (q.cancel, q.requeue):
        with pytest.raises(UnknownName, match=r"did you mean 'shots.xlsx\[shots\]'"):
            ask(batch="shots.xlsx")


def test_a_list_of_texts_is_refused_whole(q: Queue) -> None:
    with pytest.raises(SheetError, match=r"found a list of str; expected .* \[\{'prompt'"):
        q.put_many(["a fox", "an owl"])


def test_renaming_a_column_keeps_the_others(q: Queue) -> None:
    rows = [{"Prompt": "a fox", "style": "oil", "note": "x"}]
    q.put_many(rows, columns={"Prompt": "prompt", "note": None})
    assert q.job(1).payload == {"prompt": "a fox", "style": "oil"}


def test_giving_up_before_anybody_was_called_costs_nothing(q: Queue) -> None:
    async def render(job: Any) -> None:
        raise GiveUp("no such style", cost=job.payload["cost"])

    q.accounts.add("a", provider="render", price=0.7)
    q.put({"cost": 0.0})
    q.put({"cost": 0.25})
    q.run(render)
    assert [(r["money"], r["cost"]) for r in q.cost_records()] == [
        ("not billed", 0.0),
        ("billed", 0.25),
    ]


def test_a_missing_column_is_not_looked_for_again(q: Queue) -> None:
    async def render(job: Any) -> str:
        return str(job.payload["prompt"])

    q.put({"n": 1})
    q.run(render)
    assert (q.job(1).status, q.job(1).attempt) == ("failed", 1)


def test_waiting_for_a_run_says_why_the_rest_did_not_run(q: Queue) -> None:
    async def render(job: Any) -> None: ...

    q.accounts.add("a", provider="render", credential="env:VQKIT_NO_SUCH_KEY")
    q.put({"n": 1})
    assert "VQKIT_NO_SUCH_KEY is not set" in str(q.start(render).wait())


def test_named_jobs_are_pruned_if_they_have_ended(q: Queue) -> None:
    async def render(job: Any) -> None: ...

    q.put({"n": 1})
    q.run(render)
    q.put({"n": 2})
    assert repr(q.prune(1, 2)) == "1 job forgotten"
    assert [job.number for job in q.jobs()] == [2]
    with pytest.raises(UsageError, match="which"):
        q.prune()


# -- what an adversary found ----------------------------------------------------------------------


def test_a_folder_in_place_of_a_file_fails_the_try_and_says_so(q: Queue) -> None:
    def render(job: Any) -> None:
        with job.output(".frames") as path:
            path.mkdir()

    q.put({"n": 1})
    q.run(render, retry=Retry(max_attempts=1))
    assert "gives a file, and there is a folder now" in q.job(1).error["message"]  # type: ignore[index]


def test_a_finished_file_that_never_can_be_stored_does_not_hold_its_slot(
    q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish(*_: Any) -> Any:
        raise OSError(errno.ELOOP, "Too many levels of symbolic links")

    monkeypatch.setattr("vqkit.outputs.OutputFolder.finish", finish)
    q.put({"prompt": "a fox"})
    q.run(paint, retry=Retry(max_attempts=1))
    assert "symbolic links" in q.job(1).error["message"]  # type: ignore[index]


@pytest.mark.parametrize("is_async", [True, False])
def test_a_handler_cannot_wait_for_the_run_it_works_for(q: Queue, is_async: bool) -> None:
    def plain(job: Any) -> None:
        q.run()

    async def coroutine(job: Any) -> None:
        await q.start()

    q.put({"n": 1})
    q.run(coroutine if is_async else plain, retry=Retry(max_attempts=1))
    assert "it would wait for itself" in q.job(1).error["message"]  # type: ignore[index]


def test_a_hard_link_is_refused_and_the_way_out_told(q: Queue, tmp_path: Path) -> None:
    q.put({"n": 1})
    (tmp_path / "q2.db").hardlink_to(q.path)
    with pytest.raises(StoreError, match=r"one of 2 hard links.*cp q2.db copy.db"):
        Queue(tmp_path / "q2.db")


@pytest.mark.parametrize("told", [1e300, float("nan")])
def test_an_absurd_retry_after_neither_stops_the_pump_nor_counts_as_spent(q, until, told):
    def render(job):
        if job.payload["prompt"] == "first":
            raise ProviderError("slow down", "rate", retry_after_s=told)
        return "done"

    q.accounts.add("a", provider="render", price=0.25)
    q.accounts.add("b", provider="render")
    q.put({"prompt": "first"}, account="a")
    q.put({"prompt": "second"}, account="b")
    run = q.start(render)
    until(lambda: q.job(2).status == "completed" and q.job(1).not_before_ms)
    assert run.is_running
    assert "it asked to wait" in q.accounts["a"].parked_reason
    assert not any(q.costs()["cost"].fillna(0))
    run.stop()


@pytest.mark.parametrize(
    "when", [1e300, float("inf"), float("nan"), -1e300, 10**400], ids=lambda when: str(when)[:9]
)
def test_a_moment_beyond_all_years_is_one_clear_sentence(q, when):
    with pytest.raises(UsageError, match=r"not_before .*: expected a datetime, ISO text"):
        q.put({"prompt": "a fox"}, not_before=when)
    with pytest.raises(UsageError, match=r"older_than .*: expected a timedelta"):
        q.prune(older_than=-abs(when))
    assert q.stats()["total"] == 0


def test_verbs_answer_a_number_that_a_cell_shows_as_a_sentence(q: Queue) -> None:
    def fail(job: Any) -> None:
        raise GiveUp("no")

    q.put_many([{"n": n} for n in range(3)])
    n = q.cancel(1)
    assert (n, repr(n), f"{n}", n + 1) == (1, "1 job cancelled", "1", 2)
    q.run(fail)
    assert repr(q.requeue()) == "2 jobs put back"
    assert repr(q.requeue()) == "0 jobs put back"
    assert repr(pickle.loads(pickle.dumps(n))) == repr(n)
    assert json.dumps([n]) == "[1]"


def test_a_batch_is_cancelled_but_for_what_is_in_doubt(q: Queue) -> None:
    def render(job: Any) -> None:
        def lost() -> None:
            raise TimeoutError

        job.once("submit", lost, paid=True)

    q.put({"n": 1}, batch="foxes")
    q.run(render)
    q.put_many([{"n": 2}, {"n": 3}], batch="foxes")
    said = repr(q.cancel(batch="foxes"))
    assert said.startswith("2 jobs cancelled; 1 job in doubt left alone")
    assert [job.status for job in q.jobs()] == ["in_doubt", "cancelled", "cancelled"]
    assert "in doubt" in q.snapshot().headline
    assert q.cancel(1) == 1
    assert q.job(1).status == "cancelled"


def test_pruning_a_job_whose_row_is_still_there_says_that_it_comes_back(
    q: Queue, tmp_path: Path
) -> None:
    async def render(job: Any) -> None: ...

    sheet = tmp_path / "foxes.csv"
    sheet.write_text("prompt\na fox\nan owl\n")
    q.load(sheet)
    q.run(render)
    assert "row 2 of job 1 is still in foxes.csv: the next load" in repr(q.prune(1))
    sheet.write_text("prompt\na fox\n")
    q.load(sheet)
    assert repr(q.prune(2)) == "1 job forgotten"
