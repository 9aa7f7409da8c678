"""The way from a legacy topic of lifecycle records, without keys, to the compacted one: what it means, what must be
written.

Place: under `headrace segments migrate`, which reads and writes a live topic; pure, so that each step is tested.
Invariant: the logical state (`live`) is the same before and after every step: finite retention, new writers next to old
ones, the end of the retention window, compaction. A legacy record has no end offset (update) and no epoch: the end
offset is looked up by uuid; the epoch is the highest leader epoch that the segment lists. Of several uuids with one end
offset and one such epoch, the one that was written last gets it, and those before it get the next lower free ones.
Source: KAFKA-20033, "Existing clusters".
"""

from __future__ import annotations

import dataclasses
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.metastore.api.segment_states import RemoteLogSegmentState, RemotePartitionKey, RemoteSegmentKey, parse_key
from headrace.metastore.segment_logs.projection import StreamRecord, full_of, update_of
from headrace.metastore.segment_logs.records import (
    NO_EPOCH,
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    RemotePartitionDeleteMetadataRecord,
    decode,
    encode,
    key_of,
)
from headrace.storage.errors import InvalidError

_DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


class LiveSegment(NamedTuple):
    """What must not change: which offsets of which partition a uuid has, and its state."""

    partition: RemotePartitionKey
    start_offset: int
    end_offset: int
    state: RemoteLogSegmentState


class RekeyedRecord(NamedTuple):
    """A record to write; `value` None is a tombstone."""

    key: bytes
    value: bytes | None


@dataclass(slots=True)
class _Known:
    """One uuid. `full` is None while only updates of it were read."""

    full: RemoteLogSegmentMetadataRecord | None
    state: RemoteLogSegmentState
    written: int
    """The number of its last record in the stream."""
    key: RemoteSegmentKey | None
    """None as long as no record of it had one."""
    is_keyed: bool
    """Whether its last record that changed something has the key."""


@dataclass(slots=True)
class MigrationState:
    """What a stream of records with and without keys says."""

    records: int = 0
    unkeyed: int = 0
    segments: dict[uuid.UUID, _Known] = field(default_factory=dict)
    markers: dict[RemotePartitionKey, tuple[RemotePartitionDeleteMetadataRecord, bool]] = field(default_factory=dict)
    """Each with whether its last record has a key."""
    uuids: dict[RemoteSegmentKey, set[uuid.UUID]] = field(default_factory=lambda: defaultdict(set))
    """Uuids by key: the segments that have it, and some that have another one by now."""

    def live(self) -> dict[uuid.UUID, LiveSegment]:
        """The segments that are not deleted, without those that are `lost`."""
        found = {}
        for segment_id, known in self.segments.items():
            if known.state is not _DELETED and known.full is not None:
                owner = known.full.remote_log_segment_id.topic_id_partition
                partition = RemotePartitionKey(owner.id, owner.partition)
                found[segment_id] = LiveSegment(partition, known.full.start_offset, known.full.end_offset, known.state)
        return found

    def lost(self) -> list[uuid.UUID]:
        """Live segments of which only updates are left: their first record expired before it got a key."""
        return [uid for uid, known in self.segments.items() if known.full is None and known.state is not _DELETED]

    def without_key(self) -> list[uuid.UUID]:
        """Live segments with a last record that has no key."""
        live = self.live()
        return [uid for uid, known in self.segments.items() if not known.is_keyed and uid in live]

    def undead(self) -> list[RemoteSegmentKey]:
        """Keys of segments with a deletion that was recorded without the key: only a tombstone ends them."""
        return [
            known.key
            for known in self.segments.values()
            if known.key is not None and not known.is_keyed and known.state is _DELETED
        ]


def replay(stream: Iterable[StreamRecord]) -> MigrationState:
    """The state of a metadata partition, or of several one after another. Errors of `decode` and `parse_key`."""
    state = MigrationState()
    for record in stream:
        state.records += 1
        key = None if record.key is None else parse_key(record.key)
        state.unkeyed += key is None
        if record.value is None:
            if isinstance(key, RemoteSegmentKey):
                _bury(state, key)
            elif key is not None:
                state.markers.pop(key, None)
            continue
        value = decode(record.value).record
        if isinstance(value, RemotePartitionDeleteMetadataRecord):
            owner = RemotePartitionKey(value.topic_id_partition.id, value.topic_id_partition.partition)
            state.markers[owner] = (value, key is not None)
        elif key is None or isinstance(key, RemoteSegmentKey):
            _add(state, key, value)
        else:
            raise InvalidError(f"lifecycle record under a foreign key: key={key}")
    return state


