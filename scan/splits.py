"""Cuts a plan into splits that tasks read in parallel. Pure.

Place: between the plan and Spark's partitions.
Invariant: the splits hold each planned offset exactly once; inside a split the offsets of a partition rise. A split
has at most about `split_bytes`, or one extent if that is larger.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from headrace.scan.plan import ExtentSlice, PlannedPartition

SMALLEST = 8
"""Partitions are read together by one task as long as they have less than 1/8 of a split's bytes."""

Split = tuple[PlannedPartition, ...]


def make_splits(planned: Sequence[PlannedPartition], split_bytes: int, min_splits: int | None) -> list[Split]:
    """The splits, in the plan's order."""
    total = sum(each.share_bytes for partition in planned for each in partition.slices)
    if min_splits is None:
        runs = [run for partition in planned for run in _runs(partition, split_bytes)]
        return list(_together(runs, split_bytes // SMALLEST))
    limit = max(1, min(split_bytes, -(-total // min_splits)))
    while True:
        runs = [run for partition in planned for run in _runs(_finer(partition, limit), limit)]
        if len(runs) >= min_splits or limit == 1 or _is_finest(runs):
            return [(run,) for run in runs]
        limit = max(1, limit // 2)


def _runs(partition: PlannedPartition, limit: int) -> Iterator[PlannedPartition]:
    """Neighbouring slices of up to `limit` bytes; one slice at least."""
    run: list[ExtentSlice] = []
    room = 0
    for each in partition.slices:
        if run and each.share_bytes > room:
            yield PlannedPartition(partition.topic, partition.partition, tuple(run))
            run = []
        if not run:
            room = limit
        run.append(each)
        room -= each.share_bytes
    if run:
        yield PlannedPartition(partition.topic, partition.partition, tuple(run))


def _together(runs: Sequence[PlannedPartition], limit: int) -> Iterator[Split]:
    """Small runs in one split, of up to `limit` bytes."""
    together: list[PlannedPartition] = []
    room = 0
    for run in runs:
        size = sum(each.share_bytes for each in run.slices)
        if together and size > room:
            yield tuple(together)
            together = []
        if not together:
            room = limit
        together.append(run)
        room -= size
    if together:
        yield tuple(together)


def _finer(partition: PlannedPartition, limit: int) -> PlannedPartition:
    """Slices of more than `limit` bytes cut at offsets: each of their tasks reads the whole extent, opens its part."""
    slices: list[ExtentSlice] = []
    for each in partition.slices:
        parts = min(-(-each.share_bytes // limit), each.offsets)
        borders = [each.start + each.offsets * number // parts for number in range(parts + 1)]
        slices += [each._replace(start=a, end=b) for a, b in itertools.pairwise(borders)]
    return PlannedPartition(partition.topic, partition.partition, tuple(slices))


def _is_finest(runs: Sequence[PlannedPartition]) -> bool:
    return all(len(run.slices) == 1 and run.slices[0].offsets == 1 for run in runs)
