"""The mock render provider: starts its server, turns its knobs, reads its ledger, talks to it.

::

    with MockProvider(idempotency="tag", drop_after={"first": 1}) as mock:
        render = mock.adapter()                 # a RenderProvider
        account = mock.account("studio-a")      # an AccountKey that it accepts
        mock.set(moderated=0.1)
        mock.billed_microusd()

The server is another process (`vqkit.mockserver`) with books of its own: one JSON line an
event, synced before a render is acknowledged, so that what was billed can be read after any
crash, ours or its own. Every chance is drawn from the seed, the request's content and how
often that was drawn before, never from the order of arrival: a run replays.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
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
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Self,
    TypeAlias,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)
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

if TYPE_CHECKING:
    import httpx

__all__ = ["Knobs", "Ledger", "MockAdapter", "MockProvider", "Render", "Request"]

# True, a chance from 0 to 1 at each try, or {"share": of the requests, "first": of their tries}.
Chance: TypeAlias = bool | float | Mapping[str, float]
# One for all accounts, or {account: limit}; None is no limit.
Limit: TypeAlias = int | Mapping[str, int] | None
OVER = ("SUCCEEDED", "FAILED", "CANCELLED")


@dataclass(frozen=True)
class Knobs:
    """All that can be turned. Times in seconds, money in micro-dollars; see `Chance`, `Limit`."""

    seed: int = 0
    idempotency: Idempotency = "replay"
    key_ttl_s: float | None = None
    clock_offset_s: float = 0.0  # the provider's clock against ours: jump instead of waiting
    # how long things take; a spread is a share to either side
    render_s: float = 0.0
    render_spread: float = 0.0
    render_polls: int = 0  # a render is not over before it was polled so often
    answer_s: float = 0.0  # after accepting, before answering
    answer_spread: float = 0.0
    poll_after_s: float | None = None
    list_lag_s: float = 0.0  # before a render shows in lists and searches
    # limits
    concurrency: Limit = None
    limits_scope: Literal["account", "account+model"] = "account"
    overflow: Literal["reject", "queue"] = "reject"
    per_minute: Limit = None
    per_day: Limit = None
    retry_after_s: float | None = None  # None: when the minute allows; 10 s for `rate`
    retry_after_as: Literal["seconds", "date", "ms", "body", "text", "none"] = "seconds"
    # money and keys
    cost_microusd: int = 250_000
    cost_spread: float = 0.0
    tells_cost: bool = True
    billed_on: Literal["submit", "start", "success"] = "success"
    moderated_billed: bool = False
    balance_microusd: Limit = None
    key_generation: Mapping[str, int] = field(default_factory=dict)  # the only key accepted
    revoke_after: int | None = None  # renders of an account, then its next key is needed
    retired: tuple[str, ...] = ()  # models; "*" is the whole provider
    # sending: before and after it was accepted
    rate: Chance = False
    drop_before: Chance = False
    error_before: Chance = False
    invalid: Chance = False
    die_after: Chance = False  # SIGKILL to itself
    drop_after: Chance = False
    error_after: Chance = False
    html_after: Chance = False
    error_status: tuple[int, ...] = (500, 502, 504)  # one is drawn
    # rendering and polling
    moderated: Chance = False
    moderated_on: Literal["submit", "render"] = "render"
    render_failed: Chance = False
    no_outputs: Chance = False
    poll_rate: Chance = False
    poll_drop: Chance = False
    poll_error: Chance = False
    poll_html: Chance = False
    unknown_state: Chance = False
    not_found_polls: int = 0  # the first polls of each render
    forget_s: float | None = None  # after its end a render is not found any more
    progress: Literal["steady", "backwards", "stuck", "none"] = "steady"
    cancel: Literal["any", "queued_only", "none"] = "any"
    cancel_billed: bool = False
    cancel_is_async: bool = False
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
    truncate: Chance = False
    wrong_length: Chance = False  # Content-Length says half of what there is
    file_error: Chance = False
    file_html: Chance = False

    def with_(self, changes: Mapping[str, Any]) -> Knobs:
        """These knobs with others turned. Raises ValueError for a name or word not known."""
        known = hints()
        for name, value in changes.items():
            if name not in known:
                raise ValueError(f"no knob named {name!r}; known: {', '.join(sorted(known))}")
            if get_origin(known[name]) is Literal and value not in get_args(known[name]):
                raise ValueError(f"{name}={value!r}; expected one of {get_args(known[name])}")
            if known[name] == Chance and not _is_chance(value):
                raise ValueError(f'{name}={value!r}; expected True, 0 to 1, or {{"first": 1}}')
        return replace(self, **changes)


@functools.cache
def hints() -> dict[str, Any]:
    return get_type_hints(Knobs)


def _is_chance(value: Any) -> bool:
    if isinstance(value, Mapping):
        return set(value) <= {"share", "first"} and bool(value)
    return isinstance(value, bool | int | float) and 0 <= value <= 1


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
    def public_id(self) -> str:
        """What the API calls it: the client's own id where there is one."""
        return self.client_id or self.id

    @property
    def due_ms(self) -> int:
        """When it will be over."""
        return self.states[-1][1] + (self.duration_ms if self.state == "RUNNING" else 0)


