"""The audit trail of remote segments: the bytes of its objects, with a reader from any offset on.

Place: compactor/segments.py writes the objects; the topic (agent/fetch/rendered_topics.py) and the tools
read. The metastore says where records are.
Invariant of an object: an object has all records of one metadata partition from its first offset to its last one, in
blocks of at most BLOCK_RECORDS. A block is at most BLOCK_BYTES_MAX large, stored and unpacked, so a reader's memory
is bounded however large the object is. What is damaged is a CorruptError.
Layout: MAGIC, the blocks, the index. Each block and the index begin with the CRC-32C of the rest (4 bytes,
big-endian). The rest of a block is a zlib stream of MessagePack: a list with the fields of each record (_Record);
ids are 16 bytes. The rest of the index is MessagePack: a list with the fields of each Block. The metastore's row
says how large the object and its index are. Another layout gets another MAGIC.
Invariant of reads: a page has the records of the trail from the offset on without a gap, and says up to where.
Records that move to the bucket between two pages keep their offsets. If an object is deleted between the answer of
the metastore and the read, the page is read again: another object has its records, or the trail begins after them.
An object that is missing otherwise is an error, never a gap.
Memory: one block of an object at a time per call, at most BLOCK_BYTES_MAX stored and as much unpacked, and the
object's index. A page from the bucket costs two GETs of byte ranges.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import crc32c
import msgspec

from headrace.metastore.api.audit_archive import AUDIT_PREFIX, ArchivedAudit
from headrace.metastore.api.segment_logs import LogEnds, SegmentLogApi
from headrace.metastore.api.segment_states import RemoteSegmentKey
from headrace.metastore.api.segments import SegmentCause, SegmentEvent, SegmentFacts
from headrace.storage.errors import CorruptError, InvalidError, NotFoundError, UnavailableError
from headrace.storage.objects.store import ByteRange, ObjectStore

MAGIC = b"HRA1"
BLOCK_RECORDS = 4_000
BLOCK_BYTES_MAX = 1 << 20
_CHECKSUM_BYTES = 4
_FAST = 1
"""A third of the time of the default level, for a tenth more bytes."""


class Block(NamedTuple):
    """Position of some records in their object. Offsets are inclusive; `position` and `length` in bytes."""

    first_offset: int
    last_offset: int
    records: int
    position: int
    length: int


class _Record(NamedTuple):
    """The fields of a SegmentEvent in the order of the layout; the object's key has the metadata partition."""

    audit_offset: int
    log_offset: int
    api_key: int
    topic_id: uuid.UUID
    partition_index: int
    end_offset: int
    epoch: int
    state: int
    cause: int
    broker_id: int
    event_ms: int
    segment_id: uuid.UUID | None
    file_id: uuid.UUID | None
    job_id: int | None
    facts: tuple[int, int, int, int] | None
    """Start offset, leader epoch, maximum timestamp, size."""


_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_records = msgspec.msgpack.Decoder(list[_Record])
_index = msgspec.msgpack.Decoder(list[Block])


class ObjectWriter:
    """Collects blocks, then makes the object."""

    def __init__(self) -> None:
        self._parts, self._size = [MAGIC], len(MAGIC)
        self.blocks: list[Block] = []

    def add(self, events: Sequence[SegmentEvent]) -> None:
        """Add the next records as a block. InvalidError if it would be too large."""
        plain = _encoder.encode([_Record._make([*event[1:4], *event.key, *event[5:]]) for event in events])
        packed = _sealed(zlib.compress(plain, _FAST))
        if max(len(plain), len(packed)) > BLOCK_BYTES_MAX:
            raise InvalidError(f"too many records for a block of the audit trail: records={len(events)}")
        self._add(Block(events[0].audit_offset, events[-1].audit_offset, len(events), self._size, len(packed)), packed)

    def add_object(self, blocks: Sequence[tuple[Block, bytes]]) -> None:
        """Add the blocks of an object as they are."""
        for block, packed in blocks:
            self._add(block._replace(position=self._size), packed)

    def finish(self) -> tuple[bytes, int]:
        """The object, and the size of its index."""
        index = _sealed(_encoder.encode(self.blocks))
        return b"".join([*self._parts, index]), len(index)

    def _add(self, block: Block, packed: bytes) -> None:
        self.blocks.append(block)
        self._parts.append(packed)
        self._size += len(packed)


def decode_index(data: bytes, archived: ArchivedAudit) -> list[Block]:
    """The object's blocks, by the bytes of its index. CorruptError if they are not those of the row."""
    try:
        blocks = _index.decode(_opened(data, archived))
    except msgspec.MsgspecError as error:
        raise _damaged(archived, str(error)) from error
    span = archived.first_offset, archived.last_offset, archived.records
    if not blocks or (blocks[0].first_offset, blocks[-1].last_offset, sum(block.records for block in blocks)) != span:
        raise _damaged(archived, "other records")
    if any(before.last_offset >= after.first_offset for before, after in pairwise(blocks)):
        raise _damaged(archived, "blocks out of order")
    return blocks


