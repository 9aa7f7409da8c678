"""The read path in memory, of an agent that has started."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.agent.fetch.fetch_world import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.service.start()
    yield world
    await world.service.close()


@pytest.fixture
def key(world: World) -> int:
    """Partition key of the only partition of topic "t"."""
    (key,) = world.create_topic("t", 1)
    return key
