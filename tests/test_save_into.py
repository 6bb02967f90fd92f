"""Results beside the rows they came from: the user's own workbook, not a cell of it harmed."""

import io
import re
import zipfile
from pathlib import Path

import openpyxl
import pytest
from office import needs_office, sheets_in_office
from openpyxl.chart import BarChart, Reference
from openpyxl.comments import Comment
from openpyxl.drawing.image import Image
from openpyxl.formatting.rule import CellIsRule
from openpyxl.styles import Font, PatternFill
from openpyxl.worksheet.datavalidation import DataValidation
from openpyxl.worksheet.table import Table
from PIL import Image as Picture

from vqkit import Queue, Retry
from vqkit.errors import SheetError, UsageError

SAMPLES = Path(__file__).parent.parent / "data" / "samples"
YELLOW = PatternFill("solid", fgColor="FFFF00")


def workbook(path):
    """A workbook that has lived: formats, a chart, a picture, a table, rules, links, notes."""
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Shots"
    sheet.append(["prompt", "seconds", "double"])
    for n in range(5):
        sheet.append([f"a fox {n}", n, n * 2])
    for cell in sheet[1]:
        cell.font = Font(bold=True)
    sheet.column_dimensions["A"].width = 50
    for place in ("D3", "E3", "L4"):
        sheet[place].fill = YELLOW
    sheet["A2"].hyperlink = "https://example.org"
    sheet["A3"].comment = Comment("mine", "me")
    sheet.merge_cells("B8:D8")
    rule = CellIsRule(operator="greaterThan", formula=["2"], fill=YELLOW)
    sheet.conditional_formatting.add("B2:B6", rule)
    choice = DataValidation("list", formula1='"1,2"')
    choice.add("B2:B6")
    sheet.add_data_validation(choice)
    sheet.add_table(Table(displayName="T", ref="A1:C6"))
    chart = BarChart()
    chart.add_data(Reference(sheet, min_col=2, min_row=1, max_row=6))
    sheet.add_chart(chart, "P10")
    picture = io.BytesIO()
    Picture.new("RGB", (9, 9)).save(picture, "PNG")
    sheet.add_image(Image(picture), "P1")
    book.create_sheet("Sums")["A1"] = "=SUM(Shots!B2:B6)"
    book.save(path)
    return path


def paint(job):
    if job.payload.get("seconds") == 3:
        raise ValueError("=no such fox\x01")
    with job.output(".txt") as path:
        path.write_text(str(job.payload["prompt"]))


def run(q):
    q.run(paint, retry=Retry(max_attempts=1))


@pytest.fixture
def book(tmp_path):
    return workbook(tmp_path / "prompts.xlsx")


@pytest.fixture
def q(tmp_path, book):
    with Queue(tmp_path / "q.db") as queue:
        queue.load(book, sheet="Shots")
        run(queue)
        yield queue


def rows_of(path, sheet="Shots"):
    book = openpyxl.load_workbook(path)
    return [list(row) for row in book[sheet].iter_rows()]


def values_of(path, sheet="Shots"):
    return [[cell.value for cell in row] for row in rows_of(path, sheet)]


def cell_xml(path, part="xl/worksheets/sheet1.xml"):
    """Each cell of a sheet as it is written, by its place; and all else, in one text."""
    with zipfile.ZipFile(path) as archive:
        xml = archive.read(part).decode()
    pattern = re.compile(r'<c r="([A-Z]+[0-9]+)".*?(?:/>|</c>)', re.DOTALL)
    return {m[1]: m[0] for m in pattern.finditer(xml)}, pattern.sub("", xml)


def test_status_file_cost_and_error_stand_right_of_the_rows_they_belong_to(q, book, tmp_path):
    saved = q.save_into(book, tmp_path / "out.xlsx", sheet="Shots")
    assert str(saved) == "5 jobs saved to out.xlsx"
    rows = rows_of(saved)
    assert [c.value for c in rows[0]][:8] == [
        *("prompt", "seconds", "double", None),  # D8 is merged with B8
        *("status", "file", "cost", "error"),
    ]
    assert [row[4].value for row in rows[1:6]] == [
        *("completed", "completed", "completed", "failed", "completed")
    ]
    assert rows[4][7].value == "=no such fox_x0001_"
    assert rows[4][7].data_type == "s"
    for row, path in zip([rows[1], rows[2], rows[3], rows[5]], q.outputs(), strict=True):
        assert row[5].value == path.name
        assert (tmp_path / row[5].hyperlink.target).read_text() == row[0].value


