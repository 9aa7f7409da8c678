"""Kafka Streams: a count by key loses its local state, and restores it from a changelog that was cleaned."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from load.tools import KAFKA_APPS, why_missing
from tests.compat.apps.java_app import SECONDS_MAX, JavaApp, is_compacted, was_cleaned

pytestmark = [
    pytest.mark.requirement("L1", "L2", "L3"),
    pytest.mark.slow,
    pytest.mark.xdist_group("compat"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(why_missing("kafka-apps")), reason=str(why_missing("kafka-apps"))),
]
PROGRAM = Path(__file__).with_name("StatefulCount.java")
CHANGELOG = "counting-counts-changelog"
PARTITIONS, KEYS, ROUNDS = 2, 50, 40


def _produce(bootstrap: str, expected: Counter[str]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
    for number in range(KEYS):
        producer.produce("words", "word", f"key {number}")
        expected[f"key {number}"] += 1
    assert producer.flush(SECONDS_MAX) == 0


def _counted(bootstrap: str) -> dict[str, int]:
    """The last count of each key."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "counted", "enable.partition.eof": True})
    consumer.assign([TopicPartition("counted", partition, 0) for partition in range(PARTITIONS)])
    found: dict[str, int] = {}
    ended = 0
    while ended < PARTITIONS:
        message = consumer.poll(SECONDS_MAX)
        assert message is not None
        if message.error() is None:
            found[message.key().decode()] = int(message.value())
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF
            ended += 1
    consumer.close()
    return found


@pytest.mark.parametrize("bootstrap", ["headrace", "kafka"], indirect=True)
def test_a_lost_store_is_restored_from_its_cleaned_changelog(bootstrap: str, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in ("words", "counted")]).values():
        created.result(60)
    subprocess.run(["javac", "-d", str(tmp_path), "-cp", f"{KAFKA_APPS}/*", str(PROGRAM)], check=True, timeout=300)
    state, expected = tmp_path / "state", Counter[str]()
    command = ["StatefulCount", bootstrap, str(state)]
    for _ in range(2):
        with JavaApp([tmp_path, f"{KAFKA_APPS}/*"], command, tmp_path / "streams.log") as app:
            for _ in range(ROUNDS):
                _produce(bootstrap, expected)
                app.until(lambda: _counted(bootstrap) == expected, "every record is counted once")
            app.until(lambda: was_cleaned(bootstrap, CHANGELOG), "the changelog was cleaned")
        shutil.rmtree(state)
    assert is_compacted(bootstrap, CHANGELOG)
