"""Turn what a source answered into batches to store, which continue a partition's log without a gap.

    tile    a batch without records: offsets that have none at the source (cleaned, aborted, a marker)
    chunk   batches of one partition from its log end on: each offset is in exactly one of them

Place: between a fetch (source.py) and the file (files.py). Pure.
Invariant: only verified batches come out (storage/segment/verified.py): a correct CRC, offsets that rise and that the
source says are stable, no more records than their bytes can hold. What a batch has below the log end is there
already, and is left out. Records of aborted transactions are left out, as consumers do it by the list of the same
answer; those of committed ones are in no transaction here, as after a cleaning (compactor/cleaning/rewrite.py). All
other batches are stored byte for byte.
Invariant of the end: a chunk ends where a batch of the answer ends. An answer without one proves nothing of the offsets
up to the last stable one, so nothing is stored for these. A marker that ends the log stays one, in no transaction: the
positions of librdkafka's consumers reach an end only by a record or a marker before it (docs/decisions/0093).
Source: KIP-98; docs/decisions/0038, 0063.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headrace.compactor.links.producers import ProducerStates
from headrace.compactor.rewrite import SPAN_MAX, WrittenBatch
from headrace.storage.errors import CorruptError, InvalidError
from headrace.storage.records.check import MIN_RECORD_BYTES
from headrace.storage.records.check_records import largest
from headrace.storage.records.codec import Record, empty_batch, encode_batch, encode_control_batch, open_batch
from headrace.storage.records.compression import MAX_EXPANSION, Codec
from headrace.storage.records.header import (
    HEADER,
    HEADER_BYTES,
    LENGTH_OFFSET,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    MAGIC_OFFSET,
    TRANSACTIONAL_BIT,
    BatchHeader,
    batch_crc,
    read_header,
)
from headrace.storage.segment.verified import SoundBatch

BATCH_BYTES_MAX = 60 * 1024 * 1024
"""Largest batch that is copied: it has to fit an answer (protocol/client/transport.py)."""
GAP_MAX = 1 << 40
"""Offsets without a record in one chunk: a thousand tiles. No log has so many, so it is no log."""
OFFSET_MAX = 1 << 62
MARKER_BYTES = 64 * 1024
"""A batch with a marker holds a record of a few bytes."""
_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_ABORT, _COMMIT = 0, 1


class OldFormatError(InvalidError):
    """The source has batches in a message format before v2: they cannot be copied as they are."""


class TooLargeBatchError(InvalidError):
    """A batch is larger than what is copied."""


class Chunk(NamedTuple):
    """`batches` cover exactly [base_offset, next_offset), with the source's leader epochs."""

    base_offset: int
    next_offset: int
    batches: list[WrittenBatch]
    producers: ProducerStates
    """The states of its producers after it."""
    bytes_wanted: int = 0
    """Size of the first batch if the answer has only a part of it, so that it is fetched again with more; else 0."""
    is_cut: bool = False
    """Whether the answer goes beyond what it says is stable."""

    @property
    def last_epoch(self) -> int:
        """The leader epoch of its end; -1 if it is empty."""
        return self.batches[-1][0].leader_epoch if self.batches else -1


class AbortedTransactions:
    """Find the batches of one answer that belong to aborted transactions, as consumers do (KIP-98). A cleaned log may
    keep the batch of a marker without the marker: it says nothing.
    """

    def __init__(self, aborted: Sequence[tuple[int, int]]) -> None:
        """`aborted`: (producer id, first offset) of each transaction."""
        self._starts = sorted(aborted, key=lambda one: one[1], reverse=True)
        self._producers: set[int] = set()

    def hide(self, batch: SoundBatch) -> bool:
        """Return whether readers see nothing of the batch; called for each one in the order of offsets."""
        header = batch.header
        while self._starts and self._starts[-1][1] <= batch.last_offset:
            self._producers.add(self._starts.pop()[0])
        if header.is_control:
            if header.is_transactional and header.record_count and _marker_type(batch) == _ABORT:
                self._producers.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._producers


