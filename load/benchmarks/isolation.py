"""Does a backfill slow down live clients? `python -m load isolation`.

One agent with a real Postgres and a directory for a bucket. A live topic is produced to at a steady rate
and read at its tail, all the time; in every second window another client reads a topic of
some hundred megabytes from offset 0 as fast as it is served. Windows alternate, so that all other load of the
machine affects both kinds equally. Printed: what the backfill got, the live records' acknowledgement
and end-to-end p50 and p99 in either kind of window, and the ratio of the p99s (the median over the pairs).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from dataclasses import dataclass, field
from typing import Any

from headrace.cli.bench.orders import percentile
from load.dev_server import DevServer
from load.harness import Benchmark, BenchmarkRun

LIVE_PARTITIONS = 4
HISTORY_PARTITIONS = 8
BACKFILL_BAR_MB_PER_S = 50
RATIO_BAR = 1.5


@dataclass
class Windows:
    """Seconds, one list per window."""

    acks: list[list[float]] = field(default_factory=list)
    ages: list[list[float]] = field(default_factory=list)


async def _run(module: str, *arguments: object) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *map(str, arguments),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 28,
    )  # fmt: skip


async def _ready(process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    if await process.stdout.readline() != b"ready\n":
        raise RuntimeError("a reader did not start")


async def _end(process: asyncio.subprocess.Process) -> Any:
    """Close its input; what it prints."""
    output, _ = await process.communicate(b"")
    if process.returncode:
        raise RuntimeError(f"a generator failed: status={process.returncode}")
    return json.loads(output)


async def fill(port: str, megabytes: int, batch_bytes: int) -> None:
    """Produce the history."""
    seconds = 2.0
    left = float(megabytes)
    while left > 0:
        producer = await _run(
            "load.workloads.raw_producer", "--port", port, "--topic", "history", "--partitions", HISTORY_PARTITIONS,
            "--request-bytes", batch_bytes, "--connections", 8, "--inflight", 16, "--seconds", seconds,
        )  # fmt: skip
        summary = await _end(producer)
        if summary["errors"]:
            raise RuntimeError(f"filling failed: {summary['errors']}")
        left -= summary["bytes"] / 1e6


async def window(port: str, args: argparse.Namespace, into: Windows, *, backfill: bool) -> float:
    """One window; MB/s of the backfill."""
    reader = await _run("load.workloads.reader", port, "live", LIVE_PARTITIONS)
    await _ready(reader)
    filler = None
    if backfill:
        filler = await _run("load.workloads.backfill_reader", port, "history", HISTORY_PARTITIONS, args.connections)
        await _ready(filler)
        assert filler.stdin is not None
        filler.stdin.write(b"go\n")
        await filler.stdin.drain()
        await asyncio.sleep(1)
    producer = await _run(
        "load.workloads.producer", "--port", port, "--topic", "live", "--partitions", LIVE_PARTITIONS,
        "--producers", args.producers, "--rate", args.rate, "--seconds", args.seconds,
    )  # fmt: skip
    summary = await _end(producer)
    speed = 0.0
    if filler is not None:
        got = await _end(filler)
        speed = got["bytes"] / got["seconds"] / 1e6
    await asyncio.sleep(0.5)
    into.ages.append(await _end(reader))
    into.acks.append(summary["latencies"])
    if summary["errors"] or len(into.ages[-1]) != summary["batches"]:
        raise RuntimeError(f"live load failed: {summary['errors']} read={len(into.ages[-1])} of={summary['batches']}")
    return speed


async def measure(run: BenchmarkRun, server: DevServer) -> None:
    """Fill, warm up, alternate."""
    args = run.args
    await server.create_topic("live", LIVE_PARTITIONS)
    await server.create_topic("history", HISTORY_PARTITIONS)
    port = server.bootstrap.rpartition(":")[2]
    await fill(port, args.megabytes, args.batch_bytes)
    quiet, busy, speeds = Windows(), Windows(), []
    await window(port, args, Windows(), backfill=True)
    for _ in range(args.pairs):
        await window(port, args, quiet, backfill=False)
        speeds.append(await window(port, args, busy, backfill=True))
    report(run, quiet, busy, speeds)


def report(run: BenchmarkRun, quiet: Windows, busy: Windows, speeds: list[float]) -> None:
    """Tell the medians of the windows, and whether the bars are met."""
    speed = statistics.median(speeds)
    run.row("backfill", {"MB/s": speed, "(windows)": ", ".join(f"{s:.0f}" for s in speeds)})
    ratios = {}
    for what in ("acks", "ages"):
        alone, beside = getattr(quiet, what), getattr(busy, what)
        pairs = [percentile(b, 99) / percentile(a, 99) for a, b in zip(alone, beside, strict=True)]
        ratios[what] = statistics.median(pairs)
        for name, windows in (("without", alone), ("with backfill", beside)):
            p50, p99 = (statistics.median(percentile(w, p) for w in windows) * 1000 for p in (50, 99))
            run.row(f"{what}, {name}", {"ms p50": p50, "ms p99": p99})
        run.row(f"{what}, p99", {"of without": ratios[what], "(pairs)": ", ".join(f"{r:.2f}" for r in pairs)})
    met = speed >= BACKFILL_BAR_MB_PER_S and max(ratios.values()) < RATIO_BAR
    run.judge(f"backfill >= {BACKFILL_BAR_MB_PER_S} MB/s, live p99 < {RATIO_BAR} times", holds=met)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--seconds", type=float, default=8, help="of each window")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=500, help="of history")
    parser.add_argument("--batch-bytes", type=int, default=262_144, help="of the history's batches")
    parser.add_argument("--connections", type=int, default=2, help="of the backfill")
    parser.add_argument("--producers", type=int, default=8)
    parser.add_argument("--rate", type=float, default=50, help="live requests per second")
    parser.add_argument("--linger-ms", type=int, default=100)


def benchmark(run: BenchmarkRun) -> None:
    with run.dev_server(settings={"linger.ms": run.args.linger_ms}) as server:
        asyncio.run(measure(run, server))


BENCHMARK = Benchmark("a backfill next to live producers and consumers", benchmark, add_arguments)
