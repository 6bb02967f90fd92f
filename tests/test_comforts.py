"""Magics, completion, a line of progress, a picture on the terminal."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError as MagicUsageError
from IPython.core.interactiveshell import InteractiveShell
from rich.console import Console
from traitlets.config import Config

import vqkit
from vqkit import Queue
from vqkit.notebook import progress as module
from vqkit.snapshot import RunnerView, Snapshot
from vqkit.testing import drain

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def q(tmp_path: Path) -> Iterator[Queue]:
    with Queue(tmp_path / "q.db") as q:
        yield q


@pytest.fixture
def shell(q: Queue, tmp_path: Path) -> InteractiveShell:
    quiet = Config({"HistoryManager": {"enabled": False}})
    shell = InteractiveShell(config=quiet, ipython_dir=str(tmp_path / "ipython"))
    vqkit.load_ipython_extension(shell)
    shell.user_ns["q"] = q
    return shell


def standing(queued: int = 0, running: int = 0, completed: int = 0, *, alive: bool = True) -> Any:
    counts = dict.fromkeys(vqkit.job.STATUSES, 0)
    counts |= {"queued": queued, "running": running, "completed": completed}
    runner = RunnerView("r", 1, "h", "running", None, alive)
    return Snapshot(f"/x/{EVIL}.db", 1_764_504_000_000, counts, runners=(runner,))


# -- magics ----------------------------------------------------------------------------


def test_vq_shows_how_the_one_queue_stands(shell: InteractiveShell, q: Queue) -> None:
    q.put({"prompt": "a fox"})
    assert "1" in repr(shell.run_line_magic("vq", ""))
    assert shell.run_line_magic("vq", "status").counts["queued"] == 1
    assert shell.run_line_magic("vq", "accounts") is q.accounts


def test_vq_jobs_are_the_newest_first_and_of_a_status(shell: InteractiveShell, q: Queue) -> None:
    def picky(job: Any) -> None:
        if job.payload["prompt"] == EVIL:
            raise ValueError("no")

    q.put_many([{"prompt": "a fox"}, {"prompt": EVIL}, {"prompt": "a hare"}], max_attempts=1)
    drain(q, picky)
    shown = shell.run_line_magic("vq", "jobs 2")
    assert [row[0] for row in shown.rows] == [3, 2]
    assert repr(shown).splitlines()[0] == "3 jobs, newest first"
    failed = shell.run_line_magic("vq", "jobs failed")
    assert [row[0] for row in failed.rows] == [2]
    assert failed.rows[0][-1] == "ValueError: no"
    assert EVIL not in failed._repr_html_()
    assert "onerror" in failed._repr_html_()
    events = shell.run_line_magic("vq", "events 2")
    assert len(events.rows) == 2


def test_vq_steers(shell: InteractiveShell, q: Queue, capsys: pytest.CaptureFixture[str]) -> None:
    q.put({"prompt": "x"}, max_attempts=1)
    drain(q, lambda job: 1 / 0)
    shell.run_line_magic("vq", "pause")
    assert q.snapshot().is_paused
    shell.run_line_magic("vq", "retry")
    shell.run_line_magic("vq", "resume")
    assert not q.snapshot().is_paused
    assert "1 job put back" in capsys.readouterr().out
    assert q.stats()["queued"] == 1


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("nonsense", "expected status, jobs"),
        ("jobs broken", "STATUS is one of queued"),
        ("jobs failed 0", "no number from 1"),
        ("events 1 2", "expected %vq events"),
        ("status --q nobody", "no queue is called that"),
        ("jobs 'x", "No closing quotation"),
    ],
)
def test_a_mistyped_magic_says_what_was_expected(
    shell: InteractiveShell, line: str, told: str
) -> None:
    with pytest.raises(MagicUsageError, match=told):
        shell.run_line_magic("vq", line)


def test_which_queue_is_meant(shell: InteractiveShell, q: Queue, tmp_path: Path) -> None:
    shell.user_ns["again"] = q
    assert shell.run_line_magic("vq", "status").path == str(q.path)
    with Queue(tmp_path / "other.db") as other:
        shell.user_ns["other"] = other
        with pytest.raises(MagicUsageError, match="--q q or --q again or --q other"):
            shell.run_line_magic("vq", "")
        assert shell.run_line_magic("vq", "status --q other").path == str(other.path)
    assert shell.run_line_magic("vq", "").path == str(q.path)  # a closed one does not count
    shell.user_ns.clear()
    with pytest.raises(MagicUsageError, match="no queue is open here"):
        shell.run_line_magic("vq", "")


def test_vq_help_names_every_verb(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run_line_magic("vq", "help")
    told = capsys.readouterr().out
    with pytest.raises(MagicUsageError) as wrong:
        shell.run_line_magic("vq", "?")
    listed = str(wrong.value).partition("expected ")[2].replace(" or help", "").split(", ")
    assert all(verb in told for verb in listed)


def test_a_handler_cell_registers_its_function_and_may_be_run_again(
    shell: InteractiveShell, q: Queue
) -> None:
    shell.run_cell_magic("vq_handler", "render 3", "def render(job):\n    return 'first'")
    assert [(a.provider, a.capacity) for a in q.accounts] == [("render", 3)]
    shell.run_cell_magic("vq_handler", "render", "def render(job):\n    return 'second'")
    q.put({"prompt": "x"}, provider="render")
    drain(q)
    assert q.job(1).result == "second"
    assert q.accounts["render"].capacity == 3
    shell.run_cell_magic("vq_handler", "render 2", "def render(job):\n    return 'third'")
    assert q.accounts["render"].capacity == 2


def test_a_handler_cell_without_its_function_changes_nothing(
    shell: InteractiveShell, q: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run_cell_magic("vq_handler", "render", "def render(job):\n    return 1")
    with pytest.raises(MagicUsageError, match=r"defines no function other\(job\)"):
        shell.run_cell_magic("vq_handler", "other", "def render(job):\n    return 2")
    with pytest.raises(MagicUsageError, match="expected the name"):
        shell.run_cell_magic("vq_handler", "", "x = 1")
    shell.run_cell_magic("vq_handler", "broken", "def broken(job):\n    return 1\n1 / 0")
    assert "ZeroDivisionError" in capsys.readouterr().out
    assert [a.provider for a in q.accounts] == ["render"]


# -- completion and terminal --------------------------------------------------------------


def test_completion_shows_what_a_user_needs_and_all_of_it_is_there(q: Queue) -> None:
    q.put({"prompt": "x"})
    for shown in (q, q.job(1)):
        names = dir(shown)
        assert not [name for name in names if name.startswith("_") or name.endswith("_json")]
        assert all(hasattr(shown, name) for name in names)
    assert {"put", "run", "gallery", "plot_timeline", "accounts", "budget"} <= set(dir(q))
    assert {"payload", "result", "status", "number", "label"} <= set(dir(q.job(1)))


def test_rich_draws_the_queue(q: Queue) -> None:
    q.put_many([{"prompt": f"[bold]{n}[/bold]"} for n in range(4)])
    q.accounts.add("[red]studio", provider="lambda", capacity=2)
    drain(q, lambda job: 1)
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(q)
    told = console.file.getvalue()
    assert "4 of 4 done" in told
    assert "█" * 80 in told
    assert "[red]studio" in told
    q.close()
    console.print(q)
    assert "q.db: closed" in console.file.getvalue()


# -- one line of progress ------------------------------------------------------------------


class Screen:
    """A front end that notes what is displayed, under which handle."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from IPython import display

        self.shown: list[tuple[int, str]] = []
        self.handles = 0
        monkeypatch.setattr(module, "is_notebook", lambda: True)
        monkeypatch.setattr(display, "display", self.display)

    def display(self, data: Any, *, raw: bool = False, display_id: bool) -> Any:
        self.handles += 1
        number = self.handles
        self._note(number, data)
        screen = self

        class Handle:
            def update(self, data: Any, raw: bool = False) -> None:
                screen._note(number, data)

        return Handle()

    def _note(self, number: int, data: Any) -> None:
        text = data["text/html"] if isinstance(data, dict) else data.data
        self.shown.append((number, text))


