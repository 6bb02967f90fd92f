"""Finished clips with their prompts: newest first, side by side, one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..clock import SystemClock, local_text
from ..html import MUTED, TEXT, Markup, element, job_html, output, table
from ..job import Attempt, Event, Job
from ..words import count, event_words, shorten
from .clips import Clip, Media, card, cards

__all__ = ["PAGE", "Comparison", "Details", "Gallery", "ShownJob"]

GROUP = 12
GROUPS = 4
PAGE = GROUP * GROUPS
ROWS_SHOWN = 20
OUTSIDE = (
    "These files lie outside the notebook's folder. If they do not play, start Jupyter in a"
    " folder above both, or use embed=True."
)


class Gallery:
    """A page of finished clips, at most 48: twelve are open, the others fold out.

    `read(page)` gives the clips of a page, from 1, and how many clips there are in all.
    """

    def __init__(
        self,
        read: Callable[[int], tuple[list[Clip], int]],
        thumbs: Path,
        *,
        page: int = 1,
        embed: bool = False,
    ) -> None:
        self._read, self._thumbs, self._embed = read, thumbs, embed
        self.page = page
        self.clips, self.total = read(page)

    @property
    def pages(self) -> int:
        """How many pages there are."""
        return max(1, -(-self.total // PAGE))

    def older(self) -> Gallery:
        """The next page; the last page gives itself."""
        return self._turned(min(self.page + 1, self.pages))

    def newer(self) -> Gallery:
        """The page before; the first page gives itself."""
        return self._turned(max(self.page - 1, 1))

    def _turned(self, page: int) -> Gallery:
        return Gallery(self._read, self._thumbs, page=page, embed=self._embed)

    def __len__(self) -> int:
        return len(self.clips)

    def __repr__(self) -> str:
        return f"<Gallery: {self._where()}>"

    def _where(self) -> str:
        if not self.clips:
            return "no finished clips yet" if not self.total else f"page {self.page} is empty"
        first = (self.page - 1) * PAGE + 1
        shown = f"{first:,}–{first + len(self.clips) - 1:,} of {count(self.total, 'clip')}"
        return f"{shown}, newest first"

    def _repr_html_(self) -> str:
        media = Media(self._thumbs, embed=self._embed)
        media.prepare(self.clips)
        head = self._where()
        if self.page < self.pages:
            head += f"; older ones: q.gallery(page={self.page + 1})"
        parts = [element("div", head, style=f"{MUTED};padding:2px 0 6px")]
        for start in range(0, len(self.clips), GROUP):
            group = self.clips[start : start + GROUP]
            shown = cards(group, media)
            if start:
                first = (self.page - 1) * PAGE + start + 1
                last = first + len(group) - 1
                title = element(
                    "summary",
                    f"{first:,}–{last:,}" if last > first else f"{first:,}",
                    style=f"{TEXT};cursor:pointer;padding:6px 0",
                )
                shown = element("details", title, shown)
            parts.append(shown)
        return output(*parts, *_outside(media))


class Comparison:
    """Clips side by side: a column for each of `columns`, (title, clips), a row each sample."""

    def __init__(self, columns: Sequence[tuple[str, list[Clip]]], thumbs: Path) -> None:
        self.columns, self._thumbs = columns, thumbs

    def __repr__(self) -> str:
        told = ", ".join(f"{shorten(title, 40)}: {len(clips)}" for title, clips in self.columns)
        return f"<Comparison: {told}>"

    def _repr_html_(self) -> str:
        media = Media(self._thumbs)
        media.prepare(clip for _, clips in self.columns for clip in clips)
        width = f"{100 / max(1, len(self.columns)):.4g}%"
        cell = f"width:{width};min-width:150px;padding:4px;vertical-align:top;text-align:left"
        heads = (
            element("th", shorten(title, 160), title=title, scope="col", style=f"{cell};{TEXT}")
            for title, _ in self.columns
        )
        rows = []
        for i in range(max((len(clips) for _, clips in self.columns), default=0)):
            cells = [
                card(clips[i], media, is_prompt_shown=False) if i < len(clips) else "–"
                for _, clips in self.columns
            ]
            rows.append(element("tr", *(element("td", c, style=cell) for c in cells)))
        shown = element(
            "table",
            element("thead", element("tr", *heads)),
            element("tbody", *rows),
            style="border-collapse:collapse;width:100%;table-layout:fixed",
        )
        return output(shown, *_outside(media), style="overflow-x:auto")


class Details(NamedTuple):
    """What is known of a job beyond its own row, and the folder of small pictures."""

    clip: Clip
    attempts: list[Attempt]
    events: list[Event]
    thumbs: Path


Tell = Callable[[int], "Details | None"]


class ShownJob(Job):
    """A job that a notebook shows with its clip, its attempts and its events.

    Equal to the plain Job, and pickled as one.
    """

    _tell: Tell | None = None

    @classmethod
    def of(cls, job: Job, tell: Tell) -> Job:
        """The job; `tell` gives the details of a number, or None once the queue is closed."""
        shown = cls._make(job)
        shown._tell = tell
        return shown

    def __reduce__(self) -> Any:
        return Job._make, (tuple(self),)

    def _repr_html_(self) -> str:
        details = self._tell(self.number) if self._tell is not None else None
        if details is None:
            return job_html(self)
        media = Media(details.thumbs)
        media.prepare([details.clip])
        style = "max-width:420px;margin-bottom:8px"
        shown = [element("div", card(details.clip, media), style=style)]
        return output(
            *(shown if details.clip.files else ()),
            job_html(details.clip.job),
            _attempts(details.attempts),
            _events(details.events),
            *_outside(media),
        )


def _outside(media: Media) -> list[Markup]:
    return [element("div", OUTSIDE, style=f"{MUTED};padding-top:6px")] if media.is_outside else []


def _attempts(attempts: Sequence[Attempt]) -> Markup:
    rows = []
    for a in attempts[-ROWS_SHOWN:]:
        error = a.error or {}
        took = "" if a.finished_ms is None else f"{(a.finished_ms - a.started_ms) / 1000:.1f} s"
        cost = "" if not a.cost_microusd else f"${a.cost_microusd / 1e6:,.2f}"
        said = ": ".join(filter(None, (error.get("type"), error.get("message"))))
        rows.append(
            (
                *(a.attempt, a.account, _when(a.started_ms), took),
                *((a.outcome or "running").replace("_", " "), shorten(said, 200), cost),
            )
        )
    head = ("try", "account", "began", "took", "outcome", "error", "cost")
    return table(head, rows, _of("tries", len(attempts))) if rows else Markup("")


def _events(events: Sequence[Event]) -> Markup:
    rows = [
        (_when(e.at_ms), e.level, shorten(event_words(e.type, e.data), 300))
        for e in events[-ROWS_SHOWN:]
    ]
    title = element(
        "summary", _of("events", len(events)), style=f"{TEXT};cursor:pointer;padding:6px 0"
    )
    return element("details", title, table(("at", "level", "what happened"), rows))


def _of(what: str, n: int) -> str:
    return what if n <= ROWS_SHOWN else f"the last {ROWS_SHOWN} of {n:,} {what}"


def _when(ms: int) -> str:
    return local_text(ms, SystemClock().now_ms())
