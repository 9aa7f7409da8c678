"""Halving for clients that know only the count: what becomes of batches while a child is merged into its parent.

Place: a rule for the commit of a topic that halves; load/halving_order.py holds it to the order per key. The server
does not halve topics yet.
A topic halves from 2 N partitions to N: the keys of each child p + N go to its parent p. A record that a client has
queued for the child stays there. librdkafka does not take a lower count while a process runs. Kafka's Java client takes
it, and what it has queued for a partition that is listed no more fails with TimeoutException.

- DRAINING: nothing changes for producers until each group's lag in the child is small.
- PAUSED: batches for the child are sent back, so its end stays where it is, until each group committed that end. If
  this takes longer than PAUSE_MOST_MS, the pause is undone.
- MERGED: batches for the child are appended to the parent. The old count is shown for SHOW_AFTER_MS more: clients send
  what they have queued. Then the new count is shown. A producer's batches for the parent with a moved key are sent
  back until it has been quiet at the child for PRODUCER_QUIET_MS; with the first that is appended it has switched, and
  its batches for the child are refused finally.

Invariant: each group has committed all of the child before a moved key is appended to the parent, and for each
producer the records that it placed in the child come first. So each producer's records of a key are read in the order
in which the client sent them. A topic may double again when DOUBLE_AFTER_MS have passed: else a client sends what it
has queued for the child, and has not given up, behind newer records in the parent.
"""

from __future__ import annotations

import enum
from collections.abc import Collection

from headrace.metastore.partitions.splitting import PRODUCER_QUIET_MS

LAG_MOST = 1_000
"""Records that a group may still have to commit when the pause begins."""
PAUSE_MOST_MS = 20_000
"""Longer than auto.commit.interval.ms (5 s by default), and shorter than delivery.timeout.ms (2 minutes)."""
SHOW_AFTER_MS = 5_000
"""Longer than the largest pause before a client sends a batch again, and than any usual linger.ms."""
DOUBLE_AFTER_MS = 300_000
"""message.timeout.ms by default, the longest of the times after which clients give up."""


class MergePhase(enum.Enum):
    """See above."""

    DRAINING = enum.auto()
    PAUSED = enum.auto()
    MERGED = enum.auto()


class MergeVerdict(enum.Enum):
    """IN_CHILD, IN_PARENT: where the batch is appended. The others as in splitting.py."""

    IN_CHILD = enum.auto()
    IN_PARENT = enum.auto()
    SEND_AGAIN = enum.auto()
    REFUSED = enum.auto()


class PartitionMerge:
    """One child and its parent, from the request to halve."""

    def __init__(
        self,
        *,
        lag_most: int = LAG_MOST,
        pause_most_ms: int = PAUSE_MOST_MS,
        show_after_ms: int = SHOW_AFTER_MS,
        producer_quiet_ms: int = PRODUCER_QUIET_MS,
        double_after_ms: int = DOUBLE_AFTER_MS,
    ) -> None:
        self._lag_most, self._pause_most_ms = lag_most, pause_most_ms
        self._double_after_ms = double_after_ms
        self._show_after_ms, self._producer_quiet_ms = show_after_ms, producer_quiet_ms
        self.phase = MergePhase.DRAINING
        self._since_ms = 0
        """When the phase began, if it is not the first."""
        self._child_ms: dict[int, int] = {}
        """Producer -> when its last batch for the child came, or its first one with a moved key for the parent."""
        self._switched: set[int] = set()

    def advance(self, end: int, committed: Collection[int], now_ms: int) -> None:
        """A step of the controller. `end`: the child's high watermark; `committed`: of each group in the child."""
        lag = max((end - offset for offset in committed), default=0)
        if self.phase is MergePhase.DRAINING and lag <= self._lag_most:
            self.phase, self._since_ms = MergePhase.PAUSED, now_ms
        elif self.phase is MergePhase.PAUSED:
            if lag <= 0:
                self.phase, self._since_ms = MergePhase.MERGED, now_ms
            elif now_ms - self._since_ms >= self._pause_most_ms:
                self.phase = MergePhase.DRAINING

    def may_show(self, now_ms: int) -> bool:
        """Whether the new count may be shown; it is, when this holds for all pairs of the topic."""
        return self.phase is MergePhase.MERGED and now_ms - self._since_ms >= self._show_after_ms

    def may_double(self, shown_ms: int, now_ms: int) -> bool:
        """Whether the topic may double again. `shown_ms`: when the new count was shown."""
        return now_ms - shown_ms >= self._double_after_ms

    def to_child(self, producer_id: int, now_ms: int) -> MergeVerdict:
        """Of a batch for the child that is no duplicate."""
        if self.phase is MergePhase.DRAINING:
            return MergeVerdict.IN_CHILD
        if self.phase is MergePhase.PAUSED:
            return MergeVerdict.SEND_AGAIN
        if producer_id in self._switched:
            return MergeVerdict.REFUSED
        self._child_ms[producer_id] = now_ms
        return MergeVerdict.IN_PARENT

    def to_parent(self, producer_id: int, has_moved_key: bool, now_ms: int) -> MergeVerdict:
        """Of a batch for the parent that is no duplicate."""
        if not has_moved_key:
            return MergeVerdict.IN_PARENT
        if self.phase is not MergePhase.MERGED:
            return MergeVerdict.REFUSED  # as after the doubling
        last = self._child_ms.setdefault(producer_id, now_ms)  # its last batch for the child may be on its way
        if producer_id not in self._switched and now_ms - last < self._producer_quiet_ms:
            return MergeVerdict.SEND_AGAIN
        self._switched.add(producer_id)
        return MergeVerdict.IN_PARENT
