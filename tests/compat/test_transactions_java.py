"""Transactions as Kafka's own Java client and kafka-transactions.sh know them: with another epoch for each (KIP-890).

Fault model: a producer that is not the only one with its transactional id, one that hangs, and a new life of the
metastore, which forgets all transactional ids.
"""

from __future__ import annotations

import base64
import re
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException

from load.dev_server import DevServer
from tests.compat.test_transactions import TIMEOUT_SECONDS, a_producer, send, values
from tests.kafka_clients import KafkaClients
from tests.tools import JAVA_LIBRARIES, KAFKA_JARS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.needs("java"),
]
HERE = Path(__file__).parent
TOOL = "org.apache.kafka.tools.TransactionsCommand"


class Lines:
    """A Java program that answers each line with a line."""

    def __init__(self, jars: Path, source: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*", str(HERE / source), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().rstrip("\n")

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(TIMEOUT_SECONDS)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def java(server: DevServer) -> Iterator[Lines]:
    client = Lines(JAVA_LIBRARIES, "TransactionalClient.java", server.bootstrap)
    yield client
    client.close()


@pytest.fixture(scope="module")
def tool(server: DevServer) -> Iterator[Lines]:
    client = Lines(KAFKA_JARS, "KafkaTools.java")
    yield client
    client.close()


@pytest.fixture
def name() -> str:
    """Return the name of a topic, and of a transactional id."""
    return f"java-{uuid.uuid4()}"


def printed(server: DevServer, tool: Lines, *arguments: str) -> str:
    """Return what is printed by kafka-transactions.sh, which succeeds."""
    answer = tool.ask("\t".join([TOOL, "--bootstrap-server", server.bootstrap, *arguments]))
    status, _, text = answer.partition(" ")
    said = base64.b64decode(text).decode()
    assert status == "0", said
    return said


def new_life(server: DevServer) -> None:
    """Do what a new life does to transactions (metastore/postgres/life)."""
    with psycopg.connect(server.metastore_url) as connection:
        connection.execute("SELECT forget_transactions()")


def test_java_commits_aborts_and_fences(server: DevServer, java: Lines, name: str) -> None:
    for line in (
        f"init {name} 60000",
        f"send {name} {name} 1 2",
        f"commit {name}",
        f"send {name} {name} aborted",
        f"abort {name}",
        f"send {name} {name} 3",
        f"offsets {name} {name}-group {name} 7",
        f"commit {name}",
    ):
        assert java.ask(line) == "ok", line
    assert java.ask(f"read {name} 3 read_committed") == "ok 1 2 3"
    assert java.ask(f"read {name} 4 read_uncommitted") == "ok 1 2 aborted 3"
    assert java.ask(f"send {name} {name} zombie") == "ok"
    successor = a_producer(server, name)
    assert java.ask(f"commit {name}") in ("ProducerFencedException", "InvalidProducerEpochException")
    send(successor, name, "heir")
    successor.commit_transaction(TIMEOUT_SECONDS)
    assert values(server, name, 4) == ["1", "2", "3", "heir"]
    with KafkaClients(server.bootstrap).consumer({"group.id": f"{name}-group"}) as group:
        (committed,) = group.committed([confluent_kafka.TopicPartition(name, 0)], TIMEOUT_SECONDS)
        assert committed.offset == 7


def test_java_is_fenced_when_it_takes_too_long(server: DevServer, java: Lines, name: str) -> None:
    assert java.ask(f"init {name} 1000") == "ok"
    assert java.ask(f"send {name} {name} late") == "ok"
    other = a_producer(server, f"{name}-other")
    send(other, name, "in time")
    other.commit_transaction(TIMEOUT_SECONDS)
    assert values(server, name, 1) == ["in time"]  # waits until the late one is aborted
    assert java.ask(f"commit {name}") in ("ProducerFencedException", "InvalidProducerEpochException")


def test_kafkas_tool_finds_and_aborts_what_hangs(server: DevServer, java: Lines, tool: Lines, name: str) -> None:
    assert java.ask(f"init {name} 60000") == "ok"
    for _ in range(2):
        assert java.ask(f"send {name} {name} before") == "ok"
        assert java.ask(f"commit {name}") == "ok"
    assert java.ask(f"send {name} {name} hangs") == "ok"
    listed = [line.split() for line in printed(server, tool, "list").splitlines() if name in line]
    assert [(each[0], each[3]) for each in listed] == [(name, "Ongoing")], "once, though there are two agents"
    described = printed(server, tool, "describe", "--transactional-id", name)
    assert re.search(rf"{name}\s+\d\s+Ongoing\s+60000\b", described) or "Ongoing" in described, described
    producers = printed(server, tool, "describe-producers", "--topic", name, "--partition", "0").splitlines()
    (producer,) = [line.split() for line in producers[1:]]
    assert (producer[1], producer[-1]) == ("2", "4"), "the third epoch; two records, each with a marker, are before it"
    assert name not in printed(server, tool, "find-hanging", "--broker-id", str(server.agents[0].node_id))
    printed(server, tool, "abort", "--topic", name, "--partition", "0", "--start-offset", "4")
    assert java.ask(f"commit {name}") in ("ProducerFencedException", "InvalidProducerEpochException")
    assert values(server, name, 2) == ["before", "before"]
    (state,) = [line.split()[3] for line in printed(server, tool, "list").splitlines() if name in line]
    assert state == "CompleteAbort"


def test_after_a_new_life_java_begins_with_another_producer(server: DevServer, java: Lines, name: str) -> None:
    """As after transactional.id.expiration.ms of Kafka: the error is fatal."""
    assert java.ask(f"init {name} 60000") == "ok"
    assert java.ask(f"send {name} {name} lost") == "ok"
    new_life(server)
    assert java.ask(f"commit {name}") == "InvalidPidMappingException"
    assert java.ask(f"abort {name}") != "ok"
    for line in (f"forget {name}", f"init {name} 60000", f"send {name} {name} kept", f"commit {name}"):
        assert java.ask(line) == "ok", line
    assert java.ask(f"read {name} 1 read_committed") == "ok kept"


@pytest.mark.parametrize("is_open", [True, False])
def test_after_a_new_life_librdkafka_goes_on_when_it_has_aborted(server: DevServer, name: str, is_open: bool) -> None:
    producer = a_producer(server, name)
    send(producer, name, "before")
    producer.commit_transaction(TIMEOUT_SECONDS)
    if is_open:
        send(producer, name, "lost")
    new_life(server)
    if not is_open:
        producer.begin_transaction()
        producer.produce(name, "lost", partition=0)
        producer.flush(TIMEOUT_SECONDS)
    with pytest.raises(KafkaException) as caught:
        producer.commit_transaction(TIMEOUT_SECONDS)
    error: KafkaError = caught.value.args[0]
    assert error.txn_requires_abort()
    producer.abort_transaction(TIMEOUT_SECONDS)
    send(producer, name, "after")
    producer.commit_transaction(TIMEOUT_SECONDS)
    assert values(server, name, 2) == ["before", "after"]
