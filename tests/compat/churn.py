"""Members of a KIP-848 group that come and go while they commit each batch: what is refused, and what is read twice.

Place: test_commits_under_churn.py runs it on Apache Kafka and on Headrace.
Invariant: the members that come and go are a function of the seed; how their changes meet the commits is not.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 12
MEMBERS_MAX = 6
PATIENCE_SECONDS = 240.0
_NOTHING_TO_COMMIT = "_NO_OFFSET"


class Outcome(NamedTuple):
    """How it went: records and commits of all members; commits that were refused, by the name of the error; records
    that were read a second time; records that no member read.
    """

    records: int
    commits: int
    refused: Counter[str]
    read_twice: int
    missing: int


@dataclass
class Seen:
    """What all members of the group saw. Use it under `lock`."""

    offsets: list[list[int]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    """Offsets of each partition, in the order of reading."""
    refused: Counter[str] = field(default_factory=Counter)
    """Commits, by the name of the error."""
    commits: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def read_twice(self) -> int:
        """Return how many readings were of a record that was read before."""
        return sum(len(each) - len(set(each)) for each in self.offsets)

    def missing(self, sent: list[int]) -> int:
        """Return how many of the records of each partition were not read."""
        return sum(len(set(range(count)) - set(each)) for count, each in zip(sent, self.offsets, strict=True))


class Member:
    """A consumer in a thread, from its start until `close`."""

    def __init__(self, bootstrap: str, topic: str, seen: Seen) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": topic,
                "group.protocol": "consumer",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        self._consumer.subscribe([topic])
        self._seen, self._is_over = seen, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        """Leave the group."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.is_set():
            batch = [message for message in self._consumer.consume(50, 0.2) if message.error() is None]
            if not batch:
                continue
            with self._seen.lock:
                self._seen.commits += 1
                for message in batch:
                    self._seen.offsets[message.partition() or 0].append(message.offset() or 0)
            try:
                self._consumer.commit(asynchronous=False)
            except confluent_kafka.KafkaException as error:
                name = error.args[0].name()
                if name != _NOTHING_TO_COMMIT:  # its partitions went between the reading and the commit
                    with self._seen.lock:
                        self._seen.refused[name] += 1
        self._consumer.close()


@contextmanager
def _records(bootstrap: str, topic: str) -> Iterator[list[int]]:
    """Write to all partitions in turn; the number of records of each, complete at the end."""
    sent, is_over = [0] * PARTITIONS, threading.Event()
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})

    def write() -> None:
        while not is_over.wait(0.05):
            for partition in range(PARTITIONS):
                producer.produce(topic, b"value", partition=partition)
                sent[partition] += 1
            producer.poll(0)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield sent
    finally:
        is_over.set()
        thread.join()
        assert producer.flush(PATIENCE_SECONDS) == 0


def churn(bootstrap: str, topic: str, seconds: float, seed: int) -> Outcome:
    """Change the members for so long, and wait then until they read everything."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()
    rng, seen = random.Random(seed), Seen()
    members = [Member(bootstrap, topic, seen) for _ in range(2)]
    try:
        with _records(bootstrap, topic) as sent:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                if len(members) < 2 or (len(members) < MEMBERS_MAX and rng.random() < 0.55):
                    members.append(Member(bootstrap, topic, seen))
                else:
                    members.pop(rng.randrange(len(members))).close()
                time.sleep(rng.uniform(1, 3))
        patience = time.monotonic() + PATIENCE_SECONDS
        while seen.missing(sent) and time.monotonic() < patience:
            time.sleep(0.5)
    finally:
        for member in members:
            member.close()
    return Outcome(sum(map(len, seen.offsets)), seen.commits, seen.refused, seen.read_twice, seen.missing(sent))
