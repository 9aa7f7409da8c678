"""The loop over all tables: one that fails or is stopped holds up no other, and each is in the metrics."""

from __future__ import annotations

import asyncio
import random

import pytest
from prometheus_client import CollectorRegistry

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

from headrace.storage.supervision import Supervisor
from headrace.tables.follower import TableFollower
from headrace.tables.looking import Condition
from headrace.tables.metrics import TableMetrics
from headrace.tables.state import PROGRESS
from headrace.tables.upkeep.jobs import UpkeepMetrics, UpkeepSchedule
from headrace.tables.upkeep.steps import UpkeepReport
from tests.deploy.metrics_page import declared_metrics
from tests.manual_clock import ManualClock
from tests.spark.world import ScanWorld
from tests.tables.world import Tables

PREFIX = "headrace_table_"


async def test_each_table_gets_its_turn_and_its_metrics(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await world.write(key, 1)
    for name in ("a_damaged", "b_paused", "c_good"):
        await tables.create("orders", name=name)
        await tables.follow(name)
    tables.catalog.set_property("a_damaged", PROGRESS, "{")
    tables.catalog.set_property("b_paused", "headrace.paused", "maintenance")
    await world.write(key, 2)
    await world.delete_records(key, 4)
    registry, clock = CollectorRegistry(), ManualClock()
    async with tables.worker() as worker:
        supervisor = Supervisor(clock, registry)
        metrics = TableMetrics(registry, clock.monotonic)
        worker.looked = metrics.looked
        follower = TableFollower(worker, metrics, supervisor, clock, random.Random(1), 60_000)
        assert not await follower.turn()
        assert set(follower.last) == {"b_paused", "c_good"}
        assert follower.last["b_paused"].condition is Condition.PAUSED
        assert "table a_damaged" in supervisor.problems()

        def value(name: str, **labels: str) -> float | None:
            return registry.get_sample_value(PREFIX + name, labels)

        assert value("appended_records_total", table="c_good") == 2
        assert value("missing_offsets_total", table="c_good") == 1
        assert value("commits_total", table="c_good", outcome="committed") == 1
        assert [value("following", table=name) for name in ("b_paused", "c_good")] == [0, 1]
        assert value("lag", table="c_good", partition="0") == 0
        upkeep = UpkeepMetrics(registry)
        upkeep.done("c_good", UpkeepReport(files=3))
        assert value("files", table="c_good") == 3
        shown = {family.name for family in registry.collect() if family.name.startswith(PREFIX)}
        declared = {each.name.removesuffix("_total") for each in declared_metrics() if each.name.startswith(PREFIX)}
        assert shown == declared
        await asyncio.to_thread(tables.catalog.drop, "c_good", purge=False)
        await follower.turn()
        assert value("following", table="c_good") is None


async def test_tables_get_jobs_of_upkeep_and_those_that_are_stopped_get_none(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    for name in ("a_stopped", "b_good"):
        await tables.create("orders", name=name)
        await world.write(key, 1)
        await tables.follow(name)
    tables.catalog.set_property("a_stopped", PROGRESS, "")
    clock = ManualClock()
    schedule = UpkeepSchedule(world.postgres.jobs, "test.headrace", lambda _: 1_000, clock)
    kinds = [kind.name for kind in schedule.kinds]

    async def jobs() -> list[tuple[str, str]]:
        found = await world.postgres.reports.list_jobs(100)
        return sorted((job.kind, job.key) for job in found if job.kind in kinds)

    async with tables.worker() as worker:
        metrics = TableMetrics(CollectorRegistry(), clock.monotonic)
        parts = (worker, metrics, Supervisor(clock, CollectorRegistry()), clock, random.Random(1), 60_000)
        await TableFollower(*parts).turn()
        assert await jobs() == [], "not asked for"
        follower = TableFollower(*parts, schedule)
        for _ in range(2):
            await follower.turn()
        assert await jobs() == [(kind, "b_good") for kind in sorted(kinds)]


def test_the_age_of_a_lag_counts_from_when_it_was_seen() -> None:
    from headrace.tables.worker import TableRound

    registry, clock = CollectorRegistry(), ManualClock()
    metrics = TableMetrics(registry, clock.monotonic)

    def age() -> float | None:
        return registry.get_sample_value(f"{PREFIX}lag_seconds", {"table": "t", "partition": "0"})

    for lag, seconds, expected in ((0, 5, 0), (7, 5, 5), (3, 10, 15), (0, 1, 0), (2, 1, 1)):
        clock.jump(seconds)
        metrics.done("t", TableRound(Condition.FOLLOWING, lag={0: lag}))
        assert age() == expected
