"""Text with a separator: .csv and .tsv. Every cell is text: '007', 'NA' and '1e5' stay."""

from __future__ import annotations

import csv
import re
import threading
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import TypeAlias

from ..errors import SheetError
from ..job import PAYLOAD_BYTES_MAX
from .files import first_line, text_encoding
from .table import Bad, Reading, grid, header

__all__ = ["open_csv", "open_tsv"]

Line: TypeAlias = "tuple[int, list[str] | Bad]"
CELL_MAX = PAYLOAD_BYTES_MAX  # characters; a longer cell fits into no payload
SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}


def open_csv(path: Path) -> Reading:
    """The rows of a .csv file; the separator its header has most of is taken.

    A first line such as ``sep=;`` is Excel's own way to name it.
    """
    codec, words = text_encoding(path)
    first = _bare_header(path, codec)
    if told := re.fullmatch('sep=([^\\w\\s"]|\t)', first.rstrip("\r\n"), re.IGNORECASE):
        return _open(path, codec, words, told[1], skipped=1)
    return _open(path, codec, words, max(SEPARATORS, key=first.count))


def open_tsv(path: Path) -> Reading:
    """The rows of a .tsv file, separated by tabs and nothing else."""
    codec, words = text_encoding(path)
    first = _bare_header(path, codec)
    if "\t" not in first and re.search("[,;|]", first):
        raise SheetError(
            f"the header of {path.name} has no tab: {first.strip()[:60]!r}; if another separator"
            " stands between its columns, give the file the extension .csv",
            path=str(path),
        )
    return _open(path, codec, words, "\t")


def _open(path: Path, codec: str, words: str, separator: str, skipped: int = 0) -> Reading:
    has_quotes = _quotes_cells(path, codec, separator)
    lines = islice(_lines(path, codec, separator, has_quotes), skipped, None)
    number, first = next(lines, (0, []))
    if isinstance(first, Bad):
        raise SheetError(f"the header of {path.name} cannot be read: {first.reason}")
    names, notes = header(first, path.name)
    if not names:
        raise SheetError(f"{path.name} has only blank lines; expected a header and rows")
    word = SEPARATORS.get(separator, separator)
    said = f"{path.name} was read as {words}, with {word} between its columns"
    quotes = "" if has_quotes else "; quotation marks belong to the text"
    return Reading(
        path.name,
        grid(names, _checked(lines, len(first))),
        columns=names,
        notes=(f"{said}{quotes}.", *notes),
        empty=f"{path.name} has a header (line {number}) and no rows; expected a prompt a row",
    )


def _bare_header(path: Path, codec: str) -> str:
    """The header's line without what stands in quotation marks."""
    return re.sub(r'"[^"]*"?', "", first_line(path, codec))


_limiting = threading.Lock()


class _Reader:
    """csv's reader, for cells up to `CELL_MAX`. `line_num` as there, `last` is the line read last.

    How long a cell may be is one number for the whole process, which is the user's too: it is
    raised only while a record is read.
    """

    def __init__(self, file: Iterator[str], separator: str, has_quotes: bool) -> None:
        self.last = ""
        self._reader = csv.reader(
            self._lines(file),
            delimiter=separator,
            quoting=csv.QUOTE_MINIMAL if has_quotes else csv.QUOTE_NONE,
            strict=True,
        )

    def _lines(self, file: Iterator[str]) -> Iterator[str]:
        for self.last in file:
            yield self.last

    @property
    def line_num(self) -> int:
        return self._reader.line_num

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        with _limiting:
            before = csv.field_size_limit()
            if before >= CELL_MAX:
                return next(self._reader)
            csv.field_size_limit(CELL_MAX)
            try:
                return next(self._reader)
            finally:
                csv.field_size_limit(before)


def _quotes_cells(path: Path, codec: str, separator: str) -> bool:
    """Whether quotation marks at a cell's start enclose it, as csv has it.

    Files written without any quoting hold cells such as ``"BUZZ" on a wall``, which a csv
    reader would strip of their marks. They are told by both: as csv they are malformed, and
    as plain text every line has the header's number of cells.
    """
    with path.open(encoding=codec, newline="") as file:
        if not any(line.startswith('"') or separator + '"' in line for line in file):
            return True
    try:
        with path.open(encoding=codec, newline="") as file:
            for _ in _Reader(file, separator, has_quotes=True):
                pass
    except csv.Error:
        pass  # not csv as it should be; whether it is plain text is seen next
    else:
        return True
    with path.open(encoding=codec, newline="") as file:
        try:
            rows = filter(None, _Reader(file, separator, has_quotes=False))
            first: list[str] = next(rows, [])
            is_quoted = any(cell.startswith('"') for cell in first)
            return is_quoted or any(len(row) != len(first) for row in rows)
        except csv.Error:
            return True


def _lines(path: Path, codec: str, separator: str, has_quotes: bool) -> Iterator[Line]:
    """The records that are not blank, numbered as a spreadsheet would: blank ones count."""
    with path.open(encoding=codec, newline="") as file:
        reader = _Reader(file, separator, has_quotes)
        for number in count(1):
            began = reader.line_num + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                is_open = has_quotes and reader.last.count('"') % 2 == 1
                is_over = reader.line_num > began or is_open
                if "field limit" in str(error):
                    yield number, Bad(_too_long(began, is_over=is_over), kind="too long")
                else:
                    yield number, Bad(_malformed(began, reader.line_num, error))
                    is_over = reader.line_num > began
                if is_over:
                    # The quote that failed to close may have swallowed good rows, and what
                    # follows may be the middle of a cell: running that would be a guess.
                    return
            else:
                if any(map(str.strip, cells)):
                    yield number, cells


def _too_long(began: int, *, is_over: bool) -> str:
    text = f"a cell that begins in line {began} has more than {CELL_MAX:,} characters"
    if is_over:
        return f"{text}: is a quotation mark not closed? Nothing from here on was read"
    return f"{text}, the most a payload holds; store the text in a file and put its path"


def _malformed(began: int, at: int, error: csv.Error) -> str:
    if at > began:
        return (
            f"a quotation mark in line {began} is not closed as it should be (line {at}: {error});"
            " nothing from here on was read"
        )
    return f"line {at} is malformed: {error}; write a quotation mark inside a cell twice"


def _checked(lines: Iterator[Line], width: int) -> Iterator[Line]:
    """The same lines, where one with data beyond the header's cells is a problem."""
    for number, cells in lines:
        if not isinstance(cells, Bad) and len(cells) > width and any(map(str.strip, cells[width:])):
            found = len(cells)
            yield (
                number,
                Bad(
                    f"this row has {found} cells and the header {width}; put a cell that holds"
                    " the separator in quotation marks"
                ),
            )
        else:
            yield number, cells
