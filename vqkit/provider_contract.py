"""Does a provider of your own keep the contract? Asks it, over its real wire, and tells.

::

    from vqkit.testing import provider_contract

    async def test_my_provider(tmp_path):
        found = await provider_contract(
            MyProvider(), {"prompt": "a fox"}, account=AccountKey("a", "key"), folder=tmp_path
        )
        assert found == []

It sends up to three renders, and so may cost money: use the provider's sandbox, or a mock.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from .clock import SystemClock
from .errors import ProviderError
from .providers.contract import (
    AccountKey,
    Capabilities,
    Finished,
    Match,
    RenderProvider,
    State,
    Status,
    Submitted,
)

__all__ = ["provider_contract"]

FINAL = ("succeeded", "failed", "cancelled", "expired")
CANCEL_ANSWERS = ("cancelled", "requested", "too_late", "unsupported")
RESENT_SAME = ("replay", "replay_blind")


async def provider_contract(
    provider: RenderProvider,
    request: Mapping[str, Any],
    *,
    account: AccountKey,
    folder: Path,
    limit_s: float = 600.0,
    poll_s: float = 1.0,
) -> list[str]:
    """What of the contract the provider breaks, a sentence each; an empty list is what to want.

    `request` must render well. Files are written to `folder`, made when missing. `poll_s` is
    the wait between polls where the provider gives no hint, `limit_s` the longest a render
    may take.
    """
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    check = _Check(provider, dict(request), account, folder, limit_s, poll_s)
    await check.everything()
    return check.found


class _Check:
    def __init__(
        self,
        provider: RenderProvider,
        request: dict[str, Any],
        account: AccountKey,
        folder: Path,
        limit_s: float,
        poll_s: float,
    ) -> None:
        self.provider: Any = provider  # what it gives is looked at, not believed
        self.request, self.account = request, account
        self.folder, self.limit_s, self.poll_s = folder, limit_s, poll_s
        self.found: list[str] = []
        self._files = 0

    async def everything(self) -> None:
        can = self.provider.capabilities
        if not isinstance(can, Capabilities):
            self.found.append(f"capabilities is a {type(can).__name__}, not Capabilities")
            return
        since_ms = SystemClock().now_ms() - 60_000
        key = f"vqkit-{uuid.uuid4().hex}"
        answer = await self._submit(key)
        if answer is None:
            return
        if isinstance(answer, Finished):
            self._look_at_files(answer)
            return
        handle = self._portable(answer)
        await self._resend(key, handle, can)
        await self._find(key, handle, since_ms, can)
        status = await self._to_the_end(handle)
        if status is not None and status.state == "succeeded":
            await self._fetch(status)
        await self._strangers(can)
        await self._cancel()

    def sink(self, suffix: str) -> Path:
        self._files += 1
        return self.folder / f"result-{self._files}{suffix}"

    async def _submit(self, key: str) -> Submitted | Finished | None:
        try:
            answer = await self.provider.submit(
                self.request, key=key, account=self.account, sink=self.sink
            )
        except ProviderError as error:
            self.found.append(f"submit raised {error.kind}: {error}; give a request that renders")
            return None
        if not isinstance(answer, Submitted | Finished):
            self.found.append(f"submit gave a {type(answer).__name__}, not Submitted or Finished")
            return None
        return answer

    def _look_at_files(self, answer: Finished) -> None:
        if not answer.files:
            self.found.append("submit gave Finished without a file")
        for path in answer.files:
            if not path.exists() or path.stat().st_size == 0:
                self.found.append(f"submit named {path}, which is missing or empty")

    def _portable(self, answer: Submitted) -> dict[str, Any]:
        """The handle as another process will have it."""
        handle: dict[str, Any] = json.loads(json.dumps(dict(answer.handle)))
        if handle != dict(answer.handle):
            self.found.append("a handle must be JSON: it came back as something else")
        return handle

    async def _resend(self, key: str, handle: dict[str, Any], can: Capabilities) -> None:
        """The same key again must do what the kind of idempotency says."""
        if can.idempotency not in (*RESENT_SAME, "reject"):
            return
        try:
            again = await self.provider.submit(
                self.request, key=key, account=self.account, sink=self.sink
            )
        except ProviderError as error:
            if can.idempotency != "reject" or error.kind != "key_reused":
                self.found.append(f"{can.idempotency}: the same key again raised {error.kind}")
            return
        if can.idempotency == "reject":
            self.found.append("reject: the same key again was accepted; it may be billed twice")
        elif not isinstance(again, Submitted) or dict(again.handle) != handle:
            self.found.append(f"{can.idempotency}: the same key again gave another render")

    async def _find(
        self, key: str, handle: dict[str, Any], since_ms: int, can: Capabilities
    ) -> None:
        if can.idempotency not in ("tag", "list"):
            return
        matches = await self.provider.find(
            self.request, key=key, since_ms=since_ms, account=self.account
        )
        if not all(isinstance(match, Match) for match in matches):
            self.found.append("find must give a list of Match")
            return
        mine = [match for match in matches if dict(match.handle) == handle]
        if not mine:
            self.found.append(f"{can.idempotency}: find does not give the render just sent")
        elif can.idempotency == "tag" and not mine[0].is_certain:
            self.found.append("tag: a render that carries our key is certain; is_certain is False")

    async def _to_the_end(self, handle: dict[str, Any]) -> Status | None:
        left_s = self.limit_s
        while left_s > 0:
            try:
                status: Status = await self.provider.poll(handle, account=self.account)
            except ProviderError as error:
                self.found.append(f"poll raised {error.kind}: {error}")
                return None
            if status.state not in get_args(State):
                self.found.append(f"poll gave the state {status.state!r}, which is none")
                return None
            if status.progress is not None and not 0 <= status.progress <= 1:
                self.found.append(f"progress {status.progress} is not from 0 to 1")
            if status.state in FINAL:
                if status.state != "succeeded":
                    self.found.append(f"the render ended as {status.state}: {status.error}")
                elif not status.links:
                    self.found.append("succeeded without a link: that is failed")
                return status
            wait_s = self.poll_s if status.poll_after_s is None else status.poll_after_s
            left_s -= wait_s
            await asyncio.sleep(wait_s)
        self.found.append(f"the render was not over after {self.limit_s:g} s")
        return None

    async def _fetch(self, status: Status) -> None:
        for link in status.links:
            path = self.sink(link.suffix)
            try:
                fetched = await self.provider.fetch(link, path, account=self.account)
            except ProviderError as error:
                self.found.append(f"fetch raised {error.kind}: {error}")
                continue
            size = path.stat().st_size if path.exists() else 0
            if size == 0 or size != fetched.size:
                self.found.append(f"fetch said {fetched.size} bytes and wrote {size}")

    async def _strangers(self, can: Capabilities) -> None:
        """A render that is not ours, and a key that is not one."""
        if self.account.key is None:
            return
        wrong = AccountKey(self.account.name, "not-a-key", self.account.model)
        try:
            await self.provider.submit(
                self.request, key=f"vqkit-{uuid.uuid4().hex}", account=wrong, sink=self.sink
            )
        except ProviderError as error:
            if error.kind != "auth":
                self.found.append(f"a wrong key raised {error.kind}, not auth")
            if "not-a-key" in str(error):
                self.found.append("an error's text holds the key")
        else:
            self.found.append("a wrong key was accepted")

    async def _cancel(self) -> None:
        answer = await self._submit(f"vqkit-{uuid.uuid4().hex}")
        if not isinstance(answer, Submitted):
            return
        said = await self.provider.cancel(dict(answer.handle), account=self.account)
        if said not in CANCEL_ANSWERS:
            self.found.append(f"cancel gave {said!r}; expected one of {', '.join(CANCEL_ANSWERS)}")
