"""A plan says what a source would put, and `put` does that and nothing else."""

from __future__ import annotations

import csv
import html.parser
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vqkit import GiveUp, Queue
from vqkit import plan as plan_module
from vqkit.errors import JobsFailed, SheetError, UsageError
from vqkit.estimate import estimate
from vqkit.job import Account
from vqkit.recolumned import Recolumned, compared

Rows = list[list[Any]]


@pytest.fixture
def q(tmp_path: Path) -> Iterator[Queue]:
    with Queue(tmp_path / "q.db") as queue:
        yield queue


@pytest.fixture
def sheet(tmp_path: Path) -> Callable[..., Path]:
    def sheet(
        rows: Rows, name: str = "sheet.csv", header: tuple[str, ...] = ("prompt", "n")
    ) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows])
        return path

    return sheet


Sheet = Callable[..., Path]


def rows_of(n: int) -> Rows:
    return [[f"prompt {i}", i] for i in range(n)]


def finish(q: Queue, provider: str | None = None) -> None:
    q.run(lambda job: job.payload, provider=provider)


def prompts(q: Queue, **chosen: Any) -> list[str]:
    return [job.payload["prompt"] for job in q.jobs(**chosen)]


# --- Run the cell again


def test_a_plan_puts_nothing_until_it_is_put(q: Queue, sheet: Sheet) -> None:
    plan = q.plan(sheet(rows_of(3)))
    assert len(q) == 0
    assert (plan.jobs, plan.new, plan.rows) == (3, 3, 3)
    added = plan.put()
    assert (added.new, len(q)) == (3, 3)


def test_the_same_source_adds_nothing(q: Queue, sheet: Sheet) -> None:
    path = sheet(rows_of(3))
    q.load(path)
    plan = q.plan(path)
    assert (plan.jobs, plan.same, plan.gone) == (0, 3, 0)
    assert "nothing to put: 3 jobs are there already" in plan.headline
    assert plan.put().new == q.load(path).new == 0
    assert len(q) == 3


def test_a_plan_put_twice_adds_nothing_the_second_time(q: Queue, sheet: Sheet) -> None:
    plan = q.plan(sheet(rows_of(3)))
    plan.put()
    assert plan.put().existing == 3
    assert len(q) == 3


@pytest.mark.parametrize("is_done", [False, True])
def test_three_cells_edited_in_a_thousand_rows_are_exactly_three_jobs(
    q: Queue, sheet: Sheet, is_done: bool
) -> None:
    rows = rows_of(1000)
    q.load(sheet(rows))
    if is_done:
        finish(q)
    rows[5][0], rows[500][1], rows[999][0] = "edited", 77, "the last one"
    plan = q.plan(sheet(rows))
    assert (plan.jobs, plan.changed, plan.new, plan.same, plan.gone) == (3, 3, 0, 997, 0)
    assert "3 jobs to put (3 changed), 997 the same" in str(plan)
    assert "rows 7, 502, 1001" in str(plan)
    added = plan.put()
    assert (added.existing, added.new + added.changed) == (997, 3)
    assert str(added).count("3 ") >= 1
    assert q.stats()["queued"] == (3 if is_done else 1000)
    assert len(q) == (1003 if is_done else 1000)
    assert {"edited", "the last one"} <= set(prompts(q, status="queued"))
    again = q.plan(sheet(rows))
    assert (again.jobs, again.same, again.gone) == (0, 1000, 0)


def test_a_row_inserted_at_the_top_changes_no_other(q: Queue, sheet: Sheet) -> None:
    q.load(sheet(rows_of(50)))
    finish(q)
    path = sheet([["first", 0], *rows_of(50)])
    plan = q.plan(path)
    assert (plan.new, plan.changed, plan.same, plan.gone) == (1, 0, 50, 0)
    plan.put()
    assert [job.row for job in q.jobs()][:3] == [3, 4, 5]  # they are known by their new rows
    assert q.plan(path).jobs == 0


def test_columns_moved_and_another_reader_change_nothing(q: Queue, sheet: Sheet) -> None:
    q.load(sheet(rows_of(4)))
    turned = q.plan(sheet([[n, prompt] for prompt, n in rows_of(4)], header=("n", "prompt")))
    assert (turned.same, turned.jobs) == (4, 0)
    frame = pd.DataFrame(rows_of(4), columns=["prompt", "n"]).astype({"n": str})
    assert q.plan(frame).same == 4


def test_a_changed_row_not_begun_is_changed_in_its_place(q: Queue, sheet: Sheet) -> None:
    rows = rows_of(3)
    q.load(sheet(rows, header=("prompt", "priority")))
    rows[1] = ["edited", 9]
    plan = q.plan(sheet(rows, header=("prompt", "priority")))
    assert (plan.changed, plan.in_place, plan.beside) == (1, 1, 0)
    plan.put()
    job = q.jobs()[1]
    assert (job.payload, job.priority, job.row) == ({"prompt": "edited"}, 9, 3)
    assert [e.type for e in q.events(job=job)] == ["job.queued", "job.changed"]


def test_a_priority_changed_alone_is_a_change_of_what_waits_and_of_nothing_else(
    q: Queue, sheet: Sheet
) -> None:
    rows = [["a", 1], ["b", 1]]
    q.load(sheet(rows, header=("prompt", "priority")))
    rows[0][1] = 5
    assert q.load(sheet(rows, header=("prompt", "priority"))).changed == 1
    assert [job.priority for job in q.jobs()] == [5, 1]
    finish(q)
    rows[0][1] = 7
    assert q.plan(sheet(rows, header=("prompt", "priority"))).jobs == 0


def test_a_changed_row_that_is_done_is_a_new_job_and_the_old_one_stays(
    q: Queue, sheet: Sheet
) -> None:
    rows = rows_of(3)
    q.load(sheet(rows))
    finish(q)
    rows[1][0] = "edited"
    plan = q.plan(sheet(rows))
    assert (plan.changed, plan.beside, plan.in_place) == (1, 1, 0)
    assert "a new job each, and the earlier one stays" in str(plan)
    added = plan.put()
    assert (added.new, added.beside) == (1, 1)
    old, new = q.job(2), q.job(4)
    assert (old.payload["prompt"], old.status, old.row) == ("prompt 1", "completed", None)
    assert (new.payload["prompt"], new.status, new.row) == ("edited", "queued", 3)
    assert q.events(job=old)[-1].data == {"by": 4, "row": 3}


