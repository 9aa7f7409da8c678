"""`headrace tables` and the role `tables` against real agents: what the lines of `tables show` read is what a Kafka
consumer reads, record for record, also after the topic doubled and halved, and while workers are killed.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

from confluent_kafka import Consumer, Producer, TopicPartition
from pyiceberg.table import StaticTable

from headrace.config.table_configs import default_name
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from load.dev_server import DevServer
from tests.agent_process import Forked, running_agent
from tests.cli.command_lines import SECONDS_MAX, Run, json_runner, told
from tests.confluent_records import read
from tests.forked_cluster import ForkedCluster
from tests.java_program import FLAGS
from tests.tables.duckdb_reader import rows_by_duckdb
from tests.tools import KAFKA_JARS

pytestmark = pytest.mark.requirement("X11")

INTERVAL_MS = 200


class Seen(NamedTuple):
    """A record, as a consumer or a reader of the table has it."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("catalog")
    return {
        "tables.catalog.name": "dev",
        "tables.catalog.uri": f"sqlite:///{folder}/catalog.db",
        "tables.warehouse": (folder / "warehouse").as_uri(),
        "tables.commit.interval.ms": INTERVAL_MS,
        "tables.upkeep.interval.ms": 1_000,
        "tables.rewrite.min.files": 2,
    }


@pytest.fixture(scope="module")
def server(
    postgres_server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory, catalog: dict[str, object]
) -> Iterator[DevServer]:
    """An agent, and a process that keeps the tables."""
    settings = catalog | {"linger.ms": 25}
    with (
        ForkedCluster(postgres_server, tmp_path_factory.mktemp("dev"), settings=settings) as running,
        tables_role(running, catalog),
    ):
        yield running


@contextmanager
def tables_role(server: DevServer, catalog: Mapping[str, object], interval_ms: int = INTERVAL_MS) -> Iterator[Forked]:
    """A process with the role `tables` alone, as `headrace dev` starts it."""
    settings = catalog | {
        "process.roles": "tables", "metastore.url": server.metastore_url, "bucket": server.bucket,
        "http.port": 0, "log.level": "warning", "tables.commit.interval.ms": interval_ms,
    }  # fmt: skip
    with running_agent([f"--{name.replace('.', '-')}={value}" for name, value in settings.items()]) as (process, _):
        yield process


@pytest.fixture
def run(server: DevServer, capsys: pytest.CaptureFixture[str]) -> Run:
    return json_runner(server.bootstrap, capsys)


def send(server: DevServer, topic: str, partitions: int, name: str, count: int = 40) -> int:
    """Return how many of these records were acknowledged; an agent may refuse some while the count changes."""
    settings = {"bootstrap.servers": server.bootstrap, "enable.idempotence": True, "log_level": 0}
    producer, acknowledged = Producer(settings), []

    def told_by(error: Any, message: Any) -> None:
        if error is None:
            acknowledged.append(message.offset())

    for number in range(count):
        value = None if number % 7 == 3 else f"{name}-{number}".encode()
        key = None if number % 5 == 2 else f"k{number % 9}".encode()
        headers: Any = [("h", name.encode()), ("none", None)] if number % 3 else []
        producer.produce(topic, value, key, partition=number % partitions, headers=headers, on_delivery=told_by)
    assert producer.flush(SECONDS_MAX) == 0
    return len(acknowledged)


def consumed(server: DevServer, topic: str, ends: dict[int, int]) -> list[Seen]:
    """Every record of these partitions."""
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"})
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
        records = read(consumer, sum(ends.values()), SECONDS_MAX)
    finally:
        consumer.close()
    return sorted(
        Seen(
            record.partition(), record.offset(), record.timestamp()[1], record.key(), record.value(),
            tuple(record.headers() or ()),
        )
        for record in records
    )  # fmt: skip


def caught_up(run: Run, table: str, records: int) -> Any:
    """Return what `tables show` says once the table has so many records."""

    def ask() -> Any:
        time.sleep(INTERVAL_MS / 1_000)
        return run("tables", "show", table)

    return told(
        ask,
        lambda shown: shown["records"] >= records and not any(each["lag"] for each in shown["partitions"]),
    )


