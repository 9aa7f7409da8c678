"""`headrace-spark-tables`: tasks write the files, the driver commits them as the local worker does, in turn with it."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")
pytest.importorskip("pyspark", reason="pyspark is needed: make setup")

from headrace.spark.tables.application import require_pyspark
from headrace.storage.errors import InvalidError
from headrace.storage.records.codec import Record, encode_batch
from headrace.tables.commit.committing import CommitOutcome
from headrace.tables.listing import TableAddress, duckdb_lines
from tests.spark.table_driver import InTurn, driver
from tests.spark.world import TIME_MS, ScanWorld
from tests.tables.duckdb_reader import rows_by_duckdb
from tests.tables.history import AppendHistory
from tests.tables.world import Killed, Tables, from_a_thread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.requirement("X11")


def json_batch(*values: bytes | None) -> bytes:
    return encode_batch([Record(n, TIME_MS + n, b"k", value, []) for n, value in enumerate(values)], base_offset=0)


async def test_spark_and_the_local_worker_keep_one_table_in_turn(
    world: ScanWorld, tables: Tables, spark: SparkSession
) -> None:
    a, b = await world.topic("orders", 2)
    await tables.create("orders", layout=["day"])
    for number in range(2):
        await world.write(a, number)
        await world.write(b, number * 90_000, 2)
    async with driver(spark, tables) as worker:
        assert (await worker.keep("orders")).outcome is CommitOutcome.COMMITTED
        done = await worker.keep("orders")
        assert (done.outcome, done.rows, done.has_more) == (CommitOutcome.COMMITTED, 10, False)
        assert len(tables.files()) >= 3, "tasks wrote them"
        await tables.check()

        await world.write(a, 2)
        await tables.follow()
        await world.write(a, 3)
        await world.write(b, 3)
        before = tables.files()
        tables.failing.before_commit = from_a_thread(lambda: tables.again().round())
        assert (await worker.keep("orders")).outcome is CommitOutcome.CONFLICT
        await tables.check()
        assert len(tables.files() - before) == 1, "the tasks' files are gone"

        await world.write(a, 4)
        await world.write(b, 4)
        tables.failing.next_failure = "after"
        with pytest.raises(Killed):
            await worker.keep("orders")
        assert (await worker.keep("orders")).outcome is None
    await tables.check()
    address = TableAddress("test", {}, "headrace.orders", tables.load().metadata_location)
    found = await asyncio.to_thread(rows_by_duckdb, duckdb_lines(address))
    rows = sorted(zip(found.column("partition").to_pylist(), found.column("offset").to_pylist(), strict=True))
    assert rows == [(row.partition, row.offset) for row in await world.consumed("orders")]


@pytest.mark.slow
async def test_columns_and_dead_letters_are_those_of_the_local_worker(
    world: ScanWorld, tables: Tables, spark: SparkSession
) -> None:
    await compare_with_the_local_worker(world, tables, spark)


async def compare_with_the_local_worker(world: ScanWorld, tables: Tables, spark: Any) -> None:
    """Two tables of one topic are the same. `spark`: a session, or LocalTasks."""
    a, b = await world.topic("orders", 2)
    for name in ("by_spark", "locally"):
        await tables.create("orders", name=name, values=("json",), layout=["partition", "bucket[4](item)", "extra"])
    async with driver(spark, tables) as worker:
        for values in (
            (b'{"item": 1}', None, b"{"),
            (b'{"item": 2, "price": 1.5}', b'{"item": "two"}', b'{"item": 3}'),
            (b'{"item": 4}', b"no", b'{"price": 2}'),
        ):
            await world.commit((a, json_batch(*values)), (b, json_batch(*reversed(values))))
            while (await worker.keep("by_spark")).has_more:
                pass
            await tables.follow("locally")
    assert tables.found("by_spark") == tables.found("locally")
    assert tables.placed("by_spark") == tables.placed("locally")
    assert {"item_bucket_4", "partition"} <= tables.placed("by_spark")[0, 3].keys()
    assert tables.dead("by_spark") == tables.dead("locally")
    assert len(tables.dead("by_spark")) == 6
    assert tables.load("by_spark").schema() == tables.load("locally").schema()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_drivers_that_are_killed_and_local_workers_append_each_record_once(
    world: ScanWorld, tmp_path: Path, spark: SparkSession, seed: int
) -> None:
    tables = InTurn(world, tmp_path / "iceberg", spark, random.Random(seed))
    await AppendHistory(world, tables, random.Random(seed)).tell()


def test_a_pyspark_that_is_not_supported_is_named() -> None:
    require_pyspark("4.0.0")
    require_pyspark("4.3.1.dev0")
    with pytest.raises(InvalidError, match=r"PySpark 3\.5\.6 is not supported"):
        require_pyspark("3.5.6")
