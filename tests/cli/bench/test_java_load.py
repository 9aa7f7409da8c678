"""Kafka's load generator: its command line, its last line, how many records a run has; and a real run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli.bench.kafka_target import cluster_properties, find_jars
from headrace.cli.bench.loads import (
    PerformanceTotals,
    long_enough,
    next_records,
    parse_totals,
    performance_command,
)
from headrace.cli.bench.rows import JavaProduce
from headrace.cli.main import main
from headrace.config.errors import ConfigError
from headrace.storage.errors import UnavailableError
from tests.tools import KAFKA_JARS

PRINTED = """\
SLF4J: Defaulting to no-operation (NOP) logger implementation
24951 records sent, 4990.2 records/sec (4.76 MB/sec), 2041.8 ms avg latency, 3310.0 ms max latency.
26000 records sent, 5199.0 records/sec (4.96 MB/sec), 3500.1 ms avg latency, 3610.0 ms max latency.
60000 records sent, 5000.0 records/sec (4.77 MB/sec), 3001.27 ms avg latency, 3610.00 ms max latency, \
3391 ms 50th, 3592 ms 95th, 3601 ms 99th, 3609 ms 99.9th.
"""


def test_the_totals_are_the_line_with_percentiles() -> None:
    assert parse_totals(PRINTED) == PerformanceTotals(60_000, 12.0, 3391.0, 3601.0)


@pytest.mark.parametrize(
    ("printed", "message"),
    [
        ("", "nothing at all"),
        ("org.apache.kafka.common.errors.TimeoutException: Topic t not present\n", "Topic t not present"),
        (PRINTED.replace("5000.0", "0.0"), "no totals"),
    ],
)
def test_without_totals_the_last_line_is_the_reason(printed: str, message: str) -> None:
    with pytest.raises(UnavailableError, match=message):
        parse_totals(printed)


@pytest.mark.parametrize(
    ("records", "seconds", "wanted", "records_max", "following", "enough"),
    [
        (500, 0.5, 3.0, 10**9, 10_000, False),  # no more than 20 times
        (10_000, 1.0, 3.0, 10**9, 50_000, False),
        (50_000, 2.4, 3.0, 10**9, 75_000, True),
        (500, 3.4, 3.0, 10**9, 500, True),
        (500, 12.4, 3.0, 10**9, 125, True),
        (500, 0.5, 3.0, 700, 700, False),
        (1, 600.0, 1.0, 10**9, 1, True),
    ],
)
def test_trials_lead_to_a_run_of_the_wanted_time(
    records: int, seconds: float, wanted: float, records_max: int, following: int, enough: bool
) -> None:
    totals = PerformanceTotals(records, seconds, 1.0, 1.0)
    assert next_records(totals, wanted, records_max) == pytest.approx(following, abs=1)
    assert long_enough(totals, wanted) == enough


def test_the_rows_settings_are_the_producers() -> None:
    command = performance_command("java", Path("/jars"), "a:1", "t", 7, JavaProduce(client={"linger.ms": "50"}))
    assert command[command.index("-cp") + 1] == "/jars/*"
    assert command[-3:] == ["--producer-props", "bootstrap.servers=a:1", "linger.ms=50"]
    assert command[command.index("--num-records") + 1] == "7"


def test_jars_are_found_in_a_folder_or_in_kafkas_home(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no jar of Apache Kafka"):
        find_jars(tmp_path)
    with pytest.raises(ConfigError, match="--kafka DIR"):
        find_jars(None)
    (tmp_path / "libs").mkdir()
    (tmp_path / "libs" / "kafka_2.13-4.1.1.jar").touch()
    assert find_jars(tmp_path) == find_jars(tmp_path / "libs") == tmp_path / "libs"


def test_kafkas_settings_name_its_addresses_and_nothing_of_other_folders(tmp_path: Path) -> None:
    (properties,) = cluster_properties(tmp_path, [1], [2])
    assert properties["listeners"] == "PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2"
    assert properties["controller.quorum.voters"] == "1@127.0.0.1:2"
    assert [value for value in properties.values() if "/" in value.replace("//", "")] == [str(tmp_path / "logs-1")]


def test_one_node_keeps_kafkas_defaults_and_three_keep_three_copies_of_everything(tmp_path: Path) -> None:
    (alone,) = cluster_properties(tmp_path, [1], [2])
    assert alone["offsets.topic.replication.factor"] == alone["transaction.state.log.min.isr"] == "1"
    assert not alone.keys() & {"default.replication.factor", "min.insync.replicas"}
    nodes = cluster_properties(tmp_path, [1, 2, 3], [4, 5, 6])
    assert [node["node.id"] for node in nodes] == ["1", "2", "3"]
    assert len({node["log.dirs"] for node in nodes}) == 3
    for node in nodes:
        assert node["controller.quorum.voters"] == "1@127.0.0.1:4,2@127.0.0.1:5,3@127.0.0.1:6"
        factors = {value for name, value in node.items() if name.endswith("replication.factor")}
        least = {value for name, value in node.items() if name.endswith(("min.isr", "min.insync.replicas"))}
        assert (factors, least) == ({"3"}, {"2"})


@pytest.mark.needs("kafka")
@pytest.mark.slow
def test_kafka_is_measured_by_its_own_load_generator(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    words = ["--rows", "java-1p", "--quick", "--records", "600", "--kafka", str(KAFKA_JARS), "--json", str(result)]
    assert main(["bench", "--target", "kafka", *words]) == 0
    found = json.loads(result.read_text(encoding="utf-8"))
    assert found["targets"][0]["version"].startswith("Apache Kafka ")
    (run,) = found["runs"]
    assert run["read_back"] == run["records"] > 0
    assert 0 <= run["produce_p50_ms"] <= run["produce_p99_ms"]
    assert run["cpu_seconds"].keys() == run["peak_mb"].keys() == {"kafka"}
    assert run["puts"] is None
