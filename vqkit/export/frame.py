"""Records as a pandas DataFrame. Imported only when one is asked for."""

from __future__ import annotations

from typing import Any

import pandas as pd

from .rows import Record, kind

__all__ = ["frame_of"]


def frame_of(records: list[Record]) -> pd.DataFrame:
    """A frame with the records' columns, its index the jobs' numbers; empty without records.

    pandas would make floats of whole numbers beside holes or fractions, and so lose the
    digits of long ones.
    """
    if not records:
        return pd.DataFrame()
    start = list(records[0]).index("status")
    stands = list(records[0])[start:]
    payload = dict.fromkeys(name for r in records for name in list(r)[1 : -len(stands)])
    columns = {name: _column([r.get(name) for r in records]) for name in [*payload, *stands]}
    return pd.DataFrame(columns, index=pd.Index([r["job"] for r in records], name="job"))


def _column(values: list[Any]) -> Any:
    kinds = {kind(value) for value in values if value is not None}
    if kinds and kinds <= {"int", "wide"}:
        return pd.array(values, dtype="Int64" if None in values else "int64")
    if kinds == {"bool"}:
        return pd.array(values, dtype="boolean" if None in values else "bool")
    if kinds in ({"float"}, {"int", "float"}, {"text"}, {"time"}):
        return values
    return pd.Series(values, dtype=object).array  # whatever they are, each stays what it is
