"""Serves the requests of the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, DescribeGroups.

JoinGroup (key 11, versions 0-9), SyncGroup (14, versions 0-5), Heartbeat (12, versions 0-4), LeaveGroup (13,
versions 0-5), DescribeGroups (15, versions 0-6).

Place: request fields to values, the groups of held_groups.py, and back; descriptions go by ../administration.py.
Invariant: a request is answered by the group's state machine, or with the code that sends its client to the group's
coordinator. An empty consumer or streams group becomes a classic one when a classic member joins it. A group of a kind
without the classic protocol has no such members: joins are INCONSISTENT_GROUP_PROTOCOL, all else UNKNOWN_MEMBER_ID, as
in Kafka. It is described by the request of its kind. Versions differ in fields only, but for a description of a group
that is not there: before version 6 it is "Dead". The rules are in group.py. Reasons are logged once a request was
accepted, in one line of limited length.
Source: Kafka's message schemas; KIP-345, KIP-394, KIP-559 (protocol in JoinGroup and SyncGroup), KIP-800
(reasons, for the log), KIP-814, KIP-1043 (not found).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from datetime import timedelta

from kio.schema.describe_groups.v6.request import DescribeGroupsRequest
from kio.schema.describe_groups.v6.response import DescribedGroup, DescribedGroupMember
from kio.schema.errors import ErrorCode
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.join_group.v9.request import JoinGroupRequest
from kio.schema.join_group.v9.response import JoinGroupResponseMember
from kio.schema.leave_group.v2.request import LeaveGroupRequest as LeaveOfOneRequest
from kio.schema.leave_group.v5.request import LeaveGroupRequest
from kio.schema.leave_group.v5.response import LeaveGroupResponse, MemberResponse
from kio.schema.sync_group.v5.request import SyncGroupRequest

from headrace.agent.access.authorization.operations import NOT_ASKED
from headrace.agent.groups.administration import GROUP_OPERATIONS, GroupAdministration
from headrace.agent.groups.classic.group import ClassicGroup
from headrace.agent.groups.classic.roster import protocols_bytes
from headrace.agent.groups.coordinated import Restore
from headrace.agent.groups.group_memory import MEMBER_BYTES
from headrace.agent.groups.group_values import (
    Departure,
    GroupDescription,
    JoinAnswer,
    JoinRequest,
    MemberProtocol,
    MemberRef,
    SyncAnswer,
    SyncRequest,
    client_host,
    is_legal_group_id,
)
from headrace.agent.groups.held_groups import HeldGroups
from headrace.agent.limits.client_memory import text_bytes
from headrace.agent.limits.client_texts import storable
from headrace.agent.limits.work_slices import WorkSlices
from headrace.agent.listener.client_turns import ClientTurns
from headrace.metastore.api.groups import GroupKind
from headrace.metastore.log.effective_configs import SettingsInForce
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply
from headrace.storage.client_text import shown
from headrace.storage.clock import Clock


class ClassicCoordinator:
    """Every answer carries a code; nothing raises for what clients can do."""

    def __init__(self, groups: HeldGroups, clock: Clock, new_classic_group: Restore) -> None:
        self._groups = groups
        self._clock = clock
        self._new_classic_group = new_classic_group
        self._turns = ClientTurns()
        """So that in one turn of the event loop one member joins, or those of one request leave."""

    async def join(self, group_id: str, request: JoinRequest) -> JoinAnswer:
        """Answered when the next generation is complete."""
        async with self._turns.turn(request.client_host):  # a join costs time for every member of the group
            await asyncio.sleep(0)
        held = await self._groups.find(group_id)
        if isinstance(held, ErrorCode):
            return JoinAnswer(held, request.member.member_id)
        member_id = request.member.member_id
        size = MEMBER_BYTES + text_bytes(
            member_id, request.member.instance_id, request.client_id, request.protocol_type
        )
        if not member_id:  # it will have one that begins with one of these
            size += text_bytes(request.member.instance_id or request.client_id)
        size += protocols_bytes(request.protocols)
        before = held.group.member_bytes(member_id)
        code = self._groups.memory.refuse(group_id, request.client_host, size, before, is_first=held.group.is_idle())
        if code is not ErrorCode.none:
            return JoinAnswer(code, member_id)
        now = self._clock.monotonic()
        if held.group.kind in (GroupKind.CONSUMER, GroupKind.STREAMS) and held.group.is_idle():
            self._groups.replace(held, *self._new_classic_group(group_id, now, None))
        if (protocol := held.group.classic_protocol) is None:
            self._groups.perform(held, [])  # it is measured without the member
            return JoinAnswer(ErrorCode.inconsistent_group_protocol, member_id)
        answer: asyncio.Future[JoinAnswer] = asyncio.get_running_loop().create_future()
        self._groups.perform(held, protocol.join(now, request, answer))
        return await answer

    async def sync(self, group_id: str, request: SyncRequest) -> SyncAnswer:
        """Answered when the leader's assignment is stored."""
        held = await self._groups.find(group_id)
        if isinstance(held, ErrorCode):
            return SyncAnswer(held)
        code = self._groups.memory.add(group_id, request.client_host, sum(map(len, request.assignments.values())))
        if code is not ErrorCode.none:
            return SyncAnswer(code)
        if (protocol := held.group.classic_protocol) is None:
            self._groups.perform(held, [])  # it is measured without the assignments
            return SyncAnswer(ErrorCode.unknown_member_id)
        answer: asyncio.Future[SyncAnswer] = asyncio.get_running_loop().create_future()
        self._groups.perform(held, protocol.sync(self._clock.monotonic(), request, answer))
        return await answer

    async def heartbeat(self, group_id: str, member: MemberRef) -> ErrorCode:
        """Return NONE while the member may continue."""
        held = await self._groups.find(group_id)
        if isinstance(held, ErrorCode):
            return held
        protocol = held.group.classic_protocol
        return ErrorCode.unknown_member_id if protocol is None else protocol.heartbeat(self._clock.monotonic(), member)

    async def leave(self, group_id: str, members: Iterable[MemberRef], client_host: str) -> list[Departure] | ErrorCode:
        """One departure per member, in order; a code when the group is not here."""
        async with self._turns.turn(client_host):  # thousands of members may leave in one request
            await asyncio.sleep(0)
        held = await self._groups.find(group_id)
        if isinstance(held, ErrorCode):
            return held
        if (protocol := held.group.classic_protocol) is None:
            return [Departure(each, ErrorCode.unknown_member_id) for each in members]
        departures, effects = protocol.leave(self._clock.monotonic(), members)
        self._groups.perform(held, effects)
        return departures


