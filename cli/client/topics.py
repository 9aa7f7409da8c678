"""Topics: describe, create, delete, and the number of partitions.

Place: under `headrace topics` and the console.
Invariant: a request that changes something is sent once; the controller is looked up first.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.cli.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.cluster import KafkaCluster, require

TIMEOUT = datetime.timedelta(seconds=30)
BY_DEFAULT = -1
"""A count that the cluster chooses."""


def partition_rows(cluster: KafkaCluster, topic: Any) -> list[dict[str, Any]]:
    """The partitions of one topic of `metadata`, by index: leader (None: no leader), replicas, offsets."""
    indexes = [(str(topic.name), partition.partition_index) for partition in topic.partitions]
    earliest, latest = (list_offsets(cluster, dict.fromkeys(indexes, at)) for at in (EARLIEST, LATEST))
    return [
        {
            "partition": partition.partition_index,
            "leader": int(partition.leader_id) if partition.leader_id >= 0 else None,
            "epoch": getattr(partition, "leader_epoch", None),
            "replicas": [int(node) for node in partition.replica_nodes],
            "in_sync": [int(node) for node in partition.isr_nodes],
            "earliest": earliest[topic.name, partition.partition_index],
            "latest": latest[topic.name, partition.partition_index],
        }
        for partition in sorted(topic.partitions, key=lambda partition: int(partition.partition_index))
    ]


def create_topic(
    cluster: KafkaCluster,
    name: str,
    configs: Mapping[str, str],
    *,
    partitions: int = BY_DEFAULT,
    replication_factor: int = BY_DEFAULT,
    validate_only: bool = False,
) -> Any:
    """The topic's part of CreateTopicsResponse, with its error. WrongBrokerError if the controller is another one."""
    m = cluster.message(ApiKey.CREATE_TOPICS)
    topic = m.make(
        "CreatableTopic",
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        assignments=(),
        configs=tuple(m.make("CreatableTopicConfig", name=n, value=v) for n, v in configs.items()),
    )
    cluster.nodes()
    request = m.request(topics=(topic,), timeout=TIMEOUT, validate_only=validate_only)
    (answer,) = cluster.ask(ApiKey.CREATE_TOPICS, request, cluster.controller).topics
    if answer.error_code is ErrorCode.not_controller:
        require(answer.error_code)
    return answer


def set_count(cluster: KafkaCluster, topic: str, count: int) -> None:
    """A lower number of partitions is a request that only Headrace serves. Errors as `require`."""
    (found,) = cluster.metadata([topic])
    if count < len(found.partitions):
        cluster.set_partition_count(topic, count, int(TIMEOUT.total_seconds() * 1000))
    else:
        cluster.look_again(lambda: add_partitions(cluster, topic, count))


def add_partitions(cluster: KafkaCluster, topic: str, count: int, *, validate_only: bool = False) -> None:
    """Add the partitions up to `count` in all. Errors as `require`."""
    m = cluster.message(ApiKey.CREATE_PARTITIONS)
    wanted = m.make("CreatePartitionsTopic", name=topic, count=count, assignments=None)
    cluster.nodes()
    request = m.request(topics=(wanted,), timeout=TIMEOUT, validate_only=validate_only)
    (answer,) = cluster.ask(ApiKey.CREATE_PARTITIONS, request, cluster.controller).results
    require(answer.error_code, answer.error_message, topic)


def delete_topic(cluster: KafkaCluster, topic: str) -> None:
    """Delete the topic with all its records. Errors as `require`."""
    m = cluster.message(ApiKey.DELETE_TOPICS)
    cluster.nodes()
    request = m.request(topic_names=(topic,), timeout=TIMEOUT)
    (answer,) = cluster.ask(ApiKey.DELETE_TOPICS, request, cluster.controller).responses
    require(answer.error_code, getattr(answer, "error_message", None), topic)
