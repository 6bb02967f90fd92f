"""What a dashboard's panes say, as HTML: pure functions of a snapshot.

Everything a user or a provider has written goes through `html.element`, which escapes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .. import codec, html
from ..clock import local_text
from ..handles import shape
from ..html import Markup, element, join
from ..job import Event, Job, Step
from ..snapshot import Snapshot, duration_text
from ..words import clean, count, event_words, failure_of, failure_text, shorten, what

__all__ = [
    "CLOSED",
    "ENDED",
    "accounts",
    "banners",
    "doubts",
    "example",
    "head",
    "heard",
    "jobs",
    "log",
    "part",
    "plots",
    "running",
    "state_of",
]

RUNNING_SHOWN = 8
ACCOUNTS_SHOWN = 30
ROWS_MAX = 50
RETRIES_TOLD = 3
ENDED = "this dashboard has ended; q.dashboard() shows it again"
CLOSED = "this queue was closed; open it again: q = Queue(path), and q.dashboard()"


def state_of(s: Snapshot) -> tuple[str, str]:
    """How the queue stands, as a sign and a word."""
    if any(not r.is_alive for r in s.runners) and not any(r.is_alive for r in s.runners):
        return "✗", "the pump has stopped"
    if s.is_paused:
        return "‖", "paused"
    if any(r.is_alive and r.state != "stopping" for r in s.runners):
        if s.counts["running"]:
            return "▶", "running"
        return ("▷", "waiting") if s.counts["queued"] else ("▷", "ready, nothing to do")
    if any(r.is_alive for r in s.runners):
        return "◼", "stopping"
    if not s.total:
        return "·", "empty"
    if s.counts["queued"] or s.counts["running"]:
        return "◼", "stopped"
    return ("✓", "complete") if s.counts["completed"] == s.total else ("✓", "at rest")


def headline(s: Snapshot) -> str:
    """The state in words; where a batch is under way, that nothing is lost by leaving."""
    is_at_work = any(r.is_alive for r in s.runners) and (s.counts["queued"] or s.counts["running"])
    return s.headline + ("; safe to close the lid" if is_at_work else "")


def head(s: Snapshot, name: str, notes: Sequence[str]) -> Markup:
    """Title, state, headline, bar and what to know."""
    sign, word = state_of(s)
    rate = None if s.per_minute is None or not s.eta_s else f"{s.per_minute:,.1f} jobs a minute"
    others = [f"pump: process {r.pid}" for r in s.runners if r.is_alive]
    told = ", ".join(filter(None, (rate, *others[:3], f"as of {local_text(s.at_ms, s.at_ms)}")))
    return element(
        "div",
        element(
            "div",
            element("span", f"{sign} {word}", class_="vq-chip"),
            element("strong", name, class_="vq-name"),
            element("span", told, class_="vq-muted"),
            class_="vq-top",
        ),
        element("div", headline(s), class_="vq-headline"),
        html.bar(s.counts),
        *(element("div", note, class_="vq-muted") for note in notes),
        class_="vq-head",
        role="region",
        aria_label=f"vqkit queue {name}",
    )


def banners(s: Snapshot, events: Iterable[Event], message: str | None) -> Markup:
    """What needs somebody's eye: a pump that died, failures with their line, the last refusal."""
    told: list[tuple[str, str]] = []
    for r in s.runners:
        if not r.is_alive:
            why = f" ({clean(r.trouble)})" if r.trouble else ""
            told.append(
                (
                    "error",
                    f"Process {r.pid}, which worked on this queue, has died{why}. Nothing is lost:"
                    f" Start takes its jobs up, or {s.goes_on}.",
                )
            )
    told += [("error", clean(note)) for note in s.notes if not _is_told(note, s)]
    told += [("warning", clean(note)) for note in s.waiting]
    if s.failed:
        more = s.counts["failed"]
        told.append(("error", f"{count(more, 'job')} failed. Newest: {failure_text(s.failed[0])}"))
    if retry := _failing(events):
        told.append(("warning", retry))
    if message:
        told.append(("warning", message))
    return join(_banner(kind, text) for kind, text in told)


def _is_told(note: str, s: Snapshot) -> bool:
    return any(r.trouble and r.trouble in note for r in s.runners if not r.is_alive)


