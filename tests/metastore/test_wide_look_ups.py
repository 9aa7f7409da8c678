"""Look-ups of many lagging partitions: what one may cost, who gets how much, and whom such look-ups may delay."""

from __future__ import annotations

import asyncio
import random

import pytest

from headrace.metastore.api.commit import BatchOutcome
from headrace.metastore.api.read import ALL_BYTES, EXTENTS_PER_CALL, ExtentQuery
from headrace.metastore.postgres.read import read as module
from headrace.metastore.postgres.store import PostgresMetastore
from tests.metastore.commit_scenes import BATCH_BYTES, Scene, batch, file_of, open_scene
from tests.metastore.sessions import Session, beat, rows, waiting
from tests.model import metastore_model
from tests.model.metastore_model import ModelMetastore
from tests.model.partition_model import ModelPartition
from tests.seeds import seeds

PARTITIONS = 2_000
LAG = 30
FILL = f"""
WITH made AS (
    INSERT INTO extents (partition_key, base_offset, last_offset, file_id, position, length, leader_epoch,
                         max_timestamp)
    SELECT partition_key, n, n, gen_random_uuid(), 0, 1000, 0, 0
      FROM generate_series(0, {LAG} - 1) AS n, partitions ORDER BY n, partition_key
) UPDATE partition_heads SET high_watermark = {LAG}
"""
ROWS_READ = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'extents'"
LOOK_UPS = 24
BLOCKED = """
CREATE OR REPLACE FUNCTION look_up_extents(
    p_keys bigint[], p_offsets bigint[], p_max_bytes bigint[], p_extents int, p_total_bytes bigint
) RETURNS TABLE (
    log_start_offset bigint, high_watermark bigint, extents bytea, first_open_offset bigint, aborted bytea
)
LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(9, 9); END $$
"""


@pytest.mark.requirement("W5")
async def test_a_look_up_of_thousands_of_lagging_partitions_reads_a_bounded_number_of_extents(
    metastore: PostgresMetastore, raw: Session
) -> None:
    scene = await open_scene(metastore, PARTITIONS)
    await raw.execute(FILL.encode())
    await raw.execute("ANALYZE")
    found = await metastore.index.find_extents([ExtentQuery(key, 0, 1 << 20) for key in scene.keys])
    assert {len(answer.extents) for answer in found} == {EXTENTS_PER_CALL // PARTITIONS}, "some have more than others"
    parameters = (scene.keys, [0] * PARTITIONS, [1 << 20] * PARTITIONS, EXTENTS_PER_CALL)
    async with raw.transaction():
        query = "SELECT count(*) FROM look_up_extents(%s::bigint[], %s::bigint[], %s::bigint[], %s, 1::bigint << 62)"
        assert await rows(raw, query, *parameters) == [(PARTITIONS,)]
        ((read,),) = await rows(raw, ROWS_READ)
    assert EXTENTS_PER_CALL <= read <= 2 * EXTENTS_PER_CALL


async def test_bytes_end_a_look_up_once_every_partition_has_an_extent(scene: Scene) -> None:
    for _ in range(6):
        await scene.commit(file_of([batch(key) for key in scene.keys]))
    queries = [ExtentQuery(key, 0, ALL_BYTES) for key in scene.keys]
    for max_bytes, each in ((0, 1), (1, 1), (4 * BATCH_BYTES, 1), (4 * BATCH_BYTES + 1, 2), (ALL_BYTES, 6)):
        found = await scene.store.index.find_extents(queries, max_bytes)
        assert [len(answer.extents) for answer in found] == [each] * 4, max_bytes


@pytest.mark.parametrize("seed", seeds(range(3), range(3, 12)))
async def test_extents_are_shared_as_the_model_shares_them(
    scene: Scene, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some partitions lag far, some a little, some not at all, and one is gone."""
    rng, model = random.Random(seed), ModelMetastore()
    for _ in range(12):
        await scene.commit(file_of([batch(key) for key in scene.keys if rng.random() < 0.6] or [batch(scene.keys[0])]))
    everything = await scene.store.index.find_extents([ExtentQuery(key, 0, ALL_BYTES) for key in scene.keys])
    for answer in everything:
        model.partitions[answer.partition_key] = ModelPartition(
            high_watermark=answer.high_watermark, extents=answer.extents
        )
    for _ in range(20):
        budget = rng.choice((1, 2, 3, 5, 9, 1_000))
        monkeypatch.setattr(module, "EXTENTS_PER_CALL", budget)
        monkeypatch.setattr(metastore_model, "EXTENTS_PER_CALL", budget)
        queries = [
            ExtentQuery(key, rng.randint(0, answer.high_watermark), rng.choice((1, 3 * BATCH_BYTES, ALL_BYTES)))
            for key, answer in zip(scene.keys, everything, strict=True)
        ]
        queries.insert(rng.randint(0, 4), ExtentQuery(99 << 24, 0, 1))
        max_bytes = rng.choice((1, 5 * BATCH_BYTES, ALL_BYTES))
        found = await scene.store.index.find_extents(queries, max_bytes)
        assert found == await model.find_extents(queries, max_bytes), (budget, queries, max_bytes)


@pytest.mark.requirement("X4")
async def test_no_number_of_blocked_look_ups_delays_a_commit_a_heartbeat_or_the_feed(
    scene: Scene, raw: Session
) -> None:
    await raw.execute(BLOCKED.encode())
    await raw.execute("SELECT pg_advisory_lock(9, 9)")
    query = ExtentQuery(scene.keys[0], 0, 1)
    readers = [asyncio.ensure_future(scene.store.index.find_extents([query])) for _ in range(LOOK_UPS)]
    await waiting(raw, scene.store.cluster.settings.metastore_reader_connections)

    (answer,) = await scene.commit(file_of([batch(scene.keys[0])]))
    assert answer.batches[0].outcome is BatchOutcome.APPENDED
    assert not (await beat(scene.store, scene.agent)).is_fenced
    assert (await scene.store.index.poll_feed({})).heads[scene.shard(0)] == 1

    assert not any(reader.done() for reader in readers)
    await raw.execute("SELECT pg_advisory_unlock(9, 9)")
    await asyncio.gather(*readers, return_exceptions=True)


@pytest.fixture
async def scene(metastore: PostgresMetastore) -> Scene:
    """A topic of four partitions."""
    return await open_scene(metastore, partitions=4)