def test_a_row_edited_back_runs_nothing_again(q: Queue, sheet: Sheet) -> None:
    rows = rows_of(3)
    path = sheet(rows)
    q.load(path)
    finish(q)
    sheet([["edited", 0], *rows[1:]])
    q.load(path)
    finish(q)
    sheet(rows)
    plan = q.plan(path)
    assert (plan.jobs, plan.same, plan.gone) == (0, 3, 1)
    plan.put()
    assert {job.row for job in q.jobs()} == {2, 3, 4, None}
    assert q.plan(path).gone == 0


def test_a_changed_row_that_runs_goes_on_beside_the_new_job(q: Queue, sheet: Sheet) -> None:
    import threading

    rows = rows_of(2)
    q.load(sheet(rows))
    begun, go_on = threading.Event(), threading.Event()

    def slow(job: Any) -> None:
        begun.set()
        go_on.wait(30)

    run = q.start(slow, concurrency=1)
    assert begun.wait(30)
    rows[0][0] = "edited"
    plan = q.plan(sheet(rows))
    assert (plan.changed, plan.beside, plan.beside_waiting) == (1, 1, 1)
    assert "go on with the old text" in str(plan)
    added = plan.put()
    go_on.set()
    run.wait()
    run.stop()
    assert added.new == 1
    assert sorted(prompts(q, status="completed")) == ["edited", "prompt 0", "prompt 1"]


def test_rows_that_are_gone_are_counted_and_kept(q: Queue, sheet: Sheet) -> None:
    q.load(sheet(rows_of(5)))
    path = sheet(rows_of(3))
    plan = q.plan(path)
    assert (plan.jobs, plan.same, plan.gone, plan.gone_waiting) == (0, 3, 2, 2)
    assert "2 not finished would still run: put(cancel_gone=True)" in str(plan)
    assert plan.put().gone == 2
    assert q.stats()["queued"] == 5
    assert q.plan(path).gone == 0


def test_rows_that_are_gone_can_be_cancelled(q: Queue, sheet: Sheet) -> None:
    rows = rows_of(5)
    q.load(sheet(rows))
    rows[0][0] = "edited"
    q.plan(sheet(rows[:3])).put(cancel_gone=True)
    assert prompts(q, status="cancelled") == ["prompt 3", "prompt 4"]
    assert prompts(q, status="queued") == ["edited", "prompt 1", "prompt 2"]


def test_equal_rows_are_jobs_of_their_own_and_the_sheet_put_twice_is_not_more(
    q: Queue, sheet: Sheet
) -> None:
    path = sheet([["a", 1], ["b", 2], ["a", 1]])
    plan = q.plan(path)
    assert (plan.new, plan.repeated) == (3, 1)
    assert "1 repeat an earlier row" in str(plan)
    plan.put()
    assert q.load(path).new == 0
    assert prompts(q) == ["a", "b", "a"]


def test_a_sorted_sheet_with_an_edit_is_one_job(q: Queue, sheet: Sheet) -> None:
    rows = rows_of(20)
    q.load(sheet(rows))
    rows[3][0] = "edited"
    plan = q.plan(sheet(rows[::-1]))
    assert (plan.changed, plan.new, plan.gone, plan.same) == (1, 0, 0, 19)


def test_samples_are_compared_one_by_one(q: Queue, sheet: Sheet) -> None:
    header = ("prompt", "samples")
    q.load(sheet([["a", 2], ["b", 2]], header=header))
    plan = q.plan(sheet([["a", 3], ["edited", 2]], header=header))
    assert (plan.rows, plan.new, plan.changed, plan.same) == (2, 1, 2, 2)
    plan.put()
    assert sorted(prompts(q)) == ["a", "a", "a", "edited", "edited"]
    assert len({job.seed for job in q.jobs()}) == 5


def test_a_row_with_a_key_that_changed_after_it_was_done_gets_a_key_beside_it(
    q: Queue, sheet: Sheet
) -> None:
    header = ("prompt", "key")
    path = sheet([["a", "k1"], ["b", "k2"]], header=header)
    q.load(path)
    finish(q)
    sheet([["edited", "k1"], ["b", "k2"]], header=header)
    plan = q.plan(path)
    assert (plan.changed, plan.beside, plan.same, plan.gone) == (1, 1, 1, 0)
    assert plan.put().new == 1
    assert q.job(3).key.startswith("k1@")  # type: ignore[union-attr]
    again = q.plan(path)
    assert (again.jobs, again.same, again.gone) == (0, 2, 0)


def test_a_key_of_another_source_is_no_reason_to_change_its_job(q: Queue, sheet: Sheet) -> None:
    header = ("prompt", "key")
    q.load(sheet([["a", "k1"]], header=header))
    other = sheet([["other", "k1"], ["b", "k2"]], name="other.csv", header=header)
    plan = q.plan(other)
    assert plan.skipped == {"duplicate key": 1}
    assert "is that of job 1 (sheet.csv), which holds something else" in plan.problems[0].reason
    plan.put()
    assert prompts(q) == ["a", "b"]


def test_another_file_of_the_same_name_is_another_source(q: Queue, sheet: Sheet) -> None:
    q.load(sheet([["a", 1], ["b", 2]], name="monday/prompts.csv"))
    plan = q.plan(sheet([["a", 1], ["c", 3]], name="tuesday/prompts.csv"))
    assert plan.source == "tuesday/prompts.csv"
    assert (plan.same, plan.new, plan.changed, plan.gone) == (1, 1, 0, 0)
    plan.put()
    assert prompts(q) == ["a", "b", "c"]
    assert {job.batch for job in q.jobs()} == {"prompts.csv", "tuesday/prompts.csv"}


def test_a_file_with_nothing_in_common_changes_no_job_in_its_place(q: Queue, sheet: Sheet) -> None:
    q.load(sheet(rows_of(3)))
    plan = q.plan(sheet([["x", 1], ["y", 2], ["z", 3]]))
    assert (plan.new, plan.changed, plan.gone, plan.gone_waiting) == (3, 0, 3, 3)
    plan.put()
    assert len(q) == 6


def test_rows_in_memory_are_compared_as_a_whole_where_they_have_a_batch(q: Queue) -> None:
    frame = pd.DataFrame(rows_of(5), columns=["prompt", "n"])
    q.plan(frame, batch="foxes").put()
    frame.loc[2, "prompt"] = "edited"
    plan = q.plan(frame, batch="foxes")
    assert (plan.changed, plan.same) == (1, 4)
    assert (q.plan(frame).new, q.plan(frame).changed) == (1, 0)


