"""A render provider that renders nothing: plain HTTP on loopback, every fault at a knob.

``python -m vqkit.mockserver --ledger FILE --config JSON [--port 0]`` prints its URL, then the
URL of its second host, and ends when its standard input closes. It imports nothing of vqkit
and keeps its own books: one JSON line an event, synced before a render is acknowledged, so
that what was billed can be read after any crash, ours or its own. Every chance is drawn from
the seed, the request's content and how often that was drawn before, never from the order of
arrival: a run replays. See `Knobs` for what can be turned, live, by ``PUT /_control``.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gzip
import hashlib
import hmac
import json
import math
import os
import random
import signal
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from email.utils import formatdate
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl, quote, unquote, urlsplit

__all__ = ["Knobs", "Ledger", "Render", "Request", "account_key", "content", "fingerprint"]

# True, a chance from 0 to 1 at each try, or {"share": of the requests, "first": of their tries}.
Chance: TypeAlias = bool | float | Mapping[str, float]
# One for all accounts, or {account: limit}; None is no limit.
Limit: TypeAlias = int | None | Mapping[str, int]
JSON_TYPE = {"Content-Type": "application/json"}
PAGE = b"<!doctype html><title>Error</title><h1>Something went wrong</h1>"
OVER = ("SUCCEEDED", "FAILED", "CANCELLED")


@dataclass(frozen=True)
class Knobs:
    """All that can be turned. Times in seconds, money in micro-dollars; see `Chance`, `Limit`."""

    seed: int = 0
    idempotency: Literal["replay", "replay_blind", "reject", "client_id", "tag", "list", "none"] = (
        "replay"
    )
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
        hints = _hints()
        for name, value in changes.items():
            if name not in hints:
                raise ValueError(f"no knob named {name!r}; known: {', '.join(sorted(hints))}")
            if get_origin(hints[name]) is Literal and value not in get_args(hints[name]):
                raise ValueError(f"{name}={value!r}; expected one of {get_args(hints[name])}")
            if hints[name] == Chance and not _is_chance(value):
                raise ValueError(f'{name}={value!r}; expected True, 0 to 1, or {{"first": 1}}')
        return replace(self, **changes)


@functools.cache
def _hints() -> dict[str, Any]:
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
    return _digest("request", request, model)


def content(of: str, number: int, size: int, version: int = 0) -> bytes:
    """The bytes of a result, by its request's fingerprint."""
    return random.Random(f"{of}/{number}/{version}").randbytes(size)


def _digest(*parts: Any) -> str:
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:20]


