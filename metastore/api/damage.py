"""Damage of extents: what the bucket does not serve as it was stored, extent by extent.

Place: noted by the jobs that read an extent in order to write it again (compactor/), and by agents that read it for
consumers; read by the planners of those jobs, by doctor and by `headrace damage`.
Invariant: damage is of one extent. It holds back neither the file's other extents nor other partitions. An extent that
was merely altered on its way is not damaged (storage/segment/verified.py says when bytes are).
"""

from __future__ import annotations

import enum
import uuid
from typing import NamedTuple

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
