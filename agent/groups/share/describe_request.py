"""ShareGroupDescribe (77, version 1): members of share groups, with the partitions that each reads.

Place: a DescribeHandler (../members/describe_request.py).
Source: Kafka's message schemas, KIP-932.
"""

from __future__ import annotations

from collections.abc import Callable

from kio.schema.share_group_describe.v1.response import Assignment, DescribedGroup, Member, TopicPartitions

from headrace.agent.groups.administration import GroupAdministration
from headrace.agent.groups.members.describe_request import DescribeHandler, fields_of
from headrace.agent.groups.members.member import assignment
from headrace.agent.groups.share.group import ShareGroup
from headrace.agent.groups.share.membership import NAME, ShareMember
from headrace.agent.groups.share.rules import ShareGroupRules
from headrace.metastore.log.image import MetadataImage
from headrace.protocol.typed import Schema


class ShareGroupDescribe(DescribeHandler[ShareGroup, ShareMember, DescribedGroup]):
    """Describe share groups and their members."""

    def __init__(
        self, administration: GroupAdministration, rules: ShareGroupRules, image: Callable[[], MetadataImage]
    ) -> None:
        """`image()`: the newest one."""
        super().__init__(ShareGroup, DescribedGroup, administration)
        self._rules, self._image = rules, image

    def _is_offered(self) -> bool:
        return self._rules.is_offered

    def _details(self, schema: Schema, group: ShareGroup | None) -> dict[str, object]:
        return {"assignor_name": "" if group is None else NAME}

    def _member(self, schema: Schema, group: ShareGroup, member: ShareMember) -> Member:
        topics = self._image().topics_by_number
        assigned = assignment(schema, Assignment, TopicPartitions, topics, member.assigned)
        return schema.make(Member, **fields_of(member), assignment=assigned)
