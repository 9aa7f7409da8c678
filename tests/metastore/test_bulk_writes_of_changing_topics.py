"""Bulk writes while the number of partitions changes, and under a name that another write has."""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Awaitable, Callable

import pytest

from headrace.metastore.api.commit import BatchOutcome, BulkDecision, BulkOutcome
from headrace.metastore.api.topics import CountChange, PartitionGrowth
from headrace.metastore.partitions.changes import change_count
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import UnavailableError
from tests.metastore.bulk_scenes import bulk_file
from tests.metastore.commit_scenes import Scene, batch, open_scene
from tests.metastore.sessions import Session, move_time, rows, session
from tests.metastore.sql_sources import plant
from tests.metastore.test_bulk_commit import stage
from tests.metastore.test_doubling_topics import BOUNDARY_QUIET_MS, _controller_epoch, _double, _topic

RECORDS = 7
ONE_MINUTE = 61.0
ANNOUNCED_SECONDS = 120
AS_BEFORE = ("WHERE g.count > t.undeleted_partition_count", "WHERE false")
"""A version that let topics double while a decided write was left; its boundaries wait."""


async def grow(scene: Scene, count: int) -> bool:
    """The same as an agent does, with leader epochs or, below metadata.format 4, without."""
    topic = await _topic(scene)
    change = change_count(topic.ordered_partitions, count)
    assert change is not None
    head = await scene.store.cluster.metadata_head()
    initial = topic.ordered_partitions.initial
    return await scene.store.topics.change_partition_counts(head, [CountChange(topic.topic_id, initial, change)])


async def grow_plainly(scene: Scene, count: int) -> bool:
    growth = PartitionGrowth(scene.topic.topic_id, (await _topic(scene)).undeleted_partition_count, count)
    return await scene.store.topics.create_partitions(await scene.store.cluster.metadata_head(), [growth])


_SEEDS = itertools.count()
Grow = Callable[[Scene, int], Awaitable[bool]]


async def check_growth(scene: Scene, url: str, grows: Grow) -> None:
    store, topic_id = scene.store, scene.topic.topic_id
    layout = {scene.topic.topic_number: 2}
    attempt, late, other = await staged(scene, 0), await staged(scene, 1), await staged(scene, 0, 1)
    assert (await store.commits.decide_bulk_write("spark", 1, attempt, 1, layout)).outcome is BulkOutcome.DECIDED
    with pytest.raises(UnavailableError, match="decided bulk writes are not complete"):
        await grows(scene, 3)
    assert (await store.commits.decide_bulk_write("late", 1, late, 1, layout)).outcome is BulkOutcome.DECIDED
    left = await store.topics.announce_counts([topic_id])
    for known in (layout, {}):
        refused = await store.commits.decide_bulk_write("other", 1, other, 1, known)
        assert (refused.outcome, refused.partition_key) == (BulkOutcome.TOPIC_CHANGES, scene.keys[0])
    assert (left, await store.topics.announce_counts([topic_id])) == (1, 0), (
        "their drivers are gone: any process completes them, one chunk each time"
    )
    async with session(url) as raw:
        await move_time(raw, ANNOUNCED_SECONDS - 1)
        refused = await store.commits.decide_bulk_write("other", 1, other, 1, layout)
        assert refused.outcome is BulkOutcome.TOPIC_CHANGES
        await move_time(raw, ANNOUNCED_SECONDS + 1)
        given_up = await store.commits.decide_bulk_write("third", 1, await staged(scene, 0), 1, layout)
        assert given_up.outcome is BulkOutcome.DECIDED, "nothing has grown for so long"
        assert await store.topics.announce_counts([topic_id]) == 0
        assert await grows(scene, 3)
        assert (
            await store.commits.decide_bulk_write("other", 1, other, 1, layout)
        ).outcome is BulkOutcome.TOPIC_CHANGES
        again = await store.commits.decide_bulk_write("other", 1, other, 1, {scene.topic.topic_number: 3})
        assert again.outcome is BulkOutcome.DECIDED, "nothing is announced any more"
        assert await rows(raw, "SELECT count(*) FROM announced_counts") == [(0,)]
    assert await store.commits.commit_bulk_chunk("other", other, 0) == (1, 1)


@pytest.mark.requirement("X5")
@pytest.mark.parametrize("grows", [grow, grow_plainly])
async def test_a_decided_write_is_complete_before_a_topic_grows(
    metastore: PostgresMetastore, metastore_url: str, grows: Grow
) -> None:
    await check_growth(await open_scene(metastore, 2), metastore_url, grows)


