"""`q.dashboard()`: the queue as a cell shows it, live, with buttons that write wishes down.

A dashboard has a thread of its own that looks at the database once a second and sets
widgets where something has changed, and another that carries out what its buttons ask.
Neither touches the kernel's loop. The handle, and with it the queue, is held weakly by the
thread: a queue that nobody holds any more ends its dashboard.

A front end that shows no live widgets (a saved notebook, GitHub, Colab) shows the copy, an
HTML output of the same cell that is renewed more slowly. Where no person looks (nbclient,
papermill, nbval) that copy is all there is: no thread, no widgets, renewed after each cell.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from .. import html, secrets
from ..clock import local_text
from ..errors import StoreLost, UsageError, VqkitError
from ..handles import typed_value
from ..job import Event
from ..snapshot import Snapshot
from ..steps import RENDER
from ..words import count
from . import panes
from .controls import Controls, Pace
from .panes import CLOSED, ENDED
from .style import HIDE_DEAD

if TYPE_CHECKING:
    from .board import Ask, Board, Doubt, Wish
    from .live_plots import LivePlots

__all__ = ["Dashboard", "show"]

log = secrets.logger("vqkit.notebook")

TICK_S = 1.0
STILL_S = 10.0  # how long what only ages (times of running jobs) may stand at last
PLOTS_S = (2.0, 30.0)  # soonest, and once nobody has touched it for an hour
PLOTS_SHARE = 40  # a picture may take a fortieth of the time
COPY_S = 10.0
LOG_LINES = 80
LOG_KEPT = 2000
CLOSE_S = 2.0

Wishes = SimpleQueue["tuple[Wish, Callable[[], object]] | None"]

_shown: weakref.WeakValueDictionary[Path, Dashboard] = weakref.WeakValueDictionary()


class Dashboard:
    """A queue on display. `close` takes it away; the queue goes on."""

    def __init__(
        self,
        controls: Controls,
        start: Callable[[], object],
        *,
        has_handler: bool = False,
        live: bool,
        show: Show,
    ) -> None:
        self._controls, self._start, self._has_handler = controls, start, has_handler
        self._copy = show.copy
        self._inbox: SimpleQueue[tuple[str, dict[str, Any]]] = SimpleQueue()
        self._wake = threading.Event()
        self._wishes: Wishes = SimpleQueue()
        self._done: SimpleQueue[tuple[Wish, str | None]] = SimpleQueue()
        self._worker: threading.Thread | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._name = controls.path.name
        self._viewer = _Viewer(self._name)
        self._pending: list[Wish] = []  # in the order they were made
        self._message: str | None = None
        self._ask: Ask | None = None
        self._ask_until_s = 0.0
        self._copied: tuple[Snapshot | None, float] = (None, float("-inf"))
        self.board: Board | None = None
        if live:
            from .board import Board

            self.board = Board(self._name, _note_for(self._inbox, self._wake), show.copy_class)

    def __repr__(self) -> str:
        return f"<dashboard of {self._name}>"

    def _ipython_display_(self) -> None:
        """Nothing: it was shown when it was made, also where it is a cell's last value."""

    # -- beginning and ending ------------------------------------------------------------------

    def begin(self) -> None:
        """Looks for the first time, and goes on looking on a thread of its own."""
        self.tick()
        if self.board is not None:
            self._thread = threading.Thread(
                target=_serve,
                args=(weakref.ref(self), self._wake, self.board, self._wishes),
                name="vqkit-dashboard",
                daemon=True,
            )
            self._thread.start()

    def close(self) -> None:
        """Takes the live view away; the copy stays. Twice is harmless."""
        self._is_closed = True
        self._wishes.put(None)
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S)

    @property
    def is_closed(self) -> bool:
        """True once it shows nothing new any more."""
        return self._is_closed

    # -- on the dashboard's thread -----------------------------------------------------------

    def tick(self) -> float:
        """Looks, shows what has changed, and says in how many seconds to look again."""
        now_s = time.monotonic()
        is_asked = self._take_notes(now_s)
        seen = self._viewer.look(self._controls, now_s, is_asked)
        if self.board is not None:
            if seen:
                self._show(self.board)
            self.board.renew(now_s, now_s - self._viewer.touched_s)
        self._renew_copy(now_s)
        if self.board is not None and self._thread is not None:  # it is loaded, in a second or two
            self._draw(self.board, now_s)
        return TICK_S

    def _take_notes(self, now_s: float) -> bool:
        """Does what the buttons asked since the last look. True if there was anything."""
        is_news = False
        while not self._done.empty():
            wish, wrong = self._done.get()
            self._pending.remove(wish)
            if wrong is not None:
                self._say(wrong)
            is_news = True
        while not self._inbox.empty():
            what, about = self._inbox.get()
            self._viewer.touched_s = now_s
            is_news = True
            if what != "look":  # another level, another account: there is nothing to do
                self._message = None
                self._heed(what, about, now_s)
        if self._ask is not None and now_s > self._ask_until_s:
            self._ask, is_news = None, True
        return is_news

    def _heed(self, what: str, about: dict[str, Any], now_s: float) -> None:
        from .board import CONFIRM_S, Ask

        asked, self._ask = self._ask, None
        s, controls = self._viewer.snapshot, self._controls
        assert s is not None  # buttons are there after the first look
        name = about.get("name", "")
        match what:
            case "start":
                self._wish(what, do=self._start)
            case "pause":
                self._wish(what, do=controls.pause)
            case "resume":
                self._wish(what, do=controls.resume)
            case "stop":
                self._wish(what, do=controls.stop)
            case "retry":
                ended_by = about["ended_by_ms"] / 1000
                self._wish(what, do=lambda: controls.requeue(ended_by=ended_by))
            case "cancel":
                jobs = count(s.counts["queued"] + s.counts["running"], "job")
                self._ask = Ask(f"Cancel {jobs}?", f"Yes, cancel {jobs}", s.last_number)
            case "yes" if asked is not None and asked is about["ask"]:
                self._do_after_all(asked)
            case "yes":
                self._say("that question was over by then: nothing was done")
            case "resolve":
                self._hear_of_doubt(about["doubt"])
            case "no":
                pass
            case _ if name is None:
                self._say("choose an account first: nothing was done")
            case "pause account":
                self._wish(what, name, do=lambda: controls.accounts.disable(name))
            case "resume account":
                self._wish(what, name, do=lambda: controls.accounts.enable(name))
            case "unpark":
                until_ms = about["parked_until_ms"]
                self._wish(what, name, until_ms, do=lambda: _unpark(controls, name, until_ms))
            case "set slots of":
                n = about["n"]
                self._wish(what, name, n, do=lambda: controls.accounts.set_capacity(name, n))
        self._ask_until_s = now_s + CONFIRM_S

    def _do_after_all(self, asked: Ask) -> None:
        about, cancel = asked.about, self._controls.cancel
        if isinstance(about, int):
            # What is in doubt may have been paid for: that is for `resolve` to end.
            status = ("queued", "running")
            self._wish("cancel", detail=about, do=lambda: cancel(status=status, upto=about))
        else:
            self._resolve(about)

    def _hear_of_doubt(self, doubt: Doubt | None) -> None:
        from .board import Ask

        if doubt is None:
            self._say("choose a job that is in doubt first: nothing was done")
        elif doubt.how == "pay_again":
            self._ask = Ask(f"Pay for job {doubt.number} again?", "Yes, pay again", doubt)
        elif doubt.how == "give_up":
            question = f"Give job {doubt.number} up? It counts as failed."
            self._ask = Ask(question, "Yes, give up", doubt)
        else:
            self._resolve(doubt)

    def _resolve(self, doubt: Doubt) -> None:
        value = None
        if doubt.how == "attach":
            try:
                value = _typed(doubt)
            except UsageError as error:
                self._say(f"job {doubt.number}: {error}; nothing was done")
                return
        detail = (doubt.fence, doubt.step, doubt.how, doubt.text)
        do = partial(_resolve, self._controls, doubt, value)
        self._wish("resolve", doubt.number, detail, do=do)
        if self.board is not None:
            self.board.forget(doubt.number, doubt.step)

    def _wish(
        self, verb: str, of: str | int = "", detail: Hashable = None, *, do: Callable[[], object]
    ) -> None:
        """Hands it to the thread that writes; until it is done the button says so."""
        from .board import Wish

        wish = Wish(verb, of, detail)
        # The same again is a second press; after another wish it may take that one back.
        if self._pending[-1:] == [wish]:
            return
        self._pending.append(wish)
        if self._worker is None:
            self._worker = threading.Thread(
                target=_carry_out,
                args=(weakref.ref(self._controls), self._wishes, self._done, self._wake),
                name="vqkit-wishes",
                daemon=True,
            )
            self._worker.start()
        self._wishes.put((wish, do))

    def _say(self, what: str) -> None:
        """Tells it on the board, until the next button is pressed."""
        self._message = f"{self._message}; {what}" if self._message else what

    def _show(self, board: Board) -> None:
        from .board import Look

        viewer, s = self._viewer, self._viewer.snapshot
        assert s is not None
        events, about = viewer.log(self._controls, board)
        look = Look(
            snapshot=s,
            providers=self._controls.providers,
            has_handler=self._has_handler,
            is_here=any(
                r.is_alive and r.pid == os.getpid() and r.state != "stopping" for r in s.runners
            ),
            events=events,
            retries=tuple(viewer.retries),
            about=about,
            pending=frozenset(self._pending),
            message=self._message,
            ask=self._ask,
        )
        board.show(look)

    def _draw(self, board: Board, now_s: float) -> None:
        if (picture := self._viewer.picture(self._controls, now_s)) is not None:
            board.show_plots(*picture)

    def _renew_copy(self, now_s: float) -> None:
        """Renews the copy where the queue has changed: every ten seconds, and when it rests."""
        s, (copied, at_s) = self._viewer.snapshot, self._copied
        if s is None or copied is s:
            return
        is_turn = copied is None or _standing(copied) != _standing(s)
        is_due = self.board is None or is_turn or now_s - at_s >= COPY_S
        if is_due and (copied is None or _told(copied) != _told(s)):
            self._copied = (s, now_s)
            self._copy(s)


