"""One SQL file as a callable: load, send over the pool, translate its errors.

Place: between the metastore's operations and psycopg.
Invariant: one statement is one transaction (the pool's connections are in autocommit), so no lock
outlives it and nobody waits for a caller that stopped in mid-call.
If the process dies here, Postgres finishes or rolls back the statement by itself.
"""

from __future__ import annotations

from functools import cached_property
from importlib import resources
from typing import Any

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from metastore.postgres.errors import translated

Pool = AsyncConnectionPool[AsyncConnection[tuple[Any, ...]]]


class Statement:
    """`queries/<name>.sql`, with psycopg's `%(name)s` parameters, each cast to its type in the file.

    `writes` says whether a connection lost in mid-statement leaves something unknown.
    """

    def __init__(self, name: str, *, writes: bool) -> None:
        self.name = name
        self.writes = writes

    async def rows(self, pool: Pool, **parameters: Any) -> list[tuple[Any, ...]]:
        """All result rows. Raises what storage/errors.py says, never a psycopg error."""
        with translated(self.name, writes=self.writes):
            async with pool.connection() as connection:
                cursor = await connection.execute(self._sql, parameters, binary=True)
                return await cursor.fetchall()

    async def row(self, pool: Pool, **parameters: Any) -> tuple[Any, ...]:
        """The only result row."""
        (row,) = await self.rows(pool, **parameters)
        return row

    @cached_property
    def _sql(self) -> bytes:
        """The file without its comment lines: they are for readers, not for the wire."""
        path = resources.files("metastore.postgres") / "queries" / f"{self.name}.sql"
        lines = path.read_text(encoding="utf-8").splitlines()
        return "\n".join(line for line in lines if not line.lstrip().startswith("--")).encode()
