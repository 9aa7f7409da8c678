"""Damage of extents: what the bucket does not serve as it was stored, extent by extent.

Place: noted by the jobs that read an extent in order to write it again (compactor/); read by their planners, and by
doctor.
Invariant: damage is of one extent. It holds back neither the file's other extents nor other partitions. An extent that
was merely altered on its way is not damaged (storage/segment/verified.py says when bytes are).
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from headrace.metastore.api.jobs import JobToken


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


class DamageApi(Protocol):
    """What takes a token is fenced by that lease: FencedError once the job has another holder."""

    async def mark_damaged(self, token: JobToken, extents: Sequence[DamagedExtent]) -> None:
        """Note that these extents were read now with this result; those that are not live any more are left out.

        Merges and passes leave them out for a day, then read them again. Idempotent. O(extents).
        """

    async def damaged_parts(self, ends: Sequence[tuple[int, int]]) -> list[DamagedExtent]:
        """Return the live extents of each (partition key, end) that were found damaged within the last day and begin
        below the end.
        """
