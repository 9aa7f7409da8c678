"""Serves `__remote_log_metadata` and its audit trail to any consumer, from the lifecycle tables, and from the bucket's
objects with older records of the trail.

Place: next to metadata_topic.py; rendered_topics.py finds it.
Invariant: record n of a log has offset n in every answer. In the compacted log offsets are missing; a batch covers
the missing ones after its records, and a batch without records covers them where no record is left, so a reader gets
to the watermark from every offset. If a reader is ahead of what was read, its offset is out of range: both logs are
read from the primary.
Memory: a fetch reads its partitions one after another, at most PAGE_RECORDS each; for old records of the trail it holds
one object at a time (metastore/audit_trail.py).
Source: KAFKA-20033 (the topics), KIP-405; docs/decisions/0048.
"""

from __future__ import annotations

import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.view import ClusterView
from headrace.agent.fetch.rendered.segment_log_ends import KnownEnds
from headrace.metastore.api.read import OffsetKind
from headrace.metastore.api.segment_logs import LogEnds, SegmentLogApi
from headrace.metastore.api.segments import METADATA_PARTITIONS, PartitionMarker
from headrace.metastore.audit_trail import AuditReader
from headrace.metastore.segment_logs.rendering import audit_record, log_record
from headrace.protocol.errors import READ_FAILED
from headrace.protocol.fetch_codec import FetchPartition, FetchPartitionReply
from headrace.storage.errors import HeadraceError
from headrace.storage.objects.store import ObjectStore
from headrace.storage.records.codec import Record, empty_batch, encode_batch

log = logging.getLogger(__name__)

PAGE_RECORDS = 1_000
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
                _batch(partition.fetch_offset, _fitting(records, partition.max_bytes), records, end_offset)
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


def _fitting(records: Sequence[Record], max_bytes: int) -> Sequence[Record]:
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
