"""Sheets, files, dataframes and lists of dicts in; jobs to put, and rows that cannot run, out.

`read` opens a source as a `Table`, `specs` makes its rows into jobs. Nothing is guessed and
nothing dropped in silence: what cannot run comes out as a `RowProblem` in its place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from ..errors import SheetError, UsageError
from ..job import JobSpec, RowProblem, content_key
from . import delimited, files, frames, jsonl, text
from .seen import Seen
from .settings import spec_of, take
from .table import Columns, Reading, Row, Table

__all__ = ["Row", "Table", "read", "sheet_of", "spec_of", "specs"]

READERS: dict[str, Callable[[Path], Reading]] = {
    ".csv": delimited.open_csv,
    ".tsv": delimited.open_tsv,
    ".jsonl": jsonl.open_jsonl,
    ".ndjson": jsonl.open_jsonl,
    ".json": jsonl.open_json,
    ".txt": text.open_text,
}
Engine: TypeAlias = Literal["calamine"]
WORKBOOKS = (".xlsx", ".xlsm", ".ods")
KNOWN = (*WORKBOOKS, *READERS)


def read(
    source: Any,
    *,
    sheet: str | None = None,
    columns: Columns | None = None,
    hidden: bool = False,
    engine: Engine | None = None,
) -> Table:
    """The rows of `source`: a file's path, a folder of .txt, a dataframe, an iterable of dicts.

    `sheet` names a workbook's sheet; without it the first visible one is read. `columns`
    keeps the columns it lists, and no others; a dict ``{column: name}`` keeps all, renames those
    it names, and leaves out those it names None. `hidden`
    reads rows that are hidden or filtered out in a workbook; else they are problems.
    ``engine="calamine"`` reads a workbook with that library instead, to compare; it sees
    neither hidden rows nor errors. Raises SheetError, and only that, for a source that
    cannot be read as rows.
    """
    if engine not in (None, "calamine"):
        raise UsageError(f"engine={engine!r}: expected 'calamine', or None for vqkit's own reader")
    if isinstance(source, str | os.PathLike):
        path = Path(source).expanduser()
        options = Options(sheet, hidden, engine)
        return Table(partial(_open_file, path, options), columns, path=path)
    if sheet is not None:
        raise SheetError(f"sheet={sheet!r} is for workbooks ({', '.join(WORKBOOKS)}) only")
    if isinstance(source, Iterator):
        return Table(_once(source), columns, is_once=True)
    return Table(partial(frames.open_memory, source), columns)


def sheet_of(path: Path) -> str | None:
    """The title of the sheet that `read` reads unless told; None for a file without sheets."""
    reading = _open_file(path, Options(hidden=True))
    for _ in reading.records:
        break  # only rows that were begun close the file
    return reading.sheet


class Rows(Protocol):
    """What `specs` needs of a `Table`."""

    source: str
    columns: tuple[str, ...]

    def __iter__(self) -> Iterator[Row | RowProblem]: ...


def specs(
    table: Rows,
    *,
    priority: int = 0,
    provider: str | None = None,
    account: str | None = None,
    max_attempts: int | None = None,
    samples: int = 1,
    not_before_ms: int | None = None,
    expires_ms: int | None = None,
    timeout_ms: int | None = None,
    batch: str | None = None,
) -> Iterator[JobSpec | RowProblem]:
    """A job for every row of `table` that can run, a `RowProblem` for every other, in order.

    The arguments are for rows that do not say otherwise. A row without a `key` gets
    `content_key`, equal rows being told apart by their order, so that the same table read
    again gives the same keys. Raises UsageError for an argument no row could have.
    """
    base = JobSpec(
        {},
        priority=take("priority", priority),
        provider=provider,
        account=account,
        max_attempts=None if max_attempts is None else take("max_attempts", max_attempts),
        samples=take("samples", samples),
        not_before_ms=not_before_ms,
        expires_ms=expires_ms,
        timeout_ms=timeout_ms,
        batch=batch,
        source=table.source,
    )
    return _specs(table, base)


def _specs(table: Rows, base: JobSpec) -> Iterator[JobSpec | RowProblem]:
    prompt = next((name for name in table.columns if name.lower() == "prompt"), None)
    rows_of_keys: dict[str, int] = {}
    seen = Seen()  # 60 bits of each content: a million rows take 100 MB as text
    repeats: dict[str, int] = {}
    for item in table:
        if isinstance(item, RowProblem):
            yield item
            continue
        try:
            spec = spec_of(item, base)
            if prompt is not None and prompt not in spec.payload:
                raise UsageError(f"its {prompt} is blank", kind="nothing to run")
        except UsageError as error:
            kind = error.facts.get("kind", "cannot be read")
            yield RowProblem(item.number, str(error), table.source, kind)
            continue
        if spec.key is None:
            key = content_key(spec)
            if not seen.add(int(key[-15:], 16)):
                repeats[key] = repeats.get(key, 0) + 1
                key = content_key(spec, repeats[key])
            yield JobSpec._make((spec.payload, key, *spec[2:]))
        elif spec.key in rows_of_keys:
            first = rows_of_keys[spec.key]
            reason = f"its key {spec.key!r} is that of row {first}; give each row its own"
            yield RowProblem(item.number, reason, table.source, "duplicate key")
        else:
            rows_of_keys[spec.key] = item.number
            yield spec


class Options(NamedTuple):
    """How a file is to be opened."""

    sheet: str | None = None
    hidden: bool = False
    engine: Engine | None = None


def _open_file(path: Path, options: Options) -> Reading:
    try:
        if path.is_dir() and (texts := text.texts_in(path)):
            return text.open_folder(path, texts)
        files.find(path, KNOWN)
        extension = path.suffix.lower()
        if extension in WORKBOOKS:
            return _open_workbook(path, extension, options)
        if options.sheet is not None:
            raise SheetError(f"{path.name} has no sheets; leave out sheet={options.sheet!r}")
        if options.engine is not None:
            raise SheetError(f"engine={options.engine!r} reads workbooks; {path.name} is none")
        return READERS[extension](path)
    except OSError as error:
        raise SheetError(f"{path} cannot be read: {error.strerror or error}") from error


def _open_workbook(path: Path, extension: str, options: Options) -> Reading:
    if options.engine is not None:
        from .calamine import open_calamine

        return open_calamine(path, options.sheet)
    if extension == ".ods":
        from .ods import open_ods

        return open_ods(path, options.sheet, hidden=options.hidden)
    from .xlsx import open_xlsx

    return open_xlsx(path, options.sheet, hidden=options.hidden)


def _once(source: Iterator[Any]) -> Callable[[], Reading]:
    """Opens an iterator the first time, and says the second time that it is spent."""
    left = [source]

    def reopen() -> Reading:
        if not left:
            raise SheetError(
                "these rows came from a generator, which can be read only once; pass a list"
            )
        return frames.open_memory(left.pop())

    return reopen
