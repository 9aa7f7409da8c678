"""Rewrites a partition's batches for a merged file: copies them, or opens and merges them.

Place: the pure part of a merge. `CopyBatches` makes level 1, `MergeRecords` level 2.
Invariant: what comes in was verified (storage/segment/verified.py). Readers see the same records before and after:
offsets, timestamps and their type, keys, values, headers; a delete horizon stays that of its records. A batch without
records, which the cleaner leaves where it removed all (cleaning/rewrite.py), joins its neighbour. A batch that cannot
be opened, as its producer sent it (unknown codec, contradictory records), is copied and listed in `kept`.
Control and transactional batches, and batches that would become too large, are copied without being listed: no
written batch is larger than its topic accepts unless its input was, and all of them together grow by at most
`growth_left`. At any time one batch is open, of `batch_bytes` (twice that to change its codec), and as many bytes
wait.
Merged batches have no producer id, epoch or sequence: only the metastore's producer state detects duplicates,
and consumers use the producer id only in transactional batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from headrace.storage.errors import CorruptError, InvalidError
from headrace.storage.records.codec import Record, empty_batch, encode_batch, open_batch
from headrace.storage.records.compression import Codec
from headrace.storage.records.errors import BatchTooLargeError
from headrace.storage.records.header import BatchHeader, read_header
from headrace.storage.segment.verified import SoundBatch

BATCH_BYTES = 512 * 1024
"""Records in one merged batch, unpacked: far below a consumer's limits, far above the size that codecs need."""
_DELTA_BYTES = 4
"""Assumed growth of a record's offset and timestamp fields when they are relative to another batch."""
SPAN_MAX = 1 << 30
"""Offsets in one merged batch, also if few of them have a record: a header has room for twice as many."""

WrittenBatch = tuple[BatchHeader, memoryview]


class Kept(NamedTuple):
    """A batch that should have been opened or merged, but could not be."""

    base_offset: int
    last_offset: int
    why: str


class Rewriter(Protocol):
    """Takes batches in offset order; returns batches that cover the same offsets, possibly later."""

    kept: list[Kept]
    """Batches since the list was last cleared."""
    waiting_bytes: int
    """Bytes taken and not returned yet, as stored."""
    growth_left: int
    """How many bytes the output may still exceed the input. Set it whenever there is more or less room."""

    def add(self, batch: SoundBatch) -> Iterator[WrittenBatch]:
        """Batches that are ready to be written now."""

    def flush(self) -> Iterator[WrittenBatch]:
        """All waiting batches: the next batch does not follow on."""


class CopyBatches:
    """Level 1: no record is opened."""

    def __init__(self) -> None:
        self.kept: list[Kept] = []
        self.waiting_bytes = 0
        self.growth_left = 0

    def add(self, batch: SoundBatch) -> Iterator[WrittenBatch]:
        yield batch.header, batch.data

    def flush(self) -> Iterator[WrittenBatch]:
        yield from ()


