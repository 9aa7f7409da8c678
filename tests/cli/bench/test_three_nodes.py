"""Apache Kafka as a cluster of three nodes: what its topics promise."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from headrace.cli.bench.target_bench import Bounds, TargetBench
from headrace.cli.bench.targets import open_target, parse_target
from headrace.storage.clock import SystemClock
from tests.tools import KAFKA_JARS

SECONDS = 120.0


@pytest.mark.needs("kafka")
@pytest.mark.slow
async def test_topics_have_three_replicas_of_which_two_acknowledge(tmp_path: Path) -> None:
    async with open_target(parse_target("kafka nodes=3"), tmp_path, KAFKA_JARS) as target:
        assert len(target.bootstrap.split(",")) == len(target.roots["kafka"]) == 3
        topic = await TargetBench(target, Bounds(1.0, 1, 1), SystemClock(), None).create_topic(6)
        admin = AdminClient({"bootstrap.servers": target.bootstrap})
        partitions = admin.list_topics(topic, timeout=SECONDS).topics[topic].partitions.values()
        assert [sorted(partition.replicas) for partition in partitions] == [[1, 2, 3]] * 6
        (answer,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
        assert answer.result(SECONDS)["min.insync.replicas"].value == "2"
