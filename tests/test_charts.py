"""What the charts draw is what the database holds; the pixels are matplotlib's affair."""

from __future__ import annotations

import gc
import io
import random
import sqlite3
import sys
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vqkit import GiveUp, Queue
from vqkit.job import STATUSES, Attempt
from vqkit.notebook import charts, lanes, live_plots, money
from vqkit.notebook.live_plots import LivePlots, pack
from vqkit.snapshot import Snapshot
from vqkit.store.sqlite import SqliteStore
from vqkit.store.sums import BINS_MAX, TIMELINE_MAX, Ends, costs, timeline, tries
from vqkit.testing import drain

NOON_MS = 1_764_504_000_000  # 2025-11-30 12:00 UTC


@pytest.fixture
def q(tmp_path: Path) -> Iterator[Queue]:
    with Queue(tmp_path / "q.db") as q:
        yield q


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(tmp_path / "store.db")
    yield made
    made.close()


def write(store: SqliteStore, sql: str, rows: Sequence[Sequence[Any]]) -> None:
    with sqlite3.connect(store.path) as conn:
        conn.executemany(sql, rows)
    conn.close()


def add_events(store: SqliteStore, rows: Sequence[tuple[str, int]]) -> None:
    write(store, "INSERT INTO events (type, at_ms) VALUES (?, ?)", rows)


def add_attempts(store: SqliteStore, attempts: Sequence[Attempt]) -> None:
    write(
        store,
        "INSERT INTO attempts (job, fence, attempt, account, runner, started_ms, finished_ms,"
        " outcome, cost_microusd) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [(*a[:8], a.cost_microusd) for a in attempts],
    )


def stack_of(chart: charts.ThroughputChart) -> dict[str, list[float]]:
    """The heights as drawn, without what stands below them."""
    drawn = {}
    for name, stairs in chart._stairs.items():
        values, _, baseline = stairs.get_data()
        drawn[name] = [round(v - b, 6) for v, b in zip(values, baseline, strict=True)]
    return drawn


def artists(ax: Any) -> int:
    return len(ax.get_children())


