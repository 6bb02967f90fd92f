"""The mock provider: each knob seen once through the adapter, and books that outlive a kill."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import itertools
import json
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from vqkit.errors import UsageError
from vqkit.mock import CHANCES, Knobs, Ledger, MockAdapter, MockProvider, Render, content
from vqkit.providers.contract import (
    AccountKey,
    Fetched,
    Link,
    ProviderError,
    RenderProvider,
    Status,
    Submitted,
)

DEFAULTS = {f.name: getattr(Knobs(), f.name) for f in fields(Knobs) if f.name != "chances"}
FIRST = {"first": 1}
serial = itertools.count()


def run(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


class Scene:
    """One test's own account and request on a server that may have others."""

    def __init__(self, mock: MockProvider, folder: Path) -> None:
        self.mock, self.name = mock, f"account-{next(serial)}"
        self.account = mock.account(self.name)
        self.request = {"prompt": f"a fox, {self.name}", "seed": 7}
        self.path = folder / "result.part"

    def set(self, **knobs: Any) -> Scene:
        self.mock.set(**knobs)
        return self

    @property
    def adapter(self) -> MockAdapter:
        return self.mock.adapter()

    def submit(self, key: str = "key-1", account: AccountKey | None = None) -> Submitted:
        sent = self.adapter.submit(
            self.request, key=key, account=account or self.account, sink=Path
        )
        return run(sent)

    def submit_many(self, count: int) -> list[Submitted]:
        adapter = self.adapter

        async def all_at_once() -> list[Submitted]:
            sending = (
                adapter.submit({"n": n}, key=f"key-{n}", account=self.account, sink=Path)
                for n in range(count)
            )
            return await asyncio.gather(*sending)

        return run(all_at_once())

    def poll(self, submitted: Submitted) -> Status:
        return run(self.adapter.poll(submitted.handle, account=self.account))

    def rendered(self) -> Status:
        return self.poll(self.submit())

    def fetch(self, link: Link, etag: str | None = None) -> Fetched:
        return run(self.adapter.fetch(link, self.path, account=self.account, etag=etag))

    def find(self, key: str = "key-1") -> list[str]:
        finding = self.adapter.find(self.request, key=key, since_ms=0, account=self.account)
        return [match.handle["id"] for match in run(finding)]

    @property
    def renders(self) -> list[Render]:
        return [r for r in self.mock.ledger() if r.account == self.name]

    @property
    def billed(self) -> int:
        return self.mock.billed_microusd(self.name)


@pytest.fixture(scope="module")
def server() -> Iterator[MockProvider]:
    with MockProvider() as mock:
        yield mock


@pytest.fixture
def scene(server: MockProvider, tmp_path: Path) -> Scene:
    server.set(**DEFAULTS, **dict.fromkeys(CHANCES, False))
    return Scene(server, tmp_path)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Scene]:
    """A server that the test may kill."""
    with MockProvider(ledger=tmp_path / "ledger.jsonl") as mock:
        yield Scene(mock, tmp_path)


def failing(action: Any, *args: Any, **options: Any) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        action(*args, **options)
    assert pickle.loads(pickle.dumps(caught.value)).facts == caught.value.facts
    return caught.value


# -- the plain way ---------------------------------------------------------------------------


def test_a_render_is_sent_polled_fetched_and_billed_once(scene: Scene):
    status = scene.rendered()
    assert (status.state, status.cost_microusd, status.is_billed) == ("succeeded", 250_000, True)
    fetched = scene.fetch(status.links[0])
    assert scene.path.read_bytes() == scene.mock.content(scene.request)
    assert fetched.size == status.links[0].size == 4096
    [render] = scene.renders
    assert (render.key, render.request, render.billed_microusd) == ("key-1", scene.request, 250_000)
    assert [word for word, _ in render.states] == ["RUNNING", "SUCCEEDED"]
    assert (render.polls, render.fetches) == (1, 1)


def test_the_adapter_is_a_render_provider_that_survives_pickling(scene: Scene):
    provider: RenderProvider = scene.mock.adapter("studio")
    again = pickle.loads(pickle.dumps(provider))
    assert (again.name, again.capabilities) == ("studio", provider.capabilities)


