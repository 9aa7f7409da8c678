"""Sends the batches of one topic's queue until each is stored, or refused finally.

Place: between producer.py and cluster.py; topic_queue.py decides what is sent next.
Invariant: a batch with an unknown outcome is sent again with the same bytes, so the commit recognises it. A refusal
for the partition count makes the sender wait for its other batches, ask for metadata, and place all records again.
Each topic has a producer id, so that it can get a new one without waiting for other topics. A Produce request has one
batch for one partition, with the partition count by which it was chosen.
Source: Kafka's ProduceRequest.json and ProduceResponse.json, version 12; protocol/partition_counts.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import struct
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from headrace.client.cluster import ClientCluster
from headrace.client.messages import Frame, message
from headrace.client.topic_queue import QueuedRecord, ReadyBatch, TopicQueue
from headrace.protocol import wire
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.errors import INVALID_PARTITION_METADATA
from headrace.protocol.partition_counts import count_tags
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError, InvalidError, UnavailableError
from headrace.storage.records.codec import encode_batch
from headrace.storage.records.compression import Codec

log = logging.getLogger(__name__)

_STORED = (ErrorCode.none, ErrorCode.duplicate_sequence_number)
_PLACE_AGAIN = (INVALID_PARTITION_METADATA, ErrorCode.unknown_topic_or_partition)
_NEW_PRODUCER = (
    ErrorCode.out_of_order_sequence_number,
    ErrorCode.invalid_producer_epoch,
    ErrorCode.unknown_producer_id,
)
VERSION = 12
ACKS_ALL = -1
_ANSWER = struct.Struct(">ihqqq")


class StoredRecord(NamedTuple):
    """Position of a record. `offset` is -1 if only that it is stored is known."""

    topic: str
    partition: int
    offset: int


Ticket = asyncio.Future[StoredRecord] | None
Refresh = Callable[[], Awaitable[None]]
_NO_TIMEOUT = datetime.timedelta(minutes=1)
"""Required, and without a meaning for a producer that is not transactional."""


class TopicSender:
    """`refresh` asks for metadata of the producer's topics. `run` it as a task."""

    def __init__(
        self,
        topic: str,
        queue: TopicQueue[Ticket],
        cluster: ClientCluster,
        refresh: Refresh,
        clock: Clock,
        *,
        linger_ms: float,
        codec: Codec,
    ) -> None:
        self.topic, self.queue = topic, queue
        self._cluster, self._refresh, self._clock = cluster, refresh, clock
        self._linger_seconds, self._codec = linger_ms / 1000, codec
        self._producer: tuple[int, int] | None = None
        self._wake = asyncio.Event()
        self._space = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def added(self) -> None:
        """The queue has a new record."""
        self._wake.set()

    async def until_below(self, records: int) -> None:
        """Return when so few records are queued."""
        while len(self.queue) >= max(records, 1):
            self._space.clear()
            await self._space.wait()

    async def run(self) -> None:
        """Run until it is cancelled."""
        try:
            while True:
                await self._wake.wait()
                await self._clock.sleep(self._linger_seconds)
                self._wake.clear()
                if self.queue.is_stale and not self.queue.in_flight:
                    await self._renew()
                if self._producer is None:
                    self._producer = await self._new_producer()
                for batch in self.queue.take():
                    task = asyncio.create_task(self._deliver(batch, self._producer))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
        finally:
            for task in self._tasks:
                task.cancel()

    def abandon(self) -> None:
        """Fail what is left, after `run` has ended."""
        _fail(self.queue.drain(), UnavailableError("the producer was stopped; the record may be stored"))
        self._space.set()

    async def _deliver(self, batch: ReadyBatch[Ticket], producer: tuple[int, int]) -> None:
        records = [each.record._replace(offset=at) for at, each in enumerate(batch.records)]
        data = encode_batch(
            records,
            codec=self._codec,
            base_offset=0,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=batch.base_sequence,
        )
        body = encode_produce_request(
            self.topic, batch.partition, data, batch.partition_count, self._cluster.settings.request_timeout_ms
        )
        answer = await self._until_answered(batch, Frame(ApiKey.PRODUCE, VERSION, body, flexible=True))
        self._settle(batch, answer)
        self._wake.set()
        self._space.set()

    async def _until_answered(self, batch: ReadyBatch[Ticket], frame: Frame) -> ProducedBatch:
        """Repeated while the outcome is unknown, or an agent says that it may be repeated."""
        while True:
            try:
                node_id = self._leader(batch.partition)
                answer = decode_produce_response(await self._cluster.send(node_id, frame))
                if answer.error_code in (*_STORED, *_PLACE_AGAIN, *_NEW_PRODUCER) or not _is_retriable(answer):
                    return answer
                log.info(
                    "batch sent again: topic=%s partition=%d code=%d", self.topic, batch.partition, answer.error_code
                )
            except UnavailableError as error:
                log.info("batch sent again: topic=%s partition=%d error=%s", self.topic, batch.partition, error)
            await self._pause()
            with contextlib.suppress(HeadraceError):
                await self._refresh()

    def _settle(self, batch: ReadyBatch[Ticket], answer: ProducedBatch) -> None:
        code = answer.error_code
        if code in _STORED:
            self.queue.stored(batch)
            for at, each in enumerate(batch.records):
                offset = -1 if answer.base_offset < 0 else answer.base_offset + at
                if each.ticket is not None and not each.ticket.done():
                    each.ticket.set_result(StoredRecord(self.topic, batch.partition, offset))
        elif code in _PLACE_AGAIN:
            self.queue.refused(batch)
        elif code in _NEW_PRODUCER:
            self.queue.refused(batch)
            self._producer = None
        else:
            self.queue.lost(batch)
            _fail(batch.records, InvalidError(f"refused: topic={self.topic} code={code} {answer.message or ''}"))

    async def _renew(self) -> None:
        """The queue is placed by new metadata. If that is not there yet, batches are refused again."""
        while self.queue.is_stale:
            await self._pause()
            with contextlib.suppress(UnavailableError):
                await self._refresh()
                if (described := self._cluster.topics.get(self.topic)) is not None:
                    self.queue.adopt(described.counts)  # nulls for a partition that is gone are not needed
                    if self._producer is None:
                        self.queue.restart()
                elif self._cluster.errors.get(self.topic) == ErrorCode.unknown_topic_or_partition:
                    _fail(self.queue.drain(), InvalidError(f"no such topic: topic={self.topic}"))
                    self.queue.is_stale = False
        self._space.set()

    def _leader(self, partition: int) -> int:
        """Any agent accepts a batch: one for a partition that is gone is refused there."""
        try:
            return self._cluster.leader(self.topic, partition)
        except UnavailableError:
            return self._cluster.any_node()

    async def _new_producer(self) -> tuple[int, int]:
        api = message(ApiKey.INIT_PRODUCER_ID, 4)
        while True:
            with contextlib.suppress(UnavailableError):
                answer = await self._cluster.call(
                    self._cluster.any_node(), api, transactional_id=None, transaction_timeout=_NO_TIMEOUT
                )
                if answer.error_code is ErrorCode.none:
                    return int(answer.producer_id), int(answer.producer_epoch)
            await self._pause()

    async def _pause(self) -> None:
        await self._clock.sleep(self._cluster.settings.retry_backoff_ms / 1000)


