"""Runs work on Spark for one job, and cancels it when the job's lease is lost.

Place: under the handlers of both job kinds (source.py, cleaning.py), on the driver.
Invariant: when `in_group` raises CancelledError, Spark has ended the work; none of it reaches the metastore later.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.metastore.api.jobs import JobToken
from headrace.storage.errors import UnavailableError

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
