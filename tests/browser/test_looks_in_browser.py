"""What a queue shows in a real JupyterLab: in light, dark and narrow panes, to people and machines.

Whatever a user, a handler or a provider has written is text, and pictures are taken to look at.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

from browser_lab import Board, Notebook

Open = Callable[..., Notebook]
Shoot = Callable[[Any, str], Path]

HOSTILE = "<img src=x onerror=window.hostile=1>"
EVERY_STATUS = f"""
import time
from pathlib import Path
from vqkit import GiveUp, Queue
q = Queue("q.db")

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

async def send(job):
    def lost(key):
        raise TimeoutError("{HOSTILE}")
    await job.once("submit", lost, paid=True)

q.accounts.add("studio-a", provider="render", capacity=3, price=0.5, budget=20)
q.accounts.add("studio-b", provider="render", capacity=1)
q.accounts.add("send", provider=send)
q.put_many(
    [{{"n": n, "prompt": "{HOSTILE} a fox at dawn, slow pan, soft light"}} for n in range(40)],
    max_attempts=1,
)
q.cancel(12)
q.put({{"prompt": "{HOSTILE}"}}, provider="send")
q.start(send)
run = q.start(render)
"""


MONEY = """
import vqkit
from IPython.display import HTML, display
from vqkit import Queue
q = Queue("q.db")

def render(job):
    return job.payload["prompt"]

q.accounts.add("studio-a", provider=render, capacity=1, price=0.70, budget=9)
rows = [{"prompt": f"a fox for $5 and an owl for ${n}"} for n in range(20)]
display(HTML("<p>$11.50 to $16.10</p>"), display_id="control")
"""


def test_a_dollar_is_a_dollar_and_no_formula(open_notebook: Open, shoot: Shoot) -> None:
    shown = [
        "plan = q.plan(rows); plan",
        "plan.put(); q.budget = 5; q.run(render); q.dashboard(live=False)",
        "q",
        "q.accounts",
        "q.job(1)",
        "q.gallery()",
        "%load_ext vqkit\n%vq jobs",
    ]
    notebook = open_notebook([MONEY, *shown], height=2400)
    notebook.run()
    notebook.output(0).locator("mjx-container").wait_for()  # what is not ours becomes one
    assert "$11.50 to $16.10" not in notebook.text(0)
    shoot(notebook.page, "dollars")
    for cell, code in enumerate(shown, 1):
        assert notebook.output(cell).locator("mjx-container").count() == 0, code
    assert "$10.00 to" in notebook.text(1) or "$14.00" in notebook.text(1), notebook.text(1)
    assert "has $0.10 left and a job may cost $0.70" in notebook.text(2)
    assert "a fox for $5 and an owl for $0" in notebook.text(7)


def test_a_saved_dashboard_on_a_new_kernel_is_its_copy_and_no_error(
    open_notebook: Open, shoot: Shoot
) -> None:
    notebook = open_notebook([EVERY_STATUS, "q.dashboard()"])
    notebook.run()
    Board(notebook).shows("2 failed")
    notebook.when("() => document.querySelector('.vq-copy')?.textContent.includes('2 failed')")
    notebook.command("docmanager:save")()
    notebook.end_kernel()
    notebook.open()
    notebook.output(1).get_by_text("as of").first.wait_for()
    notebook.when(
        "() => document.querySelector('.jp-OutputArea-output.jupyter-widgets:not(:has(*))')"
    )
    shoot(notebook.page, "dashboard-saved")
    assert notebook.page.get_by_text("Error displaying widget").is_hidden()
    assert "2 failed" in notebook.text(1)


def test_light_dark_and_narrow_it_is_readable_by_people_and_by_machines(
    open_notebook: Open, shoot: Shoot
) -> None:
    notebook = open_notebook([EVERY_STATUS, "q.dashboard()"], height=1900)
    notebook.run()
    board = Board(notebook)
    board.shows("2 failed")
    board.shows("1 in doubt")
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
