"""Small files in real processes: acknowledged without a PUT, moved while they are read, an agent killed (X13).

Fault model: SIGKILL of one of two agents that write, move and merge. Clients are librdkafka's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from headrace.cli.main import main
from tests.agent_process import AgentUnderTest
from tests.faults.test_two_agents import PARTITIONS, _bootstrap, _create, _produce
from tests.kafka_clients import KafkaClients
from tests.seeds import seeds
from tests.waiting import until

pytestmark = pytest.mark.requirement("X13")
EVERYDAY = 600
"""Records; with more, the test also waits until the slots are emptied, which takes more than ten seconds."""
Session = psycopg.Connection[tuple[Any, ...]]
LOW_LATENCY = {"low.latency.enable": True, "low.latency.move.ms": 500}


@pytest.fixture
def agents(agent_settings: dict[str, object]) -> Iterator[tuple[AgentUnderTest, AgentUnderTest]]:
    settings = agent_settings | LOW_LATENCY
    with AgentUnderTest(settings) as first, AgentUnderTest(settings) as second:
        yield first, second


@pytest.fixture
def metastore_session(metastore_url: str) -> Iterator[Session]:
    """One for all questions: a new one costs more than a question."""
    with psycopg.connect(metastore_url, autocommit=True) as connection:
        yield connection


def counted(session: Session, query: str) -> int:
    row = session.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("records", seeds([EVERYDAY], [3_000]))
def test_small_files_of_real_clients(
    agents: tuple[AgentUnderTest, AgentUnderTest],
    metastore_session: Session,
    agent_settings: dict[str, object],
    records: int,
) -> None:
    """Both on the same two agents, which take seconds to start."""
    _a_lone_producer_never_waits_for_linger_or_the_bucket(agents, metastore_session, records // 10)
    if records > EVERYDAY:
        until(lambda: not counted(metastore_session, "SELECT count(*) FROM inline_files"))
    _an_agent_that_writes_and_moves_is_killed_and_every_record_is_there_once(agents, metastore_session, records)
    flags = [f"--{name.replace('.', '-')}={value}" for name, value in agent_settings.items() if "." in name]
    assert main(["audit", "--deep", *flags, f"--bucket={agent_settings['bucket']}"]) == 0


def _a_lone_producer_never_waits_for_linger_or_the_bucket(
    agents: tuple[AgentUnderTest, AgentUnderTest], session: Session, count: int
) -> None:
    """Find that so from the start of an agent on, and all records in the bucket a little later."""
    first, _ = agents
    until(lambda: counted(session, "SELECT count(*) FROM inline_slots WHERE state = 1"))
    clients = KafkaClients(first.kafka)
    clients.create("lone", PARTITIONS)
    values = [f"value-{number}" for number in range(count)]
    clients.produce("lone", values, PARTITIONS, one_by_one=True)
    flushes = {
        reason: sum(agent.metric("headrace_produce_flushes_total", reason=reason) for agent in agents)
        for reason in ("linger", "idle", "clients_wait", "ready")
    }
    assert flushes["ready"] >= count * 0.9, flushes
    assert flushes["linger"] == 0, flushes
    assert sum(agent.metric("headrace_produce_inline_bytes_total") for agent in agents) > 0
    assert sorted(m.value().decode() for m in clients.read("lone", count, PARTITIONS)) == sorted(values)
    until(lambda: not counted(session, "SELECT count(*) FROM extents WHERE is_inline(file_id)"))
    read = KafkaClients(first.kafka).read("lone", count, PARTITIONS)
    assert sorted(message.value().decode() for message in read) == sorted(values)


def _an_agent_that_writes_and_moves_is_killed_and_every_record_is_there_once(
    agents: tuple[AgentUnderTest, AgentUnderTest], session: Session, count: int
) -> None:
    first, second = agents
    _create(_bootstrap(first, second), "moved")
    acknowledged = _produce(_bootstrap(first, second), "moved", count, {count // 2: first.kill})
    assert len(acknowledged) == count
    until(lambda: not counted(session, "SELECT count(*) FROM extents WHERE is_inline(file_id)"))
    read = [message.value().decode() for message in KafkaClients(second.kafka).read_to_end("moved", PARTITIONS)]
    assert Counter(read) == Counter(str(number) for number in range(count))
