"""In a real ipykernel: cells that block, cells that are interrupted, kernels that end.

No browser: messages are sent as a front end sends them, several at once where "Run All"
would send several at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

import vqkit
from vqkit import Queue

pytestmark = pytest.mark.timeout(120)

PATIENCE_S = 30.0
AT_ONCE_S = 0.5
TRIES = 5  # the machine may be busy: one of so many must be that fast


@dataclass
class Cell:
    """A cell that was sent: what it printed, and how it ended."""

    id: str
    text: str = ""
    errors: list[str] = field(default_factory=list)
    status: str = ""
    seconds: float = 0.0
    is_idle: bool = False


class Kernel:
    """A kernel of its own, and its messages sorted by cell."""

    def __init__(self, folder: Path) -> None:
        env = {**os.environ, "PYTHONPATH": str(Path(vqkit.__file__).parent.parent)}
        env["IPYTHONDIR"] = str(folder / "ipython")
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=str(folder), env=env)
        self.client: BlockingKernelClient = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE_S)
        self.cells: dict[str, Cell] = {}
        self.strays: list[str] = []

    def send(self, code: str) -> Cell:
        """Sends a cell, and does not wait for it. stop_on_error as a front end has it."""
        cell = Cell(self.client.execute(code, stop_on_error=True))
        self.cells[cell.id] = cell
        return cell

    def finish(self, *cells: Cell) -> None:
        """Waits until these cells have ended."""
        begun_s = time.monotonic()
        while not all(cell.status and cell.is_idle for cell in cells):
            assert time.monotonic() - begun_s < PATIENCE_S, [(c.status, c.text) for c in cells]
            self.listen(0.05)
        for cell in cells:
            cell.seconds = time.monotonic() - begun_s

    def listen(self, timeout_s: float) -> None:
        """Sorts what has come in."""
        try:
            message = self.client.get_iopub_msg(timeout=timeout_s)
        except Empty:
            pass
        else:
            self._sort(message)
        while True:
            try:
                reply = self.client.get_shell_msg(timeout=0)
            except Empty:
                return
            if cell := self.cells.get(reply["parent_header"].get("msg_id", "")):
                cell.status = reply["content"]["status"]

    def _sort(self, message: dict[str, Any]) -> None:
        cell = self.cells.get(message["parent_header"].get("msg_id", ""))
        kind, content = message["msg_type"], message["content"]
        if cell is None:
            if kind in ("stream", "error", "display_data"):
                self.strays.append(str(content))
        elif kind == "stream":
            cell.text += content["text"]
        elif kind == "execute_result":
            cell.text += content["data"]["text/plain"] + "\n"
        elif kind == "error":
            cell.errors.append(f"{content['ename']}: {content['evalue']}")
        elif kind == "status" and content["execution_state"] == "idle":
            cell.is_idle = True

    def run(self, code: str) -> Cell:
        cell = self.send(code)
        self.finish(cell)
        return cell

    def ok(self, code: str) -> str:
        """What the cell printed; its error fails the test."""
        cell = self.run(code)
        assert cell.status == "ok", cell.errors
        return cell.text

    def until_printed(self, cell: Cell, text: str) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while text not in cell.text:
            assert time.monotonic() < end_s, cell
            self.listen(0.05)

    def close(self) -> None:
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


BEGIN = """
import asyncio, sys, threading, time
from pathlib import Path
from vqkit import Queue
gate = Path("gate-1")
q = Queue("q.db")

async def render(job):
    job.stage("rendering")
    while not gate.exists():
        await asyncio.sleep(0.01)
    return job.payload.get("n")

def paint(job):
    while not gate.exists():
        time.sleep(0.01)
    return job.payload.get("n")
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    folder = tmp_path_factory.mktemp("kernel")
    kernel = Kernel(folder)
    kernel.folder = folder  # type: ignore[attr-defined]
    kernel.ok(BEGIN)
    yield kernel
    kernel.close()


