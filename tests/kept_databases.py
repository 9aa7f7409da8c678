"""Databases with a session or two that one test leaves to the next.

Place: under the fixture `metastore`. A copy of the template costs Postgres 16 ms of CPU, and a new session compiles and
plans again each function that it calls, which is most of a short test's CPU. So a database is put back as it was, and
its sessions remain with what they have compiled.
Invariant: a test finds what the template has: rows, sequences, functions, tables, rights and settings. Functions that a
test replaced are replaced again. A database in which it changed another definition (`_SHAPE`), or of which it made a
large one, is dropped. No session of a test remains but those of its pool that were idle.
The rows of emptied tables are dead and remain in their files: a database is used USES_MAX times at most. A test that
counts pages, or sessions, is marked `own_database`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import psycopg
import pytest
from psycopg import AsyncConnection, sql
from psycopg.pq import PGconn, abc
from psycopg.types.json import Jsonb

from headrace.metastore.postgres import pool
from headrace.metastore.postgres.statement import Pool

if TYPE_CHECKING:
    from headrace.metastore.postgres.store import PostgresMetastore

USES_MAX = 40
SIZE_BYTES_MAX = 4 << 20
"""Of a database's tables and indexes; the template's have 2 MB."""
SESSIONS_MAX = 4
"""A test with more needs them for calls at the same time; the next one has the same as with new sessions."""
Rows = tuple[Any, ...]

_SHAPE = " UNION ALL ".join(
    f"SELECT count(*), max(xmin::text::bigint)::text FROM {catalog}"
    for catalog in (
        "pg_class WHERE oid >= 16384",
        "pg_attribute WHERE attrelid >= 16384",
        "pg_constraint WHERE conrelid >= 16384",
        "pg_index WHERE indexrelid >= 16384",
        "pg_type WHERE oid >= 16384",
        "pg_statistic WHERE starelid >= 16384",
        "pg_attrdef",
        "pg_trigger",
        "pg_event_trigger",
        "pg_proc WHERE oid >= 16384 AND proacl IS NOT NULL",
        "pg_proc WHERE oid >= 16384 AND proowner <> (SELECT relowner FROM pg_class WHERE relname = 'jobs')",
        "pg_namespace",
        "pg_extension",
        "pg_default_acl",
        "pg_publication",
        "pg_largeobject_metadata",
        "pg_database WHERE datname = current_database()",
        "pg_db_role_setting WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())",
    )
)
"""Counts and newest changes of what a test can define."""
_FUNCTIONS = (
    "SELECT oid::regprocedure::text, pg_get_functiondef(oid) FROM pg_proc"
    " WHERE oid >= 16384 AND xmin::text::bigint > %s"
)
_NEWEST_FUNCTION = "SELECT count(*), max(xmin::text::bigint) FROM pg_proc WHERE oid >= 16384"
_OTHERS = (
    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
    " WHERE datname = current_database() AND NOT pid = ANY (%s)"
)
_UNUSUAL = "SELECT count(*) FROM pg_settings WHERE source IN ('database', 'user', 'database user')"
_SIZE = "SELECT sum(pg_relation_size(oid)) FROM pg_class WHERE oid >= 16384 AND relkind IN ('r', 'i', 't')"
_TABLES = "SELECT relname::text FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY 1"
_SEQUENCES = "SELECT sequencename::text, start_value, last_value FROM pg_sequences WHERE schemaname = 'public'"
_OF_SESSION = ("RESET ALL", "UNLISTEN *", "DISCARD TEMP", "SELECT pg_advisory_unlock_all()")


@dataclass(slots=True)
class Session:
    """What remains of a connection: the session, and what psycopg knows of its prepared statements."""

    pgconn: abc.PGconn
    prepared: Any
    is_usual: bool = False
    """Whether it is known to have begun without settings of the database, which a test may have given to it."""


@dataclass
class Database:
    """One that a test uses, or that waits for the next."""

    name: str
    url: str
    sessions: list[Session] = field(default_factory=list)
    uses: int = 0
    shape: list[Rows] = field(default_factory=list)
    functions: Rows = ()
    """Their number, and the newest change of one."""
    marks: dict[str, Rows] = field(default_factory=dict)
    """Number and newest change of the rows of each table that has some in the template."""


class Original:
    """What the template has."""

    def __init__(self, connection: psycopg.Connection[Rows]) -> None:
        tables = [name for (name,) in connection.execute(_TABLES).fetchall()]
        self.rows = {table: found for table in tables if (found := _rows(connection, table))}
        self.functions: dict[str, str] = dict(connection.execute(_FUNCTIONS, (0,)).fetchall())
        sequences = connection.execute(_SEQUENCES).fetchall()
        set_back = [
            sql.SQL("setval({}, {}, {})").format(name, start if last is None else last, last is not None)
            for name, start, last in sequences
        ]
        self.sequences = sql.SQL("SELECT {}").format(sql.SQL(", ").join(set_back)).as_string()
        empty = [sql.Identifier(table) for table in tables if table not in self.rows]
        deletions = [sql.SQL("_{} AS (DELETE FROM {})").format(sql.SQL(str(n)), table) for n, table in enumerate(empty)]
        self.empty = sql.SQL("WITH {} SELECT").format(sql.SQL(", ").join(deletions)).as_string()
        marks = [
            sql.SQL("SELECT {}, count(*), max(xmin::text::bigint) FROM {}").format(table, sql.Identifier(table))
            for table in self.rows
        ]
        self.marks = sql.SQL(" UNION ALL ").join(marks).as_string()


class KeptDatabases:
    """Those of one process of pytest."""

    def __init__(self, copies: Callable[[], AbstractContextManager[str]], sessions_max: int = SESSIONS_MAX) -> None:
        self._copies = copies
        self._sessions_max = sessions_max
        self._stacks: dict[str, ExitStack] = {}
        self._clean: list[Database] = []
        self._original: Original | None = None

    @contextmanager
    def one(self) -> Iterator[Database]:
        """Return one as the template is; it is put back afterwards."""
        database = self._clean.pop() if self._clean else self._copied()
        database.uses += 1
        yield database
        if database.uses < USES_MAX and database.sessions and self._put_back(database):
            self._clean.append(database)
        else:
            self._drop(database)

    def close(self) -> None:
        """Drop all of them."""
        while self._clean:
            self._drop(self._clean.pop())

    def _copied(self) -> Database:
        stack = ExitStack()
        url = stack.enter_context(self._copies())
        self._stacks[url] = stack
        database = Database(url.partition("@/")[2].partition("?")[0], url)
        with psycopg.connect(url, autocommit=True) as connection:
            if self._original is None:
                self._original = Original(connection)
            assert _noted(database, connection, self._original)
        return database

    def _drop(self, database: Database) -> None:
        for session in database.sessions:
            session.pgconn.finish()
        self._stacks.pop(database.url).close()

    def _put_back(self, database: Database) -> bool:
        """Return whether it is as the template is now."""
        original = self._original
        assert original is not None
        while len(database.sessions) > self._sessions_max:
            database.sessions.pop().pgconn.finish()
        connections = [_wrapped(session) for session in database.sessions]
        first = connections[0]
        try:
            first.execute(_OTHERS, ([session.pgconn.backend_pid for session in database.sessions],), prepare=True)
            for session, connection in zip(database.sessions, connections, strict=True):
                for statement in _OF_SESSION:
                    connection.execute(statement.encode())
                session.is_usual = session.is_usual or not _value(connection, _UNUSUAL)
                if not session.is_usual:
                    return False
            if first.execute(_SHAPE, prepare=True).fetchall() != database.shape:
                return False
            if _value(first, _SIZE) > SIZE_BYTES_MAX:
                return False
            return _restored(first, database, original)
        except psycopg.Error:
            return False
        finally:
            for connection in connections:
                _let_go(connection)


@contextmanager
def continued(database: Database) -> Iterator[None]:
    """Let a metastore that is opened here begin with the sessions of this database."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pool, "Pool", partial(Pool, connection_class=_class_for(database)))
        if database.sessions:
            patched.setattr(pool, "AsyncConnection", _Reached)
        yield


