"""The topics that this agent renders for any consumer instead of reading segment files.

Place: asked by name or id by handler.py and the ListOffsets handler, before the read path plan -> locate -> read.
    __cluster_metadata      the metadata log, from a table
    __remote_log_metadata   the lifecycle of segments, and its audit trail: from the lifecycle tables, and from the
                            bucket's objects with older records of the trail
Invariant: the topics are those of metastore/segment_logs/topics.py. Offsets of the metadata topic are those of
the metadata log; nothing below its start and nothing above its end is served. If a reader is ahead of this agent's
image, the primary decides; its offset is never reset.
Record n of a lifecycle log has offset n in every answer. In the compacted log offsets are missing; a batch covers
the missing ones after its records, and a batch without records covers them where no record is left, so a reader gets
to the watermark from every offset. If a reader is ahead of what was read, its offset is out of range: both lifecycle
logs are read from the primary. However many readers wait, the metastore gets at most two queries for their ends a
second, and none if no reader waits.
Memory: a fetch reads its partitions one after another, at most PAGE_RECORDS each; for old records of the trail it
holds one object at a time (metastore/audit_trail.py).
Source: KIP-631 (the metadata topic), KIP-595 (its name and id); KAFKA-20033 (the lifecycle topics), KIP-405;
docs/decisions/0048.
"""

from __future__ import annotations

import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple, Protocol

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.view import ClusterView
from headrace.metastore.api.cluster import MetadataLogApi
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.read import OffsetKind
from headrace.metastore.api.segment_logs import LogEnds, SegmentLogApi
from headrace.metastore.api.segments import METADATA_PARTITIONS, PartitionMarker
from headrace.metastore.audit_trail import AuditReader
from headrace.metastore.log.metadata_topic import METADATA_TOPIC, render_batch
from headrace.metastore.segment_logs.rendering import audit_record, log_record
from headrace.metastore.segment_logs.topics import AUDIT_TOPIC, REMOTE_LOG_TOPIC, rendered_topic
from headrace.protocol.errors import READ_FAILED
from headrace.protocol.fetch_codec import FetchPartition, FetchPartitionReply
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError, TruncatedError
from headrace.storage.objects.store import ObjectStore
from headrace.storage.records.codec import Record, empty_batch, encode_batch

AGE_MAX_SECONDS = 0.5


class KnownEnds:
    """Asked again when they are too old."""

    def __init__(self, logs: SegmentLogApi, clock: Clock) -> None:
        self._logs = logs
        self._clock = clock
        self._ends: Sequence[LogEnds] = ()
        self._asked_at = -AGE_MAX_SECONDS

    async def of(self, metadata_partition: int) -> LogEnds | None:
        """Return None while the first answer is missing. Errors of the metastore."""
        now = self._clock.monotonic()
        if now - self._asked_at >= AGE_MAX_SECONDS:
            self._asked_at = now  # readers that come meanwhile use the old answer
            self._ends = await self._logs.segment_log_ends()
        return self._ends[metadata_partition] if self._ends else None


log = logging.getLogger(__name__)

PAGE_RECORDS = 1_000
"""Maximum number of records per fetch."""


class MetadataTopic:
    """The topic's only partition."""

    follows_feed = True

    def __init__(self, metadata_log: MetadataLogApi, view: ClusterView) -> None:
        self._log = metadata_log
        self._view = view

    async def has_news(self, partition: FetchPartition) -> bool:
        """Return whether a fetch would return records, as far as this agent knows."""
        return partition.fetch_offset < self._view.image.offset

    async def fetch(self, partition: FetchPartition) -> FetchPartitionReply:
        """One batch from the requested offset on, at least one record if there is one; does not wait."""
        if partition.index != 0:
            return FetchPartitionReply(partition.index, ErrorCode.unknown_topic_or_partition)
        try:
            return await self._fetch(partition)
        except HeadraceError as error:
            log.warning("cannot read metadata topic: offset=%d error=%s", partition.fetch_offset, error)
            return FetchPartitionReply(partition.index, READ_FAILED)

    async def offset(self, index: int, timestamp: int) -> tuple[int, int]:
        """(error code, offset) for one of ListOffsets' special timestamps; -1 for others, because records have no
        time.
        """
        if index != 0:
            return ErrorCode.unknown_topic_or_partition, -1
        try:
            if timestamp == OffsetKind.EARLIEST:
                return ErrorCode.none, await self._log.metadata_log_start()
            if timestamp == OffsetKind.LATEST:
                return ErrorCode.none, (await self._view.catch_up()).offset
        except HeadraceError as error:
            log.warning("cannot read metadata topic: timestamp=%d error=%s", timestamp, error)
            return READ_FAILED, -1
        return ErrorCode.none, -1

    async def _fetch(self, partition: FetchPartition) -> FetchPartitionReply:
        offset = partition.fetch_offset
        log_start = await self._log.metadata_log_start()
        head = self._view.image.offset
        if offset > head:
            head = (await self._view.catch_up()).offset
        records: list[bytes] = []
        error: int = ErrorCode.none
        try:
            if not log_start <= offset <= head:
                error = ErrorCode.offset_out_of_range
            elif offset < head:
                records = _fitting(await self._log.read_metadata(offset, PAGE_RECORDS), partition.max_bytes)
        except TruncatedError:  # a snapshot has just replaced it
            error = ErrorCode.offset_out_of_range
        head = max(head, offset + len(records)) if records else head
        return FetchPartitionReply(
            partition.index,
            error,
            high_watermark=head,
            last_stable_offset=head,
            log_start_offset=log_start,
            records=[render_batch(offset, records)] if records else (),
        )


