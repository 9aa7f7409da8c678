"""How the transactions of a partition ended, for a pass of cleaning by key: what it may not count, and what it removes.

Place: under rewrite.py and job.py; the ranges are the metastore's, read after the extents of the pass.
Invariant: a pass ends below the last stable offset, so each transaction with a batch in it has ended: by an abort if a
range says so, else by a commit. No reader sees a batch below the log start, and its range may be gone: it counts
as aborted. A committed batch that is written again belongs to no transaction, so nothing depends on its marker; a
marker goes only below the offset through which all extents were cleaned before the pass began, together with its range:
no batch of its transaction is left then. The marker that ends the log stays (passes.py).
Source: KIP-98; KIP-534 (markers are kept for delete.retention.ms).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable

from headrace.metastore.api.read import AbortedRange, Extent
from headrace.metastore.transactions.markers import render_marker
from headrace.storage.segment.verified import SoundBatch


class EndedTransactions:
    """The aborted transactions of one partition, and its log start."""

    def __init__(self, aborted: Iterable[AbortedRange] = (), log_start_offset: int = 0) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for one in sorted(aborted, key=lambda one: one.first_offset):
            self._ranges[one.producer_id].append((one.first_offset, one.last_offset))
        self._log_start_offset = log_start_offset

    def hide(self, batch: SoundBatch) -> bool:
        """Return whether no record of the batch was committed."""
        header = batch.header
        if not header.is_transactional:
            return False
        if batch.last_offset < self._log_start_offset:
            return True
        ranges = self._ranges.get(header.producer_id, [])
        before = bisect_right(ranges, (batch.offset, 1 << 62))
        return before > 0 and batch.offset < ranges[before - 1][1]


NONE_ENDED = EndedTransactions()


def marker_batch(extent: Extent) -> SoundBatch:
    """A marker as it would be stored."""
    return SoundBatch(memoryview(bytearray(render_marker(extent))), extent.base_offset, extent.leader_epoch)


def marker_horizon_ms(extent: Extent, *, cleaned_offset: int, now_ms: int, delete_retention_ms: int) -> int | None:
    """Return the time until which a marker has to stay at least; None: it goes now. Times on the
    database's clock.
    """
    if extent.base_offset >= cleaned_offset:
        return now_ms + delete_retention_ms
    until_ms = extent.position + delete_retention_ms
    return until_ms if until_ms > now_ms else None
