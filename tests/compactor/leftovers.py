"""What a cluster with segment keys does by itself about uploads that nothing became of: no sweeper takes part."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from headrace.compactor.segments import SegmentCleanup, SegmentCleanupMetrics
from headrace.config.settings import Settings
from headrace.jobs.kinds import CLEAN_UP_SEGMENTS
from tests.compactor.test_compact_faults import run_janitor
from tests.compactor.world import CompactionWorld
from tests.metastore.sessions import move_time, session

LATER_SECONDS = 3 * 3600
"""Older than an unused reservation is kept."""


async def end_leftovers(world: CompactionWorld, ahead_seconds: float) -> float:
    """Run cleanup and janitor twice, hours later each; how far ahead the clock is then."""
    for _ in range(2):
        ahead_seconds += LATER_SECONDS
        async with session(world.url) as raw:
            await move_time(raw, ahead_seconds)
        cleanup = SegmentCleanup(world.postgres.segments, Settings(), SegmentCleanupMetrics(CollectorRegistry()))
        await world.run_job(CLEAN_UP_SEGMENTS.name, cleanup.handle)
        await run_janitor(world)
    return ahead_seconds
