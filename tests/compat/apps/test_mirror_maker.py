"""MirrorMaker 2 between Headrace and Apache Kafka, both ways, over a restart."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from headrace.config.free_ports import free_ports
from tests.compat.apps.app import SECONDS_MAX, JavaApp, is_compacted, was_cleaned
from tests.examples import properties
from tests.kafka_clients import KafkaClients
from tests.tools import KAFKA_APPS

pytestmark = [
    pytest.mark.requirement("L1", "L2", "L3"),
    pytest.mark.slow,
    pytest.mark.needs("kafka-apps"),
]
TOPIC, RECORDS = "mirrored", 200


def _config(headrace: str, kafka: str, path: Path) -> Path:
    rest = f"http://127.0.0.1:{free_ports(1)[0]}"
    addresses = {"headrace.bootstrap.servers": headrace, "kafka.bootstrap.servers": kafka, "listeners": rest}
    faster = {
        "offset.flush.interval.ms": "500",
        "emit.heartbeats.interval.seconds": "1",
        "refresh.topics.interval.seconds": "2",
    }
    return properties("mirror-maker/mm2.properties", path, addresses | {"topics": TOPIC, "groups": "none"}, faster)


def _produce(bootstrap: str, first: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(first, first + RECORDS):
        producer.produce(TOPIC, str(number), f"key {number}", partition=0)
    assert producer.flush(SECONDS_MAX) == 0


def _values(bootstrap: str, topic: str) -> list[int]:
    """Return the values of all records there are; empty if the topic is not there yet."""
    if topic not in AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).topics:
        return []
    return [int(message.value() or b"") for message in KafkaClients(bootstrap).read_to_end(topic)]


def test_both_ways_over_a_restart(headrace_cluster: str, kafka_cluster: str, tmp_path: Path) -> None:
    sides = {"headrace": headrace_cluster, "kafka": kafka_cluster}
    for number, bootstrap in enumerate(sides.values()):
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(60)
        _produce(bootstrap, 10_000 * number)
    config = _config(headrace_cluster, kafka_cluster, tmp_path / "mm2.properties")
    command = ["org.apache.kafka.connect.mirror.MirrorMaker", str(config)]

    def have_all(records: int) -> bool:
        return (
            len(_values(kafka_cluster, f"headrace.{TOPIC}")) >= records
            and len(_values(headrace_cluster, f"kafka.{TOPIC}")) >= records
        )

    def is_cleaned() -> bool:
        return was_cleaned(headrace_cluster, "heartbeats", share=0.75)  # half of the offsets may be markers

    for records in (RECORDS, 2 * RECORDS):
        with JavaApp([f"{KAFKA_APPS}/*"], command, tmp_path / "mm2.log") as app:
            app.until(partial(have_all, records), f"both sides have {records} records of each other")
            app.until(is_cleaned, "heartbeats on headrace were cleaned")
        if records == RECORDS:
            for number, bootstrap in enumerate(sides.values()):
                _produce(bootstrap, 10_000 * number + RECORDS)
    wanted = list(range(2 * RECORDS))
    assert _values(kafka_cluster, f"headrace.{TOPIC}") == wanted
    assert _values(headrace_cluster, f"kafka.{TOPIC}") == [10_000 + number for number in wanted]
    topics = AdminClient({"bootstrap.servers": headrace_cluster}).list_topics(timeout=30).topics
    internal = [name for name in topics if name.startswith("mm2-") and name.endswith(".internal")]
    internal = [name for name in internal if "offset-syncs" in name or "offsets" in name or "configs" in name]
    assert internal
    assert all(is_compacted(headrace_cluster, name) for name in internal)
