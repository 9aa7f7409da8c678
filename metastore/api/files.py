"""The end of segment files: which files may be deleted, and which objects have no row. And files named again.

Place: called by the compactor's janitor and sweeper, and by a rebuild of the index
(compactor/rebuild.py): files first, then their extents.
Invariant: an object is deleted only after its row says so (`deleting`, or `condemned` under the same
unique key that a commit inserts), and a row is deleted only after the store confirmed that the object is
gone; neither state ends in another way. So a deletion can be repeated, interrupted, or done by a worker that
lost its lease.
Sizes in bytes, times in milliseconds on the database's clock.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.read import Extent


class FileState(enum.IntEnum):
    """Numbers are stored: never reuse one."""

    LIVE = 0
    """Committed; dead once no extent names it."""
    CONDEMNED = 1
    """An object that no commit may ever name."""
    DELETING = 2
    """Dead, and given to the janitor."""
    STAGED = 3
    """State of a file of a bulk write that is decided: no extent names it before its chunk is committed."""
    RESERVED = 4
    """State of a file of an upload that a lease has started (metastore/api/segments.py): live from its first swap
    on.
    """


class DeadFile(NamedTuple):
    """`size` is 0 for a condemned one: it is not known."""

    file_id: uuid.UUID
    size: int
    condemned: bool


class JanitorState(NamedTuple):
    """Life of the metastore, and the number of times that objects were deleted under it."""

    incarnation_id: uuid.UUID
    generation: int


class FoundFile(NamedTuple):
    """A file of the bucket that no row names. Sizes in bytes: of the object, its batches, and those to be readable."""

    file_id: uuid.UUID
    level: int
    size: int
    body_bytes: int
    live_bytes: int


class FileApi(Protocol):
    """FencedError, for what takes a token: the job has another holder, or the metastore another life."""

    async def take_dead_files(self, token: JobToken, incarnation_id: uuid.UUID, *, limit: int) -> list[DeadFile]:
        """Files to delete now: dead for the cluster's file.delete.delay.ms, and what was taken before and not dropped.

        None of the former while the cluster has no value. Not those that are dead only since the oldest lease of a
        running job that is not periodic: its read pin.
        """

    async def drop_files(self, token: JobToken, file_ids: Sequence[uuid.UUID]) -> int:
        """Forget files after their objects were deleted; how many. Files in other states stay."""

    async def set_aside_files(self, token: JobToken, delays_ms: Mapping[uuid.UUID, int]) -> None:
        """The store refused to delete their objects: take_dead_files leaves these files out, each for its time."""

    async def unnamed_files(self, file_ids: Sequence[uuid.UUID]) -> list[uuid.UUID]:
        """Those that no row names."""

    async def condemn_files(
        self, token: JobToken, incarnation_id: uuid.UUID, file_ids: Sequence[uuid.UUID], *, min_age_ms: int
    ) -> list[uuid.UUID]:
        """Condemn ids that no row names and that are older than this and the cluster's file.delete.delay.ms; those that
        are condemned now. No new ones while the cluster has no value. Idempotent.
        """

    async def janitor_state(self) -> JanitorState:
        """Return the janitor's state."""

    async def begin_generation(self, token: JobToken, incarnation_id: uuid.UUID) -> int:
        """Count on, before objects are deleted."""

    async def resume_janitor(self, seen: int) -> int:
        """Count on from beyond `seen`, after an audit; the new generation."""

    async def rebuild_files(self, files: Sequence[FoundFile]) -> int:
        """Name files again; how many were not named yet. Those without live bytes are dead.

        For a metastore that lost its rows, while no agent runs: the feed does not announce them.
        """

    async def rebuild_extents(self, extents: Sequence[Extent]) -> None:
        """Store extents of files that `rebuild_files` named. The extents of a partition come in offset order, also over
        several calls: the first decides its log start, the last its high watermark. The leader epochs of the extents
        are replaced by the metastore's.
        """
