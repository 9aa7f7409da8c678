"""The audit trail's objects in Postgres: implements metastore.api.audit_archive.AuditArchiveApi.

Place: under the compactor's jobs `archive-audit` and `archive-audit-rows`.
Invariant: each call is one statement. What a lease changes is fenced by it.
"""

from __future__ import annotations

from headrace.metastore.api.audit_archive import ArchivedAudit, AuditArchiveApi
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.postgres.pass_through import PostgresNoun, calls
from headrace.metastore.postgres.statement import Statement

_ARCHIVABLE_AUDIT = Statement("archivable_audit", writes=False)
_ARCHIVE_AUDIT = Statement("archive_audit", writes=True)
_JOIN_AUDIT = Statement("join_audit", writes=True)


class PostgresAuditArchive(PostgresNoun):
    """Implements AuditArchiveApi."""

    archiving_epochs = calls(AuditArchiveApi.archiving_epochs, writes=False)
    archived_audit = calls(AuditArchiveApi.archived_audit, writes=False)
    due_audit = calls(AuditArchiveApi.due_audit, writes=False, row_limit="limit")
    drop_audit = calls(
        AuditArchiveApi.drop_audit,
        writes=True,
        partitions="gone.metadata_partition",
        first_offsets="gone.first_offset",
        last_offsets="gone.last_offset",
    )

    async def archivable_audit(self, records: int) -> list[tuple[int, int]]:
        return [(row[0], row[1]) for row in await _ARCHIVABLE_AUDIT.rows(self.pool, records=records)]

    async def archive_audit(self, token: JobToken, archived: ArchivedAudit) -> bool:
        (is_done,) = await _ARCHIVE_AUDIT.row(self.pool, **token._asdict(), **_columns(archived))
        return bool(is_done)

    async def join_audit(self, token: JobToken, joined: ArchivedAudit, objects: int) -> bool:
        (is_done,) = await _JOIN_AUDIT.row(self.pool, **token._asdict(), **_columns(joined), objects=objects)
        return bool(is_done)


def _columns(archived: ArchivedAudit) -> dict[str, int]:
    """The parameters that a row is; its epoch is the token's."""
    columns = archived._asdict()
    del columns["epoch"], columns["is_due"]
    return columns
