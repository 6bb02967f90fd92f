"""Results beside the rows they came from, in a copy of the user's own workbook."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from .. import codec, intake, secrets
from ..errors import PayloadError, SheetError, UsageError
from ..intake.settings import SETTINGS
from ..job import Job, JobSpec, content_key
from ..sources import known_source
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
# The key of a row that was given none, and which of the equal rows it is.
CONTENT = re.compile("(content:[0-9a-f]{32})(?:#([0-9]+))?")
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


@dataclass
class _Group:
    """The jobs that were put for one row, `samples` of them."""

    jobs: list[Standing] = field(default_factory=list)

    @property
    def row(self) -> int | None:
        """Where the row stood last."""
        return self.jobs[0].job.row

    @property
    def lane(self) -> Lane:
        """The provider and the account that they name."""
        return self.jobs[0].job.provider, self.jobs[0].job.pinned_account

    def fits(self, spec: JobSpec) -> bool:
        """Whether they were put with all that the row names."""
        job = self.jobs[0].job
        found = (job.provider, job.pinned_account, job.seed - job.sample)
        wanted = (spec.provider, spec.account, spec.seed)
        return all(want in (None, have) for want, have in zip(wanted, found, strict=True))


Lane: TypeAlias = "tuple[str | None, str | None]"
# {payload's hash: {key without what tells equal rows apart: their jobs, in the rows' order}}
_Groups: TypeAlias = "dict[str, dict[str, list[_Group]]]"


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

    Payload, key, seed, provider and account count, wherever the row stands; equal rows are told
    apart by their order. So rows may have been sorted or moved; one that was edited has no job
    any more. Raises UsageError if no job came from this file or none has a row in it, SheetError
    if it cannot be read.
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
    known, loaded = known_source(queue, origin, sheet or intake.sheet_of(origin))
    columns = loaded if columns is None else columns
    table = intake.read(origin, sheet=sheet, columns=columns, hidden=True)
    if table.sheet is None:
        raise SheetError(f"{origin.name} has no sheet that results could be added to")
    jobs = _jobs_of(queue, {table.source, table.name} if known is None else {known})
    if not jobs:
        raise UsageError(
            f"no job of this queue came from {table.source}; it was renamed, or its rows were put"
            " in another way. q.save(…) saves all jobs, whatever they came from."
        )
    match = _matched(table, jobs)
    if not match.rows:
        raise UsageError(
            f"no row of {table.source} holds what one of its {len(jobs):,} jobs was put with, so"
            " there is nothing to save beside it and nothing was written. If the columns were"
            " renamed, or put with columns=…, say columns=… here too; q.save(…) saves all jobs."
        )
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


def _jobs_of(queue: Looking, sources: set[str]) -> list[Standing]:
    """The jobs of these sources, also those that another source put first."""
    shared = queue._read(lambda store: store.rows_shared_by(sources))
    jobs = []
    for standing in map(Standing._make, queue._standings()):
        job = standing.job
        if job.source in sources and (job.row is not None or job.number not in shared):
            jobs.append(standing)
        elif job.number in shared:
            jobs.append(standing._replace(job=job._replace(row=shared[job.number])))
    return jobs


def _matched(table: intake.Table, jobs: Sequence[Standing]) -> _Match:
    """Gives each row the jobs that were put for it, by what both hold."""
    used = {name for standing in jobs for name in standing.job.payload}
    groups = _grouped(jobs)
    lanes = {
        payload_hash: {equals[0].lane for equals in named.values()}
        for payload_hash, named in groups.items()
    }
    numbers: list[int] = []
    equal: dict[tuple[str, str], dict[int, int | None]] = defaultdict(dict)
    for item in table:
        number = item.number if isinstance(item, intake.Row) else item.row
        numbers.append(number)
        spec = _spec_of(item, used) if isinstance(item, intake.Row) else None
        if isinstance(item, intake.Row) and spec is not None:
            payload_hash = codec.content_hash(spec.payload)
            named = groups.get(payload_hash, {})
            if name := _name_of(spec, named, lanes.get(payload_hash, set())):
                samples = spec.samples if "samples" in item.values else None
                equal[payload_hash, name][number] = samples
    found: dict[int, _Group] = {}
    for (payload_hash, name), wanted in equal.items():
        found |= _dealt(wanted, groups[payload_hash][name])
    dealt = {id(group) for group in found.values()}
    left = [
        group
        for named in groups.values()
        for equals in named.values()
        for group in equals
        if id(group) not in dealt
    ]
    gone = sorted(s.job.number for group in left for s in group.jobs)
    moved = [number for number, group in found.items() if number != group.row]
    without = set(numbers) - found.keys()
    others = sorted(without & {group.row for group in left})
    new = sorted(without - set(others))
    notes = [
        text.format(_listed(listed))
        for text, listed in (
            ("Rows moved since they were put, found by what they hold: {}.", sorted(moved)),
            ("Rows that hold something else than was put from there, so no result: {}.", others),
            ("Rows for which, as they are now, the queue has no job: {}.", new),
            ("Jobs whose row, as it was put, is not there any more: {}.", gone),
        )
        if listed
    ]
    rows = {number: found[number].jobs for number in numbers if number in found}
    return _Match(rows, min(numbers), notes)


def _spec_of(row: intake.Row, used: set[str]) -> JobSpec | None:
    """What the row asks for, of the columns that jobs have; None where it could not be put."""
    values = {k: v for k, v in row.values.items() if k in used or k in SETTINGS}
    try:
        return intake.spec_of(row._replace(values=values), JobSpec({}))
    except (PayloadError, UsageError):
        return None


def _name_of(spec: JobSpec, named: Mapping[str, list[_Group]], lanes: set[Lane]) -> str | None:
    """The key that the jobs of such a row have; of several that might be, the newest."""
    if spec.key is not None:
        names = [spec.key]
    else:  # what the row leaves open was said when it was put
        names = [content_key(spec._replace(provider=p, account=a)) for p, a in lanes]
    fitting = [name for name in names if name in named and named[name][0].fits(spec)]
    return max(fitting, key=lambda name: _age(named[name][0]), default=None)


def _grouped(jobs: Sequence[Standing]) -> _Groups:
    found: dict[tuple[str, str], _Group] = defaultdict(_Group)
    for standing in jobs:
        job = standing.job
        key = (job.key or "").removesuffix(f"@{job.payload_hash[:12]}")
        if job.sample:
            key = key.removesuffix(f"~{job.sample + 1}")
        found[job.payload_hash, key].jobs.append(standing)
    ordered = []
    for (payload_hash, key), group in found.items():
        content = CONTENT.fullmatch(key)
        name, nth = (content[1], int(content[2] or 1)) if content else (key, 1)
        ordered.append((group.row is None, nth, payload_hash, name, group))
    groups: _Groups = defaultdict(lambda: defaultdict(list))
    for _, _, payload_hash, name, group in sorted(ordered, key=lambda one: one[:2]):
        groups[payload_hash][name].append(group)
    return groups


def _age(group: _Group) -> tuple[bool, int]:
    return group.row is not None, group.jobs[0].job.number


def _dealt(wanted: Mapping[int, int | None], groups: Sequence[_Group]) -> dict[int, _Group]:
    """Which of the equal rows has which jobs: in order, and as many `samples` as it names.

    Where there are more rows than were put (hidden ones, or new ones), those that stand where
    a row was put come first.
    """
    there = {group.row for group in groups}
    chosen = sorted(sorted(wanted, key=lambda number: number not in there)[: len(groups)])
    left = deque(groups)
    dealt = {}
    for number in chosen:
        samples = wanted[number]
        at = 0
        if samples is not None:
            at = next((i for i, group in enumerate(left) if len(group.jobs) == samples), 0)
        dealt[number] = left[at]
        del left[at]
    return dealt


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
    text = codec.clean_text(secrets.redact("\n".join(said)))
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
