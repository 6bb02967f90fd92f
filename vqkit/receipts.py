"""What paid calls answered, on the disk before anything else hears of it.

One line of JSON a receipt, appended in one write and synced, beside the database: should
the commit that follows fail, the answer is not lost with it, and recovery finds it here.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from . import codec
from .job import Step
from .secrets import logger, redact_json

__all__ = ["Damaged", "Receipts"]

log = logger("vqkit.receipts")

# The key is the first a line tells, so that it is known of most that were torn.
_KEY = re.compile(r'\{"key": "([^"]+)"(?:, "job": (\d+))?')


class Damaged(NamedTuple):
    """A line that cannot be used: where it stands, whose it is as far as that can be read, why."""

    line: int
    key: str | None
    job: int | None
    why: str


@dataclass(frozen=True, slots=True)
class Receipts:
    """The receipts of one queue. Any process may append at any time."""

    path: Path

    def append(self, step: Step, value_json: str) -> None:
        """Keeps what the step gave, for good. Raises OSError if the disk does not take it."""
        told = redact_json(value_json)
        record = {"key": step.key, "job": step.job, "name": step.name, "value": told}
        # A line torn by a crash or a full disk must not swallow the next one.
        line = "\n" + json.dumps(record) + "\n"
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            data = line.encode("ascii")
            is_new = os.fstat(fd).st_size == 0
            while data:
                data = data[os.write(fd, data) :]
            os.fsync(fd)
            if is_new:  # its name in the folder must survive a power cut too
                _sync_folder(self.path.parent)
        finally:
            os.close(fd)

    def find(self, keys: set[str]) -> dict[str, str]:
        """The kept answers of these idempotency keys, as JSON.

        What cannot be read is left out, with a warning: its call is in doubt.
        """
        found: dict[str, str] = {}
        if not keys:
            return found
        try:
            for line in self._lines():
                if isinstance(line, Damaged):
                    if line.key in keys:
                        log.warning("line %s of %s is damaged: %s", line.line, self.path, line.why)
                elif line[0] in keys:
                    found[line[0]] = line[1]
        except OSError as error:
            log.warning("the receipts cannot be read, their calls are in doubt: %s", error)
        return found

    def damaged(self) -> list[Damaged]:
        """The lines that cannot be used and have no good one for the same key.

        Raises OSError where the file cannot be read.
        """
        lines = list(self._lines())
        good = {line[0] for line in lines if not isinstance(line, Damaged)}
        return [line for line in lines if isinstance(line, Damaged) and line.key not in good]

    def _lines(self) -> Iterator[tuple[str, str] | Damaged]:
        """Key and answer of each line, or what is wrong with it."""
        if not self.path.exists():
            return
        with self.path.open(encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    yield _read(json.loads(line))
                except (ValueError, KeyError, TypeError, RecursionError) as error:
                    key, job = found.groups() if (found := _KEY.match(line)) else (None, None)
                    why = f"{type(error).__name__}: {error}"
                    yield Damaged(number, key, None if job is None else int(job), why)


def _read(record: Any) -> tuple[str, str]:
    """Key and answer of a record. Raises ValueError, KeyError or TypeError if it is none."""
    key, value_json = record["key"], record["value"]
    if not isinstance(key, str):
        raise TypeError("its key is no text")
    # Only what the database takes: one answer must not stop all the others.
    codec.plain(json.loads(value_json), "the answer")
    return key, value_json


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
