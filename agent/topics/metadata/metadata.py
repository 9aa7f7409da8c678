"""Metadata (key 3, versions 0-13): topics, partitions and agents.

Place: a client's first request, and its request after every routing error.
Invariant: answered from one image, without a query; the agent catches up first only if the image lacks a requested
name or id, or may have an old count (newest_counts.py). An answer without unknown topics is encoded once per (image,
version, client zone, listener, request body, what the client may do) and reused. Agents are shown with their addresses
of the listener on which the request came in (KIP-103). Partition counts go only to clients that ask for them. A topic
that a client may not describe is not said to exist. The ACLs are those of the answer's image: a topic that was created
after a right had ended is not shown. A long answer is computed in slices (work_slices.py), one at a time in the agent
(encoded_answers.py): clients that wait for the same one share it. It begins only when there is room for replies, and is
not computed for a client that has gone. At its end, a topic that may have another count by now is shown as
LEADER_NOT_AVAILABLE.
Source: KIP-4, KIP-253 (counts), KIP-204/430 (authorized operations), KIP-516 (topic ids), KIP-1102 (top-level error).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v13.request import MetadataRequest

from headrace.agent.access.authorization.access import FULL_ACCESS, Access
from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.cluster.newest_counts import NONE, NewestCounts
from headrace.agent.cluster.routing import Routes
from headrace.agent.cluster.shared_address import SharedAddress, virtual_node
from headrace.agent.cluster.view import ClusterView
from headrace.agent.cluster.zone import zone_of
from headrace.agent.limits.refusal_log import OnRefused, unheard
from headrace.agent.limits.work_slices import TOPIC_UNITS, UNITS_MAX, WorkSlices
from headrace.agent.topics.metadata.described_topics import DescribedTopics
from headrace.agent.topics.metadata.encoded_answers import (
    AnswerKey,
    EncodedAnswer,
    EncodedAnswers,
    LongAnswers,
    ShownAgents,
    answer_key,
)
from headrace.agent.topics.metadata.metadata_response import CountsOfTopics, MetadataRendering, TopicError
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.protocol.internal_topics import INTERNAL_TOPICS
from headrace.protocol.partition_counts import asks_for_counts, counts_of_topic
from headrace.protocol.partition_counts import with_counts as with_counts_tag
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, response_header
from headrace.protocol.wire import size_prefix


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request, and what its answer depends on."""

    request: Request
    schema: Schema
    entity: Any
    zone: str | None
    key: AnswerKey | None
    """The key of the answer, with what the client might do when the request arrived."""
    number: int
    """The number of the newest image when the request arrived."""
    unknown: frozenset[uuid.UUID]
    """Ids of the topics that must not be described now."""
    slices: WorkSlices


class _Found(NamedTuple):
    """The topics of an answer: all from the image of `routes`, which has this number."""

    number: int
    routes: Routes
    access: Access
    """What the client may do, by this image."""
    topics: list[TopicImage | TopicError]

    @property
    def image(self) -> MetadataImage:
        """The image of all of it."""
        return self.routes.image


