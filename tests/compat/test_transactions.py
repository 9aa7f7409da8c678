"""Transactions as librdkafka speaks them (AddPartitionsToTxn, EndTxn), against two agents.

Fault model: a producer that is not the only one with its transactional id, or that stops. What a consumer with
read_committed sees is what was committed, in order and once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from load.dev_server import DevServer
from tests.confluent_records import read
from tests.kafka_clients import KafkaClients

TIMEOUT_SECONDS = 300


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid.uuid4()}"


def a_producer(server: DevServer, transactional_id: str, timeout_ms: int = 60_000) -> confluent_kafka.Producer:
    """Initialised."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": server.bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "linger.ms": 0,
            "log_level": 0,
        }
    )
    producer.init_transactions(TIMEOUT_SECONDS)
    return producer


def a_consumer(server: DevServer, group: str) -> confluent_kafka.Consumer:
    """It reads what was committed, from the beginning."""
    own = {"bootstrap.servers": server.bootstrap, "group.id": group, "log_level": 0}
    return confluent_kafka.Consumer({**own, "auto.offset.reset": "earliest", "enable.auto.commit": False})


def values(server: DevServer, topic: str, count: int, isolation: str = "read_committed") -> list[str]:
    """The first records of a topic's partition 0."""
    clients = KafkaClients(server.bootstrap, {"isolation.level": isolation, "log_level": 0})
    return [message.value().decode() for message in clients.read(topic, count)]


def send(producer: confluent_kafka.Producer, topic: str, *sent: str) -> None:
    """Begin a transaction with these records, and see them acknowledged."""
    producer.begin_transaction()
    for value in sent:
        producer.produce(topic, value, partition=0)
    assert producer.flush(TIMEOUT_SECONDS) == 0


def code_of(call: Callable[[], object]) -> tuple[int, bool]:
    """The error that a call raises, and whether it is fatal."""
    with pytest.raises(KafkaException) as caught:
        call()
    error: KafkaError = caught.value.args[0]
    return error.code(), error.fatal()


@pytest.mark.requirement("X1")
def test_aborted_records_are_read_uncommitted_only(server: DevServer, topic: str) -> None:
    producer = a_producer(server, topic)
    for number, end in enumerate([producer.commit_transaction, producer.abort_transaction] * 2):
        send(producer, topic, f"{number}-a", f"{number}-b")
        end(TIMEOUT_SECONDS)
    send(producer, topic, "last")
    producer.commit_transaction(TIMEOUT_SECONDS)
    assert values(server, topic, 5) == ["0-a", "0-b", "2-a", "2-b", "last"]
    everything = [f"{number}-{letter}" for number in range(4) for letter in "ab"] + ["last"]
    assert values(server, topic, 9, "read_uncommitted") == everything


def test_a_new_producer_fences_the_old_one_and_aborts_its_transaction(server: DevServer, topic: str) -> None:
    zombie = a_producer(server, topic)
    send(zombie, topic, "of the zombie")
    successor = a_producer(server, topic)
    assert code_of(lambda: zombie.commit_transaction(TIMEOUT_SECONDS)) == (KafkaError._FENCED, True)
    send(successor, topic, "of the successor")
    successor.commit_transaction(TIMEOUT_SECONDS)
    assert values(server, topic, 1) == ["of the successor"]


def test_a_transaction_that_takes_too_long_is_aborted(server: DevServer, topic: str) -> None:
    late = a_producer(server, topic, timeout_ms=1_000)
    send(late, topic, "too late")
    other = a_producer(server, f"{topic}-other")
    send(other, topic, "in time")
    other.commit_transaction(TIMEOUT_SECONDS)
    assert values(server, topic, 1) == ["in time"]  # waits until the late one is aborted
    assert code_of(lambda: late.commit_transaction(TIMEOUT_SECONDS)) == (KafkaError._FENCED, True)


def test_a_timeout_above_the_clusters_is_refused(server: DevServer, topic: str) -> None:
    refused = code_of(lambda: a_producer(server, topic, timeout_ms=900_001))
    assert refused == (KafkaError.INVALID_TRANSACTION_TIMEOUT, True)


@pytest.mark.requirement("X1")
def test_offsets_are_committed_with_what_was_made_of_the_records(server: DevServer, topic: str) -> None:
    source, output, group = f"{topic}-in", f"{topic}-out", f"{topic}-group"
    feeder = a_producer(server, f"{topic}-feeder")
    send(feeder, source, *(str(number) for number in range(20)))
    feeder.commit_transaction(TIMEOUT_SECONDS)
    consumer, producer = a_consumer(server, group), a_producer(server, f"{topic}-copy")
    consumer.subscribe([source])
    for end in (producer.abort_transaction, producer.commit_transaction):
        messages = read(consumer, 20, TIMEOUT_SECONDS)
        send(producer, output, *(f"copy of {message.value().decode()}" for message in messages))
        producer.send_offsets_to_transaction([TopicPartition(source, 0, 20)], consumer.consumer_group_metadata())
        code = code_of(lambda: consumer.committed([TopicPartition(source, 0)], 1.0))
        assert code == (KafkaError._TIMED_OUT, False)  # it asks again until the offset is stable
        end(TIMEOUT_SECONDS)
        (committed,) = consumer.committed([TopicPartition(source, 0)], TIMEOUT_SECONDS)
        assert committed.offset == (20 if end == producer.commit_transaction else -1001)
        if end == producer.abort_transaction:
            consumer.seek(TopicPartition(source, 0, 0))
    consumer.close()
    assert values(server, output, 20) == [f"copy of {number}" for number in range(20)]


def test_a_member_that_the_group_removed_commits_nothing(server: DevServer, topic: str) -> None:
    feeder = a_producer(server, f"{topic}-feeder")
    send(feeder, topic, "one")
    feeder.commit_transaction(TIMEOUT_SECONDS)
    consumer, producer = a_consumer(server, topic), a_producer(server, f"{topic}-copy")
    consumer.subscribe([topic])
    read(consumer, 1, TIMEOUT_SECONDS)
    member = consumer.consumer_group_metadata()
    consumer.close()
    send(producer, f"{topic}-out", "copy of one")
    with pytest.raises(KafkaException) as caught:
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, 1)], member)
    assert caught.value.args[0].txn_requires_abort()
    producer.abort_transaction(TIMEOUT_SECONDS)
    send(producer, f"{topic}-out", "next")
    producer.commit_transaction(TIMEOUT_SECONDS)
    assert values(server, f"{topic}-out", 1) == ["next"]
