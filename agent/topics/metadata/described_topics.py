"""Finds the topics that a request about topics asks for: by name, by id, all of them, or page by page.

Place: under metadata.py, which may have to create topics that it names; and DescribeTopicPartitions (key 75, version
0), Metadata in pages for topics with many partitions. SortedTopics has the names of all topics in order, for answers
that list them.
Invariant: all topics of a result or page are from one image. The agent catches up first if its image lacks a name or
id; for a page it always does. A topic that a client may not describe is not said to exist. Names are sorted once for
each set of topics, in slices: 100,000 names take 50 ms.
Topics of pages are ordered by name, partitions by index, so a cursor is valid in any image; changes between two
pages may be visible or not. A page is of the ACLs of its time: it may skip 100,000 topics that the client may not
describe, in slices.
Source: KIP-4 (creation), KIP-516 (topic ids); KIP-966. No partition has eligible leader replicas: Java fails on
null, so the lists are empty.
"""

from __future__ import annotations

import bisect
import itertools
import uuid
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

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
from headrace.agent.limits.work_slices import BLOCK, TOPIC_UNITS, WorkSlices
from headrace.agent.topics.metadata.metadata_response import MetadataRendering, TopicError
from headrace.agent.topics.topic_creation import TopicCreation
from headrace.agent.topics.topic_rules import TopicRefusal, WantedTopic, why_illegal
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.segment_logs.topics import rendered_topic
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply
from headrace.storage.errors import UnavailableError


class SortedTopics:
    """The newest order; one per handler."""

    def __init__(self) -> None:
        self._topics: Mapping[str, TopicImage] | None = None
        self._names: Sequence[str] = ()

    async def names(self, image: MetadataImage, slices: WorkSlices) -> Sequence[str]:
        """Return the names of the image's topics, ascending."""
        topics = image.topics_by_name
        if topics is self._topics:
            return self._names
        names = await slices.in_order(list(topics))
        self._topics, self._names = topics, names
        return names


_DENIED = ErrorCode.topic_authorization_failed
AUTO_CREATION_SECONDS = 10.0
_FIRST_VERSION_WITH_TOPIC_IDS = 12

_Wanted = list[str | uuid.UUID]
_TOPIC = AclResource.TOPIC


class AskedTopics(NamedTuple):
    """The topics that a request names, before an image is chosen."""

    asked: Sequence[str | uuid.UUID] = ()
    wanted: frozenset[str | uuid.UUID] = frozenset()
    """Those that the client might describe when it asked; all that it named by id."""
    refused: Mapping[str, ErrorCode] = MappingProxyType({})
    """Why topics were not created."""
    created_again: frozenset[str | uuid.UUID] = frozenset()
    """Those that the request created again after they were deleted. A client that waits for the end of the deletion
    must see it once; Kafka creates topics after its answer."""
    reachable: bool = True
    """Whether a topic that the image lacks certainly does not exist."""
    malformed: Sequence[TopicError] = ()


