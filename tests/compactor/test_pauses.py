"""A worker is stopped at any call past its lease, another one does its job, and then it continues: no harm.

Fault model: SIGSTOP at the n-th call to metastore or bucket, before the call or after it, for every n. The lease ends
meanwhile, another worker takes the job over and ends it. The first one then finds its answers, and continues.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from headrace.compactor.janitor import Janitor
from headrace.compactor.permit import Undecided
from headrace.compactor.retention import Retention, RetentionMetrics
from headrace.compactor.sweeper import Sweeper
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import FencedError
from headrace.storage.file_id import object_key
from tests.compactor.janitor_world import DELAY_SECONDS, HOUR, LEASE_MS, JanitorWorld, PausingWire
from tests.compactor.test_compact_faults import SMALL, check_objects, seen, take_over
from tests.compactor.test_retention import enforce, filled, lease_of
from tests.compactor.world import CompactionWorld
from tests.metastore.byte_sums import unaccounted
from tests.metastore.sessions import delete, move_time, session
from tests.storage.batches import plain_batch


@contextlib.asynccontextmanager
async def paused(work: Coroutine[Any, Any, None], wire: PausingWire) -> Any:
    """Inside, the worker is stopped; at the end it continues, and may find that its lease is lost. Yields whether it
    was stopped at all: a worker with fewer calls ends before.
    """
    task = asyncio.create_task(work)
    reached = asyncio.create_task(wire.reached.wait())
    await asyncio.wait((task, reached), return_when=asyncio.FIRST_COMPLETED)
    yield wire.reached.is_set()
    wire.resume.set()
    reached.cancel()
    with contextlib.suppress(FencedError):
        await task


@pytest.mark.parametrize(
    ("level", "after"),
    [
        pytest.param(1, True, id="1-after"),
        pytest.param(2, False, id="2-before"),
        pytest.param(1, False, id="1-before", marks=pytest.mark.slow),
        pytest.param(2, True, id="2-after", marks=pytest.mark.slow),
    ],
)
async def test_a_merge(world: CompactionWorld, level: int, after: bool) -> None:
    keys = await world.topic("t", 3)
    step, was_stopped = 0, True
    while was_stopped:
        step += 1
        for _ in range(2):
            await world.commit(*((key, plain_batch(3, b"value" * 40)) for key in keys))
        before = await seen(world, keys)
        wire = PausingWire(step, after=after)
        job = await world.claim(await world.live_files(level=0), level, lease_ms=1)
        lease = world.lease(job, lease_ms=1)
        worker = world.compactor(store=wire.over(world.store), metastore=wire.over(world.postgres), **SMALL)
        async with paused(worker.handle(job, lease), wire) as was_stopped:
            await take_over(world)
            assert await seen(world, keys) == before, f"step={step}"
        assert await seen(world, keys) == before, f"it went on at step={step}"
        await world.check_accounts()
        await check_objects(world)
    assert step > 6, "plan, reads, puts and swaps"


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_retention(metastore: PostgresMetastore, metastore_url: str, after: bool) -> None:
    step, was_stopped = 0, True
    while was_stopped:
        step += 1
        scene = await filled(metastore)
        wire = PausingWire(step, after=after)
        registry = CollectorRegistry()
        lease = await lease_of(metastore)
        work = Retention(wire.over(metastore), RetentionMetrics(registry), Undecided(registry))
        async with paused(work(lease.job, lease), wire) as was_stopped:
            async with session(metastore_url) as raw:
                await move_time(raw, 60 * step)  # beyond its lease
            await metastore.jobs.claim_job("b", ["retention"], 30_000)
            await enforce(metastore, await lease_of(metastore, "c"))
        assert [await scene.read(n) for n in (0, 1)] == [[(25, 29)], [(25, 29)]], f"step={step}"
        await delete(metastore, scene.topic.topic_id)
    assert step > 4
    async with session(metastore_url) as raw:
        assert await unaccounted(raw) == []


@pytest.mark.parametrize(
    ("kind", "after"),
    [
        pytest.param("delete", False, id="delete-before"),
        pytest.param("sweep", True, id="sweep-after"),
        pytest.param("delete", True, id="delete-after", marks=pytest.mark.slow),
        pytest.param("sweep", False, id="sweep-before", marks=pytest.mark.slow),
    ],
)
async def test_a_deletion(metastore: PostgresMetastore, metastore_url: str, kind: str, after: bool) -> None:
    """While it is stopped, objects are stored and committed under new ids, and others become dead."""
    world = await JanitorWorld.open(metastore, metastore_url)
    step, was_stopped = 0, True
    while was_stopped:
        step += 1
        await world.add_file()
        await world.kill_all()
        await world.put(world.new_file())
        await world.advance(DELAY_SECONDS + HOUR)
        wire = PausingWire(step, after=after)
        job, lease = await world.claim(kind)
        handler = (Janitor if kind == "delete" else Sweeper)(
            wire.over(world.metastore), wire.over(world.store), world.metrics
        )
        async with paused(handler(job, lease), wire) as was_stopped:
            await world.advance(LEASE_MS / 1_000 + 1)
            live = await world.add_file()
            await world.run(kind)
        assert object_key(live) in await world.store.keys(), f"step={step}"
        assert (await world.files())[live] == 0
    assert step > 4
