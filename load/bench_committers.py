"""What 200 agents' commits do to one Postgres: throughput, latency, cost, and what commits wait for.

`python -m load.bench_committers [--seconds 10] [--committers 200] [--shards 8 256]`. A separate Postgres (fsync and
synchronous_commit on). Each committer is a registered agent with a separate connection and its own producer; it
commits a file of --extents extents, of --batches batches each, through the store's own code
(metastore/postgres/commit/). Committers run in --workers processes, because one Python process would be the first
bottleneck. Tables, each row a number of commit shards, on a new database:
  paced     each committer commits once in 100 to 250 ms, as an agent with steady producers does
  closed    1, 8, 32 and all committers that never wait
Before them: what a poll of the feed costs, which grows with the number of shards. With --any each committer commits
to any partition, else to those of its shards: clients follow the leaders of the Metadata response. If there are more
committers than shards, several share one, as agents of different zones do.
"Waits" are those of backends with a statement in progress, sampled every 20 ms from pg_stat_activity: CPU means that
it runs, or waits for a processor.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from headrace.cli.bench.percentiles import percentile
from headrace.config.settings import Settings
from headrace.metastore.api.agents import AgentRegistration
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.keys import commit_shard, partition_key
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.migrate import migrate
from headrace.metastore.postgres.store import PostgresMetastore
from load.bench_ceiling import CommittingAgent, Shape
from load.machine_state import machine_state
from load.postgres_server import cpu_by_process, cpu_seconds, grow_old, read_cost

BATCH_BYTES = 16_384
PACE_SECONDS = (0.1, 0.25)
SAMPLE_SECONDS = 0.02
POLLS = 300
LEASE_MS = 3_600_000
CLOSED = (1, 8, 32)
Worker = subprocess.Popen[str]
CONNECTIONS = 1_000
_WAITS = """SELECT coalesce(wait_event_type || ' ' || wait_event, 'CPU'), count(*) FROM pg_stat_activity
 WHERE backend_type = 'client backend' AND state = 'active' AND pid <> pg_backend_pid() GROUP BY 1"""


@dataclass(frozen=True)
class CommitterPlan:
    """What one worker process does."""

    url: str
    topic_number: int
    partitions: int
    first: int
    """Node id of its first committer; they count up."""
    committers: int
    of: int
    """Committers of all workers."""
    extents: int
    batches: int
    any_partition: bool
    paced: bool
    seconds: float
    report_seconds: float = 0.0
    """How often the worker prints the latencies since the last time, as a line; 0: once, at the end."""


async def _work(plan: CommitterPlan) -> None:
    """Prepare, say so, wait for the word, commit, print the latencies in milliseconds."""
    store = await PostgresMetastore.open(plan.url, Settings(metastore_pool_size=max(plan.committers, 2)))
    head = await store.metadata_head()
    shape = Shape(plan.extents, plan.batches, idempotent=True)
    agents: list[tuple[CommittingAgent, list[int]]] = []
    for number in range(plan.first, plan.first + plan.committers):
        agent = await store.register_agent(AgentRegistration(number, uuid.uuid4(), "127.0.0.1", 1, None))
        head = max(head, await store.metadata_head())
        await store.heartbeat(*agent, metadata_offset=head, want_fence=False, session_timeout_ms=LEASE_MS)
        each = CommittingAgent(number, store, agent, random.Random(f"committer {number}"))
        keys = _keys(plan, number, store.commit_shards)
        known = keys if not plan.any_partition else keys[: 10 * plan.extents]
        await each.commit(each.make(Shape(len(known), 1, idempotent=True), known, BATCH_BYTES))
        agents.append((each, known))
    gc.collect()
    gc.freeze()
    print("prepared", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    latencies: list[float] = []
    began = time.monotonic()
    commits = (_commit(agent, keys, shape, plan, began + plan.seconds, latencies) for agent, keys in agents)
    await asyncio.gather(*commits, _report(plan, began, latencies))
    await asyncio.to_thread(sys.stdin.readline)  # the backends' CPU is read while they are there
    _print(latencies)
    await store.close()


async def _report(plan: CommitterPlan, began: float, latencies: list[float]) -> None:
    reports = round(plan.seconds / plan.report_seconds) - 1 if plan.report_seconds else 0
    for number in range(1, reports + 1):
        await asyncio.sleep(max(0.0, began + number * plan.report_seconds - time.monotonic()))
        _print(latencies)
        latencies.clear()


def _print(latencies: list[float]) -> None:
    print(json.dumps([round(seconds * 1e3, 2) for seconds in latencies]), flush=True)


async def _commit(
    agent: CommittingAgent, keys: list[int], shape: Shape, plan: CommitterPlan, until: float, latencies: list[float]
) -> None:
    due = time.monotonic() + (agent.rng.uniform(0, PACE_SECONDS[1]) if plan.paced else 0)
    while True:
        file = agent.make(shape, keys, BATCH_BYTES)
        if plan.paced:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due = max(due, time.monotonic()) + agent.rng.uniform(*PACE_SECONDS)
        if time.monotonic() >= until:
            return
        latencies.append(await agent.commit(file))


def _keys(plan: CommitterPlan, number: int, shards: int) -> list[int]:
    keys = [partition_key(plan.topic_number, index) for index in range(plan.partitions)]
    if plan.any_partition:
        return random.Random(number).sample(keys, len(keys))
    share = min(shards, plan.of)
    return [key for key in keys if commit_shard(key, shards) % share == number % share]


def start_workers(plans: list[CommitterPlan]) -> list[Worker]:
    """Start a process for each plan; all are prepared and wait for a line on their stdin (`tell`)."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "load.bench_committers", "--work", json.dumps(plan.__dict__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for plan in plans
    ]
    for worker in workers:
        assert worker.stdout is not None
        if worker.stdout.readline() != "prepared\n":
            raise RuntimeError("a worker ended before it was prepared")
    return workers


