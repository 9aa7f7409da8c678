"""OffsetCommit (key 8, versions 2-10): by name, from version 10 by topic id.

Place: request fields to committed offsets by partition key, then group_offsets.py.
Invariant: a partition that is refused for itself does not keep the offsets of others from being
stored; those are stored all together or not at all. Versions 2-4 name a retention time: it is ignored,
as Kafka's newer brokers do (KIP-211).
Source: Kafka's message schemas, KIP-848 (topic ids).
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode
from kio.schema.offset_commit.v10.request import OffsetCommitRequest
from kio.schema.offset_commit.v10.response import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

from headrace.agent.cluster.view import ClusterView
from headrace.agent.groups.group_values import MemberRef
from headrace.agent.groups.offsets.group_offsets import GroupOffsets
from headrace.agent.groups.offsets.judged_offsets import JudgedOffsets, StoredOffsets
from headrace.agent.groups.offsets.topics import name_or_id, resolve
from headrace.agent.limits.stored_ids import storable
from headrace.metastore.log.effective_configs import SettingsInForce
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply

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