def rekey(state: MigrationState) -> list[RekeyedRecord]:
    """Return what gives every live segment and every marker without a key its key: full record, then its state.

    InvalidError if a live segment's first record has expired.
    """
    if lost := state.lost():
        raise InvalidError(f"live segments without their first record: count={len(lost)} first={lost[0]}")
    written: list[RekeyedRecord] = []
    epochs = _epochs(state)
    for segment_id in state.without_key():
        known = state.segments[segment_id]
        assert known.full is not None
        full = dataclasses.replace(
            known.full,
            broker_leader_epoch=epochs[segment_id] if known.key is None else known.key.epoch,
            remote_log_segment_state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
        )
        key = str(key_of(full)).encode()
        if known.key is None:
            written.append(RekeyedRecord(key, encode(full)))
        if known.state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            written.append(RekeyedRecord(key, encode(update_of(full, known.state))))
    written += [RekeyedRecord(str(key).encode(), None) for key in state.undead()]
    ends: dict[RemotePartitionKey, int] = defaultdict(int)
    for segment in state.live().values():
        ends[segment.partition] = max(ends[segment.partition], segment.end_offset)
    for partition, (marker, has_key) in state.markers.items():
        if not has_key:
            keyed = dataclasses.replace(marker, broker_leader_epoch=0, end_offset=ends[partition])
            written.append(RekeyedRecord(str(partition).encode(), encode(keyed)))
    return written


def require_compactable(state: MigrationState) -> None:
    """InvalidError while compaction would lose something: a record without a key cannot be in a compacted topic."""
    if pending := state.without_key():
        raise InvalidError(f"live segments have no key yet: count={len(pending)} first={pending[0]}: rekey first")
    if undead := state.undead():
        raise InvalidError(f"deleted segments have no tombstone: count={len(undead)} first={undead[0]}: rekey first")
    if state.unkeyed:
        raise InvalidError(f"records without a key are left: count={state.unkeyed}: wait for the end of retention.ms")


def _add(
    state: MigrationState,
    key: RemoteSegmentKey | None,
    value: RemoteLogSegmentMetadataRecord | RemoteLogSegmentMetadataUpdateRecord,
) -> None:
    if key is not None and key_of(value) != key:
        raise InvalidError(f"lifecycle record under a foreign key: key={key} record={key_of(value)}")
    segment_id, number = value.remote_log_segment_id.id, state.records
    new = RemoteLogSegmentState(value.remote_log_segment_state)
    known = state.segments.get(segment_id)
    if isinstance(value, RemoteLogSegmentMetadataRecord):
        if key is not None:
            _bury(state, key)  # an upload that failed and is tried again has the same key and another uuid
        state.segments[segment_id] = _Known(value, new, number, key, key is not None)
    elif known is not None and known.full is not None:
        known.is_keyed = key is not None or (known.is_keyed and new is known.state)
        known.state, known.written, known.key = new, number, key or known.key
    else:
        state.segments[segment_id] = _Known(full_of(value), new, number, key, key is not None)
    if key is not None:
        state.uuids[key].add(segment_id)


def _bury(state: MigrationState, key: RemoteSegmentKey) -> None:
    for segment_id in state.uuids.pop(key, ()):
        if segment_id in state.segments and state.segments[segment_id].key == key:
            del state.segments[segment_id]


def _epochs(state: MigrationState) -> dict[uuid.UUID, int]:
    """Return the epochs by the stated rule, for each live segment without a key."""
    found: dict[uuid.UUID, int] = {}
    taken: dict[tuple[RemotePartitionKey, int], set[int]] = defaultdict(set)
    for known in state.segments.values():
        if known.key is not None:
            taken[known.key.of_partition, known.key.end_offset].add(known.key.epoch)
    every = state.live()
    for segment_id in sorted(state.without_key(), key=lambda uid: -state.segments[uid].written):
        known, live = state.segments[segment_id], every[segment_id]
        assert known.full is not None
        if known.key is not None:
            continue
        used = taken[live.partition, live.end_offset]
        wanted = max((each.leader_epoch for each in known.full.segment_leader_epochs), default=0)
        epoch = next(_free(wanted, used))
        used.add(epoch)
        found[segment_id] = epoch
    return found


def _free(wanted: int, used: set[int]) -> Iterator[int]:
    """The wanted epoch, the next lower ones, then higher ones."""
    yield from (epoch for epoch in range(max(wanted, 0), NO_EPOCH, -1) if epoch not in used)
    yield from (epoch for epoch in range(max(wanted, 0) + 1, max(wanted, 0) + len(used) + 2) if epoch not in used)
