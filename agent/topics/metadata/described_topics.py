"""Finds the topics that a Metadata request asks for: all, or those that it names, which may have to be created.

Place: under metadata.py.
Invariant: all topics of a result are from one image. The agent catches up first only if its image lacks a name or id. A
topic that a client may not describe is not said to exist.
Source: KIP-4 (creation), KIP-516 (topic ids).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.access import Access
from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.cluster.view import ClusterView
from headrace.agent.limits.work_slices import BLOCK, TOPIC_UNITS, WorkSlices
from headrace.agent.topics.metadata.metadata_response import TopicError
from headrace.agent.topics.metadata.sorted_topics import SortedTopics
from headrace.agent.topics.topic_creation import TopicCreation
from headrace.agent.topics.topic_names import why_illegal
from headrace.agent.topics.topic_rules import TopicRefusal, WantedTopic
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.segment_logs.topics import rendered_topic
from headrace.protocol.request import Request
from headrace.storage.errors import UnavailableError

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
