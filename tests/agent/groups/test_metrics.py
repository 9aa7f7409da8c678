"""What operators see of groups."""

from __future__ import annotations

import asyncio

from prometheus_client import generate_latest

from headrace.storage.errors import UnavailableError
from tests.agent.groups.groups_world import Coordinating, GroupsWorld

WORLD_TOPICS = {"orders": 2}


def sample(agent: Coordinating, name: str, **labels: str) -> float | None:
    return agent.registry.get_sample_value(name, labels)


async def test_groups_are_counted_where_they_are_held(home: Coordinating, world: GroupsWorld) -> None:
    stable = {"kind": "classic", "state": "Stable"}
    assert sample(home, "headrace_groups", **stable) is None
    await home.only_member()
    assert sample(home, "headrace_groups", **stable) == 1
    assert sample(world.other, "headrace_groups", **stable) is None
    waiting = asyncio.create_task(home.join("g", version=3))
    await world.clock.settle()
    assert sample(home, "headrace_groups", kind="classic", state="PreparingRebalance") == 1
    assert sample(home, "headrace_groups", **stable) is None
    assert b'headrace_groups{kind="classic",state="PreparingRebalance"} 1.0' in generate_latest(home.registry)
    waiting.cancel()


async def test_rebalances_are_changes_of_state(home: Coordinating, world: GroupsWorld) -> None:
    member = await home.only_member()
    for state in ("CompletingRebalance", "Stable"):
        assert sample(home, "headrace_group_state_changes_total", kind="classic", state=state) == 1
    assert sample(home, "headrace_group_loads_total", outcome="loaded") == 1
    world.groups.take_over("g")
    world.groups.groups["g"].holder = (9, 9)
    world.groups.is_live = lambda node_id, broker_epoch: True
    await home.commit(
        "g", {"orders": {0: 1}}, member_id=member, generation=1
    )  # the first one finds out that the claim is gone
    again = asyncio.create_task(home.heartbeat("g", "nobody", 1))
    await world.clock.advance(5)
    await again
    assert sample(home, "headrace_group_let_go_total") == 1
    assert sample(home, "headrace_group_loads_total", outcome="barred") == 1


async def test_commits_by_what_became_of_them(home: Coordinating, world: GroupsWorld) -> None:
    member = await home.only_member()
    await home.commit("g", {"orders": {0: 1, 1: 2}}, member_id=member, generation=1)
    await home.commit("g", {"orders": {0: 1}}, member_id=member, generation=7)
    world.groups.fail_before["commit_offsets"] = [UnavailableError("down")]
    await home.commit("g", {"orders": {0: 1}}, member_id=member, generation=1)
    counts = {o: sample(home, "headrace_offset_commits_total", outcome=o) for o in ("stored", "refused", "failed")}
    assert counts == {"stored": 1, "refused": 1, "failed": 1}
    assert sample(home, "headrace_offset_commit_partitions_total") == 2
