"""Charts of a queue, drawn into any Axes from plain numbers, and kept up to date in place.

`draw_throughput(ax, …)` makes the artists and returns a chart; ``chart.update(…)`` takes
the same arguments and moves those artists, which costs half of a new figure. How many
artists there are does not grow with the number of jobs. Only matplotlib's object API is
used: pyplot keeps every figure for ever and belongs to the kernel's main thread.

Colours are Okabe & Ito's, the same as everywhere (`html.STATUS`), and each state has a
hatch, a dash or a sign besides. Texts are mid-grey on no background, so that one picture
reads on paper, in a light theme and in a dark one.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, tzinfo
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from dateutil.tz import tzlocal  # matplotlib stands on it too
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, MaxNLocator

from .. import html
from ..job import Attempt

__all__ = [
    "INK",
    "ChartAxes",
    "Look",
    "assign_slots",
    "draw_attempts",
    "draw_busy",
    "draw_costs",
    "draw_throughput",
    "draw_timeline",
    "group_of",
    "new_axes",
    "png",
    "style",
]

INK = "#7d7d7d"  # 4.1:1 on white, 4.6:1 on JupyterLab's dark
FAINT = "#80808055"
ACCOUNTS_SHOWN = 8


class Look(NamedTuple):
    """How a state is drawn: its colour, its hatch and its sign."""

    colour: str
    hatch: str
    sign: str


_HATCHES = {"failed": "////", "cancelled": r"\\\\", "in_doubt": "xx"}
LOOKS = {
    name: Look(colour, _HATCHES.get(name, ""), sign) for name, (colour, sign) in html.STATUS.items()
}
LOOKS["given back"] = Look("#56B4E9", "....", "↩")
LOOKS["interrupted"] = Look("#CC79A7", "++", "⚡")
LOOKS["tried again"] = Look("#E69F00", "....", "↻")

# What an attempt came to (`outcome.Outcome`), as a chart tells it.
GROUPS = {
    None: "running",
    "completed": "completed",
    "error": "failed",
    "gave_up": "failed",
    "timed_out": "failed",
    "crashed": "failed",
    "cancelled": "cancelled",
    "doubt": "in_doubt",
    "snoozed": "given back",
    "released": "given back",
    "reclaimed": "interrupted",
}


def group_of(outcome: str | None) -> str:
    """What a chart calls an attempt's outcome; None is one that runs."""
    return GROUPS.get(outcome, "interrupted")


SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999", "#7d7d7d")
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), "-")
SIGNS = ("o", "s", "^", "D", "v", "P", "X", "*")


class ChartAxes(Axes):
    """Axes that a notebook shows as their figure when they are a cell's last value.

    `alt` says in a sentence what is drawn.
    """

    alt: str = ""

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


