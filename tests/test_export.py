"""Results out, as files that a spreadsheet, a script and Excel read back as they were."""

import csv
import errno
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import openpyxl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from office import needs_office, sheets_in_office

from vqkit import Queue
from vqkit.errors import PayloadError, StoreFull, UsageError
from vqkit.export import FORMULA
from vqkit.export.xlsx import escaped, pieces

SAMPLES = Path(__file__).parent.parent / "data" / "samples"
EXTRA = Path(os.environ.get("VQKIT_EXTRA_DATA", "/nowhere"))

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
    rows = csv_rows(q.save(tmp_path / "r.csv"))
    assert rows[0][:3] == ["job", "prompt", "formula"]
    assert rows[0].index("payload.status") < rows[0].index("status")
    stands = rows[0][rows[0].index("status") :]
    assert stands[:6] == ["status", "stage", "attempts", "account", "output", "cost"]
    assert stands[6:10] == ["created", "started", "finished", "error"]
    assert [row[1] for row in rows[1:]] == ["a fox", "an owl"]
    first = dict(zip(rows[0], rows[1], strict=True))
    assert first["formula"] == ""
    assert first["status"] == "queued"


def csv_rows(path):
    with open(path, encoding="utf-8-sig", newline="") as file:  # noqa: PTH123 (a Saved)
        return list(csv.reader(file))


def unguarded(text):
    """A text of a .csv file as it was: one apostrophe off where it guards a formula."""
    return text[1:] if text.startswith("'") and FORMULA.match(text[1:]) else text


def test_a_csv_holds_every_text_and_none_that_a_spreadsheet_would_run(q, tmp_path):
    saved = q.save(tmp_path / "r.csv")
    header, _, cells = csv_rows(saved)
    row = dict(zip(header, cells, strict=True))
    for name in ("control", "lines", "long", "wide"):
        assert row[name] == AWKWARD[name]
    for name in ("formula", "plus", "minus", "at"):
        assert row[name] == f"'{AWKWARD[name]}"
        assert unguarded(row[name]) == AWKWARD[name]
    assert saved.counts == {"that begin like a formula have an apostrophe before them": 4}
    assert "4 cells that begin like a formula" in str(saved)
    assert "(job 2, formula; job 2, plus; job 2, minus; …)" in str(saved)
    assert json.loads(row["nested"]) == AWKWARD["nested"]
    assert row["truth"] == "true"
    assert datetime.fromisoformat(row["created"]).utcoffset() is not None
    assert Path(saved).read_bytes().startswith(b"\xef\xbb\xbfjob,")  # or Excel garbles accents


def test_jsonl_gives_back_every_value(q, tmp_path):
    lines = q.save(tmp_path / "r.jsonl").path.read_text().splitlines()
    row = json.loads(lines[1])
    expected = {**AWKWARD, "payload.status": "mine", "status": "queued"}
    assert {name: row[name] for name in expected} == expected


def xlsx_rows(path, sheet="jobs"):
    """The cells of a saved workbook, its escapes read as Excel reads them."""
    book = openpyxl.load_workbook(path, read_only=True)
    rows = [
        [
            re.sub("_x([0-9A-F]{4})_", lambda m: chr(int(m[1], 16)), cell)
            if isinstance(cell, str)
            else cell
            for cell in row
        ]
        for row in book[sheet].iter_rows(values_only=True)
    ]
    book.close()
    return rows


def long_texts(path):
    """The texts that are longer than a cell, by job and column."""
    found = {}
    for job, column, part, text in xlsx_rows(path, "long texts")[1:]:
        so_far = found.setdefault((job, column), [])
        so_far.append(text)
        assert part == len(so_far)
    return {place: "".join(texts) for place, texts in found.items()}


def test_a_workbook_holds_text_as_text_and_nothing_as_a_formula(q, tmp_path):
    saved = q.save(tmp_path / "r.xlsx")
    book = openpyxl.load_workbook(saved)
    header, _, line = book["jobs"].iter_rows()
    cells = {name.value: cell for name, cell in zip(header, line, strict=True)}
    for name in ("formula", "plus", "minus", "at", "broken"):
        assert (cells[name].data_type, cells[name].value) == ("s", AWKWARD[name])
        assert cells[name].quotePrefix == (name != "broken")  # it stays text when edited
    assert cells["big"].value == "12345678901234567"
    assert cells["truth"].value is True
    [created] = [cell for name, cell in cells.items() if name.startswith("created (UTC")]
    assert isinstance(created.value, datetime)
    book.close()
    header, _, line = xlsx_rows(saved)
    shown = dict(zip(header, line, strict=True))
    assert {name: shown[name] for name in ("control", "lines", "escape")} == {
        name: AWKWARD[name] for name in ("control", "lines", "escape")
    }


