"""The connections of a process to Postgres: a pool, a smaller pool for readers, or one connection of a command.

Place: opened once per process; every statement of the metastore takes one connection for one statement. What clients
read takes it from the readers' pool, so that no number of slow look-ups delays a commit, a heartbeat or the feed.
migrate.py, formatted.py and `headrace planners` open one connection and no pool.
Invariant of one connection: a server or database that cannot be the metastore is refused before the caller asks it
anything. What only reads ends, also behind a lock.
Invariant: no client-held transaction. Autocommit, and the server itself ends what takes too long:
a statement, a wait for a lock, a transaction that was left open. So a paused agent cannot block the others. A
connection that the server closed while it was idle is replaced before use.
What is committed is durable as far as the server's `synchronous_commit` and `fsync` say: server_check.py warns.
If the process crashes, Postgres notices through TCP keepalives and drops the session.

A server that only reads (a hot standby, or a primary that became one) is refused when a connection is made; a
connection that turns read-only later is closed (statement.py). Every answer is a primary's.

Behind a pooler in transaction mode (PgBouncer 1.21 or newer: prepared statements need `max_prepared_statements` >
0): nothing here relies on a session but the start-up `options`. Let the pooler ignore them
(`ignore_startup_parameters = options`) and give the role the same timeouts with ALTER ROLE ... SET. PgBouncer keeps
`client_encoding` and `standard_conforming_strings` for each client.
"""

from __future__ import annotations

import select
import weakref
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from headrace.config.settings import Settings
from headrace.metastore.postgres.address import PasswordCommand, parsed
from headrace.metastore.postgres.errors import translated
from headrace.metastore.postgres.server_check import ENCODING, check_database
from headrace.metastore.postgres.statement import Pool
from headrace.storage.clock import SystemClock

SINGLE_CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 5
"""How long a read may take, its wait for a lock included."""