def _banner(kind: str, text: str) -> Markup:
    word = {"error": "✗ Error", "warning": "! Note"}[kind]
    return element("div", element("strong", f"{word}: "), text, class_=f"vq-banner vq-{kind}")


def _failing(events: Iterable[Event]) -> str | None:
    """A sentence where the newest tries all went wrong and are made again."""
    wrong: list[Event] = []
    for event in reversed(tuple(events)):
        if event.type == "job.completed":
            break
        if event.type == "job.retry_scheduled" and event.data.get("error"):
            wrong.append(event)
    if len(wrong) < RETRIES_TOLD:
        return None
    said = clean(event_words(wrong[0].type, wrong[0].data))
    return f"The last {len(wrong)} tries went wrong. Newest: job {wrong[0].job}: {said}"


def accounts(s: Snapshot) -> Markup:
    """A row for each account: slots, what it brought to an end, money, why it rests."""
    if not s.accounts:
        return Markup("")
    with_money = any(a.spent is not None for a in s.accounts)
    header = ["account", "slots", "done", "failed", *(["spent"] if with_money else []), "state"]
    rows: list[list[object]] = []
    for a in s.accounts[:ACCOUNTS_SHOWN]:
        of = f" of ${a.budget:,.2f}" if a.budget is not None else ""
        spent = "" if a.spent is None else f"${a.spent:,.2f}{of}"
        name = a.name if a.name == a.provider else f"{a.name} ({a.provider})"
        state = "‖ rests" if a.why_not else "▶ at work" if a.live else "· free"
        rows.append(
            [
                name,
                _num(_meter(a.live, a.capacity), a.slots_text),
                _num(f"{a.completed:,}"),
                _num(f"{a.failed:,}"),
                *([_num(spent)] if with_money else []),
                _num(state),
            ]
        )
    more = len(s.accounts) - ACCOUNTS_SHOWN
    caption = "Accounts" + (f" (and {more} more)" if more > 0 else "")
    why = [
        element("div", element("strong", f"‖ {a.name}: "), clean(a.why_not), class_="vq-why")
        for a in s.accounts[:ACCOUNTS_SHOWN]
        if a.why_not
    ]
    return join((html.grid(caption, header, rows, class_="vq-accounts"), *why))


def running(s: Snapshot) -> Markup:
    """The jobs that have run longest, with their stage."""
    if not s.running:
        return Markup("")
    rows = [
        [
            _num(str(job.number)),
            _line(what(job), 60),
            _num(_progress(job), shorten(job.label(s.at_ms), 24)),
            _num(duration_text((s.at_ms - (job.started_ms or s.at_ms)) / 1000)),
            _num(shorten(job.account, 30)),
        ]
        for job in s.running[:RUNNING_SHOWN]
    ]
    more = s.counts["running"] - len(rows)
    caption = "Running longest" + (f" (and {more:,} more)" if more > 0 else "")
    return html.grid(
        caption, ("job", "about", "stage", "for", "account"), rows, class_="vq-running"
    )