def test_every_other_part_and_cell_of_the_workbook_is_as_it_was(q, book, tmp_path):
    saved = q.save_into(book, tmp_path / "out.xlsx", sheet="Shots")
    sheet, rels = "xl/worksheets/sheet1.xml", "xl/worksheets/_rels/sheet1.xml.rels"
    with zipfile.ZipFile(book) as before, zipfile.ZipFile(saved) as after:
        assert after.namelist() == before.namelist()
        assert [n for n in before.namelist() if before.read(n) != after.read(n)] == [sheet, rels]
        old = re.findall("<Relationship .*?/>", before.read(rels).decode())
        assert all(line in after.read(rels).decode() for line in old)
    cells_before, rest_before = cell_xml(book)
    cells_after, rest_after = cell_xml(saved)
    untouched = {place: xml for place, xml in cells_before.items() if place != "E3"}
    assert {place: cells_after[place] for place in untouched} == untouched
    new = re.compile('<hyperlink [^>]*r:id="vqkit[0-9]+"/>')
    assert new.sub("", rest_after) == rest_before
    # A cell that was blank and yellow is yellow still, the header is bold like its neighbours.
    rows = rows_of(saved)
    assert rows[2][4].fill.fgColor.rgb == "00FFFF00"
    assert rows[0][4].font.bold


def test_links_stand_where_the_format_wants_them_in_a_sheet_without_any(tmp_path, book):
    plain = openpyxl.load_workbook(book)
    plain["Shots"]["A2"].hyperlink = None
    plain.save(book)
    with Queue(tmp_path / "q.db") as q:
        q.load(book, sheet="Shots")
        run(q)
        _, rest = cell_xml(q.save_into(book, tmp_path / "out.xlsx", sheet="Shots"))
    order = ["</sheetData>", "<mergeCells", "<conditionalFormatting", "<dataValidations"]
    order += ["<hyperlinks>", "<pageMargins", "<drawing"]
    assert [rest.count(tag) for tag in order] == [1] * len(order)
    assert sorted(order, key=rest.index) == order


def test_the_source_is_written_over_only_when_told(q, book):
    before = book.read_bytes()
    with pytest.raises(UsageError, match=r"not written over.*prompts-results\.xlsx"):
        q.save_into(book, book, sheet="Shots")
    assert book.read_bytes() == before
    q.save_into(book, book, sheet="Shots", overwrite=True)
    assert values_of(book)[0][4] == "status"


def test_a_workbook_that_was_changed_since_it_was_saved_is_kept(q, book, tmp_path):
    out = tmp_path / "out.xlsx"
    q.save_into(book, out, sheet="Shots")
    q.save_into(book, out, sheet="Shots")
    edited = openpyxl.load_workbook(out)
    edited["Shots"]["K1"] = "my notes"
    edited.save(out)
    with pytest.raises(UsageError, match="changed since"):
        q.save_into(book, out, sheet="Shots")
    assert values_of(out)[0][10] == "my notes"


def test_rows_that_moved_are_found_and_rows_that_were_edited_get_nothing(q, book, tmp_path):
    edited = openpyxl.load_workbook(book)
    sheet = edited["Shots"]
    sheet["A2"], sheet["B2"], sheet["C2"] = "a fox 1", 1, 2  # rows 2 and 3 exchanged
    sheet["A3"], sheet["B3"], sheet["C3"] = "a fox 0", 0, 0
    sheet["A4"] = "a red fox"
    sheet["A7"] = "a new fox"
    for column in "ABC":
        sheet[f"{column}6"] = None
    edited.save(book)
    saved = q.save_into(book, tmp_path / "out.xlsx", sheet="Shots")
    rows = values_of(saved)
    assert [row[4] for row in rows[1:7]] == ["completed", "completed", None, "failed", None, None]
    assert "a-fox-1" in rows[1][5]
    assert "a-fox-0" in rows[2][5]
    assert saved.jobs == 3
    assert saved.notes == (
        "Rows moved since they were put, found by what they hold: 2, 3.",
        "Rows that hold something else than was put from there, so no result: 4.",
        "Rows for which, as they are now, the queue has no job: 7.",
        "Jobs whose row, as it was put, is not there any more: 3, 5.",
    )


