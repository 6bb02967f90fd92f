"""Every executor keeps the contract; and what only one of them can promise."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from executor_contract import (
    RAISERS,
    ExecutorContract,
    Handler,
    HoldsLock,
    TwoArguments,
    _raiser,
    a_job,
    as_async,
    many_notes,
    return_payload,
)

import vqkit
from vqkit.attempt import ActiveJob
from vqkit.errors import GiveUp, JobCancelled
from vqkit.executors.base import Executor, HandlerRaised, WorkerDied
from vqkit.executors.local import AsyncExecutor, ThreadExecutor
from vqkit.executors.process import ProcessExecutor
from vqkit.job import Job

PATIENCE_S = 20.0


@pytest.fixture(scope="class")
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    executor = request.cls().make()
    yield executor
    executor.close()


class TestAsyncExecutor(ExecutorContract):
    def make(self) -> Executor:
        return AsyncExecutor()

    def adapt(self, handler: Handler) -> Handler:
        return as_async(handler)

    async def test_cancelling_ends_the_coroutine(self, executor: Executor, tmp_path: Path) -> None:
        began, cleaned = asyncio.Event(), asyncio.Event()

        async def handler(job: ActiveJob) -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                cleaned.set()

        work, _ = self.work(tmp_path, lambda job: None)
        task = asyncio.create_task(executor.run(_with(work, handler)))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cleaned.is_set()
        assert executor.can_stop

    async def test_the_cancel_flag_reaches_the_handler(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        work, _ = self.work(tmp_path, lambda job: job.check_cancelled())
        assert (await executor.run(work)).value is None
        work.notes.cancel()
        assert isinstance(await self.ended(executor, work), JobCancelled)

    @pytest.mark.parametrize("name", ["system_exit", "keyboard_interrupt"])
    async def test_what_would_end_the_loop_is_carried_past_it(
        self, executor: Executor, tmp_path: Path, name: str
    ) -> None:
        handler, kind = RAISERS[name]
        work, _ = self.work(tmp_path, handler)
        with pytest.raises(HandlerRaised) as raised:
            await executor.run(work)
        assert type(raised.value.error).__name__ == kind


class TestThreadExecutor(ExecutorContract):
    def make(self) -> Executor:
        return ThreadExecutor()

    async def test_the_cancel_flag_reaches_the_handler(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        began = threading.Event()

        def handler(job: ActiveJob) -> None:
            began.set()
            while True:
                job.check_cancelled()

        work, _ = self.work(tmp_path, handler)
        task = asyncio.create_task(self.ended(executor, work))
        await _settled(began.is_set)
        work.notes.cancel()
        assert isinstance(await asyncio.wait_for(task, PATIENCE_S), JobCancelled)

    async def test_cancelling_the_wait_leaves_the_thread_at_work(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        began, go_on, ended = threading.Event(), threading.Event(), threading.Event()

        def handler(job: ActiveJob) -> None:
            began.set()
            go_on.wait(PATIENCE_S)
            ended.set()

        work, _ = self.work(tmp_path, handler)
        task = asyncio.create_task(executor.run(work))
        await _settled(began.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not executor.can_stop
        go_on.set()
        await _settled(ended.is_set)

    async def test_threads_are_daemons_so_that_a_kernel_can_exit(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        work, _ = self.work(tmp_path, lambda job: threading.current_thread().daemon)
        assert (await executor.run(work)).value is True

    async def test_a_coroutine_from_a_plain_function_is_refused(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        work, _ = self.work(tmp_path, as_async(return_payload))
        ended = await self.ended(executor, work)
        assert isinstance(ended, GiveUp)
        assert "async def" in str(ended)


class TestProcessExecutor(ExecutorContract):
    sees_environment = False  # a worker has the environment of the moment it started

    def make(self) -> Executor:
        return ProcessExecutor()

    async def value(self, executor: Executor, folder: Path, handler: Handler) -> Any:
        return (await executor.run(self.work(folder, handler)[0])).value

    async def test_a_worker_has_a_session_of_its_own(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        pid, session = await self.value(executor, tmp_path, lambda job: [os.getpid(), os.getsid(0)])
        assert pid not in (os.getpid(), os.getsid(0))
        assert session == pid

    async def test_an_interrupt_does_not_reach_it(self, executor: Executor, tmp_path: Path) -> None:
        def handler(job: ActiveJob) -> str:
            os.kill(os.getpid(), signal.SIGINT)
            return "went on"

        assert await self.value(executor, tmp_path, handler) == "went on"

    async def test_a_worker_is_kept_for_the_next_job(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        first = await self.value(executor, tmp_path, lambda job: os.getpid())
        assert await self.value(executor, tmp_path, lambda job: os.getpid()) == first
        await self.ended(executor, self.work(tmp_path, _raiser(lambda: ValueError("x")))[0])
        assert await self.value(executor, tmp_path, lambda job: os.getpid()) == first

    async def test_a_killed_worker_is_a_crash_and_the_next_job_gets_another(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        work, _ = self.work(tmp_path, lambda job: os.kill(os.getpid(), signal.SIGKILL))
        with pytest.raises(WorkerDied, match="ended in the middle"):
            await executor.run(work)
        work, _ = self.work(tmp_path, lambda job: os._exit(0))
        with pytest.raises(WorkerDied):
            await executor.run(work)
        assert await self.value(executor, tmp_path, lambda job: 1) == 1

    async def test_a_worker_that_died_idle_costs_the_next_job_nothing(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        pid = await self.value(executor, tmp_path, lambda job: os.getpid())
        os.kill(pid, signal.SIGKILL)
        await _settled(lambda: not executor._idle[-1].is_alive())
        assert await self.value(executor, tmp_path, lambda job: os.getpid()) != pid

    async def test_cancelling_ends_the_process_and_its_children(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        note = tmp_path / "pids"

        def handler(job: ActiveJob) -> None:
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            note.with_suffix(".tmp").write_text(f"{os.getpid()} {child.pid}")
            note.with_suffix(".tmp").rename(note)
            threading.Event().wait()

        task = asyncio.create_task(executor.run(self.work(tmp_path, handler)[0]))
        pids = [int(pid) for pid in (await _written(note)).split()]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for pid in pids:
            await _gone(pid)

    async def test_cancelled_while_its_worker_starts_leaves_no_worker_astray(
        self, tmp_path: Path
    ) -> None:
        before = await asyncio.to_thread(_workers)
        executor = ProcessExecutor()
        task = asyncio.create_task(executor.run(self.work(tmp_path, return_payload)[0]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        pid = await self.value(executor, tmp_path, lambda job: os.getpid())
        assert pid in await asyncio.to_thread(_workers)
        await _settled(lambda: len(_workers() - before) == 2)
        executor.close()
        await _settled(lambda: not _workers() - before)

    async def test_close_ends_a_worker_in_the_middle_of_its_job(self, tmp_path: Path) -> None:
        executor = ProcessExecutor()
        note = tmp_path / "pid"

        def handler(job: ActiveJob) -> None:
            note.with_suffix(".tmp").write_text(str(os.getpid()))
            note.with_suffix(".tmp").rename(note)
            threading.Event().wait()

        task = asyncio.create_task(self.ended(executor, self.work(tmp_path, handler)[0]))
        pid = int(await _written(note))
        executor.close()
        assert isinstance(await asyncio.wait_for(task, PATIENCE_S), WorkerDied)
        await _gone(pid)

    @pytest.mark.parametrize("handler", [_raiser(HoldsLock), _raiser(lambda: TwoArguments(4, "x"))])
    async def test_an_error_that_cannot_travel_sends_one_of_its_name_and_message(
        self, executor: Executor, tmp_path: Path, handler: Handler
    ) -> None:
        ended = await self.ended(executor, self.work(tmp_path, handler)[0])
        assert type(ended).__name__ in ("HoldsLock", "TwoArguments")
        assert str(ended) in ("cannot be pickled", "4: x")

    async def test_the_end_waits_for_the_last_notes(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        work, told = self.work(tmp_path, many_notes)
        deliver = work.notes._deliver

        def slowly(job: Job, verb: str, change: dict[str, Any]) -> None:
            threading.Event().wait(0.002)
            deliver(job, verb, change)

        work.notes._deliver = slowly
        await executor.run(work)
        assert len(told) == 300

    async def test_the_last_notes_of_a_job_never_reach_the_next(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        first, told_first = self.work(tmp_path, many_notes, a_job(1))
        second, told_second = self.work(tmp_path, return_payload, a_job(2))
        await executor.run(first)
        await executor.run(second)
        assert len(told_first) == 300
        assert told_second == []


MAIN = """
import asyncio, os, sys
from pathlib import Path
from vqkit.attempt import ActiveJob
from vqkit.executors.base import Notes, Work
from vqkit.executors.process import ProcessExecutor
from vqkit.job import Job
from vqkit.outputs import OutputFolder