EDITS = st.lists(
    st.one_of(
        st.tuples(st.just("edit"), st.integers(0, 30), st.integers(0, 4)),
        st.tuples(st.just("insert"), st.integers(0, 30), st.integers(0, 4)),
        st.tuples(st.just("delete"), st.integers(0, 30), st.integers(0, 0)),
        st.tuples(st.just("swap"), st.integers(0, 30), st.integers(0, 30)),
        st.tuples(st.just("finish"), st.just(0), st.just(0)),
    ),
    max_size=6,
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(start=st.lists(st.integers(0, 6), min_size=1, max_size=12), edits=EDITS)
def test_whatever_is_edited_every_row_has_its_job_and_no_job_is_lost(
    tmp_path_factory: pytest.TempPathFactory, start: list[int], edits: list[tuple[str, int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("edits")
    path = folder / "s.csv"
    rows = [f"p{n}" for n in start]

    def save() -> None:
        path.write_text("\n".join(["prompt", *rows]) + "\n")

    with Queue(folder / "q.db") as q:
        save()
        q.load(path)
        for what, at, how in edits:
            at %= len(rows)
            if what == "edit":
                rows[at] = f"p{how}"
            elif what == "insert":
                rows.insert(at, f"p{how}")
            elif what == "delete" and len(rows) > 1:
                del rows[at]
            elif what == "swap":
                other = how % len(rows)
                rows[at], rows[other] = rows[other], rows[at]
            elif what == "finish":
                q.cancel(*[job.number for job in q.jobs(status="queued")][:2] or [1])
            save()
            before = len(q)
            plan = q.plan(path)
            added = plan.put()
            assert plan.rows == len(rows) == plan.new + plan.changed + plan.same
            assert added.new == plan.new + plan.beside
            assert added.changed == plan.in_place
            assert len(q) == before + added.new
            standing = {job.row: job.payload["prompt"] for job in q.jobs() if job.row is not None}
            assert standing == dict(enumerate(rows, 2))
            again = q.plan(path)
            assert (again.jobs, again.same, again.gone) == (0, len(rows), 0)


# --- Two sheets


def test_two_files_of_one_name_put_at_once_are_two_sources(
    q: Queue, sheet: Sheet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monday = sheet([["a", 1]], name="monday/prompts.csv")
    tuesday = sheet([["b", 2]], name="tuesday/prompts.csv")
    look = plan_module.scope_of

    def meanwhile(*args: Any) -> Any:
        monkeypatch.setattr(plan_module, "scope_of", look)
        q.load(tuesday)  # as another process may, between two looks at the database
        return look(*args)

    monkeypatch.setattr(plan_module, "scope_of", meanwhile)
    q.load(monday)
    assert {job.source for job in q.jobs()} == {"prompts.csv", "tuesday/prompts.csv"}
    assert (q.plan(monday).gone, q.plan(tuesday).gone) == (0, 0)


def test_a_plan_whose_name_another_file_got_meanwhile_is_refused(q: Queue, sheet: Sheet) -> None:
    plans = [q.plan(sheet([[day, 1]], name=f"{day}/prompts.csv")) for day in ("monday", "tuesday")]
    plans[0].put()
    with pytest.raises(SheetError, match=r"prompts.csv is now the name of another file, which was"):
        plans[1].put()
    assert prompts(q) == ["monday"]
    assert q.plan(plans[1]._table.path).put().new == 1
    assert {job.batch for job in q.jobs()} == {"prompts.csv", "tuesday/prompts.csv"}


def test_a_job_of_two_sheets_is_cancelled_when_neither_has_it(q: Queue, sheet: Sheet) -> None:
    q.load(sheet([["fox", 1], ["owl", 1]], name="a.csv"))
    q.load(sheet([["fox", 1], ["cat", 1]], name="b.csv"))
    plan = q.plan(sheet([["owl", 1]], name="a.csv"))
    assert (plan.same, plan.gone, plan.gone_waiting, plan.gone_elsewhere) == (1, 0, 0, 1)
    assert "1 no longer here, but in b.csv too; kept for that" in str(plan)
    plan.put(cancel_gone=True)
    assert prompts(q, status="queued") == ["fox", "owl", "cat"]
    plan = q.plan(sheet([["cat", 1]], name="b.csv"))
    assert (plan.same, plan.gone, plan.gone_waiting, plan.gone_elsewhere) == (1, 1, 1, 0)
    plan.put(cancel_gone=True)
    assert prompts(q, status="cancelled") == ["fox"]


def test_a_sheet_that_came_second_lets_go_of_a_job_without_a_word_to_the_first(
    q: Queue, sheet: Sheet
) -> None:
    first = sheet([["fox", 1], ["owl", 1]], name="a.csv")
    q.load(first)
    q.load(sheet([["fox", 1], ["owl", 1]], name="b.csv"))  # not one job of its own
    plan = q.plan(sheet([["owl", 1]], name="b.csv"))
    assert (plan.same, plan.gone, plan.gone_elsewhere) == (1, 0, 1)
    plan.put(cancel_gone=True)
    assert q.plan(first).same_by_status == {"queued": 2}
    q.plan(sheet([["owl", 1]], name="a.csv")).put(cancel_gone=True)
    assert prompts(q, status="cancelled") == ["fox"]


@pytest.mark.parametrize("edited", ["a.csv", "b.csv"])
@pytest.mark.parametrize("header", [("prompt", "n"), ("prompt", "key")])
def test_a_row_that_two_sheets_have_is_changed_in_one_of_them(
    q: Queue, sheet: Sheet, edited: str, header: tuple[str, str]
) -> None:
    rows = [["fox", 1], ["owl", 2]]
    for name in ("a.csv", "b.csv"):
        q.load(sheet(rows, name=name, header=header))
    other = q.plan(sheet(rows, name="b.csv" if edited == "a.csv" else "a.csv", header=header))
    rows[0] = ["red fox", 3 if edited == "b.csv" else 1]
    plan = q.plan(sheet(rows, name=edited, header=header))
    assert (plan.changed, plan.beside, plan.beside_waiting, plan.same) == (1, 1, 0, 1)
    assert plan.put(cancel_gone=True).new == 1
    assert prompts(q, status="queued") == ["fox", "owl", "red fox"]
    again = q.plan(other._table.path)
    assert (again.jobs, again.same, again.gone) == (0, 2, 0)
    again = q.plan(plan._table.path)
    assert (again.jobs, again.same, again.gone) == (0, 2, 0)


def test_a_job_put_by_hand_too_is_not_cancelled_with_its_row(q: Queue, sheet: Sheet) -> None:
    q.put({"prompt": "bee", "n": "1"})
    q.load(sheet([["fox", 1], ["owl", 1], ["bee", 1]]))
    q.put({"prompt": "fox", "n": "1"})
    q.plan(sheet([["owl", 1]])).put(cancel_gone=True)
    assert prompts(q, status="queued") == ["bee", "fox", "owl"]


# --- The same rows under other columns

NOTED = ("Prompt", "n", "note")


def noted(q: Queue, sheet: Sheet, **how: Any) -> Path:
    """A sheet of four rows with remarks in two of them, put and done."""
    q.accounts.add("a", provider="p", capacity=3, price=0.25)
    rows = [[f"prompt {n}", n, "good" if n < 2 else ""] for n in range(4)]
    path = sheet(rows, header=NOTED)
    q.load(path, **how)

    def p(job: Any) -> None: ...

    q.run(p)
    return path


def test_columns_forgotten_once_are_told_and_load_puts_nothing(q: Queue, sheet: Sheet) -> None:
    columns = {"Prompt": "prompt", "note": None}
    path = noted(q, sheet, columns=columns)
    told = (
        "4 of the rows to put are there already with other columns: 'prompt' is 'Prompt' now,"
        " 'note' is new. Say columns={'Prompt': 'prompt', 'note': None} to have them as they are,"
        f" or put all that is to put ($1.00): q.plan({str(path)!r}).put()"
    )
    with pytest.raises(SheetError) as refused:
        q.load(path)
    assert str(refused.value) == f"nothing was put, for it would be paid again. {told}"
    assert len(q) == 4
    assert q.load(path, columns=columns).existing == 4
    plan = q.plan(path)
    assert told in plan.notes
    assert told in str(plan)
    assert (plan.changed, plan.beside, plan.new, plan.gone) == (4, 4, 0, 0)
    added = plan.put()
    assert (added.new, added.notes) == (4, (told,))
    assert q.load(path).existing == 4  # what was put so is there


def test_rows_that_failed_for_their_columns_are_put_again_under_the_right_ones(
    q: Queue, sheet: Sheet
) -> None:
    def p(job: Any) -> Any:
        prompt = job.payload["prompt"]
        return job.once("submit", lambda: prompt, paid=True)

    q.accounts.add("a", provider=p, capacity=3, price=0.25)
    path = sheet([[f"prompt {n}"] for n in range(4)], header=("Prompt",))
    q.load(path)
    q.run(p)
    assert "columns={'Prompt': 'prompt'}" in str(q.job(1).error)
    assert q.load(path, columns={"Prompt": "prompt"}).new == 4  # as the error says
    q.run(p)
    assert (q.stats()["completed"], q.snapshot().spent) == (4, 1.0)


@pytest.mark.parametrize("price", [0.25, None])
def test_rows_that_paid_and_then_failed_are_not_paid_again_unasked(
    q: Queue, sheet: Sheet, price: float | None
) -> None:
    def p(job: Any) -> Any:
        job.once("submit", lambda: 1, paid=True)
        return job.payload["prompt"]

    q.accounts.add("a", provider=p, capacity=3, price=price)
    path = sheet([[f"prompt {n}"] for n in range(4)], header=("Prompt",))
    q.load(path)
    q.run(p)
    with pytest.raises(SheetError, match="paid again"):
        q.load(path, columns={"Prompt": "prompt"})


def test_keyed_rows_that_failed_for_their_columns_are_put_again_too(q: Queue, sheet: Sheet) -> None:
    def p(job: Any) -> Any:
        return job.payload["prompt"]

    q.accounts.add("a", provider=p, capacity=3)
    path = sheet([[f"prompt {n}", f"k{n}"] for n in range(4)], header=("Prompt", "key"))
    q.load(path)
    q.run(p)
    assert q.load(path, columns={"Prompt": "prompt", "key": "key"}).beside == 4
    q.run(p)
    assert q.stats()["completed"] == 4


def test_the_way_to_put_all_again_names_the_columns_that_were_asked_for(
    q: Queue, sheet: Sheet
) -> None:
    columns = {"Prompt": "prompt"}
    path = noted(q, sheet)
    with pytest.raises(SheetError, match=r"columns=\{'Prompt': 'prompt'\}\)\.put\(\)$"):
        q.load(path, columns=columns)


def test_a_renamed_column_is_told(q: Queue, sheet: Sheet) -> None:
    noted(q, sheet)
    rows = [[f"prompt {n}", n, "good" if n < 2 else ""] for n in range(4)]
    path = sheet(rows, header=("text", "n", "note"))
    with pytest.raises(SheetError, match=r"'Prompt' is 'text' now. Say columns=\{'text': 'Prompt'"):
        q.load(path)
    assert q.plan(path, columns={"text": "Prompt"}).same == 4


def test_the_first_remark_in_a_column_that_was_blank_is_told(q: Queue, sheet: Sheet) -> None:
    rows = [[f"prompt {n}", n, ""] for n in range(9)]
    q.load(sheet(rows, header=NOTED))
    finish(q)
    rows[3][2] = "great, keep this one"
    path = sheet(rows, header=NOTED)
    with pytest.raises(SheetError, match=r"1 of the rows to put is there already .* columns=\{'no"):
        q.load(path)
    assert q.plan(path, columns={"note": None}).same == 9
    assert q.plan(path).put().beside == 1


def test_a_column_that_is_no_more_is_told(q: Queue, sheet: Sheet) -> None:
    noted(q, sheet)
    path = sheet([[f"prompt {n}", n] for n in range(4)], header=NOTED[:2])
    with pytest.raises(SheetError, match=r"'note' is not there any more. To put all that is"):
        q.load(path)


def test_a_cell_filled_in_or_edited_is_an_edit_and_is_put(q: Queue, sheet: Sheet) -> None:
    noted(q, sheet)
    rows = [[f"prompt {n}", n, "good" if n < 3 else ""] for n in range(4)]
    path = sheet(rows, header=NOTED)
    assert q.plan(path).recolumned is None
    assert (q.load(path).beside, len(q)) == (1, 5)


def test_rows_not_begun_take_other_columns_in_their_place(q: Queue, sheet: Sheet) -> None:
    path = sheet(rows_of(3))
    q.load(path)
    added = q.load(path, columns={"n": None})
    assert (added.changed, added.new, added.gone) == (3, 0, 0)
    assert [job.payload for job in q.jobs()] == [{"prompt": f"prompt {n}"} for n in range(3)]


def test_columns_asked_for_only_now_are_told(q: Queue, sheet: Sheet) -> None:
    path = noted(q, sheet)
    with pytest.raises(SheetError, match=r"Leave out columns= as the last time, or put all"):
        q.load(path, columns=["Prompt"])


def test_with_which_columns_rows_would_be_what_was_put() -> None:
    rows = [({"Text": n, "m": 1, "x": 5}, {"text": n, "m": 1}) for n in range(3)]
    found = compared(rows, {"text", "m"})
    assert found == Recolumned(("x",), (), {"Text": "text"}, 3)
    assert found.columns({"A": "Text", "B": "m"}) == {"A": "text", "B": "m", "x": None}
    assert found.columns(["Text", "m", "x"]) is None
    assert found._replace(renamed={}).columns(["m", "x"]) == ["m"]
    edited = [({**new, "m": 2}, old) for new, old in rows]
    assert compared(edited, {"text", "m"}) is None


# --- Two sheets once more

KEYED = ("key", "prompt")


def test_a_row_that_one_sheet_let_go_is_edited_in_the_other(q: Queue, sheet: Sheet) -> None:
    q.load(sheet([["k1", "fox"], ["k2", "owl"]], name="a.csv", header=KEYED))
    q.load(sheet([["k1", "fox"], ["k3", "cat"]], name="b.csv", header=KEYED))
    q.plan(sheet([["k2", "owl"]], name="a.csv", header=KEYED)).put(cancel_gone=True)
    assert next((job.source, job.batch, job.row) for job in q.jobs()) == ("b.csv", "b.csv", 2)
    plan = q.plan(sheet([["k1", "red fox"], ["k3", "cat"]], name="b.csv", header=KEYED))
    assert (plan.changed, plan.in_place, plan.gone, plan.skipped) == (1, 1, 0, {})
    assert str(plan.put(cancel_gone=True)) == "0 new, 1 already there, 1 changed"
    finish(q)
    assert prompts(q, status="completed") == ["red fox", "owl", "cat"]


@pytest.mark.parametrize("edited", ["a.csv", "b.csv"])
def test_a_keyed_row_of_two_sheets_that_one_edits_is_a_job_beside(
    q: Queue, sheet: Sheet, edited: str
) -> None:
    for name in ("a.csv", "b.csv"):
        q.load(sheet([["k1", "fox"]], name=name, header=KEYED))
    for text in ("red fox", "blue fox"):  # the second edit changes what the first put
        plan = q.plan(sheet([["k1", text]], name=edited, header=KEYED))
        assert (plan.changed, plan.gone, plan.skipped.total()) == (1, 0, 0)
        plan.put(cancel_gone=True)
    assert prompts(q, status="queued") == ["fox", "blue fox"]
    assert {job.source for job in q.jobs()} == {"a.csv", "b.csv"}


def test_a_plan_names_the_other_sheet_that_has_an_edited_row(q: Queue, sheet: Sheet) -> None:
    for name in ("a.csv", "b.csv"):
        q.load(sheet([["fox", 1], ["owl", 2]], name=name))
    plan = q.plan(sheet([["red fox", 1], ["owl", 2]], name="b.csv"))
    assert (plan.beside, plan.beside_shared) == (1, 1)
    assert "1 in a.csv too: a new job each, and the earlier one stays theirs" in str(plan)
    assert "begun or done" not in str(plan)
    assert "whose earlier jobs are other sheets' too, or had begun, and stay" in str(plan.put())


def test_a_plan_names_the_other_batch_of_the_same_sheet(q: Queue, sheet: Sheet) -> None:
    for batch in ("x", "y"):
        q.load(sheet([["fox", 1], ["owl", 2]]), batch=batch)
    plan = q.plan(sheet([["red fox", 1], ["owl", 2]]), batch="y")
    assert "1 in the batch x too: a new job each" in str(plan)


def test_a_row_that_is_refused_is_not_gone(q: Queue, sheet: Sheet) -> None:
    q.load(sheet([["k1", "fox"]], name="a.csv", header=KEYED))
    q.load(sheet([["k2", "owl"], ["k3", "cat"]], name="b.csv", header=KEYED))
    plan = q.plan(sheet([["k1", "owl"], ["k3", "cat"]], name="b.csv", header=KEYED))
    assert (plan.skipped, plan.same, plan.gone) == ({"duplicate key": 1}, 1, 0)
    added = plan.put(cancel_gone=True)
    assert (added.skipped, added.conflicts, added.gone) == (1, 0, 0)
    assert "is that of job 1 (a.csv), which holds something else" in str(added)
    assert q.stats()["queued"] == 3


@pytest.mark.parametrize("is_loaded_between", [False, True])
@pytest.mark.parametrize("header", [("prompt", "n"), ("prompt", "key")])
def test_a_renamed_sheet_is_the_same_sheet(
    q: Queue, sheet: Sheet, header: tuple[str, str], is_loaded_between: bool
) -> None:
    path = sheet(rows_of(3), name="a.csv", header=header)
    q.load(path)
    path = path.rename(path.with_name("c.csv"))
    if is_loaded_between:
        added = q.load(path)
        assert "c.csv is a.csv under another name" in str(added)
    rows = rows_of(3)
    rows[1][0] = "edited"
    plan = q.plan(sheet(rows, name="c.csv", header=header))
    assert (plan.changed, plan.in_place, plan.same, plan.gone) == (1, 1, 2, 0)
    assert any("a.csv" in note for note in plan.notes)
    plan.put()
    plan.put()
    finish(q)
    assert prompts(q) == ["prompt 0", "edited", "prompt 2"]
    assert q.plan(path).same == 3


def test_a_file_that_has_few_rows_of_one_that_is_lost_is_a_file_of_its_own(
    q: Queue, sheet: Sheet
) -> None:
    first = sheet(rows_of(3), name="a.csv")
    q.load(first)
    first.unlink()
    rows = [["prompt 0", 0], *([f"other {n}", n] for n in range(5))]
    other = sheet(rows, name="b.csv")
    added = q.load(other)
    assert (added.new, added.existing, added.notes) == (5, 1, ())
    assert q.job(1).source == "a.csv"
    rows[0][0] = "edited"  # the only sheet that has it now
    plan = q.plan(sheet(rows, name="b.csv"))
    assert (plan.changed, plan.in_place) == (1, 1)
    plan.put()
    assert q.job(1).payload["prompt"] == "edited"


def test_nobody_changes_a_sheets_job_by_hand(q: Queue, sheet: Sheet) -> None:
    for name in ("a.csv", "b.csv"):
        q.load(sheet([["k1", "fox"]], name=name, header=KEYED))
    with pytest.raises(UsageError, match=r"its key 'k1' is that of job 1 \(a.csv\), which holds"):
        q.put({"prompt": "by hand"}, key="k1")
    assert q.put_many([{"prompt": "by hand", "key": "k1"}]).skipped == 1
    assert q.put({"prompt": "fox"}, key="k1").number == 1
    assert prompts(q) == ["fox"]
    for name in ("a.csv", "b.csv"):
        assert q.plan(sheet([["k1", "fox"]], name=name, header=KEYED)).same == 1


@pytest.mark.parametrize("name", ["a.csv", "b.csv"])
def test_a_row_that_comes_back_is_put_again(q: Queue, sheet: Sheet, name: str) -> None:
    q.accounts.add("a", provider="p", capacity=3, price=0.25)
    q.load(sheet([["fox", 1], ["owl", 1]], name="a.csv"))
    q.plan(sheet([["owl", 1]], name="a.csv")).put(cancel_gone=True)
    path = sheet([["cat", 1], ["fox", 1], ["owl", 1]], name=name)
    plan = q.plan(path)
    assert (plan.jobs, plan.new, plan.again, plan.same) == (2, 1, 1, 1)
    assert "1 cancelled when their rows were gone: the rows are back" in str(plan)
    assert plan.estimate.high == 0.5
    added = q.load(path)
    assert str(added).startswith("1 new, 1 put again (cancelled when their rows were gone)")
    assert q.job(1).row == 3
    finish(q, "p")
    assert sorted(prompts(q, status="completed")) == ["cat", "fox", "owl"]


def test_a_row_that_you_cancelled_yourself_stays_cancelled(q: Queue, sheet: Sheet) -> None:
    path = sheet([["fox", 1], ["owl", 1]])
    q.load(path)
    q.cancel(1)
    assert q.load(path).again == 0
    assert q.job(1).status == "cancelled"


def test_a_text_edited_back_runs_again_if_it_was_cancelled_for_that(q: Queue, sheet: Sheet) -> None:
    path = sheet([["k1", "fox"], ["k2", "owl"]], header=KEYED)
    q.load(path)
    q.cancel(1)
    q.requeue(1)
    q._write(lambda s: s._conn.execute("UPDATE jobs SET fence = 1"))  # as if it had begun
    q.plan(sheet([["k1", "red fox"], ["k2", "owl"]], header=KEYED)).put(cancel_gone=True)
    assert prompts(q, status="cancelled") == ["fox"]
    assert q.plan(sheet([["k1", "fox"], ["k2", "owl"]], header=KEYED)).put(cancel_gone=True).again
    assert prompts(q, status="queued") == ["fox", "owl"]


def fail(q: Queue, *wrong: str) -> None:
    def render(job: Any) -> None:
        if job.payload["prompt"] in wrong:
            raise GiveUp("no")

    q.run(render)


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_failed_job_whose_row_was_edited_or_is_gone_is_left_alone(
    q: Queue, sheet: Sheet, is_gone: bool
) -> None:
    rows = rows_of(3)
    path = sheet(rows)
    q.load(path)
    fail(q, "prompt 0", "prompt 2")
    q.load(sheet(rows[1:] if is_gone else [["edited", 0], *rows[1:]]))
    fail(q)
    with pytest.raises(JobsFailed, match=r"1 failed do not count: their rows are gone or were"):
        q.check()
    done = q.requeue()
    assert (done, done.left, done.sheets) == (1, 1, ("sheet.csv",))
    assert repr(done) == (
        "1 job put back; 1 left: its row is gone from sheet.csv or was edited; q.requeue(17), by"
        " number, takes one all the same"
    )
    assert f"{done} {done:03d}" == "1 001"
    assert pickle.loads(pickle.dumps(done)).left == 1
    fail(q)
    assert q.job(1).status == "failed"
    summary = q.check()
    assert (summary.is_complete, summary.gone, summary.failures) == (True, {"failed": 1}, ())
    assert "1 failed do not count" in str(summary)
    assert q.run(lambda job: None).is_complete
    assert q.requeue(1) == 1
    fail(q, "prompt 0")
    assert q.prune(gone=True) == 1
    assert q.check().gone == {}
    assert q.plan(path).jobs == 0


def test_jobs_cancelled_for_their_rows_do_not_keep_a_queue_from_being_all_done(
    q: Queue, sheet: Sheet
) -> None:
    q.load(sheet(rows_of(3)))
    q.plan(sheet(rows_of(2))).put(cancel_gone=True)
    finish(q)
    assert q.check().gone == {"cancelled": 1}
    assert q.requeue(status="cancelled") == 0
    assert q.prune(gone=True, status="failed") == 0
    assert q.prune(gone=True) == 1
    with pytest.raises(UsageError, match=r"wants to know which"):
        q.prune(1, gone=True)
    with pytest.raises(UsageError, match=r"only finished jobs can be pruned"):
        q.prune(gone=True, status="queued")


def test_failed_jobs_that_another_sheet_or_a_hand_has_are_retried(q: Queue, sheet: Sheet) -> None:
    for name in ("a.csv", "b.csv"):
        q.load(sheet([["fox", 1], [name, 1]], name=name))
    q.put({"prompt": "a.csv", "n": "1"})
    fail(q, "fox", "a.csv")
    q.plan(sheet([["owl", 1], ["cat", 1]], name="a.csv"))
    q.load(sheet([["owl", 1]], name="a.csv"))
    q.plan(sheet([["fox", 1]], name="b.csv")).put()
    assert (q.requeue(), q.requeue().left) == (2, 0)


ROWS = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=5)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(versions=st.lists(st.tuples(st.booleans(), ROWS, st.booleans()), min_size=2, max_size=7))
def test_whatever_becomes_of_one_sheet_the_other_has_its_jobs(
    tmp_path_factory: pytest.TempPathFactory, versions: list[tuple[bool, list[str], bool]]
) -> None:
    folder = tmp_path_factory.mktemp("two")
    there: dict[str, list[str]] = {}
    with Queue(folder / "q.db") as q:
        for is_first, rows, is_finished in versions:
            name, other = ("a.csv", "b.csv") if is_first else ("b.csv", "a.csv")
            before = q.plan(folder / other) if other in there else None
            (folder / name).write_text("\n".join(["prompt", *rows]) + "\n")
            there[name] = rows
            q.plan(folder / name).put(cancel_gone=True)
            again = q.plan(folder / name)
            found = (again.jobs, again.same, again.gone, again.gone_elsewhere)
            assert found == (0, len(rows), 0, 0)
            if before is not None:
                after = q.plan(folder / other)
                assert (after.jobs, after.same, after.gone) == (0, len(there[other]), 0)
                assert after.same_by_status == before.same_by_status
            if is_finished:
                finish(q)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["a.csv", "b.csv"]),
        st.dictionaries(st.sampled_from("123"), st.sampled_from("xyz"), min_size=1),
        st.sampled_from(["", "finish", "fail", "rename"]),
    ),
    min_size=2,
    max_size=8,
)


@pytest.mark.parametrize("is_keyed", [True, False])
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS)
def test_every_row_has_its_job_and_nothing_waits_that_no_sheet_has(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, dict[str, str], str]],
    is_keyed: bool,
) -> None:
    folder = tmp_path_factory.mktemp("two")
    names = {"a.csv": "a.csv", "b.csv": "b.csv"}
    there: dict[str, set[tuple[str, str]]] = {}
    with Queue(folder / "q.db") as q:
        for sheet, rows, then in steps:
            path = folder / names[sheet]
            if then == "rename" and path.exists():
                names[sheet] = f"{sheet[0]}{len(names[sheet])}.csv"
                path = path.rename(folder / names[sheet])
                q.plan(path).put(cancel_gone=True)  # with no row left nobody could tell
            head = "key,prompt" if is_keyed else "n,prompt"
            path.write_text("\n".join([head, *(f"{k},{text}" for k, text in rows.items())]))
            plan = q.plan(path)
            refused = {problem.row for problem in plan.problems}
            added = plan.put(cancel_gone=True)
            assert (added.new, added.changed) == (plan.new + plan.beside, plan.in_place)
            assert (added.again, added.skipped) == (plan.again, len(refused))
            runs = enumerate(rows.items(), 2)
            there[sheet] = {row for number, row in runs if number not in refused}
            if then in ("finish", "fail"):
                fail(q, *("xyz" if then == "fail" else ""))
            own = "key" if is_keyed else "n"
            live = [
                (job.key.split("@")[0] if is_keyed else job.payload[own], job.payload["prompt"])
                for job in q.jobs(status=("queued", "completed", "failed"))
            ]
            waiting = {
                (job.key.split("@")[0] if is_keyed else job.payload[own], job.payload["prompt"])
                for job in q.jobs(status="queued")
            }
            wanted = set().union(*there.values())
            assert wanted <= set(live)
            assert len(live) == len(set(live))
            if not refused:
                assert waiting <= wanted
            again = q.plan(path)
            assert (again.jobs, again.same, again.gone) == (0, len(there[sheet]), 0)
            assert q._write(lambda s: s.verify_counts()) == {}