def test_in_a_notebook_the_line_updates_one_display_and_prints_nothing(
    q: Queue,
    monkeypatch: pytest.MonkeyPatch,
    until: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    screen = Screen(monkeypatch)
    gate = threading.Event()

    def gated(job: Any) -> None:
        gate.wait(20)

    q.put_many([{"n": n} for n in range(3)])
    run = q.start(gated)
    told: list[Any] = []
    line = q.progress(notify=told.append)
    assert not line.is_over
    gate.set()
    (last,) = until(lambda: told)
    run.stop()
    assert last.counts["completed"] == 3
    assert line.is_over
    assert screen.handles == 1
    assert "3 of 3 done" in screen.shown[-1][1]
    assert capsys.readouterr() == ("", "")
    assert line._ipython_display_() is None


def test_an_unchanged_queue_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.001)
    screen = Screen(monkeypatch)
    states = [standing(2), *[standing(1, completed=1)] * 8, standing(completed=2)]
    looks = iter(states)
    module.follow(lambda: next(looks), wait=True)
    assert len(screen.shown) == 3


def test_the_line_ends_when_those_who_worked_have_left_but_waits_for_them_to_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.001)
    Screen(monkeypatch)
    states = [standing(2, alive=False)] * 3 + [standing(2), standing(1, alive=False)]
    looks = iter(states)
    line = module.follow(lambda: next(looks), wait=True)
    assert line.snapshot.counts["queued"] == 1
    assert next(looks, None) is None