@pytest.mark.parametrize(
    ("zone", "said", "hours"), [("UTC0", "UTC", 0), ("XST-5:30", "UTC+05:30", 5.5)]
)
def test_a_workbooks_times_are_local_and_their_heads_say_so(
    q, tmp_path, monkeypatch, zone, said, hours
):
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        header, _, line = xlsx_rows(q.save(tmp_path / "r.xlsx"))
    time.tzset()
    shown = dict(zip(header, line, strict=True))[f"created ({said})"]
    created = q.job(2).created_ms / 1000
    assert shown.replace(tzinfo=UTC).timestamp() == pytest.approx(created + hours * 3600, abs=0.01)


def test_a_text_longer_than_a_cell_stands_whole_on_a_sheet_of_its_own(q, tmp_path):
    q.put({"many": "\x01" * 40_000, "word": "_x0041" * 20_000})
    saved = q.save(tmp_path / "r.xlsx")
    header, _, line, _ = xlsx_rows(saved)
    for name in ("long", "wide"):
        text = dict(zip(header, line, strict=True))[name]
        assert len(text.encode("utf-16-le")) // 2 <= 32_767
        assert re.search(r"… \[all \d\d,000 characters: sheet 'long texts'\]$", text)
    assert long_texts(saved) == {
        (2, "long"): AWKWARD["long"],
        (2, "wide"): AWKWARD["wide"],
        (3, "many"): "\x01" * 40_000,
        (3, "word"): "_x0041" * 20_000,
    }
    assert [(c.job, c.column) for c in saved.changes if "longer than" in c.how] == list(
        long_texts(saved)
    )


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet", ".xlsx"])
def test_one_cell_that_cannot_be_written_costs_nothing_but_itself(q, tmp_path, ending, monkeypatch):
    records = list(q.records())
    records[0]["error"] = "half \ud83d a fox"  # only another program could have put it there
    monkeypatch.setattr(q, "records", lambda: iter(records))
    saved = q.save(tmp_path / f"r{ending}")
    assert saved.jobs == 2
    if ending == ".jsonl":
        assert json.loads(Path(saved).read_text().splitlines()[0])["error"] == records[0]["error"]
    else:
        assert saved.changes[0][:2] == (1, "error")
        assert "1 cell with half a character" in str(saved)


def test_a_workbook_names_a_number_of_many_digits(q, tmp_path):
    saved = q.save(tmp_path / "r.xlsx")
    assert "1 cell of more than 15 digits stand there as text" in str(saved)
    assert saved.changes[-1][:2] == (2, "big")


def test_an_older_file_is_replaced_only_once_the_new_one_is_whole(q, tmp_path, monkeypatch):
    target = tmp_path / "r.csv"
    q.save(target)
    before = target.read_bytes()

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    q.put({"prompt": "a third"})
    with monkeypatch.context() as patch:
        patch.setattr("csv.writer", full)
        with pytest.raises(StoreFull, match=r"r\.csv cannot be written: No space"):
            q.save(target)
    assert target.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir() if "part" in p.name] == []
    q.save(target)
    assert "a third" in target.read_text()


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet", ".xlsx"])
def test_a_file_that_is_not_as_this_queue_saved_it_is_kept(q, tmp_path, ending):
    target = tmp_path / f"r{ending}"
    target.write_text("mine")
    with pytest.raises(UsageError, match=r"came from elsewhere, or was changed.*overwrite=True"):
        q.save(target)
    assert target.read_text() == "mine"
    q.save(target, overwrite=True)
    q.save(target)  # now it is its own
    with target.open("ab") as file:
        file.write(b"a note of mine")
    with pytest.raises(UsageError, match="changed since"):
        q.save(target)


def test_a_link_to_the_file_stays_a_link(q, tmp_path):
    q.save(tmp_path / "r.csv")
    (tmp_path / "link.csv").symlink_to("r.csv")
    q.save(tmp_path / "link.csv")
    assert (tmp_path / "link.csv").is_symlink()


