"""The charts of `q.plot_…()`: sums out of the database, drawn into Axes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import tzinfo
from typing import TYPE_CHECKING

from matplotlib.axes import Axes

from . import charts, lanes, money

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..snapshot import Snapshot
    from ..store.sums import Costs, Ends, Timeline

__all__ = ["attempts", "costs", "throughput", "timeline"]


def throughput(ends: Ends, now_ms: int | None, ax: Axes | None, tz: tzinfo | None) -> Axes:
    """Jobs ended over time. `now_ms` is given while the queue is at work."""
    ax = charts.new_axes() if ax is None else ax
    charts.draw_throughput(ax, *ends.bins(now_ms), tz=tz)
    return ax


def attempts(tries: Mapping[str, Mapping[int, int]], ax: Axes | None) -> Axes:
    """A histogram of the tries jobs took."""
    ax = charts.new_axes() if ax is None else ax
    charts.draw_attempts(ax, tries)
    return ax


def timeline(seen: Timeline, now: Snapshot, ax: Axes | None, tz: tzinfo | None) -> Axes:
    """A lane per account slot, or the slots at work where the attempts are too many."""
    capacity = {a.name: a.capacity for a in now.accounts}
    if seen.busy is None:
        ax = charts.new_axes(height=_height(seen, capacity)) if ax is None else ax
        lanes.draw_timeline(
            ax,
            seen.attempts,
            capacity=capacity,
            now_ms=now.at_ms,
            failed=seen.failed,
            parked=seen.parked,
            tz=tz,
        )
        return ax
    busy = {name: _grouped(slots) for name, slots in seen.busy.slots.items()}
    rows = min(len(busy), charts.FEW)
    ax = charts.new_axes(height=1.2 + 0.7 * rows) if ax is None else ax
    lanes.draw_busy(
        ax, seen.busy.edges_ms, busy, capacity=capacity, n_attempts=seen.n_attempts, tz=tz
    )
    return ax


def costs(
    seen: Costs, now: Snapshot, budget: float | None, ax: Axes | None, tz: tzinfo | None
) -> Axes:
    """What each account has spent over time, and its budget."""
    height = 3.0 if now.spent or now.set_aside else 0.8
    ax = charts.new_axes(height=height) if ax is None else ax
    has_worked = any(a.live or a.completed or a.failed for a in now.accounts)
    budgets = {a.name: a.budget for a in now.accounts if a.budget is not None}
    money.draw_costs(
        ax,
        seen.edges_ms,
        seen.spent,
        before=seen.before,
        reserved=seen.reserved,
        budgets=budgets,
        budget=budget,
        is_known=not has_worked or any(a.spent is not None for a in now.accounts),
        tz=tz,
    )
    return ax


def _height(seen: Timeline, capacity: Mapping[str, int]) -> float:
    """Inches that give each lane room, within reason."""
    n = sum(min(capacity.get(name, 1), 64) for name in {a.account for a in seen.attempts})
    return min(1.4 + 0.24 * max(n, 4), 9.0)


def _grouped(slots: Mapping[str | None, Sequence[float]]) -> dict[str, list[float]]:
    """Sums over the outcomes that a chart tells as one."""
    table: dict[str, list[float]] = {}
    for outcome, values in slots.items():
        group = lanes.group_of(outcome)
        was = table.get(group, [0.0] * len(values))
        table[group] = [a + b for a, b in zip(was, values, strict=True)]
    return table
