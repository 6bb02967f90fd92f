"""The dashboard without a browser: what it says, what its buttons do, what it costs.

ipywidgets work without a front end: a widget's traits are what a browser would be sent.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import ipywidgets
import pytest
from jupyter_client.manager import KernelManager

from vqkit import GiveUp, Queue, Retry
from vqkit.errors import UsageError
from vqkit.job import STATUSES
from vqkit.notebook import panes
from vqkit.notebook.dashboard import LOG_LINES, Dashboard
from vqkit.snapshot import Snapshot
from vqkit.store.sqlite import SqliteStore
from vqkit.testing import ManualClock, MockProvider, drain

EVIL = "<img src=x onerror=alert(1)>"
AT_ONCE_S = 0.005
TRIES = 5  # the machine may be busy: one of so many must be that fast


@pytest.fixture
def q(tmp_path: Path) -> Iterator[Queue]:
    with Queue(tmp_path / "q.db") as q:
        yield q


@pytest.fixture
def board(q: Queue) -> Iterator[Any]:
    shown = q.dashboard(live=True)
    yield shown.board
    shown.close()


def fail(job: Any) -> None:
    raise GiveUp(f"{EVIL} refused")


class Page(HTMLParser):
    """What a browser would make of a pane: tags, attributes, text."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: dict[str, list[str | None]] = {}
        self.text = ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, []).append(value)

    def handle_data(self, data: str) -> None:
        self.text += data


def all_widgets(board: Any) -> list[Any]:
    found, left = [], [board.root]
    while left:
        widget = left.pop()
        found.append(widget)
        left += getattr(widget, "children", ())
    return found


def all_html(board: Any) -> str:
    panes_ = [w for w in all_widgets(board) if isinstance(w, ipywidgets.HTML)]
    return "".join(w.value for w in panes_ if "vq-style" not in w._dom_classes)


# -- what it says -------------------------------------------------------------------------------


def test_the_header_tells_in_words_how_it_stands(q: Queue, board: Any, until: Any) -> None:
    assert "no jobs yet" in Page(board._head.value).text
    q.put_many([{"prompt": f"fox {n}"} for n in range(3)])
    drain(q, lambda job: 1)
    until(lambda: "3 of 3 done" in Page(board._head.value).text)
    page = Page(board._head.value)
    assert "✓ complete" in page.text
    assert page.attributes["role"] == ["region", "progressbar"]
    assert Page(board._live.value).attributes["role"] == ["status"]


def test_safe_to_close_the_lid_is_said_while_somebody_works() -> None:
    from vqkit.snapshot import RunnerView

    counts = dict.fromkeys(("completed", "running", "failed", "in_doubt", "cancelled"), 0)
    counts |= {"completed": 312, "failed": 3, "queued": 1317}
    me = RunnerView("me", 1, "h", "running", None, True)
    s = Snapshot("q.db", 0, counts, runners=(me,), eta_s=14 * 60)
    assert panes.headline(s) == (
        "312 of 1,632 done, 3 failed, about 14 min left; safe to close the lid"
    )
    assert "lid" not in panes.headline(Snapshot("q.db", 0, counts))


def test_where_every_account_rests_it_says_what_goes_on_and_never_nothing_to_do() -> None:
    from vqkit.snapshot import AccountView, RunnerView

    counts = dict.fromkeys(STATUSES, 0) | {"completed": 18, "queued": 5}
    rests = AccountView("a", "p", 1, 0, 18, 0, "its budget is used up")
    me = RunnerView("me", 1, "h", "running", None, True)
    s = Snapshot("q.db", 0, counts, accounts=(rests,), runners=(me,))
    assert panes.state_of(s) == ("▷", "waiting")
    assert s.headline == (
        "18 of 23 done, every account rests, see why below; when that is mended it goes on by"
        " itself"
    )
    alone = Snapshot("q.db", 0, counts, accounts=(rests,))
    assert alone.headline.endswith("when that is mended q.run(…), where p is defined, goes on")


def test_the_copy_tells_prompts_kinds_of_error_money_and_how_many_more(q: Queue) -> None:
    def render(job: Any) -> None:
        return 1 // (job.payload["n"] < 0)

    q.accounts.add("studio-a", provider=render, capacity=4, price=0.70)
    q.budget = 20
    q.put_many([{"prompt": f"a fox {n}", "n": n} for n in range(12)], max_attempts=1)
    drain(q, render)
    page = Page(q.snapshot()._repr_html_())
    assert "$8.40 spent in all, budget $20.00" in page.text
    assert "newest failed jobs, and 2 more" in page.text
    assert "a fox 11" in page.text
    assert '{"prompt"' not in page.text
    assert "ZeroDivisionError: integer division or modulo by zero" in page.text
    s = q.snapshot()
    assert (s.spent, s.set_aside, s.budget) == (8.4, 0.0, 20.0)
    assert "  $8.40 spent in all, budget $20.00" in str(s).splitlines()
    assert s.to_dict()["spent"] == 8.4


