"""The records of partitions in bulk: most of a log are these, so an ordinary one has a codec without objects.

With them what a change of a topic's partitions is in the log.

Place: written for new partitions and in snapshots, read by metastore/log/replay.py.
Invariant: the bytes are those of records.py's codec; a partition with anything out of the ordinary has no short form.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping, Sequence

from headrace.metastore.api.metadata_log import MetadataRecord
from headrace.metastore.log.kip631_records import AncestorEpoch, PartitionRecord
from headrace.metastore.log.own_records import (
    MarkPartitionRecord,
    PartitionCountRecord,
    RemovePartitionRecord,
    SplitPartitionRecord,
)
from headrace.metastore.log.records import FRAME_TYPE, VERSION, encode_record
from headrace.metastore.partitions.changes import Change, Removal, Shrinking
from headrace.metastore.partitions.topic_partitions import OrderedPartition, Split

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
