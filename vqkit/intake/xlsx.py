"""Excel workbooks. Imported only when one is read: openpyxl takes a while to load.

The sheet's XML is read here, in one pass, and openpyxl gives the rest (sheets, shared texts,
which styles are dates). Its own read-only mode believes the sheet's stated dimension and
drops what lies outside, and shows a formula's text or its value but not both, so that a
formula never calculated would be taken for a blank cell.
"""

from __future__ import annotations

import mmap
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias
from xml.etree.ElementTree import Element, ParseError

from openpyxl import load_workbook
from openpyxl.utils.cell import column_index_from_string
from openpyxl.utils.datetime import from_excel, from_ISO8601
from openpyxl.xml.constants import SHEET_MAIN_NS
from openpyxl.xml.functions import iterparse

from ..errors import SheetError
from .files import is_old_office
from .table import Bad, Reading, grid, header, plain_cell

__all__ = ["open_xlsx"]

Line: TypeAlias = "tuple[int, list[Any]]"

SIZE_MAX = 1 << 30
ROWS_MAX = 1 << 20
RATIO_MAX = 200
RATIO_FROM = 16 << 20  # a small part may well be one text many times over, and harms nobody

DATA, ROW, VALUE, FORMULA, INLINE, TEXT, RUN = (
    f"{{{SHEET_MAIN_NS}}}{tag}" for tag in ("sheetData", "row", "v", "f", "is", "t", "r")
)
# How Excel writes a control character, such as the carriage return of a text pasted in.
ESCAPED = re.compile(r"_x(00[01][0-9A-Fa-f])_")


def open_xlsx(path: Path, sheet: str | None = None) -> Reading:
    """The rows of one sheet of a workbook: the first that is visible, unless `sheet` names one.

    Memory holds one row at a time, and the workbook's shared texts.
    """
    _refuse_other_than_workbooks(path)
    file = path.open("rb")
    try:
        return _open(path, file, sheet)
    except BaseException:
        file.close()  # openpyxl leaves it open; the rows, once there are any, close it
        raise


def _open(path: Path, file: BinaryIO, wanted: str | None) -> Reading:
    book = _load(path, file)
    sheet = _sheet(book, wanted, path)
    others = [other.title for other in book.worksheets if other is not sheet]
    also = f" (other sheets: {', '.join(map(repr, others))})" if others else ""
    source = f"{path.name}[{sheet.title}]" if others else path.name
    lines = _lines(file, book, sheet, source)
    number, first = next(lines, (0, []))
    names, notes = header(first, source)
    if not names:
        raise SheetError(
            f"the sheet {sheet.title!r} of {path.name} is empty{also}; expected a header and rows",
            path=str(path),
        )
    if others and wanted is None:
        notes = (f"The sheet {sheet.title!r} of {path.name} was read{also}.", *notes)
    return Reading(
        path.name,
        grid(names, lines),
        columns=names,
        source=source,
        sheet=sheet.title,
        notes=notes,
        empty=f"{source} has a header (row {number}) and no rows; expected a prompt a row",
    )


def _refuse_other_than_workbooks(path: Path) -> None:
    """Raises SheetError for what is no workbook, is locked, or would unpack without bounds."""
    with path.open("rb") as file:
        head = file.read(8)
        if is_old_office(head):
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
                is_locked = whole.find("EncryptedPackage".encode("utf-16-le")) >= 0
            _refuse_locked(path, is_locked)
            raise SheetError(
                f"{path.name} is an old Excel file (.xls) by its content; open it and save it"
                " as .xlsx",
                path=str(path),
            )
    try:
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
        is_cut = head.startswith(b"PK")
        raise SheetError(
            f"{path.name} is "
            + ("cut short or damaged" if is_cut else "not an Excel workbook")
            + ("; copy it again" if is_cut else "; if it is text, give it the extension .csv"),
            path=str(path),
        ) from error
    for part in parts:
        _refuse_locked(path, bool(part.flag_bits & 1))
        _refuse_bomb(path, part)


def _refuse_locked(path: Path, is_locked: bool) -> None:
    if is_locked:
        raise SheetError(
            f"{path.name} is protected by a password; open it in Excel and save it without one",
            path=str(path),
        )


def _refuse_bomb(path: Path, part: zipfile.ZipInfo) -> None:
    is_dense = part.file_size > RATIO_FROM and part.file_size > RATIO_MAX * part.compress_size
    if is_dense or part.file_size > SIZE_MAX:
        raise SheetError(
            f"{path.name} was not opened: its part {part.filename} unpacks from"
            f" {part.compress_size:,} to {part.file_size:,} bytes; at most {SIZE_MAX:,} and"
            f" {RATIO_MAX} times its size are read. Save the rows as .csv.",
            path=str(path),
            part=part.filename,
        )


