"""What keeps the metastore's tables from growing, what prevents it, how many rows clients have made it keep.

Place: every agent in turn, a little at a time (agent/serve/housekeeping.py); each agent asks for the numbers about
once a minute (agent/limits/client_rows.py).
Invariant of numbers of rows: the numbers are about right: no table is counted as a whole while it is large.
Invariant: nothing here is needed for a right answer, except that finish_bulk_writes completes what a killed driver
left; each call is bounded and can be repeated at any time.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class RowCounts(NamedTuple):
    """Rows of the whole cluster. `producer_states`: one for each producer and partition; `committed_offsets`: those,
    and groups."""

    transactional_ids: int
    producer_states: int
    committed_offsets: int


class HousekeepingApi(Protocol):
    """Chunked clean-ups, each of which says what it did; and what people and limits want to know of the tables."""

    async def rotate_log_slots(self) -> str | None:
        """Empty the next slot of the feed and of the answers; its name, None when none was due."""

    async def overdue_slots(self) -> dict[str, int]:
        """Return for how many turns the next slot of each log is overdue: 0 or 1 if slots are
        emptied in time.
        """

    async def expire_producer_state(self, limit: int) -> int:
        """Forget up to `limit` producers of one commit shard that were silent for producer.id.expiration.ms; how many
        rows went, 0 when there are no more.
        """

    async def merge_producer_id_blocks(self, limit: int) -> int:
        """Join old blocks of producer ids among the first `limit`; how many rows went."""

    async def purge_deleted_partitions(self, limit: int) -> int:
        """Remove what one deleted partition left behind; how many rows went, 0 when there is none to clean.

        While its topic can be restored, only its extents go.
        """

    async def prune_removed_extents(self, limit: int) -> int:
        """Forget up to `limit` extents that were removed over file.delete.delay.ms ago; how many."""

    async def expire_group_offsets(self, limit: int) -> int:
        """Forget groups' offsets that were unused for offsets.retention.minutes; how many were looked at."""

    async def prune_jobs(self, limit: int) -> int:
        """Forget up to `limit` jobs that ended over a day ago; how many."""

    async def finish_bulk_writes(self) -> int:
        """Commit one chunk of a bulk write that its driver left over a minute ago; 0 when there is none."""

    async def oldest_bulk_write(self) -> float:
        """Return for how many seconds the decided bulk write that waits the longest has made
        no progress; 0 if all are complete.
        """

    async def prune_bulk_writes(self, limit: int) -> int:
        """Forget up to `limit` chunks that were staged over a day ago and not decided, and as many writers that wrote
        nothing for 90 days; how many.
        """

    async def oldest_audit_block(self) -> float:
        """Return for how many seconds the oldest full block of the audit trail has waited in
        rows, of all metadata partitions; 0 if none is full, and below metadata.format 4.
        """

    async def held_snapshot(self) -> int:
        """Age of the oldest snapshot that another session, a standby or a slot holds, in transactions.

        Rows that were removed or changed since are still stored, and no clean-up can free them.
        """

    async def client_rows(self) -> RowCounts:
        """Return how many rows of clients there are now, about: for limits on new ones."""
