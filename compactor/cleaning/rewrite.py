"""Decide which records of a batch stay when its partition is cleaned by key, in which batches they are written.

Place: under job.py, which reads the batches and writes what comes out; compactor/rewrite.py is the same for merges.
How transactions ended is known from the metastore's ranges, read after the extents of the pass. Pure.
Invariant of transactions: a pass ends below the last stable offset, so each transaction with a batch in it has
ended: by an abort if a range says so, else by a commit. No reader sees a batch below the log start, and its range
may be gone: it counts as aborted. A committed batch that is written again belongs to no transaction, so nothing
depends on its marker; a marker goes only below the offset through which all extents were cleaned before the pass
began, together with its range: no batch of its transaction is left then. The marker that ends the log stays
(passes.py).
A marker in a file is one that ended the log of a link's source (compactor/links/chunks.py): nothing depends on it, so
it goes when it does not end the log.
Source: KIP-98; KIP-534 (markers are kept for delete.retention.ms).
Invariant: the last committed record of a key stays, except an expired delete marker; an aborted record counts for
nothing and goes. The record that ends the log stays, of any kind (docs/decisions/0093): a reader's position reaches
the high watermark only by a record or marker before it. Offsets, order, timestamps and their type do not change.
Cleaned batches cover exactly the offsets of their inputs: an offset without a record belongs to the batch around it,
or to a batch without records, so a reader at any offset continues. A delete marker goes only if its horizon has
passed and it is below the offset through which all extents were cleaned before the pass began: no earlier record of
its key is left then. A marker above that offset gets the horizon of the pass, even if an unfinished pass gave it an
earlier one: a reader that just saw the record before it has delete.retention.ms from now.
Source: KIP-58, KIP-534; Kafka's Cleaner.shouldRetainRecord.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy
from numpy.typing import NDArray

from headrace.compactor.cleaning.key_map import KeyMap
from headrace.compactor.rewrite import SPAN_MAX, Kept, WrittenBatch
from headrace.metastore.api.read import AbortedRange, Extent
from headrace.metastore.transaction_markers import render_marker
from headrace.storage.errors import InvalidError
from headrace.storage.records.check_records import largest
from headrace.storage.records.codec import Record, empty_batch, encode_batch, open_batch
from headrace.storage.records.compression import Codec
from headrace.storage.records.header import HEADER_BYTES, read_header
from headrace.storage.segment.verified import SoundBatch


class EndedTransactions:
    """The aborted transactions of one partition, and its log start."""

    def __init__(self, aborted: Iterable[AbortedRange] = (), log_start_offset: int = 0) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for one in sorted(aborted, key=lambda one: one.first_offset):
            self._ranges[one.producer_id].append((one.first_offset, one.last_offset))
        self._log_start_offset = log_start_offset

    def hide(self, batch: SoundBatch) -> bool:
        """Return whether no record of the batch was committed."""
        header = batch.header
        if not header.is_transactional:
            return False
        if batch.last_offset < self._log_start_offset:
            return True
        ranges = self._ranges.get(header.producer_id, [])
        before = bisect_right(ranges, (batch.offset, 1 << 62))
        return before > 0 and batch.offset < ranges[before - 1][1]


NONE_ENDED = EndedTransactions()


def marker_batch(extent: Extent) -> SoundBatch:
    """A marker as it would be stored."""
    return SoundBatch(memoryview(bytearray(render_marker(extent))), extent.base_offset, extent.leader_epoch)


def marker_horizon_ms(extent: Extent, *, cleaned_offset: int, now_ms: int, delete_retention_ms: int) -> int | None:
    """Return the time until which a marker has to stay at least; None: it goes now. Times on the
    database's clock.
    """
    if extent.base_offset >= cleaned_offset:
        return now_ms + delete_retention_ms
    until_ms = extent.position + delete_retention_ms
    return until_ms if until_ms > now_ms else None


class LaterRecords(Protocol):
    """What the pass knows of the dirty part."""

    def are_superseded(self, keys: Iterable[bytes], offsets: Sequence[int]) -> NDArray[numpy.bool_]:
        """Return whether the dirty part has a later record with the same key, for records in offset order."""


class CleaningPass(NamedTuple):
    """What decides about the records of a partition in one pass. Times on the database's clock."""

    later: LaterRecords
    cleaned_offset: int
    """The offset below which all extents had been cleaned before the pass began."""
    kept_offset: int
    """The offset of the record or marker that ended the log when the pass began."""
    now_ms: int
    horizon_ms: int
    """The horizon in ms of the delete markers that the pass meets first."""
    ended: EndedTransactions = NONE_ENDED


