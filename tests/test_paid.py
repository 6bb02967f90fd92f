"""Never paid twice, never lost: steps, doubt, accounts, money and downloads, against the mock."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import sys
import threading
import time
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import vqkit.renders
import vqkit.run
import vqkit.strays
from vqkit import GiveUp, Queue, Retry, Snooze
from vqkit.clock import SystemClock
from vqkit.errors import (
    NOT_ACCEPTED,
    InDoubt,
    LifecycleError,
    PayloadError,
    ProviderError,
    UsageError,
)
from vqkit.job import Step
from vqkit.mock import CHANCES, Knobs, MockAdapter, MockProvider, Render
from vqkit.outputs import OutputFolder
from vqkit.policy import FOR_EVER_MS
from vqkit.providers.contract import (
    AccountKey,
    Capabilities,
    Fetched,
    Link,
    Match,
    Status,
    Submitted,
)
from vqkit.reconcile import reconcile
from vqkit.selftest import KINDS
from vqkit.steps import RENDER
from vqkit.store.sqlite import SqliteStore
from vqkit.testing import ManualClock, drain

QUICK = Retry(base_s=0.0, max_s=0.0)
COST = 250_000
NEVER_ACCEPTED = sorted(NOT_ACCEPTED - {"invalid", "moderated"})


@pytest.fixture(scope="module")
def server() -> Iterator[MockProvider]:
    with MockProvider() as mock:
        yield mock


class Studio:
    """A queue, the mock and accounts of this test's own."""

    def __init__(self, folder: Path, mock: MockProvider, name: str, patch: Any) -> None:
        self.db, self.mock, self.name, self._patch = folder / "q.db", mock, name, patch
        self.names: list[str] = []
        self.calls: list[str] = []
        self.adapter: Any = None

    def open(self, accounts: dict[str, int] | None = None, **options: Any) -> Queue:
        """The queue, with accounts by their capacities; `options` are of the accounts."""
        q = Queue(self.db)
        for short, capacity in (accounts or {"a": 1}).items():
            name = self.account(short)
            self.names.append(name)
            variable = f"KEY_{short}"
            self._patch.setenv(variable, str(self.mock.account(name).key))
            mine: dict[str, Any] = {"price": 0.25, **options}
            q.accounts.add(
                name, provider="mock", capacity=capacity, credential=f"env:{variable}", **mine
            )
        self.bind(q)
        return q

    def account(self, short: str = "a") -> str:
        return f"{self.name} {short}"

    def bind(self, q: Queue, **can: Any) -> Any:
        """Registers the provider as the knobs are now."""
        known = replace(self.mock.capabilities(), not_found_grace_s=0.05)
        self.adapter = q.provider("mock", MockAdapter(self.mock.url, replace(known, **can)))
        return self.adapter

    def renders(self) -> list[Render]:
        return [r for r in self.mock.ledger() if r.account in self.names]

    def billed(self) -> int:
        return sum(self.mock.billed_microusd(name) for name in set(self.names))

    def times(self) -> dict[str, int]:
        """How often each prompt was rendered."""
        return dict(Counter(r.request["prompt"] for r in self.renders()))

    def requests(self, what: str) -> list[Any]:
        return [r for r in self.mock.requests() if r.account in self.names and r.what == what]


@pytest.fixture
def studio(
    tmp_path: Path,
    server: MockProvider,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Studio:
    monkeypatch.setattr(vqkit.run, "LOOK_S", 0.005)
    monkeypatch.setattr(vqkit.renders, "LOOK_S", 0.02)
    monkeypatch.setattr(vqkit.renders, "POLL_S", (0.01, 0.02))
    monkeypatch.setattr(vqkit.strays, "AGAIN_S", (0.02, 0.05))
    default = Knobs()
    known = {f.name: getattr(default, f.name) for f in fields(Knobs) if f.name != "chances"}
    server.set(**{**known, **dict.fromkeys(CHANCES, False), "poll_after_s": 0.01})
    return Studio(tmp_path, server, request.node.name, monkeypatch)


def put(q: Queue, count: int, **options: Any) -> list[str]:
    prompts = [f"{q.path.parent.name} {n}" for n in range(count)]
    q.put_many([{"prompt": prompt} for prompt in prompts], **options)
    return prompts


def statuses(q: Queue) -> dict[str, int]:
    return {s: n for s, n in q.stats().items() if n and s != "total"}


def spent(q: Queue) -> int:
    """What the queue counts as spent, in micro-dollars."""
    return round(1e6 * sum(row["cost"] or 0 for row in q.cost_records()))


def notes(q: Queue, number: int = 1) -> str:
    return " ".join(str(event.data) for event in q.events(job=number))


def receipts(q: Queue) -> list[dict[str, Any]]:
    path = q._files.receipts.path
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line]


# -- once ------------------------------------------------------------------------------------


def _count(job: Any, what: str) -> int:
    """Counts on the disk, for any process."""
    with Path(job.payload["log"]).open("a") as file:
        file.write(what + "\n")
    return Path(job.payload["log"]).read_text().split().count(what)


async def in_coroutine(job: Any) -> Any:
    first = await job.once("first", lambda: _count(job, "first"))
    paid = await job.once("paid", lambda: _count(job, "paid"), paid=True)

    async def last() -> int:
        n = _count(job, "last")
        if n < 3:
            raise ValueError("not this time")
        return n

    return [first, paid, await job.once("last", last)]


def in_function(job: Any) -> Any:
    first = job.once("first", lambda: _count(job, "first"))
    paid = job.once("paid", lambda: _count(job, "paid"), paid=True)

    def last() -> int:
        n = _count(job, "last")
        if n < 3:
            raise ValueError("not this time")
        return n

    return [first, paid, job.once("last", last)]


@pytest.mark.parametrize("executor", ["async", "thread", "process"])
def test_a_retry_resumes_at_the_step_that_failed(tmp_path: Path, executor: Any) -> None:
    log = tmp_path / "log"
    with Queue(tmp_path / "q.db") as q:
        q.put({"log": str(log)})
        q.run(in_coroutine if executor == "async" else in_function, executor=executor, retry=QUICK)
        assert q.job(1).result == [1, 1, 3]
        assert log.read_text().split() == ["first", "paid", "last", "last", "last"]
        assert [(s.name, s.state, s.is_paid) for s in q.steps(1)] == [
            ("first", "done", False),
            ("paid", "done", True),
            ("last", "done", False),
        ] or {s.name for s in q.steps(1)} == {"first", "paid", "last"}


def test_the_intent_is_on_disk_before_a_paid_call_and_its_receipt_and_value_after(
    tmp_path: Path,
) -> None:
    seen: list[Any] = []

    def look(q: Queue) -> tuple[list[str], int]:
        with closing(SqliteStore(q.path, readonly=True)) as store:
            return [s.state for s in store.steps(1)], len(receipts(q))

    with Queue(tmp_path / "q.db") as q:

        def pay(job: Any) -> Any:
            def call(key: str) -> str:
                seen.append((key, *look(q)))
                return "answer"

            job.once("pay", call, paid=True)
            seen.append(look(q))

        q.put({"prompt": "a fox"})
        q.run(pay).check()
        (key, *before), after = seen
        assert before == [["intent"], 0]
        assert after == (["done"], 1)
        (step,) = q.steps(1)
        assert (step.key, step.value) == (key, "answer")
        assert receipts(q) == [{"key": key, "job": 1, "name": "pay", "value": '"answer"'}]


def test_the_key_is_the_same_over_all_tries_and_new_for_another_render(tmp_path: Path) -> None:
    keys: list[str] = []
    kinds = ["rate", "concurrency", None]  # refused twice, then broken off

    async def pay(job: Any) -> Any:
        def call(key: str) -> str:
            keys.append(key)
            kind: Any = kinds.pop(0) if kinds else "fine"
            if kind is None:
                raise ConnectionResetError("broken off")
            if kind == "fine":
                return "answer"
            raise ProviderError("not now", kind, retry_after_s=0)

        return await job.once("pay", call, paid=True)

    with Queue(tmp_path / "q.db") as q:
        q.put({"prompt": "a fox"})
        drain(q, pay)
        assert (statuses(q), len(keys), len(set(keys))) == ({"in_doubt": 1}, 3, 1)
        q.resolve(1, "pay_again")
        drain(q, pay).check()
        assert keys[3] != keys[0]
        assert [(s.generation, s.state) for s in q.steps(1)] == [(0, "intent"), (1, "done")]


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError("no answer"),
        ConnectionResetError("broken off"),
        ProviderError("502", "unknown"),
        ValueError("a bug after the call"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("how", ["async", "plain"])
def test_a_paid_call_whose_end_is_not_known_is_in_doubt_and_not_made_again(
    tmp_path: Path, error: Exception, how: str
) -> None:
    calls: list[str] = []

    def call(key: str) -> str:
        calls.append(key)
        raise error

    async def pay_async(job: Any) -> Any:
        await job.once("pay", call, paid=True)

    def pay_plain(job: Any) -> Any:
        job.once("pay", call, paid=True)

    with Queue(tmp_path / "q.db") as q:
        q.put({"prompt": "a fox"})
        handler = pay_async if how == "async" else pay_plain
        q.run(handler, retry=QUICK)
        q.run(handler, retry=QUICK)
        job = q.job(1)
        assert (job.status, job.attempt, len(calls)) == ("in_doubt", 0, 1)
        assert "it may have been accepted" in str(job.reason)
        assert str(error) in str(job.reason)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (GiveUp("no use"), "failed"),
        (Snooze(0), "completed"),
        (ProviderError("bad", "invalid"), "failed"),
        (ProviderError("no", "moderated"), "failed"),
        *(
            (ProviderError("no", kind, retry_after_s=0), "completed")
            for kind in ("rate", "not_sent")
        ),
    ],
)
def test_a_call_that_was_certainly_not_accepted_leaves_no_intent(
    tmp_path: Path, error: Exception, status: str
) -> None:
    left: list[Any] = [error]

    async def pay(job: Any) -> Any:
        def call(key: str) -> str:
            if left:
                raise left.pop()
            return key

        return await job.once("pay", call, paid=True)

    with Queue(tmp_path / "q.db") as q:
        q.put({"prompt": "a fox"})
        drain(q, pay)
        assert q.job(1).status == status
        assert [s.state for s in q.steps(1)] == (["done"] if status == "completed" else [])


