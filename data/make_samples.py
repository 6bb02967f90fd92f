"""Makes data/samples. Running it again gives the same bytes, whatever the machine.

The workbooks are written part by part and stored without compression: openpyxl dates what it
writes, its XML depends on whether lxml is there, and compressors differ. It also cannot write
what awkward.xlsx needs: values stored beside formulas, a wrong dimension, hidden rows.

    python data/make_samples.py [FOLDER]
"""

from __future__ import annotations

import csv
import io
import json
import sys
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

SAMPLES = Path(__file__).parent / "samples"

COLUMNS = ("prompt", "seconds", "style", "priority", "note")
PROMPTS: tuple[tuple[object, ...], ...] = (
    ("A red fox trots through fresh snow at dawn", 2, "watercolour", None, "opening shot"),
    ("Paper lanterns drift up from a dark lake", 2, "ink", 5, "the one for the poster"),
    ("A lighthouse turns its beam over a stormy sea", 3, None, None, None),
    ("Cherry petals fall on a quiet canal", 2, "watercolour", None, None),
    ("A slow train crosses a stone viaduct in the rain", 2, None, None, None),
    ("Jellyfish pulse in deep blue water, lit from below", 2, "neon", 2, None),
    ("Bread rises in an oven, golden & cracking", 1.5, None, None, 'the "cosy" one'),
    ("Northern lights ripple above a sleeping village", 3, "pastel", None, None),
    ("Ein Uhrwerk aus Messing setzt sich in Bewegung", 2, "ink", None, "German on purpose"),
    ("夜明けの海を渡る小さな帆船", 2, "pastel", None, "a small sailing boat at daybreak"),
    ("Sunflowers follow the sun across a whole day", 2, None, -1, "if there is time"),
    ("A cat, asleep on a warm windowsill, dreams of birds 🐦", 2, "crayon", None, "last shot"),
)


class Formula:
    """A formula cell; `stored` is the value Excel keeps beside it, None where it never ran."""

    def __init__(self, text: str, stored: float | None = None) -> None:
        self.text = text
        self.stored = stored


class Error:
    """A cell that shows an error."""

    def __init__(self, text: str) -> None:
        self.text = text


class Day:
    """A date, by the number Excel keeps for it."""

    def __init__(self, serial: float) -> None:
        self.serial = serial


# Rows 2 to 16 of awkward.xlsx. The comment says what becomes of each.
AWKWARD: tuple[tuple[object, ...], ...] = (
    ("007", "A kite over the dunes", 2, None, Day(46143), True),  # runs; the id is text
    ("008", Error("#REF!"), 2, None, None, None),  # an error cell
    ("009", Formula('CONCATENATE("A ","fox")'), 2, None, None, None),  # never calculated
    ("010", "A marble rolls down a spiral", Formula("1+1", 2), None, None, None),  # runs, 2 s
    ("011", "Rain on a tin roof", 2, None, None, None),  # runs
    ("011", "Rain on a tin roof", 2, None, None, None),  # runs too: a row of its own
    (),  # blank: passed over
    ("012", "A kettle comes to the boil", 2, "high", None, None),  # priority is no number
    (None, None, None, 4, None, None),  # nothing but a setting
    ("014", "NA", 1.0, None, Day(46143.5), False),  # runs; NA is text, 1.0 is 1
    (15, "=not a formula", 2, None, None, None),  # runs; the id is a number here
    ("016", "  spaces around  ", 2, None, None, None),  # runs, its spaces kept
    ("   ", " ", None, None, None, None),  # blank to the eye: passed over
    ("017", "Two lines,\none prompt", 2, None, None, None),  # runs
    ("018", "The last row", 2, None, None, None),  # runs; outside the stated dimension
)
AWKWARD_COLUMNS = ("id", "prompt", "seconds", "priority", "shot_on", "is_draft")