def ends_of(shown: Any, among: set[int] | None = None) -> dict[int, int]:
    """Return how far the table is, by partition."""
    ends = {each["partition"]: each["offset"] for each in shown["partitions"]}
    return {partition: end for partition, end in ends.items() if among is None or partition in among}


def data_files(shown: Any) -> list[str]:
    """The data files of the table's newest snapshot."""
    return [task.file.file_path for task in StaticTable.from_metadata(shown["metadata"]).scan().plan_files()]


def by_pyiceberg(lines: str) -> list[Seen]:
    """The rows that these lines load, in a new process; they have to run as they are."""
    dump = "\nimport sys, pickle\npickle.dump(table.scan().to_arrow(), sys.stdout.buffer)"
    code = lines.replace("print(table.scan().to_arrow())", dump)
    assert code != lines
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=SECONDS_MAX)
    return seen(pickle.loads(done.stdout))


def seen(table: Any) -> list[Seen]:
    """The rows of an Arrow table."""
    times = table.column("timestamp").cast(pa.timestamp("us", "UTC")).cast("int64").to_pylist()
    return sorted(
        Seen(
            row["partition"], row["offset"], time // 1_000, row["key"], row["value"],
            tuple((h["key"], h["value"]) for h in row["headers"] or ()),
        )
        for row, time in zip(table.to_pylist(), times, strict=True)
    )  # fmt: skip


@pytest.mark.slow
def test_a_table_is_what_a_consumer_reads_also_after_the_topic_doubled(server: DevServer, run: Run) -> None:
    run("topics", "create", "web.orders", "--partitions", "2")
    assert run("tables", "create", "web.orders", "--partition-by", "day")["table"] == "headrace.web_orders"
    sent = send(server, "web.orders", 2, "before")
    caught_up(run, "web_orders", sent)
    run("topics", "alter", "web.orders", "--double", "--partitions", "4", "--producers-max-age-ms", "1000")
    sent += send(server, "web.orders", 4, "doubled")
    shown = caught_up(run, "web_orders", sent)
    assert ends_of(shown).keys() == {0, 1, 2, 3}
    records = consumed(server, "web.orders", ends_of(shown))
    assert len(records) == sent
    assert by_pyiceberg(shown["read_with"]["pyiceberg"]) == records
    assert shown["catalog"]["name"] == "dev"


@pytest.mark.slow
def test_a_table_is_what_a_consumer_reads_also_after_the_topic_halved(server: DevServer, run: Run) -> None:
    run("topics", "create", "halved", "--partitions", "2")
    run("topics", "alter", "halved", "--double", "--partitions", "4", "--producers-max-age-ms", "1")
    run("tables", "create", "halved")
    sent = send(server, "halved", 4, "before")
    children = consumed(server, "halved", ends_of(caught_up(run, "halved", sent), {2, 3}))
    run("topics", "alter", "halved", "--halve", "--force", "--partitions", "2")
    sent += send(server, "halved", 2, "after")
    shown = caught_up(run, "halved", sent)
    assert ends_of(shown).keys() == {0, 1, 2, 3}
    records = sorted([*consumed(server, "halved", ends_of(shown, {0, 1})), *children])  # aliases are not listed
    assert len(records) == sent
    assert seen(rows_by_duckdb(shown["read_with"]["duckdb"])) == records


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, 3])
def test_two_workers_one_of_them_killed_again_and_again(
    server: DevServer, run: Run, catalog: dict[str, object], kills: int
) -> None:
    topic = f"killed{kills}"
    run("topics", "create", topic, "--partitions", "3")
    run("tables", "create", topic)
    sent = 0
    for number in range(kills):
        with tables_role(server, catalog, interval_ms=50) as other:
            for part in range(3):
                sent += send(server, topic, 3, f"{number}-{part}", 30)
            other.kill()
            other.wait(SECONDS_MAX)
    shown = caught_up(run, topic, sent)
    assert shown["catalog"]["name"] == "dev"
    assert seen(rows_by_duckdb(shown["read_with"]["duckdb"])) == consumed(server, topic, ends_of(shown))


