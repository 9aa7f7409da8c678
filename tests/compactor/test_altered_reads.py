"""Reads that return altered bytes while the bucket is sound, and damage that is in the bucket: merges.

Fault model: tests/storage/altered_reads.py; and bytes of stored objects that are changed in the bucket itself.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace.jobs.kinds import COMPACT
from headrace.metastore.api.compaction import DamagedExtent, DamageKind
from headrace.storage.errors import BadTransferError, FencedError
from headrace.storage.file_id import object_key
from headrace.storage.segment import rereading
from headrace.storage.segment.reader import verify_segment
from tests.compactor.test_planner import EAGER, plan
from tests.compactor.world import CompactionWorld
from tests.metastore.sessions import move_time, rows, session
from tests.storage.altered_reads import AlteringStore, InstantClock, flip_first, flipped
from tests.storage.batches import plain_batch

DAY = 24 * 3600


async def fill(world: CompactionWorld, files: int = 4, partitions: int = 2) -> list[int]:
    keys = await world.topic("t", partitions)
    for number in range(files):
        await world.commit(*((key, plain_batch(4, b"%d" % number * 20)) for key in keys))
    return keys


async def damage_rows(world: CompactionWorld) -> list[tuple[Any, ...]]:
    async with session(world.url) as raw:
        return await rows(
            raw, "SELECT partition_key, base_offset, last_offset, kind FROM damaged_extents ORDER BY 1, 2"
        )


async def damage(world: CompactionWorld, key: int, number: int) -> tuple[Any, bytes]:
    """Alter the stored bytes of an extent, and return it with the object as it was."""
    extent = (await world.extents(key))[number]
    body = await world.store.get(object_key(extent.file_id))
    await world.store.rewrite(object_key(extent.file_id), lambda sound: flipped(sound, [extent.position + 70]))
    return extent, body


def impatient(world: CompactionWorld, **over: Any) -> Any:
    return world.compactor(clock=InstantClock(), **over)


async def check_objects(world: CompactionWorld) -> None:
    """Each live file is sound in the bucket."""
    for file_id in await world.live_files():
        verify_segment(await world.store.get(object_key(file_id)))


@pytest.mark.requirement("W10")
@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("at", [70, 8, 16], ids=["record", "length", "magic"])
async def test_an_extent_that_is_altered_twice_is_not_destroyed(world: CompactionWorld, level: int, at: int) -> None:
    """The same byte of the same extent in two GETs of one merge, in a bucket that is sound."""
    keys = await fill(world)
    before = [await world.records(key) for key in keys]
    first = (await world.extents(keys[0]))[0]
    store = AlteringStore(world.store, alter=flip_first(2, object_key(first.file_id), first.position + at))
    await world.run(await world.claim(await world.live_files(), level), impatient(world, store=store))
    assert store.altered == 2
    assert [await world.records(key) for key in keys] == before
    assert await damage_rows(world) == []
    assert len(await world.live_files()) == 1, "the third read was sound"
    await check_objects(world)
    await world.check_accounts()


async def test_what_looks_like_damage_stays_where_it_is(world: CompactionWorld) -> None:
    """The same wrong byte in each read of one merge. The extent is live, in its file, and merged after a day."""
    keys = await fill(world)
    before = [await world.records(key) for key in keys]
    files = await world.live_files()
    first = (await world.extents(keys[0]))[0]
    store = AlteringStore(
        world.store, alter=flip_first(rereading.SAME_READS, object_key(first.file_id), first.position + 70)
    )
    await world.run(await world.claim(files, 1), impatient(world, store=store))
    assert (await world.extents(keys[0]))[0] == first
    assert await world.live_files(level=0) == [first.file_id]
    assert await damage_rows(world) == [(keys[0], first.base_offset, first.last_offset, DamageKind.ALTERED)]
    assert [await world.records(key) for key in keys] == before
    await world.check_accounts()

    async with session(world.url) as raw:
        await move_time(raw, DAY + 60)
    await world.run(await world.claim(await world.live_files(), 1), impatient(world))
    assert not await world.live_files(level=0)
    assert [await world.records(key) for key in keys] == before
    await world.check_accounts()


@pytest.mark.requirement("W10")
async def test_reads_that_differ_mark_nothing_and_the_rest_goes_on(world: CompactionWorld) -> None:
    """Each read of one extent is altered in another way: the others are merged, and the job is repeated."""
    keys = await fill(world)
    before = [await world.records(key) for key in keys]
    first = (await world.extents(keys[0]))[0]
    rng = random.Random(7)

    def alter(key: str, byte_range: Any, body: bytes) -> bytes:
        at = first.position - (byte_range.start if byte_range else 0)
        is_first = key == object_key(first.file_id) and at >= 0 and at + first.length <= len(body)
        return flipped(body, [at + 61 + rng.randrange(8)], rng.randrange(1, 256)) if is_first else body

    store = AlteringStore(world.store, alter=alter)
    job = await world.claim(await world.live_files(), 1)
    with pytest.raises(BadTransferError):
        await world.run(job, impatient(world, store=store))
    assert await damage_rows(world) == []
    assert await world.live_files(level=0) == [first.file_id]
    assert world.counted("altered_reads_total") == rereading.READS_MAX
    assert world.counted("unreadable_extents_total") == 0
    await world.run(job, impatient(world))
    assert not await world.live_files(level=0)
    assert [await world.records(key) for key in keys] == before
    await world.check_accounts()


@pytest.mark.requirement("W10")
async def test_damage_holds_back_one_extent_and_is_not_planned_again(world: CompactionWorld) -> None:
    keys = await fill(world, files=6, partitions=3)
    extent, sound = await damage(world, keys[1], 2)
    before = [await world.records(key) for key in (keys[0], keys[2])]

    async def merges() -> int:
        """Plan and merge until nothing is planned."""
        for count in range(20):
            await plan(world, EAGER)
            job = await world.postgres.jobs.claim_job("test", [COMPACT.name], 60_000)
            if job is None:
                return count
            await world.run(job, impatient(world))
        raise AssertionError("planned without an end")

    assert await merges() >= 1
    waiting = await world.postgres.compaction.waiting_files(extent.file_id, 100)
    assert extent.file_id not in [file.file_id for file in waiting.files]
    assert await world.live_files(level=0) == [extent.file_id]
    assert await damage_rows(world) == [(keys[1], extent.base_offset, extent.last_offset, DamageKind.ALTERED)]
    assert [await world.records(key) for key in (keys[0], keys[2])] == before
    assert [e.base_offset for e in await world.extents(keys[1])] == [0, extent.base_offset, extent.last_offset + 1]

    async with session(world.url) as raw:
        await move_time(raw, DAY + 60)
    for _ in range(3):
        await world.commit((keys[0], plain_batch(1)))
    assert await merges() >= 1, "it is read again after a day"
    assert len(await damage_rows(world)) == 1
    await world.store.rewrite(object_key(extent.file_id), lambda _: sound)
    async with session(world.url) as raw:
        await move_time(raw, 2 * (DAY + 60))
    for _ in range(3):
        await world.commit((keys[0], plain_batch(1)))
    await merges()
    assert extent.file_id not in await world.live_files(), "and merged once it is sound"
    await world.postgres.housekeeping.prune_jobs(1)
    assert await damage_rows(world) == []
    await world.check_accounts()


async def test_damage_is_noted_only_of_what_is_live_and_under_the_lease(world: CompactionWorld) -> None:
    (key,) = await fill(world, files=1, partitions=1)
    (extent,) = await world.extents(key)
    job = await world.claim(await world.live_files(), 1)
    found = DamagedExtent(
        extent.file_id, extent.position, extent.length, key, extent.base_offset, extent.last_offset,
        DamageKind.MISSING, "gone\0",
    )  # fmt: skip
    await world.postgres.compaction.mark_damaged(
        job.token, [found, found._replace(position=1), found._replace(last_offset=9)]
    )
    await world.postgres.compaction.mark_damaged(job.token, [found._replace(kind=DamageKind.REFUSED, why="403")])
    assert await world.postgres.compaction.damaged_parts([(key, 1)]) == [
        found._replace(kind=DamageKind.REFUSED, why="403")
    ]
    assert await world.postgres.compaction.damaged_parts([(key, 0), (key + 1, 1)]) == []
    assert await world.postgres.compaction.damaged_parts([]) == []
    await world.postgres.jobs.finish_job(job.token)
    with pytest.raises(FencedError):
        await world.postgres.compaction.mark_damaged(job.token, [found])
