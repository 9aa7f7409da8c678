"""File ids that the driver reserves per file and attempt, before Spark's tasks store anything; storing under them.

Place: under source.py and cleaning.py on the driver, and in executors' Python workers.
Invariant: at level 1 of remote.log.metadata.compaction an executor stores under reserved ids only, each of them once,
so the cleanup finds every object of an attempt that Spark does not report: its id has a row without a key. Ids are
valid as long as the driver's lease; the driver refuses a file under another id before it swaps. The path without
reserved ids goes in the next release, which needs level 1 (docs/operate/UPGRADES.md).
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence

from pyspark import TaskContext
from pyspark.sql import SparkSession

from headrace.compactor.merge import MergedFile
from headrace.compactor.take_over import store_merged
from headrace.metastore.api.compaction import NewFile
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.segments import SegmentApi
from headrace.storage.errors import AlreadyExistsError, UnavailableError
from headrace.storage.file_id import new_file_id
from headrace.storage.objects.store import ObjectStore

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
