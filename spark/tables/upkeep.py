"""Upkeep of tables by `headrace-spark-tables`: the jobs, steps and commits are those of the role `tables`
(tables/upkeep/); tasks of Spark write the files of a rewrite, one group each.

    groups of one commit -> a task for each -> larger files -> the driver commits them (replacing.py)

Place: started by application.py after its turns.
Invariant: as rewriting.py: a task writes the rows of its group, or fails. Files of a job that failed belong to no
commit, and their names say for which table they are.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from functools import partial

from prometheus_client import CollectorRegistry
from pyiceberg.manifest import DataFile
from pyspark.sql import SparkSession

from headrace.config.settings import Settings
from headrace.jobs.metrics import JobMetrics
from headrace.jobs.runner import JobRunner, RunnerTerms
from headrace.spark.short_errors import errors_of_tasks, short_errors
from headrace.spark.tables.worker import SparkTables
from headrace.storage.supervision import Supervisor
from headrace.tables.commit.data_files import DataFilePlace
from headrace.tables.looking import TableReader
from headrace.tables.upkeep.jobs import UpkeepJobs, UpkeepSchedule
from headrace.tables.upkeep.metrics import UpkeepMetrics
from headrace.tables.upkeep.rewriting import Group, write_group, write_here
from headrace.tables.upkeep.steps import TableUpkeep, UpkeepTerms


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