def test_nothing_that_anybody_wrote_is_ever_html(q: Queue, until: Any) -> None:
    q.accounts.add(EVIL, provider="fail", capacity=2)
    q.accounts.disable(q.accounts.add(f"{EVIL}2", provider=EVIL).name)
    q.put_many([{"prompt": EVIL, EVIL: EVIL} for _ in range(3)], batch=EVIL)
    q.put({"prompt": EVIL}, account=f"{EVIL}3")

    async def lost(job: Any) -> None:
        async def send(key: str) -> None:
            raise TimeoutError(EVIL)

        job.stage(EVIL)
        job.log(EVIL, level="error")
        if job.number == 1:
            await job.once("submit", send, paid=True)
        fail(job)

    lost.__name__ = "fail"
    drain(q, lost)
    shown = q.dashboard(live=True)
    board = shown.board
    assert board is not None
    until(lambda: EVIL in Page(board._log.value).text)
    page = Page(all_html(board))
    assert not page.tags & {"img", "script", "a", "iframe"}
    assert not [name for name in page.attributes if name.startswith("on")]
    for part in ("failed first", "In doubt", "paused by you", f"{EVIL} refused", "Newest: job"):
        assert part in page.text, part
    assert page.text.count(EVIL) > 10
    shown.close()


def test_failures_stand_first_with_the_line_of_the_users_code(q: Queue) -> None:
    q.put_many([{"prompt": f"fox {n}"} for n in range(60)])
    drain(q, lambda job: fail(job) if job.number in (7, 9) else 1)
    s = q.snapshot()
    table = panes.jobs(s)
    text = Page(table).text
    assert text.index("fox 8") < text.index("fox 6") < text.index("✓ completed")
    assert table.count("<tr>") == 51
    assert "and 10 more" in text
    told = Page(panes.banners(s, [], None)).text
    assert "2 jobs failed" in told
    assert "test_dashboard.py, line" in told


def test_a_handler_that_always_fails_is_told_before_a_job_has_failed(q: Queue) -> None:
    q.put_many([{"n": n} for n in range(3)])

    def broken(job: Any) -> None:
        raise ValueError(f"{job.payload['n']} is no prompt")

    run = q.start(broken, retry=Retry(max_attempts=5, base_s=600, max_s=600, jitter="none"))
    while len([e for e in q.events() if e.type == "job.retry_scheduled"]) < 3:
        time.sleep(0.01)
    run.stop()
    told = Page(panes.banners(q.snapshot(), q.newest_events(100), None)).text
    assert "The last 3 tries went wrong" in told
    assert "is no prompt" in told
    assert "line" in told


def test_many_tries_that_go_wrong_are_counted_until_one_goes_well(
    q: Queue, board: Any, until: Any
) -> None:
    q.put_many([{"n": n} for n in range(LOG_LINES + 20)])

    def broken(job: Any) -> None:
        raise ValueError("no prompt")

    soon = Retry(max_attempts=5, base_s=600, max_s=600, jitter="none")
    run = q.start(broken, retry=soon)
    until(lambda: f"The last {LOG_LINES + 20} tries went wrong" in Page(board._head.value).text)
    run.stop()
    q.put({"n": "good"})
    drain(q, lambda job: 1)
    until(lambda: "tries went wrong" not in Page(board._head.value).text)


def test_a_dead_process_is_told_within_a_second_or_two(q: Queue, board: Any, until: Any) -> None:
    q.put_many([{"n": n} for n in range(5)])
    q.accounts.add("sleepy", provider="sleepy")
    code = (
        "import asyncio, sys; from vqkit import Queue\n"
        "async def sleepy(job): await asyncio.sleep(600)\n"
        f"q = Queue({str(q.path)!r}); q.run(sleepy)"
    )
    child = subprocess.Popen([sys.executable, "-c", code])
    try:
        until(lambda: f"pump: process {child.pid}" in Page(board._head.value).text)
        until(lambda: "Running longest" in board._left.value)
    finally:
        child.kill()
        child.wait()
    until(lambda: f"Process {child.pid}, which worked" in Page(board._head.value).text, 3.0)


def test_the_log_follows_and_filters(q: Queue, board: Any, until: Any) -> None:
    q.put_many([{"prompt": f"fox {n}"} for n in range(4)])
    drain(q, lambda job: fail(job) if job.number == 2 else 1)
    until(lambda: "job 4: completed" in Page(board._log.value).text)
    board._level.value = "errors"
    until(lambda: "job 4" not in Page(board._log.value).text)
    assert "job 2: failed" in Page(board._log.value).text
    board._level.value = "everything"
    board._of_job.value = "3"
    until(lambda: "events of job 3" in board._log.value)
    assert "job 3: begun" in Page(board._log.value).text
    assert "job 4" not in Page(board._log.value).text


def test_the_picture_has_words_for_those_who_cannot_see_it(
    q: Queue, board: Any, until: Any
) -> None:
    q.put_many([{"n": n} for n in range(5)])
    drain(q, lambda job: 1)
    until(lambda: "5 completed" in board._plots.value)
    assert Page(board._plots.value).tags == {"figure", "img"}
    alt = Page(board._plots.value).attributes["alt"][0]
    assert alt is not None
    assert "5 after 1" in alt


# -- buttons ------------------------------------------------------------------------------------


