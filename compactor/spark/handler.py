"""Runs one large compaction job on Spark: the driver's side.

Place: the handler of job kind "compact-large" in the driver's job loop (application.py).
Invariant: the driver keeps the lease while Spark works; if it is lost, Spark's job is cancelled,
and its remaining commits are refused. If the driver crashes, its lease expires and the next driver
continues the job; the cleanup ends what its executors stored.
"""

from __future__ import annotations

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from headrace.compactor.lease import Lease
from headrace.compactor.merge import MergeLimits
from headrace.compactor.spark.groups import in_group, tasks_at_a_time
from headrace.compactor.spark.reserved import attempts_of_a_task
from headrace.compactor.spark.source import NAME, CompactionSource, Task
from headrace.metastore.api.jobs import Job


class SparkCompactor:
    """Runs jobs of kind "compact-large"."""

    def __init__(
        self,
        spark: SparkSession,
        *,
        part_bytes: int,
        limits: MergeLimits,
        bytes_per_s: float,
        requests_per_s: float,
        source: type[DataSource] = CompactionSource,
    ) -> None:
        """`part_bytes`: approximate live bytes that one task merges. The rates are those of all tasks together."""
        self._spark = spark
        self._part_bytes, self._limits = part_bytes, limits
        self._bytes_per_s, self._requests_per_s = bytes_per_s, requests_per_s
        spark.dataSource.register(source)

    async def handle(self, job: Job, lease: Lease) -> None:
        """Merge and swap. UnavailableError, with Spark's message, if Spark failed."""
        token = lease.token
        tasks = tasks_at_a_time(self._spark)
        task = Task(
            token.job_id,
            token.epoch,
            job.payload.decode(),
            self._part_bytes,
            self._limits.file_bytes,
            self._limits.max_message_bytes,
            self._bytes_per_s / tasks,
            self._requests_per_s / tasks,
            attempts_of_a_task(self._spark),
        )
        encoded = msgspec.json.encode(task).decode()
        await in_group(self._spark, token, "compact segment files", lambda: self._run(encoded))

    def _run(self, task: str) -> None:
        parts = self._spark.read.format(NAME).option("task", task).load()
        parts.write.format(NAME).option("task", task).mode("append").save()
