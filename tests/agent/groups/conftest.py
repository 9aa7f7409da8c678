"""Two agents that coordinate groups, for the tests of this folder and below it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.agent.groups.groups_world import Coordinating, GroupsWorld
from tests.manual_clock import ManualClock


@pytest.fixture
async def world(fake_clock: ManualClock, request: pytest.FixtureRequest) -> AsyncIterator[GroupsWorld]:
    """Both agents started, with the topics that the test's module names: `WORLD_TOPICS`, counts of partitions."""
    world = GroupsWorld(fake_clock)
    await world.start()
    for name, partitions in getattr(request.module, "WORLD_TOPICS", {}).items():
        world.cluster_api.add_topic(name, partitions)
    await world.catch_up()
    yield world
    await world.stop()


@pytest.fixture
def home(world: GroupsWorld) -> Coordinating:
    """The agent that coordinates group g."""
    return world.home
