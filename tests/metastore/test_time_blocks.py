"""Compaction leaves timestamps findable and few time blocks: against a walk over all extents, on real Postgres."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence

import pytest

from headrace.metastore.api.compaction import NewFile, Swap, SwapInput, SwapOutcome
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.read import Extent, OffsetKind, OffsetQuery
from headrace.metastore.api.retention import LogStartTarget
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.file_id import new_file_id
from tests.metastore.commit_scenes import Scene, batch, file_of, open_scene
from tests.metastore.sessions import Session, claim, rows, session
from tests.metastore.test_commit_cost import pages
from tests.seeds import seeds

__all__ = ["pages"]

BLOCK = 64
"""Extents that partition 0 has in a block of level 0."""
FIRST_EXTENTS = 66 * BLOCK
"""Enough for a block of level 1."""
ROUNDS = 40


class History:
    """One partition; each record has a timestamp that the test chooses."""

    def __init__(self, scene: Scene, url: str, token: JobToken, rng: random.Random) -> None:
        self.scene, self.url, self.token, self.rng = scene, url, token, rng
        self.key, self.other = scene.keys
        self.records = 0

    async def append(self, extents: int) -> None:
        """Times rise, roughly; now and then one is far off."""
        for start in range(0, extents, BLOCK):
            batches = []
            for n in range(self.records, self.records + min(BLOCK, extents - start)):
                stamp = self.rng.choice([10**9, -1]) if self.rng.random() < 0.003 else n + self.rng.randint(0, 300)
                batches += [batch(self.key, records=1, max_timestamp=stamp), batch(self.other)]  # an extent each
            await self.scene.commit(file_of(batches))
            self.records += len(batches) // 2

    async def extents(self) -> list[Extent]:
        async with session(self.url) as raw:
            found = await rows(
                raw,
                "SELECT partition_key, base_offset, last_offset, file_id, position, length, e.leader_epoch,"
                " max_timestamp FROM extents e JOIN partitions USING (partition_key)"
                " WHERE partition_key = %s AND last_offset >= log_start_offset ORDER BY last_offset",
                self.key,
            )
        return [Extent(*row) for row in found]

    async def merge(self, inputs: Sequence[Extent]) -> None:
        wall_ms = (await self.scene.store.compaction.live_extents([])).wall_ms
        swap = Swap(
            *(self.key, inputs[0].base_offset, inputs[-1].last_offset, 16, sum(e.length for e in inputs), 0),
            max(e.max_timestamp for e in inputs),
            tuple(SwapInput(e.last_offset, e.source) for e in inputs),
        )
        file = NewFile(new_file_id(wall_ms, self.rng), 1, swap.length + 99, swap.length)
        assert await self.scene.store.compaction.swap_extents(self.token, file, [swap]) == [SwapOutcome.DONE]

    async def check(self) -> None:
        """Every look-up is what a walk finds."""
        extents = await self.extents()
        highest = max(extent.max_timestamp for extent in extents)
        asked = [OffsetKind.MAX_TIMESTAMP, 0, highest, highest + 1]
        asked += [self.rng.randint(0, self.records + 400) for _ in range(40)]
        found = await self.scene.store.index.list_offsets([OffsetQuery(self.key, stamp) for stamp in asked])
        for stamp, answer in zip(asked, found, strict=True):
            wanted = highest if stamp == OffsetKind.MAX_TIMESTAMP else stamp
            assert answer.extent == next((e for e in extents if e.max_timestamp >= wanted), None), stamp

    async def costs(self, pages: dict[str, int]) -> list[int]:
        """Pages that look-ups touch, all over the partition."""
        found = []
        for stamp in range(0, FIRST_EXTENTS, FIRST_EXTENTS // 20):
            await self.scene.store.index.list_offsets([OffsetQuery(self.key, stamp)])
            found.append(pages["list_offsets"])
        return found

    async def blocks(self) -> list[int]:
        """Return how many there are, by level."""
        async with session(self.url) as raw:
            counted = await rows(
                raw, "SELECT level, count(*) FROM time_blocks WHERE partition_key = %s GROUP BY level", self.key
            )
        return [dict(counted).get(level, 0) for level in range(4)]


async def begin(metastore: PostgresMetastore, url: str, rng: random.Random) -> History:
    scene = await open_scene(metastore, partitions=2)
    job = await claim(metastore, "compact", key=str(uuid.uuid4()), lease_ms=600_000)
    return History(scene, url, job.token, rng)


@pytest.mark.parametrize("seed", seeds(range(1), range(1, 8)))
async def test_timestamps_are_found_after_many_swaps(
    metastore: PostgresMetastore, metastore_url: str, seed: int
) -> None:
    """Among commits and log starts that move; extents of any size, merged again and again."""
    rng = random.Random(seed)
    history = await begin(metastore, metastore_url, rng)
    await history.append(FIRST_EXTENTS)
    for _ in range(ROUNDS):
        extents = await history.extents()
        first = rng.randrange(len(extents))
        await history.merge(extents[first : first + rng.choice((1, 3, 60, 200, 900))])
        if rng.random() < 0.3:
            await history.append(rng.choice((20, 120)))
        if rng.random() < 0.1:
            start = extents[min(first, 300)].last_offset + rng.choice((0, 1))
            await metastore.retention.move_log_starts([LogStartTarget(history.key, start)], max_extents=1_000)
        await history.check()


@pytest.mark.own_database
async def test_blocks_become_few_as_extents_do_and_look_ups_cost_no_more(
    metastore: PostgresMetastore, metastore_url: str, raw: Session, pages: dict[str, int]
) -> None:
    history = await begin(metastore, metastore_url, random.Random(7))
    await history.append(FIRST_EXTENTS)
    before = await history.costs(pages)
    assert await history.blocks() == [FIRST_EXTENTS // BLOCK, 1, 0, 0]
    extents = await history.extents()
    for first in range(0, FIRST_EXTENTS, FIRST_EXTENTS // 6):
        await history.merge(extents[first : first + FIRST_EXTENTS // 6])
    await history.check()
    assert len(await history.extents()) == 6
    blocks, above, *_ = await history.blocks()
    assert (blocks, above) == (6 + 1, 1), "one in each, and the one that ends the block above"
    await history.append(2 * BLOCK)
    await history.check()
    assert (await history.blocks())[0] == blocks + 2
    await raw.execute("VACUUM extents, time_blocks")
    after = await history.costs(pages)
    print(f"pages of a look-up: {before} -> {after}")
    assert max(after) <= max(before)


async def test_a_block_above_is_closed_while_blocks_below_it_go(
    metastore: PostgresMetastore, metastore_url: str, raw: Session
) -> None:
    """The commit still sees them, and waits for no other session."""
    history = await begin(metastore, metastore_url, random.Random(8))
    await history.append(63 * BLOCK)
    extents = await history.extents()
    async with raw.transaction():
        last = extents[40 * BLOCK].last_offset
        await rows(raw, "SELECT thin_time_blocks(ARRAY[%s], ARRAY[0], ARRAY[%s])", history.key, last)
        await history.append(BLOCK)
        assert (await history.blocks())[:2] == [64, 1]
        await history.check()
    assert (await history.blocks())[:2] == [64 - 39, 1]
    await history.check()
    await history.append(70 * BLOCK)
    assert (await history.blocks())[1] == 2
    await history.check()
