"""The one thread that owns a store: everything else hands it functions to run.

A KeyboardInterrupt lands in the main thread only, so no interrupt can fall between a
``BEGIN`` and its ``COMMIT``. Plain callers wait with `call`, the pump with `acall`.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from ..errors import StoreBusy, StoreLost
from .base import Store

__all__ = ["StoreThread"]

T = TypeVar("T")
S = TypeVar("S", bound=Store)

_all: weakref.WeakSet[StoreThread[Any]] = weakref.WeakSet()


class _Task(Generic[T]):
    """A function on its way through the thread: it either begins to write or is abandoned."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function = function
        self.future: Future[T] = Future()
        self._lock = threading.Lock()
        self._has_begun = self._is_abandoned = False

    def begin_write(self) -> None:
        """Called with the database ours. Raises if the caller has given up meanwhile."""
        with self._lock:
            if self._is_abandoned:
                raise StoreBusy("given up while it waited; nothing was changed")
            self._has_begun = True

    def abandon(self) -> bool:
        """True if it had not begun to write, and now never will."""
        with self._lock:
            self._is_abandoned = not self._has_begun
        return self._is_abandoned


class StoreThread(Generic[S]):
    """Runs functions of a store, one at a time and in order, on a daemon thread.

    `open_store` is called on that thread; what it raises, the constructor raises.
    """

    def __init__(self, open_store: Callable[[], S], name: str = "vqkit-store") -> None:
        self._inbox: SimpleQueue[_Task[Any] | None] = SimpleQueue()
        self._pid = os.getpid()
        self._is_closed = False
        self._gate = threading.RLock()  # a finalizer may come in between
        opened: Future[S] = Future()
        self._thread = threading.Thread(
            target=self._serve, args=(open_store, opened), name=name, daemon=True
        )
        self._thread.start()
        self.store = opened.result()
        _all.add(self)

    def _serve(self, open_store: Callable[[], S], opened: Future[S]) -> None:
        try:
            store = open_store()
        except BaseException as error:  # noqa: BLE001 - raised by the constructor
            opened.set_exception(error)
            return
        opened.set_result(store)
        while (task := self._inbox.get()) is not None:
            store.before_write = task.begin_write
            try:
                result = task.function(store)
            except BaseException as error:  # noqa: BLE001 - raised where the caller waits
                task.future.set_exception(store.translated(error))
            else:
                task.future.set_result(result)
                del result
            del task  # a thread that waits must not keep results alive

    def _submit(self, function: Callable[[S], T]) -> _Task[T]:
        if os.getpid() != self._pid:
            raise StoreLost(
                "this process was forked from the one that opened the queue;"
                " work on it in a process of its own (subprocess, or"
                " multiprocessing.get_context('spawn'))"
            )
        task = _Task(function)
        with self._gate:  # what comes in behind the end would be waited for without end
            if self._is_closed:
                raise StoreLost("this queue is closed; open it again with Queue(path)")
            self._inbox.put(task)
        return task

    def call(self, function: Callable[[S], T], timeout_s: float | None = None) -> T:
        """The result of ``function(store)``. Raises StoreLost when closed, or after a fork.

        With `timeout_s`, raises StoreBusy when it had not begun to write by then, naming
        who holds the database; it will not run later either.
        """
        return self.begin(function)(timeout_s)

    def begin(self, function: Callable[[S], T]) -> Callable[[float | None], T]:
        """Hands it to the thread. What is returned waits for the result, as `call` does."""
        task = self._submit(function)
        return lambda timeout_s: self._result(task, timeout_s)

    def _result(self, task: _Task[T], timeout_s: float | None) -> T:
        try:
            return task.future.result(timeout_s)
        except TimeoutError:
            if task.future.done() or not task.abandon():
                # It has begun: only its end tells what it did.
                return task.future.result()
            raise StoreBusy(
                f"the database was not free within {timeout_s:g} s: {self.store.holder_note()}"
                " holds it. Nothing was changed."
            ) from None

    def later(self, function: Callable[[S], object]) -> None:
        """Runs it in its turn; nobody waits for it."""
        self._submit(function)

    async def acall(self, function: Callable[[S], T]) -> T:
        """The same for a coroutine; cancelling the wait does not undo the function."""
        return await asyncio.shield(asyncio.wrap_future(self._submit(function).future))

    def close(self) -> None:
        """Runs what was queued, closes the store, ends the thread. Twice is harmless."""
        if os.getpid() != self._pid:
            return
        with self._gate:
            if self._is_closed:
                return
            closing = self._submit(lambda store: store.close())
            self._is_closed = True
            self._inbox.put(None)
        closing.future.result()
        self._thread.join()


def _after_fork_in_child() -> None:
    for owner in tuple(_all):
        connection = owner.store.abandon()
        # Closing it here would run SQLite's clean-up on files that the parent is using.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


os.register_at_fork(after_in_child=_after_fork_in_child)
