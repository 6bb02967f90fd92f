"""The mock render provider: starts its server, turns its knobs, reads its ledger, talks to it.

::

    with MockProvider(idempotency="tag", drop_after={"first": 1}) as mock:
        render = mock.adapter()  # a RenderProvider
        account = mock.account("studio-a")  # an AccountKey that it accepts
        mock.set(moderated=0.1)
        mock.billed_microusd()

The server (`vqkit.mockserver`) is another process with books of its own, synced before a
render is acknowledged: what was billed can be read after any crash, ours or its own. Every
chance is drawn from the seed, the request's content and how often that was drawn before,
never from the order of arrival: a run replays.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import http.client
import itertools
import json
import os
import random
import re
import ssl
import subprocess
import sys
import tempfile
import typing
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias
from urllib.parse import quote, urlsplit

from .errors import UsageError, VqkitError
from .providers.contract import (
    AccountKey,
    Capabilities,
    Fetched,
    Idempotency,
    Link,
    Match,
    ProviderError,
    ProviderErrorKind,
    State,
    Status,
    Submitted,
)
from .providers.download import download, network, retry_after_s

if TYPE_CHECKING:
    import httpx

__all__ = ["CHANCES", "Knobs", "Ledger", "MockAdapter", "MockProvider", "Render", "Request"]

# True, a chance from 0 to 1 at each try, or {"share": of the requests, "first": of their tries}.
Chance: TypeAlias = bool | float | Mapping[str, float]
# One for all accounts, or {account: limit}; None is no limit.
Limit: TypeAlias = int | Mapping[str, int] | None
OVER = ("SUCCEEDED", "FAILED", "CANCELLED")
# Knobs that are a `Chance`. Submitting, before the render is accepted and after (die: SIGKILL
# to itself); what becomes of it; polling; downloading (wrong_length says half of what comes).
CHANCES = (
    *("rate", "drop_before", "error_before", "invalid"),
    *("die_after", "drop_after", "error_after", "html_after"),
    *("moderated", "render_failed", "no_outputs"),
    *("poll_rate", "poll_drop", "poll_error", "poll_html", "unknown_state"),
    *("file_error", "file_html", "truncate", "wrong_length"),
)


@dataclass(frozen=True)
class Knobs:
    """All that can be turned. Times in seconds, money in micro-dollars; see `Limit`.

    `chances` holds those of `CHANCES` that are not False.
    """

    seed: int = 0
    idempotency: Idempotency = "replay"
    key_ttl_s: float | None = None
    clock_offset_s: float = 0.0  # the provider's clock against ours: a jump instead of a wait
    chances: Mapping[str, Chance] = field(default_factory=dict)
    error_status: tuple[int, ...] = (500, 502, 504)  # one is drawn
    # how long things take; a spread is a share to either side
    render_s: float = 0.0
    render_spread: float = 0.0
    render_polls: int = 0  # a render is not over before it was polled so often
    answer_s: float = 0.0  # after accepting, before answering
    answer_spread: float = 0.0
    poll_after_s: float | None = None
    not_found_polls: int = 0  # the first polls of each render
    list_lag_s: float = 0.0  # before a render shows in lists and searches
    forget_s: float | None = None  # after its end a render is not found any more
    progress: Literal["steady", "backwards", "stuck", "none"] = "steady"
    # limits
    concurrency: Limit = None
    limits_scope: Literal["account", "account+model"] = "account"
    overflow: Literal["reject", "queue"] = "reject"
    per_minute: Limit = None
    per_day: Limit = None
    retry_after_s: float | None = None  # None: until the minute allows; 10 s for a chance
    retry_after_as: Literal["seconds", "date", "ms", "body", "text", "none"] = "seconds"
    # money and keys
    cost_microusd: int = 250_000
    cost_spread: float = 0.0
    tells_cost: bool = True
    billed_on: Literal["submit", "start", "success"] = "success"
    moderated_on: Literal["submit", "render"] = "render"
    moderated_billed: bool = False
    cancel: Literal["any", "queued_only", "none"] = "any"
    cancel_billed: bool = False
    cancel_is_async: bool = False
    balance_microusd: Limit = None
    key_generation: Mapping[str, int] = field(default_factory=dict)  # the only one accepted
    revoke_after: int | None = None  # so many renders of an account, then its next generation
    retired: tuple[str, ...] = ()  # models; "*" is the whole provider
    # results
    outputs: int = 1
    size: int = 4096
    suffix: str = ".bin"
    tells_size: bool = True
    link_ttl_s: float | None = None
    fresh_links: bool = True  # else a link's time runs from the render's end
    expired_status: int = 403
    download_needs_key: bool = False
    files: Literal["api", "redirect", "cdn"] = "api"  # cdn: the second host, without a key
    download: Literal["length", "gzip", "chunked", "close"] = "length"
    ranges: bool = True
    etag: Literal["steady", "changing", "rude", "none"] = "steady"  # rude: ignores If-Range
    slow_s: float = 0.0

    def turned(self, changes: Mapping[str, Any]) -> Knobs:
        """These knobs with others turned. Raises UsageError for a name or word not known."""
        types = _types()
        for name, value in changes.items():
            if name not in types or name == "chances":
                raise UsageError(f"no knob named {name!r}; known: {', '.join(sorted(types))}")
            words = typing.get_args(types[name])
            if typing.get_origin(types[name]) is Literal and value not in words:
                raise UsageError(f"{name}={value!r}; expected one of {words}")
            is_rule = isinstance(value, Mapping) and {"share", "first"}.issuperset(value)
            is_share = isinstance(value, int | float) and 0 <= value <= 1
            if name in CHANCES and not is_rule and not is_share:
                raise UsageError(f"{name}={value!r}; expected True, 0 to 1, or {{'first': 1}}")
        chances = {name: value for name, value in changes.items() if name in CHANCES}
        others = {name: value for name, value in changes.items() if name not in CHANCES}
        return replace(self, chances={**self.chances, **chances}, **others)


@functools.cache
def _types() -> dict[str, Any]:
    return dict.fromkeys(CHANCES, Chance) | typing.get_type_hints(Knobs)


@dataclass
class Render:
    """A render as the ledger has it. `states` are (word, ms), in order; `ends` is its fate."""

    id: str
    account: str
    model: str | None
    key: str | None
    tag: str | None
    client_id: str | None
    request: dict[str, Any]
    fingerprint: str
    created_ms: int
    cost_microusd: int
    duration_ms: int
    ends: str
    billed_microusd: int = 0
    states: list[tuple[str, int]] = field(default_factory=list)
    polls: int = 0
    fetches: int = 0

    @property
    def state(self) -> str:
        """Its state now."""
        return self.states[-1][0]

    @property
    def is_over(self) -> bool:
        """True when its state will not change any more."""
        return self.state in OVER

    @property
    def public_id(self) -> str:
        """What the API calls it: the client's own id where there is one."""
        return self.client_id or self.id

    @property
    def due_ms(self) -> int:
        """When it will be over."""
        return self.states[-1][1] + (self.duration_ms if self.state == "RUNNING" else 0)