@pytest.mark.parametrize("kind", NEVER_ACCEPTED)
def test_a_refusal_spends_no_attempt_and_drops_the_intent(tmp_path: Path, kind: Any) -> None:
    async def pay(job: Any) -> Any:
        def call() -> str:
            raise ProviderError("no", kind)

        await job.once("pay", call, paid=True)

    with Queue(tmp_path / "q.db") as q:
        q.put({"prompt": "a fox"})
        run = q.start(pay)
        _until(lambda: any(e.type == "job.released" for e in q.events(job=1)))
        run.stop(0)
        assert (q.job(1).status, q.job(1).attempt, q.steps(1)) == ("queued", 0, [])


def _until(condition: Callable[[], Any]) -> None:
    import time

    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "waited 20 s in vain"
        time.sleep(0.005)


@pytest.mark.parametrize("value", [object(), "x" * 100_000], ids=["not JSON", "too large"])
def test_a_paid_answer_json_cannot_carry_is_kept_as_text_and_an_unpaid_one_refused(
    tmp_path: Path, value: Any
) -> None:
    calls: list[int] = []

    async def handler(job: Any) -> Any:
        def give() -> Any:
            calls.append(1)
            return value

        return await job.once("give", give, paid=job.payload["paid"])

    with Queue(tmp_path / "q.db") as q:
        q.put_many([{"paid": True}, {"paid": False}])
        q.run(handler, retry=replace(QUICK, max_attempts=2))
        assert q.job(1).result["repr"].startswith(repr(value)[:6])
        assert len(str(q.steps(1)[0].value_json)) < 20_000
        assert (q.job(2).status, len(calls)) == ("failed", 2)  # it would be no JSON next time
        assert (q.job(2).error or {})["type"] == PayloadError.__name__
        assert [s.state for s in q.steps(2)] == []


def _clip(job: Any, tries: list[int]) -> bytes:
    tries.append(job.attempt)
    return b"\x00\x01 a clip" * 9000


