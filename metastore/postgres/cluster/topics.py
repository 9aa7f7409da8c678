"""Topics with their partitions in Postgres: created, deleted, added to, doubled, halved.

Place: implements TopicApi, but for restoring. CreateTopics, DeleteTopics and CreatePartitions are judged by
agent/topics on an image; double_topic.sql, halve_topic.sql and merge_children.sql have the locks of doubling and
halving.
Invariant: records and projection in one call of one function, under the log head's lock (C1). Offsets that a record
carries are known before it is sent, as the expected head is fixed.
Invariant of doubling: the records are made here, from what the caller planned; the SQL functions append them with
their projection.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.metastore.api.cluster import MetadataRecord
from headrace.metastore.api.topics import (
    NONE_KEPT,
    CountChange,
    Doubling,
    Halving,
    HalvingPair,
    HalvingState,
    NewTopic,
    PartitionGrowth,
    PartitionState,
    QuietSplit,
    RemovalOutcome,
    TopicApi,
)
from headrace.metastore.keys import PARTITION_BITS, split_partition_key
from headrace.metastore.life.numbers import epoch_floor, life_of_offset
from headrace.metastore.log.kip631_records import TOPIC_RESOURCE, ConfigRecord, RemoveTopicRecord, TopicRecord
from headrace.metastore.log.own_records import AliasPartitionRecord, HalveTopicRecord
from headrace.metastore.log.records import change_records, encode_new_partitions, encode_record, split_record
from headrace.metastore.partitions.changes import Expansion, Removal, Shrinking
from headrace.metastore.partitions.merging import MergePhase, MergeTimes
from headrace.metastore.partitions.topic_partitions import Split
from headrace.metastore.postgres.pass_through import PostgresNoun, calls
from headrace.metastore.postgres.statement import Statement
from headrace.storage.errors import FencedError, InvalidError

_CREATE_TOPICS = Statement("create_topics", writes=True)
_DELETE_TOPICS = Statement("delete_topics", writes=True)
_CREATE_PARTITIONS = Statement("create_partitions", writes=True)
_CHANGE_PARTITION_COUNTS = Statement("change_partition_counts", writes=True)
_REMOVE_PARTITION = Statement("remove_partition", writes=True)


class PostgresTopics(PostgresNoun):
    """What changes the set of partitions."""

    announce_counts = calls(TopicApi.announce_counts, writes=True)

    async def create_topics(self, expected_head: int, topics: Sequence[NewTopic]) -> bool:
        """False when the head is not `expected_head`; AlreadyExistsError for a name or id that is taken."""
        records: list[bytes] = []
        numbers: list[int] = []
        for topic in topics:
            if not 1 <= topic.partition_count <= 1 << PARTITION_BITS:
                raise InvalidError(f"partition count out of range: topic={topic.name} count={topic.partition_count}")
            numbers.append(expected_head + len(records))
            records += topic_records(topic, _first_epoch(expected_head))
        configs = [(topic.name, name, value) for topic in topics for name, value in topic.configs.items()]
        (created,) = await _CREATE_TOPICS.row(
            self.pool,
            expected_head=expected_head,
            records=records,
            topic_ids=[topic.topic_id for topic in topics],
            topic_numbers=numbers,
            names=[topic.name for topic in topics],
            counts=[topic.partition_count for topic in topics],
            config_topics=[topic for topic, _, _ in configs],
            config_names=[name for _, name, _ in configs],
            config_values=[value for _, _, value in configs],
        )
        return bool(created)

    async def delete_topics(
        self, expected_head: int, topic_ids: Sequence[uuid.UUID], kept: Mapping[uuid.UUID, Sequence[bytes]] = NONE_KEPT
    ) -> bool:
        """False when the head is not `expected_head`; InvalidError when a topic is not there."""
        (deleted,) = await _DELETE_TOPICS.row(
            self.pool,
            expected_head=expected_head,
            topic_ids=list(topic_ids),
            records=[encode_record(RemoveTopicRecord(topic_id=topic_id)) for topic_id in topic_ids],
            kept_topics=[topic_id for topic_id, records in kept.items() for _ in records],
            kept_records=[record for records in kept.values() for record in records],
        )
        return bool(deleted)

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
                    growth.topic_id,
                    range(growth.first_index, growth.partition_count),
                    growth.preferred,
                    leader_epoch=_first_epoch(expected_head),
                )
            ],
            topic_ids=[growth.topic_id for growth in growths],
            first_indexes=[growth.first_index for growth in growths],
            counts=[growth.partition_count for growth in growths],
        )
        return bool(created)

    async def change_partition_counts(self, expected_head: int, changes: Sequence[CountChange]) -> bool:
        """One transaction for all of them."""
        raised = [
            (topic_id, index, epoch, _state_after(change, index))
            for topic_id, _, change, _ in changes
            for index, epoch in sorted(change.epochs.items())
        ]
        created = [
            (topic_id, index, partition.leader_epoch)
            for topic_id, _, change, _ in changes
            if isinstance(change, Expansion)
            for index, partition in sorted(change.created.items())
        ]
        (changed,) = await _CHANGE_PARTITION_COUNTS.row(
            self.pool,
            expected_head=expected_head,
            records=[encode_record(record) for change in changes for record in change_records(*change)],
            topic_ids=[change.topic_id for change in changes],
            initials=[change.initial for change in changes],
            counts=[change.change.undeleted for change in changes],
            raised_topics=[topic_id for topic_id, _, _, _ in raised],
            raised_indexes=[index for _, index, _, _ in raised],
            raised_epochs=[epoch for _, _, epoch, _ in raised],
            raised_states=[state for _, _, _, state in raised],
            created_topics=[topic_id for topic_id, _, _ in created],
            created_indexes=[index for _, index, _ in created],
            created_epochs=[epoch for _, _, epoch in created],
        )
        return bool(changed)

    async def remove_partition(
        self, controller_epoch: int, expected_head: int, topic_id: uuid.UUID, removal: Removal, *, limit: int
    ) -> RemovalOutcome:
        """FencedError for a stale epoch."""
        (record,) = change_records(topic_id, -1, removal)
        (outcome,) = await _REMOVE_PARTITION.row(
            self.pool,
            controller_epoch=controller_epoch,
            expected_head=expected_head,
            record=encode_record(record),
            topic_id=topic_id,
            index=removal.partition,
            limit=limit,
        )
        if outcome is None:
            raise FencedError(f"controller epoch is stale: controller_epoch={controller_epoch}")
        return RemovalOutcome(outcome)


def _state_after(change: Expansion | Shrinking, index: int) -> PartitionState:
    is_marked = isinstance(change, Shrinking) and index in change.marked
    return PartitionState.MARKED if is_marked else PartitionState.TAKES_RECORDS


def _first_epoch(head: int) -> int:
    """The leader epoch of a partition that is created where the log is at `head`; the SQL functions write the same."""
    return epoch_floor(life_of_offset(head))


def topic_records(topic: NewTopic, leader_epoch: int) -> list[bytes]:
    """The topic's own record first: its offset becomes the topic's number."""
    count = topic.partition_count
    own = TopicRecord(
        topic_name=topic.name,
        topic_id=topic.topic_id,
        initial_partition_count=count,
        undeleted_partition_count=count,
        replication_factor=topic.replication_factor,
    )
    configs = [
        ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=topic.name, name=name, value=value)
        for name, value in topic.configs.items()
    ]
    partitions = encode_new_partitions(topic.topic_id, range(count), topic.preferred, leader_epoch=leader_epoch)
    return [encode_record(own), *partitions, *map(encode_record, configs)]


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
