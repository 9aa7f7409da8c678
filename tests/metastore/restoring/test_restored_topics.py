"""A topic that was deleted by mistake comes back as it was; what cannot come back is refused with its reason."""

from __future__ import annotations

import pytest

from headrace.metastore.api.commit import BatchOutcome
from headrace.metastore.api.housekeeping import HousekeepingApi
from headrace.metastore.api.restoring import RestoreOutcome
from headrace.metastore.api.transactions import TransactionVerdict
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.transaction_markers import Marker
from headrace.storage.errors import AlreadyExistsError, NotFoundError
from tests.metastore.commit_scenes import Scene, appended, batch, open_scene
from tests.metastore.restoring.restore_scenes import (
    DELAY,
    HOUR_MS,
    delete_and_purge,
    delete_restorably,
    keep_files,
    nothing_is_left,
    purge,
    restore,
    rows_of,
)
from tests.metastore.sessions import Session, create, delete, move_time, new_topic, rows, set_for_cluster
from tests.metastore.transactions.transaction_scenes import (
    RECORDS,
    Producer,
    aborts,
    claimed_group,
    log_of,
    open_transactions,
    position,
    read,
)

DONE = TransactionVerdict.DONE


@pytest.fixture
async def scene(metastore: PostgresMetastore) -> Scene:
    """The topic of each test."""
    return await filled_scene(metastore)


async def filled_scene(metastore: PostgresMetastore) -> Scene:
    """A topic of three partitions with records of two producers, and a group's offsets."""
    scene = await open_scene(metastore, partitions=3)
    await keep_files(scene)
    for sequence in range(0, 40, 5):
        await scene.outcomes(batch(scene.keys[0], sequence), batch(scene.keys[1], sequence, producer=2_000))
    epoch = await claimed_group(scene, "readers")
    await metastore.groups.commit_offsets("readers", epoch, [position(scene.keys[0], 12), position(scene.keys[2], 0)])
    return scene


@pytest.mark.parametrize(
    "is_purged",
    [pytest.param(False, marks=pytest.mark.slow), True],
    ids=["before housekeeping", "after housekeeping"],
)
async def test_a_restored_topic_is_what_was_deleted(scene: Scene, raw: Session, is_purged: bool) -> None:
    before, log = await rows_of(raw, scene), await scene.read()
    old = (await load_image(scene.store.cluster)).topics_by_id[scene.topic.topic_id]
    await delete_restorably(scene)
    if is_purged:
        await purge(scene)
        assert await rows(raw, "SELECT FROM extents") == []
        assert await rows(raw, "SELECT FROM segment_files WHERE dead_at IS NULL") == []
    assert scene.topic.topic_id not in (await load_image(scene.store.cluster)).topics_by_id
    await restore(scene)
    assert await rows_of(raw, scene) == before
    assert await scene.read() == log
    await nothing_is_left(raw, scene)
    assert scene.topic.topic_number == old.topic_number
    assert [new - before for new, before in zip(scene.topic.leader_epochs, old.leader_epochs, strict=True)] == [1] * 3
    stored = await rows(raw, "SELECT leader_epoch FROM partitions ORDER BY partition_key")
    assert [epoch for (epoch,) in stored] == list(scene.topic.leader_epochs)


async def test_producers_and_groups_go_on(scene: Scene) -> None:
    """No duplicate and no gap: the state of producers stays under the key."""
    await delete_and_purge(scene)
    await restore(scene)
    (found,) = await scene.store.groups.fetch_offsets("readers", scene.keys[:1])
    assert (found.partition_key, found.offset) == (scene.keys[0], 12)
    assert await scene.outcomes(batch(scene.keys[0], 35), batch(scene.keys[0], 45)) == [
        (BatchOutcome.DUPLICATE, 35),
        (BatchOutcome.OUT_OF_ORDER, -1),
    ]
    assert await scene.outcomes(batch(scene.keys[0], 40)) == appended(40)


async def test_it_comes_back_under_another_name(scene: Scene, raw: Session) -> None:
    await delete_restorably(scene)
    await create(scene.store, new_topic(scene.topic.name))
    with pytest.raises(AlreadyExistsError, match="a topic of this name exists"):
        await restore(scene)
    assert scene.topic.topic_id not in (await load_image(scene.store.cluster)).topics_by_id
    await restore(scene, "second-chance")
    assert scene.topic.name == "second-chance"
    assert await rows(raw, "SELECT name FROM topics WHERE topic_id = %s", scene.topic.topic_id) == [("second-chance",)]


