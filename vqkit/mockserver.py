"""A render provider that renders nothing: plain HTTP on loopback, every fault at a knob.

``python -m vqkit.mockserver --ledger FILE --config JSON [--port 0]`` prints its URL, then the
URL of its second host, and ends when its standard input closes. `vqkit.mock` starts it, has
its knobs and its ledger; this is what it answers. Nothing in `Api` waits, so a request is one
atom, in memory and in the ledger; only then is it answered, late, or not at all.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gzip
import hashlib
import json
import math
import os
import signal
import sys
import threading
import time
from asyncio import StreamReader, StreamWriter
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from .mock import CHANCES, Knobs, Ledger, Render, Request, account_key, content, digest, fingerprint

PAGE = b"<!doctype html><title>Error</title><h1>Something went wrong</h1>"
DAY_MS = 86_400_000


@dataclass
class Call(Request):
    """A request on its way through the server."""

    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    wait_s: float = 0.0


@dataclass
class Answer:
    """What goes back. Only `cut` bytes of it, where that is set, and then the connection ends."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    coding: str = "length"
    cut: int | None = None
    slow_s: float = 0.0


class Refused(Exception):
    """An answer that is an error; status 0 is none at all, the connection just ends."""

    def __init__(self, status: int, code: str, message: str = "", **more: Any) -> None:
        super().__init__(message)
        self.code, headers = code, more.pop("headers", {})
        self.answer = _json({"error": {"code": code, "message": message or code, **more}}, status)
        self.answer.headers |= headers
        if code == "html":
            self.answer = Answer(status, PAGE, {"Content-Type": "text/html"})


