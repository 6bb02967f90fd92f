"""Dataframes, through narwhals, and iterables of dicts. Rows are numbered from 1."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..errors import SheetError
from .jsonl import as_record
from .table import Reading, Record, grid, header, plain_cell

__all__ = ["open_memory"]

EXPECTED = "a file's path, a dataframe (pandas, polars, pyarrow), or a list of dicts"


def open_memory(source: Any) -> Reading:
    """The rows of a dataframe, or of an iterable of dicts."""
    if isinstance(source, Mapping):
        raise SheetError(f"found one dict; expected {EXPECTED}. For one row: [{{…}}]")
    is_list = isinstance(source, list | tuple) and bool(source)
    if is_list and not any(isinstance(item, Mapping) for item in source[:100]):
        kind = type(source[0]).__name__
        raise SheetError(f"found a list of {kind}; expected {EXPECTED}: [{{'prompt': …}}, …]")
    if isinstance(source, list | tuple | Iterator):
        return Reading("rows", _records(source))
    return _frame(source) or _iterable(source)


def _iterable(source: Any) -> Reading:
    if isinstance(source, Iterable) and not isinstance(source, bytes | bytearray):
        return Reading("rows", _records(source))
    raise SheetError(f"found a {type(source).__name__}; expected {EXPECTED}")


def _records(source: Iterable[Any]) -> Iterator[Record]:
    for number, item in enumerate(source, 1):
        yield number, as_record(item)


def _frame(source: Any) -> Reading | None:
    import narwhals as nw

    try:
        frame = nw.from_native(source, pass_through=True, allow_series=True)
    except nw.exceptions.DuplicateError as error:
        raise SheetError(f"the dataframe has two columns of one name: {error}") from error
    if isinstance(frame, nw.LazyFrame):
        frame = frame.collect()
    if isinstance(frame, nw.Series):
        raise SheetError(f"found a single column; expected {EXPECTED}. Try .to_frame()")
    if not isinstance(frame, nw.DataFrame):
        return None
    names, notes = header(frame.columns, "the dataframe")
    index = [name for name in getattr(getattr(source, "index", None), "names", ()) if name]
    if index:
        notes += (f"The index {index} was left out; reset_index() makes it a column.",)
    return Reading("dataframe", grid(names, _rows(frame)), columns=names, notes=notes)


def _rows(frame: Any) -> Iterator[tuple[int, tuple[Any, ...]]]:
    for number, row in enumerate(frame.iter_rows(), 1):
        if any(plain_cell(cell) is not None for cell in row):
            yield number, row
