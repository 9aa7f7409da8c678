"""Serves heartbeats of share groups: finds the group, brings the picture of the topics up to date, asks.

Place: between heartbeat_request.py and the groups of held_groups.py.
Invariant: a group is judged by other topics than before only on an image that was brought to the log's head first. A
group of another kind stays what it is: a share group begins only where nothing is stored.
Source: KIP-932.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.view import ClusterView
from headrace.agent.groups.classic.group import ClassicGroup
from headrace.agent.groups.group_values import GroupEffect
from headrace.agent.groups.held_groups import Held, HeldGroups
from headrace.agent.groups.members.member_values import JOIN_EPOCH, MemberHeartbeat, MemberHeartbeatAnswer
from headrace.agent.groups.share.group import ShareGroup
from headrace.agent.groups.share.rules import ShareGroupRules
from headrace.agent.groups.share.share_values import ShareMember, ShareTopics
from headrace.agent.listener.client_turns import ClientTurns
from headrace.metastore.api.groups import GroupApi, GroupRecord
from headrace.protocol.errors import coordinator_error
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError

logger = logging.getLogger(__name__)


class ShareGroups:
    """Makes and serves share groups. Every answer carries a code; nothing raises for what clients can do."""

    def __init__(
        self,
        api: GroupApi,
        cluster: ClusterView,
        clock: Clock,
        rules: ShareGroupRules,
        on_rebalance: Callable[[], None],
    ) -> None:
        self.rules, self._on_rebalance = rules, on_rebalance
        self._api, self._cluster, self._clock = api, cluster, clock
        self._turns = ClientTurns()
        self._newest = ShareTopics(None, {}, {})

    def restore(self, group_id: str, now: float, record: GroupRecord | None) -> tuple[ShareGroup, list[GroupEffect]]:
        """A coordinated.Restore."""
        size_max, configs = (lambda: self.rules.size_max), partial(self.rules.of, group_id)
        group = ShareGroup(group_id, size_max, configs, self.topics, self._on_rebalance)
        group.followed = self._cluster.image
        if record is not None:
            group.restore(now, record)
        return group, []

    def topics(self) -> ShareTopics:
        """The newest picture of the topics: with all partitions that exist, also those that take no new records, but
        without aliases: all that is in those was done before.
        """
        by_name = self._cluster.image.topics_by_name
        if self._newest.source is not by_name:
            keys = {
                topic.topic_number: [key for index in topic.unmerged if (key := topic.key(index)) is not None]
                for topic in by_name.values()
            }
            self._newest = ShareTopics(by_name, {name: topic.topic_number for name, topic in by_name.items()}, keys)
        return self._newest

    async def heartbeat(self, groups: HeldGroups, group_id: str, request: MemberHeartbeat) -> MemberHeartbeatAnswer:
        """Answered once what it says is stored."""
        held = await groups.find(group_id)
        if isinstance(held, ErrorCode):
            return MemberHeartbeatAnswer(held, request.member_id)
        member = ShareMember(
            request.member_id,
            None,
            request.rack_id,
            request.client_id,
            request.client_host,
            request.topic_names or frozenset(),
        )
        before = held.group.member_bytes(request.member_id)
        size = member.size_bytes() if request.topic_names is not None else before
        code = groups.memory.refuse(group_id, request.client_host, size, before, is_first=held.group.is_idle())
        if code is not ErrorCode.none:
            return MemberHeartbeatAnswer(code, request.member_id)
        try:
            if refusal := await self._prepare(held, request):
                return refusal
        except HeadraceError as error:
            logger.warning("share heartbeat not judged: group=%s error=%s", group_id, error)
            return MemberHeartbeatAnswer(ErrorCode.coordinator_load_in_progress, request.member_id)
        if request.member_epoch <= JOIN_EPOCH or request.topic_names is not None:
            async with self._turns.turn(request.client_host):  # a change costs time for every member of the group
                await asyncio.sleep(0)
        held = await groups.find(group_id)  # once more: it may have moved meanwhile
        if isinstance(held, ErrorCode):
            return MemberHeartbeatAnswer(held, request.member_id)
        return await self._ask(groups, held, request)

    async def create(self, groups: HeldGroups, group_id: str) -> Held | ErrorCode:
        """Return the share group, or a new one without members, once it is stored; GROUP_ID_NOT_FOUND if a group of
        another kind has the id.
        """
        held = await groups.find(group_id)
        if isinstance(held, ErrorCode) or isinstance(held.group, ShareGroup):
            return held
        try:
            if not _is_blank(held) or await self._api.list_groups([group_id]):
                return ErrorCode.group_id_not_found
        except HeadraceError as error:
            logger.warning("share group not created: group=%s error=%s", group_id, error)
            return ErrorCode(coordinator_error(error))
        held = await groups.find(group_id)  # once more: it may have moved meanwhile, or begun
        if isinstance(held, ErrorCode) or isinstance(held.group, ShareGroup):
            return held
        if not _is_blank(held):
            return ErrorCode.group_id_not_found
        group, _ = self.restore(group_id, self._clock.monotonic(), None)
        stored: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        groups.replace(held, group, group.create(stored))
        code = await stored
        return held if code is ErrorCode.none else code

    async def _prepare(self, held: Held, request: MemberHeartbeat) -> MemberHeartbeatAnswer | None:
        """Bring the topics up to date; refuse a group that is of another kind."""
        group, topics = held.group, self.topics()
        if not isinstance(group, ShareGroup):
            if request.member_epoch != JOIN_EPOCH and _is_blank(held):
                return _not_found(group.group_id, request)
            if not _is_blank(held) or await self._api.list_groups([group.group_id]):
                message = f"Group {group.group_id} is not a share group."
                return MemberHeartbeatAnswer(ErrorCode.group_id_not_found, request.member_id, message=message)
        named = all(name in topics.numbers for name in request.topic_names or ())
        if not (isinstance(group, ShareGroup) and group.judges_by(topics.source) and named):
            await self._cluster.catch_up()
        return None

    async def _ask(self, groups: HeldGroups, held: Held, request: MemberHeartbeat) -> MemberHeartbeatAnswer:
        if not isinstance(held.group, ShareGroup):
            if not _is_blank(held) or request.member_epoch != JOIN_EPOCH:
                return _not_found(held.group.group_id, request)
            group, _ = self.restore(held.group.group_id, self._clock.monotonic(), None)
            groups.replace(held, group, [])
        assert isinstance(held.group, ShareGroup)
        answer: asyncio.Future[MemberHeartbeatAnswer] = asyncio.get_running_loop().create_future()
        try:
            effects = held.group.member_heartbeat(self._clock.monotonic(), request, answer)
        except Exception:
            groups.drop(held)  # half changed: the next request finds it as it was stored
            raise
        groups.perform(held, effects, is_quiet=True)
        return await answer


def _is_blank(held: Held) -> bool:
    """Return whether nothing is known of the group in memory: it was restored from no record, and has no members."""
    return isinstance(held.group, ClassicGroup) and held.group.is_idle() and held.group.protocol_type is None


def _not_found(group_id: str, request: MemberHeartbeat) -> MemberHeartbeatAnswer:
    """Return what a member of a group gets that does not exist, or not any more: Java's consumer stops at
    GROUP_ID_NOT_FOUND, and joins again after UNKNOWN_MEMBER_ID. A member that leaves need not.
    """
    if request.member_epoch > JOIN_EPOCH:
        return MemberHeartbeatAnswer(ErrorCode.unknown_member_id, request.member_id)
    message = f"Group {group_id} not found."
    return MemberHeartbeatAnswer(ErrorCode.group_id_not_found, request.member_id, message=message)