def _told(s: Snapshot) -> object:
    return s.headline, s.counts, s.accounts, s.notes


def _standing(s: Snapshot) -> object:
    """What a saved notebook must not tell wrongly, not even for ten seconds."""
    left = s.counts["queued"] + s.counts["running"]
    return s.is_paused, left == 0, frozenset(r.id for r in s.runners if r.is_alive)


def _unpark(controls: Controls, name: str, until_ms: int) -> None:
    """Ends the rest that was shown, and no other."""
    if controls.accounts[name].parked_until_ms not in (until_ms, None):
        raise UsageError("it rests for another reason by now; look again")
    controls.accounts.unpark(name)


def _resolve(controls: Controls, doubt: Doubt, value: Any) -> None:
    """Ends the doubt that was shown, and none that came later."""
    job = controls.job(doubt.number)
    if job.status != doubt.status or job.fence != doubt.fence:
        raise UsageError(f"it is {job.status.replace('_', ' ')} by now; look again")
    step = doubt.step if doubt.how in ("attach", "not_sent") else None
    controls.resolve(doubt.number, doubt.how, value=value, step=step)


def _typed(doubt: Doubt) -> Any:
    """What was typed for a paid call: a render's handle, or what a function's step gave.

    Only the handler knows what its step gives, so nothing is made of bare text there.
    """
    if not doubt.text:
        is_handle = doubt.step in (None, RENDER)
        wanted = "its id" if is_handle else "what it gave, as JSON"
        raise UsageError(f"this needs value: type {wanted}, as the provider says it")
    value = typed_value(doubt.text)
    if doubt.step in (None, RENDER):
        return value
    like = panes.example(doubt.example)
    is_alike = type(value) is type(doubt.example)
    is_json = value != doubt.text
    if not is_json or not (is_alike or (doubt.example is None and _is_said(value))):
        raise UsageError(
            f"{doubt.text!r} is not what its step {doubt.step!r} gives: your function's own"
            f" call, so type what it would have returned, as JSON: {like}"
        )
    return value