# --- put does what was shown


def test_a_file_changed_since_the_plan_is_refused_and_nothing_is_put(
    q: Queue, sheet: Sheet
) -> None:
    plan = q.plan(sheet(rows_of(3)))
    sheet(rows_of(4))
    with pytest.raises(SheetError, match=r"has changed since this plan was made, and nothing was"):
        plan.put()
    assert len(q) == 0


def test_a_frame_changed_since_the_plan_is_refused_and_nothing_is_put(q: Queue) -> None:
    frame = pd.DataFrame(rows_of(700), columns=["prompt", "n"])
    plan = q.plan(frame)
    frame.loc[650, "prompt"] = "edited"
    with pytest.raises(SheetError, match=r"is not what this plan saw \(row 651 is another\)"):
        plan.put()
    assert len(q) == 0
    rows = [{"prompt": "a"}, {"prompt": "b"}]
    plan = q.plan(rows)
    rows.pop()
    with pytest.raises(SheetError, match=r"it has fewer rows"):
        plan.put()


def test_a_generator_is_read_once_by_the_plan_and_put_from_what_was_read(q: Queue) -> None:
    read: list[int] = []

    def rows() -> Iterator[dict[str, Any]]:
        for n in range(300):
            read.append(n)
            yield {"prompt": f"p{n}", "n": n}
        yield {"prompt": ""}

    plan = q.plan(rows())
    assert any("came from a generator: they were read now, once" in note for note in plan.notes)
    assert len(read) == 300
    assert plan.put().new == 300
    assert len(read) == 300
    assert q.jobs()[299].payload == {"prompt": "p299", "n": 299}