def tell(workers: list[Worker], word: str) -> None:
    """Write a line to each worker."""
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(f"{word}\n")
        worker.stdin.flush()


def reported(workers: list[Worker]) -> list[float]:
    """Return the next latencies of all workers, in milliseconds."""
    found: list[float] = []
    for worker in workers:
        assert worker.stdout is not None
        found += json.loads(worker.stdout.readline())
    return found


def sample_waits(connection: psycopg.Connection[Any], until: float, every_seconds: float) -> Counter[str]:
    """Return how often backends with a statement in progress waited for what, until the monotonic time `until`."""
    waits: Counter[str] = Counter()
    while time.monotonic() < until:
        waits.update(dict(connection.execute(_WAITS).fetchall()))
        time.sleep(every_seconds)
    return waits


def _measure(title: str, plans: list[CommitterPlan], url: str) -> None:
    workers = start_workers(plans)
    with psycopg.connect(url, autocommit=True) as connection:
        before, cpu_before, began = read_cost(url), cpu_by_process(url), time.monotonic()
        tell(workers, "go")
        waits = sample_waits(connection, began + plans[0].seconds, SAMPLE_SECONDS)
        elapsed = time.monotonic() - began
        cpu = sum(max(0.0, now - cpu_before.get(pid, 0.0)) for pid, now in cpu_by_process(url).items())
        wal = read_cost(url).since(before).wal_bytes
    tell(workers, "end")
    latencies = reported(workers)
    for worker in workers:
        worker.wait()
    print(_row(title, plans[0], latencies, cpu, wal, elapsed, waits), flush=True)


def _row(
    title: str, plan: CommitterPlan, latencies: list[float], cpu: float, wal: int, elapsed: float, waits: Counter[str]
) -> str:
    commits, samples = len(latencies), sum(waits.values()) or 1
    extents = commits * plan.extents
    batches = extents * plan.batches
    most = ", ".join(f"{name} {count / samples:.0%}" for name, count in waits.most_common(4))
    return (
        f"{title:34}{commits / elapsed:7.0f} commits/s {extents / elapsed:8.0f} extents/s {batches / elapsed:8.0f}"
        f" batches/s  p50 {percentile(latencies, 50):6.1f} p99 {percentile(latencies, 99):6.1f} ms "
        f" Postgres {cpu / batches * 1e6:5.1f} us, {wal / batches:4.0f} B WAL per batch, {cpu / elapsed:.2f} cores "
        f" waits: {most}"
    )


async def create_topic(url: str, partitions: int) -> int:
    """Return the number of a new topic."""
    store = await PostgresMetastore.open(url, Settings(metastore_pool_size=1))
    number = await store.metadata_head()
    assert await store.create_topics(number, [NewTopic(f"committed-{number}", uuid.uuid4(), partitions, {})])
    await store.close()
    return number


async def _polls(url: str, shards: int) -> None:
    """Measure what a poll of the feed costs that finds nothing: each agent polls every 15 ms while consumers fetch."""
    store = await PostgresMetastore.open(url, Settings(metastore_pool_size=1))
    async with store.pool.connection() as connection:
        pid = connection.info.backend_pid
    heads = (await store.poll_feed({})).heads
    spent = []
    for _ in range(POLLS):
        before = cpu_seconds(pid)
        await store.poll_feed(heads)
        spent.append(cpu_seconds(pid) - before)
    await store.close()
    print(
        f"{shards} shards, a poll of the feed: {percentile(spent, 50) * 1e6:6.0f} us of Postgres (median)", flush=True
    )


def _run(url: str, shards: int, args: argparse.Namespace) -> None:
    node_id = 1
    asyncio.run(_polls(url, shards))
    if args.polls:
        return

    def plans(committers: int, *, paced: bool) -> list[CommitterPlan]:
        nonlocal node_id
        topic_number = asyncio.run(create_topic(url, args.partitions))
        shares = [committers // args.workers + (n < committers % args.workers) for n in range(args.workers)]
        made = []
        for share in filter(None, shares):
            made.append(
                CommitterPlan(
                    url, topic_number, args.partitions, node_id, share, committers, args.extents, args.batches,
                    args.any, paced, args.seconds,
                )
            )  # fmt: skip
            node_id += share
        return made

    _measure(f"{shards} shards, {args.committers} paced", plans(args.committers, paced=True), url)
    for count in (*CLOSED, args.committers):
        _measure(f"{shards} shards, {count} closed", plans(count, paced=False), url)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10, help="of each row")
    parser.add_argument("--committers", type=int, default=200)
    parser.add_argument("--shards", type=int, nargs="+", default=[8, 256], help="commit.shards, a database each")
    parser.add_argument("--partitions", type=int, default=10_240)
    parser.add_argument("--extents", type=int, default=8, help="of a file")
    parser.add_argument("--batches", type=int, default=2, help="of an extent")
    parser.add_argument("--workers", type=int, default=4, help="processes")
    parser.add_argument("--polls", action="store_true", help="only what a poll of the feed costs")
    parser.add_argument("--any", action="store_true", help="to any partition")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        given: dict[str, Any] = json.loads(args.work)
        asyncio.run(_work(CommitterPlan(**given)))
        return
    print(f"{machine_state()}, files of {args.extents} x {args.batches} batches, {args.workers} workers", flush=True)
    for shards in args.shards:
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as place:
            Path(place).chmod(0o711)
            with EmbeddedPostgres(Path(place), max_connections=CONNECTIONS) as url:
                migrate(url, commit_shards=shards)
                grow_old(url)
                _run(url, shards, args)
    print(machine_state())


if __name__ == "__main__":
    main()
