"""What every executor must do, as one suite; and handlers that try its patience.

Everything here is importable by name, so that worker processes find it; nothing heavy is
imported, so that they start fast.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vqkit.attempt import ActiveJob
from vqkit.errors import GiveUp, Snooze
from vqkit.executors.base import Executor, HandlerRaised, Notes, Returned, Work
from vqkit.job import Job
from vqkit.outputs import OutputFolder

Handler = Callable[[ActiveJob], Any]


# -- handlers that raise what nobody should -----------------------------------------------


class OddBase(BaseException):
    """Not an Exception, like what some test and web frameworks raise to be left alone."""


class BrokenStr(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class TwoArguments(Exception):
    """Pickles, but does not come back: its __init__ wants more than its args hold."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


class HoldsLock(Exception):
    def __init__(self) -> None:
        super().__init__("cannot be pickled")
        self.lock = threading.Lock()


class BareGiveUp(GiveUp):
    def __init__(self, *, code: int) -> None:  # never calls GiveUp.__init__
        self.code = code


class MyGiveUp(GiveUp):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


class MySnooze(Snooze):
    def __init__(self, name: str, why: str) -> None:
        super().__init__(90.0, f"{name}: {why}")


def _raiser(make: Callable[[], BaseException]) -> Handler:
    def handler(job: ActiveJob) -> Any:
        raise make()

    return handler


def _deep(job: ActiveJob) -> Any:
    return _deep(job)


def _chained(job: ActiveJob) -> Any:
    try:
        raise KeyError("the cause")
    except KeyError as error:
        raise ValueError("the effect") from error


# name -> (handler, the error's type as it is kept). Each raises once and for all.
RAISERS: dict[str, tuple[Handler, str]] = {
    "value_error": (_raiser(lambda: ValueError("plain")), "ValueError"),
    "system_exit": (_raiser(lambda: SystemExit(3)), "SystemExit"),
    "keyboard_interrupt": (_raiser(KeyboardInterrupt), "KeyboardInterrupt"),
    "cancelled": (_raiser(asyncio.CancelledError), "CancelledError"),
    "generator_exit": (_raiser(GeneratorExit), "GeneratorExit"),
    "odd_base": (_raiser(lambda: OddBase("odd")), "OddBase"),
    "timeout": (_raiser(lambda: TimeoutError("mine, not the job's")), "TimeoutError"),
    "broken_str": (_raiser(BrokenStr), "BrokenStr"),
    "two_arguments": (_raiser(lambda: TwoArguments(4, "four")), "TwoArguments"),
    "holds_lock": (_raiser(HoldsLock), "HoldsLock"),
    "odd_syntax": (_raiser(lambda: SyntaxError("bad", ("f", "x", (), 3))), "SyntaxError"),
    "surrogate": (_raiser(lambda: ValueError("half \ud800")), "ValueError"),
    "huge_message": (_raiser(lambda: ValueError("x" * 3_000_000)), "ValueError"),
    "give_up_error": (_raiser(lambda: GiveUp(ValueError("an object"))), "GiveUp"),  # type: ignore[arg-type]
    "give_up_surrogate": (_raiser(lambda: GiveUp("half \ud800")), "GiveUp"),
    "bare_give_up": (_raiser(lambda: BareGiveUp(code=7)), "BareGiveUp"),
    "my_give_up": (_raiser(lambda: MyGiveUp(7, "seven")), "MyGiveUp"),
    "recursion": (_deep, "RecursionError"),
    "chained": (_chained, "ValueError"),
}


def stops_iteration(job: ActiveJob) -> Any:
    """In a coroutine Python itself turns it into a RuntimeError."""
    raise StopIteration("over")


def dies(job: ActiveJob) -> Any:
    os._exit(3)


def misbehave(job: ActiveJob) -> Any:
    """As the payload's `n` says."""
    odd = {"stops": stops_iteration, "dies": dies}
    name = job.payload["n"]
    return odd[name](job) if name in odd else RAISERS[name][0](job)


# -- handlers that return what nobody expects ---------------------------------------------


class BrokenRepr:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


class SurrogateRepr:
    def __repr__(self) -> str:
        return "half \ud800"


def _own_list(job: ActiveJob) -> Any:
    own: list[Any] = []
    own.append(own)
    return own


def _own_file(job: ActiveJob) -> Any:
    path = Path(job.payload["folder"]) / "mine.txt"
    path.write_text("a file of my own")
    return {"file": path}


def _undecodable_file(job: ActiveJob) -> Any:
    path = Path(job.payload["folder"]) / "\udcff.mp4"
    path.write_text("a name that is no text")
    return path


