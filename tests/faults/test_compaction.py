"""Compaction in real processes while a producer writes: an agent that merges is killed, and nothing is lost or doubled.

Fault model: SIGKILL of one of two agents that merge as fast as files come. Clients are librdkafka's.
"""

from __future__ import annotations

from collections import Counter

import psycopg
import pytest

from tests.agent_process import AgentUnderTest
from tests.faults.test_two_agents import PARTITIONS, _bootstrap, _create, _produce
from tests.kafka_clients import KafkaClients
from tests.waiting import until

RECORDS = 4_000
LEVELS = "SELECT level, count(*) FROM segment_files WHERE state = 0 AND dead_at IS NULL GROUP BY level"


@pytest.mark.requirement("W10", "W13")
def test_an_agent_that_merges_is_killed_and_every_record_is_there_once(
    agent_settings: dict[str, object], metastore_url: str
) -> None:
    with AgentUnderTest(agent_settings) as first, AgentUnderTest(agent_settings) as second:
        _create(_bootstrap(first, second), "merged")
        kills = {RECORDS // 2: first.kill}
        acknowledged = _produce(_bootstrap(first, second), "merged", RECORDS, kills)
        assert len(acknowledged) == RECORDS
        _until_merged(metastore_url)
        read = _read_all(second.kafka)
    assert Counter(read) == Counter(str(n) for n in range(RECORDS))


def _until_merged(url: str) -> None:
    """Every live file was merged upwards, although one worker crashed: its leases expired."""
    with psycopg.connect(url, autocommit=True) as connection:

        def are_merged() -> bool:
            levels = dict(connection.execute(LEVELS).fetchall())
            return levels.get(0, 0) <= 1 and not levels.get(1, 0)

        until(are_merged)


def _read_all(bootstrap: str) -> list[str]:
    """Every value of the topic, from its beginning, per partition in rising offsets."""
    at: Counter[int] = Counter()
    values = []
    for message in KafkaClients(bootstrap).read_to_end("merged", PARTITIONS):
        assert message.offset() == at[message.partition()], "an offset is missing or comes twice"
        at[message.partition()] += 1
        values.append(message.value().decode())
    return values
