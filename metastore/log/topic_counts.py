"""The partition counts of a topic as agents show and compare them.

Place: between the metadata image and the handlers of Metadata, Fetch and PartitionLeaderEpochsForPartitions.
Invariant: a topic without stated counts was created with the partitions that it has.
"""

from __future__ import annotations

from headrace.metastore.log.image import TopicImage


def initial_count(topic: TopicImage) -> int:
    """Return the count by which linear hashing began."""
    stated = topic.initial_partition_count
    return stated if stated > 0 else len(topic.leader_epochs)


def undeleted_count(topic: TopicImage) -> int:
    """The partitions that take new records are those with a lower index."""
    stated = topic.undeleted_partition_count
    return stated if stated > 0 else len(topic.leader_epochs)
