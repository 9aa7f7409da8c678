"""A topic doubles under real producers that know only the count: order per key, what is refused, how late they learn.

Place: `python -m load.doubling_clients [--seconds 40]` starts `headrace dev` with one agent and doubles a topic in the
store. Producers are librdkafka's (confluent-kafka); some come and go. Each record says who sent it and its number.
What is read: each parent up to its boundary, then its child, then the rest of the parent, as a group does that gets the
child when it has read the parent up to there.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka

from headrace.config.settings import Settings
from headrace.metastore.api.splits import Doubling
from headrace.metastore.log.image import TopicImage
from headrace.metastore.log.loading import load_image
from headrace.metastore.partitions.changes import Expansion, change_count
from headrace.metastore.postgres.store import PostgresMetastore
from load.dev_server import DevServer

TOPIC, COUNT, KEYS = "doubling", 4, 60
REFRESH_MS = 4_000
PRODUCER_QUIET_MS, BOUNDARY_QUIET_MS = 2_000, 2 * REFRESH_MS
EVERY_S = 0.004
READ_S = 60.0


@dataclass
class Sent:
    """What all producers know in the end."""

    acknowledged: set[tuple[str, int]] = field(default_factory=set)
    failed: Counter[str] = field(default_factory=Counter)
    children_ms: list[int] = field(default_factory=list)
    """From the doubling until a producer's first record in a child."""
    doubled_at: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Producing(threading.Thread):
    """One process' worth of records. Record n of a producer is `name/n`, with any of the keys."""

    def __init__(self, bootstrap: str, name: str, sent: Sent, until: float, settings: Mapping[str, Any]) -> None:
        super().__init__(name=name)
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "topic.metadata.refresh.interval.ms": REFRESH_MS,
                "linger.ms": 5,
            }
            | dict(settings)
        )
        self._sent, self._until = sent, until
        self._in_child = False

    def run(self) -> None:
        """Until the time is over, and every record has an answer."""
        rng, number = random.Random(self.name), 0
        while time.monotonic() < self._until:
            key, value = b"key-%d" % rng.randrange(KEYS), f"{self.name}/{number}".encode()
            self._producer.produce(TOPIC, value, key, on_delivery=self._delivered)
            number += 1
            self._producer.poll(EVERY_S)
        self._producer.flush(READ_S)

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        name, _, number = (message.value() or b"").decode().rpartition("/")
        partition = message.partition()
        with self._sent.lock:
            if error is not None:
                self._sent.failed[error.name()] += 1
                return
            self._sent.acknowledged.add((name, int(number)))
            if not self._in_child and partition is not None and partition >= COUNT:
                self._in_child = True
                self._sent.children_ms.append(int(1000 * (time.monotonic() - self._sent.doubled_at)))


@dataclass(frozen=True)
class DoublingOutcome:
    """`boundary_ms`: from the doubling until the last boundary was set. `at_once`: how many records are out of order if
    children are read first."""

    acknowledged: int
    lost: int
    inversions: int
    at_once: int
    failed: Mapping[str, int]
    first_in_child_ms: tuple[int, ...]
    boundary_ms: int

    def __str__(self) -> str:
        late = f"{min(self.first_in_child_ms)} to {max(self.first_in_child_ms)}" if self.first_in_child_ms else "none"
        return (
            f"acknowledged={self.acknowledged} lost={self.lost} out_of_order={self.inversions}"
            f" children_first={self.at_once} failed={dict(self.failed)}"
            f" first_in_child_ms={late} boundary_ms={self.boundary_ms}"
        )


async def double(metastore_url: str) -> TopicImage:
    """As one transaction in the store; the topic after it."""
    store = await PostgresMetastore.open(metastore_url, Settings(metastore_pool_size=1))
    try:
        done = False
        while not done:
            image = await load_image(store)
            topic = image.topics_by_name[TOPIC]
            partitions = topic.ordered_partitions
            change = change_count(partitions, 2 * partitions.undeleted)
            assert isinstance(change, Expansion)
            doubling = Doubling(
                topic.topic_id, partitions.initial, partitions.undeleted, change, PRODUCER_QUIET_MS, BOUNDARY_QUIET_MS
            )
            done = await store.double_topic(image.offset, doubling)
        return (await load_image(store)).topics_by_name[TOPIC]
    finally:
        await store.close()


