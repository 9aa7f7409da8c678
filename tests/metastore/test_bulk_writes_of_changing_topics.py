"""Bulk writes while the number of partitions changes, and under a name that another write has."""

from __future__ import annotations

import random
import uuid

import pytest

from headrace.metastore.api.bulk import BulkDecision, BulkOutcome
from headrace.metastore.api.commit import BatchOutcome
from headrace.metastore.postgres.store import PostgresMetastore
from tests.metastore.bulk_scenes import bulk_file
from tests.metastore.commit_scenes import Scene, batch, open_scene
from tests.metastore.sessions import move_time, session
from tests.metastore.sql_sources import plant
from tests.metastore.test_bulk_commit import stage
from tests.metastore.test_doubling_topics import BOUNDARY_QUIET_MS, _controller_epoch, _double

RECORDS = 7
ONE_MINUTE = 61.0


async def staged(scene: Scene, *places: int) -> uuid.UUID:
    keys = [scene.keys[place] for place in places]
    return await stage(
        scene.store, [bulk_file(await scene.store.database_ms(), random.Random(1), keys, records=RECORDS)]
    )


async def set_boundaries(scene: Scene, epoch: int) -> int:
    """As the active controller does; how many."""
    splits = await scene.store.quiet_splits(9)
    for split in splits:
        assert await scene.store.set_split_boundary(epoch, await scene.store.metadata_head(), split)
    return len(splits)


async def check_doubling(scene: Scene, url: str) -> None:
    store, epoch = scene.store, await _controller_epoch(scene)
    number = scene.topic.topic_number
    attempt, late = await staged(scene, 0), await staged(scene, 1)
    assert (await store.decide_bulk_write("spark", 1, attempt, 1, {number: 2})).outcome is BulkOutcome.DECIDED
    await _double(scene)
    ahead = BOUNDARY_QUIET_MS / 1000
    async with session(url) as raw:
        await move_time(raw, ahead)
        assert await set_boundaries(scene, epoch) == 1, "the parent without the write"
        refused = await store.decide_bulk_write("other", 1, late, 1, {number: 2})
        assert (refused.outcome, refused.partition_key) == (BulkOutcome.TOPIC_CHANGES, scene.keys[1]), "an old layout"
        await move_time(raw, ahead + ONE_MINUTE)
        assert await store.finish_bulk_writes() == 1, "its driver is gone"
        assert await set_boundaries(scene, epoch) == 0, "as after an agent's batch"
        await move_time(raw, 2 * ahead + ONE_MINUTE)
        (split,) = await store.quiet_splits(9)
        assert split.high_watermark == RECORDS, "the write is before the boundary"
        both = await staged(scene, 0, 2)
        refused = await store.decide_bulk_write("third", 1, both, 1, {number: 4})
        assert (refused.outcome, refused.partition_key) == (BulkOutcome.TOPIC_CHANGES, scene.keys[0]), "no boundary yet"
        assert await set_boundaries(scene, epoch) == 1
        await move_time(raw, 2 * ahead + ONE_MINUTE + 1)
        assert (await store.decide_bulk_write("third", 1, both, 1, {number: 4})).outcome is BulkOutcome.DECIDED
        assert await store.commit_bulk_chunk("third", both, 0) == (1, 1)


@pytest.mark.requirement("X5")
async def test_a_decided_write_comes_before_the_boundary(metastore: PostgresMetastore, metastore_url: str) -> None:
    await check_doubling(await open_scene(metastore, 2), metastore_url)


@pytest.mark.parametrize(
    ("function", "right", "wrong"),
    [
        ("double_topic", "AND NOT awaits_bulk_write(s.parent_key)", ""),
        ("commit_bulk_chunk", "s.boundary IS NULL AND s.parent_key", "false AND s.parent_key"),
        (
            "decide_bulk_write",
            "t.undeleted_partition_count = p_counts[array_position(p_topics, t.topic_number)]",
            "true",
        ),
        ("decide_bulk_write", "                                  AND s.boundary IS NOT NULL", ""),
    ],
)
async def test_a_planted_bug_is_caught(
    function: str, right: str, wrong: str, metastore: PostgresMetastore, metastore_url: str
) -> None:
    scene = await open_scene(metastore, 2)
    plant(metastore_url, function, right, wrong)
    with pytest.raises(AssertionError):
        await check_doubling(scene, metastore_url)


@pytest.mark.requirement("X5")
async def test_a_write_that_was_laid_out_before_a_topic_grew_is_refused(metastore: PostgresMetastore) -> None:
    scene = await open_scene(metastore, 2)
    attempt = await staged(scene, 0, 1)
    refused = await metastore.decide_bulk_write("spark", 1, attempt, 1, {scene.topic.topic_number: 1})
    assert refused.outcome is BulkOutcome.TOPIC_CHANGES
    assert (await metastore.decide_bulk_write("spark", 1, attempt, 1, {scene.topic.topic_number: 2})).attempt == attempt


async def test_another_topic_under_the_same_name_is_refused(metastore: PostgresMetastore) -> None:
    async def decide(attempt: uuid.UUID, **more: bool) -> BulkDecision:
        return await metastore.decide_bulk_write("write", 0, attempt, 1, **({"is_named": True} | more))

    first, second = [await open_scene(metastore, 1) for _ in range(2)]
    attempt = await staged(first, 0)
    assert (await decide(attempt)).outcome is BulkOutcome.DECIDED
    other = await staged(second, 0)
    for _ in range(2):
        refused = await decide(other)
        assert (refused.outcome, refused.partition_key) == (BulkOutcome.OTHER_TOPIC, second.keys[0])
    assert (await decide(other, is_named=False)).attempt == attempt, "a rerun of a query may have other rows"
    again = await staged(first, 0)
    for _ in range(2):
        assert (await decide(again)).attempt == attempt, "a rerun"
    assert await metastore.commit_bulk_chunk("write", attempt, 0) == (1, 1)
    assert (await decide(attempt)).attempt == attempt
    assert await first.outcomes(batch(first.keys[0])) == [(BatchOutcome.APPENDED, RECORDS)]
