"""What was asked of a queue, checked: one sentence for each way to get it wrong."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from .. import codec
from ..clock import END_S, as_ms
from ..errors import UsageError
from ..job import STATUSES, Job

__all__ = ["Which", "age_ms", "moment", "pandas", "statuses", "text", "utc", "whole"]

Which = int | str | Job


def statuses(status: str | Iterable[str] | None) -> tuple[str, ...]:
    """One status or several, as a tuple; none for None."""
    if status is None:
        return ()
    wanted = (status,) if isinstance(status, str) else tuple(status)
    if unknown := [one for one in wanted if one not in STATUSES]:
        raise UsageError(f"no status {unknown[0]!r}; known: {', '.join(STATUSES)}")
    return wanted


def whole(name: str, value: Any, low: int, high: int) -> int:
    """A whole number within these bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UsageError(f"{name} {value!r}: expected a whole number from {low:,} to {high:,}")
    return int(value)


def text(name: str, value: Any) -> str | None:
    """Some text that can be stored, or None."""
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{name} {value!r}: expected some text, or None")
    return str(codec.plain(value, name))


def age_ms(name: str, age: timedelta | float) -> int:
    """A length of time, a timedelta or seconds from 0, as milliseconds."""
    seconds: Any = age.total_seconds() if isinstance(age, timedelta) else age
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds < END_S:
        raise UsageError(
            f"{name} {age!r}: expected a timedelta such as timedelta(days=30), or seconds from 0"
        )
    return int(seconds * 1000)


def moment(name: str, when: datetime | str | float | None) -> int | None:
    """A time as UTC milliseconds, or None."""
    try:
        return as_ms(when)
    except (ValueError, OverflowError, TypeError) as error:
        raise UsageError(
            f"{name} {when!r}: expected a datetime, ISO text such as 2026-12-01T08:00, or Unix"
            " seconds, within the years 1 to 9999"
        ) from error


def utc(ms: int | None) -> datetime | None:
    """UTC milliseconds as a datetime, or None."""
    from datetime import UTC

    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


def pandas(what: str) -> Any:
    """The pandas module, for what gives a frame."""
    try:
        import pandas as pd
    except ImportError as error:
        raise UsageError(f"{what} needs pandas: pip install pandas") from error
    return pd