logger = logging.getLogger(__name__)

_FIRST_JOIN_WITH_ID_REQUIRED = 4
_FIRST_JOIN_WITH_NULLABLE_PROTOCOL = 7
_FIRST_JOIN_WITH_SKIP_ASSIGNMENT = 9
_FIRST_SYNC_WITH_PROTOCOL = 5
_FIRST_LEAVE_OF_SEVERAL = 3


class JoinGroup:
    """Let a member join a classic group."""

    def __init__(self, coordinator: ClassicCoordinator, in_force: SettingsInForce) -> None:
        self._coordinator = coordinator
        self._in_force = in_force

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, JoinGroupRequest)
        if not is_legal_group_id(entity.group_id):
            answer = JoinAnswer(ErrorCode.invalid_group_id, entity.member_id)
        elif not storable(entity.protocol_type):
            answer = JoinAnswer(ErrorCode.inconsistent_group_protocol, entity.member_id)
        elif not self._is_allowed(entity.session_timeout):
            answer = JoinAnswer(ErrorCode.invalid_session_timeout, entity.member_id)
        else:
            answer = await self._coordinator.join(entity.group_id, _join_request(request, entity))
            if answer.code is ErrorCode.none and (reason := getattr(entity, "reason", None)):
                group, member = shown(entity.group_id), shown(answer.member_id)
                logger.info("member joined: group=%s member=%s reason=%r", group, member, shown(reason))
        members = tuple(
            schema.make(JoinGroupResponseMember, member_id=m[0], group_instance_id=m[1], metadata=m[2])
            for m in answer.members
        )
        protocol_name = answer.protocol_name
        if protocol_name is None and schema.version < _FIRST_JOIN_WITH_NULLABLE_PROTOCOL:
            protocol_name = ""
        response = schema.response(
            error_code=answer.code,
            generation_id=answer.generation,
            protocol_type=answer.protocol_type,
            protocol_name=protocol_name,
            leader=answer.leader_id,
            skip_assignment=answer.skip_assignment,
            member_id=answer.member_id,
            members=members,
        )
        return reply(request, response)

    def _is_allowed(self, session_timeout: timedelta) -> bool:
        settings = self._in_force.current()
        shortest = timedelta(milliseconds=settings.group_min_session_timeout_ms)
        return shortest <= session_timeout <= timedelta(milliseconds=settings.group_max_session_timeout_ms)


