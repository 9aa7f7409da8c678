"""Splits a plan, or the extents of a partition, into parts that executors work on in parallel. Pure.

Place: on the driver, between the plan and Spark's partitions.
Invariant: each partition of the plan is completely in one part and in order, so the files of all parts together
hold the same as one merge of the whole plan.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.compactor.plan import PartitionPlan, Plan
from headrace.metastore.api.read import Extent


def split(plan: Plan, part_bytes: int) -> list[Plan]:
    """Parts of about `part_bytes` live bytes, in the plan's order; a larger partition is a part by itself."""
    parts: list[list[PartitionPlan]] = []
    room = 0
    for partition in plan.partitions:
        size = sum(extent.length for extent in partition.extents)
        if not parts or room < size:
            parts.append([])
            room = part_bytes
        parts[-1].append(partition)
        room -= size
    return [msgspec.structs.replace(plan, partitions=tuple(part)) for part in parts]


def split_extents(extents: Iterable[Extent], part_bytes: int) -> list[tuple[Extent, ...]]:
    """Parts of about `part_bytes` each, of consecutive extents; a larger extent is a part by itself."""
    parts: list[list[Extent]] = []
    room = 0
    for extent in extents:
        if not parts or room < extent.length:
            parts.append([])
            room = part_bytes
        parts[-1].append(extent)
        room -= extent.length
    return [tuple(part) for part in parts]
