"""The lifecycle of remote segments with real workers: the five scenarios, crashes at every step, zombies, orphans."""

from __future__ import annotations

import asyncio
import uuid

import psycopg
import pytest

from headrace.metastore.api.compaction import NewFile, Swap, SwapInput
from headrace.metastore.api.retention import TO_HIGH_WATERMARK, LogStartTarget
from headrace.metastore.api.segments import NewSegment, StartOutcome
from headrace.storage.errors import InvalidError, NotFoundError, UnavailableError
from headrace.storage.file_id import new_file_id
from tests.compactor.janitor_world import Killed, Tripwire
from tests.compactor.segment_world import DAY, DELETED, DELETING, FINISHED, HOUR, STARTED, SegmentWorld
from tests.compactor.stores import FailingStore, PausingStore
from tests.fixtures_clouds import ON_CLOUDS
from tests.metastore.sessions import delete, session, set_for_cluster
from tests.overlay import Overlay


@pytest.mark.requirement("R4.1", "R1", "R2", "R3")
async def test_a_normal_upload(world: SegmentWorld) -> None:
    await world.filled()
    await world.compact(1)
    started, finished = await world.events()
    assert (started.end_offset, started.state, finished.state) == (5, STARTED, FINISHED)
    assert started[:3] == finished[:3]
    assert started.segment_id == finished.segment_id
    (key,) = await world.keys()
    assert (key.state, key.live_extents, key.segment_id) == (FINISHED, 1, started.segment_id)
    await world.check_references()


@pytest.mark.parametrize("world", ["memory", *ON_CLOUDS], indirect=True)
@pytest.mark.requirement("R4.2", "R11")
async def test_another_lease_during_an_upload(world: SegmentWorld) -> None:
    keys = await world.filled()
    before = await world.records(keys[0])
    old, new = await world.upload_by(2)
    assert old < new
    found = [(event.epoch, event.state) for event in await world.events()]
    assert found == [(old, STARTED), (new, STARTED), (old, FINISHED), (new, FINISHED)]
    orphan, live = await world.keys()
    assert (orphan.epoch, orphan.state, orphan.live_extents) == (old, FINISHED, 0)
    assert (live.epoch, live.state, live.live_extents) == (new, FINISHED, 1)
    assert orphan.segment_id != live.segment_id
    assert await world.records(keys[0]) == before
    await world.settle()
    assert [key.epoch for key in await world.keys()] == [new]
    await world.check_rest()
    assert await world.records(keys[0]) == before


@pytest.mark.requirement("R4.3")
async def test_a_failed_upload_is_retried_under_the_same_epoch(world: SegmentWorld) -> None:
    await world.filled()
    job = await world.claim(await world.live_files(), 1)
    await world.run(job, world.compactor(store=FailingStore(world.store, is_stored=True)))
    first, retry, success = await world.events()
    assert [first.state, retry.state, success.state] == [STARTED, STARTED, FINISHED]
    assert first[:3] == retry[:3] == success[:3]
    assert first.segment_id != retry.segment_id == success.segment_id
    (key,) = await world.keys()
    assert (key.state, key.segment_id) == (FINISHED, retry.segment_id)
    await world.settle()
    await world.check_rest()


@pytest.mark.requirement("R4.4", "R5")
async def test_a_deletion_takes_all_keys_of_its_end_offset(world: SegmentWorld) -> None:
    keys = await world.filled()
    old, new = await world.upload_by(2)
    await world.postgres.retention.move_log_starts([LogStartTarget(keys[0], TO_HIGH_WATERMARK)], max_extents=1_000)
    deletion = (await world.events())[-1]
    assert (deletion.end_offset, deletion.state) == (5, DELETING)
    assert deletion.epoch > new
    assert len(await world.objects()) == 5, "nothing is deleted before it is recorded"
    await world.advance(2 * HOUR)
    await world.janitor()
    assert [(e.epoch, e.state) for e in (await world.events())[4:]] == [
        (deletion.epoch, DELETING),
        (deletion.epoch, DELETED),
    ]
    assert await world.objects() == set()
    assert [(key.epoch, key.state) for key in await world.keys()] == [
        (epoch, "TOMBSTONE") for epoch in (old, new, deletion.epoch)
    ]
    tombstones = await world.ask("SELECT epoch FROM remote_segments ORDER BY log_offset")
    assert [epoch for (epoch,) in tombstones] == [old, new, deletion.epoch], "its own comes last"
    await world.advance(DAY - 60)
    await world.clean_up()
    assert len(await world.keys()) == 3
    await world.advance(120)
    await world.clean_up()
    assert await world.keys() == []
    assert len(await world.events()) == 6, "the audit trail keeps what happened"


