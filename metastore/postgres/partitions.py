"""metastore.partitions.PartitionApi on Postgres.

Place: mixed into PostgresMetastore.
Invariant: records and projection in one call of one function, under the log head's lock (C1).
If the process dies in mid-call, Postgres finishes it or rolls it back.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.metastore.keys import PARTITION_BITS
from headrace.metastore.log.records import encode_new_partitions
from headrace.metastore.partitions import PartitionGrowth
from headrace.metastore.postgres.statement import Pool, Statement
from headrace.storage.errors import InvalidError

_CREATE_PARTITIONS = Statement("create_partitions", writes=True)


class PostgresPartitions:
    """Implements PartitionApi."""

    pool: Pool

    async def create_partitions(self, expected_head: int, growths: Sequence[PartitionGrowth]) -> bool:
        """InvalidError for a count that a partition key cannot hold."""
        for growth in growths:
            if not growth.first_index < growth.partition_count <= 1 << PARTITION_BITS:
                raise InvalidError(
                    f"partition count out of range: topic_id={growth.topic_id} count={growth.partition_count}"
                )
        (created,) = await _CREATE_PARTITIONS.row(
            self.pool,
            expected_head=expected_head,
            records=[
                record
                for growth in growths
                for record in encode_new_partitions(
                    growth.topic_id, range(growth.first_index, growth.partition_count), growth.preferred
                )
            ],
            topic_ids=[growth.topic_id for growth in growths],
            first_indexes=[growth.first_index for growth in growths],
            counts=[growth.partition_count for growth in growths],
        )
        return bool(created)
