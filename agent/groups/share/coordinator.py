"""Serves heartbeats of share groups, and makes share groups without members.

Place: a HeartbeatCoordinator (../members/heartbeat_coordinator.py), under heartbeat_request.py and share_offsets.py.
Invariant: a group of another kind stays what it is: a share group begins only where nothing is stored.
Source: KIP-932.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.view import ClusterView
from headrace.agent.groups.held_groups import Held, HeldGroups
from headrace.agent.groups.members.heartbeat_coordinator import HeartbeatCoordinator, is_blank
from headrace.agent.groups.members.member_values import MemberHeartbeat
from headrace.agent.groups.share.group import ShareGroup
from headrace.agent.groups.share.rules import ShareGroupRules
from headrace.agent.groups.share.share_values import ShareMember, ShareTopics
from headrace.metastore.api.groups import GroupApi
from headrace.protocol.errors import coordinator_error
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError

logger = logging.getLogger(__name__)


class ShareGroups(HeartbeatCoordinator[ShareGroup, MemberHeartbeat]):
    """Makes and serves share groups."""

    def __init__(
        self,
        api: GroupApi,
        cluster: ClusterView,
        clock: Clock,
        rules: ShareGroupRules,
        on_rebalance: Callable[[], None],
    ) -> None:
        """`on_rebalance` is called with each new epoch of a group."""
        super().__init__(ShareGroup, api, cluster, clock)
        self.rules, self._on_rebalance = rules, on_rebalance
        self._newest = ShareTopics({}, {}, {})

    def _new_group(self, group_id: str) -> ShareGroup:
        size_max, configs = (lambda: self.rules.size_max), partial(self.rules.of, group_id)
        group = ShareGroup(group_id, size_max, configs, self.topics, self._on_rebalance)
        group.followed = self._cluster.image
        return group

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

    def _topics_by_name(self) -> Mapping[str, object]:
        return self.topics().source

    def _size_of(self, request: MemberHeartbeat, before: int) -> int:
        if not request.subscribes:
            return before
        return ShareMember(request.member_id).updated_by(request).size_bytes()

    async def create(self, groups: HeldGroups, group_id: str) -> Held | ErrorCode:
        """Return the share group, or a new one without members, once it is stored; GROUP_ID_NOT_FOUND if a group of
        another kind has the id.
        """
        held = await groups.find(group_id)
        if isinstance(held, ErrorCode) or isinstance(held.group, ShareGroup):
            return held
        try:
            if not is_blank(held) or await self._api.list_groups([group_id]):
                return ErrorCode.group_id_not_found
        except HeadraceError as error:
            logger.warning("share group not created: group=%s error=%s", group_id, error)
            return ErrorCode(coordinator_error(error))
        held = await groups.find(group_id)  # once more: it may have moved meanwhile, or begun
        if isinstance(held, ErrorCode) or isinstance(held.group, ShareGroup):
            return held
        if not is_blank(held):
            return ErrorCode.group_id_not_found
        group = self._new_group(group_id)
        stored: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        groups.replace(held, group, group.create(stored))
        code = await stored
        return held if code is ErrorCode.none else code
