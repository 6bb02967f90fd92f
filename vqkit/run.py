"""A pump at work, as the user holds it: a thread of its own, and ways to wait, stop and look.

The pump lives on a daemon thread with its own event loop, because a cell that blocks would
stall it on the kernel's loop, and an interrupt would land in the middle of it. Waiting is
done by looking again and again, so that it can be interrupted and never cancels the work.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import time
import weakref
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from . import secrets
from .errors import JobsFailed, PumpError, UsageError
from .pump import Health, Pump
from .recovery import Recovered
from .retry import Retry

__all__ = ["Run", "Summary"]

log = secrets.logger("vqkit.run")
# Without any handler Python prints warnings, into whichever cell ran last.
logging.getLogger("vqkit").addHandler(logging.NullHandler())

LOOK_S = 0.05
LEAVE_S = 1.0


@dataclass(frozen=True, slots=True)
class Summary:
    """How the queue stands when a run has come to rest. `failures` are (number, what, line).

    `gone` are the failed and cancelled jobs, by status, whose rows no sheet has any more as they
    were put: nobody waits for them, and they are in `counts` but not in `failures`.
    """

    counts: dict[str, int]
    seconds: float
    failures: tuple[tuple[int, str, str | None], ...] = ()
    why: dict[str, str] = field(default_factory=dict)
    recovered: Recovered = field(default_factory=Recovered)
    doubts: tuple[tuple[int, str], ...] = ()
    gone: dict[str, int] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """True if every job of the queue is completed, but for those whose rows are gone."""
        return all(
            status == "completed" or n <= self.gone.get(status, 0)
            for status, n in self.counts.items()
        )

    @property
    def gone_text(self) -> str:
        """Of the `gone`, that they do not count; '' where there are none."""
        if not self.gone:
            return ""
        parts = " and ".join(f"{n:,} {status}" for status, n in sorted(self.gone.items()))
        return f"{parts} do not count: their rows are gone or were edited"

    def check(self) -> Summary:
        """Returns itself if every job is completed, else raises JobsFailed."""
        if self.is_complete:
            return self
        raise JobsFailed(str(self), failed=[number for number, *_ in self.failures])

    def __str__(self) -> str:
        total = sum(self.counts.values())
        words = [f"{self.counts.get('completed', 0)} of {total} completed"]
        words += [f"{n} {s.replace('_', ' ')}" for s, n in self.counts.items() if s != "completed"]
        lines = [f"{', '.join(words)}, in {self.seconds:.1f} s"]
        if self.recovered:
            lines.append(f"recovered: {self.recovered}")
        for number, what, line in self.failures:
            lines.append(f"  job {number} failed: {what}" + (f" ({line})" if line else ""))
        for number, why in self.doubts:
            lines.append(
                f"  job {number} in doubt: {why}. Look at the provider, then"
                f' q.resolve({number}, "attach" | "not_sent" | "pay_again" | "give_up")'
            )
        if self.gone:
            lines.append(f"  {self.gone_text}; q.prune(gone=True) forgets them")
        more = self.counts.get("failed", 0) - self.gone.get("failed", 0) - len(self.failures)
        if more > 0:
            lines.append(f"  and {more} more: q.jobs(status='failed')")
        if self.counts.get("queued"):
            lines += [f"  {name}: {reason}".removesuffix(": ") for name, reason in self.why.items()]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Summary: {self}>"

    def __await__(self) -> Generator[Any, None, Summary]:
        """Itself, at once, for whoever writes ``await q.run(render)``."""

        async def itself() -> Summary:
            return self

        return itself().__await__()


class Run:
    """The handle of a pump at work. ``await run`` or ``run.wait()`` see it to its end.

    `summarize` tells how the queue stands; `set_paused` writes the user's wish to the
    database, which the pump obeys.
    """

    def __init__(
        self,
        make_pump: Callable[[Callable[[], None]], Pump],
        summarize: Callable[[Run], Summary],
        set_paused: Callable[[bool], None],
    ) -> None:
        self._summarize, self._set_paused = summarize, set_paused
        self.started_s = time.monotonic()
        self._error: BaseException | None = None
        # A plain flag, looked at between sleeps. An interrupt inside the thread's join() makes
        # Python 3.11 take the thread for stopped while it runs; inside an Event's wait() it
        # can leave the Event locked for ever.
        self._has_ended = False
        self._pump = make_pump(_leave_before_loky)
        self._thread = threading.Thread(target=self._serve, name="vqkit-pump", daemon=True)
        _running.add(self)
        self._thread.start()

    def _serve(self) -> None:
        try:
            asyncio.run(self._pump.run())
        except BaseException as error:  # noqa: BLE001 - raised where the user waits
            self._error = error
            log.error("the pump has stopped: %s: %s", type(error).__name__, error)
        finally:
            self._has_ended = True

    # -- looking ---------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """True until the pump has stopped, whatever stopped it."""
        return not self._has_ended

    @property
    def is_stopping(self) -> bool:
        """True once no more work is handed out."""
        return self._pump.is_stopping

    @property
    def error(self) -> BaseException | None:
        """What ended the pump, if it did not end as asked."""
        return self._pump.error or self._error

    @property
    def health(self) -> Health:
        """The pump's state in a word, what troubles it, why accounts get no work."""
        return self._pump.health

    @property
    def recovered(self) -> Recovered:
        """What was put right before the first claim."""
        return self._pump.recovered

    @property
    def following(self) -> int:
        """How many attempts are at work here."""
        return self._pump.following

    def __repr__(self) -> str:
        state = self.health.state if self.is_running or self.error else "stopped"
        return f"<Run: {state}, {self.following} at work>"

    # -- steering --------------------------------------------------------------------------

    def rebind(self, retry: Retry | None) -> None:
        """Takes new defaults from the next ending on, and looks for work."""
        if retry is not None:
            self._pump.retry = retry
        self.poke()

    def poke(self) -> None:
        """Tells the pump that something changed in the database."""
        self._pump.poke()

    def pause(self) -> None:
        """Hands out no more work, on this queue, in any process; what runs goes on."""
        self._set_paused(True)
        self.poke()

    def resume(self) -> None:
        """Hands out work again."""
        self._set_paused(False)
        self.poke()

    def stop(self, grace_s: float | None = 10.0) -> int:
        """Hands out no more work here and waits for what runs, at most `grace_s` seconds.

        What can be ended then is ended and given back, no attempt spent. Plain functions
        on threads cannot be: they are followed to their end, and their number is returned.
        With None, waits until all has ended.
        """
        self._pump.stop(grace_s)
        end_s = None if grace_s is None else time.monotonic() + grace_s + LEAVE_S
        while self.is_running and (end_s is None or time.monotonic() < end_s):
            time.sleep(LOOK_S / 5)
        return self.following if self.is_running else 0

    def release(self) -> int:
        """Hands out no more work and returns at once: how many attempts it keeps following."""
        self._pump.stop(None)
        return self.following

    # -- waiting -----------------------------------------------------------------------------

    def wait(self, timeout_s: float | None = None) -> Summary:
        """Waits until nothing runs and nothing waits that could run here; that ends the run.

        What is put later waits for the next run, so that nothing is sent that nobody
        started. A queue that is paused keeps its run. Returns how the queue stands, also
        when `timeout_s` has passed. An interrupt ends the wait, not the work. Raises
        PumpError if the pump has died.
        """
        is_over = self.rest(timeout_s)
        summary = self._summarize(self)  # why accounts rest is known while it runs
        if is_over and self.health.state != "paused":
            self.stop(grace_s=None)
            self._raise_if_dead()
        return summary

    def rest(self, timeout_s: float | None = None) -> bool:
        """Waits in the same way and ends nothing. False if `timeout_s` has passed first."""
        self._refuse_handlers()
        rested = self._pump.when_at_rest()
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._is_over(rested) and (end_s is None or time.monotonic() < end_s):
            time.sleep(LOOK_S)
        is_over = self._is_over(rested)
        rested.cancel()
        self._raise_if_dead()
        return is_over

    def __await__(self) -> Generator[Any, None, Summary]:
        return self._awaited().__await__()

    def _refuse_handlers(self) -> None:
        if threading.current_thread() is self._thread or self._pump.is_inside:
            raise UsageError(
                "a handler cannot wait for the run it works for: it would wait for itself."
                " q.put(…) in it is fine, the run does that too"
            )

    async def _awaited(self) -> Summary:
        self._refuse_handlers()
        rested = self._pump.when_at_rest()
        while not self._is_over(rested):  # noqa: ASYNC110 - an Event of this loop would sleep
            # A sleeping loop does not notice an interrupt; one that looks again does.
            await asyncio.sleep(LOOK_S)
        self._raise_if_dead()
        summary = self._summarize(self)
        if self.health.state != "paused":
            self._pump.stop(None)
            while self.is_running:  # noqa: ASYNC110 - as above
                await asyncio.sleep(LOOK_S / 5)
            self._raise_if_dead()
        return summary

    def _is_over(self, rested: Future[None]) -> bool:
        # A pump that dies cancels `rested` on its way; only when it has let go of its jobs can
        # q.start() take them over.
        return not self.is_running or (rested.done() and not rested.cancelled())

    def _raise_if_dead(self) -> None:
        if self.error is not None:
            why = str(self.health.trouble).rstrip(".")
            raise PumpError(
                f"the pump has stopped: {why}. Jobs at work stay where they are; q.start() begins"
                " again and recovers them."
            ) from self.error


# -- leaving --------------------------------------------------------------------------------

_running: weakref.WeakSet[Run] = weakref.WeakSet()


def _leave() -> None:
    """At the interpreter's end: give back what is at work, within a second. Best effort."""
    runs = [run for run in tuple(_running) if run.is_running]
    for run in runs:
        run._pump.stop(0.0)
    end_s = time.monotonic() + LEAVE_S
    while any(run.is_running for run in runs) and time.monotonic() < end_s:
        time.sleep(LOOK_S / 5)


def _leave_before_loky() -> None:
    # loky waits for its workers in a hook that runs before every atexit hook; the newest
    # such hook runs first. Where Python has no such hook any more, atexit must do.
    register = getattr(threading, "_register_atexit", None)
    if register is not None and not _registered:
        _registered.append(True)
        register(_leave)


_registered: list[bool] = []
atexit.register(_leave)
