"""A copy of the user's own workbook with columns added; all else in it byte for byte.

The one sheet's XML is edited in place: cells are put in where they belong, and no other byte
of it changes. Loaded and saved again by a library, a workbook would lose what that does not
know: charts, pictures, pivot tables, macros, controls. Its other parts are copied as they are.
"""

from __future__ import annotations

import re
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from openpyxl.reader.excel import ExcelReader
from openpyxl.utils.cell import column_index_from_string, get_column_letter, range_boundaries

from ..errors import SheetError
from .xlsx import COLUMNS, escaped

__all__ = ["LINKS", "Link", "add_columns"]

LINKS = 65_530  # Excel opens no sheet with more
RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006/relationships"
# What may stand between the rows and the links of a sheet: the format wants an order.
BEFORE_LINKS = frozenset(
    [
        *("sheetCalcPr", "sheetProtection", "protectedRanges", "scenarios", "autoFilter"),
        *("sortState", "dataConsolidate", "customSheetViews", "mergeCells", "phoneticPr"),
        *("conditionalFormatting", "dataValidations"),
    ]
)
TAG = re.compile(rb"""<(?:[^>"']|"[^"]*"|'[^']*')*>""")
SPANS = re.compile(rb'(\sspans=["\']\d+:)(\d+)')

Value: TypeAlias = "str | float | Link | None"
Edit: TypeAlias = "tuple[int, int, bytes]"  # from, to, what stands there instead


@dataclass(frozen=True, slots=True)
class Link:
    """A cell that shows `text` and opens `address`."""

    text: str
    address: str


@dataclass(slots=True)
class _Cell:
    column: int  # from 1
    start: int
    end: int = 0
    style: str | None = None


@dataclass(slots=True)
class _Row:
    start: int
    end: int = 0  # where its last cell ends
    cells: list[_Cell] = field(default_factory=list)


class _Sheet:
    """Where things stand in a sheet's XML, in bytes; of the rows the header and those wanted.

    `first` is the number of the first row below the header.
    """

    def __init__(self, xml: bytes, wanted: Mapping[int, Any], first: int) -> None:
        self.xml, self.wanted, self.first = xml, wanted, first
        self.header = 0  # the last row above `first` that holds anything
        self.prefix = ""
        self.rows: dict[int, _Row] = {}
        self.width = 0  # the last column that holds anything, or is merged with one that does
        self.dimension: tuple[int, str] | None = None
        self.links_end: int | None = None  # where a link is added to those there are
        self.link_count = 0
        self.after: int | None = None  # where links go if there are none
        self._path: list[str] = []
        self._number = self._column = 0
        self._row: _Row | None = None
        self._cell: _Cell | None = None
        self._has_rows = False
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.XmlDeclHandler = self._declared
        self._parser.StartDoctypeDeclHandler = self._refuse_doctype
        self._parser.Parse(xml, True)

    def _declared(self, _version: str, encoding: str | None, _standalone: int) -> None:
        if (encoding or "utf-8").lower() not in ("utf-8", "us-ascii"):
            raise SheetError(f"its XML is written in {encoding}; expected UTF-8")

    def _refuse_doctype(self, *_: Any) -> None:
        raise SheetError("its XML declares a document type, which no workbook has")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        at = self._parser.CurrentByteIndex
        prefix, _, local = name.rpartition(":")
        self._path.append(local)
        depth = len(self._path)
        if depth == 2:
            self._start_part(local, attributes, at)
        elif local == "row" and depth == 3:
            self._number = int(float(attributes.get("r", self._number + 1)))
            self._column = 0
            is_wanted = self._number in self.wanted or self._number < self.first
            self._row = _Row(at) if is_wanted else None
        elif local == "c" and depth == 4:
            place = attributes.get("r")
            letters = place.rstrip("0123456789") if place else ""
            self._column = column_index_from_string(letters) if place else self._column + 1
            self._cell = _Cell(self._column, at, style=attributes.get("s"))
            self.prefix = f"{prefix}:" if prefix else ""
        elif local in ("v", "is", "f") and depth == 5:
            self.width = max(self.width, self._column)
            if self._number < self.first:
                self.header = self._number
        elif local == "mergeCell" and depth == 3:
            self.width = max(self.width, int(range_boundaries(attributes["ref"])[2] or 0))
        elif local == "hyperlink" and depth == 3:
            self.link_count += 1

    def _start_part(self, local: str, attributes: dict[str, str], at: int) -> None:
        if local == "dimension":
            self.dimension = (at, attributes.get("ref", ""))
        elif self._has_rows and self.after is None and local not in {*BEFORE_LINKS, "hyperlinks"}:
            self.after = at

    def _end(self, name: str) -> None:
        at = self._parser.CurrentByteIndex
        local = self._path.pop()
        depth = len(self._path)
        if local == "c" and depth == 3 and self._row is not None and self._cell is not None:
            # Of <c/> this is its end, of <c></c> where </c> begins.
            closing = self.xml.startswith(f"</{name}".encode(), at)
            self._cell.end = self.xml.index(b">", at) + 1 if closing else at
            self._row.cells.append(self._cell)
            self._row.end = self._cell.end
        elif local == "row" and depth == 2 and self._row is not None:
            self.rows[self._number] = self._row
        elif local == "sheetData" and depth == 1:
            self._has_rows = True
        elif local == "hyperlinks" and depth == 1:
            self.links_end = at
        elif depth == 0 and self.after is None:
            self.after = at


