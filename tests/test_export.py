"""Results out, as files that a spreadsheet, a script and Excel read back as they were."""

import csv
import errno
import json
from datetime import datetime
from pathlib import Path

import openpyxl
import pytest

from vqkit import Queue
from vqkit.errors import StoreFull, UsageError
from vqkit.export import save

AWKWARD = {
    "formula": "=1+1",
    "plus": "+49 30 1234",
    "minus": "-1",
    "at": "@home",
    "broken": "#N/A",
    "control": "a\x00b\x1b[31mc",
    "lines": "one\ntwo\r\nthree",
    "escape": "_x0041_",
    "long": "x" * 40_000,
    "wide": "🦊" * 20_000,
    "big": 12345678901234567,
    "truth": True,
    "nested": {"a": [1, None]},
    "status": "mine",
}


@pytest.fixture
def q(tmp_path):
    with Queue(tmp_path / "q.db") as queue:
        queue.put({"prompt": "a fox"})
        queue.put({"prompt": "an owl", **AWKWARD})
        yield queue


def test_the_columns_of_all_payloads_come_first_then_how_each_job_stands(q, tmp_path):
    with save(q, tmp_path / "r.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0][:3] == ["job", "prompt", "formula"]
    assert rows[0].index("payload.status") < rows[0].index("status")
    assert rows[0][-1] == "finished"
    assert [row[1] for row in rows[1:]] == ["a fox", "an owl"]
    first = dict(zip(rows[0], rows[1], strict=True))
    assert first["formula"] == ""
    assert first["status"] == "queued"


def test_a_csv_holds_every_text_as_it_was(q, tmp_path):
    with save(q, tmp_path / "r.csv").open(encoding="utf-8", newline="") as file:
        row = list(csv.DictReader(file))[1]
    for name in ("formula", "plus", "minus", "at", "control", "lines", "long", "wide"):
        assert row[name] == AWKWARD[name]
    assert json.loads(row["nested"]) == AWKWARD["nested"]
    assert row["truth"] == "true"
    assert datetime.fromisoformat(row["created"]).utcoffset() is not None


def test_jsonl_gives_back_every_value(q, tmp_path):
    lines = save(q, tmp_path / "r.jsonl").read_text().splitlines()
    row = json.loads(lines[1])
    expected = {**AWKWARD, "payload.status": "mine", "status": "queued"}
    assert {name: row[name] for name in expected} == expected


def test_a_workbook_holds_text_as_text_and_nothing_as_a_formula(q, tmp_path):
    book = openpyxl.load_workbook(save(q, tmp_path / "r.xlsx"))
    header, _, line = book["jobs"].iter_rows()
    cells = {name.value: cell for name, cell in zip(header, line, strict=True)}
    for name in ("formula", "plus", "minus", "at", "broken"):
        assert (cells[name].data_type, cells[name].value) == ("s", AWKWARD[name])
    assert cells["control"].value == "a�b�[31mc"
    assert cells["lines"].value == "one\ntwo\nthree"
    assert cells["escape"].value == "_x005F_x0041_"  # which Excel shows as _x0041_
    assert cells["big"].value == "12345678901234567"
    assert cells["truth"].value is True
    assert isinstance(cells["created"].value, datetime)
    for name in ("long", "wide"):
        text = cells[name].value
        assert len(text.encode("utf-16-le")) // 2 <= 32_767
        assert text.endswith("a .csv or .jsonl file holds them all]")
    book.close()


def test_an_older_file_is_replaced_only_once_the_new_one_is_whole(q, tmp_path, monkeypatch):
    target = tmp_path / "r.csv"
    target.write_text("old")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("csv.writer", full)
        with pytest.raises(StoreFull, match=r"r\.csv cannot be written: No space"):
            save(q, target)
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir() if "part" in p.name] == []
    save(q, target)
    assert target.read_text().startswith("job,")


@pytest.mark.parametrize("sheet", ["foxes.csv", "foxes.jsonl"])
def test_the_sheet_the_jobs_came_from_is_never_written_over(tmp_path, sheet):
    path = tmp_path / sheet
    path.write_text("prompt\na fox\n" if sheet.endswith("csv") else '{"prompt": "a fox"}\n')
    before = path.read_bytes()
    with Queue(tmp_path / "q.db") as q:
        q.load(path)
        with pytest.raises(UsageError, match="the sheet the jobs came from"):
            save(q, path)
    assert path.read_bytes() == before


def test_a_sheet_of_a_workbook_is_not_written_over_either(tmp_path):
    book = openpyxl.Workbook()
    for name in ("one", "two"):
        sheet = book[name] if name in book.sheetnames else book.create_sheet(name)
        sheet.append(["prompt"])
        sheet.append(["a fox"])
    book.save(tmp_path / "foxes.xlsx")
    with Queue(tmp_path / "q.db") as q:
        q.load(tmp_path / "foxes.xlsx", sheet="two")
        with pytest.raises(UsageError, match="the sheet the jobs came from"):
            save(q, tmp_path / "foxes.xlsx")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("r.docx", r"saved as \.csv, \.jsonl, \.xlsx"),
        ("r", r"saved as \.csv"),
        ("none/r.csv", "a folder that does not exist"),
        ("folder.csv", "is a folder"),
    ],
)
def test_a_name_that_cannot_be_written_is_refused_in_a_sentence(q, tmp_path, name, said):
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(UsageError, match=said):
        save(q, tmp_path / name)


def test_more_rows_than_a_workbook_holds_are_refused(q, tmp_path, monkeypatch):
    monkeypatch.setattr("vqkit.export.XLSX_ROWS", 2)
    with pytest.raises(UsageError, match=r"save them as \.csv"):
        save(q, tmp_path / "r.xlsx")
    assert not Path(tmp_path / "r.xlsx").exists()


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".xlsx"])
def test_a_queue_without_jobs_gives_a_file_without_rows(tmp_path, ending):
    with Queue(tmp_path / "q.db") as q:
        assert save(q, tmp_path / f"r{ending}").exists()
