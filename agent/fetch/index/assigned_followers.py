"""Chooses the live agents that follow a commit shard, also if their clients do not read it; pure.

Place: followed_shards.py asks it when the agents or the count of shards change.
Invariant: all agents with the same image and the same count choose the same, in every release: the scores are fixed.
Each shard has FOLLOWERS of the live agents, or all if there are fewer, and as many zones as possible: a zone that fails
together with Postgres leaves a follower. An agent that comes or goes changes the followers of a shard only by itself
and one other.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

FOLLOWERS = 3
"""How many agents follow each shard: two are left while one that failed is still taken for a live agent."""
BLOCK = 64
"""Commit shards that are computed at once: with 1,000 agents, their scores fit into a core's cache."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def shard_followers(zones: Mapping[int, str | None], shards: int, count: int = FOLLOWERS) -> NDArray[np.uint64]:
    """Return node ids: a row for each shard, a column for each follower. `zones`: by node id of the live agents.

    The agent with the highest score first, then the highest of another zone, and so on; when each zone has one, another
    round begins. O(shards x agents).
    """
    nodes = np.array(sorted(zones), dtype=np.uint64)
    numbers: dict[str | None, int] = {}
    zone_of = np.array([numbers.setdefault(zones[int(node)], len(numbers)) for node in nodes], dtype=np.intp)
    blocks = [range(first, min(first + BLOCK, shards)) for first in range(0, shards, BLOCK)]
    found = [_chosen(_scores(nodes, block), nodes, zone_of, max(len(numbers), 1), count) for block in blocks]
    return np.concatenate(found)


def _chosen(
    scores: NDArray[np.uint64], nodes: NDArray[np.uint64], zone_of: NDArray[np.intp], zones: int, count: int
) -> NDArray[np.uint64]:
    """Return the followers of some shards, from a score of each agent for each of them."""
    every = np.arange(len(scores))
    is_chosen = np.zeros(scores.shape, dtype=bool)
    has_one = np.zeros((len(scores), zones), dtype=bool)
    chosen = np.zeros((len(scores), min(count, len(nodes))), dtype=np.uint64)
    for place in range(chosen.shape[1]):
        may_be = ~is_chosen & ~has_one[:, zone_of]
        next_round = ~may_be.any(axis=1)
        has_one[next_round] = False
        may_be[next_round] = ~is_chosen[next_round]
        best = np.where(may_be, scores, np.uint64(0)).argmax(axis=1)
        is_chosen[every, best] = True
        has_one[every, zone_of[best]] = True
        chosen[:, place] = nodes[best]
    return chosen


def assigned_shards(
    node_id: int, zones: Mapping[int, str | None], shards: int, count: int = FOLLOWERS
) -> frozenset[int]:
    """Return the shards that the agent follows; none if it is not among them."""
    if node_id not in zones:
        return frozenset()
    if len(zones) <= count:
        return frozenset(range(shards))
    rows = (shard_followers(zones, shards, count) == np.uint64(node_id)).any(axis=1)
    return frozenset(np.flatnonzero(rows).tolist())


def _scores(nodes: NDArray[np.uint64], shards: range) -> NDArray[np.uint64]:
    """Return a score for each shard and agent, never 0."""
    by_shard = (np.arange(shards.start, shards.stop, dtype=np.uint64) + np.uint64(1)) * _GOLDEN
    return _mixed(_mixed(nodes + _GOLDEN)[np.newaxis, :] ^ by_shard[:, np.newaxis]) | np.uint64(1)


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The output function of SplitMix64 (Steele, Lea, Flood, 2014), element by element."""
    mixed = (numbers ^ (numbers >> np.uint64(30))) * _MIX_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
    return mixed ^ (mixed >> np.uint64(31))
