"""`headrace cluster` and `headrace shell --controllers` against a running agent, and who reads its metadata topic."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import kafka
import pytest

from headrace.cli.main import main
from headrace.config.errors import ConfigError
from headrace.config.settings import Settings
from headrace.metastore.api import topics
from headrace.metastore.api.agents import AgentRegistration
from headrace.metastore.api.cluster import StoredSnapshot
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.replay import apply
from headrace.metastore.log.snapshot import encode_snapshot, load_image
from headrace.metastore.postgres.formatted import formatted_cluster_id
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.protocol.client.transport import client_config, parse_servers
from tests.agent_process import SECONDS_MAX, AgentUnderTest, format_storage
from tests.kafka_clients import KafkaClients


@pytest.fixture
def agent(metastore_url: str, tmp_path: Path) -> Iterator[AgentUnderTest]:
    places = {"metastore.url": metastore_url, "bucket": tmp_path.as_uri()}
    format_storage(places)
    with AgentUnderTest({**places, "log.level": "warning"}) as agent:
        KafkaClients(agent.kafka).create("orders", 3)
        yield agent


@pytest.mark.requirement("C11.2")
def test_cluster_id_and_unregister(
    agent: AgentUnderTest, metastore_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["cluster", "cluster-id", "-b", agent.kafka]) == 0
    assert capsys.readouterr().out == f"Cluster ID: {formatted_cluster_id(metastore_url)}\n"
    file = tmp_path / "admin.properties"
    file.write_text(f"bootstrap.servers=127.0.0.1:1,{agent.kafka}\nclient.id=me\n")
    unregister = ["cluster", "unregister", "-c", str(file), "-i", "4711"]
    assert main(unregister) == 1
    assert capsys.readouterr().err == "error: broker 4711 is not registered\n"
    asyncio.run(_register(metastore_url, 4711))
    for status in (0, 1):  # the agent learns of each change a moment later
        until = time.monotonic() + SECONDS_MAX
        while main(unregister) != status:
            assert time.monotonic() < until
        if status == 0:
            assert capsys.readouterr().out == "Broker 4711 is no longer registered.\n"


@pytest.mark.requirement("C11.4")
def test_the_shell_reads_a_running_cluster(agent: AgentUnderTest, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    for controllers in (agent.kafka, f"{agent.node_id}@{agent.kafka}"):
        assert main(["shell", "--controllers", controllers, "-c", "ls /topics"]) == 0
        assert capsys.readouterr().out == "orders\n"
    assert main(["shell", "-C", agent.kafka, "cat", f"/brokers/{agent.node_id}/isFenced"]) == 0
    assert capsys.readouterr().out == "false\n"
    assert main(["shell", "-C", "127.0.0.1:1", "ls"]) == 1
    assert capsys.readouterr().err == "error: no server answered: 127.0.0.1:1 [Errno 111] Connection refused\n"


@pytest.mark.requirement("C11.4")
def test_the_shell_begins_with_a_snapshot_where_the_logs_beginning_is_gone(
    agent: AgentUnderTest, metastore_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(_truncate(metastore_url))
    capsys.readouterr()
    assert main(["shell", "-C", agent.kafka, "-c", "find /topics/orders"]) == 0
    shown = capsys.readouterr().out
    assert main(["shell", "--metastore-url", metastore_url, "-c", "find /topics/orders"]) == 0
    assert capsys.readouterr().out == shown
    assert "/topics/orders/2/data" in shown
    assert main(["dump-log", "--cluster-metadata-decoder", "--metastore-url", metastore_url]) == 0
    assert not capsys.readouterr().out.startswith("baseOffset: 0 "), "what went into the snapshot is not there"
    assert (
        main(["dump-log", "--cluster-metadata-decoder", "--start-offset", "0", "--metastore-url", metastore_url]) == 1
    )


async def _register(metastore_url: str, node_id: int) -> None:
    """Do the same as an agent that will not come back once did."""
    metastore = await PostgresMetastore.open(metastore_url, Settings())
    await metastore.cluster.register_agent(AgentRegistration(node_id, uuid.uuid4(), "gone", 9092, None))
    await metastore.close()


async def _truncate(metastore_url: str) -> None:
    """Do the same as the active controller would: two snapshots take the place of the log below them."""
    metastore = await PostgresMetastore.open(metastore_url, Settings())
    lease = await metastore.controller.describe_controller()
    assert lease is not None
    for number in range(2):
        image = await load_image(metastore.cluster)
        snapshot = StoredSnapshot(image.offset, encode_snapshot(image))
        await metastore.controller.save_snapshot(lease.controller_epoch, snapshot)
        topic = topics.NewTopic(f"later-{number}", uuid.uuid4(), 1, {})
        assert await metastore.topics.create_topics(image.offset, [topic])
    assert await metastore.controller.truncate_metadata(lease.controller_epoch, 10_000) > 0
    assert await metastore.cluster.metadata_log_start() > 0
    await metastore.close()


def test_other_libraries_read_the_metadata_topic_and_none_writes_it(agent: AgentUnderTest) -> None:
    messages = KafkaClients(agent.kafka).read_partition("__cluster_metadata", 0)
    assert [(m.key(), m.offset()) for m in messages] == [(None, n) for n in range(len(messages))]
    image = apply(MetadataImage(), [bytes(m.value()) for m in messages])
    assert list(image.topics_by_name) == ["orders"]

    other = kafka.KafkaConsumer(bootstrap_servers=agent.kafka, consumer_timeout_ms=SECONDS_MAX * 1000)
    partition = kafka.TopicPartition("__cluster_metadata", 0)
    other.assign([partition])
    other.seek(partition, 0)
    values = [next(other).value for _ in messages]
    other.close()
    assert values == [bytes(m.value()) for m in messages]

    assert KafkaClients(agent.kafka).refusal("__cluster_metadata", b"x") == "TOPIC_EXCEPTION"


@pytest.mark.parametrize("text", ["", "host:", "host:x", "host:99999", ":1", "a:1,,b:2"])
def test_bad_addresses_are_named(text: str) -> None:
    with pytest.raises(ConfigError, match="not a host and port"):
        parse_servers(text)


def test_addresses_may_have_node_ids_brackets_and_no_port() -> None:
    assert parse_servers("1@a:7,[::1]:8, b") == (("a", 7), ("::1", 8), ("b", 9092))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("security.protocol=TLS", "security.protocol: not one of PLAINTEXT, SSL"),
        ("security.protocol=SASL_SSL", "sasl.mechanism: not one of PLAIN, SCRAM"),
        ("ssl.truststore.type=JKS", "only PEM files"),
        ("linger.ms=5", "unknown setting linger.ms"),
        ("request.timeout.ms=soon", "not a number"),
        ("client.id=x", "set --bootstrap-server"),
    ],
)
def test_client_settings_that_cannot_work_are_refused(line: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "admin.properties"
    file.write_text(line + "\n")
    with pytest.raises(ConfigError, match=reason):
        client_config("h:1" if "client.id" not in line else None, file)


def test_a_server_that_answers_nonsense_or_nothing_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        answers = [b"", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x06" + b"\xff" * 6]

        def serve() -> None:
            for answer in (answer for answer in answers for _ in range(3)):  # two more ask for HTTP and TLS
                connection, _ = server.accept()
                with contextlib.suppress(OSError), connection:
                    connection.recv(1_000)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        for expected in ("no server answered", "not a Kafka response", "cannot parse response"):
            address = f"127.0.0.1:{server.getsockname()[1]}"
            assert main(["cluster", "cluster-id", "-b", address]) == 1
            assert expected in capsys.readouterr().err
        thread.join()