@pytest.mark.slow
async def test_it_can_be_deleted_and_restored_again(scene: Scene, raw: Session) -> None:
    before = await rows_of(raw, scene)
    for _ in range(2):
        await delete_and_purge(scene)
        await restore(scene)
    assert await rows_of(raw, scene) == before
    assert set(scene.topic.leader_epochs) == {2}


async def test_after_the_delay_nothing_is_kept(scene: Scene, raw: Session) -> None:
    await delete_and_purge(scene)
    (kept,) = await scene.store.topics.restorable_topics()
    assert (kept.until_ms, kept.record_count, kept.size_bytes) == (kept.deleted_ms + HOUR_MS, 80, 1_600)
    await move_time(raw, HOUR_MS / 1000 + 60)
    assert (await scene.store.topics.revive_topic(kept.topic_number, limit=10)).outcome is RestoreOutcome.GONE
    with pytest.raises(NotFoundError, match="its records are being removed"):
        await restore(scene)
    await purge(scene)
    left = "SELECT FROM removed_extents UNION ALL SELECT FROM deleted_topic_rows UNION ALL SELECT FROM time_blocks"
    assert await rows(raw, left) == []
    with pytest.raises(NotFoundError, match="no deleted topic of this name"):
        await restore(scene)


@pytest.mark.parametrize("value", [0, None], ids=["files are deleted at once", "no delay is known"])
async def test_the_clusters_delay_decides(scene: Scene, value: int | None) -> None:
    """Without a value no file is deleted, so a topic can be restored until there is one."""
    await set_for_cluster(scene.store, DELAY, value)
    await delete_and_purge(scene)
    assert [topic.until_ms for topic in await scene.store.topics.restorable_topics()] == ([] if value == 0 else [None])


@pytest.mark.slow
async def test_another_life_restores_nothing(scene: Scene, raw: Session) -> None:
    await delete_restorably(scene)
    await raw.execute("UPDATE restorable_topics SET life = life - 1")
    with pytest.raises(NotFoundError, match="before the last promotion or restore of Postgres"):
        await restore(scene)
    await purge(scene)
    assert await scene.store.topics.restorable_topics() == []


async def test_a_topic_that_an_earlier_agent_deleted_is_removed_at_once(scene: Scene, raw: Session) -> None:
    await delete(scene.store, scene.topic.topic_id)
    await purge(scene)
    assert await rows(raw, "SELECT FROM removed_extents UNION ALL SELECT FROM deleted_partitions") == []


async def test_a_file_that_is_being_deleted_stops_the_restore(scene: Scene, raw: Session) -> None:
    """And nothing of the topic is seen; what was put back is removed again a minute later."""
    await delete_and_purge(scene)
    await raw.execute(
        "UPDATE segment_files SET state = 2 WHERE file_id IN (SELECT file_id FROM removed_extents LIMIT 1)"
    )
    with pytest.raises(NotFoundError, match="some of its files are deleted already"):
        await restore(scene)
    await move_time(raw, 61)
    await purge(scene)
    assert await rows(raw, "SELECT FROM extents") == []


async def test_an_abandoned_restore_is_removed_again(scene: Scene, raw: Session) -> None:
    before = await rows_of(raw, scene)
    await delete_and_purge(scene)
    emptied = await rows_of(raw, scene)
    assert (
        await scene.store.topics.revive_topic(scene.topic.topic_number, limit=3)
    ).outcome is RestoreOutcome.UNFINISHED
    assert await scene.store.housekeeping.purge_deleted_partitions(10) == 0, "not within a minute"
    assert len(await rows(raw, "SELECT FROM extents")) == 3
    await move_time(raw, 61)
    await purge(scene)
    again = await rows_of(raw, scene)
    assert (again["extents"], [row[:3] for row in again["files"]]) == (
        emptied["extents"],
        [row[:3] for row in emptied["files"]],
    )
    await restore(scene)
    assert await rows_of(raw, scene) == before


async def test_a_repeated_call_does_nothing(scene: Scene) -> None:
    """Its answer may have been lost."""
    await delete_restorably(scene)
    (kept,) = await scene.store.topics.restorable_topics()
    await restore(scene)
    head = await scene.store.cluster.metadata_head()
    again = await scene.store.topics.restore_topic(head - 1, kept.topic_number, kept.name, [], {})
    assert again is RestoreOutcome.HEAD_MOVED
    assert await scene.store.topics.restore_topic(head, kept.topic_number, "x", [], {}) is RestoreOutcome.GONE
    assert await scene.store.cluster.metadata_head() == head


