"""Turn closed files into objects in the bucket, or inline files: small batches are joined, all are laid out, the bytes
are stored.

Place: between buffer and commit. Joining and layout are pure. Retries, hedging and time-outs are the store's
decorators' work: they send the same bytes under the same key again.
Invariant: an id is used for one layout only, and a file counts as stored only when the store confirmed its whole
length. A file that was not stored for certain is never committed, so its batches failed for certain, even if an
object of its name is in the bucket: the sweeper deletes it.
Partitions are laid out by topic id, then index; the batches of a partition keep their order of arrival. Only
uncompressed batches without a producer id that are neighbours, of one timestamp type and partition count, of which
the agent says the same (keys, alias), are joined: the commit may drop a single batch of an idempotent producer,
never a part of one. A record keeps its key, value, headers, timestamp and place; `records_before` turns the joined
batch's offset back into each request's own. Records are only opened where that pays (few of them, in many batches);
bytes that do not parse stay as they came, for their reader to refuse. No joined batch is larger than its topic
accepts. Compressed batches are left to compaction (docs/decisions/0036-compressed-batches-are-merged-later.md).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import crc32c

from headrace.agent.produce.callbacks import Callbacks
from headrace.agent.produce.files import ClosedFile, FlushedFile, Runs
from headrace.agent.produce.inline_policy import InlinePolicy
from headrace.agent.produce.metrics import ProduceMetrics
from headrace.agent.produce.requests import Arrival, PlacedBatch
from headrace.metastore.api.commit import StagedBatch
from headrace.metastore.api.inline import NO_SLOT
from headrace.storage.clock import Clock
from headrace.storage.errors import CorruptError
from headrace.storage.file_id import new_file_id, new_inline_file_id, object_key
from headrace.storage.objects.store import ObjectStore
from headrace.storage.records.header import (
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    LOG_APPEND_TIME_BIT,
    BatchHeader,
)
from headrace.storage.segment.writer import SegmentWriter

MEMBERS_MIN = 4
"""Fewer batches than this are not worth opening."""
RECORDS_MAX = 8
"""A batch of more records costs more to rewrite than it saves."""
_INT64_LIMIT = 1 << 63


class Laid(NamedTuple):
    """One batch as the file will hold it, and the arrivals that are in it, each with the records before it."""

    data: memoryview
    header: BatchHeader
    members: list[tuple[int, Arrival]]


class _Unreadable(Exception):
    """Records that are not framed as their header says."""


def join(run: Sequence[Arrival], max_bytes: int) -> Iterator[Laid]:
    """The run's batches in order, neighbours joined up to `max_bytes`, or to what their topic accepts if that is less;
    0 joins nothing.
    """
    group: list[Arrival] = []
    size = limit = 0
    for arrival in run:
        header = arrival.header
        if not _is_small(header, max_bytes):
            if group:
                yield from _laid(group, limit)
                group, size = [], 0
            yield Laid(arrival.data, header, [(0, arrival)])
            continue
        if group and (size + header.size > min(limit, arrival.max_bytes) or not _are_alike(group[0], arrival)):
            yield from _laid(group, limit)
            group, size = [], 0
        limit = min(limit if group else max_bytes, arrival.max_bytes)
        group.append(arrival)
        size += header.size
    yield from _laid(group, limit)


def _is_small(header: BatchHeader, max_bytes: int) -> bool:
    return (
        header.producer_id < 0
        and header.attributes & ~LOG_APPEND_TIME_BIT == 0
        and header.record_count <= RECORDS_MAX
        and header.size <= max_bytes
    )


def _are_alike(first: Arrival, other: Arrival) -> bool:
    return (
        first.header.attributes == other.header.attributes
        and first.partition_count == other.partition_count
        and first.keys == other.keys
        and first.alias == other.alias
    )


def _laid(group: list[Arrival], limit: int) -> Iterator[Laid]:
    """The group as one batch of at most `limit` bytes, or each by itself when that does not pay or cannot be done."""
    if len(group) >= MEMBERS_MIN:
        try:
            joined = _joined(group)
        except _Unreadable:
            pass  # stored as they came: what a client wrote is its own affair
        else:
            if joined.header.size <= limit:  # times that are far apart take more bytes than the headers did
                yield joined
                return
    for arrival in group:
        yield Laid(arrival.data, arrival.header, [(0, arrival)])


def _joined(group: list[Arrival]) -> Laid:
    first = group[0].header
    members: list[tuple[int, Arrival]] = []
    pieces: list[bytes] = []
    records = 0
    latest = first.max_timestamp
    for arrival in group:
        header = arrival.header
        members.append((records, arrival))
        _rewrite(
            bytes(arrival.data[HEADER_BYTES:]),
            header.record_count,
            header.base_timestamp - first.base_timestamp,
            records,
            pieces,
        )
        records += header.record_count
        latest = max(latest, header.max_timestamp, -1 if header.is_log_append_time else header.base_timestamp)
    body = b"".join(pieces)
    unsealed = first._replace(
        batch_length=HEADER_BYTES - LENGTH_PREFIX_BYTES + len(body),
        last_offset_delta=records - 1,
        max_timestamp=latest,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=records,
    )
    covered = HEADER.pack(*unsealed)[CRC_START:]
    header = unsealed._replace(crc=crc32c.crc32c(body, crc32c.crc32c(covered)))
    return Laid(memoryview(HEADER.pack(*header) + body), header, members)


def _rewrite(body: bytes, count: int, timestamp_shift: int, first_delta: int, pieces: list[bytes]) -> None:
    """Append the records to `pieces`, their timestamps and offsets counted from another batch's."""
    position = 0
    try:
        for number in range(count):
            length, start = _read_varint(body, position)
            end = start + length
            timestamp_delta, after = _read_varint(body, start + 1)
            offset_delta, after = _read_varint(body, after)
            timestamp_delta += timestamp_shift
            if (
                offset_delta != number
                or not start < after <= end <= len(body)
                or not -_INT64_LIMIT <= timestamp_delta < _INT64_LIMIT
            ):
                raise _Unreadable
            head = body[start : start + 1] + _varint(timestamp_delta) + _varint(first_delta + number)
            pieces += (_varint(len(head) + end - after), head, body[after:end])
            position = end
    except IndexError:
        raise _Unreadable from None
    if position != len(body):
        raise _Unreadable


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag varint of up to ten bytes, and where it ends. IndexError when the data ends first."""
    byte = data[position]
    if byte < 0x80:
        return byte >> 1 ^ -(byte & 1), position + 1
    raw = shift = 0
    while byte >= 0x80:
        raw |= (byte & 0x7F) << shift
        shift += 7
        if shift > 63:
            raise _Unreadable
        position += 1
        byte = data[position]
    raw |= byte << shift
    return raw >> 1 ^ -(raw & 1), position + 1


def _varint(value: int) -> bytes:
    """Zigzag: small numbers of either sign take one byte."""
    raw = value << 1 if value >= 0 else (-value << 1) - 1
    if raw < 0x80:
        return _ONE_BYTE[raw]
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


_ONE_BYTE = [bytes((raw,)) for raw in range(0x80)]


NO_PRODUCER = (-1, -1, -1)
"""The value for no producer id: clients then send any epoch and sequence."""


def lay_out(runs: Runs, merge_max_bytes: int = 0) -> tuple[bytes, list[PlacedBatch]]:
    """The file's bytes, and its batches by their byte positions.

    Small neighbours are joined up to `merge_max_bytes`; 0 joins nothing.
    """
    writer = SegmentWriter()
    placed: list[PlacedBatch] = []
    for run in sorted(runs.values(), key=_partition_of):
        for laid in join(run, merge_max_bytes):
            placed += _place(writer, laid, run[0].leader_epoch)
    return writer.finish(), placed


def _partition_of(run: list[Arrival]) -> tuple[int, int]:
    return run[0].topic_id.int, run[0].partition_index


def _place(writer: SegmentWriter, laid: Laid, leader_epoch: int) -> list[PlacedBatch]:
    """A partition's batches of one file share the leader epoch of the first: all are accepted, or none is."""
    data, header, members = laid
    first = members[0][1]
    topic_id, index, key = first[:3]
    position = writer.add(topic_id, index, key, data, header)
    producer = (
        (header.producer_id, header.producer_epoch, header.base_sequence) if header.producer_id >= 0 else NO_PRODUCER
    )
    batch = StagedBatch(
        key,
        position,
        len(data),
        header.record_count,
        header.highest_timestamp,
        *producer,
        leader_epoch,
        first.partition_count,
        first.transaction,
        first.keys,
        first.alias,
    )
    return [
        PlacedBatch(batch, before, arrival.owner, header.is_log_append_time, arrival.request, arrival.reply)
        for before, arrival in members
    ]


