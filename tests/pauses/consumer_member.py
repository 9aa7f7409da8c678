"""Members of a consumer group (KIP-848) that survive a stopped agent; a partition must have at most one owner.

Place: with clients.py's members of a classic group, in the same schedules.
Each heartbeats, takes and revokes as instructed, and commits one more for each partition that it owns. A visitor
leaves now and then and returns. A member owns the partitions of its last assignment, until it gets another.
"""

from __future__ import annotations

import asyncio
import datetime
import itertools
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.routing import group_role, score
from tests.agent.groups.groups_world import Front
from tests.agent.topics.membership_world import ask as exchange
from tests.pauses.clients import ELSEWHERE, PERIOD_SECONDS, VISIT_HEARTBEATS, ask
from tests.pauses.process import Process
from tests.simulation.metadata import Topic

if TYPE_CHECKING:
    from tests.pauses.world import World

CONSUMER_GROUP = next(
    n for n in map("c{}".format, itertools.count()) if score(1, group_role(n)) > score(2, group_role(n))
)
"""One that agent 1 coordinates, while it is there."""
HEARTBEAT, VERSION = 68, 1
OFFSETS_VERSION = 9
JOIN, LEAVE = 0, -1
_JOIN_AGAIN = (ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch, ErrorCode.unreleased_instance_id)


class Positions:
    """Positions of the whole group, by partition: who owns it, and the last commit that was acknowledged."""

    def __init__(self) -> None:
        self.owners: dict[int, ConsumerMember] = {}
        self.acknowledged: dict[int, int] = {}


class ConsumerMember:
    """`committed`: how many commits were acknowledged to it."""

    def __init__(self, world: World, topic: Topic, positions: Positions, name: str, *, is_visitor: bool) -> None:
        self._world = world
        self._topic = topic
        self._positions = positions
        self.name = name
        self._is_visitor = is_visitor
        self._epoch = JOIN
        self._owned: frozenset[int] = frozenset()
        self._says_all = True
        """Its next heartbeat says everything: it joins, or the last one had no answer."""
        self._stays = VISIT_HEARTBEATS
        self._process = world.processes[0]
        self.committed = 0

    async def run(self) -> None:
        while not self._world.is_over:
            if await self._beat():
                for partition in sorted(self._owned):
                    await self._commit(partition)
                self._stays -= 1
                if self._is_visitor and self._stays <= 0:
                    await self._leave()
            await asyncio.sleep(PERIOD_SECONDS)

    async def _beat(self) -> bool:
        answer = await self._ask(self._heartbeat(self._process, self._epoch))
        if answer is None:
            self._says_all = True
            return False
        if answer.error_code in _JOIN_AGAIN:
            self._lose_everything()
        if answer.error_code is not ErrorCode.none:
            return False
        self._world.answered_as_coordinator(self._process, CONSUMER_GROUP)
        self._epoch, self._says_all = answer.member_epoch, False
        if answer.assignment is None:
            return True
        given = frozenset(p for each in answer.assignment.topic_partitions for p in each.partitions)
        return given == self._owned or await self._take(given)

    async def _take(self, given: frozenset[int]) -> bool:
        """Own what was given, and say so with the next heartbeat."""
        for partition in self._owned - given:
            del self._positions.owners[partition]
        for partition in sorted(given - self._owned):
            other = self._positions.owners.setdefault(partition, self)
            if other is not self:
                self._world.problems.append(f"two owners: partition={partition} {other.name} and {self.name}")
        self._owned, self._says_all = given, True
        return all([await self._goes_on(partition) for partition in sorted(given)])

    async def _goes_on(self, partition: int) -> bool:
        """Return where the last owner was: its last commit may be stored without its knowing."""
        found = await self._ask(self._process.groups.fetch(CONSUMER_GROUP, {self._topic.name: [partition]}))
        if found is None or found[0] != ErrorCode.none:
            return False
        position = found[1][self._topic.name][partition][0]
        acknowledged = self._positions.acknowledged.get(partition, 0)
        if position not in (acknowledged or -1, acknowledged + 1):
            self._world.problems.append(f"rewound: partition={partition} fetched={position} {acknowledged=}")
        return True

    async def _commit(self, partition: int) -> None:
        acknowledged = self._positions.acknowledged.get(partition, 0)
        wanted = {self._topic.name: {partition: acknowledged + 1}}
        member: dict[str, Any] = {"member_id": self.name, "generation": self._epoch}
        commit = self._process.groups.commit(CONSUMER_GROUP, wanted, version=OFFSETS_VERSION, **member)
        codes = await self._ask(commit)
        if codes == {self._topic.name: {partition: ErrorCode.none}} and partition in self._owned:
            self._positions.acknowledged[partition] = acknowledged + 1
            self.committed += 1

    async def _leave(self) -> None:
        left = await self._ask(self._heartbeat(self._process, LEAVE))
        if left is not None and left.error_code in (ErrorCode.none, ErrorCode.unknown_member_id):
            self._lose_everything()
            self._stays = VISIT_HEARTBEATS

    def _lose_everything(self) -> None:
        for partition in self._owned:
            del self._positions.owners[partition]
        self._owned, self._epoch, self._says_all = frozenset(), JOIN, True

    async def _heartbeat(self, process: Process, epoch: int) -> Any:
        fields: dict[str, Any] = {"topic_partitions": None}
        if self._says_all and epoch != LEAVE:
            owned = ("TopicPartitions", {"topic_id": self._topic.topic_id, "partitions": tuple(sorted(self._owned))})
            fields = {
                "topic_partitions": [owned] if self._owned else [],
                "rebalance_timeout": datetime.timedelta(seconds=60),
                "subscribed_topic_names": (self._topic.name,),
            }
        front: Any = Front(process.groups)
        return await exchange(
            front, HEARTBEAT, VERSION, received_at=process.clock.monotonic(),
            group_id=CONSUMER_GROUP, member_id=self.name, member_epoch=epoch, **fields,
        )  # fmt: skip

    async def _ask(self, work: Any) -> Any:
        """The answer; the next request goes where it, or its absence, says."""
        answer = await ask(self._world, self._process, work)
        if answer is None or self._code(answer) in ELSEWHERE:
            self._process = self._world.another(self._process)
        return answer

    def _code(self, answer: Any) -> int:
        if isinstance(answer, dict):
            return int(next(iter(answer[self._topic.name].values())))
        return int(answer[0] if isinstance(answer, tuple) else answer.error_code)