CONTENT_TYPES = """\
<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">\
<Default Extension="rels" \
ContentType="application/vnd.openxmlformats-package.relationships+xml"/>\
<Default Extension="xml" ContentType="application/xml"/>\
<Override PartName="/xl/workbook.xml" \
ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"/>\
<Override PartName="/xl/styles.xml" \
ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.styles+xml"/>\
<Override PartName="/xl/worksheets/sheet1.xml" \
ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.worksheet+xml"/>\
</Types>"""
RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006/relationships"
MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
# Style 1 is the bold header, 2 a date, 3 a date with a time, 4 the yellow of a blank tail.
STYLES = f"""\
<styleSheet xmlns="{MAIN}"><numFmts count="2"><numFmt numFmtId="164" formatCode="yyyy\\-mm\\-dd"/>\
<numFmt numFmtId="165" formatCode="yyyy\\-mm\\-dd\\ hh:mm"/></numFmts>\
<fonts count="2"><font><sz val="11"/><name val="Calibri"/></font>\
<font><b/><sz val="11"/><name val="Calibri"/></font></fonts>\
<fills count="3"><fill><patternFill patternType="none"/></fill>\
<fill><patternFill patternType="gray125"/></fill>\
<fill><patternFill patternType="solid"><fgColor rgb="FFFFFF00"/></patternFill></fill></fills>\
<borders count="1"><border><left/><right/><top/><bottom/><diagonal/></border></borders>\
<cellStyleXfs count="1"><xf numFmtId="0" fontId="0" fillId="0" borderId="0"/></cellStyleXfs>\
<cellXfs count="5"><xf numFmtId="0" fontId="0" fillId="0" borderId="0" xfId="0"/>\
<xf numFmtId="0" fontId="1" fillId="0" borderId="0" xfId="0" applyFont="1"/>\
<xf numFmtId="164" fontId="0" fillId="0" borderId="0" xfId="0" applyNumberFormat="1"/>\
<xf numFmtId="165" fontId="0" fillId="0" borderId="0" xfId="0" applyNumberFormat="1"/>\
<xf numFmtId="0" fontId="0" fillId="2" borderId="0" xfId="0" applyFill="1"/></cellXfs>\
<cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles>\
</styleSheet>"""


def cell_xml(place: str, value: object, style: int = 0) -> str:
    """One cell as Excel writes it; '' for a blank one."""
    styled = f' s="{style}"' if style else ""
    match value:
        case None:
            return ""
        case bool():
            return f'<c r="{place}" t="b"><v>{int(value)}</v></c>'
        case int() | float():
            return f'<c r="{place}"{styled}><v>{value}</v></c>'
        case Day():
            style = 2 if value.serial == int(value.serial) else 3
            return f'<c r="{place}" s="{style}"><v>{value.serial}</v></c>'
        case Error():
            return f'<c r="{place}" t="e"><v>{value.text}</v></c>'
        case Formula():
            stored = "" if value.stored is None else f"<v>{value.stored}</v>"
            return f'<c r="{place}"><f>{escape(value.text)}</f>{stored}</c>'
    text = f'<t xml:space="preserve">{escape(str(value))}</t>'
    return f'<c r="{place}" t="inlineStr"{styled}><is>{text}</is></c>'


def row_xml(number: int, cells: Iterable[object], style: int = 0) -> str:
    """One row of cells."""
    inside = (cell_xml(f"{chr(65 + i)}{number}", value, style) for i, value in enumerate(cells))
    return f'<row r="{number}">{"".join(inside)}</row>'


# Rows 2 to 12 of shots.xlsx: what a sheet looks like after a few people have worked on it.
SHOTS: tuple[tuple[object, ...], ...] = (
    ("20260501000000017", "A kite over the dunes", "ink", 2, None),
    ("20260501000000018", "A marble rolls down a spiral", None, 2, None),  # ink goes on: merged
    ("20260501000000019", "Rain on a tin roof", "pastel", 2, None),
    ("20260501000000020", "Smoke over the harbour", "oil", 2, None),  # filtered out
    ("20260501000000021", "A kettle comes to the boil", "neon", 3, None),  # filtered out
    (20260501000000022, "Snow falls on a market", "ink", 2, None),  # a number: digits are lost
    ("20260501000000023", Formula('A2&" again"'), "ink", 2, None),  # never calculated
    ("20260501000000024", "  A tram turns the corner ", "pastel", 2, 5),
    (),
    ("20260501000000025", "The last light on the pier", "pastel", Formula("1+1", 2), None),
    ("20260501000000026", "A first idea, put aside", "ink", 2, None),  # hidden by hand
)
SHOTS_COLUMNS = ("id", "prompt", "style", "seconds", "priority")


