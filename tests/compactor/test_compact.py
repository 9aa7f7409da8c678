"""A compaction job from its claim to its end, on real Postgres, read back through Fetch."""

from __future__ import annotations

import pytest

from storage.records.codec import Record, encode_batch
from storage.records.compression import Codec
from storage.records.header import read_header
from tests.agent.fetch_world import NEVER_SEEN
from tests.compactor.world import CompactionWorld
from tests.storage.batches import plain_batch


def batch(value: bytes, count: int = 1, **options: object) -> bytes:
    records = [Record(n, 1_000 + n, b"key-%d" % n, value, [("h", b"x"), ("n", None)]) for n in range(count)]
    return encode_batch(records, base_offset=0, **options)  # type: ignore[arg-type]


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
