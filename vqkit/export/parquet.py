"""Results as a Parquet file: every column of one kind, in groups of rows."""

from __future__ import annotations

from collections.abc import Set
from itertools import islice
from pathlib import Path
from typing import Any

from .. import codec
from ..errors import UsageError
from .rows import Record, Rows, as_text, is_whole, plain
from .target import HALF, Changes

__all__ = ["write_parquet"]

GROUP = 2000


def write_parquet(path: Path, rows: Rows, changes: Changes) -> None:
    """Writes the rows. A column of several kinds is JSON, and its field's metadata say so."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UsageError(
            "a .parquet file needs pyarrow: pip install pyarrow, or save as .jsonl"
        ) from error
    kinds = {name: _kind(rows.kinds.get(name, set())) for name in rows.names}
    types = {
        "bool": pa.bool_(),
        "float": pa.float64(),
        "int": pa.int64(),
        "json": pa.string(),
        "text": pa.string(),
        "time": pa.timestamp("ms", "UTC"),
    }
    schema = pa.schema(
        pa.field(name, types[kind], metadata={"vqkit": "json"} if kind == "json" else None)
        for name, kind in kinds.items()
    )
    records = iter(rows)
    with pq.ParquetWriter(path, schema) as writer:
        while group := list(islice(records, GROUP)):
            columns = [
                pa.array([_value(r, name, kinds[name], changes) for r in group], types[kinds[name]])
                for name in rows.names
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))


def _kind(kinds: Set[str]) -> str:
    if kinds <= {"int", "wide"} and kinds:
        return "int"
    if kinds == {"int", "float"}:
        return "float"
    return next(iter(kinds), "text") if len(kinds) < 2 else "json"


def _value(record: Record, name: str, kind: str, changes: Changes) -> Any:
    value = record.get(name)
    if value is None or kind not in ("text", "json"):
        return value
    text = codec.encode(plain(value)) if kind == "json" else as_text(value)
    if is_whole(text):
        return text
    changes.note(record["job"], name, HALF)
    return codec.clean_text(text)
