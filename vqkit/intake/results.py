"""Columns that vqkit wrote into a file with its results: they are no part of the file's rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from ..job import STATUSES

__all__ = ["Written", "written"]

# What `save` writes behind the payload, in this order; before it stands "job".
SAVED = (
    *("status", "stage", "attempts", "account", "output", "cost", "created", "started"),
    *("finished", "error", "error_line", "result", "seed", "source", "row", "batch", "key"),
)
ZONE = re.compile(r" \(UTC(?:[+-]\d\d:\d\d)?\)$")  # behind the times in a workbook
PREFIX = "payload."  # before a payload's name that `save` needs for itself
# What `save_into` writes, side by side; a name that the sheet had before is marked.
BESIDE = (r"status", r"file", r"file \d+", r"cost", r"error")
MARK = r"(?: \(vqkit\))*"


class Written(NamedTuple):
    """The names that vqkit wrote and that are left out, and {name: what it is in a payload}."""

    left_out: tuple[str, ...] = ()
    renamed: Mapping[str, str] = MappingProxyType({})


def written(names: Sequence[str], records: Sequence[Mapping[str, Any]] = ()) -> Written:
    """Which of a header's names are vqkit's own, told by how they stand together.

    And by what the first `records` hold: columns whose statuses are mostly none that a job has
    are the user's own. Of what `save` wrote the column "key" stays: by it each row is known.
    """
    width = len(SAVED)
    for at in range(len(names) - width + 1):
        is_saved = tuple(ZONE.sub("", name) for name in names[at : at + width]) == SAVED
        if is_saved and _are_ours(names[at], records):
            first = ("job",) if names[0] == "job" else ()
            own = (*first, *names[at : at + width - 1])
            renamed = {name: name[len(PREFIX) :] for name in names if name.startswith(PREFIX)}
            return Written(own, {name: to for name, to in renamed.items() if to})
    found: list[str] = []
    at = 0
    while at < len(names):
        length = _beside(names[at:])
        if length and _are_ours(names[at], records):
            found += names[at : at + length]
        at += length or 1
    return Written(tuple(found))


def _are_ours(status: str, records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the statuses told in this column are those of jobs; a few may have been typed over.

    What several jobs of a row are is told in short: "2 completed, 1 failed".
    """
    told = [one for record in records if (one := record.get(status)) not in (None, "")]
    words = [[part.split()[-1:] for part in str(one).split(",")] for one in told]
    ours = [all(word and word[0] in STATUSES for word in of_a_row) for of_a_row in words]
    return 2 * sum(ours) >= len(told)


def _beside(names: Sequence[str]) -> int:
    """How many names from the first on `save_into` wrote; 0 where it did not."""
    status, file, more, cost, error = BESIDE
    n = 2
    while n < len(names) and _is(names[n], more):
        n += 1
    wanted = [status, file, *[more] * (n - 2), cost, error]
    is_whole = len(names) >= len(wanted)
    return len(wanted) if is_whole and all(map(_is, names, wanted)) else 0


def _is(name: str, wanted: str) -> bool:
    return re.fullmatch(wanted + MARK, name) is not None
