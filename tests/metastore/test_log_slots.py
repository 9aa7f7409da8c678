"""Slots of the feed and of the answers are emptied while any number of writing calls run, and hold up no commit."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from headrace.metastore.postgres.store import PostgresMetastore
from tests.metastore.commit_scenes import Scene, appended, batch, file_of, open_scene, pairs
from tests.metastore.sessions import move_time, rows, session, waiting
from tests.metastore.sql_sources import plant

WRITERS = 8
TURNS = 50
TURN_SECONDS = 900
"""Slots of both logs are due after it."""


@pytest.fixture
async def scene(metastore: PostgresMetastore) -> Scene:
    return await open_scene(metastore, 8)


async def emptied_beside_writers(scene: Scene, url: str) -> int:
    """Return how many slots are emptied in TURNS turns while each moment several writing calls are under way."""
    emptied = 0
    async with AsyncExitStack() as stack:
        raw = await stack.enter_async_context(session(url))
        for _ in range(WRITERS):
            writer = await stack.enter_async_context(session(url))
            await writer.execute(b"BEGIN")
            await writer.execute(b"SELECT assert_life(0)")
        for turn in range(1, TURNS + 1):
            await move_time(raw, turn * TURN_SECONDS)
            for _ in range(2):
                emptied += await scene.store.housekeeping.rotate_log_slots() is not None
            file = file_of([batch(scene.keys[turn % 8])], age_ms=-turn * TURN_SECONDS * 1000)
            (answer,) = await scene.commit(file)
            assert [outcome for outcome, _ in pairs(answer.batches)] == [appended(0)[0][0]]
        assert await scene.store.housekeeping.overdue_slots() == {"commit_log": 0, "commit_answers": 0}
        assert (await rows(raw, "SELECT count(*) FROM commit_log"))[0][0] < TURNS / 2
    return emptied


@pytest.mark.requirement("X4")
async def test_every_due_slot_is_emptied_while_writing_calls_run(scene: Scene, metastore_url: str) -> None:
    assert await emptied_beside_writers(scene, metastore_url) == 2 * TURNS


async def test_the_planted_bug_empties_none(scene: Scene, metastore_url: str) -> None:
    """As it was: the key that every writing call shares."""
    right, wrong = "FOR UPDATE SKIP LOCKED", "AND pg_try_advisory_xact_lock(life_lock(), 0)"
    slots = "FROM log_slots WHERE name = v_log "
    plant(metastore_url, "rotate_log_slots", slots + right, slots + wrong)
    with pytest.raises(AssertionError):
        await emptied_beside_writers(scene, metastore_url)


@pytest.mark.requirement("X4")
async def test_commits_do_not_wait_for_a_slot_that_pg_dump_reads(scene: Scene, metastore_url: str) -> None:
    """Not even if emptying it waited for an hour. The feed, and repeated commits, read slots: they wait up to 10 ms."""
    known = file_of([batch(scene.keys[0])])
    first = await scene.commit(known)
    async with session(metastore_url) as raw, session(metastore_url) as dump:
        ((config,),) = await rows(raw, "SELECT proconfig FROM pg_proc WHERE proname = 'rotate_log_slots'")
        assert config == ["lock_timeout=10ms"]
        await dump.execute(b"BEGIN")
        for log in ("commit_log", "commit_answers"):
            await rows(dump, f"SELECT count(*) FROM {log}")
        assert await scene.store.housekeeping.rotate_log_slots() is None
        await raw.execute(b"ALTER FUNCTION rotate_log_slots() SET lock_timeout = '1h'")
        rotation = asyncio.create_task(scene.store.housekeeping.rotate_log_slots())
        await waiting(raw, 1)
        for place, key in enumerate(scene.keys[1:]):
            (answer,) = await scene.commit(file_of([batch(key)]))
            assert pairs(answer.batches) == appended(0), place
        assert not rotation.done()
        await dump.execute(b"COMMIT")
        assert await rotation is not None
        assert await scene.commit(known) == first


async def test_two_agents_do_not_empty_one_slot_twice(scene: Scene, metastore_url: str) -> None:
    async with session(metastore_url) as raw, session(metastore_url) as other:
        await move_time(raw, TURN_SECONDS)
        await other.execute(b"BEGIN")
        await rows(other, "SELECT FROM log_slots FOR UPDATE")
        assert await scene.store.housekeeping.rotate_log_slots() is None, "it is left to the other one"
        assert set((await scene.store.housekeeping.overdue_slots()).values()) != {0}
        await other.execute(b"COMMIT")
        assert await scene.store.housekeeping.rotate_log_slots() is not None