FACTOR = 3

class Mine:
    def __init__(self, n): self.n = n * FACTOR

def handler(job):
    job.log(str(os.getpid()))
    if job.payload["n"] < 0:
        Path("pid").write_text(str(os.getpid()))
        import time
        time.sleep(600)
    return Mine(job.payload["n"]).n

async def main():
    executor = ProcessExecutor()
    folder = OutputFolder(Path("out"), Path("finished"))
    for n in (2, -1):
        job = Job(1, "id1", f'{{"n": {n}}}', status="running", fence=1, account="a")
        done = await executor.run(Work(handler, job, folder, Notes(job, lambda *note: None)))
        print(done.value, flush=True)

asyncio.run(main())
"""


def test_a_function_of_main_runs_in_a_worker_which_dies_with_its_parent(
    tmp_path: Path, until: Callable[..., Any]
) -> None:
    """As in a notebook: the handler, its class and its constant live in __main__ only."""
    (tmp_path / "cell.py").write_text(MAIN)
    env = {**os.environ, "PYTHONPATH": str(Path(vqkit.__file__).parent.parent)}
    parent = subprocess.Popen(
        [sys.executable, "cell.py"], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "6\n"
        note = tmp_path / "pid"
        worker = int(until(lambda: note.exists() and note.read_text()))
        assert _is_there(worker)
    finally:
        parent.kill()
        parent.communicate()
    until(lambda: not _is_there(worker))


# -- helpers --------------------------------------------------------------------------------


def _with(work: Any, handler: Handler) -> Any:
    return work._replace(handler=handler)


def _is_there(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def _workers() -> set[int]:
    """Living worker processes of this one."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"loky" in (folder / "cmdline").read_bytes():
                found.add(int(folder.name))
    return {pid for pid in found if _is_there(pid)}


async def _settled(condition: Callable[[], Any]) -> Any:
    """Waits for what threads and processes do, which no Event of this loop tells."""
    async with asyncio.timeout(PATIENCE_S):
        while not (found := await asyncio.to_thread(condition)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return found


async def _gone(pid: int) -> None:
    await _settled(lambda: not _is_there(pid))


async def _written(path: Path) -> str:
    def read() -> str:
        with contextlib.suppress(FileNotFoundError):
            return path.read_text()
        return ""

    return str(await _settled(read))
