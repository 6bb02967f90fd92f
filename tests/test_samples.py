"""data/samples is what data/make_samples.py makes, and reads as its table of rows says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from vqkit.intake import read, specs
from vqkit.job import JobSpec, RowProblem

DATA = Path(__file__).parent.parent / "data"
PROMPT_FILES = (
    *("prompts.xlsx", "prompts.ods", "prompts.csv", "prompts.tsv", "prompts.jsonl"),
    *("prompts.json", "prompts.txt"),
)


def made() -> dict[str, bytes]:
    spec = importlib.util.spec_from_file_location("make_samples", DATA / "make_samples.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    samples: dict[str, bytes] = module.samples()
    return samples


def jobs_of(name: str) -> list[JobSpec | RowProblem]:
    return list(specs(read(DATA / "samples" / name)))


def test_the_samples_are_what_the_maker_makes() -> None:
    samples = made()
    assert {name: (DATA / "samples" / name).read_bytes() for name in samples} == samples
    assert samples == made()


def test_openpyxl_opens_the_workbooks_in_full_mode() -> None:
    import openpyxl

    for name in ("prompts.xlsx", "awkward.xlsx", "shots.xlsx"):
        sheet = openpyxl.load_workbook(DATA / "samples" / name).active
        assert sheet is not None
        assert "prompt" in [cell.value for cell in sheet[1]]


@pytest.mark.parametrize("name", PROMPT_FILES)
def test_every_kind_of_prompts_file_gives_the_same_twelve_prompts(name: str) -> None:
    jobs = jobs_of(name)
    assert all(isinstance(job, JobSpec) for job in jobs)
    prompts = [job.payload["prompt"] for job in jobs if isinstance(job, JobSpec)]
    assert prompts == [row["prompt"] for row in rows_of("prompts.jsonl")]
    assert len(set(prompts)) == 12


def rows_of(name: str) -> list[dict[str, object]]:
    return [dict(job.payload) for job in jobs_of(name) if isinstance(job, JobSpec)]


def test_workbooks_and_json_make_the_same_jobs() -> None:
    xlsx = jobs_of("prompts.xlsx")
    for name in ("prompts.jsonl", "prompts.json", "prompts.ods"):
        assert [job.key for job in xlsx if isinstance(job, JobSpec)] == [
            job.key for job in jobs_of(name) if isinstance(job, JobSpec)
        ]
    assert [job.priority for job in xlsx if isinstance(job, JobSpec)][:2] == [0, 5]


def test_the_clips_of_the_samples_are_short() -> None:
    seconds = [row["seconds"] for row in rows_of("prompts.xlsx")]
    assert sum(value == 2 for value in seconds) >= 8
    assert all(isinstance(value, int | float) and 0.5 <= value <= 3 for value in seconds)


def test_the_awkward_workbook_runs_what_can_run_and_names_the_rest() -> None:
    jobs = jobs_of("awkward.xlsx")
    problems = {job.row: job.reason for job in jobs if isinstance(job, RowProblem)}
    assert sorted(problems) == [3, 4, 9, 10]
    assert "cell B3 holds the error #REF!" in problems[3]
    assert "cell B4 holds a formula without a stored value" in problems[4]
    assert "priority is 'high'" in problems[9]
    assert "nothing to run" in problems[10]
    runs = {job.row: dict(job.payload) for job in jobs if isinstance(job, JobSpec)}
    assert sorted(runs) == [2, 5, 6, 7, 11, 12, 13, 15, 16]
    assert runs[2] == {
        "id": "007",
        "prompt": "A kite over the dunes",
        "seconds": 2,
        "shot_on": "2026-05-01",
        "is_draft": True,
    }
    assert runs[5]["seconds"] == 2
    assert runs[11]["prompt"] == "NA"
    assert runs[11]["shot_on"] == "2026-05-01T12:00:00"
    assert type(runs[11]["seconds"]) is int
    assert runs[12]["id"] == 15
    assert runs[13]["prompt"] == "  spaces around  "
    assert len({job.key for job in jobs if isinstance(job, JobSpec)}) == len(runs)


def test_the_german_sheet_is_read_with_its_accents() -> None:
    rows = rows_of("prompts-german.csv")
    assert len(rows) == 9
    assert rows[8]["note"] == "für die Prüfung"
    assert rows[6]["seconds"] == "1,5"


def test_the_folder_of_texts_is_a_prompt_a_file() -> None:
    assert [row["file"] for row in rows_of("texts")] == ["01.txt", "02.txt", "03.txt"]
    assert [row["prompt"] for row in rows_of("texts")] == [
        row["prompt"] for row in rows_of("prompts.jsonl")[:3]
    ]


def test_the_workbook_of_shots_says_why_a_row_does_not_run() -> None:
    jobs = jobs_of("shots.xlsx")
    assert {job.row: job.kind for job in jobs if isinstance(job, RowProblem)} == {
        3: "merged continuation",
        5: "filtered out",
        6: "filtered out",
        7: "digits lost",
        8: "formula without a value",
        12: "hidden",
    }
    assert [job.row for job in jobs if isinstance(job, JobSpec)] == [2, 4, 9, 11]
