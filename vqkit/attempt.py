"""One attempt at one job: what the handler is given, and what its ending means.

`ActiveJob` is the `job` a handler receives, the same in a coroutine, a thread or a worker
process. `describe_error` tells what went wrong, pointing at the user's own line.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import linecache
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import random
from typing import Any

from . import codec, secrets, steps
from .errors import GiveUp, JobCancelled, MissingCell, PayloadError, Snooze, UsageError
from .job import Job
from .outputs import Made, OutputFolder
from .steps import Channel

__all__ = ["ActiveJob", "Channel", "describe_error", "plain_result", "suffix_of"]

TRACEBACK_CHARS = 8000
MESSAGE_CHARS = 2000
LINE_CHARS = 300
LOG_LINES = 200
GROUP_PARTS = 3

_PACKAGE = str(Path(__file__).parent) + os.sep
_LIBRARY = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))


class ActiveJob:
    """A job at work, as its handler sees it.

    `payload` is what was put, `seed` a number that is the same at every try, `attempt`
    counts from 1, `account` names the provider account the job runs on.
    """

    def __init__(
        self,
        job: Job,
        channel: Channel,
        folder: OutputFolder,
        credential: str | None = None,
        *,
        is_async: bool = False,
    ) -> None:
        self._job, self._channel, self._folder = job, channel, folder
        self.is_async = is_async
        self._credential = credential
        self._lines = 0
        self._outputs = 0
        self.made: list[Made] = []

    id = property(lambda self: str(self._job.id), doc="The job's id, the same for ever.")
    number = property(lambda self: int(self._job.number), doc="The job's number in the queue.")
    seed = property(lambda self: int(self._job.seed), doc="In [0, 2**31), the same at every try.")
    attempt = property(lambda self: int(self._job.attempt), doc="This try, counted from 1.")
    account = property(lambda self: str(self._job.account), doc="The account's name.")
    batch = property(lambda self: self._job.batch, doc="The batch's name, or None.")

    @property
    def payload(self) -> dict[str, Any]:
        """What was put, decoded anew at each call. MissingCell says what a row has instead."""
        return _Payload(self._job.payload)

    def __repr__(self) -> str:
        payload = secrets.redact(self._job.payload_json)[:80]
        return f"<job {self.number}, attempt {self.attempt}, {payload}>"

    def credential(self) -> str:
        """The account's key. Raises CredentialError; the key never reaches the database."""
        if self._credential is None:
            raise UsageError(
                f"account {self.account!r} has no credential; give it one with"
                " q.accounts.add(…, credential='env:NAME')"
            )
        return self._channel.resolve(self._credential)

    def stage(self, name: str, progress: float | None = None) -> None:
        """Says what is being done now, in a word or two, and how far it is (0 to 1)."""
        if progress is not None:
            progress = min(1.0, max(0.0, float(progress)))
            progress = None if progress != progress else progress
        self._channel.post("stage", {"stage": secrets.redact(str(name))[:80], "progress": progress})

    def log(self, message: object, level: str = "info") -> None:
        """Adds a line to the job's history; of one attempt the first 200 are kept."""
        self._lines += 1
        if self._lines > LOG_LINES + 1:
            return
        if self._lines > LOG_LINES:
            message, level = f"more than {LOG_LINES} lines; the rest is not kept", "warning"
        if level not in ("debug", "info", "warning", "error"):
            raise UsageError(f"log level {level!r}: expected debug, info, warning or error")
        text = codec.clean_text(secrets.redact(str(message))[:MESSAGE_CHARS])
        self._channel.post("log", {"message": text, "level": level})

    def check_cancelled(self) -> None:
        """Raises JobCancelled once the user has asked for this job to stop; let it through."""
        if self._channel.is_cancelled():
            raise JobCancelled("cancelled by you")

    def once(self, name: str, function: Callable[..., Any], *, paid: bool = False) -> Any:
        """What `function` gives, called once in the life of the job; a later try gets it kept.

        In an ``async def`` handler: ``await job.once("submit", send)``; `function` may be
        either kind. What it gives must be JSON, at most 64 kB, or bytes of any length, which
        are kept as a file until the job is completed. With ``paid=True`` it is on
        record, with its idempotency key, before it is called; if it takes an argument it is
        given that key. A paid call that ends in anything but a value, `GiveUp`, `Snooze` or
        a ProviderError that says it was not accepted leaves the job in doubt: it is not made
        again until `q.resolve` says what became of it.

        `name` is text, up to 80 characters, one for each thing that is done once: for the
        clip `i` of several ``f"clip {i}"``. Raises UsageError for any other.

        Each paid call is counted once, at the account's price. Where no budget covers one it is
        not made, however often it is asked for: Snooze is raised, and the job waits.
        """
        name = steps.checked(name)
        if self.is_async:
            return self._once_async(name, function, paid)
        value = steps.once(
            self._channel, self._folder.receipts, name, function, paid, keep=self._keep
        )
        return self._folder.step_bytes(self._job, value)

    async def _once_async(self, name: str, function: Callable[..., Any], paid: bool) -> Any:
        value = await steps.once_async(
            self._channel, self._folder.receipts, name, function, paid, keep=self._keep
        )
        if isinstance(value, dict):
            value = await asyncio.to_thread(self._folder.step_bytes, self._job, value)
        return value

    def _keep(self, value: Any) -> Any:
        """Bytes that a step gave as a file, and what stands for them; any other value as it is."""
        if isinstance(value, bytes | bytearray):
            return self._folder.keep_step(self._job, bytes(value))
        return value

    def fresh(self) -> Any:
        """Opens a new generation of the steps: what was paid for is useless, ask for another.

        For a render that failed in a way only your handler can tell. From here on, in this
        try and in later ones, every step is done anew, paid ones under another key: **this
        spends again**, each time it is called after a paid step. In an ``async def`` handler:
        ``await job.fresh()``.

        It is committed before it returns. Called again before the next paid step it does
        nothing, so a crash in between opens no further one. Raises InDoubt while a paid step
        has no answer (let it through: `q.resolve` ends it), and Snooze where the budget does
        not cover another render: the job waits until it does, and no paid step is begun.
        """
        if self.is_async:
            return self._fresh()
        return self._renewed(self._channel.call("renew"))

    async def _fresh(self) -> None:
        # A wait that is cancelled must not leave it open whether the commit was made.
        self._renewed(await asyncio.shield(self._channel.acall("renew")))

    def _renewed(self, not_covered: str | None) -> None:
        if not_covered is not None:
            raise Snooze(0, not_covered)

    # -- for vqkit's own render engine ---------------------------------------------------------

    @property
    def handle(self) -> dict[str, Any] | None:
        """The provider's name of the render that is open, if one is."""
        handle: dict[str, Any] | None = codec.loads(self._job.handle_json)
        return handle

    @property
    def has_credential(self) -> bool:
        """True if the account names a key."""
        return self._credential is not None

    @property
    def is_cancel_wanted(self) -> bool:
        """True once the user has asked for this job to stop."""
        return self._channel.is_cancelled()

    def draw(self) -> float:
        """A number in [0, 1) to spread waits by."""
        return random()

    async def paid_step(
        self, name: str, function: Callable[..., Any], request: Mapping[str, Any]
    ) -> Any:
        """A paid step that keeps its request as evidence."""
        return await steps.once_async(
            self._channel,
            self._folder.receipts,
            name,
            function,
            True,
            codec.dumps(dict(request), "request"),
        )

    def kept_part(self, suffix: str, count: int) -> Path:
        """A file that outlives the attempt: what is paid for is fetched once, over all tries."""
        return self._folder.kept_part(self._job, suffix, count)

    def output_name(self, suffix: str, count: int) -> str:
        """The name the finished file shall have."""
        return self._folder.part(self._job, suffix, count)[1]

    @contextmanager
    def output(self, suffix: str) -> Iterator[Path]:
        """A file to write a result to, with that ending; it counts once the handler returns.

        The path given is a temporary one. When the handler has returned, the file is
        synced, named after the prompt and moved into the output folder; in what the handler
        returns, the path is replaced by the final one. Raises UsageError if nothing was
        written.
        """
        self._outputs += 1
        path, name = self._folder.part(self._job, suffix, self._outputs)
        path.unlink(missing_ok=True)
        yield path
        if path.exists() and not path.is_file():
            raise UsageError(
                f"job.output({suffix!r}) gives a file, and there is a folder now; ask for an output"
                " for each file, or write an archive"
            )
        if not path.exists() or path.stat().st_size == 0:
            raise UsageError(
                f"nothing was written to the file that job.output({suffix!r}) gave; write the"
                " result to that path inside the with block"
            )
        self.made.append(Made(str(path), name))


