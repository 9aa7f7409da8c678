"""What benchmarks ask of the Postgres that they started themselves: what it spent, and to be as an old one is.

Invariant: no query runs during a measurement; each call has a separate connection.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import psycopg

WAL_SEGMENTS = 64


class PostgresCost(NamedTuple):
    """Spent since its start."""

    cpu_seconds: float
    """CPU seconds of all its processes that are alive, this call's own left out: what has ended took its share
    along.
    """
    wal_bytes: int
    """Write-ahead log, all of it."""

    def since(self, before: PostgresCost) -> PostgresCost:
        """Return what was spent between two readings."""
        return PostgresCost(self.cpu_seconds - before.cpu_seconds, self.wal_bytes - before.wal_bytes)


def cpu_by_process(url: str) -> dict[int, float]:
    """Processor time so far, by process id: for differences when some processes end meanwhile."""
    with psycopg.connect(url, autocommit=True) as connection:
        pids = connection.execute("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()").fetchall()
    return {pid: cpu_seconds(pid) for (pid,) in pids}


def read_cost(url: str) -> PostgresCost:
    """Return what the server at `url` has spent; it runs on this machine."""
    with psycopg.connect(url, autocommit=True) as connection:
        pids = connection.execute("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()").fetchall()
        (row,) = connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchall()
    return PostgresCost(sum(cpu_seconds(pid) for (pid,) in pids), int(row[0]))


def cpu_seconds(pid: int) -> float:
    """Processor time of a process's main thread; 0 once it is gone."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except (FileNotFoundError, ProcessLookupError):
        return 0.0


def grow_old(url: str) -> None:
    """Give a new server what an old one has: WAL segments to use again. Filling a new one takes 40 ms."""
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(WAL_SEGMENTS):
            connection.execute("SELECT pg_logical_emit_message(false, '', ''), pg_switch_wal()")
        connection.execute("CHECKPOINT")
