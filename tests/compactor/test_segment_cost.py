"""What keys of merged segments cost the metastore: WAL and rows per segment, compared with merges without keys."""

from __future__ import annotations

import pytest

from tests.compactor.segment_world import DAY, HOUR, SegmentWorld
from tests.metastore.sessions import session

PARTITIONS = 100
UPLOAD_BYTES_MAX = 2_500
"""WAL of COPY_STARTED and COPY_FINISHED of a segment, full pages left out."""
LIFE_BYTES_MAX = 7_000
"""WAL of all of its records, its tombstone, and the removal of that."""


@pytest.mark.requirement("R3")
@pytest.mark.keyless
async def test_the_wal_of_a_segment_is_bounded(world: SegmentWorld) -> None:
    keys = await world.topic("t", PARTITIONS)

    async def wal() -> int:
        return int((await world.ask("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))[0][0])

    async def compacted(level: int) -> int:
        await world.fill(keys, files=4)
        files = await world.live_files(level=0)
        before = await wal()
        await world.run(await world.claim(files, level))
        return await wal() - before

    async with session(world.url) as raw:
        await raw.execute("SET synchronous_commit = on")
    await compacted(1)
    plain = await compacted(1)
    await world.raise_level()
    await world.clean_up()  # keys for what has none
    await compacted(1)
    keyed = await compacted(1)
    upload = (keyed - plain) / PARTITIONS

    merged = await world.live_files(level=1)
    before = await wal()
    await world.run(await world.claim(merged[-1:], 2))
    replaced = await wal() - before
    before = await wal()
    await world.advance(2 * HOUR)
    await world.janitor()
    deleted = await wal() - before
    before = await wal()
    await world.advance(DAY + HOUR)
    await world.clean_up()
    removed = await wal() - before
    print(
        f"WAL bytes per segment: upload={upload:.0f} replace_and_upload={replaced / PARTITIONS:.0f}"
        f" delete={deleted / PARTITIONS:.0f} remove={removed / PARTITIONS:.0f} without_keys={plain / PARTITIONS:.0f}"
        f" with_keys={keyed / PARTITIONS:.0f}"
    )
    rows = await world.ask("SELECT count(*), (SELECT count(*) FROM remote_segments) FROM remote_segment_events")
    print(f"rows: events={rows[0][0]} keys={rows[0][1]}")
    assert upload < UPLOAD_BYTES_MAX
    assert upload + (deleted + removed) / PARTITIONS < LIFE_BYTES_MAX