class _Payload(dict[str, Any]):
    """A payload that says, of a name it has not, what it has."""

    def __missing__(self, name: object) -> Any:
        has = ", ".join(map(repr, self)) or "nothing"
        alike = [mine for mine in self if mine.strip().lower() == str(name).strip().lower()]
        advice = (
            f"q.load(…, columns={{{alike[0]!r}: {name!r}}}) renames it and keeps the others"
            if alike
            else f"a blank cell is left out, job.payload.get({name!r}) allows for it"
        )
        raise MissingCell(f"no {name!r} in this row, which has {has}; {advice}")


def plain_result(
    value: Any, made: list[Made], keep: Callable[[bytes], Made] | None = None
) -> tuple[Any, list[Made], str | None]:
    """What a handler returned, as JSON can carry it; its files; and a warning, or None.

    Every path in it that exists becomes an output, and so do bytes, which `keep` writes to a
    file. A value JSON cannot carry is kept as its repr, with a warning: what was made and
    paid for is not thrown away for its form. Raises GiveUp for a call that was never made.
    """
    if value is None:
        return None, made, None
    files = {file.path: file for file in made}
    why: list[str] = []

    def walk(item: Any, where: str) -> Any:
        if isinstance(item, Path | os.PathLike):
            text = os.fsdecode(item)
            if text not in files and _is_text(text) and Path(text).is_file():
                files[text] = Made(str(Path(text).absolute()), None)
            item = text
        if isinstance(item, str) and item in files:
            return files[item].name or files[item].path
        if isinstance(item, dict):
            names = _names(item, where, why)
            return {names[key]: walk(part, f"{where}[{key!r}]") for key, part in item.items()}
        if isinstance(item, list | tuple):
            return [walk(part, f"{where}[{i}]") for i, part in enumerate(item)]
        if inspect.isawaitable(item):
            if inspect.iscoroutine(item):
                item.close()
            raise GiveUp(f"{where} is a call that was never made: an 'await' is missing before it")
        if isinstance(item, bytes | bytearray) and item and keep is not None:
            file = keep(bytes(item))
            files[file.path] = file
            return file.name
        try:
            return codec.plain(item, where)
        except PayloadError as error:
            why.append(str(error))
            return _repr(item)

    try:
        plain = codec.plain(walk(value, "result"), "result")
    except GiveUp:
        raise
    except RecursionError:
        why.append("it is too deep")
        plain = _repr(value)
    except Exception as error:  # noqa: BLE001 - whatever an object of the user's own does
        why.append(f"{type(error).__name__} when it was looked at")
        plain = _repr(value)
    if why and isinstance(plain, str):
        plain = {"repr": plain}
    return plain, list(files.values()), f"kept as text: {why[0]}" if why else None


