"""The parts of a job that executors work on, with the connections of an executor, its file ids.

Place: between the plan and Spark's partitions, on the driver, and under source.py and cleaning_tasks.py in Spark's
Python workers. The driver reserves file ids per file and attempt, before Spark's tasks store anything.
Invariant of parts: each partition of the plan is completely in one part and in order, so the files of all parts
together hold the same as one merge of the whole plan.
Invariant of connections: settings come from HEADRACE_* variables of the worker, never from Spark's plans or logs.
Invariant of file ids: at level 1 of remote.log.metadata.compaction an executor stores under reserved ids only, each
of them once, so the cleanup finds every object of an attempt that Spark does not report: its id has a row without a
key. Ids are valid as long as the driver's lease; the driver refuses a file under another id before it swaps. The
path without reserved ids goes in the next release, which needs level 1 (docs/operate/UPGRADES.md).
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

import msgspec
from pyspark import TaskContext
from pyspark.sql import SparkSession

from headrace.compactor.merge import MergedFile
from headrace.compactor.plan import PartitionPlan, Plan
from headrace.compactor.take_over import store_merged
from headrace.config.load import load
from headrace.config.settings import Settings
from headrace.metastore.api.compaction import NewFile
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.read import Extent
from headrace.metastore.api.segments import SegmentApi
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.bucket_properties import read_bucket_id
from headrace.storage.clock import Clock
from headrace.storage.errors import AlreadyExistsError, InvalidError, UnavailableError
from headrace.storage.file_id import new_file_id
from headrace.storage.objects.open import StoreOptions, open_store
from headrace.storage.objects.store import ObjectStore
from headrace.storage.objects.throttled import ThrottledStore


def split(plan: Plan, part_bytes: int) -> list[Plan]:
    """Parts of about `part_bytes` live bytes, in the plan's order; a larger partition is a part by itself."""
    parts: list[list[PartitionPlan]] = []
    room = 0
    for partition in plan.partitions:
        size = sum(extent.length for extent in partition.extents)
        if not parts or room < size:
            parts.append([])
            room = part_bytes
        parts[-1].append(partition)
        room -= size
    return [msgspec.structs.replace(plan, partitions=tuple(part)) for part in parts]


def split_extents(extents: Iterable[Extent], part_bytes: int) -> list[tuple[Extent, ...]]:
    """Parts of about `part_bytes` each, of consecutive extents; a larger extent is a part by itself."""
    parts: list[list[Extent]] = []
    room = 0
    for extent in extents:
        if not parts or room < extent.length:
            parts.append([])
            room = part_bytes
        parts[-1].append(extent)
        room -= extent.length
    return [tuple(part) for part in parts]


@asynccontextmanager
async def throttled_store(
    clock: Clock, rng: random.Random, bucket_id: str, *, bytes_per_s: float, requests_per_s: float
) -> AsyncIterator[ObjectStore]:
    """The bucket, at a task's rates. InvalidError if it has another id; empty: the metastore knows none yet."""
    settings = _settings()
    options = StoreOptions.of(settings)
    store = ThrottledStore(
        open_store(settings.bucket, options, clock=clock, rng=rng),
        bytes_per_s=bytes_per_s,
        requests_per_s=requests_per_s,
        clock=clock,
    )
    try:
        if bucket_id and str(await read_bucket_id(store)) != bucket_id:
            raise InvalidError(
                f"the driver has another bucket than this executor: correct HEADRACE_BUCKET: id={bucket_id}"
            )
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def one_connection() -> AsyncIterator[PostgresMetastore]:
    """The metastore, of the driver's environment."""
    settings = msgspec.structs.replace(_settings(), metastore_pool_size=1)
    metastore = await PostgresMetastore.open(settings.metastore_url, settings)
    try:
        yield metastore
    finally:
        await metastore.close()


def _settings() -> Settings:
    return load(environ=os.environ)


TASK_FAILURES = 4
"""Spark's default of spark.task.maxFailures."""
SPARE = 1
"""Spare ids for a stage that Spark runs again: its tasks count their attempts from 0."""
IDS_PER_CALL = 1_000

PartIds = tuple[tuple[uuid.UUID, ...], ...]
"""The ids of a part: by file, then by attempt. Empty if files have no keys."""


def attempts_of_a_task(spark: SparkSession) -> int:
    """Return how many ids a file needs: Spark starts a task this often, and once more if it speculates."""
    conf = spark.sparkContext.getConf()
    speculates = (conf.get("spark.speculation") or "false").lower() == "true"
    return int(conf.get("spark.task.maxFailures") or TASK_FAILURES) + speculates + SPARE


async def reserve(
    metastore: SegmentApi,
    token: JobToken,
    *,
    files: Sequence[int],
    attempts: int,
    born_ms: int,
    level: int,
    rng: random.Random,
) -> list[PartIds]:
    """Reserve an id for each file and attempt, and return them by part. `files`: the number of files of each part.

    The ids of each part are empty if files have no keys. FencedError if the lease is lost.
    """
    parts: list[PartIds] = []
    for file_count in files:
        ids_by_file = [tuple(new_file_id(born_ms, rng, level) for _ in range(attempts)) for _ in range(file_count)]
        parts.append(tuple(ids_by_file))
    all_ids = [file_id for part in parts for ids_of_file in part for file_id in ids_of_file]
    for first in range(0, len(all_ids), IDS_PER_CALL):
        files_have_keys = await metastore.reserve_files(token, all_ids[first : first + IDS_PER_CALL], level)
        if not files_have_keys:
            return [() for _ in parts]
    return parts


async def store_reserved(store: ObjectStore, file: MergedFile, ids: Sequence[uuid.UUID], level: int) -> NewFile:
    """Put it under the id of this attempt, or the next one under which nothing is stored. UnavailableError if there
    is none.
    """
    context = TaskContext.get()
    first = context.attemptNumber() % len(ids) if context is not None else 0
    for file_id in (*ids[first:], *ids[:first]):
        try:
            return await store_merged(store, file, file_id=file_id, level=level, if_absent=True)
        except AlreadyExistsError:
            continue
    raise UnavailableError(f"every reserved id of a file was used: attempts={len(ids)}")
