"""Every error vqkit raises, in one tree.

::

    VqkitError
    ├── UsageError (ValueError)      what was asked cannot be done as asked
    │   ├── PayloadError             a payload or result that JSON cannot carry
    │   ├── SheetError               a sheet that cannot be read as rows of prompts
    │   ├── HandlerError             a handler vqkit cannot call
    │   └── UnknownName (LookupError)  no such job, account, provider or batch
    ├── StoreError                   the database
    │   ├── NotAQueue                the file is not a vqkit database
    │   ├── NewerDatabase            written by a newer vqkit
    │   ├── StoreReadOnly            the folder or file cannot be written
    │   ├── StoreBusy                another process holds the database
    │   ├── StoreFull                no room left on the disk
    │   └── StoreLost                the file was moved, replaced or closed under us
    ├── LifecycleError               a verb that the job's status does not allow
    │   └── StaleFence               a write by somebody who no longer holds the job
    ├── PumpError                    the pump has stopped; ``__cause__`` says why
    ├── InDoubt                      a paid call whose answer was lost; only its provider knows
    ├── CredentialError              a credential reference that gives no key
    └── JobsFailed                   raised by ``Summary.check()`` and ``Queue.check()``

    Signal                           raised *by* handlers, understood by the pump
    ├── GiveUp                       retrying cannot help: fail at once
    ├── Snooze                       not now: come back later, no attempt spent
    └── JobCancelled                 raised by ``job.check_cancelled()``

An error's facts are attributes (``error.facts`` holds them all), the driver's own
error is its ``__cause__``, and every error survives pickling.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "CredentialError",
    "GiveUp",
    "HandlerError",
    "InDoubt",
    "JobCancelled",
    "JobsFailed",
    "LifecycleError",
    "NewerDatabase",
    "NotAQueue",
    "PayloadError",
    "PumpError",
    "SheetError",
    "Signal",
    "Snooze",
    "StaleFence",
    "StoreBusy",
    "StoreError",
    "StoreFull",
    "StoreLost",
    "StoreReadOnly",
    "UnknownName",
    "UsageError",
    "VqkitError",
]


def _rebuild(cls: type[VqkitError], message: str, facts: dict[str, Any]) -> VqkitError:
    return cls(message, **facts)


class VqkitError(Exception):
    """Something vqkit found wrong. ``facts`` are also attributes of the error."""

    def __init__(self, message: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.facts = facts

    def __getattr__(self, name: str) -> Any:
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), self.facts)


class UsageError(VqkitError, ValueError):
    """What was asked cannot be done as asked; the message says what can."""


class PayloadError(UsageError):
    """A payload or result holds something JSON cannot carry; ``where`` names the place."""


class SheetError(UsageError):
    """A sheet or file that cannot be read as rows of prompts."""


class HandlerError(UsageError):
    """A handler that vqkit cannot call with one argument, the job."""


class UnknownName(UsageError, LookupError):
    """No job, account, provider or batch of that name."""


class StoreError(VqkitError):
    """The database could not do what it was asked. Nothing half-done was kept."""


class NotAQueue(StoreError):
    """The file exists and is not a vqkit database; it was left untouched."""


class NewerDatabase(StoreError):
    """The database was written by a newer vqkit; it was left untouched."""


class StoreReadOnly(StoreError):
    """The database, or the folder it needs for its log, cannot be written."""


class StoreBusy(StoreError):
    """Another process holds the database; the message names its pid where known."""


class StoreFull(StoreError):
    """The disk has no room left. What was committed before is safe."""


class StoreLost(StoreError):
    """The database file was moved, replaced, deleted, or this queue was closed."""


class LifecycleError(VqkitError):
    """The job's status does not allow the verb. ``job_id``, ``status``, ``verb`` say which."""


class StaleFence(LifecycleError):
    """A write by an attempt that no longer holds the job; it changed nothing."""


class PumpError(VqkitError):
    """The pump has stopped and hands out no more work; ``__cause__`` says why."""


class InDoubt(VqkitError):
    """A paid call may or may not have been made. It is not made again until somebody knows."""


class CredentialError(VqkitError):
    """A credential reference that gives no key on this machine. Never contains the key."""


class JobsFailed(VqkitError):
    """Some jobs did not complete. ``failed`` lists their ids."""


class Signal(Exception):
    """What a handler raises to tell the pump more than "this attempt failed"."""


class GiveUp(Signal):
    """Retrying cannot help: the job fails at once, for the reason given."""

    def __init__(self, reason: str = "the handler gave up") -> None:
        self.reason = str(reason)
        super().__init__(self.reason)


class Snooze(Signal):
    """Not now: the job returns to the queue for ``delay_s`` seconds and no attempt is spent."""

    def __init__(self, delay_s: float, reason: str = "snoozed") -> None:
        if not 0 <= delay_s < 10 * 366 * 86400:
            raise UsageError(
                f"Snooze({delay_s!r}): expected seconds from 0 up to ten years", delay_s=delay_s
            )
        self.delay_s, self.reason = float(delay_s), str(reason)
        super().__init__(self.delay_s, self.reason)


class JobCancelled(Signal):
    """The user asked for this job to stop; let it pass through your handler."""
