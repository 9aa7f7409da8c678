"""Decide which output files a plan becomes, and which segments each of them holds. Pure.

Place: between a plan and its merge, in the local worker and on a Spark driver.
Invariant: it depends on the plan alone, so another attempt at the same plan, also under another epoch, has the same
files and end offsets. A segment is a run of one partition without a gap, of one leader epoch, on one side of its
cleaned offset and of the offset where its active part begins, and small enough for one swap call.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator

import msgspec

from headrace.compactor.plan import PartitionPlan, Plan, joins
from headrace.metastore.api.read import Extent
from headrace.metastore.api.segments import NewSegment

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
