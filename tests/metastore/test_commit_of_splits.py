"""A commit to partitions that are split in two: duplicates first, then the split's rule, then sequences."""

from __future__ import annotations

import pytest

from headrace.metastore.api.commit import BatchOutcome, MovedKeys, StagedBatch
from headrace.metastore.api.topics import PartitionState
from headrace.metastore.postgres.store import PostgresMetastore
from tests.metastore.commit_scenes import Scene, appended, batch, open_scene
from tests.metastore.sessions import Session, move_time, rows
from tests.metastore.sql_sources import plant

pytestmark = pytest.mark.requirement("X5")
QUIET_MS = 60_000
SENT_BACK, MOVED_KEY = (BatchOutcome.SENT_BACK, -1), (BatchOutcome.MOVED_KEY, -1)


@pytest.fixture
async def scene(metastore: PostgresMetastore, raw: Session) -> Scene:
    """A topic with partition 0 split into itself and partition 1; partition 2 is an ordinary one."""
    scene = await open_scene(metastore, partitions=3)
    parent, child, _ = scene.keys
    for key, state in ((parent, PartitionState.SPLITS), (child, PartitionState.IS_CHILD)):
        await raw.execute("UPDATE partitions SET state = %s WHERE partition_key = %s", (state, key))
    await raw.execute(
        "INSERT INTO partition_splits VALUES (%s, %s, %s, %s, %s, wall_ms(), NULL)",
        (parent, child, scene.topic.topic_id, QUIET_MS, 10 * QUIET_MS),
    )
    return scene


def moved(scene: Scene, sequence: int) -> StagedBatch:
    """For the parent, with a key that moved."""
    return batch(scene.keys[0], sequence, keys=int(MovedKeys.MOVED))


def stays(scene: Scene, sequence: int) -> StagedBatch:
    """For the parent, without such a key."""
    return batch(scene.keys[0], sequence, keys=int(MovedKeys.STAY))


async def test_a_producer_moves_from_the_parent_to_the_child(scene: Scene, raw: Session) -> None:
    child = scene.keys[1]
    assert await scene.outcomes(moved(scene, 0)) == [SENT_BACK]
    assert await scene.outcomes(moved(scene, 0)) == appended(0)
    assert await scene.outcomes(batch(child, 0)) == [SENT_BACK], "it has not been quiet"
    assert await scene.outcomes(stays(scene, 5), batch(scene.keys[2], 0)) == appended(5, 0)
    await move_time(raw, QUIET_MS / 1_000)
    assert await scene.outcomes(batch(child, 0)) == appended(0)
    assert await scene.outcomes(moved(scene, 10), stays(scene, 10)) == [MOVED_KEY, (BatchOutcome.APPENDED, 10)]
    assert await scene.outcomes(moved(scene, 5)) == [(BatchOutcome.DUPLICATE, 5)], "a duplicate is one in any case"
    assert await scene.read(1) == [(0, 4)]


async def test_a_batch_that_is_sent_back_leaves_its_neighbours_as_they_are(scene: Scene) -> None:
    others = [batch(scene.keys[2], 0), batch(scene.keys[2], 5)]
    assert await scene.outcomes(others[0], moved(scene, 0), others[1]) == [*appended(0), SENT_BACK, *appended(5)]
    assert await scene.read(0) == []
    assert await scene.outcomes(moved(scene, 0), moved(scene, 5)) == appended(0, 5)


async def test_a_child_with_a_wrong_sequence_does_not_switch_its_producer(scene: Scene, raw: Session) -> None:
    child = scene.keys[1]
    assert await scene.outcomes(batch(child, 0)) == [SENT_BACK]
    await move_time(raw, QUIET_MS / 1_000)
    assert await scene.outcomes(batch(child, 7)) == [(BatchOutcome.OUT_OF_ORDER, -1)]
    assert await scene.outcomes(moved(scene, 0)) == appended(0)


async def test_batches_without_a_producer_and_agents_without_knowledge(scene: Scene, raw: Session) -> None:
    parent, child, _ = scene.keys
    assert await scene.outcomes(batch(parent)) == [SENT_BACK], "the agent has not looked at its keys"
    anybodys = batch(parent, keys=int(MovedKeys.MOVED))
    assert await scene.outcomes(anybodys, batch(child)) == appended(0, 0)
    await raw.execute("UPDATE partition_splits SET boundary = 5 WHERE parent_key = %s", (parent,))
    assert await scene.outcomes(anybodys, stays(scene, 0)) == [MOVED_KEY, (BatchOutcome.APPENDED, 5)]


async def test_a_commit_that_does_not_remember_a_switch_is_found(
    scene: Scene, metastore_url: str, raw: Session
) -> None:
    """The planted bug: the commit judges, and notes nothing."""
    plant(metastore_url, "commit_files", "IF v_split IS NOT NULL THEN", "IF false THEN")
    assert await rows(raw, "SELECT count(*) FROM split_producers") == [(0,)]
    with pytest.raises(AssertionError):
        await test_a_producer_moves_from_the_parent_to_the_child(scene, raw)
