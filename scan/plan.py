"""Plans a scan: the byte ranges that hold the records between two offsets of each partition.

Place: on Spark's driver, or at the start of an export chunk: bounds are known, no record is read yet. The plan is
cut into splits that tasks read in parallel.
Invariant: the read pin is granted before the first look-up, so no planned file is deleted during its term; the
ranges of a partition tile its offsets without gap or overlap, also if a compaction replaces extents between two
look-ups; only markers of transactions are left out. With `committed` (read_committed) no range passes the last
stable offset, and each slice names the aborted transactions in it, as of the look-up that found it. Executors have the
bucket and no metastore, so no plan names an inline file: it waits until that is moved (plan_in_bucket).
Invariant of splits: the splits hold each planned offset exactly once; inside a split the offsets of a partition
rise. A split has at most about `split_bytes`, or one extent if that is larger.
"""

from __future__ import annotations

import itertools
import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headrace.config.settings import Settings
from headrace.metastore.api.jobs import JobApi, JobToken
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.read import (
    ALL_BYTES,
    AbortedRange,
    DataExtent,
    Extent,
    ExtentQuery,
    IndexApi,
    PartitionExtents,
    is_in_file,
)
from headrace.scan.errors import DataLossError, OptionError, UnreadableFileError
from headrace.scan.inline_waits import LOOK_SECONDS, MOVE_SECONDS
from headrace.scan.partitions import ScanPartition
from headrace.storage.clock import Clock
from headrace.storage.errors import UnavailableError
from headrace.storage.file_id import is_inline

logger = logging.getLogger(__name__)


