"""A claim that is carried out after its repetition and after the release does not bar other agents for long."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.groups import claims
from headrace.agent.groups.claims import DOUBT_SECONDS, GroupClaims
from headrace.storage.errors import OutcomeUnknownError
from tests.agent.cluster.failing_hosts import FailoverWorld
from tests.agent.groups.fake_group_api import NOBODY
from tests.manual_clock import ManualClock
from tests.patch import Patch


@pytest.fixture
async def world(fake_clock: ManualClock) -> AsyncIterator[FailoverWorld]:
    world = FailoverWorld(fake_clock)
    await world.start()
    yield world
    for agent in world.agents:
        agent.cluster.membership._heartbeats.cancel()  # type: ignore[union-attr]
        await agent.requests.close()


async def _claims_late(world: FailoverWorld, after_seconds: float) -> tuple[int, int]:
    """An agent's first claim of g has no answer, the second one has; the group is released, then the first arrives."""
    home = world.agents[world.home_index()]
    holder = home.cluster.node_id, home.cluster.broker_epoch
    world.groups.fail_before["claim_group"] = [OutcomeUnknownError("no answer")]
    assert await world.clock.run(home.heartbeat("g", "nobody", 1)) == ErrorCode.unknown_member_id
    assert world.groups.calls["claim_group"] == 2
    await world.clock.run(world.clock.sleep(after_seconds))
    assert "g" not in world.groups.groups
    await world.groups.claim_group("g", *holder)
    assert world.groups.groups["g"].holder == holder
    return holder


def _holder(world: FailoverWorld) -> tuple[int, int]:
    group = world.groups.groups.get("g")
    return NOBODY if group is None else group.holder


async def test_a_late_claim_is_given_back(world: FailoverWorld) -> None:
    await _claims_late(world, 100)
    await world.clock.run(world.clock.sleep(10))
    assert _holder(world) == NOBODY


async def test_a_group_that_is_in_use_is_left_alone(world: FailoverWorld) -> None:
    holder = await _claims_late(world, 100)
    home = world.agents[world.home_index()]
    assert await world.clock.run(home.heartbeat("g", "nobody", 1)) == ErrorCode.unknown_member_id
    calls = world.groups.calls["claim_group"]
    await world.clock.run(world.clock.sleep(20))
    assert (_holder(world), world.groups.calls["claim_group"]) == (holder, calls)


async def test_a_planted_bug_is_caught_no_late_claim_is_looked_for(world: FailoverWorld, patch: Patch) -> None:
    patch.replace(GroupClaims, "to_look_at", lambda self, now: [])
    holder = await _claims_late(world, 100)
    await world.clock.run(world.clock.sleep(10))
    assert _holder(world) == holder


async def test_the_looks_end(world: FailoverWorld) -> None:
    await _claims_late(world, DOUBT_SECONDS + 10)
    calls = world.groups.calls["claim_group"]
    await world.clock.run(world.clock.sleep(30))
    assert world.groups.calls["claim_group"] == calls


async def test_doubts_have_a_bound(
    fake_clock: ManualClock, monkeypatch: pytest.MonkeyPatch, world: FailoverWorld
) -> None:
    monkeypatch.setattr(claims, "DOUBTS_MAX", 2)
    home = world.agents[0]
    kept = GroupClaims(world.groups, home.cluster, fake_clock, home.requests.groups._metrics)
    world.groups.fail_before["claim_group"] = [OutcomeUnknownError("no answer")] * 3
    for group_id in ("a", "b", "c"):
        assert await kept.look(group_id, home.cluster.broker_epoch) is None
    assert kept.to_look_at(fake_clock.monotonic()) == ["b", "c"]
