from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crash_kit import Child, Forks, Ledger


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "q.db"


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    return tmp_path / "q"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.txt")


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    server = Forks(tmp_path_factory.mktemp("forks"))
    yield server
    server.close()


@pytest.fixture
def start(forks: Forks, tmp_path: Path) -> Iterator[Callable[..., Child]]:
    """Starts a task in a child process; whatever is left of it is ended with the test."""
    children: list[Child] = []

    def begin(task: str, **args: Any) -> Child:
        children.append(forks.start(task, tmp_path, **args))
        return children[-1]

    yield begin
    for child in children:
        child.end()
