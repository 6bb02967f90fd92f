"""One line that follows a queue: in a notebook from the background, on a terminal while it waits.

In a notebook it is HTML under a display handle: it stays in the cell that made it, whatever
cell runs last, and is saved with the notebook (a bar made of widgets is not). On a terminal
it is drawn with rich.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from .. import secrets
from ..html import LINE, MUTED, STATUS, TEXT, Markup, element, output
from ..snapshot import Snapshot
from .terminal import headline, status_bar

__all__ = ["Notify", "Progress", "follow", "is_notebook", "line_html"]

log = secrets.logger("vqkit.notebook")

LOOK_S = 0.5
LOOK_RESTING_S = 3.0  # when nothing changed for a while
CALM_S = 20.0
BAR_WIDTH = 30

Notify = bool | Callable[[Snapshot], object]

# A front end runs a script again whenever it opens the notebook: the time, and a note in the
# page's session, keep an old one from asking or telling again.
_SCRIPT = """(() => {{
  const seen = "{key}";
  if (!("Notification" in window) || Math.abs(Date.now() - {now_ms}) > 600000) return;
  if (sessionStorage.getItem(seen)) return;
  sessionStorage.setItem(seen, "1");
  {act}
}})()"""
_ASK = 'if (Notification.permission === "default") Notification.requestPermission();'
_TELL = 'if (Notification.permission === "granted") new Notification("vqkit", {body: BODY});'


class Progress:
    """A line that follows a queue until nothing is left to do, or `close`."""

    def __init__(
        self,
        look: Callable[[], Snapshot],
        show: Callable[[Snapshot, str], None],
        at_end: Callable[[Snapshot], None],
    ) -> None:
        self._look, self._show, self._at_end = look, show, at_end
        self._closed = threading.Event()
        self.snapshot = look()
        self._has_worked = _is_worked_on(self.snapshot)
        self._show(self.snapshot, "")

    @property
    def is_over(self) -> bool:
        """True once nothing is left to do, or those who worked have left."""
        s = self.snapshot
        has_left = self._has_worked and not _is_worked_on(s)
        return self._closed.is_set() or has_left or not (s.counts["queued"] + s.counts["running"])

    def close(self) -> None:
        """Stops following; the line stays as it is."""
        self._closed.set()

    def begin(self) -> None:
        """Follows in the background."""
        threading.Thread(target=self._serve, name="vqkit-progress", daemon=True).start()

    def _serve(self) -> None:
        try:
            self.run()
        except Exception as error:  # noqa: BLE001 - told where the user looks
            log.info("the line of progress has ended: %s: %s", type(error).__name__, error)
            self._show(self.snapshot, f"not followed any more: {secrets.redact(str(error))}")

    def run(self) -> None:
        """Follows until it is over. An interrupt ends the line, not the work."""
        changed_s = time.monotonic()
        told: str | None = None
        while not self.is_over:
            is_calm = time.monotonic() - changed_s > CALM_S
            if self._closed.wait(LOOK_RESTING_S if is_calm else LOOK_S):
                return
            self.snapshot = self._look()
            self._has_worked = self._has_worked or _is_worked_on(self.snapshot)
            if (facts := headline(self.snapshot)) != told:
                told, changed_s = facts, time.monotonic()
                self._show(self.snapshot, "")
        if not self._closed.is_set():
            self._at_end(self.snapshot)

    def _ipython_display_(self) -> None:
        """The line is shown already; as a cell's last value it is not shown twice."""

    def __repr__(self) -> str:
        return f"<Progress: {headline(self.snapshot)}>"


def _is_worked_on(s: Snapshot) -> bool:
    return any(r.is_alive and r.state != "stopping" for r in s.runners)


