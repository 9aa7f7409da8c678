"""DescribeGroups (key 15, versions 0-6): members of classic groups.

Place: request fields to administration.py and back. A group of another kind is described by the request of that kind.
Invariant: versions differ in fields only, but for a group that is not there: before version 6 it is "Dead".
Source: Kafka's message schemas, KIP-1043 (not found).
"""

from __future__ import annotations

from kio.schema.describe_groups.v6.request import DescribeGroupsRequest
from kio.schema.describe_groups.v6.response import DescribedGroup, DescribedGroupMember
from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.operations import NOT_ASKED
from headrace.agent.groups.administration import GROUP_OPERATIONS, GroupAdministration
from headrace.agent.groups.classic.group import ClassicGroup
from headrace.agent.groups.group_values import GroupDescription
from headrace.agent.groups.names import is_legal_group_id
from headrace.agent.limits.work_slices import WorkSlices
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply

_FIRST_WITH_NOT_FOUND = 6
_DEAD = GroupDescription("Dead", "", "", ())


class DescribeGroups:
    """Describe classic groups and their members."""

    def __init__(self, administration: GroupAdministration) -> None:
        self._administration = administration

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, DescribeGroupsRequest)
        operations = GROUP_OPERATIONS if getattr(entity, "include_authorized_operations", False) else NOT_ASKED
        names = list(dict.fromkeys(entity.groups))  # each once: an answer is much longer than a name
        slices = WorkSlices()
        unknown = await self._administration.unknown([name for name in names if is_legal_group_id(name)], slices)
        groups = []
        for name in names:
            await self._administration.elect(name, slices)
            groups.append(await self._describe(schema, name, operations, name in unknown))
        return reply(request, schema.response(groups=tuple(groups)))

    async def _describe(self, schema: Schema, group_id: str, operations: int, is_unknown: bool) -> DescribedGroup:
        found: GroupDescription | ErrorCode = ErrorCode.invalid_group_id
        if is_unknown:
            found = ErrorCode.group_id_not_found
        elif is_legal_group_id(group_id):
            found = await self._found(group_id)
        code, message = ErrorCode.none, None
        if found is ErrorCode.group_id_not_found:
            found = _DEAD
            if schema.version >= _FIRST_WITH_NOT_FOUND:
                code, message = ErrorCode.group_id_not_found, f"Group {group_id} not found."
        elif isinstance(found, ErrorCode):
            code, found = found, GroupDescription("", "", "", ())
        return schema.make(
            DescribedGroup,
            error_code=code,
            error_message=message,
            group_id=group_id,
            group_state=found.state,
            protocol_type=found.protocol_type,
            protocol_data=found.protocol_name,
            members=tuple(
                schema.make(
                    DescribedGroupMember,
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.metadata,
                    member_assignment=member.assignment,
                )
                for member in found.members
            ),
            authorized_operations=operations if code is ErrorCode.none else NOT_ASKED,
        )

    async def _found(self, group_id: str) -> GroupDescription | ErrorCode:
        """GROUP_ID_NOT_FOUND for a group that is not there or of another kind."""
        held = await self._administration.existing(group_id)
        if isinstance(held, ErrorCode):
            return held
        return held.group.describe() if isinstance(held.group, ClassicGroup) else ErrorCode.group_id_not_found
