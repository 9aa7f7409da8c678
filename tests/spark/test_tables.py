"""`headrace-spark-tables`: tasks write the files, the driver commits them as the local worker does, in turn with it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")
pytest.importorskip("pyspark", reason="pyspark is needed: make setup")

from headrace.scan.cluster import BucketAddress, ScannedCluster
from headrace.scan.partitions import TopicCatalog
from headrace.scan.read import SplitReader
from headrace.scan.tables.appending import CommitOutcome
from headrace.scan.tables.looking import TableReader
from headrace.scan.tables.reading import TableAddress, duckdb_lines
from headrace.scan.tables.worker import TableRound
from headrace.spark.tables.application import require_pyspark
from headrace.spark.tables.worker import SparkTables, SparkTableWorker
from headrace.storage.errors import InvalidError
from headrace.storage.objects.open import StoreOptions
from headrace.storage.records.codec import Record, encode_batch
from tests.scan.tables.duckdb_reader import rows_by_duckdb
from tests.scan.tables.history import TableHistory
from tests.scan.tables.world import Killed, Tables
from tests.spark.world import TIME_MS, ScanWorld

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.requirement("X11")


@pytest.fixture
def tables(world: ScanWorld, tmp_path: Path) -> Tables:
    return Tables(world, tmp_path / "iceberg")


@asynccontextmanager
async def driver(spark: SparkSession, tables: Tables, split_bytes: int = 250) -> AsyncIterator[SparkTableWorker]:
    """A driver's process; a split has half of what the topic has, or less."""
    world = tables.world
    reader = SplitReader(world.store, pin_hint="")
    cluster = ScannedCluster(world.postgres, world.store, world.clock, world.rng)
    bucket = BucketAddress(world.bucket.as_uri(), StoreOptions())
    use = SparkTables(open=lambda: spark, bucket=bucket, split_bytes=split_bytes, chunk_splits=100)
    look = TableReader(cluster, TopicCatalog(world.postgres), tables.catalog)
    try:
        yield SparkTableWorker(look, reader, formats=tables.formats, spark=use)
    finally:
        await asyncio.to_thread(reader._loop.close)


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
        loop = asyncio.get_running_loop()
        tables.failing.before_commit = lambda: asyncio.run_coroutine_threadsafe(tables.again().round(), loop).result()
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


async def test_columns_and_dead_letters_are_those_of_the_local_worker(
    world: ScanWorld, tables: Tables, spark: SparkSession
) -> None:
    a, b = await world.topic("orders", 2)
    for name in ("by_spark", "locally"):
        await tables.create("orders", name=name, values=("json",))
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
    assert tables.dead("by_spark") == tables.dead("locally")
    assert len(tables.dead("by_spark")) == 6
    assert tables.load("by_spark").schema() == tables.load("locally").schema()


class InTurn(Tables):
    """Each round is one of Spark's driver or of the local worker, by chance."""

    spark: SparkSession
    rng: random.Random

    async def round(self, name: str = "orders", chunk_bytes: int = 1 << 26) -> TableRound:
        if self.rng.random() < 0.5:
            return await super().round(name, chunk_bytes)
        async with driver(self.spark, self, split_bytes=1) as worker:
            return await worker.keep(name)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_drivers_that_are_killed_and_local_workers_append_each_record_once(
    world: ScanWorld, tmp_path: Path, spark: SparkSession, seed: int
) -> None:
    tables = InTurn(world, tmp_path / "iceberg")
    tables.spark, tables.rng = spark, random.Random(seed)
    await TableHistory(world, tables, random.Random(seed)).tell()


def test_a_pyspark_that_is_not_supported_is_named() -> None:
    require_pyspark("4.0.0")
    require_pyspark("4.3.1.dev0")
    with pytest.raises(InvalidError, match=r"PySpark 3\.5\.6 is not supported"):
        require_pyspark("3.5.6")
