"""Three agents behind one address: groups find their coordinator, whichever agent a connection reaches."""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from tests import compat
from tests.agent_process import SECONDS_MAX, AgentUnderTest
from tests.compat import go_clients
from tests.compat.clients import CLIENTS, Client, pairs
from tests.confluent_records import read
from tests.faults.shared_cluster import SharedCluster, shared_cluster
from tests.house.needs import require
from tests.java_program import java_command
from tests.kafka_clients import KafkaClients
from tests.tools import JAVA_LIBRARIES

GROUPS = 8
PARTITIONS = 4
RECORDS = 40


@pytest.fixture(scope="module")
def cluster(module_agent_settings: dict[str, object]) -> Iterator[SharedCluster]:
    with shared_cluster(module_agent_settings, 3) as running:
        yield running


def _produce(address: str, topic: str, count: int) -> None:
    KafkaClients(address, {"enable.idempotence": True}).produce(topic, range(count), PARTITIONS)


def _metric(agent: AgentUnderTest, name: str) -> float:
    with urllib.request.urlopen(f"http://{agent.http}/metrics", timeout=SECONDS_MAX) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


@pytest.mark.requirement("X3")
def test_groups_read_everything_behind_one_address(cluster: SharedCluster) -> None:
    cluster.topic("orders", PARTITIONS)
    _produce(cluster.address, "orders", RECORDS)
    consumers = []
    for number in range(GROUPS):
        settings = {"bootstrap.servers": cluster.address, "group.id": f"g{number}", "auto.offset.reset": "earliest"}
        if number % 2:
            settings["group.protocol"] = "consumer"
        consumers.append(confluent_kafka.Consumer(settings))
        consumers[-1].subscribe(["orders"])
    for consumer in consumers:
        assert sorted(int(message.value()) for message in read(consumer, RECORDS, SECONDS_MAX)) == list(range(RECORDS))
        consumer.commit(asynchronous=False)
    admin = AdminClient({"bootstrap.servers": cluster.address})
    listed = admin.list_consumer_groups().result()
    assert not listed.errors
    names = [f"g{number}" for number in range(GROUPS)]
    assert {group.group_id for group in listed.valid} >= set(names)
    for name, described in admin.describe_consumer_groups(names).items():
        assert len(described.result().members) == 1, name
    for consumer in consumers:
        consumer.close()
    assert sum(_metric(agent, 'headrace_forwarded_requests_total{direction="sent"}') for agent in cluster.agents)
    for name, deleted in admin.delete_consumer_groups(names).items():
        assert deleted.result() is None, name
    assert not {group.group_id for group in admin.list_consumer_groups().result().valid} & set(names)


@pytest.mark.parametrize(
    "client",
    [  # kcat is a package of the system: the row is proven without it, too
        pytest.param(client, id=client.name, marks=() if client.name == "kcat" else pytest.mark.requirement("X3"))
        for client in CLIENTS
    ],
)
def test_each_client_library_writes_and_reads_in_a_group(cluster: SharedCluster, client: Client) -> None:
    if client.missing is not None:
        pytest.skip(client.missing)
    topic = f"by-{client.name}"
    cluster.topic(topic, PARTITIONS)
    client.produce(cluster.address, topic, RECORDS)
    values = client.consume(cluster.address, topic, RECORDS)
    assert sorted(values) == sorted(value.decode() for _, value in pairs(client.name, RECORDS)), client.name


def _read_by_java(address: str, topic: str, protocol: str) -> list[int]:
    """Return what Kafka's own consumer reads as the only member of a group."""
    source = Path(compat.__file__).with_name("GroupMember.java")
    command = java_command(source, f"{JAVA_LIBRARIES}/*")
    process = subprocess.Popen(
        [*command, address, f"java-{protocol}", topic, protocol],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    values: list[int] = []
    try:
        for line in process.stdout:
            event, _, rest = line.partition(" ")
            if event == "value":
                values.append(int(rest))
            if len(values) == RECORDS:
                break
    finally:
        process.kill()
        process.communicate()
    return values


@pytest.mark.slow
@pytest.mark.needs("kafka-clients")
@pytest.mark.requirement("X3")
def test_kafkas_own_consumer_reads_in_a_group_of_either_protocol(cluster: SharedCluster) -> None:
    cluster.topic("by-java", PARTITIONS)
    _produce(cluster.address, "by-java", RECORDS)
    for protocol in ("classic", "consumer"):
        assert sorted(_read_by_java(cluster.address, "by-java", protocol)) == list(range(RECORDS)), protocol


@pytest.mark.slow
@pytest.mark.requirement("X3")
def test_groups_of_go_clients_share_a_topic(cluster: SharedCluster) -> None:
    """Three members each: they join through connections to different agents, and all commit."""
    for tool, protocols in (("franz-go", ("classic", "consumer")), ("sarama", ("classic",))):
        require(tool)
        topic = f"shared-by-{tool}"
        cluster.topic(topic, PARTITIONS)
        go_clients.produce(tool, cluster.address, topic, RECORDS)
        written = sorted(value.decode() for _, value in pairs(tool.replace("-", "_"), RECORDS))
        for protocol in protocols:
            group = f"{tool}-{protocol}"
            members = go_clients.read_in_group(
                tool, cluster.address, topic, RECORDS, PARTITIONS, group=group, protocol=protocol, members=3
            )
            assert sorted(n for member in members for n in member.partitions) == list(range(PARTITIONS)), group
            assert all(member.partitions for member in members), group
            assert sorted(value for member in members for value in member.values) == written, group
            assert _protocol_and_commits(cluster.address, group) == (protocol, RECORDS), group


def _protocol_and_commits(address: str, group: str) -> tuple[str, int]:
    """Return how the group was joined, and how many records of all partitions it has behind it."""
    admin = AdminClient({"bootstrap.servers": address})
    listed = admin.list_consumer_groups().result()
    assert not listed.errors
    (protocol,) = [each.type.name.lower() for each in listed.valid if each.group_id == group]
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(SECONDS_MAX)
    return protocol, sum(each.offset for each in found.topic_partitions)
