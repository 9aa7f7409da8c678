"""Quotas as librdkafka sees them: it reads its throttle time, and nothing is lost."""

from __future__ import annotations

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from load.benchmarks.quotas import set_quota
from load.dev_server import DevServer
from tests.confluent_records import read

SECONDS_MAX = 300


@pytest.mark.requirement("X2")
def test_librdkafka_is_throttled_and_loses_nothing(server: DevServer) -> None:
    free = {"bootstrap.servers": server.bootstrap}
    admin = AdminClient(free)
    admin.create_topics([NewTopic("limited", 2)])["limited"].result(SECONDS_MAX)
    set_quota(server.agents[0].kafka, "app", producer_byte_rate=50_000, consumer_byte_rate=50_000)
    throttled: dict[str, list[float]] = {"producer": [], "consumer": []}
    producer = confluent_kafka.Producer(
        free | {"client.id": "app", "throttle_cb": lambda event: throttled["producer"].append(event.throttle_time)}
    )
    for number in range(20):
        producer.produce("limited", str(number).encode() + bytes(10_000), partition=number % 2)
        producer.flush(SECONDS_MAX)
    assert max(throttled["producer"]) > 0
    consumer = confluent_kafka.Consumer(
        free
        | {
            "client.id": "app",
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "throttle_cb": lambda event: throttled["consumer"].append(event.throttle_time),
        }
    )
    consumer.subscribe(["limited"])
    values = sorted(int(message.value().rstrip(b"\0")) for message in read(consumer, 20, SECONDS_MAX))
    assert values == list(range(20))
    consumer.close()
    assert max(throttled["consumer"]) > 0
