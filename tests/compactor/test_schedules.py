"""Whatever the active controller schedules, a worker carries out."""

from __future__ import annotations

import random

from prometheus_client import CollectorRegistry

from agent.cluster.schedules import schedules
from compactor.worker import Worker
from config.settings import Settings
from metastore.postgres.store import PostgresMetastore
from storage.objects.memory import MemoryStore
from tests.manual_clock import ManualClock


async def test_every_periodic_job_has_a_handler(metastore: PostgresMetastore, fake_clock: ManualClock) -> None:
    settings = Settings(log_retention_check_interval_ms=7_000)
    worker = Worker(settings, MemoryStore(), metastore, fake_clock, random.Random(1), CollectorRegistry())
    periods = {schedule.kind: schedule.period_ms for schedule in schedules(settings)}
    assert periods.keys() <= worker._runner._handlers.keys()
    assert periods["retention"] == 7_000