def _fitting(records: list[bytes], max_bytes: int) -> list[bytes]:
    """The first of them that fit, but at least one."""
    size = 0
    for count, record in enumerate(records):
        size += len(record)
        if size > max_bytes and count:
            return records[:count]
    return records


"""Maximum number of records per fetch."""
_COVERED_MAX = 1 << 30
"""A batch's offsets differ by an int32."""
LEADER_EPOCH = 0
"""The leader epoch of all records."""


class LifecyclePage(NamedTuple):
    """The first records from an offset on; there is none between the last of them and `end_offset`."""

    ends: LogEnds
    records: Sequence[Record]
    end_offset: int


class LifecycleTopic(ABC):
    """What both topics share: offsets, limits, errors."""

    follows_feed = False

    def __init__(self, logs: SegmentLogApi, view: ClusterView, ends: KnownEnds) -> None:
        self._logs = logs
        self._view = view
        self._ends = ends

    async def has_news(self, partition: FetchPartition) -> bool:
        """Return whether a fetch would return records, by ends that are less than half a second old."""
        if not 0 <= partition.index < METADATA_PARTITIONS:
            return True
        try:
            ends = await self._ends.of(partition.index)
        except HeadraceError:
            return True  # the fetch says so
        return ends is not None and partition.fetch_offset != self._bounds(ends)[1]

    async def fetch(self, partition: FetchPartition) -> FetchPartitionReply:
        """One batch from the requested offset on, at least one record if there is one; does not wait."""
        if not 0 <= partition.index < METADATA_PARTITIONS:
            return FetchPartitionReply(partition.index, ErrorCode.unknown_topic_or_partition)
        try:
            ends, records, end_offset = await self._read(partition.index, partition.fetch_offset, PAGE_RECORDS)
        except HeadraceError as error:
            log.warning("cannot read lifecycle log: offset=%d error=%s", partition.fetch_offset, error)
            return FetchPartitionReply(partition.index, READ_FAILED)
        start, end = self._bounds(ends)
        reply = FetchPartitionReply(partition.index, high_watermark=end, last_stable_offset=end, log_start_offset=start)
        if not start <= partition.fetch_offset <= end:
            reply.error_code = ErrorCode.offset_out_of_range
        elif partition.fetch_offset < end:
            reply.records = [
                _batch(partition.fetch_offset, _fitting_bytes(records, partition.max_bytes), records, end_offset)
            ]
        return reply

    async def offset(self, index: int, timestamp: int) -> tuple[int, int]:
        """(error code, offset) for one of ListOffsets' special timestamps; -1 for others."""
        if not 0 <= index < METADATA_PARTITIONS:
            return ErrorCode.unknown_topic_or_partition, -1
        try:
            start, end = self._bounds((await self._logs.segment_log_ends())[index])
        except HeadraceError as error:
            log.warning("cannot read lifecycle log: timestamp=%d error=%s", timestamp, error)
            return READ_FAILED, -1
        return ErrorCode.none, {int(OffsetKind.EARLIEST): start, int(OffsetKind.LATEST): end}.get(timestamp, -1)

    def _name(self, topic_id: uuid.UUID) -> str:
        """Empty once the topic is deleted."""
        topic = self._view.image.topics_by_id.get(topic_id)
        return "" if topic is None else topic.name

    @abstractmethod
    def _bounds(self, ends: LogEnds) -> tuple[int, int]:
        """(log start, end)."""

    @abstractmethod
    async def _read(self, index: int, offset: int, limit: int) -> LifecyclePage:
        """Return at most `limit` records."""


