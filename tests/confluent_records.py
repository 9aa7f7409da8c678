"""Records that librdkafka's consumer hands over, without the errors that it gets over by itself.

Fault model: a machine that stalls for seconds. The library then tells its user of brokers that did not
answer in time, or of a topic that an agent has not learned of yet, and continues. Any other error fails the test.
"""

from __future__ import annotations

import time

import confluent_kafka
from confluent_kafka import KafkaError

PASSING = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}


def passes(error: KafkaError) -> bool:
    """Return whether the library tries again by itself."""
    return not error.fatal() and (error.retriable() or error.code() in PASSING)


def consume(consumer: confluent_kafka.Consumer, count: int, seconds: float) -> list[confluent_kafka.Message]:
    """Consume at most `count` records, waited for at most so long; other errors raise."""
    records = []
    for message in consumer.consume(count, seconds):
        error = message.error()
        if error is None:
            records.append(message)
        else:
            assert passes(error), error
    return records


def read(consumer: confluent_kafka.Consumer, count: int, seconds: float) -> list[confluent_kafka.Message]:
    """The next `count` records, which must come within so long."""
    records: list[confluent_kafka.Message] = []
    until = time.monotonic() + seconds
    while len(records) < count:
        assert time.monotonic() < until, f"only {len(records)} of {count} records within {seconds} s"
        records += consume(consumer, count - len(records), 0.5)
    return records
