"""What controllers do about a process that is gone: hide its agent at once, and succeed it as the active controller."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator

import pytest

from headrace.agent.cluster.routing import Routes
from headrace.metastore.api.agents import Listener
from headrace.metastore.log.snapshot import load_image
from headrace.storage.errors import UnavailableError
from tests.agent.cluster.candidate import TIMES, Candidate
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.agent.cluster.test_agent_links import Network
from tests.manual_clock import ManualClock


class World:
    """Agents 1 to 3, each reached at the port of its node id, and controllers in the processes of some."""

    def __init__(self) -> None:
        self.clock, self.network = ManualClock(), Network()
        self.api = FakeClusterApi(self.clock)
        for node_id in (1, 2, 3):
            self.api.add_agent(node_id, listeners=[Listener("PLAINTEXT", "agent", node_id, 0)])
        self.candidates: list[Candidate] = []

    def controller(self, node_id: int) -> Candidate:
        candidate = Candidate(self.api, node_id, connect=self.network.connect)
        self.candidates.append(candidate)
        return candidate

    async def visible(self) -> list[int]:
        return [agent.node_id for agent in (await load_image(self.api)).live_agents()]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    for candidate in world.candidates:
        await candidate.controller.stop()


@pytest.mark.requirement("C8")
async def test_an_agent_that_is_gone_is_hidden_before_its_lease_ends(world: World) -> None:
    active = world.controller(1)
    await world.clock.advance(10)
    world.network.cut(2, errno.ECONNREFUSED)
    await world.clock.advance(0.1)
    assert await world.visible() == [1, 3]
    assert not world.api.agents[2].fenced, "its lease alone ends its rights"
    assert active.metric("controller_agents_hidden_total") == 1


async def test_an_agent_that_does_not_answer_stays_visible_until_it_is_fenced(world: World) -> None:
    world.controller(1)
    await world.clock.advance(10)
    world.network.cut(2, None)
    await world.clock.advance(10)
    assert await world.visible() == [1, 2, 3]


@pytest.mark.requirement("C15")
async def test_a_standby_succeeds_a_controller_that_is_gone_and_hides_it(world: World) -> None:
    active, standby = world.controller(1), world.controller(2)
    await world.clock.advance(10)
    assert active.controller.is_active
    await active.die()
    world.network.cut(1, errno.ECONNREFUSED)
    await world.clock.advance(0.1)
    assert standby.controller.is_active
    assert await world.visible() == [2, 3]


async def test_a_standby_hides_no_agent(world: World) -> None:
    active, _ = world.controller(1), world.controller(2)
    await world.clock.advance(10)
    await active.die()  # its process does not run, but accepts connections
    world.network.cut(3, errno.ECONNREFUSED)
    await world.clock.advance(TIMES.lease_ms / 1000 / 2)
    assert await world.visible() == [1, 2, 3]


async def test_two_standbys_of_one_controller_make_one_successor(world: World) -> None:
    active, *standbys = (world.controller(node_id) for node_id in (1, 2, 3))
    await world.clock.advance(10)
    epoch = world.api.controller.controller_epoch
    await active.die()
    world.network.cut(1, errno.ECONNREFUSED)
    await world.clock.advance(TIMES.lease_ms / 1000)
    assert [each.controller.is_active for each in standbys].count(True) == 1
    assert world.api.controller.controller_epoch == epoch + 1


async def test_a_controller_that_was_cut_off_from_its_standby_alone_becomes_one(world: World) -> None:
    """Its process works and reaches the metastore: it finds the new epoch, and takes nothing back."""
    active, standby = world.controller(1), world.controller(2)
    await world.clock.advance(10)
    world.network.cut(1, errno.EHOSTUNREACH)
    await world.clock.advance(30)
    assert standby.controller.is_active
    assert not active.controller.is_active
    assert world.api.controller.controller_epoch == 2


async def test_a_metastore_that_is_away_delays_it(world: World) -> None:
    world.controller(1)
    await world.clock.advance(10)
    world.api.fail_before["hide_agent"] = [UnavailableError("away")] * 2
    world.network.cut(2, errno.ECONNREFUSED)
    await world.clock.advance(5)
    assert await world.visible() == [1, 3]


@pytest.mark.requirement("C7")
async def test_a_hidden_agent_leads_nothing_and_keeps_its_groups(world: World) -> None:
    """Its claim bars another coordinator until it is fenced (decisions/0019)."""
    world.controller(1)
    before = Routes(await load_image(world.api), 64)
    await world.clock.advance(10)
    world.network.cut(2, errno.ECONNREFUSED)
    await world.clock.advance(0.1)
    image = await load_image(world.api)
    after = Routes(image, 64)
    keys = range(64)
    assert {leader.node_id for key in keys if (leader := before.leader(key))} == {1, 2, 3}
    assert {leader.node_id for key in keys if (leader := after.leader(key))} == {1, 3}
    groups = [f"g{number}" for number in range(64)]
    assert [before.coordinator(group) for group in groups] == [
        None if found is None else before.image.agents[found.node_id] for found in map(after.coordinator, groups)
    ]