class Metadata:
    """Answer Metadata with topics, partitions and agents."""

    slices: Callable[[], WorkSlices] = WorkSlices
    """Makes those of one answer."""

    def __init__(
        self,
        cluster: ClusterView,
        topics: DescribedTopics,
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
        self._topics = topics
        self._agents = ShownAgents()
        self._kept = EncodedAnswers()
        self._long = LongAnswers()

    @property
    def in_use_bytes(self) -> int:
        """What is remembered of answers."""
        return self._kept.in_use_bytes

    async def __call__(self, request: Request) -> Response:
        zone = zone_of(request.client_id)
        zone = zone if self._cluster.routes.has_zone(zone) else None
        key = answer_key(request, zone, self._access(request))
        unknown = NONE if self._newest is None or self._newest.are_known() else await self._newest.find()
        number = self._kept.number(self._cluster.image)
        if not unknown and (kept := self._kept.get(key, number)):
            return _with_correlation(request, kept.response)
        schema, entity = decode(request, MetadataRequest)
        asked = _Asked(request, schema, entity, zone, key, number, unknown, self.slices())
        if entity.topics is None or (request.api_version == 0 and not entity.topics):
            return await self._one_at_a_time(asked, None)
        named = await self._topics.asked_for(request, entity, asked.slices)
        found = self._found_now(request)
        found.topics.extend(await self._topics.named(found.image, found.access, request, named, asked.slices))
        if _units(found.topics) > UNITS_MAX:
            return await self._one_at_a_time(asked, found)
        if found.number != number:
            asked.slices.has_paused = True
        return (await self._answer(asked, found)).response

    def _access(self, request: Request) -> Access:
        """Return what the client may do now."""
        return FULL_ACCESS if self._authorizer is None else self._authorizer.access(request.connection)

    def _found_now(self, request: Request) -> _Found:
        """Return no topics yet, of the newest image."""
        routes = self._cluster.routes
        return _Found(self._kept.number(routes.image), routes, self._access(request), [])

    async def _one_at_a_time(self, asked: _Asked, found: _Found | None) -> Response:
        """Return a long answer, or what was encoded since the request arrived: nothing, if the client has gone.
        `found`: None for all topics.
        """
        asked.slices.has_paused = True
        key = None if asked.unknown else asked.key
        while (turn := self._long.joined(key)) is not None:
            answer = await turn.wait()
            if asked.request.connection.closed:
                return Response()
            if answer is not None and (response := await self._reused(asked, answer)) is not None:
                return response
        async with self._long.turn(key) as own:
            if await self._has_gone(asked.request):
                return Response()
            kept = None if asked.unknown else self._kept.get(asked.key, asked.number)
            if kept is not None and (response := await self._reused(asked, kept)) is not None:
                own.answer = kept
                return response
            if found is None:
                found = self._found_now(asked.request)
                found.topics.extend(await self._topics.every(found.image, found.access, asked.slices))
            answer = await self._answer(asked, found)
            own.answer = answer if answer.is_whole else None
            return answer.response

    async def _reused(self, asked: _Asked, answer: EncodedAnswer) -> Response | None:
        """Return what was encoded for another request; None if this one needs a newer answer."""
        if answer.number < asked.number:
            return None
        if await self._has_gone(asked.request):
            return Response()
        if await self._changed(answer.image, answer.image.topics_by_id.values()):
            return None
        return _with_correlation(asked.request, answer.response)

    async def _has_gone(self, request: Request) -> bool:
        """Wait until there is room for one more reply, then return whether the client has disconnected."""
        await request.connection.replies.reserve(0)
        return request.connection.closed

    async def _answer(self, asked: _Asked, found: _Found) -> EncodedAnswer:
        """Encode the topics, and keep the answer if it describes all of them."""
        request, slices = asked.request, asked.slices
        topics = [_unless_unknown(topic, asked.unknown) for topic in found.topics] if asked.unknown else found.topics
        rendering = self._rendering(asked, found)
        with_counts = self._counts if asked.schema.flexible and asks_for_counts(request.body) else None
        encoded, counts = list[bytes](), list[bytes]()
        for topic in topics:
            encoded.append(await _encoded(rendering, topic, slices))
            counts.append(b"" if with_counts is None else _counts(with_counts, found.image, topic))
        await slices.did(len(topics))  # what follows takes some 20 ms for 100,000 topics
        if slices.has_paused:
            changed = await self._changed(found.image, [topic for topic in topics if isinstance(topic, TopicImage)])
            for place, topic in enumerate(topics) if changed else ():
                topics[place] = _unless_unknown(topic, changed)
                if topics[place] is not topic:
                    encoded[place], counts[place] = await _encoded(rendering, topics[place], slices), b""
        errors = [topic for topic in topics if isinstance(topic, TopicError)]
        for error in errors:
            if error.name in INTERNAL_TOPICS:
                self._on_refused(request, f"no topic {error.name}: {INTERNAL_TOPICS[error.name]}")
        begin = self._first_part(rendering), size_prefix(len(topics), asked.schema.flexible)
        body = b"".join((*begin, *encoded, rendering.end()))
        if with_counts is not None:
            body = with_counts_tag(body, list(filter(None, counts)))
        response = Response([response_header(request.correlation_id, asked.schema.flexible), body])
        answer = EncodedAnswer(found.number, found.image, response, is_whole=not errors)
        if asked.key is not None and answer.is_whole:
            self._kept.keep((*asked.key[:-1], found.access), answer)
        return answer

    async def _changed(self, image: MetadataImage, topics: Iterable[TopicImage]) -> frozenset[uuid.UUID]:
        """Ids of the image's topics that must not be described from it any more."""
        return NONE if self._newest is None else await self._newest.changed_since(image, topics)

    def _rendering(self, asked: _Asked, found: _Found) -> MetadataRendering:
        listener = asked.request.connection.listener
        return MetadataRendering(
            found.routes,
            asked.schema,
            self._cluster.cluster_id,
            asked.zone,
            listener,
            virtual_node(self._shared, listener),
            topic_operations=getattr(asked.entity, "include_topic_authorized_operations", False),
            cluster_operations=getattr(asked.entity, "include_cluster_authorized_operations", False),
            access=found.access,
        )

    def _first_part(self, rendering: MetadataRendering) -> bytes:
        if rendering.virtual is not None:
            return rendering.agents()
        version, listener = rendering.schema.version, rendering.listener
        return self._agents.encoded(rendering.image, version, listener, rendering.agents)


async def _encoded(rendering: MetadataRendering, topic: TopicImage | TopicError, slices: WorkSlices) -> bytes:
    if isinstance(topic, TopicError):
        await slices.did(TOPIC_UNITS)
        return rendering.error(topic)
    return await rendering.topic(topic, slices)


def _counts(counts: CountsOfTopics, image: MetadataImage, topic: TopicImage | TopicError) -> bytes:
    """Return the bytes of the topic's counts; none if it is not described."""
    return b"" if isinstance(topic, TopicError) else counts_of_topic(counts(image, topic))


def _units(topics: Sequence[TopicImage | TopicError]) -> int:
    """Return about how many units of work the topics are."""
    partitions = sum(len(topic.leader_epochs) for topic in topics if isinstance(topic, TopicImage))
    return TOPIC_UNITS * len(topics) + partitions


def _unless_unknown(topic: TopicImage | TopicError, unknown: frozenset[uuid.UUID]) -> TopicImage | TopicError:
    """Clients ask again after LEADER_NOT_AVAILABLE, maybe another agent."""
    if isinstance(topic, TopicError) or topic.topic_id not in unknown:
        return topic
    return TopicError(topic.name, topic.topic_id, ErrorCode.leader_not_available)


def _with_correlation(request: Request, cached: Response) -> Response:
    """The same answer for another request."""
    assert cached.buffers is not None
    header, body = cached.buffers
    flexible = len(header) > 4
    return Response([response_header(request.correlation_id, flexible), body])
