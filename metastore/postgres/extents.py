"""Where data lies: what a reader reads next, and offsets by timestamp.

Place: asked by fetch when its own index cannot tell, and by ListOffsets always.
Invariant: every answer is the primary's, as of one snapshot; its cost depends on the answer, never
on how much there is. If the process dies here nothing is lost: it only reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.metastore.postgres.packing import pack_int8, unpack_extents
from headrace.metastore.postgres.statement import Pool, Statement
from headrace.metastore.values import ExtentQuery, OffsetAnswer, OffsetQuery, PartitionExtents

_FIND_EXTENTS = Statement("find_extents", writes=False)
_LIST_OFFSETS = Statement("list_offsets", writes=False)
_PURGE_DELETED_PARTITIONS = Statement("purge_deleted_partitions", writes=True)


async def find_extents(pool: Pool, queries: Sequence[ExtentQuery]) -> list[PartitionExtents]:
    """metastore.api.ReadApi.find_extents. At most 500 extents per query."""
    if not queries:
        return []
    keys, offsets, max_bytes = np.array(queries, dtype=np.int64).T
    rows = await _FIND_EXTENTS.rows(
        pool, keys=pack_int8(keys), offsets=pack_int8(offsets), max_bytes=pack_int8(max_bytes)
    )
    return [
        PartitionExtents(query.partition_key, False, -1, -1, [])
        if high_watermark is None
        else PartitionExtents(query.partition_key, True, log_start, high_watermark, unpack_extents(packed or b""))
        for query, (log_start, high_watermark, packed) in zip(queries, rows, strict=True)
    ]


async def list_offsets(pool: Pool, queries: Sequence[OffsetQuery]) -> list[OffsetAnswer]:
    """metastore.api.ReadApi.list_offsets. Offset -1 when no extent reaches the timestamp."""
    if not queries:
        return []
    keys, timestamps = np.array(queries, dtype=np.int64).T
    rows = await _LIST_OFFSETS.rows(pool, keys=pack_int8(keys), timestamps=pack_int8(timestamps))
    return [
        OffsetAnswer(True, offset, leader_epoch, unpack_extents(packed)[0] if packed else None)
        if known
        else OffsetAnswer(False, -1, -1, None)
        for known, offset, leader_epoch, packed in rows
    ]


async def purge_deleted_partitions(pool: Pool, limit: int) -> int:
    """Remove up to `limit` rows of each kind that one deleted partition left; 0 when there is nothing to do."""
    (removed,) = await _PURGE_DELETED_PARTITIONS.row(pool, limit=limit)
    return int(removed)
