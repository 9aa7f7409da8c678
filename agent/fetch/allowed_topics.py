"""Decide which of the partitions of a fetch the client may read.

Place: asked by handler.py before the read path, and again before a reply that had to wait.
Invariant: no record of a topic is sent to a client that may not read it by the ACLs of the image at the time of the
reply. Topics without a name at that time are unknown to all clients, so none of their records are sent either.
Source: Kafka's KafkaApis.handleFetchRequest; the metadata log needs CLUSTER_ACTION, as in ControllerApis.handleFetch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.access import Access
from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.access.authorization.operations import CLUSTER_NAME, AclOperation, AclResource
from headrace.agent.cluster.partition_names import TopicRef, unknown_topic
from headrace.agent.cluster.view import ClusterView
from headrace.agent.fetch.sessions import Ref
from headrace.metastore.log.metadata_topic import METADATA_TOPIC
from headrace.metastore.segment_logs.topics import rendered_topic
from headrace.protocol.fetch_codec import FetchPartitionReply
from headrace.protocol.request import Request

T = TypeVar("T")
_READ_TOPIC = (AclOperation.READ, AclResource.TOPIC)
_READ_METADATA = (AclOperation.CLUSTER_ACTION, AclResource.CLUSTER)


class AllowedTopics:
    """The topics that clients may read, for the fetches of one agent."""

    def __init__(self, authorizer: Authorizer, view: ClusterView) -> None:
        self._authorizer, self._view = authorizer, view

    def access(self, request: Request) -> Access:
        """Return what the client may do now; another object if that may have changed."""
        return self._authorizer.access(request.connection)

    def split(
        self, request: Request, wanted: Mapping[Ref, T]
    ) -> tuple[Mapping[Ref, T], list[tuple[Ref, FetchPartitionReply]]]:
        """(what may be read, the replies for the rest). Ids that are unknown so far are in the first part."""
        codes = self.codes(request, (topic for topic, _ in wanted))
        bad = {topic: code for topic, code in codes.items() if code == ErrorCode.topic_authorization_failed}
        if not bad:
            return wanted, []
        allowed = {ref: partition for ref, partition in wanted.items() if ref[0] not in bad}
        return allowed, [(ref, FetchPartitionReply(ref[1], bad[ref[0]])) for ref in wanted if ref[0] in bad]

    def checked(
        self, request: Request, replies: list[tuple[Ref, FetchPartitionReply]]
    ) -> list[tuple[Ref, FetchPartitionReply]]:
        """The replies, those with records only for topics that may be read by now."""
        codes = self.codes(request, (topic for (topic, _), reply in replies if not reply.error_code))
        return [
            (ref, FetchPartitionReply(ref[1], code) if (code := codes.get(ref[0], ErrorCode.none)) else reply)
            for ref, reply in replies
        ]

    def codes(self, request: Request, topics: Iterable[TopicRef]) -> dict[TopicRef, int]:
        """Return the code of each topic, unless the client may do everything; a denial is reported."""
        access = self.access(request)
        if access.is_full:
            return {}
        codes: dict[TopicRef, int] = {}
        for topic in topics:
            if topic not in codes:
                codes[topic] = self._code(request, access, topic)
        return codes

    def _code(self, request: Request, access: Access, topic: TopicRef) -> int:
        name = self._name(topic)
        if name is None:
            return unknown_topic(topic)
        is_log = name == METADATA_TOPIC
        operation, resource_type = _READ_METADATA if is_log else _READ_TOPIC
        resource = CLUSTER_NAME if is_log else name
        if access.allows(operation, resource_type, resource):
            return ErrorCode.none
        self._authorizer.denied(request, operation, resource_type, resource)
        return ErrorCode.topic_authorization_failed

    def _name(self, topic: TopicRef) -> str | None:
        if isinstance(topic, str):
            return topic
        found = rendered_topic(topic) or self._view.image.topics_by_id.get(topic)
        return None if found is None else found.name