@pytest.mark.requirement("R4.5", "R13")
async def test_the_deletion_of_a_partition(world: SegmentWorld) -> None:
    await world.filled()
    await world.compact(1)
    await delete(world.postgres, world.view.image.topics_by_name["t"].topic_id)
    while await world.postgres.housekeeping.purge_deleted_partitions(1_000):
        pass
    found = [event.state for event in await world.events()]
    assert found == [STARTED, FINISHED, "DELETE_PARTITION_STARTED", DELETING]
    await world.advance(2 * HOUR)
    await world.janitor()
    await world.clean_up()
    assert [event.state for event in (await world.events())[4:]] == [DELETED, "DELETE_PARTITION_FINISHED"]
    assert {key.state for key in await world.keys()} == {"TOMBSTONE"}
    (marker,) = await world.ask("SELECT state, tombstoned_at FROM remote_partitions")
    assert marker == (2, None), "the marker remains until the segments' tombstones are gone"
    await world.settle()
    assert await world.ask("SELECT FROM remote_partitions") == []
    assert await world.keys() == []
    await world.check_rest()


async def test_a_replaced_segment_goes_under_its_own_key(world: SegmentWorld) -> None:
    keys = await world.filled(2)
    await world.compact(1)
    first = await world.keys()
    before = [await world.records(key) for key in keys]
    await world.run(await world.claim(await world.live_files(1), 2))
    second = [key for key in await world.keys() if key.live_extents]
    await world.advance(2 * HOUR)
    await world.janitor()
    states = {(key.epoch, key.state) for key in await world.keys()}
    assert states == {(first[0].epoch, "TOMBSTONE"), (second[0].epoch, FINISHED)}
    await world.settle()
    assert await world.keys() == second
    await world.check_rest()
    assert [await world.records(key) for key in keys] == before


@pytest.mark.requirement("R11")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_killed_at_every_step_everything_comes_to_rest(world: SegmentWorld, after: bool) -> None:
    """Of an upload, of the deletion of what it replaced, and of the cleanup."""
    keys = await world.filled(3)
    before = [await world.records(key) for key in keys]
    for level in (1, 2):
        step = 1
        while True:
            files = await world.live_files()
            wire = Tripwire(step, after=after)
            job = await world.claim(files, level, lease_ms=1)
            compactor = world.compactor(store=wire.over(world.store), metastore=wire.over(world.postgres))
            try:
                await compactor.handle(job, world.lease(job))
            except Killed:
                await asyncio.sleep(0.005)
                await world.check_references()
                await world.run(await world.claim_next())
            else:
                await world.postgres.jobs.finish_job(job.token)
                break
            step += 1
        assert step > 4
        assert [await world.records(key) for key in keys] == before
    for run in ("clean_up", "janitor"):
        step = 1
        while True:
            await world.advance(2 * HOUR)
            wire = Tripwire(step, after=after)
            parts = {"api": wire.over(world.postgres)} | ({"store": wire.over(world.store)} if run == "janitor" else {})
            try:
                await getattr(world, run)(**parts)
            except Killed:
                await world.check_references()
                step += 1
            else:
                break
    await world.settle()
    await world.check_rest()
    assert [await world.records(key) for key in keys] == before


async def test_an_unreserved_file_is_refused(world: SegmentWorld) -> None:
    await world.filled()

    async def keyless(*_: object) -> StartOutcome:
        return StartOutcome.KEYLESS

    api = Overlay(world.postgres, start_segments=keyless)
    job = await world.claim(await world.live_files(), 1)
    with pytest.raises(NotFoundError):
        await world.compactor(metastore=api).handle(job, world.lease(job))
    assert await world.keys() == []


@pytest.mark.requirement("R10")
@pytest.mark.keyless
async def test_files_without_keys_get_theirs_when_the_level_is_raised(world: SegmentWorld) -> None:
    keys = await world.filled(3)
    await world.compact(1)
    assert await world.events() == []
    before = [await world.records(key) for key in keys]
    await world.raise_level()
    await world.clean_up()
    assert [(key.end_offset, key.state, key.live_extents) for key in await world.keys()] == [(5, FINISHED, 1)] * 3
    await world.check_references()
    await world.run(await world.claim(await world.live_files(1), 2))
    await world.settle()
    await world.check_rest()
    assert [await world.records(key) for key in keys] == before


@pytest.mark.requirement("R2")
async def test_illegal_transitions_are_refused_by_name(world: SegmentWorld) -> None:
    await world.filled()
    await world.compact(1)
    before = await world.keys()
    async with session(world.url) as raw:
        for to in (0, 1, 3):
            with pytest.raises(psycopg.Error, match=f"illegal transition of a remote segment: .*from=1 to={to}"):
                await raw.execute("SELECT record_keys(array_agg(s), %s, 0, NULL) FROM remote_segments s", (to,))
    assert await world.keys() == before
    assert len(await world.events()) == 2


