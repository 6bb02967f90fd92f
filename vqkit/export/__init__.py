"""Results out: all jobs of a queue as a file, one row a job, or beside the rows of a workbook.

What each form keeps of a payload: .jsonl every value, .parquet every value (nothing and
None are one), .xlsx and .csv every text, with numbers, lists and dicts as these forms have them.
The file appears under its name when it is whole.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .. import codec
from ..errors import UsageError
from .rows import Rows, as_text, is_whole, plain, set_aside
from .target import HALF, Change, Changes, Saved, replacing, target_of

if TYPE_CHECKING:
    from ..queue.looking import Looking

__all__ = ["Change", "Saved", "save"]

Writer = Callable[[Path, Rows, Changes], None]

# What makes a spreadsheet take a cell for a formula (the wide forms do too, in East Asian
# locales), and an apostrophe before it, so that taking one off restores every text.
FORMULA = re.compile("'*[=+\\-@\t\r＝＋－＠]")
GUARDED = "that begin like a formula have an apostrophe before them"


def save(queue: Looking, path: str | os.PathLike[str], *, overwrite: bool = False) -> Saved:
    """Writes all jobs, payload columns first, then how each stands.

    The ending chooses the form. A file that is there is replaced, once the new one is whole,
    if this queue saved it and nobody changed it since; any other only with `overwrite`.
    Raises UsageError otherwise, for an ending that is not written here, and for more rows or
    columns than a workbook can hold.
    """
    target = target_of(path, tuple(WRITERS))
    changes = Changes()
    with set_aside(queue) as rows:
        is_source = any(_is_from(source, target.name) for source in rows.sources)
        if target.exists() and is_source and not overwrite:
            raise UsageError(
                f"{target.name} is the name of the sheet the jobs came from; it is not written"
                f" over. Give the results another name, such as results{target.suffix}"
            )
        with replacing(queue.path, target, overwrite) as part:
            WRITERS[target.suffix.lower()](part, rows, changes)
    return Saved(target, rows.count, tuple(changes.first), dict(changes.counts))


def _is_from(source: str, name: str) -> bool:
    """Whether a job's source, ``prompts.xlsx`` or ``prompts.xlsx[Shots]``, is that file."""
    return source == name or source.startswith(f"{name}[")


def _write_csv(path: Path, rows: Rows, changes: Changes) -> None:
    # Excel takes a file without the mark for its own code page. With \r\n at the ends of
    # lines, csv puts quotation marks around a lone \r too.
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file, lineterminator="\r\n")
        writer.writerow([_csv_text(0, name, name, changes) for name in rows.names])
        for record in rows:
            job = record["job"]
            writer.writerow(
                [_csv_text(job, name, record.get(name), changes) for name in rows.names]
            )


def _csv_text(job: int, name: str, value: object, changes: Changes) -> str:
    text = as_text(value)
    if not isinstance(value, str):
        return text
    if not is_whole(text):
        changes.note(job, name, HALF)
        text = codec.clean_text(text)
    if FORMULA.match(text):
        changes.note(job, name, GUARDED)
        return f"'{text}"
    return text


def _write_jsonl(path: Path, rows: Rows, _: Changes) -> None:
    with path.open("w", encoding="ascii") as file:
        for record in rows:
            file.write(codec.encode({name: plain(value) for name, value in record.items()}) + "\n")


def _write_xlsx(path: Path, rows: Rows, changes: Changes) -> None:
    from .xlsx import write_xlsx

    write_xlsx(path, rows, changes)


def _write_parquet(path: Path, rows: Rows, changes: Changes) -> None:
    from .parquet import write_parquet

    write_parquet(path, rows, changes)


WRITERS: dict[str, Writer] = {
    ".csv": _write_csv,
    ".jsonl": _write_jsonl,
    ".parquet": _write_parquet,
    ".xlsx": _write_xlsx,
}
