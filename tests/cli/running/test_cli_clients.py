"""`headrace topics`, `configs`, `groups` and `records` against a running cluster of two agents."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from headrace.cli.main import main
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.api_versions import APIS
from headrace.protocol.client.cluster import KafkaCluster, WrongBrokerError
from headrace.protocol.client.messages import VERSIONS
from headrace.protocol.client.transport import client_config
from headrace.storage.errors import InvalidError
from load.dev_server import DevServer
from tests.cli.command_lines import SECONDS_MAX, Run, produce, told, type_in
from tests.confluent_records import read
from tests.kafka_clients import KafkaClients
from tests.share_member import Delivered, ShareMember


def test_a_topics_life(run: Run, plain: Run) -> None:
    assert run("topics", "create", "life", "--partitions", "2", "--set", "retention.ms=5000")["outcome"] == "created"
    assert run("topics", "create", "life", "--if-not-exists")["outcome"] == "exists"
    assert "already exists" in run("topics", "create", "life", status=1)
    assert run("topics", "create", "other", "--validate-only")["outcome"] == "would be created"
    assert "not one of compact, delete: compacted" in run(
        "topics", "create", "x", "--set", "cleanup.policy=compacted", status=1
    )
    rows = told(lambda: run("topics", "list"), lambda rows: "life" in {row["topic"] for row in rows})
    assert {row["topic"]: row["partitions"] for row in rows}["life"] == 2
    run("topics", "alter", "life", "--partitions", "4", "--set", "segment.ms=9", "--delete-config", "retention.ms")
    assert "already has 4 partitions" in run("topics", "alter", "life", "--partitions", "4", status=1)
    described = told(lambda: run("topics", "describe", "life")[0], lambda topic: len(topic["partitions"]) == 4)
    assert described["configs"] == {"segment.ms": "9"}
    rows = run("configs", "describe", "--topic", "life", "--all")
    assert {row["config"]: row["source"] for row in rows if row["source"] != "DEFAULT_CONFIG"} == {
        "segment.ms": "DYNAMIC_TOPIC_CONFIG"
    }, "what a cluster records of its defaults is no config that was set"
    assert [(row["partition"], row["earliest"], row["latest"]) for row in described["partitions"]] == [
        (n, 0, 0) for n in range(4)
    ]
    shrunk = run("topics", "alter", "life", "--partitions", "3", status=1)
    assert "lower the count from 4 to 3? partition 3 take no new records" in shrunk
    assert "Producers that know the higher count get errors" in shrunk
    assert len(run("topics", "describe", "life")[0]["partitions"]) == 4
    table = plain("topics", "describe", "life")
    assert table[0][:3] == ["TOPIC", "PARTITION", "LEADER"]
    assert len(table) == 5 + 1 + 2
    assert "repeat with --yes" in run("topics", "delete", "life", status=1)
    assert run("topics", "delete", "life", "--yes") == [{"topic": "life", "outcome": "deleted", "error": None}]
    told(lambda: run("topics", "list"), lambda rows: "life" not in {row["topic"] for row in rows})
    assert "topic does not exist" in run("topics", "describe", "life", status=1)


def test_a_topic_doubles(run: Run, server: DevServer) -> None:
    run("topics", "create", "twice", "--partitions", "2")
    told(lambda: run("topics", "list"), lambda rows: "twice" in {row["topic"] for row in rows})
    KafkaClients(server.bootstrap).commit("assigns", confluent_kafka.TopicPartition("twice", 0, 0))
    words = ("topics", "alter", "twice", "--double", "--producers-max-age-ms", "500", "--partitions", "4")
    assert "read children at once: groups=assigns" in run(*words, status=1)
    forced = run(*words, "--force", "--validate-only")
    assert (forced["outcome"], forced["partitions"]) == ("would be doubled", 2)
    doubled = run(*words, "--force")
    assert (doubled["outcome"], doubled["partitions"], doubled["boundaries"]) == ("doubled", 4, 2)
    run("groups", "delete", "assigns", "--yes")
    assert run(*words)["partitions"] == 4, "it is repeated"
    for_an_hour = ("topics", "alter", "twice", "--double", "--producers-max-age-ms", "3600000", "--partitions")
    run(*for_an_hour, "8", "--no-wait")
    assert "last doubling is not over" in run(*for_an_hour, "16", status=1)
    assert "last doubling is not over" in run("topics", "alter", "twice", "--partitions", "9", status=1)
    described = told(lambda: run("topics", "describe", "twice")[0], lambda topic: len(topic["partitions"]) == 8)
    assert {row["latest"] for row in described["partitions"]} == {0}


@pytest.mark.slow
def test_a_topic_halves_again(run: Run, server: DevServer) -> None:
    run("topics", "create", "half", "--partitions", "2")
    told(lambda: run("topics", "list"), lambda rows: "half" in {row["topic"] for row in rows})
    assert "its initial count times 2" in run("topics", "alter", "half", "--halve", "--partitions", "1", status=1)
    run("topics", "alter", "half", "--double", "--partitions", "4", "--producers-max-age-ms", "500")
    assert "does not halve" in run("topics", "alter", "half", "--halve", "--cancel", status=1)
    KafkaClients(server.bootstrap).commit("alone", confluent_kafka.TopicPartition("half", 3, 0))
    assert "never had members" in run("topics", "alter", "half", "--halve", "--partitions", "2", status=1)
    checked = run("topics", "alter", "half", "--halve", "--force", "--validate-only")
    assert (checked["outcome"], checked["partitions"]) == ("would be halved", 4)
    halved = run("topics", "alter", "half", "--halve", "--force", "--partitions", "2")
    assert (halved["outcome"], halved["partitions"], halved["boundaries"]) == ("halved", 2, 2)
    assert run("topics", "alter", "half", "--halve", "--partitions", "2")["partitions"] == 2, "it is repeated"
    told(lambda: run("topics", "describe", "half")[0], lambda topic: len(topic["partitions"]) == 2)
    assert "the topic halves" in run("topics", "alter", "half", "--double", "--partitions", "4", status=1)
    run("groups", "delete", "alone", "--yes")


def test_configs_of_every_kind(run: Run, server: DevServer) -> None:
    run("topics", "create", "configured")
    node = str(server.agents[1].node_id)
    for whose in (("--topic", "configured"), ("--brokers",)):
        name = "retention.ms" if whose[0] == "--topic" else "log.retention.ms"
        others = [row for row in run("configs", "describe", *whose) if row["config"] != name]
        assert len(others) == (whose[0] == "--brokers"), "what `dev` gives a cluster are the defaults but for one"
        assert run("configs", "set", f"{name}=7000", *whose, "--validate-only")["outcome"] == "would be accepted"
        assert run("configs", "set", f"{name}=7000", *whose)["outcome"] == "done"
        (row,) = (row for row in run("configs", "describe", *whose) if row["config"] == name)
        assert (row["value"], row["read_only"]) == ("7000", False)
        run("configs", "delete", name, *whose)
        assert run("configs", "describe", *whose) == others
    run("configs", "set", "consumer.session.timeout.ms=50000", "--group", "g")
    assert run("configs", "describe", "--group", "g")[0]["source"] == "DYNAMIC_GROUP_CONFIG"
    url, linger = run("configs", "describe", "--broker", node, "metastore.url", "linger.ms")[::-1]
    assert url["value"].startswith("postgresql://headrace@/"), "local and without a password: scans find it here"
    assert not url["sensitive"]
    assert (linger["value"], linger["source"]) == ("25", "STATIC_BROKER_CONFIG")
    run("configs", "set", "headrace.agent.nobody=DEBUG", "--logger", node, status=1)
    run("configs", "set", "root=ERROR", "--logger", node)
    assert {"root": "ERROR"}.items() <= {
        row["config"]: row["value"] for row in run("configs", "describe", "--logger", node)
    }.items()
    assert "unknown topic config" in run("configs", "set", "no.such=1", "--topic", "configured", status=1)
    assert "restart" in run("configs", "set", "linger.ms=5", "--broker", node, status=1)
    assert "broker does not exist" in run("configs", "describe", "--broker", "99999", status=1)
    explained = run("configs", "describe", "--topic", "configured", "--explain")
    assert all(row["meaning"] for row in explained)


def test_records_go_in_and_come_out(run: Run, plain: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("topics", "create", "records", "--partitions", "3")
    lines = [f"key-{n % 7}:value-{n}" for n in range(1200)]
    options = ("--key-separator", ":", "--header", "origin=test", "--compression", "zstd")
    assert produce(run, monkeypatch, "records", *lines, options=options)["records"] == 1200
    found = run("records", "consume", "records")
    assert sorted(f"{r['key']}:{r['value']}" for r in found) == sorted(lines)
    assert all(r["headers"] == [{"key": "origin", "value": "test"}] for r in found)
    for index in range(3):
        assert [r["offset"] for r in found if r["partition"] == index] == list(
            range(sum(r["partition"] == index for r in found))
        )
    homes = {r["key"]: r["partition"] for r in found}
    assert len({(r["key"], r["partition"]) for r in found}) == len(homes) == 7, "a key has one partition"
    one = next(iter(homes.values()))
    some = run("records", "consume", "records", "--partition", str(one), "--from", "5", "--max", "2")
    assert [r["offset"] for r in some] == [5, 6]
    assert run("records", "consume", "records", "--from", "latest") == []
    assert len(plain("records", "consume", "records", "--from", "2020-01-01T00:00:00+00:00", "--max", "3")) == 3
    assert ["key-1", "value-1"] in plain("records", "consume", "records", "--format", "key")
    offsets = run("records", "offsets", "records", "--at", "2020-01-01T00:00:00+00:00")
    assert sum(row["latest"] for row in offsets) == 1200
    assert "partition does not exist" in run("records", "offsets", "records", "--partition", "9", status=1)
    assert "no ':' between" in _refused(run, monkeypatch)


def _refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> str:
    type_in(monkeypatch, b"no separator here\n")
    error: str = run("records", "produce", "records", "--key-separator", ":", status=1)
    return error


def test_records_are_deleted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("topics", "create", "shortened")
    produce(run, monkeypatch, "shortened", *"abcdef")
    assert "repeat with --yes" in run("records", "delete", "shortened", "--before-offset", "2", status=1)
    (row,) = run("records", "delete", "shortened", "--before-offset", "2", "--yes")
    assert row["earliest"] == 2
    assert [r["value"] for r in run("records", "consume", "shortened")] == [*"cdef"]
    run("records", "delete", "shortened", "--all", "--yes")
    assert run("records", "consume", "shortened") == []
    (row,) = run("records", "offsets", "shortened")
    assert (row["earliest"], row["latest"]) == (6, 6)


def test_a_groups_life(run: Run, server: DevServer, monkeypatch: pytest.MonkeyPatch) -> None:
    run("topics", "create", "read", "--partitions", "2")
    for index in ("0", "1"):
        produce(run, monkeypatch, "read", *"abcde", options=("--partition", index))
    with KafkaClients(server.bootstrap).consumer({"group.id": "readers"}) as consumer:
        consumer.subscribe(["read"])
        assert len(read(consumer, 10, SECONDS_MAX)) == 10
        consumer.commit(asynchronous=False)
        assert {"group": "readers", "state": "Stable", "type": "classic"}.items() <= run("groups", "list")[0].items()
        rows = run("groups", "describe", "readers")
        shown = [(row["partition"], row["current_offset"], row["log_end_offset"], row["lag"]) for row in rows]
        assert shown == [(0, 5, 5, 0), (1, 5, 5, 0)]
        assert all(row["client"] for row in rows)
        (member,) = run("groups", "describe", "readers", "--members")
        assert member["assignment"] == ["read:0", "read:1"]
        assert "has members" in run("groups", "reset-offsets", "readers", "--to-earliest", "--execute", status=1)

    planned = run("groups", "reset-offsets", "readers", "--to-offset", "2", "--topic", "read:1")
    assert planned == [{"topic": "read", "partition": 1, "current_offset": 5, "new_offset": 2}]
    assert [row["current_offset"] for row in run("groups", "describe", "readers")] == [5, 5], "only a plan"
    run("groups", "reset-offsets", "readers", "--to-offset", "2", "--topic", "read:1", "--execute")
    assert [row["current_offset"] for row in run("groups", "describe", "readers")] == [5, 2]
    run("groups", "reset-offsets", "readers", "--to-datetime", "2020-01-01T00:00:00+00:00", "--execute")
    assert [row["lag"] for row in run("groups", "describe", "readers")] == [5, 5]
    run("groups", "reset-offsets", "readers", "--shift-by", "2", "--topic", "read:0", "--execute")
    assert [row["lag"] for row in run("groups", "describe", "readers")] == [3, 5]
    run("groups", "reset-offsets", "readers", "--to-latest", "--execute")
    assert [row["lag"] for row in run("groups", "describe", "readers")] == [0, 0]
    assert run("groups", "list", "--state", "Empty")[0]["group"] == "readers"
    run("groups", "delete-offsets", "readers", "--topic", "read", "--yes")
    run("groups", "reset-offsets", "readers", "--topic", "read:0", "--to-latest", "--execute")
    assert [row["partition"] for row in run("groups", "describe", "readers")] == [0]
    assert run("groups", "delete", "readers", "--yes") == [{"group": "readers", "outcome": "deleted", "error": None}]
    assert run("groups", "list") == []


def test_a_share_groups_life(run: Run, server: DevServer, monkeypatch: pytest.MonkeyPatch) -> None:
    run("topics", "create", "worked", "--partitions", "2")
    for index in ("0", "1"):
        produce(run, monkeypatch, "worked", *"abcde", options=("--partition", index))
    run("configs", "set", "share.auto.offset.reset=earliest", "--group", "workers")
    with ShareMember(server.bootstrap, "workers", "worked") as worker:
        done = _polled(worker, 10)
        assert worker.acknowledge([record for record in done if record.partition or record.offset < 3])
        assert {"group": "workers", "type": "share"}.items() <= run("groups", "list", "--type", "share")[0].items()
        rows = run("groups", "describe", "workers")
        assert [(r["partition"], r["start_offset"], r["log_end_offset"], r["lag"], r["members"]) for r in rows] == [
            (0, 3, 5, 2, 1),
            (1, 5, 5, 0, 1),
        ]
        (member,) = run("groups", "describe", "workers", "--members")
        assert member["assignment"] == ["worked:0", "worked:1"]
        assert "has members" in run("groups", "reset-offsets", "workers", "--to-earliest", "--execute", status=1)
        run("groups", "delete", "workers", "--yes", status=1)

    planned = run("groups", "reset-offsets", "workers", "--to-offset", "1", "--topic", "worked:1")
    assert planned == [{"topic": "worked", "partition": 1, "current_offset": 5, "new_offset": 1}]
    assert [row["start_offset"] for row in run("groups", "describe", "workers")] == [3, 5], "only a plan"
    run("groups", "reset-offsets", "workers", "--to-offset", "1", "--topic", "worked:1", "--execute")
    assert [row["lag"] for row in run("groups", "describe", "workers")] == [2, 4]
    run("groups", "reset-offsets", "workers", "--to-latest", "--execute")
    assert [row["lag"] for row in run("groups", "describe", "workers")] == [0, 0]
    forgotten = run("groups", "delete-offsets", "workers", "--topic", "worked", "--yes")
    assert forgotten == [{"topic": "worked", "outcome": "deleted", "error": None}]
    assert run("groups", "describe", "workers") == []
    assert run("groups", "delete", "workers", "--yes") == [{"group": "workers", "outcome": "deleted", "error": None}]
    assert "does not exist" in run("groups", "describe", "workers", status=1)


def _polled(worker: ShareMember, count: int) -> list[Delivered]:
    """Poll until so many records were acquired."""
    found: list[Delivered] = []
    until = time.monotonic() + SECONDS_MAX
    while len(found) < count:
        found += worker.poll(count)
        assert time.monotonic() < until, found
    return found


def test_following_shows_new_records(
    run: Run, server: DevServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run("topics", "create", "followed")
    produce(run, monkeypatch, "followed", "a", "b")
    capsys.readouterr()
    words = ["records", "consume", "followed", "--follow", "--max", "4", "-b", server.bootstrap]
    following = threading.Thread(target=main, args=(words,))
    following.start()
    KafkaClients(server.bootstrap).produce("followed", "cd", one_by_one=True)
    following.join(SECONDS_MAX)
    assert not following.is_alive()
    assert capsys.readouterr().out.split() == [*"abcd"]


def test_the_oldest_versions_do_too(run: Run, server: DevServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As against an old broker: every request in the lowest version that the tools know."""
    for api_key, (oldest, _) in list(VERSIONS.items()):
        low = max(oldest, APIS[api_key].min_version)
        monkeypatch.setitem(VERSIONS, api_key, (low, low))
    run("topics", "create", "old", "--partitions", "1", "--replication-factor", "1", "--set", "segment.ms=9")
    run("topics", "alter", "old", "--partitions", "2", "--set", "segment.ms=8")
    (described,) = told(lambda: run("topics", "describe", "old"), lambda topics: len(topics[0]["partitions"]) == 2)
    assert described["configs"] == {"segment.ms": "8"}
    produce(run, monkeypatch, "old", *"abcd", options=("--partition", "1"))
    assert [r["value"] for r in run("records", "consume", "old")] == [*"abcd"]
    KafkaClients(server.bootstrap).commit("old", confluent_kafka.TopicPartition("old", 1, 3))
    assert [row["lag"] for row in run("groups", "describe", "old")] == [1]
    run("groups", "reset-offsets", "old", "--to-earliest", "--execute")
    assert [row["lag"] for row in run("groups", "describe", "old")] == [4]
    assert "old" in {row["group"] for row in run("groups", "list")}
    assert "too old" in run("groups", "list", "--state", "Empty", status=1), "it would list all of them"
    run("groups", "delete", "old", "--yes")
    run("records", "delete", "old", "--all", "--yes")
    run("topics", "delete", "old", "--yes")


