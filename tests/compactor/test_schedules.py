"""A worker runs everything that the active controller schedules."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.agent.cluster.controller.upkeep_steps import schedules
from headrace.compactor import worker as worker_module
from headrace.compactor.compact import Compactor
from headrace.config.settings import Settings
from headrace.jobs.kinds import COMPACT, DELETE_DEAD_FILES, SWEEP_ORPHANS
from headrace.jobs.lease import Lease
from headrace.metastore.api.jobs import Job
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import ConfigRecord
from headrace.metastore.log.records import encode_record
from headrace.metastore.log.replay import apply
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.objects.store import ObjectStore
from tests.compactor.workers import a_worker
from tests.manual_clock import ManualClock


async def test_every_periodic_job_has_a_handler(metastore: PostgresMetastore, fake_clock: ManualClock) -> None:
    settings = Settings(log_retention_check_interval_ms=7_000)
    worker = a_worker(metastore, fake_clock, settings)
    periods = _periods(settings, MetadataImage())
    assert periods.keys() <= worker._runner._handlers.keys() | worker._look_runner._handlers.keys()
    assert periods["retention"] == 7_000


async def test_everything_a_worker_moves_is_throttled(
    metastore: PostgresMetastore, fake_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deletion and sweeping too: their requests count against the same limits."""
    made: list[object] = []

    class Merging(Compactor):
        def __init__(self, store: ObjectStore, *rest: Any) -> None:
            made.append(store)

        async def handle(self, job: Job, lease: Lease) -> None:
            """Merge nothing."""

    monkeypatch.setattr(worker_module, "Compactor", Merging)
    worker = a_worker(metastore, fake_clock)
    handlers = worker._runner._handlers
    await handlers[COMPACT.name](None, None)  # type: ignore[arg-type]
    stores = [handlers[kind]._store for kind in (DELETE_DEAD_FILES.name, SWEEP_ORPHANS.name)]  # type: ignore[attr-defined]
    stores += made
    assert len(stores) == 3
    assert all(store is worker._throttled for store in stores)


def test_how_often_compaction_is_planned_may_change_while_brokers_run() -> None:
    settings = Settings(compaction_interval_ms=9_000)
    record = ConfigRecord(resource_type=4, resource_name="", name="compaction.interval.ms", value="500")
    assert _periods(settings, MetadataImage())["plan"] == 9_000
    assert _periods(settings, apply(MetadataImage(), [encode_record(record)]))["plan"] == 500


def _periods(settings: Settings, image: MetadataImage) -> dict[str, int]:
    return {schedule.kind: schedule.period_ms for schedule in schedules(EffectiveConfigs(settings), image)}
