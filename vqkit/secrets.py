"""Keys: one place resolves a reference, one place takes keys out of text.

An account holds a reference, ``env:NAME`` or ``keyring:service/name``, never the key. What
`resolve` has once returned is remembered in this process, and `redact` removes it, and the
forms it takes when encoded, from everything that is stored, logged, raised or shown.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any

from .errors import CredentialError, UsageError

__all__ = [
    "RedactingFilter",
    "check_reference",
    "holds_secret",
    "is_any_known",
    "logger",
    "redact",
    "redact_json",
    "resolve",
]

REDACTED = "[key]"
# A shorter "key" would take common words out of every text.
SHORTEST = 6

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


def remember(key: str) -> None:
    """From now on `redact` takes this key out, as it is and as it looks when encoded."""
    global _known
    if len(key) < SHORTEST or key in _known:
        return
    raw = key.encode()
    forms = {
        key,
        json.dumps(key)[1:-1],
        json.dumps(key, ensure_ascii=False)[1:-1],
        repr(key)[1:-1],
        urllib.parse.quote(key),
        urllib.parse.quote(key, safe=""),
        urllib.parse.quote_plus(key),
        *_in_base64(raw),
    }
    # An error's text holds a repr, and is itself stored as JSON.
    forms |= {json.dumps(form)[1:-1] for form in forms}
    with _remembering:
        _known = tuple(sorted({*_known, *forms}, key=len, reverse=True))


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
    return any(form in text for form in _known)


def redact(text: str) -> str:
    """The text with every known key replaced by ``[key]``."""
    for form in _known:
        if form in text:
            text = text.replace(form, REDACTED)
    return text


def redact_json(text: str) -> str:
    """The same for JSON, which stays JSON: a key may be a number, or look like an escape."""
    if not holds_secret(text):
        return text
    return json.dumps(_redacted(json.loads(text)), separators=(",", ":"))


def _redacted(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {redact(name): _redacted(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_redacted(part) for part in value]
    return REDACTED if holds_secret(str(value)) else value


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
