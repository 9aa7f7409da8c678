"""Values of bringing back deleted topics, and records that a log start has removed, while the files are there.

Place: of TopicApi, between `headrace topics restore` and Postgres; a deletion and a moved log start keep what this
needs.
Invariant: what is put back is as it was. Nothing is put back of which a file may be deleted already, and no reader sees
a part of a topic: its extents come back first, then the topic in one transaction.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Sequence
from typing import NamedTuple


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
