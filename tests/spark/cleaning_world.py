"""Two compacted partitions with the same records: a local worker cleans one, Spark the other.

Their passes begin at the same time on the database's clock, so horizons can be compared as well.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from prometheus_client import CollectorRegistry

from headrace.compactor.cleaning.job import Cleaner, CleaningTerms, large_job
from headrace.compactor.cleaning.metrics import CleaningMetrics
from headrace.compactor.cleaning.policy import CleaningJob, CleaningTask, decode_cleaning, encode_cleaning
from headrace.compactor.merge import MergeLimits
from headrace.jobs.kinds import CLEAN, CLEAN_LARGE
from headrace.metastore.api.files import FileState
from headrace.metastore.api.jobs import Job
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.file_id import SEGMENTS, object_key
from headrace.storage.objects.directory import DirectoryStore
from headrace.storage.records.codec import Record, decode_records, encode_batch
from headrace.storage.records.compression import Codec
from headrace.storage.records.header import read_header
from tests.compactor.cleaning.world import CleaningWorld
from tests.compactor.leftovers import end_leftovers
from tests.compactor.world import LEASE_MS
from tests.manual_clock import ManualClock
from tests.metastore.sessions import rows, session
from tests.nouns import NOUNS, flat

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.compactor.spark.cleaning import SparkCleaner

HOUR_MS = 3_600_000
EAGER = {
    "cleanup_policy": "compact",
    "segment_ms": str(HOUR_MS),
    "min_cleanable_dirty_ratio": "0.01",
    "delete_retention_ms": str(2 * HOUR_MS),
}
SMALL = MergeLimits(file_bytes=400, extent_bytes=300, batch_bytes=200)
"""Several files for a part."""
PART_BYTES = 500


class Seen(NamedTuple):
    """What a reader sees of a partition, and what the metastore keeps about it."""

    records: list[tuple[bool, int, Record]]
    horizons: dict[int, int | None]
    """Horizons of the batch of each delete marker, by the marker's offset."""
    cleaned_offset: int
    first_horizon_ms: int | None
    uncleanable: bool