def test_a_click_returns_at_once_and_what_it_shows_comes_from_the_database(
    q: Queue, board: Any, until: Any
) -> None:
    q.put({"n": 1})
    until(lambda: not board._cancel.disabled)
    took = []
    for _ in range(TRIES):
        before = q.snapshot().is_paused
        pressed, other = board._pause, board._resume
        if before:
            pressed, other = other, pressed
        until(lambda pressed=pressed: pressed.layout.display is None and not pressed.disabled)
        assert other.layout.display == "none"
        begun_s = time.perf_counter()
        pressed.click()
        took.append(time.perf_counter() - begun_s)
        until(lambda before=before: q.snapshot().is_paused != before)
    assert min(took) < AT_ONCE_S
    q.resume()  # somebody else does it
    until(lambda: board._pause.layout.display is None)
    assert threading.current_thread().name == "MainThread"


def test_cancelling_takes_two_steps(q: Queue, board: Any, until: Any) -> None:
    q.put_many([{"n": n} for n in range(37)])
    until(lambda: not board._cancel.disabled)
    board._cancel.click()
    until(lambda: board._confirm.layout.display == "flex")
    assert Page(board._question.value).text == "Cancel 37 jobs?"
    board._no.click()
    until(lambda: board._confirm.layout.display == "none")
    assert q.stats()["queued"] == 37
    board._cancel.click()
    until(lambda: board._confirm.layout.display == "flex")
    board._yes.click()
    until(lambda: q.stats()["cancelled"] == 37)
    until(lambda: board._cancel.disabled)


def test_start_stop_and_retry(q: Queue, until: Any) -> None:
    q.put_many([{"n": n} for n in range(3)])
    is_mended: list[bool] = []

    def render(job: Any) -> int:
        return 1 if is_mended else fail(job) or 0

    drain(q, render)
    is_mended.append(True)
    shown = q.dashboard(render, live=True)
    board: Any = shown.board
    assert board._retry.description == "Retry 3 failed"
    board._retry.click()
    until(lambda: q.stats()["queued"] == 3)
    until(lambda: not board._start.disabled)
    board._start.click()
    until(lambda: q.stats()["completed"] == 3)
    until(lambda: board._start.disabled and not board._stop.disabled)
    run = q._shared.run
    assert run is not None
    board._stop.click()
    until(lambda: not run.is_running)
    until(lambda: board._stop.disabled)
    shown.close()


def test_a_start_without_a_handler_is_not_offered(q: Queue, board: Any, until: Any) -> None:
    q.accounts.add("studio", provider="studio")
    q.put({"n": 1})
    until(lambda: "Start needs a handler" in Page(board._head.value).text)
    assert board._start.disabled
    q.provider("studio", lambda job: 1)
    q.put({"n": 2})
    until(lambda: not board._start.disabled)


def test_an_account_is_paused_and_given_more_slots(q: Queue, board: Any, until: Any) -> None:
    q.accounts.add("studio", provider="studio", capacity=3)
    until(lambda: board._account.value == "studio")
    until(lambda: board._capacity.value == 3)
    pause, resume, _ = board._account_buttons.values()
    pause.click()
    until(lambda: not q.accounts["studio"].is_enabled)
    until(lambda: resume.layout.display is None and pause.layout.display == "none")
    board._capacity.value = 5
    board._resize.click()
    until(lambda: q.accounts["studio"].capacity == 5)
    resume.click()
    until(lambda: q.accounts["studio"].is_enabled)


def test_a_doubt_is_ended_from_the_board(q: Queue, board: Any, until: Any) -> None:
    q.put_many([{"prompt": "fox"}, {"prompt": "owl"}])

    async def render(job: Any) -> None:
        async def send(key: str) -> None:
            raise TimeoutError("no answer")

        await job.once("submit", send, paid=True)

    drain(q, render)
    until(lambda: board._doubt_row.layout.display == "flex")
    assert board._doubt.value is None
    board._doubt.value = 1
    told = Page(board._doubts.value).text
    assert "step submit, begun" in told
    assert q.steps(1)[0].key in told
    _, _, attach, not_sent, _pay_again, give_up = board._doubt_row.children
    attach.click()
    until(lambda: "needs value" in Page(board._head.value).text)
    not_sent.click()
    until(lambda: q.job(1).status == "queued")
    until(lambda: board._doubt.value is None)
    give_up.click()
    until(lambda: "choose a job that is in doubt first" in Page(board._head.value).text)
    board._doubt.value = 2
    give_up.click()
    until(lambda: board._confirm.layout.display == "flex")
    board._yes.click()
    until(lambda: q.job(2).status == "failed")
    until(lambda: board._doubt_row.layout.display == "none")


def test_stop_ends_the_run_of_another_process(q: Queue, until: Any) -> None:
    q.put_many([{"n": n} for n in range(3)])
    q.accounts.add("slow", provider="slow")
    code = (
        "import asyncio; from vqkit import Queue\n"
        "async def slow(job): await asyncio.sleep(0.3)\n"
        f"q = Queue({str(q.path)!r}); q.start(slow).wait(); q.close()"
    )
    child = subprocess.Popen([sys.executable, "-c", code])
    until(lambda: q.stats()["running"])
    q.stop()
    assert child.wait(30) == 0
    assert q.stats()["running"] == 0
    assert q.stats()["queued"] > 0
    q.run(lambda job: 1, provider="slow")  # a stop of the past stops no run of the future
    assert q.stats()["completed"] == 3


# -- a button does what it said, on what it named -------------------------------------------------


