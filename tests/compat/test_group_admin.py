"""Groups as the admin clients of three libraries see and remove them, over two agents."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import aiokafka.admin
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient
from kafka.admin import KafkaAdminClient

from headrace.metastore.postgres.embedded import EmbeddedPostgres
from load.dev_server import DevServer
from tests.compat.clients import TIMEOUT_SECONDS
from tests.forked_cluster import ForkedCluster
from tests.kafka_clients import KafkaClients

TOPIC = "orders"
GROUPS = {f"group-{n}" for n in range(8)}


@pytest.fixture(scope="module")
def server(postgres_server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    """Two agents; eight groups with positions, `group-0` with a member too."""
    settings: dict[str, object] = {"group.initial.rebalance.delay.ms": 0, "linger.ms": 25}
    with ForkedCluster(postgres_server, tmp_path_factory.mktemp("dev"), agents=2, settings=settings) as running:
        asyncio.run(running.create_topic(TOPIC, 2))
        for group in GROUPS:
            positions = [confluent_kafka.TopicPartition(TOPIC, p, 5 + p, "note") for p in range(2)]
            KafkaClients(running.bootstrap).commit(group, *positions)
        member = kafka.KafkaConsumer(TOPIC, bootstrap_servers=running.bootstrap.split(","), group_id="group-0")
        while member.partitions_for_topic(TOPIC) != {0, 1}:
            time.sleep(0.05)  # a leader elected before it knows the topic shares out nothing, and may stay so for long
        while not member.assignment():
            member.poll(timeout_ms=100)
        yield running
        member.close()


def test_confluent_lists_describes_and_deletes(server: DevServer) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    listed = admin.list_consumer_groups().result(TIMEOUT_SECONDS)
    assert listed.errors == []
    assert sorted(g.group_id for g in listed.valid) == sorted(GROUPS), "each once"
    stable = admin.list_consumer_groups(states={confluent_kafka.ConsumerGroupState.STABLE}).result(TIMEOUT_SECONDS)
    assert [g.group_id for g in stable.valid] == ["group-0"]

    found = admin.describe_consumer_groups(["group-0"])["group-0"].result(TIMEOUT_SECONDS)
    assert (found.state.name, found.partition_assignor) == ("STABLE", "range")
    (described,) = found.members
    assert {p.partition for p in described.assignment.topic_partitions} == {0, 1}

    with pytest.raises(confluent_kafka.KafkaException, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups(["group-0"])["group-0"].result(TIMEOUT_SECONDS)
    admin.delete_consumer_groups(["group-1"])["group-1"].result(TIMEOUT_SECONDS)
    with pytest.raises(confluent_kafka.KafkaException, match="GROUP_ID_NOT_FOUND"):
        admin.delete_consumer_groups(["group-1"])["group-1"].result(TIMEOUT_SECONDS)
    GROUPS.discard("group-1")


def test_kafka_python_lists_describes_and_deletes(server: DevServer) -> None:
    admin = KafkaAdminClient(bootstrap_servers=server.bootstrap.split(","))
    assert {each["group_id"] for each in admin.list_groups()} == GROUPS
    described = admin.describe_groups(["group-0", "group-2"])
    states = {group_id: each["group_state"] for group_id, each in described.items()}
    assert states == {"group-0": "Stable", "group-2": "Empty"}
    offsets = admin.list_group_offsets("group-2")["group-2"]
    # confluent-kafka ends the text with a NUL, which other clients are shown
    assert {p.partition: (o.offset, o.metadata) for p, o in offsets.items()} == {0: (5, "note\0"), 1: (6, "note\0")}
    admin.delete_group_offsets("group-2", [kafka.TopicPartition(TOPIC, 0)])
    assert [p.partition for p in admin.list_group_offsets("group-2")["group-2"]] == [1]
    admin.delete_groups(["group-2"])
    GROUPS.discard("group-2")
    assert {each["group_id"] for each in admin.list_groups()} == GROUPS
    admin.close()


async def test_aiokafka_lists_and_describes(server: DevServer) -> None:
    admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=server.bootstrap)
    await admin.start()
    try:
        assert {group_id for group_id, _ in await admin.list_consumer_groups()} == GROUPS
        (answer,) = await admin.describe_consumer_groups(["group-0"])
        assert answer.groups[0][:3] == (0, "group-0", "Stable")
        offsets = await admin.list_consumer_group_offsets("group-3")
        assert {p.partition: o.offset for p, o in offsets.items()} == {0: 5, 1: 6}
    finally:
        await admin.close()
