"""Compaction in real processes while a producer writes: an agent that merges is killed, and nothing is lost or doubled.

Fault model: SIGKILL of one of two agents that merge as fast as files come. Clients are librdkafka's.
"""

from __future__ import annotations

import time
from collections import Counter

import confluent_kafka
import psycopg
import pytest

from tests.agent_process import AgentUnderTest
from tests.confluent_records import consume
from tests.faults.test_two_agents import PARTITIONS, _bootstrap, _create, _produce

RECORDS = 4_000
SECONDS_MAX = 300
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
    deadline = time.monotonic() + SECONDS_MAX
    with psycopg.connect(url, autocommit=True) as connection:
        while True:
            levels = dict(connection.execute(LEVELS).fetchall())
            if levels.get(0, 0) <= 1 and not levels.get(1, 0):
                return
            assert time.monotonic() < deadline, levels
            time.sleep(0.2)


def _read_all(bootstrap: str) -> list[str]:
    """Every value of the topic, from its beginning, per partition in rising offsets."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "x", "enable.auto.commit": False})
    consumer.assign([confluent_kafka.TopicPartition("merged", p, 0) for p in range(PARTITIONS)])
    ends = {
        p: consumer.get_watermark_offsets(confluent_kafka.TopicPartition("merged", p), SECONDS_MAX)[1]
        for p in range(PARTITIONS)
    }
    at = dict.fromkeys(ends, 0)
    values = []
    deadline = time.monotonic() + SECONDS_MAX
    while at != ends:
        assert time.monotonic() < deadline, (at, ends)
        for message in consume(consumer, 1_000, 0.5):
            assert message.offset() == at[message.partition()], "an offset is missing or comes twice"
            at[message.partition()] += 1
            values.append(message.value().decode())
    consumer.close()
    return values