class JudgedBatch(NamedTuple):
    """A batch, and what stays of it."""

    batch: SoundBatch
    records: list[Record]
    """Those that stay."""
    size_bytes: int
    """Size in bytes of all its records, unpacked."""
    horizon_ms: int | None
    """The horizon in ms of the delete markers that stay; None if none does."""
    superseded: int
    keyless: int
    expired: int
    aborted: int = 0
    stays: bool = False
    """Whether it is a marker that stays as it is."""
    is_due: bool = True
    """Whether a later pass removes something because of the horizon: the record that ends the log waits for others."""

    @property
    def removed(self) -> int:
        """The number of records that go."""
        return self.superseded + self.keyless + self.expired + self.aborted

    @property
    def is_changed(self) -> bool:
        """Whether it has to be written again: a batch of a transaction, in any case, as one that is in none."""
        return (
            bool(self.removed)
            or self.batch.header.is_transactional
            or (self.horizon_ms is not None and self.horizon_ms != self.batch.header.delete_horizon_ms)
        )


def open_sound(batch: SoundBatch) -> tuple[list[Record], int]:
    """(records, their unpacked size); none of a marker. CorruptError, or InvalidError if it is too large, if not all of
    it can be read: then nothing of its partition may be removed.
    """
    if batch.header.is_control:
        return [], 0
    opened = open_batch(batch.data, max_opened_bytes=largest(batch.header.size).unpacked_bytes)
    return list(opened), opened.body_bytes


def keyed_records(batch: SoundBatch, ended: EndedTransactions) -> list[tuple[bytes, int]]:
    """(key, offset) of the records that count: they were committed, and have a key. Errors as `open_sound`."""
    records, _ = open_sound(batch)
    return [] if ended.hide(batch) else [(r.key, r.offset) for r in records if r.key is not None]


def note_keys(keys: KeyMap, batches: Sequence[SoundBatch], ended: EndedTransactions = NONE_ENDED) -> None:
    """Add the keys of an extent of the dirty part. Errors as `open_sound`."""
    for batch in batches:
        keyed = keyed_records(batch, ended)
        keys.add(keys.digests(key for key, _ in keyed), numpy.array([offset for _, offset in keyed], numpy.int64))


def judge(batches: Sequence[SoundBatch], rule: CleaningPass) -> list[JudgedBatch]:
    """Return what stays of an extent's batches. Errors as `open_sound`."""
    return [_judge(batch, rule) for batch in batches]


def _judge(batch: SoundBatch, rule: CleaningPass) -> JudgedBatch:
    records, size_bytes = open_sound(batch)
    if batch.header.is_control:
        return JudgedBatch(batch, [], 0, None, 0, 0, 0, stays=batch.last_offset == rule.kept_offset)
    if rule.ended.hide(batch):  # its marker follows it, so it does not end the log
        return JudgedBatch(batch, [], size_bytes, None, 0, 0, 0, len(records))
    keyed = [(record.key, record.offset) for record in records if record.key is not None]
    later = iter(rule.later.are_superseded((key for key, _ in keyed), [offset for _, offset in keyed]).tolist())
    old_horizon = batch.header.delete_horizon_ms
    is_expired = old_horizon is not None and old_horizon <= rule.now_ms
    stays: list[Record] = []
    superseded = keyless = expired = 0
    horizon: int | None = None
    is_due = False
    for record in records:
        is_last = record.offset == rule.kept_offset
        if record.key is None:
            if is_last:
                stays.append(record)
            else:
                keyless += 1
        elif next(later):
            superseded += 1
        elif record.value is None:
            is_below = record.offset < rule.cleaned_offset
            if is_below and is_expired and not is_last:
                expired += 1
                continue
            horizon = old_horizon if is_below and old_horizon is not None else rule.horizon_ms
            is_due = is_due or not is_last
            stays.append(record)
        else:
            stays.append(record)
    return JudgedBatch(batch, stays, size_bytes, horizon, superseded, keyless, expired, is_due=is_due)


