"""Judges the backups of Postgres: whether there is one, and whether the bucket keeps what a restore needs.

Place: one part of the area postgres of `headrace doctor`, when the bucket is readable.
Invariant: reads only. A backup is known by its record (`headrace backup`), because Postgres does not keep one.
"""

from __future__ import annotations

from headrace.cli.doctor.findings import Area, Finding
from headrace.metastore.backups import BackupRecord, WalArchive, backup_age_s, backup_problem

AREA = Area("postgres")
TO_DO = "docs/operate/BACKUPS.md has recipes, and which file.delete.delay.ms they need"


def judge_backup(record: BackupRecord | None, archive: WalArchive, now_ms: int, delay_ms: int) -> Finding:
    """`now_ms`: since the epoch; `delay_ms`: file.delete.delay.ms as the cluster has it."""
    problem = backup_problem(record, archive, now_ms, delay_ms)
    if record is None:
        return AREA.warn("backup", str(problem), f"take one and record it: headrace backup; {TO_DO}")
    if problem is not None:
        return AREA.warn("backup", problem, f"take backups more often, or raise file.delete.delay.ms; {TO_DO}")
    age_s = backup_age_s(record, archive, now_ms)
    return AREA.ok("backup", f"a restore ({record.kind}) would go back {age_s / 3600:.1f} h")