def workbook(
    sheet: str,
    rows: Sequence[str],
    widths: Sequence[int],
    dimension: str | None = None,
    behind: str = "",
) -> bytes:
    """An .xlsx file with one sheet, its header frozen."""
    columns = "".join(
        f'<col min="{i}" max="{i}" width="{width}" customWidth="1"/>'
        for i, width in enumerate(widths, 1)
    )
    stated = f'<dimension ref="{dimension}"/>' if dimension else ""
    frozen = '<pane ySplit="1" topLeftCell="A2" activePane="bottomLeft" state="frozen"/>'
    parts = {
        "[Content_Types].xml": CONTENT_TYPES,
        "_rels/.rels": f'<Relationships xmlns="{PACKAGE}"><Relationship Id="rId1"'
        f' Type="{RELATIONS}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{MAIN}" xmlns:r="{RELATIONS}"><sheets>'
        f'<sheet name="{escape(sheet)}" sheetId="1" r:id="rId1"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{PACKAGE}">'
        f'<Relationship Id="rId1" Type="{RELATIONS}/worksheet" Target="worksheets/sheet1.xml"/>'
        f'<Relationship Id="rId2" Type="{RELATIONS}/styles" Target="styles.xml"/>'
        "</Relationships>",
        "xl/styles.xml": STYLES,
        "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{MAIN}">{stated}<sheetViews>'
        f'<sheetView workbookViewId="0">{frozen}</sheetView></sheetViews>'
        f"<cols>{columns}</cols><sheetData>{''.join(rows)}</sheetData>{behind}</worksheet>",
    }
    return archive_of(parts)


