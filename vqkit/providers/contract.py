"""What a render provider is: submit, poll, fetch, cancel, find, and what it says of itself.

A provider object sends a render, asks how it fares and fetches what came of it. It never
waits, retries or remembers: vqkit does, because only the database survives a crash. Every
method gets the `AccountKey` the render was made with; every error is a `ProviderError` of
one of the kinds below. Amounts are in whole micro-dollars, so that sums are exact.

The kinds of idempotency say what can be known about a request whose answer was lost:

============  ========================================================================
replay        the same key gives the original render back
replay_blind  as replay, but a changed body silently gives the old render too
reject        a key used before is refused, without saying which render it made
client_id     the render's id is the key we chose: poll it; not found means never sent
tag           a free field carries the key and can be searched
list          renders can be listed with their requests, but carry no key
none          nothing: only a person can know
============  ========================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from ..errors import ProviderError, ProviderErrorKind

__all__ = [
    "AccountKey",
    "Capabilities",
    "Fetched",
    "Finished",
    "Idempotency",
    "Link",
    "Match",
    "ProviderError",
    "ProviderErrorKind",
    "RenderProvider",
    "State",
    "Status",
    "Submitted",
]

Idempotency = Literal["replay", "replay_blind", "reject", "client_id", "tag", "list", "none"]
State = Literal[
    "queued", "throttled", "running", "succeeded", "failed", "cancelled", "expired", "not_found"
]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a provider can do, and when it bills.

    `result_ttl_s` is how long a result can be fetched; None: nobody says. `key_ttl_s` is
    how long an idempotency key is remembered; None: for ever.
    """

    idempotency: Idempotency = "none"
    key_ttl_s: float | None = None
    result_ttl_s: float | None = None
    has_fresh_links: bool = True
    download_needs_key: bool = False
    billed_on: Literal["submit", "start", "success"] = "success"
    is_moderated_billed: bool | None = None
    limits_scope: Literal["account", "account+model"] = "account"
    cancel: Literal["any", "queued_only", "none"] = "none"
    not_found_grace_s: float = 30.0


@dataclass(frozen=True, slots=True)
class AccountKey:
    """An account as a provider needs it: its name, its key, and a model where limits have one."""

    name: str
    key: str | None = field(default=None, repr=False)
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """A result to fetch. `suffix` is the file's ending, such as ``.mp4``."""

    url: str
    suffix: str = ""
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Submitted:
    """The provider took it. `handle` is JSON: all that is needed to poll it, for ever."""

    handle: Mapping[str, Any]
    cost_microusd: int | None = None
    poll_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer was the result itself: files already written, by `submit`, to `sink`."""

    files: tuple[Path, ...]
    cost_microusd: int | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """How a render fares. An unknown word of the provider's is `running`, never the end.

    `expires_at_ms` is when the result is deleted; `is_billed` None where nobody knows.
    """

    state: State
    progress: float | None = None
    poll_after_s: float | None = None
    links: tuple[Link, ...] = ()
    expires_at_ms: int | None = None
    cost_microusd: int | None = None
    is_billed: bool | None = None
    error: ProviderError | None = None
    stage: str | None = None


@dataclass(frozen=True, slots=True)
class Fetched:
    """A download that is whole: how many bytes, and the tag it may be resumed under."""

    size: int
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """A render found at the provider that may be ours. `is_certain` where it carries our key."""

    handle: Mapping[str, Any]
    created_ms: int
    is_certain: bool


class RenderProvider(Protocol):
    """Sends renders and collects them. Coroutines, all of them; none sleeps or tries again."""

    name: str
    capabilities: Capabilities

    async def submit(
        self,
        request: Mapping[str, Any],
        *,
        key: str,
        account: AccountKey,
        sink: Callable[[str], Path],
    ) -> Submitted | Finished:
        """Sends a render. `key` is the idempotency key, the same at every try of one render.

        `sink` gives a file for an answer that is the result itself, by its ending.
        """

    async def poll(self, handle: Mapping[str, Any], *, account: AccountKey) -> Status:
        """How it fares. Raises ProviderError; an error says nothing about the render."""

    async def fetch(
        self, link: Link, path: Path, *, account: AccountKey, etag: str | None = None
    ) -> Fetched:
        """Downloads to `path`, going on from what is there where `etag` still holds."""

    async def cancel(
        self, handle: Mapping[str, Any], *, account: AccountKey
    ) -> Literal["cancelled", "requested", "too_late", "unsupported"]:
        """Asks the provider to stop it."""

    async def find(
        self, request: Mapping[str, Any], *, key: str, since_ms: int, account: AccountKey
    ) -> list[Match]:
        """Renders made since then that carry this key, or look like this request."""
