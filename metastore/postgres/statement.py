"""One SQL file as a callable: load, send over the pool, translate its errors.

Place: between the metastore's operations and psycopg.
Invariant: one statement is one transaction (the pool's connections are in autocommit), so no lock
outlives it and nobody waits for a caller that stopped in mid-call. Every call ends: the server ends
what takes too long, and when not even its word of that arrives (a pooler or a network that swallows
everything and keeps the connection open), we hang up.
If the process dies here, Postgres finishes or rolls back the statement by itself.
"""

from __future__ import annotations

import asyncio
import os
import socket
from functools import cached_property
from importlib import resources
from typing import Any

from prometheus_client import Histogram
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from headrace.metastore.postgres.errors import translated

Connection = AsyncConnection[tuple[Any, ...]]
Pool = AsyncConnectionPool[Connection]

SILENCE_S = 2.0
"""How much longer than the server's own limit a statement may go without an answer."""
SECONDS = Histogram(
    "headrace_metastore_call_seconds",
    "Duration of this process's calls to the metastore, failed ones and the wait for a connection included",
    ["operation"],
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 15),
)


class Statement:
    """`queries/<name>.sql`, with psycopg's `%(name)s` parameters, each cast to its type in the file.

    `writes` says whether a connection lost in mid-statement leaves something unknown.
    """

    def __init__(self, name: str, *, writes: bool) -> None:
        self.name = name
        self.writes = writes

    async def rows(self, pool: Pool, **parameters: Any) -> list[tuple[Any, ...]]:
        """All result rows. Raises what storage/errors.py says, never a psycopg error."""
        with self._seconds.time(), translated(self.name, writes=self.writes):
            async with pool.connection() as connection:
                # what open_pool gives a wait for a connection is what the server gives a statement
                loop, limit = asyncio.get_running_loop(), pool.timeout + SILENCE_S
                silent_at = loop.time() + limit
                hang_up = loop.call_later(limit, _hang_up, connection)
                try:
                    cursor = await connection.execute(self._sql, parameters, binary=True)
                    return await cursor.fetchall()
                finally:
                    hang_up.cancel()
                    if loop.time() >= silent_at:
                        # its neighbours went the same way: trying them one after another would take this long each
                        await pool.drain()

    async def row(self, pool: Pool, **parameters: Any) -> tuple[Any, ...]:
        """The only result row."""
        (row,) = await self.rows(pool, **parameters)
        return row

    @cached_property
    def _seconds(self) -> Histogram:
        """Shown from the first call on: most processes make few of all calls."""
        return SECONDS.labels(self.name)

    @cached_property
    def _sql(self) -> bytes:
        """The file without its comment lines: they are for readers, not for the wire."""
        path = resources.files("headrace.metastore.postgres") / "queries" / f"{self.name}.sql"
        lines = path.read_text(encoding="utf-8").splitlines()
        return "\n".join(line for line in lines if not line.lstrip().startswith("--")).encode()


def _hang_up(connection: Connection) -> None:
    """Let whoever waits for an answer find the connection closed. Cancelling would wait for the server's consent."""
    with socket.socket(fileno=os.dup(connection.fileno())) as wire:
        wire.shutdown(socket.SHUT_RDWR)
