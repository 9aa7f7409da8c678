"""The bytes of a record of the metadata log: frame, type, version, then its fields.

Place: between the records (kip631_records.py, own_records.py) and the log, in Postgres and in snapshots. Most of a
log are records of partitions, so an ordinary one has a codec without objects. The size of a record is checked before
it is appended (metastore/postgres/cluster/cluster.py); the function in Postgres that appends (append_metadata)
checks the same, for every writer.
Invariant: a record's bytes are `frame type, record type, version` as unsigned varints, then the payload in Kafka's
flexible encoding.
Source: KIP-631, "Record Formats" (seed kip-631-quorum-controller).
Invariant of records of partitions: the bytes are those of the codec of all records; a partition with anything out of
the ordinary has no short form.
Invariant of sizes: a record that removes something is never too large. So a cluster that has larger records, from
before there was a limit, starts, reads them and can remove them.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Mapping, Sequence

from headrace.metastore.api.cluster import MetadataRecord
from headrace.metastore.log import kip631_records, own_records
from headrace.metastore.log.kip631_records import AncestorEpoch, ConfigRecord, PartitionRecord, QuotaRecord
from headrace.metastore.log.own_records import (
    MarkPartitionRecord,
    PartitionCountRecord,
    RemoveAccessControlRecord,
    RemoveDelegationTokenRecord,
    RemoveFeatureLevelRecord,
    RemovePartitionRecord,
    RemoveUserScramCredentialRecord,
    SplitPartitionRecord,
)
from headrace.metastore.log.wire import Reader, Structure, write_uvarint
from headrace.metastore.partitions.changes import Change, Removal, Shrinking
from headrace.metastore.partitions.topic_partitions import OrderedPartition, Split
from headrace.storage.errors import CorruptError, InvalidError

FRAME_TYPE = 0
VERSION = 0
_TYPES: dict[int, tuple[type[MetadataRecord], Structure]] = {
    cls.record_type: (cls, Structure(cls))
    for module in (kip631_records, own_records)
    for cls in vars(module).values()
    if isinstance(cls, type) and issubclass(cls, MetadataRecord) and cls is not MetadataRecord
}


def encode_record(record: MetadataRecord) -> bytes:
    """The framed bytes of a record. InvalidError when a value does not fit its field."""
    cls, structure = _TYPES[record.record_type]
    out = bytearray()
    for number in (FRAME_TYPE, record.record_type, VERSION):
        write_uvarint(out, number)
    try:
        structure.write(out, record)
    except struct.error as error:
        raise InvalidError(f"metadata record has a number out of range: record={cls.__name__} {error}") from error
    return bytes(out)


def decode_record(data: bytes) -> MetadataRecord:
    """The record in framed bytes.

    InvalidError for a frame, type or version that this software does not know (a newer one wrote
    it); CorruptError for bytes that are not exactly one record.
    """
    reader = Reader(data)
    frame_type, record_type, version = reader.uvarint(), reader.uvarint(), reader.uvarint()
    if frame_type != FRAME_TYPE:
        raise InvalidError(f"unknown metadata frame type: frame_type={frame_type}")
    if record_type not in _TYPES:
        raise InvalidError(f"unknown metadata record type: record_type={record_type}")
    cls, structure = _TYPES[record_type]
    if version != VERSION:
        raise InvalidError(f"unknown metadata record version: record={cls.__name__} version={version}")
    record: MetadataRecord = structure.read(reader)
    if reader.position != reader.end:
        raise CorruptError(f"metadata record has surplus bytes: record={cls.__name__} of={len(data)}")
    return record


def record_types() -> list[type[MetadataRecord]]:
    """Every type, by number."""
    return [cls for _, (cls, _) in sorted(_TYPES.items())]


_PLAIN_PARTITION = struct.Struct(">3si16s4siib")
_PLAIN_PARTITION_FRAME = bytes((FRAME_TYPE, 3, VERSION))
_NO_ARRAYS = bytes((1, 1, 1, 1))


def plain_partition(data: bytes) -> tuple[int, bytes, int] | None:
    """(partition, topic id, leader epoch) of a PartitionRecord without preferred agents; None for any other record.

    A log is mostly these, and read so they cost a tenth.
    """
    if len(data) != _PLAIN_PARTITION.size or not data.startswith(_PLAIN_PARTITION_FRAME):
        return None
    _, partition_id, topic_id, arrays, leader, leader_epoch, tags = _PLAIN_PARTITION.unpack(data)
    return (partition_id, topic_id, leader_epoch) if (arrays, leader, tags) == (_NO_ARRAYS, -1, 0) else None


def encode_plain_partition(partition_id: int, topic_id: bytes, leader_epoch: int) -> bytes:
    """The framed bytes that plain_partition reads."""
    return _PLAIN_PARTITION.pack(_PLAIN_PARTITION_FRAME, partition_id, topic_id, _NO_ARRAYS, -1, leader_epoch, 0)


def encode_new_partitions(
    topic_id: uuid.UUID, indexes: range, preferred: Sequence[Sequence[int]], *, leader_epoch: int
) -> list[bytes]:
    """A framed PartitionRecord for each; `preferred`: node ids for each in turn, or empty for none.

    `leader_epoch`: the first of this life of the metastore (metastore/life/numbers.py).
    """
    if not preferred:
        return [encode_plain_partition(index, topic_id.bytes, leader_epoch) for index in indexes]
    return [
        encode_record(
            PartitionRecord(
                partition_id=index,
                topic_id=topic_id,
                replicas=tuple(agents),
                isr=(),
                removing_replicas=(),
                adding_replicas=(),
                leader_epoch=leader_epoch,
            )
        )
        for index, agents in zip(indexes, preferred, strict=True)
    ]


def change_records(
    topic_id: uuid.UUID, initial: int, change: Change, preferred: Sequence[Sequence[int]] = ()
) -> list[MetadataRecord]:
    """Return what the log says of a change of the topic's partitions (metastore/partitions/changes.py).

    `initial`: its initial count. `preferred`: node ids for each created partition in turn, or empty for none.
    """
    if isinstance(change, Removal):
        return [RemovePartitionRecord(topic_id=topic_id, partition_id=change.partition)]
    count = PartitionCountRecord(
        topic_id=topic_id, initial_partition_count=initial, undeleted_partition_count=change.undeleted
    )
    if isinstance(change, Shrinking):
        return [
            count,
            *(
                MarkPartitionRecord(topic_id=topic_id, partition_id=index, before_deletion=ancestor_epochs(before))
                for index, before in sorted(change.marked.items())
            ),
        ]
    created = sorted(change.created.items())
    agents = preferred or [()] * len(created)
    return [count, *(_created(topic_id, *each, tuple(wanted)) for each, wanted in zip(created, agents, strict=True))]


def _created(
    topic_id: uuid.UUID, index: int, partition: OrderedPartition, preferred: tuple[int, ...]
) -> PartitionRecord:
    assert partition.created_from is not None, "an expansion creates partitions from others"
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=preferred,
        isr=(),
        removing_replicas=(),
        adding_replicas=(),
        leader_epoch=partition.leader_epoch,
        source=partition.created_from.source,
        source_epoch=partition.created_from.leader_epoch,
    )


def split_record(topic_id: uuid.UUID, parent: int, split: Split) -> SplitPartitionRecord:
    """Return the record of a partition that a doubling split in two."""
    boundary = -1 if split.boundary is None else split.boundary
    return SplitPartitionRecord(partition_id=parent, topic_id=topic_id, child=split.child, boundary=boundary)


def ancestor_epochs(before_deletion: Mapping[int, int]) -> tuple[AncestorEpoch, ...]:
    """Return the epochs in the form of records, ascending."""
    return tuple(
        AncestorEpoch(ancestor=index, leader_epoch=before_deletion[index]) for index in sorted(before_deletion)
    )


RECORD_BYTES_MAX = 128 * 1024
"""Encoded. Names have some hundred bytes; a config that lists 10,000 partitions has 80 KiB."""
_REMOVALS = (
    RemoveAccessControlRecord,
    RemoveDelegationTokenRecord,
    RemoveFeatureLevelRecord,
    RemoveUserScramCredentialRecord,
)


def is_removal(record: MetadataRecord) -> bool:
    """Return whether it only says that something is gone, by its name."""
    if isinstance(record, ConfigRecord):
        return record.value is None
    return record.remove if isinstance(record, QuotaRecord) else isinstance(record, _REMOVALS)


def refuse_large(records: Iterable[MetadataRecord]) -> None:
    """InvalidError for a record that is too large to be appended."""
    for record in records:
        size = 0 if is_removal(record) else len(encode_record(record))
        if size > RECORD_BYTES_MAX:
            raise InvalidError(
                f"metadata record is too large: record={type(record).__name__} bytes={size} max={RECORD_BYTES_MAX}"
            )
