"""X10: an agent with 720 hours in its file, and a compactor with the default of 168 hours, as real processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from headrace.cli.main import main
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from tests.agent_process import AgentUnderTest
from tests.waiting import until

pytestmark = [
    pytest.mark.requirement("X10"),
]
HOUR_MS = 3_600_000
AGE_MS = 400 * HOUR_MS
"""Age in ms of all records here."""
WITHIN_SECONDS = 300
KEPT, SHORT = "kept", "short"


class UnequalProcesses:
    """One cluster, new and without values; its two processes are started by the tests."""

    def __init__(self, url: str, bucket: Path) -> None:
        self.flags = ["--metastore-url", url, "--bucket", bucket.as_uri(), "--log-level", "warning"]
        self.url, self.bucket = url, bucket

    def agent(self) -> AgentUnderTest:
        return AgentUnderTest(
            {
                "metastore.url": self.url,
                "bucket": self.bucket.as_uri(),
                "log.level": "warning",
                "node.id": 1,
                "linger.ms": 5,
                "log.retention.hours": 720,
                "log.retention.check.interval.ms": 200,
                "broker.session.timeout.ms": 2_000,
            }
        )

    @contextmanager
    def compactor(self, *command: str) -> Iterator[str]:
        """Its HTTP address. Its file differs from the agent's in the retention only."""
        words = command or ("headrace.cli.main", "compactor")
        own = ["--http-port", "0", "--log-retention-check-interval-ms", "200", "--broker-session-timeout-ms", "2000"]
        process = subprocess.Popen([sys.executable, "-m", *words, *self.flags, *own], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready "), line
            yield line.split("http=")[1].split()[0]
        finally:
            process.kill()  # a crash: its report stays for a minute
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def configs(self, kafka: str, *words: str) -> None:
        assert main(["configs", *words, "--brokers", "--bootstrap-server", kafka]) == 0


@pytest.fixture
def cluster(postgres_server: EmbeddedPostgres, tmp_path: Path) -> Iterator[UnequalProcesses]:
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE unequal")
        made = UnequalProcesses(postgres_server.url("unequal"), tmp_path)
        assert main(["storage", "format", "-t", "3Db5QLSqSZieL3rJBUUegA", *made.flags[:4]]) == 0
        yield made
        connection.execute("DROP DATABASE unequal WITH (FORCE)")


def produce(kafka: str, topic: str) -> None:
    """Ten records that are AGE_MS old."""
    producer = Producer({"bootstrap.servers": kafka})
    for number in range(10):
        producer.produce(topic, str(number), partition=0, timestamp=time.time_ns() // 1_000_000 - AGE_MS)
    assert producer.flush(WITHIN_SECONDS) == 0


def log_start(kafka: str, topic: str) -> int:
    partition = TopicPartition(topic, 0)
    wanted = {partition: OffsetSpec.earliest()}  # type: ignore[no-untyped-call]
    admin = AdminClient({"bootstrap.servers": kafka})
    return int(admin.list_offsets(wanted)[partition].result().offset)


def until_log_start(kafka: str, topic: str, offset: int) -> None:
    until(lambda: log_start(kafka, topic) == offset, f"log start of {topic}: wanted={offset}")


def pass_retention(kafka: str, already: int) -> int:
    """Two whole runs of retention: a topic with another retention loses its records twice. How many it has had."""
    for _ in range(2):
        produce(kafka, SHORT)
        already += 10
        until_log_start(kafka, SHORT, already)
    return already


def fill(kafka: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka})
    # it has both limits itself: retention runs for it without the cluster's values
    own = {"retention.ms": str(HOUR_MS), "retention.bytes": "1000000000"}
    for future in admin.create_topics([NewTopic(KEPT, 1), NewTopic(SHORT, 1, config=own)]).values():
        future.result()
    produce(kafka, KEPT)


def readyz(address: str) -> Sequence[str]:
    with urllib.request.urlopen(f"http://{address}/readyz") as answer:
        return json.load(answer).get("warnings", [])


@pytest.mark.slow
def test_a_compactor_with_another_retention_deletes_nothing_of_the_agents(cluster: UnequalProcesses) -> None:
    with cluster.agent() as agent, cluster.compactor() as http:
        fill(agent.kafka)
        passed = pass_retention(agent.kafka, 0)
        assert log_start(agent.kafka, KEPT) == 0, "168 hours are the compactor's file's, 720 the agent's"
        deadline = time.monotonic() + WITHIN_SECONDS
        while not (told := [line for line in readyz(http) if "setting=log.retention.ms" in line]):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert "604800000=[" in told[0]
        assert "2592000000=[" in told[0]

        cluster.configs(agent.kafka, "set", f"log.retention.ms={720 * HOUR_MS}")
        passed = pass_retention(agent.kafka, passed)
        assert log_start(agent.kafka, KEPT) == 0
        agent.kill()
    with cluster.agent() as agent, cluster.compactor():
        passed = pass_retention(agent.kafka, passed)
        assert log_start(agent.kafka, KEPT) == 0, "the value is there after both processes crashed"
        cluster.configs(agent.kafka, "set", f"log.retention.ms={168 * HOUR_MS}")
        until_log_start(agent.kafka, KEPT, 10)


@pytest.mark.slow
def test_a_planted_bug_is_caught_a_worker_that_reads_its_own_file(cluster: UnequalProcesses) -> None:
    with cluster.agent() as agent, cluster.compactor("tests.faults.own_file_compactor"):
        fill(agent.kafka)
        pass_retention(agent.kafka, 0)
        assert log_start(agent.kafka, KEPT) == 10, "the test above sees what this worker deletes"
