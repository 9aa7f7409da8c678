"""What a promotion or a restore of Postgres may have lost: stored files that the metastore does not name.

Place: `headrace audit --lost`; reads only, and can run while the cluster runs.
Invariant: every flushed file that was created before the newest life of the metastore began, and that no row names, is
counted by topic and partition. So is a file of the minute after, if agents recorded its commit or no commit named it
for a while: an old primary that is cut off acknowledges until its agents' next check. Extents that agents recorded
before they forgot them (metastore/life/forgotten.py) say which of these files were committed, and at which offsets. The
rest is an upper bound: a file of an agent that crashed before its commit looks like one with a commit that no agent
remembers. Merged files are copies and are left out, but for the records of lost inline files (moved.py): these are
certain, each once. Inline files that were not moved yet are in the bucket only if an agent still had them in memory; of
the others only the offsets are known, for about an hour: as long as the metastore keeps the rows of files that it did
not lose. Memory is limited to one page of files, one merged file, one row per partition and one per moved range.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from headrace.compactor.audit import OnProgress
from headrace.compactor.moved import ROWS_KEPT_MS, Moved, by_source, find_moved, not_in
from headrace.compactor.put_back import lost_batches, read_whole
from headrace.compactor.sweeper import pages
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.read import ExtentQuery, IndexApi
from headrace.metastore.life.forgotten import OffsetRange, read_forgotten
from headrace.metastore.life.moved import MOVED_LEVEL, MovedRange
from headrace.metastore.transaction_markers import Marker, marker_of
from headrace.storage.errors import CorruptError, DamagedError, NotFoundError
from headrace.storage.file_id import born_ms, is_inline, level_of, object_key
from headrace.storage.objects.agreed import read_agreed
from headrace.storage.objects.store import ObjectStore
from headrace.storage.records.header import BatchHeader
from headrace.storage.segment.format import PartitionEntry
from headrace.storage.segment.rereading import VerifiedReads

LATE_MS = 60_000
"""After a life began, files of an older one may still come: checks, requests, and clocks that differ."""
SETTLE_MS = 10_000
"""A file of that time without a row may be on its way to its commit in the new life until it is so old."""


@dataclass(slots=True)
class LostPartition:
    """Records of one partition in files without a row. Times in ms since the epoch, of the records."""

    topic_id: uuid.UUID
    partition_index: int
    files: int = 0
    batches: int = 0
    records: int = 0
    size: int = 0
    min_timestamp: int = 1 << 62
    max_timestamp: int = -1
    certain_records: int = 0
    """Number of these records, those with known offsets: their commit was fed to agents, so they were acknowledged."""
    offsets: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of these offsets, both ends included, in order."""

    def add_certain(self, ranges: Iterable[OffsetRange]) -> None:
        """Offsets that a file's extents had."""
        for found in ranges:
            self.certain_records += found.last_offset - found.base_offset + 1
            self.offsets = joined([*self.offsets, (found.base_offset, found.last_offset)])

    def add_batch(self, header: BatchHeader) -> None:
        """Count a batch of a merged file."""
        self.batches += 1
        self.records += header.last_offset_delta + 1
        self.size += header.size
        self.min_timestamp = min(self.min_timestamp, header.base_timestamp)
        self.max_timestamp = max(self.max_timestamp, header.highest_timestamp)

    def add(self, entry: PartitionEntry) -> None:
        """Count what one file has of it."""
        self.files += 1
        self.batches += entry.batch_count
        self.records += entry.record_count
        self.size += entry.length
        self.min_timestamp = min(self.min_timestamp, entry.min_timestamp)
        self.max_timestamp = max(self.max_timestamp, entry.max_timestamp)


@dataclass(slots=True)
class Lost:
    """The findings."""

    file_ids: list[uuid.UUID] = field(default_factory=list)
    certain_ids: set[uuid.UUID] = field(default_factory=set)
    """Files that were committed: agents recorded it, or a merge read them."""
    unreadable: list[tuple[uuid.UUID, str]] = field(default_factory=list)
    committed: dict[uuid.UUID, set[OffsetRange]] = field(default_factory=dict)
    """What agents recorded of the certain ones among `file_ids`."""
    moved: Moved = field(default_factory=dict)
    """Ranges of lost inline files in merged files that no row names: certain, too."""
    nowhere: list[OffsetRange] = field(default_factory=list)
    """Offsets of acknowledged records in small files of which no bytes are left."""
    partitions: dict[tuple[uuid.UUID, int], LostPartition] = field(default_factory=dict)

    @property
    def certain(self) -> int:
        """Number of files among `file_ids` that agents recorded as committed."""
        return len(self.committed)

    def partition(self, entry: PartitionEntry) -> LostPartition:
        """Return the row of a footer's partition."""
        name = (entry.topic_id, entry.partition_index)
        return self.partitions.setdefault(name, LostPartition(*name))

    def in_order(self) -> list[LostPartition]:
        """Return the partitions in order of topic id, then partition."""
        return [self.partitions[name] for name in sorted(self.partitions)]


