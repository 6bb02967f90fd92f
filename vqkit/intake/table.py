"""What every reader gives: a table of rows, read one at a time, with nothing guessed.

A reader opens its source and gives a `Reading`; `Table` chooses the columns, makes the cells
plain and says which rows cannot be read. A new kind of source is a new reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ..errors import SheetError
from ..job import RowProblem
from .results import Written, written

__all__ = [
    "Bad",
    "Columns",
    "Reading",
    "Record",
    "Row",
    "Table",
    "grid",
    "header",
    "letter",
    "number_of",
    "plain_cell",
]

# Rows looked at before the first is given out: they tell the columns of objects, and show
# data under a blank header before anything has run. It bounds memory, so it stays small.
AHEAD = 100

WHOLE_MAX = 2**53  # from here on a float does not tell neighbouring integers apart
DIGITS_KEPT = 15

Columns: TypeAlias = Sequence[str] | Mapping[str, str | None]
Record: TypeAlias = "tuple[int, Mapping[str, Any] | Bad]"


class Row(NamedTuple):
    """A row that can be read. `values` has no entry for a blank cell."""

    number: int
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Bad:
    """A cell or a row that cannot be read, and why; `kind` is the why in a word or two."""

    reason: str
    kind: str = field(default="cannot be read", kw_only=True)


@dataclass(frozen=True, slots=True)
class Stray(Bad):
    """A row with data in a column that has no name; `named` is the rest of it."""

    column: str
    named: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reading:
    """One pass over a source. `columns` is None where each row names its own.

    `source` is what a job says it came from. `empty` is what to say when there is no row at
    all; None where that is no mistake, as for a list.
    """

    name: str
    records: Iterator[Record]
    columns: tuple[str, ...] | None = None
    source: str | None = None
    sheet: str | None = None
    notes: tuple[str, ...] = ()
    empty: str | None = None


class Table:
    """Rows of a sheet, file, frame or iterable, read as they are asked for.

    `path` is the file or folder (None for rows in memory), `name` its name, `asked` the
    `columns` that were asked for, `sheet` a
    workbook's sheet, `source` both as a job names them, `columns` the header as chosen,
    `notes` sentences on how it was read, `has_results` whether vqkit has written into it, as its
    heads tell. Iterating gives a `Row` or a `RowProblem` for every
    row that is not blank; iterating again reads again, and raises SheetError where that is
    impossible (`is_once`: a generator) or the columns have changed.
    """

    def __init__(
        self,
        reopen: Callable[[], Reading],
        columns: Columns | None = None,
        *,
        path: Path | None = None,
        is_once: bool = False,
    ) -> None:
        self.path = path
        if isinstance(columns, str):
            columns = [columns]
        self.asked: list[str] | dict[str, str | None] | None = None
        if columns is not None:
            self.asked = dict(columns) if isinstance(columns, Mapping) else list(columns)
        self.is_once = is_once
        reading = reopen()
        ahead = list(islice(reading.records, AHEAD))
        if not ahead and reading.empty is not None:
            raise SheetError(reading.empty, source=reading.name)
        self.name = reading.name
        self.sheet = reading.sheet
        self.source = reading.source or reading.name
        self.notes = reading.notes
        known = reading.columns if reading.columns is not None else _keys(ahead)
        if not known and not ahead:  # an empty list has no columns, and no row to miss one
            columns = None
        self._is_asked = columns is not None
        self._chosen = None if columns is None else _choose(columns, known, self.source)
        own = written(known, [record for _, record in ahead if isinstance(record, Mapping)])
        self.has_results = bool(own.left_out)
        self._leave_out_results(own, known, columns)
        self.columns = tuple(filter(None, known if self._chosen is None else self._chosen.values()))
        if not self._is_asked:
            _refuse_stray(ahead, self.source)
        self._header = reading.columns
        self._reopen = reopen
        self._opened: Iterator[Record] | None = chain(ahead, reading.records)

    def __iter__(self) -> Iterator[Row | RowProblem]:
        records, self._opened = self._opened, None
        if records is None:
            reading = self._reopen()
            if reading.columns != self._header:
                raise SheetError(
                    f"the columns of {self.source} have changed since it was read: expected"
                    f" {_listed(self._header)}, found {_listed(reading.columns)}. Read it again.",
                    source=self.source,
                )
            records = reading.records
        return (self._item(number, record) for number, record in records)

    def _leave_out_results(
        self, own: Written, known: tuple[str, ...], columns: Columns | None
    ) -> None:
        """What vqkit wrote there is no part of a row, unless `columns` names it."""
        named: Iterable[str] = () if columns is None else columns
        left_out = [name for name in own.left_out if name not in named]
        if not left_out or isinstance(columns, Sequence):
            return
        chosen = self._chosen or {name: name for name in known if name}
        self._chosen = {
            name: to if name in named else own.renamed.get(name, to)
            for name, to in chosen.items()
            if name not in left_out
        }
        self.notes += (
            f"Columns {left_out[0]!r} to {left_out[-1]!r} hold results that vqkit saved there; they"
            " were left out. To read one all the same, name it in columns=….",
        )

    def __repr__(self) -> str:
        return f"Table({self.source!r}, columns={self.columns!r})"

    def _item(self, number: int, record: Mapping[str, Any] | Bad) -> Row | RowProblem:
        if isinstance(record, Stray) and self._is_asked:
            record = record.named
        if isinstance(record, Bad):
            return RowProblem(number, record.reason, self.source, record.kind)
        values = {}
        for name, raw in record.items():
            if self._chosen is not None:
                if name not in self._chosen:
                    continue
                name = self._chosen[name]
            if isinstance(raw, Bad):
                return RowProblem(number, raw.reason, self.source, raw.kind)
            value = plain_cell(raw)
            if value is not None:
                values[name] = value
        return Row(number, values)


def plain_cell(value: Any) -> Any:
    """A cell as text, number, boolean, list or dict; None where it is blank.

    Blank is None, NaN, NaT, and text that is empty or only spaces. Text stays as it is; a
    whole number held as a float (what pandas makes of integers with holes) is an integer
    again; dates are ISO text, and a midnight without a time zone is a date. All readers pass
    here, so that a row has the same content whichever of them read it.
    """
    if type(value) is str:
        return value if value and not value.isspace() else None
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        if value != value:
            return None
        return int(value) if value.is_integer() and abs(value) < WHOLE_MAX else float(value)
    if type(value).__name__ in ("NaTType", "NAType"):  # pandas' own holes, without pandas
        return None
    if isinstance(value, str):
        return plain_cell(str(value))
    if isinstance(value, datetime):
        is_day = value.tzinfo is None and value.time() == time()
        return value.date().isoformat() if is_day else value.isoformat()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return str(value)
    if isinstance(value, Decimal):
        return None if value.is_nan() else plain_cell(float(value))
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        if value.dtype.kind in "mM":  # nanoseconds would come out as a bare integer
            value = value.astype(f"{value.dtype.kind}8[us]")
        return plain_cell(value.item())
    return value


def number_of(text: str, where: str) -> int | float | Bad:
    """The number in a cell of a workbook, from the text that keeps it.

    Spreadsheets keep 15 digits of a number: of a longer integer the rest is zeros, and a
    `Bad`, for it was an id once. One that a program wrote with all its digits is whole.
    """
    if "." not in text and "E" not in text and "e" not in text:
        whole = int(text)
        if -WHOLE_MAX < whole < WHOLE_MAX or len(text.lstrip("-").rstrip("0")) > DIGITS_KEPT:
            return whole
    else:
        number = float(text)
        if not (abs(number) >= WHOLE_MAX and number.is_integer()):
            return number
        whole = int(number)
    return Bad(
        f"cell {where} holds the number {whole}, of which only {DIGITS_KEPT} digits were kept; if"
        " it is an id, format the cell as text and enter it again",
        kind="digits lost",
    )


def letter(index: int) -> str:
    """The letters over the column at `index`, which counts from 0: A, B, … Z, AA."""
    letters = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        letters = chr(65 + rest) + letters
    return letters


def header(cells: Sequence[Any], source: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names in a header row, '' where a cell is blank, and notes on what was taken off.

    Spaces around a name are taken off. Raises SheetError for a name that stands twice, and
    for a cell that cannot be read.
    """
    names, notes = [], []
    for index, cell in enumerate(cells):
        if isinstance(cell, Bad):
            raise SheetError(f"the header of {source} cannot be read: {cell.reason}", source=source)
        value = plain_cell(cell)
        raw = "" if value is None else str(value)
        names.append(raw.strip())
        if raw != names[-1]:
            notes.append(f"Column {letter(index)} is named {raw!r}; taken as {names[-1]!r}.")
    for name in dict.fromkeys(filter(None, names)):
        places = [letter(i) for i, other in enumerate(names) if other == name]
        if len(places) > 1:
            raise SheetError(
                f"columns {', '.join(places[:-1])} and {places[-1]} of {source} are"
                f" {'both' if len(places) == 2 else 'all'} named {name!r};"
                " give each column its own name",
                source=source,
                columns=places,
            )
    while names and not names[-1]:
        names.pop()
    return tuple(names), tuple(notes)


