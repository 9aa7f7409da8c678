"""Damage of extents: what the bucket does not serve as it was stored, extent by extent.

Place: noted by the jobs that read an extent in order to write it again (compactor/), and by agents that read it for
consumers; read by the planners of those jobs, by doctor and by `headrace damage`.
Invariant: damage is of one extent. It holds back neither the file's other extents nor other partitions. An extent that
was merely altered on its way is not damaged (storage/segment/verified.py says when bytes are).
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


class DamageApi(Protocol):
    """What takes a token is fenced by that lease: FencedError once the job has another holder."""

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
