"""Agents that follow the commit feed, and agents that commit meanwhile.

Place: `python -m load.workloads.feed_followers WORK`, a child process of load/benchmarks/feed.py. It prints `prepared`,
waits for a line, works for so many seconds, and prints what came of it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import resource
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry

from headrace.agent.fetch.index.feed import FeedFollower, FollowedTail
from headrace.agent.fetch.index.index import TailIndex
from headrace.agent.fetch.index.own_commits import AcknowledgedEnds
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.agent.fetch.waiters import Waiters
from headrace.config.settings import Settings
from headrace.metastore.api.agents import AgentRegistration
from headrace.metastore.api.read import FeedPage, IndexApi
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.keys import commit_shard, partition_key
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.supervision import Supervisor
from load.postgres_server import cpu_seconds
from load.workloads.committing import CommittingAgent, Shape

PACE_SECONDS = (0.1, 0.25)
BATCH_BYTES = 65_536
LEASE_MS = 3_600_000
PARTITIONS = 2_000


class Followed(NamedTuple):
    """What all readers of a row did, and its committers."""

    polls: float
    agent_cpu: float
    postgres_cpu: float
    rows: int
    extents: int
    commits: int = 0


class _Pages:
    """A metastore that counts its pages of the feed."""

    def __init__(self, index: IndexApi) -> None:
        self._index = index
        self.rows = self.extents = 0

    async def poll_feed(self, positions: Mapping[int, int]) -> FeedPage:
        """Return the store's."""
        page = await self._index.poll_feed(positions)
        self.rows += len(page.rows)
        self.extents += sum(len(row.extents) for row in page.rows)
        return page

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)


async def _follow(url: str, readers: int, first: int, share: float, seconds: float, poll_ms: int) -> Followed:
    """`first`: the number of the first of these readers."""
    stores = [await PostgresMetastore.open(url, Settings(metastore_pool_size=1)) for _ in range(readers)]
    pids = [await _backend(store) for store in stores]
    registry = CollectorRegistry()
    metrics, clock = FetchMetrics(registry), SystemClock()
    indexes = [TailIndex(store.commit_shards) for store in stores]
    if share < 1:
        for number, index in enumerate(indexes, first):
            index.wanted = partial(_part, number, share)
    counted = [_Pages(store.index) for store in stores]
    followers = [
        FeedFollower(
            pages,
            FollowedTail(index, AcknowledgedEnds(), Waiters(metrics)),
            clock,
            metrics,
            Supervisor(clock),
            interval_ms=poll_ms,
            on_metadata=lambda offset: None,
        )
        for pages, index in zip(counted, indexes, strict=True)
    ]
    with ExitStack() as reading:
        for follower in followers:
            await follower.start()
            reading.enter_context(follower.following())
        await _ready()
        polls, own, postgres = _polls(registry), _own_cpu(), sum(map(cpu_seconds, pids))
        rows, extents = (sum(getattr(pages, name) for pages in counted) for name in ("rows", "extents"))
        await asyncio.sleep(seconds)
        done = Followed(
            _polls(registry) - polls,
            _own_cpu() - own,
            sum(map(cpu_seconds, pids)) - postgres,
            sum(pages.rows for pages in counted) - rows,
            sum(pages.extents for pages in counted) - extents,
        )
    for follower, store in zip(followers, stores, strict=True):
        await follower.close()
        await store.close()
    return done


def _part(number: int, share: float, shards: int) -> set[int]:
    """The shards that a reader follows."""
    count = max(1, round(share * shards))
    return {(number * count + n) % shards for n in range(count)}


async def _commit(url: str, committers: int, extents: int, seconds: float) -> int:
    """The number of commits."""
    store = await PostgresMetastore.open(url, Settings(metastore_pool_size=committers))
    number = await store.cluster.metadata_head()
    assert await store.topics.create_topics(number, [NewTopic(f"fed-{number}", uuid.uuid4(), PARTITIONS, {})])
    keys = [partition_key(number, index) for index in range(PARTITIONS)]
    agents, written = [], []
    for each in range(committers):
        mine = [key for key in keys if commit_shard(key, store.commit_shards) % committers == each]
        written.append(mine if store.commit_shards >= committers else keys)
        agent = await store.cluster.register_agent(AgentRegistration(number + each, uuid.uuid4(), "127.0.0.1", 1, None))
        head = await store.cluster.metadata_head()
        await store.cluster.heartbeat(*agent, metadata_offset=head, want_fence=False, session_timeout_ms=LEASE_MS)
        agents.append(CommittingAgent(number + each, store, agent, random.Random(each)))
    await _ready()
    until = time.monotonic() + seconds

    async def run(agent: CommittingAgent, mine: list[int]) -> int:
        commits = 0
        while time.monotonic() < until:
            await asyncio.sleep(agent.rng.uniform(*PACE_SECONDS))
            await agent.commit(agent.make(Shape(extents, 1, idempotent=True), mine, BATCH_BYTES))
            commits += 1
        return commits

    commits = sum(await asyncio.gather(*map(run, agents, written)))
    await store.close()
    return commits


async def _backend(store: PostgresMetastore) -> int:
    async with store.pool.connection() as connection:
        return connection.info.backend_pid


async def _ready() -> None:
    gc.collect()
    gc.freeze()
    print("prepared", flush=True)
    await asyncio.to_thread(sys.stdin.readline)


def _polls(registry: CollectorRegistry) -> float:
    return registry.get_sample_value("headrace_fetch_feed_polls_total", {"result": "ok"}) or 0.0


def _own_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _work(work: dict[str, Any]) -> None:
    if "readers" in work:
        names = ("url", "readers", "first", "share", "seconds", "poll_ms")
        print(json.dumps(asyncio.run(_follow(*(work[name] for name in names)))[:5]))
    else:
        print(json.dumps(asyncio.run(_commit(work["url"], work["committers"], work["extents"], work["seconds"]))))


if __name__ == "__main__":
    _work(json.loads(sys.argv[1]))
