"""Find where data is: what a reader reads next, offsets by timestamp, ends of leader epochs.

Place: asked by fetch when its own index cannot tell, and always by ListOffsets and OffsetForLeaderEpoch;
implements IndexApi, without the feed.
Invariant: reads only. Every answer is the primary's, as of one snapshot; its cost depends on the answer,
never on how much there is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.metastore.api.read import (
    ALL_BYTES,
    EXTENTS_PER_CALL,
    NONE_OPEN,
    EpochEnd,
    EpochQuery,
    ExtentQuery,
    OffsetAnswer,
    OffsetQuery,
    PartitionExtents,
)
from headrace.metastore.postgres.packing import pack_int8, unpack_aborted, unpack_extents
from headrace.metastore.postgres.pass_through import PostgresNoun
from headrace.metastore.postgres.statement import Statement

_LOOK_UP_EXTENTS = Statement("look_up_extents", writes=False)
_LIST_OFFSETS = Statement("list_offsets", writes=False)
_FIND_EPOCH_ENDS = Statement("find_epoch_ends", writes=False)
_GONE = EpochEnd(False, -1, -1)


class PostgresExtents(PostgresNoun):
    """The look-ups of readers."""

    async def find_extents(self, queries: Sequence[ExtentQuery], max_bytes: int = ALL_BYTES) -> list[PartitionExtents]:
        """See metastore.api.read.IndexApi."""
        if not queries:
            return []
        queries = list(queries)
        keys, offsets, wanted = np.array(queries, dtype=np.int64).T
        rows = await _LOOK_UP_EXTENTS.rows(
            self.readers,
            keys=pack_int8(keys),
            offsets=pack_int8(offsets),
            max_bytes=pack_int8(wanted),
            extents=EXTENTS_PER_CALL,
            total_bytes=max_bytes,
        )
        return [
            PartitionExtents(query.partition_key, False, -1, -1, [])
            if high_watermark is None
            else PartitionExtents(
                query.partition_key,
                True,
                log_start,
                high_watermark,
                unpack_extents(packed or b""),
                NONE_OPEN if first_open is None else first_open,
                unpack_aborted(aborted or b""),
            )
            for query, (log_start, high_watermark, packed, first_open, aborted) in zip(queries, rows, strict=True)
        ]

    async def list_offsets(self, queries: Sequence[OffsetQuery]) -> list[OffsetAnswer]:
        """Offset -1 when no extent reaches the timestamp."""
        if not queries:
            return []
        keys, timestamps = np.array(queries, dtype=np.int64).T
        rows = await _LIST_OFFSETS.rows(self.readers, keys=pack_int8(keys), timestamps=pack_int8(timestamps))
        return [
            OffsetAnswer(True, offset, leader_epoch, unpack_extents(packed)[0] if packed else None)
            if known
            else OffsetAnswer(False, -1, -1, None)
            for known, offset, leader_epoch, packed in rows
        ]

    async def find_epoch_ends(self, queries: Sequence[EpochQuery]) -> list[EpochEnd]:
        if not queries:
            return []
        rows = await _FIND_EPOCH_ENDS.rows(
            self.readers,
            keys=[query.partition_key for query in queries],
            epochs=[query.leader_epoch for query in queries],
        )
        return [EpochEnd(*row) if row[0] else _GONE for row in rows]
