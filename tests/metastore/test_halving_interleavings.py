"""Races of clients, groups and a controller while a topic halves on real Postgres; and planted bugs."""

from __future__ import annotations

import pytest

from headrace.metastore.postgres.store import PostgresMetastore
from tests.metastore.halving_interleavings import HalvingHistory, OutOfOrder
from tests.metastore.halving_scenes import open_halving_scene
from tests.metastore.sessions import session
from tests.metastore.sql_sources import source_of

pytestmark = pytest.mark.requirement("X5")
PLANTED = {
    "a merge that asks no group": ("merge_children", "WHERE g.lag > 0)", "WHERE false)"),
    "an alias that takes records itself": (
        "judge_merges",
        "IN (merge_merged(), merge_settled())\n                           OR",
        "IN (merge_settled()) OR",
    ),
    "duplicates by the parent's producer states": (
        "judge_batches",
        "coalesce(array_position(p_part_key, alias_key(p_part_key[part], count)), part)",
        "part",
    ),
    "moved keys at once": ("judge_merges", ">= b.producer_quiet_ms", ">= 0"),
    "a producer that is unknown need not wait": ("judge_merges", "coalesce(k.child_ms, p_now_ms)", "0"),
    "a halving that is settled at once": ("halve_topic", "wall_ms() - shown_ms >= settle_after_ms", "true"),
}
EVERYDAY = ("a merge that asks no group", "duplicates by the parent's producer states")


async def _run(store: PostgresMetastore, url: str, seed: int) -> HalvingHistory:
    async with session(url) as raw:
        scene = await open_halving_scene(store, raw)
        await scene.later(0)
        await scene.double()
        history = HalvingHistory(url, scene, seed)
        await history.run()
        return history


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
async def test_the_order_is_kept_in_every_race(metastore: PostgresMetastore, metastore_url: str, seed: int) -> None:
    history = await _run(metastore, metastore_url, seed)
    logs = {log for placed in history.placed.values() for log, _ in placed.values()}
    assert logs == {0, 1}, "records in the child, and in the parent"


@pytest.mark.parametrize(
    "bug", [pytest.param(bug, marks=() if bug in EVERYDAY else pytest.mark.slow) for bug in PLANTED]
)
async def test_planted_bugs_are_caught(metastore: PostgresMetastore, metastore_url: str, bug: str) -> None:
    name, old, new = PLANTED[bug]
    source = source_of(name)
    assert source.count(old) == 1
    async with session(metastore_url) as raw:
        await raw.execute(source.replace(old, new).encode())

    async def run_many() -> None:
        for seed in range(12):
            await _run(metastore, metastore_url, seed)

    with pytest.raises(OutOfOrder):
        await run_many()
