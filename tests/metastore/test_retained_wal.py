"""WAL that Postgres keeps because nothing archives it speaks against inline files, also if nothing is said (X13)."""

from __future__ import annotations

import pytest

from headrace.metastore.postgres.store import PostgresMetastore
from tests.metastore.sessions import rows, session
from tests.metastore.sql_sources import plant

pytestmark = pytest.mark.requirement("X13")


async def test_a_wal_file_ends_where_the_next_one_begins(metastore: PostgresMetastore, metastore_url: str) -> None:
    async with session(metastore_url) as raw:
        for position in ("0/1000028", "5/A3000028", "5/FFFFFFFE", "1A/1000001"):
            ((name, end),) = await rows(
                raw, "SELECT pg_walfile_name(%s::pg_lsn), wal_file_end(pg_walfile_name(%s::pg_lsn))", position, position
            )
            around = "SELECT pg_walfile_name(%s::pg_lsn - 1::numeric), pg_walfile_name(%s::pg_lsn + 1::numeric)"
            ((last, following),) = await rows(raw, around, end, end)
            assert last == name < following
        for name in ("00000002.history", "archive"):
            assert await rows(raw, "SELECT wal_file_end(%s)", name) == [(None,)]


async def test_a_hung_archiver_retains_wal(metastore: PostgresMetastore, metastore_url: str) -> None:
    """It has archived the first file of all and nothing since; and one that is up to date."""
    assert (await metastore.inline.inline_state()).retained_wal_bytes == 0
    archiver = "FROM pg_stat_archiver WHERE current_setting('archive_mode') <> 'off')"
    retained = []
    for position in ("'0/1'", "pg_current_wal_lsn()"):
        name = f"(SELECT pg_walfile_name({position}::pg_lsn) AS last_archived_wal)"
        plant(metastore_url, "inline_state", archiver, f"FROM {name} AS a)")
        retained.append((await metastore.inline.inline_state()).retained_wal_bytes)
    ((now,),) = await _position(metastore_url)
    assert 0 < retained[0] <= now
    assert retained[1] == 0


async def _position(url: str) -> list[tuple[int]]:
    async with session(url) as raw:
        return await rows(raw, "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint")  # type: ignore[return-value]
