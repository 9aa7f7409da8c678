"""JoinGroup (11, versions 0-9), SyncGroup (14, 0-5), Heartbeat (12, 0-4) and LeaveGroup (13, 0-5).

Place: request fields to the coordinator's values and back.
Invariant: versions differ in fields only; the rules are in group.py. Reasons are logged once a request was accepted, in
one line of limited length.
Source: Kafka's message schemas; KIP-345, KIP-394, KIP-559 (protocol in JoinGroup and SyncGroup), KIP-800
(reasons, for the log), KIP-814.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta

from kio.schema.errors import ErrorCode
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.join_group.v9.request import JoinGroupRequest
from kio.schema.join_group.v9.response import JoinGroupResponseMember
from kio.schema.leave_group.v2.request import LeaveGroupRequest as LeaveOfOneRequest
from kio.schema.leave_group.v5.request import LeaveGroupRequest
from kio.schema.leave_group.v5.response import LeaveGroupResponse, MemberResponse
from kio.schema.sync_group.v5.request import SyncGroupRequest

from headrace.agent.groups.classic.coordinator import ClassicCoordinator
from headrace.agent.groups.group_values import (
    Departure,
    JoinAnswer,
    JoinRequest,
    MemberProtocol,
    MemberRef,
    SyncRequest,
)
from headrace.agent.groups.names import client_host, is_legal_group_id
from headrace.agent.limits.stored_ids import storable
from headrace.metastore.log.effective_configs import SettingsInForce
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply
from headrace.storage.client_text import shown

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
