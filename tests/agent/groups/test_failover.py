"""The coordinator is killed, paused past its lease, or cut off from the metastore, at each step of a rebalance.

What must hold: at no moment do two agents both answer for the group; nothing that was acknowledged is
lost; members of a stable group carry on under the next coordinator in their generation, with their
assignments, without joining again; and a rebalance that was cut short comes to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from kio.schema.errors import ErrorCode

from headrace.storage.errors import OutcomeUnknownError
from tests.agent.cluster.failing_hosts import REDIRECTS, Consumer, FailoverWorld
from tests.manual_clock import ManualClock

FAULTS: dict[str, tuple[Callable[[FailoverWorld, int], None], Callable[[FailoverWorld, int], None] | None]] = {
    "killed": (FailoverWorld.kill, None),
    "paused": (FailoverWorld.pause, FailoverWorld.resume),
    "truncated batch": (FailoverWorld.cut_off, FailoverWorld.mend),
}


@pytest.fixture
async def world(fake_clock: ManualClock) -> AsyncIterator[FailoverWorld]:
    world = FailoverWorld(fake_clock)
    await world.start()
    yield world
    for agent in world.agents:
        agent.cluster.membership._heartbeats.cancel()  # type: ignore[union-attr]
        await agent.requests.close()


class Scene:
    """Consumers of group g, and a client that permanently asks both agents whether they would answer."""

    def __init__(self, world: FailoverWorld) -> None:
        self.world = world
        self.consumers: list[Consumer] = []
        self.tasks: list[asyncio.Task[None]] = []

    def add(self) -> Consumer:
        consumer = Consumer(self.world, len(self.consumers))
        self.consumers.append(consumer)
        self.tasks.append(asyncio.create_task(consumer.run()))
        return consumer

    async def run(self, seconds: float) -> None:
        await self.world.pass_time(seconds, self.never_two_answer)

    async def stable(self) -> None:
        for _ in range(60):
            await self.run(1)
            generations = {consumer.generation for consumer in self.consumers}
            if len(generations) == 1 and all(consumer.assignment for consumer in self.consumers):
                return
        raise AssertionError(f"not stable: {[vars(consumer) for consumer in self.consumers]}")

    async def never_two_answer(self) -> None:
        """Asked about an unknown member: an agent that would answer a member says UNKNOWN_MEMBER_ID."""
        world, answering = self.world, []
        for index, agent in enumerate(world.agents):
            if world.hosts[index].running.is_set():
                asked = asyncio.ensure_future(agent.heartbeat("g", "nobody", 1))
                await world.clock.settle()
                if asked.done() and asked.result() not in REDIRECTS:
                    answering.append(index)
                asked.cancel()
        assert len(answering) <= 1, "two coordinators answer"

    async def nothing_was_lost(self) -> None:
        """Offsets are those that were acknowledged, or later ones with a lost response."""
        stored = self.world.groups.offsets["g"]
        by_partition = {key & 0xFFFFFF: offset.offset for key, offset in stored.items()}
        for partition, consumer in enumerate(self.consumers):
            assert consumer.acknowledged <= by_partition.get(partition, 0) <= consumer.position

    def assignments_are_sound(self) -> None:
        """All members have the assignment from the leader of the one generation, as it was saved."""
        saved = self.world.groups.saved("g")
        assert {m.member_id: m.assignment for m in saved.members} == {c.member_id: c.assignment for c in self.consumers}
        assert {c.generation for c in self.consumers} == {saved.generation}

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.fixture
async def scene(world: FailoverWorld) -> AsyncIterator[Scene]:
    scene = Scene(world)
    yield scene
    await scene.close()


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_stable_group_carries_on_without_a_rebalance(scene: Scene, fault: str) -> None:
    world = scene.world
    for _ in range(3):
        scene.add()
    await scene.stable()
    before = [(c.member_id, c.generation, c.assignment, c.joins) for c in scene.consumers]
    victim = world.home_index()
    positions = [c.acknowledged for c in scene.consumers]
    strike, mend = FAULTS[fault]
    strike(world, victim)
    await scene.run(40)
    assert world.groups.groups["g"].holder[0] == 2 - victim, "the other agent has taken over"
    assert all(c.acknowledged > p for c, p in zip(scene.consumers, positions, strict=True))
    if mend is not None:
        mend(world, victim)
        await scene.run(30)  # it registers again, and gets its group back
        assert world.groups.groups["g"].holder[0] == victim + 1
    assert [(c.member_id, c.generation, c.assignment, c.joins) for c in scene.consumers] == before
    await scene.nothing_was_lost()


EVERYDAY = {("killed", 0.0), ("paused", 0.5), ("truncated batch", 1.5)}
"""Each fault and each wait once."""


@pytest.mark.parametrize(
    ("fault", "wait"),
    [
        pytest.param(fault, wait, marks=() if (fault, wait) in EVERYDAY else pytest.mark.slow)
        for fault in FAULTS
        for wait in (0.0, 0.5, 1.5)
    ],
)
async def test_a_rebalance_that_is_cut_short_comes_to_its_end(scene: Scene, fault: str, wait: float) -> None:
    """A third member joins; `wait` later, between its join and the last sync, the coordinator fails."""
    world = scene.world
    scene.add()
    scene.add()
    await scene.stable()
    scene.add()
    await world.clock.advance(wait)
    victim = world.home_index()
    strike, mend = FAULTS[fault]
    strike(world, victim)
    await scene.run(40)
    if mend is not None:
        mend(world, victim)
        await scene.run(20)
    await scene.stable()
    scene.assignments_are_sound()
    await scene.nothing_was_lost()


@pytest.mark.parametrize("fault", FAULTS)
async def test_the_leaders_assignment_is_on_its_way_when_the_coordinator_fails(scene: Scene, fault: str) -> None:
    """The save arrives after the successor's claim: it must not replace what the successor read."""
    world = scene.world
    scene.add()
    scene.add()
    await scene.stable()
    late = asyncio.Event()
    world.groups.gates["save_group"] = [late]
    scene.add()
    while world.groups.gates["save_group"]:
        await scene.run(0.5)
    victim = world.home_index()
    strike, mend = FAULTS[fault]
    strike(world, victim)
    await scene.run(40)
    epoch = world.groups.groups["g"].epoch
    late.set()
    if mend is not None:
        mend(world, victim)
    await scene.run(20)
    await scene.stable()
    assert world.groups.groups["g"].epoch >= epoch
    scene.assignments_are_sound()
    await scene.nothing_was_lost()


