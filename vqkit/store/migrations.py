"""The tables, and the steps that bring an older database up to date.

Each step runs once, in a transaction of its own that also records it (sqlite-utils'
``Migrations``). The schema reads plainly by hand: status and stage are words, times are
UTC milliseconds, JSON is text.
"""

from __future__ import annotations

from sqlite_utils import Database, Migrations

__all__ = ["MIGRATIONS"]

MIGRATIONS = Migrations("vqkit")

# Words are told apart by OR, not by IN: every UPDATE of a status checks them again, and was
# measured to take a quarter less.
JOBS = """
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    payload TEXT NOT NULL CHECK (json_valid(payload)),
    payload_hash TEXT NOT NULL,
    batch TEXT,
    key TEXT,
    provider TEXT,
    pinned_account TEXT,
    priority INTEGER NOT NULL DEFAULT 0,
    seed INTEGER NOT NULL DEFAULT 0,
    sample INTEGER NOT NULL DEFAULT 0,
    source TEXT,
    row INTEGER,
    timeout_ms INTEGER CHECK (timeout_ms > 0),
    max_attempts INTEGER CHECK (max_attempts > 0),
    not_before_ms INTEGER,
    expires_ms INTEGER,
    status TEXT NOT NULL DEFAULT 'queued'
        CHECK (status = 'queued' OR status = 'running' OR status = 'completed'
            OR status = 'failed' OR status = 'cancelled' OR status = 'in_doubt'),
    stage TEXT,
    progress REAL,
    attempt INTEGER NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    crashes INTEGER NOT NULL DEFAULT 0 CHECK (crashes >= 0),
    deaths INTEGER NOT NULL DEFAULT 0 CHECK (deaths >= 0),
    fence INTEGER NOT NULL DEFAULT 0 CHECK (fence >= 0),
    owner TEXT,
    account TEXT,
    generation INTEGER NOT NULL DEFAULT 0 CHECK (generation >= 0),
    handle TEXT CHECK (handle IS NULL OR json_valid(handle)),
    reserved_microusd INTEGER NOT NULL DEFAULT 0 CHECK (reserved_microusd >= 0),
    result TEXT CHECK (result IS NULL OR json_valid(result)),
    error TEXT CHECK (error IS NULL OR json_valid(error)),
    reason TEXT,
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL,
    started_ms INTEGER,
    finished_ms INTEGER,
    cancel_requested INTEGER NOT NULL DEFAULT 0 CHECK (cancel_requested IN (0, 1)),
    lane TEXT NOT NULL DEFAULT '',
    is_open INTEGER NOT NULL DEFAULT 0,
    CHECK (is_open = (handle IS NOT NULL)),
    CHECK ((status = 'completed' OR status = 'failed' OR status = 'cancelled')
        = (finished_ms IS NOT NULL)),
    CHECK ((status = 'running') = (owner IS NOT NULL)),
    CHECK (status <> 'running' OR (account IS NOT NULL AND fence > 0))
) STRICT
"""

