"""File ids that a lease reserves before it knows their segments: as valid as the lease, and nothing else is."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable

import pytest

from headrace.metastore.api.compaction import NewFile, Swap, SwapInput
from headrace.metastore.api.jobs import Job
from headrace.metastore.api.segments import NewSegment, StartOutcome
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import FencedError, NotFoundError
from headrace.storage.file_id import new_file_id, object_key
from tests.compactor.segment_world import HOUR, LEASE_MS, SegmentWorld
from tests.metastore.sql_sources import plant


async def new_id(world: SegmentWorld) -> uuid.UUID:
    return new_file_id((await world.postgres.compaction.live_extents([])).wall_ms, world.rng, 1)


async def a_merge(world: SegmentWorld, job: Job, file_id: uuid.UUID) -> tuple[NewSegment, NewFile, Swap]:
    """Make a merge of everything in a new topic."""
    (key,) = await world.topic(f"t-{job.token.job_id}", 1)
    await world.fill([key])
    extents = await world.extents(key)
    inputs = tuple(SwapInput(e.last_offset, e.source) for e in extents)
    last, epoch = extents[-1].last_offset, extents[0].leader_epoch
    segment = NewSegment(uuid.uuid4(), key, 0, last, epoch, 0, 100)
    return segment, NewFile(file_id, 1, 200, 100), Swap(key, 0, last, 50, 100, epoch, 0, inputs)


async def rest(world: SegmentWorld) -> set[uuid.UUID]:
    """Let cleanup and janitor run, without a sweeper; the rows of files that are left."""
    await world.clean_up()
    await world.janitor()
    return {file_id for (file_id,) in await world.ask("SELECT file_id FROM segment_files")}


async def test_reservations_are_valid_as_long_as_their_lease(world: SegmentWorld) -> None:
    job, used, unused = await world.claim([], 1), await new_id(world), await new_id(world)
    segment, file, swap = await a_merge(world, job, used)
    for _ in range(2):
        assert await world.postgres.segments.reserve_files(job.token, [used, unused], 1)
    for file_id in (used, unused):
        await world.store.put(object_key(file_id), b"x" * 200)
    for _ in range(4):
        await world.advance(HOUR)
        assert {used, unused} <= await rest(world)
    for _ in range(2):
        started = await world.postgres.segments.start_reserved_segments(job.token, used, 1, [segment])
        assert started is StartOutcome.DONE
    await world.postgres.compaction.swap_extents(job.token, file, [swap])
    await world.postgres.jobs.finish_job(job.token)
    assert used in await rest(world)
    assert unused not in await rest(world)
    assert await world.objects() == await rest(world), "the object of the unused id is gone"
    assert not await world.ask("SELECT FROM file_reservations")


async def test_only_its_own_reservations_are_good_for_a_lease(world: SegmentWorld) -> None:
    """Not reserved, reserved by another lease, or used before."""
    job, other = await world.claim([], 1), await world.claim([], 1)
    unknown, foreign = await new_id(world), await new_id(world)
    segment, *_ = await a_merge(world, job, unknown)
    assert await world.postgres.segments.reserve_files(other.token, [foreign], 1)
    (taken,) = await world.live_files(0) and (await world.live_files(0))[:1]
    assert await world.postgres.segments.reserve_files(job.token, [taken], 0)
    for file_id in (unknown, foreign, taken):
        started = await world.postgres.segments.start_reserved_segments(job.token, file_id, 1, [segment])
        assert started is StartOutcome.REFUSED
    assert not await world.events()
    await world.advance(LEASE_MS / 1000 + 1)
    again = await world.postgres.jobs.claim_job("test", ["compact"], LEASE_MS)
    assert again is not None
    with pytest.raises(FencedError):
        await world.postgres.segments.reserve_files(
            job.token if again.token.job_id == job.token.job_id else other.token, [unknown], 1
        )


@pytest.mark.parametrize("is_cleaning", [False, True])
async def test_a_swap_under_an_id_that_was_not_started_is_refused(world: SegmentWorld, is_cleaning: bool) -> None:
    """Unknown to the metastore, or only reserved: both were good below level 1, and are what older workers do."""
    job = await world.claim([], 1)
    unknown, reserved = await new_id(world), await new_id(world)
    assert await world.postgres.segments.reserve_files(job.token, [reserved], 1)
    _, file, swap = await a_merge(world, job, unknown)
    extents = await world.extents(swap.partition_key)
    for file_id in (unknown, reserved):
        with pytest.raises(NotFoundError):
            await swapped(world, job, file._replace(file_id=file_id), swap, is_cleaning)
    assert await world.extents(swap.partition_key) == extents
    assert not await world.events()


async def swapped(world: SegmentWorld, job: Job, file: NewFile, swap: Swap, is_cleaning: bool) -> None:
    if is_cleaning:
        await world.postgres.cleaning.swap_cleaned_extents(job.token, file, [swap], [0])
    else:
        await world.postgres.compaction.swap_extents(job.token, file, [swap])


@pytest.mark.keyless
async def test_below_level_1_nothing_is_reserved(world: SegmentWorld, metastore: PostgresMetastore) -> None:
    job, file_id = await world.claim([], 1), await new_id(world)
    segment, file, swap = await a_merge(world, job, file_id)
    before = await world.ask("SELECT count(*) FROM segment_files")
    assert not await metastore.segments.reserve_files(job.token, [file_id], 1)
    started = await metastore.segments.start_reserved_segments(job.token, file_id, 1, [segment])
    assert started is StartOutcome.KEYLESS
    assert await world.ask("SELECT count(*) FROM segment_files") == before
    await metastore.compaction.swap_extents(job.token, file, [swap])
    assert await world.live_files(1) == [file_id]


async def _swaps(world: SegmentWorld) -> None:
    await test_a_swap_under_an_id_that_was_not_started_is_refused(world, is_cleaning=False)


async def _cleaning_swaps(world: SegmentWorld) -> None:
    await test_a_swap_under_an_id_that_was_not_started_is_refused(world, is_cleaning=True)


BUGS: dict[str, tuple[str, str, str, Callable[[SegmentWorld], Awaitable[None]]]] = {
    "a merge swaps an unreserved file in": (
        "swap_extents",
        "segment_level() < 1",
        "true",
        _swaps,
    ),
    "a cleaning swaps an unreserved file in": (
        "swap_extents",
        "segment_level() < 1",
        "true",
        _cleaning_swaps,
    ),
    "any id is started": (
        "reserve_files",
        "IF segment_level() >= 1 AND NOT EXISTS",
        "IF false AND NOT EXISTS",
        test_only_its_own_reservations_are_good_for_a_lease,
    ),
    "another lease's reservation is good enough": (
        "reserve_files",
        "WHERE file_id = p_file_id AND job_id = p_job_id AND epoch = p_epoch",
        "WHERE file_id = p_file_id",
        test_only_its_own_reservations_are_good_for_a_lease,
    ),
    "reservations end under their lease": (
        "clean_up_segments",
        "AND NOT EXISTS (SELECT FROM file_reservations r WHERE r.file_id = f.file_id)",
        "",
        test_reservations_are_valid_as_long_as_their_lease,
    ),
    "reservations are kept after their lease": (
        "clean_up_segments",
        "PERFORM forget_reservations();",
        "",
        test_reservations_are_valid_as_long_as_their_lease,
    ),
}
"""What is wrong -> (SQL file, right text, wrong text, the proof that fails)."""


@pytest.mark.parametrize("bug", BUGS)
async def test_a_planted_bug_is_caught(bug: str, world: SegmentWorld, metastore_url: str) -> None:
    function, right, wrong, proof = BUGS[bug]
    plant(metastore_url, function, right, wrong)
    with pytest.raises((AssertionError, pytest.fail.Exception)) as caught:
        await proof(world)
    print(f"{bug}: {type(caught.value).__name__} {caught.value}")