class _Tiling:
    """Batches from an offset on; offsets between them become tiles."""

    def __init__(self, base_offset: int) -> None:
        self.batches: list[WrittenBatch] = []
        self._end = base_offset
        """Where the batches end."""
        self._bare: tuple[int, int] | None = None
        """The end and the leader epoch of what follows and becomes a tile."""

    def skip(self, end: int, leader_epoch: int) -> None:
        """Offsets below `end` have no record."""
        if self._bare is not None and self._bare[1] != leader_epoch:
            self.flush()
        if end > self._end:
            self._bare = end, leader_epoch

    def add(self, header: BatchHeader, data: memoryview) -> None:
        """Add a batch that begins at or behind the end."""
        self.skip(header.base_offset, header.leader_epoch)
        self.flush()
        self.batches.append((header, data))
        self._end = header.base_offset + header.last_offset_delta + 1

    def end_with(self, header: BatchHeader, data: memoryview) -> None:
        """Put this batch in place of the last offset that waits to become part of a tile."""
        assert self._bare is not None
        self._bare = None
        self.add(header, data)

    def flush(self) -> int:
        """Write what waits; the offset where the batches end."""
        if self._bare is not None:
            (end, leader_epoch), self._bare = self._bare, None
            self.batches += tiles(self._end, end, leader_epoch)
            self._end = end
        return self._end


def tiles(base_offset: int, end: int, leader_epoch: int) -> list[WrittenBatch]:
    """Batches without records for [base_offset, end). CorruptError for more than GAP_MAX offsets."""
    if end - base_offset > GAP_MAX:
        raise CorruptError(f"offsets jump: from={base_offset} to={end}")
    found = []
    for first in range(base_offset, end, SPAN_MAX):
        data = empty_batch(first, min(first + SPAN_MAX, end) - 1, leader_epoch)
        found.append((read_header(data), memoryview(data)))
    return found


def make_chunk(
    log_end: int,
    last_epoch: int,
    data: memoryview,
    aborted: Sequence[tuple[int, int]],
    *,
    stable: int,
    producers: ProducerStates,
) -> Chunk:
    """The batches in `data` that continue a log that ends at `log_end` with a record of `last_epoch` (-1: none).

    `data`, writable and the caller's no longer, and `aborted` are of one answer, with `stable` as the last stable
    offset; `producers` has what is known of the partition's producers. CorruptError for what no source may answer,
    OldFormatError, TooLargeBatchError.
    """
    hidden, tiling, after = AbortedTransactions(aborted), _Tiling(log_end), producers.copy()
    next_offset, ending = 0, None
    for view in _whole_batches(data):
        batch = _sound(view, next_offset)
        if batch.last_offset >= log_end and batch.header.leader_epoch < last_epoch:
            raise CorruptError(f"leader epochs fall: offset={batch.offset} epoch={batch.header.leader_epoch}")
        if batch.last_offset >= stable:  # written while the source made its answer: it comes again in the next one
            return Chunk(log_end, tiling.flush(), tiling.batches, after, is_cut=True)
        next_offset = batch.last_offset + 1
        is_hidden = hidden.hide(batch)
        if batch.last_offset < log_end:
            continue
        last_epoch = batch.header.leader_epoch
        after.note(batch.header)
        is_marker = batch.header.is_control and batch.header.is_transactional and batch.header.record_count > 0
        ending = batch if is_marker else None
        if is_hidden:
            tiling.skip(next_offset, last_epoch)
        elif batch.offset < log_end:
            _add_rest(tiling, batch, log_end)
        else:
            tiling.add(*_outside_transactions(batch))
    if ending is not None and next_offset == stable:
        tiling.end_with(*_ending(ending))
    wanted = 0 if next_offset else _claimed_bytes(data)
    return Chunk(log_end, tiling.flush(), tiling.batches, after, bytes_wanted=wanted)


def _whole_batches(data: memoryview) -> Iterator[memoryview]:
    """All complete batches; sources may cut the last one."""
    position = 0
    while size := _claimed_bytes(data[position:]):
        if position + size > len(data):
            return
        yield data[position : position + size]
        position += size


