"""The scenarios of KAFKA-20033 through the projection: after each table, what compaction leaves and a reader sees.

The rows' records are made from the text as it is; tests/compactor/ compares them with what real workers write.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence

import pytest

from headrace.metastore.api.segment_states import (
    RemoteLogSegmentState,
    RemotePartitionDeleteState,
    RemotePartitionKey,
    RemoteSegmentKey,
    base64url,
    parse_key,
)
from headrace.metastore.segment_logs.projection import DELETE_RETENTION_MS, Projection, StreamRecord, compact
from headrace.metastore.segment_logs.records import (
    LifecycleRecord,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    RemotePartitionDeleteMetadataRecord,
    SegmentLeaderEpoch,
    TopicIdPartition,
    encode,
)
from headrace.storage.errors import IllegalTransitionError, InvalidError
from tests.metastore.segment_logs.scenarios import Row, Scenario, scenarios

pytestmark = pytest.mark.requirement("R3")
TOPIC = uuid.UUID("01020304-0506-0708-090a-0b0c0d0e0f10")
ORDERS = TopicIdPartition(name="orders", id=TOPIC, partition=0)
PARTITION = RemotePartitionKey(TOPIC, 0)
START_OFFSET = 10
LEADER_EPOCH = 2


def key_in(text: str) -> RemoteSegmentKey | RemotePartitionKey:
    return parse_key(text.strip().replace("abc123", base64url(TOPIC)))


def uuid_of(name: str) -> uuid.UUID:
    return uuid.UUID(int=0xABC0 + ord(name[-1]))


def record_of(row: Row, uuids: dict[RemoteSegmentKey | RemotePartitionKey, str]) -> LifecycleRecord | None:
    """The record that the row describes; None for a tombstone. `uuids`: each key's, where a row does not name it."""
    if row.value == "null":
        return None
    said, key, time = row.fields(), key_in(row.key), int(row.time[1:])
    if isinstance(key, RemotePartitionKey):
        return RemotePartitionDeleteMetadataRecord(
            topic_id_partition=ORDERS,
            broker_id=101,
            event_timestamp_ms=time,
            remote_partition_delete_state=RemotePartitionDeleteState[said["state"]],
            broker_leader_epoch=1,
            end_offset=0,
        )
    name = uuids[key] = said.get("uuid") or uuids.get(key, "UUID-C")
    segment_id = RemoteLogSegmentId(topic_id_partition=ORDERS, id=uuid_of(name))
    state = RemoteLogSegmentState(int(said["state"]))
    if said["apiKey"] == "0":
        return full_record(key, segment_id, state)
    return RemoteLogSegmentMetadataUpdateRecord(
        remote_log_segment_id=segment_id,
        broker_id=101,
        event_timestamp_ms=time,
        remote_log_segment_state=state,
        broker_leader_epoch=key.epoch,
        end_offset=key.end_offset,
    )


def full_record(
    key: RemoteSegmentKey, segment_id: RemoteLogSegmentId, state: RemoteLogSegmentState
) -> RemoteLogSegmentMetadataRecord:
    return RemoteLogSegmentMetadataRecord(
        remote_log_segment_id=segment_id,
        start_offset=START_OFFSET,
        end_offset=key.end_offset,
        broker_id=101,
        max_timestamp_ms=7,
        event_timestamp_ms=1,
        segment_leader_epochs=(SegmentLeaderEpoch(leader_epoch=LEADER_EPOCH, offset=START_OFFSET),),
        segment_size_in_bytes=1_000,
        remote_log_segment_state=state,
        broker_leader_epoch=key.epoch,
    )


def stream_of(scenario: Scenario) -> list[StreamRecord]:
    """The initial state, then a record per message; a second for each T."""
    uuids: dict[RemoteSegmentKey | RemotePartitionKey, str] = {}
    records: list[StreamRecord] = []
    for text, name in scenario.initial:
        key = key_in(text)
        assert isinstance(key, RemoteSegmentKey)
        segment_id = RemoteLogSegmentId(topic_id_partition=ORDERS, id=uuid_of(name))
        for state in (RemoteLogSegmentState.COPY_SEGMENT_STARTED, RemoteLogSegmentState.COPY_SEGMENT_FINISHED):
            value = encode(full_record(key, segment_id, state))
            records.append(StreamRecord(len(records), 0, str(key).encode(), value))
    for row in scenario.messages:
        record = record_of(row, uuids)
        time_ms = int(row.time[1:]) * 1_000
        value = None if record is None else encode(record)
        records.append(StreamRecord(len(records), time_ms, str(key_in(row.key)).encode(), value))
    return records


def projected(stream: Sequence[StreamRecord], *, is_compacted: bool = False) -> Projection:
    projection = Projection()
    for record in stream:
        projection.apply(record, is_compacted=is_compacted)
    return projection


