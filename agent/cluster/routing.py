"""Assigns live agents to partitions and groups: rendezvous hashing (elections.py), or dealt by topic (spread.py); pure.

Place: Metadata and FindCoordinator return these decisions to clients; a coordinator uses them to check itself.
Invariant: all agents with the same image decide the same, and if an agent fails only its own
share moves. The client's zone comes first (W15), then the agents that a reassignment prefers, then the spread of the
topic if the cluster's level covers it, else the hash of the commit shard: a zone with an agent never sends its clients
to another zone. The hash is fixed (BLAKE2b), never Python's, which differs from process to process. The decision is a
hint for locality: any agent still accepts any request (W1). A Routes object keeps deciding for its own image after the
next one was made from it, so an answer that is computed in slices mixes no two images.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from headrace.agent.cluster.elections import score
from headrace.agent.cluster.electorate import Between, Electorate
from headrace.agent.cluster.spread import is_covered, spread_steps
from headrace.metastore.keys import commit_shard, split_partition_key
from headrace.metastore.log.image import AgentImage, MetadataImage, TopicImage


def chunk_role(file_id: uuid.UUID, chunk: int) -> str:
    """The name under which the agents of a zone compete for a chunk of a segment file."""
    return f"chunk:{file_id.hex}:{chunk}"


def preferred(role: str, agents: Iterable[AgentImage]) -> AgentImage | None:
    """The agent with the highest score; None without agents."""
    return max(agents, key=lambda agent: (score(agent.node_id, role), agent.node_id), default=None)


def transaction_coordinator(routes: Routes, transactional_id: str) -> AgentImage | None:
    """The live agent that clients are sent to with requests about this transactional id: any other would do as well.
    One score of each live agent.
    """
    return preferred(f"transaction:{transactional_id}", routes.live_agents)


class _Dealt(NamedTuple):
    """What was dealt: a topic's partitions, between these agents."""

    partitions: int
    agents: Between
    leaders: tuple[int, ...]