def _names(item: Mapping[Any, Any], where: str, why: list[str]) -> dict[Any, str]:
    """The keys of a dict as text, each its own: of 1 and "1" the number is named "1 (int)"."""
    names = {key: key for key in item if isinstance(key, str)}
    taken = set(names.values())
    for key in item:
        if not isinstance(key, str):
            name = str(key)
            if name in taken:
                while name in taken:
                    name += f" ({type(key).__name__})"
                why.append(f"{where} has keys that are one as text; {key!r} is kept as {name!r}")
            names[key] = name
            taken.add(name)
    return names


MAGIC = {b"\x89PNG": ".png", b"\xff\xd8\xff": ".jpg", b"GIF8": ".gif", b"ID3": ".mp3"}


def suffix_of(data: bytes) -> str:
    """The file ending of well-known media by their first bytes, else ``.bin``."""
    if data[4:8] == b"ftyp":
        return ".mp4"
    if data[:4] == b"RIFF":
        return {b"WEBP": ".webp", b"WAVE": ".wav"}.get(data[8:12], ".bin")
    return next((suffix for start, suffix in MAGIC.items() if data.startswith(start)), ".bin")


def _repr(value: Any) -> str:
    try:
        return _bounded(secrets.redact(repr(value))[: 2 * MESSAGE_CHARS], MESSAGE_CHARS)
    except (Exception, SystemExit):  # noqa: BLE001 - a broken __repr__ must not cost the result
        return f"(a {type(value).__name__} that cannot be shown)"