class RemoteLogTopic(LifecycleTopic):
    """`__remote_log_metadata`: the latest record of each key."""

    def _bounds(self, ends: LogEnds) -> tuple[int, int]:
        return 0, ends.next_offset

    async def _read(self, index: int, offset: int, limit: int) -> LifecyclePage:
        page = await self._logs.read_remote_log(index, offset, limit)
        records = [
            log_record(row, self._name(row.topic_id if isinstance(row, PartitionMarker) else row.key.topic_id))
            for row in page.rows
        ]
        return LifecyclePage(
            page.ends, records, records[-1].offset + 1 if len(records) == limit else page.ends.next_offset
        )


class AuditTopic(LifecycleTopic):
    """`__remote_log_metadata_audit`: every change."""

    def __init__(self, logs: SegmentLogApi, view: ClusterView, ends: KnownEnds, store: ObjectStore) -> None:
        super().__init__(logs, view, ends)
        self._reader = AuditReader(logs, store)

    def _bounds(self, ends: LogEnds) -> tuple[int, int]:
        return ends.audit_start, ends.next_audit_offset

    async def _read(self, index: int, offset: int, limit: int) -> LifecyclePage:
        page = await self._reader.page(index, offset, limit)
        records = [audit_record(event, self._name(event.key.topic_id)) for event in page.rows]
        return LifecyclePage(page.ends, records, page.end_offset)


def _fitting_bytes(records: Sequence[Record], max_bytes: int) -> Sequence[Record]:
    """The first of them that fit, but at least one."""
    size, fitting = 0, 0
    for record in records:
        size += len(record.key or b"") + len(record.value or b"")
        if size > max_bytes and fitting:
            break
        fitting += 1
    return records[:fitting]


def _batch(offset: int, fitting: Sequence[Record], records: Sequence[Record], end_offset: int) -> bytes:
    """A batch that covers all offsets from `offset` to before the next record, or to before `end_offset`."""
    after = records[len(fitting)].offset if len(fitting) < len(records) else end_offset
    after = min(after, offset + _COVERED_MAX)
    if not fitting or fitting[0].offset >= after:
        return empty_batch(offset, after - 1, LEADER_EPOCH)
    covered = list(takewhile(lambda record: record.offset < after, fitting))
    return encode_batch(covered, base_offset=offset, last_offset=after - 1, leader_epoch=LEADER_EPOCH)


class RenderedTopic(Protocol):
    """One topic."""

    follows_feed: bool
    """Whether its news is in the agent's image, which the feed advances."""

    async def has_news(self, partition: FetchPartition) -> bool:
        """Return whether a fetch would return records, as far as this agent knows; never waits for more than one
        query.
        """

    async def fetch(self, partition: FetchPartition) -> FetchPartitionReply:
        """One batch from the requested offset on; does not wait for records."""

    async def offset(self, index: int, timestamp: int) -> tuple[int, int]:
        """(error code, offset) for one of ListOffsets' special timestamps."""


class RenderedTopics:
    """All that this agent serves."""

    def __init__(self, by_name: Mapping[str, RenderedTopic]) -> None:
        self._by_name = by_name

    def find(self, name_or_id: str | uuid.UUID) -> RenderedTopic | None:
        """The topic of this name or id; None for a stored topic, and if this agent renders none."""
        topic = rendered_topic(name_or_id)
        return None if topic is None else self._by_name.get(topic.name)


def rendered_topics(metastore: Metastore, store: ObjectStore, view: ClusterView, clock: Clock) -> RenderedTopics:
    """The metadata log and both lifecycle logs. `store`: of the older part of the audit trail."""
    ends = KnownEnds(metastore.segment_logs, clock)
    return RenderedTopics(
        {
            METADATA_TOPIC: MetadataTopic(metastore.cluster, view),
            REMOTE_LOG_TOPIC: RemoteLogTopic(metastore.segment_logs, view, ends),
            AUDIT_TOPIC: AuditTopic(metastore.segment_logs, view, ends, store),
        }
    )
