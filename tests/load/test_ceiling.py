"""The ceiling's bench runs, and its figures are what the metastore did."""

from __future__ import annotations

from pathlib import Path

import pytest

from load.benchmarks.ceiling import BENCHMARK, Measured, measure, measure_shards
from load.harness import BenchmarkRun, parsed
from load.workloads.committing import RECORDS
from tests.metastore.sessions import rows, session

TINY = ["--seconds", "0.001", "--agents", "2", "--partitions", "12", "--extents", "1", "5", "--batches", "1", "3"]
TINY += ["--batch-bytes", "262144"]
WARM_UP = 2 * 12
"""A batch of each agent to each partition."""
CARRIED = {1024: "1 KiB batches", 262_144: "262,144 bytes"}
"""Bytes of a batch, and how the bench calls them: large enough that a second's batches are some GiB."""


@pytest.mark.requirement("W16")
async def test_the_ceiling_is_measured(metastore_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = await measure(BenchmarkRun(parsed(BENCHMARK, TINY), Path()), metastore_url)
    shapes, reads = found[:8], found[8:]
    assert [shape.name.split() for shape in shapes[:4]] == [
        [extents, "x", batches, "plain"] for extents in "15" for batches in "13"
    ]
    for shape, per_commit in zip(shapes, (1, 3, 5, 15) * 2, strict=True):
        assert shape.batches == shape.operations * per_commit
        assert len(shape.latencies) == shape.operations
        assert shape.cost.wal_bytes > shape.operations
        assert 0 < max(shape.latencies) <= shape.elapsed
    assert len(reads) == 4
    assert all(read.operations == len(read.latencies) > 0 for read in reads)
    async with session(metastore_url) as raw:
        ((records,),) = await rows(raw, "SELECT sum(high_watermark) FROM partition_heads")
        ((files,),) = await rows(raw, "SELECT count(*) FROM segment_files")
    assert records == RECORDS * (WARM_UP + sum(shape.batches for shape in shapes)), "counted as committed, and are not"
    assert files == 2 + sum(shape.operations for shape in shapes)
    shown = capsys.readouterr().out
    assert_the_most_is_shown(shown, shapes)


def assert_the_most_is_shown(shown: str, shapes: list[Measured]) -> None:
    """Operations/s, batches/s and the GiB/s that they carry: the largest of the run, as it was measured."""
    commits = max(shape.operations / shape.elapsed for shape in shapes)
    batches = max(shape.batches / shape.elapsed for shape in shapes)
    (most,) = [line for line in shown.splitlines() if line.startswith("the most in this run")]
    assert f" {commits:,.0f} commits/s " in most
    assert f" {batches:,.0f} batches/s " in most
    carried = {size: f"{batches * size / 2**30:.2f} GiB/s of {words}" for size, words in CARRIED.items()}
    assert all(carried[size] in most for size in CARRIED), (carried, most)


async def test_agents_that_keep_to_their_shards(metastore_url: str) -> None:
    """Half of the shards each: an agent's files name no partition of the other's."""
    one, five = await measure_shards(metastore_url, parsed(BENCHMARK, TINY))
    async with session(metastore_url) as raw:
        shared = await rows(raw, "SELECT partition_key FROM producer_state WHERE next_sequence > %s", RECORDS)
        both = await rows(
            raw,
            "SELECT partition_key FROM producer_state WHERE next_sequence > %s GROUP BY 1 HAVING count(*) > 1",
            RECORDS,
        )
        ((records,),) = await rows(raw, "SELECT sum(high_watermark) FROM partition_heads")
    assert len(shared) == 12
    assert not both
    assert records == RECORDS * (WARM_UP + one.batches + five.batches)
