"""A run of hostile duplicates, and nothing dead is left of it."""

from __future__ import annotations

import pytest

from headrace.metastore.api.commit import BatchOutcome
from load.benchmarks.purge_duplicates import GRACE_S, SETTLE_S, purge, readable_records
from load.workloads.simulated_cluster import FlushShape, SimulatedCluster

FLUSHES, PARTITIONS, RESENT = 40, 4, 3


@pytest.mark.requirement("W8", "W9")
async def test_dead_bytes_are_purged_to_zero(metastore_url: str) -> None:
    shape = FlushShape(partitions=PARTITIONS, records=3, resent=RESENT)
    cluster = await SimulatedCluster.open(metastore_url, shape, seconds=FLUSHES + SETTLE_S + GRACE_S)
    try:
        (_, flushed), (_, merged), (_, deleted) = await purge(cluster, FLUSHES)
        records = await readable_records(cluster)
    finally:
        await cluster.close()
    new = FLUSHES * PARTITIONS
    assert cluster.outcomes == {BatchOutcome.APPENDED: new, BatchOutcome.DUPLICATE: RESENT * new}
    assert flushed.live_bytes + flushed.dead_bytes == cluster.flushed_bytes
    assert flushed.dead_bytes == RESENT * flushed.live_bytes, "all batches are of one size"
    assert (merged.live_bytes, merged.dead_bytes) == (flushed.live_bytes, 0)
    assert (merged.dead_files, merged.dead_file_bytes) == (FLUSHES, flushed.object_bytes)
    assert deleted.dead_bytes == deleted.dead_file_bytes == deleted.reclaimable_bytes == 0
    assert deleted.object_bytes == deleted.live_bytes + deleted.overhead_bytes
    assert records == cluster.record_count() == 3 * new
