"""Reads every batch of the bucket once and lists the batches of each file by partition.

Place: under rebuild.py; rebuild_place.py uses the result.
Invariant: a file counts completely or not at all: a file with an invalid footer or framing is listed and ignored. What
fails its check is read again, so that a bad transfer writes nothing into the index. A batch that is damaged in the
bucket itself keeps its place and its offsets in the index: readers meet the damage there, as they did before. Several
files are read in parallel; about 400 bytes per batch stay in memory. It only reads.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from headrace.compactor.audit import OnProgress
from headrace.compactor.rebuild_place import Placement, ScannedBatch
from headrace.compactor.sweeper import pages
from headrace.metastore.api.reports import PartitionName
from headrace.metastore.transaction_outcomes import BatchOwner
from headrace.storage.errors import CorruptError, DamagedError, NotFoundError
from headrace.storage.file_id import born_ms, level_of, object_key
from headrace.storage.objects.agreed import read_agreed
from headrace.storage.objects.store import ByteRange
from headrace.storage.records.codec import decode_records
from headrace.storage.records.errors import BatchTooLargeError
from headrace.storage.records.header import CRC_START, read_header
from headrace.storage.segment.format import decode_footer
from headrace.storage.segment.reader import verify_segment, walk_batches
from headrace.storage.segment.rereading import VerifiedReads
from headrace.storage.segment.verified import NO_EPOCH, SoundBatch

PARALLEL = 4
SKEW_MS = 600_000
"""A merged file contains no batch of a file that was created this much later."""
_MAX_TIMESTAMP = slice(35, 43)
"""Part of a header that differs between copies: a broker may have set the append time of a retry again."""
_OPENED_LEVEL = 2
"""Level from which on files contain the records but no longer the original batches."""


class FoundObject(NamedTuple):
    """A file and its size; `body_bytes` is the size of its batches."""

    file_id: uuid.UUID
    size: int
    body_bytes: int = 0


class FilePart(NamedTuple):
    """What a file has of a partition; `key` is the partition's in the metastore of the time."""

    key: int
    name: PartitionName
    batches: list[ScannedBatch]


@dataclass(slots=True)
class Scan:
    """The contents of the bucket."""

    files: list[FoundObject] = field(default_factory=list)
    """The files by creation time; FoundBatch.file is an index into this list."""
    partitions: dict[PartitionName, list[ScannedBatch]] = field(default_factory=lambda: defaultdict(list))
    names: dict[int, PartitionName] = field(default_factory=dict)
    """By the partition key that the metastore had for it."""
    unsound: list[tuple[uuid.UUID, str]] = field(default_factory=list)


async def scan(reads: VerifiedReads, on_progress: OnProgress) -> Scan:
    """Read all files. Raises what the store raises, except for missing or damaged files; BadTransferError."""
    found = Scan()
    objects = sorted(
        [FoundObject(file_id, info.size) async for page in pages(reads.store) for file_id, info in page.files.items()]
    )
    for start in range(0, len(objects), PARALLEL):
        window = objects[start : start + PARALLEL]
        for stored, read in zip(window, await asyncio.gather(*(_read(reads, o) for o in window)), strict=True):
            if isinstance(read, str):
                found.unsound.append((stored.file_id, read))
                continue
            number = len(found.files)
            found.files.append(stored._replace(body_bytes=sum(b.length for part in read for b in part.batches)))
            for part in read:
                found.names[part.key] = part.name
                found.partitions[part.name] += [batch._replace(file=number) for batch in part.batches]
        on_progress("files", start + len(window), len(objects))
    return found


async def _read(reads: VerifiedReads, stored: FoundObject) -> list[FilePart] | str:
    """The file's batches by partition, or the reason why there are none."""
    key, place = object_key(stored.file_id), f"file={stored.file_id}"

    def verified(body: memoryview) -> list[FilePart]:
        verify_segment(body)
        return _batches(stored.file_id, body)

    try:
        try:
            return await reads.read(key, None, verified, place)
        except DamagedError:
            body = memoryview(await read_agreed(reads.store, key))
            return await asyncio.to_thread(_batches, stored.file_id, body)
    except (CorruptError, NotFoundError) as error:
        return str(error)


