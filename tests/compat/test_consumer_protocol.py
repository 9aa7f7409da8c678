"""group.protocol=consumer (KIP-848) as librdkafka and Kafka's own Java client speak it, against two agents.

Fault model: SIGKILL of a member, SIGKILL of the agent that coordinates the group. Members are processes.
In the end each partition has one owner, every record was consumed, and whom a change does not concern hears
nothing of it.
"""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from headrace.metastore.postgres.embedded import EmbeddedPostgres
from load.dev_server import DevServer
from tests.compat.conftest import SETTINGS
from tests.confluent_records import passes
from tests.forked_cluster import ForkedCluster
from tests.house.needs import require
from tests.java_program import java_command
from tests.kafka_clients import KafkaClients
from tests.tools import JAVA_LIBRARIES

PARTITIONS = 6
TIMEOUT_SECONDS = 300
MORTAL = SETTINGS | {"broker.heartbeat.interval.ms": 500, "broker.session.timeout.ms": 6_000}


def produce_one(server: DevServer, topic: str, value: int) -> None:
    """Produce one record to a topic of one partition."""
    KafkaClients(server.bootstrap, {"log_level": 0}).produce(topic, [value])


class Member:
    """One consumer process; what it said so far is read by `settle`."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.owned: set[int] = set()
        self.values: list[int] = []
        self.events: list[str] = []

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))

    def settle(self) -> None:
        """Take in what it said since."""
        while not self._lines.empty():
            event, _, rest = self._lines.get().partition(" ")
            if event == "value":
                self.values.append(int(rest))
                continue
            partitions = {int(each) for each in rest.split(",") if each}
            self.events.append(f"{event} {rest}")
            self.owned = self.owned | partitions if event == "assigned" else self.owned - partitions

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()
        self.owned = set()

    def close(self) -> None:
        """Close in good order: it leaves the group."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        self.settle()
        self.owned = set()


Start = Callable[..., Member]


@pytest.fixture(params=["librdkafka", pytest.param("java", marks=pytest.mark.slow)])
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    """Starts a member of one kind of client; members that still run at the end of the test are killed."""
    command = [sys.executable, "-m", "tests.compat.group_member"]
    if request.param == "java":
        require("kafka-clients")
        source = Path(__file__).with_name("GroupMember.java")
        command = java_command(source, f"{JAVA_LIBRARIES}/*")
    started: list[Member] = []

    def begin(
        server: DevServer, group: str, protocol: str = "consumer", instance: str = "", *, pattern: str = ""
    ) -> Member:
        arguments = [server.bootstrap, group, pattern or group, protocol, *([instance] if instance else [])]
        started.append(Member([*command, *arguments]))
        return started[-1]

    yield begin
    for member in started:
        member.kill()


@pytest.fixture
def mortal_server(postgres_server: EmbeddedPostgres, tmp_path: Path) -> Iterator[DevServer]:
    """A cluster in which an agent may be killed."""
    with ForkedCluster(postgres_server, tmp_path, agents=2, settings=MORTAL) as running:
        yield running


def produce(server: DevServer, topic: str, numbers: range) -> None:
    """Record n goes to partition n modulo their number."""
    KafkaClients(server.bootstrap, {"log_level": 0}).produce(topic, numbers, PARTITIONS)


def until(members: Sequence[Member], reached: Callable[[], bool], what: str) -> None:
    """Watch the members until it is so."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < end:
        for member in members:
            member.settle()
        if reached():
            return
        time.sleep(0.05)
    raise AssertionError(f"{what}: {[(sorted(m.owned), m.events, len(m.values)) for m in members]}")


def shared(members: Sequence[Member], *sizes: int) -> None:
    """Wait until the partitions are shared out so, each to one member."""

    def reached() -> bool:
        owned = [partition for member in members for partition in member.owned]
        return sorted(owned) == list(range(PARTITIONS)) and sorted(len(m.owned) for m in members) == sorted(sizes)

    until(members, reached, f"partitions shared {sizes}")


def consumed(members: Sequence[Member], numbers: range) -> None:
    until(members, lambda: set(numbers) <= {n for m in members for n in m.values}, f"records {numbers} consumed")


def describe(server: DevServer, group: str) -> confluent_kafka.admin.ConsumerGroupDescription:
    """The same as tools see the group."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    return admin.describe_consumer_groups([group])[group].result(TIMEOUT_SECONDS)


