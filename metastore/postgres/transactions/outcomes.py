"""What the bucket gets to know of ended transactions and decided bulk writes: implements OutcomeApi.

Place: under compactor/outcomes.py.
Invariant: reads, and forgets only what a lease says that the bucket has.
"""

from __future__ import annotations

from headrace.metastore.api.outcomes import EndedTransaction, OutcomeApi, TransactionOutcome
from headrace.metastore.postgres.pass_through import PostgresNoun, calls
from headrace.metastore.postgres.statement import Statement

_ENDED = Statement("ended_transactions", writes=False)


class PostgresOutcomes(PostgresNoun):
    """Implements OutcomeApi."""

    forget_outcomes = calls(
        OutcomeApi.forget_outcomes, writes=True, keys="ended.partition_key", offsets="ended.marker_offset"
    )
    markers_in_log = calls(
        OutcomeApi.markers_in_log,
        writes=False,
        topics="outcomes.topic_id",
        partitions="outcomes.partition_index",
        offsets="outcomes.marker_offset",
        producers="outcomes.producer_id",
        epochs="outcomes.epoch",
        commits="outcomes.commits",
    )
    decided_bulk_files = calls(OutcomeApi.decided_bulk_files, writes=False)
    forget_decided_bulk_files = calls(OutcomeApi.forget_decided_bulk_files, writes=True, file_ids="files")
    bulk_files_in_index = calls(OutcomeApi.bulk_files_in_index, writes=False, file_ids="files")

    async def ended_transactions(self, most: int) -> list[EndedTransaction]:
        return [
            EndedTransaction(key, offset, None if topic_id is None else TransactionOutcome(topic_id, *row))
            for key, offset, topic_id, *row in await _ENDED.rows(self.pool, most=most)
        ]