class SameTime:
    """The metastore, to a pass that begins at `now_ms`; before the `stop_at`-th swap its process ends."""

    def __init__(
        self,
        metastore: PostgresMetastore,
        now_ms: int,
        stop_at: int = 0,
        before_swap: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._metastore, self._now_ms, self._left = metastore, now_ms, stop_at
        self._before_swap = before_swap

    async def cleanable_extents(self, ends: Any) -> Any:
        return self._now_ms, (await self._metastore.cleaning.cleanable_extents(ends))[1]

    async def swap_cleaned_extents(self, *given: Any) -> Any:
        self._left -= 1
        if not self._left:
            raise DriverEnded
        if self._before_swap is not None:
            await self._before_swap()
        return await self._metastore.cleaning.swap_cleaned_extents(*given)

    def __getattr__(self, name: str) -> Any:
        if name in NOUNS:
            return self
        return getattr(flat(self._metastore), name)


class DriverEnded(BaseException):
    """The driver's process ended here."""


class SparkCleaningWorld(CleaningWorld):
    """A bucket that Spark's own processes reach too."""

    def __init__(
        self, metastore: PostgresMetastore, url: str, bucket: Path, spark: SparkSession, seed: int = 0
    ) -> None:
        super().__init__(metastore, url, seed)
        self.bucket, self.spark = bucket, spark
        self.use(DirectoryStore(bucket, SystemClock()), {"HEADRACE_BUCKET": bucket.as_uri()})

    @property
    def environment(self) -> dict[str, str]:
        """Environment for Spark's driver and executors."""
        return {
            "HEADRACE_METASTORE_URL": self.url,
            "HEADRACE_BUCKET": self.bucket.as_uri(),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def use(self, store: Any, environment: dict[str, str]) -> None:
        """This bucket. Spark's Python workers are started again if their environment changes."""
        self.store = store
        self.spark.sparkContext.environment.update(environment)
        self.service = self.new_service()

    async def pair(self, name: str, **over: str) -> tuple[int, int]:
        """(the partition for the local worker, that for Spark)."""
        (local,) = await self.topic(f"{name}-local", 1, **{**EAGER, **over})
        (large,) = await self.topic(f"{name}-spark", 1, **{**EAGER, **over})
        return local, large

    async def write_both(self, pair: tuple[int, int], records: list[tuple[str | None, bool]], **options: Any) -> None:
        """One batch to each: (key, whether it has a value)."""
        now_ms = self.now_ms()
        encoded = [
            Record(n, now_ms + n, None if k is None else k.encode(), b"v%d " % n * 5 if has_value else None)
            for n, (k, has_value) in enumerate(records)
        ]
        batch = encode_batch(encoded, base_offset=0, **options)
        await self.commit(*((key, batch) for key in pair))

    async def write_at_random(self, pair: tuple[int, int], rng: random.Random, batches: int) -> None:
        """Keys again and again, delete markers, records without a key; codecs and leader epochs change."""
        for number in range(batches):
            keys = [*(f"k{n}" for n in range(6)), None]
            records = [(rng.choice(keys), rng.random() < 0.75) for _ in range(rng.randint(1, 5))]
            codec = rng.choice([Codec.NONE, Codec.NONE, Codec.LZ4, Codec.GZIP])
            await self.write_both(pair, records, codec=codec, log_append_time=rng.random() < 0.2)
            if rng.random() < 0.1:
                for key in pair:
                    await self.raise_epoch(key, 1 + number)

    async def due(self) -> dict[int, CleaningTask]:
        """Return what the planner would clean now, by partition; its jobs are ended."""
        await self.plan_all()
        tasks: list[CleaningTask] = []
        while (job := await self.postgres.jobs.claim_job("test", [CLEAN.name], LEASE_MS)) is not None:
            tasks += decode_cleaning(job.payload).tasks
            await self.postgres.jobs.finish_job(job.token)
        return {task.partition_key: task for task in tasks}

    async def clean_here(self, task: CleaningTask, now_ms: int, limits: MergeLimits = SMALL) -> None:
        """A pass of the local worker, with room for all keys."""
        await self.postgres.jobs.enqueue_jobs([CLEAN.once("here", encode_cleaning(CleaningJob((task,))))])
        job = await self._claimed(CLEAN.name)
        await self.local(SameTime(self.postgres, now_ms), limits).handle(job, self.lease(job))
        await self.postgres.jobs.finish_job(job.token)

    def local(self, metastore: Any, limits: MergeLimits, buffer_bytes: int = 1 << 24) -> Cleaner:
        """A local worker."""
        self.job_registry = CollectorRegistry()
        return Cleaner(
            *(self.store, metastore, self.postgres.commit_shards, CleaningTerms(limits, buffer_bytes)),
            *(ManualClock(), self.rng, CleaningMetrics(self.job_registry)),
        )

    async def clean_on_spark(
        self,
        task: CleaningTask,
        now_ms: int,
        stop_at: int = 0,
        before_swap: Callable[[], Awaitable[None]] | None = None,
        **over: Any,
    ) -> None:
        """A pass on Spark."""
        await self.postgres.jobs.enqueue_jobs([large_job(task)])
        job = await self._claimed(CLEAN_LARGE.name)
        metastore = SameTime(self.postgres, now_ms, stop_at, before_swap)
        await self.on_spark(metastore, **over).handle(job, self.lease(job))
        await self.postgres.jobs.finish_job(job.token)

    async def claimed(self, kind: str) -> Job:
        """The next job of this kind."""
        return await self._claimed(kind)

    async def claimed_large(self) -> Job:
        """The cleaning job for Spark."""
        return await self._claimed(CLEAN_LARGE.name)

    async def take_large_job(self) -> None:
        """Another driver takes the job after its lease."""
        await self.wait(0.05)
        await self.claimed_large()

    def on_spark(self, metastore: Any, **over: Any) -> SparkCleaner:
        """A driver, with several parts for a partition."""
        from headrace.compactor.spark.cleaning import SparkCleaner
        from headrace.compactor.spark.driver import SharedOutTerms

        self.job_registry = CollectorRegistry()
        programs = {name: over.pop(name) for name in ("scan", "rewrite") if name in over}
        plain = {"part_bytes": PART_BYTES, "limits": SMALL, "bytes_per_s": 1e9, "requests_per_s": 1e4}
        cleaner = SparkCleaner(
            self.spark,
            metastore,
            SharedOutTerms(**{**plain, **over}),
            ManualClock(round(self.clock.wall_ms())),
            self.rng,
            CleaningMetrics(self.job_registry),
        )
        for name, program in programs.items():
            setattr(cleaner, name, program)
        return cleaner

    async def view_of(self, key: int) -> Seen:
        """Return what is there now."""
        horizons = {}
        for batch in await self.batches(key):
            for record in decode_records(memoryview(batch)):
                if record.value is None and record.key is not None:
                    horizons[record.offset] = read_header(batch).delete_horizon_ms
        state = await self.state(key)
        uncleanable = state.uncleanable_ms is not None
        return Seen(await self.records(key), horizons, state.cleaned_offset, state.horizon_ms, uncleanable)

    async def objects(self) -> set[str]:
        """Keys of all segment files in the bucket."""
        return {info.key async for info in self.store.list_objects(SEGMENTS)}

    async def named(self) -> set[str]:
        """Keys of the files that have a row and are neither condemned nor only reserved."""
        found, ended = await self.file_rows(), (FileState.CONDEMNED, FileState.RESERVED)
        return {object_key(file_id) for file_id, row in found.items() if row["state"] not in ended}

    async def clean_up(self) -> None:
        """Let the cluster end what nothing became of, without the sweeper."""
        self.hours = await end_leftovers(self, self.hours * 3600) / 3600
        assert not await self.ask("SELECT FROM file_reservations"), "their leases are over"

    async def ask(self, query: str) -> list[tuple[Any, ...]]:
        """Rows of the metastore."""
        async with session(self.url) as raw:
            return await rows(raw, query)

    async def check_reserved(self) -> None:
        """Every object had a reserved id before it was stored: it has a row."""
        has_row = {object_key(file_id) for file_id in await self.file_rows()}
        assert await self.objects() <= has_row, "an object that only the sweeper finds"
