"""Every kind of lease is sorted: its holder reads segment files, so the lease pins what it planned; or it reads none.

A kind that is not sorted here fails, so that a new job neither reads files that the janitor deletes, nor keeps every
dead file for as long as it hangs.
"""

from __future__ import annotations

import ast
import re
import uuid
from pathlib import Path

import pytest

from headrace.agent.cluster.controller.schedules import PLAN_COMPACTION_JOB
from headrace.compactor.cleaning.job import KIND as CLEAN
from headrace.compactor.cleaning.job import LARGE_KIND as CLEAN_LARGE
from headrace.compactor.cleaning.planner import RESERVED_KIND
from headrace.compactor.compact import KIND as COMPACT
from headrace.compactor.compact import LARGE_KIND
from headrace.compactor.mending.mend import KIND as MEND
from headrace.metastore.api.audit_archive import ARCHIVE_AUDIT, ARCHIVE_ROWS
from headrace.metastore.api.cleaning import PLAN_CLEANING_JOB
from headrace.metastore.api.files import DELETE_DEAD_FILES, SWEEP_ORPHANS
from headrace.metastore.api.jobs import JobSchedule, NewJob
from headrace.metastore.api.outcomes import RECORD_OUTCOMES
from headrace.metastore.api.pins import READ_PIN
from headrace.metastore.api.retention import RETENTION_JOB
from headrace.metastore.api.segments import CLEAN_UP_SEGMENTS_JOB
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.scan.tables.upkeep.jobs import UpkeepSchedule
from tests.manual_clock import ManualClock
from tests.metastore.sessions import Session, rows
from tests.metastore.sql_sources import plant

ROOT = Path(__file__).parents[2]
FOLDERS = ("agent", "cli", "client", "compactor", "metastore", "scan", "spark")
LEASE_MS = 3_600_000

READS = {COMPACT, LARGE_KIND, CLEAN, CLEAN_LARGE, RESERVED_KIND, MEND, READ_PIN}
"""The holder plans reads of segment files under its lease. READ_PIN: of scans. RESERVED_KIND becomes CLEAN."""

READS_NONE = {*UpkeepSchedule(None, "prod.sales of 2026", 1, ManualClock()).kinds, ARCHIVE_ROWS}  # type: ignore[arg-type]
"""Done once, as those, and without a segment file."""

PERIODIC = {
    *(RETENTION_JOB, PLAN_COMPACTION_JOB, PLAN_CLEANING_JOB, CLEAN_UP_SEGMENTS_JOB),
    *(DELETE_DEAD_FILES.kind, SWEEP_ORPHANS.kind, RECORD_OUTCOMES.kind, ARCHIVE_AUDIT.kind),
}
"""Housekeeping: none of them plans a read."""

MADE = {
    ("agent/cluster/controller/schedules.py", "RETENTION_JOB"): {RETENTION_JOB},
    ("agent/cluster/controller/schedules.py", "PLAN_COMPACTION_JOB"): {PLAN_COMPACTION_JOB},
    ("agent/cluster/controller/schedules.py", "PLAN_CLEANING_JOB"): {PLAN_CLEANING_JOB},
    ("agent/cluster/controller/schedules.py", "CLEAN_UP_SEGMENTS_JOB"): {CLEAN_UP_SEGMENTS_JOB},
    ("compactor/audit_archive.py", "ARCHIVE_ROWS"): {ARCHIVE_ROWS},
    ("compactor/cleaning/job.py", "LARGE_KIND"): {CLEAN_LARGE},
    ("compactor/cleaning/planner.py", "COMPACT"): {COMPACT},
    ("compactor/cleaning/planner.py", "kind"): {CLEAN, CLEAN_LARGE, RESERVED_KIND},
    ("compactor/mending/mend.py", "KIND"): {MEND},
    ("compactor/planner.py", "kind"): {COMPACT, LARGE_KIND},
    ("metastore/api/audit_archive.py", "'archive-audit'"): {ARCHIVE_AUDIT.kind},
    ("metastore/api/files.py", "'delete'"): {DELETE_DEAD_FILES.kind},
    ("metastore/api/files.py", "'sweep'"): {SWEEP_ORPHANS.kind},
    ("metastore/api/outcomes.py", "'record-outcomes'"): {RECORD_OUTCOMES.kind},
    ("scan/tables/upkeep/jobs.py", "upkeep"): {"table-upkeep prod.sales of 2026"},
    ("scan/tables/upkeep/jobs.py", "orphans"): {"table-orphans prod.sales of 2026"},
}
"""The kinds by the place that makes jobs of them: a file, and the first argument of NewJob or JobSchedule."""


