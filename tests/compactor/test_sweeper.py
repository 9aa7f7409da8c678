"""Orphans go once they are condemned: no commit can name them any more, and none that was first loses its object."""

from __future__ import annotations

import asyncio

import pytest

from headrace.metastore.api.commit import FileStatus
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.file_id import object_key
from tests.compactor.janitor_world import HOUR, SETTLED_SECONDS, JanitorWorld, Killed, Tripwire
from tests.metastore.commit_scenes import shard_gate
from tests.metastore.sessions import rows, session, set_for_cluster, waiting


@pytest.fixture
async def world(metastore: PostgresMetastore, metastore_url: str) -> JanitorWorld:
    return await JanitorWorld.open(metastore, metastore_url)


async def test_only_old_objects_without_a_row_are_swept(world: JanitorWorld) -> None:
    orphan = await world.put(world.new_file(age_seconds=5 * HOUR))
    young = await world.put(world.new_file())
    named = await world.add_file()
    await world.store.put("segments/foreign", b"not ours")
    await world.store.put("cluster.properties", b"not a segment")
    await world.run("sweep")
    keys = await world.store.keys()
    assert keys == {object_key(young), object_key(named), "segments/foreign"}
    assert await world.files() == {orphan: 1, named: 0}
    assert world.counted("janitor_objects_deleted_total", reason="orphan") == 1


async def test_a_condemned_id_can_never_be_committed(world: JanitorWorld) -> None:
    """Regardless of clocks: here the sweeper takes an id that is young enough for a commit."""
    file = world.new_file()
    await world.put(file)
    await world.delete_at_once()
    _, lease = await world.claim("sweep")
    await world.advance(10)
    assert await world.condemned(lease, file.file_id) == [file.file_id]
    assert (await world.commit(file)).status is FileStatus.CONDEMNED
    assert await world.scene.read(0) == []


async def test_orphans_are_kept_for_the_clusters_delay(world: JanitorWorld) -> None:
    """At least the age of the oldest backup that may be restored: its rows may name them."""
    file = world.new_file()
    await world.put(file)
    _, lease = await world.claim("sweep")
    await set_for_cluster(world.metastore, "file.delete.delay.ms", 60_000)
    for seconds, condemned in ((30, []), (31, [file.file_id])):
        await world.advance(seconds)
        found = await world.condemned(lease, file.file_id)
        assert found == condemned


async def test_a_commit_that_was_first_keeps_its_object(world: JanitorWorld) -> None:
    file = world.new_file()
    await world.put(file)
    await world.commit(file)
    await world.delete_at_once()
    _, lease = await world.claim("sweep")
    await world.advance(10)
    assert await world.condemned(lease, file.file_id) == []


async def test_a_sweeper_that_meets_a_commit_under_way_waits_for_its_end(
    world: JanitorWorld, metastore_url: str
) -> None:
    file = world.new_file(partitions=[0])
    await world.advance(10)
    await world.delete_at_once()
    _, lease = await world.claim("sweep")
    async with session(metastore_url) as raw, raw.transaction():
        await rows(
            raw,
            "INSERT INTO segment_files (file_id, state, size, live_bytes, committed_at)"
            " VALUES (%s, 0, 1, 1, clock_timestamp()) RETURNING 1",
            file.file_id,
        )
        condemning = asyncio.ensure_future(world.condemned(lease, file.file_id))
        async with session(metastore_url) as other:
            await waiting(other, 1)
    assert await condemning == []


async def test_a_commit_that_waits_for_its_shard_while_its_id_is_condemned_is_refused(
    world: JanitorWorld, metastore_url: str
) -> None:
    file = world.new_file(partitions=[0])
    await world.put(file)
    await world.delete_at_once()
    _, lease = await world.claim("sweep")
    await world.advance(10)
    async with shard_gate(metastore_url, world.scene.shard(0)) as gate:
        committing = asyncio.ensure_future(world.commit(file))
        await waiting(gate, 1)
        condemned = await world.condemned(lease, file.file_id)
    assert condemned == [file.file_id]
    assert (await committing).status is FileStatus.CONDEMNED


async def test_a_put_that_arrives_after_its_object_was_swept_goes_too(world: JanitorWorld) -> None:
    file = world.new_file(age_seconds=5 * HOUR)
    await world.put(file)
    await world.run("sweep")
    await world.put(file)
    await world.advance(SETTLED_SECONDS + 1)
    await world.run("delete")
    assert (await world.files(), await world.store.keys()) == ({}, set())


async def test_a_stale_list_does_no_harm(world: JanitorWorld) -> None:
    old = await world.put(world.new_file(age_seconds=5 * HOUR))
    world.store.stale = [info async for info in world.store.list_objects("segments/")]
    stale = world.store.stale
    world.store.stale = None
    live = await world.add_file()
    await world.run("sweep")
    world.store.stale = stale
    await world.run("sweep")
    assert await world.store.keys() == {object_key(live)}
    assert await world.files() == {old: 1, live: 0}


async def test_a_sweep_goes_on_behind_the_last_finished_page(
    world: JanitorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.compactor.sweeper.PAGE_KEYS", 2)
    for _ in range(7):
        await world.put(world.new_file(age_seconds=5 * HOUR))
    keys = sorted(await world.store.keys())
    world.store.refuse = {keys[0], keys[4]}
    with pytest.raises(Killed):
        await world.run("sweep", Tripwire(12, after=True))
    job, lease = await world.claim("sweep")
    assert job.progress in keys[1:-1]
    await world.metastore.jobs.release_job(lease.token)
    await world.run("sweep")
    assert await world.store.keys() == world.store.refuse, "what the store refuses holds up nothing"
    world.store.refuse = set()
    await world.advance(SETTLED_SECONDS + 1)
    await world.run("delete")
    assert (await world.files(), await world.store.keys()) == ({}, set())


@pytest.mark.parametrize("after", [False, True])
async def test_a_sweeper_killed_at_any_step_leaks_nothing_permanently(world: JanitorWorld, *, after: bool) -> None:
    for step in range(1, 20):
        orphans = [await world.put(world.new_file(age_seconds=5 * HOUR)) for _ in range(2)]
        live = await world.add_file()
        was_killed = await world.is_killed("sweep", step, after=after)
        await world.run("sweep")
        await world.advance(SETTLED_SECONDS + 1)
        await world.run("delete")
        assert not set(orphans) & set(await world.files())
        assert not {object_key(file_id) for file_id in orphans} & await world.store.keys()
        assert object_key(live) in await world.store.keys()
        if not was_killed:
            assert step > 5, "every step was tried"
            return
    raise AssertionError("the run never ended")
