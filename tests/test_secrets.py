"""A key is named, resolved, and taken out of whatever is kept or shown."""

from __future__ import annotations

import base64
import html
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

import openpyxl
import pytest
from clocks import ManualClock
from hypothesis import given
from hypothesis import strategies as st

import vqkit
from vqkit import Queue, secrets
from vqkit.attempt import ActiveJob
from vqkit.doctor import examine
from vqkit.errors import CredentialError, UsageError
from vqkit.job import Account, Job, Step
from vqkit.policy import Decision
from vqkit.receipts import Receipts
from vqkit.secrets import RedactingFilter, check_reference, redact, redact_json, resolve
from vqkit.store.base import Claim, JobFilter, Runner, Transition
from vqkit.store.sqlite import SqliteStore

KEY = "sk-live-4f9a!b/c+d=e"
AWKWARD = 'pa"ss\\wörd &<é>+/='
CYRILLIC = "ключ-<секрет>-1"


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


@pytest.mark.parametrize("key", [KEY, AWKWARD, CYRILLIC])
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
        html.escape,
        lambda key: html.escape(key, quote=False),
        lambda key: html.escape(json.dumps({"key": key})),
        lambda key: repr(key.encode()),
        lambda key: json.dumps({"message": repr(f"key={key}".encode())}),
        lambda key: key.encode().decode("latin-1"),
        lambda key: key.encode().hex(),
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


# -- paid answers, JSON, and texts that are cut -------------------------------------------------


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=12),
    lambda parts: (
        st.lists(parts, max_size=4) | st.dictionaries(st.text(max_size=6), parts, max_size=4)
    ),
    max_leaves=12,
)


@given(value=JSON, key=st.text('nut0128-\\"é\n', min_size=4, max_size=8))
def test_redacted_json_is_json_that_says_the_same_but_for_the_key(value: object, key: str) -> None:
    secrets._known = ()
    secrets.remember(key)
    text = json.dumps({"value": value, "key": f" {key} "})
    clean = json.loads(redact_json(text))
    assert set(clean) == {"value", "key"}
    assert key not in clean["key"]
    if key not in str(value) and not secrets.holds_secret(str(value)):
        assert clean["value"] == value


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        ("123456", {"id": 91234567, "task": "task-91234567-b"}),
        ("nvapi-ABCDEFGH12345678", {"text": "x\nvapi-ABCDEFGH12345678"}),
        ("u2028-secret-key", {"text": "\u2028-secret-key"}),
        ("abc12", {"id": "xabc123"}),
    ],
)
def test_an_answer_that_only_looks_like_the_key_is_kept_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, answer: dict[str, object]
) -> None:
    job, step, kept = paid_once(tmp_path, monkeypatch, key, answer)
    assert (job.status, job.result, step.value, kept) == ("completed", answer, answer, answer)


@pytest.mark.parametrize(
    ("key", "answer", "redacted"),
    [
        ("8412345678", {"id": "t0", "user": 8412345678}, {"id": "t0", "user": "[key]"}),
        ("8412345678", {"user": -8412345678.0, "n": 1}, {"user": "[key]", "n": 1}),
        (KEY, {"url": f"https://x/?k={KEY}&n=1"}, {"url": "https://x/?k=[key]&n=1"}),
        ("abc12", {"user": "abc12", "n": 7}, {"user": "[key]", "n": 7}),
    ],
)
def test_an_answer_that_holds_the_key_completes_its_step_without_it_and_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    answer: dict[str, object],
    redacted: dict[str, object],
) -> None:
    job, step, kept = paid_once(tmp_path, monkeypatch, key, answer)
    assert (job.status, job.result, step.value, kept) == ("completed", redacted, redacted, redacted)
    with Queue(tmp_path / "q.db") as q:
        (told,) = [e for e in q.events(job=1) if e.type == "job.logged"]
    assert "kept with [key] in its place" in told.data["message"]
    assert not files_that_hold(key, tmp_path)


