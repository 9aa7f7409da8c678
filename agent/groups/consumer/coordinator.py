"""Serves members of the consumer protocol: what patterns match, what gates may open, conversions, their heartbeats.

Place: a HeartbeatCoordinator with the handler of ConsumerGroupHeartbeat (key 68, versions 0-1) around it
(../members/heartbeats.py). From version 1 on the member makes its id itself.
Invariant: a topic id that is not known yet is not taken for one without an owner. An empty group takes the kind of
the first member that joins; a group with classic members changes only as the migration policy says. A gate that
could not be judged stays closed (topics.py).
Source: Kafka's message schemas, KIP-848.
"""

from __future__ import annotations

import base64
import logging
import random
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest
from kio.schema.consumer_group_heartbeat.v1.response import Assignment, TopicPartitions
from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.cluster.view import ClusterView
from headrace.agent.groups.claims import Held
from headrace.agent.groups.classic.group import ClassicGroup
from headrace.agent.groups.consumer.conversion import from_classic
from headrace.agent.groups.consumer.group import ConsumerGroup
from headrace.agent.groups.consumer.members import ConsumerHeartbeat, OwnedTopics
from headrace.agent.groups.consumer.rules import ASSIGNORS, ConsumerGroupRules, GroupTimes
from headrace.agent.groups.consumer.topics import Gate, GroupTopics, children_to_begin, is_valid
from headrace.agent.groups.group_memory import MEMBER_BYTES
from headrace.agent.groups.group_values import client_host
from headrace.agent.groups.held_groups import HeldGroups
from headrace.agent.groups.members.heartbeats import HeartbeatCoordinator, PartitionsHandler, fault_in_ids
from headrace.agent.groups.members.member import (
    JOIN_EPOCH,
    LEAVE_FOR_A_WHILE_EPOCH,
    MemberHeartbeatAnswer,
    Partitions,
    assignment,
    names_bytes,
)
from headrace.agent.limits.client_memory import text_bytes
from headrace.metastore.api.groups import CommittedOffset, GroupApi, ParentPosition
from headrace.protocol.request import ANONYMOUS, Request
from headrace.protocol.typed import Schema
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError

logger = logging.getLogger(__name__)


def late_groups(groups: Iterable[Held], now: float, late_ms: int) -> dict[str, float]:
    """Group id -> seconds, of those that have waited for longer than `late_ms` before a closed gate."""
    consumers = [held.group for held in groups if isinstance(held.group, ConsumerGroup)]
    waits = {group.group_id: now - since for group in consumers if (since := group.gates.late_since) is not None}
    return {group_id: seconds for group_id, seconds in waits.items() if seconds * 1000 >= late_ms}


def _member_bytes(request: ConsumerHeartbeat) -> int:
    """Return the memory of a member with what its heartbeat says."""
    size = MEMBER_BYTES + names_bytes(request.topic_names or ())
    size += text_bytes(request.member_id, request.instance_id, request.rack_id, request.client_id, request.assignor)
    return size + text_bytes(request.topic_pattern, request.subscription_pattern, request.principal)