def test_bytes_of_a_paid_call_are_kept_though_the_try_is_ended_meanwhile(
    tmp_path: Path, until: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    keeping, go, calls = threading.Event(), threading.Event(), []
    plain = OutputFolder.keep_step

    def slowly(*args: Any) -> Any:
        keeping.set()
        go.wait(20)
        return plain(*args)

    async def render(job: Any) -> int:
        async def send() -> bytes:
            calls.append(job.attempt)
            return b"a video"

        return len(await job.once("submit", send, paid=True))

    monkeypatch.setattr(OutputFolder, "keep_step", slowly)
    with Queue(tmp_path / "q.db") as q:
        q.put({"prompt": "a fox"})
        run = q.start(render)
        assert keeping.wait(20)
        stopping = threading.Thread(target=run.stop, args=(0,))
        stopping.start()
        until(lambda: all(f.is_released for f in tuple(run._pump._flights.values())))
        go.set()
        stopping.join()
        q.run(render).check()
        assert (calls, q.job(1).result) == ([1], len(b"a video"))


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_bytes_that_a_step_gives_are_kept_for_its_later_tries(tmp_path: Path, kind: str) -> None:
    tries: list[int] = []

    async def render(job: Any) -> Any:
        task = await job.once("submit", lambda key: {"id": key}, paid=True)
        video = await job.once("wait", lambda: _clip(job, tries))
        assert video == _clip(job, [])
        if job.attempt < 3:
            raise ConnectionError(task["id"])
        with job.output(".mp4") as path:
            path.write_bytes(video)
        return path

    def plain(job: Any) -> Any:
        video = job.once("pay", lambda: _clip(job, tries), paid=True)
        if job.attempt < 3:
            raise ConnectionError
        return video

    with Queue(tmp_path / "q.db") as q:
        q.put({"prompt": "a fox"})
        q.run(render if kind == "async" else plain, retry=QUICK).check()
        assert tries == [1]
        (clip,) = q.outputs(1)
        assert clip.read_bytes() == _clip(q.job(1), [])
        kept = q.outputs_folder / ".part" / "steps"
        until_s = time.monotonic() + 10
        while any(kept.iterdir()):
            assert time.monotonic() < until_s
            time.sleep(0.01)


def test_bytes_of_a_step_that_have_gone_fail_the_job_with_a_way_out(tmp_path: Path) -> None:
    tries: list[int] = []

    def render(job: Any) -> None:
        if job.attempt == 2:
            shutil.rmtree(tmp_path / "q" / ".part" / "steps")
        job.once("wait", lambda: _clip(job, tries))
        raise ConnectionError

    with Queue(tmp_path / "q.db") as q:
        q.put({"prompt": "a fox"})
        q.run(render, retry=QUICK)
        assert q.job(1).status == "failed"
        assert "has gone or was changed; job.fresh()" in str(q.job(1).reason)


def _sent(job: Any) -> list[str]:
    log = Path(job.payload["log"])
    return log.read_text().split() if log.exists() else []


def _send(job: Any, key: str) -> int:
    with Path(job.payload["log"]).open("a") as lines:
        lines.write(key + "\n")
    return len(_sent(job))


def picky(job: Any) -> list[Any]:
    """Finds the first render useless, and fails once after it has asked for another."""
    number = job.once("submit", lambda key: _send(job, key), paid=True)
    if number == 1:
        job.fresh()
        job.fresh()  # nothing was paid since
        if job.payload.get("dies"):
            os._exit(3)
        number = job.once("submit", lambda key: _send(job, key), paid=True)
    if job.attempt < 3 and not job.payload.get("dies"):
        raise ValueError("not this time")
    return [number, job.once("look", lambda: "seen")]


async def picky_async(job: Any) -> list[Any]:
    number = await job.once("submit", lambda key: _send(job, key), paid=True)
    if number == 1:
        await job.fresh()
        await job.fresh()
        number = await job.once("submit", lambda key: _send(job, key), paid=True)
    if job.attempt < 3:
        raise ValueError("not this time")
    return [number, await job.once("look", lambda: "seen")]


@pytest.mark.parametrize("executor", ["async", "thread", "process"])
def test_fresh_asks_for_another_render_once_and_retries_resume_there(
    tmp_path: Path, executor: Any
) -> None:
    log = tmp_path / "log"
    with Queue(tmp_path / "q.db") as q:
        q.put({"log": str(log)})
        handler = picky_async if executor == "async" else picky
        q.run(handler, executor=executor, retry=QUICK).check()
        assert q.job(1).result == [2, "seen"]
        assert (q.job(1).generation, q.job(1).attempt) == (1, 3)
        assert log.read_text().split() == [s.key for s in q.steps(1) if s.is_paid]
        assert [(s.name, s.generation) for s in q.steps(1)] == [
            ("submit", 0),
            ("submit", 1),
            ("look", 1),
        ]
        renewed = [e.data for e in q.events(job=1) if e.type == "job.renewed"]
        assert renewed == [{"generation": 1}]


def test_a_crash_between_fresh_and_the_next_call_opens_no_further_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Queue(tmp_path / "q.db") as q:
        q.put({"log": str(log), "dies": True})
        q.run(picky, executor="process", retry=QUICK).check()
        assert q.job(1).crashes == 1
        assert (q.job(1).result, q.job(1).generation) == ([2, "seen"], 1)
        assert len(log.read_text().split()) == 2


@pytest.mark.parametrize("is_in_flight", [True, False])
def test_fresh_is_refused_while_a_paid_call_has_no_answer(
    tmp_path: Path, is_in_flight: bool
) -> None:
    sent = []

    async def render(job: Any) -> None:
        begun = asyncio.Event()

        async def send(key: str) -> None:
            sent.append(key)
            begun.set()
            if not is_in_flight:
                raise ConnectionError("gone")
            await asyncio.Event().wait()

        call = asyncio.ensure_future(job.once("submit", send, paid=True))
        await begun.wait()
        if not is_in_flight:
            with pytest.raises(InDoubt, match="may have been accepted"):
                await call
        try:
            await job.fresh()
        finally:
            call.cancel()
        await job.once("submit", send, paid=True)

    with Queue(tmp_path / "q.db") as q:
        q.put({})
        q.run(render, retry=QUICK)
        job = q.job(1)
        assert (job.status, job.generation, len(sent)) == ("in_doubt", 0, 1)
        assert "paid step 'submit' has no answer" in str(job.reason)


def test_what_fresh_spends_is_counted_and_no_budget_is_passed(tmp_path: Path) -> None:
    log, sent = tmp_path / "log", []

    async def render(job: Any) -> None:
        number = await job.once("submit", lambda key: _send(job, key), paid=True)
        sent.append(number)
        if number < 3:
            await job.fresh()
            sent.append(await job.once("submit", lambda key: _send(job, key), paid=True))
            raise ValueError("not this time")

    with Queue(tmp_path / "q.db") as q:
        q.accounts.add("a", provider="render", price=0.25)
        q.put({"log": str(log)})
        q.budget = 0.40
        why = q.run(render, retry=QUICK).why
        assert "the queue's budget has $0.15 left" in why["a"]
        assert (q.job(1).status, q.job(1).attempt, q.job(1).generation) == ("queued", 0, 1)
        assert "not covered by what is left of the budget" in str(q.job(1).reason)
        assert len(log.read_text().split()) == 1
        assert [(r["money"], r["cost"]) for r in q.cost_records()] == [("billed", 0.25)]
        q.budget = 9.0
        q.run(render, retry=QUICK).check()
        assert sent == [1, 2, 3, 3]
        records = list(q.cost_records())
        assert [r["cost"] for r in records] == [0.25, 0.25, 0.25]
        assert len(log.read_text().split()) == 3
        assert q.snapshot().accounts[0].spent == 0.75
        told = [key for r in records for key in str(r["key"]).split("\n")]
        assert set(told) == set(log.read_text().split())


def test_a_step_may_stand_inside_a_step_and_each_is_kept(tmp_path: Path) -> None:
    calls: list[str] = []

    async def handler(job: Any) -> Any:
        async def inner() -> str:
            calls.append("inner")
            return "in"

        async def outer() -> str:
            calls.append("outer")
            return "out of " + await job.once("inner", inner, paid=True)

        value = await job.once("outer", outer, paid=True)
        if job.attempt == 1:
            raise ValueError("not this time")
        return value

    with Queue(tmp_path / "q.db") as q:
        q.put({"prompt": "a fox"})
        q.run(handler, retry=QUICK).check()
        assert (q.job(1).result, calls) == ("out of in", ["outer", "inner"])


def test_asked_twice_in_one_try_it_is_called_once(tmp_path: Path) -> None:
    calls: list[int] = []

    async def handler(job: Any) -> Any:
        async def pay() -> int:
            calls.append(1)
            return len(calls)

        return [await job.once("pay", pay, paid=True), await job.once("pay", pay, paid=True)]

    with Queue(tmp_path / "q.db") as q:
        q.put({"prompt": "a fox"})
        q.run(handler).check()
        assert (q.job(1).result, len(calls)) == ([1, 1], 1)


def test_asked_twice_at_the_same_time_it_is_called_once(tmp_path: Path) -> None:
    calls: list[int] = []

    async def handler(job: Any) -> Any:
        async def pay() -> int:
            calls.append(1)
            await asyncio.sleep(0.05)
            return len(calls)

        both = (job.once("pay", pay, paid=True) for _ in range(2))
        return [str(one) for one in await asyncio.gather(*both, return_exceptions=True)]

    with Queue(tmp_path / "q.db") as q:
        q.put({"prompt": "a fox"})
        q.run(handler)
        assert len(calls) == 1
        assert "may be paid for" in q.job(1).result[1]


@pytest.mark.parametrize("how", ["async", "plain"])
def test_a_handler_that_catches_the_doubt_and_tries_again_does_not_send_again(
    tmp_path: Path, how: str
) -> None:
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        raise TimeoutError("no answer")

    async def stubborn_async(job: Any) -> Any:
        for _ in range(3):
            try:
                return await job.once("pay", call, paid=True)
            except Exception as error:  # noqa: BLE001 - as users do
                last = error
        raise last

    def stubborn_plain(job: Any) -> Any:
        for _ in range(3):
            try:
                return job.once("pay", call, paid=True)
            except Exception as error:  # noqa: BLE001 - as users do
                last = error
        raise last

    with Queue(tmp_path / "q.db") as q:
        q.put({"prompt": "a fox"})
        q.run(stubborn_async if how == "async" else stubborn_plain, retry=QUICK)
        assert (q.job(1).status, len(calls)) == ("in_doubt", 1)


@pytest.mark.parametrize("name", ["", "x" * 81])
def test_a_step_has_a_short_name(tmp_path: Path, name: str) -> None:
    async def handler(job: Any) -> Any:
        await job.once(name, lambda: 1)

    with Queue(tmp_path / "q.db") as q:
        q.put({"prompt": "a fox"})
        q.run(handler, retry=replace(QUICK, max_attempts=1))
        assert (q.job(1).error or {})["type"] == UsageError.__name__


@pytest.mark.parametrize("status", ["in_doubt", "queued"])
def test_a_receipt_ends_the_doubt_whatever_had_begun_it(tmp_path: Path, status: str) -> None:
    """As where the commit, or the wait for it, was cut short after the receipt was kept."""
    calls: list[str] = []

    async def pay(job: Any) -> Any:
        def call(key: str) -> str:
            calls.append(key)
            raise TimeoutError("no answer")

        return await job.once("pay", call, paid=True)

    with Queue(tmp_path / "q.db") as q:
        q.put({"prompt": "a fox"})
        q.run(pay)
        (step,) = q.steps(1)
        if status == "queued":  # released while it was being kept: the intent is still there
            q._write(lambda s: s._write([(job := s.job(1), job._replace(status="queued"))]))
        q._files.receipts.append(step, '"the answer"')
        q.run(pay).check()
        assert (q.job(1).result, len(calls)) == ("the answer", 1)


def test_a_paid_call_that_is_cancelled_before_it_was_sent_leaves_no_doubt(tmp_path: Path) -> None:
    calls: list[int] = []
    plain = SqliteStore.begin_step

    async def pay(job: Any) -> Any:
        await job.once("pay", lambda: calls.append(1), paid=True)

    with Queue(tmp_path / "q.db") as q, pytest.MonkeyPatch.context() as patch:
        q.put({"prompt": "a fox"})
        run: Any = None

        def begin_step(self: Any, *args: Any, **kwargs: Any) -> Any:
            begun = plain(self, *args, **kwargs)
            (flight,) = run._pump._flights.values()
            run._pump._loop.call_soon_threadsafe(flight.release)
            run._pump._loop.call_soon_threadsafe(patch.undo)
            return begun

        run = q.start(pay)
        run.pause()
        patch.setattr(SqliteStore, "begin_step", begin_step)
        run.resume()
        run.wait()
        assert (q.job(1).status, len(calls)) == ("completed", 1)


# -- resolve ---------------------------------------------------------------------------------


def doubtful(studio: Studio, **knobs: Any) -> Queue:
    """A queue with one job in doubt, at a provider that cannot tell; it was accepted."""
    studio.mock.set(idempotency="none", **(knobs or {"drop_after": {"first": 1}}))
    q = studio.open()
    put(q, 1)
    q.run()
    assert statuses(q) == {"in_doubt": 1}
    return q


def test_a_doubt_tells_what_it_is_about(studio: Studio) -> None:
    with doubtful(studio) as q:
        job, (step,) = q.job(1), q.steps(1)
        assert "may have been accepted" in str(job.reason)
        assert "you decide" in notes(q)
        assert step.request_json is not None
        assert json.loads(step.request_json)["prompt"] == job.payload["prompt"]
        assert (step.key, step.account) == (studio.renders()[0].key, studio.account())
        (row,) = q.cost_records()
        assert (row["money"], row["estimate"], row["key"]) == ("estimated", 0.25, step.key)


def test_attach_collects_the_render_that_was_made(studio: Studio) -> None:
    with doubtful(studio) as q:
        q.resolve(1, "attach", value=studio.renders()[0].id)
        q.run().check()
        assert len(studio.renders()) == 1
        assert q.outputs(1)[0].read_bytes() == studio.mock.content(studio.renders()[0].request)
        assert spent(q) == studio.billed() == COST


def test_not_sent_sends_it_as_for_the_first_time(studio: Studio) -> None:
    with doubtful(studio, drop_before={"first": 1}) as q:
        key = q.steps(1)[0].key
        q.resolve(1, "not_sent")
        q.run().check()
        assert [r.key for r in studio.renders()] == [key]
        assert spent(q) == studio.billed() == COST


def test_pay_again_makes_another_one_under_a_key_of_its_own(studio: Studio) -> None:
    with doubtful(studio) as q:
        q.resolve(1, "pay_again")
        q.run().check()
        assert len({r.key for r in studio.renders()}) == 2
        assert spent(q) == studio.billed() == 2 * COST
        assert [row["money"] for row in q.cost_records()] == ["unknown", "billed"]


def test_give_up_fails_the_job_and_counts_what_it_may_have_cost(studio: Studio) -> None:
    with doubtful(studio) as q:
        assert q.resolve(1, "give_up").status == "failed"
        q.run()
        assert spent(q) == studio.billed() == COST
        assert len(studio.renders()) == 1


@pytest.mark.parametrize(("how", "after"), [("pay_again", 2 * COST), ("give_up", COST)])
def test_what_the_one_in_doubt_cost_may_be_told(studio: Studio, how: Any, after: int) -> None:
    with doubtful(studio) as q:
        q.resolve(1, how, cost=0.31)
        q.run()
        assert spent(q) == after - COST + 310_000
        assert next(row["money"] for row in q.cost_records()) == "billed"


@pytest.mark.parametrize("how", ["attach", "not_sent"])
def test_what_it_cost_is_asked_of_nobody_who_will_hear_it_otherwise(
    studio: Studio, how: Any
) -> None:
    with doubtful(studio) as q, pytest.raises(UsageError, match="takes no cost"):
        q.resolve(1, how, cost=0.31)


def test_doubts_about_renders_that_are_gone_hold_up_no_other_job(studio: Studio) -> None:
    """An account of one slot, one render whose id was forgotten, and a job that waits."""
    studio.mock.set(forget_s=0.0)
    with studio.open() as q:
        put(q, 1)
        q.run()
        assert statuses(q) == {"in_doubt": 1}
        assert q.job(1).is_open
        studio.mock.set(forget_s=None)
        q.put({"prompt": "another one"})
        q.run()
        assert statuses(q) == {"in_doubt": 1, "completed": 1}


def test_what_the_provider_says_it_will_cost_goes_before_our_own_estimate(studio: Studio) -> None:
    studio.mock.set(cost_spread=0.5, billed_on="start", forget_s=0.0)
    with studio.open() as q:
        put(q, 1)
        q.run()
        assert statuses(q) == {"in_doubt": 1}
        q.resolve(1, "give_up")
        assert spent(q) == studio.billed() != COST


def test_cancelling_a_doubt_counts_what_it_may_have_cost(studio: Studio) -> None:
    with doubtful(studio) as q:
        q.cancel(1)
        assert q.job(1).status == "cancelled"
        assert spent(q) == studio.billed() == COST


def leave_in_doubt(q: Queue) -> Callable[[Any], Any]:
    """One job of README's handler, whose answer was lost; that handler."""
    calls: list[str] = []

    async def render(job: Any) -> Any:
        def submit(key: str) -> Any:
            calls.append(key)
            raise TimeoutError("no answer")

        task = await job.once("submit", submit, paid=True)
        video = await job.once("wait", lambda: "video of " + str(task))
        assert len(calls) == 1
        return video, task["id"]

    q.put({"n": 1}, max_attempts=1)
    drain(q, render)
    return render


def test_what_was_attached_wrongly_is_put_right_and_nothing_is_paid_again(tmp_path: Path) -> None:
    with Queue(tmp_path / "q.db") as q:
        render = leave_in_doubt(q)
        q.resolve(1, "attach", value="task-2")
        q.resolve(1, "attach", value="task-1")  # before anybody has used it
        assert q.steps(1)[0].value == "task-1"
        drain(q, render)
        assert q.job(1).status == "failed"
        assert "string indices must be integers" in q.job(1).error["message"]
        assert q.resolve(1, "attach", value={"id": "task-1"}).status == "queued"
        drain(q, render)
        assert q.job(1).result == ["video of {'id': 'task-1'}", "task-1"]
        with pytest.raises(LifecycleError, match="job 1 is completed"):
            q.resolve(1, "attach", value={"id": "task-3"})


def test_what_a_call_gave_itself_is_not_replaced(tmp_path: Path) -> None:
    with Queue(tmp_path / "q.db") as q:

        async def render(job: Any) -> None:
            await job.once("submit", lambda key: {"id": "task-1"}, paid=True)
            raise GiveUp("useless")

        q.put({"n": 1})
        drain(q, render)
        with pytest.raises(LifecycleError, match="no value that was attached"):
            q.resolve(1, "attach", value={"id": "task-2"})
        assert q.steps(1)[0].value == {"id": "task-1"}


def test_what_another_paid_step_was_begun_with_is_not_taken_back(tmp_path: Path) -> None:
    with Queue(tmp_path / "q.db") as q:
        leave_in_doubt(q)
        q.resolve(1, "attach", value={"id": "task-1"})

        async def more(job: Any) -> None:
            await job.once("submit", lambda key: {}, paid=True)
            await job.once("upscale", lambda key: 1, paid=True)
            raise GiveUp("useless")

        more.__name__ = "render"
        drain(q, more)
        with pytest.raises(UsageError, match="paid step 'upscale' was begun with what was attach"):
            q.resolve(1, "attach", value={"id": "task-2"})


@pytest.mark.parametrize(
    ("how", "value", "sentence"),
    [
        ("attach", None, "needs value="),
        ("not_sent", "x", "takes no value"),
        ("send_it", None, "expected 'attach'"),
    ],
)
def test_a_wrong_word_resolves_nothing(studio: Studio, how: Any, value: Any, sentence: str) -> None:
    with doubtful(studio) as q:
        with pytest.raises(UsageError, match=sentence):
            q.resolve(1, how, value=value)
        assert q.job(1).status == "in_doubt"


def test_a_doubt_that_a_person_ends_while_the_provider_is_asked_holds_up_nobody(
    studio: Studio,
) -> None:
    studio.mock.set(idempotency="tag", drop_before={"first": 1})
    with studio.open() as q:
        studio.bind(q, not_found_grace_s=1000.0)
        put(q, 1)
        run = q.start()
        _until(lambda: "may still turn up" in notes(q))
        q.resolve(1, "give_up")
        assert run.wait(10).counts == {"failed": 1}
        assert not run._pump._strays.is_busy


def test_doubts_that_wait_for_a_person_do_not_hide_the_others(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vqkit.strays, "AT_ONCE", 2)
    studio.mock.set(idempotency="list", list_lag_s=0, drop_after={"first": 1})
    with studio.open({"a": 6}) as q:
        put(q, 6)
        plain = studio.adapter.find

        async def find(request: Any, **options: Any) -> list[Match]:
            if int(request["prompt"][-1]) < 4:  # of these nobody can tell
                return [Match({"id": f"x{n}"}, 0, False) for n in range(2)]
            found: list[Match] = await plain(request, **options)
            return found

        studio.adapter.find = find
        q.run()
        assert statuses(q) == {"in_doubt": 4, "completed": 2}


# -- reconcile -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_that_was_lost_is_found_and_never_paid_for_twice(
    studio: Studio, kind: Any
) -> None:
    studio.mock.set(idempotency=kind, drop_after={"first": 1})
    with studio.open({"a": 2}) as q:
        prompts = put(q, 4)
        q.run()
        assert studio.times() == dict.fromkeys(prompts, 1)
        expected = {"in_doubt": 4} if kind == "none" else {"completed": 4}
        assert statuses(q) == expected
        assert {job.attempt for job in q.jobs()} == ({0} if kind == "none" else {1})
        if kind != "none":
            assert spent(q) == studio.billed()


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_that_never_arrived_is_sent_again_where_one_can_know(
    studio: Studio, kind: Any
) -> None:
    studio.mock.set(idempotency=kind, drop_before={"first": 1})
    with studio.open({"a": 2}) as q:
        prompts = put(q, 3)
        q.run()
        is_known = kind != "none"
        assert studio.times() == (dict.fromkeys(prompts, 1) if is_known else {})
        assert statuses(q) == ({"completed": 3} if is_known else {"in_doubt": 3})
        if is_known:
            assert spent(q) == studio.billed()


