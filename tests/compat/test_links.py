"""X14 as a user has it: a real Apache Kafka with logins, `headrace dev` here, `headrace link` from the shell.

Records are written and read by librdkafka on both sides.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from kio.schema.errors import ErrorCode

from headrace.cli.bench.topic_admin import count_records, open_admin
from headrace.cli.client.offsets import partitions_of
from headrace.cli.client.records import init_producer_id, produce, produce_again
from headrace.cli.main import main
from headrace.storage.errors import HeadraceError
from headrace.storage.records.codec import Record
from headrace.storage.records.compression import Codec
from load.dev_server import DevServer
from load.self_signed import write_certificate
from tests.compat.kafka_server import kafka_server
from tests.compat.link_source import PARTITIONS, PASSWORD, WRITER, add_scram_users, fill, login, read, secured
from tests.waiting import until

pytestmark = [pytest.mark.needs("kafka"), pytest.mark.slow, pytest.mark.requirement("X14")]
KEYS = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
BATCH = [Record(0, 1_700_000_000_000, b"repeated", b"once", [])]


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """The certificate of the source."""
    return write_certificate(tmp_path)[0]


@pytest.fixture
def source(tmp_path: Path, certificate: Path) -> Iterator[tuple[str, str]]:
    """The addresses of its listeners without and with a login."""
    settings, secure = secured(certificate, tmp_path / "key.pem")
    folder = tmp_path / "kafka"
    folder.mkdir()
    with kafka_server(folder, settings) as bootstrap:
        add_scram_users(bootstrap)
        fill(bootstrap)
        yield bootstrap, secure


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DevServer]:
    """A new cluster; its processes have the password of one of the links in their environment."""
    monkeypatch.setenv("HEADRACE_LINK_PASSWORD", PASSWORD)
    tmp_path.chmod(0o711)
    with DevServer(tmp_path / "dev", settings={"metadata.secret.keys": KEYS}) as server:
        yield server


class Shell:
    """Runs `headrace link` on one cluster."""

    def __init__(self, bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._bootstrap, self._capsys = bootstrap, capsys

    def link(self, *words: str) -> Any:
        """Return what it prints with --json; its status must be 0."""
        self._capsys.readouterr()
        status = main(["link", *words, "--json", "-b", self._bootstrap])
        shown = self._capsys.readouterr()
        assert status == 0, shown.err
        return json.loads(shown.out)

    def verify(self, link: str, *words: str, status: int = 0) -> dict[tuple[str, int], Any]:
        """Return what `verify` says of each partition."""
        self._capsys.readouterr()
        assert main(["link", "verify", link, *words, "--json", "-b", self._bootstrap]) == status
        found = json.loads(self._capsys.readouterr().out)["partitions"]
        return {(each["topic"], each["partition"]): each for each in found}

    def is_whole(self, link: str, topics: int) -> bool:
        """Return whether so many copies have all that their source has."""
        shown = self.link("show", link)
        assert not shown["problem"], shown
        return len(shown["topics"]) == topics and all(t["lag"] == 0 and t["lag_ms"] >= 0 for t in shown["topics"])


def _file(path: Path, settings: dict[str, str]) -> str:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(path)


def _refusal(bootstrap: str, topic: str, **config: str) -> str:
    """The error that a producer gets."""
    producer, errors = Producer({"bootstrap.servers": bootstrap, **config}), list[KafkaError | None]()
    producer.produce(topic, b"no", b"key", on_delivery=lambda error, message: errors.append(error))
    producer.flush()
    (error,) = errors
    return error.name() if error else ""


def _repeat(bootstrap: str, topic: str, producer: tuple[int, int, int]) -> ErrorCode:
    with open_admin(bootstrap) as cluster:
        leader = partitions_of(cluster, [topic])[topic, 0]
        return produce_again(cluster, leader, (topic, 0), BATCH, Codec.NONE, producer)


def _check_equal(source: str, here: str, topic: str, partitions: int) -> int:
    """Both sides have the same records at the same offsets; how many. Kafka may clean what is compacted meanwhile."""
    count = 0
    for index in range(partitions):
        theirs, start, end = read({"bootstrap.servers": source}, topic, index)
        ours, our_start, our_end = read({"bootstrap.servers": here}, topic, index)
        kept = {row[0] for row in theirs}
        assert [row for row in ours if row[0] in kept] == theirs
        assert our_end == end
        if topic != "table":
            assert (our_start, ours) == (start, theirs)
        count += len(theirs)
    return count


def test_a_user_moves_topics_of_a_real_kafka(
    source: tuple[str, str], here: DevServer, certificate: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, secure = source
    shell = Shell(here.bootstrap, capsys)
    with open_admin(plain) as cluster:
        producer_id, epoch = init_producer_id(cluster)
    assert _repeat(plain, "orders", (producer_id, epoch, 0)) is ErrorCode.none
    scram = _file(tmp_path / "scram.properties", login("SCRAM-SHA-512", certificate))
    by_env = login("PLAIN", certificate, password="${env:HEADRACE_LINK_PASSWORD}")
    reference = _file(tmp_path / "plain.properties", by_env)

    seen = shell.link(
        "create", "old", "--from", secure, "--command-config", scram, "--topics", "orders,pay.*", "--dry-run"
    )
    assert {topic["topic"] for topic in seen["topics"] if not topic["problem"]} == {"orders", "payments"}
    shell.link("create", "old", "--from", secure, "--command-config", scram, "--topics", "orders,pay.*")
    shell.link("create", "tables", "--from", secure, "--command-config", reference, "--topics", "table")
    until(lambda: shell.is_whole("old", 2) and shell.is_whole("tables", 1))
    assert {link["name"]: link["lag"] for link in shell.link("list")} == {"old": 0, "tables": 0}

    assert _check_equal(plain, here.bootstrap, "orders", PARTITIONS) == 601
    assert _check_equal(plain, here.bootstrap, "payments", PARTITIONS) == 90
    assert _check_equal(plain, here.bootstrap, "table", 1) > 0
    verified = shell.verify("old", "--command-config", scram)
    assert {place[0] for place in verified} == {"orders", "payments"}
    assert {row["result"] for row in verified.values()} == {"equal"}
    assert [sum(row[side] for row in verified.values()) for side in ("source_records", "here_records")] == [691, 691]
    (cleaned,) = shell.verify("tables", "--command-config", scram).values()
    assert cleaned["result"] == "equal"
    assert _refusal(here.bootstrap, "orders") == "POLICY_VIOLATION"
    with open_admin(here.bootstrap) as cluster, pytest.raises(HeadraceError, match="link 'old'"):
        produce(cluster, partitions_of(cluster, ["orders"])["orders", 0], "orders", 0, BATCH, Codec.NONE)

    promoted = shell.link("promote", "old", "--fence-source")
    assert sorted(promoted["topics"]) == ["orders", "payments"]
    fenced = login("PLAIN", certificate, user=WRITER)
    assert _refusal(secure, "orders", **fenced) == "TOPIC_AUTHORIZATION_FAILED"
    shell.link("promote", "tables")
    before = count_records(here.bootstrap, "orders", PARTITIONS)
    assert _repeat(here.bootstrap, "orders", (producer_id, epoch, 0)) is ErrorCode.none
    assert count_records(here.bootstrap, "orders", PARTITIONS) == before
    assert _repeat(here.bootstrap, "orders", (producer_id, epoch, 1)) is ErrorCode.none
    assert count_records(here.bootstrap, "orders", PARTITIONS) == before + 1
    for topic in ("orders", "payments", "table"):
        assert _refusal(here.bootstrap, topic, **{"enable.idempotence": "true"}) == ""
    produced_here = shell.verify("old", "--command-config", scram)
    assert {row["result"] for row in produced_here.values()} == {"equal"}
    assert "not compared, because sent here after the promotion: 1 offsets" in produced_here["orders", 0]["notes"]
    assert _refusal(plain, "orders") == "", "a client without a login is a super user at the source"
    late = shell.verify("old", "--command-config", scram, "--topics", "orders", status=1)
    assert sorted(row["result"] for row in late.values()) == ["different", *["equal"] * (PARTITIONS - 1)]
    shell.link("drop", "old")
    shell.link("drop", "tables")
    assert shell.link("list") == []
