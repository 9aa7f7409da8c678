"""An agent of a larger cluster follows a part of the feed: what its clients see, and what it follows when."""

from __future__ import annotations

import asyncio
import copy
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from types import MappingProxyType

import pytest

from headrace.agent.fetch.index.shard_interest import FOLLOW_POLICY, FOLLOWERS, assigned_shards
from headrace.metastore.keys import commit_shard
from headrace.metastore.life.forgotten import read_forgotten
from headrace.metastore.log.image import AgentImage
from tests.agent.fetch.fetch_world import NODE_ID, World, expected, split_sent

SHARDS = 16
AGENTS = range(NODE_ID, NODE_ID + 8)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World(shards=SHARDS)
    show_agents(world, AGENTS)
    yield world
    await world.service.close()


def show_agents(world: World, node_ids: range) -> None:
    agents = {n: AgentImage(n, 1, uuid.UUID(int=n), "agent", n, None, fenced=False) for n in node_ids}
    world.view.head = replace(world.view.head, agents=MappingProxyType(agents))
    world.view.image = world.view.head


def followed(world: World) -> set[int]:
    return set(world.service._index.heads)


def assigned(node_ids: range = AGENTS) -> set[int]:
    return set(assigned_shards(NODE_ID, dict.fromkeys(node_ids), SHARDS))


@pytest.fixture
async def key(world: World) -> int:
    """A partition of a shard that the agent has no reason to follow."""
    keys = world.create_topic("t", SHARDS)
    await world.service.start()
    assert followed(world) == assigned()
    assert 0 < len(assigned()) < SHARDS
    return next(key for key in keys if commit_shard(key, SHARDS) not in assigned())


@pytest.mark.requirement("W5")
async def test_a_partition_that_is_not_followed_is_read_at_the_primary(world: World, key: int) -> None:
    await world.append(key, b"a")
    for _ in range(3):
        await world.clock.advance(FOLLOW_POLICY.again_s + 1)
        asked = world.metastore.asked["find_extents"]
        result = await world.fetch({key: 0})
        assert split_sent(result.records(key)) == expected(world.live[key], 0)
        assert world.metastore.asked["find_extents"] == asked + 1
    assert followed(world) == assigned(), "it is read once each time"


@pytest.mark.requirement("W5")
async def test_a_client_that_comes_back_makes_the_agent_follow(world: World, key: int) -> None:
    await world.append(key, b"a")
    await world.fetch({key: 0})
    await world.fetch({key: 0})
    assert followed(world) == assigned() | {commit_shard(key, SHARDS)}
    asked = world.metastore.asked["find_extents"]
    await world.clock.advance(1.0)
    await world.append(key, b"b")
    await world.clock.advance(0.2)
    result = await world.fetch({key: 1})
    assert split_sent(result.records(key)) == expected(world.live[key], 1)
    assert world.metastore.asked["find_extents"] == asked, "the feed brought it"


@pytest.mark.requirement("W5")
async def test_a_fetch_that_waits_is_woken_by_another_agents_commit(world: World, key: int) -> None:
    waiting = asyncio.ensure_future(world.request_fetch({key: 0}, max_wait_ms=120_000))
    await world.clock.advance(90.0)
    assert not waiting.done()
    assert followed(world) == assigned() | {commit_shard(key, SHARDS)}, "as long as it waits"

    await world.append(key, b"a")
    await world.clock.advance(world.settings.feed_poll_interval_ms / 1000)

    assert waiting.done()
    assert split_sent(waiting.result().records(key)) == expected(world.live[key], 0)


async def test_interest_ends_and_heads_tails_and_history_with_it(world: World, key: int) -> None:
    for value in (b"a", b"b", b"c"):
        await world.append(key, value)
    await world.clock.advance(1.0)  # the newest page has these rows behind it
    for _ in range(3):
        await world.fetch({key: 0})
        await world.fetch({key: 3}, max_wait_ms=10)
    index = world.service._index
    assert key in index._tails
    assert index.history.held_keys() == [key]
    assert world.metric("feed_followed_shards") == len(assigned()) + 1
    assert world.metric("feed_wanted_shards", reason="read") == 1

    await world.clock.advance(FOLLOW_POLICY.read_s + 12)

    assert followed(world) == assigned()
    assert key not in index._tails
    assert index.history.held_keys() == []
    assert world.metric("feed_followed_shards") == len(assigned())
    assert world.metric("feed_wanted_shards", reason="assigned") == len(assigned())
    assert world.metric("feed_dropped_shards_total") == 1
    result = await world.fetch({key: 0})
    assert split_sent(result.records(key)) == expected(world.live[key], 0)


