"""Brings deleted topics back, and records that a log start has removed.

Place: a part of TopicApi, on the functions next to it, which have the locks.
Invariant: each call is one statement, and so one transaction; what is put back is as metastore/api/restoring.py says.
Source: docs/decisions/0103.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.metastore.api.restoring import RemovedRecords, RestoreOutcome
from headrace.metastore.api.topics import TopicApi
from headrace.metastore.postgres.pass_through import PostgresNoun, calls
from headrace.metastore.postgres.statement import Statement

_RESTORE_TOPIC = Statement("restore_topic", writes=True)
_REMOVED_RECORDS = Statement("removed_records", writes=False)


class PostgresRestoring(PostgresNoun):
    """Implements what TopicApi says of restoring."""

    restorable_topics = calls(TopicApi.restorable_topics, writes=False)
    revive_topic = calls(TopicApi.revive_topic, writes=True)
    restore_records = calls(TopicApi.restore_records, writes=True)

    async def restore_topic(
        self, expected_head: int, topic_number: int, name: str, records: Sequence[bytes], epochs: Mapping[int, int]
    ) -> RestoreOutcome:
        (outcome,) = await _RESTORE_TOPIC.row(
            self.pool,
            expected_head=expected_head,
            topic_number=topic_number,
            name=name,
            records=list(records),
            indexes=list(epochs),
            epochs=list(epochs.values()),
        )
        return RestoreOutcome(outcome)

    async def removed_records(
        self,
        keys: Sequence[int],
        *,
        extents_max: int,
        retention_ms: int = -1,
        retention_bytes: int = -1,
    ) -> list[RemovedRecords]:
        keys = list(keys)
        rows = await _REMOVED_RECORDS.rows(
            self.pool, keys=keys, limit=extents_max, retention_ms=retention_ms, retention_bytes=retention_bytes
        )
        return [RemovedRecords(key, RestoreOutcome(row[0]), *row[1:]) for key, row in zip(keys, rows, strict=True)]
