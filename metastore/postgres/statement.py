"""Makes SQL statements callable, on the process's pool of connections.

Place: between the metastore's operations and psycopg.
Invariant: one statement is one transaction (the pool's connections are in autocommit), so no lock
lasts longer, and no other session waits for a caller that paused in mid-call. Every call ends: the server
ends what takes too long, and if even its error does not arrive (a pooler or a network that drops packets
and keeps the connection open; a commit that waits for a synchronous standby), we close the connection.
If the wait of a commit for the synchronous standby was canceled, the outcome is unknown, although the server reports
success: it is committed there and may be on no standby (docs/decisions/0095).
If the process crashes, Postgres finishes or rolls back the statement.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import psycopg
from prometheus_client import Histogram
from psycopg import AsyncConnection, OperationalError
from psycopg.errors import Diagnostic, ReadOnlySqlTransaction
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from headrace.metastore.life.numbers import NO_LIFE
from headrace.metastore.postgres.errors import translated
from headrace.metastore.postgres.sql_files import query_files, signatures
from headrace.storage.errors import HeadraceError, InvalidError, OutcomeUnknownError

Connection = AsyncConnection[tuple[Any, ...]]


class _LastUsedFirst(deque[Connection]):
    """The idle connections of a pool, which takes them from the left: the one that was returned last comes first.

    Its server process has its plans and rows in the processor's caches. psycopg's own order goes through all processes
    in turn, and each commit costs Postgres a quarter more.
    """

    def append(self, connection: Connection) -> None:
        self.appendleft(connection)


class Pool(AsyncConnectionPool[Connection]):
    """The process's connections, and the life of the metastore in which it writes (metastore/life)."""

    life: int = NO_LIFE
    commits: int = 0
    """Calls that committed a write, as far as their callers know that they wrote."""
    is_left: bool = False
    """Whether the next call, of this pool or one of `others`, drains it on its own event loop: connections in use are
    closed after their call. Any thread may set it."""
    others: Sequence[Pool] = ()
    """Pools of the same event loop."""
    standby_wait: str | None = None
    """What commits wait for, as the newest probe found it, until one ends (standbys/standbys.py)."""
    _refused_at: float = -math.inf
    _refusal: str = ""

    def committed(self) -> None:
        """Note that a call has committed a write: commits wait for nothing any more."""
        self.commits += 1
        self.standby_wait = None

    def refused(self, error: HeadraceError) -> None:
        """Note that the server answered, and could not write."""
        self._refused_at, self._refusal = asyncio.get_running_loop().time(), str(error)

    def refusal(self) -> str | None:
        """Return what commits wait for, or why the server refused to write within the last REFUSED_SECONDS."""
        if self.standby_wait is not None:
            return self.standby_wait
        is_new = asyncio.get_running_loop().time() - self._refused_at < REFUSED_SECONDS
        return self._refusal if is_new else None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Make the pool as psycopg does."""
        super().__init__(*arguments, **options)
        self._pool = _LastUsedFirst()

    async def getconn(self, timeout: float | None = None) -> Connection:
        """Take a connection as psycopg's pool does, but a caller that is cancelled in the turn that brings its
        connection is cancelled.

        With Python 3.11, psycopg waits by asyncio.wait_for, which loses such a cancellation (psycopg/psycopg#1345): the
        task continues, and the one that cancelled it waits for its end without success.
        """
        for pool in (self, *self.others):
            if pool.is_left:
                pool.is_left = False
                await pool.drain()
        before = _cancellations()
        try:
            connection = await super().getconn(timeout)
        except Exception:
            if _cancellations() > before:
                raise asyncio.CancelledError from None
            raise
        if _cancellations() > before:
            await self.putconn(connection)
            raise asyncio.CancelledError
        return connection

    async def server(self) -> tuple[int, str | None]:
        """Return the server's version and the database's encoding (None: a pooler does not tell).

        UnavailableError if there is no connection in time.
        """
        with translated("connect", writes=False):
            async with self.connection() as connection:
                return connection.info.server_version, connection.info.parameter_status("server_encoding")


class _Warnings:
    """What the server warned of during one call."""

    def __init__(self) -> None:
        self.is_unconfirmed = False
        """Whether a wait of its commit for the synchronous standby was canceled."""

    def take(self, warning: Diagnostic) -> None:
        """Read one; it is gone afterwards."""
        self.is_unconfirmed |= warning.source_function == STANDBY_WAIT


def _cancellations() -> int:
    """Return how often the current task was cancelled."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


_PLACEHOLDER = re.compile(r"%\((\w+)\)s")
_OF_THE_POOL = (PoolTimeout, PoolClosed, TooManyRequests)
CANNOT_WRITE = frozenset({"53100", "25006", "58030"})
"""Disk full, read-only transaction, error of input or output: the server answers and does not write."""
REFUSED_SECONDS = 15.0
"""Commits and housekeeping are tried again several times within it."""
STANDBY_WAIT = "SyncRepWaitForLSN"
"""The function of Postgres that warns of a canceled wait for the standby. Its text has the server's language."""
SILENCE_S = 2.0
"""How much longer than the server's own limit a statement may go without an answer."""
SECONDS = Histogram(
    "headrace_metastore_call_seconds",
    "Duration of calls to the metastore, failed ones and waits for a connection included",
    ["operation"],
    buckets=(0.002, 0.005, 0.01, 0.025, 0.1, 0.5, 5),
)
"""Eight buckets with the unlimited one, for each of about sixty operations: thirteen were half of a process's series.
Four are for the 1 to 25 ms of a healthy call, so that a quantile is right within a factor of two and a half; the others
tell slow (0.1 s), waiting for a lock or a failover (0.5 s) and given up (beyond metastore.lock.timeout.ms, 5 s) from
each other."""


class Statement:
    """The call of the SQL function `name`, or the plain query `name`.sql; its parameters are keywords.

    `writes` says whether a connection lost in mid-statement leaves something unknown. What writes names the pool's
    life of the metastore and is refused in another one, unless it works `in_any_life`. `patience_seconds` is what the
    server gives the statement in place of the connection's limit.
    """

    def __init__(
        self, name: str, *, writes: bool, in_any_life: bool = False, patience_seconds: float | None = None
    ) -> None:
        self.name = name
        self.writes = writes
        self._patience_seconds = patience_seconds
        self.names_life = writes and not in_any_life

    async def rows(self, pool: Pool, **parameters: Any) -> list[tuple[Any, ...]]:
        """All result rows. Raises what storage/errors.py says, never a psycopg error.

        InvalidError unless exactly the statement's own parameters are given.
        """
        if parameters.keys() != self.parameters:
            raise self._wrong(parameters)
        # they are sent once there is a connection, and the caller's own lists may change until then
        own = {name: list(value) if type(value) is list else value for name, value in parameters.items()}
        return await self.send(pool, own)

    async def send(self, pool: Pool, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        """All result rows for exactly the statement's own parameters, in which nothing changes any more."""
        if self.names_life:
            parameters["life"] = pool.life
        try:
            with self._seconds.time(), translated(self.name, writes=self.writes):
                return await self._ask_again(pool, parameters)
        except HeadraceError as error:
            if isinstance(error.__cause__, psycopg.Error) and error.__cause__.sqlstate in CANNOT_WRITE:
                pool.refused(error)
            raise

    async def _ask_again(self, pool: Pool, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Once; a second time if a read found that its connection was dead."""
        try:
            return await self._ask(pool, parameters)
        except OperationalError as error:
            if self.writes or error.sqlstate is not None or isinstance(error, _OF_THE_POOL):
                raise
        # the connection was dead, as one is that the network dropped while it was idle: a read is harmless twice
        return await self._ask(pool, parameters)

    async def _ask(self, pool: Pool, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Once, on one connection; psycopg's errors."""
        async with pool.connection() as connection:
            # what open_pool gives a wait for a connection is what the server gives a statement
            loop, limit = asyncio.get_running_loop(), (self._patience_seconds or pool.timeout) + SILENCE_S
            silent_at = loop.time() + limit
            hang_up = loop.call_later(limit, _hang_up, connection)
            heard = _Warnings()
            connection.add_notice_handler(heard.take)
            try:
                answer = await self._answer(connection, parameters)
                if self.writes and heard.is_unconfirmed:
                    raise OutcomeUnknownError(
                        f"{self.name}: its commit was not confirmed by the synchronous standby: the wait was canceled"
                    )
                return answer
            except ReadOnlySqlTransaction:
                await _leave_standby(connection, pool)
                raise
            finally:
                connection.remove_notice_handler(heard.take)
                hang_up.cancel()
                if loop.time() >= silent_at:
                    # its neighbours went the same way: trying them one after another would take this long each
                    await pool.drain()

    async def _answer(self, connection: Connection, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        if self._patience_seconds is None:
            return await (await connection.execute(self.sql, parameters, binary=True)).fetchall()
        async with connection.transaction():
            await connection.execute(f"SET LOCAL statement_timeout = {round(self._patience_seconds * 1000)}".encode())
            return await (await connection.execute(self.sql, parameters, binary=True)).fetchall()

    async def row(self, pool: Pool, **parameters: Any) -> tuple[Any, ...]:
        """The only result row."""
        (row,) = await self.rows(pool, **parameters)
        return row

    @cached_property
    def _seconds(self) -> Histogram:
        """Shown from the first call on: most processes make few of all calls."""
        return SECONDS.labels(self.name)

    @cached_property
    def sql(self) -> bytes:
        """The text, without comment lines: they are for readers, not for the wire."""
        return self._text().encode()

    @cached_property
    def parameters(self) -> frozenset[str]:
        """The names that the text has placeholders for, but for the life that a writing call names."""
        found = frozenset(_PLACEHOLDER.findall(self.sql.decode()))
        return found - {"life"} if self.names_life else found

    def _text(self) -> str:
        signature, query = signatures().get(self.name), query_files().get(self.name)
        if signature is not None:
            return signature.call_in_life if self.names_life else signature.call
        if query is None:
            raise InvalidError(f"there is neither a SQL function nor a query of this name: name={self.name}")
        return "\n".join(line for line in query.text.splitlines() if not line.lstrip().startswith("--"))

    def _wrong(self, given: Mapping[str, Any]) -> InvalidError:
        missing, unknown = sorted(self.parameters - given.keys()), sorted(given.keys() - self.parameters)
        return InvalidError(f"{self.name} refused: missing={','.join(missing)} unknown={','.join(unknown)}")


async def _leave_standby(connection: Connection, pool: Pool) -> None:
    """Close the connections to a primary that became a standby: nothing was written, and the others lead there too."""
    await connection.close()
    await pool.drain()


def _hang_up(connection: Connection) -> None:
    """The waiting caller finds the connection closed. Cancelling would wait for the server."""
    # It may be closed or reset by now: the caller is about to find out.
    with suppress(OSError, OperationalError), socket.socket(fileno=os.dup(connection.fileno())) as wire:
        wire.shutdown(socket.SHUT_RDWR)
