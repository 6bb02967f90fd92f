"""The queue in one SQLite file: all SQL of vqkit stands here.

What keeps it safe is measured (ARCHITECTURE.md, "On the disk"): a write-ahead log with
``synchronous=FULL``, every transaction ``BEGIN IMMEDIATE`` under the write mutex,
checkpoints ``TRUNCATE`` inside it, and a look at the files' inodes after each commit.

Rows go in and out by the batch, in one statement each: every step of a statement gives
up the interpreter's lock, and beside a cell that computes it takes 5 ms to get it back.
Claiming and settling a job took 7 ms in such a kernel row by row, and takes 0.1 ms so.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

from .. import codec, secrets
from ..clock import Clock, SystemClock
from ..errors import (
    NewerDatabase,
    NotAQueue,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreLost,
    StoreReadOnly,
)
from ..job import JOB_FIELDS, STATUSES, Account, Attempt, Event, Job, Output, Step
from ..policy import Candidate
from .base import JobFilter, Runner, SheetJobs, Store
from .files import Ballast, WriteMutex, beside, companion, free_bytes, process_note

__all__ = ["HOT_STATEMENTS", "SqliteStore"]

log = secrets.logger("vqkit.store")

APPLICATION_ID = 0x76716B74  # "vqkt"
BUSY_TIMEOUT_S = 30.0
OPEN_TIMEOUT_S = 20.0
CHECKPOINT_BYTES = 16 * 1024 * 1024
RESERVE_BYTES = 64 * 1024 * 1024  # below this much free room no new work is taken on
PAGE = 500
PACE_ATTEMPTS = 500
RECENT_EVENTS = 400
RECENT_STEPS = 1000
BULK_SIZES = (256, 64, 16, 4, 1)  # few sizes, so that their statements stay compiled
MODELS_MAX = 200  # of a lane; more than these wait until some of them are done
KNOWN_MIGRATIONS = (
    "m001_tables",
    "m002_strays",
    "m003_models",
    "m004_shared_rows",
    "m005_paid_calls",
    "m006_names_of_our_steps",
    "m007_money_of_steps",
    "m008_accounts_in_passing",
)


def _columns(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name.removesuffix("_json") for name in names)


JOB_COLUMNS = _columns(JOB_FIELDS)
_FIXED = {
    *("number", "id", "payload_json", "payload_hash", "batch", "key", "provider"),
    *("pinned_account", "priority", "seed", "sample", "source", "row", "timeout_ms"),
    *("max_attempts", "created_ms"),
}
# What a changed row gives a job that was never begun.
_OF_A_ROW = (
    *("payload_json", "payload_hash", "key", "provider", "pinned_account", "priority", "seed"),
    *("source", "batch", "row", "timeout_ms", "max_attempts", "not_before_ms", "expires_ms"),
    "updated_ms",
)
_MUTABLE = tuple(i for i, name in enumerate(JOB_FIELDS) if name not in _FIXED)
_NUMBER, _FENCE, _STATUS, _HANDLE, _UPDATED = (
    JOB_FIELDS.index(name) for name in ("number", "fence", "status", "handle_json", "updated_ms")
)
_CREATED = JOB_FIELDS.index("created_ms")
# What a new job holds where nothing is said; the schema has the same defaults.
_DEFAULTS = tuple(Job._field_defaults.get(name) for name in JOB_FIELDS)
_ALWAYS = {
    JOB_FIELDS.index(name)
    for name in ("number", "id", "payload_json", "payload_hash", "created_ms", "updated_ms")
}
_number, _id = attrgetter("number"), attrgetter("id")
_new_job = partial(tuple.__new__, Job)

_FROM_JOBS = f"SELECT {', '.join(JOB_COLUMNS)} FROM jobs"
_IN_NUMBERS = "number IN (SELECT value FROM json_each(?))"
_WAITING = (
    "SELECT 1 - is_open AS not_open, -priority AS minus_priority, number FROM jobs"
    " WHERE status = 'queued' AND not_before_ms IS NULL AND lane = ?"
    " ORDER BY is_open DESC, priority DESC, number LIMIT ?"
)
_WAITING_OF_MODEL = (
    "SELECT 1 - is_open AS not_open, -priority AS minus_priority, number FROM jobs"
    " WHERE status = 'queued' AND not_before_ms IS NULL AND lane = ? AND model = ?"
    " ORDER BY is_open DESC, priority DESC, number LIMIT ?"
)
_WAITING_PAID = (  # named: without statistics the planner takes the index of all that wait
    "SELECT 1 - is_open AS not_open, -priority AS minus_priority, number FROM jobs"
    " INDEXED BY jobs_paid WHERE status = 'queued' AND not_before_ms IS NULL AND is_paid = 1"
    " AND is_short = 0 AND is_open = 0 AND lane = ? ORDER BY priority DESC, number LIMIT ?"
)
_PAID_OF_MODEL = (  # few have paid and wait: their models need no index
    "SELECT 1 - is_open AS not_open, -priority AS minus_priority, number FROM jobs"
    " INDEXED BY jobs_paid WHERE status = 'queued' AND not_before_ms IS NULL AND is_paid = 1"
    " AND is_short = 0 AND is_open = 0 AND lane = ? AND model = ?"
    " ORDER BY priority DESC, number LIMIT ?"
)
_MODELS = (  # hops from model to model along the index
    "WITH RECURSIVE models (model) AS ("
    " SELECT min(model) FROM jobs WHERE status = 'queued' AND not_before_ms IS NULL AND lane = ?1"
    " UNION ALL SELECT (SELECT min(model) FROM jobs WHERE status = 'queued'"
    " AND not_before_ms IS NULL AND lane = ?1 AND model > models.model) FROM models"
    f" WHERE model IS NOT NULL LIMIT {MODELS_MAX}"
    ") SELECT model FROM models WHERE model IS NOT NULL"
)
_PROMOTE = (
    "UPDATE jobs SET not_before_ms = NULL WHERE number IN (SELECT number FROM jobs"
    " WHERE status = 'queued' AND not_before_ms IS NOT NULL AND not_before_ms <= ?"
    " ORDER BY not_before_ms LIMIT 2000)"
)
_EXPIRED = (
    f"{_FROM_JOBS} WHERE status = 'queued' AND expires_ms IS NOT NULL AND expires_ms <= ?"
    " ORDER BY expires_ms LIMIT ?"
)
_NEXT_DUE = (
    "SELECT min(not_before_ms) FROM jobs WHERE status = 'queued' AND not_before_ms IS NOT NULL"
)
_NEXT_EXPIRY = "SELECT min(expires_ms) FROM jobs WHERE status = 'queued' AND expires_ms IS NOT NULL"
_LIVE = (
    "SELECT account, count(*) FROM jobs WHERE (status = 'running' OR is_open = 1)"
    " AND status <> 'in_doubt' GROUP BY account"
)
_LIVE_BY_MODEL = (
    "SELECT account, model, count(*) FROM jobs WHERE (status = 'running' OR is_open = 1)"
    " AND status <> 'in_doubt' GROUP BY account, model"
)
_LONGEST = f"{_FROM_JOBS} WHERE status = 'running' ORDER BY started_ms, number LIMIT ?"
# Reads that follow the events end with the newest, and begin so many before it at most.
_RECENT = (
    "SELECT job FROM (SELECT id, job FROM events WHERE job IS NOT NULL AND id > ?"
    " ORDER BY id DESC LIMIT ?) GROUP BY job ORDER BY max(id) DESC LIMIT ?"
)
_RATE = (
    "SELECT count(*), min(at_ms), max(at_ms) FROM events WHERE id > ?"
    " AND type IN ('job.completed', 'job.failed') AND at_ms > ?"
)
_CANCELS = (
    "SELECT number, fence FROM jobs WHERE status = 'running' AND owner = ? AND cancel_requested = 1"
)
_STRAYS = f"{_FROM_JOBS} WHERE is_open = 1 AND finished_ms IS NOT NULL ORDER BY number LIMIT {PAGE}"

_SHARES = (
    "SELECT job, source, batch, row FROM shared_rows WHERE job IN (SELECT value FROM json_each(?))"
)
_VERSIONS = (  # '@' and the character behind it bound a key's versions
    "SELECT asked.value AS base, jobs.key AS key FROM json_each(?) AS asked JOIN jobs"
    " ON jobs.key > asked.value || '@' AND jobs.key < asked.value || 'A' ORDER BY number DESC"
)
_IS_GONE = (
    "(row IS NULL AND source IS NOT NULL"
    " AND NOT EXISTS (SELECT 1 FROM shared_rows AS s WHERE s.job = jobs.number))"
)
_IS_ABSENT = "IN (SELECT value FROM json_each(?3))"
_STATE = (
    " WHEN finished_ms IS NOT NULL THEN 2 WHEN status = 'queued' AND fence = 0 THEN 0 ELSE 1 END,"
    " sample"
)
# A job that was put by hand has no row to lose: whoever put it wants it for good.
_SHEET_JOBS = (
    "SELECT row, number, sample * 4 + CASE"
    " WHEN EXISTS (SELECT 1 FROM shared_rows AS s WHERE s.job = jobs.number"
    f" AND s.source NOT {_IS_ABSENT}) THEN 3{_STATE}"
    " FROM jobs WHERE batch = ?1 AND source = ?2 AND row IS NOT NULL"
    " UNION ALL SELECT mine.row, number, sample * 4 + CASE"
    f" WHEN (jobs.row IS NOT NULL AND jobs.source NOT {_IS_ABSENT}) OR jobs.source IS NULL"
    " OR EXISTS (SELECT 1 FROM shared_rows AS s WHERE s.job = mine.job"
    f" AND (s.batch <> ?1 OR s.source <> ?2) AND s.source NOT {_IS_ABSENT}) THEN 3{_STATE}"
    " FROM shared_rows AS mine JOIN jobs ON number = mine.job"
    " WHERE mine.batch = ?1 AND mine.source = ?2 AND mine.row IS NOT NULL ORDER BY 1, 4, 2"
)

# What runs at every turn, with the index it must use; tests hold their query plans to it.
HOT_STATEMENTS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "jobs_waiting": (_WAITING, ("", 10)),
    "jobs_paid": (_WAITING_PAID, ("", 10)),
    "jobs_by_model": (_WAITING_OF_MODEL, ("", "", 10)),
    "jobs_due": (_NEXT_DUE, ()),
    "jobs_expiring": (_EXPIRED, (0, 10)),
    "jobs_live": (_LIVE, ()),
    "jobs_owned": (_CANCELS, ("",)),
    "jobs_stray": (_STRAYS, ()),
}


class SqliteStore(Store):
    """A queue's database file, on one connection that belongs to the opening thread.

    With `readonly` nothing is created and nothing can be written. Raises NotAQueue,
    NewerDatabase, StoreReadOnly or StoreBusy, and leaves the file as it was.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        readonly: bool = False,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
    ) -> None:
        self.path = Path(path).absolute()
        self.clock = clock or SystemClock()
        self.is_readonly = readonly
        self._busy_timeout_s = busy_timeout_s
        self._is_closed = False
        self.reopened: str | None = None
        self._own: dict[int, Job] = {}  # running jobs as this connection wrote them last
        self._own_version = -1  # `changes_elsewhere` then: they are true as long as it is the same
        if readonly:
            self._conn = self._connect()
            try:
                self._refuse_unfinished()
            except BaseException:
                self._conn.close()
                raise
            return
        self._make_folder()
        self._refuse_links()
        if self.path.exists() and not beside(self.path).exists():
            self._look_first()
        self.folder = companion(self.path)
        self.mutex = WriteMutex(self.folder / "write.lock")
        self.ballast = Ballast(self.folder / "ballast")
        if not self.mutex.acquire(OPEN_TIMEOUT_S):
            note = self.holder_note()
            self.mutex.close()
            raise StoreBusy(
                f"{self.path} could not be opened: {note} holds it. Nothing was changed.",
                path=str(self.path),
            )
        try:
            self._conn = self._connect()
            self._prepare()
        except BaseException:
            if hasattr(self, "_conn"):
                self._conn.close()
            self.mutex.release()
            self.mutex.close()
            raise
        self.mutex.release()
        self.ballast.take()

    # -- opening and closing -------------------------------------------------------------

    def _make_folder(self) -> None:
        if self.path.is_dir():
            raise NotAQueue(f"{self.path} is a folder; name a file in it, such as queue.db")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreReadOnly(
                f"the folder {self.path.parent} cannot be made: {error.strerror}",
                path=str(self.path),
            ) from error

    def _refuse_links(self) -> None:
        """A log is named after the database: under two names its parts would not find together."""
        with suppress(FileNotFoundError):
            if (n := self.path.stat().st_nlink) > 1:
                raise StoreError(
                    f"{self.path} is one of {n} hard links to the same file, and a database under"
                    " two names is damaged. Make it a file of its own:"
                    f" cp {self.path.name} copy.db && mv copy.db {self.path.name}",
                    path=str(self.path),
                )

    def _look_first(self) -> None:
        """Refuses a file that is not ours before anything is made beside it."""
        conn = sqlite3.connect(self.path.as_uri() + "?mode=ro", uri=True)
        try:
            self._refuse_strangers(conn)
        except sqlite3.Error as error:
            raise _translated(error, self.path) from error
        finally:
            conn.close()

    def _connect(self) -> sqlite3.Connection:
        try:
            conn = sqlite3.connect(
                self.path.as_uri() + ("?mode=ro" if self.is_readonly else ""),
                uri=True,
                isolation_level=None,
                timeout=self._busy_timeout_s,
                cached_statements=512,
            )
        except sqlite3.Error as error:
            raise _translated(error, self.path) from error
        try:
            self._refuse_strangers(conn)
            if self.is_readonly:
                conn.execute("PRAGMA query_only = 1")
            else:
                if conn.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
                    raise StoreError(f"{self.path}: SQLite cannot keep a write-ahead log there.")
                conn.execute("PRAGMA synchronous = FULL")
                conn.execute("PRAGMA wal_autocheckpoint = 0")
                conn.execute("PRAGMA journal_size_limit = 0")
                if sys.platform == "darwin":
                    conn.execute("PRAGMA fullfsync = 1")
                    conn.execute("PRAGMA checkpoint_fullfsync = 1")
            conn.execute("PRAGMA cache_size = -16000")
        except sqlite3.Error as error:
            conn.close()
            raise _translated(error, self.path) from error
        except StoreError:
            conn.close()
            raise
        return conn

    def _refuse_strangers(self, conn: sqlite3.Connection) -> None:
        """Reads before anything is written: a file that is not ours stays as it was."""
        tables = {row[0] for row in conn.execute("SELECT name FROM sqlite_master")}
        if not tables:
            return
        marked = conn.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
        if not marked or "_sqlite_migrations" not in tables:
            some = ", ".join(sorted(tables)[:3])
            raise NotAQueue(
                f"{self.path} is an SQLite database of something else (tables: {some});"
                " give the queue a file of its own.",
                path=str(self.path),
            )
        applied = self._applied_migrations(conn)
        if newer := [name for name in applied if name not in KNOWN_MIGRATIONS]:
            raise NewerDatabase(
                f"{self.path} was written by a newer vqkit (it has {newer[-1]});"
                " update vqkit: pip install -U vqkit",
                path=str(self.path),
            )

    def _refuse_unfinished(self) -> None:
        """What is only read is not brought up to date either: says who does it."""
        try:
            tables = {row[0] for row in self._conn.execute("SELECT name FROM sqlite_master")}
            have = self._applied_migrations(self._conn) if "_sqlite_migrations" in tables else []
        except sqlite3.Error as error:
            raise _translated(error, self.path) from error
        if set(have) == set(KNOWN_MIGRATIONS):
            return
        found = (
            "was made by an older vqkit"
            if "jobs" in tables
            else "holds nothing yet; whoever began to make a queue of it was stopped at once"
        )
        raise NotAQueue(
            f"{self.path} {found}. Queue(path) or vqkit run FILE makes it ready; nothing is lost.",
            path=str(self.path),
        )

    @staticmethod
    def _applied_migrations(conn: sqlite3.Connection) -> list[str]:
        found = conn.execute("SELECT name FROM _sqlite_migrations WHERE migration_set = 'vqkit'")
        return [row[0] for row in found]

    def _prepare(self) -> None:
        """Brings the schema up to date and notes which files were opened."""
        try:
            tables = {row[0] for row in self._conn.execute("SELECT name FROM sqlite_master")}
            have = self._applied_migrations(self._conn) if "_sqlite_migrations" in tables else []
            if set(have) != set(KNOWN_MIGRATIONS):
                # Loaded only here: an existing queue opens without it.
                from sqlite_utils import Database

                from .migrations import MIGRATIONS

                self._conn.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                MIGRATIONS.apply(Database(self._conn, recursive_triggers=False))
            # The log file exists from the first write on; its inode is watched.
            self._conn.execute("BEGIN IMMEDIATE")
            self._conn.execute("PRAGMA user_version = 1")
            self._conn.execute("COMMIT")
        except sqlite3.Error as error:
            raise _translated(error, self.path) from error
        self._wal = str(self.path) + "-wal"
        self._inodes = self._look()

    def _look(self) -> tuple[int, int]:
        """The inodes of database and log, 0 for one that is gone."""
        found = []
        for path in (str(self.path), self._wal):
            try:
                found.append(os.stat(path).st_ino)
            except FileNotFoundError:
                found.append(0)
        return found[0], found[1]

    def is_same_file(self) -> bool:
        """True while the path still leads to the file that was opened."""
        return not self._is_closed and self._look()[0] == self._inodes[0]

    def _reopen(self, why: str) -> None:
        fresh = self._connect()
        self._conn.close()
        self._conn = fresh
        self._own.clear()
        self._prepare()
        self.reopened = why
        log.warning("the database was reopened: %s", why)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self.is_readonly:
            self._conn.close()
            return
        self.mutex.acquire()
        try:
            if self._look()[0] == self._inodes[0]:
                self._checkpoint()  # also where the log was deleted: only we still see it
            self._conn.close()
        finally:
            self.mutex.release()
            self.mutex.close()

    def abandon(self) -> sqlite3.Connection:
        self._is_closed = True
        if not self.is_readonly:
            self.mutex.close()
        return self._conn

    # -- transactions --------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[None]:
        if self._is_closed:
            raise StoreLost("this queue is closed; open it again with Queue(path)")
        if self.is_readonly:
            raise StoreReadOnly(f"{self.path} was opened to be read only", path=str(self.path))
        self.mutex.acquire()
        try:
            self.before_write()
            self._begin()
            self._trust_own()
            try:
                yield
            except BaseException as error:
                if self._conn.in_transaction:
                    self._conn.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise _translated(error, self.path) from error
                raise
            self._commit()
            self._after_commit()
        except BaseException:
            self._own.clear()  # nobody knows what of it is there
            raise
        finally:
            self.mutex.release()

    def _begin(self) -> None:
        if self._conn.in_transaction:  # left by a failure in between; nothing of it is ours
            self._conn.execute("ROLLBACK")
        try:
            self._conn.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise _translated(error, self.path) from error

    def _trust_own(self) -> None:
        """Within a transaction: forgets what it wrote to running jobs if others wrote since."""
        version = self.changes_elsewhere()
        if version != self._own_version:
            self._own.clear()
            self._own_version = version

    def _commit(self) -> None:
        """Commits. After an error nobody knows whether it did: reopen and let the caller look."""
        try:
            self._conn.execute("COMMIT")
        except sqlite3.Error as error:
            wrong = _translated(error, self.path, is_unknown=True)
            try:
                self._reopen(f"a commit failed ({error})")
            except StoreError as again:  # a full disk, mostly; the next transaction meets it
                log.warning("after a failed commit: %s", again)
                with suppress(sqlite3.Error):  # what is read until then must not be half a change
                    if self._conn.in_transaction:
                        self._conn.execute("ROLLBACK")
            raise wrong from error

    def _after_commit(self) -> None:
        seen = self._look()
        if seen != self._inodes:
            self._mend(seen)
        elif os.stat(self._wal).st_size > CHECKPOINT_BYTES:
            self._checkpoint()

    def _mend(self, seen: tuple[int, int]) -> None:
        """Something deleted or replaced our files. Save what only our connection still sees."""
        if seen[0] != self._inodes[0]:
            raise StoreLost(
                f"{self.path} was {'replaced' if seen[0] else 'moved or deleted'} while the queue"
                " was open. Put it back, or open the new one with Queue(path) in a new kernel.",
                path=str(self.path),
            )
        if not self._checkpoint():
            # Only this connection sees the log that is gone: keep it, try after the next commit.
            log.warning(
                "the log of %s was deleted, and a reader keeps it from being saved", self.path
            )
            return
        self._reopen("its log file was deleted by another program; nothing was lost")

    def _checkpoint(self) -> bool:
        """Moves the log into the database. Inside the mutex, never passive, never waiting."""
        self._conn.execute("PRAGMA busy_timeout = 0")
        try:
            busy = self._conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        except sqlite3.OperationalError as error:
            log.info("no checkpoint this time: %s", error)
            return False
        finally:
            self._conn.execute(f"PRAGMA busy_timeout = {round(self._busy_timeout_s * 1000)}")
        return not busy

    def has_room(self) -> bool:
        if free_bytes(self.folder) < RESERVE_BYTES:
            return False
        self.ballast.take()
        return True

    def make_room(self) -> bool:
        return self.ballast.give_up()

    def log_bytes(self) -> int:
        """Size of the write-ahead log; a long reader makes it grow."""
        try:
            return os.stat(str(self.path) + "-wal").st_size
        except FileNotFoundError:
            return 0

    def translated(self, error: BaseException) -> BaseException:
        if not isinstance(error, sqlite3.Error):
            return error
        ours = _translated(error, self.path)
        ours.__cause__ = error
        return ours

    def holder_note(self) -> str:
        pid = self.mutex.holder()
        return "another process" if pid is None else process_note(pid)

    def changes_elsewhere(self) -> int:
        return int(self._conn.execute("PRAGMA data_version").fetchone()[0])

    @contextmanager
    def reading(self) -> Iterator[None]:
        """One consistent view over several reads, on a read-only connection."""
        self._conn.execute("BEGIN")
        self._trust_own()
        try:
            yield
        finally:
            if self._conn.in_transaction:
                self._conn.execute("ROLLBACK")

    def backup(self, path: str) -> None:
        try:
            with closing(sqlite3.connect(path)) as target:
                self._conn.backup(target, pages=1000, sleep=0.01)
        except sqlite3.Error as error:
            raise _translated(error, Path(path)) from error

    def query(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of an ad-hoc read."""
        return self._conn.execute(sql, params).fetchall()

    def _rows(self, columns: Sequence[str], sql: str, params: Sequence[Any]) -> list[list[Any]]:
        """All rows of a query as one JSON text, in one step; their order is not kept."""
        whole = f"SELECT json_group_array(json_array({', '.join(columns)})) FROM ({sql})"
        rows: list[list[Any]] = json.loads(self._conn.execute(whole, params).fetchall()[0][0])
        return rows

    def _bulk(self, head: str, rows: Sequence[Sequence[Any]], tail: str = "") -> int:
        """Runs ``head VALUES (…), (…) tail`` over all rows, many at a time. Rows touched."""
        touched = start = 0
        for size in BULK_SIZES:
            while len(rows) - start >= size:
                part = rows[start : start + size]
                one = f"({', '.join('?' * len(part[0]))})"
                sql = f"{head}VALUES {', '.join([one] * size)}{tail}"
                touched += self._conn.execute(sql, list(chain.from_iterable(part))).rowcount
                start += size
        return touched

    # -- jobs ----------------------------------------------------------------------------

    def jobs(self, chosen: JobFilter) -> list[Job]:
        if chosen.newest:
            return self._newest(chosen)
        found: list[Job] = []
        for page in self.iter_jobs(chosen):
            found += page
        return found

    def iter_jobs(self, chosen: JobFilter) -> Iterator[list[Job]]:
        after, left = chosen.after, chosen.limit
        while left is None or left > 0:
            limit = PAGE if left is None else min(PAGE, left)
            where, params = _where(replace(chosen, after=after))
            page = self._jobs(f"{_FROM_JOBS} WHERE {where} ORDER BY number LIMIT ?", params, limit)
            if page:
                yield page
            if len(page) < limit:
                return
            after = page[-1].number
            left = None if left is None else left - len(page)

    def last_number(self) -> int:
        sql = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'jobs'"
        return int(self._conn.execute(sql).fetchone()[0])

    def _newest(self, chosen: JobFilter) -> list[Job]:
        where, params = _where(chosen)
        limit = PAGE if chosen.limit is None else chosen.limit
        sql = f"{_FROM_JOBS} WHERE {where} ORDER BY number DESC LIMIT ?"
        return self._jobs(sql, params, limit)[::-1]

    def _jobs(self, sql: str, params: Sequence[Any], *more: Any) -> list[Job]:
        """The jobs a query gives, in the order they were put."""
        return sorted(self._some_jobs(sql, (*params, *more)), key=_number)

    def _some_jobs(self, sql: str, params: Sequence[Any]) -> Iterator[Job]:
        return map(_new_job, self._rows(JOB_COLUMNS, sql, params))

    def _jobs_by_key(self, keys: Sequence[str]) -> list[Job]:
        sql = f"{_FROM_JOBS} WHERE key IN (SELECT value FROM json_each(?))"
        return self._jobs(sql, (codec.dumps(list(keys)),))

    def _jobs_by_number(self, numbers: set[int]) -> dict[int, Job]:
        found: dict[int, Job] = {}
        if self._own and self._conn.in_transaction:
            found = {n: self._own[n] for n in numbers if n in self._own}
            numbers = numbers - found.keys()
        if numbers:
            wanted = "[" + ",".join(map(str, numbers)) + "]"
            for job in self._some_jobs(f"{_FROM_JOBS} WHERE {_IN_NUMBERS}", (wanted,)):
                found[job.number] = job
        return found

    def _insert_jobs(self, jobs: Sequence[Job], now_ms: int) -> list[Job]:
        if not jobs:
            return []
        first = self.last_number() + 1  # the write lock is ours: the next numbers are too
        n = len(jobs)
        columns: list[Sequence[Any]] = list(zip(*jobs, strict=True))
        columns[_NUMBER] = range(first, first + n)
        columns[_CREATED] = columns[_UPDATED] = [now_ms] * n
        inserted = list(map(Job._make, zip(*columns, strict=True)))
        # A column that holds its default in every row is left to the schema: half the time.
        told = [i for i, of in enumerate(columns) if i in _ALWAYS or of.count(_DEFAULTS[i]) < n]
        names = [JOB_COLUMNS[i] for i in told]
        given = [columns[i] for i in told]
        if any(job.handle_json or job.provider or job.pinned_account for job in jobs):
            names += ("lane", "is_open")
            given += zip(*[(job.lane, job.is_open) for job in jobs], strict=True)
        if any(models := [job.model for job in jobs]):
            names.append("model")
            given.append(models)
        head = f"INSERT INTO jobs ({', '.join(names)}) "
        self._bulk(head, list(zip(*given, strict=True)))
        batches = {(j.batch, j.source, j.created_ms) for j in inserted if j.batch is not None}
        self._bulk("INSERT OR IGNORE INTO batches ", sorted(batches, key=str))
        return inserted

    def _update_jobs(self, pairs: Sequence[tuple[Job, Job]]) -> None:
        # By columns, which Python compares and turns round in C: rows are many, changes few.
        befores, afters = zip(*pairs, strict=True)
        was, now = list(zip(*befores, strict=True)), list(zip(*afters, strict=True))
        changed = [i for i in _MUTABLE if was[i] != now[i]] or [_UPDATED]
        columns = [JOB_COLUMNS[i] for i in changed]
        news = [now[i] for i in changed]
        if any(was[_HANDLE]) or any(now[_HANDLE]):  # else neither of these two can change
            columns += ("lane", "is_open")
            news += zip(*[(job.lane, job.is_open) for job in afters], strict=True)
        rows = list(zip(*news, was[_NUMBER], was[_FENCE], was[_STATUS], strict=True))
        sets = ", ".join(f"{column} = v.column{i}" for i, column in enumerate(columns, 1))
        n = len(columns)
        tail = (
            f") AS v WHERE jobs.number = v.column{n + 1} AND jobs.fence = v.column{n + 2}"
            f" AND jobs.status = v.column{n + 3}"
        )
        touched = self._bulk(f"UPDATE jobs SET {sets} FROM (", rows, tail)
        if touched != len(rows):
            raise StoreError(
                f"{len(rows)} jobs were to change and {touched} did: something else than vqkit"
                " writes to this database. Nothing was changed; run vqkit doctor."
            )
        for job in afters:  # what runs is settled next, by this connection mostly
            if job.status == "running":
                self._own[job.number] = job
            else:
                self._own.pop(job.number, None)

    def _write_payloads(self, jobs: Sequence[Job]) -> None:
        sets = ", ".join(f"{column.removesuffix('_json')} = ?" for column in _OF_A_ROW)
        self._conn.executemany(
            f"UPDATE jobs SET {sets}, lane = ?, model = ? WHERE number = ?",
            [(*(getattr(j, name) for name in _OF_A_ROW), j.lane, j.model, j.number) for j in jobs],
        )
        self._own.clear()

    def _write_rows(self, rows: Sequence[tuple[int, int | None]]) -> None:
        tail = ") AS v WHERE jobs.number = v.column1"
        self._bulk("UPDATE jobs SET row = v.column2 FROM (", rows, tail)
        self._own.clear()

    def shares(self, numbers: Set[int]) -> dict[int, dict[tuple[str, str], int | None]]:
        found: dict[int, dict[tuple[str, str], int | None]] = {}
        if numbers:
            wanted = "[" + ",".join(map(str, numbers)) + "]"
            for job, source, batch, row in self._conn.execute(_SHARES, (wanted,)).fetchall():
                found.setdefault(job, {})[source, batch] = row
        return found

    def versions(self, keys: Sequence[str]) -> dict[str, list[Job]]:
        bases = self._conn.execute(_VERSIONS, (codec.dumps(list(keys)),)).fetchall()
        jobs = {job.key: job for job in self._jobs_by_key([key for _, key in bases])}
        found: dict[str, list[Job]] = {}
        for base, key in bases:
            found.setdefault(base, []).append(jobs[key])
        return found

    def gone_counts(self) -> dict[str, int]:
        sql = "SELECT status, count(*) FROM jobs WHERE status IN ('failed', 'cancelled') AND "
        return dict(self._conn.execute(f"{sql}{_IS_GONE} GROUP BY status").fetchall())

    def rows_shared_by(self, sources: Set[str]) -> dict[int, int | None]:
        sql = "SELECT job, row FROM shared_rows WHERE source IN (SELECT value FROM json_each(?))"
        return dict(self._conn.execute(sql, (codec.dumps(sorted(sources)),)).fetchall())

    def _share(self, rows: Sequence[tuple[int, str, str, int | None]]) -> None:
        self._bulk("INSERT OR REPLACE INTO shared_rows (job, source, batch, row) ", rows)

    def _write_owners(self, rows: Sequence[tuple[int, str | None, str | None, int | None]]) -> None:
        tail = ") AS v WHERE jobs.number = v.column1"
        head = "UPDATE jobs SET source = v.column2, batch = v.column3, row = v.column4 FROM ("
        self._bulk(head, rows, tail)
        self._own.clear()
        batches = {(b, s, self.clock.now_ms()) for _, s, b, _ in rows if b is not None}
        self._bulk("INSERT OR IGNORE INTO batches ", sorted(batches, key=str))

    def _unshare(self, numbers: Sequence[int], source: str, batch: str) -> None:
        self._conn.execute(
            "DELETE FROM shared_rows WHERE job IN (SELECT value FROM json_each(?))"
            " AND source = ? AND batch = ?",
            (codec.dumps(list(numbers)), source, batch),
        )

    def sheet_jobs(self, batch: str, source: str, absent: Set[str] = frozenset()) -> SheetJobs:
        gone = codec.dumps(sorted(absent))
        found = self._conn.execute(_SHEET_JOBS, (batch, source, gone))
        columns = SheetJobs(array("q"), array("q"), array("q"))
        while page := found.fetchmany(10_000):
            for column, values in zip(columns, list(zip(*page, strict=True))[:3], strict=True):
                column.extend(values)
        return columns

    def pace(self) -> dict[str, tuple[int, float]]:
        found = self._conn.execute(
            "SELECT account, count(*), avg(finished_ms - started_ms) / 1000.0 FROM"
            " (SELECT account, started_ms, finished_ms FROM attempts WHERE outcome = 'completed'"
            " ORDER BY job DESC, fence DESC LIMIT ?) GROUP BY account",
            (PACE_ATTEMPTS,),
        )
        return {account: (n, seconds) for account, n, seconds in found.fetchall()}

    def _delete_jobs(self, numbers: Sequence[int]) -> None:
        gone = codec.dumps(list(numbers))
        for child in ("attempts", "events", "outputs", "steps", "shared_rows"):
            sql = f"DELETE FROM {child} WHERE job IN (SELECT value FROM json_each(?))"
            self._conn.execute(sql, (gone,))
        self._conn.execute(f"DELETE FROM jobs WHERE {_IN_NUMBERS}", (gone,))
        self._own.clear()

    def _finished_before(self, at_ms: int, statuses: Sequence[str], limit: int) -> list[Job]:
        sql = (
            f"{_FROM_JOBS} WHERE finished_ms < ? AND is_open = 0"
            " AND status IN (SELECT value FROM json_each(?))"
            " ORDER BY number LIMIT ?"
        )
        return self._jobs(sql, (at_ms, codec.dumps(list(statuses)), limit))

    def _waiting(self, lane: str, limit: int, model: str | None = None) -> list[Candidate]:
        columns = Candidate._fields[:3]
        if model is None:
            rows = self._rows(columns, _WAITING, (lane, limit))
        else:
            rows = self._rows(columns, _WAITING_OF_MODEL, (lane, model, limit))
        return sorted(Candidate._make((*row, model)) for row in rows)

    def _waiting_paid(self, lane: str, limit: int, model: str | None = None) -> list[Candidate]:
        columns = Candidate._fields[:3]
        if model is None:
            rows = self._rows(columns, _WAITING_PAID, (lane, limit))
        else:
            rows = self._rows(columns, _PAID_OF_MODEL, (lane, model, limit))
        return sorted(Candidate._make((*row, model)) for row in rows)

    def _waiting_models(self, lane: str) -> list[str]:
        return [row[0] for row in self._conn.execute(_MODELS, (lane,)).fetchall()]

    def _promote_due(self, now_ms: int) -> None:
        # A time that has come is erased, so that one index holds all that may run now, in
        # claim order, and those that must still wait cost nothing.
        due = self._conn.execute(_NEXT_DUE).fetchone()[0]
        if due is not None and due <= now_ms:
            self._conn.execute(_PROMOTE, (now_ms,))

    def _expired(self, now_ms: int, limit: int) -> list[Job]:
        return self._jobs(_EXPIRED, (now_ms, limit))

    def _next_due_ms(self) -> int | None:
        due = self._conn.execute(_NEXT_DUE).fetchone()[0]
        expiry = self._conn.execute(_NEXT_EXPIRY).fetchone()[0]
        return min((at for at in (due, expiry) if at is not None), default=None)

    def _wanted_cancels(self, owner: str) -> list[tuple[int, int]]:
        return self._conn.execute(_CANCELS, (owner,)).fetchall()

    def live_counts(self) -> dict[str, int]:
        return dict(self._conn.execute(_LIVE).fetchall())

    def live_by_model(self) -> dict[tuple[str, str], int]:
        found = self._conn.execute(_LIVE_BY_MODEL).fetchall()
        return {(account, model): n for account, model, n in found}

    # -- attempts, events, outputs ---------------------------------------------------------

    def _insert_attempts(self, attempts: Sequence[Attempt]) -> None:
        self._bulk(
            "INSERT INTO attempts (job, fence, attempt, account, runner, started_ms, generation,"
            " reserved_microusd) ",
            [(*a[:6], a.generation, a.reserved_microusd) for a in attempts],
        )

    def _end_attempts(self, attempts: Sequence[Attempt]) -> None:
        sets = "UPDATE attempts SET finished_ms = v.column3, outcome = v.column4"
        more = (
            # What it spent on renders that were of no use stays counted.
            ", error = v.column5, cost_microusd = CASE WHEN v.column6 IS NULL THEN cost_microusd"
            " ELSE coalesce(cost_microusd, 0) + v.column6 END,"
            " money = CASE WHEN cost_microusd > 0 AND v.column7 = 'not billed'"
            " THEN coalesce(money, 'unknown') ELSE coalesce(v.column7, money) END"
        )
        which = ") AS v WHERE attempts.job = v.column1 AND attempts.fence = v.column2"
        plain, others = [], []
        for a in attempts:
            ended = (a.job, a.fence, a.finished_ms, a.outcome)
            told = (a.error_json, a.cost_microusd, a.money)
            if told == (None, None, None):  # most of them, and in half the time
                plain.append(ended)
            else:
                others.append(ended + told)
        self._bulk(f"{sets} FROM (", plain, which)
        self._bulk(f"{sets}{more} FROM (", others, which)

    def _renew_attempt(self, attempt: Attempt, generation: int, spent_microusd: int) -> None:
        self._conn.execute(
            "UPDATE attempts SET generation = ?1, cost_microusd = nullif(coalesce(cost_microusd, 0)"
            " + ?2, 0), money = CASE WHEN ?2 = 0 THEN money ELSE 'billed' END"
            " WHERE job = ?3 AND fence = ?4",
            (generation, spent_microusd, attempt.job, attempt.fence),
        )

    def _reserve_more(self, job: int, fence: int, microusd: int) -> None:
        self._conn.execute(
            "UPDATE attempts SET reserved_microusd = reserved_microusd + ? WHERE job = ?"
            " AND fence = ?",
            (microusd, job, fence),
        )

    def _correct_attempt(self, attempt: Attempt, cost_microusd: int, money: str) -> None:
        self._conn.execute(
            "UPDATE attempts SET cost_microusd = ?, money = ? WHERE job = ? AND fence = ?",
            (cost_microusd, money, attempt.job, attempt.fence),
        )

    def _has_ended(self, job: int, fence: int) -> bool:
        sql = "SELECT outcome FROM attempts WHERE job = ? AND fence = ?"
        found = self._conn.execute(sql, (job, fence)).fetchone()
        return found is not None and found[0] is not None and found[0] != "reclaimed"

    def _late_result(
        self, job: int, fence: int, now_ms: int, outcome: str, result_json: str | None
    ) -> None:
        self._conn.execute(
            "UPDATE attempts SET late_result = ?, outcome = coalesce(outcome, ?),"
            " finished_ms = coalesce(finished_ms, ?) WHERE job = ? AND fence = ?",
            (result_json, outcome, now_ms, job, fence),
        )

    def attempts(self, job: int | None = None) -> list[Attempt]:
        columns = ", ".join(_columns(Attempt._fields))
        if job is None:
            sql = f"SELECT {columns} FROM attempts ORDER BY started_ms, job, fence"
            found = self._conn.execute(sql)
        else:
            sql = f"SELECT {columns} FROM attempts WHERE job = ? ORDER BY fence"
            found = self._conn.execute(sql, (job,))
        return [Attempt(*row) for row in found.fetchall()]

    def _insert_events(self, events: Sequence[Event]) -> None:
        self._bulk(
            "INSERT INTO events (type, job, at_ms, level, fence, data) ",
            [event[:6] for event in events],
        )

    def events(
        self, after: int = 0, job: int | None = None, limit: int = 1000, *, newest: bool = False
    ) -> list[Event]:
        sql = "SELECT type, job, at_ms, level, fence, data, id FROM events WHERE id > ?"
        sql += "" if job is None else " AND job = ?"
        sql += f" ORDER BY id {'DESC' if newest else 'ASC'} LIMIT ?"
        params = (after, limit) if job is None else (after, job, limit)
        found = [Event._make(row) for row in self._rows(_columns(Event._fields), sql, params)]
        return sorted(found, key=_id)

    def last_event(self) -> int:
        """The newest event's id; 0 where there is none."""
        return int(self._conn.execute("SELECT coalesce(max(id), 0) FROM events").fetchone()[0])

    def rate(self, after: int, since_ms: int) -> tuple[int, int, int]:
        """Of the events behind `after` and `since_ms`: how many ends, when first, when last."""
        n, first_ms, last_ms = self._conn.execute(_RATE, (after, since_ms)).fetchone()
        return n, first_ms or 0, last_ms or 0

    def longest_running(self, limit: int) -> list[Job]:
        """The running jobs that began first, those first."""
        found = self._jobs(_LONGEST, (limit,))
        return sorted(found, key=lambda job: (job.started_ms or 0, job.number))

    def recent_jobs(self, limit: int) -> list[Job]:
        """The jobs to which something happened last, the last first."""
        after, among = self.last_event() - RECENT_EVENTS, RECENT_EVENTS
        rows = self._conn.execute(_RECENT, (after, among, limit)).fetchall()
        found = self._jobs_by_number({number for (number,) in rows})
        return [found[number] for (number,) in rows if number in found]

    def _insert_outputs(self, outputs: Sequence[Output]) -> None:
        self._bulk("INSERT OR REPLACE INTO outputs ", outputs)

    def job_costs(self) -> dict[int, int]:
        # Where nothing was set aside and nothing told, 0 only means that nobody knows.
        found = self._conn.execute(
            "SELECT job, sum(cost_microusd) FROM attempts"
            " WHERE cost_microusd > 0 OR (cost_microusd = 0 AND reserved_microusd > 0) GROUP BY job"
        )
        return dict(found.fetchall())

    def numbers_by_source(self) -> list[int]:
        found = self._conn.execute(
            "SELECT number FROM (SELECT number, source, batch, row, sample,"
            " coalesce(instr(source, '.'), 0) > 0 AS is_file FROM jobs) ORDER BY CASE WHEN is_file"
            " THEN min(number) OVER (PARTITION BY source, batch) ELSE number END,"
            " row IS NULL, row, sample, number"
        )
        return [row[0] for row in found.fetchall()]

    def outputs(self, job: int | None = None) -> list[Output]:
        sql = "SELECT job, fence, path, size, sha256, media_type FROM outputs"
        if job is None:
            found = self._conn.execute(f"{sql} ORDER BY job, fence, length(path), path")
        else:
            found = self._conn.execute(
                f"{sql} WHERE job = ? ORDER BY fence, length(path), path", (job,)
            )
        return [Output(*row) for row in found.fetchall()]

    def steps(self, job: int | None = None) -> list[Step]:
        where, params = ("", ()) if job is None else (" WHERE job = ?", (job,))
        found = self._conn.execute(
            "SELECT job, name, generation, state, is_paid, key, fence, account, request, value,"
            f" begun_ms, ended_ms, cost_microusd, counted_by FROM steps{where}"
            " ORDER BY job, generation, begun_ms, name",
            params,
        )
        return [Step(*row) for row in found.fetchall()]

    def example_value(
        self, name: str, *, accounts: Collection[str] | None = None, but: int | None = None
    ) -> str | None:
        among = None if accounts is None else codec.encode(list(accounts))
        found = self._conn.execute(
            "SELECT value FROM (SELECT job, name, state, value, account FROM steps"
            " ORDER BY job DESC LIMIT ?) WHERE name = ? AND state = 'done' AND job IS NOT ?"
            " AND (?4 IS NULL OR account IN (SELECT value FROM json_each(?4))) LIMIT 1",
            (RECENT_STEPS, name, but, among),
        ).fetchone()
        return None if found is None else found[0]

    def said_steps(self, numbers: Collection[int], reason: str) -> list[tuple[int, str]]:
        found = self._conn.execute(
            "SELECT s.job, s.name FROM json_each(?) AS n JOIN jobs AS j ON j.number = n.value"
            " JOIN steps AS s ON s.job = j.number AND s.generation = j.generation"
            " WHERE (j.status = 'queued' OR j.status = 'failed') AND s.is_paid = 1"
            " AND EXISTS (SELECT 1 FROM events AS e WHERE e.job = s.job AND e.at_ms = s.ended_ms"
            " AND (e.type = 'job.resolved' OR e.type = 'job.doubt_noted')"
            " AND json_extract(e.data, '$.reason') = ?) ORDER BY s.job, s.name",
            (codec.encode(sorted(numbers)), reason),
        )
        return found.fetchall()

    def paid_values(self, account: str) -> list[tuple[int, str]]:
        found = self._conn.execute(
            "SELECT job, value FROM steps WHERE account = ? AND is_paid = 1 AND state = 'done'",
            (account,),
        )
        return found.fetchall()

    def set_aside(self) -> set[tuple[int, int]]:
        sql = "SELECT number, generation FROM jobs WHERE reserved_microusd > 0"
        return set(self._conn.execute(sql).fetchall())

    def stray_renders(self) -> list[Job]:
        return self._jobs(_STRAYS, ())

    def _write_step(self, step: Step) -> None:
        self._bulk("INSERT OR REPLACE INTO steps ", [step])

    def _delete_step(self, step: Step) -> None:
        self._conn.execute(
            "DELETE FROM steps WHERE job = ? AND generation = ? AND name = ?",
            (step.job, step.generation, step.name),
        )

    # -- counters, accounts, settings, runners ----------------------------------------------

    def _count(self, delta: Mapping[tuple[str, str, str], int]) -> None:
        self._bulk(
            "INSERT INTO counts ",
            [(*name, n) for name, n in delta.items()],
            " ON CONFLICT (kind, name, status) DO UPDATE SET n = n + excluded.n",
        )

    def _kept_counts(self) -> dict[tuple[str, str, str], int]:
        found = self._conn.execute("SELECT kind, name, status, n FROM counts WHERE n <> 0")
        return {(kind, name, status): n for kind, name, status, n in found.fetchall()}

    def _true_counts(self) -> dict[tuple[str, str, str], int]:
        found = self._conn.execute(
            "SELECT 'batch', coalesce(batch, ''), status, count(*) FROM jobs GROUP BY 2, 3"
            " UNION ALL SELECT 'account', account, status, count(*) FROM jobs"
            " WHERE account IS NOT NULL AND status IN ('completed', 'failed') GROUP BY 2, 3"
            " UNION ALL SELECT 'money', account, 'reserved', sum(reserved_microusd) FROM jobs"
            " WHERE account IS NOT NULL AND reserved_microusd > 0 GROUP BY 2"
        )
        return {(kind, name, status): n for kind, name, status, n in found.fetchall()}

    def accounts(self) -> list[Account]:
        found = self._conn.execute(
            "SELECT name, provider, capacity, credential, is_enabled, parked_until_ms,"
            " parked_reason, limits FROM accounts ORDER BY name"
        )
        return [
            Account(name, provider, capacity, credential, bool(enabled), *rest)
            for name, provider, capacity, credential, enabled, *rest in found.fetchall()
        ]

    def _write_account(self, a: Account) -> None:
        self._conn.execute(
            "INSERT OR REPLACE INTO accounts VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(a.name, a.provider, a.capacity, a.credential, int(a.is_enabled)),
                *(a.parked_until_ms, a.parked_reason, a.limits_json),
            ),
        )

    def _has_worked(self, account: str) -> bool:
        # What was spent stays counted when the attempts it was spent on are pruned.
        sql = (
            "SELECT EXISTS (SELECT 1 FROM attempts WHERE account = ?1) OR EXISTS"
            " (SELECT 1 FROM counts WHERE kind = 'money' AND name = ?1 AND n <> 0)"
        )
        return bool(self._conn.execute(sql, (account,)).fetchone()[0])

    def _delete_account(self, account: str) -> None:
        self._conn.execute("DELETE FROM accounts WHERE name = ?", (account,))

    def setting(self, name: str, default: Any = None) -> Any:
        found = self._conn.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
        return default if found is None else codec.loads(found[0])

    def _write_setting(self, name: str, value: Any) -> None:
        self._conn.execute(
            "INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, codec.dumps(value, name))
        )

    def batches(self) -> list[str]:
        found = self._conn.execute("SELECT name FROM batches ORDER BY created_ms, name")
        return [row[0] for row in found.fetchall()]

    def owners(self) -> set[str]:
        sql = "SELECT DISTINCT owner FROM jobs WHERE status = 'running'"
        return {row[0] for row in self._conn.execute(sql).fetchall()}

    def has_work_for(self, lanes: Sequence[str], *, is_paid: bool = False) -> bool:
        only = " AND is_paid = 1 AND is_short = 0 AND is_open = 0" if is_paid else ""
        sql = (
            "SELECT EXISTS (SELECT 1 FROM jobs WHERE status = 'queued' AND not_before_ms IS NULL"
            f" AND lane IN (SELECT value FROM json_each(?1)){only})"
            " OR EXISTS (SELECT 1 FROM jobs WHERE status = 'queued' AND not_before_ms IS NOT NULL"
            f" AND lane IN (SELECT value FROM json_each(?1)){only})"
        )
        return bool(self._conn.execute(sql, (codec.dumps(list(lanes)),)).fetchone()[0])

    def waiting_lanes(self) -> list[str]:
        # Hops from lane to lane along the index: as cheap with a million jobs as with ten.
        found = self._conn.execute(
            "WITH RECURSIVE lanes (lane) AS ("
            " SELECT min(lane) FROM jobs WHERE status = 'queued' AND not_before_ms IS NULL"
            " UNION ALL SELECT (SELECT min(lane) FROM jobs WHERE status = 'queued'"
            " AND not_before_ms IS NULL AND lane > lanes.lane) FROM lanes"
            " WHERE lane IS NOT NULL) SELECT lane FROM lanes WHERE lane IS NOT NULL"
        )
        return [row[0] for row in found.fetchall()]

    def runners(self) -> list[Runner]:
        found = self._conn.execute(
            "SELECT id, pid, host, boot_id, start_ticks, started_ms, state, error, health,"
            " updated_ms FROM runners ORDER BY started_ms, id"
        )
        return [Runner(*row) for row in found.fetchall()]

    def _write_runner(self, r: Runner) -> None:
        self._conn.execute(
            "INSERT OR REPLACE INTO runners VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(r.id, r.pid, r.host, r.boot_id, r.start_ticks, r.started_ms),
                *(r.state, r.error, r.health_json, r.updated_ms),
            ),
        )

    def _delete_runner(self, runner_id: str) -> None:
        self._conn.execute("DELETE FROM runners WHERE id = ?", (runner_id,))