def test_the_ledger_over_http_is_the_ledger_in_the_file(scene: Scene):
    scene.rendered()
    connection = http.client.HTTPConnection(urlsplit(scene.mock.url).netloc)
    connection.request("GET", "/_ledger")
    told = json.loads(connection.getresponse().read())
    connection.close()
    assert told["renders"] == json.loads(json.dumps([asdict(r) for r in scene.mock.ledger()]))
    assert told["requests"] == json.loads(json.dumps([asdict(r) for r in scene.mock.requests()]))


def test_no_key_is_in_the_ledger(own: Scene):
    own.rendered()
    assert own.account.key
    assert own.account.key not in (own.path.parent / "ledger.jsonl").read_text()


@pytest.mark.parametrize(
    "knobs", [{"no_such": 1}, {"overflow": "explode"}, {"rate": 2}, {"rate": {"last": 1}}]
)
def test_a_knob_or_word_that_does_not_exist_is_refused(scene: Scene, knobs: dict[str, Any]):
    with pytest.raises(UsageError, match=next(iter(knobs))):
        scene.mock.set(**knobs)


def test_fail_next_hits_the_next_try_and_no_other(scene: Scene):
    scene.mock.fail_next("error_before")
    assert failing(scene.submit).kind == "unknown"
    scene.submit()
    with pytest.raises(UsageError, match="no chances"):
        scene.mock.fail_next("seed")


# -- submitting ------------------------------------------------------------------------------

REFUSALS = [
    ({"drop_before": True}, "unknown", 0),
    ({"drop_after": True}, "unknown", 1),
    ({"error_before": True, "error_status": [500]}, "unknown", 0),
    ({"error_before": True, "error_status": [502]}, "unknown", 0),
    ({"error_after": True, "error_status": [504]}, "unknown", 1),
    ({"html_after": True}, "unknown", 1),
    ({"invalid": True}, "invalid", 0),
    ({"rate": True}, "rate", 0),
    ({"per_minute": 0}, "rate", 0),
    ({"concurrency": 0}, "concurrency", 0),
    ({"per_day": 0}, "quota", 0),
    ({"balance_microusd": 1}, "no_funds", 0),
    ({"retired": ["*"]}, "provider_gone", 0),
    ({"moderated": True, "moderated_on": "submit"}, "moderated", 0),
    ({"moderated": True, "moderated_on": "submit", "moderated_billed": True}, "moderated", 1),
]


@pytest.mark.parametrize(("knobs", "kind", "accepted"), REFUSALS, ids=lambda v: str(v)[:60])
def test_a_submit_that_fails_says_how(
    scene: Scene, knobs: dict[str, Any], kind: str, accepted: int
):
    error = failing(scene.set(**knobs).submit)
    assert error.kind == kind
    assert len(scene.renders) == accepted
    if kind == "moderated":
        assert error.is_billed == bool(accepted) == bool(scene.billed)


def test_an_answer_later_than_the_time_out_leaves_a_render(scene: Scene):
    scene.set(answer_s=30)
    hasty = MockAdapter(scene.mock.url, scene.mock.capabilities(), timeout_s=0.2)
    sent = hasty.submit(scene.request, key="k", account=scene.account, sink=Path)
    assert failing(run, sent).kind == "unknown"
    assert len(scene.renders) == 1


def test_a_server_that_is_not_there_was_certainly_not_reached(own: Scene):
    own.mock.kill()
    assert failing(own.submit).kind == "not_sent"


@pytest.mark.parametrize("seconds", [1, 10, 120])
@pytest.mark.parametrize("way", ["seconds", "date", "ms", "body", "text", "none"])
def test_retry_after_is_understood_however_it_is_said(scene: Scene, way: str, seconds: int):
    error = failing(scene.set(rate=True, retry_after_s=seconds, retry_after_as=way).submit)
    if way == "date":  # whole seconds on both sides, and never too early
        assert seconds <= error.retry_after_s <= seconds + 1
    else:
        assert error.retry_after_s == (None if way == "none" else seconds)


def test_requests_per_minute_open_again_when_the_minute_is_over(scene: Scene):
    scene.set(per_minute={scene.name: 2})
    scene.submit("k1")
    scene.submit("k2")
    wait_s = failing(scene.submit, "k3").retry_after_s
    assert 50 < wait_s <= 60
    scene.mock.advance(wait_s)
    scene.submit("k3")


