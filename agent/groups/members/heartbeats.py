"""Serves heartbeats of one kind of group: reads the request, finds the group, brings the picture of the topics up to
date.

Place: between the rows of agent/apis and the groups of held_groups.py. A kind says in a subclass which groups it
makes, what else it has to find out before it asks one, and which fields its requests have.
Invariant: a group is judged by other topics than before only on an image that was brought to the log's head first: a
coordinator that lags behind its predecessor must not take new partitions away. A group of another kind stays what it
is, and one begins only where nothing is stored, unless the kind converts groups.
A request that is wrong in any state of the group (an empty id, a join without topics) is refused here, as Kafka
does; rules between members are in member_group.py.
Source: Kafka's message schemas, KIP-848, KIP-932.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.view import ClusterView
from headrace.agent.groups.claims import Held
from headrace.agent.groups.group_values import GroupEffect
from headrace.agent.groups.held_groups import HeldGroups
from headrace.agent.groups.members.member import JOIN_EPOCH, MemberHeartbeat, MemberHeartbeatAnswer, Partitions
from headrace.agent.groups.members.member_group import MemberGroup
from headrace.agent.limits.client_texts import storable
from headrace.agent.listener.client_turns import ClientTurns
from headrace.metastore.api.groups import GroupApi, GroupRecord
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError

logger = logging.getLogger(__name__)

G = TypeVar("G", bound=MemberGroup[Any, Any])
H = TypeVar("H", bound=MemberHeartbeat)


def is_blank(held: Held) -> bool:
    """Return whether nothing is known of the group in memory: it was restored from no record, and has no members."""
    return held.group.protocol_type is None and held.group.is_idle()


class HeartbeatCoordinator(ABC, Generic[G, H]):
    """Makes and serves groups of one kind. Every answer carries a code; nothing raises for what clients can do."""

    def __init__(self, group_type: type[G], api: GroupApi, cluster: ClusterView, clock: Clock) -> None:
        self._group_type = group_type
        self._api, self._cluster, self._clock = api, cluster, clock
        self._turns = ClientTurns()
        """One turn of the event loop changes one group."""

    # -- what differs

    @abstractmethod
    def _new_group(self, group_id: str) -> G:
        """A group of which nothing is stored."""

    @abstractmethod
    def _topics_by_name(self) -> Mapping[str, object]:
        """The topics by which a group is judged: the same object as long as none came, went or changed."""

    @abstractmethod
    def _size_of(self, held: Held, request: H, before: int) -> int:
        """Bytes of a member with what its heartbeat says; `before`: as the group knows it, 0 for a new one."""

    async def _refusal(self, held: Held, request: H) -> MemberHeartbeatAnswer | None:
        """Return why there is no group of this kind, and none begins. HeadraceError if that is not known."""
        if isinstance(held.group, self._group_type):
            return None
        if not request.joins and is_blank(held):
            return self._not_found(held, request)
        if not is_blank(held) or await self._api.list_groups([held.group.group_id]):
            return self._of_another_kind(held, request)
        return None

    def _is_up_to_date(self, held: Held, request: H) -> bool:
        """Return whether the heartbeat can be judged by the image that is there."""
        by_name = self._topics_by_name()
        is_judged = isinstance(held.group, self._group_type) and held.group.judges_by(by_name)
        return is_judged and all(name in by_name for name in request.topic_names or ())

    async def _match(self, held: Held, request: H) -> None:
        """Find out what the newest topics mean to the group and the member, if that takes long."""

    async def _look(self, held: Held, request: H) -> Callable[[G], None]:
        """Find out what else the group has to know before it judges the heartbeat; return what says so to it."""
        return lambda group: None

    def _resolved(self, request: H) -> H:
        """The heartbeat with what is looked up in the newest topics."""
        return request

    def _begin(self, groups: HeldGroups, held: Held, request: H) -> MemberHeartbeatAnswer | None:
        """Make a group of this kind of what is there; the answer if it stays as it is."""
        if not is_blank(held) or not request.joins:
            return self._not_found(held, request)
        groups.replace(held, self._new_group(held.group.group_id), [])
        return None

    # -- the path of a heartbeat

    def restore(self, group_id: str, now: float, record: GroupRecord | None) -> tuple[G, list[GroupEffect]]:
        """A coordinated.Restore."""
        group = self._new_group(group_id)
        if record is not None:
            group.restore(now, record)
        return group, []

    async def heartbeat(self, groups: HeldGroups, group_id: str, request: H) -> MemberHeartbeatAnswer:
        """Answered once what it says is stored."""
        held = await groups.find(group_id)
        if isinstance(held, ErrorCode):
            return MemberHeartbeatAnswer(held, request.member_id)
        before = held.group.member_bytes(request.member_id)
        size, is_first = self._size_of(held, request, before), held.group.is_idle()
        code = groups.memory.refuse(group_id, request.client_host, size, before, is_first=is_first)
        if code is not ErrorCode.none:
            return MemberHeartbeatAnswer(code, request.member_id)
        try:
            is_behind = not self._is_up_to_date(held, request)
            if refusal := await self._refusal(held, request):
                return refusal
            if is_behind:
                await self._cluster.catch_up()
        except HeadraceError as error:
            logger.warning("heartbeat not judged: group=%s error=%s", group_id, error)
            return MemberHeartbeatAnswer(ErrorCode.coordinator_load_in_progress, request.member_id)
        await self._match(held, request)
        if request.member_epoch <= JOIN_EPOCH or request.subscribes:
            async with self._turns.turn(request.client_host):  # a change costs time for every member of the group
                await asyncio.sleep(0)
        inform = await self._look(held, request)
        held = await groups.find(group_id)  # once more: it may have moved meanwhile
        if isinstance(held, ErrorCode):
            return MemberHeartbeatAnswer(held, request.member_id)
        return await self._ask(groups, held, request, inform)

    async def _ask(
        self, groups: HeldGroups, held: Held, request: H, inform: Callable[[G], None]
    ) -> MemberHeartbeatAnswer:
        if not isinstance(held.group, self._group_type):
            refusal = self._begin(groups, held, request)
            if refusal is not None:
                return refusal
        assert isinstance(held.group, self._group_type)
        answer: asyncio.Future[MemberHeartbeatAnswer] = asyncio.get_running_loop().create_future()
        try:
            inform(held.group)
            effects = held.group.member_heartbeat(self._clock.monotonic(), self._resolved(request), answer)
        except Exception:
            groups.drop(held)  # half changed: the next request finds it as it was stored
            raise
        groups.perform(held, effects, is_quiet=True)
        return await answer

    def _of_another_kind(self, held: Held, request: H) -> MemberHeartbeatAnswer:
        message = f"Group {held.group.group_id} is not a {self._group_type.kind.value} group."
        return MemberHeartbeatAnswer(ErrorCode.group_id_not_found, request.member_id, message=message)

    @staticmethod
    def _not_found(held: Held, request: H) -> MemberHeartbeatAnswer:
        """Return what a member of a group gets that does not exist, or not any more: Java's consumer stops at
        GROUP_ID_NOT_FOUND, and joins again after UNKNOWN_MEMBER_ID. A member that leaves need not.
        """
        if request.member_epoch > JOIN_EPOCH:
            return MemberHeartbeatAnswer(ErrorCode.unknown_member_id, request.member_id)
        message = f"Group {held.group.group_id} not found."
        return MemberHeartbeatAnswer(ErrorCode.group_id_not_found, request.member_id, message=message)


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
    def _fields(self, schema: Schema, request: Request, entity: E, answer: MemberHeartbeatAnswer) -> dict[str, object]:
        """Return the fields of the response that not all kinds have."""

    @abstractmethod
    def _interval(self, group_id: str) -> float:
        """Return the seconds until the member's next heartbeat, as configured now."""

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, self._message)
        answer = self._refusal(entity, request.api_version)
        if answer is None:
            heartbeat = self._heartbeat(request, entity)
            answer = await self._coordinator.heartbeat(self._groups, entity.group_id, heartbeat)
        ends = answer.code is not ErrorCode.none or answer.member_epoch < JOIN_EPOCH
        response = schema.response(
            error_code=answer.code,
            error_message=answer.message,
            member_epoch=answer.member_epoch,
            heartbeat_interval=timedelta(seconds=0 if ends else self._interval(entity.group_id)),
            **self._fields(schema, request, entity, answer),
        )
        return reply(request, response)


class PartitionsHandler(HeartbeatHandler[E, H]):
    """Serve heartbeats of members that are assigned partitions."""

    @abstractmethod
    def _assignment(self, schema: Schema, partitions: Partitions) -> object:
        """Return the partitions that the member has, as the response lists them."""

    def _fields(self, schema: Schema, request: Request, entity: E, answer: MemberHeartbeatAnswer) -> dict[str, object]:
        assigned = answer.assigned
        return {
            "member_id": answer.member_id if answer.code is ErrorCode.none else None,
            "assignment": None if assigned is None else self._assignment(schema, assigned),
        }
