"""Keys: one place resolves a reference, one place takes keys out of text.

An account holds a reference, ``env:NAME`` or ``keyring:service/name``, never the key. What
`resolve` has once returned is remembered in this process, and `redact` removes it, and the
forms it takes when encoded, from everything that is stored, logged, raised or shown. Texts
are redacted before they are cut, and JSON through `redact_json`, which matches what it says
and never how it is written.

A key of four or five characters, or of digits only, might as well be part of another word or
number: it is taken out where it stands as one of its own. What is shorter than four
characters is no key but a placeholder, and is left alone.

A provider may put the key into the handle of a render, as in ``…?key=…``. There it must not
be lost, for the render is paid: `veiled` leaves a sign in its place, and `unveiled` puts the
account's key back when the provider is asked.
"""

from __future__ import annotations

import base64
import html
import json
import logging
import os
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

from .errors import CredentialError, UsageError

__all__ = [
    "RedactingFilter",
    "check_reference",
    "holds_secret",
    "is_any_known",
    "json_holds_secret",
    "learn",
    "logger",
    "redact",
    "redact_json",
    "redact_own",
    "redacted_own",
    "resolve",
    "unveiled",
    "veiled",
]

REDACTED = "[key]"
# In a handle: what is put back when its provider is asked, and what cannot be.
OWN, QUOTED, LOST = "[key, own]", "[key, quoted]", "[key, lost]"
# A shorter "key" would take common words out of every text.
SHORTEST = 4
# A shorter one is looked for as a word of its own.
SHORTEST_ANYWHERE = 6
SHORTEST_IN_HANDLE = 8

# The longest first: a key may begin with another, shorter one.
_known: tuple[str, ...] = ()
_remembering = threading.Lock()


def check_reference(reference: str | None) -> str | None:
    """The reference, if it is one. Raises UsageError, without repeating it, for a bare key."""
    if reference is None:
        return None
    scheme, _, rest = reference.partition(":")
    if scheme == "env" and rest and "=" not in rest and " " not in rest:
        return reference
    if scheme == "keyring" and all(rest.partition("/")[::2]):
        return reference
    raise UsageError(
        "a credential is a reference, 'env:NAME' or 'keyring:service/name', never the key"
        " itself. Put the key into an environment variable and name that."
    )


def resolve(reference: str) -> str:
    """The key behind a reference. Raises CredentialError, saying what to do, if there is none."""
    check_reference(reference)
    scheme, _, rest = reference.partition(":")
    key = os.environ.get(rest) if scheme == "env" else _from_keyring(rest, reference)
    if not key or not key.strip():
        where = f"the environment variable {rest} is" if scheme == "env" else f"{reference} is"
        raise CredentialError(f"{where} not set; set it and start again.", reference=reference)
    remember(key.strip())
    return key.strip()


def _from_keyring(rest: str, reference: str) -> str | None:
    try:
        import keyring
        from keyring.errors import KeyringError
    except ImportError as error:
        raise CredentialError(
            f"{reference} needs the keyring package: pip install 'vqkit[keyring]'",
            reference=reference,
        ) from error
    service, _, name = rest.partition("/")
    try:
        return keyring.get_password(service, name)
    except KeyringError as error:
        raise CredentialError(
            f"the system's keyring did not answer for {reference}: {error}", reference=reference
        ) from error


def learn(references: Iterable[str | None]) -> None:
    """Remembers the keys that can be had without asking anybody: those of the environment.

    Whoever stores, exports or shows what users put calls it first: a key that stands in a row
    must be known as one before it was ever used.
    """
    for reference in references:
        if reference is not None and reference.startswith("env:"):
            remember(os.environ.get(reference[4:], "").strip())


def remember(key: str) -> None:
    """From now on `redact` takes this key out, as it is and as it looks when encoded."""
    global _known
    if len(key) < SHORTEST or key in _known:
        return
    once = {key, *(spelled(key) for spelled in SPELLINGS)}
    # An error's text holds a repr, a page a quoted address, and is itself stored as JSON.
    forms = once | {spelled(form) for form in once for spelled in SPELLINGS}
    if len(key) >= SHORTEST_ANYWHERE:  # a few letters of base64 stand in any text of it
        raw = key.encode()
        forms |= {*_in_base64(raw), raw.hex(), raw.hex().upper()}
    with _remembering:
        _known = tuple(sorted({*_known, *forms}, key=len, reverse=True))


def _quoted_low(text: str) -> str:
    return re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), urllib.parse.quote(text, ""))


SPELLINGS: tuple[Callable[[str], str], ...] = (
    lambda text: json.dumps(text)[1:-1],
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    lambda text: repr(text)[1:-1],
    lambda text: repr(text.encode(errors="surrogateescape"))[2:-1],
    lambda text: text.encode(errors="surrogateescape").decode("latin-1"),
    lambda text: urllib.parse.quote(text, errors="surrogateescape"),
    lambda text: urllib.parse.quote(text, "", errors="surrogateescape"),
    lambda text: urllib.parse.quote_plus(text, errors="surrogateescape"),
    _quoted_low,
    html.escape,
    lambda text: html.escape(text, quote=False),
    lambda text: html.escape(text).replace("&#x27;", "&#39;"),
)
"""How a text looks where it was written as JSON, a repr, a part of an address, or HTML."""


