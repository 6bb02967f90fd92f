"""The declared REST provider over real sockets: three APIs by shape, and every rule once."""

from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_download import DROP, Answer, Asked, Reply, Server, file_server, says, serving

from vqkit.errors import UsageError
from vqkit.providers import http as module
from vqkit.providers import http_api
from vqkit.providers.contract import (
    AccountKey,
    Capabilities,
    Finished,
    Link,
    Match,
    ProviderError,
    Status,
    Submitted,
)
from vqkit.providers.http import HttpApi, HttpList, HttpProvider
from vqkit.providers.http_api import fill, pick

KEY = "sk-live-0123456789"
ACCOUNT = AccountKey("studio", KEY, "gen4")
NOW_MS = 1_800_000_000_000  # Fri, 15 Jan 2027 08:00:00 GMT


quickly = settings(deadline=None, max_examples=50)


class FixedClock:
    def now_ms(self) -> int:
        return NOW_MS

    async def wait(self, event: asyncio.Event, timeout_s: float | None) -> bool:
        raise AssertionError("a provider never waits")


def sink(suffix: str) -> Path:
    raise AssertionError("no file was expected")


@asynccontextmanager
async def provided(
    api: HttpApi, answer: Answer, **args: Any
) -> AsyncIterator[tuple[HttpProvider, Server]]:
    """A provider whose API is a server that says what `answer` does."""
    async with serving(answer) as server:
        here = replace(api, base_url=f"{server.url}/v1")
        async with aclosing(HttpProvider("acme", here, clock=FixedClock(), **args)) as provider:
            yield provider, server


async def send(provider: HttpProvider, request: dict[str, Any] | None = None) -> Submitted:
    request = {"prompt": "a fox"} if request is None else request
    submitted = await provider.submit(request, key="key-1", account=ACCOUNT, sink=sink)
    assert isinstance(submitted, Submitted)
    return submitted


async def refused(provider: HttpProvider, request: dict[str, Any] | None = None) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await send(provider, request)
    assert KEY not in str(caught.value) + repr(caught.value.facts)
    return caught.value


# ------------------------------------------------------------------ three APIs by shape

# A task per render; limits that queue on their side (THROTTLED); deleting is cancelling.
RUNWAY_LIKE = HttpApi(
    base_url="https://api.example.com/v1",
    submit="POST /text_to_video",
    poll="GET /tasks/{id}",
    cancel="DELETE /tasks/{id}",
    is_cancel_final=True,
    headers={"X-Api-Version": "2024-11-06"},
    body={"promptText": "{prompt}", "model": "{model}", "seed": "{seed}"},
    states={
        "PENDING": "queued",
        "THROTTLED": "throttled",
        "RUNNING": "running",
        "SUCCEEDED": "succeeded",
        "FAILED": "failed",
        "CANCELLED": "cancelled",
    },
    outputs="output[*]",
    error_code="failureCode",
    error_message="failure|error",
    kinds={"SAFETY.*": "moderated", "INTERNAL.*": "render_failed"},
    capabilities=Capabilities(
        result_ttl_s=86_400,
        billed_on="start",
        is_moderated_billed=True,
        limits_scope="account+model",
        cancel="any",
    ),
)

# A queue in front of many apps: the app is in the path, the result is a second request.
FAL_LIKE = HttpApi(
    base_url="https://queue.example.com",
    auth="Authorization: Key {key}",
    headers={"X-No-Retry": "1"},
    submit="POST /{+app}",
    poll="GET /{+app}/requests/{id}/status",
    result="GET /{+app}/requests/{id}",
    cancel="PUT /{+app}/requests/{id}/cancel",
    id="request_id",
    states={"IN_QUEUE": "queued", "IN_PROGRESS": "running", "COMPLETED": "succeeded"},
    outputs="video.url|images[*].url",
    error_code="error_type|detail[0].type",
    error_message="error|detail[0].msg|detail",
    capabilities=Capabilities(cancel="queued_only"),
)

# No key of ours anywhere, but a list of all renders with what each was asked for.
LUMA_LIKE = HttpApi(
    base_url="https://api.example.com/v1",
    submit="POST /generations/video",
    poll="GET /generations/{id}",
    cancel="DELETE /generations/{id}",
    body={"prompt": "{prompt}", "model": "{model}", "duration": "{duration}"},
    state="state",
    states={
        "queued": "queued",
        "dreaming": "running",
        "completed": "succeeded",
        "failed": "failed",
    },
    outputs="assets.video",
    error_message="failure_reason|detail",
    listing=HttpList(
        path="GET /generations?limit=2&offset={offset}",
        items="generations",
        echo={"prompt": "request.prompt", "duration": "request.duration"},
    ),
    capabilities=Capabilities(idempotency="list", cancel="any"),
)


