"""The dashboard without a browser: what it says, what its buttons do, what it costs.

ipywidgets work without a front end: a widget's traits are what a browser would be sent.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import ipywidgets
import pytest
from jupyter_client.manager import KernelManager

from vqkit import GiveUp, Queue, Retry
from vqkit.notebook import panes
from vqkit.notebook.dashboard import Dashboard
from vqkit.snapshot import Snapshot
from vqkit.store.sqlite import SqliteStore
from vqkit.testing import drain

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
        begun_s = time.perf_counter()
        board._pause.click()
        took.append(time.perf_counter() - begun_s)
        until(lambda before=before: q.snapshot().is_paused != before)
        text = "‖ Pause" if before else "▶ Resume"
        until(lambda text=text: board._pause.description == text and not board._pause.disabled)
    assert min(took) < AT_ONCE_S
    q.resume()  # somebody else does it
    until(lambda: board._pause.description == "‖ Pause")
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
    board._rest.click()
    until(lambda: not q.accounts["studio"].is_enabled)
    until(lambda: board._rest.description == "▶ Resume account" and not board._rest.disabled)
    board._capacity.value = 5
    board._resize.click()
    until(lambda: q.accounts["studio"].capacity == 5)
    board._rest.click()
    until(lambda: q.accounts["studio"].is_enabled)


def test_a_doubt_is_ended_from_the_board(q: Queue, board: Any, until: Any) -> None:
    q.put_many([{"prompt": "fox"}, {"prompt": "owl"}])

    async def render(job: Any) -> None:
        async def send(key: str) -> None:
            raise TimeoutError("no answer")

        await job.once("submit", send, paid=True)

    drain(q, render)
    until(lambda: board._doubt.value == 1)
    told = Page(board._doubts.value).text
    assert "step submit, begun" in told
    assert q.steps(1)[0].key in told
    _, _, attach, not_sent, _pay_again, give_up = board._doubt_row.children
    attach.click()
    until(lambda: "needs value" in Page(board._head.value).text)
    not_sent.click()
    until(lambda: q.job(1).status == "queued")
    until(lambda: board._doubt.value == 2)
    until(lambda: not give_up.disabled)
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
    drain(q, lambda job: 1)  # a stop of the past stops no run of the future
    assert q.stats()["completed"] == 3


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
