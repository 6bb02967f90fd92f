"""A plain function as a provider, under its own name or one given to it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any, Literal

from ..errors import HandlerError
from .base import ExecutorKind

__all__ = ["FunctionProvider", "function_provider", "name_of"]


@dataclass(frozen=True)
class FunctionProvider:
    """A function that gets the job and returns its result.

    `is_by_steps` if its own code marks its paid calls: before the first, nothing is spent.
    """

    name: str
    handler: Callable[..., Any]
    executor: ExecutorKind
    is_by_steps: bool = False


def function_provider(
    function: Callable[..., Any],
    name: str | None = None,
    executor: Literal["auto", "async", "thread", "process"] = "auto",
) -> FunctionProvider:
    """The provider that calls `function` with the job.

    ``"auto"`` runs ``async def`` on the pump's loop and plain functions on threads, unless
    the function says otherwise by an attribute `executor`. Raises HandlerError for what
    cannot be called with exactly one argument, the job.
    """
    if not callable(function):
        raise HandlerError(
            f"a handler is a function called with the job; this is a {type(function).__name__}"
        )
    shown = name or name_of(function)
    _check_signature(function, shown)
    is_async = _is_async(function)
    if executor == "auto":
        executor = getattr(function, "executor", None) or ("async" if is_async else "thread")
    if executor not in ("async", "thread", "process"):
        raise HandlerError(f"executor {executor!r}: expected auto, async, thread or process")
    if is_async != (executor == "async"):
        kind = "an async def function" if is_async else "a plain function"
        fitting = "'async'" if is_async else "'thread' or 'process'"
        raise HandlerError(f"{shown} is {kind}; its executor is {fitting}, not {executor!r}")
    return FunctionProvider(shown, function, executor, _marks_paid_calls(function))


def _marks_paid_calls(function: Callable[..., Any]) -> bool:
    """True if ``once(…, paid=True)`` stands in its code, or in a function inside it."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    function = function if hasattr(function, "__code__") else getattr(function, "__call__")  # noqa: B004, B009
    codes = [getattr(function, "__code__", None)]
    for code in codes:  # grows as it goes
        if isinstance(code, CodeType):
            known = code.co_consts
            is_marked = ("paid",) in known and any(value is True for value in known)
            if is_marked and "once" in code.co_names:
                return True
            codes += [value for value in known if isinstance(value, CodeType)]
    return False


def name_of(function: Callable[..., Any]) -> str:
    """The name a function has as a provider, unless it is given another."""
    shown = str(getattr(function, "__name__", None) or type(function).__name__)
    return "lambda" if shown == "<lambda>" else shown


def _is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object whose __call__ is async
    )


def _check_signature(function: Callable[..., Any], shown: str) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some builtins tell nothing: let the first call decide
        return
    try:
        signature.bind(object())
    except TypeError as error:
        raise HandlerError(
            f"{shown}{signature} cannot be called with one argument, the job ({error});"
            f" write it as: def {'render' if shown == 'lambda' else shown}(job): …"
        ) from error
