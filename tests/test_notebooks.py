"""The notebooks as others run and read them; that they run is nbval's part."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return found


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


@each
def test_a_notebook_says_what_it_shows_and_then_what_can_be_changed(path: Path) -> None:
    head, parameters, *_ = cells(path)
    assert source(head).startswith("# ")
    assert re.search(r"seconds|minute", source(head)), "it says how long it takes"
    assert parameters["metadata"].get("tags") == ["parameters"]
    for statement in ast.parse(source(parameters)).body:
        assert isinstance(statement, ast.Assign)
        ast.literal_eval(statement.value)  # papermill hands in plain values


@each
def test_a_notebook_is_small_and_says_nothing_on_stderr(path: Path) -> None:
    assert path.stat().st_size < 1_500_000
    outputs = [output for cell in cells(path) for output in cell.get("outputs", [])]
    assert [output for output in outputs if output.get("name") == "stderr"] == []


def test_readme_and_the_tour_name_every_notebook() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    tour = NOTEBOOKS[0]
    assert set(re.findall(r"\]\(notebooks/(\w+\.ipynb)\)", readme)) == {p.name for p in NOTEBOOKS}
    told = "".join(map(source, cells(tour)))
    assert set(re.findall(r"\]\((\w+\.ipynb)\)", told)) == {p.name for p in NOTEBOOKS[1:]}


@pytest.mark.parametrize("path", [*ROOT.glob("*.md"), *NOTEBOOKS], ids=lambda path: path.name)
def test_a_link_to_a_file_leads_to_one(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = "".join(source(cell) for cell in cells(path) if cell["cell_type"] == "markdown")
    named = re.findall(r"\]\(([^)#:]+)\)|src(?:set)?=\"([^\":]+)\"", text)
    missing = [link for link in map("".join, named) if not (path.parent / link).exists()]
    assert missing == []


def test_papermill_runs_the_quickstart_with_another_sheet(tmp_path: Path) -> None:
    sheet = tmp_path / "two.csv"
    sheet.write_text("prompt,seconds\na fox in the snow,0.5\nthe sea at night,0.5\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "papermill", "--no-progress-bar"),
            *("--cwd", str(ROOT / "notebooks"), "--kernel", "python3"),
            *("-p", "sheet", str(sheet), "-p", "keep_in", str(tmp_path / "kept")),
            *(str(ROOT / "notebooks" / "01_quickstart.ipynb"), str(tmp_path / "out.ipynb")),
        ],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    last = cells(tmp_path / "out.ipynb")[-1]["outputs"][0]["text"]
    assert "".join(last).startswith("4 of 4 completed")
    assert len(list((tmp_path / "kept").glob("quickstart/0*.*"))) == 2
