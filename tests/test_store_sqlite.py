"""The contract on SQLite, and what is SQLite's own: the file, its log, its locks, the disk."""

from __future__ import annotations

import contextlib
import inspect
import os
import pickle
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from clocks import ManualClock
from store_contract import ALL, StoreContract, a_claim, a_job, bring, claim, everything, settle

from vqkit.errors import (
    NewerDatabase,
    NotAQueue,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreLost,
    StoreReadOnly,
)
from vqkit.job import Account, Job
from vqkit.outcome import Bill
from vqkit.store import sqlite
from vqkit.store import thread as thread_module
from vqkit.store.base import JobFilter, Runner, Transition
from vqkit.store.files import WriteMutex, process_note
from vqkit.store.sqlite import HOT_STATEMENTS, SqliteStore
from vqkit.store.thread import StoreThread

# Python 3.12 and later warn of a fork beside threads, which is what is tested.
FORKS = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "q.db"


@pytest.fixture
def store(clock: ManualClock, path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path, clock=clock, busy_timeout_s=0.05)
    yield store
    store.close()


class TestSqlite(StoreContract):
    @pytest.fixture
    def store(self, clock: ManualClock, path: Path) -> Iterator[SqliteStore]:
        store = SqliteStore(path, clock=clock)
        yield store
        store.close()


def foreign(path: Path, **options: Any) -> contextlib.closing[sqlite3.Connection]:
    """Another program's connection: the same library, none of vqkit's manners."""
    return contextlib.closing(sqlite3.connect(path, isolation_level=None, **options))


def ids(store: SqliteStore) -> list[str]:
    return [job.id for job in store.jobs(ALL)]


def wal_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def in_child(function: Callable[[], Any]) -> Any:
    """What the function gives or raises in a forked child."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = function()
        except BaseException as error:  # noqa: BLE001 - raised in the parent
            answer = error
        try:
            os.write(writer, pickle.dumps(answer))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    answer = pickle.loads(said)
    if isinstance(answer, BaseException):
        raise answer
    return answer


def as_nobody(function: Callable[[], Any]) -> Any:
    """The same, without root's power over every file."""

    def dropped() -> Any:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        return function()

    return in_child(dropped)


# -- speed: the plans of what runs at every turn -------------------------------------------------


def plan(store: SqliteStore, sql: str, params: tuple[Any, ...] = ()) -> list[str]:
    return [row[3] for row in store.query(f"EXPLAIN QUERY PLAN {sql}", params)]


@pytest.mark.parametrize("index", HOT_STATEMENTS)
def test_a_hot_statement_uses_the_index_it_names(store: SqliteStore, index: str) -> None:
    sql, params = HOT_STATEMENTS[index]
    steps = plan(store, sql, params)
    touching = [step for step in steps if "jobs" in step]
    assert touching
    assert all(f"INDEX {index}" in step for step in touching), steps
    assert not any("TEMP B-TREE" in step for step in steps), steps


def test_no_statement_of_a_turn_reads_the_whole_table(store: SqliteStore, clock: Any) -> None:
    store.save_account(Account("a", "p", 5))
    done = bring(store, "completed", "1")
    store.put([a_job(n, expires_ms=1, key=f"k{n}") for n in range(3)])
    store.put([a_job("due", not_before_ms=clock.time_ms + 1), a_job("x"), a_job("y")])
    job, _ = claim(store)
    ran: set[str] = set()
    store._conn.set_trace_callback(ran.add)
    clock.time_ms += 5
    store.put([a_job("z", key="k1")])
    settle(store, job)
    store.turn(claim=a_claim(), runner=Runner("me", 1, "h", "b", 1, 1))
    store.transition(JobFilter(numbers=(done.number,)), "requeue")
    store.has_work_for(["", "provider:p"]), store.waiting_lanes(), store.owners(), store.job("id-z")
    store._conn.set_trace_callback(None)
    plans = {sql: plan(store, sql) for sql in ran if sql.startswith(("SELECT", "UPDATE", "WITH"))}
    assert len(plans) > 15
    scans = [
        (sql[:90], step)
        for sql, steps in plans.items()
        for step in steps
        if step.startswith("SCAN jobs") and "INDEX" not in step
    ]
    assert scans == []


