"""A driver's process of `headrace-spark-tables`, and tables that it keeps in turn with the local worker."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from headrace.scan.cluster import BucketAddress, ScannedCluster
from headrace.scan.partitions import TopicCatalog
from headrace.scan.read import SplitReader
from headrace.spark.tables.worker import SparkTables, SparkTableWorker
from headrace.storage.objects.open import StoreOptions
from headrace.tables.looking import TableReader
from headrace.tables.worker import TableRound
from tests.spark.world import ScanWorld
from tests.storage.altered_reads import reads_of
from tests.tables.world import Tables


@asynccontextmanager
async def driver(spark: Any, tables: Tables, split_bytes: int = 250) -> AsyncIterator[SparkTableWorker]:
    """A driver's process; a split has half of what the topic has, or less. `spark`: a session, or LocalTasks."""
    world = tables.world
    reader = SplitReader(reads_of(world.store), pin_hint="")
    cluster = ScannedCluster(world.postgres, world.store, world.clock, world.rng)
    bucket = BucketAddress(world.bucket.as_uri(), StoreOptions())
    use = SparkTables(open=lambda: spark, bucket=bucket, split_bytes=split_bytes, chunk_splits=100)
    look = TableReader(cluster, TopicCatalog(world.postgres.cluster), tables.catalog)
    try:
        yield SparkTableWorker(look, reader, formats=tables.formats, spark=use)
    finally:
        await asyncio.to_thread(reader._loop.close)


class InTurn(Tables):
    """Each round is one of Spark's driver or of the local worker, by chance."""

    def __init__(self, world: ScanWorld, folder: Path, spark: Any, rng: random.Random) -> None:
        super().__init__(world, folder)
        self.spark, self.rng = spark, rng

    async def round(self, name: str = "orders", chunk_bytes: int = 1 << 26) -> TableRound:
        if self.rng.random() < 0.5:
            return await super().round(name, chunk_bytes)
        async with driver(self.spark, self, split_bytes=1) as worker:
            return await worker.keep(name)
