"""What `HttpProvider` is told of an API: a declaration, its paths into replies, its templates.

*Reply paths* are dotted: ``data.output[*].url``, ``items[-1]``, ``""`` for the whole reply;
``a.b|c`` takes the first that is there; ``@name`` is a header. *Templates* stand for whole
values: ``"{seconds}"`` becomes the request's own value, number or text, and a field the
request lacks is left out. In URLs ``{id}`` is quoted and ``{+id}`` keeps its slashes.
``{model}`` is the request's, else the account's; ``{idempotency_key}`` is vqkit's.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import EllipsisType
from typing import Any, Literal, get_args
from urllib.parse import quote, urlsplit

from ..errors import UsageError
from . import download as transfer
from .contract import (
    Capabilities,
    ProviderErrorKind,
    State,
)

__all__ = [
    "ABSENT",
    "HttpApi",
    "HttpList",
    "Reply",
    "echoes",
    "fill",
    "fill_path",
    "names_in",
    "number_of",
    "pick",
]

_NAME = re.compile(r"\{(\+?)(\w+)\}")
ABSENT: Any = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpList:
    """How renders are listed, to find one whose id was lost.

    `path` takes ``{offset}``, ``{page}`` or ``{cursor}`` (read from `cursor`), and fields of
    the request; without any of the three, one page is all there is. `echo` says, per field
    of the request, where an item repeats it; `tag` where it carries our idempotency key.
    """

    path: str
    items: str = "data"
    id: str = "id"
    created: str = "created_at"
    echo: Mapping[str, str] = field(default_factory=dict)
    tag: str = ""
    cursor: str = ""
    is_newest_first: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpApi:
    """What a REST render API looks like. Requests are ``"POST /path"``; see the module's text.

    - `result`: a second GET once the state is succeeded, where outputs are not in the first.
    - `extra_in`: where in the body fields without a placeholder go; None drops them.
    - `idempotency`: the header that carries our key, ``"Idempotency-Key: {idempotency_key}"``.
    - `states`: the provider's words; one that is not here counts as running, and is logged.
    - `outputs`: a reply path, or a path of the API's own that begins with ``/``.
    - `ok_codes`: if any, a 2xx whose `error_code` is none of them is an error.
    - `kinds`: error codes (``"SAFETY.*"``) and statuses (``"503"``) to kinds, first match.
    - `expires`, `poll_after`, `retry_after`: a path that ends in "ms" is in milliseconds.
    """

    base_url: str
    submit: str
    poll: str
    states: Mapping[str, State]
    outputs: str
    result: str = ""
    cancel: str = ""
    is_cancel_final: bool = False
    body: Mapping[str, Any] = field(default_factory=dict)
    extra_in: str | None = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    auth: str = "Authorization: Bearer {key}"
    idempotency: str = ""
    id: str = "id"
    state: str = "status"
    progress: str = "progress"
    progress_max: float = 1.0
    cost: str = ""
    cost_unit: Literal["dollars", "cents", "credits"] = "dollars"
    credit_microusd: int = 0
    error_code: str = "error.code|error.type|code|error_type"
    error_message: str = "error.message|message|error|detail"
    ok_codes: tuple[str | int, ...] = ()
    kinds: Mapping[str, ProviderErrorKind] = field(default_factory=dict)
    expires: str = ""
    poll_after: str = "@retry-after"
    retry_after: str = ""
    suffix: str = ""
    listing: HttpList | None = None
    capabilities: Capabilities = field(default_factory=Capabilities)

    def __post_init__(self) -> None:
        kind, listing = self.capabilities.idempotency, self.listing or HttpList(path="")
        asked = (self.submit, self.poll, self.result, self.cancel, listing.path)
        lines = [line for line in asked if line]
        bad = [line for line in lines if not re.fullmatch(r"[A-Z]+ /.*", line)]
        odd: list[str] = [one for one in self.states.values() if one not in get_args(State)]
        odd += [one for one in self.kinds.values() if one not in get_args(ProviderErrorKind)]
        sent = {*names_in([self.body, self.submit, self.idempotency])}
        is_url = urlsplit(self.base_url).scheme in ("http", "https")
        for is_wrong, said in (
            (not is_url, f"base_url is {self.base_url!r}; expected https://…"),
            (bad, f"{bad} are no requests; expected such as 'GET /tasks/{{id}}'"),
            (odd, f"{odd}: expected a State in states, a ProviderErrorKind in kinds"),
            (
                kind not in ("list", "none") and "idempotency_key" not in sent,
                f"idempotency is {kind!r}, but nothing sends {{idempotency_key}}",
            ),
            (kind == "tag" and not listing.tag, "idempotency 'tag' needs a listing with its tag"),
            (kind == "list" and not listing.echo, "idempotency 'list' needs a listing's echo"),
            (
                self.cost_unit == "credits" and self.cost and self.credit_microusd <= 0,
                "cost_unit 'credits' needs credit_microusd, what one is worth",
            ),
        ):
            if is_wrong:
                raise UsageError(said)
        paths = [self.id, self.state, self.progress, self.cost, self.error_code, self.expires]
        paths += [self.error_message, self.poll_after, self.retry_after, *listing.echo.values()]
        paths += [listing.items, listing.id, listing.created, listing.tag, listing.cursor]
        for path in (*paths, "" if self.outputs.startswith("/") else self.outputs):
            _steps(path)


# ------------------------------------------------------------------ paths and templates


_STEP = re.compile(r"(?:^|\.)([^.\[\]]+)|\[(-?\d+|\*)\]")


@functools.lru_cache(maxsize=1024)
def _steps(path: str) -> tuple[tuple[str | int | EllipsisType, ...], ...]:
    ways: list[tuple[str | int | EllipsisType, ...]] = []
    for way in path.split("|"):
        found = list(_STEP.finditer(way))
        if way.startswith("@"):
            ways.append((way.lower(),))
        elif "".join(step[0] for step in found) != way or way.startswith("."):
            raise UsageError(f"{path!r} is no reply path; expected one like 'data.output[*].url'")
        else:
            ways.append(tuple(s[1] or (... if s[2] == "*" else int(s[2])) for s in found))
    return tuple(ways)


def pick(doc: Any, path: str, headers: Mapping[str, str] | None = None) -> list[Any]:
    """All that stands at a reply path, in order; what is missing or null is not among it."""
    for steps in _steps(path):
        found = [doc]
        for step in steps:
            if isinstance(step, str) and step.startswith("@"):
                found = [(headers or {}).get(step[1:])]
            else:
                found = [inner for outer in found for inner in _inside(outer, step)]
        found = [value for value in found if value is not None]
        if found:
            return found
    return []


def _inside(value: Any, step: str | int | EllipsisType) -> Sequence[Any]:
    if isinstance(step, str):
        return (value[step],) if isinstance(value, Mapping) and step in value else ()
    if isinstance(step, EllipsisType):
        return value if isinstance(value, list) else (value,)
    if not isinstance(value, list):
        return ()
    return (value[step],) if -len(value) <= step < len(value) else ()


def fill(template: Any, values: Mapping[str, Any]) -> Any:
    """The template with each ``"{name}"`` replaced, types kept; where none is, nothing stands."""
    if isinstance(template, str):
        found = _NAME.fullmatch(template)
        return values.get(found[2], ABSENT) if found else template
    if isinstance(template, Mapping):
        filled = ((name, fill(part, values)) for name, part in template.items())
        return {name: part for name, part in filled if part is not ABSENT}
    if isinstance(template, list | tuple):
        return [part for part in (fill(one, values) for one in template) if part is not ABSENT]
    return template


def names_in(template: Any) -> Iterator[str]:
    """The names a template asks for."""
    if isinstance(template, str):
        yield from (found[2] for found in _NAME.finditer(template))
    elif isinstance(template, Mapping | list | tuple):
        for part in template.values() if isinstance(template, Mapping) else template:
            yield from names_in(part)


def fill_path(path: str, values: Mapping[str, Any]) -> str:
    """A URL's path; of the query, what has no value is left out. KeyError names what lacks."""

    def put(found: re.Match[str]) -> str:
        if (value := values.get(found[2])) in (None, ""):
            raise KeyError(found[2])
        return quote(str(value), safe="/:?&=%~@+,;" if found[1] else "")

    path, _, query = path.partition("?")
    kept = []
    for part in query.split("&"):
        with contextlib.suppress(KeyError):
            kept.append(_NAME.sub(put, part))
    return _NAME.sub(put, path) + (f"?{'&'.join(kept)}" if any(kept) else "")


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of the API, and the ways to read it."""

    status: int
    headers: Mapping[str, str]
    doc: Any
    text: str = ""
    file: Path | None = None
    is_page: bool = False  # from a gateway or a log-in, so it says nothing of a render

    def first(self, path: str) -> Any:
        return next(iter(pick(self.doc, path, self.headers)), None) if path else None

    def words(self, path: str) -> str:
        found = self.first(path)
        if isinstance(found, str):
            return found
        return "" if found in (None, {}, []) else json.dumps(found)

    def moment_ms(self, path: str) -> int | None:
        """A time in the reply, UTC milliseconds: a Unix time or a date; None for neither."""
        value = self.first(path)
        if (number := number_of(value)) is not None:
            return round(number if number > 1e11 or path.endswith("ms") else number * 1000)
        moment_s = transfer.moment_s(value)
        return None if moment_s is None else round(moment_s * 1000)


def number_of(value: Any) -> float | None:
    """A number, also where it is written as text; None for anything else."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        number = float("nan" if isinstance(value, bool) else value)
        return number if math.isfinite(number) else None
    return None


def _same(ours: Any, theirs: Any) -> bool:
    """True if a provider may have made `theirs` of `ours`: 5 of "5", spaces put in order."""
    if isinstance(ours, bool) or isinstance(theirs, bool):
        return ours is theirs
    if (number := number_of(ours)) is not None and number == number_of(theirs):
        return True
    if isinstance(ours, str) and isinstance(theirs, str):
        ours, theirs = (unicodedata.normalize("NFC", " ".join(t.split())) for t in (ours, theirs))
    return bool(ours == theirs)


def echoes(item: Reply, echo: Mapping[str, str], request: Mapping[str, Any]) -> bool | None:
    """True if the item repeats what the request says; None if it repeats nothing of it."""
    pairs = [(request.get(name), item.first(path)) for name, path in echo.items()]
    told = [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
    return all(_same(ours, theirs) for ours, theirs in told) if told else None
