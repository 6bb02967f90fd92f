"""What a sheet says of its cells besides their values: merges, filters, what is hidden.

Merged cells and filters stand behind the rows in a sheet's XML, and are needed while the
rows are read; so the end of the part is looked through first, as bytes.
"""

from __future__ import annotations

import posixpath
import re
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import SheetError
from .table import Bad, letter, plain_cell

__all__ = ["Area", "Marks", "marks_of"]

CHUNK = 1 << 18
TAIL_MAX = 32 << 20

END_OF_ROWS = re.compile(rb"</(?:[\w.-]+:)?sheetData\s*>|<(?:[\w.-]+:)?sheetData\s*/>")
MERGE = re.compile(rb"<(?:[\w.-]+:)?mergeCell\s[^>]*?ref\s*=\s*[\"']([A-Z]+\d+:[A-Z]+\d+)[\"']")
# A filter without a column has its arrows and hides nothing.
FILTER = re.compile(
    rb"<(?:[\w.-]+:)?autoFilter\s[^>]*?ref\s*=\s*[\"']([A-Z]+\d+:[A-Z]+\d+)[\"'][^>]*?(?<!/)>"
    rb"\s*<(?:[\w.-]+:)?filterColumn"
)
TABLE = re.compile(rb"Target\s*=\s*[\"']([^\"']*tables?/[^\"']+\.xml)[\"']", re.IGNORECASE)
CORNERS = re.compile(r"([A-Z]+)(\d+):([A-Z]+)(\d+)")


class Area(NamedTuple):
    """A rectangle of cells: rows count from 1, columns from 0, the last ones belong to it."""

    top: int
    left: int
    bottom: int
    right: int

    def __str__(self) -> str:
        return f"{letter(self.left)}{self.top}:{letter(self.right)}{self.bottom}"


@dataclass(slots=True)
class Marks:
    """The marks of one sheet, used row by row from its top.

    `width` is the number of columns the header names; merges beyond it harm nobody.
    """

    merges: list[Area] = field(default_factory=list)
    filters: list[Area] = field(default_factory=list)
    hidden_columns: list[tuple[int, int]] = field(default_factory=list)
    width: int = 0
    _next: int = 0
    _open: list[Area] = field(default_factory=list)

    def hidden_row(self, number: int) -> Bad:
        """Why a hidden row is left out."""
        return self.hidden(
            is_filtered=any(area.top < number <= area.bottom for area in self.filters)
        )

    def hidden(self, *, is_filtered: bool) -> Bad:
        """A row that is left out, filtered out or hidden by hand."""
        kind = "filtered out" if is_filtered else "hidden"
        reason = f"this row is {kind} in the sheet; hidden=True reads it all the same"
        return Bad(reason, kind=kind)

    def mark(self, number: int, row: list[Any]) -> list[Any]:
        """The row with a `Bad` where a person sees the text of a cell merged with this one.

        Rows come from the top on, after `width` is set.
        """
        while self._next < len(self.merges) and self.merges[self._next].top <= number:
            area = self.merges[self._next]
            self._next += 1
            shown = row[area.left] if area.top == number and area.left < len(row) else None
            if area.left < self.width and plain_cell(shown) is not None:
                self._open.append(area)
        if not self._open:
            return row
        self._open = [area for area in self._open if area.bottom >= number]
        marked = list(row)
        for area in self._open:
            is_first = number == area.top
            if is_first and min(area.right, self.width - 1) == area.left:
                continue
            at = letter(area.left)
            reason = (
                f"the cells {area} are merged into one over several columns; split them"
                if is_first
                else f"cell {at}{number} is merged with {at}{area.top} above (cells {area}); split"
                " the cells and fill in each"
            )
            marked.extend([None] * (area.left + 1 - len(marked)))
            marked[area.left] = Bad(reason, kind="merged continuation")
        return marked

    def notes(self, names: Sequence[str]) -> tuple[str, ...]:
        """What to say of hidden columns: they are read."""
        hidden = [
            repr(name)
            for index, name in enumerate(names)
            if name and any(first <= index <= last for first, last in self.hidden_columns)
        ]
        if not hidden:
            return ()
        one = len(hidden) == 1
        return (
            f"{'Column' if one else 'Columns'} {', '.join(hidden)} {'is' if one else 'are'} hidden"
            " in the sheet and read all the same; columns=[…] leaves out what is not wanted.",
        )


def marks_of(archive: zipfile.ZipFile, part: str) -> Marks:
    """The merges and filters of a sheet, whose part of the workbook is named."""
    tail = _tail(archive, part)
    found = [tail, *_tables(archive, part)]
    filters = [_area(ref) for text in found for ref in FILTER.findall(text)]
    merges = sorted(_area(ref) for ref in MERGE.findall(tail))
    return Marks(merges=merges, filters=filters)


def _tail(archive: zipfile.ZipFile, part: str) -> bytes:
    """What stands behind the rows; b'' where the sheet breaks off before."""
    behind = b""
    try:
        with archive.open(part) as file:
            while chunk := file.read(CHUNK):
                window = behind[-64:] + chunk
                if end := END_OF_ROWS.search(window):
                    tail = window[end.end() :] + file.read(TAIL_MAX)
                    if len(tail) > TAIL_MAX:
                        raise SheetError(
                            f"{part} has more than {TAIL_MAX:,} bytes of merged cells, rules and"
                            " the like behind its rows; save the rows as .csv",
                            part=part,
                        )
                    return tail
                behind = chunk
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, KeyError):
        return b""  # damage is told where the rows are read
    return b""


def _tables(archive: zipfile.ZipFile, part: str) -> list[bytes]:
    """The parts of the sheet's tables, each of which has a filter of its own."""
    folder, name = posixpath.split(part)
    known = set(archive.namelist())
    relations = posixpath.join(folder, "_rels", f"{name}.rels")
    if relations not in known:
        return []
    targets = TABLE.findall(_small(archive, relations))
    paths = (posixpath.normpath(posixpath.join(folder, t.decode("utf-8"))) for t in targets)
    found = (path.lstrip("/") for path in paths)
    return [_small(archive, path) for path in found if path in known]


def _small(archive: zipfile.ZipFile, part: str) -> bytes:
    try:
        with archive.open(part) as file:
            return file.read(TAIL_MAX)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError):
        return b""  # a damaged table hides which rows it filters, never the rows


def _area(ref: bytes) -> Area:
    corners = CORNERS.fullmatch(ref.decode("ascii"))
    if corners is None:  # the patterns above let nothing else through
        raise ValueError(f"no area of cells: {ref!r}")
    left, top, right, bottom = corners.groups()
    return Area(int(top), _column(left), int(bottom), _column(right))


def _column(letters: str) -> int:
    index = 0
    for character in letters:
        index = index * 26 + ord(character) - 64
    return index - 1
