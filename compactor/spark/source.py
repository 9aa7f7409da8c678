"""The Python data source of compaction: rows are parts of a plan; writing them merges, committing them swaps.

    driver     reader.partitions   the current plan, one Spark partition per part; its segments are started
    executors  reader.read         passes its part on
    executors  writer.write        merges it, stores the files, reports them (Written)
    driver     writer.commit       swaps them in under the job's lease

Place: in Spark's Python workers, on executors and on the driver; SparkCompactor, the handler of job kind
"compact-large" in the driver's job loop (application.py), starts it.
Invariant: before any task runs, the driver reserves an id per file and attempt (reserved.py), and starts the segments
of all files under the ids of the first attempt. The files of an executor are live only after the driver's commit, and
Spark commits one attempt of each task: another attempt's ids are started at the commit, as a retry, and an id that is
not reserved is refused there. Extents that were altered in each read stay where they are: after all swaps the commit
fails, and the job is repeated. What is not reported is the cleanup's. A segment of which an extent cannot be read is
abandoned: the cleanup ends it. The commit is fenced by the job's lease, so a driver that lost the lease changes
nothing; Spark's job is then cancelled. If one of these processes crashes, another attempt, or the next holder of the
job, starts over.
Source: pyspark.sql.datasource (Spark 4).
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, InputPartition, WriterCommitMessage
from pyspark.sql.types import Row, StructType

from headrace.compactor.merge import MergeCounts, MergedFile, MergeLimits, merge
from headrace.compactor.plan import Plan, decode_job, decode_plan, encode, make_plan, outputs, planned_segments
from headrace.compactor.spark.driver import SharedOutTerms, in_group, tasks_at_a_time
from headrace.compactor.spark.parts import split
from headrace.compactor.spark.reserved import PartIds, attempts_of_a_task, reserve, store_reserved
from headrace.compactor.spark.store import one_connection, throttled_store
from headrace.compactor.take_over import Swapper, start, start_segments, store_merged
from headrace.jobs.lease import Lease
from headrace.metastore.api.compaction import DamagedExtent, NewFile, Swap
from headrace.metastore.api.jobs import Job, JobToken
from headrace.metastore.api.segments import SegmentApi
from headrace.storage.clock import SystemClock
from headrace.storage.collector_tuning import tune_collector
from headrace.storage.errors import BadTransferError
from headrace.storage.file_id import new_file_id
from headrace.storage.objects.store import ObjectStore
from headrace.storage.segment.rereading import VerifiedReads

NAME = "headrace_compaction"
SCHEMA = "part string"


class Task(msgspec.Struct, frozen=True):
    """The option `task` that the driver gives this source: a job that it holds, limits in bytes, a task's rates."""

    job_id: int
    epoch: int
    payload: str
    part_bytes: int
    file_bytes: int
    max_message_bytes: int
    bytes_per_s: float
    requests_per_s: float
    attempts: int
    """Ids that a file needs."""
    bucket_id: str = ""
    """The id of the driver's bucket."""


class PlanPart(msgspec.Struct, frozen=True):
    """One row: a part of a plan (JSON), the driver's wall clock when it was made, in ms, and the ids of its files."""

    plan: str
    driver_ms: int
    file_ids: PartIds


class WrittenFile(NamedTuple):
    """A stored file, the swaps of its segments, and whether they have to be started: its id is another attempt's."""

    file: NewFile
    runs: Sequence[Sequence[Swap]]
    is_new: bool


@dataclass(frozen=True)
class WrittenPart(WriterCommitMessage):
    """The result of one task: its files, the extents that are damaged, and the number of those that were altered in
    each read.
    """

    files: Sequence[WrittenFile]
    damaged: Sequence[DamagedExtent]
    altered: int
    batches: int


class CompactionSource(DataSource):
    """`spark.read.format(NAME).option("task", ...).load().write.format(NAME)...save()` runs one job."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return PlanReader(self._task())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return MergeWriter(self._task())

    def _task(self) -> Task:
        return msgspec.json.decode(self.options["task"], type=Task)


class PlanReader(DataSourceReader):
    """A plan of the live extents in the job's files, made when Spark asks for its partitions."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(part) for part in asyncio.run(self._plan())]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        if partition.value is not None:  # Spark's placeholder for no partitions: nothing is live any more
            yield (partition.value,)

    async def _plan(self) -> list[str]:
        job = decode_job(self._task.payload.encode())
        async with one_connection() as metastore:
            plan = make_plan(job.level, await metastore.compaction.live_extents(job.file_ids))
            made_ms = SystemClock().wall_ms()
            return [
                msgspec.json.encode(
                    PlanPart(encode(part).decode(), made_ms, await self._start(metastore.segments, part))
                ).decode()
                for part in split(plan, self._task.part_bytes)
            ]

    async def _start(self, metastore: SegmentApi, part: Plan) -> PartIds:
        """Reserve the ids of the part's files, and start its segments, before any task runs."""
        task, rng, limits = self._task, random.Random(), _limits(self._task)
        token = JobToken(task.job_id, task.epoch)
        files = outputs(part, limits.file_bytes, limits.extent_bytes)
        (ids,) = await reserve(
            metastore,
            token,
            files=[len(files)],
            attempts=task.attempts,
            born_ms=part.made_ms,
            level=part.level,
            rng=rng,
        )
        for output, (first, *_) in zip(files, ids, strict=False):
            await start_segments(metastore, token, first, part.level, planned_segments(output, rng), is_reserved=True)
        return ids