async def find_lost(api: Metastore, reads: VerifiedReads, begun_ms: int, now_ms: int, on_progress: OnProgress) -> Lost:
    """Files of before the newest life, which began at `begun_ms`, that no row names. One footer is read for each, and
    merged files with records of lost inline files as a whole. Times are of wall clocks, in ms since the epoch."""
    found, seen, fed = Lost(), 0, await read_forgotten(reads.store)
    merged: list[uuid.UUID] = []
    saved: dict[uuid.UUID, int] = {}

    def may_be_lost(file_id: uuid.UUID) -> bool:
        born = born_ms(file_id)
        is_settled = born < begun_ms or born < now_ms - SETTLE_MS or file_id in fed
        return level_of(file_id) in (0, MOVED_LEVEL) and born < begun_ms + LATE_MS and is_settled

    async for page in pages(reads.store):
        seen += len(page.files)
        old = [file_id for file_id in page.files if may_be_lost(file_id)]
        for file_id in await api.files.unnamed_files(old) if old else []:
            if level_of(file_id):
                merged.append(file_id)
            elif is_inline(file_id):
                saved[file_id] = page.files[file_id].size
            else:
                await _count(reads, file_id, page.files[file_id].size, fed.get(file_id, set()), found)
        on_progress("objects", seen, 0)
    await _find_inline(api, reads, Inline(merged, saved, fed), now_ms, found)
    return found


class Inline(NamedTuple):
    """Where records of inline files may be: merged files, and files that agents saved, with their size in bytes."""

    merged: list[uuid.UUID]
    saved: dict[uuid.UUID, int]
    fed: Mapping[uuid.UUID, set[OffsetRange]]


async def _find_inline(api: Metastore, reads: VerifiedReads, inline: Inline, now_ms: int, found: Lost) -> None:
    """Each range once: in a merged file, else in the file that an agent saved, else nowhere."""
    moved = await find_moved(api, reads.store, inline.merged)
    sources = by_source(moved)
    for file_id, size in sorted(inline.saved.items()):
        places, fed = sources.get(file_id, []), inline.fed.get(file_id, set())
        left = {place.partition_key for place in not_in(places, fed)}
        sources[file_id] = [place for place in places if place.partition_key not in left]
        without = {place.partition_key for place in sources[file_id]}
        here = {place for place in fed if place.partition_key not in without}
        await _count(reads, file_id, size, here, found, without)
    kept = {place for places in sources.values() for place in places}
    for merged_id, places in moved.items():
        if mine := [place for place in places if place in kept]:
            await _count_moved(reads, merged_id, mine, found)
    small = [
        file_id
        for file_id in inline.fed
        if is_inline(file_id) and file_id not in inline.saved and born_ms(file_id) > now_ms - ROWS_KEPT_MS
    ]
    for file_id in await api.files.unnamed_files(small) if small else []:
        found.nowhere += sorted(not_in(sources.get(file_id, ()), inline.fed[file_id]))


logger = logging.getLogger(__name__)


class LostEnd(NamedTuple):
    """The end of a transaction in one partition that agents had learned of."""

    partition_key: int
    offset: int
    marker: Marker


async def find_lost_ends(api: IndexApi, store: ObjectStore) -> list[LostEnd]:
    """Ends of transactions that agents recorded, and that the log does not have: what the new life aborted, although
    its end was acknowledged or about to be."""
    recorded = [
        LostEnd(place.partition_key, place.base_offset, marker)
        for file_id, places in (await read_forgotten(store)).items()
        if (marker := marker_of(file_id)) is not None
        for place in places
    ]
    answers = await api.find_extents([ExtentQuery(end.partition_key, end.offset, 1) for end in recorded])
    return sorted(
        end
        for end, answer in zip(recorded, answers, strict=True)
        if answer.log_start_offset <= end.offset
        and not any(e.base_offset == end.offset and marker_of(e.source) == end.marker for e in answer.extents)
    )


async def export(reads: VerifiedReads, file_ids: Sequence[uuid.UUID], directory: Path) -> None:
    """Copy the files to `directory`, each under its id: `headrace dump-log --files` prints their records.

    A file that is damaged in the bucket is copied as the bucket has it. BadTransferError.
    """
    await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
    for file_id in file_ids:
        try:
            body, _ = await read_whole(reads, file_id)
        except DamagedError as error:
            logger.error("file is damaged, and copied as it is: file=%s error=%s", file_id, error)
            body = memoryview(await read_agreed(reads.store, object_key(file_id)))
        await asyncio.to_thread((directory / f"{file_id}.segment").write_bytes, body)


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges in order; neighbours become one."""
    result: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(result[-1][1], last))
        else:
            result.append((first, last))
    return result


async def _count(
    reads: VerifiedReads,
    file_id: uuid.UUID,
    size: int,
    fed: set[OffsetRange],
    found: Lost,
    without: Container[int] = (),
) -> None:
    """Count a file, but for these partition keys of it."""
    try:
        footer = await reads.footer(object_key(file_id), size)
    except NotFoundError:
        return  # deleted since it was listed
    except CorruptError as error:
        found.unreadable.append((file_id, str(error)))
        return
    entries = [entry for entry in footer.partitions if entry.partition_key not in without]
    if entries:
        found.file_ids.append(file_id)
    if fed:
        found.certain_ids.add(file_id)
        found.committed[file_id] = fed
    for entry in entries:
        partition = found.partition(entry)
        partition.add(entry)
        partition.add_certain(place for place in fed if place.partition_key == entry.partition_key)


async def _count_moved(reads: VerifiedReads, merged_id: uuid.UUID, places: list[MovedRange], found: Lost) -> None:
    """Count these ranges of a merged file."""
    try:
        body, footer = await read_whole(reads, merged_id)
    except NotFoundError:
        return
    except CorruptError as error:
        found.unreadable.append((merged_id, str(error)))
        return
    found.moved[merged_id] = places
    found.certain_ids.update(place.source for place in places)
    for entry in footer.partitions:
        mine = [place for place in places if place.partition_key == entry.partition_key]
        if mine:
            partition = found.partition(entry)
            partition.files += 1
            partition.add_certain(OffsetRange(*place[1:4]) for place in mine)
            for _, header, _ in lost_batches(body, entry, mine):
                partition.add_batch(header)
