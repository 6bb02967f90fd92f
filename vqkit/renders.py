"""A render at a provider, from the request to the finished files, however often it is taken up.

One coroutine per render on the pump's loop: waiting costs a slot at the account and no
thread. It can end at any line and be begun again by another process, because what must
not happen twice is a step (`steps`), and the provider's handle is on the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard, TypeVar
from weakref import WeakKeyDictionary

from . import codec, policy, secrets
from .attempt import ActiveJob
from .clock import Clock
from .errors import (
    CredentialError,
    GiveUp,
    InDoubt,
    JobCancelled,
    PayloadError,
    ProviderError,
    Snooze,
)
from .executors.local import in_thread
from .handles import kept_handle
from .job import model_of
from .outputs import Made
from .policy import POLL_MAX_S, told_wait
from .providers.base import ExecutorKind
from .providers.contract import (
    AccountKey,
    Finished,
    Link,
    RenderProvider,
    Status,
    Submitted,
)
from .steps import RENDER

__all__ = ["Caller", "Gate", "RenderHandler", "is_render_provider"]

log = secrets.logger("vqkit.renders")

T = TypeVar("T")

POLL_S = (2.0, 30.0)  # first wait when the provider gives no hint, and the longest ever
SPREAD = 0.25  # polls are spread by this part of their wait, so that hundreds do not march
LOOK_S = 0.5  # how soon a wish to cancel is seen
FETCHES = 4  # downloads from one provider at a time; more would share the line and end later
FETCH_TRIES = 8
FRESH_LINKS = 5
REST_S = 60.0
BEYOND_S = 1e12  # no wait is as long; policy.told_wait says what is made of it


class Caller:
    """Asks a provider in the name of an account.

    A key that is refused is read anew, once for each call: keys are changed, and some live
    half an hour only, while a render goes on.
    """

    def __init__(self, job: ActiveJob, account: AccountKey) -> None:
        self._job, self.account = job, account

    async def __call__(self, method: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        """What a provider's method gives, called with the account. Raises as it does."""
        try:
            return await method(*args, account=self.account, **options)
        except ProviderError as error:
            if error.kind != "auth" or self.account.key is None:
                raise
            try:
                key = await _key_of(self._job)
            except CredentialError as gone:
                raise error from gone
            if key == self.account.key:
                raise
        self.account = replace(self.account, key=key)
        self._job.log("its key was refused and is another one by now: asked again with that")
        return await method(*args, account=self.account, **options)

    async def about(self, method: Callable[..., Awaitable[T]], handle: Mapping[str, Any]) -> T:
        """The same of a method that is given a render's handle, as it is kept.

        Raises InDoubt for one that held a key which cannot be put back.
        """

        async def ask(account: AccountKey) -> T:
            try:
                whole = secrets.unveiled(dict(handle), account.key)
            except KeyError:
                raise InDoubt(
                    "the provider put a key into the render's handle, in a way that cannot be"
                    " kept, so it cannot be asked after; it may be paid for. Look there, then"
                    ' q.resolve(…, "attach", value=…)'
                ) from None
            return await method(whole, account=account)

        return await self(ask)


async def _key_of(job: ActiveJob) -> str:
    key: str = await in_thread(job.credential, "vqkit-key")  # a keyring may take its time
    return key