async def test_an_upload_under_a_lease_is_left_alone(world: SegmentWorld) -> None:
    await world.filled()
    store = PausingStore(world.store)
    upload = asyncio.create_task(
        world.run(await world.claim(await world.live_files(), 1), world.compactor(store=store))
    )
    await store.stored.wait()
    await world.clean_up()
    (key,) = await world.keys()
    store.resume.set()
    await upload
    assert key.state == STARTED
    assert [key.state for key in await world.keys()] == [FINISHED]


async def test_a_live_key_stays_although_one_with_a_higher_epoch_is_lost(world: SegmentWorld) -> None:
    """Two jobs over the same files, which no planner makes: the one with the lower epoch is first."""
    keys = await world.filled()
    files, slow, late = await world.live_files(), PausingStore(world.store), PausingStore(world.store)
    low, high = await world.claim(files, 1), await world.claim(files, 1)
    first = asyncio.create_task(world.run(low, world.compactor(store=slow)))
    await slow.stored.wait()
    second = asyncio.create_task(world.run(high, world.compactor(store=late)))
    await late.stored.wait()
    slow.resume.set()
    await first
    late.resume.set()
    await second
    live, lost = await world.keys()
    assert (live.epoch, live.state, live.live_extents) == (low.token.epoch, FINISHED, 1)
    assert (lost.epoch, lost.state, lost.live_extents) == (high.token.epoch, DELETING, 0)
    await world.settle()
    assert await world.keys() == [live]
    await world.check_rest()
    assert len(await world.records(keys[0])) == 6


async def test_a_lower_epoch_is_refused_after_a_higher_one(world: SegmentWorld) -> None:
    (key,) = await world.filled()
    early = await world.claim(await world.live_files(), 1)
    await world.compact(1)
    segment = NewSegment(uuid.uuid4(), key, 0, 5, 0, 0, 100)
    file_id = new_file_id((await world.postgres.compaction.live_extents([])).wall_ms, world.rng, 2)
    outcome = await world.postgres.segments.start_segments(early.token, file_id, 2, [segment])
    assert outcome is StartOutcome.OVERTAKEN
    assert len(await world.events()) == 2


async def test_a_key_that_is_being_deleted_is_not_started_again(world: SegmentWorld) -> None:
    (key,) = await world.filled()
    job = await world.claim(await world.live_files(), 1)
    await world.run(job)
    again = await world.claim(await world.live_files(), 2)
    async with session(world.url) as raw:  # the same lease, as if its job continued
        await raw.execute("UPDATE jobs SET state = 1 WHERE job_id = %s", (job.token.job_id,))
    await world.run(again)
    born_ms = (await world.postgres.compaction.live_extents([])).wall_ms
    segment = NewSegment(uuid.uuid4(), key, 0, 5, 0, 0, 100)
    before = await world.keys()
    with pytest.raises(InvalidError, match="illegal transition of a remote segment"):
        await world.postgres.segments.start_segments(job.token, new_file_id(born_ms, world.rng, 1), 1, [segment])
    assert await world.keys() == before


async def test_another_jobs_file_is_refused(world: SegmentWorld) -> None:
    (key,) = await world.filled()
    extents = await world.extents(key)
    mine, other = await world.claim([], 1), await world.claim([], 1)
    file_id = new_file_id((await world.postgres.compaction.live_extents([])).wall_ms, world.rng, 1)
    segment = NewSegment(uuid.uuid4(), key, 0, 5, extents[0].leader_epoch, 0, 100)
    assert await world.postgres.segments.start_segments(mine.token, file_id, 1, [segment]) is StartOutcome.DONE
    inputs = tuple(SwapInput(e.last_offset, e.source) for e in extents)
    swap = Swap(key, 0, 5, 50, 100, extents[0].leader_epoch, 0, inputs)
    with pytest.raises(NotFoundError):
        await world.postgres.compaction.swap_extents(other.token, NewFile(file_id, 1, 200, 100), [swap])
    assert await world.extents(key) == extents


async def test_an_object_goes_with_its_last_reference(world: SegmentWorld) -> None:
    keys = await world.filled(3)
    await world.compact(1)
    (merged,) = await world.live_files()
    before = [await world.records(key) for key in keys[1:]]
    await world.postgres.retention.move_log_starts([LogStartTarget(keys[0], TO_HIGH_WATERMARK)], max_extents=1_000)
    await world.advance(2 * HOUR)
    await world.janitor()
    assert DELETED in [event.state for event in await world.events()], "its range is not reachable any more"
    await world.check_references()
    await world.settle()
    assert await world.objects() == {merged}
    assert [await world.records(key) for key in keys[1:]] == before
    await world.postgres.retention.move_log_starts(
        [LogStartTarget(key, TO_HIGH_WATERMARK) for key in keys[1:]], max_extents=1_000
    )
    await world.settle()
    assert await world.objects() == set()
    await world.check_rest()


