"""ShareGroupHeartbeat (76, version 1): what a member of a share group sends, and only that.

Place: request fields to values and back, around coordinator.py.
Invariant: what is wrong in itself (an empty id, a join that says nothing) is refused here, as Kafka does; the rules
between members are in group.py. While share.version is 0 nothing is asked.
Source: Kafka's message schemas, KIP-932.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.agent.groups.held_groups import HeldGroups
from headrace.agent.groups.members.member_values import JOIN_EPOCH, LEAVE_EPOCH, MemberHeartbeat, MemberHeartbeatAnswer
from headrace.agent.groups.names import storable
from headrace.agent.groups.share.coordinator import ShareGroups
from headrace.metastore.keys import split_partition_key
from headrace.metastore.log.image import MetadataImage
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply


class ShareGroupHeartbeat:
    """Serve heartbeats of members of share groups."""

    def __init__(self, groups: HeldGroups, share_groups: ShareGroups, image: Any) -> None:
        """`image()`: the newest one."""
        self._groups, self._share_groups, self._image = groups, share_groups, image

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request)
        return reply(request, self._response(schema, entity, await self._answer(request, entity)))

    async def _answer(self, request: Request, entity: Any) -> MemberHeartbeatAnswer:
        if not self._share_groups.rules.is_offered:
            return MemberHeartbeatAnswer(ErrorCode.unsupported_version, entity.member_id)
        if message := _fault(entity):
            return MemberHeartbeatAnswer(ErrorCode.invalid_request, entity.member_id, message=message)
        names = entity.subscribed_topic_names
        heartbeat = MemberHeartbeat(
            entity.member_id,
            entity.member_epoch,
            None,
            entity.rack_id,
            request.client_id or "",
            "/" + request.connection.peer.rpartition(":")[0],
            None if names is None else frozenset(names),
        )
        return await self._share_groups.heartbeat(self._groups, entity.group_id, heartbeat)

    def _response(self, schema: Schema, entity: Any, answer: MemberHeartbeatAnswer) -> Any:
        failed = answer.code is not ErrorCode.none
        assignment = None
        if answer.assigned is not None:
            assignment = schema.make(
                "Assignment", topic_partitions=topic_partitions(schema, self._image(), answer.assigned, by_name=False)
            )
        interval = 0.0 if failed else self._share_groups.rules.of(entity.group_id).heartbeat_interval
        return schema.response(
            error_code=answer.code,
            error_message=answer.message,
            member_id=None if failed else answer.member_id,
            member_epoch=answer.member_epoch,
            heartbeat_interval=timedelta(seconds=interval),
            assignment=assignment,
        )


def topic_partitions(
    schema: Schema, image: MetadataImage, keys: frozenset[int], *, by_name: bool = True
) -> tuple[Any, ...]:
    """Return TopicPartitions of an answer; partitions of topics that are gone are left out."""
    indexes: defaultdict[int, list[int]] = defaultdict(list)
    for key in sorted(keys):
        number, index = split_partition_key(key)
        indexes[number].append(index)
    topics = {number: topic for number in indexes if (topic := image.topics_by_number.get(number)) is not None}
    return tuple(
        schema.make(
            "TopicPartitions",
            topic_id=topic.topic_id,
            **({"topic_name": topic.name} if by_name else {}),
            partitions=tuple(indexes[number]),
        )
        for number, topic in topics.items()
    )


def _fault(entity: Any) -> str | None:
    """Return what is wrong with the request in itself."""
    joins, names = entity.member_epoch == JOIN_EPOCH, entity.subscribed_topic_names
    texts = (entity.group_id, entity.member_id, entity.rack_id, *(names or ()))
    faults = {
        "GroupId can't be empty.": not entity.group_id.strip(),
        "MemberId can't be empty.": not entity.member_id.strip(),
        "RackId can't be empty.": entity.rack_id is not None and not entity.rack_id.strip(),
        "A text holds a character that is not allowed.": not all(storable(text) for text in texts if text),
        "SubscribedTopicNames must be set in first request.": joins and not names,
        f"MemberEpoch is invalid: {entity.member_epoch}.": entity.member_epoch < LEAVE_EPOCH,
    }
    return next((message for message, is_so in faults.items() if is_so), None)
