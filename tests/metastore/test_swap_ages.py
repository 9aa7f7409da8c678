"""Compaction makes nothing older or younger: retention sees a merged extent as the newest of its inputs.

Records without a timestamp (-1) are the ones at risk: their age is their commit's, and a merged file is
younger than they. As in Kafka: its cleaner keeps the segments' modification time.
"""

from __future__ import annotations

import random
import time

import pytest

from headrace.metastore.api.compaction import NewFile, Swap, SwapInput, SwapOutcome
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.read import Extent, ExtentQuery
from headrace.metastore.api.retention import OldestQuery, OldExtent
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.file_id import born_ms, new_file_id
from tests.metastore.commit_scenes import batch, file_of, open_scene
from tests.metastore.sessions import Session, claim
from tests.model.metastore_model import ModelMetastore
from tests.seeds import seeds

MINUTE_MS = 60_000
EXTENTS = 12


async def _ages(store: PostgresMetastore | ModelMetastore, key: int) -> list[OldExtent]:
    _, (log,) = await (store if isinstance(store, ModelMetastore) else store.retention).oldest_extents(
        [OldestQuery(key, 100)]
    )
    return log.extents


def _swap_of(inputs: list[Extent]) -> Swap:
    return Swap(
        *(inputs[0].partition_key, inputs[0].base_offset, inputs[-1].last_offset, 0),
        sum(extent.length for extent in inputs),
        inputs[0].leader_epoch,
        max(extent.max_timestamp for extent in inputs),
        tuple(SwapInput(extent.last_offset, extent.source) for extent in inputs),
    )


@pytest.mark.parametrize("seed", seeds(range(2), range(2, 8)))
async def test_a_merged_extent_is_as_old_as_the_newest_of_its_inputs(
    metastore: PostgresMetastore, raw: Session, seed: int
) -> None:
    """Merged again and again, with and without timestamps, from the future, the past and none; the model agrees."""
    rng = random.Random(seed)
    now_ms = time.time_ns() // 1_000_000
    scene = await open_scene(metastore)
    (key,) = scene.keys
    model = ModelMetastore(shards=metastore.commit_shards)
    model.register_agent(*scene.agent)
    model.create_topic(scene.topic.topic_number, 1)
    for _ in range(EXTENTS):
        stamp = rng.choice([-1, -1, 0, now_ms - rng.randrange(120) * MINUTE_MS, now_ms + MINUTE_MS])
        file = file_of([batch(key, max_timestamp=stamp)], age_ms=rng.randrange(50) * MINUTE_MS)
        await scene.commit(file)
        await model.commit_files(*scene.agent, [file])
        await raw.execute(
            "UPDATE segment_files SET committed_at = to_timestamp(%s / 1000.0) WHERE file_id = %s",
            (born_ms(file.file_id), file.file_id),
        )
    job = await claim(metastore, "compact", key="ages", lease_ms=MINUTE_MS)
    while True:
        (found,) = await metastore.index.find_extents([ExtentQuery(key, 0, 1 << 40)])
        before = await _ages(metastore, key)
        assert await _ages(model, key) == before
        if len(found.extents) == 1:
            break
        first = rng.randrange(len(found.extents) - 1)
        last = min(first + rng.choice([1, 2, 5]), len(found.extents) - 1)
        await _take_over(metastore, model, job.token, _swap_of(found.extents[first : last + 1]), rng)
        newest = max(old.newest_ms for old in before[first : last + 1])
        assert (await _ages(metastore, key))[first].newest_ms == newest


async def _take_over(
    metastore: PostgresMetastore, model: ModelMetastore, token: JobToken, swap: Swap, rng: random.Random
) -> None:
    """The swap, in both; asked for twice, as after a lost answer."""
    file = NewFile(new_file_id(time.time_ns() // 1_000_000, rng), 1, swap.length, swap.length)
    for _ in range(2):
        assert await metastore.compaction.swap_extents(token, file, [swap]) == [SwapOutcome.DONE]
        assert model.decide_swaps(file.file_id, [swap])[0] == [SwapOutcome.DONE]