def grid(
    names: Sequence[str], lines: Iterable[tuple[int, Sequence[Any] | Bad]]
) -> Iterator[Record]:
    """Records of lines of cells under `names`; data under a blank name makes a `Stray`."""
    blank = [index for index, name in enumerate(names) if not name]
    for number, cells in lines:
        if isinstance(cells, Bad):
            yield number, cells
            continue
        if not blank and len(cells) <= len(names):  # nearly every row of nearly every sheet
            yield number, dict(zip(names, cells, strict=False))
            continue
        record = {name: cell for name, cell in zip(names, cells, strict=False) if name}
        nameless = chain((i for i in blank if i < len(cells)), range(len(names), len(cells)))
        stray = next((i for i in nameless if plain_cell(cells[i]) is not None), None)
        if stray is None:
            yield number, record
        else:
            reason = f"column {letter(stray)} holds {_shown(cells[stray])} and has no name"
            yield number, Stray(reason, letter(stray), record)


def _shown(cell: Any) -> str:
    text = cell.reason if isinstance(cell, Bad) else repr(cell)
    return text if len(text) <= 40 else text[:39] + "…"


def _listed(names: Iterable[str] | None) -> str:
    return ", ".join(map(repr, names or ())) or "no columns"


def _keys(records: Iterable[Record]) -> tuple[str, ...]:
    """The keys of these records, in the order they first appear."""
    found = (record for _, record in records if not isinstance(record, Bad))
    return tuple(dict.fromkeys(str(key) for record in found for key in record))


