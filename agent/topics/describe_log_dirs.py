"""DescribeLogDirs (key 35, versions 1-5): the size of each partition in the bucket.

Place: between the listener and the metastore, which looks up each partition.
Invariant: tools ask every agent and add the sizes, so an agent lists the partitions that it leads for the client's
zone: each partition once. Clients that see one virtual node get all partitions from it. The bucket is the only log
directory; it has no total size. Sizes are those of live batches, without bytes that compaction and the janitor will
free. The partitions are those of one image; an agent may lead 100,000 of them, so the answer is made in slices.
Source: KIP-113, KIP-827 (volume sizes; -1 is unknown), KIP-1066 (no directory is ever cordoned).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from kio.schema.describe_log_dirs.v5.request import DescribeLogDirsRequest
from kio.schema.describe_log_dirs.v5.response import (
    DescribeLogDirsPartition,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from kio.schema.errors import ErrorCode

from headrace.agent.cluster.routing import Routes
from headrace.agent.cluster.shared_address import SharedAddress, virtual_node
from headrace.agent.cluster.view import ClusterView
from headrace.agent.cluster.zone import zone_of
from headrace.agent.limits.work_slices import BLOCK, ELEMENT_UNITS, TOPIC_UNITS, WorkSlices
from headrace.agent.topics.metadata.sorted_topics import SortedTopics
from headrace.metastore.api.reports import ReportApi
from headrace.metastore.log.image import AgentImage
from headrace.protocol.errors import admin_error
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply
from headrace.storage.errors import HeadraceError

log = logging.getLogger(__name__)

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
