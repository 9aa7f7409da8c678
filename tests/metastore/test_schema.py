"""schema/ describes exactly what the migrations make: compared catalog against catalog."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.schema import metadata

# One row per fact: (table, what, name, how). Partitions of a table are its own business.
CATALOG = """
WITH tables AS (
    SELECT oid, relname, reloptions, relkind FROM pg_class
     WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition)
SELECT relname, 'column', attname,
       format_type(atttypid, atttypmod) || CASE WHEN attnotnull THEN ' not null ' ELSE ' ' END
       || coalesce(pg_get_expr(adbin, adrelid), '')
  FROM tables JOIN pg_attribute ON attrelid = tables.oid AND attnum > 0 AND NOT attisdropped
  LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
UNION ALL
SELECT relname, 'constraint', pg_get_constraintdef(c.oid), contype::text
  FROM tables JOIN pg_constraint c ON conrelid = tables.oid WHERE contype <> 'n'
UNION ALL
SELECT relname, 'index', replace(pg_get_indexdef(indexrelid), ' ON ONLY ', ' ON '), ''
  FROM tables JOIN pg_index ON indrelid = tables.oid
UNION ALL
SELECT relname, 'option', option, '' FROM tables, unnest(reloptions) AS option
UNION ALL
SELECT relname, 'partitioned', pg_get_partkeydef(oid), '' FROM tables WHERE relkind = 'p'
"""


def _facts(url: str) -> set[tuple[str, ...]]:
    with psycopg.connect(url) as connection:
        return {tuple(row) for row in connection.execute(CATALOG).fetchall()}


@pytest.fixture
def described_url(postgres_server: EmbeddedPostgres) -> Iterator[str]:
    """A database made from schema/ alone."""
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE described")
        url = postgres_server.url("described")
        engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
        assert isinstance(engine.dialect, PGDialect_psycopg)
        metadata.create_all(engine)
        engine.dispose()
        yield url
        connection.execute("DROP DATABASE described WITH (FORCE)")


def test_the_migrated_database_is_the_described_one(metastore_url: str, described_url: str) -> None:
    migrated, described = _facts(metastore_url), _facts(described_url)
    assert migrated - described == set(), "migrations/ has what schema/ lacks"
    assert described - migrated == set(), "schema/ has what migrations/ lacks"


def test_the_comparison_would_see_a_difference(metastore_url: str, described_url: str) -> None:
    changes = (
        "ALTER TABLE partition_heads SET (fillfactor = 31)",
        "ALTER TABLE topics ALTER COLUMN name DROP NOT NULL",
        "ALTER TABLE agents ALTER COLUMN port TYPE bigint",
        "ALTER TABLE configs DROP CONSTRAINT configs_pkey",
        "DROP INDEX group_offsets_partition",
        "ALTER TABLE partitions ALTER COLUMN log_start_offset DROP DEFAULT",
        "CREATE TABLE surplus (n int)",
    )
    for change in changes:
        with psycopg.connect(metastore_url, autocommit=True) as connection:
            before = _facts(metastore_url)
            connection.execute(change.encode())
            assert _facts(metastore_url) != before, change
