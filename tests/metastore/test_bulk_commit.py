"""Bulk writes: a chunk does to the tables what an agent's commit does; terms, deletions, drivers at the same time."""

from __future__ import annotations

import asyncio
import random
import uuid
from typing import Any

import pytest

from headrace.jobs.kinds import SWEEP_ORPHANS
from headrace.metastore.api.commit import BulkFile, BulkOutcome, BulkRun, FileCommit, StagedBatch
from headrace.metastore.postgres.packing import unpack_extents
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import InvalidError
from headrace.storage.file_id import new_bulk_file_id, new_file_id
from tests.metastore.bulk_scenes import RUN_BYTES, bulk_file, readable, staged_ids
from tests.metastore.byte_sums import unaccounted
from tests.metastore.commit_scenes import Scene, open_scene, shard_gate
from tests.metastore.sessions import Session, delete, move_time, rows, waiting
from tests.metastore.sql_sources import plant
from tests.seeds import seeds

HOUR_MS = 3_600_000


async def stage(store: PostgresMetastore, *chunks: list[BulkFile]) -> uuid.UUID:
    """A new attempt."""
    attempt = uuid.uuid4()
    for number, files in enumerate(chunks):
        await store.commits.stage_bulk_chunk(attempt, number, files)
    return attempt


async def tables(connection: Session, keys: list[int]) -> dict[str, list[Any]]:
    """Return what a commit left of these partitions, without ids."""
    place = {key: number for number, key in enumerate(keys)}
    extents = await rows(
        connection,
        "SELECT partition_key, base_offset, last_offset, position, length, leader_epoch, max_timestamp, appended_at"
        " FROM extents WHERE partition_key = ANY (%s) ORDER BY 1, 2",
        keys,
    )
    heads = await rows(connection, "SELECT * FROM partition_heads WHERE partition_key = ANY (%s) ORDER BY 1", keys)
    blocks = await rows(connection, "SELECT * FROM time_blocks WHERE partition_key = ANY (%s) ORDER BY 1, 2, 3", keys)
    files = await rows(
        connection,
        "SELECT DISTINCT f.file_id, state, size, live_bytes, body_bytes, level, dead_at, unreadable_at"
        " FROM segment_files f JOIN extents USING (file_id) WHERE partition_key = ANY (%s) ORDER BY size",
        keys,
    )
    feed = [
        extent._replace(source=uuid.UUID(int=0))
        for (payload,) in await rows(connection, "SELECT payload FROM commit_log WHERE kind = 0 ORDER BY shard, seq")
        for extent in unpack_extents(payload)
        if extent.partition_key in place
    ]
    return {
        "extents": [(place[key], *rest) for key, *rest in extents],
        "heads": [(place[key], *rest) for key, *rest in heads],
        "blocks": [(place[key], *rest) for key, *rest in blocks],
        "files": [rest for _, *rest in files],
        "feed": sorted((place[extent.partition_key], *extent[1:]) for extent in feed),
    }


@pytest.mark.parametrize("seed", seeds(range(2), range(2, 10)))
async def test_a_chunk_does_what_a_commit_of_agents_does(seed: int, metastore: PostgresMetastore, raw: Session) -> None:
    rng = random.Random(seed)
    one, two = await open_scene(metastore, 3), await open_scene(metastore, 3)
    for chunk in range(3):
        commits, bulk = [], []
        for number in range(rng.choice([1, 3, 90])):  # over 128 extents of a partition close a time block
            runs, position = [], rng.randint(0, 9)
            for partition in sorted(rng.sample(range(3), rng.randint(1, 3))):
                runs.append((partition, position, rng.randint(62, 500), rng.randint(1, 9), rng.randint(-1, 10**6)))
                position += runs[-1][2]
            size = 10_000 + 1_000 * chunk + number
            now_ms = await metastore.commits.database_ms()
            batches = [StagedBatch(one.keys[run[0]], *run[1:]) for run in runs]
            commits.append(FileCommit(new_file_id(now_ms, rng), size, batches))
            found = tuple(BulkRun(two.keys[run[0]], *run[1:]) for run in runs)
            bulk.append(BulkFile(new_bulk_file_id(now_ms, 2, rng), size, found))
        await one.commit(*commits)
        attempt = await stage(metastore, bulk)
        assert (await metastore.commits.decide_bulk_write("query", chunk, attempt, 1)).attempt == attempt
        assert await metastore.commits.commit_bulk_chunk("query", attempt, 0) == (1, 1)
    by_agent, by_driver = await tables(raw, one.keys), await tables(raw, two.keys)
    assert by_driver == by_agent
    assert by_agent["extents"]
    assert not await unaccounted(raw)


