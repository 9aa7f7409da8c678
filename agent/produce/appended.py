"""What a commit's answers say that readers see.

Place: between the commit (commit.py) and the readers of this agent, which then need no poll of the feed.
Invariant: says all that the call appended, or nothing. The extents are those of the feed: a partition's neighbours in
one file are one extent.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.metastore.api.commit import (
    BatchAnswer,
    BatchOutcome,
    BatchTransaction,
    FileAnswer,
    FileCommit,
    MovedKeys,
    StagedBatch,
)
from headrace.metastore.api.read import Extent


def appended_extents(commits: Sequence[FileCommit], answers: Sequence[FileAnswer]) -> list[Extent] | None:
    """In the order of the files. None if the answers do not tell: for a transaction, what is open; for a batch that
    was accepted under any leader epoch or for an alias, the epoch and the partition.
    """
    found: list[Extent] = []
    for commit, answer in zip(commits, answers, strict=True):
        for batch, judged in zip(commit.batches, answer.batches, strict=False):  # none of a file that failed
            if not _tells_all(batch):
                return None
            if judged.outcome is BatchOutcome.APPENDED:
                _add(found, _extent(commit, batch, judged))
    return found


def _tells_all(batch: StagedBatch) -> bool:
    return (
        batch.transaction == BatchTransaction.NO_TRANSACTION
        and batch.leader_epoch >= 0
        and batch.partition_count > max(MovedKeys)
    )


def _extent(commit: FileCommit, batch: StagedBatch, judged: BatchAnswer) -> Extent:
    return Extent(
        batch.partition_key,
        judged.base_offset,
        judged.base_offset + batch.record_count - 1,
        commit.file_id,
        batch.position,
        batch.length,
        batch.leader_epoch,
        judged.append_time_ms,
    )


def _add(found: list[Extent], extent: Extent) -> None:
    before = found[-1] if found else None
    if (
        before is not None
        and before.partition_key == extent.partition_key
        and before.file_id == extent.file_id
        and before.position + before.length == extent.position
        and before.last_offset + 1 == extent.base_offset
    ):
        found[-1] = before._replace(
            last_offset=extent.last_offset,
            length=before.length + extent.length,
            max_timestamp=max(before.max_timestamp, extent.max_timestamp),
        )
    else:
        found.append(extent)
