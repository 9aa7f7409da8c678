"""metastore.leader_epochs.LeaderEpochApi on Postgres.

Place: mixed into PostgresMetastore.
Invariant: answers are the primary's, as of one snapshot. If the process dies here nothing is lost: it only reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.metastore.leader_epochs import EpochEnd, EpochQuery
from headrace.metastore.postgres.statement import Pool, Statement

_FIND_EPOCH_ENDS = Statement("find_epoch_ends", writes=False)
_GONE = EpochEnd(False, -1, -1)


class PostgresLeaderEpochs:
    """Implements LeaderEpochApi."""

    pool: Pool

    async def find_epoch_ends(self, queries: Sequence[EpochQuery]) -> list[EpochEnd]:
        if not queries:
            return []
        rows = await _FIND_EPOCH_ENDS.rows(
            self.pool,
            keys=[query.partition_key for query in queries],
            epochs=[query.leader_epoch for query in queries],
        )
        return [EpochEnd(*row) if row[0] else _GONE for row in rows]
