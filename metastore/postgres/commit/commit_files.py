"""Commit: one round trip that orders stored files' batches (commit_files.sql).

Place: between the stored file and the acknowledgement; implements CommitApi.
Invariant: a call can be repeated unchanged: a file id is judged once and always gets the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.metastore.api.commit import FileAnswer, FileCommit, FileStatus
from headrace.metastore.postgres.commit.staging import Staged
from headrace.metastore.postgres.pass_through import PostgresNoun
from headrace.metastore.postgres.statement import Statement
from headrace.storage.errors import InvalidError

PRODUCER_IDS_MAX = 1_000_000
"""Most producer ids of one block."""
_COMMIT_FILES = Statement("commit_files", writes=True)
_ALLOCATE_PRODUCER_IDS = Statement("allocate_producer_ids", writes=True)


class PostgresCommit(PostgresNoun):
    """Implements CommitApi, but for bulk writes."""

    async def commit_files(self, node_id: int, broker_epoch: int, files: Sequence[FileCommit]) -> list[FileAnswer]:
        """InvalidError for input that cannot be right (see Staged), or for a file id that was committed with other
        batches: then no file of the call was committed.
        """
        if not files:
            return []
        files = [FileCommit(file.file_id, file.size, list(file.batches)) for file in files]
        staged = Staged(files)
        rows = await _COMMIT_FILES.rows(
            self.pool,
            node_id=node_id,
            broker_epoch=broker_epoch,
            producer_expiration_ms=self.settings.producer_id_expiration_ms,
            **staged.parameters(),
        )
        return [
            FileAnswer(file.file_id, FileStatus(status), staged.answers(number, answer) if answer else [])
            for number, (file, (status, answer)) in enumerate(zip(files, rows, strict=True))
        ]

    async def allocate_producer_ids(self, count: int) -> range:
        """`count` from 1 to PRODUCER_IDS_MAX. If the answer is lost, the block is never used."""
        if not 1 <= count <= PRODUCER_IDS_MAX:
            raise InvalidError(f"producer ids refused: count={count}")
        (first,) = await _ALLOCATE_PRODUCER_IDS.row(self.pool, count=count)
        return range(first, first + count)
