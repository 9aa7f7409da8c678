"""Producer ids and the state of producers: leased once, joined when old, forgotten by the cluster's value."""

from __future__ import annotations

import pytest

from headrace.metastore.api.commit import BatchOutcome
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import InvalidError
from tests.metastore.commit_scenes import Scene, appended, batch, file_of, open_scene
from tests.metastore.sessions import Session, move_time, rows, set_for_cluster
from tests.metastore.test_commit import AGED, HOUR_MS


@pytest.fixture
async def scene(metastore: PostgresMetastore) -> Scene:
    """A topic of one partition."""
    return await open_scene(metastore, partitions=1)


async def test_producer_ids_are_leased_once(scene: Scene) -> None:
    blocks = [await scene.store.commits.allocate_producer_ids(count) for count in (1, 1_000, 5)]
    ids = [producer_id for block in blocks for producer_id in block]
    assert ids[0] == 1_000
    assert len(set(ids)) == 1_006
    for count in (0, 1_000_001):
        with pytest.raises(InvalidError):
            await scene.store.commits.allocate_producer_ids(count)


async def test_old_blocks_of_ids_are_joined_and_no_id_is_judged_otherwise(scene: Scene, raw: Session) -> None:
    """Blocks of ten ids: old ones, a gap, old ones, one that may still be in use, an old one behind it, young ones."""
    ages = [72.0, 30.0, 25.0, None, 50.0, 49.0, 24.2, 48.0, 23.0, 0.0]
    judged = "SELECT id FROM generate_series(1, 120) AS id WHERE state_may_have_expired(%s, id, %s)"
    await raw.execute(AGED, [scene.keys[0]])
    for number, hours in enumerate(ages):
        if hours is not None:
            block = (10 * number + 1, 10 * number + 10, hours)
            insert = "INSERT INTO producer_id_blocks VALUES (%s, %s, clock_timestamp() - %s * interval '1 hour')"
            await raw.execute(insert, block)
    before = [await rows(raw, judged, scene.keys[0], hours * HOUR_MS) for hours in (24, 26, 71)]
    assert [await scene.store.housekeeping.merge_producer_id_blocks(2) for _ in range(3)] == [1, 1, 0]
    assert [await scene.store.housekeeping.merge_producer_id_blocks(100) for _ in range(2)] == [1, 0]
    blocks = await rows(raw, "SELECT first_id, last_id FROM producer_id_blocks ORDER BY first_id")
    assert blocks == [(1, 30), (41, 60), (61, 70), (71, 80), (81, 90), (91, 100)]
    after = [await rows(raw, judged, scene.keys[0], hours * HOUR_MS) for hours in (24, 26, 71)]
    assert after[0] == before[0]
    assert set(after[1]) <= set(before[1]), "a longer expiration: never older than before"
    assert set(after[2]) <= set(before[2])
    (first, *_) = await scene.store.commits.allocate_producer_ids(10)
    assert first == 101


async def test_expired_producers_are_forgotten_in_chunks_and_others_are_not(scene: Scene, raw: Session) -> None:
    key = scene.keys[0]
    await scene.outcomes(*(batch(key, 0, producer=producer) for producer in range(1_000, 1_005)))
    await move_time(raw, 26 * 3_600)
    await scene.commit(file_of([batch(key, 5, producer=1_002)], age_ms=-26 * HOUR_MS))
    assert [await scene.store.housekeeping.expire_producer_state(3) for _ in range(3)] == [3, 1, 0]
    assert await rows(raw, "SELECT producer_id FROM producer_state") == [(1_002,)]


async def test_producers_expire_by_the_clusters_value(scene: Scene, raw: Session) -> None:
    """The calling process has 24 hours in its file."""
    key = scene.keys[0]
    await scene.outcomes(batch(key, 0, producer=1_000))
    await move_time(raw, 26 * 3_600)
    for value, expired in ((30 * HOUR_MS, 0), (2**63 - 1, 0), (2 * HOUR_MS, 1)):
        await set_for_cluster(scene.store, "producer.id.expiration.ms", value)
        assert await scene.store.housekeeping.expire_producer_state(10) == expired


async def test_who_may_start_above_zero_depends_on_the_clusters_value(scene: Scene, raw: Session) -> None:
    key = scene.keys[0]
    await raw.execute("INSERT INTO producer_id_blocks VALUES (1, 9, clock_timestamp() - interval '2 days')")
    await raw.execute(AGED, [key])
    await set_for_cluster(scene.store, "producer.id.expiration.ms", 72 * HOUR_MS)
    assert await scene.outcomes(batch(key, 5, producer=9)) == [(BatchOutcome.OUT_OF_ORDER, -1)]
    await set_for_cluster(scene.store, "producer.id.expiration.ms", 47 * HOUR_MS)
    assert await scene.outcomes(batch(key, 5, producer=9)) == appended(0)
