"""An agent's config handlers, asked as clients ask."""

from __future__ import annotations

import pytest

from tests.agent.topics.configs_world import ConfigsWorld
from tests.manual_clock import ManualClock


@pytest.fixture
async def admin(fake_clock: ManualClock) -> ConfigsWorld:
    admin = ConfigsWorld(fake_clock)
    await admin.join()
    return admin