@pytest.mark.parametrize(
    ("function", "right", "wrong"),
    [
        ("change_partition_counts", *AS_BEFORE),
        ("change_partition_counts", "PERFORM forget_announced_counts(p_topic_ids);", ""),
        ("decide_bulk_write", "a.topic_id = p.topic_id AND", "false AND"),
        ("announce_counts", "PERFORM commit_bulk_chunk(", "PERFORM concat("),
        ("announce_counts", "RETURN 120000", "RETURN 12000000000"),
        ("announce_counts", "t.topic_number = key >> 24", "false"),
    ],
)
async def test_a_planted_bug_of_growth_is_caught(
    function: str, right: str, wrong: str, metastore: PostgresMetastore, metastore_url: str
) -> None:
    scene = await open_scene(metastore, 2)
    plant(metastore_url, function, right, wrong)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        await check_growth(scene, metastore_url, grow)


async def test_a_write_that_waits_is_shown(metastore: PostgresMetastore, raw: Session) -> None:
    scene = await open_scene(metastore, 2)
    attempt = await staged(scene, 0)
    assert (await metastore.commits.decide_bulk_write("spark", 1, attempt, 1)).outcome is BulkOutcome.DECIDED
    await move_time(raw, ONE_MINUTE)
    assert await metastore.housekeeping.oldest_bulk_write() >= ONE_MINUTE
    assert await metastore.housekeeping.finish_bulk_writes() == 1
    assert await metastore.housekeeping.oldest_bulk_write() == 0


async def staged(scene: Scene, *places: int) -> uuid.UUID:
    keys, rng = [scene.keys[place] for place in places], random.Random(next(_SEEDS))  # no two ids of a millisecond
    return await stage(scene.store, [bulk_file(await scene.store.commits.database_ms(), rng, keys, records=RECORDS)])


async def set_boundaries(scene: Scene, epoch: int) -> int:
    """The same as the active controller does; how many."""
    splits = await scene.store.topics.quiet_splits(9)
    for split in splits:
        assert await scene.store.topics.set_split_boundary(epoch, await scene.store.cluster.metadata_head(), split)
    return len(splits)


async def check_doubling(scene: Scene, url: str) -> None:
    store, epoch = scene.store, await _controller_epoch(scene)
    number = scene.topic.topic_number
    attempt, late = await staged(scene, 0), await staged(scene, 1)
    assert (await store.commits.decide_bulk_write("spark", 1, attempt, 1, {number: 2})).outcome is BulkOutcome.DECIDED
    with pytest.raises(UnavailableError, match="decided bulk writes are not complete"):
        await _double(scene)
    plant(url, "change_partition_counts", *AS_BEFORE)
    await _double(scene)
    ahead = BOUNDARY_QUIET_MS / 1000
    async with session(url) as raw:
        await move_time(raw, ahead)
        assert await set_boundaries(scene, epoch) == 1, "the parent without the write"
        refused = await store.commits.decide_bulk_write("other", 1, late, 1, {number: 2})
        assert (refused.outcome, refused.partition_key) == (BulkOutcome.TOPIC_CHANGES, scene.keys[1]), "an old layout"
        await move_time(raw, ahead + ONE_MINUTE)
        assert await store.housekeeping.finish_bulk_writes() == 1, "its driver is gone"
        assert await set_boundaries(scene, epoch) == 0, "as after an agent's batch"
        await move_time(raw, 2 * ahead + ONE_MINUTE)
        (split,) = await store.topics.quiet_splits(9)
        assert split.high_watermark == RECORDS, "the write is before the boundary"
        both = await staged(scene, 0, 2)
        refused = await store.commits.decide_bulk_write("third", 1, both, 1, {number: 4})
        assert (refused.outcome, refused.partition_key) == (BulkOutcome.TOPIC_CHANGES, scene.keys[0]), "no boundary yet"
        assert await set_boundaries(scene, epoch) == 1
        await move_time(raw, 2 * ahead + ONE_MINUTE + 1)
        assert (await store.commits.decide_bulk_write("third", 1, both, 1, {number: 4})).outcome is BulkOutcome.DECIDED
        assert await store.commits.commit_bulk_chunk("third", both, 0) == (1, 1)


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
    refused = await metastore.commits.decide_bulk_write("spark", 1, attempt, 1, {scene.topic.topic_number: 1})
    assert refused.outcome is BulkOutcome.TOPIC_CHANGES
    assert (
        await metastore.commits.decide_bulk_write("spark", 1, attempt, 1, {scene.topic.topic_number: 2})
    ).attempt == attempt


async def test_another_topic_under_the_same_name_is_refused(metastore: PostgresMetastore) -> None:
    async def decide(attempt: uuid.UUID, **more: bool) -> BulkDecision:
        return await metastore.commits.decide_bulk_write("write", 0, attempt, 1, **({"is_named": True} | more))

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
    assert await metastore.commits.commit_bulk_chunk("write", attempt, 0) == (1, 1)
    assert (await decide(attempt)).attempt == attempt
    assert await first.outcomes(batch(first.keys[0])) == [(BatchOutcome.APPENDED, RECORDS)]