def add_columns(
    source: Path,
    target: Path,
    title: str,
    header: Sequence[str],
    rows: Mapping[int, Sequence[Value]],
    *,
    first: int,
) -> int:
    """Writes `source` to `target` with columns added to the sheet `title`.

    They stand right of all that the sheet holds, `header` in the row above row `first`, and
    below it the values of `rows`, by row number, as many as the header has. A cell that
    is blank there keeps its format. Returns how many links, the last ones, were left out,
    their text written all the same, since Excel opens no sheet with more than 65,530.
    """
    with zipfile.ZipFile(source) as book:
        part = _part_of(source, title)
        sheet = _parsed(book.read(part), rows, first, f"{source.name}[{title}]")
        if sheet.width + len(header) > COLUMNS:
            raise SheetError(
                f"the sheet {title!r} of {source.name} is {sheet.width:,} columns wide; there is"
                f" no room for {len(header)} more. Clear what stands at its right end."
            )
        values: dict[int, Sequence[Value]] = {**rows, sheet.header: header}
        links: list[tuple[str, str]] = []
        edits = [
            edit
            for number, row in sheet.rows.items()
            if number in values
            for edit in _row_edits(sheet, number, row, values[number], links)
        ]
        left_out = max(0, len(links) - max(0, LINKS - sheet.link_count))
        del links[len(links) - left_out :]
        changed: dict[str, bytes] = {}
        if links:
            name = str(PurePosixPath(part).parent / "_rels" / f"{PurePosixPath(part).name}.rels")
            there = book.read(name) if name in book.namelist() else b""
            changed[name], ids = _related(there, [address for _, address in links])
            edits.append(_link_edit(sheet, [place for place, _ in links], ids))
        edits += _dimension_edit(sheet, max(values), sheet.width + len(header))
        changed[part] = _edited(sheet.xml, edits)
        _copy(book, target, changed)
    return left_out


def _part_of(source: Path, title: str) -> str:
    """The name of the part that holds the sheet."""
    with source.open("rb") as file:
        reader = ExcelReader(file, read_only=True, data_only=True, keep_links=False)
        reader.read_manifest()
        reader.read_workbook()
        found = [rel.target for sheet, rel in reader.parser.find_sheets() if sheet.name == title]
    return str(found[0])


def _parsed(xml: bytes, wanted: Mapping[int, Any], first: int, name: str) -> _Sheet:
    try:
        return _Sheet(xml, wanted, first)
    except (expat.ExpatError, ValueError) as error:
        raise SheetError(
            f"nothing can be added to {name}: {error}. Open it in Excel or LibreOffice and save"
            " it again."
        ) from error


def _row_edits(
    sheet: _Sheet, number: int, row: _Row, values: Sequence[Value], links: list[tuple[str, str]]
) -> Iterator[Edit]:
    """The new cells of a row; the links among them are added to `links`."""
    blank = {cell.column: cell for cell in row.cells if cell.column > sheet.width}
    is_header = number == sheet.header
    named = [cell.style for cell in row.cells if cell.column <= sheet.width]
    for column, value in enumerate(values, sheet.width + 1):
        if value is None:
            continue
        place = f"{get_column_letter(column)}{number}"
        there = blank.get(column)
        if there is not None:
            start, end, style = there.start, there.end, there.style
        else:
            behind = next((cell.start for cell in row.cells if cell.column > column), row.end)
            start, end, style = behind, behind, None
        if is_header:  # it looks as its neighbours do
            style = named[-1]
        if isinstance(value, Link):
            links.append((place, value.address))
        yield start, end, _cell_xml(place, value, style, sheet.prefix)
    tag = _tag(sheet.xml, row.start)
    if spans := SPANS.search(tag):  # a hint of where the row's cells are
        last = str(max(int(spans[2]), sheet.width + len(values))).encode()
        yield row.start, row.start + len(tag), tag[: spans.end(1)] + last + tag[spans.end() :]


