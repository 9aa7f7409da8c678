"""Whether a database has been made a cluster's metastore, asked before anything is opened on it.

Place: `headrace storage info` and `format`; agents find out by PostgresMetastore.open.
Invariant: reads only.
"""

from __future__ import annotations

import psycopg

from headrace.metastore.postgres.errors import translated
from headrace.metastore.postgres.single_connection import reading


def formatted_cluster_id(url: str) -> str | None:
    """The cluster id in the database at `url`; None when it holds no cluster yet. UnavailableError when it is away.

    InvalidError when it cannot be a metastore.
    """
    with translated("formatted_cluster_id", writes=False), reading(url) as connection:
        try:
            row = connection.execute("SELECT cluster_id FROM cluster").fetchone()
        except psycopg.errors.UndefinedTable:
            return None
    return None if row is None else str(row[0])