def test_pause_resume_list_and_drop(server: DevServer, run: Run) -> None:
    run("topics", "create", "kept", "--partitions", "1")
    run("tables", "create", "kept", "--table", "mine", "--set", "write.parquet.compression-codec=snappy")
    caught_up(run, "mine", 0)
    run("tables", "pause", "mine", "--reason", "maintenance")
    send(server, "kept", 1, "a", 5)
    shown = told(lambda: run("tables", "show", "mine"), lambda shown: shown["lag"] == 5)
    assert (shown["condition"], shown["reason"]) == ("paused", "maintenance")
    run("tables", "resume", "mine")
    caught_up(run, "mine", 5)
    rows = run("tables", "list")
    assert {row["table"]: (row["condition"], row["records"]) for row in rows}["mine"] == ("following", 5)
    send(server, "kept", 1, "b", 5)
    caught_up(run, "mine", 10)
    shown = told(lambda: run("tables", "show", "mine"), lambda shown: len(data_files(shown)) == 1)
    assert len(seen(rows_by_duckdb(shown["read_with"]["duckdb"]))) == 10, "upkeep made one file of two"
    run("tables", "alter", "mine", "--retention-ms", "3600000")
    assert run("tables", "show", "mine")["retention_ms"] == 3_600_000
    assert "needs --yes" in run("tables", "delete-rows", "mine", "--key", "k0", "--expire-snapshots", status=1)
    assert run("tables", "delete-rows", "mine", "--key", "k0")["rows"] == 2
    assert run("tables", "delete-rows", "mine", "--where", "offset < 1", "--yes", "--expire-snapshots")["rows"] == 1
    assert run("tables", "show", "mine")["records"] == 9
    assert "topic kept exists" in run("tables", "detach", "mine", status=1)
    run("topics", "delete", "kept", "--yes")
    assert run("tables", "detach", "mine", "--upkeep")["condition"] == "detached"
    run("tables", "drop", "mine", "--yes", "--purge")
    assert "does not exist" in run("tables", "show", "mine", status=1)
    assert "topic does not exist" in run("tables", "create", "nothing", status=1)
    assert "catalog" in run("tables", "list", "--tables-catalog-name", "nowhere", "--tables-catalog-uri", "", status=1)


def test_columns_of_values_and_a_dead_letter_that_a_user_reads(server: DevServer, run: Run, tmp_path: Path) -> None:
    run("topics", "create", "typed", "--partitions", "1")
    schema = tmp_path / "order.avsc"
    schema.write_text('{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}')
    assert "schema file is needed" in run("tables", "create", "typed", "--value-format", "avro", status=1)
    for bad in (tmp_path / "missing.avsc", tmp_path):
        told_by = run("tables", "create", "typed", "--value-format", "avro", "--schema-file", str(bad), status=1)
        assert "--schema-file cannot be read" in told_by
    run(
        "tables",
        "create",
        "typed",
        "--value-format",
        "avro",
        "--schema-file",
        str(schema),
        "--errors-tolerance",
        "none",
    )
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for value in (b"\x0e", b"", None):
        producer.produce("typed", value, partition=0)
    assert producer.flush(SECONDS_MAX) == 0
    shown = told(lambda: run("tables", "show", "typed"), lambda shown: shown["condition"] == "paused")
    assert shown["reason"].startswith("partition 0, offset 1: not a value of the table's schema")
    assert {row["table"]: row["reason"] for row in run("tables", "list")}["typed"] == shown["reason"]
    run("tables", "resume", "typed", "--errors-tolerance", "invalid_data")
    shown = caught_up(run, "typed", 2)
    assert (shown["value_format"], shown["errors_tolerance"]) == ("avro", "invalid_data")
    shown = told(lambda: run("tables", "show", "typed"), lambda shown: (shown["dead_letters"] or {}).get("records"))
    assert shown["dead_letters"] == {"table": "headrace.typed_dead_letters", "records": 1, "due": 0}
    rows = rows_by_duckdb(shown["read_with"]["duckdb"]).to_pylist()
    assert sorted((row["kafka"]["offset"], row["id"]) for row in rows) == [(0, 7), (2, None)]
    run("tables", "drop", "typed", "--yes")
    assert "typed_dead_letters" not in {row["table"] for row in run("tables", "list")}


