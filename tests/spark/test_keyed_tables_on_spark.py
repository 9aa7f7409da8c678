"""Keyed tables by real tasks of Spark: random histories, a command that is killed, Spark SQL as the reader; and a query
that reads a table and continues with its topic.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")
pytest.importorskip("pyspark", reason="pyspark is needed: make setup")

from headrace.spark import table_end
from headrace.tables.commit.committing import CommitOutcome
from headrace.tables.errors import TableError
from headrace.tables.values.formats import ValueFormats
from tests.house.needs import require
from tests.spark.keyed_history import KEYS, KeyedHistory
from tests.spark.table_driver import driver
from tests.spark.test_keyed_tables import batch, values
from tests.spark.test_tables_command import SECONDS_MAX, Command
from tests.spark.world import ScanWorld
from tests.tables.test_spark import sql
from tests.tables.world import Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.requirement("X11")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
async def test_the_table_has_the_last_value_of_each_key(
    world: ScanWorld, tmp_path: Path, spark: SparkSession, seed: int
) -> None:
    history = KeyedHistory(world, tmp_path / "iceberg", spark, random.Random(seed))
    await history.tell()


@pytest.mark.slow
async def test_tasks_open_values_and_find_the_records_that_do_not_fit(
    world: ScanWorld, tables: Tables, spark: SparkSession
) -> None:
    a, b = await world.topic("orders", 2)
    tables.formats = ValueFormats()
    await tables.create("orders", values=("json",), is_keyed=True)
    await world.commit((a, batch(("k", '{"item": 1}'))), (b, batch(("l", '{"item": 1}'))))
    async with driver(spark, tables, split_bytes=1) as worker:
        while (await worker.keep("orders")).has_more:
            pass
        await world.commit((a, batch(("k", '{"item": 2}'), ("m", "{"), ("n", '{"item": 3}'))))
        await world.commit((b, batch(("l", None), (None, '{"item": 4}'))))
        assert (await worker.keep("orders")).outcome is CommitOutcome.COMMITTED
        while (await worker.keep("orders")).has_more:
            pass
    assert {row["kafka"]["key"]: row["item"] for row in tables.found()} == {b"k": 2, b"n": 3}
    assert [each[:2] for each in tables.dead()] == [(0, 2), (1, 2)]


@pytest.mark.slow
@pytest.mark.needs("iceberg-spark")
async def test_a_driver_that_is_killed_leaves_one_row_per_key_and_spark_sql_reads_the_table(
    world: ScanWorld, tables: Tables
) -> None:
    require("java")
    a, b = await world.topic("orders", 2)
    await tables.create("orders", is_keyed=True)
    command, expected, rng = Command(world, tables), dict[str, str](), random.Random(1)
    for steps in range(3):
        for number in range(4):
            for key, keys in ((a, KEYS[0]), (b, KEYS[1])):
                pairs = [(rng.choice(keys), rng.choice([None, f"{steps}-{number}-{n}"])) for n in range(4)]
                await world.commit((key, batch(*pairs)))
                for name, value in pairs:
                    expected.pop(name, None)
                    if value is not None:
                        expected[name] = value
        said, before = command.lines("appended: table=orders"), len(tables.files())
        with command.start() as process:
            async with asyncio.timeout(SECONDS_MAX):
                while process.poll() is None:
                    if steps == 0 and (command.lines("SparkContext") or command.lines("Using Spark")):
                        break  # Spark starts
                    if steps == 1 and len(tables.files()) > before:
                        break  # tasks have written
                    if command.lines("appended: table=orders") > said:
                        break  # the commit is there
                    await asyncio.sleep(0.01)
            os.killpg(process.pid, signal.SIGKILL)
    assert (await asyncio.to_thread(command.run)).startswith("tables on spark ended: following=1 ")
    assert command.lines("merged by spark")
    assert values(tables) == expected
    printed = await asyncio.to_thread(
        sql, tables, "orders",
        "SELECT to_json(map(CAST(key AS STRING), CAST(value AS STRING))) FROM {}",
        "SHOW TBLPROPERTIES {}",
    )  # fmt: skip
    rows = [json.loads(line) for line in printed if line.startswith("{")]
    assert sorted(name for row in rows for name in row) == sorted(expected)
    assert {name: value for row in rows for name, value in row.items()} == expected
    shown = dict(line.split("\t", 1) for line in printed if line.startswith("headrace."))
    assert table_end(shown) == table_end(tables.load().properties)


@pytest.mark.slow
async def test_a_table_and_the_topic_behind_it_have_each_record_once(
    world: ScanWorld, tables: Tables, spark: SparkSession, tmp_path: Path
) -> None:
    a, b = await world.topic("orders", 2)
    await tables.create("orders")
    for number in range(3):
        await world.write(a, number)
        await world.write(b, number, 2)
        await tables.follow()
    end = table_end(tables.load().properties)
    await world.write(a, 3)
    await tables.follow()  # the table goes on while the query is made
    await world.write(b, 4)

    def table() -> DataFrame:
        rows = tables.load().scan(snapshot_id=end.snapshot_id).select("partition", "offset").to_arrow()
        return spark.createDataFrame(rows.to_pandas())

    def places(rows: DataFrame) -> list[tuple[int, int]]:
        return sorted((row.partition, row.offset) for row in rows.collect())

    wanted = [(row.partition, row.offset) for row in await world.consumed("orders")]
    options: Mapping[str, str] = {"subscribe": "orders", "startingOffsets": end.starting_offsets}
    topic = world.frame(spark, **options).select("partition", "offset")
    assert await asyncio.to_thread(places, table().unionByName(topic)) == wanted

    (tmp_path / "out").mkdir()

    def stream() -> DataFrame:
        source = spark.readStream.format("headrace").options(**world.options, **options).load()
        query = (
            source.select("partition", "offset").writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True).start(str(tmp_path / "out"))
        )  # fmt: skip
        assert query.awaitTermination(SECONDS_MAX)
        return spark.read.parquet(str(tmp_path / "out"))

    assert places(table().unionByName(await asyncio.to_thread(stream))) == wanted


def test_where_a_table_ends_is_said_as_kafkas_source_takes_it() -> None:
    progress = '{"positions": {"1": [7, 2], "0": [23, 1], "10": [0, -1]}, "snapshot_id": 5, "records": 30}'
    properties = {
        "headrace.cluster-id": "c", "headrace.topic-id": "0195f3a0-0000-7000-8000-000000000000",
        "headrace.start": "earliest",
    }  # fmt: skip
    for name in ("headrace.topic", "headrace.keyed-topic"):
        end = table_end(properties | {name: "orders", "headrace.progress": progress})
        assert (end.snapshot_id, end.starting_offsets) == (5, '{"orders":{"0":23,"1":7,"10":0}}')
    with pytest.raises(TableError, match="no offsets"):
        table_end(properties | {"headrace.topic": "orders"})
    with pytest.raises(TableError, match="no offsets"):
        table_end({"headrace.progress": progress})
