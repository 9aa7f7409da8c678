"""Dead bytes after a run of hostile duplicates: `python -m load purge_duplicates`.

Every batch that is flushed is followed by batches that were committed before, as from clients that lose every
answer: the commit adds no extent for them, so their bytes are dead. Then the compactor and, an hour
later, the janitor come by, on real Postgres with simulated time (load/workloads/simulated_cluster.py). After each step
the audit (`headrace audit --deep`) reads every file and says what is dead. Exit status 1 unless that ends at zero
and every record that was acknowledged is still there once.
"""

from __future__ import annotations

import argparse
import asyncio

from headrace.compactor.audit import Audit
from headrace.config.cluster_values import proposed
from headrace.config.settings import Settings
from headrace.metastore.api.commit import BatchOutcome
from headrace.metastore.api.read import ExtentQuery
from load.harness import Benchmark, BenchmarkRun
from load.workloads.simulated_cluster import FlushShape, SimulatedCluster

STEP_S = 15
SETTLE_S = 900
"""After the last flush: files of level 0 are merged at the latest when they are 10 minutes old."""
GRACE_S = 2 * 3600
"""Beyond file.delete.delay.ms, and the 75 minutes for which a file's row is kept after its commit."""


async def purge(cluster: SimulatedCluster, flushes: int) -> list[tuple[str, Audit]]:
    """Flush, merge, delete; what the audit found after each."""
    for number in range(flushes):
        await cluster.flush(number % STEP_S)
        if number % STEP_S == STEP_S - 1:
            await cluster.advance(STEP_S)
    found = [("flushed", await cluster.audit())]
    await cluster.advance(SETTLE_S)
    await cluster.compact()
    found.append(("merged", await cluster.audit()))
    await cluster.advance(GRACE_S)
    await cluster.clean()
    found.append(("deleted", await cluster.audit()))
    return found


async def readable_records(cluster: SimulatedCluster) -> int:
    """Offsets that extents cover, each once: a gap or an overlap is an error."""
    count = 0
    for partition in await cluster.metastore.index.find_extents([ExtentQuery(key, 0, 1 << 50) for key in cluster.keys]):
        offset = 0
        for extent in partition.extents:
            if extent.base_offset != offset:
                raise RuntimeError(f"offsets are missing or come twice: expected={offset} extent={extent}")
            offset = extent.last_offset + 1
        count += offset
    return count


async def measure(run: BenchmarkRun, url: str, flushes: int, shape: FlushShape) -> None:
    """Tell the rows; nothing dead may be left, and nothing live lost."""
    cluster = await SimulatedCluster.open(url, shape, seconds=flushes + SETTLE_S + GRACE_S)
    try:
        steps = await purge(cluster, flushes)
        records = await readable_records(cluster)
    finally:
        await cluster.close()
    appended, duplicates = (cluster.outcomes[kind] for kind in (BatchOutcome.APPENDED, BatchOutcome.DUPLICATE))
    run.note(f"{flushes} flushes of {shape.partitions} partitions: {appended:,} batches, {duplicates:,} duplicates")
    for name, found in steps:
        figures = {
            "MB live": found.live_bytes / 1e6,
            "dead": found.dead_bytes / 1e6,
            "dead files": found.dead_file_bytes / 1e6,
            "overhead": found.overhead_bytes / 1e6,
            "in bucket": found.object_bytes / 1e6,
            "objects": found.objects,
            "rows": found.extents,
        }
        run.row(name, figures)
    last, acknowledged = steps[-1][1], cluster.record_count()
    left = last.dead_bytes + last.dead_file_bytes
    run.row("dead bytes", {"flushed": steps[0][1].dead_bytes, "left": left})
    run.row("records", {"acknowledged": acknowledged, "readable once each": records})
    holds = left == 0 and records == acknowledged
    run.judge("nothing dead is left, and each acknowledged record is readable once", holds=holds)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--flushes", type=int, default=600, help="one each second")
    parser.add_argument("--partitions", type=int, default=20)
    parser.add_argument("--resent", type=int, default=3, help="duplicates for each new batch")


def benchmark(run: BenchmarkRun) -> None:
    args = run.args
    with run.postgres(values=proposed(Settings())) as url:
        shape = FlushShape(partitions=args.partitions, resent=args.resent)
        asyncio.run(measure(run, url, args.flushes, shape))


BENCHMARK = Benchmark("dead bytes after a run of hostile duplicates", benchmark, add_arguments)
