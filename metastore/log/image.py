"""The metadata image: an agent's in-memory state, built from the metadata log.

Place: every request that names a topic, partition or agent is answered from it, without a query.
Invariant: an image is immutable and belongs to exactly one log offset. `apply` is pure: an image
after records a and then b equals the image after a + b, wherever the cut is. A record that
contradicts what came before it (a partition of an unknown topic, a stale epoch) is CorruptError:
the log is written under a lock by code that checked. If the process dies, the next one reads again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from metastore.keys import partition_key
from metastore.log.records import (
    TOPIC_RESOURCE,
    ConfigRecord,
    FenceBrokerRecord,
    MetadataRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    decode_record,
)
from storage.errors import CorruptError


@dataclass(frozen=True, slots=True)
class TopicImage:
    """One topic. `leader_epochs[i]` belongs to partition i."""

    topic_id: uuid.UUID
    topic_number: int
    name: str
    initial_partition_count: int
    """This and the next are -1 where the writer of the TopicRecord did not state them."""
    undeleted_partition_count: int
    leader_epochs: tuple[int, ...]

    def key(self, partition_index: int) -> int | None:
        """The partition's key; None when there is no such partition."""
        if 0 <= partition_index < len(self.leader_epochs):
            return partition_key(self.topic_number, partition_index)
        return None


@dataclass(frozen=True, slots=True)
class AgentImage:
    """One registered agent; clients see it only while it is unfenced."""

    node_id: int
    broker_epoch: int
    incarnation_id: uuid.UUID
    host: str
    port: int
    rack: str | None
    fenced: bool


def _empty() -> Any:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """The cluster as of `offset`: every record below it is applied."""

    offset: int = 0
    topics_by_name: Mapping[str, TopicImage] = field(default_factory=_empty)
    topics_by_id: Mapping[uuid.UUID, TopicImage] = field(default_factory=_empty)
    topics_by_number: Mapping[int, TopicImage] = field(default_factory=_empty)
    agents: Mapping[int, AgentImage] = field(default_factory=_empty)
    configs: Mapping[tuple[int, str], Mapping[str, str]] = field(default_factory=_empty)
    """(ConfigResource type, resource name) -> name -> value."""

    def topic_configs(self, name: str) -> Mapping[str, str]:
        """The settings that were given to the topic itself."""
        return self.configs.get((TOPIC_RESOURCE, name), MappingProxyType({}))

    def live_agents(self) -> list[AgentImage]:
        """Unfenced agents by node id."""
        return sorted((a for a in self.agents.values() if not a.fenced), key=lambda a: a.node_id)


def apply(image: MetadataImage, records: Sequence[bytes]) -> MetadataImage:
    """The image after the framed `records`, which stand in the log from `image.offset` on.

    Errors as decode_record's, and CorruptError for a record that contradicts the image.
    """
    draft = _Draft(image)
    for data in records:
        draft.add(decode_record(data))
    return draft.finish()