class MergeRecords:
    """Level 2: neighbours with the same codec and timestamp type become one batch. `codec` None: they keep theirs."""

    def __init__(self, codec: Codec | None, batch_bytes: int, max_bytes: int) -> None:
        """`max_bytes`: of a whole batch as it is stored."""
        self.kept: list[Kept] = []
        self.waiting_bytes = 0
        self.growth_left = 0
        self._codec = codec
        self._batch_bytes, self._max_bytes = min(batch_bytes, max_bytes), max_bytes
        self._waiting: list[SoundBatch] = []
        self._records: list[Record] = []
        self._unpacked_bytes = 0
        """Size of `_records` in one batch."""

    def add(self, batch: SoundBatch) -> Iterator[WrittenBatch]:
        opened = self._opened(batch)
        if opened is None:
            yield from self.flush()
            yield _as_it_is(batch)
            return
        records, size = opened
        if self._waiting and self._is_apart(batch, size if records else 0):
            yield from self.flush()
        self._waiting.append(batch)
        self._records += records
        self._unpacked_bytes += size
        self.waiting_bytes += batch.header.size

    def flush(self) -> Iterator[WrittenBatch]:
        waiting, records = self._waiting, self._records
        self._waiting, self._records, self._unpacked_bytes, self.waiting_bytes = [], [], 0, 0
        if waiting:
            yield from self._merged(waiting, records)

    def _opened(self, batch: SoundBatch) -> tuple[list[Record], int] | None:
        """The batch's records and their unpacked size; None if it is not opened."""
        header = batch.header
        if header.is_control or header.is_transactional:
            return None
        if not header.record_count:
            return [], 0
        is_alike = header.codec == self._target(batch)
        if is_alike and header.size >= self._batch_bytes:
            return None  # no gain
        try:
            opened = open_batch(batch.data, max_opened_bytes=self._batch_bytes * (1 if is_alike else 2))
            records = list(opened)
        except BatchTooLargeError:
            return None  # it is compressed well enough
        except CorruptError as error:
            self.kept.append(_kept(batch, str(error)))
            return None
        if not records:
            self.kept.append(_kept(batch, "no records"))
            return None
        return records, opened.body_bytes + _DELTA_BYTES * len(records)

    def _target(self, batch: SoundBatch) -> int:
        return batch.header.codec if self._codec is None else self._codec

    def _is_apart(self, batch: SoundBatch, size: int) -> bool:
        """Return whether it begins a new batch. `size` of its records; one without any only adds offsets."""
        if batch.offset + batch.header.last_offset_delta - self._waiting[0].offset >= SPAN_MAX:
            return True
        if not size or not self._records:
            return False
        return self._unpacked_bytes + size > self._batch_bytes or not self._agrees(batch)

    def _agrees(self, batch: SoundBatch) -> bool:
        """Return whether it can share a batch with the waiting ones. With LogAppendTime, a batch has one time for all
        records; with a delete horizon, it has one for all its delete markers.
        """
        last = next(other for other in reversed(self._waiting) if other.header.record_count)
        before, header = last.header, batch.header
        return (
            self._target(last) == self._target(batch)
            and before.delete_horizon_ms == header.delete_horizon_ms
            and before.is_log_append_time == header.is_log_append_time
            and (not header.is_log_append_time or before.max_timestamp == header.max_timestamp)
        )

    def _merged(self, waiting: list[SoundBatch], records: list[Record]) -> Iterator[WrittenBatch]:
        first, last = waiting[0].header, waiting[-1].header
        last_offset = last.base_offset + last.last_offset_delta
        filled = next((batch for batch in waiting if batch.header.record_count), None)
        if len(waiting) == 1 and (filled is None or first.codec == self._target(filled)):
            yield _as_it_is(waiting[0])
            return
        try:
            data = (
                empty_batch(first.base_offset, last_offset, first.leader_epoch)
                if filled is None
                else encode_batch(
                    records,
                    codec=Codec(self._target(filled)),
                    base_offset=first.base_offset,
                    last_offset=last_offset,
                    log_append_time=filled.header.is_log_append_time,
                    leader_epoch=first.leader_epoch,
                    delete_horizon_ms=filled.header.delete_horizon_ms,
                )
            )
        except InvalidError as error:  # times too far apart for one batch
            self.kept += [_kept(batch, str(error)) for batch in waiting]
            data = b""
        sizes = [batch.header.size for batch in waiting]
        growth = max(len(data) - sum(sizes), 0)
        if data and growth <= self.growth_left and len(data) <= max(self._max_bytes, *sizes):
            self.growth_left -= growth
            yield read_header(data), memoryview(data)
        else:
            yield from map(_as_it_is, waiting)


def _as_it_is(batch: SoundBatch) -> WrittenBatch:
    """A copy: a view would keep all bytes of the extent in memory."""
    return batch.header, memoryview(bytes(batch.data))


def _kept(batch: SoundBatch, why: str) -> Kept:
    return Kept(batch.offset, batch.offset + batch.header.last_offset_delta, why)