def sheet_of(path, *rows):
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.save(path)
    return path


def say_seed(job):
    with job.output(".txt") as path:
        path.write_text(f"{job.payload['prompt']} {job.seed}")


def texts_beside(saved, tmp_path):
    """What the file that is linked beside each row says; None where there is none."""
    header, *rows = rows_of(saved, "Sheet")
    at = [cell.value for cell in header].index("file")
    links = [row[at].hyperlink for row in rows]
    return [(tmp_path / link.target).read_text() if link else None for link in links]


@pytest.mark.parametrize("named", [("key", "seed"), ("seed",), ("n", "seed")])
def test_rows_of_one_prompt_have_the_result_of_their_own_seed_wherever_they_stand(tmp_path, named):
    cells = {"key": ["k1", "k2", "k3"], "seed": [1, 2, 3], "n": ["same"] * 3}
    rows = [list(row) for row in zip(["fox", "fox", "owl"], *map(cells.get, named), strict=True)]
    with Queue(tmp_path / "q.db") as q:
        path = sheet_of(tmp_path / "p.xlsx", ["prompt", *named], *rows)
        q.load(path, provider="say_seed")  # what the rows leave open
        q.run(say_seed)
        for order in ([0, 1, 2], [1, 0, 2], [2, 1, 0], [1, 2, 0]):
            sheet_of(path, ["prompt", *named], *(rows[at] for at in order))
            saved = q.save_into(path, tmp_path / "out.xlsx")
            assert texts_beside(saved, tmp_path) == [
                f"{rows[at][0]} {rows[at][-1]}" for at in order
            ]


def test_a_row_whose_seed_was_edited_has_no_result(tmp_path):
    with Queue(tmp_path / "q.db") as q:
        header = ["key", "prompt", "seed"]
        path = sheet_of(tmp_path / "p.xlsx", header, ["k1", "fox", 1], ["k2", "fox", 2])
        q.load(path)
        q.run(say_seed)
        sheet_of(path, header, ["k1", "fox", 7], ["k2", "fox", 2])
        saved = q.save_into(path, tmp_path / "out.xlsx")
        assert texts_beside(saved, tmp_path) == [None, "fox 2"]
        assert saved.notes[0] == (
            "Rows that hold something else than was put from there, so no result: 2."
        )


def test_equal_rows_are_told_apart_by_their_order_and_by_how_many_samples_they_ask(tmp_path):
    header = ["prompt", "samples", "note"]
    rows = [["fox", 2, None], ["fox", 3, None], ["fox", 1, None]]
    with Queue(tmp_path / "q.db") as q:
        q.load(sheet_of(tmp_path / "p.xlsx", header, *rows))
        path = sheet_of(tmp_path / "p.xlsx", header, rows[1], rows[2], rows[0])
        saved = values_of(q.save_into(path, tmp_path / "out.xlsx"), "Sheet")
        assert [row[3] for row in saved[1:]] == ["queued"] * 3
        q.cancel(1, 2)  # the two of the first row
        saved = values_of(q.save_into(path, tmp_path / "out.xlsx"), "Sheet")
        assert [row[3] for row in saved[1:]] == ["queued", "queued", "cancelled"]


def test_a_hidden_row_takes_no_result_from_an_equal_one_that_was_put(tmp_path):
    path = sheet_of(tmp_path / "p.xlsx", ["prompt"], ["fox"], ["fox"], ["owl"])
    book = openpyxl.load_workbook(path)
    book.active.row_dimensions[2].hidden = True
    book.save(path)
    with Queue(tmp_path / "q.db") as q:
        q.load(path)
        saved = q.save_into(path, tmp_path / "out.xlsx")
    assert [row[1] for row in values_of(saved, "Sheet")[1:]] == [None, "queued", "queued"]
    assert saved.notes == ("Rows for which, as they are now, the queue has no job: 2.",)


def test_a_row_whose_job_another_sheet_put_first_has_its_result_too(tmp_path):
    first = sheet_of(tmp_path / "a.xlsx", ["prompt"], ["owl"], ["fox"])
    second = sheet_of(tmp_path / "b.xlsx", ["prompt"], ["fox"], ["cat"])
    with Queue(tmp_path / "q.db") as q:
        q.load(first)
        q.load(second)
        q.run(lambda job: None)
        for path in (first, second):
            saved = q.save_into(path, tmp_path / "out.xlsx")
            assert [row[1] for row in values_of(saved, "Sheet")[1:]] == ["completed"] * 2
            assert saved.notes == ()


