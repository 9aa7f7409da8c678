"""Real clients on topics that `headrace dev` cleaned by key: all records but one go, and what ends the log stays.

A client that reads to the end (Kafka Connect, Kafka Streams and Quix Streams do) must reach it from any offset, also
over batches without records. Its position is the high watermark then, at both isolation levels, as on Apache Kafka
4.3.1 (`test_kafka_does_the_same`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.metastore.postgres.embedded import EmbeddedPostgres
from load.dev_server import DevServer
from tests.compat.clients import CLIENTS, TIMEOUT_SECONDS, Client
from tests.compat.kafka_server import kafka_server
from tests.compat.readers import (
    READERS,
    Reader,
    Readings,
    Record,
    aiokafka_from,
    confluent,
    kafka_python_from,
)
from tests.forked_cluster import ForkedCluster
from tests.java_program import run_java
from tests.kafka_clients import KafkaClients
from tests.tools import JAVA_LIBRARIES

TOPIC = "compacted"
END = 6
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.ms": "1",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "1",
}
SENT = [("a", "1"), ("b", "1"), ("a", "2"), ("b", None), ("c", "1"), ("c", None)]
LEFT = [(2, "a", "2"), (5, "c", None)]
"""The delete marker of `c` ends the log."""
CONTINUED = [(2, "a", "2"), (END, "d", "1")]
TAIL_END = 4
"""Two records, one of a transaction, and its marker."""
RECORDS, KEYS, SEED = 300, 20, 11
"""Records of a long history."""


@pytest.fixture(scope="module")
def server_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file with the server's log lines."""
    return tmp_path_factory.mktemp("log") / "lines"


@pytest.fixture(scope="module")
def cleaned(
    postgres_server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory, server_log: Path
) -> Iterator[DevServer]:
    """A server with the topic after the cleaner did its work: two records are left of six."""
    settings = {"linger.ms": 25, "log.cleaner.backoff.ms": 200, "group.initial.rebalance.delay.ms": 100}
    place = tmp_path_factory.mktemp("dev")
    with ForkedCluster(postgres_server, place, settings=settings, errors=server_log) as running:
        create(running.bootstrap, TOPIC)
        send(running.bootstrap, TOPIC, SENT)
        wait_for(running.bootstrap, TOPIC, LEFT, END)
        yield running


@pytest.fixture(scope="module")
def continued(cleaned: DevServer) -> DevServer:
    """Return the history with one more record in the topic, cleaned again: for the last tests of the module."""
    send(cleaned.bootstrap, TOPIC, [("d", "1")])
    wait_for(cleaned.bootstrap, TOPIC, CONTINUED, END + 1)
    return cleaned


def create(bootstrap: str, topic: str) -> None:
    """A topic that is cleaned as soon as it can be."""
    KafkaClients(bootstrap).create(topic, configs=CONFIGS)


def send(bootstrap: str, topic: str, records: Sequence[tuple[str, str | None]]) -> None:
    """One request each."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for key, value in records:
        producer.produce(topic, key=key, value=value)
        assert producer.flush(TIMEOUT_SECONDS) == 0


def wait_for(bootstrap: str, topic: str, left: list[Record], end: int) -> None:
    """Wait until the cleaner left these records."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while (found := confluent(bootstrap, topic, [0], end)[0]) != left:
        assert time.monotonic() < deadline, f"the topic was not cleaned: {len(found)} records, wanted {len(left)}"
        time.sleep(0.3)


def expected(left: Sequence[Record], starts: Sequence[int]) -> Readings:
    """Return what every reader must find."""
    return {start: [record for record in left if record[0] >= start] for start in starts}


@pytest.mark.requirement("L3")
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_every_offset_leads_to_the_end(reader: Reader, cleaned: DevServer) -> None:
    if reader.missing:
        pytest.skip(reader.missing)
    starts = range(END)
    assert reader.read(cleaned.bootstrap, TOPIC, starts, END) == expected(LEFT, starts)


@pytest.fixture(scope="module")
def tails(cleaned: DevServer) -> dict[str, list[Record]]:
    """Topics that end in the marker of a transaction -> the records that are left, after their cleaning."""
    left = {"commit": [(1, "a", "2"), (2, "b", "1")], "abort": [(1, "a", "2")]}
    for topic in left:
        create(cleaned.bootstrap, topic)
        write_tail(cleaned.bootstrap, topic)
    for topic, records in left.items():
        wait_for(cleaned.bootstrap, topic, records, TAIL_END)
    return left


def write_tail(bootstrap: str, topic: str) -> None:
    """Two records of a key, and a transaction of one record that is committed in the topic `commit`."""
    send(bootstrap, topic, [("a", "1"), ("a", "2")])
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(TIMEOUT_SECONDS)
    producer.begin_transaction()
    producer.produce(topic, key="b", value="1")
    assert producer.flush(TIMEOUT_SECONDS) == 0
    (producer.commit_transaction if topic == "commit" else producer.abort_transaction)(TIMEOUT_SECONDS)


