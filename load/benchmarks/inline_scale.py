"""Small files in Postgres with 1,000 partitions and 50 agents: `python -m load inline_scale FOLDER`.

First the same arrivals in turns by way of the bucket and as inline files, each on a new Postgres (fsync on) with merges
and retention meanwhile (load/workloads/inline_mover.py): extents per second, WAL by table (pg_waldump, of
--wal-seconds), WAL of the keys of merged files (decisions/0046), sizes and dead rows of `extents`, and p95 of the
commits of --others agents, which put about six files a second each into the bucket, to another topic.
Then where the choice turns back to the bucket: --sweep-agents agents with the cluster's limits take more and more MB/s;
the share of bytes that was inline, and why the others were not, in turn.png.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg

from headrace.cli.bench.orders import percentile
from headrace.config.cluster_values import proposed
from headrace.config.settings import Settings
from load.benchmarks.churn import TABLES, by_table
from load.harness import Benchmark, BenchmarkRun
from load.postgres_server import cpu_by_process, grow_old
from load.postgres_wal import wal_by_table, wal_position
from load.workloads.committing import tell
from load.workloads.inline_agents import AgentCounts, AgentsPlan
from load.workloads.inline_mover import InlineMover, with_keys
from load.workloads.inline_processes import counts, create_topic, shared_out, start_agents

MB, MIB = 1e6, 1 << 20
OTHER_NODES = 10_000
OTHERS_MB_S, OTHERS_BATCH_BYTES = 0.05, 4_096
KEY_TABLES = ("remote_segments", "remote_segment_events", "remote_partitions", "remote_log_heads", "file_reservations")
SWEEP_MB_S = (2, 4, 8, 12, 16, 20, 24, 32, 48)
KINDS = {"by way of the bucket": False, "inline": True}


def plan_of(
    url: str, bucket: Path, args: argparse.Namespace, mb_s: float, seconds: float, **changes: Any
) -> AgentsPlan:
    """Return the plan of all agents, on a new topic. `changes`: its other fields."""
    topic_number, topic_id = asyncio.run(create_topic(url, args.partitions))
    fields: dict[str, Any] = {
        "first": 1, "agents": args.agents, "of": args.agents, "batch_bytes": args.batch_kib << 10,
        "request_batches": args.request_batches, "low_latency": True,
    }  # fmt: skip
    return AgentsPlan(
        url=url, bucket=str(bucket), topic_number=topic_number, topic_id=topic_id, partitions=args.partitions,
        mb_s=mb_s, put_ms=args.put_ms, seconds=seconds, report_seconds=seconds / 2, **(fields | changes),
    )  # fmt: skip


def measure(run: BenchmarkRun, url: str, bucket: Path, *, low_latency: bool) -> dict[str, float | str]:
    """Return the row of a kind: of the second half of its time, and WAL of the middle of that."""
    args = run.args
    grow_old(url)
    with_keys(url)
    plan = plan_of(url, bucket, args, args.mb_s, 2 * args.seconds, low_latency=low_latency)
    others = plan_of(
        url, bucket, args, args.others * OTHERS_MB_S, 2 * args.seconds, low_latency=False, first=OTHER_NODES,
        agents=args.others, of=args.others, batch_bytes=OTHERS_BATCH_BYTES,
    )  # fmt: skip
    workers, committing = start_agents(shared_out(plan, args.workers)), start_agents([others])
    try:
        with InlineMover(url, bucket, kept_s=args.seconds * 1.5) as mover:
            tell(workers + committing, "go")
            counts(workers)  # of the first half, in which merges and plans begin
            counts(committing)
            cpu, keys = cpu_by_process(url), _rows_of_keys(url)
            time.sleep(args.seconds / 3)
            start = wal_position(url)
            time.sleep(args.wal_seconds)
            wal = wal_by_table(url, start, wal_position(url))
            sizes = _sizes(url)
            counted = counts(workers)
            spent = sum(max(0.0, now - cpu.get(pid, 0.0)) for pid, now in cpu_by_process(url).items())
            latencies = counts(committing).commit_ms
            keys_s = (_rows_of_keys(url) - keys) / args.seconds
            jobs = mover.moved.jobs
    finally:
        for worker in workers + committing:
            worker.kill()
            worker.wait()
    return figures(args, counted, wal, sizes, latencies, spent) | {"keys/s": keys_s, "merges": jobs}


def figures(
    args: argparse.Namespace, counted: AgentCounts, wal: Counter[str], sizes: dict[str, int], latencies: list[float],
    cpu: float,
) -> dict[str, float | str]:  # fmt: skip
    """Return them by unit. Pure."""
    size = counted.inline_bytes + counted.bucket_bytes
    answers = counted.inline_ms + counted.bucket_ms
    extents_s, mb_s = counted.extents / args.seconds, size / args.seconds / MB
    key_wal = sum(wal[name] for name in KEY_TABLES) / args.wal_seconds
    all_wal = wal.total() / args.wal_seconds
    return {
        "MB/s": mb_s,
        "% inline": 100 * counted.inline_bytes / max(size, 1),
        "files/s": counted.files / args.seconds,
        "KiB a file": size / max(counted.files, 1) / 1024,
        "calls/s": len(counted.commit_ms) / args.seconds,
        "extents/s": extents_s,
        "ms to the answer p50": percentile(answers, 50),
        "p95": percentile(answers, 95),
        "ms of others' commits p50": percentile(latencies, 50),
        "others' p95": percentile(latencies, 95),
        "CPU s of Postgres per GB": cpu / (size / 1e9),
        "MB/s of WAL": all_wal / MB,
        "MB/s of it for bytes": wal["inline_files"] / args.wal_seconds / MB,
        "MB/s of it for keys": key_wal / MB,
        "B of WAL an extent without bytes and keys": (all_wal - key_wal - wal["inline_files"] / args.wal_seconds)
        / max(extents_s, 1),
        "MiB of extents": sizes["bytes"] / MIB,
        "live rows": sizes["live_rows"],
        "dead rows": sizes["dead_rows"],
        "(WAL)": ", ".join(f"{name} {100 * part / wal.total():.0f} %" for name, part in wal.most_common(8)),
    }


def _rows_of_keys(url: str) -> int:
    """Keys that merged files were given so far."""
    with psycopg.connect(url, autocommit=True) as connection:
        (row,) = connection.execute(
            "SELECT coalesce(sum(n_tup_ins), 0) FROM pg_stat_user_tables WHERE relname = 'remote_segments'"
        ).fetchall()
    return int(row[0])


def _sizes(url: str) -> dict[str, int]:
    with psycopg.connect(url, autocommit=True) as connection:
        table = by_table(connection.execute(TABLES).fetchall())["extents"]
    return table | {"bytes": table["heap_bytes"] + table["index_bytes"]}


def sweep(run: BenchmarkRun, url: str, bucket: Path) -> list[dict[str, Any]]:
    """Print a row for each rate; its share of inline bytes is that of the second half of its time."""
    args, found = run.args, list[dict[str, Any]]()
    grow_old(url)
    with_keys(url)
    with InlineMover(url, bucket):
        for number, mb_s in enumerate(SWEEP_MB_S):
            plan = plan_of(
                url, bucket, args, mb_s, 2 * args.sweep_seconds, first=1 + number * args.sweep_agents,
                agents=args.sweep_agents, of=args.sweep_agents, batch_bytes=64 << 10, request_batches=2,
            )  # fmt: skip
            workers = start_agents(shared_out(plan, args.workers))
            tell(workers, "go")
            counts(workers)
            counted = counts(workers)
            for worker in workers:
                worker.kill()
                worker.wait()
            size = counted.inline_bytes + counted.bucket_bytes
            answers = counted.inline_ms + counted.bucket_ms
            found.append(
                {
                    "offered_mb_s": mb_s,
                    "mb_s": size / args.sweep_seconds / MB,
                    "inline_mb_s": counted.inline_bytes / args.sweep_seconds / MB,
                    "share": counted.inline_bytes / max(size, 1),
                    "p50_ms": percentile(answers, 50),
                    "p95_ms": percentile(answers, 95),
                    "refused": dict(counted.refused),
                }
            )
            why = ", ".join(f"{reason} {count}" for reason, count in counted.refused.most_common()) or "none"
            last = found[-1]
            run.row(
                f"{mb_s} MB/s offered",
                {
                    "MB/s": last["mb_s"], "MB/s inline": last["inline_mb_s"], "% inline": 100 * last["share"],
                    "ms to the answer p50": last["p50_ms"], "p95": last["p95_ms"], "(refused requests)": why,
                },
            )  # fmt: skip
    return found


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """Draw the share of bytes that was inline, and the time to an answer, over MB/s."""
    from matplotlib.figure import Figure  # takes half a second, and only a drawing needs it

    figure = Figure(figsize=(9, 7), layout="constrained")
    share, times = figure.subplots(2, sharex=True)
    rates = [each["offered_mb_s"] for each in found]
    share.set_title("Where the choice turns back to the bucket, with the default limits")
    share.plot(rates, [100 * each["share"] for each in found], "o-", label="inline, % of bytes")
    share.plot(rates, [each["inline_mb_s"] for each in found], "o-", label="inline, MB/s")
    limit = Settings().low_latency_max_bytes_per_second / MB
    share.axvline(limit, color="gray", linestyle=":", label="low.latency.max.bytes.per.second")
    times.plot(rates, [each["p50_ms"] for each in found], "o-", label="time to the answer, p50, ms")
    times.plot(rates, [each["p95_ms"] for each in found], "o-", label="p95, ms")
    times.axvline(limit, color="gray", linestyle=":")
    times.set_xlabel("MB/s that arrive at all agents")
    for axes in (share, times):
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
        axes.legend(loc="best", fontsize="small")
    figure.savefig(path, dpi=110)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("folder", type=Path, help="for scale.json and turn.png")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each half of a kind")
    parser.add_argument("--mb-s", type=float, default=8.0)
    parser.add_argument("--agents", type=int, default=50)
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--others", type=int, default=8)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--batch-kib", type=int, default=16)
    parser.add_argument("--request-batches", type=int, default=2)
    parser.add_argument("--put-ms", type=float, default=45.0)
    parser.add_argument("--wal-seconds", type=float, default=15.0)
    parser.add_argument("--sweep-seconds", type=float, default=10.0, help="of each half of a rate; 0: no sweep")
    parser.add_argument("--sweep-agents", type=int, default=8)
    parser.add_argument("--bucket", type=Path, help="a folder for objects, new ones are deleted after minutes")


def benchmark(run: BenchmarkRun) -> None:
    args, turned = run.args, list[dict[str, Any]]()
    bucket = args.bucket or run.folder("bucket")
    values, rows = proposed(Settings()), dict[str, dict[str, float | str]]()
    for name, low_latency in KINDS.items() if args.seconds else ():
        with run.postgres(commit_shards=args.shards, values=values) as url:
            rows[name] = measure(run, url, bucket, low_latency=low_latency)
            run.row(name, rows[name])
    if args.sweep_seconds:
        with run.postgres(commit_shards=args.shards, values=values) as url:
            turned = sweep(run, url, bucket)
    args.folder.mkdir(parents=True, exist_ok=True)
    (args.folder / "scale.json").write_text(json.dumps({"kinds": rows, "sweep": turned}) + "\n")
    if turned:
        draw(turned, args.folder / "turn.png")


BENCHMARK = Benchmark(
    "small files in Postgres with 1,000 partitions and 50 agents; where they turn to the bucket, plotted",
    benchmark,
    add_arguments,
)
