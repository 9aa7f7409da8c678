"""Dead files are deleted after a delay, nothing is deleted after a restore, and never a live file."""

from __future__ import annotations

import contextlib
import random
import uuid

import pytest

from headrace.compactor.janitor import DELAY_MAX_MS, DELAY_MIN_MS, RefusedFiles
from headrace.compactor.permit import Mark, read_mark, write_mark
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.errors import FencedError, OutcomeUnknownError, UnavailableError
from headrace.storage.file_id import object_key
from tests.compactor.janitor_world import (
    DELAY_SECONDS,
    HOUR,
    LEASE_MS,
    SETTLED_SECONDS,
    JanitorWorld,
    Killed,
    Tripwire,
)
from tests.metastore.sessions import session, set_for_cluster
from tests.seeds import seeds


@pytest.fixture
async def world(metastore: PostgresMetastore, metastore_url: str) -> JanitorWorld:
    return await JanitorWorld.open(metastore, metastore_url)


# -- dead files


async def test_a_dead_file_is_deleted_after_its_grace_and_a_live_one_never(world: JanitorWorld) -> None:
    dead = await world.add_file()
    await world.kill_all()
    live = await world.add_file()
    await world.advance(DELAY_SECONDS - 5)
    await world.run("delete")
    assert set(await world.files()) == {dead, live}
    await world.advance(10)
    await world.run("delete")
    assert await world.files() == {live: 0}
    assert await world.store.keys() == {object_key(live)}
    assert world.counted("janitor_objects_deleted_total", reason="dead") == 1
    assert world.counted("janitor_deleted_bytes_total") == 450


async def test_a_file_is_kept_while_its_commits_answer_may_be_asked_for(world: JanitorWorld) -> None:
    """Even with no grace at all: the same commit again must get the same answer for an hour."""
    file = world.new_file()
    await world.put(file)
    first = await world.commit(file)
    await world.kill_all()
    await world.delete_at_once()
    await world.advance(HOUR)
    assert await world.commit(file) == first
    job, lease = await world.claim("delete")
    assert await world.taken(lease) == []
    await world.advance(SETTLED_SECONDS - HOUR + 1)
    assert await world.taken(lease) == [file.file_id]
    assert await world.metastore.files.drop_files(job.token, [file.file_id]) == 1
    assert await world.commit(file) == first, "its answer is kept longer than promised, and appends nothing"
    assert await world.files() == {}


async def test_dead_files_are_kept_for_the_clusters_delay(world: JanitorWorld) -> None:
    """The janitor's own file has a shorter one."""
    file_id = await world.add_file()
    await world.kill_all()
    await set_for_cluster(world.metastore, "file.delete.delay.ms", round(10 * DELAY_SECONDS * 1000))
    await world.advance(9 * DELAY_SECONDS)
    await world.run("delete")
    assert await world.files() == {file_id: 0}
    await world.advance(DELAY_SECONDS + SETTLED_SECONDS)
    await world.run("delete")
    assert await world.files() == {}


@pytest.mark.requirement("X10")
async def test_without_a_value_of_the_cluster_nothing_is_deleted(world: JanitorWorld) -> None:
    """The janitor and the sweeper wait, and the metastore gives them nothing."""
    file_id = await world.add_file()
    orphan = await world.put(world.new_file())
    await world.kill_all()
    await set_for_cluster(world.metastore, "file.delete.delay.ms", None)
    await world.advance(10 * DELAY_SECONDS)
    for kind in ("delete", "sweep"):
        await world.run(kind)
        waits = {"job": kind, "setting": "file.delete.delay.ms"}
        assert world.counted("deletion_waits", **waits) == 1
    _, lease = await world.claim("sweep")
    assert await world.taken(lease) == []
    assert await world.condemned(lease, orphan) == []
    await world.metastore.jobs.finish_job(lease.token)
    assert await world.files() == {file_id: 0}
    assert {object_key(file_id), object_key(orphan)} <= await world.store.keys()
    await world.delete_at_once()
    for kind in ("delete", "sweep"):
        await world.run(kind)
    assert not {object_key(file_id), object_key(orphan)} & await world.store.keys()
    assert world.counted("deletion_waits", job="delete", setting="file.delete.delay.ms") == 0


