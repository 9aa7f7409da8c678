"""Background work."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Identity, Index, Integer, LargeBinary, SmallInteger, Table, Text, text

from headrace.metastore.postgres.schema.columns import TIMESTAMP, churning, column, metadata

jobs = Table(
    "jobs",
    metadata,
    Column("job_id", BigInteger(), Identity(always=True), primary_key=True),
    column("kind", Text()),
    column("key", Text()),
    column("payload", LargeBinary()),
    column("priority", SmallInteger()),
    column("period_ms", BigInteger(), null=True),
    column("max_attempts", Integer(), null=True),
    column("state", SmallInteger()),
    column("due_at", TIMESTAMP),
    column("epoch", BigInteger(), default="0"),
    column("worker", Text(), null=True),
    column("broker_id", Integer(), null=True),
    column("attempts", Integer(), default="0"),
    column("progress", Text(), default="''"),
    column("last_error", Text(), null=True),
    column("created_at", TIMESTAMP),
    column("leased_at", TIMESTAMP, null=True),
    column("ended_at", TIMESTAMP, null=True),
    Index("jobs_unfinished", "kind", "key", unique=True, postgresql_where=text("state IN (0, 1)")),
    Index("jobs_finished", "ended_at", postgresql_where=text("state IN (2, 3)")),
    **churning(0, 1000, fillfactor=50),
)