@pytest.mark.parametrize(
    "wrong",
    [
        "status = 'completed'",
        "finished_ms = 5",
        "status = 'running'",
        "owner = 'me'",
        "status = 'running', owner = 'me', account = 'a'",
        "status = 'sleeping'",
        "attempt = -1",
        "is_open = 1",
        "payload = 'a fox'",
        "result = 'a fox'",
        "capacity = 0",
    ],
)
def test_the_database_itself_refuses_what_no_job_can_be(store: SqliteStore, wrong: str) -> None:
    store.save_account(Account("a", "p", 1))
    store.put([a_job(1)])
    table = "accounts" if "capacity" in wrong else "jobs"
    with pytest.raises(sqlite3.IntegrityError, match="CHECK constraint failed"):
        store.query(f"UPDATE {table} SET {wrong}")


def test_every_commit_is_synced_to_the_log(store: SqliteStore, path: Path) -> None:
    pragmas = {"journal_mode": "wal", "synchronous": 2, "wal_autocheckpoint": 0}
    assert {name: store.query(f"PRAGMA {name}")[0][0] for name in pragmas} == pragmas
    wal_of(path).unlink()
    store.put([a_job(1)])  # opens anew
    assert {name: store.query(f"PRAGMA {name}")[0][0] for name in pragmas} == pragmas


# -- files that are not ours ---------------------------------------------------------------------


def a_text(path: Path) -> None:
    path.write_text("prompt,seed\na fox,1\n" * 100)


def an_empty_looking_file(path: Path) -> None:
    path.write_bytes(b"\0" * 8192)


def a_database(path: Path) -> None:
    with foreign(path) as db:
        db.executescript("CREATE TABLE foxes (name); INSERT INTO foxes VALUES ('red')")


def a_database_with_a_log(path: Path) -> None:
    """As a crash of its owner leaves it: the newest rows are in the log only."""
    with foreign(path) as db:
        db.executescript("PRAGMA journal_mode = WAL; CREATE TABLE foxes (name)")
        copies = [path.with_name(path.name + end) for end in ("", "-wal")]
        kept = [each.read_bytes() for each in copies]
    for each, content in zip(copies, kept, strict=True):
        each.write_bytes(content)


def a_newer_queue(path: Path) -> None:
    SqliteStore(path).close()
    shutil.rmtree(path.with_name(path.name + "-vqkit"))
    with foreign(path) as db:
        db.execute("UPDATE _sqlite_migrations SET name = 'm999_votes' WHERE name = 'm001_tables'")


