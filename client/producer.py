"""The producer: records in, a future for each; the order of each key is kept while the partition count changes.

Place: for applications. sending.py sends, topic_queue.py places.
Invariant: records of one key that are sent one after another are stored in this order, each once. A record is never
given up while the producer runs: the future ends when the record is stored, is refused finally, or at `stop`.
Source: KIP-253, changes 5 and 9.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from headrace.client.cluster import ClientCluster, ClientSettings
from headrace.client.offsets import MOVED_HEADER, OldValues
from headrace.client.sending import StoredRecord, Ticket, TopicSender
from headrace.client.topic_queue import TopicQueue
from headrace.metastore.partitions.placement import key_hash
from headrace.storage.clock import Clock, SystemClock
from headrace.storage.errors import NotFoundError, UnavailableError
from headrace.storage.records.codec import Record
from headrace.storage.records.compression import Codec

Headers = Sequence[tuple[str, bytes | None]]


class OrderedProducer:
    """Use it with `async with`, or `start` and `stop` it."""

    def __init__(
        self,
        settings: ClientSettings,
        *,
        linger_ms: float = 5,
        batch_bytes: int = 65_536,
        queue_records: int = 10_000,
        codec: Codec = Codec.NONE,
        metadata_tries: int = 50,
        rng: random.Random | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`queue_records`: more of one topic make `send` wait. `metadata_tries`: before `send` to an unknown topic
        fails. `rng` places records without a key."""
        self._cluster = ClientCluster(settings)
        self._linger_ms, self._batch_bytes, self._queue_records = linger_ms, batch_bytes, queue_records
        self._codec, self._metadata_tries = codec, metadata_tries
        self._rng, self._clock = rng or random.Random(), clock or SystemClock()
        self._senders: dict[str, TopicSender] = {}
        self._old_values: dict[str, OldValues] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._wanted: dict[str, None] = {}

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.stop(flush=error is None)

    async def start(self) -> None:
        """UnavailableError if no server answers."""
        await self._cluster.refresh(())

    async def stop(self, *, flush: bool = True) -> None:
        """Futures that are left fail; with `flush`, none is left."""
        if flush:
            await self.flush()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for sender in self._senders.values():
            sender.abandon()
        await self._cluster.close()

    async def flush(self) -> None:
        """Return when everything that was sent before is stored or refused."""
        for sender in self._senders.values():
            await sender.until_below(1)

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[StoredRecord]:
        """The future says where the record is. NotFoundError if the topic does not exist."""
        sender = self._senders.get(topic) or await self._new_sender(topic)
        await sender.until_below(self._queue_records)
        at = self._clock.wall_ms() if timestamp_ms is None else timestamp_ms
        if key is not None:
            await self._replace_old_values(sender, key, at)
        stored: asyncio.Future[StoredRecord] = asyncio.get_running_loop().create_future()
        sender.queue.add(Record(0, at, key, value, list(headers)), stored)
        sender.added()
        return stored

    async def send_and_wait(
        self, topic: str, value: bytes | None, key: bytes | None = None, headers: Headers = ()
    ) -> StoredRecord:
        """Send as `send` does; return when the record is stored."""
        return await (await self.send(topic, value, key, headers))

    async def _replace_old_values(self, sender: TopicSender, key: bytes, at: int) -> None:
        """Queue nulls for the key where old values may be, before the record."""
        queue, hashed = sender.queue, key_hash(key)
        while True:
            old = self._old_values.get(sender.topic)
            if old is None or old.counts != queue.counts:
                old = self._old_values[sender.topic] = OldValues(self._cluster, sender.topic, queue.counts)
            partition = queue.partition_of(hashed)
            if not old.concern(partition):
                return
            try:
                holders = await old.holders(partition)
            except UnavailableError:
                await self._clock.sleep(self._cluster.settings.retry_backoff_ms / 1000)
                continue
            if old.counts == queue.counts:
                break
        if holders and old.is_first(partition, key):
            for holder in holders:
                queue.add(Record(0, at, key, None, [(MOVED_HEADER, b"")]), None, pinned=holder)

    async def _new_sender(self, topic: str) -> TopicSender:
        self._wanted[topic] = None
        for _ in range(self._metadata_tries):
            with contextlib.suppress(UnavailableError):
                await self._refresh()
            if topic in self._senders:
                return self._senders[topic]
            if (described := self._cluster.topics.get(topic)) is not None:
                queue: TopicQueue[Ticket] = TopicQueue(
                    described.counts, self._batch_bytes, lambda: self._rng.getrandbits(31)
                )
                sender = self._senders[topic] = TopicSender(
                    topic,
                    queue,
                    self._cluster,
                    self._refresh,
                    self._clock,
                    linger_ms=self._linger_ms,
                    codec=self._codec,
                )
                self._tasks.append(asyncio.create_task(sender.run()))
                return sender
            await self._clock.sleep(self._cluster.settings.retry_backoff_ms / 1000)
        del self._wanted[topic]
        raise NotFoundError(f"topic is not described: topic={topic} code={self._cluster.errors.get(topic, -1)}")

    async def _refresh(self) -> None:
        await self._cluster.refresh(self._wanted)
