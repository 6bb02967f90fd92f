"""A doubt that a person ends: about one step, with a handle that is one, said wrongly and again."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from vqkit import Queue, Retry, Snooze, cli
from vqkit.errors import (
    InDoubt,
    LifecycleError,
    PayloadError,
    ProviderError,
    UsageError,
)
from vqkit.handles import kept_handle, said_handle, typed_value
from vqkit.policy import amount
from vqkit.providers.contract import Capabilities, Fetched, Finished, Link, Status, Submitted
from vqkit.receipts import Receipts
from vqkit.steps import RENDER

QUICK = Retry(base_s=0.0, max_s=0.0)
COLUMNS = (
    "(job, name, generation, state, is_paid, key, fence, account, request, value, begun_ms,"
    " ended_ms)"
)


class Paints(enum.StrEnum):
    SUBMIT = "submit"


class Studio:
    """A provider that answers as it is told, cannot find a lost request, and counts."""

    name = "studio"
    capabilities = Capabilities(idempotency="none", not_found_grace_s=0.0)

    def __init__(self, *answers: Any) -> None:
        self.answers, self.sent, self.polled = list(answers), 0, list[Any]()

    async def submit(self, request: Any, *, key: str, account: Any, sink: Any) -> Any:
        self.sent += 1
        answer = self.answers.pop(0) if self.answers else Submitted({"id": f"task-{self.sent}"})
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def poll(self, handle: Any, *, account: Any) -> Status:
        self.polled.append(handle)
        if not str(handle["id"]).startswith(("task", "4", "0")):
            raise TypeError("no such id")
        return Status("succeeded", links=(Link("http://studio/a.bin", ".bin"),))

    async def fetch(self, link: Any, path: Path, *, account: Any, etag: Any = None) -> Fetched:
        path.write_bytes(b"data")  # noqa: ASYNC240 - four bytes
        return Fetched(4)

    async def cancel(self, handle: Any, *, account: Any) -> Any:
        return "unsupported"

    async def find(self, request: Any, *, key: str, since_ms: int, account: Any) -> list[Any]:
        return []


@pytest.fixture
def q(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("vqkit.renders.POLL_S", (0.0, 0.0))
    with Queue(tmp_path / "q.db") as q:
        yield q


def at_studio(q: Queue, studio: Studio, jobs: int = 1, **limits: Any) -> Studio:
    q.accounts.add("a", provider="studio", **{"price": 1, "capacity": 4} | limits)
    q.provider("studio", studio)
    q.put_many([{"n": n} for n in range(jobs)])
    q.run(retry=QUICK)
    return studio


LOST = ProviderError("the line broke", "unknown")


# -- names of steps --------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    "name", [5, 5.0, True, None, b"x", ("a", 1), "", "x" * 81, "a\0b", "\ud800", RENDER, "vqkit:x"]
)
def test_a_name_that_is_none_is_refused_before_anything_is_called(
    q: Queue, name: Any, is_async: bool
) -> None:
    calls: list[int] = []

    def plain(job: Any) -> Any:
        return job.once(name, lambda: calls.append(1), paid=True)

    async def render(job: Any) -> Any:
        return await job.once(name, lambda: calls.append(1), paid=True)

    q.put({"n": 1})
    q.run(render if is_async else plain, retry=QUICK)
    error = q.job(1).error or {}
    assert (q.job(1).status, calls) == ("failed", [])
    assert error["type"] == "UsageError"
    assert "job.once(name" in error["line"]  # the user's own


def test_a_number_as_name_never_pays_again(q: Queue) -> None:
    q.accounts.add("a", provider="render", price=1, budget=1)
    q.put({"scenes": 3}, max_attempts=3)
    calls: list[int] = []

    def render(job: Any) -> Any:
        clips = [job.once(i, lambda: calls.append(1), paid=True) for i in range(3)]
        raise ValueError(clips)

    q.run(render, retry=QUICK)
    assert calls == []
    assert "a step's name is text and this is a int; give it a name such as 'step 0'" in str(
        q.job(1).error
    )


def test_a_word_of_an_enum_is_its_text(q: Queue) -> None:
    calls: list[int] = []

    def render(job: Any) -> Any:
        name = Paints.SUBMIT if job.attempt == 1 else "submit"
        job.once(name, lambda: calls.append(1), paid=True)
        if job.attempt == 1:
            raise ValueError("again")
        return "done"

    q.put({"n": 1})
    q.run(render, retry=QUICK)
    assert (q.job(1).result, len(calls)) == ("done", 1)


@pytest.mark.parametrize(
    "wrong",
    [
        sqlite3.ProgrammingError("Error binding parameter 2: type 'tuple' is not supported"),
        sqlite3.InterfaceError("Error binding parameter 2 - probably unsupported type."),
        sqlite3.DataError("string or blob too big"),
        OverflowError("Python int too large to convert to SQLite INTEGER"),
        None,  # SQLite's own, of a table that is not there
    ],
)
def test_what_the_database_never_takes_is_not_tried_for_ever(
    q: Queue, monkeypatch: pytest.MonkeyPatch, wrong: Exception | None
) -> None:
    def write(store: Any, step: Any) -> None:
        if wrong is not None:
            raise wrong
        store._conn.execute("INSERT INTO nothing VALUES (1)")

    monkeypatch.setattr("vqkit.store.sqlite.SqliteStore._write_step", write)
    q.put({"n": 1}, max_attempts=1)
    q.run(lambda job: job.once("submit", lambda: 1, paid=True), retry=QUICK)
    assert q.job(1).status == "failed"


# -- what names a render ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "example", "handle"),
    [
        ("t1", None, {"id": "t1"}),
        (" t1 ", None, {"id": "t1"}),
        (4711, None, {"id": "4711"}),
        ({"id": 4711}, None, {"id": 4711}),
        (4711, {"id": 12}, {"id": 4711}),
        ("4711", {"id": 12}, {"id": 4711}),
        ("007", {"id": 12}, {"id": "007"}),
        (4711, {"id": "t1"}, {"id": "4711"}),
        ({"id": 4711}, {"id": "t1"}, {"id": "4711"}),
        (2**80, None, {"id": str(2**80)}),
        ({"id": 2**80}, None, {"id": str(2**80)}),
        ("t1", {"task": "t0"}, {"task": "t1"}),
        ("t1", {"id": "t0", "model": "gen3"}, {"model": "gen4", "id": "t1"}),
        ({"id": "t1"}, {"id": "t0", "model": "gen3"}, {"model": "gen4", "id": "t1"}),
        ({"handle": {"id": "t1"}, "cost_microusd": None}, None, {"id": "t1"}),
        ({"handle": {"id": "t1"}}, {"handle": {"id": "t0"}}, {"handle": {"id": "t1"}}),
    ],
)
def test_an_id_becomes_what_the_providers_handles_look_like(
    value: Any, example: Any, handle: Any
) -> None:
    said = said_handle(value, example, {"model": "gen4", "prompt": "x"})
    assert json.dumps(said) == json.dumps(handle)


@pytest.mark.parametrize("value", [True, 1.5, "", "  ", [], ["x"], {}, {"id": ""}, {"id": True}])
def test_what_cannot_be_a_handle_is_refused_with_one_that_can(value: Any) -> None:
    with pytest.raises(UsageError, match=r'cannot be a handle .* looks like \{"id": "…"\}'):
        said_handle(value, {"id": "task-7"})


def test_what_lacks_half_of_a_handle_is_refused() -> None:
    example = {"id": "t0", "url": "https://studio/t0"}
    for value in ("t1", {"nothing": "of it"}):
        with pytest.raises(UsageError, match=r'looks like \{"id": "…", "url": "…"\}$'):
            said_handle(value, example)
    assert said_handle({"id": "t1"}, example) == {"id": "t1"}


@given(st.text() | st.integers() | st.floats() | st.dictionaries(st.text(), st.integers()))
def test_a_handle_is_plain_json_or_refused(value: Any) -> None:
    try:
        handle = said_handle(value)
    except UsageError:
        return
    assert json.loads(json.dumps(handle)) == handle != {}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("task-1", "task-1"),
        ("4711", 4711),
        ("007", "007"),
        ("12e4", "12e4"),
        ("1.50", "1.50"),
        ("NaN", "NaN"),
        ("1.5", 1.5),
        ("true", True),
        ('{"id": 7}', {"id": 7}),
        ('"7"', "7"),
    ],
)
def test_what_is_typed_is_json_or_the_text_itself(text: str, value: Any) -> None:
    assert json.dumps(typed_value(text)) == json.dumps(value)


@pytest.mark.parametrize("text", ['{"id":', "[1", '"task', "{id: 7}"])
def test_broken_json_is_nobodys_id(text: str) -> None:
    with pytest.raises(UsageError, match="is broken JSON"):
        typed_value(text)


@pytest.mark.parametrize(
    ("told", "amounts"),
    [
        (0, 0),
        (250_000, 250_000),
        *((wrong, None) for wrong in (-1, 1.5, float("nan"), "5", True, None, 2**63, 10**26)),
    ],
)
def test_an_amount_that_is_none_is_not_known(told: Any, amounts: Any) -> None:
    assert amount(told) == amounts


# -- a handle that cannot be kept ------------------------------------------------------------


def test_a_uuid_is_kept_as_its_text(q: Queue) -> None:
    name = UUID(int=7)
    studio = at_studio(q, Studio(Submitted({"id": name, "of": [name]})))
    assert q.job(1).status == "completed"
    assert studio.polled[0] == {"id": str(name), "of": [str(name)]}


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), 10**26, 2**63, -1, "5"])
def test_a_cost_that_is_none_is_taken_for_not_told(q: Queue, cost: Any) -> None:
    studio = at_studio(q, Studio(Submitted({"id": "task-1"}, cost, float("nan"))), budget=5)
    assert (q.job(1).status, studio.sent) == ("completed", 1)
    assert [row["cost"] for row in q.cost_records()] == [1.0]


def test_a_result_with_such_a_cost_is_kept(q: Queue, tmp_path: Path) -> None:
    made = tmp_path / "made.bin"
    made.write_bytes(b"data")
    at_studio(q, Studio(Finished((made,), 10**26)))
    assert q.job(1).status == "completed"


@pytest.mark.parametrize(
    ("handle", "cause"),
    [
        ({"id": "task-1", "at": object()}, r"handle\['at'\] is a object"),
        ({"id": "task-1", "blob": "x" * 70_000}, "it has 70,0.. bytes of JSON"),
        ({"id": "task-1", "progress": float("nan")}, "is nan"),
        ("task-1", "a handle is a dict"),
        ({}, "a handle is a dict"),
    ],
)
def test_a_handle_that_cannot_be_kept_is_told_and_its_render_is_not_lost(
    q: Queue, handle: Any, cause: str
) -> None:
    studio = at_studio(q, Studio(Submitted(handle)))
    with pytest.raises(PayloadError, match=f"took it, and the handle .* kept: .*{cause}"):
        kept_handle(handle)
    job = q.job(1)
    assert job.status == "in_doubt"
    assert "the provider took it, and the handle it gave cannot be kept" in str(job.reason)
    assert "resolve" in str(job.reason)
    assert str(job.reason).count("task-1") == ("task-1" in str(handle))
    q.resolve(1, "attach", value="task-1")
    q.run().check()
    assert (studio.sent, studio.polled) == (1, [{"id": "task-1"}])
    assert [row["cost"] for row in q.cost_records()][-1] == 1.0


def test_a_replay_that_gives_such_a_handle_is_left_to_a_person(q: Queue) -> None:
    class Replays(Studio):
        capabilities = Capabilities(idempotency="replay")

    answers = [LOST, Submitted({"id": {1, 2}}), Submitted({"id": {1, 2}})]
    at_studio(q, Replays(*answers))
    assert q.job(1).status == "in_doubt"
    assert "you decide" in str([e.data for e in q.events(job=1)])


def test_what_an_earlier_version_kept_of_an_answer_is_shown_and_goes_on(q: Queue) -> None:
    studio = at_studio(q, Studio(ProviderError("no", "invalid", is_billed=False)))
    kept = {"repr": "{'handle': {'id': UUID('7')}}"}
    step = {"n": RENDER, "v": json.dumps(kept)}
    sql = (
        f"INSERT INTO steps {COLUMNS} VALUES (1, :n, 1,'done', 1, 'key', 1, 'a', 'null', :v, 1, 2);"
        "UPDATE jobs SET generation = 1, is_paid = 1"
    )
    with contextlib.closing(sqlite3.connect(q.path)) as db, db:
        for statement in sql.split(";"):
            db.execute(statement, step if "steps" in statement else {})
    q.requeue(1)
    q.run(retry=QUICK)
    assert q.job(1).status == "in_doubt"
    assert "UUID('7')" in str(q.job(1).reason)
    q.resolve(1, "attach", value="task-7")
    q.run().check()
    assert studio.polled == [{"id": "task-7"}]
    assert q.steps(1)[-1].value == {"handle": {"id": "task-7"}}


# -- attach, said wrongly and again ----------------------------------------------------------

Door = Callable[[Queue, str], None]


def by_python(q: Queue, value: str) -> None:
    q.resolve(1, "attach", value=value)


def by_command(q: Queue, value: str) -> None:
    told = CliRunner().invoke(cli.main, ["resolve", str(q.path), "1", "attach", "--value", value])
    assert told.exit_code == 0, told.output


@pytest.mark.parametrize("say", [by_python, by_command])
@pytest.mark.parametrize("when", ["queued", "failed", "requeued"])
def test_a_handle_said_wrongly_is_said_again(q: Queue, say: Door, when: str) -> None:
    studio = at_studio(q, Studio(LOST), budget=9)
    say(q, "wrong")
    assert q.job(1).handle_json == '{"id":"wrong"}'
    if when != "queued":
        q.run(retry=QUICK)
        assert q.job(1).status == "failed"
    if when == "requeued":
        q.requeue(1)
    say(q, "4711")
    say(q, "4712")
    assert (q.job(1).status, q.job(1).handle_json) == ("queued", '{"id":"4712"}')
    q.run().check()
    assert (studio.sent, studio.polled[-1]) == (1, {"id": "4712"})
    assert q.steps(1)[0].value == {"handle": {"id": "4712"}}
    assert sum(row["cost"] or 0 for row in q.cost_records()) == 1.0
    with pytest.raises(LifecycleError, match="job 1 is completed"):
        q.resolve(1, "attach", value="4713")


def test_a_handle_the_provider_does_not_know_is_said_again_and_is_free_for_another(
    q: Queue,
) -> None:
    class Forgets(Studio):
        async def poll(self, handle: Any, *, account: Any) -> Status:
            if handle["id"] == "other":
                return Status("not_found")
            return await super().poll(handle, account=account)

    studio = at_studio(q, Forgets(LOST, LOST), jobs=2)
    q.resolve(1, "attach", value="other")
    q.run(retry=QUICK)
    assert "does not know this render" in str(q.job(1).reason)
    q.resolve(1, "attach", value="task-1")
    q.resolve(2, "attach", value="other")  # it is job 1's no more
    assert q.steps(1)[0].value == {"handle": {"id": "task-1"}}
    q.run(retry=QUICK)
    assert (q.job(1).status, studio.sent) == ("completed", 2)


def test_what_was_fetched_of_the_wrong_render_is_not_taken_for_the_right_one(q: Queue) -> None:
    at_studio(q, Studio(LOST))
    q.resolve(1, "attach", value="wrong")
    fetched = q._files.kept_part(q.job(1), ".bin", 1)
    fetched.write_bytes(b"of the wrong one")
    q.resolve(1, "attach", value="task-1")
    q.run().check()
    assert q.outputs(1)[0].read_bytes() == b"data"


def test_the_handle_that_submit_gave_is_not_replaced(q: Queue) -> None:
    at_studio(q, Studio(Submitted({"id": "wrong"})))
    assert q.job(1).status == "failed"
    with pytest.raises(LifecycleError, match="no value that was attached"):
        q.resolve(1, "attach", value="task-2")


def test_an_id_is_made_like_those_of_its_own_provider(q: Queue) -> None:
    at_studio(q, Studio(LOST, Submitted({"id": 4710})), jobs=2)
    q.resolve(1, "attach", value="4711")
    assert q.job(1).handle_json == '{"id":4711}'


def test_the_command_line_refuses_broken_json(q: Queue) -> None:
    at_studio(q, Studio(LOST))
    for value, sentence in (('{"id":', "is broken JSON"), ("[]", "cannot be a handle")):
        call = ["resolve", str(q.path), "1", "attach", "--value", value]
        told = CliRunner().invoke(cli.main, call)
        assert told.exit_code != 0
        assert sentence in told.output
    assert q.job(1).status == "in_doubt"


def test_where_nothing_lacks_an_answer_there_is_nothing_to_attach_to(q: Queue) -> None:
    def render(job: Any) -> None:
        job.once("submit", lambda: {"id": 1}, paid=True)
        raise InDoubt("who knows")

    q.put({"n": 1})
    q.run(render)
    with pytest.raises(UsageError, match="nothing to attach to"):
        q.resolve(1, "attach", value="task-1")
    with pytest.raises(UsageError, match="no paid step 'video'; it has 'submit'"):
        q.resolve(1, "attach", value="task-1", step="video")
    with pytest.raises(UsageError, match="'submit' is not in doubt; none is"):
        q.resolve(1, "not_sent", step="submit")
    assert (q.job(1).status, q.job(1).handle_json) == ("in_doubt", None)


# -- two steps of one job --------------------------------------------------------------------


class Two:
    """A job whose "video" and "audio" are both in doubt; the video had been sent."""

    def __init__(self, q: Queue) -> None:
        self.real, self.is_first = ["video"], True
        q.accounts.add("a", provider="render", price=1)
        q.put({"n": 1})
        q.run(self.render, retry=QUICK)
        self.is_first = False
        assert [s.state for s in q.steps(1)] == ["intent", "intent"]

    @property
    def render(self) -> Any:
        async def render(job: Any) -> Any:
            async def make(name: str) -> Any:
                if self.is_first:
                    await asyncio.sleep(0.05)
                    raise TimeoutError("lost")
                self.real.append(name)
                return {"id": f"{name}-1"}

            both = [job.once(n, partial(make, n), paid=True) for n in ("video", "audio")]
            found = await asyncio.gather(*both, return_exceptions=True)
            for one in found:
                if isinstance(one, BaseException):
                    raise one
            return found

        return render


@pytest.mark.parametrize("how", ["attach", "not_sent"])
def test_one_word_is_not_taken_for_two_steps(q: Queue, how: Any) -> None:
    Two(q)
    value = {"id": "video-1"} if how == "attach" else None
    with pytest.raises(UsageError, match=r"'(video|audio)' and '(video|audio)'"):
        q.resolve(1, how, value=value)
    assert [s.state for s in q.steps(1)] == ["intent", "intent"]


@pytest.mark.parametrize("order", [("video", "audio"), ("audio", "video")])
def test_each_step_keeps_its_own_answer_and_the_job_goes_on_after_the_last(
    q: Queue, order: tuple[str, str]
) -> None:
    two = Two(q)
    for i, step in enumerate(order):
        if step == "video":
            job = q.resolve(1, "attach", value={"id": "video-1"}, step=step)
        else:
            job = q.resolve(1, "not_sent", step=step)
        assert job.status == ("queued" if i else "in_doubt")
        if not i:
            assert f"nobody knows of {order[1]!r} yet" in str(job.reason)
            with pytest.raises(UsageError, match=f"'?{step}'? "):
                q.resolve(1, "not_sent", step=step)
    q.run(two.render).check()
    assert q.job(1).result == [{"id": "video-1"}, {"id": "audio-1"}]
    assert two.real == ["video", "audio"]
    assert sum(row["cost"] or 0 for row in q.cost_records()) == len(two.real)


def test_two_that_were_not_sent_cost_nothing(q: Queue) -> None:
    Two(q)
    q.resolve(1, "not_sent", step="video")
    q.resolve(1, "not_sent", step="audio")
    assert [row["cost"] for row in q.cost_records()] == [0.0]
    assert q.steps(1) == []


def test_what_was_attached_to_one_of_two_is_said_again(q: Queue) -> None:
    two = Two(q)
    q.resolve(1, "attach", value={"id": "audio-1"}, step="video")
    assert q.resolve(1, "attach", value={"id": "video-1"}, step="video").status == "in_doubt"
    q.resolve(1, "attach", value={"id": "video-1"})  # audio: the only one left
    with pytest.raises(UsageError, match="were attached; say which"):
        q.resolve(1, "attach", value={"id": "audio-1"})
    q.resolve(1, "attach", value={"id": "audio-1"}, step="audio")
    q.run(two.render).check()
    assert q.job(1).result == [{"id": "video-1"}, {"id": "audio-1"}]


def test_the_receipt_of_one_of_two_ends_its_doubt_whichever_it_is(q: Queue) -> None:
    two = Two(q)
    video, audio = sorted(q.steps(1), key=lambda step: step.name, reverse=True)
    receipts = Receipts(Path(f"{q.path}-vqkit") / "receipts.jsonl")
    receipts.append(audio, '{"id": "audio-1"}')
    q.run(two.render, retry=QUICK)
    assert q.job(1).status == "in_doubt"
    assert {s.name: s.value for s in q.steps(1)} == {"video": None, "audio": {"id": "audio-1"}}
    receipts.append(video, '{"id": "video-1"}')
    q.run(two.render, retry=QUICK).check()
    assert q.job(1).result == [{"id": "video-1"}, {"id": "audio-1"}]


@pytest.mark.parametrize("how", ["pay_again", "give_up"])
def test_a_word_about_the_whole_job_takes_no_step(q: Queue, how: Any) -> None:
    Two(q)
    with pytest.raises(UsageError, match="about the whole job"):
        q.resolve(1, how, step="video")
    assert q.resolve(1, how).status == ("queued" if how == "pay_again" else "failed")


def test_a_step_is_named_on_the_command_line(q: Queue) -> None:
    Two(q)

    def call(*words: str) -> str:
        return CliRunner().invoke(cli.main, ["resolve", str(q.path), "1", *words]).output

    assert "'audio'" in call("not-sent")
    assert "in doubt: nobody knows of 'video' yet" in call("not-sent", "--step", "audio")
    told = call("attach", "--step", "video", "--value", '{"id": "video-1"}')
    assert "job 1 is queued now" in told
    assert [s.value for s in q.steps(1)] == [{"id": "video-1"}]


# -- a function's step that is called as a provider's was ------------------------------------


def test_a_functions_own_render_is_attached_as_it_was_said(q: Queue) -> None:
    lost = [TimeoutError("lost")]

    def render(job: Any) -> Any:
        def call() -> Any:
            raise lost.pop()

        return job.once("render", call, paid=True)["id"]

    q.put({"n": 1})
    q.run(render, retry=QUICK)
    q.resolve(1, "attach", value={"id": "task-1"})
    assert q.job(1).handle_json is None
    q.run(render).check()
    assert q.job(1).result == "task-1"


async def gives_a_handle(job: Any) -> Any:
    told = {"handle": "task-9", "cost_microusd": 5_000_000}
    await job.once("render", lambda: told, paid=True)
    if job.number == 1:
        raise Snooze(60)
    return "done"


def test_a_function_that_waits_with_such_a_step_is_cancelled_and_holds_nothing(q: Queue) -> None:
    q.accounts.add("a", provider="gives_a_handle", price=1, capacity=1, budget=9)
    q.put_many([{"n": 1}, {"n": 2}])
    run = q.start(gives_a_handle)
    with contextlib.suppress(TimeoutError):
        run.wait(1)
    q.cancel(1)
    run.wait(20)
    assert [job.status for job in q.jobs()] == ["cancelled", "completed"]
    assert [job.reserved_microusd for job in q.jobs()] == [0, 0]


def test_databases_of_before_are_read_and_what_they_held_is_let_go(tmp_path: Path) -> None:
    """Their engine's step was called "render", as a function's might be."""
    path = tmp_path / "q.db"
    with Queue(path) as q:
        studio = at_studio(q, Studio(LOST))
        q.accounts.add("b", provider="gives_a_handle", price=1, capacity=1)
        q.put_many([{"n": 2}, {"n": 3}], account="b")
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE steps SET name = 'render'")
        db.execute(
            f"INSERT INTO steps {COLUMNS} VALUES (2, 'render', 0, 'done', 1, 'k2', 1, 'b', NULL,"
            """ '{"handle":"task-9"}', 1, 2)"""
        )
        db.execute(
            "UPDATE jobs SET status = 'cancelled', finished_ms = 3, fence = 1, is_open = 1,"
            " account = 'b', handle = '\"task-9\"', reserved_microusd = 5000000 WHERE number = 2"
        )
        db.execute("DELETE FROM _sqlite_migrations WHERE name = 'm006_names_of_our_steps'")
    with Queue(path) as q:
        q.provider("studio", studio)
        assert [(s.name, s.state) for n in (1, 2) for s in q.steps(n)] == [
            (RENDER, "intent"),
            ("render", "done"),
        ]
        q.resolve(1, "attach", value="task-1")
        q.run(gives_a_handle)
        assert [job.status for job in q.jobs()] == ["completed", "cancelled", "completed"]
        assert (q.job(2).handle_json, q.job(2).reserved_microusd) == (None, 0)
        assert studio.sent == 1
