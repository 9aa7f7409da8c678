"""Serves members of the consumer protocol: what patterns match, what gates may open, and conversions.

Place: a HeartbeatCoordinator (../members/heartbeat_coordinator.py), under heartbeat_request.py.
Invariant: a topic id that is not known yet is not taken for one without an owner. An empty group takes the kind of the
first member that joins; a group with classic members changes only as the migration policy says. A gate that could not
be judged stays closed (gates.py).
Source: KIP-848.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.cluster.view import ClusterView
from headrace.agent.groups.classic.group import ClassicGroup
from headrace.agent.groups.consumer.consumer_values import ConsumerHeartbeat, OwnedTopics
from headrace.agent.groups.consumer.conversion import from_classic
from headrace.agent.groups.consumer.gates import Gate, children_to_begin
from headrace.agent.groups.consumer.group import ConsumerGroup
from headrace.agent.groups.consumer.rules import ConsumerGroupRules, GroupTimes
from headrace.agent.groups.consumer.topics import GroupTopics
from headrace.agent.groups.group_memory import MEMBER_BYTES
from headrace.agent.groups.held_groups import Held, HeldGroups
from headrace.agent.groups.members.heartbeat_coordinator import HeartbeatCoordinator
from headrace.agent.groups.members.member import names_bytes
from headrace.agent.groups.members.member_values import MemberHeartbeatAnswer
from headrace.agent.groups.members.partitions import Partitions
from headrace.agent.limits.client_memory import text_bytes
from headrace.metastore.api.groups import CommittedOffset, GroupApi, ParentPosition
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

    def _size_of(self, request: ConsumerHeartbeat, before: int) -> int:
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
