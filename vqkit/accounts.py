"""The provider accounts of a queue: how many jobs each may run at once, and where its key is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any

from . import codec, html
from .errors import UnknownName, UsageError
from .job import LOCAL, Account, model_of
from .providers.function import name_of
from .secrets import check_reference, redact

__all__ = ["IN_PASSING", "Accounts"]

CAPACITY_MAX = 10_000
IN_PASSING = "in_passing"
"""Among the limits of an account that was made for a handler, and not by the user."""


class _Kept(Enum):
    """What is not said is kept; None says that it is to be taken away."""

    KEPT = "as it was"

    def __repr__(self) -> str:
        return "KEPT"


KEPT = _Kept.KEPT


class Accounts:
    """``q.accounts``: add, change, look. Every change is a row that all pumps obey."""

    def __init__(
        self,
        read: Callable[[], list[Account]],
        change: Callable[[str, Callable[[Account | None], Account]], Account],
        delete: Callable[[str], bool],
    ) -> None:
        # Read and written in one transaction: the pump may park an account at any moment.
        self._read, self._write, self._delete = read, change, delete

    def add(
        self,
        name: str,
        *,
        provider: str | Callable[..., Any] | _Kept = KEPT,
        capacity: int | _Kept = KEPT,
        model_capacity: Mapping[str, int] | _Kept | None = KEPT,
        credential: str | _Kept | None = KEPT,
        per_minute: int | _Kept | None = KEPT,
        group: str | _Kept | None = KEPT,
        price: float | _Kept | None = KEPT,
        budget: float | _Kept | None = KEPT,
    ) -> Account:
        """Adds an account, or changes what is said here of the one of that name.

        What is not said stays as it was, so a cell may run again and a price is not lost
        when the slots are changed; ``price=None`` takes it away. A new account has the
        provider ``"local"``, one slot, and nothing else.

        `provider` is who does its work: the function you are going to run, or a name.
        `capacity` is how many jobs it may run at once, counted over all processes;
        `per_minute` how many it may begin in a minute. Accounts of one `group` share the
        smallest capacity among them. `credential` says where the key is, ``env:NAME`` or
        ``keyring:service/name``; the key itself is refused. It is taken out of all that is
        stored or shown: one of four or five characters where it stands as a word of its own;
        a shorter one counts as a placeholder and is left in. `price` is what a job may cost,
        in dollars: it is set aside when the job begins, and settled with the real figure. A
        function that marks its paid calls, ``once(…, paid=True)``, pays it for each of them.
        `budget` is what the account may spend in all; reaching it pauses the account.

        Where a provider limits each model by itself, `capacity` is how many jobs of one
        model may run at once, and ``model_capacity={"gen4": 2}`` says it for those that
        differ. A job's model is what its payload calls ``model`` (or ``Model``). A provider
        object says so itself (`Capabilities.limits_scope`); for a plain function
        `model_capacity` does.

        An account that is parked or paused stays so: see `unpark`, `enable`.
        """
        _check_name("account", name)
        if callable(provider):
            provider = name_of(provider)
        given: dict[str, Any] = {}
        if provider is not KEPT:
            _check_name("provider", provider)
            given["provider"] = provider
        if capacity is not KEPT:
            given["capacity"] = check_capacity(capacity)
        if credential is not KEPT:
            given["credential"] = check_reference(credential)
        limits: dict[str, Any] = {IN_PASSING: None}
        if per_minute is not KEPT:
            limits["per_minute"] = None if per_minute is None else check_capacity(per_minute)
        if group is not KEPT:
            limits["group"] = group
        if price is not KEPT:
            limits["price"] = microusd("price", price)
        if budget is not KEPT:
            limits["budget"] = microusd("budget", budget)
        if model_capacity is not KEPT:
            limits["model_capacity"] = None if model_capacity is None else _by_model(model_capacity)
        return self._write(name, lambda before: _changed(before, name, given, limits))

    def add_in_passing(self, name: str, capacity: int, provider: str | None = None) -> Account:
        """Makes an account nobody asked for: of a handler under its name, or of `vqkit run`."""
        limits = {IN_PASSING: True}
        given = {"provider": provider or name, "capacity": check_capacity(capacity)}
        return self._write(name, lambda before: _changed(before, name, given, limits))

    def set_capacity(self, name: str, capacity: int, *, model: str | None = None) -> Account:
        """Changes how many jobs the account, or one model on it, may run at once.

        What runs goes on.
        """
        if model is None:
            wanted = check_capacity(capacity)
            return self._change(name, lambda account: replace(account, capacity=wanted))
        of_model = _by_model({model: capacity})

        def limit(account: Account) -> Account:
            limits = account.limits
            limits["model_capacity"] = limits.get("model_capacity", {}) | of_model
            return replace(account, limits_json=codec.encode(limits))

        return self._change(name, limit)

    def disable(self, name: str) -> Account:
        """Gives the account no new work; what runs goes on."""
        return self._change(name, lambda account: replace(account, is_enabled=False))

    def enable(self, name: str) -> Account:
        """Gives the account work again."""
        return self._change(name, lambda account: replace(account, is_enabled=True))

    def remove(self, name: str) -> None:
        """Takes away an account that has never had a job; any other stays in the books.

        Also when all its jobs are pruned, if they have cost anything.

        Raises UsageError for one that has, and says to disable it.
        """
        if not self._delete(self[name].name):
            raise UsageError(
                f"account {name!r} has had jobs, which stay in the books with what they cost;"
                f" q.accounts.disable({name!r}) gives it no more"
            )

    def unpark(self, name: str) -> Account:
        """Gives a parked account work again: the cause is mended."""

        def unpark(account: Account) -> Account:
            limits = account.limits
            limits.pop("moderated", None)
            for known in limits.get("models", {}).values():
                known.pop("until_ms", None)
            limits_json = codec.encode(limits)
            return replace(
                account, parked_until_ms=None, parked_reason=None, limits_json=limits_json
            )

        return self._change(name, unpark)

    def _change(self, name: str, change: Callable[[Account], Account]) -> Account:
        def known(account: Account | None) -> Account:
            if account is None:
                raise UnknownName(f"no account named {name!r} any more", name=name)
            return change(account)

        return self._write(self[name].name, known)

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
        return "\n".join(map(str, self)) or "none"

    def _repr_html_(self) -> str:
        rows = [(a.name, a.provider, a.capacity, a.credential, "; ".join(a.said)) for a in self]
        return html.output(html.table(("account", "provider", "capacity", "key", ""), rows))


def _changed(
    before: Account | None, name: str, given: Mapping[str, Any], limits: Mapping[str, Any]
) -> Account:
    """The account with what was given; limits that are None are taken away."""
    account = Account(name, LOCAL) if before is None else before
    kept = {k: v for k, v in {**account.limits, **limits}.items() if v is not None}
    if "budget" in kept and "price" not in kept:
        raise UsageError("a budget needs a price: what a job may cost, in dollars")
    return replace(account, **given, limits_json=codec.encode(kept))


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


def _by_model(capacities: Mapping[str, int]) -> dict[str, int]:
    """Capacities by model, if they are. Raises UsageError."""
    if not isinstance(capacities, Mapping):
        raise UsageError(f"model_capacity {capacities!r}: expected such as {{'gen4': 2}}")
    for model in capacities:
        _check_name("model", model)
    return {model_of({"model": m}): check_capacity(n) for m, n in capacities.items()}


def microusd(what: str, dollars: Any) -> int | None:
    """Dollars as whole micro-dollars, so that sums are exact. Raises UsageError."""
    if dollars is None:
        return None
    is_number = isinstance(dollars, int | float) and not isinstance(dollars, bool)
    if not is_number or not 0 <= dollars < 10**9:
        raise UsageError(f"{what} {dollars!r}: expected dollars, from 0")
    microdollars: int = round(dollars * 1_000_000)
    return microdollars


def _check_name(what: str, name: Any) -> None:
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise UsageError(f"{what} name {name!r}: expected some printable text")
    if redact(name) != name:
        raise UsageError(f"the {what} name holds a key; name it after what it is for")