def test_a_folder_of_texts_is_a_job_a_file(q: Queue, tmp_path: Path) -> None:
    folder = tmp_path / "prompts"
    folder.mkdir()
    for name, text in {"b.txt": "two\nlines\n", "a.txt": "one", "c.txt": " \n"}.items():
        (folder / name).write_text(text)
    (folder / "notes.md").write_text("not this")
    plan = q.plan(folder)
    assert plan.skipped == {"nothing to run": 1}
    assert "What else prompts holds was left alone: 1." in plan.notes
    plan.put()
    assert [job.payload for job in q.jobs()] == [
        {"prompt": "one", "file": "a.txt"},
        {"prompt": "two\nlines", "file": "b.txt"},
    ]
    (folder / "a.txt").write_text("another")
    assert q.plan(folder).changed == 1


# --- what it says


def test_every_row_that_does_not_run_is_counted_by_its_reason(q: Queue) -> None:
    rows: list[Any] = [
        {"prompt": "a", "key": "k"},
        {"prompt": "b", "key": "k"},
        {},
        {"prompt": "x" * 2_000_000},
        {"prompt": "c", "priority": "high"},
        "no row",
    ]
    plan = q.plan(rows)
    assert plan.rows == 1
    assert plan.skipped == {
        "duplicate key": 1,
        "nothing to run": 1,
        "too long": 1,
        "wrong setting": 1,
        "cannot be read": 1,
    }
    assert [p.row for p in plan.problems] == [2, 3, 4, 5, 6]
    assert plan.put().skipped == 5


