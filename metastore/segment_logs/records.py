"""Lifecycle records in Kafka's own serialisation: api keys 0 to 2, versions 0 to 1.

Place: the values of __remote_log_metadata and its audit trail; read from a legacy topic, too. Tools ask in which
metadata partition a partition's records are (Kafka's RemoteLogMetadataTopicPartitioner).
Invariant: what is written is version 1, and reading it gives an equal record. A version, api key or frame that this
software does not know is refused by name; damaged bytes raise CorruptError.

A record is `frame version 1, api key, version` as unsigned varints, then the body in the flexible encoding.
BrokerLeaderEpoch is tag 0, EndOffset is tag 1 of the update and of the partition's delete record. On the segment's
record Kafka gave tag 0 to TxnIndexEmpty meanwhile, a bool: in version 0 tag 0 is TxnIndexEmpty; in version 1 its
size tells (4 bytes are the epoch, 1 byte is TxnIndexEmpty; its writer has the epoch in tag 1). See decisions/0048.
Source: KAFKA-20033, "Public Interfaces"; Kafka 4.1, storage/src/main/resources/message.
Invariant of the placement: all records of a partition are in one metadata partition, so they are in order.
Source: KIP-405; Kafka 4.1, RemoteLogMetadataTopicPartitioner: murmur2 of Java's Objects.hash of the topic id's low
and high half and of the partition.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, NamedTuple, get_type_hints

from headrace.metastore.api.segment_states import (
    RemoteLogSegmentState,
    RemotePartitionDeleteState,
    RemotePartitionKey,
    RemoteSegmentKey,
)
from headrace.metastore.api.segments import METADATA_PARTITIONS
from headrace.metastore.log.wire import (
    Array,
    Bytes,
    FieldCodec,
    Fixed,
    NotNull,
    Reader,
    String,
    Structure,
    Uuid,
    read_tagged,
    tagged_fields,
    write_tagged,
    write_uvarint,
)
from headrace.metastore.partitions.placement import key_hash
from headrace.storage.errors import CorruptError, InvalidError

FRAME_VERSION = 1
VERSION = 1
"""What is written; version 0 is read, too."""
NO_EPOCH = -1
NO_OFFSET = -1

_INT8, _INT32, _INT64, _BOOL = Fixed("b"), Fixed("i"), Fixed("q"), Fixed("?")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicIdPartition:
    """A partition by name and id."""

    name: Annotated[str, NotNull(String())]
    id: Annotated[uuid.UUID, Uuid()]
    partition: Annotated[int, _INT32]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentId:
    """A segment: its partition, and the uuid of one attempt to copy it."""

    topic_id_partition: Annotated[TopicIdPartition, Structure(TopicIdPartition)]
    id: Annotated[uuid.UUID, Uuid()]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLeaderEpoch:
    """`offset`: where the epoch starts inside the segment."""

    leader_epoch: Annotated[int, _INT32]
    offset: Annotated[int, _INT64]


_SEGMENT_ID = Structure(RemoteLogSegmentId)
_LEADER_EPOCHS = NotNull(Array(Structure(SegmentLeaderEpoch)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentMetadataRecord:
    """A segment as its upload starts. `broker_leader_epoch` is NO_EPOCH in version 0."""

    api_key: ClassVar[int] = 0
    remote_log_segment_id: Annotated[RemoteLogSegmentId, _SEGMENT_ID]
    start_offset: Annotated[int, _INT64]
    end_offset: Annotated[int, _INT64]
    broker_id: Annotated[int, _INT32]
    max_timestamp_ms: Annotated[int, _INT64]
    event_timestamp_ms: Annotated[int, _INT64]
    segment_leader_epochs: Annotated[tuple[SegmentLeaderEpoch, ...], _LEADER_EPOCHS]
    segment_size_in_bytes: Annotated[int, _INT32]
    custom_metadata: Annotated[bytes | None, Bytes()] = None
    remote_log_segment_state: Annotated[int, _INT8]
    broker_leader_epoch: int = NO_EPOCH
    txn_index_empty: bool = False
    """Read only: in version 1 the epoch has its tag, and False makes a reader look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentMetadataUpdateRecord:
    """A later state of a segment. Epoch and end offset are absent (-1) in version 0."""

    api_key: ClassVar[int] = 1
    remote_log_segment_id: Annotated[RemoteLogSegmentId, _SEGMENT_ID]
    broker_id: Annotated[int, _INT32]
    event_timestamp_ms: Annotated[int, _INT64]
    custom_metadata: Annotated[bytes | None, Bytes()] = None
    remote_log_segment_state: Annotated[int, _INT8]
    broker_leader_epoch: int = NO_EPOCH
    end_offset: int = NO_OFFSET


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePartitionDeleteMetadataRecord:
    """A partition's delete marker. Epoch and end offset are absent (-1) in version 0."""

    api_key: ClassVar[int] = 2
    topic_id_partition: Annotated[TopicIdPartition, Structure(TopicIdPartition)]
    broker_id: Annotated[int, _INT32]
    event_timestamp_ms: Annotated[int, _INT64]
    remote_partition_delete_state: Annotated[int, _INT8]
    broker_leader_epoch: int = NO_EPOCH
    end_offset: int = NO_OFFSET


SegmentRecord = RemoteLogSegmentMetadataRecord | RemoteLogSegmentMetadataUpdateRecord
LifecycleRecord = SegmentRecord | RemotePartitionDeleteMetadataRecord


class Versioned(NamedTuple):
    """A record and the version in which it was written."""

    record: LifecycleRecord
    version: int


class _Tag(NamedTuple):
    number: int
    size: int
    name: str
    codec: FieldCodec


