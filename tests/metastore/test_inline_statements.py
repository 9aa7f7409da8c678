"""Statements with bytes of inline files, as large as calls have them: by the driver, and through PgBouncer (X13)."""

from __future__ import annotations

import asyncio
import random
import time
from urllib.parse import urlsplit

import pytest

from headrace.config.settings import Settings
from headrace.metastore.api.commit import FileCommit
from headrace.metastore.api.inline import InlineRange
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.file_id import new_inline_file_id
from tests.metastore.commit_scenes import appended, batch, open_scene, pairs
from tests.metastore.sessions import Session
from tests.pgbouncer import SERVER_CONNECTIONS

MIB = 1 << 20
CLIENTS = 2 * SERVER_CONNECTIONS


@pytest.mark.requirement("X13")
@pytest.mark.parametrize("way", ["driver", "pgbouncer"])
async def test_a_file_of_one_mib_is_committed_and_read_back(
    way: str, metastore_url: str, postgres_server: EmbeddedPostgres, request: pytest.FixtureRequest
) -> None:
    """Alone, then of several clients at once: with PgBouncer more than it has server connections, in transaction
    mode."""
    url = metastore_url
    if way == "pgbouncer":  # skips where it is missing
        port = request.getfixturevalue("pooler_port")
        url = postgres_server.tcp_url(urlsplit(metastore_url).path.lstrip("/"), port)
    store = await PostgresMetastore.open(url, Settings(metastore_pool_size=CLIENTS))
    scene = await open_scene(store, partitions=CLIENTS)
    await store.inline.rotate_inline_slots(1 << 30, 60_000)
    slot, rng = (await store.inline.inline_state()).slot, random.Random(13)

    async def commit_and_read(key: int, expected: int) -> None:
        body = rng.randbytes(MIB)
        file_id = new_inline_file_id(time.time_ns() // 1_000_000, slot, rng)
        (answer,) = await scene.commit(FileCommit(file_id, MIB, [batch(key)._replace(length=MIB - 100)], body))
        assert pairs(answer.batches) == appended(expected)
        whole, part = await store.inline.read_inline(
            [InlineRange(file_id, 0, 0), InlineRange(file_id, MIB // 2 + 1, 70_000)]
        )
        assert whole == body
        assert part == body[MIB // 2 + 1 : MIB // 2 + 70_001]

    await commit_and_read(scene.keys[0], 0)
    await asyncio.gather(*(commit_and_read(key, 5 if key == scene.keys[0] else 0) for key in scene.keys))
    await store.close()


@pytest.mark.requirement("X13")
async def test_a_look_at_a_drained_slot_does_not_read_what_retention_removed(
    metastore_url: str, metastore: PostgresMetastore, raw: Session
) -> None:
    """It is under the slot's exclusive lock, and retention of a busy topic leaves many removed extents for an hour."""
    await metastore.inline.rotate_inline_slots(1 << 30, 60_000)
    slot = (await metastore.inline.inline_state()).slot
    await raw.execute(
        "INSERT INTO inline_files SELECT %s, gen_random_uuid(), 'x' FROM generate_series(1, 100)", (slot,)
    )
    await raw.execute(
        "INSERT INTO removed_extents (partition_key, last_offset, base_offset, file_id, position, length, leader_epoch,"
        " max_timestamp, removed_at, life) SELECT 1 << 24, n, n, md5((n % 20)::text)::uuid, 0, 1, 0, 0, now(), 0"
        " FROM generate_series(1, 5000) AS n"
    )
    await raw.execute("ANALYZE removed_extents")
    question = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT is_inline_slot_kept({slot}::smallint, 8)".encode()
    await raw.execute(question)  # the first call reads catalogs
    (((explained,),),) = await (await raw.execute(question)).fetchall()
    assert explained["Plan"]["Shared Hit Blocks"] + explained["Plan"]["Shared Read Blocks"] < 1_000
