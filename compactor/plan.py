"""The input of a merge with its output files: live extents by partition, in the order of a segment file.

Place: made when a job starts, from the live extents in the metastore; read by the merge, in any process. The output
files are decided on a worker or a Spark driver. Pure.
Invariant: a plan lists every byte that may be copied. Bytes between them, dropped at commit or expired since, are in
no plan and therefore in no merged file (W9). Plans are sent as JSON: a Spark driver reads the same.
Invariant of the output files: it depends on the plan alone, so another attempt at the same plan, also under another
epoch, has the same files and end offsets. A segment is a run of one partition without a gap, of one leader epoch, on
one side of its cleaned offset and of the offset where its active part begins, and small enough for one swap call.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Sequence

import msgspec

from headrace.metastore.api.compaction import LiveExtents, LivePartition
from headrace.metastore.api.read import DataExtent, Extent, is_in_file
from headrace.metastore.api.segments import NewSegment
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


INPUTS_PER_SEGMENT = 4_000
"""About 100 ms of Postgres time for its swap, during which the partition's log start cannot move."""


def outputs(plan: Plan, file_bytes: int, extent_bytes: int) -> list[Plan]:
    """A plan per output file: its partitions are segments, some of them of the same partition.

    A file ends where its inputs have `file_bytes`, at the end of a partition's run or after `extent_bytes` more of it.
    """
    files: list[list[PartitionPlan]] = [[]]
    size = 0
    for partition in plan.partitions:
        for run in _runs(partition):
            for extents in _extents(run, extent_bytes):
                if size >= file_bytes:
                    files.append([])
                    size = 0
                _add(files[-1], partition, extents, continues=extents[0] is not run[0])
                size += sum(extent.length for extent in extents)
    return [msgspec.structs.replace(plan, partitions=tuple(file)) for file in files if file]


def planned_segments(output: Plan, rng: random.Random) -> list[NewSegment]:
    """Return what is started for an output before its merge: sizes are those of the inputs."""
    return [
        NewSegment(
            uuid.UUID(int=rng.getrandbits(128), version=4),
            segment.partition_key,
            segment.extents[0].base_offset,
            segment.extents[-1].last_offset,
            segment.extents[0].leader_epoch,
            max(extent.max_timestamp for extent in segment.extents),
            sum(extent.length for extent in segment.extents),
        )
        for segment in output.partitions
    ]


def _add(file: list[PartitionPlan], partition: PartitionPlan, extents: list[Extent], *, continues: bool) -> None:
    """Add extents to the file's last segment, if they continue it and there is room, else as a new one."""
    last = file[-1] if file and continues else None
    if last is None or len(last.extents) + len(extents) > INPUTS_PER_SEGMENT:
        file.append(msgspec.structs.replace(partition, extents=tuple(extents)))
    else:
        file[-1] = msgspec.structs.replace(last, extents=(*last.extents, *extents))


def _extents(run: list[Extent], extent_bytes: int) -> Iterator[list[Extent]]:
    """Return what becomes one extent, if its batches neither grow nor shrink."""
    found: list[Extent] = []
    room = extent_bytes
    for extent in run:
        if found and (extent.length > room or len(found) == INPUTS_PER_SEGMENT):
            yield found
            found, room = [], extent_bytes
        found.append(extent)
        room -= extent.length
    if found:
        yield found


def _runs(partition: PartitionPlan) -> Iterator[list[Extent]]:
    """The partition's extents, split where no segment may continue."""
    borders = (partition.roll_offset, partition.cleaned_offset)
    run: list[Extent] = []
    for extent in partition.extents:
        if run and (extent.base_offset in borders or not joins(run, extent)):
            yield run
            run = []
        run.append(extent)
    if run:
        yield run
