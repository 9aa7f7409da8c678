"""Compaction's side of the boundary: files that wait to be merged, live extents, the swap, damage.

Place: called by the compactor's planner and by the workers that run its jobs, here or on Spark. Jobs that read an
extent in order to write it again (compactor/), and agents that read it for consumers, note damage; the planners,
doctor and `headrace damage` read it.
Invariant of damage: damage is of one extent. It holds back neither the file's other extents nor other partitions. An
extent that was merely altered on its way is not damaged (storage/segment/verified.py says when bytes are).
Invariant: an extent is replaced only while exactly its inputs are still there, under the job's epoch. So a swap can
be repeated, interrupted or raced, and readers see either the old extents or the new one.
Units: sizes in bytes, ages and times in milliseconds on the database's clock.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.read import Extent


class DamageKind(enum.IntEnum):
    """What is wrong with the extent. Numbers are SQL's."""

    ALTERED = 0
    """The object has other bytes than were stored: each of several reads returned the same wrong ones."""
    MISSING = 1
    """The object is gone."""
    REFUSED = 2
    """The object store refuses this object, for longer than a worker waits: the bytes may be as they were stored."""


class DamagedExtent(NamedTuple):
    """An extent as its row describes it, and why it could not be read. Position and length in bytes."""

    file_id: uuid.UUID
    position: int
    length: int
    partition_key: int
    base_offset: int
    last_offset: int
    kind: DamageKind
    why: str


class FoundDamage(NamedTuple):
    """A damaged extent, and the offsets in it that cannot be read: at most all of them."""

    extent: DamagedExtent
    first_offset: int
    last_offset: int


class ListedDamage(NamedTuple):
    """A damaged extent as people see it. Times in ms on the database's clock."""

    topic: str
    partition_index: int
    extent: Extent
    kind: DamageKind
    why: str
    first_offset: int
    last_offset: int
    found_ms: int
    checked_ms: int


class RepairSource(NamedTuple):
    """A file that may have the sound bytes of a damaged one. Offsets are those of one segment in it; -1: not known."""

    file_id: uuid.UUID
    size: int
    start_offset: int
    end_offset: int


class FileFacts(NamedTuple):
    """What the policy knows of one live file."""

    file_id: uuid.UUID
    level: int
    body_bytes: int
    """Bytes of all batches in it, live or dead."""
    live_bytes: int
    age_ms: int


class WaitingFiles(NamedTuple):
    """Files in order of their ids. `next_scan`: where to continue among the files of the last level."""

    files: list[FileFacts]
    next_scan: uuid.UUID


class LivePartition(NamedTuple):
    """The live extents that some files hold of one partition, in offset order."""

    partition_key: int
    topic_id: uuid.UUID
    partition_index: int
    compression_type: str
    """The topic's own setting, else the cluster's; "" when there is neither."""
    extents: list[Extent]
    max_message_bytes: int | None
    """max.message.bytes in the same way; None when there is neither."""
    roll_offset: int = 0
    """The roll offset of a topic that is compacted by key: where its active part begins (metastore/api/cleaning.py).
    Else 0.
    """
    cleaned_offset: int = 0
    """The offset up to which such a topic is cleaned, for merges. Else 0."""


class LiveExtents(NamedTuple):
    """The live extents at one instant, `wall_ms`; partitions in order of their keys."""

    wall_ms: int
    partitions: list[LivePartition]


class SwapInput(NamedTuple):
    """An extent to be replaced. It is still there while (partition, last offset) refers to this file."""

    last_offset: int
    file_id: uuid.UUID


class Swap(NamedTuple):
    """One new extent, and the extents that cover the same offsets now. File: the one that is being named."""

    partition_key: int
    base_offset: int
    last_offset: int
    position: int
    length: int
    leader_epoch: int
    max_timestamp: int
    inputs: tuple[SwapInput, ...]


class NewFile(NamedTuple):
    """A merged file that the bucket holds whole. `body_bytes`: of its batches."""

    file_id: uuid.UUID
    level: int
    size: int
    body_bytes: int


class SwapOutcome(enum.IntEnum):
    """The result of one swap. Numbers are SQL's."""

    DONE = 0
    """Also when this very swap had happened before."""
    LOST = 1
    """Nothing changed: retention, a deletion or another job was first."""


class CompactionApi(Protocol):
    """What takes a token is fenced by that lease: FencedError once the job has another holder."""

    async def waiting_files(self, scan_from: uuid.UUID, limit: int) -> WaitingFiles:
        """Return up to `limit` of the oldest live files of each level but the last, and of the
        last those after `scan_from`.

        Files with damaged extents only are left out (metastore/api/compaction.py). O(limit).
        """

    async def unfinished_payloads(self, *kinds: str) -> list[list[bytes]]:
        """Payloads of the jobs that wait or run, a list for each of these kinds: what must not be planned again."""

    async def live_extents(self, file_ids: Sequence[uuid.UUID]) -> LiveExtents:
        """All extents in these files, of topics that still exist, but for those that were damaged lately."""

    async def swap_extents(self, token: JobToken, file: NewFile, swaps: Sequence[Swap]) -> list[SwapOutcome]:
        """Let the new file take over, one outcome per swap; names the file with the first call.

        One short transaction; give it the partitions of one commit shard, a few dozen at a time. NotFoundError
        if the file's id can no longer be used: it was condemned, or is over an hour old.
        """

    async def note_damage(self, found: Sequence[FoundDamage]) -> None:
        """Note damage that was met outside of a job. Extents that are not live any more are left out. Idempotent."""

    async def clear_damage(self, file_id: uuid.UUID, position: int) -> None:
        """Forget the damage of an extent that was read and is sound, or was replaced. Idempotent."""

    async def list_damage(self, limit: int) -> tuple[list[ListedDamage], int]:
        """The damaged extents that are live, by topic, partition and offset; and how many there are in all."""

    async def repair_sources(self, damaged: Extent, first: int, last: int, limit: int) -> list[RepairSource]:
        """Files that may have the sound bytes of these offsets of a damaged merged file: the likeliest first."""

    async def mark_damaged(self, token: JobToken, extents: Sequence[DamagedExtent]) -> None:
        """Note that these extents were read now with this result; those that are not live any more are left out.

        Merges and passes leave them out for a day, then read them again. Idempotent. O(extents).
        """

    async def damaged_parts(self, ends: Sequence[tuple[int, int]]) -> list[DamagedExtent]:
        """Return the live extents of each (partition key, end) that were found damaged within the last day and begin
        below the end.
        """
