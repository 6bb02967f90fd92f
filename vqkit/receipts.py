"""What paid calls answered, on the disk before anything else hears of it.

One line of JSON a receipt, appended in one write and synced, beside the database: should
the commit that follows fail, the answer is not lost with it, and recovery finds it here.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from .job import Step
from .secrets import redact

__all__ = ["Receipts"]


@dataclass(frozen=True, slots=True)
class Receipts:
    """The receipts of one queue. Any process may append at any time."""

    path: Path

    def append(self, step: Step, value_json: str) -> None:
        """Keeps what the step gave, for good. Raises OSError if the disk does not take it."""
        record = {"key": step.key, "job": step.job, "name": step.name, "value": redact(value_json)}
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
        """The kept answers of these idempotency keys, as JSON."""
        found: dict[str, str] = {}
        if not keys or not self.path.exists():
            return found
        with self.path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    record = json.loads(line)
                    if record["key"] in keys:
                        found[record["key"]] = record["value"]
                except (ValueError, KeyError, TypeError):
                    continue  # torn by a crash: its call is in doubt
        return found


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
