"""Topics to be read by Spark, with a bucket that its workers reach too; `consumed` is what a Kafka consumer reads."""

from __future__ import annotations

import asyncio
import datetime
import importlib.util
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.metastore.api.jobs import READ_PIN
from headrace.metastore.api.read import ExtentQuery
from headrace.metastore.api.retention import LogStartTarget
from headrace.metastore.api.topics import PartitionGrowth
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.cluster_properties import write_cluster_id
from headrace.storage.file_id import SEGMENTS, file_id_of
from headrace.storage.objects.directory import DirectoryStore
from headrace.storage.records.codec import Record, encode_batch
from headrace.storage.records.compression import Codec
from tests.compactor.test_compact_faults import run_janitor
from tests.compactor.world import CompactionWorld
from tests.fixtures_clouds import CloudBucket
from tests.metastore.sessions import move_time, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import Row

TIME_MS = 1_700_000_000_000
OLD_SECONDS = 80 * 60
"""Old enough to be deleted as soon as a file is dead."""
EPOCH = datetime.datetime(1970, 1, 1)


def has_admission_control() -> bool:
    """Return whether this PySpark asks sources for limited micro-batches (4.2); older ones read all that there is."""
    return importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None


class SeenRow(NamedTuple):
    """A record as a consumer sees it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class ScanWorld(CompactionWorld):
    """Its `options` are those of a reader."""

    def __init__(
        self, metastore: PostgresMetastore, url: str, bucket: Path, seed: int = 0, cloud: CloudBucket | None = None
    ) -> None:
        """Its files are in the directory `bucket`, or on an emulator."""
        super().__init__(metastore, url, seed)
        self.bucket = bucket
        self.place = {"bucket": bucket.as_uri()} if cloud is None else dict(cloud.settings)
        self.store = DirectoryStore(bucket, SystemClock()) if cloud is None else cloud.open()  # type: ignore[assignment]
        self.service = self.new_service()

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, metastore: PostgresMetastore, url: str, folder: Path, cloud: CloudBucket | None = None
    ) -> AsyncIterator[ScanWorld]:
        """A world with an agent, and a bucket, in `folder` or on an emulator, that has the cluster's id."""
        world = cls(metastore, url, folder / "bucket", cloud=cloud)
        await world.begin()
        await write_cluster_id(world.store, metastore.cluster_id)
        try:
            yield world
        finally:
            await world.service.close()
            await world.store.close()

    @property
    def options(self) -> dict[str, str]:
        return {"metastore.url": self.url, **self.place}

    def frame(self, spark: SparkSession, **options: Any) -> DataFrame:
        """A batch read."""
        given = {name: str(value) for name, value in (self.options | options).items() if value is not None}
        return spark.read.format("headrace").options(**given).load()

    async def consumed(self, *topics: str) -> list[SeenRow]:
        """Every record of the topics, in order, through Fetch."""
        image = await load_image(self.postgres.cluster)
        found = []
        for name in topics:
            topic = image.topics_by_name[name]
            for partition in range(len(topic.leader_epochs)):
                key = topic.key(partition)
                assert key is not None
                (start,) = await self.postgres.index.find_extents([ExtentQuery(key, 0, 1)])
                for by_broker, _, record in await self.records(key, start.log_start_offset):
                    what = (record.key, record.value, tuple(record.headers))
                    found.append(SeenRow(name, partition, record.offset, record.timestamp, int(by_broker), *what))
        return sorted(found)

    async def write(  # type: ignore[override] # other arguments than its base's
        self, key: int, number: int, count: int = 3, **options: Any
    ) -> None:
        """A file with one batch; its records contain the number."""
        await self.commit((key, records(number, count, **options)))

    async def delete_records(self, key: int, offset: int) -> None:
        await self.postgres.retention.move_log_starts([LogStartTarget(key, offset)], max_extents=1_000)

    async def grow(self, name: str, partitions: int) -> list[int]:
        """More partitions; the keys of all."""
        topic = (await load_image(self.postgres.cluster)).topics_by_name[name]
        head = await self.postgres.cluster.metadata_head()
        growth = PartitionGrowth(topic.topic_id, len(topic.leader_epochs), partitions)
        assert await self.postgres.topics.create_partitions(head, [growth])
        self.view.image = self.view.head = await load_image(self.postgres.cluster)
        keys = [topic.topic_number << 24 | index for index in range(partitions)]
        for key in keys:
            self.live.setdefault(key, [])
        return keys

    async def orphans(self) -> set[uuid.UUID]:
        """Objects without a row."""
        stored = {file_id_of(info.key) async for info in self.store.list_objects(SEGMENTS)}
        return stored - (await self.file_rows()).keys()

    async def pass_time(self, seconds: float) -> None:
        """Let the metastore's clock be so far ahead of the machine's; the agent knows it then."""
        async with session(self.url) as connection:
            await move_time(connection, seconds)
        async with asyncio.timeout(60):
            while self.service.database_now_ms() < self.clock.wall_ms() + (seconds - 60) * 1_000:
                await self.clock.sleep(0.01)

    async def delete_dead_files(self) -> None:
        """Delete what the janitor may delete now."""
        await run_janitor(self)

    async def pins(self) -> list[int]:
        """Job ids of the read pins."""
        return [job.job_id for job in await self.postgres.reports.list_jobs(100) if job.kind == READ_PIN]

    def files(self) -> set[uuid.UUID]:
        """Return the files in the bucket."""
        return {uuid.UUID(path.name) for path in (self.bucket / SEGMENTS).rglob("*") if path.is_file()}


def records(number: int, count: int = 3, **options: Any) -> bytes:
    """A batch; `number` is in keys, values, headers and times."""
    made = [
        Record(
            n, TIME_MS + number * 1_000 + n, None if n == 1 else b"key-%d" % number, b"value-%d-%d" % (number, n),
            [] if n == 2 else [("h", b"x%d" % number), ("none", None)],
        )
        for n in range(count)
    ]  # fmt: skip
    return encode_batch(made, base_offset=0, **{"codec": Codec.NONE, **options})


def seen(rows: Iterable[Row]) -> list[SeenRow]:
    """Rows of Spark as a consumer's."""
    return sorted(
        SeenRow(
            row.topic,
            row.partition,
            row.offset,
            round((row.timestamp - EPOCH) / datetime.timedelta(milliseconds=1)),
            row.timestampType,
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            tuple((h.key, None if h.value is None else bytes(h.value)) for h in row.headers or ()),
        )
        for row in rows
    )
