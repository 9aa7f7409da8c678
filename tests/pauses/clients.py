"""Producers and group members that survive a stopped agent: they disconnect, ask the other one, and keep records.

Each does one thing at a time and insists on it, as the libraries do: a producer under the same sequence
number, a member with the same position. What is acknowledged is written down.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.routing import group_role, score
from headrace.protocol.request import ClientConnection, CloseConnection, Request
from tests.pauses.process import Process
from tests.simulation import protocol
from tests.simulation.metadata import Place
from tests.storage.batches import plain_batch

if TYPE_CHECKING:
    from tests.pauses.world import World

PATIENCE_SECONDS = 0.6
PAUSE_SECONDS = 0.05
PERIOD_SECONDS = 0.12
VISIT_HEARTBEATS = 4
PRODUCER_ID = 1_000
GROUP = "h"
"""One that agent 1 coordinates, while it is there."""
OTHER_GROUP = next(n for n in map("o{}".format, itertools.count()) if score(2, group_role(n)) > score(1, group_role(n)))
"""One that agent 2 coordinates, once it is there."""
_AGAIN = (ErrorCode.not_leader_or_follower, ErrorCode.request_timed_out, ErrorCode.kafka_storage_error)
ELSEWHERE = (
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.request_timed_out,
)
"""Ask the other agent."""
_JOIN_AGAIN = (ErrorCode.unknown_member_id, ErrorCode.illegal_generation, ErrorCode.rebalance_in_progress)


async def ask(world: World, process: Process, work: Coroutine[Any, Any, Any]) -> Any:
    """The answer of a request that `process` serves; None when it is away, closes, or takes too long."""
    if not process.is_serving:
        work.close()
        return None
    task = world.loop.create_task(work, context=process.context)
    world.requests.add(task)
    await asyncio.wait([task], timeout=PATIENCE_SECONDS)
    if not task.done():
        return None
    try:
        return task.result()
    except (CloseConnection, asyncio.CancelledError):
        return None  # a stopping agent cancels what still waits for its feed


class Producer:
    """`acknowledged`: sequence -> base offset. Several may share one connection to each agent."""

    def __init__(
        self, world: World, place: Place, number: int, batches: int, connections: dict[int, ClientConnection]
    ) -> None:
        self._world = world
        self.place = place
        self.producer_id = PRODUCER_ID + number
        self._batches = batches
        self._connections = connections
        self.acknowledged: dict[int, int] = {}
        self.refused: list[int] = []

    async def run(self) -> None:
        process = self._world.processes[0]
        for sequence in range(self._batches):
            while sequence not in self.acknowledged:
                answer = await ask(self._world, process, self._send(process, sequence))
                if answer is not None and answer.code == ErrorCode.none:
                    self.acknowledged[sequence] = answer.base_offset
                elif answer is None or answer.code in _AGAIN:
                    self._connections.pop(process.node_id, None)
                    process = self._world.another(process)
                    await asyncio.sleep(PAUSE_SECONDS)
                else:
                    self.refused.append(answer.code)
                    return
            await asyncio.sleep(PERIOD_SECONDS)

    async def _send(self, process: Process, sequence: int) -> protocol.ProduceAnswer | None:
        batch = plain_batch(
            value=b"%d/%d" % (self.producer_id, sequence),
            producer_id=self.producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )
        body = memoryview(protocol.encode_produce({self.place: batch}, by_id=False, acks=-1, timeout_ms=5_000))
        new = ClientConnection(self._world.next_number(), "client")
        connection = self._connections.setdefault(process.node_id, new)
        now = process.clock.monotonic()
        request = Request(connection, protocol.PRODUCE, protocol.PRODUCE_BY_NAME, 1, "test", body, now)
        response = await process.produce.handle(request)
        if response.buffers is None:
            return None
        return protocol.read_produce(b"".join(response.buffers), [self.place], by_id=False)[self.place]


class Member:
    """One member of the group, with a partition to itself. A visitor leaves every now and then and comes back.

    `committed`: how many commits were acknowledged; each says so many.
    """

    def __init__(self, world: World, group: str, topic: str, partition: int, *, is_visitor: bool) -> None:
        self._world = world
        self._group = group
        self._topic = topic
        self._partition = partition
        self._is_visitor = is_visitor
        self._member_id, self._generation = "", -1
        self._process = world.processes[0]
        self.committed = 0
        self._stays = VISIT_HEARTBEATS

    async def run(self) -> None:
        while not self._world.is_over:
            if self._generation < 0:
                await self._join()
            elif await self._ask(self._heartbeat(self._process)) == ErrorCode.none:
                await self._commit()
                self._stays -= 1
                if self._is_visitor and self._stays <= 0:
                    await self._leave()
            await asyncio.sleep(PERIOD_SECONDS)

    async def _join(self) -> None:
        joined = await self._ask(self._process.groups.join(self._group, self._member_id))
        if joined is None:
            return
        self._member_id = "" if joined.error_code == ErrorCode.unknown_member_id else joined.member_id
        if joined.error_code != ErrorCode.none:
            return
        generation = joined.generation_id
        assignments = {member.member_id: b"its own" for member in joined.members}
        synced = await self._ask(self._process.groups.sync(self._group, self._member_id, generation, assignments))
        if synced is not None and synced.error_code == ErrorCode.none and await self._go_on():
            self._generation = generation

    async def _go_on(self) -> bool:
        """Ask where it was, as every consumer does that was given its partitions."""
        found = await self._ask(self._process.groups.fetch(self._group, {self._topic: [self._partition]}))
        if found is None or found[0] != ErrorCode.none:
            return False
        position = found[1][self._topic][self._partition][0]
        if position not in (self.committed or -1, self.committed + 1):
            self._world.problems.append(f"rewound: fetched={position} acknowledged={self.committed}")
        return True

    async def _heartbeat(self, process: Process) -> int:
        code = await process.groups.heartbeat(self._group, self._member_id, self._generation)
        if code == ErrorCode.none:
            self._world.answered_as_coordinator(process, self._group)
        return code

    async def _commit(self) -> None:
        positions = {self._topic: {self._partition: self.committed + 1}}
        member: dict[str, Any] = {"member_id": self._member_id, "generation": self._generation}
        codes = await self._ask(self._process.groups.commit(self._group, positions, **member))
        if codes == {self._topic: {self._partition: ErrorCode.none}}:
            self.committed += 1

    async def _leave(self) -> None:
        """A member that leaves without a message delays the others for a whole session."""
        left = await self._ask(self._process.groups.leave(self._group, self._member_id))
        if left is not None and left.error_code in (ErrorCode.none, ErrorCode.unknown_member_id):
            self._member_id, self._generation, self._stays = "", -1, VISIT_HEARTBEATS

    async def _ask(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The answer; the next request goes where it, or its absence, says."""
        answer = await ask(self._world, self._process, work)
        code = self._code(answer)
        if code is None or code in ELSEWHERE:
            self._process = self._world.another(self._process)
        elif code in _JOIN_AGAIN:
            self._generation = -1
        return answer

    def _code(self, answer: Any) -> int | None:
        if isinstance(answer, dict):
            code: int = answer[self._topic][self._partition]
            return code
        if isinstance(answer, tuple):
            return int(answer[0])
        return answer if answer is None or isinstance(answer, int) else int(answer.error_code)
