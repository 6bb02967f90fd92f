"""Ends a doubt without a person, wherever the provider can tell what became of a request.

Each kind of idempotency (`providers.contract`) has its own way to ask. A request is sent
again only where the provider's own key makes that free; where nothing can tell, the job is
held for a person, with the evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import codec, secrets
from .errors import NOT_ACCEPTED, ProviderError
from .handles import kept_handle
from .job import Step
from .providers.contract import AccountKey, Match, RenderProvider, Submitted
from .renders import answer_value

__all__ = ["Verdict", "reconcile"]

CLOCK_SKEW_MS = 120_000
# A key is taken for known only so long: what is sent takes a while, and clocks differ.
KEY_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a request in doubt.

    `value` is what the step gave, where it arrived; with ``is_settled`` and no value it was
    not sent, or with a `refusal` it will never be rendered. Otherwise it stays in doubt; `note`
    says why, or what was found; ``is_missing`` that it was looked for and not found.
    """

    note: str
    value: Mapping[str, Any] | None = None
    is_settled: bool = False
    refusal: ProviderError | None = None
    is_missing: bool = False


async def reconcile(
    step: Step,
    provider: RenderProvider,
    account: AccountKey,
    *,
    owned: Set[str],
    now_ms: int,
    doubt_ms: int | None = None,
    was_missing: bool = False,
    was_refused: bool = False,
    sink: Callable[[str], Path],
) -> Verdict:
    """Asks the provider about the paid step of a job in doubt. Never spends twice.

    `owned` are the handles, as canonical JSON, that other jobs of the account have.
    `doubt_ms` is when the doubt began: what is not found may still turn up for a while after
    that, for a request that timed out may arrive long after it was begun; and it must have been
    missing before (`was_missing`), for one answer may be that of a server that lags. With
    `was_refused` an earlier render of the same job was refused without a word of its name: what
    only looks like this one may be that one, which a provider may list and bill. Raises
    ProviderError where the provider cannot be asked now.
    """
    request: dict[str, Any] = codec.loads(step.request_json) or {}
    can = provider.capabilities
    since_ms, age_ms = max(step.begun_ms, doubt_ms or 0), now_ms - step.begun_ms
    is_key_known = can.key_ttl_s is None or age_ms < KEY_SHARE * 1000 * can.key_ttl_s
    match can.idempotency:
        case "replay" | "replay_blind" if is_key_known:
            # The frozen request goes with its key, so that even a blind replay is our own.
            return await _send_again(step, provider, account, request, sink)
        case "reject" if is_key_known:
            try:
                return await _send_again(step, provider, account, request, sink)
            except ProviderError as error:
                if error.kind != "key_reused":
                    raise
            verdict = await _look(
                step, provider, account, request, owned, was_refused, was_accepted=True
            )
            is_early = now_ms - since_ms < 1000 * can.not_found_grace_s
            if not verdict.is_settled and is_early:
                return Verdict("it was accepted and is not listed yet")
            return verdict
        case "client_id" | "tag" | "list":
            if can.idempotency == "client_id":
                verdict = await _poll(step, provider, account)
            else:
                verdict = await _look(
                    step, provider, account, request, owned, was_refused, was_accepted=False
                )
            if not verdict.is_settled or verdict.value is not None:
                return verdict
            if now_ms - since_ms < 1000 * can.not_found_grace_s or not was_missing:
                return Verdict("not found yet; it may still turn up", is_missing=True)
            if can.result_ttl_s is not None and age_ms >= 1000 * can.result_ttl_s:
                # A provider that deletes results may have made it, billed it and deleted it.
                return Verdict(
                    "not found, and what it made that long ago may be deleted by now; you decide"
                )
            return verdict
    return Verdict("this provider cannot tell what became of a request; you decide")


async def _send_again(
    step: Step,
    provider: RenderProvider,
    account: AccountKey,
    request: Mapping[str, Any],
    sink: Callable[[str], Path],
) -> Verdict:
    try:
        answer = await provider.submit(request, key=step.key, account=account, sink=sink)
    except ProviderError as error:
        if error.kind == "invalid":
            # Perhaps because of its key: it does not say what became of the first one.
            return Verdict(f"the provider refuses it when it is sent again: {error}; you decide")
        if error.kind == "moderated":
            note = f"the provider refuses it: {error}"
            return Verdict(note, is_settled=True, refusal=error)
        raise
    return Verdict("sent again with its key", answer_value(answer, account.key), is_settled=True)


async def _poll(step: Step, provider: RenderProvider, account: AccountKey) -> Verdict:
    handle = {"id": step.key}
    status = await provider.poll(handle, account=account)
    if status.state != "not_found":
        value = answer_value(Submitted(handle), account.key)
        return Verdict("the provider has a render of our id", value, is_settled=True)
    return Verdict("the provider has no render of our id", is_settled=True)


async def _look(
    step: Step,
    provider: RenderProvider,
    account: AccountKey,
    request: Mapping[str, Any],
    owned: Set[str],
    was_refused: bool,
    *,
    was_accepted: bool,
) -> Verdict:
    since_ms = step.begun_ms - CLOCK_SKEW_MS
    found = await provider.find(request, key=step.key, since_ms=since_ms, account=account)
    free = [
        match
        for match in found
        if codec.canonical(secrets.veiled(kept_handle(match.handle), account.key)) not in owned
    ]
    certain = [match for match in free if match.is_certain]
    chosen = certain or free
    if chosen and not certain and was_refused:
        return Verdict(
            f"{_handles(chosen)} may be it, or the one that was refused before; you decide"
        )
    if len(chosen) == 1:
        value = answer_value(Submitted(chosen[0].handle), account.key)
        return Verdict("found at the provider", value, is_settled=True)
    if chosen:
        return Verdict(f"{len(chosen)} renders look like it: {_handles(chosen)}; you decide")
    if was_accepted:
        return Verdict("the provider accepted it and does not say as which render; you decide")
    return Verdict("the provider has no such render", is_settled=True)


def _handles(found: list[Match]) -> str:
    return ", ".join(codec.dumps(kept_handle(match.handle)) for match in found[:5])


def is_passing(error: ProviderError) -> bool:
    """True where asking again later may be answered."""
    return error.kind not in NOT_ACCEPTED or error.kind in ("rate", "concurrency", "not_sent")
