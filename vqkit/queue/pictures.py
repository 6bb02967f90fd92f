"""What a notebook shows of a queue: the dashboard, plots, clips, a line of progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, tzinfo
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import html
from ..errors import UsageError
from ..job import Event
from ..liveness import is_alive
from ..policy import comes_back_ms
from ..store.files import beside
from ..store.sums import Ends, Pace, costs, newest_completed, timeline, tries, with_prompts
from ..words import what as what_of
from .asked import Which, moment, whole
from .running import Running

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..notebook.clips import Clip
    from ..notebook.dashboard import Dashboard
    from ..notebook.gallery import Comparison, Gallery
    from ..notebook.progress import Notify, Progress

__all__ = ["Pictures"]

SAMPLES_COMPARED = 500  # of one prompt


class Pictures(Running):
    """The part of a queue that is looked at."""

    def dashboard(
        self, handler: Callable[..., Any] | None = None, *, live: bool | None = None
    ) -> Dashboard:
        """Shows the queue in this cell, live, with buttons; running the cell again replaces it.

        What it shows is in the database: it is right after a reload, in a second notebook,
        and while another process does the work. Its Start button starts `handler`, or what
        `start` and `provider` were given. Nothing is started by showing it. A copy of it
        without buttons stays in the saved notebook. `live` overrides what is found out
        about the front end: with False only that copy is made.
        """
        from ..notebook.dashboard import show

        self._dashboard = show(
            self, partial(self.start, handler), has_handler=handler is not None, live=live
        )
        return self._dashboard

    def signs(self) -> tuple[object, ...]:
        """What changes when the queue does, and costs next to nothing to look at.

        A number that changes with every commit, who of those that work on it lives, which
        parks of accounts and models are still to end, and what troubles the run of this kernel.
        """
        folder = beside(self.path) / "runners"
        now_ms = self._clock.now_ms()
        version, runners, accounts = self._read(
            lambda s: (s.changes_elsewhere(), s.runners(), s.accounts())
        )
        living = frozenset(runner.id for runner in runners if is_alive(folder, runner))
        parked = tuple(comes_back_ms(accounts, now_ms))
        run = self._shared.run
        return version, living, parked, None if run is None else run.health.trouble

    def pace(self, before: Pace | None = None) -> Pace:
        """How the work has gone, brought up to date; pass what an earlier call gave.

        The first call looks at the newest events only; where there are many, each call reads
        some of them (see `Pace.is_behind`).
        """
        pace = before or Pace()
        self._read(pace.follow)
        return pace

    def newest_events(self, limit: int, after: int = 0, job: int | None = None) -> list[Event]:
        """The last `limit` events with an id above `after`, oldest first."""
        return self._read(lambda s: s.events(after, job, limit, newest=True))

    @property
    def providers(self) -> frozenset[str]:
        """The providers known in this kernel: those that `start` can put to work."""
        return frozenset(self._shared.providers)

    def plot_throughput(
        self,
        *,
        since: datetime | str | float | None = None,
        ax: Axes | None = None,
        tz: tzinfo | None = None,
    ) -> Axes:
        """Draws how many jobs ended per minute, by how they ended; returns the Axes.

        All `plot_…` methods draw into `ax`, or make a figure that the notebook shows where
        the Axes are a cell's last value; ``ax.figure.savefig("plot.pdf")`` keeps it. `since`
        leaves out what was before. Times are local ones, or those of `tz`.
        """
        from ..notebook import plots

        ends = Ends(moment("since", since) or 0)
        while self._read(ends.follow):
            pass
        now = self.snapshot()
        is_working = now.counts["running"] > 0 and any(r.is_alive for r in now.runners)
        return plots.throughput(ends, now.at_ms if is_working else None, ax, tz)

    def plot_attempts(self, *, ax: Axes | None = None) -> Axes:
        """Draws how many tries ended jobs took, crashes included; returns the Axes."""
        from ..notebook import plots

        return plots.attempts(self._read(tries), ax)

    def plot_timeline(
        self,
        *,
        since: datetime | str | float | None = None,
        ax: Axes | None = None,
        tz: tzinfo | None = None,
    ) -> Axes:
        """Draws who ran what when, in a lane per account slot, and waits between tries.

        Bars carry job numbers ("17·2" is the second try of job 17) where there is room. Of
        more than 2,000 attempts it draws how many slots were at work. Returns the Axes.
        """
        from ..notebook import plots

        now, since_ms = self.snapshot(), moment("since", since) or 0
        seen = self._read(lambda s: timeline(s, now.at_ms, since_ms))
        return plots.timeline(seen, now, ax, tz)

    def plot_costs(self, *, ax: Axes | None = None, tz: tzinfo | None = None) -> Axes:
        """Draws what each account has spent over time, with the budgets; returns the Axes."""
        from ..notebook import plots

        now = self.snapshot()
        return plots.costs(self._read(lambda s: costs(s, now.at_ms)), now, self.budget, ax, tz)

    def gallery(self, *, batch: str | None = None, page: int = 1, embed: bool = False) -> Gallery:
        """The finished clips with their prompts, playing in the notebook, newest first.

        A page holds 48. Files are played from where they are; the notebook keeps a small
        picture of each, and the whole of small ones. `embed` keeps whole files up to 48 MB
        in all, for a notebook that travels alone.
        """
        from ..notebook.gallery import PAGE, Gallery

        def read(page: int) -> tuple[list[Clip], int]:
            offset = (page - 1) * PAGE
            numbers, total = self._read(lambda s: newest_completed(s, batch, PAGE, offset))
            return self._clips(numbers), total

        return Gallery(read, self._thumbs, page=whole("page", page, 1, 2**31), embed=embed)

    def compare(self, what: str | Sequence[str | Which], *, batch: str | None = None) -> Comparison:
        """Clips side by side: a column for each prompt (or job number), a row for each sample.

        With one prompt its samples stand beside each other. Jobs that are not completed say
        how they stand. Raises UsageError for a prompt that no job has.
        """
        from ..notebook.gallery import Comparison

        wanted = [what] if isinstance(what, str) else list(what)
        prompts = [one for one in wanted if isinstance(one, str)]
        found = self._read(lambda s: with_prompts(s, prompts, batch))
        if lost := [prompt for prompt, numbers in found.items() if not numbers]:
            raise UsageError(f"no job has the prompt {lost[0]!r}; q.to_frame() lists them")
        if len(wanted) == 1 and prompts:
            columns = [(f"sample {c.job.sample + 1}", [c]) for c in self._clips(found[prompts[0]])]
            return Comparison(columns, self._thumbs)
        columns = []
        for one in wanted:
            numbers = found[one] if isinstance(one, str) else [self.job(one).number]
            clips = self._clips(numbers[:SAMPLES_COMPARED])
            columns.append((one if isinstance(one, str) else what_of(clips[0].job), clips))
        return Comparison(columns, self._thumbs)

    def progress(self, *, wait: bool | None = None, notify: Notify = False) -> Progress:
        """One line that follows the queue until nothing is left to do.

        In a notebook it returns at once and follows in the background; elsewhere it waits,
        and an interrupt ends the line, not the work. `wait` overrides that. With `notify`
        True the browser tells when it is over, if the user allows it and the page is on
        https or localhost; a terminal rings. A function is called with the last snapshot.
        """
        from ..notebook.progress import follow

        return follow(self.snapshot, wait=wait, notify=notify)

    def __dir__(self) -> list[str]:
        """What a user needs, and nothing else, for tab completion."""
        names = {name for name in super().__dir__() if not name.startswith("_")}
        return sorted(names - {"newest_events", "pace", "signs"})  # what screens are made of

    def __rich__(self) -> Any:
        from ..notebook.terminal import picture

        return repr(self) if self._is_closed else picture(self.snapshot(), 80)

    def __repr__(self) -> str:
        if self._is_closed:
            return f"<Queue {self.path.name}: closed>"
        return f"<Queue {self.path.name}: {self.snapshot().headline}>"

    def _repr_html_(self) -> str:
        if self._is_closed:
            return html.output(f"{self.path.name}: closed")
        return self.snapshot()._repr_html_()
