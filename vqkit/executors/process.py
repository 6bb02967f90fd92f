"""CPU-heavy handlers in worker processes (loky), each its own little pool.

One pool of many workers would be simpler, but a worker that dies breaks its whole pool: a
poison job would count a crash for every innocent job beside it. So each worker is a pool
of one, and ending it, to cancel or at a time-out, touches nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from .. import secrets
from ..attempt import ActiveJob, frames_of, message_of
from ..errors import GiveUp, JobCancelled, Snooze
from ..job import Job
from ..outputs import OutputFolder
from .base import HandlerRaised, Notes, Returned, Work, WorkerDied
from .local import call_handler, in_thread

__all__ = ["ProcessExecutor"]

LAST_NOTES_S = 2.0

Tag = tuple[int, int]


class ProcessExecutor:
    """Runs plain functions in worker processes, started when needed and kept for the next job.

    Workers have a session of their own, so that an interrupt of the kernel does not reach
    them, and end themselves when this process is gone. `on_start` is called after a worker
    was started.
    """

    can_stop = True

    def __init__(self, on_start: Callable[[], None] = lambda: None) -> None:
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._is_closed = False
        self._on_start = on_start

    async def run(self, work: Work) -> Returned:
        worker = self._take_idle() or await self._start()
        try:
            returned = await worker.run(work)
        except HandlerRaised:
            self._idle.append(worker)
            raise
        except BaseException:
            self._all.discard(worker)
            worker.kill()
            raise
        self._idle.append(worker)
        return returned

    def _take_idle(self) -> _Worker | None:
        """A worker that waits for work; one that died meanwhile (no memory) is nobody's crash."""
        while self._idle:
            worker = self._idle.pop()
            if worker.is_alive():
                return worker
            self._all.discard(worker)
            worker.kill()
        return None

    async def _start(self) -> _Worker:
        # Importing loky and starting a process takes tenths of a second: not on the loop.
        starting = asyncio.ensure_future(in_thread(_Worker, "vqkit-worker-start"))
        starting.add_done_callback(self._started)
        try:
            worker: _Worker = await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(self._leave_idle)
            raise
        self._on_start()
        return worker

    def _started(self, starting: asyncio.Future[_Worker]) -> None:
        if not starting.cancelled() and starting.exception() is None:
            self._all.add(starting.result())
            if self._is_closed:
                self.close()

    def _leave_idle(self, starting: asyncio.Future[_Worker]) -> None:
        """Its job was cancelled while it started: the next one gets it."""
        if not starting.cancelled() and starting.exception() is None and not self._is_closed:
            self._idle.append(starting.result())

    def close(self) -> None:
        self._is_closed = True
        for worker in tuple(self._all):
            worker.kill()
        self._all.clear()
        self._idle.clear()


