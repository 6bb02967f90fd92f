"""``%load_ext vqkit``: ``%vq`` looks at a queue and steers it, ``%%vq_handler`` registers one.

%vq                        how it stands (the same as %vq status)
%vq jobs [STATUS] [N]      the newest jobs, of a status or all
%vq events [N]             what happened last
%vq accounts               the accounts
%vq progress               one line that follows it
%vq gallery                the finished clips
%vq pause | resume         hands out no more work, or goes on
%vq retry                  gives the failed jobs another chance
%vq … --q NAME             where there are several queues: the one in this variable

%%vq_handler NAME [N]      runs the cell, and makes its function NAME the handler of the
                           jobs and accounts that name this provider; N at once
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

from IPython.core.error import UsageError as MagicUsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class

from ..clock import SystemClock, local_text
from ..errors import VqkitError
from ..html import output, table
from ..job import STATUSES
from ..words import count, event_words, failure_of, shorten, what

__all__ = ["Shown", "VqMagics"]

SHOWN = 20


class Shown:
    """Rows that a notebook shows as a table and a terminal as lines."""

    def __init__(self, header: tuple[str, ...], rows: list[tuple[Any, ...]], caption: str) -> None:
        self.header, self.rows, self.caption = header, rows, caption

    def __repr__(self) -> str:
        told = ([str(cell) for cell in row if cell not in (None, "")] for row in self.rows)
        lines = ["  ".join(cells) for cells in told]
        return "\n".join([self.caption, *lines])

    def _repr_html_(self) -> str:
        return output(table(self.header, self.rows, self.caption))


@magics_class
class VqMagics(Magics):
    """The magics of `vqkit`. `queue_class` is what they look for among the user's names."""

    def __init__(self, shell: Any, queue_class: Any) -> None:
        super().__init__(shell)
        self._shell, self._class = shell, queue_class

    @line_magic
    def vq(self, line: str) -> Any:
        """Looks at a queue, or steers it. `%vq help` lists what it can do."""
        words = _split(line)
        verb, *rest = words or ["status"]
        if verb == "help":
            print(_help())  # noqa: T201 - the cell's own output
            return None
        verbs: dict[str, Callable[[], Any]] = {
            "status": lambda: self._queue(rest).snapshot(),
            "jobs": lambda: self._jobs(self._queue(rest), rest),
            "events": lambda: self._events(self._queue(rest), rest),
            "accounts": lambda: self._queue(rest).accounts,
            "progress": lambda: self._queue(rest).progress(),
            "gallery": lambda: self._queue(rest).gallery(),
            "pause": lambda: self._steer(rest, "pause"),
            "resume": lambda: self._steer(rest, "resume"),
            "retry": lambda: self._steer(rest, "requeue"),
        }
        if verb not in verbs:
            raise MagicUsageError(f"%vq {verb}: expected {', '.join(verbs)} or help")
        try:
            return verbs[verb]()
        except VqkitError as error:
            raise MagicUsageError(f"%vq {verb}: {error}") from None

    @cell_magic
    def vq_handler(self, line: str, cell: str) -> None:
        """Runs the cell, and makes its function of that name a provider's handler."""
        words = _split(line)
        queue = self._queue(words)
        if not words or not words[0].isidentifier() or len(words) > 2:
            raise MagicUsageError("%%vq_handler NAME [N]: expected the name of the cell's function")
        name = words[0]
        capacity = _number(words[1], "%%vq_handler") if len(words) > 1 else None
        before = self._shell.user_ns.pop(name, None)
        done = self._shell.run_cell(cell)
        if done.error_before_exec is not None or done.error_in_exec is not None:
            return  # IPython has shown it
        function = self._shell.user_ns.get(name)
        if not callable(function):
            if before is not None:
                self._shell.user_ns[name] = before
            raise MagicUsageError(f"%%vq_handler {name}: the cell defines no function {name}(job)")
        queue.provider(name, function)
        mine = [account for account in queue.accounts if account.provider == name]
        if not mine:
            queue.accounts.add(name, provider=name, capacity=capacity or 4)
        elif capacity is not None and len(mine) == 1:
            queue.accounts.set_capacity(mine[0].name, capacity)
        slots = sum(account.capacity for account in queue.accounts if account.provider == name)
        print(f"{name} does the work of {count(slots, 'slot')}; q.run() begins")  # noqa: T201

    def _queue(self, words: list[str]) -> Any:
        """The queue that is meant; takes ``--q NAME`` out of the words."""
        space = self._shell.user_ns
        if "--q" in words:
            at = words.index("--q")
            name = words[at + 1] if at + 1 < len(words) else ""
            del words[at : at + 2]
            if not isinstance(space.get(name), self._class):
                raise MagicUsageError(f"--q {name}: no queue is called that here")
            return space[name]
        named = {
            name: value
            for name, value in space.items()
            if isinstance(value, self._class) and name[0] != "_" and not value.is_closed
        }
        if len({value.path for value in named.values()}) == 1:
            return next(iter(named.values()))
        if not named:
            raise MagicUsageError('no queue is open here; begin with q = vqkit.Queue("q.db")')
        raise MagicUsageError(f"several queues are open here; say --q {' or --q '.join(named)}")

    def _jobs(self, queue: Any, words: list[str]) -> Shown:
        status = next((word for word in words if word in STATUSES), None)
        limit = _limit([word for word in words if word != status], "%vq jobs [STATUS] [N]")
        now_ms = SystemClock().now_ms()
        rows = [
            (
                *(job.number, job.label(now_ms), shorten(what(job), 80), job.account),
                failure_of(job) if job.status == "failed" else "",
            )
            for job in reversed(queue.jobs(status=status, newest=limit))
        ]
        total = queue.stats()[status or "total"]
        told = f"{count(total, f'{status} job' if status else 'job')}, newest first"
        return Shown(("job", "status", "prompt", "account", "error"), rows, told)

    def _events(self, queue: Any, words: list[str]) -> Shown:
        limit = _limit(words, "%vq events [N]")
        now_ms = SystemClock().now_ms()
        rows = [
            (
                *(local_text(e.at_ms, now_ms), "queue" if e.job is None else e.job),
                shorten(event_words(e.type, e.data), 200),
            )
            for e in queue.snapshot().events[-limit:]
        ]
        return Shown(("at", "job", "what happened"), rows, "what happened last")

    def _steer(self, words: list[str], verb: str) -> None:
        queue = self._queue(words)
        done = getattr(queue, verb)()
        told = repr(done) if verb == "requeue" else repr(queue)
        print(told)  # noqa: T201


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise MagicUsageError(f"%vq: {error}") from None


def _help() -> str:
    return (__doc__ or "").partition("\n\n")[2].rstrip()


def _limit(words: list[str], usage: str) -> int:
    if len(words) > 1:
        raise MagicUsageError(f"expected {usage}; STATUS is one of {', '.join(STATUSES)}")
    return _number(words[0], usage) if words else SHOWN


def _number(word: str, usage: str) -> int:
    if not word.isdigit() or not 0 < int(word) <= 10_000:
        known = f"; STATUS is one of {', '.join(STATUSES)}" if "STATUS" in usage else ""
        raise MagicUsageError(f"{usage}: {word!r} is no number from 1 to 10,000{known}")
    return int(word)
