"""Warnings of growth and of backups fire when their conditions are made: what the active controller exports of a real
Postgres and a real bucket, in Prometheus' own engine.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from headrace.agent.cluster.controller.cluster_metrics import TopicSizes
from headrace.agent.cluster.follower import MetadataFollower
from headrace.cli.main import main
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.upkeep_watch import LOOK_SECONDS, UpkeepWatch
from headrace.storage.objects.open import StoreOptions, open_store
from tests.agent_process import SECONDS_MAX, format_storage
from tests.deploy.fired_alerts import assert_fires
from tests.deploy.live_scrape import Scrape
from tests.manual_clock import ManualClock
from tests.metastore.commit_scenes import batch, file_of, open_scene
from tests.metastore.sessions import rows, session

pytestmark = pytest.mark.needs("promtool")
HOUR_SECONDS = 3_600
DAY_MINUTES = 24 * 60
FIRES_MINUTES = 65
"""Both rules hold for an hour before they fire."""
GROWN_BYTES = 200_000_000_000


class _Growth:
    """What the active controller exports of the sizes of topics."""

    def __init__(self, metastore: PostgresMetastore) -> None:
        self._registry = CollectorRegistry()
        self._sizes = TopicSizes(metastore.reports, 10, self._registry)
        self._follower = MetadataFollower(metastore.cluster)

    async def page(self) -> str:
        await self._sizes.refresh(1, await self._follower.catch_up(), True)
        return generate_latest(self._registry).decode()


async def _set_bytes(url: str, count: int) -> None:
    """Make it look as if so many bytes had been appended; the retention has removed none."""
    async with session(url) as raw:
        await rows(raw, f"UPDATE partition_heads SET appended_bytes = {count} RETURNING 1")


async def test_stored_bytes_that_grow_by_more_than_half_in_a_day(
    metastore: PostgresMetastore, metastore_url: str, tmp_path: Path
) -> None:
    scene = await open_scene(metastore, partitions=1)
    await scene.commit(file_of([batch(key) for key in scene.keys]))
    growth = _Growth(metastore)
    await _set_bytes(metastore_url, GROWN_BYTES // 2)
    calm = await growth.page()
    await _set_bytes(metastore_url, GROWN_BYTES)
    grown = await growth.page()
    assert Scrape(grown).value("headrace_stored_bytes", scope="cluster") == GROWN_BYTES
    minutes = {"calm_minutes": DAY_MINUTES + 60, "fires_minutes": FIRES_MINUTES, "step_seconds": 240}
    assert_fires("HeadraceStoredBytesGrow", [calm], [grown], tmp_path / "grown", **minutes)
    await _set_bytes(metastore_url, GROWN_BYTES * 7 // 10)
    little = await growth.page()
    with pytest.raises(AssertionError):
        assert_fires("HeadraceStoredBytesGrow", [calm], [little], tmp_path / "little", **minutes)


AGAIN_SECONDS = 5.0


class _Backups:
    """What the active controller exports of the newest backup; `clock` is its clock."""

    def __init__(self, metastore: PostgresMetastore, url: str, folder: Path, clock: ManualClock) -> None:
        self._clock, self._registry = clock, CollectorRegistry()
        self._flags = [f"--metastore-url={url}", f"--bucket=file://{folder}"]
        store = open_store(f"file://{folder}", StoreOptions(), clock=clock, rng=random.Random(1))
        delay_ms = HOUR_SECONDS * 1000
        self.watch = UpkeepWatch(metastore, store, delay_ms, lambda: True, clock, self._registry)

    async def record(self) -> None:
        """Record a backup, as the timer of BACKUPS.md does after a snapshot."""
        began = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC).isoformat()
        words = ["backup", *self._flags, "--record", "snapshot", "--began", began]
        assert await asyncio.to_thread(main, words) == 0

    async def page(self, kind: str, age_min: float) -> str:
        """The next look, which finds a backup of this kind and age."""
        await self._clock.advance(LOOK_SECONDS)
        until = time.monotonic() + SECONDS_MAX
        again = time.monotonic() + AGAIN_SECONDS
        while True:  # Postgres and the bucket are real
            if time.monotonic() >= again:  # a look that was under way ended after the clock had moved
                await self._clock.advance(LOOK_SECONDS)
                again = time.monotonic() + AGAIN_SECONDS
            text = generate_latest(self._registry).decode()
            age = Scrape(text).value("headrace_backup_age_seconds", kind=kind)
            if age is not None and age >= age_min:
                return text
            assert time.monotonic() < until, text
            await asyncio.sleep(0.01)


@pytest.fixture
async def backups(
    metastore: PostgresMetastore, metastore_url: str, tmp_path: Path, fake_clock: ManualClock
) -> AsyncIterator[_Backups]:
    settings = {"metastore.url": metastore_url, "bucket": f"file://{tmp_path / 'bucket'}"}
    await asyncio.to_thread(format_storage, settings)
    made = _Backups(metastore, metastore_url, tmp_path / "bucket", fake_clock)
    running = asyncio.create_task(made.watch.run())
    yield made
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_no_backup_and_one_that_becomes_too_old(
    backups: _Backups, fake_clock: ManualClock, tmp_path: Path
) -> None:
    none = await backups.page("none", -1)
    await backups.record()
    calm = await backups.page("snapshot", 0)
    fake_clock.jump(2 * HOUR_SECONDS)
    old = await backups.page("snapshot", 2 * HOUR_SECONDS)
    for name, condition in (("none", none), ("old", old)):
        assert_fires("HeadraceBackupOverdue", [calm], [condition], tmp_path / name, fires_minutes=FIRES_MINUTES)
