"""What the requests with which members heartbeat have in common: ConsumerGroupHeartbeat, ShareGroupHeartbeat.

Place: request fields to values and back, around heartbeat_coordinator.py.
Invariant: what is wrong in itself (an empty id, a join that says nothing) is refused here, as Kafka does; the rules
between members are in member_group.py.
Source: Kafka's message schemas.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
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
    """What the requests of all kinds have."""

    @property
    def group_id(self) -> str: ...

    @property
    def member_id(self) -> str: ...

    @property
    def rack_id(self) -> str | None: ...


E = TypeVar("E", bound=MemberRequest)


def faults_in_ids(
    entity: MemberRequest, topic_names: Iterable[str | None], *, needs_member_id: bool = True
) -> dict[str, bool]:
    """Return what may be wrong with the ids of any heartbeat, and whether it is, in Kafka's order. `topic_names`: and
    patterns.
    """
    instance_id = getattr(entity, "instance_id", None)
    texts = (entity.group_id, entity.member_id, instance_id, entity.rack_id, *topic_names)
    return {
        "GroupId can't be empty.": not entity.group_id.strip(),
        "MemberId can't be empty.": needs_member_id and not entity.member_id.strip(),
        "InstanceId can't be empty.": instance_id is not None and not instance_id.strip(),
        "RackId can't be empty.": entity.rack_id is not None and not entity.rack_id.strip(),
        "A text holds a character that is not allowed.": not all(storable(text) for text in texts if text),
    }


def first_fault(faults: Mapping[str, bool]) -> str | None:
    """Return the first of these messages that holds."""
    return next((message for message, is_so in faults.items() if is_so), None)


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
        """The request's values."""

    @abstractmethod
    def _assignment(self, schema: Schema, partitions: Partitions) -> object:
        """What the answer says of the partitions that the member has."""

    @abstractmethod
    def _interval(self, group_id: str) -> float:
        """Seconds until the member's next heartbeat, as configured now."""

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