def _made() -> set[tuple[str, str]]:
    found = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            if "NewJob(" not in text and "JobSchedule(" not in text:
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in ("NewJob", "JobSchedule"):
                    first = node.args[0] if node.args else node.keywords[0].value
                    found.add((path.relative_to(ROOT).as_posix(), ast.unparse(first)))
    return found


def test_every_kind_is_sorted() -> None:
    assert _made() == MADE.keys(), (
        "say in MADE which kind is made there, and sort it: does its holder read segment files?"
    )
    kinds = set[str]().union(*MADE.values())
    assert kinds | {READ_PIN} == READS | READS_NONE | PERIODIC
    assert len(READS) + len(READS_NONE) + len(PERIODIC) == len(READS | READS_NONE | PERIODIC)


def test_sql_makes_no_kind_but_the_read_pin() -> None:
    """Functions of jobs store the kind that they are given."""
    texts = [path.read_text() for path in (ROOT / "metastore").rglob("*.sql")]
    made = [each for text in texts for each in re.findall(r"INTO jobs\b.*?(?:VALUES|SELECT)\s*\(?([^,]*),", text, re.S)]
    assert sorted(made) == ["'read'", "kind", "kind"], made


async def _is_pinned(raw: Session) -> bool:
    return bool((await rows(raw, "SELECT read_horizon(0) < 'infinity'"))[0][0])


async def test_only_holders_that_read_segment_files_pin_them(metastore: PostgresMetastore, raw: Session) -> None:
    lease = await metastore.hold_controller_lease(0, uuid.UUID(int=1), 60_000)
    await metastore.schedule_jobs(lease.controller_epoch, [JobSchedule(kind, 60_000) for kind in sorted(PERIODIC)])
    for kind in sorted(PERIODIC | READS_NONE | READS - {READ_PIN} | {"of a later version"}):
        if kind not in PERIODIC:
            await metastore.enqueue_jobs([NewJob(kind, "x")])
        job = await metastore.claim_job("w", [kind], LEASE_MS)
        assert job is not None, kind
        assert await _is_pinned(raw) == (kind not in PERIODIC | READS_NONE), kind
        await metastore.finish_job(job.token)
    granted = await metastore.pin_reads("scan", 60_000, 60_000)
    assert granted.token is not None
    assert await _is_pinned(raw)


async def test_upkeep_of_a_table_that_hangs_keeps_no_dead_file(metastore: PostgresMetastore, raw: Session) -> None:
    """Its heartbeats renew the lease, and only another holder's lease counts."""
    upkeep, _ = UpkeepSchedule(metastore, "lake.default", 1, ManualClock()).kinds
    await metastore.enqueue_jobs([NewJob(upkeep, "orders"), NewJob(COMPACT, "1")])
    hanging = await metastore.claim_job("w", [upkeep], LEASE_MS)
    merge = await metastore.claim_job("w", [COMPACT], LEASE_MS)
    assert hanging is not None
    assert merge is not None
    assert await _is_pinned(raw)
    await metastore.finish_job(merge.token)
    await metastore.heartbeat_job(hanging.token, LEASE_MS, "")
    assert not await _is_pinned(raw)


@pytest.mark.parametrize(
    "kinds",
    ["'table-upkeep', 'table-orphans', 'archive-audit-rows', 'compact'", "'table-orphans', 'archive-audit-rows'"],
)
async def test_a_kind_that_is_sorted_wrongly_is_caught(
    metastore: PostgresMetastore, metastore_url: str, raw: Session, kinds: str
) -> None:
    plant(metastore_url, "read_horizon", "'table-upkeep', 'table-orphans', 'archive-audit-rows'", kinds)
    with pytest.raises(AssertionError, match=r"compact|table-upkeep"):
        await test_only_holders_that_read_segment_files_pin_them(metastore, raw)
