"""The record that ListOffsets finds by time: the first that is new enough, or the newest one (KIP-734).

Place: under ListOffsets; the metastore named the first extent that may contain the record, or the extent with the
highest timestamp in its row.
Invariant: the answer is a readable record (at or above the log start) with the wanted timestamp or a later one, and
no earlier record has one. Markers are passed over: only records are searched for. Batches with a higher timestamp in
the header than in their records are skipped. Only for a batch that is too large to be opened the header is trusted,
and its first readable offset is the answer: a consumer that starts there misses nothing. Nor does one that is sent
to a damaged batch: it may hold such a record unless its header says otherwise, and the consumer learns of the
damage. The newest record is the one that a scan of the readable log would find. If the extent has such a record,
only this extent is read. If not (a wrong header, or the newest record is below the log start), a binary search over
time follows: as many look-ups as the logarithm of the milliseconds in question, each of which opens every extent
with a too high timestamp in its row.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from headrace.agent.fetch.files.damage import Damage
from headrace.agent.fetch.files.seek import Seeker
from headrace.agent.fetch.files.walk import BatchStart, ExtentBatch, UnsoundBatchError
from headrace.metastore.api.read import DataExtent, Extent, ExtentQuery, IndexApi, OffsetKind, OffsetQuery, is_in_file
from headrace.storage.records.codec import open_batch
from headrace.storage.records.errors import BatchTooLargeError
from headrace.storage.records.header import read_header
from headrace.storage.segment.damage import Piece

ALL_BYTES = 2**31 - 1


class FoundRecord(NamedTuple):
    """`timestamp` in ms."""

    offset: int
    timestamp: int
    leader_epoch: int


class TimestampSearch:
    """Opens extents, batches and records; raises what reading them raises."""

    def __init__(self, metastore: IndexApi, seeker: Seeker, damage: Damage | None = None) -> None:
        """`damage`: None if no extent is examined."""
        self._metastore = metastore
        self._seeker = seeker
        self._damage = damage

    async def first_record(self, extent: Extent, log_start_offset: int, timestamp: int) -> FoundRecord | None:
        """The first record from `log_start_offset` on with `timestamp` or a later one, from `extent` on."""
        candidate = extent if is_in_file(extent) else await self._next_candidate(extent, timestamp)
        while candidate is not None:
            found = await self._in_extent(candidate, log_start_offset, timestamp)
            if found is not None:
                return found
            candidate = await self._next_candidate(candidate, timestamp)
        return None

    async def _in_extent(self, extent: DataExtent, log_start_offset: int, timestamp: int) -> FoundRecord | None:
        def may_hold(batch: ExtentBatch) -> bool:
            return read_header(batch.data).highest_timestamp >= timestamp and batch.next_offset > log_start_offset

        start = await self._seeker.start_before(extent, timestamp)
        while True:
            try:
                batch = await self._seeker.first_batch(extent, may_hold, start, recent=False)
            except UnsoundBatchError as error:
                piece = await self._damaged_piece(extent, start)
                if piece is None or piece.position != error.position:
                    raise
                if piece.last_offset >= log_start_offset and _may_reach(piece, extent, timestamp):
                    return FoundRecord(max(piece.base_offset, log_start_offset), timestamp, extent.leader_epoch)
                start = BatchStart(piece.end, piece.last_offset + 1)
                continue
            if batch is None:
                return None
            found = await asyncio.to_thread(_in_batch, batch, log_start_offset, timestamp)
            if found is not None:
                return FoundRecord(*found, extent.leader_epoch)
            start = batch.next

    async def _damaged_piece(self, extent: DataExtent, start: BatchStart) -> Piece | None:
        """Return the first damage from `start` on; None if the bytes in the bucket are sound."""
        if self._damage is None or not await self._damage.find(extent):
            return None
        return self._damage.next(extent, start.offset)

    async def _next_candidate(self, extent: Extent, timestamp: int) -> DataExtent | None:
        """The next extent that may contain the record; the first one nearly always does, so this may be slow."""
        key, offset = extent.partition_key, extent.last_offset + 1
        while True:
            (answer,) = await self._metastore.find_extents([ExtentQuery(key, offset, ALL_BYTES)])
            for later in answer.extents:
                if is_in_file(later) and later.max_timestamp >= timestamp:
                    return later
            if not answer.extents:
                return None
            offset = answer.extents[-1].last_offset + 1


def _may_reach(piece: Piece, extent: Extent, timestamp: int) -> bool:
    """Return whether damaged batches may have such a record: a header that fits its extent is believed."""
    if piece.claim is None or piece.claim.highest_timestamp > extent.max_timestamp:
        return True
    return piece.claim.highest_timestamp >= timestamp


def _in_batch(batch: ExtentBatch, log_start_offset: int, timestamp: int) -> tuple[int, int] | None:
    """(offset, timestamp) of its first such record."""
    header = read_header(batch.data)
    try:
        opened = open_batch(batch.data)
    except BatchTooLargeError:
        return max(batch.offset, log_start_offset), header.highest_timestamp
    shift = batch.offset - header.base_offset
    for record in opened:
        if record.timestamp >= timestamp and record.offset + shift >= log_start_offset:
            return record.offset + shift, record.timestamp
    return None


async def newest_record(
    metastore: IndexApi, search: TimestampSearch, extent: Extent, log_start_offset: int
) -> FoundRecord | None:
    """`extent`: the first with the highest timestamp. None if no record has a timestamp; raises as reading does."""

    async def reaching(timestamp: int) -> FoundRecord | None:
        (answer,) = await metastore.list_offsets([OffsetQuery(extent.partition_key, timestamp)])
        return None if answer.extent is None else await search.first_record(answer.extent, log_start_offset, timestamp)

    found = await search.first_record(extent, log_start_offset, extent.max_timestamp)
    if found is not None:
        return found
    best = await _last_record(metastore, search, extent.partition_key, log_start_offset)
    low, high = -1 if best is None else best.timestamp, extent.max_timestamp - 1
    step = 1  # doubles until no record is that new: the last records are usually the newest; 0 from then on
    while low < high:
        wanted = min(low + step, high) if step else (low + high + 1) // 2
        found = await reaching(wanted)
        if found is None:
            high, step = wanted - 1, 0
        else:
            best, low, step = found, found.timestamp, step * 2
    if best is None:
        return None
    return await reaching(low) or best  # `best` if its header says an earlier time, so that no look-up reaches it


async def _last_record(
    metastore: IndexApi, search: TimestampSearch, key: int, log_start_offset: int
) -> FoundRecord | None:
    """A record with a timestamp in the log's last extent; None if none there has one."""
    (latest,) = await metastore.list_offsets([OffsetQuery(key, OffsetKind.LATEST)])
    (answer,) = await metastore.find_extents([ExtentQuery(key, latest.offset - 1, 1)])
    return await search.first_record(answer.extents[-1], log_start_offset, 0) if answer.extents else None