class CleanRecords:
    """A compactor.rewrite.Rewriter: neighbours become one batch, as in level 2, of the records that stay."""

    def __init__(self, codec: Codec | None, batch_bytes: int, max_bytes: int) -> None:
        """`codec` None: batches keep theirs. `max_bytes`: of a whole batch as it is stored."""
        self.kept: list[Kept] = []
        self.waiting_bytes = 0
        self.growth_left = 0
        self.judged: dict[int, JudgedBatch] = {}
        """By offset: the batches that are added next."""
        self._codec = codec
        self._batch_bytes, self._max_bytes = min(batch_bytes, max_bytes), max_bytes
        self._waiting: list[JudgedBatch] = []
        self._unpacked_bytes = 0

    def add(self, batch: SoundBatch) -> Iterator[WrittenBatch]:
        judged = self.judged.pop(batch.offset)
        if judged.stays:
            yield from self.flush()
            yield batch.header, memoryview(bytes(batch.data))
            return
        if self._waiting and self._is_apart(judged):
            yield from self.flush()
        self._waiting.append(judged)
        self._unpacked_bytes += judged.size_bytes if judged.records else 0
        self.waiting_bytes += batch.header.size

    def flush(self) -> Iterator[WrittenBatch]:
        waiting, self._waiting, self._unpacked_bytes, self.waiting_bytes = self._waiting, [], 0, 0
        if not waiting:
            return
        first, last = waiting[0].batch.header, waiting[-1].batch.header
        last_offset = last.base_offset + last.last_offset_delta
        filled = next((judged for judged in waiting if judged.records), None)
        if filled is None:
            yield _written(empty_batch(first.base_offset, last_offset, first.leader_epoch))
        elif len(waiting) == 1 and not filled.is_changed and first.codec == self._target(filled):
            yield first, memoryview(bytes(filled.batch.data))
        else:
            records = [record for judged in waiting for record in judged.records]
            horizon = next((judged.horizon_ms for judged in waiting if judged.horizon_ms is not None), None)
            yield from self._encoded(records, first.base_offset, last_offset, filled, horizon)

    def _encoded(
        self, records: Sequence[Record], base_offset: int, last_offset: int, like: JudgedBatch, horizon_ms: int | None
    ) -> Iterator[WrittenBatch]:
        """One batch; halves of it if that is larger than the topic accepts, or times are too far apart for one.

        A single delete marker that is too far from its horizon gets none, and so stays.
        """
        header = like.batch.header
        try:
            data = encode_batch(
                records,
                codec=Codec(self._target(like)),
                base_offset=base_offset,
                last_offset=last_offset,
                log_append_time=header.is_log_append_time,
                leader_epoch=header.leader_epoch,
                delete_horizon_ms=horizon_ms,
            )
        except InvalidError:
            if len(records) == 1 and horizon_ms is None:
                raise
            if len(records) == 1:
                yield from self._encoded(records, base_offset, last_offset, like, None)
                return
            data = b""
        if data and (len(data) <= self._max_bytes or len(records) == 1):
            yield _written(data)
            return
        half = len(records) // 2
        middle = records[half].offset
        yield from self._encoded(records[:half], base_offset, middle - 1, like, horizon_ms)
        yield from self._encoded(records[half:], middle, last_offset, like, horizon_ms)

    def _target(self, judged: JudgedBatch) -> int:
        return judged.batch.header.codec if self._codec is None else self._codec

    def _is_apart(self, judged: JudgedBatch) -> bool:
        """Return whether it begins a new batch. One without records only adds offsets."""
        batch = judged.batch
        if batch.offset + batch.header.last_offset_delta - self._waiting[0].batch.offset >= SPAN_MAX:
            return True
        last = next((other for other in reversed(self._waiting) if other.records), None)
        if not judged.records or last is None:
            return False
        before, header = last.batch.header, batch.header
        horizons = {other.horizon_ms for other in (*self._waiting, judged)} - {None}
        return (
            self._unpacked_bytes + judged.size_bytes > self._batch_bytes
            or self._target(last) != self._target(judged)
            or len(horizons) > 1
            or before.is_log_append_time != header.is_log_append_time
            or (header.is_log_append_time and before.max_timestamp != header.max_timestamp)
        )


def _written(data: bytes) -> WrittenBatch:
    assert len(data) >= HEADER_BYTES
    return read_header(data), memoryview(data)