def test_a_queue_of_an_older_version_gets_the_newer_index(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    SqliteStore(path).close()
    with foreign(path) as db:
        db.executescript(
            "DROP INDEX jobs_stray; DELETE FROM _sqlite_migrations WHERE name = 'm002_strays'"
        )
    store = SqliteStore(path)
    try:
        assert "jobs_stray" in " ".join(plan(store, *HOT_STATEMENTS["jobs_stray"]))
    finally:
        store.close()


def test_a_queue_of_an_older_version_knows_the_models_of_its_jobs(path: Path) -> None:
    with contextlib.closing(SqliteStore(path)) as store:
        long = "long " * 100
        store.put([a_job(n, {"model": m, "n": n}) for n, m in enumerate(["gen4", None, 4, long])])
    with foreign(path) as db:
        db.executescript(
            "DROP INDEX jobs_by_model; ALTER TABLE jobs DROP COLUMN model;"
            "DELETE FROM _sqlite_migrations WHERE name = 'm003_models'"
        )
    with contextlib.closing(SqliteStore(path)) as store:
        found = store.query("SELECT model FROM jobs ORDER BY number")
        assert [row[0] for row in found] == ["gen4", "", "", long[:200]]
        assert [job.model for job in store.jobs(JobFilter())] == [row[0] for row in found]


def test_a_queue_of_an_older_version_learns_from_now_on_who_shares_a_job(path: Path) -> None:
    with contextlib.closing(SqliteStore(path)) as store:
        store.put([a_job(1, key="k", source="s", row=2, batch="s")])
    with foreign(path) as db:
        db.executescript(
            "DROP TABLE shared_rows;DELETE FROM _sqlite_migrations WHERE name = 'm004_shared_rows'"
        )
    with contextlib.closing(SqliteStore(path)) as store:
        store.put_rows([a_job(1, key="k", source="t", row=5, batch="t")._replace(id="x")], {})
        assert store.rows_shared_by({"t"}) == {1: 5}


def test_a_queue_of_an_older_version_knows_what_its_paid_calls_cost(path: Path) -> None:
    kept = {"is_paid": True, "request_json": None}
    with contextlib.closing(SqliteStore(path)) as store:
        store.save_account(Account("a", "p", 5, limits_json='{"price": 7}'))
        store.put([a_job(n) for n in range(2)])
        for job in store.turn(claim=a_claim()).claimed:
            store.begin_step(job.number, job.fence, "submit", **kept)
            change = {"error_json": None, "reason": "no", "not_before_ms": None}
            verb, bill = ("fail", Bill("unknown")) if job.number == 1 else ("doubt", None)
            store.turn([Transition(job.number, verb, job.fence, change, "error", bill=bill)])
        before = store.steps()
        assert [(s.cost_microusd, s.counted_by) for s in before] == [(7, 1), (7, None)]
    with foreign(path) as db:
        db.executescript(
            "DROP INDEX jobs_paid; ALTER TABLE jobs DROP COLUMN is_short;"
            "ALTER TABLE steps DROP COLUMN cost_microusd;"
            "ALTER TABLE steps DROP COLUMN counted_by;"
            "CREATE INDEX jobs_paid ON jobs (lane);"
            "DELETE FROM _sqlite_migrations WHERE name = 'm007_money_of_steps'"
        )
    with contextlib.closing(SqliteStore(path)) as store:
        assert store.steps() == before


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (a_text, NotAQueue, "is not a database"),
        (an_empty_looking_file, NotAQueue, "is not a database"),
        (a_database, NotAQueue, r"of something else \(tables: foxes\)"),
        (a_database_with_a_log, NotAQueue, r"of something else \(tables: foxes\)"),
        (a_newer_queue, NewerDatabase, r"newer vqkit \(it has m999_votes\)"),
    ],
)
def test_a_file_that_is_not_ours_is_refused_and_left_as_it_was(
    tmp_path: Path, make: Any, error: type[StoreError], says: str, readonly: bool
) -> None:
    path = tmp_path / "theirs.db"
    make(path)
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    with pytest.raises(error, match=says):
        SqliteStore(path, readonly=readonly)
    after = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    for trace in ("-shm", "-wal"):  # what any reader of a database with a log makes
        if not before.get(f"theirs.db{trace}"):
            after.pop(f"theirs.db{trace}", None)
    assert after == before