def test_a_model_that_was_retired_is_gone_and_others_are_not(scene: Scene):
    scene.set(retired=["gen-1"])
    old, new = (scene.mock.account(scene.name, model=model) for model in ("gen-1", "gen-2"))
    assert failing(scene.submit, account=old).kind == "provider_gone"
    scene.submit(account=new)


def test_a_balance_runs_out_and_counts_what_is_not_billed_yet(scene: Scene):
    scene.set(balance_microusd={scene.name: 600_000}, render_s=60)
    scene.submit("k1")
    scene.submit("k2")
    assert failing(scene.submit, "k3").kind == "no_funds"
    assert scene.billed == 0
    scene.mock.advance(61)
    assert scene.poll(Submitted({"id": scene.renders[0].id})).state == "succeeded"
    assert scene.billed == 500_000


def test_a_key_revoked_in_mid_run_is_refused_and_the_next_one_is_not(scene: Scene):
    scene.set(revoke_after=1)
    submitted = scene.submit()
    assert failing(scene.poll, submitted).kind == "auth"
    scene.account = scene.mock.account(scene.name, generation=2)
    assert scene.poll(submitted).state == "succeeded"
    scene.set(revoke_after=None, key_generation={scene.name: 3})
    assert failing(scene.poll, submitted).kind == "auth"


def test_another_account_does_not_see_a_render(scene: Scene):
    submitted = scene.submit()
    scene.account = scene.mock.account("somebody-else")
    assert scene.poll(submitted).state == "not_found"


# -- limits ----------------------------------------------------------------------------------


def test_too_many_at_once_wait_throttled_where_the_provider_queues(scene: Scene):
    scene.set(concurrency=1, overflow="queue", render_s=60)
    first, second = scene.submit("k1"), scene.submit("k2")
    assert (scene.poll(first).state, scene.poll(second).state) == ("running", "throttled")
    scene.mock.advance(61)
    assert (scene.poll(first).state, scene.poll(second).state) == ("succeeded", "running")
    scene.mock.advance(61)
    assert scene.poll(second).state == "succeeded"
    assert scene.mock.most_at_once(scene.name) == 1


@pytest.mark.parametrize(("scope", "fits"), [("account", False), ("account+model", True)])
def test_limits_may_be_for_each_model(scene: Scene, scope: str, fits: bool):
    scene.set(concurrency=1, limits_scope=scope, render_s=60)
    scene.submit("k1", scene.mock.account(scene.name, model="gen-1"))
    other = scene.mock.account(scene.name, model="gen-2")
    if fits:
        scene.submit("k2", other)
    else:
        assert failing(scene.submit, "k2", other).kind == "concurrency"


def test_two_hundred_at_once_are_all_answered_and_never_pass_the_limit(own: Scene):
    own.set(concurrency=7, overflow="queue", render_s=60, render_spread=0.5)
    ids = {submitted.handle["id"] for submitted in own.submit_many(200)}
    assert len(ids) == 200
    own.mock.advance(200 * 90)
    assert own.billed == 200 * 250_000
    assert own.mock.most_at_once(own.name) == 7
    assert len({render.duration_ms for render in own.renders}) == 200


# -- polling ---------------------------------------------------------------------------------

ENDS = [
    ({"no_outputs": True}, "render_failed", 250_000),
    ({"render_failed": True}, "render_failed", 0),
    ({"render_failed": True, "billed_on": "start"}, "render_failed", 250_000),
    ({"moderated": True}, "moderated", 0),
    ({"moderated": True, "billed_on": "submit"}, "moderated", 0),
    ({"moderated": True, "moderated_billed": True}, "moderated", 250_000),
]


@pytest.mark.parametrize(("knobs", "kind", "billed"), ENDS, ids=lambda v: str(v)[:60])
def test_a_render_that_ends_badly_says_how(
    scene: Scene, knobs: dict[str, Any], kind: str, billed: int
):
    status = scene.set(**knobs).rendered()
    assert status.state == "failed"
    assert status.error is not None
    assert status.error.kind == kind
    assert (status.is_billed, status.cost_microusd, scene.billed) == (billed > 0, billed, billed)


