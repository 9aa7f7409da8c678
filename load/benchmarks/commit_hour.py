"""Whether commits stay as fast for an hour: `python -m load commit_hour [--minutes 60] [--out DIRECTORY]`.

A separate Postgres (fsync and synchronous_commit on), and --committers committers that never wait: the highest rate
that the machine carries. They run in --workers processes (load/benchmarks/committers.py), each with its share of the
commit shards, and commit files of --extents extents of --batches batches. Meanwhile housekeeping runs as in a cluster:
slots of the feed and of answers are emptied, states of producers expire, and log starts move on, so that each partition
keeps its newest KEPT_RECORDS records.
Prints a line for each minute, and writes all of it to commits.json and commits.png: commits per second, p50 and p99 of
a commit, Postgres' CPU and WAL for each extent, what commits wait for, sizes and dead rows of the tables.
Rows that are kept for a time by promise grow as long: answers for an hour after the birth of their file, rows of files
for 75 minutes, and then until the janitor deletes their objects, and no janitor runs here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg

from headrace.cli.bench.orders import percentile
from headrace.config.settings import Settings
from headrace.metastore.api.retention import LogStartTarget
from headrace.metastore.postgres.store import PostgresMetastore
from load.benchmarks.churn import TABLES, by_table
from load.benchmarks.committers import CONNECTIONS, create_topic, sample_waits
from load.harness import Benchmark, BenchmarkRun
from load.machine_state import machine_state
from load.postgres_server import cpu_by_process, grow_old, read_cost
from load.workloads.committing import CommitterPlan, Worker, reported, start_workers, tell

ROUND_SECONDS = 5.0
SAMPLE_SECONDS = 0.2
KEPT_RECORDS = 500
TARGETS = 500
"""Log starts that one call moves."""
SHOWN_TABLES = 7
MIB = 1 << 20

Sample = dict[str, Any]


async def keep_house(url: str, stop: threading.Event) -> None:
    """Run a round of housekeeping every ROUND_SECONDS until `stop`."""
    store = await PostgresMetastore.open(url, Settings(metastore_pool_size=1))
    while not stop.is_set():
        await store.housekeeping.rotate_log_slots()
        await store.housekeeping.expire_producer_state(1_000)
        async with store.pool.connection() as connection:
            ends = await (
                await connection.execute("SELECT partition_key, high_watermark FROM partition_heads")
            ).fetchall()
        targets = [LogStartTarget(key, end - KEPT_RECORDS) for key, end in ends if end > KEPT_RECORDS]
        for first in range(0, len(targets), TARGETS):
            chunk = targets[first : first + TARGETS]
            while any(answer.has_more for answer in await store.retention.move_log_starts(chunk, max_extents=1_000)):
                pass
        await asyncio.to_thread(stop.wait, ROUND_SECONDS)
    await store.close()


def plans_of(url: str, topic_number: int, args: argparse.Namespace) -> list[CommitterPlan]:
    """Return one plan for each worker."""
    shares = [args.committers // args.workers + (n < args.committers % args.workers) for n in range(args.workers)]
    plans, node_id = [], 1
    for share in filter(None, shares):
        plans.append(
            CommitterPlan(
                url, topic_number, args.partitions, node_id, share, args.committers, args.extents, args.batches,
                any_partition=False, paced=False, seconds=args.minutes * args.minute, report_seconds=args.minute,
            )
        )  # fmt: skip
        node_id += share
    return plans


def watch(run: BenchmarkRun, url: str, workers: list[Worker]) -> list[Sample]:
    """Let the workers go; return a sample for each minute."""
    args = run.args
    samples: list[Sample] = []
    with psycopg.connect(url, autocommit=True) as connection:
        began = time.monotonic()
        before, cpu_before, at = read_cost(url), cpu_by_process(url), began
        tell(workers, "go")
        for minute in range(1, args.minutes + 1):
            waits = sample_waits(connection, began + minute * args.minute, SAMPLE_SECONDS)
            cost, cpu, now = read_cost(url), cpu_by_process(url), time.monotonic()
            if minute == args.minutes:
                tell(workers, "end")
            latencies = reported(workers)
            spent = sum(max(0.0, seconds - cpu_before.get(pid, 0.0)) for pid, seconds in cpu.items())
            tables = by_table(connection.execute(TABLES).fetchall())
            wal = cost.since(before).wal_bytes
            sample = _sample(minute, latencies, now - at, spent, wal, args.extents, waits, tables)
            samples.append(sample)
            run.row(f"minute {minute}", _figures(sample))
            before, cpu_before, at = cost, cpu, now
    return samples


def _sample(
    minute: int, latencies: list[float], elapsed: float, cpu: float, wal: int, extents: int, waits: Counter[str],
    tables: dict[str, dict[str, int]],
) -> Sample:  # fmt: skip
    commits, all_waits = len(latencies), sum(waits.values()) or 1
    return {
        "minute": minute,
        "commits_per_s": round(commits / elapsed, 1),
        "p50_ms": percentile(latencies, 50),
        "p99_ms": percentile(latencies, 99),
        "postgres_us_per_extent": round(cpu / max(commits * extents, 1) * 1e6, 2),
        "wal_bytes_per_extent": round(wal / max(commits * extents, 1)),
        "waits": {name: round(count / all_waits, 3) for name, count in waits.most_common()},
        "tables": tables,
    }


def _figures(sample: Sample) -> dict[str, float | str]:
    tables = sample["tables"]
    return {
        "commits/s": sample["commits_per_s"],
        "ms p50": sample["p50_ms"],
        "ms p99": sample["p99_ms"],
        "us of Postgres an extent": sample["postgres_us_per_extent"],
        "B of WAL an extent": sample["wal_bytes_per_extent"],
        "dead rows": sum(table["dead_rows"] for table in tables.values()),
        "(MiB)": ", ".join(f"{name} {_size(tables[name]) / MIB:.0f}" for name in _largest(sample)[:4]),
        "(waits)": ", ".join(f"{name} {share:.0%}" for name, share in list(sample["waits"].items())[:4]),
    }


def _size(table: dict[str, int]) -> int:
    return table["heap_bytes"] + table["index_bytes"]


def _largest(sample: Sample) -> list[str]:
    return sorted(sample["tables"], key=lambda name: -_size(sample["tables"][name]))


def draw(samples: list[Sample], title: str, path: Path) -> None:
    """Draw latencies and rate, sizes of tables, and dead rows and waits over the minutes."""
    from matplotlib.figure import Figure  # takes half a second, and only a drawing needs it

    minutes = [sample["minute"] for sample in samples]
    figure = Figure(figsize=(9, 10), layout="constrained")
    speed, sizes, rest = figure.subplots(3, sharex=True)
    speed.plot(minutes, [sample["p50_ms"] for sample in samples], label="p50, ms")
    speed.plot(minutes, [sample["p99_ms"] for sample in samples], label="p99, ms")
    speed.plot(minutes, [sample["commits_per_s"] / 10 for sample in samples], label="commits/s, tens")
    speed.set_title(title)
    for name in _largest(samples[-1])[:SHOWN_TABLES]:
        found = [sample["tables"].get(name) for sample in samples]
        sizes.plot(minutes, [_size(table) / MIB if table else 0 for table in found], label=name)
    sizes.set_ylabel("table and indexes, MiB")
    sizes.set_yscale("log")
    dead = [sum(table["dead_rows"] for table in sample["tables"].values()) / 1e3 for sample in samples]
    rest.plot(minutes, dead, label="dead rows, thousands")
    for name, _ in Counter(samples[-1]["waits"]).most_common(4):
        rest.plot(minutes, [100 * sample["waits"].get(name, 0) for sample in samples], label=f"{name}, % of waits")
    rest.set_xlabel("minutes")
    for axes in (speed, sizes, rest):
        axes.set_ylim(bottom=None if axes is sizes else 0)
        axes.grid(visible=True, alpha=0.3)
        axes.legend(loc="upper right", fontsize="small")
    figure.savefig(path, dpi=110)


def commit_for_an_hour(run: BenchmarkRun, url: str) -> list[Sample]:
    """Return the samples, from a new database; Postgres' log is as an old server's."""
    args = run.args
    grow_old(url)
    topic_number = asyncio.run(create_topic(url, args.partitions))
    workers = start_workers(plans_of(url, topic_number, args))
    stop = threading.Event()
    house = threading.Thread(target=lambda: asyncio.run(keep_house(url, stop)))
    house.start()
    try:
        samples = watch(run, url, workers)
        for worker in workers:
            worker.wait()
        return samples
    finally:
        stop.set()
        house.join()
        for worker in workers:
            worker.kill()  # does nothing to one that has ended


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--minute", type=float, default=60.0, help="its seconds")
    parser.add_argument("--committers", type=int, default=12)
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--partitions", type=int, default=2_048)
    parser.add_argument("--extents", type=int, default=8, help="of a file")
    parser.add_argument("--batches", type=int, default=2, help="of an extent")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, default=Path("commits"), help="directory for commits.json and commits.png")


def benchmark(run: BenchmarkRun) -> None:
    args, state = run.args, machine_state()
    with run.postgres(commit_shards=args.shards, max_connections=CONNECTIONS) as url:
        samples = commit_for_an_hour(run, url)
    args.out.mkdir(parents=True, exist_ok=True)
    asked = {name: value for name, value in vars(args).items() if name not in ("out", "json")}
    (args.out / "commits.json").write_text(json.dumps({"machine": state} | asked | {"samples": samples}) + "\n")
    title = f"{args.committers} committers, files of {args.extents} x {args.batches} batches, {args.shards} shards"
    draw(samples, title, args.out / "commits.png")


BENCHMARK = Benchmark(
    "whether commits stay as fast for an hour: latency, waits, sizes of tables, plotted", benchmark, add_arguments
)
