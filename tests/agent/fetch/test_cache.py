"""The chunk cache: one GET per chunk however many want it, bounded bytes, immutable views."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.fetch.files.cache import ChunkCache
from headrace.agent.fetch.files.read import READS_MAX, RangeReader
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.storage.errors import CorruptError, NotFoundError, UnavailableError
from headrace.storage.file_id import object_key
from headrace.storage.objects.store import ByteRange
from headrace.storage.segment.file_range import FileRange
from tests.agent.fetch.fetch_world import FaultyStore

FILE = uuid.UUID(int=7)
DATA = bytes(range(256)) * 10
CHUNK = 1000


@pytest.fixture
async def store() -> FaultyStore:
    store = FaultyStore()
    await store.put(object_key(FILE), DATA)
    return store


def cache_of(store: FaultyStore, capacity_bytes: int = 100_000) -> ChunkCache:
    return ChunkCache(store, FetchMetrics(CollectorRegistry()), capacity_bytes=capacity_bytes, chunk_bytes=CHUNK)


def reader_of(store: FaultyStore) -> RangeReader:
    return RangeReader(store, cache_of(store), lambda _: 0, FetchMetrics(CollectorRegistry()))


@pytest.mark.parametrize(("start", "end"), [(0, 1), (0, 1000), (999, 1001), (5, 2560), (2559, 2560), (1000, 2000)])
async def test_any_range_reads_the_same_bytes_cold_and_warm(store: FaultyStore, start: int, end: int) -> None:
    cache = cache_of(store)
    assert cache.peek(FILE, start, end) is None

    cold = await cache.read(FileRange(FILE, start, end, len(DATA)))
    gets = len(store.gets)
    warm = await cache.read(FileRange(FILE, start, end))

    assert bytes(cold.data) == bytes(warm.data) == DATA[start:end]
    assert len(store.gets) == gets == (end - 1) // CHUNK - start // CHUNK + 1
    assert not cold.checked


async def test_a_reader_that_comes_as_a_shorter_load_ends_gets_its_bytes(store: FaultyStore) -> None:
    """It finds the load done, and still named: its callbacks run only after this reader's step. It must not spin."""
    cache = cache_of(store)
    late: list[asyncio.Task[bytes]] = []

    async def read(end: int) -> bytes:
        return bytes((await cache.read(FileRange(FILE, 0, end))).data)

    async def call_another(_: str) -> None:
        if not late:
            late.append(asyncio.create_task(read(20)))
            await asyncio.sleep(0)  # now its look at the chunk is the very next step, before this load's callbacks

    store.before_get = call_another
    assert await read(10) == DATA[:10]
    assert await late[0] == DATA[:20]
    assert await read(20) == DATA[:20]
    assert [byte_range and byte_range.length for _, byte_range in store.gets] == [10, 20]


async def test_many_readers_of_one_chunk_make_one_get(store: FaultyStore) -> None:
    cache = cache_of(store)
    gate = asyncio.Event()

    async def hold(_: str) -> None:
        await gate.wait()

    store.before_get = hold
    readers = [asyncio.ensure_future(cache.read(FileRange(FILE, i, i + 50, len(DATA)))) for i in range(100)]
    await asyncio.sleep(0)
    gate.set()
    bodies = await asyncio.gather(*readers)

    assert [bytes(body.data) for body in bodies] == [DATA[i : i + 50] for i in range(100)]
    assert len(store.gets) == 1


async def test_a_reader_that_leaves_does_not_end_the_load_of_the_others(store: FaultyStore) -> None:
    cache = cache_of(store)
    gate = asyncio.Event()

    async def hold(_: str) -> None:
        await gate.wait()

    store.before_get = hold
    readers = [asyncio.ensure_future(cache.read(FileRange(FILE, 0, 10, len(DATA)))) for _ in range(3)]
    await _turns()
    for leaving in (0, 1):  # the one that began the load, and one that joined it
        readers[leaving].cancel()
        await _turns()
    gate.set()

    assert bytes((await readers[2]).data) == DATA[:10]
    assert [reader.cancelled() for reader in readers] == [True, True, False]
    assert len(store.gets) == 1


