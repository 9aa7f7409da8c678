"""The requests about the metadata log as a whole: its quorum, its snapshots, the feature levels that its records may
use.

DescribeQuorum (key 55, versions 0-2), FetchSnapshot (59, versions 0-1), UpdateFeatures (57, versions 0-2).

Place: the quorum is answered from the metastore's controller lease, the agents' leases and this agent's image.
Snapshots are for readers of `__cluster_metadata` that start at its beginning after a snapshot has replaced the log's
start. Feature levels become FeatureLevelRecords in the log.
Invariant: the leader is the active controller and the only voter in the answer: Postgres replaces the other voters.
Agents are observers, also fenced ones, with the state of their last heartbeats.
A snapshot's bytes are record batches, identical on every agent; a reader continues with the snapshot id of the first
part, or gets an error if that snapshot was replaced and then starts over.
All updates of feature levels in a request are made or none, decided on exactly the image that they follow. A level
is active only while every registered agent supports it; that of segment keys is refused while a running compactor is
known not to have it. A compactor that starts later, or that was silent for a minute, changes nothing: its swaps are
refused. The level of sealed secrets rises by `headrace storage seal-secrets` only, which seals what is stored;
before that it is not offered (protocol/api_versions.py).
Source: KIP-595, KIP-836 (times), KIP-853 (nodes); KIP-630 (an end offset of -1 asks for the newest snapshot, because
a reader cannot know its id otherwise); KIP-584, KIP-778 (upgrade types, validate only), KIP-1022 (one error for all,
version 2).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from kio.schema.describe_quorum.v2.request import DescribeQuorumRequest
from kio.schema.describe_quorum.v2.response import Listener, Node, PartitionData, ReplicaState, TopicData
from kio.schema.errors import ErrorCode
from kio.schema.fetch_snapshot.v1.request import FetchSnapshotRequest
from kio.schema.fetch_snapshot.v1.request import PartitionSnapshot as AskedPartition
from kio.schema.fetch_snapshot.v1.response import LeaderIdAndEpoch, PartitionSnapshot, SnapshotId, TopicSnapshot
from kio.schema.update_features.v1.response import UpdatableFeatureResult
from kio.schema.update_features.v2.request import FeatureUpdateKey, UpdateFeaturesRequest

from headrace.agent.cluster.log_change import LogChange, Verdict
from headrace.agent.cluster.view import ClusterView
from headrace.metastore.api.agents import (
    COMMIT_SHARDS,
    LOW_LATENCY,
    METADATA_FORMAT,
    SEALED_SECRETS,
    SEGMENT_KEYS,
    TRANSACTION_VERSION,
)
from headrace.metastore.api.cluster import ClusterApi, MetadataLogApi, MetadataRecord
from headrace.metastore.api.controller import ControllerLease
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.reports import AgentLease
from headrace.metastore.log.features import PARTITION_CHANGES_FORMAT, change_feature
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.metadata_topic import METADATA_TOPIC, NEWEST_SNAPSHOT, render_batch
from headrace.metastore.log.snapshot import decode_snapshot
from headrace.protocol.errors import error_code, feature_error
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply
from headrace.storage.errors import HeadraceError, InvalidError, NotFoundError, UnsupportedFeatureError

PIECE_BYTES_MAX = 8 * 1024 * 1024
BATCH_RECORDS = 1_000


class FetchSnapshot:
    """The handler. Keeps the last requested snapshot in memory."""

    def __init__(self, api: MetadataLogApi) -> None:
        self._api = api
        self._end_offset = NEWEST_SNAPSHOT
        self._rendered = b""

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, FetchSnapshotRequest)
        topics = []
        times = Counter((topic.name, p.partition) for topic in entity.topics for p in topic.partitions)
        for topic in entity.topics:
            partitions = [
                await self._answer(schema, topic.name, p, entity.max_bytes, times[topic.name, p.partition])
                for p in topic.partitions
            ]
            topics.append(schema.make(TopicSnapshot, name=topic.name, partitions=tuple(partitions)))
        return reply(request, schema.response(error_code=ErrorCode.none, topics=tuple(topics)))

    async def _answer(
        self, schema: Schema, topic: str, asked: AskedPartition, max_bytes: int, times: int
    ) -> PartitionSnapshot:
        """`times`: how often the request names the partition; each occurrence would get a whole part."""
        code, position, piece = ErrorCode.none, asked.position, b""
        if topic != METADATA_TOPIC or asked.partition != 0:
            code = ErrorCode.unknown_topic_or_partition
        elif times > 1:
            code = ErrorCode.invalid_request
        else:
            try:
                await self._load(asked.snapshot_id.end_offset)
            except NotFoundError:
                code = ErrorCode.snapshot_not_found
            except HeadraceError as error:
                code = ErrorCode(error_code(error))
        if code is ErrorCode.none and not 0 <= position < len(self._rendered):
            code = ErrorCode.position_out_of_range
        if code is ErrorCode.none:
            piece = self._rendered[position : position + max(1, min(max_bytes, PIECE_BYTES_MAX))]
        return schema.make(
            PartitionSnapshot,
            index=asked.partition,
            error_code=code,
            snapshot_id=schema.make(SnapshotId, end_offset=self._end_offset if piece else NEWEST_SNAPSHOT, epoch=0),
            current_leader=schema.make(LeaderIdAndEpoch, leader_id=-1, leader_epoch=-1),
            size=len(self._rendered) if piece else -1,
            position=position,
            unaligned_records=piece,
        )

    async def _load(self, end_offset: int) -> None:
        """Load the requested snapshot; NotFoundError if it is not the newest, or there is none."""
        if end_offset != NEWEST_SNAPSHOT and end_offset == self._end_offset:
            return
        snapshot = await self._api.newest_snapshot()
        if snapshot is None or end_offset not in (NEWEST_SNAPSHOT, snapshot.end_offset):
            raise NotFoundError(f"metadata snapshot does not exist: end_offset={end_offset}")
        if snapshot.end_offset != self._end_offset:
            rendered = await asyncio.to_thread(_render, snapshot.data)
            self._end_offset, self._rendered = snapshot.end_offset, rendered


def _render(data: bytes) -> bytes:
    """The snapshot's records as batches, numbered from 0."""
    _, records = decode_snapshot(data)
    starts = range(0, len(records), BATCH_RECORDS)
    return b"".join(render_batch(start, records[start : start + BATCH_RECORDS]) for start in starts)