def test_what_a_broker_does_not_serve_is_said() -> None:
    cluster = KafkaCluster(client_config("127.0.0.1:1", None), lambda seconds: None)
    with pytest.raises(InvalidError, match="does not support this API: api=fetch"):
        cluster.message(ApiKey.FETCH)


def test_the_wrong_broker_is_believed_and_asked_again(server: DevServer) -> None:
    pauses: list[float] = []
    answers: list[Any] = [WrongBrokerError("not me"), WrongBrokerError("nor me"), "found"]

    def work() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    with KafkaCluster(client_config(server.bootstrap, None), pauses.append) as cluster:
        assert cluster.look_again(work) == "found"
        assert len(pauses) == 2
        assert cluster.nodes() == sorted(agent.node_id for agent in server.agents)
        assert cluster.message(ApiKey.FETCH).version == 12


def test_an_unreachable_cluster_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topics", "list", "-b", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.startswith("error: no server answered: 127.0.0.1:1")
    assert main(["topics", "list"]) == 1
    assert "set --bootstrap-server" in capsys.readouterr().err


def test_only_a_file_may_name_the_cluster(server: DevServer, tmp_path: Path) -> None:
    file = tmp_path / "admin.properties"
    file.write_text(f"bootstrap.servers={server.bootstrap}\n")
    assert main(["topics", "list", "-c", str(file)]) == 0


