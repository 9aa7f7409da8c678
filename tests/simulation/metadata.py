"""Topics, leader epochs and agents: the cluster's metadata, and one process's lagging picture of it.

Place: instead of agent/cluster; the model metastore gets every change in the same instant,
as Postgres changes log and projection in one transaction.
Fault model: an image moves only when its process catches up, which is a request that can fail.
"""

from __future__ import annotations

import copy
import itertools
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from headrace.agent.cluster.routing import Routes
from headrace.config.topic_configs import LOW_LATENCY_ENABLE
from headrace.metastore.api.agents import LOW_LATENCY, FeatureRange
from headrace.metastore.keys import partition_key, split_partition_key
from headrace.metastore.life.numbers import log_floor
from headrace.metastore.log.image import AgentImage, Assignment, MetadataImage, TopicImage
from headrace.metastore.postgres.life.life import reborn
from tests.model.metastore_model import ModelMetastore
from tests.model.segment_end_model import ModelLifecycle

if TYPE_CHECKING:
    from tests.simulation.metastore_line import MetastoreLine

TOPIC_RESOURCE = 2
FIRST_TOPIC_NUMBER = 10


class NamesDatabase:
    """The part of LifeApi for clusters of the release before."""

    async def record_database(self, life: int, incarnation_id: uuid.UUID) -> bool:
        raise AssertionError("each life of the simulation names its database")


@dataclass(eq=False, slots=True)
class Topic:
    """One incarnation of a topic. `deleted_at` in virtual seconds; None while it exists."""

    name: str
    topic_id: uuid.UUID
    number: int
    partition_count: int
    is_mortal: bool
    """May be deleted: clients name it by its id only."""
    stamps: bool
    """message.timestamp.type=LogAppendTime."""
    deleted_at: float | None = None
    is_compacted: bool = False
    """cleanup.policy=compact: its records are those of keyed.py."""

    def key(self, index: int) -> int:
        """The partition's key in the metastore."""
        return partition_key(self.number, index)

    def places(self) -> list[Place]:
        """Its partitions."""
        return [Place(self, index) for index in range(self.partition_count)]


@dataclass(frozen=True, slots=True)
class Place:
    """One partition of one incarnation of a topic."""

    topic: Topic
    index: int
    key: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.topic.key(self.index))

    def __str__(self) -> str:
        return f"{self.topic.name}#{self.topic.number}/{self.index}"