async def test_many_partitions_that_are_read_once_make_no_subscriptions(world: World, key: int) -> None:
    keys = world.create_topic("large", 1_000)
    for each in keys:
        await world.fetch({each: 0})
    await world.clock.advance(FOLLOW_POLICY.wait_s + 12)
    assert followed(world) == assigned()


@pytest.mark.requirement("W5")
async def test_a_shard_is_followed_from_before_a_commit_of_this_agent_until_after(world: World, key: int) -> None:
    await world.append(key, b"a", own=True)
    shard = commit_shard(key, SHARDS)
    assert followed(world) == assigned() | {shard}
    result = await world.fetch({key: 0})
    assert split_sent(result.records(key)) == expected(world.live[key], 0)
    await world.clock.advance(FOLLOW_POLICY.commit_s - 1)
    assert shard in followed(world)
    assert [extent.partition_key for extent in world.service._index.extents()] == [key], "the feed brought it"
    await world.clock.advance(13)
    assert followed(world) == assigned()


@pytest.mark.requirement("X4")
async def test_an_own_commit_that_no_poll_brought_is_listed_when_a_failover_loses_it(world: World, key: int) -> None:
    standby = copy.deepcopy(world.model, {id(world.clock): world.clock})
    file_id = await world.append(key, b"lost", own=True)
    world.metastore.model = standby
    await world.clock.advance(1.0)  # the standby answers polls before its life begins
    standby.incarnation_id, standby.life = uuid.UUID(int=77), 1
    await world.clock.advance(1.0)
    world.service.life_begins()
    await world.clock.settle()
    assert set(await read_forgotten(world.store)) == {file_id}


async def test_followers_by_hash_change_with_the_agents_and_hand_over(world: World, key: int) -> None:
    others = range(NODE_ID, NODE_ID + FOLLOWERS + 2)
    show_agents(world, others)
    await world.clock.advance(11.0)
    assert followed(world) == assigned() | assigned(others)
    await world.clock.advance(FOLLOW_POLICY.handover_s + 12)
    assert followed(world) == assigned(others)
    show_agents(world, range(NODE_ID, NODE_ID + FOLLOWERS))
    await world.clock.advance(11.0)
    assert followed(world) == set(range(SHARDS)), "few agents follow all"


async def test_an_agent_may_follow_all(world: World) -> None:
    settings = world.settings
    world.settings = type(settings)(feed_follow_all=True)
    service = world.new_service()
    world.settings = settings
    await service.start()
    assert set(service._index.heads) == set(range(SHARDS))
    await world.clock.advance(400.0)
    assert set(service._index.heads) == set(range(SHARDS))
    await service.close()


@pytest.mark.requirement("W5")
async def test_a_growth_goes_on_for_the_followed_part(world: World, key: int) -> None:
    waiting = asyncio.ensure_future(world.request_fetch({key: 0}, max_wait_ms=120_000))
    await world.clock.advance(1.0)
    shard = commit_shard(key, SHARDS)
    world.model.grow_shards(4 * SHARDS)
    await world.append(key, b"a")
    await world.clock.advance(1.0)
    assert waiting.done()
    assert split_sent(waiting.result().records(key)) == expected(world.live[key], 0)
    assert {each for each in followed(world) if each % SHARDS == shard} == {shard + n * SHARDS for n in range(4)}
    now = set(assigned_shards(NODE_ID, dict.fromkeys(AGENTS), 4 * SHARDS))
    assert now <= followed(world)
    await world.clock.advance(FOLLOW_POLICY.handover_s + FOLLOW_POLICY.read_s + 12)
    assert followed(world) == now
