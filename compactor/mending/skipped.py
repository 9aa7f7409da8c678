"""What operators skipped: an object in the bucket for each extent. Its swap is in the audit trail.

Place: written by `headrace damage skip`, for people who ask later which records are lost.
Invariant: written before the swap, and again after it with its outcome: if the process crashes in between, `begun` is
left, and the audit trail says whether the swap was done.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import msgspec

from headrace.compactor.mending.mend import ExtentLook
from headrace.storage.objects.store import ObjectStore
from headrace.storage.segment.damage import Piece

PREFIX = "metastore/skipped-damage/"


class LostRange(msgspec.Struct, frozen=True):
    """Damaged offsets, and what their header said: not to be trusted, None if it was not even a header."""

    first_offset: int
    last_offset: int
    why: str
    records: int | None
    producer_id: int | None
    max_timestamp: int | None


class Skipped(msgspec.Struct):
    """One extent that lost records. `outcome`: begun, done, or lost if the extent was replaced or removed meanwhile."""

    topic: str
    topic_id: uuid.UUID
    partition_index: int
    file_id: uuid.UUID
    position: int
    length: int
    wall_ms: int
    ranges: list[LostRange]
    outcome: str = "begun"


def lost_ranges(pieces: Sequence[Piece]) -> list[LostRange]:
    """Return what is lost with damaged pieces."""
    return [
        LostRange(
            piece.base_offset,
            piece.last_offset,
            piece.why,
            piece.claim.record_count if piece.claim else None,
            piece.claim.producer_id if piece.claim else None,
            piece.claim.max_timestamp if piece.claim else None,
        )
        for piece in pieces
    ]


def skipped(topic: str, topic_id: uuid.UUID, partition_index: int, look: ExtentLook, wall_ms: int) -> Skipped:
    """Return the entry of what a replacement leaves out."""
    extent = look.extent
    place = (extent.file_id, extent.position, extent.length)
    ranges = lost_ranges([one.piece for one in look.lost])
    return Skipped(topic, topic_id, partition_index, *place, wall_ms, ranges)


async def write_skipped(store: ObjectStore, entry: Skipped) -> None:
    """Write or overwrite it. What the store raises."""
    key = f"{PREFIX}{entry.file_id}-{entry.position}-{entry.ranges[0].first_offset}.json"
    await store.put(key, msgspec.json.encode(entry))
