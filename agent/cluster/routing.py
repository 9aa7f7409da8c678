"""Assigns a live agent to each partition or group, by rendezvous hashing or dealt by topic (spread.py); pure.

Place: Metadata and FindCoordinator return these decisions to clients; a coordinator uses them to check itself. An
Electorate has the agents of an image, and whom they elect: the routes of all images with the same agents share one,
because most images change topics. It has one Elections for each set of agents: those of a zone for commit shards,
all for groups.
Invariant: all agents with the same image decide the same, and if an agent fails only its own
share moves. The client's zone comes first (W15), then the agents that a reassignment prefers, then the spread of the
topic if the cluster's level covers it, else the hash of the commit shard: a zone with an agent never sends its
clients to another zone. The agent with the highest score is elected, so the same agents elect the same one in every
process and release; the score is fixed (BLAKE2b), never Python's hash, which differs from process to process. The
decision is a hint for locality: any agent still accepts any request (W1). A Routes object keeps deciding for its own
image after the next one was made from it, so an answer that is computed in slices mixes no two images.
An Elections takes over what an earlier one found: an agent that came is compared with the winner of each role, and
only roles of winners that went are elected again. So with 1,000 agents and 1,024 shards a change costs about one
score per shard, not a million.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from headrace.agent.cluster.spread import AGENTS_MAX, REGISTERED_MAX, is_covered, spread_steps
from headrace.metastore.keys import commit_shard, split_partition_key
from headrace.metastore.log.image import AgentImage, MetadataImage, TopicImage

K = TypeVar("K", int, str)

REMEMBERED_MAX = 4_096
"""Roles of an object; all are forgotten when there are more."""
ROLE_CHARACTERS_MAX = 256
"""A role with a longer name is elected each time: clients choose the ids of groups."""


def score(node_id: int, role: str) -> int:
    """Return the agent's preference for the role: 64 bits, the same in every process and release."""
    return int.from_bytes(hashlib.blake2b(f"{node_id}/{role}".encode(), digest_size=8).digest())


class _Elected(NamedTuple):
    """The winner of a role, without the agents that came since."""

    score: int
    node_id: int
    came: tuple[int, ...] = ()


class Elections(Generic[K]):
    """The winners among some agents."""

    def __init__(self, node_ids: Iterable[int], name: Callable[[K], str], before: Elections[K] | None = None) -> None:
        """`name`: of a role. `before`: the elections among other agents, of which winners are taken over."""
        self.node_ids = frozenset(node_ids)
        self._name: Callable[[K], str] = name
        self._elected: dict[K, _Elected] = {} if before is None else before._taken_over(self.node_ids)

    def winner(self, role: K) -> int | None:
        """Return the node id; None without agents."""
        elected = self._elected.get(role)
        if elected is None or elected.came:
            elected = self._elect(role, elected)
        return elected.node_id if self.node_ids else None

    def scores_needed(self, role: K) -> int:
        """Return how many scores `winner` would compute; 0 if it remembers the winner."""
        elected = self._elected.get(role)
        return len(self.node_ids) if elected is None else len(elected.came)

    def _elect(self, role: K, known: _Elected | None) -> _Elected:
        name = self._name(role)
        best, among = ((-1, -1), self.node_ids) if known is None else (known[:2], known.came)
        elected = _Elected(*max(best, *((score(node_id, name), node_id) for node_id in among), (-1, -1)))
        if len(name) <= ROLE_CHARACTERS_MAX:
            if role not in self._elected and len(self._elected) >= REMEMBERED_MAX:
                self._elected.clear()
            self._elected[role] = elected
        return elected

    def _taken_over(self, node_ids: frozenset[int]) -> dict[K, _Elected]:
        """Return the winners that are among `node_ids`, each with the agents that it was not compared with yet."""
        came = tuple(node_ids - self.node_ids)
        compared: dict[tuple[int, ...], tuple[int, ...]] = {}
        taken = {}
        for role, (score_of, winner, waiting) in self._elected.items():
            if winner not in node_ids:
                continue
            if waiting not in compared:
                compared[waiting] = tuple(node_id for node_id in waiting if node_id in node_ids) + came
            if len(compared[waiting]) < len(node_ids):
                taken[role] = _Elected(score_of, winner, compared[waiting])
        return taken


