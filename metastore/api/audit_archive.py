"""The older part of the audit trail at the boundary: which objects of the bucket hold it.

Place: written by the compactor's jobs `archive-audit` and `archive-audit-rows`, read by all readers of the trail
through SegmentLogApi.
Invariant: each record of the trail, from its start on, is in one place: in a row of remote_segment_events, or in the
object of one row of archived_audit that is not due. Records in objects are below all records in rows. Audit offsets
never change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from headrace.metastore.api.jobs import JobToken

AUDIT_PREFIX = "metastore/audit-trail/"


class ArchivedAudit(NamedTuple):
    """A row of archived_audit. Offsets are inclusive, sizes in bytes; `epoch`: of the lease that wrote the object."""

    metadata_partition: int
    first_offset: int
    last_offset: int
    records: int
    newest_ms: int
    size: int
    index_size: int
    epoch: int
    is_due: bool = False
    """Whether no reader needs it: it is below the trail's start, or was joined with others. It will be deleted."""

    @property
    def object_key(self) -> str:
        """Each lease writes under other keys, so an object is never replaced by different bytes."""
        span = f"{self.first_offset:019}-{self.last_offset:019}-{self.epoch}"
        return f"{AUDIT_PREFIX}{self.metadata_partition:02}/{span}"


class AuditArchiveApi(Protocol):
    """What the job needs. A call that takes a token is fenced by that lease: FencedError once it is lost."""

    async def archivable_audit(self, records: int) -> list[tuple[int, int]]:
        """(metadata partition, first offset) where there are at least so many rows.

        None below metadata.format 4: agents of the release before do not read objects.
        """

    async def archiving_epochs(self, kind: str) -> set[int]:
        """The epochs of all leases of jobs of `kind` that hold, or that expired and no worker claimed yet.

        Only these, of the epochs given so far, can still name an object.
        """

    async def archive_audit(self, token: JobToken, archived: ArchivedAudit) -> bool:
        """Replace the rows by the object, which is stored. Idempotent.

        False, and nothing changed, unless these are exactly the oldest rows of their metadata partition.
        """

    async def join_audit(self, token: JobToken, joined: ArchivedAudit, objects: int) -> bool:
        """Replace the rows of so many neighbours, which become due, by that of one object, which is stored. Idempotent.

        False, and nothing changed, unless these are exactly the rows of its range.
        """

    async def archived_audit(self, metadata_partition: int) -> list[ArchivedAudit]:
        """All rows of a metadata partition, in the order of their offsets, due ones too."""

    async def due_audit(self, limit: int) -> list[ArchivedAudit]:
        """Objects that are due for the cluster's file.delete.delay.ms."""

    async def drop_audit(self, token: JobToken, incarnation_id: UUID, gone: Sequence[ArchivedAudit]) -> None:
        """Forget due objects, after they were deleted. Idempotent. FencedError in another life of the metastore."""