async def close(store: PostgresMetastore, database: Database) -> None:
    """Close a metastore, and keep its idle sessions."""
    keep(database, [*store.pool._pool, *store.readers._pool])
    await store.close()


def _class_for(database: Database) -> type[AsyncConnection[Any]]:

    class Continued(AsyncConnection[Any]):
        session: Session | None = None

        @classmethod
        async def connect(cls, conninfo: str = "", **given: Any) -> Self:
            if not database.sessions:
                return await super().connect(conninfo, **given)
            session = database.sessions.pop(0)
            connection = cls(session.pgconn)
            connection.session = session
            connection._prepared = session.prepared
            connection._autocommit = given["autocommit"]
            connection.prepare_threshold = given["prepare_threshold"]
            return connection

    return Continued


class _Reached:
    """Replace the connection by which a metastore learns whether there is a server."""

    @classmethod
    async def connect(cls, **_: Any) -> Self:
        """Return at once: a session of it is there."""
        return cls()

    async def close(self) -> None:
        """Do nothing."""


def keep(database: Database, idle: list[AsyncConnection[Any]]) -> None:
    """Take the sessions of a pool that is about to be closed."""
    for connection in idle:
        if connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            session = getattr(connection, "session", None) or Session(connection.pgconn, connection._prepared)
            database.sessions.append(session)
            _let_go(connection)


