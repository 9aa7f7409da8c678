"""Producers that know only a topic's count, and what they know in the end of what became of their records.

Place: under doubling_clients.py, which doubles the topic and judges. Record n of a producer is `name/n`.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka

from headrace.metastore.partitions.placement import moves
from tests.growth.doubling_readers import ClientProcess, java_client
from tests.tools import FRANZ_GO_SENDING, KAFKAJS

TOPIC, COUNT, KEYS = "doubling", 4, 60
REFRESH_MS = 4_000
EVERY_S = 0.004
KAFKAJS_PROGRAM = Path(__file__).with_name("kafkajs_sending.cjs")
FLUSH_S = 60.0


@dataclass
class Sent:
    """What all producers know in the end."""

    acknowledged: set[tuple[str, int]] = field(default_factory=set)
    failed: Counter[str] = field(default_factory=Counter)
    children_ms: list[int] = field(default_factory=list)
    """Milliseconds from the doubling until a producer's first record in a child."""
    stale_ms: dict[str, int] = field(default_factory=dict)
    """Producer -> from the doubling until its last record with a moved key in a parent was acknowledged."""
    in_child: set[str] = field(default_factory=set)
    doubled_at: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, value: str, key: bytes, partition: int) -> None:
        """It was acknowledged."""
        name, _, number = value.rpartition("/")
        with self.lock:
            self.acknowledged.add((name, int(number)))
            since_ms = int(1000 * (time.monotonic() - self.doubled_at))
            if partition >= COUNT and name not in self.in_child:
                self.in_child.add(name)
                self.children_ms.append(since_ms)
            elif partition < COUNT and self.doubled_at and moves("murmur2", key, partition, COUNT):
                self.stale_ms[name] = since_ms

    def note_failure(self, name: str, error: str) -> None:
        """The producer of this name gave it up."""
        with self.lock:
            self.failed[f"{name} {error}"] += 1


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

    def run(self) -> None:
        """Run until the time is over, and every record has an answer."""
        rng, number = random.Random(self.name), 0
        while time.monotonic() < self._until:
            key, value = b"key-%d" % rng.randrange(KEYS), f"{self.name}/{number}".encode()
            self._producer.produce(TOPIC, value, key, on_delivery=self._delivered)
            number += 1
            self._producer.poll(EVERY_S)
        self._producer.flush(FLUSH_S)

    def end(self) -> None:
        """Send nothing more."""
        self._until = 0.0

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        key, value, partition = message.key(), message.value(), message.partition()
        if error is not None:
            self._sent.note_failure(self.name, error.name())
        else:
            assert key is not None
            assert value is not None
            assert partition is not None
            self._sent.note(value.decode(), key, partition)


class OtherProducing(threading.Thread):
    """The same by another client: a process that writes a line for each record."""

    def __init__(self, name: str, sent: Sent, client: ClientProcess) -> None:
        super().__init__(name=name)
        self._client, self._sent = client, sent

    def run(self) -> None:
        """Run until it has ended; an error of the process is one more failure."""
        try:
            for kind, value, *rest in self._client.lines():
                if kind == "ack":
                    self._sent.note(value, rest[0].encode(), int(rest[1]))
                else:
                    self._sent.note_failure(self.name, value)
        except RuntimeError as error:
            self._sent.note_failure(self.name, str(error))


def java_producing(bootstrap: str, name: str, sent: Sent, seconds: float, classes: Path) -> OtherProducing:
    """Kafka's Java client."""
    client = java_client(classes, "produce", *_words(bootstrap, name, seconds))
    return OtherProducing(name, sent, client)


def franz_producing(bootstrap: str, name: str, sent: Sent, seconds: float) -> OtherProducing:
    """franz-go."""
    client = ClientProcess([str(FRANZ_GO_SENDING), *_words(bootstrap, name, seconds)])
    return OtherProducing(name, sent, client)


def kafkajs_producing(bootstrap: str, name: str, sent: Sent, seconds: float) -> OtherProducing:
    """kafkajs, one record at a time."""
    client = ClientProcess(
        ["node", str(KAFKAJS_PROGRAM), *_words(bootstrap, name, seconds)],
        {"KAFKAJS": str(KAFKAJS), "KAFKAJS_NO_PARTITIONER_WARNING": "1"},
    )
    return OtherProducing(name, sent, client)


def _words(bootstrap: str, name: str, seconds: float) -> tuple[str, ...]:
    return (bootstrap, TOPIC, name, str(seconds), str(KEYS), str(REFRESH_MS))