async def test_nothing_is_finished_before_its_object_is_gone(world: SegmentWorld) -> None:
    (key,) = await world.filled()
    await world.compact(1)
    await world.postgres.retention.move_log_starts([LogStartTarget(key, TO_HIGH_WATERMARK)], max_extents=1_000)

    async def delete_none(keys: object) -> list[str]:
        return []

    await world.advance(2 * HOUR)
    with pytest.raises(UnavailableError):
        await world.janitor(store=Overlay(world.store, delete_many=delete_none))
    await world.clean_up()
    assert [event.state for event in await world.events()] == [STARTED, FINISHED, DELETING]
    assert "TOMBSTONE" not in {found.state for found in await world.keys()}


async def test_readers_keep_what_they_may_still_read(world: SegmentWorld) -> None:
    """The delay of the cluster, and a read pin: a lease that began before."""
    (key,) = await world.filled()
    await world.compact(1)
    await set_for_cluster(world.postgres, "file.delete.delay.ms", 4 * HOUR * 1000)
    await world.postgres.retention.move_log_starts([LogStartTarget(key, TO_HIGH_WATERMARK)], max_extents=1_000)
    await world.advance(3 * HOUR)
    await world.janitor()
    assert (await world.events())[-1].state == DELETING
    await world.advance(2 * HOUR)
    await world.janitor()
    assert (await world.events())[-1].state == DELETED


@pytest.mark.requirement("R3")
async def test_the_audit_has_no_gap_while_others_write(world: SegmentWorld) -> None:
    """Several workers at once; a reader that polls never sees an offset before one below it."""
    topics = [await world.topic(f"t{number}", 4) for number in range(3)]
    jobs = []
    for keys in topics:
        for _ in range(3):
            known = set(await world.live_files())
            await world.fill(keys, files=2)
            jobs.append(await world.claim([f for f in await world.live_files() if f not in known], 1))
    read: dict[int, int] = {}
    is_done = False

    async def poll() -> None:
        while not is_done:
            for part, offset in await world.ask(
                "SELECT metadata_partition, audit_offset FROM remote_segment_events ORDER BY 1, 2"
            ):
                if offset >= read.get(part, 0):
                    assert offset == read.get(part, 0), "a later offset was there before an earlier one"
                    read[part] = offset + 1
            await asyncio.sleep(0)

    reader = asyncio.create_task(poll())
    await asyncio.gather(*(world.run(job) for job in jobs))
    is_done = True
    await reader
    assert sum(read.values()) <= len(await world.events()) == 2 * 9 * 4
    await world.check_references()


@pytest.mark.own_database
async def test_the_cleanup_reads_what_it_finds_and_no_history(world: SegmentWorld) -> None:
    """Blocks read by the search for orphans: as many after a hundred times the history."""

    async def blocks() -> int:
        async with session(world.url) as raw:
            await raw.execute("VACUUM (ANALYZE) remote_segments")
            await raw.execute("UPDATE jobs SET state = 1 WHERE job_id = %s", (job.token.job_id,))
            plan = await raw.execute(
                "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT end_orphaned_segments(%s, %s, 1000)", tuple(job.token)
            )
            ((found,),) = await plan.fetchall()
        return int(found[0]["Plan"]["Shared Hit Blocks"] + found[0]["Plan"]["Shared Read Blocks"])

    await world.filled()
    job = await world.claim(await world.live_files(), 1)
    await world.run(job)
    await blocks()
    few = await blocks()
    async with session(world.url) as raw:
        for state, due, tombstoned in ((1, "NULL", "NULL"), (3, "now()", "now()")):
            await raw.execute(
                "INSERT INTO remote_segments SELECT topic_id, partition_index, end_offset + n,"
                f" epoch + {state}, segment_id, file_id, partition_key, start_offset, leader_epoch, max_timestamp,"
                " size,"
                f" {state}, cause, live_extents, 2, broker_id, job_id, event_ms, {due}, {tombstoned},"
                f" metadata_partition, log_offset + n + {state} * 100000"
                " FROM remote_segments, generate_series(1, 20000) AS n WHERE end_offset = 5"
            )
    await blocks()
    many = await blocks()
    print(f"blocks: {few} with 1 key, {many} with 40,001")
    assert many <= few + 50