def _is_said(value: Any) -> bool:
    """True of JSON that nobody types by mistake: a bare id of digits is JSON too."""
    return isinstance(value, dict | list | str)


class _Viewer:
    """What was seen of a queue, and when it is worth looking again."""

    def __init__(self, name: str) -> None:
        self.snapshot: Snapshot | None = None
        # Few are kept: what lives for a minute is the more work for the garbage collector.
        self.newest: deque[Event] = deque(maxlen=LOG_LINES)
        self.loud: deque[Event] = deque(maxlen=LOG_LINES)
        self.retries: deque[Event] = deque(maxlen=LOG_KEPT)  # since a job was completed
        self.touched_s = time.monotonic()
        self._signs: object = None
        self._pace: Pace | None = None
        self._event_after = 0
        self._still_s, self._looked_s = TICK_S, float("-inf")
        self._plots: LivePlots | None = None
        self._plots_s, self._plots_cost_s = float("-inf"), 0.0
        self._is_drawn = False

    def look(self, controls: Controls, now_s: float, is_asked: bool) -> bool:
        """Reads the queue if it has changed, or if what runs has aged. True if it has read."""
        signs = controls.signs()
        if signs == self._signs and not is_asked:
            # Nothing new; what runs gets older: shown less and less often, at rest never.
            is_ageing = self.snapshot is not None and self.snapshot.counts["running"]
            if not is_ageing or now_s - self._looked_s < self._still_s:
                return False
            self._still_s = min(STILL_S, 2 * self._still_s)
        else:
            self._still_s = TICK_S
        is_new = signs != self._signs
        self._signs, self._looked_s = signs, now_s
        self.snapshot = controls.snapshot()
        if is_new:
            events = controls.newest_events(LOG_KEPT, self._event_after)
            self.newest.extend(events)
            self.loud.extend(e for e in events if e.level in ("warning", "error"))
            for event in events:
                if event.type == "job.completed":
                    self.retries.clear()
                elif event.type == "job.retry_scheduled":
                    self.retries.append(event)
            if events:
                self._event_after = events[-1].id
            self._is_drawn = False
        return True

    def log(self, controls: Controls, board: Board) -> tuple[tuple[Event, ...], str]:
        """The events the log is to show, and which they are in words."""
        levels, job = board.level, board.job
        if job is not None:
            found = controls.newest_events(LOG_KEPT, 0, job)
            about = f"of job {job}"
        else:
            found = list(self.loud if levels else self.newest)
            about = "of all jobs"
        if levels:
            found = [e for e in found if e.level in levels]
            about += ", " + " and ".join(f"{level}s" for level in levels)
        return tuple(found[-LOG_LINES:]), about

    def picture(self, controls: Controls, now_s: float) -> tuple[str, str] | None:
        """A new picture, where one is due: something ended, and the last one is old enough."""
        soonest_s, latest_s = PLOTS_S
        untouched_s = now_s - self.touched_s
        wait_s = max(soonest_s, PLOTS_SHARE * self._plots_cost_s, min(latest_s, untouched_s / 60))
        if self.snapshot is None or self._is_drawn or now_s - self._plots_s < wait_s:
            return None
        self._pace = controls.pace(self._pace)
        self._is_drawn = not self._pace.is_behind
        if self._plots is None:
            from .live_plots import LivePlots

            self._plots = LivePlots()
        began_s = time.thread_time()
        drawn = self._plots.draw(self._pace, self.snapshot)
        self._plots_cost_s, self._plots_s = time.thread_time() - began_s, now_s
        return drawn