def test_flaky_moderation_passes_at_the_next_try(scene: Scene):
    scene.set(moderated=FIRST)
    assert scene.poll(scene.submit("k1")).state == "failed"
    assert scene.poll(scene.submit("k2")).state == "succeeded"


def test_a_share_of_the_requests_fails_at_every_try(scene: Scene):
    scene.set(moderated={"share": 0.5})
    ends = []
    for n in range(16):
        scene.request = {"n": n}
        ends.append([scene.poll(scene.submit(f"{n}-{again}")).state for again in "ab"])
    assert all(one == other for one, other in ends)
    assert 2 < sum(one == "failed" for one, _ in ends) < 14


@pytest.mark.parametrize("knob", ["poll_drop", "poll_error", "poll_html", "poll_rate"])
def test_a_poll_that_fails_says_nothing_of_the_render(scene: Scene, knob: str):
    submitted = scene.set(**{knob: FIRST}).submit()
    assert failing(scene.poll, submitted).kind == ("rate" if knob == "poll_rate" else "unknown")
    assert scene.poll(submitted).state == "succeeded"


def test_an_unknown_state_is_still_running(scene: Scene):
    status = scene.set(unknown_state=True, render_s=60).rendered()
    assert (status.state, status.stage) == ("running", "POLISHING")


@pytest.mark.parametrize(
    ("how", "shown"),
    [
        ("steady", [0.25, 0.5, 0.75, None]),
        ("backwards", [0.9, 0.45, 0.3, None]),
        ("stuck", [0.0, 0.0, 0.0, None]),
        ("none", [None, None, None, None]),
    ],
)
def test_progress_goes_as_it_likes(scene: Scene, how: str, shown: list[float | None]):
    submitted = scene.set(progress=how, render_polls=3).submit()
    assert [scene.poll(submitted).progress for _ in shown] == shown


def test_ids_are_not_found_at_first_and_forgotten_later(scene: Scene):
    submitted = scene.set(not_found_polls=2, forget_s=60).submit()
    states = [scene.poll(submitted).state for _ in range(3)]
    assert states == ["not_found", "not_found", "succeeded"]
    status = scene.poll(submitted)
    assert status.expires_at_ms == scene.renders[0].states[-1][1] + 60_000
    scene.mock.advance(61)
    assert scene.poll(submitted).state == "not_found"
    assert failing(scene.fetch, status.links[0]).kind == "result_gone"


def test_the_provider_may_hint_at_the_next_poll_and_hide_what_it_costs(scene: Scene):
    submitted = scene.set(poll_after_s=2.5, tells_cost=False).submit()
    status = scene.poll(submitted)
    assert (submitted.poll_after_s, status.poll_after_s) == (2.5, 2.5)
    assert (submitted.cost_microusd, status.cost_microusd, status.is_billed) == (None, None, None)


@pytest.mark.parametrize(
    ("knobs", "answer", "billed"),
    [
        ({}, "cancelled", 0),
        ({"cancel_billed": True}, "cancelled", 250_000),
        ({"billed_on": "submit"}, "cancelled", 250_000),
        ({"cancel_is_async": True}, "requested", 0),
        ({"cancel": "queued_only"}, "too_late", 0),
        ({"cancel": "none"}, "unsupported", 0),
        ({"render_s": 0}, "too_late", 250_000),
    ],
    ids=str,
)
def test_cancel_does_what_the_provider_allows(
    scene: Scene, knobs: dict[str, Any], answer: str, billed: int
):
    submitted = scene.set(**({"render_s": 60} | knobs)).submit()
    assert run(scene.adapter.cancel(submitted.handle, account=scene.account)) == answer
    if answer in ("cancelled", "requested"):
        assert scene.poll(submitted).state == "cancelled"
    assert scene.billed == billed


# -- results ---------------------------------------------------------------------------------

WAYS = ["length", "gzip", "chunked", "close"]


@pytest.mark.parametrize("way", WAYS)
def test_a_download_is_whole_however_it_is_sent(scene: Scene, way: str):
    status = scene.set(download=way, slow_s=0.05).rendered()
    fetched = scene.fetch(status.links[0])
    assert scene.path.read_bytes() == scene.mock.content(scene.request)
    assert (fetched.etag is None) == (way == "gzip")


