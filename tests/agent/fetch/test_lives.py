"""An agent that learns of a new life of the metastore shows nothing of what it knew of the one before."""

from __future__ import annotations

import copy
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from headrace.metastore.api.read import FeedPage
from headrace.storage.errors import UnavailableError
from tests.agent.fetch.fetch_world import World, expected, split_sent


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.service.close()


@pytest.fixture
async def key(world: World) -> int:
    """A partition with three records, of which a failover loses two; the feed is not polled for a while."""
    (key,) = world.create_topic("t", 1)
    await world.service.start()
    await world.append(key, b"kept")
    standby = copy.deepcopy(world.model, {id(world.clock): world.clock})
    standby.incarnation_id, standby.life = uuid.UUID(int=77), 1
    await world.append(key, b"lost", own=True)
    await world.clock.advance(0.5)
    await world.fetch({key: 0})
    await world.append(key, b"lost, and not in the index", own=True)
    world.metastore.model = standby
    del world.live[key][1:]
    return key


@pytest.mark.requirement("W5")
async def test_no_lost_record_is_shown(world: World, key: int) -> None:
    world.service.life_begins()
    result = await world.fetch({key: 0})
    assert result.partitions[key].high_watermark == 1
    assert split_sent(result.records(key)) == expected(world.live[key], 0)


@pytest.mark.requirement("W5")
async def test_no_lost_record_is_counted_while_the_feed_does_not_answer(world: World, key: int) -> None:
    world.metastore.change_page = _fail
    world.service.life_begins()
    assert (await world.fetch({key: 0})).partitions[key].high_watermark == 1


@pytest.mark.requirement("W5")
async def test_a_page_of_the_life_before_may_be_under_way(world: World, key: int) -> None:
    lost = await world.metastore.poll_feed({})
    lost = replace(lost, incarnation_id=uuid.UUID(int=1))
    pages = iter((lost,))
    world.metastore.change_page = lambda page: next(pages, page)
    polls = world.metastore.asked["poll_feed"]

    world.service.life_begins()
    await world.clock.settle()

    assert world.metastore.asked["poll_feed"] == polls + 1, "at once"
    assert (await world.fetch({key: 0})).partitions[key].high_watermark == 1


@pytest.mark.requirement("X7")
async def test_what_it_forgets_is_recorded_for_the_audit(world: World, key: int) -> None:
    world.service.life_begins()
    await world.clock.settle()
    keys = [info.key async for info in world.store.list_objects("metastore/extents/")]
    assert len(keys) == 1


def _fail(page: FeedPage) -> FeedPage:
    raise UnavailableError("the feed is out of reach")