@dataclass(frozen=True)
class Request:
    """A request as it was received, whatever became of it; `fault` is the knob that spoiled it."""

    at_ms: int
    host: str
    method: str
    path: str
    what: str
    account: str | None
    has_key: bool
    status: int
    fault: str | None
    render: str | None
    rolls: tuple[tuple[str, str], ...] = ()


class Ledger:
    """The books: what the file's lines come to. Only the server opens it ``for_writing``."""

    def __init__(self, path: Path, *, for_writing: bool = False) -> None:
        self.renders: dict[str, Render] = {}
        self.requests: list[Request] = []
        self.counts: Counter[tuple[str, str]] = Counter()
        raw = path.read_bytes() if path.exists() else b""
        whole = raw[: raw.rfind(b"\n") + 1]  # a last line without its end was never acknowledged
        for line in whole.splitlines():
            self._apply(json.loads(line))
        self._lines: list[str] = []
        self._written = self._synced = 0
        self._lock = asyncio.Lock()
        if for_writing:
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.ftruncate(self._fd, len(whole))

    def _apply(self, event: dict[str, Any]) -> None:
        kind, facts = event["event"], {k: v for k, v in event.items() if k != "event"}
        if kind == "render":
            facts["states"] = [(state, at) for state, at in facts["states"]]
            self.renders[facts["id"]] = Render(**facts)
        elif kind == "state":
            render = self.renders[facts["id"]]
            render.states.append((facts["state"], facts["at_ms"]))
            render.billed_microusd = facts["billed_microusd"]
        else:
            request = Request(**{**facts, "rolls": tuple((n, of) for n, of in facts["rolls"])})
            self.requests.append(request)
            self.counts.update(request.rolls)
            if request.render and request.what in ("poll", "file"):
                render = self.renders[request.render]
                render.polls += request.what == "poll"
                render.fetches += request.what == "file" and request.status in (200, 206)

    def add(self, event: str, facts: Mapping[str, Any]) -> None:
        """Notes an event; it is in the file after `write`."""
        line = json.dumps({"event": event, **facts}, ensure_ascii=False)
        self._apply(json.loads(line))
        self._lines.append(line + "\n")

    def write(self) -> None:
        """All that was noted goes into the file at once: a kill leaves all of it or nothing."""
        if data := "".join(self._lines).encode():
            self._lines.clear()
            self._written += os.write(self._fd, data)

    async def sync(self) -> None:
        """Returns when what was written before is on the disk; one sync serves all who wait."""
        mine = self._written
        async with self._lock:
            if self._synced < mine:
                upto = self._written
                await asyncio.to_thread(os.fsync, self._fd)
                self._synced = upto


def account_key(account: str, generation: int = 1) -> str:
    """The key of an account; when it was revoked, that of the next generation is accepted."""
    digest = hashlib.sha256(f"vqkit-mock/{account}/{generation}".encode()).hexdigest()
    return f"mock.{quote(account, safe='')}.{generation}.{digest[:24]}"


