"""The topology of a streams group: its subtopologies, and the topics that each reads, writes and keeps state in. Pure.

Place: made of the first member's heartbeat by coordinator.py, stored with the group, asked by configured_topology.py.
A task is a subtopology and a partition. Its key packs the subtopology's place among the sorted ids, its role (active
or standby) and the partition, as the key of a partition packs topic and index; so the steps of
../members/reconciliation.py serve tasks, too.
Invariant: a group's topology does not change, so keys mean the same as long as the group exists.
Source: KIP-1071, Kafka's StreamsTopology and StreamsCoordinatorRecordHelpers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from headrace.agent.groups.members.member import Partitions
from headrace.agent.limits.client_memory import text_bytes
from headrace.metastore.keys import PARTITION_BITS, partition_key, split_partition_key

UNKNOWN_TASK = -1
"""The key of a task that a member says it owns and that the topology has not."""
_HASHED = 1_000
"""Characters of an id that say in which order Kafka comes to it: Kafka takes all of them."""
_ITEM_BYTES = 48
"""A topic, config or number of a topology, besides its text."""


class InternalTopic(msgspec.Struct, frozen=True):
    """A repartition or changelog topic. `partition_count` 0: the coordinator decides. `replication_factor` 0: the
    cluster's default.
    """

    name: str
    partition_count: int
    replication_factor: int
    configs: tuple[tuple[str, str], ...] = ()


class Subtopology(msgspec.Struct, frozen=True):
    """`copartition_groups`: places in `source_topics`, and in `repartition_sources`, of topics with equal counts."""

    subtopology_id: str
    source_topics: tuple[str, ...]
    repartition_sinks: tuple[str, ...]
    repartition_sources: tuple[InternalTopic, ...]
    changelogs: tuple[InternalTopic, ...]
    copartition_groups: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()

    @property
    def read_topics(self) -> Iterator[str]:
        """Names of the topics that its tasks consume."""
        yield from self.source_topics
        yield from (topic.name for topic in self.repartition_sources)


class Topology(msgspec.Struct, frozen=True, dict=True):
    """`subtopologies` in the order of the request."""

    epoch: int
    subtopologies: tuple[Subtopology, ...]

    @cached_property
    def by_id(self) -> Mapping[str, Subtopology]:
        """The subtopologies by id."""
        return {each.subtopology_id: each for each in self.subtopologies}

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Sorted; the place is the number in the keys of tasks."""
        return tuple(sorted(self.by_id))

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """The inverse of `ids`."""
        return {name: number for number, name in enumerate(self.ids)}

    @cached_property
    def readers(self) -> Mapping[str, int]:
        """Topic name -> number of the subtopology that consumes it; the last one, as in Kafka."""
        return {name: self.numbers[each.subtopology_id] for each in self.subtopologies for name in each.read_topics}

    @cached_property
    def required_topics(self) -> tuple[str, ...]:
        """Names of all topics that must be there, each once."""
        names = (
            name for each in self.subtopologies for name in (*each.read_topics, *(log.name for log in each.changelogs))
        )
        return tuple(dict.fromkeys(names))

    @cached_property
    def source_topics(self) -> frozenset[str]:
        """Names of the topics that the coordinator does not create."""
        return frozenset(name for each in self.subtopologies for name in each.source_topics)

    def is_same(self, other: Topology) -> bool:
        """Return whether both are equal, but for the order of their subtopologies."""
        return self.epoch == other.epoch and self.by_id == other.by_id

    @cached_property
    def size_bytes(self) -> int:
        """The memory that it uses, about."""
        return _size(self)


def _size(value: object) -> int:
    if isinstance(value, str):
        return text_bytes(value) + _ITEM_BYTES
    if isinstance(value, tuple):
        return _ITEM_BYTES + sum(map(_size, value))
    if isinstance(value, msgspec.Struct):
        return _ITEM_BYTES + sum(_size(getattr(value, name)) for name in value.__struct_fields__)
    return _ITEM_BYTES


