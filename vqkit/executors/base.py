"""What the pump asks of an executor, whatever it runs handlers on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from .. import codec, secrets
from ..attempt import ActiveJob, message_of, plain_result, suffix_of
from ..job import Job
from ..outputs import Made, OutputFolder

__all__ = ["Executor", "HandlerRaised", "Notes", "Returned", "Work", "WorkerDied"]

RESULT_BYTES_MAX = 1024 * 1024  # pages of 500 rows are read at once


class Notes:
    """The pump's end of an attempt's channel: a place for notes, and the cancel flag.

    `post` and `call` may be used from any thread but the pump's own. `deliver` is given the
    job, a verb and what it is about; `steps` does what is asked of the job's steps, on the
    pump's loop. `key` is the account's key that the attempt was given last.
    """

    def __init__(
        self,
        job: Job,
        deliver: Callable[[Job, str, dict[str, Any]], None],
        steps: Callable[..., Coroutine[Any, Any, Any]] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._job, self._deliver, self._steps, self._loop = job, deliver, steps, loop
        self._cancelled = False
        self.key: str | None = None

    def resolve(self, reference: str) -> str:
        """The key behind a reference. Raises CredentialError."""
        self.key = secrets.resolve(reference)
        return self.key

    async def acall(self, verb: str, **arguments: Any) -> Any:
        """Does something with the job's steps."""
        assert self._steps is not None
        return await self._steps(self._job, verb, **arguments)

    def begin_call(self, verb: str, **arguments: Any) -> Future[Any]:
        """Begins the same from another thread; the future tells its end."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(self.acall(verb, **arguments), self._loop)

    def call(self, verb: str, **arguments: Any) -> Any:
        """The same, waited for."""
        return self.begin_call(verb, **arguments).result()

    def post(self, verb: str, change: dict[str, Any]) -> None:
        """Hands on a stage or a log line."""
        self._deliver(self._job, verb, change)

    def is_cancelled(self) -> bool:
        """True once `cancel` was called."""
        return self._cancelled

    def cancel(self) -> None:
        """Asks the attempt to stop."""
        self._cancelled = True


class Work(NamedTuple):
    """A handler and the job it is to work on."""

    handler: Callable[[ActiveJob], Any]
    job: Job
    folder: OutputFolder
    notes: Notes
    credential: str | None = None


class Returned(NamedTuple):
    """What a handler gave back as JSON can carry it, the files it made, perhaps a warning."""

    value: Any
    made: list[Made]
    warning: str | None = None

    @classmethod
    def of(cls, value: Any, active: ActiveJob) -> Returned:
        """What the handler of `active` returned. What is too large for a row becomes a file."""
        if value is None:
            return cls(None, active.made)

        def keep(data: bytes) -> Made:
            with active.output(suffix_of(data)) as path:
                path.write_bytes(data)
            return active.made[-1]

        value, made, warning = plain_result(value, active.made, keep)
        if len(text := codec.encode(value)) > RESULT_BYTES_MAX:
            with active.output(".json") as path:
                path.write_text(secrets.redact_json(text), encoding="ascii")
            made.append(active.made[-1])
            value = {"file": made[-1].name}
            warning = f"the result has {len(text):,} bytes of JSON; it is kept as a file"
        return cls(value, made, warning)


class HandlerRaised(Exception):
    """A handler raised, in another process, or something that would end the pump's loop.

    `frames` tell where, from the outside in.
    """

    def __init__(self, error: BaseException, frames: list[tuple[str, int, str]]) -> None:
        super().__init__(message_of(error))
        self.error, self.frames = error, frames


class WorkerDied(Exception):
    """The process that ran the handler is gone; nobody knows how far it came."""


class Executor(Protocol):
    """Runs handlers, any number at a time."""

    can_stop: bool
    """True where cancelling `run` ends the work itself, not only the wait for it."""

    async def run(self, work: Work) -> Returned:
        """What the handler returned. What it raised is raised, WorkerDied if its process died.

        Cancelling ends the work where `can_stop`; elsewhere it sets the cancel flag and
        leaves the work to end by itself.
        """

    def close(self) -> None:
        """Ends whatever still runs, at once where that is possible."""