def fingerprint(request: Any, model: str | None) -> str:
    """The same for the same request to the same model."""
    return digest("request", request, model)


def content(of: str, number: int, size: int, version: int = 0) -> bytes:
    """The bytes of a result, by its request's fingerprint."""
    return random.Random(f"{of}/{number}/{version}").randbytes(size)


def digest(*parts: Any) -> str:
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:20]


class MockProvider:
    """A provider in a process of its own, from here until `stop` or the end of ``with``.

    Knobs (see `Knobs`) are keyword arguments. `ledger` is where the books are kept; without
    it they vanish with the provider. Reading the books asks the file, never the server, so it
    works when the server is dead. The server ends itself when this process does.
    """

    def __init__(self, *, ledger: Path | None = None, **knobs: Any) -> None:
        self._knobs = _checked(Knobs(), knobs)
        self._config = knobs
        self._folder = None if ledger else tempfile.TemporaryDirectory(prefix="vqkit-mock-")
        self._path = ledger or Path(cast(Any, self._folder).name) / "ledger.jsonl"
        self._ports = (0, 0)
        self.url, self.cdn_url = "", ""
        self._start()

    def _start(self) -> None:
        package = str(Path(__file__).parent.parent)
        inherited = os.environ.get("PYTHONPATH")
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "vqkit.mockserver", "--ledger", str(self._path)]
            + ["--config", json.dumps(self._config)]
            + ["--port", str(self._ports[0]), "--cdn-port", str(self._ports[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [package, inherited]))},
        )
        assert self._process.stdout is not None
        self.url, self.cdn_url = (self._process.stdout.readline().decode().strip() for _ in "ab")
        if not self.cdn_url:
            self.stop()
            raise VqkitError("the mock provider's server did not start; its error stands above")
        self._ports = (cast(int, urlsplit(self.url).port), cast(int, urlsplit(self.cdn_url).port))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def set(self, **knobs: Any) -> None:
        """Turns knobs, from the next request on and over restarts."""
        self._knobs = _checked(self._knobs, knobs)
        self._config = self._config | knobs
        if self._process.poll() is None:
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
        for states in (r.states for r in self.ledger() if r.account == account):
            steps += [(at, 1) for state, at in states if state == "RUNNING"]
            ran = any(state == "RUNNING" for state, _ in states)
            steps += [(at, -1) for state, at in states if ran and state in OVER]
        return max(itertools.accumulate((change for _, change in sorted(steps)), initial=0))

    def account(
        self, name: str = "a", *, model: str | None = None, generation: int = 1
    ) -> AccountKey:
        """An account with a key the provider accepts; the next `generation` once it is revoked."""
        return AccountKey(name, account_key(name, generation), model)

    def content(
        self, request: Mapping[str, Any], number: int = 0, model: str | None = None
    ) -> bytes:
        """The bytes that result `number` of a request has."""
        return content(fingerprint(dict(request), model), number, self._knobs.size)

    def capabilities(self) -> Capabilities:
        """What the knobs, as they are now, come to."""
        knobs = self._knobs
        return Capabilities(
            idempotency=knobs.idempotency,
            key_ttl_s=knobs.key_ttl_s,
            result_ttl_s=knobs.forget_s if knobs.fresh_links else knobs.link_ttl_s,
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
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _checked(knobs: Knobs, changes: Mapping[str, Any]) -> Knobs:
    try:
        return knobs.with_(changes)
    except ValueError as error:
        raise UsageError(str(error)) from error


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
        if _canonical(reply.get("request", body["input"])) != _canonical(body["input"]):
            message = "this key had another request before, and the provider gave that one's render"
            raise ProviderError(message, "invalid", handle={"id": reply["id"]})
        return Submitted({"id": reply["id"]}, reply.get("cost_microusd"), _seconds(reply))

    async def poll(self, handle: Mapping[str, Any], *, account: AccountKey) -> Status:
        try:
            reply = await self._call("GET", _path(handle), account)
        except ProviderError as error:
            if error.facts.get("code") == "not_found":
                return Status("not_found")
            raise
        word, cost, is_billed = reply.get("state"), reply.get("cost_microusd"), reply.get("billed")
        links = [Link(o["url"], o["suffix"], o.get("size")) for o in reply.get("outputs") or ()]
        state, error = STATES.get(str(word), "running"), None
        if state == "failed" or (state == "succeeded" and not links):
            said = reply.get("error") or {"code": "empty", "message": "it ended without a result"}
            kind: ProviderErrorKind = "render_failed"
            if said["code"] == "content_policy":
                kind = "moderated"
            state, error = "failed", ProviderError(said["message"], kind, is_billed=is_billed)
        return Status(
            state,
            progress=reply.get("progress"),
            poll_after_s=_seconds(reply),
            links=tuple(links),
            expires_at_ms=reply.get("expires_at"),
            cost_microusd=cost,
            is_billed=is_billed,
            error=error,
            stage=None if word in STATES else str(word),
        )

    async def fetch(
        self, link: Link, path: Path, *, account: AccountKey, etag: str | None = None
    ) -> Fetched:
        """As the contract says; an error's facts `etag` and `size` say what may be gone on from."""
        here = await asyncio.to_thread(lambda: path.stat().st_size if path.exists() else 0)
        headers, url, facts = {"Accept-Encoding": "identity"}, link.url, dict[str, Any]()
        if here and etag:
            headers |= {"Range": f"bytes={here}-", "If-Range": etag}
        async with self._sending(facts) as client:
            for _ in range(5):
                is_ours = urlsplit(url)[:2] == urlsplit(self._url)[:2]
                with_key = is_ours and self.capabilities.download_needs_key
                mine = headers | (_authorization(account) if with_key else {})
                async with client.stream("GET", url, headers=mine) as response:
                    if response.has_redirect_location:
                        url = str(response.url.join(response.headers["location"]))
                        continue
                    return await _receive(response, link, path, here, etag, facts)
        raise ProviderError("the link is redirected again and again", "result_gone")

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
            try:
                found = [await self._call("GET", _path({"id": key}), account)]
            except ProviderError as error:
                if error.facts.get("code") != "not_found":
                    raise
                found = []
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

    async def _pages(self, query: dict[str, str], account: AccountKey) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        while True:
            after = {"after": items[-1]["id"]} if items else {}
            params = {"limit": "100"} | query | after
            page = await self._call("GET", "/v1/renders", account, params=params)
            items += page["items"]
            if not page["has_more"]:
                return items

    async def _call(
        self, method: str, path: str, account: AccountKey, **options: Any
    ) -> dict[str, Any]:
        headers = _authorization(account) | options.pop("headers", {})
        async with self._sending({}) as client:
            response = await client.request(method, self._url + path, headers=headers, **options)
        if response.status_code >= 300:
            raise _refusal(response)
        try:
            return dict(response.json())
        except (ValueError, TypeError) as error:
            kind = response.headers.get("content-type")
            raise ProviderError(f"expected a JSON object, got {kind}", "unknown") from error

    @contextlib.asynccontextmanager
    async def _sending(self, facts: dict[str, Any]) -> AsyncIterator[httpx.AsyncClient]:
        """A client that neither retries nor redirects; its errors become ProviderErrors."""
        import httpx

        # Loading the certificates takes 20 ms a client. Without any, an https URL is refused.
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            async with httpx.AsyncClient(
                verify=tls, trust_env=False, timeout=self._timeout_s
            ) as client:
                yield client
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol) as error:
            raise ProviderError(f"nothing was sent: {error!r}", "not_sent", **facts) from error
        except httpx.HTTPError as error:
            raise ProviderError(f"the answer was lost: {error!r}", "unknown", **facts) from error


