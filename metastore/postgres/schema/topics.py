"""Topics, their partitions, and how their number changes."""

from __future__ import annotations

from sqlalchemy import ARRAY, BigInteger, Boolean, Index, Integer, SmallInteger, Table, Text, UniqueConstraint, Uuid

from headrace.metastore.postgres.schema.columns import TIMESTAMP, column, metadata

topics = Table(
    "topics",
    metadata,
    column("topic_id", Uuid(), key=True),
    column("topic_number", BigInteger()),
    column("name", Text()),
    column("initial_partition_count", Integer()),
    column("undeleted_partition_count", Integer()),
    UniqueConstraint("topic_number"),
    UniqueConstraint("name"),
)

partitions = Table(
    "partitions",
    metadata,
    column("partition_key", BigInteger(), key=True),
    column("topic_id", Uuid()),
    column("partition_index", Integer()),
    column("shard", SmallInteger()),
    column("leader_epoch", Integer()),
    column("log_start_offset", BigInteger(), default="0"),
    column("removed_bytes", BigInteger(), default="0"),
    column("extents_from", BigInteger(), default="0"),
    column("created_at", TIMESTAMP, default="clock_timestamp()"),
    column("state", SmallInteger(), default="0"),
    UniqueConstraint("topic_id", "partition_index"),
    postgresql_with={"fillfactor": 70},
)

removed_partitions = Table(
    "removed_partitions",
    metadata,
    column("partition_key", BigInteger(), key=True),
    column("topic_id", Uuid()),
    column("high_watermark", BigInteger()),
    column("leader_epoch", Integer()),
    Index("removed_partitions_topic", "topic_id"),
)

deleted_partitions = Table(
    "deleted_partitions",
    metadata,
    column("partition_key", BigInteger(), key=True),
    column("deleted_at", TIMESTAMP),
    column("topic_id", Uuid(), null=True),
    column("partition_index", Integer(), null=True),
    column("end_offset", BigInteger(), null=True),
)

deleted_topics = Table(
    "deleted_topics",
    metadata,
    column("topic_number", BigInteger(), key=True),
    column("name", Text()),
    column("deleted_at", TIMESTAMP),
    Index("deleted_topics_name", "name", "topic_number"),
    Index("deleted_topics_deleted_at", "deleted_at"),
)

partition_splits = Table(
    "partition_splits",
    metadata,
    column("parent_key", BigInteger(), key=True),
    column("child_key", BigInteger()),
    column("topic_id", Uuid()),
    column("producer_quiet_ms", BigInteger()),
    column("boundary_quiet_ms", BigInteger()),
    column("last_moved_ms", BigInteger()),
    column("boundary", BigInteger(), null=True),
    column("child_start", BigInteger(), default="0"),
    UniqueConstraint("child_key"),
    Index("partition_splits_topic", "topic_id"),
    postgresql_with={"fillfactor": 50},
)

split_producers = Table(
    "split_producers",
    metadata,
    column("parent_key", BigInteger(), key=True),
    column("producer_id", BigInteger(), key=True),
    column("moved_ms", BigInteger()),
    column("has_switched", Boolean(), default="false"),
    postgresql_with={"fillfactor": 70},
)

topic_halvings = Table(
    "topic_halvings",
    metadata,
    column("topic_id", Uuid(), key=True),
    column("partition_count", Integer()),
    column("excluded_groups", ARRAY(Text())),
    column("lag_most", BigInteger()),
    column("pause_most_ms", BigInteger()),
    column("pause_again_ms", BigInteger()),
    column("show_after_ms", BigInteger()),
    column("settle_after_ms", BigInteger()),
    column("begun_ms", BigInteger()),
    column("shown_ms", BigInteger(), null=True),
)

partition_merges = Table(
    "partition_merges",
    metadata,
    column("child_key", BigInteger(), key=True),
    column("parent_key", BigInteger()),
    column("topic_id", Uuid()),
    column("phase", SmallInteger()),
    column("since_ms", BigInteger()),
    column("pause_most_ms", BigInteger()),
    column("producer_quiet_ms", BigInteger()),
    Index("partition_merges_parent", "parent_key"),
    Index("partition_merges_topic", "topic_id"),
    postgresql_with={"fillfactor": 50},
)

merge_producers = Table(
    "merge_producers",
    metadata,
    column("child_key", BigInteger(), key=True),
    column("producer_id", BigInteger(), key=True),
    column("child_ms", BigInteger()),
    column("has_switched", Boolean(), default="false"),
    postgresql_with={"fillfactor": 70},
)
