"""The requests for committed offsets: OffsetCommit, TxnOffsetCommit, OffsetFetch.

OffsetCommit (key 8, versions 2-10), TxnOffsetCommit (28, versions 0-5): offsets that become the group's if the
producer's transaction commits; OffsetFetch (9, versions 1-10), several groups from 8 on.

Place: request fields to offsets by partition key and back, around group_offsets.py, at the group's coordinator.
Topics are named, from version 10 of OffsetCommit and OffsetFetch on by id.
Invariant: a partition that is refused for itself does not keep the offsets of others from being stored; those are
stored all together or not at all. Versions 2-4 of OffsetCommit name a retention time: it is ignored, as Kafka's
newer brokers do (KIP-211).
A member that the group has removed stores nothing: versions of TxnOffsetCommit from 3 on say who it is (KIP-447).
From version 5 on the group becomes part of the transaction by this request (KIP-890); before, by AddOffsetsToTxn.
Keys carry the topic's number, so a deleted topic's offsets are never shown for its successor of the same name. With
require_stable a partition with an offset that an open transaction may commit is UNSTABLE_OFFSET_COMMIT: the client
asks again, instead of reading what the transaction has processed (KIP-447).
Source: Kafka's message schemas; KIP-98, KIP-447, KIP-709 (several groups), KIP-848 (topic ids), KIP-890.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from kio.schema.errors import ErrorCode
from kio.schema.offset_commit.v10.request import OffsetCommitRequest
from kio.schema.offset_commit.v10.response import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kio.schema.offset_fetch.v7.request import OffsetFetchRequest as OneGroupRequest
from kio.schema.offset_fetch.v7.request import OffsetFetchRequestTopic
from kio.schema.offset_fetch.v7.response import OffsetFetchResponsePartition, OffsetFetchResponseTopic
from kio.schema.offset_fetch.v10.request import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from kio.schema.offset_fetch.v10.response import (
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from kio.schema.txn_offset_commit.v5.request import TxnOffsetCommitRequest
from kio.schema.txn_offset_commit.v5.response import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

from headrace.agent.cluster.view import ClusterView
from headrace.agent.groups.coordinators import elect
from headrace.agent.groups.group_values import MemberRef, is_legal_group_id
from headrace.agent.groups.offsets.group_offsets import GroupOffsets, PendingCommit
from headrace.agent.groups.offsets.judged_offsets import (
    JudgedOffsets,
    StoredOffsets,
    name_or_id,
    resolve,
    topic_by_number,
)
from headrace.agent.limits.client_texts import storable
from headrace.agent.limits.work_slices import ELEMENT_UNITS, WorkSlices
from headrace.metastore.api.groups import CommittedOffset
from headrace.metastore.api.transactions import ProducerEpoch
from headrace.metastore.keys import split_partition_key
from headrace.metastore.log.effective_configs import SettingsInForce
from headrace.metastore.log.image import MetadataImage
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply
from headrace.storage.errors import UnavailableError

_FIRST_BY_ID = 10


class OffsetCommit:
    """Commit the offsets of a group."""

    def __init__(self, offsets: GroupOffsets, cluster: ClusterView, in_force: SettingsInForce) -> None:
        self._offsets = offsets
        self._cluster = cluster
        self._in_force = in_force

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, OffsetCommitRequest)
        by_id = request.api_version >= _FIRST_BY_ID
        topics = await resolve(self._cluster, (name_or_id(topic, by_id=by_id) for topic in entity.topics), by_id=by_id)
        commit = JudgedOffsets.of(topics, entity, self._in_force.current().offset_metadata_max_bytes, by_id=by_id)
        stored: StoredOffsets | ErrorCode = ErrorCode.invalid_group_id
        if storable(entity.group_id):
            member = MemberRef(
                entity.member_id, getattr(entity, "group_instance_id", None), entity.generation_id_or_member_epoch
            )
            stored = await self._offsets.commit(entity.group_id, member, commit.offsets, version=request.api_version)
        commit.settle(stored, ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition)
        return reply(request, _response(schema, entity, commit.codes))


def _response(schema: Schema, entity: OffsetCommitRequest, codes: list[ErrorCode]) -> OffsetCommitResponse:
    """`codes` in the order of the request's partitions."""
    each = iter(codes)
    topics = tuple(
        schema.make(
            OffsetCommitResponseTopic,
            name=getattr(topic, "name", None),
            topic_id=getattr(topic, "topic_id", None),
            partitions=tuple(
                schema.make(OffsetCommitResponsePartition, partition_index=p.partition_index, error_code=next(each))
                for p in topic.partitions
            ),
        )
        for topic in entity.topics
    )
    return schema.make(OffsetCommitResponse, topics=topics)


FIRST_IMPLICIT = 5
_FIRST_WITH_ABORTABLE = 4


class TxnOffsetCommit:
    """Add the offsets of a group to a transaction."""

    def __init__(self, offsets: GroupOffsets, cluster: ClusterView, in_force: SettingsInForce) -> None:
        self._offsets = offsets
        self._cluster = cluster
        self._in_force = in_force

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, TxnOffsetCommitRequest)
        topics = await resolve(self._cluster, (topic.name for topic in entity.topics), by_id=False)
        judged = JudgedOffsets.of(topics, entity, self._in_force.current().offset_metadata_max_bytes)
        judged.settle(await self._store(entity, judged, request.api_version), ErrorCode.unknown_topic_or_partition)
        return reply(request, _txn_response(schema, entity, judged.codes))

    async def _store(
        self, entity: TxnOffsetCommitRequest, judged: JudgedOffsets, version: int
    ) -> StoredOffsets | ErrorCode:
        if not is_legal_group_id(entity.group_id):
            return ErrorCode.invalid_group_id
        if not entity.transactional_id or not storable(entity.transactional_id):
            return ErrorCode.invalid_request
        member = MemberRef(
            getattr(entity, "member_id", ""),
            getattr(entity, "group_instance_id", None),
            getattr(entity, "generation_id", -1),
        )
        pending = PendingCommit(
            entity.transactional_id,
            ProducerEpoch(entity.producer_id, entity.producer_epoch),
            adds_group=version >= FIRST_IMPLICIT,
            knows_abortable=version >= _FIRST_WITH_ABORTABLE,
        )
        return await self._offsets.commit_pending(entity.group_id, member, judged.offsets, pending)


def _txn_response(schema: Schema, entity: TxnOffsetCommitRequest, codes: list[ErrorCode]) -> TxnOffsetCommitResponse:
    """`codes` in the order of the request's partitions."""
    each = iter(codes)
    topics = tuple(
        schema.make(
            TxnOffsetCommitResponseTopic,
            name=topic.name,
            partitions=tuple(
                schema.make(TxnOffsetCommitResponsePartition, partition_index=p.partition_index, error_code=next(each))
                for p in topic.partitions
            ),
        )
        for topic in entity.topics
    )
    return schema.make(TxnOffsetCommitResponse, topics=topics)


_AskedTopic = OffsetFetchRequestTopic | OffsetFetchRequestTopics
T = TypeVar("T")
P = TypeVar("P")
_FIRST_FETCH_BY_ID = 10
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
        by_id = schema.version >= _FIRST_FETCH_BY_ID
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