def _claimed_bytes(data: memoryview) -> int:
    """The size of the batch that begins here; 0 if its first bytes are not all there. Errors as make_chunk."""
    if len(data) <= MAGIC_OFFSET:
        return 0
    size = int.from_bytes(data[LENGTH_OFFSET:LENGTH_PREFIX_BYTES], "big", signed=True) + LENGTH_PREFIX_BYTES
    if data[MAGIC_OFFSET] < MAGIC:
        raise OldFormatError(f"message format v{data[MAGIC_OFFSET]} is not copied: only v2 is")
    if data[MAGIC_OFFSET] > MAGIC or size < HEADER_BYTES:
        raise CorruptError(f"not a batch: magic={data[MAGIC_OFFSET]} claimed_bytes={size}")
    if size > BATCH_BYTES_MAX:
        raise TooLargeBatchError(f"a batch of {size} bytes is not copied: at most {BATCH_BYTES_MAX}")
    return size


def _sound(view: memoryview, next_offset: int) -> SoundBatch:
    """The batch, after its CRC and all that its header claims were checked."""
    header = read_header(view)
    batch = SoundBatch(view, header.base_offset, header.leader_epoch)
    where = f"offsets={batch.offset}-{batch.last_offset}"
    if batch.offset < next_offset or not 0 <= batch.last_offset < OFFSET_MAX:
        raise CorruptError(f"offsets do not rise: {where} expected_from={next_offset}")
    if header.codec >= len(MAX_EXPANSION):
        raise CorruptError(f"unknown compression codec: {where} codec={header.codec}")
    room = (header.size - HEADER_BYTES) * MAX_EXPANSION[header.codec]
    count = header.record_count
    if not 0 <= count <= header.last_offset_delta + 1 or count * MIN_RECORD_BYTES > room:
        raise CorruptError(f"more records than fit: {where} records={count} bytes={header.size}")
    return batch


def _outside_transactions(batch: SoundBatch) -> WrittenBatch:
    """The batch, as one in no transaction if it was in one that was committed."""
    header = batch.header
    if not header.is_transactional:
        return header, batch.data
    changed = header._replace(attributes=header.attributes & ~TRANSACTIONAL_BIT)
    data = bytearray(batch.data)
    HEADER.pack_into(data, 0, *changed)
    changed = changed._replace(crc=batch_crc(memoryview(data)))
    HEADER.pack_into(data, 0, *changed)
    return changed, memoryview(data).toreadonly()


def _ending(marker: SoundBatch) -> WrittenBatch:
    """The marker that ends a log, as one of a transaction that was committed: of aborted ones nothing is here."""
    header = marker.header
    record = Record(marker.offset, header.max_timestamp, _MARKER_KEY.pack(0, _COMMIT), _MARKER_VALUE.pack(0, 0), [])
    data = encode_control_batch(
        record,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        leader_epoch=header.leader_epoch,
    )
    return _outside_transactions(SoundBatch(memoryview(bytearray(data)), marker.offset, header.leader_epoch))


def _add_rest(tiling: _Tiling, batch: SoundBatch, log_end: int) -> None:
    """The records from the log end on: the source has merged them with others since the last chunk."""
    header = batch.header
    opened = open_batch(batch.data, max_opened_bytes=largest(header.size).unpacked_bytes)
    records = [record for record in opened if record.offset >= log_end]
    if not records:
        tiling.skip(batch.last_offset + 1, header.leader_epoch)
        return
    data = encode_batch(
        records,
        codec=Codec(header.codec),
        base_offset=log_end,
        last_offset=batch.last_offset,
        log_append_time=header.is_log_append_time,
        leader_epoch=header.leader_epoch,
        delete_horizon_ms=header.delete_horizon_ms,
    )
    tiling.add(read_header(data), memoryview(data))


def _marker_type(batch: SoundBatch) -> int:
    """Return what a marker says. CorruptError if it is none."""
    try:
        (marker,) = open_batch(batch.data, max_opened_bytes=MARKER_BYTES)
        return int(_MARKER_KEY.unpack_from(marker.key or b"")[1])
    except (ValueError, struct.error) as error:
        raise CorruptError(f"not a marker: offsets={batch.offset}-{batch.last_offset}") from error
