"""The file that results are saved to: appears whole or not at all, and replaces only its like."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple

from ..errors import StoreFull, StoreReadOnly, UsageError
from ..outputs import sync_folder
from ..store.files import companion

__all__ = ["HALF", "Change", "Changes", "Saved", "replacing", "target_of"]

HALF = "with half a character, which is now a question mark"
CHANGES_KEPT = 1000
CHANGES_TOLD = 3


class Change(NamedTuple):
    """A cell that the file holds in another form than the queue, and in which.

    `job` is the job's number, 0 in the header.
    """

    job: int
    column: str
    how: str


class Changes:
    """Collects the changes of one save: the first thousand, and how many of each kind."""

    def __init__(self) -> None:
        self.first: list[Change] = []
        self.counts: Counter[str] = Counter()

    def note(self, job: int, column: str, how: str) -> None:
        """Keeps that a cell was written in another form."""
        self.counts[how] += 1
        if len(self.first) < CHANGES_KEPT:
            self.first.append(Change(job, column, how))


@dataclass(frozen=True, slots=True, repr=False)
class Saved(os.PathLike[str]):
    """What a save did; stands for its path wherever one is taken.

    `jobs` counts those written. `changes` are cells the file holds in another form than the
    queue (the first thousand), `counts` how many of each kind, `notes` what else to know.
    """

    path: Path
    jobs: int
    changes: tuple[Change, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __str__(self) -> str:
        said = [f"{self.jobs:,} job{'' if self.jobs == 1 else 's'} saved to {self.path.name}"]
        for how, number in self.counts.items():
            found = [change for change in self.changes if change.how == how]
            where = [f"{f'job {c.job}' if c.job else 'header'}, {c.column}" for c in found]
            more = "; …" if number > CHANGES_TOLD else ""
            cells = "1 cell" if number == 1 else f"{number:,} cells"
            said.append(f"{cells} {how} ({'; '.join(where[:CHANGES_TOLD])}{more})")
        return "\n".join([*said, *self.notes])

    __repr__ = __str__  # a cell that ends with a save shows what it did


def target_of(path: str | os.PathLike[str], endings: tuple[str, ...]) -> Path:
    """Where to write. Raises UsageError for an ending not in `endings`, or no place for a file."""
    target = Path(path).expanduser().resolve()
    if target.suffix.lower() not in endings:
        raise UsageError(
            f"{target.name}: results are saved as {', '.join(endings)}; give the file"
            f" {'this ending' if len(endings) == 1 else 'one of these endings'}"
        )
    if target.is_dir() or not target.parent.is_dir():
        kind = "is a folder" if target.is_dir() else "is in a folder that does not exist"
        raise UsageError(f"{target} {kind}; give a file in a folder that is there")
    return target


@contextmanager
def replacing(database: Path, target: Path, overwrite: bool) -> Iterator[Path]:
    """A file to write, which takes the target's place, synced, if all went well.

    A file that is there is replaced only if the queue on `database` saved it and nobody
    changed it since, which the hash it had tells: raises UsageError otherwise, unless
    `overwrite`. A disk that cannot be written raises StoreReadOnly or StoreFull.
    """
    kept = companion(database) / "saved.json"
    part = target.with_name(f".vqkit-{token_hex(6)}.part{target.suffix}")
    try:
        if target.exists() and not overwrite and _known(kept).get(str(target)) != _hash(target):
            raise UsageError(
                f"{target.name} is there already, and it is not as this queue saved it: it came"
                " from elsewhere, or was changed since. Give another name, or say overwrite=True"
                " (on the command line --overwrite)."
            )
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        _remember(kept, target, _hash(part))
        part.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        wrong = StoreReadOnly if isinstance(error, PermissionError) else StoreFull
        raise wrong(f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):  # the error that matters is on its way already
            part.unlink(missing_ok=True)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _known(kept: Path) -> dict[str, str]:
    """The files this queue saved, by path, and the hash each had."""
    try:
        known = json.loads(kept.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return {}  # nothing was saved yet; at worst the user is asked once more
    return known if isinstance(known, dict) else {}


def _remember(kept: Path, target: Path, digest: str) -> None:
    """Before the target is replaced: a crash between the two only asks the user once more."""
    known = {path: was for path, was in _known(kept).items() if Path(path).exists()}
    known[str(target)] = digest
    part = kept.with_name(f"saved.{token_hex(6)}.tmp")
    part.write_text(json.dumps(known), encoding="ascii")
    part.replace(kept)
