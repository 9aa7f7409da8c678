"""One agent that follows a part of the feed, while everything that races it happens in a drawn order.

The parts are the real ones: FollowedShards, TailIndex, FeedFollower's polls, Locator, Waiters. Requests to the
metastore (the model) have two halves, and anything may happen before and after the metastore looks.
Fault model: pages are cut short; rows are forgotten; the incarnation changes; topics are deleted and created; log
starts move; extents are merged; shards double; agents come and go; time jumps.
Checked: an answer of the index is at least as new as the newest complete poll, and no newer than the truth; what the
index holds is of followed shards; a fetch that waits is woken by what a complete poll brought; what this agent commits
is in the index when the first complete poll after it ends; and once nothing changes any more, index and primary agree.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from prometheus_client import CollectorRegistry

from headrace.agent.fetch.index.feed import FeedFollower, FollowedTail
from headrace.agent.fetch.index.followed_shards import FollowedShards
from headrace.agent.fetch.index.index import TailIndex
from headrace.agent.fetch.index.own_commits import AcknowledgedEnds
from headrace.agent.fetch.index.shard_interest import FollowPolicy
from headrace.agent.fetch.index.tail import Lookup, LookupStatus
from headrace.agent.fetch.locate import Locator
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.agent.fetch.waiters import Waiter, Waiters
from headrace.metastore.api.commit import FileCommit, StagedBatch
from headrace.metastore.api.read import (
    ALL_BYTES,
    Extent,
    ExtentQuery,
    FeedKind,
    FeedPage,
    OffsetAnswer,
    OffsetQuery,
    PartitionExtents,
)
from headrace.metastore.keys import commit_shard
from headrace.metastore.log.image import AgentImage, MetadataImage
from headrace.storage.file_id import new_file_id
from headrace.storage.supervision import Supervisor
from tests.agent.cluster.standing_view import StandingView
from tests.manual_clock import ManualClock
from tests.model.metastore_model import ModelMetastore
from tests.nouns import nouns
from tests.simulation.remote import run_at_once

NODE_ID, EPOCH = 1, 1
POLICY = FollowPolicy(followers=1, again_s=3.0, read_s=1.0, wait_s=0.3, commit_s=0.2, handover_s=0.5, drop_every_s=0.1)
SHARDS, SHARDS_MAX = 4, 16
PARTITIONS = 3
STEPS = 400
PAGE_ROWS = 2
"""Rows of a shard in a page."""


class _Turn:
    """Something else may happen here."""

    def __await__(self) -> Generator[None]:
        yield


class Wrong(AssertionError):
    """What the story showed."""


class _Followed(FollowedShards):
    """Lets the story look between the page and the drop."""

    look: Callable[[FeedPage], None]

    def end_poll(self, page: FeedPage, began_at: float) -> dict[int, int]:
        self.look(page)
        return super().end_poll(page, began_at)


class Story:
    """One seed's; also the IndexApi of its agent."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.clock = ManualClock()
        self.model = ModelMetastore(self.clock, shards=SHARDS)
        self.model.register_agent(NODE_ID, EPOCH)
        self.view = StandingView(SHARDS, node_id=NODE_ID, broker_epoch=EPOCH)
        self._show_agents({1, 2, 3, 4})
        metrics = FetchMetrics(CollectorRegistry())
        self.index, self.waiters = TailIndex(SHARDS), Waiters(metrics)
        self.followed = _Followed(self.index, self.view, self.waiters, self.clock, metrics, POLICY)
        self.followed.look = self._look
        self.feed = FeedFollower(
            nouns(self).index,
            FollowedTail(self.index, AcknowledgedEnds(), self.waiters, self.followed),
            self.clock,
            metrics,
            Supervisor(self.clock),
            interval_ms=15,
            on_metadata=lambda offset: None,
        )
        self.locator = Locator(self.index, nouns(self).index, rng, metrics)
        self.topics = 0
        self.keys: list[int] = []
        self.ever: dict[int, set[Extent]] = {}
        self.bounds: dict[int, int] = {}
        """High watermarks that the newest complete poll covers."""
        self.snapshot: dict[int, int] = {}
        """Those when the page of now was made."""
        self.version = self.page_version = self.polls = self.losses = 0
        self.sleeping: dict[Waiter, tuple[int, int]] = {}
        self.own: list[tuple[int, int, list[Extent]]] = []
        """Own commits: polls that had begun, losses, extents."""
        self.incarnation_id = self.model.incarnation_id
        self.actors: list[Coroutine[Any, Any, None]] = []
        self.polling = False
        self._make_topic()
        self._make_topic()

    def run(self) -> None:
        """Wrong at the first thing that is."""
        self._spawn(self._poll)
        self._finish()
        for _ in range(STEPS):
            self._step()
            self._check_held()
        self._finish()
        for _ in range(200):
            self._spawn(self._poll)
            self._finish()
            if self.is_at_rest:
                break
        else:
            raise Wrong("the index does not come to the end of the feed")

    @property
    def is_at_rest(self) -> bool:
        """Whether the index has all that it follows."""
        return self.index.is_at_end(FeedPage(self.model.incarnation_id, 0, self.model.feed_heads, [], [], 0))

    # -- the metastore

    async def poll_feed(self, positions: Mapping[int, int]) -> FeedPage:
        asked = dict(positions)
        await _Turn()
        page = await self.model.poll_feed(asked)
        rows = []
        for shard in asked:
            rows += [row for row in page.rows if row.shard == shard][: self.rng.randint(1, PAGE_ROWS)]
        self.snapshot = {key: each.high_watermark for key, each in self.model.partitions.items()}
        self.page_version = self.version
        await _Turn()
        return FeedPage(page.incarnation_id, 0, page.heads, rows, page.lost_shards, 0)

    async def list_offsets(self, queries: Sequence[OffsetQuery]) -> list[OffsetAnswer]:
        return await self.model.list_offsets(queries)

    async def find_extents(self, queries: Sequence[ExtentQuery], max_bytes: int = ALL_BYTES) -> list[PartitionExtents]:
        await _Turn()
        found = await self.model.find_extents(queries)
        for _ in range(self.rng.choice((1, 1, 5))):
            await _Turn()
        return found

    # -- what may happen

    def _step(self) -> None:
        rng = self.rng
        if self.actors and rng.random() < 0.6:
            self._advance(rng.randrange(len(self.actors)))
            return
        drawn = rng.random()
        if drawn < 0.3:
            if not self.polling:
                self._spawn(self._poll)
        elif drawn < 0.5:
            self._spawn(self._fetch)
        elif drawn < 0.7:
            self._commit(self._some_keys())
        elif drawn < 0.78:
            self._spawn(self._commit_own)
        elif drawn < 0.92:
            self.clock.jump(rng.choice((0.05, 0.1, 0.3)))
        else:
            rng.choice(
                (self._delete, self._move_log_start, self._merge, self._merge, self._grow, self._forget_rows,
                 self._change_agents, self._change_agents, self._begin_incarnation)
            )()  # fmt: skip

    def _spawn(self, actor: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.actors.append(actor())
        self._advance(len(self.actors) - 1)

    def _advance(self, at: int) -> None:
        try:
            self.actors[at].send(None)
        except StopIteration:
            del self.actors[at]

    def _finish(self) -> None:
        while self.actors:
            self._advance(self.rng.randrange(len(self.actors)))

    async def _poll(self) -> None:
        self.polling = True
        self.polls += 1
        await self.feed._poll()
        self.polling = False

    async def _fetch(self) -> None:
        key = self._some_key()
        self.feed.read([key])
        (lookup,) = await self._locate(key, self._some_offset(key))
        if lookup.status is not LookupStatus.FOUND or lookup.extents:
            return
        with self.feed.following([key]), self.waiters.watch([key]) as waiter:
            waiter.reset()
            (lookup,) = await self._locate(key, lookup.high_watermark)
            if lookup.status is not LookupStatus.FOUND or lookup.extents:
                return
            self.sleeping[waiter] = key, lookup.high_watermark
            for _ in range(self.rng.randint(1, 30)):
                if not waiter._heard:
                    await _Turn()
            del self.sleeping[waiter]

    async def _locate(self, key: int, offset: int) -> list[Lookup]:
        query = ExtentQuery(key, offset, self.rng.choice((1, 1_000)))
        bounds = self.bounds
        (lookup,) = found = await self.locator.locate([query])
        if lookup.status is LookupStatus.FOUND and key in self.model.partitions:
            self._check_answer(query, lookup, bounds.get(key, 0))
        return found

    async def _commit_own(self) -> None:
        keys = self._some_keys()
        losses = self.losses
        with self.followed.committing(lambda: keys):
            await _Turn()
            commits, answers, extents = self._commit(keys)
            await _Turn()
        self.feed.committed(commits, answers)
        self.own.append((self.polls, losses, extents))

    def _commit(self, keys: list[int]) -> Any:
        self.version += 1
        before = {key: len(each.extents) for key, each in self.model.partitions.items()}
        batches = [
            StagedBatch(key, 100 * n, 100, self.rng.randint(1, 3), 0, leader_epoch=0) for n, key in enumerate(keys)
        ]
        commit = FileCommit(new_file_id(self.clock.wall_ms(), self.rng), 100 * len(keys), batches)
        answers = run_at_once(self.model.commit_files(NODE_ID, EPOCH, [commit]))
        extents = [extent for key, each in self.model.partitions.items() for extent in each.extents[before[key] :]]
        for extent in extents:
            self.ever[extent.partition_key].add(extent)
        return [commit], answers, extents

    def _delete(self) -> None:
        self.version += 1
        number = self.keys[0] >> 24
        self.model.delete_topic(number)
        self.keys = [key for key in self.keys if key >> 24 != number]
        self._make_topic()

    def _make_topic(self) -> None:
        self.topics += 1
        keys = self.model.create_topic(self.topics, PARTITIONS)
        self.keys += keys
        self.ever |= {key: set() for key in keys}

    def _move_log_start(self) -> None:
        self.version += 1
        key = self.rng.choice(self.keys)
        partition = self.model.partitions[key]
        if partition.extents:
            self.model.move_log_start(key, self.rng.choice(partition.extents).last_offset + 1)

    def _merge(self) -> None:
        self.version += 1
        key = self.rng.choice(self.keys)
        extents = self.model.partitions[key].extents
        if len(extents) > 2:
            first, second = extents[:2]
            file_id = uuid.UUID(int=self.rng.getrandbits(128))
            merged = second._replace(base_offset=first.base_offset, source=file_id, length=200)
            extents[:2] = [merged]
            self.ever[key].add(merged)
            self.model._append_feed(self.model._shard(key), FeedKind.SWAP, extents=[merged])

    def _grow(self) -> None:
        if self.model.shards < SHARDS_MAX:
            self.version += 1
            self.model.grow_shards(2 * self.model.shards)

    def _forget_rows(self) -> None:
        self.losses += 1
        self.model.forget_feed(self.rng.randrange(self.model.shards))

    def _begin_incarnation(self) -> None:
        self.losses += 1
        self.version += 1
        self.model.incarnation_id = uuid.UUID(int=self.rng.getrandbits(128))

    def _change_agents(self) -> None:
        self._show_agents({1, *self.rng.sample(range(2, 9), self.rng.randint(0, 4))})

    def _show_agents(self, node_ids: set[int]) -> None:
        agents = {n: AgentImage(n, 1, uuid.UUID(int=n), "agent", n, None, fenced=False) for n in sorted(node_ids)}
        self.view.image = MetadataImage(agents=MappingProxyType(agents))

    def _some_keys(self) -> list[int]:
        return sorted({self._some_key() for _ in range(self.rng.randint(1, 3))})

    def _some_key(self) -> int:
        """Often the same."""
        return self.keys[-1] if self.rng.random() < 0.4 else self.rng.choice(self.keys)

    def _some_offset(self, key: int) -> int:
        partition = self.model.partitions[key]
        end = partition.high_watermark
        return end if self.rng.random() < 0.6 else self.rng.randint(partition.log_start_offset, end)

    # -- what must be so

    def _look(self, page: FeedPage) -> None:
        """A page was applied, and nothing was dropped yet."""
        if page.lost_shards or page.incarnation_id != self.incarnation_id:
            self.incarnation_id = page.incarnation_id
            self.losses += 1
        if len(page.heads) == self.index.shards:
            self._check_own(page)
        if not self.index.is_at_end(page):
            return
        self.bounds = self.snapshot
        for waiter, (key, end) in self.sleeping.items():
            if not waiter._heard and self.snapshot.get(key, end) > end:
                raise Wrong(f"a fetch of {key} waits at {end} of {self.snapshot[key]}")
        if self.page_version == self.version:
            self._check_agreement()

    def _check_own(self, page: FeedPage) -> None:
        """Polls that begin after an own commit bring it before its shard is dropped."""
        held, heads, left = set(self.index.extents()), self.index.heads, []
        for polls, losses, extents in self.own:
            if losses != self.losses:
                continue
            coming = []
            for extent in extents:
                shard = commit_shard(extent.partition_key, self.index.shards)
                if polls >= self.polls or heads.get(shard, page.heads[shard]) < page.heads[shard]:
                    coming.append(extent)
                elif extent not in held and extent in self._live(extent.partition_key):
                    raise Wrong(f"an own commit was not fed: {extent}")
            left.append((polls, losses, coming))
        self.own = [each for each in left if each[2]]

    def _live(self, key: int) -> list[Extent]:
        partition = self.model.partitions.get(key)
        return [] if partition is None else partition.extents

    def _check_agreement(self) -> None:
        for key, tail in self.index._tails.items():
            partition = self.model.partitions.get(key)
            if not tail.confirmed:
                continue
            if partition is None:
                raise Wrong(f"a deleted partition is there: {key}")
            if tail.high_watermark != partition.high_watermark or tail.log_start_offset != partition.log_start_offset:
                raise Wrong(f"index and primary differ: {key} {tail.high_watermark} {partition.high_watermark}")
            if tail.extents and tail.extents != partition.extents[-len(tail.extents) :]:
                raise Wrong(f"extents differ: {key} {tail.extents} {partition.extents}")
        for key in self.index.history.held_keys():
            for extent in self.index.history._runs[key]:
                if extent not in self.model.partitions[key].extents:
                    raise Wrong(f"the history is not the primary's: {extent}")

    def _check_held(self) -> None:
        index = self.index
        for key in (*index._tails, *index.history.held_keys()):
            if commit_shard(key, index.shards) not in index.heads:
                raise Wrong(f"something is held of a shard that is not followed: {key}")

    def _check_answer(self, query: ExtentQuery, lookup: Lookup, bound: int) -> None:
        """`bound`: what the newest complete poll covered when the answer was asked for."""
        key, end = query.partition_key, lookup.high_watermark
        if not bound <= end <= self.model.partitions[key].high_watermark:
            raise Wrong(f"high watermark of {key}: {end}, a poll had {bound}")
        offset = query.offset
        for extent in lookup.extents:
            if extent not in self.ever[key] or not extent.base_offset <= offset <= extent.last_offset:
                raise Wrong(f"extents of {query}: {lookup.extents}")
            offset = extent.last_offset + 1
        if not lookup.extents and query.offset < bound:
            raise Wrong(f"nothing at {query}, of {bound}")