class ConsumerGroups(HeartbeatCoordinator[ConsumerGroup, ConsumerHeartbeat]):
    """Makes and serves consumer groups."""

    def __init__(
        self,
        api: GroupApi,
        cluster: ClusterView,
        clock: Clock,
        rules: ConsumerGroupRules,
        rng: random.Random,
        authorizer: Authorizer | None,
    ) -> None:
        """`authorizer`: None if ACLs are not enforced."""
        super().__init__(ConsumerGroup, api, cluster, clock)
        self.rules, self._rng = rules, rng
        self.topics = GroupTopics(cluster, authorizer)

    def _new_group(self, group_id: str) -> ConsumerGroup:
        return ConsumerGroup(group_id, self.rules, self.topics.topics, lambda: self.times(group_id), self._rng)

    def times(self, group_id: str) -> GroupTimes:
        """Return the times that are configured now."""
        return self.rules.times(self._cluster.image, group_id)

    def _topics_by_name(self) -> Mapping[str, object]:
        return self.topics.topics().by_name

    def _size_of(self, held: Held, request: ConsumerHeartbeat, before: int) -> int:
        return _member_bytes(request)

    async def _refusal(self, held: Held, request: ConsumerHeartbeat) -> MemberHeartbeatAnswer | None:
        """None: what is no consumer group may become one."""
        return None

    async def _match(self, held: Held, request: ConsumerHeartbeat) -> None:
        """Match patterns on a thread."""
        patterns = held.group.roster.patterns if isinstance(held.group, ConsumerGroup) else []
        await self.topics.prepare([*patterns, request.subscription_pattern])

    def _is_up_to_date(self, held: Held, request: ConsumerHeartbeat) -> bool:
        owned = (topic_id for topic_id, _ in request.owned_topics or ())
        return super()._is_up_to_date(held, request) and all(self.topics.by_id(each) is not None for each in owned)

    def _resolved(self, request: ConsumerHeartbeat) -> ConsumerHeartbeat:
        owned = request.owned_topics
        return request if owned is None else replace(request, owned=self._keys(owned))

    def _keys(self, owned: OwnedTopics) -> Partitions:
        """Keys of what is there; a topic that is gone cannot be owned."""
        topics = ((self.topics.by_id(topic_id), indexes) for topic_id, indexes in owned)
        each = (topic.key(index) for topic, indexes in topics if topic is not None for index in indexes)
        return frozenset(key for key in each if key is not None)

    async def _look(self, held: Held, request: ConsumerHeartbeat) -> Callable[[ConsumerGroup], None]:
        gates, positions = await self._positions(held, request)
        if gates is None:
            return lambda group: None
        return lambda group: group.judge_gates(self._clock.monotonic(), gates, positions)

    async def _positions(
        self, held: Held, request: ConsumerHeartbeat
    ) -> tuple[Sequence[Gate] | None, Sequence[ParentPosition]]:
        """Gates that may have to be opened, and where the group is in their parents; None if it was no time to look."""
        topics = self.topics.topics([request.subscription_pattern])
        if not topics.gates:
            return None, ()
        wanted = topics.of(request.topic_names or (), request.subscription_pattern)
        if isinstance(held.group, ConsumerGroup):
            gates = held.group.gates_to_judge(self._clock.monotonic(), topics, wanted)
        else:
            gates = [gate for gate in topics.gates_of(wanted) if gate.boundary is not None]
        if not gates:
            return gates, ()
        group_id = held.group.group_id
        try:
            positions = await self._api.parent_positions(group_id, sorted(gate.parent_key for gate in gates))
            if beginnings := children_to_begin(gates, positions):
                async with held.commits:
                    await self._api.commit_offsets(
                        group_id, held.epoch, [CommittedOffset(key, at, -1, "") for key, at in beginnings.items()]
                    )
            return gates, positions
        except HeadraceError as error:
            logger.warning("gates not judged: group=%s error=%s", group_id, error)
            return None, ()

    def _begin(self, groups: HeldGroups, held: Held, request: ConsumerHeartbeat) -> MemberHeartbeatAnswer | None:
        """Make it a consumer group for a member that joins; the answer if it stays as it is."""
        classic = held.group
        if not isinstance(classic, ClassicGroup):
            return self._of_another_kind(held, request)
        if not request.joins:
            return self._not_found(held, request)  # one that is a member joins again, and converts it
        group_id, now, state = classic.group_id, self._clock.monotonic(), classic.snapshot()
        group = self._new_group(group_id)
        members = from_classic(state, self.topics.topics())
        if state.members and (
            members is None or not self.rules.migration.upgrades or len(members) > self.rules.size_max
        ):
            message = f"Cannot upgrade classic group {group_id} to consumer group."
            return MemberHeartbeatAnswer(ErrorCode.group_id_not_found, request.member_id, message=message)
        group.begin(now, state.generation, members or [])
        groups.replace(held, group, [])
        logger.info("group converted: group=%s kind=consumer members=%d", group_id, len(state.members))
        return None


_FIRST_WITH_OWN_MEMBER_ID = 1