class MergeWriter(DataSourceWriter):
    """Merges on executors, swaps on the driver."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        tune_collector()
        return asyncio.run(self._merge([msgspec.json.decode(row.part, type=PlanPart) for row in iterator]))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        asyncio.run(self._swap([message for message in messages if isinstance(message, WrittenPart)]))

    async def _merge(self, parts: Sequence[PlanPart]) -> WrittenPart:
        clock, rng, task = SystemClock(), random.Random(), self._task
        counts, files = MergeCounts(), []
        async with throttled_store(
            clock, rng, task.bucket_id, bytes_per_s=task.bytes_per_s, requests_per_s=task.requests_per_s
        ) as store:
            reads = VerifiedReads(store, clock, rng)
            for part in parts:
                plan = decode_plan(part.plan.encode())
                async for file in merge(plan, reads, _limits(task), counts):
                    born_ms = plan.made_ms + clock.wall_ms() - part.driver_ms
                    reserved = part.file_ids[file.number] if part.file_ids else ()
                    written = await _stored(store, file, reserved, born_ms, plan.level, rng)
                    planned = outputs(plan, _limits(task).file_bytes, _limits(task).extent_bytes)[file.number]
                    files.append(written if written.is_new else written._replace(runs=_complete(file, planned)))
                    del file  # its bytes, while the next one is built
        return WrittenPart(files, counts.damaged, counts.altered_extents, counts.batches_in)

    async def _swap(self, done: Sequence[WrittenPart]) -> None:
        token = JobToken(self._task.job_id, self._task.epoch)
        async with one_connection() as metastore:
            swapper = Swapper(metastore.compaction, metastore.commit_shards, SystemClock(), random.Random())
            for file, runs, is_new in (each for written in done for each in written.files):
                if is_new:
                    await start(
                        metastore.segments, token, file.file_id, file.level, runs, random.Random(), is_reserved=True
                    )
                async for _ in swapper.swap_in(token, file, runs):
                    pass
            await metastore.compaction.mark_damaged(token, [one for written in done for one in written.damaged])
        if altered := sum(written.altered for written in done):
            raise BadTransferError(f"each read of some extents was altered: extents={altered}")


async def _stored(
    store: ObjectStore,
    file: MergedFile,
    reserved: Sequence[uuid.UUID],
    born_ms: int,
    level: int,
    rng: random.Random,
) -> WrittenFile:
    """Put it under a reserved id; under a new one if files have no keys."""
    if not reserved:
        file_id = new_file_id(born_ms, rng, level)
        named = await store_merged(store, file, file_id=file_id, level=level)
    else:
        named = await store_reserved(store, file, reserved, level)
    return WrittenFile(named, file.runs, is_new=not reserved or named.file_id != reserved[0])


def _complete(file: MergedFile, planned: Plan) -> list[list[Swap]]:
    """The runs that are what was planned, and so what was started."""
    wanted = {
        (segment.partition_key, segment.extents[0].base_offset, segment.extents[-1].last_offset)
        for segment in planned.partitions
    }
    return [run for run in file.runs if (run[0].partition_key, run[0].base_offset, run[-1].last_offset) in wanted]


def _limits(task: Task) -> MergeLimits:
    return MergeLimits(file_bytes=task.file_bytes, max_message_bytes=task.max_message_bytes)


class SparkCompactor:
    """Runs jobs of kind "compact-large"."""

    def __init__(
        self,
        spark: SparkSession,
        terms: SharedOutTerms,
        source: type[DataSource] = CompactionSource,
    ) -> None:
        self._spark, self._terms = spark, terms
        spark.dataSource.register(source)

    async def handle(self, job: Job, lease: Lease) -> None:
        """Merge and swap. UnavailableError, with Spark's message, if Spark failed."""
        token = lease.token
        tasks = tasks_at_a_time(self._spark)
        task = Task(
            token.job_id,
            token.epoch,
            job.payload.decode(),
            self._terms.part_bytes,
            self._terms.limits.file_bytes,
            self._terms.limits.max_message_bytes,
            self._terms.bytes_per_s / tasks,
            self._terms.requests_per_s / tasks,
            attempts_of_a_task(self._spark),
            self._terms.bucket_id,
        )
        encoded = msgspec.json.encode(task).decode()
        await in_group(self._spark, token, "compact segment files", lambda: self._run(encoded))

    def _run(self, task: str) -> None:
        parts = self._spark.read.format(NAME).option("task", task).load()
        parts.write.format(NAME).option("task", task).mode("append").save()