async def boundaries(metastore_url: str) -> dict[int, int]:
    """Parent -> boundary, once all are set."""
    store = await PostgresMetastore.open(metastore_url, Settings(metastore_pool_size=1))
    try:
        while True:
            splits = (await load_image(store)).topics_by_name[TOPIC].splits
            found = {parent: split.boundary for parent, split in splits.items() if split.boundary is not None}
            if splits and len(found) == len(splits):
                return found
            await asyncio.sleep(0.2)
    finally:
        await store.close()


def read_all(bootstrap: str) -> dict[int, list[tuple[bytes, str, int]]]:
    """Partition -> (key, producer, number), by offset."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False}
    )
    places = [confluent_kafka.TopicPartition(TOPIC, index, 0) for index in range(2 * COUNT)]
    left = sum(consumer.get_watermark_offsets(place)[1] for place in places)
    logs: dict[int, list[tuple[bytes, str, int]]] = {index: [] for index in range(2 * COUNT)}
    consumer.assign(places)
    until = time.monotonic() + READ_S
    while left and time.monotonic() < until:
        for message in consumer.consume(1_000, 1.0):
            key, value, partition = message.key(), message.value(), message.partition()
            if message.error() is None and key is not None and value is not None and partition is not None:
                name, _, number = value.decode().rpartition("/")
                logs[partition].append((key, name, int(number)))
                left -= 1
    consumer.close()
    assert not left, f"records not read: {left}"
    return logs


def inversions(logs: Mapping[int, list[tuple[bytes, str, int]]], ends: Mapping[int, int]) -> int:
    """Records that are read after a newer one of their producer and key."""
    found = 0
    for parent, boundary in ends.items():
        newest: dict[tuple[bytes, str], int] = {}
        log = logs[parent]
        for key, name, number in (*log[:boundary], *logs[parent + COUNT], *log[boundary:]):
            found += number < newest.get((key, name), -1)
            newest[key, name] = max(number, newest.get((key, name), -1))
    return found


def run(server: DevServer, seconds: float) -> DoublingOutcome:
    """Double in a third of the time; some producers end before the end, and others begin."""
    asyncio.run(server.create_topic(TOPIC, COUNT))
    sent, began = Sent(), time.monotonic()
    settings: list[Mapping[str, Any]] = [{}, {"linger.ms": 200}, {"batch.num.messages": 3}]
    threads = [
        Producing(server.bootstrap, f"whole-{index}", sent, began + seconds, settings[index % 3]) for index in range(3)
    ]
    threads.append(Producing(server.bootstrap, "early", sent, began + seconds / 2, {}))
    for thread in threads:
        thread.start()
    time.sleep(seconds / 3)
    sent.doubled_at = time.monotonic()
    asyncio.run(double(server.metastore_url))
    late = Producing(server.bootstrap, "late", sent, began + seconds, {})
    late.start()
    ends = asyncio.run(boundaries(server.metastore_url))
    boundary_ms = int(1000 * (time.monotonic() - sent.doubled_at))
    for thread in (*threads, late):
        thread.join()
    logs = read_all(server.bootstrap)
    read = {(name, number) for log in logs.values() for _, name, number in log}
    return DoublingOutcome(
        len(sent.acknowledged),
        len(sent.acknowledged - read),
        inversions(logs, ends),
        inversions(logs, dict.fromkeys(ends, 0)),
        sent.failed,
        tuple(sent.children_ms),
        boundary_ms,
    )


def main() -> None:
    """One doubling."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, DevServer(Path(directory)) as server:
        print(run(server, args.seconds))


if __name__ == "__main__":
    main()
