"""The index is rebuilt from the bucket directly after a cleaning: nothing comes back, and markers stay."""

from __future__ import annotations

import pytest

from headrace.metastore.api.cleaning import CleaningQuery
from tests.compactor.cleaning.test_guarantees import EAGER, rolled
from tests.compactor.cleaning.world import CleaningWorld
from tests.compactor.test_rebuild import Lost, lost, read_all  # noqa: F401 -- the fixture


@pytest.mark.requirement("L2", "L6")
async def test_a_rebuild_brings_nothing_back(world: CleaningWorld, lost: Lost) -> None:  # noqa: F811
    """All old files are still there: flushed ones, those of each merge, and those of the pass before."""
    (key,) = await world.topic("t", 1, **EAGER, delete_retention_ms=str(1_000_000_000))
    await world.send(key, ("a", "1"), ("b", "1"), ("c", "1"))
    await world.send(key, ("a", None), ("b", "2"))
    await world.send(key, ("d", "1"))
    await rolled(world, key)
    await world.clean()
    await world.send(key, ("c", "2"), ("d", "2"))
    await world.send(key, ("e", "1"))
    await rolled(world, key)
    await world.clean()
    await world.send(key, ("f", "1"))
    kept = [(3, "a", None), (4, "b", "2"), (6, "c", "2"), (7, "d", "2"), (8, "e", "1"), (9, "f", "1")]
    assert await world.seen(key) == kept
    found = await lost.rebuild()
    again = await lost.keys()
    read = await read_all(world, lost.metastore, again[0])
    assert [(r.offset, r.value.decode() or None) for r in read] == [(offset, value) for offset, _, value in kept]
    assert (found.guessed_records, len(again)) == (1, 1), "f=1 is in no merged file yet"
    state = await lost.metastore.cleaning.describe_cleaning([CleaningQuery(again[0], 0)])
    assert state[1][0].cleaned_offset == 0
