"""Cleaning by key on Spark leaves what the local worker leaves, also if executors and drivers end in the middle.

In a directory, on a real S3 server and on emulators of Azure and Google.
"""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
import pytest

from headrace.compactor.cleaning.job import large_job
from headrace.compactor.cleaning.policy import CleaningJob, encode_cleaning
from headrace.jobs.kinds import CLEAN_LARGE
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.cluster_properties import write_cluster_id
from headrace.storage.file_id import object_key
from headrace.storage.objects.s3 import S3Store
from headrace.storage.objects.s3_client import S3Options
from tests.compactor.cleaning.test_guarantees import rolled
from tests.compactor.cleaning.test_transactions import check, log_of, offsets_from
from tests.fixtures_clouds import ON_CLOUDS, bucket_of
from tests.fixtures_s3 import BUCKET
from tests.metastore.segment_keys import with_keys
from tests.spark.cleaning_world import EAGER, SMALL, DriverEnded, SameTime, SparkCleaningWorld
from tests.transactional_world import Truth, committed, send, some_history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.compactor.spark.cleaning_tasks import PartReport, PassPlan


ALL_PASSES = 3


@pytest.fixture
async def world(
    metastore: PostgresMetastore, metastore_url: str, tmp_path: Path, spark: SparkSession
) -> AsyncIterator[SparkCleaningWorld]:
    with_keys(metastore_url)
    world = SparkCleaningWorld(metastore, metastore_url, tmp_path / "bucket", spark)
    await world.begin()
    kept = dict(spark.sparkContext.environment)
    yield world
    await world.service.close()
    spark.sparkContext.environment.clear()
    spark.sparkContext.environment.update(kept)


async def roll(world: SparkCleaningWorld) -> None:
    """End the active parts."""
    await world.plan()
    await world.wait(1.1)


async def both_clean(world: SparkCleaningWorld, pair: tuple[int, int], **over: Any) -> None:
    """A pass over each, at the same time; what they leave is the same."""
    tasks = await world.due()
    now_ms = world.now_ms()
    await world.clean_here(tasks[pair[0]], now_ms)
    await world.clean_on_spark(tasks[pair[1]], now_ms, **over)
    await check_same(world, pair)


async def check_same(world: SparkCleaningWorld, pair: tuple[int, int]) -> None:
    """Records, delete markers, horizons, and how far both are cleaned."""
    here, there = [await world.view_of(key) for key in pair]
    assert there.records == here.records
    assert there == here
    assert not there.uncleanable


async def story(world: SparkCleaningWorld, seed: int, passes: int = ALL_PASSES, **over: Any) -> None:
    """Passes over dirty records only; over clean and dirty ones; over delete markers past their horizon."""
    rng = random.Random(seed)
    pair = await world.pair(f"t{seed}")
    await world.write_both(pair, [("k1", True), ("k0", True), (None, True)])
    await world.write_at_random(pair, rng, 10)
    await world.write_both(pair, [("k0", False)])
    await roll(world)
    await both_clean(world, pair, **over)
    assert world.shown("removed_records_total", reason="superseded")
    assert world.shown("removed_records_total", reason="no_key")
    if passes > 1:
        await world.write_both(pair, [("k1", True), ("new", True)])
        await roll(world)
        await both_clean(world, pair, **over)
        assert world.shown("removed_records_total", reason="superseded"), "of the clean part"
    if passes > 2:
        await world.wait(3)
        await both_clean(world, pair, **over)
        assert world.shown("removed_records_total", reason="expired_marker")
        keys = [(record.key, record.value is None) for _, _, record in (await world.view_of(pair[1])).records]
        assert len(set(keys)) == len(keys)
        assert (b"k0", True) not in keys
    await world.check_accounts()


@pytest.mark.requirement("L9")
async def test_spark_leaves_what_the_local_worker_leaves(world: SparkCleaningWorld) -> None:
    await story(world, 1)


