"""Others' commits while inline files are committed: `python -m load inline_others [--seconds 10] [--rounds 4]`.

A separate Postgres with a synchronous standby (fsync and synchronous_commit on both): a commit waits for the standby's
flush. --others agents commit files of the bucket to their topic, one each 100 to 250 ms; they are measured. Meanwhile
--traffic other agents commit as many files to another topic, in the same pace, in turns: none, files of the bucket
(no bytes), inline files of 16 KiB, and of 256 KiB. So the last two differ from the second by their bytes alone.
Both are separate processes (load/workloads/committing.py). Between two turns the slots are emptied. "Waits" are those
of all backends with a statement in progress, as in committers.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from dataclasses import dataclass

import psycopg

from headrace.cli.bench.orders import percentile
from headrace.config.settings import Settings
from headrace.metastore.postgres.store import PostgresMetastore
from load.benchmarks.committers import create_topic, sample_waits
from load.harness import Benchmark, BenchmarkRun
from load.postgres_server import grow_old, read_cost
from load.postgres_servers import Servers
from load.postgres_servers import run as run_sql
from load.workloads.committing import CommitterPlan, reported, start_workers, tell

EXTENTS, BATCHES = 8, 1
KIB = 1_024
SAMPLE_SECONDS = 0.05
SLOT_BYTES, SLOT_MS = 1 << 30, 3_600_000


@dataclass(frozen=True)
class Traffic:
    """What the other agents commit. `file_kib`: of inline files; 0: files of the bucket."""

    name: str
    file_kib: int = 0


NONE = Traffic("none")
KINDS = (NONE, Traffic("files of the bucket"), Traffic("inline, 16 KiB", 16), Traffic("inline, 256 KiB", 256))


async def _slot(url: str) -> int:
    store = await PostgresMetastore.open(url, Settings(metastore_pool_size=1))
    await store.inline.rotate_inline_slots(SLOT_BYTES, SLOT_MS)
    state = await store.inline.inline_state()
    await store.close()
    return state.slot


def measure(
    url: str, kind: Traffic, args: argparse.Namespace, first: int, topics: tuple[int, int]
) -> tuple[list[float], Counter[str]]:
    """Return the latencies of the others' commits in a turn, in ms, and what all backends waited for. `first`: node
    ids that were not used before.
    """

    def plan(topic: int, node_id: int, committers: int, batch_bytes: int, slot: int) -> CommitterPlan:
        return CommitterPlan(
            url, topic, args.partitions, node_id, committers, committers, EXTENTS, BATCHES, any_partition=False,
            paced=True, seconds=args.seconds, batch_bytes=batch_bytes, slot=slot,
        )  # fmt: skip

    no_slot, size = -1, (kind.file_kib or 16) * KIB // EXTENTS
    plans = [plan(topics[0], first, args.others, 16 * KIB, no_slot)]
    if kind is not NONE:
        slot = asyncio.run(_slot(url)) if kind.file_kib else no_slot
        plans.append(plan(topics[1], first + args.others, args.traffic, size, slot))
    workers = start_workers(plans)
    tell(workers, "go")
    with psycopg.connect(url, autocommit=True) as connection:
        waits = sample_waits(connection, time.monotonic() + args.seconds, SAMPLE_SECONDS)
    tell(workers, "end")
    latencies = reported(workers[:1])
    if kind is not NONE:
        reported(workers[1:])
    for worker in workers:
        worker.wait()
    return latencies, waits


def take_turns(run: BenchmarkRun, url: str) -> None:
    """Print a row for each kind of traffic, over all rounds."""
    args = run.args
    topics = (asyncio.run(create_topic(url, args.partitions)), asyncio.run(create_topic(url, args.partitions)))
    found: dict[Traffic, list[float]] = {kind: [] for kind in KINDS}
    wal: dict[Traffic, int] = dict.fromkeys(KINDS, 0)
    waited: dict[Traffic, Counter[str]] = {kind: Counter() for kind in KINDS}
    first = 1
    for turn in range(args.rounds):
        for kind in (*KINDS[turn % len(KINDS) :], *KINDS[: turn % len(KINDS)]):
            before = read_cost(url)
            latencies, waits = measure(url, kind, args, first, topics)
            found[kind] += latencies
            waited[kind].update(waits)
            wal[kind] += read_cost(url).since(before).wal_bytes
            first += args.others + args.traffic
            run_sql(url, "TRUNCATE inline_files")
            run_sql(url, "CHECKPOINT")
    for kind, latencies in found.items():
        p95, samples = percentile(latencies, 95), waited[kind].total() or 1
        run.row(
            f"traffic: {kind.name}",
            {
                "commits": len(latencies),
                "ms p50": percentile(latencies, 50),
                "ms p95": p95,
                "ms p99": percentile(latencies, 99),
                "times p95 of none": p95 / percentile(found[NONE], 95),
                "times p95 of files of the bucket": p95 / percentile(found[KINDS[1]], 95),
                "MB of WAL": wal[kind] / 1e6,
                "(waits)": ", ".join(f"{name} {100 * n / samples:.0f} %" for name, n in waited[kind].most_common(5)),
            },
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--seconds", type=float, default=10.0, help="of a turn")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--others", type=int, default=8, help="agents that are measured")
    parser.add_argument("--traffic", type=int, default=12, help="agents that commit inline files")
    parser.add_argument("--partitions", type=int, default=256)


def benchmark(run: BenchmarkRun) -> None:
    with Servers(run.folder("servers"), fsync=True) as servers:
        url = servers.url("primary")
        grow_old(url)  # it removes WAL that a standby would ask for
        servers.add_standby("standby")
        servers.replicate_synchronously()
        run_sql(url, "ALTER SYSTEM SET wal_keep_size = '1GB'")
        run_sql(url, "SELECT pg_reload_conf()")
        take_turns(run, url)


BENCHMARK = Benchmark(
    "others' commits while small files are committed with their bytes, with a synchronous standby",
    benchmark,
    add_arguments,
)
