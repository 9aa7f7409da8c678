"""Leases of jobs that read segment files keep these, and no others do: by what each kind declares (jobs/kinds.py)."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pytest

from headrace.jobs.kinds import COMPACT, KINDS, PERIODIC, TABLE_UPKEEP, JobKind
from headrace.metastore.postgres.store import PostgresMetastore
from tests.metastore.sessions import Session, rows, session

ROOT = Path(__file__).parents[2]
FOLDERS = ("agent", "cli", "client", "compactor", "jobs", "metastore", "scan", "spark", "tables")
LEASE_MS = 3_600_000
OF_A_LATER_VERSION = JobKind("of a later version", reads_segments=True)


def test_jobs_are_made_of_declared_kinds_alone() -> None:
    made = {
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"\b(NewJob|JobSchedule)\(", path.read_text())
    }
    assert made == {"jobs/kinds.py"}


def test_sql_makes_no_kind_but_the_read_pin() -> None:
    """Functions of jobs store the kind that they are given."""
    texts = [path.read_text() for path in (ROOT / "metastore").rglob("*.sql")]
    made = [each for text in texts for each in re.findall(r"INTO jobs\b.*?(?:VALUES|SELECT)\s*\(?([^,]*),", text, re.S)]
    assert sorted(made) == ["'read'", "kind", "kind"], made


async def _is_pinned(raw: Session) -> bool:
    return bool((await rows(raw, "SELECT read_horizon(0) < 'infinity'"))[0][0])


async def test_only_holders_that_read_segment_files_pin_them(metastore: PostgresMetastore, metastore_url: str) -> None:
    lease = await metastore.controller.hold_controller_lease(0, uuid.UUID(int=1), 60_000)
    await metastore.jobs.schedule_jobs(lease.controller_epoch, [kind.schedule(lambda _: 60_000) for kind in PERIODIC])
    async with session(metastore_url) as raw:
        for kind in (*KINDS.values(), TABLE_UPKEEP.at("prod.sales of 2026"), OF_A_LATER_VERSION):
            if kind not in PERIODIC:
                await metastore.jobs.enqueue_jobs([kind.once("x")])
            job = await metastore.jobs.claim_job("w", [kind.name], LEASE_MS)
            assert job is not None, kind
            assert await _is_pinned(raw) == kind.reads_segments, kind
            await metastore.jobs.finish_job(job.token)
        granted = await metastore.jobs.pin_reads("scan", 60_000, 60_000)
        assert granted.token is not None
        assert await _is_pinned(raw)


async def test_upkeep_of_a_table_that_hangs_keeps_no_dead_file(
    metastore: PostgresMetastore, metastore_url: str
) -> None:
    """Its heartbeats renew the lease, and only another holder's lease counts."""
    upkeep = TABLE_UPKEEP.at("lake.default")
    await metastore.jobs.enqueue_jobs([upkeep.once("orders"), COMPACT.once("1")])
    hanging = await metastore.jobs.claim_job("w", [upkeep.name], LEASE_MS)
    merge = await metastore.jobs.claim_job("w", [COMPACT.name], LEASE_MS)
    assert hanging is not None
    assert merge is not None
    async with session(metastore_url) as raw:
        assert await _is_pinned(raw)
        await metastore.jobs.finish_job(merge.token)
        await metastore.jobs.heartbeat_job(hanging.token, LEASE_MS, "")
        assert not await _is_pinned(raw)


@pytest.mark.parametrize(
    "kinds",
    ["'table-upkeep', 'table-orphans', 'archive-audit-rows', 'compact'", "'table-orphans', 'archive-audit-rows'"],
)
async def test_a_kind_that_is_sorted_wrongly_is_caught(
    metastore: PostgresMetastore, metastore_url: str, kinds: str
) -> None:
    source = (ROOT / "metastore/postgres/files/read_horizon.sql").read_text()
    right = "'table-upkeep', 'table-orphans', 'archive-audit-rows'"
    assert right in source
    async with session(metastore_url) as raw:
        await raw.execute(source.replace(right, kinds).encode())
    with pytest.raises(AssertionError, match=r"compact|table-upkeep"):
        await test_only_holders_that_read_segment_files_pin_them(metastore, metastore_url)
