"""X14: groups move with a link: from a real Kafka 4.3.1 to here, where they go on at the record at which they stopped.

Records are written and read by librdkafka on both sides, by classic groups and by groups of KIP-848.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from headrace.cli.main import main
from load.dev_server import DevServer
from tests.compat.kafka_server import kafka_server
from tests.compat.link_source import EVERY_SECONDS, ONE_NODE, PARTITIONS, fill
from tests.waiting import until

pytestmark = [pytest.mark.needs("kafka"), pytest.mark.slow, pytest.mark.requirement("X14")]
RECORDS = 600
SHARE_GROUPS = {"share.coordinator.state.topic.replication.factor": "1", "share.coordinator.state.topic.min.isr": "1"}
Places = set[tuple[int, int]]


@pytest.fixture
def source(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "kafka"
    folder.mkdir()
    with kafka_server(folder, ONE_NODE | SHARE_GROUPS) as bootstrap:
        fill(bootstrap)
        yield bootstrap


@pytest.fixture
def here(tmp_path: Path) -> Iterator[str]:
    tmp_path.chmod(0o711)
    with DevServer(tmp_path / "dev") as server:
        yield server.bootstrap


@pytest.fixture
def link(source: str, here: str, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run `headrace link`; what it prints with --json."""

    def run(*words: str) -> Any:
        capsys.readouterr()
        status = main(["link", *words, "--json", "-b", here])
        shown = capsys.readouterr()
        assert status == 0, shown.err
        return json.loads(shown.out)

    run("create", "old", "--from", source, "--topics", "orders", "--groups", "app.*")
    until(lambda: (found := run("show", "old")["topics"]) and all(t["lag"] == 0 and t["lag_ms"] >= 0 for t in found))
    return run


def consumer(bootstrap: str, group: str, protocol: str) -> Consumer:
    own = {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest", "group.protocol": protocol}
    return Consumer({"bootstrap.servers": bootstrap, **own})


def read(reader: Consumer, most: int) -> Places:
    """Read so many records, and commit what was read."""
    seen = Places()
    while len(seen) < most:
        message = reader.poll(EVERY_SECONDS)
        assert message is not None, len(seen)
        assert message.error() is None, message.error()
        place = message.partition() or 0, message.offset() or 0
        assert place not in seen
        seen.add(place)
    reader.commit(asynchronous=False)
    return seen


def groups(link: Any) -> dict[str, Any]:
    found = link("groups", "old")
    assert not found["problem"], found
    return {each["group_id"]: each for each in found["groups"]}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_goes_on_here_at_the_record_at_which_it_stopped(
    source: str, here: str, link: Any, protocol: str
) -> None:
    """It commits until the moment at which it moves: what no look has seen yet is copied before it begins here."""
    there = consumer(source, "app", protocol)
    there.subscribe(["orders"])
    seen = read(there, 200)
    until(lambda: groups(link).get("app", {}).get("copied_ms", -1) >= 0)
    assert groups(link)["app"]["has_members_there"]
    seen |= read(there, 130)
    there.close()
    new = consumer(here, "app", protocol)
    new.subscribe(["orders"])
    rest = read(new, RECORDS - len(seen))
    assert not seen & rest, "a record was delivered again"
    assert len(seen | rest) == RECORDS
    assert new.poll(3) is None
    new.close()
    until(lambda: groups(link)["app"]["is_here"])
    assert [each.offset for each in committed(here, "app")] == [200] * PARTITIONS
    back = consumer(source, "app", protocol)
    back.subscribe(["orders"])
    read(back, 10)
    until(lambda: groups(link)["app"]["has_members_there"])
    assert "has members at the source" in groups(link)["app"]["problem"]
    back.close()
    assert [each.offset for each in committed(here, "app")] == [200] * PARTITIONS, "it is not copied any more"


def committed(bootstrap: str, group: str) -> list[TopicPartition]:
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        return reader.committed([TopicPartition("orders", index) for index in range(PARTITIONS)], timeout=EVERY_SECONDS)
    finally:
        reader.close()


def test_consumers_move_after_the_promotion_too(source: str, here: str, link: Any) -> None:
    there = consumer(source, "app-late", "classic")
    there.subscribe(["orders"])
    seen = read(there, 100)
    until(lambda: "app-late" in groups(link))
    link("promote", "old")
    seen |= read(there, 100)
    there.close()
    new = consumer(here, "app-late", "classic")
    new.subscribe(["orders"])
    rest = read(new, RECORDS - len(seen))
    assert not seen & rest
    new.close()
    link("drop", "old")
    again = consumer(here, "app-late", "classic")
    again.subscribe(["orders"])
    assert again.poll(5) is None, "its offsets stay when the link is gone"
    again.close()
