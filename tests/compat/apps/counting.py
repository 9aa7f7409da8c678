"""Words of a few keys into a topic, round after round, and the counts that an application made of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.apps.app import SECONDS_MAX
from tests.kafka_clients import KafkaClients

PARTITIONS, KEYS, ROUNDS = 2, 50, 40
MILLISECONDS_OF_ROUND = 100
"""Milliseconds between the timestamps of two rounds, however long a round takes."""


class Words:
    """An application's topics `<app>-words` and `<app>-counted`, and how often each key was produced."""

    def __init__(self, bootstrap: str, app: str) -> None:
        self.bootstrap = bootstrap
        self._words, self._counted = f"{app}-words", f"{app}-counted"
        self.expected: Counter[str] = Counter()
        self._first_ms = int(time.time() * 1000) - 3_600_000
        self._rounds = 0
        topics = [NewTopic(name, PARTITIONS, 1) for name in (self._words, self._counted)]
        admin = AdminClient({"bootstrap.servers": bootstrap})  # a variable: without one, it ends before its answer
        for created in admin.create_topics(topics).values():
            created.result(60)

    def produce(self) -> None:
        """A round: one record of each key. The values are the number of the round."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 1})
        timestamp = self._first_ms + MILLISECONDS_OF_ROUND * self._rounds
        for number in range(KEYS):
            producer.produce(self._words, str(self._rounds), f"key {number}", timestamp=timestamp)
            self.expected[f"key {number}"] += 1
        assert producer.flush(SECONDS_MAX) == 0
        self._rounds += 1

    def are_counted(self, parse: Callable[[bytes], tuple[object, int]]) -> bool:
        """Return whether the last counts of a key, summed over its windows, are right for all keys.

        `parse`: the window and the count in a record's value.
        """
        last: dict[tuple[str, object], int] = {}
        for key, value in all_records(self.bootstrap, self._counted):
            window, count = parse(value)
            last[key.decode(), window] = count
        found: Counter[str] = Counter()
        for (key_text, _), count in last.items():
            found[key_text] += count
        return found == self.expected

    def counts(self) -> dict[str, list[bytes]]:
        """Return for each key the values that a reader of committed records gets, in order."""
        found: dict[str, list[bytes]] = {}
        for key, value in all_records(self.bootstrap, self._counted):
            found.setdefault(key.decode(), []).append(value)
        return found

    def are_committed(self, group: str) -> bool:
        """Return whether the group committed the end of each partition: a graceful stop then repeats nothing."""
        with KafkaClients(self.bootstrap).consumer({"group.id": group}) as consumer:
            committed = consumer.committed([TopicPartition(self._words, number) for number in range(PARTITIONS)], 30)
            return all(place.offset == consumer.get_watermark_offsets(place, 30)[1] for place in committed)


def all_records(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> list[tuple[bytes, bytes]]:
    """(key, value) of committed records, in the order of each partition."""
    found = KafkaClients(bootstrap).read_to_end(topic, partitions)
    return [(message.key() or b"", message.value() or b"") for message in found]
