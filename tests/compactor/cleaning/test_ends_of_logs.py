"""What ends a log on real Postgres: planner, passes, log starts, and workers of the release before."""

from __future__ import annotations

import pytest

from headrace.jobs.kinds import CLEAN
from headrace.metastore.api.cleaning import CleanedPartition
from headrace.metastore.api.compaction import SwapInput
from headrace.metastore.api.retention import LogStartTarget, OldestQuery
from headrace.metastore.postgres.packing import unpack_extents
from tests.compactor.cleaning.test_guarantees import EAGER, HOUR_MS, rolled
from tests.compactor.cleaning.world import CleaningWorld
from tests.metastore.sessions import rows, session


@pytest.mark.requirement("L6")
async def test_what_ends_the_log_is_not_planned_for(world: CleaningWorld) -> None:
    """A delete marker in an extent with others: they go, it stays, until something follows it."""
    (key,) = await world.topic("t", 1, **EAGER, delete_retention_ms=str(HOUR_MS))
    await world.send(key, ("a", "1"), ("b", "1"), ("c", "1"))
    await world.send(key, ("a", None), ("b", None), ("c", None))
    await rolled(world, key)
    passes = 0
    for _ in range(4):
        passes += await world.clean()
        await world.wait(1.1)
    assert (passes, await world.seen(key)) == (2, [(5, "c", None)])
    state = await world.state(key)
    assert (state.cleaned_offset, state.dirty_bytes, state.horizon_ms) == (6, 0, None)
    await world.send(key, ("z", "1"))
    await rolled(world, key)
    passes = 0
    for _ in range(4):
        passes += await world.clean()
        await world.wait(1.1)
    assert (passes, await world.seen(key)) == (1, [(6, "z", "1")]), "its horizon has passed"


@pytest.mark.requirement("L6")
async def test_a_log_that_an_earlier_release_emptied_at_its_end_is_whole_with_the_next_record(
    world: CleaningWorld,
) -> None:
    """Nothing is planned for it before; its delete marker that is still there goes as always."""
    (key,) = await world.topic("t", 1, **EAGER, delete_retention_ms=str(HOUR_MS))
    await world.send(key, ("a", "1"), ("b", None))
    await rolled(world, key)
    right = world.postgres.cleaning.cleanable_extents

    async def as_before(ends: object) -> object:
        now_ms, found = await right(ends)  # type: ignore[arg-type]
        return now_ms, [one._replace(high_watermark=1 << 40) for one in found]

    world.postgres.cleaning.cleanable_extents = as_before  # type: ignore[assignment,method-assign]
    assert await world.clean() == 1
    assert (await world.state(key)).cleaned_offset == 2
    await world.wait(1.1)
    assert await world.clean() == 1
    assert await world.seen(key) == [(0, "a", "1")], "the log ends empty"
    world.postgres.cleaning.cleanable_extents = right  # type: ignore[method-assign]
    await world.wait(1.1)
    assert await world.clean() == 0
    await world.send(key, ("a", None))
    for _ in range(3):
        await rolled(world, key)
        await world.clean()
    assert await world.seen(key) == [(2, "a", None)]
    assert (await world.state(key)).cleaned_offset == 3


@pytest.mark.requirement("L6")
async def test_a_worker_of_the_release_before_leaves_the_end_of_a_log(world: CleaningWorld) -> None:
    """It gets all extents but the last one, and its pass counts for nothing."""
    (key,) = await world.topic("t", 1, **EAGER, delete_retention_ms="0")
    for pair in (("a", "1"), ("a", None), ("b", None)):
        await world.send(key, pair)
    await rolled(world, key)
    await world.plan_all()
    async with session(world.url) as raw:
        ((packed,),) = await rows(raw, "SELECT packed FROM find_cleanable_extents(%s, %s)", [key], [3])
        extents = unpack_extents(packed)
    assert [extent.last_offset for extent in extents] == [0, 1]
    job = await world._claimed(CLEAN.name)
    left = tuple(SwapInput(extent.last_offset, extent.source) for extent in extents)
    assert not await world.postgres.cleaning.finish_cleaning(job.token, CleanedPartition(key, 3, left, None))
    assert (await world.state(key)).cleaned_offset == 0


@pytest.mark.requirement("P3")
async def test_a_log_start_passes_what_cleaning_keeps(world: CleaningWorld) -> None:
    """A marked partition with compact,delete becomes empty by retention or DeleteRecords, and may be removed."""
    (key,) = await world.topic("t", 1, **EAGER | {"cleanup_policy": "compact,delete"}, delete_retention_ms="0")
    await world.send(key, ("a", "1"), ("a", None))
    await rolled(world, key)
    await world.clean()
    assert await world.seen(key) == [(1, "a", None)]
    await world.postgres.retention.move_log_starts([LogStartTarget(key, 2)], max_extents=100)
    _, (log,) = await world.postgres.retention.oldest_extents([OldestQuery(key, 1)])
    assert (log.log_start_offset, log.high_watermark, log.has_leftovers) == (2, 2, False)
    assert await world.clean() == 0
    assert await world.extents(key) == []
