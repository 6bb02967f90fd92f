"""Files a person could have made, and what each must be read as.

A `Case` makes its file with the tool it names. `rows` is what runs, by the row a person sees;
`problems` is what does not, as (kind, part of the reason); `error` what is said of a file that
cannot be rows at all. `calamine` is what the other engine gives where it differs from `rows`
(it knows no errors, no formulas without a value, nothing hidden or merged), or the error it
must come to. JSON text is compared, so that 1, 1.0 and True are three values.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import openpyxl
import pandas as pd
import xlsxwriter
from openpyxl.cell.rich_text import CellRichText, TextBlock
from openpyxl.cell.text import InlineFont
from openpyxl.comments import Comment
from openpyxl.styles import PatternFill
from openpyxl.worksheet.filters import FilterColumn, Filters
from openpyxl.worksheet.table import Table

Make = Callable[[Path], None]
Payloads = dict[int, dict[str, Any]]

MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
LOST = ("digits lost", "only 15 digits were kept")
ERROR = ("error cell", "holds the error")
NO_VALUE = ("formula without a value", "a formula without a stored value")
HIDDEN = ("hidden", "is hidden in the sheet")
FILTERED = ("filtered out", "is filtered out in the sheet")
MERGED = ("merged continuation", "is merged with")


@dataclass(frozen=True)
class Case:
    """One file and what it must give."""

    name: str
    suffix: str
    make: Make
    rows: Payloads = field(default_factory=dict)
    problems: dict[int, tuple[str, str]] = field(default_factory=dict)
    error: str | None = None
    note: str | None = None
    calamine: Payloads | str | None = None


# --- ways to make a file


def editor(content: str | bytes, encoding: str = "utf-8") -> Make:
    """What a text editor saves."""
    data = content.encode(encoding) if isinstance(content, str) else content
    return lambda path: path.write_bytes(data) and None


def by_openpyxl(*rows: Sequence[Any], then: Callable[[Any, Any], None] | None = None) -> Make:
    """Rows under the header they begin with, and what is done to the sheet then."""

    def make(path: Path) -> None:
        book = openpyxl.Workbook()
        sheet = book.worksheets[0]
        for row in rows:
            sheet.append(list(row))
        if then is not None:
            then(book, sheet)
        book.save(path)

    return make


def by_xlsxwriter(fill: Callable[[Any, Any], None], **options: Any) -> Make:
    """A workbook of one sheet whose header is prompt and n."""

    def make(path: Path) -> None:
        with xlsxwriter.Workbook(path, options) as book:
            sheet = book.add_worksheet()
            sheet.write_row(0, 0, ["prompt", "n"])
            fill(book, sheet)

    return make


def by_pandas(frame: pd.DataFrame, how: str, **options: Any) -> Make:
    """What a frame writes."""
    return lambda path: getattr(frame, how)(path, **options)


def by_excel(rows: str, *, before: str = "", behind: str = "", shared: str = "") -> Make:
    """A workbook with the XML of its sheet as Excel writes it. Row 1 is prompt and n."""

    def make(path: Path) -> None:
        by_openpyxl(["prompt", "n"])(path)
        head = '<row r="1"><c r="A1" t="str"><v>prompt</v></c><c r="B1" t="str"><v>n</v></c></row>'
        sheet = (
            f'<worksheet xmlns="{MAIN}">{before}<sheetData>{head}{rows}</sheetData>{behind}'
            "</worksheet>"
        )
        parts = {"xl/worksheets/sheet1.xml": sheet}
        if shared:
            parts["xl/sharedStrings.xml"] = f'<sst xmlns="{MAIN}">{shared}</sst>'
        put_parts(path, parts)

    return make


def put_parts(path: Path, parts: dict[str, str]) -> None:
    """Replaces parts of an archive."""
    with zipfile.ZipFile(path) as archive:
        kept = {name: archive.read(name) for name in archive.namelist()}
    kept.update({name: xml.encode() for name, xml in parts.items()})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in kept.items():
            archive.writestr(name, data)


NAMES = "urn:oasis:names:tc:opendocument:xmlns:{}:1.0"
ODF = "".join(
    f' xmlns:{name}="{NAMES.format(name)}"' for name in ("office", "table", "text", "style")
)
CALC = "urn:org:documentfoundation:names:experimental:calc:xmlns:calcext:1.0"
MIME = "application/vnd.oasis.opendocument.spreadsheet"


def cell(text: str, attributes: str = "") -> str:
    """A cell of text as LibreOffice writes it."""
    kind = 'office:value-type="string" calcext:value-type="string"'
    return f"<table:table-cell {attributes or kind}><text:p>{text}</text:p></table:table-cell>"


def number(value: str, kind: str = "float") -> str:
    """A cell of a number."""
    return cell(value, f'office:value-type="{kind}" office:value="{value}"')


def line(*cells: str, attributes: str = "") -> str:
    """A row of cells, and the blank rest of it."""
    rest = '<table:table-cell table:number-columns-repeated="16000"/>'
    return f"<table:table-row {attributes}>{''.join(cells)}{rest}</table:table-row>"


def by_libreoffice(*lines: str, styles: str = "", before: str = "", second: str = "") -> Make:
    """An .ods with the XML of its sheet as LibreOffice writes it. Row 1 is prompt and n."""

    def make(path: Path) -> None:
        tail = line(attributes='table:number-rows-repeated="1048000"')
        sheet = (
            f'<table:table table:name="Sheet1" table:style-name="ta1">{before}'
            f"{line(cell('prompt'), cell('n'))}{''.join(lines)}{tail}</table:table>"
        )
        content = (
            f'<office:document-content{ODF} xmlns:calcext="{CALC}" office:version="1.3">'
            f"<office:automatic-styles>{styles}</office:automatic-styles><office:body>"
            f"<office:spreadsheet>{sheet}{second}</office:spreadsheet></office:body>"
            "</office:document-content>"
        )
        manifest = (
            f'<manifest:manifest xmlns:manifest="{NAMES.format("manifest")}">'
            f'<manifest:file-entry manifest:full-path="/" manifest:media-type="{MIME}"/>'
            "</manifest:manifest>"
        )
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("mimetype", MIME, zipfile.ZIP_STORED)
            archive.writestr("content.xml", content)
            archive.writestr("META-INF/manifest.xml", manifest)

    return make


# --- what is done to a sheet


def _hide_row(_: Any, sheet: Any) -> None:
    sheet.row_dimensions[3].hidden = True


def _hide_column(_: Any, sheet: Any) -> None:
    sheet.column_dimensions["B"].hidden = True


def _filter(_: Any, sheet: Any) -> None:
    sheet.auto_filter.ref = "A1:B4"
    sheet.auto_filter.add_filter_column(1, ["x"])
    sheet.row_dimensions[3].hidden = True


def _arrows_only(_: Any, sheet: Any) -> None:
    sheet.auto_filter.ref = "A1:B4"
    sheet.row_dimensions[3].hidden = True


def _merge(area: str) -> Callable[[Any, Any], None]:
    return lambda _, sheet: sheet.merge_cells(area)


def _format(style: str, *places: str) -> Callable[[Any, Any], None]:
    def then(_: Any, sheet: Any) -> None:
        for place in places:
            sheet[place].number_format = style

    return then


def _epoch_1904(book: Any, _: Any) -> None:
    book.epoch = openpyxl.utils.datetime.CALENDAR_MAC_1904


def _text(place: str, text: str) -> Callable[[Any, Any], None]:
    def then(_: Any, sheet: Any) -> None:
        sheet[place].value, sheet[place].data_type = text, "s"

    return then


def _yellow(*places: str) -> Callable[[Any, Any], None]:
    def then(_: Any, sheet: Any) -> None:
        for place in places:
            sheet[place].fill = PatternFill("solid", fgColor="FFFF00")

    return then


def _yellow_tail(_: Any, sheet: Any) -> None:
    for row in range(3, 3000):
        sheet.cell(row, 1).fill = PatternFill("solid", fgColor="FFFF00")


def _comment(_: Any, sheet: Any) -> None:
    sheet["A2"].comment = Comment("not a prompt", "me")


def _link(_: Any, sheet: Any) -> None:
    sheet["A2"].hyperlink = "https://example.com/"


def _rich(_: Any, sheet: Any) -> None:
    sheet["A2"] = CellRichText("a ", TextBlock(InlineFont(b=True), "bold"), " fox")


def _hidden_first(book: Any, sheet: Any) -> None:
    other = book.create_sheet("Seen")
    other.append(["prompt"])
    other.append(["seen"])
    sheet.sheet_state = "hidden"
    book.active = 1


def _second_sheet(book: Any, _: Any) -> None:
    book.create_sheet("Notes").append(["anything"])


def _table_filter(_: Any, sheet: Any) -> None:
    table = Table(displayName="Shots", ref="A1:B4")
    table._initialise_columns()
    table.autoFilter.filterColumn.append(FilterColumn(colId=1, filters=Filters(filter=["x"])))
    sheet.add_table(table)
    sheet.row_dimensions[3].hidden = True


def _xw_filter(_: Any, sheet: Any) -> None:
    sheet.write_column(1, 0, ["a", "b"])
    sheet.write_column(1, 1, ["x", "y"])
    sheet.autofilter(0, 0, 2, 1)
    sheet.filter_column(1, "x == x")
    sheet.set_row(2, None, None, {"hidden": True})


def _xw_groups(_: Any, sheet: Any) -> None:
    sheet.write_column(1, 0, ["a", "b", "c"])
    sheet.set_row(2, None, None, {"level": 1, "hidden": True})
    sheet.set_row(3, None, None, {"collapsed": True})


def _xw(**calls: Any) -> Callable[[Any, Any], None]:
    """Calls ``write_…`` for A2 with each, one below the other."""

    def fill(_: Any, sheet: Any) -> None:
        for row, (kind, given) in enumerate(calls.items(), 1):
            sheet.write(row, 0, f"row {row + 1}")
            getattr(sheet, kind)(row, 1, *given)

    return fill


def _xw_rich(book: Any, sheet: Any) -> None:
    bold = book.add_format({"bold": True})
    sheet.write_rich_string(1, 0, "a ", bold, "bold", " fox")


P = ["prompt", "n"]
LONG = "12345678901234567"
FRAME = pd.DataFrame({"prompt": ["a", "b"], "n": [1, None]})

CASES: list[Case] = [
    # -- openpyxl: what a script leaves behind
    *(
        Case(
            f"text that looks like something else: {text}",
            ".xlsx",
            by_openpyxl(P, ["a", text]),
            {2: {"prompt": "a", "n": text}},
        )
        for text in ("007", "NA", "None", "1e5", "TRUE", LONG, "2026-05-01", "null", "-")
    ),
    Case("a whole number", ".xlsx", by_openpyxl(P, ["a", 1.0]), {2: {"prompt": "a", "n": 1}}),
    Case("a fraction", ".xlsx", by_openpyxl(P, ["a", 0.1]), {2: {"prompt": "a", "n": 0.1}}),
    Case("zero", ".xlsx", by_openpyxl(P, ["a", 0]), {2: {"prompt": "a", "n": 0}}),
    Case(
        "a number shown as money",
        ".xlsx",
        by_openpyxl(P, ["a", 12.5], then=_format('"$"#,##0.00', "B2")),
        {2: {"prompt": "a", "n": 12.5}},
    ),
    Case(
        "a number shown as per cent",
        ".xlsx",
        by_openpyxl(P, ["a", 0.5], then=_format("0%", "B2")),
        {2: {"prompt": "a", "n": 0.5}},
    ),
    Case(
        "booleans",
        ".xlsx",
        by_openpyxl(P, ["a", True], ["b", False]),
        {2: {"prompt": "a", "n": True}, 3: {"prompt": "b", "n": False}},
    ),
    Case(
        "a 17-digit id in a number cell",
        ".xlsx",
        by_openpyxl(P, ["a", int(LONG)], ["b", 1]),
        {3: {"prompt": "b", "n": 1}},
        {2: LOST},
        calamine={2: {"prompt": "a", "n": 1.234567890123457e16}, 3: {"prompt": "b", "n": 1}},
    ),
    Case(
        "a 15-digit id in a number cell",
        ".xlsx",
        by_openpyxl(P, ["a", 123456789012345]),
        {2: {"prompt": "a", "n": 123456789012345}},
    ),
    Case(
        "a date",
        ".xlsx",
        by_openpyxl(P, ["a", date(2026, 5, 1)]),
        {2: {"prompt": "a", "n": "2026-05-01"}},
    ),
    Case(
        "a moment",
        ".xlsx",
        by_openpyxl(P, ["a", datetime(2026, 5, 1, 9, 30)]),
        {2: {"prompt": "a", "n": "2026-05-01T09:30:00"}},
    ),
    Case(
        "a time of day",
        ".xlsx",
        by_openpyxl(P, ["a", time(9, 30)]),
        {2: {"prompt": "a", "n": "09:30:00"}},
    ),
    Case(
        "a duration",
        ".xlsx",
        by_openpyxl(P, ["a", timedelta(hours=30)]),
        {2: {"prompt": "a", "n": "1 day, 6:00:00"}},
    ),
    Case(
        "a negative number formatted as a date",
        ".xlsx",
        by_openpyxl(P, ["a", -1], ["b", 46143], then=_format("yyyy-mm-dd", "B2", "B3")),
        {3: {"prompt": "b", "n": "2026-05-01"}},
        {2: ("cannot be read", "a date before 1900")},
        calamine={2: {"prompt": "a", "n": "00:00:00"}, 3: {"prompt": "b", "n": "2026-05-01"}},
    ),
    Case(
        "29 February 1900",
        ".xlsx",
        by_openpyxl(P, ["a", 60], then=_format("yyyy-mm-dd", "B2")),
        {},
        {2: ("cannot be read", "a day that never was")},
        calamine={2: {"prompt": "a", "n": "1900-02-28"}},
    ),
    Case(
        "the calendar of 1904",
        ".xlsx",
        by_openpyxl(P, ["a", date(2026, 5, 1)], then=_epoch_1904),
        {2: {"prompt": "a", "n": "2026-05-01"}},
    ),
    Case(
        "blank cells",
        ".xlsx",
        by_openpyxl(P, ["a", None], ["b", ""], ["c", "  "], ["d", "\n"]),
        {n: {"prompt": p} for n, p in zip((2, 3, 4, 5), "abcd", strict=True)},
    ),
    Case(
        "outer spaces",
        ".xlsx",
        by_openpyxl(P, ["  a  ", " "]),
        {2: {"prompt": "  a  "}},
    ),
    Case(
        "line breaks and tabs",
        ".xlsx",
        by_openpyxl(P, ["two\nlines", "a\tb"]),
        {2: {"prompt": "two\nlines", "n": "a\tb"}},
    ),
    Case(
        "a carriage return as Excel escapes it",
        ".xlsx",
        by_openpyxl(P, ["a_x000D_\nb", 1]),
        {2: {"prompt": "a\r\nb", "n": 1}},
    ),
    Case(
        "emoji, Arabic, and an accent apart from its letter",
        ".xlsx",
        by_openpyxl(P, ["🦊👩‍👩‍👧", "ثعلب"], ["e\u0301", "\u00e9"]),
        {2: {"prompt": "🦊👩‍👩‍👧", "n": "ثعلب"}, 3: {"prompt": "e\u0301", "n": "\u00e9"}},
    ),
    Case(
        "a formula never calculated",
        ".xlsx",
        by_openpyxl(P, ["a", "=1+1"], ["b", 1]),
        {3: {"prompt": "b", "n": 1}},
        {2: NO_VALUE},
        calamine={2: {"prompt": "a"}, 3: {"prompt": "b", "n": 1}},
    ),
    Case(
        "text that begins with =",
        ".xlsx",
        by_openpyxl(P, ["a", 1], then=_text("A2", "=not one")),
        {2: {"prompt": "=not one", "n": 1}},
    ),
    Case(
        "an error typed by a script",
        ".xlsx",
        by_openpyxl(P, ["a", "#REF!"], ["b", 1]),
        {3: {"prompt": "b", "n": 1}},
        {2: ERROR},
        calamine={2: {"prompt": "a"}, 3: {"prompt": "b", "n": 1}},
    ),
    Case(
        "a hidden row",
        ".xlsx",
        by_openpyxl(P, ["a", 1], ["b", 2], ["c", 3], then=_hide_row),
        {2: {"prompt": "a", "n": 1}, 4: {"prompt": "c", "n": 3}},
        {3: HIDDEN},
        calamine={n: {"prompt": p, "n": n - 1} for n, p in zip((2, 3, 4), "abc", strict=True)},
    ),
    Case(
        "a row that a filter hides",
        ".xlsx",
        by_openpyxl(P, ["a", "x"], ["b", "y"], ["c", "x"], then=_filter),
        {2: {"prompt": "a", "n": "x"}, 4: {"prompt": "c", "n": "x"}},
        {3: FILTERED},
        calamine={
            2: {"prompt": "a", "n": "x"},
            3: {"prompt": "b", "n": "y"},
            4: {"prompt": "c", "n": "x"},
        },
    ),
    Case(
        "a row hidden by hand under a filter's arrows",
        ".xlsx",
        by_openpyxl(P, ["a", "x"], ["b", "y"], then=_arrows_only),
        {2: {"prompt": "a", "n": "x"}},
        {3: HIDDEN},
        calamine={2: {"prompt": "a", "n": "x"}, 3: {"prompt": "b", "n": "y"}},
    ),
    Case(
        "a row that a table's filter hides",
        ".xlsx",
        by_openpyxl(P, ["a", "x"], ["b", "y"], ["c", "x"], then=_table_filter),
        {2: {"prompt": "a", "n": "x"}, 4: {"prompt": "c", "n": "x"}},
        {3: FILTERED},
        calamine={
            2: {"prompt": "a", "n": "x"},
            3: {"prompt": "b", "n": "y"},
            4: {"prompt": "c", "n": "x"},
        },
    ),
    Case(
        "a hidden column is read, and said",
        ".xlsx",
        by_openpyxl(P, ["a", 1], then=_hide_column),
        {2: {"prompt": "a", "n": 1}},
        note="Column 'n' is hidden in the sheet and read all the same",
    ),
    Case(
        "cells merged downwards",
        ".xlsx",
        by_openpyxl(P, ["a", "ink"], ["b", None], ["c", "oil"], then=_merge("B2:B3")),
        {2: {"prompt": "a", "n": "ink"}, 4: {"prompt": "c", "n": "oil"}},
        {3: MERGED},
        calamine={
            2: {"prompt": "a", "n": "ink"},
            3: {"prompt": "b"},
            4: {"prompt": "c", "n": "oil"},
        },
    ),
    Case(
        "a prompt merged over two rows",
        ".xlsx",
        by_openpyxl(P, ["a", None], [None, None], ["c", 3], then=_merge("A2:A3")),
        {2: {"prompt": "a"}, 4: {"prompt": "c", "n": 3}},
        {3: MERGED},
        calamine={2: {"prompt": "a"}, 4: {"prompt": "c", "n": 3}},
    ),
    Case(
        "a heading merged over the columns",
        ".xlsx",
        by_openpyxl(P, ["Scene 1", None], ["a", 1], then=_merge("A2:B2")),
        {3: {"prompt": "a", "n": 1}},
        {2: ("merged continuation", "merged into one over several")},
        calamine={2: {"prompt": "Scene 1"}, 3: {"prompt": "a", "n": 1}},
    ),
    Case(
        "merged cells with nothing in them",
        ".xlsx",
        by_openpyxl(P, ["a", None], ["b", None], then=_merge("B2:B3")),
        {2: {"prompt": "a"}, 3: {"prompt": "b"}},
    ),
    Case(
        "a hidden first sheet",
        ".xlsx",
        by_openpyxl(P, ["hidden", 1], then=_hidden_first),
        {2: {"prompt": "seen"}},
    ),
    Case(
        "a second sheet is named",
        ".xlsx",
        by_openpyxl(P, ["a", 1], then=_second_sheet),
        {2: {"prompt": "a", "n": 1}},
        note="was read (other sheets: 'Notes')",
    ),
    Case(
        "a blank yellow tail",
        ".xlsx",
        by_openpyxl(P, ["a", 1], then=_yellow_tail),
        {2: {"prompt": "a", "n": 1}},
    ),
    Case(
        "one yellow cell in the last corner",
        ".xlsx",
        by_openpyxl(P, ["a", 1], then=_yellow("XFD1048576")),
        {2: {"prompt": "a", "n": 1}},
        calamine={2: {"prompt": "a", "n": 1}},
    ),
    Case(
        "a comment",
        ".xlsx",
        by_openpyxl(P, ["a", 1], then=_comment),
        {2: {"prompt": "a", "n": 1}},
    ),
    Case(
        "a link",
        ".xlsx",
        by_openpyxl(P, ["a fox", 1], then=_link),
        {2: {"prompt": "a fox", "n": 1}},
    ),
    Case(
        "formatted runs",
        ".xlsx",
        by_openpyxl(P, ["", 1], then=_rich),
        {2: {"prompt": "a bold fox", "n": 1}},
    ),
    Case(
        "two columns of one name",
        ".xlsx",
        by_openpyxl(["prompt", "n", "prompt"], ["a", 1, "b"]),
        error="columns A and C of .* are both named 'prompt'",
    ),
    Case(
        "data under a blank header",
        ".xlsx",
        by_openpyxl(["prompt", None, "n"], ["a", "oh", 1]),
        error="column B holds 'oh' and has no name",
    ),
    Case(
        "a title above the header",
        ".xlsx",
        by_openpyxl(["Our shots"], P, ["a", 1]),
        error="column B holds 'n' and has no name",
    ),
    Case(
        "spaces around a column's name",
        ".xlsx",
        by_openpyxl([" prompt ", "n"], ["a", 1]),
        {2: {"prompt": "a", "n": 1}},
        note="Column A is named ' prompt '; taken as 'prompt'.",
    ),
    Case(
        "a number as a column's name",
        ".xlsx",
        by_openpyxl(["prompt", 2026], ["a", 1]),
        {2: {"prompt": "a", "2026": 1}},
    ),
    Case(
        "blank rows between rows",
        ".xlsx",
        by_openpyxl(P, ["a", 1], [], [None, " "], ["b", 2]),
        {2: {"prompt": "a", "n": 1}, 5: {"prompt": "b", "n": 2}},
    ),
    Case("a header and no row", ".xlsx", by_openpyxl(P), error="has a header .* and no rows"),
    Case("an empty sheet", ".xlsx", by_openpyxl(), error="is empty"),
    # -- xlsxwriter
    Case(
        "a formula behind which 0 stands",
        ".xlsx",
        by_xlsxwriter(_xw(write_formula=["=1+1"], write_number=[0])),
        {3: {"prompt": "row 3", "n": 0}},
        {2: NO_VALUE},
        calamine={2: {"prompt": "row 2", "n": 0}, 3: {"prompt": "row 3", "n": 0}},
    ),
    Case(
        "a formula with its value",
        ".xlsx",
        by_xlsxwriter(_xw(write_formula=["=1+1", None, 2], write_boolean=[True])),
        {2: {"prompt": "row 2", "n": 2}, 3: {"prompt": "row 3", "n": True}},
    ),
    Case(
        "an escape that is meant as text",
        ".xlsx",
        by_xlsxwriter(_xw(write_string=["a_x000D_b"])),
        {2: {"prompt": "row 2", "n": "a_x000D_b"}},
        calamine={2: {"prompt": "row 2", "n": "a_x000D_b"}},
    ),
    Case(
        "a control character",
        ".xlsx",
        by_xlsxwriter(_xw(write_string=["bell \x07"])),
        {2: {"prompt": "row 2", "n": "bell \x07"}},
        calamine={2: {"prompt": "row 2", "n": "bell \x07"}},
    ),
    Case(
        "rows written one by one to save memory",
        ".xlsx",
        by_xlsxwriter(_xw(write_string=["007"]), constant_memory=True),
        {2: {"prompt": "row 2", "n": "007"}},
    ),
    Case("runs of bold text", ".xlsx", by_xlsxwriter(_xw_rich), {2: {"prompt": "a bold fox"}}),
    Case(
        "a filter that xlsxwriter set",
        ".xlsx",
        by_xlsxwriter(_xw_filter),
        {2: {"prompt": "a", "n": "x"}},
        {3: FILTERED},
        calamine={2: {"prompt": "a", "n": "x"}, 3: {"prompt": "b", "n": "y"}},
    ),
    Case(
        "rows folded away in a group",
        ".xlsx",
        by_xlsxwriter(_xw_groups),
        {2: {"prompt": "a"}, 4: {"prompt": "c"}},
        {3: HIDDEN},
        calamine={2: {"prompt": "a"}, 3: {"prompt": "b"}, 4: {"prompt": "c"}},
    ),
    # -- Excel itself, by the XML it writes
    Case(
        "a formula that gives nothing, and one that gives text",
        ".xlsx",
        by_excel(
            '<row r="2"><c r="A2" t="str"><f>"a"</f><v>a</v></c>'
            '<c r="B2" t="str"><f>""</f><v></v></c></row>'
        ),
        {2: {"prompt": "a"}},
    ),
    Case(
        "every kind of error",
        ".xlsx",
        by_excel(
            "".join(
                f'<row r="{r}"><c r="A{r}" t="str"><v>p{r}</v></c>'
                f'<c r="B{r}" t="e"><v>{e}</v></c></row>'
                for r, e in enumerate(("#REF!", "#N/A", "#NAME?", "#DIV/0!", "#VALUE!", "#NUM!"), 2)
            )
        ),
        {},
        dict.fromkeys(range(2, 8), ERROR),
        calamine={r: {"prompt": f"p{r}"} for r in range(2, 8)},
    ),
    Case(
        "#SPILL! in one cell",
        ".xlsx",
        by_excel(
            '<row r="2"><c r="A2" t="str"><v>a</v></c><c r="B2" t="e"><v>#SPILL!</v></c></row>'
            '<row r="3"><c r="A3" t="str"><v>b</v></c></row>'
        ),
        {3: {"prompt": "b"}},
        {2: ERROR},
        calamine="cannot be read by calamine",
    ),
    Case(
        "a dimension that leaves cells out",
        ".xlsx",
        by_excel(
            '<row r="2"><c r="A2" t="str"><v>a</v></c><c r="B2"><v>2</v></c></row>',
            before='<dimension ref="A1"/>',
        ),
        {2: {"prompt": "a", "n": 2}},
    ),
    Case(
        "a number in the form of a power",
        ".xlsx",
        by_excel(
            '<row r="2"><c r="A2" t="str"><v>a</v></c><c r="B2"><v>1.5E-3</v></c></row>'
            '<row r="3"><c r="A3" t="str"><v>b</v></c>'
            '<c r="B3"><v>1.23456789012346E+16</v></c></row>'
        ),
        {2: {"prompt": "a", "n": 0.0015}},
        {3: LOST},
        calamine={2: {"prompt": "a", "n": 0.0015}, 3: {"prompt": "b", "n": 1.23456789012346e16}},
    ),
    Case(
        "a number as floating point leaves it",
        ".xlsx",
        by_excel(
            '<row r="2"><c r="A2" t="str"><v>a</v></c>'
            '<c r="B2"><v>0.30000000000000004</v></c></row>'
        ),
        {2: {"prompt": "a", "n": 0.30000000000000004}},
    ),
    Case(
        "a date in ISO form",
        ".xlsx",
        by_excel(
            '<row r="2"><c r="A2" t="str"><v>a</v></c>'
            '<c r="B2" t="d"><v>2026-05-01T09:30:00</v></c></row>'
        ),
        {2: {"prompt": "a", "n": "2026-05-01T09:30:00"}},
    ),
    Case(
        "inline text with a reading aid",
        ".xlsx",
        by_excel(
            '<row r="2"><c r="A2" t="inlineStr"><is><r><t>東</t></r><r><t>京</t></r>'
            '<rPh sb="0" eb="1"><t>トウ</t></rPh></is></c></row>'
        ),
        {2: {"prompt": "東京"}},
        calamine={2: {"prompt": "東京"}},
    ),
    Case(
        "cells without references",
        ".xlsx",
        by_excel('<row><c t="str"><v>a</v></c><c><v>2</v></c></row>'),
        {2: {"prompt": "a", "n": 2}},
    ),
    Case(
        "a value in the very last cell",
        ".xlsx",
        by_excel(
            '<row r="2"><c r="A2" t="str"><v>a</v></c></row>'
            '<row r="1048576"><c r="XFD1048576" t="str"><v>oops</v></c></row>'
        ),
        error="column XFD holds 'oops' and has no name",
        calamine="calamine|column XFD",
    ),
    # -- pandas
    Case(
        "integers with a hole, by to_excel",
        ".xlsx",
        by_pandas(FRAME, "to_excel", index=False),
        {2: {"prompt": "a", "n": 1}, 3: {"prompt": "b"}},
    ),
    Case(
        "integers with a hole, by to_csv",
        ".csv",
        by_pandas(FRAME, "to_csv", index=False),
        {2: {"prompt": "a", "n": "1.0"}, 3: {"prompt": "b"}},
    ),
    Case(
        "an index without a name, by to_csv",
        ".csv",
        by_pandas(FRAME, "to_csv"),
        error="column A holds '0' and has no name",
    ),
    Case(
        "an index without a name, by to_excel",
        ".xlsx",
        by_pandas(FRAME, "to_excel"),
        error="column A holds 0 and has no name",
    ),
    Case(
        "a frame as JSON lines",
        ".jsonl",
        by_pandas(FRAME, "to_json", orient="records", lines=True),
        {1: {"prompt": "a", "n": 1}, 2: {"prompt": "b"}},
    ),
    Case(
        "a frame as a JSON list",
        ".json",
        by_pandas(FRAME, "to_json", orient="records"),
        {1: {"prompt": "a", "n": 1}, 2: {"prompt": "b"}},
    ),
    Case(
        "a frame as a JSON object",
        ".json",
        by_pandas(FRAME, "to_json"),
        error="holds one object; expected a list",
    ),
    # -- text
    Case(
        "UTF-8 with a mark, from Excel",
        ".csv",
        editor("prompt,n\r\ncafé,1\r\n", "utf-8-sig"),
        {2: {"prompt": "café", "n": "1"}},
        note="UTF-8 with a byte order mark",
    ),
    Case(
        "semicolons in Windows-1252, from a German Excel",
        ".csv",
        editor("prompt;n\r\nBär – groß;1,5\r\n", "cp1252"),
        {2: {"prompt": "Bär – groß", "n": "1,5"}},
        note="Windows-1252",
    ),
    Case(
        "UTF-16 with tabs, from Excel's Unicode text",
        ".tsv",
        editor("prompt\tn\r\ncafé\t1\r\n", "utf-16"),
        {2: {"prompt": "café", "n": "1"}},
        note="UTF-16",
    ),
    Case(
        "Unicode text left with the ending .txt",
        ".txt",
        editor("prompt\tn\r\na\t1\r\n", "utf-16"),
        error=r"has tabs in it.*\.tsv",
    ),
    Case(
        "sep= on the first line",
        ".csv",
        editor("sep=;\r\nprompt;n\r\na, b;1\r\n"),
        {3: {"prompt": "a, b", "n": "1"}},
    ),
    Case(
        "text that looks like something else",
        ".csv",
        editor(f"prompt,n\na,007\nb,NA\nc,1e5\nd,{LONG}\ne,=1+1\nf,TRUE\n"),
        {
            n: {"prompt": p, "n": t}
            for n, (p, t) in enumerate(
                zip("abcdef", ("007", "NA", "1e5", LONG, "=1+1", "TRUE"), strict=True), 2
            )
        },
    ),
    Case(
        "a cell over two lines",
        ".csv",
        editor('prompt,n\n"two\nlines",1\nb,2\n'),
        {2: {"prompt": "two\nlines", "n": "1"}, 3: {"prompt": "b", "n": "2"}},
    ),
    Case(
        "a quotation mark that never closes",
        ".csv",
        editor('prompt,n\na,1\n"b, oh,2\nc,3\n'),
        {2: {"prompt": "a", "n": "1"}},
        {3: ("cannot be read", "is not closed as it should be")},
    ),
    Case(
        "a comma too many",
        ".csv",
        editor("prompt,n\na fox, at dawn,1\nb,2\n"),
        {3: {"prompt": "b", "n": "2"}},
        {2: ("cannot be read", "has 3 cells and the header 2")},
    ),
    Case(
        "commas at the end of lines",
        ".csv",
        editor("prompt,n,\na,1,\n"),
        {2: {"prompt": "a", "n": "1"}},
    ),
    Case(
        "outer spaces stay",
        ".csv",
        editor("prompt,n\n  a  , 1\n"),
        {2: {"prompt": "  a  ", "n": " 1"}},
    ),
    Case(
        "quotation marks that nobody doubled",
        ".tsv",
        editor('prompt\tn\n"BUZZ" it says\t1\n'),
        {2: {"prompt": '"BUZZ" it says', "n": "1"}},
        note="quotation marks belong to the text",
    ),
    Case(
        "UTF-16 without its mark",
        ".csv",
        editor("prompt,n\na,1\n".encode("utf-16-le")),
        error="zero bytes",
    ),
    Case(
        "a workbook that is called .csv",
        ".csv",
        editor(b"PK\x03\x04" + b"x" * 40),
        error="is a workbook or archive",
    ),
    Case(
        "a prompt a line",
        ".txt",
        editor("a fox\n\n  a dog \n42\n"),
        {1: {"prompt": "a fox"}, 3: {"prompt": "  a dog "}, 4: {"prompt": "42"}},
    ),
    Case(
        "a key that stands twice in an object",
        ".jsonl",
        editor('{"prompt": "a", "prompt": "b"}\n'),
        {},
        {1: ("cannot be read", "stands twice")},
    ),
    Case(
        "large integers in JSON",
        ".jsonl",
        editor(f'{{"prompt": "a", "n": {LONG}}}\n{{"prompt": "b", "n": {2**63}}}\n'),
        {1: {"prompt": "a", "n": int(LONG)}},
        {2: ("cannot be read", "beyond 64 bits")},
    ),
    # -- LibreOffice, by the XML it writes
    Case(
        "an .ods",
        ".ods",
        by_libreoffice(line(cell("007"), number("1")), line(cell("NA"), number("0.5"))),
        {2: {"prompt": "007", "n": 1}, 3: {"prompt": "NA", "n": 0.5}},
    ),
    Case(
        "dates and times in an .ods",
        ".ods",
        by_libreoffice(
            line(cell("a"), cell("x", 'office:value-type="date" office:date-value="2026-05-01"')),
            line(
                cell("b"),
                cell("x", 'office:value-type="date" office:date-value="2026-05-01T09:30:00"'),
            ),
            line(cell("c"), cell("x", 'office:value-type="time" office:time-value="PT09H30M00S"')),
            line(cell("d"), cell("x", 'office:value-type="time" office:time-value="PT30H00M00S"')),
        ),
        {
            2: {"prompt": "a", "n": "2026-05-01"},
            3: {"prompt": "b", "n": "2026-05-01T09:30:00"},
            4: {"prompt": "c", "n": "09:30:00"},
            5: {"prompt": "d", "n": "1 day, 6:00:00"},
        },
        calamine={
            2: {"prompt": "a", "n": "2026-05-01"},
            3: {"prompt": "b", "n": "2026-05-01T09:30:00"},
            4: {"prompt": "c", "n": "09:30:00"},
            5: {"prompt": "d", "n": "PT30H00M00S"},
        },
    ),
    Case(
        "booleans, money and per cent in an .ods",
        ".ods",
        by_libreoffice(
            line(
                cell("a"), cell("TRUE", 'office:value-type="boolean" office:boolean-value="true"')
            ),
            line(cell("b"), number("12.5", "currency")),
            line(cell("c"), number("0.5", "percentage")),
            line(
                cell("d"),
                cell(
                    "FALSE",
                    'table:formula="of:=FALSE()" office:value-type="float" office:value="0"',
                ),
            ),
        ),
        {
            2: {"prompt": "a", "n": True},
            3: {"prompt": "b", "n": 12.5},
            4: {"prompt": "c", "n": 0.5},
            5: {"prompt": "d", "n": False},
        },
        calamine={
            2: {"prompt": "a", "n": True},
            3: {"prompt": "b", "n": 12.5},
            4: {"prompt": "c", "n": 0.5},
            5: {"prompt": "d", "n": 0},
        },
    ),
    Case(
        "spaces, tabs and lines in an .ods",
        ".ods",
        by_libreoffice(
            line(cell('<text:s text:c="2"/>a<text:s/>b</text:p><text:p>c'), number("1")),
            line(cell("d<text:tab/>e"), number("2")),
        ),
        {2: {"prompt": "  a b\nc", "n": 1}, 3: {"prompt": "d\te", "n": 2}},
        calamine={2: {"prompt": "  a b\nc", "n": 1}, 3: {"prompt": "de", "n": 2}},
    ),
    Case(
        "an error in an .ods",
        ".ods",
        by_libreoffice(
            line(
                cell("a"),
                cell(
                    "#DIV/0!",
                    'table:formula="of:=1/0" office:value-type="string"'
                    ' office:string-value="" calcext:value-type="error"',
                ),
            ),
            line(cell("b"), number("1")),
        ),
        {3: {"prompt": "b", "n": 1}},
        {2: ERROR},
        calamine={2: {"prompt": "a"}, 3: {"prompt": "b", "n": 1}},
    ),
    Case(
        "a formula never calculated in an .ods",
        ".ods",
        by_libreoffice(line(cell("a"), '<table:table-cell table:formula="of:=1+1"/>')),
        {},
        {2: NO_VALUE},
        calamine={2: {"prompt": "a"}},
    ),
    Case(
        "a formula in an .ods that gives nothing",
        ".ods",
        by_libreoffice(line(cell("a"), cell("", 'table:formula="of:=&quot;&quot;"'))),
        {2: {"prompt": "a"}},
    ),
    Case(
        "a row hidden and a row filtered out in an .ods",
        ".ods",
        by_libreoffice(
            line(cell("a"), number("1")),
            line(cell("b"), number("2"), attributes='table:visibility="collapse"'),
            line(cell("c"), number("3"), attributes='table:visibility="filter"'),
        ),
        {2: {"prompt": "a", "n": 1}},
        {3: HIDDEN, 4: FILTERED},
        calamine={n + 1: {"prompt": p, "n": n} for n, p in enumerate("abc", 1)},
    ),
    Case(
        "rows and cells that LibreOffice repeats",
        ".ods",
        by_libreoffice(
            line(cell("a"), number("1"), attributes='table:number-rows-repeated="2"'),
            line(attributes='table:number-rows-repeated="3"'),
            line(cell("b", 'table:number-columns-repeated="2" office:value-type="string"')),
        ),
        {2: {"prompt": "a", "n": 1}, 3: {"prompt": "a", "n": 1}, 7: {"prompt": "b", "n": "b"}},
    ),
    Case(
        "cells merged in an .ods",
        ".ods",
        by_libreoffice(
            line(
                cell("a"),
                cell(
                    "ink",
                    'office:value-type="string" table:number-rows-spanned="2"'
                    ' table:number-columns-spanned="1"',
                ),
            ),
            line(cell("b"), "<table:covered-table-cell/>"),
            line(cell("c"), number("3")),
        ),
        {2: {"prompt": "a", "n": "ink"}, 4: {"prompt": "c", "n": 3}},
        {3: MERGED},
        calamine={2: {"prompt": "a", "n": "ink"}, 3: {"prompt": "b"}, 4: {"prompt": "c", "n": 3}},
    ),
    Case(
        "a comment in an .ods",
        ".ods",
        by_libreoffice(
            line(
                '<table:table-cell office:value-type="string"><office:annotation>'
                "<text:p>not a prompt</text:p></office:annotation><text:p>a</text:p>"
                "</table:table-cell>",
                number("1"),
            )
        ),
        {2: {"prompt": "a", "n": 1}},
    ),
    Case(
        "a hidden first sheet in an .ods",
        ".ods",
        by_libreoffice(
            line(cell("hidden")),
            styles='<style:style style:name="ta1" style:family="table"><style:table-properties'
            ' table:display="false"/></style:style>',
            second=f'<table:table table:name="Seen">{line(cell("prompt"))}{line(cell("seen"))}'
            "</table:table>",
        ),
        {2: {"prompt": "seen"}},
    ),
    Case(
        "a 17-digit id in a number cell of an .ods",
        ".ods",
        by_libreoffice(line(cell("a"), number("1.23456789012346E+016"))),
        {},
        {2: LOST},
        calamine={2: {"prompt": "a", "n": 1.23456789012346e16}},
    ),
    Case(
        "a link in an .ods",
        ".ods",
        by_libreoffice(line(cell("see <text:a>a &amp; b</text:a>"), number("1"))),
        {2: {"prompt": "see a & b", "n": 1}},
    ),
]


def as_json(rows: Payloads) -> str:
    """The rows as text, in which 1, 1.0 and True differ."""
    return json.dumps(dict(sorted(rows.items())), sort_keys=True)