def test_an_empty_file_becomes_a_queue(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    store = SqliteStore(path)
    store.put([a_job(1)])
    store.close()


def test_a_folder_is_refused_and_a_file_name_suggested(tmp_path: Path) -> None:
    with pytest.raises(NotAQueue, match=r"is a folder; name a file in it"):
        SqliteStore(tmp_path)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that anybody may enter, which pytest's own is not."""
    folder = Path(tempfile.mkdtemp(prefix="vqkit-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@FORKS
@pytest.mark.parametrize("name", ["q.db", "runs/q.db"])
def test_a_folder_that_cannot_be_written_is_named(public: Path, name: str) -> None:
    public.chmod(0o555)
    with pytest.raises(StoreReadOnly, match=f"{public}.*cannot be made: Permission denied"):
        as_nobody(lambda: SqliteStore(public / name))
    assert list(public.iterdir()) == []


@FORKS
def test_somebody_elses_queue_is_not_written_and_the_way_out_is_named(public: Path) -> None:
    store = SqliteStore(public / "q.db")
    store.put([a_job(1)])
    store.close()
    before = (public / "q.db").read_bytes()
    with pytest.raises(StoreReadOnly, match="copy it into a folder of your own"):
        as_nobody(lambda: SqliteStore(public / "q.db"))
    (public / "q.db-vqkit").chmod(0o777)
    for each in (public / "q.db-vqkit").iterdir():
        each.chmod(0o666)
    with pytest.raises(StoreReadOnly, match="copy it into a folder of your own"):
        as_nobody(lambda: SqliteStore(public / "q.db"))
    assert (public / "q.db").read_bytes() == before


def test_a_reader_reads_and_never_writes(store: SqliteStore, path: Path) -> None:
    store.put([a_job(1)])
    reader = SqliteStore(path, readonly=True)
    with reader.reading():
        assert ids(reader) == ["id-1"]
        store.put([a_job(2)])
        assert ids(reader) == ["id-1"]
    assert ids(reader) == ["id-1", "id-2"]
    with pytest.raises(StoreReadOnly, match="read only"):
        reader.put([a_job(3)])
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.query("DELETE FROM jobs")
    reader.close()


def test_a_change_by_somebody_else_is_noticed_and_ones_own_is_not(
    store: SqliteStore, path: Path
) -> None:
    seen = store.changes_elsewhere()
    store.put([a_job(1)])
    assert store.changes_elsewhere() == seen
    other = SqliteStore(path)
    other.put([a_job(2)])
    other.close()
    assert store.changes_elsewhere() != seen


def test_a_backup_opens_and_is_equal(store: SqliteStore, tmp_path: Path) -> None:
    store.save_account(Account("a", "p", 5))
    for status in ("completed", "failed", "queued", "running"):
        bring(store, status, status)
    store.backup(str(tmp_path / "copy.db"))
    copy = SqliteStore(tmp_path / "copy.db")
    assert everything(copy) == everything(store)
    assert copy.verify_counts() == {}
    assert copy.query("PRAGMA integrity_check") == [("ok",)]
    copy.close()
    with pytest.raises(StoreReadOnly, match=r"nowhere/copy\.db cannot be written"):
        store.backup(str(tmp_path / "nowhere" / "copy.db"))


# -- files that are taken away while they are open -----------------------------------------------


def test_a_deleted_log_loses_nothing_and_is_told(store: SqliteStore, path: Path) -> None:
    store.put([a_job(1)])
    wal_of(path).unlink()
    store.put([a_job(2)])
    assert "log file was deleted" in (store.reopened or "")
    store.put([a_job(3)])
    store.close()
    again = SqliteStore(path)
    assert ids(again) == ["id-1", "id-2", "id-3"]
    assert again.query("PRAGMA integrity_check") == [("ok",)]
    again.close()


VIEWER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
print(db.execute("SELECT count(*) FROM jobs").fetchone()[0], flush=True)
sys.stdin.read()
"""


def test_a_log_deleted_just_before_the_end_loses_nothing(store: SqliteStore, path: Path) -> None:
    store.put([a_job(1)])
    with subprocess.Popen(
        [sys.executable, "-c", VIEWER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as viewer:  # without one SQLite itself would save the log at its last close
        assert viewer.stdout is not None
        assert viewer.stdout.readline() == b"1\n"
        wal_of(path).unlink()
        store.close()
        viewer.kill()
    again = SqliteStore(path)
    assert ids(again) == ["id-1"]
    again.close()


def test_a_deleted_log_that_a_reader_holds_is_saved_when_it_lets_go(
    store: SqliteStore, path: Path
) -> None:
    store.put([a_job(1)])
    with foreign(path) as viewer:
        viewer.execute("BEGIN")
        viewer.execute("SELECT count(*) FROM jobs").fetchone()
        store.put([a_job(2)])
        wal_of(path).unlink()
        store.put([a_job(3)])
        assert (store.reopened, ids(store)) == (None, ["id-1", "id-2", "id-3"])
        viewer.execute("COMMIT")
        store.put([a_job(4)])
        assert store.reopened is not None
    store.close()
    again = SqliteStore(path)
    assert ids(again) == ["id-1", "id-2", "id-3", "id-4"]
    again.close()


def test_a_database_that_was_deleted_or_replaced_is_reported_and_not_written(
    store: SqliteStore, path: Path, tmp_path: Path
) -> None:
    store.put([a_job(1)])
    assert store.is_same_file()
    path.rename(tmp_path / "moved.db")
    assert not store.is_same_file()
    with pytest.raises(StoreLost, match="was moved or deleted while the queue was open"):
        store.put([a_job(2)])
    path.write_bytes(b"something new")
    with pytest.raises(StoreLost, match="was replaced while the queue was open"):
        store.put([a_job(3)])
    store.close()
    assert path.read_bytes() == b"something new"
    path.unlink()


def test_a_closed_store_takes_no_more(store: SqliteStore) -> None:
    store.close()
    store.close()
    with pytest.raises(StoreLost, match="closed"):
        store.put([a_job(1)])
    assert not store.is_same_file()


# -- other programs that hold it -----------------------------------------------------------------


def test_a_foreign_writer_makes_it_busy_and_nothing_changes(store: SqliteStore, path: Path) -> None:
    with foreign(path) as db:
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy, match="held by another program that is not vqkit") as caught:
            store.put([a_job(1)])
        assert caught.value.is_unknown is False
        db.execute("ROLLBACK")
    assert ids(store) == []
    store.put([a_job(1)])
    assert ids(store) == ["id-1"]


def test_a_transaction_keeps_writers_out_from_its_first_moment(
    store: SqliteStore, path: Path
) -> None:
    # One that began with a read would fail at its first write, if another had written meanwhile.
    with (
        foreign(path, timeout=0) as db,
        store.transaction(),
        pytest.raises(sqlite3.OperationalError, match="locked"),
    ):
        db.execute("BEGIN IMMEDIATE")


def test_a_long_reader_makes_the_log_grow_until_it_ends(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "CHECKPOINT_BYTES", 50_000)
    with foreign(path) as viewer:
        viewer.execute("BEGIN")
        viewer.execute("SELECT count(*) FROM jobs").fetchone()
        for n in range(20):
            store.put([a_job(n, {"prompt": "x" * 10_000})])
        assert store.log_bytes() > 200_000
        viewer.execute("COMMIT")
        store.put([a_job("last")])
        assert store.log_bytes() == 0
    assert len(ids(store)) == 21
    assert store.query("PRAGMA busy_timeout") == [(50,)]


def test_two_stores_on_one_file_never_claim_the_same_job(path: Path, clock: ManualClock) -> None:
    one, two = SqliteStore(path, clock=clock), SqliteStore(path, clock=clock)
    one.save_account(Account("a", "p", 4))
    one.put([a_job(n) for n in range(9)])
    mine, theirs = claim(one, "one", limit=3), claim(two, "two")
    assert (len(mine), len(theirs)) == (3, 1)
    assert not {job.number for job in mine} & {job.number for job in theirs}
    one.close()
    two.close()


def test_a_running_job_that_another_store_changed_is_settled_as_it_is_now(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    store.save_account(Account("a", "p", 4))
    store.put([a_job(n) for n in range(2)])
    first, second = claim(store)
    settle(store, second, "stage")  # what it wrote itself it need not read again
    other = SqliteStore(path, clock=clock)
    other.transition(JobFilter(numbers=(first.number,)), "cancel")
    settle(store, first, "retry")
    other.close()
    assert store.job(first.number).status == "cancelled"
    settle(store, second, "retry")
    assert store.job(second.number).status == "queued"


def test_whatever_else_writes_jobs_forgets_what_was_written_of_them_before() -> None:
    methods = {n: m for n, m in vars(SqliteStore).items() if callable(m) and n != "_update_jobs"}
    texts = {name: inspect.getsource(method) for name, method in methods.items()}
    writers = [n for n, t in texts.items() if "UPDATE jobs" in t or "DELETE FROM jobs" in t]
    assert "_write_owners" in writers
    assert [name for name in writers if "self._own.clear()" not in texts[name]] == []


def test_what_was_rolled_back_is_not_believed_to_be_there(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save_account(Account("a", "p", 4))
    store.put([a_job(n) for n in range(2)])
    (lost, _), before = store.jobs(ALL), everything(store)
    with monkeypatch.context() as broken:
        broken.setattr(store, "_insert_events", lambda events: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            claim(store)
    done = Transition(lost.number, "complete", 1, {"result_json": "1"}, "completed")
    assert store.turn([done]).stale == (done,)
    assert store.jobs(ALL) == before["jobs"]


def test_the_holder_of_the_write_mutex_is_named(store: SqliteStore) -> None:
    store.put([a_job(1)])
    assert store.holder_note() == process_note(os.getpid()) == f"process {os.getpid()}"
    assert process_note(2**22 + 1) == f"process {2**22 + 1} (gone)"


def test_a_write_mutex_whose_file_was_deleted_still_excludes(tmp_path: Path) -> None:
    one = WriteMutex(tmp_path / "write.lock")
    (tmp_path / "write.lock").unlink()
    one.acquire()
    two = WriteMutex(tmp_path / "write.lock")
    took = subprocess.run(["flock", "-n", tmp_path / "write.lock", "true"])
    assert took.returncode == 1
    one.release()
    two.acquire()
    two.close()
    one.close()


def test_a_write_mutex_closed_twice_leaves_other_files_alone(tmp_path: Path) -> None:
    mutex = WriteMutex(tmp_path / "write.lock")
    mutex.close()
    reused = os.open(tmp_path / "other", os.O_CREAT)
    mutex.close()
    os.fstat(reused)
    os.close(reused)


# -- a disk in trouble ---------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", disk], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a disk of its own needs the right to mount: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def fill(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        for size in (65536, 1024, 1):
            with contextlib.suppress(OSError):
                while filler.write(b"\1" * size) == size:
                    pass


def test_a_full_disk_keeps_what_was_committed_and_works_again_with_room(small_disk: Path) -> None:
    store = SqliteStore(small_disk / "q.db")
    store.save_account(Account("a", "p", 5))
    job = bring(store, "running", "paid")
    before = everything(store)
    assert not store.has_room()
    fill(small_disk)
    big = '"' + "x" * 500_000 + '"'
    for _ in range(2):
        with pytest.raises(StoreFull, match=r"is full; make room\. What was committed is safe"):
            settle(store, job, result_json=big)
        assert everything(store) == before
    assert store.make_room()
    settle(store, job, result_json=big)
    assert store.job(job.number).result_json == big
    assert not store.make_room()
    store.close()
    (small_disk / "filler").unlink()
    again = SqliteStore(small_disk / "q.db")
    assert again.counts() == {"completed": 1}
    assert again.verify_counts() == {}
    assert again.query("PRAGMA integrity_check") == [("ok",)]
    again.close()


class Broken:
    """A connection whose next COMMIT gives an error, having been carried out or not."""

    def __init__(self, conn: sqlite3.Connection, does_commit: bool) -> None:
        self._conn, self._does_commit = conn, does_commit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conn, name)

    def execute(self, sql: str, *params: Any) -> sqlite3.Cursor:
        if sql != "COMMIT":
            return self._conn.execute(sql, *params)
        if self._does_commit:
            self._conn.execute(sql)
        raise sqlite3.OperationalError("disk I/O error")


@pytest.mark.parametrize("does_commit", [True, False])
def test_an_error_from_commit_is_unknown_until_the_truth_is_read(
    store: SqliteStore, does_commit: bool
) -> None:
    store.put([a_job(1)])
    old = store._conn
    store._conn = Broken(old, does_commit)  # type: ignore[assignment]
    with pytest.raises(StoreError, match="disk I/O error") as caught:
        store.put([a_job(2), a_job(3)])
    assert caught.value.is_unknown is True
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    assert isinstance(store._conn, sqlite3.Connection)
    assert store._conn is not old
    assert "a commit failed" in (store.reopened or "")
    assert ids(store) == (["id-1", "id-2", "id-3"] if does_commit else ["id-1"])
    assert store.put([a_job(2), a_job(3)]).new == (0 if does_commit else 2)
    assert ids(store) == ["id-1", "id-2", "id-3"]


def test_a_store_that_cannot_be_reopened_at_once_is_used_again_later(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store._conn = Broken(store._conn, does_commit=False)  # type: ignore[assignment]

    def refuse() -> None:
        raise StoreReadOnly("the disk is gone for a moment")

    with monkeypatch.context() as patch:
        patch.setattr(store, "_connect", refuse)
        with pytest.raises(StoreError, match="disk I/O error") as caught:
            store.put([a_job(1)])
        assert caught.value.is_unknown is True
        assert ids(store) == []
    store._conn = store._conn._conn  # type: ignore[attr-defined]  # the disk is back
    store.put([a_job(1)])
    assert ids(store) == ["id-1"]


# -- the thread that owns it ---------------------------------------------------------------------


@pytest.fixture
def thread(path: Path, clock: ManualClock) -> Iterator[StoreThread[SqliteStore]]:
    thread = StoreThread(lambda: SqliteStore(path, clock=clock))
    yield thread
    thread.close()


def test_the_thread_runs_what_it_is_given_in_order_on_one_thread(
    thread: StoreThread[SqliteStore],
) -> None:
    order: list[int] = []
    threads: set[int] = set()
    barrier = threading.Barrier(4)

    def note(number: int) -> None:
        order.append(number)
        threads.add(threading.get_ident())

    def work(n: int) -> None:
        barrier.wait()
        for number in range(n * 100, n * 100 + 20):
            thread.call(lambda store, number=number: note(number))

    workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    for n in range(4):
        assert [x for x in order if x // 100 == n] == list(range(n * 100, n * 100 + 20))


def test_what_a_function_or_the_opening_raises_is_raised_to_the_caller(
    thread: StoreThread[SqliteStore], tmp_path: Path
) -> None:
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda store: 1 / 0)
    with pytest.raises(SystemExit):
        thread.call(lambda store: exit())
    assert thread.call(ids) == []
    with pytest.raises(NotAQueue, match="is a folder"):
        StoreThread(lambda: SqliteStore(tmp_path))


def test_what_was_given_up_on_is_not_written_later(thread: StoreThread[SqliteStore]) -> None:
    gate = threading.Event()
    first: Future[Any] = Future()
    blocked = threading.Thread(
        target=lambda: first.set_result(thread.call(lambda s: gate.wait(30)))
    )
    blocked.start()
    with pytest.raises(StoreBusy, match=r"not free within 0.01 s.*Nothing was changed"):
        thread.call(lambda store: store.put([a_job(1)]), timeout_s=0.01)
    gate.set()
    assert first.result(30) is True
    blocked.join()
    assert thread.call(ids) == []
    thread.call(lambda store: store.put([a_job(2)]), timeout_s=30)
    assert thread.call(ids) == ["id-2"]


def test_a_closed_thread_finishes_what_it_was_given_and_takes_no_more(
    thread: StoreThread[SqliteStore], path: Path
) -> None:
    thread.call(lambda store: store.put([a_job(1)]))
    thread.close()
    thread.close()
    with pytest.raises(StoreLost, match="closed"):
        thread.call(ids)
    assert not wal_of(path).exists()


def test_nobody_waits_for_ever_for_a_thread_that_is_closed_meanwhile(
    thread: StoreThread[SqliteStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_the_door, closed, told = threading.Event(), threading.Event(), []
    real = thread_module._Task

    def slow_task(function: Callable[[Any], Any]) -> Any:
        if threading.current_thread().name == "late":  # past the look whether it is open
            at_the_door.set()
            assert closed.wait(30)
        return real(function)

    monkeypatch.setattr(thread_module, "_Task", slow_task)

    def late() -> None:
        with pytest.raises(StoreLost, match="closed"):
            thread.call(ids)
        told.append(True)

    caller = threading.Thread(target=late, name="late", daemon=True)
    caller.start()
    assert at_the_door.wait(30)
    thread.close()
    closed.set()
    caller.join(10)
    assert told


def test_an_interrupt_of_the_waiting_thread_does_not_break_a_transaction(
    thread: StoreThread[SqliteStore],
) -> None:
    main, interrupted, told = threading.get_ident(), threading.Event(), []

    def interrupt_once(*_: Any) -> None:
        if not told:
            told.append(1)
            raise KeyboardInterrupt

    def slow(store: SqliteStore) -> None:
        with store.transaction():
            store._insert_jobs([a_job(1)], 1)
            # Python may miss a signal that comes just before it begins to wait.
            while not interrupted.wait(0.01):
                signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, interrupt_once)
    try:
        with pytest.raises(KeyboardInterrupt):
            thread.call(slow)
        interrupted.set()
        assert thread.call(ids) == ["id-1"]
    finally:
        interrupted.set()
        signal.signal(signal.SIGINT, before)


@FORKS
def test_a_forked_child_is_refused_and_the_parent_unharmed(
    thread: StoreThread[SqliteStore], path: Path
) -> None:
    thread.call(lambda store: store.put([a_job(1)]))
    with pytest.raises(StoreLost, match="forked from the one that opened the queue"):
        in_child(lambda: thread.call(ids))
    assert in_child(thread.close) is None

    def opened_anew() -> list[str]:
        store = SqliteStore(path)
        store.put([a_job("child")])
        store.close()
        return ids(SqliteStore(path))

    assert in_child(opened_anew) == ["id-1", "id-child"]
    thread.call(lambda store: store.put([a_job(2)]))
    assert thread.call(ids) == ["id-1", "id-child", "id-2"]
    assert thread.call(lambda store: store.reopened) is None
    assert thread.call(lambda store: store.query("PRAGMA integrity_check")) == [("ok",)]


@FORKS
def test_a_child_forked_within_a_transaction_does_not_let_go_of_the_lock(
    thread: StoreThread[SqliteStore], path: Path
) -> None:
    lock = path.with_name(path.name + "-vqkit") / "write.lock"
    inside, done = threading.Event(), threading.Event()

    def hold(store: SqliteStore) -> None:
        with store.transaction():
            store._insert_jobs([a_job(1)], 1)
            inside.set()
            assert done.wait(30)

    holder = threading.Thread(target=lambda: thread.call(hold))
    holder.start()
    assert inside.wait(30)
    assert in_child(lambda: None) is None  # the child has ended: so have its copies of the lock
    assert subprocess.run(["flock", "-n", lock, "true"]).returncode == 1
    done.set()
    holder.join()
    assert thread.call(ids) == ["id-1"]


def test_what_a_new_job_holds_by_default_the_schema_does_too(store: SqliteStore) -> None:
    # Columns that hold their default are left out when jobs are put.
    told = {row[1]: row[4] for row in store.query("PRAGMA table_info(jobs)")}
    for name, default in Job._field_defaults.items():
        if name in ("payload_hash", "created_ms", "updated_ms"):  # always given
            continue
        schema = told[name.removesuffix("_json")]
        expected = None if default is None else repr(default) if default else "0"
        assert schema == expected, name


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_queue_whose_maker_was_killed_is_told_as_what_it_is(
    tmp_path: Path, is_begun: bool
) -> None:
    path = tmp_path / "q.db"
    path.touch()
    if is_begun:
        with foreign(path) as db:
            db.execute("PRAGMA application_id = 1987144564")
            db.execute("CREATE TABLE _sqlite_migrations (migration_set, name, applied_at)")
    with pytest.raises(NotAQueue, match=r"holds nothing yet.*Queue\(path\)"):
        SqliteStore(path, readonly=True)


def test_a_queue_of_an_older_version_is_not_read_before_it_is_brought_up_to_date(
    path: Path,
) -> None:
    SqliteStore(path).close()
    with foreign(path) as db:
        db.execute("DELETE FROM _sqlite_migrations WHERE name = 'm003_models'")
    with pytest.raises(NotAQueue, match=r"older vqkit\. Queue\(path\)"):
        SqliteStore(path, readonly=True)