# -- what ended when --------------------------------------------------------------------


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=60))
def test_no_end_is_lost_however_coarse_the_bins_become(offsets: list[int]) -> None:
    ends = Ends()
    for offset in offsets:
        ends.counts["completed", (NOON_MS + offset) // ends.width_ms] += 1
    while ends._span() > BINS_MAX:
        ends._coarsen()
    edges, ended = ends.bins()
    assert sum(ended["completed"]) == len(offsets)
    assert len(edges) - 1 == len(ended["completed"]) <= BINS_MAX
    for i, n in enumerate(ended["completed"]):
        inside = [o for o in offsets if edges[i] <= NOON_MS + o < edges[i + 1]]
        assert len(inside) == n


def test_following_reads_only_what_is_new(store: SqliteStore) -> None:
    add_events(store, [("job.completed", NOON_MS), ("job.started", NOON_MS)])
    ends = Ends()
    assert ends.follow(store) is False
    add_events(store, [("job.failed", NOON_MS + 500), ("job.completed", NOON_MS + 3_000_000)])
    assert ends.follow(store) is False
    assert ends.after == 4
    ends.follow(store)
    _, ended = ends.bins()
    assert {kind: sum(n) for kind, n in ended.items()} == {"completed": 2, "failed": 1}


def test_a_long_history_is_read_in_pages_and_since_leaves_out_the_old(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vqkit.store.sums.PAGE", 10)
    add_events(store, [("job.completed", NOON_MS + i * 1000) for i in range(25)])
    ends = Ends(since_ms=NOON_MS + 5000)
    assert [ends.follow(store) for _ in range(3)] == [True, True, False]
    assert sum(ends.bins()[1]["completed"]) == 20


def test_what_recovery_finished_is_completed_and_what_it_put_back_is_tried_again(
    store: SqliteStore,
) -> None:
    rows = [
        ("job.reclaimed", NOON_MS, '{"seconds": 2.0}'),
        ("job.reclaimed", NOON_MS, "{}"),
        ("job.reclaimed", NOON_MS, '{"error": "WorkerDied", "attempt": 1}'),
        ("job.resolved", NOON_MS, '{"attempt": 1}'),
        ("job.resolved", NOON_MS, '{"reason": "not sent"}'),
    ]
    write(store, "INSERT INTO events (type, at_ms, data) VALUES (?, ?, ?)", rows)
    ends = Ends()
    ends.follow(store)
    told = {kind: sum(n) for kind, n in ends.bins()[1].items()}
    assert told == {"completed": 1, "tried again": 1, "failed": 2}


def test_the_bars_are_the_counts_and_an_update_moves_the_same_artists() -> None:
    ax = charts.new_axes()
    chart = charts.draw_throughput(ax, [], {}, tz=UTC)
    assert "nothing has ended" in ax.alt
    edges = [NOON_MS + i * 60_000 for i in range(4)]
    chart.update(edges, {"completed": [1, 2, 3], "failed": [0, 1, 0]})
    before = artists(ax)
    chart.update([*edges, edges[-1] + 30_000], {"completed": [4, 2, 3, 1], "cancelled": [0] * 4})
    assert artists(ax) == before
    drawn = stack_of(chart)
    assert drawn["completed"] == [4, 2, 3, 1]
    assert drawn["failed"] == drawn["cancelled"] == [0, 0, 0, 0]
    assert ax.get_ylabel() == "ended per min"
    assert ax.alt == "what ended when, per min: 10 completed"
    chart.update([], {})
    assert ax.get_legend() is None


def test_state_is_told_by_more_than_its_colour() -> None:
    ax = charts.new_axes()
    edges = [NOON_MS, NOON_MS + 1000]
    ended = {"completed": [1], "failed": [1], "cancelled": [1], "tried again": [1]}
    chart = charts.draw_throughput(ax, edges, ended, tz=UTC)
    assert len({stairs.get_hatch() for stairs in chart._stairs.values()}) == 4
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts == ["completed 1", "failed 1", "cancelled 1", "tried again 1"]


def test_a_legend_is_kept_while_only_its_numbers_change() -> None:
    ax = charts.new_axes()
    edges = [NOON_MS, NOON_MS + 1000]
    chart = charts.draw_throughput(ax, edges, {"completed": [1], "failed": [1]}, tz=UTC)
    first = ax.get_legend()
    chart.update(edges, {"completed": [1200], "failed": [2]})
    assert ax.get_legend() is first
    assert [text.get_text() for text in first.get_texts()] == ["completed 1,200", "failed 2"]
    chart.update(edges, {"completed": [1200], "cancelled": [2]})
    assert ax.get_legend() is not first
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts == ["completed 1,200", "cancelled 2"]
    chart.update([], {})
    chart.update(edges, {"completed": [1], "cancelled": [2]})
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts == ["completed 1", "cancelled 2"]


# -- the picture of a dashboard ------------------------------------------------------------


class FewEnds:
    """What ended, as a dashboard's picture reads it."""

    is_behind = False

    def __init__(self, n: int) -> None:
        self.n, self.tries = n, {"completed": {1: n}, "failed": {3: 2 * n}}

    def bins(self, now_ms: int | None = None) -> tuple[list[int], dict[str, list[int]]]:
        edges = [NOON_MS + (self.n + i) * 10_000 for i in range(13)]
        return edges, {"completed": [self.n] * 12, "failed": [2 * self.n] * 12}


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Garbage stays, and nothing waits for its collection."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_another_picture_leaves_nothing_for_the_garbage_collector() -> None:
    plots, s = LivePlots(), Snapshot("q.db", NOON_MS, dict.fromkeys(STATUSES, 0))
    words = [plots.draw(FewEnds(n), s)[1] for n in range(10, 13)]  # its fonts are loaded
    with collector_at_rest():
        words += [plots.draw(FewEnds(n), s)[1] for n in range(13, 16)]
        left = gc.collect()
    assert len(set(words)) == 6
    assert left < 100  # a legend alone is three hundred


def test_a_picture_is_drawn_in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    plots, s = LivePlots(), Snapshot("q.db", NOON_MS, dict.fromkeys(STATUSES, 0))
    plots.draw(FewEnds(10), s)  # its fonts are loaded
    with collector_at_rest():
        at_s = [time.thread_time()]
        monkeypatch.setattr(live_plots, "give_way", lambda: at_s.append(time.thread_time()))
        plots.draw(FewEnds(11), s)
        at_s.append(time.thread_time())
    longest_s = max(b - a for a, b in pairwise(at_s))
    assert longest_s < (at_s[-1] - at_s[0]) / 3
    assert len(at_s) > 40


@given(st.integers(1, 9), st.integers(1, 9), st.randoms(use_true_random=False))
def test_a_picture_is_packed_as_it_is(height: int, width: int, chance: random.Random) -> None:
    pixels = np.frombuffer(chance.randbytes(height * width * 4), "uint8")
    pixels = pixels.reshape(height, width, 4)
    with Image.open(io.BytesIO(pack(pixels))) as image:
        assert image.mode == "RGBA"
        assert np.array_equal(np.asarray(image), pixels)


# -- times -----------------------------------------------------------------------------


def test_the_time_axis_is_in_the_zone_it_names() -> None:
    edges = [NOON_MS + i * 60_000 for i in range(61)]
    ended = {"completed": [1] * 60}
    labels = {}
    for hours in (0, 9):
        ax = charts.new_axes()
        zone = timezone(timedelta(hours=hours))
        charts.draw_throughput(ax, edges, ended, tz=zone)
        labels[hours] = [t.get_text() for t in _drawn(ax).xaxis.get_ticklabels()]
        assert ax.get_xlabel() == ("time (UTC)" if hours == 0 else "time (UTC+09:00)")
    assert "12:30" in labels[0]
    assert "21:30" in labels[9]


def test_local_time_says_how_far_it_is_from_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "tzlocal", lambda: timezone(timedelta(hours=-3, minutes=-30)))
    assert charts.time_label(None, NOON_MS) == "local time (UTC-03:30)"
    assert charts.time_label(UTC, NOON_MS) == "time (UTC)"


def _drawn(ax: Any) -> Any:
    charts.png(ax.figure, dpi=50)
    return ax


# -- how many tries ----------------------------------------------------------------------


def test_tries_are_counted_crashes_included(store: SqliteStore) -> None:
    sql = (
        "INSERT INTO jobs (id, payload, payload_hash, status, attempt, crashes, created_ms,"
        " updated_ms, finished_ms) VALUES (?, '{}', '', ?, ?, ?, 0, 0, ?)"
    )
    jobs = [
        ("completed", 1, 0, 5),
        ("completed", 1, 2, 5),
        ("failed", 3, 0, 5),
        ("cancelled", 0, 0, 5),
        ("queued", 2, 0, None),
        ("completed", 20, 0, 5),
    ]
    write(store, sql, [(f"id{i}", *job) for i, job in enumerate(jobs)])
    table = tries(store)
    assert table == {"completed": {1: 1, 3: 1, 20: 1}, "failed": {3: 1}, "cancelled": {0: 1}}
    ax = charts.new_axes()
    chart = charts.draw_attempts(ax, table)
    heights = {n: [bar.get_height() for bar in bars] for n, bars in chart._bars.items()}
    assert heights["completed"] == [0, 1, 0, 1, 0, 0, 0, 0, 1]
    assert heights["failed"][3] == heights["cancelled"][0] == 1
    assert [bar.get_y() for bar in chart._bars["failed"]][3] == 1
    assert "8 or more" in [t.get_text() for t in ax.get_xticklabels()]
    assert ax.alt == "5 ended jobs by tries: 1 after 0, 1 after 1, 2 after 3, 1 after 8 or more"
    before = artists(ax)
    chart.update({"failed": {2: 7}})
    assert artists(ax) == before
    assert [bar.get_height() for bar in chart._bars["failed"]][2] == 7


# -- who ran what when -----------------------------------------------------------------------


def tried(
    job: int, start: int, end: int | None, outcome: str | None, account: str = "a", fence: int = 1
) -> Attempt:
    return Attempt(
        job,
        fence,
        fence,
        account,
        "r",
        NOON_MS + start * 1000,
        None if end is None else NOON_MS + end * 1000,
        outcome,
    )


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20), st.sampled_from("ab"))))
def test_two_attempts_at_once_never_share_a_lane(spans: list[tuple[int, int, str]]) -> None:
    made = (
        Attempt(i, 1, 1, a, "r", NOON_MS + s, NOON_MS + s + d, "completed")
        for i, (s, d, a) in enumerate(spans)
    )
    attempts = sorted(made, key=lambda a: a.started_ms)
    slots = lanes.assign_slots(attempts, NOON_MS)
    for i, (x, slot) in enumerate(zip(attempts, slots, strict=True)):
        beside = [
            y
            for y, other in list(zip(attempts, slots, strict=True))[:i]
            if y.account == x.account and other == slot
        ]
        assert all((y.finished_ms or 0) <= x.started_ms for y in beside)
        at_work = [
            y
            for y in attempts[:i]
            if y.account == x.account and max(y.finished_ms or 0, y.started_ms + 1) > x.started_ms
        ]
        assert slot <= len(at_work)


