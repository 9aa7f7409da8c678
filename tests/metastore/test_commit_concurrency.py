"""Commits side by side with commits, deletions, the sweeper, expiry and housekeeping.

Real sessions on a real server. A gate holds commit shards' locks, so that all sessions queue up in the
order that the test asks for; Postgres hands advisory locks out first come, first served.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from headrace.config.settings import Settings
from headrace.metastore.api.commit import BatchOutcome, FileStatus
from headrace.metastore.api.read import ExtentQuery
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import InvalidError, OutcomeUnknownError, UnavailableError
from tests.metastore.commit_scenes import (
    COMMIT_LOCK_CLASS,
    Scene,
    appended,
    batch,
    condemn,
    file_of,
    open_scene,
    pairs,
    shard_gate,
)
from tests.metastore.sessions import Session, delete, join, move_time, rows, session, waiting
from tests.metastore.sql_sources import plant_all

T = TypeVar("T")

APPENDED, DUPLICATE = BatchOutcome.APPENDED, BatchOutcome.DUPLICATE
HOUR_MS = 3_600_000


@pytest.fixture
async def scene(metastore: PostgresMetastore) -> Scene:
    """A topic of eight partitions, one in each commit shard."""
    return await open_scene(metastore, partitions=8)


class Line:
    """Those who wait for the gate, in order."""

    def __init__(self, watcher: Session) -> None:
        self._watcher = watcher
        self._length = 0

    async def join(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start `work`; returns once it waits behind all that joined before."""
        task = asyncio.create_task(work)
        self._length += 1
        await waiting(self._watcher, self._length)
        return task


@asynccontextmanager
async def gate(url: str, *shards: int) -> AsyncIterator[Line]:
    """No session commits to these shards inside the block; afterwards the line moves on."""
    async with session(url) as watcher, shard_gate(url, *shards):
        yield Line(watcher)


async def two_agents_send_the_same_batches(scene: Scene, url: str) -> None:
    """A client's retry through another agent, while the first commit is under way."""
    key = scene.keys[0]
    other = await join(scene.store)
    async with gate(url, scene.shard(0)) as line:
        first = await line.join(scene.commit(file_of([batch(key), batch(key, 0), batch(key, 5)])))
        second = await line.join(scene.commit(file_of([batch(key, 0), batch(key, 5), batch(key, 10)]), by=other))
    assert [pairs(answer.batches) for answer in await first] == [appended(0, 5, 10)]
    assert [pairs(answer.batches) for answer in await second] == [[(DUPLICATE, 5), (DUPLICATE, 10), (APPENDED, 15)]]
    assert await scene.read() == [(0, 14), (15, 19)]


@pytest.mark.requirement("W7")
async def test_the_same_batches_through_two_agents_are_appended_once(scene: Scene, metastore_url: str) -> None:
    await two_agents_send_the_same_batches(scene, metastore_url)


async def test_a_lock_and_its_read_in_one_statement_would_be_caught(scene: Scene, metastore_url: str) -> None:
    """The planted bug: partitions are read as of before the wait, so both commits believe in the same head."""
    lock = "PERFORM lock_shards(array_agg(DISTINCT commit_shard(key, v_shards))) FROM unnest(p_part_key) AS key;"
    read = "FROM generate_subscripts(p_part_key, 1) AS part"
    both = (
        "FROM (SELECT lock_shards(array(SELECT commit_shard(key, v_shards) FROM unnest(p_part_key) AS key)) OFFSET 0)"
        " AS l CROSS JOIN generate_subscripts(p_part_key, 1) AS part"
    )
    plant_all(metastore_url, "commit_files", [(lock, ""), (read, both)])
    with pytest.raises((AssertionError, InvalidError)):
        await two_agents_send_the_same_batches(scene, metastore_url)


@pytest.mark.requirement("W7")
async def test_the_same_file_in_two_sessions_is_judged_once(scene: Scene, metastore_url: str) -> None:
    file = file_of([batch(scene.keys[0], 0), batch(scene.keys[1])])
    async with gate(metastore_url, scene.shard(0)) as line:
        first = await line.join(scene.commit(file))
        second = await line.join(scene.commit(file))
    assert await first == await second
    assert await scene.read() == [(0, 4)]


