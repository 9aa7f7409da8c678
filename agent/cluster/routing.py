"""Assigns live agents to partitions and groups: rendezvous hashing, or dealt by topic (spread.py); pure.

Place: Metadata and FindCoordinator return these decisions to clients; a coordinator uses them to check itself.
Invariant: all agents with the same image decide the same, and if an agent fails only its own
share moves. The client's zone comes first (W15), then the agents that a reassignment prefers, then the spread of the
topic if the cluster's level covers it, else the hash of the commit shard: a zone with an agent never sends its clients
to another zone. The hash is fixed (BLAKE2b), never Python's, which differs from process to process. The decision is a
hint for locality: any agent still accepts any request (W1).
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable
from typing import NamedTuple

from headrace.agent.cluster.spread import AGENTS_MAX, REGISTERED_MAX, is_covered, spread
from headrace.metastore.keys import commit_shard, split_partition_key
from headrace.metastore.log.image import AgentImage, MetadataImage, TopicImage


def shard_role(shard: int) -> str:
    """The name under which agents compete for a commit shard."""
    return f"shard:{shard}"


def group_role(group_id: str) -> str:
    """The name under which agents compete for a consumer group."""
    return f"group:{group_id}"


def chunk_role(file_id: uuid.UUID, chunk: int) -> str:
    """The name under which the agents of a zone compete for a chunk of a segment file."""
    return f"chunk:{file_id.hex}:{chunk}"


def score(node_id: int, role: str) -> int:
    """The agent's preference for the role: 64 bits, the same in every process and release."""
    return int.from_bytes(hashlib.blake2b(f"{node_id}/{role}".encode(), digest_size=8).digest())


def preferred(role: str, agents: Iterable[AgentImage]) -> AgentImage | None:
    """The agent with the highest score; None without agents."""
    return max(agents, key=lambda agent: (score(agent.node_id, role), agent.node_id), default=None)


def transaction_coordinator(image: MetadataImage, transactional_id: str) -> AgentImage | None:
    """The live agent that clients are sent to with requests about this transactional id: any other would do as well."""
    return preferred(f"transaction:{transactional_id}", image.live_agents())


_Agents = tuple[tuple[int, ...], tuple[int, ...]]
"""Registered and live agents of a zone: node ids, ascending."""


class _Dealt(NamedTuple):
    """What was dealt: a topic's partitions, between these agents."""

    partitions: int
    agents: _Agents
    leaders: tuple[int, ...]


class Routes:
    """The decisions for one image; each is computed on first use."""

    def __init__(self, image: MetadataImage, commit_shards: int, before: Routes | None = None) -> None:
        """`before`: the routes of an earlier image, of which this one takes what did not change."""
        self.image = image
        self._live = image.live_agents()
        self._members = [agent for agent in image.agents.values() if agent.member]
        self._zones = {agent.rack for agent in self._live}
        self._commit_shards = commit_shards
        self._level = image.leader_spread
        self._shard_leaders: dict[tuple[int, str | None], AgentImage | None] = {}
        self._between: dict[str | None, _Agents | None] = {}
        """Agents between which partitions are dealt, by zone."""
        self._spread: dict[tuple[int, str | None], tuple[int, ...] | None] = {}
        """The leaders of a topic's partitions, by topic number and zone; None: they follow commit shards."""
        self._dealt_before: dict[tuple[int, str | None], _Dealt] = {} if before is None else before._dealt_before
        if len(self._dealt_before) > len(image.topics_by_number) * (len(self._zones) + 1):  # some topics are gone
            self._dealt_before = {}

    def leader(self, partition_key: int, zone: str | None = None) -> AgentImage | None:
        """An agent of the zone if it has live ones, else of all: the first preferred one, else the one that the
        partition is dealt to, else the commit shard's."""
        zone = zone if zone in self._zones else None
        if (pinned := self._pinned(partition_key, zone)) is not None:
            return pinned
        if (dealt := self._dealt(partition_key, zone)) is not None:
            return dealt
        chosen = (commit_shard(partition_key, self._commit_shards), zone)
        if chosen not in self._shard_leaders:
            self._shard_leaders[chosen] = self._elect(*chosen)
        return self._shard_leaders[chosen]

    def coordinator(self, group_id: str) -> AgentImage | None:
        """The agent for the group, hidden or not: its claim bars others until it is fenced (decisions/0019). Zones are
        ignored, so that all members use the same agent."""
        return preferred(group_role(group_id), self._members)

    def _pinned(self, partition_key: int, zone: str | None) -> AgentImage | None:
        """The first live agent of the zone that a reassignment prefers for the partition."""
        number, index = split_partition_key(partition_key)
        topic = self.image.topics_by_number.get(number)
        if topic is None or not topic.assignments:
            return None
        agents = (self.image.agents.get(node_id) for node_id in topic.assignment(index).preferred)
        return next((a for a in agents if a is not None and a.live and (zone is None or a.rack == zone)), None)

    def _dealt(self, partition_key: int, zone: str | None) -> AgentImage | None:
        """The agent to which the partition is dealt, if the level covers its topic and the zone has few agents.

        Partitions with preferred agents count like others, so a reassignment moves no other partition.
        """
        number, index = split_partition_key(partition_key)
        topic = self.image.topics_by_number.get(number) if self._level else None
        if topic is None or not topic.has(index):
            return None
        if (number, zone) not in self._spread:
            self._spread[number, zone] = self._deal(topic, zone)
        leaders = self._spread[number, zone]
        return None if leaders is None else self.image.agents[leaders[index]]

    def _deal(self, topic: TopicImage, zone: str | None) -> tuple[int, ...] | None:
        if zone not in self._between:
            self._between[zone] = self._dealt_between(zone)
        agents = self._between[zone]
        if agents is None or not is_covered(topic.topic_number, self._level):
            return None
        place = topic.topic_number, zone
        known = self._dealt_before.get(place)
        if known is None or (known.partitions, known.agents) != (topic.partition_count, agents):
            leaders = spread(topic.topic_number, topic.partition_count, *agents)
            known = self._dealt_before[place] = _Dealt(topic.partition_count, agents, leaders)
        leaders = known.leaders
        if not topic.removed:
            return leaders
        those_left = iter(leaders)
        return tuple(next(those_left) if topic.has(index) else -1 for index in range(len(topic.leader_epochs)))

    def _dealt_between(self, zone: str | None) -> _Agents | None:
        """Return the registered and the live agents of the zone: those that are fenced, hidden or leaving keep their
        places, so that only their partitions move. None: the zone has none, or too many.
        """
        live = tuple(agent.node_id for agent in self._live if zone is None or agent.rack == zone)
        if not 0 < len(live) <= AGENTS_MAX:
            return None
        agents = self.image.agents.values()
        registered = tuple(sorted(agent.node_id for agent in agents if zone is None or agent.rack == zone))
        return registered if len(registered) <= REGISTERED_MAX else live, live

    def _elect(self, shard: int, zone: str | None) -> AgentImage | None:
        return preferred(shard_role(shard), (agent for agent in self._live if zone is None or agent.rack == zone))
