"""Requests that change who may do what, on a cluster in memory."""

from __future__ import annotations

import pytest

from tests.agent.access.admin.access_world import World
from tests.manual_clock import ManualClock


@pytest.fixture
def world(fake_clock: ManualClock) -> World:
    return World(fake_clock)
