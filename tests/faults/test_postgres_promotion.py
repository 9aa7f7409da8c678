"""Postgres is promoted under agents and clients: with synchronous replication nothing is lost, doubled or reordered;
without it, what was lost stays lost, and nothing of the old primary is mixed with what comes after.

Real servers (load/postgres_servers.py), real agents, librdkafka. Old primaries crash, or stay up and writable.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from headrace.cli import lost as put_back
from headrace.cli.main import main
from headrace.config.free_ports import free_ports
from headrace.metastore.postgres.formatted import formatted_cluster_id
from headrace.storage.errors import InvalidError
from load.postgres_servers import Servers
from tests.agent_process import SECONDS_MAX, AgentUnderTest, by_command
from tests.confluent_records import consume
from tests.faults.test_two_agents import PARTITIONS, _assert_once_in_order, _create, _produce, _read_all
from tests.share_member import ShareMember

RECORDS = 3_000


@pytest.fixture
def settings(servers: Servers, tmp_path: Path) -> dict[str, object]:
    """Return the settings of agents on the primary, formatted."""
    shared: dict[str, object] = {
        "metastore.url": servers.url("primary"),
        "bucket": f"file://{tmp_path}/bucket",
        "broker.session.timeout.ms": 3_000,
        "broker.heartbeat.interval.ms": 500,
        "log.level": "warning",
    }
    flags = [f"--metastore-url={shared['metastore.url']}", f"--bucket={shared['bucket']}"]
    cluster_id = formatted_cluster_id(str(shared["metastore.url"]))
    assert cluster_id is not None
    assert main(["storage", "format", "--ignore-formatted", "--cluster-id", cluster_id, *flags]) == 0
    return shared


@pytest.mark.requirement("W1", "W3", "W7")
def test_a_synchronous_standby_that_replaces_a_crashed_primary_has_everything(
    servers: Servers, settings: dict[str, object]
) -> None:
    servers.add_standby("standby")
    servers.replicate_synchronously()
    settings["metastore.url"] = servers.url("primary", "standby")

    def fail_over() -> None:
        servers.crash("primary")
        servers.promote("standby")

    with AgentUnderTest(settings) as first, AgentUnderTest(settings) as second:
        bootstrap = f"{first.kafka},{second.kafka}"
        _create(bootstrap, "kept")
        acknowledged = _produce(bootstrap, "kept", RECORDS, {RECORDS // 2: fail_over})
        assert len(acknowledged) == RECORDS
        _assert_once_in_order(_read_all(first.kafka, "kept", RECORDS), RECORDS)
        _assert_once_in_order(_read_all(second.kafka, "kept", RECORDS), RECORDS)


@pytest.mark.requirement("W1", "W7", "X4")
def test_what_an_asynchronous_standby_lacks_is_lost_and_mixed_with_nothing(
    servers: Servers, settings: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    """The old primary stays up, and its agent reaches it: only the bucket says that its life is over."""
    (port,) = free_ports(1)
    with AgentUnderTest(settings) as old, _reading(f"{old.kafka},127.0.0.1:{port}", "split") as reader:
        _create(old.kafka, "split")
        assert main(["configs", "set", "--group", "workers", "share.auto.offset.reset=earliest", "-b", old.kafka]) == 0
        worker = ShareMember(old.kafka, "workers", "split")
        worker.join()
        kept = _produce(old.kafka, "split", RECORDS, {})
        _accept(worker, 10)
        servers.add_standby("standby")
        servers.cut("standby")
        assert len(_produce(old.kafka, "split", 500, {})) == 500  # acknowledged, and not on the standby
        lost_accepts = _accept(worker, 25)
        lost = _lost_from(reader, len(kept) + 500)
        servers.promote("standby")
        with by_command(
            settings | {"metastore.url": servers.url("standby"), "listeners": f"PLAINTEXT://127.0.0.1:{port}"}
        ) as new:
            _until_not_ready(old, "another server is the metastore")
            assert len(_produce(new.kafka, "split", RECORDS, {})) == RECORDS
            found = _read_all(new.kafka, "split", 2 * RECORDS)
            report = _listed_as_lost(settings | {"metastore.url": servers.url("standby")}, capsys)
            listed = report["partitions"]
            assert sum(partition["certain_records"] for partition in listed) == 500
            assert _offsets_in(report["share_groups"]["lost"], "workers", "split") == lost_accepts
            again = ShareMember(new.kafka, "workers", "split")
            again.join()
            assert _until_delivered(again, lost_accepts), "they are delivered again"
            again.leave()
            ends = {partition["partition_index"]: partition["offsets"] for partition in listed}
            kept_ends = Counter(
                p for p, _, _ in found
            )  # each number was kept once and sent again once, to one partition
            kept_ends = Counter({p: count // 2 for p, count in kept_ends.items()})
            assert ends == {p: [[kept_ends[p], end - 1]] for p, end in lost.items()}
            assert _truncations(reader, lost) == lost, "KIP-320: a reader of lost records learns where the log ends"
    assert Counter(number for _, _, number in found) == Counter(dict.fromkeys(range(len(kept)), 2))
    for partition in range(PARTITIONS):
        assert [offset for p, offset, _ in found if p == partition] == list(
            range(sum(p == partition for p, _, _ in found))
        ), "offsets go on where the standby's end"


@pytest.mark.slow
@pytest.mark.requirement("W1", "X4")
def test_lost_records_are_put_back_once_and_only_if_told(
    servers: Servers, settings: dict[str, object], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the command is interrupted, and if it is given again."""
    (port,) = free_ports(1)
    with AgentUnderTest(settings) as old:
        _create(old.kafka, "back")
        _produce(old.kafka, "back", 300, {})
        servers.add_standby("standby")
        servers.cut("standby")
        _produce(old.kafka, "back", 200, {})  # acknowledged, and not on the standby
        servers.promote("standby")
        on_standby = settings | {"metastore.url": servers.url("standby")}
        with AgentUnderTest(on_standby | {"listeners": f"PLAINTEXT://127.0.0.1:{port}"}) as new:
            _until_not_ready(old, "another server is the metastore")
            _produce(new.kafka, "back", 100, {})
            flags = [f"--metastore-url={on_standby['metastore.url']}", f"--bucket={settings['bucket']}"]
            words = ["audit", "--lost", f"--put-back={new.kafka}", *flags]
            assert main(words) != 0
            assert "repeat with --yes" in capsys.readouterr().err
            assert len(_read_all(new.kafka, "back", 400)) == 400, "nothing is sent without confirmation"

            sent = []

            def interrupted(*arguments: Any) -> Any:
                if len(sent) == 2:
                    raise InvalidError("interrupted by the test")
                sent.append(arguments)
                return send_one(*arguments)

            send_one = put_back._send_one
            monkeypatch.setattr(put_back, "_send_one", interrupted)
            assert main([*words, "--yes"]) != 0
            monkeypatch.setattr(put_back, "_send_one", send_one)
            assert main([*words, "--yes"]) == 0
            assert "records=200" in capsys.readouterr().out
            assert main([*words, "--yes"]) == 0
            assert "put back already" in capsys.readouterr().out
            found = _read_all(new.kafka, "back", 600)
    counts = Counter(number for _, _, number in found)
    assert counts == Counter({n: 3 if n < 100 else 2 if n < 200 else 1 for n in range(300)})


