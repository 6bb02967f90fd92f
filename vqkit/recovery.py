"""What is put right before the first claim: the jobs of owners that died.

First what is finished is finished (promise P5): where a manifest proves that the handler
had returned, the job is completed from the disk. The rest is queued again, a crash counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from . import codec, policy, secrets
from .errors import StoreError
from .job import Event, Job, Output, Step
from .liveness import dead_owner
from .outputs import OutputFolder
from .policy import Decision
from .receipts import Receipts
from .steps import handle_of
from .store.base import JobFilter, Runner, Store

__all__ = ["Recovered", "recover"]

log = secrets.logger("vqkit.recovery")


@dataclass(frozen=True, slots=True)
class Recovered:
    """How many jobs of dead owners were finished, requeued, failed at the ceiling, cancelled."""

    finished: int = 0
    requeued: int = 0
    failed: int = 0
    cancelled: int = 0
    in_doubt: int = 0
    owners: int = 0

    def __bool__(self) -> bool:
        return bool(
            self.finished or self.requeued or self.failed or self.cancelled or self.in_doubt
        )

    def __str__(self) -> str:
        parts = []
        if self.finished:
            parts.append(f"{self.finished} finished while nobody looked")
        if self.requeued:
            parts.append(f"{self.requeued} requeued")
        if self.failed:
            parts.append(f"{self.failed} failed (they crashed too often)")
        if self.cancelled:
            parts.append(f"{self.cancelled} cancelled as you had asked")
        if self.in_doubt:
            parts.append(f"{self.in_doubt} in doubt (they may be paid for)")
        return ", ".join(parts) or "nothing to recover"


def recover(
    store: Store,
    me: str,
    runners: Path,
    outputs: OutputFolder,
    max_deaths: int,
    by_steps: Set[str] = frozenset(),
) -> Recovered:
    """Takes over the jobs of every runner that is dead. `me` is left alone, the living are too.

    `runners` is the folder of their lock files. Providers named in `by_steps` spend in paid
    steps only, and so do those of which the dead one has said so: where none was begun, nothing
    was spent.
    """
    rows = {runner.id: runner for runner in store.runners()}
    found: Counter[str] = Counter()
    owners = 0
    locks = {path.stem for path in runners.glob("*.lock")}
    for owner in sorted((rows.keys() | store.owners() | locks) - {me}):
        with dead_owner(runners, owner, rows.get(owner)) as is_dead:
            if is_dead:
                owners += 1
                known = by_steps | _by_steps(rows.get(owner))
                found += _take_over(store, owner, outputs, max_deaths, known)
    return Recovered(
        found["completed"],
        found["queued"],
        found["failed"],
        found["cancelled"],
        found["in_doubt"],
        owners,
    )


def _take_over(
    store: Store, owner: str, outputs: OutputFolder, max_deaths: int, by_steps: Set[str]
) -> Counter[str]:
    # Files are hashed before the transaction, which holds up every writer; nobody else
    # moves the jobs meanwhile, for the caller holds the dead owner's lock.
    left = store.jobs(JobFilter(status=("running",), owner=owner))
    finished = {job.number: outputs.recover(job) for job in left}
    doubts = {job.number: doubtful_steps(store, job, outputs.receipts) for job in left}
    unspent = {account.name for account in store.accounts() if account.provider in by_steps}

    def decide(job: Job) -> tuple[Decision, tuple[Output, ...]]:
        result_json, made = finished.get(job.number) or (None, ())
        doubt = doubts.get(job.number) or ()
        decision = policy.reclaim_decision(job, result_json, max_deaths, doubt)
        # A job that has paid before spends in paid steps only.
        if job.account in unspent or (job.generation and _has_paid(store, job)):
            decision.change["is_unspent"] = True
        return decision, made

    ends = store.reclaim(owner, decide)
    for job in left:
        outputs.forget(job.id, job.fence)
        outputs.discard_parts(job.id, job.fence)
    return ends


def _by_steps(runner: Runner | None) -> set[str]:
    """The providers that spent in paid steps only, as the runner saw them; see `Pump`."""
    health = {} if runner is None else codec.loads(runner.health_json)
    return set(health.get("by_steps", ()))


def _has_paid(store: Store, job: Job) -> bool:
    return any(step.is_paid for step in store.steps(job.number))


def doubtful_steps(store: Store, job: Job, receipts: Receipts) -> list[str]:
    """The paid steps of a job whose end nobody told, by name.

    One that has a receipt is repaired on the way.
    """
    open_steps = [
        step
        for step in store.steps(job.number)
        if step.is_paid and step.state == "intent" and step.generation == job.generation
    ]
    kept = receipts.find({step.key for step in open_steps})
    doubtful = []
    for step in open_steps:
        if step.key not in kept:
            doubtful.append(step.name)
            continue
        value_json = kept[step.key]
        handle = handle_of(step.name, codec.loads(value_json))
        handle_json = None if handle is None else codec.dumps(handle, "handle")
        try:
            store.repair_step(step, value_json, handle_json)
        except StoreError as error:
            if not error.facts.get("is_refused"):
                raise
            # What the database does not take of one job must not keep the others from going on.
            log.warning("job %s: its receipt cannot be used: %s", job.number, error)
            doubtful.append(step.name)
    if doubtful and (damaged := _damaged(receipts, open_steps)):
        note = f"its receipt cannot be read ({damaged}); look at the provider's pages"
        data_json = codec.dumps({"note": codec.clean_text(note)})
        store.log(Event("job.doubt_noted", job.number, 0, "warning", job.fence, data_json))
    return doubtful


def _damaged(receipts: Receipts, open_steps: Sequence[Step]) -> str | None:
    """Which line of the receipts is that of one of these steps, and what is wrong with it."""
    keys = {step.key for step in open_steps}
    try:
        found = [line for line in receipts.damaged() if line.key in keys]
    except OSError as error:
        return str(error)
    return f"line {found[0].line} of {receipts.path.name}: {found[0].why}" if found else None
