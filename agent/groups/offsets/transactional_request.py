"""TxnOffsetCommit (key 28, versions 0-5): offsets that become the group's if the producer's transaction commits.

Place: as OffsetCommit, at the group's coordinator.
Invariant: a member that the group has removed stores nothing: versions from 3 on say who it is (KIP-447). From version
5 on the group becomes part of the transaction by this request (KIP-890); before, by AddOffsetsToTxn.
Source: Kafka's message schemas; KIP-98, KIP-447, KIP-890.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode
from kio.schema.txn_offset_commit.v5.request import TxnOffsetCommitRequest
from kio.schema.txn_offset_commit.v5.response import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

from headrace.agent.cluster.view import ClusterView
from headrace.agent.groups.group_values import MemberRef
from headrace.agent.groups.names import is_legal_group_id
from headrace.agent.groups.offsets.group_offsets import GroupOffsets, PendingCommit
from headrace.agent.groups.offsets.judged_offsets import JudgedOffsets, StoredOffsets
from headrace.agent.groups.offsets.topics import resolve
from headrace.agent.limits.stored_ids import storable
from headrace.metastore.api.transactions import ProducerEpoch
from headrace.metastore.log.effective_configs import SettingsInForce
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply

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
        return reply(request, _response(schema, entity, judged.codes))

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


def _response(schema: Schema, entity: TxnOffsetCommitRequest, codes: list[ErrorCode]) -> TxnOffsetCommitResponse:
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
