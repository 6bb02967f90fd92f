"""Excel workbooks. Imported only when one is read: openpyxl takes a while to load.

The sheet's XML is read here, in one pass, and openpyxl gives the rest (sheets, shared texts,
which styles are dates). Its own read-only mode believes the sheet's stated dimension and
drops what lies outside, and shows a formula's text or its value but not both, so that a
formula never calculated would be taken for a blank cell.
"""

from __future__ import annotations

import re
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias
from xml.parsers.expat import ExpatError, ParserCreate

from openpyxl.reader.excel import ExcelReader
from openpyxl.styles.stylesheet import apply_stylesheet
from openpyxl.utils.cell import column_index_from_string
from openpyxl.utils.datetime import WINDOWS_EPOCH, from_excel, from_ISO8601
from openpyxl.xml.constants import SHARED_STRINGS, SHEET_MAIN_NS

from ..errors import SheetError
from .files import refuse_bombs
from .marks import Marks, marks_of
from .table import Bad, Reading, grid, header, number_of, plain_cell

__all__ = ["open_xlsx"]

Line: TypeAlias = "tuple[int, list[Any] | Bad]"

ROWS_MAX = 1 << 20

CHUNK = 1 << 16
TRUE = ("1", "true")

DATA, ROW, COLUMN, CELL, VALUE, FORMULA, TEXT, PHONETIC, ITEM = (
    f"{SHEET_MAIN_NS} {tag}" for tag in ("sheetData", "row", "col", "c", "v", "f", "t", "rPh", "si")
)
# How Excel writes a control character, such as the carriage return of a text pasted in.
ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")
COLUMNS: dict[str, int] = {}


def open_xlsx(path: Path, sheet: str | None = None, *, hidden: bool = False) -> Reading:
    """The rows of one sheet of a workbook: the first that is visible, unless `sheet` names one.

    Hidden rows are problems, unless `hidden` asks for them. Memory holds a few rows at a
    time, and the workbook's shared texts.
    """
    refuse_bombs(path)
    file = path.open("rb")
    try:
        return _open(path, file, sheet, hidden=hidden)
    except BaseException:
        file.close()  # openpyxl leaves it open; the rows, once there are any, close it
        raise


def _open(path: Path, file: BinaryIO, wanted: str | None, *, hidden: bool) -> Reading:
    book = _load(path, file)
    sheet = _sheet(book, wanted, path)
    others = [other.title for other in book.sheets if other is not sheet]
    also = f" (other sheets: {', '.join(map(repr, others))})" if others else ""
    source = f"{path.name}[{sheet.title}]" if others else path.name
    marks = marks_of(book.archive, sheet.part)
    lines = _lines(file, book, sheet, source, marks, hidden=hidden)
    number, first = next(lines, (0, []))
    if isinstance(first, Bad):
        raise SheetError(f"the header of {source} cannot be read: {first.reason}", source=source)
    names, notes = header(first, source)
    marks.width = len(names)
    if not names:
        raise SheetError(
            f"the sheet {sheet.title!r} of {path.name} is empty{also}; expected a header and rows",
            path=str(path),
        )
    if others and wanted is None:
        notes = (f"The sheet {sheet.title!r} of {path.name} was read{also}.", *notes)
    notes += marks.notes(names)
    return Reading(
        path.name,
        grid(names, lines),
        columns=names,
        source=source,
        sheet=sheet.title,
        notes=notes,
        empty=f"{source} has a header (row {number}) and no rows; expected a prompt a row",
    )


@dataclass(frozen=True, slots=True)
class _Sheet:
    title: str
    is_visible: bool
    part: str


@dataclass(frozen=True, slots=True)
class _Book:
    """What a workbook keeps outside its sheets, and where those are."""

    archive: zipfile.ZipFile
    sheets: tuple[_Sheet, ...]
    shared: Sequence[str]
    dates: set[int]
    durations: set[int]
    epoch: datetime
    is_uncalculated: bool


def _load(path: Path, file: BinaryIO) -> _Book:
    """The workbook without its sheets.

    ``load_workbook`` would look for each sheet's dimension, and hold a sheet that states
    none whole in memory; and it takes ``x005F_`` out of texts, so that a text that shows an
    escape is lost.
    """
    try:
        with warnings.catch_warnings():
            # openpyxl warns of what it would not write back; nothing is written back.
            warnings.simplefilter("ignore")
            reader = ExcelReader(file, read_only=True, data_only=True, keep_links=False)
            reader.read_manifest()
            reader.read_workbook()
            book: Any = reader.wb
            apply_stylesheet(reader.archive, book)
            return _Book(
                reader.archive,
                tuple(_sheets(reader)),
                _shared(reader),
                book._date_formats,
                book._timedelta_formats,
                book.epoch,
                bool(book.calculation and book.calculation.fullCalcOnLoad),
            )
    except Exception as error:  # a damaged workbook makes openpyxl raise anything at all
        why = " ".join(str(error.__cause__ or error).split())
        raise SheetError(
            f"{path.name} cannot be read as a workbook ({why[:200] or type(error).__name__});"
            " open it in Excel or LibreOffice and save it again",
            path=str(path),
        ) from error


