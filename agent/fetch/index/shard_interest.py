"""The reasons for which an agent follows a commit shard, each with its duration; pure: times are given.

Place: the rules of followed_shards.py, which applies them to the index.
A shard is wanted for one of these reasons:
  READ       a client came back to a partition of it within `again_s`: until `read_s` after the last time; or a
             fetch waits for news of it, or did so less than `wait_s` ago
  COMMITTED  a commit of this agent is under way, or ended less than `commit_s` ago
  ASSIGNED   this agent is one of its followers by hash, also if its clients do not read it, or was less than
             `handover_s` ago
Invariant: a partition that is read once without waiting is no reason, however many there are; what is remembered of
such reads is bounded (SEEN_MAX for each shard).
All agents with the same image and the same count of shards choose the same followers, in every release: the scores
are fixed. Each shard has FOLLOWERS of the live agents, or all if there are fewer, and as many zones as possible: a
zone that fails together with Postgres leaves a follower. An agent that comes or goes changes the followers of a
shard only by itself and one other.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.metastore.keys import commit_shard

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


SEEN_MAX = 16
"""Partitions of a shard that are remembered to notice that a client comes back."""
FRESH_SECONDS = 1.0
"""Interest that was renewed within this time is not renewed again: a fetch has many partitions of one shard."""


class FollowReason(enum.StrEnum):
    """Label of the metric."""

    READ = "read"
    COMMITTED = "committed"
    ASSIGNED = "assigned"


class FollowPolicy(NamedTuple):
    """Numbers of the rules; times in seconds."""

    followers: int = FOLLOWERS
    again_s: float = 30.0
    read_s: float = 60.0
    wait_s: float = 2.0
    """The time from the end of a wait to the same client's next fetch."""
    commit_s: float = 60.0
    """Longer than followers by hash need to poll once, also after a quiet time."""
    handover_s: float = 300.0
    """How much of a shard's past a new follower by hash has when this one forgets it."""
    drop_every_s: float = 1.0


FOLLOW_POLICY = FollowPolicy()


class ShardInterest:
    """The reasons of one agent, by commit shard."""

    def __init__(self, policy: FollowPolicy, shards: int) -> None:
        self.shards = shards
        self.assigned: frozenset[int] = frozenset()
        self._policy = policy
        self._until: dict[FollowReason, dict[int, float]] = {reason: {} for reason in FollowReason}
        self._committing: list[Callable[[], Iterable[int]]] = []
        """Partition keys of the commits that are under way."""
        self._seen: dict[int, dict[int, float]] = {}
        """Shard -> partition key -> when a client last read it."""

    def read(self, keys: Iterable[int], now: float) -> list[int]:
        """A client reads these partitions. Returns the shards that are wanted for it."""
        policy, until, wanted = self._policy, self._until[FollowReason.READ], []
        for key in keys:
            shard = commit_shard(key, self.shards)
            if until.get(shard, 0.0) >= now + policy.read_s - FRESH_SECONDS:
                continue
            seen = self._seen.setdefault(shard, {})
            before = seen.get(key)
            if before is None and len(seen) >= SEEN_MAX:
                self._forget_reads(shard, now)
                seen = self._seen[shard]
            if before is not None or len(seen) < SEEN_MAX:
                seen[key] = now
            if before is not None and now - before <= policy.again_s:
                until[shard] = now + policy.read_s
                wanted.append(shard)
        return wanted

    def wait(self, keys: Iterable[int], now: float) -> set[int]:
        """A fetch waits for news of these partitions. Returns their shards."""
        shards = self._shards_of(keys)
        self._extend(FollowReason.READ, shards, now + self._policy.wait_s)
        return shards

    def begin_commit(self, keys: Callable[[], Iterable[int]]) -> None:
        """A commit to these partitions is about to be sent."""
        self._committing.append(keys)

    def end_commit(self, keys: Callable[[], Iterable[int]]) -> None:
        """It was answered, or failed."""
        self._committing.remove(keys)

    def committed(self, keys: Iterable[int], now: float) -> set[int]:
        """A commit to these partitions is to be followed, at least for a while from now. Returns their shards."""
        shards = self._shards_of(keys)
        self._extend(FollowReason.COMMITTED, shards, now + self._policy.commit_s)
        return shards

    def assign(self, shards: frozenset[int], now: float) -> None:
        """The followers by hash have changed."""
        self._extend(FollowReason.ASSIGNED, self.assigned - shards, now + self._policy.handover_s)
        self.assigned = shards

    def wanted(self, now: float) -> set[int]:
        """Return the shards with a reason."""
        return {shard for reason in FollowReason for shard in self.wanted_for(reason, now)}

    def wanted_for(self, reason: FollowReason, now: float) -> set[int]:
        """Return the shards with this reason."""
        wanted = {shard for shard, until in self._until[reason].items() if until > now}
        if reason is FollowReason.COMMITTED:
            for keys in self._committing:
                wanted |= self._shards_of(keys())
        elif reason is FollowReason.ASSIGNED:
            wanted |= self.assigned
        return wanted

    def forget_past(self, now: float) -> None:
        """Drop what counts no more."""
        for reason, until in self._until.items():
            self._until[reason] = {shard: end for shard, end in until.items() if end > now}
        for shard in list(self._seen):
            self._forget_reads(shard, now)
            if not self._seen[shard]:
                del self._seen[shard]

    def resize(self, shards: int, now: float) -> None:
        """The count of shards is another one: partitions continue elsewhere, and the reasons with them. Followers by
        hash are so until the handover."""
        if shards == self.shards:
            return
        before, self.assigned = self.assigned, frozenset()
        self._extend(FollowReason.ASSIGNED, before, now + self._policy.handover_s)
        old, self.shards = self.shards, shards
        for reason, until in self._until.items():
            moved: dict[int, float] = {}
            for shard, end in until.items():
                for each in _successors(shard, old, shards):
                    moved[each] = max(end, moved.get(each, end))
            self._until[reason] = moved
        self._seen = {}

    def _shards_of(self, keys: Iterable[int]) -> set[int]:
        return {commit_shard(key, self.shards) for key in keys}

    def _extend(self, reason: FollowReason, shards: Iterable[int], end: float) -> None:
        until = self._until[reason]
        for shard in shards:
            until[shard] = max(end, until.get(shard, end))

    def _forget_reads(self, shard: int, now: float) -> None:
        first = now - self._policy.again_s
        self._seen[shard] = {key: at for key, at in self._seen[shard].items() if at >= first}


def _successors(shard: int, old: int, new: int) -> Iterable[int]:
    """The shards of the new count that have partitions of the old one's shard. Counts are doubled, or go back."""
    return range(shard, new, old) if new > old else (shard % new,)
