"""The producer: confluent-kafka (librdkafka), idempotent, paced."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, Message, Producer

from load.demo.flights import checksum


@dataclass
class Produced:
    """What the producer saw; latencies in seconds from send() to acknowledgement."""

    acknowledged: int = 0
    failed: list[str] = field(default_factory=list)
    bytes: int = 0
    checksum: int = 0
    ack_seconds: dict[int, float] = field(default_factory=dict)
    """Seconds until the acknowledgement by the record's number."""
    retries: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


def produce(
    bootstrap: str,
    topic: str,
    records: Sequence[tuple[bytes, bytes]],
    rate: int,
    progress: Callable[[int], None],
) -> Produced:
    """Send all at `rate` records/s and wait for every acknowledgement. `progress(sent)` after each slice."""
    result = Produced()
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 10,
            "message.timeout.ms": 120_000,
            "socket.connection.setup.timeout.ms": 3_000,
            "reconnect.backoff.max.ms": 500,
            "statistics.interval.ms": 1_000,
            "stats_cb": lambda text: _note_retries(result, text),
            "error_cb": lambda error: None,  # lost connections are the demo's point; failures show in `failed`
            "log_level": 2,
        }
    )
    started = time.monotonic()
    for sent, (key, value) in enumerate(records, start=1):
        _send(producer, topic, key, value, sent - 1, result)
        if sent % 1_000 == 0:
            producer.poll(0)
            progress(sent)
            ahead = started + sent / rate - time.monotonic()
            if ahead > 0:
                producer.poll(ahead)
    producer.flush()
    progress(len(records))
    result.seconds = time.monotonic() - started
    return result


def _send(producer: Producer, topic: str, key: bytes, value: bytes, number: int, result: Produced) -> None:
    sent_at = time.monotonic()

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            result.failed.append(str(error))
            return
        result.acknowledged += 1
        result.bytes += len(key) + len(value)
        result.checksum = checksum(result.checksum, value)
        result.ack_seconds[number] = time.monotonic() - sent_at

    while True:
        try:
            producer.produce(topic, value=value, key=key, on_delivery=delivered)
            return
        except BufferError:
            producer.poll(0.05)


def _note_retries(result: Produced, statistics: str) -> None:
    brokers = json.loads(statistics)["brokers"]
    result.retries.update({name: broker["txretries"] for name, broker in brokers.items()})
