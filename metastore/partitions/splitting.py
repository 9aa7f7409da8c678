"""Doubling for clients that know only the count: what becomes of batches while a parent is split in two.

Place: the rule of the commit of a topic that doubles, which postgres/commit/judge_splits.sql carries out;
tests/key_order/doubling_order.py holds it to the order per key. agent/topics/counts/scaling.py doubles topics
(decisions/0054). When a topic doubles from N partitions to 2 N, a client that places keys by hash modulo count moves
half of the keys of each partition p to its child p + N. It places a record once: what it has queued for p stays there,
also after it has seen the new count. And it may know the old count until its metadata is too old (metadata.max.age.ms).

- A producer's first batch for p with a moved key is sent back once, so that the client asks for metadata.
- Its batches for the child are sent back until PRODUCER_QUIET_MS after the first of them, and after its last batch with
  a moved key for p. With the first that is appended the producer has switched: its batches with moved keys for p are
  refused finally.
- When no batch with a moved key came to p from any producer for BOUNDARY_QUIET_MS, p's high watermark is the boundary:
  from then on such batches are refused finally. A group reads the child once it has committed p up to the boundary.

Invariant: the records of moved keys in p end at the boundary, and for each producer they are older than those in the
child. So each producer's records of a key are read in the order in which the client sent them. This needs metadata that
does not go back: an agent that still shows the old count after another one has shown the new one makes a client write a
newer record to p than one that it has queued for the child.
Without the wait for a producer, the batch that was sent back and what the client had queued for p come after its first
batch for the child, and are lost, although the client did nothing wrong: tests/key_order/doubling_order.py shows it.
"""

from __future__ import annotations

import enum

PRODUCER_QUIET_MS = 2_000
"""Longer than the largest pause before a client sends a batch again: retry.backoff.max.ms is 1 s by default."""
BOUNDARY_QUIET_MS = 300_000
"""metadata.max.age.ms by default. A shorter time lets groups read moved keys earlier, and a producer that is silent for
as long, and does not know the new count then, loses its next batch with a moved key."""


class SplitVerdict(enum.Enum):
    """SEND_AGAIN is NOT_LEADER_OR_FOLLOWER: the client asks for metadata. REFUSED is final, and counted."""

    APPENDED = enum.auto()
    SEND_AGAIN = enum.auto()
    REFUSED = enum.auto()


class PartitionSplit:
    """One parent and its child, from the time at which the new count is shown."""

    def __init__(
        self, began_ms: int, *, producer_quiet_ms: int = PRODUCER_QUIET_MS, boundary_quiet_ms: int = BOUNDARY_QUIET_MS
    ) -> None:
        self._producer_quiet_ms, self._boundary_quiet_ms = producer_quiet_ms, boundary_quiet_ms
        self._last_moved_ms = began_ms
        self._moved_ms: dict[int, int] = {}
        """Producer -> when its last batch with a moved key came to the parent, or its first one for the child."""
        self._switched: set[int] = set()
        self.has_boundary = False

    def to_parent(self, producer_id: int, has_moved_key: bool, now_ms: int) -> SplitVerdict:
        """Judge a batch for the parent that is no duplicate."""
        self._settle(now_ms)
        if not has_moved_key:
            return SplitVerdict.APPENDED
        if self.has_boundary or producer_id in self._switched:
            return SplitVerdict.REFUSED
        is_unknown = producer_id not in self._moved_ms
        self._moved_ms[producer_id] = self._last_moved_ms = now_ms
        return SplitVerdict.SEND_AGAIN if is_unknown else SplitVerdict.APPENDED

    def to_child(self, producer_id: int, now_ms: int) -> SplitVerdict:
        """Judge a batch for the child that is no duplicate."""
        self._settle(now_ms)
        last = self._moved_ms.setdefault(producer_id, now_ms)  # its first batch for the parent may be on its way
        if now_ms - last < self._producer_quiet_ms and not self.has_boundary:
            return SplitVerdict.SEND_AGAIN
        self._switched.add(producer_id)
        return SplitVerdict.APPENDED

    def _settle(self, now_ms: int) -> None:
        if now_ms - self._last_moved_ms >= self._boundary_quiet_ms:
            self.has_boundary = True
