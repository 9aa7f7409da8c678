"""Retention as a whole: an agent, its controller, its compactor, and clients that see records go."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]
from kafka import KafkaAdminClient

from headrace.metastore.postgres.embedded import EmbeddedPostgres
from load.dev_server import DevServer
from tests.forked_cluster import ForkedCluster
from tests.kafka_clients import KafkaClients

RECORDS = 20
BATCH_BYTES_MAX = 300
WITHIN_SECONDS = 300


@pytest.fixture(scope="module")
def server(postgres_server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    settings = {"log.retention.check.interval.ms": 200, "linger.ms": 25}
    with ForkedCluster(postgres_server, tmp_path_factory.mktemp("dev"), settings=settings) as running:
        yield running


@pytest.fixture
def admin(server: DevServer) -> AdminClient:
    return AdminClient({"bootstrap.servers": server.agents[0].kafka})


def filled_topic(server: DevServer, admin: AdminClient, **configs: str) -> str:
    """A new topic with records in separate files, each of them new."""
    name = f"events-{uuid.uuid4()}"
    admin.create_topics([NewTopic(name, 1, config=configs)])[name].result()
    values = [str(number) * 100 for number in range(RECORDS)]
    KafkaClients(server.agents[0].kafka, {"linger.ms": 0}).produce(name, values, one_by_one=True)
    return name


def earliest(admin: AdminClient, topic: str) -> int:
    partition = TopicPartition(topic, 0)
    wanted = {partition: OffsetSpec.earliest()}  # type: ignore[no-untyped-call]
    return int(admin.list_offsets(wanted)[partition].result().offset)


def first_read(server: DevServer, topic: str) -> tuple[int, bytes]:
    """Return where a consumer that starts below the log start gets to by auto.offset.reset."""
    consumer = Consumer(
        {"bootstrap.servers": server.agents[0].kafka, "group.id": "readers", "auto.offset.reset": "earliest"}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    deadline = time.monotonic() + WITHIN_SECONDS
    message = None
    while (message is None or message.error() is not None) and time.monotonic() < deadline:
        message = consumer.poll(1)  # an error that the client continues from is no answer
    consumer.close()
    assert message is not None
    assert message.error() is None
    offset, value = message.offset(), message.value()
    assert offset is not None
    assert value is not None
    return offset, value


def log_bytes(server: DevServer, topic: str) -> int:
    client = KafkaAdminClient(bootstrap_servers=server.agents[0].kafka)
    try:
        (directory,) = client.describe_log_dirs()[0]["log_dirs"]
        sizes = {t["name"]: t["partitions"][0]["partition_size"] for t in directory["topics"]}
        return int(sizes[topic])
    finally:
        client.close()


def test_a_topic_stays_as_small_as_it_may_be(server: DevServer, admin: AdminClient) -> None:
    topic = filled_topic(server, admin, **{"retention.bytes": "1500"})
    deadline = time.monotonic() + WITHIN_SECONDS
    while log_bytes(server, topic) >= 1_500 + BATCH_BYTES_MAX and time.monotonic() < deadline:
        time.sleep(0.2)
    assert 1_500 <= log_bytes(server, topic) < 1_500 + BATCH_BYTES_MAX
    start = earliest(admin, topic)
    assert 0 < start < RECORDS
    assert first_read(server, topic) == (start, str(start).encode() * 100)


def test_records_are_deleted_on_request(server: DevServer, admin: AdminClient) -> None:
    topic = filled_topic(server, admin)
    before = log_bytes(server, topic)
    (done,) = admin.delete_records([TopicPartition(topic, 0, 15)]).values()
    assert done.result().low_watermark == 15
    assert earliest(admin, topic) == 15
    assert first_read(server, topic) == (15, b"15" * 100)
    assert 0 < log_bytes(server, topic) < before / 2
    (refused,) = admin.delete_records([TopicPartition(topic, 0, RECORDS + 1)]).values()
    with pytest.raises(Exception, match="OFFSET_OUT_OF_RANGE") as error:
        refused.result()
    assert error.value.args[0].code() == KafkaError.OFFSET_OUT_OF_RANGE
