"""Render APIs over HTTP, each described by a small declaration.

A Luma-like API, whose list shows what every render was asked for::

    luma = HttpProvider("luma", HttpApi(
        base_url="https://api.example.com/v1",
        submit="POST /generations/video",
        poll="GET /generations/{id}",
        cancel="DELETE /generations/{id}", is_cancel_final=True,
        body={"prompt": "{prompt}", "model": "{model}", "duration": "{duration}"},
        state="state",
        states={"queued": "queued", "dreaming": "running",
                "completed": "succeeded", "failed": "failed"},
        outputs="assets.video",
        error_message="failure_reason|detail",
        listing=HttpList(path="GET /generations?limit=100&offset={offset}", items="generations",
                         echo={"prompt": "request.prompt", "duration": "request.duration"}),
        capabilities=Capabilities(idempotency="list", cancel="any"),
    ))

How paths and templates are written is told in `http_api`.
A submit is sent once, on a connection of its own: a kept one that the server has just
closed would leave in doubt a render that was never asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import functools
import json
import re
from collections.abc import Callable, Container, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urljoin, urlsplit

from .. import secrets
from ..clock import Clock, SystemClock
from ..codec import encode, plain
from . import download as transfer
from .contract import (
    AccountKey,
    Fetched,
    Finished,
    Link,
    Match,
    ProviderError,
    ProviderErrorKind,
    State,
    Status,
    Submitted,
)
from .http_api import (
    ABSENT,
    HttpApi,
    HttpList,
    Reply,
    echoes,
    fill,
    fill_path,
    names_in,
    number_of,
    pick,
)

if TYPE_CHECKING:
    import ssl

    import httpx

__all__ = ["HttpApi", "HttpList", "HttpProvider"]

log = secrets.logger("vqkit.providers")

REPLY_MAX = 16 << 20
PAGES_MAX = 50

# What a status means where the declaration and the words say nothing. The rest of the 4xx
# is `invalid`; all else, and above all a 5xx, is `unknown`: it may have been accepted.
_STATUSES: Sequence[tuple[ProviderErrorKind, tuple[int, ...]]] = (
    ("provider_gone", (301, 307, 308, 410)),  # a POST is not sent on: base_url is out of date
    ("auth", (401, 403)),
    ("no_funds", (402,)),
    ("not_sent", (407, 421, 425)),
    ("unknown", (408, 409)),
)
_WORDS_OF_429: Sequence[tuple[ProviderErrorKind, re.Pattern[str]]] = (
    ("concurrency", re.compile(r"concurren|simultaneous|in parallel|queue.?full|too_many_running")),
    ("no_funds", re.compile(r"insufficient.?(quota|balance|credit|fund)|not enough credit")),
    ("quota", re.compile(r"\b(daily|monthly)|per.?(day|month)\b")),
)
_MODERATED = re.compile(r"moderat|safety|nsfw|content.?(policy|filter)|prohibited.?content")
_NOT_BILLED = {"invalid", "auth", "no_funds", "quota", "rate", "concurrency", "not_sent"}
_WAIT = re.compile(
    r"(?:reset|retry|try again|wait)\D{0,20}?(\d+(?:\.\d+)?)\s?(ms|milli|s|m|h|\b)", re.IGNORECASE
)
_UNITS_S = {"ms": 0.001, "milli": 0.001, "m": 60.0, "h": 3600.0}
_WAIT_MS = "retry_after_ms|error.retry_after_ms|retryAfterMs"
_WAIT_S = (
    "retry_after|error.retry_after|retry_after_s|retry_after_seconds|retryAfter|error.retryAfter"
    "|error.details[*].retryDelay"
)
_TOO_LATE = (400, 404, 409, 410, 422)  # what a cancel gets for a render that has ended
_UNIT_MICROUSD = {"dollars": 1_000_000, "cents": 10_000}


class HttpProvider:
    """A RenderProvider for what an `HttpApi` describes. `aclose` it on the loop it was used on.

    `submit_timeout_s` is long on purpose: a submit we give up on is a render in doubt. It
    and `poll_timeout_s` are for the whole exchange, `download_timeout_s` for a silence.
    """

    def __init__(
        self,
        name: str,
        api: HttpApi,
        *,
        connect_timeout_s: float = 10.0,
        submit_timeout_s: float = 180.0,
        poll_timeout_s: float = 30.0,
        download_timeout_s: float = 60.0,
        clock: Clock | None = None,
    ) -> None:
        import httpx

        self.name, self.api, self.capabilities = name, api, api.capabilities
        self._home = httpx.URL(api.base_url)
        self._tls = _tls()  # reads files, so not on the loop
        self._connect_s, self._submit_s = connect_timeout_s, submit_timeout_s
        self._poll_s, self._download_s = poll_timeout_s, download_timeout_s
        self._clock = clock or SystemClock()
        self._states = {word.casefold(): state for word, state in api.states.items()}
        self._strange: set[str] = set()
        self._clients: dict[bool, httpx.AsyncClient] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    async def aclose(self) -> None:
        """Closes the connections; a later call opens new ones."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.aclose()

    async def submit(
        self,
        request: Mapping[str, Any],
        *,
        key: str,
        account: AccountKey,
        sink: Callable[[str], Path],
    ) -> Submitted | Finished:
        api, values = self.api, _values(request, account, key)
        kept = self._kept(values)
        content = encode(plain(self._body(request, values), "request")).encode()
        reply = await self._call(api.submit, values, account, content=content, sink=sink)
        if reply.file is not None:
            return Finished((reply.file,), self._cost(reply))
        found = reply.first(api.id)
        if found is None and self.capabilities.idempotency == "client_id":
            found = key
        if isinstance(found, bool) or not isinstance(found, str | int) or found == "":
            raise self._error(reply, account, f"{api.submit} (accepted, but no id at {api.id!r})")
        return Submitted({**kept, "id": found}, self._cost(reply), self._poll_after(reply))

    async def poll(self, handle: Mapping[str, Any], *, account: AccountKey) -> Status:
        api = self.api
        reply = await self._call(api.poll, handle, account, also=(404,))
        if reply.status == 404:
            # Not lightly: where ids are our own, "not found" means "send it".
            if reply.is_page or self._declared_kind(404, reply.words(api.error_code)):
                raise self._error(reply, account, api.poll)
            return Status("not_found")
        word = secrets.redact(reply.words(api.state))
        state = self._states.get(word.casefold(), "running")
        if word.casefold() not in self._states and word not in self._strange:
            self._strange.add(word)
            log.warning("%s: state %r is not declared; taken as running", self.name, word[:80])
        replies, error = [reply], None
        if state == "succeeded" and api.result:
            try:
                replies.insert(0, await self._call(api.result, handle, account))
            except ProviderError as failure:
                # fal says here that a render failed. All else says nothing of the render.
                is_verdict = failure.facts.get("status") in (400, 422)
                if not is_verdict and failure.kind not in ("moderated", "render_failed"):
                    raise
                error = failure
                error.facts["kind"] = "moderated" if error.kind == "moderated" else "render_failed"
        links = self._links(replies[0], handle) if state == "succeeded" and not error else ()
        ended: State = "failed" if state == "succeeded" and not links else state
        cost = next((c for r in replies if (c := self._cost(r)) is not None), None)
        if ended == "failed":
            error = error or self._failure(replies, account)
        is_billed = self._is_billed(state, error, cost)
        if error is not None:
            error.facts["is_billed"] = is_billed
        progress = number_of(str(reply.first(api.progress)).rstrip("%"))
        return Status(
            ended,
            progress=None if progress is None else min(1, max(0, progress / api.progress_max)),
            poll_after_s=self._poll_after(reply),
            links=links,
            expires_at_ms=next((t for r in replies if (t := r.moment_ms(api.expires))), None),
            cost_microusd=cost,
            is_billed=is_billed,
            error=error,
            stage=word[:80] or None,
        )

    async def fetch(
        self, link: Link, path: Path, *, account: AccountKey, etag: str | None = None
    ) -> Fetched:
        import httpx

        with transfer.network(f"{self.name}: link", bad="result_gone"):
            is_home = transfer.may_keep(self._home, httpx.URL(link.url))
        needs_key = self.capabilities.download_needs_key and is_home
        return await transfer.download(
            self._client(is_fresh=False),
            link.url,
            path,
            headers={**self.api.headers, **self._secret(account)} if needs_key else {},
            etag=etag,
            expected_size=link.size,
            connect_timeout_s=self._connect_s,
            read_timeout_s=self._download_s,
            clock=self._clock,
        )

    async def cancel(
        self, handle: Mapping[str, Any], *, account: AccountKey
    ) -> Literal["cancelled", "requested", "too_late", "unsupported"]:
        api = self.api
        if not api.cancel:
            return "unsupported"
        if api.cancel.startswith("DELETE"):  # which may delete a result that is paid for
            state = (await self.poll(handle, account=account)).state
            if state not in ("queued", "throttled", "running"):
                return "too_late"
        also = (*range(200, 300), *_TOO_LATE, 405, 501)
        status = (await self._call(api.cancel, handle, account, also=also)).status
        if status >= 300:
            return "too_late" if status in _TOO_LATE else "unsupported"
        return "cancelled" if api.is_cancel_final else "requested"

    async def find(
        self, request: Mapping[str, Any], *, key: str, since_ms: int, account: AccountKey
    ) -> list[Match]:
        """See the contract. What is not in the list was not made: the list is read to its end.

        Raises ProviderError `unknown` where that cannot be said: no list, a list without end,
        or a render of that time that does not tell what it was asked for.
        """
        listing, values = self.api.listing, _values(request, account, key)
        kept = self._kept(values)
        if self.capabilities.idempotency == "client_id":
            handle = {**kept, "id": key}
            state = (await self.poll(handle, account=account)).state
            return [] if state == "not_found" else [Match(handle, since_ms, is_certain=True)]
        if listing is None:
            raise ProviderError(f"{self.name} has no list to find a render in")
        since_ms -= 1000  # many write down the second a render was made in, cut off
        matches: dict[Any, Match] = {}
        is_unclear = False
        for item in await self._listed(listing, values, account, since_ms):
            made_ms = item.moment_ms(listing.created)
            if listing.tag:
                is_ours: bool | None = item.first(listing.tag) == key
            elif made_ms is not None and made_ms < since_ms:
                is_ours = False
            else:
                is_ours = echoes(item, listing.echo, values)
            is_unclear = is_unclear or is_ours is None
            if is_ours:
                handle = {**kept, "id": item.first(listing.id)}
                made_ms = since_ms if made_ms is None else made_ms
                matches[handle["id"]] = Match(handle, made_ms, is_certain=bool(listing.tag))
        if is_unclear and not matches:
            raise ProviderError(
                f"{self.name} lists a render of that time without what it was asked for, so"
                " nobody can say whether it is this one"
            )
        return list(matches.values())

    async def _listed(
        self, listing: HttpList, values: Mapping[str, Any], account: AccountKey, since_ms: int
    ) -> list[Reply]:
        """All items back to `since_ms`, page by page; an error if the end was not reached."""
        found: dict[Any, Reply] = {}
        where: dict[str, Any] = {"offset": 0, "page": 1}
        paging = {"offset", "page", "cursor"} & set(names_in(listing.path))
        for page in range(2, PAGES_MAX + 2):
            reply = await self._call(listing.path, {**values, **where}, account)
            docs = next(iter(pick(reply.doc, listing.items)), None)
            if not isinstance(docs, list):
                raise self._error(reply, account, f"{listing.path} (no list at {listing.items!r})")
            items = [Reply(reply.status, {}, doc) for doc in docs]
            ids = [item.first(listing.id) for item in items]
            if not all(isinstance(one, str | int) for one in ids):
                raise self._error(reply, account, f"{listing.path} (an item lacks {listing.id!r})")
            count = len(found)
            found.update(zip(ids, items, strict=True))
            times = [item.moment_ms(listing.created) for item in items]
            is_past = listing.is_newest_first and all(t is not None and t < since_ms for t in times)
            cursor = reply.first(listing.cursor)
            if not docs or is_past or not paging or ("cursor" in paging and not cursor):
                return list(found.values())
            if len(found) == count:  # the paging is not obeyed: what else there is, nobody sees
                break
            where = {"offset": where["offset"] + len(docs), "page": page, "cursor": cursor}
        raise ProviderError(f"{self.name}: the list of renders does not come to an end")

    # -------------------------------------------------------------- requests

    async def _call(
        self,
        line: str,
        values: Mapping[str, Any],
        account: AccountKey,
        *,
        content: bytes | None = None,
        sink: Callable[[str], Path] | None = None,
        also: Container[int] = (),
    ) -> Reply:
        """One request, sent once, and its JSON. Raises ProviderError unless 2xx or in `also`."""
        import httpx

        api = self.api
        method, _, path = line.partition(" ")
        headers = {**api.headers, **self._secret(account)}
        if content is not None:
            headers["Content-Type"] = "application/json"
            name, _, value = api.idempotency.partition(":")
            if name:
                headers[name] = value.strip().replace(
                    "{idempotency_key}", values["idempotency_key"]
                )
        url = self._url(path, values)
        total_s = self._poll_s if content is None else self._submit_s
        try:
            async with (
                asyncio.timeout(total_s) as limit,
                transfer.opened(
                    self._client(is_fresh=method != "GET"),
                    method,
                    url,
                    secret=headers,
                    plain={"Accept": "application/json"},
                    timeouts=httpx.Timeout(total_s, connect=self._connect_s, pool=None),
                    content=content,
                ) as response,
            ):
                reply = await self._read(response, limit, line, sink)
        except TimeoutError as error:
            raise ProviderError(f"{self.name}: {line} took over {total_s:g} s") from error
        is_ok = 200 <= reply.status < 300 and (reply.doc is not ABSENT or reply.file is not None)
        if api.ok_codes and reply.file is None:
            is_ok = is_ok and reply.words(api.error_code) in map(str, api.ok_codes)
        if is_ok or reply.status in also:
            return reply
        raise self._error(reply, account, line)

    async def _read(
        self,
        response: httpx.Response,
        limit: asyncio.Timeout,
        line: str,
        sink: Callable[[str], Path] | None,
    ) -> Reply:
        status, headers = response.status_code, dict(response.headers)
        media = headers.get("content-type", "").partition(";")[0].strip().lower()
        if sink and status == 200 and re.match(r"(image|video|audio)/|application/octet-", media):
            limit.reschedule(None)
            kind = "" if media.startswith("application") else f".{media.partition('/')[2]}"
            path = sink(self.api.suffix or kind)
            await transfer.save(response, path)
            return Reply(status, headers, ABSENT, file=path)
        body = bytearray()
        try:
            with transfer.network(f"{self.name}: {line}"):
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > REPLY_MAX:
                        raise ProviderError(f"{self.name}: {line} gave over {REPLY_MAX} bytes")
        except ProviderError:
            if status < 400:  # a refusal stands, even if its text broke off
                raise
        try:
            doc = json.loads(bytes(body))
        except (ValueError, RecursionError):
            doc = ABSENT
        is_page = "html" in media or not transfer.may_keep(self._home, response.url)
        text = secrets.redact(body.decode("utf-8", "replace"))[:2000]
        return Reply(status, headers, doc, text, is_page=is_page)

    def _client(self, *, is_fresh: bool) -> httpx.AsyncClient:
        """The client of this loop. Its transport never tries again: retries=0 is its default.

        It keeps no cookies: they would carry one account's session into another's requests.
        """
        import http.cookiejar

        import httpx

        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # connections cannot outlive their loop
            self._loop, self._clients = loop, {}
        if is_fresh not in self._clients:
            policy = http.cookiejar.DefaultCookiePolicy(allowed_domains=[])
            self._clients[is_fresh] = httpx.AsyncClient(
                verify=self._tls,
                cookies=http.cookiejar.CookieJar(policy),
                limits=httpx.Limits(max_keepalive_connections=0 if is_fresh else 20),
                headers={"User-Agent": "vqkit"},
            )
        return self._clients[is_fresh]

    def _url(self, path: str, values: Mapping[str, Any]) -> str:
        try:
            return self.api.base_url.rstrip("/") + fill_path(path, values)
        except KeyError as error:
            text = f"{self.name}: {path} needs {error.args[0]!r}, which is not given"
            raise ProviderError(text, "invalid", is_billed=False) from error

    def _secret(self, account: AccountKey) -> dict[str, str]:
        name, _, value = self.api.auth.partition(":")
        if not name:
            return {}
        value = value.strip().replace("{key}", account.key or "")
        if account.key and value.isascii() and value.isprintable():
            return {name: value}
        wrong = "has no key" if not account.key else "has a key with a line break or odd letter"
        text = f"account {account.name!r} {wrong}; {self.name} was not asked"
        raise ProviderError(text, "auth", is_billed=False)

    def _kept(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What polling needs of the request. Raises, before anything is sent, where it lacks."""
        api = self.api
        lines = [api.poll, api.result, api.cancel, api.outputs if api.outputs[:1] == "/" else ""]
        names = set(names_in(lines)) - {"id"}
        if missing := sorted(name for name in names if values.get(name) in (None, "")):
            text = f"{self.name} needs {', '.join(missing)} in the request"
            raise ProviderError(text, "invalid", is_billed=False)
        return {name: values[name] for name in sorted(names)}

    def _body(self, request: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        api = self.api
        body: dict[str, Any] = fill(api.body, values)
        if api.extra_in is None:
            return body
        place = body
        for name in filter(None, api.extra_in.split(".")):
            place = place.setdefault(name, {})
        used = set(names_in([api.poll, api.result, api.cancel])) - {"id"}
        used.update(names_in([api.body, api.submit]))
        for name, value in request.items():
            if name not in used and place.setdefault(name, value) != value:
                text = f"{self.name} sets {name!r} itself, to {place[name]!r}, not {value!r}"
                raise ProviderError(text[:300], "invalid", is_billed=False)
        return body

    # -------------------------------------------------------------- what replies mean

    def _declared_kind(self, status: int, code: str) -> ProviderErrorKind | None:
        for pattern, kind in self.api.kinds.items():
            if pattern == str(status) or (code and fnmatch.fnmatchcase(code, pattern)):
                return kind
        return None

    def _kind(self, status: int, code: str, message: str) -> ProviderErrorKind:
        """What an answer's status and words mean; status 0 is a render that failed."""
        if declared := self._declared_kind(status, code):
            return declared
        words = f"{code} {message}".casefold()
        if status == 429:
            return next((kind for kind, known in _WORDS_OF_429 if known.search(words)), "rate")
        if status in (0, 400, 403, 422) and _MODERATED.search(words):
            return "moderated"
        if status == 409 and self.capabilities.idempotency == "reject":
            return "key_reused"
        if status == 0:
            return "render_failed"
        rest: ProviderErrorKind = "invalid" if 400 <= status < 500 else "unknown"
        return next((kind for kind, known in _STATUSES if status in known), rest)

    def _error(self, reply: Reply, account: AccountKey, line: str) -> ProviderError:
        api = self.api
        code, message = reply.words(api.error_code), reply.words(api.error_message)
        kind = self._kind(reply.status, code, message)
        if reply.status == 404 and kind == "invalid" and line != api.submit:
            kind = "unknown"
        is_billed = self.capabilities.is_moderated_billed if kind == "moderated" else None
        text = message or code or ("a web page" if reply.is_page else reply.text)
        text = text or reply.headers.get("location", "")
        return ProviderError(
            f"{self.name}: {line} gave HTTP {reply.status}: {_clean(text, account)}",
            kind,
            retry_after_s=self._retry_after(reply),
            is_billed=False if kind in _NOT_BILLED else is_billed,
            status=reply.status,
            code=_clean(code, account),
        )

    def _failure(self, replies: Sequence[Reply], account: AccountKey) -> ProviderError:
        """Why a render failed: what the replies say, else that it ended without a result."""
        code = next((c for r in replies if (c := r.words(self.api.error_code))), "")
        text = next((m for r in replies if (m := r.words(self.api.error_message))), "")
        words = _clean(text or code or "it ended without a result", account)
        kind = self._kind(0, code, text)
        return ProviderError(f"{self.name}: {words}", kind, code=_clean(code, account))

    def _is_billed(self, said: State, error: ProviderError | None, cost: int | None) -> bool | None:
        if cost is not None:
            return cost > 0
        if error is not None and error.kind == "moderated":
            return self.capabilities.is_moderated_billed
        if said == "succeeded":
            return None if error is not None else True
        if said in ("failed", "cancelled"):
            return {"submit": True, "success": False}.get(self.capabilities.billed_on)
        return None

    def _retry_after(self, reply: Reply) -> float | None:
        is_limit, now_ms = reply.status in (429, 503), self._clock.now_ms()
        told = transfer.retry_after_s(reply.headers, now_ms=now_ms, is_limit=is_limit)
        for path in filter(None, (self.api.retry_after, _WAIT_MS, _WAIT_S)):
            if told is None:
                value, is_ms = reply.first(path), path.lower().endswith("ms")
                told = transfer.wait_s(value, now_s=now_ms / 1000, is_ms=is_ms)
        if told is None and is_limit and (found := _WAIT.search(reply.text)):
            told = float(found[1]) * _UNITS_S.get(found[2].lower(), 1.0)
        return told

    def _poll_after(self, reply: Reply) -> float | None:
        path, now_s = self.api.poll_after, self._clock.now_ms() / 1000
        return transfer.wait_s(reply.first(path), now_s=now_s, is_ms=path.endswith("ms"))

    def _cost(self, reply: Reply) -> int | None:
        unit = _UNIT_MICROUSD.get(self.api.cost_unit, self.api.credit_microusd)
        text = str(reply.first(self.api.cost)).strip().lstrip("$").replace(",", "")
        with contextlib.suppress(ArithmeticError):  # no number, NaN, beyond measure
            amount = (Decimal(text) * unit).quantize(Decimal(1), ROUND_HALF_UP)
            return int(amount) if amount >= 0 else None
        return None

    def _links(self, reply: Reply, handle: Mapping[str, Any]) -> tuple[Link, ...]:
        outputs = self.api.outputs
        found = [self._url(outputs, handle)] if outputs[:1] == "/" else pick(reply.doc, outputs)
        flat = [one for many in found for one in (many if isinstance(many, list) else [many])]
        flat = [one.get("url") if isinstance(one, Mapping) else one for one in flat]
        here = f"{self.api.base_url.rstrip('/')}/"
        urls = [urljoin(here, one) for one in flat if isinstance(one, str) and one.strip()]
        return tuple(Link(url, self.api.suffix or _suffix(url)) for url in dict.fromkeys(urls))


@functools.cache
def _tls() -> ssl.SSLContext:
    import httpx

    return httpx.create_ssl_context()


def _values(request: Mapping[str, Any], account: AccountKey, key: str) -> Mapping[str, Any]:
    model = {} if account.model is None else {"model": account.model}
    return {**model, **request, "idempotency_key": key}


def _clean(text: str, account: AccountKey) -> str:
    text = secrets.redact(text)
    return " ".join((text.replace(account.key, "[key]") if account.key else text).split())[:300]


def _suffix(url: str) -> str:
    suffix = PurePosixPath(urlsplit(url).path).suffix
    return suffix if re.fullmatch(r"\.[A-Za-z0-9]{1,5}", suffix) else ""
