"""Heartbeats and images that say nothing new cost no measurement of all groups."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.groups.consumer.group import ConsumerGroup
from headrace.agent.groups.held_groups import TICK_SECONDS, HeldGroups
from tests.agent.groups.consumer.test_requests import assigned, heartbeat
from tests.agent.groups.groups_world import GroupsWorld
from tests.manual_clock import ManualClock

WORLD_TOPICS = {"t": 4}


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
    measured.clear()
    world.cluster_api.add_topic("other", 1)
    await world.catch_up()
    await fake_clock.advance(2 * TICK_SECONDS)
    assert 0 < len(measured) <= 2, "an image that changes nothing for them"
    answer = await heartbeat(world.home, "other", 0, group_id=groups[-1])
    assert answer.error_code is ErrorCode.none
    await fake_clock.advance(TICK_SECONDS)
    assert groups[-1] in measured[-2:], "one that changed is measured in the next turn"


async def test_a_group_that_was_released_is_not_measured_any_more(world: GroupsWorld) -> None:
    """Clients may heartbeat in new groups faster than the groups are measured that only heartbeat."""
    held = world.home.requests.groups
    for group in [name for n in range(40) if world.coordinator(name := f"g-{n}") is world.home]:
        answer = await heartbeat(world.home, "m", 0, group_id=group)
        await heartbeat(world.home, "m", answer.member_epoch, group_id=group, owned=assigned(answer) or {})
        await heartbeat(world.home, "m", answer.member_epoch, group_id=group)
    assert len(held.measured) > 10
    for each in held:
        held.drop(each)
    assert len(held.measured) == 0
    assert held.memory.in_use_bytes == 0


async def test_only_a_change_of_agents_makes_an_agent_judge_all_of_its_groups(
    world: GroupsWorld, fake_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = world.home.requests.groups
    mine = [name for n in range(40) if world.coordinator(name := f"g-{n}") is world.home]
    for group in mine:
        await held.find(group)
    await fake_clock.advance(TICK_SECONDS)
    asked: list[str] = []
    real = HeldGroups.refusal

    def refusal(self: HeldGroups, group_id: str) -> ErrorCode:
        asked.append(group_id)
        return real(self, group_id)

    monkeypatch.setattr(HeldGroups, "refusal", refusal)
    world.cluster_api.add_topic("other", 1)
    await world.catch_up()
    await fake_clock.advance(TICK_SECONDS)
    assert set(asked) == {mine[0]}, "one of them shows whether the lease has run out"
    world.cluster_api._set_fenced(world.other.cluster.node_id, True)
    await world.catch_up()
    await fake_clock.advance(TICK_SECONDS)
    assert set(asked) >= set(mine)
