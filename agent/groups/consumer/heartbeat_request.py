"""ConsumerGroupHeartbeat (68, versions 0-1): the requests of members of the consumer protocol.

Place: a HeartbeatHandler (../members/heartbeat_request.py), around coordinator.py. From version 1 on the member makes
its id itself.
Source: Kafka's message schemas, KIP-848.
"""

from __future__ import annotations

import base64
import random
import uuid
from datetime import timedelta

from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest
from kio.schema.consumer_group_heartbeat.v1.response import Assignment, TopicPartitions
from kio.schema.errors import ErrorCode

from headrace.agent.groups.consumer.consumer_values import ConsumerHeartbeat
from headrace.agent.groups.consumer.coordinator import ConsumerGroups
from headrace.agent.groups.consumer.rules import ASSIGNORS
from headrace.agent.groups.consumer.topics import is_valid
from headrace.agent.groups.held_groups import HeldGroups
from headrace.agent.groups.members.heartbeat_request import HeartbeatHandler, fault_in_ids
from headrace.agent.groups.members.member_values import JOIN_EPOCH, LEAVE_FOR_A_WHILE_EPOCH, MemberHeartbeatAnswer
from headrace.agent.groups.members.partitions import Partitions, assignment
from headrace.agent.groups.names import client_host
from headrace.protocol.request import ANONYMOUS, Request
from headrace.protocol.typed import Schema

_FIRST_WITH_OWN_MEMBER_ID = 1


class ConsumerGroupHeartbeat(HeartbeatHandler[ConsumerGroupHeartbeatRequest, ConsumerHeartbeat]):
    """Serve heartbeats of members of a KIP-848 group."""

    def __init__(
        self,
        groups: HeldGroups,
        consumer_groups: ConsumerGroups,
        rng: random.Random,
        *,
        keeps_principals: bool = False,
    ) -> None:
        """`keeps_principals`: ACLs are enforced, and say which topics a member's pattern matches."""
        super().__init__(ConsumerGroupHeartbeatRequest, groups, consumer_groups)
        self._consumer_groups, self._rng, self._keeps_principals = consumer_groups, rng, keeps_principals

    def _refusal(self, entity: ConsumerGroupHeartbeatRequest, version: int) -> MemberHeartbeatAnswer | None:
        code, message = ErrorCode.invalid_request, _fault(entity, version)
        if message is None and entity.server_assignor not in (None, *self._consumer_groups.rules.assignors):
            code = ErrorCode.unsupported_assignor
            message = f"ServerAssignor {entity.server_assignor} is not supported. Supported assignors: " + ", ".join(
                name for name in self._consumer_groups.rules.assignors if name in ASSIGNORS
            )
        pattern = getattr(entity, "subscribed_topic_regex", None)
        if message is None and pattern and not is_valid(pattern):
            code = ErrorCode.invalid_regular_expression
            message = f"SubscribedTopicRegex {pattern[:100]!r} is not a valid regular expression (RE2), or too large."
        return None if message is None else MemberHeartbeatAnswer(code, entity.member_id, message=message)

    def _heartbeat(self, request: Request, entity: ConsumerGroupHeartbeatRequest) -> ConsumerHeartbeat:
        timeout, names, owned = entity.rebalance_timeout, entity.subscribed_topic_names, entity.topic_partitions
        no_topic = uuid.UUID(int=0)
        return ConsumerHeartbeat(
            entity.member_id or self._new_member_id(),
            entity.member_epoch,
            entity.instance_id,
            entity.rack_id,
            request.client_id or "",
            client_host(request.connection),
            None if names is None else frozenset(names),
            rebalance_timeout=None if timeout < timedelta(0) else timeout.total_seconds(),
            topic_pattern=getattr(entity, "subscribed_topic_regex", None),
            assignor=entity.server_assignor,
            owned_topics=None if owned is None else [(each.topic_id or no_topic, each.partitions) for each in owned],
            principal=(request.connection.principal or ANONYMOUS) if self._keeps_principals else "",
        )

    def _new_member_id(self) -> str:
        return base64.urlsafe_b64encode(self._rng.randbytes(16)).decode().rstrip("=")

    def _assignment(self, schema: Schema, partitions: Partitions) -> Assignment:
        topics = self._consumer_groups.topics.topics().by_number
        return assignment(schema, Assignment, TopicPartitions, topics, partitions)

    def _interval(self, group_id: str) -> float:
        return self._consumer_groups.times(group_id).heartbeat_interval


def _fault(entity: ConsumerGroupHeartbeatRequest, version: int) -> str | None:
    """Return what is wrong with the request itself, in any state of the group: the first fault in Kafka's order."""
    joins = entity.member_epoch == JOIN_EPOCH
    names, pattern = entity.subscribed_topic_names, getattr(entity, "subscribed_topic_regex", None)
    needs_member_id = version >= _FIRST_WITH_OWN_MEMBER_ID or not joins
    if fault := fault_in_ids(entity, (pattern, *(names or ())), needs_member_id=needs_member_id):
        return fault
    if joins and entity.rebalance_timeout < timedelta(0):
        return "RebalanceTimeoutMs must be provided in first request."
    if joins and entity.topic_partitions != ():
        return "TopicPartitions must be empty when (re-)joining."
    if joins and names is None and pattern is None:
        return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    if entity.member_epoch == LEAVE_FOR_A_WHILE_EPOCH and entity.instance_id is None:
        return "InstanceId can't be null."
    if entity.member_epoch < LEAVE_FOR_A_WHILE_EPOCH:
        return f"MemberEpoch is invalid: {entity.member_epoch}."
    return None
