"""The books of functions with paid steps: one paid call is counted once, however it goes on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vqkit import GiveUp, Queue, Retry, Snooze
from vqkit.errors import ProviderError
from vqkit.recovery import recover
from vqkit.store.base import Claim
from vqkit.store.sqlite import SqliteStore

QUICK = Retry(base_s=0.0, max_s=0.0)


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "waited 20 s in vain"
        time.sleep(0.005)


def books(q: Queue) -> tuple[list[str | None], float, float]:
    """What each try is said to have cost, what is counted, and what is set aside."""
    (money,) = q._read(lambda s: s.money(0)).values()
    return [r["money"] for r in q.cost_records()], money[0] / 1e6, money[1] / 1e6


class Handler:
    """A function with one paid call, of which the first tries end as they are told to."""

    def __init__(self, *ends: BaseException) -> None:
        self.ends, self.calls = list(ends), 0

    def __call__(self, job: Any) -> str:
        def send() -> str:
            self.calls += 1
            return "answer"

        told = str(job.once("submit", send, paid=True))
        if self.ends:
            raise self.ends.pop(0)
        return told


def open_books(folder: Path, **limits: Any) -> Queue:
    q = Queue(folder / "q.db")
    q.accounts.add("a", provider="render", price=1, **limits)
    q.put({"n": 1})
    return q


@pytest.mark.parametrize(
    "end",
    [
        ValueError("the file was not written"),
        Snooze(0),
        ProviderError("not now", "rate", retry_after_s=0),
    ],
    ids=lambda end: type(end).__name__,
)
def test_a_paid_call_is_counted_once_however_many_tries_go_on_with_it(
    tmp_path: Path, end: BaseException
) -> None:
    render = Handler(end, end)
    with open_books(tmp_path, budget=1) as q:
        q.run(render_of(render), retry=QUICK).check()
        assert (render.calls, q.job(1).result) == (1, "answer")
        assert books(q) == (["handed on", "handed on", "billed"], 1.0, 0.0)


def render_of(render: Handler) -> Any:
    def handler(job: Any) -> str:
        return render(job)

    handler.__name__ = "render"
    return handler


@pytest.mark.parametrize("is_budget_used_up", [True, False])
def test_a_second_chance_counts_no_paid_call_again(tmp_path: Path, is_budget_used_up: bool) -> None:
    render = Handler(ValueError("1"), GiveUp("2"), ProviderError("3", "invalid"), ValueError("4"))
    limits = {"budget": 1} if is_budget_used_up else {}
    with open_books(tmp_path, **limits) as q:
        for _ in range(4):
            q.run(render_of(render), retry=Retry(max_attempts=1))
            assert q.job(1).status == "failed"
            q.requeue(1)
        q.run(render_of(render)).check()
        assert (render.calls, books(q)[1:]) == (1, (1.0, 0.0))
        q.requeue(1, status="completed")  # another render, which the budget does not cover
        q.run(render_of(render))
        assert render.calls == (1 if is_budget_used_up else 2)
        assert books(q)[1:] == (float(render.calls), 0.0)


def test_a_refusal_after_a_paid_call_does_not_unspend_it(tmp_path: Path) -> None:
    render = Handler(ProviderError("no such task", "invalid"))
    with open_books(tmp_path) as q:
        q.run(render_of(render))
        assert books(q) == (["unknown"], 1.0, 0.0)


def test_a_call_that_was_not_accepted_keeps_no_money_aside(tmp_path: Path) -> None:
    refusals = [ProviderError("later", "rate", retry_after_s=0), None]

    def render(job: Any) -> Any:
        def send() -> str:
            if (refusal := refusals.pop(0)) is not None:
                raise refusal
            return "answer"

        return job.once("submit", send, paid=True)

    with open_books(tmp_path, budget=1) as q:
        q.run(render).check()
        assert books(q) == (["not billed", "billed"], 1.0, 0.0)


def test_a_paid_call_of_a_job_that_is_cancelled_while_it_waits_stays_counted(
    tmp_path: Path,
) -> None:
    render = Handler()

    def once_paused(job: Any) -> None:
        told = render(job)
        q.pause()
        raise Snooze(0, f"paused with {told}")

    with open_books(tmp_path) as q:
        once_paused.__name__ = "render"
        q.run(once_paused)
        assert (q.job(1).status, books(q)) == ("queued", (["estimated"], 0.0, 1.0))
        q.cancel(1)
        assert books(q) == (["unknown"], 1.0, 0.0)
        q.requeue(1, status="cancelled")
        q.resume()
        q.run(render_of(render)).check()
        assert (render.calls, books(q)[1:]) == (1, (1.0, 0.0))


def test_a_job_that_is_cancelled_in_its_paid_call_counts_it_once(tmp_path: Path) -> None:
    calls, begun, go_on = [], threading.Event(), threading.Event()

    def render(job: Any) -> Any:
        def send() -> str:
            calls.append(1)
            begun.set()
            assert go_on.wait(20)
            return "answer"

        told = job.once("submit", send, paid=True)
        job.check_cancelled()
        return told

    with open_books(tmp_path) as q:
        run = q.start(render)
        assert begun.wait(20)
        q.cancel(1)
        go_on.set()
        until(lambda: q.job(1).status == "cancelled")
        q.requeue(1, status="cancelled")
        run.wait().check()
        assert (q.job(1).result, len(calls), books(q)[1:]) == ("answer", 1, (1.0, 0.0))


def test_an_attached_answer_of_a_function_is_counted_once(tmp_path: Path) -> None:
    def render(job: Any) -> Any:
        def send() -> None:
            raise TimeoutError("no answer")

        return job.once("submit", send, paid=True)

    with open_books(tmp_path, budget=1) as q:
        q.run(render)
        assert (q.job(1).status, books(q)[1:]) == ("in_doubt", (0.0, 1.0))
        q.resolve(1, "attach", value="ok")
        q.run(render).check()
        assert books(q)[1:] == (1.0, 0.0)


def test_a_paid_call_goes_to_the_books_of_the_account_that_made_it(tmp_path: Path) -> None:
    render = Handler(ValueError("1"))
    with open_books(tmp_path) as q:
        q.accounts.add("b", provider="render", price=1)
        q.accounts.disable("b")
        q.run(render_of(render), retry=Retry(max_attempts=1))
        q.requeue(1)
        render.ends.append(Snooze(0.2))
        run = q.start(render_of(render))
        until(lambda: len(q.attempts()) == 2 and q.job(1).status == "queued")
        q.accounts.disable("a")
        q.accounts.enable("b")
        run.wait().check()
        run.stop()
        by_account = {r["account"]: r["cost"] for r in q.cost_records() if r["cost"]}
        assert (render.calls, by_account) == (1, {"a": 1.0})


def test_a_worker_that_dies_after_its_paid_call_is_counted_once(tmp_path: Path) -> None:
    with open_books(tmp_path, budget=1) as q:
        q.put({"n": 2})
        die_once.__name__ = "render"
        q.run(die_once, executor="process", retry=QUICK)
        assert q.job(1).status == "completed"
        assert q.job(2).status == "queued"  # nothing is left of the budget for it
        assert books(q) == (["handed on", "billed"], 1.0, 0.0)


def die_once(job: Any) -> str:
    told = str(job.once("submit", lambda: "answer", paid=True))
    if job._job.crashes == 0:
        os._exit(9)
    return told


def test_a_process_that_dies_after_its_paid_call_is_counted_once(tmp_path: Path) -> None:
    render = Handler()

    def die(store: SqliteStore) -> None:
        (job,) = store.turn(claim=Claim("dead", lambda account: None)).claimed
        kept = {"is_paid": True, "request_json": None}
        step, _ = store.begin_step(job.number, job.fence, "submit", **kept)
        if step.state == "intent":
            store.end_step(step, job.fence, '"answer"')

    with open_books(tmp_path, budget=1) as q:
        runners = tmp_path / "q.db-vqkit" / "runners"
        for _ in range(3):
            q._write(die)
            q._write(lambda store: recover(store, "me", runners, q._files, 25))
            assert books(q)[1:] == (0.0, 1.0)
        q.run(render_of(render), retry=QUICK).check()
        assert (render.calls, q.job(1).result) == (0, "answer")
        assert books(q) == (["handed on"] * 3 + ["billed"], 1.0, 0.0)


@pytest.mark.parametrize("is_requeued", [True, False])
def test_each_call_is_counted_where_tries_fail_between_renewals(
    tmp_path: Path, is_requeued: bool
) -> None:
    calls: list[str] = []

    def render(job: Any) -> int:
        def send(key: str) -> int:
            calls.append(key)
            return len(calls)

        while (number := job.once("submit", send, paid=True)) < 6:
            if job.once("tries", lambda: job._job.fence) == job._job.fence:
                raise ValueError("once for every call")
            job.fresh()
        return int(number)

    retry = Retry(max_attempts=1 if is_requeued else 20, base_s=0, max_s=0)
    with open_books(tmp_path) as q:
        while q.run(render, retry=retry).counts.get("failed"):
            q.requeue(1)
        assert (q.job(1).result, len(calls), len(set(calls))) == (6, 6, 6)
        assert books(q)[1:] == (6.0, 0.0)
        assert sum(r["cost"] or 0 for r in q.cost_records()) == 6.0


@pytest.mark.parametrize("is_begun", [True, False])
def test_a_process_that_dies_without_a_paid_call_is_counted_as_before(
    tmp_path: Path, is_begun: bool
) -> None:
    """Nobody can know what a function without paid steps had spent."""

    def die(store: SqliteStore) -> None:
        (job,) = store.turn(claim=Claim("dead", lambda account: None)).claimed
        if is_begun:
            kept = {"is_paid": False, "request_json": None}
            store.begin_step(job.number, job.fence, "prepare", **kept)

    with open_books(tmp_path) as q:
        q._write(die)
        q.run(render_of(Handler()), retry=QUICK).check()
        assert books(q) == (["unknown", "billed"], 2.0, 0.0)
