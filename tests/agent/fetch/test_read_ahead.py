"""What is loaded before a sequential reader asks for it: how much, for whom, in how large GETs, and the right bytes."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from headrace.agent.fetch.files.cache import CHUNK_BYTES, ChunkCache
from headrace.agent.fetch.files.read import RangeReader
from headrace.agent.fetch.files.read_ahead import (
    EXTENTS_MAX,
    FORGET_S,
    LEAST_BYTES,
    MIB,
    READER_BYTES,
    RETURN_S,
    ReadAhead,
    ReadAheadSizes,
    ReadTo,
    joined_ranges,
)
from headrace.agent.fetch.service import FetchService
from headrace.metastore.api.read import Extent
from headrace.storage.errors import UnavailableError
from headrace.storage.objects.merging import GAP_BYTES
from headrace.storage.records.header import read_header
from headrace.storage.segment.file_range import FileRange
from tests.agent.fetch.fetch_world import FaultyStore, World, expected, split_sent
from tests.manual_clock import ManualClock
from tests.patch import Patch
from tests.storage.batches import plain_batch

RECORD_BYTES = 64 * 1024
FILES = 7 << 76
"""Ids of extents without a file, which are markers, look different."""
S3 = "s3://bucket/prefix"


class Log:
    """Partitions with extents of `records` records each, in a file each; what is loaded is noted."""

    def __init__(self, *, partitions: int = 1, extents: int = 400, records: int = 32, budget: int = 1 << 40) -> None:
        self.clock = ManualClock()
        self.loaded: list[FileRange] = []
        self.budget = budget
        self._extents = extents
        self._records = records
        self.ahead = ReadAhead(
            *(self.find, self.load, lambda wanted: wanted in self.loaded, self.clock),
            budgets={True: budget, False: budget},
            sizes=ReadAheadSizes(CHUNK_BYTES),
        )

    def find(self, key: int, offset: int, max_bytes: int) -> tuple[Sequence[Extent], bool]:
        first, size = offset // self._records, self._records * RECORD_BYTES
        last = min(first + max_bytes // size + 2, self._extents)
        return [self._extent(key, number) for number in range(first, last)], True

    def _extent(self, key: int, number: int) -> Extent:
        base, size = number * self._records, self._records * RECORD_BYTES
        return Extent(key, base, base + self._records - 1, uuid.UUID(int=FILES | key << 32 | number), 0, size, 0, 0)

    def load(self, wanted: FileRange) -> None:
        self.loaded.append(wanted)

    def read(self, *reads: tuple[int, int], count: int = 16, partitions: int = 0) -> int:
        """Report a response with `count` records of each (partition, offset); the bytes that were loaded then."""
        before = len(self.loaded)
        progress = [
            ReadTo(key, offset, offset + count, (offset + count) % self._records * RECORD_BYTES)
            for key, offset in reads
        ]
        self.ahead.follow(progress, partitions or len(progress))
        return sum(one.end - one.start for one in self.loaded[before:])


def test_only_a_reader_that_continues_is_read_ahead() -> None:
    log = Log()
    assert log.read((0, 0)) == 0, "it may be its only fetch"
    assert log.read((0, 5_000)) == 0, "it jumped"
    assert log.read((0, 16)) == READER_BYTES
    assert {one.end - one.start for one in log.loaded} == {32 * RECORD_BYTES}, "whole extents"
    assert [one.file_id.int - FILES for one in log.loaded] == list(range(1, 17)), "behind what it has"


def test_more_is_loaded_when_half_of_it_was_read() -> None:
    log = Log()
    log.read((0, 0))
    loads = [log.read((0, 16 * number)) for number in range(1, 60)]
    assert max(log.ahead.unread.values()) <= READER_BYTES
    assert sum(1 for size in loads if size) <= 60 * MIB // (READER_BYTES // 2) + 2, "in large steps"
    ids = [one.file_id for one in log.loaded]
    assert len(set(ids)) == len(ids), "nothing twice"


def test_slow_readers_have_no_use_for_more_than_they_ask_for() -> None:
    """A thousand of them take no memory."""
    log = Log(partitions=1_000, extents=20)
    for round_number in range(4):
        for key in range(1_000):
            log.read((key, round_number * 16))
        log.clock.jump(RETURN_S + 0.1)
    assert (log.loaded, log.ahead.unread) == ([], {True: 0, False: 0})


def test_a_thousand_fast_readers_share_the_budget_of_the_agent() -> None:
    """Who finds it used up reads without."""
    log = Log(partitions=1_000, extents=60, budget=64 * MIB)
    for round_number in range(6):
        for key in range(1_000):
            log.read((key, round_number * 16))
            assert log.ahead.unread[True] <= 64 * MIB, "over the budget"
    assert log.ahead.unread[True] > 32 * MIB


def test_nothing_more_is_loaded_for_a_reader_that_stops_and_its_budget_is_free() -> None:
    log = Log(partitions=2)
    log.read((0, 0))
    assert log.read((0, 16)) == READER_BYTES
    log.clock.jump(FORGET_S + 0.1)
    assert log.read((1, 0)) == 0
    assert log.ahead.unread == {True: 0, False: 0}, "still counted"


def test_many_partitions_share_what_a_reader_may_have_ahead() -> None:
    log = Log(partitions=200)
    for partitions, share in ((4, READER_BYTES // 4), (READER_BYTES // LEAST_BYTES + 1, 0)):
        log.loaded.clear()
        log.ahead = ReadAhead(
            *(log.find, log.load, lambda wanted: False, log.clock),
            budgets={True: 1 << 40, False: 1 << 40},
            sizes=ReadAheadSizes(CHUNK_BYTES),
        )
        log.read(*((key, 0) for key in range(partitions)))
        assert log.read(*((key, 16) for key in range(partitions))) == partitions * share


def test_a_log_of_many_small_files_costs_few_gets_ahead() -> None:
    log = Log(records=1, extents=4_000)
    log.read((0, 0))
    log.read((0, 16))
    assert len(log.loaded) == EXTENTS_MAX
    for offset in range(32, 320, 16):
        log.read((0, offset))
        assert max(map(len, (stream.loaded for stream in log.ahead._streams.values()))) <= EXTENTS_MAX
    many = Log(records=1, partitions=60, extents=100)
    for offset in (0, 16):
        many.read(*((key, offset) for key in range(60)))
    assert len(many.loaded) == 60 * 2


def test_a_long_run_is_loaded_in_parts_that_end_with_a_chunk() -> None:
    log = Log(records=4_096, extents=3)
    log.read((0, 0))
    assert 7 * CHUNK_BYTES < log.read((0, 16)) <= READER_BYTES
    assert [one.end % CHUNK_BYTES for one in log.loaded] == [0] * 8
    assert [one.start for one in log.loaded] == [32 * RECORD_BYTES, *range(CHUNK_BYTES, 8 * CHUNK_BYTES, CHUNK_BYTES)]


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 64), st.sampled_from([0.0, 0.01, 1.0, 3.0, 11.0]), st.booleans()),
        max_size=60,
    ),
    records=st.sampled_from([1, 8, 32, 512]),
    budget=st.sampled_from([8 * MIB, 1 << 40]),
)
def test_what_is_loaded_and_not_read_is_bounded(
    steps: list[tuple[int, int, float, bool]], records: int, budget: int
) -> None:
    """For each reader and for all together, however they read, jump or stop."""
    log = Log(partitions=4, records=records, extents=4_000, budget=budget)
    offsets = [0, 0, 0, 0]
    for key, count, pause, jumps in steps:
        log.clock.jump(pause)
        offsets[key] += 1_000 if jumps else 0
        log.read((key, offsets[key]), count=count)
        offsets[key] += count
        streams = log.ahead._streams.values()
        assert log.ahead.unread[True] == sum(sum(one.size for one in stream.loaded) for stream in streams)
        assert log.ahead.unread[True] <= budget, "over the budget"
        assert all(stream.ahead <= READER_BYTES for stream in streams), "too much for one reader"


def test_ranges_of_several_partitions_become_one_within_a_chunk() -> None:
    file_id, other = uuid.UUID(int=1), uuid.UUID(int=2)
    wanted = [
        FileRange(file_id, 3 * MIB, 4 * MIB + 9, run_end=4 * MIB + 9),
        FileRange(file_id, 0, MIB, run_end=MIB),
        FileRange(file_id, MIB + GAP_BYTES, 2 * MIB + GAP_BYTES, run_end=2 * MIB + GAP_BYTES),
        FileRange(other, 0, 10, run_end=10),
        FileRange(other, 11 + GAP_BYTES, 12 + GAP_BYTES),
    ]
    found = [(one.file_id, one.start, one.end, one.run_end) for one in joined_ranges(wanted, CHUNK_BYTES)]
    assert sorted(found) == [
        (file_id, 0, 4 * MIB, 4 * MIB),
        (file_id, 4 * MIB, 4 * MIB + 9, 4 * MIB + 9),
        (other, 0, 10, 10),
        (other, 11 + GAP_BYTES, 12 + GAP_BYTES, 0),  # a part of a chunk, with no run
    ]


# -- with the read path


async def _world(partitions: int, files: int, batches: int, bucket: str = S3) -> tuple[World, FetchService]:
    world = World(bucket=bucket, cache_bytes=128 * MIB)
    keys = world.create_topic("t", partitions)
    for number in range(files):
        value = random.Random(number).randbytes(90_000)
        await world.write([(key, plain_batch(1, value)) for key in keys for _ in range(batches)])
    service = world.new_service(CollectorRegistry())
    await service.start()
    return world, service


async def _read_all(world: World, service: FetchService, *, patient: bool = False) -> int:
    """Read every partition from the start, as one consumer; the number of fetches. Each record must be right."""
    got: dict[int, list[bytes]] = {key: [] for key in world.live}
    fetches = 0
    while left := {key: len(sent) for key, sent in got.items() if len(sent) < len(world.live[key])}:
        found = await world.fetch(left, service=service)
        fetches += 1
        assert fetches < 500
        for key in left:
            if patient and found.code(key):
                continue
            got[key] += split_sent(found.records(key))
        await world.clock.advance(0.01)
    for key, sent in got.items():
        assert sent == expected(world.live[key], 0), "other bytes"
        assert all(read_header(batch).base_offset == number for number, batch in enumerate(sent))
    await service.close()
    return fetches


def _gets(world: World) -> list[int]:
    return [byte_range.length for _, byte_range in world.store.gets if byte_range]


@pytest.mark.parametrize(("partitions", "files", "batches"), [(1, 4, 180), (12, 12, 8)])
async def test_a_replay_reads_large_ranges_once(partitions: int, files: int, batches: int) -> None:
    world, service = await _world(partitions, files, batches)
    await _read_all(world, service)
    ahead, total = _gets(world), sum(len(batch.stored) for live in world.live.values() for batch in live)
    assert sum(ahead) <= 1.15 * total, "no byte is read twice, but at the edges"
    world, service = await _world(partitions, files, batches, bucket="file:///bucket")
    await _read_all(world, service)
    assert len(ahead) * 1.5 <= len(_gets(world)), "fewer GETs"
    large = [size for size in ahead if size > 2 * MIB]
    assert sum(large) >= 0.6 * total, "most of it in large ranges"


async def test_recent_chunks_of_many_partitions_are_read_once() -> None:
    """Their extents are short, so a chunk is loaded whole, also ahead: other readers need the rest of it. By parts it
    took a GET for each partition, or was read again as a whole (1.1 to 1.4 times the bytes in a zone).
    """
    world = World(bucket=S3, cache_bytes=128 * MIB)
    keys = world.create_topic("t", 12)
    service = world.new_service(CollectorRegistry())
    await service.start()
    await world.fetch(dict.fromkeys(keys, 0), service=service)  # from now on the index follows them
    for number in range(12):
        value = random.Random(number).randbytes(90_000)
        await world.write([(key, plain_batch(1, value)) for key in keys for _ in range(3)])
    await world.clock.advance(1.0)
    for key in world.live:
        offset = 0
        while offset < len(world.live[key]):
            found = await world.fetch({key: offset}, service=service, partition_max_bytes=400_000)
            offset += len(split_sent(found.records(key)))
            await world.clock.advance(0.01)
    files = [key for key, _ in world.store.gets]
    assert len(files) == len(set(files)) == 12, "one GET for each chunk"
    await service.close()


async def test_ranges_are_in_flight_before_the_reader_asks() -> None:
    world, service = await _world(1, 4, 180)

    async def slow(key: str) -> None:
        await world.clock.sleep(0.05)

    world.store.before_get = slow
    (key,) = world.live
    for offset in (0, 11):
        await world.fetch({key: offset}, service=service)
    assert len(world.store.gets) >= 2 + 4, "several at once"
    await world.clock.advance(0.06)
    began = world.clock.monotonic()
    for offset in range(22, 150, 11):
        await world.fetch({key: offset}, service=service)
    assert world.clock.monotonic() == began, "a fetch waited for a GET"
    await service.close()


async def test_a_reader_joins_a_load_in_progress() -> None:
    world, service = await _world(1, 2, 180)
    (key,) = world.live

    async def slow(name: str) -> None:
        await world.clock.sleep(0.05)

    world.store.before_get = slow
    for offset in (0, 11, 22):
        await world.fetch({key: offset}, service=service)
    ranges = [(name, one.start, one.start + one.length) for name, one in world.store.gets if one]
    overlaps = [
        (a, b) for n, a in enumerate(ranges) for b in ranges[n + 1 :] if a[0] == b[0] and a[1] < b[2] and b[1] < a[2]
    ]
    assert len(overlaps) <= 2, "only the batches at the ends of the first fetches"
    await service.close()


@pytest.mark.parametrize("seed", range(4))
async def test_failed_and_damaged_loads_are_read_again_and_never_delivered(seed: int) -> None:
    world, service = await _world(3, 4, 30)
    rng, get = random.Random(seed), FaultyStore.get

    async def faulty(key: str, byte_range: Any = None) -> bytes:
        body = await get(world.store, key, byte_range)
        draw = rng.random()
        if draw < 0.15:
            raise UnavailableError("down")
        if draw < 0.3 and byte_range is not None and len(body) > 1_000:
            at = rng.randrange(len(body))
            return body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        return body

    world.store.get = faulty  # type: ignore[method-assign]
    await _read_all(world, service, patient=True)


async def test_damaged_bytes_that_were_read_ahead_are_forgotten() -> None:
    world, service = await _world(1, 2, 180)
    get, damaged = FaultyStore.get, 0

    async def faulty(key: str, byte_range: Any = None) -> bytes:
        nonlocal damaged
        body = await get(world.store, key, byte_range)
        if byte_range is not None and byte_range.length == CHUNK_BYTES and not damaged:
            damaged += 1
            return bytes(len(body))
        return body

    world.store.get = faulty  # type: ignore[method-assign]
    await _read_all(world, service)
    assert damaged == 1


async def test_a_bug_that_keeps_damaged_bytes_is_caught(patch: Patch) -> None:
    """A planted bug: only the cache of recent data forgets."""
    patch.replace(RangeReader, "forget", lambda self, file_id: self.cache.forget(file_id))
    with pytest.raises((AssertionError, KeyError)):
        await test_damaged_bytes_that_were_read_ahead_are_forgotten()


async def test_a_bug_that_joins_the_wrong_load_is_caught(patch: Patch) -> None:
    """A planted bug: the position within the load is taken for that within the chunk."""
    load_of = ChunkCache._load_of

    def wrong(self: ChunkCache, *where: Any) -> Any:
        found = load_of(self, *where)
        return found and (0, found[1])

    patch.replace(ChunkCache, "_load_of", wrong)
    with pytest.raises(AssertionError, match="ends of the first fetches"):
        await test_a_reader_joins_a_load_in_progress()


async def test_a_bug_that_never_frees_the_budget_is_caught(patch: Patch) -> None:
    patch.replace(ReadAhead, "_drop", lambda self, stream: None)
    with pytest.raises(AssertionError, match="still counted"):
        test_nothing_more_is_loaded_for_a_reader_that_stops_and_its_budget_is_free()


async def test_a_bug_that_ignores_the_budget_is_caught(patch: Patch) -> None:
    new = Log.__init__

    def unlimited(self: Log, **options: Any) -> None:
        new(self, **options)
        self.ahead._budgets = {True: 1 << 50, False: 1 << 50}

    patch.replace(Log, "__init__", unlimited)
    with pytest.raises(AssertionError, match="over the budget"):
        test_a_thousand_fast_readers_share_the_budget_of_the_agent()


async def test_a_directory_is_not_read_ahead() -> None:
    _, service = await _world(1, 1, 30, bucket="file:///bucket")
    assert service._replays is None
    await service.close()
