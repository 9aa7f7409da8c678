"""Small files in real processes: acknowledged without a PUT, moved while they are read, an agent killed (X13).

Fault model: SIGKILL of one of two agents that write, move and merge. Clients are librdkafka's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import psycopg
import pytest

from headrace.cli.main import main
from tests.agent_process import AgentUnderTest
from tests.faults.test_two_agents import PARTITIONS, _bootstrap, _create, _produce
from tests.kafka_clients import KafkaClients
from tests.waiting import until

pytestmark = pytest.mark.requirement("X13")
ONE_BY_ONE = 200
RECORDS = 3_000
LOW_LATENCY = {"low.latency.enable": True, "low.latency.move.ms": 500}


@pytest.fixture
def agents(agent_settings: dict[str, object]) -> Iterator[tuple[AgentUnderTest, AgentUnderTest]]:
    settings = agent_settings | LOW_LATENCY
    with AgentUnderTest(settings) as first, AgentUnderTest(settings) as second:
        yield first, second


def counted(url: str, query: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])


def test_a_lone_producer_never_waits_for_linger_or_the_bucket(
    agents: tuple[AgentUnderTest, AgentUnderTest], metastore_url: str
) -> None:
    """From the start of an agent on; and all of it is in the bucket a little later."""
    first, _ = agents
    until(lambda: counted(metastore_url, "SELECT count(*) FROM inline_slots WHERE state = 1"))
    clients = KafkaClients(first.kafka)
    clients.create("lone", PARTITIONS)
    values = [f"value-{number}" for number in range(ONE_BY_ONE)]
    clients.produce("lone", values, PARTITIONS, one_by_one=True)
    flushes = {
        reason: sum(agent.metric("headrace_produce_flushes_total", reason=reason) for agent in agents)
        for reason in ("linger", "idle", "clients_wait", "ready")
    }
    assert flushes["ready"] >= ONE_BY_ONE * 0.9, flushes
    assert flushes["linger"] == 0, flushes
    assert sum(agent.metric("headrace_produce_inline_bytes_total") for agent in agents) > 0
    assert sorted(m.value().decode() for m in clients.read("lone", ONE_BY_ONE, PARTITIONS)) == sorted(values)
    until(lambda: not counted(metastore_url, "SELECT count(*) FROM extents WHERE is_inline(file_id)"))
    until(lambda: not counted(metastore_url, "SELECT count(*) FROM inline_files"))
    read = KafkaClients(first.kafka).read("lone", ONE_BY_ONE, PARTITIONS)
    assert sorted(message.value().decode() for message in read) == sorted(values)


def test_an_agent_that_writes_and_moves_is_killed_and_every_record_is_there_once(
    agents: tuple[AgentUnderTest, AgentUnderTest], metastore_url: str, agent_settings: dict[str, object]
) -> None:
    first, second = agents
    _create(_bootstrap(first, second), "moved")
    acknowledged = _produce(_bootstrap(first, second), "moved", RECORDS, {RECORDS // 2: first.kill})
    assert len(acknowledged) == RECORDS
    until(lambda: not counted(metastore_url, "SELECT count(*) FROM extents WHERE is_inline(file_id)"))
    read = [message.value().decode() for message in KafkaClients(second.kafka).read_to_end("moved", PARTITIONS)]
    assert Counter(read) == Counter(str(number) for number in range(RECORDS))
    flags = [f"--{name.replace('.', '-')}={value}" for name, value in agent_settings.items() if "." in name]
    assert main(["audit", "--deep", *flags, f"--bucket={agent_settings['bucket']}"]) == 0