def _where(chosen: JobFilter) -> tuple[str, list[Any]]:
    terms: list[str] = ["number > ?"]
    params: list[Any] = [chosen.after]
    if len(chosen.status) == 1 and chosen.status[0] in STATUSES:
        terms.append(f"status = '{chosen.status[0]}'")  # a literal, or no partial index serves it
    elif chosen.status:
        terms.append("status IN (SELECT value FROM json_each(?))")
        params.append(codec.dumps(list(chosen.status)))
    for name in ("batch", "account", "owner"):
        if (value := getattr(chosen, name)) is not None:
            terms.append(f"{name} = ?")
            params.append(value)
    for name, term in (("upto", "number <= ?"), ("ended_by_ms", "finished_ms <= ?")):
        if (value := getattr(chosen, name)) is not None:
            terms.append(term)
            params.append(value)
    if chosen.is_gone is not None:
        terms.append(_IS_GONE if chosen.is_gone else f"NOT {_IS_GONE}")
    if chosen.numbers is not None:
        terms.append(_IN_NUMBERS)
        params.append(codec.dumps(list(chosen.numbers)))
    if chosen.ids is not None:
        terms.append("id IN (SELECT value FROM json_each(?))")
        params.append(codec.dumps(list(chosen.ids)))
    return " AND ".join(terms), params


