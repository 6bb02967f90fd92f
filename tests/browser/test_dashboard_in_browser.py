"""`q.dashboard()` in a real JupyterLab: steered, reloaded, restarted, shared, read by machines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from browser_lab import Board, Lab, Notebook, until

from vqkit import Queue

Open = Callable[..., Notebook]
Shoot = Callable[[Any, str], Path]

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
            notebook.command("docmanager:save")()
            (runner,) = q.snapshot().runners
            os.kill(runner.pid, signal.SIGKILL)
            notebook.page.locator(".jp-Dialog .jp-mod-accept").click()
            notebook.when_idle()
            notebook.open()
            # Until the cell runs again, its copy says what was.
            notebook.page.locator(".vq-copy:visible", has_text="6 of 14 done").wait_for()
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


# -- looks ---------------------------------------------------------------------------------------

HOSTILE = "<img src=x onerror=window.hostile=1>"
EVERY_STATUS = f"""
from vqkit import GiveUp
def render(job):
    n = job.payload["n"]
    while n >= 8 and not Path("gate").exists():
        job.stage("{HOSTILE}"[:20], progress=n / 20)
        time.sleep(0.02)
    if n == 2:
        raise GiveUp("no such model: {HOSTILE}")
    if n == 3:
        raise ValueError("{HOSTILE}")
    return n

q.accounts.add("studio-a", provider="render", capacity=3, price=0.5, budget=20)
q.accounts.add("studio-b", provider="render", capacity=1)
q.put_many(
    [{{"n": n, "prompt": "{HOSTILE} a fox at dawn, slow pan, soft light"}} for n in range(40)],
    max_attempts=1,
)
q.cancel(12)
run = q.start(render)
"""


def test_light_dark_and_narrow_it_is_readable_by_people_and_by_machines(
    open_notebook: Open, lab: Lab, shoot: Shoot
) -> None:
    notebook = open_notebook([BEGIN + EVERY_STATUS, SHOW], height=1900)
    notebook.run()
    board = Board(notebook)
    board.shows("2 failed")
    board.root.locator(".vq-plots img").wait_for()
    colours = {}
    try:
        for theme in ("Light", "Dark"):
            notebook.theme(theme)
            for width in (1280, 480):
                notebook.page.set_viewport_size({"width": width, "height": 1900})
                notebook.when("(w) => window.innerWidth === w", width)
                assert faults(notebook, ".vq-dash") == [], (theme, width)
                assert too_wide(notebook) == [], (theme, width)
                shoot(board.root, f"dashboard-{theme.lower()}-{width}")
            colours[theme] = board.root.evaluate("e => getComputedStyle(e).color")
    finally:
        notebook.theme("Light")
    assert len(set(colours.values())) == 2
    assert notebook.page.evaluate("() => window.hostile") is None
    assert HOSTILE in board.root.inner_text()


def test_the_gallery_plays_files_in_the_notebook_and_beside_it_and_is_readable_by_machines(
    open_notebook: Open, shoot: Shoot
) -> None:
    work = """
        from vqkit import Queue
        q = Queue("q.db")
        q.accounts.add("studio", provider="local", capacity=2)
        q.put({"prompt": "a small fox", "seconds": 0.5, "width": 64, "height": 64})
        q.put({"prompt": "a fox", "seconds": 0.7, "width": 1280, "height": 720, "fps": 30})
        q.run().check()
    """
    shows = ("q.gallery()", "q", "q.snapshot()", "q.job(1)", "q.compare('a fox')", "q.job(2)")
    notebook = open_notebook([dedent(work), *shows], height=2400)
    notebook.run()
    try:
        for theme in ("Dark", "Light"):
            notebook.theme(theme)
            assert faults(notebook, ".jp-RenderedHTMLCommon") == [], theme
    finally:
        notebook.theme("Light")
    videos = notebook.output(1).locator("video")
    sources = [str(video.get_attribute("src"))[:5] for video in videos.all()]
    assert sources.count("data:") == 1
    assert len(sources) == 2
    notebook.page.evaluate(
        "() => document.querySelectorAll('video').forEach(v => { v.muted = true; v.play() })"
    )
    notebook.when("() => [...document.querySelectorAll('video')].every(v => v.currentTime > 0)")
    shoot(notebook.output(1), "gallery")


def too_wide(notebook: Notebook) -> list[str]:
    """The elements of the dashboard that reach out of it to the side."""
    return list(
        notebook.page.evaluate(
            """() => {
                const board = [...document.querySelectorAll('.vq-dash')].at(-1);
                const edge = board.getBoundingClientRect().right + 1;
                return [...board.querySelectorAll('*')].filter(
                    e => !e.closest('.vq-heard') && e.getBoundingClientRect().right > edge
                ).map(e => e.outerHTML.slice(0, 120));
            }"""
        )
    )


def faults(notebook: Notebook, where: str) -> list[str]:
    """What axe-core finds seriously wrong there."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(notebook.page, context={"include": [[where]]}).response["violations"]
    return [
        f"{fault['impact']} {fault['id']}: {fault['help']}: {node['html']}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]