async def test_a_file_that_locks_no_shard_is_judged_once_too(scene: Scene, metastore_url: str) -> None:
    """The unique file id alone decides: the second waits for the first to commit or to vanish."""
    file = file_of([batch(1 << 50)])
    async with session(metastore_url) as slow, session(metastore_url) as watcher, slow.transaction():
        await condemn(slow, file.file_id)
        second = asyncio.create_task(scene.commit(file))
        await waiting(watcher, 1)
        await slow.execute("DELETE FROM segment_files WHERE file_id = %s", (file.file_id,))
    assert pairs((await second)[0].batches) == [(BatchOutcome.UNKNOWN_PARTITION, -1)]


@pytest.mark.parametrize("deleted_first", [True, False])
async def test_a_commit_is_before_or_after_its_topic_s_deletion(
    scene: Scene, metastore_url: str, raw: Session, deleted_first: bool
) -> None:
    file = file_of([batch(scene.keys[0], 0)])
    async with gate(metastore_url, scene.shard(0)) as line:
        if deleted_first:
            deletion = await line.join(delete(scene.store, scene.topic.topic_id))
            commit = await line.join(scene.commit(file))
        else:
            commit = await line.join(scene.commit(file))
            deletion = await line.join(delete(scene.store, scene.topic.topic_id))
    await deletion
    (answer,) = await commit
    outcome = BatchOutcome.UNKNOWN_PARTITION if deleted_first else APPENDED
    assert [told.outcome for told in answer.batches] == [outcome]
    assert await rows(raw, "SELECT count(*) FROM extents") == [(0 if deleted_first else 1,)]
    (found,) = await scene.store.index.find_extents([ExtentQuery(scene.keys[0], 0, 1)])
    assert not found.known


@pytest.mark.parametrize("swept", [True, False])
async def test_the_file_id_decides_between_a_commit_and_the_sweeper(
    scene: Scene, metastore_url: str, swept: bool
) -> None:
    """The commit meets the sweeper's row before its transaction has ended, either way."""
    file = file_of([batch(scene.keys[0])])
    async with session(metastore_url) as sweeper, session(metastore_url) as watcher:
        await sweeper.execute("BEGIN")
        await condemn(sweeper, file.file_id)
        commit = asyncio.create_task(scene.commit(file))
        await waiting(watcher, 1)
        await sweeper.execute(b"COMMIT" if swept else b"ROLLBACK")
        (answer,) = await commit
        assert answer.status is (FileStatus.CONDEMNED if swept else FileStatus.COMMITTED)
        await condemn(sweeper, file.file_id)
        found = await rows(sweeper, "SELECT state FROM segment_files WHERE file_id = %s", file.file_id)
    assert found == [(1 if swept else 0,)]
    assert await scene.read() == ([] if swept else [(0, 4)])


async def test_shards_are_locked_in_one_order_for_any_order_of_files(
    scene: Scene, metastore_url: str, raw: Session
) -> None:
    up = [batch(key) for key in scene.keys]
    lowest = min(range(8), key=scene.shard)
    async with gate(metastore_url, scene.shard(lowest)) as line:
        commits = [await line.join(scene.commit(file_of(order))) for order in (up, up[::-1])]
        held = await rows(
            raw,
            "SELECT objid::int FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND granted",
            COMMIT_LOCK_CLASS,
        )
    assert held == [(scene.shard(lowest),)]  # the gate's own: who waits for the lowest holds no other
    assert [len((await commit)[0].batches) for commit in commits] == [8, 8]
    many = [scene.commit(file_of(up if turn % 2 else up[::-1])) for turn in range(12)]
    assert all(pairs(answer.batches) for (answer,) in await asyncio.gather(*many))
    assert (await scene.read())[-1] == (65, 69)


