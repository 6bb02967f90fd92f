"""Who ran what when: a lane per account slot, or the slots at work where the tries are too many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import tzinfo
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from ..job import Attempt
from ..words import count
from .charts import (
    FEW,
    INK,
    LOOKS,
    Chart,
    days_of,
    no_time_axis,
    patch,
    short,
    take_literally,
    time_axis,
    words_of,
)

__all__ = ["assign_slots", "draw_busy", "draw_timeline", "group_of"]

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
        take_literally(ax.set_yticklabels([short(name) for name in self.tops]))
        ax.tick_params(axis="y", length=0)
        ax.set_ylabel("account, a lane per slot")
        ax.grid(visible=False)


CROSS = 0.016  # half a cross, as part of the chart's width
_DASHES = (0, (2, 1.5))
_WAIT = Line2D([], [], color=INK, linestyle=_DASHES, linewidth=1.3)  # as the legend shows it


class TimelineChart(Chart):
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
        # Dark on a pale rim: seen on bars of any colour, on paper and on dark.
        self._waits = LineCollection(
            [], colors="#333333", linestyles=_DASHES, linewidths=1.1, zorder=3
        )
        self._waits.set_path_effects([withStroke(linewidth=2.6, foreground="#ffffffb0")])
        for made in (self._idle, *self._bars.values(), self._waits):
            ax.add_collection(made, autolim=False)
        (self._ends,) = ax.plot([], [], "X", color="#D55E00", zorder=6, clip_on=False)
        self._ends.set(markersize=9, markeredgecolor="white", markeredgewidth=1.2)
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
            no_time_axis(ax)
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
        self._waits.set_segments([[(days_of(round(x)), y) for x, y in line] for line in waits])
        self._ends.set_data([days_of(round(x)) for x, _ in ends], [y for _, y in ends])
        rests = [(at, lanes.tops[name]) for name, at in parked if name in lanes.tops]
        self._rests.set_data([days_of(at) for at, _ in rests], [y for _, y in rests])
        time_axis(ax, self._tz, from_ms - pad_ms, to_ms + pad_ms)
        lanes.label(ax)
        self._name(attempts, boxes, (to_ms - from_ms) + 2 * pad_ms, {*ends})
        counts = {group: groups.count(group) for group in self._bars if group in groups}
        entries: list[tuple[Any, str]] = [
            (patch(LOOKS[group]), f"{words_of(group)} {n:,}") for group, n in counts.items()
        ]
        if waits:
            entries.append((_WAIT, f"waits for the next try {len(waits):,}"))
        if ends:
            entries.append((self._ends, f"failed for good {len(ends):,}"))
        if rests:
            entries.append((self._rests, "account rests"))
        self._legend(entries)
        told = ", ".join(f"{n:,} {words_of(group)}" for group, n in counts.items())
        n_accounts = len(lanes.tops)
        self._say(
            f"{count(len(attempts), 'attempt')} on {count(n_accounts, 'account')}:"
            f" {told}; {count(len(waits), 'wait')} between tries",
            False,
        )

    def _name(
        self,
        attempts: Sequence[Attempt],
        boxes: Sequence[Any],
        span_ms: float,
        crossed: Set[tuple[float, float]],
    ) -> None:
        """Writes the job's number on bars that have room for it, the widest first.

        Of bars whose end is `crossed`, beside the cross.
        """
        wide = sorted(range(len(boxes)), key=lambda i: boxes[i][0] - boxes[i][1])
        fitting = []
        for i in wide[: self.LABELS_MAX]:
            start, end, top = boxes[i]
            a = attempts[i]
            text = f"{a.job}" if a.attempt < 2 else f"{a.job}·{a.attempt}"
            free_ms = end - start - (span_ms * CROSS if (end, top + 0.5) in crossed else 0)
            if free_ms >= span_ms * max(0.028, 0.006 + 0.010 * len(text)):
                fitting.append((i, start + free_ms / 2, text))
        for label, (i, middle, text) in zip(self._labels, fitting, strict=False):
            a, top = attempts[i], boxes[i][2]
            label.set_position((days_of(round(middle)), top + 0.5))
            label.set_text(text)
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
    left, right = days_of(round(start_ms)), days_of(round(end_ms))
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


class BusyChart(Chart):
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
        ax, edges = self.ax, days_of(edges_ms)
        names = sorted(busy, key=lambda name: -sum(map(sum, busy[name].values())))
        names = sorted(names[:FEW])
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
        time_axis(ax, self._tz, edges_ms[0], edges_ms[-1])
        lanes.label(ax)
        labels = [
            f"{short(name)}\n0 to {max(capacity.get(name, 1), round(peaks[name]))} slots"
            for name in names
        ]
        take_literally(ax.set_yticklabels(labels))
        ax.set_ylabel("slots at work")
        self._legend([(patch(LOOKS[g]), words_of(g)) for g in self.STACK if totals.get(g, 0) > 0])
        more = f"; {len(busy) - len(names)} more accounts" if len(busy) > len(names) else ""
        self._say(f"slots at work over time, {count(n_attempts, 'attempt')}{more}", False)


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
