"""What keeps tables from growing: producers, slots, offsets, jobs and rows of deleted partitions.

Place: the agents call it in turn (agent/serve/housekeeping.py).
Invariant: each call is one short transaction over a bounded number of rows, and can be repeated.
"""

from __future__ import annotations

from headrace.metastore.api.client_rows import RowCounts
from headrace.metastore.postgres.statement import Pool, Statement

_ROTATE_LOG_SLOTS = Statement("rotate_log_slots", writes=True)
_OVERDUE_SLOTS = Statement("overdue_slots", writes=False)
_EXPIRE_PRODUCER_STATE = Statement("expire_producer_state", writes=True)
_MERGE_PRODUCER_ID_BLOCKS = Statement("merge_producer_id_blocks", writes=True)
_PURGE_DELETED_PARTITIONS = Statement("purge_deleted_partitions", writes=True)
_PRUNE_REMOVED_EXTENTS = Statement("prune_removed_extents", writes=True)
_EXPIRE_GROUP_OFFSETS = Statement("expire_group_offsets", writes=True)
_PRUNE_JOBS = Statement("prune_jobs", writes=True)
_CLIENT_ROWS = Statement("client_rows", writes=False)
_HELD_SNAPSHOT = Statement("held_snapshot", writes=False)


class PostgresHousekeeping:
    """The chunked clean-ups."""

    pool: Pool

    async def rotate_log_slots(self) -> str | None:
        """Empty a slot of the feed or of the answers that is needed soon; its name. The feed needs one every 30 s."""
        (emptied,) = await _ROTATE_LOG_SLOTS.row(self.pool)
        return None if emptied is None else str(emptied)

    async def overdue_slots(self) -> dict[str, int]:
        """Return by log for how many turns its next slot is overdue."""
        return {str(log): int(turns) for log, turns in await _OVERDUE_SLOTS.rows(self.pool)}

    async def expire_producer_state(self, limit: int) -> int:
        """Forget up to `limit` producers that were silent for the cluster's producer.id.expiration.ms; how many."""
        (expired,) = await _EXPIRE_PRODUCER_STATE.row(self.pool, limit=limit)
        return int(expired)

    async def merge_producer_id_blocks(self, limit: int) -> int:
        """Join old blocks among the first `limit`; how many rows went."""
        (gone,) = await _MERGE_PRODUCER_ID_BLOCKS.row(self.pool, limit=limit)
        return int(gone)

    async def purge_deleted_partitions(self, limit: int) -> int:
        """Remove up to `limit` rows of each kind that one deleted partition left; 0 when there is nothing to do."""
        (removed,) = await _PURGE_DELETED_PARTITIONS.row(self.pool, limit=limit)
        return int(removed)

    async def prune_removed_extents(self, limit: int) -> int:
        """Forget up to `limit` extents that can no longer be restored; how many."""
        (pruned,) = await _PRUNE_REMOVED_EXTENTS.row(self.pool, limit=limit)
        return int(pruned)

    async def expire_group_offsets(self, limit: int) -> int:
        """Forget what was unused for the cluster's offsets.retention.minutes; how many offsets and groups were
        looked at.
        """
        (looked_at,) = await _EXPIRE_GROUP_OFFSETS.row(self.pool, limit=limit)
        return int(looked_at)

    async def prune_jobs(self, limit: int) -> int:
        """Forget up to `limit` jobs that ended over a day ago; how many."""
        (pruned,) = await _PRUNE_JOBS.row(self.pool, limit=limit)
        return int(pruned)

    async def client_rows(self) -> RowCounts:
        """Return the numbers of rows as of now, about."""
        return RowCounts(*map(int, await _CLIENT_ROWS.row(self.pool)))

    async def held_snapshot(self) -> int:
        """Age in transactions of the oldest snapshot that others hold."""
        (age,) = await _HELD_SNAPSHOT.row(self.pool)
        return int(age)
