"""A cleaning worker is stopped at any call past its lease, another one does its job, and then it continues: no harm.

Fault model: as in tests/compactor/test_pauses.py.
"""

from __future__ import annotations

import pytest

from headrace.jobs.kinds import CLEAN
from headrace.jobs.lease import Lease
from tests.compactor.cleaning.test_guarantees import EAGER, rolled
from tests.compactor.cleaning.world import CleaningWorld
from tests.compactor.janitor_world import PausingWire
from tests.compactor.test_compact_faults import check_objects
from tests.compactor.test_pauses import paused

YEAR_MS = 365 * 24 * 3_600_000
LEFT = [(6, "a", "3"), (7, "b", "3"), (9, "gone", None)]
SMALL = {"extent_bytes": 100, "file_bytes": 100}
"""A file for each extent."""


async def claimed(world: CleaningWorld, lease_ms: int) -> Lease:
    job = await world.postgres.jobs.claim_job("test", [CLEAN.name], lease_ms)
    assert job is not None
    return world.lease(job, lease_ms=lease_ms)


@pytest.mark.requirement("L2", "L3", "L6")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_pass(world: CleaningWorld, after: bool) -> None:
    step, was_stopped = 0, True
    while was_stopped:
        step += 1
        (key,) = await world.topic(f"t{step}", 1, delete_retention_ms=str(YEAR_MS), **EAGER)
        for value in "123":
            await world.send(key, ("a", value), ("b", value), ("gone", value))
        await world.send(key, ("gone", None))
        await rolled(world, key)
        await world.plan_all()
        wire = PausingWire(step, after=after)
        lease = await claimed(world, lease_ms=1)
        worker = world.cleaner(store=wire.over(world.store), metastore=wire.over(world.postgres), **SMALL)
        async with paused(worker.handle(lease.job, lease), wire) as was_stopped:
            await world.clock.sleep(0.005)  # beyond its lease
            second = await claimed(world, lease_ms=60_000)
            await world.cleaner(**SMALL).handle(second.job, second)
            assert await world.seen(key) == LEFT, f"step={step}"
        for offset in (0, 8):
            seen = [record for record in LEFT if record[0] >= offset]
            assert await world.seen(key, offset) == seen, f"it went on at step={step}"
        assert (await world.state(key)).cleaned_offset == 10, f"step={step}"
        await world.postgres.jobs.finish_job(second.token)
        await world.check_accounts()
        await check_objects(world)
    assert step > 6, "plan, reads, puts, swaps and the end"
