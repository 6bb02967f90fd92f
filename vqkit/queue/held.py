"""A queue's file as this kernel holds it: one writer, one reader, one run for all who open it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from .. import secrets
from ..accounts import Accounts
from ..clock import Clock, SystemClock
from ..errors import StoreLost, UsageError
from ..job import LOCAL
from ..outputs import OutputFolder
from ..providers.base import Provider
from ..providers.function import function_provider
from ..run import Run
from ..store.files import companion, unsafe_place
from ..store.sqlite import SqliteStore
from ..store.thread import StoreThread

if TYPE_CHECKING:
    from ..notebook.dashboard import Dashboard

__all__ = ["Held"]

T = TypeVar("T")
WRITE_TIMEOUT_S = 60.0


class _Shared:
    """What all Queue objects of one kernel on one file share: threads, providers, the run."""

    def __init__(self, path: Path) -> None:
        self.path, self.pid = path, os.getpid()
        self.writer = StoreThread(lambda: SqliteStore(path), "vqkit-store")
        self.reader = StoreThread(lambda: SqliteStore(path, readonly=True), "vqkit-reader")
        self.providers: dict[str, Provider] = {}
        self.handlers: set[str] = set()  # given to run or start
        self.run: Run | None = None
        self.named_only: set[str] = set()  # handlers of earlier runs: they take no unnamed job
        self.stand_ins: set[str] = set()  # built in, and not registered by the user
        self.earlier: list[Run] = []  # told to stop, perhaps still following their work
        self.holders = 0

    def is_current(self) -> bool:
        """False after a fork, or when the file is not the one that was opened."""
        return self.pid == os.getpid() and self.writer.store.is_same_file()

    def close(self) -> None:
        self.reader.close()
        self.writer.close()


_open: dict[Path, _Shared] = {}


class Held:
    """An open queue: its file, its threads, its folder of outputs, its accounts."""

    def __init__(
        self, path: str | os.PathLike[str], *, outputs: str | os.PathLike[str] | None = None
    ) -> None:
        if str(path).startswith(("postgresql:", "postgres:")):
            raise UsageError("this version keeps queues in SQLite files; give a path such as q.db")
        self.path = Path(path).expanduser().resolve()
        self.warning = unsafe_place(self.path)
        if self.warning:
            import warnings

            warnings.warn(self.warning, stacklevel=2)
        self._clock: Clock = SystemClock()
        self._shared = self._join()
        self._is_closed = False
        self._dashboard: Dashboard | None = None  # lives as long as somebody holds the queue
        self.outputs_folder = self._settle_folder(outputs)
        self._files = OutputFolder(self.outputs_folder, companion(self.path) / "finished")
        self.accounts = Accounts(
            lambda: self._read(lambda s: s.accounts()),
            lambda name, change: self._write(lambda s: s.change_account(name, change)),
            lambda name: self._write(lambda s: s.remove_account(name)),
        )
        self._learn_keys()

    def _learn_keys(self) -> None:
        """Makes known what must not be stored or shown: the accounts' keys, used yet or not."""
        secrets.learn(account.credential for account in self.accounts)

    def _join(self) -> _Shared:
        shared = _open.get(self.path)
        if shared is not None and not shared.is_current():
            if shared.pid != os.getpid():
                raise StoreLost(
                    f"this process was forked from the one that has {self.path} open. SQLite's"
                    " locks do not survive a fork: work on the queue in a process of its own"
                    " (subprocess, or multiprocessing.get_context('spawn')).",
                    path=str(self.path),
                )
            shared.close()
            shared = None
        if shared is None:
            shared = _open[self.path] = _Shared(self.path)
            shared.providers.update(builtin_providers())
            shared.stand_ins.update(shared.providers)
        shared.holders += 1
        return shared

    def _settle_folder(self, outputs: str | os.PathLike[str] | None) -> Path:
        """The folder for finished files: given now, or kept since an earlier opening."""
        kept = self._read(lambda s: s.setting("outputs"))
        if outputs is None and kept is not None:
            return self.path.parent / str(kept)
        default = self.path.with_suffix("")
        if default == self.path:
            default = self.path.with_name(self.path.name + "-files")
        folder = default if outputs is None else Path(outputs).expanduser().resolve()
        elsewhere = None if kept is None else self.path.parent / str(kept)
        if elsewhere not in (None, folder) and self._read(lambda s: s.outputs()):
            raise UsageError(
                f"{self.path.name} keeps its finished files in {elsewhere};"
                " leave out outputs=, or begin another queue"
            )
        near = folder.is_relative_to(self.path.parent)
        stored = str(folder.relative_to(self.path.parent) if near else folder)
        self._write(lambda s: s.set_setting("outputs", stored))
        return folder

    def _write(self, function: Callable[[SqliteStore], T]) -> T:
        """Runs it on the writing thread, and tells the pump."""
        return self._begin_write(function)()

    def _begin_write(self, function: Callable[[SqliteStore], T]) -> Callable[[], T]:
        """Begins the same; what is returned waits for it."""
        shared = self._shared

        def write(store: SqliteStore) -> T:
            try:
                return function(store)
            finally:
                # From here, where no interrupt of the caller can keep it from the pump.
                if shared.run is not None:
                    shared.run.poke()

        return partial(shared.writer.begin(write), WRITE_TIMEOUT_S)

    def _read(self, function: Callable[[SqliteStore], T]) -> T:
        return self._shared.reader.call(function)

    def close(self) -> None:
        """Stops what runs (10 s for it to end) and lets go of the file. Twice is harmless."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._dashboard is not None:
            self._dashboard.close()
        shared = self._shared
        shared.holders -= 1
        if shared.holders > 0 or shared.pid != os.getpid():
            return
        runs = [run for run in (*shared.earlier, shared.run) if run is not None and run.is_running]
        if sum([run.stop() for run in runs]):
            return  # something is followed to its end and still needs the database
        if _open.get(self.path) is shared:
            del _open[self.path]
        shared.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_closed(self) -> bool:
        """True once `close` was called."""
        return self._is_closed


def builtin_providers() -> dict[str, Provider]:
    """The providers every queue knows."""
    from ..providers.local import local

    return {LOCAL: function_provider(local, LOCAL)}
