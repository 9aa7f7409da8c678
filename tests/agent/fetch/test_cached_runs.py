"""Long runs of one partition in the chunk cache: loaded by themselves, once, and always the file's bytes."""

from __future__ import annotations

import asyncio
import random
import uuid

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.fetch.deliver import LONG_RUN_BYTES
from headrace.agent.fetch.files.cache import ChunkCache
from headrace.agent.fetch.files.read import READ_AHEAD_SHARE, RangeReader
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.storage.file_id import object_key
from headrace.storage.objects.store import ByteRange
from headrace.storage.segment.file_range import FileRange
from tests.agent.fetch.fetch_world import FaultyStore, World

CHUNK = 1000
SIZE = 10_000
FILES = [uuid.UUID(int=number) for number in (1, 2)]
DATA = {file_id: random.Random(file_id.int).randbytes(SIZE) for file_id in FILES}


@pytest.fixture
async def store() -> FaultyStore:
    store = FaultyStore()
    for file_id, data in DATA.items():
        await store.put(object_key(file_id), data)
    return store


def cache_of(store: FaultyStore, capacity_bytes: int = 100_000) -> ChunkCache:
    return ChunkCache(store, FetchMetrics(CollectorRegistry()), capacity_bytes=capacity_bytes, chunk_bytes=CHUNK)


async def test_a_run_is_loaded_without_its_neighbours_and_read_ahead_to_its_end(store: FaultyStore) -> None:
    cache, file_id = cache_of(store), FILES[0]
    for start in range(300, 900, 100):
        body = await cache.read(FileRange(file_id, start, start + 100, SIZE, run_end=900))
        assert bytes(body.data) == DATA[file_id][start : start + 100]
    assert [byte_range for _, byte_range in store.gets] == [ByteRange(300, 600)]


async def test_a_run_over_several_chunks_is_loaded_up_to_each_boundary(store: FaultyStore) -> None:
    cache, file_id = cache_of(store), FILES[0]
    body = await cache.read(FileRange(file_id, 900, 1100, SIZE, run_end=2500))
    assert bytes(body.data) == DATA[file_id][900:1100]
    body = await cache.read(FileRange(file_id, 1100, 2500, SIZE, run_end=2500))
    assert bytes(body.data) == DATA[file_id][1100:2500]
    assert [byte_range for _, byte_range in store.gets] == [
        ByteRange(900, 100),
        ByteRange(1000, 1000),
        ByteRange(2000, 500),
    ]


async def test_readers_of_one_run_share_its_load(store: FaultyStore) -> None:
    cache, file_id = cache_of(store), FILES[0]
    wanted = FileRange(file_id, 100, 200, SIZE, run_end=800)
    bodies = await asyncio.gather(*(cache.read(wanted) for _ in range(10)))
    assert {bytes(body.data) for body in bodies} == {DATA[file_id][100:200]}
    assert len(store.gets) == 1


async def test_readers_far_apart_do_not_load_each_others_bytes(store: FaultyStore) -> None:
    """Ten partitions in runs of a fifth of a chunk, each read through before the next, by a cache of three chunks: by
    chunks, each would be loaded for each of the five partitions in it."""
    cache, file_id = cache_of(store, capacity_bytes=3 * CHUNK), FILES[0]
    run = CHUNK // 5
    for partition in range(5):
        for start in range(partition * run, SIZE, CHUNK):
            for first in (start, start + run // 2):
                body = await cache.read(FileRange(file_id, first, first + run // 2, SIZE, run_end=start + run))
                assert bytes(body.data) == DATA[file_id][first : first + run // 2]
    assert sum(byte_range.length for _, byte_range in store.gets if byte_range) == SIZE


async def test_a_response_reads_ahead_no_more_than_its_share_of_the_cache(store: FaultyStore) -> None:
    metrics = FetchMetrics(CollectorRegistry())
    cache = cache_of(store, capacity_bytes=4 * READ_AHEAD_SHARE * 100)
    reader = RangeReader(store, cache, lambda _: SIZE, metrics)
    ranges = [FileRange(FILES[0], start, start + 50, SIZE, run_end=start + 900) for start in range(0, 4000, CHUNK)]
    await reader.read(ranges)
    assert [byte_range and byte_range.length for _, byte_range in store.gets] == [100] * 4


async def test_long_extents_are_runs_and_short_ones_are_not() -> None:
    world = World()
    long, short = world.create_topic("t", 2)
    await world.append(long, bytes(LONG_RUN_BYTES))
    await world.append(short, b"a")
    await world.service.start()
    ranges: list[FileRange] = []
    read = RangeReader.read

    async def remember(self: RangeReader, wanted: list[FileRange]) -> object:
        ranges.extend(wanted)
        return await read(self, wanted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RangeReader, "read", remember)
        await world.fetch({long: 0, short: 0})
    await world.service.close()
    assert sorted(wanted.run_end > 0 for wanted in ranges) == [False, True]


async def history(cache: ChunkCache, rng: random.Random, steps: int) -> None:
    """Random reads, kept ranges, whole files and losses; each read is compared with the file."""
    for _ in range(steps):
        file_id = rng.choice(FILES)
        start = rng.randrange(SIZE - 1)
        end = min(SIZE, start + rng.choice((1, 50, 400, 1500)))
        act = rng.random()
        if act < 0.05:
            cache.forget(file_id)
        elif act < 0.08:
            cache.put_file(file_id, DATA[file_id])
        elif act < 0.2:
            end = min(end, (start // CHUNK + 1) * CHUNK)
            cache.keep_range(file_id, start, memoryview(DATA[file_id])[start:end])
        else:
            run_end = min(SIZE, end + rng.choice((0, 10, 700, 3000))) if rng.random() < 0.6 else 0
            wanted = FileRange(file_id, start, end, rng.choice((end, SIZE)), run_end=run_end)
            bodies = await asyncio.gather(*(cache.read(wanted) for _ in range(rng.choice((1, 1, 2)))))
            assert all(bytes(body.data) == DATA[file_id][start:end] for body in bodies), wanted
        assert cache.held_bytes <= cache.capacity_bytes


@pytest.mark.parametrize("seed", range(20))
async def test_any_history_reads_the_files_bytes(store: FaultyStore, seed: int) -> None:
    rng = random.Random(seed)
    await history(cache_of(store, capacity_bytes=rng.choice((0, 2_500, 8_000, 30_000))), rng, 150)


class TakesTheNearest(ChunkCache):
    """Planted: the range that begins next to the wanted bytes is taken, also if it ends before them."""

    def _held_range(self, file_id: uuid.UUID, chunk: int, first: int, last: int) -> memoryview | None:
        starts = [start for start in self._range_starts.get(file_id, ()) if start <= chunk * CHUNK + first]
        if not starts:
            return super()._held_range(file_id, chunk, first, last)
        entry = self._entries[file_id, -2 - starts[-1]]
        shift = chunk * CHUNK - starts[-1]
        return entry[shift + first : shift + last]


async def test_a_planted_bug_is_caught(store: FaultyStore) -> None:
    cache = TakesTheNearest(store, FetchMetrics(CollectorRegistry()), capacity_bytes=30_000, chunk_bytes=CHUNK)
    with pytest.raises(AssertionError):
        await history(cache, random.Random(1), 150)
