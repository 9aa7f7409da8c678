"""A batch read: planned on the driver when an action needs it, read by tasks.

    driver     partitions   options -> offsets -> pin -> plan -> splits
    executors  read         a split -> Arrow record batches

Place: made by source.py; Spark pickles it to its Python workers.
Invariant: all rows of one plan are those of one set of offset ranges, fixed at planning; a repeated task returns the
same rows. The plan's files are kept for readPinMs; a task that finds one gone fails and names this option.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headrace.scan.cluster import BucketAddress, ScannedCluster, cluster_settings, open_cluster
from headrace.scan.columns import arrow_schema, record_batches
from headrace.scan.offsets import find_offsets
from headrace.scan.options import ScanOptions, parse_options
from headrace.scan.partitions import ScanPartition, TopicCatalog, select
from headrace.scan.plan import Split, WantedOffsets, make_splits, pin, plan_in_bucket
from headrace.scan.read import SplitReader
from headrace.spark.short_errors import short_errors
from headrace.storage.clock import SystemClock
from headrace.storage.collector_tuning import tune_collector
from headrace.storage.errors import HeadraceError
from headrace.storage.segment.rereading import VerifiedReads


@dataclass
class SplitPartition(InputPartition):
    """One task's work."""

    split: Split
    bucket: BucketAddress
    pin_hint: str


class TopicReader(DataSourceReader):
    """Reads the offsets between two bounds."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = options
        self._scan = parse_options(options, streaming=False)
        self._schema = schema

    @short_errors
    def partitions(self) -> list[InputPartition]:
        """Plans; called once per action, or once for all actions on the same DataFrame object."""
        return asyncio.run(self._plan())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_split(partition, self._schema)

    async def _plan(self) -> list[InputPartition]:
        settings = cluster_settings(self._options, os.environ)
        async with open_cluster(settings) as cluster:
            pinned = await pin(cluster.metastore.jobs, holder(), self._scan.read_pin_ms)
            try:
                ranges = await batch_ranges(cluster, self._scan)
                planned = await plan_in_bucket(
                    cluster.metastore,
                    cluster.clock,
                    ranges,
                    fail_on_data_loss=self._scan.fail_on_data_loss,
                    committed=self._scan.committed,
                )
            except HeadraceError:
                await cluster.metastore.jobs.release_pins([pinned])
                raise
            splits = make_splits(planned, self._scan.split_bytes, self._scan.min_partitions)
            if not splits:
                await cluster.metastore.jobs.release_pins([pinned])
            bucket = BucketAddress.of(settings)
            return [SplitPartition(split, bucket, pin_hint(self._scan.read_pin_ms)) for split in splits]


async def batch_ranges(cluster: ScannedCluster, scan: ScanOptions) -> dict[ScanPartition, WantedOffsets]:
    """The offsets of each partition that a batch read returns."""
    partitions = select(scan.selection, await TopicCatalog(cluster.metastore.cluster).refresh())
    bounds = [
        await find_offsets(
            cluster.metastore.index,
            VerifiedReads(cluster.store, cluster.clock, cluster.rng),
            partitions,
            bound,
            name=name,
            latest_if_unmatched=latest_if_unmatched,
            committed=scan.committed,
        )
        for name, bound, latest_if_unmatched in (
            ("starting", scan.starting, scan.latest_if_unmatched),
            ("ending", scan.ending, True),
        )
    ]
    return {partition: WantedOffsets(bounds[0][partition], bounds[1][partition]) for partition in partitions}


def read_split(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of a task."""
    if not isinstance(partition, SplitPartition):  # Spark's placeholder for no partitions
        return
    tune_collector()
    reader = SplitReader.open(partition.bucket, SystemClock(), random.Random(), pin_hint=partition.pin_hint)
    try:
        yield from record_batches(reader.batches(partition.split), arrow_schema(schema.fieldNames()))
    finally:
        reader.close()


def holder() -> str:
    """This driver, for the list of jobs."""
    return f"spark-{socket.gethostname()}-{os.getpid()}"


def pin_hint(term_ms: int) -> str:
    """Return a hint about the pin, for a task that finds a file gone."""
    return (
        f"Files are kept for readPinMs={term_ms} after planning: if the query runs longer, raise it;"
        " a DataFrame that was planned before keeps its plan: load it again"
    )
