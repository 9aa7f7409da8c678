"""Finds the records of lost inline files in merged files that the metastore does not name, and what is in no file.

Place: under lost.py, put_back.py and rebuild.py. After a restore to an hour ago the bucket has what merges moved since;
the inline files themselves were rows, and are gone.
Invariant: a range of offsets is returned once, however many merged files name it, and only if the log does not have
it. It has it if a row names the inline file, or if the extent at its first offset was committed in the same life: in
one life no two records have the same offset of a partition. (The row of an inline file goes an hour after its
records were moved, and a merge that lost its lease leaves a merged file without a row.) What was removed from the
start of a log counts as there.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.read import ExtentQuery, PartitionExtents
from headrace.metastore.life.forgotten import OffsetRange
from headrace.metastore.life.moved import MovedRange, read_moved
from headrace.metastore.life.numbers import life_of_epoch
from headrace.storage.file_id import born_ms, is_inline
from headrace.storage.objects.store import ObjectStore

RANGES_PER_CALL = 1_000
ROWS_KEPT_MS = 4_200_000
"""Less than the time for which the row of a committed file stays (settled_age())."""

Moved = dict[uuid.UUID, list[MovedRange]]
"""Ranges by the merged file that alone has them."""


async def find_moved(api: Metastore, store: ObjectStore, merged: Iterable[uuid.UUID]) -> Moved:
    """Return what these merged files, which no row names, have of inline files that the metastore lost. The oldest has
    a range that several of them name. CorruptError if the names of one are damaged."""
    holders: dict[MovedRange, uuid.UUID] = {}
    for merged_id in sorted(merged):
        for place in await read_moved(store, merged_id):
            holders.setdefault(place, merged_id)
    sources = sorted({place.source for place in holders})
    unnamed: set[uuid.UUID] = set()
    for start in range(0, len(sources), RANGES_PER_CALL):
        unnamed.update(await api.files.unnamed_files(sources[start : start + RANGES_PER_CALL]))
    found: Moved = defaultdict(list)
    places = sorted((place for place in holders if place.source in unnamed), key=lambda place: place[1:])
    for start in range(0, len(places), RANGES_PER_CALL):
        some = places[start : start + RANGES_PER_CALL]
        answers = await api.index.find_extents([ExtentQuery(p.partition_key, p.base_offset, 1) for p in some])
        for place, answer in zip(some, answers, strict=True):
            if not has(answer, place):
                found[holders[place]].append(place)
    return dict(found)


def has(answer: PartitionExtents, place: MovedRange) -> bool:
    """Return whether a log has the records that were committed at this place. `answer` begins there. Pure."""
    if not answer.known:
        return False
    if place.base_offset < answer.log_start_offset:
        return True
    if place.base_offset >= answer.high_watermark or not answer.extents:
        return False
    return life_of_epoch(answer.extents[0].leader_epoch) == life_of_epoch(place.leader_epoch)


def not_in(moved: Iterable[MovedRange], ranges: Iterable[OffsetRange]) -> set[OffsetRange]:
    """Return those of the ranges of one inline file that are in no merged file. Pure."""
    return set(ranges) - {OffsetRange(place.partition_key, place.base_offset, place.last_offset) for place in moved}


def unmoved(
    fed: Mapping[uuid.UUID, Iterable[OffsetRange]], stored: Iterable[uuid.UUID]
) -> dict[int, list[OffsetRange]]:
    """Return what agents recorded of inline files that are not in the bucket, by partition key, of the last hour before
    the newest file: earlier ones were moved, or belong to a life that is long over. `stored`: the bucket's files. Pure.
    """
    stored = set(stored)
    newest_ms = max(map(born_ms, (*stored, *fed)), default=0)
    found: dict[int, list[OffsetRange]] = defaultdict(list)
    for file_id, ranges in fed.items():
        if is_inline(file_id) and file_id not in stored and born_ms(file_id) > newest_ms - ROWS_KEPT_MS:
            for place in ranges:
                found[place.partition_key].append(place)
    return found


def by_source(moved: Mapping[uuid.UUID, Sequence[MovedRange]]) -> dict[uuid.UUID, list[MovedRange]]:
    """The same ranges, by inline file."""
    found: dict[uuid.UUID, list[MovedRange]] = defaultdict(list)
    for places in moved.values():
        for place in places:
            found[place.source].append(place)
    return found
