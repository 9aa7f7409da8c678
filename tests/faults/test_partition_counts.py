"""8 -> 13 -> 9 -> 13 partitions with unmodified librdkafka clients, two agents and the real command line."""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from headrace.cli.main import main
from tests.agent_process import SECONDS_MAX, AgentUnderTest
from tests.kafka_clients import KafkaClients
from tests.waiting import until

TOPIC = "orders"
MARKED_TIMEOUT_MS = 4_000
PER_ROUND = 10
"""Records for each partition."""

Agents = tuple[AgentUnderTest, AgentUnderTest]


class Sender:
    """One idempotent producer through all changes. It sends no count; the test chooses the partitions."""

    def __init__(self, address: str, **more: object) -> None:
        self._producer = Producer(
            {"bootstrap.servers": address, "topic.metadata.refresh.interval.ms": 200, "log_level": 0}
            | {"enable.idempotence": True}
            | more
        )
        self.delivered: Counter[tuple[int, bytes]] = Counter()
        self.offsets: dict[int, list[int]] = {}
        self.errors: list[int] = []

    def send(self, partitions: range, name: str) -> None:
        for number in range(PER_ROUND):
            for partition in partitions:
                value = f"{name}-{partition}-{number}".encode()
                self._produce(value, partition)
        assert self._producer.flush(SECONDS_MAX) == 0

    def _produce(self, value: bytes, partition: int) -> None:
        """It may not have learned of the partition yet."""
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            try:
                return self._producer.produce(TOPIC, value, partition=partition, on_delivery=self._on_delivery)
            except KafkaException as error:
                if error.args[0].code() != KafkaError._UNKNOWN_PARTITION or time.monotonic() > deadline:
                    raise
            self._producer.poll(0.1)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error.code())
            return
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None
        assert offset is not None
        assert isinstance(value, bytes)
        self.delivered[partition, value] += 1
        self.offsets.setdefault(partition, []).append(offset)


@pytest.fixture
def admin(two_agents: Agents) -> AdminClient:
    client = AdminClient({"bootstrap.servers": ",".join(agent.kafka for agent in two_agents)})
    client.create_topics([NewTopic(TOPIC, 8)])[TOPIC].result(SECONDS_MAX)
    return client


def indexes(admin: AdminClient) -> list[int]:
    """The same as a client sees them."""
    return sorted(admin.list_topics(TOPIC, timeout=SECONDS_MAX).topics[TOPIC].partitions)


def alter(agent: AgentUnderTest, count: int) -> int:
    """The exit status of the command."""
    return main(["topics", "alter", TOPIC, "--partitions", str(count), "--yes", "-b", agent.kafka])


def ends_of(capsys: pytest.CaptureFixture[str], agent: AgentUnderTest) -> dict[int, tuple[int, int, int]]:
    """Partition -> (leader epoch, log start, log end), as the command line shows them."""
    capsys.readouterr()
    assert main(["topics", "describe", TOPIC, "--json", "-b", agent.kafka]) == 0
    (topic,) = json.loads(capsys.readouterr().out)
    return {row["partition"]: (row["epoch"], row["earliest"], row["latest"]) for row in topic["partitions"]}


@pytest.mark.requirement("P2", "P3", "P4")
def test_a_topic_grows_shrinks_and_grows_again(
    two_agents: Agents, admin: AdminClient, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = two_agents
    sender = Sender(f"{one.kafka},{two.kafka}")
    sender.send(range(8), "first")
    admin.create_partitions([NewPartitions(TOPIC, 13)])[TOPIC].result(SECONDS_MAX)
    until(lambda: all(len(ends_of(capsys, agent)) == 13 for agent in two_agents), "both agents know")
    sender.send(range(13), "grown")
    assert alter(one, 7) == 1, "below the initial count"
    assert alter(one, 9) == 0
    assert alter(two, 13) == 1, "growth while partitions are marked"
    until(lambda: all(ends_of(capsys, agent)[12][0] == 1 for agent in two_agents), "both agents know")
    sender.send(range(9), "shrunk")
    assert sender.errors == []
    impatient = Sender(f"{one.kafka},{two.kafka}", **{"message.timeout.ms": MARKED_TIMEOUT_MS})
    impatient.send(range(12, 13), "refused")
    assert impatient.errors == [KafkaError._MSG_TIMED_OUT] * PER_ROUND
    assert ends_of(capsys, one)[12] == (1, 0, PER_ROUND)

    gone = [TopicPartition(TOPIC, index, -1) for index in range(9, 13)]
    for future in admin.delete_records(gone).values():
        future.result(SECONDS_MAX)
    until(lambda: indexes(admin) == list(range(9)), "the emptied partitions are removed")
    assert alter(two, 13) == 0
    until(lambda: all(len(ends_of(capsys, agent)) == 13 for agent in two_agents), "both agents know")
    assert [ends_of(capsys, one)[index][1:] for index in range(9, 13)] == [(PER_ROUND, PER_ROUND)] * 4
    sender.send(range(13), "again")
    assert sender.errors == []
    assert set(sender.delivered.values()) == {1}
    assert all(offsets == sorted(set(offsets)) for offsets in sender.offsets.values())
    assert sender.offsets[12] == list(range(2 * PER_ROUND))
    assert _read(one) == {key for key in sender.delivered if key[0] < 9 or key[1].startswith(b"again")}


def _read(agent: AgentUnderTest) -> set[tuple[int, bytes]]:
    """All that a group reads from the beginning, each record once."""
    consumer = Consumer(
        {"bootstrap.servers": agent.kafka, "group.id": "readers", "auto.offset.reset": "earliest", "log_level": 0}
    )
    consumer.subscribe([TOPIC])
    found: Counter[tuple[int, bytes]] = Counter()
    wanted = 9 * 3 * PER_ROUND + 8 * PER_ROUND + 4 * PER_ROUND
    deadline = time.monotonic() + SECONDS_MAX
    while sum(found.values()) < wanted and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            partition, value = message.partition(), message.value()
            assert partition is not None
            assert isinstance(value, bytes)
            found[partition, value] += 1
    consumer.close()
    assert set(found.values()) == {1}
    return set(found)


@pytest.mark.requirement("P3")
def test_retention_empties_marked_partitions_and_they_are_removed(agent_settings: dict[str, object]) -> None:
    """Active data, too."""
    with AgentUnderTest(agent_settings | {"log.retention.check.interval.ms": 300}) as agent:
        admin = AdminClient({"bootstrap.servers": agent.kafka})
        KafkaClients(agent.kafka).create(TOPIC, 2)
        assert alter(agent, 4) == 0
        sender = Sender(agent.kafka)
        sender.send(range(4), "old")
        assert alter(agent, 2) == 0
        assert indexes(admin) == [0, 1, 2, 3]
        assert main(["topics", "alter", TOPIC, "--set", "retention.ms=1", "-b", agent.kafka]) == 0
        until(lambda: indexes(admin) == [0, 1], "the emptied partitions are removed")
        assert sender.errors == []
