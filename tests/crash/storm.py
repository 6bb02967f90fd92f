"""A storm: 200 jobs at a provider with every knob turned, a process that dies, and a person.

`Storm.rage` runs it to its end, `Storm.wrong` holds the queue's books against the provider's.
All that chance decides here is drawn from the seed: the provider's knobs, what it does to
which request, after how many of its requests the process is killed, what the person does.
Only real time is not: how far each thread had come when the kill hit.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from crash_kit import Child, most_at_once

from vqkit import Queue
from vqkit.errors import LifecycleError
from vqkit.job import Account, Attempt, Job
from vqkit.mock import MockProvider, Render, content
from vqkit.policy import FOR_EVER_MS

JOBS, KILLS = 200, 20
CAPACITY = {"a": 6, "b": 3, "c": 2}
LIMITS = {"a": 5, "b": 3, "c": 2}  # of the provider; for a, the queue was told one too many
MODELS = ("fox-1", "fox-2", "old")
GRACE_S, PATIENCE_S = 0.5, 12.0
DEADLINE_S = 240.0
PRICE, TOP_UP = 250_000, 4_000_000
LINES_A_JOB = 12  # about how many lines of the ledger a job comes to
# Each of them would leave nothing to compare, or nothing that could be noticed.
LEFT_ALONE = {
    "tells_cost": "a provider that never says what it bills leaves nothing to compare",
    "tells_size": "what is cut short and tells neither size nor length looks whole to anybody",
    "suffix": "a name",
}
# The provider at hand is another one each time the process starts.
WEATHER: dict[str, tuple[Any, ...]] = {
    "retry_after_as": ("seconds", "date", "ms", "body", "text", "none"),
    "download": ("length", "gzip", "chunked", "close"),
    "files": ("api", "redirect", "cdn"),
    "etag": ("steady", "changing", "rude", "none"),
    "ranges": (True, False),
    "expired_status": (403, 404, 410),
    "progress": ("backwards", "stuck", "none"),
    "overflow": ("reject", "queue"),
    "cancel": ("any", "queued_only", "none"),
    "cancel_is_async": (True, False),
}


def climate(kind: str, seed: int) -> dict[str, Any]:
    """The knobs that stay through one storm."""
    draw = random.Random(f"climate {kind} {seed}")
    return {
        "seed": seed,
        "idempotency": kind,
        "key_ttl_s": 10,
        "clock_offset_s": draw.choice((-41.5, 23.25)),
        "error_status": (500, 502, 504),
        **{"render_s": 0.05, "render_spread": 0.9, "render_polls": 1},
        **{"answer_s": 0.01, "answer_spread": 0.9, "poll_after_s": 0.04},
        **{"not_found_polls": 1, "list_lag_s": 0.1, "forget_s": 4},
        "concurrency": LIMITS,
        "limits_scope": draw.choice(("account", "account+model")),
        **{"per_minute": {"c": 30}, "per_day": {"b": 40}, "retry_after_s": 0.4},
        **{"cost_microusd": PRICE, "cost_spread": 0.6},
        "billed_on": draw.choice(("submit", "start", "success")),
        "moderated_on": draw.choice(("submit", "render")),
        "moderated_billed": draw.random() < 0.7,
        "cancel_billed": draw.random() < 0.5,
        "balance_microusd": {"a": TOP_UP, "c": TOP_UP},
        "revoke_after": 14,
        **{"outputs": 2, "size": 3000, "slow_s": 0.01},
        "fresh_links": (is_fresh := draw.random() < 0.7),
        "link_ttl_s": 0.6 if is_fresh else 2.0,
        "download_needs_key": True,
        **{"rate": 0.03, "drop_before": 0.03, "error_before": 0.03, "invalid": 0.01},
        **{"die_after": 0.01, "drop_after": 0.03, "error_after": 0.03, "html_after": 0.02},
        **{"moderated": {"share": 0.06, "first": 1}, "render_failed": 0.06, "no_outputs": 0.03},
        **{"poll_rate": 0.02, "poll_drop": 0.03, "poll_error": 0.03, "poll_html": 0.02},
        "unknown_state": 0.05,
        **{"file_error": 0.05, "file_html": 0.03, "truncate": 0.08, "wrong_length": 0.03},
    }


class Storm:
    """One of them. `start` starts a task of `crash_tasks`; `folder` is its own."""

    def __init__(self, start: Callable[..., Child], folder: Path, kind: str, seed: int) -> None:
        self.kind, self.seed, self.folder = kind, seed, folder
        self.db, self._start, self._draw = folder / "q.db", start, random.Random(f"{kind} {seed}")
        self.prompts = [
            {
                "prompt": f"a storm over {kind}, {n}",
                "seed": n,
                "model": MODELS[2 if n % 13 == 12 else n % 2],
            }
            for n in range(JOBS)
        ]
        self.kills = 0
        self.did: Counter[str] = Counter()
        self.paid_again: set[str] = set()
        self.wrong: list[str] = []
        self.jobs: dict[int, Job] = {}
        self.renders: list[Render] = []
        self.statuses: Counter[str] = Counter()
        self.faults: dict[str, int] = {}
        self._asked_again: set[int] = set()
        self._generations = dict.fromkeys(CAPACITY, 1)
        self._allowed = {"b": 40}
        self._funds = dict.fromkeys("ac", TOP_UP)
        self._ledger = folder / "ledger.jsonl"
        self._known: dict[str, Render] = {}
        self._lines = self._at = 0
        self.mock: Any = None

    # -- the storm ---------------------------------------------------------------------------

    def rage(self) -> None:
        """Runs it until every job is over and the process was killed often enough."""
        knobs = climate(self.kind, self.seed)
        self._tell_keys()
        self._end_s = time.monotonic() + DEADLINE_S
        with (
            MockProvider(ledger=self._ledger, **knobs) as self.mock,
            Queue(self.db) as self.q,
        ):
            for self._round in itertools.count(1):
                self._person(is_at_rest=self._live_once())
                self._give_another_chance()
                open_jobs = self._open()
                if not open_jobs and self._is_settled():
                    break
                assert time.monotonic() < self._end_s, f"{open_jobs} not over: {self.story()}"
            self._find_wrong()

    def _live_once(self) -> bool:
        """One life of the process; True if it came to rest before it was killed."""
        weather = {name: self._draw.choice(words) for name, words in WEATHER.items()}
        if self._round == 6:
            weather["retired"] = (MODELS[2],)
        if self._round == 8:
            weather["key_generation"] = {"b": 2}
        self._turn(**weather)
        child = self._start(
            "storm",
            db=self.db,
            url=self.mock.url,
            can=asdict(replace(self.mock.capabilities(), not_found_grace_s=GRACE_S)),
            capacity=CAPACITY,
            keys={
                n: [str(self.mock.account(n, generation=g).key) for g in (1, 2, 3)]
                for n in CAPACITY
            },
            generations=self.folder / "generations.json",
            prompts=self.prompts,
        )
        moments = [("kill", self._when_to_kill())] if self.kills < KILLS else []
        moments += [("cancel", self._soon()), ("outage", 3 * self._soon())]
        is_at_rest = self._watch(child, dict(moments))
        if not self.mock.is_alive:
            self.mock.restart()
        return is_at_rest

    def _soon(self) -> int:
        return self._seen() + round(self._draw.expovariate(1 / 60))

    def _when_to_kill(self) -> int:
        """At which line of the provider's ledger; sooner the more kills there are to come."""
        left = len(self._open()) or JOBS
        share = LINES_A_JOB * left / (KILLS - self.kills + 1)
        return self._seen() + round(self._draw.uniform(0, 1.5) * share)

    def _watch(self, child: Child, moments: dict[str, int]) -> bool:
        """Does what is to be done while the process lives. True if it ended by itself."""
        restart_s, look_s, delay_s = self._draw.uniform(0, 0.3), 0.0, self._draw.uniform(0, 0.03)
        while child.code is None:
            now_s, seen = time.monotonic(), self._seen()
            if now_s > self._end_s:
                child.end()
                raise AssertionError(f"the storm does not end: {child.said}\n{self.story()}")
            if not self.mock.is_alive:
                time.sleep(restart_s)
                self.mock.restart()
                self.did["provider restarted"] += 1
            due = [what for what, line in moments.items() if line <= seen]
            for what in due:
                del moments[what]
            if "outage" in due and self._draw.random() < 0.3:
                self.mock.kill()
            if "cancel" in due and self._draw.random() < 0.4:
                self._cancel()
            if "kill" in due:
                time.sleep(delay_s)
                child.kill()
                self.kills += child.code == -9
                return False
            if now_s > look_s:
                self._person()
                look_s = now_s + 0.1
            time.sleep(0.005)
        assert child.code == 0, child.said
        self.did["rests"] += 1
        return True

    def _seen(self) -> int:
        """How many lines the provider's ledger has; what they say of renders is read on the way."""
        if self._ledger.exists():
            with self._ledger.open("rb") as file:
                file.seek(self._at)
                whole = file.read().rpartition(b"\n")[0].splitlines()
            self._at += sum(len(line) + 1 for line in whole)
            self._lines += len(whole)
            for kind, facts in map(json.loads, whole):
                if kind == "Render":
                    self._known[facts["id"]] = Render(**facts)
        return self._lines

    def _turn(self, **knobs: Any) -> None:
        """Turns knobs of a provider that may die at any moment; they hold all the same."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            self.mock.set(**knobs)
            return
        self.mock.restart()

    def _open(self) -> list[Job]:
        return self.q.jobs(status=("queued", "running", "in_doubt"))

    def _is_settled(self) -> bool:
        return self.kills >= KILLS and not any(job.is_open for job in self.q.jobs())

    # -- the person --------------------------------------------------------------------------

    def _tell_keys(self) -> None:
        """Which key of each account is to be used, by its number; the keys stay in memory."""
        told = self.folder / "generations.json"
        told.with_suffix(".new").write_text(json.dumps(self._generations))
        told.with_suffix(".new").replace(told)

    def _person(self, is_at_rest: bool = False) -> None:
        """Looks at the queue and at the provider's own pages, and does what they ask for.

        Doubts are the engine's to end until it rests, or for a while: a render that nobody polls
        does not end, and keeps its slot. Where nothing can be asked they are the person's.
        """
        self._seen()
        now_ms = time.time_ns() // 1_000_000
        for account in self.q.accounts:
            until_ms = account.parked_until_ms or 0
            if until_ms == FOR_EVER_MS or until_ms > now_ms + 100_000:
                self._mend(account)
        grace_s = GRACE_S if is_at_rest or self.kind == "none" else PATIENCE_S
        for job in self.q.jobs(status="in_doubt"):
            if now_ms - job.updated_ms > 1000 * grace_s:
                self._decide(job)

    def _mend(self, account: Account) -> None:
        """What the reason says is to be done."""
        reason, name = account.parked_reason or "", account.name
        if "key is not accepted" in reason:
            self._generations[name] = 1 + self._key_generation(name)
            self._tell_keys()
            what = "key replaced"
        elif "balance is used up" in reason:
            self._funds[name] += TOP_UP
            self._turn(balance_microusd=self._funds)
            what = "balance topped up"
        elif "allowance is used up" in reason:
            self._allowed[name] += 60
            self._turn(per_day=self._allowed)
            what = "allowance raised"
        elif "were refused" in reason:
            what = "prompts looked at"
        elif "provider is gone" in reason:
            gone = [j.number for j in self._open() if j.payload["model"] == MODELS[2]]
            if gone:
                self.q.cancel(*gone, status="queued")
            what = "retired model cancelled"
        else:
            raise AssertionError(f"{name} is parked, and does not say what to do: {reason}")
        self.did[what] += 1
        self.q.accounts.unpark(name)

    def _key_generation(self, name: str) -> int:
        """How many keys of an account the provider has revoked."""
        made = sum(render.account == name for render in self._known.values())
        knobs = self.mock._knobs
        return knobs.key_generation.get(name, 1) - 1 + (made >= knobs.revoke_after)

    def _decide(self, job: Job) -> None:
        """Ends a doubt by what the provider's own pages show."""
        (step,) = [s for s in self.q.steps(job) if s.is_paid and s.generation == job.generation]
        sent = [render for render in self._known.values() if render.key == step.key]
        how: Any = "not_sent"
        more: dict[str, Any] = {}
        if sent:
            render = sent[-1]
            age_ms = self._provider_ms() - render.states[-1][1]
            how, more = "attach", {"value": {"id": render.public_id}}
            if render.is_over and (age_ms > 500 or self._draw.random() < 0.2):
                how = self._draw.choice(("pay_again", "pay_again", "pay_again", "give_up"))
                more = {"cost": render.billed_microusd / 1e6}
        with contextlib.suppress(LifecycleError):  # the engine was faster
            self.q.resolve(job.number, how, **more)
            self.did[how] += 1
            if how == "pay_again":
                self.paid_again.add(step.key)

    def _provider_ms(self) -> float:
        return 1000 * (time.time() + self.mock._knobs.clock_offset_s)

    def _cancel(self) -> None:
        """Changes its mind about a job that waits or runs."""
        found = self.q.jobs(status=("queued", "running"))
        if found:
            self.did["cancelled"] += self.q.cancel(
                self._draw.choice(found).number, status=("queued", "running")
            )

    def _give_another_chance(self) -> None:
        """Moderation is flaky: what was refused is asked for again, once."""
        for job in self.q.jobs(status="failed"):
            told = str((job.error or {}).get("message"))
            is_moderated = "this is not allowed" in told or "content_policy" in told
            if is_moderated and job.number not in self._asked_again:
                self._asked_again.add(job.number)
                self.did["asked again"] += self.q.requeue(job.number)

    # -- the books ---------------------------------------------------------------------------

    def _find_wrong(self) -> None:
        """Holds the queue's books against the provider's; what differs goes to `wrong`."""
        self.jobs = {job.number: job for job in self.q.jobs()}
        self.statuses = Counter(job.status for job in self.jobs.values())
        self.attempts, self.renders = self.q.attempts(), self.mock.ledger()
        self.requests = self.mock.requests()
        self.faults = dict(Counter(r.fault for r in self.requests if r.fault).most_common())
        self.did.update(r.what for r in self.requests)
        self.steps = {s.key: s for n in self.jobs for s in self.q.steps(n) if s.is_paid}
        self._expect(len(self.jobs) == JOBS, f"of {JOBS} jobs {len(self.jobs)} are left")
        over = self.statuses.keys() <= {"completed", "failed", "cancelled"}
        self._expect(over, f"not all are over: {self.statuses}")
        for render in self.renders:
            text = f"render {render.id} was made with a key that stands nowhere"
            self._expect(render.key in self.steps, text)
        self._compare_money()
        self._compare_renders()
        self._compare_limits()
        self._compare_files()
        foreign = sum(r.host == "cdn" and r.has_key for r in self.requests)
        self._expect(not foreign, f"a key was sent to another host {foreign} times")

    def _compare_money(self) -> None:
        """By job, by account, by key and in all, in whole micro-dollars."""
        costs = self.q.costs().reset_index()
        costs["microusd"] = (costs["cost"].fillna(0.0) * 1e6).round().astype(int)
        self._expect("estimated" not in set(costs["money"]), "an estimate stands for good")
        # What was forgotten before its cancelled job could be closed is counted as the provider
        # told in its answer, or at the account's price where that answer was lost.
        unknown = costs[costs["money"] == "unknown"]
        told = {
            key: (self.steps[key].value or {}).get("cost_microusd") or PRICE
            for key in unknown["key"].dropna()
        }
        for number, key in {*zip(unknown["job"], unknown["key"], strict=True)}:
            is_gone = self.jobs[number].status == "cancelled" and key in told
            self._expect(is_gone, f"what job {number} cost is not known", number)
        self.did["forgotten when cancelled"] = len(told)
        by: dict[str, Callable[[Render], Any]] = {
            "job": lambda r: self.steps[r.key].job if r.key in self.steps else None,
            "account": lambda r: r.account,
            "key": lambda r: r.key,
        }
        for what, of in by.items():
            billed: Counter[Any] = Counter()
            for r in self.renders:
                billed[of(r)] += told.get(r.key, r.billed_microusd)
            counted = Counter(costs.groupby(what)["microusd"].sum().to_dict())
            for name in sorted({n for n in billed | counted if billed[n] != counted[n]}, key=str):
                step = self.steps.get(name)
                numbers = [name] if what == "job" else [step.job] if step is not None else []
                text = f"the queue counts {counted[name]}, the provider {billed[name]}"
                self._expect(False, f"{what} {name}: {text}", *numbers)
        money = self.q._read(lambda store: store.money(0)).values()
        spent, reserved = (sum(m[i] for m in money) for i in (0, 1))
        total = sum(told.get(r.key, r.billed_microusd) for r in self.renders)
        self._expect(spent == total == costs["microusd"].sum(), f"spent {spent}, billed {total}")
        self._expect(reserved == 0, f"{reserved} are still set aside")

    def _compare_renders(self) -> None:
        """One render a key, and a new key only for a good reason."""
        by_key = {r.key: r for r in self.renders}
        for key, times in Counter(r.key for r in self.renders).items():
            numbers = [self.steps[key].job] if key in self.steps else []
            self._expect(times == 1, f"{key} was rendered {times} times", *numbers)
        for key, step in self.steps.items():
            render = by_key.get(key)
            is_last = step.generation == self.jobs[step.job].generation
            if render is None or is_last or key in self.paid_again:
                continue
            is_bad = render.ends != "succeeded" or render.state == "CANCELLED"
            self._expect(is_bad, f"another one was made though {render.id} was good", step.job)

    def _compare_limits(self) -> None:
        """No account was above its limit, at the provider or here."""
        by_model = self.mock._knobs.limits_scope == "account+model"
        for name, limit in LIMITS.items():
            for model in MODELS if by_model else (None,):
                mine = [r for r in self.renders if r.account == name and model in (None, r.model)]
                most = most_at_once([span for r in mine if (span := _span(r))])
                self._expect(most <= limit, f"{name}: {most} renders at once, its limit is {limit}")
                # One that collects what is open needs no slot: it may have been a doubt meanwhile.
                tries = [
                    (a.started_ms, a.finished_ms or 0)
                    for a in self.attempts
                    if a.account == name
                    and model in (None, self.jobs[a.job].payload["model"])
                    and not self._collects(a)
                ]
                most = most_at_once(tries)
                self._expect(most <= CAPACITY[name], f"{name}: {most} attempts at once")

    def _compare_files(self) -> None:
        """Every finished file is what was rendered, whole and of one version."""
        last = {self.steps[r.key].job: r for r in self.renders if r.key in self.steps}
        files = defaultdict(list)
        for output in self.q._current_outputs():
            files[output.job].append((self.db.with_suffix("") / output.path).read_bytes())
        for number, job in self.jobs.items():
            if job.status == "completed" or number in files:
                is_whole = number in last and _are_of(last[number], files[number])
                self._expect(is_whole, f"job {number}: its files are not what was made", number)

    def _collects(self, attempt: Attempt) -> bool:
        """True if it was begun with a render that was open already."""
        opened_ms = [
            step.ended_ms
            for step in self.steps.values()
            if (step.job, step.generation) == (attempt.job, attempt.generation) and step.ended_ms
        ]
        return bool(opened_ms) and opened_ms[0] <= attempt.started_ms

    def _expect(self, is_so: bool, otherwise: str, *jobs: int) -> None:
        if not is_so:
            self.wrong.append("\n".join([otherwise, *(self.tell(n) for n in jobs)]))

    def story(self) -> str:
        """How it went, and how to do it again."""
        return (
            f"{self.kind}, seed {self.seed}: {dict(self.statuses)} after {self.kills} kills in"
            f" {self._round} lives; {dict(self.did)}; faults {self.faults}; again:"
            f" VQKIT_STORM_SEED={self.seed} pytest tests/crash/test_crash_storm.py -k {self.kind}"
        )

    def tell(self, number: int) -> str:
        """A job, all that happened to it, and what the provider has of it."""
        job, steps = self.jobs[number], [s for s in self.steps.values() if s.job == number]
        keys = {step.key for step in steps}
        mine = {r.id: r for r in self.renders if r.key in keys}
        lines = [f"job {number}: {job}, {job.reason}"]
        lines += [f"step {s.generation}: {s.state} {s.key} {s.account} {s.value}" for s in steps]
        lines += [f"{a._replace(error_json=None)}" for a in self.attempts if a.job == number]
        for event in self.q.events(job=number):
            lines.append(f"{event.at_ms} {event.fence} {event.type} {event.data_json[:300]}")
        lines += [f"{replace(render, request={})}" for render in mine.values()]
        for r in self.requests:
            if r.render in mine and r.what in ("submit", "cancel"):
                lines.append(f"{r.what} at {r.at_ms}: {r.status} {r.fault}")
        return "\n  ".join(lines)


def _span(render: Render) -> tuple[int, int] | None:
    """When it ran at the provider."""
    states = dict(render.states)
    ended = [states[word] for word in ("SUCCEEDED", "FAILED", "CANCELLED") if word in states]
    return (states["RUNNING"], ended[0]) if "RUNNING" in states and ended else None


def _are_of(render: Render, files: list[bytes]) -> bool:
    """True if these are the render's results, each of them whole and of one version."""
    size, versions = climate("", 0)["size"], range(render.fetches + 1)
    found = [
        any(content(render.fingerprint, number, size, version) == data for version in versions)
        for number, data in enumerate(files)
    ]
    return len(found) == climate("", 0)["outputs"] and all(found)
