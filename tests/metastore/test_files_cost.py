"""What the janitor asks costs what it gets, independent of what else is live, waits or is pinned in the metastore."""

from __future__ import annotations

import uuid

import pytest

from headrace.metastore.postgres.reports.reports import ReportQuery
from headrace.metastore.postgres.store import PostgresMetastore
from tests.metastore.sessions import Session, claim, rows

FILES = 5_000
LIMIT = 50
FILL = """
INSERT INTO segment_files (file_id, state, size, live_bytes, committed_at, dead_at)
SELECT gen_random_uuid(), 0, 100, CASE WHEN n %% 3 = 0 THEN 100 ELSE 0 END, clock_timestamp() - interval '3 days',
       CASE n %% 3 WHEN 1 THEN clock_timestamp() - interval '2 days' WHEN 2 THEN clock_timestamp() END
  FROM generate_series(1, %s) AS n RETURNING 1
"""
"""A third is live, a third is dead since long ago, a third since now."""


@pytest.mark.parametrize("files", [FILES, 8 * FILES])
async def test_taking_dead_files_touches_what_it_returns(
    metastore: PostgresMetastore, raw: Session, files: int
) -> None:
    job = await claim(metastore, "delete")
    await rows(raw, FILL, files)
    await raw.execute("ANALYZE segment_files")
    async with raw.transaction():
        taken = await rows(
            raw,
            "SELECT file_id FROM take_dead_files(%s, %s, %s, %s)",
            *job.token,
            metastore.incarnation_id,
            LIMIT,
        )
        ((scans, fetched),) = await rows(
            raw, "SELECT seq_scan, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'segment_files'"
        )
    assert len(taken) == LIMIT
    assert scans == 0
    assert fetched < 8 * LIMIT


async def test_condemning_and_auditing_touch_what_they_return(metastore: PostgresMetastore, raw: Session) -> None:
    job = await claim(metastore, "sweep")
    await rows(raw, FILL, FILES)
    await raw.execute("ANALYZE segment_files")
    async with raw.transaction():
        wanted = [uuid.uuid4() for _ in range(LIMIT)]
        condemned = await rows(
            raw,
            "SELECT condemn_files(%s, %s, %s, %s, %s, interval '0')",
            *job.token,
            metastore.incarnation_id,
            wanted,
            [1_000] * LIMIT,
        )
        page = await raw.execute(ReportQuery("audit_files").sql, {"after": uuid.UUID(int=0), "limit": LIMIT})
        audited = await page.fetchall()
        ((scans, fetched),) = await rows(
            raw, "SELECT seq_scan, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'segment_files'"
        )
    assert (len(condemned), len(audited), scans) == (LIMIT, LIMIT, 0)
    assert fetched < 8 * LIMIT
