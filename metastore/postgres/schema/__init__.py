"""The metastore's tables as SQLAlchemy Core knows them: what migrations/ add up to.

Place: under reports/, and for people who query the metastore from Python; the paths use .sql files.
Invariant: a database made from `metadata` equals a migrated one, in columns, types, keys,
checks, indexes and storage parameters (tests/metastore/test_schema.py compares the catalogs).
The meaning of tables and columns is in migrations/.
"""

from __future__ import annotations

from headrace.metastore.postgres.schema import (
    cluster,
    commits,
    files,
    groups,
    jobs,
    remote_segments,
    topics,
    transactions,
)
from headrace.metastore.postgres.schema.columns import metadata

__all__ = ["cluster", "commits", "files", "groups", "jobs", "metadata", "remote_segments", "topics", "transactions"]
