"""Durable steps: what a job does once in its life, however often it is tried.

The order is what makes a paid call safe. The intent is committed before the call, so that
a crash leaves a trace of it; the answer is kept in the receipts, synced, before it is
committed, so that a commit that fails loses nothing; only then is it used. An intent
without a receipt is in doubt: nobody here knows whether the call arrived, and it is not
made again until its provider or a person says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from . import codec, secrets
from .errors import (
    NOT_ACCEPTED,
    GiveUp,
    InDoubt,
    PayloadError,
    ProviderError,
    Snooze,
    UsageError,
)
from .job import Step
from .receipts import Receipts

__all__ = [
    "ATTACHED",
    "RENDER",
    "Channel",
    "checked",
    "handle_of",
    "once",
    "once_async",
    "was_not_accepted",
]

ATTACHED = "by you: attach"
"""The reason of a doubt that ended because a person said what the call gave."""

OURS = "vqkit:"
"""How the names of vqkit's own steps begin; a function's steps may not be called so."""

RENDER = OURS + "render"
"""The step that opens a render at a provider; its value carries the handle."""

log = secrets.logger("vqkit.steps")

T = TypeVar("T")

VALUE_BYTES_MAX = 64 * 1024
NAME_CHARS_MAX = 80


class Channel(Protocol):
    """How an attempt talks to the pump, from wherever it runs."""

    def post(self, verb: str, change: dict[str, Any]) -> None:
        """Hands on a stage or a log line; returns at once."""

    def is_cancelled(self) -> bool:
        """True once the user has asked for this job to stop."""

    def resolve(self, reference: str) -> str:
        """The key behind a reference, as the kernel knows it now. Raises CredentialError."""

    def call(self, verb: str, **arguments: Any) -> Any:
        """Does something with the job's steps and waits for it; not on the pump's loop."""

    async def acall(self, verb: str, **arguments: Any) -> Any:
        """The same on the pump's loop."""


def handle_of(name: str, value: Any) -> Any:
    """The handle of the render that a step's value opened; None if it opened none."""
    return value.get("handle") if name == RENDER and isinstance(value, dict) else None


def once(
    channel: Channel,
    receipts: Receipts,
    name: str,
    function: Callable[..., Any],
    paid: bool,
    *,
    keep: Callable[[Any], Any] = lambda value: value,
) -> Any:
    """See `ActiveJob.once`; for handlers that are plain functions.

    `keep` makes JSON of a value that is none and can be kept all the same.
    """
    step: Step
    step, is_old = channel.call("begin_step", name=name, is_paid=paid)
    if step.state == "done":
        return step.value
    if _was_begun(step, is_old):
        kept = _kept(receipts, step)
        channel.call("end_step", step=step, value_json=kept)
        return codec.loads(kept)
    _note_call(step)
    try:
        value_json = _value_json(step, keep(_start(step, function)))
    except BaseException as error:
        if was_not_accepted(step, error):
            if not _was_billed(error):
                channel.call("drop_step", step=step)
            _forget_call(step)
            raise
        raise _doubt(step, error) from error
    _keep_receipt(receipts, step, value_json)
    channel.call("end_step", step=step, value_json=value_json)
    _forget_call(step)
    return codec.loads(value_json)


async def once_async(
    channel: Channel,
    receipts: Receipts,
    name: str,
    function: Callable[..., Any],
    paid: bool,
    request_json: str | None = None,
    *,
    keep: Callable[[Any], Any] = lambda value: value,
) -> Any:
    """See `ActiveJob.once`; for coroutines."""
    step, is_old = await _begin(channel, name, paid, request_json)
    if step.state == "done":
        return step.value
    if _was_begun(step, is_old):
        kept = await _off_loop(_kept, receipts, step)
        return await asyncio.shield(_end(channel, step, kept))
    _note_call(step)
    try:
        value = _start(step, function)
        value = await value if inspect.isawaitable(value) else value
        is_large = isinstance(value, bytes | bytearray)
        value_json = "" if is_large else _value_json(step, keep(value))
    except BaseException as error:
        if was_not_accepted(step, error):
            if not _was_billed(error):
                await asyncio.shield(channel.acall("drop_step", step=step))
            _forget_call(step)
            raise
        raise _doubt(step, error) from error
    # From here on nothing may come between: a cancelled wait must not cost the answer.
    if is_large:
        return await _to_its_end(_keep_large(channel, receipts, step, value, keep))
    return await asyncio.shield(_keep(channel, receipts, step, value_json))


async def _begin(
    channel: Channel, name: str, is_paid: bool, request_json: str | None
) -> tuple[Step, bool]:
    """Begins a step. Cancelled meanwhile it takes the intent back: nothing was sent."""
    begun: asyncio.Future[tuple[Step, bool]] = asyncio.ensure_future(
        channel.acall("begin_step", name=name, is_paid=is_paid, request_json=request_json)
    )
    try:
        return await asyncio.shield(begun)
    except asyncio.CancelledError:
        step, is_old = await begun
        if is_paid and step.state == "intent" and not _was_begun(step, is_old):
            await channel.acall("drop_step", step=step)
        raise


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Waits for it even when cancelled meanwhile, and is cancelled only then."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({task})
        task.result()
        raise


