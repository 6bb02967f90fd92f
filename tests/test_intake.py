"""What goes in as a sheet, a file, a frame or a list comes out as jobs, or as named problems."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vqkit.errors import SheetError, UsageError
from vqkit.intake import Row, Table, read, specs
from vqkit.intake.seen import Seen
from vqkit.job import JobSpec, RowProblem, content_key

FRAMES: dict[str, Callable[[dict[str, list[Any]]], Any]] = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "polars lazy": pl.LazyFrame,
    "pyarrow": pa.table,
}
# Entities that stand for twenty of the one before: "billion laughs".
BOMB = (
    '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaaaaaaaaaaaa">'
    + "".join(f'<!ENTITY {b} "{f"&{a};" * 20}">' for a, b in zip("abcdefg", "bcdefgh", strict=True))
    + "]><x>&h;</x>"
)
MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"


def values(table: Table) -> list[dict[str, Any]]:
    return [row.values for row in table if isinstance(row, Row)]


def problems(source: Any, **kwargs: Any) -> dict[int, str]:
    table = source if isinstance(source, Table) else read(source, **kwargs)
    return {item.row: item.reason for item in specs(table) if isinstance(item, RowProblem)}


def jobs(source: Any, **defaults: Any) -> list[JobSpec]:
    table = source if isinstance(source, Table) else read(source)
    return [item for item in specs(table, **defaults) if isinstance(item, JobSpec)]


def one(source: Any, **defaults: Any) -> JobSpec:
    (job,) = jobs(source, **defaults)
    return job


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture
def workbook(tmp_path: Path) -> Callable[..., Path]:
    """A workbook as openpyxl writes it, of one sheet or of several by name."""

    def workbook(*rows: list[Any], name: str = "book.xlsx", **sheets: list[list[Any]]) -> Path:
        book = openpyxl.Workbook()
        book.remove(book["Sheet"])
        for title, lines in (sheets or {"Sheet1": list(rows)}).items():
            sheet = book.create_sheet(title)
            for line in lines:
                sheet.append(line)
        book.save(tmp_path / name)
        return tmp_path / name

    return workbook


@pytest.fixture
def sheet_xml(tmp_path: Path, workbook: Callable[..., Path]) -> Callable[[str], Path]:
    """A workbook whose only sheet is the XML given, for what openpyxl would not write."""

    def sheet_xml(inside: str) -> Path:
        whole = f'<worksheet xmlns="{MAIN}">{inside}</worksheet>'
        return replace_part(workbook(["prompt"]), "xl/worksheets/sheet1.xml", whole)

    return sheet_xml


def replace_part(path: Path, part: str, content: str | bytes) -> Path:
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    parts[part] = content.encode() if isinstance(content, str) else content
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return path


Write = Callable[[str, "str | bytes"], Path]
Book = Callable[..., Path]


# --- the public surface


def test_importing_intake_loads_no_reader_of_sheets_or_frames() -> None:
    code = (
        "import sys, vqkit.intake;"
        "print([m for m in ('openpyxl', 'pandas', 'narwhals', 'polars') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_list_of_dicts_becomes_jobs() -> None:
    job = one([{"prompt": "a fox", "seconds": 2, "priority": 3}])
    assert job.payload == {"prompt": "a fox", "seconds": 2}
    assert (job.priority, job.row, job.source) == (3, 1, "rows")
    assert job.key == content_key(job)


def test_a_table_can_be_read_again() -> None:
    table = read([{"prompt": "a"}, {"prompt": "b"}])
    assert list(table) == list(table)


def test_a_generator_is_read_once_and_says_so_the_second_time() -> None:
    table = read({"prompt": str(n)} for n in range(300))
    assert len(list(table)) == 300
    with pytest.raises(SheetError, match="can be read only once; pass a list"):
        iter(table)


def test_an_endless_generator_is_read_as_it_comes() -> None:
    def endless() -> Iterator[dict[str, str]]:
        while True:
            yield {"prompt": "again"}

    rows = specs(read(endless()))
    assert len({next(rows).key for _ in range(300)}) == 300  # type: ignore[union-attr]


def test_an_empty_list_or_frame_has_no_jobs_and_is_no_error() -> None:
    assert jobs([]) == []
    assert jobs(read([], columns=["prompt"])) == []
    assert jobs(pd.DataFrame({"prompt": []})) == []


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"prompt": "x"}, "found one dict"),
        (42, "found a int"),
        (b"prompt", "found a bytes"),
        (None, "found a NoneType"),
        (pd.Series(["x"]), "found a single column"),
    ],
)
def test_a_source_that_is_no_rows_is_named(source: Any, said: str) -> None:
    with pytest.raises(SheetError, match=said):
        read(source)


def test_rows_that_are_no_dicts_are_problems_and_the_rest_goes_on() -> None:
    rows: list[Any] = ["a fox", {"prompt": "a dog"}, None, [1], 7]
    assert [job.payload["prompt"] for job in jobs(rows)] == ["a dog"]
    assert sorted(problems(rows)) == [1, 3, 4, 5]
    assert "is text; expected an object" in problems(rows)[1]


# --- what a cell becomes, whichever reader read it


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("007", "007"),
        ("NA", "NA"),
        ("None", "None"),
        ("1e5", "1e5"),
        (" spaces ", " spaces "),
        ("12345678901234567", "12345678901234567"),
        (0, 0),
        (False, False),
        (1.0, 1),
        (-0.0, 0),
        (2.5, 2.5),
        (2.0**53, 2.0**53),
        (12345678901234567, 12345678901234567),
        (np.int64(3), 3),
        (np.float64(3), 3),
        (np.bool_(True), True),
        (np.str_("x"), "x"),
        (np.datetime64("2026-05-01T09:30:00.000000000"), "2026-05-01T09:30:00"),
        (Decimal("1.50"), 1.5),
        (Decimal("4"), 4),
        (datetime(2026, 5, 1), "2026-05-01"),
        (datetime(2026, 5, 1, 9, 30), "2026-05-01T09:30:00"),
        (datetime(2026, 5, 1, tzinfo=UTC), "2026-05-01T00:00:00+00:00"),
        (date(2026, 5, 1), "2026-05-01"),
        (time(9, 30), "09:30:00"),
        (timedelta(minutes=90), "1:30:00"),
        (pd.Timestamp("2026-05-01T09:30Z"), "2026-05-01T09:30:00+00:00"),
        ([1, {"a": None}], [1, {"a": None}]),
    ],
)
def test_a_cell_is_what_a_person_sees(raw: Any, value: Any) -> None:
    payload = one([{"prompt": "x", "cell": raw}]).payload
    assert payload["cell"] == value
    assert type(payload["cell"]) is type(value)


@pytest.mark.parametrize(
    "raw",
    [
        None,
        "",
        "  ",
        "\n",
        float("nan"),
        np.nan,
        pd.NA,
        pd.NaT,
        np.datetime64("NaT"),
        Decimal("nan"),
    ],
)
def test_a_blank_cell_is_absent(raw: Any) -> None:
    assert one([{"prompt": "x", "cell": raw}]).payload == {"prompt": "x"}


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"bytes", "is a bytes, which JSON cannot carry"),
        (float("inf"), "JSON has no word for"),
        (2**63, "beyond 64 bits"),
        ("\ud800", "half a character"),
        ({1: "x"}, "keys are text"),
        ([float("nan")], "JSON has no word for"),
        (object(), "JSON cannot carry"),
    ],
)
def test_what_json_cannot_carry_is_a_problem_of_its_row(raw: Any, said: str) -> None:
    rows = [{"prompt": "a"}, {"prompt": "b", "cell": raw}, {"prompt": "c"}]
    assert [job.row for job in jobs(rows)] == [1, 3]
    assert said in problems(rows)[2]


@pytest.mark.parametrize("row", [{}, {"prompt": ""}, {"prompt": None, "priority": 3}])
def test_a_row_with_nothing_to_run_is_a_problem(row: dict[str, Any]) -> None:
    assert "nothing to run" in problems([row])[1]


# --- keys


def test_equal_rows_get_keys_of_their_own_and_the_same_ones_again() -> None:
    rows = [{"prompt": "a"}, {"prompt": "b"}, {"prompt": "a"}, {"prompt": "a"}]
    keys = [job.key for job in jobs(rows)]
    assert len(set(keys)) == 4
    assert keys == [job.key for job in jobs(rows)]
    base = str(keys[0])
    assert keys[2:] == [f"{base}#2", f"{base}#3"]


def test_a_setting_that_changes_the_render_changes_the_key_and_priority_does_not() -> None:
    plain, first, seeded, elsewhere = (
        one([{"prompt": "a", **more}])
        for more in ({}, {"priority": 9}, {"seed": 1}, {"account": "b"})
    )
    assert plain.key == first.key
    assert len({plain.key, seeded.key, elsewhere.key}) == 3


def test_a_default_counts_in_the_key_like_a_setting_in_the_row() -> None:
    given = one([{"prompt": "a"}], provider="local")
    assert given.key == one([{"prompt": "a", "provider": "local"}]).key


def test_a_key_given_twice_is_a_problem_that_names_the_first_row() -> None:
    rows = [{"prompt": "a", "key": "k"}, {"prompt": "b", "key": 7}, {"prompt": "c", "key": "k"}]
    assert [job.key for job in jobs(rows)] == ["k", "7"]
    assert "its key 'k' is that of row 1" in problems(rows)[3]


# --- settings


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("priority", 5, "priority", 5),
        ("priority", "-5", "priority", -5),
        ("priority", " 5.0 ", "priority", 5),
        ("samples", "3", "samples", 3),
        ("max_attempts", 2, "max_attempts", 2),
        ("seed", 0, "seed", 0),
        ("seed", str(2**63 - 1), "seed", 2**63 - 1),
        ("provider", "local", "provider", "local"),
        ("account", 7, "account", "7"),
        ("key", " shot-1 ", "key", "shot-1"),
        ("timeout_s", 1.5, "timeout_ms", 1500),
        ("timeout_s", "90", "timeout_ms", 90_000),
        ("not_before", "2026-05-01T09:30:00+00:00", "not_before_ms", 1_777_627_800_000),
        ("not_before", "2026-05-01 09:30Z", "not_before_ms", 1_777_627_800_000),
        ("expires", 1_777_627_800, "expires_ms", 1_777_627_800_000),
        ("expires", datetime.fromisoformat("2026-05-01T09:30Z"), "expires_ms", 1_777_627_800_000),
    ],
)
def test_a_settings_column_sets_the_job(name: str, value: Any, field: str, expected: Any) -> None:
    job = one([{"prompt": "x", name: value}])
    assert getattr(job, field) == expected
    assert job.payload == {"prompt": "x"}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("priority", "high", "priority is 'high'; expected a whole number"),
        ("priority", True, "expected a whole number"),
        ("priority", 1.5, "expected a whole number"),
        ("priority", 2**40, "expected a whole number"),
        ("samples", 0, "expected a whole number from 1 to 1000"),
        ("samples", 1001, "expected a whole number from 1 to 1000"),
        ("max_attempts", 0, "from 1 to 1000"),
        ("seed", "blue", "seed is 'blue'"),
        ("seed", -1, "expected a whole number from 0"),
        ("seed", "1_000", "expected a whole number from 0"),
        ("provider", ["local"], "expected text"),
        ("account", True, "expected text"),
        ("timeout_s", 0, "expected seconds"),
        ("timeout_s", "soon", "expected seconds"),
        ("timeout_s", "inf", "expected seconds"),
        ("not_before", "tomorrow", "expected a date and time such as"),
        ("not_before", 46143, "expected a date and time such as"),
        ("not_before", True, "expected a date and time such as"),
        ("expires", 1e300, "expected a date and time such as"),
        ("expires", [1], "expected a date and time such as"),
        ("key", "\ud800", "half a character"),
    ],
)
def test_a_setting_it_cannot_have_is_a_problem_of_its_row(name: str, value: Any, said: str) -> None:
    rows = [{"prompt": "x", name: value}, {"prompt": "y"}]
    assert said in problems(rows)[1]
    assert len(jobs(rows)) == 1


@pytest.mark.parametrize("name", ["Priority", "SEED", "batch", "seconds"])
def test_any_other_column_is_payload(name: str) -> None:
    assert one([{"prompt": "x", name: "1"}]).payload == {"prompt": "x", name: "1"}


def test_a_row_that_expires_before_it_may_start_is_a_problem() -> None:
    row = {"prompt": "x", "not_before": "2026-05-02", "expires": "2026-05-01"}
    assert "expires before its not_before" in problems([row])[1]


def test_the_row_wins_over_the_default() -> None:
    first, second = jobs(
        [{"prompt": "a", "priority": 1, "samples": 2}, {"prompt": "b"}],
        priority=9,
        samples=4,
        provider="local",
        batch="monday",
        timeout_ms=5,
    )
    assert (first.priority, first.samples) == (1, 2)
    assert (second.priority, second.samples) == (9, 4)
    assert {(j.provider, j.batch, j.timeout_ms) for j in (first, second)} == {
        ("local", "monday", 5)
    }


@pytest.mark.parametrize("default", [{"samples": 0}, {"priority": "high"}, {"max_attempts": -1}])
def test_a_default_no_row_could_have_is_refused_before_the_first_row(
    default: dict[str, Any],
) -> None:
    with pytest.raises(UsageError, match="expected a whole number"):
        specs(read([{"prompt": "x"}]), **default)


# --- choosing columns


def test_columns_keeps_what_it_lists() -> None:
    table = read([{"prompt": "a", "note": "n", "priority": 2}], columns=["prompt"])
    assert table.columns == ("prompt",)
    assert one(table).payload == {"prompt": "a"}


def test_columns_renames_and_a_setting_by_its_name_is_a_setting() -> None:
    job = one(read([{"Text": "a", "P": 2}], columns={"Text": "prompt", "P": "priority"}))
    assert (job.payload, job.priority) == ({"prompt": "a"}, 2)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["prmpt"], "has 'prompt', 'note', and no column 'prmpt'"),
        ({"x": "prompt"}, "no column 'x'"),
        ([], "name at least one"),
        ({"prompt": "a", "note": "a"}, "two columns one name"),
    ],
)
def test_columns_that_cannot_be_chosen_are_named(columns: Any, said: str) -> None:
    with pytest.raises(SheetError, match=said):
        read([{"prompt": "a", "note": "n"}], columns=columns)


def test_a_bad_cell_in_a_column_not_chosen_harms_nobody(workbook: Book) -> None:
    path = workbook(["prompt", "sum"], ["a", "=1/0"])
    assert sorted(problems(path)) == [2]
    assert problems(path, columns=["prompt"]) == {}


# --- headers, in every kind of sheet


Sheet = Callable[[list[list[Any]]], Any]


@pytest.fixture(params=["xlsx", "csv", "tsv", "csv with ;"])
def sheet(request: pytest.FixtureRequest, write: Write, workbook: Book) -> Sheet:
    """The same rows in each kind of file that has a header row."""
    kind = request.param

    def sheet(rows: list[list[Any]]) -> Path:
        if kind == "xlsx":
            return workbook(*rows)
        file = io.StringIO()
        csv.writer(file, delimiter={"tsv": "\t", "csv with ;": ";"}.get(kind, ",")).writerows(rows)
        return write(f"book.{kind[:3]}", file.getvalue())

    return sheet


def test_rows_keep_the_number_a_person_sees(sheet: Sheet) -> None:
    path = sheet([["prompt", "n"], ["a", "x"], [None, None], ["b", "y"]])
    assert [(job.row, job.payload["prompt"]) for job in jobs(path)] == [(2, "a"), (4, "b")]


def test_text_in_a_sheet_stays_text(sheet: Sheet) -> None:
    texts = ["007", "NA", "0", "42", "1e5", "None", "TRUE", "=x", "2026-05-01", 'a "q"', "é,;|\n"]
    path = sheet([["id", "prompt"], *([f"i{i}", text] for i, text in enumerate(texts))])
    if path.suffix == ".xlsx":
        book = openpyxl.load_workbook(path)
        book.worksheets[0]["B9"].data_type = "s"  # '=x' as text, as a person can enter it
        book.save(path)
    assert [job.payload["prompt"] for job in jobs(path)] == texts


def test_two_columns_of_one_name_are_named_by_their_letters(sheet: Sheet) -> None:
    path = sheet([["id", "prompt", "note", "prompt"], ["1", "a", "b", "c"]])
    with pytest.raises(SheetError, match=r"columns B and D of .* are both named 'prompt'"):
        read(path)


def test_three_columns_of_one_name_are_all_named(sheet: Sheet) -> None:
    with pytest.raises(SheetError, match=r"columns A, B and C of .* are all named 'prompt'"):
        read(sheet([["prompt", "prompt ", " prompt"], ["a", "b", "c"]]))


def test_spaces_around_a_header_are_taken_off_and_said(sheet: Sheet) -> None:
    table = read(sheet([["prompt ", "n"], ["a", "x"]]))
    assert table.columns == ("prompt", "n")
    assert "Column A is named 'prompt '; taken as 'prompt'." in table.notes


def test_data_under_a_blank_header_is_an_error_that_names_the_column(sheet: Sheet) -> None:
    path = sheet([["prompt", None, "note"], ["a", None, "n"], ["b", "oh", "n"]])
    with pytest.raises(SheetError, match=r"column B holds 'oh' and has no name .row 3 of book"):
        read(path)
    assert len(jobs(read(path, columns=["prompt"]))) == 2


def test_data_under_a_blank_header_far_down_is_a_problem_of_its_row(sheet: Sheet) -> None:
    rows = [[f"p{i}", None, "n"] for i in range(150)]
    rows[140][1] = "oh"
    found = problems(sheet([["prompt", None, "note"], *rows]))
    assert found == {142: "column B holds 'oh' and has no name"}


def test_a_blank_header_over_blank_cells_is_nothing(sheet: Sheet) -> None:
    path = sheet([["prompt", None, "note", None], ["a", None, "n", " "]])
    assert read(path).columns == ("prompt", "note")
    assert one(path).payload == {"prompt": "a", "note": "n"}


def test_a_header_without_rows_is_an_error(sheet: Sheet) -> None:
    with pytest.raises(SheetError, match=r"has a header .* and no rows"):
        read(sheet([["prompt", "n"], [None, None], [" ", None]]))


def test_a_short_row_is_a_row_with_blanks(sheet: Sheet) -> None:
    assert one(sheet([["prompt", "note"], ["a"]])).payload == {"prompt": "a"}


def test_a_file_changed_so_that_its_columns_differ_is_not_read_again(sheet: Sheet) -> None:
    table = read(sheet([["prompt", "n"], ["a", "x"]]))
    assert len(list(table)) == 1
    sheet([["prompt", "m"], ["a", "x"]])
    with pytest.raises(SheetError, match="have changed since it was read"):
        iter(table)


# --- files that are not what they should be


def test_a_missing_file_suggests_the_close_name(write: Write, tmp_path: Path) -> None:
    write("Prompts.csv", "prompt\na\n")
    with pytest.raises(SheetError, match=r"there is no file .*promts\.csv\. Did you mean Prompts"):
        read(tmp_path / "promts.csv")
    with pytest.raises(SheetError, match=r"In that folder: Prompts\.csv"):
        read(str(tmp_path / "zebra.xlsx"))
    with pytest.raises(SheetError, match="There is no folder"):
        read(tmp_path / "nowhere" / "x.csv")


def test_a_folder_is_named_with_what_it_holds(write: Write, tmp_path: Path) -> None:
    write("a.csv", "prompt\na\n")
    with pytest.raises(SheetError, match=r"is a folder; expected a file. In that folder: a\.csv"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.pdf", b"x", r"extension \.pdf.* expected one of \.xlsx, .*\.txt"),
        ("a.xls", b"x", r"extension \.xls,.* save it as \.xlsx"),
        ("noext", b"x", r"extension \(none\)"),
        ("a.csv", b"", "is empty"),
        ("a.xlsx", b"", "is empty"),
        ("a.csv", b"\n \n", "has only blank lines"),
        ("a.txt", b"\n \n", "has only blank lines"),
        ("a.jsonl", b"\n \n", "has only blank lines"),
        ("a.json", b"[]", "holds an empty list"),
        ("a.json", b'{"prompt": "x"}', "holds one object; expected a list"),
        ("a.json", b"[{]", "is not JSON"),
        ("a.json", b'[{"prompt": 1, "prompt": 2}]', "'prompt' stands twice"),
        ("a.json", b"[" * 100_000, "is not JSON"),
        ("a.jsonl", b'[\n{"prompt": "a"},\n{"prompt": "b"}\n]', r"extension \.json"),
        ("a.jsonl", b'{\n "prompt": "a"\n}', "does not hold an object a line"),
        ("a.xlsx", b"prompt,seconds\na,2\n", "is not an Excel workbook; if it is text"),
        ("a.xlsx", b"PK\x03\x04 and no more", "is cut short or damaged"),
        ("a.xlsx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 600, r"old Excel file \(\.xls\)"),
        (
            "a.xlsx",
            b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
            + b"\0" * 600
            + "EncryptedPackage".encode("utf-16le"),
            "is protected by a password",
        ),
        ("a.csv", b"PK\x03\x04" + b"x" * 30, r"workbook or archive.*extension \.xlsx"),
        ("a.csv", b"p\0r\0o\0m\0p\0t\0\n\0", "it has zero bytes"),
        ("a.csv", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is not text"),
        ("a.csv", b"prompt\n\x81\x8d\n", "cannot be read as UTF-8 or Windows-1252"),
        ("a.csv", b"\xff\xfep\0r", "cannot be read as UTF-16"),
        ("a.txt", b"prompt\tseconds\na\t2\n", r"has tabs in it.*extension \.tsv"),
        ("a.tsv", b"prompt,seconds\na,2\n", r"has no tab.*extension \.csv"),
        ("a.csv", b'"prompt\na,b\n', "the header of a.csv cannot be read"),
    ],
)
def test_a_file_that_cannot_be_rows_says_what_it_is(
    write: Write, name: str, content: bytes, said: str
) -> None:
    with pytest.raises(SheetError, match=said):
        read(write(name, content))


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.txt"])
def test_a_sheet_is_asked_of_a_workbook_only(write: Write, name: str) -> None:
    with pytest.raises(SheetError, match="has no sheets; leave out sheet='S'"):
        read(write(name, "prompt\na\n"), sheet="S")
    with pytest.raises(SheetError, match="for workbooks"):
        read([], sheet="S")


def test_every_sheet_error_is_one_line_and_pickles(write: Write) -> None:
    import pickle

    with pytest.raises(SheetError) as caught:
        read(write("a.pdf", "x"))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert "\n" not in str(caught.value)


# --- text with a separator


@pytest.mark.parametrize(
    ("encoding", "said"),
    [
        ("utf-8", "UTF-8, with"),
        ("utf-8-sig", "UTF-8 with a byte order mark"),
        ("utf-16", "UTF-16"),
        ("utf-32", "UTF-32"),
        ("cp1252", "Windows-1252, since it is not UTF-8"),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_an_encoding_is_found_and_said(
    write: Write, encoding: str, said: str, newline: str
) -> None:
    text = newline.join(["prompt,note", "café – “x”,n", "b,n", ""])
    table = read(write("a.csv", text.encode(encoding)))
    assert table.columns == ("prompt", "note")
    assert values(table)[0] == {"prompt": "café – “x”", "note": "n"}
    assert said in table.notes[0]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
def test_lines_of_text_and_json_know_encodings_too(write: Write, name: str, encoding: str) -> None:
    line = "café" if name == "a.txt" else '{"prompt": "café"}'
    assert one(write(name, f"{line}\r\n".encode(encoding))).payload == {"prompt": "café"}


@pytest.mark.parametrize(
    ("separator", "word"), [(",", "comma"), (";", "semicolon"), ("\t", "tab"), ("|", "bar")]
)
def test_a_separator_is_found_on_the_header_and_said(
    write: Write, separator: str, word: str
) -> None:
    lines = [["prompt", '"a,b;c|d"', "note"], ["x", "y", "z"]]
    table = read(write("a.csv", "\n".join(separator.join(line) for line in lines)))
    assert table.columns == ("prompt", "a,b;c|d", "note")
    assert f"with a {word} between" in table.notes[0]


@pytest.mark.parametrize("told", ["sep=;", "SEP=;", "sep=^"])
def test_the_separator_excel_writes_on_the_first_line_is_taken(write: Write, told: str) -> None:
    sep = told[-1]
    job = one(write("a.csv", f"{told}\r\nprompt{sep}note,\r\na, b{sep}n\r\n"))
    assert (job.row, job.payload) == (3, {"prompt": "a, b", "note,": "n"})


def test_a_row_with_too_many_cells_is_a_problem_and_the_rest_goes_on(write: Write) -> None:
    path = write("a.csv", "prompt,note\nA fox, at dawn,n\nb,n,,\nc,n\n")
    assert [job.row for job in jobs(path)] == [3, 4]
    assert "has 3 cells and the header 2" in problems(path)[2]


def test_a_single_column_with_a_comma_in_a_prompt_is_a_problem_not_half_a_prompt(
    write: Write,
) -> None:
    assert sorted(problems(write("a.csv", "prompt\nA fox, at dawn\nb\n"))) == [2]


def test_cells_over_several_lines_count_as_one_row(write: Write) -> None:
    path = write("a.csv", 'prompt,n\n"two\nlines",1\n\nb,2\n')
    assert [(job.row, job.payload["prompt"]) for job in jobs(path)] == [
        (2, "two\nlines"),
        (4, "b"),
    ]


def test_quotation_marks_of_a_file_written_without_quoting_stay(write: Write) -> None:
    path = write("a.tsv", 'prompt\tn\n"BUZZ" on a wall\t1\nsay "hi"\t2\n')
    assert [job.payload["prompt"] for job in jobs(path)] == ['"BUZZ" on a wall', 'say "hi"']
    assert "quotation marks belong to the text" in read(path).notes[0]


def test_quotation_marks_of_a_quoted_tsv_enclose(write: Write) -> None:
    path = write("a.tsv", 'prompt\tn\n"a ""b"" c"\t1\n"two\nlines"\t2\n')
    assert [job.payload["prompt"] for job in jobs(path)] == ['a "b" c', "two\nlines"]


def test_text_after_a_closing_quote_is_a_problem_of_its_line_only(write: Write) -> None:
    path = write("a.csv", 'prompt,n\n"a, b" c,1\n"d, e",2\n')
    assert [job.payload["prompt"] for job in jobs(path)] == ["d, e"]
    assert "line 2 is malformed" in problems(path)[2]


@pytest.mark.parametrize("rest", ["c,2\nd,3\n", 'c,2\n"d, e",3\nf,4\n'])
def test_after_a_quote_that_never_closes_nothing_is_run(write: Write, rest: str) -> None:
    path = write("a.csv", f'prompt,n\na,0\n"b, oh,1\n{rest}')
    assert [job.payload["prompt"] for job in jobs(path)] == ["a"]
    assert "quotation mark in line 3 is not closed" in problems(path)[3]
    assert "nothing from here on was read" in problems(path)[3]


def test_a_csv_cell_may_be_as_long_as_a_payload_and_a_longer_one_is_told(write: Write) -> None:
    limit = csv.field_size_limit()
    path = write("a.csv", f'prompt,n\n{"x" * 1_000_000},1\n{"y" * 1_100_000},2\n"z\nz",3\n')
    assert [len(job.payload["prompt"]) for job in jobs(path)] == [1_000_000, 3]
    assert problems(path) == {
        3: "a cell that begins in line 3 has more than 1,048,576 characters, the most a payload"
        " holds; store the text in a file and put its path"
    }
    assert csv.field_size_limit() == limit  # it is the whole process's


@pytest.mark.parametrize("breaks", ["", "\n"])
def test_behind_a_long_cell_that_is_not_closed_nothing_is_run(write: Write, breaks: str) -> None:
    text = f'"{"y" * 600_000}{breaks}{"y" * 600_000}\nnot,"a row'
    path = write("a.csv", f'prompt,n\na,1\n{text}",2\nb,3\n')
    assert [job.payload["prompt"] for job in jobs(path)] == ["a"]
    assert "more than 1,048,576 characters: is a quotation mark not closed?" in problems(path)[3]


def test_a_blank_line_before_the_header_is_passed_over_and_counted(write: Write) -> None:
    assert one(write("a.csv", "\n\nprompt;n\na;1\n")).row == 4


# --- a prompt a line, an object a line


def test_a_prompt_a_line(write: Write) -> None:
    table = read(write("a.txt", "a fox\n\n  \n42\n, with \u2028 marks\x0b in it"))
    assert [(row.number, row.values) for row in table if isinstance(row, Row)] == [
        (1, {"prompt": "a fox"}),
        (4, {"prompt": "42"}),
        (5, {"prompt": ", with \u2028 marks\x0b in it"}),
    ]


def test_bad_json_lines_are_problems_that_name_the_line(write: Write) -> None:
    lines = [
        '{"prompt": "a", "n": [1, {"x": null}]}',
        '{"prompt": "b"',
        "",
        '["c"]',
        '{"prompt": "d", "prompt": "e"}',
        '{"prompt": "f", "n": {"x": 1, "x": 2}}',
        '{"prompt": "g", "n": "\\ud800"}',
        '{"prompt": "h", "n": 1e999}',
        '{"prompt": "i", "n": ' + "9" * 5000 + "}",
        '{"prompt": ' + "[" * 100_000,
        '{"prompt": "\u2028 z"}',
    ]
    path = write("a.ndjson", "\n".join(lines))
    assert [(job.row, job.payload["prompt"]) for job in jobs(path)] == [(1, "a"), (11, "\u2028 z")]
    found = problems(path)
    assert sorted(found) == [2, 4, 5, 6, 7, 8, 9, 10]
    assert "line 2 is not a JSON object" in found[2]
    assert "is a list; expected an object" in found[4]
    assert "the key 'prompt' stands twice" in found[5]


def test_a_json_list_of_objects_is_rows(write: Write) -> None:
    path = write("a.json", '[{"prompt": "a"}, 7, {"prompt": "b", "n": 1.0}]')
    assert [dict(job.payload) for job in jobs(path)] == [{"prompt": "a"}, {"prompt": "b", "n": 1}]
    assert "is a int" in problems(path)[2]


# --- workbooks


def test_cells_of_a_workbook_are_what_a_person_sees(workbook: Book) -> None:
    cells = {
        "text": "007",
        "number": 1.0,
        "half": 0.5,
        "long": 123456789012345,
        "day": date(2026, 5, 1),
        "moment": datetime(2026, 5, 1, 9, 30),
        "hour": time(9, 30),
        "lasting": timedelta(hours=30),
        "yes": True,
        "no": False,
        "lines": "two\nlines",
        "return": "a_x000D_b",
    }
    payload = one(workbook(list(cells), list(cells.values()))).payload
    assert payload == {
        **cells,
        "number": 1,
        "day": "2026-05-01",
        "moment": "2026-05-01T09:30:00",
        "hour": "09:30:00",
        "lasting": "1 day, 6:00:00",
        "return": "a\rb",
    }
    assert type(payload["number"]) is int
    assert payload["yes"] is True


def test_what_openpyxl_would_not_show_is_seen(sheet_xml: Callable[[str], Path]) -> None:
    path = sheet_xml(
        '<dimension ref="A1:A2"/><sheetData>'
        '<row r="1"><c r="A1" t="inlineStr"><is><t>prompt</t></is></c>'
        '<c r="B1" t="str"><v>n</v></c></row>'
        '<row r="2"><c r="A2" t="str"><f>"a"</f><v>stored</v></c>'
        '<c r="B2"><f>1+1</f><v>2</v></c></row>'
        '<row r="3"><c r="A3" t="str"><v>gives nothing</v></c>'
        '<c r="B3" t="str"><f>""</f><v></v></c></row>'
        '<row r="4"><c r="A4" t="str"><v>never ran</v></c><c r="B4"><f>1+1</f><v/></c></row>'
        '<row r="5"><c r="A5" t="str"><v>error</v></c>'
        '<c r="B5" t="e"><f>1/0</f><v>#DIV/0!</v></c></row>'
        '<row r="6"><c r="A6" t="inlineStr"><is><r><t>rich </t></r><r><t>text</t></r>'
        "<rPh><t>no</t></rPh></is></c></row>"
        '<row r="9"><c t="str"><v>no reference</v></c><c t="b"><v>1</v></c></row>'
        '<row><c r="B10"><v>12345678901234567</v></c>'
        '<c r="A10" t="str"><v>out of order</v></c></row>'
        '<row r="11"><c r="A11" t="str"><v>shared text that is not there</v></c>'
        '<c r="B11" t="s"><v>99</v></c></row>'
        '<row r="12"><c r="A12" t="str"><v>no number</v></c><c r="B12"><v>x</v></c></row>'
        '<row r="1048576"><c r="A1048576" t="str"><v>last</v></c></row></sheetData>'
    )
    assert {job.row: dict(job.payload) for job in jobs(path)} == {
        2: {"prompt": "stored", "n": 2},
        3: {"prompt": "gives nothing"},
        6: {"prompt": "rich text"},
        9: {"prompt": "no reference", "n": True},
        10: {"prompt": "out of order", "n": 12345678901234567},
        1048576: {"prompt": "last"},
    }
    found = problems(path)
    assert sorted(found) == [4, 5, 11, 12]
    assert "cell B4 holds a formula without a stored value" in found[4]
    assert "cell B5 holds the error #DIV/0!" in found[5]
    assert "cell B11 holds '99', which cannot be read" in found[11]


def test_a_row_number_no_sheet_has_is_damage(sheet_xml: Callable[[str], Path]) -> None:
    rows = '<row r="1"><c t="str"><v>prompt</v></c></row><row r="{}"><c><v>1</v></c></row>'
    for number in ("1048577", "1e999", "x"):
        with pytest.raises(SheetError, match="is damaged after row 1"):
            read(sheet_xml(f"<sheetData>{rows.format(number)}</sheetData>"))


def test_a_date_before_excel_is_a_problem(workbook: Book) -> None:
    path = workbook(["prompt", "day"], ["a", -1], ["b", 1])
    book = openpyxl.load_workbook(path)
    for row in (2, 3):
        book.worksheets[0].cell(row, 2).number_format = "yyyy-mm-dd"
    book.save(path)
    assert sorted(problems(path)) == [2]


def test_a_workbook_with_the_1904_calendar_has_the_same_days(workbook: Book) -> None:
    path = workbook(["prompt", "day"], ["a", date(2026, 5, 1)])
    book = openpyxl.load_workbook(path)
    book.epoch = openpyxl.utils.datetime.CALENDAR_MAC_1904
    book.save(path)
    assert one(path).payload["day"] == "2026-05-01"


def test_one_sheet_is_named_by_its_file_and_one_of_several_by_both(workbook: Book) -> None:
    alone = read(workbook(["prompt"], ["a"]))
    assert (alone.name, alone.sheet, alone.source) == ("book.xlsx", "Sheet1", "book.xlsx")
    path = workbook(A=[["prompt"], ["a"]], B=[["prompt"], ["b"]])
    first, second = read(path), read(path, sheet="B")
    assert "other sheets: 'B'" in first.notes[0]
    assert second.notes == ()
    assert one(first).source == "book.xlsx[A]"
    assert (one(second).source, one(second).payload) == ("book.xlsx[B]", {"prompt": "b"})


def test_a_missing_sheet_lists_the_sheets(workbook: Book) -> None:
    with pytest.raises(SheetError, match="has no sheet 'C'; its sheets: 'A', 'B'"):
        read(workbook(A=[["prompt"]], B=[["prompt"]]), sheet="C")


def test_an_empty_sheet_names_the_others(workbook: Book) -> None:
    with pytest.raises(SheetError, match=r"'A' of book.xlsx is empty \(other sheets: 'B'\)"):
        read(workbook(A=[], B=[["prompt"], ["b"]]))


def test_a_hidden_sheet_is_not_the_first(workbook: Book) -> None:
    path = workbook(A=[["prompt"], ["hidden"]], B=[["prompt"], ["seen"]])
    book = openpyxl.load_workbook(path)
    book["A"].sheet_state = "hidden"
    book.active = 1
    book.save(path)
    assert one(path).payload == {"prompt": "seen"}
    assert one(read(path, sheet="A")).payload == {"prompt": "hidden"}


def test_a_header_that_is_an_error_is_an_error(workbook: Book) -> None:
    with pytest.raises(SheetError, match=r"the header of book\.xlsx cannot be read: cell B1"):
        read(workbook(["prompt", "=A1"], ["a", "b"]))


def test_a_macro_workbook_is_read_like_any(workbook: Book) -> None:
    assert one(workbook(["prompt"], ["a"], name="book.xlsm")).payload == {"prompt": "a"}


def test_a_part_that_unpacks_without_bounds_is_refused(workbook: Book) -> None:
    path = workbook(["prompt"], ["a"])
    replace_part(path, "xl/media/image1.png", b"\0" * (32 << 20))
    with pytest.raises(SheetError, match=r"part xl/media/image1.png unpacks .* at most 1,073,"):
        read(path)


@pytest.mark.parametrize(
    ("part", "content"),
    [
        ("xl/workbook.xml", "<oh"),
        ("xl/styles.xml", "no xml"),
        ("[Content_Types].xml", "<Types/>"),
        ("xl/workbook.xml", "BOMB"),
        ("xl/styles.xml", "BOMB"),
    ],
)
def test_a_damaged_or_hostile_workbook_is_one_clear_error(
    workbook: Book, part: str, content: str
) -> None:
    content = BOMB if content == "BOMB" else content
    path = replace_part(workbook(["prompt"], ["a"]), part, content)
    with pytest.raises(SheetError, match="cannot be read as a workbook"):
        read(path)


def test_a_sheet_whose_entities_multiply_without_bounds_is_refused(
    sheet_xml: Callable[[str], Path],
) -> None:
    rows = '<row r="1"><c r="A1" t="str"><v>prompt</v></c></row>'
    path = sheet_xml("")
    sheet = f'<worksheet xmlns="{MAIN}"><dimension ref="A1"/><sheetData>{rows}'
    doctype, _, entity = BOMB.partition("<x>")
    replace_part(path, "xl/worksheets/sheet1.xml", f"{doctype}{sheet}<row>{entity}")
    with pytest.raises(SheetError, match=r"is damaged|cannot be read as a workbook"):
        list(read(path))


@pytest.mark.parametrize(
    "part", ["xl/sharedStrings.xml", "xl/styles.xml", "xl/worksheets/sheet1.xml"]
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-be"])
def test_a_document_type_is_refused_however_far_down_it_stands(
    workbook: Book, part: str, encoding: str
) -> None:
    path = workbook(["prompt"], ["a"])
    with zipfile.ZipFile(path, "a") as archive:
        xml = archive.read(part).decode() if part in archive.namelist() else "<sst/>"
    noise = os.urandom(200_000).hex()  # which no bound on how densely it is packed refuses
    text = f"<!--{noise}--><!DOCTYPE x [<!ENTITY a 'b'>]>{re.sub('^<[?].*?[?]>', '', xml)}"
    declared = f'<?xml version="1.0" encoding="{encoding[:6]}"?>{text}'
    replace_part(path, part, (text if encoding == "utf-8" else declared).encode(encoding))
    with pytest.raises(SheetError, match=f"its part {part} has a document type of its own"):
        read(path)


def test_a_text_that_tells_of_document_types_is_a_text(workbook: Book) -> None:
    assert one(workbook(["prompt"], ["<!DOCTYPE html> in chalk"])).payload == {
        "prompt": "<!DOCTYPE html> in chalk"
    }


def test_shared_texts_are_read_with_their_runs_and_escapes(workbook: Book) -> None:
    path = workbook(["prompt"], ["a"])
    with zipfile.ZipFile(path) as archive:
        types = archive.read("[Content_Types].xml").decode()
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"
    shared = f'<Override PartName="/xl/sharedStrings.xml" ContentType="{kind}"/></Types>'
    replace_part(path, "[Content_Types].xml", types.replace("</Types>", shared))
    replace_part(
        path,
        "xl/sharedStrings.xml",
        f'<sst xmlns="{MAIN}"><si><t>prompt</t></si><si><r><t>two </t></r><r><t>runs</t></r></si>'
        '<si><t xml:space="preserve"> a_x000D_\nb </t></si></sst>',
    )
    rows = "".join(f'<row><c t="s"><v>{n}</v></c></row>' for n in range(3))
    sheet = f'<worksheet xmlns="{MAIN}"><sheetData>{rows}</sheetData></worksheet>'
    replace_part(path, "xl/worksheets/sheet1.xml", sheet)
    assert [job.payload["prompt"] for job in jobs(path)] == ["two runs", " a\r\nb "]


def test_an_archive_that_is_no_workbook_says_so(write: Write) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
    with pytest.raises(SheetError, match="cannot be read as a workbook"):
        read(write("a.xlsx", file.getvalue()))


def test_a_sheet_that_breaks_off_says_after_which_row(sheet_xml: Callable[[str], Path]) -> None:
    rows = "".join(
        f'<row r="{n}"><c r="A{n}" t="str"><v>prompt {n}</v></c></row>' for n in range(1, 2001)
    )
    table = read(sheet_xml(f'<dimension ref="A1"/><sheetData>{rows}<row'))
    with pytest.raises(SheetError, match="is damaged after row"):
        list(table)


# --- dataframes


@pytest.mark.parametrize("kind", FRAMES)
def test_a_frame_is_rows(kind: str) -> None:
    frame = FRAMES[kind](
        {
            "prompt": ["007", None, "NA"],
            "n": [1, None, 3],
            "x": [0.5, None, 2.0],
            "day": [datetime(2026, 5, 1), None, datetime(2026, 5, 1, 9, 30)],
            "is_draft": [True, None, False],
        }
    )
    table = read(frame)
    assert table.name == "dataframe"
    assert table.columns == ("prompt", "n", "x", "day", "is_draft")
    assert [(row.number, row.values) for row in table if isinstance(row, Row)] == [
        (1, {"prompt": "007", "n": 1, "x": 0.5, "day": "2026-05-01", "is_draft": True}),
        (3, {"prompt": "NA", "n": 3, "x": 2, "day": "2026-05-01T09:30:00", "is_draft": False}),
    ]
    assert len(list(table)) == 2
    types = [type(value) for value in values(table)[1].values()]
    assert types == [str, int, int, str, bool]


def test_the_types_pandas_has_of_its_own_become_plain() -> None:
    frame = pd.DataFrame(
        {
            "prompt": pd.array(["a", None], dtype="string"),
            "n": pd.array([1, None], dtype="Int64"),
            "kind": pd.Categorical(["u", None]),
            "seed": [7, 8],
        }
    )
    table = read(frame)
    assert values(table) == [{"prompt": "a", "n": 1, "kind": "u", "seed": 7}, {"seed": 8}]
    json.dumps(values(table))


def test_an_index_with_a_name_is_left_out_and_said() -> None:
    table = read(pd.DataFrame({"prompt": ["a"], "note": ["n"]}).set_index("note"))
    assert values(table) == [{"prompt": "a"}]
    assert "The index ['note'] was left out" in table.notes[0]


def test_columns_of_a_frame_that_are_no_text_are_named_as_text() -> None:
    assert one(pd.DataFrame([["a", 1]])).payload == {"0": "a", "1": 1}


@pytest.mark.parametrize(
    "frame", [pd.DataFrame([[1, 2]], columns=["a", "a"]), pa.table([[1], [2]], names=["a", "a"])]
)
def test_a_frame_with_two_columns_of_one_name_is_an_error(frame: Any) -> None:
    with pytest.raises(SheetError, match="two columns of one name"):
        read(frame)


# --- the same rows, whoever reads them


NAMES = st.sampled_from(["text", "Note", "style", "ключ", "a b", "x,y", "0"])
# What a cell of every kind of file can hold: text that is not blank, no lone surrogates, no
# zero byte, and no lone carriage return, which a text file takes for the end of a line.
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), min_size=1)
ROWS = st.lists(
    st.dictionaries(NAMES, TEXTS.filter(lambda text: not text.isspace()), min_size=1),
    min_size=1,
    max_size=6,
)


def grid_of(rows: list[dict[str, str]], columns: list[str]) -> list[list[str]]:
    return [columns, *([row.get(name, "") for name in columns] for row in rows)]


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=ROWS, data=st.data())
def test_rows_come_back_equal_with_equal_keys_from_every_reader(
    tmp_path: Path, rows: list[dict[str, str]], data: st.DataObject
) -> None:
    columns = sorted({name for row in rows for name in row})
    turned = data.draw(st.permutations(columns))
    for name, separator in (("a.csv", ","), ("a.tsv", "\t")):
        with (tmp_path / name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter=separator, quoting=csv.QUOTE_ALL)
            writer.writerows(grid_of(rows, turned))
    lines = (json.dumps(row, ensure_ascii=False) for row in rows)
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    full = {name: [row.get(name) for row in rows] for name in columns}
    expected = [(job.payload, job.key) for job in jobs(rows)]
    assert [payload for payload, _ in expected] == rows
    for source in (
        tmp_path / "a.csv",
        tmp_path / "a.tsv",
        tmp_path / "a.jsonl",
        pd.DataFrame(full),
        pl.DataFrame(full),
        pa.table(full),
    ):
        assert [(job.payload, job.key) for job in jobs(source)] == expected


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    prompts=st.lists(
        # Excel's XML holds no control characters but these, and openpyxl writes no others.
        st.text(
            st.characters(exclude_categories=["Cs", "Cc"], include_characters="\t\n"), min_size=1
        ).filter(lambda text: not text.isspace() and "\ufffe" not in text and "\uffff" not in text),
        min_size=1,
    )
)
def test_text_comes_back_from_a_workbook(tmp_path: Path, prompts: list[str]) -> None:
    book = openpyxl.Workbook()
    for number, prompt in enumerate(["prompt", *prompts], 1):
        cell = book.worksheets[0].cell(number, 1)
        cell.value, cell.data_type = prompt, "s"
    book.save(tmp_path / "a.xlsx")
    expected = [(job.payload, job.key) for job in jobs([{"prompt": p} for p in prompts])]
    assert [(job.payload, job.key) for job in jobs(tmp_path / "a.xlsx")] == expected


def test_a_csv_is_never_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "big.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["prompt", "n"], *([f"p {i} " * 20, i] for i in range(20_000))])
    tracemalloc.start()
    try:
        assert sum(1 for _ in read(path)) == 20_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 2_000_000
    assert peak < 1_000_000


# --- sheets people have shared


@pytest.fixture
def extra() -> Path:
    folder = os.environ.get("VQKIT_EXTRA_DATA")
    if not folder:
        pytest.skip("VQKIT_EXTRA_DATA names no folder of larger data sets")
    return Path(folder)


def test_parti_prompts_are_1632_jobs_and_keep_their_text(extra: Path) -> None:
    path = extra / "PartiPrompts.tsv"
    found = jobs(path)
    assert len(found) == len({job.key for job in found}) == 1632
    assert problems(path) == {}
    prompts = {job.row: job.payload["Prompt"] for job in found}
    assert {"42", "0"} <= set(prompts.values())
    with path.open(encoding="utf-8") as file:
        lines = dict(enumerate(file, 1))
    assert prompts == {row: lines[row].split("\t")[0] for row in range(2, 1634)}
    assert [job.key for job in jobs(path)] == [job.key for job in found]


def test_geneval_and_open_sora_are_jobs_row_by_row(extra: Path) -> None:
    geneval = jobs(extra / "geneval.jsonl")
    lines = (extra / "geneval.jsonl").read_text("utf-8").splitlines()
    assert [dict(job.payload) for job in geneval] == [json.loads(line) for line in lines]
    sora = jobs(extra / "open_sora.csv")
    with (extra / "open_sora.csv").open(encoding="utf-8", newline="") as file:
        assert [job.payload["text"] for job in sora] == [
            row["text"] for row in csv.DictReader(file)
        ]
    assert problems(extra / "geneval.jsonl") == problems(extra / "open_sora.csv") == {}


@given(st.lists(st.integers(0, 2**62), max_size=3000), st.integers(0, 2**62))
def test_marks_are_seen_once_like_those_of_a_set(marks: list[int], base: int) -> None:
    known, seen = set(), Seen()
    # Neighbours in a row, which all want the same slots, and enough of them to grow.
    for mark in (*marks, *marks[:50], *range(base, base + 900)):
        assert seen.add(mark) == (mark not in known)
        known.add(mark)
    assert len(seen) == len(known)
