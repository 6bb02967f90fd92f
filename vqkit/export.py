"""Results out: all jobs of a queue as a .csv, .jsonl or .xlsx file, one row a job.

The rows are read once and set aside, so that the header holds every payload column there is
while any number of jobs fits in memory. The file appears under its name when it is whole.
"""

from __future__ import annotations

import csv
import os
import pickle
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from . import codec
from .errors import StoreFull, StoreReadOnly, UsageError

if TYPE_CHECKING:
    from .queue import Queue

__all__ = ["save"]

Record = dict[str, Any]
Writer = Callable[[Path, list[str], Iterable[Record]], None]

XLSX_ROWS = 1_048_576
XLSX_COLUMNS = 16_384
XLSX_CHARACTERS = 32_767
XLSX_DIGITS = 10**15  # a longer number loses its last digits there
# What XML cannot hold, and carriage returns, which it turns into line feeds.
XLSX_UNABLE = re.compile("[\x00-\x08\x0b-\x1f\ufffe\uffff]")
# Excel reads _x0041_ as "A"; the underscore itself is spelled so.
XLSX_ESCAPE = re.compile(r"_(?=x[0-9A-Fa-f]{4}_)")


def save(queue: Queue, path: str | os.PathLike[str]) -> Path:
    """Writes all jobs, payload columns first, then how each stands; returns the path.

    The ending chooses the form. An older file of that name is replaced, once the new one is
    whole; a sheet the jobs came from never is. Raises UsageError for an ending that is not
    written here, and for more rows or columns than a workbook can hold.
    """
    target = Path(path).expanduser().absolute()
    write = WRITERS.get(target.suffix.lower())
    if write is None:
        raise UsageError(
            f"{target.name}: results are saved as {', '.join(WRITERS)}; give the file one of"
            " these endings"
        )
    if target.is_dir() or not target.parent.is_dir():
        kind = "is a folder" if target.is_dir() else "is in a folder that does not exist"
        raise UsageError(f"{target} {kind}; give a file in a folder that is there")
    try:
        with _set_aside(queue) as (names, sources, records), _replacing(target) as part:
            if target.exists() and any(_is_from(source, target.name) for source in sources):
                raise UsageError(
                    f"{target.name} is the name of the sheet the jobs came from; it is not written"
                    f" over. Give the results another name, such as results{target.suffix}"
                )
            write(part, names, records)
    except OSError as error:
        wrong = StoreReadOnly if isinstance(error, PermissionError) else StoreFull
        raise wrong(f"{target} cannot be written: {error.strerror or error}") from error
    return target


def _is_from(source: str, name: str) -> bool:
    """Whether a job's source, ``prompts.xlsx`` or ``prompts.xlsx[Shots]``, is that file."""
    return source == name or source.startswith(f"{name}[")


@contextmanager
def _set_aside(queue: Queue) -> Iterator[tuple[list[str], set[str], Iterator[Record]]]:
    """All records, read once; the columns they have, and the sheets they came from."""
    payload: dict[str, None] = {}
    stands: list[str] = ["status"]
    sources: set[str] = set()
    with tempfile.TemporaryFile(prefix="vqkit-") as file:
        for record in queue.records():
            names = list(record)
            # A payload column of the name is called "payload.status", so there is but one.
            start = names.index("status")
            payload.update(dict.fromkeys(names[1:start]))
            stands = names[start:]
            sources.add(str(record.get("source")))
            pickle.dump(record, file)
        file.seek(0)
        yield ["job", *payload, *stands], sources, _unpickled(file)


def _unpickled(file: IO[bytes]) -> Iterator[Record]:
    try:
        while True:
            yield pickle.load(file)
    except EOFError:
        return


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """A file to write beside the target, which it replaces if all went well."""
    part = target.with_name(f".{target.stem}.{os.getpid()}.part{target.suffix}")
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _write_csv(path: Path, names: list[str], records: Iterable[Record]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_text(record.get(name)) for name in names] for record in records)


def _write_jsonl(path: Path, names: list[str], records: Iterable[Record]) -> None:
    with path.open("w", encoding="ascii") as file:
        for record in records:
            file.write(codec.encode({name: _plain(value) for name, value in record.items()}) + "\n")


def _write_xlsx(path: Path, names: list[str], records: Iterable[Record]) -> None:
    from openpyxl import Workbook
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.styles import Font

    if len(names) > XLSX_COLUMNS:
        raise UsageError(f"a workbook holds {XLSX_COLUMNS:,} columns, these are {len(names):,};"
                         " save them as .jsonl")  # fmt: skip
    book = Workbook(write_only=True)
    sheet = book.create_sheet("jobs")
    sheet.freeze_panes = "B2"

    def cell(value: Any, *, bold: bool = False) -> Any:
        value = _cell_value(value)
        made = WriteOnlyCell(sheet, value)
        if isinstance(value, str):
            made.data_type = "s"  # or "=1+1" would be a formula, and "#N/A" an error
        if bold:
            made.font = Font(bold=True)
        return made

    try:
        sheet.append([cell(name, bold=True) for name in names])
        for number, record in enumerate(records, 2):
            if number > XLSX_ROWS:
                raise UsageError(
                    f"a workbook holds {XLSX_ROWS - 1:,} jobs and the queue has more; save them as"
                    " .csv or .jsonl"
                )
            sheet.append([cell(record.get(name)) for name in names])
    finally:
        sheet.close()  # or openpyxl complains of it later, where nobody can catch it
    book.save(path)


WRITERS: dict[str, Writer] = {".csv": _write_csv, ".jsonl": _write_jsonl, ".xlsx": _write_xlsx}


def _plain(value: Any) -> Any:
    return value.isoformat(timespec="milliseconds") if isinstance(value, datetime) else value


def _text(value: Any) -> str:
    """A value as the text of a cell; lists, dicts and truth values as JSON."""
    value = _plain(value)
    if value is None:
        return ""
    return value if isinstance(value, str) else codec.encode(value)


def _cell_value(value: Any) -> Any:
    """A value as a workbook can hold it: text made safe, times in UTC without saying so."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float) and abs(value) < XLSX_DIGITS:
        return value
    text = XLSX_UNABLE.sub("\ufffd", _text(value).replace("\r\n", "\n").replace("\r", "\n"))
    text = XLSX_ESCAPE.sub("_x005F_", text)
    if _units(text) > XLSX_CHARACTERS:
        note = f" … [cut: {len(text):,} characters; a .csv or .jsonl file holds them all]"
        text = text[: (XLSX_CHARACTERS - 200) // (2 if _units(text) > len(text) else 1)] + note
    return text


def _units(text: str) -> int:
    """The length of a text as Excel counts it, in UTF-16 units."""
    return len(text) + sum(c > "\uffff" for c in text) if not text.isascii() else len(text)