def _in_base64(raw: bytes) -> Iterator[str]:
    """What every base64 text has in it that holds these bytes, wherever in it they begin."""
    for before in range(3):
        text = base64.b64encode(bytes(before) + raw).decode().rstrip("=")
        whole = text[(0, 2, 3)[before] : len(text) - ((before + len(raw)) % 3 > 0)]
        yield whole
        yield whole.replace("+", "-").replace("/", "_")


def is_any_known() -> bool:
    """True once any key was resolved in this process; until then there is nothing to redact."""
    return bool(_known)


def holds_secret(text: str) -> bool:
    """True if a key that was resolved in this process stands in the text."""
    return any(form in text and _stands_in(form, text) for form in _known)


def json_holds_secret(text: str) -> bool:
    """The same of what a JSON text says. A key that is as short as a word is not looked for."""
    if not any(form in text for form in _known):
        return False
    value = json.loads(text)
    return bool(_redacted(value, SHORTEST_ANYWHERE) != value)


def redact(text: str, shortest: int = SHORTEST) -> str:
    """The text with every known key of that many characters replaced by ``[key]``."""
    for form in _known:
        if form in text and len(form) >= shortest:
            own = _as_a_word(form)
            text = text.replace(form, REDACTED) if own is None else own.sub(REDACTED, text)
    return text


def _stands_in(form: str, text: str) -> bool:
    own = _as_a_word(form)
    return own is None or own.search(text) is not None


@lru_cache(1024)
def _as_a_word(form: str) -> re.Pattern[str] | None:
    """Finds what might be part of another word or number where it is one of its own.

    None for all others, which are looked for wherever they stand.
    """
    if form.isdecimal():
        return re.compile(rf"(?<![0-9]){form}(?![0-9])")
    if len(form) < SHORTEST_ANYWHERE:
        # The letter of an escape, as a repr shows it, is no part of the word behind it.
        return re.compile(rf"(?:(?<![A-Za-z0-9])|(?<=\\[abfnrtv])){re.escape(form)}(?![A-Za-z0-9])")
    return None


def redact_json(text: str) -> str:
    """The same for JSON, which stays JSON that says the same but for the key.

    A key may be a number, or look like an escape, so it is looked for in the texts that the
    JSON stands for, and among its numbers only as one of them.
    """
    if not any(form in text for form in _known):  # its escaped forms are known too
        return text
    value = json.loads(text)
    redacted = _redacted(value)
    return text if redacted == value else json.dumps(redacted, separators=(",", ":"))


def redact_own(text: str) -> str:
    """What a user wrote, without the keys in it; one as short as a word may be a word there."""
    return redact(text, SHORTEST_ANYWHERE)


def redacted_own(value: Any) -> Any:
    """The same for a value of dicts, lists, texts, numbers and others, which stay as they are."""
    return _redacted(value, SHORTEST_ANYWHERE) if _known else value


def veiled(handle: Any, key: str | None) -> Any:
    """A render's handle without the account's key in it, to be kept; see `unveiled`.

    What holds a key that could not be put back, in another spelling or of another account, is
    marked as lost. A key of under eight characters is a placeholder, such as "test", and may
    stand in any id: it stays.
    """

    def veil(text: str) -> str:
        if key is not None and len(key) >= SHORTEST_IN_HANDLE:
            text = text.replace(key, OWN)
            text = text.replace(urllib.parse.quote(key, safe=""), QUOTED)
        kept = redact(text, SHORTEST_IN_HANDLE)
        return text if kept == text else kept.replace(REDACTED, LOST)

    return _in_texts(handle, veil)


def unveiled(handle: Any, key: str | None) -> Any:
    """The handle as its provider knows it. Raises KeyError where what it held cannot be had."""

    def unveil(text: str) -> str:
        signs = (LOST, REDACTED) if key is not None else (LOST, REDACTED, OWN, QUOTED)
        if any(sign in text for sign in signs):
            raise KeyError(LOST)
        if key is None:
            return text
        quoted = urllib.parse.quote(key, safe="")
        return text.replace(OWN, key).replace(QUOTED, quoted)

    return _in_texts(handle, unveil)


def _in_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: _in_texts(part, change) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_in_texts(part, change) for part in value]
    return value


def _redacted(value: Any, shortest: int = SHORTEST) -> Any:
    if isinstance(value, str):
        return redact(value, shortest)
    if not isinstance(value, int | float | dict | list):
        return value
    if isinstance(value, dict):
        return {redact(name, shortest): _redacted(part, shortest) for name, part in value.items()}
    if isinstance(value, list):
        return [_redacted(part, shortest) for part in value]
    if isinstance(value, bool):
        return value
    is_whole = isinstance(value, int) or value.is_integer()
    forms = {str(value), str(abs(int(value)))} if is_whole else {str(value)}
    is_key = any(form in _known and len(form) >= shortest for form in forms)
    return REDACTED if is_key else value


def logger(name: str) -> logging.Logger:
    """The logger of that name, with keys taken out of all it says.

    Each module asks for its own: a logger's filters do not see what its children log.
    """
    found = logging.getLogger(name)
    if not any(isinstance(each, RedactingFilter) for each in found.filters):
        found.addFilter(RedactingFilter())
    return found


class RedactingFilter(logging.Filter):
    """Takes keys out of log records; see `logger`."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = redact(record.getMessage()), ()
        if record.exc_info and not record.exc_text:
            record.exc_text = redact(logging.Formatter().formatException(record.exc_info))
            record.exc_info = None
        return True
