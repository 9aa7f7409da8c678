"""ConsumerGroupDescribe (69, versions 0-1): members of consumer groups, with what they have and are to have.

Place: a DescribeHandler (../members/describe_request.py).
Source: Kafka's message schemas, KIP-848, KIP-1099 (member type).
"""

from __future__ import annotations

from kio.schema.consumer_group_describe.v1.response import Assignment, DescribedGroup, Member, TopicPartitions
from kio.schema.errors import ErrorCode

from headrace.agent.groups.administration import GroupAdministration
from headrace.agent.groups.claims import Held
from headrace.agent.groups.consumer.coordinator import ConsumerGroups
from headrace.agent.groups.consumer.group import ConsumerGroup
from headrace.agent.groups.consumer.members import ConsumerMember
from headrace.agent.groups.held_groups import HeldGroups
from headrace.agent.groups.members.describe_request import DescribeHandler, fields_of
from headrace.agent.groups.members.member import assignment
from headrace.protocol.typed import Schema

_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1


class ConsumerGroupDescribe(DescribeHandler[ConsumerGroup, ConsumerMember, DescribedGroup]):
    """Describe groups of KIP-848 and their members."""

    def __init__(
        self, groups: HeldGroups, consumer_groups: ConsumerGroups, administration: GroupAdministration
    ) -> None:
        super().__init__(ConsumerGroup, DescribedGroup, administration)
        self._groups, self._consumer_groups = groups, consumer_groups

    async def _find(self, group_id: str) -> Held | ErrorCode:
        """The group; of one that is a consumer group in memory, nothing is asked."""
        held = await self._groups.find(group_id)
        if isinstance(held, ErrorCode) or isinstance(held.group, ConsumerGroup):
            return held
        found = await super()._find(group_id)
        return found if isinstance(found, Held) else ErrorCode.group_id_not_found

    def _details(self, schema: Schema, group: ConsumerGroup | None) -> dict[str, object]:
        return {"assignor_name": "" if group is None else group.target.assignor(group.roster)}

    def _member(self, schema: Schema, group: ConsumerGroup, member: ConsumerMember) -> Member:
        topics = self._consumer_groups.topics.topics().by_number
        target = group.target.of(member.member_id)
        return schema.make(
            Member,
            **fields_of(member),
            instance_id=member.instance_id,
            subscribed_topic_regex=member.topic_pattern or "",
            assignment=assignment(schema, Assignment, TopicPartitions, topics, member.assigned),
            target_assignment=assignment(schema, Assignment, TopicPartitions, topics, target),
            member_type=_CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
        )
