"""Log starts: what decides them, and what moves them.

Place: compactor/retention.py decides with `oldest_extents` and acts with `move_log_starts`; agents
answer DeleteRecords with the latter.
Invariant: a log start only moves forward, never past the high watermark, and the feed announces it to
readers. Extents below it are removed in chunks, each in one transaction: those that are left are invisible
to every reader, and the next call continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from headrace.metastore.api.jobs import JobToken

TO_HIGH_WATERMARK = -1


class LogStartTarget(NamedTuple):
    """`offset`: the wanted log start, or TO_HIGH_WATERMARK."""

    partition_key: int
    offset: int


class LogStartAnswer(NamedTuple):
    """A target beyond `high_watermark` changed nothing; nor did one below the log start."""

    partition_key: int
    known: bool
    log_start_offset: int
    """The log start as it is now; this and the rest are -1 or 0 for a deleted partition."""
    high_watermark: int
    removed_extents: int
    removed_bytes: int
    has_more: bool
    """Extents below the log start are left: ask again."""


class OldestQuery(NamedTuple):
    """The first extents of a partition, up to `max_extents` of them."""

    partition_key: int
    max_extents: int


class OldExtent(NamedTuple):
    last_offset: int
    length: int
    newest_ms: int
    """The highest timestamp of its records; for records without one, when they were committed."""


class OldestExtents(NamedTuple):
    """A partition from its log start on."""

    partition_key: int
    known: bool
    log_start_offset: int
    high_watermark: int
    size_bytes: int
    has_leftovers: bool
    """Extents below the log start are still to be removed; `size_bytes` counts them."""
    extents: list[OldExtent]


class RetentionApi(Protocol):
    """What moves log starts, and what looks at logs from outside."""

    async def move_log_starts(self, targets: Sequence[LogStartTarget], *, max_extents: int) -> list[LogStartAnswer]:
        """Move log starts and remove up to `max_extents` extents below them; one answer per target, in order.

        Each partition is named once. Idempotent.
        """

    async def enforce_retention(
        self, targets: Sequence[LogStartTarget], *, max_extents: int, by: JobToken, metadata_offset: int
    ) -> list[LogStartAnswer] | None:
        """The same for retention, which decided by the metadata image at this offset; None, and nothing has happened,
        if a config changed since. FencedError unless the lease still holds.
        """

    async def oldest_extents(self, queries: Sequence[OldestQuery]) -> tuple[int, list[OldestExtents]]:
        """(the database's clock in ms, one answer per query in order); O(result)."""
