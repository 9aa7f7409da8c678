"""X14: retention and cleaning leave linked partitions to their sources, also if a worker asks for them."""

from __future__ import annotations

import pytest

from headrace.metastore.api.restoring import RestoreOutcome
from headrace.metastore.api.retention import LogStartTarget
from headrace.metastore.log.kip631_records import ConfigRecord
from tests.metastore.sessions import Session, claim, rows
from tests.metastore.sql_sources import plant
from tests.metastore.test_linked_topics import LinkedScene, _promote
from tests.metastore.test_linked_topics import scene as linked_scene

pytestmark = pytest.mark.requirement("X14")
scene = linked_scene


async def _retain(scene: LinkedScene, offset: int) -> tuple[int, int]:
    """Log start and extents that were removed, by retention."""
    job = await claim(scene.store, "retention", lease_ms=60_000)
    targets, head = [LogStartTarget(scene.keys[0], offset)], await scene.head()
    answers = await scene.store.retention.enforce_retention(targets, max_extents=10, by=job.token, metadata_offset=head)
    assert answers is not None
    await scene.store.jobs.finish_job(job.token)
    return answers[0].log_start_offset, answers[0].removed_extents


async def test_retention_moves_no_log_start_of_a_copy_before_its_promotion(scene: LinkedScene) -> None:
    await scene.append(scene.run(0, 9), scene.run(10, 14))
    assert await _retain(scene, 10) == (0, 0)
    (moved,) = await scene.store.retention.move_log_starts([LogStartTarget(scene.keys[0], 5)], max_extents=0)
    assert moved.log_start_offset == 5, "the link's worker follows the source"
    await scene.store.links.ask_promotion([scene.topic_id], force=True)
    assert await _promote(scene)
    assert await _retain(scene, 10) == (10, 1)


async def test_retention_by_the_clock_would_be_noticed(scene: LinkedScene, metastore_url: str) -> None:
    plant(metastore_url, "enforce_retention", "p.state = state_linked()", "false")
    with pytest.raises(AssertionError):
        await test_retention_moves_no_log_start_of_a_copy_before_its_promotion(scene)


async def test_a_copy_is_not_cleaned_and_nothing_below_its_log_start_is_restored(
    scene: LinkedScene, raw: Session
) -> None:
    await scene.append(scene.run(0, 9), scene.run(10, 14))
    head = await scene.head()
    policy = ConfigRecord(resource_type=2, resource_name="orders", name="cleanup.policy", value="compact")
    assert await scene.store.cluster.append_records(head, [policy])
    await raw.execute(
        "INSERT INTO cleaned_partitions (partition_key, roll_offset) SELECT partition_key, 15 FROM partitions"
    )
    _, found = await scene.store.cleaning.cleanable_extents([(scene.keys[0], 15)])
    assert found == []
    await scene.store.retention.move_log_starts([LogStartTarget(scene.keys[0], 10)], max_extents=10)
    assert await rows(raw, "SELECT restore_refusal(%s)", scene.keys[0]) == [(RestoreOutcome.MARKED.value,)]
