"""Pages of the lifecycle logs, and a partition's keys.

Place: implements metastore.api.segment_logs.SegmentLogApi.
Invariant: reads only; a page is one statement, so its rows and its log's end are of one snapshot.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from headrace.metastore.api.audit_archive import ArchivedAudit
from headrace.metastore.api.segment_logs import AuditPage, LogEnds, RemoteLogPage, SegmentLogApi
from headrace.metastore.api.segment_states import RemoteLogSegmentState, RemotePartitionDeleteState, RemoteSegmentKey
from headrace.metastore.api.segments import (
    PartitionMarker,
    ReferenceState,
    RemoteSegment,
    SegmentCause,
    SegmentEvent,
    SegmentFacts,
)
from headrace.metastore.postgres.pass_through import PostgresNoun, calls
from headrace.metastore.postgres.statement import Statement

_READ_REMOTE_LOG = Statement("read_remote_log", writes=False)
_READ_AUDIT_LOG = Statement("read_audit_log", writes=False)
_LIST_SEGMENTS = Statement("list_segments", writes=False)
_FIND_MARKER = Statement("find_marker", writes=False)
_ENDS = len(LogEnds._fields)
_EVENT = _ENDS + len(ArchivedAudit._fields) - 1  # only a due object is not told of


class PostgresSegmentLogs(PostgresNoun):
    """Implements metastore.api.segment_logs.SegmentLogApi."""

    segment_log_ends = calls(SegmentLogApi.segment_log_ends, writes=False, by_readers=True)

    async def read_remote_log(self, metadata_partition: int, start_offset: int, limit: int) -> RemoteLogPage:
        rows = await _READ_REMOTE_LOG.rows(
            self.readers, metadata_partition=metadata_partition, start_offset=start_offset, row_limit=limit
        )
        return RemoteLogPage(LogEnds(*rows[0][:_ENDS]), [_latest(row[_ENDS:]) for row in rows if row[-1] is not None])

    async def read_audit_log(self, metadata_partition: int, start_offset: int, limit: int) -> AuditPage:
        rows = await _READ_AUDIT_LOG.rows(
            self.readers, metadata_partition=metadata_partition, start_offset=start_offset, row_limit=limit
        )
        ends, archived = LogEnds(*rows[0][:_ENDS]), rows[0][_ENDS:_EVENT]
        if archived[0] is not None:
            return AuditPage(ends, [], ArchivedAudit(*archived))
        return AuditPage(ends, [_event(row[_EVENT:]) for row in rows if row[_EVENT] is not None])

    async def list_segments(
        self, topic_id: uuid.UUID, partition_index: int, after: int, limit: int
    ) -> list[RemoteSegment]:
        rows = await _LIST_SEGMENTS.rows(
            self.readers, topic_id=topic_id, partition_index=partition_index, after=after, row_limit=limit
        )
        return [_segment(row) for row in rows]

    async def find_marker(self, topic_id: uuid.UUID, partition_index: int) -> PartitionMarker | None:
        rows = await _FIND_MARKER.rows(self.readers, topic_id=topic_id, partition_index=partition_index)
        return _marker(rows[0]) if rows else None


def _latest(row: Sequence[Any]) -> RemoteSegment | PartitionMarker:
    if row[4] is not None:
        return _segment(row)
    topic_id, index, end_offset, epoch = row[:4]
    return _marker((topic_id, index, end_offset, epoch, row[11], row[15], *row[17:]))


def _segment(row: Sequence[Any]) -> RemoteSegment:
    state, cause, live_extents, reference = row[11:15]
    stored = (RemoteLogSegmentState(state), SegmentCause(cause), live_extents, ReferenceState(reference))
    return RemoteSegment._make([RemoteSegmentKey(*row[:4]), *row[4:11], *stored, *row[15:]])


def _marker(row: Sequence[Any]) -> PartitionMarker:
    return PartitionMarker._make([*row[:4], RemotePartitionDeleteState(row[4]), *row[5:]])


def _event(row: Sequence[Any]) -> SegmentEvent:
    metadata_partition, audit_offset, log_offset, api_key, *rest = row
    key, (state, cause, broker_id, event_ms, segment_id, file_id, job_id) = RemoteSegmentKey(*rest[:4]), rest[4:11]
    facts = SegmentFacts(*rest[11:]) if rest[11] is not None else None
    return SegmentEvent(
        metadata_partition,
        audit_offset,
        log_offset,
        api_key,
        key,
        state,
        SegmentCause(cause),
        broker_id,
        event_ms,
        segment_id,
        file_id,
        job_id,
        facts,
    )
