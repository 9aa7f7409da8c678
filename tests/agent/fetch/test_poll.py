"""The long poll: who waits, what ends the wait, and what it costs meanwhile. All in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from headrace.agent.fetch import locate
from headrace.storage.errors import UnavailableError
from tests.agent.fetch.fetch_world import World, expected, split_sent
from tests.model import metastore_model
from tests.storage.batches import plain_batch


async def test_a_waiting_fetch_ends_when_data_arrives_and_not_before(world: World, key: int) -> None:
    waiting = asyncio.ensure_future(world.request_fetch({key: 0}, max_wait_ms=10_000))
    await world.clock.advance(3.0)
    assert not waiting.done()

    await world.append(key, b"a")
    await world.clock.advance(world.settings.feed_poll_interval_ms / 1000)

    assert waiting.done()
    assert split_sent(waiting.result().records(key)) == expected(world.live[key], 0)


async def test_an_own_commit_ends_the_wait_without_waiting_for_the_next_poll(world: World, key: int) -> None:
    waiting = asyncio.ensure_future(world.request_fetch({key: 0}, max_wait_ms=10_000))
    await world.clock.settle()
    before = world.clock.monotonic()

    await world.append(key, b"a", own=True)
    await world.clock.settle()

    assert waiting.done()
    assert world.clock.monotonic() == before


async def test_a_fetch_gets_an_empty_answer_when_its_time_is_up(world: World, key: int) -> None:
    before = world.clock.monotonic()

    result = await world.fetch({key: 0}, max_wait_ms=500)

    assert (result.records(key), result.code(key)) == (b"", 0)
    assert world.clock.monotonic() - before == pytest.approx(0.5)


async def test_min_bytes_are_waited_for(world: World, key: int) -> None:
    waiting = asyncio.ensure_future(world.request_fetch({key: 0}, max_wait_ms=10_000, min_bytes=300))
    for value in (b"a" * 100, b"b" * 20):
        await world.append(key, value)
        await world.clock.advance(0.1)
    assert not waiting.done()

    await world.append(key, b"c" * 100)
    await world.clock.advance(0.1)

    assert split_sent(waiting.result().records(key)) == expected(world.live[key], 0)


async def test_what_there_is_comes_when_min_bytes_never_do(world: World, key: int) -> None:
    await world.append(key, b"a")

    result = await world.fetch({key: 0}, max_wait_ms=500, min_bytes=100_000)

    assert split_sent(result.records(key)) == expected(world.live[key], 0)


async def test_more_min_bytes_than_may_be_sent_are_not_waited_for(world: World, key: int) -> None:
    await world.append(key, b"a" * 1000)
    before = world.clock.monotonic()

    result = await world.fetch({key: 0}, max_wait_ms=500, min_bytes=100_000, max_bytes=1000)

    assert result.size > 0
    assert world.clock.monotonic() == before


async def test_only_the_part_behind_the_offset_counts_towards_min_bytes(world: World, key: int) -> None:
    await world.write([(key, plain_batch(1, b"x" * 100)) for _ in range(10)])
    before = world.clock.monotonic()

    await world.fetch({key: 9}, max_wait_ms=500, min_bytes=1000)

    assert world.clock.monotonic() - before == pytest.approx(0.5)


@pytest.mark.requirement("W5")
async def test_waiting_fetches_ask_the_metastore_nothing(world: World) -> None:
    keys = world.create_topic("t", 4)
    waiting = [asyncio.ensure_future(world.request_fetch(dict.fromkeys(keys, 0), max_wait_ms=5_000)) for _ in range(50)]
    await world.clock.settle()
    asked, polls = world.metastore.asked["find_extents"], world.metastore.asked["poll_feed"]
    await world.clock.advance(3.0)
    assert not any(fetch.done() for fetch in waiting)
    assert world.metastore.asked["poll_feed"] - polls <= 3.0 / 0.015 + 1

    await world.append(keys[2], b"a", own=True)
    results = await world.clock.run(asyncio.gather(*waiting))

    assert all(split_sent(result.records(keys[2])) == expected(world.live[keys[2]], 0) for result in results)
    assert world.metastore.asked["find_extents"] == asked
    assert world.store.gets == []


async def test_one_wrong_partition_ends_the_wait_for_all(world: World, key: int) -> None:
    before = world.clock.monotonic()

    result = await world.fetch({key: 0, key + 1: 0}, max_wait_ms=5_000)

    assert result.code(key) == 0
    assert result.code(key + 1) != 0
    assert world.clock.monotonic() == before


async def test_a_fetch_of_nothing_does_not_wait(world: World) -> None:
    before = world.clock.monotonic()

    result = await world.fetch({}, max_wait_ms=5_000)

    assert result.partitions == {}
    assert world.clock.monotonic() == before


@pytest.mark.parametrize("ending", ["drain", "close"])
async def test_drain_and_close_answer_waiting_fetches_at_once(world: World, key: int, ending: str) -> None:
    waiting = asyncio.ensure_future(world.request_fetch({key: 0}, max_wait_ms=60_000))
    await world.clock.settle()
    before = world.clock.monotonic()

    if ending == "drain":
        world.service.drain()
    else:
        await world.service.close()
    result = await waiting
    later = await world.request_fetch({key: 0}, max_wait_ms=60_000)

    assert (result.code(key), later.code(key)) == (0, 0)
    assert world.clock.monotonic() == before


async def test_a_closed_connection_leaves_no_waiter_behind(world: World, key: int) -> None:
    waiting = asyncio.ensure_future(world.request_fetch({key: 0}, max_wait_ms=60_000))
    await world.clock.settle()
    assert world.metric("waiting") == 1

    waiting.cancel()
    await world.clock.settle()

    assert waiting.cancelled()
    assert world.metric("waiting") == 0


async def test_a_deleted_topic_ends_the_wait(world: World, key: int) -> None:
    waiting = asyncio.ensure_future(world.request_fetch({key: 0}, max_wait_ms=60_000))
    await world.clock.settle()

    world.model.delete_topic(key >> 24)
    await world.clock.advance(0.1)

    assert waiting.result().code(key) == 100  # UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("options", [{"max_wait_ms": 0}, {"max_wait_ms": 10_000, "min_bytes": 0}])
async def test_a_fetch_that_does_not_wait_shows_what_was_acknowledged_before_it(
    world: World, key: int, options: dict[str, int]
) -> None:
    """On an agent that did not make the commit, with its last poll of the feed just before it."""
    for number in range(5):
        await world.append(key, b"%d" % number)
        before = world.clock.monotonic()
        result = await world.fetch({key: number}, **options)
        assert split_sent(result.records(key)) == expected(world.live[key], number)
        assert world.clock.monotonic() == before


async def test_fetches_that_do_not_wait_share_one_poll_and_survive_an_outage(world: World, key: int) -> None:
    await world.append(key, b"a")
    await world.fetch({key: 0})
    before = world.metastore.asked["poll_feed"]
    answers = await world.clock.run(asyncio.gather(*(world.request_fetch({key: 1}, max_wait_ms=0) for _ in range(20))))
    assert world.metastore.asked["poll_feed"] - before <= 3
    assert {answer.code(key) for answer in answers} == {0}
    world.metastore.fail = UnavailableError("away")
    result = await world.fetch({key: 1}, max_wait_ms=0)
    assert (result.records(key), result.code(key)) == (b"", 0)


async def test_a_look_up_that_its_budget_ended_is_not_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is more to read: the client gets what was found, and asks again."""
    keys = world.create_topic("t", 6)
    for key in keys:
        await world.append(key, b"a" * 100)
        await world.append(key, b"b" * 100)
    late = world.new_service()
    await late.start()
    monkeypatch.setattr(metastore_model, "EXTENTS_PER_CALL", 3)
    monkeypatch.setattr(locate, "EXTENTS_PER_CALL", 3)
    offsets, fetches = dict.fromkeys(keys, 0), 0
    while sum(offsets.values()) < 2 * len(keys) - 3:  # more than one look-up finds
        before = world.clock.monotonic()
        result = await world.fetch(offsets, max_wait_ms=60_000, min_bytes=100_000, service=late)
        for key in keys:
            offsets[key] += len(split_sent(result.records(key)))
        fetches += 1
        assert world.clock.monotonic() == before
        assert fetches <= 20, f"no partition may starve: {offsets}"
    assert min(offsets.values()) > 0
    await late.close()