def verified_blocks(data: bytes | memoryview, archived: ArchivedAudit) -> list[tuple[Block, bytes]]:
    """The blocks of a whole object, with their bytes. CorruptError unless index and blocks have their checksums."""
    if len(data) != archived.size:
        raise _damaged(archived, f"size {len(data)}")
    found = []
    for block in decode_index(bytes(data[archived.size - archived.index_size :]), archived):
        packed = bytes(data[block.position : block.position + block.length])
        _opened(packed, archived)
        found.append((block, packed))
    return found


def decode_block(data: bytes, block: Block, archived: ArchivedAudit) -> list[SegmentEvent]:
    """The block's records. CorruptError if they are not those of the index."""
    try:
        plain = zlib.decompressobj().decompress(_opened(data, archived), BLOCK_BYTES_MAX)
        events = [_event(archived.metadata_partition, record) for record in _records.decode(plain)]
    except (zlib.error, msgspec.MsgspecError, ValueError) as error:
        raise _damaged(archived, str(error)) from error
    span = block.first_offset, block.last_offset, block.records
    if not events or (events[0].audit_offset, events[-1].audit_offset, len(events)) != span:
        raise _damaged(archived, "other records")
    return events


def epoch_of(object_key: str) -> int | None:
    """The epoch of the lease that wrote the object; None for the key of something else."""
    parts = object_key.removeprefix(AUDIT_PREFIX).split("-")
    return int(parts[2]) if len(parts) == 3 and parts[2].isdecimal() else None


def _sealed(data: bytes) -> bytes:
    return crc32c.crc32c(data).to_bytes(_CHECKSUM_BYTES, "big") + data


def _opened(data: bytes, archived: ArchivedAudit) -> bytes:
    body = data[_CHECKSUM_BYTES:]
    if crc32c.crc32c(body).to_bytes(_CHECKSUM_BYTES, "big") != data[:_CHECKSUM_BYTES]:
        raise _damaged(archived, "checksum")
    return body


def _damaged(archived: ArchivedAudit, why: str) -> CorruptError:
    return CorruptError(f"object of the audit trail is damaged: key={archived.object_key} reason={why}")


def _event(metadata_partition: int, record: _Record) -> SegmentEvent:
    return SegmentEvent(
        metadata_partition,
        record.audit_offset,
        record.log_offset,
        record.api_key,
        RemoteSegmentKey(*record[3:7]),
        record.state,
        SegmentCause(record.cause),
        record.broker_id,
        record.event_ms,
        record.segment_id,
        record.file_id,
        record.job_id,
        None if record.facts is None else SegmentFacts(*record.facts),
    )


ATTEMPTS = 3
"""How often a page is read if its object is gone."""


class TrailPage(NamedTuple):
    """Records from an offset on. There is none between the last of them and `end_offset`."""

    ends: LogEnds
    rows: Sequence[SegmentEvent]
    end_offset: int


class AuditReader:
    """The store may be None for tools that were given no bucket: InvalidError once they need it."""

    def __init__(self, logs: SegmentLogApi, store: ObjectStore | None) -> None:
        self._logs, self._store = logs, store

    async def page(self, metadata_partition: int, offset: int, limit: int) -> TrailPage:
        """Return at most `limit` records; none below the trail's start. Errors of metastore and store."""
        missing = ""
        for _ in range(ATTEMPTS):
            found = await self._logs.read_audit_log(metadata_partition, offset, limit)
            if found.archived is None:
                return _bounded(found.ends, found.rows, limit, found.ends.next_audit_offset)
            first = max(offset, found.ends.audit_start)
            try:
                events = await self._block(found.archived, first)
            except NotFoundError:
                missing = found.archived.object_key
                continue
            rows = [event for event in events if event.audit_offset >= first][:limit]
            return _bounded(found.ends, rows, limit, events[-1].audit_offset + 1)
        raise UnavailableError(f"object of the audit trail is missing: key={missing}")

    async def events(self, metadata_partition: int, limit: int) -> AsyncIterator[SegmentEvent]:
        """All records, page by page."""
        page = await self.page(metadata_partition, 0, limit)
        while True:
            for event in page.rows:
                yield event
            if page.end_offset >= page.ends.next_audit_offset:
                return
            page = await self.page(metadata_partition, page.end_offset, limit)

    async def _block(self, archived: ArchivedAudit, first: int) -> list[SegmentEvent]:
        """The block with the first record from an offset on."""
        if self._store is None:
            raise InvalidError("the older part of the audit trail is in the bucket: set bucket (--bucket or --config)")
        place = ByteRange(archived.size - archived.index_size, archived.index_size)
        blocks = decode_index(await self._store.get(archived.object_key, place), archived)
        block = next(block for block in blocks if block.last_offset >= first)
        data = await self._store.get(archived.object_key, ByteRange(block.position, block.length))
        return decode_block(data, block, archived)


def _bounded(ends: LogEnds, rows: Sequence[SegmentEvent], limit: int, end_offset: int) -> TrailPage:
    return TrailPage(ends, rows, rows[-1].audit_offset + 1 if len(rows) == limit else end_offset)
