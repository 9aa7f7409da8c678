"""ShareGroupDescribe (77, version 1): members of share groups, with the partitions that each reads.

Place: request fields to the groups of held_groups.py and back.
Invariant: each group is answered for itself, by its coordinator only. A group of another kind, or none at all, is
GROUP_ID_NOT_FOUND.
Source: Kafka's message schemas, KIP-932.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.operations import NOT_ASKED
from headrace.agent.groups.admin_requests import GROUP_OPERATIONS, undescribed
from headrace.agent.groups.administration import GroupAdministration
from headrace.agent.groups.held_groups import Held
from headrace.agent.groups.names import is_legal_group_id
from headrace.agent.groups.share.assignor import NAME
from headrace.agent.groups.share.group import ShareGroup
from headrace.agent.groups.share.heartbeat_request import topic_partitions
from headrace.agent.groups.share.rules import ShareGroupRules
from headrace.agent.groups.share.share_values import ShareMember
from headrace.agent.limits.work_slices import WorkSlices
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply


class ShareGroupDescribe:
    """Describe share groups and their members."""

    def __init__(self, administration: GroupAdministration, rules: ShareGroupRules, image: Any) -> None:
        """`image()`: the newest one."""
        self._administration, self._rules, self._image = administration, rules, image

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request)
        operations = GROUP_OPERATIONS if entity.include_authorized_operations else NOT_ASKED
        names = list(dict.fromkeys(entity.group_ids))  # each once: an answer is much longer than a name
        if not self._rules.is_offered:
            refused = tuple(undescribed(schema, name, ErrorCode.unsupported_version) for name in names)
            return reply(request, schema.response(groups=refused))
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
        held = await self._administration.existing(group_id)
        if held is ErrorCode.group_id_not_found:
            return undescribed(schema, group_id, held, f"Group {group_id} not found.")
        if not isinstance(held, Held):
            return undescribed(schema, group_id, held)
        group = held.group
        if not isinstance(group, ShareGroup):
            message = f"Group {group_id} is not a share group."
            return undescribed(schema, group_id, ErrorCode.group_id_not_found, message)
        return schema.make(
            "DescribedGroup",
            error_code=ErrorCode.none,
            error_message=None,
            group_id=group_id,
            group_state=group.state_name,
            group_epoch=group.target.group_epoch,
            assignment_epoch=group.target.epoch,
            assignor_name=NAME,
            members=tuple(self._member(schema, member) for member in group.roster),
            authorized_operations=operations,
        )

    def _member(self, schema: Schema, member: ShareMember) -> Any:
        return schema.make(
            "Member",
            member_id=member.member_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=tuple(sorted(member.topic_names)),
            assignment=schema.make(
                "Assignment", topic_partitions=topic_partitions(schema, self._image(), member.assigned)
            ),
        )
