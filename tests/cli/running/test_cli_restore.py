"""`headrace topics restore` on a running cluster of two agents: clients that were at work go on where they were."""

from __future__ import annotations

import time

import confluent_kafka
import psycopg
import pytest

from headrace.cli.main import main
from load.dev_server import DevServer
from tests.cli.command_lines import SECONDS_MAX, Run, told
from tests.confluent_records import read
from tests.kafka_clients import KafkaClients

PARTITIONS = 8
GROUP = "restore-readers"


class Clients:
    """An idempotent producer that stays, and a group that reads; every record has its number as value."""

    def __init__(self, server: DevServer, topic: str) -> None:
        self.topic, self._servers = topic, {"bootstrap.servers": server.bootstrap}
        self._producer = confluent_kafka.Producer(
            self._servers
            | {"enable.idempotence": True, "topic.metadata.refresh.interval.ms": 500}
            | {"allow.auto.create.topics": False, "linger.ms": 1}
        )
        self.failed: list[object] = []
        self._count = 0

    def send(self, count: int) -> None:
        """Send the next `count` numbers, in turn to each partition."""
        for _ in range(count):
            value = str(self._count).encode()
            self._producer.produce(
                self.topic, value, partition=self._count % PARTITIONS, on_delivery=lambda error, _: self._note(error)
            )
            self._count += 1

    def flush(self) -> None:
        """Wait for every answer; none is an error."""
        assert self._producer.flush(SECONDS_MAX) == 0
        assert self.failed == []

    def _note(self, error: object) -> None:
        if error is not None:
            self.failed.append(error)

    def consume(self, count: int) -> list[int]:
        """Read so many records as a member of the group, commit and leave; the numbers in order of arrival."""
        settings = {"group.id": GROUP, "auto.offset.reset": "error", "enable.auto.commit": False}
        consumer = confluent_kafka.Consumer(self._servers | settings)
        consumer.subscribe([self.topic])
        found: list[int] = []
        until = time.monotonic() + SECONDS_MAX
        while len(found) < count and time.monotonic() < until:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                found.append(int(message.value()))
        consumer.commit(asynchronous=False)
        consumer.close()
        return found

    def begin_group(self) -> None:
        """The group begins at offset 0 of each partition."""
        places = [confluent_kafka.TopicPartition(self.topic, n, 0) for n in range(PARTITIONS)]
        KafkaClients(self._servers["bootstrap.servers"]).commit(GROUP, *places)


def numbers_at(bootstrap: str, topic: str) -> list[int]:
    """Return every number in the topic, each as often as it is there."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "looks", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer(settings | {"auto.offset.reset": "error"})
    places = [confluent_kafka.TopicPartition(topic, n) for n in range(PARTITIONS)]
    count = 0
    for place in places:
        place.offset, end = consumer.get_watermark_offsets(place, SECONDS_MAX)
        count += end - place.offset
    consumer.assign(places)
    found = sorted(int(message.value()) for message in read(consumer, count, SECONDS_MAX))
    consumer.close()
    return found


def purge(server: DevServer) -> None:
    """Do what the agents' housekeeping does with deleted partitions, now."""
    with psycopg.connect(server.metastore_url, autocommit=True) as connection:
        while (connection.execute("SELECT purge_deleted_partitions(100)").fetchone() or (0,))[0]:
            pass
        assert connection.execute("SELECT count(*) FROM deleted_partitions WHERE NOT is_emptied").fetchone() == (0,)


def restore(server: DevServer, *words: str) -> int:
    return main(["topics", "restore", *words, "--metastore-url", server.metastore_url, "--bucket", server.bucket])


