"""What tests do with a running cluster as its clients: create topics, write records, read them, with librdkafka.

Invariant: each record that is written is acknowledged, each read ends; an error that librdkafka does not get over by
itself fails the test (tests/confluent_records.py). Tests of how a client behaves use the library.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.confluent_records import passes, read

SECONDS_MAX = 300


class KafkaClients:
    """Make a new client of the cluster for each call, with these `settings` besides its address."""

    def __init__(self, bootstrap: str, settings: Mapping[str, Any] | None = None) -> None:
        self.settings: dict[str, Any] = {"bootstrap.servers": bootstrap, **(settings or {})}

    def create(self, topic: str, partitions: int = 1, configs: dict[str, str] | None = None) -> None:
        """Create a topic."""
        admin = AdminClient(self.settings)  # a variable: without one, it ends before its answer
        admin.create_topics([NewTopic(topic, partitions, config=configs or {})])[topic].result(SECONDS_MAX)

    def produce(self, topic: str, values: Iterable[Any], partitions: int = 1, *, one_by_one: bool = False) -> None:
        """Write value n to partition n modulo `partitions`; `one_by_one`: each once the one before is acknowledged."""
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)

        producer = Producer({**self.settings, "on_delivery": delivered})
        for number, value in enumerate(values):
            data = str(value) if isinstance(value, int) else value
            producer.produce(topic, data, partition=number % partitions)
            if one_by_one:
                assert producer.flush(SECONDS_MAX) == 0
        assert (producer.flush(SECONDS_MAX), failures) == (0, [])

    def refusal(self, topic: str, value: bytes) -> str:
        """Write a record that is refused; the name of the error."""
        refused: list[KafkaError | None] = []
        producer = Producer(self.settings)
        producer.produce(topic, value, on_delivery=lambda error, _: refused.append(error))
        assert producer.flush(SECONDS_MAX) == 0
        (error,) = refused
        assert error is not None
        return error.name()

    def read(self, topic: str, count: int, partitions: int = 1) -> list[Message]:
        """Return the first `count` records that come, read from the beginning of each partition."""
        with self.consumer({"enable.auto.commit": False}) as consumer:
            consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
            return read(consumer, count, SECONDS_MAX)

    def read_partition(self, topic: str, partition: int, first: int = 0) -> list[Message]:
        """Return the records of one partition from an offset on; each offset up to the high watermark has one."""
        with self.consumer({"enable.auto.commit": False}) as consumer:
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), SECONDS_MAX)
            consumer.assign([TopicPartition(topic, partition, first)])
            return read(consumer, end - first, SECONDS_MAX)

    def read_in_group(self, topic: str, count: int, group: str) -> list[Message]:
        """Return the first `count` records that the only member of a new group gets."""
        with self.consumer({"group.id": group}) as consumer:
            consumer.subscribe([topic])
            return read(consumer, count, SECONDS_MAX)

    def read_to_end(self, topic: str, partitions: int = 1) -> list[Message]:
        """Return all records that there are."""
        found: list[Message] = []
        ended: set[int | None] = set()
        with self.consumer({"enable.auto.commit": False, "enable.partition.eof": True}) as consumer:
            consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
            while len(ended) < partitions:
                message = consumer.poll(SECONDS_MAX)
                assert message is not None, f"no answer: topic={topic}"
                error = message.error()
                if error is None:
                    found.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    assert passes(error), error
        return found

    def commit(self, group: str, *offsets: TopicPartition) -> None:
        """Commit offsets as a consumer that has stopped."""
        with self.consumer({"group.id": group}) as consumer:
            consumer.commit(offsets=[*offsets], asynchronous=False)

    @contextlib.contextmanager
    def consumer(self, more: Mapping[str, Any]) -> Iterator[Consumer]:
        """A consumer with `more` settings, closed at the end of the block."""
        consumer = Consumer({"group.id": "reader", "auto.offset.reset": "earliest", **self.settings, **more})
        try:
            yield consumer
        finally:
            consumer.close()
