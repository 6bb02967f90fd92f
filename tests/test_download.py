"""Downloads over real sockets: whole or an error, resumed where that is safe, keys kept at home."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vqkit.providers import download as module
from vqkit.providers.contract import ProviderError
from vqkit.providers.download import download, retry_after_s, wait_s

# ------------------------------------------------------------------ a server that says anything


@dataclass(frozen=True)
class Asked:
    """A request as it arrived; header names in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Reply:
    """What goes out. `cut`: so many bytes of it, then the connection is closed."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_chunked: bool = False
    has_length: bool = True
    cut: int | None = None  # of the body
    hangs: bool = False

    def wire(self) -> bytes:
        headers, body = dict(self.headers), self.body
        if self.is_chunked:
            headers["Transfer-Encoding"] = "chunked"
        elif self.has_length:
            headers.setdefault("Content-Length", str(len(body)))
        else:
            headers["Connection"] = "close"
        body = body[: self.cut]
        if self.is_chunked:
            parts = [body[i : i + 1000] for i in range(0, len(body), 1000)]
            ends = b"" if self.cut is not None else b"0\r\n\r\n"
            body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + ends
        lines = [f"HTTP/1.1 {self.status} Said", *(f"{k}: {v}" for k, v in headers.items())]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def says(status: int = 200, _doc: Any = None, /, **headers: str) -> Reply:
    """A JSON reply; underscores in header names become dashes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    body = b"" if _doc is None else json.dumps(_doc).encode()
    return Reply(status, {"Content-Type": "application/json"} | named, body)


DROP = "drop"
Answer = Callable[[Asked], Reply | str]