def _join_request(request: Request, entity: JoinGroupRequest) -> JoinRequest:
    session_timeout = entity.session_timeout.total_seconds()
    rebalance_timeout = getattr(entity, "rebalance_timeout", entity.session_timeout).total_seconds()
    return JoinRequest(
        MemberRef(entity.member_id, getattr(entity, "group_instance_id", None)),
        request.client_id or "",
        client_host(request.connection),
        session_timeout,
        max(rebalance_timeout, 0.0),
        entity.protocol_type,
        tuple(MemberProtocol(protocol.name, protocol.metadata) for protocol in entity.protocols),
        id_required=request.api_version >= _FIRST_JOIN_WITH_ID_REQUIRED,
        can_skip_assignment=request.api_version >= _FIRST_JOIN_WITH_SKIP_ASSIGNMENT,
    )


def _sync_refusal(request: Request, entity: SyncGroupRequest) -> ErrorCode:
    """Return why a SyncGroup is refused: from version 5 on a member names protocol type and protocol (KIP-559)."""
    if not is_legal_group_id(entity.group_id):
        return ErrorCode.invalid_group_id
    if request.api_version >= _FIRST_SYNC_WITH_PROTOCOL and None in (entity.protocol_type, entity.protocol_name):
        return ErrorCode.inconsistent_group_protocol
    return ErrorCode.none


class SyncGroup:
    """Exchange the assignment of a classic group."""

    def __init__(self, coordinator: ClassicCoordinator) -> None:
        self._coordinator = coordinator

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, SyncGroupRequest)
        if (code := _sync_refusal(request, entity)) is not ErrorCode.none:
            refusal = schema.response(
                error_code=code,
                protocol_type=None,
                protocol_name=None,
                assignment=b"",
            )
            return reply(request, refusal)
        sync = SyncRequest(
            _member(entity),
            {each.member_id: each.assignment for each in entity.assignments},
            getattr(entity, "protocol_type", None),
            getattr(entity, "protocol_name", None),
            client_host(request.connection),
        )
        answer = await self._coordinator.sync(entity.group_id, sync)
        response = schema.response(
            error_code=answer.code,
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol_name,
            assignment=answer.assignment,
        )
        return reply(request, response)


class Heartbeat:
    """Keep a member of a classic group alive."""

    def __init__(self, coordinator: ClassicCoordinator) -> None:
        self._coordinator = coordinator

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, HeartbeatRequest)
        code = ErrorCode.invalid_group_id
        if is_legal_group_id(entity.group_id):
            code = await self._coordinator.heartbeat(entity.group_id, _member(entity))
        return reply(request, schema.response(error_code=code))


class LeaveGroup:
    """The handler. Before version 3 one member leaves, and its code is the request's."""

    def __init__(self, coordinator: ClassicCoordinator) -> None:
        self._coordinator = coordinator

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, LeaveGroupRequest)
        several = request.api_version >= _FIRST_LEAVE_OF_SEVERAL
        leaving = (
            [MemberRef(each.member_id, each.group_instance_id) for each in entity.members]
            if several
            else [MemberRef(decode(request, LeaveOfOneRequest)[1].member_id)]
        )
        if not is_legal_group_id(entity.group_id):
            return reply(request, _left(schema, ErrorCode.invalid_group_id))
        departures = await self._coordinator.leave(entity.group_id, leaving, client_host(request.connection))
        if isinstance(departures, ErrorCode):
            return reply(request, _left(schema, departures))
        _log_reasons(entity, departures)
        if not several:
            return reply(request, _left(schema, departures[0].code))
        members = tuple(
            schema.make(
                MemberResponse,
                member_id=departure.member.member_id,
                group_instance_id=departure.member.instance_id,
                error_code=departure.code,
            )
            for departure in departures
        )
        return reply(request, _left(schema, ErrorCode.none, members))


def _log_reasons(entity: LeaveGroupRequest, departures: Sequence[Departure]) -> None:
    """One line for the members that left and said why, with the first of them."""
    named = zip(getattr(entity, "members", ()), departures, strict=False)
    leaving = [each for each, departure in named if departure.code is ErrorCode.none and getattr(each, "reason", None)]
    if leaving:
        group, member, reason = shown(entity.group_id), shown(leaving[0].member_id), shown(leaving[0].reason)
        logger.info("members left: group=%s members=%d first=%s reason=%r", group, len(leaving), member, reason)


def _left(schema: Schema, code: ErrorCode, members: tuple[MemberResponse, ...] = ()) -> LeaveGroupResponse:
    return schema.make(LeaveGroupResponse, error_code=code, members=members)


def _member(entity: HeartbeatRequest | SyncGroupRequest) -> MemberRef:
    return MemberRef(entity.member_id, getattr(entity, "group_instance_id", None), entity.generation_id)


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
