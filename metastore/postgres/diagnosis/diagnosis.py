"""The facts about Postgres servers that `headrace doctor` judges.

Place: under cli/doctor/postgres.py; on no path of records. Whether a pooler is between is asked on the first two
connections, before any prepared statement. Where metastore.url names several hosts, or none of them takes writes,
each host is asked: libpq tries them in order and reports one failure, which may be the standby's refusal in place of
the primary's silence.
Definitions: a pooler gives a client another process id than the server has. In session mode each client has a server
connection; in transaction mode clients share them between transactions; in statement mode BEGIN is refused.
Invariant of a pooler: changes nothing.
Invariant of one server: reads only, and needs no rights beyond those of an agent.
Invariant of several hosts: reads only; every host is asked, all at once, and each has HOST_SECONDS.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import make_conninfo

from headrace.config.addresses import address_text
from headrace.config.settings import Settings
from headrace.metastore.backups import WalArchive
from headrace.metastore.postgres import pool
from headrace.metastore.postgres.address import parsed
from headrace.metastore.postgres.errors import translated
from headrace.metastore.postgres.statement import Connection, Pool, Statement
from headrace.storage.clock import Clock, within
from headrace.storage.errors import HeadraceError

SESSION, TRANSACTION, STATEMENT = "session", "transaction", "statement"
_PID = b"SELECT pg_backend_pid()"


class Pooler(NamedTuple):
    """What is between. `problem` is empty if Headrace works through it."""

    mode: str
    problem: str = ""


async def find_pooler(pool: Pool) -> Pooler | None:
    """None without a pooler. Needs a pool of two connections; errors as every statement's."""
    with translated("diagnose_pooler", writes=False):
        async with pool.connection() as one, pool.connection() as other:
            first, second = await _pid(one), await _pid(other)
            if (first, second) == (one.info.backend_pid, other.info.backend_pid):
                return None
            if (refusal := await _why_no_transaction(other)) is not None:
                await other.close()  # PgBouncer has closed it, or is about to
                return Pooler(STATEMENT, refusal)
            if first != second:
                await other.execute(b"ROLLBACK", prepare=False)
                return Pooler(SESSION)
            return Pooler(TRANSACTION, await _why_not_prepared(one, other))


async def _pid(connection: Connection) -> int:
    row = await (await connection.execute(_PID, prepare=False)).fetchone()
    return 0 if row is None else int(row[0])


async def _why_no_transaction(connection: Connection) -> str | None:
    """Return why no transaction was begun; None if one was."""
    try:
        await connection.execute(b"BEGIN", prepare=False)
        await connection.execute(_PID, prepare=False)
    except psycopg.Error as error:
        return str(error).splitlines()[0]
    return None


async def _why_not_prepared(one: Connection, other: Connection) -> str:
    """Empty if a prepared statement follows its client to another server connection. `other` is in a transaction, which
    keeps the server connection that `one` has used, too.
    """
    try:
        await other.execute(b"ROLLBACK", prepare=False)
        await one.execute(_PID, prepare=True)
        await other.execute(b"BEGIN", prepare=False)
        await other.execute(_PID, prepare=False)
        await one.execute(_PID, prepare=True)
    except psycopg.Error as error:
        await one.close()
        return str(error).splitlines()[0]
    finally:
        if not other.closed:
            await other.execute(b"ROLLBACK", prepare=False)
    return ""


_SERVER = Statement("diagnose_server", writes=False)
_TABLES = Statement("diagnose_tables", writes=False)
_CLEANING = Statement("diagnose_cleaning", writes=False)
_ARCHIVE = Statement("diagnose_archive", writes=False)
_LOCKS = Statement("diagnose_locks", writes=False)
_DISK = Statement("diagnose_disk", writes=False)
_RIGHTS = Statement("diagnose_rights", writes=False)
_STANDBYS = Statement("diagnose_standbys", writes=False)
_FLUSH_FILES = Statement("diagnose_flush_files", writes=False)


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


class FlushFiles(NamedTuple):
    """The newest files that agents put into the bucket, up to 1,000."""

    files: int
    small: int
    """How many of them are small."""
    span_ms: int
    """The time between the first and the last."""


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


async def flush_files(pool: Pool, small_bytes: int) -> FlushFiles:
    """Return how many of the newest flush files have at most so many bytes. Errors as every statement's."""
    return FlushFiles(*await _FLUSH_FILES.row(pool, small_bytes=small_bytes))


async def wal_archive(pool: Pool) -> WalArchive:
    """Errors as every statement's."""
    return WalArchive(*await _ARCHIVE.row(pool))