def test_the_columns_of_the_load_are_remembered(tmp_path):
    header, row = ["Prompt", "n", None], ["fox", 1, "stray"]
    path = sheet_of(tmp_path / "p.xlsx", header, row)
    with Queue(tmp_path / "q.db") as q:
        for columns in (["Prompt"], {"Prompt": "prompt", "n": None}):
            q.load(path, columns=columns)
            saved = q.save_into(path, tmp_path / "out.xlsx")
            assert "queued" in values_of(saved, "Sheet")[1]
            assert not [note for note in saved.notes if note.startswith("Rows")]


def test_results_are_never_replaced_by_none(tmp_path):
    path = sheet_of(tmp_path / "p.xlsx", ["prompt", "n"], ["fox", 1])
    with Queue(tmp_path / "q.db") as q:
        q.load(path)
        before = q.save_into(path, tmp_path / "out.xlsx").path.read_bytes()
        with pytest.raises(UsageError, match=r"no row of p\.xlsx holds what one of its 1 jobs was"):
            q.save_into(path, tmp_path / "out.xlsx", columns=["prompt"])
        assert (tmp_path / "out.xlsx").read_bytes() == before


def test_hidden_rows_have_their_results_where_they_were_asked_for(tmp_path, book):
    edited = openpyxl.load_workbook(book)
    edited["Shots"].row_dimensions[3].hidden = True
    edited.save(book)
    for hidden, jobs in ((True, 5), (False, 4)):
        with Queue(tmp_path / f"{hidden}.db") as q:
            q.load(book, sheet="Shots", hidden=hidden)
            saved = q.save_into(book, tmp_path / f"{hidden}.xlsx", sheet="Shots")
            assert saved.jobs == jobs
            assert (values_of(saved)[2][4] == "queued") is hidden


def test_several_jobs_of_one_row_share_its_cells_and_have_a_column_for_each_file(tmp_path):
    book = openpyxl.Workbook()
    book.active.append(["prompt", "seconds", "samples", "Status"])
    book.active.append(["a fox", 1, 2, "mine"])
    book.active.append(["an owl", 3, 2, "mine"])
    book.active.append(["a bee", 1, 1, "mine"])
    book.save(tmp_path / "prompts.xlsx")
    with Queue(tmp_path / "q.db") as q:
        q.load(tmp_path / "prompts.xlsx")
        run(q)
        header, fox, owl, bee = values_of(
            q.save_into(tmp_path / "prompts.xlsx", tmp_path / "out.xlsx"), "Sheet"
        )
    assert header[4:] == ["status (vqkit)", "file", "file 2", "cost", "error"]
    assert fox[4] == "completed"
    assert None not in fox[5:7]
    assert owl[4:7] == ["failed", None, None]
    assert owl[8] == "job 3: =no such fox_x0001_\njob 4: =no such fox_x0001_"
    assert bee[6] is None


def test_only_the_columns_that_were_loaded_tell_whether_a_row_is_the_same(tmp_path, book):
    with Queue(tmp_path / "q.db") as q:
        q.load(book, sheet="Shots", columns=["prompt"])
        edited = openpyxl.load_workbook(book)
        edited["Shots"]["B2"] = 99
        edited.save(book)
        assert q.save_into(book, tmp_path / "out.xlsx", sheet="Shots").jobs == 5
    with Queue(tmp_path / "other.db") as q:
        q.load(book, sheet="Shots", columns={"prompt": "text"})
        found = q.save_into(book, tmp_path / "o.xlsx", sheet="Shots", columns={"prompt": "text"})
        assert (found.jobs, found.notes) == (5, ())


def test_a_workbook_nobody_made_with_a_library_gets_its_columns_too(tmp_path):
    """No dimension that is true, no relations, a coloured tail, rows that cannot run."""
    source = SAMPLES / "awkward.xlsx"
    with Queue(tmp_path / "q.db") as q:
        added = q.load(source)
        run(q)
        saved = q.save_into(source, tmp_path / "out.xlsx")
        assert saved.jobs == added.new
        rows = values_of(saved, "Shots")
        assert [row[6] for row in rows if row[1] == "Rain on a tin roof"] == ["completed"] * 2
        assert rows[15][6] == "completed"  # outside the dimension that was stated
        before, _ = cell_xml(source)
        after, _ = cell_xml(saved)
        assert {place: after[place] for place in before} == before


