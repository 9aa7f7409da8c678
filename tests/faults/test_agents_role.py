"""An agent with the role of deploy/postgres/agent-role.sql in Postgres writes, reads, merges and deletes."""

from __future__ import annotations

import time
import urllib.request
from urllib.parse import urlsplit

import pytest
from confluent_kafka.admin import AdminClient

from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.migrate import migrate
from tests.agent_process import SECONDS_MAX, AgentUnderTest
from tests.kafka_clients import KafkaClients
from tests.metastore.test_secure_connections import agents_role

__all__ = ["agents_role"]
RECORDS = 40


@pytest.mark.requirement("X2")
def test_an_agent_does_all_its_work_with_the_role(
    agents_role: str, agent_settings: dict[str, object], postgres_server: EmbeddedPostgres, metastore_url: str
) -> None:
    database = urlsplit(metastore_url).path.lstrip("/")
    url = f"postgresql://{agents_role}:first@127.0.0.1:{postgres_server.port}/{database}"
    with AgentUnderTest(agent_settings | {"metastore.url": url, "group.initial.rebalance.delay.ms": 0}) as agent:
        admin = AdminClient({"bootstrap.servers": agent.kafka})
        clients = KafkaClients(agent.kafka, {"enable.idempotence": True})
        for topic in ("orders", "gone"):
            clients.create(topic, 2)
        clients.produce("orders", range(RECORDS), 2, one_by_one=True)
        migrate(metastore_url)  # the owner, while the agent runs
        found = KafkaClients(agent.kafka).read_in_group("orders", RECORDS, "readers")
        assert sorted(int(message.value() or b"") for message in found) == list(range(RECORDS))
        for deleted in admin.delete_topics(["gone"]).values():
            deleted.result(SECONDS_MAX)
        until = time.monotonic() + SECONDS_MAX
        while not _merged(agent) and time.monotonic() < until:
            time.sleep(0.1)
        assert _merged(agent)


def _merged(agent: AgentUnderTest) -> float:
    """Files that compaction merged."""
    with urllib.request.urlopen(f"http://{agent.http}/metrics", timeout=SECONDS_MAX) as response:
        lines = response.read().decode().splitlines()
    wanted = "headrace_compaction_input_files_total"
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(wanted))
