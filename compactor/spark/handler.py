"""One large compaction job on Spark: the driver's side.

Place: the handler of job kind "compact-large" in the driver's job loop (application.py).
Invariant: the lease is kept by the driver while Spark works; once it is lost, Spark's job is cancelled,
and what it could still commit is refused. If the driver dies, its lease runs out and the job goes on
with the next driver; what its executors had stored is swept.
"""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from headrace.compactor.lease import Lease
from headrace.compactor.spark.source import NAME, CompactionSource, Task
from headrace.metastore.jobs import Job
from headrace.storage.errors import UnavailableError


class SparkCompactor:
    """Carries out jobs of kind "compact-large"."""

    def __init__(
        self,
        spark: SparkSession,
        *,
        part_bytes: int,
        file_bytes: int,
        bytes_per_s: float,
        requests_per_s: float,
        source: type[DataSource] = CompactionSource,
    ) -> None:
        """`part_bytes`: live bytes that one task merges, about. The rates are those of all tasks together."""
        self._spark = spark
        self._part_bytes, self._file_bytes = part_bytes, file_bytes
        self._bytes_per_s, self._requests_per_s = bytes_per_s, requests_per_s
        spark.dataSource.register(source)

    async def handle(self, job: Job, lease: Lease) -> None:
        """Merge and swap. UnavailableError, with Spark's words, when Spark gave up."""
        token = lease.token
        tasks = tasks_at_a_time(self._spark)
        task = Task(
            token.job_id,
            token.epoch,
            job.payload.decode(),
            self._part_bytes,
            self._file_bytes,
            self._bytes_per_s / tasks,
            self._requests_per_s / tasks,
        )
        group = f"headrace-{token.job_id}-{token.epoch}"
        work = asyncio.ensure_future(asyncio.to_thread(self._run, group, msgspec.json.encode(task).decode()))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            self._spark.sparkContext.cancelJobGroup(group)
            with contextlib.suppress(UnavailableError):
                await work
            raise

    def _run(self, group: str, task: str) -> None:
        """On a thread of its own: Spark's calls block."""
        # Writers are looked up in the thread's active session, which only the thread that made it has.
        assert self._spark._jvm is not None
        self._spark._jvm.SparkSession.setActiveSession(self._spark._jsparkSession)
        self._spark.sparkContext.setJobGroup(group, "compact segment files", interruptOnCancel=True)
        try:
            parts = self._spark.read.format(NAME).option("task", task).load()
            parts.write.format(NAME).option("task", task).mode("append").save()
        except PySparkException as error:
            raise UnavailableError(f"spark gave up: {error}") from error


def tasks_at_a_time(spark: SparkSession) -> int:
    """What the executors are asked for, whether they are all up yet or not; else as many as Spark knows of."""
    conf = spark.sparkContext.getConf()
    instances = conf.get("spark.executor.instances")
    if instances is None:
        return spark.sparkContext.defaultParallelism
    return max(1, int(instances) * int(conf.get("spark.executor.cores") or 1))