class ConsumerGroupHeartbeat(PartitionsHandler[ConsumerGroupHeartbeatRequest, ConsumerHeartbeat]):
    """Serve heartbeats of members of a KIP-848 group."""

    def __init__(
        self,
        groups: HeldGroups,
        consumer_groups: ConsumerGroups,
        rng: random.Random,
        *,
        keeps_principals: bool = False,
    ) -> None:
        """`keeps_principals`: ACLs are enforced, and say which topics a member's pattern matches."""
        super().__init__(ConsumerGroupHeartbeatRequest, groups, consumer_groups)
        self._consumer_groups, self._rng, self._keeps_principals = consumer_groups, rng, keeps_principals

    def _refusal(self, entity: ConsumerGroupHeartbeatRequest, version: int) -> MemberHeartbeatAnswer | None:
        code, message = ErrorCode.invalid_request, _fault(entity, version)
        if message is None and entity.server_assignor not in (None, *self._consumer_groups.rules.assignors):
            code = ErrorCode.unsupported_assignor
            message = f"ServerAssignor {entity.server_assignor} is not supported. Supported assignors: " + ", ".join(
                name for name in self._consumer_groups.rules.assignors if name in ASSIGNORS
            )
        pattern = getattr(entity, "subscribed_topic_regex", None)
        if message is None and pattern and not is_valid(pattern):
            code = ErrorCode.invalid_regular_expression
            message = f"SubscribedTopicRegex {pattern[:100]!r} is not a valid regular expression (RE2), or too large."
        return None if message is None else MemberHeartbeatAnswer(code, entity.member_id, message=message)

    def _heartbeat(self, request: Request, entity: ConsumerGroupHeartbeatRequest) -> ConsumerHeartbeat:
        timeout, names, owned = entity.rebalance_timeout, entity.subscribed_topic_names, entity.topic_partitions
        no_topic = uuid.UUID(int=0)
        return ConsumerHeartbeat(
            entity.member_id or self._new_member_id(),
            entity.member_epoch,
            entity.instance_id,
            entity.rack_id,
            request.client_id or "",
            client_host(request.connection),
            None if names is None else frozenset(names),
            rebalance_timeout=None if timeout < timedelta(0) else timeout.total_seconds(),
            topic_pattern=getattr(entity, "subscribed_topic_regex", None),
            assignor=entity.server_assignor,
            owned_topics=None if owned is None else [(each.topic_id or no_topic, each.partitions) for each in owned],
            principal=(request.connection.principal or ANONYMOUS) if self._keeps_principals else "",
        )

    def _new_member_id(self) -> str:
        return base64.urlsafe_b64encode(self._rng.randbytes(16)).decode().rstrip("=")

    def _assignment(self, schema: Schema, partitions: Partitions) -> Assignment:
        topics = self._consumer_groups.topics.topics().by_number
        return assignment(schema, Assignment, TopicPartitions, topics, partitions)

    def _interval(self, group_id: str) -> float:
        return self._consumer_groups.times(group_id).heartbeat_interval


def _fault(entity: ConsumerGroupHeartbeatRequest, version: int) -> str | None:
    """Return what is wrong with the request itself, in any state of the group: the first fault in Kafka's order."""
    joins = entity.member_epoch == JOIN_EPOCH
    names, pattern = entity.subscribed_topic_names, getattr(entity, "subscribed_topic_regex", None)
    needs_member_id = version >= _FIRST_WITH_OWN_MEMBER_ID or not joins
    if fault := fault_in_ids(entity, (pattern, *(names or ())), needs_member_id=needs_member_id):
        return fault
    if joins and entity.rebalance_timeout < timedelta(0):
        return "RebalanceTimeoutMs must be provided in first request."
    if joins and entity.topic_partitions != ():
        return "TopicPartitions must be empty when (re-)joining."
    if joins and names is None and pattern is None:
        return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    if entity.member_epoch == LEAVE_FOR_A_WHILE_EPOCH and entity.instance_id is None:
        return "InstanceId can't be null."
    if entity.member_epoch < LEAVE_FOR_A_WHILE_EPOCH:
        return f"MemberEpoch is invalid: {entity.member_epoch}."
    return None