@pytest.mark.slow
@pytest.mark.requirement("L9")
@pytest.mark.parametrize("seed", range(10, 30))
async def test_spark_leaves_what_the_local_worker_leaves_in_many_histories(
    world: SparkCleaningWorld, seed: int
) -> None:
    await story(world, seed)


async def use_bucket(world: SparkCleaningWorld, name: str, request: pytest.FixtureRequest) -> None:
    """Keep the files on a real S3 server from now on, or on an emulator of another cloud."""
    from tests.compactor.test_spark import s3_environment

    if name == "s3":
        url, prefix = request.getfixturevalue("real_s3_url"), str(uuid.uuid4())
        options = S3Options(bucket=BUCKET, prefix=prefix, endpoint=url, region="us-east-1", path_style=True)
        world.use(S3Store(options, SystemClock()), s3_environment(url, prefix))
    else:
        bucket = bucket_of(name, request)
        world.use(bucket.open(), bucket.environment)
    await world.service.start()


@pytest.mark.slow
@pytest.mark.requirement("L9", "W10")
@pytest.mark.parametrize("bucket", ["s3", *ON_CLOUDS])
async def test_killed_executors_change_nothing(
    world: SparkCleaningWorld, bucket: str, request: pytest.FixtureRequest
) -> None:
    """Each task of each pass is killed once, and repeated."""
    from tests.spark.cleaning_faults import KilledRewrite, KilledScan

    await use_bucket(world, bucket, request)
    await story(world, 2, passes=1, scan=KilledScan, rewrite=KilledRewrite)
    assert await world.objects() > await world.named(), "the killed tasks had stored their files"
    await world.check_reserved()
    await world.clean_up()
    assert await world.objects() == await world.named(), "no orphan is left, and no named file is gone"
    await world.store.close()


@pytest.mark.requirement("L9", "W10")
@pytest.mark.slow
@pytest.mark.parametrize(
    "stop_at", [pytest.param(1, id="before the first swap"), pytest.param(2, id="between two swaps")]
)
async def test_the_next_driver_completes_what_one_left_on_s3(
    world: SparkCleaningWorld, stop_at: int, request: pytest.FixtureRequest
) -> None:
    await use_bucket(world, "s3", request)
    pair = await world.pair("t")
    await world.write_at_random(pair, random.Random(3), 12)
    await roll(world)
    tasks = await world.due()
    now_ms = world.now_ms()
    before = await world.view_of(pair[1])
    extents = await world.extents(pair[1])
    with pytest.raises(DriverEnded):
        await world.clean_on_spark(tasks[pair[1]], now_ms, stop_at)
    assert (await world.extents(pair[1]) == extents) is (stop_at == 1)
    assert (await world.view_of(pair[1])).cleaned_offset == before.cleaned_offset == 0
    await world.wait(0.05)  # beyond its lease
    job = await world.claimed_large()
    await world.on_spark(SameTime(world.postgres, now_ms)).handle(job, world.lease(job))
    await world.postgres.jobs.finish_job(job.token)
    await world.clean_here(tasks[pair[0]], now_ms)
    await check_same(world, pair)
    assert await world.objects() > await world.named(), "the first driver's files"
    await world.check_reserved()
    await world.clean_up()
    assert await world.objects() == await world.named()
    await check_same(world, pair)
    await world.check_accounts()
    await world.store.close()


@pytest.mark.slow
@pytest.mark.requirement("L9", "X1")
async def test_spark_keeps_what_was_committed_and_no_aborted_record(world: SparkCleaningWorld) -> None:
    """First while some transactions are open, then until no marker is left."""
    (key,) = await world.topic("transactions", 1, **EAGER)
    truth = Truth()
    _, writers = await some_history(world, [key], random.Random(6), 16, truth)
    await clean_transactions(world, key, truth)
    assert truth.committed(key) != truth.all(key), "some are open or aborted"
    for number, writer in enumerate(writers):
        await writer.end(commits=number % 2 == 0)
    await send(world, truth, key, [("z", "last")])
    for _ in range(3):
        await clean_transactions(world, key, truth)
        await world.wait(3)
    kinds, _, aborted = await log_of(world, key)
    assert ("marker" in kinds, aborted) == (False, 0), "ends of transactions stay"


