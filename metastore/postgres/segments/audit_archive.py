"""The audit trail's objects in Postgres: implements metastore.api.audit_archive.AuditArchiveApi.

Place: under the compactor's jobs `archive-audit` and `archive-audit-rows`.
Invariant: each call is one statement. What a lease changes is fenced by it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from headrace.metastore.api.audit_archive import ArchivedAudit
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.audit_trail.objects import BLOCK_RECORDS
from headrace.metastore.postgres.statement import Pool, Statement

_ARCHIVABLE_AUDIT = Statement("archivable_audit", writes=False)
_ARCHIVING_EPOCHS = Statement("archiving_epochs", writes=False)
_ARCHIVE_AUDIT = Statement("archive_audit", writes=True)
_OLDEST_AUDIT_BLOCK = Statement("oldest_audit_block", writes=False)
_JOIN_AUDIT = Statement("join_audit", writes=True)
_ARCHIVED_AUDIT = Statement("archived_audit", writes=False)
_DUE_AUDIT = Statement("due_audit", writes=False)
_DROP_AUDIT = Statement("drop_audit", writes=True)


class PostgresAuditArchive:
    """Implements AuditArchiveApi, and its part of HousekeepingApi."""

    pool: Pool

    async def archivable_audit(self, records: int) -> list[tuple[int, int]]:
        return [(row[0], row[1]) for row in await _ARCHIVABLE_AUDIT.rows(self.pool, records=records)]

    async def oldest_audit_block(self) -> float:
        (waits_s,) = await _OLDEST_AUDIT_BLOCK.row(self.pool, records=BLOCK_RECORDS)
        return float(waits_s)

    async def archiving_epochs(self, kind: str) -> set[int]:
        return {epoch for (epoch,) in await _ARCHIVING_EPOCHS.rows(self.pool, kind=kind)}

    async def archive_audit(self, token: JobToken, archived: ArchivedAudit) -> bool:
        (is_done,) = await _ARCHIVE_AUDIT.row(self.pool, **token._asdict(), **_columns(archived))
        return bool(is_done)

    async def join_audit(self, token: JobToken, joined: ArchivedAudit, objects: int) -> bool:
        (is_done,) = await _JOIN_AUDIT.row(self.pool, **token._asdict(), **_columns(joined), objects=objects)
        return bool(is_done)

    async def archived_audit(self, metadata_partition: int) -> list[ArchivedAudit]:
        rows = await _ARCHIVED_AUDIT.rows(self.pool, metadata_partition=metadata_partition)
        return [ArchivedAudit(*row) for row in rows]

    async def due_audit(self, limit: int) -> list[ArchivedAudit]:
        return [ArchivedAudit(*row) for row in await _DUE_AUDIT.rows(self.pool, row_limit=limit)]

    async def drop_audit(self, token: JobToken, incarnation_id: uuid.UUID, gone: Sequence[ArchivedAudit]) -> None:
        await _DROP_AUDIT.row(
            self.pool,
            job_id=token.job_id,
            epoch=token.epoch,
            incarnation_id=incarnation_id,
            partitions=[each.metadata_partition for each in gone],
            first_offsets=[each.first_offset for each in gone],
            last_offsets=[each.last_offset for each in gone],
        )


def _columns(archived: ArchivedAudit) -> dict[str, int]:
    """The parameters that a row is; its epoch is the token's."""
    columns = archived._asdict()
    del columns["epoch"], columns["is_due"]
    return columns
