"""Both lifecycle logs at the boundary: pages of __remote_log_metadata and of its audit trail, in offset order.

Place: under the topics that show the logs to Kafka clients, and under `headrace segments`.
Invariant: a page and its log's end are of one snapshot. Offsets below the end never come into being later: a record
that is not there was replaced by a later one of its key.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from headrace.metastore.api.audit_archive import ArchivedAudit
from headrace.metastore.api.segments import PartitionMarker, RemoteSegment, SegmentEvent


class LogEnds(NamedTuple):
    """Ends of the logs of one metadata partition. `next_offset`: of __remote_log_metadata, where it starts at 0."""

    next_offset: int
    audit_start: int
    next_audit_offset: int


@dataclass(frozen=True, slots=True)
class RemoteLogPage:
    """The latest record of each key from an offset on."""

    ends: LogEnds
    rows: Sequence[RemoteSegment | PartitionMarker]


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Events from an offset on, without a gap. `rows` is empty if an object has the first of them (`archived`)."""

    ends: LogEnds
    rows: Sequence[SegmentEvent]
    archived: ArchivedAudit | None = None


class SegmentLogApi(Protocol):
    """Reads only; cost O(result)."""

    async def segment_log_ends(self) -> list[LogEnds]:
        """Return the ends of every metadata partition, in order."""

    async def read_remote_log(self, metadata_partition: int, start_offset: int, limit: int) -> RemoteLogPage:
        """Read at most `limit` rows."""

    async def read_audit_log(self, metadata_partition: int, start_offset: int, limit: int) -> AuditPage:
        """Read at most `limit` rows, or an object; none below the audit's start. Use AuditReader,
        which reads both.
        """

    async def list_segments(
        self, topic_id: uuid.UUID, partition_index: int, after: int, limit: int
    ) -> list[RemoteSegment]:
        """The keys of a partition with end offsets above `after`, tombstones too, by end offset and epoch."""

    async def find_marker(self, topic_id: uuid.UUID, partition_index: int) -> PartitionMarker | None:
        """The partition's delete marker."""
