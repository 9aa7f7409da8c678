"""Read pins: what a planned read needs is not deleted during the pin's term, however late or often it runs."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.metastore.api.jobs import READ_PIN
from headrace.scan import plan
from headrace.scan.errors import OptionError
from tests.metastore.sessions import set_for_cluster
from tests.spark.test_batch import places, refusal, rows
from tests.spark.world import OLD_SECONDS, ScanWorld, seen

HOUR_MS = 3_600_000


async def compact_and_delete(world: ScanWorld, ahead_seconds: float) -> None:
    """Every file is replaced, and deleted if nothing keeps it."""
    await world.pass_time(ahead_seconds)
    await world.compact(1)
    await world.compact(2)
    await world.delete_dead_files()


@pytest.mark.requirement("X6.1")
async def test_a_plan_is_read_late_and_again_while_its_files_are_compacted_and_deleted(
    world: ScanWorld, spark: Any
) -> None:
    (key,) = await world.topic("orders", 1)
    for number in range(4):
        await world.write(key, number)
    frame = world.frame(spark, subscribe="orders", includeHeaders="true", readPinMs=2 * HOUR_MS)
    late = frame.rdd
    assert late.getNumPartitions() == 1, "planned, and not run yet"
    planned, consumed = world.files(), await world.consumed("orders")

    await compact_and_delete(world, OLD_SECONDS)
    await world.delete_records(key, 12)
    await world.delete_dead_files()
    assert planned <= world.files()
    assert seen(await rows(late)) == consumed
    assert seen(await rows(late)) == consumed, "the same plan again"
    again = world.frame(spark, subscribe="orders")
    assert await places(again) == [], "a new plan sees the new log start"

    await world.pass_time(OLD_SECONDS + 2 * 3_600)
    await world.delete_dead_files()
    assert not planned & world.files(), "the term has ended"
    text = await refusal(lambda: late)
    assert "segment file is gone: topic=orders partition=0 offsets=" in text
    assert f"readPinMs={2 * HOUR_MS}" in text


async def test_without_a_pin_the_files_would_be_gone(world: ScanWorld) -> None:
    """This is what the test above proves: the deletion is held back by the pin and by nothing else."""
    (key,) = await world.topic("orders", 1)
    for number in range(4):
        await world.write(key, number)
    before = world.files()
    await compact_and_delete(world, OLD_SECONDS)
    assert not before & world.files()


async def test_a_pin_has_a_term_and_a_limit(world: ScanWorld) -> None:
    await set_for_cluster(world.postgres, "read.pin.max.ms", 5_000)
    token = await plan.pin(world.postgres.jobs, "a driver", 5_000)
    with pytest.raises(OptionError, match=r"readPinMs exceeds the cluster's read\.pin\.max\.ms: 5001 > 5000"):
        await plan.pin(world.postgres.jobs, "a driver", 5_001)
    (job,) = await world.postgres.reports.list_jobs(10)
    assert (job.job_id, job.kind, job.worker) == (token.job_id, READ_PIN, "a driver")

    await world.pass_time(6)
    (count,) = await world.postgres.reports.count_jobs()
    assert count.overdue_ms == 0, "no worker is late"
    other = await plan.pin(world.postgres.jobs, "another", 1_000)
    assert [job.job_id for job in await world.postgres.reports.list_jobs(10)] == [other.job_id], (
        "ended pins are removed"
    )
    await world.pass_time(60)
    await world.postgres.housekeeping.prune_jobs(10)
    assert await world.postgres.reports.list_jobs(10) == []


async def test_a_released_pin_keeps_nothing_and_releasing_is_repeatable(world: ScanWorld) -> None:
    first, second = [await plan.pin(world.postgres.jobs, "a driver", HOUR_MS) for _ in range(2)]
    await world.postgres.jobs.release_pins([first])
    await world.postgres.jobs.release_pins([first, first])
    await world.postgres.jobs.release_pins([])
    assert [job.job_id for job in await world.postgres.reports.list_jobs(10)] == [second.job_id]
    await world.postgres.jobs.release_pins([second._replace(epoch=second.epoch + 1)])
    assert len(await world.postgres.reports.list_jobs(10)) == 1, "of another life"
