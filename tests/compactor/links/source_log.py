"""A partition of a source, as a Kafka broker keeps and serves it: batches, transactions, cleaning.

Fault model: none; a test that needs a broken source changes what `fetch` returned.
Invariant: what consumers with read_committed see is `visible`, kept apart from the bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from headrace.storage.records.codec import Record, empty_batch, encode_batch, encode_control_batch
from headrace.storage.records.compression import Codec
from headrace.storage.records.header import HEADER, TRANSACTIONAL_BIT, BatchHeader, batch_crc, read_header

_MARKER_KEY, _MARKER_VALUE = struct.Struct(">hh"), struct.pack(">hi", 0, 0)


class LogAnswer(NamedTuple):
    """What a fetch answers."""

    data: bytearray
    aborted: list[tuple[int, int]]
    start: int
    end: int
    stable: int


@dataclass(frozen=True)
class LogBatch:
    """One stored batch. `producer`: id, epoch, first sequence; None: none."""

    base: int
    last: int
    leader_epoch: int
    records: tuple[Record, ...] = ()
    producer: tuple[int, int, int] | None = None
    is_transactional: bool = False
    marker: str = ""
    codec: Codec = Codec.NONE

    def encoded(self) -> bytes:
        """The bytes of the batch."""
        producer_id, epoch, sequence = self.producer or (-1, -1, -1)
        if self.marker:
            key = _MARKER_KEY.pack(0, self.marker == "commit")
            record = Record(self.base, 1_000 + self.base, key, _MARKER_VALUE, [])
            return encode_control_batch(
                record, producer_id=producer_id, producer_epoch=epoch, leader_epoch=self.leader_epoch
            )
        if not self.records:
            data = bytearray(empty_batch(self.base, self.last, self.leader_epoch))
            header = read_header(data)._replace(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
        else:
            data = bytearray(
                encode_batch(
                    self.records,
                    codec=self.codec,
                    base_offset=self.base,
                    last_offset=self.last,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    base_sequence=sequence,
                    leader_epoch=self.leader_epoch,
                )
            )
            header = read_header(data)
        if self.is_transactional:
            header = header._replace(attributes=header.attributes | TRANSACTIONAL_BIT)
        return sealed_again(data, header)


def sealed_again(data: bytes | bytearray, header: BatchHeader) -> bytes:
    """The batch under another header, with its checksum."""
    changed = bytearray(data)
    HEADER.pack_into(changed, 0, *header)
    header = header._replace(crc=batch_crc(memoryview(changed)))
    HEADER.pack_into(changed, 0, *header)
    return bytes(changed)


@dataclass
class SourceLog:
    """One partition."""

    batches: list[LogBatch] = field(default_factory=list)
    start: int = 0
    end: int = 0
    leader_epoch: int = 0
    open: dict[int, int] = field(default_factory=dict)
    """Producer id -> first offset of its open transaction."""
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """(producer id, first offset, offset of the marker)."""
    sequences: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Producer id -> its epoch and its next sequence."""

    def append(
        self, count: int, producer_id: int = -1, *, transactional: bool = False, codec: Codec = Codec.NONE
    ) -> LogBatch:
        """Append a batch of `count` records, with keys that repeat."""
        base = self.end
        records = tuple(
            Record(offset, 1_000 + offset, b"k%d" % (offset % 7), b"v%d" % offset, [("h", b"1")])
            for offset in range(base, base + count)
        )
        producer = None
        if producer_id >= 0:
            epoch, sequence = self.sequences.get(producer_id, (0, 0))
            producer = producer_id, epoch, sequence
            self.sequences[producer_id] = epoch, (sequence + count) % (1 << 31)
        if transactional:
            self.open.setdefault(producer_id, base)
        return self._add(
            LogBatch(base, base + count - 1, self.leader_epoch, records, producer, transactional, "", codec)
        )

    def finish(self, producer_id: int, *, commit: bool) -> None:
        """End the producer's transaction, if it has one."""
        if producer_id not in self.open:
            return
        first = self.open.pop(producer_id)
        epoch = self.sequences[producer_id][0]
        marker = self._add(
            LogBatch(
                self.end,
                self.end,
                self.leader_epoch,
                (),
                (producer_id, epoch, -1),
                is_transactional=True,
                marker="commit" if commit else "abort",
            )
        )
        if not commit:
            self.aborted.append((producer_id, first, marker.base))

    def clean(self, kept: set[int], *, keeps_empty: bool = False) -> None:
        """Log compaction below the last stable offset: only records at `kept` stay; the last batch stays."""
        cleaned = []
        for batch in self.batches:
            if batch.last >= self.stable or batch is self.batches[-1] or batch.marker:
                cleaned.append(batch)
                continue
            records = tuple(each for each in batch.records if each.offset in kept and not self.is_aborted(batch))
            if records or keeps_empty:
                cleaned.append(replace(batch, records=records))
        self.batches = cleaned

    def merge(self, first: int, count: int) -> None:
        """Make one batch of neighbours without transactions, as a merge of another Headrace does."""
        some = self.batches[first : first + count]
        alike = all(
            not each.is_transactional and each.records and each.leader_epoch == some[0].leader_epoch for each in some
        )
        if len(some) > 1 and alike:
            records = tuple(record for each in some for record in each.records)
            self.batches[first : first + count] = [
                LogBatch(some[0].base, some[-1].last, some[0].leader_epoch, records, codec=some[0].codec)
            ]

    def delete_below(self, offset: int) -> None:
        """Move the log start; batches wholly below it go."""
        self.start = max(self.start, min(offset, self.end))
        self.batches = [batch for batch in self.batches if batch.last >= self.start]

    @property
    def stable(self) -> int:
        """The last stable offset."""
        return min(self.open.values(), default=self.end)

    def is_aborted(self, batch: LogBatch) -> bool:
        """Return whether the batch belongs to an aborted transaction."""
        return (
            batch.is_transactional
            and batch.producer is not None
            and any(
                producer_id == batch.producer[0] and first <= batch.base < marker
                for producer_id, first, marker in self.aborted
            )
        )

    @property
    def visible(self) -> list[Record]:
        """What a consumer with read_committed gets from the log start on."""
        return [
            record
            for batch in self.batches
            if batch.last < self.stable and not batch.marker and not self.is_aborted(batch)
            for record in batch.records
            if record.offset >= self.start
        ]

    def fetch(self, offset: int, bytes_max: int = 1 << 30) -> LogAnswer:
        """Whole batches from the one with `offset` on, cut at `bytes_max`."""
        data, after = bytearray(), self.stable
        for batch in self.batches:
            if batch.last >= offset and batch.last < self.stable:
                data += batch.encoded()
        aborted = [
            (producer_id, first) for producer_id, first, marker in self.aborted if marker >= offset and first < after
        ]
        return LogAnswer(data[:bytes_max], aborted, self.start, self.end, self.stable)

    def _add(self, batch: LogBatch) -> LogBatch:
        self.batches.append(batch)
        self.end = batch.last + 1
        return batch