Between = tuple[tuple[int, ...], tuple[int, ...]]
"""Registered and live agents of a zone: node ids, ascending."""

CONTROLLER_ROLE = "controller"


def shard_role(shard: int) -> str:
    """The name under which agents compete for a commit shard."""
    return f"shard:{shard}"


def group_role(group_id: str) -> str:
    """The name under which agents compete for a consumer group."""
    return f"group:{group_id}"


class Electorate:
    """The agents of one image; each result is computed on first use."""

    def __init__(self, image: MetadataImage, before: Electorate | None) -> None:
        """`before`: of an earlier image."""
        self.agents: Mapping[int, AgentImage] = image.agents
        self.live = image.live_agents()
        self.live_node_ids = [agent.node_id for agent in self.live]
        self.zones = {agent.rack for agent in self.live}
        self._between: dict[str | None, Between | None] = {}
        self._shards: dict[str | None, Elections[int]] = {}
        self._shards_before: dict[str | None, Elections[int]] = {}
        self._groups: Elections[str] | None = None
        self._groups_before: Elections[str] | None = None
        self._controllers: Elections[str] | None = None
        self._controllers_before: Elections[str] | None = None
        if before is not None:
            known = before._shards_before | before._shards
            self._shards_before = {zone: held for zone, held in known.items() if zone is None or zone in self.zones}
            self._groups_before = before._groups or before._groups_before
            self._controllers_before = before._controllers or before._controllers_before

    def shards(self, zone: str | None) -> Elections[int]:
        """Return the elections for commit shards among the live agents of the zone; of all for None."""
        if zone not in self._shards:
            self._shards[zone] = Elections(self._node_ids(zone), shard_role, self._shards_before.get(zone))
        return self._shards[zone]

    def coordinator(self, group_id: str) -> AgentImage | None:
        """Return the agent for the group, of all that hold a lease."""
        return self.agent(self._coordinators().winner(group_id))

    def coordinator_scores(self, group_id: str) -> int:
        """Return how many scores `coordinator` would compute."""
        return self._coordinators().scores_needed(group_id)

    def _coordinators(self) -> Elections[str]:
        if self._groups is None:
            members = (agent.node_id for agent in self.agents.values() if agent.member)
            self._groups = Elections(members, group_role, self._groups_before)
        return self._groups

    def controller(self) -> AgentImage | None:
        """Return the live agent that clients see as the controller."""
        if self._controllers is None:
            self._controllers = Elections(self.live_node_ids, str, self._controllers_before)
        return self.agent(self._controllers.winner(CONTROLLER_ROLE))

    def agent(self, node_id: int | None) -> AgentImage | None:
        """Return None for None."""
        return None if node_id is None else self.agents[node_id]

    def dealt_between(self, zone: str | None) -> Between | None:
        """Return the registered and the live agents of the zone: those that are fenced, hidden or leaving keep their
        places, so that only their partitions move. None: the zone has none, or too many.
        """
        if zone not in self._between:
            self._between[zone] = self._find_between(zone)
        return self._between[zone]

    def _find_between(self, zone: str | None) -> Between | None:
        live = self._node_ids(zone)
        if not 0 < len(live) <= AGENTS_MAX:
            return None
        agents = self.agents.values()
        registered = tuple(sorted(agent.node_id for agent in agents if zone is None or agent.rack == zone))
        return registered if len(registered) <= REGISTERED_MAX else live, live

    def _node_ids(self, zone: str | None) -> tuple[int, ...]:
        return tuple(agent.node_id for agent in self.live if zone is None or agent.rack == zone)


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
        """Return the agent that clients in the zone use for the partition; None if no agent is live.

        It is one of the zone if that has a live agent, else one of all: an agent that a reassignment prefers, else the
        one to which the partition is dealt, else the one of its commit shard.
        """
        zone = zone if self.has_zone(zone) else None
        topic_number, index = split_partition_key(partition_key)
        topic = self.image.topics_by_number.get(topic_number)
        if topic is not None:
            pinned = self._pinned(topic, index, zone)
            if pinned is not None:
                return pinned
            dealt = self._dealt(topic, zone) if topic.has(index) else None
            if dealt is not None:
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
