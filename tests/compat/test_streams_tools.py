"""kafka-streams-groups.sh prints the same about a streams group of an agent as about one of Apache Kafka."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.cli.main import main
from load.dev_server import DevServer
from tests.compat.kafka_server import kafka_server
from tests.compat.test_streams_answers import AT_ONCE, Asked, plan, sub
from tests.kafka_clients import KafkaClients
from tests.tools import KAFKA_JARS

pytestmark = [pytest.mark.requirement("X16"), pytest.mark.slow, pytest.mark.needs("kafka")]
TOOL = "org.apache.kafka.tools.streams.StreamsGroupCommand"
TIMEOUT_SECONDS = 240
GROUP, TOPIC = "tooled", "tool-words"


def _tool(bootstrap: str, *words: str) -> list[list[str]]:
    """Return the words of each line that the tool prints, in any order."""
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{KAFKA_JARS}/*", TOOL, "--bootstrap-server", bootstrap]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS)
    lines = (done.stdout + f"\nended {done.returncode}").splitlines()
    return sorted(_named(line, bootstrap) for line in lines if line.strip())


def _named(line: str, bootstrap: str) -> list[str]:
    return ["COORDINATOR" if word.startswith("127.0.0.1:") else word for word in line.split()]


def _printed(bootstrap: str) -> Iterator[list[list[str]]]:
    """Yield what the tool prints of a group, with a thread and then without."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(60)
    KafkaClients(bootstrap).produce(TOPIC, ["v"] * 4, 2)
    words = plan(sub("0", TOPIC))
    with ExitStack() as stack:
        of = Asked(bootstrap, stack)
        of.join(GROUP, "a", words)
        yield _tool(bootstrap, "--list")
        yield _tool(bootstrap, "--describe", "--group", GROUP, "--state")
        yield _tool(bootstrap, "--describe", "--group", GROUP, "--state", "--verbose")
        yield _tool(bootstrap, "--describe", "--group", GROUP, "--members", "--verbose")
        yield _tool(bootstrap, "--describe", "--group", GROUP, "--offsets")
        yield _tool(bootstrap, "--delete", "--group", GROUP)
        of.beat(GROUP, "a", -1)
    yield _tool(bootstrap, "--reset-offsets", "--group", GROUP, "--input-topic", TOPIC, "--to-latest", "--execute")
    yield _tool(bootstrap, "--describe", "--group", GROUP)
    yield _tool(bootstrap, "--delete-offsets", "--group", GROUP, "--input-topic", TOPIC)
    yield _tool(bootstrap, "--delete", "--group", GROUP)
    yield _tool(bootstrap, "--list")


def test_the_tool_prints_the_same(tmp_path_factory: pytest.TempPathFactory) -> None:
    with DevServer(tmp_path_factory.mktemp("dev"), settings={**AT_ONCE, "linger.ms": 25}) as running:
        ours = list(_printed(running.bootstrap))
    with kafka_server(tmp_path_factory.mktemp("kafka"), AT_ONCE) as bootstrap:
        kafkas = list(_printed(bootstrap))
    for step, (own, kafka) in enumerate(zip(ours, kafkas, strict=True)):
        assert own == kafka, f"step {step}"
    assert [GROUP] in ours[0]


def test_headrace_groups_shows_the_threads(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        DevServer(tmp_path_factory.mktemp("dev"), settings={**AT_ONCE, "linger.ms": 25}) as running,
        ExitStack() as stack,
    ):
        assert main(["topics", "create", TOPIC, "--partitions", "2", "-b", running.bootstrap]) == 0
        Asked(running.bootstrap, stack).join(GROUP, "a", plan(sub("0", TOPIC)))
        capsys.readouterr()
        assert main(["groups", "describe", GROUP, "--members", "-b", running.bootstrap]) == 0
        shown = capsys.readouterr().out
        assert f"{TOPIC}:0" in shown
        assert f"{TOPIC}:1" in shown
        assert main(["groups", "list", "--type", "streams", "-b", running.bootstrap]) == 0
        assert GROUP in capsys.readouterr().out
