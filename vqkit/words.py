"""vqkit's facts in a person's words: events, failures, counts, paths. Pure text, no colours."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from . import codec
from .job import Job, prompt_of
from .secrets import redact_own
from .snapshot import duration_text

__all__ = [
    "EVENTS",
    "Changed",
    "Requeued",
    "clean",
    "comes_back",
    "count",
    "event_words",
    "failure_of",
    "failure_text",
    "near",
    "shorten",
    "what",
]

JOINERS = "\u200c\u200d"  # emoji and scripts need them; all else unprintable is shown as �


def clean(text: object) -> str:
    """Text on one line that cannot steer a terminal, and without a key this process knows."""
    line = " ".join(redact_own(str(text)).split())
    return "".join(c if c.isprintable() or c in JOINERS else "\ufffd" for c in line)


def shorten(text: object, length: int) -> str:
    """At most so much of a text, on one line that cannot steer a terminal."""
    line = clean("" if text is None else text)
    return line if len(line) <= length else line[: length - 1] + "…"


def count(n: int, what: str) -> str:
    """A number and its noun, in the plural where it is not one."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


class Changed(int):
    """How many jobs a verb has changed: a number, which a cell shows as a sentence."""

    words: str

    def __new__(cls, n: int, words: str = "changed") -> Self:
        made = super().__new__(cls, n)
        made.words = words
        return made

    def __repr__(self) -> str:
        return f"{count(int(self), 'job')} {self.words}"

    __str__ = int.__repr__


class Requeued(Changed):
    """How many jobs were put back, how many were `left` alone, and why.

    `sheets` are those that the jobs left alone came from.
    """

    left: int = 0
    sheets: tuple[str, ...] = ()

    @classmethod
    def of(cls, n: int, left: int = 0, sheets: Iterable[str] = ()) -> Requeued:
        """So many put back, and so many left."""
        made = cls(n, "put back")
        made.left, made.sheets = left, tuple(sheets)
        return made

    @property
    def why_left(self) -> str:
        """Why some were left alone; "" where none was."""
        if not self.left:
            return ""
        whose, were = ("its row is", "was") if self.left == 1 else ("their rows are", "were")
        names = ", ".join(self.sheets[:3]) + (", …" if len(self.sheets) > 3 else "")
        return f"{self.left:,} left: {whose} gone from {names} or {were} edited"

    def __repr__(self) -> str:
        ways_on = "; q.requeue(17), by number, takes one all the same"
        return super().__repr__() + (f"; {self.why_left}{ways_on}" if self.left else "")


def near(path: Path) -> str:
    """A path as one would type it here."""
    with suppress(ValueError):
        return str(path.relative_to(Path.cwd().resolve()))
    return str(path)


def what(job: Job) -> str:
    """What a job is about: its prompt, or else its payload."""
    return prompt_of(job.payload) or codec.readable(job.payload_json)


def comes_back(jobs: Iterable[Job]) -> str:
    """Which of these finished jobs the next load of their sheet would make again; "" for none."""
    rows = [job for job in jobs if job.is_terminal and job.row is not None and job.source]
    if not rows:
        return ""
    first = rows[0]
    more = f", and {len(rows) - 1} more" if len(rows) > 1 else ""
    return (
        f"row {first.row} of job {first.number} is still in {clean(first.source)}{more}: the next"
        " load or vqkit run makes it again, and pays again"
    )


def failure_of(job: Job) -> str:
    """What went wrong, in a line."""
    error = job.error or {}
    said = ": ".join(filter(None, (error.get("type"), error.get("message")))) or job.reason
    return clean(said or "failed")


def failure_text(job: Job) -> str:
    """The same with the job, its row, and the line of the user's code."""
    where = f" ({clean(job.source)}, row {job.row})" if job.row else ""
    line = (job.error or {}).get("line")
    return f"job {job.number}{where}: {shorten(failure_of(job), 300)}" + (
        f" [{shorten(line, 120)}]" if line else ""
    )


class _Facts(dict[str, Any]):
    """An event's data for a template: what it does not hold is left out."""

    def __missing__(self, name: str) -> str:
        return ""


# {wrong} is the error with its line, {because} the reason, {again} when it is tried again.
EVENTS = {
    "job.queued": "put in {origin}",
    "job.changed": "its row has changed: the new text counts",
    "job.superseded": "its row has changed since it was begun: job {by} does the new text",
    "job.row_gone": "its row is no longer in {source}",
    "job.handed_over": "its row is no longer in {was}, and still in {source}",
    "job.started": "begun on {account}, try {attempt}",
    "job.stage_changed": "{stage} {done}",
    "job.logged": "says: {message}",
    "job.step_begun": "step {name} is begun",
    "job.step_done": "step {name} is done",
    "job.renewed": "asks for another render of the same",
    "job.completed": "completed in {took} on {account}",
    "job.retry_scheduled": "{wrong}; {again}",
    "job.failed": "failed: {wrong}{because}",
    "job.snoozed": "put off, {again}{because}",
    "job.released": "given back{because}",
    "job.reclaimed": "put back: the process that ran it died",
    "job.in_doubt": "nobody knows whether it was sent{because}",
    "job.resolved": "the doubt is settled{because}",
    "job.cancelled": "cancelled{because}",
    "job.cancel_requested": "asked to stop",
    "job.requeued": "put back by you; it was {was}",
    "job.expired": "cancelled: its time was over before its turn came",
    "job.late_result": "a result came too late and is kept aside",
    "job.doubt_noted": "{note}",
    "job.render_closed": "its render at the provider is closed: {note}",
    "run.recovered": "recovered: {text}",
    "account.removed": "account {name} removed",
    "account.saved": "account {name} may run {capacity} at once",
    "account.parked": "account {name} rests: {reason}",
    "queue.paused": "paused",
    "queue.resumed": "goes on",
    "queue.stopped": "asked to finish what runs, and end",
}


def event_words(kind: str, d: dict[str, Any]) -> str:
    """What happened, as one would tell it; of a kind that is not known, what it holds."""
    if kind not in EVENTS:
        return f"{kind.partition('.')[2].replace('_', ' ')} {d or ''}"
    if kind == "job.reclaimed" and "seconds" in d:
        return "completed: it was finished when its process died, and is not made again"
    if kind == "job.reclaimed" and d.get("error"):
        kind = "job.failed"
    wrong = ": ".join(filter(None, (d.get("error"), d.get("message"))))
    facts = _Facts(
        d,
        wrong=wrong + (f" [{d['line']}]" if d.get("line") else ""),
        because=f" ({d['reason']})" if d.get("reason") else "",
        again=f"again in {duration_text(d['delay_s'])}" if d.get("delay_s") else "again at once",
        done=f"{d['progress']:.0%}" if d.get("progress") else "",
        took=f"{d.get('seconds', 0):.1f} s",
        origin=f"({d['source']}, row {d.get('row')})" if d.get("source") else "",
    )
    return EVENTS[kind].format_map(facts)