def _translated(error: sqlite3.Error, path: Path, *, is_unknown: bool = False) -> StoreError:
    """SQLite's error as ours: what was found, and what to do. `is_unknown` marks a lost commit."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    facts = {"path": str(path), "is_unknown": is_unknown}
    match code:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreBusy(
                f"{path} is held by another program that is not vqkit (a viewer in the middle of"
                " a write, a backup tool). Close it and try again; nothing was changed.",
                **facts,
            )
        case sqlite3.SQLITE_FULL:
            return StoreFull(
                f"the disk that holds {path} is full; make room. What was committed is safe.",
                **facts,
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return StoreReadOnly(
                f"{path} cannot be written ({error}). vqkit needs write permission on the file"
                " and its folder; copy it into a folder of your own.",
                **facts,
            )
        case sqlite3.SQLITE_NOTADB:
            return NotAQueue(
                f"{path} is not a database (or it is encrypted); it was left untouched."
                " Give the queue another file name.",
                **facts,
            )
        case sqlite3.SQLITE_CORRUPT:
            return StoreError(
                f"{path} is damaged ({error}). Keep it, and get the rows back with:"
                f" sqlite3 {path.name} .recover",
                **facts,
            )
        case sqlite3.SQLITE_IOERR:
            return StoreFull(
                f"{path} could not be written ({error}); the disk may be full or failing.", **facts
            )
    # A value or a statement that it will never take: waiting is no help.
    if not is_unknown and (code in _REFUSALS or (not code and _is_unbindable(error))):
        return StoreError(f"{path}: {error}; nothing was changed", is_refused=True, **facts)
    return StoreError(f"{path}: {error}", **facts)


_REFUSALS = frozenset(
    {
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_MISUSE,
        sqlite3.SQLITE_RANGE,
        sqlite3.SQLITE_TOOBIG,
    }
)


def _is_unbindable(error: sqlite3.Error) -> bool:
    """True for a value that Python's driver does not even hand on, which has no code."""
    return isinstance(error, sqlite3.InterfaceError | sqlite3.DataError) or (
        isinstance(error, sqlite3.ProgrammingError) and "binding" in str(error).lower()
    )
