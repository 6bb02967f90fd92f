"""The self-test passes, and fails when any one rule is broken on purpose.

A rule is broken in the children only: they are started as ``python test_selftest.py MUTANT``,
which breaks it and goes on as ``python -m vqkit.selftest``.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vqkit import lifecycle, policy, recovery, renders, selftest, steps
from vqkit.errors import VqkitError
from vqkit.outcome import Outcome
from vqkit.receipts import Receipts
from vqkit.selftest import Bench, Check, Report, keys_nowhere
from vqkit.store.sqlite import SqliteStore

# -- the mutants -----------------------------------------------------------------------------


def intent_after_send() -> None:
    plain = SqliteStore.begin_step

    def begin_step(self: Any, **kwargs: Any) -> Any:
        step, is_old = plain(self, **kwargs)
        if not is_old and step.state == "intent":
            with self.transaction():
                self._delete_step(step)
        return step, is_old

    SqliteStore.begin_step = begin_step  # type: ignore[assignment, method-assign]


def receipt_not_kept() -> None:
    Receipts.append = lambda *_: None  # type: ignore[assignment, method-assign]


def receipt_not_synced() -> None:
    def append(self: Any, step: Any, value_json: str) -> None:
        line = {"key": step.key, "job": step.job, "name": step.name, "value": value_json}
        with self.path.open("a") as file:
            file.write("\n" + json.dumps(line) + "\n")

    Receipts.append = append  # type: ignore[method-assign]


def receipt_after_the_commit() -> None:
    plain = steps._keep_receipt
    left: list[Any] = []
    end_step = SqliteStore.end_step

    def ends(self: Any, *args: Any, **kwargs: Any) -> None:
        end_step(self, *args, **kwargs)
        for arguments in left:
            plain(*arguments)

    steps._keep_receipt = lambda *arguments: left.append(arguments)
    SqliteStore.end_step = ends  # type: ignore[assignment, method-assign]


def blind_resend() -> None:
    steps._was_begun = lambda step, is_old: False
    recovery.doubtful_steps = lambda store, job, receipts: []


def fence_not_checked() -> None:
    plain = lifecycle.apply

    def apply(job: Any, verb: str, now_ms: int, fence: Any = None, **change: Any) -> Any:
        return plain(job, verb, now_ms, job.fence, **change)

    lifecycle.apply = apply


def normal_instead_of_full() -> None:
    plain = SqliteStore._connect

    def connect(self: Any) -> Any:
        conn = plain(self)
        conn.execute("PRAGMA synchronous = NORMAL")
        return conn

    SqliteStore._connect = connect  # type: ignore[method-assign]


def more_than_the_account_allows() -> None:
    policy.free_slots = lambda capacity, live: capacity + 1


def retry_after_ignored() -> None:
    plain = policy.provider_outcome

    def outcome(error: Any, *args: Any) -> Outcome:
        if error.kind == "rate":
            return Outcome("released", reason="at once")
        return plain(error, *args)

    policy.provider_outcome = outcome


def retries_without_end() -> None:
    plain = policy.decide

    def decide(outcome: Any, job: Any, retry: Any, *rest: Any) -> Any:
        if outcome.kind == "error" and job.attempt == 3:
            job = job._replace(attempt=2)
        return plain(outcome, job, retry, *rest)

    policy.decide = decide


def cancel_not_passed_on() -> None:
    from vqkit.mock import MockAdapter

    async def cancel(*_: Any, **__: Any) -> str:
        return "cancelled"

    MockAdapter.cancel = cancel  # type: ignore[assignment, method-assign]


def key_in_the_log() -> None:
    plain = renders.RenderHandler.caller_of

    async def caller_of(self: Any, job: Any) -> Any:
        caller = await plain(self, job)
        sys.stderr.write(f"using {caller.account.key}\n")
        return caller

    renders.RenderHandler.caller_of = caller_of  # type: ignore[method-assign]


def half_a_file_is_finished() -> None:
    from vqkit.outputs import OutputFolder

    plain = OutputFolder.kept_part

    def kept_part(self: Any, *args: Any) -> Path:
        path = plain(self, *args)
        growing = path.with_name(path.name + ".growing")
        if growing.exists():
            growing.replace(path)
        return path

    OutputFolder.kept_part = kept_part  # type: ignore[method-assign]


def _crashes(kind: Any, *points: str) -> Callable[[Bench], Check]:
    return selftest._crashes_of(kind, [(point,) for point in points])


MUTANTS: list[tuple[Callable[[], None], Callable[[Bench], Check], str]] = [
    (intent_after_send, _crashes("none", "after sending"), "was billed 2 times"),
    (intent_after_send, selftest.durable, "no intent"),
    (receipt_not_kept, _crashes("none", "after the receipt"), "is in_doubt, not completed"),
    (receipt_not_kept, selftest.disk_full, "in_doubt"),
    (receipt_not_synced, selftest.durable, "receipt not synced"),
    (receipt_after_the_commit, selftest.durable, "'sent', 'kept', 'receipt synced'"),
    (blind_resend, _crashes("none", "after sending"), "was billed 2 times"),
    (blind_resend, _crashes("client_id", "before the receipt"), "was billed 2 times"),
    (fence_not_checked, selftest.contention, "no longer holds its job"),
    (normal_instead_of_full, selftest.durable, "not 2 (FULL)"),
    (more_than_the_account_allows, selftest.side_by_side, "beyond the provider's limit"),
    (retry_after_ignored, selftest.rate_limit_storm, "before Retry-After"),
    (retries_without_end, selftest.ends, "'fails': ('failed', "),
    (cancel_not_passed_on, selftest.cancelled, "at the provider"),
    (half_a_file_is_finished, _crashes("replay", "half a download"), "not what was rendered"),
]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, seed=0)
    yield made
    made.close()


def _broken(monkeypatch: pytest.MonkeyPatch, mutant: Callable[[], None]) -> None:
    monkeypatch.setattr(selftest, "PROGRAM", (sys.executable, __file__, mutant.__name__))


@pytest.mark.parametrize(
    ("mutant", "scenario", "sentence"),
    MUTANTS,
    ids=[f"{mutant.__name__}-{scenario.__name__}" for mutant, scenario, _ in MUTANTS],
)
def test_a_broken_rule_is_found(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    mutant: Callable[[], None],
    scenario: Callable[[Bench], Check],
    sentence: str,
) -> None:
    _broken(monkeypatch, mutant)
    found = scenario(bench)
    assert any(sentence in what for what in found.wrong), found


def test_a_key_that_was_written_down_is_found(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    _broken(monkeypatch, key_in_the_log)
    selftest.durable(bench)
    bench.close()
    assert keys_nowhere(bench).wrong == ["a key stands in children.log"]


# -- the self-test ---------------------------------------------------------------------------


def test_the_quick_self_test_passes_reports_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    report = selftest.selftest(tmp_path / "report")
    assert report.is_good, str(report)
    assert report.check() is report
    assert not list((tmp_path / "temporary").iterdir())
    told = json.loads((tmp_path / "report" / "selftest.json").read_text())
    assert told["is_good"]
    assert told["replay"] == "vqkit selftest --quick --seed 0"
    figures = [check["figures"] for check in told["checks"]]
    assert sum(f.get("kills", 0) for f in figures) >= 30
    assert sum(f.get("lost", 0) + f.get("billed_twice", 0) for f in figures) == 0
    page = (tmp_path / "report" / "selftest.md").read_text()
    assert page.startswith("# self-test of vqkit")
    assert "| good |" in page
    for child in ("vqkit-mock", "selftest"):  # nobody is left at work
        assert child not in _processes_of(os.getpid())


def _processes_of(pid: int) -> str:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == pid:
                found.append((folder / "cmdline").read_text())
        except OSError:
            continue
    return " ".join(found)


def test_the_full_self_test_has_every_cell() -> None:
    names = [s for s in selftest.scenarios(quick=False) if s.__name__ == "crashes"]
    assert len(names) == len(selftest.KINDS) == 7
    assert len(selftest.POINTS) == 10


def test_a_report_that_is_not_good_says_so_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Report([Check("claims", {"jobs": 3}, ["<b>a job</b> ran twice"])], 7, True, 1.0)
    assert not bad.is_good
    with pytest.raises(VqkitError, match="ran twice"):
        bad.check()
    assert "FAILED" in str(bad)
    assert "--seed 7" in str(bad)
    assert "&lt;b&gt;a job" in bad._repr_html_()
    assert "**claims**" in bad.to_markdown()
    monkeypatch.setattr(selftest, "selftest", lambda *_: bad)
    said: list[str] = []
    assert selftest.main_report(None, echo=said.append) == 1
    assert "ran twice" in said[0]


def test_a_scenario_that_breaks_down_is_a_finding_and_stops_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @selftest._scenario
    def broken(bench: Bench, check: Check) -> None:
        raise RuntimeError("a fault of the self-test's own")

    @selftest._scenario
    def fine(bench: Bench, check: Check) -> None:
        bench.secrets.add("a key nobody wrote down")

    monkeypatch.setattr(selftest, "scenarios", lambda quick: [broken, fine])
    report = selftest.selftest()
    assert [bool(check.wrong) for check in report.checks] == [True, False, False]
    assert "a fault of the self-test's own" in str(report)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    sys.exit(selftest.main(sys.argv[2:]))
