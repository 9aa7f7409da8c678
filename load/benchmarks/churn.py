"""What hours of commits do to the metastore's tables: `python -m load churn --seconds 3600 --out DIRECTORY`.

Starts a separate Postgres (fsync and synchronous_commit on, and FLUSH_DELAY_US before each flush of its log). Four
committers write to the same 100 partitions, one batch each per commit, with a round trip of 1 ms and a pause between
their commits. Every ROUND_SECONDS housekeeping runs, a topic is made and deleted, and the log starts move on, so that
each partition keeps its newest KEPT_RECORDS records. Without dead rows that stay, tables stop to grow.
Writes every table's size and rows over time to churn.json, and draws the largest as churn.png.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import Any

from headrace.metastore.api.retention import LogStartTarget
from headrace.metastore.keys import partition_key
from load.benchmarks.commit import ROUND_TRIP_SECONDS, WORKLOADS, CommitBench, CommitLoad, opened
from load.harness import Benchmark, BenchmarkRun
from load.machine_state import machine_state
from load.postgres_server import read_cost

COMMITTERS = 4
FLUSH_DELAY_US = 2_000
"""Postgres' commit_delay: a disk slower than this one."""
ROUND_SECONDS = 5.0
SAMPLE_SECONDS = 30.0
KEPT_RECORDS = 20_000
SHOWN_TABLES = 8
TABLES = (
    "SELECT relname, n_live_tup, n_dead_tup, autovacuum_count, pg_table_size(relid), pg_indexes_size(relid)"
    " FROM pg_stat_user_tables WHERE n_tup_ins + n_tup_upd > 0 ORDER BY relname"
)
"""Rows, dead rows and sizes of all tables that were written to."""

Sample = dict[str, Any]


async def churn(run: BenchmarkRun, bench: CommitBench, seconds: float, pause_ms: float) -> list[Sample]:
    """Commit for so long; a sample every SAMPLE_SECONDS."""
    for statement in (
        f"ALTER SYSTEM SET commit_delay = {FLUSH_DELAY_US}",
        "ALTER SYSTEM SET commit_siblings = 0",
        "SELECT pg_reload_conf()",
    ):
        await bench.execute(statement)
    committers = await bench.committers(WORKLOADS[0], COMMITTERS)
    before, ours, began = read_cost(bench.url), time.process_time(), time.perf_counter()
    commits, samples = 0, list[Sample]()

    async def commit(committer: CommitLoad) -> None:
        nonlocal commits
        while time.perf_counter() - began < seconds:
            await asyncio.sleep(ROUND_TRIP_SECONDS + pause_ms / 1_000)
            await bench.commit(committer.next_file())
            commits += 1

    async def keep_house() -> None:
        while (elapsed := time.perf_counter() - began) < seconds:
            await _one_round(bench, committers[0].topic_number)
            await asyncio.sleep(ROUND_SECONDS)
            if samples and elapsed < samples[-1]["second"] + SAMPLE_SECONDS:
                continue
            cpu = read_cost(bench.url).since(before).cpu_seconds
            samples.append(
                {
                    "second": round(elapsed, 1),
                    "commits": commits,
                    "postgres_cpu_seconds": round(cpu, 1),
                    "our_cpu_seconds": round(time.process_time() - ours, 1),
                    "tables": by_table(await bench.query(TABLES)),
                }
            )
            run.row(f"second {elapsed:.0f}", {"commits": commits, "s of CPU of Postgres": cpu})

    await asyncio.gather(*map(commit, committers), keep_house())
    return samples


async def _one_round(bench: CommitBench, topic_number: int) -> None:
    store = bench.store
    await store.housekeeping.rotate_log_slots()
    await store.housekeeping.expire_producer_state(1_000)
    await bench.make_and_delete_a_topic(WORKLOADS[0].partitions)
    while await store.housekeeping.purge_deleted_partitions(1_000):
        pass
    keys = [partition_key(topic_number, index) for index in range(WORKLOADS[0].partitions)]
    ends = await bench.query("SELECT partition_key, high_watermark FROM partition_heads")
    targets = [LogStartTarget(key, max(end - KEPT_RECORDS, 0)) for key, end in ends if key in keys]
    while any(answer.has_more for answer in await store.retention.move_log_starts(targets, max_extents=1_000)):
        pass


def by_table(rows: list[tuple[Any, ...]]) -> dict[str, dict[str, int]]:
    """Return the rows of TABLES by the names of the tables."""
    names = ("live_rows", "dead_rows", "autovacuums", "heap_bytes", "index_bytes")
    return {name: dict(zip(names, values, strict=True)) for name, *values in rows}


def draw(samples: list[Sample], path: Path) -> None:
    """The largest tables over time."""
    from matplotlib.figure import Figure  # takes half a second, and only a drawing needs it

    last = samples[-1]["tables"]
    size = {name: table["heap_bytes"] + table["index_bytes"] for name, table in last.items()}
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for name in sorted(size, key=lambda name: -size[name])[:SHOWN_TABLES]:
        found = [(sample["second"] / 60, sample["tables"].get(name)) for sample in samples]
        points = [(minute, (t["heap_bytes"] + t["index_bytes"]) / 2**20) for minute, t in found if t is not None]
        axes.plot(*zip(*points, strict=True), label=name)
    axes.set_yscale("log")
    axes.set_xlabel("minutes")
    axes.set_ylabel("table and indexes, MiB")
    axes.set_title(f"Tables of the metastore during {samples[-1]['commits']:,} commits")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(loc="lower right", fontsize="small")
    figure.savefig(path, dpi=110)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--pause-ms", type=float, default=0.0, help="of each committer between two commits (0)")
    parser.add_argument("--out", type=Path, default=Path("churn"), help="directory for churn.json and churn.png")
    parser.add_argument("--seed", type=int, default=1)


async def benchmark(run: BenchmarkRun) -> None:
    args, state = run.args, machine_state()
    async with opened(run.folder("postgres"), args.seed) as bench:
        samples = await churn(run, bench, args.seconds, args.pause_ms)
    args.out.mkdir(parents=True, exist_ok=True)
    head = {"machine": state, "seconds": args.seconds, "pause_ms": args.pause_ms, "seed": args.seed}
    (args.out / "churn.json").write_text(json.dumps(head | {"samples": samples}) + "\n")
    draw(samples, args.out / "churn.png")


BENCHMARK = Benchmark("the sizes of the metastore's tables over hours of commits", benchmark, add_arguments)
