"""Every error vqkit raises, in one tree.

::

    VqkitError
    ├── UsageError (ValueError)      what was asked cannot be done as asked
    │   ├── PayloadError             a payload or result that JSON cannot carry
    │   ├── SheetError               a sheet that cannot be read as rows of prompts
    │   ├── HandlerError             a handler vqkit cannot call
    │   ├── UnknownName (LookupError)  no such job, account, provider or batch
    │   └── MissingCell (KeyError)   a payload that has no such column
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
    ├── ProviderError                what a provider said; its `kind` decides what happens
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

import copy
import sys
from types import TracebackType
from typing import Any, Literal

__all__ = [
    "CredentialError",
    "GiveUp",
    "HandlerError",
    "InDoubt",
    "JobCancelled",
    "JobsFailed",
    "LifecycleError",
    "MissingCell",
    "NewerDatabase",
    "NotAQueue",
    "PayloadError",
    "ProviderError",
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


def in_short(error: BaseException) -> list[str]:
    """What IPython shows of an error of use: the user's own lines and the sentence.

    It asks for it under the name ``_render_traceback_``. Where the error comes from in vqkit
    is shown with ``%xmode Verbose``.
    """
    view = sys.modules["IPython"].get_ipython().InteractiveTB
    is_whole, shown, trace = view.mode == "Verbose", error, error.__traceback__
    if not is_whole:
        frames = []
        while trace is not None and not trace.tb_frame.f_code.co_filename.startswith(_HERE):
            frames.append(trace)
            trace = trace.tb_next
        trace = None
        for kept in reversed(frames):
            trace = TracebackType(trace, kept.tb_frame, kept.tb_lasti, kept.tb_lineno)
        shown = copy.copy(error)  # without the errors that led to it
    lines: list[str] = view.structured_traceback(
        type(error), shown, trace, tb_offset=view.tb_offset
    )
    return lines


_HERE = __file__.removesuffix("errors.py")


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

    _render_traceback_ = in_short


class PayloadError(UsageError):
    """A payload or result holds something JSON cannot carry; ``where`` names the place."""


class SheetError(UsageError):
    """A sheet or file that cannot be read as rows of prompts."""


class HandlerError(UsageError):
    """A handler that vqkit cannot call with one argument, the job."""


class UnknownName(UsageError, LookupError):
    """No job, account, provider or batch of that name."""


class MissingCell(UsageError, KeyError):
    """A payload has no such column, or its cell was blank."""

    def __str__(self) -> str:  # a KeyError shows the repr of its text
        return str(self.args[0]) if self.args else ""


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

    _render_traceback_ = in_short


class StaleFence(LifecycleError):
    """A write by an attempt that no longer holds the job; it changed nothing."""


class PumpError(VqkitError):
    """The pump has stopped and hands out no more work; ``__cause__`` says why."""


class InDoubt(VqkitError):
    """A paid call may or may not have been made. It is not made again until somebody knows."""


ProviderErrorKind = Literal[
    "invalid",  # the request is wrong: failing again is certain
    "moderated",  # the provider will not render this
    "auth",  # the key is not, or no longer, accepted
    "no_funds",  # the account's balance is used up
    "quota",  # the account's allowance for the day or month is used up
    "rate",  # too many requests: not before `retry_after_s`
    "concurrency",  # too many renders at once on this account
    "not_sent",  # it certainly did not reach the provider (no name, refused, TLS)
    "unknown",  # it may have: a time-out or reset after sending, a 5xx
    "render_failed",  # the render ended badly
    "result_gone",  # the link to the result does not work (any more)
    "key_reused",  # idempotency `reject`: this key has been used before
    "provider_gone",  # the model or the whole provider was retired
]

NOT_ACCEPTED: frozenset[str] = frozenset(
    "invalid moderated auth no_funds quota rate concurrency not_sent provider_gone".split()  # noqa: SIM905
)
"""Kinds that say for certain that no render was begun."""


class ProviderError(VqkitError):
    """Something a provider said, or did not say. `kind` decides what vqkit does about it.

    `retry_after_s` is the provider's own word; at most a day of it is waited. `is_billed` is
    None where nobody knows.
    """

    def __init__(
        self,
        message: str,
        kind: ProviderErrorKind = "unknown",
        *,
        retry_after_s: float | None = None,
        is_billed: bool | None = None,
        **facts: Any,
    ) -> None:
        super().__init__(
            message, kind=kind, retry_after_s=retry_after_s, is_billed=is_billed, **facts
        )

    @property
    def kind(self) -> ProviderErrorKind:
        """One of `ProviderErrorKind`."""
        kind: ProviderErrorKind = self.facts["kind"]
        return kind


class CredentialError(VqkitError):
    """A credential reference that gives no key on this machine. Never contains the key."""

    _render_traceback_ = in_short


class JobsFailed(VqkitError):
    """Some jobs did not complete. ``failed`` lists the numbers of the newest that failed."""

    _render_traceback_ = in_short


class Signal(Exception):
    """What a handler raises to tell the pump more than "this attempt failed"."""


class GiveUp(Signal):
    """Retrying cannot help: the job fails at once, for the reason given.

    `cost` is what the try has cost, in dollars, 0 where nobody was called; without it the
    account's price counts as spent, for nobody can know. A function that marks its paid calls
    need not say so before the first of them.
    """

    def __init__(self, reason: str = "the handler gave up", cost: float | None = None) -> None:
        is_number = isinstance(cost, int | float) and not isinstance(cost, bool)
        if cost is not None and not (is_number and 0 <= cost < 10**9):
            raise UsageError(f"GiveUp(…, cost={cost!r}): expected dollars, from 0", cost=cost)
        self.reason, self.cost = str(reason), cost
        super().__init__(self.reason)


class Snooze(Signal):
    """Not now: the job returns to the queue for ``delay_s`` seconds and no attempt is spent."""

    def __init__(self, delay_s: Any, reason: str = "snoozed") -> None:
        is_number = isinstance(delay_s, int | float) and not isinstance(delay_s, bool)
        if not is_number or not 0 <= delay_s < 10 * 366 * 86400:
            raise UsageError(
                f"Snooze({delay_s!r}): expected seconds from 0 up to ten years", delay_s=delay_s
            )
        self.delay_s, self.reason = float(delay_s), str(reason)
        super().__init__(self.delay_s, self.reason)


class JobCancelled(Signal):
    """The user asked for this job to stop; let it pass through your handler."""