def _wrapped(session: Session) -> psycopg.Connection[Rows]:
    connection: psycopg.Connection[Rows] = psycopg.Connection(session.pgconn)
    connection._prepared = session.prepared
    connection.autocommit = True
    return connection


def _let_go(connection: Any) -> None:
    """The session belongs to another object from now on."""
    gone = PGconn.connect_start(b"host=/nowhere")
    gone.finish()
    connection.pgconn = gone


def _restored(connection: psycopg.Connection[Rows], database: Database, original: Original) -> bool:
    """Put functions, rows and sequences back; return False if there is a function that the template does not have."""
    (functions,) = connection.execute(_NEWEST_FUNCTION.encode(), prepare=True).fetchall()
    if functions != database.functions:
        for name, _ in connection.execute(_FUNCTIONS, (database.functions[1],)).fetchall():
            if name not in original.functions:
                return False
            connection.execute(original.functions[name].encode())
    connection.execute(original.empty.encode(), prepare=True)
    connection.execute(original.sequences.encode(), prepare=True)
    for table, *mark in connection.execute(original.marks.encode(), prepare=True).fetchall():
        if tuple(mark) != database.marks[table]:
            name = sql.Identifier(table)
            connection.execute(sql.SQL("DELETE FROM {}").format(name), prepare=True)
            insert = sql.SQL("INSERT INTO {0} SELECT * FROM jsonb_populate_recordset(NULL::{0}, %s)").format(name)
            connection.execute(insert, (Jsonb(original.rows[table]),), prepare=True)
    return _noted(database, connection, original)


def _noted(database: Database, connection: psycopg.Connection[Rows], original: Original) -> bool:
    """Note what is there; return whether it is all that the template has, as far as it is counted."""
    (database.functions,) = connection.execute(_NEWEST_FUNCTION.encode(), prepare=True).fetchall()
    if not database.shape:
        database.shape = connection.execute(_SHAPE.encode(), prepare=True).fetchall()
    marks = connection.execute(original.marks.encode(), prepare=True).fetchall()
    database.marks = {table: tuple(mark) for table, *mark in marks}
    return bool(database.functions[0] == len(original.functions))


def _rows(connection: psycopg.Connection[Rows], table: str) -> list[Any]:
    query = sql.SQL("SELECT coalesce(jsonb_agg(to_jsonb(t)), '[]') FROM {} AS t").format(sql.Identifier(table))
    return _value(connection, query)  # type: ignore[no-any-return]


def _value(connection: psycopg.Connection[Rows], query: Any) -> Any:
    (found,) = connection.execute(query.encode() if isinstance(query, str) else query, prepare=True).fetchall()
    return found[0]
