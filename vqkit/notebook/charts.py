"""Charts drawn into any Axes from plain numbers, and kept up to date in place.

`draw_throughput(ax, …)` makes the artists and returns a chart; ``chart.update(…)`` takes
the same arguments and moves those artists, which costs two thirds of a new figure. How many
artists there are does not grow with the number of jobs. Only matplotlib's object API is
used: pyplot keeps every figure for ever and belongs to the kernel's main thread.

Colours are Okabe & Ito's, the same as everywhere (`html.STATUS`), and each state has a
hatch, a dash or a sign besides. Texts are mid-grey on no background, so that one picture
reads on paper, in a light theme and in a dark one.

What all charts share stands here, with throughput and attempts; the timeline is in `lanes`,
costs are in `money`.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, tzinfo
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from dateutil.tz import tzlocal  # matplotlib stands on it too
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, MaxNLocator

from .. import html

__all__ = [
    "FEW",
    "INK",
    "LOOKS",
    "Chart",
    "ChartAxes",
    "Look",
    "days_of",
    "draw_attempts",
    "draw_throughput",
    "new_axes",
    "no_time_axis",
    "patch",
    "png",
    "short",
    "style",
    "take_literally",
    "time_axis",
    "time_label",
    "words_of",
]

INK = "#7d7d7d"  # 4.1:1 on white, 4.6:1 on JupyterLab's dark
FAINT = "#80808055"
FEW = 8  # accounts that can be told apart


class Look(NamedTuple):
    """How a state is drawn: its colour, its hatch and its sign."""

    colour: str
    hatch: str
    sign: str


LEGEND: Mapping[str, Any] = {
    "loc": "lower left",
    "bbox_to_anchor": (0, 1.0),
    "frameon": False,
    "fontsize": 9,
    "labelcolor": INK,
    "borderpad": 0.2,
    "handlelength": 1.6,
    "columnspacing": 1.4,
}

_HATCHES = {"failed": "////", "cancelled": r"\\\\", "in_doubt": "xx"}
LOOKS = {
    name: Look(colour, _HATCHES.get(name, ""), sign) for name, (colour, sign) in html.STATUS.items()
}
LOOKS["given back"] = Look("#56B4E9", "....", "↩")
LOOKS["interrupted"] = Look("#CC79A7", "++", "⚡")
LOOKS["tried again"] = Look("#56B4E9", "....", "↻")


class ChartAxes(Axes):
    """Axes that a notebook shows as their figure when they are a cell's last value.

    `alt` says in a sentence what is drawn.
    """

    alt: str = ""
    legend_rows: int = 0

    def set_title(self, label: str, *args: Any, **options: Any) -> Text:
        """As usual, above the legend."""
        options.setdefault("pad", 6 + 16 * self.legend_rows)
        return super().set_title(label, *args, **options)

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        figure = self.get_figure(root=True)
        assert figure is not None
        width, height = (round(96 * inches) for inches in figure.get_size_inches())
        return png(figure), {"width": width, "height": height}

    def __repr__(self) -> str:
        return f"<Axes: {self.alt}>"


def new_axes(width: float = 7.2, height: float = 3.0) -> ChartAxes:
    """Axes in a figure of their own, of so many inches, that pyplot knows nothing of."""
    figure = Figure(figsize=(width, height), layout="constrained")
    ax = ChartAxes(figure, 1, 1, 1)
    figure.add_subplot(ax)
    style(ax)
    return ax


def style(ax: Axes) -> None:
    """Mid-grey on nothing: readable on paper, in light themes and in dark ones."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.patch.set_alpha(0)
    ax.patch.set_alpha(0)
    for side, spine in ax.spines.items():
        spine.set_color(INK)
        spine.set_visible(side in ("left", "bottom"))
    ax.tick_params(colors=INK, which="both", labelsize=9)
    for text in (ax.title, ax.xaxis.label, ax.yaxis.label, ax.xaxis.get_offset_text()):
        text.set_color(INK)
        text.set_fontsize(9.5)
    ax.title.set_fontsize(10.5)
    ax.set_axisbelow(True)
    ax.grid(axis="y", color=FAINT, linewidth=0.6)


