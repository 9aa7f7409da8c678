"""A Postgres without its synchronous standby: reads are answered, and every commit waits.

Fault model: `synchronous_standby_names` names a standby that does not exist, as after its machine was lost, and on a
promoted copy of a primary. Only sessions of one database wait: the others of the tests' server have
synchronous_commit = off.
Invariant: nothing waits any more when the context is left.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import psycopg

STANDBY = "standby_a"
PATIENCE_SECONDS = 120.0
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'SyncRep'"


class LostStandby:
    """Use it in a `with`, around what is to wait. `url`: of the database; sessions that are open do not wait."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._database = urlsplit(url).path.lstrip("/")

    def __enter__(self) -> LostStandby:
        self._connection = psycopg.connect(self._url, autocommit=True)
        self.run(f"ALTER DATABASE {self._database} SET synchronous_commit = on")
        self.run(f"ALTER DATABASE {self._database} SET client_min_messages = error")  # Headrace asks for warnings
        self._name(STANDBY)
        marker = psycopg.connect(self._url, autocommit=True)
        while not self.waiting():  # the server takes its configuration file a moment later
            if not marker.pgconn.is_busy():
                marker.pgconn.send_query(b"SELECT pg_logical_emit_message(true, 'test', '')")
            time.sleep(0.005)
            marker.pgconn.consume_input()
            while not marker.pgconn.is_busy() and marker.pgconn.get_result() is not None:
                pass
        self.cancel_waits()
        marker.close()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()
        self.run(f"ALTER DATABASE {self._database} RESET ALL")
        self._connection.close()

    def end(self) -> None:
        """Wait for no standby any more: every commit ends, as if the standby were back."""
        self._name("")
        self._until(lambda: self.waiting() == 0)

    def waiting(self) -> int:
        """Return how many sessions of the database wait for the standby in their commit."""
        (count,) = self._connection.execute(WAITING.encode()).fetchone() or (0,)
        return int(count)

    async def until_waiting(self, task: asyncio.Task[Any]) -> None:
        """Return when a commit waits; AssertionError if the task ends without a wait."""
        until = time.monotonic() + PATIENCE_SECONDS
        while not self.waiting():
            assert not task.done(), f"it did not wait for the standby: {task.exception() or task.result()}"
            assert time.monotonic() < until
            await asyncio.sleep(0.005)

    def cancel_waits(self) -> None:
        """As an operator does who looks for sessions that hang: the commits end without the standby."""
        self.run(
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event = 'SyncRep'"
        )
        self._until(lambda: self.waiting() == 0)

    def _name(self, standbys: str) -> None:
        self.run(f"ALTER SYSTEM SET synchronous_standby_names = '{standbys}'")
        self.run("SELECT pg_reload_conf()")

    def run(self, sql: str) -> None:
        """A statement that does not wait."""
        self._connection.execute(sql.encode())

    def _until(self, holds: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            assert time.monotonic() < until
            time.sleep(0.005)
