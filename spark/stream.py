"""A stream: micro-batches between offsets that Spark stores in its checkpoint.

Place: made by source.py. Spark writes the end of a batch to its checkpoint before it asks for the batch's
partitions. How much a micro-batch reads is decided by pure functions.
Invariant of the limit of a batch: an end is never behind the newest offset or before its start; with a limit every
partition with something new moves on.
Source: rate limits of Spark's Kafka source.

    driver     initialOffset, latestOffset, partitions, commit   in one Python process for the query's whole run
    executors  read                                              as in a batch read

Invariant: a batch is its start and end: planned again after a restart, it returns the same rows. An end is an offset
that was committed when it was returned. Each plan has a read pin; pins end when Spark has finished the batch, or
with their term if the driver was killed. Offsets belong to one incarnation of a topic: a topic that was deleted and
created again has another id, so its records are neither skipped nor taken for the old ones. Stored in the
checkpoint: fields may be added, none changes its meaning.
    {"orders": {"topicId": "018f…", "offsets": {"0": 23, "1": 7}}}
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from math import ceil, floor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.read import OffsetKind
from headrace.scan.background_loop import BackgroundLoop
from headrace.scan.cluster import BucketAddress, ScannedCluster, cluster_settings, open_cluster
from headrace.scan.errors import DataLossError
from headrace.scan.offsets import find_offsets, special_offsets
from headrace.scan.options import parse_options
from headrace.scan.partitions import ScanPartition, TopicCatalog, select
from headrace.scan.plan import WantedOffsets, make_splits, pin, plan_in_bucket
from headrace.spark.batch import SplitPartition, holder, pin_hint, read_split
from headrace.spark.short_errors import short_errors
from headrace.storage.errors import HeadraceError
from headrace.storage.segment.rereading import VerifiedReads

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # before PySpark 4.2: Spark itself ends such a query after one batch

        class SupportsTriggerAvailableNow:
            """Empty: this PySpark has none."""


P = TypeVar("P")


def new_offsets(start: Mapping[P, int], latest: Mapping[P, int]) -> int:
    """The number of offsets from `start` (0 for a partition that is not in it) to `latest`."""
    return sum(max(0, end - start.get(partition, 0)) for partition, end in latest.items())


def share(start: Mapping[P, int], latest: Mapping[P, int], limit: int) -> dict[P, int]:
    """Ends for about `limit` offsets, in proportion to what each partition has; one for the smallest ones."""
    total = new_offsets(start, latest)
    if total <= limit:
        return dict(latest)
    ends = {}
    for partition, end in latest.items():
        begin = start.get(partition, 0)
        part = limit * (end - begin) / total
        ends[partition] = end if end <= begin else min(end, begin + (ceil(part) if part < 1 else floor(part)))
    return ends


class StreamPartition(NamedTuple):
    """A partition as the checkpoint names it."""

    topic: str
    topic_id: uuid.UUID
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


StreamOffsets = dict[StreamPartition, int]


def to_json(offsets: Mapping[StreamPartition, int]) -> dict[str, Any]:
    """Return the JSON that Spark stores; equal offsets give equal JSON."""
    found: dict[str, Any] = {}
    for partition, offset in sorted(offsets.items()):
        topic = found.setdefault(partition.topic, {"topicId": str(partition.topic_id), "offsets": {}})
        topic["offsets"][str(partition.partition)] = offset
    return found


def from_json(document: Mapping[str, Any]) -> StreamOffsets:
    """Return what `to_json` made."""
    return {
        StreamPartition(name, uuid.UUID(topic["topicId"]), int(index)): offset
        for name, topic in document.items()
        for index, offset in topic["offsets"].items()
    }


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows topics."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = options
        self._scan = parse_options(options, streaming=True)
        self._schema = schema
        self._driver: _Driver | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for executors: without the driver's connections."""
        return self.__dict__ | {"_driver": None}

    @property
    def driver(self) -> _Driver:
        """Opened by the first call on the driver."""
        if self._driver is None:
            self._driver = _Driver(self._options)
        return self._driver

    @short_errors
    def initialOffset(self) -> dict[str, Any]:
        return to_json(self.driver.run(self.driver.initial()))

    @short_errors
    def latestOffset(self, start: Mapping[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        """PySpark before 4.2 gives no arguments: then a batch has all that is there."""
        begin = from_json(start or {})
        return to_json(self.driver.run(self.driver.latest(begin, limit, has_start=start is not None)))

    def getDefaultReadLimit(self) -> ReadLimit:
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows  # PySpark 4.2

        if self._scan.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._scan.max_offsets_per_trigger)
        if self._scan.min_offsets_per_trigger is not None:
            return ReadMinRows(self._scan.min_offsets_per_trigger)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any]:
        return to_json(self.driver.run(self.driver.newest()))

    def prepareForTriggerAvailableNow(self) -> None:
        self.driver.run(self.driver.fix_target())

    @short_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return self.driver.run(self.driver.plan(from_json(start), from_json(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_split(partition, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        self.driver.run(self.driver.release())

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()


class _Driver:
    """The driver's side of a stream, with its connections."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._scan = parse_options(options, streaming=True)
        self._settings = cluster_settings(options, os.environ)
        self._loop = BackgroundLoop()
        self._connections = AsyncExitStack()
        self._pins: list[JobToken] = []
        self._target: StreamOffsets | None = None
        """Of Trigger.AvailableNow."""
        self._admitted_at: float | None = None
        """When offsets were last returned, for maxTriggerDelay."""
        self.run = self._loop.run
        try:
            self._cluster: ScannedCluster = self.run(
                self._connections.enter_async_context(open_cluster(self._settings))
            )
        except BaseException:
            self._loop.close()
            raise
        self._catalog = TopicCatalog(self._cluster.metastore.cluster)

    def close(self) -> None:
        """Release what is held, if Spark lets this process end by itself."""
        try:
            self.run(self.release())
        finally:
            self.run(self._connections.aclose())
            self._loop.close()

    async def initial(self) -> StreamOffsets:
        partitions = await self._partitions()
        offsets = await find_offsets(
            self._cluster.metastore.index,
            VerifiedReads(self._cluster.store, self._cluster.clock, self._cluster.rng),
            partitions,
            self._scan.starting,
            name="starting",
            latest_if_unmatched=self._scan.latest_if_unmatched,
            committed=self._scan.committed,
        )
        return {_named(partition): offset for partition, offset in offsets.items()}

    async def newest(self) -> StreamOffsets:
        """The high watermarks; the last stable offsets for read_committed."""
        kinds = dict.fromkeys(await self._partitions(), int(OffsetKind.LATEST))
        found = await special_offsets(self._cluster.metastore.index, kinds, committed=self._scan.committed)
        return {_named(partition): offset for partition, offset in found.items()}

    async def fix_target(self) -> None:
        self._target = await self.newest()

    async def latest(self, start: StreamOffsets, limit: ReadLimit | None, *, has_start: bool) -> StreamOffsets:
        """The end of the next batch; `start` itself if it is to wait. Spark asks when the batch before is finished."""
        await self.release()
        newest = await self.newest() if self._target is None else self._target
        if not has_start:
            return newest
        self._check_nothing_lost(start, newest)
        name = type(limit).__name__
        if name in ("NoneType", "ReadAllAvailable"):
            return newest
        if self._target is None and self._must_wait(start, newest):
            return start
        self._admitted_at = self._cluster.clock.monotonic()
        maximum = self._scan.max_offsets_per_trigger
        return newest if maximum is None else share(start, newest, maximum)

    async def plan(self, start: StreamOffsets, end: StreamOffsets) -> list[InputPartition]:
        """The splits of a batch, under a pin that `release` ends."""
        image = await self._catalog.refresh()
        ranges = {}
        for partition, until in end.items():
            topic = image.topics_by_id.get(partition.topic_id)
            key = None if topic is None else topic.key(partition.partition)
            place = ScanPartition(partition.topic, partition.partition, -1 if key is None else key, partition.topic_id)
            ranges[place] = WantedOffsets(start.get(partition, 0), until)
        pinned = await pin(self._cluster.metastore.jobs, holder(), self._scan.read_pin_ms)
        self._pins.append(pinned)
        planned = await plan_in_bucket(
            self._cluster.metastore,
            self._cluster.clock,
            ranges,
            fail_on_data_loss=self._scan.fail_on_data_loss,
            committed=self._scan.committed,
        )
        bucket, hint = BucketAddress.of(self._settings), pin_hint(self._scan.read_pin_ms)
        splits = make_splits(planned, self._scan.split_bytes, self._scan.min_partitions)
        return [SplitPartition(split, bucket, hint) for split in splits]

    async def release(self) -> None:
        """End the pins of finished batches. A failure is no reason to stop the stream: they end with their term."""
        if self._pins:
            pins, self._pins = self._pins, []
            try:
                await self._cluster.metastore.jobs.release_pins(pins)
            except HeadraceError:
                self._pins += pins

    async def _partitions(self) -> list[ScanPartition]:
        return select(self._scan.selection, await self._catalog.refresh())

    def _must_wait(self, start: StreamOffsets, newest: StreamOffsets) -> bool:
        minimum, last = self._scan.min_offsets_per_trigger, self._admitted_at
        if minimum is None or last is None or new_offsets(start, newest) >= minimum:
            return False
        return self._cluster.clock.monotonic() - last < self._scan.max_trigger_delay_ms / 1000

    def _check_nothing_lost(self, start: StreamOffsets, newest: StreamOffsets) -> None:
        """DataLossError if a partition of the stream is gone, or ends below the stream's offset."""
        if not self._scan.fail_on_data_loss:
            return
        for partition, offset in start.items():
            end = newest.get(partition)
            if end is None or end < offset:
                loss = "topic was deleted" if end is None else f"the log ends at {end} now"
                raise DataLossError(
                    f"offsets are not in the log: partition={partition} topic_id={partition.topic_id}"
                    f" offset={offset}: {loss}. Set failOnDataLoss=false to read what there is"
                )


def _named(partition: ScanPartition) -> StreamPartition:
    return StreamPartition(partition.topic, partition.topic_id, partition.partition)