def follow(
    look: Callable[[], Snapshot], *, wait: bool | None = None, notify: Notify = False
) -> Progress:
    """Shows the line and follows: in the background of a notebook, else waiting.

    `wait` overrides that. With `notify` True the browser tells the end if it may, and a
    terminal rings; a function is called with the last snapshot.
    """
    if is_notebook():
        progress = _in_notebook(look, notify)
        if wait:
            progress.run()
        else:
            progress.begin()
        return progress
    return _on_terminal(look, notify, wait=wait is not False)


def line_html(s: Snapshot, note: str = "") -> Markup:
    """The line: a bar by status, its state in words, and what else there is to say."""
    shown = [(status, s.counts.get(status, 0), *STATUS[status]) for status in STATUS]
    parts = (
        element("span", style=f"flex:{n} 0 2px;background:{colour}", title=f"{n:,} {status}")
        for status, n, colour, _ in shown
        if n
    )
    words = headline(s)
    bar = element(
        "span",
        *parts,
        role="progressbar",
        aria_label="jobs by status",
        aria_valuemin="0",
        aria_valuemax=str(s.total),
        aria_valuenow=str(s.counts["completed"]),
        aria_valuetext=words,
        style=f"display:inline-flex;flex:0 1 220px;min-width:90px;height:12px;border:{LINE}",
    )
    percent = f"{s.counts['completed'] / s.total:.0%}" if s.total else ""
    number = element(
        "span", percent, style=f"{MUTED};font-variant-numeric:tabular-nums;min-width:2.6em"
    )
    return output(
        bar,
        number,
        element("span", words),
        *([element("span", note, style=MUTED)] if note else ()),
        style=f"display:flex;flex-wrap:wrap;gap:2px 10px;align-items:center;{TEXT}",
    )


def _in_notebook(look: Callable[[], Snapshot], notify: Notify) -> Progress:
    from IPython import display as shown_by

    # IPython carries no types.
    display: Any = shown_by.display
    javascript: Any = shown_by.Javascript
    handle: Any = None

    def show(s: Snapshot, note: str) -> None:
        nonlocal handle
        told = ", ".join(filter(None, (headline(s), note)))
        shown = {"text/html": str(line_html(s, note)), "text/plain": told}
        if handle is None:
            handle = display(shown, raw=True, display_id=True)
        else:
            handle.update(shown, raw=True)

    def at_end(s: Snapshot) -> None:
        if callable(notify):
            notify(s)
        elif notify:
            bell.update(javascript(_script(_TELL, s)))

    progress = Progress(look, show, at_end)
    if notify is True:
        bell = display(javascript(_script(_ASK, progress.snapshot)), display_id=True)
    return progress


def _script(act: str, s: Snapshot) -> str:
    import json

    # Within a script only "</" could end it; a queue's name is text all the same.
    body = json.dumps(f"{s.name}: {headline(s)}").replace("<", "\\u003c")
    key = f"vqkit-{'told' if act is _TELL else 'asked'}-{s.at_ms}"
    return _SCRIPT.format(key=key, now_ms=s.at_ms, act=act.replace("BODY", body))


def _on_terminal(look: Callable[[], Snapshot], notify: Notify, *, wait: bool) -> Progress:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)

    def line(s: Snapshot, note: str) -> Text:
        bar = status_bar(s, BAR_WIDTH)
        told = ", ".join(filter(None, (headline(s), note)))
        return Text.assemble(bar, " ", told, no_wrap=True, overflow="ellipsis")

    def at_end(s: Snapshot) -> None:
        if callable(notify):
            notify(s)
        elif notify:
            console.bell()

    if not wait:  # nothing may be printed from the background
        progress = Progress(look, lambda s, note: console.print(line(s, note)), at_end)
        progress.close()
        return progress
    with Live(console=console, auto_refresh=False) as live:
        progress = Progress(look, lambda s, note: live.update(line(s, note), refresh=True), at_end)
        progress.run()
    return progress


def is_notebook() -> bool:
    """True in a kernel, whose front end takes display messages."""
    import sys

    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")
