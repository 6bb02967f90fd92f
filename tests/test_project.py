"""The repository itself: its files agree with each other."""

import json
import re
import shutil
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


def test_readmes_first_handler_runs_as_it_stands_and_pays_for_each_row_once(tmp_path, monkeypatch):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", readme, re.DOTALL)[1]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STUDIO_A_KEY", "an-honest-key-of-a")
    monkeypatch.setenv("STUDIO_B_KEY", "an-honest-key-of-b")
    shutil.copy(ROOT / "data" / "samples" / "prompts.xlsx", tmp_path / "prompts.xlsx")
    submitted, waited = [], []

    class Client:
        async def submit(self, prompt, idempotency_key):
            submitted.append(prompt)
            return {"id": prompt}

        def wait(self, task):
            waited.append(task)
            if waited.count(task) < 2:
                raise ConnectionError("every first wait is cut off")
            return b"a clip of " + task.encode()

    names = {"my_client": lambda key: Client()}
    code = code.replace("q.run(render)", "q.run(render, retry=Retry(base_s=0, max_s=0))")
    exec("from vqkit import Retry\n" + code, names)
    with names["q"] as q:
        assert q.check().is_complete
        assert sorted(submitted) == sorted({job.payload["prompt"] for job in q.jobs()})
        assert len(q.outputs()) == len(submitted) == 12
        assert q.snapshot().spent == pytest.approx(12 * 0.70)