def _sheets(reader: Any) -> Iterator[_Sheet]:
    known = set(reader.archive.namelist())
    for sheet, relation in reader.parser.find_sheets():
        if relation.target in known and relation.Type.endswith("/worksheet"):
            yield _Sheet(sheet.name, sheet.state == "visible", relation.target)


def _shared(reader: Any) -> list[str]:
    """The texts that cells share, formatted runs joined, phonetic guides left out."""
    part = reader.package.find(SHARED_STRINGS)
    texts: list[str] = []
    if part is None:
        return texts
    pieces: list[str] = []
    is_phonetic = False
    parser = ParserCreate(None, " ")
    parser.buffer_text = True

    def start(name: str, _: dict[str, str]) -> None:
        nonlocal is_phonetic
        if name == TEXT and not is_phonetic:
            parser.CharacterDataHandler = pieces.append
        elif name == ITEM:
            pieces.clear()
        elif name == PHONETIC:
            is_phonetic = True

    def end(name: str) -> None:
        nonlocal is_phonetic
        if name == TEXT:
            parser.CharacterDataHandler = None
        elif name == ITEM:
            texts.append(_unescaped("".join(pieces)))
        elif name == PHONETIC:
            is_phonetic = False

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.StartDoctypeDeclHandler = _refuse_doctype
    with reader.archive.open(part.PartName[1:]) as xml:
        parser.ParseFile(xml)
    return texts


def _sheet(book: _Book, wanted: str | None, path: Path) -> _Sheet:
    if wanted is None:
        found = [sheet for sheet in book.sheets if sheet.is_visible] or book.sheets
    else:
        found = [sheet for sheet in book.sheets if sheet.title == wanted]
    if not found:
        titles = ", ".join(repr(sheet.title) for sheet in book.sheets)
        raise SheetError(
            f"{path.name} has no sheet {'with rows' if wanted is None else repr(wanted)};"
            f" its sheets: {titles or 'none'}",
            path=str(path),
        )
    return found[0]


def _lines(
    file: BinaryIO, book: _Book, sheet: _Sheet, source: str, marks: Marks, *, hidden: bool
) -> Iterator[Line]:
    """The rows that are not blank, as the sheet numbers them, each up to its last cell.

    A hidden row is a `Bad` of its own, unless `hidden` asks for its cells.
    """
    rows = _Rows(_Cells(book, source), marks, hidden=hidden)
    try:
        with book.archive.open(sheet.part) as xml:
            while not rows.is_over and (chunk := xml.read(CHUNK)):
                rows.parser.Parse(chunk)
                yield from rows.take()
            if not rows.is_over:
                rows.parser.Parse(b"", True)
    except (
        ExpatError,
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        ValueError,
        OverflowError,
    ) as error:
        yield from rows.take()
        raise SheetError(
            f"{source} is damaged after row {rows.number} ({error}); open it in Excel or"
            " LibreOffice and save it again",
            row=rows.number,
        ) from error
    finally:
        file.close()


