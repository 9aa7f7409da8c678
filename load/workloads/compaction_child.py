"""Runs one job of load/benchmarks/spark_compaction.py in a separate process, so that its CPU and memory can be read.

    python -m load.workloads.compaction_child local|spark PART_BYTES        with HEADRACE_METASTORE_URL and
    HEADRACE_BUCKET
Prints `ready` when it has started (Spark's JVM included), waits for a line, runs the job that is due, prints `done` and
how many records were removed, and waits for another line.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from prometheus_client import CollectorRegistry

from headrace.compactor.cleaning.job import Cleaner, CleaningTerms
from headrace.compactor.cleaning.metrics import CleaningMetrics
from headrace.compactor.compact import CompactionMetrics, Compactor
from headrace.compactor.merge import MergeLimits
from headrace.config.load import load
from headrace.config.settings import Settings
from headrace.jobs.kinds import CLEAN, CLEAN_LARGE, COMPACT, COMPACT_LARGE
from headrace.jobs.lease import Lease
from headrace.jobs.runner import JobHandler
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.collector_tuning import tune_collector
from headrace.storage.objects.directory import DirectoryStore
from load.workloads.compaction_inputs import LEASE_MS

NO_LIMIT = 1e12


def main(side: str, part_bytes: str) -> None:
    """One job."""
    asyncio.run(run(side, int(part_bytes), load(environ=os.environ)))


async def run(side: str, part_bytes: int, settings: Settings) -> None:
    metastore = await PostgresMetastore.open(settings.metastore_url, settings)
    registry = CollectorRegistry()
    handlers = local(metastore, settings, registry) if side == "local" else spark(metastore, part_bytes, registry)
    tune_collector()
    _wait("ready")
    job = await metastore.jobs.claim_job("bench", list(handlers), LEASE_MS)
    assert job is not None
    clock = SystemClock()
    lease = Lease(metastore.jobs, job, clock, claimed_at=clock.monotonic(), lease_ms=LEASE_MS)
    await handlers[job.kind](job, lease)
    await metastore.jobs.finish_job(job.token)
    removed = registry.get_sample_value("headrace_log_cleaner_removed_records_total", {"reason": "superseded"})
    _wait(f"done {removed or 0:.0f}")
    await metastore.close()


def local(metastore: PostgresMetastore, settings: Settings, registry: CollectorRegistry) -> dict[str, JobHandler]:
    """The handlers of a worker."""
    clock, rng = SystemClock(), random.Random(2)
    store = DirectoryStore(Path(unquote(urlparse(settings.bucket).path)), clock)
    shards, limits = metastore.commit_shards, MergeLimits()
    compactor = Compactor(store, metastore, shards, limits, clock, rng, CompactionMetrics(registry))
    buffer_bytes = settings.log_cleaner_dedupe_buffer_size
    cleaner = Cleaner(
        store, metastore, shards, CleaningTerms(limits, buffer_bytes), clock, rng, CleaningMetrics(registry)
    )
    return {COMPACT.name: compactor.handle, CLEAN.name: cleaner.handle}


def spark(metastore: PostgresMetastore, part_bytes: int, registry: CollectorRegistry) -> dict[str, JobHandler]:
    """The handlers of headrace-spark-compaction, in local mode with two tasks."""
    from headrace.compactor.spark.cleaning import SparkCleaner
    from headrace.compactor.spark.driver import SharedOutTerms
    from headrace.compactor.spark.source import SparkCompactor
    from load.workloads.spark_session import local_session

    session = local_session("headrace-bench", memory="1g")
    session.range(10).mapInArrow(_same, "id bigint").collect()  # Spark compiles and starts its workers
    terms = SharedOutTerms(part_bytes=part_bytes, limits=MergeLimits(), bytes_per_s=NO_LIMIT, requests_per_s=NO_LIMIT)
    compactor = SparkCompactor(session, terms)
    cleaner = SparkCleaner(session, metastore, terms, SystemClock(), random.Random(2), CleaningMetrics(registry))
    return {COMPACT_LARGE.name: compactor.handle, CLEAN_LARGE.name: cleaner.handle}


def _same(batches: Iterator[Any]) -> Iterator[Any]:
    return batches


def _wait(line: str) -> None:
    print(line, flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