def test_a_null_marker_makes_a_tombstone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("topics", "create", "tombstones", "--partitions", "1")
    options = ("--key-separator", ":", "--null-marker", "NULL")
    produce(run, monkeypatch, "tombstones", "a:1", "a:NULL", "NULL:2", "b:NULLS", options=options)
    produce(run, monkeypatch, "tombstones", "c:NULL", options=options[:2])
    found = [(record["key"], record["value"]) for record in run("records", "consume", "tombstones")]
    assert found == [("a", "1"), ("a", None), (None, "2"), ("b", "NULLS"), ("c", "NULL")]


def test_an_isolation_level_leaves_out_aborted_and_open_transactions(run: Run, server: DevServer) -> None:
    run("topics", "create", "isolated", "--partitions", "1")
    settings = {"bootstrap.servers": server.bootstrap, "transactional.id": "tool"}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(SECONDS_MAX)
    for value, end in (("first", "commit"), ("undone", "abort"), ("second", "commit"), ("open", "")):
        producer.begin_transaction()
        producer.produce("isolated", value)
        assert producer.flush(SECONDS_MAX) == 0
        if end:
            getattr(producer, f"{end}_transaction")(SECONDS_MAX)

    def values(*words: str) -> list[str]:
        return [record["value"] for record in run("records", "consume", "isolated", *words)]

    committed = ("--isolation-level", "read_committed")
    told(lambda: values(*committed), lambda found: found == ["first", "second"])
    assert values() == ["first", "undone", "second", "open"], "as Kafka's console consumer does by default"
    assert values(*committed, "--from", "2") == ["second"]
    assert values(*committed, "--from", "latest") == values("--from", "latest") == []
    producer.abort_transaction(SECONDS_MAX)
    producer.begin_transaction()
    producer.produce("isolated", "third")
    producer.commit_transaction(SECONDS_MAX)
    assert values(*committed, "--follow", "--from", "2", "--max", "2") == ["second", "third"]