def paid_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, key: str, answer: dict[str, object]
) -> tuple[Job, Step, object]:
    """A job whose paid call gave that: the job, its step, and what its receipt says."""
    monkeypatch.setenv("STUDIO_KEY", key)

    def render(job: ActiveJob) -> object:
        job.credential()
        return job.once("submit", lambda: answer, paid=True)

    with Queue(folder / "q.db") as q:
        q.accounts.add("render", provider="render", credential="env:STUDIO_KEY")
        q.put({"prompt": "a fox"})
        q.run(render)
        (step,) = q.steps(1)
        receipts = Receipts(folder / "q.db-vqkit" / "receipts.jsonl")
        return q.job(1), step, json.loads(receipts.find({step.key})[step.key])


@pytest.mark.parametrize("key", ["SECRETKEY-abcdefghijklmnopqrstuvwxyz0123456789", "abc12"])
def test_a_text_is_redacted_before_it_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("STUDIO_KEY", key)

    class Long:
        def __repr__(self) -> str:
            return "z" * (2000 - len(key) + 2) + f" {key} more"

    def render(job: ActiveJob) -> object:
        job.credential()
        job.log("x" * (2000 - len(key) + 2) + f" {key} tail")
        job.stage("x" * (80 - len(key) + 2) + f" {key}")
        job.once("submit", lambda: {1: "z" * (8192 - 10 - len(key)) + f" {key} more"}, paid=True)
        if job.number == 1:
            raise ValueError("y" * 497 + f" {key} zzz" + "y" * 4000)
        return {"o": Long()}

    with Queue(tmp_path / "q.db") as q:
        q.accounts.add("render", provider="render", credential="env:STUDIO_KEY")
        q.put_many([{"n": 1}, {"n": 2}], max_attempts=1)
        q.run(render)
        assert q.job(1).error is not None
        assert not files_that_hold(key[:4], tmp_path)


@pytest.mark.parametrize(
    ("key", "text", "clean"),
    [
        ("abc12", "with abc12, abc123 and xabc12", "with [key], abc123 and xabc12"),
        ("abc12", "'line\\nabc12'", "'line\\n[key]'"),
        ("12345678", "12345678 of 912345678", "[key] of 912345678"),
    ],
)
def test_a_key_that_might_be_a_part_of_a_word_is_taken_out_as_a_word(
    key: str, text: str, clean: str
) -> None:
    secrets.remember(key)
    assert redact(text) == clean


def test_a_damaged_receipt_holds_its_own_job_only(tmp_path: Path) -> None:
    db = tmp_path / "q.db"
    with Queue(db) as q:
        q.accounts.add("render", provider="render", capacity=4)
        q.put_many([{"n": n} for n in range(6)])

        def die(store: SqliteStore) -> list[Step]:
            claimed = store.turn(claim=Claim("dead", lambda account: None)).claimed
            options = {"is_paid": True, "request_json": None}
            return [store.begin_step(j.number, j.fence, "submit", **options)[0] for j in claimed]

        steps = q._write(die)
        answers = ['{"id":"t0","user":[key]}', "NaN", "[" * 10**5, '{"id":"good"}']
        lines = [
            json.dumps({"key": s.key, "value": v}) for s, v in zip(steps, answers, strict=True)
        ]
        receipts = tmp_path / "q.db-vqkit" / "receipts.jsonl"
        receipts.write_text("\n\n".join([*lines[:3], "{torn", lines[3]]))
        (found,) = [check for check in examine(db) if check.name == "receipts"]
        assert (found.level, "3 cannot be read" in found.found) == ("problem", True)
        assert "line 1, of job 1" in found.found

        q.run(lambda job: job.once("submit", lambda: "new", paid=True), provider="render")
        assert [job.status for job in q.jobs()] == ["in_doubt"] * 3 + ["completed"] * 3
        assert [q.job(n).result for n in (4, 5, 6)] == [{"id": "good"}, "new", "new"]
        (told,) = [e for e in q.events(job=1) if e.type == "job.doubt_noted"]
        assert "line 1 of receipts.jsonl: JSONDecodeError" in told.data["note"]
        q.resolve(1, "attach", value="t0")
        q.run(lambda job: job.once("submit", lambda: "new", paid=True), provider="render")
        assert q.job(1).result == "t0"


