"""Serves members of the consumer protocol: finds the group, brings the picture of the topics up to date, asks.

Place: between heartbeat_request.py and the groups of held_groups.py.
Invariant: a group is judged by other topics than before only on an image that was brought to the log's
head first: a coordinator that lags behind its predecessor must not take new partitions away, nor take a
topic id that it has not learned of for one without an owner. An empty group takes the kind of the first member
that joins; a group with classic members changes only as the migration policy says. A gate that could not be judged
stays closed (gates.py).
Source: KIP-848.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace

from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.cluster.view import ClusterView
from headrace.agent.groups.classic.group import ClassicGroup
from headrace.agent.groups.consumer.consumer_values import ConsumerHeartbeat
from headrace.agent.groups.consumer.conversion import from_classic
from headrace.agent.groups.consumer.gates import Gate, children_to_begin
from headrace.agent.groups.consumer.group import ConsumerGroup
from headrace.agent.groups.consumer.rules import ConsumerGroupRules, GroupTimes
from headrace.agent.groups.consumer.topics import GroupTopics
from headrace.agent.groups.group_memory import MEMBER_BYTES
from headrace.agent.groups.group_values import GroupEffect
from headrace.agent.groups.held_groups import Held, HeldGroups
from headrace.agent.groups.members.member import names_bytes
from headrace.agent.groups.members.member_values import JOIN_EPOCH, MemberHeartbeatAnswer
from headrace.agent.groups.members.partitions import Partitions
from headrace.agent.limits.client_memory import text_bytes
from headrace.agent.listener.client_turns import ClientTurns
from headrace.metastore.api.groups import CommittedOffset, GroupApi, GroupRecord, ParentPosition
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError

logger = logging.getLogger(__name__)

OwnedTopics = Sequence[tuple[uuid.UUID, Sequence[int]]]
"""(topic id, partition indexes), as a member names what it owns."""


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


class ConsumerGroups:
    """Makes and serves consumer groups. Every answer carries a code; nothing raises for what clients can do."""

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
        self.rules = rules
        self._api = api
        self._cluster = cluster
        self._clock = clock
        self._turns = ClientTurns()
        """So that one turn of the event loop changes one group."""
        self._rng = rng
        self.topics = GroupTopics(cluster, authorizer)

    def restore(self, group_id: str, now: float, record: GroupRecord | None) -> tuple[ConsumerGroup, list[GroupEffect]]:
        """A coordinated.Restore."""
        group = ConsumerGroup(group_id, self.rules, self.topics.topics, lambda: self.times(group_id), self._rng)
        if record is not None:
            group.restore(now, record)
        return group, []

    def times(self, group_id: str) -> GroupTimes:
        """Return the times that are configured now."""
        return self.rules.times(self._cluster.image, group_id)

    async def heartbeat(
        self, groups: HeldGroups, group_id: str, request: ConsumerHeartbeat, owned: OwnedTopics | None
    ) -> MemberHeartbeatAnswer:
        """`owned` takes the place of `request.owned`. Answered once what it says is stored."""
        held = await groups.find(group_id)
        if isinstance(held, ErrorCode):
            return MemberHeartbeatAnswer(held, request.member_id)
        size = _member_bytes(request)
        before = held.group.member_bytes(request.member_id)
        code = groups.memory.refuse(group_id, request.client_host, size, before, is_first=held.group.is_idle())
        if code is not ErrorCode.none:
            return MemberHeartbeatAnswer(code, request.member_id)
        try:
            await self._catch_up_for(held, request, owned or ())
        except HeadraceError as error:
            logger.warning("heartbeat not judged: group=%s error=%s", group_id, error)
            return MemberHeartbeatAnswer(ErrorCode.coordinator_load_in_progress, request.member_id)
        patterns = held.group.roster.patterns if isinstance(held.group, ConsumerGroup) else []
        await self.topics.prepare([*patterns, request.subscription_pattern])
        if request.member_epoch <= JOIN_EPOCH or request.topic_names is not None or request.topic_pattern is not None:
            async with self._turns.turn(request.client_host):  # a change costs time for every member of the group
                await asyncio.sleep(0)
        gates, positions = await self._positions(held, request)
        held = await groups.find(group_id)  # once more: it may have moved meanwhile
        if isinstance(held, ErrorCode):
            return MemberHeartbeatAnswer(held, request.member_id)
        if owned is not None:
            request = replace(request, owned=self._keys(owned))
        return await self._ask(groups, held, request, gates, positions)

    async def _catch_up_for(self, held: Held, request: ConsumerHeartbeat, owned: OwnedTopics) -> None:
        topics = self.topics.topics()
        judged = isinstance(held.group, ConsumerGroup) and held.group.judges_by(topics.by_name)
        named = all(name in topics.by_name for name in request.topic_names or ())
        if not (judged and named and all(self.topics.by_id(topic_id) is not None for topic_id, _ in owned)):
            await self._cluster.catch_up()

    def _keys(self, owned: OwnedTopics) -> Partitions:
        """Keys of what is there; a topic that is gone cannot be owned."""
        topics = ((self.topics.by_id(topic_id), indexes) for topic_id, indexes in owned)
        each = (topic.key(index) for topic, indexes in topics if topic is not None for index in indexes)
        return frozenset(key for key in each if key is not None)

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

    async def _ask(
        self,
        groups: HeldGroups,
        held: Held,
        request: ConsumerHeartbeat,
        gates: Sequence[Gate] | None,
        positions: Sequence[ParentPosition],
    ) -> MemberHeartbeatAnswer:
        if isinstance(held.group, ClassicGroup):
            refusal = self._convert(groups, held, held.group, request)
            if refusal is not None:
                return refusal
        if not isinstance(held.group, ConsumerGroup):
            message = f"Group {held.group.group_id} is not a consumer group."
            return MemberHeartbeatAnswer(ErrorCode.group_id_not_found, request.member_id, message=message)
        if gates is not None:
            held.group.judge_gates(self._clock.monotonic(), gates, positions)
        answer: asyncio.Future[MemberHeartbeatAnswer] = asyncio.get_running_loop().create_future()
        try:
            effects = held.group.member_heartbeat(self._clock.monotonic(), request, answer)
        except Exception:
            groups.drop(held)  # half changed: the next request finds it as it was stored
            raise
        groups.perform(held, effects, is_quiet=True)
        return await answer

    def _convert(
        self, groups: HeldGroups, held: Held, classic: ClassicGroup, request: ConsumerHeartbeat
    ) -> MemberHeartbeatAnswer | None:
        """Make it a consumer group for a member that joins; the answer if it stays as it is."""
        group_id = classic.group_id
        if request.member_epoch < JOIN_EPOCH:
            message = f"Group {group_id} not found."
            return MemberHeartbeatAnswer(ErrorCode.group_id_not_found, request.member_id, message=message)
        if request.member_epoch > JOIN_EPOCH:
            return MemberHeartbeatAnswer(
                ErrorCode.unknown_member_id, request.member_id
            )  # it joins again, and converts it
        now = self._clock.monotonic()
        group, _ = self.restore(group_id, now, None)
        state = classic.snapshot()
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
