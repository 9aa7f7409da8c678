"""The current state of a stream of lifecycle records: what compaction keeps of it for a reader.

Place: what Postgres holds in rows is defined here, and tests compare both; imports of legacy topics use it as well.
rendering.py and migration.py write updates that say all of their segment.
Invariant of such updates: after compaction the update of a finished upload is the only record of its key, and
`full_of` has what the segment's first record said. Custom metadata of others is bytes of any kind, and says nothing
here.
Invariant: the state of a stream is the state of its compacted form, for every point at which it is compacted. A
record that is refused changes nothing.
Source: KAFKA-20033, "Topics and Configurations", "Broker Read Path"; KIP-405, RemoteLogMetadataCache.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.metastore.api.segment_states import (
    Latest,
    LifecycleKey,
    RemoteLogSegmentState,
    RemotePartitionDeleteState,
    RemotePartitionKey,
    RemoteSegmentKey,
    parse_key,
    partition_transition,
    segment_transition,
)
from headrace.metastore.segment_logs.records import (
    NO_OFFSET,
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    RemotePartitionDeleteMetadataRecord,
    SegmentLeaderEpoch,
    SegmentRecord,
    Versioned,
    decode,
    key_of,
)
from headrace.storage.errors import InvalidError


def update_of(
    full: RemoteLogSegmentMetadataRecord, state: RemoteLogSegmentState
) -> RemoteLogSegmentMetadataUpdateRecord:
    """The update that is the segment's only record after compaction: its custom metadata has what the update lacks."""
    facts = {
        "startOffset": full.start_offset,
        "maxTimestampMs": full.max_timestamp_ms,
        "sizeBytes": full.segment_size_in_bytes,
        "leaderEpochs": [[each.leader_epoch, each.offset] for each in full.segment_leader_epochs],
        "custom": None if full.custom_metadata is None else full.custom_metadata.hex(),
    }
    return RemoteLogSegmentMetadataUpdateRecord(
        remote_log_segment_id=full.remote_log_segment_id,
        broker_id=full.broker_id,
        event_timestamp_ms=full.event_timestamp_ms,
        custom_metadata=json.dumps(facts).encode(),
        remote_log_segment_state=state,
        broker_leader_epoch=full.broker_leader_epoch,
        end_offset=full.end_offset,
    )


def full_of(value: RemoteLogSegmentMetadataUpdateRecord) -> RemoteLogSegmentMetadataRecord | None:
    """The segment of an update, by its custom metadata; None if that is not ours, or has no start offset."""
    try:
        facts = json.loads(value.custom_metadata or b"null")
        if not isinstance(facts, dict) or value.end_offset == NO_OFFSET:
            return None
        epochs = facts.get("leaderEpochs") or [[facts.get("leaderEpoch", 0), facts["startOffset"]]]
        custom = facts.get("custom")
        return RemoteLogSegmentMetadataRecord(
            remote_log_segment_id=value.remote_log_segment_id,
            start_offset=facts["startOffset"],
            end_offset=value.end_offset,
            broker_id=value.broker_id,
            max_timestamp_ms=facts.get("maxTimestampMs", -1),
            event_timestamp_ms=value.event_timestamp_ms,
            segment_leader_epochs=tuple(SegmentLeaderEpoch(leader_epoch=e, offset=o) for e, o in epochs),
            segment_size_in_bytes=facts.get("sizeBytes", 0),
            custom_metadata=None if custom is None else bytes.fromhex(custom),
            remote_log_segment_state=value.remote_log_segment_state,
            broker_leader_epoch=value.broker_leader_epoch,
        )
    except (ValueError, KeyError, TypeError):
        return None


DELETE_RETENTION_MS = 86_400_000
"""How long a tombstone stays: delete.retention.ms of __remote_log_metadata."""


