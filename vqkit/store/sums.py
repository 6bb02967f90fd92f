"""What charts and galleries show: sums and choices that SQL makes, so that a million rows stay few.

All SQL of vqkit stands in this package; what only reads and only charts need stands here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from .. import codec
from ..job import Attempt
from .sqlite import SqliteStore

__all__ = [
    "Busy",
    "Costs",
    "Ends",
    "Pace",
    "Timeline",
    "costs",
    "newest_completed",
    "timeline",
    "tries",
    "with_prompts",
]

BINS_MAX = 90
BINS_MIN = 12  # fewer look like a wall
TIMELINE_MAX = 2000  # attempts that are still drawn one by one
PAGE = 100_000
PACE_EVENTS = 400_000
# Each divides the next, so that fine bins add up to coarse ones.
WIDTHS_MS = tuple(
    1000 * s for s in (1, 5, 15, 60, 300, 900, 3600, 21_600, 86_400, 604_800, 4_233_600)
)
# A job that recovery found finished was so many seconds at work; one that a person gave up
# while it was in doubt had so many attempts.
_ENDED = """
SELECT CASE
    WHEN type = 'job.completed' THEN 'completed'
    WHEN type = 'job.failed' THEN 'failed'
    WHEN type IN ('job.cancelled', 'job.expired') THEN 'cancelled'
    WHEN type = 'job.retry_scheduled' THEN 'tried again'
    WHEN json_extract(data, '$.seconds') IS NOT NULL THEN 'completed'
    WHEN type = 'job.resolved' AND json_extract(data, '$.attempt') IS NOT NULL THEN 'failed'
    WHEN type = 'job.reclaimed' AND json_extract(data, '$.error') IS NOT NULL THEN 'failed'
    WHEN type = 'job.reclaimed' THEN 'tried again'
    END AS ended, at_ms / ?, count(*)
FROM events WHERE id > ? AND id <= ? AND at_ms >= ? AND type IN (
    'job.completed', 'job.failed', 'job.cancelled', 'job.expired', 'job.retry_scheduled',
    'job.reclaimed', 'job.resolved')
