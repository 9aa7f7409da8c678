"""Deals the partitions of one topic to the agents of a zone, evenly: pure.

Place: routing.py asks it for topics that the cluster's level of `leader.spread` covers (decisions/0078).
Invariant: the leaders of a topic differ by at most 1 among the live agents. The result depends on the topic's number,
the count of its partitions and the agents only, and the numbers here never change: agents of different releases must
agree. If one agent goes and stays registered, only its partitions move. O(partitions x agents) for one topic, in steps
of BLOCK partitions, so that a topic of 100,000 partitions does not occupy the event loop of its caller.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator

AGENTS_MAX = 16
"""A zone with more live agents is led by commit shards: each agent would commit to each shard, and wait for the others
there."""
REGISTERED_MAX = 2 * AGENTS_MAX
"""Number of registered agents above which those that are not live are left out."""
TENTHS = 10
"""The highest level: all topics. Each level below covers a tenth less."""
BLOCK = 128
"""Partitions that are dealt at once: the cost of a topic grows with their count, not with its square."""
_MASK = (1 << 64) - 1


def is_covered(topic_number: int, level: int) -> bool:
    """Return whether the topic's leaders are spread at this level, from 0 to TENTHS; one that is stays so
    above it.
    """
    return _seed(f"covered:{topic_number}") % TENTHS < level


def spread_steps(
    topic_number: int, partitions: int, registered: tuple[int, ...], live: tuple[int, ...]
) -> Generator[int, None, tuple[int, ...]]:
    """Return the leader of each of a topic's partitions; yields how many pairs of partition and agent a step had.

    `registered`, `live`: node ids, ascending; at least one is live, and each live one is registered. Those that are not
    live keep their places: what they led is dealt to the others.
    """
    seeds = _seeds(topic_number, registered)
    leaders = yield from _dealt(partitions, seeds)
    if len(live) < len(registered):
        yield from _give_to_heirs(leaders, seeds, live)
    return tuple(leaders)


def _give_to_heirs(leaders: list[int], seeds: dict[int, int], live: tuple[int, ...]) -> Generator[int, None, None]:
    """Replace the leaders that are not live, each by the live agent with the fewest partitions."""
    loads = dict.fromkeys(live, 0)
    for leader in leaders:
        if leader in loads:
            loads[leader] += 1
    pairs = 0
    for index, leader in enumerate(leaders):
        if leader not in loads:
            heir = min(live, key=lambda node_id: (loads[node_id], _score(seeds[node_id], index), node_id))
            leaders[index] = heir
            loads[heir] += 1
            pairs += len(live)
        if index % BLOCK == BLOCK - 1 and pairs:
            yield pairs
            pairs = 0
    if pairs:
        yield pairs


def _dealt(partitions: int, seeds: dict[int, int]) -> Generator[int, None, list[int]]:
    """Return the leaders, block by block, as if all agents were live."""
    ranked = sorted(seeds, key=lambda node_id: (seeds[node_id], node_id))
    leaders: list[int] = []
    for first in range(0, partitions, BLOCK):
        last = min(first + BLOCK, partitions)
        quotas = {
            node_id: _share(last, rank, len(ranked)) - _share(first, rank, len(ranked))
            for rank, node_id in enumerate(ranked)
        }
        leaders += _dealt_block(first, last, quotas, seeds)
        yield (last - first) * len(ranked)
    return leaders


def _share(partitions: int, rank: int, agents: int) -> int:
    """Return how many of the first `partitions` the agent of this rank leads: all of them, divided evenly."""
    each, rest = divmod(partitions, agents)
    return each + (rank < rest)


def _dealt_block(first: int, last: int, quotas: dict[int, int], seeds: dict[int, int]) -> list[int]:
    """Give each partition an agent: the pairs with the lowest scores first, as long as the agent has not its quota."""
    pairs = sorted(
        (_score(seeds[node_id], index), index - first, node_id)
        for node_id, quota in quotas.items()
        if quota
        for index in range(first, last)
    )
    leaders = [-1] * (last - first)
    left = last - first
    for _, place, node_id in pairs:
        if leaders[place] < 0 < quotas[node_id]:
            leaders[place] = node_id
            quotas[node_id] -= 1
            left -= 1
            if not left:
                break
    return leaders


def _seeds(topic_number: int, node_ids: tuple[int, ...]) -> dict[int, int]:
    topic = _seed(f"topic:{topic_number}")
    return {node_id: _mixed(topic ^ _agent_seed(node_id)) for node_id in node_ids}


def _score(seed: int, index: int) -> int:
    """An agent's number for a partition of the topic that the seed belongs to; the lowest is preferred."""
    return seed * (_PLACES[index % BLOCK] + (index // BLOCK << 1)) & _MASK


def _agent_seed(node_id: int) -> int:
    return _mixed((node_id + 1) * 0x9E3779B97F4A7C15 & _MASK)


def _seed(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())


def _mixed(number: int) -> int:
    """The finalizer of SplitMix64."""
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    number = (number ^ number >> 27) * 0x94D049BB133111EB & _MASK
    return number ^ number >> 31


_PLACES = tuple(_mixed(place + 1) | 1 for place in range(BLOCK))
