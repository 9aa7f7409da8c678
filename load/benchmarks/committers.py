"""What 200 agents' commits do to one Postgres: throughput, latency, cost, and what commits wait for.

`python -m load committers [--seconds 10] [--committers 200] [--shards 8 256]`. A separate Postgres (fsync and
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
import time
import uuid
from collections import Counter
from typing import Any

import psycopg

from headrace.cli.bench.orders import percentile
from headrace.config.settings import Settings
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.postgres.store import PostgresMetastore
from load.harness import Benchmark, BenchmarkRun
from load.postgres_server import cpu_by_process, cpu_seconds, grow_old, read_cost
from load.workloads.committing import CommitterPlan, reported, start_workers, tell

SAMPLE_SECONDS = 0.02
POLLS = 300
CLOSED = (1, 8, 32)
CONNECTIONS = 1_000
_WAITS = """SELECT coalesce(wait_event_type || ' ' || wait_event, 'CPU'), count(*) FROM pg_stat_activity
 WHERE backend_type = 'client backend' AND state = 'active' AND pid <> pg_backend_pid() GROUP BY 1"""


def sample_waits(connection: psycopg.Connection[Any], until: float, every_seconds: float) -> Counter[str]:
    """Return how often backends with a statement in progress waited for what, until the monotonic time `until`."""
    waits: Counter[str] = Counter()
    while time.monotonic() < until:
        waits.update(dict(connection.execute(_WAITS).fetchall()))
        time.sleep(every_seconds)
    return waits


def _measure(run: BenchmarkRun, title: str, plans: list[CommitterPlan], url: str) -> None:
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
    run.row(title, _figures(plans[0], latencies, cpu, wal, elapsed, waits))


def _figures(
    plan: CommitterPlan, latencies: list[float], cpu: float, wal: int, elapsed: float, waits: Counter[str]
) -> dict[str, float | str]:
    commits, samples = len(latencies), sum(waits.values()) or 1
    extents = commits * plan.extents
    batches = extents * plan.batches
    return {
        "commits/s": commits / elapsed,
        "extents/s": extents / elapsed,
        "batches/s": batches / elapsed,
        "ms p50": percentile(latencies, 50),
        "ms p99": percentile(latencies, 99),
        "us of Postgres a batch": cpu / batches * 1e6,
        "B of WAL a batch": wal / batches,
        "cores of Postgres": cpu / elapsed,
        "(waits)": ", ".join(f"{name} {count / samples:.0%}" for name, count in waits.most_common(4)),
    }


async def create_topic(url: str, partitions: int) -> int:
    """Return the number of a new topic."""
    store = await PostgresMetastore.open(url, Settings(metastore_pool_size=1))
    number = await store.cluster.metadata_head()
    assert await store.topics.create_topics(number, [NewTopic(f"committed-{number}", uuid.uuid4(), partitions, {})])
    await store.close()
    return number


async def _polls(run: BenchmarkRun, url: str, shards: int) -> None:
    """Measure what a poll of the feed costs that finds nothing: each agent polls every 15 ms while consumers fetch."""
    store = await PostgresMetastore.open(url, Settings(metastore_pool_size=1))
    async with store.pool.connection() as connection:
        pid = connection.info.backend_pid
    heads = (await store.index.poll_feed({})).heads
    spent = []
    for _ in range(POLLS):
        before = cpu_seconds(pid)
        await store.index.poll_feed(heads)
        spent.append(cpu_seconds(pid) - before)
    await store.close()
    run.row(f"{shards} shards, a poll of the feed", {"us of Postgres (median)": percentile(spent, 50) * 1e6})


def _commits(run: BenchmarkRun, url: str, shards: int) -> None:
    args, node_id = run.args, 1
    asyncio.run(_polls(run, url, shards))
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

    _measure(run, f"{shards} shards, {args.committers} paced", plans(args.committers, paced=True), url)
    for count in (*CLOSED, args.committers):
        _measure(run, f"{shards} shards, {count} closed", plans(count, paced=False), url)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--seconds", type=float, default=10, help="of each row")
    parser.add_argument("--committers", type=int, default=200)
    parser.add_argument("--shards", type=int, nargs="+", default=[8, 256], help="commit.shards, a database each")
    parser.add_argument("--partitions", type=int, default=10_240)
    parser.add_argument("--extents", type=int, default=8, help="of a file")
    parser.add_argument("--batches", type=int, default=2, help="of an extent")
    parser.add_argument("--workers", type=int, default=4, help="processes")
    parser.add_argument("--polls", action="store_true", help="only what a poll of the feed costs")
    parser.add_argument("--any", action="store_true", help="to any partition")


def benchmark(run: BenchmarkRun) -> None:
    args = run.args
    run.note(f"files of {args.extents} x {args.batches} batches, {args.workers} workers")
    for shards in args.shards:
        with run.postgres(commit_shards=shards, max_connections=CONNECTIONS) as url:
            grow_old(url)
            _commits(run, url, shards)


BENCHMARK = Benchmark("commits of 200 agents on one Postgres, and what they wait for", benchmark, add_arguments)
