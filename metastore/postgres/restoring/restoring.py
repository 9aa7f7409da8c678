"""Deleted topics and removed records come back.

Place: implements metastore.api.restoring on the functions next to it, which have the locks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.metastore.api.restoring import (
    MovedBack,
    RemovedRecords,
    RestorableTopic,
    RestoreOutcome,
    Revived,
)
from headrace.metastore.postgres.statement import Pool, Statement

_RESTORABLE_TOPICS = Statement("restorable_topics", writes=False)
_REVIVE_TOPIC = Statement("revive_topic", writes=True)
_RESTORE_TOPIC = Statement("restore_topic", writes=True)
_REMOVED_RECORDS = Statement("removed_records", writes=False)
_RESTORE_RECORDS = Statement("restore_records", writes=True)


class PostgresRestoring:
    """Implements metastore.api.restoring.RestoreApi."""

    pool: Pool

    async def restorable_topics(self, topic_number: int | None = None) -> list[RestorableTopic]:
        return [RestorableTopic(*row) for row in await _RESTORABLE_TOPICS.rows(self.pool, topic_number=topic_number)]

    async def revive_topic(self, topic_number: int, *, limit: int) -> Revived:
        outcome, extents = await _REVIVE_TOPIC.row(self.pool, topic_number=topic_number, limit=limit)
        return Revived(RestoreOutcome(outcome), extents)

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

    async def restore_records(self, key: int, offset: int, *, limit: int) -> MovedBack:
        outcome, *rest = await _RESTORE_RECORDS.row(self.pool, key=key, offset=offset, limit=limit)
        return MovedBack(RestoreOutcome(outcome), *rest)
