"""The doctor says when low.latency.enable is worth a look, from the sizes of files in a real index (X13)."""

from __future__ import annotations

import random
import time
import uuid

import psycopg
import pytest

from headrace.config.settings import Settings
from headrace.metastore.postgres.diagnosis.diagnosis import FlushFiles, flush_files
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.file_id import new_bulk_file_id, new_file_id, new_inline_file_id
from tests.cli.doctor.world import examined_cluster
from tests.metastore.sessions import set_for_cluster

pytestmark = pytest.mark.requirement("X13")
SMALL = 64 * 1024


def store(url: str, files: dict[uuid.UUID, tuple[int, int]]) -> None:
    """Rows of files: level and size."""
    with psycopg.connect(url, autocommit=True) as raw:
        raw.cursor().executemany(
            "INSERT INTO segment_files (file_id, state, level, size, body_bytes, live_bytes, committed_at)"
            " VALUES (%s, 0, %s, %s, 1, 1, now())",
            [(file_id, level, size) for file_id, (level, size) in files.items()],
        )


async def test_the_sizes_of_flush_files_alone_count(metastore: PostgresMetastore, metastore_url: str) -> None:
    assert await flush_files(metastore.pool, SMALL) == FlushFiles(0, 0, 0)
    rng, now = random.Random(1), time.time_ns() // 1_000_000
    files = {new_file_id(now - 1_000 * number, rng): (0, SMALL + number % 10 // 9) for number in range(101)}
    files |= {new_file_id(now, rng, 1): (1, 1_000) for _ in range(50)}
    files |= {new_inline_file_id(now, 3, rng): (0, 1_000), new_bulk_file_id(now, 1, rng): (0, 1_000)}
    store(metastore_url, files)
    assert await flush_files(metastore.pool, SMALL) == FlushFiles(101, 91, 100_000)
    store(metastore_url, {new_file_id(now + 1 + number, rng): (0, SMALL + 1) for number in range(1_000)})
    assert await flush_files(metastore.pool, SMALL) == FlushFiles(1_000, 0, 999)


async def test_the_line_is_there_until_it_is_turned_on(metastore: PostgresMetastore, metastore_url: str) -> None:
    rng, now = random.Random(1), time.time_ns() // 1_000_000
    store(metastore_url, {new_file_id(now - number, rng): (0, 1_000) for number in range(200)})
    on_s3 = Settings(metastore_url=metastore_url, bucket="s3://b/p")
    level, told, to_do = (await examined_cluster(on_s3))["low latency"]
    assert (level, to_do) == ("ok", "")
    assert told.startswith("off; 100 % of the newest 200 files are below 64 KiB")
    assert "low latency" not in await examined_cluster(Settings(metastore_url=metastore_url, bucket="file:///d"))
    await set_for_cluster(metastore, "low.latency.enable", "true")
    assert "100 %" not in (await examined_cluster(on_s3)).get("low latency", ("", "", ""))[1]
