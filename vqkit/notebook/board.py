"""The widgets of a dashboard. Only its own thread sets them; their callbacks leave a note.

A callback runs on whichever thread the kernel's version chooses, so all it does is to put
a note into an inbox: it returns at once, and nothing is set by two threads.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import ipywidgets as widgets

from ..job import Event
from ..snapshot import Snapshot
from . import panes
from .style import STYLE, hide_copy

__all__ = ["Ask", "Board", "Look"]

Put = Callable[..., None]  # put(what, **about)

LEVELS = {"everything": (), "warnings and errors": ("warning", "error"), "errors": ("error",)}
HEARD_S = 10.0
CONFIRM_S = 15.0
# How often a pane may say something new, in seconds: at first, and when nobody has touched the
# dashboard for an hour. A server keeps all messages for a page that is closed.
PACE_S = {"head": (1.0, 5.0), "left": (2.0, 10.0), "log": (2.0, 20.0), "jobs": (3.0, 30.0)}


@dataclass(frozen=True, slots=True)
class Ask:
    """A question before something that cannot be taken back: what is asked, and what for."""

    question: str
    yes: str
    what: str
    about: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Look:
    """All that a board shows."""

    snapshot: Snapshot
    providers: frozenset[str]
    has_handler: bool
    is_here: bool
    events: tuple[Event, ...]
    retries: tuple[Event, ...]
    about: str
    pending: frozenset[str]
    message: str | None
    ask: Ask | None


class Board:
    """Builds the widgets, and sets those that have something new to say.

    `put(what, **about)` is told what a person did. `copy_class` names the copy for the
    saved notebook, which is hidden where the live board is seen.
    """

    def __init__(self, name: str, put: Put, copy_class: str) -> None:
        self._name, self._put = name, put
        self._said_s: dict[str, float] = {}
        self._behind: set[str] = set()
        self._is_setting = False
        self._look: Look | None = None
        self._heard_s = float("-inf")
        self._said = ""
        self._style = self._pane("vq-style")
        self._style.value = f"<style>{STYLE}{hide_copy(copy_class)}</style>"
        self._head, self._left = self._pane("vq-state"), self._pane("vq-work")
        self._plots = self._pane("vq-plots")
        self._doubts, self._jobs = self._pane("vq-doubts-pane"), self._pane("vq-jobs")
        self._log, self._live = self._pane("vq-log"), self._pane("vq-heard")
        self._jobs.tabbable = self._log.tabbable = True
        self._jobs.tooltip, self._log.tooltip = "table of jobs", "events"
        self._make_buttons()
        self._make_account_row()
        self._make_doubt_row()
        self._make_log_row()
        left = self._box("vq-left", self._left, self._account_row)
        right = self._box("vq-right", self._plots)
        self.root = self._box(
            "vq-dash",
            *(self._style, self._head, self._row, self._confirm, self._live),
            *(self._box("vq-columns", left, right), self._doubts, self._doubt_row),
            *(self._jobs, self._log_row, self._log),
        )

    # -- making --------------------------------------------------------------------------

    def _pane(self, class_: str) -> widgets.HTML:
        pane = widgets.HTML()
        pane.add_class(class_)
        return pane

    def _box(self, class_: str, *children: widgets.Widget) -> widgets.Box:
        box = widgets.Box(children=children, layout=widgets.Layout(display=None))
        box.layout.display = {"vq-dash": "block", "vq-left": "block", "vq-right": "block"}.get(
            class_, "flex"
        )
        box.add_class(class_)
        return box

    def _button(self, what: str, text: str, tooltip: str, class_: str = "") -> widgets.Button:
        button = widgets.Button(description=text, tooltip=tooltip)
        for name in filter(None, (f"vq-{what.replace('_', '-')}", class_)):
            button.add_class(name)
        return button

    def _asking(self, what: str, text: str, tooltip: str) -> widgets.Button:
        """A button that only says that it was pressed."""
        button = self._button(what, text, tooltip)
        button.on_click(lambda _: self._put(what))
        return button

    def _make_buttons(self) -> None:
        make = self._asking
        self._start = make("start", "▶ Start", "Hand out work in this kernel")
        self._pause = make("pause", "‖ Pause", "Hand out no more work; what runs goes on")
        self._stop = make("stop", "◼ Stop", "Finish what runs, then end, in every process")
        self._cancel = make("cancel", "Cancel all", "Cancel what waits and what runs")
        self._retry = make("retry", "Retry failed", "Give failed jobs all their tries anew")
        self._row = self._box(
            "vq-row", self._start, self._pause, self._stop, self._cancel, self._retry
        )
        self._question = self._pane("vq-question")
        self._question.add_class("vq-fit")
        self._yes = self._button("yes", "Yes", "Do it", "vq-danger")
        self._yes.on_click(lambda _: self._put("yes"))
        self._no = self._asking("no", "No", "Leave all as it is")
        self._confirm = self._box("vq-row", self._question, self._yes, self._no)
        self._confirm.add_class("vq-confirm")
        self._confirm.layout.display = "none"

    def _make_account_row(self) -> None:
        self._account = _named(widgets.Dropdown(), "Account")
        self._capacity = _named(widgets.BoundedIntText(value=1, min=1, max=10_000), "Slots")
        self._capacity.layout.width = "110px"
        self._rest = self._button("rest", "‖ Pause account", "Give this account no more work")
        self._rest.on_click(lambda _: self._put("account", name=self._account.value))
        self._resize = self._button("resize", "Set slots", "Change how many jobs it runs at once")
        self._resize.on_click(
            lambda _: self._put("resize", name=self._account.value, n=self._capacity.value)
        )
        self._account.observe(self._choose, "value")
        self._account_row = self._box(
            "vq-row", self._account, self._rest, self._capacity, self._resize
        )
        self._account_row.add_class("vq-account-row")
        self._account_row.layout.display = "none"
        self._shown_account: str | None = None

    def _make_doubt_row(self) -> None:
        self._doubt = _named(widgets.Dropdown(), "In doubt")
        self._handle = _named(widgets.Text(), "Id at the provider")
        self._handle.layout.width = "240px"
        texts = {
            "attach": ("It was sent: use this id", "Collect what the provider made of it"),
            "not_sent": ("It was never sent", "Send it, as if for the first time"),
            "pay_again": ("Pay again", "Send another one, whatever became of the first"),
            "give_up": ("Give up", "The job fails"),
        }
        buttons = []
        for how, (text, tooltip) in texts.items():
            button = self._button(how, text, tooltip)
            button.on_click(partial(self._resolve, how))
            buttons.append(button)
        attach, *others = buttons
        self._doubt_row = self._box("vq-row", self._doubt, self._handle, attach, *others)
        self._doubt_row.add_class("vq-doubt-row")
        self._doubt_row.layout.display = "none"

    def _choose(self, _: object) -> None:
        """Somebody wants to see something else; what we set ourselves is not meant."""
        if not self._is_setting:
            self._put("look")

    def _resolve(self, how: str, _: object) -> None:
        if self._doubt.value is not None:
            value = self._handle.value.strip() or None
            self._put("resolve", number=self._doubt.value, how=how, value=value)

    def _make_log_row(self) -> None:
        title = self._pane("vq-fit")
        title.value = panes.part("Log")
        self._level = _named(widgets.Dropdown(options=list(LEVELS)), "Show")
        self._of_job = _named(
            widgets.Text(placeholder="all", continuous_update=False), "Of job number"
        )
        self._of_job.layout.width = "160px"
        self._follow = _named(widgets.Checkbox(value=True, indent=False), "Follow")
        for widget in (self._level, self._of_job, self._follow):
            widget.observe(self._choose, "value")
        self._log_row = self._box("vq-row", title, self._level, self._of_job, self._follow)
        self._log_row.add_class("vq-log-row")

    # -- what a person has chosen -------------------------------------------------------------

    @property
    def level(self) -> tuple[str, ...]:
        """The levels the log is to show; empty for all."""
        return LEVELS[self._level.value]

    @property
    def job(self) -> int | None:
        """The job whose events are wanted; None for all."""
        text = self._of_job.value.strip().lstrip("#")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 15 else None

    # -- showing ---------------------------------------------------------------------------------

    def show(self, look: Look) -> None:
        """Takes what is to be shown; `renew` sets the panes when their time has come."""
        self._look = look
        self._behind = set(PACE_S)
        self._is_setting = True
        self._set_buttons(look)
        self._set_account_row(look)
        self._set_doubt_row(look)
        self._is_setting = False

    def renew(self, now_s: float, untouched_s: float) -> None:
        """Sets the panes that are due: a message for each that has changed, none for others."""
        if self._look is None:
            return
        for name in sorted(self._behind):
            soonest_s, latest_s = PACE_S[name]
            wait_s = min(latest_s, soonest_s * (1 + untouched_s / 600))
            if now_s - self._said_s.get(name, float("-inf")) >= wait_s - 0.1 or untouched_s < 0.5:
                self._said_s[name] = now_s
                self._behind.discard(name)
                getattr(self, f"_renew_{name}")(self._look)
        self._speak(self._look.snapshot, now_s)

    def _renew_head(self, look: Look) -> None:
        s = look.snapshot
        notes: list[str] = []
        if not look.is_here and not self._may_start(look) and (s.counts["queued"] and s.accounts):
            notes.append("Start needs a handler: q.start(…) or q.dashboard(handler) in a cell")
        self._head.value = panes.head(s, self._name, notes) + panes.banners(
            s, look.retries, look.message
        )
        self._doubts.value = panes.doubts(s)

    def _renew_left(self, look: Look) -> None:
        s = look.snapshot
        self._left.value = panes.accounts(s) + panes.running(s)

    def _renew_log(self, look: Look) -> None:
        if self._follow.value:
            self._log.value = panes.log(look.events, look.snapshot.at_ms, look.about)

    def _renew_jobs(self, look: Look) -> None:
        self._jobs.value = panes.jobs(look.snapshot)

    def show_plots(self, png: str, words: str) -> None:
        """Shows another picture."""
        self._plots.value = panes.plots(png, words)

    def _may_start(self, look: Look) -> bool:
        known = any(a.provider in look.providers for a in look.snapshot.accounts)
        return known or look.has_handler

    def _set_buttons(self, look: Look) -> None:
        s, pending = look.snapshot, look.pending
        left = s.counts["queued"] + s.counts["running"]
        failed = s.counts["failed"]
        alive = [r for r in s.runners if r.is_alive]
        is_stopping = bool(alive) and all(r.state == "stopping" for r in alive)
        verb = "resume" if s.is_paused else "pause"
        states = (
            (self._start, "▶ Start", "Starting…", "start", not look.is_here),
            (self._pause, "▶ Resume" if s.is_paused else "‖ Pause", f"{verb[:-1]}ing…".title(),
             "pause", True),
            (self._stop, "◼ Stopping…" if is_stopping else "◼ Stop", "Stopping…", "stop",
             bool(alive) and not is_stopping),
            (self._cancel, "Cancel all", "Cancelling…", "cancel", left > 0),
            (self._retry, f"Retry {failed:,} failed" if failed else "Retry failed", "Putting back…",
             "retry", failed > 0),
        )  # fmt: skip
        for button, text, busy, what, is_possible in states:
            is_busy = what in pending
            is_possible = is_possible and (what != "start" or self._may_start(look))
            with button.hold_sync():
                button.description = busy if is_busy else text
                button.disabled = is_busy or not is_possible
        if look.ask is not None:
            self._question.value = panes.part(look.ask.question)
            self._yes.description = look.ask.yes
        self._confirm.layout.display = "none" if look.ask is None else "flex"

    def _set_account_row(self, look: Look) -> None:
        accounts = {a.name: a for a in look.snapshot.accounts}
        self._account_row.layout.display = "flex" if accounts else "none"
        _offer(self._account, {name: name for name in accounts})
        account = accounts.get(self._account.value)
        if account is None:
            return
        is_resting = account.why_not is not None and account.why_not.startswith("parked")
        is_on = account.is_enabled and not is_resting
        with self._rest.hold_sync():
            self._rest.description = (
                "…" if "account" in look.pending
                else "‖ Pause account" if is_on else "▶ Resume account"
            )  # fmt: skip
            self._rest.disabled = "account" in look.pending
        self._resize.disabled = "resize" in look.pending
        if self._shown_account != account.name:  # what is being typed is left alone
            self._shown_account = account.name
            self._capacity.value = account.capacity

    def _set_doubt_row(self, look: Look) -> None:
        numbers = {f"job {job.number}": job.number for job in look.snapshot.doubts}
        self._doubt_row.layout.display = "flex" if numbers else "none"
        _offer(self._doubt, numbers)
        is_busy = "resolve" in look.pending
        for button in self._doubt_row.children[2:]:
            button.disabled = is_busy

    def _speak(self, s: Snapshot, now_s: float) -> None:
        """Renews what a screen reader hears, every ten seconds at most."""
        _, word = panes.state_of(s)
        said = f"{word}: {s.headline}"
        if said != self._said and now_s - self._heard_s >= HEARD_S:
            self._said, self._heard_s = said, now_s
            self._live.value = panes.heard(said)

    def end(self, note: str) -> None:
        """Takes the widgets away; what a front end still shows of them says so."""
        with suppress(Exception):
            self._head.value = panes.part(note)
        for widget in _all_of(self.root):
            widget.close()


def _named(widget: Any, name: str) -> Any:
    """With a label, which is also what a screen reader calls it."""
    widget.description = name
    widget.style.description_width = "auto"
    widget.add_class("vq-fit")
    return widget


def _offer(dropdown: widgets.Dropdown, options: dict[str, Any]) -> None:
    """Offers these, and keeps what is chosen; where nothing is, the first."""
    if tuple(options.items()) == dropdown.options:
        return
    chosen = dropdown.value
    with dropdown.hold_sync():
        dropdown.options = tuple(options.items())
        left = tuple(options.values())
        dropdown.value = chosen if chosen in left else left[0] if left else None


def _all_of(widget: widgets.Widget) -> list[widgets.Widget]:
    found = [widget, widget.layout]
    if hasattr(widget, "style") and isinstance(widget.style, widgets.Widget):
        found.append(widget.style)
    for child in getattr(widget, "children", ()):
        found += _all_of(child)
    return found
