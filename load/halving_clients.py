"""A topic doubles and halves again under real producers that know only the count, and a group that reads it.

Place: `python -m load.halving_clients [--seconds 60]` starts `headrace dev` with one agent. Producers are librdkafka's
(confluent-kafka), idempotent; some come and go. Each record says who sent it and its number. A group reads and commits:
the halving waits for it.
What is checked is each pair's logs, in the order in which a group gets them: the parent up to its boundary, the child,
the rest of the parent. So a record that came too early or too late in any of them is found.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka

from headrace.config.settings import Settings
from headrace.metastore.api.halvings import Halving
from headrace.metastore.api.read import OffsetKind, OffsetQuery
from headrace.metastore.api.splits import Doubling
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.log.loading import load_image
from headrace.metastore.partitions.changes import Expansion, change_count, halve
from headrace.metastore.partitions.merging import MergeTimes
from headrace.metastore.postgres.store import PostgresMetastore
from load.dev_server import DevServer

TOPIC, GROUP, COUNT, KEYS = "halving", "readers", 4, 60
REFRESH_MS = 3_000
PRODUCER_QUIET_MS, BOUNDARY_QUIET_MS = 2_000, 2 * REFRESH_MS
EVERY_S = 0.004
WAIT_S = 60.0
Record = tuple[bytes, str, int]
"""Key, producer, number."""


@dataclass
class HalvingSent:
    """What all producers know in the end."""

    acknowledged: set[tuple[str, int]] = field(default_factory=set)
    failed: Counter[str] = field(default_factory=Counter)
    to_aliases: int = 0
    """Records of partitions of the upper half that were acknowledged after the lower count was shown."""
    shown_at: float = float("inf")
    lock: threading.Lock = field(default_factory=threading.Lock)


class HalvingProducer(threading.Thread):
    """One process' worth of records. Record n of a producer is `name/n`, with any of the keys."""

    def __init__(self, bootstrap: str, name: str, sent: HalvingSent, until: float, settings: Mapping[str, Any]) -> None:
        super().__init__(name=name)
        own: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "topic.metadata.refresh.interval.ms": REFRESH_MS,
            "linger.ms": 5,
        }
        self._producer = confluent_kafka.Producer(own | dict(settings))
        self._sent, self._until = sent, until

    def run(self) -> None:
        """Until the time is over, and every record has an answer."""
        rng, number = random.Random(self.name), 0
        while time.monotonic() < self._until:
            key, value = b"key-%d" % rng.randrange(KEYS), f"{self.name}/{number}".encode()
            self._producer.produce(TOPIC, value, key, on_delivery=self._delivered)
            number += 1
            self._producer.poll(EVERY_S)
        self._producer.flush(WAIT_S)

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        name, _, number = (message.value() or b"").decode().rpartition("/")
        partition = message.partition()
        with self._sent.lock:
            if error is not None:
                self._sent.failed[error.name()] += 1
                return
            self._sent.acknowledged.add((name, int(number)))
            if partition is not None and partition >= COUNT and time.monotonic() > self._sent.shown_at:
                self._sent.to_aliases += 1


class Reading(threading.Thread):
    """A member of a group that commits each second."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name=GROUP)
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 1_000,
                "topic.metadata.refresh.interval.ms": REFRESH_MS,
            }
        )
        self.stops = threading.Event()

    def run(self) -> None:
        """Until it is stopped."""
        self._consumer.subscribe([TOPIC])
        while not self.stops.is_set():
            self._consumer.consume(1_000, 0.2)
        self._consumer.close()


@dataclass(frozen=True)
class HalvingOutcome:
    """`merged_ms`, `shown_ms`: from the request to halve until all children were aliases, and the count was shown."""

    acknowledged: int
    lost: int
    inversions: int
    children_first: int
    """How many records are out of order if children are read before parents."""
    failed: Mapping[str, int]
    to_aliases: int
    merged_ms: int
    shown_ms: int

    def __str__(self) -> str:
        return (
            f"acknowledged={self.acknowledged} lost={self.lost} out_of_order={self.inversions}"
            f" children_first={self.children_first} failed={dict(self.failed)} to_aliases={self.to_aliases}"
            f" merged_ms={self.merged_ms} shown_ms={self.shown_ms}"
        )


class Controlling:
    """The requests to double and to halve, and what becomes of them; the agent's controller takes the steps."""

    def __init__(self, store: PostgresMetastore) -> None:
        self._store = store

    async def double(self) -> dict[int, int]:
        """Parent -> boundary, once all are set."""

        async def begin(image: MetadataImage, topic: TopicImage) -> bool:
            before = topic.ordered_partitions
            change = change_count(before, 2 * before.undeleted)
            assert isinstance(change, Expansion)
            doubling = Doubling(
                topic.topic_id, before.initial, before.undeleted, change, PRODUCER_QUIET_MS, BOUNDARY_QUIET_MS
            )
            return await self._store.double_topic(image.offset, doubling)

        await self._until(begin)
        ends: dict[int, int] = {}

        async def is_over(_: MetadataImage, topic: TopicImage) -> bool:
            ends.update({parent: split.boundary or 0 for parent, split in topic.splits.items()})
            return all(split.boundary is not None for split in topic.splits.values())

        await self._until(is_over)
        return ends

    async def halve(self) -> tuple[int, int]:
        """When the children were merged, and when the lower count was shown, in ms from now."""
        began = time.monotonic()

        async def begin(image: MetadataImage, topic: TopicImage) -> bool:
            count = halve(topic.ordered_partitions).undeleted
            return await self._store.begin_halving(
                image.offset, Halving(topic.topic_id, count, (), MergeTimes(lag_most=1_000))
            )

        async def is_merged(_: MetadataImage, topic: TopicImage) -> bool:
            return len(topic.aliases) == COUNT

        async def is_shown(_: MetadataImage, topic: TopicImage) -> bool:
            return topic.undeleted_partition_count == COUNT

        await self._until(begin)
        await self._until(is_merged)
        merged_ms = int(1_000 * (time.monotonic() - began))
        await self._until(is_shown)
        return merged_ms, int(1_000 * (time.monotonic() - began))

    async def ends(self) -> dict[int, int]:
        """Each partition's high watermark."""
        topic = (await load_image(self._store)).topics_by_name[TOPIC]
        keys = [key for index in topic.indexes if (key := topic.key(index)) is not None]
        found = await self._store.list_offsets([OffsetQuery(key, OffsetKind.LATEST) for key in keys])
        return {index: answer.offset for index, answer in zip(topic.indexes, found, strict=True)}

    async def _until(self, does: Callable[[MetadataImage, TopicImage], Awaitable[bool]]) -> None:
        until = time.monotonic() + 4 * WAIT_S
        while time.monotonic() < until:
            image = await load_image(self._store)
            if await does(image, image.topics_by_name[TOPIC]):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"it does not come to an end: {does.__name__}")


class Checking:
    """A consumer that is assigned all partitions while the higher count is shown, and reads their logs at the end."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "checker", "enable.auto.commit": False}
        )
        self._logs: dict[int, list[Record]] = {index: [] for index in range(2 * COUNT)}
        self._consumer.assign([confluent_kafka.TopicPartition(TOPIC, index, 0) for index in self._logs])
        self._take()

    def read_all(self, ends: Mapping[int, int]) -> dict[int, list[Record]]:
        """Each partition's log up to its end, by offset."""
        until = time.monotonic() + WAIT_S
        while any(len(self._logs[index]) < end for index, end in ends.items()) and time.monotonic() < until:
            self._take()
        self._consumer.close()
        assert {index: len(log) for index, log in self._logs.items()} == ends
        return self._logs

    def _take(self) -> None:
        for message in self._consumer.consume(1_000, 1.0):
            key, value, partition = message.key(), message.value(), message.partition()
            if message.error() is None and key is not None and value is not None and partition is not None:
                name, _, number = value.decode().rpartition("/")
                self._logs[partition].append((key, name, int(number)))


def inversions(logs: Mapping[int, list[Record]], ends: Mapping[int, int]) -> int:
    """Records that are read after a newer one of their producer and key."""
    found = 0
    for parent, boundary in ends.items():
        newest: dict[tuple[bytes, str], int] = {}
        log = logs[parent]
        for key, name, number in (*log[:boundary], *logs[parent + COUNT], *log[boundary:]):
            found += number < newest.get((key, name), -1)
            newest[key, name] = max(number, newest.get((key, name), -1))
    return found


def run(server: DevServer, seconds: float) -> HalvingOutcome:
    """Double in a sixth of the time, and halve as soon as the boundaries are set; producers come and go meanwhile."""
    return asyncio.run(_run(server, seconds))


async def _run(server: DevServer, seconds: float) -> HalvingOutcome:
    await server.create_topic(TOPIC, COUNT)
    store = await PostgresMetastore.open(server.metastore_url, Settings(metastore_pool_size=1))
    controlling, sent, until = Controlling(store), HalvingSent(), time.monotonic() + seconds
    settings: list[Mapping[str, Any]] = [{}, {"linger.ms": 200}, {"batch.num.messages": 3}]
    threads = [HalvingProducer(server.bootstrap, f"whole-{index}", sent, until, settings[index]) for index in range(3)]
    threads.append(HalvingProducer(server.bootstrap, "early", sent, until - seconds / 2, {}))
    reading = Reading(server.bootstrap)
    for thread in (*threads, reading):
        thread.start()
    await asyncio.sleep(seconds / 6)
    boundaries = await controlling.double()
    checking = await asyncio.to_thread(Checking, server.bootstrap)
    merged_ms, shown_ms = await controlling.halve()
    sent.shown_at = time.monotonic()
    threads.append(HalvingProducer(server.bootstrap, "late", sent, max(until, time.monotonic() + 5.0), {}))
    threads[-1].start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    reading.stops.set()
    await asyncio.to_thread(reading.join)
    logs = await asyncio.to_thread(checking.read_all, await controlling.ends())
    await store.close()
    read = {(name, number) for log in logs.values() for _, name, number in log}
    return HalvingOutcome(
        len(sent.acknowledged),
        len(sent.acknowledged - read),
        inversions(logs, boundaries),
        inversions(logs, dict.fromkeys(boundaries, 0)),
        sent.failed,
        sent.to_aliases,
        merged_ms,
        shown_ms,
    )


def main() -> None:
    """One doubling and one halving."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, DevServer(Path(directory)) as server:
        print(run(server, args.seconds))


if __name__ == "__main__":
    main()
