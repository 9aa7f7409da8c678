"""Partitions of members, as sets of keys, and as requests and saved groups name them: topic by topic.

Place: under the members of all groups that the coordinator assigns to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TypeVar

from headrace.metastore.keys import partition_key, split_partition_key
from headrace.metastore.log.image import TopicImage
from headrace.protocol.typed import Schema

A = TypeVar("A")
Partitions = frozenset[int]
"""A set of partition keys (metastore/keys.py)."""
NOTHING: Partitions = frozenset()
PartitionsByTopic = dict[int, list[int]]
"""Topic number -> partition indexes."""


def by_topic(partitions: Partitions) -> PartitionsByTopic:
    """Topic number -> partition indexes, ascending."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for key in sorted(partitions):
        number, index = split_partition_key(key)
        found[number].append(index)
    return dict(found)


def from_topics(topics: Mapping[int, list[int]]) -> Partitions:
    """The inverse of `by_topic`."""
    return frozenset(partition_key(number, index) for number, indexes in topics.items() for index in indexes)


def assignment(
    schema: Schema, message: type[A], topic: type, topics: Mapping[int, TopicImage], partitions: Partitions
) -> A:
    """Return the assignment of an answer, and its topics, in classes of the API. `topics` by number: what was just
    deleted is left out.
    """
    return schema.make(
        message,
        topic_partitions=tuple(
            schema.make(
                topic,
                topic_id=topics[number].topic_id,
                topic_name=topics[number].name,
                partitions=tuple(indexes),
            )
            for number, indexes in by_topic(partitions).items()
            if number in topics
        ),
    )