@contextmanager
def connected(url: str, *, autocommit: bool = False) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """A connection; as psycopg's, it commits at the end. Errors as `parsed`, psycopg.connect and `check_database`."""
    parsed(url)
    with psycopg.connect(
        url, autocommit=autocommit, connect_timeout=SINGLE_CONNECT_TIMEOUT_S, client_encoding=ENCODING
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


Arguments = Callable[[], Awaitable[dict[str, Any]]]
"""Arguments of psycopg's connect, for the next connection."""
CONNECT_TIMEOUT_S = 5
PRIMARY = {"target_session_attrs": "read-write"}
"""Connect only to a server that accepts writes; the address may name another choice."""
IDLE_IN_TRANSACTION_TIMEOUT_MS = 5_000


class PoolMetrics(Collector):
    """Show how full all pools of this process are, summed by name.

    It reads counters of the pools and calls nothing; a pool that is closed and forgotten is not shown.
    """

    def __init__(self) -> None:
        self._pools: weakref.WeakKeyDictionary[Pool, str] = weakref.WeakKeyDictionary()

    def watch(self, pool: Pool, name: str) -> None:
        """Show it from now on, until it is closed."""
        self._pools[pool] = name

    def collect(self) -> Iterator[Metric]:
        """Called by prometheus-client for every scrape, on the HTTP listener's thread."""
        limit = GaugeMetricFamily(
            "headrace_metastore_pool_max_connections", "Most connections that the pool may have", labels=["pool"]
        )
        busy = GaugeMetricFamily(
            "headrace_metastore_pool_busy_connections", "Connections that run a statement now", labels=["pool"]
        )
        waiting = GaugeMetricFamily(
            "headrace_metastore_pool_waiting", "Calls that wait for a connection now", labels=["pool"]
        )
        failed = CounterMetricFamily(
            "headrace_metastore_pool_failed_waits",
            "Calls that got no connection within metastore.statement.timeout.ms",
            labels=["pool"],
        )
        sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for pool, name in list(self._pools.items()):
            if not pool.closed:
                sums[name].update(pool.get_stats())
        for name, stats in sums.items():
            limit.add_metric([name], stats["pool_max"])
            busy.add_metric([name], max(0, stats["pool_size"] - stats["pool_available"]))
            waiting.add_metric([name], stats["requests_waiting"])
            failed.add_metric([name], stats["requests_errors"])
        yield from (limit, busy, waiting, failed)


POOLS = PoolMetrics()
REGISTRY.register(POOLS)


async def open_pool(url: str, settings: Settings) -> Pool:
    """A pool of `metastore.pool.size` connections, all of them made.

    UnavailableError when Postgres cannot be reached in time; InvalidError for a malformed url.
    """
    arguments = connection_arguments(url, settings)
    with translated("open pool", writes=False):
        # the pool retries in the background and only says that time ran out: learn the reason first
        await (await AsyncConnection.connect(**await arguments())).close()
        return await _opened(arguments, settings, settings.metastore_pool_size, settings.metastore_pool_size, "main")


async def open_readers_pool(url: str, settings: Settings) -> Pool:
    """The pool of readers: connections are made when look-ups need them, and closed after ten minutes without use."""
    with translated("open pool", writes=False):
        most = settings.metastore_reader_connections
        return await _opened(connection_arguments(url, settings), settings, 0, most, "readers")


async def _opened(arguments: Arguments, settings: Settings, min_size: int, max_size: int, name: str) -> Pool:
    pool = Pool(
        "",
        kwargs=arguments,
        min_size=min_size,
        max_size=max_size,
        timeout=settings.metastore_statement_timeout_ms / 1000,
        check=_replace_if_closed,
        open=False,
    )
    try:
        await pool.open(wait=True, timeout=2 * CONNECT_TIMEOUT_S)
    except BaseException:
        await pool.close()
        raise
    POOLS.watch(pool, name)
    return pool


def connection_arguments(url: str, settings: Settings) -> Arguments:
    """Return what each connection is made with: a new password, if a command prints it."""
    fixed = _fixed_arguments(url, settings)
    if not settings.metastore_password_command:
        return _always(fixed)
    command = PasswordCommand(settings.metastore_password_command, SystemClock())

    async def with_password() -> dict[str, Any]:
        return fixed | {"password": await command.password()}

    return with_password


def _always(arguments: dict[str, Any]) -> Arguments:
    async def same() -> dict[str, Any]:
        return arguments

    return same


def _fixed_arguments(url: str, settings: Settings) -> dict[str, Any]:
    arguments = parsed(url)
    server_side = {
        "statement_timeout": settings.metastore_statement_timeout_ms,
        "lock_timeout": settings.metastore_lock_timeout_ms,
        "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_TIMEOUT_MS,
        "jit": "off",
        "client_min_messages": "warning",  # a canceled wait for a synchronous standby is a warning (statement.py)
        "default_transaction_isolation": "read\\ committed",
        "standard_conforming_strings": "on",  # functions have literals with backslashes
    }
    options = " ".join(f"-c {name}={value}" for name, value in server_side.items())
    return (
        PRIMARY
        | arguments
        | {
            "autocommit": True,
            "prepare_threshold": 0,  # the same few statements all day
            "application_name": "headrace",
            "client_encoding": ENCODING,
            "options": f"{arguments.get('options', '')} {options}".strip(),
            "connect_timeout": CONNECT_TIMEOUT_S,
            # a peer that vanished is noticed within about 15 s, in a silent connection as in a busy one
            "keepalives": 1,
            "keepalives_idle": 5,
            "keepalives_interval": 3,
            "keepalives_count": 3,
            "tcp_user_timeout": 15_000,
        }
    )


async def _replace_if_closed(connection: AsyncConnection[tuple[Any, ...]]) -> None:
    """Run before a connection is handed out; raises when it is dead, and the pool takes another.

    An idle connection has nothing to say, unless the server closed it: so look before asking, and
    pay the round trip only then.
    """
    socket = select.poll()
    socket.register(connection.pgconn.socket, select.POLLIN)
    if socket.poll(0):
        await AsyncConnectionPool.check_connection(connection)
