"""One connection to Postgres, for a command that opens no pool.

Place: under migrate.py, migration_plan.py, formatted.py and planners.py.
Invariant: a server or database that cannot be the metastore is refused before the caller asks it anything. What only
reads ends, also behind a lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from headrace.metastore.postgres.address import parsed
from headrace.metastore.postgres.server_check import ENCODING, check_database

CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 5
"""How long a read may take, its wait for a lock included."""


@contextmanager
def connected(url: str, *, autocommit: bool = False) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """A connection; as psycopg's, it commits at the end. Errors as `parsed`, psycopg.connect and `check_database`."""
    parsed(url)
    with psycopg.connect(
        url, autocommit=autocommit, connect_timeout=CONNECT_TIMEOUT_S, client_encoding=ENCODING
    ) as connection:
        check_database(connection.info)
        yield connection


@contextmanager
def reading(url: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """The same, in a transaction that only reads; each statement ends after READ_TIMEOUT_S."""
    with connected(url) as connection:
        connection.execute(f"SET LOCAL statement_timeout = '{READ_TIMEOUT_S}s'".encode())
        connection.execute("SET TRANSACTION READ ONLY")
        yield connection