async def _turns() -> None:
    """Let every task run until it waits for something."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_failed_load_fails_its_readers_and_the_next_one_tries_again(store: FaultyStore) -> None:
    cache = cache_of(store)

    async def down(_: str) -> None:
        raise UnavailableError("down")

    store.before_get = down
    results = await asyncio.gather(*(cache.read(FileRange(FILE, 0, 10)) for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [UnavailableError] * 3
    assert len(store.gets) == 1

    store.before_get = None
    assert bytes((await cache.read(FileRange(FILE, 0, 10))).data) == DATA[:10]


async def test_a_file_put_whole_is_served_without_a_copy_and_counts_as_checked(store: FaultyStore) -> None:
    cache = cache_of(store)
    cache.put_file(FILE, DATA)

    body = await cache.read(FileRange(FILE, 500, 1500))

    assert body.data.obj is DATA
    assert body.checked
    assert body.data.readonly
    assert store.gets == []


async def test_the_last_chunk_is_read_no_further_than_live_bytes_are_known(store: FaultyStore) -> None:
    cache = cache_of(store)

    await cache.read(FileRange(FILE, 2000, 2010, live_end=2100))
    await cache.read(FileRange(FILE, 2050, 2100, live_end=2100))
    await cache.read(FileRange(FILE, 2100, 2500, live_end=2500))

    assert [byte_range for _, byte_range in store.gets] == [ByteRange(2000, 100), ByteRange(2000, 500)]
    assert bytes((await cache.read(FileRange(FILE, 2000, 2500))).data) == DATA[2000:2500]


async def test_a_reader_that_needs_more_than_the_load_it_joined_loads_again(store: FaultyStore) -> None:
    cache = cache_of(store)

    short, long = await asyncio.gather(cache.read(FileRange(FILE, 0, 10)), cache.read(FileRange(FILE, 0, 900)))

    assert (bytes(short.data), bytes(long.data)) == (DATA[:10], DATA[:900])
    assert len(store.gets) == 2


async def test_the_bound_holds_and_the_least_recently_used_goes(store: FaultyStore) -> None:
    cache = cache_of(store, capacity_bytes=2 * CHUNK)
    held = (await cache.read(FileRange(FILE, 0, 10, len(DATA)))).data
    await cache.read(FileRange(FILE, 1000, 1010, len(DATA)))
    await cache.read(FileRange(FILE, 0, 10))
    await cache.read(FileRange(FILE, 2000, 2010, len(DATA)))

    assert cache.peek(FILE, 0, 10) is not None
    assert cache.peek(FILE, 1000, 1010) is None
    cache.put_file(uuid.UUID(int=8), bytes(2 * CHUNK))
    assert cache.peek(FILE, 0, 10) is None
    assert bytes(held) == DATA[:10]  # a view stays valid after its eviction


async def test_what_is_larger_than_the_cache_is_not_kept(store: FaultyStore) -> None:
    cache = cache_of(store, capacity_bytes=0)
    cache.put_file(FILE, DATA)

    assert cache.peek(FILE, 0, 10) is None
    assert bytes((await cache.read(FileRange(FILE, 0, 10))).data) == DATA[:10]


async def test_a_forgotten_file_is_read_again(store: FaultyStore) -> None:
    cache = cache_of(store)
    await cache.read(FileRange(FILE, 0, 10))
    cache.put_file(FILE, DATA)

    cache.forget(FILE)

    assert cache.peek(FILE, 0, 10) is None


async def test_a_range_past_the_objects_end_is_corrupt(store: FaultyStore) -> None:
    with pytest.raises(CorruptError):
        await cache_of(store).read(FileRange(FILE, 2500, 2600))


async def test_slices_of_one_file_fail_together_and_others_do_not(store: FaultyStore) -> None:
    reader = reader_of(store)
    missing = uuid.UUID(int=9)
    slices = [
        FileRange(FILE, 0, 100, 100, recent=True),
        FileRange(missing, 0, 5, 5, recent=True),
        FileRange(FILE, 2000, 2100, 2100, recent=True),
        FileRange(missing, 5, 9, 9, recent=True),
    ]

    good, bad, also_good, also_bad = await reader.read(slices)

    assert isinstance(bad, NotFoundError)
    assert isinstance(also_bad, NotFoundError)
    assert not isinstance(good, Exception)
    assert not isinstance(also_good, Exception)
    assert (bytes(good.data), bytes(also_good.data)) == (DATA[:100], DATA[2000:2100])


async def test_historical_reads_are_paced_and_leave_tail_reads_alone(store: FaultyStore) -> None:
    reader = reader_of(store)
    files = [uuid.UUID(int=100 + i) for i in range(3 * READS_MAX)]
    for file_id in files:
        await store.put(object_key(file_id), DATA)
    gate, reading, most = asyncio.Event(), 0, 0

    async def hold(key: str) -> None:
        nonlocal reading, most
        if key == object_key(FILE):
            return
        reading += 1
        most = max(most, reading)
        await gate.wait()
        reading -= 1

    store.before_get = hold
    backfill = asyncio.ensure_future(reader.read([FileRange(f, 0, 100, 100, recent=False) for f in files]))
    await asyncio.sleep(0)
    (tail,) = await reader.read([FileRange(FILE, 0, 100, 100, recent=True)])
    assert not isinstance(tail, Exception)
    assert not backfill.done()
    gate.set()

    bodies = await backfill
    assert most == READS_MAX
    assert all(bytes(body.data) == DATA[:100] for body in bodies if not isinstance(body, Exception))
    assert not any(isinstance(body, Exception) for body in bodies)