OTHERS = """
CREATE UNIQUE INDEX jobs_key ON jobs (key) WHERE key IS NOT NULL;
CREATE INDEX jobs_waiting ON jobs (lane, is_open DESC, priority DESC, number)
    WHERE status = 'queued' AND not_before_ms IS NULL;
CREATE INDEX jobs_due ON jobs (not_before_ms)
    WHERE status = 'queued' AND not_before_ms IS NOT NULL;
CREATE INDEX jobs_expiring ON jobs (expires_ms)
    WHERE status = 'queued' AND expires_ms IS NOT NULL;
CREATE INDEX jobs_live ON jobs (account) WHERE status = 'running' OR is_open = 1;
CREATE INDEX jobs_owned ON jobs (owner, cancel_requested) WHERE status = 'running';
CREATE INDEX jobs_failed ON jobs (number) WHERE status = 'failed';
CREATE INDEX jobs_in_doubt ON jobs (number) WHERE status = 'in_doubt';

CREATE TABLE attempts (
    job INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    account TEXT NOT NULL,
    runner TEXT NOT NULL,
    started_ms INTEGER NOT NULL,
    finished_ms INTEGER,
    outcome TEXT,
    error TEXT,
    late_result TEXT,
    generation INTEGER NOT NULL DEFAULT 0,
    reserved_microusd INTEGER NOT NULL DEFAULT 0,
    cost_microusd INTEGER,
    money TEXT CHECK (money = 'billed' OR money = 'not billed' OR money = 'unknown'),
    PRIMARY KEY (job, fence),
    CHECK ((outcome IS NULL) = (finished_ms IS NULL))
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    type TEXT NOT NULL,
    job INTEGER,
    at_ms INTEGER NOT NULL,
    level TEXT NOT NULL DEFAULT 'info',
    fence INTEGER,
    data TEXT NOT NULL DEFAULT '{}'
) STRICT;
CREATE INDEX events_job ON events (job) WHERE job IS NOT NULL;

CREATE TABLE steps (
    job INTEGER NOT NULL,
    name TEXT NOT NULL,
    generation INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('intent', 'done')),
    is_paid INTEGER NOT NULL CHECK (is_paid IN (0, 1)),
    key TEXT NOT NULL,
    fence INTEGER NOT NULL,
    account TEXT,
    request TEXT CHECK (request IS NULL OR json_valid(request)),
    value TEXT CHECK (value IS NULL OR json_valid(value)),
    begun_ms INTEGER NOT NULL,
    ended_ms INTEGER,
    PRIMARY KEY (job, generation, name),
    CHECK ((state = 'done') = (ended_ms IS NOT NULL))
) STRICT, WITHOUT ROWID;

CREATE TABLE accounts (
    name TEXT PRIMARY KEY,
    provider TEXT NOT NULL,
    capacity INTEGER NOT NULL CHECK (capacity > 0),
    credential TEXT,
    is_enabled INTEGER NOT NULL DEFAULT 1 CHECK (is_enabled IN (0, 1)),
    parked_until_ms INTEGER,
    parked_reason TEXT,
    limits TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(limits))
) STRICT, WITHOUT ROWID;

CREATE TABLE runners (
    id TEXT PRIMARY KEY,
    pid INTEGER NOT NULL,
    host TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    start_ticks INTEGER NOT NULL,
    started_ms INTEGER NOT NULL,
    state TEXT NOT NULL,
    error TEXT,
    health TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(health)),
    updated_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE batches (
    name TEXT PRIMARY KEY,
    source TEXT,
    created_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE outputs (
    job INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    path TEXT NOT NULL,
    size INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    media_type TEXT NOT NULL,
    PRIMARY KEY (job, fence, path)
) STRICT, WITHOUT ROWID;

CREATE TABLE settings (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL CHECK (json_valid(value))
) STRICT, WITHOUT ROWID;

CREATE TABLE counts (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    status TEXT NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (kind, name, status)
) STRICT, WITHOUT ROWID;
"""


@MIGRATIONS()
def m001_tables(db: Database) -> None:
    """The first version of every table."""
    # CHECK constraints and partial indexes have no spelling in sqlite-utils' create().
    db.execute(JOBS)
    for statement in OTHERS.split(";"):
        if statement.strip():
            db.execute(statement)


@MIGRATIONS()
def m002_strays(db: Database) -> None:
    """What `stray_renders` looks for at every turn, without a look at each running job."""
    db.execute(
        "CREATE INDEX jobs_stray ON jobs (number) WHERE is_open = 1 AND finished_ms IS NOT NULL"
    )


@MIGRATIONS()
def m003_models(db: Database) -> None:
    """The model a payload names, and the jobs that wait by it: some providers limit each."""
    db.execute("ALTER TABLE jobs ADD COLUMN model TEXT NOT NULL DEFAULT ''")
    db.execute(
        "UPDATE jobs SET model = substr(json_extract(payload, '$.model'), 1, 200)"
        " WHERE json_type(payload, '$.model') = 'text'"
    )
    db.execute(
        "CREATE INDEX jobs_by_model ON jobs (lane, model, is_open DESC, priority DESC, number)"
        " WHERE status = 'queued' AND not_before_ms IS NULL"
    )