UPGRADE = 1
_COMPACTORS_NEED = {
    SEGMENT_KEYS: 1,
    METADATA_FORMAT: PARTITION_CHANGES_FORMAT,
    TRANSACTION_VERSION: 1,
    LOW_LATENCY: 1,
}
"""The lowest levels for which running compactors are looked at."""


class UpdateFeatures:
    """Raise or lower the levels of features."""

    def __init__(self, change: LogChange, processes: ClusterApi) -> None:
        self._change, self._processes = change, processes

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, UpdateFeaturesRequest)
        verdict = await self._update(entity, request.received_at + entity.timeout.total_seconds())
        return reply(request, _response(schema, entity, *verdict))

    async def _update(self, entity: UpdateFeaturesRequest, deadline: float) -> Verdict:
        names = [update.feature for update in entity.feature_updates]
        if not names or len(set(names)) < len(names):
            return Verdict(ErrorCode.invalid_request, "name at least one feature, without duplicates")
        try:
            await self._refuse_for_compactors(entity.feature_updates)
        except HeadraceError as error:
            return Verdict(ErrorCode(feature_error(error)), str(error))
        refused: list[Verdict] = []

        def judge(image: MetadataImage) -> list[MetadataRecord]:
            refused.clear()
            try:
                records = _records(image, entity.feature_updates)
            except InvalidError as error:
                refused.append(Verdict(ErrorCode(feature_error(error)), str(error)))
                return []
            return [] if getattr(entity, "validate_only", False) else records

        verdict = await self._change.append(judge, deadline)
        return refused[0] if refused else verdict

    async def _refuse_for_compactors(self, updates: Sequence[FeatureUpdateKey]) -> None:
        """UnsupportedFeatureError if a running one lacks the level: its swaps would be refused, or it could not read
        the metadata log, or inline files."""
        for update in updates:
            lowest = _COMPACTORS_NEED.get(update.feature)
            if lowest is not None and update.max_version_level >= lowest:
                lacking = await self._processes.compactors_without(update.feature, update.max_version_level)
                if lacking:
                    raise UnsupportedFeatureError(
                        f"a compactor does not support the level: feature={update.feature}"
                        f" level={update.max_version_level} processes={','.join(lacking)}"
                    )


def _records(image: MetadataImage, updates: Sequence[FeatureUpdateKey]) -> list[MetadataRecord]:
    """The records to append; errors as change_feature's."""
    for update in updates:
        if update.feature == SEALED_SECRETS and update.max_version_level > 0 and SEALED_SECRETS not in image.features:
            raise UnsupportedFeatureError(
                f"`headrace storage seal-secrets` raises the level, and seals what is stored: feature={SEALED_SECRETS}"
            )
        if update.feature == COMMIT_SHARDS and update.max_version_level != image.commit_shards(0):
            raise UnsupportedFeatureError(
                f"`headrace storage grow-commit-shards` raises the level, and makes the shards: feature={COMMIT_SHARDS}"
            )
    changes = (
        change_feature(
            image, update.feature, max(update.max_version_level, 0), allow_downgrade=_allows_downgrade(update)
        )
        for update in updates
    )
    return [record for record in changes if record is not None]


