"""`headrace topics`, `configs`, `users`, `acls` and the others against Apache Kafka: the tools speak plain Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.config.free_ports import free_ports
from load.dev_server import DevServer
from tests.cli.access_checks import check_acls, check_features, check_quotas, check_transactions, check_users
from tests.cli.command_lines import Run, json_runner, produce, told
from tests.cli.described.file_checks import (
    Files,
    check_apply,
    check_cluster_configs,
    check_emptied,
    check_export,
    check_export_from_another,
    check_impossible,
    check_named_configs,
)
from tests.cli.described.rights_checks import Secured, check_rights
from tests.compat.kafka_server import kafka_server
from tests.confluent_records import read
from tests.kafka_clients import KafkaClients

pytestmark = [
    pytest.mark.needs("kafka"),
    pytest.mark.slow,
]
PARTITIONS = 3
RECORDS = 300
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}

SCRAM = "SCRAM-SHA-512"


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its bootstrap address."""
    with kafka_server(tmp_path_factory.mktemp("kafka"), SETTINGS) as bootstrap:
        yield bootstrap


@pytest.fixture
def run(kafka: str, capsys: pytest.CaptureFixture[str]) -> Run:
    return json_runner(kafka, capsys)


def _create(run: Run, topic: str, *options: str) -> None:
    """Create a topic and wait until Kafka has elected a leader for each partition: it answers before that."""
    assert run("topics", "create", topic, *options)["outcome"] == "created"
    told(lambda: _leaders(run, topic), lambda leaders: bool(leaders) and min(leaders) >= 0)


def _leaders(run: Run, topic: str) -> list[int]:
    """Return the leaders of each partition; empty while the brokers do not know the topic."""
    try:
        return [
            row["leader"] if row["leader"] is not None else -1
            for row in run("topics", "describe", topic)[0]["partitions"]
        ]
    except (AssertionError, KeyError):  # the command failed: not there yet
        return []


def test_a_topics_life(run: Run) -> None:
    _create(run, "life", "--partitions", "2", "--set", "retention.ms=5000")
    assert "already exists" in run("topics", "create", "life", status=1)
    told(lambda: run("topics", "list"), lambda rows: ("life", 2) in {(r["topic"], r["partitions"]) for r in rows})
    run("topics", "alter", "life", "--partitions", "4", "--set", "segment.ms=90000")
    told(lambda: _leaders(run, "life"), lambda leaders: len(leaders) == 4 and min(leaders) >= 0)
    (described,) = run("topics", "describe", "life")
    assert described["configs"] == {"retention.ms": "5000", "segment.ms": "90000"}
    assert [(row["partition"], row["earliest"], row["latest"]) for row in described["partitions"]] == [
        (n, 0, 0) for n in range(4)
    ]
    assert run("topics", "delete", "life", "--yes") == [{"topic": "life", "outcome": "deleted", "error": None}]
    told(lambda: run("topics", "list"), lambda rows: "life" not in {row["topic"] for row in rows})


def test_configs_of_topics_and_of_all_brokers(run: Run) -> None:
    _create(run, "configured")
    for resource, name in ((("--topic", "configured"), "retention.ms"), (("--brokers",), "log.retention.ms")):
        assert run("configs", "set", f"{name}=7000", *resource)["outcome"] == "done"
        told(
            lambda r=resource: {row["config"]: row["value"] for row in run("configs", "describe", *r)},  # type: ignore[misc]
            lambda values, n=name: values.get(n) == "7000",  # type: ignore[misc]
        )
        run("configs", "delete", name, *resource)
    assert run("configs", "set", "no.such=1", "--topic", "configured", status=1)