def png(figure: Figure, *, dpi: float = 192, compress_level: int = 6) -> bytes:
    """The figure as a PNG without a background; 192 dpi stay sharp at 200 % zoom."""
    buffer = io.BytesIO()
    options = {"compress_level": compress_level}
    figure.savefig(buffer, format="png", dpi=dpi, transparent=True, pil_kwargs=options)
    return buffer.getvalue()


class Chart:
    """What all charts share: their Axes, what they say when empty, their legend."""

    def __init__(self, ax: Axes, empty: str) -> None:
        self.ax = ax
        self.alt = empty
        self._empty = ax.text(0.5, 0.5, empty, transform=ax.transAxes, ha="center", va="center",
                              color=INK, fontsize=10)  # fmt: skip
        self._told: tuple[Any, ...] | None = None
        # How a legend differs from the usual one where there is room for one line only.
        self.on_one_line: Mapping[str, Any] | None = None
        self._made: tuple[Any, ...] = ()

    def _say(self, alt: str, is_empty: bool) -> None:
        """Sets the sentence that tells the chart; empty, the chart shows it."""
        self._empty.set_visible(is_empty)
        if is_empty:
            self._empty.set_text(alt)
        self.alt = alt = " ".join(alt.split())
        if isinstance(self.ax, ChartAxes):
            self.ax.alt = alt
            for side in ("left", "bottom"):  # a frame around nothing looks cut off
                self.ax.spines[side].set_visible(not is_empty)

    def _legend(self, entries: Sequence[tuple[Any, str]]) -> None:
        """A legend above the chart: made anew for other handles, else its words are changed.

        A legend that is thrown away is some three hundred objects in cycles, which only the
        garbage collector takes back, and that holds up the whole kernel while it works.
        """
        handles, labels = tuple(h for h, _ in entries), tuple(label for _, label in entries)
        if labels == self._told:
            return
        self._told = labels
        ncols = 0
        if labels:
            ncols = self._ncols(labels) if self.on_one_line is None else len(labels)
        old = self.ax.get_legend()
        if old is not None and self._made == (old, handles, ncols):
            for text, label in zip(old.get_texts(), labels, strict=True):
                text.set_text(label)
            return
        if old is not None:
            old.remove()
        self._made = ()
        if entries:
            if isinstance(self.ax, ChartAxes):
                self.ax.legend_rows = -(-len(labels) // ncols)
            options = {**LEGEND, **(self.on_one_line or {})}
            legend = self.ax.legend(handles, labels, ncols=ncols, **options)
            take_literally(legend.get_texts())
            self._made = (legend, handles, ncols)

    def _ncols(self, labels: Sequence[str]) -> int:
        """As many columns as fit beside each other, so that the legend widens nothing."""
        figure = self.ax.get_figure(root=True)
        assert figure is not None
        room = figure.get_size_inches()[0] * self.ax.get_position().width * 14  # characters
        for n in range(len(labels), 1, -1):
            rows, longer = divmod(len(labels), n)  # the first columns are the longer ones
            starts = accumulate((rows + (i < longer) for i in range(n)), initial=0)
            widths = [max(map(len, labels[a:b])) + 6 for a, b in pairwise(starts)]
            if sum(widths) <= room:
                return n
        return 1


@cache
def patch(look: Look) -> Patch:
    """A state as a legend shows it; the same one each time, so that a legend can be kept."""
    return Patch(facecolor=look.colour, hatch=look.hatch, edgecolor="#ffffffb0", linewidth=0)


def words_of(name: str) -> str:
    """A state's name as people write it."""
    return name.replace("_", " ")


def short(name: str) -> str:
    """At most 24 characters of a name, those the font has not as a box."""
    text = name if len(name) <= 24 else name[:23] + "…"
    font = get_font(findfont("sans"))
    return "".join(c if font.get_char_index(ord(c)) else "\u25a1" for c in text)


def take_literally(texts: Iterable[Text]) -> None:
    """Shows dollar signs as such, and not what stands between two as mathematics."""
    for text in texts:
        text.set_parse_math(False)


# matplotlib.dates carries no types.
_date2num: Any = date2num
_AutoDateLocator: Any = AutoDateLocator
_ConciseDateFormatter: Any = ConciseDateFormatter


def days_of(ms: Any) -> Any:
    """UTC milliseconds as matplotlib counts time."""
    return _date2num(np.asarray(ms, dtype="int64").astype("datetime64[ms]"))


def time_axis(ax: Axes, tz: tzinfo | None, from_ms: float, to_ms: float) -> None:
    """Local time, or that of `tz`, with its distance from UTC on the label."""
    zone = tz or tzlocal()
    locator = _AutoDateLocator(tz=zone, minticks=3, maxticks=7)
    ax.xaxis.set_major_locator(locator)
    formatter = _ConciseDateFormatter(
        locator,
        tz=zone,
        formats=["%Y", "%b", "%d %b", "%H:%M", "%H:%M", "%H:%M:%S"],
        zero_formats=["", "%Y", "%d %b", "%d %b", "%H:%M", "%H:%M"],
        offset_formats=["", "%Y", "%Y", "%d %b %Y", "%d %b %Y", "%d %b %Y"],
    )
    ax.xaxis.set_major_formatter(formatter)
    ax.set_xlim(days_of(round(from_ms)), days_of(round(to_ms)))
    ax.set_xlabel(time_label(tz, round(to_ms)))


def time_label(tz: tzinfo | None, at_ms: int) -> str:
    """What the time axis is called: "local time (UTC+01:00)"."""
    moment = datetime.fromtimestamp(at_ms / 1000, tz or tzlocal())
    offset = moment.strftime("%z")
    utc = "UTC" if offset in ("+0000", "") else f"UTC{offset[:3]}:{offset[3:5]}"
    name = "local time" if tz is None else "time"
    return f"{name} ({utc})"


def no_time_axis(ax: Axes) -> None:
    """Axes without ticks, for a chart that has nothing to show."""
    ax.set_xticks([])
    ax.set_yticks([])
    ax.set_xlabel("")


# -- throughput ---------------------------------------------------------------------------


class ThroughputChart(Chart):
    """Jobs brought to an end over time, stacked by how they ended. See `draw_throughput`."""

    STACK = ("completed", "failed", "cancelled", "tried again")

    def __init__(self, ax: Axes, tz: tzinfo | None = None) -> None:
        super().__init__(ax, "nothing has ended yet")
        self._tz = tz
        self._stairs = {
            name: ax.stairs([0], [0, 1], fill=True, linewidth=0, color=None,
                            facecolor=LOOKS[name].colour, hatch=LOOKS[name].hatch,
                            edgecolor="#ffffffb0")
            for name in self.STACK
        }  # fmt: skip

    def update(self, edges_ms: Sequence[int], ended: Mapping[str, Sequence[int]]) -> None:
        """Draws other numbers, with the same artists."""
        totals = {name: sum(ended.get(name, ())) for name in self.STACK}
        self._legend([(patch(LOOKS[n]), f"{words_of(n)} {totals[n]:,}") for n in self.STACK
                      if totals[n]])  # fmt: skip
        if not any(totals.values()):
            for stairs in self._stairs.values():
                stairs.set_data([0], [0, 1], 0)
            no_time_axis(self.ax)
            self.ax.set_ylabel("")
            self._say("nothing has ended yet", True)
            return
        days = days_of(edges_ms)
        baseline: Any = np.zeros(len(days) - 1)
        for name, stairs in self._stairs.items():
            top = baseline + np.asarray(ended.get(name, 0))
            stairs.set_data(top, days, baseline)
            baseline = top
        ax = self.ax
        width = _span_text((edges_ms[1] - edges_ms[0]) / 1000)
        _count_axis(ax, float(baseline.max()))
        time_axis(ax, self._tz, edges_ms[0], edges_ms[-1])
        ax.set_ylabel(f"ended per {width}")
        told = ", ".join(f"{n:,} {words_of(name)}" for name, n in totals.items() if n)
        self._say(f"what ended when, per {width}: {told}", False)


def draw_throughput(
    ax: Axes,
    edges_ms: Sequence[int],
    ended: Mapping[str, Sequence[int]],
    *,
    tz: tzinfo | None = None,
) -> ThroughputChart:
    """Draws how many jobs ended in each step of time.

    `edges_ms` are the edges of n bins, n + 1 UTC milliseconds; `ended` has n counts for any of
    "completed", "failed", "cancelled" and "tried again". `tz` is the zone of the time axis,
    by default the machine's own.
    """
    chart = ThroughputChart(ax, tz)
    chart.update(edges_ms, ended)
    return chart


def _span_text(seconds: float) -> str:
    for unit, size in (("day", 86400), ("hour", 3600), ("min", 60)):
        if seconds >= size:
            n = round(seconds / size)
            return unit if n == 1 else f"{n} {unit}{'' if unit == 'min' else 's'}"
    return "s" if seconds == 1 else f"{seconds:g} s"


def _count_axis(ax: Axes, highest: float) -> None:
    ax.set_ylim(0, highest * 1.2)
    ax.yaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}"))