def test_clients_go_on_after_a_deletion_by_mistake(
    run: Run, server: DevServer, capsys: pytest.CaptureFixture[str]
) -> None:
    run("topics", "create", "restore-mistake", "--partitions", str(PARTITIONS), "--set", "segment.ms=12345")
    described = told(
        lambda: run("topics", "describe", "restore-mistake")[0], lambda t: len(t["partitions"]) == PARTITIONS
    )
    assert {row["leader"] for row in described["partitions"]} == {1, 2}, "both agents serve it"
    clients = Clients(server, "restore-mistake")
    clients.begin_group()
    clients.send(80)
    clients.flush()
    first = clients.consume(40)
    capsys.readouterr()
    assert main(["topics", "delete", "restore-mistake", "--yes", "-b", server.bootstrap]) == 0
    said = capsys.readouterr().out
    assert "restore-mistake can be restored until 20" in said
    assert "headrace topics restore restore-mistake --metastore-url" in said
    told(lambda: run("topics", "list"), lambda rows: "restore-mistake" not in {row["topic"] for row in rows})
    clients.send(80)
    purge(server)
    assert restore(server, "--list") == 0
    assert "restore-mistake" in capsys.readouterr().out
    assert restore(server, "restore-mistake", "--dry-run") == 0
    assert restore(server, "restore-mistake") == 0
    assert "restored: topic restore-mistake, 8 partitions, 80 records" in capsys.readouterr().out
    clients.flush()
    again = told(lambda: run("topics", "describe", "restore-mistake")[0], lambda t: len(t["partitions"]) == PARTITIONS)
    assert (again["id"], again["configs"]) == (described["id"], {"segment.ms": "12345"})
    assert sorted(first + clients.consume(120)) == list(range(160)), "each once: the group goes on where it was"
    for agent in server.agents:
        assert numbers_at(agent.kafka, "restore-mistake") == list(range(160))


def test_records_that_were_deleted_come_back_at_both_agents(
    run: Run, server: DevServer, capsys: pytest.CaptureFixture[str]
) -> None:
    run("topics", "create", "restore-short", "--partitions", str(PARTITIONS))
    clients = Clients(server, "restore-short")
    clients.send(160)
    clients.flush()
    both = [agent.kafka for agent in server.agents]
    assert [numbers_at(each, "restore-short") for each in both] == [list(range(160))] * 2
    run("records", "delete", "restore-short", "--all", "--yes")
    assert [numbers_at(each, "restore-short") for each in both] == [[], []]
    run("configs", "set", "--topic", "restore-short", "retention.ms=1")
    capsys.readouterr()
    assert restore(server, "restore-short", "--records") == 1
    assert "raise retention.ms (now 1) first" in capsys.readouterr().err
    run("configs", "delete", "--topic", "restore-short", "retention.ms")
    assert restore(server, "restore-short", "--records", "--dry-run", "--json") == 0
    assert "restored_from" in capsys.readouterr().out
    assert restore(server, "restore-short", "--records") == 0
    assert "restored: topic restore-short, 8 partitions" in capsys.readouterr().out
    told(
        lambda: [numbers_at(each, "restore-short") for each in both],
        lambda found: found == [list(range(160))] * 2,
    )
    clients.send(8)
    clients.flush()
    assert numbers_at(both[0], "restore-short") == list(range(168))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("never-was",), "no deleted topic of this name can be restored: topic=never-was"),
        (("never-was", "--records"), "topic does not exist: never-was"),
        (("x", "--as", "a/b"), "characters other than ASCII letters"),
    ],
)
def test_refusals_of_a_restore(
    words: tuple[str, ...], said: str, server: DevServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert restore(server, *words) == 1
    assert said in capsys.readouterr().err


def test_a_topic_that_is_there_is_not_restored(run: Run, server: DevServer, capsys: pytest.CaptureFixture[str]) -> None:
    run("topics", "create", "restore-there")
    told(lambda: run("topics", "list"), lambda rows: "restore-there" in {row["topic"] for row in rows})
    assert restore(server, "restore-there") == 1
    assert "topic restore-there is not deleted: with --records" in capsys.readouterr().err
    assert restore(server, "restore-there", "--records") == 1
    assert "no removed records are kept" in capsys.readouterr().err
    run("topics", "delete", "restore-there", "--yes")
    run("topics", "create", "restore-there")
    assert restore(server, "restore-there") == 1
    assert (
        "restore the deleted one under another name (--as NAME), or delete the one that is there"
        in capsys.readouterr().err
    )
    assert restore(server, "restore-there", "--as", "restore-there-before", "--json") == 0
    assert '"outcome": "restored"' in capsys.readouterr().out