async def test_a_job_in_progress_keeps_files_that_became_dead_since_it_started(world: JanitorWorld) -> None:
    before = await world.add_file()
    await world.kill_all()
    await world.advance(DELAY_SECONDS)
    job, _ = await world.claim("compact")
    after = await world.add_file()
    await world.kill_all()
    for _ in range(8):
        await world.advance(DELAY_SECONDS / 4)
        await world.metastore.jobs.heartbeat_job(job.token, LEASE_MS, "")
    await world.run("delete")
    assert set(await world.files()) == {after}
    assert object_key(before) not in await world.store.keys()
    await world.metastore.jobs.finish_job(job.token)
    await world.run("delete")
    assert await world.store.keys() == set()


async def test_a_job_of_a_crashed_worker_keeps_files_only_until_its_lease_expires(world: JanitorWorld) -> None:
    await world.claim("compact")
    await world.add_file()
    await world.kill_all()
    await world.advance(DELAY_SECONDS + 1)
    await world.run("delete")
    assert await world.store.keys() == set()


async def test_more_files_than_one_call_takes(world: JanitorWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.compactor.janitor.FILES_PER_CALL", 3)
    for _ in range(8):
        await world.add_file()
    await world.kill_all()
    await world.advance(DELAY_SECONDS + 1)
    await world.run("delete")
    assert (await world.files(), await world.store.keys()) == ({}, set())


@pytest.mark.parametrize("after", [False, True])
async def test_a_worker_killed_at_any_step_leaves_the_rest_to_the_next(world: JanitorWorld, *, after: bool) -> None:
    for step in range(1, 20):
        dead = [await world.add_file() for _ in range(2)]
        await world.kill_all()
        await world.advance(DELAY_SECONDS + 1)
        live = await world.add_file()
        was_killed = await world.is_killed("delete", step, after=after)
        for file_id, state in (await world.files()).items():
            if state == 0:
                assert object_key(file_id) in await world.store.keys(), f"a live file's object is gone: step={step}"
        await world.run("delete")
        assert live in await world.files()
        assert not set(dead) & set(await world.files())
        assert not {object_key(file_id) for file_id in dead} & await world.store.keys()
        if not was_killed:
            assert step > 6, "every step was tried"
            return
    raise AssertionError("the run never ended")


async def test_a_lost_answer_of_a_deletion_is_asked_again(world: JanitorWorld) -> None:
    dead = await world.add_file()
    await world.kill_all()
    await world.advance(DELAY_SECONDS + 1)
    world.store.lose_answers = 1
    with pytest.raises(OutcomeUnknownError):
        await world.run("delete")
    assert await world.files() == {dead: 2}
    await world.run("delete")
    assert await world.files() == {}


async def test_taken_files_are_returned_again_also_recently_dead_ones(world: JanitorWorld) -> None:
    """Else the object of a young dead file would be kept an hour longer than its crashed worker."""
    dead = await world.add_file()
    await world.delete_at_once()
    await world.advance(SETTLED_SECONDS + 1)
    await world.kill_all()
    await world.advance(1)
    _, lease = await world.claim("delete")
    for _ in range(2):
        assert await world.taken(lease) == [dead]


async def test_what_the_store_refuses_keeps_its_row_and_holds_up_nothing(
    world: JanitorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.compactor.janitor.FILES_PER_CALL", 2)
    stay = [await world.add_file() for _ in range(3)]
    go = [await world.add_file() for _ in range(5)]
    await world.kill_all()
    await world.advance(DELAY_SECONDS + 1)
    world.store.refuse = {object_key(file_id) for file_id in stay}
    with pytest.raises(UnavailableError, match="files=3"):
        await world.run("delete")
    assert await world.files() == dict.fromkeys(stay, 2)
    assert await world.store.keys() == world.store.refuse
    assert not {object_key(file_id) for file_id in go} & await world.store.keys()
    assert world.counted("janitor_unconfirmed_total") == 3
    assert world.counted("janitor_files_set_aside") == 3

    later = await world.add_file()
    await world.kill_all()
    await world.run("delete")  # the refused ones are not due, the new one is too young
    assert later in await world.files()
    assert world.counted("janitor_unconfirmed_total") == 3

    await world.advance(DELAY_MIN_MS / 1000 + 1)
    world.store.refuse = {object_key(stay[0])}
    with pytest.raises(UnavailableError, match="files=1"):
        await world.run("delete")
    world.store.refuse = set()
    await world.advance(DELAY_SECONDS + 1)
    await world.run("delete")
    assert (await world.files(), await world.store.keys()) == ({}, set())


def test_the_delay_of_a_refused_file_doubles_up_to_a_day() -> None:
    refused, file_id, other = RefusedFiles(), uuid.UUID(int=1), uuid.UUID(int=2)
    delays = [refused.refused([file_id])[file_id] for _ in range(14)]
    assert delays[:3] == [DELAY_MIN_MS, 2 * DELAY_MIN_MS, 4 * DELAY_MIN_MS]
    assert delays[-1] == DELAY_MAX_MS
    assert refused.refused([other]) == {other: DELAY_MIN_MS}
    refused.deleted([file_id])
    assert refused.refused([file_id]) == {file_id: DELAY_MIN_MS}


async def test_a_worker_that_lost_its_lease_changes_nothing(world: JanitorWorld) -> None:
    dead = await world.add_file()
    await world.kill_all()
    await world.advance(DELAY_SECONDS + 1)
    _, old = await world.claim("delete")
    await world.advance(60)
    _, new = await world.claim("delete")
    with pytest.raises(FencedError):
        await world.taken(old)
    with pytest.raises(FencedError):
        await world.condemned(old, uuid.UUID(int=5))
    await world.taken(new)
    with pytest.raises(FencedError):
        await world.metastore.files.drop_files(old.token, [dead])
    assert await world.files() == {dead: 2}


async def test_a_file_with_miscounted_bytes_is_not_deleted(world: JanitorWorld, metastore_url: str) -> None:
    live = await world.add_file()
    async with session(metastore_url) as raw:
        await raw.execute("UPDATE segment_files SET live_bytes = 0, dead_at = wall_time()")
    await world.advance(DELAY_SECONDS + 1)
    await world.run("delete")
    assert await world.files() == {live: 0}
    assert await world.store.keys() == {object_key(live)}


# -- restores


async def _orphan_and_dead(world: JanitorWorld) -> set[str]:
    await world.add_file()
    await world.kill_all()
    await world.put(world.new_file(age_seconds=5 * HOUR))
    await world.advance(DELAY_SECONDS + 1)
    return await world.store.keys()


async def test_nothing_is_deleted_after_a_restore_until_an_audit(world: JanitorWorld, metastore_url: str) -> None:
    await world.run("delete")
    await world.run("sweep")
    keys = await _orphan_and_dead(world)
    async with session(metastore_url) as raw:
        await raw.execute("UPDATE janitor SET generation = generation - 1")  # as an older backup has it
    await world.run("delete")
    await world.run("sweep")
    assert await world.store.keys() == keys
    assert world.counted("janitor_refused") == 1
    mark = await read_mark(world.store)
    assert mark is not None
    await world.metastore.files.resume_janitor(mark.generation)
    await world.run("delete")
    await world.run("sweep")
    assert await world.store.keys() == set()
    assert world.counted("janitor_refused") == 0


async def _begin_life(world: JanitorWorld) -> uuid.UUID:
    """The same as `headrace migrate --restored` does; its incarnation id."""
    keeper = LifeKeeper(world.metastore.life, world.store, SystemClock(), random.Random(1))
    await keeper.begin_anew("restored")
    return (await world.metastore.files.janitor_state()).incarnation_id


async def test_a_new_life_of_the_metastore_stops_it_too(world: JanitorWorld) -> None:
    await world.run("delete")
    keys = await _orphan_and_dead(world)
    incarnation = await _begin_life(world)
    await world.run("delete")
    await world.run("sweep")
    assert await world.store.keys() == keys
    generation = await world.metastore.files.resume_janitor(0)
    await write_mark(world.store, Mark(incarnation, generation))
    await world.run("delete")
    await world.run("sweep")
    assert await world.store.keys() == set()


async def test_a_worker_of_the_life_before_changes_nothing(world: JanitorWorld) -> None:
    before = world.metastore.incarnation_id
    _, lease = await world.claim("delete")
    await _begin_life(world)
    with pytest.raises(FencedError):
        await world.metastore.files.take_dead_files(lease.token, before, limit=1)
    with pytest.raises(FencedError):
        await world.metastore.files.begin_generation(lease.token, before)


async def test_a_bucket_without_its_mark_stops_it(world: JanitorWorld) -> None:
    await world.run("delete")
    keys = await _orphan_and_dead(world)
    await world.store.delete_many(["janitor.properties"])
    await world.run("delete")
    assert await world.store.keys() == keys


# -- everything at once


@pytest.mark.parametrize("seed", seeds(range(3), range(3, 12)))
async def test_under_all_faults_no_live_object_is_deleted_and_nothing_leaks(
    metastore: PostgresMetastore, metastore_url: str, seed: int
) -> None:
    """Random puts, commits (late and repeated ones too), deaths, runs, kills, lost answers and stale lists."""
    rng = random.Random(seed)
    world = await JanitorWorld.open(metastore, metastore_url, seed)
    waiting_files = []
    stale = []
    for _ in range(60):
        match rng.choice(["put", "put", "commit", "commit", "kill", "time", "delete", "sweep", "list", "late_put"]):
            case "put":
                file = world.new_file(partitions=rng.sample(range(4), rng.randrange(1, 5)))
                await world.put(file)
                waiting_files.append(file)
            case "commit" if waiting_files:
                file = rng.choice(waiting_files)
                await world.commit(file)
            case "late_put" if waiting_files:
                file = rng.choice(waiting_files)
                if file.file_id not in await world.files():  # its commit was never sent
                    await world.put(file)
            case "kill":
                await world.kill_all()
            case "time":
                await world.advance(rng.choice([60, HOUR, 2 * HOUR, 5 * HOUR]))
            case "list":
                stale = [info async for info in world.store.list_objects("segments/")]
            case "delete" | "sweep" as kind:
                world.store.stale = stale if kind == "sweep" and rng.random() < 0.3 else None
                world.store.lose_answers = int(rng.random() < 0.2)
                wire = Tripwire(rng.randrange(1, 12), after=rng.random() < 0.5) if rng.random() < 0.5 else None
                with contextlib.suppress(Killed, OutcomeUnknownError):
                    await world.run(kind, wire)
                world.store.lose_answers, world.store.stale = 0, None
        live = {f.file_id for f in await metastore.reports.audit_files(uuid.UUID(int=0), 1000) if f.extents}
        assert {object_key(file_id) for file_id in live} <= await world.store.keys(), "a readable object is gone"
    await world.kill_all()
    await world.advance(24 * HOUR)
    for kind in ("sweep", "delete"):
        await world.run(kind)
    await world.advance(24 * HOUR)
    await world.run("delete")
    assert (await world.files(), await world.store.keys()) == ({}, set())
