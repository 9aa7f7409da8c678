"""Transactions, and what readers have to know of them."""

from __future__ import annotations

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from headrace.metastore.postgres.schema.columns import TIMESTAMP, churning, column, metadata

transactions = Table(
    "transactions",
    metadata,
    column("transactional_id", Text(), key=True),
    column("producer_id", BigInteger()),
    column("producer_epoch", SmallInteger()),
    column("state", SmallInteger()),
    column("timeout_ms", Integer()),
    column("previous_producer_id", BigInteger()),
    column("previous_epoch", SmallInteger()),
    column("groups", ARRAY(Text())),
    column("version", BigInteger()),
    column("begun_at", TIMESTAMP, null=True),
    column("changed_at", TIMESTAMP),
    UniqueConstraint("producer_id"),
    CheckConstraint("begun_at IS NULL OR producer_epoch < 32767", name="transactions_open_epoch"),
    Index("transactions_open", "begun_at", postgresql_where=text("begun_at IS NOT NULL")),
    **churning(0.05, 1000, fillfactor=50),
)

transaction_partitions = Table(
    "transaction_partitions",
    metadata,
    column("producer_id", BigInteger(), key=True),
    column("partition_key", BigInteger(), key=True),
    column("first_offset", BigInteger(), null=True),
    Index("transaction_partitions_first", "partition_key", "first_offset"),
    **churning(0.05, 1000, fillfactor=70),
)

pending_offsets = Table(
    "pending_offsets",
    metadata,
    column("producer_id", BigInteger(), key=True),
    column("group_id", Text(), key=True),
    column("partition_key", BigInteger(), key=True),
    column("committed_offset", BigInteger()),
    column("leader_epoch", Integer()),
    column("metadata", LargeBinary()),
    Index("pending_offsets_group", "group_id", "partition_key"),
    **churning(0.05, 1000, fillfactor=70),
)

aborted_transactions = Table(
    "aborted_transactions",
    metadata,
    column("partition_key", BigInteger(), key=True),
    column("last_offset", BigInteger(), key=True),
    column("first_offset", BigInteger()),
    column("producer_id", BigInteger()),
    column("stable_offset", BigInteger()),
    postgresql_with={"autovacuum_vacuum_insert_scale_factor": 0.05},
)

transaction_outcomes = Table(
    "transaction_outcomes",
    metadata,
    column("partition_key", BigInteger(), key=True),
    column("marker_offset", BigInteger(), key=True),
    column("producer_id", BigInteger()),
    column("epoch", SmallInteger()),
    column("end_sequence", Integer()),
    column("ended_ms", BigInteger()),
    column("commits", Boolean()),
    **churning(0.05, 1000),
)
