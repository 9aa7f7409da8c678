"""Races of clients, groups and a controller while a topic halves on real Postgres; and planted bugs."""

from __future__ import annotations

import pytest

from headrace.metastore.postgres.store import PostgresMetastore
from tests.metastore.halving_interleavings import HalvingHistory, OutOfOrder
from tests.metastore.halving_scenes import open_halving_scene
from tests.metastore.lock_gates import Sessions
from tests.metastore.sessions import session
from tests.metastore.sql_sources import Throwaway
from tests.planted import PlantedBugs, Trial
from tests.seeds import seeds

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
        "coalesce(array_position(p_part_key, key_of_alias(p_part_key[part], alias)), part)",
        "part",
    ),
    "moved keys at once": ("judge_merges", ">= b.producer_quiet_ms", ">= 0"),
    "a producer that is unknown need not wait": ("judge_merges", "coalesce(k.child_ms, p_now_ms)", "0"),
    "a halving that is settled at once": ("halve_topic", "wall_ms() - shown_ms >= settle_after_ms", "true"),
}
BUGS = PlantedBugs("interleavings of a halving", most=40, is_race=True)


async def _run(url: str, store: PostgresMetastore, seed: int) -> HalvingHistory:
    async with session(url) as raw, Sessions(url) as sessions:
        scene = await open_halving_scene(store, raw)
        await scene.later(0)
        await scene.double()
        history = HalvingHistory(sessions, scene, seed)
        await history.run()
        return history


@pytest.mark.parametrize("seed", seeds([0], range(1, 6)))
async def test_the_order_is_kept_in_every_race(metastore: PostgresMetastore, metastore_url: str, seed: int) -> None:
    history = await _run(metastore_url, metastore, seed)
    logs = {log for placed in history.placed.values() for log, _ in placed.values()}
    assert logs == {0, 1}, "records in the child, and in the parent"


@BUGS.cases(PLANTED)
async def test_planted_bugs_are_caught(bug: str, trial: Trial, throwaway: Throwaway) -> None:
    function, *texts = PLANTED[bug]
    await throwaway.look_for(trial, function, [texts], _run, OutOfOrder)
