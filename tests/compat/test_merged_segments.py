"""`headrace dev` merges files, and a plain consumer reads what happened in both lifecycle topics."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import psycopg
import pytest

from headrace.metastore.api.agents import SEGMENT_KEYS
from headrace.metastore.api.segment_states import RemoteSegmentKey, parse_key
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.segment_logs.projection import Projection, StreamRecord
from headrace.metastore.segment_logs.records import RemoteLogSegmentMetadataUpdateRecord, decode
from headrace.metastore.segment_logs.topics import AUDIT_TOPIC, REMOTE_LOG_TOPIC
from load.dev_server import DevServer
from tests.forked_cluster import ForkedCluster
from tests.kafka_clients import KafkaClients

TIMEOUT_SECONDS = 300
TOPIC = "orders"
RECORDS = 60


@pytest.fixture(scope="module")
def server(postgres_server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    settings = {
        "compaction.interval.ms": 500,
        "compaction.min.age.ms": 0,
        "compaction.max.age.ms": 1_000,
        "linger.ms": 5,
    }
    with ForkedCluster(postgres_server, tmp_path_factory.mktemp("dev"), settings=settings) as running:
        with psycopg.connect(running.metastore_url) as connection:
            connection.execute("INSERT INTO features VALUES (%s, 1, 1) ON CONFLICT DO NOTHING", (SEGMENT_KEYS,))
        clients = KafkaClients(running.bootstrap, {"linger.ms": 0})
        clients.create(TOPIC)
        clients.produce(TOPIC, [b"record %d" % number for number in range(RECORDS)], one_by_one=True)
        yield running


def read_whole(server: DevServer, topic: str) -> list[StreamRecord]:
    """Every partition from its start to its end as of now, by assignment."""
    found = KafkaClients(server.bootstrap).read_to_end(topic, 50)
    return [StreamRecord(m.offset(), m.timestamp()[1], m.key(), m.value()) for m in found]


@pytest.mark.requirement("R12", "R1", "R9")
def test_a_plain_consumer_reads_what_was_merged(server: DevServer) -> None:
    until = time.monotonic() + TIMEOUT_SECONDS
    while True:
        state = Projection()
        for record in read_whole(server, REMOTE_LOG_TOPIC):
            state.apply(record, is_compacted=True)
        live = [segment for segment in state.segments.values() if segment.is_readable]
        if live:
            break
        assert time.monotonic() < until, "nothing was merged"
        time.sleep(0.5)
    changes = [decode(record.value).record for record in read_whole(server, AUDIT_TOPIC) if record.value is not None]
    assert {segment.segment_id for segment in live} <= {
        change.remote_log_segment_id.id
        for change in changes
        if isinstance(change, RemoteLogSegmentMetadataUpdateRecord) and change.remote_log_segment_state == 1
    }
    for record in read_whole(server, REMOTE_LOG_TOPIC):
        key = parse_key(record.key or b"")
        assert isinstance(key, RemoteSegmentKey)
        if record.value is not None:
            value = decode(record.value).record
            if isinstance(value, RemoteLogSegmentMetadataUpdateRecord):
                facts = json.loads(value.custom_metadata or b"{}")
                assert 0 <= facts["startOffset"] <= key.end_offset < RECORDS
                assert value.remote_log_segment_id.topic_id_partition.name == TOPIC
