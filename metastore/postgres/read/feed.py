"""The commit feed: every change of a reader's view, numbered per commit shard.

Place: each agent polls it a few dozen times a second, so that readers need not ask for news; part of IndexApi.
Invariant: reads only. A page holds the next rows of a shard without a gap, or names the shard lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from headrace.metastore.api.read import FeedKind, FeedPage, FeedRow
from headrace.metastore.postgres.packing import (
    pack_int2,
    pack_int8,
    unpack_extents,
    unpack_keys,
    unpack_log_starts,
    unpack_transaction_row,
)
from headrace.metastore.postgres.pass_through import PostgresNoun
from headrace.metastore.postgres.statement import Statement

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
