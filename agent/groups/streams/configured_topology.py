"""What a topology means among the topics that there are: how many tasks, which internal topics are missing. Pure.

Place: asked by membership.py when the topology or its topics changed; the coordinator creates what is missing.
Invariant: the same topology and counts give the same answer. It takes time in proportion to the topology, also if its
subtopologies wait for each other: each is looked at again only when a topic that it reads became known.
Source: Kafka's InternalTopicManager, RepartitionTopics, CopartitionedTopicsEnforcer and ChangelogTopics: messages,
order and rules are theirs.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from headrace.agent.groups.streams.topology import InternalTopic, Subtopology, Topology, in_kafka_order

TASKS_MAX = 20_000
"""Active tasks of a group: a subtopology has one for each partition of its largest topic, and subtopologies may read
the same topic. Kafka has no limit."""
_SHOWN = 3
"""Topics that a message names."""


class StatusCode(IntEnum):
    """Codes of the status of a heartbeat's answer."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


class Status(NamedTuple):
    """One thing that the answer to a member says of its group."""

    code: StatusCode
    detail: str


class InvalidTopologyError(Exception):
    """The topology can never be served: STREAMS_INVALID_TOPOLOGY, and nothing changes."""


class _UnfitError(Exception):
    """Topics do not fit the topology, as they are now."""

    def __init__(self, code: StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.status = Status(code, detail)


@dataclass(frozen=True, slots=True)
class ConfiguredSubtopology:
    """A subtopology with the counts of its internal topics, and of its tasks."""

    task_count: int
    repartition_sources: tuple[InternalTopic, ...]
    changelogs: tuple[InternalTopic, ...]

    @property
    def is_stateful(self) -> bool:
        """Return whether its tasks may have standbys."""
        return bool(self.changelogs)


@dataclass(frozen=True, slots=True)
class ConfiguredTopology:
    """`subtopologies` by id: None if topics are missing or do not fit. `status`: why no task may run; None if all may.
    `missing`: the internal topics to be created.
    """

    subtopologies: Mapping[str, ConfiguredSubtopology] | None
    missing: tuple[InternalTopic, ...] = ()
    status: Status | None = None

    @property
    def is_ready(self) -> bool:
        """Return whether all topics are there, and fit."""
        return self.status is None


Counts = Mapping[str, int]
"""Topic name -> partitions, of topics that are there."""


def configure(topology: Topology, counts: Counts) -> ConfiguredTopology:
    """InvalidTopologyError for a topology that no topics fit."""
    try:
        _require_sources(topology, counts)
        known = _Known(counts)
        known.decide(_repartition_counts(topology, counts))
        _enforce_copartitioning(topology, known)
        known.decide(_changelog_counts(topology, known))
        subtopologies = {name: _configured(topology.by_id[name], known) for name in topology.ids}
        if sum(each.task_count for each in subtopologies.values()) > TASKS_MAX:
            raise InvalidTopologyError(f"The topology has more than {TASKS_MAX} tasks.")
        missing = _missing(topology, subtopologies, counts)
    except _UnfitError as unfit:
        return ConfiguredTopology(None, status=unfit.status)
    if not missing:
        return ConfiguredTopology(subtopologies)
    detail = "Internal topics are missing: " + _summary([topic.name for topic in missing])
    return ConfiguredTopology(subtopologies, missing, Status(StatusCode.MISSING_INTERNAL_TOPICS, detail))


class _Known:
    """Counts of topics: of those that are there, then those that were decided."""

    def __init__(self, counts: Counts) -> None:
        self._counts, self.decided = counts, dict[str, int]()

    def decide(self, counts: Counts) -> None:
        """Set counts of internal topics; later ones count."""
        self.decided.update(counts)

    def of(self, name: str) -> int:
        """Return the count; every topic that is asked for has one by then."""
        return self._counts[name] if name in self._counts else self.decided[name]


def _summary(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} additional topics" if len(names) > _SHOWN else "")


def _require_sources(topology: Topology, counts: Counts) -> None:
    if missing := sorted(name for name in topology.source_topics if name not in counts):
        raise _UnfitError(StatusCode.MISSING_SOURCE_TOPICS, f"Source topics {_summary(missing)} are missing.")


@dataclass(slots=True)
class _Flow:
    """A subtopology on the way to the counts of the topics that it writes. `at`: its place in Kafka's order."""

    at: int
    subtopology: Subtopology
    largest: int | None = None
    """The largest known count among the topics that it reads."""

    def learn(self, count: int) -> None:
        """A topic that it reads has this count."""
        self.largest = count if self.largest is None else max(self.largest, count)


def _repartition_counts(topology: Topology, counts: Counts) -> dict[str, int]:
    """Return the counts of repartition topics: as asked for, else as the largest topic that their writer reads and that
    is known when Kafka comes to it, in rounds over all subtopologies.
    """
    found = {
        topic.name: topic.partition_count
        for each in topology.subtopologies
        for topic in each.repartition_sources
        if topic.partition_count
    }
    flows = [_Flow(at, topology.by_id[name]) for at, name in enumerate(in_kafka_order(topology.by_id))]
    for flow in flows:
        for name in flow.subtopology.source_topics:
            if name in counts:
                flow.learn(counts[name])
    _spread(flows, found)
    if any(sink not in found for flow in flows for sink in flow.subtopology.repartition_sinks):
        raise InvalidTopologyError(
            "Failed to compute number of partitions for all repartition topics. There may be loops in the topology"
            " that cannot be resolved."
        )
    if any(topic.name not in found for flow in flows for topic in flow.subtopology.repartition_sources):
        raise InvalidTopologyError(
            "Failed to compute number of partitions for all repartition topics, because a repartition source topic is"
            " never used as a sink topic."
        )
    return found


def _spread(flows: list[_Flow], found: dict[str, int]) -> None:
    """Add to `found` what follows from it: in Kafka's rounds, without a look at all subtopologies in each."""
    readers = defaultdict[str, list[_Flow]](list)
    for flow in flows:
        for topic in flow.subtopology.repartition_sources:
            readers[topic.name].append(flow)
            if topic.name in found:
                flow.learn(found[topic.name])
    due, done = [(0, flow.at) for flow in flows if flow.largest is not None], set[int]()
    while due:
        turn, at = heapq.heappop(due)
        if at in done:
            continue
        done.add(at)
        count = flows[at].largest
        assert count is not None, "it is due because a topic that it reads is known"
        for sink in flows[at].subtopology.repartition_sinks:
            if sink in found:
                continue
            found[sink] = count
            for reader in readers[sink]:
                reader.learn(count)
                if reader.at not in done:
                    heapq.heappush(due, (turn + (reader.at <= at), reader.at))


def _unequal(counts: Mapping[str, int]) -> _UnfitError:
    shown = ", ".join(f"{name}={counts[name]}" for name in sorted(counts))
    detail = f"Following topics do not have the same number of partitions: [{{{shown}}}]"
    return _UnfitError(StatusCode.INCORRECTLY_PARTITIONED_TOPICS, detail)


def _enforce_copartitioning(topology: Topology, known: _Known) -> None:
    """Give topics of one copartition group equal counts; an error if those that are set differ."""
    internal = [topic for each in topology.subtopologies for topic in each.repartition_sources]
    fixed = {topic.name for topic in internal if topic.partition_count}
    names = {topic.name for topic in internal}
    counts_of_fixed = {known.of(name) for name in fixed}
    for at in in_kafka_order(topology.by_id):
        each = topology.by_id[at]
        for sources, repartitioned in each.copartition_groups:
            group = {each.source_topics[place] for place in sources}
            group |= {each.repartition_sources[place].name for place in repartitioned}
            if group:
                known.decide(_equal_counts(group, names, fixed, counts_of_fixed, known))


def _equal_counts(
    group: set[str], internal: set[str], fixed: set[str], counts_of_fixed: set[int], known: _Known
) -> dict[str, int]:
    repartitioned = {name: known.of(name) for name in group if name in internal}
    external = {name: known.of(name) for name in group if name not in internal}
    if external:
        if len(set(external.values())) > 1:
            raise _unequal(external)
        count = next(iter(external.values()))
    elif fixed:
        if len(counts_of_fixed) > 1:  # of the whole topology, as in Kafka
            raise _unequal(repartitioned)
        count = next(iter(counts_of_fixed))
    else:
        count = max(repartitioned.values())
    for name in in_kafka_order(repartitioned):
        if name in fixed and repartitioned[name] != count:
            raise _UnfitError(
                StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                f"Number of partitions [{repartitioned[name]}] of repartition topic [{name}] doesn't match number of"
                f" partitions [{count}] of the source topic.",
            )
    return dict.fromkeys(repartitioned, count)


def _changelog_counts(topology: Topology, known: _Known) -> dict[str, int]:
    found = {}
    for at in in_kafka_order(topology.by_id):
        each = topology.by_id[at]
        count = max((known.of(name) for name in each.read_topics), default=None)
        if count is None:
            raise InvalidTopologyError(f"No source topics found for subtopology {each.subtopology_id}")
        found.update(dict.fromkeys((topic.name for topic in each.changelogs), count))
    return found


def _configured(subtopology: Subtopology, known: _Known) -> ConfiguredSubtopology:
    task_count = max(known.of(name) for name in subtopology.read_topics)
    if task_count <= 0:
        raise InvalidTopologyError(f"Subtopology {subtopology.subtopology_id} has no tasks: a count is not positive.")

    def counted(topics: Iterable[InternalTopic]) -> tuple[InternalTopic, ...]:
        return tuple(
            topic if topic.partition_count else replace_count(topic, known.decided[topic.name]) for topic in topics
        )

    return ConfiguredSubtopology(task_count, counted(subtopology.repartition_sources), counted(subtopology.changelogs))


def replace_count(topic: InternalTopic, count: int) -> InternalTopic:
    """Return the same topic with another count."""
    return InternalTopic(topic.name, count, topic.replication_factor, topic.configs)


def _missing(
    topology: Topology, subtopologies: Mapping[str, ConfiguredSubtopology], counts: Counts
) -> tuple[InternalTopic, ...]:
    wanted = {
        topic.name: topic for each in subtopologies.values() for topic in (*each.repartition_sources, *each.changelogs)
    }
    for name in in_kafka_order(topology.required_topics):
        if name in counts and name in wanted:
            expected = wanted.pop(name).partition_count
            if counts[name] != expected:
                raise _UnfitError(
                    StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                    f"Existing topic {name} has different number of partitions: expected {expected}, found"
                    f" {counts[name]}",
                )
    return tuple(wanted[name] for name in in_kafka_order(wanted))
