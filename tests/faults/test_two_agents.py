"""Two stateless agents, one Postgres, one S3 bucket: each serves the other's data and continues without it.

Fault model: SIGKILL of an agent under load; SIGSTOP of an agent in the middle of commits. Clients
are librdkafka's, idempotent, and know both agents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import confluent_kafka
import pytest

from tests.agent_process import AgentUnderTest, by_command
from tests.kafka_clients import KafkaClients

Pair = tuple[AgentUnderTest, AgentUnderTest]
PARTITIONS = 6
RECORDS = 6_000
SECONDS_MAX = 300


def _bootstrap(*agents: AgentUnderTest) -> str:
    return ",".join(agent.kafka for agent in agents)


def _create(bootstrap: str, topic: str) -> None:
    KafkaClients(bootstrap).create(topic, PARTITIONS)


def _produce(bootstrap: str, topic: str, count: int, at: dict[int, Callable[[], None]]) -> list[str]:
    """Send `count` numbered records; run `at[n]` after record n; returns the values that were acknowledged."""
    acknowledged: list[str] = []
    failures: list[object] = []

    def delivered(error: object, message: confluent_kafka.Message) -> None:
        if error:
            failures.append(error)
        else:
            acknowledged.append(message.value().decode())

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "reconnect.backoff.max.ms": 500,
            "message.timeout.ms": SECONDS_MAX * 1000,
            "socket.timeout.ms": 4_000,  # how soon the client gives up on an agent that is stopped
            "request.timeout.ms": 3_000,
        }
    )
    for n in range(count):
        producer.produce(topic, str(n), str(n % 50), on_delivery=delivered)
        if n in at:
            producer.poll(0.1)
            at[n]()
        if n % 100 == 0:
            producer.poll(0.01)
    assert producer.flush(SECONDS_MAX) == 0
    assert failures == []
    return acknowledged


def _read_all(bootstrap: str, topic: str, count: int) -> list[tuple[int, int, int]]:
    """(partition, offset, number) of the topic's first `count` records, in the order in which they came."""
    read = KafkaClients(bootstrap).read(topic, count, PARTITIONS)
    return [(message.partition(), message.offset(), int(message.value())) for message in read]


def _assert_once_in_order(found: list[tuple[int, int, int]], count: int) -> None:
    assert Counter(number for _, _, number in found) == Counter(range(count))
    for partition in range(PARTITIONS):
        rows = [(offset, number) for p, offset, number in found if p == partition]
        assert [offset for offset, _ in rows] == list(range(len(rows))), "offsets have no gaps"
        for key in range(50):
            numbers = [number for _, number in rows if number % 50 == key]
            assert numbers == sorted(numbers), "one producer's records of a key keep their order"


@pytest.mark.slow
@pytest.mark.requirement("W1", "W5")
def test_each_agent_serves_what_the_other_wrote(two_agents: Pair) -> None:
    first, second = two_agents
    _create(_bootstrap(first), "shared")
    assert len(_produce(_bootstrap(first), "shared", RECORDS, {})) == RECORDS
    _assert_once_in_order(_read_all(_bootstrap(second), "shared", RECORDS), RECORDS)


@pytest.mark.requirement("W1", "W7")
@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_kill_minus_nine_loses_and_doubles_nothing(agent_settings: dict[str, object], victim: int) -> None:
    """The first agent is started by its command, and is the controller."""
    with by_command(agent_settings) as first, AgentUnderTest(agent_settings) as second:
        two_agents = first, second
        _create(_bootstrap(*two_agents), "survivor")
        acknowledged = _produce(_bootstrap(*two_agents), "survivor", RECORDS, {RECORDS // 2: two_agents[victim].kill})
        assert len(acknowledged) == RECORDS
        _assert_once_in_order(_read_all(_bootstrap(two_agents[1 - victim]), "survivor", RECORDS), RECORDS)


@pytest.mark.slow
@pytest.mark.requirement("W7")
def test_a_stopped_agent_blocks_no_client_and_resumes_correctly(two_agents: Pair) -> None:
    first, second = two_agents
    _create(_bootstrap(*two_agents), "paused")
    acknowledged = _produce(_bootstrap(*two_agents), "paused", RECORDS, {RECORDS // 3: first.pause})
    assert len(acknowledged) == RECORDS
    first.resume()
    _assert_once_in_order(_read_all(_bootstrap(second), "paused", RECORDS), RECORDS)


@pytest.mark.slow
@pytest.mark.requirement("W1")
def test_a_drained_agent_leaves_without_an_error(two_agents: Pair) -> None:
    first, second = two_agents
    _create(_bootstrap(*two_agents), "drained")
    statuses: list[int] = []
    acknowledged = _produce(
        _bootstrap(*two_agents), "drained", RECORDS, {RECORDS // 2: lambda: statuses.append(first.stop())}
    )
    assert (len(acknowledged), statuses) == (RECORDS, [0])
    _assert_once_in_order(_read_all(_bootstrap(second), "drained", RECORDS), RECORDS)
