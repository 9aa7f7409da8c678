"""Two agents in two zones and a client of one: no data byte is served by the other, while both live.

librdkafka says its zone with client.rack (KIP-392) or with a `zone=` element of client.id.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.agent_process import AgentUnderTest, until_told
from tests.kafka_clients import KafkaClients

RECORDS = 300
PARTITIONS = 6
SECONDS_MAX = 300
PATIENT = {"broker.session.timeout.ms": 30_000}
"""A pause of the machine fences no agent: clients would go to the other zone, as they should."""


@pytest.fixture
def zones(agent_settings: dict[str, object]) -> Iterator[tuple[AgentUnderTest, AgentUnderTest]]:
    settings = agent_settings | PATIENT
    own = {"broker.rack": "zone-a"}, {"broker.rack": "zone-b"}
    with AgentUnderTest(settings | own[0]) as here, AgentUnderTest(settings | own[1]) as there:
        yield here, there


def _bytes(agent: AgentUnderTest, name: str) -> float:
    with urllib.request.urlopen(f"http://{agent.http}/metrics", timeout=SECONDS_MAX) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def _traffic(path: str, zone: str) -> str:
    return f'headrace_zone_traffic_bytes_total{{path="{path}",zone="{zone}"}}'


def _create(agents: tuple[AgentUnderTest, AgentUnderTest]) -> str:
    """Returns the address of both, each of which knows the topic and the other's zone."""
    bootstrap = ",".join(agent.kafka for agent in agents)
    admin = AdminClient({"bootstrap.servers": bootstrap})  # kept until the answer is there
    admin.create_topics([NewTopic("t", PARTITIONS)])["t"].result(SECONDS_MAX)
    until_told(agents, "t")
    return bootstrap


def _produce(bootstrap: str, client_id: str) -> None:
    KafkaClients(bootstrap, {"client.id": client_id}).produce("t", [b"x" * 100] * RECORDS, PARTITIONS)


def _consume(bootstrap: str, settings: dict[str, str]) -> int:
    return len(KafkaClients(bootstrap, settings).read("t", RECORDS, PARTITIONS))


@pytest.mark.requirement("W15")
@pytest.mark.parametrize(
    "settings", [{"client.rack": "zone-b"}, pytest.param({"client.id": "readers,zone=zone-b"}, marks=pytest.mark.slow)]
)
def test_a_consumer_reads_in_its_own_zone(
    zones: tuple[AgentUnderTest, AgentUnderTest], settings: dict[str, str]
) -> None:
    here, there = zones
    bootstrap = _create(zones)
    _produce(bootstrap, "writers,zone=zone-b")
    assert _consume(bootstrap, settings) == RECORDS
    assert _bytes(here, "headrace_fetch_bytes_total") == 0
    assert _bytes(there, "headrace_fetch_bytes_total") > RECORDS * 100
    for path in ("produce", "fetch"):
        assert [_bytes(agent, _traffic(path, "other")) for agent in zones] == [0, 0]


@pytest.mark.slow
@pytest.mark.requirement("W15")
def test_bytes_of_clients_that_state_no_zone_are_shown_as_unknown(
    zones: tuple[AgentUnderTest, AgentUnderTest],
) -> None:
    """Both agents serve them; no byte counts as of this or of another zone, and none is left out."""
    bootstrap = _create(zones)
    _produce(bootstrap, "writers")
    assert _consume(bootstrap, {}) == RECORDS
    for path, least in (("produce", RECORDS * 100), ("fetch", RECORDS * 100)):
        counted = {
            zone: sum(_bytes(agent, _traffic(path, zone)) for agent in zones) for zone in ("same", "other", "unknown")
        }
        assert counted["same"] == counted["other"] == 0
        assert counted["unknown"] > least
    assert sum(_bytes(agent, _traffic("fetch", "unknown")) for agent in zones) == sum(
        _bytes(agent, "headrace_fetch_bytes_total") for agent in zones
    )


@pytest.mark.requirement("W15")
def test_a_zone_that_lost_its_agent_is_served_elsewhere(zones: tuple[AgentUnderTest, AgentUnderTest]) -> None:
    here, there = zones
    bootstrap = _create(zones)
    _produce(bootstrap, "writers,zone=zone-b")
    assert there.stop() == 0
    assert _consume(bootstrap, {"client.rack": "zone-b"}) == RECORDS
    assert _bytes(here, "headrace_fetch_bytes_total") > RECORDS * 100
