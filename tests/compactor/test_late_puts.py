"""A hedged PUT that takes effect after its file is gone: the sweeper deletes the object, and no reader sees it.

Fault model: the store does what a cancelled request asked for, when the test says so (decisions/0026, hedging.py).
"""

from __future__ import annotations

import asyncio
import uuid

import pytest

from headrace.compactor.sweeper import Sweeper
from headrace.jobs.lease import Lease
from headrace.metastore.api.commit import FileCommit, FileStatus
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import OutcomeUnknownError
from headrace.storage.file_id import object_key
from headrace.storage.objects.hedging import SAMPLES_MIN, HedgedStore, HedgePolicy
from headrace.storage.objects.store import ObjectInfo, ObjectStore, StoreDecorator
from tests.compactor.janitor_world import DELAY_SECONDS, HOUR, SETTLED_SECONDS, JanitorWorld
from tests.patch import Patch


class LateStore(StoreDecorator):
    """The first request of a put gets no answer, and is done by `arrive`; the second one is answered, or fails."""

    def __init__(self, inner: ObjectStore, *, fails: bool = False) -> None:
        super().__init__(inner)
        self._fails = fails
        self._late: list[tuple[str, bytes]] = []
        self.requests = 0

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        self.requests += 1
        if self.requests == 1:
            self._late.append((key, bytes(body)))
            await asyncio.Event().wait()
        if self._fails:
            raise OutcomeUnknownError("answer lost")
        return await self._inner.put(key, body)

    async def arrive(self) -> None:
        """Do what the cancelled requests asked for."""
        while self._late:
            await self._inner.put(*self._late.pop())


@pytest.fixture
async def world(metastore: PostgresMetastore, metastore_url: str) -> JanitorWorld:
    return await JanitorWorld.open(metastore, metastore_url)


async def put_hedged(world: JanitorWorld, file: FileCommit, late: LateStore) -> None:
    """PUT the file with a policy that saw quick PUTs."""
    policy = HedgePolicy(100, parallelism=8)
    for _ in range(SAMPLES_MIN):
        policy.begin(file.size, world.clock.monotonic())
        policy.end(file.size, 0.04, world.clock.monotonic())
    store = HedgedStore(late, policy, world.clock)
    try:
        await world.clock.run(store.put(object_key(file.file_id), b"x" * file.size))
    finally:
        assert late.requests == 2, "the PUT was hedged"


async def test_a_late_put_of_a_deleted_file_is_an_orphan(world: JanitorWorld) -> None:
    """The file was committed, became dead, was deleted, and its row is gone."""
    file, late = world.new_file(), LateStore(world.store)
    await put_hedged(world, file, late)
    assert (await world.commit(file)).status is FileStatus.COMMITTED
    await world.kill_all()
    await world.advance(DELAY_SECONDS + SETTLED_SECONDS + 1)
    await world.run("delete")
    assert (await world.files(), await world.store.keys()) == ({}, set())
    await late.arrive()
    assert await world.scene.read(0) == [], "no reader sees it"
    await world.run("sweep")
    assert (await world.files(), await world.store.keys()) == ({file.file_id: 1}, set()), "the late copy is swept"
    assert await world.scene.read(0) == []
    await world.advance(SETTLED_SECONDS + 1)
    await world.run("delete")
    assert (await world.files(), await world.store.keys()) == ({}, set())


async def test_a_late_put_of_a_condemned_file_goes_with_its_row(world: JanitorWorld) -> None:
    """Both requests of the hedge had an unknown outcome, so the file was not committed; one of them is done later."""
    file, late = world.new_file(age_seconds=5 * HOUR), LateStore(world.store, fails=True)
    put = asyncio.ensure_future(put_hedged(world, file, late))
    await world.clock.advance(1)
    put.cancel()  # the first one timed out, too
    await asyncio.wait([put])
    await world.put(file)  # the agent's next attempt; its answer is lost, too
    await world.run("sweep")
    assert (await world.files(), await world.store.keys()) == ({file.file_id: 1}, set())
    await late.arrive()
    assert (await world.commit(file)).status is not FileStatus.COMMITTED
    assert await world.scene.read(0) == [], "no reader sees it"
    await world.advance(SETTLED_SECONDS + 1)
    await world.run("delete")
    assert (await world.files(), await world.store.keys()) == ({}, set())


async def test_a_sweeper_that_deletes_no_orphans_fails_the_proof(world: JanitorWorld, patch: Patch) -> None:
    """A planted bug."""

    async def sweep(self: Sweeper, lease: Lease, incarnation_id: uuid.UUID, file_ids: list[uuid.UUID]) -> int:
        return 0

    patch.replace(Sweeper, "_sweep", sweep)
    with pytest.raises(AssertionError, match="the late copy is swept"):
        await test_a_late_put_of_a_deleted_file_is_an_orphan(world)


async def test_a_late_put_of_a_live_file_changes_nothing(world: JanitorWorld) -> None:
    file, late = world.new_file(), LateStore(world.store)
    await put_hedged(world, file, late)
    await world.commit(file)
    before = await world.store.get(object_key(file.file_id))
    await late.arrive()
    await world.run("sweep")
    assert await world.store.get(object_key(file.file_id)) == before
    assert await world.files() == {file.file_id: 0}
