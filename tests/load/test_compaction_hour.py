"""The hour with and without compaction: a quarter of it, and what the arithmetic says of the same arrivals."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.compactor.planner import PolicyLimits
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from load.benchmarks.compaction_hour import arrivals, count_hour, tell
from load.benchmarks.compaction_simulation import PLAN_SECONDS, simulate
from load.harness import BenchmarkRun
from load.workloads.simulated_cluster import FlushShape

SHAPE, SECONDS, PER_SECOND = FlushShape(partitions=4, records=2), 900, 0.2
FLUSHES = 180
MARKS = SECONDS // 60 + 1
"""The janitor's, in the bucket: one a minute."""
STEP_FLUSHES = PER_SECOND * PLAN_SECONDS
"""The arithmetic spreads files' births over the step; here a step's files are committed at its beginning."""


@pytest.fixture
def second_url(postgres_server: EmbeddedPostgres, metastore_template: str) -> Iterator[str]:
    """Another migrated database."""
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE second_hour TEMPLATE {metastore_template}".encode())
        yield postgres_server.url("second_hour")
        connection.execute("DROP DATABASE second_hour WITH (FORCE)")


@pytest.mark.requirement("W10")
async def test_a_quarter_of_an_hour_with_and_without(metastore_url: str, second_url: str) -> None:
    without = await count_hour(metastore_url, SHAPE, SECONDS, PER_SECOND, compacting=False)
    merged = await count_hour(second_url, SHAPE, SECONDS, PER_SECOND, compacting=True)
    told = simulate(arrivals(without, SHAPE, SECONDS, PER_SECOND), PolicyLimits())
    tell(BenchmarkRun(Namespace(), Path()), without, merged, told)

    assert without.flushed_bytes == merged.flushed_bytes
    assert (without.left.extents, without.left.files, without.puts, without.gets) == (4 * FLUSHES, FLUSHES, FLUSHES, 0)
    assert without.replay.bytes == without.flushed_bytes
    assert merged.left.extents < without.left.extents / 3
    assert merged.left.files < without.left.files / 3
    assert merged.replay.gets < without.replay.gets / 3
    assert merged.jobs == told.jobs
    assert abs(merged.left.files - told.files) <= STEP_FLUSHES
    assert abs(merged.puts - told.puts) <= MARKS + 1
    assert abs(merged.gets - told.gets) <= MARKS + STEP_FLUSHES