async def files_in_their_term(scene: Scene, connection: Session) -> None:
    """An id is claimed until its term ends, by the database's clock; never swept before; refused whole later."""
    rng, store = random.Random(1), scene.store
    now_ms = await store.commits.database_ms()
    old, young = (bulk_file(now_ms, rng, scene.keys, age_ms=HOUR_MS * 9, term_hours=hours) for hours in (9, 10))
    assert (
        await store.commits.decide_bulk_write("a", 0, await stage(store, [young]), 1)
    ).outcome is BulkOutcome.DECIDED
    both = await stage(store, [bulk_file(now_ms, rng, scene.keys)], [old])
    refused = await store.commits.decide_bulk_write("b", 0, both, 2)
    assert (refused.outcome, refused.attempt) == (BulkOutcome.FILES_TOO_OLD, None)
    future = await stage(store, [bulk_file(now_ms, rng, scene.keys, age_ms=-HOUR_MS)])
    assert (await store.commits.decide_bulk_write("c", 0, future, 1)).outcome is BulkOutcome.FILES_TOO_OLD
    assert await staged_ids(connection) == {young.file_id}, "nothing of a refused write is claimed"
    waits = bulk_file(now_ms, rng, scene.keys, age_ms=HOUR_MS * 9, term_hours=8)
    token, incarnation = await sweeper(store)
    unnamed = await store.files.unnamed_files([old.file_id, young.file_id, waits.file_id])
    assert unnamed == [old.file_id, waits.file_id]
    assert await store.files.condemn_files(token, incarnation, unnamed, min_age_ms=2 * HOUR_MS) == []
    await move_time(connection, 3_600 * 1.5)
    assert await store.files.condemn_files(token, incarnation, unnamed, min_age_ms=2 * HOUR_MS) == [waits.file_id]


async def sweeper(store: PostgresMetastore) -> tuple[Any, uuid.UUID]:
    """A lease of the sweeper's job."""
    lease = await store.controller.hold_controller_lease(0, uuid.UUID(int=1), 1)
    await store.jobs.schedule_jobs(lease.controller_epoch, [SWEEP_ORPHANS.schedule(int)])
    job = await store.jobs.claim_job("test", [SWEEP_ORPHANS.name], 10**9)
    assert job is not None
    return job.token, (await store.files.janitor_state()).incarnation_id


async def an_old_attempt_asks(scene: Scene, connection: Session) -> None:
    """A driver that was paused in its commit continues after the next batch was decided: nothing happens."""
    rng, store = random.Random(1), scene.store
    now_ms = await store.commits.database_ms()
    chunks = [[bulk_file(now_ms, rng, scene.keys)] for _ in range(4)]
    first, second = await stage(store, *chunks[:2]), await stage(store, *chunks[2:])
    await store.commits.decide_bulk_write("query", 0, first, 2)
    assert await store.commits.commit_bulk_chunk("query", first, 0) == (1, 2)
    decision = await store.commits.decide_bulk_write("query", 1, second, 2)
    assert (decision.outcome, decision.attempt) == (BulkOutcome.PREVIOUS_UNFINISHED, first)
    assert await store.commits.commit_bulk_chunk("query", first, 1) == (2, 2)
    await store.commits.decide_bulk_write("query", 1, second, 2)
    assert await store.commits.commit_bulk_chunk("query", second, 0) == (1, 2)
    assert await store.commits.commit_bulk_chunk("query", first, 1) == (1, 1), "complete"
    assert len(await readable(connection)) == 3
    assert (await store.commits.decide_bulk_write("query", 0, first, 2)).attempt == second, (
        "the newest is what is left to do"
    )


async def decided_chunks_are_kept(scene: Scene, connection: Session) -> None:
    """For days, until they are committed; undecided ones for a day."""
    rng, store = random.Random(1), scene.store
    now_ms = await store.commits.database_ms()
    decided = await stage(store, *([bulk_file(now_ms, rng, scene.keys)] for _ in range(2)))
    await store.commits.decide_bulk_write("query", 0, decided, 2)
    staged = await stage(store, [bulk_file(now_ms, rng, scene.keys, term_hours=200)])
    await move_time(connection, 86_000)
    assert await store.housekeeping.prune_bulk_writes(10) == 0
    await move_time(connection, 90_000)
    assert await store.housekeeping.prune_bulk_writes(10) == 1
    assert (await store.commits.decide_bulk_write("other", 0, staged, 1)).outcome is BulkOutcome.NOT_STAGED
    assert [await store.housekeeping.finish_bulk_writes() for _ in range(3)] == [1, 1, 0]
    assert len(await readable(connection)) == 2
    await move_time(connection, 90_000 + 91 * 86_400)
    assert await store.housekeeping.prune_bulk_writes(10) == 1