@pytest.mark.parametrize("knob", ["error_after", "html_after"])
@pytest.mark.parametrize("kind", ["replay", "list"])
def test_an_answer_that_is_none_is_a_doubt_too(studio: Studio, kind: Any, knob: str) -> None:
    studio.mock.set(idempotency=kind, **{knob: {"first": 1}})
    with studio.open() as q:
        prompts = put(q, 2)
        q.run().check()
        assert studio.times() == dict.fromkeys(prompts, 1)


@pytest.mark.parametrize("kind", ["client_id", "tag", "list"])
def test_one_answer_that_it_is_not_there_is_not_believed(studio: Studio, kind: Any) -> None:
    """The provider was away, and what answers first when it is back lags behind."""
    lag: dict[str, Any] = {"list_lag_s": 0.3} if kind != "client_id" else {"not_found_polls": 1}
    studio.mock.set(idempotency=kind, drop_after={"first": 1}, **lag)
    with studio.open() as q:
        studio.bind(q, not_found_grace_s=0.0 if kind == "client_id" else 0.4)
        put(q, 1)
        q.run().check()
        assert len(studio.renders()) == 1
        assert spent(q) == studio.billed()


def test_a_replay_that_is_refused_as_wrong_says_nothing_of_the_first(studio: Studio) -> None:
    """It may be the key that is wrong now, and the first one was rendered."""
    studio.mock.set(drop_after={"first": 1})
    with studio.open() as q:
        plain = studio.adapter.submit
        answers = [plain]

        async def submit(*args: Any, **options: Any) -> Any:
            if answers:
                return await answers.pop()(*args, **options)
            raise ProviderError("this key had another request", "invalid")

        studio.adapter.submit = submit
        put(q, 1)
        q.run()
        assert statuses(q) == {"in_doubt": 1}
        assert "you decide" in notes(q)
        studio.adapter.submit = plain
        q.resolve(1, "attach", value=studio.renders()[0].id)
        q.run().check()
        assert spent(q) == studio.billed() == COST


def test_two_equal_requests_in_doubt_are_never_told_the_same_render(studio: Studio) -> None:
    studio.mock.set(idempotency="list")
    with studio.open({"a": 2}) as q:
        for key in ("one", "two"):
            q.put({"prompt": "the same", "seed": 7}, key=key)
        studio.mock.fail_next("drop_before")
        studio.mock.fail_next("drop_after")
        q.run().check()
        handles = [q.steps(n)[0].value["handle"]["id"] for n in (1, 2)]
        assert sorted(handles) == sorted(r.id for r in studio.renders())
        assert len(set(handles)) == 2
        assert spent(q) == studio.billed() == 2 * COST


def test_a_provider_that_is_down_is_asked_until_it_answers(studio: Studio) -> None:
    studio.mock.set(idempotency="tag", drop_after={"first": 1})
    with studio.open() as q:
        put(q, 1)
        plain, asked = studio.adapter.find, []

        async def find(*args: Any, **options: Any) -> Any:
            asked.append(1)
            if len(asked) < 4:
                raise ProviderError("no connection", "not_sent")
            return await plain(*args, **options)

        studio.adapter.find = find
        q.run().check()
        assert (len(asked), len(studio.renders())) == (4, 1)