STATES: Mapping[str, State] = {
    "PENDING": "queued",
    "THROTTLED": "throttled",
    "RUNNING": "running",
    "SUCCEEDED": "succeeded",
    "FAILED": "failed",
    "CANCELLED": "cancelled",
}
KINDS: Mapping[str, ProviderErrorKind] = {
    "unauthorized": "auth",
    "insufficient_balance": "no_funds",
    "daily_limit": "quota",
    "too_many_concurrent": "concurrency",
    "rate_limited": "rate",
    "content_policy": "moderated",
    "idempotency_key_reused": "key_reused",
    "model_retired": "provider_gone",
    "provider_retired": "provider_gone",
}


def _refusal(response: httpx.Response) -> ProviderError:
    status = response.status_code
    try:
        said = dict(response.json()["error"])
    except (ValueError, TypeError, KeyError):
        said = {}
    by_status: ProviderErrorKind = "unknown" if status >= 500 or status < 400 else "invalid"
    kind = KINDS.get(str(said.get("code")), by_status)
    wait_s = _retry_after_s(response, said) if status == 429 else None
    return ProviderError(
        f"HTTP {status}: {said.get('message', 'no reason given')}",
        kind,
        retry_after_s=wait_s,
        is_billed=said.get("billed"),
        status=status,
        code=said.get("code"),
    )


