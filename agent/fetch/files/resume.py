"""Resume hints: the byte position of a partition's next offset in a segment file.

Place: written when a reader got part of an extent, read when it continues with the rest.
Invariant: a hint only saves work. It is valid for exactly the file and extent of its creation, so a compaction
swap invalidates it, and so does a new life of the metastore in which the same file was committed at other offsets.
Without a hint the extent is iterated from its start.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict

from headrace.agent.fetch.files.walk import BatchStart
from headrace.metastore.api.read import Extent

_ExtentStart = tuple[uuid.UUID, int, int]
"""File, byte position and base offset: where an extent begins decides the offset of every byte in it."""


class ResumeHints:
    """The `capacity` most recently used hints."""

    def __init__(self, capacity: int = 10_000) -> None:
        self._capacity = capacity
        self._hints: OrderedDict[tuple[int, int], tuple[_ExtentStart, BatchStart]] = OrderedDict()

    def remember(self, extent: Extent, offset: int, start: BatchStart) -> None:
        """A reader of the extent's partition from `offset` on starts at `start`."""
        key = (extent.partition_key, offset)
        self._hints[key] = (_start_of(extent), start)
        self._hints.move_to_end(key)
        if len(self._hints) > self._capacity:
            self._hints.popitem(last=False)

    def find(self, extent: Extent, offset: int) -> BatchStart | None:
        """Return where to start in `extent`; None if no reader stopped at `offset`."""
        key = (extent.partition_key, offset)
        hint = self._hints.get(key)
        if hint is None:
            return None
        made_for, start = hint
        if made_for != _start_of(extent) or not extent.position <= start.position < extent.position + extent.length:
            return None
        self._hints.move_to_end(key)
        return start


def _start_of(extent: Extent) -> _ExtentStart:
    return extent.source, extent.position, extent.base_offset
