"""A download that is whole or an error; and GETs that keep a key at home.

What stays in the file after an error is a true beginning of the result. The error's facts
`etag` and `size` say under which tag it may be gone on from; None: only from the start.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..clock import Clock, SystemClock
from .contract import Fetched, ProviderError, ProviderErrorKind

if TYPE_CHECKING:
    import httpx

__all__ = ["download", "may_keep", "network", "opened", "retry_after_s", "save", "shown", "wait_s"]

T = TypeVar("T")

REDIRECTS_MAX = 5
BLOCK = 1 << 20
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_LIMITS = (429, 503)


async def download(
    client: httpx.AsyncClient,
    url: str,
    path: Path,
    *,
    headers: Mapping[str, str] | None = None,
    etag: str | None = None,
    expected_size: int | None = None,
    connect_timeout_s: float = 10.0,
    read_timeout_s: float = 60.0,
    clock: Clock | None = None,
) -> Fetched:
    """Fetches `url` into `path`, whole and synced; the caller renames it.

    `headers` (the key, say) go to the URL's own origin only. What is in `path` already is
    gone on from if `etag` is strong and the server still serves it, else overwritten.
    `read_timeout_s` is the longest silence, not the whole time. Raises ProviderError:
    `result_gone` where the link is dead or leads to a web page, `not_sent` without a
    connection, `rate`, else `unknown` (try again); OSError is this machine's disk.
    """
    import httpx

    timeouts = httpx.Timeout(read_timeout_s, connect=connect_timeout_s, pool=None)
    secret = headers or {}
    # One byte less than there is: asking beyond the end of a whole file would be an error.
    start = max(0, await off_loop(_size, path) - 1)
    if not _is_strong(etag) or (expected_size is not None and start >= expected_size):
        start = 0
    while True:
        asked = {"Accept-Encoding": "identity"}
        if start:
            asked |= {"Range": f"bytes={start}-", "If-Range": etag or ""}
        async with opened(
            client, "GET", url, secret=secret, plain=asked, timeouts=timeouts, bad="result_gone"
        ) as response:
            total = _total(response, start) if start and response.status_code == 206 else None
            if start and response.status_code in (206, 416):
                is_same = response.headers.get("etag") == etag and not _coding(response)
                if total is None or not is_same or (expected_size or total) != total:
                    start = 0
                    continue
            else:
                _refuse(response, clock or SystemClock())
                start = 0
            size = await save(response, path, at=start, expected_size=total or expected_size)
            return Fetched(size, _tag(response))


def _refuse(response: httpx.Response, clock: Clock) -> None:
    status, what = response.status_code, shown(response.url)
    media = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if status == 200 and media not in ("text/html", "application/xhtml+xml"):
        return
    kind: ProviderErrorKind = "result_gone"
    if status == 429:
        kind = "rate"
    elif status >= 500 or status in (408, 425) or 200 < status < 300:
        kind = "unknown"
    found = "a web page, not a file" if status == 200 else f"HTTP {status}"
    after_s = retry_after_s(response.headers, now_ms=clock.now_ms(), is_limit=status in _LIMITS)
    raise ProviderError(f"{what} gave {found}", kind, retry_after_s=after_s, status=status)


async def save(
    response: httpx.Response, path: Path, *, at: int = 0, expected_size: int | None = None
) -> int:
    """Writes a body to `path` from byte `at` on, decoded and synced; gives the file's size.

    Raises ProviderError `unknown` for a body that ends early, is too long, or is empty.
    """
    what, coding, size, received = shown(response.url), _coding(response), at, 0
    tag, buffer = _tag(response), bytearray()

    def wrong(found: str) -> ProviderError:
        return ProviderError(f"{what} gave {found}", "unknown", etag=tag, size=size)

    if coding not in ("", "gzip", "x-gzip"):
        raise wrong(f"an encoding that was not asked for, {coding}")
    inflater = _Inflater() if coding else None
    await off_loop(_cut, path, at)
    try:
        async with aclosing(_chunks(response, what)) as chunks:
            async for chunk in chunks:
                received += len(chunk)
                for piece in inflater.feed(chunk) if inflater else (chunk,):
                    buffer += piece
                    if len(buffer) >= BLOCK:
                        size += await off_loop(_put, path, size, bytes(buffer))
                        buffer.clear()
                    if expected_size is not None and size + len(buffer) > expected_size:
                        buffer.clear()
                        size = await off_loop(_cut, path, 0)
                        raise wrong(f"more than the {expected_size} bytes expected")
    except ProviderError as error:
        error.facts.update(etag=tag, size=size + len(buffer))
        raise
    except zlib.error as error:
        raise wrong(f"broken gzip ({error})") from error
    finally:  # also of a body that broke off: the next try goes on from there
        if buffer:
            size += await off_loop(_put, path, size, bytes(buffer))
    length = response.headers.get("content-length")  # of the body as it travels, encoded
    if length is not None and int(length) != received:
        raise wrong(f"{received} of {length} bytes")
    if inflater is not None and not inflater.is_whole:
        raise wrong("a gzip body that ends early")
    if expected_size is not None and size != expected_size:
        raise wrong(f"{size} of {expected_size} bytes")
    if not size and expected_size is None:
        raise wrong("an empty file")
    await off_loop(_sync, path)
    return size


class _Inflater:
    """Gzip to bytes in pieces of bounded size, and whether the end was reached."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(31)

    @property
    def is_whole(self) -> bool:
        return self._stream.eof

    def feed(self, data: bytes) -> Iterator[bytes]:
        piece = b""
        while data or len(piece) == BLOCK:
            if self._stream.eof:  # a body may be several gzip members in a row
                if not data:
                    return
                self._stream = zlib.decompressobj(31)
            piece = self._stream.decompress(data, BLOCK)
            data = self._stream.unconsumed_tail or self._stream.unused_data
            yield piece


