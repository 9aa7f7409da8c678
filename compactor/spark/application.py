"""The command `headrace-spark-compaction`: runs large jobs of merging and cleaning until none is due, prints a summary.

No executor is requested before a job is due.

Place: run by the chart's CronJob (deploy/helm/) or manually; see docs/operate/COMPACTION.md.
    HEADRACE_METASTORE_URL=... HEADRACE_BUCKET=... headrace-spark-compaction
    HEADRACE_METASTORE_URL=... HEADRACE_BUCKET=... spark-submit "$(headrace-spark-compaction --application)"
Settings come from HEADRACE_* variables, on the driver and on executors (driver.py).
Invariant: as source.py. SIGTERM returns the job to the queue. No job is taken from an old primary; the
driver's workers need not compare: what they do with a job of an old server is in that server's index only.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry

from headrace.compactor.cleaning.metrics import CleaningMetrics
from headrace.compactor.cleaning.policy import decode_cleaning
from headrace.compactor.merge import MergeLimits
from headrace.compactor.plan import decode_job
from headrace.compactor.spark.cleaning import SparkCleaner
from headrace.compactor.spark.driver import (
    SharedOutTerms,
    add_driver_options,
    driver_settings,
    open_session,
    run_driver,
)
from headrace.compactor.spark.source import SparkCompactor
from headrace.compactor.worker import REQUESTS_PER_S, pace
from headrace.config.cluster_values import in_force
from headrace.config.settings import Settings
from headrace.jobs.kinds import CLEAN_LARGE, COMPACT_LARGE
from headrace.jobs.lease import Lease
from headrace.jobs.runner import LEASE_MS, JobHandler, JobMetrics, JobRunner, RunnerTerms
from headrace.metastore.api.jobs import Job, JobApi
from headrace.metastore.inline_store import InlineStore
from headrace.metastore.life.own_bucket import require_bucket
from headrace.metastore.life.watch import follow_life
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.process_context import ProcessContext
from headrace.metastore.setting_reporter import SPARK, SettingReporter
from headrace.storage.client_text import visible
from headrace.storage.clock import Clock, SystemClock
from headrace.storage.objects.open import StoreOptions, open_store
from headrace.storage.supervision import Supervisor

KINDS = (COMPACT_LARGE.name, CLEAN_LARGE.name)
PART_BYTES = 128 * 1024 * 1024

DESCRIPTION = """\
Run large jobs of compaction, and of cleaning by key, on Spark until none is due. Settings come from HEADRACE_*
variables of the driver and the executors: HEADRACE_METASTORE_URL, HEADRACE_BUCKET, ... The last line of stdout is a
summary."""

logger = logging.getLogger(__name__)


@dataclass
class SparkRunSummary:
    """What this run did."""

    done: int = 0
    failed: int = 0
    files: int = 0
    """Input files of the merges that are done."""
    partitions: int = 0
    """Partitions of the cleaning jobs that are done."""
    seconds: float = 0.0

    def counting(self, handler: JobHandler, clock: Clock) -> JobHandler:
        """Return a handler that calls `handler` and counts here what became of the job."""

        async def handle(job: Job, lease: Lease) -> None:
            began = clock.monotonic()
            try:
                await handler(job, lease)
            except BaseException:  # a cancelled job counts as failed, too
                self.failed += 1
                raise
            self.done += 1
            if job.kind == CLEAN_LARGE.name:
                self.partitions += len(decode_cleaning(job.payload).tasks)
            else:
                self.files += len(decode_job(job.payload).file_ids)
            self.seconds += clock.monotonic() - began

        return handle

    def __str__(self) -> str:
        return (
            f"compaction on spark ended: jobs_done={self.done} jobs_failed={self.failed} merged_files={self.files}"
            f" cleaned_partitions={self.partitions} seconds={self.seconds:.1f}"
        )


def main(argv: list[str] | None = None) -> int:
    """0 if no job is left; 1, with one line, if it cannot start."""
    parser = argparse.ArgumentParser(prog="headrace-spark-compaction", description=DESCRIPTION)
    parser.add_argument("--part-bytes", type=int, default=PART_BYTES, help="live bytes that one task merges")
    parser.add_argument(
        "--lease-ms",
        type=int,
        default=LEASE_MS,
        help="another driver may take a job this long after its driver crashed",
    )
    add_driver_options(parser)
    return run_driver(parser.parse_args(argv), __file__, _run)


def _run(args: argparse.Namespace) -> int:
    settings = driver_settings()
    summary = asyncio.run(
        work(settings, part_bytes=args.part_bytes, lease_ms=args.lease_ms, spark_log_level=args.spark_log_level)
    )
    print(visible(str(summary)), flush=True)
    return 0


async def work(settings: Settings, *, part_bytes: int, lease_ms: int, spark_log_level: str) -> SparkRunSummary:
    """Run every job that is due, one after another. InvalidError if the bucket is not the metastore's;
    UnavailableError if the bucket names another server as the metastore.
    """
    summary = SparkRunSummary()
    clock, rng = SystemClock(), random.Random()
    metastore = await PostgresMetastore.open(settings.metastore_url, settings)
    try:
        store = open_store(settings.bucket, StoreOptions.of(settings), clock=clock, rng=rng)
        try:
            await require_bucket(metastore.life, store, settings.bucket)
            async with follow_life(metastore.life, store, clock, rng):
                context = ProcessContext(
                    settings=settings,
                    store=InlineStore(store, metastore.inline),
                    metastore=metastore,
                    clock=clock,
                    rng=rng,
                    registry=CollectorRegistry(),
                    supervisor=Supervisor(clock),
                )
                await _run_due(context, summary, part_bytes, lease_ms, spark_log_level)
            return summary
        finally:
            await store.close()
    finally:
        await metastore.close()


async def _run_due(
    context: ProcessContext, summary: SparkRunSummary, part_bytes: int, lease_ms: int, spark_log_level: str
) -> None:
    settings, metastore, clock = context.settings, context.metastore, context.clock
    reporter = SettingReporter(context, [SPARK])
    if not any(jobs.kind in KINDS and jobs.overdue_ms for jobs in await metastore.reports.count_jobs()):
        logger.info("no large job is due: spark is not started")
        return
    cluster = await metastore.cluster.cluster_configs()
    wanted = pace(EffectiveConfigs(settings), cluster)
    known = await metastore.life.known_bucket()
    await reporter.start()
    spark = open_session("headrace-compaction", spark_log_level)
    try:
        terms = SharedOutTerms(
            part_bytes=part_bytes,
            limits=MergeLimits.of(in_force(settings, cluster)),
            bytes_per_s=wanted.bytes_per_s,
            requests_per_s=REQUESTS_PER_S,
            bucket_id="" if known is None else str(known.bucket_id),
        )
        of_cleaning = replace(terms, bytes_per_s=min(wanted.bytes_per_s, wanted.cleaning_bytes_per_s))
        metrics = CleaningMetrics(context.registry)
        compactor = SparkCompactor(spark, terms)
        cleaner = SparkCleaner(spark, metastore, of_cleaning, clock, context.rng, metrics)
        handlers = {
            COMPACT_LARGE.name: summary.counting(compactor.handle, clock),
            CLEAN_LARGE.name: summary.counting(cleaner.handle, clock),
        }
        await drain(metastore.jobs, handlers, clock, context.rng, lease_ms=lease_ms)
    finally:
        spark.stop()
        await reporter.stop()


async def drain(
    metastore: JobApi, handlers: Mapping[str, JobHandler], clock: Clock, rng: random.Random, *, lease_ms: int
) -> None:
    """Run jobs until no job is due, or until SIGTERM."""
    runner = JobRunner(
        metastore,
        handlers,
        RunnerTerms(f"spark-{socket.gethostname()}-{os.getpid()}", lease_ms=lease_ms),
        clock,
        rng,
        JobMetrics(clock, CollectorRegistry()),
        Supervisor(clock),
    )
    draining = asyncio.ensure_future(runner.drain())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, draining.cancel)
    try:
        await draining
    except asyncio.CancelledError:
        logger.warning("stopped: the job was returned to the queue")


if __name__ == "__main__":
    sys.exit(main())
