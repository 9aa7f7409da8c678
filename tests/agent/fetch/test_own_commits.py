"""What this agent committed is readable here before the feed brings it, and only where nothing can be in between."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from headrace.agent.fetch.index.index import LOOK_AGAIN, TailIndex
from headrace.metastore.api.read import NONE_OPEN, FeedKind, FeedRow, PartitionExtents
from tests.agent.fetch.fetch_world import World, expected, split_sent
from tests.agent.fetch.test_index import KEY, OTHER, SHARD, commit, extent, page, started


def ends(index: TailIndex, key: int = KEY) -> tuple[int, list[int], int]:
    """The high watermark, where the known extents begin, and the last stable offset."""
    seen = index.look(key, 0, 1_000_000)
    assert seen is not None
    return seen.high_watermark, [each.base_offset for each in seen.extents], seen.last_stable_offset


def with_one() -> TailIndex:
    """The feed has brought offsets 0 to 4."""
    index = started()
    index.apply(page(commit(1, extent(0, 4))))
    return index


@pytest.fixture
def index() -> TailIndex:
    return with_one()


def test_what_follows_the_end_is_known_at_once(index: TailIndex) -> None:
    assert index.take_own([extent(5, 6), extent(7, 9)]) == ({KEY: 200}, True)

    assert ends(index) == (10, [0, 5, 7], 10)
    assert index.heads[SHARD] == 1, "the feed will bring it, too"


def test_the_feed_brings_it_later_without_news(index: TailIndex) -> None:
    index.take_own([extent(5, 6)])
    index.take_own([extent(7, 9)])

    assert index.apply(page(commit(2, extent(5, 6)))) == {}
    assert ends(index) == (10, [0, 5, 7], 10)
    assert index.apply(page(commit(3, extent(7, 9)), commit(4, extent(10, 10)))) == {KEY: 100}
    assert ends(index) == (11, [0, 5, 7, 10], 11)
    assert index.take_own([extent(11, 11)]) == ({KEY: 100}, True)


def test_an_extent_of_the_feed_may_be_several_of_here(index: TailIndex) -> None:
    file_id = uuid.UUID(int=77)
    parts = [extent(5, 6)._replace(source=file_id), extent(7, 9, position=100)._replace(source=file_id)]
    index.take_own(parts)

    assert index.apply(page(commit(2, extent(5, 9, length=200)._replace(source=file_id)))) == {}

    assert ends(index) == (10, [0, 5, 7], 10)
    assert index.apply(page(commit(3, extent(10, 10)))) == {KEY: 100}


@pytest.mark.parametrize("base", [6, 4, 0], ids=["behind another agent's", "half known", "known"])
def test_what_does_not_follow_the_end_waits_for_the_feed(index: TailIndex, base: int) -> None:
    heard, is_known = index.take_own([extent(base, 9)])

    assert (heard, is_known) == ({}, False)
    assert ends(index) == (5, [0], 5)


def test_what_the_feed_brought_before_the_answer_came_is_known(index: TailIndex) -> None:
    index.apply(page(commit(2, extent(5, 9))))

    assert index.take_own([extent(5, 9)]) == ({}, True)
    assert ends(index) == (10, [0, 5], 10)


def test_what_the_primary_says_is_further_waits_for_the_feed(index: TailIndex) -> None:
    index.observe(PartitionExtents(KEY, True, 0, 8, []), index.generation)

    assert index.take_own([extent(8, 9)]) == ({}, False)
    assert index.take_own([extent(5, 7)]) == ({}, True)


def test_a_partition_without_extents_waits_for_the_feed() -> None:
    assert started().take_own([extent(0, 4)]) == ({}, False)
    assert TailIndex(4).take_own([extent(0, 4)]) == ({}, False)


def test_one_of_two_partitions_may_be_known(index: TailIndex) -> None:
    assert index.take_own([extent(5, 6), extent(3, 4, key=OTHER)]) == ({KEY: 100}, False)


def test_what_the_feed_has_something_else_for_is_lost_and_forgotten() -> None:
    """A standby without the last commits became the primary; its log continues with other records."""
    index, lost = with_one(), []
    index.on_forgotten = lost.extend
    mine = extent(5, 6)
    index.take_own([mine])
    generation = index.generation

    index.apply(page(commit(2, extent(5, 6)._replace(source=uuid.UUID(int=99)))))

    assert lost == [mine]
    assert index.generation > generation
    assert index.look(KEY, 0, 1_000) is None, "the primary is asked"


def test_an_open_transaction_holds_up_stable_readers_only(index: TailIndex) -> None:
    opened = FeedRow(SHARD, 2, FeedKind.TRANSACTION, [extent(5, 5)], first_open_offsets={KEY: 5})
    index.apply(page(opened))

    assert index.take_own([extent(6, 9)]) == ({KEY: 100}, True)
    assert ends(index) == (10, [0, 5, 6], 5)
    index.apply(page(commit(3, extent(6, 9))))
    assert ends(index) == (10, [0, 5, 6], 5)
    over = FeedRow(SHARD, 4, FeedKind.TRANSACTION, [extent(10, 10)], first_open_offsets={KEY: NONE_OPEN})
    assert index.apply(page(over)) == {KEY: LOOK_AGAIN}
    assert ends(index) == (11, [0, 5, 6, 10], 11)


def test_stable_offsets_do_not_go_back_when_the_feed_catches_up(index: TailIndex) -> None:
    index.take_own([extent(5, 6)])
    index.take_own([extent(7, 9)])

    index.apply(page(commit(2, extent(5, 6))))

    assert ends(index)[2] == 10


def test_a_moved_log_start_may_pass_what_is_ahead(index: TailIndex) -> None:
    index.take_own([extent(5, 6)])
    index.move_log_start(index.before_move(), KEY, 7)

    assert index.apply(page(commit(2, extent(5, 6)), commit(3, extent(7, 9)))) == {KEY: 100}
    seen = index.look(KEY, 7, 1_000)
    assert seen is not None
    assert [each.base_offset for each in seen.extents] == [7]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.service.close()


async def test_a_consumer_at_the_end_gets_it_without_a_poll(world: World, key: int) -> None:
    await world.service.start()
    await world.append(key, b"a")
    await world.fetch({key: 0}, max_wait_ms=10_000, min_bytes=1)
    waiting = asyncio.ensure_future(world.request_fetch({key: 1}, max_wait_ms=10_000, min_bytes=1))
    await world.clock.settle()
    asked = dict(world.metastore.asked)

    await world.append(key, b"b", own=True)
    await world.clock.settle()

    assert waiting.done()
    assert split_sent((await waiting).records(key)) == expected(world.live[key], 1)
    assert world.metastore.asked["poll_feed"] == asked["poll_feed"]


async def test_a_consumer_gets_what_another_agent_committed_before_it(world: World, key: int) -> None:
    await world.service.start()
    await world.append(key, b"a")
    await world.fetch({key: 0}, max_wait_ms=10_000, min_bytes=1)
    waiting = asyncio.ensure_future(world.request_fetch({key: 1}, max_wait_ms=10_000, min_bytes=1))
    await world.clock.settle()

    await world.append(key, b"b")  # by another agent
    await world.append(key, b"c", own=True)
    await world.clock.settle()

    assert split_sent((await waiting).records(key)) == expected(world.live[key], 1)
