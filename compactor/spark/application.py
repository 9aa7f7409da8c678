"""The application for spark-submit: runs large compaction jobs until none is due, then exits.

No executor is requested before a job is due.

Place: run by a CronJob (deploy/) or by hand; see docs/operate/COMPACTION.md.
    HEADRACE_METASTORE_URL=... HEADRACE_BUCKET=... spark-submit compactor/spark/application.py
Settings come from HEADRACE_* variables, on the driver and on executors: no secret is in arguments, in Spark's plans
or in its event log.
Invariant: as handler.py. SIGTERM returns the job to the queue.
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

from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession

from headrace.compactor.compact import LARGE_KIND
from headrace.compactor.job_metrics import JobMetrics
from headrace.compactor.merge import MergeLimits
from headrace.compactor.pace import pace
from headrace.compactor.runner import LEASE_MS, JobRunner
from headrace.compactor.spark.handler import SparkCompactor
from headrace.compactor.worker import REQUESTS_PER_S
from headrace.config.cluster_values import in_force
from headrace.config.errors import ConfigError
from headrace.config.load import load
from headrace.config.settings import Settings
from headrace.metastore.api.jobs import JobApi
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.setting_reporter import SPARK, SettingReporter
from headrace.storage.clock import Clock, SystemClock
from headrace.storage.cluster_properties import require_formatted
from headrace.storage.errors import HeadraceError
from headrace.storage.objects.open import StoreOptions, open_store

PART_BYTES = 128 * 1024 * 1024

logger = logging.getLogger(__name__)


def main(argv: list[str] | None = None) -> int:
    """0 if no job is left; 1, with one line, if it cannot start."""
    parser = argparse.ArgumentParser(prog="spark-submit application.py", description=__doc__)
    parser.add_argument("--part-bytes", type=int, default=PART_BYTES, help="live bytes that one task merges")
    parser.add_argument(
        "--lease-ms",
        type=int,
        default=LEASE_MS,
        help="another driver may take a job this long after its driver crashed",
    )
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        settings = load(environ=os.environ)
        asyncio.run(work(settings, part_bytes=args.part_bytes, lease_ms=args.lease_ms))
        return 0
    except (ConfigError, HeadraceError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


async def work(settings: Settings, *, part_bytes: int, lease_ms: int) -> None:
    """Run every job that is due, one after another. InvalidError if the bucket is not of the metastore's cluster."""
    clock, rng = SystemClock(), random.Random()
    metastore = await PostgresMetastore.open(settings.metastore_url, settings)
    try:
        store = open_store(settings.bucket, StoreOptions.of(settings), clock=clock, rng=rng)
        try:
            await require_formatted(store, metastore.cluster_id)
        finally:
            await store.close()
        reporter = SettingReporter(metastore, settings, [SPARK], clock, rng, CollectorRegistry())
        if not any(jobs.kind == LARGE_KIND and jobs.overdue_ms for jobs in await metastore.count_jobs()):
            logger.info("no large job is due: spark is not started")
            return
        cluster = await metastore.cluster_configs()
        wanted = pace(EffectiveConfigs(settings), cluster)
        await reporter.start()
        spark = SparkSession.builder.appName("headrace-compaction").getOrCreate()
        try:
            compactor = SparkCompactor(
                spark,
                part_bytes=part_bytes,
                limits=MergeLimits.of(in_force(settings, cluster)),
                bytes_per_s=wanted.bytes_per_s,
                requests_per_s=REQUESTS_PER_S,
            )
            await drain(metastore, compactor, clock, rng, lease_ms=lease_ms)
        finally:
            spark.stop()
            await reporter.stop()
    finally:
        await metastore.close()


async def drain(
    metastore: JobApi, compactor: SparkCompactor, clock: Clock, rng: random.Random, *, lease_ms: int
) -> None:
    """Run jobs until no job is due, or until SIGTERM."""
    runner = JobRunner(
        metastore,
        {LARGE_KIND: compactor.handle},
        clock,
        rng,
        JobMetrics(clock, CollectorRegistry()),
        worker=f"spark-{socket.gethostname()}-{os.getpid()}",
        lease_ms=lease_ms,
    )
    draining = asyncio.ensure_future(runner.drain())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, draining.cancel)
    try:
        await draining
    except asyncio.CancelledError:
        logger.warning("stopped: the job was returned to the queue")


if __name__ == "__main__":
    sys.exit(main())