class _Chart:
    """What all charts share: their Axes, what they say when empty, their legend."""

    def __init__(self, ax: Axes, empty: str) -> None:
        self.ax = ax
        self.alt = empty
        self._empty = ax.text(0.5, 0.5, empty, transform=ax.transAxes, ha="center", va="center",
                              color=INK, fontsize=10)  # fmt: skip
        self._told: tuple[Any, ...] | None = None

    def _say(self, alt: str, is_empty: bool) -> None:
        """Sets the sentence that tells the chart; empty, the chart shows it."""
        self.alt = alt
        self._empty.set_visible(is_empty)
        if isinstance(self.ax, ChartAxes):
            self.ax.alt = alt

    def _legend(self, entries: Sequence[tuple[Any, str]]) -> None:
        """A legend above the chart, made anew only where it says something new."""
        told = tuple(label for _, label in entries)
        if told == self._told:
            return
        self._told = told
        if (old := self.ax.get_legend()) is not None:
            old.remove()
        if entries:
            handles, labels = zip(*entries, strict=True)
            legend = self.ax.legend(
                handles,
                labels,
                loc="lower left",
                bbox_to_anchor=(0, 1.0),
                ncols=self._ncols(labels),
                frameon=False,
                fontsize=9,
                labelcolor=INK,
                borderpad=0.2,
                handlelength=1.6,
                columnspacing=1.4,
            )
            _take_literally(legend.get_texts())

    def _ncols(self, labels: Sequence[str]) -> int:
        """As many columns as fit beside each other, so that the legend widens nothing."""
        figure = self.ax.get_figure(root=True)
        assert figure is not None
        room = figure.get_size_inches()[0] * self.ax.get_position().width * 18  # characters
        for n in range(len(labels), 1, -1):
            rows = -(-len(labels) // n)
            columns = [labels[i : i + rows] for i in range(0, len(labels), rows)]
            widths = [max(map(len, column)) + 6 for column in columns]
            if sum(widths) <= room:
                return n
        return 1


def _patch(look: Look) -> Patch:
    return Patch(facecolor=look.colour, hatch=look.hatch, edgecolor="#ffffffb0", linewidth=0)


def _words(name: str) -> str:
    return name.replace("_", " ")


# matplotlib.dates carries no types.
_date2num: Any = date2num
_AutoDateLocator: Any = AutoDateLocator
_ConciseDateFormatter: Any = ConciseDateFormatter


def _days(ms: Any) -> Any:
    """UTC milliseconds as matplotlib counts time."""
    return _date2num(np.asarray(ms, dtype="int64").astype("datetime64[ms]"))


def _time_axis(ax: Axes, tz: tzinfo | None, from_ms: float, to_ms: float) -> None:
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
    ax.set_xlim(_days(round(from_ms)), _days(round(to_ms)))
    ax.set_xlabel(time_label(tz, round(to_ms)))


def time_label(tz: tzinfo | None, at_ms: int) -> str:
    """What the time axis is called: "local time (UTC+01:00)"."""
    moment = datetime.fromtimestamp(at_ms / 1000, tz or tzlocal())
    offset = moment.strftime("%z")
    utc = "UTC" if offset in ("+0000", "") else f"UTC{offset[:3]}:{offset[3:5]}"
    name = "local time" if tz is None else "time"
    return f"{name} ({utc})"


def _no_time_axis(ax: Axes) -> None:
    ax.set_xticks([])
    ax.set_yticks([])
    ax.set_xlabel("")


# -- throughput ---------------------------------------------------------------------------


class ThroughputChart(_Chart):
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
        self._legend([(_patch(LOOKS[n]), f"{_words(n)} {totals[n]:,}") for n in self.STACK
                      if totals[n]])  # fmt: skip
        if not any(totals.values()):
            for stairs in self._stairs.values():
                stairs.set_data([0], [0, 1], 0)
            _no_time_axis(self.ax)
            self.ax.set_ylabel("")
            self._say("nothing has ended yet", True)
            return
        days = _days(edges_ms)
        baseline: Any = np.zeros(len(days) - 1)
        for name, stairs in self._stairs.items():
            top = baseline + np.asarray(ended.get(name, 0))
            stairs.set_data(top, days, baseline)
            baseline = top
        ax = self.ax
        width = _span_text((edges_ms[1] - edges_ms[0]) / 1000)
        _count_axis(ax, float(baseline.max()))
        _time_axis(ax, self._tz, edges_ms[0], edges_ms[-1])
        ax.set_ylabel(f"ended per {width}")
        told = ", ".join(f"{n:,} {_words(name)}" for name, n in totals.items() if n)
        self._say(f"what ended when, in steps of {width}: {told}", False)


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


class AttemptsChart(_Chart):
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
            also = f"\n{int(lost):,} failed" if lost else ""  # a thin slice is not seen
            text.set_text(f"{int(y):,}{also}" if y else "")
        self._legend([(_patch(LOOKS[n]), f"{n} {totals[n]:,}") for n in self.STACK if totals[n]])
        if not all_jobs:
            _no_time_axis(ax)
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


# -- who ran what when ----------------------------------------------------------------------


def assign_slots(attempts: Iterable[Attempt], now_ms: int) -> list[int]:
    """The slot of its account each attempt ran in, from 0: the lowest that was free.

    `attempts` in the order they began. The database keeps no slots; any attempt that ran
    beside k others of its account gets one of k + 1, so lanes never overlap.
    """
    free_at: dict[str, list[int]] = {}
    slots = []
    for attempt in attempts:
        lanes = free_at.setdefault(attempt.account, [])
        end_ms = now_ms if attempt.finished_ms is None else attempt.finished_ms
        slot = next((i for i, at in enumerate(lanes) if at <= attempt.started_ms), len(lanes))
        if slot == len(lanes):
            lanes.append(end_ms)
        lanes[slot] = max(end_ms, attempt.started_ms + 1)
        slots.append(slot)
    return slots


class _Lanes:
    """Which row of the chart a slot of an account is: one below the other, with gaps."""

    GAP = 0.6

    def __init__(self, slots: Mapping[str, int]) -> None:
        self.tops: dict[str, float] = {}
        y = 0.0
        for name, n in slots.items():
            self.tops[name] = y
            y += n + self.GAP
        self.slots, self.height = slots, max(y - self.GAP, 1.0)

    def label(self, ax: Axes) -> None:
        ax.set_ylim(self.height + 0.3, -0.3)
        middles = [top + self.slots[name] / 2 for name, top in self.tops.items()]
        ax.set_yticks(middles)
        _take_literally(ax.set_yticklabels([_short(name) for name in self.tops]))
        ax.tick_params(axis="y", length=0)
        ax.set_ylabel("account, a lane per slot")
        ax.grid(visible=False)


class TimelineChart(_Chart):
    """A lane per account slot: who ran what when. See `draw_timeline`."""

    LABELS_MAX = 60

    def __init__(self, ax: Axes, tz: tzinfo | None = None) -> None:
        super().__init__(ax, "nothing has been tried yet")
        self._tz = tz
        self._idle = PolyCollection([], facecolor="#80808018", edgecolor="none", zorder=0)
        self._bars = {
            group: PolyCollection([], facecolor=LOOKS[group].colour, edgecolor="#ffffffb0",
                                  hatch=LOOKS[group].hatch, linewidth=0.6, zorder=2)
            for group in sorted({*GROUPS.values()})
        }  # fmt: skip
        self._waits = LineCollection([], colors=INK, linestyles=(0, (2, 1.5)), linewidths=0.9,
                                     zorder=3)  # fmt: skip
        for made in (self._idle, *self._bars.values(), self._waits):
            ax.add_collection(made, autolim=False)
        (self._ends,) = ax.plot([], [], "x", color="#D55E00", markersize=6, markeredgewidth=1.8,
                                zorder=4, clip_on=False)  # fmt: skip
        (self._rests,) = ax.plot([], [], "d", color=INK, markersize=5, zorder=4)
        self._labels = [
            ax.text(0, 0, "", fontsize=7.5, color="white", ha="center", va="center", zorder=5,
                    visible=False, clip_on=True, bbox={"edgecolor": "none", "pad": 0.6})
            for _ in range(self.LABELS_MAX)
        ]  # fmt: skip

    def update(
        self,
        attempts: Sequence[Attempt],
        *,
        capacity: Mapping[str, int],
        now_ms: int,
        failed: Iterable[int] = (),
        parked: Sequence[tuple[str, int]] = (),
    ) -> None:
        """Draws other attempts, with the same artists."""
        ax = self.ax
        attempts = sorted(attempts, key=lambda a: (a.started_ms, a.job, a.fence))
        if not attempts:
            for made in (self._idle, *self._bars.values()):
                made.set_verts([])
            self._waits.set_segments([])
            self._ends.set_data([], [])
            self._rests.set_data([], [])
            for label in self._labels:
                label.set_visible(False)
            self._legend([])
            _no_time_axis(ax)
            ax.set_ylabel("")
            self._say("nothing has been tried yet", True)
            return
        slots = assign_slots(attempts, now_ms)
        used: dict[str, int] = {name: n for name, n in capacity.items() if n}
        for attempt, slot in zip(attempts, slots, strict=True):
            used[attempt.account] = max(used.get(attempt.account, 1), slot + 1)
        shown = {a.account for a in attempts}
        lanes = _Lanes({name: min(n, 64) for name, n in sorted(used.items()) if name in shown})
        from_ms = attempts[0].started_ms
        to_ms = max(now_ms if a.finished_ms is None else a.finished_ms for a in attempts)
        pad_ms = max((to_ms - from_ms) * 0.02, 100)
        thin_ms = (to_ms - from_ms) * 0.002  # what took no time is still seen
        boxes = []
        for a, slot in zip(attempts, slots, strict=True):
            end_ms = now_ms if a.finished_ms is None else a.finished_ms
            top = lanes.tops[a.account] + min(slot, 63)
            boxes.append((a.started_ms, max(end_ms, a.started_ms + thin_ms), top))
        grouped: dict[str, list[Any]] = {group: [] for group in self._bars}
        groups = [group_of(a.outcome) for a in attempts]
        for box, group in zip(boxes, groups, strict=True):
            grouped[group].append(_rectangle(*box))
        for group, made in self._bars.items():
            made.set_verts(grouped[group])
        self._idle.set_verts(
            [
                _rectangle(from_ms - pad_ms, to_ms + pad_ms, top + slot)
                for name, top in lanes.tops.items()
                for slot in range(lanes.slots[name])
            ]
        )
        waits, ends = _links(attempts, boxes, groups, frozenset(failed))
        self._waits.set_segments([[(_days(round(x)), y) for x, y in line] for line in waits])
        self._ends.set_data([_days(round(x)) for x, _ in ends], [y for _, y in ends])
        rests = [(at, lanes.tops[name]) for name, at in parked if name in lanes.tops]
        self._rests.set_data([_days(at) for at, _ in rests], [y for _, y in rests])
        _time_axis(ax, self._tz, from_ms - pad_ms, to_ms + pad_ms)
        lanes.label(ax)
        self._name(attempts, boxes, (to_ms - from_ms) + 2 * pad_ms)
        counts = {group: groups.count(group) for group in self._bars if group in groups}
        entries: list[tuple[Any, str]] = [
            (_patch(LOOKS[group]), f"{_words(group)} {n:,}") for group, n in counts.items()
        ]
        if waits:
            entries.append((self._waits, f"waits for the next try {len(waits):,}"))
        if ends:
            entries.append((self._ends, f"failed for good {len(ends):,}"))
        if rests:
            entries.append((self._rests, "account rests"))
        self._legend(entries)
        told = ", ".join(f"{n:,} {_words(group)}" for group, n in counts.items())
        n_accounts = len(lanes.tops)
        self._say(
            f"{len(attempts):,} tries on {n_accounts} account{'s' if n_accounts != 1 else ''}:"
            f" {told}; {len(waits):,} waits between tries",
            False,
        )

    def _name(self, attempts: Sequence[Attempt], boxes: Sequence[Any], span_ms: float) -> None:
        """Writes the job's number on bars that have room for it, the widest first."""
        room_ms = span_ms * 0.028
        wide = sorted(range(len(boxes)), key=lambda i: boxes[i][0] - boxes[i][1])
        fitting = [i for i in wide[: self.LABELS_MAX] if boxes[i][1] - boxes[i][0] >= room_ms]
        for label, i in zip(self._labels, fitting, strict=False):
            start, end, top = boxes[i]
            a = attempts[i]
            label.set_position((_days(round((start + end) / 2)), top + 0.5))
            label.set_text(f"{a.job}" if a.attempt < 2 else f"{a.job}·{a.attempt}")
            label.set_backgroundcolor(LOOKS[group_of(a.outcome)].colour)
        for n, label in enumerate(self._labels):
            label.set_visible(n < len(fitting))


def draw_timeline(
    ax: Axes,
    attempts: Sequence[Attempt],
    *,
    capacity: Mapping[str, int],
    now_ms: int,
    failed: Iterable[int] = (),
    parked: Sequence[tuple[str, int]] = (),
    tz: tzinfo | None = None,
) -> TimelineChart:
    """Draws each attempt as a bar in a lane of its account, and the waits between tries.

    `capacity` is {account: slots}; lanes that stand empty are shown too. What runs ends at
    `now_ms`. `failed` are the numbers of jobs that failed for good, `parked` the moments
    (account, UTC milliseconds) at which accounts came to rest. For more than some thousand
    attempts see `draw_busy`.
    """
    chart = TimelineChart(ax, tz)
    chart.update(attempts, capacity=capacity, now_ms=now_ms, failed=failed, parked=parked)
    return chart


def _rectangle(start_ms: float, end_ms: float, top: float) -> list[tuple[float, float]]:
    left, right = _days(round(start_ms)), _days(round(end_ms))
    return [(left, top + 0.08), (right, top + 0.08), (right, top + 0.92), (left, top + 0.92)]


def _links(
    attempts: Sequence[Attempt], boxes: Sequence[Any], groups: Sequence[str], failed: frozenset[int]
) -> tuple[list[list[tuple[float, float]]], list[tuple[float, float]]]:
    """Lines from each try's end to its job's next try, and the ends of jobs that failed."""
    last: dict[int, int] = {}
    waits, ends = [], []
    for i, attempt in enumerate(attempts):
        if (before := last.get(attempt.job)) is not None:
            _, end, top = boxes[before]
            waits.append([(end, top + 0.5), (boxes[i][0], boxes[i][2] + 0.5)])
        last[attempt.job] = i
    for job, i in last.items():
        if job in failed and groups[i] != "completed":
            ends.append((boxes[i][1], boxes[i][2] + 0.5))
    return waits, ends


class BusyChart(_Chart):
    """How many slots of each account were at work over time. See `draw_busy`."""

    STACK = ("completed", "running", "failed", "cancelled", "in_doubt", "given back", "interrupted")

    def __init__(self, ax: Axes, tz: tzinfo | None = None) -> None:
        super().__init__(ax, "nothing has been tried yet")
        self._tz = tz
        self._bands: dict[str, dict[str, Any]] = {}
        self._idle = PolyCollection([], facecolor="#80808018", edgecolor="none", zorder=0)
        ax.add_collection(self._idle, autolim=False)

    def update(
        self,
        edges_ms: Sequence[int],
        busy: Mapping[str, Mapping[str, Sequence[float]]],
        *,
        capacity: Mapping[str, int],
        n_attempts: int,
    ) -> None:
        """Draws other numbers; an account keeps its artists."""
        ax, edges = self.ax, _days(edges_ms)
        names = sorted(busy, key=lambda name: -sum(map(sum, busy[name].values())))
        names = sorted(names[:ACCOUNTS_SHOWN])
        peaks = {n: max(map(sum, zip(*busy[n].values(), strict=True)), default=0.0) for n in names}
        lanes = _Lanes(dict.fromkeys(names, 1))
        totals: dict[str, float] = {}
        for name in names:
            bands = self._bands.setdefault(name, {})
            full = max(capacity.get(name, 1), peaks[name])
            base = np.zeros(len(edges) - 1)
            for group in self.STACK:
                slots = np.asarray(busy[name].get(group, base * 0), dtype=float)
                if group not in bands:
                    look = LOOKS[group]
                    bands[group] = ax.stairs(
                        [0], [0, 1], fill=True, linewidth=0, facecolor=look.colour,
                        hatch=look.hatch, edgecolor="#ffffffb0",
                    )  # fmt: skip
                floor = lanes.tops[name] + 1
                top = base + slots / full
                bands[group].set_data(floor - top, edges, floor - base)
                base = top
                totals[group] = totals.get(group, 0.0) + float(slots.sum())
        for name, bands in self._bands.items():
            for made in bands.values():
                made.set_visible(name in lanes.tops)
        self._idle.set_verts(
            [_rectangle(edges_ms[0], edges_ms[-1], top) for top in lanes.tops.values()]
        )
        _time_axis(ax, self._tz, edges_ms[0], edges_ms[-1])
        lanes.label(ax)
        labels = [
            f"{_short(name)}\n0 to {max(capacity.get(name, 1), round(peaks[name]))} slots"
            for name in names
        ]
        _take_literally(ax.set_yticklabels(labels))
        ax.set_ylabel("slots at work")
        self._legend([(_patch(LOOKS[g]), _words(g)) for g in self.STACK if totals.get(g, 0) > 0])
        more = f"; {len(busy) - len(names)} more accounts" if len(busy) > len(names) else ""
        self._say(f"slots at work over time, {n_attempts:,} tries{more}", False)


def draw_busy(
    ax: Axes,
    edges_ms: Sequence[int],
    busy: Mapping[str, Mapping[str, Sequence[float]]],
    *,
    capacity: Mapping[str, int],
    n_attempts: int,
    tz: tzinfo | None = None,
) -> BusyChart:
    """Draws the timeline of too many attempts to draw each: slots at work, per account.

    `busy` is {account: {group: n mean numbers of slots}}, groups as in `GROUPS`, for the
    n bins between `edges_ms`.
    """
    chart = BusyChart(ax, tz)
    chart.update(edges_ms, busy, capacity=capacity, n_attempts=n_attempts)
    return chart


# -- money ----------------------------------------------------------------------------------


class CostsChart(_Chart):
    """Money spent over time. See `draw_costs`."""

    def __init__(self, ax: Axes, tz: tzinfo | None = None) -> None:
        super().__init__(ax, "no money has been spent")
        self._tz = tz
        self._lines: dict[str, Any] = {}
        self._limits: dict[str, Any] = {}

    def update(
        self,
        edges_ms: Sequence[int],
        spent: Mapping[str, Sequence[float]],
        *,
        before: Mapping[str, float] | None = None,
        reserved: Mapping[str, float] | None = None,
        budgets: Mapping[str, float] | None = None,
        budget: float | None = None,
    ) -> None:
        """Draws other numbers; an account keeps its line."""
        ax = self.ax
        before, reserved = before or {}, reserved or {}
        sums = {
            name: list(accumulate(amounts, initial=before.get(name, 0.0)))
            for name, amounts in spent.items()
        }
        if len(sums) > 1:
            columns = zip(*sums.values(), strict=True)
            sums = _biggest(sums) | {"all accounts": [sum(column) for column in columns]}
        is_empty = not any(line[-1] for line in sums.values()) and not any(reserved.values())
        entries: list[tuple[Any, str]] = []
        for line in self._lines.values():
            line.set_data([], [])
        for line in self._limits.values():
            line.set_visible(False)
        if is_empty:
            self._legend([])
            _no_time_axis(ax)
            ax.set_ylabel("")
            self._say("no money has been spent", True)
            return
        days = _days(edges_ms)
        for name, line in sums.items():
            if name not in self._lines:
                self._lines[name] = self._line(name)
            self._lines[name].set_data(days, line)
            self._lines[name].set_markevery(max(1, len(days) // 8))
            aside = reserved.get(name, 0.0)
            label = f"{_short(name)} ${line[-1]:,.2f}" + (
                f" + ${aside:,.2f} set aside" if aside else ""
            )
            entries.append((self._lines[name], label))
        limits = {n: b for n, b in (budgets or {}).items() if n in sums}
        if budget is not None:
            limits["budget"] = budget
        for name, amount in limits.items():
            if name not in self._limits:
                colour = self._lines[name].get_color() if name in self._lines else INK
                self._limits[name] = ax.axhline(
                    amount, color=colour, linewidth=1.4, linestyle=(0, (6, 3))
                )
            self._limits[name].set_ydata([amount, amount])
            self._limits[name].set_visible(True)
            whose = "budget" if name == "budget" else f"budget of {_short(name)}"
            entries.append((self._limits[name], f"{whose} ${amount:,.2f}"))
        self._legend(entries)
        top = max([*(line[-1] for line in sums.values()), *limits.values()])
        ax.set_ylim(0, top * 1.1 or 1)
        ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        digits = 0 if top >= 20 else 2
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"${y:,.{digits}f}"))
        ax.set_ylabel("spent, US dollars")
        _time_axis(ax, self._tz, edges_ms[0], edges_ms[-1])
        told = ", ".join(label for _, label in entries)
        self._say(f"money spent over time: {told}", False)

    def _line(self, name: str) -> Any:
        n = len(self._lines)
        if name == "all accounts":
            look: dict[str, Any] = {"color": INK, "linewidth": 2.2}
        else:
            i = n % len(SERIES)
            look = {"color": SERIES[i], "linestyle": DASHES[i], "marker": SIGNS[i], "markersize": 4}
        (line,) = self.ax.plot([], [], drawstyle="steps-post", **look)
        return line


def draw_costs(
    ax: Axes,
    edges_ms: Sequence[int],
    spent: Mapping[str, Sequence[float]],
    *,
    before: Mapping[str, float] | None = None,
    reserved: Mapping[str, float] | None = None,
    budgets: Mapping[str, float] | None = None,
    budget: float | None = None,
    tz: tzinfo | None = None,
) -> CostsChart:
    """Draws what each account has spent over time, and the budgets as dashed lines.

    `spent` is {account: n dollars, spent in each of the n bins between `edges_ms`}; `before`
    what was spent before them, `reserved` what is set aside now, `budgets` those of the
    accounts, `budget` that of the whole queue.
    """
    chart = CostsChart(ax, tz)
    chart.update(edges_ms, spent, before=before, reserved=reserved, budgets=budgets, budget=budget)
    return chart


def _biggest(sums: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """The accounts that spent most, so that colours and signs tell them apart; the rest as one."""
    if len(sums) <= ACCOUNTS_SHOWN:
        return dict(sums)
    order = sorted(sums, key=lambda name: -sums[name][-1])
    kept, rest = order[: ACCOUNTS_SHOWN - 1], order[ACCOUNTS_SHOWN - 1 :]
    others = [sum(column) for column in zip(*(sums[name] for name in rest), strict=True)]
    return {name: sums[name] for name in sums if name in kept} | {f"{len(rest)} others": others}


def _short(name: str) -> str:
    """At most 24 characters of a name, those the font has not as a box."""
    text = name if len(name) <= 24 else name[:23] + "…"
    font = get_font(findfont("sans"))
    return "".join(c if font.get_char_index(ord(c)) else "\u25a1" for c in text)


def _take_literally(texts: Iterable[Text]) -> None:
    """Shows dollar signs as such, and not what stands between two as mathematics."""
    for text in texts:
        text.set_parse_math(False)