def _cell_xml(place: str, value: Value, style: str | None, prefix: str) -> bytes:
    p = prefix
    head = f'<{p}c r="{place}"' + (f' s="{style}"' if style else "")
    if isinstance(value, int | float):
        return f"{head}><{p}v>{value!r}</{p}v></{p}c>".encode()
    text = escape(escaped(value.text if isinstance(value, Link) else str(value)))
    inside = f'<{p}is><{p}t xml:space="preserve">{text}</{p}t></{p}is>'
    return f'{head} t="inlineStr">{inside}</{p}c>'.encode()


def _link_edit(sheet: _Sheet, places: Sequence[str], ids: Sequence[str]) -> Edit:
    p = sheet.prefix
    links = "".join(
        f'<{p}hyperlink xmlns:r="{RELATIONS}" ref="{place}" r:id="{id}"/>'
        for place, id in zip(places, ids, strict=True)
    )
    if sheet.links_end is not None:
        return sheet.links_end, sheet.links_end, links.encode()
    assert sheet.after is not None  # the end of the sheet, at the latest
    return sheet.after, sheet.after, f"<{p}hyperlinks>{links}</{p}hyperlinks>".encode()


def _related(there: bytes, addresses: Sequence[str]) -> tuple[bytes, list[str]]:
    """The sheet's relations with those of the links added, and the links' ids."""
    if not there.strip():
        root = f'<Relationships xmlns="{PACKAGE}"></Relationships>'
        there = f'<?xml version="1.0" encoding="UTF-8"?>\n{root}'.encode()
    # One without any relation may be written as <Relationships/>.
    there = re.sub(rb"<([^<>\s/]*Relationships)(\s[^<>]*?)?/>\s*$", rb"<\1\2></\1>", there)
    end = there.rindex(b"</")
    prefix = there[end + 2 :].rpartition(b":")[0]
    p = f"{prefix.decode()}:" if prefix else ""
    stem = "vqkit"
    while f'"{stem}'.encode() in there:
        stem += "_"
    ids = [f"{stem}{count}" for count in range(1, len(addresses) + 1)]
    new = "".join(
        f'<{p}Relationship Id="{id}" Type="{RELATIONS}/hyperlink"'
        f' Target={quoteattr(address)} TargetMode="External"/>'
        for id, address in zip(ids, addresses, strict=True)
    )
    return there[:end] + new.encode() + there[end:], ids


def _dimension_edit(sheet: _Sheet, last_row: int, last_column: int) -> Iterator[Edit]:
    """Where the sheet states its extent it has grown: some readers believe it."""
    if sheet.dimension is None:
        return
    at, stated = sheet.dimension
    left, top, right, bottom = (int(bound or 1) for bound in range_boundaries(stated or "A1"))
    corner = f"{get_column_letter(max(right, last_column))}{max(bottom, last_row)}"
    tag = _tag(sheet.xml, at)
    new = re.sub(
        rb"""(\sref\s*=\s*)["'][^"']*["']""",
        lambda match: match[1] + f'"{get_column_letter(left)}{top}:{corner}"'.encode(),
        tag,
    )
    yield at, at + len(tag), new


def _tag(xml: bytes, at: int) -> bytes:
    match = TAG.match(xml, at)
    assert match is not None  # expat found one there
    return match[0]


def _edited(xml: bytes, edits: list[Edit]) -> bytes:
    pieces, done = [], 0
    for start, end, new in sorted(edits, key=lambda edit: edit[:2]):
        pieces += [xml[done:start], new]
        done = end
    return b"".join([*pieces, xml[done:]])


def _copy(book: zipfile.ZipFile, target: Path, changed: dict[str, bytes]) -> None:
    """The archive with these parts changed or added, the others as they are, in their order."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as copy:
        for part in book.infolist():
            new = zipfile.ZipInfo(part.filename, part.date_time)
            new.external_attr, new.create_system = part.external_attr, part.create_system
            is_stored = part.compress_type == zipfile.ZIP_STORED
            new.compress_type = zipfile.ZIP_STORED if is_stored else zipfile.ZIP_DEFLATED
            if part.filename in changed:
                copy.writestr(new, changed[part.filename])
            else:
                new.file_size = part.file_size
                with book.open(part) as there, copy.open(new, "w") as here:
                    shutil.copyfileobj(there, here, 1 << 20)
        for name in changed.keys() - set(book.namelist()):
            copy.writestr(name, changed[name])
