"""Topics and their partitions: created, deleted, added to.

Place: behind CreateTopics, DeleteTopics and CreatePartitions, which agent/topics judges on an image; part of
TopicApi.
Invariant: records and projection in one call of one function, under the log head's lock (C1). Offsets that a
record carries are known before it is sent, as the expected head is fixed.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from headrace.metastore.api.topics import (
    NONE_KEPT,
    CountChange,
    NewTopic,
    PartitionGrowth,
    PartitionState,
    RemovalOutcome,
    TopicApi,
)
from headrace.metastore.keys import PARTITION_BITS
from headrace.metastore.life.numbers import epoch_floor, life_of_offset
from headrace.metastore.log.kip631_records import TOPIC_RESOURCE, ConfigRecord, RemoveTopicRecord, TopicRecord
from headrace.metastore.log.partition_records import change_records, encode_new_partitions
from headrace.metastore.log.records import encode_record
from headrace.metastore.partitions.changes import Expansion, Removal, Shrinking
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
            records += _topic_records(topic, _first_epoch(expected_head))
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


def _topic_records(topic: NewTopic, leader_epoch: int) -> list[bytes]:
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
