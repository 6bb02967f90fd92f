"""Paid renders through real SIGKILLs: every named point with every kind of idempotency.

The children, the points and what must hold afterwards are those of the self-test users have.
Every fault at once is in `test_crash_storm`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from vqkit.mock import MockProvider
from vqkit.selftest import (
    KINDS,
    POINTS,
    TWICE,
    Bench,
    Check,
    Children,
    crash,
    provider_of,
)

CELLS = [*((point,) for point in POINTS), *TWICE]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("bench"), seed=0)
    yield made
    made.close()


@pytest.fixture(scope="module")
def children(bench: Bench) -> Iterator[Children]:
    with bench.children() as mine:
        yield mine


@pytest.fixture(scope="module", params=KINDS)
def kind_and_mock(
    request: pytest.FixtureRequest, bench: Bench
) -> Iterator[tuple[Any, MockProvider]]:
    with provider_of(bench, request.param) as mock:
        yield request.param, mock


@pytest.mark.parametrize("points", CELLS, ids=" and ".join)
def test_a_crash_loses_no_job_pays_for_none_twice_and_doubts_only_what_nobody_can_know(
    kind_and_mock: tuple[Any, MockProvider],
    bench: Bench,
    children: Children,
    points: tuple[str, ...],
) -> None:
    kind, mock = kind_and_mock
    check = Check("crash")
    crash(bench, check, children, mock, kind, points)
    assert not check.wrong, bench.log.read_text()[-3000:]
    assert (check.figures["lost"], check.figures["billed_twice"]) == (0, 0)


def test_no_key_was_written_anywhere_by_all_this(bench: Bench) -> None:
    keys = [key.encode() for key in bench.secrets]
    assert keys
    for path in bench.folder.rglob("*"):
        if path.is_file() and path.name != "ballast":
            content = path.read_bytes()
            assert not any(key in content for key in keys), path