class Lost:
    """A provider that knows nothing of our request, yet."""

    name = "lost"

    def __init__(self, kind: Any) -> None:
        self.capabilities = Capabilities(kind, not_found_grace_s=30.0)

    async def find(self, *_: Any, **__: Any) -> list[Match]:
        return []

    async def poll(self, *_: Any, **__: Any) -> Status:
        return Status("not_found")

    async def submit(self, *_: Any, **__: Any) -> Submitted:
        raise ProviderError("used before", "key_reused")


@pytest.mark.parametrize("kind", ["client_id", "tag", "list", "reject"])
def test_what_is_not_found_may_turn_up_for_a_while_after_the_doubt_began(kind: Any) -> None:
    """A request that timed out after half a minute may be accepted after it."""
    step = Step(1, RENDER, 0, "intent", True, "key", 1, "a", "{}", None, begun_ms=0)

    def asked(now_ms: int, was_missing: bool = True) -> Any:
        def no_sink(suffix: str) -> Path:
            raise AssertionError

        return asyncio.run(
            reconcile(
                step,
                Lost(kind),  # type: ignore[arg-type]
                AccountKey("a"),
                owned=set(),
                now_ms=now_ms,
                doubt_ms=30_000,
                was_missing=was_missing,
                sink=no_sink,
            )
        )

    early, late = asked(59_999), asked(60_000)
    assert not asked(60_000, was_missing=False).is_settled
    assert not early.is_settled
    assert not early.note.endswith("you decide")
    assert late.is_settled == (kind != "reject")
    assert late.note.endswith("you decide") == (kind == "reject")


@pytest.mark.parametrize("kind", ["client_id", "tag", "list"])
def test_what_is_not_found_may_be_deleted_by_now_and_is_not_sent_again(kind: Any) -> None:
    """The laptop was closed over night; the provider deletes what it made after an hour."""
    provider: Any = Lost(kind)
    provider.capabilities = Capabilities(kind, result_ttl_s=3600.0)
    step = Step(1, RENDER, 0, "intent", True, "key", 1, "a", "{}", None, begun_ms=0)

    def asked(now_ms: int) -> Any:
        return asyncio.run(
            reconcile(
                *(step, provider, AccountKey("a")),
                owned=set(),
                was_missing=True,
                now_ms=now_ms,
                sink=lambda s: Path(s),
            )
        )

    assert asked(3_599_999).is_settled
    late = asked(3_600_000)
    assert not late.is_settled
    assert late.note.endswith("you decide")


@pytest.mark.parametrize("is_certain", [True, False])
def test_what_only_looks_like_it_may_be_the_one_that_was_refused_before(is_certain: bool) -> None:
    """A provider may list, and bill, a render that it refused without a word of its name."""

    class Lists(Lost):
        async def find(self, *_: Any, **__: Any) -> list[Match]:
            return [Match({"id": "r1"}, 0, is_certain)]

    step = Step(1, RENDER, 1, "intent", True, "key", 1, "a", "{}", None, begun_ms=0)

    def asked(was_refused: bool) -> Any:
        return asyncio.run(
            reconcile(
                *(step, Lists("list"), AccountKey("a")),  # type: ignore[arg-type]
                owned=set(),
                was_missing=True,
                was_refused=was_refused,
                now_ms=60_000,
                sink=lambda s: Path(s),
            )
        )

    assert asked(was_refused=False).is_settled
    assert asked(was_refused=True).is_settled == is_certain


def test_a_key_the_provider_has_forgotten_is_not_sent_again() -> None:
    provider: Any = Lost("replay")
    provider.capabilities = Capabilities("replay", key_ttl_s=10.0)
    step = Step(1, RENDER, 0, "intent", True, "key", 1, "a", "{}", None, begun_ms=0)
    verdict = asyncio.run(
        reconcile(
            step, provider, AccountKey("a"), owned=set(), now_ms=9_000, sink=lambda s: Path(s)
        )
    )
    assert verdict.note.endswith("you decide")


# -- accounts --------------------------------------------------------------------------------