class Steered:
    """A dashboard that looks when it is told: what happens between looks is the test's."""

    def __init__(self, q: Queue, until: Any) -> None:
        self.shown = quiet_dashboard(q)
        self.board: Any = self.shown.board
        self._until = until
        self.look()

    def look(self) -> str:
        """Looks, carries out what was asked, looks again. What the board then says."""
        shown = self.shown
        shown.tick()
        self._until(lambda: shown._done.qsize() == len(shown._pending))
        shown.tick()
        self.board.renew(float("inf"), 0.0)
        return Page(self.board._head.value).text

    def account_button(self) -> str:
        (seen,) = (
            what
            for what, button in self.board._account_buttons.items()
            if button.layout.display != "none"
        )
        return str(seen)

    def press(self, what: str) -> None:
        self.board._account_buttons[what].click()


Steer = Callable[[Queue], Steered]


@pytest.fixture
def steer(until: Any) -> Iterator[Steer]:
    made: list[Steered] = []

    def make(q: Queue) -> Steered:
        made.append(Steered(q, until))
        return made[-1]

    yield make
    for steered in made:
        steered.shown.close()


def park(q: Queue, name: str, seconds: float, why: str) -> None:
    until_ms = q._clock.now_ms() + round(seconds * 1000)

    def parked(account: Any) -> Any:
        return replace(account, parked_until_ms=until_ms, parked_reason=why)

    q._write(lambda s: s.change_account(name, parked))


def test_pause_pauses_also_what_was_paused_or_parked_since_the_last_look(
    q: Queue, steer: Steer
) -> None:
    q.accounts.add("A", provider="render")
    steered = steer(q)
    assert steered.account_button() == "pause account"
    q.accounts.disable("A")  # by somebody else, in the second before the press
    steered.press("pause account")
    steered.look()
    assert not q.accounts["A"].is_enabled
    q.accounts.enable("A")
    steered.look()
    park(q, "A", 3600, "its balance is used up")
    steered.press("pause account")
    steered.look()
    assert not q.accounts["A"].is_enabled
    assert q.accounts["A"].parked_until_ms is not None


def test_resume_lifts_what_was_shown_and_nothing_else(q: Queue, steer: Steer) -> None:
    q.accounts.add("A", provider="render")
    q.accounts.disable("A")
    steered = steer(q)
    assert steered.account_button() == "resume account"
    park(q, "A", 3600, "too fast")
    steered.press("resume account")
    steered.look()
    assert q.accounts["A"].is_enabled
    assert steered.account_button() == "unpark"
    park(q, "A", 7200, "its balance is used up")
    steered.press("unpark")
    assert "unpark A: it rests for another reason by now" in steered.look()
    assert q.accounts["A"].parked_until_ms is not None
    steered.press("unpark")
    steered.look()
    assert q.accounts["A"].parked_until_ms is None
    assert steered.account_button() == "pause account"