def _listed_as_lost(settings: Mapping[str, object], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return what `headrace audit --lost` says."""
    capsys.readouterr()
    flags = [f"--metastore-url={settings['metastore.url']}", f"--bucket={settings['bucket']}"]
    status, printed = main(["audit", "--lost", "--json", *flags]), capsys.readouterr()
    assert (status, bool(printed.out)) == (1, True), printed.err
    found: dict[str, Any] = json.loads(printed.out)
    return found


def _accept(worker: ShareMember, count: int) -> set[tuple[int, int]]:
    """Accept so many records; their partitions and offsets."""
    accepted: set[tuple[int, int]] = set()
    until = time.monotonic() + SECONDS_MAX
    while len(accepted) < count:
        records = worker.poll(count - len(accepted))
        if records and worker.acknowledge(records):
            accepted |= {record[:2] for record in records}
        assert time.monotonic() < until, accepted
    return accepted


def _until_delivered(worker: ShareMember, places: set[tuple[int, int]]) -> bool:
    """Return whether the member acquires all of them."""
    got: set[tuple[int, int]] = set()
    until = time.monotonic() + SECONDS_MAX
    while not places <= got and time.monotonic() < until:
        got |= {record[:2] for record in worker.poll(2_000)}
    return places <= got


def _offsets_in(lost: list[dict[str, Any]], group: str, topic: str) -> set[tuple[int, int]]:
    """Return (partition, offset) of each acknowledgement that is listed."""
    assert all((each["group"], each["topic"]) == (group, topic) for each in lost)
    return {
        (each["partition_index"], offset)
        for each in lost
        for first, last in each["offsets"]
        for offset in range(first, last + 1)
    }


@contextmanager
def _reading(bootstrap: str, topic: str) -> Iterator[confluent_kafka.Consumer]:
    """A consumer that gets an error where its position is not in the log any more."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader of both",
            "auto.offset.reset": "error",
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 1_000,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    yield consumer
    consumer.close()


def _lost_from(reader: confluent_kafka.Consumer, count: int) -> dict[int, int]:
    """Read them all; per partition the position after them."""
    positions: dict[int, int] = {}
    until = time.monotonic() + SECONDS_MAX
    while sum(positions.values()) < count:
        for message in consume(reader, 1_000, 0.5):
            positions[message.partition()] = message.offset() + 1
        assert time.monotonic() < until, positions
    return positions


def _truncations(reader: confluent_kafka.Consumer, positions: dict[int, int]) -> dict[int, int]:
    """The partitions with an error for a truncated log, of those that were read; to the positions there."""
    told: dict[int, int] = {}
    until = time.monotonic() + SECONDS_MAX
    while len(told) < len(positions) and time.monotonic() < until:
        message = reader.poll(0.5)
        if message is not None and (error := message.error()) is not None and "truncation detected" in error.str():
            told[message.partition()] = positions[message.partition()]
    return told


def _until_not_ready(agent: AgentUnderTest, reason: str) -> None:
    until = time.monotonic() + SECONDS_MAX
    while True:
        try:
            urllib.request.urlopen(f"http://{agent.http}/readyz", timeout=SECONDS_MAX).close()
        except urllib.error.HTTPError as error:
            if reason in json.load(error)["reason"]:
                return
        assert time.monotonic() < until, "the agent stayed ready"
        time.sleep(0.1)
