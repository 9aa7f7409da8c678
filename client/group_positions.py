"""The exchange of positions with the group's coordinator: what others wait for is reported, what the member needs is
asked for.

Place: called by consumer.py inside `getmany`, at each heartbeat interval; waiting.must_report decides what is said.
Invariant: onPartitionKeyMaybeRevoked has returned for a partition before its position is sent. What the coordinator
does not know is reported again: a new one knows nothing, and neither does one in a new generation.
Source: KIP-253, change 7.
"""

from __future__ import annotations

from collections.abc import Mapping

from kio.schema.errors import ErrorCode

from headrace.client.cluster import ClientCluster
from headrace.client.fetching import PartitionReader
from headrace.client.listeners import PartitionKeyListener
from headrace.client.membership import ConsumerMembership
from headrace.client.messages import Frame
from headrace.client.offsets import TopicPartition
from headrace.client.order import TopicOrder
from headrace.metastore.partitions.waiting import PositionReport, must_report
from headrace.protocol.ordered_requests import (
    GROUP_POSITION_KEY,
    NO_POSITION,
    VERSION,
    GroupPositionRequest,
    PartitionPosition,
    decode_position_response,
    encode_position_request,
)
from headrace.storage.errors import UnavailableError

_MOVED = (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress)


class PositionExchange:
    """Exchange of positions, for one member."""

    def __init__(
        self,
        cluster: ClientCluster,
        membership: ConsumerMembership,
        readers: Mapping[TopicPartition, PartitionReader],
        orders: Mapping[str, TopicOrder],
        listener: PartitionKeyListener,
    ) -> None:
        self._cluster, self._membership = cluster, membership
        self._readers, self._orders, self._listener = readers, orders, listener
        self._epoch = 0
        self._others_need: frozenset[TopicPartition] = frozenset()

    async def exchange(self) -> None:
        """One request. UnavailableError if there is no answer; nothing is known then that was not known before."""
        self.forget_earlier_generation()
        needed = self._needed()
        reports = self._reports()
        if reports:
            await self._listener.on_partition_key_maybe_revoked(reports.keys())
        said: dict[str, list[PartitionPosition]] = {}
        for topic, index in sorted(needed | reports.keys()):
            position = reports[topic, index].position if (topic, index) in reports else NO_POSITION
            said.setdefault(topic, []).append(PartitionPosition(index, (topic, index) in needed, position))
        answer = await self._send(said)
        for partition, report in reports.items():
            self._readers[partition].last_report = report
        self._take(answer)
        self.forget_earlier_generation()

    def forget_earlier_generation(self) -> None:
        """Forget all positions if the member has another epoch by now: the coordinator of a new generation knows none.

        Each reader reports again, and a position of another partition counts only when the coordinator names it again.
        """
        if self._membership.epoch == self._epoch:
            return
        self._epoch = self._membership.epoch
        self._others_need = frozenset()
        for reader in self._readers.values():
            reader.last_report = None
        for order in self._orders.values():
            order.set_positions({})

    def _needed(self) -> set[TopicPartition]:
        return {
            (topic, index)
            for (topic, own), reader in self._readers.items()
            for index in self._orders[topic].needed(own, has_begun=reader.has_begun)
        }

    def _reports(self) -> dict[TopicPartition, PositionReport]:
        found = {}
        for partition, reader in self._readers.items():
            topic, index = partition
            if not reader.has_begun or partition not in self._others_need or not self._orders[topic].knows(index):
                continue
            is_blocked = not reader.is_at_end and not self._orders[topic].may_deliver(index, reader.next_offset)
            if must_report(reader.report(), reader.last_report, at_end=reader.is_at_end, is_blocked=is_blocked):
                found[partition] = reader.report()
        return found

    async def _send(self, said: Mapping[str, list[PartitionPosition]]) -> dict[TopicPartition, int]:
        """The position of each partition that any member needs."""
        member = self._membership
        body = encode_position_request(GroupPositionRequest(member.group_id, self._epoch, member.member_id, said))
        frame = Frame(GROUP_POSITION_KEY, VERSION, body, flexible=False)
        try:
            answer = decode_position_response(await self._cluster.send(await member.coordinator(), frame))
        except UnavailableError:
            member.lost_coordinator()
            raise
        if answer.error_code:
            if answer.error_code in _MOVED:
                member.lost_coordinator()
            raise UnavailableError(f"positions not exchanged: group={member.group_id} code={answer.error_code}")
        return {(topic, each.partition): each.position for topic, rows in answer.topics.items() for each in rows}

    def _take(self, answer: Mapping[TopicPartition, int]) -> None:
        self._others_need = frozenset(answer)
        by_topic: dict[str, dict[int, int]] = {topic: {} for topic in self._orders}
        for (topic, index), position in answer.items():
            if position >= 0 and topic in by_topic:
                by_topic[topic][index] = position
            elif (reader := self._readers.get((topic, index))) is not None:
                reader.last_report = None
        for topic, positions in by_topic.items():
            self._orders[topic].set_positions(positions)