def _choose(columns: Columns, known: tuple[str, ...], source: str) -> dict[str, str]:
    """From column to payload name, as `columns=` asks. Raises SheetError for a name not known."""
    chosen: dict[str, str | None]
    if isinstance(columns, Mapping):  # renames what it names, and leaves out what it names None
        chosen = {**{name: name for name in known if name}, **columns}
    else:
        chosen = {name: name for name in columns}
    unknown = [name for name in chosen if name not in known]
    chosen = {name: to for name, to in chosen.items() if to is not None}
    if unknown or not chosen:
        raise SheetError(
            f"columns={columns!r}: {source} has {_listed(filter(None, known))}"
            + (f", and no column {_listed(unknown)}" if unknown else "; name at least one"),
            source=source,
            unknown=unknown,
        )
    kept = {name: to for name, to in chosen.items() if to is not None}
    if len(set(kept.values())) < len(kept):
        raise SheetError(f"columns={columns!r} gives two columns one name", source=source)
    return kept


def _refuse_stray(records: Iterable[Record], source: str) -> None:
    for number, record in records:
        if isinstance(record, Stray):
            raise SheetError(
                f"{record.reason} (row {number} of {source}); give the column a name in the"
                " header, clear it, or choose the columns to read with columns=[…]",
                source=source,
                row=number,
                column=record.column,
            )
