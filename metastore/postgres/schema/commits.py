"""What a commit reads and writes: heads, producers, the feed, bulk writes."""

from __future__ import annotations

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    Uuid,
    text,
)

from headrace.metastore.postgres.schema.columns import TIMESTAMP, churning, column, metadata

commit_shards = Table(
    "commit_shards",
    metadata,
    column("shard", SmallInteger(), key=True),
    column("seq", BigInteger()),
    column("seq_block", BigInteger(), default="0", key=True),
    **churning(0, 1000, fillfactor=10),
)

partition_heads = Table(
    "partition_heads",
    metadata,
    column("partition_key", BigInteger(), key=True),
    column("high_watermark", BigInteger()),
    column("max_timestamp", BigInteger(), default="-1"),
    column("open_extents", Integer(), default="0"),
    column("open_max_timestamp", BigInteger(), default="-1"),
    column("appended_bytes", BigInteger(), default="0"),
    column("updates", BigInteger(), default="0"),
    column("update_block", BigInteger(), default="0", key=True),
    column("first_open_offset", BigInteger(), null=True),
    **churning(0.05, 1000, fillfactor=30),
)

producer_state = Table(
    "producer_state",
    metadata,
    column("partition_key", BigInteger(), key=True),
    column("producer_id", BigInteger(), key=True),
    column("epoch", SmallInteger()),
    column("next_sequence", Integer()),
    column("ring", LargeBinary()),
    column("touched_hour", Integer()),
    column("updates", BigInteger(), default="0"),
    column("update_block", BigInteger(), default="0", key=True),
    column("contiguous_life", Integer(), default="'-1'::integer"),
    column("wrapped", Boolean(), default="false"),
    Index("producer_state_touched", "touched_hour"),
    **churning(0.05, 1000, fillfactor=50),
)

producer_id_blocks = Table(
    "producer_id_blocks",
    metadata,
    column("first_id", BigInteger(), key=True),
    column("last_id", BigInteger()),
    column("leased_at", TIMESTAMP),
)

commit_log = Table(
    "commit_log",
    metadata,
    column("slot", SmallInteger()),
    column("shard", SmallInteger()),
    column("seq", BigInteger()),
    column("kind", SmallInteger()),
    column("payload", LargeBinary()),
    PrimaryKeyConstraint("shard", "seq", "slot"),
    postgresql_partition_by="LIST (slot)",
)

commit_answers = Table(
    "commit_answers",
    metadata,
    column("slot", SmallInteger(), key=True),
    column("file_id", Uuid(), key=True),
    column("answer", LargeBinary()),
    postgresql_partition_by="LIST (slot)",
)

log_slots = Table(
    "log_slots",
    metadata,
    column("name", Text(), key=True),
    column("cleared_tick", BigInteger()),
)

bulk_writes = Table(
    "bulk_writes",
    metadata,
    column("writer", Text(), key=True),
    column("batch_id", BigInteger()),
    column("attempt", Uuid()),
    column("chunks", Integer()),
    column("next_chunk", Integer()),
    column("changed_at", TIMESTAMP),
    column("topics", ARRAY(BigInteger()), null=True),
    Index("bulk_writes_unfinished", "changed_at", postgresql_where=text("next_chunk < chunks")),
    postgresql_with={"fillfactor": 50},
)

bulk_write_chunks = Table(
    "bulk_write_chunks",
    metadata,
    column("attempt", Uuid(), key=True),
    column("chunk", Integer(), key=True),
    column("staged_at", TIMESTAMP),
    column("file_ids", ARRAY(Uuid())),
    *(column(name, ARRAY(BigInteger())) for name in ("born_ms", "until_ms", "sizes", "body_bytes")),
    column("run_file", ARRAY(Integer())),
    *(column(f"run_{name}", ARRAY(BigInteger())) for name in ("key", "position", "length", "records", "time")),
    Index("bulk_write_chunks_staged", "staged_at"),
)

decided_bulk_files = Table("decided_bulk_files", metadata, column("file_id", Uuid(), key=True))

announced_counts = Table(
    "announced_counts",
    metadata,
    column("topic_id", Uuid(), key=True),
    column("announced_ms", BigInteger()),
)