async def clean_transactions(world: SparkCleaningWorld, key: int, truth: Truth) -> None:
    """A pass on Spark, if one is due; and what a reader of committed records may see after it."""
    await rolled(world, key)
    _, stable, _ = await log_of(world, key)
    behind = [record.offset for record in truth.all(key) if record.offset >= stable]
    if (task := (await world.due()).get(key)) is not None:
        await world.clean_on_spark(task, world.now_ms())
    check(await committed(world, key), truth, key)
    assert await offsets_from(world, key, stable) == behind, "cleaned too far"
    await world.check_accounts()


@pytest.mark.slow
@pytest.mark.requirement("L9")
async def test_a_driver_that_lost_its_job_changes_nothing(world: SparkCleaningWorld) -> None:
    from headrace.storage.errors import FencedError

    pair = await world.pair("t")
    await world.write_at_random(pair, random.Random(4), 6)
    await roll(world)
    task = (await world.due())[pair[1]]
    extents = await world.extents(pair[1])
    with pytest.raises(FencedError):
        await world.clean_on_spark(task, world.now_ms(), before_swap=lambda: world.take_large_job())
    assert await world.extents(pair[1]) == extents


@pytest.mark.slow
@pytest.mark.requirement("L9")
async def test_an_extent_that_cannot_be_read_keeps_its_partition(world: SparkCleaningWorld) -> None:
    """No part of it is written again, also not those that Spark could read."""
    pair = await world.pair("t")
    await world.write_at_random(pair, random.Random(5), 8)
    await roll(world)
    task = (await world.due())[pair[1]]
    extents = await world.extents(pair[1])
    await world.store.delete_many([object_key(extents[-1].file_id)])
    await world.clean_on_spark(task, world.now_ms())
    assert await world.extents(pair[1]) == extents
    state = await world.state(pair[1])
    assert (state.uncleanable_ms is None, state.cleaned_offset) == (False, 0)
    assert world.shown("passes_total", outcome="uncleanable") == 1


@pytest.mark.requirement("L9")
@pytest.mark.parametrize(
    "name",
    [
        "PartIsForgotten",
        pytest.param("SecretPerTask", marks=pytest.mark.slow),
        pytest.param("CleanPartIsLeftOut", marks=pytest.mark.slow),
        pytest.param("LastValueIsLost", marks=pytest.mark.slow),
        pytest.param("RetentionIsForgotten", marks=pytest.mark.slow),
    ],
)
async def test_a_planted_bug_is_caught(world: SparkCleaningWorld, name: str) -> None:
    from headrace.compactor.spark.cleaning_tasks import ScanTask
    from tests.spark import cleaning_faults

    bug = getattr(cleaning_faults, name)
    place = "scan" if issubclass(bug, ScanTask) else "rewrite"
    with pytest.raises(AssertionError):
        await story(world, 1, passes=2, **{place: bug})


@pytest.mark.slow
@pytest.mark.requirement("L9", "R6")
async def test_a_part_under_an_id_that_was_not_reserved_is_refused(world: SparkCleaningWorld) -> None:
    from headrace.storage.errors import UnavailableError
    from tests.spark.cleaning_faults import UnreservedRewrite

    pair = await world.pair("t")
    await world.write_at_random(pair, random.Random(7), 8)
    await roll(world)
    task = (await world.due())[pair[1]]
    extents = await world.extents(pair[1])
    with pytest.raises(UnavailableError, match="cannot be used any more"):
        await world.clean_on_spark(task, world.now_ms(), rewrite=UnreservedRewrite)
    assert await world.extents(pair[1]) == extents
    with pytest.raises(AssertionError, match="only the sweeper finds"):
        await world.check_reserved()


