"""All records of a queue, read once and set aside, so that any number fits in memory."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any

from .. import codec

if TYPE_CHECKING:
    from ..queue.looking import Looking

__all__ = ["Record", "Rows", "as_text", "is_whole", "kind", "plain", "set_aside"]

Record = dict[str, Any]
DOUBLE_MAX = 2**53  # from here on a float no longer tells neighbouring integers apart
KINDS = {bool: "bool", int: "int", float: "float", str: "text", datetime: "time"}


@dataclass
class Rows:
    """The records, read as often as wanted, the columns they have and what these hold.

    `names` is "job", the payload's columns in the order they first appear, then how each
    job stands. `kinds` names what a column holds: bool, int, wide (an int beyond 2**53),
    float, text, time, json. `sources` are the sheets the jobs came from.
    """

    names: list[str] = field(default_factory=list)
    kinds: dict[str, set[str]] = field(default_factory=dict)
    sources: set[str] = field(default_factory=set)
    count: int = 0
    _file: IO[bytes] | None = None

    def __iter__(self) -> Iterator[Record]:
        assert self._file is not None
        self._file.seek(0)
        for _ in range(self.count):
            yield pickle.load(self._file)


@contextmanager
def set_aside(queue: Looking) -> Iterator[Rows]:
    """All records of the queue, in a file of their own until the end of the block."""
    payload: dict[str, None] = {}
    stands = ["status"]
    with tempfile.TemporaryFile(prefix="vqkit-") as file:
        rows = Rows(_file=file)
        for record in queue.records():
            names = list(record)
            # No payload column has this name: it would be called "payload.status".
            start = names.index("status")
            payload.update(dict.fromkeys(names[1:start]))
            stands = names[start:]
            for name, value in record.items():
                if value is not None:
                    rows.kinds.setdefault(name, set()).add(kind(value))
            if record["source"] is not None:
                rows.sources.add(record["source"])
            rows.count += 1
            pickle.dump(record, file)
        rows.names = ["job", *payload, *stands]
        yield rows


def kind(value: Any) -> str:
    """What the value is: one of the words of `Rows.kinds`."""
    word = KINDS.get(type(value), "json")
    return "wide" if word == "int" and abs(value) > DOUBLE_MAX else word


def plain(value: Any) -> Any:
    """The value as JSON can hold it: times in ISO 8601, to the millisecond."""
    return value.isoformat(timespec="milliseconds") if isinstance(value, datetime) else value


def as_text(value: Any) -> str:
    """A value as the text of a cell; lists, dicts and truth values as JSON."""
    value = plain(value)
    if value is None:
        return ""
    return value if isinstance(value, str) else codec.encode(value)


def is_whole(text: str) -> bool:
    """Whether the text can be written at all: half a character (a lone surrogate) cannot."""
    return text.isascii() or codec.clean_text(text) == text
