"""An hour of arrivals, with and without compaction: `python -m load.compaction_hour`, about a minute.

The same flushes twice, in simulated time on real Postgres (load/workloads/simulated_cluster.py): once with a plan, and
what it asks for, every 15 seconds and the janitor every minute; once with nothing. Rows, files, requests and bytes are
what the metastore and the bucket counted, those of a replay included: a client that reads the whole topic when
the hour is over. The last column is the arithmetic of load/workloads/compaction_simulation.py for the same arrivals:
how far the tables of longer and busier cases are to be trusted.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psycopg

from headrace.compactor.audit import Audit
from headrace.compactor.policy import PolicyLimits
from headrace.config.cluster_values import proposed
from headrace.config.settings import Settings
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.migrate import migrate
from load.machine_state import machine_state
from load.workloads.compaction_simulation import PLAN_SECONDS, Arrivals, SimulationOutcome, simulate
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


async def run(url: str, shape: FlushShape, seconds: int, per_second: float, *, compacting: bool) -> Hour:
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


def lines(without: Hour, merged: Hour, simulated: SimulationOutcome) -> list[str]:
    """The table."""

    def row(what: str, before: float, after: float, arithmetic: float | None = None, unit: str = ",.0f") -> str:
        ratio = f"{after / before:>8.3f}" if before else f"{'':>8}"
        guess = "" if arithmetic is None else format(arithmetic, unit)
        return f"{what:38} {before:>12{unit}} {after:>12{unit}} {ratio} {guess:>12}"

    written = simulated.write_amplification * simulated.arrived_bytes
    return [
        f"{'':38} {'without':>12} {'with':>12} {'ratio':>8} {'arithmetic':>12}",
        row("metastore rows (extents)", without.left.extents, merged.left.extents, simulated.rows),
        row("live files", without.left.files, merged.left.files, simulated.files),
        row("objects, those in their grace too", without.left.objects, merged.left.objects),
        row("jobs that merged", without.jobs, merged.jobs, simulated.jobs),
        row("PUTs", without.puts, merged.puts, simulated.puts),
        row("GETs of merges", without.gets, merged.gets, simulated.gets),
        row("MB written", without.put_bytes / 1e6, merged.put_bytes / 1e6, written / 1e6, ",.1f"),
        row("MB read by merges", without.get_bytes / 1e6, merged.get_bytes / 1e6, unit=",.1f"),
        row("GETs of a replay of the topic", without.replay.gets, merged.replay.gets),
        row("MB read by that", without.replay.got_bytes / 1e6, merged.replay.got_bytes / 1e6, unit=",.1f"),
        row("its MB/s (bucket in memory)", without.replay.mb_per_s, merged.replay.mb_per_s, unit=",.1f"),
    ]


def arrivals(without: Hour, shape: FlushShape, seconds: int, per_second: float) -> Arrivals:
    """The same for the arithmetic."""
    return Arrivals(seconds, per_second, round(without.flushed_bytes / without.flushes), shape.partitions)


def main() -> None:
    """Start a Postgres, a database for each, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=3_600, help="of arrivals")
    parser.add_argument("--flushes-per-second", type=float, default=0.4)
    parser.add_argument("--partitions", type=int, default=20)
    parser.add_argument("--records", type=int, default=10, help="of a batch; one batch per partition and flush")
    args = parser.parse_args()
    shape, per_second = FlushShape(args.partitions, args.records), args.flushes_per_second
    print(machine_state(), flush=True)
    hours = []
    with tempfile.TemporaryDirectory(prefix="headrace-hour-") as name:
        place = Path(name)
        place.chmod(0o711)  # started by root, Postgres runs as another user and must get through
        server = EmbeddedPostgres(place, fsync=False)  # what is counted does not depend on it
        with server as url:
            for compacting in (False, True):
                database = f"compacting_{compacting}".lower()
                with psycopg.connect(url, autocommit=True) as connection:
                    connection.execute(f"CREATE DATABASE {database}".encode())
                migrate(server.url(database), values=proposed(Settings()))
                ran = run(server.url(database), shape, args.seconds, per_second, compacting=compacting)
                hours.append(asyncio.run(ran))
    without, merged = hours
    simulated = simulate(arrivals(without, shape, args.seconds, per_second), PolicyLimits())
    print(
        f"{args.seconds:,} s of arrivals: {per_second:g} flushes/s of "
        f"{without.flushed_bytes / without.flushes / 1000:.1f} KB, {args.partitions} partitions"
    )
    print("\n".join(lines(without, merged, simulated)))
    print(machine_state())


if __name__ == "__main__":
    main()
