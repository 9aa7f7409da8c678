"""Heartbeats that say nothing new cost no measurement of the whole group."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.groups.consumer.group import ConsumerGroup
from headrace.agent.groups.held_groups import TICK_SECONDS
from tests.agent.groups.consumer.test_requests import assigned, heartbeat
from tests.agent.groups.groups_world import GroupsWorld
from tests.manual_clock import ManualClock


@pytest.fixture
async def world(fake_clock: ManualClock) -> AsyncIterator[GroupsWorld]:
    """A topic `t` with four partitions."""
    world = GroupsWorld(fake_clock)
    await world.start()
    world.cluster_api.add_topic("t", 4)
    await world.catch_up()
    yield world
    await world.stop()


async def test_heartbeats_that_change_nothing_measure_one_group_in_a_turn(
    world: GroupsWorld, fake_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the members use is computed for each of them; heartbeats of all groups come in each turn."""
    groups = [name for n in range(40) if world.coordinator(name := f"g-{n}") is world.home][:8]
    epochs = {}
    for group in groups:
        answer = await heartbeat(world.home, "m", 0, group_id=group)
        epochs[group] = answer.member_epoch
        await heartbeat(world.home, "m", answer.member_epoch, group_id=group, owned=assigned(answer) or {})
    await fake_clock.advance(2)
    measured: list[str] = []
    real = ConsumerGroup.sizes

    def sizes(self: ConsumerGroup) -> Any:
        measured.append(self.group_id)
        return real(self)

    monkeypatch.setattr(ConsumerGroup, "sizes", sizes)
    turns = 4
    for _ in range(turns):
        for group in groups:
            await heartbeat(world.home, "m", epochs[group], group_id=group)
        await fake_clock.advance(TICK_SECONDS)
    assert 0 < len(measured) <= turns + 1
    answer = await heartbeat(world.home, "other", 0, group_id=groups[-1])
    assert answer.error_code is ErrorCode.none
    await fake_clock.advance(TICK_SECONDS)
    assert groups[-1] in measured[-2:], "one that changed is measured in the next turn"
