"""Spark merges files as the local worker does: the same records and extents, also if every task fails once.

On a real S3 server and on emulators of Azure and Google; random histories, the same for both.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.compactor.merge import MergeLimits
from headrace.compactor.plan import CompactionJob, encode
from headrace.jobs.kinds import COMPACT, COMPACT_LARGE
from headrace.jobs.lease import Lease
from headrace.metastore.api.jobs import NewJob
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.errors import UnavailableError
from headrace.storage.objects.s3 import S3Store
from headrace.storage.objects.s3_client import S3Options
from headrace.storage.records.compression import Codec
from tests.agent.fetch.fetch_world import NEVER_SEEN
from tests.compactor.test_compact import batch
from tests.compactor.world import LEASE_MS
from tests.fixtures_clouds import bucket_of
from tests.fixtures_s3 import BUCKET
from tests.metastore.segment_keys import with_keys
from tests.spark.cleaning_world import SparkCleaningWorld
from tests.storage.batches import plain_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource


PARTITIONS = 4
LIMITS = MergeLimits(file_bytes=1 << 20)


@pytest.fixture
async def world(
    metastore: PostgresMetastore,
    metastore_url: str,
    tmp_path: Path,
    spark: SparkSession,
    request: pytest.FixtureRequest,
) -> AsyncIterator[SparkCleaningWorld]:
    """Yields a world with its bucket on S3, or on the emulator that an indirect parameter names."""
    from tests.compactor.test_spark import s3_environment

    kept = dict(spark.sparkContext.environment)
    with_keys(metastore_url)
    world = SparkCleaningWorld(metastore, metastore_url, tmp_path, spark)
    if (cloud := getattr(request, "param", "s3")) == "s3":
        prefix, url = str(uuid.uuid4()), request.getfixturevalue("real_s3_url")
        options = S3Options(bucket=BUCKET, prefix=prefix, endpoint=url, region="us-east-1", path_style=True)
        world.use(S3Store(options, SystemClock()), world.environment | s3_environment(url, prefix))
    else:
        bucket = bucket_of(cloud, request)
        world.use(bucket.open(), world.environment | bucket.environment)
    await world.begin()
    yield world
    await world.service.close()
    await world.store.close()
    spark.sparkContext.environment.clear()
    spark.sparkContext.environment.update(kept)


async def fill(world: SparkCleaningWorld, seed: int) -> tuple[list[int], list[int]]:
    """The same batches in files of two topics: small ones, compressed ones, dead ones between them."""
    rng = random.Random(seed)
    configs = {"compression_type": rng.choice(["producer", "zstd"])}
    topics = (
        await world.topic(f"local-{seed}", PARTITIONS, **configs),
        await world.topic(f"spark-{seed}", PARTITIONS, **configs),
    )
    dead = plain_batch(2, b"dead" * 50, **NEVER_SEEN)
    for number in range(6):
        written = []
        for index in range(PARTITIONS):
            for _ in range(rng.randint(0, 3)):
                codec = rng.choice([Codec.NONE, Codec.NONE, Codec.GZIP, Codec.LZ4])
                value = b"value-%d " % number * rng.randint(1, 40)
                made = batch(value, rng.randint(1, 4), codec=codec, log_append_time=rng.random() < 0.2)
                written.append((index, rng.choice([made, made, made, dead])))
        for keys in topics:
            await world.commit(*((keys[index], made) for index, made in written))
    return topics


async def merged(world: SparkCleaningWorld, keys: list[int], kind: str, seed: int) -> NewJob:
    files = sorted({extent.file_id for extent in await world.extents(*keys)})
    return NewJob(kind, str(seed), encode(CompactionJob(tuple(files), 2, kind == COMPACT_LARGE.name)))


async def layout(world: SparkCleaningWorld, keys: list[int]) -> list[list[tuple[int, int, int]]]:
    """Offsets and lengths of each partition's extents."""
    return [[(e.base_offset, e.last_offset, e.length) for e in await world.extents(key)] for key in keys]


async def merge_on_spark(world: SparkCleaningWorld, source: type[DataSource]) -> None:
    """Run the job that waits."""
    from headrace.compactor.spark.driver import SharedOutTerms
    from headrace.compactor.spark.source import SparkCompactor

    job = await world.claimed(COMPACT_LARGE.name)
    compactor = SparkCompactor(
        world.spark,
        SharedOutTerms(part_bytes=1, limits=LIMITS, bytes_per_s=1e8, requests_per_s=500),
        source,
    )
    lease = Lease(world.postgres.jobs, job, world.clock, claimed_at=world.clock.monotonic(), lease_ms=LEASE_MS)
    await compactor.handle(job, lease)
    await world.postgres.jobs.finish_job(job.token)


@pytest.mark.requirement("W9", "W10")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "fault", "seed"),
    [
        ("s3", "KilledSource", 1),
        ("s3", "FlakySource", 2),
        pytest.param("azure", "FlakySource", 4, marks=pytest.mark.requirement("X15")),
        pytest.param("google", "KilledSource", 5, marks=pytest.mark.requirement("X15")),
    ],
    indirect=["world"],
)
async def test_spark_leaves_what_the_local_worker_leaves(world: SparkCleaningWorld, fault: str, seed: int) -> None:
    """Each task's Python worker is killed once, or raises, after its files are stored."""
    from tests.spark import flaky_source

    local, large = await fill(world, seed)
    before = [await world.records(key) for key in local]
    await world.postgres.jobs.enqueue_jobs([await merged(world, local, COMPACT.name, seed)])
    await world.run(await world.claim_next())
    stored_before = await world.objects()

    await world.postgres.jobs.enqueue_jobs([await merged(world, large, COMPACT_LARGE.name, seed)])
    await merge_on_spark(world, getattr(flaky_source, fault))

    assert [await world.records(key) for key in large] == before
    assert [await world.records(key) for key in local] == before
    assert await layout(world, large) == await layout(world, local)
    await world.check_accounts()
    stored = await world.objects() - stored_before
    assert len(stored) == 2 * len(large), "each task stored a file, twice"
    assert len(stored & await world.named()) == len(large), "one of each is named, the other's attempt is given up"
    await world.check_reserved()
    await world.clean_up()
    assert await world.objects() == await world.named(), "no orphan is left, and no named file is gone"
    assert [await world.records(key) for key in large] == before


@pytest.mark.slow
@pytest.mark.requirement("W10", "R6")
async def test_a_part_under_an_id_that_was_not_reserved_is_refused(world: SparkCleaningWorld) -> None:
    from tests.spark.flaky_source import UnreservedSource

    _, large = await fill(world, 3)
    before = await layout(world, large)
    await world.postgres.jobs.enqueue_jobs([await merged(world, large, COMPACT_LARGE.name, 3)])
    with pytest.raises(UnavailableError, match="cannot be used any more"):
        await merge_on_spark(world, UnreservedSource)
    assert await layout(world, large) == before
    with pytest.raises(AssertionError, match="only the sweeper finds"):
        await world.check_reserved()
