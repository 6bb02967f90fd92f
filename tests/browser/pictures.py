"""Makes README's pictures anew: python tests/browser/pictures.py notebooks/images

A batch of clips in a real JupyterLab, taken half-way and at its end. Each picture is at most
100 kB.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from browser_lab import Board, Lab, Notebook, browsing, missing, serving, until
from PIL import Image

from vqkit import Queue

if TYPE_CHECKING:
    from playwright.sync_api import Locator

BYTES_MAX = 100_000
SAMPLES = Path(__file__).parents[2] / "data" / "samples" / "prompts.csv"

BEGIN = f"""
from vqkit import GiveUp, Queue
q = Queue("foxes.db")
q.accounts.add("studio-a", provider="local", capacity=2, price=0.04, budget=2.00)
q.accounts.add("studio-b", provider="local", capacity=1, price=0.06, budget=2.00)
q.load("{SAMPLES}", samples=4)
q.put({{"prompt": "A comet over the harbour", "format": "mov"}}, priority=9)
run = q.start()
"""
CELLS = [
    BEGIN,
    "q.dashboard()",
    "run.wait(); run.stop()",
    "q.gallery()",
    "_ = q.plot_timeline()",
]


def main() -> None:
    """Makes them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    if (why := missing()) is not None:
        parser.error(f"this machine is {why}")
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as home,
        serving(Path(home)) as lab,
        browsing() as browser,
    ):
        notebook = Notebook(browser, lab, lab.root / "foxes" / "foxes.ipynb", CELLS, width=1180)
        take(notebook, folder, lab)


def take(notebook: Notebook, folder: Path, lab: Lab) -> None:
    """Runs the batch and takes a picture of each thing, light and dark."""
    notebook.run(0)
    notebook.run(1)
    board = Board(notebook)
    with Queue(notebook.folder / "foxes.db") as q:
        until(lambda: q.stats()["completed"] >= q.stats()["total"] * 0.55, patience_s=600)
    try:
        for theme in ("Light", "Dark"):
            notebook.theme(theme)
            keep(board.root, folder / f"dashboard-{theme.lower()}.png")
        notebook.run(2, patience_s=600)
        notebook.run(3)
        notebook.run(4)
        for theme in ("Dark", "Light"):
            notebook.theme(theme)
            notebook.when(
                "() => [...document.querySelectorAll('video')].every(v => v.poster || v.readyState)"
            )
            keep(notebook.output(3), folder / f"gallery-{theme.lower()}.png")
            keep(notebook.output(4), folder / f"timeline-{theme.lower()}.png")
    finally:
        notebook.theme("Light")


def keep(what: Locator, path: Path) -> None:
    """A picture of a part of the page, in as many colours as its size allows."""
    what.scroll_into_view_if_needed()
    seen = Image.open(io.BytesIO(what.screenshot())).convert("RGB")
    for colours in (256, 128, 64, 32, 16):
        data = io.BytesIO()
        seen.quantize(colours).save(data, "PNG", optimize=True)
        if data.tell() <= BYTES_MAX:
            path.write_bytes(data.getvalue())
            return
    raise SystemExit(f"{path.name}: more than {BYTES_MAX:,} bytes in any number of colours")


if __name__ == "__main__":
    main()
