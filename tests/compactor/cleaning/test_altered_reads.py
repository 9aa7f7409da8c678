"""Cleaning by key over a store that alters bytes, and with damage that is in the bucket.

Fault model: tests/storage/altered_reads.py; bytes of a stored object that are changed in the bucket itself.
"""

from __future__ import annotations

import random

import pytest

from headrace.jobs.kinds import CLEAN
from headrace.storage.errors import BadTransferError
from headrace.storage.file_id import object_key
from headrace.storage.segment.reader import verify_segment
from tests.compactor.cleaning.test_guarantees import EAGER, rolled
from tests.compactor.cleaning.world import CleaningWorld
from tests.compactor.world import LEASE_MS
from tests.metastore.sessions import session
from tests.storage.altered_reads import AlteringStore, InstantClock, flipped


async def fill(world: CleaningWorld, values: str = "123") -> list[int]:
    """Two partitions in the same files."""
    keys = await world.topic("t", 2, **EAGER)
    for value in values:
        await world.send_all({key: [("a", value), ("b", value)] for key in keys})
    return keys


@pytest.mark.requirement("L5")
async def test_a_store_that_alters_bytes_stops_no_pass(world: CleaningWorld) -> None:
    """Two of three reads are altered: passes end, and repeat, until the last values are all that is there."""
    keys = await fill(world)
    await world.compact(1, extent_bytes=1)
    for key in keys:
        await rolled(world, key)
    store = AlteringStore(world.store, random.Random(3), rate=0.66, prefix="segments/")
    for _ in range(60):
        await world.plan_all()
        job = await world.postgres.jobs.claim_job("test", [CLEAN.name], LEASE_MS)
        if job is None:
            break
        try:
            await world.cleaner(store=store, clock=InstantClock()).handle(job, world.lease(job))
        except BadTransferError as error:
            await world.postgres.jobs.fail_job(job.token, str(error), 0)
        else:
            await world.postgres.jobs.finish_job(job.token)
    assert store.altered > 5
    for key in keys:
        assert [(k, v) for _, k, v in await world.seen(key)] == [("a", "3"), ("b", "3")]
    assert await world.postgres.compaction.damaged_parts([(key, 100) for key in keys]) == []
    assert not any(row for row in await world.cleaning_rows() if "altered" in str(row)), "no partition is marked"
    for file_id in await world.live_files():
        verify_segment(await world.store.get(object_key(file_id)))


@pytest.mark.requirement("L8")
async def test_damage_makes_only_its_partition_uncleanable(world: CleaningWorld) -> None:
    """In a file of level 0 that both partitions have: the other one is merged and cleaned."""
    first, second = await fill(world)
    damaged = (await world.extents(first))[1]
    await world.store.rewrite(object_key(damaged.file_id), lambda body: flipped(body, [damaged.position + 65]))
    for key in (first, second):
        await rolled(world, key)
    await world.clean(clock=InstantClock())
    assert [(k, v) for _, k, v in await world.seen(second)] == [("a", "3"), ("b", "3")]
    assert damaged in await world.extents(first)
    assert [
        one.partition_key for one in await world.postgres.compaction.damaged_parts([(first, 100), (second, 100)])
    ] == [first]
    assert (await world.state(first)).uncleanable_ms is not None
    assert (await world.state(second)).uncleanable_ms is None
    assert await world.clean() == 0, "nothing is planned without an end"
    await world.check_accounts()


@pytest.mark.requirement("L8")
async def test_a_mark_of_the_release_before_holds_back_no_partition(world: CleaningWorld) -> None:
    keys = await fill(world)
    async with session(world.url) as raw:
        await raw.execute("UPDATE segment_files SET unreadable_at = clock_timestamp()")
    for key in keys:
        await rolled(world, key)
    await world.clean()
    for key in keys:
        assert [(k, v) for _, k, v in await world.seen(key)] == [("a", "3"), ("b", "3")]
