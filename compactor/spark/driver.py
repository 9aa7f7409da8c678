"""What the commands that start Spark have in common: options, log, one line for an error, the session.

Place: under headrace-spark-compaction (application.py) and headrace-spark-tables (spark/tables/application.py), in the
driver's process.
Invariant: settings come from HEADRACE_* variables: no secret is in arguments, in Spark's plans or in its event log.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import SparkSession

from headrace.compactor.merge import MergeLimits
from headrace.config.errors import ConfigError
from headrace.config.load import load
from headrace.config.settings import Settings
from headrace.config.settings_that_go import settings_that_go
from headrace.storage.client_text import visible
from headrace.storage.errors import HeadraceError

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
    """As throttled_store."""


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
