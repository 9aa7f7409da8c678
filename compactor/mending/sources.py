"""Find the sound batches of damaged bytes: in those bytes themselves, or in files that the damaged one was made of.

Place: under `headrace damage repair`; matching is pure, search reads the candidates that the metastore names.
Invariant: only batches with a correct checksum are returned, and only if they are certainly the damaged ones:
    - their header is the damaged one from the CRC on: the CRC covers the records; or
    - their records are the damaged one's byte for byte, and one field of the header differs; or
    - they are between the same two sound batches as the damage, with as many offsets and bytes; or
    - they have the same offsets, by the metastore's row of the segment that was replaced. Not below a cleaned offset: a
      removed record must not come back.
If two places of a file match with different batches, neither is used.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.metastore.api.compaction import RepairSource
from headrace.metastore.api.reports import PartitionName
from headrace.storage.errors import CorruptError, NotFoundError
from headrace.storage.file_id import object_key
from headrace.storage.objects.store import ByteRange, ObjectStore
from headrace.storage.records.header import (
    HEADER_BYTES,
    LENGTH_OFFSET,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    MAGIC_OFFSET,
    BatchHeader,
    batch_crc,
    read_header,
)
from headrace.storage.segment.damage import Piece
from headrace.storage.segment.format import PartitionEntry
from headrace.storage.segment.reader import load_footer, walk_batches

SOURCES_MAX = 10_000
"""Files that are searched for one damaged piece. Each costs a read of its footer, and one of the partition's bytes."""
_CRC_FIELD = BatchHeader._fields.index("crc")


class Stored(NamedTuple):
    """A sound batch in a file, byte for byte."""

    header: BatchHeader
    data: bytes

    @property
    def offsets(self) -> int:
        """How many offsets it covers."""
        return self.header.last_offset_delta + 1

    @property
    def identity(self) -> tuple[int, ...]:
        """Return what is the same in each copy of the batch: length, and the header from the CRC on."""
        return (self.header.batch_length, *self.header[_CRC_FIELD:])


class Wanted(NamedTuple):
    """A damaged piece, its bytes, and the sound batches directly before and behind it in the extent, if there are."""

    piece: Piece
    data: bytes
    before: Stored | None
    behind: Stored | None

    @property
    def offsets(self) -> int:
        """How many offsets are damaged."""
        return self.piece.last_offset - self.piece.base_offset + 1


def stored(data: bytes) -> Stored | None:
    """Return the batch if it is sound."""
    if len(data) < HEADER_BYTES:
        return None
    header = read_header(data)
    whole = header.magic == MAGIC and header.size == len(data) and header.last_offset_delta >= 0
    return Stored(header, data) if whole and batch_crc(memoryview(data)) == header.crc else None


def from_own_bytes(wanted: Wanted) -> list[Stored]:
    """Return the batch if only its length or magic is damaged: the CRC covers neither. Else nothing."""
    data = bytearray(wanted.data)
    if len(data) < HEADER_BYTES:
        return []
    struct.pack_into(">i", data, LENGTH_OFFSET, len(data) - LENGTH_PREFIX_BYTES)
    data[MAGIC_OFFSET] = MAGIC
    found = stored(bytes(data))
    return [found] if found is not None and found.offsets == wanted.offsets else []


def matches(wanted: Wanted, run: Sequence[Stored | None]) -> list[Stored]:
    """Return the damaged batches out of one partition's batches in a file, in order (None: not sound); [] if they are
    not certain.
    """
    alike = [one for one in run if one is not None and _is_same(wanted, one)]
    found = [[one] for one in alike] or list(_between(wanted, run))
    distinct = {tuple(batch.identity for batch in batches): batches for batches in found}
    return next(iter(distinct.values())) if len(distinct) == 1 else []


def at_offsets(wanted: Wanted, run: Sequence[Stored | None], start_offset: int) -> list[Stored]:
    """Return the batches that cover exactly the damaged offsets, if the run's first offset is `start_offset`."""
    offset, found = start_offset, list[Stored]()
    for one in run:
        if one is None:
            return []
        if offset >= wanted.piece.base_offset and offset + one.offsets - 1 <= wanted.piece.last_offset:
            found.append(one)
        offset += one.offsets
    return found if found and _covers(wanted, run, found, start_offset) else []


async def search(store: ObjectStore, wanted: Wanted, source: RepairSource, name: PartitionName) -> list[Stored]:
    """Return the damaged batches from one file; [] if it has none that are certain. What the store raises, but for a
    file that is gone.
    """
    key = object_key(source.file_id)
    try:
        footer = await load_footer(store, key, source.size)
        entry = next((e for e in footer.partitions if (e.topic_id, e.partition_index) == name), None)
        if entry is None:
            return []
        run = _run(await store.get(key, ByteRange(entry.position, entry.length)), entry)
    except (NotFoundError, CorruptError):
        return []
    found = matches(wanted, run)
    counted = source.end_offset - source.start_offset + 1
    if not found and source.start_offset >= 0 and entry.record_count == counted:
        found = at_offsets(wanted, run, source.start_offset)
    return found


def _covers(wanted: Wanted, run: Iterable[Stored | None], found: Sequence[Stored], start_offset: int) -> bool:
    """Return whether the found batches begin and end with the damage."""
    offset = start_offset
    for one in run:
        assert one is not None
        if one is found[0]:
            return (
                offset == wanted.piece.base_offset
                and offset + sum(batch.offsets for batch in found) == wanted.piece.last_offset + 1
            )
        offset += one.offsets
    return False


def _is_same(wanted: Wanted, one: Stored) -> bool:
    """Return whether the damaged header tells that this is its batch."""
    claim = wanted.piece.claim
    if claim is None or one.offsets != wanted.offsets or len(one.data) != wanted.piece.length:
        return False
    if one.header[_CRC_FIELD:] == claim[_CRC_FIELD:]:
        return True
    if one.data[HEADER_BYTES:] == wanted.data[HEADER_BYTES:]:  # the CRC itself, or another field, is damaged
        return sum(a != b for a, b in zip(one.header[_CRC_FIELD:], claim[_CRC_FIELD:], strict=True)) == 1
    return False


def _between(wanted: Wanted, run: Sequence[Stored | None]) -> Iterable[list[Stored]]:
    """Yield what is between the same neighbours, with as many offsets and bytes."""
    if wanted.before is None or wanted.behind is None:
        return
    for number, one in enumerate(run):
        if one is None or one.identity != wanted.before.identity:
            continue
        found: list[Stored] = []
        for other in run[number + 1 :]:
            if other is None:
                break
            if other.identity == wanted.behind.identity:
                if _fits(wanted, found):
                    yield found
                break
            found.append(other)


def _fits(wanted: Wanted, found: Sequence[Stored]) -> bool:
    return bool(found) and (
        sum(batch.offsets for batch in found) == wanted.offsets
        and sum(len(batch.data) for batch in found) == wanted.piece.length
    )


def _run(body: bytes, entry: PartitionEntry) -> list[Stored | None]:
    """A partition's batches in a file. CorruptError if they do not follow each other."""
    assert len(body) == entry.length
    return [stored(body[position : position + header.size]) for position, header in walk_batches(body)]