# -- threads ------------------------------------------------------------------------------------


def _serve(
    ref: weakref.ref[Dashboard], wake: threading.Event, board: Board, wishes: Wishes
) -> None:
    """Looks again and again, until the dashboard is closed or nobody holds it any more."""
    pause_s, note = TICK_S, ENDED
    while True:
        wake.wait(pause_s)
        wake.clear()
        dashboard = ref()
        if dashboard is not None and dashboard._controls.is_closed:
            note, dashboard._is_closed = CLOSED, True
        if dashboard is None or dashboard.is_closed:
            break
        try:
            pause_s = dashboard.tick()
        except StoreLost as error:  # closed, or the file is gone: there is nothing to look at
            note = f"{ENDED} ({error})"
            dashboard._is_closed = True
            break
        except VqkitError as error:
            log.warning("the dashboard could not look, trying again: %s", error)
        except Exception:
            log.exception("the dashboard has stopped")
            note = f"this dashboard has stopped by a fault of its own (see the log); {ENDED}"
            dashboard._is_closed = True
            break
        del dashboard
    wishes.put(None)
    board.end(note)


def _note_for(
    inbox: SimpleQueue[tuple[str, dict[str, Any]]], wake: threading.Event
) -> Callable[..., None]:
    """What the widgets' callbacks call, on any thread; it takes microseconds.

    It knows the inbox and not the dashboard, which widgets would keep alive for ever.
    """

    def put(what: str, **about: Any) -> None:
        inbox.put((what, about))
        wake.set()

    return put


