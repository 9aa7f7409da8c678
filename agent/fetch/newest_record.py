"""The first record that has the highest timestamp of a partition: ListOffsets' -3 (KIP-734).

Place: under ListOffsets, above timestamps.py; the metastore named an extent that promises the highest.
Invariant: the answer is what a scan of the readable log would find. A promise that is kept costs that one
extent. One that is not (a header that lies, or a newest record below the log start) costs a search over time:
as many look-ups as the logarithm of the milliseconds in question, and in each of them every extent that
promises in vain. If the process dies here clients repeat their request.
"""

from __future__ import annotations

from headrace.agent.fetch.timestamps import FoundRecord, TimestampSearch
from headrace.metastore.api.read import Extent, ExtentQuery, OffsetKind, OffsetQuery, ReadApi


async def newest_record(
    metastore: ReadApi, search: TimestampSearch, extent: Extent, log_start_offset: int
) -> FoundRecord | None:
    """`extent`: the first that promises the highest timestamp. None when no record has one; raises as reading does."""

    async def reaching(timestamp: int) -> FoundRecord | None:
        (answer,) = await metastore.list_offsets([OffsetQuery(extent.partition_key, timestamp)])
        return None if answer.extent is None else await search.first_record(answer.extent, log_start_offset, timestamp)

    found = await search.first_record(extent, log_start_offset, extent.max_timestamp)
    if found is not None:
        return found
    low, high = (
        await _last_timestamp(metastore, search, extent.partition_key, log_start_offset),
        extent.max_timestamp - 1,
    )
    step = 1  # doubles until nothing is so new: the last records are nearly always the newest; 0 from then on
    while low < high:
        wanted = min(low + step, high) if step else (low + high + 1) // 2
        found = await reaching(wanted)
        if found is None:
            high, step = wanted - 1, 0
        else:
            low, step = found.timestamp, step * 2
    return None if low < 0 else await reaching(low)


async def _last_timestamp(metastore: ReadApi, search: TimestampSearch, key: int, log_start_offset: int) -> int:
    """Of a record in the log's last extent; -1 when none there has one."""
    (latest,) = await metastore.list_offsets([OffsetQuery(key, OffsetKind.LATEST)])
    (answer,) = await metastore.find_extents([ExtentQuery(key, latest.offset - 1, 1)])
    found = await search.first_record(answer.extents[-1], log_start_offset, 0) if answer.extents else None
    return -1 if found is None else found.timestamp
