"""A key is named, resolved, and taken out of whatever is kept or shown."""

from __future__ import annotations

import base64
import importlib
import json
import logging
import pkgutil
import subprocess
import sys
import types
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest
from clocks import ManualClock

import vqkit
from vqkit import secrets
from vqkit.errors import CredentialError, UsageError
from vqkit.job import Account, Job
from vqkit.policy import Decision
from vqkit.secrets import RedactingFilter, check_reference, redact, redact_json, resolve
from vqkit.store.base import Claim, JobFilter, Runner, Transition
from vqkit.store.sqlite import SqliteStore

KEY = "sk-live-4f9a!b/c+d=e"
AWKWARD = 'pa"ss\\wörd &<é>+/='


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_known", ())


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("STUDIO_KEY", KEY)
    return resolve("env:STUDIO_KEY")


@pytest.mark.parametrize("reference", [None, "env:RUNWAY_KEY", "keyring:runway/studio-a"])
def test_a_reference_is_accepted(reference: str | None) -> None:
    assert check_reference(reference) == reference


@pytest.mark.parametrize(
    "bare", [KEY, "env:", "env:A=sk-live-1234", "env:two words", "keyring:runway", "keyring:/x", ""]
)
def test_what_is_no_reference_is_refused_and_not_repeated(bare: str) -> None:
    with pytest.raises(UsageError, match="never the key itself") as caught:
        check_reference(bare)
    assert "sk-live" not in str(caught.value) + repr(caught.value.facts)


def test_a_key_is_read_from_the_environment_and_stripped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUDIO_KEY", f"  {KEY}\n")
    assert resolve("env:STUDIO_KEY") == KEY


@pytest.mark.parametrize("value", [None, "", "  "])
def test_a_key_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("STUDIO_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("STUDIO_KEY", value)
    with pytest.raises(CredentialError, match="STUDIO_KEY is not set; set it") as caught:
        resolve("env:STUDIO_KEY")
    assert caught.value.reference == "env:STUDIO_KEY"


@pytest.fixture
def fake_keyring(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], str]:
    entries: dict[tuple[str, str], str] = {}
    errors = types.ModuleType("keyring.errors")
    errors.KeyringError = type("KeyringError", (Exception,), {})  # type: ignore[attr-defined]
    fake = types.ModuleType("keyring")

    def get_password(service: str, name: str) -> str | None:
        if service == "locked":
            raise errors.KeyringError("the keyring is locked")
        return entries.get((service, name))

    fake.get_password = get_password  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", fake)
    monkeypatch.setitem(sys.modules, "keyring.errors", errors)
    return entries


def test_a_key_is_read_from_the_keyring(fake_keyring: dict[tuple[str, str], str]) -> None:
    fake_keyring["runway", "studio/a"] = KEY
    assert resolve("keyring:runway/studio/a") == KEY
    assert redact(f"Bearer {KEY}") == "Bearer [key]"


def test_a_keyring_that_has_nothing_or_does_not_answer_says_so(fake_keyring: object) -> None:
    with pytest.raises(CredentialError, match="keyring:runway/b is not set"):
        resolve("keyring:runway/b")
    with pytest.raises(CredentialError, match="did not answer for keyring:locked/b"):
        resolve("keyring:locked/b")


def test_a_missing_keyring_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(CredentialError, match=r"pip install 'vqkit\[keyring\]'"):
        resolve("keyring:runway/a")


@pytest.mark.parametrize("key", [KEY, AWKWARD])
@pytest.mark.parametrize(
    "encoded",
    [
        lambda key: key,
        repr,
        json.dumps,
        lambda key: json.dumps(key, ensure_ascii=False),
        lambda key: json.dumps({"message": f"ValueError({key!r})"}),
        lambda key: json.dumps({"body": json.dumps({"token": key})}),
        lambda key: urllib.parse.quote(key),
        lambda key: urllib.parse.quote(key, safe=""),
        urllib.parse.quote_plus,
        lambda key: urllib.parse.urlencode({"token": key}),
        lambda key: base64.b64encode(key.encode()).decode(),
        lambda key: base64.urlsafe_b64encode(key.encode()).decode(),
        lambda key: base64.b64encode(f"user:{key}".encode()).decode(),
        lambda key: base64.b64encode(f"{key}:".encode()).decode(),
    ],
)
def test_a_key_is_taken_out_in_every_form_it_takes(key: str, encoded: object) -> None:
    secrets.remember(key)
    text = encoded(key)  # type: ignore[operator]
    clean = redact(f"before {text} after")
    assert "[key]" in clean
    assert clean.startswith("before ")
    assert not secrets.holds_secret(clean)
    assert key not in clean


def test_of_two_keys_the_longer_goes_first() -> None:
    secrets.remember("studio-key")
    secrets.remember("studio-key-and-more")
    assert redact("studio-key-and-more") == "[key]"