@pytest.mark.parametrize("sheet", ["foxes.csv", "foxes.jsonl"])
def test_the_sheet_the_jobs_came_from_is_never_written_over(tmp_path, sheet):
    path = tmp_path / sheet
    path.write_text("prompt\na fox\n" if sheet.endswith("csv") else '{"prompt": "a fox"}\n')
    before = path.read_bytes()
    with Queue(tmp_path / "q.db") as q:
        q.load(path)
        with pytest.raises(UsageError, match="the sheet the jobs came from"):
            q.save(path)
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
            q.save(tmp_path / "foxes.xlsx")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("r.docx", r"saved as \.csv, \.jsonl, \.parquet, \.xlsx"),
        ("r", r"saved as \.csv"),
        ("none/r.csv", "a folder that does not exist"),
        ("folder.csv", "is a folder"),
    ],
)
def test_a_name_that_cannot_be_written_is_refused_in_a_sentence(q, tmp_path, name, said):
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(UsageError, match=said):
        q.save(tmp_path / name)


def test_more_rows_than_a_workbook_holds_are_refused(q, tmp_path, monkeypatch):
    monkeypatch.setattr("vqkit.export.xlsx.ROWS", 2)
    with pytest.raises(UsageError, match=r"save them as \.csv"):
        q.save(tmp_path / "r.xlsx")
    assert not Path(tmp_path / "r.xlsx").exists()


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet", ".xlsx"])
def test_a_queue_without_jobs_gives_a_file_without_rows(tmp_path, ending):
    with Queue(tmp_path / "q.db") as q:
        assert q.save(tmp_path / f"r{ending}").path.exists()


# -- saved and read again ------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
WORDS = TEXT | st.sampled_from(
    [
        "=1+1",
        "'=1",
        "''",
        "_x0041_",
        "_x005F",
        "_x0041\x01",
        "\r",
        "\r\n",
        "a\rb",
        "NA",
        "1e5",
        "007",
    ]
)
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | WORDS
SCALARS |= st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    SCALARS,
    lambda of: st.lists(of, max_size=3) | st.dictionaries(TEXT, of, max_size=3),
    max_leaves=6,
)
KEYS = TEXT | st.sampled_from(["job", "status", "payload.status", "payload.", "a", "b", "=a"])
PAYLOADS = st.lists(st.dictionaries(KEYS, VALUES, min_size=1, max_size=5), min_size=1, max_size=4)


def payload_names(header):
    """The payload's columns of a saved file, and what they were called."""
    names = header[1 : header.index("status")]
    return {name: name.removeprefix("payload.") for name in names}


def records_of_jsonl(path):
    records = [json.loads(line) for line in Path(path).read_text().splitlines()]
    return [{new: r[n] for n, new in payload_names(list(r)).items()} for r in records]


def records_of_parquet(path):
    pq = pytest.importorskip("pyarrow.parquet")
    table = pq.read_table(path)
    is_json = {f.name for f in table.schema if (f.metadata or {}).get(b"vqkit") == b"json"}
    names = payload_names(table.column_names)
    return [
        {
            new: json.loads(row[name]) if name in is_json else row[name]
            for name, new in names.items()
            if row[name] is not None
        }
        for row in table.to_pylist()
    ]


def same(one, other):
    """Equal, and of the same types: 1, 1.0 and True are three things."""
    return repr(one) == repr(other)


@settings(max_examples=40, deadline=None)
@given(PAYLOADS)
def test_every_payload_comes_back_from_the_queue_and_from_every_form(payloads):
    """What each form promises, to the letter."""
    with tempfile.TemporaryDirectory() as folder:
        with Queue(Path(folder) / "q.db") as q:
            for number, payload in enumerate(payloads):
                q.put(payload, key=str(number))
        with Queue(Path(folder) / "q.db") as q:
            assert same([job.payload for job in q.jobs()], payloads)
            paths = {
                e: q.save(Path(folder) / f"r.{e}") for e in ("jsonl", "parquet", "csv", "xlsx")
            }

        assert same(records_of_jsonl(paths["jsonl"]), payloads)  # all, to the type

        told = [{k: v for k, v in p.items() if v is not None} for p in payloads]
        found = records_of_parquet(paths["parquet"])  # all but None, which is nothing there
        assert [set(one) for one in found] == [set(one) for one in told]
        assert all(
            one[k] == other[k] for one, other in zip(found, told, strict=True) for k in other
        )

        header, *rows = csv_rows(paths["csv"])
        names = payload_names([unguarded(name) for name in header])
        for row, payload in zip(rows, payloads, strict=True):
            cells = dict(zip(names.values(), row[1:], strict=False))
            for name, value in payload.items():
                is_text = isinstance(value, str)
                assert (unguarded(cells[name]) if is_text else cells[name]) == text_of(value)

        header, *rows = xlsx_rows(paths["xlsx"])
        names = payload_names(["" if name is None else name for name in header])
        for row, payload in zip(rows, payloads, strict=True):
            cells = dict(zip(names.values(), row[1:], strict=False))
            for name, value in payload.items():
                is_number = isinstance(value, float) or (type(value) is int and abs(value) < 10**15)
                if isinstance(value, bool) or is_number:
                    assert cells[name] == value
                else:
                    assert (cells[name] or "") == text_of(value)


