"""Log starts: looked at, and moved.

Place: under retention and DeleteRecords; implements metastore.api.retention.RetentionApi.
Invariant: a call that moves log starts is one transaction, so that a partition's size, its files' live
bytes and the feed never disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.retention import LogStartAnswer, LogStartTarget, OldestExtents, OldestQuery, OldExtent
from headrace.metastore.postgres.packing import pack_int4, pack_int8
from headrace.metastore.postgres.pass_through import PostgresNoun
from headrace.metastore.postgres.statement import Statement
from headrace.storage.errors import InvalidError

_MOVE_LOG_STARTS = Statement("move_log_starts", writes=True)
_ENFORCE_RETENTION = Statement("enforce_retention", writes=True)
_OLDEST_EXTENTS = Statement("oldest_extents", writes=False)


class PostgresRetention(PostgresNoun):
    """Implements metastore.api.retention.RetentionApi."""

    async def move_log_starts(self, targets: Sequence[LogStartTarget], *, max_extents: int) -> list[LogStartAnswer]:
        if not targets:
            return []
        targets = list(targets)
        rows = await _MOVE_LOG_STARTS.rows(self.pool, job=None, epoch=None, **_packed(targets), limit=max_extents)
        return _answers(targets, rows)

    async def enforce_retention(
        self, targets: Sequence[LogStartTarget], *, max_extents: int, by: JobToken, metadata_offset: int
    ) -> list[LogStartAnswer] | None:
        if not targets:
            return []
        targets = list(targets)
        rows = await _ENFORCE_RETENTION.rows(
            self.pool,
            job=by.job_id,
            epoch=by.epoch,
            metadata_offset=metadata_offset,
            **_packed(targets),
            limit=max_extents,
        )
        return _answers(targets, rows) if rows else None

    async def oldest_extents(self, queries: Sequence[OldestQuery]) -> tuple[int, list[OldestExtents]]:
        if not queries:
            raise InvalidError("no partitions asked for")
        queries = list(queries)
        keys, limits = np.array(queries, dtype=np.int64).T
        rows = await _OLDEST_EXTENTS.rows(self.pool, keys=pack_int8(keys), limits=pack_int4(limits))
        return rows[0][0], [_oldest(query.partition_key, *row[1:]) for query, row in zip(queries, rows, strict=True)]


def _packed(targets: Sequence[LogStartTarget]) -> dict[str, bytes]:
    if len({target.partition_key for target in targets}) != len(targets):
        raise InvalidError(f"log starts refused: a partition is named twice: targets={targets}")
    keys, offsets = np.array(targets, dtype=np.int64).T
    return {"keys": pack_int8(keys), "offsets": pack_int8(offsets)}


def _answers(targets: Sequence[LogStartTarget], rows: Sequence[tuple[Any, ...]]) -> list[LogStartAnswer]:
    return [
        LogStartAnswer(target.partition_key, False, -1, -1, 0, 0, False)
        if log_start is None
        else LogStartAnswer(target.partition_key, True, log_start, *rest)
        for target, (log_start, *rest) in zip(targets, rows, strict=True)
    ]


def _oldest(
    key: int,
    log_start: int | None,
    high_watermark: int,
    size: int,
    has_leftovers: bool,
    *columns: list[int] | None,
) -> OldestExtents:
    if log_start is None:
        return OldestExtents(key, False, -1, -1, -1, False, [])
    extents = [OldExtent(*fields) for fields in zip(*(column or [] for column in columns), strict=True)]
    return OldestExtents(key, True, log_start, high_watermark, size, has_leftovers, extents)
