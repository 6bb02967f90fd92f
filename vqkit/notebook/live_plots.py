"""The dashboard's picture: one figure that is kept, whose artists are moved."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.figure import Figure

from ..snapshot import Snapshot
from .charts import draw_attempts, draw_throughput, style
from .controls import Pace
from .giving_way import give_way

__all__ = ["LivePlots"]

SHOWN = ("completed", "failed", "tried again")
SIZE_INCHES = (4.6, 3.9)
DPI = 160  # shown at 100 a inch: sharp on a fine screen and at 160 % zoom
# A constrained layout would double the cost of a picture: the places are fixed.
PLACES = {"left": 0.175, "right": 0.93, "top": 0.935, "bottom": 0.115, "hspace": 0.68}
ON_ONE_LINE: Mapping[str, Any] = {
    "bbox_to_anchor": (-0.02, 1.0),
    "fontsize": 8.5,
    "handlelength": 1.2,
    "handletextpad": 0.5,
    "columnspacing": 1.0,
}


class _Renderer(RendererAgg):
    """Draws as usual, and gives way after each stroke and word: some ninety times a picture."""

    def draw_path(self, *args: Any, **options: Any) -> None:
        """As usual."""
        draw: Any = super().draw_path  # the renderer carries no types
        draw(*args, **options)
        give_way()

    def draw_text(self, *args: Any, **options: Any) -> None:
        """As usual."""
        draw: Any = super().draw_text
        draw(*args, **options)
        give_way()


class _Canvas(FigureCanvasAgg):
    """The canvas of a figure whose size never changes."""

    def __init__(self, figure: Figure) -> None:
        super().__init__(figure)
        make: Any = _Renderer
        width, height = figure.bbox.size
        self.renderer = make(width, height, figure.dpi)

    def get_renderer(self) -> RendererAgg:
        """The one there is."""
        renderer: RendererAgg = self.renderer
        return renderer


class LivePlots:
    """Throughput over time above the histogram of tries; belongs to one thread."""

    def __init__(self) -> None:
        figure = Figure(figsize=SIZE_INCHES, dpi=DPI)
        figure.subplots_adjust(**PLACES)
        above, below = figure.subplots(2, 1)
        for ax in (above, below):
            style(ax)
        # Kept too: `savefig` makes a canvas each time, whose pixels wait for the collector.
        self._canvas: Any = _Canvas(figure)
        self._above, self._below = above, below
        self._throughput = draw_throughput(above, [], {})
        self._attempts = draw_attempts(below, {})
        for chart in (self._throughput, self._attempts):  # the places are fixed
            chart.on_one_line = ON_ONE_LINE

    def draw(self, pace: Pace, s: Snapshot) -> tuple[str, str]:
        """The picture as base64 of a PNG, and in words."""
        is_at_work = s.counts["running"] and any(r.is_alive for r in s.runners)
        edges_ms, ended = pace.bins(s.at_ms if is_at_work else None)
        # What is cancelled ends by the thousand in a second, and would flatten all the rest.
        shown = {name: ended[name] for name in SHOWN if name in ended}
        self._throughput.update(edges_ms if any(map(sum, shown.values())) else [], shown)
        give_way()
        self._attempts.update(pace.tries)
        self._below.set_ylim(0, 1.15 * self._below.get_ylim()[1])  # room for the numbers
        give_way()
        words = f"Plots. Above: {self._throughput.alt}. Below: {self._attempts.alt}."
        self._canvas.draw()
        picture = pack(np.asarray(self._canvas.buffer_rgba()))
        return base64.b64encode(picture).decode("ascii"), words


def pack(pixels: Any) -> bytes:
    """RGBA pixels, uint8 of shape (height, width, 4), as a PNG (https://www.w3.org/TR/png-3/).

    About the size Pillow makes it, in a third of the time. And zlib lets go of the interpreter
    while it packs; Pillow holds it for a whole picture, 15 to 20 ms in which the kernel's loop
    stands still.
    """
    height, width, _ = pixels.shape
    lines = np.zeros((height, 1 + 4 * width), "uint8")  # each begins with its filter: 0, none
    lines[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)  # 8 bits each, RGBA
    # Level 1: what is saved by a better one travels on this machine.
    body = zlib.compress(lines.data, 1)
    parts = ((b"IHDR", header), (b"IDAT", body), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )
