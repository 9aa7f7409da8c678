"""An hour of inline files at the highest rate of the defaults: `python -m load inline_hour FOLDER [--seconds 3600]`.

A separate Postgres (fsync and synchronous_commit on). --agents agents in --workers processes take low.latency.
max.bytes.per.second together (times --rate), in batches of --batch-kib of idempotent producers, and commit them as
agents do (load/workloads/inline_agents.py). Meanwhile merges move the files, slots are emptied, log starts move on,
and the feed's slots turn (load/workloads/inline_mover.py).
Prints a row for each minute, and writes all of it to inline.json and inline.png in FOLDER: sizes of the slots, bytes
held, WAL for each byte, sizes and dead rows of the tables that commits and merges write to, and of the TOAST tables.
Rows that are kept for a time by promise grow as long: see commit_hour.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import time
from pathlib import Path
from typing import Any

import psycopg

from headrace.cli.bench.orders import percentile
from headrace.config.cluster_values import proposed
from headrace.config.settings import Settings
from load.benchmarks.churn import TABLES, by_table
from load.harness import Benchmark, BenchmarkRun
from load.machine_state import machine_state
from load.postgres_server import grow_old, read_cost
from load.workloads.committing import tell
from load.workloads.inline_agents import AgentCounts, AgentsPlan
from load.workloads.inline_mover import InlineMover, with_keys
from load.workloads.inline_processes import counts, create_topic, shared_out, start_agents

MIB = 1 << 20
MOSTLY = 0.5
"""From this share of inline bytes on, WAL for each of them says something."""
WATCHED = (
    "extents", "segment_files", "producer_state", "partition_heads", "jobs", "remote_segments", "remote_segment_events",
)  # fmt: skip
"""Tables of a sample, with those of GROUPS, each of which is many tables: the feed and the answers."""
GROUPS = ("commit_log", "commit_answers")
INLINE = """
SELECT coalesce(sum(pg_relation_size(c.oid)), 0)::bigint,
       coalesce(sum(pg_total_relation_size(c.reltoastrelid)), 0)::bigint,
       coalesce(sum(pg_indexes_size(c.oid)), 0)::bigint,
       coalesce(sum(t.n_dead_tup + h.n_dead_tup), 0)::bigint,
       coalesce(max(pg_total_relation_size(c.oid)), 0)::bigint
  FROM pg_class c
  JOIN pg_stat_all_tables h ON h.relid = c.oid
  JOIN pg_stat_all_tables t ON t.relid = c.reltoastrelid
 WHERE c.relname ~ '^inline_files_[0-9]+$'
"""
"""Bytes of the slots' heaps, TOAST and indexes, dead rows of both, the largest slot."""
SLOTS = "SELECT free_slots, held_bytes, oldest_ms FROM inline_state()"

Sample = dict[str, Any]


def sample_of(
    connection: psycopg.Connection[Any], minute: int, counted: AgentCounts, seconds: float, wal: int
) -> Sample:
    """Return the figures of a minute, in bytes and ms."""
    (slots,) = connection.execute(SLOTS).fetchall()
    (inline,) = connection.execute(INLINE).fetchall()
    tables = by_table(connection.execute(TABLES).fetchall())
    kept = {name: tables[name] for name in WATCHED if name in tables}
    for group in GROUPS:
        members = [table for name, table in tables.items() if name.startswith(group)]
        kept[group] = {part: sum(table[part] for table in members) for part in members[0]} if members else {}
    files = counted.inline_bytes + counted.bucket_bytes
    return {
        "minute": minute,
        "mb_per_s": counted.inline_bytes / seconds / 1e6,
        "inline_share": counted.inline_bytes / files if files else 0.0,
        "calls_per_s": len(counted.commit_ms) / seconds,
        "files_per_s": counted.files / seconds,
        "extents_per_s": counted.extents / seconds,
        "commit_p50_ms": percentile(counted.commit_ms, 50),
        "commit_p95_ms": percentile(counted.commit_ms, 95),
        "refused": dict(counted.refused),
        "look_max_ms": max(counted.look_ms, default=0.0),
        "failures": counted.failures,
        "wal_per_byte": wal / max(counted.inline_bytes, 1),
        "free_slots": int(slots[0]),
        "held_bytes": int(slots[1]),
        "oldest_ms": int(slots[2]),
        "slots": dict(
            zip(("heap_bytes", "toast_bytes", "index_bytes", "dead_rows", "largest_bytes"), inline, strict=True)
        ),
        "tables": kept,
    }


def figures(sample: Sample) -> dict[str, float | str]:
    """Return a row for people."""
    slots, tables = sample["slots"], sample["tables"]
    return {
        "MB/s inline": sample["mb_per_s"],
        "% inline": 100 * sample["inline_share"],
        "files/s": sample["files_per_s"],
        "ms commit p50": sample["commit_p50_ms"],
        "p95": sample["commit_p95_ms"],
        "WAL per byte": sample["wal_per_byte"],
        "MiB of slots": (slots["heap_bytes"] + slots["toast_bytes"] + slots["index_bytes"]) / MIB,
        "free": sample["free_slots"],
        "s oldest": sample["oldest_ms"] / 1e3,
        "ms longest look at the slots": sample["look_max_ms"],
        "failed calls": sample["failures"],
        "dead rows of slots": slots["dead_rows"],
        "(refused requests)": ", ".join(f"{reason} {count}" for reason, count in sample["refused"].items()) or "none",
        "(MiB, dead rows)": ", ".join(
            f"{name} {size_of(tables[name]) / MIB:.0f} {tables[name]['dead_rows']:,}" for name in tables if tables[name]
        ),
    }


