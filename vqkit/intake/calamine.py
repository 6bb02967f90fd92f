"""Workbooks through python-calamine, to compare with vqkit's own readers. In a child process.

A sheet can end the process that calamine reads it in (seen: a value in the last cell of a
sheet), so it reads in one of its own, which sends the rows as JSON, a line each. It shows
errors and formulas never calculated as blank, and hidden rows as any others.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import SheetError, UsageError
from .files import refuse_bombs
from .table import Reading, grid, header, plain_cell

__all__ = ["open_calamine"]


def open_calamine(path: Path, sheet: str | None = None) -> Reading:
    """The rows of one sheet: the first that is visible, unless `sheet` names one."""
    if importlib.util.find_spec("python_calamine") is None:
        raise UsageError("engine='calamine' needs python-calamine: pip install python-calamine")
    refuse_bombs(path)
    lines = _lines(path, sheet)
    told = next(lines)
    title, others = told["sheet"], told["others"]
    source = f"{path.name}[{title}]" if others else path.name
    rows = ((number, row) for number, row in lines if any(cell is not None for cell in row))
    number, first = next(rows, (0, []))
    names, notes = header(first, source)
    if not names:
        raise SheetError(f"the sheet {title!r} of {path.name} is empty", path=str(path))
    note = (
        f"{source} was read by calamine, which shows no errors, no formulas without a value, and"
        " not what is hidden or merged."
    )
    return Reading(
        path.name,
        grid(names, rows),
        columns=names,
        source=source,
        sheet=title,
        notes=(note, *notes),
        empty=f"{source} has a header (row {number}) and no rows; expected a prompt a row",
    )


def _lines(path: Path, sheet: str | None) -> Iterator[Any]:
    """What the child sends: what it reads, then the number and the cells of each row."""
    command = [sys.executable, "-m", "vqkit.intake.calamine", str(path), *filter(None, [sheet])]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        try:
            for line in child.stdout:
                yield json.loads(line)
            said = child.stderr.read().strip().splitlines()
            if status := child.wait():
                raise SheetError(
                    f"{path.name} cannot be read by calamine"
                    f" ({said[-1][:200] if said else f'its process ended with {status}'});"
                    " leave out engine='calamine'",
                    path=str(path),
                )
        finally:
            child.kill()  # whoever wants no more rows does not wait for the rest


def _send(path: str, wanted: str | None = None) -> None:
    """In the child: reads the sheet and writes it out."""
    from python_calamine import CalamineWorkbook, SheetVisibleEnum

    book = CalamineWorkbook.from_path(path)
    known = book.sheets_metadata
    seen = [one.name for one in known if one.visible == SheetVisibleEnum.Visible]
    names = [one.name for one in known]
    title = wanted or (seen or names)[0]
    if title not in names:
        raise SystemExit(f"no sheet {title!r}; its sheets: {', '.join(map(repr, names))}")
    print(json.dumps({"sheet": title, "others": [name for name in names if name != title]}))  # noqa: T201
    rows = book.get_sheet_by_name(title).to_python(skip_empty_area=False)
    for number, row in enumerate(rows, 1):
        print(json.dumps([number, [plain_cell(cell) for cell in row]]))  # noqa: T201


if __name__ == "__main__":
    _send(*sys.argv[1:])
