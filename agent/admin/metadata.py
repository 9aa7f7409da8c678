"""Metadata (key 3, versions 0-13): topics, partitions and agents.

Place: a client's first request, and its request after every routing error.
Invariant: answered from one image, without a query; the agent catches up first only if the image lacks a requested
name or id. An answer without unknown topics is encoded once per (image, version, client
zone, listener, request body) and reused. Agents are shown with their addresses of the listener on which the request
came in (KIP-103). Partition counts go only to clients that ask for them.
Source: KIP-4, KIP-253 (counts), KIP-204/430 (authorized operations), KIP-516 (topic ids), KIP-1102 (top-level error).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.agent.admin.metadata_response import MetadataRendering, TopicError
from headrace.agent.admin.topic_counts import CountsOfTopics
from headrace.agent.admin.topic_creation import TopicCreation
from headrace.agent.admin.topic_names import why_illegal
from headrace.agent.admin.topic_rules import TopicRefusal, WantedTopic
from headrace.agent.cluster.shared_address import SharedAddress, virtual_node
from headrace.agent.cluster.view import ClusterView
from headrace.agent.cluster.zone import zone_of
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.log.rendered_topics import rendered_topic
from headrace.protocol.partition_counts import asks_for_counts, with_counts
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import decode, response_header
from headrace.storage.errors import UnavailableError

CACHED_ANSWERS_MAX = 64
CACHED_BODY_BYTES_MAX = 65_536
AUTO_CREATION_SECONDS = 10.0
_FIRST_VERSION_WITH_TOPIC_IDS = 12

_Wanted = list[str | uuid.UUID]
_CacheKey = tuple[int, str | None, str, bytes]


class Metadata:
    """The handler."""

    def __init__(
        self,
        cluster: ClusterView,
        creation: TopicCreation,
        auto_create_topics: Callable[[], bool],
        shared: SharedAddress | None = None,
        counts: CountsOfTopics | None = None,
    ) -> None:
        self._shared = shared
        self._counts = counts
        self._cluster = cluster
        self._creation = creation
        self._auto_create_topics = auto_create_topics
        self._cached_image: MetadataImage | None = None
        self._cached: dict[_CacheKey, Response] = {}

    async def __call__(self, request: Request) -> Response:
        zone = self._zone(request)
        key = _cache_key(request, zone)
        if key is not None and self._cached_image is self._cluster.image and (cached := self._cached.get(key)):
            return _with_correlation(request, cached)
        schema, entity = decode(request)
        image, topics = await self._topics(request, entity)
        rendering = MetadataRendering(
            self._cluster,
            schema,
            image,
            zone,
            request.connection.listener,
            virtual_node(self._shared, request.connection.listener),
            topic_operations=getattr(entity, "include_topic_authorized_operations", False),
            cluster_operations=getattr(entity, "include_cluster_authorized_operations", False),
        )
        header, body = schema.encode(request.correlation_id, rendering.response(topics))
        if self._counts is not None and schema.flexible and asks_for_counts(request.body):
            described = (self._counts(image, topic) for topic in topics if isinstance(topic, TopicImage))
            body = with_counts(bytes(body), described)
        response = Response([header, body])
        if key is not None and not any(isinstance(topic, TopicError) for topic in topics):
            self._keep(image, key, response)
        return response

    def _zone(self, request: Request) -> str | None:
        """The client's zone, if it has a live agent."""
        zone = zone_of(request.client_id)
        return zone if any(agent.rack == zone for agent in self._cluster.image.live_agents()) else None

    def _keep(self, image: MetadataImage, key: _CacheKey, response: Response) -> None:
        if self._cached_image is not image or len(self._cached) >= CACHED_ANSWERS_MAX:
            self._cached_image, self._cached = image, {}
        self._cached[key] = response

    async def _topics(self, request: Request, entity: Any) -> tuple[MetadataImage, list[TopicImage | TopicError]]:
        """Each requested topic, resolved on one image."""
        if entity.topics is None or (request.api_version == 0 and not entity.topics):
            image = self._cluster.image
            return image, [topic for _, topic in sorted(image.topics_by_name.items())]
        if request.api_version < _FIRST_VERSION_WITH_TOPIC_IDS and any(_asks_by_id(topic) for topic in entity.topics):
            return self._cluster.image, [_malformed(topic) for topic in entity.topics]
        wanted: _Wanted = list(dict.fromkeys(_name_or_id(topic) for topic in entity.topics))
        reachable = True
        refused: dict[str, ErrorCode] = {}
        if _missing(self._cluster.image, wanted):
            try:
                await self._cluster.catch_up()
            except UnavailableError:
                reachable = False
        if reachable and self._auto_create_topics() and getattr(entity, "allow_auto_topic_creation", True):
            refused = await self._create(_missing(self._cluster.image, wanted))
        image = self._cluster.image
        return image, [_find(image, name_or_id, refused, reachable) for name_or_id in wanted]

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


def _cache_key(request: Request, zone: str | None) -> _CacheKey | None:
    """Everything except the image that an answer depends on; None if the request is too long to cache."""
    if len(request.body) > CACHED_BODY_BYTES_MAX:
        return None
    return request.api_version, zone, request.connection.listener, bytes(request.body)


def _asks_by_id(topic: Any) -> bool:
    return topic.name is None or getattr(topic, "topic_id", None) is not None


def _name_or_id(topic: Any) -> str | uuid.UUID:
    topic_id = getattr(topic, "topic_id", None)
    return topic_id if topic_id is not None else topic.name or ""


def _malformed(topic: Any) -> TopicError:
    return TopicError(topic.name, topic.topic_id, ErrorCode.invalid_request)


def _lookup(image: MetadataImage, name_or_id: str | uuid.UUID) -> TopicImage | None:
    """A rendered topic is found only by name or id; as in Kafka, the list of all topics does not show it."""
    if (rendered := rendered_topic(name_or_id)) is not None:
        return rendered
    if isinstance(name_or_id, uuid.UUID):
        return image.topics_by_id.get(name_or_id)
    return image.topics_by_name.get(name_or_id)


def _missing(image: MetadataImage, wanted: _Wanted) -> _Wanted:
    return [name_or_id for name_or_id in wanted if _lookup(image, name_or_id) is None]


def _find(
    image: MetadataImage, name_or_id: str | uuid.UUID, refused: dict[str, ErrorCode], reachable: bool
) -> TopicImage | TopicError:
    topic = _lookup(image, name_or_id)
    if topic is not None:
        return topic
    if isinstance(name_or_id, uuid.UUID):
        code = ErrorCode.unknown_topic_id if reachable else ErrorCode.leader_not_available
        return TopicError(None, name_or_id, code)
    if why_illegal(name_or_id):
        code = ErrorCode.invalid_topic_exception
    elif not reachable:
        code = ErrorCode.leader_not_available  # it may exist: clients retry
    else:
        code = refused.get(name_or_id, ErrorCode.unknown_topic_or_partition)
    return TopicError(name_or_id, None, code)


def _with_correlation(request: Request, cached: Response) -> Response:
    """The same answer for another request."""
    assert cached.buffers is not None
    header, body = cached.buffers
    flexible = len(header) > 4
    return Response([response_header(request.correlation_id, flexible), body])
