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


class StoreThread(Generic[S]):
    """Runs functions of a store, one at a time and in order, on a daemon thread.

    `open_store` is called on that thread; what it raises, the constructor raises.
    """

    def __init__(self, open_store: Callable[[], S], name: str = "vqkit-store") -> None:
        self._inbox: SimpleQueue[tuple[Callable[[S], Any], Future[Any]] | None] = SimpleQueue()
        self._pid = os.getpid()
        self._is_closed = False
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
        while (item := self._inbox.get()) is not None:
            function, future = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = function(store)
            except BaseException as error:  # noqa: BLE001 - raised where the caller waits
                future.set_exception(error)
            else:
                future.set_result(result)
            del item, function, future  # a waiting thread must not keep results alive

    def submit(self, function: Callable[[S], T]) -> Future[T]:
        """Queues ``function(store)``. Raises StoreLost when closed, or after a fork."""
        if os.getpid() != self._pid:
            raise StoreLost(
                "this process was forked from the one that opened the queue;"
                " open it anew here with Queue(path)"
            )
        if self._is_closed:
            raise StoreLost("this queue is closed; open it again with Queue(path)")
        future: Future[T] = Future()
        self._inbox.put((function, future))
        return future

    def call(self, function: Callable[[S], T], timeout_s: float | None = None) -> T:
        """The result of ``function(store)``.

        With `timeout_s`, raises StoreBusy when its turn had not come by then; it will not
        run later either.
        """
        future = self.submit(function)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if future.done() or not future.cancel():
                # It has begun: only its end tells what it did.
                return future.result()
            raise StoreBusy(
                f"the database was not free within {timeout_s:g} s; nothing was changed"
            ) from None

    async def acall(self, function: Callable[[S], T]) -> T:
        """The same for a coroutine; cancelling the wait does not undo the function."""
        return await asyncio.shield(asyncio.wrap_future(self.submit(function)))

    def close(self) -> None:
        """Runs what was queued, closes the store, ends the thread. Twice is harmless."""
        if self._is_closed or os.getpid() != self._pid:
            return
        closing = self.submit(lambda store: store.close())
        self._is_closed = True
        self._inbox.put(None)
        closing.result()
        self._thread.join()


def _after_fork_in_child() -> None:
    for owner in tuple(_all):
        connection = owner.store.abandon()
        # Closing it here would run SQLite's clean-up on files that the parent is using.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


os.register_at_fork(after_in_child=_after_fork_in_child)
