"""The planner asks about a bounded number of partitions at a time, and a look at one costs what it may clean."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.compactor.cleaning import planner
from headrace.compactor.plan import decode_job
from headrace.jobs.kinds import COMPACT
from headrace.metastore.api.cleaning import FlushedPart
from headrace.storage.records.codec import Record, encode_batch
from tests.compactor.cleaning.test_guarantees import EAGER, rolled
from tests.compactor.cleaning.world import CleaningWorld
from tests.metastore.sessions import rows, session


@pytest.fixture
def pieces(world: CleaningWorld, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of partitions in each call; one is the most."""
    monkeypatch.setattr(planner, "PARTITIONS_PER_LOOK", 1)
    sizes: list[int] = []
    ask = world.postgres.cleaning.flushed_files

    async def counted(ends: Sequence[tuple[int, int]]) -> list[FlushedPart]:
        sizes.append(len(ends))
        return await ask(ends)

    world.postgres.cleaning.flushed_files = counted  # type: ignore[method-assign]
    return sizes


async def _dirty(world: CleaningWorld, partitions: int) -> list[int]:
    """Each file holds a record of each partition, with the same key."""
    keys = await world.topic("t", partitions, **EAGER)
    for value in (b"1", b"2"):
        batch = encode_batch([Record(0, world.now_ms(), b"k", value)], base_offset=0)
        await world.commit(*((key, batch) for key in keys))
    await rolled(world, keys[0])
    return list(keys)


@pytest.mark.requirement("L1")
async def test_partitions_of_one_file_are_planned_apart_and_their_merge_once(
    world: CleaningWorld, pieces: list[int]
) -> None:
    keys = await _dirty(world, 3)
    await world.plan()
    (merges,) = await world.postgres.compaction.unfinished_payloads(COMPACT.name)
    assert [len(decode_job(payload).file_ids) for payload in merges] == [2]
    assert pieces == [1, 1, 1]
    assert await world.clean() == 3
    for key in keys:
        assert [value for _, _, value in await world.seen(key)] == ["2"]
    await world.check_accounts()


async def test_a_look_ends_when_the_workers_have_enough_to_do(
    world: CleaningWorld, pieces: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "UNFINISHED_MAX", 1)
    await _dirty(world, 3)
    await world.plan_all()
    pieces.clear()
    assert await world.clean() == 1
    assert pieces == [], "a job is waiting"
    assert [await world.clean(), await world.clean()] == [1, 1]
    assert pieces == [1, 1]


EXTENTS = 400
FILL = """
INSERT INTO extents (partition_key, base_offset, last_offset, file_id, position, length, leader_epoch, max_timestamp)
SELECT %(key)s, e * 10, e * 10 + 9, gen_random_uuid(), 0, 1, 0, 0 FROM generate_series(0, %(extents)s - 1) AS e
"""
CLEANED = """
INSERT INTO cleaned_partitions (partition_key, roll_offset, cleaned_offset)
VALUES (%(key)s, %(end)s, %(end)s - %(dirty)s)
"""


@pytest.mark.requirement("L1")
@pytest.mark.parametrize("dirty", [0, 10])
async def test_a_look_at_a_clean_partition_reads_no_clean_extents(world: CleaningWorld, dirty: int) -> None:
    """They count only once there is something to clean, as a pass would read them."""
    (key,) = await world.topic("t", 1, **EAGER)
    end = 10 * EXTENTS
    async with session(world.url) as raw:
        await raw.execute(FILL, {"key": key, "extents": EXTENTS})
        await raw.execute(CLEANED, {"key": key, "end": end, "dirty": dirty})
        await raw.execute("UPDATE partition_heads SET high_watermark = %s WHERE partition_key = %s", (end, key))
        await raw.execute("ANALYZE extents")
        async with raw.transaction():
            ((clean_bytes,),) = await rows(raw, "SELECT clean_bytes FROM describe_cleaning(%s, %s)", [key], [0])
            ((read,),) = await rows(
                raw, "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'extents'"
            )
    assert clean_bytes == (EXTENTS - 1 if dirty else 0)
    assert (read > EXTENTS) == bool(dirty), read