GROUP BY 1, 2 HAVING ended IS NOT NULL
"""


@dataclass(slots=True)
class Ends:
    """What ended when, counted by the bin as the events come in.

    `follow` reads on where it stopped, so a chart that is drawn again every few seconds
    pays only for what is new. Bins grow coarser by themselves: there are never more than 90.
    """

    since_ms: int = 0
    width_ms: int = WIDTHS_MS[0]
    after: int = 0
    counts: Counter[tuple[str, int]] = field(default_factory=Counter)

    def follow(self, store: SqliteStore) -> bool:
        """Reads the next page of events. True while there are more."""
        last = int(store.query("SELECT coalesce(max(id), 0) FROM events")[0][0])
        if last < self.after:  # another file has taken its place
            self.after = 0
            self.counts.clear()
        upto = min(last, self.after + PAGE)
        found = store.query(_ENDED, (self.width_ms, self.after, upto, self.since_ms))
        for kind, i, n in found:
            self.counts[kind, i] += n
        self.after = upto
        while self._span() > BINS_MAX and self.width_ms < WIDTHS_MS[-1]:
            self._coarsen()
        return upto < last

    def bins(self, now_ms: int | None = None) -> tuple[list[int], dict[str, list[int]]]:
        """The edges of the bins in UTC ms, one more than bins, and the counts by how it ended.

        With `now_ms` the last bin ends there if it is not over yet. There are at least 12
        bins, empty ones among them, for one job alone.
        """
        if not self.counts:
            return [], {}
        first, n = min(i for _, i in self.counts), self._span()
        if (more := BINS_MIN - n) > 0:
            first -= more if now_ms is not None else more // 2
            n = BINS_MIN
        edges = [(first + i) * self.width_ms for i in range(n + 1)]
        if now_ms is not None:
            edges[-1] = max(edges[-2] + 1, min(edges[-1], now_ms))
        ended = {
            kind: [self.counts.get((kind, first + i), 0) for i in range(n)]
            for kind in sorted({kind for kind, _ in self.counts})
        }
        return edges, ended

    def _span(self) -> int:
        numbers = [i for _, i in self.counts]
        return max(numbers) - min(numbers) + 1 if numbers else 0

    def _coarsen(self) -> None:
        wider = WIDTHS_MS[WIDTHS_MS.index(self.width_ms) + 1]
        factor = wider // self.width_ms
        coarse: Counter[tuple[str, int]] = Counter()
        for (kind, i), n in self.counts.items():
            coarse[kind, i // factor] += n
        self.counts, self.width_ms = coarse, wider


_TRIES = """
SELECT substr(e.type, 5), coalesce(j.attempt + j.crashes + j.deaths, 1), count(*)
FROM events e LEFT JOIN jobs j ON j.number = e.job
WHERE e.id > ? AND e.id <= ? AND e.type IN ('job.completed', 'job.failed') GROUP BY 1, 2
"""


@dataclass(slots=True)
class Pace:
    """How the work goes, for a screen that is renewed: what ended when, after how many tries.

    It begins so far back that a look costs the same whatever the number of jobs. `tries` is
    {status: {number of tries: number of jobs}}.
    """

    ends: Ends = field(default_factory=Ends)
    tries: dict[str, Counter[int]] = field(default_factory=dict)
    is_behind: bool = True

    def follow(self, store: SqliteStore) -> None:
        """Reads on, at most a page."""
        with store.reading():
            self.ends.after = max(self.ends.after, store.last_event() - PACE_EVENTS)
            after = self.ends.after
            self.is_behind = self.ends.follow(store)
            for status, n, jobs in store.query(_TRIES, (after, self.ends.after)):
                self.tries.setdefault(status, Counter())[n] += jobs

    def bins(self, now_ms: int | None = None) -> tuple[list[int], dict[str, list[int]]]:
        """What ended when, as `Ends.bins` gives it."""
        return self.ends.bins(now_ms)


def tries(store: SqliteStore) -> dict[str, dict[int, int]]:
    """{status: {number of tries: number of jobs}} of all jobs that have ended."""
    found = store.query(
        "SELECT status, attempt + crashes + deaths, count(*) FROM jobs"
        " WHERE finished_ms IS NOT NULL GROUP BY 1, 2"
    )
    table: dict[str, dict[int, int]] = {}
    for status, n, jobs in found:
        table.setdefault(status, {})[n] = jobs
    return table


@dataclass(frozen=True, slots=True)
class Busy:
    """{account: {outcome: n mean numbers of slots at work}} in the n bins between `edges_ms`."""

    edges_ms: list[int]
    slots: dict[str, dict[str | None, list[float]]]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Who ran what when: each attempt, or where they are too many, sums of them in `busy`.

    `failed` are the jobs that failed for good, `parked` when accounts came to rest.
    """

    n_attempts: int
    attempts: tuple[Attempt, ...] = ()
    busy: Busy | None = None
    failed: frozenset[int] = frozenset()
    parked: tuple[tuple[str, int], ...] = ()


def timeline(store: SqliteStore, now_ms: int, since_ms: int = 0) -> Timeline:
    """The attempts that were at work since then, in one consistent view."""
    with store.reading():
        wanted = "FROM attempts WHERE coalesce(finished_ms, ?) >= ?"
        n = store.query(f"SELECT count(*) {wanted}", (now_ms, since_ms))[0][0]
        if n > TIMELINE_MAX:
            return Timeline(n, busy=_busy(store, now_ms, since_ms))
        rows = store.query(
            "SELECT job, fence, attempt, account, runner, started_ms, finished_ms, outcome"
            f" {wanted} ORDER BY started_ms, job, fence",
            (now_ms, since_ms),
        )
        attempts = tuple(Attempt(*row) for row in rows)
        failed = store.query(
            "SELECT number FROM jobs WHERE status = 'failed'"
            " AND number IN (SELECT value FROM json_each(?))",
            (codec.dumps(sorted({a.job for a in attempts})),),
        )
        parked = store.query(
            "SELECT json_extract(data, '$.name'), at_ms FROM events"
            " WHERE type = 'account.parked' AND at_ms >= ? ORDER BY id DESC LIMIT 200",
            (since_ms,),
        )
    return Timeline(n, attempts, failed=frozenset(row[0] for row in failed), parked=tuple(parked))


