"""Rows of files under concurrency, in forced orders that tests/metastore/interleavings.py meets too seldom."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from headrace.metastore.api.compaction import NewFile, Swap, SwapInput, SwapOutcome
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.read import ExtentQuery
from headrace.metastore.api.retention import LogStartTarget
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.file_id import new_file_id
from tests.metastore.byte_sums import unaccounted
from tests.metastore.commit_scenes import batch, file_of, open_scene, shard_gate
from tests.metastore.sessions import Session, claim, move_time, set_for_cluster, waiting

AGE_SECONDS = 80 * 60
"""More than the 75 minutes for which a file's row is kept after its creation."""


async def _claim(store: PostgresMetastore, kind: str) -> JobToken:
    job = await claim(store, kind, lease_ms=86_400_000)
    return job.token


@pytest.mark.requirement("W7")
async def test_a_commit_that_comes_again_does_not_wait_for_a_change_of_its_file(
    metastore: PostgresMetastore, metastore_url: str, raw: Session
) -> None:
    """It holds its shard; a log start that moves holds the file's row and wants the shard: that was a deadlock."""
    scene = await open_scene(metastore)
    (key,) = scene.keys
    file = file_of([batch(key), batch(key)])
    (first,) = await scene.commit(file)
    async with shard_gate(metastore_url, scene.shard(0)) as gate:
        again = asyncio.create_task(scene.commit(file))
        await waiting(gate, 1)
        move = asyncio.create_task(metastore.retention.move_log_starts([LogStartTarget(key, 10)], max_extents=10))
        await waiting(gate, 2)
    assert await again == [first]
    (moved,) = await move
    assert (moved.log_start_offset, moved.removed_extents) == (10, 1)
    assert await unaccounted(raw) == []


@pytest.mark.requirement("W3")
async def test_a_file_that_comes_to_life_is_not_taken(
    metastore: PostgresMetastore, metastore_url: str, raw: Session
) -> None:
    """A job's first call named it, for nothing; long after, its next call lets something live in it."""
    scene = await open_scene(metastore)
    (key,) = scene.keys
    await scene.commit(file_of([batch(key)]), file_of([batch(key)]))
    (found,) = await metastore.index.find_extents([ExtentQuery(key, 0, 1 << 40)])
    size = sum(extent.length for extent in found.extents)
    merged = NewFile(new_file_id(time.time_ns() // 1_000_000, random.Random(1)), 1, size, size)
    inputs = tuple(SwapInput(extent.last_offset, extent.source) for extent in found.extents)
    swap = Swap(key, 0, 9, 0, size, 0, 1_000, inputs)
    lost = swap._replace(inputs=(SwapInput(4, merged.file_id), SwapInput(9, merged.file_id)))
    assert await metastore.compaction.swap_extents(await _claim(metastore, "early"), merged, [lost]) == [
        SwapOutcome.LOST
    ]
    await raw.execute("UPDATE jobs SET state = 2, ended_at = wall_time()")  # its lease pinned what it saw
    await move_time(raw, AGE_SECONDS)
    await set_for_cluster(metastore, "file.delete.delay.ms", 0)
    token, janitor = await _claim(metastore, "late"), await _claim(metastore, "janitor")
    life = (await metastore.files.janitor_state()).incarnation_id
    async with shard_gate(metastore_url, scene.shard(0)) as gate:
        revived = asyncio.create_task(metastore.compaction.swap_extents(token, merged, [swap]))
        await waiting(gate, 1)
        taking = asyncio.create_task(metastore.files.take_dead_files(janitor, life, limit=10))
        await waiting(gate, 2)
    assert await revived == [SwapOutcome.DONE]
    assert await taking == []
    assert await unaccounted(raw) == []