def test_a_sheet_written_with_a_namespace_prefix_keeps_it(q, book, tmp_path):
    prefixed = tmp_path / "prefixed.xlsx"
    with zipfile.ZipFile(book) as old, zipfile.ZipFile(prefixed, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "xl/worksheets/sheet1.xml":
                content = re.sub(rb"<(/?)(?=[a-zA-Z])", rb"<\1x:", content)
                content = content.replace(b"<x:worksheet xmlns=", b"<x:worksheet xmlns:x=")
            new.writestr(name, content)
    prefixed.replace(book)
    rows = values_of(q.save_into(book, tmp_path / "out.xlsx", sheet="Shots"))
    assert [row[4] for row in rows[1:6]].count("completed") == 4


def test_macros_are_kept_and_the_ending_with_them(tmp_path, book):
    with zipfile.ZipFile(book, "a") as archive:
        archive.writestr("xl/vbaProject.bin", b"\x00macro")
    macros = book.rename(tmp_path / "prompts.xlsm")
    with Queue(tmp_path / "m.db") as q:
        q.load(macros, sheet="Shots")
        with pytest.raises(UsageError, match=r"saved as \.xlsm; give the file this ending"):
            q.save_into(macros, tmp_path / "out.xlsx", sheet="Shots")
        with zipfile.ZipFile(q.save_into(macros, tmp_path / "o.xlsm", sheet="Shots")) as saved:
            assert saved.read("xl/vbaProject.bin") == b"\x00macro"


def test_a_file_elsewhere_is_linked_by_its_whole_path_and_odd_names_are_escaped(tmp_path, book):
    with Queue(tmp_path / "q.db", outputs=tmp_path / "100% foxes #1") as q:
        q.load(book, sheet="Shots", columns=["prompt"])
        run(q)
        (tmp_path / "deep").mkdir()
        near = rows_of(q.save_into(book, tmp_path / "o.xlsx", sheet="Shots"))
        far = rows_of(q.save_into(book, tmp_path / "deep" / "o.xlsx", sheet="Shots"))
    assert near[1][5].hyperlink.target.startswith("100%25%20foxes%20%231/00001-a-fox-0-")
    assert far[1][5].hyperlink.target.startswith(f"file://{tmp_path}/100%25%20foxes%20%231/")


def test_more_links_than_excel_opens_are_names_without_links(q, book, tmp_path, monkeypatch):
    monkeypatch.setattr("vqkit.export.workbook.LINKS", 3)
    saved = q.save_into(book, tmp_path / "out.xlsx", sheet="Shots")
    rows = rows_of(saved)
    assert [bool(row[5].hyperlink) for row in rows[1:6]] == [True, True, False, False, False]
    assert rows[5][5].value == q.outputs()[-1].name
    assert "2 files are named without a link" in saved.notes[0]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("prompts.csv", r"added to workbooks \(\.xlsx, \.xlsm\) only"),
        ("other.xlsx", "no job of this queue came from other.xlsx"),
    ],
)
def test_what_has_no_place_for_results_is_refused_in_a_sentence(q, tmp_path, source, said):
    other = openpyxl.Workbook()
    other.active.append(["prompt"])
    other.active.append(["a fox"])
    other.save(tmp_path / "other.xlsx")
    with pytest.raises(UsageError, match=said):
        q.save_into(tmp_path / source, tmp_path / "out.xlsx")


# -- and read again ------------------------------------------------------------------------------


def plans_of(q, path, **how):
    """The plan of a file, that of the frame pandas reads from it, and those of its copies."""
    import pandas as pd

    frame = pd.read_excel(path, engine="openpyxl")
    copy = path.with_suffix(".csv")
    frame.to_csv(copy, index=False)
    yield q.plan(path, **how)
    yield q.plan(copy, columns=how.get("columns"))
    yield q.plan(frame, columns=how.get("columns"))