class _Rows:
    """Makes rows of a sheet's XML as it is fed: no tree, so a coloured tail costs no memory."""

    def __init__(self, cells: _Cells, marks: Marks, *, hidden: bool) -> None:
        self.number = 0
        self.is_over = False
        self._cells, self._marks, self._shows_hidden = cells, marks, hidden
        self._done: list[tuple[int, list[Any], bool]] = []
        self._row: list[Any] = []
        self._row_is_hidden = False
        self._index = -1
        self._reference: str | None = None
        self._kind, self._style = "n", "0"
        self._has_formula = self._has_value = False
        self._is_phonetic = False
        self._texts: list[str] = []
        self.parser = ParserCreate(None, " ")
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.StartDoctypeDeclHandler = _refuse_doctype

    def take(self) -> Iterator[Line]:
        """The rows finished since the last call that are not blank."""
        done, self._done = self._done, []
        for number, row, is_hidden in done:
            shown = self._marks.mark(number, row) if self._marks.merges else row
            if all(plain_cell(cell) is None for cell in shown):
                continue
            if is_hidden and not self._shows_hidden:
                yield number, self._marks.hidden_row(number)
            else:
                yield number, shown

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if name == CELL:
            get = attributes.get
            self._reference = get("r")
            self._kind, self._style = get("t", "n"), get("s", "0")
            self._has_formula = self._has_value = False
            self._texts.clear()
        elif name == VALUE or (name == TEXT and not self._is_phonetic):
            self._has_value = True
            self.parser.CharacterDataHandler = self._texts.append
        elif name == FORMULA:
            self._has_formula = True
        elif name == ROW:
            self.number = int(float(attributes.get("r", self.number + 1)))
            if self.number > ROWS_MAX:
                raise ValueError(f"a row numbered {self.number}")
            self._row, self._index = [], -1
            self._row_is_hidden = attributes.get("hidden") in TRUE
        elif name == PHONETIC:
            self._is_phonetic = True
        elif name == COLUMN and attributes.get("hidden") in TRUE:
            first, last = int(attributes["min"]), int(attributes["max"])
            self._marks.hidden_columns.append((first - 1, last - 1))

    def _end(self, name: str) -> None:
        if name == CELL:
            reference = self._reference
            # A cell without a reference follows the one before it.
            self._index = index = _index(reference) if reference else self._index + 1
            if not (self._has_value or self._has_formula):
                return
            where = reference or f"in row {self.number}"
            text = "".join(self._texts)
            value = self._cells.value(self._kind, text, self._style, where, self._has_formula)
            if value is not None:
                row = self._row
                if index >= len(row):
                    row.extend([None] * (index + 1 - len(row)))
                row[index] = value
        elif name in (VALUE, TEXT):
            self.parser.CharacterDataHandler = None
        elif name == ROW:
            if self._row or self._marks.merges:
                self._done.append((self.number, self._row, self._row_is_hidden))
        elif name == PHONETIC:
            self._is_phonetic = False
        elif name == DATA:
            self.is_over = True


def _refuse_doctype(*_: object) -> None:
    raise ValueError("it has a document type of its own, which no workbook has")


@dataclass(frozen=True, slots=True)
class _Cells:
    """Reads cells with what a workbook keeps outside its sheets."""

    book: _Book
    source: str

    def value(self, kind: str, text: str, style: str, where: str, has_formula: bool) -> Any:
        # A formula that gives '' is of kind "str"; one never calculated is of none. Writers
        # that cannot calculate store nothing, or 0, and ask Excel to do it on loading.
        is_placeholder = text == "0" and kind == "n" and self.book.is_uncalculated
        if not text or (has_formula and is_placeholder):
            if kind != "str" and has_formula:
                return Bad(
                    f"cell {where} holds a formula without a stored value; open {self.source}"
                    " in Excel or LibreOffice and save it, so that it is calculated",
                    kind="formula without a value",
                )
            return None
        try:
            return self._typed(kind, text, style, where)
        except (ValueError, IndexError, OverflowError) as error:
            return Bad(f"cell {where} holds {text[:40]!r}, which cannot be read ({error})")

    def _typed(self, kind: str, text: str, style: str, where: str) -> Any:
        if kind == "s":
            return self.book.shared[int(text)]
        if kind in ("str", "inlineStr"):
            return _unescaped(text)
        if kind == "b":
            return text in TRUE
        if kind == "e":
            return Bad(
                f"cell {where} holds the error {text}; correct it in the sheet", kind="error cell"
            )
        if kind == "d":
            return from_ISO8601(text)  # type: ignore[no-untyped-call]
        number = number_of(text, where)
        if isinstance(number, Bad):
            return number
        if self.book.dates and int(style) in self.book.dates:
            if number < 0:
                raise ValueError("a date before 1900")
            if int(number) == 60 and self.book.epoch == WINDOWS_EPOCH:
                raise ValueError("29 February 1900, a day that never was")
            return from_excel(number, self.book.epoch, timedelta=int(style) in self.book.durations)
        return number


def _index(reference: str) -> int:
    letters = reference.rstrip("0123456789")
    found = COLUMNS.get(letters)
    if found is None:
        found = COLUMNS[letters] = column_index_from_string(letters) - 1
    return found


def _unescaped(text: str) -> str:
    r"""The text with its escapes read as Excel does: ``_x000D_`` is a carriage return.

    A text that shows such an escape to a person is stored as ``_x005F_x000D_``.
    """
    if "_x" not in text:
        return text
    plain = ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)
    # A character beyond U+FFFF may have been escaped as its two halves.
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