def test_a_key_that_is_refused_parks_its_account_until_somebody_mends_it(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    with studio.open({"a": 2}) as q:
        name = studio.account()
        studio.mock.set(key_generation={name: 2})
        put(q, 3)
        summary = q.run()  # and does not wait for ever
        assert "another, then accounts.unpark" in summary.why[name]
        assert {(job.status, job.attempt) for job in q.jobs()} == {("queued", 0)}
    with studio.open({"a": 2}) as q:
        parked = q.accounts[name]
        assert parked.parked_until_ms == FOR_EVER_MS
        assert "its key is not accepted" in str(q.snapshot())
        monkeypatch.setenv("KEY_a", str(studio.mock.account(name, generation=2).key))
        q.accounts.unpark(name)
        q.run().check()


@pytest.mark.parametrize("verb", ["submit", "poll", "fetch"])
def test_a_key_that_was_changed_meanwhile_is_read_anew_and_nothing_is_parked(
    studio: Studio, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    studio.mock.set(render_polls=2)
    with studio.open() as q:
        name, call = studio.account(), getattr(studio.adapter, verb)
        used = []

        async def changed_just_before(*args: Any, account: Any, **options: Any) -> Any:
            if not used:
                monkeypatch.setenv("KEY_a", str(studio.mock.account(name, generation=2).key))
                studio.mock.set(key_generation={name: 2})
            used.append(account.key)
            if verb == "fetch" and len(used) == 1:  # its links need no key here
                raise ProviderError("who are you?", "auth")
            return await call(*args, account=account, **options)

        setattr(studio.adapter, verb, changed_just_before)
        put(q, 1)
        q.run().check()
        assert len(set(used)) == 2
        assert [a.outcome for a in q.attempts()] == ["completed"]
        assert len(studio.renders()) == 1
        assert q.accounts[name].parked_until_ms is None
        told = [e.data["message"] for e in q.events(job=1) if e.type == "job.logged"]
        assert told == ["its key was refused and is another one by now: asked again with that"]


def test_a_changed_key_that_is_refused_too_parks_the_account(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    with studio.open() as q:
        name, submit = studio.account(), studio.adapter.submit

        async def changed_just_before(*args: Any, **options: Any) -> Any:
            monkeypatch.setenv("KEY_a", str(studio.mock.account(name, generation=2).key))
            return await submit(*args, **options)

        studio.adapter.submit = changed_just_before
        studio.mock.set(key_generation={name: 3})
        put(q, 1)
        assert "another, then accounts.unpark" in q.run().why[name]
        assert [(a.outcome, a.attempt) for a in q.attempts()] == [("released", 1)]
        assert len(studio.requests("submit")) == 2


def refused_until_changed(job: Any) -> int:
    key, folder = job.credential(), Path(job.payload["folder"])
    if key == "old-key-1234":
        (folder / "refused").touch()
        while not (folder / "changed").exists():
            time.sleep(0.01)
        raise ProviderError("who are you?", "auth")
    return len(key)


async def refused_until_changed_async(job: Any) -> int:
    return await asyncio.to_thread(refused_until_changed, job)


@pytest.mark.parametrize("executor", ["async", "thread", "process"])
def test_a_function_whose_key_was_changed_meanwhile_is_tried_with_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: Callable[..., Any], executor: Any
) -> None:
    handler = refused_until_changed_async if executor == "async" else refused_until_changed
    monkeypatch.setenv("KEY_a", "old-key-1234")
    with Queue(tmp_path / "q.db") as q:
        q.accounts.add("a", provider=handler.__name__, credential="env:KEY_a")
        q.put({"folder": str(tmp_path)})
        run = q.start(handler, executor=executor)
        until(lambda: (tmp_path / "refused").exists())
        monkeypatch.setenv("KEY_a", "new-key-12345")
        (tmp_path / "changed").touch()
        run.wait().check()
        assert (q.job(1).result, q.job(1).attempt) == (13, 1)
        assert [a.outcome for a in q.attempts()] == ["released", "completed"]
        assert q.accounts["a"].parked_until_ms is None


def test_a_function_whose_every_key_is_refused_is_tried_once_more_and_then_parked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = (f"another-key-{n}" for n in itertools.count())
    monkeypatch.setattr("vqkit.secrets.resolve", lambda reference: next(keys))
    used = []

    async def studio(job: Any) -> None:
        used.append(job.credential())
        raise ProviderError("who are you?", "auth")

    with Queue(tmp_path / "q.db") as q:
        q.accounts.add("a", provider="studio", credential="env:KEY_a")
        q.put({})
        assert "another, then accounts.unpark" in q.run(studio).why["a"]
        assert len(used) == 2
        assert q.job(1).attempt == 0


class Keyring:
    """A keyring of the tests' own that notes on which threads it is read."""

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}
        self.reads: list[str] = []

    def get_password(self, service: str, name: str) -> str | None:
        self.reads.append(threading.current_thread().name)
        return self.entries.get(f"{service}/{name}")


@pytest.fixture
def keyring(monkeypatch: pytest.MonkeyPatch) -> Keyring:
    module, errors = types.ModuleType("keyring"), types.ModuleType("keyring.errors")
    keyring = Keyring()
    vars(module)["get_password"] = keyring.get_password
    vars(errors)["KeyringError"] = type("KeyringError", (Exception,), {})
    monkeypatch.setitem(sys.modules, "keyring", module)
    monkeypatch.setitem(sys.modules, "keyring.errors", errors)
    return keyring


def test_a_keyring_is_read_between_the_turns_and_not_at_each(
    tmp_path: Path, keyring: Keyring
) -> None:
    async def studio(job: Any) -> None:
        """Does nothing."""

    with Queue(tmp_path / "q.db") as q:
        q.accounts.add("a", provider="studio", capacity=2, credential="keyring:studio/a")
        q.put_many([{"n": n} for n in range(20)])
        why = q.run(studio).why
        assert "keyring:studio/a is not set" in why["a"]
        keyring.entries["studio/a"] = "key-of-the-ring"
        keyring.reads.clear()
        q.run(studio).check()  # at once: what was wrong is looked at anew
        assert set(keyring.reads) == {"vqkit-key"}  # a thread that holds no database
        assert len(keyring.reads) <= 2


def test_a_balance_that_is_used_up_parks_the_account_and_a_top_up_goes_on(studio: Studio) -> None:
    name = studio.account()
    studio.mock.set(balance_microusd={name: 2 * COST})
    with studio.open() as q:
        put(q, 4)
        assert "top it up, then accounts.unpark" in q.run().why[name]
        assert statuses(q) == {"completed": 2, "queued": 2}
        studio.mock.set(balance_microusd=None)
        q.accounts.unpark(name)
        q.run().check()
        assert {job.attempt for job in q.jobs()} == {1}


def test_moderations_in_a_row_park_the_account_and_a_good_one_ends_the_row(studio: Studio) -> None:
    name = studio.account()
    with studio.open() as q:
        prompts = put(q, 11)
        studio.mock.set(moderated_on="submit", moderated=True)
        plain = studio.adapter.submit

        async def submit(request: Any, **options: Any) -> Any:
            if request["prompt"] == prompts[4]:  # one good one in between
                return Submitted({"id": "good"})
            return await plain(request, **options)

        async def poll(handle: Any, **_: Any) -> Status:
            return Status("succeeded", links=(Link("x"),), cost_microusd=0)

        async def fetch(link: Any, path: Path, **_: Any) -> Any:
            path.write_bytes(b"clip")  # noqa: ASYNC240 - a test's
            from vqkit.providers.contract import Fetched

            return Fetched(4)

        studio.adapter.submit, studio.adapter.poll, studio.adapter.fetch = submit, poll, fetch
        assert "5 prompts in a row were refused" in q.run().why[name]
        assert statuses(q) == {"failed": 9, "completed": 1, "queued": 1}
        assert spent(q) == 0


def test_too_many_requests_rest_the_account_until_retry_after_over_a_reopening(
    studio: Studio,
) -> None:
    name, clock = studio.account(), ManualClock()
    studio.mock.set(rate={"first": 1}, retry_after_s=120)
    with studio.open() as q:
        put(q, 1)
        run = q.start()
        _until(lambda: q.accounts[name].parked_until_ms)
        run.stop(0)
        until_ms = q.accounts[name].parked_until_ms
        assert until_ms is not None
    with studio.open() as q:
        assert q.accounts[name].parked_until_ms == until_ms
        assert "too many requests" in str(q.accounts[name].parked_reason)
        clock = ManualClock(until_ms - 100_000)
        drain(q, clock=clock).check()
        assert clock.now_ms() >= until_ms
        assert q.job(1).attempt == 1


def test_a_hundred_jobs_refused_at_once_come_back_spread_and_none_too_early(
    studio: Studio,
) -> None:
    studio.mock.set(rate={"first": 1}, retry_after_s=10)
    clock = ManualClock()
    with studio.open({"a": 100}) as q:
        put(q, 100)
        at: dict[str, list[int]] = defaultdict(list)
        plain = studio.adapter.submit

        async def submit(request: Any, **options: Any) -> Any:
            at[request["prompt"]].append(clock.now_ms())
            return await plain(request, **options)

        studio.adapter.submit = submit
        drain(q, clock=clock).check()
        waits = [second - first for first, second in at.values()]
        assert len(waits) == 100
        assert min(waits) >= 10_000
        assert max(waits) - min(waits) >= 1000
        assert {job.attempt for job in q.jobs()} == {1}


def test_a_provider_that_is_gone_parks_all_its_accounts_and_no_other(studio: Studio) -> None:
    studio.mock.set(retired=("*",))
    with studio.open({"a": 1, "b": 1}) as q:
        put(q, 3, provider="mock")
        q.accounts.add("elsewhere", provider="fine")
        q.provider("fine", lambda job: "ok")
        q.put({"prompt": "elsewhere"}, provider="fine")
        why = q.run().why
        assert all("the provider is gone" in why[studio.account(s)] for s in "ab")
        assert q.accounts["elsewhere"].parked_until_ms is None
        assert statuses(q) == {"completed": 1, "queued": 3}


def test_a_limit_smaller_than_was_said_is_learned_and_costs_no_attempt(studio: Studio) -> None:
    name = studio.account()
    studio.mock.set(concurrency={name: 2}, render_polls=3)
    with studio.open({"a": 5}) as q:
        put(q, 12)
        drain(q).check()
        assert studio.mock.most_at_once(name) <= 2
        assert q.accounts[name].limits["learned"] <= 3
        assert q.accounts[name].capacity == 5
        assert {job.attempt for job in q.jobs()} == {1}
        assert len(studio.renders()) == 12


def test_no_more_are_begun_in_a_minute_than_allowed(studio: Studio) -> None:
    clock = ManualClock()
    with studio.open({"a": 10}, per_minute=3) as q:
        put(q, 8)
        drain(q, clock=clock).check()
        began = sorted(a.started_ms for a in q.attempts())
        assert all(began[n + 3] - began[n] >= 60_000 for n in range(5))
        assert clock.now_ms() - began[0] < 300_000


def test_accounts_of_one_group_share_the_smallest_limit(studio: Studio) -> None:
    studio.mock.set(render_s=0.05)
    with studio.open({"a": 3, "b": 2}, group="one company") as q:
        put(q, 8)
        q.run().check()
        steps = [(a.started_ms, 1) for a in q.attempts()]
        steps += [(a.finished_ms or 0, -1) for a in q.attempts()]
        live = most = 0
        for _, step in sorted(steps):
            live += step
            most = max(most, live)
        assert most <= 2


def test_each_model_has_slots_of_its_own_where_the_provider_says_so(studio: Studio) -> None:
    name = studio.account()
    studio.mock.set(concurrency={name: 2}, limits_scope="account+model", render_polls=3)
    with studio.open({"a": 2}) as q:
        q.put_many([{"prompt": f"{n}", "model": f"gen{n % 2}"} for n in range(12)])
        drain(q).check()
        renders = studio.renders()
        assert len(studio.requests("submit")) == len(renders) == 12  # none was refused
        assert studio.mock.most_at_once(name) == 4
        assert "models" not in q.accounts[name].limits
        (account,) = q.snapshot().accounts
        assert account.is_by_model
        assert account.slots_text == "0 of 2 of each model"


@pytest.mark.parametrize("column", ["model", "Model", " MODEL "])
def test_models_are_limited_whatever_the_letters_of_their_column(
    tmp_path: Path, column: str
) -> None:
    at_work, most = [], []

    async def studio(job: Any) -> None:
        at_work.append(job.number)
        most.append(len(at_work))
        await asyncio.sleep(0.01)
        at_work.remove(job.number)

    with Queue(tmp_path / "q.db") as q:
        q.accounts.add("a", provider=studio, capacity=4, model_capacity={"gen4": 1})
        q.put_many([{"n": n, column: "gen4"} for n in range(4)])
        q.run(studio).check()
    assert max(most) == 1


def test_a_model_that_is_refused_rests_alone_is_shown_and_unparked(tmp_path: Path) -> None:
    clock, begun = ManualClock(), []

    async def studio(job: Any) -> None:
        begun.append((job.payload["model"], clock.now_ms()))
        if job.payload["model"] == "gen4" and len(begun) < 4:
            raise ProviderError("slow down", "rate", retry_after_s=600)

    with Queue(tmp_path / "q.db") as q:
        q.accounts.add("a", provider="studio", capacity=9, model_capacity={"gen4": 1})
        q.put_many([{"n": n, "model": "gen4" if n < 3 else "gen3"} for n in range(6)])
        start_ms = clock.now_ms()
        drain(q, studio, clock=clock).check()
        assert {model for model, at_ms in begun if at_ms < start_ms + 600_000} == {"gen3", "gen4"}
        late = [model for model, at_ms in begun if at_ms >= start_ms + 600_000]
        assert late == ["gen4"] * 3
        assert {job.attempt for job in q.jobs()} == {1}
        parked = next(e for e in q.events() if e.type == "account.parked")
        assert (parked.data["name"], parked.data["model"]) == ("a", "gen4")
        assert "gen4" in q.accounts["a"].limits["models"]


def test_a_model_at_rest_is_told_and_comes_back_when_it_is_unparked(
    tmp_path: Path, until: Callable[..., Any]
) -> None:
    async def studio(job: Any) -> None:
        raise ProviderError("slow down", "rate", retry_after_s=600)

    with Queue(tmp_path / "q.db") as q:
        q.accounts.add("a", provider="studio", capacity=9, model_capacity={"gen4": 1})
        q.put({"model": "gen4"})
        run = q.start(studio)
        told = "a, model gen4"
        until(lambda: told in run.health.why)
        assert "too many requests (slow down), until" in run.health.why[told]
        assert "gen4: 0 of 1 (parked, until" in str(q.snapshot())
        assert "too many requests" in q.snapshot().to_dict()["accounts"][0]["models"][0]["why_not"]
        q.accounts.unpark("a")
        assert "parked" not in str(q.snapshot())
        run.stop(0)


def test_capacities_of_models_are_changed_and_checked(tmp_path: Path) -> None:
    with Queue(tmp_path / "q.db") as q:
        q.accounts.add("a", provider="p", capacity=3, model_capacity={"gen4": 2})
        q.accounts.set_capacity("a", 5, model="gen3")
        assert q.accounts["a"].limits["model_capacity"] == {"gen4": 2, "gen3": 5}
        assert q.accounts["a"].capacity == 3
        q.accounts.add("a", model_capacity=None)
        assert not q.accounts["a"].is_by_model
        for wrong in ({"gen4": 0}, {"": 2}, {"gen4": "2"}, 3):
            with pytest.raises(UsageError):
                q.accounts.add("a", provider="p", model_capacity=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_over", [True, False])
def test_a_render_that_another_job_has_is_not_attached(studio: Studio, is_over: bool) -> None:
    studio.mock.set(idempotency="none", drop_after={"first": 1, "share": 1})
    with studio.open({"a": 2}) as q:
        put(q, 2)
        q.run()
        first, second = (render.public_id for render in studio.renders())
        q.resolve(1, "attach", value=first)
        if is_over:
            q.run()
        for taken in (first, {"id": first}, {"id": first, "url": "x"}):
            with pytest.raises(UsageError, match=rf"{first} belongs to job 1 \(") as caught:
                q.resolve(2, "attach", value=taken)
            assert caught.value.facts["job"] == 1
        assert q.job(2).status == "in_doubt"
        q.resolve(2, "attach", value=second)
        q.run().check()
        assert spent(q) == studio.billed() == 2 * COST


def test_a_value_that_names_nothing_may_be_attached_to_many(tmp_path: Path) -> None:
    def render(job: Any) -> Any:
        def send() -> None:
            raise TimeoutError("no answer")

        return job.once("submit", send, paid=True)

    with Queue(tmp_path / "q.db") as q:
        q.put_many([{"n": n} for n in range(6)])
        q.run(render)
        for number, value in enumerate(["ok", "ok", {"done": True}, {"done": True}, "task-7"], 1):
            q.resolve(number, "attach", value=value)
        with pytest.raises(UsageError, match="task-7 belongs to job 5 \\(queued\\)"):
            q.resolve(6, "attach", value="task-7")
        with pytest.raises(UsageError, match="task-7 belongs to job 5"):
            q.resolve(6, "attach", value={"id": "task-7"})


# -- money -----------------------------------------------------------------------------------


def test_a_budget_is_never_passed_pauses_says_so_and_goes_on_when_raised(studio: Studio) -> None:
    studio.mock.set(cost_microusd=700_000)
    with studio.open({"a": 8}, price=0.70) as q:
        q.budget = 5.0
        put(q, 12)
        summary = q.run()
        assert studio.billed() == 7 * 700_000
        assert statuses(q) == {"completed": 7, "queued": 5}
        assert "raise it to go on" in summary.why[studio.account()]
        assert "the queue's budget has $0.10 left" in str(summary)
        q.budget = 7.0
        q.run()
        assert studio.billed() == 7_000_000
        q.budget = None
        q.run().check()
        assert spent(q) == studio.billed() == 12 * 700_000


@pytest.mark.parametrize("setting", ["budget", "budget_per_day"])
def test_a_budget_is_not_passed_by_an_account_made_in_passing(tmp_path: Path, setting: str) -> None:
    async def render(job: Any) -> None:
        """Costs what it costs."""

    with Queue(tmp_path / "q.db") as q:
        q.accounts.add("studio", provider="runway", price=0.25)
        q.put({})
        setattr(q, setting, 1.0)
        with pytest.raises(UsageError, match=r"they have 'runway'.*limits, key and price"):
            q.run(render)
        q.accounts.remove("studio")
        with pytest.raises(UsageError, match=r"price=…\)"):
            q.run(render)
        assert list(q.accounts) == []
        assert statuses(q) == {"queued": 1}
        q.accounts.add("render", provider="render")
        assert "does not count what runs on render" in str(q.snapshot())
        q.accounts.add("render", provider="render", price=0)
        assert "does not count" not in str(q.snapshot())
        q.run(render).check()


def test_an_accounts_budget_rests_that_account_alone(studio: Studio) -> None:
    with studio.open({"a": 2, "b": 2}) as q:
        q.accounts.add(
            studio.account("a"),
            provider="mock",
            capacity=2,
            credential="env:KEY_a",
            price=0.25,
            budget=0.5,
        )
        put(q, 8)
        q.run().check()
        assert studio.mock.billed_microusd(studio.account("a")) <= 500_000


def test_costs_agree_with_the_ledger_to_the_cent_whatever_became_of_the_renders(
    studio: Studio,
) -> None:
    studio.mock.set(
        cost_spread=0.5,
        moderated=0.2,
        moderated_billed=True,
        render_failed=0.2,
        drop_after={"share": 0.3, "first": 1},
        no_outputs=0.05,
        billed_on="start",
    )
    with studio.open({"a": 3, "b": 2}) as q:
        put(q, 40)
        q.run(retry=QUICK)
        assert not q.stats()["queued"]
        assert spent(q) == studio.billed()
        for name in (studio.account(s) for s in "ab"):
            mine = sum(r["cost"] or 0 for r in q.cost_records() if r["account"] == name)
            assert round(mine * 1e6) == studio.mock.billed_microusd(name)


def test_a_render_that_goes_on_after_its_try_ended_is_counted_once(studio: Studio) -> None:
    studio.mock.set(render_polls=1000)
    with studio.open() as q:
        put(q, 1, timeout_s=0.3)
        run = q.start(retry=QUICK)
        _until(lambda: len(q.attempts()) >= 2)
        studio.mock.set(render_polls=0)
        run.wait().check()
        run.stop(None)
        assert len(studio.renders()) == 1
        assert spent(q) == studio.billed() == COST
        assert "estimated" not in {row["money"] for row in q.cost_records()}


def test_a_try_that_handed_its_open_render_on_is_not_counted_with_the_next(studio: Studio) -> None:
    studio.mock.set(render_polls=10**6)
    with studio.open() as q:
        put(q, 1)
        run = q.start()
        _until(lambda: q.job(1).is_open)
        run.stop(0)
        assert [r["money"] for r in q.cost_records()] == ["estimated"]
        run = q.start()
        _until(lambda: q.job(1).status == "running")
        assert [r["money"] for r in q.cost_records()] == ["handed on", "estimated"]
        studio.mock.set(render_polls=0)
        run.wait().check()
        assert [r["money"] for r in q.cost_records()] == ["handed on", "billed"]


def test_costs_are_read_at_once_however_many_tries_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def render(job: Any) -> None:
        await job.once("submit", lambda: "ok", paid=True)

    with Queue(tmp_path / "q.db") as q:
        q.accounts.add("a", provider="render", price=0.25, capacity=9)
        q.put_many([{"n": n} for n in range(30)])
        q.run(render).check()
        reads: list[Any] = []
        plain = q._read
        monkeypatch.setattr(q, "_read", lambda function: reads.append(1) or plain(function))
        assert len({r["key"] for r in q.cost_records()}) == 30
        assert len(reads) <= 2


def test_a_moderated_render_that_is_requeued_is_rendered_anew(studio: Studio) -> None:
    studio.mock.set(moderated={"first": 1})
    with studio.open() as q:
        put(q, 1)
        q.run()
        assert statuses(q) == {"failed": 1}
        q.requeue(1)
        q.run().check()
        assert [r.state for r in studio.renders()] == ["FAILED", "SUCCEEDED"]


# -- results ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["replay", "none"])
@pytest.mark.parametrize("is_lost", [True, False])
def test_a_refusal_that_is_billed_is_counted_under_its_key(
    studio: Studio, kind: Any, is_lost: bool
) -> None:
    """Also where its answer was lost and the provider is asked again."""
    studio.mock.set(
        idempotency=kind,
        moderated=True,
        moderated_on="submit",
        moderated_billed=True,
        cost_spread=0.5,
        drop_after={"first": 1} if is_lost else False,
    )
    with studio.open() as q:
        put(q, 1)
        q.run()
        (render,) = studio.renders()
        if q.job(1).status == "in_doubt":
            assert kind == "none"
            q.resolve(1, "attach", value=render.id)
            q.run()
        assert q.job(1).status == "failed"
        assert "not allowed" in str(q.job(1).error) or "content_policy" in str(q.job(1).error)
        assert spent(q) == studio.billed() == render.billed_microusd
        assert {row["key"] for row in q.cost_records()} == {render.key}
        studio.mock.set(moderated=False)
        q.requeue(1)
        q.run().check()
        assert len({r.key for r in studio.renders()}) == 2
        assert spent(q) == studio.billed()


def test_a_download_that_fails_four_times_never_causes_a_second_render(studio: Studio) -> None:
    studio.mock.set(truncate={"first": 4})
    with studio.open() as q:
        put(q, 1)
        q.run().check()
        (render,) = studio.renders()
        assert len(studio.requests("submit")) == 1
        files = [r for r in studio.mock.requests() if r.what == "file" and r.render == render.id]
        assert len(files) == 5
        assert q.outputs(1)[0].read_bytes() == studio.mock.content(render.request)
        assert q.job(1).attempt == 1


def test_a_link_that_expired_overnight_is_fetched_afresh(studio: Studio) -> None:
    studio.mock.set(link_ttl_s=3600)
    with studio.open() as q:
        put(q, 1)
        plain, fetched = studio.adapter.fetch, []

        async def fetch(link: Link, path: Path, **options: Any) -> Any:
            fetched.append(link.url)
            if len(fetched) == 1:
                await asyncio.to_thread(studio.mock.advance, 12 * 3600.0)
            return await plain(link, path, **options)

        studio.adapter.fetch = fetch
        q.run().check()
        assert len(set(fetched)) == 2
        assert len(studio.renders()) == 1


class Finisher:
    """A provider whose renders are done at once and deleted when their request says."""

    name = "finisher"
    capabilities = Capabilities(result_ttl_s=50.0)

    def __init__(self, count: int) -> None:
        self.count, self.polled, self.busy, self.most = count, 0, 0, 0
        self.fetched: list[str] = []

    async def submit(self, request: Any, **_: Any) -> Submitted:
        return Submitted(dict(request), poll_after_s=0.0)

    async def poll(self, handle: Any, *, account: AccountKey) -> Status:
        self.polled += 1
        links = (Link(handle["name"], ".bin"),)
        return Status("succeeded", links=links, expires_at_ms=handle.get("expires_ms"))

    async def fetch(self, link: Link, path: Path, **_: Any) -> Fetched:
        self.fetched.append(link.url)
        self.busy += 1
        self.most = max(self.most, self.busy)
        while self.polled < self.count:  # noqa: ASYNC110 - which poll is the last one counts
            await asyncio.sleep(0.001)
        for _ in range(5):  # whoever was polled last has come to the gate
            await asyncio.sleep(0)
        await asyncio.to_thread(path.write_bytes, b"film")
        self.busy -= 1
        return Fetched(4)


def test_the_result_that_is_deleted_soonest_is_fetched_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vqkit.renders, "FETCHES", 1)
    now_ms = SystemClock().now_ms()
    expires_ms = [now_ms + 90_000, now_ms + 30_000, None, now_ms + 10_000, now_ms + 60_000]
    with Queue(tmp_path / "q.db") as q:
        finisher: Any = q.provider("finisher", Finisher(6))
        q.accounts.add("a", provider="finisher", capacity=9)
        q.put({"name": "last", "expires_ms": now_ms + 120_000})
        q.put_many([{"name": str(n), "expires_ms": at} for n, at in enumerate(expires_ms)])
        q.run().check()
        first, *others = finisher.fetched  # whichever was there before the others
        assert others == [name for name in ("3", "1", "2", "4", "0", "last") if name != first]


def test_a_few_results_are_fetched_at_a_time(tmp_path: Path) -> None:
    with Queue(tmp_path / "q.db") as q:
        finisher: Any = q.provider("finisher", Finisher(12))
        q.accounts.add("a", provider="finisher", capacity=20)
        q.put_many([{"name": str(n), "expires_ms": None} for n in range(12)])
        q.run().check()
        assert finisher.most == vqkit.renders.FETCHES
        stages = [e.data["stage"] for e in q.events(job=12) if e.type == "job.stage_changed"]
        assert stages[-2:] == ["waiting to download", "downloading"]


async def test_a_place_is_not_lost_with_whoever_is_cancelled_as_its_turn_comes() -> None:
    gate, passed = vqkit.renders.Gate(1), []

    async def passing(name: str, expires_ms: float) -> None:
        async with gate.passing(expires_ms):
            passed.append(name)

    async with gate.passing(9):
        waiting = [asyncio.create_task(passing(str(n), n)) for n in range(4)]
        await asyncio.sleep(0)
        waiting[2].cancel()  # while it waits
        await asyncio.sleep(0)
    waiting[0].cancel()  # its turn has come, and it has not run yet
    await asyncio.gather(*waiting, return_exceptions=True)
    assert passed == ["1", "3"]
    assert not gate.is_full


def test_a_part_is_never_taken_for_finished(studio: Studio) -> None:
    with studio.open() as q:
        put(q, 1)
        growing = q._files.kept_part(q.job(1), ".bin", 1)
        growing.with_name(growing.name + ".growing").write_bytes(b"half")
        (growing.parent / f"{q.job(1).id}.1.1.bin").write_bytes(b"of another try")
        q.run().check()
        (path,) = q.outputs(1)
        assert path.read_bytes() == studio.mock.content(studio.renders()[0].request)
        assert not list(growing.parent.iterdir())


def test_hostile_prompts_get_files_of_their_own(studio: Studio) -> None:
    same = "a fox " * 40
    prompts = [same + "one", same + "two", "🦊" * 50, "CON", "a/b:c", "Cat", "cat", ".."]
    with studio.open({"a": 4}) as q:
        q.put_many([{"prompt": prompt} for prompt in prompts])
        q.run().check()
        paths = [q.outputs(n)[0] for n in range(1, len(prompts) + 1)]
        assert len({path.name.casefold() for path in paths}) == len(prompts)
        assert {path.parent for path in paths} == {q.outputs_folder}
        by_prompt = {r.request["prompt"]: r.request for r in studio.renders()}
        for prompt, path in zip(prompts, paths, strict=True):
            assert path.read_bytes() == studio.mock.content(by_prompt[prompt])


# -- cancelling ------------------------------------------------------------------------------


def test_a_job_that_was_not_sent_is_cancelled_and_never_sent(studio: Studio) -> None:
    with studio.open() as q:
        put(q, 1)
        q.cancel(1)
        q.run()
        assert (statuses(q), studio.renders()) == ({"cancelled": 1}, [])


def test_a_render_at_work_is_cancelled_at_the_provider(studio: Studio) -> None:
    studio.mock.set(render_s=600)
    with studio.open() as q:
        put(q, 1)
        run = q.start()
        _until(lambda: q.job(1).is_open)
        q.cancel(1)
        run.wait()
        run.stop(None)
        assert statuses(q) == {"cancelled": 1}
        assert studio.renders()[0].state == "CANCELLED"
        assert not q.job(1).is_open
        assert spent(q) == studio.billed() == 0
        assert [row["money"] for row in q.cost_records()] == ["not billed"]
        assert q.snapshot().accounts[0].spent == 0


def test_an_open_render_of_a_waiting_job_is_cancelled_when_a_pump_is_next_at_work(
    studio: Studio,
) -> None:
    studio.mock.set(render_s=600)
    with studio.open() as q:
        put(q, 1)
        run = q.start()
        _until(lambda: q.job(1).is_open)
        run.stop(0)
        assert (q.job(1).status, q.job(1).is_open) == ("queued", True)
        q.cancel(1)
        assert (q.job(1).status, studio.renders()[0].state) == ("cancelled", "RUNNING")
        q.run()
        assert studio.renders()[0].state == "CANCELLED"
        assert not q.job(1).is_open
        assert spent(q) == studio.billed() == 0


@pytest.mark.parametrize("cancel", ["none", "any"])
def test_a_result_that_was_paid_for_is_kept_though_the_job_was_cancelled(
    studio: Studio, cancel: Any
) -> None:
    studio.mock.set(cancel=cancel, render_polls=1_000_000)
    with studio.open() as q:
        put(q, 1)
        run = q.start()
        _until(lambda: q.job(1).is_open)
        run.stop(0)
        studio.mock.set(render_polls=0)  # it ends while nobody looks
        q.cancel(1)
        _until(lambda: studio.renders()[0].state == "SUCCEEDED")
        q.run()
        assert statuses(q) == {"cancelled": 1}
        (path,) = q.outputs(1)
        assert path.read_bytes() == studio.mock.content(studio.renders()[0].request)
        assert any(event.type == "job.late_result" for event in q.events(job=1))
        assert spent(q) == studio.billed() == COST


def test_a_cancel_that_comes_before_the_request_sends_nothing(studio: Studio) -> None:
    with studio.open() as q:
        put(q, 1)
        handler = q._shared.providers["mock"]
        plain = type(handler).caller_of

        async def caller_of(self: Any, job: Any) -> Any:
            job._channel.cancel()
            q.cancel(1)
            return await plain(self, job)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(handler), "caller_of", caller_of)
            q.run(retry=QUICK)
        assert studio.requests("submit") == []


