"""The feed follower: when it polls, what it survives, and the database's time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import replace

import pytest

from headrace.agent.fetch.index.feed import QUIET_AFTER_SECONDS, QUIET_SECONDS
from headrace.metastore.api.read import FeedPage
from headrace.storage.errors import UnavailableError
from tests.agent.fetch.fetch_world import World, expected, split_sent
from tests.patch import Patch


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.service.close()


async def test_the_feed_is_polled_once_per_interval_while_consumers_read(world: World, key: int) -> None:
    await world.service.start()
    waiting = asyncio.ensure_future(world.request_fetch({key: 0}, max_wait_ms=10_000, min_bytes=1))
    await world.clock.settle()
    started = world.metastore.asked["poll_feed"]

    await world.clock.advance(0.15)
    assert world.metastore.asked["poll_feed"] - started == 10
    world.service.on_ended()
    await world.clock.settle()

    assert world.metastore.asked["poll_feed"] - started == 11
    assert not waiting.done()
    await world.append(key, b"a")
    await world.clock.advance(0.015)
    assert split_sent((await waiting).records(key)) == expected(world.live[key], 0)


async def test_without_readers_the_feed_is_polled_seldom_however_many_commits_there_are(world: World) -> None:
    await world.service.start()
    await world.clock.settle()
    started = world.metastore.asked["poll_feed"]

    for _ in range(21):
        world.service.on_ended()
        await world.clock.advance(0.05)

    assert world.metastore.asked["poll_feed"] - started == 10


async def test_a_new_reader_finds_what_was_committed_without_readers(world: World, key: int) -> None:
    await world.service.start()
    await world.clock.settle()
    await world.append(key, b"a", own=True)
    before = world.metastore.asked["poll_feed"]

    await world.clock.settle()
    assert world.metastore.asked["poll_feed"] == before
    result = await world.fetch({key: 0}, max_wait_ms=10_000, min_bytes=1)
    assert split_sent(result.records(key)) == expected(world.live[key], 0)
    waiting = asyncio.ensure_future(world.request_fetch({key: 1}, max_wait_ms=10_000, min_bytes=1))
    await world.clock.settle()

    assert world.metastore.asked["poll_feed"] - before == 1
    await world.append(key, b"b")
    await world.clock.advance(0.015)
    assert split_sent((await waiting).records(key)) == expected(world.live[key], 1)


async def test_consumers_behind_the_end_cost_no_more_polls_than_none(world: World, key: int) -> None:
    for _ in range(20):
        await world.append(key, b"a")
    await world.service.start()
    await world.clock.settle()
    started = world.metastore.asked["poll_feed"]

    for offset in range(20):
        await world.fetch({key: offset})
        await world.clock.advance(0.05)

    assert world.metastore.asked["poll_feed"] - started <= 10


async def test_consumers_behind_the_end_end_the_quiet(world: World, key: int) -> None:
    await world.append(key, b"a")
    await world.service.start()
    await world.clock.advance(QUIET_AFTER_SECONDS + QUIET_SECONDS)
    before = world.metastore.asked["poll_feed"]

    await world.fetch({key: 0})
    await world.clock.settle()
    assert world.metastore.asked["poll_feed"] - before == 1
    await world.clock.advance(1.05)
    assert world.metastore.asked["poll_feed"] - before == 11


async def test_a_commit_ends_the_quiet(world: World) -> None:
    await world.service.start()
    await world.clock.advance(QUIET_AFTER_SECONDS + QUIET_SECONDS / 2)
    before = world.metastore.asked["poll_feed"]

    for _ in range(21):
        world.service.on_ended()
        await world.clock.advance(0.05)

    assert world.metastore.asked["poll_feed"] - before == 11, "one at once, and not one for each commit"


async def hear_of_the_end(world: World) -> None:
    """A consumer behind the end of one partition and at the end of another, where another agent commits."""
    behind, at_end = world.create_topic("t", 2)
    for _ in range(3):
        await world.append(behind, b"a")
    await world.service.start()
    await world.fetch({behind: 0, at_end: 0}, max_wait_ms=500)
    await world.append(at_end, b"news")
    await world.clock.advance(world.settings.feed_poll_interval_ms / 1000)

    result = await world.fetch({behind: 1, at_end: 0}, max_wait_ms=500)

    assert split_sent(result.records(at_end)) == expected(world.live[at_end], 0)


async def test_a_consumer_at_the_end_of_one_partition_hears_of_it_within_the_interval(world: World) -> None:
    await hear_of_the_end(world)


async def test_a_planted_bug_is_caught(world: World, patch: Patch) -> None:
    """Planted: a fetch that has enough does not follow the end of its other partitions."""
    patch.replace(world.service._feed, "following", nullcontext)
    with pytest.raises(AssertionError):
        await hear_of_the_end(world)


async def test_a_quiet_cluster_is_polled_rarely_until_something_happens(world: World, key: int) -> None:
    await world.service.start()
    await world.clock.advance(QUIET_AFTER_SECONDS + QUIET_SECONDS)
    before = world.metastore.asked["poll_feed"]
    await world.clock.advance(120)
    assert world.metastore.asked["poll_feed"] - before == 12
    await world.append(key, b"another agent's")
    before = world.metastore.asked["poll_feed"]
    while world.metastore.asked["poll_feed"] == before:
        await world.clock.advance(0.05)
    before = world.metastore.asked["poll_feed"]
    await world.clock.advance(1.0)
    assert world.metastore.asked["poll_feed"] - before == 10


async def test_a_reader_after_a_pause_hears_at_once_of_what_is_there(world: World, key: int) -> None:
    await world.service.start()
    await world.fetch({key: 0})
    await world.clock.advance(5.0)
    before = world.metastore.asked["poll_feed"]
    await world.append(key, b"a")

    waiting = asyncio.ensure_future(world.request_fetch({key: 0}, max_wait_ms=10_000, min_bytes=1))
    await world.clock.settle()

    assert world.metastore.asked["poll_feed"] - before == 1
    assert split_sent((await waiting).records(key)) == expected(world.live[key], 0)


async def test_between_two_fetches_of_a_consumer_nothing_slows_down(world: World, key: int) -> None:
    await world.service.start()
    await world.fetch({key: 0})
    await world.clock.settle()
    before = world.metastore.asked["poll_feed"]
    await world.clock.advance(0.09)
    assert world.metastore.asked["poll_feed"] - before == 6


async def test_a_commit_during_a_poll_is_not_lost_to_readers(world: World, key: int) -> None:
    await world.service.start()
    await world.fetch({key: 0})
    await world.clock.settle()
    before = world.metastore.asked["poll_feed"]
    world.metastore.change_page = lambda page: _commit_once(world, page)
    world.service.on_ended()
    await world.clock.settle()
    assert world.metastore.asked["poll_feed"] - before == 2


def _commit_once(world: World, page: FeedPage) -> FeedPage:
    world.metastore.change_page = lambda page: page
    world.service.on_ended()
    return page


async def test_the_databases_time_moves_on_between_polls_and_follows_it(world: World) -> None:
    with pytest.raises(UnavailableError):
        world.service.database_now_ms()
    ahead_ms = 5_000
    world.metastore.change_page = lambda page: replace(page, wall_ms=page.wall_ms + ahead_ms)
    await world.service.start()

    at_once = world.service.database_now_ms()
    world.clock.jump(0.010)

    assert at_once == world.clock.wall_ms() - 10 + ahead_ms
    assert world.service.database_now_ms() == at_once + 10


async def test_starting_without_a_metastore_says_so(world: World) -> None:
    world.metastore.fail = UnavailableError("down")

    with pytest.raises(UnavailableError):
        await world.service.start()


async def test_an_outage_is_survived_without_hammering(world: World, key: int) -> None:
    await world.service.start()
    await world.fetch({key: 0})
    world.metastore.fail = UnavailableError("down")
    before = world.metastore.asked["poll_feed"]
    await world.clock.advance(10.0)
    assert world.metastore.asked["poll_feed"] - before <= 41

    world.metastore.fail = None
    await world.append(key, b"a")
    await world.clock.advance(0.3)
    asked = world.metastore.asked["find_extents"]
    result = await world.fetch({key: 0})

    assert split_sent(result.records(key)) == expected(world.live[key], 0)
    assert world.metastore.asked["find_extents"] == asked


async def test_an_unforeseen_failure_forgets_the_index_and_goes_on(
    world: World, key: int, caplog: pytest.LogCaptureFixture
) -> None:
    await world.service.start()
    await world.fetch({key: 0})

    def explode(page: FeedPage) -> FeedPage:
        raise RuntimeError("a bug")

    world.metastore.change_page = explode
    with caplog.at_level(logging.ERROR):
        await world.clock.advance(0.1)
    assert "index cleared" in caplog.text
    world.metastore.change_page = lambda page: page
    await world.append(key, b"a")
    await world.clock.advance(1.0)

    result = await world.fetch({key: 0})

    assert split_sent(result.records(key)) == expected(world.live[key], 0)


async def test_a_page_that_is_not_the_whole_feed_is_followed_by_the_next_at_once(world: World, key: int) -> None:
    await world.service.start()
    await world.fetch({key: 0})
    await world.clock.settle()
    for number in range(5):
        await world.append(key, b"%d" % number)
    world.metastore.change_page = lambda page: replace(page, rows=page.rows[:1])
    before = world.metastore.asked["poll_feed"]

    world.service.on_ended()
    await world.clock.settle()

    assert world.metastore.asked["poll_feed"] - before == 5


async def test_only_a_changed_metadata_log_is_reported(world: World) -> None:
    world.create_topic("t", 1)
    world.model.metadata_offset = world.view.image.offset
    await world.service.start()
    await world.clock.advance(0.1)
    assert world.metadata_moves == 0

    world.model.metadata_offset += 1
    await world.clock.advance(0.1)

    assert world.metadata_moves >= 1
