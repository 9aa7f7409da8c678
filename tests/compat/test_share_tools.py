"""Kafka's console share consumer and kafka-share-groups.sh print the same about an agent as about Apache Kafka."""

from __future__ import annotations

import subprocess
import time
import uuid
from collections.abc import Iterator

import confluent_kafka
import pytest

from headrace.cli.main import main
from load.dev_server import DevServer
from tests.compat.kafka_server import kafka_server
from tests.tools import KAFKA_JARS

pytestmark = [pytest.mark.needs("kafka"), pytest.mark.slow]
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
ONE_NODE = {
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
VALUES = [f"value-{number}" for number in range(10)]
TIMEOUT_SECONDS = 240


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its bootstrap address."""
    with kafka_server(tmp_path_factory.mktemp("kafka"), ONE_NODE) as bootstrap:
        yield bootstrap


def _tool(tool: str, bootstrap: str, *words: str) -> list[list[str]]:
    """Return the words of each line that the tool prints."""
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{KAFKA_JARS}/*", tool, "--bootstrap-server", bootstrap]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(line.split() for line in done.stdout.splitlines() if line.strip())


def _until(bootstrap: str, group: str, lag: int) -> list[list[str]]:
    """Return the group's description once it has this lag, without the start offset: Kafka shows the one that it stored
    last.
    """
    until = time.monotonic() + TIMEOUT_SECONDS
    while True:
        found = _tool(GROUPS, bootstrap, "--describe", "--group", group)
        if [line[-1] for line in found if line[0] == group] == [str(lag)]:
            return [[*line[:3], line[-1]] for line in found]
        assert time.monotonic() < until, found


def _seen(bootstrap: str) -> list[list[list[str]]]:
    """Return what the tools print of a group that takes all records, one step after another."""
    topic, group = f"topic-{uuid.uuid4()}", f"group-{uuid.uuid4()}"
    assert main(["topics", "create", topic, "--partitions", "1", "-b", bootstrap]) == 0
    _configured(bootstrap, group)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(TIMEOUT_SECONDS) == 0
    words = ["--topic", topic, "--group", group, "--max-messages", str(len(VALUES)), "--timeout-ms", "120000"]
    steps = [_tool(CONSUMER, bootstrap, *words)]
    steps.append(_until(bootstrap, group, 0))
    steps.append([line for line in _tool(GROUPS, bootstrap, "--list") if line[0] == group])
    of_group = ["--group", group]
    steps.append(_tool(GROUPS, bootstrap, "--reset-offsets", *of_group, "--topic", topic, "--to-earliest", "--execute"))
    steps.append(_until(bootstrap, group, len(VALUES)))
    steps.append(_tool(GROUPS, bootstrap, "--delete-offsets", *of_group, "--topic", topic))
    steps.append(_tool(GROUPS, bootstrap, "--delete", *of_group))
    steps.append([line for line in _tool(GROUPS, bootstrap, "--list") if line[0] == group])
    names = {topic: "TOPIC-NAME", group: "GROUP-NAME"}
    return [[[_named(word, names) for word in line] for line in step] for step in steps]


def _named(word: str, names: dict[str, str]) -> str:
    for name, text in names.items():
        word = word.replace(name, text)
    return word


def _configured(bootstrap: str, group: str) -> None:
    assert main(["configs", "set", "share.auto.offset.reset=earliest", "--group", group, "-b", bootstrap]) == 0


@pytest.mark.requirement("X12")
def test_the_tools_see_the_same_as_on_kafka(server: DevServer, kafka: str) -> None:
    ours, kafkas = _seen(server.bootstrap), _seen(kafka)
    assert ours == kafkas
    assert ours[0] == sorted([value] for value in VALUES)
