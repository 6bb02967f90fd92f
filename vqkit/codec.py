"""JSON in and out, and the hashes that name a payload.

Text is stored as ASCII-escaped JSON: SQLite's own JSON functions read it, and no
character depends on an encoding. NaN, infinities, bytes, lone surrogates and integers
beyond 64 bits are refused at the door, because each would come back as something else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from typing import Any, NamedTuple

from .errors import PayloadError

__all__ = [
    "canonical",
    "clean_text",
    "content_hash",
    "derived_seed",
    "dumps",
    "encode",
    "encoded",
    "hash_of_json",
    "loads",
    "plain",
    "readable",
]

INT_MAX = 2**63 - 1
INT_MIN = -(2**63)
DEPTH_MAX = 100


def plain(value: Any, where: str = "payload") -> Any:
    """`value` as plain dicts, lists, text, numbers, booleans and None.

    Tuples become lists; numpy's scalars become Python's. `where` names the value in
    errors. Raises PayloadError, naming the place, for anything JSON cannot carry.
    """
    return _plain(value, where, 0)


def _plain(value: Any, where: str, depth: int) -> Any:
    kind = type(value)
    if kind is str:
        if not value.isascii():
            _refuse_surrogates(value, where)
        return value
    if value is None or kind is bool:
        return value
    if kind is int:
        if not INT_MIN <= value <= INT_MAX:
            raise PayloadError(
                f"{where} is an integer beyond 64 bits ({value.bit_length()} and a sign);"
                " keep it as text.",
                where=where,
            )
        return value
    if kind is float:
        if value != value or value in (float("inf"), float("-inf")):
            raise PayloadError(
                f"{where} is {value}, which JSON has no word for. Use None for a missing number.",
                where=where,
            )
        return value
    if depth > DEPTH_MAX:
        raise PayloadError(
            f"{where} is nested deeper than {DEPTH_MAX} levels (or contains itself).", where=where
        )
    if isinstance(value, dict):
        out = {}
        for key, item in value.items():
            if _is_plain(item) and type(key) is str and key.isascii():
                out[key] = item
                continue
            if not isinstance(key, str):
                raise PayloadError(
                    f"{where} has the key {key!r}, a {type(key).__name__}; keys are text."
                    f" Use {str(key)!r}.",
                    where=where,
                )
            _refuse_surrogates(key, f"a key of {where}")
            out[str.__str__(key)] = _plain(item, f"{where}[{key!r}]", depth + 1)
        return out
    if isinstance(value, list | tuple):
        return [
            item if _is_plain(item) else _plain(item, f"{where}[{i}]", depth + 1)
            for i, item in enumerate(value)
        ]
    if isinstance(value, str):  # a subclass, such as StrEnum or numpy.str_
        return _plain(str.__str__(value), where, depth)
    if isinstance(value, int):
        return _plain(int(value), where, depth)
    if isinstance(value, float):
        return _plain(float(value), where, depth)
    if type(value).__module__ == "numpy" and callable(getattr(value, "item", None)):
        if getattr(value, "ndim", 0) == 0:
            return _plain(value.item(), where, depth + 1)
        return _plain(value.tolist(), where, depth + 1)
    raise PayloadError(
        f"{where} is a {type(value).__name__}, which JSON cannot carry."
        " Use text, numbers, True/False, None, lists and dicts; store a file and pass its path.",
        where=where,
    )


def _is_plain(value: Any) -> bool:
    """True for nearly every cell of every sheet: no need to word where it stands."""
    kind = type(value)
    if kind is str:
        return bool(value.isascii())
    return value is None or kind is bool or (kind is int and INT_MIN <= value <= INT_MAX)


def _refuse_surrogates(text: str, where: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PayloadError(
            f"{where} has half a character at position {error.start} (a lone surrogate,"
            f" \\u{ord(text[error.start]):04x}); the text was cut or decoded wrongly."
            " Read the source again as UTF-8.",
            where=where,
        ) from error


def dumps(value: Any, where: str = "payload") -> str:
    """Compact ASCII JSON of `value`, key order kept. Raises PayloadError, see `plain`."""
    return encode(plain(value, where))


# json.dumps makes a new encoder at every call that asks for separators.
encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode
"""Compact ASCII JSON of a value known to be plain: unchecked, for what vqkit itself made."""

_encode_sorted = json.JSONEncoder(
    ensure_ascii=True, allow_nan=False, separators=(",", ":"), sort_keys=True
).encode


class Encoded(NamedTuple):
    """A payload as JSON in its own order, and in the one order that all equal payloads have."""

    json: str
    canonical: str


def encoded(payload: Mapping[str, Any]) -> Encoded:
    """Both forms of a plain payload, in a quarter of the time of `dumps` and `canonical`."""
    own, canonical = {}, {}
    for name, value in payload.items():
        head = _name_json(name)
        if type(value) is str:
            own[name] = canonical[name] = head + encode_basestring_ascii(value)
        else:
            own[name] = canonical[name] = head + encode(value)
            if isinstance(value, dict | list):
                canonical[name] = head + _encode_sorted(value)
    in_order = map(canonical.__getitem__, sorted(canonical))
    return Encoded(f"{{{','.join(own.values())}}}", f"{{{','.join(in_order)}}}")


@lru_cache(1024)
def _name_json(name: str) -> str:
    return encode_basestring_ascii(name) + ":"


def loads(text: str | None) -> Any:
    """The value of stored JSON; None stays None."""
    return None if text is None else json.loads(text)


def readable(text: str) -> str:
    """Stored JSON as a person reads it, with the letters it stands for."""
    if "\\u" not in text:
        return text
    return clean_text(json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":")))


def clean_text(text: str) -> str:
    """The text with half characters replaced, so that it can be stored."""
    return text.encode("utf-8", "replace").decode("utf-8")


def canonical(value: Any, where: str = "payload") -> str:
    """JSON that is the same for equal values whatever the order of their keys."""
    return _encode_sorted(plain(value, where))


def content_hash(*values: Any) -> str:
    """32 hex digits that name these values: SHA-256 of their canonical JSON, cut to 128 bits."""
    return hash_of_json(canonical(list(values)))


def hash_of_json(*parts: str) -> str:
    """The same of text that is canonical JSON already."""
    return hashlib.sha256("".join(parts).encode("ascii")).hexdigest()[:32]


def derived_seed(*values: Any) -> int:
    """A seed in [0, 2**31) that is the same for equal values, on any machine."""
    text = encode(values) if all(map(_is_plain, values)) else canonical(list(values))
    digest = hashlib.sha256(text.encode("ascii")).digest()
    return int.from_bytes(digest[:4], "big") >> 1
