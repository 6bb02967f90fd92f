"""The one loop that hands out work: settle what ended, claim what is free, start it, rest.

`Pump.run` is a coroutine that does not care whose loop it is on: `run.Run` gives it a
thread of its own, scripts and tests await it directly. It holds no truth: everything it
knows is in the database, and what it holds in memory is the attempts at work.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Set
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import random
from time import monotonic
from typing import Any, TypeVar

from . import codec, policy, secrets
from .attempt import describe_error
from .clock import Clock, SystemClock
from .errors import (
    CredentialError,
    GiveUp,
    InDoubt,
    JobCancelled,
    MissingCell,
    PayloadError,
    ProviderError,
    Snooze,
    StoreError,
    StoreFull,
    StoreLost,
)
from .executors.base import Executor, HandlerRaised, Notes, Returned, Work, WorkerDied
from .executors.local import AsyncExecutor, ThreadExecutor, in_thread
from .executors.process import ProcessExecutor
from .job import Account, Event, Job
from .liveness import RunnerLock, this_process
from .outcome import Outcome
from .outputs import OutputFolder
from .policy import lanes_of
from .providers.base import Provider
from .recovery import Recovered, recover
from .renders import RenderHandler
from .retry import Retry
from .store.base import Claim, JobFilter, Runner, Store, Transition, TurnResult
from .store.thread import StoreThread
from .strays import Strays

__all__ = ["Health", "Pump"]

log = secrets.logger("vqkit.pump")

T = TypeVar("T")

POLL_S = 0.5  # how soon a change by another process is noticed
REAP_S = 5.0  # how soon the jobs of a process that died are taken over
NOTES_S = 0.2  # how long stages and log lines may wait for company in a transaction
HELD_UP_S = 5.0  # how long the database may be held by another process before we say so
TROUBLE_S = (0.2, 10.0)  # first and longest wait before the database is tried again
STOP_S = 5.0  # how long a handler that was ended at its time-out may take to clean up
PRUNE_CHUNK = 500
KEY_S, NO_KEY_S = 10.0, 1.0  # how long a look at a keyring counts that found a key, or none
FULL_S = 30.0  # how long a job rests that found the disk full

GOES_ON = "its coroutine goes on although it was cancelled: its slot is held until it ends"
NO_ROOM = "the disk is full: finished files wait for room"
FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
# What passes, or what its user can put right while a finished file waits.
PASSING_ERRNOS = {
    *(*FULL_ERRNOS, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM, errno.EBUSY),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT),
}


@dataclass(frozen=True, slots=True)
class Health:
    """How the pump fares: its state in a word, what troubles it, why accounts get no work."""

    state: str = "starting"
    trouble: str | None = None
    why: Mapping[str, str] = field(default_factory=dict)


class _TookTooLongError(Exception):
    """An attempt ran over its job's time."""


class _Flight:
    """An attempt at work."""

    def __init__(
        self,
        job: Job,
        provider: Provider,
        executor: Executor,
        notes: Notes,
        credential: str | None,
    ) -> None:
        self.job, self.provider, self.executor, self.notes = job, provider, executor, notes
        self.credential = credential
        self.model: str | None = None
        self.has_second_key = False
        self.task: asyncio.Task[None] | None = None
        self.is_cancelled = False
        self.is_released = False
        self.has_returned = False

    def cancel(self) -> None:
        """The user wants it stopped: ask, and end it where that is possible."""
        if self.is_cancelled:
            return
        self.is_cancelled = True
        if isinstance(self.provider, RenderHandler):
            self.notes.cancel()  # it asks its provider, and collects what is paid for
        else:
            self._stop()

    def release(self) -> None:
        """The pump stops: end it where that is possible, and give the job back."""
        if not self.is_released and self._can_stop:
            self.is_released = True
            self._stop()

    @property
    def _can_stop(self) -> bool:
        """Once the handler has returned, its files are made final whatever happens (P5, P8)."""
        return self.executor.can_stop and not self.has_returned

    def _stop(self) -> None:
        self.notes.cancel()
        if self._can_stop and self.task is not None:
            self.task.cancel()


