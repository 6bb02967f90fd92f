"""Handlers inside this process: coroutines on the pump's loop, plain functions on threads."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable
from typing import Any

from ..attempt import ActiveJob, frames_of
from ..errors import GiveUp
from .base import HandlerRaised, Returned, Work

__all__ = ["AsyncExecutor", "ThreadExecutor"]


class AsyncExecutor:
    """Runs ``async def`` handlers on the loop that the pump runs on."""

    can_stop = True

    async def run(self, work: Work) -> Returned:
        active = ActiveJob(work.job, work.notes, work.folder, work.credential, is_async=True)
        try:
            value = await work.handler(active)
        except (SystemExit, KeyboardInterrupt) as error:
            raise HandlerRaised(error, frames_of(error)) from error
        return Returned.of(value, active)

    def close(self) -> None:
        """Nothing to do: the pump cancels its own tasks."""


class ThreadExecutor:
    """Runs plain functions, each on a daemon thread of its own.

    Not a ThreadPoolExecutor: its workers keep the interpreter from ending, so that a kernel
    with a handler at work is killed after seconds, and no exit hook runs. A thread cannot
    be ended from outside: cancelling sets the flag that ``job.check_cancelled()`` reads.
    """

    can_stop = False

    def __init__(self) -> None:
        self._here = threading.local()

    @property
    def is_inside(self) -> bool:
        """True on a thread that runs one of its handlers."""
        return bool(getattr(self._here, "is_at_work", False))

    async def run(self, work: Work) -> Returned:
        active = ActiveJob(work.job, work.notes, work.folder, work.credential)

        def call() -> Returned:
            self._here.is_at_work = True
            return call_handler(work.handler, active)

        returned: Returned = await in_thread(call, f"vqkit-job-{work.job.number}")
        return returned

    def close(self) -> None:
        """Nothing to do: daemon threads end with the process."""


def call_handler(handler: Callable[[ActiveJob], Any], active: ActiveJob) -> Returned:
    """Calls a plain function with its job. Raises GiveUp if it turns out to be none."""
    value = handler(active)
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise GiveUp(
            "the handler is a plain function that returned a coroutine; make it 'async def' and"
            " await inside it"
        )
    return Returned.of(value, active)


async def in_thread(function: Callable[[], Any], name: str) -> Any:
    """Runs a blocking function on a daemon thread and waits; cancelling leaves it behind."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: Exception | None) -> None:
        if done.done():  # nobody waits any more
            return
        if error is None:
            done.set_result(value)
        else:
            done.set_exception(error)

    def target() -> None:
        value: Any = None
        wrong: Exception | None = None
        try:
            value = function()
        except BaseException as error:  # noqa: BLE001 - raised where the pump waits
            # StopIteration would end the coroutine that awaits it, SystemExit the loop.
            if isinstance(error, Exception) and not isinstance(error, StopIteration):
                wrong = error
            else:
                wrong = HandlerRaised(error, frames_of(error))
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, value, wrong)

    threading.Thread(target=target, name=name, daemon=True).start()
    return await done
