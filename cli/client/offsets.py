"""Offsets of partitions: earliest, latest, of a time, or where reset-offsets moves a group.

Place: sent to each partition's leader; only reads. Under `headrace groups reset-offsets` and the console's preview,
too.
Invariant of a reset: every new offset is inside its partition's log, as with Kafka's tool; the notes name each that
was moved there.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.cluster import KafkaCluster, require
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


class ResetTo(NamedTuple):
    """Exactly one is set; without any, the log start."""

    latest: bool = False
    time_ms: int | None = None
    """The first record at or after it."""
    offset: int | None = None
    shift: int | None = None
    """Distance from the committed offset; negative: back."""


class OffsetMoves(NamedTuple):
    """The new offset of each partition, and what the user should know about them."""

    offsets: dict[TopicPartition, int]
    notes: list[str]


def plan_reset(
    cluster: KafkaCluster, to: ResetTo, wanted: Sequence[TopicPartition], committed: Mapping[TopicPartition, int]
) -> OffsetMoves:
    """InvalidError to shift a partition without a committed offset; other errors as `require`."""
    earliest = list_offsets(cluster, dict.fromkeys(wanted, EARLIEST))
    latest = list_offsets(cluster, dict.fromkeys(wanted, LATEST))
    if to.latest:
        return OffsetMoves(latest, [])
    if to.offset is not None:
        return _moved_inside(dict.fromkeys(wanted, to.offset), earliest, latest)
    if to.shift is not None:
        if lacking := [f"{topic}:{index}" for topic, index in wanted if (topic, index) not in committed]:
            raise InvalidError(f"no committed offset to shift: {', '.join(lacking)}")
        return _moved_inside({tp: committed[tp] + to.shift for tp in wanted}, earliest, latest)
    if to.time_ms is None:
        return OffsetMoves(earliest, [])
    found = list_offsets(cluster, dict.fromkeys(wanted, to.time_ms))
    notes = [
        f"{topic}:{index} has no record at or after this time: its new offset is the log end, {latest[topic, index]}"
        for (topic, index), offset in found.items()
        if offset < 0
    ]
    return OffsetMoves({tp: latest[tp] if offset < 0 else offset for tp, offset in found.items()}, notes)


def _moved_inside(
    wanted: Mapping[TopicPartition, int], earliest: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]
) -> OffsetMoves:
    offsets = {tp: min(max(offset, earliest[tp]), latest[tp]) for tp, offset in wanted.items()}
    return OffsetMoves(
        offsets,
        [
            f"offset {wanted[topic, index]} is outside {topic}:{index}"
            f" ({earliest[topic, index]}..{latest[topic, index]}): its new offset is {offset}"
            for (topic, index), offset in offsets.items()
            if offset != wanted[topic, index]
        ],
    )
