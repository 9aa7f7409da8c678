"""librdkafka's idempotent producer as a writer of the torture run (load/torture/pacing.py says what that is)."""

from __future__ import annotations

import json
from collections.abc import Callable

import confluent_kafka

from load.torture.pacing import Arguments, Pacer, pause


class Transmitted:
    """Records that librdkafka put into requests, repetitions included, as its statistics count them."""

    def __init__(self) -> None:
        self.records = 0

    def on_statistics(self, text: str) -> None:
        """Called by librdkafka."""
        topics = json.loads(text)["topics"].values()
        self.records = sum(partition["txmsgs"] for topic in topics for partition in topic["partitions"].values())


def main() -> None:
    """Write until told to stop."""
    arguments = Arguments.read()
    pacer, transmitted = Pacer("confluent", arguments), Transmitted()
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "message.timeout.ms": arguments.delivery_ms,
            "request.timeout.ms": 2_000,
            "socket.timeout.ms": 3_000,
            "reconnect.backoff.max.ms": 500,
            "retry.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 1_000,
            "statistics.interval.ms": 500,
            "stats_cb": transmitted.on_statistics,
            "log_level": 0,
        }
    )
    while not pacer.is_stopped:
        for partition, number, value in pacer.next_burst():
            producer.produce(arguments.topic, value, partition=partition, on_delivery=_settle(pacer, partition, number))
        producer.poll(0)
        pause()
    producer.flush(arguments.delivery_ms / 1000 + 5)
    producer.poll(1)
    pacer.end(max(0, transmitted.records - pacer.sent))


def _settle(pacer: Pacer, partition: int, number: int) -> Callable[[object, confluent_kafka.Message], None]:
    def delivered(error: object, message: confluent_kafka.Message) -> None:
        if error is None:
            pacer.acknowledged(partition, number, message.offset() or 0)
        else:
            pacer.failed(partition, number, error)

    return delivered


if __name__ == "__main__":
    main()
