"""Find where data is: what a reader reads next, offsets by timestamp, ends of leader epochs, the commit feed.

Place: implements IndexApi. Fetch asks when its own index cannot answer; ListOffsets and OffsetForLeaderEpoch always
ask. Each agent polls the feed, every change of a reader's view, a few dozen times a second, so that readers need not
ask for news.
Invariant of look-ups: reads only. Every answer is the primary's, as of one snapshot; its cost depends on the answer,
never on how much there is.
Invariant of the feed: reads only. A page holds the next rows of a shard without a gap, or names the shard lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from headrace.metastore.api.read import (
    ALL_BYTES,
    EXTENTS_PER_CALL,
    NONE_OPEN,
    EpochEnd,
    EpochQuery,
    ExtentQuery,
    FeedKind,
    FeedPage,
    FeedRow,
    OffsetAnswer,
    OffsetQuery,
    PartitionExtents,
)
from headrace.metastore.postgres.packing import (
    pack_int2,
    pack_int8,
    unpack_aborted,
    unpack_extents,
    unpack_keys,
    unpack_log_starts,
    unpack_transaction_row,
)
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


_POLL_FEED = Statement("poll_feed", writes=False)


class PostgresFeed(PostgresNoun):
    """Polling the feed."""

    async def poll_feed(self, positions: Mapping[int, int]) -> FeedPage:
        """A page holds at most 64 rows per shard: while `heads` is ahead of the last row, ask again.

        Shards that `positions` does not name are in `heads` only; one that the cluster lacks is lost.
        """
        positions = dict(positions)  # the caller's own may change meanwhile
        (
            incarnation_id,
            wall_ms,
            metadata_offset,
            shards,
            seqs,
            *columns,
        ) = await _POLL_FEED.row(
            self.pool,
            shards=pack_int2(np.fromiter(positions.keys(), dtype=np.int64)),
            seqs=pack_int8(np.fromiter(positions.values(), dtype=np.int64)),
        )
        heads = dict(zip(shards, seqs, strict=True))
        rows = [_row(*fields) for fields in zip(*(column or () for column in columns), strict=True)]
        present = {row.shard for row in rows}
        lost = [
            shard
            for shard, position in sorted(positions.items())
            if (head := heads.get(shard)) is None or position > head or (position < head and shard not in present)
        ]
        return FeedPage(incarnation_id, wall_ms, heads, rows, lost, metadata_offset)


def _row(shard: int, seq: int, kind: int, payload: bytes) -> FeedRow:
    row = partial(FeedRow, shard, seq, FeedKind(kind))
    match kind:
        case FeedKind.LOG_START:
            return row(log_starts=unpack_log_starts(payload))
        case FeedKind.TRANSACTION:
            extents, first_open_offsets, aborted = unpack_transaction_row(payload)
            return row(extents=extents, first_open_offsets=first_open_offsets, aborted=aborted)
        case FeedKind.TOPIC_DELETED:
            return row(deleted_keys=unpack_keys(payload))
        case _:
            return row(extents=unpack_extents(payload))