@dataclass
class Request:
    """A request as it was received, whatever became of it; `fault` is the knob that spoiled it."""

    host: str
    method: str
    path: str
    at_ms: int = 0
    what: str = "other"
    account: str | None = None
    has_key: bool = False
    status: int = 0
    fault: str | None = None
    render: str | None = None
    rolls: list[tuple[str, str]] = field(default_factory=list)


class Ledger:
    """The books: what the file's lines come to. Only the server opens it ``for_writing``."""

    def __init__(self, path: Path, *, for_writing: bool = False) -> None:
        self.renders: dict[str, Render] = {}
        self.requests: list[Request] = []
        self.counts: Counter[tuple[str, str]] = Counter()
        raw = path.read_bytes() if path.exists() else b""
        whole = raw[: raw.rfind(b"\n") + 1]  # a last line without its end was never acknowledged
        for kind, facts in map(json.loads, whole.splitlines()):
            if kind == "Render":
                facts["states"] = [(state, at) for state, at in facts["states"]]
                self.renders[facts["id"]] = Render(**facts)
            else:
                self.received(Request(**facts), is_new=False)
        self._renders: dict[str, Render] = {}
        self._requests: list[Request] = []
        if for_writing:
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.ftruncate(self._fd, len(whole))

    def changed(self, render: Render) -> None:
        """Notes a render as it is now; it is in the file after `write`."""
        self._renders[render.id] = self.renders[render.id] = render

    def received(self, request: Request, *, is_new: bool = True) -> None:
        """Notes a request; it is in the file after `write`."""
        if is_new:  # the server's calls carry more than is noted
            known = {each.name: getattr(request, each.name) for each in fields(Request)}
            self._requests.append(request := Request(**known))
        self.requests.append(request)
        self.counts.update((name, of) for name, of in request.rolls)

    def write(self) -> None:
        """All that was noted goes into the file at once: a kill leaves all of it or nothing."""
        new: list[Render | Request] = [*self._renders.values(), *self._requests]
        lines = (json.dumps([type(each).__name__, asdict(each)]) + "\n" for each in new)
        if data := "".join(lines).encode():
            self._renders.clear()
            self._requests.clear()
            if os.write(self._fd, data) != len(data):
                raise OSError("no room left for the mock provider's ledger")

    async def sync(self) -> None:
        """Returns when what was written before is on the disk."""
        await asyncio.to_thread(os.fsync, self._fd)