@pytest.mark.parametrize("way", WAYS)
def test_a_truncated_download_is_noticed_and_gone_on_from(scene: Scene, way: str):
    status = scene.set(download=way, truncate=FIRST).rendered()
    error = failing(scene.fetch, status.links[0])
    assert error.kind == "unknown"
    half = scene.path.stat().st_size
    assert half < 4096
    scene.fetch(status.links[0], etag=error.facts["etag"])
    assert scene.path.read_bytes() == scene.mock.content(scene.request)
    last = [r for r in scene.mock.requests() if r.what == "file"][-1]
    assert last.status == (200 if way == "gzip" else 206)


@pytest.mark.parametrize(
    ("knobs", "answers"),
    [
        ({"etag": "changing"}, [200, 200]),
        ({"etag": "rude"}, [200, 206, 200]),
        ({"ranges": False}, [200, 200]),
    ],
    ids=str,
)
def test_parts_of_two_files_are_never_put_together(
    scene: Scene, knobs: dict[str, Any], answers: list[int]
):
    status = scene.set(truncate=FIRST, **knobs).rendered()
    error = failing(scene.fetch, status.links[0])
    scene.fetch(status.links[0], etag=error.facts["etag"])
    [render] = scene.renders
    versions = [content(render.fingerprint, 0, 4096, version) for version in range(4)]
    assert scene.path.read_bytes() in versions
    files = [r for r in scene.mock.requests() if r.render == render.id]
    assert [r.status for r in files if r.what == "file"] == answers


def test_a_wrong_length_is_noticed_where_the_provider_told_the_size(scene: Scene):
    status = scene.set(wrong_length=FIRST).rendered()
    assert failing(scene.fetch, status.links[0]).kind == "unknown"
    scene.fetch(status.links[0])
    assert scene.path.stat().st_size == 4096


@pytest.mark.parametrize(
    ("knob", "kind"), [("file_error", "unknown"), ("file_html", "result_gone")]
)
def test_a_download_that_is_no_file_is_none(scene: Scene, knob: str, kind: str):
    status = scene.set(**{knob: True}).rendered()
    assert failing(scene.fetch, status.links[0]).kind == kind


@pytest.mark.parametrize("status_code", [403, 404, 410])
def test_an_expired_link_is_gone_and_polling_gives_a_fresh_one(scene: Scene, status_code: int):
    submitted = scene.set(link_ttl_s=60, expired_status=status_code).submit()
    old = scene.poll(submitted).links[0]
    scene.mock.advance(61)
    assert failing(scene.fetch, old).kind == "result_gone"
    scene.fetch(scene.poll(submitted).links[0])


def test_where_links_are_not_refreshed_an_expired_one_stays_so(scene: Scene):
    submitted = scene.set(link_ttl_s=60, fresh_links=False).submit()
    assert scene.poll(submitted).expires_at_ms == scene.renders[0].states[-1][1] + 60_000
    scene.mock.advance(61)
    assert failing(scene.fetch, scene.poll(submitted).links[0]).kind == "result_gone"


def test_a_link_that_was_tampered_with_opens_nothing(scene: Scene):
    link = scene.set(link_ttl_s=60).rendered().links[0]
    later = link.url.replace("sig=", "sig=9")
    assert failing(scene.fetch, Link(later)).kind == "result_gone"


@pytest.mark.parametrize("needs_key", [True, False])
@pytest.mark.parametrize("files", ["api", "redirect", "cdn"])
def test_a_key_goes_to_the_providers_host_only_and_only_if_needed(
    scene: Scene, files: str, needs_key: bool
):
    status = scene.set(files=files, download_needs_key=needs_key).rendered()
    scene.fetch(status.links[0])
    seen = [(r.host, r.has_key) for r in scene.mock.requests() if r.what == "file"]
    expected = {
        "api": [("api", needs_key)],
        "redirect": [("api", needs_key), ("cdn", False)],
        "cdn": [("cdn", False)],
    }
    assert seen[-len(expected[files]) :] == expected[files]


