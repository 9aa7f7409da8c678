"""Tell which fetched batches belong to aborted transactions: a consumer leaves them out with read_committed.

Place: used by `headrace records consume` and by the console.
Invariant: batches are asked for in the order of their offsets, with the list of the same response.
Source: KIP-98.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from headrace.storage.records.codec import open_batch
from headrace.storage.records.header import BatchHeader

MARKER_BYTES = 64 * 1024
"""A batch with a marker holds a record of a few bytes."""
_MARKER_KEY, _ABORT = struct.Struct(">hh"), 0
"""The key of a marker: its version, and what it says."""


class AbortedBatches:
    """The batches of one response that belong to aborted transactions, as consumers find them (KIP-98)."""

    def __init__(self, aborted: Sequence[tuple[int, int]]) -> None:
        self._starts = sorted(aborted, key=lambda one: one[1], reverse=True)
        self._producers: set[int] = set()

    def has(self, header: BatchHeader, batch: memoryview) -> bool:
        """Called for each batch in the order of offsets."""
        while self._starts and self._starts[-1][1] <= header.base_offset + header.last_offset_delta:
            self._producers.add(self._starts.pop()[0])
        if header.is_control:
            (marker,) = open_batch(batch, max_opened_bytes=MARKER_BYTES)
            if _MARKER_KEY.unpack(marker.key or b"")[1] == _ABORT:
                self._producers.discard(header.producer_id)
        return header.is_transactional and header.producer_id in self._producers