CONFIGS = {"table.enable": "true", "table.partition.by": "partition,bucket[4](key)"}


def by_topics_create(run: Run, server: DevServer, topic: str, folder: Path) -> None:
    run("topics", "create", topic, *(word for name, value in CONFIGS.items() for word in ("--set", f"{name}={value}")))


def by_cluster_apply(run: Run, server: DevServer, topic: str, folder: Path) -> None:
    file = folder / "cluster.yaml"
    configs = '{table.enable: true, table.partition.by: [partition, "bucket[4](key)"]}'
    file.write_text(f"topics:\n  - name: {topic}\n    partitions: 1\n    configs: {configs}\n")
    run("cluster", "plan", "-f", str(file), status=2)
    run("cluster", "apply", "-f", str(file))
    run("cluster", "plan", "-f", str(file))


def by_kafka_configs(run: Run, server: DevServer, topic: str, folder: Path) -> None:
    """kafka-topics.sh knows only Kafka's configs, and --add-config takes the brackets away; a file goes through."""

    def tool(name: str, *words: str) -> tuple[int, str]:
        command = ["java", *FLAGS, "-cp", f"{KAFKA_JARS}/*", name, "--bootstrap-server", server.bootstrap, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS_MAX)
        return done.returncode, done.stdout + done.stderr

    creating = ("org.apache.kafka.tools.TopicCommand", "--create", "--topic", topic, "--partitions", "1")
    status, printed = tool(*creating, "--config", "table.enable=true")
    assert status == 1
    assert "Unknown topic config name: table.enable" in printed
    assert tool(*creating)[0] == 0
    file = folder / "table.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in CONFIGS.items()))
    altering = ("--alter", "--entity-type", "topics", "--entity-name", topic, "--add-config-file", str(file))
    status, printed = tool("kafka.admin.ConfigCommand", *altering)
    assert status == 0, printed


@pytest.mark.parametrize(
    "create",
    [
        by_topics_create,
        by_cluster_apply,
        pytest.param(by_kafka_configs, marks=[pytest.mark.slow, pytest.mark.needs("kafka")]),
    ],
)
def test_a_topic_is_created_with_its_table(
    server: DevServer, run: Run, tmp_path: Path, create: Callable[[Run, DevServer, str, Path], None]
) -> None:
    """The role makes the table."""
    topic = create.__name__
    create(run, server, topic, tmp_path)
    sent = send(server, topic, 1, "first")
    told(lambda: run("tables", "list"), lambda rows: {topic, "following"} <= _conditions(rows, topic))
    shown = caught_up(run, topic, sent)
    assert shown["partition_fields"] == ["partition", "key_bucket_4"]
    assert seen(rows_by_duckdb(shown["read_with"]["duckdb"])) == consumed(server, topic, ends_of(shown))
    assert "table.start cannot change" in run("configs", "set", "table.start=latest", "--topic", topic, status=1)
    assert "table.enable=true" in run("tables", "drop", topic, "--yes", status=1)
    run("configs", "set", "table.enable=false", "--topic", topic)
    told(lambda: run("tables", "list"), lambda rows: "paused" in _conditions(rows, topic))
    run("tables", "drop", topic, "--yes")


def _conditions(rows: list[dict[str, Any]], table: str) -> set[str]:
    """The table's name and condition, if it is there."""
    return {text for row in rows if row["table"] == table for text in (row["table"], row["condition"])}


def test_a_table_has_a_name_that_every_engine_takes() -> None:
    assert [default_name(topic) for topic in ("orders", "web.Orders-2", "_x")] == ["orders", "web_orders_2", "_x"]
