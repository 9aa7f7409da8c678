"""What becomes of a partition's batches on their way into a merged file: copied, or opened and merged.

Place: the pure heart of a merge. `CopyBatches` makes level 1, `MergeRecords` level 2.
Invariant: readers see the same records before and after: offsets, timestamps and their type, keys, values,
headers. What cannot be opened (broken, a codec that nobody knows, records that do not fit together) is
passed on as it is and counted. Control and transactional batches are passed on as they are.
Merged batches carry no producer id, epoch or sequence: duplicates are judged by the metastore's producer
state alone, and consumers look at a producer only in transactional batches.
If the process dies here nothing was stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from compactor.sources import StoredBatch
from storage.errors import CorruptError, InvalidError
from storage.records.codec import Record, decode_records, encode_batch
from storage.records.compression import Codec
from storage.records.errors import BatchTooLargeError
from storage.records.header import BatchHeader, read_header

BATCH_BYTES = 512 * 1024
"""Keys and values in one merged batch: far below what consumers take at once, far above what codecs need."""
_FRAMING_BYTES = 16
"""What a record is taken to weigh besides: millions of empty ones are no batch either."""

Written = tuple[BatchHeader, memoryview]


class Rewriter(Protocol):
    """Takes batches in offset order; gives batches that cover the same offsets, possibly later."""

    kept_as_is: int
    """Batches that should have been opened and could not be."""

    def add(self, batch: StoredBatch) -> Iterator[Written]:
        """What is ready to be written now."""

    def flush(self) -> Iterator[Written]:
        """All the rest: what comes next does not follow on."""


class CopyBatches:
    """Level 1: no record is opened."""

    def __init__(self) -> None:
        self.kept_as_is = 0

    def add(self, batch: StoredBatch) -> Iterator[Written]:
        if not batch.is_sound:
            self.kept_as_is += 1
        yield batch.header, batch.data

    def flush(self) -> Iterator[Written]:
        yield from ()


class MergeRecords:
    """Level 2: neighbours that agree on codec and timestamps become one batch. `codec` None: they keep their own."""

    def __init__(self, codec: Codec | None, batch_bytes: int = BATCH_BYTES) -> None:
        self.kept_as_is = 0
        self._codec = codec
        self._batch_bytes = batch_bytes
        self._waiting: list[StoredBatch] = []
        self._records: list[Record] = []
        self._bytes = 0

    def add(self, batch: StoredBatch) -> Iterator[Written]:
        records = self._opened(batch)
        if records is None:
            yield from self.flush()
            yield _as_it_is(batch)
            return
        size = sum(len(record.key or b"") + len(record.value or b"") + _FRAMING_BYTES for record in records)
        if self._waiting and (self._bytes + size > self._batch_bytes or not self._agrees(batch)):
            yield from self.flush()
        self._waiting.append(batch)
        self._records += records
        self._bytes += size

    def flush(self) -> Iterator[Written]:
        waiting, records = self._waiting, self._records
        self._waiting, self._records, self._bytes = [], [], 0
        if waiting:
            yield from self._merged(waiting, records)

    def _opened(self, batch: StoredBatch) -> list[Record] | None:
        """The batch's records; None when it stays closed."""
        header = batch.header
        if header.is_control or header.is_transactional:
            return None
        if header.size >= self._batch_bytes and header.codec == self._target(batch):
            return None  # nothing to win
        try:
            records = decode_records(batch.data)
        except BatchTooLargeError:
            return None
        except CorruptError:
            records = []
        if not records:
            self.kept_as_is += 1
            return None
        return records

    def _target(self, batch: StoredBatch) -> int:
        return batch.header.codec if self._codec is None else self._codec

    def _agrees(self, batch: StoredBatch) -> bool:
        """Whether it may share a batch with those that wait. A broker's time is one for a whole batch."""
        before, header = self._waiting[-1].header, batch.header
        return (
            self._target(self._waiting[-1]) == self._target(batch)
            and before.is_log_append_time == header.is_log_append_time
            and (not header.is_log_append_time or before.max_timestamp == header.max_timestamp)
        )

    def _merged(self, waiting: list[StoredBatch], records: list[Record]) -> Iterator[Written]:
        first, last = waiting[0].header, waiting[-1].header
        target = self._target(waiting[0])
        if len(waiting) > 1 or first.codec != target:
            try:
                data = encode_batch(
                    records,
                    codec=Codec(target),
                    base_offset=first.base_offset,
                    last_offset=last.base_offset + last.last_offset_delta,
                    log_append_time=first.is_log_append_time,
                    leader_epoch=first.leader_epoch,
                )
            except InvalidError:  # times too far apart for one batch
                self.kept_as_is += len(waiting)
            else:
                yield read_header(data), memoryview(data)
                return
        yield from map(_as_it_is, waiting)


def _as_it_is(batch: StoredBatch) -> Written:
    """A copy: a view would keep the whole extent's bytes in memory."""
    return batch.header, memoryview(bytes(batch.data))