def test_records_and_groups(run: Run, kafka: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _create(run, "records", "--partitions", str(PARTITIONS))
    lines = [f"key-{n % 7}:value-{n}" for n in range(RECORDS)]
    assert produce(run, monkeypatch, "records", *lines, options=("--key-separator", ":"))["records"] == RECORDS
    found = run("records", "consume", "records")
    assert sorted(f"{r['key']}:{r['value']}" for r in found) == sorted(lines)
    with KafkaClients(kafka).consumer({"group.id": "readers", "enable.auto.commit": False}) as reader:
        reader.subscribe(["records"])
        read(reader, RECORDS, 300)
        reader.commit(asynchronous=False)
        assert {row["group"] for row in run("groups", "list")} >= {"readers"}
        described = run("groups", "describe", "readers")
    assert (sum(row["current_offset"] for row in described), {row["lag"] for row in described}) == (RECORDS, {0})


def test_users(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check_users(run, monkeypatch, tmp_path)


def test_acls(run: Run) -> None:
    check_acls(run)


def test_quotas(run: Run) -> None:
    check_quotas(run)


def test_features(run: Run) -> None:
    check_features(run, "metadata.version")


def test_transactions(run: Run, kafka: str) -> None:
    check_transactions(run, kafka)


@pytest.fixture
def files(kafka: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Files:
    return Files(tmp_path / "files", kafka, capsys)


def test_apply_is_idempotent_and_can_be_interrupted(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    check_apply(files, monkeypatch)
    check_emptied(files)


def test_what_is_impossible_is_named_at_once(files: Files) -> None:
    check_impossible(files, refused_by_cluster="")
    files.write("topics: [{name: fewer, partitions: 2}]")
    files.apply()
    files.write("topics: [{name: fewer, partitions: 1, replicationFactor: 3}]")
    refused = files.apply("--allow-fewer-partitions", status=1)
    assert "partitions is 2, and this cluster cannot lower it to 1" in refused
    assert "replicationFactor is 1 since the topic was created" in refused


def test_an_export_applied_to_an_empty_cluster_gives_the_same_export(
    files: Files, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    with kafka_server(tmp_path_factory.mktemp("empty"), SETTINGS) as bootstrap:
        check_emptied(files)
        target = Files(tmp_path / "empty", bootstrap, capsys)
        check_export(files, target)
        check_cluster_configs(files, target)
        check_named_configs(files, target)


def test_an_export_from_kafka_is_applied_to_a_headrace(
    files: Files, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also configs of groups, of the cluster and of client metrics, and what Headrace refuses."""
    run("topics", "create", "odd", "--set", "compression.zstd.level=9", "--set", "retention.ms=7000")
    run("configs", "set", "message.max.bytes=2000000", "num.io.threads=9", "--brokers")
    run("configs", "set", "consumer.session.timeout.ms=50000", "--group", "g")
    with DevServer(tmp_path / "dev") as here:
        target = Files(tmp_path / "target", here.bootstrap, capsys)
        head = check_export_from_another(files, target)
        assert "clusterConfigs: num.io.threads=9 is left out: an agent uses one event loop" in head
        assert "server.properties: super.users: not exported; give it to the agents" in head, "Kafka hides its value"
        assert "server.properties: authorizer.class.name=" in head
        exported = target.run("export")
        assert exported["groupConfigs"] == [{"name": "g", "configs": {"consumer.session.timeout.ms": 50000}}]
        assert exported["clusterConfigs"]["message.max.bytes"] == 2000000
        whole, _ = files.moved("--topics", ".*")
        assert "topic odd: compression.zstd.level=9 is left out" in whole


def test_a_cluster_without_an_authorizer_has_no_acls(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    with kafka_server(tmp_path_factory.mktemp("open")) as bootstrap:
        run, files = json_runner(bootstrap, capsys), Files(tmp_path / "files", bootstrap, capsys)
        assert "no authorizer" in run("acls", "list", status=1)
        files.write("topics: [{name: t}]\nacls: [{principal: User:a, resource: {type: cluster}, operations: [Alter]}]")
        assert "cluster.yaml:2: acl allow User:a Alter" in files.apply(status=1)
        assert "topics" not in files.run("export")
        files.write("topics: [{name: t}]")
        files.apply()
        assert [topic["name"] for topic in files.run("export")["topics"]] == ["t"]


def test_the_named_rights_suffice_and_each_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    admin, clients, controller = (f"127.0.0.1:{port}" for port in free_ports(3))
    addresses = f"PLAINTEXT://{admin},CLIENT://{clients}"
    settings = SETTINGS | {
        "listeners": f"{addresses},CONTROLLER://{controller}",
        "advertised.listeners": addresses,
        "controller.quorum.voters": f"1@{controller}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,CLIENT:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": SCRAM,
        "listener.name.client.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
    }
    (folder := tmp_path / "kafka").mkdir()
    with kafka_server(folder, settings) as bootstrap:
        check_rights(Secured(clients, bootstrap, tmp_path, capsys))