@pytest.mark.slow
async def test_it_does_not_appear_before_all_of_it_is_back(scene: Scene) -> None:
    await delete_and_purge(scene)
    (kept,) = await scene.store.topics.restorable_topics()
    await scene.store.topics.revive_topic(kept.topic_number, limit=3)
    head = await scene.store.cluster.metadata_head()
    found = await scene.store.topics.restore_topic(head, kept.topic_number, kept.name, [], {})
    assert found is RestoreOutcome.UNFINISHED
    assert await scene.store.cluster.metadata_head() == head


@pytest.mark.slow
async def test_a_group_that_is_gone_comes_back_with_its_offsets(scene: Scene, raw: Session) -> None:
    await delete_restorably(scene)
    await raw.execute("DELETE FROM consumer_groups")
    await restore(scene)
    assert await claimed_group(scene, "readers") > 0
    (found,) = await scene.store.groups.fetch_offsets("readers", scene.keys[:1])
    assert (found.partition_key, found.offset) == (scene.keys[0], 12)


class TestTransactions:
    """What was open at the deletion is never shown to read_committed before its end."""

    @pytest.fixture
    async def producer(self, metastore: PostgresMetastore) -> Producer:
        """One with an open transaction in partition 0 of two."""
        producer = await open_transactions(metastore, 2)
        await keep_files(producer.scene)
        await producer.send(0)
        return producer

    @pytest.mark.parametrize("commits", [True, pytest.param(False, marks=pytest.mark.slow)])
    async def test_one_that_is_open_still_goes_on(self, producer: Producer, commits: bool) -> None:
        scene = producer.scene
        await delete_and_purge(scene)
        await restore(scene)
        assert (await read(scene)).first_open_offset == 0
        begun = producer.who
        assert await producer.send(0) == appended(RECORDS)
        assert await producer.end(commits=commits) is DONE
        assert await log_of(scene) == ["data", "data", Marker(begun.producer_id, begun.epoch + 1, commits)]
        assert aborts(await read(scene)) == ([] if commits else [(begun.producer_id, 0, 2 * RECORDS)])

    @pytest.mark.parametrize("commits", [True, pytest.param(False, marks=pytest.mark.slow)])
    async def test_one_that_has_ended_is_aborted(self, producer: Producer, commits: bool, raw: Session) -> None:
        scene, begun = producer.scene, producer.who
        await delete_and_purge(scene)
        await producer.end(commits=commits)
        await restore(scene)
        found = await read(scene)
        assert aborts(found) == [(begun.producer_id, 0, RECORDS)]
        assert (found.last_stable_offset, found.high_watermark) == (RECORDS + 1, RECORDS + 1)
        assert await log_of(scene) == ["data", Marker(begun.producer_id, begun.epoch + 1, False)]
        assert await rows(raw, "SELECT marker_offset, commits FROM transaction_outcomes") == [(RECORDS, False)]
        await producer.send(0)
        assert await producer.end() is DONE
        assert aborts(await read(scene)) == [(begun.producer_id, 0, RECORDS)]
        await nothing_is_left(raw, scene)

    @pytest.mark.slow
    async def test_several_end_one_after_the_other(self, producer: Producer) -> None:
        """One of them goes on: until its end nothing behind its first record is stable."""
        scene = producer.scene
        others = [Producer(scene, f"other-{n}") for n in range(3)]
        for other in others:
            await other.init()
            await other.send(0)
        await delete_restorably(scene)
        for ended in (producer, others[2]):
            await ended.end()
        await others[0].end(commits=False)
        await restore(scene)
        found = await read(scene)
        assert found.first_open_offset == 2 * RECORDS
        assert [first for _, first, _ in aborts(found)] == [0, RECORDS, 3 * RECORDS]
        assert await others[1].end() is DONE
        assert (await read(scene)).last_stable_offset == 4 * RECORDS + 4

    async def test_one_that_was_aborted_before_stays_so(self, producer: Producer) -> None:
        await producer.end(commits=False)
        before = await read(producer.scene)
        await delete_and_purge(producer.scene)
        await restore(producer.scene)
        assert await read(producer.scene) == before


def test_housekeeping_has_both_steps() -> None:
    assert {"purge_deleted_partitions", "prune_removed_extents"} <= set(vars(HousekeepingApi))
