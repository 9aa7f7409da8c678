"""Partitions with more keys than a worker's key map holds: who is to clean them, and what is done without Spark."""

from __future__ import annotations

import pytest

from headrace.compactor.cleaning.job import TOO_MANY_KEYS
from headrace.compactor.cleaning.key_map import BYTES_PER_KEY
from headrace.compactor.cleaning.planner import SPARK_ATTEMPTS
from headrace.compactor.cleaning.policy import SparkLimits, decode_cleaning, is_for_spark
from headrace.compactor.planner import PolicyLimits
from headrace.config.settings import Settings
from headrace.jobs.kinds import CLEAN, CLEAN_LARGE, COMPACT
from tests.compactor.cleaning.test_guarantees import EAGER, rolled
from tests.compactor.cleaning.test_policy import state
from tests.compactor.cleaning.world import CleaningWorld
from tests.compactor.test_planner import plan as plan_merges
from tests.compactor.world import LEASE_MS

THREE_KEYS = 3 * BYTES_PER_KEY
WAIT_HOURS = 1
SPARK = SparkLimits(large_bytes=1 << 40, large_wait_ms=WAIT_HOURS * 3_600_000, keys_max=3)
MERGE_ALL = PolicyLimits(min_age_ms=0, max_age_ms=0, small_bytes=1 << 30, tier=2)


async def with_five_keys(world: CleaningWorld, *, in_one_batch: bool = False) -> int:
    (key,) = await world.topic("t", 1, **EAGER)
    values: list[tuple[str | None, str | None]] = [(name, "1") for name in "abcdea"]
    if in_one_batch:
        await world.send(key, *values)
    else:
        for value in values:
            await world.send(key, value)
    await rolled(world, key)
    return key


async def large_jobs(world: CleaningWorld) -> list[bytes]:
    (payloads,) = await world.postgres.compaction.unfinished_payloads(CLEAN_LARGE.name)
    return payloads


@pytest.mark.requirement("L9")
@pytest.mark.parametrize("in_one_batch", [False, True])
async def test_a_worker_leaves_a_partition_with_too_many_keys_to_spark(
    world: CleaningWorld, in_one_batch: bool
) -> None:
    key = await with_five_keys(world, in_one_batch=in_one_batch)
    world.spark_limits = SPARK
    before = await world.seen(key)
    assert await world.clean(buffer_bytes=THREE_KEYS) == 1
    assert world.shown("passes_total", outcome="spark") == 1
    assert await world.seen(key) == before
    (payload,) = await large_jobs(world)
    job = decode_cleaning(payload)
    assert (job.is_large, [task.partition_key for task in job.tasks]) == (True, [key])
    assert await world.clean(buffer_bytes=THREE_KEYS) == 0, "it waits for Spark"
    await plan_merges(world, MERGE_ALL)
    assert await world.postgres.compaction.unfinished_payloads(COMPACT.name) == [[]], "nor is it merged meanwhile"


@pytest.mark.requirement("L9")
async def test_a_worker_keeps_what_fits(world: CleaningWorld) -> None:
    key = await with_five_keys(world)
    world.spark_limits = SPARK
    assert await world.clean(buffer_bytes=6 * BYTES_PER_KEY) == 1
    assert await large_jobs(world) == []
    assert await world.seen(key) == [(1, "b", "1"), (2, "c", "1"), (3, "d", "1"), (4, "e", "1"), (5, "a", "1")]


@pytest.mark.requirement("L9")
async def test_a_large_partition_with_many_offsets_is_planned_for_spark(world: CleaningWorld) -> None:
    await with_five_keys(world)
    world.spark_limits = SparkLimits(large_bytes=10, keys_max=3)
    assert await world.clean(buffer_bytes=THREE_KEYS) == 0
    assert len(await large_jobs(world)) == 1


@pytest.mark.requirement("L9")
async def test_a_job_that_spark_does_not_take_is_done_as_far_as_it_fits(world: CleaningWorld) -> None:
    key = await with_five_keys(world)
    world.spark_limits = SPARK
    await world.clean(buffer_bytes=THREE_KEYS)
    await world.wait(WAIT_HOURS + 0.1)
    assert await world.clean(buffer_bytes=THREE_KEYS) == 1
    assert await large_jobs(world) == [], "it is not left to Spark twice"
    assert world.shown("handed_over_jobs_total") == 1
    assert (await world.state(key)).cleaned_offset == 3, "the map was full there"


@pytest.mark.requirement("L9")
async def test_a_job_that_spark_failed_goes_to_the_workers(world: CleaningWorld) -> None:
    await with_five_keys(world)
    world.spark_limits = SPARK
    await world.clean(buffer_bytes=THREE_KEYS)
    for _ in range(SPARK_ATTEMPTS):
        job = await world.postgres.jobs.claim_job("spark", [CLEAN_LARGE.name], LEASE_MS)
        assert job is not None
        await world.postgres.jobs.fail_job(job.token, "UnavailableError: spark failed", 0)
    await world.plan()
    assert (await large_jobs(world), len((await world.postgres.compaction.unfinished_payloads(CLEAN.name))[0])) == (
        [],
        1,
    )


@pytest.mark.requirement("L9")
async def test_without_spark_the_partition_is_reported(world: CleaningWorld) -> None:
    """Also if jobs for Spark were left over."""
    key = await with_five_keys(world, in_one_batch=True)
    world.spark_limits = SPARK
    await world.clean(buffer_bytes=THREE_KEYS)
    assert len(await large_jobs(world)) == 1
    world.spark_limits = SparkLimits()
    assert await world.clean(buffer_bytes=THREE_KEYS) == 1
    assert await large_jobs(world) == []
    assert world.shown("passes_total", outcome="uncleanable") == 1
    assert (await world.state(key)).uncleanable_ms is not None
    assert any(TOO_MANY_KEYS in str(row) for row in await world.cleaning_rows())


@pytest.mark.requirement("L9")
def test_only_many_offsets_and_many_bytes_are_planned_for_spark() -> None:
    dirty = state(cleanable_end=100, cleaned_offset=10, dirty_bytes=60, clean_bytes=40)
    assert is_for_spark(SparkLimits(large_bytes=100, keys_max=89), dirty)
    assert not is_for_spark(SparkLimits(large_bytes=100, keys_max=90), dirty), "each offset has a key, at most"
    assert not is_for_spark(SparkLimits(large_bytes=101, keys_max=89), dirty)
    assert not is_for_spark(SparkLimits(large_bytes=0, keys_max=89), dirty), "there is no Spark"


def test_limits_are_those_of_the_settings() -> None:
    limits = SparkLimits.of(Settings(compaction_spark_min_bytes=5, log_cleaner_dedupe_buffer_size=1_120_000))
    assert limits == SparkLimits(large_bytes=5, large_wait_ms=3_600_000, keys_max=10_000)