_EPOCH = _Tag(0, 4, "broker_leader_epoch", _INT32)
_END_OFFSET = _Tag(1, 8, "end_offset", _INT64)
_EMPTY = _Tag(0, 1, "txn_index_empty", _BOOL)
_DRAFT_EPOCH = _Tag(1, 4, "broker_leader_epoch", _INT32)
"""The place where Kafka's draft of this change has the epoch, because of TxnIndexEmpty."""

_RECORDS: dict[int, type[Any]] = {
    0: RemoteLogSegmentMetadataRecord,
    1: RemoteLogSegmentMetadataUpdateRecord,
    2: RemotePartitionDeleteMetadataRecord,
}
_WRITTEN: dict[int, tuple[_Tag, ...]] = {0: (_EPOCH,), 1: (_EPOCH, _END_OFFSET), 2: (_EPOCH, _END_OFFSET)}
_READ: dict[tuple[int, int], tuple[_Tag, ...]] = {
    (0, 0): (_EMPTY,),
    (0, 1): (_EPOCH, _EMPTY, _DRAFT_EPOCH),
    (1, 0): (),
    (1, 1): _WRITTEN[1],
    (2, 0): (),
    (2, 1): _WRITTEN[2],
}


def _plain_fields(cls: type[Any]) -> Mapping[str, FieldCodec]:
    hints = get_type_hints(cls, include_extras=True)
    return {
        field.name: hints[field.name].__metadata__[0]
        for field in fields(cls)
        if hasattr(hints[field.name], "__metadata__")
    }


_PLAIN = {api_key: _plain_fields(cls) for api_key, cls in _RECORDS.items()}


def encode(record: LifecycleRecord) -> bytes:
    """The value of a record in version 1. InvalidError when a number does not fit its field."""
    out = bytearray()
    for number in (FRAME_VERSION, record.api_key, VERSION):
        write_uvarint(out, number)
    try:
        for name, codec in _PLAIN[record.api_key].items():
            codec.write(out, getattr(record, name))
        tags = _WRITTEN[record.api_key]
        write_tagged(
            out, {t.number: (t.codec, getattr(record, t.name)) for t in tags if getattr(record, t.name) != NO_EPOCH}
        )
    except struct.error as error:
        raise InvalidError(f"lifecycle record has a number out of range: {type(record).__name__} {error}") from error
    return bytes(out)


def decode(value: bytes) -> Versioned:
    """The record in a value, in either version.

    InvalidError for a frame version, api key, version or state that this software does not know; CorruptError for
    bytes that are not exactly one record.
    """
    reader = Reader(value)
    frame_version, api_key, version = reader.uvarint(), reader.uvarint(), reader.uvarint()
    if frame_version != FRAME_VERSION:
        raise InvalidError(f"unknown frame version of a lifecycle record: frame_version={frame_version}")
    if api_key not in _RECORDS:
        raise InvalidError(f"unknown lifecycle record: api_key={api_key}")
    cls = _RECORDS[api_key]
    if (api_key, version) not in _READ:
        raise InvalidError(f"unknown version of a lifecycle record: record={cls.__name__} version={version}")
    values = {name: codec.read(reader) for name, codec in _PLAIN[api_key].items()}
    for number, body in tagged_fields(reader):
        for tag in _READ[api_key, version]:
            if (tag.number, tag.size) == (number, body.end - body.position):
                values[tag.name] = read_tagged(number, tag.codec, body)
                break
    if reader.position != reader.end:
        raise CorruptError(f"lifecycle record has surplus bytes: record={cls.__name__} size={len(value)}")
    _refuse_unknown_state(cls, values)
    return Versioned(cls(**values), version)


def _refuse_unknown_state(cls: type[Any], values: Mapping[str, Any]) -> None:
    name = "remote_log_segment_state" if "remote_log_segment_state" in values else "remote_partition_delete_state"
    states: set[int] = set(RemoteLogSegmentState if name == "remote_log_segment_state" else RemotePartitionDeleteState)
    if values[name] not in states:
        raise InvalidError(f"unknown state of a lifecycle record: record={cls.__name__} state={values[name]}")


def partition_of(record: LifecycleRecord) -> TopicIdPartition:
    """The partition that the record is about."""
    if isinstance(record, RemotePartitionDeleteMetadataRecord):
        return record.topic_id_partition
    return record.remote_log_segment_id.topic_id_partition


def key_of(record: LifecycleRecord) -> RemoteSegmentKey | RemotePartitionKey:
    """The key under which the record is written. InvalidError if it lacks epoch or end offset, as in version 0."""
    owner = partition_of(record)
    if isinstance(record, RemotePartitionDeleteMetadataRecord):
        return RemotePartitionKey(owner.id, owner.partition)
    if record.broker_leader_epoch == NO_EPOCH or record.end_offset == NO_OFFSET:
        raise InvalidError(
            f"lifecycle record has no key: record={type(record).__name__} uuid={record.remote_log_segment_id.id}"
        )
    return RemoteSegmentKey(owner.id, owner.partition, record.end_offset, record.broker_leader_epoch)


_MASK = 0xFFFFFFFF


def metadata_partition(topic_id: uuid.UUID, partition: int, partitions: int = METADATA_PARTITIONS) -> int:
    """The metadata partition, 0 to `partitions` - 1."""
    high, low = struct.unpack(">QQ", topic_id.bytes)
    hashed = 1
    for part in (_long_hash(low), _long_hash(high), partition):
        hashed = (31 * hashed + part) & _MASK
    return key_hash(struct.pack(">I", hashed)) % partitions


def _long_hash(value: int) -> int:
    """Java's Long.hashCode, as an unsigned number."""
    return (value ^ (value >> 32)) & _MASK
