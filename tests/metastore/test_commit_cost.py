"""Every question costs what it returns: pages touched, with little and with 100 times the history.

Pages are counted by EXPLAIN around the very statement and parameters that the metastore sends.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace.metastore.api.read import ExtentQuery, OffsetKind, OffsetQuery
from headrace.metastore.api.retention import LogStartTarget, OldestQuery
from headrace.metastore.postgres.statement import Pool, Statement
from headrace.metastore.postgres.store import PostgresMetastore
from tests.metastore.commit_scenes import Scene, batch, file_of, open_scene
from tests.metastore.sessions import Session

SHALLOW_CALLS, DEEP_CALLS = 2, 200
HELD_COMMITS = 500
EXTENTS_PER_CALL = 60
DEEPER_PAGES = 12
"""A B-tree that is one level deeper costs a page per look-up."""
LEVEL_PAGES = 64
"""One more level of time blocks costs a timestamp that is not found at most its 64 rows."""


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Pages that the last statement of each name touched, hit or read, once its plans were made."""
    touched: dict[str, int] = {}
    ask = Statement.send

    async def count(statement: Statement, pool: Pool, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        explain = b"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) " + statement.sql
        async with pool.connection() as connection:
            for _ in range(2):
                async with connection.transaction(force_rollback=True):
                    cursor = await connection.execute(explain, parameters | {"life": pool.life})
                    ((told,),) = await cursor.fetchall()
        touched[statement.name] = told[0]["Plan"]["Shared Hit Blocks"] + told[0]["Plan"]["Shared Read Blocks"]
        return await ask(statement, pool, parameters)

    monkeypatch.setattr(Statement, "send", count)
    return touched


async def costs(scene: Scene, pages: dict[str, int]) -> dict[str, int]:
    """Return what an agent's everyday questions cost now."""
    store, key, shard = scene.store, scene.keys[0], scene.shard(0)
    (latest,) = await store.index.list_offsets([OffsetQuery(key, OffsetKind.LATEST)])
    high = latest.offset
    measured = {}
    for name, offset in (("tail", high - 1), ("middle", high // 2), ("start", 0)):
        await store.index.find_extents([ExtentQuery(key, offset, 300)])
        measured[f"find_extents at the {name}"] = pages["look_up_extents"]
    stamps = {kind.name: int(kind) for kind in OffsetKind} | {"first": 0, "a third": high // 3, "beyond": 1 << 40}
    for name, stamp in stamps.items():
        await store.index.list_offsets([OffsetQuery(key, stamp)])
        measured[f"list_offsets, {name}"] = pages["list_offsets"]
    head = (await store.index.poll_feed({})).heads[shard]
    for name, seq in (("news", head - 1), ("no news", head)):
        await store.index.poll_feed({shard: seq})
        measured[f"poll_feed, {name}"] = pages["poll_feed"]
    await scene.commit(file_of([batch(key, 0, producer=9_999_999)]))
    measured["commit_files"] = pages["commit_files"]
    return measured | await retention_costs(scene, pages)


async def retention_costs(scene: Scene, pages: dict[str, int]) -> dict[str, int]:
    """Return what retention's questions and moves cost now: five extents, all or the first of many."""
    store, measured = scene.store, {}
    _, (a, _) = await store.retention.oldest_extents([OldestQuery(key, 5) for key in scene.keys])
    measured["oldest_extents"] = pages["oldest_extents"]
    await store.reports.partition_sizes(scene.keys)
    measured["partition_sizes"] = pages["partition_sizes"]
    for name, key, offset in (
        ("five extents", scene.keys[0], a.extents[4].last_offset + 1),
        ("many", scene.keys[1], -1),
    ):
        await store.retention.move_log_starts([LogStartTarget(key, offset)], max_extents=5)
        measured[f"move_log_starts, {name}"] = pages["move_log_starts"]
    return measured


async def fill(scene: Scene, calls: int, rng: random.Random) -> None:
    """Commits of many extents each, each of another producer, with clocks that disagree."""
    a, b = scene.keys
    (latest,) = await scene.store.index.list_offsets([OffsetQuery(a, OffsetKind.LATEST)])
    for call in range(calls):
        batches = []
        for place in range(EXTENTS_PER_CALL):
            number = latest.offset + call * EXTENTS_PER_CALL + place
            stamp = max(0, number + rng.randint(-200, 200))
            batches += [batch(a, 0, records=1, producer=number, max_timestamp=stamp), batch(b, records=1)]
        await scene.commit(file_of(batches))


@pytest.mark.own_database
async def test_a_hundred_times_the_history_costs_a_few_pages_more(
    metastore: PostgresMetastore, raw: Session, pages: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = await open_scene(metastore, partitions=2)
    counting = Statement.send
    measured = []
    for calls in (SHALLOW_CALLS, DEEP_CALLS - SHALLOW_CALLS):
        monkeypatch.undo()
        await fill(scene, calls, random.Random(1))
        await raw.execute("VACUUM ANALYZE")
        monkeypatch.setattr(Statement, "send", counting)
        measured.append(await costs(scene, pages))
    shallow, deep = measured
    print({name: (shallow[name], deep[name]) for name in shallow})
    by_timestamp = {"list_offsets, MAX_TIMESTAMP", "list_offsets, beyond"}
    for name in shallow:
        more = deep[name] - shallow[name]
        assert more <= (LEVEL_PAGES if name in by_timestamp else DEEPER_PAGES), name


@pytest.mark.own_database
@pytest.mark.requirement("X4")
async def test_a_held_snapshot_costs_a_commit_a_few_pages(
    metastore: PostgresMetastore, raw: Session, pages: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dump or a forgotten BEGIN keeps every version of the rows that each commit changes."""
    scene = await open_scene(metastore, partitions=2)
    counting = Statement.send

    async def commits(first: int, count: int) -> dict[str, int]:
        """Commit to every partition; what the everyday calls cost after it."""
        monkeypatch.setattr(Statement, "send", counted)
        for number in range(first, first + count):
            await scene.commit(file_of([batch(key, number, records=1) for key in scene.keys]))
        monkeypatch.setattr(Statement, "send", counting)
        await scene.commit(file_of([batch(key, first + count, records=1) for key in scene.keys]))
        await metastore.index.find_extents([ExtentQuery(key, first, 1) for key in scene.keys])
        await metastore.index.list_offsets([OffsetQuery(key, OffsetKind.LATEST) for key in scene.keys])
        await metastore.index.poll_feed({})
        await metastore.reports.partition_sizes(scene.keys)
        return dict(pages)

    monkeypatch.undo()
    counted = Statement.send
    before = await commits(0, 40)
    async with raw.transaction():
        await raw.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await raw.execute("SELECT 1")
        after = await commits(41, HELD_COMMITS)
    print({name: (before[name], after[name]) for name in before})
    for name in ("commit_files", "look_up_extents", "list_offsets", "poll_feed", "partition_sizes"):
        assert after[name] <= before[name] * 5 // 4 + 8, name


async def test_a_held_snapshot_is_reported_until_it_ends(metastore: PostgresMetastore, raw: Session) -> None:
    scene = await open_scene(metastore)
    async with raw.transaction():
        await raw.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await raw.execute("SELECT 1")
        for number in range(30):
            await scene.commit(file_of([batch(scene.keys[0], number, records=1)]))
        assert await metastore.housekeeping.held_snapshot() >= 30
    assert await metastore.housekeeping.held_snapshot() < 30


@pytest.mark.own_database
async def test_a_block_of_producer_ids_costs_the_same_for_any_number_of_leased_ones(
    metastore: PostgresMetastore, raw: Session, pages: dict[str, int]
) -> None:
    await metastore.commits.allocate_producer_ids(10)
    few = pages["allocate_producer_ids"]
    await raw.execute(
        "INSERT INTO producer_id_blocks"
        " SELECT 2000 + 10 * n, 2009 + 10 * n, wall_time() FROM generate_series(0, 19999) AS n"
    )
    await raw.execute("ANALYZE producer_id_blocks")
    block = await metastore.commits.allocate_producer_ids(10)
    assert block[0] == 2010 + 10 * 19_999
    assert pages["allocate_producer_ids"] <= few + DEEPER_PAGES