class StreamRecord(NamedTuple):
    """One record of a metadata partition; `value` None is a tombstone."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """What is known of a key. `start_offset` is NO_OFFSET if only an update without its facts was read."""

    key: RemoteSegmentKey
    segment_id: uuid.UUID
    state: RemoteLogSegmentState
    start_offset: int = NO_OFFSET
    size_bytes: int = 0
    max_timestamp_ms: int = -1
    leader_epochs: tuple[tuple[int, int], ...] = ()
    """(leader epoch, its first offset here), rising."""

    @property
    def is_readable(self) -> bool:
        """Whether readers may use it: copied completely, and not being deleted."""
        return self.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED


def compact(
    stream: Iterable[StreamRecord], *, now_ms: int, retention_ms: int = DELETE_RETENTION_MS
) -> list[StreamRecord]:
    """The last record of each key, in offset order; a tombstone goes `retention_ms` after it was written."""
    last: dict[bytes, StreamRecord] = {}
    for record in stream:
        if record.key is None:
            raise InvalidError(f"record without a key in a compacted topic: offset={record.offset}")
        last[record.key] = record
    kept = (r for r in last.values() if r.value is not None or now_ms < r.timestamp_ms + retention_ms)
    return sorted(kept, key=lambda record: record.offset)


@dataclass(slots=True)
class Projection:
    """The latest state per key."""

    segments: dict[RemoteSegmentKey, Segment] = field(default_factory=dict)
    partitions: dict[RemotePartitionKey, RemotePartitionDeleteState] = field(default_factory=dict)

    def apply(self, record: StreamRecord, *, is_compacted: bool = False) -> bool:
        """Return whether the record changed the state.

        `is_compacted`: earlier records of the key may be gone, so any state may be a key's first. InvalidError for a
        key that does not parse or is not the record's; IllegalTransitionError; errors of `decode`.
        """
        if record.key is None:
            raise InvalidError(f"lifecycle record without a key: offset={record.offset}")
        key = parse_key(record.key)
        if record.value is None:
            return self._bury(key)
        value = decode(record.value)
        return self._set(key, value, is_compacted=is_compacted)

    def live(self, partition: RemotePartitionKey) -> Iterator[Segment]:
        """The partition's readable segments by end offset and rising epoch."""
        keys = sorted(key for key in self.segments if key.of_partition == partition)
        return (self.segments[key] for key in keys if self.segments[key].is_readable)

    def segment_at(self, partition: RemotePartitionKey, offset: int) -> Segment | None:
        """The readable segment that holds the offset; of several, that of the highest epoch."""
        found = [s for s in self.live(partition) if s.start_offset <= offset <= s.key.end_offset]
        return max(found, key=lambda segment: segment.key.epoch, default=None)

    def highest_offset(self, partition: RemotePartitionKey, leader_epoch: int) -> int:
        """The highest offset of this leader epoch in a readable segment; NO_OFFSET if there is none."""
        return max((_last_of(s, leader_epoch) for s in self.live(partition)), default=NO_OFFSET)

    def tombstones_after(self, deleted: RemoteSegmentKey) -> list[RemoteSegmentKey]:
        """The keys to bury when `deleted` is DELETE_SEGMENT_FINISHED: its prefix, no larger epoch, its own last."""
        same = [k for k in self.segments if k[:3] == deleted[:3] and k.epoch <= deleted.epoch]
        return sorted(same, key=lambda key: key.epoch)

    def _bury(self, key: LifecycleKey) -> bool:
        if isinstance(key, RemoteSegmentKey):
            return self.segments.pop(key, None) is not None
        return self.partitions.pop(key, None) is not None

    def _set(self, key: LifecycleKey, value: Versioned, *, is_compacted: bool) -> bool:
        record = value.record
        if (own := key_of(record)) != key:
            raise InvalidError(f"lifecycle record under a foreign key: key={key} record={own}")
        if isinstance(record, RemotePartitionDeleteMetadataRecord):
            assert isinstance(key, RemotePartitionKey)
            return self._set_partition(
                key, RemotePartitionDeleteState(record.remote_partition_delete_state), is_compacted
            )
        assert isinstance(key, RemoteSegmentKey)
        return self._set_segment(key, record, is_compacted)

    def _set_partition(self, key: RemotePartitionKey, state: RemotePartitionDeleteState, is_compacted: bool) -> bool:
        before = self.partitions.get(key)
        if not (before is None and is_compacted) and not partition_transition(key, before, state):
            return False
        self.partitions[key] = state
        return True

    def _set_segment(self, key: RemoteSegmentKey, record: SegmentRecord, is_compacted: bool) -> bool:
        before = self.segments.get(key)
        new = Latest(RemoteLogSegmentState(record.remote_log_segment_state), record.remote_log_segment_id.id)
        latest = None if before is None else Latest(before.state, before.segment_id)
        if not (latest is None and is_compacted) and not segment_transition(key, latest, new):
            return False
        if isinstance(record, RemoteLogSegmentMetadataRecord):
            self.segments[key] = segment_of(key, record)
        elif before is not None:
            self.segments[key] = dataclasses.replace(before, state=new.state)
        elif (full := full_of(record)) is not None:
            self.segments[key] = segment_of(key, full)
        else:
            self.segments[key] = Segment(key=key, segment_id=new.segment_id, state=new.state)
        return True


def segment_of(key: RemoteSegmentKey, record: RemoteLogSegmentMetadataRecord) -> Segment:
    """The segment that a full record describes."""
    return Segment(
        key=key,
        segment_id=record.remote_log_segment_id.id,
        state=RemoteLogSegmentState(record.remote_log_segment_state),
        start_offset=record.start_offset,
        size_bytes=record.segment_size_in_bytes,
        max_timestamp_ms=record.max_timestamp_ms,
        leader_epochs=tuple((epoch.leader_epoch, epoch.offset) for epoch in record.segment_leader_epochs),
    )


def _last_of(segment: Segment, leader_epoch: int) -> int:
    """The last offset of a leader epoch in the segment; NO_OFFSET if it has none."""
    starts = dict(segment.leader_epochs)
    if leader_epoch not in starts:
        return NO_OFFSET
    return min((s - 1 for s in starts.values() if s > starts[leader_epoch]), default=segment.key.end_offset)
