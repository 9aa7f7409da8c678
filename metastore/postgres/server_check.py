"""Whether this Postgres can keep what Headrace acknowledges: asked once, when a process opens the metastore.

Place: by `migrate` and other single connections (version and encoding only), and by PostgresMetastore.open, after its
pool is open.
Invariant: a server that cannot run the schema, or a database that cannot store every name of a client, is refused
before anything is read from it; a server that may lose committed rows, or that has no room
for another process, is named in the log with the setting to change. A standby is refused before that,
by the pool's `target_session_attrs` (pool.py).
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from psycopg import ConnectionInfo

from headrace.metastore.postgres.statement import Pool, Statement
from headrace.storage.errors import InvalidError

OLDEST_MAJOR = 15
ENCODING = "UTF8"
"""The encoding of the database, and of each connection, with any PGCLIENTENCODING and any default of a role."""

logger = logging.getLogger(__name__)

_DESCRIBE_SERVER = Statement("describe_server", writes=False)


class ServerFacts(NamedTuple):
    """What describe_server.sql answers; the settings are those of this session."""

    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    max_connections: int
    reserved_connections: int
    """Number of connections that are reserved, of max_connections, for superusers and for roles of
    pg_use_reserved_connections.
    """
    connections: int
    """Open now, this process's included."""


async def check_server(pool: Pool, connections: int) -> None:
    """InvalidError if the server is too old, or the database's encoding another; a warning for each other problem.

    UnavailableError if the server goes away meanwhile.
    """
    version, encoding = await pool.server()
    check_version(version)
    check_encoding(encoding)
    facts = ServerFacts(*await _DESCRIBE_SERVER.row(pool))
    for problem in problems_of(facts, connections):
        logger.warning("unsafe postgres: %s", problem)


def check_database(info: ConnectionInfo) -> None:
    """InvalidError for a Postgres or a database that cannot be the metastore."""
    check_version(info.server_version)
    check_encoding(info.parameter_status("server_encoding"))


def check_encoding(encoding: str | None) -> None:
    """InvalidError for another encoding than UTF8; None: a pooler does not tell."""
    if encoding not in (ENCODING, None):
        raise InvalidError(
            f"the database's encoding is {encoding}, so it cannot store every name of a topic, group or client:"
            f" create a database with ENCODING '{ENCODING}' (and TEMPLATE template0)"
        )


def check_version(server_version: int) -> None:
    """InvalidError for a Postgres before OLDEST_MAJOR; `server_version` as libpq has it, 150018 for 15.18."""
    if server_version < OLDEST_MAJOR * 10_000:
        version = f"{server_version // 10_000}.{server_version % 10_000}"
        raise InvalidError(f"postgres is too old: version={version} needed={OLDEST_MAJOR} or newer")


def problems_of(facts: ServerFacts, connections: int) -> list[str]:
    """Return what an operator should change, one line each; none for a safe server. `connections`: of one process at
    most.
    """
    found = []
    if not facts.fsync:
        found.append("fsync=off: a crash of its machine can destroy the database and all acknowledged records")
    if not facts.full_page_writes:
        found.append("full_page_writes=off: a crash of its machine can leave half-written pages")
    if facts.synchronous_commit == "off":
        found.append("synchronous_commit=off: a crash loses records that were acknowledged just before (set it to on)")
    free = facts.max_connections - facts.reserved_connections - facts.connections
    if free < connections:
        found.append(
            f"max_connections={facts.max_connections} is small: open={facts.connections} free={max(free, 0)}"
            f" needed={connections} (metastore.pool.size and its half for readers: another process cannot connect)"
        )
    return found