class _Worker:
    """One worker process: a loky pool of one, and a pipe for notes."""

    def __init__(self) -> None:
        from multiprocessing import resource_tracker as trackers

        from loky import ProcessPoolExecutor
        from loky.backend import get_context, resource_tracker
        from loky.process_executor import BrokenProcessPool

        # Before the pool, whose locks would start loky's own aloud.
        with _silent_trackers():
            trackers.ensure_running()
            resource_tracker.ensure_running()
        context = get_context("loky")
        self._pipe, self._child_end = context.Pipe(duplex=True)
        self._pool = ProcessPoolExecutor(
            max_workers=1,
            context=context,
            initializer=_begin_worker,
            initargs=(self._child_end,),
        )
        self._notes: tuple[Tag, Notes] | None = None
        self._seen_end: tuple[Tag, Callable[[], object]] | None = None
        # Until it ignores interrupts, a Ctrl-C of the terminal would kill the starting worker:
        # it inherits the block. The trackers are there already, for starting them lifts it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._pid = int(self._pool.submit(os.getpid).result())
        except BrokenProcessPool as error:
            raise WorkerDied("a worker process ended while it was starting") from error
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        threading.Thread(target=self._listen, name="vqkit-worker-notes", daemon=True).start()

    async def run(self, work: Work) -> Returned:
        from loky.process_executor import BrokenProcessPool, ShutdownExecutorError

        loop = asyncio.get_running_loop()
        end = asyncio.Event()
        tag = (work.job.number, work.job.fence)
        self._seen_end = tag, lambda: loop.call_soon_threadsafe(end.set)
        self._notes = tag, work.notes
        try:
            future = self._pool.submit(_work, work.handler, work.job, work.folder, work.credential)
            outcome = await asyncio.wrap_future(future)
            # Notes travel beside the result; wait for the last of them.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_NOTES_S):
                    await end.wait()
        except (BrokenProcessPool, ShutdownExecutorError) as error:
            raise WorkerDied(f"worker process {self._pid} ended in the middle of it") from error
        finally:
            self._notes = self._seen_end = None
        if isinstance(outcome, Returned):
            return outcome
        raise HandlerRaised(*outcome)

    def _listen(self) -> None:
        """Hands on what the worker says, until its end of the pipe is gone."""
        while True:
            try:
                tag, verb, change = self._pipe.recv()
            except (EOFError, OSError):
                return
            if verb == "end":
                if self._seen_end is not None and self._seen_end[0] == tag:
                    with contextlib.suppress(RuntimeError):  # the loop has ended
                        self._seen_end[1]()
            elif self._notes is None or self._notes[0] != tag:
                continue
            elif verb == "resolve":
                self._give_key(self._notes[1], change["reference"])
            elif verb == "call":
                self._notes[1].begin_call(**change).add_done_callback(self._answer)
            else:
                self._notes[1].post(verb, change)

    def _give_key(self, notes: Notes, reference: str) -> None:
        """Tells the worker the key: its own environment is as old as its process."""
        try:
            answer: tuple[bool, Any] = True, notes.resolve(reference)
        except Exception as error:  # noqa: BLE001 - whatever a keyring does; raised in the worker
            answer = False, _portable(error)
        with contextlib.suppress(OSError):  # the worker is gone: its flight hears of that
            self._pipe.send(answer)

    def _answer(self, done: Future[Any]) -> None:
        """Tells the worker what became of a call about its job's steps."""
        error = done.exception()
        with contextlib.suppress(OSError):  # the worker is gone: its flight hears of that
            self._pipe.send((False, error) if error is not None else (True, done.result()))

    def is_alive(self) -> bool:
        """False once the process is gone. Looks only; loky fetches its exit status."""
        with contextlib.suppress(ChildProcessError):
            return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        return False

    def kill(self) -> None:
        """Ends the process and whatever it started, now."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(self._pid) == self._pid:
                os.killpg(self._pid, signal.SIGKILL)
        self._pool.shutdown(wait=False, kill_workers=True)
        self._child_end.close()
        self._pipe.close()


@contextlib.contextmanager
def _silent_trackers() -> Iterator[None]:
    """Trackers outlive us and clean up; of a kill they need not tell in thirty lines."""
    quiet = "ignore:resource_tracker:UserWarning"
    with _silencing:  # several workers may start at once
        before = os.environ.get("PYTHONWARNINGS")
        os.environ["PYTHONWARNINGS"] = quiet if before is None else f"{before},{quiet}"
        try:
            yield
        finally:
            if before is None:
                del os.environ["PYTHONWARNINGS"]
            else:
                os.environ["PYTHONWARNINGS"] = before


_silencing = threading.Lock()


# -- in the worker process ------------------------------------------------------------------

_pipe: Connection | None = None
_sending = threading.Lock()
_calling = threading.Lock()
_answers: SimpleQueue[tuple[bool, Any]] = SimpleQueue()


def _begin_worker(pipe: Connection) -> None:
    global _pipe
    _pipe = pipe
    with contextlib.suppress(OSError):
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, name="vqkit-watch-parent", daemon=True).start()


def _end_with_parent() -> None:
    """Takes the parent's answers; when the pipe ends, the parent is gone, and so are we."""
    with contextlib.suppress(EOFError, OSError):
        assert _pipe is not None
        while True:
            _answers.put(_pipe.recv())
    os.killpg(0, signal.SIGKILL)


class _PipeChannel:
    """The worker's end of an attempt's channel. A job is cancelled by ending the process."""

    def __init__(self, tag: Tag) -> None:
        self._tag = tag

    def post(self, verb: str, change: dict[str, Any]) -> None:
        assert _pipe is not None
        with _sending:
            _pipe.send((self._tag, verb, change))

    def is_cancelled(self) -> bool:
        return False

    def resolve(self, reference: str) -> str:
        key = str(self._ask("resolve", {"reference": reference}))
        secrets.remember(key)
        return key

    def call(self, verb: str, **arguments: Any) -> Any:
        return self._ask("call", {"verb": verb, **arguments})

    def _ask(self, verb: str, change: dict[str, Any]) -> Any:
        with _calling:
            self.post(verb, change)
            is_good, answer = _answers.get()
        if not is_good:
            raise answer
        return answer

    async def acall(self, verb: str, **arguments: Any) -> Any:
        return self.call(verb, **arguments)


def _work(
    handler: Callable[[ActiveJob], Any], job: Job, folder: OutputFolder, credential: str | None
) -> Returned | tuple[BaseException, list[tuple[str, int, str]]]:
    channel = _PipeChannel((job.number, job.fence))
    active = ActiveJob(job, channel, folder, credential)
    try:
        return call_handler(handler, active)
    except BaseException as error:  # noqa: BLE001 - travels to the pump as a value
        return _portable(error), frames_of(error)
    finally:
        channel.post("end", {})


def _portable(error: BaseException) -> BaseException:
    """The error itself if it survives pickling, or one of the same name and message.

    Signals stay signals: a GiveUp that could not travel would be retried.
    """
    import pickle

    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - whatever its own pickling does
        name = type(error).__name__
        if isinstance(error, Snooze):
            return Snooze(error.delay_s, error.reason)
        base = next((kind for kind in (GiveUp, JobCancelled) if isinstance(error, kind)), Exception)
        copy: BaseException = type(name, (base,), {})(message_of(error))
        if isinstance(copy, GiveUp):
            copy.cost = getattr(error, "cost", None)
        return copy
    return error