class Pump:
    """Hands the queue's jobs to providers until it is told to stop.

    `providers` may change while it runs: the handler bound to a name at the moment of a
    claim is the one that is called. Those in `named_only` do only jobs that name them, and so
    do `stand_ins` where the queue has accounts of others. `retry` is the default for jobs that
    say nothing. `on_slot_left` is called when a pump that stops leaves a slot to the next one.
    """

    def __init__(
        self,
        store: StoreThread[Any],
        *,
        providers: Mapping[str, Provider],
        named_only: Set[str] = frozenset(),
        stand_ins: Set[str] = frozenset(),
        outputs: OutputFolder,
        runners: Path,
        retry: Retry | None = None,
        clock: Clock | None = None,
        draw: Callable[[], float] = random,
        notes_s: float = NOTES_S,
        on_worker_start: Callable[[], None] = lambda: None,
        on_slot_left: Callable[[], None] = lambda: None,
    ) -> None:
        self.id = str(uuid.uuid4())
        self.retry = retry or Retry()
        self.health = Health()
        self.recovered = Recovered()
        self.error: BaseException | None = None
        self._store = store
        self._providers = providers
        self._named_only, self._stand_ins = named_only, stand_ins
        self._outputs = outputs
        self._runners = runners
        self._clock = clock or SystemClock()
        self._draw = draw
        self._on_slot_left = on_slot_left
        self._notes_s = notes_s
        self._paid_in_steps: dict[str, Any] = {}  # handlers seen to mark a paid call, by name
        self._saved_by_steps: set[str] = set()
        self._threads = ThreadExecutor()
        self._executors: dict[str, Executor] = {
            "async": AsyncExecutor(),
            "thread": self._threads,
            "process": ProcessExecutor(on_worker_start),
        }
        self._strays = Strays(store, providers, outputs, self._clock)
        self._flights: dict[tuple[int, int], _Flight] = {}
        self._ended: list[Transition] = []
        self._storing = 0
        self._noted: deque[Transition] = deque()
        self._asked: deque[Callable[[], None]] = deque()
        self._resters: list[Future[None]] = []
        self._errands: set[asyncio.Task[Any]] = set()
        self._is_stopping = False
        self._stop_at_s: float | None = None
        self._fault: BaseException | None = None
        self._roomless: dict[int, str] = {}  # jobs whose files cannot be stored yet, and why
        self._refreshed: set[int] = set()  # jobs that are tried once more, with another key
        self._keys: dict[str, tuple[float, str | None]] = {}  # when looked at, what was wrong
        self._unread: set[str] = set()
        self._reading: set[str] = set()
        self._must_look = False
        self._seen = 0
        self._upkeep_at_s = monotonic() + REAP_S
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._saved_health: Health | None = None
        self._row: Runner | None = None

    # -- what others may ask, from any thread -----------------------------------------------

    @property
    def following(self) -> int:
        """How many attempts are at work, or have ended and are not stored yet."""
        return len(self._flights) + len(self._ended) + self._storing

    @property
    def is_stopping(self) -> bool:
        """True once it was told to stop."""
        return self._is_stopping

    @property
    def is_inside(self) -> bool:
        """True where it is asked by a handler at work for it, in this process."""
        return self._threads.is_inside

    def poke(self) -> None:
        """Something changed in the database: look now."""
        self._ask(_nothing)

    def stop(self, grace_s: float | None) -> None:
        """Hands out no more work. After `grace_s` what can be ended is ended and given back.

        With None everything at work is followed to its end.
        """
        self._is_stopping = True  # at once: whoever starts a run now is not to get this one
        self._ask(lambda: self._begin_stop(grace_s))

    def when_at_rest(self) -> Future[None]:
        """Done when nothing runs and nothing waits that could run here, seen after this call.

        While the queue is paused nothing could.
        """
        rested: Future[None] = Future()
        self._ask(lambda: self._await_rest(rested))
        return rested

    def _await_rest(self, rested: Future[None]) -> None:
        self._forget_bad_keys()
        self._resters.append(rested)

    def _ask(self, function: Callable[[], None]) -> None:
        # First the question, then the look for a loop; run() does it the other way round, so
        # that nothing asked in the moment it begins is overlooked, or done on two threads.
        self._asked.append(function)
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._answer)
            except RuntimeError:  # the loop has ended: nothing is left to wake
                self._answer()

    def _answer(self) -> None:
        while self._asked:
            self._asked.popleft()()
            self._wake.set()

    # -- the loop ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Recovers, then hands out work until `stop`. What goes wrong is raised, and on record."""
        self._loop = asyncio.get_running_loop()
        lock = None
        try:
            # Files are made and read on the store's thread, never on the loop.
            lock = await self._store.acall(lambda _: RunnerLock(self._runners, self.id))
            await self._begin()
            self._answer()
            await self._work()
            self.health = Health("stopped")
        except BaseException as error:
            self.error = error
            self.health = Health("failed", secrets.redact(f"{type(error).__name__}: {error}"))
            raise
        finally:
            await self._end(lock)

    async def _begin(self) -> None:
        def begin(store: Store) -> Recovered:
            self._row = this_process(self.id, self._clock.now_ms())
            store.save_runner(self._row)
            drift = store.verify_counts()
            found = self._recover(store)
            self._sweep(store)
            if drift:
                log.warning("the counters did not match the rows and were put right: %s", drift)
            return found

        self.recovered = await self._patiently(begin)

    def _recover(self, store: Store) -> Recovered:
        ceiling = self.retry.max_deaths
        by_steps = {name for name, p in self._providers.items() if isinstance(p, RenderHandler)}
        found = recover(store, self.id, self._runners, self._outputs, ceiling, by_steps)
        if found:
            store.log(Event("run.recovered", data_json=codec.dumps({"text": str(found)})))
        return found

    def _sweep(self, store: Store) -> None:
        def held() -> set[tuple[str, int]]:
            return {(job.id, job.fence) for job in store.jobs(JobFilter(status=("running",)))}

        self._outputs.sweep(held)

    async def _work(self) -> None:
        while True:
            self._wake.clear()
            if monotonic() >= self._upkeep_at_s:  # a pump that never rests
                await self._keep_up()
            resters, self._resters = self._resters, []
            result = await self._turn()
            self._launch(result.claimed, result.accounts)
            if self._row is not None and result.stop_ms > self._row.started_ms:
                self._is_stopping = True  # as q.stop() asks of every pump, in any process
            for key in result.cancels:
                flight = self._flights.get(key)
                if flight is not None and not flight.is_cancelled:
                    flight.cancel()
                    self._errand(self._tell_if_it_goes_on(flight))
            if resters:
                await self._tell_resters(resters, result)
            if self._is_stopping and not self._flights and not self._ended:
                return
            if not result.is_limited and self.health == self._saved_health:
                due_ms = [ms for ms in (result.next_ms, self._strays.next_ms()) if ms is not None]
                await self._rest(min(due_ms, default=None))
            if self._fault is not None:
                raise self._fault

    async def _turn(self) -> TurnResult:
        """One transaction: settle all that has ended, claim all that is free."""
        ended, self._ended = self._ended, []
        self._storing = len(ended)
        noted = [self._noted.popleft() for _ in range(len(self._noted))]
        claim = (
            None
            if self._is_stopping
            else Claim(
                self.id,
                self._why_not,
                named_only=frozenset(self._named_only),
                stand_ins=frozenset(self._stand_ins),
                by_model=frozenset(
                    name
                    for name, provider in self._providers.items()
                    if isinstance(provider, RenderHandler) and provider.is_by_model
                ),
                may_collect=self._may_collect,
            )
        )
        row = self._health_row()

        def turn(store: Store) -> tuple[TurnResult, list[Job], bool, list[Any]]:
            # Before the turn: what another process commits from here on is news.
            self._seen = store.changes_elsewhere()
            room = store.has_room()
            result = store.turn([*noted, *ended], claim if room else None, row)
            ours: list[Job] = []
            if self._must_look:
                ours = store.jobs(JobFilter(status=("running",), owner=self.id))
            return result, ours, room, self._strays.find(store) if claim else []

        result: TurnResult
        result, ours, room, strays = await self._patiently(turn)
        if strays:
            self._errand(self._strays.see_to(strays, self._wake.set))
        self._must_look = False
        self._storing = 0
        self._read_keys()
        self._launch(self._unknown_claims(ours, result), result.accounts)
        self._tidy(ended)
        if ended and self._is_stopping:
            self._on_slot_left()
        trouble = next(iter(self._roomless.values()), None)
        if not room:
            trouble = "the disk is nearly full: no new work until there is room"
        state = "stopping" if self._is_stopping else "paused" if result.is_paused else "running"
        self.health = Health(state, trouble, result.why if claim else self.health.why)
        return result

    async def _patiently(self, function: Callable[[Store], T]) -> T:
        """Runs it on the store's thread, again and again while the database is in trouble.

        Nothing that ended is forgotten: what could not be written is written when it can be.
        """
        wait_s, longest_s = TROUBLE_S
        before = self.health
        while True:
            try:
                result = await self._awaiting(self._store.acall(function))
                if self.health is not before:
                    self._wake.set()  # the trouble is over: a turn takes it off the screens
                return result
            except StoreLost:
                raise
            except StoreError as error:
                log.warning("the database could not be written, trying again: %s", error)
                self.health = Health(self.health.state, str(error), self.health.why)
                # A commit may have been lost on the way back: look what it did.
                self._must_look = True
                if isinstance(error, StoreFull):
                    await self._store.acall(lambda store: store.make_room())
                await self._clock.wait(asyncio.Event(), wait_s)
                wait_s = min(longest_s, 2 * wait_s)

    async def _awaiting(self, call: Coroutine[Any, Any, T]) -> T:
        """Waits for the database, however long, and says who holds it up."""
        task = asyncio.ensure_future(call)
        while not (await asyncio.wait({task}, timeout=HELD_UP_S))[0]:
            trouble = f"waiting for the database: {self._store.store.holder_note()} holds it"
            self.health = Health(self.health.state, trouble, self.health.why)
        return task.result()

    def _unknown_claims(self, ours: list[Job], result: TurnResult) -> list[Job]:
        """Those of our jobs that a lost commit claimed: nobody was told, nobody works on them.

        Sorted out on the loop and not on the store's thread: there an attempt that ends just
        now stands for a moment neither among the flights nor among the ended.
        """
        known = {(t.job, t.fence) for t in self._ended} | self._flights.keys()
        known |= {(job.number, job.fence) for job in result.claimed}
        return [job for job in ours if (job.number, job.fence) not in known]

    def _why_not(self, account: Account) -> str | None:
        return policy.why_not(
            account, self._providers.keys(), self._wrong_with(account), self._clock.now_ms()
        )

    def _may_collect(self, account: Account) -> bool:
        return policy.may_collect(
            account, self._providers.keys(), self._wrong_with(account), self._clock.now_ms()
        )

    def _wrong_with(self, account: Account) -> str | None:
        return None if account.credential is None else self._key_trouble(account.credential)

    def _key_trouble(self, reference: str) -> str | None:
        """Why an account's key cannot be had, or None. Called with the database held.

        A keyring may take seconds, or ask its user: it is read between the turns.
        """
        if not reference.startswith("keyring:"):
            return _read_key(reference)[1]
        at_s, wrong = self._keys.get(reference, (float("-inf"), "its key is being looked up"))
        if monotonic() - at_s > (KEY_S if wrong is None else NO_KEY_S):
            self._unread.add(reference)
        return wrong

    def _read_keys(self) -> None:
        """Reads the keys that the last turn wanted to know of, each on a thread of its own."""
        wanted, self._unread = self._unread - self._reading, set()
        for reference in wanted:
            self._reading.add(reference)
            self._errand(self._look_up(reference))

    async def _look_up(self, reference: str) -> None:
        _, wrong = await in_thread(partial(_read_key, reference), "vqkit-key")
        is_news = self._keys.get(reference, (0.0, ""))[1] != wrong
        self._keys[reference] = monotonic(), wrong
        self._reading.discard(reference)
        if is_news or self._resters:
            self._wake.set()

    def _forget_bad_keys(self) -> None:
        """Who begins to wait now may have mended them."""
        self._keys = {name: known for name, known in self._keys.items() if known[1] is None}

    def _health_row(self) -> Runner | None:
        """The runner's row, if there is something new to say in it."""
        by_steps = {name for name, p in self._providers.items() if self._is_by_steps(p)}
        is_known = self.health == self._saved_health and by_steps == self._saved_by_steps
        if self._row is None or is_known:
            return None
        self._saved_health, self._saved_by_steps = self.health, by_steps
        # Whoever takes over from this process, should it die, is told how its handlers spent.
        health = {"why": dict(self.health.why), "by_steps": sorted(by_steps)}
        self._row = self._row._replace(
            state=self.health.state, error=self.health.trouble, health_json=codec.dumps(health)
        )
        return self._row

    async def _rest(self, next_ms: int | None) -> None:
        """Waits for something to do: an ending, a poke, a job falling due, a change elsewhere."""
        reap_s = REAP_S
        while not self._wake.is_set():
            now_ms = self._clock.now_ms()
            until_s = policy.next_wakeup_s(now_ms, [next_ms], POLL_S)
            if self._stop_at_s is not None:
                until_s = min(until_s, max(0.0, self._stop_at_s - monotonic()))
            if self._noted:
                until_s = min(until_s, self._notes_s)
            if await self._clock.wait(self._wake, until_s):
                return
            if self._stop_at_s is not None and monotonic() >= self._stop_at_s:
                self._stop_at_s = None
                for flight in tuple(self._flights.values()):
                    flight.release()
            if self._noted or (next_ms is not None and self._clock.now_ms() >= next_ms):
                return
            reap_s -= until_s
            if reap_s <= 0:
                reap_s = REAP_S
                if await self._keep_up():
                    return
            if await self._patiently(lambda store: store.changes_elsewhere()) != self._seen:
                return

    async def _keep_up(self) -> bool:
        """What is due every few seconds, busy or not. True if there is news."""
        self._upkeep_at_s = monotonic() + REAP_S
        await self._patiently(self._prune)
        return await self._patiently(self._reap)

    def _reap(self, store: Store) -> bool:
        """Takes over the jobs of processes that died. True if there is news."""
        others = store.owners() - {self.id}
        return bool(self._recover(store)) if others else bool(self._resters)

    def _prune(self, store: Store) -> None:
        """Drops a chunk of what is older than the queue's retention, if it has one."""
        keep_s = store.setting("retention_s")
        if keep_s is not None:
            before_ms = self._clock.now_ms() - round(keep_s * 1000)
            store.prune(before_ms, ("completed", "cancelled"), at_most=PRUNE_CHUNK)

    async def _tell_resters(self, resters: list[Future[None]], result: TurnResult) -> None:
        """Tells those who wait that the queue is at rest, if it is; else they wait on."""
        now_ms = self._clock.now_ms()
        named_only = policy.named_only(result.accounts, self._named_only, self._stand_ins)

        def lanes_of_(account: Account) -> tuple[str, ...]:
            takes_any = account.provider not in named_only
            return lanes_of(account.name, account.provider, takes_any=takes_any)

        broke = {
            lane
            for account in result.accounts
            if account.name in result.out_of_budget
            for lane in lanes_of_(account)
        }
        lanes = {
            lane
            for account in result.accounts
            # One that is parked for a while comes back; one parked for good waits for its user.
            if account.name not in result.why
            or now_ms < (account.parked_until_ms or 0) < policy.FOR_EVER_MS
            for lane in lanes_of_(account)
        }

        def at_rest(store: Store) -> bool:
            is_over = self._is_stopping or result.is_paused
            has_work = store.has_work_for(list(lanes)) or store.has_work_for(
                list(broke), is_paid=True
            )
            return not store.owners() and (is_over or not has_work)

        is_busy = (
            self._reading or self._flights or self._ended or self._noted or self._strays.is_busy
        )
        if not is_busy and await self._patiently(at_rest):
            for rested in resters:
                if rested.set_running_or_notify_cancel():
                    rested.set_result(None)
        else:
            self._resters += [rested for rested in resters if not rested.cancelled()]

    # -- attempts ------------------------------------------------------------------------------

    def _launch(self, jobs: tuple[Job, ...] | list[Job], accounts: tuple[Account, ...]) -> None:
        known = {account.name: account for account in accounts}
        by_model = {account.name for account in accounts if account.is_by_model}
        # Jobs come by the hundred: what they can share is made once.
        deliver, do_step, landed = self._deliver, self._do_step, self._landed
        context = contextvars.copy_context()
        for job in jobs:
            account = known.get(job.account or "")
            provider = self._providers.get(account.provider) if account else None
            if account is None or provider is None:
                # Taken away between the look and the claim: give it back.
                self._settle(job, Outcome("released", reason="its provider is gone"))
                continue
            notes = Notes(job, deliver, do_step, self._loop)
            executor = self._executors[provider.executor]
            flight = _Flight(job, provider, executor, notes, account.credential)
            self._flights[job.number, job.fence] = flight
            if account.name in by_model:
                flight.model = job.model
            if job.number in self._refreshed:
                self._refreshed.discard(job.number)
                flight.has_second_key = True
            flight.task = asyncio.create_task(self._fly(flight))
            flight.task.add_done_callback(partial(landed, flight), context=context)

    def _deliver(self, job: Job, verb: str, change: dict[str, Any]) -> None:
        """Where an attempt's notes go; called from any thread."""
        # Nobody is woken: a note may wait for company, an ending is what wakes the loop.
        self._noted.append(Transition(job.number, verb, job.fence, change))

    async def _do_step(self, job: Job, verb: str, **arguments: Any) -> Any:
        """What an attempt may do with its job's steps, as the holder of its fence."""
        if verb == "begin_step":
            arguments = {"number": job.number, "request_json": None, **arguments}
            flight = self._flights.get((job.number, job.fence))
            if flight is not None and arguments.get("is_paid"):
                self._paid_in_steps[flight.provider.name] = flight.provider.handler
        if verb == "renew":
            arguments = {"number": job.number}

        def do(store: Store) -> tuple[Any, StoreError | None]:
            try:
                return getattr(store, verb)(fence=job.fence, **arguments), None
            except StoreError as error:
                if not error.facts.get("is_refused"):
                    raise
                return None, error

        # What the database will never take is the handler's trouble; else it is tried again.
        done, refused = await self._patiently(do)
        if refused is not None:
            raise refused
        return done

    async def _fly(self, flight: _Flight) -> None:
        """Runs one attempt to whatever end, and hands its outcome on. Never raises."""
        job = flight.job
        work = Work(flight.provider.handler, job, self._outputs, flight.notes, flight.credential)
        try:
            outcome = await self._outcome(flight, work)
        except asyncio.CancelledError:
            outcome = _stopped(flight)
        except BaseException as error:  # noqa: BLE001 - a class of the user's own, or our fault
            outcome = _failed(error)
        self._flights.pop((job.number, job.fence), None)
        self._settle(job, outcome, flight.provider)

    def _landed(self, flight: _Flight, task: asyncio.Task[None]) -> None:
        """Sees to it that no attempt is lost without a word."""
        if task.cancelled():  # before its first step
            self._flights.pop((flight.job.number, flight.job.fence), None)
            self._settle(flight.job, _stopped(flight), flight.provider)
        elif (error := task.exception()) is not None:
            self._fault = error
            self._wake.set()

    async def _outcome(self, flight: _Flight, work: Work) -> Outcome:
        job = flight.job
        try:
            if job.timeout_ms is None:
                returned = await flight.executor.run(work)
            else:
                returned = await self._within(job.timeout_ms / 1000, flight, work)
        except _TookTooLongError as error:
            wrong = TimeoutError(secrets.redact(str(error)))
            return Outcome("timed_out", error_json=_error_json(wrong))
        except HandlerRaised as raised:
            return await self._judged(flight, raised.error, raised.frames)
        except WorkerDied as died:
            return Outcome("crashed", error_json=_error_json(died))
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises
            return await self._judged(flight, error)
        flight.has_returned = True
        outcome = await self._finish(job, returned)
        if isinstance(flight.provider, RenderHandler) and isinstance(returned.value, dict):
            told = policy.amount(returned.value.get("cost_microusd"))
            outcome = outcome._replace(cost_microusd=told)
        return outcome

    async def _tell_if_it_goes_on(self, flight: _Flight) -> None:
        """Says why a job that was cancelled still holds its slot."""
        can_stop = flight.executor.can_stop and not isinstance(flight.provider, RenderHandler)
        if not can_stop or flight.task is None:
            return
        await asyncio.wait({flight.task}, timeout=STOP_S)
        if not flight.task.done() and not flight.has_returned:
            flight.notes.post(
                "log", {"message": f"cancelled by you; {GOES_ON}", "level": "warning"}
            )
            self._wake.set()

    async def _within(self, limit_s: float, flight: _Flight, work: Work) -> Returned:
        """Runs it for at most so long. What cannot be ended then is left to end by itself."""
        attempt = asyncio.ensure_future(flight.executor.run(work))
        try:
            await asyncio.wait({attempt}, timeout=limit_s)
        except asyncio.CancelledError:
            attempt.cancel()
            raise
        if attempt.done():
            return attempt.result()
        work.notes.cancel()
        told = f"took longer than its timeout_s of {limit_s:g}"
        if flight.executor.can_stop:
            attempt.cancel()
            await asyncio.wait({attempt}, timeout=STOP_S)
            if attempt.done():
                raise _TookTooLongError(told)
        # To try again beside a call that still runs would be to run, and to pay, twice; and
        # the account's slot is taken as long as it does.
        why = "a plain function cannot be ended: its slot is held until it returns"
        warning = f"{told}; {GOES_ON if flight.executor.can_stop else why}"
        work.notes.post("log", {"message": warning, "level": "warning"})
        self._wake.set()
        try:
            return await attempt
        except asyncio.CancelledError as error:
            me = asyncio.current_task()
            if attempt.cancelled() and me is not None and not me.cancelling():
                raise _TookTooLongError(told) from error  # it has given in after all
            raise
        except Exception as error:
            raise _TookTooLongError(f"{told}, and then ended in {error!r}") from error

    async def _judged(
        self,
        flight: _Flight,
        error: BaseException,
        frames: list[tuple[str, int, str]] | None = None,
    ) -> Outcome:
        """The outcome of an attempt whose handler raised."""
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error, frames = error.exceptions[0], None  # what a TaskGroup makes of it
        is_refused = isinstance(error, ProviderError) and error.kind == "auth"
        if is_refused and await self._has_new_key(flight):
            self._refreshed.add(flight.job.number)
            reason = "its key was refused and is another one by now: tried again with that"
            return Outcome("released", reason=reason)
        return self._judge(flight, error, frames)

    async def _has_new_key(self, flight: _Flight) -> bool:
        """True where the key that was refused has been changed since the handler was given it.

        Once for a job: a second refusal parks its account. Renders see to it themselves.
        """
        reference, used = flight.credential, flight.notes.key
        is_theirs = isinstance(flight.provider, RenderHandler)
        if reference is None or used is None or flight.has_second_key or is_theirs:
            return False
        key, _ = await in_thread(partial(_read_key, reference), "vqkit-key")
        return key not in (None, used)

    def _judge(
        self,
        flight: _Flight,
        error: BaseException,
        frames: list[tuple[str, int, str]] | None,
    ) -> Outcome:
        if isinstance(error, JobCancelled) and flight.is_cancelled:
            return Outcome("cancelled", reason="cancelled by you")
        if isinstance(error, ProviderError):
            now_ms, told = self._clock.now_ms(), _error_json(error, frames)
            return policy.provider_outcome(error, told, now_ms, self._draw(), flight.model)
        if isinstance(error, InDoubt):
            return Outcome("doubt", error_json=_error_json(error, frames), reason=str(error))
        # A row has no more cells at its next try, and what JSON cannot carry is none then either.
        if isinstance(error, GiveUp | MissingCell | PayloadError):
            reason = getattr(error, "reason", None) or str(error)  # a subclass may lack it
            end = Outcome("gave_up", error_json=_error_json(error, frames), reason=reason)
            cost: float | None = getattr(error, "cost", None)
            if cost is None:
                return end
            return end._replace(is_billed=cost > 0, cost_microusd=round(cost * 1_000_000))
        if isinstance(error, Snooze):
            return Outcome("snoozed", delay_s=error.delay_s, reason=error.reason)
        if isinstance(error, OSError) and error.errno in FULL_ERRNOS:
            self.health = Health(self.health.state, "the disk is full: make room", self.health.why)
            return Outcome("snoozed", delay_s=FULL_S, reason="the disk is full")
        return _failed(error, frames)

    async def _finish(self, job: Job, returned: Returned) -> Outcome:
        """Makes the files final. What was made is kept, however long the disk stays full."""
        result_json = "null" if returned.value is None else codec.encode(returned.value)
        if returned.warning is not None:
            change = {"message": returned.warning, "level": "warning"}
            self._noted.append(Transition(job.number, "log", job.fence, change))
        if not returned.made:
            return Outcome("completed", result_json=result_json)
        wait_s, longest_s = TROUBLE_S
        while True:
            try:
                result_json, outputs = await in_thread(
                    partial(self._outputs.finish, job, returned.made, result_json),
                    f"vqkit-files-{job.number}",
                )
            except OSError as error:
                if error.errno not in PASSING_ERRNOS:  # it is gone, or no file: waiting is no help
                    return _failed(error)
                is_full = error.errno in FULL_ERRNOS
                trouble = NO_ROOM if is_full else f"finished files cannot be stored: {error}"
                self._roomless[job.number] = trouble
                self.health = Health(self.health.state, trouble, self.health.why)
                await self._store.acall(lambda store: store.make_room())
                await self._clock.wait(asyncio.Event(), wait_s)
                wait_s = min(longest_s, 2 * wait_s)
                del self._roomless[job.number]
            else:
                return Outcome("completed", result_json=result_json, outputs=outputs)

    def _settle(self, job: Job, outcome: Outcome, provider: Provider | None = None) -> None:
        now_ms = self._clock.now_ms()
        verb, change = policy.decide(outcome, job, self.retry, now_ms, self._draw())
        self._ended.append(
            Transition(
                *(job.number, verb, job.fence, change),
                *(outcome.kind, outcome.outputs, outcome.effect),
                policy.bill(outcome, job, is_by_steps=self._is_by_steps(provider))
                if job.reserved_microusd or outcome.cost_microusd
                else None,
            )
        )
        self._wake.set()

    def _is_by_steps(self, provider: Provider | None) -> bool:
        """True if it is known to spend in paid steps only: by its code, or as it has begun one."""
        if provider is None or provider.is_by_steps:
            return True  # without one, nothing was called
        return self._paid_in_steps.get(provider.name) is provider.handler

    def _tidy(self, ended: list[Transition]) -> None:
        """After the commit: manifests the database no longer needs, parts nobody finishes.

        After a time-out a plain function may still be at its file.
        """
        done = [t for t in ended if t.outputs or t.outcome not in ("completed", "timed_out")]
        if not done:
            return

        def tidy(store: Store) -> list[str]:
            found = store.jobs(JobFilter(numbers=tuple(t.job for t in done)))
            ids = {job.number: job.id for job in found}
            for t in done:
                if t.job in ids:
                    self._outputs.forget(ids[t.job], t.fence)
                    self._outputs.discard_parts(ids[t.job], t.fence)
                    if t.outcome == "completed":
                        self._outputs.drop_steps(ids[t.job])
            return list(ids.values())

        self._errand(self._store.acall(tidy))

    def _errand(self, work: Coroutine[Any, Any, Any]) -> None:
        """Does something on the side, and keeps hold of it until it is done."""
        errand = asyncio.create_task(work)
        self._errands.add(errand)
        errand.add_done_callback(self._back)

    def _back(self, errand: asyncio.Task[Any]) -> None:
        self._errands.discard(errand)
        if not errand.cancelled() and (error := errand.exception()) is not None:
            log.warning("left undone until the next start: %s", secrets.redact(repr(error)))

    # -- ending --------------------------------------------------------------------------------

    def _begin_stop(self, grace_s: float | None) -> None:
        self._is_stopping = True
        if grace_s is not None:
            self._stop_at_s = monotonic() + grace_s

    async def _end(self, lock: RunnerLock | None) -> None:
        """Ends what is left, and lets go of the queue."""
        for flight in tuple(self._flights.values()):
            flight.release()
        for executor in self._executors.values():
            executor.close()
        left = [f.task for f in self._flights.values() if f.task is not None]
        if left:
            await asyncio.wait(left, timeout=1.0)
        try:
            if self._errands:
                await asyncio.wait(tuple(self._errands), timeout=2.0)
            if self.error is None:

                def leave(store: Store) -> None:
                    store.forget_runner(self.id)
                    if lock is not None:
                        lock.release(is_clean=True)

                await self._store.acall(leave)
            elif self._row is not None:
                row = self._row._replace(state="failed", error=self.health.trouble)
                await self._store.acall(lambda store: store.save_runner(row))
        except StoreError as error:
            log.warning("the pump's end could not be written down: %s", error)
        finally:
            if lock is not None:
                # A pump that failed may leave jobs behind: its lock file is what tells others,
                # and its successor in this very process, that their owner is gone.
                lock.release(is_clean=False)
            for rested in self._resters:
                rested.cancel()


def _read_key(reference: str) -> tuple[str | None, str | None]:
    """The key, or why it cannot be had."""
    try:
        return secrets.resolve(reference), None
    except CredentialError as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001 - one account's key must not stop the others
        return (
            None,
            f"its key could not be read from {reference}: a {type(error).__name__} was raised",
        )


def _nothing() -> None:
    """No change to make: the loop is only to look."""


def _error_json(error: BaseException, frames: list[tuple[str, int, str]] | None = None) -> str:
    return codec.dumps(describe_error(error, frames), "error")


def _stopped(flight: _Flight) -> Outcome:
    """The outcome of an attempt that was cancelled."""
    if flight.is_released:
        return Outcome("released", reason="the pump stopped")
    if flight.is_cancelled:
        return Outcome("cancelled", reason="cancelled by you")
    # The handler's own doing, or the loop is being torn down.
    return _failed(asyncio.CancelledError("the handler was cancelled from inside"))


def _failed(error: BaseException, frames: list[tuple[str, int, str]] | None = None) -> Outcome:
    return Outcome("error", error_json=_error_json(error, frames))
