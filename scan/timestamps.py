"""The first offset since a timestamp, found in the segment files.

Place: under offsets.py; the metastore names the first extent that may have the record.
Invariant: the answer is the offset of the first readable record with the timestamp or a later one, as ListOffsets
answers it; with `committed` (read_committed) it is below the last stable offset. A batch that is too large to be opened
counts by its header.
"""

from __future__ import annotations

import asyncio

from headrace.metastore.api.read import ALL_BYTES, Extent, ExtentQuery, OffsetQuery, ReadApi
from headrace.scan.batches import walk_extent
from headrace.scan.errors import UnreadableFileError
from headrace.scan.partitions import ScanPartition
from headrace.storage.errors import CorruptError, NotFoundError
from headrace.storage.file_id import object_key
from headrace.storage.objects.store import ByteRange, ObjectStore
from headrace.storage.records.codec import open_batch
from headrace.storage.records.errors import BatchTooLargeError


async def first_offset_since(
    metastore: ReadApi, store: ObjectStore, partition: ScanPartition, timestamp: int, *, committed: bool
) -> int | None:
    """Return None if no record is as new. UnreadableFileError if an extent cannot be read."""
    for attempt in range(2):
        try:
            return await _search(metastore, store, partition, timestamp, committed=committed)
        except (NotFoundError, CorruptError) as error:  # compacted and deleted meanwhile: look up again
            if attempt:
                raise UnreadableFileError(f"cannot search by timestamp: partition={partition}: {error}") from error
    raise AssertionError


async def _search(
    metastore: ReadApi, store: ObjectStore, partition: ScanPartition, timestamp: int, *, committed: bool
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
            if extent.max_timestamp >= timestamp:
                data = await store.get(object_key(extent.file_id), ByteRange(extent.position, extent.length))
                first = await asyncio.to_thread(_first_in, extent, data, found.log_start_offset, timestamp)
                if first is not None:
                    return None if committed and first >= found.last_stable_offset else first
        if not found.extents:
            return None
        offset = found.extents[-1].last_offset + 1


def _first_in(extent: Extent, data: bytes, log_start_offset: int, timestamp: int) -> int | None:
    for offset, header, batch in walk_extent(memoryview(data), extent.base_offset, extent.last_offset):
        next_offset = offset + header.last_offset_delta + 1
        if header.is_control or header.highest_timestamp < timestamp or next_offset <= log_start_offset:
            continue
        try:
            records = open_batch(batch)
        except BatchTooLargeError:
            return max(offset, log_start_offset)
        shift = offset - header.base_offset
        for record in records:
            if record.timestamp >= timestamp and record.offset + shift >= log_start_offset:
                return record.offset + shift
    return None
