"""Takes and gives back partitions as the group says, with the application's callbacks and committed offsets.

Place: called by consumer.py inside `getmany`; membership.py has the target, and tells the coordinator what is owned.
Invariant: a partition is given back after its position is committed (with auto commit) and the application's
callback has returned. One that is taken begins at the committed offset, or where the policy says if there is none.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.client.cluster import ClientCluster
from headrace.client.fetching import PartitionReader
from headrace.client.listeners import RebalanceListener
from headrace.client.membership import ConsumerMembership, IdPartition
from headrace.client.messages import message
from headrace.client.offsets import EARLIEST, LATEST, TopicPartition, by_topic, log_offsets, partition_epochs
from headrace.client.order import TopicOrder
from headrace.protocol.api_keys import ApiKey
from headrace.storage.errors import HeadraceError, UnavailableError

log = logging.getLogger(__name__)


class Ownership:
    """`readers` are of the partitions that the member owns; only this changes which ones."""

    def __init__(
        self,
        cluster: ClientCluster,
        membership: ConsumerMembership,
        readers: dict[TopicPartition, PartitionReader],
        orders: Mapping[str, TopicOrder],
        listener: RebalanceListener,
        *,
        auto_commit: bool,
        begin_at: int,
    ) -> None:
        """`begin_at`: EARLIEST or LATEST, without a committed offset."""
        self._cluster, self._membership, self._readers, self._orders = cluster, membership, readers, orders
        self._listener, self._auto_commit, self._begin_at = listener, auto_commit, begin_at

    def unknown(self) -> bool:
        """Return whether the group gave the member a partition that its metadata lacks."""
        return None in self._target()

    async def settle(self) -> bool:
        """Own what the target says; whether anything changed. UnavailableError: call it again."""
        target = {partition for partition in self._target() if partition is not None}
        gone, new = self._readers.keys() - target, target - self._readers.keys()
        is_fenced = self._membership.is_fenced
        if gone:
            if self._auto_commit and not is_fenced:
                await self._commit_quietly(gone)
            await self._listener.on_partitions_revoked(gone)
            for partition in gone:
                del self._readers[partition]
        if is_fenced or gone:
            self._membership.own(self._owned())
        if new and not is_fenced:
            self._readers.update(await self._begin(new))
            await self._listener.on_partitions_assigned(new)
            self._membership.own(self._owned())
        return bool(gone or new)

    async def give_all_back(self) -> None:
        """Give all partitions back at the end."""
        if self._auto_commit:
            await self._commit_quietly(self._readers.keys())
        if self._readers:
            await self._listener.on_partitions_revoked(set(self._readers))
        self._readers.clear()

    async def commit(self, partitions: Collection[TopicPartition]) -> None:
        """The positions of these. UnavailableError if they are not stored, or it is not known."""
        rows = {partition: reader for partition in partitions if (reader := self._readers[partition]).has_begun}
        if not rows:
            return
        api = message(ApiKey.OFFSET_COMMIT, 9)
        topics = tuple(
            api.make(
                "OffsetCommitRequestTopic",
                name=topic,
                partitions=tuple(
                    api.make(
                        "OffsetCommitRequestPartition",
                        partition_index=index,
                        committed_offset=rows[topic, index].position,
                        committed_metadata="",
                    )
                    for index in indexes
                ),
            )
            for topic, indexes in by_topic(rows).items()
        )
        member = self._membership
        answer = await self._ask(
            api,
            group_id=member.group_id,
            generation_id_or_member_epoch=member.epoch,
            member_id=member.member_id,
            topics=topics,
        )
        codes = {p.error_code for topic in answer.topics for p in topic.partitions} - {ErrorCode.none}
        if codes:
            raise UnavailableError(f"not committed: group={member.group_id} {sorted(code.name for code in codes)}")

    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets of those that have a committed offset."""
        api, member = message(ApiKey.OFFSET_FETCH, 9), self._membership
        topics = tuple(
            api.make("OffsetFetchRequestTopics", name=topic, partition_indexes=tuple(indexes))
            for topic, indexes in by_topic(partitions).items()
        )
        group = api.make(
            "OffsetFetchRequestGroup",
            group_id=member.group_id,
            member_id=member.member_id,
            member_epoch=member.epoch,
            topics=topics,
        )
        (answer,) = (await self._ask(api, groups=(group,), require_stable=False)).groups
        if answer.error_code is not ErrorCode.none:
            raise UnavailableError(f"offsets not read: group={member.group_id} {answer.error_code.name}")
        return {
            (topic.name, p.partition_index): p.committed_offset
            for topic in answer.topics
            for p in topic.partitions
            if p.committed_offset >= 0
        }

    def _target(self) -> set[TopicPartition | None]:
        """Return the target partitions by name; None for partitions that the metadata lacks."""
        names = {order.described.counts.topic_id: order.described for order in self._orders.values()}
        found: set[TopicPartition | None] = set()
        for topic_id, index in self._membership.target:
            topic = names.get(topic_id)
            found.add((topic.name, index) if topic is not None and index in topic.leader_epochs else None)
        return found

    def _owned(self) -> frozenset[IdPartition]:
        return frozenset((self._orders[topic].described.counts.topic_id, index) for topic, index in self._readers)

    async def _begin(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, PartitionReader]:
        """Return where each one begins; consumer.py decides when."""
        committed = await self.committed(partitions)
        starts = await log_offsets(self._cluster, partitions, EARLIEST)
        readers = {}
        for partition in partitions:
            position = committed.get(partition, -1)
            reader = PartitionReader(partition, position, position)
            reader.move(position if position >= 0 else await self._first(partition, starts[partition]))
            index, initial = partition[1], self._orders[partition[0]].described.counts.initial
            # KIP-253, 8.4: what was read before needs no check
            reader.has_begun = index < initial or position > starts[partition]
            readers[partition] = reader
        return readers

    async def _first(self, partition: TopicPartition, start: int) -> int:
        """Return the first position where there is no committed offset. What was split off while the group read its
        source is read from its start.
        """
        if self._begin_at == EARLIEST:
            return start
        source = (await partition_epochs(self._cluster, [partition]))[partition].source
        if source >= 0 and await self.committed([(partition[0], source)]):
            return start
        return (await log_offsets(self._cluster, [partition], LATEST))[partition]

    async def _commit_quietly(self, partitions: Collection[TopicPartition]) -> None:
        try:
            await self.commit(partitions)
        except HeadraceError as error:
            log.warning("positions not committed: group=%s error=%s", self._membership.group_id, error)

    async def _ask(self, api: Any, **request: Any) -> Any:
        try:
            return await self._cluster.call(await self._membership.coordinator(), api, **request)
        except UnavailableError:
            self._membership.lost_coordinator()
            raise
