"""Segment files and where records are in them."""

from __future__ import annotations

from sqlalchemy import ARRAY, BigInteger, Index, Integer, SmallInteger, Table, Text, Uuid, text

from headrace.metastore.postgres.schema.columns import TIMESTAMP, churning, column, metadata, singleton

segment_files = Table(
    "segment_files",
    metadata,
    column("file_id", Uuid(), key=True),
    column("state", SmallInteger()),
    column("size", BigInteger()),
    column("live_bytes", BigInteger()),
    column("committed_at", TIMESTAMP),
    column("level", SmallInteger(), default="0"),
    column("dead_at", TIMESTAMP, null=True),
    column("body_bytes", BigInteger(), default="0"),
    column("unreadable_at", TIMESTAMP, null=True),
    column("segments", Integer(), default="0"),
    Index("segment_files_dead", "dead_at", postgresql_where=text("dead_at IS NOT NULL")),
    Index("segment_files_doomed", "dead_at", postgresql_where=text("state IN (1, 2)")),
    Index("segment_files_waiting", "level", "file_id", postgresql_where=text("state = 0 AND dead_at IS NULL")),
    Index(
        "segment_files_unkeyed",
        "file_id",
        postgresql_where=text("level > 0 AND segments = 0 AND state = 0 AND dead_at IS NULL"),
    ),
    Index("segment_files_reserved", "committed_at", postgresql_where=text("state = 4")),
)

file_reservations = Table(
    "file_reservations",
    metadata,
    column("file_id", Uuid(), key=True),
    column("job_id", BigInteger()),
    column("epoch", BigInteger()),
)

swap_answers = Table(
    "swap_answers",
    metadata,
    column("job_id", BigInteger(), key=True),
    column("epoch", BigInteger(), key=True),
    column("file_id", Uuid(), key=True),
    column("call", Uuid(), key=True),
    column("outcomes", ARRAY(SmallInteger())),
    **churning(0.05, 1000),
)

janitor = Table(
    "janitor",
    metadata,
    *singleton(),
    column("generation", BigInteger()),
    **churning(0, 500, fillfactor=10),
)

extents = Table(
    "extents",
    metadata,
    column("partition_key", BigInteger(), key=True),
    column("last_offset", BigInteger(), key=True),
    column("base_offset", BigInteger()),
    column("file_id", Uuid()),
    column("position", BigInteger()),
    column("length", BigInteger()),
    column("leader_epoch", Integer()),
    column("max_timestamp", BigInteger()),
    column("appended_at", TIMESTAMP, null=True),
    column("segment_end", BigInteger(), null=True),
    column("segment_epoch", Integer(), null=True),
    Index("extents_file", "file_id"),
    postgresql_with={"autovacuum_vacuum_insert_scale_factor": 0.05, "autovacuum_analyze_scale_factor": 0.05},
)

time_blocks = Table(
    "time_blocks",
    metadata,
    column("partition_key", BigInteger(), key=True),
    column("level", SmallInteger(), key=True),
    column("last_offset", BigInteger(), key=True),
    column("max_timestamp", BigInteger()),
)

cleaned_partitions = Table(
    "cleaned_partitions",
    metadata,
    column("partition_key", BigInteger(), key=True),
    column("roll_offset", BigInteger(), default="0"),
    column("rolled_bytes", BigInteger(), default="0"),
    column("active_since", TIMESTAMP, null=True),
    column("active_offset", BigInteger(), null=True),
    column("cleaned_offset", BigInteger(), default="0"),
    column("dirty_since", TIMESTAMP, null=True),
    column("horizon_ms", BigInteger(), null=True),
    column("uncleanable_at", TIMESTAMP, null=True),
    column("uncleanable_why", Text(), null=True),
    postgresql_with={"fillfactor": 70},
)