@dataclass
class Call:
    """A request on its way through the server."""

    host: str
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    account: str | None = None
    what: str = "other"
    render: str | None = None
    fault: str | None = None
    rolls: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Answer:
    """What goes back. `cut` bytes and then the end of the connection; None sends all."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=lambda: dict(JSON_TYPE))
    coding: str = "length"
    cut: int | None = None
    slow_s: float = 0.0
    wait_s: float = 0.0


class Refused(Exception):
    """An answer that is an error; status 0 is none at all, the connection just ends."""

    def __init__(self, status: int, code: str, message: str = "", **more: Any) -> None:
        super().__init__(message)
        headers = more.pop("headers", {})
        body = {"error": {"code": code, "message": message or code, **more}}
        self.answer = Answer(status, json.dumps(body).encode(), {**JSON_TYPE, **headers})
        if code == "html":
            self.answer = Answer(status, PAGE, {"Content-Type": "text/html"})


class Api:
    """What the provider decides; nothing here waits, so each request is one atom."""

    def __init__(self, ledger: Ledger, knobs: Knobs) -> None:
        self.ledger, self.knobs = ledger, knobs
        self.hosts = {"api": "", "cdn": ""}
        self.next_hits: Counter[str] = Counter()
        self._sent: defaultdict[str, deque[int]] = defaultdict(deque)
        self._by_id = {r.public_id: r for r in ledger.renders.values()}
        self._open = {r.id: r for r in ledger.renders.values() if r.state not in OVER}

    def now_ms(self) -> int:
        """The provider's clock."""
        return time.time_ns() // 1_000_000 + round(self.knobs.clock_offset_s * 1000)

    # -- chance

    def _u(self, call: Call, name: str, of: str) -> float:
        drawn = _digest(self.knobs.seed, name, of, self.ledger.counts[name, of])
        call.rolls.append((name, of))
        return int(drawn[:13], 16) / 16**13

    def _hit(self, call: Call, name: str, of: str) -> bool:
        chance: Chance = getattr(self.knobs, name)
        if self.next_hits[name] > 0:
            self.next_hits[name] -= 1
            is_hit = True
        elif isinstance(chance, Mapping):
            tries = self.ledger.counts[name, of]
            chosen = int(_digest(self.knobs.seed, "share", name, of)[:13], 16) / 16**13
            is_hit = tries < chance.get("first", math.inf) and chosen < chance.get("share", 1)
            call.rolls.append((name, of))
        else:
            is_hit = bool(chance) and self._u(call, name, of) < chance
        if is_hit:
            call.fault = name
        return is_hit

    def _spread(self, call: Call, base: float, share: float, name: str, of: str) -> float:
        return base * (1 + share * (2 * self._u(call, name, of) - 1)) if share else base

    # -- routes

    def handle(self, call: Call) -> Answer:
        """The answer to a request, with all it changes noted in the ledger."""
        self.advance()
        parts = [unquote(part) for part in call.path.strip("/").split("/")]
        try:
            match call.method, parts:
                case "GET", ["v1", "files", render_id, number] if number.isdigit():
                    return self._file(call, render_id, int(number))
                case _ if call.host == "cdn":
                    raise Refused(404, "no_such_path")
                case "POST", ["v1", "renders"]:
                    return self._submit(call)
                case "GET", ["v1", "renders"]:
                    return self._list(call)
                case "GET", ["v1", "renders", render_id]:
                    return self._poll(call, render_id)
                case "POST", ["v1", "renders", render_id, "cancel"]:
                    return self._cancel(call, render_id)
                case "GET", ["v1", "balance"]:
                    account = self._account(call)
                    balance, spent = _of(self.knobs.balance_microusd, account), self._spent(account)
                    left = None if balance is None else balance - spent
                    return self._json({"balance_microusd": left, "spent_microusd": spent})
            raise Refused(404, "no_such_path")
        except Refused as refused:
            return refused.answer
        finally:
            self.advance()

    def _account(self, call: Call) -> str:
        token = call.headers.get("authorization", "").removeprefix("Bearer ")
        start, _, rest = token.removeprefix("mock.").rpartition(".")
        quoted, _, generation = start.rpartition(".")
        call.account = account = unquote(quoted)
        wanted = self.knobs.key_generation.get(account, 1)
        if (after := self.knobs.revoke_after) is not None:
            wanted += sum(r.account == account for r in self.ledger.renders.values()) >= after
        if not rest or generation != str(wanted) or token != account_key(account, wanted):
            raise Refused(401, "unauthorized", "this key is not, or no longer, accepted")
        if "*" in self.knobs.retired:
            raise Refused(410, "provider_retired", "this service has ended")
        return account

    def _rate(self, call: Call, account: str, of: str, name: str) -> None:
        now, sent = self.now_ms(), self._sent[account]
        while sent and sent[0] <= now - 60_000:
            sent.popleft()
        limit = _of(self.knobs.per_minute, account) if name == "rate" else None
        wait_s = 10.0
        if limit is not None and len(sent) >= limit:
            wait_s = (sent[0] + 60_000 - now) / 1000 if sent else 60.0
            call.fault = "per_minute"
        elif not self._hit(call, name, of):
            if name == "rate":
                sent.append(now)
            return
        wait_s = wait_s if self.knobs.retry_after_s is None else self.knobs.retry_after_s
        headers, more, text = {}, {}, "too many requests"
        match self.knobs.retry_after_as:
            case "seconds":
                headers["Retry-After"] = str(math.ceil(wait_s))
            case "date":
                at_s = math.ceil(now / 1000 + wait_s)
                headers["Retry-After"] = formatdate(at_s, usegmt=True)
            case "ms":
                headers["retry-after-ms"] = str(math.ceil(wait_s * 1000))
            case "body":
                more["retry_after"] = wait_s
            case "text":
                text += f"; your limit resets in ~{math.ceil(wait_s)}s"
        raise Refused(429, "rate_limited", text, headers=headers, **more)

    def _submit(self, call: Call) -> Answer:
        knobs, call.what = self.knobs, "submit"
        account = self._account(call)
        try:
            body = json.loads(call.body)
            request, model = body["input"], body.get("model")
            of = fingerprint(request, model)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Refused(400, "invalid_request", f"expected an object with 'input': {error!r}")
        self._rate(call, account, of, "rate")
        if self._hit(call, "drop_before", of):
            raise Refused(0, "dropped")
        if self._hit(call, "error_before", of):
            raise Refused(self._error_status(call, of), "server_error")
        if model in knobs.retired:
            raise Refused(410, "model_retired", f"the model {model} was retired")
        if self._hit(call, "invalid", of):
            raise Refused(422, "invalid_request", "duration: out of range")
        render = self._known(account, call.headers.get("idempotency-key"), of)
        is_replay = render is not None
        if render is None:
            render = self._accept(call, account, body, of)
        call.render = render.id
        faults = ("die_after", "drop_after", "error_after", "html_after")
        fault = next((name for name in faults if self._hit(call, name, of)), None)
        wait_s = self._spread(call, knobs.answer_s, knobs.answer_spread, "answer_s", of)
        reply = {"id": render.public_id, "created_at": render.created_ms}
        if knobs.tells_cost:
            reply["cost_microusd"] = render.cost_microusd
        if knobs.poll_after_s is not None:
            reply["poll_after_ms"] = round(knobs.poll_after_s * 1000)
        if knobs.idempotency == "replay_blind":
            reply["request"] = render.request
        answer = self._json(reply, 201)
        if is_replay and knobs.idempotency == "replay":
            answer.headers["Idempotent-Replayed"] = "true"
        if fault == "drop_after":
            answer = Refused(0, "dropped").answer
        elif fault == "error_after":
            answer = Refused(self._error_status(call, of), "server_error").answer
        elif fault == "html_after":
            answer = Refused(200, "html").answer
        elif knobs.moderated_on == "submit" and render.ends == "moderated":
            answer = _moderated(is_billed=knobs.moderated_billed).answer
        answer.wait_s = wait_s
        return answer

    def _error_status(self, call: Call, of: str) -> int:
        choices = self.knobs.error_status
        return choices[int(self._u(call, "error_status", of) * len(choices))]

    def _known(self, account: str, key: str | None, of: str) -> Render | None:
        kind, ttl_s = self.knobs.idempotency, self.knobs.key_ttl_s
        if key is None or kind not in ("replay", "replay_blind", "reject"):
            return None
        since = -math.inf if ttl_s is None else self.now_ms() - ttl_s * 1000
        for render in self.ledger.renders.values():
            if (render.account, render.key) == (account, key) and render.created_ms > since:
                if kind == "reject":
                    raise Refused(409, "idempotency_key_reused", "list your renders instead")
                if kind == "replay" and render.fingerprint != of:
                    raise Refused(422, "idempotency_mismatch", "the key had another request")
                return render
        return None

    def _accept(self, call: Call, account: str, body: dict[str, Any], of: str) -> Render:
        knobs, now, model = self.knobs, self.now_ms(), body.get("model")
        cost = round(self._spread(call, knobs.cost_microusd, knobs.cost_spread, "cost", of))
        balance, per_day = _of(knobs.balance_microusd, account), _of(knobs.per_day, account)
        if balance is not None and self._spent(account) + cost > balance:
            raise Refused(402, "insufficient_balance", "top up to go on")
        day = now // 86_400_000
        mine = [r for r in self.ledger.renders.values() if r.account == account]
        if per_day is not None and sum(r.created_ms // 86_400_000 == day for r in mine) >= per_day:
            left_s = math.ceil(((day + 1) * 86_400_000 - now) / 1000)
            raise Refused(429, "daily_limit", headers={"Retry-After": str(left_s)})
        is_full = not self._has_slot(account, model)
        if is_full and knobs.overflow == "reject":
            call.fault = "concurrency"
            raise Refused(429, "too_many_concurrent", "wait until a render of yours is over")
        fates = ("moderated", "render_failed", "no_outputs")
        ends = next((name for name in fates if self._hit(call, name, of)), "succeeded")
        refused = ends == "moderated" and knobs.moderated_on == "submit"
        if refused and not knobs.moderated_billed:
            raise _moderated(is_billed=False)
        length_s = self._spread(call, knobs.render_s, knobs.render_spread, "render_s", of)
        serial = self.ledger.counts["accept", of]
        call.rolls.append(("accept", of))
        render = Render(
            id="r_" + _digest(knobs.seed, "id", of, serial),
            account=account,
            model=model,
            key=call.headers.get("idempotency-key"),
            tag=body.get("tag"),
            client_id=body.get("id") if knobs.idempotency == "client_id" else None,
            request=body["input"],
            fingerprint=of,
            created_ms=now,
            cost_microusd=cost,
            duration_ms=0 if refused else round(length_s * 1000),
            ends=ends,
            billed_microusd=cost if knobs.billed_on == "submit" else 0,
            states=[("THROTTLED", now)],
        )
        self.ledger.add("render", asdict(render))
        render = self.ledger.renders[render.id]
        # ComfyUI does so too: an id used twice is rendered twice, and billed twice.
        self._by_id[render.public_id] = self._open[render.id] = render
        if not is_full or refused:
            self._start(render, now)
        return render

    def _spent(self, account: str) -> int:
        return sum(
            r.cost_microusd if r.id in self._open else r.billed_microusd
            for r in self.ledger.renders.values()
            if r.account == account
        )

    # -- rendering

    def _has_slot(self, account: str, model: str | None) -> bool:
        limit = _of(self.knobs.concurrency, account)
        by_model = self.knobs.limits_scope == "account+model"
        taken = sum(
            r.account == account and r.state != "THROTTLED" and (not by_model or r.model == model)
            for r in self._open.values()
        )
        return limit is None or taken < limit

    def _move(self, render: Render, state: str, at_ms: int, billed: int) -> None:
        facts = {"id": render.id, "state": state, "at_ms": at_ms, "billed_microusd": billed}
        self.ledger.add("state", facts)
        if state in OVER:
            del self._open[render.id]

    def _start(self, render: Render, at_ms: int) -> None:
        is_billed = self.knobs.billed_on == "start"
        self._move(render, "RUNNING", at_ms, render.cost_microusd if is_billed else 0)

    def _end(self, render: Render, at_ms: int) -> None:
        billed, cost, knobs = render.billed_microusd, render.cost_microusd, self.knobs
        if render.state == "CANCELLING":
            self._move(render, "CANCELLED", at_ms, cost if knobs.cancel_billed else billed)
        elif render.ends == "moderated":
            self._move(render, "FAILED", at_ms, cost if knobs.moderated_billed else 0)
        elif render.ends == "render_failed":
            self._move(render, "FAILED", at_ms, billed)
        else:
            self._move(render, "SUCCEEDED", at_ms, cost)

    def advance(self) -> float | None:
        """Ends and starts what is due, also what fell due while the server was down.

        Returns in how many seconds the next is due.
        """
        now, polls = self.now_ms(), self.knobs.render_polls
        at_ms = now
        while True:
            for render in list(self._open.values()):
                if render.state == "THROTTLED" and self._has_slot(render.account, render.model):
                    self._start(render, max(at_ms, render.created_ms))
            busy = [r for r in self._open.values() if r.state != "THROTTLED"]
            busy = [r for r in busy if r.state == "CANCELLING" or r.polls >= polls]
            soonest = min(busy, key=lambda r: r.due_ms, default=None)
            if soonest is None or soonest.due_ms > now:
                return None if soonest is None else (soonest.due_ms - now) / 1000
            at_ms = now if polls else soonest.due_ms
            self._end(soonest, at_ms)

    # -- polling

    def _find(self, account: str, render_id: str) -> Render:
        render = self._by_id.get(render_id)
        if render is None or render.account != account or self._is_forgotten(render):
            raise Refused(404, "not_found", "no such render")
        return render

    def _is_forgotten(self, render: Render) -> bool:
        at_ms = self._forgotten_ms(render)
        return at_ms is not None and at_ms <= self.now_ms()

    def _forgotten_ms(self, render: Render) -> int | None:
        if self.knobs.forget_s is None or render.state not in OVER:
            return None
        return render.states[-1][1] + round(self.knobs.forget_s * 1000)

    def _poll(self, call: Call, render_id: str) -> Answer:
        knobs, call.what = self.knobs, "poll"
        account = self._account(call)
        render = self._find(account, render_id)
        call.render = render.id
        self._rate(call, account, render.fingerprint, "poll_rate")
        if self._hit(call, "poll_drop", render.fingerprint):
            raise Refused(0, "dropped")
        if self._hit(call, "poll_error", render.fingerprint):
            raise Refused(self._error_status(call, render.fingerprint), "server_error")
        if self._hit(call, "poll_html", render.fingerprint):
            raise Refused(200, "html")
        if render.polls < knobs.not_found_polls:
            call.fault = "not_found_polls"
            raise Refused(404, "not_found", "no such render")
        return self._json(self._view(call, render))

    def _view(self, call: Call, render: Render) -> dict[str, Any]:
        knobs, state = self.knobs, render.state
        view: dict[str, Any] = {
            "id": render.public_id,
            "state": state,
            "created_at": render.created_ms,
        }
        if state == "RUNNING":
            if self._hit(call, "unknown_state", render.fingerprint):
                view["state"] = "POLISHING"
            if knobs.progress != "none":
                view["progress"] = self._progress(render)
        if knobs.poll_after_s is not None:
            view["poll_after_ms"] = round(knobs.poll_after_s * 1000)
        if state not in OVER:
            return view
        if knobs.tells_cost:
            view["cost_microusd"] = render.billed_microusd
            view["billed"] = render.billed_microusd > 0
        if render.ends in ("moderated", "render_failed") and state == "FAILED":
            code = "content_policy" if render.ends == "moderated" else "internal"
            view["error"] = {"code": code, "message": f"the render ended: {code}"}
        if state == "SUCCEEDED":
            count = 0 if render.ends == "no_outputs" else knobs.outputs
            view["outputs"] = [self._link(render, number) for number in range(count)]
            view["expires_at"] = self._forgotten_ms(render)
            if not knobs.fresh_links and knobs.link_ttl_s is not None:
                view["expires_at"] = self._link_end_ms(render)
        return view

    def _progress(self, render: Render) -> float:
        if self.knobs.progress == "backwards":
            return round(0.9 / (render.polls + 1), 3)
        if self.knobs.progress == "stuck":
            return 0.0
        if self.knobs.render_polls:
            return round(render.polls / (self.knobs.render_polls + 1), 3)
        return round(max(0.0, 1 - (render.due_ms - self.now_ms()) / (render.duration_ms or 1)), 3)

    def _link_end_ms(self, render: Render) -> int | None:
        start = self.now_ms() if self.knobs.fresh_links else render.states[-1][1]
        ttl_s = self.knobs.link_ttl_s
        return None if ttl_s is None else start + round(ttl_s * 1000)

    def _link(self, render: Render, number: int) -> dict[str, Any]:
        base = self.hosts["cdn" if self.knobs.files == "cdn" else "api"]
        path = f"/v1/files/{quote(render.public_id, safe='')}/{number}"
        until = self._link_end_ms(render)
        signature = _digest("link", render.public_id, number, until)
        link = {"url": f"{base}{path}?sig={signature}&until={until or ''}"}
        link["suffix"] = self.knobs.suffix
        return {**link, "size": self.knobs.size} if self.knobs.tells_size else link

    def _list(self, call: Call) -> Answer:
        call.what, kind, query = "list", self.knobs.idempotency, call.query
        account = self._account(call)
        if "tag" in query and kind == "tag":
            wanted = [r for r in self.ledger.renders.values() if r.tag == query["tag"]]
        elif "tag" not in query and kind in ("list", "reject"):
            since = int(query.get("since", 0))
            wanted = [r for r in self.ledger.renders.values() if r.created_ms >= since]
        else:
            raise Refused(404, "no_such_path", "renders cannot be listed that way")
        before = self.now_ms() - self.knobs.list_lag_s * 1000
        shown = [
            r
            for r in reversed(wanted)
            if r.account == account and r.created_ms <= before and not self._is_forgotten(r)
        ]
        ids = [r.public_id for r in shown]
        first = ids.index(query["after"]) + 1 if query.get("after") in ids else 0
        limit = min(int(query.get("limit", 20)), 100)
        items = [
            {"id": r.public_id, "state": r.state, "created_at": r.created_ms, "model": r.model}
            | ({"request": r.request} if kind != "tag" else {"tag": r.tag})
            for r in shown[first : first + limit]
        ]
        return self._json({"items": items, "has_more": first + limit < len(shown)})

    def _cancel(self, call: Call, render_id: str) -> Answer:
        knobs, call.what = self.knobs, "cancel"
        render = self._find(self._account(call), render_id)
        call.render = render.id
        if knobs.cancel == "none":
            raise Refused(405, "not_supported", "renders cannot be cancelled")
        is_waiting = render.state == "THROTTLED"
        if render.state in OVER or (knobs.cancel == "queued_only" and not is_waiting):
            raise Refused(409, "too_late", f"the render is {render.state}")
        self._move(render, "CANCELLING", self.now_ms(), render.billed_microusd)
        if not knobs.cancel_is_async:
            self._end(render, self.now_ms())
        return self._json(
            {"id": render_id, "state": render.state}, 202 - 2 * (render.state in OVER)
        )

    # -- results

    def _file(self, call: Call, render_id: str, number: int) -> Answer:
        knobs, call.what = self.knobs, "file"
        if knobs.download_needs_key and call.host == "api":
            self._account(call)
        render, until = self._by_id.get(render_id), call.query.get("until", "")
        end_ms = int(until) if until.isdigit() else None
        signature = _digest("link", render_id, number, end_ms)
        if render is None or self._is_forgotten(render):
            raise Refused(404, "not_found", "no such file")
        call.render = render.id
        if not hmac.compare_digest(signature, call.query.get("sig", "")):
            raise Refused(403, "bad_signature")
        if end_ms is not None and end_ms <= self.now_ms():
            raise Refused(knobs.expired_status, "link_expired", "this link has expired")
        of = render.fingerprint
        if self._hit(call, "file_error", of):
            raise Refused(self._error_status(call, of), "server_error")
        if self._hit(call, "file_html", of):
            raise Refused(200, "html")
        if knobs.files == "redirect" and call.host == "api":
            query = f"sig={signature}&until={until}"
            raise Refused(302, "", headers={"Location": f"{self.hosts['cdn']}{call.path}?{query}"})
        data = content(of, number, knobs.size, render.fetches if "e" not in knobs.etag[1:5] else 0)
        return self._download(call, of, data)

    def _download(self, call: Call, of: str, data: bytes) -> Answer:
        knobs, size = self.knobs, len(data)
        etag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
        headers = {"Content-Type": "application/octet-stream"}
        if knobs.etag != "none":
            headers["ETag"] = etag
        answer = Answer(200, data, headers, knobs.download, slow_s=knobs.slow_s)
        start = call.headers.get("range", "").removeprefix("bytes=").removesuffix("-")
        is_same = call.headers.get("if-range") in (None, etag) or knobs.etag == "rude"
        if start.isdigit() and knobs.ranges and is_same and knobs.download != "gzip":
            answer.status, answer.body = 206, data[int(start) :]
            headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
            if int(start) >= size:
                answer.status, answer.coding = 416, "length"
                headers["Content-Range"] = f"bytes */{size}"
                return answer
        if knobs.download == "gzip":
            headers["Content-Encoding"] = "gzip"
            answer.body, answer.coding = gzip.compress(data, mtime=0), "length"
        if self._hit(call, "truncate", of):
            answer.cut = len(answer.body) // 2
        elif self._hit(call, "wrong_length", of):
            headers["Content-Length"] = str(len(answer.body) // 2)
        return answer

    def _json(self, body: dict[str, Any], status: int = 200) -> Answer:
        return Answer(status, json.dumps(body, ensure_ascii=False).encode())


def _of(limit: Limit, account: str) -> int | None:
    return limit.get(account) if isinstance(limit, Mapping) else limit


def _moderated(*, is_billed: bool) -> Refused:
    return Refused(422, "content_policy", "this prompt is not allowed", billed=is_billed)


class Server:
    """Speaks HTTP/1.1 for `Api` on two hosts, and writes the ledger before it answers."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self._timer: asyncio.TimerHandle | None = None

    async def connected(
        self, host: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serves one connection until either side ends it."""
        try:
            while call := await _read(host, reader):
                answer = await self._answer(call)
                if answer.status == 0 or not await _send(writer, answer, self.api.now_ms()):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # a client may leave whenever it likes
        finally:
            writer.close()

    async def _answer(self, call: Call) -> Answer:
        if call.path.startswith("/_") and call.host == "api":
            answer = self._control(call)
            self.tick()
            return answer
        answer = self.api.handle(call)
        request = Request(
            at_ms=self.api.now_ms(),
            has_key="authorization" in call.headers,
            status=answer.status,
            rolls=tuple(call.rolls),
            **{k: getattr(call, k) for k in _CARRIED},
        )
        self.api.ledger.add("request", asdict(request))
        self.tick()
        if call.what == "submit" and call.render:
            await self.api.ledger.sync()
        if call.fault == "die_after":
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(answer.wait_s)
        return answer

    def tick(self) -> None:
        """Does what is due, writes it down, and comes back when more is due."""
        due_s = self.api.advance()
        self.api.ledger.write()
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if due_s is not None:
            self._timer = asyncio.get_running_loop().call_later(due_s, self.tick)

    def _control(self, call: Call) -> Answer:
        api = self.api
        try:
            if (call.method, call.path) == ("PUT", "/_control"):
                api.knobs = api.knobs.with_(json.loads(call.body))
            elif (call.method, call.path) == ("POST", "/_control/fail_next"):
                for name, times in json.loads(call.body).items():
                    if _hints().get(name) != Chance:
                        raise ValueError(f"{name!r} is no knob with a chance")
                    api.next_hits[name] += int(times)
            elif (call.method, call.path) == ("GET", "/_ledger"):
                renders = [asdict(r) for r in api.ledger.renders.values()]
                requests = [asdict(r) for r in api.ledger.requests]
                return Answer(200, json.dumps({"renders": renders, "requests": requests}).encode())
            elif (call.method, call.path) != ("GET", "/_control"):
                return Refused(404, "no_such_path").answer
        except (ValueError, TypeError, AttributeError) as error:
            return Refused(400, "invalid_request", str(error)).answer
        return Answer(200, json.dumps(asdict(api.knobs)).encode())


_CARRIED = [f.name for f in fields(Request) if f.name in {g.name for g in fields(Call)} - {"rolls"}]


async def _read(host: str, reader: asyncio.StreamReader) -> Call | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    method, target, _ = first.split(" ")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    url = urlsplit(target)
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Call(host, method, url.path, dict(parse_qsl(url.query)), headers, body)


async def _send(writer: asyncio.StreamWriter, answer: Answer, now_ms: int) -> bool:
    """Writes the answer; False when the connection has to end with it."""
    headers = {"Date": formatdate(now_ms / 1000, usegmt=True), **answer.headers}
    is_last = answer.coding == "close" or answer.cut is not None or "Content-Length" in headers
    if answer.coding == "chunked":
        headers["Transfer-Encoding"] = "chunked"
    elif answer.coding == "length":
        headers.setdefault("Content-Length", str(len(answer.body)))
    if is_last:
        headers["Connection"] = "close"
    lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
    body = answer.body[: answer.cut]
    pieces = 10 if answer.slow_s else 1
    step = max(1, math.ceil(len(body) / pieces))
    for at in range(0, len(body), step):
        await asyncio.sleep(answer.slow_s / pieces)
        piece = body[at : at + step]
        if answer.coding == "chunked":
            piece = b"%x\r\n%b\r\n" % (len(piece), piece)
        writer.write(piece)
        await writer.drain()
    if answer.coding == "chunked" and answer.cut is None:
        writer.write(b"0\r\n\r\n")
    await writer.drain()
    return not is_last


def _end_with_parent() -> None:
    while os.read(0, 1024):
        pass
    os._exit(0)  # every answer given so far is in the file already


async def serve(ledger: Path, knobs: Knobs, port: int, cdn_port: int) -> None:
    """Serves until the parent's pipe closes."""
    server = Server(Api(Ledger(ledger, for_writing=True), knobs))
    options: dict[str, Any] = {"limit": 2**20, "backlog": 1024}
    listen = functools.partial(asyncio.start_server, **options)
    api = await listen(functools.partial(server.connected, "api"), "127.0.0.1", port)
    handler = functools.partial(server.connected, "cdn")
    try:
        cdn = await listen(handler, "127.0.0.2", cdn_port)
    except OSError:  # only Linux has all of 127/8 on its loopback: another port must do
        cdn = await listen(handler, "127.0.0.1", cdn_port)
    for name, listener in (("api", api), ("cdn", cdn)):
        address, number = listener.sockets[0].getsockname()
        server.api.hosts[name] = f"http://{address}:{number}"
    server.tick()
    sys.stdout.write("{api}\n{cdn}\n".format(**server.api.hosts))
    sys.stdout.flush()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    await asyncio.Event().wait()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="vqkit.mockserver", description="A mock render provider")
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--config", default="{}", help="knobs as a JSON object")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--cdn-port", type=int, default=0)
    options = parser.parse_args()
    try:
        knobs = Knobs().with_(json.loads(options.config))
    except ValueError as error:
        parser.error(str(error))
    asyncio.run(serve(options.ledger, knobs, options.port, options.cdn_port))


if __name__ == "__main__":
    main()