# ------------------------------------------------------------------ requests


@asynccontextmanager
async def opened(
    client: httpx.AsyncClient,
    method: str,
    url: str,
    *,
    secret: Mapping[str, str],
    plain: Mapping[str, str],
    timeouts: httpx.Timeout,
    content: bytes | None = None,
    bad: ProviderErrorKind = "invalid",
) -> AsyncIterator[httpx.Response]:
    """The answer, its body unread; a GET's redirects are followed, nothing else's.

    `secret` goes to the URL's own origin and, once a redirect has led elsewhere, nowhere.
    `bad` is the kind of error an impossible URL makes.
    """
    import httpx

    with network(method, bad=bad):
        target = httpx.URL(url)
    is_home = True
    for _ in range(REDIRECTS_MAX + 1):
        what = f"{method} {shown(target)}"
        with network(what, bad=bad):
            headers = {**plain, **(secret if is_home else {})}
            request = client.build_request(
                method, target, headers=headers, content=content, timeout=timeouts
            )
            response = await client.send(request, stream=True, follow_redirects=False, auth=None)
        try:
            location = response.headers.get("location")
            if method != "GET" or response.status_code not in _REDIRECTS or not location:
                yield response
                return
        finally:
            await response.aclose()
        with network(what, bad=bad):
            onward = target.join(location)
        is_home = is_home and may_keep(target, onward)
        target = onward
    raise ProviderError(f"{what}: more than {REDIRECTS_MAX} redirects", bad)


def may_keep(home: httpx.URL, other: httpx.URL) -> bool:
    """True if a key for `home` may go to `other`: the same origin, or its https twin."""

    def place(url: httpx.URL) -> tuple[str, str, int | None]:
        return url.scheme, url.host, url.port or {"http": 80, "https": 443}.get(url.scheme)

    (scheme, host, port), there = place(home), place(other)
    is_twin = (scheme, port) == ("http", 80) and there == ("https", host, 443)
    return is_twin or there == (scheme, host, port)


@contextmanager
def network(what: str, *, bad: ProviderErrorKind = "invalid") -> Iterator[None]:
    """Turns what httpx raises into ProviderError: `not_sent` only where no byte can have left."""
    import httpx

    try:
        yield
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError):
        # Their texts repeat headers and URLs, so there may be a key in them.
        raise ProviderError(f"{what}: the URL or a header cannot be sent", bad) from None
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError) as error:
        raise ProviderError(f"{what}: no connection ({_name(error)})", "not_sent") from error
    except (httpx.HTTPError, OSError) as error:  # OSError: TLS that fails while reading
        raise ProviderError(f"{what}: broken off ({_name(error)})", "unknown") from error