@pytest.mark.requirement("L3", "L6")
@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
def test_a_position_reaches_the_high_watermark(
    cleaned: DevServer, tails: dict[str, list[Record]], isolation_level: str
) -> None:
    """Behind the marker of a transaction that was committed, and of one that was aborted and lost its records."""
    for topic in tails:
        for read in (confluent, aiokafka_from, kafka_python_from):
            assert read(cleaned.bootstrap, topic, [0], TAIL_END, isolation_level)[0] == tails[topic], (topic, read)


@pytest.mark.slow
@pytest.mark.needs("kafka")
@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
def test_kafka_does_the_same(tmp_path: Path, isolation_level: str) -> None:
    """Positions of the same clients on Apache Kafka: its active segment is never cleaned."""
    settings = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
    with kafka_server(tmp_path, settings) as bootstrap:
        for topic in ("commit", "abort"):
            create(bootstrap, topic)
            write_tail(bootstrap, topic)
            for read in (confluent, aiokafka_from, kafka_python_from):
                found = read(bootstrap, topic, [0], TAIL_END, isolation_level)[0]
                has_all = topic == "commit" or isolation_level == "read_uncommitted"
                assert [offset for offset, _, _ in found] == [0, 1, 2][: 3 if has_all else 2], (topic, read)


@pytest.mark.requirement("L2")
def test_a_record_without_a_key_is_refused(cleaned: DevServer) -> None:
    assert KafkaClients(cleaned.bootstrap).refusal(TOPIC, b"no key") == "INVALID_RECORD"


@pytest.mark.requirement("L1")
def test_a_refused_topic_config_leaves_a_warning_with_client_and_topic(cleaned: DevServer, server_log: Path) -> None:
    """Several applications do not show their users why a topic was not created."""
    admin = AdminClient({"bootstrap.servers": cleaned.bootstrap, "client.id": "an-application"})
    refused = admin.create_topics([NewTopic("state", 1, config={"cleanup.policy": "compacted"})])["state"]
    with pytest.raises(confluent_kafka.KafkaException, match="not one of compact, delete"):
        refused.result(TIMEOUT_SECONDS)
    (line,) = [line for line in server_log.read_text().splitlines() if "request refused" in line]
    assert "WARN" in line
    assert "client_id=an-application left_out=0 reason=topic state: " in line


@pytest.mark.needs("kafka-clients")
@pytest.mark.requirement("L2")
def test_a_java_producer_knows_which_record_had_no_key(cleaned: DevServer) -> None:
    program = Path(__file__).with_name("KeylessRecord.java")
    finished = run_java(program, f"{JAVA_LIBRARIES}/*", cleaned.bootstrap, TOPIC)
    assert finished.returncode == 0, finished.stderr
    first, second, third = finished.stdout.splitlines()
    assert second == "InvalidRecordException: compacted topics take no record without a key"
    assert first == third
    assert first.startswith("KafkaException: Failed to append record because it was part of a batch")


@pytest.mark.requirement("L3")
def test_every_client_reads_on_behind_the_removed_records(continued: DevServer) -> None:
    readers: list[Client] = [client for client in CLIENTS if client.missing is None]
    assert {client.name: client.consume(continued.bootstrap, TOPIC, 2) for client in readers} == {
        client.name: ["2", "1"] for client in readers
    }


@pytest.mark.requirement("L3")
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_every_offset_leads_to_the_next_record(reader: Reader, continued: DevServer) -> None:
    if reader.missing:
        pytest.skip(reader.missing)
    starts = range(END + 1)
    assert reader.read(continued.bootstrap, TOPIC, starts, END + 1) == expected(CONTINUED, starts)


@pytest.fixture(scope="module")
def history(cleaned: DevServer) -> list[Record]:
    """Return what is left of a topic with a long random history with delete markers, and a record after its
    cleaning.
    """
    rng = random.Random(SEED)
    sent = [(f"key-{rng.randrange(KEYS)}", None if rng.random() < 0.3 else str(n)) for n in range(RECORDS)]
    create(cleaned.bootstrap, "history")
    producer = confluent_kafka.Producer({"bootstrap.servers": cleaned.bootstrap, "linger.ms": 1000})
    for number, (key, value) in enumerate(sent):
        producer.produce("history", key=key, value=value)
        if rng.random() < 0.1 or number == RECORDS - 1:  # batches of about ten records
            assert producer.flush(TIMEOUT_SECONDS) == 0
    last = {key: (offset, key, value) for offset, (key, value) in enumerate(sent)}
    left = sorted(record for record in last.values() if record[2] is not None)
    send(cleaned.bootstrap, "history", [("last", "record")])
    left.append((RECORDS, "last", "record"))
    wait_for(cleaned.bootstrap, "history", left, RECORDS + 1)
    return left


@pytest.mark.slow
@pytest.mark.requirement("L3")
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_every_offset_of_a_long_history(reader: Reader, cleaned: DevServer, history: list[Record]) -> None:
    if reader.missing:
        pytest.skip(reader.missing)
    starts = range(0, RECORDS + 1, 20 if reader.needs_last_record else 1)  # a group for each start takes long
    assert reader.read(cleaned.bootstrap, "history", starts, RECORDS + 1) == expected(history, starts)
