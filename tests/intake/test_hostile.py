"""Files made to harm: refused by their size, and nothing in them is ever followed."""

from __future__ import annotations

import sys
import tracemalloc
import zipfile
from pathlib import Path

import openpyxl
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from awkward import by_excel, by_libreoffice, by_openpyxl, cell, line, number, put_parts

from vqkit import Queue
from vqkit.errors import SheetError
from vqkit.intake import Row, read, specs

LAUGHS = (
    '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaaaaaaaaaaaa">'
    + "".join(f'<!ENTITY {b} "{f"&{a};" * 20}">' for a, b in zip("abcdefg", "bcdefgh", strict=True))
    + "]>"
)


def values(path: Path) -> list[dict[str, object]]:
    return [row.values for row in read(path) if isinstance(row, Row)]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_entities_in_an_ods_are_refused_before_they_grow(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.ods"
    by_libreoffice(line(cell("a")))(path)
    with zipfile.ZipFile(path) as archive:
        xml = archive.read("content.xml").decode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "content.xml", (LAUGHS + xml.replace("<text:p>a", "<text:p>&h;")).encode(encoding)
        )
    with pytest.raises(SheetError, match="has a document type of its own"):
        read(path)


def test_an_ods_that_unpacks_without_bounds_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "a.ods"
    by_libreoffice(line(cell("a" * (32 << 20))))(path)
    tracemalloc.start()
    try:
        with pytest.raises(SheetError, match=r"part content.xml unpacks .* 200 times its size"):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_shared_texts_that_would_fill_the_memory_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    by_openpyxl(["prompt"], ["a"])(path)
    put_parts(path, {"xl/sharedStrings.xml": "<sst>" + "<si><t>x</t></si>" * 2_000_000 + "</sst>"})
    with pytest.raises(SheetError, match=r"sharedStrings.xml unpacks from"):
        read(path)


def test_cells_and_rows_repeated_a_billion_times_cost_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.ods"
    billion = 'table:number-columns-repeated="1000000000"'
    by_libreoffice(
        line(cell("a"), number("1")),
        line(cell("b"), f"<table:table-cell {billion}/>"),
        line(attributes='table:number-rows-repeated="1000000000"'),
    )(path)
    tracemalloc.start()
    try:
        assert [row["prompt"] for row in values(path)] == ["a", "b"]
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_a_link_to_another_workbook_gives_its_stored_value_and_is_not_followed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.xlsx"
    secret = tmp_path / "secret.xlsx"
    by_openpyxl(["prompt"], ["secret"])(secret)
    by_excel(
        f'<row r="2"><c r="A2" t="str"><f>\'[{secret}]Sheet\'!A2</f><v>stored</v></c></row>'
        f'<row r="3"><c r="A3" t="str"><f>cmd|\'/c calc\'!A0</f></c></row>'
    )(path)
    assert values(path) == [{"prompt": "stored"}]


def test_macros_are_not_even_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsm"
    by_openpyxl(["prompt"], ["a"])(path)
    put_parts(path, {"xl/vbaProject.bin": "not a macro at all"})
    assert values(path) == [{"prompt": "a"}]


def test_a_part_that_names_a_place_outside_is_written_nowhere(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    path = folder / "a.xlsx"
    by_openpyxl(["prompt"], ["a"])(path)
    put_parts(path, {"../../evil.txt": "evil", "/evil.xml": "<a/>"})
    assert values(path) == [{"prompt": "a"}]
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a.xlsx", "inner"]


def test_a_cell_that_begins_like_a_formula_stays_the_text_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("prompt\n=cmd|'/c calc'!A0\n@SUM(1)\n+1\n-1\n")
    texts = [row["prompt"] for row in values(path)]
    assert texts == ["=cmd|'/c calc'!A0", "@SUM(1)", "+1", "-1"]


def test_a_path_in_a_cell_writes_nothing_outside_the_output_folder(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    for row in (["prompt", "name"], ["../../evil", "/etc/evil"], ["C:\\evil", "..\\evil"]):
        book.worksheets[0].append(row)
    book.save(tmp_path / "a.xlsx")

    def render(job: object) -> None:
        with job.output(".txt") as file:  # type: ignore[attr-defined]
            file.write_text("x")

    with Queue(tmp_path / "q" / "q.db") as q:
        q.load(tmp_path / "a.xlsx")
        q.run(render)
        files = q.outputs()
        assert len(files) == 2
        assert all(file.parent == q.outputs_folder for file in files)
    assert {p.name for p in tmp_path.iterdir()} == {"a.xlsx", "q"}


def test_a_sheet_of_entities_counted_as_rows_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    by_excel("<row><c t='str'><v>&h;</v></c></row>", before="")(path)
    with pytest.raises(SheetError, match="is damaged after row"):
        list(specs(read(path)))
