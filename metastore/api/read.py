"""A reader's side of the boundary: extents, offsets, ends of leader epochs, the commit feed.

Place: agent/fetch, before the first byte is read.
Invariant: every answer is the primary's, as of one snapshot; its cost depends on the answer, not on the history.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeGuard

from headrace.storage.segment.damage import BatchRun

EXTENTS_PER_CALL = 4_000
"""About how many extents one call of find_extents returns: enough for a response, and found in 0.1 s."""
ALL_BYTES = 1 << 62
"""No limit."""
_VERSION_SHIFT = 76
"""The place of an id's version: markers have 0, files 7 or 8."""
NONE_OPEN = -1
"""The value in place of a first open offset: the partition has no open transaction, and the last stable offset is
the high watermark.
"""


class Extent(NamedTuple):
    """A run of consecutive live batches of one partition inside one segment file, or the marker of a transaction, which
    is in no file. What reads a file takes a `DataExtent`: `is_in_file` tells them apart.
    """

    partition_key: int
    base_offset: int
    last_offset: int
    source: uuid.UUID
    """The file's id, or what a marker says (metastore/transaction_markers.py): to compare extents."""
    position: int
    """The first byte in the file; the time of a marker in ms."""
    length: int
    leader_epoch: int
    max_timestamp: int
    """-1 if no record has a timestamp, and of a marker."""

    @property
    def file_id(self) -> uuid.UUID | None:
        """The file; None for a marker."""
        return self.source if self.source.int >> _VERSION_SHIFT & 0xF else None

    @property
    def newest_ms(self) -> int | None:
        """The newest time in it, of a record or of the marker; None if no record has one."""
        if self.file_id is None:
            return self.position  # of a marker, it is the time
        return self.max_timestamp if self.max_timestamp >= 0 else None


class DataExtent(Extent):
    """An extent that is in a file. Only type checkers see this class: `is_in_file` gives an extent this type."""

    __slots__ = ()

    @property
    def file_id(self) -> uuid.UUID:
        """The file."""
        return self.source


def is_in_file(extent: Extent) -> TypeGuard[DataExtent]:
    """Return whether the extent has batches in a file: it is no marker."""
    return extent.file_id is not None


def run_of(extent: Extent) -> BatchRun:
    """Return where its batches are, and their offsets."""
    return BatchRun(extent.position, extent.length, extent.base_offset, extent.last_offset)


class ExtentQuery(NamedTuple):
    """Extents of a partition from the one that holds `offset` on, up to about `max_bytes` but at least one."""

    partition_key: int
    offset: int
    max_bytes: int


class AbortedRange(NamedTuple):
    """A producer's aborted transaction in one partition: readers skip its batches between these offsets."""

    partition_key: int
    producer_id: int
    first_offset: int
    last_offset: int
    """The offset of the abort marker."""


@dataclass(frozen=True, slots=True)
class PartitionExtents:
    """Answer to one ExtentQuery, read from the primary. `known` is False for a deleted partition."""

    partition_key: int
    known: bool
    log_start_offset: int
    high_watermark: int
    extents: list[Extent]
    first_open_offset: int = NONE_OPEN
    """The lowest first offset of an open transaction."""
    aborted: list[AbortedRange] = field(default_factory=list)
    """Those with offsets in `extents`, by last offset."""

    @property
    def last_stable_offset(self) -> int:
        """The last stable offset of a known partition: below it every transaction has ended. Never below the log
        start.
        """
        if self.first_open_offset == NONE_OPEN:
            return self.high_watermark
        return max(self.first_open_offset, self.log_start_offset)


class OffsetKind(enum.IntEnum):
    """The special timestamps of ListOffsets."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    LAST_STABLE = -1_000
    """Not a timestamp of Kafka's: what LATEST is for read_committed."""


class OffsetQuery(NamedTuple):
    """`timestamp`: an OffsetKind, or milliseconds since the epoch."""

    partition_key: int
    timestamp: int


