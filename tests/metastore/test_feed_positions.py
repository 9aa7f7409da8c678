"""Check which shards of the feed have news for a reader, for any positions: against a model, with planted bugs."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from headrace.metastore.postgres.store import PostgresMetastore
from tests.metastore.commit_scenes import Scene, batch, file_of, open_scene
from tests.metastore.sql_sources import plant

SHARDS = 8
ROUNDS = 40
BEHIND = "WHERE heads[q.shard + 1] > q.seq"
BUGS = {
    "the next shard's head": "WHERE heads[q.shard] > q.seq",
    "one shard at a time": "WHERE heads[q.shard + 1] > q.seq AND q.shard = p_shards[1]",
    "by place, not by number": "WHERE heads[array_position(p_shards, q.shard)] > q.seq",
}
"""Each misses shards with news."""


def _expected(heads: Mapping[int, int], positions: Mapping[int, int]) -> list[tuple[int, int]]:
    """(shard, seq) of every row that a poll returns."""
    return [
        (shard, seq) for shard, position in sorted(positions.items()) for seq in range(position + 1, heads[shard] + 1)
    ]


async def _pages_are_right(scene: Scene, rng: random.Random) -> bool:
    """Return whether every page had the heads, and the rows after each named position."""
    heads = dict.fromkeys(range(SHARDS), 0)
    for _ in range(ROUNDS):
        if rng.random() < 0.5:
            place = rng.randrange(SHARDS)
            await scene.commit(file_of([batch(scene.keys[place])]))
            heads[scene.shard(place)] += 1
        named = rng.sample(range(SHARDS), rng.randint(0, SHARDS))  # in any order
        positions = {shard: rng.randint(0, heads[shard]) for shard in named}
        page = await scene.store.index.poll_feed(positions)
        if page.heads != heads or [(row.shard, row.seq) for row in page.rows] != _expected(heads, positions):
            return False
    return True


@pytest.mark.parametrize("seed", range(3))
async def test_a_poll_returns_the_rows_after_each_named_position(metastore: PostgresMetastore, seed: int) -> None:
    scene = await open_scene(metastore, partitions=SHARDS)
    assert await _pages_are_right(scene, random.Random(seed))


@pytest.mark.parametrize("bug", BUGS)
async def test_planted_bugs_are_found(metastore: PostgresMetastore, metastore_url: str, bug: str) -> None:
    plant(metastore_url, "poll_feed", BEHIND, BUGS[bug])
    scene = await open_scene(metastore, partitions=SHARDS)
    assert not await _pages_are_right(scene, random.Random(1))
