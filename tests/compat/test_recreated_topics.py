"""A topic is deleted and created again while producers of three libraries are running: they continue, as on Kafka.

Each writes three records, its topic is replaced, and it writes three more, which are all that the new topic has.
tests/metastore/test_recreated_topics.py says what must not be accepted.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from load.dev_server import DevServer
from tests.kafka_clients import KafkaClients

TIMEOUT_SECONDS = 300
BEFORE, AFTER = [b"old-0", b"old-1", b"old-2"], [b"new-0", b"new-1", b"new-2"]

Send = Callable[[bytes], object]
"""Returns once the record is acknowledged."""
Client = Callable[[DevServer, str], AbstractContextManager[Send]]
"""A producer of a topic."""


@contextmanager
def librdkafka(server: DevServer, topic: str) -> Iterator[Send]:
    settings = {"bootstrap.servers": server.bootstrap, "enable.idempotence": True, "linger.ms": 0, "log_level": 0}
    producer = confluent_kafka.Producer(settings)

    def send(value: bytes) -> None:
        errors: list[KafkaError | None] = []
        producer.produce(topic, value, partition=0, on_delivery=lambda error, _: errors.append(error))
        producer.flush(TIMEOUT_SECONDS)
        assert errors == [None]

    yield send


@contextmanager
def transactional_librdkafka(server: DevServer, topic: str) -> Iterator[Send]:
    producer = _transactional(server, topic)
    yield lambda value: _commit(producer, topic, value)


def _transactional(server: DevServer, name: str) -> confluent_kafka.Producer:
    settings = {"bootstrap.servers": server.bootstrap, "transactional.id": name, "linger.ms": 0, "log_level": 0}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(TIMEOUT_SECONDS)
    return producer


def _commit(producer: confluent_kafka.Producer, topic: str, value: bytes) -> None:
    producer.begin_transaction()
    producer.produce(topic, value, partition=0)
    producer.commit_transaction(TIMEOUT_SECONDS)


@contextmanager
def kafka_python(server: DevServer, topic: str) -> Iterator[Send]:
    producer = kafka.KafkaProducer(bootstrap_servers=server.bootstrap, enable_idempotence=True, acks="all")
    yield lambda value: producer.send(topic, value, partition=0).get(TIMEOUT_SECONDS)
    producer.close()


@contextmanager
def aio_kafka(server: DevServer, topic: str) -> Iterator[Send]:
    with asyncio.Runner() as runner:
        producer = runner.run(_started(server))
        yield lambda value: runner.run(_wait(producer, topic, value))
        runner.run(producer.stop())


async def _started(server: DevServer) -> aiokafka.AIOKafkaProducer:
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=server.bootstrap, enable_idempotence=True)
    await producer.start()
    return producer


async def _wait(producer: aiokafka.AIOKafkaProducer, topic: str, value: bytes) -> None:
    await asyncio.wait_for(producer.send_and_wait(topic, value, partition=0), TIMEOUT_SECONDS)


@pytest.mark.requirement("W7")
@pytest.mark.parametrize("client", [librdkafka, transactional_librdkafka, kafka_python, aio_kafka])
def test_a_producer_goes_on_in_a_topic_that_was_created_again(server: DevServer, client: Client) -> None:
    topic = Topic(server)
    with client(server, topic.name) as send:
        for value in BEFORE:
            send(value)
        topic.delete()
        topic.create()
        for value in AFTER:
            send(value)
    assert topic.values() == AFTER


@pytest.mark.requirement("W7")
@pytest.mark.parametrize("client", [librdkafka, kafka_python, aio_kafka])
def test_a_producer_goes_on_in_a_topic_that_it_creates_again_itself(server: DevServer, client: Client) -> None:
    """Not in a transaction: there librdkafka adds the partition before it asks for the topic, which creates none."""
    topic = Topic(server)
    with client(server, topic.name) as send:
        for value in BEFORE:
            send(value)
        topic.delete()
        for value in AFTER:
            send(value)
    assert topic.values() == AFTER


@pytest.mark.slow
@pytest.mark.requirement("W7")
def test_a_transaction_that_is_open_while_its_topic_is_replaced_is_aborted(server: DevServer) -> None:
    """It lost a part of its records. The producer continues with the next one, which librdkafka has aborted once more:
    it skipped the sequence of the refused record, and begins another epoch.

    The gap is final after 30 s. tests/agent/produce/test_batches_elsewhere.py proves that by a clock, and
    tests/metastore/test_recreated_topics.py that the refused record is not accepted.
    """
    topic = Topic(server)
    producer = _transactional(server, topic.name)
    for value in BEFORE:
        _commit(producer, topic.name, value)
    producer.begin_transaction()
    producer.produce(topic.name, b"open", partition=0)
    producer.flush(TIMEOUT_SECONDS)
    topic.delete()
    topic.create()
    producer.produce(topic.name, b"open", partition=0)
    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction(TIMEOUT_SECONDS)
    assert refused.value.args[0].txn_requires_abort()
    producer.abort_transaction(TIMEOUT_SECONDS)
    with pytest.raises(KafkaException) as skipped:
        _commit(producer, topic.name, b"skipped")
    assert skipped.value.args[0].txn_requires_abort()
    producer.abort_transaction(TIMEOUT_SECONDS)
    for value in AFTER:
        _commit(producer, topic.name, value)
    assert topic.values() == AFTER


class Topic:
    """One that exists, with a partition."""

    def __init__(self, server: DevServer) -> None:
        self.name = f"recreated-{uuid.uuid4()}"
        self._server = server
        self._admin = AdminClient({"bootstrap.servers": server.bootstrap})
        self.create()

    def create(self) -> None:
        """A producer that asked for it may have been first."""
        try:
            self._admin.create_topics([NewTopic(self.name, 1)])[self.name].result(TIMEOUT_SECONDS)
        except KafkaException as refused:
            if refused.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def delete(self) -> None:
        self._admin.delete_topics([self.name])[self.name].result(TIMEOUT_SECONDS)

    def values(self) -> list[bytes]:
        """Return what a reader gets, from offset 0 on."""
        clients = KafkaClients(self._server.bootstrap, {"group.id": self.name, "log_level": 0})
        return [message.value() for message in clients.read(self.name, len(AFTER))]
