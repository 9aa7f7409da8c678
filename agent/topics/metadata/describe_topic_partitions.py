"""DescribeTopicPartitions (key 75, version 0): Metadata in pages, for topics with many partitions.

Place: answered from the image, after catching up with the end of the log.
Invariant: topics are ordered by name, partitions by index, so a cursor is valid in any image; changes between two
pages may be visible or not. A page is of one image, and of the ACLs of that time: it may skip 100,000 topics that the
client may not describe, in slices.
Source: KIP-966. No partition has eligible leader replicas: Java fails on null, so the lists are empty.
"""

from __future__ import annotations

import bisect
import itertools
from typing import Any

from kio.schema.describe_topic_partitions.v0.request import DescribeTopicPartitionsRequest
from kio.schema.describe_topic_partitions.v0.response import Cursor, DescribeTopicPartitionsResponseTopic
from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.access import FULL_ACCESS, Access
from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.access.authorization.operations import NOT_ASKED, AclOperation, AclResource
from headrace.agent.cluster.routing import Routes
from headrace.agent.cluster.shared_address import SharedAddress, virtual_node
from headrace.agent.cluster.view import ClusterView
from headrace.agent.cluster.zone import zone_of
from headrace.agent.limits.work_slices import TOPIC_UNITS, WorkSlices
from headrace.agent.topics.metadata.metadata_response import MetadataRendering
from headrace.agent.topics.metadata.sorted_topics import SortedTopics
from headrace.agent.topics.topic_names import why_illegal
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.segment_logs.topics import rendered_topic
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply
from headrace.storage.errors import UnavailableError

PARTITIONS_MAX = 2_000
"""max.request.partition.size.limit: the maximum page size, regardless of the request."""

Position = tuple[str, int]
"""(topic name, partition index) of the first partition to show."""


class DescribeTopicPartitions:
    """List topics with their partitions, a page at a time."""

    def __init__(self, cluster: ClusterView, shared: SharedAddress | None, authorizer: Authorizer | None) -> None:
        """`authorizer`: None if ACLs are not enforced."""
        self._authorizer = authorizer
        self._cluster = cluster
        self._shared = shared
        self._order = SortedTopics()

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, DescribeTopicPartitionsRequest)
        cursor = None if entity.cursor is None else (entity.cursor.topic_name, entity.cursor.partition_index)
        asked = {topic.name for topic in entity.topics}
        if cursor is not None and cursor[1] < 0:
            topics = tuple(_refused(schema, name, ErrorCode.invalid_request) for name in sorted(asked or {cursor[0]}))
            return reply(request, schema.response(topics=topics, next_cursor=None))
        routes, is_reachable = await self._newest()
        slices, access = WorkSlices(), self._access(request)
        page = _Page(
            self._rendering(request, schema, routes, access),
            min(max(entity.response_partition_limit, 1), PARTITIONS_MAX),
        )
        names = sorted(asked) if asked else await self._order.names(routes.image, slices)
        begin = 0 if cursor is None else bisect.bisect_left(names, cursor[0])
        for name in itertools.islice(names, begin, None):
            await slices.did(TOPIC_UNITS)
            if not access.allows(AclOperation.DESCRIBE, AclResource.TOPIC, name):
                if asked:
                    page.refuse(name)
                    self._report_denial(request, name)
                continue
            first = cursor[1] if cursor is not None and name == cursor[0] else 0
            topic = _find(routes.image, name)
            for cost in routes.steps(topic, page.zone) if topic is not None else ():
                await slices.did(cost)
            page.add(name, topic, first, is_reachable=is_reachable)
            if page.is_full:
                break
        return reply(request, page.response())

    def _report_denial(self, request: Request, name: str) -> None:
        if self._authorizer is not None:
            self._authorizer.denied(request, AclOperation.DESCRIBE, AclResource.TOPIC, name)

    def _access(self, request: Request) -> Access:
        return FULL_ACCESS if self._authorizer is None else self._authorizer.access(request.connection)

    async def _newest(self) -> tuple[Routes, bool]:
        """The newest image with its routes, and whether a topic that it lacks certainly does not exist."""
        try:
            await self._cluster.catch_up()
        except UnavailableError:
            return self._cluster.routes, False
        return self._cluster.routes, True

    def _rendering(self, request: Request, schema: Schema, routes: Routes, access: Access) -> MetadataRendering:
        return MetadataRendering(
            routes,
            schema,
            self._cluster.cluster_id,
            zone_of(request.client_id),
            request.connection.listener,
            virtual_node(self._shared, request.connection.listener),
            topic_operations=True,
            cluster_operations=False,
            access=access,
        )


class _Page:
    """Collects topics until the page is full, then sets the cursor."""

    def __init__(self, rendering: MetadataRendering, limit: int) -> None:
        self._rendering = rendering
        self._schema = rendering.schema
        self.zone = rendering.zone
        self._left = limit
        self._topics: list[DescribeTopicPartitionsResponseTopic] = []
        self._next: Position | None = None

    def add(self, name: str, topic: TopicImage | None, first: int, *, is_reachable: bool) -> None:
        """Add the topic's partitions from `first` on, as many as fit."""
        if topic is None:
            self._topics.append(_refused(self._schema, name, _why_missing(name, is_reachable=is_reachable)))
        elif not self._left:
            self._next = (name, first)
        else:
            self._add_partitions(topic, first)

    def refuse(self, name: str) -> None:
        """Add a topic that the client may not describe."""
        self._topics.append(_refused(self._schema, name, ErrorCode.topic_authorization_failed))

    @property
    def is_full(self) -> bool:
        """Whether the cursor is set."""
        return self._next is not None

    def _add_partitions(self, topic: TopicImage, first: int) -> None:
        indexes = [index for index in topic.listed if index >= first]
        shown = indexes[: self._left]
        self._left -= len(shown)
        if len(shown) < len(indexes):
            self._next = (topic.name, indexes[len(shown)])
        self._topics.append(
            self._schema.make(
                DescribeTopicPartitionsResponseTopic,
                error_code=ErrorCode.none,
                name=topic.name,
                topic_id=topic.topic_id,
                is_internal=rendered_topic(topic.name) is not None,
                partitions=tuple(self._rendering.partition(topic, index) for index in shown),
                topic_authorized_operations=self._rendering.operations(topic),
            )
        )

    def response(self) -> Any:
        """The response entity."""
        cursor = None
        if self._next is not None:
            cursor = self._schema.make(Cursor, topic_name=self._next[0], partition_index=self._next[1])
        return self._schema.response(topics=tuple(self._topics), next_cursor=cursor)


def _find(image: MetadataImage, name: str) -> TopicImage | None:
    return rendered_topic(name) or image.topics_by_name.get(name)


def _why_missing(name: str, *, is_reachable: bool) -> ErrorCode:
    if why_illegal(name):
        return ErrorCode.invalid_topic_exception
    return ErrorCode.unknown_topic_or_partition if is_reachable else ErrorCode.leader_not_available


def _refused(schema: Schema, name: str, code: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    return schema.make(
        DescribeTopicPartitionsResponseTopic,
        error_code=code,
        name=name,
        topic_id=None,
        is_internal=False,
        partitions=(),
        topic_authorized_operations=NOT_ASKED,
    )
