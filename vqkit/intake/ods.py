"""OpenDocument spreadsheets (.ods), as LibreOffice writes them, read from their own XML.

python-calamine reads them too (`engine="calamine"`), but shows an error and a formula never
calculated as blank cells, and hidden rows as any others.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from html import unescape
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias
from xml.parsers.expat import ExpatError, ParserCreate

from ..errors import SheetError
from .files import refuse_bombs
from .marks import Area, Marks
from .table import Bad, Reading, grid, header, letter, number_of, plain_cell

__all__ = ["open_ods"]

Line: TypeAlias = "tuple[int, list[Any] | Bad]"

CONTENT = "content.xml"
CHUNK = 1 << 16
TAG_MAX = 1 << 12
ROWS_MAX, COLUMNS_MAX = 1 << 20, 1 << 14

NS = "urn:oasis:names:tc:opendocument:xmlns:{}:1.0 "
TABLE, TEXT, OFFICE = (NS.format(name) for name in ("table", "text", "office"))
CALC_TYPE = "urn:org:documentfoundation:names:experimental:calc:xmlns:calcext:1.0 value-type"
ROW, CELL, COVERED = (f"{TABLE}{tag}" for tag in ("table-row", "table-cell", "covered-table-cell"))
SHEET, COLUMN, PARAGRAPH = f"{TABLE}table", f"{TABLE}table-column", f"{TEXT}p"
SPACES, TAB, BREAK = (f"{TEXT}{tag}" for tag in ("s", "tab", "line-break"))
TYPE, VALUE, FORMULA = f"{OFFICE}value-type", f"{OFFICE}value", f"{TABLE}formula"
HIDING = ("collapse", "filter")
# What LibreOffice makes of a boolean it was given in an Excel workbook.
CONSTANTS = {"of:=TRUE()": True, "of:=FALSE()": False}
REPEATED_ROWS, REPEATED_CELLS = (f"{TABLE}number-{what}-repeated" for what in ("rows", "columns"))
SPANS = (f"{TABLE}number-rows-spanned", f"{TABLE}number-columns-spanned")

INDENT = re.compile(r"[ \t\r]*\n[ \t\r\n]*")  # of XML made to be read; no text has one
SHEET_TAG = re.compile(rb"<table:table\s[^>]*>")
ATTRIBUTE = re.compile(rb"table:(name|style-name)\s*=\s*(?:\"([^\"]*)\"|'([^']*)')")
HIDDEN_STYLE = re.compile(
    rb"<style:style\s[^>]*style:name=\"([^\"]+)\"[^>]*>\s*<style:table-properties"
    rb"[^>]*table:display=\"false\""
)
DURATION = re.compile(r"(-?)P(?:(\d+)D)?T?(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:[.,]\d+)?)S)?")


class _Sheet(NamedTuple):
    place: int
    name: str
    is_hidden: bool


def open_ods(path: Path, sheet: str | None = None, *, hidden: bool = False) -> Reading:
    """The rows of one sheet: the first that is visible, unless `sheet` names one.

    Hidden rows are problems, unless `hidden` asks for them.
    """
    refuse_bombs(path)
    with zipfile.ZipFile(path) as archive:
        known = set(archive.namelist())
        if CONTENT not in known:
            raise SheetError(
                f"{path.name} cannot be read as a workbook (it has no {CONTENT}); open it in"
                " LibreOffice and save it again",
                path=str(path),
            )
        manifest = "META-INF/manifest.xml"
        if manifest in known and b"encryption-data" in archive.read(manifest):
            raise SheetError(
                f"{path.name} is protected by a password; open it in LibreOffice and save it"
                " without one",
                path=str(path),
            )
        sheets = _sheets(archive, path)
    wanted = _choose(sheets, sheet, path)
    others = [repr(other.name) for other in sheets if other is not wanted]
    also = f" (other sheets: {', '.join(others)})" if others else ""
    source = f"{path.name}[{wanted.name}]" if others else path.name
    marks = Marks()
    lines = _lines(path, wanted.place, source, marks, hidden=hidden)
    number, first = next(lines, (0, []))
    if isinstance(first, Bad):
        raise SheetError(f"the header of {source} cannot be read: {first.reason}", source=source)
    names, notes = header(first, source)
    if not names:
        raise SheetError(
            f"the sheet {wanted.name!r} of {path.name} is empty{also}; expected a header and rows",
            path=str(path),
        )
    marks.width = len(names)
    if others and sheet is None:
        notes = (f"The sheet {wanted.name!r} of {path.name} was read{also}.", *notes)
    return Reading(
        path.name,
        grid(names, lines),
        columns=names,
        source=source,
        sheet=wanted.name,
        notes=notes + marks.notes(names),
        empty=f"{source} has a header (row {number}) and no rows; expected a prompt a row",
    )


def _sheets(archive: zipfile.ZipFile, path: Path) -> list[_Sheet]:
    """The sheets by the tags that open them, without reading what is in them."""
    found: list[_Sheet] = []
    hidden: set[bytes] = set()
    behind = b""
    try:
        with archive.open(CONTENT) as file:
            while chunk := file.read(1 << 18):
                window = behind + chunk
                hidden.update(HIDDEN_STYLE.findall(window))
                end = 0
                for tag in SHEET_TAG.finditer(window):
                    end = tag.end()
                    named = {m[1]: m[2] or m[3] or b"" for m in ATTRIBUTE.finditer(tag[0])}
                    name = unescape(named.get(b"name", b"").decode("utf-8", "replace"))
                    found.append(_Sheet(len(found), name, named.get(b"style-name") in hidden))
                behind = window[max(end, len(window) - TAG_MAX) :]
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise SheetError(
            f"{path.name} is cut short or damaged; copy it again", path=str(path)
        ) from error
    return found


def _choose(sheets: list[_Sheet], wanted: str | None, path: Path) -> _Sheet:
    if wanted is None:
        found = [sheet for sheet in sheets if not sheet.is_hidden] or sheets
    else:
        found = [sheet for sheet in sheets if sheet.name == wanted]
    if not found:
        titles = ", ".join(repr(sheet.name) for sheet in sheets)
        raise SheetError(
            f"{path.name} has no sheet {'with rows' if wanted is None else repr(wanted)};"
            f" its sheets: {titles or 'none'}",
            path=str(path),
        )
    return found[0]


def _lines(path: Path, index: int, source: str, marks: Marks, *, hidden: bool) -> Iterator[Line]:
    rows = _Rows(index, source, marks, hidden=hidden)
    file: BinaryIO = path.open("rb")
    try:
        with zipfile.ZipFile(file) as archive, archive.open(CONTENT) as xml:
            while not rows.is_over and (chunk := xml.read(CHUNK)):
                rows.parser.Parse(chunk)
                yield from rows.take()
            if not rows.is_over:
                rows.parser.Parse(b"", True)
    except (ExpatError, zipfile.BadZipFile, zlib.error, EOFError, ValueError) as error:
        yield from rows.take()
        raise SheetError(
            f"{source} is damaged after row {rows.number} ({error}); open it in LibreOffice and"
            " save it again",
            row=rows.number,
        ) from error
    finally:
        file.close()


class _Rows:
    """Makes rows of one sheet's XML as it is fed; a blank tail of a million rows is one row."""

    def __init__(self, index: int, source: str, marks: Marks, *, hidden: bool) -> None:
        self.number = 0
        self.is_over = False
        self._left = index + 1  # sheets to open until ours
        self._is_ours = False
        self._source, self._marks, self._shows_hidden = source, marks, hidden
        self._done: list[tuple[int, int, list[Any], str]] = []
        self._row: list[Any] = []
        self._repeated = 1
        self._visibility = "visible"
        self._column = self._at = 0
        self._cell: dict[str, str] = {}
        self._depth = 0  # below a cell
        self._paragraphs: list[str] = []
        self._texts: list[str] | None = None
        self.parser = ParserCreate(None, " ")
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text

    def take(self) -> Iterator[Line]:
        """The rows finished since the last call, repeated ones as often as they stand there."""
        done, self._done = self._done, []
        for first, repeated, row, visibility in done:
            for number in range(first, first + repeated):
                shown = self._marks.mark(number, row) if self._marks.merges else row
                if all(plain_cell(cell) is None for cell in shown):
                    continue
                if visibility in HIDING and not self._shows_hidden:
                    yield number, self._marks.hidden(is_filtered=visibility == "filter")
                else:
                    yield number, shown

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if name == SHEET:
            self._left -= 1
            self._is_ours = self._left == 0
        elif not self._is_ours:
            return
        elif self._depth:
            self._depth += 1
            if self._depth == 2 and name == PARAGRAPH:  # not one of a comment or a drawing
                self._texts = []
            elif self._texts is not None:
                if name == SPACES:
                    self._texts.append(" " * _count(attributes, f"{TEXT}c", 1 << 15))
                elif name == TAB:
                    self._texts.append("\t")
                elif name == BREAK:
                    self._texts.append("\n")
        elif name in (CELL, COVERED):
            self._cell, self._depth, self._paragraphs = attributes, 1, []
        elif name == ROW:
            self._row, self._column = [], 0
            self._repeated = _count(attributes, REPEATED_ROWS, ROWS_MAX)
            self._visibility = attributes.get(f"{TABLE}visibility", "visible")
        elif name == COLUMN:
            width = _count(attributes, REPEATED_CELLS, COLUMNS_MAX)
            if attributes.get(f"{TABLE}visibility") in HIDING:
                self._marks.hidden_columns.append((self._column, self._column + width - 1))
            self._column += width

    def _text(self, data: str) -> None:
        if self._texts is not None:
            self._texts.append(INDENT.sub(" ", data) if "\n" in data else data)

    def _end(self, name: str) -> None:
        if not self._is_ours:
            return
        if self._depth:
            self._depth -= 1
            if self._depth == 1 and self._texts is not None and name == PARAGRAPH:
                self._paragraphs.append("".join(self._texts))
                self._texts = None
            elif self._depth == 0:
                self._end_cell(is_covered=name == COVERED)
        elif name == ROW:
            self._end_row()
        elif name == SHEET:
            self._is_ours = False
            self.is_over = True

    def _end_cell(self, *, is_covered: bool) -> None:
        width = _count(self._cell, REPEATED_CELLS, COLUMNS_MAX)
        column = self._at = self._column
        self._column += width
        if is_covered or len(self._cell) == 0:
            return
        value = self._value()
        if value is None or column >= COLUMNS_MAX:
            return
        down, across = (_count(self._cell, name, ROWS_MAX) for name in SPANS)
        if down > 1 or across > 1:
            top = self.number + 1
            area = Area(top, column, top + down - 1, column + across - 1)
            self._marks.merges.append(area)
        self._row.extend([None] * (column - len(self._row)))
        self._row.extend([value] * min(width, COLUMNS_MAX - column))

    def _value(self) -> Any:
        cell = self._cell
        kind = cell.get(TYPE)
        where = f"{letter(self._at)}{self.number + 1}"
        if cell.get(CALC_TYPE) == "error":
            shown = " ".join(self._paragraphs) or "an error"
            return Bad(
                f"cell {where} holds the error {shown}; correct it in the sheet",
                kind="error cell",
            )
        if kind is None:
            # One that gives '' has an empty paragraph; one never calculated has none.
            if FORMULA in cell and not self._paragraphs:
                return Bad(
                    f"cell {where} holds a formula without a stored value; open {self._source}"
                    " in LibreOffice and save it, so that it is calculated",
                    kind="formula without a value",
                )
            return "\n".join(self._paragraphs) or None
        try:
            return self._typed(kind, where)
        except (ValueError, OverflowError, KeyError) as error:
            return Bad(f"cell {where} of the kind {kind} cannot be read ({error})")

    def _typed(self, kind: str, where: str) -> Any:
        cell = self._cell
        match kind:
            case "string":
                return cell.get(f"{OFFICE}string-value", "\n".join(self._paragraphs))
            case "boolean":
                return cell[f"{OFFICE}boolean-value"] == "true"
            case "date":
                text = cell[f"{OFFICE}date-value"]
                is_day = "T" not in text
                return date.fromisoformat(text) if is_day else datetime.fromisoformat(text)
            case "time":
                return _duration(cell[f"{OFFICE}time-value"])
        if kind == "float" and (formula := cell.get(FORMULA)) in CONSTANTS:
            return CONSTANTS[formula]
        return number_of(cell[VALUE], where)

    def _end_row(self) -> None:
        first, self.number = self.number + 1, self.number + self._repeated
        if self._row or self._marks.merges:
            if self.number > ROWS_MAX:
                self._repeated -= self.number - ROWS_MAX
            self._done.append((first, self._repeated, self._row, self._visibility))


def _count(attributes: dict[str, str], name: str, at_most: int) -> int:
    return min(max(int(attributes.get(name, 1)), 1), at_most)


def _duration(text: str) -> time | timedelta:
    """A time of day; a duration where it is longer than one, or negative."""
    found = DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no time")
    sign, days, hours, minutes, seconds = found.groups()
    total = timedelta(
        days=int(days or 0),
        hours=int(hours or 0),
        minutes=int(minutes or 0),
        seconds=float((seconds or "0").replace(",", ".")),
    )
    if sign or total >= timedelta(days=1):
        return -total if sign else total
    return (datetime.min + total).time()
