"""The repository itself: its files agree with each other."""

import json
import re
import tomllib
from pathlib import Path

import pytest

import vqkit

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PICTURES = sorted((ROOT / "notebooks" / "images").glob("*.png"))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_environment_yml_lists_what_pyproject_lists():
    extras = PROJECT["optional-dependencies"]
    wanted = {*PROJECT["dependencies"], *extras["video"], *extras["test"]}
    text = (ROOT / "environment.yml").read_text(encoding="utf-8")
    listed = re.findall(r'^      - "(.+)"$', text, re.MULTILINE)
    assert set(listed) == wanted
    assert len(listed) == len(set(listed))
    assert f"python{PROJECT['requires-python']}" in text


def test_the_version_stands_in_one_piece():
    assert PROJECT["version"] == vqkit.__version__


def test_readme_explains_every_dependency():
    readme = (ROOT / "README.md").read_text(encoding="utf-8").lower()
    for requirement in PROJECT["dependencies"]:
        assert re.split(r"[<>=\[]", requirement)[0].lower() in readme, requirement


def test_readme_begins_with_the_two_commands():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```bash\n(.*?)```", readme, re.DOTALL)
    assert "vqkit run data/samples/prompts.xlsx" in blocks[0]
    assert "-m pytest" in blocks[1]
    assert readme.index(blocks[1]) < 1000


def test_readme_shows_small_pictures_light_and_dark():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r'src(?:set)?="(notebooks/images/.+?)"', readme)
    assert sorted(shown) == [f"notebooks/images/{path.name}" for path in PICTURES]
    assert all(path.stat().st_size <= 100_000 for path in PICTURES)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_carries_no_widget_state_error_or_path_of_a_machine(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert "widgets" not in notebook["metadata"]
    outputs = [out for cell in notebook["cells"] for out in cell.get("outputs", [])]
    assert all(out["output_type"] != "error" for out in outputs)
    assert not re.search(r"/(home|root|tmp|Users)/", json.dumps(outputs))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_ends_with_a_check(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert "q.check()" in "".join(cells[-1]["source"])