async def _keep_large(
    channel: Channel, receipts: Receipts, step: Step, value: Any, keep: Callable[[Any], Any]
) -> Any:
    try:
        value_json = _value_json(step, await _off_loop(keep, value))
    except Exception as error:
        if not step.is_paid:
            raise
        raise _doubt(step, error) from error
    return await _keep(channel, receipts, step, value_json)


async def _keep(channel: Channel, receipts: Receipts, step: Step, value_json: str) -> Any:
    await _off_loop(_keep_receipt, receipts, step, value_json)
    return await _end(channel, step, value_json)


async def _end(channel: Channel, step: Step, value_json: str) -> Any:
    value = codec.loads(value_json)
    handle = handle_of(step.name, value)
    handle_json = None if handle is None else codec.dumps(handle, "handle")
    await channel.acall("end_step", step=step, value_json=value_json, handle_json=handle_json)
    _forget_call(step)
    return value


async def _off_loop(function: Callable[..., T], *args: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, function, *args)


def _keep_receipt(receipts: Receipts, step: Step, value_json: str) -> None:
    if not step.is_paid:
        return
    try:
        receipts.append(step, value_json)
    except OSError as error:
        # The commit that follows waits for room as long as it takes; both must not be lost.
        log.warning("job %s: its receipt could not be kept: %s", step.job, error)


def was_not_accepted(step: Step, error: BaseException) -> bool:
    """True where the error itself says that nothing was begun, or where nothing was paid."""
    if not step.is_paid or isinstance(error, GiveUp | Snooze):
        return True
    return isinstance(error, ProviderError) and error.kind in NOT_ACCEPTED


def _was_billed(error: BaseException) -> bool:
    """True for a refusal that costs money: its key stays on record, as its bill does."""
    if not isinstance(error, ProviderError):
        return False
    return error.kind == "moderated" and bool(error.is_billed)


def checked(name: Any) -> str:
    """The name of a function's own step, as it is stored. Raises UsageError for what is none.

    Text and nothing else: a number would come back as text, and be taken for a new step.
    """
    if not isinstance(name, str):
        raise UsageError(
            f"once({name!r}, …): a step's name is text and this is a {type(name).__name__};"
            f" give it a name such as {f'step {name}' if isinstance(name, int) else 'submit'!r}"
        )
    plain = str.__str__(name)  # of a StrEnum its value
    if not 0 < len(plain) <= NAME_CHARS_MAX or "\0" in plain or plain != codec.clean_text(plain):
        raise UsageError(
            f"once({plain!r}, …): expected a step's name, 1 to {NAME_CHARS_MAX} characters, none"
            " of them half a character or NUL"
        )
    if plain.startswith(OURS):
        raise UsageError(
            f"once({plain!r}, …): names that begin with {OURS!r} are vqkit's own; give the step"
            f" another name, such as {plain.removeprefix(OURS)!r}"
        )
    return plain


def _was_begun(step: Step, is_old: bool) -> bool:
    """True if it is a paid call that was made before, in an earlier try or in this one."""
    return bool(step.is_paid) and (is_old or (step.key, step.fence) in _calls)


def _kept(receipts: Receipts, step: Step) -> str:
    """What the call gave that was made before, by its receipt. Raises InDoubt without one."""
    kept = receipts.find({step.key}).get(step.key)
    if kept is None:
        raise InDoubt(
            f"an earlier try was sending {step.name!r} and never told its end; it may be paid for",
            step=step.name,
        )
    return kept


# Paid calls of this process that have begun and whose end is not kept, by key and fence: a
# handler that catches InDoubt, or asks twice at the same time, must not send twice.
_calls: set[tuple[str, int]] = set()


def _note_call(step: Step) -> None:
    if step.is_paid:
        _calls.add((step.key, step.fence))


def _forget_call(step: Step) -> None:
    _calls.discard((step.key, step.fence))


def _start(step: Step, function: Callable[..., Any]) -> Any:
    return function(step.key) if _takes_key(function) else function()


def _takes_key(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind("key")
    except (TypeError, ValueError):
        return False
    return True


def _value_json(step: Step, value: Any) -> str:
    """The value as JSON. What a paid call gave is kept as text rather than not at all."""
    try:
        value_json = codec.dumps(value, f"step {step.name!r}")
        if len(value_json) > VALUE_BYTES_MAX:
            raise PayloadError(
                f"step {step.name!r} gave {len(value_json):,} bytes of JSON; at most"
                f" {VALUE_BYTES_MAX:,} are kept. Write the data to a file and return its path."
            )
    except PayloadError as error:
        if not step.is_paid:
            raise
        log.warning("job %s: %s", step.job, error)
        return codec.dumps(
            {"repr": codec.clean_text(secrets.redact(repr(value)))[: VALUE_BYTES_MAX // 8]}
        )
    return value_json


def _doubt(step: Step, error: BaseException) -> InDoubt:
    if isinstance(error, InDoubt):  # it says itself what is known
        return InDoubt(str(error), step=step.name)
    return InDoubt(
        f"{step.name!r} was sent and ended in {type(error).__name__}: {error};"
        " it may have been accepted",
        step=step.name,
    )
