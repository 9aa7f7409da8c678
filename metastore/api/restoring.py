"""Bringing back deleted topics, records that a log start has removed, and an index of files, while the files are there.

Place: between `headrace topics restore` and Postgres; a deletion and a moved log start keep what this needs. An index
is made again from the bucket while no agent runs (compactor/rebuild.py): files first, then their extents.
Invariant: what is put back is as it was. Nothing is put back of which a file may be deleted already, and no reader sees
a part of a topic: its extents come back first, then the topic in one transaction.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from headrace.metastore.api.files import FoundFile
from headrace.metastore.api.read import Extent


class RestoreOutcome(enum.IntEnum):
    """What became of a call. Unless it is DONE or UNFINISHED, nothing happened."""

    DONE = 0
    UNFINISHED = 1
    """Ask again."""
    HEAD_MOVED = 2
    """The metadata log has moved on: judge again."""
    GONE = 3
    """There is no such deleted topic or partition, or it can no longer be restored."""
    ANOTHER_LIFE = 4
    """It was deleted in another life of the metastore: what its files are since then is not known."""
    NAME_TAKEN = 5
    """A topic has that name."""
    FILES_GONE = 6
    """A file may be deleted already."""
    COMPACTED = 7
    """The partition is compacted by key: keys that were removed since would come back."""
    MARKED = 8
    """The partition takes no new records, and is removed once it is empty."""


class RestorableTopic(NamedTuple):
    """A deleted topic. Times in ms since the epoch on the database's clock."""

    topic_number: int
    topic_id: uuid.UUID
    name: str
    deleted_ms: int
    until_ms: int | None
    """The time until which it can be restored; None while the cluster has no file.delete.delay.ms."""
    partition_count: int
    record_count: int
    """Offsets from the log starts to the high watermarks."""
    size_bytes: int
    deleted_life: int
    life: int
    """The metastore's present one."""
    records: Sequence[bytes]
    """What the metadata log said of it, framed; only of a topic that was asked for."""


class Revived(NamedTuple):
    """What one call put back."""

    outcome: RestoreOutcome
    extents: int


class RemovedRecords(NamedTuple):
    """What of a partition was removed by its log start and is still whole: offsets from `lowest` to the log start."""

    partition_key: int
    outcome: RestoreOutcome
    """DONE; or why none can be restored."""
    log_start_offset: int
    lowest: int
    """The lowest offset from which on nothing is missing; the log start if there is none below it."""
    kept_from: int
    """The lowest of these that retention would not remove again; the log start if it would remove all."""
    extents: int
    """Removed extents from `kept_from` on; so are the next two."""
    size_bytes: int
    removed_ms: int
    """When the first of them was removed; -1 without extents."""


class MovedBack(NamedTuple):
    """A log start after one call."""

    outcome: RestoreOutcome
    log_start_offset: int
    extents: int
    size_bytes: int


class RestoreApi(Protocol):
    """What an operator can bring back."""

    async def restorable_topics(self, topic_number: int | None = None) -> list[RestorableTopic]:
        """Return the deleted topics that can be restored, the newest deletion first; `topic_number`: only this one."""

    async def revive_topic(self, topic_number: int, *, limit: int) -> Revived:
        """Put up to `limit` extents of a deleted topic back; no reader sees them. DONE: all are back.

        Nothing of the topic is purged until a minute after the newest call. Idempotent.
        """

    async def restore_topic(
        self, expected_head: int, topic_number: int, name: str, records: Sequence[bytes], epochs: Mapping[int, int]
    ) -> RestoreOutcome:
        """Append the topic's records and bring its rows back in one transaction, after revive_topic was DONE.

        `records`: of metastore/log/restored_topic.py, with the leader epochs in `epochs` by partition.
        """

    async def removed_records(
        self,
        keys: Sequence[int],
        *,
        extents_max: int,
        retention_ms: int = -1,
        retention_bytes: int = -1,
    ) -> list[RemovedRecords]:
        """Return what can be restored below the log start, one answer per partition in order.

        Looks at up to `extents_max` extents of each: what is below them is not counted. `retention_ms` and
        `retention_bytes`: the topic's; -1: retention removes nothing.
        """

    async def restore_records(self, key: int, offset: int, *, limit: int) -> MovedBack:
        """Move a log start back towards `offset`, over up to `limit` removed extents, and announce it.

        Each call leaves a whole log. UNFINISHED: there is more to restore. Idempotent.
        """

    async def rebuild_files(self, files: Sequence[FoundFile]) -> int:
        """Name files again; how many were not named yet. Those without live bytes are dead.

        For a metastore that lost its rows, while no agent runs: readers are not told.
        """

    async def rebuild_extents(self, extents: Sequence[Extent]) -> None:
        """Store extents of files that were named so; of each partition in offset order, over all calls. Leader
        epochs are ours.

        The first extent of a partition decides its log start, the last its high watermark.
        """
