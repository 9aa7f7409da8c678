"""Rows of the lifecycle tables as Kafka records: key, value, time.

Place: between the rows of metastore/api/segments.py and the topics that show them.
Invariant: the same row gives the same bytes on every agent, but for the topic's name, which is empty once the topic is
deleted. A row with a tombstone has no value.
A finished upload is an update record, which has no start offset; after compaction it is the only one of its key. So
each update carries what the table knows as custom metadata: a JSON object with the fields of `custom_metadata`.
"""

from __future__ import annotations

import json
import uuid

from headrace.metastore.api.segment_states import INT32_MAX, LifecycleKey, RemotePartitionKey, RemoteSegmentKey
from headrace.metastore.api.segments import (
    PartitionMarker,
    RemoteSegment,
    SegmentCause,
    SegmentEvent,
    SegmentFacts,
)
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
from headrace.storage.records.codec import Record


def log_record(row: RemoteSegment | PartitionMarker, name: str) -> Record:
    """A record of __remote_log_metadata."""
    time_ms = row.event_ms if row.tombstoned_ms is None else row.tombstoned_ms
    if isinstance(row, PartitionMarker):
        key = str(RemotePartitionKey(row.topic_id, row.partition_index))
        record: LifecycleRecord = _partition_record(row.topic_id, row.partition_index, name, row)
    else:
        key = str(row.key)
        facts = SegmentFacts(row.start_offset, row.leader_epoch, row.max_timestamp, row.size)
        record = _segment_record(row, row.key, name, facts, is_update=row.state > 0)
    value = encode(record) if row.tombstoned_ms is None else None
    return Record(row.log_offset, time_ms, key.encode(), value)


def audit_record(event: SegmentEvent, name: str) -> Record:
    """A record of the audit trail."""
    if event.segment_id is None:
        key: LifecycleKey = event.key.of_partition
        record: LifecycleRecord = _partition_record(event.key.topic_id, event.key.partition, name, event)
    else:
        key = event.key
        record = _segment_record(event, event.key, name, event.facts, is_update=event.api_key == 1)
    return Record(event.audit_offset, event.event_ms, str(key).encode(), encode(record))


def custom_metadata(
    cause: SegmentCause, file_id: uuid.UUID | None, job_id: int | None, facts: SegmentFacts | None
) -> bytes:
    """Return what an update says beyond Kafka's fields, as JSON; fields without a value are left out."""
    said: dict[str, object] = {
        "cause": cause.name,
        "fileId": None if file_id is None else str(file_id),
        "jobId": job_id,
    }
    if facts is not None:
        said |= {
            "startOffset": facts.start_offset,
            "leaderEpoch": facts.leader_epoch,
            "maxTimestampMs": facts.max_timestamp,
            "sizeBytes": facts.size,
        }
    return json.dumps({name: value for name, value in said.items() if value is not None}).encode()


def _segment_record(
    row: RemoteSegment | SegmentEvent, key: RemoteSegmentKey, name: str, facts: SegmentFacts | None, *, is_update: bool
) -> LifecycleRecord:
    assert row.segment_id is not None
    owner = TopicIdPartition(name=name, id=key.topic_id, partition=key.partition)
    segment_id = RemoteLogSegmentId(topic_id_partition=owner, id=row.segment_id)
    custom = custom_metadata(row.cause, row.file_id, row.job_id, facts)
    if is_update:
        return RemoteLogSegmentMetadataUpdateRecord(
            remote_log_segment_id=segment_id,
            broker_id=row.broker_id,
            event_timestamp_ms=row.event_ms,
            custom_metadata=custom,
            remote_log_segment_state=row.state,
            broker_leader_epoch=key.epoch,
            end_offset=key.end_offset,
        )
    assert facts is not None
    return RemoteLogSegmentMetadataRecord(
        remote_log_segment_id=segment_id,
        start_offset=facts.start_offset,
        end_offset=key.end_offset,
        broker_id=row.broker_id,
        max_timestamp_ms=facts.max_timestamp,
        event_timestamp_ms=row.event_ms,
        segment_leader_epochs=(SegmentLeaderEpoch(leader_epoch=facts.leader_epoch, offset=facts.start_offset),),
        segment_size_in_bytes=min(facts.size, INT32_MAX),
        custom_metadata=custom,
        remote_log_segment_state=row.state,
        broker_leader_epoch=key.epoch,
    )


def _partition_record(
    topic_id: uuid.UUID, index: int, name: str, row: PartitionMarker | SegmentEvent
) -> RemotePartitionDeleteMetadataRecord:
    epoch, end_offset = (row.epoch, row.end_offset) if isinstance(row, PartitionMarker) else row.key[3:1:-1]
    return RemotePartitionDeleteMetadataRecord(
        topic_id_partition=TopicIdPartition(name=name, id=topic_id, partition=index),
        broker_id=row.broker_id,
        event_timestamp_ms=row.event_ms,
        remote_partition_delete_state=row.state,
        broker_leader_epoch=epoch,
        end_offset=end_offset,
    )
