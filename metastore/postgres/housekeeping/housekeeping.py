"""What keeps tables from growing: producers, slots, offsets, jobs and rows of deleted partitions.

Place: the agents call it in turn (agent/serve/housekeeping.py).
Invariant: each call is one short transaction over a bounded number of rows, and can be repeated.
"""

from __future__ import annotations

from headrace.metastore.api.housekeeping import HousekeepingApi
from headrace.metastore.audit_trail import BLOCK_RECORDS
from headrace.metastore.postgres.bulk.bulk import oldest_bulk_write
from headrace.metastore.postgres.pass_through import PostgresNoun, calls
from headrace.metastore.postgres.statement import Statement

_ROTATE_LOG_SLOTS = Statement("rotate_log_slots", writes=True)
_OVERDUE_SLOTS = Statement("overdue_slots", writes=False)
_OLDEST_AUDIT_BLOCK = Statement("oldest_audit_block", writes=False)


class PostgresHousekeeping(PostgresNoun):
    """The chunked clean-ups."""

    expire_producer_state = calls(HousekeepingApi.expire_producer_state, writes=True)
    merge_producer_id_blocks = calls(HousekeepingApi.merge_producer_id_blocks, writes=True)
    purge_deleted_partitions = calls(HousekeepingApi.purge_deleted_partitions, writes=True)
    prune_removed_extents = calls(HousekeepingApi.prune_removed_extents, writes=True)
    expire_group_offsets = calls(HousekeepingApi.expire_group_offsets, writes=True)
    prune_jobs = calls(HousekeepingApi.prune_jobs, writes=True)
    client_rows = calls(HousekeepingApi.client_rows, writes=False)
    held_snapshot = calls(HousekeepingApi.held_snapshot, writes=False)
    finish_bulk_writes = calls(HousekeepingApi.finish_bulk_writes, writes=True)
    prune_bulk_writes = calls(HousekeepingApi.prune_bulk_writes, writes=True)

    async def rotate_log_slots(self) -> str | None:
        """Empty a slot of the feed or of the answers that is needed soon; its name. The feed needs one every 30 s."""
        (emptied,) = await _ROTATE_LOG_SLOTS.row(self.pool)
        return None if emptied is None else str(emptied)

    async def overdue_slots(self) -> dict[str, int]:
        """Return by log for how many turns its next slot is overdue."""
        return {str(log): int(turns) for log, turns in await _OVERDUE_SLOTS.rows(self.pool)}

    async def oldest_bulk_write(self) -> float:
        return await oldest_bulk_write(self.pool)

    async def oldest_audit_block(self) -> float:
        (waits_s,) = await _OLDEST_AUDIT_BLOCK.row(self.pool, records=BLOCK_RECORDS)
        return float(waits_s)
