"""Fetches for the partitions of a member: one long poll per agent at a time.

Place: a task of consumer.py. A PartitionReader has the position of one partition that the member owns, and the
records that were fetched and not delivered; consumer.py empties it.
Invariant of a partition: `position` is the offset after the last record that the application was given or that is
hidden from it; at the next `getmany` all of these are delivered. What is fetched continues at `next_fetch`.
Invariant: a record is buffered only if its leader epoch is known to `TopicOrder`: a higher one means that the count
changed, and what has to be waited for is not known yet. Then, and after a refusal for the count, `needs_metadata` is
set. An answer for a reader that has moved meanwhile is dropped.
Source: Kafka's FetchRequest.json and FetchResponse.json, version 13, without a session;
protocol/partition_counts.py.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from headrace.client.cluster import FETCHES, ClientCluster
from headrace.client.messages import Frame
from headrace.client.offsets import TopicPartition
from headrace.client.order import TopicOrder
from headrace.metastore.partitions.topic_partitions import CreatedFrom
from headrace.metastore.partitions.waiting import PositionReport
from headrace.protocol import wire
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.partition_counts import count_tags
from headrace.protocol.wire import INT32
from headrace.storage.clock import Clock
from headrace.storage.errors import UnavailableError
from headrace.storage.records.check import split_batches
from headrace.storage.records.codec import Record, decode_records
from headrace.storage.records.header import read_header

BUFFERED_RECORDS = 2_000


@dataclass(slots=True, eq=False)
class PartitionReader:
    """`has_begun`: it may be fetched; until then `position` is where it will begin. `waits_for` is what it was found
    to wait for when it began."""

    partition: TopicPartition
    position: int
    next_fetch: int
    has_begun: bool = False
    waits_for: CreatedFrom | None = None
    high_watermark: int = -1
    leader_epoch: int = -1
    """The largest of the delivered records'."""
    crossed: frozenset[int] = frozenset()
    """Marked partitions with keys that may come from here since onPartitionKeyAssigned."""
    last_report: PositionReport | None = None
    """The last report to this coordinator, in this generation."""
    buffer: deque[tuple[Record, int]] = field(default_factory=deque)
    """Records with their leader epochs."""

    @property
    def wants_records(self) -> bool:
        return self.has_begun and len(self.buffer) < BUFFERED_RECORDS

    @property
    def next_offset(self) -> int:
        """Offset of the next record, as far as it is known."""
        return self.buffer[0][0].offset if self.buffer else max(self.position, self.next_fetch)

    @property
    def is_at_end(self) -> bool:
        """The position is the high watermark of the last fetch."""
        return self.position == self.high_watermark

    def deliver(self) -> Record:
        """The next record; the position moves past it, and past what follows without records."""
        record, self.leader_epoch = self.buffer.popleft()
        self.position = self.next_offset if self.buffer else self.next_fetch
        return record

    def report(self) -> PositionReport:
        """Return the report as of now."""
        return PositionReport(self.position, self.leader_epoch)

    def move(self, position: int) -> None:
        """Continue there."""
        self.position = self.next_fetch = position
        self.buffer.clear()


log = logging.getLogger(__name__)

MAX_WAIT_MS = 250
MAX_BYTES, PARTITION_BYTES = 16 * 1024 * 1024, 1024 * 1024
VERSION = 13
_HEAD = struct.Struct(">iiiibii")
_POSITION = struct.Struct(">iiqiqi")
_ANSWER = struct.Struct(">ihqqq")
_CONSUMER, _NO_SESSION, _NO_EPOCH = -1, 0, -1


