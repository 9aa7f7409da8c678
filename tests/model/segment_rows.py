"""The reference model's rows of remote segments, and the two logs that they are recorded in.

Place: under tests/model/segment_model.py; the tables of metastore/postgres/segments in plain Python.
Invariant: a change that metastore/segment_logs does not allow is refused, and nothing of the statement happens.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.metastore.api.segment_states import (
    Latest,
    LifecycleKey,
    RemoteLogSegmentState,
    RemotePartitionDeleteState,
    RemotePartitionKey,
    RemoteSegmentKey,
    partition_transition,
    segment_transition,
)
from headrace.metastore.api.segments import METADATA_PARTITIONS, NO_BROKER, ReferenceState, SegmentCause
from headrace.metastore.segment_logs.records import metadata_partition


@dataclass
class SegmentRow:
    """A row of remote_segments, as metastore.api.segments.RemoteSegment. `due_ms`: None if no cleanup looks at it."""

    key: RemoteSegmentKey
    segment_id: uuid.UUID
    file_id: uuid.UUID
    partition_key: int
    start_offset: int
    leader_epoch: int
    max_timestamp: int
    size: int
    state: RemoteLogSegmentState
    cause: SegmentCause
    job_id: int | None
    live_extents: int = 0
    reference: ReferenceState = ReferenceState.HELD
    event_ms: int = 0
    due_ms: int | None = None
    tombstoned_ms: int | None = None
    log_offset: int = -1

    @property
    def range(self) -> tuple[uuid.UUID, int, int]:
        """What keys of all epochs share."""
        return self.key[:3]


@dataclass
class MarkerRow:
    """A row of remote_partitions."""

    key: RemotePartitionKey
    partition_key: int
    end_offset: int
    epoch: int
    state: RemotePartitionDeleteState | None = None
    tombstoned_ms: int | None = None
    log_offset: int = -1


class Recorded(NamedTuple):
    """One record of __remote_log_metadata, with all that compaction removed. `state` None: a tombstone.

    `audit_offset`: its place in the audit trail, which has no tombstones.
    """

    metadata_partition: int
    log_offset: int
    audit_offset: int | None
    key: LifecycleKey
    state: RemoteLogSegmentState | RemotePartitionDeleteState | None
    cause: SegmentCause | None
    segment_id: uuid.UUID | None
    file_id: uuid.UUID | None
    job_id: int | None
    broker_id: int = NO_BROKER


@dataclass
class SegmentLogs:
    """Both logs. `audit_starts`: by metadata partition, the first offset that was not trimmed."""

    records: list[Recorded] = field(default_factory=list)
    times_ms: list[int] = field(default_factory=list)
    next_offsets: list[int] = field(default_factory=lambda: [0] * METADATA_PARTITIONS)
    next_audit_offsets: list[int] = field(default_factory=lambda: [0] * METADATA_PARTITIONS)
    audit_starts: list[int] = field(default_factory=lambda: [0] * METADATA_PARTITIONS)

    def change(
        self,
        rows: Sequence[SegmentRow],
        state: RemoteLogSegmentState,
        cause: SegmentCause,
        job_id: int | None,
        now_ms: int,
    ) -> None:
        """Record a state for existing keys. IllegalTransitionError: none is."""
        for row in rows:
            latest = None if row.tombstoned_ms is not None else Latest(row.state, row.segment_id)
            segment_transition(row.key, latest, Latest(state, row.segment_id))
        for row in rows:
            row.state, row.cause, row.job_id, row.event_ms = state, cause, job_id, now_ms
            row.due_ms = None if state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED else now_ms
            self.record(row, now_ms)

    def record(self, row: SegmentRow, now_ms: int) -> None:
        """A row as it is now, in both logs."""
        row.event_ms = now_ms
        row.log_offset = self._append(
            *(row.key.of_partition, row.key, row.state, now_ms, row.cause, row.segment_id, row.file_id, row.job_id)
        )

    def record_marker(self, marker: MarkerRow, state: RemotePartitionDeleteState, now_ms: int) -> None:
        """A marker's next state, in both logs."""
        partition_transition(marker.key, marker.state, state)
        marker.state = state
        marker.log_offset = self._append(marker.key, marker.key, state, now_ms, SegmentCause.PARTITION_DELETED)

    def bury(self, row: SegmentRow | MarkerRow, now_ms: int) -> None:
        """Its tombstone."""
        row.tombstoned_ms = now_ms
        if isinstance(row, SegmentRow):
            row.event_ms = now_ms
            row.log_offset = self._append(row.key.of_partition, row.key, None, now_ms)
        else:
            row.log_offset = self._append(row.key, row.key, None, now_ms)

    def trim(self, before_ms: int, limit: int) -> int:
        """Remove the oldest records of the audit trail, up to `limit` per metadata partition; how many."""
        removed = 0
        for part in range(METADATA_PARTITIONS):
            oldest = [
                (record.audit_offset, time_ms)
                for record, time_ms in zip(self.records, self.times_ms, strict=True)
                if record.metadata_partition == part
                and record.audit_offset is not None
                and record.audit_offset >= self.audit_starts[part]
            ][:limit]
            expired = [offset for offset, time_ms in oldest if time_ms < before_ms]
            if expired:
                self.audit_starts[part] = max(expired) + 1
            removed += sum(offset <= max(expired) for offset, _ in oldest) if expired else 0
        return removed

    def _append(
        self,
        partition: RemotePartitionKey,
        key: LifecycleKey,
        state: RemoteLogSegmentState | RemotePartitionDeleteState | None,
        now_ms: int,
        cause: SegmentCause | None = None,
        segment_id: uuid.UUID | None = None,
        file_id: uuid.UUID | None = None,
        job_id: int | None = None,
    ) -> int:
        part = metadata_partition(partition.topic_id, partition.partition)
        offset, audit_offset = self.next_offsets[part], self.next_audit_offsets[part]
        self.next_offsets[part] += 1
        self.next_audit_offsets[part] += state is not None
        audited = None if state is None else audit_offset
        self.records.append(Recorded(part, offset, audited, key, state, cause, segment_id, file_id, job_id))
        self.times_ms.append(now_ms)
        return offset