def test_several_outputs_of_any_size_and_ending(scene: Scene):
    status = scene.set(outputs=3, size=10, suffix=".mp4", tells_size=False).rendered()
    assert [(link.suffix, link.size) for link in status.links] == [(".mp4", None)] * 3
    for number, link in enumerate(status.links):
        scene.fetch(link)
        assert scene.path.read_bytes() == scene.mock.content(scene.request, number)


# -- the seven kinds -------------------------------------------------------------------------


def lose_the_answer(scene: Scene, kind: str) -> str:
    """A render was accepted and its answer lost; returns its id."""
    scene.set(idempotency=kind, drop_after=FIRST, render_s=60)
    assert failing(scene.submit).kind == "unknown"
    scene.set(drop_after=False)
    [render] = scene.renders
    return render.public_id


@pytest.mark.parametrize("kind", ["replay", "replay_blind"])
def test_kind_replay_gives_the_original_for_the_same_key(scene: Scene, kind: str):
    lost = lose_the_answer(scene, kind)
    assert scene.find() == []
    assert scene.submit().handle == {"id": lost}
    assert len(scene.renders) == 1
    scene.submit("key-2")
    assert len(scene.renders) == 2


@pytest.mark.parametrize("kind", ["replay", "replay_blind"])
def test_kind_replay_never_passes_an_old_render_off_as_a_changed_one(scene: Scene, kind: str):
    lost = lose_the_answer(scene, kind)
    scene.request = {"prompt": "something else"}
    error = failing(scene.submit)
    assert error.kind == "invalid"
    assert error.facts.get("handle") == ({"id": lost} if kind == "replay_blind" else None)
    assert len(scene.renders) == 1


def test_kind_replay_forgets_a_key_when_its_time_is_over(scene: Scene):
    scene.set(idempotency="replay", key_ttl_s=60)
    scene.submit()
    scene.mock.advance(61)
    scene.submit()
    assert len(scene.renders) == 2


def test_kind_reject_says_a_key_was_used_but_not_for_what(scene: Scene):
    lost = lose_the_answer(scene, "reject")
    error = failing(scene.submit)
    assert error.kind == "key_reused"
    assert lost not in repr(error.facts) + str(error)
    assert scene.find() == [lost]
    assert len(scene.renders) == 1


def test_kind_client_id_is_polled_by_our_own_id_and_bills_a_blind_resend(scene: Scene):
    scene.set(idempotency="client_id")
    assert scene.find() == []
    assert lose_the_answer(scene, "client_id") == "key-1"
    assert scene.find() == ["key-1"]
    assert scene.submit().handle == {"id": "key-1"}
    assert len(scene.renders) == 2


def test_kind_tag_is_found_by_our_key_with_certainty(scene: Scene):
    lost = lose_the_answer(scene, "tag")
    finding = scene.adapter.find({}, key="key-1", since_ms=0, account=scene.account)
    [match] = run(finding)
    assert (match.handle, match.is_certain) == ({"id": lost}, True)
    assert match.created_ms == scene.renders[0].created_ms
    assert scene.find("key-2") == []
    scene.submit()
    assert len(scene.renders) == 2


def test_kind_list_is_found_by_what_it_looks_like(scene: Scene):
    lost = lose_the_answer(scene, "list")
    scene.submit("key-2")
    assert len(scene.find("whatever")) == 2
    assert scene.find()[-1] == lost
    ask = scene.adapter.find
    since_ms = scene.renders[-1].created_ms + 1
    found = ask(scene.request, key="key-1", since_ms=since_ms, account=scene.account)
    assert run(found) == []
    scene.request = {"prompt": "another"}
    assert scene.find() == []


def test_kind_list_reads_all_pages_and_shows_a_render_after_a_while(own: Scene):
    own.set(idempotency="list", list_lag_s=60)
    own.submit_many(101)
    own.request = {"n": 1}
    assert own.find() == []
    own.mock.advance(61)
    assert len(own.find()) == 1
    assert sum(request.what == "list" for request in own.mock.requests()) == 1 + 2


def test_kind_none_knows_nothing_and_bills_a_blind_resend(scene: Scene):
    lose_the_answer(scene, "none")
    assert scene.find() == []
    scene.submit()
    assert len(scene.renders) == 2


