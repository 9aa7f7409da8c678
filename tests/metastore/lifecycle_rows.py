"""Rows of the lifecycle tables, written as they are: for tests of what only reads them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

import psycopg

from headrace.metastore.segment_logs.records import metadata_partition

TOPIC = uuid.UUID("01020304-0506-0708-090a-0b0c0d0e0f10")
_SEGMENT = """
INSERT INTO remote_segments (topic_id, partition_index, end_offset, epoch, segment_id, file_id, partition_key,
  start_offset, leader_epoch, max_timestamp, size, state, cause, live_extents, reference, broker_id, job_id, event_ms,
  tombstoned_at, metadata_partition, log_offset)
VALUES (%(topic)s, %(index)s, %(end)s, %(epoch)s, %(segment)s, %(file)s, 1, %(start)s, 3, 7, 1000, %(state)s, 0, 0, 0,
  4, 11, %(ms)s, to_timestamp(%(buried)s::float / 1000), %(partition)s, %(log)s)
ON CONFLICT (topic_id, partition_index, end_offset, epoch) DO UPDATE
  SET segment_id = excluded.segment_id, state = excluded.state, event_ms = excluded.event_ms,
      tombstoned_at = excluded.tombstoned_at, log_offset = excluded.log_offset
"""
_EVENT = """
INSERT INTO remote_segment_events (metadata_partition, audit_offset, log_offset, api_key, topic_id, partition_index,
  end_offset, epoch, state, cause, broker_id, event_ms, segment_id, file_id, job_id, start_offset, leader_epoch,
  max_timestamp, size)
VALUES (%(partition)s, %(audit)s, %(log)s, %(api_key)s, %(topic)s, %(index)s, %(end)s, %(epoch)s, %(state)s, 0, 4,
  %(ms)s, %(segment)s, %(file)s, 11, %(facts)s::bigint, 3 + 0 * %(facts)s::int, 7 + 0 * %(facts)s::bigint,
  1000 + 0 * %(facts)s::bigint)
"""
_MARKER = """
INSERT INTO remote_partitions (topic_id, partition_index, partition_key, end_offset, epoch, state, broker_id, event_ms,
  metadata_partition, log_offset)
VALUES (%(topic)s, %(index)s, 1 + %(index)s, %(end)s, %(epoch)s, %(state)s, 4, %(ms)s, %(partition)s, %(log)s)
ON CONFLICT (topic_id, partition_index) DO UPDATE SET state = excluded.state, log_offset = excluded.log_offset
"""


@dataclass
class LifecycleRows:
    """Appends to both logs of one partition of TOPIC; each write takes the next offsets, as the real ones do."""

    connection: psycopg.Connection[tuple[object, ...]]
    index: int = 0
    begin_ms: int = 1_000
    next_offset: int = 0
    next_audit_offset: int = 0
    segments: dict[tuple[int, int], uuid.UUID] = field(default_factory=dict)

    @property
    def partition(self) -> int:
        return metadata_partition(TOPIC, self.index)

    def segment(self, end: int, epoch: int, state: int, *, start: int = 0, buried_ms: int | None = None) -> None:
        """The key's next record; a tombstone, which the audit lacks, with `buried_ms`."""
        segment_id = self.segments.setdefault((end, epoch), uuid.UUID(int=end * 1_000 + epoch))
        row = self._row(end, epoch, state) | {"segment": segment_id, "file": uuid.UUID(int=9), "start": start}
        self.connection.execute(_SEGMENT, row | {"buried": buried_ms})
        if buried_ms is None:
            api_key = 0 if state == 0 else 1
            self._audit(row | {"api_key": api_key, "facts": start if api_key == 0 else None})
        self.next_offset += 1
        self._heads()

    def marker(self, end: int, epoch: int, state: int) -> None:
        """The partition's delete marker."""
        row = self._row(end, epoch, state)
        self.connection.execute(_MARKER, row)
        self._audit(row | {"api_key": 2, "facts": None, "segment": None, "file": None})
        self.next_offset += 1
        self._heads()

    def forget(self, keys: Sequence[tuple[int, int]]) -> None:
        """Remove tombstones as happens after delete.retention.ms."""
        for end, epoch in keys:
            self.connection.execute("DELETE FROM remote_segments WHERE end_offset = %s AND epoch = %s", (end, epoch))
        self.connection.commit()

    def _row(self, end: int, epoch: int, state: int) -> dict[str, object]:
        return {
            "topic": TOPIC,
            "index": self.index,
            "end": end,
            "epoch": epoch,
            "state": state,
            "ms": self.begin_ms + self.next_offset,
            "partition": self.partition,
            "log": self.next_offset,
        }

    def _audit(self, row: dict[str, object]) -> None:
        self.connection.execute(_EVENT, row | {"audit": self.next_audit_offset})
        self.next_audit_offset += 1

    def _heads(self) -> None:
        self.connection.execute(
            "UPDATE remote_log_heads SET next_offset = %s, next_audit_offset = %s WHERE metadata_partition = %s",
            (self.next_offset, self.next_audit_offset, self.partition),
        )
        self.connection.commit()


def one_life(rows: LifecycleRows) -> None:
    """Three segments: one of two epochs and buried, one live, one started; then the partition's deletion begins."""
    for epoch in (3, 4):
        rows.segment(999, epoch, 0)
        rows.segment(999, epoch, 1)
    rows.segment(1_999, 4, 0, start=1_000)
    rows.segment(999, 4, 2)
    rows.segment(999, 4, 3)
    rows.segment(1_999, 4, 1, start=1_000)
    rows.segment(999, 3, 1, buried_ms=rows.begin_ms + 4_000)
    rows.segment(999, 4, 3, buried_ms=rows.begin_ms + 4_001)
    rows.segment(2_999, 5, 0, start=2_000)
    rows.marker(3_000, 6, 1)
