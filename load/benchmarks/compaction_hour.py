"""An hour of arrivals, with and without compaction: `python -m load compaction_hour`, about a minute.

The same flushes twice, in simulated time on real Postgres (load/workloads/simulated_cluster.py): once with a plan, and
what it asks for, every 15 seconds and the janitor every minute; once with nothing. Rows, files, requests and bytes are
what the metastore and the bucket counted, those of a replay included: a client that reads the whole topic when
the hour is over. The last column is the arithmetic of load/benchmarks/compaction_simulation.py for the same arrivals:
how far the tables of longer and busier cases are to be trusted.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import dataclass

from headrace.compactor.audit import Audit
from headrace.compactor.planner import PolicyLimits
from headrace.config.cluster_values import proposed
from headrace.config.settings import Settings
from load.benchmarks.compaction_simulation import PLAN_SECONDS, Arrivals, SimulationOutcome, simulate
from load.harness import Benchmark, BenchmarkRun
from load.workloads.replay import Replay
from load.workloads.simulated_cluster import FlushShape, SimulatedCluster

CLEAN_SECONDS = 60


@dataclass(frozen=True)
class Hour:
    """What was counted. Requests and bytes are those of flushes, merges and the janitor's marks, not the replay's."""

    left: Audit
    """What is left when the hour is over."""
    flushes: int
    jobs: int
    puts: int
    gets: int
    put_bytes: int
    get_bytes: int
    flushed_bytes: int
    replay: Replay


async def count_hour(url: str, shape: FlushShape, seconds: int, per_second: float, *, compacting: bool) -> Hour:
    """The arrivals, then a replay, on a migrated database."""
    cluster = await SimulatedCluster.open(url, shape, seconds=seconds)
    store = cluster.store
    try:
        for now in range(0, seconds, PLAN_SECONDS):
            for number in range(round(per_second * PLAN_SECONDS)):
                await cluster.flush(number / per_second)
            await cluster.advance(PLAN_SECONDS)
            if compacting:
                await cluster.compact()
                if now % CLEAN_SECONDS == 0:
                    await cluster.clean()
        counted = (store.puts, store.gets, store.put_bytes, store.get_bytes)
        flushes = round(per_second * PLAN_SECONDS) * -(-seconds // PLAN_SECONDS)
        left, replayed = await cluster.audit(), await cluster.replay()
        return Hour(left, flushes, cluster.jobs, *counted, cluster.flushed_bytes, replayed)
    finally:
        await cluster.close()


def tell(run: BenchmarkRun, without: Hour, merged: Hour, simulated: SimulationOutcome) -> None:
    """Tell the rows: without compaction, with it, and by arithmetic."""

    def row(what: str, before: float, after: float, arithmetic: float | None = None) -> None:
        figures = {"without": before, "with": after} | ({"of without": after / before} if before else {})
        run.row(what, figures | ({} if arithmetic is None else {"by arithmetic": arithmetic}))

    written = simulated.write_amplification * simulated.arrived_bytes
    row("metastore rows (extents)", without.left.extents, merged.left.extents, simulated.rows)
    row("live files", without.left.files, merged.left.files, simulated.files)
    row("objects, those in their grace too", without.left.objects, merged.left.objects)
    row("jobs that merged", without.jobs, merged.jobs, simulated.jobs)
    row("PUTs", without.puts, merged.puts, simulated.puts)
    row("GETs of merges", without.gets, merged.gets, simulated.gets)
    row("MB written", without.put_bytes / 1e6, merged.put_bytes / 1e6, written / 1e6)
    row("MB read by merges", without.get_bytes / 1e6, merged.get_bytes / 1e6)
    row("GETs of a replay of the topic", without.replay.gets, merged.replay.gets)
    row("MB read by that", without.replay.got_bytes / 1e6, merged.replay.got_bytes / 1e6)
    row("its MB/s (bucket in memory)", without.replay.mb_per_s, merged.replay.mb_per_s)


def arrivals(without: Hour, shape: FlushShape, seconds: int, per_second: float) -> Arrivals:
    """The same for the arithmetic."""
    return Arrivals(seconds, per_second, round(without.flushed_bytes / without.flushes), shape.partitions)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--seconds", type=int, default=3_600, help="of arrivals")
    parser.add_argument("--flushes-per-second", type=float, default=0.4)
    parser.add_argument("--partitions", type=int, default=20)
    parser.add_argument("--records", type=int, default=10, help="of a batch; one batch per partition and flush")


def benchmark(run: BenchmarkRun) -> None:
    args = run.args
    shape, per_second = FlushShape(args.partitions, args.records), args.flushes_per_second
    hours = []
    for compacting in (False, True):
        with run.postgres(fsync=False, values=proposed(Settings())) as url:  # what is counted does not depend on fsync
            hours.append(asyncio.run(count_hour(url, shape, args.seconds, per_second, compacting=compacting)))
    without, merged = hours
    simulated = simulate(arrivals(without, shape, args.seconds, per_second), PolicyLimits())
    size_kb = without.flushed_bytes / without.flushes / 1000
    run.note(f"{args.seconds:,} s: {per_second:g} flushes/s of {size_kb:.1f} KB, {args.partitions} partitions")
    tell(run, without, merged, simulated)


BENCHMARK = Benchmark("an hour of arrivals, with and without compaction", benchmark, add_arguments)