def _part_path(job: ActiveJob) -> Any:
    with job.output(".txt") as path:
        path.write_text("made")
        return path


def _part_text(job: ActiveJob) -> Any:
    with job.output(".txt") as path:
        path.write_text("made")
    return [str(path), "other"]


RETURNERS: dict[str, Handler] = {
    "nothing": lambda job: None,
    "nan": lambda job: math.nan,
    "bytes": lambda job: b"\xff\x00",
    "set": lambda job: {1, 2},
    "big_integer": lambda job: 2**70,
    "half_character": lambda job: "half \ud800",
    "odd_keys": lambda job: {1: "one"},
    "huge": lambda job: "x" * 3_000_000,
    "broken_repr": lambda job: BrokenRepr(),
    "surrogate_repr": lambda job: SurrogateRepr(),
    "generator": lambda job: (n for n in range(3)),
    "own_list": _own_list,
    "own_file": _own_file,
    "undecodable_file": _undecodable_file,
    "part_path": _part_path,
    "part_text": _part_text,
}


def surprise(job: ActiveJob) -> Any:
    """Returns what the payload's `n` says."""
    return RETURNERS[job.payload["n"]](job)


def as_async(handler: Handler) -> Handler:
    async def coroutine(job: ActiveJob) -> Any:
        return handler(job)

    return coroutine


# -- the contract -------------------------------------------------------------------------


def return_payload(job: ActiveJob) -> Any:
    return {"payload": job.payload, "attempt": job.attempt, "account": job.account}


def raise_from_a_helper(job: ActiveJob) -> Any:
    return _helper(job.payload["say"])


def _helper(say: str) -> Any:
    raise LookupError(say)


def many_notes(job: ActiveJob) -> int:
    for n in range(150):
        job.stage(f"stage {n}", n / 150)
        job.log(f"line {n}")
    return 150


def two_outputs(job: ActiveJob) -> Any:
    with job.output(".txt") as first:
        first.write_text("one")
    with job.output(".tar.gz") as second:
        second.write_text("two")
    return {"first": first, "second": str(second)}


def forgets_to_write(job: ActiveJob) -> Any:
    with job.output(".mp4"):
        pass


def gives_up(job: ActiveJob) -> Any:
    raise GiveUp("no more")


def snoozes(job: ActiveJob) -> Any:
    raise Snooze(90, "busy there")


def reads_its_key(job: ActiveJob) -> int:
    return len(job.credential())


def a_job(number: int = 1, fence: int = 1, **payload: Any) -> Job:
    from vqkit import codec

    return Job(
        number,
        f"job{number}",
        codec.dumps(payload or {"prompt": "a fox"}),
        status="running",
        attempt=1,
        fence=fence,
        account="studio",
    )


