"""Upkeep by `headrace-spark-tables`: tasks write the files of a rewrite, and Spark SQL reads the table."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")
pytest.importorskip("pyspark", reason="pyspark is needed: make setup")

from headrace.spark.tables.application import write_on_spark
from headrace.storage.errors import UnavailableError
from headrace.tables.upkeep.steps import TableUpkeep, UpkeepTerms
from tests.house.needs import require
from tests.spark.local_tasks import LocalTasks
from tests.spark.test_tables_command import Command
from tests.spark.world import ScanWorld
from tests.tables.test_spark import ROWS, check, sql
from tests.tables.upkeep.upkeep_history import NOW_MS
from tests.tables.world import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.requirement("X11")
TERMS = UpkeepTerms(files_min=2, snapshot_max_age_ms=1)


async def written(world: ScanWorld, tables: Tables) -> None:
    keys = await world.topic("orders", 2)
    await tables.create("orders", layout=["partition"])
    for number in range(3):
        for key in keys:
            await world.write(key, number)
        await tables.follow()


def upkeep(tables: Tables, spark: Any) -> TableUpkeep:
    return TableUpkeep(tables.catalog, TERMS, partial(write_on_spark, lambda: spark))


class WithoutExecutors(LocalTasks):
    """A session that has no executors."""

    @property
    def sparkContext(self) -> LocalTasks:
        return self

    def parallelize(self, items: Any, slices: int) -> LocalTasks:
        raise OSError("no executor")


async def test_tasks_write_a_file_for_each_group_or_nothing(world: ScanWorld, tables: Tables) -> None:
    await written(world, tables)
    before = tables.load().metadata_location
    with pytest.raises(UnavailableError, match="a task of Spark failed"):
        await asyncio.to_thread(upkeep(tables, WithoutExecutors()).keep, "orders", NOW_MS)
    assert tables.load().metadata_location == before
    report = await asyncio.to_thread(upkeep(tables, LocalTasks()).keep, "orders", NOW_MS)
    assert report.rewritten[:2] == (6, 2)
    assert len(tables.files()) == 2
    await tables.check()


@pytest.mark.slow
async def test_tasks_of_spark_write_them(world: ScanWorld, tables: Tables, spark: SparkSession) -> None:
    await written(world, tables)
    report = await asyncio.to_thread(upkeep(tables, spark).keep, "orders", NOW_MS)
    assert report.rewritten[:2] == (6, 2)
    await tables.check()


@pytest.mark.slow
@pytest.mark.needs("iceberg-spark")
async def test_the_command_does_what_is_due_and_icebergs_own_rewrite_works_next_to_it(
    world: ScanWorld, tables: Tables
) -> None:
    require("java")
    await written(world, tables)
    command = Command(world, tables)
    command.environment |= {"HEADRACE_TABLES_UPKEEP_INTERVAL_MS": "1", "HEADRACE_TABLES_REWRITE_MIN_FILES": "2"}
    await asyncio.to_thread(command.run)
    assert command.lines("upkeep: table=orders") == 1
    assert len(list(tables.load().scan().plan_files())) == 2
    await check(world, tables, await asyncio.to_thread(sql, tables, "orders", f"{ROWS} FROM {{}}"))
    rewrite = "CALL test.system.rewrite_data_files(table => 'headrace.orders', options => map('rewrite-all', 'true'))"
    await asyncio.to_thread(sql, tables, "orders", rewrite)
    await asyncio.to_thread(command.run)
    await tables.check()
