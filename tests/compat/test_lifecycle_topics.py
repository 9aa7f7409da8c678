"""Both lifecycle topics through plain consumers: every record, from every offset, in groups; read only."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import aiokafka
import confluent_kafka
import psycopg
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from headrace.metastore.api.segment_states import base64url
from headrace.metastore.segment_logs.records import decode, metadata_partition
from headrace.metastore.segment_logs.topics import AUDIT_TOPIC, LIFECYCLE_TOPICS, REMOTE_LOG_TOPIC, lifecycle_configs
from load.dev_server import DevServer
from tests.confluent_records import read
from tests.forked_cluster import shared_cluster
from tests.java_program import run_java
from tests.kafka_clients import KafkaClients
from tests.metastore.lifecycle_rows import TOPIC as OWNER
from tests.metastore.lifecycle_rows import LifecycleRows, one_life
from tests.tools import KAFKA_JARS

TIMEOUT_SECONDS = 300
KEPT = {REMOTE_LOG_TOPIC: [7, 8, 10, 11], AUDIT_TOPIC: list(range(10))}
ENDS = {REMOTE_LOG_TOPIC: 12, AUDIT_TOPIC: 10}
pytestmark = [pytest.mark.requirement("R12")]


server = shared_cluster(
    agents=2, settings={"group.initial.rebalance.delay.ms": 100, "segments.cleanup.interval.ms": 3_600_000}
)


@pytest.fixture(scope="module")
def partition(server: DevServer) -> int:
    """The metadata partition with the records of one life."""
    with psycopg.connect(server.metastore_url) as connection:
        index = next(n for n in range(1_000) if metadata_partition(OWNER, n) == 0)  # Java's program reads partition 0
        rows = LifecycleRows(connection, index, begin_ms=time.time_ns() // 1_000_000)
        one_life(rows)
        rows.forget([(999, 4)])
        return rows.partition


@pytest.mark.slow
@pytest.mark.parametrize("topic", [REMOTE_LOG_TOPIC, AUDIT_TOPIC])
def test_librdkafka_reads_on_from_every_offset(server: DevServer, partition: int, topic: str) -> None:
    with KafkaClients(server.bootstrap).consumer({"enable.partition.eof": True}) as consumer:
        found = consumer.list_topics(topic, TIMEOUT_SECONDS).topics[topic]
        assert (found.error, len(found.partitions)) == (None, 50)
        wanted = confluent_kafka.TopicPartition(topic, partition)
        assert consumer.get_watermark_offsets(wanted, TIMEOUT_SECONDS) == (0, ENDS[topic])
        for offset in range(ENDS[topic]):
            consumer.assign([confluent_kafka.TopicPartition(topic, partition, offset)])
            got = []
            while True:
                message = consumer.poll(TIMEOUT_SECONDS)
                assert message is not None
                if message.error():
                    assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                    assert message.offset() == ENDS[topic]
                    break
                got.append(message)
            assert [message.offset() for message in got] == [n for n in KEPT[topic] if n >= offset]
            assert all(decode(message.value()).version == 1 for message in got if message.value() is not None)


@pytest.mark.parametrize("topic", [REMOTE_LOG_TOPIC, AUDIT_TOPIC])
def test_aiokafka_reads_on_from_every_offset(server: DevServer, partition: int, topic: str) -> None:
    async def read_all() -> None:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=server.bootstrap, enable_auto_commit=False)
        await consumer.start()
        try:
            wanted = aiokafka.TopicPartition(topic, partition)
            consumer.assign([wanted])
            for offset in range(ENDS[topic]):
                consumer.seek(wanted, offset)
                got: list[int] = []
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    while await consumer.position(wanted) < ENDS[topic]:
                        batches = await consumer.getmany(wanted, timeout_ms=200)
                        got += [record.offset for record in batches.get(wanted, [])]
                assert got == [n for n in KEPT[topic] if n >= offset]
        finally:
            await consumer.stop()

    asyncio.run(read_all())


@pytest.mark.needs("kafka")
@pytest.mark.parametrize("topic", [REMOTE_LOG_TOPIC, AUDIT_TOPIC])
def test_kafkas_own_consumer_reads_on_from_every_offset(server: DevServer, partition: int, topic: str) -> None:
    """It also asks for the end of the leader epoch before it reads."""
    assert partition == 0
    program = Path(__file__).with_name("ReadFrom.java")
    offsets = ",".join(map(str, range(ENDS[topic])))
    done = run_java(program, f"{KAFKA_JARS}/*", server.bootstrap, topic, offsets, str(ENDS[topic]))
    assert done.returncode == 0, done.stderr
    for offset in range(ENDS[topic]):
        lines = re.findall(rf"^{offset} (\d+) {base64url(OWNER)}:", done.stdout, re.MULTILINE)
        assert [int(line) for line in lines] == [n for n in KEPT[topic] if n >= offset]
        assert re.search(rf"^{offset} end$", done.stdout, re.MULTILINE)


def test_a_group_commits_and_goes_on_where_it_was(server: DevServer, partition: int) -> None:
    clients = KafkaClients(server.bootstrap, {"enable.auto.commit": False})
    with clients.consumer({"group.id": "auditors"}) as first:
        first.subscribe([AUDIT_TOPIC])
        messages = read(first, 4, TIMEOUT_SECONDS)
        assert [(m.partition(), m.offset()) for m in messages] == [(partition, n) for n in range(4)]
        (stored,) = first.commit(messages[-1], asynchronous=False)
        assert (stored.error, stored.offset) == (None, 4)
    after = clients.read_in_group(AUDIT_TOPIC, 6, "auditors")
    assert [message.offset() for message in after] == list(range(4, 10))


def test_their_configs_are_shown_and_cannot_be_changed(server: DevServer) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    for topic in LIFECYCLE_TOPICS:
        own = lifecycle_configs(topic)
        resource = ConfigResource(ResourceType.TOPIC, topic)
        shown = admin.describe_configs([resource])[resource].result(TIMEOUT_SECONDS)
        assert {name: shown[name].value for name in own} == own
        assert all(entry.is_read_only for entry in shown.values())
        change = ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
        wish = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
        with pytest.raises(confluent_kafka.KafkaException):
            admin.incremental_alter_configs([wish])[wish].result(TIMEOUT_SECONDS)


def test_clients_cannot_write_them(server: DevServer) -> None:
    clients = KafkaClients(server.bootstrap)
    for topic in (REMOTE_LOG_TOPIC, AUDIT_TOPIC):
        assert clients.refusal(topic, b"x") == "TOPIC_EXCEPTION"
