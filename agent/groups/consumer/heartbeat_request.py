"""ConsumerGroupHeartbeat (68, versions 0-1): what a member of the consumer protocol sends, and only that.

Place: request fields to values and back, around coordinator.py.
Invariant: what is wrong in itself (an empty id, a join that says nothing) is refused here, as Kafka does;
the rules between members are in group.py. From version 1 on the member makes its id itself.
Source: Kafka's message schemas, KIP-848.
"""

from __future__ import annotations

import base64
import random
import uuid
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.agent.groups.consumer.consumer_values import ConsumerHeartbeat
from headrace.agent.groups.consumer.coordinator import ConsumerGroups
from headrace.agent.groups.consumer.rules import ASSIGNORS
from headrace.agent.groups.consumer.topics import is_valid
from headrace.agent.groups.held_groups import HeldGroups
from headrace.agent.groups.members.member_values import JOIN_EPOCH, LEAVE_FOR_A_WHILE_EPOCH, MemberHeartbeatAnswer
from headrace.agent.groups.members.partitions import by_topic
from headrace.agent.groups.names import storable
from headrace.protocol.request import ANONYMOUS, Request, Response
from headrace.protocol.typed import Schema, decode, reply

_FIRST_WITH_OWN_MEMBER_ID = 1


class ConsumerGroupHeartbeat:
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
        self._keeps_principals = keeps_principals
        self._groups = groups
        self._consumer_groups = consumer_groups
        self._rng = rng

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request)
        answer = self._refusal(entity, request.api_version)
        if answer is None:
            member_id = entity.member_id or self._new_member_id()
            heartbeat = _heartbeat(request, entity, member_id, self._principal(request))
            answer = await self._consumer_groups.heartbeat(self._groups, entity.group_id, heartbeat)
        return reply(request, self._response(schema, entity, answer))

    def _refusal(self, entity: Any, version: int) -> MemberHeartbeatAnswer | None:
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

    def _principal(self, request: Request) -> str:
        return (request.connection.principal or ANONYMOUS) if self._keeps_principals else ""

    def _new_member_id(self) -> str:
        return base64.urlsafe_b64encode(self._rng.randbytes(16)).decode().rstrip("=")

    def _response(self, schema: Schema, entity: Any, answer: MemberHeartbeatAnswer) -> Any:
        failed = answer.code is not ErrorCode.none
        assignment = None
        if answer.assigned is not None:
            topics = self._consumer_groups.topics.topics().by_number
            partitions = tuple(
                schema.make("TopicPartitions", topic_id=topics[number].topic_id, partitions=tuple(indexes))
                for number, indexes in by_topic(answer.assigned).items()
                if number in topics  # one that was just deleted has no members
            )
            assignment = schema.make("Assignment", topic_partitions=partitions)
        interval = self._consumer_groups.times(entity.group_id).heartbeat_interval
        return schema.response(
            error_code=answer.code,
            error_message=answer.message,
            member_id=None if failed else answer.member_id,
            member_epoch=answer.member_epoch,
            heartbeat_interval=timedelta(seconds=0 if failed else interval),
            assignment=assignment,
        )


def _fault(entity: Any, version: int) -> str | None:
    """Return what is wrong with the request in itself."""
    joins = entity.member_epoch == JOIN_EPOCH
    names, pattern = entity.subscribed_topic_names, getattr(entity, "subscribed_topic_regex", None)
    texts = (entity.group_id, entity.member_id, entity.instance_id, entity.rack_id, pattern, *(names or ()))
    faults = {
        "GroupId can't be empty.": not entity.group_id.strip(),
        "MemberId can't be empty.": not entity.member_id.strip()
        and (version >= _FIRST_WITH_OWN_MEMBER_ID or not joins),
        "InstanceId can't be empty.": entity.instance_id is not None and not entity.instance_id.strip(),
        "RackId can't be empty.": entity.rack_id is not None and not entity.rack_id.strip(),
        "A text holds a character that is not allowed.": not all(storable(text) for text in texts if text),
        "RebalanceTimeoutMs must be provided in first request.": joins and entity.rebalance_timeout < timedelta(0),
        "TopicPartitions must be empty when (re-)joining.": joins and entity.topic_partitions != (),
        "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.": joins
        and names is None
        and pattern is None,
        "InstanceId can't be null.": entity.member_epoch == LEAVE_FOR_A_WHILE_EPOCH and entity.instance_id is None,
        f"MemberEpoch is invalid: {entity.member_epoch}.": entity.member_epoch < LEAVE_FOR_A_WHILE_EPOCH,
    }
    return next((message for message, is_so in faults.items() if is_so), None)


def _heartbeat(request: Request, entity: Any, member_id: str, principal: str) -> ConsumerHeartbeat:
    timeout = entity.rebalance_timeout
    names, owned = entity.subscribed_topic_names, entity.topic_partitions
    return ConsumerHeartbeat(
        member_id,
        entity.member_epoch,
        entity.instance_id,
        entity.rack_id,
        request.client_id or "",
        "/" + request.connection.peer.rpartition(":")[0],
        None if names is None else frozenset(names),
        rebalance_timeout=None if timeout < timedelta(0) else timeout.total_seconds(),
        topic_pattern=getattr(entity, "subscribed_topic_regex", None),
        assignor=entity.server_assignor,
        owned_topics=None
        if owned is None
        else [(each.topic_id or uuid.UUID(int=0), each.partitions) for each in owned],
        principal=principal,
    )
