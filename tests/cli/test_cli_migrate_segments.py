"""`headrace segments migrate` on a topic of a running cluster, and on Kafka's own records in a log file."""

from __future__ import annotations

import random
from pathlib import Path

import confluent_kafka
import pytest

from headrace.cli.main import main
from headrace.metastore.segment_logs.migration import replay
from headrace.metastore.segment_logs.projection import StreamRecord
from headrace.storage.records.codec import Record, encode_batch
from load.dev_server import DevServer
from tests.cli.command_lines import Run
from tests.kafka_clients import KafkaClients
from tests.metastore.segment_logs.legacy_topic import LegacyTopic
from tests.metastore.segment_logs.test_records import golden

TOPIC = "legacy_remote_log_metadata"
TIMEOUT_SECONDS = 300
pytestmark = pytest.mark.requirement("R10")


def produce(server: DevServer, records: list[StreamRecord]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": server.bootstrap})
    for record in records:
        producer.produce(TOPIC, record.value, record.key, partition=1)
    assert producer.flush(TIMEOUT_SECONDS) == 0


def read_all(server: DevServer, first: int, count: int) -> list[StreamRecord]:
    found = KafkaClients(server.bootstrap).read_partition(TOPIC, 1, first)
    assert len(found) == count
    return [StreamRecord(m.offset(), m.timestamp()[1], m.key(), m.value()) for m in found]


def refusal(server: DevServer, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert main(["segments", "migrate", "--topic", TOPIC, *flags, "-b", server.bootstrap]) == 1
    return capsys.readouterr().err


def test_the_plan_of_the_kip_step_by_step(server: DevServer, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run("topics", "create", TOPIC, "--partitions", "2", "--set", "retention.ms=-1")
    legacy = LegacyTopic(random.Random(3))
    legacy.write_some(40, new=0)
    produce(server, legacy.records)
    live = replay(legacy.records).live()
    (status,) = run("segments", "migrate", "--topic", TOPIC)
    assert status == {
        "partition": 1,
        "records": len(legacy.records),
        "unkeyed": len(legacy.records),
        "live": len(live),
        "live_unkeyed": len(live),
        "lost": 0,
    }
    assert "set a finite retention.ms" in refusal(server, capsys, "--rekey")
    assert "live segments have no key yet" in refusal(server, capsys, "--compact")
    run("configs", "set", "--topic", TOPIC, "retention.ms=3600000")
    written = run("segments", "migrate", "--topic", TOPIC, "--rekey")["records"]
    assert written >= len(live)
    assert run("segments", "migrate", "--topic", TOPIC, "--rekey")["records"] == 0
    whole = read_all(server, 0, len(legacy.records) + written)
    assert replay(whole).live() == live
    assert "records without a key are left" in refusal(server, capsys, "--compact")
    run("records", "delete", TOPIC, "--partition", "1", "--before-offset", str(len(legacy.records)), "--yes")
    done = run("segments", "migrate", "--topic", TOPIC, "--compact")
    assert "cleanup.policy" in done["configs"]
    configs = {row["config"]: row["value"] for row in run("configs", "describe", "--topic", TOPIC)}
    assert configs["cleanup.policy"] == "compact"
    left = read_all(server, len(legacy.records), written)
    assert all(record.key is not None for record in left)
    assert replay(left).live() == live


def test_a_log_file_of_kafka_is_shown(tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    values = [bytes.fromhex(value) for name, value, _ in golden("lifecycle_v0.tsv") if name in ("segment", "update_1")]
    file = tmp_path / "00000000000000000000.log"
    file.write_bytes(encode_batch([Record(n, 5, None, value) for n, value in enumerate(values)], base_offset=0))
    (row,) = run("segments", "migrate", "--files", str(file))
    assert (row["partition"], row["unkeyed"], row["live"], row["live_unkeyed"]) == (str(file), 2, 1, 1)
    assert main(["segments", "migrate", "--files", str(file), "--rekey", "-b", "127.0.0.1:1"]) == 1
    assert "files are only read" in capsys.readouterr().err
    assert main(["segments", "migrate", "--files", str(tmp_path / "none")]) == 1
    assert "cannot read" in capsys.readouterr().err
