"""OffsetFetch (key 9, versions 1-10): by name, from version 10 by topic id; several groups from 8 on.

Place: request fields to partition keys and back, around group_offsets.py.
Invariant: keys carry the topic's number, so a deleted topic's offsets are never shown for its
successor of the same name. With require_stable a partition with an offset that an open transaction may commit is
UNSTABLE_OFFSET_COMMIT: the client asks again, instead of reading what the transaction has processed (KIP-447).
Source: Kafka's message schemas, KIP-709 (several groups), KIP-848 (topic ids).
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from kio.schema.errors import ErrorCode
from kio.schema.offset_fetch.v7.request import OffsetFetchRequest as OneGroupRequest
from kio.schema.offset_fetch.v7.request import OffsetFetchRequestTopic
from kio.schema.offset_fetch.v7.response import OffsetFetchResponsePartition, OffsetFetchResponseTopic
from kio.schema.offset_fetch.v10.request import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from kio.schema.offset_fetch.v10.response import (
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

from headrace.agent.cluster.view import ClusterView
from headrace.agent.groups.coordinators import elect
from headrace.agent.groups.group_values import MemberRef
from headrace.agent.groups.offsets.group_offsets import GroupOffsets
from headrace.agent.groups.offsets.topics import name_or_id, resolve, topic_by_number
from headrace.agent.limits.stored_ids import storable
from headrace.agent.limits.work_slices import ELEMENT_UNITS, WorkSlices
from headrace.metastore.api.groups import CommittedOffset
from headrace.metastore.keys import split_partition_key
from headrace.metastore.log.image import MetadataImage
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply
from headrace.storage.errors import UnavailableError

_AskedTopic = OffsetFetchRequestTopic | OffsetFetchRequestTopics
T = TypeVar("T")
P = TypeVar("P")
_FIRST_BY_ID = 10
_FIRST_OF_SEVERAL_GROUPS = 8
_FIRST_WITH_GROUP_ERROR = 2


class _PartitionAnswer(NamedTuple):
    """A partition's answer; `stored` None: nothing was ever committed."""

    partition_index: int
    stored: CommittedOffset | None
    code: ErrorCode = ErrorCode.none


@dataclass(frozen=True, slots=True)
class _Topic:
    name: str | None
    topic_id: uuid.UUID | None
    partitions: list[_PartitionAnswer]