def test_the_text_has_the_five_scenarios() -> None:
    assert list(scenarios()) == [1, 2, 3, 4, 5]
    assert [len(s.rows) for s in scenarios().values()] == [2, 5, 4, 12, 2]
    assert [len(s.messages) for s in scenarios().values()] == [2, 4, 3, 6, 2]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_uploads_leave_what_the_text_says(number: int) -> None:
    scenario = scenarios()[number]
    stream = stream_of(scenario)
    kept = compact(stream, now_ms=10_000)
    assert [r.key and r.key.decode() for r in kept] == [str(key_in(key)) for key, _ in scenario.compacted]
    full = projected(stream)
    live = list(full.live(PARTITION))
    assert [str(segment.key) for segment in live] == [str(key_in(key)) for key, _ in scenario.compacted]
    for segment, (_, name) in zip(live, scenario.compacted, strict=True):
        name = name or re.findall(r"UUID-[A-Z]", scenario.cache)[0]
        assert (segment.segment_id, segment.state.name) == (uuid_of(name), "COPY_SEGMENT_FINISHED")
    again = projected(kept, is_compacted=True)
    assert {s.key: (s.segment_id, s.state) for s in again.live(PARTITION)} == {
        s.key: (s.segment_id, s.state) for s in live
    }


@pytest.mark.requirement("R8")
def test_the_cache_selects_what_the_text_selects() -> None:
    for number in (1, 2, 3):
        scenario = scenarios()[number]
        projection = projected(stream_of(scenario))
        (selected,) = (
            re.findall(r"selects (UUID-[A-Z])", scenario.cache) or re.findall(r"UUID-[A-Z]", scenario.cache)[:1]
        )
        end_offset = max(key.end_offset for key in projection.segments)
        for offset in (START_OFFSET, end_offset):
            found = projection.segment_at(PARTITION, offset)
            assert found is not None
            assert found.segment_id == uuid_of(selected)
        assert projection.segment_at(PARTITION, START_OFFSET - 1) is None
        assert projection.segment_at(PARTITION, end_offset + 1) is None
        assert projection.highest_offset(PARTITION, LEADER_EPOCH) == end_offset
        assert projection.highest_offset(PARTITION, LEADER_EPOCH + 1) == -1


@pytest.mark.requirement("R5")
def test_a_deletion_buries_every_key_of_its_prefix() -> None:
    scenario = scenarios()[4]
    stream = stream_of(scenario)
    deleted = key_in(scenario.messages[1].key)
    assert isinstance(deleted, RemoteSegmentKey)
    first_tombstone = next(n for n, record in enumerate(stream) if record.value is None)
    before = projected(stream[:first_tombstone])
    assert before.segments[deleted].state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
    planned = before.tombstones_after(deleted)
    assert [str(key) for key in planned] == [str(key_in(row.key)) for row in scenario.messages[2:]]
    assert [str(key) for key in planned] == [str(key_in(text)) for text in scenario.tombstones]
    assert list(projected(stream).segments) == []
    for row, record in zip(scenario.messages[2:], stream[first_tombstone:], strict=True):
        (gone,) = [later for later in scenario.rows if later.time == f"{row.time}+24Hour"]
        assert row.key in gone.event
        due_ms = record.timestamp_ms + DELETE_RETENTION_MS
        assert record in compact(stream, now_ms=due_ms - 1)
        assert record not in compact(stream, now_ms=due_ms)
    assert compact(stream, now_ms=DELETE_RETENTION_MS + 8_000) == []


@pytest.mark.requirement("R5")
def test_a_key_of_a_newer_epoch_is_not_buried() -> None:
    stream = stream_of(scenarios()[2])
    projection = projected(stream)
    older = RemoteSegmentKey(TOPIC, 0, 2000, 3)
    assert projection.tombstones_after(older) == [older]


def test_a_partition_is_marked_and_forgotten() -> None:
    scenario = scenarios()[5]
    stream = stream_of(scenario)
    projection = projected(stream)
    assert projection.partitions == {PARTITION: RemotePartitionDeleteState.DELETE_PARTITION_FINISHED}
    kept = compact(stream, now_ms=10_000)
    assert [record.key for record in kept] == [str(PARTITION).encode()]
    assert projection.apply(StreamRecord(9, 9, str(PARTITION).encode(), None))
    assert projection.partitions == {}


def test_what_is_refused_changes_nothing() -> None:
    stream = stream_of(scenarios()[1])
    projection = projected(stream)
    before = dict(projection.segments)
    key, other = str(RemoteSegmentKey(TOPIC, 0, 1000, 3)).encode(), str(RemoteSegmentKey(TOPIC, 0, 1000, 4)).encode()
    with pytest.raises(IllegalTransitionError, match="from=COPY_SEGMENT_FINISHED to=COPY_SEGMENT_STARTED"):
        projection.apply(stream[0]._replace(offset=9))
    with pytest.raises(InvalidError, match="foreign key"):
        projection.apply(stream[1]._replace(key=other))
    with pytest.raises(InvalidError, match="without a key: offset=4"):
        projection.apply(StreamRecord(4, 0, None, stream[1].value))
    with pytest.raises(InvalidError, match="without a key"):
        compact([StreamRecord(4, 0, None, stream[1].value)], now_ms=0)
    with pytest.raises(IllegalTransitionError, match="from=no record"):
        Projection().apply(stream[1])
    assert projection.segments == before
    assert not projection.apply(StreamRecord(5, 0, other, None))
    assert projection.apply(StreamRecord(6, 0, key, None))
    assert projection.segments == {}


def test_compaction_at_any_point_keeps_the_state() -> None:
    for scenario in scenarios().values():
        stream = stream_of(scenario)
        for middle in range(len(stream) + 1):
            half = compact(stream[:middle], now_ms=0)
            state = projected([*half, *stream[middle:]], is_compacted=True)
            whole = projected(stream)
            assert {k: s.state for k, s in state.segments.items()} == {k: s.state for k, s in whole.segments.items()}
            assert state.partitions == whole.partitions