class Routes:
    """The decisions for one image; each is computed on first use."""

    def __init__(self, image: MetadataImage, commit_shards: int, before: Routes | None = None) -> None:
        """`before`: the routes of an earlier image, of which this one takes what did not change."""
        self.image = image
        if before is not None and before.image.agents is image.agents:
            self._electorate: Electorate = before._electorate
        else:
            self._electorate = Electorate(image, None if before is None else before._electorate)
        self._commit_shards = commit_shards
        self._level = image.leader_spread
        self._spread: dict[tuple[int, str | None], tuple[int, ...] | None] = {}
        """The leaders of a topic's partitions, by topic number and zone; None: they follow commit shards."""
        self._dealt_before: dict[tuple[int, str | None], _Dealt] = {} if before is None else before._dealt_before
        zones = len(self._electorate.zones) + 1
        if len(self._dealt_before) > len(image.topics_by_number) * zones:  # some topics are gone
            self._dealt_before = {}

    @property
    def live_agents(self) -> Sequence[AgentImage]:
        """The agents that clients are sent to, by node id; found once for all images with the same agents."""
        return self._electorate.live

    @property
    def live_node_ids(self) -> Sequence[int]:
        """Their node ids, ascending."""
        return self._electorate.live_node_ids

    def has_zone(self, zone: str | None) -> bool:
        """Return whether the zone has a live agent."""
        return zone in self._electorate.zones

    def leader(self, partition_key: int, zone: str | None = None) -> AgentImage | None:
        """An agent of the zone if it has live ones, else of all: the first preferred one, else the one that the
        partition is dealt to, else the commit shard's."""
        zone = zone if self.has_zone(zone) else None
        number, index = split_partition_key(partition_key)
        topic = self.image.topics_by_number.get(number)
        if topic is not None and (pinned := self._pinned(topic, index, zone)) is not None:
            return pinned
        if topic is not None and topic.has(index) and (dealt := self._dealt(topic, zone)) is not None:
            return self.image.agents[dealt[index]]
        return self._shard_leader(commit_shard(partition_key, self._commit_shards), zone)

    def leaders(self, topic: TopicImage, zone: str | None = None) -> Sequence[AgentImage | None]:
        """Return the leader of each partition of a topic by index, as `leader` does. Of no use for removed ones."""
        zone = zone if self.has_zone(zone) else None
        dealt = self._dealt(topic, zone)
        if dealt is None:
            count, shards = len(topic.leader_epochs), self._commit_shards
            ring = [self._shard_leader((topic.topic_number + n) % shards, zone) for n in range(min(count, shards))]
            found = [ring[index % shards] for index in range(count)]
        else:
            found = [self.image.agents.get(node_id) for node_id in dealt]
        for index in topic.assignments:
            found[index] = self._pinned(topic, index, zone) or found[index]
        return found

    def steps(self, topic: TopicImage, zone: str | None = None) -> Iterator[int]:
        """Compute what `leaders` needs and does not remember. Yields after each step what it cost: scores of agents
        for commit shards, and pairs of partition and agent that were dealt. A caller may let other work run there.
        """
        zone = zone if self.has_zone(zone) else None
        yield from self._deal(topic, zone)
        if self._spread.get((topic.topic_number, zone)) is None:
            elections = self._electorate.shards(zone)
            for n in range(min(len(topic.leader_epochs), self._commit_shards)):
                shard = (topic.topic_number + n) % self._commit_shards
                if cost := elections.scores_needed(shard):
                    elections.winner(shard)
                    yield cost

    def coordinator(self, group_id: str) -> AgentImage | None:
        """The agent for the group, hidden or not: its claim bars others until it is fenced (decisions/0019). Zones are
        ignored, so that all members use the same agent."""
        return self._electorate.coordinator(group_id)

    def coordinator_scores(self, group_id: str) -> int:
        """Return how many scores of agents `coordinator` would compute: none, if it remembers the group's."""
        return self._electorate.coordinator_scores(group_id)

    def controller(self) -> AgentImage | None:
        """Return the live agent that clients see as the controller; any agent does what they ask of it."""
        return self._electorate.controller()

    def _pinned(self, topic: TopicImage, index: int, zone: str | None) -> AgentImage | None:
        """The first live agent of the zone that a reassignment prefers for the partition."""
        if not topic.assignments:
            return None
        agents = (self.image.agents.get(node_id) for node_id in topic.assignment(index).preferred)
        return next((a for a in agents if a is not None and a.live and (zone is None or a.rack == zone)), None)

    def _shard_leader(self, shard: int, zone: str | None) -> AgentImage | None:
        return self._electorate.agent(self._electorate.shards(zone).winner(shard))

    def _dealt(self, topic: TopicImage, zone: str | None) -> tuple[int, ...] | None:
        """Return the agents to which the topic is dealt by partition index, -1 for removed ones; None if the level does
        not cover the topic, or the zone has too many agents.

        Partitions with preferred agents count like others, so a reassignment moves no other partition.
        """
        if not self._level:
            return None
        place = topic.topic_number, zone
        if place not in self._spread:
            for _ in self._deal(topic, zone):
                pass
        return self._spread.get(place)

    def _deal(self, topic: TopicImage, zone: str | None) -> Iterator[int]:
        """Find `_spread` of the topic, unless it is known. Yields the pairs of each step."""
        place = topic.topic_number, zone
        if not self._level or place in self._spread or topic.topic_number not in self.image.topics_by_number:
            return
        agents = self._electorate.dealt_between(zone)
        if agents is None or not is_covered(topic.topic_number, self._level):
            self._spread[place] = None
            return
        known = self._dealt_before.get(place)
        if known is None or (known.partitions, known.agents) != (topic.partition_count, agents):
            leaders = yield from spread_steps(topic.topic_number, topic.partition_count, *agents)
            known = self._dealt_before[place] = _Dealt(topic.partition_count, agents, leaders)
        self._spread[place] = _without_removed(topic, known.leaders)


def _without_removed(topic: TopicImage, leaders: tuple[int, ...]) -> tuple[int, ...]:
    if not topic.removed:
        return leaders
    those_left = iter(leaders)
    return tuple(next(those_left) if topic.has(index) else -1 for index in range(len(topic.leader_epochs)))
