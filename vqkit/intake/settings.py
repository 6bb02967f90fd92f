"""Columns that say how a row is run rather than what: `priority`, `samples`, `key`, …

They are known by these names, in lower case, exactly; every other column is payload.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

from .. import clock, codec
from ..errors import UsageError
from ..job import JobSpec
from .table import Row

__all__ = ["SETTINGS", "spec_of", "take"]

Reader: TypeAlias = Callable[[Any], Any]

# What pandas writes for integers in a column with holes is "5.0".
WHOLE = re.compile(r"[+-]?[0-9]{1,19}(\.0+)?")
# Smaller numbers are a spreadsheet's dates that were never formatted as dates.
EPOCH_S_MIN = 100_000_000
EPOCH_S_MAX = 253_402_300_800  # the year 10000, which no date can hold
TIMEOUT_S_MAX = 366 * 86400


def _whole(low: int, high: int) -> Reader:
    def read(value: Any) -> int:
        if isinstance(value, str) and WHOLE.fullmatch(value.strip()):
            value = int(value.strip().partition(".")[0])
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return value

    return read


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("text")
    return str(codec.plain(str(value).strip(), "it"))


def _moment(value: Any) -> int:
    try:
        if isinstance(value, bool | str) or EPOCH_S_MIN <= value < EPOCH_S_MAX:
            moment = clock.as_ms(value)
            if moment is not None:
                return moment
    except (ValueError, TypeError, OverflowError, OSError):
        pass  # said below, once for all of them
    raise ValueError("a date and time such as 2026-05-01 09:30")


def _seconds(value: Any) -> int:
    try:
        seconds = -1.0 if isinstance(value, bool) else float(value)
    except (ValueError, TypeError):
        seconds = -1.0
    if not 0.001 <= seconds <= TIMEOUT_S_MAX:
        raise ValueError("seconds, more than 0 and at most a year")
    return round(seconds * 1000)


SETTINGS: dict[str, tuple[str, Reader]] = {
    "priority": ("priority", _whole(-1_000_000_000, 1_000_000_000)),
    "samples": ("samples", _whole(1, 1000)),
    "provider": ("provider", _text),
    "account": ("account", _text),
    "max_attempts": ("max_attempts", _whole(1, 1000)),
    "not_before": ("not_before_ms", _moment),
    "expires": ("expires_ms", _moment),
    "timeout_s": ("timeout_ms", _seconds),
    "key": ("key", _text),
    "seed": ("seed", _whole(0, 2**63 - 1)),
}


_PAYLOAD, _ROW, _ENCODED = map(JobSpec._fields.index, ("payload", "row", "encoded"))


def take(name: str, value: Any) -> Any:
    """The setting `name` as a JobSpec holds it. Raises UsageError for a value it cannot have."""
    try:
        return SETTINGS[name][1](value)
    except ValueError as error:
        raise UsageError(
            f"{name} is {value!r}; expected {error}. Correct it, or leave it blank.",
            setting=name,
            kind="wrong setting",
        ) from error


def spec_of(row: Row, base: JobSpec) -> JobSpec:
    """The job a row asks for, on top of `base`. Raises UsageError where it cannot be run."""
    payload, changes = {}, {}
    for name, value in row.values.items():
        if name in SETTINGS:
            changes[SETTINGS[name][0]] = take(name, value)
        else:
            payload[name] = value
    if not payload:
        raise UsageError(
            "there is nothing to run in this row: every cell but settings is blank",
            kind="nothing to run",
        )
    plain = codec.plain(payload)
    fields = list(base)
    fields[_PAYLOAD], fields[_ROW], fields[_ENCODED] = plain, row.number, codec.encoded(plain)
    for name, value in changes.items():
        fields[JobSpec._fields.index(name)] = value
    spec = JobSpec._make(fields)
    if spec.expires_ms is not None and spec.expires_ms <= (spec.not_before_ms or 0):
        raise UsageError(
            "this row expires before its not_before; exchange or correct them", kind="wrong setting"
        )
    return spec
