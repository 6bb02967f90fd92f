"""The books of functions with paid steps: one paid call is counted once, however it goes on.

And none is begun that the budget does not cover.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vqkit import GiveUp, Queue, Retry, Snooze
from vqkit.errors import ProviderError, UsageError
from vqkit.recovery import recover
from vqkit.store.base import Claim
from vqkit.store.sqlite import SqliteStore
from vqkit.testing import drain

QUICK = Retry(base_s=0.0, max_s=0.0)
NOT_COVERED = "another paid call is not covered by what is left of the budget"


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


# -- each call has its money, or is not made -------------------------------------------------


class Till:
    """Takes paid calls, in the order they are made."""

    def __init__(self, *lost: int) -> None:
        self.calls: list[str] = []
        self.lost = lost  # the numbers of the calls whose answer is lost, from 1

    def __call__(self, key: str) -> int:
        self.calls.append(key)
        if len(self.calls) in self.lost:
            raise TimeoutError("no answer")
        return len(self.calls)


def at_rest(q: Queue) -> tuple[str, float, float]:
    """How job 1 stands, what is counted and what is set aside."""
    return (q.job(1).status, *books(q)[1:])


def test_a_call_named_anew_at_each_try_has_money_of_its_own_or_is_not_made(tmp_path: Path) -> None:
    till = Till()

    def render(job: Any) -> None:
        job.once(f"submit-{job.attempt}", till, paid=True)
        raise ValueError("a bad render")

    with open_books(tmp_path, budget=2) as q:
        summary = q.run(render, retry=Retry(max_attempts=5, base_s=0, max_s=0))
        assert len(till.calls) == 2
        assert at_rest(q) == ("queued", 0.0, 2.0)
        assert NOT_COVERED in str(q.job(1).reason)
        assert "its budget has $0.00 left" in str(summary)
        told = [e.data.get("message") for e in q.events(job=1) if e.type == "job.logged"]
        assert len(told) == 1
        assert "'submit-3' was not called" in str(told[0])
        q.accounts.add("a", provider="render", price=1, budget=9)
        q.run(render, retry=Retry(max_attempts=5, base_s=0, max_s=0))
        assert (len(till.calls), at_rest(q)) == (5, ("failed", 5.0, 0.0))


def test_a_step_renamed_for_a_second_chance_is_another_call(tmp_path: Path) -> None:
    till, name = Till(), "submit"

    def render(job: Any) -> Any:
        job.once(name, till, paid=True)
        if name == "submit":
            raise GiveUp("edit me")

    with open_books(tmp_path, budget=1) as q:
        q.run(render)
        name = "submit again"
        q.requeue(1)
        q.run(render)
        assert (len(till.calls), at_rest(q)) == (1, ("queued", 1.0, 0.0))
        q.accounts.add("a", provider="render", price=1, budget=2)
        q.run(render).check()
        assert (len(till.calls), books(q)) == (2, (["unknown", None, "billed"], 2.0, 0.0))


def test_two_paid_calls_of_one_try_are_two(tmp_path: Path) -> None:
    till = Till()

    async def render(job: Any) -> int:
        first = await job.once("submit", till, paid=True)
        return int(first + await job.once("upscale", till, paid=True))

    with open_books(tmp_path, budget=3) as q:
        q.put({"n": 2})
        q.run(render)
        assert [j.status for j in q.jobs()] == ["completed", "queued"]
        assert (len(till.calls), books(q)[1:]) == (3, (2.0, 1.0))
        q.accounts.add("a", provider="render", price=1, budget=4)
        q.run(render).check()
        assert (len(till.calls), books(q)[1:]) == (4, (4.0, 0.0))
        assert [r["estimate"] for r in q.cost_records()] == [2.0, 1.0, 2.0]


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_refusal_for_the_budget_cannot_be_swallowed_into_a_call(
    tmp_path: Path, executor: Any
) -> None:
    with open_books(tmp_path, budget=2) as q:
        q.put({"n": 2})
        q.run(greedy, executor=executor)
        assert sum(len(q.job(n).result or ()) for n in (1, 2)) == 2
        assert books(q)[1:] == (2.0, 0.0)


def greedy(job: Any) -> list[int]:
    made = []
    for _ in range(5):
        try:
            job.once("submit", lambda: 1, paid=True)
            made.append(1)
        except Exception:  # noqa: BLE001 - the fault that is tested
            job.log("refused")
        try:
            job.fresh()
        except Exception:  # noqa: BLE001 - the fault that is tested
            job.log("refused")
    return made


greedy.__name__ = "render"


def test_a_further_call_that_is_not_accepted_gives_its_money_back(tmp_path: Path) -> None:
    till, refusals = Till(), [ProviderError("later", "rate", retry_after_s=0)]

    def render(job: Any) -> Any:
        def upscale(key: str) -> int:
            if refusals:
                raise refusals.pop()
            return till(key)

        job.once("submit", till, paid=True)
        try:
            return job.once("upscale", upscale, paid=True)
        except ProviderError:
            assert books(q)[1:] == (0.0, 1.0)
            raise

    with open_books(tmp_path, budget=2) as q:
        q.run(render, retry=QUICK).check()
        assert (len(till.calls), books(q)[1:]) == (2, (2.0, 0.0))


def test_a_paid_job_goes_on_though_the_budget_is_used_up_where_models_have_slots(
    tmp_path: Path,
) -> None:
    render = Handler(ValueError("1"))
    with open_books(tmp_path, budget=1, capacity=1, model_capacity={"gen4": 1}) as q:
        for n in range(3):
            q.put({"n": n, "model": "gen4"})
        q.cancel(1)
        q.run(render_of(render), retry=QUICK)
        assert q.stats()["completed"] == 1
        assert (render.calls, books(q)[1:]) == (1, (1.0, 0.0))
        q.requeue(status="cancelled")
        q.run(render_of(render))
        assert render.calls == 1


# -- what was never begun costs nothing ------------------------------------------------------


def test_a_try_that_ends_before_its_paid_call_is_not_billed(tmp_path: Path) -> None:
    """Also the first one, before anybody has seen this function make a paid call."""
    till, is_bad = Till(), True

    async def render(job: Any) -> Any:
        if is_bad:
            raise ValueError("no such style")
        return await job.once("submit", lambda key: till(key), paid=True)

    with open_books(tmp_path, budget=1) as q:
        q.run(render, retry=QUICK)
        assert books(q) == (["not billed"] * 3, 0.0, 0.0)
        is_bad = False
        q.requeue(1)
        q.run(render).check()
        assert (len(till.calls), books(q)[1:]) == (1, (1.0, 0.0))


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_a_function_that_was_seen_to_mark_its_paid_calls_is_believed_to(
    tmp_path: Path, is_wrapped: bool
) -> None:
    till = Till()

    def pay(job: Any) -> Any:
        return job.once("submit", till, paid=True)

    def render(job: Any) -> Any:
        if job.number == 2:
            raise ValueError("a bad row")
        if is_wrapped:
            return pay(job)
        till("a call that is not marked")
        raise ValueError("and bad luck")

    with open_books(tmp_path) as q:
        q.put({"n": 2})
        q.run(render, retry=Retry(max_attempts=1))
        costs = [r["cost"] for r in q.cost_records()]
        assert costs == ([1.0, 0.0] if is_wrapped else [1.0, 1.0])


@pytest.mark.parametrize("is_marked", [True, False])
def test_a_process_that_dies_before_a_paid_call_has_spent_nothing_if_it_marks_them(
    tmp_path: Path, is_marked: bool
) -> None:
    """By what the dead one knew of its function, and not by the one that is there now."""
    handler = "job.once('submit', int, paid=True)" if is_marked else "int()"
    (tmp_path / "dies.py").write_text(
        "import os, sys\nfrom vqkit import Queue\n"
        f"def render(job):\n    os.kill(os.getpid(), 9)\n    {handler}\n"
        "Queue(sys.argv[1]).run(render)\n"
    )
    with open_books(tmp_path, budget=2) as q:
        subprocess.run([sys.executable, str(tmp_path / "dies.py"), str(q.path)], check=False)
        render = Handler()
        q.run(render_of(render), retry=QUICK).check()
        assert books(q)[1:] == ((1.0, 0.0) if is_marked else (2.0, 0.0))


def test_an_error_between_fresh_and_the_next_call_counts_the_first_one_alone(
    tmp_path: Path,
) -> None:
    till, errors = Till(), [ValueError("in between")]

    def pay(job: Any) -> Any:
        return job.once("submit", till, paid=True)

    def render(job: Any) -> Any:
        told = pay(job)
        if told == 1:
            job.fresh()
            raise errors.pop()
        return told

    with open_books(tmp_path) as q:
        q.run(render, retry=QUICK).check()
        assert (len(till.calls), books(q)) == (2, (["billed", "billed"], 2.0, 0.0))


# -- one bill, told twice --------------------------------------------------------------------


@pytest.mark.parametrize("end", ["cancel", "give_up"])
def test_what_was_not_sent_after_all_is_taken_out_of_the_books(tmp_path: Path, end: str) -> None:
    till = Till(1)
    with open_books(tmp_path, budget=1) as q:

        def render(job: Any) -> Any:
            return job.once("submit", till, paid=True)

        q.run(render)
        _ = q.cancel(1) if end == "cancel" else q.resolve(1, "give_up")
        assert books(q) == (["unknown"], 1.0, 0.0)
        q.requeue(1, status=("cancelled", "failed"))
        q.run(render)
        assert at_rest(q) == ("in_doubt", 1.0, 0.0)
        q.resolve(1, "not_sent")
        assert books(q) == (["not billed", "not billed"], 0.0, 0.0)
        q.run(render).check()
        assert books(q)[1:] == (1.0, 0.0)


@pytest.mark.parametrize("again", [0.31, 0.5, 0, None])
def test_a_bill_that_is_told_twice_is_counted_once(tmp_path: Path, again: float | None) -> None:
    till = Till(1)
    with open_books(tmp_path) as q:

        def render(job: Any) -> Any:
            return job.once("submit", till, paid=True)

        q.run(render)
        q.resolve(1, "give_up", cost=0.31)
        q.requeue(1)
        q.run(render)
        q.resolve(1, "pay_again", cost=again)
        q.run(render).check()
        assert books(q)[1:] == pytest.approx((1 + (0.31 if again is None else again), 0.0))


def test_what_the_one_in_doubt_cost_leaves_the_others_counted(tmp_path: Path) -> None:
    till = Till(2)

    def render(job: Any) -> Any:
        job.once("submit", till, paid=True)
        return job.once("upscale", till, paid=True)

    with open_books(tmp_path) as q:
        q.run(render)
        q.resolve(1, "give_up", cost=0.2)
        assert books(q) == (["billed"], 1.2, 0.0)


# -- what was spent stays spent --------------------------------------------------------------


@pytest.mark.parametrize("how", ["prune", "retention"])
def test_what_was_spent_stays_in_the_budget_when_jobs_and_accounts_go(
    tmp_path: Path, how: str
) -> None:
    render = Handler()
    with open_books(tmp_path) as q:
        q.budget = 1
        q.run(render_of(render)).check()
        if how == "prune":
            q.prune(1)
        else:  # as `q.retention` does from time to time
            q._write(lambda s: s.prune(2**53, ("completed",), at_most=9))
        assert len(q.attempts()) == 0
        with pytest.raises(UsageError, match="stay in the books"):
            q.accounts.remove("a")
        q._write(lambda s: s._delete_account("a"))  # as an older vqkit let it happen
        q.accounts.add("b", provider="render", price=1)
        q.put({"n": 2})
        assert "$0.00 left" in str(q.run(render_of(render)))
        assert render.calls == 1
        assert q.plan([{"n": 3}]).money_left == 0.0


def test_an_account_that_nothing_counts_for_can_be_removed(tmp_path: Path) -> None:
    with open_books(tmp_path) as q:
        q.accounts.remove("a")
        assert not list(q.accounts)


# -- anything, in any order ------------------------------------------------------------------

PAY = st.tuples(
    st.sampled_from(["submit", "upscale", "by try"]),
    st.sampled_from(["taken", "taken", "taken", "refused", "lost", "lost on the way"]),
)
TRY = st.tuples(
    st.lists(st.one_of(PAY, st.just(("fresh", ""))), max_size=3),
    st.sampled_from(["return", "error", "error", "snooze", "give up"]),
    st.booleans(),
)


class World:
    """A queue of two jobs, what their provider has taken, and what nobody has cleared up."""

    def __init__(self, q: Queue, tries: list[Any]) -> None:
        self.q, self.tries = q, list(tries)
        self.taken: list[str] = []
        self.budget = 0
        self.lost: dict[str, bool] = {}  # of those whose answer was lost, whether it arrived
        self.known: set[str] = set()  # those of which somebody has told what they cost

    def send(self, key: str, what: str) -> str:
        if what == "refused":
            raise ProviderError("not now", "rate", retry_after_s=0)
        assert len(self.taken) < self.budget, "a call that the budget did not cover"
        assert key not in self.taken
        if what != "lost on the way":
            self.taken.append(key)
        if what != "taken":
            self.lost[key] = what == "lost"
            raise TimeoutError("no answer")
        return key

    async def render(self, job: Any) -> str:
        steps, end, is_careless = self.tries.pop() if self.tries else ((), "return", False)
        for name, what in (*steps, ("last", "taken")):
            try:
                if name == "fresh":
                    await job.fresh()
                else:
                    name = f"try {job._job.fence}" if name == "by try" else name
                    await job.once(name, lambda key, what=what: self.send(key, what), paid=True)
            except Exception:
                if not is_careless:
                    raise
        if end == "error":
            raise ValueError("a bad one")
        if end == "snooze":
            raise Snooze(0)
        if end == "give up":
            raise GiveUp("no")
        return "done"

    def check(self) -> None:
        """At rest each call has its money once, and so has each that may have arrived."""
        (money,) = self.q._read(lambda s: s.money(0)).values()
        missing = {key for key, is_there in self.lost.items() if not is_there}
        assert (money[0] + money[1]) / 1e6 == len(self.taken) + len(missing - self.known)
        assert sum(r["cost"] or 0 for r in self.q.cost_records()) == money[0] / 1e6
        assert self.q._write(lambda s: s.verify_counts(repair=False)) == {}

    def clear_up(self, job: Any, data: Any) -> None:
        """Says the truth about a doubt, in one way or another; or cancels it."""
        steps = [
            s
            for s in self.q.steps(job.number)
            if s.is_paid and s.state == "intent" and s.generation == job.generation
        ]
        step = data.draw(st.sampled_from(steps))
        how = data.draw(st.sampled_from(["cancel", "give_up", "pay_again", "word", "word"]))
        if how == "cancel":
            self.q.cancel(job.number)
        elif how == "word" and self.lost[step.key]:
            self.q.resolve(job.number, "attach", value=step.key, step=step.name)
        elif how == "word":
            self.q.resolve(job.number, "not_sent", step=step.name)
            del self.lost[step.key]
        else:
            self.q.resolve(job.number, how, cost=sum(self.lost[s.key] for s in steps))
            self.known.update(s.key for s in steps)


@settings(max_examples=40, deadline=None)
@given(st.lists(TRY, max_size=8), st.integers(1, 4), st.data())
def test_every_paid_call_is_counted_once_and_covered_whatever_happens(
    tries: list[Any], budget: int, data: Any
) -> None:
    with tempfile.TemporaryDirectory() as folder, Queue(Path(folder) / "q.db") as q:
        world = World(q, tries)

        async def render(job: Any) -> str:
            return await world.render(job)

        q.accounts.add("a", provider="render", price=1)  # one after the other, as drawn
        q.put_many([{"n": 1}, {"n": 2}])
        q.budget = world.budget = budget
        for _ in range(4):
            drain(q, render, retry=Retry(max_attempts=2, base_s=0, max_s=0))
            world.check()
            for job in q.jobs():
                while (now := q.job(job.number)).status == "in_doubt":
                    world.clear_up(now, data)
                    world.check()
                if now.is_terminal and data.draw(st.booleans()):
                    q.requeue(job.number, status=now.status)
            q.budget = world.budget = world.budget + data.draw(st.integers(0, 2))
