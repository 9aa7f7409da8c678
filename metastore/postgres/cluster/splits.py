"""Topics that double, in Postgres.

Place: part of TopicApi, on double_topic.sql, which has the locks.
Invariant: the records are made here, from what the caller planned; the SQL functions append them with their projection.
"""

from __future__ import annotations

from headrace.metastore.api.splits import Doubling, QuietSplit
from headrace.metastore.api.topics import TopicApi
from headrace.metastore.keys import split_partition_key
from headrace.metastore.log.partition_records import change_records, split_record
from headrace.metastore.log.records import encode_record
from headrace.metastore.partitions.topic_partitions import Split
from headrace.metastore.postgres.pass_through import PostgresNoun, calls
from headrace.metastore.postgres.statement import Statement
from headrace.storage.errors import FencedError

_DOUBLE_TOPIC = Statement("double_topic", writes=True)
_SET_SPLIT_BOUNDARY = Statement("set_split_boundary", writes=True)


class PostgresSplits(PostgresNoun):
    """Doublings and their boundaries."""

    agents_behind = calls(TopicApi.agents_behind, writes=False)
    topic_readers = calls(TopicApi.topic_readers, writes=False)
    quiet_splits = calls(TopicApi.quiet_splits, writes=False)

    async def double_topic(self, expected_head: int, doubling: Doubling) -> bool:
        """Append the records and create the children in one transaction, unless the log has moved on."""
        topic_id, initial, count, change, producer_quiet_ms, boundary_quiet_ms = doubling
        records = [
            *change_records(topic_id, initial, change),
            *(split_record(topic_id, parent, Split(parent + count)) for parent in range(count)),
        ]
        (doubled,) = await _DOUBLE_TOPIC.row(
            self.pool,
            expected_head=expected_head,
            records=[encode_record(record) for record in records],
            topic_id=topic_id,
            initial=initial,
            count=count,
            raised_epochs=[change.epochs[index] for index in range(count)],
            created_epochs=[change.created[index].leader_epoch for index in range(count, 2 * count)],
            producer_quiet_ms=producer_quiet_ms,
            boundary_quiet_ms=boundary_quiet_ms,
        )
        return bool(doubled)

    async def set_split_boundary(self, controller_epoch: int, expected_head: int, split: QuietSplit) -> bool:
        """FencedError for a stale epoch."""
        parent, child = (split_partition_key(key)[1] for key in (split.parent_key, split.child_key))
        record = split_record(split.topic_id, parent, Split(child, split.high_watermark))
        (done,) = await _SET_SPLIT_BOUNDARY.row(
            self.pool,
            controller_epoch=controller_epoch,
            expected_head=expected_head,
            record=encode_record(record),
            parent_key=split.parent_key,
            last_moved_ms=split.last_moved_ms,
            boundary=split.high_watermark,
        )
        if done is None:
            raise FencedError(f"controller epoch is stale: controller_epoch={controller_epoch}")
        return bool(done)
