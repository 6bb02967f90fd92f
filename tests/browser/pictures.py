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

from browser_lab import Board, Notebook, browsing, missing, serving, until
from PIL import Image

from vqkit import Queue

if TYPE_CHECKING:
    from playwright.sync_api import Locator

BYTES_MAX = 100_000
DASHBOARD_PX, GALLERY_PX = 760, 740  # of their height: the top tells enough

PROMPTS = """
    A red fox trots through fresh snow at dawn
    Paper lanterns drift up from a dark lake
    A lighthouse turns its beam over a stormy sea
    Cherry petals fall on a quiet canal
    A slow train crosses a stone viaduct in the rain
    Jellyfish pulse in deep blue water, lit from below
    Northern lights ripple above a sleeping village
    A cat, asleep on a warm windowsill, dreams of birds
    Sunflowers follow the sun across a whole day
    A kite in the wind above the dunes
    A night train leaves the city, rain on the glass
    Koi circle in a garden pond, seen from above
"""
BEGIN = f"""
from vqkit import Queue

q = Queue("foxes.db")
q.accounts.add("studio-a", provider="local", capacity=2, price=0.04, budget=2.00)
q.accounts.add("studio-b", provider="local", capacity=1, price=0.06, budget=2.00)
q.put_many([{{"prompt": p.strip()}} for p in {PROMPTS.strip().splitlines()}], samples=4)
q.put({{"prompt": "A comet over the harbour", "format": "mov"}}, priority=9)
run = q.start()
"""
CELLS = [
    BEGIN,
    "q.dashboard()",
    "run.wait(); run.stop()",
    "q.gallery()",
    "q.plot_timeline()",
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
        notebook = Notebook(
            browser, lab, lab.root / "foxes" / "foxes.ipynb", CELLS, width=1180, height=1800
        )
        take(notebook, folder)


def take(notebook: Notebook, folder: Path) -> None:
    """Runs the batch and takes a picture of each thing, light and dark."""
    notebook.run(0)
    notebook.run(1)
    board = Board(notebook)
    with Queue(notebook.folder / "foxes.db") as q:
        until(lambda: q.stats()["completed"] >= q.stats()["total"] * 0.55, patience_s=600)
    try:
        for theme in ("Light", "Dark"):
            notebook.theme(theme)
            keep(board.root, folder / f"dashboard-{theme.lower()}.png", DASHBOARD_PX)
        notebook.run(2, patience_s=600)
        notebook.run(3)
        notebook.run(4)
        # A picture that stands still shows clips better without buttons on them.
        notebook.page.evaluate(
            "() => document.querySelectorAll('video').forEach(v => v.controls = 0)"
        )
        for theme in ("Dark", "Light"):
            notebook.theme(theme)
            keep(notebook.shown(3), folder / f"gallery-{theme.lower()}.png", GALLERY_PX)
            keep(notebook.shown(4).locator("img"), folder / f"timeline-{theme.lower()}.png")
    finally:
        notebook.theme("Light")


def keep(what: Locator, path: Path, height: int = 10_000) -> None:
    """A picture of a part of the page, or of its top, in as many colours as its size allows."""
    # A change of the theme fades in, behind the sign that the page shows while it starts.
    what.page.wait_for_function("() => !document.getElementById('jupyterlab-splash')")
    seen = Image.open(io.BytesIO(what.screenshot())).convert("RGB")
    seen = seen.crop((0, 0, seen.width, min(seen.height, height)))
    for colours in (256, 128, 64, 32, 16):
        data = io.BytesIO()
        seen.quantize(colours).save(data, "PNG", optimize=True)
        if data.tell() <= BYTES_MAX:
            path.write_bytes(data.getvalue())
            return
    raise SystemExit(f"{path.name}: more than {BYTES_MAX:,} bytes in any number of colours")


if __name__ == "__main__":
    main()