@pytest.mark.parametrize("expired_first", [True, False])
async def test_a_producer_is_heard_of_or_forgotten_never_half(
    scene: Scene, metastore_url: str, raw: Session, expired_first: bool
) -> None:
    key = scene.keys[0]
    await scene.outcomes(batch(key, 0, producer=5))
    await move_time(raw, 26 * 3_600)
    expiry = scene.store.housekeeping.expire_producer_state(10)
    file = file_of([batch(key, 5, producer=5)], age_ms=-26 * HOUR_MS)
    async with gate(metastore_url, scene.shard(0)) as line:
        if expired_first:
            expire, commit = await line.join(expiry), await line.join(scene.commit(file))
        else:
            commit, expire = await line.join(scene.commit(file)), await line.join(expiry)
    (answer,) = await commit
    assert await expire == (1 if expired_first else 0)
    assert pairs(answer.batches) == ([(BatchOutcome.OUT_OF_ORDER, -1)] if expired_first else appended(5))


async def test_expiry_waits_for_one_shard_and_holds_no_other_meanwhile(
    scene: Scene, metastore_url: str, raw: Session
) -> None:
    """Another session holds a shard for long: commits to the other shards continue, while expiry waits for it."""
    await scene.outcomes(*(batch(key, 0, producer=5) for key in scene.keys))
    await move_time(raw, 26 * 3_600)
    await raw.execute("UPDATE producer_state SET touched_hour = 1 WHERE partition_key = %s", [scene.keys[3]])
    async with gate(metastore_url, scene.shard(3)) as line:
        expiry = await line.join(scene.store.housekeeping.expire_producer_state(10))
        for place, key in enumerate(scene.keys):
            if place != 3:
                (answer,) = await scene.commit(file_of([batch(key, 5, producer=5)], age_ms=-26 * HOUR_MS))
                assert pairs(answer.batches) == appended(5)
    assert await expiry == 1
    assert await scene.store.housekeeping.expire_producer_state(10) == 0


async def test_rotation_gives_way_to_readers_and_no_answer_is_lost(scene: Scene, raw: Session) -> None:
    page = await scene.store.index.poll_feed({})
    files = [file_of([batch(scene.keys[0])]) for _ in range(12)]
    await raw.execute("BEGIN")
    await rows(raw, "SELECT count(*) FROM commit_log")
    await rows(raw, "SELECT count(*) FROM commit_answers")
    assert await scene.store.housekeeping.rotate_log_slots() is None
    await raw.execute("COMMIT")
    first, emptied = await asyncio.gather(
        asyncio.gather(*(scene.commit(file) for file in files)), _empty_slots(scene, 4)
    )
    assert len(set(emptied)) == 4  # two of the feed's, two of the answers'
    assert [await scene.commit(file) for file in files] == first
    after = await scene.store.index.poll_feed(page.heads)
    assert [row.seq for row in after.rows] == list(range(1, 13))
    assert [row.extents[0].base_offset for row in after.rows] == list(range(0, 60, 5))


async def _empty_slots(scene: Scene, count: int) -> list[str]:
    emptied: list[str] = []
    while len(emptied) < count:
        slot = await scene.store.housekeeping.rotate_log_slots()
        emptied += [slot] if slot else []
    return emptied


@pytest.mark.requirement("W7")
async def test_a_commit_with_a_killed_session_is_repeated_until_it_is_known(
    scene: Scene, metastore_url: str, raw: Session
) -> None:
    file = file_of([batch(scene.keys[0], 0)])
    async with gate(metastore_url, scene.shard(0)) as line:
        commit = await line.join(scene.commit(file))
        await rows(raw, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'advisory'")
        with pytest.raises(OutcomeUnknownError):
            await commit
    (answer,) = await scene.commit(file)
    assert pairs(answer.batches) == appended(0)


async def test_a_wait_that_the_server_ends_did_nothing(scene: Scene, metastore_url: str) -> None:
    hasty = await PostgresMetastore.open(metastore_url, Settings(metastore_pool_size=1, metastore_lock_timeout_ms=20))
    file = file_of([batch(scene.keys[0])])
    async with shard_gate(metastore_url, scene.shard(0)):
        with pytest.raises(UnavailableError):
            await hasty.commits.commit_files(*scene.agent, [file])
    (answer,) = await hasty.commits.commit_files(*scene.agent, [file])
    await hasty.close()
    assert pairs(answer.batches) == appended(0)
