"""The metastore's tables as SQLAlchemy Core knows them: what migrations/ add up to.

Place: under reports/, and for people who query the metastore from Python; the paths use .sql files.
Invariant: a database made from this description equals a migrated one, in columns, types, keys,
checks, indexes and storage parameters (tests/metastore/test_schema.py compares the catalogs).
The meaning of tables and columns is in migrations/.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Sequence,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)

metadata = MetaData()


def _column(name: str, kind: Any, *, key: bool = False, null: bool = False, default: str | None = None) -> Column[Any]:
    """Never null and never a sequence unless said so."""
    server_default = None if default is None else text(default)
    return Column(
        name, kind, primary_key=key, nullable=null and not key, autoincrement=False, server_default=server_default
    )


def _singleton() -> tuple[Column[Any], CheckConstraint]:
    """The key of a table with one row."""
    return _column("singleton", Boolean(), key=True, default="true"), CheckConstraint("singleton")


def _churning(scale: float, threshold: int, **more: float) -> dict[str, Any]:
    """Storage parameters of a table with rows that are updated all the time."""
    options = {**more, "autovacuum_vacuum_scale_factor": scale, "autovacuum_vacuum_threshold": threshold}
    return {"postgresql_with": options}


TIMESTAMP = DateTime(timezone=True)

schema_migrations = Table(
    "schema_migrations",
    metadata,
    _column("name", Text(), key=True),
    _column("checksum", Text()),
    _column("applied_at", TIMESTAMP, default="clock_timestamp()"),
)
cluster = Table(
    "cluster",
    metadata,
    *_singleton(),
    _column("cluster_id", Text()),
    _column("incarnation_id", Uuid()),
    _column("commit_shards", SmallInteger()),
    _column("zone_secret", LargeBinary(), default="uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())"),
    _column("zone_secret_other", LargeBinary(), null=True),
    _column("zone_secret_step", Text(), default="'done'"),
    _column("zone_secret_offset", BigInteger(), default="0"),
    _column("life", Integer(), default="0"),
    _column("system_identifier", BigInteger(), default="(pg_control_system()).system_identifier"),
    _column(
        "timeline",
        Integer(),
        default="('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int",
    ),
    _column("next_incarnation_id", Uuid(), null=True),
    _column("next_timeline", Integer(), null=True),
    CheckConstraint("commit_shards > 0"),
    CheckConstraint("life >= 0"),
)
controller = Table(
    "controller",
    metadata,
    *_singleton(),
    _column("controller_id", Integer()),
    _column("incarnation_id", Uuid()),
    _column("controller_epoch", BigInteger()),
    _column("deadline", TIMESTAMP),
    **_churning(0, 500, fillfactor=10),
)

metadata_head = Table(
    "metadata_head",
    metadata,
    *_singleton(),
    _column("next_offset", BigInteger()),
    _column("configs_offset", BigInteger(), default="0"),
)
metadata_log = Table(
    "metadata_log",
    metadata,
    _column("record_offset", BigInteger(), key=True),
    _column("record", LargeBinary()),
    _column("appended_at", TIMESTAMP),
)
metadata_snapshots = Table(
    "metadata_snapshots",
    metadata,
    _column("end_offset", BigInteger(), key=True),
    _column("data", LargeBinary()),
    _column("created_at", TIMESTAMP),
)
features = Table(
    "features",
    metadata,
    _column("name", Text(), key=True),
    _column("min_level", SmallInteger()),
    _column("max_level", SmallInteger()),
)

topics = Table(
    "topics",
    metadata,
    _column("topic_id", Uuid(), key=True),
    _column("topic_number", BigInteger()),
    _column("name", Text()),
    _column("initial_partition_count", Integer()),
    _column("undeleted_partition_count", Integer()),
    UniqueConstraint("topic_number"),
    UniqueConstraint("name"),
)
partitions = Table(
    "partitions",
    metadata,
    _column("partition_key", BigInteger(), key=True),
    _column("topic_id", Uuid()),
    _column("partition_index", Integer()),
    _column("shard", SmallInteger()),
    _column("leader_epoch", Integer()),
    _column("log_start_offset", BigInteger(), default="0"),
    _column("removed_bytes", BigInteger(), default="0"),
    _column("extents_from", BigInteger(), default="0"),
    _column("created_at", TIMESTAMP, default="clock_timestamp()"),
    _column("state", SmallInteger(), default="0"),
    UniqueConstraint("topic_id", "partition_index"),
    postgresql_with={"fillfactor": 70},
)
removed_partitions = Table(
    "removed_partitions",
    metadata,
    _column("partition_key", BigInteger(), key=True),
    _column("topic_id", Uuid()),
    _column("high_watermark", BigInteger()),
    _column("leader_epoch", Integer()),
    Index("removed_partitions_topic", "topic_id"),
)
partition_splits = Table(
    "partition_splits",
    metadata,
    _column("parent_key", BigInteger(), key=True),
    _column("child_key", BigInteger()),
    _column("topic_id", Uuid()),
    _column("producer_quiet_ms", BigInteger()),
    _column("boundary_quiet_ms", BigInteger()),
    _column("last_moved_ms", BigInteger()),
    _column("boundary", BigInteger(), null=True),
    _column("child_start", BigInteger(), default="0"),
    UniqueConstraint("child_key"),
    Index("partition_splits_topic", "topic_id"),
    postgresql_with={"fillfactor": 50},
)
topic_halvings = Table(
    "topic_halvings",
    metadata,
    _column("topic_id", Uuid(), key=True),
    _column("partition_count", Integer()),
    _column("excluded_groups", ARRAY(Text())),
    _column("lag_most", BigInteger()),
    _column("pause_most_ms", BigInteger()),
    _column("pause_again_ms", BigInteger()),
    _column("show_after_ms", BigInteger()),
    _column("settle_after_ms", BigInteger()),
    _column("begun_ms", BigInteger()),
    _column("shown_ms", BigInteger(), null=True),
)
partition_merges = Table(
    "partition_merges",
    metadata,
    _column("child_key", BigInteger(), key=True),
    _column("parent_key", BigInteger()),
    _column("topic_id", Uuid()),
    _column("phase", SmallInteger()),
    _column("since_ms", BigInteger()),
    _column("pause_most_ms", BigInteger()),
    _column("producer_quiet_ms", BigInteger()),
    Index("partition_merges_parent", "parent_key"),
    Index("partition_merges_topic", "topic_id"),
    postgresql_with={"fillfactor": 50},
)
merge_producers = Table(
    "merge_producers",
    metadata,
    _column("child_key", BigInteger(), key=True),
    _column("producer_id", BigInteger(), key=True),
    _column("child_ms", BigInteger()),
    _column("has_switched", Boolean(), default="false"),
    postgresql_with={"fillfactor": 70},
)
split_producers = Table(
    "split_producers",
    metadata,
    _column("parent_key", BigInteger(), key=True),
    _column("producer_id", BigInteger(), key=True),
    _column("moved_ms", BigInteger()),
    _column("has_switched", Boolean(), default="false"),
    postgresql_with={"fillfactor": 70},
)
configs = Table(
    "configs",
    metadata,
    _column("resource_type", SmallInteger(), key=True),
    _column("resource_name", Text(), key=True),
    _column("name", Text(), key=True),
    _column("value", Text()),
)
agents = Table(
    "agents",
    metadata,
    _column("node_id", Integer(), key=True),
    _column("incarnation_id", Uuid()),
    _column("broker_epoch", BigInteger()),
    _column("fenced", Boolean()),
    _column("host", Text()),
    _column("port", Integer()),
    _column("rack", Text(), null=True),
    _column("leaving_offset", BigInteger(), null=True),
    _column("hidden", Boolean(), default="false"),
    _column("hidden_before", Boolean(), default="false"),
    UniqueConstraint("incarnation_id"),
)
agent_leases = Table(
    "agent_leases",
    metadata,
    _column("node_id", Integer(), key=True),
    _column("last_contact_at", TIMESTAMP),
    _column("metadata_offset", BigInteger(), default="0"),
    _column("held_until", TIMESTAMP),
    **_churning(0, 500, fillfactor=20),
)
setting_reports = Table(
    "setting_reports",
    metadata,
    _column("incarnation_id", Uuid(), key=True),
    _column("process", Text()),
    _column("roles", ARRAY(Text())),
    _column("node_id", Integer(), null=True),
    _column("names", ARRAY(Text())),
    _column("proposals", ARRAY(Text())),
    _column("reported_at", TIMESTAMP),
    _column("features", ARRAY(Text()), null=True),
    _column("feature_levels", ARRAY(SmallInteger()), null=True),
    **_churning(0, 500, fillfactor=50),
)
quota_use = Table(
    "quota_use",
    metadata,
    _column("node_id", Integer(), key=True),
    _column("report", Text()),
    _column("reported_at", TIMESTAMP),
    **_churning(0, 500, fillfactor=50),
)
lease_watch = Table(
    "lease_watch",
    metadata,
    *_singleton(),
    _column("last_contact_at", TIMESTAMP),
    _column("resumed_at", TIMESTAMP),
)

commit_shards = Table(
    "commit_shards",
    metadata,
    _column("shard", SmallInteger(), key=True),
    _column("seq", BigInteger()),
    _column("seq_block", BigInteger(), default="0", key=True),
    **_churning(0, 1000, fillfactor=10),
)
partition_heads = Table(
    "partition_heads",
    metadata,
    _column("partition_key", BigInteger(), key=True),
    _column("high_watermark", BigInteger()),
    _column("max_timestamp", BigInteger(), default="-1"),
    _column("open_extents", Integer(), default="0"),
    _column("open_max_timestamp", BigInteger(), default="-1"),
    _column("appended_bytes", BigInteger(), default="0"),
    _column("updates", BigInteger(), default="0"),
    _column("update_block", BigInteger(), default="0", key=True),
    _column("first_open_offset", BigInteger(), null=True),
    **_churning(0.05, 1000, fillfactor=30),
)
transactions = Table(
    "transactions",
    metadata,
    _column("transactional_id", Text(), key=True),
    _column("producer_id", BigInteger()),
    _column("producer_epoch", SmallInteger()),
    _column("state", SmallInteger()),
    _column("timeout_ms", Integer()),
    _column("previous_producer_id", BigInteger()),
    _column("previous_epoch", SmallInteger()),
    _column("groups", ARRAY(Text())),
    _column("version", BigInteger()),
    _column("begun_at", TIMESTAMP, null=True),
    _column("changed_at", TIMESTAMP),
    UniqueConstraint("producer_id"),
    Index("transactions_open", "begun_at", postgresql_where=text("begun_at IS NOT NULL")),
    **_churning(0.05, 1000, fillfactor=50),
)
transaction_partitions = Table(
    "transaction_partitions",
    metadata,
    _column("producer_id", BigInteger(), key=True),
    _column("partition_key", BigInteger(), key=True),
    _column("first_offset", BigInteger(), null=True),
    Index("transaction_partitions_first", "partition_key", "first_offset"),
    **_churning(0.05, 1000, fillfactor=70),
)
pending_offsets = Table(
    "pending_offsets",
    metadata,
    _column("producer_id", BigInteger(), key=True),
    _column("group_id", Text(), key=True),
    _column("partition_key", BigInteger(), key=True),
    _column("committed_offset", BigInteger()),
    _column("leader_epoch", Integer()),
    _column("metadata", LargeBinary()),
    Index("pending_offsets_group", "group_id", "partition_key"),
    **_churning(0.05, 1000, fillfactor=70),
)
aborted_transactions = Table(
    "aborted_transactions",
    metadata,
    _column("partition_key", BigInteger(), key=True),
    _column("last_offset", BigInteger(), key=True),
    _column("first_offset", BigInteger()),
    _column("producer_id", BigInteger()),
    _column("stable_offset", BigInteger()),
    postgresql_with={"autovacuum_vacuum_insert_scale_factor": 0.05},
)
segment_files = Table(
    "segment_files",
    metadata,
    _column("file_id", Uuid(), key=True),
    _column("state", SmallInteger()),
    _column("size", BigInteger()),
    _column("live_bytes", BigInteger()),
    _column("committed_at", TIMESTAMP),
    _column("level", SmallInteger(), default="0"),
    _column("dead_at", TIMESTAMP, null=True),
    _column("body_bytes", BigInteger(), default="0"),
    _column("unreadable_at", TIMESTAMP, null=True),
    _column("segments", Integer(), default="0"),
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
    _column("file_id", Uuid(), key=True),
    _column("job_id", BigInteger()),
    _column("epoch", BigInteger()),
)
janitor = Table(
    "janitor",
    metadata,
    *_singleton(),
    _column("generation", BigInteger()),
    **_churning(0, 500, fillfactor=10),
)
extents = Table(
    "extents",
    metadata,
    _column("partition_key", BigInteger(), key=True),
    _column("last_offset", BigInteger(), key=True),
    _column("base_offset", BigInteger()),
    _column("file_id", Uuid()),
    _column("position", BigInteger()),
    _column("length", BigInteger()),
    _column("leader_epoch", Integer()),
    _column("max_timestamp", BigInteger()),
    _column("appended_at", TIMESTAMP, null=True),
    _column("segment_end", BigInteger(), null=True),
    _column("segment_epoch", Integer(), null=True),
    Index("extents_file", "file_id"),
    postgresql_with={"autovacuum_vacuum_insert_scale_factor": 0.05, "autovacuum_analyze_scale_factor": 0.05},
)
segment_epochs = Sequence("segment_epochs", data_type=Integer(), metadata=metadata)
remote_segments = Table(
    "remote_segments",
    metadata,
    _column("topic_id", Uuid(), key=True),
    _column("partition_index", Integer(), key=True),
    _column("end_offset", BigInteger(), key=True),
    _column("epoch", Integer(), key=True),
    _column("segment_id", Uuid()),
    _column("file_id", Uuid()),
    _column("partition_key", BigInteger()),
    _column("start_offset", BigInteger()),
    _column("leader_epoch", Integer()),
    _column("max_timestamp", BigInteger()),
    _column("size", BigInteger()),
    _column("state", SmallInteger()),
    _column("cause", SmallInteger()),
    _column("live_extents", Integer()),
    _column("reference", SmallInteger()),
    _column("broker_id", Integer()),
    _column("job_id", BigInteger(), null=True),
    _column("event_ms", BigInteger()),
    _column("due_at", TIMESTAMP, null=True),
    _column("tombstoned_at", TIMESTAMP, null=True),
    _column("metadata_partition", SmallInteger()),
    _column("log_offset", BigInteger()),
    Index(
        "remote_segments_due",
        "state",
        "due_at",
        postgresql_where=text("due_at IS NOT NULL AND tombstoned_at IS NULL"),
    ),
    Index("remote_segments_tombstones", "tombstoned_at", postgresql_where=text("tombstoned_at IS NOT NULL")),
    Index("remote_segments_awaited", "file_id", postgresql_where=text("reference = 1")),
    Index("remote_segments_log", "metadata_partition", "log_offset", unique=True),
    **_churning(0.05, 1000, fillfactor=80),
)
remote_partitions = Table(
    "remote_partitions",
    metadata,
    _column("topic_id", Uuid(), key=True),
    _column("partition_index", Integer(), key=True),
    _column("partition_key", BigInteger()),
    _column("end_offset", BigInteger()),
    _column("epoch", Integer()),
    _column("state", SmallInteger()),
    _column("broker_id", Integer()),
    _column("event_ms", BigInteger()),
    _column("tombstoned_at", TIMESTAMP, null=True),
    _column("metadata_partition", SmallInteger()),
    _column("log_offset", BigInteger()),
    UniqueConstraint("partition_key"),
    Index("remote_partitions_log", "metadata_partition", "log_offset", unique=True),
    Index("remote_partitions_open", "partition_key", postgresql_where=text("tombstoned_at IS NULL")),
)
remote_segment_events = Table(
    "remote_segment_events",
    metadata,
    _column("metadata_partition", SmallInteger(), key=True),
    _column("audit_offset", BigInteger(), key=True),
    _column("log_offset", BigInteger()),
    _column("api_key", SmallInteger()),
    _column("topic_id", Uuid()),
    _column("partition_index", Integer()),
    _column("end_offset", BigInteger()),
    _column("epoch", Integer()),
    _column("state", SmallInteger()),
    _column("cause", SmallInteger()),
    _column("broker_id", Integer()),
    _column("event_ms", BigInteger()),
    _column("segment_id", Uuid(), null=True),
    _column("file_id", Uuid(), null=True),
    _column("job_id", BigInteger(), null=True),
    _column("start_offset", BigInteger(), null=True),
    _column("leader_epoch", Integer(), null=True),
    _column("max_timestamp", BigInteger(), null=True),
    _column("size", BigInteger(), null=True),
)
remote_log_heads = Table(
    "remote_log_heads",
    metadata,
    _column("metadata_partition", SmallInteger(), key=True),
    _column("next_offset", BigInteger()),
    _column("next_audit_offset", BigInteger()),
    _column("audit_start", BigInteger()),
    **_churning(0, 1000, fillfactor=10),
)
cleaned_partitions = Table(
    "cleaned_partitions",
    metadata,
    _column("partition_key", BigInteger(), key=True),
    _column("roll_offset", BigInteger(), default="0"),
    _column("rolled_bytes", BigInteger(), default="0"),
    _column("active_since", TIMESTAMP, null=True),
    _column("cleaned_offset", BigInteger(), default="0"),
    _column("dirty_since", TIMESTAMP, null=True),
    _column("horizon_ms", BigInteger(), null=True),
    _column("uncleanable_at", TIMESTAMP, null=True),
    _column("uncleanable_why", Text(), null=True),
    postgresql_with={"fillfactor": 70},
)
time_blocks = Table(
    "time_blocks",
    metadata,
    _column("partition_key", BigInteger(), key=True),
    _column("level", SmallInteger(), key=True),
    _column("last_offset", BigInteger(), key=True),
    _column("max_timestamp", BigInteger()),
)
producer_state = Table(
    "producer_state",
    metadata,
    _column("partition_key", BigInteger(), key=True),
    _column("producer_id", BigInteger(), key=True),
    _column("epoch", SmallInteger()),
    _column("next_sequence", Integer()),
    _column("ring", LargeBinary()),
    _column("touched_hour", Integer()),
    _column("updates", BigInteger(), default="0"),
    _column("update_block", BigInteger(), default="0", key=True),
    _column("contiguous_life", Integer(), default="'-1'::integer"),
    _column("wrapped", Boolean(), default="false"),
    Index("producer_state_touched", "touched_hour"),
    **_churning(0.05, 1000, fillfactor=50),
)
producer_id_blocks = Table(
    "producer_id_blocks",
    metadata,
    _column("first_id", BigInteger(), key=True),
    _column("last_id", BigInteger()),
    _column("leased_at", TIMESTAMP),
)
commit_log = Table(
    "commit_log",
    metadata,
    _column("slot", SmallInteger()),
    _column("shard", SmallInteger()),
    _column("seq", BigInteger()),
    _column("kind", SmallInteger()),
    _column("payload", LargeBinary()),
    PrimaryKeyConstraint("shard", "seq", "slot"),
    postgresql_partition_by="LIST (slot)",
)
commit_answers = Table(
    "commit_answers",
    metadata,
    _column("slot", SmallInteger(), key=True),
    _column("file_id", Uuid(), key=True),
    _column("answer", LargeBinary()),
    postgresql_partition_by="LIST (slot)",
)
bulk_writes = Table(
    "bulk_writes",
    metadata,
    _column("writer", Text(), key=True),
    _column("batch_id", BigInteger()),
    _column("attempt", Uuid()),
    _column("chunks", Integer()),
    _column("next_chunk", Integer()),
    _column("changed_at", TIMESTAMP),
    Index("bulk_writes_unfinished", "changed_at", postgresql_where=text("next_chunk < chunks")),
    postgresql_with={"fillfactor": 50},
)
bulk_write_chunks = Table(
    "bulk_write_chunks",
    metadata,
    _column("attempt", Uuid(), key=True),
    _column("chunk", Integer(), key=True),
    _column("staged_at", TIMESTAMP),
    _column("file_ids", ARRAY(Uuid())),
    *(_column(name, ARRAY(BigInteger())) for name in ("born_ms", "until_ms", "sizes", "body_bytes")),
    _column("run_file", ARRAY(Integer())),
    *(_column(f"run_{name}", ARRAY(BigInteger())) for name in ("key", "position", "length", "records", "time")),
    Index("bulk_write_chunks_staged", "staged_at"),
)
log_slots = Table(
    "log_slots",
    metadata,
    _column("name", Text(), key=True),
    _column("cleared_tick", BigInteger()),
)
deleted_partitions = Table(
    "deleted_partitions",
    metadata,
    _column("partition_key", BigInteger(), key=True),
    _column("deleted_at", TIMESTAMP),
    _column("topic_id", Uuid(), null=True),
    _column("partition_index", Integer(), null=True),
    _column("end_offset", BigInteger(), null=True),
)

group_coordinator_epochs = Sequence("group_coordinator_epochs", metadata=metadata)
consumer_groups = Table(
    "consumer_groups",
    metadata,
    _column("group_id", Text(), key=True),
    _column("coordinator_epoch", BigInteger()),
    _column("node_id", Integer()),
    _column("saved", LargeBinary()),
    _column("broker_epoch", BigInteger(), default="-1"),
    _column("kind", Text(), default="'classic'"),
    _column("state", Text(), default="'Empty'"),
    _column("protocol_type", Text(), default="''"),
    _column("subscribed", ARRAY(Text()), null=True),
    _column("empty_since", TIMESTAMP, null=True),
    _column("expiry_slot", Integer(), default="0"),
    Index("consumer_groups_expiry", "expiry_slot"),
    postgresql_with={"fillfactor": 50},
)
group_offsets = Table(
    "group_offsets",
    metadata,
    _column("group_id", Text(), key=True),
    _column("partition_key", BigInteger(), key=True),
    _column("committed_offset", BigInteger()),
    _column("leader_epoch", Integer()),
    _column("metadata", LargeBinary()),
    _column("committed_at", TIMESTAMP),
    _column("expiry_slot", Integer(), default="0"),
    Index("group_offsets_partition", "partition_key"),
    Index("group_offsets_expiry", "expiry_slot"),
    **_churning(0.05, 1000, fillfactor=50),
)

jobs = Table(
    "jobs",
    metadata,
    Column("job_id", BigInteger(), Identity(always=True), primary_key=True),
    _column("kind", Text()),
    _column("key", Text()),
    _column("payload", LargeBinary()),
    _column("priority", SmallInteger()),
    _column("period_ms", BigInteger(), null=True),
    _column("max_attempts", Integer(), null=True),
    _column("state", SmallInteger()),
    _column("due_at", TIMESTAMP),
    _column("epoch", BigInteger(), default="0"),
    _column("worker", Text(), null=True),
    _column("broker_id", Integer(), null=True),
    _column("attempts", Integer(), default="0"),
    _column("progress", Text(), default="''"),
    _column("last_error", Text(), null=True),
    _column("created_at", TIMESTAMP),
    _column("leased_at", TIMESTAMP, null=True),
    _column("ended_at", TIMESTAMP, null=True),
    Index("jobs_unfinished", "kind", "key", unique=True, postgresql_where=text("state IN (0, 1)")),
    Index("jobs_finished", "ended_at", postgresql_where=text("state IN (2, 3)")),
    **_churning(0, 1000, fillfactor=50),
)