class Fetching:
    """`changed` is called when there is anything new for `getmany`."""

    def __init__(
        self,
        cluster: ClientCluster,
        readers: Mapping[TopicPartition, PartitionReader],
        orders: Mapping[str, TopicOrder],
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        self._cluster, self._readers, self._orders, self._clock, self._changed = (
            cluster,
            readers,
            orders,
            clock,
            changed,
        )
        self.needs_metadata = False
        self.out_of_range: dict[TopicPartition, tuple[int, int]] = {}
        """Partition -> log start and high watermark: the reader's position is outside the log."""
        self._wake = asyncio.Event()
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def look_again(self) -> None:
        """A reader may be fetched that could not be before."""
        self._wake.set()

    async def run(self) -> None:
        """Run until it is cancelled."""
        try:
            while True:
                self._wake.clear()
                for node_id, readers in self._wanted().items():
                    if node_id not in self._tasks:
                        self._tasks[node_id] = asyncio.create_task(self._fetch(node_id, readers))
                await self._wake.wait()
        finally:
            for task in self._tasks.values():
                task.cancel()

    def _wanted(self) -> dict[int, list[PartitionReader]]:
        wanted: defaultdict[int, list[PartitionReader]] = defaultdict(list)
        for reader in self._readers.values():
            if reader.wants_records and reader.partition not in self.out_of_range:
                try:
                    wanted[self._cluster.leader(*reader.partition)].append(reader)
                except UnavailableError:
                    self.needs_metadata = True
                    self._changed()
        return wanted

    async def _fetch(self, node_id: int, readers: list[PartitionReader]) -> None:
        try:
            asked = {reader.partition: (reader, reader.next_fetch) for reader in readers}
            body = encode_fetch_request(
                self._topics(asked), max_wait_ms=MAX_WAIT_MS, max_bytes=MAX_BYTES, partition_bytes=PARTITION_BYTES
            )
            frame = Frame(ApiKey.FETCH, VERSION, body, flexible=True)
            code, found = decode_fetch_response(await self._cluster.send(node_id, frame, FETCHES))
            failed = [each.partition for each in found if self._take(each, asked)]
            if code or failed:
                await self._pause()
        except UnavailableError as error:
            log.info("fetch failed: node=%d error=%s", node_id, error)
            self.needs_metadata = True
            await self._pause()
        finally:
            self._tasks.pop(node_id, None)
            self._wake.set()
            self._changed()

    async def _pause(self) -> None:
        self._changed()
        await self._clock.sleep(self._cluster.settings.retry_backoff_ms / 1000)

    def _topics(self, asked: Mapping[TopicPartition, tuple[PartitionReader, int]]) -> list[TopicPositions]:
        topics: dict[str, TopicPositions] = {}
        for (name, index), (_, offset) in asked.items():
            counts = self._orders[name].described.counts
            wanted = topics.setdefault(name, TopicPositions(counts.topic_id, counts.undeleted, []))
            wanted.positions.append((index, offset))
        return list(topics.values())

    def _take(self, found: FetchedPartition, asked: Mapping[TopicPartition, tuple[PartitionReader, int]]) -> bool:
        """Return whether it has to be asked for again after a pause."""
        names = {order.described.counts.topic_id: name for name, order in self._orders.items()}
        partition = names.get(found.topic_id, ""), found.partition
        reader, offset = asked.get(partition, (None, -1))
        if reader is None or self._readers.get(partition) is not reader or reader.next_fetch != offset:
            return False
        if found.error_code == ErrorCode.offset_out_of_range:
            self.out_of_range[partition] = found.log_start, found.high_watermark
            return True
        if found.error_code:
            log.info("fetch refused: topic=%s partition=%d code=%d", *partition, found.error_code)
            self.needs_metadata = True
            return True
        reader.high_watermark = found.high_watermark
        return self._buffer(reader, found.records)

    def _buffer(self, reader: PartitionReader, records: memoryview) -> bool:
        name, index = reader.partition
        known = self._orders[name].described.leader_epochs.get(index, -1)
        for batch in split_batches(_whole(records)):
            header = read_header(batch)
            if header.leader_epoch > known:
                self.needs_metadata = True
                return True
            at_least = reader.next_fetch
            for record in decode_records(batch):
                if record.offset >= at_least:
                    reader.buffer.append((record, header.leader_epoch))
            reader.next_fetch = max(at_least, header.base_offset + header.last_offset_delta + 1)
        return False


def _whole(records: memoryview) -> memoryview:
    """Return the batches without one that is cut off at the end."""
    end = 0
    while len(records) - end >= 12:
        size = int.from_bytes(records[end + 8 : end + 12], "big") + 12
        if size > len(records) - end:
            break
        end += size
    return records[:end]


class TopicPositions(NamedTuple):
    """`positions`: (partition, offset)."""

    topic_id: uuid.UUID
    partition_count: int
    positions: list[tuple[int, int]]


class FetchedPartition(NamedTuple):
    """`records` is empty if there is an error."""

    topic_id: uuid.UUID
    partition: int
    error_code: int
    high_watermark: int
    log_start: int
    records: memoryview


def encode_fetch_request(
    topics: Iterable[TopicPositions], *, max_wait_ms: int, max_bytes: int, partition_bytes: int
) -> bytes:
    """The body. Answered as soon as there is anything."""
    parts = [_topic(topic, partition_bytes) for topic in topics]
    head = _HEAD.pack(_CONSUMER, max_wait_ms, 1, max_bytes, 0, _NO_SESSION, _NO_EPOCH)
    nothing_forgotten, no_rack = wire.size_prefix(0, True), wire.string("", True)
    return head + wire.size_prefix(len(parts), True) + b"".join(parts) + nothing_forgotten + no_rack + wire.EMPTY_TAGS


def decode_fetch_response(body: memoryview) -> tuple[int, list[FetchedPartition]]:
    """(error code of the whole, partitions); one of wire.MALFORMED for other bytes."""
    (code,) = struct.unpack_from(">h", body, 4)
    found = []
    topics, position = wire.read_count(body, 10, True)
    for _ in range(topics):
        topic_id, position = wire.read_uuid(body, position)
        count, position = wire.read_count(body, position, True)
        for _ in range(count):
            one, position = _read_partition(body, position, topic_id)
            found.append(one)
        _, position = wire.read_tags(body, position)
    return code, found


def _topic(topic: TopicPositions, partition_bytes: int) -> bytes:
    rows = [
        _POSITION.pack(index, _NO_EPOCH, offset, _NO_EPOCH, -1, partition_bytes) + wire.EMPTY_TAGS
        for index, offset in topic.positions
    ]
    return topic.topic_id.bytes + wire.size_prefix(len(rows), True) + b"".join(rows) + count_tags(topic.partition_count)


def _read_partition(body: memoryview, position: int, topic_id: uuid.UUID) -> tuple[FetchedPartition, int]:
    index, code, high_watermark, _, log_start = _ANSWER.unpack_from(body, position)
    aborted, position = wire.read_count_or_null(body, position + _ANSWER.size, True)
    for _ in range(aborted):
        _, position = wire.read_tags(body, position + 16)
    size, position = wire.read_size(body, position + INT32.size, True)
    end = position + max(size, 0)
    _, after = wire.read_tags(body, end)
    return FetchedPartition(topic_id, index, code, high_watermark, log_start, body[position:end]), after
