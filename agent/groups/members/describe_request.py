"""What the requests that describe groups with members have in common: ConsumerGroupDescribe, ShareGroupDescribe.

Place: request fields to the groups of held_groups.py and back.
Invariant: each group is answered for itself, by its coordinator only. A group of another kind, or none at all, is
GROUP_ID_NOT_FOUND, which makes clients ask DescribeGroups.
Source: Kafka's message schemas.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.operations import NOT_ASKED
from headrace.agent.groups.administration import GROUP_OPERATIONS, GroupAdministration
from headrace.agent.groups.claims import Held
from headrace.agent.groups.group_values import is_legal_group_id
from headrace.agent.groups.members.member import GroupMember
from headrace.agent.groups.members.member_group import MemberGroup
from headrace.agent.limits.work_slices import WorkSlices
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply

G = TypeVar("G", bound=MemberGroup[Any, Any])
M = TypeVar("M", bound=GroupMember[Any])
D = TypeVar("D")


class DescribeHandler(ABC, Generic[G, M, D]):
    """Describe groups of one kind and their members."""

    def __init__(self, group_type: type[G], message: type[D], administration: GroupAdministration) -> None:
        """`message`: the class of what the answer says of a group."""
        self._group_type, self._message, self._administration = group_type, message, administration

    # -- what differs

    @abstractmethod
    def _details(self, schema: Schema, group: G | None) -> dict[str, object]:
        """Return the fields of a group that not all kinds have; None: of one that is not described."""

    @abstractmethod
    def _member(self, schema: Schema, group: G, member: M) -> object:
        """Return what the answer says of a member: `fields_of`, and what not all kinds have."""

    def _is_offered(self) -> bool:
        """Say whether there may be groups of this kind; UNSUPPORTED_VERSION if not."""
        return True

    async def _find(self, group_id: str) -> Held | ErrorCode:
        """The group, of any kind; GROUP_ID_NOT_FOUND when there is nothing of it."""
        return await self._administration.existing(group_id)

    # -- the request

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request)
        operations = GROUP_OPERATIONS if entity.include_authorized_operations else NOT_ASKED
        names = list(dict.fromkeys(entity.group_ids))  # each once: an answer is much longer than a name
        if not self._is_offered():
            refused = tuple(self._undescribed(schema, name, ErrorCode.unsupported_version) for name in names)
            return reply(request, schema.response(groups=refused))
        slices = WorkSlices()
        unknown = await self._administration.unknown([name for name in names if is_legal_group_id(name)], slices)
        groups = []
        for name in names:
            await self._administration.elect(name, slices)
            groups.append(
                self._undescribed(schema, name, ErrorCode.group_id_not_found, f"Group {name} not found.")
                if name in unknown
                else await self._describe(schema, name, operations)
            )
        return reply(request, schema.response(groups=tuple(groups)))

    async def _describe(self, schema: Schema, group_id: str, operations: int) -> D:
        if not is_legal_group_id(group_id):
            return self._undescribed(schema, group_id, ErrorCode.invalid_group_id)
        held = await self._find(group_id)
        if isinstance(held, ErrorCode):
            message = f"Group {group_id} not found." if held is ErrorCode.group_id_not_found else None
            return self._undescribed(schema, group_id, held, message)
        group = held.group
        if not isinstance(group, self._group_type):
            message = f"Group {group_id} is not a {self._group_type.kind.value} group."
            return self._undescribed(schema, group_id, ErrorCode.group_id_not_found, message)
        return schema.make(
            self._message,
            error_code=ErrorCode.none,
            error_message=None,
            group_id=group_id,
            group_state=group.state_name,
            group_epoch=group.target.group_epoch,
            assignment_epoch=group.target.epoch,
            **self._details(schema, group),
            members=tuple(self._member(schema, group, member) for member in group.roster),
            authorized_operations=operations,
        )

    def _undescribed(self, schema: Schema, group_id: str, code: ErrorCode, message: str | None = None) -> D:
        """Return why a group is not described."""
        return schema.make(
            self._message,
            error_code=code,
            error_message=message,
            group_id=group_id,
            group_state="",
            group_epoch=0,
            assignment_epoch=0,
            **self._details(schema, None),
            members=(),
            authorized_operations=NOT_ASKED,
        )


def fields_of(member: GroupMember[Any]) -> dict[str, object]:
    """Return what the answers say of a member of any kind, but for its assignment."""
    return {
        "member_id": member.member_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": tuple(sorted(member.topic_names)),
    }
