"""The tree of errors is what its drawing says, and every error crosses a process border."""

from __future__ import annotations

import builtins
import importlib
import os
import pickle
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import vqkit
from vqkit import errors
from vqkit.errors import GiveUp, JobCancelled, Signal, Snooze, UsageError, VqkitError

CLASSES = [getattr(errors, name) for name in errors.__all__]
MODULES = [
    "vqkit",
    *(m.name for m in pkgutil.walk_packages(vqkit.__path__, "vqkit.") if "__main__" not in m.name),
]


def drawn_tree() -> dict[str, tuple[str, ...]]:
    """{name: names of its bases} as drawn at the top of errors.py."""
    branch = re.compile(r"^    ([│├└─ ]*)([A-Z]\w+)(?: \((\w+)\))?(?:\s|$)")
    tree: dict[str, tuple[str, ...]] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := branch.match(line):
            rails, name, also = found.groups()
            above[len(rails) // 4 :] = [name]
            parent = above[-2] if len(above) > 1 else "Exception"
            tree[name] = (parent, also) if also else (parent,)
    return tree


def test_the_drawn_tree_is_the_real_one() -> None:
    real = {cls.__name__: tuple(base.__name__ for base in cls.__bases__) for cls in CLASSES}
    assert drawn_tree() == real


def test_every_name_in_the_drawing_beside_ours_is_a_builtin() -> None:
    others = {base for bases in drawn_tree().values() for base in bases} - drawn_tree().keys()
    assert all(issubclass(getattr(builtins, name), Exception) for name in others)


@pytest.mark.parametrize("cls", [c for c in CLASSES if issubclass(c, VqkitError)])
def test_an_error_survives_pickling_with_its_facts(cls: type[VqkitError]) -> None:
    error = cls("disk full at /a/b", path="/a/b", is_unknown=True)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert str(again) == "disk full at /a/b"
    assert again.facts == error.facts
    assert {"path": "/a/b", "is_unknown": True}.items() <= again.facts.items()
    assert again.path == "/a/b"


@pytest.mark.parametrize(
    "signal", [GiveUp("no such model"), Snooze(2.5, "busy"), JobCancelled("by you"), Signal("x")]
)
def test_a_signal_survives_pickling_with_its_facts(signal: Signal) -> None:
    again = pickle.loads(pickle.dumps(signal))
    assert type(again) is type(signal)
    assert vars(again) == vars(signal)
    assert again.args == signal.args


def test_an_error_without_a_fact_says_so_as_any_object_does() -> None:
    with pytest.raises(AttributeError, match="pid"):
        VqkitError("x", path="y").pid  # noqa: B018 - the look is the test


@pytest.mark.parametrize("delay_s", [-1, float("nan"), float("inf"), 1e12])
def test_a_snooze_that_is_no_time_is_refused(delay_s: float) -> None:
    with pytest.raises(UsageError, match="expected seconds"):
        Snooze(delay_s)


@pytest.mark.parametrize("reason", [ValueError("bad prompt"), 3, {"code": 4}, None])
def test_a_reason_that_is_no_text_becomes_text(reason: Any) -> None:
    assert GiveUp(reason).reason == str(reason)
    assert Snooze(1, reason).reason == str(reason)


@pytest.mark.parametrize("name", MODULES)
def test_what_a_module_exports_is_there(name: str) -> None:
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", None)
    if exported is None:
        pytest.skip("it exports nothing by name")
    assert len(set(exported)) == len(exported)
    assert [n for n in exported if getattr(module, n, None) is None] == []
    assert [n for n in exported if n.startswith("_") and not n.startswith("__")] == []


def test_every_error_class_is_exported() -> None:
    made_here = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and value.__module__ == errors.__name__
    }
    assert made_here == set(errors.__all__)


def test_what_a_try_cost_travels_with_its_signal() -> None:
    found = pickle.loads(pickle.dumps(GiveUp("no", cost=0.25)))
    assert (found.reason, found.cost) == ("no", 0.25)


CELLS = """
import sys, threading, _thread
import vqkit
q = vqkit.Queue(sys.argv[-1])
q.put({"n": 1})
%s
"""


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("q.cancel()", "cancel() wants to know which"),
        ("q.job(17)", "no job 17 in this queue"),
        ("q.resolve(1, 'not_sent')", "resolve needs in_doubt"),
        ("q.put({'n': 1}, not_before='noon')", "expected a datetime"),
        ("q.cancel(1); q.check()", "0 of 1 completed"),
        (
            "def render(job): _thread.interrupt_main()\nq.run(render)",
            "no new work is handed out",
        ),
    ],
)
def test_a_cell_shows_its_own_line_and_the_sentence_and_not_vqkits_insides(
    tmp_path: Path, cell: str, said: str
) -> None:
    program = tmp_path / "cell.ipy"
    program.write_text(CELLS % cell)
    command = ["-m", "IPython", "--colors=NoColor", "--no-confirm-exit", str(program)]
    ran = subprocess.run(
        [sys.executable, *command, "--", str(tmp_path / "q.db")],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "IPYTHONDIR": str(tmp_path)},
    )
    shown = ran.stdout + ran.stderr
    assert said in shown
    assert cell.splitlines()[-1].split("; ")[-1] in shown
    assert "vqkit/queue" not in shown.replace(str(tmp_path), "")
    assert "concurrent/futures" not in shown
    assert "During handling" not in shown
    assert "direct cause" not in shown
    assert len(shown.splitlines()) < 25