def test_a_queue_that_is_closed_meanwhile_is_told_in_the_line(
    q: Queue, monkeypatch: pytest.MonkeyPatch, until: Callable[..., Any]
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.005)
    screen = Screen(monkeypatch)
    q.put({"n": 1})
    q.progress()
    q.close()
    until(lambda: "not followed any more" in screen.shown[-1][1])
    assert "0 of 1 done" in screen.shown[-1][1]


def test_closing_the_line_leaves_it_as_it_is(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.001)
    Screen(monkeypatch)
    q.put({"n": 1})
    told: list[Any] = []
    line = q.progress(notify=told.append)
    line.close()
    assert line.is_over
    assert told == []


def test_the_browser_is_asked_at_once_and_told_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.001)
    screen = Screen(monkeypatch)
    looks = iter([standing(1), standing(completed=1)])
    module.follow(lambda: next(looks), wait=True, notify=True)
    scripts = [text for number, text in screen.shown if number == 2]
    assert len(scripts) == 2
    assert "requestPermission" in scripts[0]
    assert "new Notification" in scripts[1]
    assert "1 of 1 done" in scripts[1]
    assert all("sessionStorage" in script for script in scripts)  # once, however often reopened
    assert "<img" not in scripts[1]


def test_the_line_is_a_progressbar_with_words_and_nothing_in_it_is_html() -> None:
    html = module.line_html(standing(queued=1, running=1, completed=2))
    assert 'role="progressbar"' in html
    assert 'aria-valuenow="2"' in html
    assert "50%" in html
    assert module.line_html(standing()).count("no jobs yet") >= 1


TERMINAL = """
import sys
from vqkit import Queue
q = Queue(sys.argv[1])
q.put_many([{"n": n} for n in range(4)])
run = q.start(lambda job: 1)
line = q.progress(notify=True)
assert line.is_over, line
q.close()
"""


def test_on_a_terminal_it_waits_draws_one_line_and_rings(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    command = [sys.executable, "-W", "error", "-c", TERMINAL, str(tmp_path / "q.db")]
    with subprocess.Popen(command, stdout=slave, stderr=slave, env=env) as process:
        os.close(slave)
        said = b""
        while True:
            try:
                part = os.read(master, 4096)
            except OSError:
                break
            if not part:
                break
            said += part
        os.close(master)
    assert process.returncode == 0, said.decode()
    assert b"4 of 4 done" in said
    assert b"\x07" in said


def test_progress_of_a_closed_queue_says_so(q: Queue) -> None:
    q.close()
    with pytest.raises(vqkit.VqkitError):
        q.progress()
