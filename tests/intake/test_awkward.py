"""Files that people make, each read as it must be, by both engines where both can."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from awkward import CASES, Case, as_json

from vqkit.errors import SheetError
from vqkit.intake import read, specs
from vqkit.job import JobSpec, RowProblem

WORKBOOKS = [case for case in CASES if case.suffix in (".xlsx", ".ods")]


def named(case: Case) -> str:
    return f"{case.name} ({case.suffix})"


@pytest.fixture
def made(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    case: Case = request.getfixturevalue("case")
    path = tmp_path / f"file{case.suffix}"
    case.make(path)
    return path


def test_there_are_sixty_cases_and_each_has_its_name() -> None:
    assert len(CASES) >= 60
    assert len({named(case) for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_file_is_read_as_a_person_sees_it(case: Case, made: Path) -> None:
    if case.error is not None:
        with pytest.raises(SheetError, match=case.error):
            list(read(made))
        return
    table = read(made)
    items = list(specs(table))
    runs = {item.row or 0: dict(item.payload) for item in items if isinstance(item, JobSpec)}
    problems = {item.row: item for item in items if isinstance(item, RowProblem)}
    assert as_json(runs) == as_json(case.rows)
    assert {row: problem.kind for row, problem in problems.items()} == {
        row: kind for row, (kind, _) in case.problems.items()
    }
    for row, (_, said) in case.problems.items():
        assert said in problems[row].reason
    if case.note is not None:
        assert any(case.note in note for note in table.notes)


@pytest.mark.parametrize("case", WORKBOOKS, ids=named)
def test_calamine_reads_the_same_or_differs_as_is_known(case: Case, made: Path) -> None:
    pytest.importorskip("python_calamine")
    expected = case.calamine if case.calamine is not None else case.error or case.rows
    if isinstance(expected, str):
        with pytest.raises(SheetError, match=expected):
            list(read(made, engine="calamine"))
        return
    items = list(specs(read(made, engine="calamine")))
    runs = {item.row or 0: dict(item.payload) for item in items if isinstance(item, JobSpec)}
    assert as_json(runs) == as_json(expected)


@pytest.mark.parametrize("case", [c for c in CASES if c.rows and not c.problems], ids=named)
def test_a_file_read_twice_has_the_same_keys(case: Case, made: Path) -> None:
    first, second = ([getattr(item, "key", None) for item in specs(read(made))] for _ in "12")
    assert first == second
    assert len(set(first)) == len(first)
