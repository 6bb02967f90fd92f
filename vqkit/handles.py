"""What a provider calls a render: as its `submit` gave it, and as a person says it.

A handle is plain JSON, for it is kept for ever and polled by whatever process is next. One
that cannot be kept is refused the moment it comes back, by name, while it can still be read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from . import codec, secrets
from .errors import PayloadError, UsageError

__all__ = ["HANDLE_BYTES_MAX", "kept_handle", "said_handle", "shape", "typed_value"]

HANDLE_BYTES_MAX = 60 * 1024
SHOWN_CHARS = 500


def kept_handle(handle: Any) -> dict[str, Any]:
    """A handle of a provider's `submit` as it is kept; a UUID becomes its text.

    Raises PayloadError, which tells the handle, for one that cannot be kept.
    """
    try:
        if not isinstance(handle, Mapping) or not handle:
            raise PayloadError(f"a handle is a dict such as {shape_text(None)}.")
        plain: dict[str, Any] = codec.plain(_without_uuids(dict(handle)), "handle")
        if (n := len(codec.encode(plain))) > HANDLE_BYTES_MAX:
            raise PayloadError(f"it has {n:,} bytes of JSON, and {HANDLE_BYTES_MAX:,} are kept.")
    except PayloadError as error:
        told = codec.clean_text(secrets.redact(repr(handle)))
        told = told if len(told) <= SHOWN_CHARS else told[: SHOWN_CHARS - 1] + "…"
        raise PayloadError(
            f"the provider took it, and the handle it gave cannot be kept: {error} It is paid"
            " for: have `submit` give plain JSON, and go on with this render by q.resolve(…,"
            f" 'attach', value=…). The handle: {told}"
        ) from error
    return plain


def _without_uuids(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, dict):
        return {name: _without_uuids(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_uuids(part) for part in value]
    return value


def said_handle(
    value: Any, example: Any = None, request: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The handle that a person means by an id, or by all of the handle.

    `example` is one that this provider gave another job: ids become text or numbers as
    there. What else stands in it is taken from the `request` where that has it. Raises
    UsageError, which shows what a handle looks like, for what cannot be one.
    """
    example = example if isinstance(example, dict) and example else {}
    request = request or {}
    if isinstance(value, dict) and isinstance(value.get("handle"), dict):
        value = value if "handle" in example else value["handle"]  # as `q.steps` shows it
    value = value.strip() if isinstance(value, str) else value
    names = list(example) or ["id"]
    name = "id" if "id" in names else names[0]
    known = {n: request[n] for n in names if n != name and n in request}
    if _is_id(value) and len(known) == len(names) - 1:
        value = {**known, name: value if example else str(value)}
    elif isinstance(value, dict) and value:
        value = {**known, **value}
    if not isinstance(value, dict) or not value or not _can_be(value, example):
        raise UsageError(
            f"{_short(value)} cannot be a handle of this provider; one looks like"
            f" {shape_text(example or None)}" + ("" if len(names) > 1 else ", or give the bare id")
        )
    handle = {n: _alike(part, example.get(n)) for n, part in value.items()}
    plain: dict[str, Any] = codec.plain(handle, "value")
    return plain


def _is_id(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool) and value != ""


def _can_be(value: dict[str, Any], example: dict[str, Any]) -> bool:
    """True of a dict with a name that handles here have, and an id wherever they have one."""
    if example and not example.keys() & value.keys():
        return False
    ids = [n for n, part in value.items() if n == "id" or _is_id(example.get(n))]
    return all(_is_id(value[n]) for n in ids)


def _alike(part: Any, model: Any) -> Any:
    """The part as text or number, whichever `model` is."""
    if isinstance(part, bool) or isinstance(model, bool):
        return part
    if isinstance(part, int) and (isinstance(model, str) or abs(part) > codec.INT_MAX):
        return str(part)
    if isinstance(part, str) and isinstance(model, int) and _is_number(part):
        return int(part)
    return part


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and str(int(text)) == text and len(text) < 19


def typed_value(text: str) -> Any:
    """What somebody typed for a value: JSON, or else text.

    A number that would not come back as it was typed, such as the id 12e4, is text. Raises
    UsageError for JSON that is broken: it is nobody's id.
    """
    text = text.strip()
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        if text[:1] in ("{", "[", '"'):
            raise UsageError(f"{_short(text)} is broken JSON ({error})") from None
        return text
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return text if is_number and json.dumps(value) != text else value


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def shape(value: Any) -> Any:
    """The value without its texts, so that it can be shown what such a value looks like."""
    if isinstance(value, dict):
        return {name: shape(of) for name, of in value.items()}
    if isinstance(value, list):
        return [shape(of) for of in value[:1]]
    return "…" if isinstance(value, str) else value


def shape_text(example: Any) -> str:
    """What a handle looks like, as a person types it."""
    return '{"id": "…"}' if example is None else json.dumps(shape(example), ensure_ascii=False)


def _short(value: Any) -> str:
    told = codec.clean_text(secrets.redact(repr(value)))
    return told if len(told) <= 80 else told[:79] + "…"
