"""A sheet whose loading is killed is loaded by loading it again: the rest is added, once."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
from crash_kit import Child, ask, until

ROWS = 12_000

Start = Callable[..., Child]


@pytest.mark.parametrize("stored", [1, 4_000, 9_000])
def test_loading_that_is_killed_on_the_way_goes_on_where_it_was(
    stored: int, db: Path, tmp_path: Path, start: Start
) -> None:
    sheet = tmp_path / "prompts.csv"
    with sheet.open("w", newline="", encoding="utf-8") as file:
        # Every third row stands there twice: what tells them apart must survive, too.
        csv.writer(file).writerows(
            [["prompt"], *([f"fox {n - (n % 3 == 2)}"] for n in range(ROWS))]
        )
    child = start("load", db=db, sheet=sheet)

    def count() -> int:
        return int(ask(db, "SELECT count(*) FROM jobs")[0][0]) if db.exists() else 0

    until(lambda: child.code is not None or _or_none(count) >= stored, "rows are stored")
    child.kill()
    half = count()
    said = start("load", db=db, sheet=sheet).finish()
    assert half >= stored
    rows = [row for (row,) in ask(db, "SELECT row FROM jobs ORDER BY number")]
    assert rows == list(range(2, ROWS + 2))
    assert len({key for (key,) in ask(db, "SELECT key FROM jobs")}) == ROWS
    if half < ROWS:
        assert f"{ROWS - half} new, {half} already there" in said
    assert start("load", db=db, sheet=sheet).finish().startswith("0 new")


def _or_none(count: Callable[[], int]) -> int:
    try:
        return count()
    except Exception:  # noqa: BLE001 - the tables are being made
        return 0
