"""Check where leader epochs end: what find_epoch_ends answers, compared with a model that walks every extent."""

from __future__ import annotations

import random

import pytest

from headrace.metastore.api.read import EpochEnd, EpochQuery, ExtentQuery
from headrace.metastore.postgres.store import PostgresMetastore
from tests.metastore.commit_scenes import Scene, batch, open_scene
from tests.metastore.sessions import Session, delete, rows
from tests.model.metastore_model import ModelMetastore
from tests.model.partition_model import ModelPartition


async def _write(scene: Scene, raw: Session, epochs: list[int], model: ModelPartition) -> None:
    """A batch under each of the epochs, one extent each."""
    for epoch in epochs:
        await raw.execute("UPDATE partitions SET leader_epoch = %s WHERE partition_key = %s", (epoch, scene.keys[0]))
        await scene.outcomes(batch(scene.keys[0], leader_epoch=epoch))
    (found,) = await scene.store.index.find_extents([ExtentQuery(scene.keys[0], 0, 1 << 40)])
    model.extents, model.high_watermark = found.extents, found.high_watermark


@pytest.mark.parametrize("seed", range(3))
async def test_answers_are_the_models(metastore: PostgresMetastore, raw: Session, seed: int) -> None:
    rng = random.Random(seed)
    scene = await open_scene(metastore)
    model = ModelMetastore()
    (key,) = model.create_topic(1, 1)
    partition = model.partitions[key]
    await _write(scene, raw, sorted(rng.choices(range(1, 9), k=12)), partition)
    partition.leader_epoch = rng.randint(partition.extents[-1].leader_epoch, 10)
    partition.log_start_offset = rng.randint(0, 40)
    await raw.execute(
        "UPDATE partitions SET leader_epoch = %s, log_start_offset = %s",
        (partition.leader_epoch, partition.log_start_offset),
    )
    await raw.execute("DELETE FROM extents WHERE last_offset < %s", (partition.log_start_offset,))
    partition.extents = [e for e in partition.extents if e.last_offset >= partition.log_start_offset]
    found = await metastore.index.find_epoch_ends([EpochQuery(scene.keys[0], epoch) for epoch in range(12)])
    assert found == await model.find_epoch_ends([EpochQuery(key, epoch) for epoch in range(12)])


async def test_an_empty_log_and_a_deleted_one(metastore: PostgresMetastore) -> None:
    scene = await open_scene(metastore)
    here = EpochQuery(scene.keys[0], 0)
    assert await metastore.index.find_epoch_ends([here, EpochQuery(here.partition_key, 1)]) == [
        EpochEnd(True, 0, 0),
        EpochEnd(True, -1, -1),
    ]
    await delete(metastore, scene.topic.topic_id)
    assert await metastore.index.find_epoch_ends([here]) == [EpochEnd(False, -1, -1)]
    assert await metastore.index.find_epoch_ends([]) == []


@pytest.mark.own_database
async def test_an_old_epochs_end_is_found_by_index_probes(metastore: PostgresMetastore, raw: Session) -> None:
    scene = await open_scene(metastore)
    await raw.execute(
        "INSERT INTO extents SELECT %s, n * 10 + 9, n * 10, gen_random_uuid(), 0, 1, n / 1000, 0"
        " FROM generate_series(0, 19999) AS n",
        (scene.keys[0],),
    )
    await raw.execute("UPDATE partition_heads SET high_watermark = 200000")
    await raw.execute("UPDATE partitions SET leader_epoch = 20")
    await raw.execute("ANALYZE extents")
    (found,) = await metastore.index.find_epoch_ends([EpochQuery(scene.keys[0], 7)])
    assert found == EpochEnd(True, 7, 80_000)
    look_up = "SELECT find_epoch_end(%s, 7, 0, 200000)"
    await rows(raw, look_up, scene.keys[0])  # the session has its catalogs and plans from now on
    plan = await rows(raw, f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {look_up}", scene.keys[0])
    pages = plan[0][0][0]["Plan"]["Shared Hit Blocks"] + plan[0][0][0]["Plan"]["Shared Read Blocks"]
    assert pages < 120, "log n probes of a few pages each; the table has hundreds"
