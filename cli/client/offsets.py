"""Offsets of partitions: earliest, latest, or of the first record at or after a time.

Place: sent to each partition's leader; only reads.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Mapping

from headrace.cli.client.cluster import KafkaCluster, require
from headrace.protocol.api_keys import ApiKey
from headrace.storage.errors import InvalidError

EARLIEST, LATEST = -2, -1
"""Timestamps with a special meaning: the start and the end of the log."""
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
"""Isolation level with which the end of the log is the last stable offset (LSO)."""
CONSUMER = -1
"""Replica id of a client that is not a broker."""

TopicPartition = tuple[str, int]


def list_offsets(
    cluster: KafkaCluster, at: Mapping[TopicPartition, int], isolation_level: int = 0
) -> dict[TopicPartition, int]:
    """The offset of each partition at EARLIEST, LATEST or a time in ms; -1 if no record is that late."""
    return cluster.look_again(lambda: _list_offsets(cluster, at, isolation_level))


def partitions_of(cluster: KafkaCluster, topics: list[str]) -> dict[TopicPartition, int]:
    """(topic, partition) -> leader, of all partitions of the topics. NotFoundError for an unknown topic."""
    return {
        (str(topic.name), int(partition.partition_index)): int(partition.leader_id)
        for topic in cluster.metadata(topics)
        for partition in sorted(topic.partitions, key=lambda partition: int(partition.partition_index))
    }


def timestamp_ms(text: str) -> int:
    """Milliseconds of an ISO 8601 date and time; without a zone, in this machine's zone. InvalidError for other text.

    Never negative: no record is older than 1970, and negative numbers have a special meaning.
    """
    try:
        return max(0, int(datetime.datetime.fromisoformat(text).astimezone().timestamp() * 1000))
    except (ValueError, OverflowError) as error:
        raise InvalidError(f"not a date and time like 2026-01-31T12:00:00+00:00: {text}") from error


def _list_offsets(
    cluster: KafkaCluster, at: Mapping[TopicPartition, int], isolation_level: int
) -> dict[TopicPartition, int]:
    leaders = partitions_of(cluster, sorted({topic for topic, _ in at}))
    by_leader: defaultdict[int, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for topic, index in at:
        if (topic, index) not in leaders:
            raise InvalidError(f"partition does not exist: {topic}:{index}")
        by_leader[leaders[topic, index]][topic].append(index)
    m = cluster.message(ApiKey.LIST_OFFSETS)
    found: dict[TopicPartition, int] = {}
    for leader, topics in by_leader.items():
        wanted = tuple(
            m.make(
                "ListOffsetsTopic",
                name=topic,
                partitions=tuple(
                    m.make(
                        "ListOffsetsPartition",
                        partition_index=index,
                        current_leader_epoch=-1,
                        timestamp=at[topic, index],
                    )
                    for index in indexes
                ),
            )
            for topic, indexes in topics.items()
        )
        timeout = datetime.timedelta(seconds=30)
        request = m.request(replica_id=CONSUMER, isolation_level=isolation_level, topics=wanted, timeout=timeout)
        for topic in cluster.ask(ApiKey.LIST_OFFSETS, request, leader).topics:
            for partition in topic.partitions:
                require(partition.error_code, None, f"{topic.name}:{partition.partition_index}")
                found[str(topic.name), int(partition.partition_index)] = int(partition.offset)
    return found
