"""`q.dashboard()` in a real JupyterLab: steered, reloaded, restarted, shared."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from browser_lab import Board, Notebook, until

from vqkit import Queue

Open = Callable[..., Notebook]

BEGIN = """
import time
from pathlib import Path
from vqkit import Queue
q = Queue("q.db")
"""
# The first six go through; the others wait until the test opens the gate.
GATED = """
def render(job):
    n = job.payload["n"]
    while n >= 6 and not Path("gate").exists():
        time.sleep(0.02)
    with open("ledger", "a") as ledger:
        ledger.write(f"{n}\\n")
    return n

q.put_many([{"n": n} for n in range(14)])
run = q.start(render)
"""
SHOW = "q.dashboard()"


def ledger(notebook: Notebook) -> list[int]:
    """What was rendered, in numbers of the jobs, sorted."""
    lines = (notebook.folder / "ledger").read_text(encoding="utf-8").split()
    return sorted(map(int, lines))


# -- coming back ---------------------------------------------------------------------------------


def test_a_page_that_is_loaded_anew_shows_the_dashboard_once_and_its_buttons_work(
    open_notebook: Open,
) -> None:
    notebook = open_notebook([BEGIN + GATED, SHOW])
    notebook.run()
    board = Board(notebook)
    board.shows("6 of 14 done")
    notebook.command("docmanager:save")()
    notebook.open()
    board.shows("6 of 14 done")
    assert board.is_alone()
    with Queue(notebook.folder / "q.db") as q:
        board.button("Pause$").click()
        until(lambda: q.snapshot().is_paused)
        board.button("Resume$").press("Enter")
        until(lambda: not q.snapshot().is_paused)
    notebook.run(1)
    notebook.run(1)
    board.shows("6 of 14 done")
    assert board.is_alone()
    wanted = board.root.get_by_label("Of job number")
    wanted.press_sequentially("3")  # which JupyterLab would else take for a heading
    wanted.press("Enter")
    board.root.get_by_role("list", name="events of job 3, newest first").wait_for()
    (notebook.folder / "gate").touch()
    board.shows("14 of 14 done")


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_after_the_kernels_end_run_all_shows_every_job_and_renders_none_again(
    open_notebook: Open, how: str
) -> None:
    notebook = open_notebook([BEGIN + GATED, SHOW, "print(q.stats()['total'])"])
    notebook.run()
    board = Board(notebook)
    board.shows("6 of 14 done")
    with Queue(notebook.folder / "q.db") as q:
        until(lambda: q.stats()["running"] == 4)
        if how == "restart":
            notebook.restart()
        else:
            copy = notebook.page.locator(".vq-copy", has_text="6 of 14 done")
            copy.wait_for(state="attached")  # it is renewed every ten seconds
            notebook.command("docmanager:save")()
            (runner,) = q.snapshot().runners
            os.kill(runner.pid, signal.SIGKILL)
            notebook.page.locator(".jp-Dialog .jp-mod-accept").click()
            notebook.when_idle()
            notebook.open()
            # Until the cell runs again, its copy says what was.
            copy.wait_for()
        assert q.stats()["completed"] == 6
        notebook.run()
        assert notebook.prompts() == ["[1]:", "[2]:", "[3]:"]
        assert notebook.text(2) == "14"
        board.shows("6 of 14 done")
        assert board.is_alone()
        (notebook.folder / "gate").touch()
        board.shows("14 of 14 done")
        assert board.root.locator(".vq-table tbody tr").count() == 14
        assert ledger(notebook) == list(range(14))


# -- several ---------------------------------------------------------------------------------------


def test_two_notebooks_on_one_queue_see_what_the_other_asks_for(open_notebook: Open) -> None:
    first = open_notebook([BEGIN + GATED + SHOW])
    first.run()
    second = open_notebook([BEGIN + SHOW])
    second.run()
    boards = Board(first), Board(second)
    for board in boards:
        board.shows("6 of 14 done")
    boards[1].button("Pause$").click()
    for board in boards:
        board.shows("paused")
    boards[0].button("Resume$").click()
    for board in boards:
        board.button("Pause$").wait_for()
    (first.folder / "gate").touch()
    for board in boards:
        board.shows("14 of 14 done")


def test_a_batch_of_the_command_line_is_watched_and_cancelled_from_a_notebook(
    open_notebook: Open,
) -> None:
    notebook = open_notebook([BEGIN + SHOW])
    rows = "\n".join(f"a fox {n},render" for n in range(400))
    (notebook.folder / "prompts.csv").write_text(f"prompt,note\n{rows}\n", encoding="utf-8")
    run = subprocess.Popen(
        [sys.executable, "-m", "vqkit", "run", "prompts.csv", "--db", "q.db"],
        cwd=notebook.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with Queue(notebook.folder / "q.db") as q:
            until(lambda: q.stats()["completed"])
            notebook.run()
            board = Board(notebook)
            board.shows(f"process {run.pid}")
            board.button("^Cancel").click()
            board.button("Yes, cancel").click()
            assert run.wait(60) == 1
            assert q.stats()["queued"] == q.stats()["running"] == 0
            assert q.stats()["cancelled"] > 300
            board.shows(f"{q.stats()['cancelled']} cancelled")
    finally:
        run.kill()
        run.wait()
