"""Keeps which commit shards of the feed this agent follows (decisions/0087): applies shard_interest.py to the index.

Place: fetches, commits and polls call it; it tells the tail index which shards to follow, and which to drop.
Invariant: a shard that a fetch waits for is followed from before the look-up until the wait ends. A shard that this
agent commits to is followed from before the commit is sent until a poll that began after its end has brought it. A
shard is dropped only when the feed's page has nothing more of it, so what it brought until then was in the index.
If the agent follows all shards, for its setting or because the cluster has few agents, nothing is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from headrace.agent.cluster.view import ClusterView
from headrace.agent.fetch.index.index import TailIndex
from headrace.agent.fetch.index.shard_interest import FollowPolicy, FollowReason, ShardInterest, assigned_shards
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.agent.fetch.waiters import Waiters
from headrace.metastore.api.read import FeedPage
from headrace.metastore.keys import commit_shard
from headrace.metastore.log.image import MetadataImage
from headrace.storage.clock import Clock


class FollowedShards:
    """Those of one agent."""

    def __init__(
        self,
        index: TailIndex,
        view: ClusterView,
        waiters: Waiters,
        clock: Clock,
        metrics: FetchMetrics,
        policy: FollowPolicy | None = None,
    ) -> None:
        """`policy`: None to follow all shards."""
        self._index, self._view, self._waiters, self._clock, self._metrics = index, view, waiters, clock, metrics
        self._policy = policy or FollowPolicy()
        self._is_partial = policy is not None
        self._interest = ShardInterest(self._policy, index.shards)
        self._image: MetadataImage | None = None
        self._assigned_among: tuple[int, int, dict[int, str | None]] = (-1, 0, {})
        """This agent, the count of shards and the live agents: what the assigned shards were computed from."""
        self._looked_at = clock.monotonic()
        if self._is_partial:
            index.wanted = self._wanted

    @property
    def follows_all(self) -> bool:
        """Whether interest makes no difference."""
        return not self._is_partial or len(self._interest.assigned) == self._index.shards

    def read(self, keys: Iterable[int]) -> None:
        """A fetch asks for these partitions: call it once for each."""
        if not self.follows_all:
            self._resize()
            self._index.follow(self._interest.read(keys, self._clock.monotonic()))

    def wait(self, keys: Iterable[int]) -> None:
        """A fetch is about to wait for news of these partitions. Call it before their last look-up."""
        if not self.follows_all:
            self._resize()
            self._index.follow(self._interest.wait(keys, self._clock.monotonic()))

    @contextmanager
    def committing(self, keys: Callable[[], Iterable[int]]) -> Iterator[None]:
        """A commit to these partitions is under way while the block runs; `keys` is called if that matters."""
        if not self._is_partial:
            yield
            return
        self._note_commit(keys)
        self._interest.begin_commit(keys)
        try:
            yield
        finally:
            self._interest.end_commit(keys)
            self._note_commit(keys)

    def _note_commit(self, keys: Callable[[], Iterable[int]]) -> None:
        if not self.follows_all:
            self._resize()
            self._index.follow(self._interest.committed(keys(), self._clock.monotonic()))

    def begin_poll(self) -> float:
        """A poll is about to be sent. Returns its time, for `end_poll`."""
        now = self._clock.monotonic()
        if self._is_partial:
            self._resize()
            self._assign(now)
            if len(self._index.heads) < self._index.shards:
                self._index.follow(self._interest.assigned)
        return now

    def end_poll(self, page: FeedPage, began_at: float) -> dict[int, int]:
        """Drop what has no reason since before the poll. Returns news for waiting fetches, as TailIndex.apply does."""
        if began_at - self._looked_at < self._policy.drop_every_s:
            return {}
        self._looked_at = began_at
        self._resize()
        dropped = self._unwanted(page, began_at) if self._is_partial else frozenset()
        heard = self._index.drop(dropped) if dropped else {}
        self._count(len(dropped), began_at)
        return heard

    def _unwanted(self, page: FeedPage, now: float) -> frozenset[int]:
        """Return no shard while a growth is not followed yet: own commits may be in a shard that comes with it."""
        if len(page.heads) > self._index.shards:
            return frozenset()
        heads = self._index.heads
        without = heads.keys() - self._interest.wanted(now)
        candidates = frozenset(shard for shard in without if heads[shard] >= page.heads.get(shard, 0))
        if candidates:
            shards = self._index.shards
            waited_for = [key for key in self._waiters.waited_for() if commit_shard(key, shards) in candidates]
            candidates -= self._interest.wait(waited_for, now)
        self._interest.forget_past(now)
        return candidates

    def _count(self, dropped: int, now: float) -> None:
        self._metrics.feed_shards_dropped.inc(dropped)
        for reason, gauge in self._metrics.feed_shards_wanted.items():
            gauge.set(len(self._index.heads.keys() & self._interest.wanted_for(FollowReason(reason), now)))
        self._metrics.feed_shards_followed.set(len(self._index.heads))

    def _wanted(self, shards: int) -> Collection[int]:
        """Return which of so many shards the index begins with."""
        now = self._clock.monotonic()
        self._interest.resize(shards, now)
        self._assign(now)
        waited_for = {commit_shard(key, shards) for key in self._waiters.waited_for()}
        return self._interest.wanted(now) | waited_for

    def _resize(self) -> None:
        """The index has followed a growth of the shards."""
        if self._interest.shards != self._index.shards:
            self._interest.resize(self._index.shards, self._clock.monotonic())

    def _assign(self, now: float) -> None:
        """Choose this agent's shards again if the agents or the count of shards have changed.

        It counts itself also if others do not, so it only follows more. Without agents in its image it follows all.
        """
        image, node_id, shards = self._view.image, self._view.node_id, self._interest.shards
        if image is self._image and (node_id, shards) == self._assigned_among[:2]:
            return
        self._image = image
        zones = {agent.node_id: agent.rack for agent in image.live_agents()}
        if node_id >= 0 and node_id not in zones:
            own = image.agents.get(node_id)
            zones[node_id] = None if own is None else own.rack
        among = (node_id, shards, zones)
        if among == self._assigned_among:
            return
        self._assigned_among = among
        if len(zones) <= self._policy.followers:
            assigned = frozenset(range(shards))
        else:
            assigned = assigned_shards(node_id, zones, shards, self._policy.followers)
        self._interest.assign(assigned, now)