def _load(path: Path, file: BinaryIO) -> Any:
    try:
        with warnings.catch_warnings():
            # openpyxl warns of what it would not write back; nothing is written back.
            warnings.simplefilter("ignore")
            return load_workbook(file, read_only=True, data_only=True, keep_links=False)
    except Exception as error:  # a damaged workbook makes openpyxl raise anything at all
        why = " ".join(str(error.__cause__ or error).split())
        raise SheetError(
            f"{path.name} cannot be read as a workbook ({why[:200] or type(error).__name__});"
            " open it in Excel or LibreOffice and save it again",
            path=str(path),
        ) from error


def _sheet(book: Any, wanted: str | None, path: Path) -> Any:
    sheets = book.worksheets
    if wanted is None:
        found = [sheet for sheet in sheets if sheet.sheet_state == "visible"] or sheets
    else:
        found = [sheet for sheet in sheets if sheet.title == wanted]
    if not found:
        titles = ", ".join(repr(sheet.title) for sheet in sheets)
        raise SheetError(
            f"{path.name} has no sheet {'with rows' if wanted is None else repr(wanted)};"
            f" its sheets: {titles or 'none'}",
            path=str(path),
        )
    return found[0]


def _lines(file: BinaryIO, book: Any, sheet: Any, source: str) -> Iterator[Line]:
    """The rows that are not blank, as the sheet numbers them, each up to its last cell."""
    cells = _Cells(
        sheet._shared_strings, book._date_formats, book._timedelta_formats, book.epoch, source
    )
    number = 0
    try:
        with book._archive.open(sheet._worksheet_path) as xml:
            for _, element in iterparse(xml):
                if element.tag == ROW:
                    number = int(float(element.get("r", number + 1)))
                    if number > ROWS_MAX:
                        raise ValueError(f"a row numbered {number}")
                    row = cells.row(element, number)
                    element.clear()
                    if any(plain_cell(cell) is not None for cell in row):
                        yield number, row
                elif element.tag == DATA:
                    return
    except (
        ParseError,
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        ValueError,
        OverflowError,
    ) as error:
        raise SheetError(
            f"{source} is damaged after row {number} ({error}); open it in Excel or LibreOffice"
            " and save it again",
            row=number,
        ) from error
    finally:
        file.close()


@dataclass(frozen=True, slots=True)
class _Cells:
    """Reads cells with what a workbook keeps outside its sheets."""

    shared: Sequence[str]
    dates: set[int]
    durations: set[int]
    epoch: datetime
    source: str

    def row(self, element: Element, number: int) -> list[Any]:
        row: list[Any] = []
        index = -1
        for cell in element:
            reference = cell.get("r")
            # A cell without a reference follows the one before it.
            index = _index(reference) if reference else index + 1
            value = self.value(cell, reference or f"in row {number}")
            if value is not None:
                row.extend([None] * (index + 1 - len(row)))
                row[index] = value
        return row

    def value(self, cell: Element, where: str) -> Any:
        kind = cell.get("t", "n")
        text = _inline(cell) if kind == "inlineStr" else cell.findtext(VALUE)
        if not text:
            # A formula that gives '' is of kind "str"; one never calculated is of none.
            if kind != "str" and cell.find(FORMULA) is not None:
                return Bad(
                    f"cell {where} holds a formula without a stored value; open {self.source}"
                    " in Excel or LibreOffice and save it, so that it is calculated"
                )
            return None
        try:
            return self._typed(kind, text, cell, where)
        except (ValueError, IndexError, OverflowError) as error:
            return Bad(f"cell {where} holds {text[:40]!r}, which cannot be read ({error})")

    def _typed(self, kind: str, text: str, cell: Element, where: str) -> Any:
        if kind == "s":
            return _unescaped(self.shared[int(text)])
        if kind in ("str", "inlineStr"):
            return _unescaped(text)
        if kind == "b":
            return text in ("1", "true")
        if kind == "e":
            return Bad(f"cell {where} holds the error {text}; correct it in the sheet")
        if kind == "d":
            return from_ISO8601(text)  # type: ignore[no-untyped-call]
        number = float(text) if any(mark in text for mark in ".eE") else int(text)
        style = int(cell.get("s", 0))
        if style not in self.dates:
            return number
        if number < 0:
            raise ValueError("a date before 1900")
        return from_excel(number, self.epoch, timedelta=style in self.durations)


def _index(reference: str) -> int:
    return column_index_from_string(reference.rstrip("0123456789")) - 1


def _inline(cell: Element) -> str:
    """The text of an inline string, its formatted runs joined, its phonetic guide left out."""
    texts = (*cell.findall(f"{INLINE}/{TEXT}"), *cell.findall(f"{INLINE}/{RUN}/{TEXT}"))
    return "".join(text.text or "" for text in texts)


def _unescaped(text: str) -> str:
    return ESCAPED.sub(lambda match: chr(int(match[1], 16)), text) if "_x00" in text else text