def test_the_timeline_shows_lanes_waits_and_what_failed_for_good() -> None:
    attempts = [
        tried(1, 0, 10, "completed"),
        tried(2, 0, 5, "error"),
        tried(2, 9, 12, "error", "b", fence=2),
        tried(3, 10, None, None),
    ]
    ax = charts.new_axes()
    now_ms = NOON_MS + 20_000
    chart = lanes.draw_timeline(
        ax, attempts, capacity={"a": 3, "b": 1, "idle": 2}, now_ms=now_ms, failed=[2], tz=UTC
    )
    bars = {name: len(made.get_paths()) for name, made in chart._bars.items()}
    assert {n: k for n, k in bars.items() if k} == {"completed": 1, "failed": 2, "running": 1}
    assert [t.get_text() for t in ax.get_yticklabels()] == ["a", "b"]
    assert len(chart._idle.get_paths()) == 4  # three lanes of a, one of b
    (wait,) = chart._waits.get_segments()
    milliseconds = [round(x * 86_400_000) - NOON_MS for x, _ in wait]
    assert milliseconds == [5000, 9000]
    assert len(chart._ends.get_xdata()) == 1
    running = chart._bars["running"].get_paths()[0].vertices[:, 0]
    assert round(max(running) * 86_400_000) == now_ms
    assert {t.get_text() for t in chart._labels if t.get_visible()} == {"1", "2", "2·2", "3"}
    assert ax.alt == (
        "4 attempts on 2 accounts: 1 completed, 2 failed, 1 running; 1 wait between tries"
    )
    before = artists(ax)
    chart.update(attempts[:1], capacity={"a": 1}, now_ms=now_ms)
    assert artists(ax) == before
    assert not len(chart._waits.get_segments())
    chart.update([], capacity={}, now_ms=now_ms)
    assert "nothing has been tried" in ax.alt
    assert not any(t.get_visible() for t in chart._labels)


