"""Partition keys and commit shards: pure arithmetic that agents and SQL share.

A topic's number is the metadata-log offset of its TopicRecord: never used again, so a topic that is
deleted and created again under its name inherits nothing. A partition key packs number and index
into one bigint, which is the key of every per-partition row.
"""

from __future__ import annotations

PARTITION_BITS = 24
"""A topic holds at most 2**24 partitions."""


def partition_key(topic_number: int, partition_index: int) -> int:
    """The bigint that names one partition of one incarnation of a topic."""
    return topic_number << PARTITION_BITS | partition_index


def split_partition_key(key: int) -> tuple[int, int]:
    """(topic number, partition index) of a key."""
    return key >> PARTITION_BITS, key & ((1 << PARTITION_BITS) - 1)


def commit_shard(key: int, shards: int) -> int:
    """The commit shard of a partition: neighbours of one topic fall into different shards."""
    number, index = split_partition_key(key)
    return (number + index) % shards