class Gate:
    """Lets a few downloads through at a time, the one whose result is deleted soonest first."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._line: list[tuple[float, int, asyncio.Future[None]]] = []
        self._seen = itertools.count()

    @property
    def is_full(self) -> bool:
        """True if whoever comes now has to wait."""
        return self._free == 0

    @contextlib.asynccontextmanager
    async def passing(self, expires_ms: float) -> AsyncIterator[None]:
        """Waits for its turn and holds a place until the block is left."""
        if self._free:
            self._free -= 1
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._line, (expires_ms, next(self._seen), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # its turn had come just then
                    self._leave()
                raise
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        while self._line:
            *_, turn = heapq.heappop(self._line)
            if not turn.done():
                turn.set_result(None)  # it takes the place over
                return
        self._free += 1


@dataclass(frozen=True)
class RenderHandler:
    """Lets the pump treat a render provider like any other: a name, a handler, an executor."""

    name: str
    provider: RenderProvider
    clock: Clock
    executor: ExecutorKind = "async"
    _gates: WeakKeyDictionary[asyncio.AbstractEventLoop, Gate] = field(
        default_factory=WeakKeyDictionary, init=False, repr=False, compare=False
    )

    @property
    def handler(self) -> Any:
        """The coroutine function that does one job."""
        return self.render

    @property
    def is_by_steps(self) -> bool:
        """Always: it sends in a paid step, and nowhere else."""
        return True

    @property
    def is_by_model(self) -> bool:
        """True if the provider limits each model of an account by itself."""
        return self.provider.capabilities.limits_scope == "account+model"

    async def render(self, job: ActiveJob) -> dict[str, Any]:
        """Sends the render if it was not sent, waits for it, fetches what came of it."""
        ask = await self.caller_of(job)
        request = request_of(job.payload, job.seed)
        handle = job.handle
        wait_s = None
        if handle is None:
            job.check_cancelled()
            answer = await self._submit(job, request, ask)
            if "files" in answer:
                return self._whole(job, answer)
            if "handle" not in answer:  # of a version that kept such an answer as text
                raise InDoubt(
                    f"the provider took it, and of its handle only this was kept: {answer};"
                    " q.resolve(…, 'attach', value=…) goes on with it"
                )
            handle, wait_s = answer["handle"], answer.get("poll_after_s")
        status = await self._wait(job, handle, ask, wait_s)
        files = await self.fetch_all(job, handle, status, ask)
        return {"files": files, "cost_microusd": status.cost_microusd}

    async def caller_of(self, job: ActiveJob) -> Caller:
        """Who asks the provider for this job. Raises CredentialError."""
        key = await _key_of(job) if job.has_credential else None
        account = AccountKey(job.account, key, model_of(job.payload) or None)
        return Caller(job, account)

    # -- sending -----------------------------------------------------------------------------

    async def _submit(
        self, job: ActiveJob, request: Mapping[str, Any], ask: Caller
    ) -> dict[str, Any]:
        count = 0

        def sink(suffix: str) -> Path:
            nonlocal count
            count += 1
            return job.kept_part(suffix, count)

        async def send(key: str) -> dict[str, Any]:
            # Refused for its key it was certainly not accepted: to ask again is not to pay twice.
            answer = await ask(self.provider.submit, request, key=key, sink=sink)
            try:
                return answer_value(answer, ask.account.key)
            except PayloadError as error:
                raise InDoubt(str(error)) from error

        job.stage("submitting")
        answer: dict[str, Any] = await job.paid_step(RENDER, send, request)
        return answer

    def _whole(self, job: ActiveJob, answer: Mapping[str, Any]) -> dict[str, Any]:
        """The answer was the result itself; its files lie where `submit` wrote them."""
        missing = [path for path in answer["files"] if not Path(path).exists()]
        if missing:
            raise InDoubt(
                f"the result was received and its file {missing[0]} is gone; it is paid for"
            )
        for number, path in enumerate(answer["files"], 1):
            job.made.append(Made(path, job.output_name(Path(path).suffix, number)))
        return {"files": list(answer["files"]), "cost_microusd": answer.get("cost_microusd")}

    # -- waiting -----------------------------------------------------------------------------

    async def _wait(
        self,
        job: ActiveJob,
        handle: Mapping[str, Any],
        ask: Caller,
        wait_s: float | None,
    ) -> Status:
        """Polls until the render has ended well. An error while polling changes nothing."""
        errors = 0
        unknown_since_ms: int | None = None
        is_asked = False
        while True:
            if job.is_cancel_wanted and not is_asked:
                is_asked = await self._ask_to_stop(job, handle, ask)
            await self._pause(job, wait_s, errors, is_asked)
            try:
                status = await ask.about(self.provider.poll, handle)
            except ProviderError as error:
                if error.kind in ("auth", "provider_gone"):
                    raise
                errors += 1
                wait_s = error.retry_after_s
                job.log(f"asking how it fares failed, trying again: {error}", "warning")
                continue
            errors, wait_s = 0, status.poll_after_s
            if status.state == "not_found":
                now_ms = self.clock.now_ms()
                unknown_since_ms = unknown_since_ms or now_ms
                grace_ms = 1000 * self.provider.capabilities.not_found_grace_s
                if now_ms - unknown_since_ms >= grace_ms:
                    raise InDoubt(
                        "the provider does not know this render any more; it may have been"
                        f" billed. Its handle: {codec.dumps(dict(handle))}"
                    )
                continue
            unknown_since_ms = None
            job.stage(status.stage or status.state, status.progress)
            if self._has_ended_well(job, status):
                return status

    def _has_ended_well(self, job: ActiveJob, status: Status) -> bool:
        """True for a render to fetch, False for one to wait for. Raises for one that failed."""
        match status.state:
            case "succeeded" if status.links:
                return True
            case "succeeded":
                raise self._failure(status, "it says it succeeded and gives no result")
            case "failed":
                raise self._failure(status, "the render failed")
            case "expired":
                raise InDoubt("the result was deleted before it was fetched; it is paid for")
            case "cancelled":
                if job.is_cancel_wanted:
                    raise JobCancelled("cancelled at the provider")
                raise GiveUp("somebody cancelled it at the provider")
        return False

    def _failure(self, status: Status, said: str) -> ProviderError:
        """A render that ended badly, with what is known of its money."""
        error = status.error
        is_billed = status.is_billed if error is None else error.is_billed
        if is_billed is None and status.is_billed is None:
            is_billed = None if self.provider.capabilities.billed_on != "success" else False
        kind = "render_failed" if error is None else error.kind
        return ProviderError(
            said if error is None else str(error),
            kind,
            is_billed=is_billed,
            cost_microusd=status.cost_microusd,
        )

    async def _ask_to_stop(self, job: ActiveJob, handle: Mapping[str, Any], ask: Caller) -> bool:
        """Asks the provider to cancel. Raises JobCancelled if it did; True if it was asked."""
        try:
            answer = await ask.about(self.provider.cancel, handle)
        except ProviderError as error:
            job.log(f"asking the provider to cancel failed, trying again: {error}", "warning")
            return False
        if answer == "cancelled":
            raise JobCancelled("cancelled at the provider")
        job.log(f"the provider's answer to cancelling: {answer.replace('_', ' ')}")
        return True

    async def _pause(
        self, job: ActiveJob, wait_s: float | None, errors: int, is_asked: bool
    ) -> None:
        first_s, longest_s = POLL_S
        otherwise_s = min(longest_s, first_s * 2**errors)
        told_s, note = told_wait(wait_s, otherwise_s, POLL_MAX_S)
        if note:
            job.log(f"the provider says when to come back{note}", "warning")
        wait_s = told_s
        wait_s *= 1 + SPREAD * job.draw()
        while wait_s > 0 and (is_asked or not job.is_cancel_wanted):
            step_s = min(wait_s, LOOK_S)
            await self.clock.wait(asyncio.Event(), step_s)
            wait_s -= step_s

    # -- fetching ----------------------------------------------------------------------------

    async def fetch_all(
        self, job: ActiveJob, handle: Mapping[str, Any], status: Status, ask: Caller
    ) -> list[str]:
        """Downloads every result; the files are then among what `job` made."""
        files = []
        for index in range(len(status.links)):
            path = job.kept_part(status.links[index].suffix, index + 1)
            status = await self._fetch(job, handle, status, index, path, ask)
            job.made.append(Made(str(path), job.output_name(path.suffix, index + 1)))
            files.append(str(path))
        return files

    async def _fetch(
        self,
        job: ActiveJob,
        handle: Mapping[str, Any],
        status: Status,
        index: int,
        path: Path,
        ask: Caller,
    ) -> Status:
        """Downloads one result; a dead link is refreshed by polling again, never by rendering.

        The file grows under another name and gets `path` when it is whole.
        """
        growing = path.with_name(path.name + ".growing")
        if path.exists():  # noqa: ASYNC240 - a look; whole since an earlier try
            return status
        gone = tries = 0
        etag = None
        while True:
            link: Link = status.links[min(index, len(status.links) - 1)]
            try:
                gate = self._gate()
                if gate.is_full:
                    job.stage("waiting to download")
                async with gate.passing(self._expires_ms(status)):
                    job.stage("downloading")
                    fetched = await ask(self.provider.fetch, link, growing, etag=etag)
            except ProviderError as error:
                if error.kind in ("auth", "provider_gone"):
                    raise
                tries += 1
                gone += error.kind == "result_gone"
                if gone > FRESH_LINKS:
                    raise InDoubt(
                        f"the result cannot be fetched, and it is paid for: {error}"
                    ) from error
                if tries > FETCH_TRIES:
                    raise Snooze(REST_S, f"the download fails: {error}") from error
                job.log(f"the download failed, trying again: {error}", "warning")
                etag = error.facts.get("etag") or etag
                await self._pause(job, error.retry_after_s, min(tries - 1, 4), is_asked=True)
                if gone:
                    with contextlib.suppress(ProviderError):
                        fresh = await ask.about(self.provider.poll, handle)
                        status = fresh if fresh.links else status
                continue
            if fetched.size == 0:
                raise ProviderError("the result is an empty file", "render_failed")
            growing.replace(path)
            return status

    def _gate(self) -> Gate:
        """The gate of the downloads on this loop; one that has ended may have left places taken."""
        return self._gates.setdefault(asyncio.get_running_loop(), Gate(FETCHES))

    def _expires_ms(self, status: Status) -> float:
        """When the result is deleted, as far as anybody says."""
        if status.expires_at_ms is not None:
            return status.expires_at_ms
        ttl_s = self.provider.capabilities.result_ttl_s
        return float("inf") if ttl_s is None else self.clock.now_ms() + 1000 * ttl_s


def is_render_provider(thing: Any) -> TypeGuard[RenderProvider]:
    """True for an object that submits, polls and fetches, rather than a function."""
    return all(callable(getattr(thing, verb, None)) for verb in ("submit", "poll", "fetch"))


def request_of(payload: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """What is sent: the payload, with the job's own seed where it names none.

    A seed of its own makes equal prompts tell apart, also when they are looked for later.
    """
    return {"seed": seed, **payload}


def _storable(told: Any) -> float | None:
    """The wait that was told, as a number that JSON knows, so that the answer is kept."""
    is_number = isinstance(told, int | float) and told == told  # NaN is not
    return max(0.0, float(min(told, BEYOND_S))) if is_number else None


def answer_value(answer: Submitted | Finished, key: str | None) -> dict[str, Any]:
    """A provider's answer as the step keeps it: without the account's key in its handle.

    A cost or a wait that is none is taken for not told. Raises PayloadError for a handle that
    cannot be kept.
    """
    cost_microusd = policy.amount(answer.cost_microusd)
    if isinstance(answer, Finished):
        return {"files": [str(path) for path in answer.files], "cost_microusd": cost_microusd}
    return {
        "handle": secrets.veiled(kept_handle(answer.handle), key),
        "cost_microusd": cost_microusd,
        "poll_after_s": _storable(answer.poll_after_s),
    }