class InlineKeeper:
    """Gives files that may be inline their place."""

    def __init__(
        self,
        policy: InlinePolicy,
        clock: Clock,
        rng: random.Random,
        metrics: ProduceMetrics,
        callbacks: Callbacks,
        *,
        merge_max_bytes: int,
    ) -> None:
        self._policy, self._clock, self._rng = policy, clock, rng
        self._metrics, self._callbacks, self._merge_max_bytes = metrics, callbacks, merge_max_bytes

    def keep(self, file: FlushedFile) -> bool:
        """Return whether the file is inline, and its commit stores it. Raises what `database_now_ms` raises."""
        now, size_bytes = self._clock.monotonic(), file.trace.size_bytes
        born_ms = self._callbacks.database_now_ms()
        slot = self._policy.take(size_bytes, now)
        if slot == NO_SLOT:
            return False
        assert isinstance(file.stage, ClosedFile), "a file gets its place once"
        body, placed = lay_out(file.stage.runs, self._merge_max_bytes)
        file_id = new_inline_file_id(born_ms, slot, self._rng)
        file.stage = file.stage.lay_out_inline(file_id, body, placed)
        file.trace.put_started_at = file.trace.stored_at = now
        self._metrics.inline_bytes.inc(len(body))
        self._callbacks.on_flushed(file_id, body)
        return True


