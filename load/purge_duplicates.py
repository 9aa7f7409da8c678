"""Dead bytes after a run of hostile duplicates: `python -m load.purge_duplicates`.

Every batch that is flushed is followed by batches that were committed before, as from clients that lose every
answer: the commit adds no extent for them, so their bytes are dead. Then the compactor and, an hour
later, the janitor come by, on real Postgres with simulated time (load/workloads/simulated_cluster.py). After each step
the audit (`headrace audit --deep`) reads every file and says what is dead. Exit status 1 unless that ends at zero
and every record that was acknowledged is still there once.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from headrace.compactor.audit import Audit
from headrace.config.cluster_values import proposed
from headrace.config.settings import Settings
from headrace.metastore.api.commit import BatchOutcome
from headrace.metastore.api.read import ExtentQuery
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.migrate import migrate
from load.machine_state import machine_state
from load.workloads.simulated_cluster import FlushShape, SimulatedCluster

STEP_S = 15
SETTLE_S = 900
"""After the last flush: files of level 0 are merged at the latest when they are 10 minutes old."""
GRACE_S = 2 * 3600
"""Beyond file.delete.delay.ms, and the 75 minutes for which a file's row is kept after its commit."""


async def run(cluster: SimulatedCluster, flushes: int) -> list[tuple[str, Audit]]:
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
    for partition in await cluster.metastore.find_extents([ExtentQuery(key, 0, 1 << 50) for key in cluster.keys]):
        offset = 0
        for extent in partition.extents:
            if extent.base_offset != offset:
                raise RuntimeError(f"offsets are missing or come twice: expected={offset} extent={extent}")
            offset = extent.last_offset + 1
        count += offset
    return count


async def measure(url: str, flushes: int, shape: FlushShape) -> bool:
    """Print the table; whether nothing dead is left, and nothing live is lost."""
    cluster = await SimulatedCluster.open(url, shape, seconds=flushes + SETTLE_S + GRACE_S)
    try:
        steps = await run(cluster, flushes)
        records = await readable_records(cluster)
    finally:
        await cluster.close()
    appended, duplicates = (cluster.outcomes[kind] for kind in (BatchOutcome.APPENDED, BatchOutcome.DUPLICATE))
    print(
        f"{flushes} flushes of {shape.partitions} partitions: {appended:,} batches, {duplicates:,} duplicates of them"
    )
    names = ("live", "dead", "dead files", "overhead", "in bucket", "objects", "rows")
    print(f"{'MB':10}", *(f"{name:>10}" for name in names))
    for name, found in steps:
        sizes = (found.live_bytes, found.dead_bytes, found.dead_file_bytes, found.overhead_bytes, found.object_bytes)
        megabytes = (f"{size / 1e6:>10.2f}" for size in sizes)
        print(f"{name:10}", *megabytes, f"{found.objects:>10,} {found.extents:>10,}")
    last = steps[-1][1]
    print(f"dead bytes: {steps[0][1].dead_bytes:,} > {last.dead_bytes + last.dead_file_bytes:,}")
    print(f"records: {cluster.record_count():,} acknowledged, {records:,} readable once each")
    return last.dead_bytes + last.dead_file_bytes == 0 and records == cluster.record_count()


def main() -> int:
    """Start a Postgres and print; 1 if something dead is left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flushes", type=int, default=600, help="one each second")
    parser.add_argument("--partitions", type=int, default=20)
    parser.add_argument("--resent", type=int, default=3, help="duplicates for each new batch")
    args = parser.parse_args()
    print(machine_state(), flush=True)
    with tempfile.TemporaryDirectory(prefix="headrace-purge-") as name:
        place = Path(name)
        place.chmod(0o711)  # started by root, Postgres runs as another user and must get through
        with EmbeddedPostgres(place) as url:
            migrate(url, values=proposed(Settings()))
            shape = FlushShape(partitions=args.partitions, resent=args.resent)
            return 0 if asyncio.run(measure(url, args.flushes, shape)) else 1


if __name__ == "__main__":
    sys.exit(main())
