"""The first record with the highest timestamp of a partition: ListOffsets' -3 (KIP-734).

Place: under ListOffsets, above timestamps.py; the metastore named the extent with the highest timestamp in its row.
Invariant: the answer is the one that a scan of the readable log would find. If the extent has such a record, only
this extent is read. If not (a wrong header, or the newest record is below the log start), a binary search over time
follows: as many look-ups as the logarithm of the milliseconds in question, each of which opens every extent with a
too high timestamp in its row.
"""

from __future__ import annotations

from headrace.agent.fetch.offsets.timestamps import FoundRecord, TimestampSearch
from headrace.metastore.api.read import Extent, ExtentQuery, IndexApi, OffsetKind, OffsetQuery


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
