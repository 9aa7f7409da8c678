"""Inline files: the bytes of small flush files, kept in the metastore by the call that commits them.

Place: produce stores them (api/commit.py has the call), every reader reads them through metastore/inline_store.py,
merges move what is live of them into ordinary segment files, housekeeping empties the slots.
Invariant: a file's bytes and its commit are one transaction. A slot is emptied only once nothing in it is live, which
is looked at while no other session can use the slot; so a file that is not moved keeps its slot and nothing else. A row
that is not there says that the file is dead: what was live of it is in another file, and the reader locates it again.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Sequence
from typing import NamedTuple, Protocol


class InlineSlotState(enum.IntEnum):
    """Numbers are stored: never reuse one."""

    EMPTY = 0
    FILLING = 1
    """New files go into it; at most one slot."""
    DRAINING = 2
    """It is emptied once nothing in it is live."""


NO_SLOT = -1


class InlineRange(NamedTuple):
    """`length` bytes from `start` of an inline file; the whole file for a length of 0."""

    file_id: uuid.UUID
    start: int
    length: int


class InlineState(NamedTuple):
    """How full the slots are. Sizes in bytes, as Postgres' files have them."""

    slot: int
    """That new files go into; NO_SLOT: none is free."""
    free_slots: int
    held_bytes: int
    oldest_ms: int
    """Age of the oldest live file as of the last look into the slots; of the slot that is filled, of its first file; 0:
    there is none."""
    archive_fails: bool
    """The last attempt to archive WAL failed: Postgres keeps it on its disk."""
    retained_wal_bytes: int
    """WAL that is kept for a standby or another reader that is behind, or for an archive that is: the larger one."""
    asked_ms: int
    """How long ago all that was committed until then was asked to be moved; -1: not within an hour."""


class InlineApi(Protocol):
    """Bytes of small files; `slot_bytes`, `slot_ms`: when a slot takes no more."""

    async def read_inline(self, ranges: Sequence[InlineRange]) -> list[bytes | None]:
        """One statement for all: the bytes of each range, fewer where the file ends; None where no such file is."""

    async def inline_state(self) -> InlineState:
        """Return the state of the slots."""

    async def inline_bytes(self, file_ids: Sequence[uuid.UUID]) -> list[uuid.UUID]:
        """Return those of the files that have their bytes here."""

    async def rotate_inline_slots(self, slot_bytes: int, slot_ms: int) -> int:
        """Begin a new slot if it is time, and empty one that is drained; how many were emptied, 0 or 1."""

    async def ask_inline_move(self) -> None:
        """Have the next plans move all that is committed now, however little and young it is."""