def text_of(value):
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


@example("_x0041\x01", 20)
@given(st.text("_x0041F\x01\r\uffff", max_size=40), st.integers(7, 20))
def test_no_text_is_taken_for_an_escape_whole_or_in_pieces(text, limit):
    def read(cell):
        return re.sub("_x([0-9A-Fa-f]{4})_", lambda m: chr(int(m[1], 16)), cell)

    assert read(escaped(text)) == text
    cells = [escaped(piece) for piece in pieces(text, limit)]
    assert "".join(map(read, cells)) == text
    assert all(len(cell) <= limit for cell in cells)


def test_half_a_character_is_refused_in_a_sentence_before_it_is_put(q):
    with pytest.raises(PayloadError, match=r"half a character at position 2.*Read the source"):
        q.put({"prompt": "a \ud83d fox"})


def test_a_parquet_column_is_of_one_kind_where_all_its_values_are(tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    with Queue(tmp_path / "q.db") as q:
        q.put({"n": 2**63 - 1, "x": 1, "mixed": 1, "text": "007", "wide": 2**60})
        q.put({"x": 0.5, "mixed": "one", "yes": True, "list": [1], "wide": 0.5})
        table = pq.read_table(q.save(tmp_path / "r.parquet"))
    kinds = {field.name: str(field.type) for field in table.schema}
    assert {n: kinds[n] for n in ("n", "x", "text", "yes")} == {
        "n": "int64",
        "x": "double",
        "text": "string",
        "yes": "bool",
    }
    assert kinds["created"].startswith("timestamp[ms")
    for name in ("mixed", "list", "wide"):
        assert table.schema.field(name).metadata == {b"vqkit": b"json"}
    assert table.column("mixed").to_pylist() == ["1", '"one"']
    assert table.column("n").to_pylist() == [2**63 - 1, None]


def test_a_frame_keeps_whole_numbers_whole_and_every_value_what_it_was(tmp_path):
    pytest.importorskip("pandas")
    with Queue(tmp_path / "q.db") as q:
        q.put({"n": 2**62 + 1, "mixed": 1, "flag": True, "list": [1, 2], "x": 1})
        q.put({"mixed": "one", "list": [3, 4], "x": 0.5})
        frame = q.to_frame()
    assert frame.loc[1, "n"] == 2**62 + 1
    assert str(frame["n"].dtype) == "Int64"
    assert str(frame["flag"].dtype) == "boolean"
    assert str(frame["x"].dtype) == "float64"
    assert list(frame["mixed"]) == [1, "one"]
    assert list(frame["list"]) == [[1, 2], [3, 4]]


def test_rows_put_later_stand_where_they_stand_in_the_sheet(tmp_path):
    sheet = tmp_path / "foxes.csv"
    sheet.write_text("prompt\na fox\nan owl\na bee\n")
    with Queue(tmp_path / "q.db") as q:
        q.put({"prompt": "before"})
        q.load(sheet)
        q.put({"prompt": "after"})
        q.run(lambda job: None)  # an edited row of a job that is done is a job of its own
        sheet.write_text("prompt\na fox\na red owl\na bee\nan ant\n")
        q.load(sheet)
        assert [(r["prompt"], r["row"]) for r in q.records()] == [
            ("before", None),
            ("a fox", 2),
            ("a red owl", 3),
            ("a bee", 4),
            ("an ant", 5),
            ("an owl", None),  # its row holds something else now
            ("after", None),
        ]
        assert list(q.to_frame().index) == [1, 2, 6, 4, 7, 3, 5]


def test_what_the_tries_of_a_job_cost_is_in_its_row(tmp_path):
    with Queue(tmp_path / "q.db") as q:
        q.accounts.add("a", provider="paint", price=0.25)
        q.put({"prompt": "a fox"}, provider="paint")

        def paint(job):
            return job.once("submit", lambda key: {"id": 1}, paid=True)

        q.run(paint)
        q.put({"prompt": "waits"}, provider="nobody")
        costs = [record["cost"] for record in q.records()]
        assert costs[1] is None
        assert costs[0] == 0.25
        assert costs[0] == sum(row["cost"] or 0 for row in q.cost_records())


MEMORY = """
import resource, sys
from vqkit import Queue

def peak_mb():
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit

with Queue(sys.argv[1] + "/q.db") as q:
    names = [sys.argv[1] + "/r." + ending for ending in ("csv", "jsonl", "xlsx")]
    q.put({"prompt": "loads what the writers need"})
    for name in names:
        q.save(name)
    q.put_many({"prompt": f"a fox {n} " + "x" * 8000, "n": n} for n in range(6000))
    before = peak_mb()
    for name in names:
        q.save(name)
    print(peak_mb() - before)
"""


def test_jobs_are_saved_in_less_memory_than_they_would_fill(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert float(ran.stdout) < 48  # MB: what the prompts alone take


# -- in another program ----------------------------------------------------------------------


def as_office_shows(value):
    """What LibreOffice shows of a value: its numbers have 15 digits, its lines one kind of end."""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float):
        return f"{value:.15g}"
    return text_of(value).replace("\r\n", "\n").replace("\r", "\n")


def assert_office_shows(q, folder):
    path = q.save(folder / "results.xlsx")
    sheets = sheets_in_office(Path(path), folder)
    header, *rows = sheets["jobs"]
    jobs = q.jobs()
    names = payload_names(header)
    assert len(rows) == len(jobs)
    pieces = {}
    for job, column, _, text in sheets.get("long texts", [])[1:]:
        pieces[job, column] = pieces.get((job, column), "") + text
    wrong = []
    for row, job in zip(rows, jobs, strict=True):
        cells = dict(zip(header, row, strict=True))
        assert (cells["job"], cells["status"]) == (str(job.number), job.status)
        for name, was in names.items():
            shown = pieces.get((str(job.number), name), cells[name])
            value = job.payload.get(was)
            if isinstance(value, float):
                shown = f"{float(shown):.15g}"
            if shown != as_office_shows(value):
                wrong.append((job.number, name, shown[:80], value))
    assert not wrong


@needs_office
@pytest.mark.skipif(not (EXTRA / "PartiPrompts.tsv").exists(), reason="no VQKIT_EXTRA_DATA")
def test_libreoffice_shows_the_parti_prompts_as_they_are(tmp_path):
    with Queue(tmp_path / "q.db") as q:
        assert q.load(EXTRA / "PartiPrompts.tsv").new == 1632
        assert_office_shows(q, tmp_path)


@needs_office
def test_libreoffice_shows_the_most_awkward_values_as_they_are(tmp_path):
    zoo = {
        "spaces": "  two  ",
        "tab": "\tat\tthe start",
        "apostrophe": "'quoted",
        "marks": 'say "hi", she said',
        "languages": "狐 лиса ثعلب लोमड़ी 🦊 👩\u200d👩\u200d👧 e\u0301",
        "odd": "\u2028 \u2029 \x85 \ufffe \uffff \ufeff \xad \u202e",
        "every control": "".join(map(chr, range(1, 32))) + "end",
        "numbers as text": "1e5",
        "zeros": "007",
        "percent": "50%",
        "date": "1899-12-31",
        "fraction": "1/2",
        "true": "TRUE",
        "error": "#REF!",
        "int": 2**53 - 1,
        "small int": -(10**14),
        "float": 0.1,
        "tiny": 5e-324,
        "huge": 1.5e300,
        "none": None,
    }
    with Queue(tmp_path / "q.db") as q:
        q.put({**AWKWARD, **zoo})
        q.load(SAMPLES / "awkward.xlsx")
        q.load(SAMPLES / "prompts.xlsx")
        assert_office_shows(q, tmp_path)


@needs_office
def test_no_text_of_a_csv_is_a_formula_in_libreoffice(tmp_path):
    texts = ["=1+1", "+1+1", "-1+1", "@SUM(1)", "=HYPERLINK(1)", "'=1", "\t=1+1"]
    with Queue(tmp_path / "q.db") as q:
        q.put_many([{"prompt": text} for text in texts])
        header, *rows = next(
            iter(sheets_in_office(Path(q.save(tmp_path / "r.csv")), tmp_path).values())
        )
    shown = [row[header.index("prompt")] for row in rows]
    assert [unguarded(text) for text in shown] == texts