@pytest.mark.slow
@pytest.mark.requirement("L9", "R6")
async def test_a_part_with_more_files_than_ids_is_tried_again_with_more(world: SparkCleaningWorld) -> None:
    from headrace.storage.errors import UnavailableError

    pair = await world.pair("t")
    await world.write_at_random(pair, random.Random(8), 8)
    await roll(world)
    task = (await world.due())[pair[1]]
    files_of_a_byte = dataclasses.replace(SMALL, file_bytes=1)
    cleaner = world.on_spark(SameTime(world.postgres, world.now_ms()), limits=files_of_a_byte)
    plans: list[PassPlan] = []
    run = cleaner._run

    def first_with_too_few(plan: PassPlan) -> list[PartReport]:
        plans.append(plan)
        few = tuple(part[:1] for part in plan.file_ids)
        return run(msgspec.structs.replace(plan, file_ids=few) if len(plans) == 1 else plan)

    cleaner._run = first_with_too_few  # type: ignore[method-assign]
    await world.postgres.jobs.enqueue_jobs([large_job(task)])
    job = await world.claimed_large()
    with pytest.raises(UnavailableError, match="more files than reserved ids"):
        await cleaner.handle(job, world.lease(job))
    await world.wait(0.05)
    again = await world.claimed_large()
    await cleaner.handle(again, world.lease(again))
    await world.postgres.jobs.finish_job(again.token)
    assert [2 * len(part) for part in plans[0].file_ids] == [len(part) for part in plans[1].file_ids]
    assert (await world.state(pair[1])).cleaned_offset > 0
    await world.check_reserved()


@pytest.mark.slow
@pytest.mark.requirement("L9", "W10")
async def test_a_driver_killed_between_two_partitions_leaves_the_job_to_the_next(world: SparkCleaningWorld) -> None:
    """The application as a CronJob starts it: one partition is done, the swap of the other waits for a lock."""
    from tests.compactor.test_spark import DRIVER_LEASE_SECONDS, end_waiting_swaps, spark_submit, until_swapping

    await write_cluster_id(world.store, world.postgres.cluster_id)
    here, there = await world.pair("first"), await world.pair("second")
    for pair in (here, there):
        await world.write_at_random(pair, random.Random(6), 8)
    await roll(world)
    tasks = await world.due()
    large = CleaningJob((tasks[here[1]], tasks[there[1]]), is_large=True)
    await world.postgres.jobs.enqueue_jobs([CLEAN_LARGE.once("both", encode_cleaning(large))])
    extents = await world.extents(there[1])

    with psycopg.connect(world.url) as blocker:
        blocker.execute("SELECT FROM partitions WHERE partition_key = %s FOR UPDATE", (there[1],))
        driver = spark_submit(world, "--lease-ms", str(DRIVER_LEASE_SECONDS * 1000))
        try:
            await until_swapping(world, driver)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        end_waiting_swaps(blocker)
        blocker.rollback()
    assert (await world.state(here[1])).cleaned_offset > 0
    assert (await world.state(there[1])).cleaned_offset == 0
    assert await world.extents(there[1]) == extents

    await world.wait(2 * DRIVER_LEASE_SECONDS / 3600)
    job = await world.claimed_large()
    await world.on_spark(world.postgres).handle(job, world.lease(job))
    await world.postgres.jobs.finish_job(job.token)
    now_ms = world.now_ms()
    for pair in (here, there):
        await world.clean_here(tasks[pair[0]], now_ms)
        local, large_one = [await world.view_of(key) for key in pair]
        assert (large_one.records, set(large_one.horizons)) == (local.records, set(local.horizons))
        assert large_one.cleaned_offset == local.cleaned_offset
    await world.check_accounts()
    assert await world.objects() > await world.named(), "what the killed driver had stored"
    await world.check_reserved()
    await world.clean_up()
    assert await world.objects() == await world.named()