def _retry_after_s(response: httpx.Response, said: Mapping[str, Any]) -> float | None:
    """The provider's word in any of its five forms; a date is read by the provider's clock."""
    headers = response.headers
    if ms := headers.get("retry-after-ms"):
        return float(ms) / 1000
    if (after := headers.get("retry-after", "")).isdigit():
        return float(after)
    if after:
        then, now = (email.utils.parsedate_to_datetime(t) for t in (after, headers["date"]))
        return (then - now).total_seconds()
    if "retry_after" in said:
        return float(said["retry_after"])
    found = re.search(r"resets in ~?(\d+)\s?s", str(said.get("message")))
    return float(found[1]) if found else None


async def _receive(
    response: httpx.Response,
    link: Link,
    path: Path,
    here: int,
    etag: str | None,
    facts: dict[str, Any],
) -> Fetched:
    """Writes a result to `path`, behind what is there if it is the rest of the same file."""
    status, headers = response.status_code, response.headers
    is_page = headers.get("content-type", "").startswith("text/html") and link.suffix != ".html"
    if status in (403, 404, 410) or (status == 200 and is_page):
        raise ProviderError(f"the link gave no file: HTTP {status}", "result_gone")
    if status not in (200, 206, 416):
        await response.aread()
        raise _refusal(response)
    is_coded = headers.get("content-encoding", "identity") != "identity"
    strong = headers.get("etag", "W/").startswith('"') and not is_coded
    now_etag = headers["etag"] if strong else None
    whole = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+)", headers.get("content-range", ""))
    size = int(whole[2]) if whole else link.size
    if status == 416 and size == here and now_etag == etag:
        return Fetched(here, etag)
    is_rest = status == 206 and bool(whole) and now_etag == etag and int(whole[1] or -1) == here
    if status != 200 and not is_rest:
        await asyncio.to_thread(path.unlink)
        raise ProviderError("the file has changed since its first part came", "unknown")
    decoder = zlib.decompressobj(47) if is_coded else None  # 47: gzip or zlib, by its header
    facts |= {"etag": now_etag, "size": here if is_rest else 0}
    file = await asyncio.to_thread(path.open, "ab" if is_rest else "wb", buffering=0)
    try:
        async for piece in response.aiter_raw():
            data = decoder.decompress(piece) if decoder else piece
            facts["size"] += await asyncio.to_thread(file.write, data)
    except zlib.error as error:
        raise ProviderError(f"the file cannot be unpacked: {error}", "unknown") from error
    finally:
        await asyncio.to_thread(file.close)
    if facts["size"] != (facts["size"] if size is None else size) or (decoder and not decoder.eof):
        message = f"the file has {facts['size']} bytes, expected {size}"
        raise ProviderError(message, "unknown", **facts)
    return Fetched(facts["size"], now_etag)


def _authorization(account: AccountKey) -> dict[str, str]:
    return {"Authorization": f"Bearer {account.key}"} if account.key else {}


def _path(handle: Mapping[str, Any]) -> str:
    return "/v1/renders/" + quote(handle["id"], safe="")


def _seconds(reply: Mapping[str, Any]) -> float | None:
    return None if reply.get("poll_after_ms") is None else reply["poll_after_ms"] / 1000


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