def coordinator(server: DevServer, group: str) -> int | None:
    """Node id of the agent that coordinates the group; None while it does not answer: librdkafka does not ask again
    for the coordinator within one request.
    """
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    try:
        described = admin.describe_consumer_groups([group], request_timeout=3)[group].result(TIMEOUT_SECONDS)
    except confluent_kafka.KafkaException as error:
        if not passes(error.args[0]):
            raise
        return None
    return int(described.coordinator.id)


@pytest.mark.slow
def test_members_come_and_go_and_their_coordinator_crashes(mortal_server: DevServer, start: Start) -> None:
    server, topic = mortal_server, "lives"
    asyncio.run(server.create_topic(topic, PARTITIONS))
    produce(server, topic, range(300))
    a = start(server, topic)
    shared([a], 6)
    b = start(server, topic)
    shared([a, b], 3, 3)
    c = start(server, topic)
    shared([a, b, c], 2, 2, 2)
    produce(server, topic, range(300, 600))
    consumed([a, b, c], range(600))
    c.close()
    shared([a, b], 3, 3)
    b.kill()
    shared([a], 6)
    d = start(server, topic)
    shared([a, d], 3, 3)
    assert not any(event.startswith("lost") for member in (a, b, c, d) for event in member.events)

    seen = describe(server, topic)
    assert (seen.state.name, seen.type.name, seen.partition_assignor) == ("STABLE", "CONSUMER", "uniform")
    assert sorted(len(member.assignment.topic_partitions) for member in seen.members) == [3, 3]
    said = len(a.events), len(d.events)
    dying = coordinator(server, topic)
    os.kill(next(agent.pid for agent in server.agents if agent.node_id == dying), signal.SIGKILL)
    produce(server, topic, range(600, 900))
    consumed([a, b, c, d], range(900))
    until([a, d], lambda: coordinator(server, topic) not in (dying, None), "another coordinator")
    produce(server, topic, range(900, 1_200))
    consumed([a, b, c, d], range(1_200))
    time.sleep(2)  # several heartbeats to the new coordinator
    shared([a, d], 3, 3)
    assert (len(a.events), len(d.events)) == said, "the members noticed nothing"
    values = [value for member in (a, d) for value in member.values if value >= 600]
    assert len(values) == len(set(values)), "and consumed nothing twice"


def test_a_static_member_is_restarted_without_a_rebalance(
    server: DevServer, start: Start, request: pytest.FixtureRequest
) -> None:
    topic = f"static-{request.node.callspec.id}"
    asyncio.run(server.create_topic(topic, PARTITIONS))
    a = start(server, topic, "consumer", "instance-a")
    shared([a], 6)
    b = start(server, topic, "consumer", "instance-b")
    shared([a, b], 3, 3)
    kept, share, said = set(a.owned), set(b.owned), len(a.events)
    b.close()
    again = start(server, topic, "consumer", "instance-b")
    shared([a, again], 3, 3)
    assert (a.owned, again.owned) == (kept, share)
    assert len(a.events) == said, "the other member noticed nothing"


def test_a_pattern_finds_topics_that_come_later(
    server: DevServer, start: Start, request: pytest.FixtureRequest
) -> None:
    group = f"patterned-{request.node.callspec.id}"
    asyncio.run(server.create_topic(f"{group}-1", 1))
    asyncio.run(server.create_topic(f"not-{group}", 1))
    member = start(server, group, pattern=f"^{group}-[0-9]+")
    produce_one(server, f"not-{group}", 0)
    produce_one(server, f"{group}-1", 1)
    until([member], lambda: member.values == [1], "the topic that was there")
    asyncio.run(server.create_topic(f"{group}-22", 1))
    produce_one(server, f"{group}-22", 2)
    until([member], lambda: member.values == [1, 2], "the topic that came later")


def test_a_group_is_upgraded_member_by_member_and_rolled_back(
    server: DevServer, start: Start, request: pytest.FixtureRequest
) -> None:
    topic = f"upgraded-{request.node.callspec.id}"
    asyncio.run(server.create_topic(topic, PARTITIONS))
    produce(server, topic, range(300))
    old = [start(server, topic, "classic"), start(server, topic, "classic")]
    shared(old, 3, 3)
    new = start(server, topic)
    shared([*old, new], 2, 2, 2)
    old[0].close()
    shared([old[1], new], 3, 3)
    produce(server, topic, range(300, 600))
    consumed([*old, new], range(600))
    new.close()
    shared([old[1]], 6)
    late = start(server, topic, "classic")
    shared([old[1], late], 3, 3)
    produce(server, topic, range(600, 900))
    consumed([*old, new, late], range(900))
