"""The requests of tools about partitions: DescribeLogDirs (key 35), DescribeProducers (61), ElectLeaders (43).

Place: between the listener and the metastore, which looks up each partition: DescribeLogDirs (versions 1-5) has its
size in the bucket, DescribeProducers (version 0) the idempotent producers in its producer state. ElectLeaders
(versions 0-2) is answered from the image alone.
Invariant: tools ask every agent and add the sizes, so an agent lists the partitions that it leads for the client's
zone: each partition once. Clients that see one virtual node get all partitions from it. The bucket is the only log
directory; it has no total size. Sizes are those of live batches, without bytes that compaction and the janitor will
free. Any agent answers for the producers of any partition; this is the state that the next commit uses. An error of
one partition does not affect others.
Leadership follows from the set of live agents, so no election is ever needed: with a live agent, every partition has
its leader (ELECTION_NOT_NEEDED). As in Kafka, an answer for all partitions leaves those out.
The partitions of an answer are those of one image, and it is made in slices: an agent may lead 100,000 of them.
Source: KIP-113, KIP-827 (volume sizes; -1 is unknown), KIP-1066 (no directory is ever cordoned); KIP-664; KIP-460.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kio.schema.describe_log_dirs.v5.request import DescribeLogDirsRequest
from kio.schema.describe_log_dirs.v5.response import (
    DescribeLogDirsPartition,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from kio.schema.describe_producers.v0.request import DescribeProducersRequest
from kio.schema.describe_producers.v0.response import PartitionResponse, ProducerState, TopicResponse
from kio.schema.elect_leaders.v2.request import ElectLeadersRequest, TopicPartitions
from kio.schema.elect_leaders.v2.response import PartitionResult, ReplicaElectionResult
from kio.schema.errors import ErrorCode

from headrace.agent.cluster.log_change import Verdict
from headrace.agent.cluster.partition_names import RequestedPartition, Resolved, resolve
from headrace.agent.cluster.routing import Routes
from headrace.agent.cluster.shared_address import SharedAddress, virtual_node
from headrace.agent.cluster.view import ClusterView
from headrace.agent.cluster.zone import zone_of
from headrace.agent.limits.work_slices import BLOCK, ELEMENT_UNITS, TOPIC_UNITS, WorkSlices
from headrace.agent.topics.metadata.described_topics import SortedTopics
from headrace.metastore.api.reports import ProducerStatus, ReportApi
from headrace.metastore.log.image import AgentImage, TopicImage
from headrace.protocol.errors import admin_error
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply
from headrace.storage.errors import HeadraceError

log = logging.getLogger(__name__)

NO_EPOCH = -1
"""Kafka's value for a producer without a marker; coordinators have no epochs here."""


class _Found(NamedTuple):
    """The answer for one partition."""

    error: int
    producers: Sequence[ProducerStatus] = ()


class DescribeProducers:
    """List the producers that a partition remembers."""

    def __init__(self, cluster: ClusterView, metastore: ReportApi) -> None:
        self._cluster = cluster
        self._metastore = metastore

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, DescribeProducersRequest)
        asked: dict[str, dict[int, None]] = {}  # without duplicates: an answer is much longer than an index
        for topic in entity.topics:
            asked.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
        requested = [RequestedPartition(name, index, -1) for name, indexes in asked.items() for index in indexes]
        found = iter(await self._find(await resolve(self._cluster, requested)))
        slices, topics = WorkSlices(), []
        for name, indexes in asked.items():
            partitions = []
            for index in indexes:
                one = next(found)
                partitions.append(_producers_of(schema, index, one))
                await slices.did(ELEMENT_UNITS * (1 + len(one.producers)))
            topics.append(schema.make(TopicResponse, name=name, partitions=tuple(partitions)))
            await slices.did(ELEMENT_UNITS)
        return reply(request, schema.response(topics=tuple(topics)))

    async def _find(self, resolved: Sequence[Resolved]) -> list[_Found]:
        """One answer per partition, in order."""
        keys = sorted({one.key for one in resolved if not one.error})
        try:
            producers = dict(zip(keys, await self._metastore.describe_producers(keys), strict=True))
        except HeadraceError as error:
            log.warning("cannot describe producers: partitions=%d error=%s", len(keys), error)
            return [_Found(one.error or admin_error(error)) for one in resolved]
        return [_Found(one.error, producers.get(one.key, ())) for one in resolved]


def _producers_of(schema: Schema, index: int, found: _Found) -> PartitionResponse:
    return schema.make(
        PartitionResponse,
        partition_index=index,
        error_code=ErrorCode(found.error),
        error_message=None,
        active_producers=tuple(
            schema.make(
                ProducerState,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=NO_EPOCH,
                current_txn_start_offset=producer.transaction_start,
            )
            for producer in found.producers
        ),
    )


PREFERRED, UNCLEAN = 0, 1


