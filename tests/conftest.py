"""What tests share: coroutine tests on a strict loop, and waiting without sleeping blindly."""

from __future__ import annotations

import asyncio
import gc
import inspect
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from blockbuster import blockbuster_ctx

PATIENCE_S = 20.0
HANDLERS_WITH_FILES = {"two_outputs", "_own_file", "_undecodable_file", "_part_path", "_part_text"}


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs ``async def`` tests on a loop where a blocking call, or an error nobody saw, fails."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    test = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    lost: list[str] = []
    with blockbuster_ctx() as watch:
        for function in watch.functions.values():
            # What a handler does to its own files is its own doing.
            function.can_block_in("vqkit/attempt.py", {"output", "plain_result"})
            function.can_block_in("vqkit/executors/base.py", {"of"})
            function.can_block_in("executor_contract.py", HANDLERS_WITH_FILES)
            # Run by the garbage collector, on whatever thread it falls.
            function.can_block_in("loky/backend/synchronize.py", {"_cleanup"})
        watch.functions["os.getcwd"].can_block_in("vqkit/attempt.py", {"_frame_text"})
        asyncio.run(_strictly(test, lost))
    assert not lost, f"errors that nobody saw: {lost}"
    return True


async def _strictly(test: Coroutine[Any, Any, None], lost: list[str]) -> None:
    def note(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        lost.append(f"{context['message']}: {context.get('exception')!r}")

    asyncio.get_running_loop().set_exception_handler(note)
    await test
    gc.collect()
    await asyncio.sleep(0)


@pytest.fixture
def until() -> Callable[..., Any]:
    """``until(condition)``: waits for it to be true and returns what it gave; fails in 20 s."""

    def wait(condition: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
        end_s = time.monotonic() + patience_s
        while not (found := condition()):
            assert time.monotonic() < end_s, f"waited {patience_s:g} s in vain"
            time.sleep(0.005)
        return found

    return wait
