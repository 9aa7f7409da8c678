"""The lifecycle of remote segments."""

from __future__ import annotations

from sqlalchemy import BigInteger, Index, Integer, Sequence, SmallInteger, Table, UniqueConstraint, Uuid, text

from headrace.metastore.postgres.schema.columns import TIMESTAMP, churning, column, metadata

segment_epochs = Sequence("segment_epochs", data_type=Integer(), metadata=metadata)

remote_segments = Table(
    "remote_segments",
    metadata,
    column("topic_id", Uuid(), key=True),
    column("partition_index", Integer(), key=True),
    column("end_offset", BigInteger(), key=True),
    column("epoch", Integer(), key=True),
    column("segment_id", Uuid()),
    column("file_id", Uuid()),
    column("partition_key", BigInteger()),
    column("start_offset", BigInteger()),
    column("leader_epoch", Integer()),
    column("max_timestamp", BigInteger()),
    column("size", BigInteger()),
    column("state", SmallInteger()),
    column("cause", SmallInteger()),
    column("live_extents", Integer()),
    column("reference", SmallInteger()),
    column("broker_id", Integer()),
    column("job_id", BigInteger(), null=True),
    column("event_ms", BigInteger()),
    column("due_at", TIMESTAMP, null=True),
    column("tombstoned_at", TIMESTAMP, null=True),
    column("metadata_partition", SmallInteger()),
    column("log_offset", BigInteger()),
    Index(
        "remote_segments_due",
        "state",
        "due_at",
        postgresql_where=text("due_at IS NOT NULL AND tombstoned_at IS NULL"),
    ),
    Index("remote_segments_tombstones", "tombstoned_at", postgresql_where=text("tombstoned_at IS NOT NULL")),
    Index("remote_segments_awaited", "file_id", postgresql_where=text("reference = 1")),
    Index("remote_segments_log", "metadata_partition", "log_offset", unique=True),
    **churning(0.05, 1000, fillfactor=80),
)

remote_partitions = Table(
    "remote_partitions",
    metadata,
    column("topic_id", Uuid(), key=True),
    column("partition_index", Integer(), key=True),
    column("partition_key", BigInteger()),
    column("end_offset", BigInteger()),
    column("epoch", Integer()),
    column("state", SmallInteger()),
    column("broker_id", Integer()),
    column("event_ms", BigInteger()),
    column("tombstoned_at", TIMESTAMP, null=True),
    column("metadata_partition", SmallInteger()),
    column("log_offset", BigInteger()),
    UniqueConstraint("partition_key"),
    Index("remote_partitions_log", "metadata_partition", "log_offset", unique=True),
    Index("remote_partitions_open", "partition_key", postgresql_where=text("tombstoned_at IS NULL")),
)

remote_segment_events = Table(
    "remote_segment_events",
    metadata,
    column("metadata_partition", SmallInteger(), key=True),
    column("audit_offset", BigInteger(), key=True),
    column("log_offset", BigInteger()),
    column("api_key", SmallInteger()),
    column("topic_id", Uuid()),
    column("partition_index", Integer()),
    column("end_offset", BigInteger()),
    column("epoch", Integer()),
    column("state", SmallInteger()),
    column("cause", SmallInteger()),
    column("broker_id", Integer()),
    column("event_ms", BigInteger()),
    column("segment_id", Uuid(), null=True),
    column("file_id", Uuid(), null=True),
    column("job_id", BigInteger(), null=True),
    column("start_offset", BigInteger(), null=True),
    column("leader_epoch", Integer(), null=True),
    column("max_timestamp", BigInteger(), null=True),
    column("size", BigInteger(), null=True),
)

archived_audit = Table(
    "archived_audit",
    metadata,
    column("metadata_partition", SmallInteger(), key=True),
    column("last_offset", BigInteger(), key=True),
    column("first_offset", BigInteger(), key=True),
    column("records", Integer()),
    column("newest_ms", BigInteger()),
    column("bytes", Integer()),
    column("index_bytes", Integer()),
    column("epoch", BigInteger()),
    column("due_at", TIMESTAMP, null=True),
    Index("archived_audit_due", "due_at", postgresql_where=text("due_at IS NOT NULL")),
)

remote_log_heads = Table(
    "remote_log_heads",
    metadata,
    column("metadata_partition", SmallInteger(), key=True),
    column("next_offset", BigInteger()),
    column("next_audit_offset", BigInteger()),
    column("audit_start", BigInteger()),
    **churning(0, 1000, fillfactor=10),
)