SCENARIOS = [files_in_their_term, an_old_attempt_asks, decided_chunks_are_kept]
BUGS = {
    "a file may be claimed after its term": (files_in_their_term, "decide_bulk_write", "AND until", "AND until + 9999"),
    "a refused write keeps its claims": (
        *(files_in_their_term, "decide_bulk_write"),
        *("RAISE EXCEPTION 'files cannot be claimed' USING ERRCODE = 'HR003';", "RETURN QUERY SELECT"
          " bulk_files_too_old(), NULL::uuid, 0, 0, NULL::bigint; RETURN;"),
    ),
    "any attempt's chunks are committed": (
        *(an_old_attempt_asks, "commit_bulk_chunk"),
        *(" AND w.attempt = p_attempt FOR", " FOR"),
    ),
    "decided chunks are forgotten": (
        *(decided_chunks_are_kept, "finish_bulk_writes"),
        *("AND NOT EXISTS (SELECT FROM bulk_writes w WHERE w.attempt = c.attempt)", ""),
    ),
}  # fmt: skip


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_scenario(scenario: Any, metastore: PostgresMetastore, raw: Session) -> None:
    await scenario(await open_scene(metastore, 2), raw)


@pytest.mark.parametrize("bug", BUGS)
async def test_the_scenarios_catch(bug: str, metastore: PostgresMetastore, metastore_url: str, raw: Session) -> None:
    scenario, *planted = BUGS[bug]
    plant(metastore_url, *planted)
    scene = await open_scene(metastore, 2)
    with pytest.raises((AssertionError, InvalidError)):
        await scenario(scene, raw)


async def test_a_deleted_topic(metastore: PostgresMetastore, raw: Session) -> None:
    """Before the decision nothing is written; after it, the other topics' records are."""
    rng = random.Random(1)
    kept, gone, gone_early = [await open_scene(metastore, 1) for _ in range(3)]
    now_ms = await metastore.commits.database_ms()
    early = await stage(metastore, [bulk_file(now_ms, rng, kept.keys + gone_early.keys)])
    await delete(metastore, gone_early.topic.topic_id)
    refused = await metastore.commits.decide_bulk_write("query", 0, early, 1)
    assert (refused.outcome, refused.partition_key) == (BulkOutcome.UNKNOWN_PARTITION, gone_early.keys[0])
    files = [bulk_file(now_ms, rng, kept.keys + gone.keys), bulk_file(now_ms, rng, gone.keys)]
    attempt = await stage(metastore, files)
    await metastore.commits.decide_bulk_write("query", 0, attempt, 1)
    await delete(metastore, gone.topic.topic_id)
    assert await metastore.commits.commit_bulk_chunk("query", attempt, 0) == (1, 1)
    assert await readable(raw) == {files[0].file_id: [(kept.keys[0], 3)]}
    assert not await unaccounted(raw)
    assert not await staged_ids(raw)
    (dead,) = await rows(raw, "SELECT file_id FROM segment_files WHERE dead_at IS NOT NULL")
    assert dead == (files[1].file_id,)


async def test_two_drivers_commit_the_same_chunk_at_once(
    metastore: PostgresMetastore, metastore_url: str, raw: Session
) -> None:
    rng = random.Random(1)
    scene = await open_scene(metastore, 1)
    files = [bulk_file(await metastore.commits.database_ms(), rng, scene.keys) for _ in range(2)]
    attempt = await stage(metastore, files[:1], files[1:])
    await metastore.commits.decide_bulk_write("query", 0, attempt, 2)
    async with shard_gate(metastore_url, scene.shard(0)):
        calls = [asyncio.ensure_future(metastore.commits.commit_bulk_chunk("query", attempt, 0)) for _ in range(2)]
        await waiting(raw, 2)
    assert await asyncio.gather(*calls) == [(1, 2), (1, 2)]
    assert await readable(raw) == {files[0].file_id: [(scene.keys[0], 3)]}


async def test_two_attempts_decide_at_once(metastore: PostgresMetastore, raw: Session) -> None:
    rng = random.Random(1)
    scene = await open_scene(metastore, 1)
    now_ms = await metastore.commits.database_ms()
    attempts = [await stage(metastore, [bulk_file(now_ms, rng, scene.keys)]) for _ in range(4)]
    found = await asyncio.gather(*(metastore.commits.decide_bulk_write("query", 0, attempt, 1) for attempt in attempts))
    assert len({decision.attempt for decision in found}) == 1
    assert len(await staged_ids(raw)) == 1
    assert len(await rows(raw, "SELECT * FROM bulk_write_chunks")) == 1


async def test_input_that_cannot_be_right_is_refused(metastore: PostgresMetastore) -> None:
    rng = random.Random(1)
    now_ms = await metastore.commits.database_ms()
    good = bulk_file(now_ms, rng, [1])
    for file in (
        BulkFile(good.file_id, good.size, ()),
        BulkFile(good.file_id, RUN_BYTES - 1, good.runs),
        BulkFile(new_file_id(now_ms, rng), good.size, good.runs),
        BulkFile(good.file_id, good.size, (good.runs[0]._replace(records=0),)),
    ):
        with pytest.raises(InvalidError, match="bulk write refused"):
            await metastore.commits.stage_bulk_chunk(uuid.uuid4(), 0, [file])