def jobs(s: Snapshot, rows_max: int = ROWS_MAX) -> Markup:
    """Failed jobs first, then those to which something happened last; how many are not shown."""
    if not s.total:
        return Markup("")
    failed = list(s.failed)
    seen = {job.number for job in (*failed, *s.doubts)}
    recent = [job for job in s.recent if job.number not in seen]
    others = [*reversed(s.doubts), *recent]
    room = max(rows_max // 2, rows_max - len(others))
    shown = [*failed[:room], *others]
    shown = shown[:rows_max]
    rows = [
        [
            _num(str(job.number)),
            _status(job, s.at_ms),
            shorten(what(job), 90),
            _num(shorten(job.account, 30)),
            _num(str(job.attempt + job.crashes + job.deaths or "")),
            _took(job, s.at_ms),
            element("span", _note(job), class_="vq-note"),
        ]
        for job in shown
    ]
    more = s.total - len(rows)
    table = html.grid(
        "Jobs: failed first, then the newest",
        ("job", "state", "about", "account", "tries", "time", "note"),
        rows,
        class_="vq-table",
    )
    rest = element("div", f"and {more:,} more", class_="vq-muted vq-more") if more > 0 else ""
    return join((table, rest))


def doubts(s: Snapshot) -> Markup:
    """Jobs of which nobody knows whether their paid call arrived, with the evidence."""
    if not s.doubts:
        return Markup("")
    rows = [
        [
            _num(str(job.number)),
            shorten(what(job), 60),
            clean(job.reason or "nobody knows what became of it"),
            join(
                element("div", _evidence(step, s.at_ms), class_="vq-code")
                for step in s.evidence.get(job.number, ())
            ),
        ]
        for job in s.doubts
    ]
    more = s.counts["in_doubt"] - len(rows)
    caption = "In doubt: was it sent? Look at the provider, then say what became of it" + (
        f" (and {more:,} more)" if more > 0 else ""
    )
    return html.grid(
        caption, ("job", "about", "why", "what was to be sent"), rows, class_="vq-doubts"
    )


def _evidence(step: Step, now_ms: int) -> str:
    where = f" on {step.account}" if step.account else ""
    request = f", request {shorten(step.request_json, 160)}" if step.request_json else ""
    return (
        f"step {step.name}, begun {local_text(step.begun_ms, now_ms)}{where},"
        f" key {step.key}{request}"
    )


def example(value: Any) -> str:
    """What a person is to type for a step: as another job's answer looked, without its texts."""
    like = (
        'JSON, such as {"id": "…"}' if value is None else codec.readable(codec.dumps(shape(value)))
    )
    return shorten(like, 60)


def log(events: Sequence[Event], now_ms: int, about: str) -> Markup:
    """A line for each event, newest first."""
    lines = [
        element(
            "li",
            element("span", f"{local_text(e.at_ms, now_ms)} ", class_="vq-muted vq-num"),
            element("strong", f"{_LEVEL[e.level]} ") if e.level in _LEVEL else "",
            f"job {e.job}: " if e.job is not None else "",
            shorten(event_words(e.type, e.data), 300),
        )
        for e in reversed(events)
    ]
    if not lines:
        return element("div", f"no events {about}", class_="vq-muted")
    return element("ol", *lines, aria_label=f"events {about}, newest first")


_LEVEL = {"warning": "! warning", "error": "✗ error"}


def plots(png: str, words: str) -> Markup:
    """The picture of the plots, and what it says for those who cannot see it."""
    image = element("img", src=f"data:image/png;base64,{png}", alt=words)
    return element("figure", image, style="margin:0")


def heard(text: str) -> Markup:
    """What a screen reader speaks; it is renewed every ten seconds at most."""
    return element("div", text, role="status", aria_live="polite", aria_atomic="true")


def part(text: str) -> Markup:
    """The title of a part."""
    return element("div", text, class_="vq-part")


def _line(text: str, length: int) -> Markup:
    """On one line, cut where the room ends, so that nothing below it moves."""
    return element("span", shorten(text, length), class_="vq-line")


def _num(*parts: object) -> Markup:
    return element("span", *parts, class_="vq-num")


def _status(job: Job, now_ms: int) -> Markup:
    colour, sign = html.STATUS[job.status]
    word = element(
        "span", f"{sign} {shorten(job.label(now_ms), 24).replace('_', ' ')}", class_="vq-word"
    )
    return element("span", word, class_="vq-sign", style=f"border-color:{colour}")


def _took(job: Job, now_ms: int) -> Markup | str:
    if job.started_ms is None or job.status == "queued":
        return ""
    return _num(duration_text(((job.finished_ms or now_ms) - job.started_ms) / 1000))


def _note(job: Job) -> str:
    if job.status == "failed" or (job.status == "queued" and job.error_json):
        line = (job.error or {}).get("line")
        return shorten(failure_of(job), 200) + (f" [{shorten(line, 120)}]" if line else "")
    if job.status in ("cancelled", "in_doubt", "queued"):
        return shorten(job.reason, 200)
    return ""


def _meter(n: int, of: int) -> Markup:
    share = min(100, round(100 * n / of)) if of else 0
    return element(
        "span", element("span", style=f"width:{share}%"), class_="vq-meter", aria_hidden="true"
    )


def _progress(job: Job) -> Markup:
    if job.progress is None:
        return Markup("")
    share = round(100 * min(1.0, max(0.0, job.progress)))
    return join((_meter(share, 100), f"{share} % "))
