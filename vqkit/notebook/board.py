"""The widgets of a dashboard. Only its own thread sets them; their callbacks leave a note.

A callback runs on whichever thread the kernel's version chooses, so all it does is to put
a note into an inbox: it returns at once, and nothing is set by two threads.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import ipywidgets as widgets

from ..job import Event
from ..snapshot import Snapshot
from ..steps import RENDER
from . import panes
from .giving_way import give_way
from .style import STYLE, hide_copy

__all__ = ["Ask", "Board", "Doubt", "Look", "Wish"]

Put = Callable[..., None]  # put(what, **about)

LEVELS = {"everything": (), "warnings and errors": ("warning", "error"), "errors": ("error",)}
HEARD_S = 10.0
CONFIRM_S = 15.0
# How often a pane may say something new, in seconds: at first, and when nobody has touched the
# dashboard for an hour. A server keeps all messages for a page that is closed.
PACE_S = {"head": (1.0, 5.0), "left": (2.0, 10.0), "log": (2.0, 20.0), "jobs": (3.0, 30.0)}


class Wish(NamedTuple):
    """What a button asks, and of which account or job; "" is the queue."""

    verb: str
    of: str | int = ""
    detail: Hashable = None

    def __str__(self) -> str:
        of = f"job {self.of}" if isinstance(self.of, int) else self.of
        return " ".join(filter(None, (self.verb, of)))


@dataclass(frozen=True, slots=True)
class Doubt:
    """What a person says of a job in doubt: which doubt (the try that left it), and what.

    `status` is another one where they had said it before, and say it again.
    """

    number: int
    fence: int
    how: Literal["attach", "not_sent", "pay_again", "give_up"]
    text: str
    step: str | None
    example: Any = None
    status: str = "in_doubt"


@dataclass(frozen=True, slots=True)
class Ask:
    """A question before something that cannot be taken back: what is asked, and what for.

    `about` is the doubt to end, or the highest number of the jobs to cancel.
    """

    question: str
    yes: str
    about: Doubt | int


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
    pending: frozenset[Wish]
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
        # A press may be heard minutes later, while a cell blocks: so each button has one meaning.
        self._pause = make("pause", "‖ Pause", "Hand out no more work; what runs goes on")
        self._resume = make("resume", "▶ Resume", "Hand out work again")
        self._stop = make("stop", "◼ Stop", "Finish what runs, then end, in every process")
        self._cancel = make("cancel", "Cancel all", "Cancel what waits and what runs")
        self._retry = self._button("retry", "Retry failed", "Give failed jobs all their tries anew")
        self._retry.on_click(lambda _: self._put("retry", ended_by_ms=self._shown.at_ms))
        self._row = self._box(
            "vq-row",
            *(self._start, self._pause, self._resume, self._stop, self._cancel, self._retry),
        )
        self._question = self._pane("vq-question")
        self._question.add_class("vq-fit")
        self._yes = self._button("yes", "Yes", "Do it", "vq-danger")
        self._yes.on_click(lambda _: self._put("yes", ask=self._look and self._look.ask))
        self._no = self._asking("no", "No", "Leave all as it is")
        self._confirm = self._box("vq-row", self._question, self._yes, self._no)
        self._confirm.add_class("vq-confirm")
        self._confirm.layout.display = "none"

    def _make_account_row(self) -> None:
        self._account = _named(widgets.Dropdown(), "Account")
        self._capacity = _named(widgets.BoundedIntText(value=1, min=1, max=10_000), "Slots")
        self._capacity.layout.width = "110px"
        texts = {
            "pause account": ("‖ Pause account", "Give this account no more work"),
            "resume account": ("▶ Resume account", "Give this account work again"),
            "unpark": ("▶ End its rest", "What made it rest is mended: give it work again"),
        }
        self._account_buttons = {
            what: self._button(what.replace(" ", "-"), *said) for what, said in texts.items()
        }
        for what, button in self._account_buttons.items():
            button.on_click(partial(self._tell_account, what))
        self._resize = self._button("resize", "Set slots", "Change how many jobs it runs at once")
        self._resize.on_click(
            lambda _: self._put("set slots of", name=self._account.value, n=self._capacity.value)
        )
        self._account.observe(self._choose, "value")
        self._account_row = self._box(
            "vq-row",
            *(self._account, *self._account_buttons.values(), self._capacity, self._resize),
        )
        self._account_row.add_class("vq-account-row")
        self._account_row.layout.display = "none"
        self._shown_account: str | None = None

    def _make_doubt_row(self) -> None:
        self._doubt = _named(widgets.Dropdown(), "In doubt")
        self._doubt.observe(self._choose, "value")
        self._handle = _named(widgets.Text(), "Id at the provider")
        self._handle.layout.width = "340px"
        texts = {
            "attach": ("It was sent: use this", "Go on with what the provider made of it"),
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

    @property
    def _shown(self) -> Snapshot:
        assert self._look is not None  # buttons are there after the first look
        return self._look.snapshot

    def _tell_account(self, what: str, _: object) -> None:
        name = self._account.value
        shown = next((a for a in self._shown.accounts if a.name == name), None)
        self._put(what, name=name, parked_until_ms=shown and shown.parked_until_ms)

    def _resolve(self, how: Any, _: object) -> None:
        text, shown = self._handle.value.strip(), self._shown
        number, step = _meant(shown, self._doubt.value)
        among = (*shown.doubts, *(job for job, _ in shown.said))
        job = next((job for job in among if job.number == number), None)
        doubt = None
        if job is not None:
            example = shown.examples.get(step or "")
            doubt = Doubt(job.number, job.fence, how, text, step, example, job.status)
        self._put("resolve", doubt=doubt)

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
                give_way()
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
        s, pending = look.snapshot, _under_way(look)
        left = s.counts["queued"] + s.counts["running"]
        failed = s.counts["failed"]
        alive = [r for r in s.runners if r.is_alive]
        is_stopping = bool(alive) and all(r.state == "stopping" for r in alive)
        states = (
            (self._start, "▶ Start", "Starting…", "start", not look.is_here),
            (self._pause, "‖ Pause", "Pausing…", "pause", True),
            (self._resume, "▶ Resume", "Resuming…", "resume", True),
            (self._stop, "◼ Stopping…" if is_stopping else "◼ Stop", "Stopping…", "stop",
             bool(alive) and not is_stopping),
            (self._cancel, "Cancel all", "Cancelling…", "cancel", left > 0),
            (self._retry, f"Retry {failed:,} failed" if failed else "Retry failed", "Putting back…",
             "retry", failed > 0),
        )  # fmt: skip
        for button, text, busy, what, is_possible in states:
            is_busy = (what, "") in pending
            is_possible = is_possible and (what != "start" or self._may_start(look))
            with button.hold_sync():
                button.description = busy if is_busy else text
                button.disabled = is_busy or not is_possible
        _show_one(self._resume if s.is_paused else self._pause, (self._pause, self._resume))
        if look.ask is not None:
            self._question.value = panes.part(look.ask.question)
            self._yes.description = look.ask.yes
        self._confirm.layout.display = "none" if look.ask is None else "flex"

    def _set_account_row(self, look: Look) -> None:
        accounts = {a.name: a for a in look.snapshot.accounts}
        self._account_row.layout.display = "flex" if accounts else "none"
        is_first = len(self._account.options) < 2
        _offer(self._account, {name: name for name in accounts}, "which account?", "{}: gone")
        if is_first and accounts:
            self._account.value = next(iter(accounts))
        account, pending = accounts.get(self._account.value), _under_way(look)
        if account is None:
            return
        what = "pause account"
        if account.parked_until_ms is not None:
            what = "unpark"
        if not account.is_enabled:
            what = "resume account"
        _show_one(self._account_buttons[what], self._account_buttons.values())
        for verb, button in self._account_buttons.items():
            button.disabled = (verb, account.name) in pending
        self._resize.disabled = ("set slots of", account.name) in pending
        if self._shown_account != account.name:  # what is being typed is left alone
            self._shown_account = account.name
            self._capacity.value = account.capacity

    def _set_doubt_row(self, look: Look) -> None:
        s = look.snapshot
        offered = {text: of for job in s.doubts for text, of in _doubts_of(s, job.number)}
        for job, name in s.said:
            what = "its render" if name == RENDER else f"step {name}"
            offered[f"job {job.number}, {what}: say it again"] = f"{job.number}, step {name}"
        self._doubt_row.layout.display = "flex" if offered else "none"
        if not _offer(self._doubt, offered, "which job?", "job {}: no more in the list"):
            self._handle.value = ""  # what was typed was meant for another one
        number, step = _meant(s, self._doubt.value)
        is_handle = step in (None, RENDER)
        self._handle.description = "Id at the provider" if is_handle else "What it gave"
        self._handle.placeholder = "" if is_handle else panes.example(s.examples.get(step or ""))
        is_busy = ("resolve", number) in _under_way(look)
        for button in self._doubt_row.children[2:]:
            button.disabled = is_busy

    def forget(self, number: int, step: str | None = None) -> None:
        """Takes the choice of this job's step in doubt back, and what was typed for it."""
        if self._doubt.value in (number, f"{number}, step {step}"):
            self._is_setting = True
            self._doubt.value, self._handle.value = None, ""
            self._is_setting = False

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