def shown(url: httpx.URL) -> str:
    """A URL for messages: without its query, where signatures stand, and without user names."""
    return f"{url.scheme}://{url.netloc.decode('ascii', 'replace')}{url.path}"


def retry_after_s(headers: Mapping[str, str], *, now_ms: int, is_limit: bool) -> float | None:
    """How long the headers ask to wait, uncapped; None where they do not say.

    `is_limit`: the answer is a refusal, so the reset time that every answer carries counts.
    Dates are read against the server's own clock where it tells its time.
    """
    now_s = now_ms / 1000
    with suppress(TypeError, ValueError):
        now_s = parsedate_to_datetime(headers["date"]).timestamp() if "date" in headers else now_s
    names = ["retry-after-ms", "retry-after"]
    if is_limit:
        names += ["x-ratelimit-reset", "ratelimit-reset", "x-ratelimit-reset-requests"]
    found = (wait_s(headers.get(name), now_s=now_s, is_ms=name.endswith("ms")) for name in names)
    return next((seconds for seconds in found if seconds is not None), None)


def wait_s(value: Any, *, now_s: float, is_ms: bool = False) -> float | None:
    """Seconds from now: of a number, ``"1m30s"``, a Unix time, an HTTP or ISO date; else None."""
    if value is None or isinstance(value, bool):
        return None
    text = str(value).strip()
    with suppress(ValueError):
        number = float(text)
        if not math.isfinite(number):
            return None
        if number > 1e11:
            return max(0.0, number / 1000 - now_s)
        return max(0.0, number - now_s if number > 1e9 else number / (1000 if is_ms else 1))
    parts = re.fullmatch(
        r"(?:([\d.]+)h)?(?:([\d.]+)m(?!s))?(?:([\d.]+)s)?(?:([\d.]+)ms)?", text.replace(" ", "")
    )
    with suppress(ValueError):
        if text and parts:
            scaled = zip(parts.groups("0"), (3600, 60, 1, 0.001), strict=True)
            return sum(float(n) * unit for n, unit in scaled)
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        with suppress(TypeError, ValueError, OverflowError):
            when = read(text)
            when = when.replace(tzinfo=UTC) if when.tzinfo is None else when
            return max(0.0, when.timestamp() - now_s)
    return None


# ------------------------------------------------------------------ small parts


async def _chunks(response: httpx.Response, what: str) -> AsyncGenerator[bytes, None]:
    with network(f"GET {what}"):
        async for chunk in response.aiter_raw():
            yield chunk


def _name(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _coding(response: httpx.Response) -> str:
    coding = str(response.headers.get("content-encoding", "")).strip().lower()
    return "" if coding == "identity" else coding


def _is_strong(etag: str | None) -> bool:
    return etag is not None and etag.startswith('"') and etag.endswith('"') and len(etag) > 2


def _tag(response: httpx.Response) -> str | None:
    # The tag of a gzipped body names the gzip, not the bytes in the file.
    etag = response.headers.get("etag")
    return etag if _is_strong(etag) and not _coding(response) else None


def _total(response: httpx.Response, start: int) -> int | None:
    """The whole file's size, if the part is all of it from `start` on."""
    text = response.headers.get("content-range", "")
    found = re.fullmatch(r"bytes\s+(\d+)-(\d+)/(\d+)", text.strip())
    first, last, total = map(int, found.groups()) if found else (-1, -1, -1)
    return total if first == start and last + 1 == total else None


async def off_loop(function: Callable[..., T], *args: Any) -> T:
    """Runs a short blocking call on a thread; leaves, even when cancelled, once it is over."""
    call = asyncio.ensure_future(asyncio.to_thread(function, *args))
    cancelled: asyncio.CancelledError | None = None
    while not call.done():
        try:
            await asyncio.wait((call,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        call.exception()
        raise cancelled
    return call.result()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _cut(path: Path, size: int) -> int:
    with path.open("ab") as file:
        return file.truncate(size)


def _put(path: Path, at: int, block: bytes) -> int:
    with path.open("r+b") as file:
        file.seek(at)
        return file.write(block)


def _sync(path: Path) -> None:
    with path.open("r+b") as file:
        os.fsync(file.fileno())