def size_of(table: dict[str, int]) -> int:
    """Return the bytes of a table with its indexes."""
    return table["heap_bytes"] + table["index_bytes"] if table else 0


def watch(run: BenchmarkRun, url: str, plans: list[AgentsPlan], bucket: Path) -> list[Sample]:
    """Let the agents work; return a sample for each minute."""
    args, samples = run.args, list[Sample]()
    workers = start_agents(plans)
    try:
        with InlineMover(url, bucket) as mover, psycopg.connect(url, autocommit=True) as connection:
            before, at = read_cost(url).wal_bytes, time.monotonic()
            tell(workers, "go")
            for minute in range(1, round(args.seconds / args.minute) + 1):
                counted = counts(workers)
                wal, now = read_cost(url).wal_bytes, time.monotonic()
                samples.append(sample_of(connection, minute, counted, now - at, wal - before))
                samples[-1] |= {"merges": mover.moved.jobs, "mover_failures": mover.moved.failures}
                keep(args.folder, args, samples)
                run.row(f"minute {minute}", figures(samples[-1]))
                before, at = wal, now
        return samples
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def keep(folder: Path, args: argparse.Namespace, samples: list[Sample]) -> None:
    """Write what there is by now: a run that is ended early has its minutes."""
    head = {key: value for key, value in vars(args).items() if isinstance(value, int | float)}
    (folder / "inline.json").write_text(json.dumps({"machine": machine_state()} | head | {"samples": samples}) + "\n")


def draw(samples: list[Sample], title: str, path: Path) -> None:
    """Draw sizes of the slots, of the other tables, and dead rows, over the minutes."""
    from matplotlib.figure import Figure  # takes half a second, and only a drawing needs it

    minutes = [sample["minute"] for sample in samples]
    figure = Figure(figsize=(9, 11), layout="constrained")
    slots, sizes, dead, rate = figure.subplots(4, sharex=True)
    slots.set_title(title)
    held = [sum(s["slots"][part] for part in ("heap_bytes", "toast_bytes", "index_bytes")) / MIB for s in samples]
    slots.plot(minutes, held, label="sixteen slots, MiB")
    slots.plot(minutes, [10 * s["oldest_ms"] / 1e3 for s in samples], label="oldest file, tenths of a second")
    for name in samples[-1]["tables"]:
        sizes.plot(minutes, [size_of(s["tables"].get(name, {})) / MIB for s in samples], label=name)
        dead.plot(minutes, [s["tables"].get(name, {}).get("dead_rows", 0) / 1e3 for s in samples], label=name)
    dead.plot(minutes, [s["slots"]["dead_rows"] / 1e3 for s in samples], label="slots, with TOAST")
    sizes.set_yscale("log")
    sizes.set_ylabel("table and indexes, MiB")
    dead.set_ylabel("dead rows, thousands")
    rate.plot(minutes, [s["mb_per_s"] for s in samples], label="MB/s of inline files")
    wal = [10 * s["wal_per_byte"] if s["inline_share"] > MOSTLY else math.nan for s in samples]
    rate.plot(minutes, wal, label="WAL per inline byte, tenths")
    rate.plot(minutes, [10 * s["inline_share"] for s in samples], label="share of bytes that is inline, tenths")
    rate.set_xlabel("minutes")
    for axes in (slots, sizes, dead, rate):
        axes.set_ylim(bottom=None if axes is sizes else 0)
        axes.grid(visible=True, alpha=0.3)
        axes.legend(loc="lower right" if axes is rate else "upper left", fontsize="x-small", ncols=3)
    figure.savefig(path, dpi=110)


def an_hour(run: BenchmarkRun, url: str, bucket: Path) -> list[Sample]:
    """Return the samples, from a new database; Postgres' log is as an old server's."""
    args = run.args
    grow_old(url)
    with_keys(url)
    topic_number, topic_id = asyncio.run(create_topic(url, args.partitions))
    mb_s = args.rate * Settings().low_latency_max_bytes_per_second / 1e6
    plan = AgentsPlan(
        url=url, bucket=str(bucket), topic_number=topic_number, topic_id=topic_id, partitions=args.partitions,
        first=1, agents=args.agents, of=args.agents, mb_s=mb_s, batch_bytes=args.batch_kib << 10,
        request_batches=args.request_batches, low_latency=True, put_ms=args.put_ms, seconds=args.seconds,
        report_seconds=args.minute,
    )  # fmt: skip
    return watch(run, url, shared_out(plan, args.workers), bucket)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("folder", type=Path, help="for inline.json and inline.png")
    parser.add_argument("--seconds", type=float, default=3_600.0)
    parser.add_argument("--minute", type=float, default=60.0, help="seconds of a row")
    parser.add_argument("--rate", type=float, default=1.0, help="times low.latency.max.bytes.per.second")
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--partitions", type=int, default=256)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--batch-kib", type=int, default=32)
    parser.add_argument("--request-batches", type=int, default=4, help="of a request")
    parser.add_argument("--put-ms", type=float, default=45.0)
    parser.add_argument("--bucket", type=Path, help="a folder for objects, new ones are deleted after minutes")


def benchmark(run: BenchmarkRun) -> None:
    args = run.args
    args.folder.mkdir(parents=True, exist_ok=True)
    with run.postgres(commit_shards=args.shards, values=proposed(Settings())) as url:
        samples = an_hour(run, url, args.bucket or run.folder("bucket"))
    draw(samples, f"Inline files of {args.agents} agents", args.folder / "inline.png")


BENCHMARK = Benchmark(
    "an hour of small files in Postgres at the highest rate of the defaults: sizes, WAL, dead rows, plotted",
    benchmark,
    add_arguments,
)
