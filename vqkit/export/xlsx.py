"""Results as a workbook: openpyxl's streaming writer, and what a cell of one can hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from openpyxl import Workbook
from openpyxl.cell import WriteOnlyCell
from openpyxl.styles import Font

from .. import codec
from ..errors import UsageError
from .rows import Rows, as_text, is_whole
from .target import HALF, Changes

__all__ = ["CHARACTERS", "escaped", "pieces", "units", "write_xlsx"]

ROWS = 1_048_576
COLUMNS = 16_384
CHARACTERS = 32_767
DIGITS = 10**15  # of a longer number Excel shows zeros for the last digits
LONG_SHEET = "long texts"
LONG = f"longer than a cell can be; the whole text is in the sheet '{LONG_SHEET}'"
WIDE = "of more than 15 digits stand there as text, since Excel rounds longer numbers"
# What XML cannot hold, carriage returns, which it turns into line feeds, and underscores
# that a reader would take for the beginning of such an escape. Excel's own spelling.
UNABLE = "[\x00-\x08\x0b-\x1f\ufffe\uffff]"
ESCAPE = re.compile(f"_(?=x[0-9A-Fa-f]{{4}}(?:_|{UNABLE}))|{UNABLE}")


def write_xlsx(path: Path, rows: Rows, changes: Changes) -> None:
    """Writes the rows as the sheet "jobs"; texts longer than a cell, whole, on another one."""
    if len(rows.names) > COLUMNS:
        raise UsageError(
            f"a workbook holds {COLUMNS:,} columns, these are {len(rows.names):,}; save them as"
            " .jsonl"
        )
    if rows.count >= ROWS:
        raise UsageError(
            f"a workbook holds {ROWS - 1:,} jobs and the queue has {rows.count:,}; save them as"
            " .csv, .jsonl or .parquet"
        )
    book = _Book(changes)
    try:
        heads = [
            f"{name} ({book.zone})" if "time" in rows.kinds.get(name, ()) else name
            for name in rows.names
        ]
        book.jobs.append([book.cell(0, head, head, is_bold=True) for head in heads])
        for record in rows:
            job = record["job"]
            book.jobs.append([book.cell(job, name, record.get(name)) for name in rows.names])
    finally:
        book.close()  # or openpyxl complains of it later, where nobody can catch it
    book.book.save(path)


class _Book:
    """The workbook while it is written, a row at a time."""

    def __init__(self, changes: Changes) -> None:
        self.book = Workbook(write_only=True)
        self.jobs = self.book.create_sheet("jobs")
        self.jobs.freeze_panes = "B2"
        self.long: Any = None
        self.changes = changes
        self.bold = Font(bold=True)
        # A cell knows no zone, so the head says one: as far from UTC as it is here now.
        self.zone = timezone(datetime.now().astimezone().utcoffset() or timedelta(0))

    def cell(self, job: int, name: str, value: Any, *, is_bold: bool = False) -> Any:
        """The value as a workbook can hold it; what it cannot is noted."""
        if value is None or value == "" or isinstance(value, bool):
            return value
        if isinstance(value, datetime):
            return value.astimezone(self.zone).replace(tzinfo=None)
        if isinstance(value, int | float):
            if isinstance(value, float) or abs(value) < DIGITS:
                return self._typed(repr(value), "n")
            self.changes.note(job, name, WIDE)
        text = as_text(value)
        if not is_whole(text):
            self.changes.note(job, name, HALF)
            text = codec.clean_text(text)
        if units(shown := escaped(text)) > CHARACTERS:
            self._keep_long(job, name, text)
            mark = f" … [all {len(text):,} characters: sheet '{LONG_SHEET}']"
            shown = escaped(next(pieces(text, CHARACTERS - len(mark)))) + mark
        cell = self._typed(shown, "s")
        if text[0] in "=+-@":
            cell.quotePrefix = True  # or it would become a formula when somebody edits it
        if is_bold:
            cell.font = self.bold
        return cell

    def _typed(self, text: str, kind: str) -> Any:
        cell = WriteOnlyCell(self.jobs, text)
        # Or "=1+1" would be a formula and "#N/A" an error; and a float lose its last digit.
        cell.data_type = kind
        return cell

    def _keep_long(self, job: int, name: str, text: str) -> None:
        self.changes.note(job, name, LONG)
        if self.long is None:
            self.long = self.book.create_sheet(LONG_SHEET)
            self.long.append(["job", "column", "part", "text"])
        for number, piece in enumerate(pieces(text, CHARACTERS), 1):
            # A cell belongs to its row: one put into a second is written wrong.
            column, part = (self._typed(escaped(t)[:CHARACTERS], "s") for t in (name, piece))
            self.long.append([job, column, number, part])

    def close(self) -> None:
        for sheet in self.book.worksheets:
            sheet.close()


def escaped(text: str) -> str:
    """The text with what XML cannot hold in Excel's spelling, ``_x0001_``; nothing is lost."""
    return ESCAPE.sub(lambda match: f"_x{ord(match[0]):04X}_", text)


def pieces(text: str, limit: int) -> Iterator[str]:
    """The text in pieces that take at most `limit` units once they are escaped."""
    start = 0
    while start < len(text):
        size = limit
        while units(escaped(text[start : start + size])) > limit:
            size //= 2
        yield text[start : start + size]
        start += size


def units(text: str) -> int:
    """The length of a text as Excel counts it, in UTF-16 units."""
    return len(text) if text.isascii() else len(text) + sum(c > "\uffff" for c in text)