def _doubts_of(s: Snapshot, number: int) -> list[tuple[str, int | str]]:
    """What there is to choose of a job in doubt: the job, or each step where it is several."""
    names = [step.name for step in s.evidence.get(number, ())]
    if len(names) < 2:
        return [(f"job {number}", number)]
    return [(f"job {number}, step {name}", f"{number}, step {name}") for name in names]


def _meant(s: Snapshot, chosen: int | str | None) -> tuple[int | None, str | None]:
    """The job and the step that were chosen; no step where the job has none in doubt."""
    if chosen is None:
        return None, None
    head, _, name = str(chosen).partition(", step ")
    names = [step.name for step in s.evidence.get(int(head), ())]
    if not name:
        name = names[0] if len(names) == 1 else ""
    return int(head), name or None


def _under_way(look: Look) -> set[tuple[str, str | int]]:
    return {(wish.verb, wish.of) for wish in look.pending}


def _show_one(shown: widgets.Widget, among: Iterable[widgets.Widget]) -> None:
    for widget in among:
        widget.layout.display = None if widget is shown else "none"


def _offer(dropdown: widgets.Dropdown, options: dict[str, Any], none: str, gone: str) -> bool:
    """Offers these, and keeps what is chosen if it is among them, else nothing is chosen.

    A front end says the place of what was chosen in the list, and may say it late: so none
    ever changes its place, and what is there no more is called so. `none` and `gone` are the
    texts for no choice and for what has gone. False if what was chosen is not there any more.
    """
    offered = [value for _, value in dropdown.options] or [None]
    values = list(dict.fromkeys((*offered, *options.values())))
    names = {value: text for text, value in options.items()}
    texts = [none, *(names.get(value, gone.format(value)) for value in values[1:])]
    chosen = dropdown.value
    is_there = chosen is None or chosen in names
    wanted = chosen if is_there else None
    listed = tuple(zip(texts, values, strict=True))
    if listed != dropdown.options or wanted != chosen:
        with dropdown.hold_sync():
            dropdown.options = listed
            dropdown.value = wanted
    return is_there


def _all_of(widget: widgets.Widget) -> list[widgets.Widget]:
    found = [widget, widget.layout]
    if hasattr(widget, "style") and isinstance(widget.style, widgets.Widget):
        found.append(widget.style)
    for child in getattr(widget, "children", ()):
        found += _all_of(child)
    return found
