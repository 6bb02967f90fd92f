"""Results beside the rows they came from, in a copy of the user's own workbook."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import codec, intake
from ..errors import PayloadError, SheetError, UsageError
from ..intake.settings import SETTINGS
from ..job import Job
from ..plan import known_source
from .target import Changes, Saved, replacing, target_of
from .workbook import LINKS, Link, add_columns
from .xlsx import CHARACTERS, escaped, pieces, units

if TYPE_CHECKING:
    from ..queue.looking import Looking

__all__ = ["save_into"]

WORKBOOKS = (".xlsx", ".xlsm")
FILES = 20  # columns for the files of one row
ROWS_TOLD = 5
CUT = "longer than a cell can be, and cut; q.job(…).error has the whole text"
ADDRESS = 2079  # characters that Excel takes in a link
# In a link's address as in Excel's own: letters of any script stay, these are escaped.
UNSAFE = re.compile('[\x00-\x20"#%<>?\\\\^`{|}\x7f]')


class Standing(NamedTuple):
    """A job, its finished files, and what it cost in dollars."""

    job: Job
    files: list[Path]
    cost: float | None


@dataclass
class _Match:
    """Which row has which jobs, and what to say of the others."""

    rows: dict[int, list[Standing]]
    first: int
    notes: list[str]


def save_into(
    queue: Looking,
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    sheet: str | None = None,
    columns: list[str] | dict[str, str | None] | None = None,
    overwrite: bool = False,
) -> Saved:
    """See `Queue.save_into`. A row and a job belong together if they hold the same.

    So rows may have been sorted or moved; one that was edited has no job any more. Raises
    UsageError if no job came from this file, SheetError if it cannot be read.
    """
    origin = Path(source).expanduser().resolve()
    if origin.suffix.lower() not in WORKBOOKS:
        raise UsageError(
            f"results are added to workbooks ({', '.join(WORKBOOKS)}) only, and {origin.name} is"
            " none; q.save(…) writes a file of their own"
        )
    target = target_of(path, (origin.suffix.lower(),))
    if target == origin and not overwrite:
        raise UsageError(
            f"{origin.name} is the workbook the rows come from; it is not written over. Give the"
            f" results another name, such as {origin.stem}-results{origin.suffix}, or say"
            " overwrite=True (on the command line --overwrite)."
        )
    # Rows that are hidden now may have been put all the same.
    table = intake.read(origin, sheet=sheet, columns=columns, hidden=True)
    if table.sheet is None:
        raise SheetError(f"{origin.name} has no sheet that results could be added to")
    known = known_source(queue, table)
    sources = {table.source, table.name} if known is None else {known}
    jobs = [s for s in map(Standing._make, queue._standings()) if s.job.source in sources]
    if not jobs:
        raise UsageError(
            f"no job of this queue came from {table.source}; it was renamed, or its rows were put"
            " in another way. q.save(…) saves all jobs, whatever they came from."
        )
    match = _matched(table, jobs)
    changes = Changes()
    file_columns = min(FILES, max([1, *map(_count_files, match.rows.values())]))
    names = ["status", "file", *(f"file {n}" for n in range(2, file_columns + 1)), "cost", "error"]
    header = _free_names(names, table._header or table.columns)
    rows = {
        number: _cells(found, target.parent, file_columns, changes)
        for number, found in match.rows.items()
    }
    with replacing(queue.path, target, overwrite) as part:
        left_out = add_columns(origin, part, table.sheet, header, rows, first=match.first)
    if left_out:
        match.notes.append(
            f"{left_out:,} files are named without a link: Excel opens no sheet with more than"
            f" {LINKS:,} links."
        )
    written = sum(map(len, match.rows.values()))
    counts = dict(changes.counts)
    return Saved(target, written, tuple(changes.first), counts, tuple(match.notes))


def _matched(table: intake.Table, jobs: Sequence[Standing]) -> _Match:
    """Gives each row the jobs that were put for it, by what both hold."""
    used = {name for standing in jobs for name in standing.job.payload}
    left: dict[str, dict[int, list[Standing]]] = defaultdict(lambda: defaultdict(list))
    for standing in jobs:
        left[standing.job.payload_hash][standing.job.row or 0].append(standing)
    contents: dict[int, str] = {}
    numbers: list[int] = []
    for item in table:
        number = item.number if isinstance(item, intake.Row) else item.row
        numbers.append(number)
        if isinstance(item, intake.Row):
            contents[number] = _content(item, used)
    rows = {
        number: left[content].pop(number)
        for number, content in contents.items()
        if number in left.get(content, ())
    }
    moved = []
    for number, content in contents.items():
        if number not in rows and left.get(content):
            rows[number] = left[content].pop(min(left[content]))
            moved.append(number)
    gone = sorted(
        (number, standing.job.number)
        for groups in left.values()
        for number, group in groups.items()
        for standing in group
    )
    edited = {number for number, _ in gone if number in contents and number not in rows}
    new = [number for number in numbers if number not in rows and number not in edited]
    notes = [
        text.format(_listed(found))
        for text, found in (
            ("Rows moved since they were put, found by what they hold: {}.", moved),
            ("Rows edited since they were put, so that no result is theirs: {}.", sorted(edited)),
            ("Rows that were never put: {}.", new),
            ("Jobs whose row is not there any more: {}.", [job for _, job in gone]),
        )
        if found
    ]
    if not rows:
        notes.append("No row fits its job: if they were put with columns=…, say so here too.")
    return _Match(rows, min(numbers), notes)


def _content(row: intake.Row, used: set[str]) -> str:
    payload = {k: v for k, v in row.values.items() if k in used and k not in SETTINGS}
    try:
        return codec.content_hash(payload)
    except PayloadError:
        return ""  # it could not be put, so no job is its


def _cells(
    found: Sequence[Standing], folder: Path, file_columns: int, changes: Changes
) -> list[Any]:
    """Status, files, cost and error of the jobs of one row, as many cells as the header has."""
    statuses = Counter(standing.job.status for standing in found)
    is_one = len(statuses) == 1
    status = ", ".join(s if is_one else f"{count} {s}" for s, count in statuses.items())
    files = [file for standing in found for file in standing.files]
    links: list[Any] = [_link(file, folder) for file in files[:file_columns]]
    if len(files) > file_columns:
        links[-1] = f"{len(files) - file_columns + 1} more files: see q.outputs()"
    costs = [standing.cost for standing in found if standing.cost is not None]
    error = _errors([standing.job for standing in found], changes)
    padding = [None] * (file_columns - len(links))
    return [status, *links, *padding, round(sum(costs), 6) if costs else None, error or None]


def _errors(jobs: Sequence[Job], changes: Changes) -> str | None:
    """What went wrong with those that are not completed; with several jobs, of which."""
    said = []
    for job in jobs:
        wrong = (job.error or {}).get("message") or job.reason
        if wrong and job.status != "completed":
            said.append(f"job {job.number}: {wrong}" if len(jobs) > 1 else str(wrong))
    text = codec.clean_text("\n".join(said))
    if units(escaped(text)) > CHARACTERS:
        changes.note(jobs[0].number, "error", CUT)
        mark = f" … [cut: {len(text):,} characters]"
        text = next(pieces(text, CHARACTERS - len(mark))) + mark
    return text or None


def _count_files(found: Iterable[Standing]) -> int:
    return sum(len(standing.files) for standing in found)


def _link(file: Path, folder: Path) -> Link | str:
    """A link to the file, relative where it lies below the workbook's own folder."""
    is_below = file.is_relative_to(folder)
    way = str(file.relative_to(folder)) if is_below else str(file)
    address = UNSAFE.sub(lambda c: "".join(f"%{b:02X}" for b in c[0].encode()), way)
    address = address if is_below else f"file://{address}"
    return Link(file.name, address) if len(address) <= ADDRESS else str(file)


def _free_names(names: Sequence[str], taken: Iterable[str]) -> list[str]:
    """The names, those that the sheet has already with "(vqkit)" behind them."""
    lower = {name.lower() for name in taken}
    found = []
    for name in names:
        free = name
        while free.lower() in lower:
            free += " (vqkit)"
        found.append(free)
    return found


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:ROWS_TOLD]))
    more = len(numbers) - ROWS_TOLD
    return shown + (f" and {more:,} more" if more > 0 else "")