async def test_a_runway_like_api_from_submit_to_file(tmp_path):
    tasks = iter(
        [
            {"id": "t1", "status": "PENDING"},
            {"id": "t1", "status": "THROTTLED"},
            {"id": "t1", "status": "RUNNING", "progress": 0.25},
            {"id": "t1", "status": "SUCCEEDED", "output": ["CDN/a.mp4?sig=1", "CDN/b.mp4"]},
        ]
    )
    async with serving(file_server()) as cdn:

        def answer(asked: Asked) -> Reply:
            if asked.method == "POST":
                return says(200, {"id": "t1"})
            return Reply(200, {}, json.dumps(next(tasks)).replace("CDN", cdn.url).encode())

        async with provided(RUNWAY_LIKE, answer) as (provider, server):
            submitted = await send(provider, {"prompt": "a fox", "seed": 7, "ratio": "16:9"})
            assert submitted == Submitted({"id": "t1"})
            found = [await provider.poll(submitted.handle, account=ACCOUNT) for _ in range(4)]
            link = found[-1].links[0]
            fetched = await provider.fetch(link, tmp_path / "a.part", account=ACCOUNT)
    post = server.asked[0]
    assert (post.method, post.target) == ("POST", "/v1/text_to_video")
    assert post.json == {"promptText": "a fox", "model": "gen4", "seed": 7, "ratio": "16:9"}
    assert post.headers["authorization"] == f"Bearer {KEY}"
    assert post.headers["x-api-version"] == "2024-11-06"
    assert {asked.target for asked in server.asked[1:]} == {"/v1/tasks/t1"}
    assert [s.state for s in found] == ["queued", "throttled", "running", "succeeded"]
    assert [s.stage for s in found][2:] == ["RUNNING", "SUCCEEDED"]
    assert found[2].progress == 0.25
    assert [one.suffix for one in found[3].links] == [".mp4", ".mp4"]
    assert fetched.size == 40_000
    assert KEY not in str(cdn.asked)


async def test_a_fal_like_api_keeps_the_app_in_the_handle_and_asks_twice():
    def answer(asked: Asked) -> Reply:
        if asked.method == "POST":
            return says(200, {"request_id": "r 1/2", "queue_position": 3})
        if asked.target.endswith("/status"):
            return says(202, {"status": "COMPLETED"})
        return says(200, {"video": {"url": "https://cdn.example.com/x"}})

    async with provided(replace(FAL_LIKE, suffix=".mp4"), answer) as (provider, server):
        request = {"prompt": "a fox", "app": "acme/clips"}
        submitted = await send(provider, request)
        status = await provider.poll(json.loads(json.dumps(submitted.handle)), account=ACCOUNT)
    assert submitted.handle == {"id": "r 1/2", "app": "acme/clips"}
    assert status.state == "succeeded"
    assert status.links == (Link("https://cdn.example.com/x", ".mp4"),)
    assert server.asked[0].json == {"prompt": "a fox"}
    assert [asked.target for asked in server.asked] == [
        "/v1/acme/clips",
        "/v1/acme/clips/requests/r%201%2F2/status",
        "/v1/acme/clips/requests/r%201%2F2",
    ]
    assert server.asked[0].headers["authorization"] == f"Key {KEY}"


@pytest.mark.parametrize(
    ("status", "result", "kind"),
    [
        (422, {"detail": [{"type": "content_policy_violation", "msg": "no"}]}, "moderated"),
        (422, {"detail": [{"type": "image_load_error", "msg": "no"}]}, "render_failed"),
        (200, {"error": "worker died", "error_type": "runner"}, "render_failed"),
        (200, {}, "render_failed"),
        (200, {"video": {"url": ""}}, "render_failed"),
    ],
)
async def test_a_completed_that_carries_an_error_is_failed(status, result, kind):
    def answer(asked: Asked) -> Reply:
        is_status = asked.target.endswith("/status")
        return says(200, {"status": "COMPLETED"}) if is_status else says(status, result)

    async with provided(FAL_LIKE, answer) as (provider, _):
        found = await provider.poll({"id": "r", "app": "a"}, account=ACCOUNT)
    assert (found.state, found.links) == ("failed", ())
    assert found.error is not None
    assert found.error.kind == kind


@pytest.mark.parametrize(
    ("status", "kind"), [(503, "unknown"), (404, "unknown"), (401, "auth"), (429, "rate")]
)
async def test_a_result_that_cannot_be_had_now_changes_no_state(status, kind):
    def answer(asked: Asked) -> Reply:
        is_status = asked.target.endswith("/status")
        return says(200, {"status": "COMPLETED"}) if is_status else says(status, {})

    async with provided(FAL_LIKE, answer) as (provider, _):
        with pytest.raises(ProviderError) as caught:
            await provider.poll({"id": "r", "app": "a"}, account=ACCOUNT)
    assert caught.value.kind == kind


# ------------------------------------------------------------------ a render is sent once


@pytest.mark.parametrize("how", ["drop", "cut", "hang", "partial"])
async def test_a_lost_answer_is_unknown_and_the_request_was_sent_once(how):
    replies = {
        "drop": DROP,
        "cut": replace(says(200, {"id": "t1"}), cut=3),
        "hang": Reply(200, {"Content-Length": "9"}, b"{", hangs=True),
        "partial": Reply(200, {"Content-Length": "9"}, b"{", cut=1),
    }
    async with provided(RUNWAY_LIKE, lambda _: replies[how], submit_timeout_s=0.2) as (p, server):
        error = await refused(p)
        assert (error.kind, error.is_billed) == ("unknown", None)
        assert len(server.asked) == 1


