"""Turns the asked bounds of a scan into one offset per partition.

Place: after partitions.py, before plan.py; asks the metastore, and opens extents only for timestamps.
Invariant: offsets come from the primary. An explicit bound names exactly the partitions of the scan, as Spark's Kafka
source requires, so a forgotten partition is an error and no silent gap. The first offset since a timestamp is that of
the first readable record with the timestamp or a later one, as ListOffsets answers it; with `committed`
(read_committed) it is below the last stable offset. A batch that is too large to be opened counts by its header.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from headrace.metastore.api.read import ALL_BYTES, ExtentQuery, IndexApi, OffsetKind, OffsetQuery, is_in_file
from headrace.scan.errors import OptionError, UnreadableFileError
from headrace.scan.inline_waits import LOOK_SECONDS, MOVE_SECONDS, MovingError
from headrace.scan.options import AtOffset, AtTimestamp, AtTimestamps, Bound
from headrace.scan.partitions import ScanPartition
from headrace.storage.errors import CorruptError, NotFoundError
from headrace.storage.records.codec import open_batch
from headrace.storage.records.errors import BatchTooLargeError
from headrace.storage.segment.rereading import VerifiedReads
from headrace.storage.segment.verified import SoundBatch

Offsets = dict[ScanPartition, int]


async def find_offsets(
    metastore: IndexApi,
    reads: VerifiedReads,
    partitions: Sequence[ScanPartition],
    bound: Bound,
    *,
    name: str,
    latest_if_unmatched: bool,
    committed: bool,
) -> Offsets:
    """The bound's offset in each partition. `name`: "starting" or "ending", for errors.

    OptionError if the bound names other partitions, or if no record is as new as a timestamp and
    `latest_if_unmatched` is false. NotFoundError for a topic that was deleted meanwhile.
    """
    match bound:
        case OffsetKind():
            return await special_offsets(metastore, dict.fromkeys(partitions, int(bound)), committed=committed)
        case AtOffset(offsets):
            given = _for_each(partitions, offsets, f"{name}Offsets")
            kinds = {p: offset for p, offset in given.items() if offset < 0}
            special = await special_offsets(metastore, kinds, committed=committed)
            return given | special
        case AtTimestamp(timestamp):
            wanted = dict.fromkeys(partitions, timestamp)
            option = f"{name}Timestamp"
        case AtTimestamps(timestamps):
            option = f"{name}OffsetsByTimestamp"
            wanted = _for_each(partitions, timestamps, option)
    found = await asyncio.gather(
        *(first_offset_since(metastore, reads, p, t, committed=committed) for p, t in wanted.items())
    )
    unmatched = [partition for partition, offset in zip(wanted, found, strict=True) if offset is None]
    if unmatched and not latest_if_unmatched:
        names = ", ".join(f"{partition} ({wanted[partition]})" for partition in unmatched)
        raise OptionError(
            f"{option}: no record is so new: {names}."
            " Set startingOffsetsByTimestampStrategy=latest to begin at the end of such partitions"
        )
    kinds = dict.fromkeys(unmatched, int(OffsetKind.LATEST))
    latest = await special_offsets(metastore, kinds, committed=committed)
    return {p: latest[p] if offset is None else offset for p, offset in zip(wanted, found, strict=True)}


async def special_offsets(metastore: IndexApi, kinds: Mapping[ScanPartition, int], *, committed: bool) -> Offsets:
    """The earliest or latest offset of each partition. NotFoundError for a deleted one.

    `committed`: the latest one is the last stable offset.
    """
    latest = OffsetKind.LAST_STABLE if committed else OffsetKind.LATEST
    answers = await metastore.list_offsets(
        [OffsetQuery(p.key, latest if kind == OffsetKind.LATEST else kind) for p, kind in kinds.items()]
    )
    found = {}
    for partition, answer in zip(kinds, answers, strict=True):
        if not answer.known:
            raise NotFoundError(f"topic was deleted: topic={partition.topic} topic_id={partition.topic_id}")
        found[partition] = answer.offset
    return found


def _for_each(
    partitions: Sequence[ScanPartition], given: Mapping[tuple[str, int], int], option: str
) -> dict[ScanPartition, int]:
    """The given numbers by partition; OptionError unless they are for exactly these partitions."""
    asked = {(p.topic, p.partition): p for p in partitions}
    missing = ", ".join(f"{topic}-{index}" for topic, index in sorted(asked.keys() - given.keys()))
    surplus = ", ".join(f"{topic}-{index}" for topic, index in sorted(given.keys() - asked.keys()))
    if missing or surplus:
        problem = " and ".join(
            text for text in (missing and f"lacks {missing}", surplus and f"names {surplus}, not read here") if text
        )
        raise OptionError(f"{option} must have each partition of the scan (-2: earliest, -1: latest): it {problem}")
    return {partition: given[name] for name, partition in asked.items()}


async def first_offset_since(
    metastore: IndexApi, reads: VerifiedReads, partition: ScanPartition, timestamp: int, *, committed: bool
) -> int | None:
    """Return None if no record is as new. UnreadableFileError if an extent cannot be read, or is not moved in time."""
    attempts, waits = 0, 0
    while True:
        try:
            return await _search(metastore, reads, partition, timestamp, committed=committed)
        except (NotFoundError, CorruptError) as error:  # compacted and deleted meanwhile: look up again
            if isinstance(error, MovingError):
                waits += 1
            else:
                attempts += 1
            if attempts > 1 or waits * LOOK_SECONDS > MOVE_SECONDS:
                raise UnreadableFileError(f"cannot search by timestamp: partition={partition}: {error}") from error


async def _search(
    metastore: IndexApi, reads: VerifiedReads, partition: ScanPartition, timestamp: int, *, committed: bool
) -> int | None:
    (answer,) = await metastore.list_offsets([OffsetQuery(partition.key, timestamp)])
    if not answer.known:
        raise NotFoundError(f"topic was deleted: topic={partition.topic}")
    if answer.extent is None:
        return None
    offset = answer.extent.base_offset
    while True:
        (found,) = await metastore.find_extents([ExtentQuery(partition.key, offset, ALL_BYTES)])
        for extent in found.extents:
            if is_in_file(extent) and extent.max_timestamp >= timestamp:
                batches = await reads.batches(extent, leader_epoch=extent.leader_epoch)
                first = await asyncio.to_thread(_first_in, batches, found.log_start_offset, timestamp)
                if first is not None:
                    return None if committed and first >= found.last_stable_offset else first
        if not found.extents:
            return None
        offset = found.extents[-1].last_offset + 1


def _first_in(batches: Sequence[SoundBatch], log_start_offset: int, timestamp: int) -> int | None:
    for batch in batches:
        header = batch.header
        if header.is_control or header.highest_timestamp < timestamp or batch.last_offset < log_start_offset:
            continue
        try:
            records = open_batch(batch.data)
        except BatchTooLargeError:
            return max(batch.offset, log_start_offset)
        for record in records:
            if record.timestamp >= timestamp and record.offset >= log_start_offset:
                return record.offset
    return None