UPLOADS_SPAN_S = 1.0
"""How long after an upload the next one is expected."""


class Uploader:
    """Run at most `parallelism` uploads side by side; files that wait for a place are not laid out yet."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        rng: random.Random,
        metrics: ProduceMetrics,
        callbacks: Callbacks,
        *,
        parallelism: int,
        merge_max_bytes: int,
    ) -> None:
        self._store = store
        self._clock = clock
        self._rng = rng
        self._metrics = metrics
        self._places = asyncio.Semaphore(parallelism)
        self._merge_max_bytes = merge_max_bytes
        self._callbacks = callbacks
        self.in_flight_bytes = 0
        """Of files that are laid out and not stored yet."""
        self._ended_at = -UPLOADS_SPAN_S

    @property
    def is_active(self) -> bool:
        """Whether a file is being uploaded, or was within UPLOADS_SPAN_S."""
        return self.in_flight_bytes > 0 or self._clock.monotonic() - self._ended_at < UPLOADS_SPAN_S

    async def upload(self, file: FlushedFile, is_unwanted: Callable[[FlushedFile], bool]) -> None:
        """Store the file, unless it is unwanted by the time it has a place. Raises what the store raises.

        CorruptError when the store kept another length than was sent.
        """
        async with self._places:
            if is_unwanted(file):
                return
            assert isinstance(file.stage, ClosedFile), "a file is uploaded once"
            file.trace.put_started_at = self._clock.monotonic()
            file_id = new_file_id(self._callbacks.database_now_ms(), self._rng)
            body, placed = lay_out(file.stage.runs, self._merge_max_bytes)
            laid_out = file.stage = file.stage.lay_out(file_id, len(body), placed)
            self.in_flight_bytes += len(body)
            try:
                stored = await self._store.put(object_key(file_id), body)
            finally:
                self.in_flight_bytes -= len(body)
                self._ended_at = self._clock.monotonic()
            if stored.size != len(body):
                raise CorruptError(f"stored length differs: key={stored.key} sent={len(body)} stored={stored.size}")
        file.trace.stored_at = self._clock.monotonic()
        self._metrics.put_seconds.observe(file.trace.stored_at - file.trace.put_started_at)
        self._callbacks.on_flushed(file_id, body)
        file.stage = laid_out.stored()
