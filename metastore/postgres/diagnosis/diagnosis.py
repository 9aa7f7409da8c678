"""The facts about a Postgres server that `headrace doctor` judges.

Place: under cli/doctor/postgres.py, on one connection; on no path of records.
Invariant: reads only, and needs no rights beyond those of an agent.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from headrace.metastore.backups import WalArchive
from headrace.metastore.postgres.errors import translated
from headrace.metastore.postgres.statement import Pool, Statement

_SERVER = Statement("diagnose_server", writes=False)
_TABLES = Statement("diagnose_tables", writes=False)
_CLEANING = Statement("diagnose_cleaning", writes=False)
_ARCHIVE = Statement("diagnose_archive", writes=False)
_LOCKS = Statement("diagnose_locks", writes=False)
_DISK = Statement("diagnose_disk", writes=False)
_RIGHTS = Statement("diagnose_rights", writes=False)
_STANDBYS = Statement("diagnose_standbys", writes=False)


class ServerState(NamedTuple):
    """What diagnose_server.sql answers; times in seconds, sizes in bytes, ages in transactions."""

    version: str
    now: datetime
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    max_connections: int
    reserved_connections: int
    connections: int
    standbys: int
    synchronous_standbys: int
    hidden_standbys: int
    """Number of standbys of which this role does not see whether they are synchronous."""
    synchronous_standby_names: str
    longest_transaction_s: float
    prepared_transactions: int
    wal_kept_for_idle_slots: int
    oldest_transaction_age: int
    autovacuum: bool
    database_bytes: int


class TableState(NamedTuple):
    """One of the tables with the most dead rows."""

    name: str
    live_rows: int
    dead_rows: int
    size_bytes: int


class LockedTable(NamedTuple):
    """A table that a session has locked against all others."""

    name: str
    process_id: int
    application: str


class Rights(NamedTuple):
    """What a role lacks."""

    role: str
    uses_schema: bool
    writes: bool
    """Whether it may write to any table: a reader's role may not."""
    missing: list[str]
    """Tables, functions and sequences, each with the missing rights."""


class StandbyLag(NamedTuple):
    """How far a standby is behind. None: this role does not see it, or nothing is written."""

    name: str
    unflushed_bytes: int | None
    unreplayed_bytes: int | None
    replay_lag_s: float | None


class LeftAside(NamedTuple):
    """A file that cannot be merged, or a partition that cannot be cleaned by key."""

    what: str
    why: str


async def server_state(pool: Pool) -> ServerState:
    """Errors as every statement's."""
    return ServerState(*await _SERVER.row(pool))


async def table_states(pool: Pool) -> list[TableState]:
    """The tables with the most dead rows first. Errors as every statement's."""
    return [TableState(*row) for row in await _TABLES.rows(pool)]


async def locked_tables(pool: Pool) -> list[LockedTable]:
    """Return up to 20 of them. Errors as every statement's."""
    return [LockedTable(*row) for row in await _LOCKS.rows(pool)]


async def left_aside(pool: Pool) -> list[LeftAside]:
    """Return what compaction left aside, up to 20 of it. Errors as every statement's."""
    return [LeftAside(*row) for row in await _CLEANING.rows(pool)]


async def missing_rights(pool: Pool) -> Rights:
    """Errors as every statement's."""
    return Rights(*await _RIGHTS.row(pool))


async def standby_lags(pool: Pool) -> list[StandbyLag]:
    """Return one for each connected standby. Errors as every statement's."""
    return [StandbyLag(*row) for row in await _STANDBYS.rows(pool)]


async def wal_archive(pool: Pool) -> WalArchive:
    """Errors as every statement's."""
    return WalArchive(*await _ARCHIVE.row(pool))


async def spill(pool: Pool) -> None:
    """Let the server write a temporary file of 3 MB: UnavailableError if its disk is full."""
    with translated("diagnose_disk", writes=False):
        async with pool.connection() as connection, connection.transaction():
            await connection.execute("SET LOCAL work_mem = '64kB'")
            await connection.execute(_DISK.sql)
