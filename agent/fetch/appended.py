"""What a commit's answers say that readers see.

Place: between the write path's commit and the tail index; readers then need no poll of the feed.
Invariant: says all that the call appended, or nothing. The extents are those of the feed: a partition's neighbours in
one file are one extent.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from headrace.metastore.api.commit import (
    NO_ALIAS,
    BatchOutcome,
    BatchTransaction,
    FileAnswer,
    FileCommit,
    MovedKeys,
    StagedBatch,
)
from headrace.metastore.api.read import Extent

NO_TRANSACTION, UNKNOWN_KEYS = int(BatchTransaction.NO_TRANSACTION), int(MovedKeys.UNKNOWN)
"""Not the members of the enums: these are compared for each batch."""


def appended_extents(commits: Sequence[FileCommit], answers: Sequence[FileAnswer]) -> list[Extent] | None:
    """In the order of the files. None if the answers do not tell: for a transaction, what is open; for a batch that
    was accepted under any leader epoch or for an alias, the epoch and the partition.
    """
    found: list[Extent] = []
    for commit, answer in zip(commits, answers, strict=True):
        run: list[tuple[StagedBatch, int]] = []
        for batch, judged in zip(commit.batches, answer.batches, strict=False):  # none of a file that failed
            if batch.transaction != NO_TRANSACTION or batch.leader_epoch < 0:
                return None
            if batch.keys != UNKNOWN_KEYS or batch.alias != NO_ALIAS:
                return None
            if judged.outcome != BatchOutcome.APPENDED:
                continue
            if run and not _follows(run[-1], batch, judged.base_offset):
                found.append(_extent(commit.file_id, run))
                run = []
            run.append((batch, judged.base_offset))
        if run:
            found.append(_extent(commit.file_id, run))
    return found


def _follows(before: tuple[StagedBatch, int], batch: StagedBatch, base_offset: int) -> bool:
    """Whether a batch is the neighbour of one, in the file and in the partition."""
    earlier, offset = before
    return (
        batch.position == earlier.position + earlier.length
        and base_offset == offset + earlier.record_count
        and batch.partition_key == earlier.partition_key
    )


def _extent(file_id: uuid.UUID, run: Sequence[tuple[StagedBatch, int]]) -> Extent:
    (first, base_offset), (last, last_base) = run[0], run[-1]
    return Extent(
        first.partition_key,
        base_offset,
        last_base + last.record_count - 1,
        file_id,
        first.position,
        last.position + last.length - first.position,
        first.leader_epoch,
        max(batch.max_timestamp for batch, _ in run),
    )