def test_blank_rows_between_others_are_counted_and_a_blank_tail_is_not(
    q: Queue, sheet: Sheet
) -> None:
    plan = q.plan(sheet([["a", 1], ["", ""], ["", ""], ["b", 2], ["", ""]]))
    assert plan.skipped == {"blank": 2}
    assert "2 do not: 2 blank" in str(plan)


def test_problems_are_kept_in_few_and_counted_in_full(q: Queue) -> None:
    plan = q.plan([{"prompt": ""} for _ in range(5000)])
    assert plan.skipped["nothing to run"] == 5000
    assert len(plan.problems) < 100
    assert "and 4,990 more" in str(plan)


def test_columns_say_what_they_are_taken_for(q: Queue) -> None:
    rows = [
        {"prompt": " a", "priority": 2, "day": "2026-05-01", "ok": True, "x": 1.5, "tags": ["t"]},
        {"prompt": "b", "x": "one"},
    ]
    plan = q.plan(rows)
    told = {column.name: (column.role, column.holds) for column in plan.columns}
    assert told == {
        "prompt": ("payload", "text (2)"),
        "priority": ("sets the job", "number (1)"),
        "day": ("payload", "date (1)"),
        "ok": ("payload", "true or false (1)"),
        "x": ("payload", "number (1), text (1)"),
        "tags": ("payload", "JSON (1)"),
    }
    assert "1 cell of 'prompt' with spaces around the text, kept (row 1)." in plan.notes


