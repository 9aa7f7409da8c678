"""Migrations on a database that is in use: what each of them fills in for rows that were there before it.

The database is at 0002, the last version that had no groups, jobs or deletion, and holds a row of every
kind that a later migration looks at.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest

from headrace.config.settings import Settings
from headrace.metastore.api.groups import CommittedOffset
from headrace.metastore.postgres import migrate as module
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.migrate import migrate
from headrace.metastore.postgres.sql_files import sql_files
from headrace.metastore.postgres.store import PostgresMetastore
from tests.metastore.sessions import join, move_time, rows, session, set_for_cluster

OLD = ("0001_initial", "0002_controller")
KEYS = [5 << 24, 5 << 24 | 1]
LIVE, DEAD = uuid.UUID(int=1), uuid.UUID(int=2)
DAY_SECONDS = 86_400

DATA = f"""
INSERT INTO topics VALUES ('00000000-0000-0000-0000-000000000009', 5, 'events', 2, 2);
INSERT INTO partitions (partition_key, topic_id, partition_index, shard, leader_epoch)
VALUES ({KEYS[0]}, '00000000-0000-0000-0000-000000000009', 0, 5, 0),
       ({KEYS[1]}, '00000000-0000-0000-0000-000000000009', 1, 6, 0);
INSERT INTO partition_heads (partition_key, high_watermark) VALUES ({KEYS[0]}, 20), ({KEYS[1]}, 0);
INSERT INTO segment_files VALUES ('{LIVE}', 0, 400, 300, now()), ('{DEAD}', 0, 400, 0, now());
INSERT INTO extents VALUES ({KEYS[0]}, 9, 0, '{LIVE}', 8, 100, 0, 1000),
                           ({KEYS[0]}, 19, 10, '{LIVE}', 108, 200, 0, 1000);
INSERT INTO consumer_groups VALUES ('members', 3, 1, 'saved'), ('claimed', 7, 1, '');
INSERT INTO group_offsets VALUES ('members', {KEYS[0]}, 5, 0, 'told', now()), ('alone', {KEYS[0]}, 6, -1, '', now()),
                                 ('alone', {KEYS[1]}, 7, -1, '', now());
"""


@pytest.fixture
def used_url(postgres_server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A database of the old version with data in it, and brought to this one."""
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE used")
        url = postgres_server.url("used")
        with monkeypatch.context() as patch:
            patch.setattr(module, "sql_files", lambda place: [file for file in sql_files(place) if file.name in OLD])
            patch.setattr(module, "function_files", lambda: ())  # they need the newer tables
            assert migrate(url).applied == OLD
        with psycopg.connect(url, autocommit=True) as used:
            used.execute(DATA.encode())
        assert migrate(url).applied == tuple(f.name for f in sql_files(module.MIGRATIONS) if f.name not in OLD)
        yield url
        connection.execute("DROP DATABASE used WITH (FORCE)")


async def test_files_and_partitions_are_what_their_extents_say(used_url: str) -> None:
    store = await PostgresMetastore.open(used_url, Settings(metastore_pool_size=2))
    assert await store.reports.partition_sizes(KEYS) == [300, 0]
    waiting = await store.compaction.waiting_files(uuid.UUID(int=0), 10)
    assert [(file.file_id, file.level, file.body_bytes, file.live_bytes) for file in waiting.files] == [
        (LIVE, 0, 300, 300)
    ]
    assert len((await store.compaction.live_extents([LIVE, DEAD])).partitions[0].extents) == 2
    async with session(used_url) as raw:
        assert await rows(raw, "SELECT file_id FROM segment_files WHERE dead_at IS NOT NULL") == [(DEAD,)]
        assert await rows(raw, "SELECT length(zone_secret) FROM cluster") == [(32,)]
    await store.close()


async def test_groups_keep_their_state_and_positions_and_claims_go_on_above_old_epochs(used_url: str) -> None:
    store = await PostgresMetastore.open(used_url, Settings(metastore_pool_size=2))
    agent = await join(store)
    for group_id, saved in (("members", b"saved"), ("claimed", None), ("alone", None)):
        claim = await store.groups.claim_group(group_id, *agent)
        assert claim is not None
        assert claim.coordinator_epoch > 7
        assert (claim.record and claim.record.data) == saved
        assert await store.groups.commit_offsets(
            group_id, claim.coordinator_epoch, [CommittedOffset(KEYS[1], 8, -1, "")]
        )
    found = {offset.partition_key: offset for offset in await store.groups.fetch_offsets("members", None)}
    assert (found[KEYS[0]].offset, found[KEYS[0]].metadata) == (5, "told")
    await store.close()


async def test_positions_that_were_committed_without_a_group_expire_and_hold_nothing_up(used_url: str) -> None:
    store = await PostgresMetastore.open(used_url, Settings(metastore_pool_size=2))
    agent = await join(store)
    claim = await store.groups.claim_group("later", *agent)
    assert claim is not None
    await store.groups.commit_offsets("later", claim.coordinator_epoch, [CommittedOffset(KEYS[0], 8, -1, "")])
    async with session(used_url) as raw:
        await move_time(raw, 8 * DAY_SECONDS)
    await set_for_cluster(store, "offsets.retention.minutes", 7 * 24 * 60)
    for _ in range(10):  # one at a time: what cannot expire must not come before what can
        await store.housekeeping.expire_group_offsets(1)
    left = [group_id for group_id in ("members", "alone", "later") if await store.groups.fetch_offsets(group_id, None)]
    assert left == ["members"], "it may have members: that is known only after a claim"
    await store.close()