def test_nothing_of_this_shows_a_key(studio: Studio) -> None:
    with studio.open() as q:
        put(q, 1)
        q.run().check()
        key = str(studio.mock.account(studio.account()).key).encode()
        files = [path for path in q.path.parent.rglob("*") if path.is_file()]
        assert len(files) > 3
        assert not [path for path in files if key in path.read_bytes()]


class KeyInHandle(Finisher):
    """A provider that gives an address to ask at, with the key in it."""

    def __init__(self) -> None:
        super().__init__(0)
        self.asked: list[str] = []

    async def submit(self, request: Any, *, account: AccountKey, **_: Any) -> Submitted:
        return Submitted({"url": f"https://api.example/t/1?key={account.key}"}, poll_after_s=0.0)

    async def poll(self, handle: Any, *, account: AccountKey) -> Status:
        self.asked.append(handle["url"])
        if len(self.asked) == 1:
            raise Snooze(0.0)  # from here on the handle is the one that was kept
        return Status("succeeded", links=(Link("clip", ".bin"),))


def test_a_render_whose_handle_holds_the_key_is_asked_after_by_it_and_never_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_IN_URL", "sk-abcdef-123456")
    with Queue(tmp_path / "q.db") as q:
        provider: Any = q.provider("finisher", KeyInHandle())
        q.accounts.add("a", provider="finisher", credential="env:KEY_IN_URL")
        q.put({"name": "a fox"})
        q.run().check()
        assert provider.asked == ["https://api.example/t/1?key=sk-abcdef-123456"] * 2
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or b"sk-abcdef" not in path.read_bytes()
