"""What a database says of its cluster, asked before anything is opened on it.

Place: `headrace storage info` and `format`, `headrace dev`, the doctor; agents find out by PostgresMetastore.open.
Invariant: reads only, and works on a schema of the release before.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from headrace.metastore.api.life import KnownBucket
from headrace.metastore.postgres.errors import translated
from headrace.metastore.postgres.pool import reading
from headrace.metastore.postgres.sql_files import query_files

_LATER_COLUMNS = ("bucket_id", "bucket_address", "system_identifier", "database_oid")
"""What the release before does not have. Not the whole row: a reader's role may not see its secrets."""
_COLUMNS = """
SELECT attname FROM pg_attribute
 WHERE attrelid = to_regclass('cluster') AND attname = ANY (%s) AND NOT attisdropped
"""
_CLUSTER = """
SELECT c.cluster_id, {bucket_id}::uuid, {bucket_address}::text,
       EXISTS (SELECT FROM agents),
       {system_identifier}::bigint <> (SELECT s.system_identifier FROM pg_control_system() AS s)
       OR coalesce({database_oid}::oid <> d.oid, false)
  FROM cluster c CROSS JOIN pg_database d WHERE d.datname = current_database()
"""


@dataclass(frozen=True, slots=True)
class FormattedCluster:
    """A cluster's row."""

    cluster_id: str
    bucket: KnownBucket | None
    """None: no process has recorded it."""
    has_agents: bool
    """Whether an agent is registered."""
    is_copy: bool
    """Whether its life was begun on another server or database than this one; a standby is no copy."""


def formatted_cluster(url: str) -> FormattedCluster | None:
    """The cluster in the database at `url`; None when it holds no cluster yet. UnavailableError when it is away.

    InvalidError when it cannot be a metastore.
    """
    with translated("formatted_cluster", writes=False), reading(url) as connection:
        try:
            there = {name for (name,) in connection.execute(_COLUMNS, [list(_LATER_COLUMNS)])}
            columns = {name: f"c.{name}" if name in there else "NULL" for name in _LATER_COLUMNS}
            row = connection.execute(_CLUSTER.format(**columns).encode()).fetchone()
        except psycopg.errors.UndefinedTable:
            return None
    if row is None:
        return None
    cluster_id, bucket_id, address, has_agents, is_copy = row
    bucket = None if bucket_id is None else KnownBucket(bucket_id, address)
    return FormattedCluster(str(cluster_id), bucket, bool(has_agents), bool(is_copy))


def formatted_cluster_id(url: str) -> str | None:
    """Its cluster id; errors as `formatted_cluster`."""
    found = formatted_cluster(url)
    return None if found is None else found.cluster_id


def sampled_files(url: str, oldest: int, newest: int) -> Sequence[uuid.UUID]:
    """Return what LifeApi.sample_files does, of a formatted database; errors as `formatted_cluster`."""
    with translated("sample_files", writes=False), reading(url) as connection:
        query = query_files()["sample_files"].text.encode()
        return [file_id for (file_id,) in connection.execute(query, {"oldest": oldest, "newest": newest})]