# -- attempts -----------------------------------------------------------------------------


class AttemptsChart(Chart):
    """How many tries finished jobs took. See `draw_attempts`."""

    STACK = ("completed", "failed", "cancelled")
    LAST = 8  # the last bar is "8 or more"

    def __init__(self, ax: Axes) -> None:
        super().__init__(ax, "no job has ended yet")
        where = list(range(self.LAST + 1))
        self._bars = {
            name: ax.bar(where, [0] * len(where), 0.8, facecolor=LOOKS[name].colour,
                         hatch=LOOKS[name].hatch, edgecolor="#ffffffb0", linewidth=0)
            for name in self.STACK
        }  # fmt: skip
        self._counts = [
            ax.text(x, 0, "", ha="center", va="bottom", color=INK, fontsize=9) for x in where
        ]

    def update(self, tries: Mapping[str, Mapping[int, int]]) -> None:
        """Draws other numbers, with the same artists."""
        ax = self.ax
        table = {name: np.zeros(self.LAST + 1) for name in self.STACK}
        for name in self.STACK:
            for n, jobs in tries.get(name, {}).items():
                table[name][min(n, self.LAST)] += jobs
        bottom = np.zeros(self.LAST + 1)
        for name, bars in self._bars.items():
            for bar, y, height in zip(bars, bottom, table[name], strict=True):
                bar.set_y(y)
                bar.set_height(height)
            bottom = bottom + table[name]
        totals = {name: int(sum(heights)) for name, heights in table.items()}
        all_jobs = sum(totals.values())
        for text, y, lost in zip(self._counts, bottom, table["failed"], strict=True):
            text.set_y(y)
            told = [f"{int(y):,}"] if y > lost else []
            told += [f"{int(lost):,} failed"] if lost else []  # a thin slice is not seen
            text.set_text("\n".join(told))
        self._legend([(patch(LOOKS[n]), f"{n} {totals[n]:,}") for n in self.STACK if totals[n]])
        if not all_jobs:
            no_time_axis(ax)
            ax.set_ylabel("")
            self._say("no job has ended yet", True)
            return
        used = np.nonzero(bottom)[0]
        first, last = min(1, int(used[0])), max(3, int(used[-1]))
        ax.set_xlim(first - 0.6, last + 0.6)
        ax.set_xticks(range(first, last + 1))
        ax.set_xticklabels([f"{n}" if n < self.LAST else f"{n} or more"
                            for n in range(first, last + 1)])  # fmt: skip
        _count_axis(ax, float(bottom.max()))
        ax.set_xlabel("tries a job took, crashes included")
        ax.set_ylabel("jobs")
        per_tries = ", ".join(
            f"{int(n):,} after {i}{' or more' if i == self.LAST else ''}"
            for i, n in enumerate(bottom)
            if n
        )
        self._say(f"{all_jobs:,} ended jobs by tries: {per_tries}", False)


def draw_attempts(ax: Axes, tries: Mapping[str, Mapping[int, int]]) -> AttemptsChart:
    """Draws how many tries ended jobs took.

    `tries` is {status: {number of tries: number of jobs}} for any of "completed", "failed"
    and "cancelled"; a job cancelled before it began took 0.
    """
    chart = AttemptsChart(ax)
    chart.update(tries)
    return chart
