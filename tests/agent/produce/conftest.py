"""The write path in memory, of an agent that has started."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.agent.produce.produce_world import ProduceWorld


@pytest.fixture
async def world() -> AsyncIterator[ProduceWorld]:
    async with ProduceWorld() as world:
        yield world
