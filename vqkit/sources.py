"""Which file is which: the names that sources are known by, and what became of their files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain, islice
from itertools import count as numbers_from
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from . import intake
from .errors import SheetError
from .intake.table import Table
from .job import RowProblem

if TYPE_CHECKING:
    from .queue.looking import Looking
    from .queue.putting import Putting

__all__ = ["SOURCES", "absent_sources", "claim", "known_source", "named", "renamed_from"]

ROWS_COMPARED = 1000  # of a file that may be a renamed one
# The setting {source: [path as seen from the queue, sheet, columns= of the last put]}; what an
# older version kept has no columns.
SOURCES = "sources"

Place: TypeAlias = "list[Any]"  # path, sheet


def absent_sources(queue: Looking, source: str) -> frozenset[str]:
    """The sources, but for this one, whose files are not there any more: they have no rows."""
    known = queue._read(lambda store: store.setting(SOURCES, {}))
    others = {name: place for name, place in known.items() if name != source}
    return frozenset(name for name, place in others.items() if not _is_there(queue, place))


def _is_there(queue: Looking, place: Place) -> bool:
    return os.path.lexists(queue.path.parent / place[0])


def named(
    queue: Putting, table: Table, defaults: dict[str, Any], renamed: str | None = None
) -> dict[str, Any]:
    """Names the source so that another file of the same name is not taken for it.

    And the batch after it, unless the user has. Nothing is kept of that until it is put.
    """
    if table.path is not None:
        known = queue._read(lambda store: store.setting(SOURCES, {}))
        mine = _place(queue, table.path, table.sheet)
        table.source = renamed or _name_of(table, mine, known)
        return {**defaults, "batch": defaults["batch"] or table.source}
    return defaults


def renamed_from(queue: Putting, table: Table, defaults: dict[str, Any]) -> str | None:
    """The file that this one was before it was renamed or moved; None where it was none.

    That is one the queue knows, that is not there any more, and that has two thirds and more of
    the first rows of this one. The queue does not know this one itself.
    """
    if table.path is None:
        return None
    known = queue._read(lambda store: store.setting(SOURCES, {}))
    mine = _place(queue, table.path, table.sheet)
    if any(place[:2] == mine for place in known.values()):
        return None
    lost = {n for n, place in known.items() if place[1] == mine[1] and not _is_there(queue, place)}
    if not lost:
        return None
    items = islice(intake.specs(table, **defaults), ROWS_COMPARED)
    made = [queue._expand(item) for item in items if not isinstance(item, RowProblem)]
    jobs = {jobs[0].key or "": jobs[0] for jobs in made if isinstance(jobs, list)}
    met: Counter[str] = Counter()
    for found in queue._read(lambda store: store.by_keys(list(jobs))):
        is_same = found.payload_hash == jobs[found.key or ""].payload_hash
        if found.source is not None and found.row is not None and is_same:
            met[found.source] += found.source in lost
    (name, n), *_ = met.most_common(1) or [("", 0)]
    return name if n and 3 * n >= 2 * len(made) else None


def _name_of(table: Table, mine: Place, known: Mapping[str, Any]) -> str:
    """What this file and sheet are known by, or the first name that is free."""
    assert table.path is not None
    name = table.source
    names = chain(
        (name, f"{table.path.absolute().parent.name}/{name}"),
        (f"{name} ({n})" for n in numbers_from(2)),
    )
    old = next((name for name, place in known.items() if place[:2] == mine), None)
    return old or next(name for name in names if name not in known)


def claim(
    queue: Putting,
    table: Table,
    planned: str | None = None,
    *,
    renamed: str | None = None,
    is_put: bool = True,
) -> str:
    """Names the source for good, with the columns it `is_put` with; returns its name.

    In one transaction: of two files of one name, put at once, only one gets it; a file that was
    `renamed` keeps its name. Raises SheetError if the name is not the `planned` one any more.
    """
    if table.path is None:
        return table.source
    mine = _place(queue, table.path, table.sheet)
    name = ""

    def claimed(known: dict[str, Any] | None) -> dict[str, Any]:
        nonlocal name
        name = _name_of(table, mine, known or {})
        place = (known or {}).get(renamed or "")
        if place is not None and not _is_there(queue, place):
            assert renamed is not None
            name = renamed
        if planned not in (None, name):
            raise SheetError(
                f"{planned} is now the name of another file, which was put since this plan was"
                f" made, and nothing was put; look at a new one: q.plan({str(table.path)!r})",
                source=planned,
            )
        old = (known or {}).get(name, mine)
        return {**(known or {}), name: [*mine, *([table.asked] if is_put else old[2:])]}

    queue._write(lambda store: store.change_setting(SOURCES, claimed))
    return name


def known_source(
    queue: Looking, path: Path, sheet: str | None
) -> tuple[str | None, list[str] | dict[str, str | None] | None]:
    """What the jobs of this file and sheet name as their source, and the columns they took.

    (None, None) if it was never put.
    """
    known = queue._read(lambda store: store.setting(SOURCES, {}))
    mine = _place(queue, path, sheet)
    found = ((name, place) for name, place in known.items() if place[:2] == mine)
    name, place = next(found, (None, mine))
    return name, place[2] if len(place) > 2 else None


def _place(queue: Looking, path: Path, sheet: str | None) -> Place:
    path = path.absolute()
    with suppress(ValueError):  # on another drive
        path = Path(os.path.relpath(path, queue.path.parent))
    return [path.as_posix(), sheet]
