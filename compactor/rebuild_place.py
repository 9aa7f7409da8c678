"""Assigns offsets to batches when only files are left: one partition at a time, pure.

Place: under rebuild.py, on the batches that rebuild_scan.py read.
Invariant: no offset is assigned twice, and no batch is left out unless the same records are placed elsewhere. Merged
batches contain their offsets; of overlapping ones, as many records as possible are kept, and then those in newer files:
what the cleaning by key removed is still in the older ones. An offset counts as a record, also where it removed one.
A flushed batch that a merged file also contains is recognised by its content, and a duplicate of an idempotent
producer by the producer's sequence. All others are estimated (`guess`).
"""

from __future__ import annotations

import uuid
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.metastore.transaction_outcomes import BatchOwner

_AGE_BITS = 64


class ScannedBatch(NamedTuple):
    """A batch of the partition. `file` is the file's index by creation time. `base_offset` is real only in merged
    files.
    """

    file: int
    position: int
    length: int
    level: int
    born_ms: int
    base_offset: int
    records: int
    max_timestamp: int
    is_idempotent: bool
    content: bytes
    """Equal for copies of the same batch, in any file and with any broker timestamp."""
    owner: BatchOwner | None = None
    """The owner of a batch of a transaction."""
    marker: uuid.UUID | None = None
    """The file id of a marker, which is in no file: then `position` is its time."""

    @property
    def end_offset(self) -> int:
        """One beyond the last offset, from its base offset."""
        return self.base_offset + self.records


@dataclass(slots=True)
class Placement:
    """Batches with their assigned offsets."""

    batches: dict[int, ScannedBatch] = field(default_factory=dict)
    """The batches by base offset; they do not overlap."""
    offsets: list[int] = field(default_factory=list)
    """Its keys in order."""
    open: list[ScannedBatch] = field(default_factory=list)
    """Flushed batches by creation time of their file, without an assigned offset."""
    guessed_records: int = 0
    repeated_batches: int = 0
    """Flushed batches with records that are placed elsewhere."""
    replaced: list[ScannedBatch] = field(default_factory=list)
    """Merged batches with offsets that newer files cover: flushed batches may be recognised in them."""

    @property
    def end(self) -> int:
        """One beyond the last offset."""
        return self.offsets[-1] + self.batches[self.offsets[-1]].records if self.offsets else 0

    def is_free(self, offset: int, records: int) -> bool:
        """Return whether no batch is placed there."""
        after = bisect_left(self.offsets, offset)
        before_end = self.offsets[after - 1] + self.batches[self.offsets[after - 1]].records if after else 0
        return before_end <= offset and (after == len(self.offsets) or offset + records <= self.offsets[after])

    def put(self, offset: int, batch: ScannedBatch) -> None:
        """Place a batch; its offsets must be free."""
        self.batches[offset] = batch
        insort(self.offsets, offset)

    def recognise(self, batch: ScannedBatch, offset: int | None) -> None:
        """Note a flushed batch with records that are, or were, at `offset`; None: unknown."""
        if offset is None:
            self.open.append(batch)
        elif self.is_free(offset, batch.records):
            self.put(offset, batch)
        else:
            self.repeated_batches += 1


def settle(batches: Sequence[ScannedBatch]) -> Placement:
    """Place the batches of merged files, and those recognised in them; the rest stays open."""
    placement = Placement()
    merged = [batch for batch in batches if batch.level]
    for batch in _most_records(merged):
        placement.put(batch.base_offset, batch)
    placed = set(placement.batches.values())
    placement.replaced = [batch for batch in merged if batch not in placed]
    stands: dict[bytes, list[int]] = defaultdict(list)
    for offset, content in sorted({(batch.base_offset, batch.content) for batch in merged}, reverse=True):
        stands[content].append(offset)  # popped from the end: the lowest first
    sent: set[bytes] = set()
    for batch in sorted(batch for batch in batches if not batch.level):
        if batch.is_idempotent and batch.content in sent:
            placement.repeated_batches += 1
        else:
            sent.add(batch.content)
            placement.recognise(batch, stands[batch.content].pop() if stands.get(batch.content) else None)
    return placement


def guess(placement: Placement) -> None:
    """Place the open batches: by age and time into the gaps between known batches, else after all of them.

    A batch that fits several gaps is placed in the first. Before the first known batch there is room for records that
    retention removed but with objects that still exist; they are placed directly before that batch.
    """
    units, placement.open = placement.open, []
    gaps = _gaps(placement)
    behind = _Gap(placement.end, 1 << 63, 0, 0)
    for unit in units:
        first = bisect_left(gaps, unit.max_timestamp, key=lambda gap: gap.newest)
        next((gap for gap in gaps[first:] if gap.takes(unit)), behind).add(unit)
    for gap in (*gaps, behind):
        is_beginning = gap.start == 0 and gap is not behind
        offset = gap.room if is_beginning else gap.start
        for unit in gap.filling:
            placement.put(offset, unit)
            placement.guessed_records += unit.records
            offset += unit.records


@dataclass(slots=True)
class _Gap:
    """Free offsets before a batch that existed when a file was created at `born_ms`. `room` in records."""

    start: int
    room: int
    newest: int
    """The highest timestamp of all known batches up to the one after the gap."""
    born_ms: int
    filling: list[ScannedBatch] = field(default_factory=list)

    def takes(self, unit: ScannedBatch) -> bool:
        """Return whether it may be placed here: it is not newer than the batches after the gap."""
        return unit.born_ms <= self.born_ms and unit.records <= self.room

    def add(self, unit: ScannedBatch) -> None:
        self.filling.append(unit)
        self.room -= unit.records


def _gaps(placement: Placement) -> list[_Gap]:
    gaps, end, newest = [], 0, -1
    for offset in placement.offsets:
        batch = placement.batches[offset]
        newest = max(newest, batch.max_timestamp)
        if offset > end:
            gaps.append(_Gap(end, offset - end, newest, batch.born_ms))
        end = offset + batch.records
    return gaps


def _most_records(merged: Sequence[ScannedBatch]) -> list[ScannedBatch]:
    """The batches that together cover most offsets without an overlap; of equal covers, that in the newest files."""
    claims = sorted(
        {(b.base_offset, b.records): b for b in sorted(merged)}.values(), key=lambda b: (b.end_offset, b.file)
    )
    ends = [claim.end_offset for claim in claims]
    best, before = [0], []
    """best[n]: the most that the first n claims can cover: records first, then how new their files are."""
    for number, claim in enumerate(claims):
        before.append(bisect_right(ends, claim.base_offset, hi=number))
        worth = (claim.records << _AGE_BITS) + claim.records * claim.file
        best.append(max(best[number], best[before[number]] + worth))
    chosen, number = [], len(claims)
    while number:
        if best[number] == best[number - 1]:
            number -= 1
        else:
            chosen.append(claims[number - 1])
            number = before[number - 1]
    return chosen[::-1]
