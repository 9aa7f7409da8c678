"""Quotas as librdkafka sees them: it reads its throttle time, and nothing is lost."""

from __future__ import annotations

import confluent_kafka
import pytest

from load.benchmarks.quotas import set_quota
from load.dev_server import DevServer
from tests.kafka_clients import KafkaClients

SECONDS_MAX = 300


@pytest.mark.requirement("X2")
def test_librdkafka_is_throttled_and_loses_nothing(server: DevServer) -> None:
    clients = KafkaClients(server.bootstrap, {"client.id": "app"})
    clients.create("limited", 2)
    set_quota(server.agents[0].kafka, "app", producer_byte_rate=50_000, consumer_byte_rate=50_000)
    throttled: dict[str, list[float]] = {"producer": [], "consumer": []}
    producer = confluent_kafka.Producer(
        clients.settings | {"throttle_cb": lambda event: throttled["producer"].append(event.throttle_time)}
    )
    for number in range(20):
        producer.produce("limited", str(number).encode() + bytes(10_000), partition=number % 2)
        producer.flush(SECONDS_MAX)
    assert max(throttled["producer"]) > 0
    clients.settings["throttle_cb"] = lambda event: throttled["consumer"].append(event.throttle_time)
    messages = clients.read_in_group("limited", 20, "readers")
    assert sorted(int(message.value().rstrip(b"\0")) for message in messages) == list(range(20))
    assert max(throttled["consumer"]) > 0
