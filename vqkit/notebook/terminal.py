"""How a queue stands, on a terminal: a bar by status, the state in words, its accounts."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from .. import html
from ..clock import SystemClock
from ..job import Job
from ..snapshot import Snapshot
from ..words import clean

__all__ = ["headline", "picture", "status_bar"]

ACCOUNTS_SHOWN = 12
SIGNS = {"completed": "█", "failed": "x", "running": "▒", "in_doubt": "?", "cancelled": "-"}


def headline(s: Snapshot) -> str:
    """The state in words, with the rate where work goes on."""
    rate = f", {s.per_minute:.0f} a minute" if s.per_minute and s.eta_s is not None else ""
    return s.headline + rate


def status_bar(s: Snapshot, width: int) -> Text:
    """So many characters, by status; each status has a character of its own."""
    bar, at, drawn = Text(), 0, 0
    for status in ("completed", "failed", "cancelled", "in_doubt", "running", "queued"):
        at += s.counts.get(status, 0)
        edge = round(width * at / s.total) if s.total else 0
        bar.append(SIGNS.get(status, "░") * (edge - drawn), html.STATUS[status][0])
        drawn = edge
    return bar


def picture(s: Snapshot, width: int, note: str = "") -> Group:
    """A bar by status, the state in words, a line for each account, what is wrong."""
    accounts = Table.grid(padding=(0, 2))
    now_ms = SystemClock().now_ms()
    for a in s.accounts[:ACCOUNTS_SHOWN]:
        mine = [f"{j.number} {_stage(j, now_ms)}" for j in s.running if j.account == a.name]
        doing = Text(clean(a.why_not), "yellow") if a.why_not else Text(", ".join(mine[:6]))
        name = Text(f"  {clean(a.name)}")  # as it is: in a plain string "[red]" would be a colour
        accounts.add_row(name, f"{a.slots_text} busy", f"{a.completed} done", doing)
    more = len(s.accounts) - ACCOUNTS_SHOWN
    notes = [*s.waiting, *s.notes, *([f"and {more} more accounts"] if more > 0 else [])]
    head = Text(", ".join(filter(None, (headline(s), note))), "bold")
    told = (Text(f"  {clean(n)}", "yellow") for n in notes)
    return Group(status_bar(s, min(width, 80)), head, accounts, *told)


def _stage(job: Job, now_ms: int) -> str:
    done = f" {job.progress:.0%}" if job.progress is not None else ""
    return clean(job.label(now_ms)).replace("assigned", "begins") + done
