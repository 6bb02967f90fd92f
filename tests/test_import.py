"""`import vqkit` is light, and its names are those it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import vqkit

HEAVY = {"pandas", "matplotlib", "ipywidgets", "openpyxl", "sqlite_utils", "numpy"}
ALSO_LATER = {"IPython", "ipykernel", "nest_asyncio", "nest_asyncio2", "loky", "PIL", "polars"}

TELL_MODULES = "print(json.dumps([name.partition('.')[0] for name in sys.modules]))"


def fresh(code: str, folder: Path) -> Any:
    """What the code prints as JSON in a new interpreter, bytecode cached as for a user."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV"))}
    env["PYTHONPYCACHEPREFIX"] = str(folder)
    env["PYTHONPATH"] = str(Path(vqkit.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_importing_vqkit_and_opening_a_queue_load_nothing_heavy(tmp_path: Path) -> None:
    loaded = fresh(
        f"import json, sys; import vqkit; {TELL_MODULES}",
        tmp_path,
    )
    assert not (HEAVY | ALSO_LATER | {"sqlite3", "asyncio"}) & set(loaded)
    loaded = fresh(
        f"import json, sys; from vqkit import Queue, Retry, GiveUp, Snooze; {TELL_MODULES}",
        tmp_path,
    )
    assert not (HEAVY | ALSO_LATER) & set(loaded)


def test_an_existing_queue_opens_and_runs_without_sqlite_utils(tmp_path: Path) -> None:
    with vqkit.Queue(tmp_path / "q.db") as q:
        q.put({"n": 1})
    loaded = fresh(
        f"import json, sys; from vqkit import Queue\nwith Queue({str(tmp_path / 'q.db')!r}) as q:\n"
        "    q.run(lambda job: 1).check(); q._repr_html_()\n"
        f"{TELL_MODULES}",
        tmp_path,
    )
    assert not (HEAVY | ALSO_LATER) & set(loaded)


def test_nothing_is_patched_or_started_by_the_import(tmp_path: Path) -> None:
    found = fresh(
        "import asyncio, json, signal, sys, threading; before = signal.getsignal(signal.SIGINT);"
        " from vqkit import Queue, allow_nested;"
        " print(json.dumps([hasattr(asyncio, '_nest_patched'), threading.active_count(),"
        " signal.getsignal(signal.SIGINT) is before]))",
        tmp_path,
    )
    assert found == [False, 1, True]


def test_every_public_name_is_there_and_dir_tells_them() -> None:
    for name in vqkit.__all__:
        assert getattr(vqkit, name) is not None, name
    assert dir(vqkit) == sorted(vqkit.__all__)
    assert {"Queue", "Retry", "GiveUp", "Snooze", "JobCancelled", "VqkitError"} <= set(dir(vqkit))
    space: dict[str, Any] = {}
    exec("from vqkit import *", space)
    assert set(vqkit.__all__) <= set(space)


def test_an_unknown_name_is_told_as_python_does() -> None:
    with pytest.raises(AttributeError, match="module 'vqkit' has no attribute 'Que'"):
        vqkit.Que  # type: ignore[attr-defined]  # noqa: B018
    assert vqkit.__version__.count(".") == 2


def test_each_modules_all_is_true() -> None:
    from importlib import import_module

    root = Path(vqkit.__file__).parent
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        if parts[-1] in ("__init__", "__main__", "cli"):
            continue
        module = import_module(".".join(parts))
        for name in getattr(module, "__all__", ()):
            assert hasattr(module, name), f"{module.__name__}.{name}"
