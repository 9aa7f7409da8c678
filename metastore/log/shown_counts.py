"""The numbers that agents show of a topic: its partition counts, the replicas of each partition.

Place: between the metadata image and the handlers of Metadata, Fetch and PartitionLeaderEpochsForPartitions; also
asked by reassignment.py, and when a topic gets more partitions (agent/topics/counts).
Invariant of partition counts: a topic without stated counts was created with the partitions that it has.
Definitions: an assignment that names the virtual node prefers no agent and only states a number: the virtual node is
the one that leads, whichever it is, and replicas of the object store make up the number.
Invariant of replicas: pure. The replication factor of a topic is never changed, as in Kafka: each partition has its
own number.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.config.bounds import STORE_REPLICAS, VIRTUAL_NODE_ID
from headrace.metastore.log.image import TopicImage


def initial_count(topic: TopicImage) -> int:
    """Return the count by which linear hashing began."""
    stated = topic.initial_partition_count
    return stated if stated > 0 else len(topic.leader_epochs)


def undeleted_count(topic: TopicImage) -> int:
    """The partitions that take new records are those with a lower index."""
    stated = topic.undeleted_partition_count
    return stated if stated > 0 else len(topic.leader_epochs)


SHOWN_REPLICAS_MAX = len(STORE_REPLICAS)
"""A client may ask for 32,767, and each costs 8 bytes in the answer for each partition."""


def is_agent(node_id: int) -> bool:
    """Return whether an agent may have this id."""
    return node_id != VIRTUAL_NODE_ID and node_id not in STORE_REPLICAS


def shown_count(topic: TopicImage, index: int) -> int:
    """Return the number of replicas that clients see when no reassignment is under way."""
    return len(topic.assignment(index).preferred) or _factor(topic)


def resized(topic: TopicImage, index: int, count: int) -> tuple[int, ...]:
    """Return the assignment with `count` replicas that moves no leader: the first preferred agents stay, and replicas
    of the object store fill it up. Empty if no agent is preferred and the topic's replication factor is `count`.
    """
    agents = [node_id for node_id in topic.assignment(index).preferred if is_agent(node_id)] or [VIRTUAL_NODE_ID]
    if agents == [VIRTUAL_NODE_ID] and count == _factor(topic):
        return ()
    kept = agents[:count]
    return (*kept, *STORE_REPLICAS[: count - len(kept)])


def like_the_first(topic: TopicImage, added: int) -> Sequence[Sequence[int]]:
    """Return the assignments of new partitions that show as many replicas as partition 0, as Kafka makes them.

    Empty if the topic's replication factor says the same.
    """
    count = shown_count(topic, 0) if topic.has(0) else _factor(topic)
    if count == _factor(topic):
        return ()
    return [(VIRTUAL_NODE_ID, *STORE_REPLICAS[: count - 1])] * added


def _factor(topic: TopicImage) -> int:
    return min(topic.replication_factor, SHOWN_REPLICAS_MAX)