def _busy(store: SqliteStore, now_ms: int, since_ms: int) -> Busy:
    """The mean number of slots at work in each bin, exactly, from sums of starts and ends.

    The slot time worked until t is the sum over all starts s before t of t - s, less the same
    over all ends. So it takes the number and the sum of starts, and of ends, in each bin.
    """
    first, last = store.query(
        "SELECT min(started_ms), max(coalesce(finished_ms, ?)) FROM attempts"
        " WHERE coalesce(finished_ms, ?) >= ?",
        (now_ms, now_ms, since_ms),
    )[0]
    first = max(first, since_ms)
    width = max(1, -(-(last - first + 1) // BINS_MAX))
    n = -(-(last - first + 1) // width)
    steps: dict[tuple[str, str | None], list[list[int]]] = defaultdict(
        lambda: [[0, 0] for _ in range(n + 1)]
    )
    # Never before the first start: a clock that was set back can end what has not begun.
    for sign, moment in ((1, "started_ms"), (-1, "coalesce(finished_ms, ?)")):
        since = f"(max({moment}, ?) - ?)"
        given = (first, first) if sign > 0 else (now_ms, first, first)
        found = store.query(
            f"SELECT account, outcome, {since} / ?, count(*), sum({since}) FROM attempts"
            " WHERE coalesce(finished_ms, ?) >= ? GROUP BY 1, 2, 3",
            (*given, width, *given, now_ms, since_ms),
        )
        for account, outcome, i, count, total in found:
            cell = steps[account, outcome][min(i, n)]
            cell[0] += sign * count
            cell[1] += sign * total
    slots: dict[str, dict[str | None, list[float]]] = defaultdict(dict)
    for (account, outcome), cells in steps.items():
        count = total = 0
        worked = [0]
        for i, (more, offsets) in enumerate(cells[:n]):
            count += more
            total += offsets
            worked.append(count * (i + 1) * width - total)
        slots[account][outcome] = [(b - a) / width for a, b in pairwise(worked)]
    return Busy([first + i * width for i in range(n + 1)], dict(slots))


@dataclass(frozen=True, slots=True)
class Costs:
    """Dollars by account: spent in each bin, before the first of them, set aside now.

    What was spent on attempts that were pruned since is in `before`.
    """

    edges_ms: list[int]
    spent: dict[str, list[float]]
    before: dict[str, float]
    reserved: dict[str, float]


def costs(store: SqliteStore, now_ms: int) -> Costs:
    """What was spent when, in one consistent view."""
    with store.reading():
        money = store.money(now_ms)
        first, last = store.query(
            "SELECT min(started_ms), max(finished_ms) FROM attempts WHERE cost_microusd > 0"
        )[0]
        first = now_ms - 1000 if first is None else first
        last = max(first + 1, now_ms if last is None else last)
        width = max(1, -(-(last - first + 1) // BINS_MAX))
        n = -(-(last - first + 1) // width) + 1  # so that the last rise is seen
        found = store.query(
            "SELECT account, (coalesce(finished_ms, started_ms) - ?) / ?, sum(cost_microusd)"
            " FROM attempts WHERE cost_microusd > 0 GROUP BY 1, 2",
            (first, width),
        )
    spent: dict[str, list[int]] = {name: [0] * n for name, m in money.items() if any(m[:2])}
    for account, i, cost in found:
        spent.setdefault(account, [0] * n)[min(max(i, 0), n - 1)] += cost
    ever = {name: money[name][0] if name in money else sum(spent[name]) for name in spent}
    return Costs(
        [first + i * width for i in range(n + 1)],
        {name: [cost / 1e6 for cost in bins] for name, bins in spent.items()},
        {name: max(0, ever[name] - sum(bins)) / 1e6 for name, bins in spent.items()},
        {name: m[1] / 1e6 for name, m in money.items() if m[1]},
    )


def newest_completed(
    store: SqliteStore, batch: str | None, limit: int, offset: int
) -> tuple[list[int], int]:
    """So many completed jobs by number, the newest first, and how many there are in all."""
    where = "status = 'completed' AND (? IS NULL OR batch = ?)"
    total = store.query(f"SELECT count(*) FROM jobs WHERE {where}", (batch, batch))[0][0]
    found = store.query(
        f"SELECT number FROM jobs WHERE {where} ORDER BY finished_ms DESC, number DESC"
        " LIMIT ? OFFSET ?",
        (batch, batch, limit, offset),
    )
    return [row[0] for row in found], total


def with_prompts(
    store: SqliteStore, prompts: Sequence[str], batch: str | None
) -> dict[str, list[int]]:
    """The jobs of each prompt by number, in the order of their samples."""
    found = store.query(
        "SELECT json_extract(payload, '$.prompt') AS prompt, number FROM jobs"
        " WHERE prompt IN (SELECT value FROM json_each(?)) AND (? IS NULL OR batch = ?)"
        " ORDER BY sample, number",
        (codec.dumps(list(prompts)), batch, batch),
    )
    numbers: dict[str, list[int]] = {prompt: [] for prompt in prompts}
    for prompt, number in found:
        numbers[prompt].append(number)
    return numbers
