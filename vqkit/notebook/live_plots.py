"""The dashboard's picture: one figure that is kept, whose artists are moved."""

from __future__ import annotations

import base64
import io
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from ..snapshot import Snapshot
from .charts import INK, draw_attempts, draw_throughput, style
from .controls import Pace

__all__ = ["LivePlots"]

SHOWN = ("completed", "failed", "tried again")
SIZE_INCHES = (4.6, 3.9)
DPI = 160  # shown at 100 a inch: sharp on a fine screen and at 160 % zoom
# A constrained layout would double the cost of a picture: the places are fixed.
PLACES = {"left": 0.175, "right": 0.93, "top": 0.935, "bottom": 0.115, "hspace": 0.68}


class LivePlots:
    """Throughput over time above the histogram of tries; belongs to one thread."""

    def __init__(self) -> None:
        figure = Figure(figsize=SIZE_INCHES, dpi=DPI)
        figure.subplots_adjust(**PLACES)
        above, below = figure.subplots(2, 1)
        for ax in (above, below):
            style(ax)
        # Kept too: `savefig` makes a canvas each time, whose pixels wait for the collector.
        self._canvas: Any = FigureCanvasAgg(figure)
        self._above, self._below = above, below
        self._throughput = draw_throughput(above, [], {})
        self._attempts = draw_attempts(below, {})

    def draw(self, pace: Pace, s: Snapshot) -> tuple[str, str]:
        """The picture as base64 of a PNG, and in words."""
        is_at_work = s.counts["running"] and any(r.is_alive for r in s.runners)
        edges_ms, ended = pace.bins(s.at_ms if is_at_work else None)
        # What is cancelled ends by the thousand in a second, and would flatten all the rest.
        shown = {name: ended[name] for name in SHOWN if name in ended}
        self._throughput.update(edges_ms if any(map(sum, shown.values())) else [], shown)
        self._attempts.update(pace.tries)
        self._below.set_ylim(0, 1.15 * self._below.get_ylim()[1])  # room for the numbers
        for ax in (self._above, self._below):
            _on_one_line(ax)
        words = f"Plots. Above: {self._throughput.alt}. Below: {self._attempts.alt}."
        self._canvas.draw()
        size = self._canvas.get_width_height()
        picture = io.BytesIO()
        # Level 1: packing holds the interpreter, and what is saved travels on this machine.
        Image.frombuffer("RGBA", size, self._canvas.buffer_rgba()).save(
            picture, "PNG", compress_level=1
        )
        return base64.b64encode(picture.getvalue()).decode("ascii"), words


def _on_one_line(ax: Axes) -> None:
    """The places are fixed: there is room for one line of legend."""
    if (legend := ax.get_legend()) is None:
        return
    texts = legend.get_texts()
    ax.legend(
        [handle for handle in legend.legend_handles if handle is not None],
        [text.get_text() for text in texts],
        loc="lower left",
        bbox_to_anchor=(-0.02, 1.0),
        ncols=len(texts),
        frameon=False,
        fontsize=8.5,
        labelcolor=INK,
        borderpad=0.2,
        handlelength=1.2,
        handletextpad=0.5,
        columnspacing=1.0,
    )
