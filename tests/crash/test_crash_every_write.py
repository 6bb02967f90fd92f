"""The process ends itself at every single write, and is started again."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from crash_kit import Forks, Ledger, ask, check_invariants, inodes

EXPECTED = dict(enumerate(["completed", "completed", "failed", "completed"], 1))
EXPECTED |= dict(enumerate(["failed", "completed", "completed"], 5))
SHARES = 6


class Place:
    """A queue of its own for each death."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder, self.db, self.outputs = folder, folder / "q.db", folder / "q"
        self.ledger = Ledger(folder / "ledger.txt")

    def said(self) -> str:
        return "\n".join(path.read_text()[-3000:] for path in sorted(self.folder.glob("*.log")))

    def finished(self) -> set[int]:
        """The jobs that may not run again: completed, or proven by their files to be."""
        if not self.db.exists():
            return set()
        try:
            done = {r[0] for r in ask(self.db, "SELECT number FROM jobs WHERE finished_ms > 0")}
        except sqlite3.OperationalError as error:
            if "no such table" in str(error) or "unable to open" in str(error):
                return set()  # it died before the tables, or the log, were made
            raise
        return done | {int(name[:5]) for name in inodes(self.outputs)}


def writes_of_a_batch(forks: Forks, folder: Path) -> list[str]:
    place = Place(folder)
    count = folder / "count.json"
    args = {"db": place.db, "ledger": place.ledger.path}
    assert forks.run("batch", folder, count=count, **args) == 0
    check_invariants(place.db, expected=EXPECTED, outputs=place.outputs)
    found: list[str] = json.loads(count.read_text())
    return found


@pytest.mark.parametrize("share", range(SHARES))
def test_dying_at_any_write_loses_nothing_and_runs_nothing_finished_again(
    share: int, forks: Forks, tmp_path: Path
) -> None:
    """Each n of this share: dies there, sometimes once more early on, then runs to the end."""
    n = share + 1
    last = len(writes_of_a_batch(forks, tmp_path / "count"))
    deaths = 0
    while True:
        place = Place(tmp_path / str(n))
        args = {"db": place.db, "ledger": place.ledger.path}
        code = forks.run("batch", place.folder, die_at=n, **args)
        assert code in (0, -9), place.said()
        if code == 0 and n > last:
            break
        deaths += code != 0
        for again in (1 + (n * 7) % 40, None) if n // SHARES % 2 else (None,):
            finished, files = place.finished(), inodes(place.outputs)
            begun = len(place.ledger.lines())
            code = forks.run("batch", place.folder, die_at=again, **args)
            assert code in (0, -9), place.said()
            later = {line.job for line in place.ledger.lines()[begun:]}
            assert not later & finished, f"death {n}, {again}: ran again: {later & finished}"
            assert files.items() <= inodes(place.outputs).items(), f"death {n}: rendered again"
        assert code == 0, place.said()
        jobs = check_invariants(place.db, expected=EXPECTED, outputs=place.outputs)
        assert [j["attempt"] for j in jobs] == [1, 2, 1, 1, 2, 2, 1], n
        n += SHARES
    assert deaths >= last // SHARES - 2
