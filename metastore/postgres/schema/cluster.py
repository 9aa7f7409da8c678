"""The cluster itself, its metadata log, its agents and what they report."""

from __future__ import annotations

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
)

from headrace.metastore.postgres.schema.columns import TIMESTAMP, churning, column, metadata, singleton

schema_migrations = Table(
    "schema_migrations",
    metadata,
    column("name", Text(), key=True),
    column("checksum", Text()),
    column("applied_at", TIMESTAMP, default="clock_timestamp()"),
)

cluster = Table(
    "cluster",
    metadata,
    *singleton(),
    column("cluster_id", Text()),
    column("incarnation_id", Uuid()),
    column("commit_shards", SmallInteger()),
    column("zone_secret", LargeBinary(), default="uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())"),
    column("zone_secret_other", LargeBinary(), null=True),
    column("zone_secret_step", Text(), default="'done'"),
    column("zone_secret_offset", BigInteger(), default="0"),
    column("life", Integer(), default="0"),
    column("system_identifier", BigInteger(), default="(pg_control_system()).system_identifier"),
    column(
        "timeline",
        Integer(),
        default="('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int",
    ),
    column("next_incarnation_id", Uuid(), null=True),
    column("next_timeline", Integer(), null=True),
    CheckConstraint("commit_shards > 0"),
    CheckConstraint("life >= 0"),
)

controller = Table(
    "controller",
    metadata,
    *singleton(),
    column("controller_id", Integer()),
    column("incarnation_id", Uuid()),
    column("controller_epoch", BigInteger()),
    column("deadline", TIMESTAMP),
    **churning(0, 500, fillfactor=10),
)

metadata_head = Table(
    "metadata_head",
    metadata,
    *singleton(),
    column("next_offset", BigInteger()),
    column("configs_offset", BigInteger(), default="0"),
)

metadata_log = Table(
    "metadata_log",
    metadata,
    column("record_offset", BigInteger(), key=True),
    column("record", LargeBinary()),
    column("appended_at", TIMESTAMP),
)

metadata_snapshots = Table(
    "metadata_snapshots",
    metadata,
    column("end_offset", BigInteger(), key=True),
    column("data", LargeBinary()),
    column("created_at", TIMESTAMP),
)

features = Table(
    "features",
    metadata,
    column("name", Text(), key=True),
    column("min_level", SmallInteger()),
    column("max_level", SmallInteger()),
)

configs = Table(
    "configs",
    metadata,
    column("resource_type", SmallInteger(), key=True),
    column("resource_name", Text(), key=True),
    column("name", Text(), key=True),
    column("value", Text()),
)

agents = Table(
    "agents",
    metadata,
    column("node_id", Integer(), key=True),
    column("incarnation_id", Uuid()),
    column("broker_epoch", BigInteger()),
    column("fenced", Boolean()),
    column("host", Text()),
    column("port", Integer()),
    column("rack", Text(), null=True),
    column("leaving_offset", BigInteger(), null=True),
    column("hidden", Boolean(), default="false"),
    column("hidden_before", Boolean(), default="false"),
    UniqueConstraint("incarnation_id"),
)

agent_leases = Table(
    "agent_leases",
    metadata,
    column("node_id", Integer(), key=True),
    column("last_contact_at", TIMESTAMP),
    column("metadata_offset", BigInteger(), default="0"),
    column("held_until", TIMESTAMP),
    **churning(0, 500, fillfactor=20),
)

lease_watch = Table(
    "lease_watch",
    metadata,
    *singleton(),
    column("last_contact_at", TIMESTAMP),
    column("resumed_at", TIMESTAMP),
)

setting_reports = Table(
    "setting_reports",
    metadata,
    column("incarnation_id", Uuid(), key=True),
    column("process", Text()),
    column("roles", ARRAY(Text())),
    column("node_id", Integer(), null=True),
    column("names", ARRAY(Text())),
    column("proposals", ARRAY(Text())),
    column("reported_at", TIMESTAMP),
    column("features", ARRAY(Text()), null=True),
    column("feature_levels", ARRAY(SmallInteger()), null=True),
    **churning(0, 500, fillfactor=50),
)

quota_use = Table(
    "quota_use",
    metadata,
    column("node_id", Integer(), key=True),
    column("report", Text()),
    column("reported_at", TIMESTAMP),
    **churning(0, 500, fillfactor=50),
)
