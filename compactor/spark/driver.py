"""What the commands that start Spark have in common: options, log, errors, the session, work for one job.

Place: under headrace-spark-compaction (application.py) and headrace-spark-tables (spark/tables/application.py), in
the driver's process. The handlers of both job kinds (source.py, cleaning.py) run Spark's work under the lease of
their job.
Invariant: settings come from HEADRACE_* variables: no secret is in arguments, in Spark's plans or in its event log.
Invariant of work under a lease: when `in_group` raises CancelledError, Spark has ended the work; none of it reaches
the metastore later.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.compactor.merge import MergeLimits
from headrace.config.cluster_values import settings_that_go
from headrace.config.errors import ConfigError
from headrace.config.load import load
from headrace.config.settings import Settings
from headrace.metastore.api.jobs import JobToken
from headrace.storage.client_text import visible
from headrace.storage.errors import HeadraceError, UnavailableError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOutTerms:
    """How a driver shares a job out to tasks."""

    part_bytes: int
    """Approximate live bytes that one task reads."""
    limits: MergeLimits
    bytes_per_s: float
    """This rate and the next one are those of all tasks together."""
    requests_per_s: float
    bucket_id: str = ""
    """The bucket that throttled_store requires, if one is named."""


def add_driver_options(parser: argparse.ArgumentParser) -> None:
    """Add what each such command takes."""
    parser.add_argument(
        "--spark-log-level", default="WARN", metavar="LEVEL", help="of Spark's own log lines once it runs (WARN)"
    )
    parser.add_argument("--application", action="store_true", help="print the path of the file for spark-submit")


def run_driver(args: argparse.Namespace, application: str, work: Callable[[argparse.Namespace], int]) -> int:
    """Return the exit status of `work`; 1, with one line, after an error that has a name. `application`: the path of
    the file for spark-submit, which is all that `--application` prints.
    """
    if args.application:
        print(application)
        return 0
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    try:
        return work(args)
    except (ConfigError, HeadraceError) as error:
        print(f"error: {visible(str(error))}", file=sys.stderr)
        return 1


def driver_settings() -> Settings:
    """Return the settings of HEADRACE_* variables, and log a warning for each that goes."""
    settings = load(environ=os.environ)
    for each in settings_that_go(settings):
        logger.warning("%s", each)
    return settings


def open_session(name: str, log_level: str) -> SparkSession:
    """Start Spark, or take the session that spark-submit started. `log_level`: of Spark's own lines."""
    builder = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false")
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel(log_level)
    return session


T = TypeVar("T")


async def in_group(spark: SparkSession, token: JobToken, what: str, work: Callable[[], T]) -> T:
    """The result of `work`, on a separate thread because Spark's calls block. UnavailableError, with Spark's message,
    if Spark failed.
    """
    group = f"headrace-{token.job_id}-{token.epoch}"
    working = asyncio.ensure_future(asyncio.to_thread(_work, spark, group, what, work))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        spark.sparkContext.cancelJobGroup(group)
        with contextlib.suppress(UnavailableError):
            await working
        raise


def _work(spark: SparkSession, group: str, what: str, work: Callable[[], T]) -> T:
    # Writers are looked up in the thread's active session, which only the thread that created it has.
    assert spark._jvm is not None
    spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)
    spark.sparkContext.setJobGroup(group, what, interruptOnCancel=True)
    try:
        return work()
    except PySparkException as error:
        raise UnavailableError(f"spark failed: {error}") from error


def tasks_at_a_time(spark: SparkSession) -> int:
    """The number that the executors are configured for, started or not; else the number that Spark reports."""
    conf = spark.sparkContext.getConf()
    instances = conf.get("spark.executor.instances")
    if instances is None:
        return spark.sparkContext.defaultParallelism
    return max(1, int(instances) * int(conf.get("spark.executor.cores") or 1))