def test_encoding_and_separator_are_said(q: Queue, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("prompt;n\ncafé;1\n".encode("cp1252"))
    assert "Windows-1252" in str(q.plan(path))
    assert "with a semicolon between its columns" in str(q.plan(path))


def test_cost_and_time_are_unknown_until_somebody_knows(q: Queue, sheet: Sheet) -> None:
    path = sheet(rows_of(12))
    assert "cost     unknown: there is no account yet" in str(q.plan(path))
    q.accounts.add("a", provider="p", capacity=3)
    plan = q.plan(path)
    assert "cost     unknown: the account 'a' has no price" in str(plan)
    assert "time     unknown: no job has been done yet" in str(plan)
    q.accounts.add("a", provider="p", capacity=3, price=0.25)
    plan = q.plan(path, seconds_each=60)
    assert plan.estimate.low == plan.estimate.high == 3.0
    assert plan.estimate.seconds == 240
    assert "$3.00" in str(plan)
    assert "about 4 min: until" in str(plan)
    q.budget = 1.0
    assert "the budget leaves $1.00 and would pause the queue" in str(q.plan(path))


def test_time_is_told_from_the_jobs_that_were_done(q: Queue, sheet: Sheet) -> None:
    path = sheet(rows_of(12))
    q.load(sheet(rows_of(2), name="first.csv"))
    finish(q)
    assert q.plan(path).estimate.seconds is not None


def accounts(*given: tuple[str, str, int, dict[str, Any]]) -> list[Account]:
    from vqkit.codec import dumps

    return [Account(n, p, capacity=c, limits_json=dumps(limits)) for n, p, c, limits in given]


def test_an_estimate_goes_by_who_may_do_the_work() -> None:
    known = accounts(
        ("cheap", "p", 1, {"price": 100_000}),
        ("dear", "p", 3, {"price": 500_000}),
        ("other", "o", 2, {"price": 1_000_000, "per_minute": 6}),
    )
    anyone = estimate({("p", None): 8}, known, {}, seconds_each=10)
    assert (anyone.low, anyone.high, anyone.seconds) == (0.8, 4.0, 20)
    pinned = estimate({(None, "cheap"): 8}, known, {}, seconds_each=10)
    assert (pinned.low, pinned.high, pinned.seconds) == (0.8, 0.8, 80)
    limited = estimate({("o", None): 12}, known, {}, seconds_each=1)
    assert limited.seconds == pytest.approx(120)
    nobody = estimate({("nope", None): 1}, known, {}, seconds_each=1)
    assert nobody.why_no_cost == nobody.why_no_time == "no account has the provider 'nope'"
    paced = estimate({("p", None): 8}, known, {"cheap": (5, 2.0), "dear": (5, 6.0)})
    assert paced.seconds == pytest.approx(8.0)
    behind = estimate({("p", None): 8}, known, {}, seconds_each=10, waiting=8)
    assert behind.seconds == 40
    assert estimate({}, known, {}).high == 0


class _Checker(html.parser.HTMLParser):
    """Fails on tags that are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_plan_shows_as_html_that_nothing_in_a_cell_can_break(q: Queue, sheet: Sheet) -> None:
    path = sheet([["<script>alert(1)</script>", "<b>"], ["", "n"]], header=("prompt", "<i>n</i>"))
    shown = q.plan(path)._repr_html_()
    checker = _Checker()
    checker.feed(shown)
    assert checker.open == []
    assert not {"script", "i"} & checker.tags
    assert "plan.put()" in shown
    assert "--jp-" in shown


def test_a_plan_prints_nothing_that_steers_a_terminal(q: Queue) -> None:
    shown = str(q.plan([{"prompt": "\x1b[31mred", "\x1b[2Jn": "x"}]))
    assert "\x1b" not in shown


def test_an_unknown_engine_is_refused(q: Queue, sheet: Sheet) -> None:
    with pytest.raises(UsageError, match="expected 'calamine'"):
        q.plan(sheet(rows_of(1)), engine="xlrd")  # type: ignore[arg-type]


def test_keys_in_a_payload_are_refused_row_by_row(
    q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUDIO_KEY", "sk-very-secret-key-123")
    q.accounts.add("a", provider="p", credential="env:STUDIO_KEY")
    from vqkit import secrets

    secrets.resolve("env:STUDIO_KEY")
    plan = q.plan([{"prompt": "a"}, {"prompt": "sk-very-secret-key-123"}])
    assert (plan.rows, plan.skipped.total()) == (1, 1)
    assert "sk-very-secret" not in str(plan)


# --- and back into the sheet


def test_results_go_back_to_the_rows_of_the_file_they_came_from(q: Queue, tmp_path: Path) -> None:
    import openpyxl

    for folder, prompts_of in (("monday", ["a", "b"]), ("tuesday", ["a", "c", "d"])):
        book = openpyxl.Workbook()
        for row in ["prompt", *prompts_of]:
            book.worksheets[0].append([row])
        book.worksheets[0].row_dimensions[4].hidden = True
        (tmp_path / folder).mkdir()
        book.save(tmp_path / folder / "prompts.xlsx")
        q.load(tmp_path / folder / "prompts.xlsx", hidden=True)
    finish(q)
    saved = tmp_path / "results.xlsx"
    q.save_into(tmp_path / "tuesday" / "prompts.xlsx", saved)
    rows = list(openpyxl.load_workbook(saved).worksheets[0].iter_rows(values_only=True))
    assert [row[:2] for row in rows][2:] == [("c", "completed"), ("d", "completed")]


def test_a_load_that_broke_off_is_finished_by_running_it_again(q: Queue) -> None:
    def rows(until: int, breaks: bool) -> Iterator[dict[str, Any]]:
        for n in range(until):
            yield {"prompt": f"p{n}"}
        if breaks:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        q.load(rows(2300, breaks=True), batch="big")
    added = q.load(rows(2300, breaks=False), batch="big")
    assert 0 < added.existing < 2300
    assert added.new + added.existing == len(q) == 2300
    assert [job.row for job in q.jobs()] == list(range(1, 2301))


def test_a_plan_of_many_rows_takes_little_memory(q: Queue) -> None:
    import tracemalloc

    rows = [{"prompt": f"a fox, picture {n} " * 20} for n in range(20_000)]
    tracemalloc.start()
    try:
        plan = q.plan(rows)
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert plan.new == 20_000
    assert kept < 1_000_000