class OffsetFetch:
    """Return the committed offsets of groups."""

    def __init__(self, offsets: GroupOffsets, cluster: ClusterView) -> None:
        self._offsets = offsets
        self._cluster = cluster

    async def __call__(self, request: Request) -> Response:
        if request.api_version < _FIRST_OF_SEVERAL_GROUPS:
            return await self._of_one_group(request)
        schema, entity = decode(request, OffsetFetchRequest)
        groups, slices = [], WorkSlices()
        for group in entity.groups:
            await elect(self._cluster.routes, group.group_id, slices)
            groups.append(await self._group(schema, group, slices, stable=entity.require_stable))
        return reply(request, schema.response(groups=tuple(groups)))

    async def _of_one_group(self, request: Request) -> Response:
        schema, entity = decode(request, OneGroupRequest)
        stable, slices = getattr(entity, "require_stable", False), WorkSlices()
        code, topics = await self._fetch(entity.group_id, entity.topics, None, slices, by_id=False, stable=stable)
        if code is not ErrorCode.none and request.api_version < _FIRST_WITH_GROUP_ERROR:
            topics = [
                _Topic(t.name, None, [_PartitionAnswer(i, None, code) for i in t.partition_indexes])
                for t in entity.topics or ()
            ]
        response = schema.response(
            topics=await _rendered(schema, topics, OffsetFetchResponseTopic, OffsetFetchResponsePartition, slices),
            error_code=code,
        )
        return reply(request, response)

    async def _group(
        self, schema: Schema, group: OffsetFetchRequestGroup, slices: WorkSlices, *, stable: bool
    ) -> OffsetFetchResponseGroup:
        by_id = schema.version >= _FIRST_BY_ID
        code, topics = await self._fetch(
            group.group_id, group.topics, _member(group), slices, by_id=by_id, stable=stable
        )
        return schema.make(
            OffsetFetchResponseGroup,
            group_id=group.group_id,
            topics=await _rendered(schema, topics, OffsetFetchResponseTopics, OffsetFetchResponsePartitions, slices),
            error_code=code,
        )

    async def _fetch(
        self,
        group_id: str,
        asked: Sequence[_AskedTopic] | None,
        member: MemberRef | None,
        slices: WorkSlices,
        *,
        by_id: bool,
        stable: bool,
    ) -> tuple[ErrorCode, list[_Topic]]:
        if not storable(group_id):
            return ErrorCode.invalid_group_id, []
        if asked is None:
            return await self._fetch_all(group_id, member, slices, stable=stable)
        return await self._fetch_some(group_id, asked, member, by_id=by_id, stable=stable)

    async def _fetch_some(
        self, group_id: str, asked: Sequence[_AskedTopic], member: MemberRef | None, *, by_id: bool, stable: bool
    ) -> tuple[ErrorCode, list[_Topic]]:
        topics = await resolve(self._cluster, (name_or_id(topic, by_id=by_id) for topic in asked), by_id=by_id)
        if not by_id and topics.missing is ErrorCode.unknown_topic_or_partition:
            missing = ErrorCode.none  # by name, Kafka says of an unknown topic that nothing was committed
        else:
            missing = topics.missing
        wanted: list[tuple[_AskedTopic, list[tuple[int, int | None]], ErrorCode]] = []
        for topic in asked:
            found = topics.found.get(name_or_id(topic, by_id=by_id))
            keys: list[tuple[int, int | None]] = [
                (index, found.key(index) if found else None) for index in topic.partition_indexes
            ]
            wanted.append((topic, keys, ErrorCode.none if found else missing))
        stored = await self._offsets.fetch(
            group_id, sorted({key for _, keys, _ in wanted for _, key in keys if key is not None}), member
        )
        if isinstance(stored, ErrorCode):
            return stored, []
        by_key: dict[int | None, CommittedOffset] = {offset.partition_key: offset for offset in stored}
        return ErrorCode.none, [
            _Topic(
                getattr(topic, "name", None),
                getattr(topic, "topic_id", None),
                [_answer(index, by_key.get(key), code, stable=stable) for index, key in keys],
            )
            for topic, keys, code in wanted
        ]

    async def _fetch_all(
        self, group_id: str, member: MemberRef | None, slices: WorkSlices, *, stable: bool
    ) -> tuple[ErrorCode, list[_Topic]]:
        stored = await self._offsets.fetch(group_id, None, member)
        if isinstance(stored, ErrorCode):
            return stored, []
        by_topic: defaultdict[int, list[_PartitionAnswer]] = defaultdict(list)
        for offset in stored:
            await slices.did(ELEMENT_UNITS)
            if offset.offset < 0 and not stable:
                continue
            topic_number, index = split_partition_key(offset.partition_key)
            by_topic[topic_number].append(_answer(index, offset, ErrorCode.none, stable=stable))
        topics = await _named(self._cluster.image, by_topic, slices)
        if len(topics) < len(by_topic):
            try:
                topics = await _named(await self._cluster.catch_up(), by_topic, slices)
            except UnavailableError:
                return ErrorCode.coordinator_load_in_progress, []
        return ErrorCode.none, topics


async def _named(
    image: MetadataImage, by_topic: Mapping[int, list[_PartitionAnswer]], slices: WorkSlices
) -> list[_Topic]:
    """Return the topics that are in the image."""
    topics = []
    for number, partitions in by_topic.items():
        topic = topic_by_number(image, number)
        if topic is not None:
            topics.append(_Topic(topic.name, topic.topic_id, partitions))
        await slices.did(ELEMENT_UNITS)
    return topics


def _answer(index: int, stored: CommittedOffset | None, code: ErrorCode, *, stable: bool) -> _PartitionAnswer:
    """`stable`: UNSTABLE_OFFSET_COMMIT instead of an offset that changes if a transaction commits."""
    if stable and stored is not None and stored.is_pending:
        return _PartitionAnswer(index, None, ErrorCode.unstable_offset_commit)
    return _PartitionAnswer(index, stored, code)


def _member(group: OffsetFetchRequestGroup) -> MemberRef | None:
    """Return who asks, where the group's protocol wants that checked (version 9 on); an admin says nothing."""
    member_id, member_epoch = getattr(group, "member_id", None), getattr(group, "member_epoch", -1)
    return MemberRef(member_id or "", None, member_epoch) if member_id or member_epoch >= 0 else None


async def _rendered(
    schema: Schema, topics: list[_Topic], topic_class: type[T], partition_class: type[P], slices: WorkSlices
) -> tuple[T, ...]:
    """The classes' names differ between versions."""

    def shown(partition: _PartitionAnswer) -> P:
        stored = partition.stored
        return schema.make(
            partition_class,
            partition_index=partition.partition_index,
            committed_offset=-1 if stored is None else stored.offset,
            committed_leader_epoch=-1 if stored is None else stored.leader_epoch,
            metadata="" if stored is None else stored.metadata,
            error_code=partition.code,
        )

    made = []
    for topic in topics:
        partitions = await slices.each(shown, topic.partitions)
        made.append(schema.make(topic_class, name=topic.name, topic_id=topic.topic_id, partitions=partitions))
        await slices.did(ELEMENT_UNITS)
    return tuple(made)
