"""What following the commit feed costs: `python -m load.bench_feed [--readers 20 200] [--share 1 0.08] [--shards 128]`.
For 200 readers on two cores: `--readers 20 60 200 --share model --shards 256 --extents 0 64 --poll-ms 150`.

Starts a separate Postgres (fsync on). One process commits files in the name of 20 agents, each once in 100 to 250 ms,
to its shards if there are enough.
Others follow the feed as 20 agents with consumers do: agent/fetch's follower and index, a poll every 15 ms, a
connection each. A row per number of extents in a file, from none, which has no committers:
  polls     of all agents, and the number of extents that one poll brought, counted in the pages
  CPU       of the agent and of Postgres for one poll, and of an agent
An agent that learns of every extent is what grows with the cluster twice: with its writes and with its agents. With
`--share` each follows this share of the commit shards only, as agents of a large cluster do; neighbours follow
neighbouring shards. Each number of readers is run with each share; `model` is the share of an agent among so many in
three zones (cli/cost/model.py). 200 agents that poll every 15 ms need more than two cores without any news: with
`--poll-ms` polls are fewer, and each brings more.
The last line of a run is what `python -m load.scale_model` takes: per extent that is handed over, the row of most
extents less the row of none; and a poll without news.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry

from headrace.agent.fetch.index.acknowledged import AcknowledgedEnds
from headrace.agent.fetch.index.feed import FeedFollower
from headrace.agent.fetch.index.index import TailIndex
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.agent.fetch.waiters import Waiters
from headrace.cli.cost.model import followed_share
from headrace.config.settings import Settings
from headrace.metastore.api.agents import AgentRegistration
from headrace.metastore.api.read import FeedPage
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.keys import commit_shard, partition_key
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.migrate import migrate
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from load.bench_ceiling import CommittingAgent, Shape
from load.machine_state import machine_state
from load.postgres_server import cpu_seconds

POLL_MS = 15
PACE_SECONDS = (0.1, 0.25)
BATCH_BYTES = 65_536
LEASE_MS = 3_600_000
PARTITIONS = 2_000
EXTENTS = (0, 8, 64)
"""Extents of a file."""
PROCESSES = 4
CONNECTIONS = 500
ZONES = 3
MODEL = "model"
"""As `--share`: what agents of a cluster of this size follow."""


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

    def __init__(self, store: PostgresMetastore) -> None:
        self._store = store
        self.rows = self.extents = 0

    async def poll_feed(self, positions: Mapping[int, int]) -> FeedPage:
        """Return the store's."""
        page = await self._store.poll_feed(positions)
        self.rows += len(page.rows)
        self.extents += sum(len(row.extents) for row in page.rows)
        return page

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


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
    counted = [_Pages(store) for store in stores]
    followers = [
        FeedFollower(
            pages,
            index,
            AcknowledgedEnds(),
            Waiters(metrics),
            clock,
            metrics,
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
    number = await store.metadata_head()
    assert await store.create_topics(number, [NewTopic(f"fed-{number}", uuid.uuid4(), PARTITIONS, {})])
    keys = [partition_key(number, index) for index in range(PARTITIONS)]
    agents, written = [], []
    for each in range(committers):
        mine = [key for key in keys if commit_shard(key, store.commit_shards) % committers == each]
        written.append(mine if store.commit_shards >= committers else keys)
        agent = await store.register_agent(AgentRegistration(number + each, uuid.uuid4(), "127.0.0.1", 1, None))
        head = await store.metadata_head()
        await store.heartbeat(*agent, metadata_offset=head, want_fence=False, session_timeout_ms=LEASE_MS)
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


def _measure(url: str, extents: int, readers: int, share: float, args: argparse.Namespace) -> Followed:
    counts = [readers // PROCESSES + (n < readers % PROCESSES) for n in range(PROCESSES)]
    works: list[dict[str, Any]] = [
        {"readers": count, "first": sum(counts[:n]), "share": share, "poll_ms": args.poll_ms}
        for n, count in enumerate(counts)
        if count
    ]
    if extents:
        works.append({"committers": args.committers, "extents": extents})
    children = [_child(work | {"url": url, "seconds": args.seconds}) for work in works]
    for child in children:
        assert child.stdout is not None
        if child.stdout.readline() != "prepared\n":
            raise RuntimeError("a child ended before it was prepared")
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = [json.loads(child.communicate()[0]) for child in children]
    commits = answers.pop() if extents else 0
    return Followed(*map(sum, zip(*answers, strict=True)))._replace(commits=commits)


def _child(work: dict[str, Any]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "load.bench_feed", "--work", json.dumps(work)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _work(work: dict[str, Any]) -> None:
    if "readers" in work:
        names = ("url", "readers", "first", "share", "seconds", "poll_ms")
        print(json.dumps(asyncio.run(_follow(*(work[name] for name in names)))[:5]))
    else:
        print(json.dumps(asyncio.run(_commit(work["url"], work["committers"], work["extents"], work["seconds"]))))


class FeedCost(NamedTuple):
    """Cost of the feed for one reader."""

    agent_per_poll: float
    postgres_per_poll: float
    extents_per_poll: float


def _cost(extents: int, done: Followed, readers: int, args: argparse.Namespace) -> FeedCost:
    """Prints its row."""
    rate, polls = done.commits * extents / args.seconds, done.polls / args.seconds
    cost = FeedCost(done.agent_cpu / done.polls, done.postgres_cpu / done.polls, done.extents / done.polls)
    print(
        f"{extents:3} extents a file {done.commits / args.seconds:6.0f} commits/s {rate:8.0f} extents/s "
        f" {polls:.0f} polls/s; to all {done.rows / args.seconds:.0f} rows/s, {done.extents / args.seconds:.0f} "
        f"extents/s; a poll has {cost.extents_per_poll:.1f} extents, {cost.agent_per_poll * 1e6:.0f} us of the "
        f"agent and {cost.postgres_per_poll * 1e6:.0f} us of Postgres; {done.agent_cpu / args.seconds / readers:.2%} "
        "of a core per agent",
        flush=True,
    )
    return cost


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10, help="of each row")
    parser.add_argument("--committers", type=int, default=20)
    parser.add_argument("--readers", type=int, nargs="+", default=[20])
    parser.add_argument("--share", nargs="+", default=["1"], help="of the commit shards, of each reader; or `model`")
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--extents", type=int, nargs="+", default=EXTENTS, help="of a file; the first one is 0")
    parser.add_argument("--poll-ms", type=int, default=POLL_MS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        _work(json.loads(args.work))
        return
    print(machine_state(), flush=True)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as place:
        Path(place).chmod(0o711)
        with EmbeddedPostgres(Path(place), max_connections=CONNECTIONS) as url:
            migrate(url, commit_shards=args.shards)
            for readers in args.readers:
                for share in args.share:
                    _run(url, readers, followed_share(readers, ZONES) if share == MODEL else float(share), args)
    print(machine_state())


def _run(url: str, readers: int, share: float, args: argparse.Namespace) -> None:
    """The rows of so many readers with this share of the shards, and what follows from them."""
    print(
        f"{readers} readers, each follows {share:.0%} of {args.shards} shards, polls every {args.poll_ms} ms",
        flush=True,
    )
    rows = [_cost(extents, _measure(url, extents, readers, share, args), readers, args) for extents in args.extents]
    idle, busy = rows[0], rows[-1]
    agent = (busy.agent_per_poll - idle.agent_per_poll) / busy.extents_per_poll
    postgres = (busy.postgres_per_poll - idle.postgres_per_poll) / busy.extents_per_poll
    print(
        f"per extent and reader: agent {agent * 1e6:.2f} us, Postgres {postgres * 1e6:.2f} us; per poll without news: "
        f"agent {idle.agent_per_poll * 1e6:.0f} us, Postgres {idle.postgres_per_poll * 1e6:.0f} us",
        flush=True,
    )


if __name__ == "__main__":
    main()