class ExtentSlice(NamedTuple):
    """An extent, and the offsets [start, end) of it to read. Position and length in bytes."""

    file_id: uuid.UUID
    position: int
    length: int
    base_offset: int
    last_offset: int
    start: int
    end: int
    aborted: tuple[AbortedRange, ...] = ()
    """What no reader may see of it."""

    @property
    def offsets(self) -> int:
        return self.end - self.start

    @property
    def share_bytes(self) -> int:
        """About how many bytes of it are wanted."""
        return max(1, self.length * self.offsets // (self.last_offset - self.base_offset + 1))


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """What to read of one partition, in offset order."""

    topic: str
    partition: int
    slices: tuple[ExtentSlice, ...]


class WantedOffsets(NamedTuple):
    """Offsets [start, end)."""

    start: int
    end: int


async def pin(metastore: JobApi, holder: str, term_ms: int) -> JobToken:
    """A read pin of readPinMs. OptionError if the cluster does not grant that much."""
    granted = await metastore.pin_reads(holder, term_ms, Settings().read_pin_max_ms)
    if granted.token is None:
        raise OptionError(f"readPinMs exceeds the cluster's read.pin.max.ms: {term_ms} > {granted.max_term_ms}")
    return granted.token


async def plan(
    metastore: IndexApi, ranges: Mapping[ScanPartition, WantedOffsets], *, fail_on_data_loss: bool, committed: bool
) -> list[PlannedPartition]:
    """The slices of each range; the caller holds a pin. Empty ranges are left out.

    DataLossError if offsets of a range are not in the log, unless `fail_on_data_loss` is false: then the rest is
    planned, with a line in the log. Records that log compaction removed are no loss.
    """
    waiting = [(partition, wanted) for partition, wanted in ranges.items() if wanted.start < wanted.end]
    slices: dict[ScanPartition, list[ExtentSlice]] = {partition: [] for partition, _ in waiting}
    while waiting:
        queries = [ExtentQuery(partition.key, wanted.start, ALL_BYTES) for partition, wanted in waiting]
        answers = await metastore.find_extents(queries)
        remaining = []
        for (partition, wanted), answer in zip(waiting, answers, strict=True):
            fitted = fit(partition, wanted, answer, fail_on_data_loss=fail_on_data_loss, committed=committed)
            found, next_offset = cut(answer.extents, fitted, answer.aborted if committed else ())
            slices[partition] += found
            if next_offset < fitted.end:
                remaining.append((partition, WantedOffsets(next_offset, fitted.end)))
        if remaining == waiting:
            raise UnreadableFileError(f"no extent has these offsets: partition={waiting[0][0]} {waiting[0][1]}")
        waiting = remaining
    return [PlannedPartition(p.topic, p.partition, tuple(found)) for p, found in slices.items() if found]


async def plan_in_bucket(
    metastore: Metastore,
    clock: Clock,
    ranges: Mapping[ScanPartition, WantedOffsets],
    *,
    fail_on_data_loss: bool,
    committed: bool,
) -> list[PlannedPartition]:
    """Plan as `plan` does, once nothing of it is inline: asks for what is to be moved, and looks again each second.

    UnavailableError if that takes MOVE_SECONDS.
    """
    left, ready = dict(ranges), list[PlannedPartition]()
    until = clock.monotonic() + MOVE_SECONDS
    is_asked = False
    while True:
        planned = await plan(metastore.index, left, fail_on_data_loss=fail_on_data_loss, committed=committed)
        waiting = {
            (each.topic, each.partition) for each in planned if any(is_inline(part.file_id) for part in each.slices)
        }
        ready += [each for each in planned if (each.topic, each.partition) not in waiting]
        if not waiting:
            return sorted(ready, key=lambda each: (each.topic, each.partition))
        left = {place: wanted for place, wanted in left.items() if (place.topic, place.partition) in waiting}
        if not is_asked:
            is_asked = True
            await metastore.inline.ask_inline_move()
        if clock.monotonic() >= until:
            raise UnavailableError(
                f"records are in the metastore, and were not moved into the bucket in {MOVE_SECONDS:g} s: partitions="
                f"{len(waiting)}: is a compactor running? `headrace doctor` says what keeps it"
            )
        await clock.sleep(LOOK_SECONDS)


def fit(
    partition: ScanPartition,
    wanted: WantedOffsets,
    answer: PartitionExtents,
    *,
    fail_on_data_loss: bool,
    committed: bool,
) -> WantedOffsets:
    """The part of a range that is in the log now; DataLossError if that is less and this matters. Pure but for logs."""
    start, end = wanted
    log_end = answer.last_stable_offset if committed else answer.high_watermark
    if not answer.known:
        loss, end = "topic was deleted", start
    elif start < answer.log_start_offset or end > log_end:
        loss = f"the log has {answer.log_start_offset} to {log_end - 1}"
        end = min(end, max(log_end, start))
        start = min(max(start, answer.log_start_offset), end)
    else:
        return wanted
    text = f"offsets are not in the log: partition={partition} offsets={wanted.start}-{wanted.end - 1}: {loss}"
    if fail_on_data_loss:
        raise DataLossError(f"{text}. Set failOnDataLoss=false to read what there is")
    logger.warning("%s", text)
    return WantedOffsets(start, end)


def cut(
    extents: Sequence[Extent], wanted: WantedOffsets, aborted: Sequence[AbortedRange] = ()
) -> tuple[list[ExtentSlice], int]:
    """The slices of `extents` inside the range, and the first offset that they do not cover. Pure."""
    found = []
    offset = wanted.start
    for extent in extents:
        if offset >= wanted.end:
            break
        if extent.last_offset < offset:
            continue
        if extent.base_offset > offset:
            break
        end = min(extent.last_offset + 1, wanted.end)
        if is_in_file(extent):
            found.append(ExtentSlice(*_place(extent), offset, end, _inside(aborted, offset, end)))
        offset = end
    return found, offset


def _inside(aborted: Sequence[AbortedRange], start: int, end: int) -> tuple[AbortedRange, ...]:
    return tuple(one for one in aborted if one.first_offset < end and start < one.last_offset)


def _place(extent: DataExtent) -> tuple[uuid.UUID, int, int, int, int]:
    return extent.file_id, extent.position, extent.length, extent.base_offset, extent.last_offset


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
