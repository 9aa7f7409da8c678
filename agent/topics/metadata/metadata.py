"""Metadata (key 3, versions 0-13): topics, partitions and agents.

Place: a client's first request, and its request after every routing error.
Invariant: answered from one image, without a query; the agent catches up first only if the image lacks a requested
name or id, or may have an old count (newest_counts.py). An answer without unknown topics is encoded once per (image,
version, client zone, listener, request body, what the client may do) and reused. Agents are shown with their addresses
of the listener on which the request came in (KIP-103). Partition counts go only to clients that ask for them. A topic
that a client may not describe is not said to exist.
Source: KIP-4, KIP-253 (counts), KIP-204/430 (authorized operations), KIP-516 (topic ids), KIP-1102 (top-level error).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.access import FULL_ACCESS, Access
from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.cluster.newest_counts import NONE, NewestCounts
from headrace.agent.cluster.shared_address import SharedAddress, virtual_node
from headrace.agent.cluster.view import ClusterView
from headrace.agent.cluster.zone import zone_of
from headrace.agent.limits.client_memory import ClientMemory
from headrace.agent.limits.refusal_log import OnRefused, unheard
from headrace.agent.topics.metadata.metadata_counts import CountsOfTopics
from headrace.agent.topics.metadata.metadata_response import MetadataRendering, TopicError
from headrace.agent.topics.topic_creation import TopicCreation
from headrace.agent.topics.topic_names import why_illegal
from headrace.agent.topics.topic_rules import TopicRefusal, WantedTopic
from headrace.config.memory_budget import REMEMBERED_BYTES
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.segment_logs.rendered_topics import rendered_topic
from headrace.protocol.internal_topics import INTERNAL_TOPICS
from headrace.protocol.partition_counts import asks_for_counts, with_counts
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import decode, response_header
from headrace.storage.errors import UnavailableError

_DENIED = ErrorCode.topic_authorization_failed
CACHED_ANSWERS_MAX = 64
_ANSWERS_BYTES = REMEMBERED_BYTES["metadata_answers"]
CACHED_BODY_BYTES_MAX = 65_536
AUTO_CREATION_SECONDS = 10.0
_FIRST_VERSION_WITH_TOPIC_IDS = 12

_Wanted = list[str | uuid.UUID]
_CacheKey = tuple[int, str | None, str, bytes, Access]
_TOPIC = AclResource.TOPIC


class Metadata:
    """Answer Metadata with topics, partitions and agents."""

    def __init__(
        self,
        cluster: ClusterView,
        creation: TopicCreation,
        auto_create_topics: Callable[[], bool],
        shared: SharedAddress | None,
        counts: CountsOfTopics | None,
        on_refused: OnRefused = unheard,
        authorizer: Authorizer | None = None,
        newest: NewestCounts | None = None,
    ) -> None:
        """`authorizer`: None if ACLs are not enforced."""
        self._authorizer = authorizer
        self._on_refused = on_refused
        self._newest = newest
        self._shared = shared
        self._counts = counts
        self._cluster = cluster
        self._creation = creation
        self._auto_create_topics = auto_create_topics
        self._cached_image: MetadataImage | None = None
        self._cached: ClientMemory[_CacheKey, Response] = ClientMemory(
            _ANSWERS_BYTES, _answer_bytes, largest_bytes=_ANSWERS_BYTES, count_max=CACHED_ANSWERS_MAX
        )

    @property
    def in_use_bytes(self) -> int:
        """What is remembered of answers."""
        return self._cached.in_use_bytes

    async def __call__(self, request: Request) -> Response:
        zone = self._zone(request)
        access = FULL_ACCESS if self._authorizer is None else self._authorizer.access(request.connection)
        key = _cache_key(request, zone, access)
        unknown = NONE if self._newest is None or self._newest.are_known() else await self._newest.find()
        is_kept = not unknown and self._cached_image is self._cluster.image
        if is_kept and key is not None and (cached := self._cached.get(key)):
            return _with_correlation(request, cached)
        schema, entity = decode(request)
        image, topics = await self._topics(request, entity, access)
        if unknown:
            topics = [_unless_unknown(topic, unknown) for topic in topics]
        for topic in topics:
            if isinstance(topic, TopicError) and topic.name in INTERNAL_TOPICS:
                self._on_refused(request, f"no topic {topic.name}: {INTERNAL_TOPICS[topic.name]}")
        rendering = MetadataRendering(
            self._cluster,
            schema,
            image,
            zone,
            request.connection.listener,
            virtual_node(self._shared, request.connection.listener),
            topic_operations=getattr(entity, "include_topic_authorized_operations", False),
            cluster_operations=getattr(entity, "include_cluster_authorized_operations", False),
            access=access,
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
        if self._cached_image is not image:
            self._cached_image = image
            self._cached.clear()
        self._cached.put(key, response)

    async def _topics(
        self, request: Request, entity: Any, access: Access
    ) -> tuple[MetadataImage, list[TopicImage | TopicError]]:
        """Each requested topic, resolved on one image."""
        if entity.topics is None or (request.api_version == 0 and not entity.topics):
            image = self._cluster.image
            every = sorted(image.topics_by_name.items())
            return image, [topic for name, topic in every if access.allows(AclOperation.DESCRIBE, _TOPIC, name)]
        if request.api_version < _FIRST_VERSION_WITH_TOPIC_IDS and any(_asks_by_id(topic) for topic in entity.topics):
            return self._cluster.image, [_malformed(topic) for topic in entity.topics]
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
            if not access.allows(AclOperation.CREATE, AclResource.CLUSTER):
                names = [each for each in missing if isinstance(each, str)]
                refused = {name: _DENIED for name in names if not self._may(request, AclOperation.CREATE, name)}
                missing = [each for each in missing if each not in refused]
            refused |= await self._create(missing)
        image, seen = self._cluster.image, set(wanted)
        found = [
            _find(image, each, refused, reachable) if each in seen else TopicError(str(each), None, _DENIED)
            for each in asked
        ]
        return image, [self._shown(request, topic) for topic in found]

    def _shown(self, request: Request, topic: TopicImage | TopicError) -> TopicImage | TopicError:
        """Judged once more: it may have been requested by id."""
        if isinstance(topic, TopicError) or self._may(request, AclOperation.DESCRIBE, topic.name):
            return topic
        return TopicError(None, topic.topic_id, _DENIED)

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


def _cache_key(request: Request, zone: str | None, access: Access) -> _CacheKey | None:
    """Everything except the image that an answer depends on; None if the request is too long to cache."""
    if len(request.body) > CACHED_BODY_BYTES_MAX:
        return None
    return request.api_version, zone, request.connection.listener, bytes(request.body), access


def _answer_bytes(key: _CacheKey, response: Response) -> int:
    assert response.buffers is not None
    return len(key[3]) + sum(map(len, response.buffers))


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


def _unless_unknown(topic: TopicImage | TopicError, unknown: frozenset[uuid.UUID]) -> TopicImage | TopicError:
    """Clients ask again after LEADER_NOT_AVAILABLE, maybe another agent."""
    if isinstance(topic, TopicError) or topic.topic_id not in unknown:
        return topic
    return TopicError(topic.name, topic.topic_id, ErrorCode.leader_not_available)


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
