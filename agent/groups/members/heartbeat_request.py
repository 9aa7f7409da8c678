"""The common part of the requests with which members heartbeat: ConsumerGroupHeartbeat, ShareGroupHeartbeat.

Place: request fields to values and back, around heartbeat_coordinator.py.
Invariant: a request that is wrong in any state of the group (an empty id, a join without topics) is refused here,
as Kafka does; rules between members are in member_group.py.
Source: Kafka's message schemas.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar

from kio.schema.errors import ErrorCode

from headrace.agent.groups.held_groups import HeldGroups
from headrace.agent.groups.members.heartbeat_coordinator import HeartbeatCoordinator
from headrace.agent.groups.members.member_values import MemberHeartbeat, MemberHeartbeatAnswer
from headrace.agent.groups.members.partitions import Partitions
from headrace.agent.limits.stored_ids import storable
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply

H = TypeVar("H", bound=MemberHeartbeat)


class MemberRequest(Protocol):
    """The fields that the requests of all kinds have."""

    @property
    def group_id(self) -> str: ...

    @property
    def member_id(self) -> str: ...

    @property
    def rack_id(self) -> str | None: ...


E = TypeVar("E", bound=MemberRequest)


def fault_in_ids(
    entity: MemberRequest, topic_names: Iterable[str | None], *, needs_member_id: bool = True
) -> str | None:
    """Return what is wrong with the ids of a heartbeat: the first fault in Kafka's order. `topic_names`: its topics and
    patterns, of which the characters are checked.
    """
    instance_id = getattr(entity, "instance_id", None)
    if not entity.group_id.strip():
        return "GroupId can't be empty."
    if needs_member_id and not entity.member_id.strip():
        return "MemberId can't be empty."
    if instance_id is not None and not instance_id.strip():
        return "InstanceId can't be empty."
    if entity.rack_id is not None and not entity.rack_id.strip():
        return "RackId can't be empty."
    texts = (entity.group_id, entity.member_id, instance_id, entity.rack_id, *topic_names)
    if not all(storable(text) for text in texts if text):
        return "A text holds a character that is not allowed."
    return None


class HeartbeatHandler(ABC, Generic[E, H]):
    """Serve heartbeats of members of one kind of group."""

    def __init__(self, message: type[E], groups: HeldGroups, coordinator: HeartbeatCoordinator[Any, H]) -> None:
        """`message`: the class of the request."""
        self._message, self._groups, self._coordinator = message, groups, coordinator

    @abstractmethod
    def _refusal(self, entity: E, version: int) -> MemberHeartbeatAnswer | None:
        """Return why the request is refused before its group is looked for."""

    @abstractmethod
    def _heartbeat(self, request: Request, entity: E) -> H:
        """Return the values of the request."""

    @abstractmethod
    def _assignment(self, schema: Schema, partitions: Partitions) -> object:
        """Return the partitions that the member has, as the response lists them."""

    @abstractmethod
    def _interval(self, group_id: str) -> float:
        """Return the seconds until the member's next heartbeat, as configured now."""

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, self._message)
        answer = self._refusal(entity, request.api_version)
        if answer is None:
            heartbeat = self._heartbeat(request, entity)
            answer = await self._coordinator.heartbeat(self._groups, entity.group_id, heartbeat)
        return reply(request, self._response(schema, entity, answer))

    def _response(self, schema: Schema, entity: E, answer: MemberHeartbeatAnswer) -> object:
        failed = answer.code is not ErrorCode.none
        assigned = answer.assigned
        return schema.response(
            error_code=answer.code,
            error_message=answer.message,
            member_id=None if failed else answer.member_id,
            member_epoch=answer.member_epoch,
            heartbeat_interval=timedelta(seconds=0 if failed else self._interval(entity.group_id)),
            assignment=None if assigned is None else self._assignment(schema, assigned),
        )
