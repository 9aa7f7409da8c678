"""A metadata partition in memory during a migration: old and new writers, retention, compaction; seeded."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.metastore.api.segment_states import RemoteLogSegmentState
from headrace.metastore.segment_logs.migration import RekeyedRecord
from headrace.metastore.segment_logs.projection import StreamRecord, compact, update_of
from headrace.metastore.segment_logs.records import (
    LifecycleRecord,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    SegmentLeaderEpoch,
    TopicIdPartition,
    encode,
    key_of,
)

OWNER = TopicIdPartition(name="orders", id=uuid.UUID(int=77), partition=3)
STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState


def as_version_0(record: LifecycleRecord) -> bytes:
    """The same as a writer from before the change: without tags."""
    value = bytearray(encode(record))
    assert (value[-1], value[2]) == (0, 1), "a legacy record has no epoch"
    value[2] = 0
    return bytes(value)


@dataclass
class LegacyTopic:
    """`records` is the log; time passes by one second with each record."""

    rng: random.Random
    records: list[StreamRecord] = field(default_factory=list)
    now_ms: int = 0
    next_offset: int = 0
    next_start: int = 0
    epoch: int = 1
    open: dict[uuid.UUID, tuple[RemoteLogSegmentMetadataRecord, RemoteLogSegmentState, bool]] = field(
        default_factory=dict
    )
    """Segments that are not deleted: full record, state, and whether their writer is a new one."""

    def append(self, key: bytes | None, value: bytes | None) -> None:
        self.now_ms += 1_000
        self.records.append(StreamRecord(self.next_offset, self.now_ms, key, value))
        self.next_offset += 1

    def write_some(self, count: int, *, new: float) -> None:
        """Uploads and deletions; a writer is a new one with the probability `new`."""
        for _ in range(count):
            is_new = self.rng.random() < new
            if self.open and self.rng.random() < 0.65:
                self._advance(self.rng.choice(sorted(self.open)), is_new=is_new)
            else:
                self._upload(is_new=is_new)

    def write(self, plan: Iterable[RekeyedRecord]) -> None:
        for each in plan:
            self.append(each.key, each.value)

    def expire(self, retention_ms: int) -> None:
        """retention.ms passes for what is older."""
        self.records = [r for r in self.records if r.timestamp_ms > self.now_ms - retention_ms]

    def compact(self) -> None:
        self.records = compact(self.records, now_ms=self.now_ms)

    def _upload(self, *, is_new: bool) -> None:
        again = self.rng.random() < 0.2 and self.next_start > 0
        start = self.next_start - 100 if again else self.next_start
        self.next_start = start + 100
        self.epoch += again and is_new
        segment_id = RemoteLogSegmentId(topic_id_partition=OWNER, id=uuid.UUID(int=self.rng.getrandbits(128)))
        full = RemoteLogSegmentMetadataRecord(
            remote_log_segment_id=segment_id,
            start_offset=start,
            end_offset=start + 99,
            broker_id=1,
            max_timestamp_ms=5,
            event_timestamp_ms=self.now_ms,
            segment_leader_epochs=(SegmentLeaderEpoch(leader_epoch=self.epoch, offset=start),),
            segment_size_in_bytes=10,
            remote_log_segment_state=STARTED,
            broker_leader_epoch=self.epoch if is_new else -1,
        )
        if is_new:
            taken = {str(key_of(f)) for f, _, keyed in self.open.values() if keyed}
            if str(key_of(full)) in taken:
                return
        self.open[segment_id.id] = (full, STARTED, is_new)
        self.append(str(key_of(full)).encode() if is_new else None, encode(full) if is_new else as_version_0(full))

    def _advance(self, segment_id: uuid.UUID, *, is_new: bool) -> None:
        """The next state; a new writer writes keys only of segments that a new one began."""
        full, state, keyed = self.open[segment_id]
        state = RemoteLogSegmentState(state + 1)
        if keyed:
            self.append(str(key_of(full)).encode(), encode(update_of(full, state)))
        else:
            update = RemoteLogSegmentMetadataUpdateRecord(
                remote_log_segment_id=full.remote_log_segment_id,
                broker_id=1,
                event_timestamp_ms=self.now_ms,
                remote_log_segment_state=state,
            )
            self.append(None, as_version_0(update))
        self.open[segment_id] = (full, state, keyed)
        if state is DELETED:
            del self.open[segment_id]
            if keyed:
                self.append(str(key_of(full)).encode(), None)
