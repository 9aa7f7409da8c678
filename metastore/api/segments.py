"""Remote segments at the boundary: their records, and what uploads and deletions say of them.

    key                  (topic id, partition, end offset, epoch); one segment id per attempt to upload it
    remote_segments      the latest record of each key, or its tombstone: topic __remote_log_metadata
    remote_segment_events  every record but tombstones: topic __remote_log_metadata_audit
    remote_partitions    the delete markers of partitions, in the same logs

Place: written by the compactor and by all that removes extents; read by the topics, tools and the cache.
Invariant: a merged file's object is stored only after its segments' COPY_STARTED, readable only after COPY_FINISHED,
and deleted only after DELETE_STARTED of the last key with a reference to it; DELETE_FINISHED comes after that. Extents
alone say what is readable: a segment with live_extents > 0 is. No tombstone removes such a key.
Times in milliseconds on the database's clock.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.segment_states import RemoteLogSegmentState, RemotePartitionDeleteState, RemoteSegmentKey

METADATA_PARTITIONS = 50
"""Number of metadata partitions of both topics, by Kafka's RemoteLogMetadataTopicPartitioner
(metadata_partition.sql).
"""
NO_BROKER = -1
"""Broker id of what a process without a node id did."""


class SegmentCause(enum.IntEnum):
    """Why a key is in its state. Numbers are stored."""

    UPLOAD = 0
    REPLACED = 1
    """Other segments have its records: a merge, or a cleaning by key."""
    LOG_START = 2
    """Retention, or DeleteRecords."""
    PARTITION_DELETED = 3
    LOST = 4
    """Its swap came too late."""
    ORPHANED = 5
    """Its lease ended before the swap."""
    KEYED = 6
    """Its file was readable before there were keys."""


class ReferenceState(enum.IntEnum):
    """A key's reference to its file. Numbers are stored."""

    HELD = 0
    AWAITS_OBJECT = 1
    """Given up as the file's last one: the object must be deleted before DELETE_FINISHED."""
    RELEASED = 2


class RemoteSegment(NamedTuple):
    """A row of remote_segments. `tombstoned_ms` not None: its latest record is a tombstone."""

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
    live_extents: int
    reference: ReferenceState
    broker_id: int
    job_id: int | None
    event_ms: int
    tombstoned_ms: int | None
    metadata_partition: int
    log_offset: int


class PartitionMarker(NamedTuple):
    """A row of remote_partitions."""

    topic_id: uuid.UUID
    partition_index: int
    end_offset: int
    epoch: int
    state: RemotePartitionDeleteState
    broker_id: int
    event_ms: int
    tombstoned_ms: int | None
    metadata_partition: int
    log_offset: int


class SegmentFacts(NamedTuple):
    """What only a COPY_STARTED record says."""

    start_offset: int
    leader_epoch: int
    max_timestamp: int
    size: int


class SegmentEvent(NamedTuple):
    """A row of remote_segment_events. `api_key`: Kafka's, 0 segment, 1 update, 2 partition delete.

    For a partition's deletion `state` is a RemotePartitionDeleteState, and segment_id and file_id are None.
    """

    metadata_partition: int
    audit_offset: int
    log_offset: int
    api_key: int
    key: RemoteSegmentKey
    state: int
    cause: SegmentCause
    broker_id: int
    event_ms: int
    segment_id: uuid.UUID | None
    file_id: uuid.UUID | None
    job_id: int | None
    facts: SegmentFacts | None


class StartOutcome(enum.IntEnum):
    """What became of an upload that a lease wants to start. Numbers are SQL's."""

    DONE = 0
    KEYLESS = 1
    """The feature remote.log.metadata.compaction is not active: the file gets no keys, and no reservation. It goes in
    the next release, which needs level 1 (docs/operate/UPGRADES.md)."""
    REFUSED = 2
    """The file id cannot be used any more."""
    OVERTAKEN = 3
    """A key of the same partition and end offset has a higher epoch: try again under another lease."""


class NewSegment(NamedTuple):
    """What a file is going to hold of one partition: offsets as the job's plan fixed them. `size` in bytes."""

    segment_id: uuid.UUID
    partition_key: int
    start_offset: int
    end_offset: int
    leader_epoch: int
    max_timestamp: int
    size: int


class SegmentApi(Protocol):
    """What takes a token is fenced by that lease: FencedError once the job has another holder.

    First the uploads of files with segments; then the ends of keys, in short transactions that answer how many rows
    changed.
    """

    async def start_segments(
        self, token: JobToken, file_id: uuid.UUID, level: int, segments: Sequence[NewSegment]
    ) -> StartOutcome:
        """Reserve the file id and record COPY_STARTED, before anything is stored under the id. Idempotent.

        Keys that this lease started under another file id get this attempt; that file is deleted. InvalidError for a
        key in a state that COPY_STARTED may not follow.
        """

    async def reserve_files(self, token: JobToken, file_ids: Sequence[uuid.UUID], level: int) -> bool:
        """Reserve new ids for files before their segments are known: each is valid as long as the lease.

        The cleanup ends those that no key names after that. False if files have no keys. Idempotent.
        """

    async def start_reserved_segments(
        self, token: JobToken, file_id: uuid.UUID, level: int, segments: Sequence[NewSegment]
    ) -> StartOutcome:
        """Start segments as start_segments does; REFUSED unless this lease reserved the id with reserve_files. The
        file may be stored.
        """

    async def finish_lost_upload(self, token: JobToken, file_id: uuid.UUID) -> int:
        """COPY_FINISHED for the keys of an upload, after its lease was lost; not fenced: nothing becomes readable.

        How many keys; the cleanup deletes them. Idempotent.
        """

    async def release_segments(self, token: JobToken, incarnation_id: uuid.UUID, *, limit: int) -> int:
        """Release the references of keys in DELETE_STARTED that no reader needs any more."""

    async def tombstone_segments(self, limit: int) -> int:
        """Tombstones for keys in DELETE_FINISHED, and for those of their end offsets with lower epochs."""

    async def end_orphaned_segments(self, token: JobToken, limit: int) -> int:
        """DELETE_STARTED for uploads without a lease."""

    async def end_unused_reservations(self, token: JobToken, limit: int) -> int:
        """Give reserved ids that no key names to the janitor."""

    async def finish_partition_deletes(self, limit: int) -> int:
        """DELETE_PARTITION_FINISHED, and tombstones, for partitions without keys."""

    async def remove_tombstones(self, token: JobToken, *, older_than_ms: int, limit: int) -> int:
        """Forget tombstones of this age."""

    async def trim_audit(self, token: JobToken, *, older_than_ms: int, limit: int) -> int:
        """Remove records of this age from the audit trail, up to `limit` per metadata partition."""

    async def key_merged_file(self, token: JobToken) -> int:
        """Give one readable merged file its keys, if there is one without."""