@MIGRATIONS()
def m004_shared_rows(db: Database) -> None:
    """Who else has put a job that was there already: '' where there is no source or batch."""
    db.execute(
        "CREATE TABLE shared_rows (job INTEGER NOT NULL, source TEXT NOT NULL,"
        " batch TEXT NOT NULL, row INTEGER, PRIMARY KEY (job, source, batch)) STRICT, WITHOUT ROWID"
    )
    db.execute("CREATE INDEX shared_rows_of ON shared_rows (source, batch)")


@MIGRATIONS()
def m005_paid_calls(db: Database) -> None:
    """Jobs that have begun a paid call, which a later try goes on with."""
    db.execute("ALTER TABLE jobs ADD COLUMN is_paid INTEGER NOT NULL DEFAULT 0")
    db.execute(
        "UPDATE jobs SET is_paid = 1 WHERE EXISTS (SELECT 1 FROM steps WHERE steps.is_paid = 1"
        " AND steps.job = jobs.number AND steps.generation = jobs.generation)"
    )
    db.execute(
        "CREATE INDEX jobs_paid ON jobs (lane, priority DESC, number)"
        " WHERE status = 'queued' AND not_before_ms IS NULL AND is_paid = 1"
        " AND is_open = 0"
    )


@MIGRATIONS()
def m006_names_of_our_steps(db: Database) -> None:
    """The engine's step gets a name that no function's own step can have.

    Only the engine keeps the request with a step: that tells its "render" from a function's.
    Keys stay, and with them the receipts.
    """
    db.execute(
        "UPDATE steps SET name = 'vqkit:render' WHERE name = 'render' AND request IS NOT NULL"
    )


@MIGRATIONS()
def m007_money_of_steps(db: Database) -> None:
    """What each paid call has cost, or may: the first of a generation has what its job had."""
    db.execute("ALTER TABLE steps ADD COLUMN cost_microusd INTEGER NOT NULL DEFAULT 0")
    db.execute("ALTER TABLE steps ADD COLUMN counted_by INTEGER")
    db.execute("ALTER TABLE jobs ADD COLUMN is_short INTEGER NOT NULL DEFAULT 0")
    first = (
        "steps.is_paid = 1 AND steps.generation = jobs.generation AND steps.name = (SELECT s.name"
        " FROM steps AS s WHERE s.job = jobs.number AND s.generation = jobs.generation"
        " AND s.is_paid = 1 ORDER BY s.begun_ms, s.name LIMIT 1)"
    )
    db.execute(
        "UPDATE steps SET cost_microusd = jobs.reserved_microusd FROM jobs"
        f" WHERE jobs.number = steps.job AND jobs.reserved_microusd > 0 AND {first}"
    )
    db.execute(
        "UPDATE steps SET counted_by = a.fence, cost_microusd = a.cost_microusd FROM jobs,"
        " (SELECT job, generation, max(fence) AS fence, cost_microusd FROM attempts"
        " WHERE cost_microusd > 0 GROUP BY job, generation) AS a"
        " WHERE jobs.number = steps.job AND jobs.is_paid = 1 AND jobs.reserved_microusd = 0"
        f" AND a.job = steps.job AND a.generation = steps.generation AND {first}"
    )
    db.execute("DROP INDEX jobs_paid")
    db.execute(
        "CREATE INDEX jobs_paid ON jobs (lane, priority DESC, number)"
        " WHERE status = 'queued' AND not_before_ms IS NULL AND is_paid = 1 AND is_short = 0"
        " AND is_open = 0"
    )


@MIGRATIONS()
def m008_accounts_in_passing(db: Database) -> None:
    """Accounts that nobody asked for: of a handler under its name, and those of `vqkit run`."""
    db.execute(
        "UPDATE accounts SET limits = '{\"in_passing\":true}' WHERE limits = '{}'"
        " AND credential IS NULL AND (name = provider"
        " OR (provider = 'local' AND name GLOB 'local-[0-9]*'))"
    )
