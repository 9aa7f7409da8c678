"""Inline files that a scan needs in the bucket, and those of a life that is over (X13)."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from headrace.compactor.compact import CompactionMetrics
from headrace.compactor.lost import find_lost
from headrace.compactor.planner import Planner, PolicyLimits
from headrace.jobs.kinds import PLAN_COMPACTION
from headrace.metastore.life.forgotten import OffsetRange, write_forgotten
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.scan.inline_waits import LOOK_SECONDS, MOVE_SECONDS
from headrace.scan.partitions import ScanPartition
from headrace.scan.plan import WantedOffsets, plan_in_bucket
from headrace.storage.errors import UnavailableError
from headrace.storage.file_id import is_inline, object_key
from tests.compactor.inline_world import InlineWorld
from tests.manual_clock import ManualClock
from tests.metastore.sessions import session
from tests.storage.altered_reads import reads_of
from tests.storage.batches import plain_batch

pytestmark = pytest.mark.requirement("X13")
SLOTS = 16


@pytest.fixture
async def world(metastore: PostgresMetastore, metastore_url: str) -> AsyncIterator[InlineWorld]:
    async with InlineWorld.running(metastore, metastore_url) as world:
        await world.raise_level()
        yield world


class TestScans:
    """Executors have only the bucket: a plan waits until what it names is moved."""

    async def test_a_plan_asks_for_the_move_and_waits_for_it(self, world: InlineWorld) -> None:
        (key,) = await world.topic("t", 1)
        await world.commit((key, plain_batch(2)))
        await world.commit((key, plain_batch(3)), slot=await world.slot())
        topic = world.view.image.topics_by_name["t"]
        ranges = {ScanPartition("t", 0, key, topic.topic_id): WantedOffsets(0, 5)}
        clock = ManualClock()
        task = asyncio.create_task(
            plan_in_bucket(world.postgres, clock, ranges, fail_on_data_loss=True, committed=False)
        )
        for _ in range(10_000):
            if (await world.postgres.inline.inline_state()).asked_ms >= 0:
                break
        planner = Planner(world.postgres, PolicyLimits(), CompactionMetrics(CollectorRegistry()))
        await world.run_job(PLAN_COMPACTION.name, planner.handle)
        await world.run(await world.claim_next())
        while not task.done():
            await clock.advance(LOOK_SECONDS)
            await asyncio.sleep(0.01)
        (planned,) = task.result()
        assert [(each.start, each.end) for each in planned.slices] == [(0, 2), (2, 5)]
        assert not any(is_inline(each.file_id) for each in planned.slices)
        assert len(world.bucket.gets) == 0, "a plan reads no bytes"

    async def test_the_wait_ends(self, world: InlineWorld) -> None:
        (key,) = await world.topic("t", 1)
        await world.commit((key, plain_batch(3)), slot=await world.slot())
        topic = world.view.image.topics_by_name["t"]
        ranges = {ScanPartition("t", 0, key, topic.topic_id): WantedOffsets(0, 3)}
        clock = ManualClock()
        task = asyncio.create_task(
            plan_in_bucket(world.postgres, clock, ranges, fail_on_data_loss=True, committed=False)
        )
        for _ in range(int(2 * MOVE_SECONDS)):
            await clock.advance(LOOK_SECONDS)
            await asyncio.sleep(0.002)
            if task.done():
                break
        with pytest.raises(UnavailableError, match="is a compactor running"):
            task.result()


class TestLostLives:
    """A promotion lost rows: what an agent still had in its memory is put into the bucket, and can be put back."""

    async def test_bytes_of_a_life_that_is_over_are_saved_and_listed(
        self, world: InlineWorld, metastore_url: str
    ) -> None:
        (key,) = await world.topic("t", 1)
        kept = await world.commit((key, plain_batch(2)), slot=await world.slot())
        lost = await world.commit((key, plain_batch(3)), slot=await world.slot())
        for _ in range(1_000):  # until the feed has brought both
            if len(world.service._feed.known_extents()) == 2:
                break
            await world.request_fetch({key: 0}, max_wait_ms=10)
            await asyncio.sleep(0.01)
        world.service.life_is_over()
        await world.service._forgotten.close()
        async with session(metastore_url) as raw:
            for table in ("extents", "segment_files", "inline_files"):
                await raw.execute(f"DELETE FROM {table} WHERE file_id = %s".encode(), (lost,))
        now_ms = time.time_ns() // 1_000_000
        found = await find_lost(world.postgres, reads_of(world.store), now_ms, now_ms, lambda *_: None)
        assert found.file_ids == [lost]
        assert [(each.records, each.certain_records) for each in found.in_order()] == [(3, 3)]
        assert await world.store.delete_many([object_key(kept), object_key(lost)])
        assert [info async for info in world.bucket.list_objects("segments/")] == []

    async def test_of_bytes_that_are_gone_the_offsets_are_listed(self, world: InlineWorld, metastore_url: str) -> None:
        (key,) = await world.topic("t", 1)
        await world.commit((key, plain_batch(2)), slot=await world.slot())
        lost = await world.commit((key, plain_batch(3)), slot=await world.slot())
        await write_forgotten(world.bucket, uuid.UUID(int=1), await world.extents(key))
        async with session(metastore_url) as raw:
            for table in ("extents", "segment_files", "inline_files"):
                await raw.execute(f"DELETE FROM {table} WHERE file_id = %s".encode(), (lost,))
        now_ms = time.time_ns() // 1_000_000
        found = await find_lost(world.postgres, reads_of(world.store), now_ms, now_ms, lambda *_: None)
        assert (found.file_ids, found.nowhere) == ([], [OffsetRange(key, 2, 4)])
        later = await find_lost(world.postgres, reads_of(world.store), now_ms, now_ms + 5_000_000, lambda *_: None)
        assert later.nowhere == [], "rows of files that were not lost go, too"
