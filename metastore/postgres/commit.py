"""Commit: one round trip that orders stored files' batches (functions/commit_files.sql).

Place: between the stored file and the acknowledgement.
Invariant: the call may be repeated as it is; a file id is judged once and answered alike ever after.
If the process dies here, Postgres finishes the statement or rolls it back; nobody is held up.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.metastore.postgres.staging import Staged
from headrace.metastore.postgres.statement import Pool, Statement
from headrace.metastore.values import FileAnswer, FileCommit, FileStatus

_COMMIT_FILES = Statement("commit_files", writes=True)


async def commit_files(
    pool: Pool,
    node_id: int,
    broker_epoch: int,
    files: Sequence[FileCommit],
    *,
    producer_id_expiration_ms: int,
) -> list[FileAnswer]:
    """metastore.api.CommitApi.commit_files.

    InvalidError for input that no repetition mends (see Staged), or a file id that was committed with
    other batches: nothing has happened in this call then, to any of its files.
    """
    if not files:
        return []
    staged = Staged(files)
    rows = await _COMMIT_FILES.rows(
        pool,
        node_id=node_id,
        broker_epoch=broker_epoch,
        producer_expiration_ms=producer_id_expiration_ms,
        **staged.parameters(),
    )
    return [
        FileAnswer(file.file_id, FileStatus(status), staged.answers(number, answer) if answer else [])
        for number, (file, (status, answer)) in enumerate(zip(files, rows, strict=True))
    ]
