"""Consumer groups and their offsets."""

from __future__ import annotations

from sqlalchemy import ARRAY, BigInteger, Index, Integer, LargeBinary, Sequence, Table, Text

from headrace.metastore.postgres.schema.columns import TIMESTAMP, churning, column, metadata

group_coordinator_epochs = Sequence("group_coordinator_epochs", metadata=metadata)

consumer_groups = Table(
    "consumer_groups",
    metadata,
    column("group_id", Text(), key=True),
    column("coordinator_epoch", BigInteger()),
    column("node_id", Integer()),
    column("saved", LargeBinary()),
    column("broker_epoch", BigInteger(), default="-1"),
    column("kind", Text(), default="'classic'"),
    column("state", Text(), default="'Empty'"),
    column("protocol_type", Text(), default="''"),
    column("subscribed", ARRAY(Text()), null=True),
    column("empty_since", TIMESTAMP, null=True),
    column("expiry_slot", Integer(), default="0"),
    Index("consumer_groups_expiry", "expiry_slot"),
    postgresql_with={"fillfactor": 50},
)

group_offsets = Table(
    "group_offsets",
    metadata,
    column("group_id", Text(), key=True),
    column("partition_key", BigInteger(), key=True),
    column("committed_offset", BigInteger()),
    column("leader_epoch", Integer()),
    column("metadata", LargeBinary()),
    column("committed_at", TIMESTAMP),
    column("expiry_slot", Integer(), default="0"),
    Index("group_offsets_partition", "partition_key"),
    Index("group_offsets_expiry", "expiry_slot"),
    **churning(0.05, 1000, fillfactor=50),
)
