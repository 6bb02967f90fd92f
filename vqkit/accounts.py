"""The provider accounts of a queue: how many jobs each may run at once, and where its key is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from . import codec, html
from .errors import UnknownName, UsageError
from .job import Account
from .secrets import check_reference, redact

__all__ = ["Accounts"]

CAPACITY_MAX = 10_000


class Accounts:
    """``q.accounts``: add, change, look. Every change is a row that all pumps obey."""

    def __init__(
        self,
        read: Callable[[], list[Account]],
        write: Callable[[Account], None],
    ) -> None:
        self._read, self._write = read, write

    def add(
        self,
        name: str,
        *,
        provider: str = "local",
        capacity: int = 1,
        credential: str | None = None,
    ) -> Account:
        """Adds an account, or changes the one of that name, so that a cell may run again.

        `capacity` is how many jobs it may run at once, counted over all processes.
        `credential` says where the key is, ``env:NAME`` or ``keyring:service/name``; the key
        itself is refused.
        """
        _check_name("account", name)
        _check_name("provider", provider)
        account = Account(name, provider, check_capacity(capacity), check_reference(credential))
        self._write(account)
        return account

    def set_capacity(self, name: str, capacity: int) -> Account:
        """Changes how many jobs the account may run at once; what runs goes on."""
        return self._change(name, capacity=check_capacity(capacity))

    def disable(self, name: str) -> Account:
        """Gives the account no new work; what runs goes on."""
        return self._change(name, is_enabled=False)

    def enable(self, name: str) -> Account:
        """Gives the account work again."""
        return self._change(name, is_enabled=True)

    def unpark(self, name: str) -> Account:
        """Gives a parked account work again: the cause is mended."""
        account = self[name]
        limits = codec.loads(account.limits_json)
        limits.pop("moderated", None)
        return self._change(
            name, parked_until_ms=None, parked_reason=None, limits_json=codec.encode(limits)
        )

    def _change(self, name: str, **change: Any) -> Account:
        account = replace(self[name], **change)
        self._write(account)
        return account

    def __getitem__(self, name: str) -> Account:
        known = {account.name: account for account in self._read()}
        if name not in known:
            raise UnknownName(
                f"no account named {name!r}; known: {', '.join(known) or 'none'}", name=name
            )
        return known[name]

    def __iter__(self) -> Iterator[Account]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        return "\n".join(f"{a.name}: {a.provider}, capacity {a.capacity}" for a in self) or "none"

    def _repr_html_(self) -> str:
        rows = [
            (a.name, a.provider, a.capacity, a.credential, "" if a.is_enabled else "paused")
            for a in self
        ]
        return html.table(("account", "provider", "capacity", "key", ""), rows)


def check_capacity(capacity: Any) -> int:
    """The capacity, if it is one. Raises UsageError."""
    if isinstance(capacity, bool) or not isinstance(capacity, int):
        raise UsageError(f"capacity {capacity!r}: expected a whole number from 1")
    if not 1 <= capacity <= CAPACITY_MAX:
        raise UsageError(
            f"capacity {capacity}: expected 1 to {CAPACITY_MAX:,}, the jobs an account may run at"
            " once. To rest an account use accounts.disable(name)."
        )
    return int(capacity)


def _check_name(what: str, name: Any) -> None:
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise UsageError(f"{what} name {name!r}: expected some printable text")
    if redact(name) != name:
        raise UsageError(f"the {what} name holds a key; name it after what it is for")
