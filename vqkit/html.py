"""The one place that turns values into HTML: escaped, static, no script, no style sheet.

Colours are JupyterLab's own variables with fallbacks, so a table reads well in light and
dark themes and in front ends that have none of them.
"""

from __future__ import annotations

import html as _html
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from . import codec
from .secrets import redact_own

if TYPE_CHECKING:
    from .job import Job

__all__ = ["Markup", "bar", "element", "escape", "grid", "job_html", "join", "output", "table"]

TEXT = "color:var(--jp-ui-font-color1,inherit)"
MUTED = "color:var(--jp-ui-font-color2,#777)"
LINE = "1px solid var(--jp-border-color2,#bbb)"

# Okabe & Ito's colour-blind-safe palette; each status also has a sign of its own.
STATUS = {
    "completed": ("#009E73", "✓"),
    "running": ("#0072B2", "▶"),
    "in_doubt": ("#CC79A7", "?"),
    "failed": ("#D55E00", "✗"),
    "cancelled": ("#E69F00", "–"),
    "queued": ("#999999", "·"),
}
_OTHER = ("#999999", "·")
_VOID = ("img",)
_UNSHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def escape(value: Any) -> str:
    """`value` as text that HTML shows and never interprets; None is the empty text.

    Control characters and half characters, which HTML has no way to show, become the
    replacement sign. A key that is known to this process becomes ``[key]``.
    """
    text = "" if value is None else redact_own(str(value))
    return _html.escape(_UNSHOWN.sub("\ufffd", text), quote=True)


class Markup(str):
    """Text that is HTML already, because a function of this module made it."""

    __slots__ = ()


def element(tag: str, *parts: Any, **attributes: Any) -> Markup:
    """``<tag …>parts</tag>``. What is not Markup is escaped, attributes always are.

    Names of attributes are as in HTML with "_" for "-", and a "_" at the end where Python
    has the word: ``class_="vq-head", aria_label="jobs"``. None leaves an attribute out.
    """
    given = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{tag}{given}>" if tag in _VOID else f"<{tag}{given}>{join(parts)}</{tag}>")


def join(parts: Iterable[Any]) -> Markup:
    """The parts one after the other; what is not Markup is escaped."""
    return Markup("".join(p if isinstance(p, Markup) else escape(p) for p in parts))


def output(*parts: Any, class_: str = "", **attributes: Any) -> Markup:
    """What a cell shows: the parts in a ``<div>`` in which a dollar is a dollar.

    Front ends look for formulas in all that a cell shows: of "$11.50 to $16.10" MathJax makes
    the formula "11.50to". It leaves alone what is of these classes (of versions 2, 3 and later).
    """
    classes = " ".join(filter(None, ("tex2jax_ignore mathjax_ignore", class_)))
    return element("div", *parts, class_=classes, **attributes)


def grid(caption: str, header: Sequence[str], rows: Iterable[Sequence[Any]], **more: Any) -> Markup:
    """A table for a page that has a style sheet of its own; each row begins with its header."""
    head = element("tr", *(element("th", h, scope="col") for h in header))
    body = (
        element("tr", element("th", row[0], scope="row"), *(element("td", c) for c in row[1:]))
        for row in rows
    )
    return element(
        "table",
        element("caption", caption),
        element("thead", head),
        element("tbody", *body),
        **more,
    )


def table(header: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> Markup:
    """A table of cells, escaped where they are not Markup, under an escaped caption."""
    cell = f"padding:2px 8px;text-align:left;vertical-align:top;border-bottom:{LINE}"
    head = "".join(f'<th scope="col" style="{cell}">{escape(h)}</th>' for h in header)
    body = "".join(
        "<tr>" + "".join(f'<td style="{cell}">{join([c])}</td>' for c in row) + "</tr>"
        for row in rows
    )
    title = f'<caption style="text-align:left;{MUTED}">{escape(caption)}</caption>'
    return Markup(
        f'<table style="border-collapse:collapse;{TEXT}">{title if caption else ""}'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def bar(counts: dict[str, int]) -> Markup:
    """A progress bar by status, with its numbers in words for those who cannot see it."""
    total = sum(counts.values())
    done = counts.get("completed", 0)
    order = [*STATUS, *(status for status in counts if status not in STATUS)]
    shown = [(s, counts[s], *STATUS.get(s, _OTHER)) for s in order if counts.get(s)]
    words = ", ".join(f"{n} {status.replace('_', ' ')}" for status, n, *_ in shown)
    parts = "".join(
        f'<span title="{n} {escape(status)}"'
        f' style="height:12px;flex:{n} 0 3px;background:{colour}">'
        "</span>"
        for status, n, colour, _ in shown
    )
    legend = " &nbsp; ".join(
        f'<span style="white-space:nowrap"><span style="border-left:10px solid {colour};'
        f'margin-right:4px"></span>{sign} {n:,} {escape(status.replace("_", " "))}</span>'
        for status, n, colour, sign in shown
    )
    return Markup(
        f'<div role="progressbar" aria-label="jobs by status" aria-valuemin="0"'
        f' aria-valuemax="{total}" aria-valuenow="{done}" aria-valuetext="{escape(words)}"'
        f' style="display:flex;max-width:640px;border:{LINE}">{parts}</div>'
        f'<div style="{TEXT}">{legend or "no jobs yet"}</div>'
    )


def job_html(job: Job) -> Markup:
    """A job as a small table: what was asked, how it stands, what came of it."""
    error = job.error or {}
    rows = [
        ("payload", codec.readable(job.payload_json)),
        ("status", f"{STATUS[job.status][1]} {job.status}"),
    ]
    optional = {
        "stage": job.stage,
        "attempts": job.attempt or None,
        "crashes": job.crashes + job.deaths or None,
        "account": job.account,
        "reason": job.reason,
        "error": ": ".join(filter(None, (error.get("type"), error.get("message")))) or None,
        "at": error.get("line"),
        "result": job.result_json,
        "row": f"{job.source}, row {job.row}" if job.source else None,
    }
    rows += [(name, str(value)) for name, value in optional.items() if value is not None]
    return output(table(("", ""), rows, f"job {job.number}"))