def topology_of(said: Any) -> Topology:
    """Return the topology of a heartbeat's field."""
    return Topology(
        said.epoch,
        tuple(
            Subtopology(
                each.subtopology_id,
                each.source_topics,
                each.repartition_sink_topics,
                tuple(map(_internal, each.repartition_source_topics)),
                tuple(map(_internal, each.state_changelog_topics)),
                tuple((group.source_topics, group.repartition_source_topics) for group in each.copartition_groups),
            )
            for each in said.subtopologies
        ),
    )


def _internal(said: Any) -> InternalTopic:
    configs = tuple((each.key, each.value) for each in said.topic_configs)
    return InternalTopic(said.name, said.partitions, said.replication_factor, configs)


def why_malformed(topology: Topology) -> str | None:
    """Return why Kafka fails at the topology with UNKNOWN_SERVER_ERROR, which does not say why."""
    if topology.epoch < 0:
        return "Topology epoch must be non-negative."
    if len(topology.by_id) < len(topology.subtopologies):
        return "Two subtopologies have the same id."
    for each in topology.subtopologies:
        for kind, topics in (("repartition source", each.repartition_sources), ("changelog", each.changelogs)):
            if len({topic.name for topic in topics}) < len(topics):
                return f"Subtopology {each.subtopology_id} has two {kind} topics of the same name."
            if any(len(dict(topic.configs)) < len(topic.configs) for topic in topics):
                return f"Subtopology {each.subtopology_id} has a {kind} topic with a config that is set twice."
        for sources, repartitioned in each.copartition_groups:
            lengths = ((sources, len(each.source_topics)), (repartitioned, len(each.repartition_sources)))
            if any(not 0 <= place < length for places, length in lengths for place in places):
                return f"Subtopology {each.subtopology_id} has a copartition group of topics that it has not."
    return None


def in_kafka_order(texts: Iterable[str]) -> list[str]:
    """Return them in the order in which Java's HashMap has them as keys: where Kafka's answer depends on it, it is the
    same here.
    """
    keys = list(dict.fromkeys(texts))
    capacity = 16
    while len(keys) * 4 > capacity * 3:
        capacity *= 2
    return sorted(keys, key=lambda text: _spread_hash(text) & (capacity - 1))


def _spread_hash(text: str) -> int:
    """Return the hash code of a Java String, spread as HashMap does; of the beginning of a long one."""
    units = text[:_HASHED].encode("utf-16-be", "surrogatepass")
    found = 0
    for at in range(0, len(units), 2):
        found = (31 * found + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return found ^ found >> 16


# -- keys of tasks


class StreamsTask(NamedTuple):
    """What the key of a task says."""

    subtopology: int
    partition: int
    is_standby: bool


def task_key(subtopology: int, partition: int, *, is_standby: bool = False) -> int:
    """Return the key of a task; `subtopology`: its number."""
    return partition_key(2 * subtopology + is_standby, partition)


def task_of(key: int) -> StreamsTask:
    """The inverse of `task_key`."""
    number, partition = split_partition_key(key)
    return StreamsTask(number // 2, partition, bool(number % 2))


def is_standby(key: int) -> bool:
    """Return the role that the key of a task says."""
    return bool(key >> PARTITION_BITS & 1)


def other_role(key: int) -> int:
    """Return the key of the same task in the other role."""
    return key ^ 1 << PARTITION_BITS


def owned_tasks(topology: Topology | None, active: Iterable[Any], standby: Iterable[Any]) -> Partitions:
    """Return the keys of what a member says it owns; `active`, `standby`: TaskIds of its heartbeat."""
    found = set[int]()
    for is_standby, tasks in ((False, active), (True, standby)):
        for each in tasks:
            number = None if topology is None else topology.numbers.get(each.subtopology_id)
            for partition in each.partitions:
                is_known = number is not None and 0 <= partition < 1 << PARTITION_BITS
                found.add(task_key(number or 0, partition, is_standby=is_standby) if is_known else UNKNOWN_TASK)
    return frozenset(found)
