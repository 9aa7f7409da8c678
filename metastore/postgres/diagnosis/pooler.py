"""Whether a pooler is between this process and Postgres, and whether it does what Headrace needs.

Place: under `headrace doctor`, on the first two connections, before any prepared statement.
Definitions: a pooler gives a client another process id than the server has. In session mode each client has a server
connection; in transaction mode clients share them between transactions; in statement mode BEGIN is refused.
Invariant: changes nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import psycopg

from headrace.metastore.postgres.errors import translated
from headrace.metastore.postgres.statement import Connection, Pool

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
