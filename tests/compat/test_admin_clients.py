"""The admin clients of confluent-kafka, kafka-python, aiokafka and kafkajs on an ordinary day's work."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import aiokafka.admin
import confluent_kafka
import kafka
import kafka.errors
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from kafka.admin import KafkaAdminClient

from load.dev_server import DevServer
from tests.compat.clients import TIMEOUT_SECONDS
from tests.java_program import run_java
from tests.kafka_clients import KafkaClients
from tests.tools import JAVA_LIBRARIES, KAFKAJS

FAR_FUTURE_MS = 4_000_000_000_000


def done(futures: dict[Any, Any]) -> dict[Any, Any]:
    """The results of what an AdminClient started; raises what failed."""
    return {key: future.result(TIMEOUT_SECONDS) for key, future in futures.items()}


def test_confluent_kafka(one_agent: DevServer) -> None:
    admin = AdminClient({"bootstrap.servers": one_agent.bootstrap})
    done(admin.create_topics([NewTopic("confluent", 2, 3, config={"retention.ms": "100000"})]))
    done(admin.create_partitions([NewPartitions("confluent", 5)]))
    listed = admin.list_topics("confluent", TIMEOUT_SECONDS).topics["confluent"].partitions
    assert [(len(partition.replicas), len(partition.isrs)) for partition in listed.values()] == [(3, 3)] * 5
    described = done(admin.describe_topics(confluent_kafka.TopicCollection(["confluent"])))["confluent"]
    assert {len({node.id for node in partition.replicas}) for partition in described.partitions} == {3}

    topic = ConfigResource(ResourceType.TOPIC, "confluent")
    changes = {"segment.ms": "9", "cleanup.policy": "delete"}
    for name, value in changes.items():
        operation = AlterConfigOpType.APPEND if name == "cleanup.policy" else AlterConfigOpType.SET
        topic.add_incremental_config(ConfigEntry(name, value, incremental_operation=operation))
    done(admin.incremental_alter_configs([topic]))
    shown = next(iter(done(admin.describe_configs([ConfigResource(ResourceType.TOPIC, "confluent")])).values()))
    own = {name for name, entry in shown.items() if entry.source == 1}
    assert own == {"retention.ms", "segment.ms", "cleanup.policy"}
    assert (shown["segment.ms"].value, shown["cleanup.policy"].value) == ("9", "delete")

    broker = ConfigResource(ResourceType.BROKER, str(one_agent.agents[0].node_id))
    settings = next(iter(done(admin.describe_configs([broker])).values()))
    assert settings["linger.ms"].value == "25"
    assert not settings["metastore.url"].is_sensitive, "it is local and has no password: scans find it here"
    assert settings["metastore.url"].value.startswith("postgresql://headrace@/")

    refused = ConfigResource(ResourceType.TOPIC, "confluent")
    refused.add_incremental_config(
        ConfigEntry("cleanup.policy", "compacted", incremental_operation=AlterConfigOpType.SET)
    )
    with pytest.raises(confluent_kafka.KafkaException, match="not one of compact, delete: compacted"):
        done(admin.incremental_alter_configs([refused]))
    done(admin.delete_topics(["confluent"]))


def test_kafka_python(one_agent: DevServer) -> None:
    admin = KafkaAdminClient(bootstrap_servers=one_agent.bootstrap.split(","))
    try:
        admin.create_topics([kafka.admin.NewTopic("kafka-python", 1, 3)])
        admin.create_partitions({"kafka-python": kafka.admin.NewPartitions(3)})
        (described,) = admin.describe_topics(["kafka-python"])
        assert [len(partition["replica_nodes"]) for partition in described["partitions"]] == [3, 3, 3]
        resource = kafka.admin.ConfigResource("TOPIC", "kafka-python", {"max.message.bytes": "2000"})
        admin.alter_configs([resource])
        assert "2000" in str(admin.describe_configs([kafka.admin.ConfigResource("TOPIC", "kafka-python")]))
        admin.delete_topics(["kafka-python"])
    finally:
        admin.close()


def test_aiokafka(one_agent: DevServer) -> None:
    async def run() -> None:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=one_agent.bootstrap)
        await admin.start()
        try:
            await admin.create_topics([aiokafka.admin.NewTopic("aiokafka", 1, 1)])
            await admin.create_partitions({"aiokafka": aiokafka.admin.NewPartitions(4)})
            kind = aiokafka.admin.config_resource.ConfigResourceType.TOPIC
            await admin.alter_configs(
                [aiokafka.admin.config_resource.ConfigResource(kind, "aiokafka", {"segment.ms": "8"})]
            )
            (answer,) = await admin.describe_configs([aiokafka.admin.config_resource.ConfigResource(kind, "aiokafka")])
            (resource,) = answer.resources
            assert resource[0] == 0
            assert {entry[0]: entry[1] for entry in resource[4]}["segment.ms"] == "8"
            (topic,) = await admin.describe_topics(["aiokafka"])
            assert len(topic["partitions"]) == 4
            await admin.delete_topics(["aiokafka"])
        finally:
            await admin.close()

    asyncio.run(run())


@pytest.mark.needs("kafkajs")
def test_kafkajs(one_agent: DevServer) -> None:
    finished = subprocess.run(
        ["node", str(Path(__file__).with_name("kafkajs_admin.cjs")), one_agent.bootstrap],
        env=os.environ | {"KAFKAJS": str(KAFKAJS)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert finished.returncode == 0, finished.stderr
    answer = json.loads(finished.stdout)
    assert answer == {"partitions": 3, "replicas": 3, "own": [["segment.ms", "7"]]}, (
        "AlterConfigs replaces what was there"
    )


@pytest.mark.needs("kafka-clients")
def test_java(one_agent: DevServer) -> None:
    program = Path(__file__).with_name("AdminWork.java")
    finished = run_java(program, f"{JAVA_LIBRARIES}/*", one_agent.bootstrap)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines() == [
        "partitions 2",
        "shown 100000",
        "grown 3",
        "asked 3",
        "replicas true",
        "led true",
        "refused InvalidPartitionsException",
        "elected ElectionNotNeededException",
        "own cleanup.policy= segment.ms=9",
        "type LONG",
        "documented true",
        "broker 25",
        "resources true",
        "EarliestSpec 0",
        "LatestSpec 0",
        "MaxTimestampSpec -1",
        "EarliestLocalSpec 0",
        "LatestTieredSpec -1",
        "TimestampSpec -1",
        "deleted true",
    ]


def test_a_consumer_of_a_topic_that_grows_gets_the_new_partitions_records(one_agent: DevServer) -> None:
    clients = KafkaClients(one_agent.bootstrap)
    clients.create("growing")
    admin = AdminClient(clients.settings)
    done(admin.create_partitions([NewPartitions("growing", 3)]))
    clients.produce("growing", range(3), 3)
    messages = clients.read("growing", 3, 3)
    assert sorted((m.partition(), m.value()) for m in messages) == [(n, b"%d" % n) for n in range(3)]


def test_configs_act_on_a_topic_that_is_being_written(one_agent: DevServer) -> None:
    admin = AdminClient({"bootstrap.servers": one_agent.bootstrap})
    done(admin.create_topics([NewTopic("acting", 1)]))
    assert outcome(one_agent, b"small") == (None, confluent_kafka.TIMESTAMP_CREATE_TIME)
    assert outcome(one_agent, b"x" * 5_000) == (None, confluent_kafka.TIMESTAMP_CREATE_TIME)
    assert outcome(one_agent, b"early", timestamp=FAR_FUTURE_MS)[0] == "INVALID_TIMESTAMP"

    alter(admin, "acting", "max.message.bytes", "1000")
    assert outcome(one_agent, b"x" * 5_000)[0] == "MSG_SIZE_TOO_LARGE"
    alter(admin, "acting", "message.timestamp.type", "LogAppendTime")
    assert outcome(one_agent, b"small", timestamp=FAR_FUTURE_MS) == (None, confluent_kafka.TIMESTAMP_LOG_APPEND_TIME)


def alter(admin: AdminClient, topic: str, name: str, value: str) -> None:
    """Set one config of a topic."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
    done(admin.incremental_alter_configs([resource]))


def outcome(server: DevServer, value: bytes, **options: int) -> tuple[str | None, int]:
    """Return the outcome of one record to `acting`: the error's name, if there is one, and what kind of time it has."""
    reports: list[tuple[str | None, int]] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": server.bootstrap})
    producer.produce(
        "acting",
        value,
        on_delivery=lambda error, message: reports.append((error and error.name(), message.timestamp()[0])),
        **options,
    )
    assert producer.flush(TIMEOUT_SECONDS) == 0
    (report,) = reports
    return report