class OffsetAnswer(NamedTuple):
    """`extent` is set if the query was for a timestamp or for MAX_TIMESTAMP: the first extent with a max_timestamp
    that is not below it; the caller opens it to find the record. Otherwise `offset` is the answer.
    """

    known: bool
    offset: int
    leader_epoch: int
    extent: Extent | None


class ReadableEnds(NamedTuple):
    """A partition's readable offsets. `end`: the high watermark, or the last stable offset for read_committed."""

    start: int
    end: int


class FeedKind(enum.IntEnum):
    """What a feed row announces. Numbers are stored: never reuse one."""

    COMMIT = 0
    LOG_START = 1
    SWAP = 2
    TOPIC_DELETED = 3
    TRANSACTION = 4
    """A COMMIT that also says what is open or was aborted."""


class LogStartMove(NamedTuple):
    partition_key: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class FeedRow:
    """One numbered change of one commit shard. Rows of a shard have no gaps in `seq`."""

    shard: int
    seq: int
    kind: FeedKind
    extents: list[Extent] = field(default_factory=list)
    """COMMIT, TRANSACTION: what it appended. SWAP: what now covers the same offsets."""
    log_starts: list[LogStartMove] = field(default_factory=list)
    deleted_keys: list[int] = field(default_factory=list)
    first_open_offsets: dict[int, int] = field(default_factory=dict)
    """TRANSACTION: by partition key from this row on; NONE_OPEN. Partitions that are left out stay as they are."""
    aborted: list[AbortedRange] = field(default_factory=list)
    """TRANSACTION: those that ended with it."""


@dataclass(frozen=True, slots=True)
class FeedPage:
    """Rows after the asked positions, per shard in seq order. `incarnation_id` changes when the metastore is restored.

    `heads` has every commit shard. One that was not asked for is new: its rows begin at 1, and those of the old shards
    that the heads cover come before them.
    `lost_shards`: rows after the asked position are no longer kept (or the feed went back): drop
    what the index holds of that shard and continue from `heads[shard]`. One that `heads` lacks is gone, as on a standby
    that was promoted before the growth reached it: drop everything.
    `wall_ms` is the database's clock when it answered.
    """

    incarnation_id: uuid.UUID
    wall_ms: int
    heads: dict[int, int]
    rows: list[FeedRow]
    lost_shards: list[int]
    metadata_offset: int
    """The next offset of the metadata log: a follower that is behind it reads on."""


class EpochQuery(NamedTuple):
    """Query for the end of the partition's log, for a reader that knows it up to `leader_epoch`?"""

    partition_key: int
    leader_epoch: int


class EpochEnd(NamedTuple):
    """The largest epoch up to the asked one that has records (or is the current one), and the next offset after it.

    Both are -1 for an epoch that is not there yet. Below the first epoch it is the asked epoch, and the log start.
    """

    known: bool
    """False for a partition that is gone."""
    leader_epoch: int
    end_offset: int


class IndexApi(Protocol):
    """What a reader must know; always from the primary."""

    async def find_extents(self, queries: Sequence[ExtentQuery], max_bytes: int = ALL_BYTES) -> list[PartitionExtents]:
        """One answer per query, in order; O(result), independent of the history.

        All queries share one budget: about `max_bytes`, and EXTENTS_PER_CALL. The first EXTENTS_PER_CALL with something
        to read get an extent at least. An answer may so end before its query's `max_bytes` and the high watermark.
        """

    async def list_offsets(self, queries: Sequence[OffsetQuery]) -> list[OffsetAnswer]:
        """One answer per query, in order; O(log n) each."""

    async def poll_feed(self, positions: Mapping[int, int]) -> FeedPage:
        """Everything that changed a reader's view after `positions` (shard -> last seq seen)."""

    async def find_epoch_ends(self, queries: Sequence[EpochQuery]) -> list[EpochEnd]:
        """One answer per query, in order; O(log n) each."""
