"""The limit to background work's processor time."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest
from prometheus_client import CollectorRegistry

from headrace.compactor.worker import CpuShare, Worker
from headrace.config.settings import Settings
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.supervision import Supervisor
from tests.manual_clock import ManualClock


class Thread:
    """Processor time that passes when a step says so, and what rests were taken."""

    def __init__(self) -> None:
        self.used = 0.0
        self.rests: list[float] = []

    def step(self, seconds: float) -> str:
        self.used += seconds
        return threading.current_thread().name


@pytest.mark.parametrize(("percent", "rest"), [(100, 0.0), (50, 2.0), (25, 6.0), (1, 198.0)])
async def test_a_step_is_followed_by_rest_in_proportion(percent: int, rest: float) -> None:
    thread = Thread()
    share = CpuShare(percent, cpu_seconds=lambda: thread.used, rest=thread.rests.append)
    asyncio.get_running_loop().set_default_executor(share)
    assert (await asyncio.to_thread(thread.step, 2.0)).startswith("paced")
    assert thread.rests == [pytest.approx(rest)]


async def test_a_step_that_fails_rests_as_well() -> None:
    thread = Thread()

    def fail() -> None:
        thread.step(1.0)
        raise ValueError("as it was")

    share = CpuShare(50, cpu_seconds=lambda: thread.used, rest=thread.rests.append)
    with share, pytest.raises(ValueError, match="as it was"):
        await asyncio.wrap_future(share.submit(fail))
    assert thread.rests == [1.0]


@pytest.mark.parametrize(("percent", "is_paced"), [(100, False), (30, True)])
async def test_a_workers_steps_are_limited_if_configured(metastore_url: str, percent: int, *, is_paced: bool) -> None:
    settings = Settings(metastore_url=metastore_url, bucket="memory://cpu", compaction_cpu_percent=percent)
    metastore = await PostgresMetastore.open(metastore_url, settings)
    life = LifeKeeper(metastore.life, MemoryStore(ManualClock()), ManualClock(), random.Random(1))
    worker = await Worker.open(settings, CollectorRegistry(), life, Supervisor(SystemClock()))
    try:
        worker.start()
        name = await asyncio.to_thread(lambda: threading.current_thread().name)
        assert name.startswith("paced") is is_paced
    finally:
        await worker.stop()
        await worker.close()
        await metastore.close()