class Server:
    """`answer(asked)` decides; `asked` holds all that ever arrived, answered or not."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[Asked] = []
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode("latin-1"):
                first, *lines = head.strip().split("\r\n")
                headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                method, target, _ = first.split(" ")
                self.asked.append(Asked(method, target, headers, body))
                reply = self.answer(self.asked[-1])
                if isinstance(reply, str):
                    break
                writer.write(reply.wire())
                await writer.drain()
                if reply.hangs:
                    await reader.read()
                if reply.cut is not None or not reply.has_length:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def end(self) -> None:
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[Server]:
    server = Server(answer)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        await server.end()
        # Not wait_closed(): from 3.12 on it waits for clients that keep their connections.
        await asyncio.sleep(0)


# ------------------------------------------------------------------ what is downloaded

CLIP = bytes((i * 7919 + i // 251) % 256 for i in range(40_000))
TAG = '"one"'


def file_server(body: bytes = CLIP, etag: str | None = TAG, **how: Any) -> Answer:
    """Serves `body` with Range and If-Range, as S3 and nginx do."""

    def answer(asked: Asked) -> Reply:
        headers = {"Content-Type": "video/mp4"} | ({"ETag": etag} if etag else {})
        wanted = re.fullmatch(r"bytes=(\d+)-", asked.headers.get("range", ""))
        if wanted and asked.headers.get("if-range") in (None, etag):
            start = int(wanted[1])
            if start >= len(body):
                return Reply(416, {"Content-Range": f"bytes */{len(body)}"})
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
            return Reply(206, headers, body[start:])
        return Reply(200, headers, body, **how)

    return answer


TLS = httpx.create_ssl_context()  # slow to make


async def get(url: str, path: Path, **args: Any) -> Any:
    async with httpx.AsyncClient(verify=TLS) as client:
        return await download(client, url, path, **args)


async def written(path: Path, body: bytes) -> None:
    await asyncio.to_thread(path.write_bytes, body)


async def read(path: Path) -> bytes:
    return await asyncio.to_thread(path.read_bytes)


async def refusal(url: str, path: Path, **args: Any) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await get(url, path, **args)
    return caught.value


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "clip.mp4.part"


# ------------------------------------------------------------------ whole


@pytest.mark.parametrize("how", [{}, {"is_chunked": True}, {"has_length": False}])
async def test_a_body_arrives_whole_however_its_end_is_told(part, how):
    async with serving(file_server(**how)) as server:
        fetched = await get(f"{server.url}/clip.mp4", part)
    assert (fetched.size, fetched.etag) == (len(CLIP), TAG)
    assert await read(part) == CLIP


async def test_a_body_larger_than_memory_blocks_is_written_block_by_block(part, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 1000)
    blocks: list[int] = []

    def noted(path: Path, at: int, block: bytes) -> int:
        blocks.append(len(block))
        return put(path, at, block)

    put = module._put
    monkeypatch.setattr(module, "_put", noted)
    async with serving(lambda asked: Reply(200, {"Content-Encoding": "gzip"}, GZIPPED)) as server:
        await get(f"{server.url}/", part)
    assert await read(part) == CLIP
    assert max(blocks) < 2000 < len(blocks) * 1000


async def test_the_file_is_synced(part, monkeypatch):
    synced: list[int] = []
    sync = module.os.fsync
    monkeypatch.setattr(module.os, "fsync", lambda fd: (synced.append(fd), sync(fd)))
    async with serving(file_server()) as server:
        await get(server.url, part)
    assert len(synced) == 1


GZIPPED = gzip.compress(CLIP[:20_000]) + gzip.compress(CLIP[20_000:])


@pytest.mark.parametrize("how", [{}, {"is_chunked": True}, {"has_length": False}])
async def test_gzip_is_taken_off_and_its_length_is_that_of_the_gzip(part, how):
    reply = Reply(200, {"Content-Encoding": "gzip", "ETag": TAG}, GZIPPED, **how)
    async with serving(lambda asked: reply) as server:
        fetched = await get(server.url, part, expected_size=len(CLIP))
    assert await read(part) == CLIP
    assert fetched.etag is None  # it names the gzip, and the file is none


async def test_gzip_without_a_length_that_ends_early_is_an_error(part):
    reply = Reply(200, {"Content-Encoding": "gzip"}, GZIPPED[:-900], has_length=False)
    async with serving(lambda asked: reply) as server:
        error = await refusal(server.url, part)
    assert error.kind == "unknown"
    assert "ends early" in str(error)
    assert CLIP.startswith(await read(part))


async def test_broken_gzip_and_unknown_encodings_are_errors(part):
    for coding, body in (("gzip", b"no gzip at all"), ("br", CLIP)):
        reply = Reply(200, {"Content-Encoding": coding}, body)
        async with serving(lambda asked, reply=reply: reply) as server:
            assert (await refusal(server.url, part)).kind == "unknown"


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=5000), st.integers(1, 700), st.integers(1, 3))
def test_an_inflater_gives_what_was_compressed_in_bounded_pieces(data, step, members):
    sent = gzip.compress(data) * members
    inflater, pieces = module._Inflater(), []
    for i in range(0, len(sent), step):
        pieces += inflater.feed(sent[i : i + step])
    assert b"".join(pieces) == data * members
    assert inflater.is_whole


def test_a_gzip_bomb_comes_out_in_pieces():
    bomb = zlib.compress(bytes(30 << 20), 9, wbits=31)
    inflater = module._Inflater()
    assert max(map(len, inflater.feed(bomb))) <= module.BLOCK
    assert inflater.is_whole


# ------------------------------------------------------------------ early ends and lies


@pytest.mark.parametrize("how", [{}, {"is_chunked": True}])
async def test_truncated_at_every_kth_byte_it_resumes_and_ends_equal(part, how):
    serve, cuts = file_server(), iter([])

    def answer(asked: Asked) -> Reply:
        reply = serve(asked)
        cut = next(cuts, None)
        return Reply(reply.status, reply.headers, reply.body, cut=cut, **how)

    async with serving(answer) as server:
        for k in (0, 1, 2, *range(997, len(CLIP), 4999), len(CLIP) - 1):
            await asyncio.to_thread(part.unlink, missing_ok=True)
            cuts = iter([k, min(1500, len(CLIP) - k)])
            first = await refusal(server.url, part)
            assert (first.kind, first.etag, first.size) == ("unknown", TAG, k)
            assert await read(part) == CLIP[:k]
            second = await refusal(server.url, part, etag=first.etag)
            before = len(server.asked)
            fetched = await get(server.url, part, etag=second.etag)
            assert fetched.size == len(CLIP)
            assert await read(part) == CLIP
            assert server.asked[before].headers["range"] == f"bytes={second.size - 1}-"
            assert len(server.asked) == before + 1


async def test_a_part_that_is_whole_already_costs_one_byte(part):
    await written(part, CLIP)
    async with serving(file_server()) as server:
        assert (await get(server.url, part, etag=TAG)).size == len(CLIP)
        assert [asked.headers["range"] for asked in server.asked] == [f"bytes={len(CLIP) - 1}-"]
    assert await read(part) == CLIP


async def test_without_the_same_strong_etag_it_starts_over(part):
    async with serving(file_server()) as server:
        for etag in (None, 'W/"one"', '"other"', '""'):
            await written(part, b"x" * 1000)
            fetched = await get(server.url, part, etag=etag)
            assert ("range" in server.asked[-1].headers) == (etag == '"other"')
            assert (fetched.size, fetched.etag) == (len(CLIP), TAG)
            assert await read(part) == CLIP


WRONG = (
    {"ETag": '"two"'},
    {"ETag": 'W/"one"'},
    {"Content-Range": "bytes 0-39999/40000"},
    {"Content-Range": "bytes 999-39998/40000"},
    {"Content-Range": "bytes 999-39999/*"},
    {"Content-Range": ""},
    {"Content-Encoding": "gzip"},
)


async def test_a_206_that_is_not_the_rest_of_this_file_starts_over(part):
    def answer(asked: Asked) -> Reply:
        if "range" not in asked.headers:
            return file_server()(asked)
        right = {"ETag": TAG, "Content-Range": "bytes 999-39999/40000"}
        return Reply(206, right | wrong, CLIP[999:])

    async with serving(answer) as server:
        for count, wrong in enumerate(WRONG, 1):
            await written(part, b"x" * 1000)
            assert (await get(server.url, part, etag=TAG)).size == len(CLIP)
            assert len(server.asked) == 2 * count
            assert await read(part) == CLIP, wrong


async def test_a_range_that_is_ignored_starts_over_in_the_same_request(part):
    await written(part, b"x" * 1000)
    reply = Reply(200, {"ETag": TAG}, CLIP)
    async with serving(lambda asked: reply) as server:
        await get(server.url, part, etag=TAG)
        assert len(server.asked) == 1
    assert await read(part) == CLIP


async def test_a_206_nobody_asked_for_is_an_error(part):
    reply = Reply(206, {"Content-Range": "bytes 0-39999/40000"}, CLIP)
    async with serving(lambda asked: reply) as server:
        assert (await refusal(server.url, part)).kind == "unknown"


async def test_a_part_longer_than_the_file_starts_over(part):
    await written(part, CLIP + b"more")
    async with serving(file_server()) as server:
        await get(server.url, part, etag=TAG)
        await written(part, CLIP + b"more")
        await get(server.url, part, etag=TAG, expected_size=len(CLIP))
        assert "range" not in server.asked[-1].headers
    assert await read(part) == CLIP


async def test_a_content_length_that_promises_more_is_an_error(part):
    reply = Reply(200, {"Content-Length": "50000"}, CLIP, cut=len(CLIP))
    async with serving(lambda asked: reply) as server:
        assert (await refusal(server.url, part)).kind == "unknown"


async def test_a_size_other_than_expected_is_an_error_whoever_lies(part):
    short = Reply(200, {"Content-Length": "30000"}, CLIP)  # h11 reads no further
    for reply, expected in ((short, len(CLIP)), (Reply(200, {}, CLIP), 30_000)):
        async with serving(lambda asked, reply=reply: reply) as server:
            error = await refusal(server.url, part, expected_size=expected)
        assert error.kind == "unknown"
        assert str(expected) in str(error)


async def test_more_bytes_than_expected_do_not_fill_the_disk(part):
    async with serving(file_server(is_chunked=True)) as server:
        error = await refusal(server.url, part, expected_size=100)
    assert error.size == 0
    assert await read(part) == b""


async def test_an_empty_file_is_no_result(part):
    async with serving(file_server(b"")) as server:
        assert (await refusal(server.url, part)).kind == "unknown"


async def test_a_silent_server_is_given_up_on(part):
    reply = Reply(200, {"Content-Length": "40000"}, CLIP[:5000], hangs=True)
    async with serving(lambda asked: reply) as server:
        error = await refusal(server.url, part, read_timeout_s=0.05)
    assert error.kind == "unknown"
    assert await read(part) == CLIP[:5000]


async def test_what_had_arrived_before_a_cancel_is_kept(part, monkeypatch):
    begun = asyncio.Event()
    loop, put = asyncio.get_running_loop(), module._put

    def noted(path: Path, at: int, block: bytes) -> int:
        loop.call_soon_threadsafe(begun.set)
        return put(path, at, block)

    monkeypatch.setattr(module, "BLOCK", 1000)
    monkeypatch.setattr(module, "_put", noted)
    reply = Reply(200, {"Content-Length": "40000", "ETag": TAG}, CLIP[:5000], hangs=True)
    async with serving(lambda asked: reply) as server:
        task = asyncio.ensure_future(get(server.url, part))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    kept = await read(part)
    assert kept
    assert CLIP.startswith(kept)


async def test_a_full_disk_is_no_provider_error(part, monkeypatch):
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_put", full)
    async with serving(file_server()) as server:
        with pytest.raises(OSError, match="No space left"):
            await get(server.url, part)


# ------------------------------------------------------------------ dead links


async def test_a_link_that_has_expired_is_result_gone(part):
    async with serving(lambda asked: Reply(status, {}, b"<Error>Expired</Error>")) as server:
        for status in (400, 401, 403, 404, 410):
            error = await refusal(f"{server.url}/clip.mp4?signature=s3cret", part)
            assert (error.kind, error.status) == ("result_gone", status)
            assert "s3cret" not in str(error)


async def test_a_web_page_with_status_200_is_result_gone(part):
    media = ["text/html; charset=utf-8", "Application/XHTML+xml"]
    pages = [Reply(200, {"Content-Type": kind}, b"<html>Log in</html>") for kind in media]
    async with serving(lambda asked: pages.pop()) as server:
        while pages:
            assert (await refusal(server.url, part)).kind == "result_gone"
    assert not await asyncio.to_thread(part.exists)


async def test_an_expired_link_leaves_the_part_for_the_fresh_one(part):
    await written(part, CLIP[:1000])
    async with serving(lambda asked: Reply(403)) as server:
        assert (await refusal(server.url, part, etag=TAG)).kind == "result_gone"
    assert await read(part) == CLIP[:1000]


async def test_a_server_in_trouble_says_nothing_of_the_link(part):
    kinds = {500: "unknown", 503: "unknown", 429: "rate"}
    replies = [Reply(status, {"Retry-After": "120"}) for status in kinds]
    async with serving(lambda asked: replies.pop()) as server:
        while replies:
            error = await refusal(server.url, part)
            assert (error.kind, error.retry_after_s) == (kinds[error.status], 120)


async def test_no_connection_is_not_sent(part):
    async with serving(file_server()) as server:
        url = server.url
    assert (await refusal(url, part)).kind == "not_sent"


async def test_what_is_no_link_is_result_gone(part):
    for url in ("ftp://example.com/a", "file:///etc/passwd", "http://a:b/", "x"):
        assert (await refusal(url, part)).kind == "result_gone"


# ------------------------------------------------------------------ redirects and keys


KEY = {"Authorization": "Bearer k3y-of-mine", "X-Version": "7"}


async def test_a_redirect_to_another_host_carries_no_key(part):
    async with serving(file_server()) as cdn:

        def home(asked: Asked) -> Reply:
            if asked.target == "/start":
                return Reply(302, {"Location": "/on?x=1"})
            return Reply(307, {"Location": f"{cdn.url}/clip.mp4"})

        async with serving(home) as server:
            await get(f"{server.url}/start", part, headers=KEY)
            assert [a.headers["authorization"] for a in server.asked] == [KEY["Authorization"]] * 2
            assert server.asked[1].target == "/on?x=1"
    assert await read(part) == CLIP
    assert "k3y" not in str(cdn.asked[0].headers)
    assert "x-version" not in cdn.asked[0].headers


async def test_a_key_lost_on_the_way_is_not_given_again(part):
    async with serving(lambda asked: Reply(302, {"Location": f"{server.url}/back"})) as away:

        def home(asked: Asked) -> Reply:
            if asked.target == "/back":
                return file_server()(asked)
            return Reply(302, {"Location": away.url})

        async with serving(home) as server:
            await get(server.url, part, headers=KEY)
            assert "authorization" in server.asked[0].headers
            assert "authorization" not in server.asked[1].headers


async def test_a_resume_survives_a_redirect(part):
    await written(part, CLIP[:1000])
    async with serving(file_server()) as cdn:
        onward = Reply(302, {"Location": f"{cdn.url}/clip.mp4"})
        async with serving(lambda asked: onward) as server:
            await get(server.url, part, etag=TAG)
        assert cdn.asked[0].headers["range"] == "bytes=999-"
    assert await read(part) == CLIP


@pytest.mark.parametrize("location", ["/again", "gopher://x/", "//"])
async def test_a_redirect_to_nowhere_is_result_gone(part, location):
    async with serving(lambda asked: Reply(302, {"Location": location})) as server:
        assert (await refusal(server.url, part)).kind == "result_gone"
        assert len(server.asked) <= module.REDIRECTS_MAX + 1


@pytest.mark.parametrize(
    ("home", "other", "may"),
    [
        ("https://a.com/x", "https://a.com:443/y", True),
        ("http://a.com/x", "https://a.com/y", True),
        ("https://a.com/x", "http://a.com/y", False),
        ("https://a.com/x", "https://a.com:8443/y", False),
        ("https://a.com/x", "https://cdn.a.com/y", False),
        ("https://a.com/x", "https://a.com.evil.org/y", False),
        ("https://a.com/x", "https://a.com@evil.org/y", False),
        ("http://a.com:8080/x", "https://a.com/y", False),
    ],
)
def test_a_key_goes_to_its_own_origin_only(home, other, may):
    assert module.may_keep(httpx.URL(home), httpx.URL(other)) is may


# ------------------------------------------------------------------ how long to wait

NOW_S = 1_800_000_000.0  # Fri, 15 Jan 2027 08:00:00 GMT


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120),
        (0.5, 0.5),
        ("86400", 86400),
        ("1m30s", 90),
        ("2h", 7200),
        ("20ms", 0.02),
        ("30.5s", 30.5),
        ("Fri, 15 Jan 2027 08:02:00 GMT", 120),
        ("2027-01-15T08:02:00Z", 120),
        ("2027-01-15T08:02:00", 120),
        (1_800_000_060, 60),
        ("1800000060000", 60),
        ("Fri, 15 Jan 2027 07:00:00 GMT", 0),
        (-5, 0),
        ("nan", None),
        ("inf", None),
        ("soon", None),
        ("", None),
        (None, None),
        (True, None),
        ({"a": 1}, None),
    ],
)
def test_a_wait_in_all_its_spellings(value, seconds):
    found = wait_s(value, now_s=NOW_S)
    assert found == (None if seconds is None else pytest.approx(seconds))


@settings(deadline=None)
@given(st.one_of(st.text(), st.integers(), st.floats(), st.lists(st.integers())))
def test_a_wait_is_none_or_a_number_from_zero_up(value):
    found = wait_s(value, now_s=NOW_S)
    assert found is None or 0 <= found < float("inf")


def test_the_most_exact_header_wins_and_the_reset_counts_only_for_a_refusal():
    told = {"retry-after-ms": "1500", "retry-after": "2", "x-ratelimit-reset": "99"}
    now_ms = int(NOW_S * 1000)
    assert retry_after_s(told, now_ms=now_ms, is_limit=True) == 1.5
    reset = {"x-ratelimit-reset": "1800000099"}
    assert retry_after_s(reset, now_ms=now_ms, is_limit=True) == 99
    assert retry_after_s(reset, now_ms=now_ms, is_limit=False) is None


def test_a_date_is_read_against_the_servers_own_clock():
    told = {
        "retry-after": "Fri, 15 Jan 2027 08:02:00 GMT",
        "date": "Fri, 15 Jan 2027 08:01:50 GMT",
    }
    assert retry_after_s(told, now_ms=int(NOW_S * 1000) + 3_600_000, is_limit=False) == 10