class Api:
    """What the provider decides."""

    def __init__(self, ledger: Ledger, knobs: Knobs) -> None:
        self.ledger, self.knobs = ledger, knobs
        self.hosts = {"api": "", "cdn": ""}
        self.next_hits: Counter[str] = Counter()
        self._sent: defaultdict[str, list[int]] = defaultdict(list)
        self._by_id = {r.public_id: r for r in ledger.renders.values()}
        self._open = {r.id: r for r in ledger.renders.values() if not r.is_over}

    def now_ms(self) -> int:
        """The provider's clock."""
        return time.time_ns() // 1_000_000 + round(self.knobs.clock_offset_s * 1000)

    # -- chance

    def _u(self, call: Call, name: str, of: str) -> float:
        call.rolls.append((name, of))
        return _fraction(self.knobs.seed, name, of, self.ledger.counts[name, of])

    def _hit(self, call: Call, name: str, of: str) -> bool:
        chance = self.knobs.chances.get(name, 0)
        if self.next_hits[name] > 0:
            self.next_hits[name] -= 1
            is_hit = True
        elif isinstance(chance, Mapping):
            call.rolls.append((name, of))
            is_chosen = _fraction(self.knobs.seed, "share", name, of) < chance.get("share", 1)
            is_hit = is_chosen and self.ledger.counts[name, of] < chance.get("first", math.inf)
        else:
            is_hit = bool(chance) and self._u(call, name, of) < chance
        call.fault = name if is_hit else call.fault
        return is_hit

    def _spread(self, call: Call, base: float, share: float, name: str, of: str) -> float:
        return base * (1 + share * (2 * self._u(call, name, of) - 1)) if share else base

    def _spoil(self, call: Call, of: str, *names: str) -> None:
        """Raises what the first of these knobs that hits makes of the answer."""
        for name in names:
            if self._hit(call, name, of):
                if "error" in name:
                    choices = self.knobs.error_status
                    drawn = choices[int(self._u(call, "error_status", of) * len(choices))]
                    raise Refused(drawn, "server_error")
                if "html" in name:
                    raise Refused(200, "html")
                raise Refused(422 if name == "invalid" else 0, "invalid_request", "out of range")

    # -- routes and gates

    def handle(self, call: Call) -> Answer:
        """The answer to a request, with all it changes noted in the ledger."""
        self.advance()
        parts = [unquote(part) for part in call.path.strip("/").split("/")]
        try:
            match call.method, parts:
                case "GET", ["v1", "files", render_id, number]:
                    return self._file(call, render_id, int(number))
                case _ if call.host != "api":
                    pass
                case "POST", ["v1", "renders"]:
                    return self._submit(call)
                case "GET", ["v1", "renders"]:
                    return self._list(call)
                case "GET", ["v1", "renders", render_id]:
                    return self._poll(call, render_id)
                case "POST", ["v1", "renders", render_id, "cancel"]:
                    return self._cancel(call, render_id)
                case "GET", ["v1", "balance"]:
                    return self._balance(self._account(call))
            raise Refused(404, "no_such_path")
        except ValueError as error:
            return Refused(400, "invalid_request", str(error)).answer
        except Refused as refused:
            call.fault = call.fault or refused.code
            return refused.answer

    def _account(self, call: Call) -> str:
        token = call.headers.get("authorization", "").removeprefix("Bearer ")
        quoted = token.removeprefix("mock.").rsplit(".", 2)[0]
        call.account = account = unquote(quoted)
        generation = self.knobs.key_generation.get(account, 1)
        if (after := self.knobs.revoke_after) is not None:
            generation += len(self._of_account(account)) >= after
        if token != account_key(account, generation):
            raise Refused(401, "unauthorized", "this key is not, or no longer, accepted")
        if "*" in self.knobs.retired:
            raise Refused(410, "retired", "this service has ended")
        return account

    def _of_account(self, account: str) -> list[Render]:
        return [r for r in self.ledger.renders.values() if r.account == account]

    def _left(self, account: str) -> float:
        mine, limit = self._of_account(account), _of(self.knobs.balance_microusd, account)
        spent = sum(r.cost_microusd if r.id in self._open else r.billed_microusd for r in mine)
        return math.inf if limit is None else limit - spent

    def _balance(self, account: str) -> Answer:
        left = self._left(account)
        return _json({"balance_microusd": None if left == math.inf else left})

    def _gate(self, account: str, model: str | None) -> None:
        """Limits come before chances, or a chance would depend on who was first."""
        if model in self.knobs.retired:
            raise Refused(410, "retired", f"the model {model} was retired")
        now, per_day = self.now_ms(), _of(self.knobs.per_day, account)
        today = [r for r in self._of_account(account) if r.created_ms // DAY_MS == now // DAY_MS]
        if per_day is not None and len(today) >= per_day:
            left = {"Retry-After": str(math.ceil((DAY_MS - now % DAY_MS) / 1000))}
            raise Refused(429, "daily_limit", "the day's allowance is used up", headers=left)
        if self.knobs.overflow == "reject" and not self._has_slot(account, model):
            raise Refused(429, "too_many_concurrent", "wait until a render of yours is over")

    def _rate(self, call: Call, account: str, of: str, name: str) -> None:
        now, knobs = self.now_ms(), self.knobs
        limit = _of(knobs.per_minute, account) if name == "rate" else None
        sent = [at for at in self._sent[account] if at > now - 60_000]
        if limit is not None and len(sent) >= limit:
            wait_s = (min(sent, default=now) + 60_000 - now) / 1000
        elif self._hit(call, name, of):
            wait_s = 10.0
        else:
            self._sent[account] = [*sent, now] if name == "rate" else sent
            return
        wait_s = wait_s if knobs.retry_after_s is None else knobs.retry_after_s
        whole_s, way = math.ceil(wait_s), knobs.retry_after_as
        date = formatdate(math.ceil(now / 1000 + wait_s), usegmt=True)
        value = {"seconds": whole_s, "date": date, "ms": whole_s * 1000}.get(way)
        name = "retry-after-ms" if way == "ms" else "Retry-After"
        headers = {} if value is None else {name: str(value)}
        text = "too many requests" + (f"; resets in ~{whole_s}s" if way == "text" else "")
        more = {"retry_after": wait_s} if way == "body" else {}
        raise Refused(429, "rate_limited", text, headers=headers, **more)

    # -- sending

    def _submit(self, call: Call) -> Answer:
        knobs, call.what = self.knobs, "submit"
        account = self._account(call)
        body = json.loads(call.body)
        if not isinstance(body, dict) or not isinstance(body.get("input"), dict):
            raise Refused(400, "invalid_request", "expected an object with an object 'input'")
        model, of = body.get("model"), fingerprint(body["input"], body.get("model"))
        known = self._known(account, call.headers.get("idempotency-key"), of)
        if not known:
            self._gate(account, model)
        self._rate(call, account, of, "rate")
        self._spoil(call, of, "drop_before", "error_before", "invalid")
        render = known or self._accept(call, account, body, of)
        call.render = render.id
        call.wait_s = self._spread(call, knobs.answer_s, knobs.answer_spread, "answer_s", of)
        self._spoil(call, of, "die_after", "drop_after", "error_after", "html_after")
        if knobs.moderated_on == "submit" and render.ends == "moderated":
            told = {"cost_microusd": render.billed_microusd} if knobs.tells_cost else {}
            raise Refused(422, "content_policy", "this is not allowed", billed=True, **told)
        reply = self._view(call, render)
        if knobs.idempotency == "replay_blind":
            reply["request"] = render.request
        answer = _json(reply, 201)
        if known and knobs.idempotency == "replay":
            answer.headers["Idempotent-Replayed"] = "true"
        return answer

    def _known(self, account: str, key: str | None, of: str) -> Render | None:
        kind, ttl_s = self.knobs.idempotency, self.knobs.key_ttl_s
        if key is None or kind not in ("replay", "replay_blind", "reject"):
            return None
        since = -math.inf if ttl_s is None else self.now_ms() - ttl_s * 1000
        mine = [r for r in self._of_account(account) if r.key == key and r.created_ms > since]
        if mine and kind == "reject":
            raise Refused(409, "idempotency_key_reused", "list your renders instead")
        if mine and kind == "replay" and mine[0].fingerprint != of:
            raise Refused(422, "idempotency_mismatch", "this key had another request")
        return mine[0] if mine else None

    def _accept(self, call: Call, account: str, body: dict[str, Any], of: str) -> Render:
        knobs, now, model = self.knobs, self.now_ms(), body.get("model")
        cost = round(self._spread(call, knobs.cost_microusd, knobs.cost_spread, "cost", of))
        if cost > self._left(account):
            raise Refused(402, "insufficient_balance", "top up to go on")
        fates = ("moderated", "render_failed", "no_outputs")
        ends = next((name for name in fates if self._hit(call, name, of)), "succeeded")
        is_refused = ends == "moderated" and knobs.moderated_on == "submit"
        if is_refused and not knobs.moderated_billed:
            raise Refused(422, "content_policy", "this is not allowed", billed=False)
        length_s = self._spread(call, knobs.render_s, knobs.render_spread, "render_s", of)
        call.rolls.append(("accept", of))
        render = Render(
            id="r_" + digest(knobs.seed, "id", of, self.ledger.counts["accept", of]),
            account=account,
            model=model,
            key=call.headers.get("idempotency-key"),
            tag=body.get("tag"),
            client_id=body.get("id") if knobs.idempotency == "client_id" else None,
            request=body["input"],
            fingerprint=of,
            created_ms=now,
            cost_microusd=cost,
            duration_ms=0 if is_refused else round(length_s * 1000),
            ends=ends,
        )
        is_full = not self._has_slot(account, model)
        # ComfyUI does so too: an id used twice is rendered twice, and billed twice.
        self._by_id[render.public_id] = self._open[render.id] = render
        if is_full:
            self._move(render, "THROTTLED", now, cost if knobs.billed_on == "submit" else 0)
        else:
            self._start(render, now)
        if is_refused:
            self._end(render, now)
        return render

    # -- rendering

    def _has_slot(self, account: str, model: str | None) -> bool:
        limit = _of(self.knobs.concurrency, account)
        by_model = self.knobs.limits_scope == "account+model"
        busy = [r for r in self._open.values() if r.account == account and r.state != "THROTTLED"]
        taken = [r for r in busy if not by_model or r.model == model]
        return limit is None or len(taken) < limit

    def _move(self, render: Render, state: str, at_ms: int, billed: int) -> None:
        render.states.append((state, at_ms))
        render.billed_microusd = billed
        self.ledger.changed(render)
        if render.is_over:
            del self._open[render.id]

    def _start(self, render: Render, at_ms: int) -> None:
        is_billed = self.knobs.billed_on != "success"
        self._move(render, "RUNNING", at_ms, render.cost_microusd if is_billed else 0)

    def _end(self, render: Render, at_ms: int) -> None:
        cost, billed, knobs = render.cost_microusd, render.billed_microusd, self.knobs
        fates = {"moderated": cost * knobs.moderated_billed, "render_failed": billed}
        if render.state == "CANCELLING":
            self._move(render, "CANCELLED", at_ms, cost if knobs.cancel_billed else billed)
        else:
            word = "FAILED" if render.ends in fates else "SUCCEEDED"
            self._move(render, word, at_ms, fates.get(render.ends, cost))

    def advance(self) -> float | None:
        """Ends and starts what is due, also what fell due in a down time; seconds to the next."""
        now, polls = self.now_ms(), self.knobs.render_polls
        at_ms = now
        while True:
            for render in list(self._open.values()):
                if render.state == "THROTTLED" and self._has_slot(render.account, render.model):
                    self._start(render, max(at_ms, render.created_ms))
            busy = [r for r in self._open.values() if r.state != "THROTTLED"]
            ready = [r for r in busy if r.state == "CANCELLING" or r.polls >= polls]
            soonest = min(ready, key=lambda r: r.due_ms, default=None)
            if soonest is None or soonest.due_ms > now:
                return None if soonest is None else (soonest.due_ms - now) / 1000
            at_ms = now if polls else soonest.due_ms
            self._end(soonest, at_ms)

    # -- polling, listing, cancelling

    def _find(self, call: Call, render_id: str, account: str | None = None) -> Render:
        render = self._by_id.get(render_id)
        if render is None or account not in (None, render.account) or self._is_gone(render):
            raise Refused(404, "not_found", "no such render")
        call.render = render.id
        return render

    def _gone_ms(self, render: Render) -> int | None:
        ttl_s = self.knobs.forget_s
        is_kept = ttl_s is None or not render.is_over
        return None if is_kept else render.states[-1][1] + round((ttl_s or 0) * 1000)

    def _is_gone(self, render: Render) -> bool:
        return (self._gone_ms(render) or math.inf) <= self.now_ms()

    def _poll(self, call: Call, render_id: str) -> Answer:
        call.what = "poll"
        account = self._account(call)
        render = self._find(call, render_id, account)
        of = render.fingerprint
        render.polls += 1
        self.ledger.changed(render)
        self._rate(call, account, of, "poll_rate")
        self._spoil(call, of, "poll_drop", "poll_error", "poll_html")
        if render.polls <= self.knobs.not_found_polls:
            call.fault = "not_found_polls"
            raise Refused(404, "not_found", "no such render")
        return _json(self._view(call, render))

    def _view(self, call: Call, render: Render) -> dict[str, Any]:
        knobs, state = self.knobs, render.state
        view: dict[str, Any] = {
            "id": render.public_id,
            "state": state,
            "created_at": render.created_ms,
            "poll_after_s": knobs.poll_after_s,
            "cost_microusd": render.cost_microusd if knobs.tells_cost else None,
        }
        if state == "RUNNING":
            if call.what == "poll" and self._hit(call, "unknown_state", render.fingerprint):
                view["state"] = "POLISHING"
            if knobs.progress != "none":
                view["progress"] = self._progress(render)
        if render.is_over and knobs.tells_cost:
            view["cost_microusd"] = render.billed_microusd
            view["billed"] = render.billed_microusd > 0
        if state == "FAILED":
            code = "content_policy" if render.ends == "moderated" else "internal"
            view["error"] = {"code": code, "message": f"the render ended: {code}"}
        if state == "SUCCEEDED":
            count = 0 if render.ends == "no_outputs" else knobs.outputs
            view["outputs"] = [self._link(render, number) for number in range(count)]
            ends = [self._gone_ms(render), None if knobs.fresh_links else self._link_ms(render)]
            view["expires_at"] = min((at for at in ends if at is not None), default=None)
        return view

    def _progress(self, render: Render) -> float:
        polls, left_ms = self.knobs.render_polls, render.due_ms - self.now_ms()
        if self.knobs.progress == "steady":
            share = render.polls / (polls + 1) if polls else 1 - left_ms / (render.duration_ms or 1)
            return round(min(max(share, 0.0), 1.0), 3)
        return round(0.9 / (render.polls or 1), 3) if self.knobs.progress == "backwards" else 0.0

    def _link_ms(self, render: Render) -> int | None:
        start = self.now_ms() if self.knobs.fresh_links else render.states[-1][1]
        ttl_s = self.knobs.link_ttl_s
        return None if ttl_s is None else start + round(ttl_s * 1000)

    def _link(self, render: Render, number: int) -> dict[str, Any]:
        base = self.hosts["cdn" if self.knobs.files == "cdn" else "api"]
        until = self._link_ms(render)
        signature = f"{until or ''}.{digest('link', render.public_id, number, until)}"
        path = f"/v1/files/{quote(render.public_id, safe='')}/{number}?sig={signature}"
        link = {"url": base + path, "suffix": self.knobs.suffix}
        return {**link, "size": self.knobs.size} if self.knobs.tells_size else link

    def _list(self, call: Call) -> Answer:
        call.what, kind, query = "list", self.knobs.idempotency, call.query
        mine = self._of_account(self._account(call))
        if "tag" in query and kind == "tag":
            mine = [r for r in mine if r.tag == query["tag"]]
        elif "tag" not in query and kind in ("list", "reject"):
            mine = [r for r in mine if r.created_ms >= int(query.get("since", 0))]
        else:
            raise Refused(404, "no_such_path", "renders cannot be listed that way")
        before = self.now_ms() - self.knobs.list_lag_s * 1000
        shown = [r for r in reversed(mine) if r.created_ms <= before and not self._is_gone(r)]
        ids, limit = [r.public_id for r in shown], min(int(query.get("limit", 20)), 100)
        first = ids.index(query["after"]) + 1 if query.get("after") in ids else 0
        items = [
            {"id": r.public_id, "state": r.state, "created_at": r.created_ms, "model": r.model}
            | ({"tag": r.tag} if kind == "tag" else {"request": r.request})
            for r in shown[first : first + limit]
        ]
        return _json({"items": items, "has_more": first + limit < len(shown)})

    def _cancel(self, call: Call, render_id: str) -> Answer:
        knobs, call.what = self.knobs, "cancel"
        render = self._find(call, render_id, self._account(call))
        if knobs.cancel == "none":
            raise Refused(405, "not_supported", "renders cannot be cancelled")
        if render.is_over or (knobs.cancel == "queued_only" and render.state != "THROTTLED"):
            raise Refused(409, "too_late", f"the render is {render.state}")
        self._move(render, "CANCELLING", self.now_ms(), render.billed_microusd)
        if not knobs.cancel_is_async:
            self._end(render, self.now_ms())
        return _json(
            {"id": render_id, "state": render.state}, 202 if render.id in self._open else 200
        )

    # -- results

    def _file(self, call: Call, render_id: str, number: int) -> Answer:
        knobs, call.what, given = self.knobs, "file", call.query.get("sig", "")
        if knobs.download_needs_key and call.host == "api":
            self._account(call)
        render = self._find(call, render_id)
        until = int(given.partition(".")[0] or 0) or None
        if given != f"{until or ''}.{digest('link', render_id, number, until)}":
            raise Refused(403, "bad_signature")
        if until is not None and until <= self.now_ms():
            raise Refused(knobs.expired_status, "link_expired", "this link has expired")
        of = render.fingerprint
        self._spoil(call, of, "file_error", "file_html")
        if knobs.files == "redirect" and call.host == "api":
            target = f"{self.hosts['cdn']}{call.path}?sig={given}"
            raise Refused(302, "moved", headers={"Location": target})
        version = render.fetches if knobs.etag in ("changing", "rude") else 0
        render.fetches += 1
        self.ledger.changed(render)
        return self._download(call, of, content(of, number, knobs.size, version))

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
            is_past = int(start) >= size
            answer.status, answer.body = 416 if is_past else 206, data[int(start) :]
            headers["Content-Range"] = f"bytes {'*' if is_past else f'{start}-{size - 1}'}/{size}"
        if knobs.download == "gzip":
            headers["Content-Encoding"] = "gzip"
            answer.body, answer.coding = gzip.compress(data, mtime=0), "length"
        if self._hit(call, "truncate", of):
            answer.cut = len(answer.body) // 2
        elif self._hit(call, "wrong_length", of):
            headers["Content-Length"] = str(len(answer.body) // 2)
        return answer


def _json(body: dict[str, Any], status: int = 200) -> Answer:
    text = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return Answer(status, text, {"Content-Type": "application/json"})


def _fraction(*parts: Any) -> float:
    return float(int(digest(*parts)[:13], 16) / 16**13)


def _of(limit: int | Mapping[str, int] | None, account: str) -> int | None:
    return limit.get(account) if isinstance(limit, Mapping) else limit


class Server:
    """Speaks HTTP/1.1 for `Api` on two hosts, and writes the ledger before it answers."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self._timer: asyncio.TimerHandle | None = None

    async def serve(self, host: str, reader: StreamReader, writer: StreamWriter) -> None:
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
        call.at_ms, call.has_key = self.api.now_ms(), "authorization" in call.headers
        if call.path.startswith("/_"):
            answer = self._control(call)
            self.tick()
            return answer
        answer = self.api.handle(call)
        call.status = answer.status
        self.api.ledger.received(call)
        self.tick()
        if call.what == "submit" and call.render:
            await self.api.ledger.sync()
        if call.fault == "die_after":
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(call.wait_s)
        return answer

    def tick(self) -> None:
        """Does what is due, writes it down, and comes back when more is due."""
        due_s = self.api.advance()
        self.api.ledger.write()
        if self._timer:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = None if due_s is None else loop.call_later(due_s, self.tick)

    def _control(self, call: Call) -> Answer:
        api = self.api
        try:
            match call.method, call.path:
                case "PUT", "/_control":
                    api.knobs = api.knobs.turned(json.loads(call.body))
                case "POST", "/_control/fail_next":
                    wanted = json.loads(call.body)
                    if unknown := set(wanted) - set(CHANCES):
                        raise ValueError(f"no chances: {unknown}; known: {', '.join(CHANCES)}")
                    api.next_hits.update(wanted)
                case "GET", "/_ledger":
                    renders = [asdict(r) for r in api.ledger.renders.values()]
                    requests = [asdict(r) for r in api.ledger.requests]
                    return _json({"renders": renders, "requests": requests})
                case _:
                    return Refused(404, "no_such_path").answer
        except (ValueError, TypeError, AttributeError) as error:
            return Refused(400, "invalid_request", str(error)).answer
        return _json({"knobs": asdict(api.knobs)})


async def _read(host: str, reader: StreamReader) -> Call | None:
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
    query = dict(parse_qsl(url.query))
    return Call(host, method, url.path, query=query, headers=headers, body=body)


async def _send(writer: StreamWriter, answer: Answer, now_ms: int) -> bool:
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
    body, pieces = answer.body[: answer.cut], 10 if answer.slow_s else 1
    step = max(1, math.ceil(len(body) / pieces))
    for at in range(0, len(body), step):
        await asyncio.sleep(answer.slow_s / pieces)
        piece = body[at : at + step]
        is_chunk = answer.coding == "chunked"
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunk else piece)
        await writer.drain()
    if answer.coding == "chunked" and answer.cut is None:
        writer.write(b"0\r\n\r\n")
    await writer.drain()
    return not is_last


def _end_with_parent() -> None:
    while os.read(0, 1024):
        pass
    os._exit(0)  # every answer given so far is in the file already


async def run(ledger: Path, knobs: Knobs, port: int, cdn_port: int) -> None:
    """Serves until the parent's pipe closes."""
    server = Server(Api(Ledger(ledger, for_writing=True), knobs))
    api_host, cdn_host = (functools.partial(server.serve, host) for host in ("api", "cdn"))
    start = functools.partial(asyncio.start_server, limit=2**20, backlog=1024)
    api = await start(api_host, host="127.0.0.1", port=port)
    # Only Linux has all of 127/8 on its loopback; elsewhere another port must do.
    address = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"
    cdn = await start(cdn_host, host=address, port=cdn_port)
    for name, listener in (("api", api), ("cdn", cdn)):
        server.api.hosts[name] = "http://{}:{}".format(*listener.sockets[0].getsockname())
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
    knobs = Knobs().turned(json.loads(options.config))
    asyncio.run(run(options.ledger, knobs, options.port, options.cdn_port))


if __name__ == "__main__":
    main()
