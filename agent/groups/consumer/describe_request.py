"""ConsumerGroupDescribe (69, versions 0-1): members of consumer groups, with what they have and are to have.

Place: request fields to the groups of held_groups.py and back.
Invariant: each group is answered for itself, by its coordinator only. A group of another kind, or none at
all, is GROUP_ID_NOT_FOUND, which makes clients ask DescribeGroups.
Source: Kafka's message schemas, KIP-848, KIP-1099 (member type).
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.operations import NOT_ASKED
from headrace.agent.groups.admin_requests import GROUP_OPERATIONS, undescribed
from headrace.agent.groups.administration import GroupAdministration
from headrace.agent.groups.consumer.coordinator import ConsumerGroups
from headrace.agent.groups.consumer.group import ConsumerGroup
from headrace.agent.groups.consumer.member import ConsumerMember
from headrace.agent.groups.held_groups import Held, HeldGroups
from headrace.agent.groups.members.partitions import Partitions, by_topic
from headrace.agent.groups.names import is_legal_group_id
from headrace.agent.limits.work_slices import WorkSlices
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply

_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1


class ConsumerGroupDescribe:
    """Describe groups of KIP-848 and their members."""

    def __init__(
        self, groups: HeldGroups, consumer_groups: ConsumerGroups, administration: GroupAdministration
    ) -> None:
        self._administration = administration
        self._groups = groups
        self._consumer_groups = consumer_groups

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request)
        operations = GROUP_OPERATIONS if entity.include_authorized_operations else NOT_ASKED
        names = list(dict.fromkeys(entity.group_ids))  # each once: an answer is much longer than a name
        slices = WorkSlices()
        unknown = await self._administration.unknown([name for name in names if is_legal_group_id(name)], slices)
        groups = []
        for name in names:
            await self._administration.elect(name, slices)
            groups.append(
                undescribed(schema, name, ErrorCode.group_id_not_found, f"Group {name} not found.")
                if name in unknown
                else await self._describe(schema, name, operations)
            )
        return reply(request, schema.response(groups=tuple(groups)))

    async def _describe(self, schema: Schema, group_id: str, operations: int) -> Any:
        if not is_legal_group_id(group_id):
            return undescribed(schema, group_id, ErrorCode.invalid_group_id)
        held = await self._groups.find(group_id)
        if isinstance(held, ErrorCode):
            return undescribed(schema, group_id, held)
        group = held.group
        if not isinstance(group, ConsumerGroup):
            exists = isinstance(await self._administration.existing(group_id), Held)
            message = f"Group {group_id} is not a consumer group." if exists else f"Group {group_id} not found."
            return undescribed(schema, group_id, ErrorCode.group_id_not_found, message)
        return schema.make(
            "DescribedGroup",
            error_code=ErrorCode.none,
            error_message=None,
            group_id=group_id,
            group_state=group.state_name,
            group_epoch=group.target.group_epoch,
            assignment_epoch=group.target.epoch,
            assignor_name=group.target.assignor(group.roster),
            members=tuple(self._member(schema, member, group.target.of(member.member_id)) for member in group.roster),
            authorized_operations=operations,
        )

    def _member(self, schema: Schema, member: ConsumerMember, target: Partitions) -> Any:
        return schema.make(
            "Member",
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=tuple(sorted(member.topic_names)),
            subscribed_topic_regex=member.topic_pattern or "",
            assignment=self._assignment(schema, member.assigned),
            target_assignment=self._assignment(schema, target),
            member_type=_CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
        )

    def _assignment(self, schema: Schema, partitions: Partitions) -> Any:
        topics = self._consumer_groups.topics.topics().by_number
        return schema.make(
            "Assignment",
            topic_partitions=tuple(
                schema.make(
                    "TopicPartitions",
                    topic_id=topics[number].topic_id,
                    topic_name=topics[number].name,
                    partitions=tuple(indexes),
                )
                for number, indexes in by_topic(partitions).items()
                if number in topics
            ),
        )
