"""How much one Postgres orders: `python -m load ceiling`, about a minute; `--seconds 10` for steadier figures.

Starts a separate Postgres (fsync and synchronous_commit on). Several agents, each registered and with
a separate connection, commit in a closed loop; a call commits one file. Files are made outside of what is
timed. Three tables:
  shapes   files of 1, 40 and 1,000 extents, of one and of ten batches each, with and without a producer id;
           every agent commits to any partition, so that files of many extents wait for each other's shards
  shards   the same files under 1, 2, 4 and 8 commit shards, where clients use the leaders of the Metadata response:
           no two agents share a shard, while there are enough of them
  reads    what readers ask, in a closed loop of every agent: the feed, and where the next extents are
A batch of `--batch-bytes` is a row's entry like any other: GiB/s is batches/s times its size, no byte moves.
Postgres and the agents share this machine, so a figure is what they reach together; CPU per commit and per batch
and WAL bytes are those of Postgres; the agents' CPU (packing, the driver, unpacking) is next to it.
One batch per producer and file costs more: (iii) in load.benchmarks.commit.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import psycopg

from headrace.cli.bench.orders import percentile
from headrace.config.settings import Settings
from headrace.metastore.api.agents import AgentRegistration
from headrace.metastore.api.commit import FileCommit
from headrace.metastore.api.read import ExtentQuery
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.keys import commit_shard, partition_key
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.migrate import migrate
from headrace.metastore.postgres.store import PostgresMetastore
from load.harness import Benchmark, BenchmarkRun
from load.postgres_server import PostgresCost, grow_old, read_cost
from load.workloads.committing import CommittingAgent, Shape

PARTITIONS = 1_000
ROUND_BATCHES = 4_000
"""About so many are made, then committed and timed, then more are made."""
RESPONSE_BYTES = 1024 * 1024
LATE_ROWS = 8
"""Late rows per shard, that a poll behind its time finds."""
GIB = 1 << 30


@dataclass
class Measured:
    """What a closed loop came to: `operations` calls of `batches` batches in all, or none."""

    name: str
    operations: int = 0
    batches: int = 0
    elapsed: float = 0.0
    cost: PostgresCost = field(default_factory=lambda: PostgresCost(0.0, 0))
    own_seconds: float = 0.0
    """CPU of the agents."""
    latencies: list[float] = field(default_factory=list)

    @property
    def batches_per_s(self) -> float:
        return self.batches / self.elapsed

    @property
    def operations_per_s(self) -> float:
        return self.operations / self.elapsed


class Ceiling:
    """A metastore with several agents and one topic."""

    def __init__(self, url: str, agents: list[CommittingAgent], keys: list[int], args: argparse.Namespace) -> None:
        self.url, self.agents, self.keys = url, agents, keys
        self._seconds: float = args.seconds
        self._batch_bytes: int = args.batch_bytes
        self._rng = random.Random(args.seed)

    @classmethod
    async def open(cls, url: str, args: argparse.Namespace, stack: AsyncExitStack) -> Ceiling:
        """Open a cluster on a migrated database; every agent has committed to every partition, so that its producer
        is known.
        """
        agents = []
        for number in range(1, args.agents + 1):
            store = await PostgresMetastore.open(url, Settings(metastore_pool_size=1))
            stack.push_async_callback(store.close)
            agent = await store.cluster.register_agent(AgentRegistration(number, uuid.uuid4(), "127.0.0.1", 1, None))
            agents.append(CommittingAgent(number, store, agent, random.Random(f"{args.seed} {number}")))
        store = agents[0].store
        topic_number = await store.cluster.metadata_head()
        assert await store.topics.create_topics(topic_number, [NewTopic("ceiling", uuid.uuid4(), args.partitions, {})])
        head = await store.cluster.metadata_head()
        for each in agents:
            await each.store.cluster.heartbeat(
                *each.agent, metadata_offset=head, want_fence=False, session_timeout_ms=3_600_000
            )
        keys = [partition_key(topic_number, index) for index in range(args.partitions)]
        ceiling = cls(url, agents, keys, args)
        for each in agents:
            await each.commit(each.make(Shape(len(keys), 1, idempotent=True), keys, args.batch_bytes))
        return ceiling

    def own_keys(self, number: int) -> list[int]:
        """The partitions that clients bring to this agent when they follow the leaders."""
        shards = self.agents[0].store.commit_shards
        share = min(shards, len(self.agents))
        return [key for key in self.keys if commit_shard(key, shards) % share == number % share]

    async def commits(self, shape: Shape, *, routed: bool) -> Measured:
        """Every agent commits such files and never waits, until the time is up."""
        found = Measured(str(shape))
        per_round = min(max(4, ROUND_BATCHES // (shape.extents * shape.batches)), 100)
        keys = [self.own_keys(agent.number) if routed else self.keys for agent in self.agents]
        while found.elapsed < self._seconds:
            files = [
                [agent.make(shape, mine, self._batch_bytes) for _ in range(per_round)]
                for agent, mine in zip(self.agents, keys, strict=True)
            ]

            async def run(agent: CommittingAgent, mine: list[FileCommit]) -> None:
                found.latencies.extend([await agent.commit(file) for file in mine])

            before, own, began = read_cost(self.url), time.process_time(), time.perf_counter()
            await asyncio.gather(*(run(agent, mine) for agent, mine in zip(self.agents, files, strict=True)))
            found.elapsed += time.perf_counter() - began
            found.own_seconds += time.process_time() - own
            spent = read_cost(self.url).since(before)
            found.cost = PostgresCost(
                found.cost.cpu_seconds + spent.cpu_seconds, found.cost.wal_bytes + spent.wal_bytes
            )
            found.operations += sum(map(len, files))
            found.batches += sum(len(file.batches) for mine in files for file in mine)
        return found

    async def reads(self, name: str, ask: Callable[[PostgresMetastore], Awaitable[object]]) -> Measured:
        """Every agent asks and never waits, until the time is up."""
        found = Measured(name)
        before, own, began = read_cost(self.url), time.process_time(), time.perf_counter()

        async def run(store: PostgresMetastore) -> None:
            while True:
                asked = time.perf_counter()
                await ask(store)
                found.latencies.append(time.perf_counter() - asked)
                if asked - began > self._seconds:
                    return

        await asyncio.gather(*(run(agent.store) for agent in self.agents))
        found.elapsed = time.perf_counter() - began
        found.own_seconds = time.process_time() - own
        found.cost = read_cost(self.url).since(before)
        found.operations = len(found.latencies)
        return found

    async def questions(self) -> dict[str, Callable[[PostgresMetastore], Awaitable[object]]]:
        """Return what readers ask."""
        store = self.agents[0].store
        heads = (await store.index.poll_feed({})).heads
        late = {shard: max(0, seq - LATE_ROWS) for shard, seq in heads.items()}
        news = sum(len(row.extents) for row in (await store.index.poll_feed(late)).rows)
        found = await store.index.find_extents([ExtentQuery(key, 0, 1) for key in self.keys])
        ends = {answer.partition_key: answer.high_watermark for answer in found}

        def plan(partitions: int) -> list[ExtentQuery]:
            """A fetch of 1 MiB of each, from anywhere in its history."""
            chosen = self._rng.sample(self.keys, min(partitions, len(self.keys)))
            return [ExtentQuery(key, self._rng.randrange(ends[key]), RESPONSE_BYTES) for key in chosen]

        return {
            "feed, no news": lambda store: store.index.poll_feed(heads),
            f"feed, {news:,} extents of news": lambda store: store.index.poll_feed(late),
            "next extents of 1 partition": lambda store: store.index.find_extents(plan(1)),
            "next extents of 100 partitions": lambda store: store.index.find_extents(plan(100)),
        }


def tell_commits(run: BenchmarkRun, shapes: Sequence[Measured]) -> None:
    """Tell a row per measurement."""
    for shape in shapes:
        figures = {
            "commits/s": shape.operations_per_s,
            "batches/s": shape.batches_per_s,
            "GiB/s": shape.batches_per_s * run.args.batch_bytes / GIB,
            "ms p50": percentile(shape.latencies, 50) * 1e3,
            "ms p99": percentile(shape.latencies, 99) * 1e3,
            "commits": shape.operations,
            "us of Postgres a commit": shape.cost.cpu_seconds / shape.operations * 1e6,
            "us a batch": shape.cost.cpu_seconds / shape.batches * 1e6,
            "B of WAL a batch": shape.cost.wal_bytes / shape.batches,
            "us of the agents a commit": shape.own_seconds / shape.operations * 1e6,
        }
        run.row(" ".join(shape.name.split()), figures)


def tell_reads(run: BenchmarkRun, reads: Sequence[Measured]) -> None:
    """Tell a row per question."""
    for read in reads:
        figures = {
            "a second": read.operations_per_s,
            "ms p50": percentile(read.latencies, 50) * 1e3,
            "ms p99": percentile(read.latencies, 99) * 1e3,
            "us of Postgres each": read.cost.cpu_seconds / read.operations * 1e6,
            "us of the agents each": read.own_seconds / read.operations * 1e6,
        }
        run.row(read.name, figures)


def tell_ceiling(run: BenchmarkRun, shapes: Sequence[Measured]) -> None:
    """Say the most of each."""
    most, batches = max(shapes, key=lambda m: m.operations_per_s), max(shapes, key=lambda m: m.batches_per_s)
    run.note(
        f"the most in this run: {most.operations_per_s:,.0f} commits/s ({' '.join(most.name.split())}); "
        f"{batches.batches_per_s:,.0f} batches/s ({' '.join(batches.name.split())}), which carry "
        f"{batches.batches_per_s * 1024 / GIB:.2f} GiB/s of 1 KiB batches, "
        f"{batches.batches_per_s * run.args.batch_bytes / GIB:.2f} GiB/s of {run.args.batch_bytes:,} bytes"
    )


async def measure(run: BenchmarkRun, url: str) -> list[Measured]:
    """Shapes and reads, on a database at `url`."""
    args = run.args
    async with AsyncExitStack() as stack:
        ceiling = await Ceiling.open(url, args, stack)
        shards = ceiling.agents[0].store.commit_shards
        run.note(f"shapes: {args.agents} agents, {shards} commit shards, {args.partitions:,} partitions")
        shapes = [
            await ceiling.commits(Shape(extents, batches, idempotent), routed=False)
            for idempotent in (False, True)
            for extents in args.extents
            for batches in args.batches
        ]
        tell_commits(run, shapes)
        tell_ceiling(run, shapes)
        run.note("reads, of what these commits left")
        reads = [await ceiling.reads(name, ask) for name, ask in (await ceiling.questions()).items()]
        tell_reads(run, reads)
        return shapes + reads


async def measure_shards(url: str, args: argparse.Namespace) -> list[Measured]:
    """Files of one and of 40 extents from agents that keep to their shards, on a database at `url`."""
    async with AsyncExitStack() as stack:
        ceiling = await Ceiling.open(url, args, stack)
        shards = ceiling.agents[0].store.commit_shards
        found = [await ceiling.commits(Shape(extents, 1, idempotent=True), routed=True) for extents in args.extents[:2]]
        for each in found:
            each.name = f"{shards:>2} shards {each.name}"
        return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--seconds", type=float, default=1.5, help="of each row")
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    parser.add_argument("--extents", type=int, nargs="+", default=[1, 40, 1_000], help="of a file")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 10], help="of an extent")
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--batch-bytes", type=int, default=16_384, help="that GiB/s is said of; batch.size's default")
    parser.add_argument("--seed", type=int, default=1)


def benchmark(run: BenchmarkRun) -> None:
    args = run.args
    server = EmbeddedPostgres(run.folder("postgres"))
    with server as url:
        grow_old(url)
        migrate(url)
        gc.collect()
        gc.freeze()
        asyncio.run(measure(run, url))
        run.note(f"shards: {args.agents} agents, clients follow the leaders")
        found = []
        for shards in args.shards:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE shards_{shards}".encode())
            migrate(server.url(f"shards_{shards}"), commit_shards=shards)
            found += asyncio.run(measure_shards(server.url(f"shards_{shards}"), args))
        tell_commits(run, sorted(found, key=lambda each: each.name.split("shards")[1]))


BENCHMARK = Benchmark("how much one Postgres orders, and the GiB/s that it carries", benchmark, add_arguments)