def test_words_are_not_taken_for_keys() -> None:
    secrets.remember("fox")
    assert not secrets.is_any_known()
    assert redact("a fox in the snow") == "a fox in the snow"


def test_redacted_json_stays_json() -> None:
    secrets.remember("1234567890")
    secrets.remember("token-9")
    value = {"id": 1234567890, "n": [7, None, True], "text": "\token-9", "1234567890": "x"}
    assert json.loads(redact_json(json.dumps(value))) == {
        "id": "[key]",
        "n": [7, None, True],
        "text": "\token-9",
        "[key]": "x",
    }


def test_the_log_filter_takes_keys_out_of_message_arguments_and_traceback(key: str) -> None:
    logger = logging.getLogger("tests.secrets")
    seen: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(self.format(record))

    handler = Keep()
    handler.addFilter(RedactingFilter())
    logger.addHandler(handler)
    try:
        try:
            raise ValueError(f"401 for {key}")
        except ValueError:
            logger.exception("sent %s to %s", key, "host")
    finally:
        logger.removeHandler(handler)
    assert "sent [key] to host" in seen[0]
    assert "ValueError: 401 for [key]" in seen[0]
    assert key not in seen[0]


def test_every_logger_of_vqkit_has_the_filter() -> None:
    for module in pkgutil.walk_packages(vqkit.__path__, "vqkit."):
        if "__main__" not in module.name:
            importlib.import_module(module.name)
    made = [
        log for log in logging.root.manager.loggerDict.values() if isinstance(log, logging.Logger)
    ]
    ours = {log.name: log.filters for log in made if log.name.startswith("vqkit.")}
    assert ours
    assert [
        n for n, has in ours.items() if not any(isinstance(f, RedactingFilter) for f in has)
    ] == []


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "q.db", clock=ManualClock())
    store.save_account(Account("a", "p", 9, credential="env:STUDIO_KEY"))
    yield store
    store.close()


def files_that_hold(text: str, folder: Path) -> str:
    """Looked for by another process: this one must not open a database that is in use."""
    found = subprocess.run(["grep", "-rlaF", text, folder], capture_output=True, text=True)
    assert found.returncode in (0, 1), found.stderr
    return found.stdout


def test_a_key_never_lands_in_the_database_whoever_says_it(
    store: SqliteStore, key: str, tmp_path: Path
) -> None:
    claim = Claim("me", lambda account: None)
    store.put([Job(0, f"id{n}", f'{{"n":{n}}}') for n in range(6)])
    jobs = {job.number: job for job in store.turn(claim=claim).claimed}
    said = json.dumps({"text": f"used {key}"})
    error = json.dumps({"type": "E", "message": key, "traceback": f"f({key!r})"})

    def note(number: int, verb: str, outcome: str | None = None, **change: object) -> Transition:
        return Transition(number, verb, jobs[number].fence, change, outcome)

    retry = {"not_before_ms": None, "error_json": error, "reason": key}
    store.turn(
        [
            note(1, "stage", stage=f"with {key}"),
            note(1, "log", message=f"sending {key}"),
            note(1, "complete", "completed", result_json=said),
            note(2, "fail", "error", error_json=error, reason=key),
            note(3, "retry", "error", **retry),
            note(4, "snooze", "snoozed", not_before_ms=None, reason=key),
            note(5, "stage", stage=key),
            note(6, "release", "released", reason=key),
        ],
        runner=Runner("me", 1, "host", "boot", 1, 1, error=key, health_json=said),
    )
    store.transition(JobFilter(numbers=(6,)), "cancel", reason=key)
    dead = Decision("reclaim", {"to": "failed", "reason": key, "error_json": error})
    store.reclaim("me", lambda job: (dead, ()))
    store.turn([note(5, "complete", "completed", result_json=said)])  # too late, and kept
    store.save_account(Account("a", "p", 9, parked_until_ms=1, parked_reason=f"401: {key}"))

    assert store.job(1).result == {"text": "used [key]"}
    assert store.job(2).reason == "[key]"
    assert store.attempts(5)[0].late_result_json == '{"text":"used [key]"}'
    assert store.log_bytes() > 0  # the write-ahead log is looked through, too
    assert files_that_hold("[key]", tmp_path)
    assert not files_that_hold(key, tmp_path)
    store.close()
    assert files_that_hold("[key]", tmp_path)
    assert not files_that_hold(key, tmp_path)


def test_a_key_made_of_digits_does_not_break_what_holds_a_number(store: SqliteStore) -> None:
    secrets.remember("1234567890")
    store.put([Job(0, "id1", "{}")])
    job = store.turn(claim=Claim("me", lambda account: None)).claimed[0]
    change = {"result_json": '{"id":1234567890}'}
    store.turn([Transition(job.number, "complete", job.fence, change, "completed")])
    assert store.job(1).result == {"id": "[key]"}