class ElectLeaders:
    """Answer ElectLeaders: no election is needed."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, ElectLeadersRequest)
        code, results, slices = ErrorCode.none, list[ReplicaElectionResult](), WorkSlices()
        try:
            await self._cluster.catch_up()
            routes = self._cluster.routes
            if getattr(entity, "election_type", PREFERRED) not in (PREFERRED, UNCLEAN):
                code = ErrorCode.invalid_request
            else:
                for name, indexes in _by_topic(entity.topic_partitions or ()).items():
                    partitions = await _partitions(schema, routes, name, indexes, slices)
                    results.append(schema.make(ReplicaElectionResult, topic=name, partition_result=partitions))
        except HeadraceError as error:
            code = ErrorCode(admin_error(error))
        response = schema.response(error_code=code, replica_election_results=tuple(results))
        return reply(request, response)


def _by_topic(asked: Iterable[TopicPartitions]) -> dict[str, dict[int, None]]:
    """Return the indexes of each topic, without duplicates; the last list of a topic counts."""
    return {topic.topic: dict.fromkeys(topic.partitions) for topic in asked}


async def _partitions(
    schema: Schema, routes: Routes, name: str, indexes: Iterable[int], slices: WorkSlices
) -> tuple[PartitionResult, ...]:
    """Return the answer for each partition of a topic."""
    topic = routes.image.topics_by_name.get(name)
    for cost in () if topic is None else routes.steps(topic):
        await slices.did(cost)

    def shown(index: int) -> PartitionResult:
        verdict = _verdict(routes, topic, index)
        return schema.make(PartitionResult, partition_id=index, error_code=verdict.code, error_message=verdict.message)

    return await slices.each(shown, indexes, TOPIC_UNITS)


def _verdict(routes: Routes, topic: TopicImage | None, index: int) -> Verdict:
    key = None if topic is None else topic.key(index)
    if key is None:
        return Verdict(ErrorCode.unknown_topic_or_partition, "partition does not exist")
    if routes.leader(key) is None:
        return Verdict(ErrorCode.preferred_leader_not_available, "no live agent")
    return Verdict(ErrorCode.election_not_needed, "the leader follows from the live agents")


UNKNOWN_BYTES = -1
SIZES_AT_ONCE = 2_000
"""Partitions of one query."""


class _Led(NamedTuple):
    """A partition, with the size that this agent shows."""

    topic: str
    partition: int
    key: int


class DescribeLogDirs:
    """The handler. `log_dir`: the location of segment files, for people."""

    def __init__(self, cluster: ClusterView, metastore: ReportApi, log_dir: str, shared: SharedAddress | None) -> None:
        self._order = SortedTopics()
        self._cluster = cluster
        self._shared = shared
        self._metastore = metastore
        self._log_dir = log_dir

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, DescribeLogDirsRequest)
        slices = WorkSlices()
        asked: dict[str, set[int]] | None = None
        if entity.topics is not None:
            asked = {topic.topic: set(topic.partitions) for topic in entity.topics}
        everything = virtual_node(self._shared, request.connection.listener) is not None
        zone = zone_of(request.client_id)
        led = await self._led(self._cluster.routes, asked, zone, slices, everything=everything)
        code = ErrorCode.none
        topics: tuple[DescribeLogDirsTopic, ...] = ()
        try:
            topics = await self._topics(schema, led, slices)
        except HeadraceError as error:
            log.warning("cannot describe log dirs: partitions=%d error=%s", len(led), error)
            code = ErrorCode(admin_error(error))
        result = schema.make(
            DescribeLogDirsResult,
            error_code=code,
            log_dir=self._log_dir,
            topics=topics,
            total_bytes=UNKNOWN_BYTES,
            usable_bytes=UNKNOWN_BYTES,
            is_cordoned=False,
        )
        return reply(request, schema.response(error_code=ErrorCode.none, results=(result,)))

    async def _led(
        self,
        routes: Routes,
        asked: dict[str, set[int]] | None,
        zone: str | None,
        slices: WorkSlices,
        *,
        everything: bool,
    ) -> list[_Led]:
        """Requested partitions that exist and are led here, or of `everything`; by name of the topic, then by index."""
        image, found = routes.image, list[_Led]()
        names = await self._order.names(image, slices) if asked is None else sorted(image.topics_by_name.keys() & asked)
        for name in names:
            topic = image.topics_by_name[name]
            await slices.did(TOPIC_UNITS)
            leaders: Sequence[AgentImage | None] = ()
            if not everything:
                for cost in routes.steps(topic, zone):
                    await slices.did(cost)
                leaders = routes.leaders(topic, zone)
            indexes = topic.indexes
            for first in range(0, len(indexes), BLOCK):
                block = indexes[first : first + BLOCK]
                for index in block:
                    key = topic.key(index)
                    if key is None or (asked is not None and index not in asked[name]):
                        continue
                    leader = None if everything else leaders[index]
                    if everything or (leader is not None and leader.node_id == self._cluster.node_id):
                        found.append(_Led(name, index, key))
                await slices.did(len(block))
        return found

    async def _topics(
        self, schema: Schema, led: Sequence[_Led], slices: WorkSlices
    ) -> tuple[DescribeLogDirsTopic, ...]:
        """Return the topics of the answer, with the size of each partition that is still there."""
        by_topic: dict[str, list[DescribeLogDirsPartition]] = defaultdict(list)
        for first in range(0, max(1, len(led)), SIZES_AT_ONCE):  # without any, too: is the metastore there?
            some = led[first : first + SIZES_AT_ONCE]
            sizes = await self._metastore.partition_sizes([each.key for each in some])
            for each, size in zip(some, sizes, strict=True):
                if size >= 0:
                    by_topic[each.topic].append(_partition(schema, each.partition, size))
                await slices.did(ELEMENT_UNITS)

        def shown(topic: tuple[str, list[DescribeLogDirsPartition]]) -> DescribeLogDirsTopic:
            name, partitions = topic
            return schema.make(DescribeLogDirsTopic, name=name, partitions=tuple(partitions))

        return await slices.each(shown, by_topic.items())


def _partition(schema: Schema, index: int, size: int) -> DescribeLogDirsPartition:
    return schema.make(
        DescribeLogDirsPartition, partition_index=index, partition_size=size, offset_lag=0, is_future_key=False
    )