async def test_a_submit_never_uses_a_connection_that_was_kept():
    async with provided(RUNWAY_LIKE, lambda _: says(200, {"id": "t"})) as (provider, server):
        for _ in range(2):
            await send(provider)
            await provider.poll({"id": "t"}, account=ACCOUNT)
        # Two for the submits, one that the polls share.
        assert len(server._writers) == 3


async def test_no_status_makes_a_submit_go_out_twice():
    seen = []
    for status in (301, 302, 307, 308, 401, 408, 409, 425, 429, 500, 502, 503, 504):
        reply = says(status, {}, Location="/elsewhere", Retry_After="0")
        async with provided(RUNWAY_LIKE, lambda _, reply=reply: reply) as (provider, server):
            await refused(provider)
            seen.append(len(server.asked))
    assert set(seen) == {1}


async def no_tls(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 This is no TLS\r\n\r\n")
    writer.close()


async def test_refused_dns_and_tls_are_not_sent():
    listening = await asyncio.start_server(no_tls, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with serving(lambda _: says()) as gone:
        urls = [gone.url, f"https://127.0.0.1:{port}", "http://no-such-host.invalid"]
    for url in urls:
        async with aclosing(HttpProvider("acme", replace(RUNWAY_LIKE, base_url=url))) as provider:
            error = await refused(provider)
            assert (error.kind, error.is_billed) == ("not_sent", False), url
    listening.close()


async def test_a_2xx_without_an_id_is_unknown_for_it_was_accepted():
    bodies = [b"{}", b'{"id": null}', b'{"id": true}', b'{"id": ""}', b"<html>", b"", b"[" * 9999]
    for body in bodies:
        async with provided(RUNWAY_LIKE, lambda _, b=body: Reply(200, {}, b)) as (provider, _):
            assert (await refused(provider)).kind == "unknown"


async def test_a_reply_without_end_is_given_up_on(monkeypatch):
    monkeypatch.setattr(module, "REPLY_MAX", 1000)
    async with provided(RUNWAY_LIKE, lambda _: Reply(200, {}, b"x" * 5000)) as (provider, _):
        assert (await refused(provider)).kind == "unknown"


async def test_a_refusal_whose_text_breaks_off_is_still_that_refusal():
    reply = Reply(402, {"Content-Length": "900"}, b'{"error', cut=7)
    async with provided(RUNWAY_LIKE, lambda _: reply) as (provider, _):
        assert (await refused(provider)).kind == "no_funds"


async def test_no_cookie_is_kept_for_the_next_account():
    reply = says(200, {"id": "t"}, Set_Cookie="session=studio; Path=/")
    async with provided(RUNWAY_LIKE, lambda _: reply) as (provider, server):
        for _ in range(2):
            await provider.poll({"id": "t"}, account=ACCOUNT)
    assert "cookie" not in server.asked[1].headers


async def test_an_answer_that_is_the_result_itself_is_written_to_the_sink(tmp_path):
    reply = Reply(200, {"Content-Type": "video/mp4", "X-Cost": "0.25"}, b"clip" * 999)
    api = replace(RUNWAY_LIKE, cost="@x-cost")
    async with provided(api, lambda _: reply) as (provider, _):
        finished = await provider.submit(
            {"prompt": "x"}, key="k", account=ACCOUNT, sink=lambda end: tmp_path / f"clip{end}"
        )
    assert finished == Finished((tmp_path / "clip.mp4",), 250_000)
    assert await asyncio.to_thread((tmp_path / "clip.mp4").read_bytes) == b"clip" * 999


# ------------------------------------------------------------------ what a refusal means


WORDS = [
    (400, {"error": "bad duration"}, "invalid"),
    (404, {"error": "no such model"}, "invalid"),
    (413, {}, "invalid"),
    (422, {"detail": "bad"}, "invalid"),
    (400, {"error": {"code": "content_policy_violation", "message": "no"}}, "moderated"),
    (403, {"message": "Blocked by our moderation"}, "moderated"),
    (401, {}, "auth"),
    (403, {}, "auth"),
    (402, {}, "no_funds"),
    (407, {}, "not_sent"),
    (408, {}, "unknown"),
    (409, {}, "unknown"),
    (410, {}, "provider_gone"),
    (425, {}, "not_sent"),
    (301, {}, "provider_gone"),
    (303, {}, "unknown"),
    (500, {}, "unknown"),
    (502, {}, "unknown"),
    (503, {}, "unknown"),
    (504, {}, "unknown"),
    (429, {}, "rate"),
    (429, {"error": "Too many requests per minute"}, "rate"),
    (429, {"detail": "rate limit reduced while you have less than $5.00 in credit"}, "rate"),
    (429, {"detail": {"status": "too_many_concurrent_requests"}}, "concurrency"),
    (429, {"error": "Queue full"}, "concurrency"),
    (429, {"error": {"code": "insufficient_quota"}}, "no_funds"),
    (429, {"error": "You have reached your daily limit"}, "quota"),
]


async def test_a_status_and_its_words_mean_a_kind():
    api = replace(LUMA_LIKE, error_message="error.message|message|error|detail")
    async with provided(api, lambda _: says(status, doc)) as (provider, _):
        for status, doc, kind in WORDS:
            error = await refused(provider)
            assert (error.kind, error.status) == (kind, status), doc
            is_open = kind in ("unknown", "moderated", "provider_gone")
            assert error.is_billed is (None if is_open else False), doc


async def test_a_declared_kind_comes_before_all_others():
    api = replace(RUNWAY_LIKE, error_code="code", kinds={"13*": "concurrency", "503": "rate"})
    for reply, kind in (
        (says(500, {"code": 1303}), "concurrency"),
        (says(503, {"code": "x"}), "rate"),
        (says(500, {"code": "x"}), "unknown"),
    ):
        async with provided(api, lambda _, reply=reply: reply) as (provider, _):
            assert (await refused(provider)).kind == kind


async def test_a_200_with_a_code_that_is_not_ok_is_an_error():
    api = replace(
        RUNWAY_LIKE, id="data.id", error_code="code", ok_codes=(0,), kinds={"1303": "concurrency"}
    )
    docs = iter([{"code": 1303}, {"code": 5000}, {"code": 0, "data": {"id": 5}}])
    async with provided(api, lambda _: says(200, next(docs))) as (provider, _):
        assert (await refused(provider)).kind == "concurrency"
        assert (await refused(provider)).kind == "unknown"
        assert (await send(provider)).handle == {"id": 5}


WAITS: list[tuple[dict[str, str], Any, float | None]] = [
    ({"Retry_After": "120"}, {}, 120),
    ({"Retry_After": "86400"}, {}, 86_400),
    ({"Retry_After": "Fri, 15 Jan 2027 08:02:00 GMT"}, {}, 120),
    ({"Retry_After_Ms": "250", "Retry_After": "1"}, {}, 0.25),
    ({"X_Ratelimit_Reset": "1800000060"}, {}, 60),
    ({"X_Ratelimit_Reset": "60"}, {}, 60),
    ({"X_Ratelimit_Reset_Requests": "6m0s"}, {}, 360),
    ({}, {"retry_after": 7}, 7),
    ({}, {"error": {"retry_after_ms": 7000}}, 7),
    ({}, {"error": {"details": [{"x": 1}, {"retryDelay": "34.5s"}]}}, 34.5),
    ({}, {"wait": {"left_ms": 900}}, 0.9),
    ({}, {"detail": "Request was throttled. Your rate limit resets in ~30s."}, 30),
    ({}, {"detail": "Please try again in 2 minutes"}, 120),
    ({}, {"detail": "Please retry after 500 ms"}, 0.5),
    ({}, {"detail": "slow down"}, None),
]


async def test_how_long_to_wait_in_all_its_spellings_and_uncapped():
    api = replace(RUNWAY_LIKE, retry_after="wait.left_ms")
    async with provided(api, lambda _: says(429, doc, **headers)) as (provider, _):
        for headers, doc, seconds in WAITS:
            assert (await refused(provider)).retry_after_s == seconds, (headers, doc)


async def test_a_key_that_the_reply_repeats_is_not_in_the_error():
    doc = {"failureCode": f"bad {KEY}", "failure": f"{KEY} is no key"}
    async with provided(RUNWAY_LIKE, lambda _: says(401, doc)) as (provider, _):
        error = await refused(provider)
    assert "[key] is no key" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (again.kind, again.status, str(again)) == ("auth", 401, str(error))


async def test_a_key_that_cannot_be_one_is_auth_and_nothing_is_sent():
    async with provided(RUNWAY_LIKE, lambda _: says(200, {"id": "t"})) as (provider, server):
        for key in (None, "", "two\nlines", "clé"):
            account = AccountKey("studio", key)
            with pytest.raises(ProviderError, match="studio") as caught:
                await provider.submit({"prompt": "x"}, key="k", account=account, sink=sink)
            assert caught.value.kind == "auth"
            assert not key or key not in str(caught.value)
        assert server.asked == []


async def test_an_api_without_a_key_is_asked_without_one():
    api = replace(RUNWAY_LIKE, auth="")
    async with provided(api, lambda _: says(200, {"id": "t"})) as (provider, server):
        await provider.submit({"prompt": "x"}, key="k", account=AccountKey("me"), sink=sink)
    assert "authorization" not in server.asked[0].headers


# ------------------------------------------------------------------ bodies


async def test_the_key_of_one_render_travels_where_it_is_declared():
    api = replace(
        RUNWAY_LIKE,
        submit="POST /jobs?ref={idempotency_key}",
        idempotency="Idempotency-Key: v-{idempotency_key}",
        body={"meta": {"id": "{idempotency_key}"}},
    )
    async with provided(api, lambda _: says(200, {"id": "t"})) as (provider, server):
        await send(provider)
    (asked,) = server.asked
    assert asked.target == "/v1/jobs?ref=key-1"
    assert asked.headers["idempotency-key"] == "v-key-1"
    assert asked.json["meta"] == {"id": "key-1"}


async def test_extra_fields_pass_to_their_place_and_none_is_overruled_in_silence():
    api = replace(RUNWAY_LIKE, body={"version": "v9"}, extra_in="input")
    async with provided(api, lambda _: says(200, {"id": "t"})) as (provider, server):
        request = {"prompt": "{seed}", "seed": 2**53, "tags": ["a", None], "id": "mine"}
        await send(provider, request)
        assert server.asked[0].json == {"version": "v9", "input": request}
        provider.api = replace(provider.api, extra_in=None)
        await send(provider)
        assert server.asked[1].json == {"version": "v9"}
        provider.api = replace(provider.api, extra_in="")
        error = await refused(provider, {"version": "v8"})
        assert error.kind == "invalid"
        assert "version" in str(error)
        assert len(server.asked) == 2


async def test_what_a_path_lacks_is_said_before_anything_is_sent():
    for api in (FAL_LIKE, replace(FAL_LIKE, submit="POST /x")):
        async with provided(api, lambda _: says(200, {"request_id": "r"})) as (provider, server):
            error = await refused(provider, {"prompt": "a"})
            assert (error.kind, error.is_billed) == ("invalid", False)
            assert "app" in str(error)
            assert server.asked == []


# ------------------------------------------------------------------ polling


async def polled(api: HttpApi, doc: Any, **headers: str) -> Status:
    async with provided(api, lambda _: says(200, doc, **headers)) as (provider, _):
        return await provider.poll({"id": "t"}, account=ACCOUNT)


async def test_a_state_nobody_declared_is_running_and_is_told(caplog):
    for doc in ({"status": "PONDERING"}, {"status": None}, {}, [], {"status": {}}):
        caplog.clear()
        assert (await polled(RUNWAY_LIKE, doc)).state == "running", doc
        assert "not declared" in caplog.text


async def test_succeeded_without_outputs_is_failed():
    for output in (None, [], "", [None], [""], {}):
        found = await polled(RUNWAY_LIKE, {"status": "SUCCEEDED", "output": output})
        assert (found.state, found.links, found.is_billed) == ("failed", (), None), output
        assert found.error is not None
        assert found.error.kind == "render_failed"


async def test_a_failed_render_says_why_and_what_is_billed():
    moderated = {"status": "FAILED", "failureCode": "SAFETY.INPUT.TEXT", "failure": "No."}
    found = await polled(RUNWAY_LIKE, moderated)
    assert found.error is not None
    assert (found.state, found.error.kind, found.error.code) == (
        "failed",
        "moderated",
        "SAFETY.INPUT.TEXT",
    )
    assert found.is_billed is found.error.is_billed is True
    assert "No." in str(found.error)
    broken = await polled(LUMA_LIKE, {"state": "failed", "failure_reason": "GPU on fire"})
    assert broken.error is not None
    assert (broken.error.kind, broken.is_billed) == ("render_failed", False)


async def test_words_of_other_apis_a_done_flag_and_outputs_that_are_lists_or_objects():
    veo = replace(
        RUNWAY_LIKE,
        state="done",
        states={"true": "succeeded", "false": "running"},
        outputs="response.videos",
    )
    assert (await polled(veo, {"done": False})).state == "running"
    done = {"done": True, "response": {"videos": [{"url": "https://a.com/1.webm"}, "/2.mov"]}}
    async with provided(veo, lambda _: says(200, done)) as (provider, server):
        found = await provider.poll({"id": "t"}, account=ACCOUNT)
        assert found.links == (
            Link("https://a.com/1.webm", ".webm"),
            Link(f"{server.url}/2.mov", ".mov"),
        )
    assert (await polled(veo, {"done": True, "response": {}})).state == "failed"


async def test_outputs_at_a_path_of_the_apis_own_are_fetched_with_the_key(tmp_path):
    needs_key = Capabilities(download_needs_key=True)
    api = replace(RUNWAY_LIKE, outputs="/tasks/{id}/content", capabilities=needs_key, suffix=".mp4")

    def answer(asked: Asked) -> Reply:
        is_content = asked.target.endswith("/content")
        return file_server()(asked) if is_content else says(200, {"status": "SUCCEEDED"})

    async with provided(api, answer) as (provider, server), serving(file_server()) as other:
        (link,) = (await provider.poll({"id": "t"}, account=ACCOUNT)).links
        assert link == Link(f"{server.url}/v1/tasks/t/content", ".mp4")
        await provider.fetch(link, tmp_path / "a", account=ACCOUNT)
        await provider.fetch(Link(other.url), tmp_path / "b", account=ACCOUNT)
    assert server.asked[-1].headers["authorization"] == f"Bearer {KEY}"
    assert "authorization" not in other.asked[0].headers


async def test_a_key_is_not_sent_for_a_download_that_needs_none(tmp_path):
    async with provided(RUNWAY_LIKE, file_server()) as (provider, server):
        await provider.fetch(Link(f"{server.url}/a", size=40_000), tmp_path / "a", account=ACCOUNT)
    assert "authorization" not in server.asked[0].headers


async def test_a_poll_follows_redirects_but_its_key_does_not_leave_home():
    async with serving(lambda _: says(200, {"status": "PENDING"})) as other:
        onward = says(302, {}, Location=f"{other.url}/task")
        async with provided(RUNWAY_LIKE, lambda _: onward) as (provider, _):
            assert (await provider.poll({"id": "t"}, account=ACCOUNT)).state == "queued"
    assert KEY not in str(other.asked)
    assert "x-api-version" not in other.asked[0].headers


async def test_404_is_not_found_but_a_gateways_page_is_no_answer():
    for reply in (says(404, {"error": "no"}), Reply(404)):
        async with provided(RUNWAY_LIKE, lambda _, r=reply: r) as (provider, _):
            assert await provider.poll({"id": "t"}, account=ACCOUNT) == Status("not_found")
    async with serving(lambda _: says(404, {})) as other:
        away = says(302, {}, Location=other.url)
        async with provided(RUNWAY_LIKE, lambda _: away) as (provider, _):
            with pytest.raises(ProviderError):
                await provider.poll({"id": "t"}, account=ACCOUNT)
    page = Reply(404, {"Content-Type": "text/html"}, b"<html>")
    declared = replace(RUNWAY_LIKE, kinds={"404": "auth"})
    for api, reply, kind in (
        (RUNWAY_LIKE, page, "unknown"),
        (RUNWAY_LIKE, Reply(200, {}, b"<html>"), "unknown"),
        (RUNWAY_LIKE, says(500, {}), "unknown"),
        (RUNWAY_LIKE, says(410, {}), "provider_gone"),
        (declared, says(404, {}), "auth"),
    ):
        async with provided(api, lambda _, r=reply: r) as (provider, _):
            with pytest.raises(ProviderError) as caught:
                await provider.poll({"id": "t"}, account=ACCOUNT)
            assert caught.value.kind == kind


async def test_numbers_in_all_their_spellings():
    api = replace(RUNWAY_LIKE, progress_max=100, poll_after="@x-poll-after-ms", expires="exp")
    for told, progress in ((50, 0.5), ("50%", 0.5), (250, 1), (-1, 0), ("half", None)):
        doc = {"status": "RUNNING", "progress": told}
        assert (await polled(api, doc)).progress == progress
    assert (await polled(api, {}, X_Poll_After_Ms="2500")).poll_after_s == 2.5
    assert (await polled(RUNWAY_LIKE, {}, Retry_After="3")).poll_after_s == 3
    at = 1_800_000_060
    for when in (at, at * 1000, str(at), "2027-01-15T08:01:00Z", "2027-01-15T08:01:00"):
        assert (await polled(api, {"exp": when})).expires_at_ms == at * 1000
    for when in (None, "soon", True, [], "1.2.3"):
        assert (await polled(api, {"exp": when})).expires_at_ms is None


AMOUNTS: list[tuple[Any, Any, int | None]] = [
    ("dollars", 0.7, 700_000),
    ("dollars", "0.1", 100_000),
    ("dollars", "$1,234.5", 1_234_500_000),
    ("dollars", 0.0000005, 1),
    ("cents", 12.5, 125_000),
    ("credits", 25, 250_000),
    ("credits", 0, 0),
    ("dollars", -1, None),
    ("dollars", "free", None),
    ("dollars", True, None),
    ("dollars", "NaN", None),
    ("dollars", "Infinity", None),
    ("dollars", None, None),
    ("dollars", 1e300, None),
    ("dollars", "1e999999999", None),
]


async def test_an_amount_becomes_whole_microdollars():
    def answer(_: Asked) -> Reply:
        doc = {"id": "t", "status": "SUCCEEDED", "output": "https://a/b"}
        return says(200, doc | {"usage": {"cost": amount}})

    api = replace(RUNWAY_LIKE, cost="usage.cost", credit_microusd=10_000)
    async with provided(api, answer) as (provider, _):
        for unit, amount, microusd in AMOUNTS:
            provider.api = replace(provider.api, cost_unit=unit)
            assert (await send(provider)).cost_microusd == microusd, amount
            found = await provider.poll({"id": "t"}, account=ACCOUNT)
            assert found.cost_microusd == microusd
            assert found.is_billed == (microusd != 0)


@quickly
@given(st.integers(0, 10**9))
def test_sums_of_cents_written_as_dollars_are_exact(cents):
    api = replace(RUNWAY_LIKE, cost="c")
    provider = HttpProvider("acme", api)
    assert provider._cost(http_api.Reply(200, {}, {"c": cents / 100})) == cents * 10_000


# ------------------------------------------------------------------ cancelling


async def test_what_a_cancel_answers():
    said = {200: "requested", 202: "requested", 204: "requested", 405: "unsupported"}
    said |= {501: "unsupported", 400: "too_late", 404: "too_late", 409: "too_late"}
    statuses = iter(said)
    async with provided(FAL_LIKE, lambda _: Reply(next(statuses))) as (provider, server):
        for answer in said.values():
            handle = {"id": "r", "app": "a"}
            assert await provider.cancel(handle, account=ACCOUNT) == answer
            assert server.asked[-1].method == "PUT"
        assert len(server.asked) == len(said)


async def test_a_cancel_that_fails_is_an_error_and_one_that_is_not_there_unsupported():
    async with provided(FAL_LIKE, lambda _: says(503)) as (provider, _):
        with pytest.raises(ProviderError):
            await provider.cancel({"id": "r", "app": "a"}, account=ACCOUNT)
        provider.api = replace(provider.api, cancel="")
        assert await provider.cancel({"id": "r", "app": "a"}, account=ACCOUNT) == "unsupported"


async def test_a_finished_render_is_never_deleted():
    doc: dict[str, Any] = {"status": "SUCCEEDED", "output": ["https://a.com/b"]}
    async with provided(RUNWAY_LIKE, lambda _: says(200, doc)) as (provider, server):
        assert await provider.cancel({"id": "t"}, account=ACCOUNT) == "too_late"
        assert [asked.method for asked in server.asked] == ["GET"]
        doc = {"status": "THROTTLED"}
        assert await provider.cancel({"id": "t"}, account=ACCOUNT) == "cancelled"
        assert server.asked[-1].method == "DELETE"


# ------------------------------------------------------------------ finding


def generation(number: int, age_s: int, /, **request: Any) -> dict[str, Any]:
    made = {"id": f"g{number}", "created_at": NOW_MS // 1000 - age_s}
    return made | {"state": "dreaming", "request": request}


def list_server(*items: dict[str, Any]) -> Answer:
    """Newest first, two a page, by offset."""

    def answer(asked: Asked) -> Reply:
        offset = int(asked.target.rpartition("=")[2])
        return says(200, {"generations": list(items[offset : offset + 2])})

    return answer


async def found(
    provider: HttpProvider, request: dict[str, Any], *, within_s: float = 100
) -> list[Match]:
    since_ms = NOW_MS - int(within_s * 1000)
    return await provider.find(request, key="key-1", since_ms=since_ms, account=ACCOUNT)


async def test_a_lost_render_is_found_by_what_it_was_asked_for():
    server_side = list_server(
        generation(1, 5, prompt="a cat", duration="5"),
        generation(2, 10, prompt="a  fox ", duration=5.0),
        generation(3, 20, prompt="a fox", duration=9),
        generation(4, 50, prompt="a fox"),
        generation(5, 99, prompt="A fox", duration=5),
        generation(6, 102, prompt="a fox", duration=5),
        generation(7, 103, prompt="a fox", duration=5),
        generation(8, 104, prompt="a fox", duration=5),
    )
    async with provided(LUMA_LIKE, server_side) as (provider, server):
        matches = await found(provider, {"prompt": "a fox", "duration": "5", "style": "ink"})
    assert matches == [
        Match({"id": "g2"}, NOW_MS - 10_000, is_certain=False),
        Match({"id": "g4"}, NOW_MS - 50_000, is_certain=False),
    ]
    # The page that is older throughout is the last one.
    assert [asked.target[-1] for asked in server.asked] == ["0", "2", "4", "6"]


async def test_a_render_whose_second_was_cut_off_is_not_missed():
    server_side = list_server(generation(1, 5, prompt="a fox"))
    async with provided(LUMA_LIKE, server_side) as (provider, _):
        assert len(await found(provider, {"prompt": "a fox"}, within_s=4.2)) == 1


async def test_nothing_found_means_the_list_was_read_to_its_end():
    async with provided(LUMA_LIKE, list_server(generation(1, 5, prompt="x"))) as (provider, _):
        assert await found(provider, {"prompt": "a fox"}) == []


async def test_a_list_that_does_not_come_to_an_end_is_an_error_not_nothing():
    for reply in (
        says(200, {"generations": [generation(1, 5, prompt="x")]}),  # the offset is ignored
        says(200, {"generations": [{"request": {"prompt": "a fox"}}]}),  # no id
        says(200, {"generations": None}),
        says(200, {}),
        says(404, {}),
        says(503, {}),
        Reply(200, {}, b"<html>"),
    ):
        async with provided(LUMA_LIKE, lambda _, reply=reply: reply) as (provider, server):
            with pytest.raises(ProviderError) as caught:
                await found(provider, {"prompt": "a fox"})
            assert caught.value.kind == "unknown", reply
            assert len(server.asked) <= 2


async def test_a_render_that_no_longer_tells_its_request_leaves_it_unknown():
    wiped = generation(1, 5)
    async with provided(LUMA_LIKE, list_server(wiped)) as (provider, _):
        with pytest.raises(ProviderError, match="nobody can say"):
            await found(provider, {"prompt": "a fox"})
        assert await found(provider, {"prompt": "a fox"}, within_s=3) == []
    both = list_server(wiped, generation(2, 9, prompt="a fox"))
    async with provided(LUMA_LIKE, both) as (provider, _):
        assert [m.handle for m in await found(provider, {"prompt": "a fox"})] == [{"id": "g2"}]


async def test_a_list_by_cursor_that_is_not_sorted_is_read_whole():
    listing = HttpList(
        path="GET /videos?after={cursor}&order=x",
        echo={"prompt": "prompt"},
        cursor="last",
        is_newest_first=False,
    )

    def item(number: int, created: object, prompt: str) -> dict[str, Any]:
        return {"id": number, "created_at": created, "prompt": prompt}

    pages = {
        "/v1/videos?order=x": ([item(1, 5, "a fox")], "c/1"),
        "/v1/videos?after=c%2F1&order=x": ([item(2, None, "a fox")], "c2"),
        "/v1/videos?after=c2&order=x": ([item(3, "2027-01-15T07:59:59Z", "a fox")], None),
    }

    def answer(asked: Asked) -> Reply:
        items, last = pages[asked.target]
        return says(200, {"data": items, "last": last})

    async with provided(replace(LUMA_LIKE, listing=listing), answer) as (provider, _):
        matches = await found(provider, {"prompt": "a fox"})
    assert [m.handle["id"] for m in matches] == [2, 3]


async def test_a_tag_is_certain_and_no_other_render_is_taken_for_it():
    listing = HttpList(path="GET /jobs?tag={idempotency_key}", items="", tag="meta.tag")
    caps = Capabilities(idempotency="tag")
    body = {"meta": {"tag": "{idempotency_key}"}}
    api = replace(LUMA_LIKE, body=body, listing=listing, capabilities=caps)
    # A server that does not know the filter lists everything.
    items = [{"id": n, "meta": {"tag": tag}} for n, tag in enumerate(("x", "key-1", None))]
    async with provided(api, lambda _: says(200, items)) as (provider, server):
        (match,) = await found(provider, {"prompt": "a fox"})
    assert (match.handle, match.is_certain) == ({"id": 1}, True)
    assert server.asked[0].target == "/v1/jobs?tag=key-1"


async def test_an_id_of_our_own_is_polled():
    caps = Capabilities(idempotency="client_id")
    api = replace(RUNWAY_LIKE, body={"id": "{idempotency_key}"}, capabilities=caps)
    docs = [says(200, {}), says(200, {"status": "RUNNING"}), says(404, {}), says(503, {})]
    async with provided(api, lambda _: docs.pop(0)) as (provider, server):
        assert (await send(provider)).handle == {"id": "key-1"}
        assert [m.handle for m in await found(provider, {})] == [{"id": "key-1"}]
        assert server.asked[-1].target == "/v1/tasks/key-1"
        assert await found(provider, {}) == []
        with pytest.raises(ProviderError):
            await found(provider, {})


async def test_a_key_that_was_used_before_is_said_so_where_keys_are_refused():
    caps = Capabilities(idempotency="reject")
    api = replace(RUNWAY_LIKE, idempotency="Key: {idempotency_key}", capabilities=caps)
    async with provided(api, lambda _: says(409, {})) as (provider, _):
        assert (await refused(provider)).kind == "key_reused"


async def test_an_api_that_lists_nothing_cannot_say_that_there_is_nothing():
    async with provided(RUNWAY_LIKE, lambda _: says(200, {})) as (provider, _):
        with pytest.raises(ProviderError, match="no list"):
            await found(provider, {"prompt": "a fox"})


# ------------------------------------------------------------------ declarations


@pytest.mark.parametrize(
    "wrong",
    [
        {"base_url": "api.example.com"},
        {"submit": "/tasks"},
        {"poll": "GET tasks/{id}"},
        {"result": "GET https://elsewhere.com/{id}"},
        {"outputs": "output[x]"},
        {"outputs": "a..b"},
        {"state": ".status"},
        {"states": {"DONE": "done"}},
        {"states": {"DONE": "render_failed"}},
        {"listing": HttpList(path="GET /x", tag="a..b")},
        {"kinds": {"x": "fatal"}},
        {"cost": "c", "cost_unit": "credits"},
        {"capabilities": Capabilities(idempotency="replay")},
        {"capabilities": Capabilities(idempotency="client_id")},
        {"capabilities": Capabilities(idempotency="list")},
        {"capabilities": Capabilities(idempotency="tag"), "idempotency": "K: {idempotency_key}"},
    ],
)
def test_a_declaration_that_cannot_work_is_refused(wrong):
    with pytest.raises(UsageError):
        replace(RUNWAY_LIKE, **wrong)


def test_importing_the_provider_imports_no_http_library():
    code = "import sys, vqkit.providers.http; sys.exit('httpx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


names = st.text("abcxyz_0", min_size=1, max_size=4)
plain_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    out = [(path, value)]
    if isinstance(value, dict):
        for name, inner in value.items():
            out += leaves(inner, f"{path}.{name}" if path else name)
    if isinstance(value, list):
        for i, inner in enumerate(value):
            out += leaves(inner, f"{path}[{i}]")
    return out


@quickly
@given(plain_json)
def test_every_value_is_found_at_its_own_path(doc):
    for path, value in leaves(doc):
        assert pick(doc, path) == ([] if value is None else [value])
        assert pick({"no": doc}, f"yes|no{'.' if path[:1] not in ('', '[') else ''}{path}") == (
            [] if value is None else [value]
        )


@quickly
@given(st.lists(plain_json), names)
def test_a_star_gives_all_of_a_list_in_order(items, name):
    wrapped = [{name: item} for item in items]
    assert pick(wrapped, f"[*].{name}") == [item for item in items if item is not None]
    assert pick(wrapped, f"[-1].{name}") == pick(items, "[-1]")


@quickly
@given(plain_json, st.text("ab.[]*0|@-", max_size=12))
def test_a_path_is_refused_or_harmless(doc, path):
    try:
        found = pick(doc, path, {"a": "b"})
    except UsageError:
        return
    assert None not in found


@quickly
@given(st.dictionaries(names, plain_json), plain_json)
def test_a_template_without_placeholders_is_itself(values, template):
    assert fill(template, values) == template


@quickly
@given(st.dictionaries(names, plain_json, min_size=1), st.data())
def test_a_placeholder_becomes_the_value_with_its_type_and_no_other_text_does(values, data):
    name = data.draw(st.sampled_from(sorted(values)))
    template = {"a": [f"{{{name}}}", {"b": f"{{{name}}}"}], "text": f"x {{{name}}}", "n": "{none}"}
    filled = fill(template, values)
    assert filled == {"a": [values[name], {"b": values[name]}], "text": f"x {{{name}}}"}
    assert type(filled["a"][0]) is type(values[name])