def test_a_park_that_ends_by_time_is_seen_at_the_next_look_also_in_a_quiet_queue(
    q: Queue, steer: Steer, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.accounts.add("A", provider="render")
    park(q, "A", 60, "too fast")
    steered = steer(q)
    steered.look()
    assert steered.account_button() == "unpark"
    later_ms = q._clock.now_ms() + 61_000
    monkeypatch.setattr(q, "_clock", ManualClock(later_ms))
    steered.look()
    assert steered.account_button() == "pause account"
    steered.press("pause account")
    steered.look()
    assert not q.accounts["A"].is_enabled


def test_two_accounts_are_paused_one_right_after_the_other(q: Queue, steer: Steer) -> None:
    for name in "AB":
        q.accounts.add(name, provider="render")
    steered = steer(q)
    for name in "AB":
        steered.board._account.value = name
        steered.press("pause account")
    steered.look()
    assert not q.accounts["A"].is_enabled
    assert not q.accounts["B"].is_enabled


def test_a_choice_never_becomes_another_one_by_itself(q: Queue, steer: Steer) -> None:
    for name in "BC":
        q.accounts.add(name, provider="render")
    steered = steer(q)
    account = steered.board._account
    account.value = "C"
    place = account.index
    q.accounts.add("A", provider="render")  # which stands first by name
    steered.look()
    assert (account.value, account.index) == ("C", place)
    q.accounts.remove("C")
    steered.look()
    assert account.value is None
    account.index = place  # a front end that has not heard of it yet
    steered.press("pause account")
    assert "pause account C: no account named 'C'" in steered.look()
    account.value = None
    steered.press("pause account")
    assert "choose an account first" in steered.look()
    assert all(a.is_enabled for a in q.accounts)


def test_jobs_put_while_it_asks_are_not_cancelled(q: Queue, steer: Steer) -> None:
    q.put({"n": 0})
    steered = steer(q)
    board = steered.board
    board._cancel.click()
    steered.look()
    assert board._yes.description == "Yes, cancel 1 job"
    q.put_many([{"n": n} for n in range(1, 101)])
    steered.look()
    board._yes.click()
    steered.look()
    assert (q.stats()["cancelled"], q.stats()["queued"]) == (1, 100)


def test_a_yes_is_for_the_question_that_was_read(
    q: Queue, steer: Steer, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.put({"n": 0})
    leave_in_doubt(q, 1)
    q.put({"n": 1})
    steered = steer(q)
    board = steered.board
    board._cancel.click()
    steered.look()
    board._doubt.value = 1
    board._doubt_row.children[5].click()  # gives up, which asks
    board._yes.click()  # while the board still showed the question before
    assert "that question was over by then" in steered.look()
    assert (q.job(1).status, q.job(2).status) == ("in_doubt", "queued")
    monkeypatch.setattr("vqkit.notebook.board.CONFIRM_S", 0.0)
    board._cancel.click()
    steered.shown.tick()
    steered.shown.tick()
    board._yes.click()
    assert "that question was over by then" in steered.look()
    assert q.job(2).status == "queued"


def test_retry_leaves_jobs_that_failed_after_the_look(q: Queue, steer: Steer, until: Any) -> None:
    q.put({"n": 0})
    drain(q, fail)
    steered = steer(q)
    assert steered.board._retry.description == "Retry 1 failed"
    looked_ms = steered.shown._viewer.snapshot.at_ms  # type: ignore[union-attr] # it has looked
    until(lambda: q._clock.now_ms() > looked_ms)
    q.put({"n": 1})
    drain(q, fail)
    steered.board._retry.click()
    steered.look()
    assert [job.status for job in q.jobs()] == ["queued", "failed"]


def test_the_dashboard_of_a_closed_queue_goes_dead_and_says_so(
    tmp_path: Path, steer: Steer
) -> None:
    q = Queue(tmp_path / "q.db")
    with Queue(q.path) as other:
        shown = q.dashboard(lambda job: 1, live=True)
        steered = steer(q)
        q.put({"n": 1})
        steered.look()
        q.close()
        assert shown.is_closed
        board: Any = shown.board
        assert panes.CLOSED in board._head.value
        steered.board._start.click()
        assert panes.CLOSED in steered.look()
        assert other._shared.run is None
        assert other.stats()["queued"] == 1


def leave_in_doubt(q: Queue, *numbers: int) -> None:
    """Runs all; of these jobs nobody knows whether their call arrived."""

    async def render(job: Any) -> Any:
        async def send(key: str) -> dict[str, Any]:
            if job.number in numbers:
                raise TimeoutError("no answer")
            return {"id": f"task-{job.number}", "parts": ["a", "b"]}

        return (await job.once("submit", send, paid=True))["id"]

    drain(q, render)


def test_what_was_typed_for_one_job_never_goes_to_another(q: Queue, steer: Steer) -> None:
    q.put_many([{"n": n} for n in range(3)])
    leave_in_doubt(q, 1, 2, 3)
    steered = steer(q)
    board = steered.board
    attach = board._doubt_row.children[2]
    board._doubt.value, board._handle.value = 1, '{"id": "task-1"}'
    attach.click()
    attach.click()  # a double click
    steered.look()
    assert (board._doubt.value, board._handle.value) == (None, "")
    attach.click()
    assert "choose a job that is in doubt first" in steered.look()
    board._doubt.value, board._handle.value = 2, '{"id": "task-2"}'
    steered.look()
    q.resolve(2, "give_up")  # by somebody else
    steered.look()
    assert (board._doubt.value, board._handle.value) == (None, "")
    assert [job.status for job in q.jobs()] == ["queued", "failed", "in_doubt"]
    assert q.steps(3)[0].state == "intent"


def test_of_presses_that_are_heard_at_once_the_last_one_counts(q: Queue, steer: Steer) -> None:
    q.accounts.add("studio", capacity=2)
    steered = steer(q)
    board = steered.board
    for button in (board._pause, board._resume, board._pause):
        button.click()
    for n in (5, 3, 5):
        board._capacity.value = n
        board._resize.click()
    board._resize.click()  # a double click
    steered.look()
    assert q.snapshot().is_paused
    assert q.accounts["studio"].capacity == 5
    board._resume.click()
    board._pause.click()
    board._resume.click()
    steered.look()
    assert not q.snapshot().is_paused


def test_what_was_sent_off_is_not_in_the_field_any_more_even_if_it_was_refused(
    q: Queue, steer: Steer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise UsageError("job 2 has that one")

    q.put({"n": 1})
    leave_in_doubt(q, 1)
    steered = steer(q)
    monkeypatch.setattr(q, "resolve", refuse)
    board = steered.board
    board._doubt.value, board._handle.value = 1, '{"id": "task-2"}'
    board._doubt_row.children[2].click()
    assert "resolve job 1: job 2 has that one" in steered.look()
    assert (board._doubt.value, board._handle.value) == (None, "")


def test_a_word_about_one_doubt_does_not_end_a_later_one(q: Queue, steer: Steer) -> None:
    q.put({"n": 1})
    leave_in_doubt(q, 1)
    steered = steer(q)
    board = steered.board
    board._doubt.value, board._handle.value = 1, '{"id": "task-1"}'
    q.resolve(1, "not_sent")
    leave_in_doubt(q, 1)
    board._doubt_row.children[2].click()
    assert "look again" in steered.look()
    assert q.job(1).status == "in_doubt"


def test_a_functions_step_is_given_what_it_would_have_returned(q: Queue, steer: Steer) -> None:
    q.put_many([{"n": n} for n in range(2)])
    leave_in_doubt(q, 1)
    steered = steer(q)
    board = steered.board
    board._doubt.value = 1
    steered.look()
    assert board._handle.description == "What it gave"
    assert board._handle.placeholder == '{"id":"…","parts":["…"]}'
    attach = board._doubt_row.children[2]
    for typed in ("task-1", "12345", '"task-1"'):
        board._handle.value = typed
        attach.click()
        told = steered.look()
        assert 'type what it would have returned, as JSON: {"id":"…"' in told
        assert q.job(1).status == "in_doubt"
        assert (board._doubt.value, board._handle.value) == (1, typed)
    board._handle.value = '{"id": "task-1"}'
    attach.click()
    steered.look()
    leave_in_doubt(q)
    assert (q.job(1).status, q.job(1).result) == ("completed", "task-1")


def test_of_a_step_nobody_has_seen_a_bare_id_is_refused_too(q: Queue, steer: Steer) -> None:
    q.put({"n": 1})
    leave_in_doubt(q, 1)
    steered = steer(q)
    board = steered.board
    board._doubt.value = 1
    steered.look()
    assert board._handle.placeholder == 'JSON, such as {"id": "…"}'
    for typed in ("task-1", "12345"):
        board._handle.value = typed
        board._doubt_row.children[2].click()
        assert "as JSON" in steered.look()
    board._handle.value = '"task-1"'  # as the function may well have returned it
    board._doubt_row.children[2].click()
    steered.look()
    assert q.steps(1)[0].value == "task-1"


@pytest.mark.parametrize("has_failed", [True, False])
def test_what_was_said_wrongly_is_said_again(q: Queue, steer: Steer, has_failed: bool) -> None:
    q.put({"n": 1}, max_attempts=1)
    leave_in_doubt(q, 1)
    steered = steer(q)
    board = steered.board
    attach = board._doubt_row.children[2]
    board._doubt.value, board._handle.value = 1, '["task-1"]'
    attach.click()
    steered.look()
    if has_failed:
        leave_in_doubt(q)
        assert q.job(1).status == "failed"
        steered.look()
    assert ("job 1, step submit: say it again", "1, step submit") in board._doubt.options
    assert board._doubt_row.layout.display == "flex"
    board._doubt.value, board._handle.value = "1, step submit", '{"id": "task-1"}'
    attach.click()
    steered.look()
    assert (q.job(1).status, q.steps(1)[0].value) == ("queued", {"id": "task-1"})
    leave_in_doubt(q)
    assert q.job(1).result == "task-1"
    steered.look()
    assert board._doubt_row.layout.display == "none"


def test_two_steps_of_one_job_are_told_apart(q: Queue, steer: Steer) -> None:
    async def render(job: Any) -> Any:
        async def send() -> None:
            await asyncio.sleep(0.05)
            raise TimeoutError("no answer")

        both = [job.once(name, send, paid=True) for name in ("video", "audio")]
        for one in await asyncio.gather(*both, return_exceptions=True):
            if isinstance(one, BaseException):
                raise one

    q.put({"n": 1})
    drain(q, render)
    steered = steer(q)
    board = steered.board
    attach, not_sent, *_ = board._doubt_row.children[2:]
    texts = {text for text, _ in board._doubt.options[1:]}
    assert texts == {"job 1, step video", "job 1, step audio"}
    board._doubt.value, board._handle.value = "1, step video", '{"id": "video-1"}'
    attach.click()
    steered.look()
    assert (board._doubt.value, board._handle.value) == (None, "")
    assert [s.value for s in q.steps(1) if s.name == "video"] == [{"id": "video-1"}]
    assert q.job(1).status == "in_doubt"
    assert ("job 1", 1) in board._doubt.options  # by now it is one again: "audio"
    board._doubt.value = "1, step video"  # as a page may say it that is behind
    not_sent.click()
    assert "its step 'video' is not in doubt; 'audio' is" in steered.look()
    board._doubt.value = 1
    not_sent.click()
    steered.look()
    assert q.job(1).status == "queued"
    assert [s.name for s in q.steps(1)] == ["video"]


def test_at_a_provider_the_bare_id_is_the_handle(
    q: Queue, steer: Steer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, drop = tmp_path / "ledger.jsonl", {"first": 1, "share": 1}
    with MockProvider(idempotency="none", ledger=ledger, drop_after=drop) as mock:
        monkeypatch.setenv("STUDIO_KEY", mock.account("a").key)
        q.accounts.add("a", provider="mock", capacity=2, credential="env:STUDIO_KEY")
        q.provider("mock", mock.adapter())
        q.put_many([{"prompt": "x"}, {"prompt": "y"}])
        q.run()
        sent = {r.request["prompt"]: r.id for r in mock.ledger()}
        steered = steer(q)
        board = steered.board
        assert board._handle.description == "Id at the provider"
        for wrong, sentence in (('{"id":', "is broken JSON"), ("[]", "cannot be a handle")):
            board._doubt.value, board._handle.value = 1, wrong
            board._doubt_row.children[2].click()
            assert sentence in steered.look()
            assert q.job(1).status == "in_doubt"
        for number, prompt in ((1, "x"), (2, "y")):
            board._doubt.value, board._handle.value = number, sent[prompt]
            board._doubt_row.children[2].click()
            steered.look()
        assert q.run().counts["completed"] == 2
        assert [q.steps(n)[0].value["handle"]["id"] for n in (1, 2)] == [sent["x"], sent["y"]]


# -- what it costs ---------------------------------------------------------------------------------


class Messages:
    """Counts what would be sent to a front end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, board: Any) -> None:
        self.sent: list[str] = []
        known = {w.model_id: w for w in all_widgets(board)}
        send = ipywidgets.Widget._send

        def note(widget: Any, msg: Any, buffers: Any = None) -> None:
            if widget.model_id in known:
                self.sent.append(" ".join(widget._dom_classes))
            send(widget, msg, buffers)

        monkeypatch.setattr(ipywidgets.Widget, "_send", note)


def quiet_dashboard(q: Queue) -> Dashboard:
    """One that looks only when it is told."""
    from vqkit.notebook.dashboard import Show

    return Dashboard(q, q.start, live=True, show=Show("q.db", False))


def test_at_rest_nothing_is_read_and_nothing_sent(
    q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.put_many([{"n": n} for n in range(5)])
    drain(q, lambda job: 1)
    shown = quiet_dashboard(q)
    monkeypatch.setattr("vqkit.notebook.board.PACE_S", dict.fromkeys(panes_of(), (0, 0)))
    shown.tick()
    messages = Messages(monkeypatch, shown.board)
    looks: list[int] = []
    monkeypatch.setattr(q, "snapshot", lambda: looks.append(1))
    for _ in range(20):
        shown.tick()
    assert messages.sent == []
    assert looks == []


def panes_of() -> tuple[str, ...]:
    from vqkit.notebook.board import PACE_S

    return tuple(PACE_S)


def test_a_change_sends_one_message_for_each_pane_it_is_about(
    q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.put({"n": 1})
    shown = quiet_dashboard(q)
    monkeypatch.setattr("vqkit.notebook.board.PACE_S", dict.fromkeys(panes_of(), (0, 0)))
    shown.tick()
    messages = Messages(monkeypatch, shown.board)
    q.put({"n": 2})
    shown.tick()
    assert len(messages.sent) == len(set(messages.sent))
    assert any("vq-state" in name for name in messages.sent)


def test_a_pane_waits_for_its_turn_and_then_says_the_newest(
    q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = quiet_dashboard(q)
    board: Any = shown.board
    shown.tick()
    q.put({"prompt": "a late fox"})
    assert shown._viewer.look(q, time.monotonic(), False)
    shown._show(board)
    at_s = board._said_s["jobs"]
    board.renew(at_s + 1.5, 100.0)
    assert "late fox" not in board._jobs.value
    assert "1 queued" in Page(board._head.value).text
    board.renew(at_s + 4.0, 100.0)
    assert "late fox" in board._jobs.value


def test_no_look_reads_a_whole_table(tmp_path: Path, q: Queue) -> None:
    q.put_many([{"n": n} for n in range(20)])
    drain(q, lambda job: fail(job) if job.number == 3 else 1)
    ran: set[str] = set()
    store = q._shared.reader.store

    def trace(s: SqliteStore) -> None:
        s._conn.set_trace_callback(ran.add)

    q._read(trace)
    q.snapshot(), q.signs(), q.newest_events(10), q.newest_events(10, 0, 1), q.pace()
    q._read(lambda s: s._conn.set_trace_callback(None))
    selects = [sql for sql in ran if sql.startswith("SELECT")]
    assert len(selects) > 12

    def plans(s: SqliteStore) -> list[tuple[str, str]]:
        return [
            (sql[:80], row[3]) for sql in selects for row in s.query(f"EXPLAIN QUERY PLAN {sql}")
        ]

    assert store is not None
    for sql, step in q._read(plans):
        if step.startswith("SCAN"):
            table = step.split()[1]
            assert table not in ("jobs", "attempts", "outputs", "steps") or "INDEX" in step, sql
            # Of the events the newest are read, by their number.
            assert table not in ("e", "events"), sql


def test_a_look_costs_the_same_whatever_the_number_of_jobs(tmp_path: Path) -> None:
    def steps_of(jobs: int) -> int:
        with Queue(tmp_path / f"{jobs}.db") as q:
            q.put_many([{"n": n} for n in range(jobs)])
            ticks = []

            def count(s: SqliteStore) -> None:
                s._conn.set_progress_handler(lambda: ticks.append(1), 100)

            q._read(count)
            q.snapshot()
            return len(ticks)

    assert steps_of(8000) < 1.5 * steps_of(800) + 10


# -- its life ----------------------------------------------------------------------------------


def threads() -> set[str]:
    return {t.name for t in threading.enumerate()} & {"vqkit-dashboard", "vqkit-wishes"}


def test_showing_it_again_replaces_it_and_leaves_no_widget(q: Queue, until: Any) -> None:
    first = q.dashboard(live=True)
    widgets = [weakref.ref(w) for w in all_widgets(first.board)]
    second = q.dashboard(live=True)
    assert first.is_closed
    assert not second.is_closed
    assert len([t for t in threading.enumerate() if t.name == "vqkit-dashboard"]) == 1
    assert all(w() is None or w().comm is None for w in widgets)
    with Queue(q.path) as other:
        other.dashboard(live=True)
        assert second.is_closed
    until(lambda: len(threads()) <= 1)


def test_a_queue_that_nobody_holds_ends_its_dashboard(tmp_path: Path, until: Any) -> None:
    keeper = Queue(tmp_path / "q.db")
    board: Any = Queue(tmp_path / "q.db").dashboard(live=True).board
    until(lambda: gc.collect() is not None and not threads())
    assert panes.ENDED in board._head.value
    keeper.close()


def test_a_closed_queue_ends_it_too(tmp_path: Path, until: Any) -> None:
    q = Queue(tmp_path / "q.db")
    shown = q.dashboard(live=True)
    q.close()
    until(lambda: shown.is_closed and not threads())


def test_after_a_restart_the_whole_history_is_there_at_once(tmp_path: Path) -> None:
    code = (
        "from vqkit import Queue\n"
        f"q = Queue({str(tmp_path / 'q.db')!r}); q.put_many([{{'n': n}} for n in range(12)])\n"
        "q.run(lambda job: 1 / (job.number - 5))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)
    with Queue(tmp_path / "q.db") as q:
        shown = q.dashboard(live=True)
        board: Any = shown.board
        assert "11 of 12 done, 1 failed" in Page(board._head.value).text
        assert "ZeroDivisionError" in Page(board._jobs.value).text
        assert "job 12: completed" in Page(board._log.value).text
        shown.close()


def test_without_a_notebook_nothing_is_shown_and_nothing_started(
    q: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = q.dashboard()
    assert shown.board is None
    assert threads() == set()
    assert capsys.readouterr().out == ""
    assert repr(shown) == "<dashboard of q.db>"


class Kernel:
    """A kernel, and what it says to a front end."""

    def __init__(self, folder: Path) -> None:
        self.manager = KernelManager(kernel_name="python3")
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
        self.manager.start_kernel(cwd=str(folder), env={**env, "IPYTHONDIR": str(folder / "ipy")})
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(self, code: str, **metadata: str) -> list[dict[str, Any]]:
        """Runs a cell; front ends name it in the request's metadata."""
        message = self.client.session.msg(
            "execute_request", content={"code": code, "silent": False}
        )
        message["metadata"] = metadata
        self.client.shell_channel.send(message)
        found = []
        while True:
            told = self.client.get_iopub_msg(timeout=60)
            found.append(told)
            assert told["msg_type"] != "error", told["content"]["traceback"]
            mine = told["parent_header"].get("msg_id") == message["header"]["msg_id"]
            if mine and told["content"].get("execution_state") == "idle":
                return found

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


SHOW = (
    "from vqkit import Queue; import threading\n"
    "q = Queue('q.db'); q.put_many([{'n': n} for n in range(4)]); q.dashboard()"
)
TELL = "print(sorted(t.name for t in threading.enumerate() if 'dashboard' in t.name))"


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    kernel = Kernel(tmp_path)
    yield kernel
    kernel.close()


def html_of(messages: list[dict[str, Any]], kind: str) -> list[str]:
    return [
        m["content"]["data"]["text/html"]
        for m in messages
        if m["msg_type"] == kind and "text/html" in m["content"]["data"]
    ]


def test_where_nobody_looks_only_the_copy_is_made_and_renewed(kernel: Kernel) -> None:
    told = kernel.run(SHOW)
    assert len(html_of(told, "display_data")) == 1
    assert "0 of 4 done" in html_of(told, "display_data")[0]
    told += kernel.run("q.run(lambda job: 1)")
    told += kernel.run(TELL)
    assert "4 of 4 done" in html_of(told, "update_display_data")[-1]
    assert not [m for m in told if m["msg_type"].startswith("comm")]
    assert [m["content"]["text"] for m in told if m["msg_type"] == "stream"] == ["[]\n"]
    # Nothing has changed: nothing is sent.
    assert html_of(kernel.run("1"), "update_display_data") == []


def test_where_a_person_looks_it_lives_and_the_copy_stands_beside_it(kernel: Kernel) -> None:
    told = kernel.run(SHOW, cellId="a-cell")
    shown = [m["content"]["data"] for m in told if m["msg_type"] == "display_data"]
    assert ["application/vnd.jupyter.widget-view+json" in data for data in shown] == [True, False]
    assert "0 of 4 done" in shown[1]["text/html"]
    assert [m for m in told if m["msg_type"] == "comm_open"]
    told = kernel.run("q.run(lambda job: 1)", cellId="another")
    end_s = time.monotonic() + 30
    while not any("4 of 4 done" in text for text in html_of(told, "update_display_data")):
        assert time.monotonic() < end_s
        told += kernel.run("import time; time.sleep(0.2)", cellId="third")
    told += kernel.run(TELL, cellId="fourth")
    assert [m["content"]["text"] for m in told if m["msg_type"] == "stream"] == [
        "['vqkit-dashboard']\n"
    ]
    told = kernel.run(SHOW, cellId="a-cell")
    assert [m for m in told if m["msg_type"] == "comm_close"]


def test_without_ipywidgets_it_says_what_to_do(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(Exception, match="pip install ipywidgets"):
        q.dashboard(live=True)


def test_the_threads_never_stop_by_a_fault_without_a_word(
    q: Queue, monkeypatch: pytest.MonkeyPatch, until: Callable[..., Any]
) -> None:
    shown = q.dashboard(live=True)
    board: Any = shown.board
    monkeypatch.setattr(panes, "head", lambda *_: 1 / 0)
    q.put({"n": 1})
    until(lambda: shown.is_closed)
    until(lambda: "stopped by a fault of its own" in board._head.value)