async def spill(pool: Pool) -> None:
    """Let the server write a temporary file of 3 MB: UnavailableError if its disk is full."""
    with translated("diagnose_disk", writes=False):
        async with pool.connection() as connection, connection.transaction():
            await connection.execute("SET LOCAL work_mem = '64kB'")
            await connection.execute(_DISK.sql)


HOST_SECONDS = 8.0
"""More than the limit of one connection attempt, so that its error is heard."""
_HOST = Statement("diagnose_host", writes=False)


class HostState(NamedTuple):
    """One server. `error` is empty if it answered; the others are meant only then."""

    place: str
    """Host and port, or the folder of its socket and the port."""
    url: str
    """Address of this server alone. It may have a password: not for people."""
    error: str = ""
    is_standby: bool = False
    reads_only: str = ""
    """The place where default_transaction_read_only=on was set, in the words of pg_settings.source; empty: nowhere."""
    wal_bytes: int = 0
    """Its position in the WAL: as written by a primary, as replayed by a standby."""
    receives: bool = False
    """Whether it receives WAL from another server."""

    @property
    def takes_writes(self) -> bool:
        return not (self.error or self.is_standby or self.reads_only)


class ServerPlace(NamedTuple):
    """The place at which a server is reached by TCP."""

    text: str
    host: str
    port: int


def places_with_tls(settings: Settings) -> list[ServerPlace]:
    """Return the servers of metastore.url that may be asked for TLS: none by a socket, none with sslmode=disable.

    InvalidError for a malformed address.
    """
    arguments = parsed(settings.metastore_url)
    if (arguments.get("sslmode") or os.environ.get("PGSSLMODE", "")) == "disable":
        return []
    found = [(each.get("hostaddr") or each.get("host") or "", int(each["port"] or 5432)) for each in _places(arguments)]
    return [ServerPlace(address_text(host, port), host, port) for host, port in found if host and host[0] not in "/@"]


async def look_at_several(settings: Settings, clock: Clock) -> list[HostState]:
    """Return the hosts if there is more than one. InvalidError for a malformed address; errors as look_at_hosts."""
    return await look_at_hosts(settings, clock) if len(_places(parsed(settings.metastore_url))) > 1 else []


async def look_at_hosts(settings: Settings, clock: Clock) -> list[HostState]:
    """Return the hosts of metastore.url in its order. Errors as the command that prints the password."""
    arguments = await pool.connection_arguments(settings.metastore_url, settings)()
    url = settings.metastore_url
    return await asyncio.gather(*(_look(arguments | place, of_one(url, place), clock) for place in _places(arguments)))


def of_the_primary(settings: Settings, hosts: Sequence[HostState]) -> Settings:
    """Return settings of the one server that takes writes: no connection waits for the others. The same settings if
    there is no such server, or more than one.
    """
    primaries = [host.url for host in hosts if host.takes_writes]
    return msgspec.structs.replace(settings, metastore_url=primaries[0]) if len(primaries) == 1 else settings


def of_one(url: str, place: dict[str, str]) -> str:
    """Return the address with the host, hostaddr and port of one server."""
    return make_conninfo(url, **place)


def _places(arguments: dict[str, Any]) -> list[dict[str, str]]:
    """Return what one connection to each host has for libpq's parameters host, hostaddr and port."""
    given = {
        "host": arguments.get("host") or os.environ.get("PGHOST", ""),
        "hostaddr": arguments.get("hostaddr") or os.environ.get("PGHOSTADDR", ""),
        "port": str(arguments.get("port") or os.environ.get("PGPORT") or "5432"),
    }
    lists = {name: str(value).split(",") for name, value in given.items() if value}
    count = max(len(values) for values in lists.values())
    return [{name: values[i] if len(values) > 1 else values[0] for name, values in lists.items()} for i in range(count)]


async def _look(arguments: dict[str, Any], url: str, clock: Clock) -> HostState:
    host = arguments.get("host") or arguments.get("hostaddr") or "local"
    state = HostState(address_text(host, arguments["port"] or "5432"), url)
    try:
        return state._replace(**await within(clock, HOST_SECONDS, _ask(arguments)))
    except TimeoutError:
        return state._replace(error=f"no answer in {HOST_SECONDS:g} s (timeout)")
    except HeadraceError as error:
        return state._replace(error=str(error))


async def _ask(arguments: dict[str, Any]) -> dict[str, Any]:
    with translated("connect", writes=False):
        connection = await AsyncConnection.connect(**arguments | {"target_session_attrs": "any"})
        try:
            row = await (await connection.execute(_HOST.sql, prepare=False)).fetchone()
        finally:
            await connection.close()
    if row is None:
        raise psycopg.DataError("no row")
    is_standby, reads_only, wal_bytes, receives = row
    return {"is_standby": is_standby, "reads_only": reads_only, "wal_bytes": wal_bytes, "receives": receives}