def _allows_downgrade(update: FeatureUpdateKey) -> bool:
    """Version 0 has a flag, later versions a type: 2 safe and 3 unsafe downgrades, which are the same here."""
    return bool(getattr(update, "allow_downgrade", False)) or getattr(update, "upgrade_type", UPGRADE) != UPGRADE


def _response(schema: Schema, entity: UpdateFeaturesRequest, code: ErrorCode, message: str | None) -> Any:
    """Return the response; below version 2 each feature also has the error."""
    values: dict[str, Any] = {"error_code": code, "error_message": message}
    if schema.version < 2:
        values["results"] = tuple(
            schema.make(UpdatableFeatureResult, feature=update.feature, error_code=code, error_message=message)
            for update in entity.feature_updates
        )
    return schema.response(**values)


NEVER = -1
_NOBODY = ControllerLease(-1, 0, False)


class DescribeQuorum:
    """Answer DescribeQuorum as if the controllers were the voters of the metadata log."""

    def __init__(self, cluster: ClusterView, api: Metastore) -> None:
        self._cluster = cluster
        self._api = api

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, DescribeQuorumRequest)
        try:
            lease = await self._api.controller.describe_controller() or _NOBODY
            agents = await self._api.reports.agent_leases()
            await self._cluster.catch_up()
        except HeadraceError as error:
            code = ErrorCode(error_code(error))
            return reply(request, schema.response(error_code=code, error_message=str(error), topics=(), nodes=()))
        times = Counter[tuple[str, int]](
            (topic.topic_name, p.partition_index) for topic in entity.topics for p in topic.partitions
        )
        topics = tuple(
            schema.make(
                TopicData,
                topic_name=topic.topic_name,
                partitions=tuple(
                    self._partition(schema, topic.topic_name, p.partition_index, lease, agents, times)
                    for p in topic.partitions
                ),
            )
            for topic in entity.topics
        )
        nodes = self._nodes(schema, lease)
        return reply(
            request, schema.response(error_code=ErrorCode.none, error_message=None, topics=topics, nodes=nodes)
        )

    def _partition(
        self,
        schema: Schema,
        topic: str,
        index: int,
        lease: ControllerLease,
        agents: list[AgentLease],
        times: Counter[tuple[str, int]],
    ) -> PartitionData:
        """`times`: how often the request names each partition; only a unique one gets the list of agents."""
        image = self._cluster.image
        is_quorum = topic == METADATA_TOPIC and index == 0
        known = is_quorum and times[topic, index] == 1
        observers = tuple(
            _replica(schema, agent, image.offset) for agent in agents if known and agent.node_id != lease.controller_id
        )
        leader = AgentLease(lease.controller_id, image.offset, NEVER)
        voters = () if lease is _NOBODY else (_replica(schema, leader, image.offset),)
        code, message = ErrorCode.none, None
        if is_quorum and not known:
            code, message = ErrorCode.invalid_request, "duplicate partition"
        elif not known:
            code, message = ErrorCode.unknown_topic_or_partition, f"only {METADATA_TOPIC}-0 has a quorum"
        return schema.make(
            PartitionData,
            partition_index=index,
            error_code=code,
            error_message=message,
            leader_id=lease.controller_id if known else -1,
            leader_epoch=lease.controller_epoch if known else -1,
            high_watermark=image.offset if known else -1,
            current_voters=voters if known else (),
            observers=observers,
        )

    def _nodes(self, schema: Schema, lease: ControllerLease) -> tuple[Node, ...]:
        """Return the nodes, from version 2 on: the controller's addresses, if it is also an agent."""
        agent = self._cluster.image.agents.get(lease.controller_id)
        if schema.version < 2 or agent is None:
            return ()
        found = agent.listeners or (agent.endpoint(None),)
        listeners = tuple(schema.make(Listener, name=e.name, host=e.host, port=e.port) for e in found)
        return (schema.make(Node, node_id=agent.node_id, listeners=listeners),)


def _replica(schema: Schema, agent: AgentLease, high_watermark: int) -> ReplicaState:
    """The last fetch time is the last heartbeat; the time at which it was last caught up is unknown."""
    caught_up = agent.metadata_offset >= high_watermark
    return schema.make(
        ReplicaState,
        replica_id=agent.node_id,
        replica_directory_id=None,
        log_end_offset=agent.metadata_offset,
        last_fetch_timestamp=agent.last_contact_ms,
        last_caught_up_timestamp=agent.last_contact_ms if caught_up else NEVER,
    )
