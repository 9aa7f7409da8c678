"""Totals of the metastore, for people: the demo's table, benchmarks, audits.

Place: beside the paths, never on one: it scans.
"""

from __future__ import annotations

from typing import NamedTuple

import psycopg

from headrace.metastore.postgres.sql_files import query_files


class Statistics(NamedTuple):
    """Live segment files, their stored and live bytes, and the extents that lie in them."""

    files: int
    bytes: int
    live_bytes: int
    extents: int


def read_statistics(url: str) -> Statistics:
    """Read them over a connection of its own."""
    query = query_files()["statistics"].text.encode()
    with psycopg.connect(url) as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return Statistics(*row)
