"""JSON: an object a line, or one list of objects."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import SheetError
from .files import first_line, text_encoding
from .table import Bad, Reading, Record

__all__ = ["as_record", "open_json", "open_jsonl"]


def open_jsonl(path: Path) -> Reading:
    """The objects of a file with one a line. A line that is none is a problem of its own."""
    codec, words = text_encoding(path)
    first = first_line(path, codec).strip()
    if first == "{" or first.startswith("["):
        # Read line by line, a value over many lines is bad but for some piece of it.
        raise SheetError(
            f"{path.name} does not hold an object a line: it begins with {first[:40]!r}; if it is"
            " a list of objects, give it the extension .json",
            path=str(path),
        )
    return Reading(
        path.name,
        _lines(path, codec),
        notes=(f"{path.name} was read as {words}, a JSON object a line.",),
        empty=f"{path.name} has only blank lines; expected a JSON object a line",
    )


def open_json(path: Path) -> Reading:
    """The objects of a file that holds one list of them; it is read whole."""
    codec, words = text_encoding(path)
    try:
        value = _parse(path.read_text(encoding=codec))
    except (ValueError, RecursionError) as error:
        raise SheetError(
            f"{path.name} is not JSON: {error}. For an object a line, name it .jsonl",
            path=str(path),
        ) from error
    if not isinstance(value, list):
        raise SheetError(
            f"{path.name} holds {_kind(value)}; expected a list of objects", path=str(path)
        )
    return Reading(
        path.name,
        iter([(number, as_record(item)) for number, item in enumerate(value, 1)]),
        notes=(f"{path.name} was read as {words}, a JSON list; rows count from 1.",),
        empty=f"{path.name} holds an empty list; expected objects",
    )


def as_record(value: Any) -> Mapping[str, Any] | Bad:
    """`value` where it is a mapping; else what is wrong with it."""
    if isinstance(value, Mapping):
        return value
    return Bad(f'this row is {_kind(value)}; expected an object such as {{"prompt": "a fox"}}')


def _lines(path: Path, codec: str) -> Iterator[Record]:
    with path.open(encoding=codec) as file:
        for number, line in enumerate(file, 1):
            if line.isspace():
                continue
            try:
                yield number, as_record(_parse(line))
            except json.JSONDecodeError as error:
                where = f"{error.msg} at character {error.pos + 1}"
                yield number, Bad(f"line {number} is not a JSON object: {where}")
            except (ValueError, RecursionError) as error:
                yield number, Bad(f"line {number} is not a JSON object: {error}")


def _parse(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, unless a key stands twice: JSON would keep the last in silence."""
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} stands twice in one object")
    return value


def _kind(value: Any) -> str:
    words = {dict: "one object", list: "a list", str: "text", type(None): "null"}
    return words.get(type(value), f"a {type(value).__name__}")