# -- crashes, ours and its own ---------------------------------------------------------------


def test_the_ledger_survives_a_kill_between_accept_and_answer(own: Scene):
    own.set(die_after=FIRST, render_s=60)
    assert failing(own.submit).kind == "unknown"
    assert own.mock._process.wait(10) == -signal.SIGKILL
    [before] = own.renders
    url = own.mock.url
    own.mock.restart()
    assert own.mock.url == url
    assert own.submit().handle == {"id": before.id}
    own.mock.advance(61)
    assert own.poll(Submitted({"id": before.id})).state == "succeeded"
    assert (len(own.renders), own.billed) == (1, 250_000)


def test_renders_go_on_while_the_server_is_down(own: Scene):
    own.set(concurrency=1, overflow="queue", render_s=60)
    first, second = own.submit("k1"), own.submit("k2")
    own.mock.kill()
    own.mock.advance(500)
    own.mock.restart()
    assert (own.poll(first).state, own.poll(second).state) == ("succeeded", "succeeded")
    one, other = (dict(render.states) for render in own.renders)
    assert other["RUNNING"] == one["SUCCEEDED"] == one["RUNNING"] + 60_000
    assert own.billed == 500_000


def test_a_line_that_was_torn_by_a_crash_is_dropped(own: Scene):
    own.rendered()
    own.mock.kill()
    path = own.path.parent / "ledger.jsonl"
    with path.open("a") as file:
        file.write('["Render", {"id": "r_')
    assert len(Ledger(path).renders) == 1
    own.mock.restart()
    own.submit("k2")
    assert len(own.renders) == 2


def test_the_server_ends_when_its_parent_was_killed(tmp_path: Path):
    code = (
        "import os, signal, sys; from vqkit.mock import MockProvider; mock = MockProvider();"
        "print(mock.url, flush=True); sys.stdin.read(1); os.kill(os.getpid(), signal.SIGKILL)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"TMPDIR": str(tmp_path)},
    )
    with parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        address = urlsplit(parent.stdout.readline().decode().strip())
        assert address.hostname == "127.0.0.1"
        with socket.create_connection((address.hostname, address.port or 0), timeout=30) as line:
            parent.stdin.write(b".")
            parent.stdin.close()
            try:  # a process that ends closes its connections, or resets them
                left = line.recv(1)
            except ConnectionResetError:
                left = b""
            assert left == b""


def outcomes(prompts: list[str], seed: int, **restarting: bool) -> dict[str, Any]:
    """What became of each prompt, tried three times."""
    chances = dict.fromkeys(["drop_before", "error_after", "moderated", "poll_error"], 0.3)
    spread = {"cost_spread": 0.5, "render_s": 5, "render_spread": 0.9, "idempotency": "none"}
    with MockProvider(seed=seed, **spread, **chances) as mock:
        adapter, account = mock.adapter(), mock.account("a")
        came: dict[str, list[Any]] = {prompt: [] for prompt in prompts}
        for prompt, again in itertools.product(prompts, "abc"):
            if restarting and (prompt, again) == (prompts[1], "b"):
                mock.restart()
            sent = adapter.submit({"prompt": prompt}, key=again, account=account, sink=Path)
            try:
                came[prompt].append(run(sent).handle)
            except ProviderError as error:
                came[prompt].append((error.kind, error.facts.get("status")))
        made = [(r.id, r.cost_microusd, r.duration_ms, r.ends) for r in mock.ledger()]
        return came | {"": sorted(made)}


def test_a_run_replays_in_any_order_and_over_a_restart():
    prompts = ["a fox", "a crane", "an otter 🦦", "CON"]
    first = outcomes(prompts, 1)
    assert outcomes(prompts[::-1], 1, restarting=True) == first
    assert outcomes(prompts, 2) != first


def test_gzip_is_really_gzip_on_the_wire(scene: Scene):
    link = urlsplit(scene.set(download="gzip").rendered().links[0].url)
    connection = http.client.HTTPConnection(link.netloc)
    connection.request("GET", f"{link.path}?{link.query}")
    answer = connection.getresponse()
    assert gzip.decompress(answer.read()) == scene.mock.content(scene.request)
    connection.close()