class ExecutorContract:
    """Subclass it with a `make` and, where handlers are coroutines, an `adapt`."""

    def make(self) -> Executor:
        raise NotImplementedError

    def adapt(self, handler: Handler) -> Handler:
        """The plain function as this executor takes it."""
        return handler

    def work(
        self, folder: Path, handler: Handler, job: Job | None = None, **settings: Any
    ) -> tuple[Work, list[tuple[str, dict[str, Any]]]]:
        told: list[tuple[str, dict[str, Any]]] = []
        job = job or a_job()
        notes = Notes(job, lambda job, verb, change: told.append((verb, change)))
        place = OutputFolder(folder / "out", folder / "finished")
        return Work(self.adapt(handler), job, place, notes, **settings), told

    async def ended(self, executor: Executor, work: Work) -> Returned | BaseException:
        """What came of it: a value, or the error the handler raised."""
        try:
            return await executor.run(work)
        except HandlerRaised as raised:
            return raised.error
        except BaseException as error:  # noqa: BLE001 - whatever the handler raised
            return error

    # -- what holds for all ----------------------------------------------------------------

    async def test_what_a_handler_returns_comes_back(self, executor: Executor, tmp_path: Path):
        work, _ = self.work(tmp_path, return_payload, a_job(prompt="ein Fuchs 🦊"))
        returned = await executor.run(work)
        payload = {"prompt": "ein Fuchs 🦊"}
        assert returned.value == {"payload": payload, "attempt": 1, "account": "studio"}
        assert returned.made == []
        assert returned.warning is None

    async def test_a_huge_result_becomes_a_file(self, executor: Executor, tmp_path: Path):
        returned = await executor.run(self.work(tmp_path, RETURNERS["huge"])[0])
        assert returned.value == {"file": returned.made[0].name}
        assert "kept as a file" in (returned.warning or "")
        text = await asyncio.to_thread(Path(returned.made[0].path).read_text)
        assert len(text) == 3_000_002

    async def test_what_a_handler_raises_is_raised(self, executor: Executor, tmp_path: Path):
        work, _ = self.work(tmp_path, raise_from_a_helper, a_job(say="nowhere"))
        ended = await self.ended(executor, work)
        assert isinstance(ended, LookupError)
        assert ended.args == ("nowhere",)

    async def test_the_frames_of_an_error_lead_to_the_users_line(
        self, executor: Executor, tmp_path: Path
    ):
        from vqkit.attempt import frames_of

        work, _ = self.work(tmp_path, raise_from_a_helper, a_job(say="nowhere"))
        try:
            await executor.run(work)
        except HandlerRaised as raised:
            frames = raised.frames
        except LookupError as error:
            frames = frames_of(error)
        assert [name for *_, name in frames][-2:] == ["raise_from_a_helper", "_helper"]
        assert Path(frames[-1][0]).name == "executor_contract.py"
        assert not any("/vqkit/" in file for file, *_ in frames[:1])

    async def test_notes_come_in_order_and_before_the_end(self, executor: Executor, tmp_path: Path):
        work, told = self.work(tmp_path, many_notes)
        returned = await executor.run(work)
        assert returned.value == 150
        assert [change["message"] for verb, change in told if verb == "log"] == [
            f"line {n}" for n in range(150)
        ]
        assert [change["stage"] for verb, change in told if verb == "stage"] == [
            f"stage {n}" for n in range(150)
        ]
        assert [verb for verb, _ in told] == ["stage", "log"] * 150

    async def test_files_a_handler_makes_are_told(self, executor: Executor, tmp_path: Path):
        work, _ = self.work(tmp_path, two_outputs)
        returned = await executor.run(work)
        first, second = returned.made
        assert await asyncio.to_thread(Path(first.path).read_text) == "one"
        assert await asyncio.to_thread(Path(second.path).read_text) == "two"
        assert returned.value == {"first": first.name, "second": second.name}
        assert str(first.name).endswith(".txt")
        assert str(second.name).endswith("-2.tar.gz")

    async def test_an_output_nobody_wrote_is_an_error(self, executor: Executor, tmp_path: Path):
        work, _ = self.work(tmp_path, forgets_to_write)
        ended = await self.ended(executor, work)
        assert "nothing was written" in str(ended)

    async def test_give_up_and_snooze_travel_whole(self, executor: Executor, tmp_path: Path):
        ended = await self.ended(executor, self.work(tmp_path, gives_up)[0])
        assert isinstance(ended, GiveUp)
        assert ended.reason == "no more"
        ended = await self.ended(executor, self.work(tmp_path, snoozes)[0])
        assert isinstance(ended, Snooze)
        assert (ended.delay_s, ended.reason) == (90.0, "busy there")

    async def test_signals_of_the_users_own_classes_keep_their_meaning(
        self, executor: Executor, tmp_path: Path
    ):
        work, _ = self.work(tmp_path, _raiser(lambda: MyGiveUp(7, "seven")))
        ended = await self.ended(executor, work)
        assert isinstance(ended, GiveUp)
        assert ended.reason == "7: seven"
        work, _ = self.work(tmp_path, _raiser(lambda: MySnooze("studio", "full")))
        ended = await self.ended(executor, work)
        assert isinstance(ended, Snooze)
        assert (ended.delay_s, ended.reason) == (90.0, "studio: full")

    async def test_a_handler_gets_its_accounts_key(
        self, executor: Executor, tmp_path: Path, monkeypatch: Any
    ):
        monkeypatch.setattr("vqkit.secrets._known", type(_known())())
        monkeypatch.setenv("VQKIT_TEST_KEY", "sk-1234567890")
        work, _ = self.work(tmp_path, reads_its_key, credential="env:VQKIT_TEST_KEY")
        if self.sees_environment:
            assert (await executor.run(work)).value == 13

    sees_environment = True

    async def test_many_run_side_by_side(self, executor: Executor, tmp_path: Path):
        works = [self.work(tmp_path, return_payload, a_job(n, n=n))[0] for n in range(1, 4)]
        returned = await asyncio.gather(*(executor.run(work) for work in works))
        assert [r.value["payload"]["n"] for r in returned] == [1, 2, 3]

    async def test_a_local_closure_is_a_handler_too(self, executor: Executor, tmp_path: Path):
        factor = 3

        def handler(job: ActiveJob) -> int:
            return factor * job.payload["n"]

        work, _ = self.work(tmp_path, handler, a_job(n=4))
        assert (await executor.run(work)).value == 12


def _known() -> Any:
    from vqkit import secrets

    return secrets._known