def account_key(account: str, generation: int = 1) -> str:
    """The key of an account; when it was revoked, that of the next generation is accepted."""
    secret = digest("vqkit-mock", account, generation)
    return f"mock.{quote(account, safe='')}.{generation}.{secret}"


def fingerprint(request: Mapping[str, Any], model: str | None) -> str:
    """The same for the same request to the same model."""
    return digest("request", dict(request), model)


def content(of: str, number: int, size: int, version: int = 0) -> bytes:
    """The bytes of a result, by its request's fingerprint."""
    return random.Random(f"{of}/{number}/{version}").randbytes(size)


def digest(*parts: Any) -> str:
    """Twenty hexadecimal digits that any change of the parts changes."""
    return hashlib.sha256(_canonical(parts).encode()).hexdigest()[:20]


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


class MockProvider:
    """A provider in a process of its own, from here until `stop` or the end of ``with``.

    Knobs (see `Knobs`) are keyword arguments. `ledger` is where the books are kept; without
    it they vanish with the provider. Reading the books asks the file, never the server, so it
    works when the server is dead. The server ends itself when this process does.
    """

    def __init__(self, *, ledger: Path | None = None, **knobs: Any) -> None:
        self._knobs = Knobs().turned(knobs)
        self._config = knobs
        self._folder = None if ledger else tempfile.TemporaryDirectory(prefix="vqkit-mock-")
        self._path = ledger or Path(typing.cast(Any, self._folder).name) / "ledger.jsonl"
        self._ports = [0, 0]
        self._start()

    def _start(self) -> None:
        parts = [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH")]
        path = os.pathsep.join(part for part in parts if part)
        command = [sys.executable, "-P", "-m", "vqkit.mockserver", "--ledger", str(self._path)]
        command += ["--config", json.dumps(self._config)]
        command += ["--port", str(self._ports[0]), "--cdn-port", str(self._ports[1])]
        pipe, env = subprocess.PIPE, os.environ | {"PYTHONPATH": path}
        process: Any = subprocess.Popen(  # Any: mypy does not know that its pipes are there
            command, stdin=pipe, stdout=pipe, start_new_session=True, env=env
        )
        self._process = process
        self.url, self.cdn_url = (process.stdout.readline().decode().strip() for _ in range(2))
        if not self.cdn_url:
            self.stop()
            raise VqkitError("the mock provider's server did not start; its error stands above")
        self._ports = [int(url.rpartition(":")[2]) for url in (self.url, self.cdn_url)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def set(self, **knobs: Any) -> None:
        """Turns knobs, from the next request on and over restarts."""
        self._knobs = self._knobs.turned(knobs)
        self._config = self._config | knobs
        if self.is_alive:
            self._control("PUT", "/_control", knobs)

    def fail_next(self, knob: str, times: int = 1) -> None:
        """The next `times` draws of a chance hit, whatever the request. Forgotten by a restart."""
        self._control("POST", "/_control/fail_next", {knob: times})

    def advance(self, seconds: float) -> None:
        """Sets the provider's clock forward: renders end, links and keys expire, ids are gone."""
        self.set(clock_offset_s=self._knobs.clock_offset_s + seconds)

    def _control(self, method: str, path: str, body: Mapping[str, Any]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._ports[0], timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, json.dumps(body))
            response = connection.getresponse()
            text = response.read().decode()
        if response.status != 200:
            raise UsageError(json.loads(text)["error"]["message"])

    def ledger(self) -> list[Render]:
        """Every render that was accepted, in order, as the provider's books have it."""
        return list(Ledger(self._path).renders.values())

    def requests(self) -> list[Request]:
        """Every request that was received, in order, answered or not."""
        return Ledger(self._path).requests

    def billed_microusd(self, account: str | None = None) -> int:
        """What was billed, to one account or to all."""
        return sum(r.billed_microusd for r in self.ledger() if account in (None, r.account))

    def most_at_once(self, account: str) -> int:
        """The most renders of an account that ran at the same time."""
        steps = []
        for states in (dict(r.states) for r in self.ledger() if r.account == account):
            if "RUNNING" in states:
                steps.append((states["RUNNING"], 1))
                steps += [(states[word], -1) for word in OVER if word in states]
        return max(itertools.accumulate((change for _, change in sorted(steps)), initial=0))

    def account(self, name: str, *, model: str | None = None, generation: int = 1) -> AccountKey:
        """An account with a key the provider accepts; the next `generation` once it is revoked."""
        return AccountKey(name, account_key(name, generation), model)

    def content(self, request: Mapping[str, Any], number: int = 0) -> bytes:
        """The bytes that result `number` of a request has, where no model is named."""
        return content(fingerprint(request, None), number, self._knobs.size)

    def capabilities(self) -> Capabilities:
        """What the knobs, as they are now, come to."""
        knobs = self._knobs
        ends = (knobs.forget_s, None if knobs.fresh_links else knobs.link_ttl_s)
        return Capabilities(
            idempotency=knobs.idempotency,
            key_ttl_s=knobs.key_ttl_s,
            result_ttl_s=min((ttl for ttl in ends if ttl is not None), default=None),
            has_fresh_links=knobs.fresh_links,
            download_needs_key=knobs.download_needs_key,
            billed_on=knobs.billed_on,
            is_moderated_billed=knobs.moderated_billed,
            limits_scope=knobs.limits_scope,
            cancel=knobs.cancel,
        )

    def adapter(self, name: str = "mock") -> MockAdapter:
        """The provider as vqkit sees it; its capabilities are those of now."""
        return MockAdapter(self.url, self.capabilities(), name=name)

    @property
    def is_alive(self) -> bool:
        """True while the server's process lives; `die_after` and `kill` end it."""
        return bool(self._process.poll() is None)

    def kill(self) -> None:
        """SIGKILL to the server; the ledger stays."""
        self._process.kill()
        self._close()

    def restart(self) -> None:
        """Kills the server if it lives and starts it again: same ledger, knobs and URL."""
        self.kill()
        self._start()

    def stop(self) -> None:
        """Ends the server and, if it has a temporary ledger, removes that. Again: nothing."""
        self._close()
        if self._folder:
            self._folder.cleanup()

    def _close(self) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        self._process.wait()


class MockAdapter:
    """`RenderProvider` over the mock's REST API.

    It keeps no connection: any event loop may use it, it can be pickled, and no answer is
    in doubt because an idle connection had been closed.
    """

    def __init__(
        self, url: str, capabilities: Capabilities, *, name: str = "mock", timeout_s: float = 30.0
    ) -> None:
        import httpx  # noqa: F401 - its first import takes long: not on the pump's loop

        self.name, self.capabilities = name, capabilities
        self._url, self._timeout_s = url, timeout_s

    async def submit(
        self,
        request: Mapping[str, Any],
        *,
        key: str,
        account: AccountKey,
        sink: Callable[[str], Path],
    ) -> Submitted:
        body = {"input": dict(request), "model": account.model}
        if field_of_key := {"tag": "tag", "client_id": "id"}.get(self.capabilities.idempotency):
            body[field_of_key] = key
        headers = {"Idempotency-Key": key}
        reply = await self._call("POST", "/v1/renders", account, json=body, headers=headers)
        if not isinstance(reply.get("id"), str):
            raise ProviderError("the answer to a render has no id", "unknown")
        if _canonical(reply.get("request") or body["input"]) != _canonical(body["input"]):
            message = "this key had another request before, and the provider gave that one's render"
            raise ProviderError(message, "invalid", handle={"id": reply["id"]})
        return Submitted({"id": reply["id"]}, reply.get("cost_microusd"), reply.get("poll_after_s"))

    async def poll(self, handle: Mapping[str, Any], *, account: AccountKey) -> Status:
        reply = await self._get(handle, account)
        if reply is None:
            return Status("not_found")
        word, cost, is_billed = reply.get("state"), reply.get("cost_microusd"), reply.get("billed")
        links = [Link(o["url"], o["suffix"], o.get("size")) for o in reply.get("outputs") or ()]
        state, problem = STATES.get(str(word), "running"), None
        if state == "failed" or (state == "succeeded" and not links):
            said = reply.get("error") or {"code": "empty", "message": "it ended without a result"}
            kind = KINDS.get(said["code"], "render_failed")
            state, problem = "failed", ProviderError(said["message"], kind, is_billed=is_billed)
        return Status(
            state,
            progress=reply.get("progress"),
            poll_after_s=reply.get("poll_after_s"),
            links=tuple(links),
            expires_at_ms=reply.get("expires_at"),
            cost_microusd=cost,
            is_billed=is_billed,
            error=problem,
            stage=None if word in STATES else str(word),
        )

    async def fetch(
        self, link: Link, path: Path, *, account: AccountKey, etag: str | None = None
    ) -> Fetched:
        headers = _authorization(account) if self.capabilities.download_needs_key else {}
        if urlsplit(link.url)[:2] != urlsplit(self._url)[:2]:
            headers = {}
        async with self._client() as client:
            return await download(
                client, link.url, path, headers=headers, etag=etag, expected_size=link.size
            )

    async def cancel(
        self, handle: Mapping[str, Any], *, account: AccountKey
    ) -> Literal["cancelled", "requested", "too_late", "unsupported"]:
        try:
            reply = await self._call("POST", _path(handle) + "/cancel", account)
        except ProviderError as error:
            if error.facts.get("code") in ("too_late", "not_found"):
                return "too_late"
            if error.facts.get("code") == "not_supported":
                return "unsupported"
            raise
        return "cancelled" if reply.get("state") == "CANCELLED" else "requested"

    async def find(
        self, request: Mapping[str, Any], *, key: str, since_ms: int, account: AccountKey
    ) -> list[Match]:
        kind = self.capabilities.idempotency
        if kind == "client_id":
            found = [reply] if (reply := await self._get({"id": key}, account)) else []
        elif kind in ("tag", "list", "reject"):
            query = {"tag": key} if kind == "tag" else {"since": str(since_ms)}
            found = await self._pages(query, account)
            if kind != "tag":
                wanted = _canonical([dict(request), account.model])
                found = [r for r in found if _canonical([r["request"], r["model"]]) == wanted]
        else:
            found = []
        is_certain = kind in ("client_id", "tag")
        return [Match({"id": r["id"]}, r["created_at"], is_certain) for r in found]

    async def _get(self, handle: Mapping[str, Any], account: AccountKey) -> Any:
        try:
            return await self._call("GET", _path(handle), account)
        except ProviderError as error:
            if error.facts.get("code") != "not_found":
                raise
            return None

    async def _pages(self, query: dict[str, str], account: AccountKey) -> list[dict[str, Any]]:
        page, items = {"has_more": True}, list[dict[str, Any]]()
        while page["has_more"]:
            after = {"after": items[-1]["id"]} if items else {}
            params = {"limit": "100"} | query | after
            page = await self._call("GET", "/v1/renders", account, params=params)
            items += page["items"]
        return items

    async def _call(self, method: str, path: str, account: AccountKey, **options: Any) -> Any:
        headers = _authorization(account) | options.pop("headers", {})
        with network(f"{method} {path}"):
            async with self._client() as client:
                response = await client.request(
                    method, self._url + path, headers=headers, **options
                )
        if response.status_code >= 300:
            raise _refusal(response)
        try:
            return dict(response.json())
        except (ValueError, TypeError) as error:
            kind = response.headers.get("content-type")
            raise ProviderError(f"expected a JSON object, got {kind}", "unknown") from error

    def _client(self) -> httpx.AsyncClient:
        import httpx

        # Loading the certificates takes 20 ms a client. Without any, an https URL is refused.
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        return httpx.AsyncClient(verify=tls, trust_env=False, timeout=self._timeout_s)


STATES = {state.upper(): state for state in typing.get_args(State)}
KINDS: Mapping[str, ProviderErrorKind] = {
    "unauthorized": "auth",
    "insufficient_balance": "no_funds",
    "daily_limit": "quota",
    "too_many_concurrent": "concurrency",
    "rate_limited": "rate",
    "content_policy": "moderated",
    "idempotency_key_reused": "key_reused",
    "retired": "provider_gone",
}


def _refusal(response: httpx.Response) -> ProviderError:
    status, said = response.status_code, dict[str, Any]()
    with contextlib.suppress(ValueError, TypeError, KeyError):  # an HTML page, say
        said = dict(response.json()["error"])
    by_status: ProviderErrorKind = "unknown" if status >= 500 or status < 400 else "invalid"
    facts: dict[str, Any] = {
        "is_billed": said.get("billed"),
        "cost_microusd": said.get("cost_microusd"),
        "status": status,
        "code": said.get("code"),
    }
    if status == 429:
        facts["retry_after_s"] = _wait_s(response, said)
    message = f"HTTP {status}: {said.get('message', 'no reason given')}"
    return ProviderError(message, KINDS.get(str(said.get("code")), by_status), **facts)


def _wait_s(response: httpx.Response, said: Mapping[str, Any]) -> float | None:
    """The provider's word, in a header, a field or a sentence of the body."""
    if (in_header := retry_after_s(response.headers, now_ms=0, is_limit=True)) is not None:
        return in_header
    in_text = re.search(r"resets in ~?(\d+)\s?s", str(said.get("message")))
    in_field = said.get("retry_after", in_text and in_text[1])
    return None if in_field is None else float(in_field)


def _authorization(account: AccountKey) -> dict[str, str]:
    return {"Authorization": f"Bearer {account.key}"} if account.key else {}


def _path(handle: Mapping[str, Any]) -> str:
    return "/v1/renders/" + quote(handle["id"], safe="")
