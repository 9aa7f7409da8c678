"""ShareGroupHeartbeat (76, version 1): the requests of members of share groups.

Place: a HeartbeatHandler (../members/heartbeat_request.py), around coordinator.py. While share.version is 0 nothing is
asked.
Source: Kafka's message schemas, KIP-932.
"""

from __future__ import annotations

from collections.abc import Callable

from kio.schema.errors import ErrorCode
from kio.schema.share_group_heartbeat.v1.request import ShareGroupHeartbeatRequest
from kio.schema.share_group_heartbeat.v1.response import Assignment, TopicPartitions

from headrace.agent.groups.held_groups import HeldGroups
from headrace.agent.groups.members.heartbeat_request import HeartbeatHandler, fault_in_ids
from headrace.agent.groups.members.member_values import JOIN_EPOCH, LEAVE_EPOCH, MemberHeartbeat, MemberHeartbeatAnswer
from headrace.agent.groups.members.partitions import Partitions, assignment
from headrace.agent.groups.names import client_host
from headrace.agent.groups.share.coordinator import ShareGroups
from headrace.metastore.log.image import MetadataImage
from headrace.protocol.request import Request
from headrace.protocol.typed import Schema


class ShareGroupHeartbeat(HeartbeatHandler[ShareGroupHeartbeatRequest, MemberHeartbeat]):
    """Serve heartbeats of members of share groups."""

    def __init__(self, groups: HeldGroups, share_groups: ShareGroups, image: Callable[[], MetadataImage]) -> None:
        """`image()`: the newest one."""
        super().__init__(ShareGroupHeartbeatRequest, groups, share_groups)
        self._rules, self._image = share_groups.rules, image

    def _refusal(self, entity: ShareGroupHeartbeatRequest, version: int) -> MemberHeartbeatAnswer | None:
        if not self._rules.is_offered:
            return MemberHeartbeatAnswer(ErrorCode.unsupported_version, entity.member_id)
        message = _fault(entity)
        return (
            None
            if message is None
            else MemberHeartbeatAnswer(ErrorCode.invalid_request, entity.member_id, message=message)
        )

    def _heartbeat(self, request: Request, entity: ShareGroupHeartbeatRequest) -> MemberHeartbeat:
        names = entity.subscribed_topic_names
        return MemberHeartbeat(
            entity.member_id,
            entity.member_epoch,
            None,
            entity.rack_id,
            request.client_id or "",
            client_host(request.connection),
            None if names is None else frozenset(names),
        )

    def _assignment(self, schema: Schema, partitions: Partitions) -> Assignment:
        topics = self._image().topics_by_number
        return assignment(schema, Assignment, TopicPartitions, topics, partitions)

    def _interval(self, group_id: str) -> float:
        return self._rules.of(group_id).heartbeat_interval


def _fault(entity: ShareGroupHeartbeatRequest) -> str | None:
    """Return what is wrong with the request itself, in any state of the group: the first fault in Kafka's order."""
    names = entity.subscribed_topic_names
    if fault := fault_in_ids(entity, names or ()):
        return fault
    if entity.member_epoch == JOIN_EPOCH and not names:
        return "SubscribedTopicNames must be set in first request."
    if entity.member_epoch < LEAVE_EPOCH:
        return f"MemberEpoch is invalid: {entity.member_epoch}."
    return None
