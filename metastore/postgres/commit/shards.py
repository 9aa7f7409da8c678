"""Growing the count of commit shards.

Place: part of the metastore; `headrace storage grow-commit-shards` calls it.
Invariant: the count in Postgres and the level of the feature in the metadata log change in one statement.
"""

from __future__ import annotations

from headrace.metastore.api.agents import COMMIT_SHARDS
from headrace.metastore.log.kip631_records import FeatureLevelRecord
from headrace.metastore.log.records import encode_record
from headrace.metastore.postgres.pass_through import PostgresNoun
from headrace.metastore.postgres.statement import Statement

GROW_SECONDS = 120.0
"""A million partitions take some seconds."""
DESCRIBE_CLUSTER = Statement("describe_cluster", writes=False)
_GROW = Statement("grow_commit_shards", writes=True, in_any_life=True, patience_seconds=GROW_SECONDS)


class PostgresShards(PostgresNoun):
    """Implements what ClusterApi says of the shards."""

    async def count_commit_shards(self) -> int:
        shards: int = (await DESCRIBE_CLUSTER.row(self.pool))[2]
        return shards

    async def grow_commit_shards(self, shards: int, expected_head: int) -> bool:
        record = FeatureLevelRecord(name=COMMIT_SHARDS, min_feature_level=1, max_feature_level=shards)
        (done,) = await _GROW.row(
            self.pool,
            life=self.pool.life,
            expected_head=expected_head,
            shards=shards,
            feature=COMMIT_SHARDS,
            record=encode_record(record),
        )
        return bool(done)