def archive_of(parts: dict[str, str]) -> bytes:
    """An archive of XML parts, without compression and with no date."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, xml in parts.items():
            part = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            part.create_system = 3  # else it says which system it was made on
            is_xml = name != "mimetype"
            head = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n' if is_xml else ""
            archive.writestr(part, head + xml)
    return file.getvalue()


def prompts_xlsx() -> bytes:
    """The prompts as a workbook."""
    rows = [row_xml(1, COLUMNS, style=1)]
    rows += [row_xml(number, row) for number, row in enumerate(PROMPTS, 2)]
    return workbook("Prompts", rows, (58, 9, 13, 9, 34), dimension=f"A1:E{len(rows)}")


def awkward_xlsx() -> bytes:
    """A workbook that has lived: rows that cannot run, and a long blank tail, partly hidden."""
    rows = [row_xml(1, AWKWARD_COLUMNS, style=1)]
    rows += [row_xml(number, row) for number, row in enumerate(AWKWARD, 2)]
    for number in range(len(rows) + 1, len(rows) + 41):
        hidden = ' hidden="1"' if number % 2 else ""
        blank = "".join(f'<c r="{letter}{number}" s="4"/>' for letter in "ABCDEF")
        rows.append(f'<row r="{number}"{hidden}>{blank}</row>')
    return workbook("Shots", rows, (6, 40, 9, 9, 18, 9), dimension="A1:B5")


def shots_xlsx() -> bytes:
    """A workbook with cells merged, rows hidden and filtered out, and ids that are numbers."""
    rows = [row_xml(1, SHOTS_COLUMNS, style=1)]
    rows += [row_xml(number, row) for number, row in enumerate(SHOTS, 2)]
    for number in (5, 6, 12):
        rows[number - 1] = rows[number - 1].replace("<row ", '<row hidden="1" ', 1)
    # Excel writes 17 digits in this form, of which it has kept fifteen.
    rows[6] = rows[6].replace("<v>20260501000000022</v>", "<v>2.0260501E+16</v>")
    behind = (
        '<autoFilter ref="A1:E11"><filterColumn colId="2"><filters><filter val="ink"/>'
        '<filter val="pastel"/></filters></filterColumn></autoFilter>'
        '<mergeCells count="1"><mergeCell ref="C2:C3"/></mergeCells>'
    )
    return workbook("Shots", rows, (20, 40, 9, 9, 9), dimension=f"A1:E{len(rows)}", behind=behind)


ODS_TYPE = "application/vnd.oasis.opendocument.spreadsheet"
ODF = "urn:oasis:names:tc:opendocument:xmlns:{}:1.0"


def prompts_ods() -> bytes:
    """The prompts as LibreOffice saves them."""
    spaces = "".join(f' xmlns:{name}="{ODF.format(name)}"' for name in ("office", "table", "text"))
    rows = "".join(ods_row(row) for row in (COLUMNS, *PROMPTS))
    rest = '<table:table-row table:number-rows-repeated="1048563"><table:table-cell/>'
    content = (
        f'<office:document-content{spaces} office:version="1.3"><office:body><office:spreadsheet>'
        f'<table:table table:name="Prompts">{rows}{rest}</table:table-row></table:table>'
        "</office:spreadsheet></office:body></office:document-content>"
    )
    entries = "".join(
        f'<manifest:file-entry manifest:full-path="{path}" manifest:media-type="{kind}"/>'
        for path, kind in (("/", ODS_TYPE), ("content.xml", "text/xml"))
    )
    manifest = f'<manifest:manifest xmlns:manifest="{ODF.format("manifest")}">{entries}'
    return archive_of(
        {
            "mimetype": ODS_TYPE,
            "content.xml": content,
            "META-INF/manifest.xml": f"{manifest}</manifest:manifest>",
        }
    )


def ods_row(row: Iterable[object]) -> str:
    """One row of cells of an .ods."""
    cells = []
    for value in row:
        text = f"<text:p>{escape(str(value))}</text:p>"
        match value:
            case None:
                cells.append("<table:table-cell/>")
            case int() | float():
                kind = f'office:value-type="float" office:value="{value}"'
                cells.append(f"<table:table-cell {kind}>{text}</table:table-cell>")
            case _:
                kind = 'office:value-type="string"'
                cells.append(f"<table:table-cell {kind}>{text}</table:table-cell>")
    return f"<table:table-row>{''.join(cells)}</table:table-row>"


def german_csv() -> bytes:
    """The first prompts as a German Excel saves a .csv: semicolons, commas, Windows-1252."""
    file = io.StringIO()
    writer = csv.writer(file, delimiter=";", lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for row in PROMPTS[:9]:
        cells = ("" if cell is None else str(cell) for cell in row)
        writer.writerow([cell.replace("1.5", "1,5") for cell in cells])
    return file.getvalue().replace("German on purpose", "für die Prüfung").encode("cp1252")


def prompts_json() -> bytes:
    """The prompts as one list of objects."""
    items = [json.loads(line) for line in prompts_jsonl().splitlines()]
    return (json.dumps(items, ensure_ascii=False, indent=1) + "\n").encode()


def delimited(separator: str) -> bytes:
    """The prompts as text with a separator."""
    file = io.StringIO()
    writer = csv.writer(file, delimiter=separator, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(PROMPTS)
    return file.getvalue().encode()


def prompts_jsonl() -> bytes:
    """The prompts as an object a line."""
    objects = (
        {name: value for name, value in zip(COLUMNS, row, strict=True) if value is not None}
        for row in PROMPTS
    )
    return "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in objects).encode()


def samples() -> dict[str, bytes]:
    """Every sample by its name."""
    return {
        "prompts.xlsx": prompts_xlsx(),
        "prompts.csv": delimited(","),
        "prompts.tsv": delimited("\t"),
        "prompts.jsonl": prompts_jsonl(),
        "prompts.txt": "".join(f"{row[0]}\n" for row in PROMPTS).encode(),
        "prompts.json": prompts_json(),
        "prompts.ods": prompts_ods(),
        "prompts-german.csv": german_csv(),
        "awkward.xlsx": awkward_xlsx(),
        "shots.xlsx": shots_xlsx(),
        **{f"texts/{n:02}.txt": f"{row[0]}\n".encode() for n, row in enumerate(PROMPTS[:3], 1)},
    }


def main(folder: Path = SAMPLES) -> None:
    """Writes every sample into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in samples().items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
