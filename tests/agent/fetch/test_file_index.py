"""A reader that enters a large extent in its middle reads the footer and one window, not everything before it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from headrace.agent.fetch.files.seek import WINDOW_BYTES
from headrace.agent.fetch.files.start_points import WORTHWHILE_BYTES
from headrace.storage.file_id import object_key
from headrace.storage.records.codec import Record, encode_batch
from headrace.storage.segment.reader import TAIL_BYTES
from tests.agent.fetch.fetch_world import NEVER_SEEN, World, expected, split_sent
from tests.storage.batches import plain_batch

T0 = 1_700_000_000_000
VALUE = b"x" * 65_000
BATCHES = 100
RECORDS = 3


def _batch(number: int) -> bytes:
    """`RECORDS` records, the timestamps rising from batch to batch."""
    records = [Record(n, T0 + number * 10 + n, None, VALUE if n == 0 else b"v") for n in range(RECORDS)]
    return encode_batch(records, base_offset=0)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World(cache_bytes=0)
    await world.service.start()
    yield world
    await world.service.close()


async def _write(world: World, *, dropped: tuple[int, ...] = ()) -> tuple[int, str]:
    """One large file of one partition; the batches `dropped` are in no extent. Its partition key and object key."""
    (key,) = world.create_topic("t", 1)
    batches = [plain_batch(2, VALUE, **NEVER_SEEN) if n in dropped else _batch(n) for n in range(BATCHES)]
    file_id = await world.write([(key, batch) for batch in batches])
    await world.write([(key, plain_batch(1, b"at the log end"))])
    world.store.gets.clear()
    return key, object_key(file_id)


def _bytes_read(world: World) -> int:
    return sum(wanted.length for _, wanted in world.store.gets if wanted is not None)


@pytest.mark.requirement("W5")
@pytest.mark.parametrize("dropped", [(), (0, 1, 2, 3, 4, 5), (50,), (0, 40, 41, 99)])
async def test_every_offset_of_a_large_extent_is_found_and_little_is_read(
    world: World, dropped: tuple[int, ...]
) -> None:
    key, _ = await _write(world, dropped=dropped)
    assert world.live[key][-1].last_offset == (BATCHES - len(dropped)) * RECORDS
    for offset in range(1, (BATCHES - len(dropped)) * RECORDS, 17):
        fresh = world.service = world.new_service()
        await fresh.start()
        world.store.gets.clear()
        result = await world.fetch({key: offset}, max_bytes=1)
        assert split_sent(result.records(key))[0] == expected(world.live[key], offset)[0]
        assert _bytes_read(world) <= TAIL_BYTES + 3 * WINDOW_BYTES
        await fresh.close()


async def test_a_footer_is_read_once_for_many_readers(world: World) -> None:
    key, object_name = await _write(world)
    for offset in (150, 200, 151, 250):
        await world.fetch({key: offset}, max_bytes=1)
    size = (await world.store.head(object_name)).size
    tails = [wanted for _, wanted in world.store.gets if wanted is not None and wanted.start + wanted.length == size]
    assert len(tails) == 1


async def test_without_a_usable_footer_the_extent_is_walked(world: World) -> None:
    key, object_name = await _write(world)
    await world.store.rewrite(object_name, lambda body: body[:-20] + b"?" * 20)
    result = await world.fetch({key: 200}, max_bytes=1)
    assert split_sent(result.records(key))[0] == expected(world.live[key], 200)[0]
    assert _bytes_read(world) > 200 / RECORDS * len(VALUE)


@pytest.mark.parametrize("dropped", [(), (0, 40, 41)])
async def test_a_timestamp_is_found_in_a_large_extent(world: World, dropped: tuple[int, ...]) -> None:
    await _write(world, dropped=dropped)
    live = [number for number in range(BATCHES) if number not in dropped]
    for wanted in (5, 47, 60, 98):
        world.store.gets.clear()
        (found,) = await world.list_offsets([("t", 0, T0 + wanted * 10 + 1)])
        assert found.offset == live.index(wanted) * RECORDS + 1
        assert found.timestamp == T0 + wanted * 10 + 1
        assert _bytes_read(world) <= 2 * TAIL_BYTES + 3 * WINDOW_BYTES


async def test_a_small_extent_costs_no_look_at_its_footer(world: World, key: int) -> None:
    await world.write([(key, _batch(n)) for n in range(WORTHWHILE_BYTES // len(VALUE) - 2)])
    world.store.gets.clear()
    await world.fetch({key: 40}, max_bytes=1)
    assert len(world.store.gets) <= 3