def test_what_the_database_never_takes_is_the_handlers_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vqkit.store.paid.redact_json", lambda text: text.replace("7", "[key]"))
    with Queue(tmp_path / "q.db") as q:
        q.put_many([{"n": 7}, {"n": 8}], max_attempts=1)
        q.run(lambda job: job.once("submit", lambda: dict(job.payload), paid=True))
        assert [job.status for job in q.jobs()] == ["failed", "completed"]
        assert "CHECK constraint failed" in str(q.job(1).error)


def test_a_key_in_a_row_is_refused_before_it_was_ever_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Queue(tmp_path / "q.db") as q:
        q.accounts.add("a", provider="render", credential="env:STUDIO_KEY")
        monkeypatch.setenv("STUDIO_KEY", KEY)  # set after the queue was opened
        with pytest.raises(UsageError, match="holds the key of one of your accounts"):
            q.put({"prompt": f"a fox {KEY}"})
        added = q.put_many([{"prompt": "a fox"}, {"prompt": KEY}])
        assert (added.new, added.skipped) == (1, 1)
    assert KEY.encode() not in b"".join(
        path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    )


def test_a_key_that_came_before_its_account_is_neither_saved_nor_shown_nor_a_file_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def render(job: ActiveJob) -> dict[str, object]:
        with job.output(".bin") as path:
            path.write_bytes(b"x")
        return {"clip": path}

    with Queue(tmp_path / "q.db") as q:
        q.put({"prompt": f"{KEY} runs", "note": f"<{KEY}>"})
        monkeypatch.setenv("STUDIO_KEY", KEY)
        q.accounts.add("a", provider="render", credential="env:STUDIO_KEY")
        for name in ("before.csv", "before.jsonl", "before.xlsx"):
            q.save(tmp_path / name)
        summary = q.run(render, executor="process")  # in a worker that asked for no key
        assert summary.is_complete
        q.save(tmp_path / "after.csv")
        [clip] = q.outputs()
        assert clip.name.startswith("00001-key-runs-")
        assert clip.exists()
        shown = q.job(1)._repr_html_() + q.to_frame().to_csv() + str(list(q.records()))
    assert KEY not in shown
    for path in tmp_path.rglob("*"):
        assert "4f9a" not in path.name
    saved = b"".join(path.read_bytes() for path in tmp_path.glob("*.[cj]s*"))
    assert b"[key]" in saved
    assert KEY.encode() not in saved
    cells = openpyxl.load_workbook(tmp_path / "before.xlsx").worksheets[0].values
    assert KEY not in str(list(cells))


HANDLES = [
    {"url": f"https://api.example/t/1?key={urllib.parse.quote(KEY, safe='')}"},
    {"id": "t-1", "token": KEY, "more": [{"again": f"Bearer {KEY}"}]},
    {"id": "t-1"},
]


@pytest.mark.parametrize("handle", HANDLES)
def test_a_handle_that_holds_the_key_is_kept_without_it_and_asked_with_it(
    handle: dict[str, object], key: str
) -> None:
    kept = secrets.veiled(handle, key)
    assert redact_json(json.dumps(kept)) == json.dumps(kept)
    assert (kept == handle) is (handle == {"id": "t-1"})
    assert secrets.unveiled(kept, key) == handle
    assert "another-key" in str(secrets.unveiled(kept, "another-key")) or kept == handle


@pytest.mark.parametrize("own", ["test", "demo"])
def test_a_placeholder_for_a_key_leaves_the_ids_of_renders_as_they_are(own: str) -> None:
    handle = {"id": "latest-77", "url": "https://api.example/t/demo-77"}
    assert secrets.veiled(handle, own) == handle


def test_what_was_taken_out_of_a_handle_by_others_is_not_taken_for_the_own_key(key: str) -> None:
    with pytest.raises(KeyError):
        secrets.unveiled({"id": f"{secrets.REDACTED}-77"}, key)


def test_a_handle_whose_key_cannot_be_put_back_is_told_apart(key: str) -> None:
    basic = base64.b64encode(f"user:{key}".encode()).decode()
    kept = secrets.veiled({"auth": basic}, key)
    assert not secrets.holds_secret(json.dumps(kept))
    with pytest.raises(KeyError):
        secrets.unveiled(kept, key)
    with pytest.raises(KeyError):  # its account has no key any more
        secrets.unveiled(secrets.veiled({"token": key}, key), None)