def _batches(file_id: uuid.UUID, body: memoryview) -> list[FilePart]:
    level, born = level_of(file_id), born_ms(file_id)
    found = []
    for entry in decode_footer(body, len(body)).partitions:
        batches = []
        run = body[entry.position : entry.position + entry.length]
        for position, header in walk_batches(run):
            batches.append(
                ScannedBatch(
                    0,
                    entry.position + position,
                    header.size,
                    level,
                    born,
                    header.base_offset,
                    header.last_offset_delta + 1,
                    header.highest_timestamp,
                    header.producer_id >= 0,
                    _content(run[position : position + header.size]),
                    BatchOwner(header.producer_id, header.producer_epoch, header.base_sequence)
                    if header.is_transactional
                    else None,
                )
            )
        if sum(batch.records for batch in batches) != entry.record_count:
            raise CorruptError(f"footer and batches differ: file={file_id} partition={entry.partition_index}")
        found.append(FilePart(entry.partition_key, PartitionName(entry.topic_id, entry.partition_index), batches))
    return found


def _content(batch: memoryview) -> bytes:
    """A hash of what the producer sent, without fields that brokers set."""
    digest = blake2b(batch[CRC_START : _MAX_TIMESTAMP.start], digest_size=16)
    digest.update(batch[_MAX_TIMESTAMP.stop :])
    return digest.digest()


async def recognise_records(reads: VerifiedReads, found: Scan, placement: Placement) -> None:
    """Check the open batches again: their records may be in files that do not contain the original batches."""
    flushed, placement.open = placement.open, []
    oldest_ms = min((batch.born_ms for batch in flushed), default=0)
    by_offset: dict[int, int] = {}  # offset -> hash of its record
    for batch in [*placement.replaced, *placement.batches.values()]:
        if flushed and batch.level >= _OPENED_LEVEL and batch.born_ms + SKEW_MS >= oldest_ms:
            by_offset.update(await _records(reads, found, batch))
    offsets: dict[int, list[int]] = defaultdict(list)
    for offset in sorted(by_offset, reverse=True):
        offsets[by_offset[offset]].append(offset)
    for batch in flushed:
        records = [record for _, record in await _records(reads, found, batch)] if by_offset else []
        placement.recognise(batch, _find(records, by_offset, offsets))


def _find(records: Sequence[int], by_offset: dict[int, int], offsets: dict[int, list[int]]) -> int | None:
    """The lowest offset at which exactly these records start; they are removed from `by_offset`."""
    for offset in reversed(offsets.get(records[0], ())) if records else ():
        if all(by_offset.get(offset + number) == record for number, record in enumerate(records)):
            for number in range(len(records)):
                del by_offset[offset + number]
            return offset
    return None


async def _records(reads: VerifiedReads, found: Scan, batch: ScannedBatch) -> list[tuple[int, int]]:
    """(offset as in its header, hash) of each record; empty if the batch is damaged or cannot be opened."""

    def verified(data: memoryview) -> SoundBatch:
        if read_header(data).base_offset != batch.base_offset:  # no checksum covers it
            raise CorruptError(f"batch has another base offset: expected={batch.base_offset}")
        return SoundBatch(memoryview(bytearray(data)), batch.base_offset, NO_EPOCH)

    key, place = object_key(found.files[batch.file].file_id), ByteRange(batch.position, batch.length)
    try:
        sound = await reads.read(key, place, verified, f"key={key} position={batch.position}")
        records = await asyncio.to_thread(decode_records, sound.data)
    except (CorruptError, BatchTooLargeError):
        return []
    return [
        (record.offset, hash((record.timestamp, record.key, record.value, tuple(record.headers)))) for record in records
    ]
