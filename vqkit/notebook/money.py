"""Money spent over time, and the budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import tzinfo
from itertools import accumulate
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from .charts import FEW, INK, Chart, days_of, no_time_axis, short, time_axis

__all__ = ["draw_costs"]

SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999", "#7d7d7d")
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), "-")
SIGNS = ("o", "s", "^", "D", "v", "P", "X", "*")

NOT_SPENT = "no money has been spent"
NOT_KNOWN = (
    "what was spent is unknown: no account has a price;\n"
    "q.accounts.add('NAME', price=0.70) says what a job may cost"
)


class CostsChart(Chart):
    """Money spent over time. See `draw_costs`."""

    def __init__(self, ax: Axes, tz: tzinfo | None = None) -> None:
        super().__init__(ax, NOT_SPENT)
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
        is_known: bool = True,
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
            no_time_axis(ax)
            ax.set_ylabel("")
            self._say(NOT_SPENT if is_known else NOT_KNOWN, True)
            return
        days = days_of(edges_ms)
        for name, line in sums.items():
            if name not in self._lines:
                self._lines[name] = self._line(name)
            self._lines[name].set_data(days, line)
            self._lines[name].set_markevery(max(1, len(days) // 8))
            aside = reserved.get(name, 0.0)
            label = f"{short(name)} ${line[-1]:,.2f}" + (
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
            whose = "budget" if name == "budget" else f"budget of {short(name)}"
            entries.append((self._limits[name], f"{whose} ${amount:,.2f}"))
        self._legend(entries)
        top = max([*(line[-1] for line in sums.values()), *limits.values()])
        ax.set_ylim(0, top * 1.1 or 1)
        ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        digits = 0 if top >= 20 else 2
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"${y:,.{digits}f}"))
        ax.set_ylabel("spent, US dollars")
        time_axis(ax, self._tz, edges_ms[0], edges_ms[-1])
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
    is_known: bool = True,
    tz: tzinfo | None = None,
) -> CostsChart:
    """Draws what each account has spent over time, and the budgets as dashed lines.

    `spent` is {account: n dollars, spent in each of the n bins between `edges_ms`}; `before`
    what was spent before them, `reserved` what is set aside now, `budgets` those of the
    accounts, `budget` that of the whole queue. Without
    `is_known`, jobs ran and no account has a price.
    """
    chart = CostsChart(ax, tz)
    chart.update(
        edges_ms,
        spent,
        before=before,
        reserved=reserved,
        budgets=budgets,
        budget=budget,
        is_known=is_known,
    )
    return chart


def _biggest(sums: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """The accounts that spent most, so that colours and signs tell them apart; the rest as one."""
    if len(sums) <= FEW:
        return dict(sums)
    order = sorted(sums, key=lambda name: -sums[name][-1])
    kept, rest = order[: FEW - 1], order[FEW - 1 :]
    others = [sum(column) for column in zip(*(sums[name] for name in rest), strict=True)]
    return {name: sums[name] for name in sums if name in kept} | {f"{len(rest)} others": others}
