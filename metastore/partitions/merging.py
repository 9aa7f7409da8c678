"""Halving for clients that know only the count: what becomes of batches while a child is merged into its parent.

Place: the rule of a topic that halves: next_phase for the controller (controller/completing_steps.py), the verdicts for
the commit, where postgres/commit/judge_merges.sql carries them out. tests/key_order/halving_order.py holds it to the
order per key.
A topic halves from 2 N partitions to N: the keys of each child p + N go to its parent p. A record that a client has
queued for the child stays there. librdkafka does not take a lower count while a process runs. Kafka's Java client takes
it, and what it has queued for a partition that is listed no more fails with TimeoutException.

- DRAINING: nothing changes for producers until each group's lag in the child is small.
- PAUSED: batches for the child are sent back, so its end stays where it is, until each group committed that end. If
  this takes longer than PAUSE_MOST_MS, the pause is over: the child drains again, for PAUSE_AGAIN_MS at least.
- MERGED: batches for the child are appended to the parent. The old count is shown for SHOW_AFTER_MS more: clients send
  what they have queued. Then the new count is shown. A producer's batches for the parent with a moved key are sent
  back until it has been quiet at the child for PRODUCER_QUIET_MS; with the first that is appended it has switched, and
  its batches for the child are refused finally.
- SETTLED, SETTLE_AFTER_MS after the new count was shown: batches for the child are appended to the parent, and nothing
  else is left of it. A topic may double or halve again.

Invariant: each group has committed all of the child before a moved key is appended to the parent, and for each
producer the records that it placed in the child come first. So each producer's records of a key are read in the order
in which the client sent them. If a topic doubled again sooner, a client that has not given up would send what it has
queued for the child behind newer records in the parent.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import NamedTuple

from headrace.metastore.partitions.splitting import PRODUCER_QUIET_MS

LAG_MOST = 1_000
"""Records that a group may still have to commit when the pause begins."""
PAUSE_MOST_MS = 20_000
"""Longer than auto.commit.interval.ms (5 s by default), and shorter than delivery.timeout.ms (2 minutes)."""
PAUSE_AGAIN_MS = 60_000
"""Producers need time between two pauses: a group that commits too rarely for one is often too late for the next."""
SHOW_AFTER_MS = 5_000
"""Longer than the largest pause before a client sends a batch again, and than any usual linger.ms."""
SETTLE_AFTER_MS = 300_000
"""message.timeout.ms by default, the longest of the times after which clients give up."""


class MergePhase(enum.IntEnum):
    """See above. Stored in partition_merges.phase: never reuse a number."""

    DRAINING = 0
    PAUSED = 1
    MERGED = 2
    SETTLED = 3


class MergeTimes(NamedTuple):
    """Times of one halving: records and milliseconds, as above."""

    lag_most: int = LAG_MOST
    pause_most_ms: int = PAUSE_MOST_MS
    pause_again_ms: int = PAUSE_AGAIN_MS
    show_after_ms: int = SHOW_AFTER_MS
    settle_after_ms: int = SETTLE_AFTER_MS
    producer_quiet_ms: int = PRODUCER_QUIET_MS


def next_phase(phase: MergePhase, lag: int, waited_ms: int, times: MergeTimes) -> MergePhase:
    """Return what the controller makes of a pair. `lag`: of the slowest group in the child; `waited_ms`: in this
    phase.

    A child that was never paused has waited for longer than any pause.
    """
    if phase is MergePhase.DRAINING and lag <= times.lag_most and waited_ms >= times.pause_again_ms:
        return MergePhase.PAUSED
    if phase is MergePhase.PAUSED and lag <= 0:
        return MergePhase.MERGED
    if phase is MergePhase.PAUSED and waited_ms >= times.pause_most_ms:
        return MergePhase.DRAINING
    return phase


class MergeVerdict(enum.Enum):
    """IN_CHILD, IN_PARENT: where the batch is appended. The others as in splitting.py."""

    IN_CHILD = enum.auto()
    IN_PARENT = enum.auto()
    SEND_AGAIN = enum.auto()
    REFUSED = enum.auto()


class PartitionMerge:
    """One child and its parent, from the request to halve."""

    def __init__(self, times: MergeTimes = MergeTimes()) -> None:  # noqa: B008 - it is immutable
        self._times = times
        self.phase = MergePhase.DRAINING
        self._since_ms = -times.pause_again_ms
        """When the phase began; the first one waits for nothing."""
        self._child_ms: dict[int, int] = {}
        """Producer -> when its last batch for the child came, or its first one with a moved key for the parent."""
        self._switched: set[int] = set()

    def advance(self, end: int, committed: Collection[int], now_ms: int) -> None:
        """A step of the controller. `end`: the child's high watermark; `committed`: of each group in the child."""
        lag = max((end - offset for offset in committed), default=0)
        phase = next_phase(self.phase, lag, now_ms - self._since_ms, self._times)
        if phase is not self.phase:
            self.phase, self._since_ms = phase, now_ms

    def may_show(self, now_ms: int) -> bool:
        """Return whether the new count may be shown; it is, when this holds for all pairs of the topic."""
        return self.phase is MergePhase.MERGED and now_ms - self._since_ms >= self._times.show_after_ms

    def settle(self, shown_ms: int, now_ms: int) -> None:
        """A step of the controller. `shown_ms`: when the new count was shown."""
        if self.phase is MergePhase.MERGED and now_ms - shown_ms >= self._times.settle_after_ms:
            self.phase = MergePhase.SETTLED

    def to_child(self, producer_id: int, now_ms: int) -> MergeVerdict:
        """Judge a batch for the child that is no duplicate."""
        if self.phase is MergePhase.PAUSED and now_ms - self._since_ms < self._times.pause_most_ms:
            return MergeVerdict.SEND_AGAIN
        if self.phase in (MergePhase.DRAINING, MergePhase.PAUSED):
            return MergeVerdict.IN_CHILD
        if self.phase is MergePhase.MERGED and producer_id in self._switched:
            return MergeVerdict.REFUSED
        self._child_ms[producer_id] = now_ms
        return MergeVerdict.IN_PARENT

    def to_parent(self, producer_id: int, has_moved_key: bool, now_ms: int) -> MergeVerdict:
        """Judge a batch for the parent that is no duplicate."""
        if not has_moved_key or self.phase is MergePhase.SETTLED:
            return MergeVerdict.IN_PARENT
        if self.phase is not MergePhase.MERGED:
            return MergeVerdict.REFUSED  # as after the doubling
        last = self._child_ms.setdefault(producer_id, now_ms)  # its last batch for the child may be on its way
        if producer_id not in self._switched and now_ms - last < self._times.producer_quiet_ms:
            return MergeVerdict.SEND_AGAIN
        self._switched.add(producer_id)
        return MergeVerdict.IN_PARENT