class _Draft:
    """A mutable copy; one per call of `apply`, so that a page of records costs one copy."""

    def __init__(self, image: MetadataImage) -> None:
        self._offset = image.offset
        self._topics = dict(image.topics_by_id)
        self._epochs: dict[uuid.UUID, list[int]] = {}
        """Leader epochs of topics that got partitions in this draft: a tuple would be copied for each."""
        self._agents = dict(image.agents)
        self._configs = dict(image.configs)

    def add(self, record: MetadataRecord) -> None:
        """Apply the record at the draft's offset. Types that no image shows only move the offset."""
        handler = _HANDLERS.get(type(record))
        if handler is not None:
            handler(self, record)
        self._offset += 1

    def finish(self) -> MetadataImage:
        for topic_id, epochs in self._epochs.items():
            self._topics[topic_id] = replace(self._topics[topic_id], leader_epochs=tuple(epochs))
        topics = self._topics.values()
        return MetadataImage(
            offset=self._offset,
            topics_by_name=MappingProxyType({topic.name: topic for topic in topics}),
            topics_by_id=MappingProxyType(self._topics),
            topics_by_number=MappingProxyType({topic.topic_number: topic for topic in topics}),
            agents=MappingProxyType(self._agents),
            configs=MappingProxyType(self._configs),
        )

    def topic(self, record: TopicRecord) -> None:
        if record.topic_id in self._topics:
            raise self._contradiction(f"topic exists: topic_id={record.topic_id}")
        self._topics[record.topic_id] = TopicImage(
            topic_id=record.topic_id,
            topic_number=self._offset,
            name=record.topic_name,
            initial_partition_count=record.initial_partition_count,
            undeleted_partition_count=record.undeleted_partition_count,
            leader_epochs=(),
        )

    def partition(self, record: PartitionRecord) -> None:
        topic = self._topics.get(record.topic_id)
        if topic is None:
            raise self._contradiction(f"partition of an unknown topic: topic_id={record.topic_id}")
        epochs = self._epochs.setdefault(record.topic_id, list(topic.leader_epochs))
        if record.partition_id != len(epochs):
            raise self._contradiction(f"partition out of turn: topic={topic.name} partition={record.partition_id}")
        epochs.append(record.leader_epoch)

    def remove_topic(self, record: RemoveTopicRecord) -> None:
        topic = self._topics.pop(record.topic_id, None)
        if topic is None:
            raise self._contradiction(f"removal of an unknown topic: topic_id={record.topic_id}")
        self._epochs.pop(record.topic_id, None)
        self._configs.pop((TOPIC_RESOURCE, topic.name), None)

    def config(self, record: ConfigRecord) -> None:
        resource = (record.resource_type, record.resource_name)
        values = dict(self._configs.get(resource, {}))
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value
        self._configs.pop(resource, None)
        if values:
            self._configs[resource] = MappingProxyType(values)

    def register(self, record: RegisterBrokerRecord) -> None:
        if not record.end_points:
            raise self._contradiction(f"agent without an end point: node_id={record.broker_id}")
        self._agents[record.broker_id] = AgentImage(
            node_id=record.broker_id,
            broker_epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            host=record.end_points[0].host,
            port=record.end_points[0].port,
            rack=record.rack,
            fenced=True,
        )

    def unregister(self, record: UnregisterBrokerRecord) -> None:
        del self._agents[self._agent(record.broker_id, record.broker_epoch).node_id]

    def fence(self, record: FenceBrokerRecord) -> None:
        self._set_fenced(record.broker_id, record.broker_epoch, True)

    def unfence(self, record: UnfenceBrokerRecord) -> None:
        self._set_fenced(record.broker_id, record.broker_epoch, False)

    def _set_fenced(self, node_id: int, broker_epoch: int, fenced: bool) -> None:
        self._agents[node_id] = replace(self._agent(node_id, broker_epoch), fenced=fenced)

    def _agent(self, node_id: int, broker_epoch: int) -> AgentImage:
        agent = self._agents.get(node_id)
        if agent is None or agent.broker_epoch != broker_epoch:
            raise self._contradiction(f"agent is not registered so: node_id={node_id} broker_epoch={broker_epoch}")
        return agent

    def _contradiction(self, event: str) -> CorruptError:
        return CorruptError(f"{event} offset={self._offset}")


_HANDLERS: Mapping[type[MetadataRecord], Callable[[_Draft, Any], None]] = {
    TopicRecord: _Draft.topic,
    PartitionRecord: _Draft.partition,
    RemoveTopicRecord: _Draft.remove_topic,
    ConfigRecord: _Draft.config,
    RegisterBrokerRecord: _Draft.register,
    UnregisterBrokerRecord: _Draft.unregister,
    FenceBrokerRecord: _Draft.fence,
    UnfenceBrokerRecord: _Draft.unfence,
}
