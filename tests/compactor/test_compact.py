"""A compaction job from its claim to its end, on real Postgres, read back through Fetch."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from headrace.metastore.api.compaction import NewFile, Swap, SwapOutcome
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.read import ExtentQuery, PartitionExtents
from headrace.metastore.api.retention import LogStartTarget
from headrace.storage.file_id import object_key
from headrace.storage.records.codec import Record, encode_batch
from headrace.storage.records.compression import Codec
from headrace.storage.records.header import read_header
from tests.agent.fetch.fetch_world import NEVER_SEEN, split_sent
from tests.compactor.world import CompactionWorld
from tests.fixtures_clouds import ON_CLOUDS
from tests.metastore.sessions import session
from tests.overlay import Overlay
from tests.storage.batches import plain_batch


def batch(value: bytes, count: int = 1, **options: object) -> bytes:
    records = [Record(n, 1_000 + n, b"key-%d" % n, value, [("h", b"x"), ("n", None)]) for n in range(count)]
    return encode_batch(records, base_offset=0, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("world", ["memory", *ON_CLOUDS], indirect=True)
@pytest.mark.requirement("W9", "W10")
async def test_two_levels_keep_every_record_and_drop_every_dead_batch(world: CompactionWorld) -> None:
    a, b = await world.topic("t", 2)
    dead = plain_batch(2, b"dead" * 50, **NEVER_SEEN)
    for number in range(6):
        value = b"value-%d " % number * 20
        await world.commit(
            (a, batch(value, 3)), (a, dead), (a, batch(value, 1, codec=Codec.GZIP)), (b, batch(value, 2)), (b, dead)
        )
    before = [await world.records(key) for key in (a, b)]

    await world.compact(1)
    assert [await world.records(key) for key in (a, b)] == before
    assert [(e.base_offset, e.last_offset) for e in await world.extents(a, b)] == [(0, 23), (0, 11)]
    (merged,) = await world.live_files()
    row = (await world.file_rows())[merged]
    assert (row["level"], row["live_bytes"]) == (1, row["body_bytes"]), "nothing dead came along"
    await world.check_accounts()

    await world.compact(2)
    assert [await world.records(key) for key in (a, b)] == before
    assert [(e.base_offset, e.last_offset) for e in await world.extents(a, b)] == [(0, 23), (0, 11)]
    (rewritten,) = await world.live_files()
    assert (await world.file_rows())[rewritten]["level"] == 2
    # six times (plain, gzip) stay apart: producers chose the codecs
    assert [read_header(found).codec for found in await world.batches(a)] == [Codec.NONE, Codec.GZIP] * 6
    assert len(await world.batches(b)) == 1
    await world.check_accounts()
    assert world.counted("batches_total", side="read") == 18
    assert world.counted("batches_total", side="written") == 13


async def test_compression_type_of_the_topic_rules_at_level_two(world: CompactionWorld) -> None:
    (key,) = await world.topic("t", 1, compression_type="zstd")
    for codec in (Codec.NONE, Codec.LZ4, Codec.SNAPPY, Codec.GZIP, Codec.ZSTD):
        await world.commit((key, batch(b"abc" * 100, 4, codec=codec)))
    before = await world.records(key)
    await world.compact(2)
    (merged,) = await world.batches(key)
    assert read_header(merged).codec == Codec.ZSTD
    assert await world.records(key) == before


async def test_any_files_may_be_merged_with_others_between_them(world: CompactionWorld) -> None:
    (key,) = await world.topic("t", 1)
    for number in range(5):
        await world.commit((key, batch(b"%d" % number, 2)))
    before, files = await world.records(key), [extent.file_id for extent in await world.extents(key)]
    await world.run(await world.claim([files[0], files[1], files[3], files[4]], 2))
    assert [(e.base_offset, e.last_offset) for e in await world.extents(key)] == [(0, 3), (4, 5), (6, 9)]
    assert await world.records(key) == before
    await world.check_accounts()


@pytest.mark.requirement("W10")
async def test_ten_times_the_batches_leave_the_same_rows_and_a_replay_of_as_few_reads(world: CompactionWorld) -> None:
    """The same records, sent in 20 batches and in 200: rows, bytes and GETs before and after."""
    large, small = await world.topic("large", 1), await world.topic("small", 1)
    seen = {}
    for (key,), per_batch in ((large, 50), (small, 5)):
        for file in range(20):
            sent = [(key, batch(b"%04d" % file * 25, per_batch)) for _ in range(50 // per_batch)]
            await world.commit(*sent)
        seen[key] = (len(await world.extents(key)), await stored_bytes(world, key), await replay_gets(world, key))
    before = [[item[2][1:] for item in await world.records(key)] for (key,) in (large, small)]

    await world.compact(1)
    await world.compact(2)

    after = {
        key: (len(await world.extents(key)), await stored_bytes(world, key), await replay_gets(world, key))
        for (key,) in (large, small)
    }
    for (key,), name in ((large, "20 batches"), (small, "200 batches")):
        print(f"{name}: (rows, stored bytes, GETs of a replay) {seen[key]} -> {after[key]}")
        assert all(now < then for now, then in zip(after[key], seen[key], strict=True))
    assert after[small[0]][0] <= 1.1 * after[large[0]][0]
    assert after[small[0]][1] <= 1.1 * after[large[0]][1]
    assert [[item[2][1:] for item in await world.records(key)] for (key,) in (large, small)] == before


async def stored_bytes(world: CompactionWorld, key: int) -> int:
    return sum(extent.length for extent in await world.extents(key))


async def replay_gets(world: CompactionWorld, key: int) -> int:
    world.store.gets.clear()
    await world.batches(key)
    return len(world.store.gets)


@pytest.mark.requirement("W9", "W10")
async def test_large_headers_and_keys_make_no_batch_that_consumers_cannot_take(world: CompactionWorld) -> None:
    """4 MB of headers and keys with nothing in them: batches and extents stay what clients' defaults take."""
    (key,) = await world.topic("t", 1)
    for number in range(20):
        records = [
            Record(0, 1_000, None, None, [("h", bytes([number]) * 100_000)]),
            Record(0, 1_000, bytes([number]) * 100_000, b"" if number % 2 else None),
        ]
        await world.commit(*((key, encode_batch([record], base_offset=0)) for record in records))
    before = await world.records(key)

    await world.compact(2, extent_bytes=1_500_000)

    extents = await world.extents(key)
    assert len(extents) == 3
    assert max(extent.length for extent in extents) <= 1_500_000
    sizes = [read_header(found).size for found in await world.batches(key)]
    assert max(sizes) <= 512 * 1024
    assert len(sizes) == 9, "five to a batch, four where an extent ends"
    assert await world.records(key) == before
    assert world.counted("kept_batches_total") == 0


