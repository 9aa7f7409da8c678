"""What compaction asks costs what it gets: pages touched, with little and with 50 times the files and extents."""

from __future__ import annotations

import random
import time
import uuid

from headrace.metastore.api.commit import FileCommit, StagedBatch
from headrace.metastore.api.compaction import NewFile, Swap, SwapInput, SwapOutcome
from headrace.metastore.api.read import ExtentQuery
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.file_id import new_file_id
from tests.metastore.commit_scenes import Scene, batch, open_scene
from tests.metastore.sessions import claim, session
from tests.metastore.test_commit_cost import DEEPER_PAGES, pages

__all__ = ["pages"]

SHALLOW_FILES, DEEP_FILES = 10, 500
PARTITIONS = 4
rng = random.Random(3)


async def commit(scene: Scene, files: int) -> list[uuid.UUID]:
    """So many files, each with a batch of every partition."""
    ids = []
    for start in range(0, files, 50):
        made = []
        for _ in range(min(50, files - start)):
            placed: list[StagedBatch] = [batch(key, place=place) for place, key in enumerate(scene.keys)]
            made.append(FileCommit(new_file_id(time.time_ns() // 1_000_000, rng), 1_000, placed))
        await scene.commit(*made)
        ids += [file.file_id for file in made]
    return ids


async def costs(scene: Scene, url: str, pages: dict[str, int]) -> dict[str, int]:
    """Return the costs of one plan, one look at three files, and one swap of them."""
    store = scene.store
    last = (await commit(scene, 3))[-3:]
    async with session(url) as raw:
        await raw.execute("VACUUM ANALYZE extents, segment_files, partitions")
    job = await claim(store, "compact", key=str(uuid.uuid4()))
    await store.compaction.waiting_files(uuid.UUID(int=0), 5)
    live = await store.compaction.live_extents(last)
    swaps = [
        Swap(
            part.partition_key,
            part.extents[0].base_offset,
            part.extents[-1].last_offset,
            16,
            300,
            0,
            1_000,
            tuple(SwapInput(extent.last_offset, extent.source) for extent in part.extents),
        )
        for part in live.partitions
    ]
    file = NewFile(new_file_id(live.wall_ms, rng), 1, 2_000, 1_200)
    assert await store.compaction.swap_extents(job.token, file, swaps) == [SwapOutcome.DONE] * PARTITIONS
    await store.jobs.finish_job(job.token)
    return {name: pages[name] for name in ("waiting_files", "find_mergeable_extents", "swap_extents")}


async def test_a_plan_a_look_and_a_swap_cost_the_same_in_any_history(
    metastore: PostgresMetastore, metastore_url: str, pages: dict[str, int]
) -> None:
    scene = await open_scene(metastore, PARTITIONS)
    await commit(scene, SHALLOW_FILES)
    shallow = await costs(scene, metastore_url, pages)
    await commit(scene, DEEP_FILES)
    deep = await costs(scene, metastore_url, pages)
    print(f"pages: {shallow} -> {deep}")
    inputs = 3 * PARTITIONS
    assert deep["waiting_files"] <= shallow["waiting_files"] + DEEPER_PAGES
    assert deep["find_mergeable_extents"] <= shallow["find_mergeable_extents"] + inputs
    assert deep["swap_extents"] <= shallow["swap_extents"] + 4 * inputs
    (found,) = await metastore.index.find_extents([ExtentQuery(scene.keys[0], 0, 1 << 40)])
    assert found.extents[-1].base_offset < found.extents[-1].last_offset
