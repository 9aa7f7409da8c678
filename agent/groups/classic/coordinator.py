"""Serves the members of the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

Place: between the handlers of membership_requests.py and the groups of held_groups.py.
Invariant: a request is answered by the group's state machine, or with the code that sends its client to
the group's coordinator. An empty consumer group becomes a classic one when a classic member joins it. A group of a
kind without the classic protocol has no such members: joins are INCONSISTENT_GROUP_PROTOCOL, all else
UNKNOWN_MEMBER_ID, as in Kafka.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from headrace.agent.groups.classic.roster import protocols_bytes
from headrace.agent.groups.coordinated import Restore
from headrace.agent.groups.group_memory import MEMBER_BYTES
from headrace.agent.groups.group_values import Departure, JoinAnswer, JoinRequest, MemberRef, SyncAnswer, SyncRequest
from headrace.agent.groups.held_groups import HeldGroups
from headrace.agent.limits.client_memory import text_bytes
from headrace.agent.listener.client_turns import ClientTurns
from headrace.metastore.api.groups import GroupKind
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
        if held.group.kind is GroupKind.CONSUMER and held.group.is_idle():
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
