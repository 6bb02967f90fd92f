"""The notebooks' run is worth something: it fails where a fault is planted.

Small notebooks go through pytest with the options this project runs its own notebooks with.
"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import nbformat
import pytest

import vqkit

pytestmark = pytest.mark.timeout(240)

ROOT = Path(__file__).parent.parent
FAIL, PASS = "failed", "passed"

BEGIN = """
import time
from vqkit import Queue
q = Queue("NAME.db")
def render(job):
    return job.payload["n"]
"""
DIES = """
def render(job):
    raise ValueError("died in the background")
"""
CRASHES = """
import vqkit.pump
def broken(*_):
    raise ZeroDivisionError("crashed in the background")
vqkit.pump.policy.decide = broken
"""
WORK = """
q.put_many([{"n": n} for n in range(3)], max_attempts=1)
run = q.start(render)
while run.is_running and q.stats()["total"] != q.stats()["completed"] + q.stats()["failed"]:
    time.sleep(0.01)
print(q.stats()["total"])
"""
CHECK = "q.check().counts['completed']"

# name: (the cells, with what stands below them; how each is to end; what the fault says)
NOTEBOOKS: dict[str, tuple[list[tuple[str, str | None]], list[str], str]] = {
    "sound": ([(BEGIN, None), (WORK, "3\n"), (CHECK, "3")], [PASS, PASS, PASS], ""),
    "output_changed": (
        [(BEGIN, None), (WORK, "4\n"), (CHECK, "3")],
        [PASS, FAIL, PASS],
        "mismatch 'stdout'",
    ),
    "task_died": (
        [(BEGIN + DIES, None), (WORK, "3\n"), (CHECK, "3")],
        [PASS, PASS, FAIL],
        "died in the background",
    ),
    "pump_crashed": (
        [(BEGIN + CRASHES, None), (WORK, "3\n"), (CHECK, "3")],
        [PASS, PASS, FAIL],
        "the pump has stopped: ZeroDivisionError: crashed in the background",
    ),
}


@pytest.fixture(scope="module")
def report(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[int, dict[str, list[tuple[str, str]]]]:
    """The exit status, and of each notebook how its cells ended and what they said."""
    folder = tmp_path_factory.mktemp("planted")
    for name, (cells, *_) in NOTEBOOKS.items():
        made = [_cell(code.replace("NAME", name), text) for code, text in cells]
        nbformat.write(nbformat.v4.new_notebook(cells=made), folder / f"{name}.ipynb")
    junit = folder / "report.xml"
    path = str(Path(vqkit.__file__).parent.parent)
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", f"--config-file={ROOT / 'pyproject.toml'}"),
            *("--rootdir", str(folder), "-p", "no:cacheprovider"),
            *(
                f"--nbval-sanitize-with={ROOT / 'notebooks' / 'sanitize.cfg'}",
                f"--junitxml={junit}",
            ),
            *(str(folder / f"{name}.ipynb") for name in NOTEBOOKS),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "IPYTHONDIR": str(folder / "ipython")},
        capture_output=True,
        text=True,
        check=False,
    )
    found: dict[str, list[tuple[str, str]]] = {name: [] for name in NOTEBOOKS}
    assert junit.exists(), ended.stdout + ended.stderr
    for case in ET.parse(junit).iter("testcase"):
        fault = case.find("failure")
        name = next(name for name in NOTEBOOKS if name in f"{case.get('classname')}")
        said = "" if fault is None else str(fault.text)
        found[name].append((PASS if fault is None else FAIL, said))
    return ended.returncode, found


def _cell(code: str, text: str | None) -> nbformat.NotebookNode:
    """A cell that has run. `text` was printed if it ends with a newline, else it is the value."""
    if text is None:
        outputs = []
    elif text.endswith("\n"):
        outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)]
    else:
        outputs = [nbformat.v4.new_output("execute_result", {"text/plain": text})]
    return nbformat.v4.new_code_cell(code, execution_count=1, outputs=outputs)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_run_fails_where_a_fault_is_planted_and_nowhere_else(
    report: tuple[int, dict[str, list[tuple[str, str]]]], name: str
) -> None:
    status, found = report
    _, ends, says = NOTEBOOKS[name]
    assert [end for end, _ in found[name]] == ends, found[name]
    assert says in "".join(said for _, said in found[name])
    assert status == 1
