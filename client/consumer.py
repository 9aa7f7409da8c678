"""The consumer: a member of a KIP-848 group that delivers the records of each key in order while the number of
partitions changes.

Place: for applications. All that the application notices happens inside `getmany`: rebalances, the callbacks of both
listeners, reports of positions, delivery. Heartbeats and fetches are separate tasks.
Definitions: a record is delivered when the application calls `getmany` again after it got the record.
Invariant: a new partition begins after its source was delivered up to the change, and a record from after a deletion
comes after all of the deleted partitions that its keys may come from (P6, P11); the rules are in
metastore/partitions/waiting.py.
Source: KIP-253, changes 7 and 8; decisions/0051.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Collection, Coroutine
from types import TracebackType
from typing import Any, NamedTuple, Self

from headrace.client.cluster import ClientCluster, ClientSettings
from headrace.client.fetching import Fetching, PartitionReader
from headrace.client.group_positions import PositionExchange
from headrace.client.listeners import PartitionKeyListener, RebalanceListener
from headrace.client.membership import ConsumerMembership, MemberTerms
from headrace.client.offsets import EARLIEST, LATEST, MOVED_HEADER, TopicPartition
from headrace.client.order import TopicOrder
from headrace.client.ownership import Ownership
from headrace.storage.clock import Clock, SystemClock
from headrace.storage.errors import InvalidError, NotFoundError, UnavailableError
from headrace.storage.records.codec import Record

log = logging.getLogger(__name__)

_BEGIN_AT = {"earliest": EARLIEST, "latest": LATEST}


class ConsumedRecord(NamedTuple):
    """`timestamp` in ms."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class OrderedConsumer:
    """`subscribe`, then use it with `async with`, or `start` and `stop` it. For one task at a time."""

    def __init__(
        self,
        settings: ClientSettings,
        group_id: str,
        *,
        auto_offset_reset: str = "earliest",
        enable_auto_commit: bool = True,
        auto_commit_interval_ms: int = 5_000,
        heartbeat_interval_ms: int = 3_000,
        max_poll_interval_ms: int = 300_000,
        metadata_max_age_ms: int = 300_000,
        assignor: str | None = None,
        rng: random.Random | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`heartbeat_interval_ms`: between reports of positions; the group sets that of its heartbeats. `assignor`: of
        the server, uniform or range; None: its default."""
        self._settings, self._group_id = settings, group_id
        self._begin_at = _BEGIN_AT[auto_offset_reset]
        self._auto_commit, self._assignor, self._max_poll_ms = enable_auto_commit, assignor, max_poll_interval_ms
        self._commit_seconds = auto_commit_interval_ms / 1000
        self._position_seconds, self._metadata_seconds = heartbeat_interval_ms / 1000, metadata_max_age_ms / 1000
        self._rng, self._clock = rng or random.Random(), clock or SystemClock()
        self._topics: tuple[str, ...] = ()
        self._listeners = RebalanceListener(), PartitionKeyListener()
        self._readers: dict[TopicPartition, PartitionReader] = {}
        self._orders: dict[str, TopicOrder] = {}
        self._next_commit = self._next_exchange = self._next_metadata = 0.0
        self._learned_epoch = 0
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def subscribe(
        self,
        topics: Collection[str],
        rebalance_listener: RebalanceListener | None = None,
        partition_key_listener: PartitionKeyListener | None = None,
    ) -> None:
        """Before `start`."""
        self._topics = tuple(sorted(topics))
        self._listeners = rebalance_listener or RebalanceListener(), partition_key_listener or PartitionKeyListener()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """NotFoundError if a topic does not exist, UnavailableError if no server answers."""
        self._cluster = ClientCluster(self._settings)
        described = await self._cluster.refresh(self._topics)
        if missing := [name for name in self._topics if name not in described]:
            await self._cluster.close()
            raise NotFoundError(f"topics are not described: {', '.join(missing)}")
        self._orders.update((name, TopicOrder(described[name])) for name in self._topics)
        self._membership = ConsumerMembership(
            self._cluster,
            self._clock,
            self._rng,
            MemberTerms(self._group_id, self._topics, self._max_poll_ms, self._assignor),
            self._news.set,
        )
        self._ownership = Ownership(
            self._cluster,
            self._membership,
            self._readers,
            self._orders,
            self._listeners[0],
            auto_commit=self._auto_commit,
            begin_at=self._begin_at,
        )
        self._positions = PositionExchange(
            self._cluster, self._membership, self._readers, self._orders, self._listeners[1]
        )
        self._fetching = Fetching(self._cluster, self._readers, self._orders, self._clock, self._news.set)
        self._tasks = [asyncio.create_task(self._membership.run()), asyncio.create_task(self._fetching.run())]

    async def stop(self) -> None:
        """Stop. With auto commit, what was returned counts as delivered and is committed."""
        await self._ownership.give_all_back()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._membership.leave()
        await self._cluster.close()

    async def getmany(self, *, timeout_ms: int = 0, max_records: int = 500) -> list[ConsumedRecord]:
        """The next records, in order for each key; empty after the timeout. InvalidError if the group refuses the
        member."""
        deadline = self._clock.monotonic() + timeout_ms / 1000
        while True:
            self._news.clear()
            await self._housekeeping()
            records = await self._deliver(max_records)
            now = self._clock.monotonic()
            if records or now >= deadline:
                return records
            until_exchange = self._next_exchange - now
            await self._wait_for_news(
                min(deadline - now, until_exchange if until_exchange > 0 else self._position_seconds)
            )

    async def getone(self) -> ConsumedRecord:
        """The next record."""
        while True:
            if records := await self.getmany(timeout_ms=60_000, max_records=1):
                return records[0]

    async def __aiter__(self) -> AsyncIterator[ConsumedRecord]:
        while True:
            yield await self.getone()

    async def commit(self) -> None:
        """The positions after all records that were returned. UnavailableError if they may not be stored."""
        await self._ownership.commit(self._readers)

    async def coordinator(self) -> int:
        """The node id of the group's coordinator; UnavailableError while there is none."""
        return await self._membership.coordinator()

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that the member owns."""
        return frozenset(self._readers)

    def position(self, partition: TopicPartition) -> int | None:
        """The next offset; None while the partition is not owned, or waits to begin."""
        reader = self._readers.get(partition)
        return reader.position if reader is not None and reader.has_begun else None

    async def _housekeeping(self) -> None:
        """Everything but delivery. What cannot be done now is done at the next call."""
        if self._membership.failure is not None:
            raise self._membership.failure
        self._positions.forget_earlier_generation()
        await self._try(self._learn_if_needed())
        if await self._try(self._ownership.settle()):
            await self._try(self._learn())
        await self._reset_positions()
        now = self._clock.monotonic()
        if now >= self._next_exchange and self._learned_epoch == self._membership.epoch > 0:
            self._next_exchange = now + self._position_seconds
            await self._try(self._positions.exchange())
        if self._auto_commit and now >= self._next_commit:
            self._next_commit = now + self._commit_seconds
            await self._try(self._ownership.commit(self._readers))
        await self._begin()

    async def _learn_if_needed(self) -> None:
        is_old = self._clock.monotonic() >= self._next_metadata
        is_new = self._membership.epoch != self._learned_epoch or any(
            not self._orders[topic].knows(index) for topic, index in self._readers
        )
        if is_old or is_new or self._fetching.needs_metadata or self._ownership.unknown():
            await self._learn()

    async def _learn(self) -> None:
        """Metadata, and what the member's partitions wait for. The coordinator's, so that in a new generation the
        member knows at least the topics by which it began."""
        epoch, node_id = self._membership.epoch, await self._membership.coordinator()
        described = await self._cluster.refresh(self._topics, node_id)
        for name, order in self._orders.items():
            if name in described:
                before = order.described.counts
                owned = [index for topic, index in self._readers if topic == name]
                await order.learn(self._cluster, described[name], owned, node_id)
                if order.described.counts != before:
                    self._membership.heartbeat_soon()
        self._fetching.needs_metadata, self._learned_epoch = False, epoch
        self._next_metadata = self._clock.monotonic() + self._metadata_seconds
        self._check_returned()
        self._fetching.look_again()

    def _check_returned(self) -> None:
        """A partition of an index that was used before waits like a new one."""
        for (topic, index), reader in self._readers.items():
            created_from = self._orders[topic].created_from(index)
            if reader.has_begun and reader.waits_for is not None and created_from != reader.waits_for:
                reader.has_begun = False
            reader.waits_for = created_from

    async def _reset_positions(self) -> None:
        """Go where the policy says, if records at a position are deleted or lost with the metastore."""
        for partition, (start, end) in list(self._fetching.out_of_range.items()):
            del self._fetching.out_of_range[partition]
            if (reader := self._readers.get(partition)) is not None:
                log.warning(
                    "position is outside the log: topic=%s partition=%d position=%d", *partition, reader.position
                )
                reader.move(start if reader.position < start or self._begin_at == EARLIEST else end)
        self._fetching.look_again()

    async def _begin(self) -> None:
        """Partitions that had to wait."""
        for (topic, index), reader in self._readers.items():
            order = self._orders[topic]
            if reader.has_begun or not order.knows(index) or not order.may_begin(index):
                continue
            if order.is_ordered and order.created_from(index) is not None:
                await self._listeners[1].on_partition_key_assigned({(topic, index)})
            reader.has_begun = True
            self._fetching.look_again()

    async def _deliver(self, max_records: int) -> list[ConsumedRecord]:
        """Deliver records from all partitions in turn, as far as the rules allow."""
        found: list[ConsumedRecord] = []
        for partition, reader in list(self._readers.items()):
            while reader.has_begun and reader.buffer and len(found) < max_records and await self._may_deliver(reader):
                record = reader.deliver()
                if not _is_hidden(record):
                    offset, timestamp, key, value, headers = record
                    found.append(ConsumedRecord(*partition, offset, timestamp, key, value, headers))
        if found:  # the next call begins with another partition
            first = next(iter(self._readers))
            self._readers[first] = self._readers.pop(first)
        self._fetching.look_again()
        return found

    async def _may_deliver(self, reader: PartitionReader) -> bool:
        topic, index = reader.partition
        order, offset = self._orders[topic], reader.next_offset
        if not order.knows(index) or not order.may_deliver(index, offset):
            return False
        crossed = order.crossed(index, offset)
        if not crossed <= reader.crossed:
            await self._listeners[1].on_partition_key_assigned({reader.partition})
            reader.crossed |= crossed
        return True

    async def _wait_for_news(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0)):
                await self._news.wait()

    async def _try(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await work
        except UnavailableError as error:
            log.info("tried again later: group=%s error=%s", self._group_id, error)
            await self._clock.sleep(self._settings.retry_backoff_ms / 1000)
        except InvalidError as error:
            raise InvalidError(f"group={self._group_id} {error}") from error
        return None


def _is_hidden(record: Record) -> bool:
    """Return whether the record is a null for old values of its key (OldValues of offsets.py)."""
    return record.value is None and any(name == MOVED_HEADER for name, _ in record.headers)
