"""What a run of the transactional copy left, as clients see it: records, positions, and transactions that are open.

Invariant: it only reads. A reader that does not reach the end raises: silence proves nothing.
"""

from __future__ import annotations

import threading
import time

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import BrokerResponseError

from tests.torture.checker import Read

READ_SECONDS = 120.0
CALL_SECONDS = 10.0
EARLIEST = 0
ENDED = ("Empty", "CompleteCommit", "CompleteAbort")
"""States of transactions that are not open."""


def read_log(bootstrap: str, topic: str, partitions: int, isolation: str) -> list[Read]:
    """All records of each partition that this isolation level shows, in its order."""
    consumer = _consumer(bootstrap, isolation, {"enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, EARLIEST) for partition in range(partitions)])
    found: list[Read] = []
    left, until = set(range(partitions)), time.monotonic() + READ_SECONDS
    try:
        while left:
            if time.monotonic() > until:
                raise RuntimeError(f"no end of {topic} with {isolation}: left={sorted(left)} read={len(found)}")
            for message in consumer.consume(5_000, 0.5):
                if (error := message.error()) is None:
                    found.append(_read_of(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
        return found
    finally:
        consumer.close()


class LiveReader(threading.Thread):
    """Reads the committed records of a topic while the run continues. `seen`: each partition in its order."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(daemon=True)
        self.seen: list[Read] = []
        self.has_read = threading.Event()
        self.trouble = ""
        self._consumer = _consumer(bootstrap, "read_committed", {"auto.offset.reset": "error"})
        self._consumer.assign([TopicPartition(topic, partition, EARLIEST) for partition in range(partitions)])
        self._is_stopped = threading.Event()

    def run(self) -> None:
        """Run until `stop`."""
        while not self._is_stopped.is_set():
            for message in self._consumer.consume(1_000, 0.5):
                error = message.error()
                if error is None:
                    self.seen.append(_read_of(message))
                    self.has_read.set()
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                    self.trouble = f"offset out of range: {error.str()}"
        # not closed: it is in no group, and librdkafka waited without end in one close after a run with faults
        del self._consumer

    def stop(self) -> None:
        """Return when it reads no more."""
        self._is_stopped.set()
        self.join()


def positions_of(bootstrap: str, group: str, topic: str, partitions: int) -> dict[int, int]:
    """Partition -> the group's offset; without those that it has none in, or that no agent answers for."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        places = consumer.committed([TopicPartition(topic, index) for index in range(partitions)], CALL_SECONDS)
        return {place.partition: place.offset for place in places if place.error is None and place.offset >= 0}
    except KafkaException:
        return {}
    finally:
        consumer.close()


def open_transactions(bootstrap: str, names: list[str]) -> list[str]:
    """One line for each transaction that ListTransactions or DescribeTransactions does not call ended, and for an
    answer that says that it should be asked again."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    try:
        listed = {each.transactional_id: each.state for found in admin.list_transactions().values() for each in found}
        described = admin.describe_transactions([name for name in names if name in listed])
        states = [*listed.items(), *((name, found.state) for name, found in described.items())]
        return [f"{name} is {state.value}" for name, state in states if state.value not in ENDED]
    except BrokerResponseError as error:
        return [repr(error)]
    finally:
        admin.close()


def _consumer(bootstrap: str, isolation: str, more: dict[str, str | bool]) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "torture",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "socket.timeout.ms": 5_000,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
            **more,
        }
    )


def _read_of(message: confluent_kafka.Message) -> Read:
    partition, offset, value = message.partition(), message.offset(), message.value()
    assert partition is not None
    assert offset is not None
    assert value is not None
    return Read(partition, offset, value.decode())
