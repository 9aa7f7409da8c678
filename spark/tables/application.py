"""The command `headrace-spark-tables`: brings Iceberg tables up to their topics, with upkeep, then ends.

Place: run by the chart's CronJob (deploy/helm/) or manually; see docs/start/TABLES.md.

    HEADRACE_METASTORE_URL=... HEADRACE_BUCKET=... HEADRACE_TABLES_CATALOG_NAME=... headrace-spark-tables
    ... spark-submit "$(headrace-spark-tables --application)"

It appends to tables, or merges into those with a row per key. No executor is requested before a table lacks more
than one task's worth of records. Upkeep has the jobs, steps and commits of the role `tables` (tables/upkeep/); tasks
of Spark write the files of a rewrite, one group each. Settings come from HEADRACE_* variables of the driver;
executors need the credentials of the bucket.
Invariant of upkeep: a task writes the rows of its group, or fails. Files of a job that failed belong to no commit,
and their names say for which table they are.
Invariant: the loop, the rules and the commits are those of the role `tables` (tables/follower.py): both may keep one
table. SIGTERM ends it at once: a commit happens or not.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry
from pyiceberg.manifest import DataFile
from pyspark import __version__ as pyspark_version
from pyspark.sql import SparkSession

from headrace.compactor.spark.driver import add_driver_options, driver_settings, open_session, run_driver
from headrace.config.settings import Settings
from headrace.jobs.runner import JobMetrics, JobRunner, RunnerTerms
from headrace.scan.cluster import BucketAddress, open_cluster
from headrace.scan.partitions import TopicCatalog
from headrace.scan.read import SplitReader
from headrace.spark.short_errors import errors_of_tasks, short_errors
from headrace.spark.tables.worker import SPLIT_BYTES, SparkTables, SparkTableWorker
from headrace.storage.client_text import visible
from headrace.storage.errors import InvalidError
from headrace.storage.supervision import Supervisor
from headrace.tables.catalog import CatalogAddress
from headrace.tables.commit.committing import CommitOutcome
from headrace.tables.commit.data_files import DataFilePlace
from headrace.tables.follower import TableFollower
from headrace.tables.log.chunks import PIN_HINT
from headrace.tables.looking import Condition, TableReader
from headrace.tables.metrics import TableMetrics
from headrace.tables.upkeep.jobs import UpkeepJobs, UpkeepMetrics, UpkeepSchedule
from headrace.tables.upkeep.rewriting import Group, write_group, write_here
from headrace.tables.upkeep.steps import TableUpkeep, UpkeepTerms
from headrace.tables.values.apart.process import OpeningPool
from headrace.tables.values.formats import ValueFormats


def jobs_of(settings: Settings, tables: TableReader, schedule: UpkeepSchedule, use: SparkTables) -> JobRunner:
    """Return what does the jobs that are due."""
    terms, cluster = UpkeepTerms.of(settings), tables.cluster
    batch_bytes = terms.rewrite_bytes * use.chunk_splits
    upkeep = TableUpkeep(tables.catalog, terms, partial(write_on_spark, use.open), batch_bytes)
    work = UpkeepJobs(tables, upkeep, UpkeepMetrics(CollectorRegistry()), cluster.clock)
    metrics = JobMetrics(cluster.clock, CollectorRegistry())
    return JobRunner(
        cluster.metastore.jobs,
        work.handlers(schedule),
        RunnerTerms(f"{socket.gethostname()}-{os.getpid()}"),
        cluster.clock,
        cluster.rng,
        metrics,
        Supervisor(cluster.clock),
    )


def write_on_spark(
    session: Callable[[], SparkSession], place: DataFilePlace, groups: Sequence[Group]
) -> list[DataFile | None]:
    """Write one file for each group, in their order; a single group without an executor. Errors as write_group."""
    if len(groups) == 1:
        return write_here(place, groups)
    context = session().sparkContext
    with errors_of_tasks():
        tasks = context.parallelize([list(group) for group in groups], len(groups))
        return list(tasks.map(lambda group: write_in_task(place, group)).collect())


@short_errors
def write_in_task(place: DataFilePlace, group: Group) -> DataFile | None:
    """Do as write_group, on an executor."""
    return write_group(place, group)


OLDEST_PYSPARK = (4, 0)
DESCRIPTION = """\
Append what is new to the Iceberg tables of topics, and merge it into those with a row per key, large parts on Spark,
until each has everything. Settings come from HEADRACE_* variables: HEADRACE_METASTORE_URL, HEADRACE_BUCKET,
HEADRACE_TABLES_CATALOG_NAME, ... The last line of stdout is a summary.
Exit status 1: a table is stopped or could not be read."""


@dataclass(frozen=True, slots=True)
class TablesRunSummary:
    """What became of the tables. `stopped`: not those that a user paused. `failed`: also if the newest commit had no
    answer.
    """

    following: int
    paused: int
    stopped: int
    failed: int
    refused: int
    """Topics with table.enable=true that get no table."""
    seconds: float
    """With the start of Spark, if it was needed."""

    @property
    def is_well(self) -> bool:
        return not (self.stopped or self.failed or self.refused)

    def __str__(self) -> str:
        return (
            f"tables on spark ended: following={self.following} paused={self.paused} stopped={self.stopped}"
            f" failed={self.failed} refused={self.refused}"
            f" seconds={self.seconds:.1f}"
        )


def main(argv: list[str] | None = None) -> int:
    """0 if each table has what the log had; 1 if one is stopped or failed, or, with one line, if it cannot start."""
    parser = argparse.ArgumentParser(prog="headrace-spark-tables", description=DESCRIPTION)
    parser.add_argument("--split-bytes", type=int, default=SPLIT_BYTES, help="stored bytes that one task appends")
    add_driver_options(parser)
    return run_driver(parser.parse_args(argv), __file__, _run)


def _run(args: argparse.Namespace) -> int:
    require_pyspark(pyspark_version)
    try:
        summary = asyncio.run(work(driver_settings(), args.split_bytes, args.spark_log_level))
    except asyncio.CancelledError:
        print("error: stopped by SIGTERM; the next run continues", file=sys.stderr)
        return 1
    print(visible(str(summary)), flush=True)
    return 0 if summary.is_well else 1


def require_pyspark(version: str) -> None:
    """InvalidError for a version that is not supported. Files are written without Spark's Iceberg runtime, so that
    need not exist for it.
    """
    if tuple(int(each) for each in version.split(".")[:2]) < OLDEST_PYSPARK:
        raise InvalidError(f"PySpark {version} is not supported: headrace-spark-tables runs with 4.0 and newer")


async def work(settings: Settings, split_bytes: int, spark_log_level: str) -> TablesRunSummary:
    """Turns until nothing is left. Errors as open_cluster and CatalogAddress.open."""
    task = asyncio.current_task()
    assert task is not None, "runs in a task"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    opened: list[SparkSession] = []

    def session() -> SparkSession:
        if not opened:
            opened.append(open_session("headrace-tables", spark_log_level))
        return opened[0]

    address, bucket = CatalogAddress.of(settings), BucketAddress.of(settings)
    catalog = await asyncio.to_thread(address.open)
    try:
        async with open_cluster(settings) as cluster:
            reader = SplitReader.open(bucket, cluster.clock, cluster.rng, pin_hint=PIN_HINT)
            url = settings.tables_schema_registry_url
            formats = ValueFormats(url, OpeningPool())
            try:
                tables = TableReader(cluster, TopicCatalog(cluster.metastore.cluster), catalog)
                use = SparkTables(open=session, bucket=bucket, registry_url=url, split_bytes=split_bytes)
                metrics = TableMetrics(CollectorRegistry())
                worker = SparkTableWorker(tables, reader, formats=formats, looked=metrics.looked, spark=use)
                schedule = UpkeepSchedule.of(settings, address, cluster)
                supervisor = Supervisor(cluster.clock, CollectorRegistry())
                follower = TableFollower.of(settings, worker, metrics, supervisor, schedule, math.inf)
                summary = await run(follower)
                await jobs_of(settings, tables, schedule, use).drain()
                return summary
            finally:
                await asyncio.to_thread(formats.close)
                await asyncio.to_thread(reader.close)
    finally:
        await asyncio.to_thread(catalog.close)
        for each in opened:
            each.stop()


async def run(follower: TableFollower) -> TablesRunSummary:
    """Turns until each table has what the log had."""
    began = follower.clock.monotonic()
    while await follower.turn():
        pass
    conditions = [each.condition for each in follower.last.values()]
    outcomes = [each.outcome for each in follower.last.values()]
    return TablesRunSummary(
        following=conditions.count(Condition.FOLLOWING),
        paused=conditions.count(Condition.PAUSED),
        stopped=conditions.count(Condition.STOPPED) + conditions.count(Condition.BLOCKED),
        failed=len(follower.supervisor.problems()) + outcomes.count(CommitOutcome.UNKNOWN),
        refused=len(follower.refused),
        seconds=follower.clock.monotonic() - began,
    )


if __name__ == "__main__":
    sys.exit(main())
