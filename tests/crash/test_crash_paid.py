"""Paid renders through real SIGKILLs: every named point with every kind of idempotency.

The children, the points and what must hold afterwards are those of the self-test users have.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from vqkit import Queue
from vqkit.mock import MockProvider
from vqkit.selftest import (
    KINDS,
    POINTS,
    SIGKILLED,
    TWICE,
    Bench,
    Check,
    Children,
    State,
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


EVERYTHING: dict[str, Any] = {
    "render_s": 0.05,
    "render_spread": 0.9,
    "answer_s": 0.01,
    "answer_spread": 0.9,
    "poll_after_s": 0.02,
    "not_found_polls": 1,
    "progress": "backwards",
    "concurrency": {"a": 5, "b": 3, "c": 2},
    "rate": 0.03,
    "retry_after_s": 1,
    **{"drop_before": 0.04, "error_before": 0.04},
    **{"drop_after": 0.04, "error_after": 0.04, "html_after": 0.02},
    **{"moderated": 0.04, "moderated_billed": True, "render_failed": 0.08, "no_outputs": 0.03},
    **{"poll_rate": 0.01, "poll_drop": 0.03, "poll_error": 0.03, "poll_html": 0.02},
    **{"unknown_state": 0.05, "file_error": 0.05, "file_html": 0.03, "truncate": 0.1},
    "wrong_length": 0.03,
    "link_ttl_s": 30,
    "files": "redirect",
    "download": "chunked",
    "slow_s": 0.01,
    "cost_spread": 0.6,
    "billed_on": "start",
}


@pytest.mark.parametrize("kind", ["replay", "list"])
def test_two_hundred_jobs_with_every_fault_and_twenty_kills_agree_with_the_ledger_to_the_cent(
    bench: Bench, children: Children, kind: Any
) -> None:
    seeded = random.Random(20)
    prompts = [f"a storm over {kind}, {n}" for n in range(200)]
    with bench.mock(idempotency=kind, **EVERYTHING) as mock:
        db = bench.queue()
        setting = bench.setting(mock, {"a": 6, "b": 3, "c": 2}, price=0.25)
        work: dict[str, Any] = {"db": str(db), "setting": setting, "prompts": prompts}
        kills = 0
        for _ in range(20):
            end = children.run("work", **work, die_after_s=seeded.uniform(0.1, 0.5))
            kills += end.code == SIGKILLED
        code = children.run("work", **work).code
        assert code == 0, bench.log.read_text()[-3000:]
        assert kills >= 15
        state = State.of(db)
        assert len(state.jobs) == 200
        assert state.statuses.keys() <= {"completed", "failed"}, state.statuses
        assert state.statuses["completed"] > 120
        for output in state.outputs:
            content = (db.with_suffix("") / output.path).read_bytes()
            assert hashlib.sha256(content).hexdigest() == output.sha256, output.path
        with Queue(db) as q:
            costs = q.costs()
        for account in "abc":
            mine = costs.loc[costs["account"] == account, "cost"].fillna(0.0)
            assert round(mine.sum() * 1e6) == mock.billed_microusd(account), account
            assert mock.most_at_once(account) <= EVERYTHING["concurrency"][account]
        assert not set(costs["money"].dropna()) & {"unknown"}
        # Another render only where the provider had said that the first one failed.
        good = Counter(r.request["prompt"] for r in mock.ledger() if r.ends == "succeeded")
        done = {j.payload["prompt"] for j in state.jobs if j.status == "completed"}
        assert set(good) == done
        assert set(good.values()) == {1}


def test_no_key_was_written_anywhere_by_all_this(bench: Bench) -> None:
    keys = [key.encode() for key in bench.secrets]
    assert keys
    for path in bench.folder.rglob("*"):
        if path.is_file() and path.name != "ballast":
            content = path.read_bytes()
            assert not any(key in content for key in keys), path