@pytest.mark.parametrize("is_in_place", [False, True])
def test_the_workbook_with_the_results_is_the_same_rows_again(tmp_path, is_in_place):
    book = openpyxl.Workbook()
    book.active.append(["Prompt", "style", "note"])
    for n in range(4):
        book.active.append([f"a fox {n}", "oil", "mine"])
    book.save(tmp_path / "prompts.xlsx")
    columns = {"Prompt": "prompt", "note": None}
    with Queue(tmp_path / "q.db") as q:
        q.load(tmp_path / "prompts.xlsx", columns=columns)
        q.run(lambda job: {"n": job.number})
        target = tmp_path / ("prompts.xlsx" if is_in_place else "results.xlsx")
        for _ in range(2):  # the second adds its columns beside those of the first
            q.save_into(tmp_path / "prompts.xlsx", target, overwrite=is_in_place)
        plans = list(plans_of(q, target, columns=columns))
        assert [(plan.jobs, plan.same) for plan in plans] == [(0, 4)] * 3
        assert all("'status'" in str(plan) and "were left out" in str(plan) for plan in plans)
        assert q.load(target, columns=columns).new == 0
        with pytest.raises(SheetError, match=r"4 of the rows to put are there .* 'Prompt' now"):
            q.load(target if is_in_place else target.rename(tmp_path / "copy.xlsx"))
        target = target if is_in_place else tmp_path / "copy.xlsx"
        asked = q.plan(target, columns={**columns, "status": "status"})
        assert [column.name for column in asked.columns] == ["prompt", "style", "status"]


def test_columns_of_the_users_own_that_are_only_named_alike_are_read(q, tmp_path):
    mine = tmp_path / "shots.csv"
    mine.write_text("prompt,status,file,cost,error\na fox,draft,ref1.png,3,\na fox,,ref2.png,4,\n")
    q.load(mine)
    jobs = q.jobs(batch="shots.csv")
    assert [job.payload.get("file") for job in jobs] == ["ref1.png", "ref2.png"]
    assert jobs[0].payload["status"] == "draft"


def test_results_beside_columns_of_the_same_names_or_typed_over_are_still_results(q, tmp_path):
    told = ["draft,r1,1,,completed,a.mp4,0.5,", "idea,r2,2,,ok by me,b.mp4,0.5,"]
    names = ["status", "file", "cost", "error"]
    head = [*names, *(f"{name} (vqkit)" for name in names)]
    (tmp_path / "both.csv").write_text(
        "\n".join([",".join(["prompt", *head]), *(f"fox {n},{row}" for n, row in enumerate(told))])
    )
    assert q.plan(tmp_path / "both.csv").columns[-1].name == "error"


def test_a_status_that_is_no_text_is_the_users_own(q):
    rows = [{"prompt": "p", "status": ["draft"], "file": "a", "cost": 1, "error": None}]
    assert q.plan(rows).columns[1].name == "status"


def test_load_says_which_columns_it_took_for_results(q, tmp_path):
    mine = tmp_path / "shots.csv"
    mine.write_text("prompt,status,file,cost,error\na wolf,completed,ref1.png,3,\n")
    assert "Columns 'status' to 'error' hold results" in str(q.load(mine).notes)


def test_a_file_that_save_wrote_is_the_same_rows_again(q, book, tmp_path):
    q.put({"prompt": "by hand", "status": "mine", "payload.x": 1})
    for name in ("all.xlsx", "all.jsonl"):
        plan = q.plan(q.save(tmp_path / name).path)
        assert (plan.jobs, plan.same) == (0, 6), str(plan)
    frame = q.plan(q.to_frame())
    assert (frame.jobs, frame.same) == (0, 6)


def test_columns_that_only_look_a_little_like_results_are_yours(tmp_path):
    rows = [{"prompt": "a", "file": "b.png", "status": "mine", "cost": 3, "error": "none"}]
    with Queue(tmp_path / "q.db") as q:
        q.plan(rows).put()
        assert q.job(1).payload == rows[0]


@needs_office
def test_libreoffice_opens_the_workbook_with_the_results_in_it(q, book, tmp_path):
    saved = q.save_into(book, tmp_path / "out.xlsx", sheet="Shots")
    sheets = sheets_in_office(Path(saved), tmp_path)
    before = sheets_in_office(book, tmp_path)
    assert sheets["Sums"] == before["Sums"] == [["10"]]
    width = len(before["Shots"][0])
    assert [row[:width] for row in sheets["Shots"][:6]] == before["Shots"][:6]
    assert [row[4] for row in sheets["Shots"][1:6]].count("completed") == 4
    assert sheets["Shots"][4][7] == "=no such fox\x01"
