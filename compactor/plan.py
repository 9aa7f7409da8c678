"""The input of a merge: live extents by partition, in the order of a segment file.

Place: made when a job starts, from the live extents in the metastore; read by the merge, in any process.
Invariant: a plan lists every byte that may be copied. Bytes between them, dropped at commit or expired
since, are in no plan and therefore in no merged file (W9). Plans are sent as JSON: a Spark driver reads the same.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import msgspec

from headrace.metastore.api.compaction import LiveExtents, LivePartition
from headrace.metastore.api.read import DataExtent, Extent, is_in_file
from headrace.storage.records.compression import Codec

PRODUCER = "producer"
"""compression.type value: keep each batch's codec."""
_CODECS = {"uncompressed": Codec.NONE, **{codec.name.lower(): codec for codec in Codec if codec is not Codec.NONE}}


class CompactionJob(msgspec.Struct, frozen=True):
    """Payload of a job of kind "compact" or "compact-large": the input files and the output level."""

    file_ids: tuple[uuid.UUID, ...]
    level: int
    is_large: bool = False


class PartitionPlan(msgspec.Struct, frozen=True):
    """One partition's live extents in offset order. `codec` None: batches keep their codec.

    `max_message_bytes`: the largest batch that the topic accepts, and so the size that its consumers support; None if
    neither topic nor cluster set it.
    """

    partition_key: int
    topic_id: uuid.UUID
    partition_index: int
    codec: int | None
    extents: tuple[Extent, ...]
    max_message_bytes: int | None = None
    roll_offset: int = 0
    """The offset at which the part begins that no cleaning by key may touch: no new extent crosses it."""
    cleaned_offset: int = 0
    """The cleaned offset of a merge: no new extent joins what is cleaned and what is not, or a pass could not end
    between them.
    """


class Plan(msgspec.Struct, frozen=True):
    """Partitions sorted by (topic id, index), as a segment file holds them. `made_ms` on the database's clock."""

    level: int
    made_ms: int
    partitions: tuple[PartitionPlan, ...]

    def by_file(self) -> dict[uuid.UUID, list[DataExtent]]:
        """The live extents of each input, ordered by byte position."""
        files: dict[uuid.UUID, list[DataExtent]] = {}
        for partition in self.partitions:
            for extent in filter(is_in_file, partition.extents):
                files.setdefault(extent.file_id, []).append(extent)
        for extents in files.values():
            extents.sort(key=lambda extent: extent.position)
        return files


def make_plan(level: int, live: LiveExtents) -> Plan:
    """The plan to merge the live extents into files of `level`."""
    partitions = sorted(map(partition_plan, live.partitions), key=lambda p: (p.topic_id.int, p.partition_index))
    return Plan(level, live.wall_ms, tuple(partitions))


def encode(message: Plan | CompactionJob) -> bytes:
    """JSON, for a job's payload or a Spark driver."""
    return msgspec.json.encode(message)


def decode_job(payload: bytes) -> CompactionJob:
    """The payload of a job of kind "compact"."""
    return msgspec.json.decode(payload, type=CompactionJob)


def decode_plan(payload: bytes) -> Plan:
    """Return what `encode` made of a plan."""
    return msgspec.json.decode(payload, type=Plan)


def codec_of(compression_type: str) -> Codec | None:
    """A topic's compression.type as a codec; None for `producer`, the default."""
    return None if compression_type in ("", PRODUCER) else _CODECS[compression_type]


def joins(before: Sequence[Extent], extent: Extent) -> bool:
    """Return whether `extent` can share one new extent with the previous ones: no gap, and the same leader epoch."""
    last = before[-1]
    return extent.base_offset == last.last_offset + 1 and extent.leader_epoch == last.leader_epoch


def partition_plan(live: LivePartition) -> PartitionPlan:
    """The plan of one partition."""
    return PartitionPlan(
        live.partition_key,
        live.topic_id,
        live.partition_index,
        codec_of(live.compression_type),
        tuple(live.extents),
        live.max_message_bytes,
        live.roll_offset,
        live.cleaned_offset,
    )