class Metadata:
    """The log's head. `topics`: every incarnation there ever was on this server, oldest first."""

    _standing: list[Topic]
    """For a copy: the topics that existed when it was made."""

    def __init__(
        self, model: ModelMetastore, racks: Sequence[str | None], low_latency: Collection[str] | None = None
    ) -> None:
        """`low_latency`: the names of topics with low.latency.enable; None in a cluster without inline files."""
        self._model = model
        self._racks = racks
        self._low_latency = low_latency or ()
        self.head = MetadataImage()
        if low_latency is not None:
            self.head = replace(self.head, features=MappingProxyType({LOW_LATENCY: FeatureRange(1, 1)}))
        self.topics: list[Topic] = []
        self._next_number = FIRST_TOPIC_NUMBER
        self._serials = itertools.count(FIRST_TOPIC_NUMBER)
        """Of all servers: ids of topics are random, so no two are the same."""

    def fork(self, model: ModelMetastore) -> Metadata:
        """Return what a copy of the metastore has."""
        other = copy.copy(self)
        other._model = model
        other.topics = list(self.topics)
        other._standing = self.living()
        return other

    def activate(self, now: float, gone: Sequence[Topic]) -> None:
        """This is the cluster's from now on: topics that it does not know are gone, those that it knows are not."""
        for topic in gone:
            if topic not in self._standing and topic.deleted_at is None:
                topic.deleted_at = now
        for topic in self._standing:
            topic.deleted_at = None

    def begin_life(self, life: int) -> None:
        """Do the same as metastore/postgres/life does it: numbers and epochs of the life, from its first offset on."""
        self._model.metadata_offset = log_floor(life)
        self._next_number = max(self._next_number, log_floor(life))
        self.head = replace(reborn(self.head, life), moved_at=log_floor(life))

    def create_topic(
        self, name: str, partitions: int, *, is_mortal: bool = False, stamps: bool = False, is_compacted: bool = False
    ) -> Topic:
        number = self._next_number
        self._next_number += 1
        topic_id = uuid.UUID(int=number << 64 | next(self._serials))
        topic = Topic(name, topic_id, number, partitions, is_mortal, stamps, is_compacted=is_compacted)
        self.topics.append(topic)
        if isinstance(self._model, ModelLifecycle):
            self._model.topic_ids[number] = topic_id
        self._model.create_topic(number, partitions, name)
        image = TopicImage(topic.topic_id, number, name, partitions, partitions, (0,) * partitions)
        configs = {"message.timestamp.type": "LogAppendTime"} if stamps else {}
        configs |= {"cleanup.policy": "compact"} if is_compacted else {}
        configs |= {LOW_LATENCY_ENABLE: "true"} if name in self._low_latency else {}
        added = {(TOPIC_RESOURCE, name): configs} if configs else {}
        self._replace({**self.head.topics_by_id, topic.topic_id: image}, {**self.head.configs, **added})
        return topic

    def delete_topic(self, topic: Topic, now: float) -> None:
        topic.deleted_at = now
        self._model.delete_topic(topic.number)
        topics = dict(self.head.topics_by_id)
        del topics[topic.topic_id]
        self._replace(topics, self.head.configs)

    def raise_leader_epoch(self, topic: Topic, index: int) -> None:
        """Do what partition growth does."""
        image = self.head.topics_by_id[topic.topic_id]
        epochs = list(image.leader_epochs)
        epochs[index] += 1
        self._model.set_leader_epoch(topic.key(index), epochs[index])
        self._model.metadata_offset += 1
        changed = replace(image, leader_epochs=tuple(epochs))
        self._replace({**self.head.topics_by_id, topic.topic_id: changed}, self.head.configs)

    def place(self, key: int) -> Place:
        """The partition of that key."""
        number, index = split_partition_key(key)
        return Place(next(topic for topic in reversed(self.topics) if topic.number == number), index)

    def living(self) -> list[Topic]:
        return [topic for topic in self.topics if topic.deleted_at is None]

    def show_agent(self, node_id: int, broker_epoch: int, *, fenced: bool) -> None:
        """It was registered, unfenced or fenced: its neighbours will see it."""
        port, rack = node_id, self._racks[node_id - 1]
        agent = AgentImage(node_id, broker_epoch, uuid.UUID(int=broker_epoch), "agent", port, rack, fenced)
        if self.head.agents.get(node_id) != agent:
            self._model.metadata_offset += 1
            agents = MappingProxyType({**self.head.agents, node_id: agent})
            end = self._model.metadata_offset
            self.head = replace(self.head, offset=end, agents=agents, moved_at=end)

    def move_leader(self, place: Place, node_id: int) -> None:
        """Do what a reassignment of one partition does."""
        image = self.head.topics_by_id[place.topic.topic_id]
        self._model.metadata_offset += 1
        assignments = MappingProxyType({**image.assignments, place.index: Assignment((node_id,))})
        moved = replace(image, assignments=assignments, moved_at=self._model.metadata_offset)
        self._replace({**self.head.topics_by_id, image.topic_id: moved}, self.head.configs)

    def _replace(
        self, topics: Mapping[uuid.UUID, TopicImage], configs: Mapping[tuple[int, str], Mapping[str, str]]
    ) -> None:
        self.head = replace(
            self.head,
            offset=self._model.metadata_offset,
            topics_by_name=MappingProxyType({topic.name: topic for topic in topics.values()}),
            topics_by_id=MappingProxyType(dict(topics)),
            topics_by_number=MappingProxyType({topic.topic_number: topic for topic in topics.values()}),
            configs=MappingProxyType(dict(configs)),
        )


class SimulatedView:
    """Implements agent.cluster.view.ClusterView for one process."""

    cluster_id = "simulated"

    def __init__(self, line: MetastoreLine, commit_shards: int, node_id: int) -> None:
        self._line = line
        self.commit_shards = commit_shards
        self.node_id = node_id
        self.broker_epoch = -1
        self.image = MetadataImage()

    @property
    def routes(self) -> Routes:
        return Routes(self.image, self.commit_shards)

    async def catch_up(self) -> MetadataImage:
        """Errors as metastore/api/."""
        head = await self._line.read_head()
        if head.offset > self.image.offset:
            self.image = head
        return self.image

    async def join(self) -> None:
        """Be registered and unfenced, under a new epoch if need be. Errors as metastore/api/."""
        self.broker_epoch = await self._line.renew(self.node_id, self.broker_epoch)

    def leader(self, partition_key: int, zone: str | None = None) -> AgentImage | None:
        return self.routes.leader(partition_key, zone)

    def coordinator(self, group_id: str) -> AgentImage | None:
        return None
