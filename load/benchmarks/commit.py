"""What a commit costs: `python -m load commit`; load/benchmarks/churn.py is about what hours do to tables.

Starts a separate Postgres (fsync and synchronous_commit on), with closed-loop committers that all
write to the same partitions. Batches are idempotent unless the line says otherwise. Postgres CPU is
that of all its processes, from /proc/<pid>/schedstat; ours is the committers', packing and unpacking
included.
The latency table adds 1 ms of sleep inside the timed call, as a network round trip would, and says
next to the elapsed time the running time of Postgres and of this process: a quiet machine would come
near to. Python's collector does not look at modules (gc.freeze), as in a process that cares for
its latency does: a full collection took 20 to 30 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.cli.bench.orders import percentile
from headrace.config.settings import Settings
from headrace.metastore.api.agents import AgentRegistration, RegisteredAgent
from headrace.metastore.api.commit import BatchOutcome, FileAnswer, FileCommit, StagedBatch
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.keys import partition_key
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.installation import Installation
from headrace.metastore.postgres.migrate import migrate
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.file_id import new_file_id
from load.harness import Benchmark, BenchmarkRun
from load.postgres_server import cpu_seconds, grow_old, read_cost

BATCH_BYTES = 1_000
CONNECTIONS = 4
ROUND_TRIP_SECONDS = 0.001
GOAL_P99_MS = 20.0


@dataclass(frozen=True)
class CommitWorkload:
    """One commit: `partitions` x `batches`, `records` each; of one producer per partition, or one per batch."""

    name: str
    partitions: int
    batches: int
    records: int
    producer_per_batch: bool
    idempotent: bool = True


WORKLOADS = (
    CommitWorkload("(i) 100 x 1", 100, 1, 10, producer_per_batch=False),
    CommitWorkload("(ii) 1000 x 4", 1000, 4, 10, producer_per_batch=False),
    CommitWorkload("(iii) 50 x 40, one record", 50, 40, 1, producer_per_batch=True),
    CommitWorkload("(iii) without producer ids", 50, 40, 1, producer_per_batch=True, idempotent=False),
)
PEER = (
    CommitWorkload("1,580 batches, 632 producers", 632, 0, 10, producer_per_batch=False),
    CommitWorkload("1,580 batches and producers", 632, 0, 10, producer_per_batch=True),
)
"""The p999 commit that a peer publishes at 85 ms: 632 partitions, 2 or 3 batches each."""
SMALLEST = CommitWorkload("one batch", 1, 1, 10, producer_per_batch=False)


@dataclass
class CommitLoad:
    """Builds one committer's files; its producers continue where they were."""

    number: int
    topic_number: int
    workload: CommitWorkload
    rng: random.Random
    sequences: dict[tuple[int, int], int] = field(default_factory=dict)

    def next_file(self) -> FileCommit:
        """A file that the bucket might hold."""
        batches = list(self._batches())
        return FileCommit(new_file_id(time.time_ns() // 1_000_000, self.rng), len(batches) * BATCH_BYTES, batches)

    def _batches(self) -> Iterator[StagedBatch]:
        workload = self.workload
        position = 0
        for index in range(workload.partitions):
            for place in range(workload.batches or 2 + (index % 2)):
                producer = self.number * 1_000 + (place if workload.producer_per_batch else 0)
                sequence = self.sequences.get((index, producer), 0)
                self.sequences[index, producer] = sequence + workload.records
                identity = (producer, 0, sequence) if workload.idempotent else (-1, -1, -1)
                yield StagedBatch(
                    partition_key(self.topic_number, index),
                    position,
                    BATCH_BYTES,
                    workload.records,
                    time.time_ns() // 1_000_000,
                    *identity,
                    leader_epoch=0,
                )
                position += BATCH_BYTES


@dataclass
class CommitBench:
    """A metastore with one unfenced agent and one topic per workload."""

    url: str
    store: PostgresMetastore
    agent: RegisteredAgent
    seed: int

    async def topic(self, partitions: int) -> int:
        """The number of a new topic."""
        head = await self.store.cluster.metadata_head()
        topic = NewTopic(f"topic-{head}", uuid.uuid4(), partitions, {})
        assert await self.store.topics.create_topics(head, [topic])
        return head

    async def committers(self, workload: CommitWorkload, count: int) -> list[CommitLoad]:
        """`count` committers on one new topic; their producers are known already, and plans are made."""
        topic_number = await self.topic(workload.partitions)
        found = [CommitLoad(n, topic_number, workload, random.Random(f"{self.seed} {n}")) for n in range(1, count + 1)]
        for committer in found:
            for _ in range(2 * CONNECTIONS):
                await self.commit(committer.next_file())
        return found

    async def commit(self, file: FileCommit) -> FileAnswer:
        """Commit one file; every batch must have been appended."""
        (answer,) = await self.store.commits.commit_files(self.agent.node_id, self.agent.broker_epoch, [file])
        assert len(answer.batches) == len(file.batches), answer.status
        assert all(batch.outcome is BatchOutcome.APPENDED for batch in answer.batches)
        return answer

    async def execute(self, sql: str) -> None:
        """Run a statement that has no rows worth reading."""
        async with self.store.pool.connection() as connection:
            await connection.execute(sql.encode())

    async def make_and_delete_a_topic(self, partitions: int) -> None:
        """Make a topic and delete it; housekeeping removes the rest."""
        topic_id = uuid.uuid4()
        head = await self.store.cluster.metadata_head()
        assert await self.store.topics.create_topics(
            head, [NewTopic(f"short-lived-{topic_id}", topic_id, partitions, {})]
        )
        assert await self.store.topics.delete_topics(await self.store.cluster.metadata_head(), [topic_id])

    async def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of a statement of this script's own."""
        async with self.store.pool.connection() as connection:
            return await (await connection.execute(sql.encode())).fetchall()


async def closed_loop(
    run: BenchmarkRun, bench: CommitBench, workload: CommitWorkload, count: int, seconds: float
) -> None:
    """Print throughput, latency and cost of `count` committers that never wait."""
    committers = await bench.committers(workload, count)
    latencies: list[float] = []
    building = 0.0
    ends_at = time.perf_counter() + seconds

    async def commit(committer: CommitLoad) -> None:
        nonlocal building
        while time.perf_counter() < ends_at:
            building -= time.process_time()
            file = committer.next_file()
            building += time.process_time()
            began = time.perf_counter()
            await bench.commit(file)
            latencies.append(time.perf_counter() - began)

    before, ours, began = read_cost(bench.url), time.process_time(), time.time()
    await asyncio.gather(*(commit(committer) for committer in committers))
    elapsed = time.time() - began
    batches = len(latencies) * (workload.partitions * workload.batches)
    ours = time.process_time() - ours - building
    spent = read_cost(bench.url).since(before)
    figures = {
        "commits/s": len(latencies) / elapsed,
        "batches/s": batches / elapsed,
        "ms p50": percentile(latencies, 50) * 1e3,
        "ms p99": percentile(latencies, 99) * 1e3,
        "ms of Postgres per 1,000 batches": spent.cpu_seconds / batches * 1e6,
        "ms of ours": ours / batches * 1e6,
        "B of WAL a batch": spent.wal_bytes / batches,
    }
    run.row(f"{workload.name}, {count} committers", figures)


async def latency(run: BenchmarkRun, bench: CommitBench, workload: CommitWorkload, commits: int) -> None:
    """Print the latency of the peer's commit: one committer, one round trip of 1 ms added."""
    (committer,) = await bench.committers(workload, 1)
    pids = [os.getpid(), *(row[0] for row in await bench.query("SELECT pid FROM pg_stat_activity"))]
    latencies: list[float] = []
    running: list[float] = []
    for _ in range(commits):
        file = committer.next_file()
        cpu = sum(cpu_seconds(pid) for pid in pids)
        began = time.perf_counter()
        await asyncio.sleep(ROUND_TRIP_SECONDS)
        await bench.commit(file)
        latencies.append(time.perf_counter() - began)
        running.append(sum(cpu_seconds(pid) for pid in pids) - cpu)
    figures = {
        "ms elapsed p50": percentile(latencies, 50) * 1e3,
        "ms elapsed p99": percentile(latencies, 99) * 1e3,
        "ms running p50": percentile(running, 50) * 1e3,
        "ms running p99": percentile(running, 99) * 1e3,
        "commits": commits,
    }
    run.row(f"{workload.name}, 1 ms added", figures, {"ms running p99": GOAL_P99_MS})


@asynccontextmanager
async def opened(place: Path, seed: int, installation: Installation | None = None) -> AsyncIterator[CommitBench]:
    """A bench on a new, migrated Postgres below `place`."""
    with EmbeddedPostgres(place, installation=installation) as url:
        migrate(url)
        store = await PostgresMetastore.open(url, Settings(metastore_pool_size=CONNECTIONS))
        agent = await store.cluster.register_agent(AgentRegistration(1, uuid.uuid4(), "127.0.0.1", 1, None))
        head = await store.cluster.metadata_head()
        await store.cluster.heartbeat(*agent, metadata_offset=head, want_fence=False, session_timeout_ms=18_000)
        grow_old(url)
        gc.collect()
        gc.freeze()
        yield CommitBench(url, store, agent, seed)
        await store.close()


def installation_of(bin_dir: Path | None) -> Installation | None:
    """Return the Postgres of this folder; None: the embedded one."""
    return Installation(bin_dir, bin_dir.parent.name) if bin_dir else None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--seconds", type=float, default=5.0, help="per workload")
    parser.add_argument("--commits", type=int, default=500, help="of the latency table")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bin-dir", type=Path, help="another Postgres than the embedded one")


async def benchmark(run: BenchmarkRun) -> None:
    args = run.args
    async with opened(run.folder("postgres"), args.seed, installation_of(args.bin_dir)) as bench:
        for workload in (SMALLEST, *PEER):
            await latency(run, bench, workload, args.commits)
        for count in (1, 4):
            for workload in WORKLOADS:
                await closed_loop(run, bench, workload, count, args.seconds)


BENCHMARK = Benchmark("the commit on Postgres: its latency and cost", benchmark, add_arguments)