def test_too_many_attempts_become_slots_at_work_and_no_second_is_lost(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vqkit.store.sums.TIMELINE_MAX", 20)
    rnd = random.Random(4)
    attempts = [
        tried(i, s := rnd.randrange(1000), s + rnd.randrange(90), "completed" if i % 3 else "error")
        for i in range(1, 60)
    ] + [tried(60, 900, None, None, "b")]
    add_attempts(store, attempts)
    now_ms = NOON_MS + 1100_000
    seen = timeline(store, now_ms)
    assert seen.attempts == ()
    assert seen.n_attempts == 60
    assert seen.busy is not None
    width_ms = seen.busy.edges_ms[1] - seen.busy.edges_ms[0]
    for outcome in ("completed", "error"):
        worked = sum((a.finished_ms or 0) - a.started_ms for a in attempts if a.outcome == outcome)
        drawn = sum(seen.busy.slots["a"][outcome]) * width_ms
        assert drawn == pytest.approx(worked)
    assert max(seen.busy.slots["b"][None]) == pytest.approx(1)
    ten = seen.busy.edges_ms[10]
    at_work = sum(
        max(0, min(a.finished_ms or now_ms, ten + width_ms) - max(a.started_ms, ten))
        for a in attempts
        if a.account == "a"
    )
    drawn_there = sum(values[10] for values in seen.busy.slots["a"].values()) * width_ms
    assert drawn_there == pytest.approx(at_work)


def test_a_clock_that_was_set_back_breaks_no_chart(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    back = tried(2, 5, -900, "completed")._replace(cost_microusd=10)
    add_attempts(store, [tried(1, 0, 10, "completed"), back, tried(3, 6, None, None)])
    seen = timeline(store, NOON_MS + 20_000)
    chart = lanes.draw_timeline(
        charts.new_axes(), seen.attempts, capacity={}, now_ms=NOON_MS + 20_000, tz=UTC
    )
    assert len(chart._bars["completed"].get_paths()) == 2
    assert sum(costs(store, NOON_MS).spent["a"]) == pytest.approx(0.00001)
    monkeypatch.setattr("vqkit.store.sums.TIMELINE_MAX", 1)
    busy = timeline(store, NOON_MS + 20_000).busy
    assert busy is not None
    width_s = (busy.edges_ms[1] - busy.edges_ms[0]) / 1000
    assert sum(busy.slots["a"][None]) * width_s == pytest.approx(14, abs=0.1)


def test_a_hundred_thousand_attempts_are_a_bounded_number_of_artists(tmp_path: Path) -> None:
    with Queue(tmp_path / "q.db") as q:
        q.accounts.add("a", provider="p", capacity=4)
        store = SqliteStore(q.path)
        n = 100_000
        add_attempts(store, [tried(i, i // 4, i // 4 + 1, "completed") for i in range(n)])
        add_events(store, [("job.completed", NOON_MS + i * 250) for i in range(n)])
        store.close()
        axes = q.plot_timeline(tz=UTC), q.plot_throughput(tz=UTC)
        assert [artists(ax) < 60 for ax in axes] == [True, True]
        assert "100,000 attempts" in repr(axes[0])
        assert "100,000 completed" in repr(axes[1])
    assert n > TIMELINE_MAX


# -- money -----------------------------------------------------------------------------------


def test_costs_add_up_to_what_was_spent_pruned_attempts_included(store: SqliteStore) -> None:
    from vqkit.job import Account

    for name in ("a", "b"):
        store.save_account(Account(name, "p", limits_json='{"price": 500000}'))
    spent = [
        tried(i, i * 10, i * 10 + 5, "completed", "ab"[i % 2])._replace(cost_microusd=500_000)
        for i in range(1, 9)
    ]
    add_attempts(store, spent)
    counts = [("money", "a", "spent", 3_000_000), ("money", "b", "spent", 2_000_000)]
    write(store, "INSERT INTO counts VALUES (?, ?, ?, ?)", counts)
    write(store, "INSERT INTO counts VALUES (?, ?, ?, ?)", [("money", "b", "reserved", 500_000)])
    seen = costs(store, NOON_MS + 100_000)
    assert {name: sum(bins) for name, bins in seen.spent.items()} == {"a": 2.0, "b": 2.0}
    assert seen.before == {"a": 1.0, "b": 0.0}
    assert seen.reserved == {"b": 0.5}
    ax = charts.new_axes()
    chart = money.draw_costs(
        ax,
        seen.edges_ms,
        seen.spent,
        before=seen.before,
        reserved=seen.reserved,
        budgets={"a": 4.0},
        budget=9.0,
        tz=UTC,
    )
    ends = {name: line.get_ydata()[-1] for name, line in chart._lines.items()}
    assert ends == {"a": 3.0, "b": 2.0, "all accounts": 5.0}
    assert chart._lines["a"].get_ydata()[0] == 1.0
    assert [line.get_ydata()[0] for line in chart._limits.values()] == [4.0, 9.0]
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert "b $2.00 + $0.50 set aside" in texts
    assert "budget of a $4.00" in texts
    assert len({(line.get_linestyle(), line.get_marker()) for line in chart._lines.values()}) == 3


def test_without_a_price_what_was_spent_is_unknown_and_no_axes_are_drawn(tmp_path: Path) -> None:
    with Queue(tmp_path / "q.db") as q:
        q.put({"prompt": "a fox"})
        drain(q, lambda job: 1)
        ax: Any = q.plot_costs()
        assert ax.alt.startswith(
            "what was spent is unknown: no account has a price; q.accounts.add"
        )
        assert not any(spine.get_visible() for spine in ax.spines.values())
        assert ax.get_figure().get_size_inches()[1] < 1
        q.accounts.add("lambda", price=0.5)
        ax = q.plot_costs()
        assert ax.alt == "no money has been spent"
        q.put({"prompt": "an owl"})
        drain(q, lambda job: 1)
        ax = q.plot_costs()
        assert "$0.50" in ax.alt
        assert ax.spines["left"].get_visible()


def test_the_number_of_a_job_that_failed_for_good_stands_beside_its_cross() -> None:
    ax = charts.new_axes()
    tries = [
        Attempt(28, 1, 1, "a", "me", NOON_MS, NOON_MS + 3000, "error"),
        Attempt(28, 2, 2, "a", "me", NOON_MS + 5600, NOON_MS + 6000, "error"),
    ]
    chart = lanes.draw_timeline(ax, tries, capacity={"a": 1}, now_ms=NOON_MS + 60_000, failed=[28])
    ax.get_figure().canvas.draw()
    (cross,) = chart._ends.get_xdata()
    pixels = ax.transData.transform([(cross, 0)])[0][0]
    half = chart._ends.get_markersize() / 2 / 72 * ax.get_figure().dpi
    shown = [label for label in chart._labels if label.get_visible()]
    assert [label.get_text() for label in shown] == ["28", "28·2"]
    assert shown[-1].get_window_extent().x1 <= pixels - half


def test_many_accounts_are_told_apart_the_small_ones_together() -> None:
    ax = charts.new_axes()
    edges = [NOON_MS, NOON_MS + 1000]
    spent = {f"account {i:02}": [float(i)] for i in range(20)}
    chart = money.draw_costs(ax, edges, spent, tz=UTC)
    assert len(chart._lines) == 9
    assert chart._lines["13 others"].get_ydata()[-1] == sum(range(13))
    assert chart._lines["all accounts"].get_ydata()[-1] == sum(range(20))


def test_a_legend_of_any_length_stays_within_the_figure_and_a_title_above_it() -> None:
    edges = [NOON_MS, NOON_MS + 1000]
    spent = {f"an account with a long name {i}": [float(i)] for i in range(1, 7)}
    ax = charts.new_axes()
    money.draw_costs(ax, edges, spent, budgets={next(iter(spent)): 30.0}, budget=100.0, tz=UTC)
    title = ax.set_title("What it cost")
    _drawn(ax)
    legend, whole = ax.get_legend().get_window_extent(), ax.figure.bbox
    assert legend.x1 <= whole.x1
    assert title.get_window_extent().y0 >= legend.y1 - 1
    assert ax.get_position().width > 0.6


# -- as a user calls them ------------------------------------------------------------------------


def test_an_empty_queue_says_so_in_every_chart(q: Queue) -> None:
    for plot in (q.plot_throughput, q.plot_attempts, q.plot_timeline, q.plot_costs):
        ax = plot()
        (text,) = [t for t in ax.texts if t.get_visible() and t.get_text()]
        assert text.get_text() in repr(ax)
        assert ax._repr_png_()[0].startswith(b"\x89PNG")


def test_charts_of_a_real_run_and_into_axes_of_ones_own(q: Queue) -> None:
    from matplotlib.figure import Figure

    def handler(job: Any) -> None:
        if job.payload["n"] == 2:
            raise GiveUp("no")

    q.accounts.add("$studio$ \U0001f98a", provider="handler", capacity=2)  # no glyph, no formula
    q.put_many([{"n": n} for n in range(5)])
    drain(q, handler)
    figure = Figure()
    ax = figure.add_subplot(2, 2, 1)
    assert q.plot_throughput(ax=ax) is ax
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["completed 4", "failed 1"]
    assert "5 ended jobs by tries: 5 after 1" in repr(q.plot_attempts())
    timeline_ax = q.plot_timeline()
    assert "5 attempts on 1 account: 4 completed, 1 failed" in repr(timeline_ax)
    charts.png(timeline_ax.figure, dpi=60)  # a warning would be an error
    assert q.plot_throughput(since=4_000_000_000).get_legend() is None


def test_a_chart_shows_once_and_does_not_leak(q: Queue) -> None:
    ax = q.plot_attempts()
    data, size = ax._repr_png_()
    assert data.startswith(b"\x89PNG")
    assert set(size) == {"width", "height"}
    gone = weakref.ref(ax.figure)
    del ax
    gc.collect()
    assert gone() is None
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()