@pytest.fixture(autouse=True)
def _leave_the_kernel_free(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that failed must not fail the others: its cells are interrupted."""
    yield
    if "kernel" in request.fixturenames:
        kernel: Kernel = request.getfixturevalue("kernel")
        left = [cell for cell in kernel.cells.values() if not cell.is_idle]
        if left:
            kernel.manager.interrupt_kernel()
            kernel.finish(*left)
        kernel.ok("gate.touch(); q._shared.run and q._shared.run.stop(); 0")


def interrupted(kernel: Kernel, code: str, when: Callable[[Queue], Any]) -> tuple[Cell, float]:
    """The cell, interrupted once it has begun and `when` holds, and how long it took to end."""
    cell = kernel.send(f"print('begun'); {code}")
    kernel.until_printed(cell, "begun")
    watch_until(kernel, when)
    begun_s = time.monotonic()
    kernel.manager.interrupt_kernel()
    kernel.finish(cell)
    return cell, time.monotonic() - begun_s


def following(kernel: Kernel) -> int:
    return int(kernel.ok("print(q._shared.run.following if q._shared.run else 0)"))


# -- cells --------------------------------------------------------------------------------


def test_a_blocking_cell_runs_the_queue_and_patches_nothing(kernel: Kernel) -> None:
    kernel.ok("gate.touch(); q.put_many([{'n': n} for n in range(20)])")
    assert "20 of 20 completed" in kernel.ok("q.run(render)")
    assert kernel.ok("print(hasattr(asyncio, '_nest_patched'))") == "False\n"
    assert kernel.ok("print([t.name for t in threading.enumerate() if 'pump' in t.name])") == "[]\n"
    assert kernel.ok("q.check()").startswith("<Summary: 20 of 20 completed")


def test_a_run_is_awaited_in_a_cell(kernel: Kernel) -> None:
    text = kernel.ok(
        "gate.touch(); q.put({'n': 'awaited'}); summary = await q.start(paint)\nsummary"
    )
    assert "21 of 21 completed" in text


@pytest.mark.parametrize("handler", ["render", "paint"])
def test_an_interrupted_run_returns_at_once_and_what_runs_is_followed(
    kernel: Kernel, handler: str
) -> None:
    kernel.ok(f"gate = Path('gate-run-{handler}'); q._shared.run and q._shared.run.stop()")
    kernel.ok(f"q.put_many([{{'i': i}} for i in range(9)], provider='{handler}')")
    code = f"q.run({handler}, concurrency=2)"
    cell, took_s = interrupted(kernel, code, lambda q: len(q.jobs(status="running")) == 2)
    (error,) = cell.errors
    assert error == (
        "KeyboardInterrupt: no new work is handed out; 2 at work are followed to their end."
        " q.run() goes on where it stopped."
    )
    assert following(kernel) == 2
    for _ in range(TRIES):
        took_s = min(took_s, interrupted(kernel, code, lambda q: True)[1])
    assert took_s < AT_ONCE_S
    kernel.ok("gate.touch()")
    watch_until(kernel, lambda q: not q.jobs(status="running"))
    assert kernel.ok("print(q.stats()['queued'])") == "7\n"  # no new work was handed out
    assert "completed" in kernel.ok(f"q.run({handler}).check()")


def test_an_interrupted_await_leaves_the_batch_at_work(kernel: Kernel) -> None:
    kernel.ok("gate = Path('gate-await')")
    kernel.ok("q.put_many([{'n': 'await', 'i': i} for i in range(9)], provider='render')")
    code = "await q.start(render)"
    cell, took_s = interrupted(kernel, code, lambda q: len(q.jobs(status="running")) == 2)
    assert cell.errors
    assert cell.errors[0].startswith(("CancelledError", "KeyboardInterrupt"))
    assert following(kernel) == 2
    for _ in range(TRIES):
        took_s = min(took_s, interrupted(kernel, code, lambda q: True)[1])
    assert took_s < AT_ONCE_S
    kernel.ok("gate.touch()")
    watch_until(kernel, lambda q: not q.stats()["queued"] and not q.stats()["running"])
    assert kernel.ok("print(q.stats()['failed'], q._shared.run.is_running)") == "0 True\n"


def test_a_cell_that_computes_does_not_stop_the_pump(kernel: Kernel) -> None:
    """It slows it: each statement of the database waits 5 ms for the interpreter's lock."""
    kernel.ok("gate.touch()")
    cell = kernel.send(
        "run = q.start(render)\n"
        "q.put_many([{'n': 'busy', 'i': i} for i in range(8)], provider='render', batch='busy')\n"
        "end_s = time.monotonic() + 60\n"
        "while not Path('all-done').exists() and time.monotonic() < end_s:\n"
        "    sum(i * i for i in range(1000))\n"
        "print(Path('all-done').exists())"
    )
    watch_until(kernel, lambda q: len(q.jobs(status="completed", batch="busy")) == 8)
    assert not cell.status  # it is still computing
    Path(kernel.folder, "all-done").touch()  # type: ignore[attr-defined]
    kernel.finish(cell)
    assert cell.text == "True\n"


def test_nothing_is_printed_from_the_background(kernel: Kernel) -> None:
    """Not even where a handler fails, the pump dies, or the disk is in trouble."""
    kernel.ok("gate.touch(); q._shared.run.stop()")
    text = kernel.ok(
        "import vqkit.pump as p\n"
        "def fails(job): raise ValueError('loud')\n"
        "def broken(*_): raise ZeroDivisionError('loud')\n"
        "q.put({'n': 'fails'}, max_attempts=1, provider='fails')\n"
        "run = q.start(fails)\n"
        "run.wait(20); run.stop()\n"
        "kept, p.policy.decide = p.policy.decide, broken\n"
        "q.put({'n': 'breaks'}, provider='fails')\n"
        "run = q.start(fails)\n"
        "while run.is_running: time.sleep(0.01)\n"
        "p.policy.decide = kept\n"
    )
    assert text == ""
    failed = kernel.run("q.check()")
    assert failed.errors
    assert failed.errors[0].startswith("PumpError: the pump has stopped: ZeroDivisionError: loud")
    kernel.ok("q.start(fails).wait(20); q.cancel(status=('queued', 'running')); 0")
    kernel.ok("q._shared.run.stop(); q.prune(older_than=0)")
    assert kernel.strays == []
    for cell in kernel.cells.values():
        assert "vqkit." not in cell.text
        assert "Traceback" not in cell.text
        assert "Task exception" not in cell.text


# -- nested loops -------------------------------------------------------------------------


def test_nested_loops_are_an_option_that_loses_no_queued_cell(kernel: Kernel) -> None:
    """Last in this kernel: what it patches stays patched."""
    kernel.ok("gate.touch()")
    cells = [
        kernel.send(
            "q.put_many([{'n': 'nested', 'i': i} for i in range(5)], provider='render')\n"
            "print('one')"
        ),
        kernel.send("q.run(render); print('two')"),
        kernel.send("print('three')"),
        kernel.send("print('four')"),
    ]
    kernel.finish(*cells)
    assert [cell.text for cell in cells] == ["one\n", "two\n", "three\n", "four\n"]
    refused = kernel.run("asyncio.run(asyncio.sleep(0))")
    assert "RuntimeError" in refused.errors[0]
    assert kernel.ok("import vqkit; vqkit.allow_nested()") == "'nest-asyncio2'\n"
    cells = [
        kernel.send(
            "q.put({'n': 'after'}, provider='render')\n"
            "asyncio.run(asyncio.sleep(0.2)); print('one')"
        ),
        kernel.send("q.run(render); print('two')"),
        kernel.send(
            "async def wait(): return await q.start(render)\nprint(asyncio.run(wait()).is_complete)"
        ),
        kernel.send("print('four')"),
    ]
    kernel.finish(*cells)
    assert [cell.text for cell in cells] == ["one\n", "two\n", "True\n", "four\n"]
    assert kernel.ok("vqkit.allow_nested()") == "'nest-asyncio2'\n"


# -- the end ------------------------------------------------------------------------------


def test_a_kernel_that_is_shut_down_gives_its_jobs_back(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    try:
        kernel.ok(BEGIN + "\nq.put_many([{'n': n} for n in range(4)])")
        kernel.ok("run = q.start(render, concurrency=2)")
        with Queue(tmp_path / "q.db") as q:
            wait_until(lambda: len(q.jobs(status="running")) == 2)
            kernel.client.shutdown(restart=True)
            begun_s = time.monotonic()
            kernel.manager.finish_shutdown(waittime=10)
            assert time.monotonic() - begun_s < 5.0
            assert [(j.status, j.attempt, j.crashes) for j in q.jobs()] == [("queued", 0, 0)] * 4
            assert q.events(job=1)[-1].type == "job.released"
            assert q.snapshot().runners == ()
    finally:
        kernel.close()


def watch_until(kernel: Kernel, condition: Callable[[Queue], Any]) -> None:
    """Looks at the kernel's queue from this process, while its cell is busy."""
    with Queue(kernel.folder / "q.db") as q:  # type: ignore[attr-defined]
        wait_until(lambda: condition(q))


def wait_until(condition: Callable[[], Any]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.02)