async def test_a_topics_largest_batch_bounds_merged_ones_too(world: CompactionWorld) -> None:
    """The topic's own, else the cluster's; a batch that came larger stays."""
    bounds = {"own": {"max_message_bytes": "2000"}, "none": {}}
    async with session(world.url) as raw:
        await raw.execute("INSERT INTO configs VALUES (4, '', 'message.max.bytes', '12000')")
    keys = {name: (await world.topic(name, 1, **configs))[0] for name, configs in bounds.items()}
    for _ in range(2):
        await world.commit(*((key, batch(b"v" * size)) for key in keys.values() for size in (900, 900, 5_000, 900)))
    before = [await world.records(key) for key in keys.values()]
    await world.compact(2)
    sizes = {
        name: [read_header(found).size // 1_000 for found in await world.batches(key)] for name, key in keys.items()
    }
    assert sizes == {"own": [1, 5, 1, 0, 5, 0], "none": [9, 6]}
    assert [await world.records(key) for key in keys.values()] == before


async def test_without_configs_the_workers_message_max_bytes_limits_merged_batches(
    world: CompactionWorld,
) -> None:
    (key,) = await world.topic("t", 1)
    for _ in range(6):
        await world.commit((key, batch(b"v" * 900)))
    await world.compact(2, max_message_bytes=2_000)
    assert [read_header(found).size // 1_000 for found in await world.batches(key)] == [1, 1, 1]


async def test_a_codec_is_not_changed_at_any_price(world: CompactionWorld) -> None:
    """Batches of 1 MB and of 2 MB in 200 bytes, in a topic that stores them uncompressed: within an extent's bounds."""
    (key,) = await world.topic("t", 1, compression_type="uncompressed")
    for size in (1_000_000, 2_000_000, 1_000_000):
        await world.commit((key, batch(b"v" * size, codec=Codec.ZSTD)))
    before = await world.records(key)
    await world.compact(2, extent_bytes=1_500_000)
    assert [read_header(found).codec for found in await world.batches(key)] == [Codec.NONE, Codec.ZSTD, Codec.ZSTD]
    assert [extent.length // 1_000_000 for extent in await world.extents(key)] == [1]
    assert await world.records(key) == before


@pytest.mark.requirement("W9")
async def test_five_hundred_partitions_while_others_keep_winning(world: CompactionWorld) -> None:
    """Before each swap call a log start moves past one partition and into another, and a producer commits."""
    keys = await world.topic("t", 500)
    for number in range(2):
        await world.commit(*((key, batch(b"%d" % number, 3)) for key in keys))
    moved: dict[int, int] = {}
    calls = 0

    async def race(token: JobToken, file: NewFile, swaps: list[Swap]) -> list[SwapOutcome]:
        nonlocal calls
        calls += 1
        past, into = swaps[0].partition_key, swaps[-1].partition_key
        moved[past], moved[into] = 6, 4
        await world.postgres.retention.move_log_starts(
            [LogStartTarget(*item) for item in sorted(moved.items())], max_extents=99
        )
        await world.commit((keys[calls], batch(b"new")))
        return await world.postgres.compaction.swap_extents(token, file, swaps)

    files, api = await world.live_files(), Overlay(world.postgres, swap_extents=race)
    await world.run(await world.claim(files, 1), world.compactor(metastore=api))

    assert calls >= world.postgres.commit_shards
    assert world.counted("extents_total", side="lost") == 2 * calls, "an input of both is gone"
    assert world.counted("extents_total", side="after") == 500 - 2 * calls
    assert set(files) & set(await world.live_files()) == {max(files)}, "what remains of the log starts' partitions"
    await world.check_accounts()
    for key in [*moved, *keys[100:103]]:
        start = moved.get(key, 0)
        values = [record.value for _, _, record in await world.records(key, start)]
        assert values[: 6 - start] == [b"0"] * max(3 - start, 0) + [b"1"] * min(3, 6 - start)


async def test_a_reader_of_deleted_files_asks_once_more(world: CompactionWorld) -> None:
    """Its index still names the old files: the feed has not told it yet."""
    (key,) = await world.topic("t", 1)
    for number in range(3):
        await world.commit((key, batch(b"%d" % number, 2)))
    (located,) = await world.postgres.index.find_extents([ExtentQuery(key, 0, 1 << 20)])
    old = await world.live_files()
    await world.compact(1)

    asked = 0

    async def as_it_was(queries: list[ExtentQuery], max_bytes: int = 0) -> list[PartitionExtents]:
        """Answer the first question as it was before."""
        nonlocal asked
        asked += 1
        return [located] if asked == 1 else await world.postgres.index.find_extents(queries)

    await world.store.delete_many([object_key(file_id) for file_id in old])
    world.metastore = Overlay(world.postgres.index, find_extents=as_it_was)  # type: ignore[assignment]
    late = world.new_service(CollectorRegistry())
    await late.start()
    result = await world.request_fetch({key: 0}, service=late)
    assert result.code(key) == 0
    assert asked == 2
    assert [read_header(sent).base_offset for sent in split_sent(result.records(key))] == [0, 2, 4]
    await late.close()


async def test_a_file_ends_between_partitions_too(world: CompactionWorld) -> None:
    """Each partition's extents become one: nothing else would ever end the file, which is in memory."""
    keys = await world.topic("t", 12)
    for _ in range(2):
        await world.commit(*((key, batch(b"v" * 400)) for key in keys))
    before = [await world.records(key) for key in keys]

    await world.compact(1, file_bytes=2_000)

    files = [row for row in (await world.file_rows()).values() if row["level"] == 1]
    assert len(files) == 4, "three partitions reach 2,000 bytes"
    assert max(row["body_bytes"] for row in files) < 4_000
    assert [await world.records(key) for key in keys] == before
    await world.check_accounts()