class DescribedTopics:
    """One per handler."""

    def __init__(
        self,
        cluster: ClusterView,
        creation: TopicCreation,
        auto_create_topics: Callable[[], bool],
        authorizer: Authorizer | None = None,
    ) -> None:
        """`authorizer`: None if ACLs are not enforced."""
        self._cluster, self._creation = cluster, creation
        self._auto_create_topics = auto_create_topics
        self._authorizer = authorizer
        self._order = SortedTopics()

    async def every(self, image: MetadataImage, access: Access, slices: WorkSlices) -> list[TopicImage | TopicError]:
        """Return all topics of the image that the client may describe, by name."""
        names = await self._order.names(image, slices)
        found = image.topics_by_name
        topics: list[TopicImage | TopicError] = []
        block = BLOCK if access.is_full else BLOCK // TOPIC_UNITS
        for first in range(0, len(names), block):
            some = names[first : first + block]
            topics += [found[name] for name in some if access.allows(AclOperation.DESCRIBE, _TOPIC, name)]
            await slices.did(len(some) * BLOCK // block)
        return topics

    async def asked_for(self, request: Request, entity: Any, slices: WorkSlices) -> AskedTopics:
        """Return what the request names, after creating what it lets the agent create."""
        if request.api_version < _FIRST_VERSION_WITH_TOPIC_IDS and any(_asks_by_id(topic) for topic in entity.topics):
            return AskedTopics(malformed=[_malformed(topic) for topic in entity.topics])
        await slices.did(TOPIC_UNITS * len(entity.topics))  # to decode 10,000 took some 30 ms
        asked: _Wanted = list(dict.fromkeys(_name_or_id(topic) for topic in entity.topics))
        wanted = [
            each for each in asked if not isinstance(each, str) or self._may(request, AclOperation.DESCRIBE, each)
        ]
        reachable = True
        refused: dict[str, ErrorCode] = {}
        if _missing(self._cluster.image, wanted):
            try:
                await self._cluster.catch_up()
            except UnavailableError:
                reachable = False
        if reachable and self._auto_create_topics() and getattr(entity, "allow_auto_topic_creation", True):
            missing = _missing(self._cluster.image, wanted)
            if not self._may_create_all(request):
                names = [each for each in missing if isinstance(each, str)]
                refused = {name: _DENIED for name in names if not self._may(request, AclOperation.CREATE, name)}
                missing = [each for each in missing if each not in refused]
            deleted = self._cluster.image.deleted_names
            refused |= await self._create(missing)
            again = frozenset(each for each in missing if each in deleted and each not in refused)
            return AskedTopics(asked, frozenset(wanted), refused, again)
        return AskedTopics(asked, frozenset(wanted), refused, reachable=reachable)

    async def named(
        self, image: MetadataImage, access: Access, request: Request, named: AskedTopics, slices: WorkSlices
    ) -> list[TopicImage | TopicError]:
        """Return each topic that the request names, as it is in the image."""
        topics: list[TopicImage | TopicError] = [*named.malformed]
        for each in named.asked:
            await slices.did(TOPIC_UNITS)
            found = _find(image, each, named) if each in named.wanted else None
            if isinstance(found, TopicImage) and not access.allows(AclOperation.DESCRIBE, _TOPIC, found.name):
                self._report_denial(request, found.name)
                found = None
            topics.append(_denied(each) if found is None else found)
        return topics

    def _report_denial(self, request: Request, name: str) -> None:
        if self._authorizer is not None:
            self._authorizer.denied(request, AclOperation.DESCRIBE, _TOPIC, name)

    def _may_create_all(self, request: Request) -> bool:
        """Return whether the client may create topics of any name. Denials are reported by name, not here."""
        if self._authorizer is None:
            return True
        return self._authorizer.access(request.connection).allows(AclOperation.CREATE, AclResource.CLUSTER)

    def _may(self, request: Request, operation: AclOperation, name: str) -> bool:
        return self._authorizer is None or self._authorizer.require(request, operation, _TOPIC, name)

    async def _create(self, missing: _Wanted) -> dict[str, ErrorCode]:
        """Create topics that were requested by name; the error code of each that could not be created."""
        wanted = [WantedTopic(name, self._creation.new_topic_id()) for name in missing if isinstance(name, str)]
        if not wanted:
            return {}
        deadline = self._creation.clock.monotonic() + AUTO_CREATION_SECONDS
        judgements = await self._creation.create(wanted, deadline=deadline, is_automatic=True)
        return {
            topic.name: judged.code
            for topic, judged in zip(wanted, judgements, strict=True)
            if isinstance(judged, TopicRefusal)
        }


def _asks_by_id(topic: Any) -> bool:
    return topic.name is None or getattr(topic, "topic_id", None) is not None


def _name_or_id(topic: Any) -> str | uuid.UUID:
    topic_id = getattr(topic, "topic_id", None)
    return topic_id if topic_id is not None else topic.name or ""


def _malformed(topic: Any) -> TopicError:
    return TopicError(topic.name, topic.topic_id, ErrorCode.invalid_request)


def _denied(name_or_id: str | uuid.UUID) -> TopicError:
    """Return no more than what the request said."""
    if isinstance(name_or_id, str):
        return TopicError(name_or_id, None, _DENIED)
    return TopicError(None, name_or_id, _DENIED)


def _lookup(image: MetadataImage, name_or_id: str | uuid.UUID) -> TopicImage | None:
    """A rendered topic is found only by name or id; as in Kafka, the list of all topics does not show it."""
    if (rendered := rendered_topic(name_or_id)) is not None:
        return rendered
    if isinstance(name_or_id, uuid.UUID):
        return image.topics_by_id.get(name_or_id)
    return image.topics_by_name.get(name_or_id)


def _missing(image: MetadataImage, wanted: _Wanted) -> _Wanted:
    return [name_or_id for name_or_id in wanted if _lookup(image, name_or_id) is None]


def _find(image: MetadataImage, name_or_id: str | uuid.UUID, named: AskedTopics) -> TopicImage | TopicError:
    topic = None if name_or_id in named.created_again else _lookup(image, name_or_id)
    if topic is not None:
        return topic
    if isinstance(name_or_id, uuid.UUID):
        code = ErrorCode.unknown_topic_id if named.reachable else ErrorCode.leader_not_available
        return TopicError(None, name_or_id, code)
    if why_illegal(name_or_id):
        code = ErrorCode.invalid_topic_exception
    elif not named.reachable:
        code = ErrorCode.leader_not_available  # it may exist: clients retry
    else:
        code = named.refused.get(name_or_id, ErrorCode.unknown_topic_or_partition)
    return TopicError(name_or_id, None, code)


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
            topic = _found(routes.image, name)
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
            self._topics.append(_refused(self._schema, name, _why_no_partitions(name, is_reachable=is_reachable)))
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


def _found(image: MetadataImage, name: str) -> TopicImage | None:
    return rendered_topic(name) or image.topics_by_name.get(name)


def _why_no_partitions(name: str, *, is_reachable: bool) -> ErrorCode:
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
