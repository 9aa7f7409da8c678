"""Serves heartbeats of share groups; makes share groups without members.

Place: a HeartbeatCoordinator with the handler of ShareGroupHeartbeat (key 76, version 1) around it
(../members/heartbeats.py), also under offsets.py. While share.version is 0 nothing is asked.
Invariant: a group of another kind stays what it is: a share group begins only where nothing is stored.
Source: Kafka's message schemas, KIP-932.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from kio.schema.errors import ErrorCode
from kio.schema.share_group_heartbeat.v1.request import ShareGroupHeartbeatRequest
from kio.schema.share_group_heartbeat.v1.response import Assignment, TopicPartitions

from headrace.agent.cluster.view import ClusterView
from headrace.agent.groups.claims import Held
from headrace.agent.groups.group_values import client_host
from headrace.agent.groups.held_groups import HeldGroups
from headrace.agent.groups.members.heartbeats import HeartbeatCoordinator, PartitionsHandler, fault_in_ids, is_blank
from headrace.agent.groups.members.member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    MemberHeartbeat,
    MemberHeartbeatAnswer,
    Partitions,
    assignment,
)
from headrace.agent.groups.share.group import ShareGroup
from headrace.agent.groups.share.membership import ShareMember, ShareTopics
from headrace.agent.groups.share.rules import ShareGroupRules
from headrace.metastore.api.groups import GroupApi
from headrace.metastore.log.image import MetadataImage
from headrace.protocol.errors import coordinator_error
from headrace.protocol.request import Request
from headrace.protocol.typed import Schema
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

    def _size_of(self, held: Held, request: MemberHeartbeat, before: int) -> int:
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


class ShareGroupHeartbeat(PartitionsHandler[ShareGroupHeartbeatRequest, MemberHeartbeat]):
    """Serve heartbeats of members of share groups."""

    def __init__(self, groups: HeldGroups, share_groups: ShareGroups, image: Callable[[], MetadataImage]) -> None:
        """`image()`: the newest one."""
        super().__init__(ShareGroupHeartbeatRequest, groups, share_groups)
        self._rules, self._image = share_groups.rules, image

    def _refusal(self, entity: ShareGroupHeartbeatRequest, version: int) -> MemberHeartbeatAnswer | None:
        if not self._rules.is_offered:
            return MemberHeartbeatAnswer(ErrorCode.unsupported_version, entity.member_id)
        message = _fault(entity)
        return (
            None
            if message is None
            else MemberHeartbeatAnswer(ErrorCode.invalid_request, entity.member_id, message=message)
        )

    def _heartbeat(self, request: Request, entity: ShareGroupHeartbeatRequest) -> MemberHeartbeat:
        names = entity.subscribed_topic_names
        return MemberHeartbeat(
            entity.member_id,
            entity.member_epoch,
            None,
            entity.rack_id,
            request.client_id or "",
            client_host(request.connection),
            None if names is None else frozenset(names),
        )

    def _assignment(self, schema: Schema, partitions: Partitions) -> Assignment:
        topics = self._image().topics_by_number
        return assignment(schema, Assignment, TopicPartitions, topics, partitions)

    def _interval(self, group_id: str) -> float:
        return self._rules.of(group_id).heartbeat_interval


def _fault(entity: ShareGroupHeartbeatRequest) -> str | None:
    """Return what is wrong with the request itself, in any state of the group: the first fault in Kafka's order."""
    names = entity.subscribed_topic_names
    if fault := fault_in_ids(entity, names or ()):
        return fault
    if entity.member_epoch == JOIN_EPOCH and not names:
        return "SubscribedTopicNames must be set in first request."
    if entity.member_epoch < LEAVE_EPOCH:
        return f"MemberEpoch is invalid: {entity.member_epoch}."
    return None