def _is_text(text: str) -> bool:
    """False for a file name that is no UTF-8, which the database cannot hold."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


# -- errors -------------------------------------------------------------------------------


def frames_of(error: BaseException) -> list[tuple[str, int, str]]:
    """Where it was raised: (file, line, function) from the outside in, vqkit's own left out."""
    found = [
        (frame.filename, frame.lineno or 0, frame.name)
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    while found and found[0][0].startswith(_PACKAGE):
        found.pop(0)
    return found


def describe_error(
    error: BaseException, frames: list[tuple[str, int, str]] | None = None
) -> dict[str, Any]:
    """An error as it is kept with the job: type, message, the user's line, the traceback.

    `frames` are those of the worker process, where it ran in one; the source is looked up
    here, where the notebook's cells are known.
    """
    frames = frames_of(error) if frames is None else frames
    kind = type(error).__name__
    mine = [frame for frame in frames if not frame[0].startswith((*_LIBRARY, _PACKAGE, "<frozen"))]
    lines = ["Traceback (most recent call last):\n"] if frames else []
    lines += [_frame_text(frame) for frame in frames]
    lines += _only(error)
    for part in getattr(error, "exceptions", ())[:GROUP_PARTS]:  # of an ExceptionGroup
        lines += ["\nwith\n", *map(_frame_text, frames_of(part)), *_only(part)]
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    depth = 0
    while cause is not None and depth < 5:
        lines += ["\nbecause of\n", *map(_frame_text, frames_of(cause))]
        lines += _only(cause)
        cause, depth = cause.__cause__ or cause.__context__, depth + 1
    described = {
        "type": kind,
        "message": _bounded(message_of(error), MESSAGE_CHARS),
        "line": _bounded(_line_text((mine or frames)[-1]), LINE_CHARS) if frames else None,
        "traceback": _bounded("".join(lines), TRACEBACK_CHARS),
    }
    return {name: value for name, value in described.items() if value is not None}


def _only(error: BaseException) -> list[str]:
    """Type and message, as Python shows them under a traceback."""
    try:
        return traceback.format_exception_only(error)
    except Exception:  # noqa: BLE001 - a SyntaxError made by hand can break it
        return [f"{type(error).__name__}: {message_of(error)}\n"]


def _bounded(text: str, limit: int) -> str:
    """The text, its middle left out where it is longer. Half a key would be found by nobody."""
    text = codec.clean_text(secrets.redact(text))
    if len(text) <= limit:
        return text
    head, tail = text[: limit // 4], text[-3 * limit // 4 :]
    return f"{head}\n… {len(text) - limit} characters left out …\n{tail}"


def message_of(error: BaseException) -> str:
    """Its message, whatever its own __str__ does."""
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001 - a broken __str__ must not hide the error
        return f"(its message cannot be shown: {type(second).__name__})"


def _cell_name(filename: str) -> str | None:
    """``In[3]`` for a file that is really a notebook cell."""
    if "IPython" not in sys.modules:
        return None
    shell = sys.modules["IPython"].get_ipython()
    cells: dict[str, int] = getattr(getattr(shell, "compile", None), "_filename_map", {})
    return f"In[{cells[filename]}]" if filename in cells else None


def _line_text(frame: tuple[str, int, str]) -> str:
    """The user's own line: where, and what stands there."""
    filename, line, _ = frame
    where = _cell_name(filename) or Path(filename).name
    code = linecache.getline(filename, line).strip()
    return f"{where}, line {line}" + (f": {code}" if code else "")


def _frame_text(frame: tuple[str, int, str]) -> str:
    filename, line, function = frame
    where = _cell_name(filename) or filename
    code = linecache.getline(filename, line).strip()
    with contextlib.suppress(ValueError, OSError):  # not below it; or it was deleted
        where = str(Path(where).relative_to(Path.cwd()))
    return f"  {where}, line {line}, in {function}\n" + (f"    {code}\n" if code else "")
