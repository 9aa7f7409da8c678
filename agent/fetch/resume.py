"""Resume hints: where in a segment file a partition's next offset lies.

Place: written when a reader was given part of an extent, read when it comes back for the rest.
Invariant: a hint only saves work. It counts for the very file and extent it was made in, so a swap by
compaction makes it void, and without one the extent is walked from its start.
If the process dies here the next reader walks once.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict

from headrace.agent.fetch.walk import BatchStart
from headrace.metastore.api.read import Extent


class ResumeHints:
    """The `capacity` most recently used."""

    def __init__(self, capacity: int = 10_000) -> None:
        self._capacity = capacity
        self._hints: OrderedDict[tuple[int, int], tuple[uuid.UUID, BatchStart]] = OrderedDict()

    def remember(self, extent: Extent, offset: int, start: BatchStart) -> None:
        """Who reads the extent's partition from `offset` on begins at `start`."""
        key = (extent.partition_key, offset)
        self._hints[key] = (extent.file_id, start)
        self._hints.move_to_end(key)
        if len(self._hints) > self._capacity:
            self._hints.popitem(last=False)

    def find(self, extent: Extent, offset: int) -> BatchStart | None:
        """Where to begin in `extent`; None when nobody stopped there."""
        key = (extent.partition_key, offset)
        hint = self._hints.get(key)
        if hint is None:
            return None
        file_id, start = hint
        if file_id != extent.file_id or not extent.position <= start.position < extent.position + extent.length:
            return None
        self._hints.move_to_end(key)
        return start