def _is_retriable(answer: ProducedBatch) -> bool:
    try:
        return ErrorCode(answer.error_code).retriable
    except ValueError:
        return False


def _fail(records: Iterable[QueuedRecord[Ticket]], error: HeadraceError) -> None:
    for each in records:
        if each.ticket is not None and not each.ticket.done():
            each.ticket.set_exception(error)


class ProducedBatch(NamedTuple):
    """`base_offset` and `log_append_time_ms` are -1 if there is an error."""

    error_code: int
    base_offset: int
    log_append_time_ms: int
    message: str | None


def encode_produce_request(topic: str, partition: int, batch: bytes, count: int, timeout_ms: int) -> bytes:
    """The body."""
    row = struct.pack(">i", partition) + wire.size_prefix(len(batch), True) + batch + wire.EMPTY_TAGS
    name = wire.string(topic, True)
    rows = wire.size_prefix(1, True) + row + count_tags(count)
    return b"\0" + struct.pack(">hi", ACKS_ALL, timeout_ms) + wire.size_prefix(1, True) + name + rows + wire.EMPTY_TAGS


def decode_produce_response(body: memoryview) -> ProducedBatch:
    """Decode the response of a request for one partition; one of wire.MALFORMED for other bytes."""
    _, position = wire.read_count(body, 0, True)
    _, position = wire.read_string(body, position, True)
    _, position = wire.read_count(body, position, True)
    _, code, offset, append_time_ms, _ = _ANSWER.unpack_from(body, position)
    position += _ANSWER.size
    errors, position = wire.read_count(body, position, True)
    for _ in range(errors):
        _, position = wire.read_string_or_null(body, position + 4, True)
        _, position = wire.read_tags(body, position)
    text, _ = wire.read_string_or_null(body, position, True)
    return ProducedBatch(code, offset, append_time_ms, text)
