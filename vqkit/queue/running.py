"""Handing out work: providers, runs, pauses, and how a run came out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, TypeVar, overload

from ..accounts import IN_PASSING, check_capacity
from ..errors import UsageError, in_short
from ..job import Job
from ..providers.base import Provider
from ..providers.function import function_provider
from ..pump import Pump
from ..recovery import Recovered, recover
from ..renders import RenderHandler, is_render_provider
from ..retry import Retry
from ..run import Run, Summary
from ..store.base import JobFilter
from ..store.files import companion
from ..store.sqlite import SqliteStore
from .asked import text
from .putting import Putting

__all__ = ["Running"]

T = TypeVar("T")
Executor = Literal["auto", "async", "thread", "process"]
DEFAULT_CONCURRENCY = 4
FAILURES_SHOWN = 5


class Running(Putting):
    """The part of a queue that has work done."""

    @overload
    def provider(self, name: str) -> Callable[[T], T]: ...

    @overload
    def provider(self, name: str, function: T) -> T: ...

    def provider(self, name: str, function: Any = None) -> Any:
        """Registers who does the work of the accounts that name this provider.

        As a decorator, ``@q.provider("runway")``, or with the function given, or an object
        that submits, polls and fetches renders (`providers.contract.RenderProvider`).
        Registering a name again replaces it from the next claim on. `local`, which every queue
        has, takes jobs that do not name it only where no account has another provider; one
        that you register takes them in any case.
        """
        if function is None:
            return lambda decorated: self.provider(name, decorated)
        if is_render_provider(function):
            made: Provider = RenderHandler(name, function, self._clock)
        else:
            made = function_provider(function, name)
        self._shared.providers[name] = made
        self._shared.handlers.discard(name)
        self._shared.named_only.discard(name)
        self._shared.stand_ins.discard(name)
        if self._shared.run is not None:
            self._shared.run.poke()
        return function

    def start(
        self,
        handler: Callable[..., Any] | None = None,
        *,
        provider: str | None = None,
        concurrency: int | None = None,
        executor: Executor = "auto",
        retry: Retry | None = None,
    ) -> Run:
        """Hands out work in the background; returns the run at once.

        It goes on until it is stopped, also with what is put meanwhile, or until somebody has
        waited for it: ``await run`` and ``run.wait()`` return, and end it, when nothing is
        left to do.

        A `handler` is a function of one argument, the job; it is the provider of its own
        name, or of the name given as `provider`. In a queue without accounts of your own, one
        of that name is made that runs `concurrency` jobs at once (4 unless told); else an
        account must have that provider, so that your limits, keys and prices hold. Without a
        handler the registered providers do the work. Called again it gives the same run, with
        the new handler; handlers of earlier calls go on only with jobs that name them.
        """
        if retry is not None and not isinstance(retry, Retry):
            raise UsageError(f"retry {retry!r}: expected such as Retry(max_attempts=3)")
        shared = self._shared
        if handler is not None:
            made = function_provider(handler, text("provider", provider), executor)
            self._ensure_account(made.name, concurrency)
            shared.named_only |= shared.handlers - {made.name}
            shared.named_only.discard(made.name)
            shared.stand_ins.discard(made.name)
            shared.handlers.add(made.name)
            shared.providers[made.name] = made
        elif concurrency is not None:
            raise UsageError("concurrency goes with a handler; accounts have their own capacity")
        elif provider is not None:
            raise UsageError("provider goes with a handler, the function that does its work")

        def make(on_worker_start: Callable[[], None]) -> Pump:
            return Pump(
                shared.writer,
                providers=shared.providers,
                named_only=shared.named_only,
                stand_ins=shared.stand_ins,
                outputs=self._files,
                runners=companion(self.path) / "runners",
                retry=retry,
                on_worker_start=on_worker_start,
                on_slot_left=lambda: shared.run.poke() if shared.run is not None else None,
            )

        def begin(_: SqliteStore) -> Run:
            # On the store's thread, where no interrupt lands: else a pump could be started
            # and forgotten, and two threads could start two.
            run = shared.run
            if run is not None and run.is_running and not run.is_stopping:
                run.rebind(retry)
                return run
            shared.earlier = [r for r in (*shared.earlier, run) if r is not None and r.is_running]
            shared.run = Run(make, self._summary, self._set_paused)
            return shared.run

        return shared.writer.call(begin)

    def run(
        self,
        handler: Callable[..., Any] | None = None,
        *,
        provider: str | None = None,
        concurrency: int | None = None,
        executor: Executor = "auto",
        retry: Retry | None = None,
    ) -> Summary:
        """Hands out work and waits until nothing is left to do; returns how it ended.

        As `start`. It also returns, and says why, where the rest cannot go on by itself: the
        queue is paused, a budget is reached, accounts rest for good. An interrupt stops
        handing out new work and returns at once; what is at work is followed to its end in
        the background.
        """
        shared = self._shared
        before = shared.run
        run: Run | None = None
        try:
            run = self.start(
                handler,
                provider=provider,
                concurrency=concurrency,
                executor=executor,
                retry=retry,
            )
            run.rest()
            summary = self._summary(run)
            if run is not before:
                run.stop(grace_s=None)
        except KeyboardInterrupt:
            # Without a run to hold, one may be starting: behind it in the line, without waiting.
            following = 0 if run is None else run.release()
            shared.writer.later(lambda _: shared.run and shared.run.release())
            error = KeyboardInterrupt(
                "no new work is handed out; "
                + (f"{following} at work are followed to their end. " if following else "")
                + "q.run() goes on where it stopped."
            )
            error.__dict__["_render_traceback_"] = partial(in_short, error)
            raise error from None
        return summary

    def _ensure_account(self, name: str, concurrency: int | None) -> None:
        accounts = list(self.accounts)  # read once: another process may add ours meanwhile
        mine = [account for account in accounts if account.provider == name]
        if not mine:
            if own := [account for account in accounts if IN_PASSING not in account.limits]:
                theirs = " and ".join(sorted({repr(account.provider) for account in own}))
                raise UsageError(
                    f"none of this queue's accounts has the provider {name!r}, they have {theirs}:"
                    f" q.run({name}, provider=…) lets this function serve them, or"
                    f" q.accounts.add('…', provider={name!r}) gives it an account, with its"
                    " limits, key and price"
                )
            capacity = DEFAULT_CONCURRENCY if concurrency is None else concurrency
            if self.budget is not None or self.budget_per_day is not None:
                raise UsageError(
                    f"this queue has a budget, and no account has the provider {name!r}: one made"
                    " now would have no price, and its jobs would pass the budget by. Add it"
                    f" yourself, q.accounts.add({name!r}, provider={name!r}, capacity={capacity},"
                    " price=…) (0 where it costs nothing)"
                )
            self.accounts.add_in_passing(name, capacity)
        elif concurrency is not None:
            if [account.name for account in mine] != [name]:
                names = ", ".join(account.name for account in mine)
                raise UsageError(
                    f"concurrency={concurrency}: the accounts of {name} ({names}) have capacities"
                    " of their own; change them with accounts.set_capacity(name, n)"
                )
            if mine[0].capacity != check_capacity(concurrency):
                self.accounts.set_capacity(name, concurrency)

    def _set_paused(self, paused: bool) -> None:
        event = "queue.paused" if paused else "queue.resumed"
        self._write(lambda s: s.set_setting("paused", paused, event=event))

    def pause(self) -> None:
        """Hands out no more work, in any process; what runs goes on. `resume` undoes it."""
        self._set_paused(True)

    def resume(self) -> None:
        """Hands out work again."""
        self._set_paused(False)

    def stop(self) -> None:
        """Asks every run on this queue, in any process, to finish what it has begun and end.

        Returns at once. `start` begins again; `pause` leaves the runs where they are.
        """
        now_ms = self._clock.now_ms()
        self._write(lambda s: s.set_setting("stop_ms", now_ms, event="queue.stopped"))

    def recover(self) -> Recovered:
        """Takes over the jobs of processes that died; spends nothing. `start` does it too."""
        runners = companion(self.path) / "runners"
        ceiling = Retry().max_deaths
        known = self._shared.providers.items()
        by_steps = {name for name, p in known if isinstance(p, RenderHandler)}
        return self._write(lambda s: recover(s, "", runners, self._files, ceiling, by_steps))

    def _summary(self, run: Run) -> Summary:
        trouble = {"the queue": run.health.trouble} if run.health.trouble else {}
        why = {**trouble, **run.health.why}
        return self._summed_up(time.monotonic() - run.started_s, why, run.recovered)

    def _summed_up(self, seconds: float, why: Mapping[str, str], recovered: Recovered) -> Summary:
        snapshot = self.snapshot()
        if snapshot.is_paused:
            why = {"the queue": "paused by you: q.resume() lets it go on", **why}
        return Summary(
            counts={status: n for status, n in snapshot.counts.items() if n},
            seconds=seconds,
            failures=self._failures(),
            why={**why, **dict.fromkeys(snapshot.waiting, "")},
            recovered=recovered,
            doubts=self._doubts(snapshot.counts),
            gone=self._gone(snapshot.counts),
        )

    def _failures(self) -> tuple[tuple[int, str, str | None], ...]:
        """The newest failures that somebody waits for, the newest first."""
        chosen = JobFilter(("failed",), limit=FAILURES_SHOWN, newest=True, is_gone=False)
        return tuple(map(_failure, reversed(self._read(lambda s: s.jobs(chosen)))))

    def _gone(self, counts: Mapping[str, int]) -> dict[str, int]:
        if not (counts.get("failed") or counts.get("cancelled")):
            return {}
        return self._read(lambda s: s.gone_counts())

    def _doubts(self, counts: Mapping[str, int]) -> tuple[tuple[int, str], ...]:
        if not counts.get("in_doubt"):
            return ()
        found = self.jobs(status="in_doubt", newest=FAILURES_SHOWN)
        return tuple((job.number, job.reason or "nobody knows what became of it") for job in found)

    def check(self) -> Summary:
        """How the queue stands, if all is well: raises PumpError for a pump that died.

        And JobsFailed if any job is not completed, but for failed and cancelled ones whose rows
        are gone or were edited. A notebook's last cell, so that work that failed in the
        background fails it too.
        """
        run = self._shared.run
        if run is not None and run.error is not None:
            run.wait(0)
        counts = {status: n for status, n in self.stats().items() if n and status != "total"}
        doubts, gone = self._doubts(counts), self._gone(counts)
        return Summary(counts, 0.0, self._failures(), doubts=doubts, gone=gone).check()


def _failure(job: Job) -> tuple[int, str, str | None]:
    error = job.error or {}
    what = ": ".join(filter(None, (error.get("type"), error.get("message")))) or job.reason
    return job.number, (what or "failed")[:300], error.get("line")
