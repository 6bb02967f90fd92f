"""A text file: a prompt a line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..errors import SheetError
from .files import first_line, text_encoding
from .table import Reading, Record

__all__ = ["open_text"]


def open_text(path: Path) -> Reading:
    """The lines of a text file that are not blank, each a `prompt`."""
    codec, words = text_encoding(path)
    first = first_line(path, codec).strip()
    if "\t" in first:  # what Excel calls "Unicode text" is a table with the extension .txt
        raise SheetError(
            f"the first line of {path.name} has tabs in it: {first[:60]!r}; if it is the header"
            " of a table, give the file the extension .tsv",
            path=str(path),
        )
    return Reading(
        path.name,
        _lines(path, codec),
        columns=("prompt",),
        notes=(f"{path.name} was read as {words}, a prompt a line.",),
        empty=f"{path.name} has only blank lines; expected a prompt a line",
    )


def _lines(path: Path, codec: str) -> Iterator[Record]:
    with path.open(encoding=codec) as file:
        for number, line in enumerate(file, 1):
            if not line.isspace():
                yield number, {"prompt": line.rstrip("\n")}
