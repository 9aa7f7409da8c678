"""Log compaction by key at the boundary: how far partitions are rolled and cleaned, and what a pass may replace.

    log start        cleaned offset        cleanable end     roll offset      high watermark
        │   clean part     │      dirty part      │  too young     │  active part    │

Place: called by the compactor's cleaning planner and by its jobs (compactor/cleaning/).
Invariant: nothing at or above the roll offset, or the last stable offset, is cleaned. The record or marker that ends
the log stays until a pass finds that something follows it (docs/decisions/0093). The cleaned offset moves on only when
every live extent below it was cleaned against all keys below it, and a swap names the cleaned offset that it relies
on: so a delete marker never goes while an earlier record of its key is live. Both offsets only grow.
Units: bytes, and milliseconds on the database's clock.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from headrace.metastore.api.compaction import LivePartition, NewFile, Swap, SwapInput, SwapOutcome
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.read import AbortedRange


class CleaningQuery(NamedTuple):
    """A partition of a compacted topic, and the topic's min.compaction.lag.ms."""

    partition_key: int
    min_lag_ms: int


class CleaningState(NamedTuple):
    """What the policy knows of one partition."""

    partition_key: int
    high_watermark: int
    roll_offset: int
    active_bytes: int
    """Bytes of the active part."""
    active_since_ms: int | None
    """The time when the first record of the active part was committed; None if it has none."""
    is_noted: bool
    """Whether this time is stored; if not, it is known only until its extent is merged."""
    cleaned_offset: int
    cleanable_end: int
    dirty_bytes: int
    """Bytes between cleaned offset and cleanable end."""
    clean_bytes: int
    """Bytes below the cleaned offset; 0 if a pass would not read them: nothing is dirty, and no horizon is
    due.
    """
    dirty_since_ms: int | None
    """The time when the first dirty record was committed."""
    horizon_ms: int | None
    """The first delete horizon below the cleaned offset."""
    uncleanable_ms: int | None
    """The time when a pass found that not all of it can be cleaned."""


class RollTarget(NamedTuple):
    """`since_ms`: as in CleaningState. `rolls`: whether the active part ends; else only the time is noted."""

    partition_key: int
    since_ms: int
    rolls: bool


class CleanablePartition(NamedTuple):
    """What a pass reads: the extents from the log start on, below its end, the roll offset and the last stable
    offset."""

    live: LivePartition
    cleaned_offset: int
    high_watermark: int
    """The high watermark in the same snapshot as the extents."""
    aborted: tuple[AbortedRange, ...] = ()
    """The aborted ranges with offsets in these extents."""
    log_start_offset: int = 0


class CleanedPartition(NamedTuple):
    """What a pass over a partition left: every extent below `end`."""

    partition_key: int
    end: int
    extents: tuple[SwapInput, ...]
    horizon_ms: int | None
    """The first delete horizon that is left."""


class FlushedPart(NamedTuple):
    """A file of level 0 that holds a part of a partition."""

    partition_key: int
    file_id: uuid.UUID
    first_offset: int
    """The first offset of the partition in this file."""


class CleaningApi(Protocol):
    """What takes a token is fenced by that lease: FencedError once the job has another holder."""

    async def describe_cleaning(self, queries: Sequence[CleaningQuery]) -> tuple[int, list[CleaningState]]:
        """(now, the state of each partition that exists)."""

    async def roll_partitions(self, targets: Sequence[RollTarget], *, by: JobToken) -> None:
        """End active parts at the current high watermarks. Idempotent."""

    async def cleanable_extents(self, ends: Sequence[tuple[int, int]]) -> tuple[int, list[CleanablePartition]]:
        """(now, the extents of each (partition key, end)); none for topics that are not compacted now."""

    async def swap_cleaned_extents(
        self, token: JobToken, file: NewFile, swaps: Sequence[Swap], cleaned_offsets: Sequence[int]
    ) -> list[SwapOutcome]:
        """Swap as swap_extents does; all swaps are lost if the cleaned offset of one's partition is lower than the
        given one.
        """

    async def finish_cleaning(self, token: JobToken, cleaned: CleanedPartition) -> bool:
        """Move the cleaned offset to `end`; False, and nothing happened, if other extents are there now. Idempotent."""

    async def mark_uncleanable(self, token: JobToken, partition_key: int, why: str) -> None:
        """Note that a pass could not read all of it, or not hold its keys."""

    async def parts_in_files(self, ends: Sequence[tuple[int, int]], file_ids: Sequence[uuid.UUID]) -> set[int]:
        """Return which of the partitions have an extent below (partition key, end) in one of the files."""

    async def flushed_files(self, ends: Sequence[tuple[int, int]]) -> list[FlushedPart]:
        """The files of level 0 with an extent below (partition key, end)."""

    async def files_of_parts(self, ends: Sequence[tuple[int, int]]) -> set[uuid.UUID]:
        """The files that hold extents below (partition key, end)."""
