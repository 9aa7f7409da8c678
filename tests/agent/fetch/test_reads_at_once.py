"""Long runs that the store has in memory: read without the cache, checked as all bytes from a store."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import pytest

from headrace.agent.fetch import deliver
from headrace.agent.fetch.deliver import Delivery, ExtentRead
from headrace.agent.fetch.files.read import RangeReader
from headrace.storage.file_id import object_key
from headrace.storage.segment.file_range import FileRange, RangeBytes
from tests.agent.fetch.fetch_world import World, expected, split_sent
from tests.patch import Patch
from tests.storage.batches import plain_batch

LONG_RUN_BYTES = 400


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(deliver, "LONG_RUN_BYTES", LONG_RUN_BYTES)
    world = World()
    await world.service.start()
    yield world
    await world.service.close()


def one_in_two(rng: random.Random) -> Callable[[], bool]:
    return lambda: rng.random() < 0.5


async def test_a_long_run_is_neither_requested_nor_kept(world: World, key: int) -> None:
    await world.append(key, bytes(1000))
    world.store.answers_at_once = lambda: True

    for _ in range(2):
        assert split_sent((await world.fetch({key: 0})).records(key)) == expected(world.live[key], 0)

    assert (len(world.store.at_once), world.store.gets) == (2, [])
    assert world.metric("cache_bytes") == 0
    assert world.metric("read_bytes_total", source="store") == sum(asked.length for asked in world.store.at_once)
    assert world.metric("cache_reads_total", result="miss") == 2


async def test_short_extents_are_read_with_their_neighbours(world: World) -> None:
    keys = world.create_topic("t", 3)
    await world.write([(key, plain_batch(1, b"short")) for key in keys])
    world.store.answers_at_once = lambda: True

    result = await world.fetch(dict.fromkeys(keys, 0))

    assert all(split_sent(result.records(key)) == expected(world.live[key], 0) for key in keys)
    assert (world.store.at_once, len(world.store.gets)) == ([], 1)


@pytest.mark.parametrize("recent", [False, True])
async def test_all_readers_together_copy_at_most_one_range_in_a_turn(world: World, *, recent: bool) -> None:
    keys = world.create_topic("t", 4)
    file_ids = [await world.append(key, bytes(1000)) for key in keys]
    ranges = [FileRange(file_id, 16, 600, recent=recent, run_end=1000) for file_id in file_ids]
    seen: list[int] = []
    world.store.answers_at_once = lambda: True
    reader = world.service._fetch._delivery._reader

    async def other() -> None:
        while not seen or seen[-1] < 2 * len(ranges):
            seen.append(len(world.store.at_once))
            await asyncio.sleep(0)

    await asyncio.gather(other(), reader.read(ranges), reader.read(ranges))

    assert {after - before for before, after in pairwise(seen)} == {0, 1}


async def test_what_this_agent_wrote_comes_from_its_memory(world: World, key: int) -> None:
    await world.append(key, bytes(1000), own=True)
    world.store.answers_at_once = lambda: True

    await world.fetch({key: 0})

    assert (world.store.at_once, world.store.gets) == ([], [])


async def read_damaged(world: World) -> None:
    """A byte of a long run is another: the partition is an error, the others are not."""
    damaged, sound = world.create_topic("t", 2)
    lost = await world.append(damaged, bytes(1000))
    await world.append(sound, bytes(1000))
    await world.store.rewrite(object_key(lost), lambda body: body[:500] + b"?" + body[501:])
    world.store.answers_at_once = lambda: True

    result = await world.fetch({damaged: 0, sound: 0})

    assert world.store.at_once
    assert (result.records(damaged), result.code(damaged) != 0) == (b"", True)
    assert split_sent(result.records(sound)) == expected(world.live[sound], 0)
    assert world.metric("storage_errors_total", reason="damaged") == 1


async def test_damaged_bytes_are_never_sent(world: World) -> None:
    await read_damaged(world)


async def test_a_planted_bug_is_caught_by_damaged_bytes(world: World, patch: Patch) -> None:
    """Planted: what is in this machine's memory counts as checked."""

    async def trusting(self: RangeReader, wanted: FileRange) -> RangeBytes | None:
        data = await original(self, wanted)
        return data and data._replace(checked=True)

    original = RangeReader._at_once
    patch.replace(RangeReader, "_at_once", trusting)
    with pytest.raises(AssertionError):
        await read_damaged(world)


async def history(world: World, rng: random.Random) -> None:
    """Consumers read partitions with long and short extents from the start, with any limits; some reads at once."""
    keys = world.create_topic("t", 3)
    for _ in range(12):
        counts = [(key, rng.randrange(3)) for key in keys]
        values = [(key, rng.randbytes(rng.choice((10, 150, 600)))) for key, count in counts for _ in range(count)]
        if values:
            await world.write([(key, plain_batch(rng.randint(1, 3), value)) for key, value in values])
    world.store.answers_at_once = one_in_two(rng)
    offsets, read = dict.fromkeys(keys, 0), {key: list[bytes]() for key in keys}
    for _ in range(300):
        left = [key for key in keys if len(read[key]) < len(world.live[key])]
        if not left:
            break
        asked = {key: offsets[key] for key in rng.sample(left, rng.randint(1, len(left)))}
        limit = rng.choice((1, 300, 2000, 1_000_000))
        result = await world.fetch(asked, partition_max_bytes=limit, max_bytes=rng.choice((500, 1_000_000)))
        assert result.size > 0, "each response has a batch"
        for key in asked:
            sent = split_sent(result.records(key))
            read[key] += sent
            if sent:
                offsets[key] = world.live[key][len(read[key]) - 1].last_offset + 1
    assert read == {key: expected(world.live[key], 0) for key in keys}
    assert any(world.live.values())


@pytest.mark.requirement("W5")
@pytest.mark.parametrize("seed", range(20))
async def test_any_history_is_read_whole_and_in_order(world: World, seed: int) -> None:
    await history(world, random.Random(seed))
    assert world.store.at_once
    assert world.store.gets


async def test_a_planted_bug_that_leaves_the_first_extent_out_is_caught(world: World, patch: Patch) -> None:
    """Planted: no part of an extent is read, also of the first."""

    def whole_only(self: Delivery, *args: Any) -> list[ExtentRead]:
        reads = original(self, *args)
        return [one for one in reads if one.file_range.end == one.extent.position + one.extent.length]

    original = Delivery._extent_reads
    patch.replace(Delivery, "_extent_reads", whole_only)
    with pytest.raises(AssertionError):
        await history(world, random.Random(3))


async def test_a_planted_bug_is_caught_by_a_history(world: World, patch: Patch) -> None:
    """Planted: what is read at once begins where its extent does."""

    async def from_start(self: RangeReader, wanted: FileRange) -> RangeBytes | None:
        known = starts.setdefault((wanted.file_id, wanted.run_end), wanted.start)
        return await original(self, wanted._replace(start=known, end=known + wanted.end - wanted.start))

    starts: dict[object, int] = {}
    original = RangeReader._at_once
    patch.replace(RangeReader, "_at_once", from_start)
    with pytest.raises(AssertionError):
        await history(world, random.Random(3))