def _carry_out(
    ref: weakref.ref[Controls],
    wishes: Wishes,
    done: SimpleQueue[tuple[Wish, str | None]],
    wake: threading.Event,
) -> None:
    """Does what the buttons ask, in order; what goes wrong is told on the board."""
    while (asked := wishes.get()) is not None:
        wish, do = asked
        wrong = None
        try:
            controls = ref()
            if controls is None or controls.is_closed:
                raise StoreLost(CLOSED)
            del controls
            do()
        except Exception as error:  # noqa: BLE001 - told to who pressed the button
            wrong = secrets.redact(f"{wish}: {error}")
        del asked, do
        done.put((wish, wrong))
        wake.set()


# -- showing -------------------------------------------------------------------------------------


class Show:
    """How a dashboard gets into the cell: the live view, and the copy that stays."""

    def __init__(self, name: str, is_shown: bool) -> None:
        self._name, self._is_shown = name, is_shown
        self.copy_class = f"vq-copy-{uuid4().hex[:12]}"
        self._handle: Any = None

    def copy(self, s: Snapshot) -> None:
        """Shows or renews the copy."""
        if not self._is_shown:
            return
        shown = _ipython_display()
        if self._handle is None:
            self._handle = shown.display(shown.HTML(self._html(s)), display_id=self.copy_class)
        else:
            self._handle.update(shown.HTML(self._html(s)))

    def _html(self, s: Snapshot) -> str:
        told = (
            f"{self._name}, as of {local_text(s.at_ms, s.at_ms)}; run the cell again to see it now"
        )
        at = html.element("div", told, style=html.MUTED)
        style = html.element("style", html.Markup(HIDE_DEAD))
        return html.output(style, at, s._repr_html_(), class_=f"vq-copy {self.copy_class}")


def show(
    controls: Controls,
    start: Callable[[], object],
    *,
    has_handler: bool = False,
    live: bool | None = None,
) -> Dashboard:
    """Shows the queue in the running cell, in place of any other dashboard on it.

    `start` is what the Start button does; with `has_handler` it needs no provider.
    Without a notebook nothing is shown, and the handle says how the queue stands.
    """
    old = _shown.pop(controls.path, None)
    if old is not None:
        old.close()
    is_notebook, is_watched = _front_end()
    is_live = is_watched if live is None else live
    if is_live:
        _need_widgets()
    shown = Show(controls.path.name, is_notebook)
    dashboard = Dashboard(controls, start, has_handler=has_handler, live=is_live, show=shown)
    if dashboard.board is not None and is_notebook:
        _ipython_display().display(dashboard.board.root)
    dashboard.begin()
    if is_notebook and not is_live:
        _renew_after_cells(dashboard)
    _shown[controls.path] = dashboard
    return dashboard


def _ipython_display() -> Any:
    return import_module("IPython.display")


def _need_widgets() -> None:
    try:
        import_module("ipywidgets")
    except ImportError as error:
        raise UsageError(
            "the live dashboard needs ipywidgets: pip install ipywidgets, restart the kernel and"
            " reload the page; or q.dashboard(live=False) for a picture without buttons"
        ) from error


def _front_end() -> tuple[bool, bool]:
    """Is this a notebook's kernel, and does a person's front end talk to it?

    JupyterLab, Notebook, VS Code and Colab say in the metadata of each request which cell
    it comes from; nbclient, papermill and nbval run cells without any.
    """
    import sys

    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        return False, False
    request = kernel.get_parent("shell") or {}
    return True, bool(request.get("metadata"))


def _renew_after_cells(dashboard: Dashboard) -> None:
    """Where nobody looks: no thread, the copy is renewed when a cell has ended."""
    import sys

    shell = sys.modules["IPython"].get_ipython()
    ref = weakref.ref(dashboard)

    def renew(*_: object) -> None:
        shown = ref()
        if shown is None or shown.is_closed:
            shell.events.unregister("post_run_cell", renew)
            return
        try:
            shown.tick()
        except VqkitError as error:
            log.info("the dashboard's copy stays as it is: %s", error)
            shown.close()

    shell.events.register("post_run_cell", renew)