@pytest.mark.parametrize("deaf_seconds", [0, 30])
async def test_a_group_moves_to_a_new_agent_without_a_rebalance(fake_clock: ManualClock, deaf_seconds: int) -> None:
    """Its coordinator releases it as soon as it sees the new one, which waits for that without limit."""
    world = FailoverWorld(fake_clock)
    world.cluster_api.add_topic("orders", 4)
    newcomer_index = 1
    first = world.agents[0]
    await world.clock.run(first.cluster.start())
    scene = Scene(world)
    world.pause(newcomer_index)  # it does not run yet
    groups = scene.add(), scene.add()
    await scene.stable()
    joins = [consumer.joins for consumer in groups]
    world.hosts[0].deaf = deaf_seconds > 0
    world.resume(newcomer_index)
    await world.clock.run(world.agents[newcomer_index].cluster.start())
    await scene.run(deaf_seconds)
    world.hosts[0].deaf = False
    await scene.run(20)
    assert [consumer.joins for consumer in groups] == joins
    assert world.groups.groups["g"].holder[0] == 2
    await scene.nothing_was_lost()
    await scene.close()
    for agent in world.agents:
        await agent.requests.close()
        await world.clock.run(agent.cluster.stop())


async def test_an_agent_that_resumes_after_its_lease_does_not_answer_from_memory(scene: Scene) -> None:
    """The very first thing that it does is to read a member's heartbeat."""
    world = scene.world
    consumer = scene.add()
    await scene.stable()
    victim = world.home_index()
    world.pause(victim)
    await scene.run(40)
    world.resume(victim)
    code = await world.agents[victim].heartbeat("g", consumer.member_id, consumer.generation)
    assert code in REDIRECTS


async def test_a_lost_claim_does_not_block_the_group_permanently(scene: Scene) -> None:
    """The metastore took the claim, its answer was lost, and the client never asked again."""
    world = scene.world
    victim = world.home_index()
    world.groups.fail_after["claim_group"] = [OutcomeUnknownError("lost")] * 3
    asked = asyncio.create_task(world.agents[victim].heartbeat("g", "nobody", 1))
    await scene.run(0.5)
    asked.cancel()
    await world.clock.run(world.agents[victim].cluster.membership.controlled_shutdown())
    await scene.run(5)
    heir = world.agents[1 - victim]
    assert await world.clock.run(heir.heartbeat("g", "nobody", 1)) == ErrorCode.unknown_member_id
