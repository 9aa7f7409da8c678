"""Topics that halve, in Postgres.

Place: part of TopicApi, on halve_topic.sql and merge_children.sql, which have the locks.
Invariant: the records are made here, from what the caller planned; the SQL functions append them with their projection.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from headrace.metastore.api.halvings import Halving, HalvingPair, HalvingState
from headrace.metastore.api.metadata_log import MetadataRecord
from headrace.metastore.keys import split_partition_key
from headrace.metastore.log.own_records import AliasPartitionRecord, HalveTopicRecord
from headrace.metastore.log.partition_records import change_records
from headrace.metastore.log.records import encode_record
from headrace.metastore.partitions.changes import Shrinking
from headrace.metastore.partitions.merging import MergePhase, MergeTimes
from headrace.metastore.postgres.pass_through import PostgresNoun
from headrace.metastore.postgres.statement import Statement
from headrace.storage.errors import FencedError

NAMES_MAX = 10
"""Groups with a lag that are named for each child."""
_NO_LONGER = -1
_BEGIN_HALVING = Statement("begin_halving", writes=True)
_CANCEL_HALVING = Statement("cancel_halving", writes=True)
_HALVING_PAIRS = Statement("halving_pairs", writes=False)
_PAUSE_CHILDREN = Statement("pause_children", writes=True)
_RESUME_CHILDREN = Statement("resume_children", writes=True)
_MERGE_CHILDREN = Statement("merge_children", writes=True)
_SHOW_HALVED_COUNT = Statement("show_halved_count", writes=True)
_SETTLE_HALVING = Statement("settle_halving", writes=True)


class PostgresHalvings(PostgresNoun):
    """Halvings and their steps."""

    async def begin_halving(self, expected_head: int, halving: Halving) -> bool:
        """Append the record and begin to drain the children in one transaction."""
        topic_id, count, excluded_groups, times = halving
        (begun,) = await _BEGIN_HALVING.row(
            self.pool,
            expected_head=expected_head,
            records=_encoded(HalveTopicRecord(topic_id=topic_id, partition_count=count)),
            topic_id=topic_id,
            count=count,
            excluded_groups=list(excluded_groups),
            **times._asdict(),
        )
        return bool(begun)

    async def cancel_halving(self, expected_head: int, topic_id: uuid.UUID) -> bool:
        """Append the record and end the halving in one transaction, unless a child is merged."""
        records = _encoded(HalveTopicRecord(topic_id=topic_id, partition_count=_NO_LONGER))
        (done,) = await _CANCEL_HALVING.row(self.pool, expected_head=expected_head, records=records, topic_id=topic_id)
        return bool(done)

    async def halving_state(self, topic_id: uuid.UUID) -> HalvingState | None:
        """One look."""
        rows = await _HALVING_PAIRS.rows(self.pool, topic_id=topic_id, names=NAMES_MAX)
        if not rows:
            return None
        pairs = [_pair(row[-7:]) for row in rows]
        count, now_ms, shown_ms, *times = rows[0][:-7]
        return HalvingState(count, now_ms, shown_ms, MergeTimes(*times), pairs)

    async def pause_children(self, controller_epoch: int, child_keys: Sequence[int]) -> int:
        """FencedError for a stale epoch."""
        return int(await self._step(_PAUSE_CHILDREN, controller_epoch, child_keys=list(child_keys)))

    async def resume_children(self, controller_epoch: int, child_keys: Sequence[int]) -> int:
        """FencedError for a stale epoch."""
        return int(await self._step(_RESUME_CHILDREN, controller_epoch, child_keys=list(child_keys)))

    async def merge_children(
        self, controller_epoch: int, expected_head: int, topic_id: uuid.UUID, pairs: Sequence[HalvingPair]
    ) -> bool:
        """FencedError for a stale epoch."""
        records = [
            AliasPartitionRecord(
                partition_id=split_partition_key(pair.child_key)[1],
                topic_id=topic_id,
                parent=split_partition_key(pair.parent_key)[1],
            )
            for pair in pairs
        ]
        return await self._append(
            _MERGE_CHILDREN,
            controller_epoch,
            expected_head,
            topic_id,
            records,
            child_keys=[pair.child_key for pair in pairs],
        )

    async def show_halved_count(
        self, controller_epoch: int, expected_head: int, topic_id: uuid.UUID, initial: int, change: Shrinking
    ) -> bool:
        """FencedError for a stale epoch."""
        count = change.undeleted
        return await self._append(
            _SHOW_HALVED_COUNT,
            controller_epoch,
            expected_head,
            topic_id,
            change_records(topic_id, initial, change),
            count=count,
            raised_epochs=[change.epochs[index] for index in range(count)],
        )

    async def settle_halving(self, controller_epoch: int, expected_head: int, topic_id: uuid.UUID) -> bool:
        """FencedError for a stale epoch."""
        records = [HalveTopicRecord(topic_id=topic_id, partition_count=_NO_LONGER)]
        return await self._append(_SETTLE_HALVING, controller_epoch, expected_head, topic_id, records)

    async def _append(
        self,
        statement: Statement,
        controller_epoch: int,
        expected_head: int,
        topic_id: uuid.UUID,
        records: Sequence[MetadataRecord],
        **more: Any,
    ) -> bool:
        encoded = _encoded(*records)
        return bool(
            await self._step(
                statement, controller_epoch, expected_head=expected_head, topic_id=topic_id, records=encoded, **more
            )
        )

    async def _step(self, statement: Statement, controller_epoch: int, **parameters: Any) -> int | bool:
        """The answer of a function that returns NULL for a stale epoch."""
        (answer,) = await statement.row(self.pool, controller_epoch=controller_epoch, **parameters)
        if answer is None:
            raise FencedError(f"controller epoch is stale: controller_epoch={controller_epoch}")
        found: int | bool = answer
        return found


def _encoded(*records: MetadataRecord) -> list[bytes]:
    return [encode_record(record) for record in records]


def _pair(row: Sequence[Any]) -> HalvingPair:
    child_key, parent_key, phase, since_ms, high_watermark, lag, behind = row
    return HalvingPair(child_key, parent_key, MergePhase(phase), since_ms, high_watermark, lag, behind)
